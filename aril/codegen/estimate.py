"""Estimates: the arithmetic of one launch of a kernel and the bytes of distinct memory it touches.

In comes kernel form (before optimisation: the same work whatever the steps); out go numbers, or expressions in the
kernel's variables where its loops are symbolic.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from aril.codegen.affine import linear, split_gate
from aril.dtype import dtypes
from aril.ops import OpGroup, Ops
from aril.uop.args import AxisType, Estimates
from aril.uop.node import UOp, sint
from aril.uop.symbolic import simplify


def estimate(sink: UOp) -> Estimates:
    """Operations and bytes of the kernel `sink`.

    Operations: one for each arithmetic node and turn of its loops (two for MULACC), and for each element of a REDUCE;
    index arithmetic and conversions are not counted. Bytes: each element of a buffer that is read counts once however
    often it is read, and once more if it is written; gates are not looked at.
    """
    return Estimates(_operations(sink), _bytes(sink))


def _operations(sink: UOp) -> sint:
    totals: dict[frozenset[UOp], int] = {}
    for u in sink.toposort(_value_sources):
        if u.op is Ops.REDUCE:
            operands = [s for s in u.src if s.op is not Ops.RANGE]
            live = frozenset(s for s in u.src if s.op is Ops.RANGE).union(*[s.ranges for s in operands])
            weight = len(operands)
        elif u.op in OpGroup.ALU and u.dtype is not dtypes.weakint and not _compares_indices(u):
            live, weight = u.ranges, 2 if u.op is Ops.MULACC else 1
        else:
            continue
        lanes = int(u.shape[0]) if u.shape else 1  # type: ignore[arg-type]
        totals[live] = totals.get(live, 0) + weight * lanes
    return _total([_times(count, live) for live, count in totals.items()])


def _value_sources(u: UOp) -> bool:
    """Whether the walk goes on below `u`: not into addresses and not into the conditions of loops' ends."""
    return u.op not in (Ops.INDEX, Ops.SHRINK, Ops.RANGE)


def _compares_indices(u: UOp) -> bool:
    return u.op in OpGroup.COMPARISON and all(s.dtype is dtypes.weakint for s in u.src)


def _times(count: int, loops: Iterable[UOp]) -> sint:
    out: sint = count
    symbols: list[UOp] = []
    loops = set(loops)
    # a turn that only one chunk takes happens once, however many chunks ask whether it is theirs
    once = {c for r in loops if r.src[0].ranges and r.src[0].vmax <= 1 for c in r.src[0].ranges if _is_chunk(c)}
    for r in loops - once:
        if r.src[0].op is Ops.CONST:
            out *= int(r.src[0].arg)
        elif any(n.op in (Ops.RANGE, Ops.LOAD) for n in r.src[0].toposort()):
            out *= int(r.src[0].vmax)
        else:
            symbols.append(r.src[0])
    for end in sorted(symbols, key=lambda e: e.digest):
        out = end * out if isinstance(out, int) else UOp(Ops.MUL, (out, end))
    return out


def _is_chunk(loop: UOp) -> bool:
    return bool(loop.arg.kind is AxisType.GLOBAL)


def _total(parts: list[sint]) -> sint:
    out: sint = sum(p for p in parts if isinstance(p, int))
    for p in parts:
        if isinstance(p, UOp):
            out = UOp(Ops.ADD, (p, UOp.lift(out)))
    return out if isinstance(out, int) else simplify(out)


def _bytes(sink: UOp) -> sint:
    touched: dict[tuple[UOp, Ops], list[UOp]] = {}
    for u in sink.toposort():
        if u.op in (Ops.LOAD, Ops.STORE, Ops.ATOMIC) and u.src[0].op in (Ops.INDEX, Ops.SHRINK):
            memory = u.src[0].src[0].base
            if memory.op is Ops.PARAM:
                kind = Ops.LOAD if u.op is Ops.LOAD else Ops.STORE
                touched.setdefault((memory, kind), []).append(u.src[0])
    return _total([_scale(_footprint(m, found), m.dtype.itemsize) for (m, _), found in touched.items()])


def _scale(count: sint, by: int) -> sint:
    return count * by if isinstance(count, int) else UOp(Ops.MUL, (count, UOp.lift(by)))


def _footprint(memory: UOp, addresses: list[UOp]) -> sint:
    """How many elements of `memory` the addresses reach, together."""
    size = memory.arg.size or 1
    low, high, step, total, most = size, -1, 0, 0, 0
    exact: list[sint] = []
    seen = set()
    for address in dict.fromkeys(addresses):
        index = split_gate(address.src[1])[0] if len(address.src) > 1 else UOp.lift(int(address.arg[0]))
        lanes = int(address.shape[0]) if address.shape else 1  # type: ignore[arg-type]
        form = linear(index, {})
        spans = sorted((abs(scale), atom.bounds[1] - atom.bounds[0] + 1) for atom, scale in form.terms.items())
        first = form.const + sum(min(scale * v for v in atom.bounds) for atom, scale in form.terms.items())
        count = lanes * min(math.prod([n for _, n in spans]), math.prod([r.vmax + 1 for r in index.ranges]))
        key = (first, lanes, tuple(spans), count)
        if key in seen:  # other loops over the same elements
            continue
        seen.add(key)
        last = first + sum(scale * (n - 1) for scale, n in spans) + lanes - 1
        low, high = min(low, max(first, 0)), max(high, min(last, size - 1))
        step = math.gcd(
            step, *[scale for scale, _ in spans], *([first - low] if len(seen) > 1 else []), lanes > 1 and 1 or 0
        )
        total += count
        most = max(most, count)
        exact.append(_times(lanes, index.ranges))
    if high < low:
        return 0
    reach = min((high - low) // max(step, 1) + 1, size)
    symbolic = [e for e in exact if isinstance(e, UOp)]
    if symbolic and total <= reach:
        return _total(exact)
    return min(total, reach)
