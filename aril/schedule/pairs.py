"""A position and the maximum it belongs to are found in one loop: kernel form in, kernel form out."""

from __future__ import annotations

import math

from aril.ops import Ops
from aril.uop import UOp

CACHED_BYTES = 1 << 15  # what is this short is gone over twice: both loops together cost less than the joint one


def pair_positions(sink: UOp) -> UOp:
    """A maximum and the greatest mark of the elements that reach it are one reduction with two accumulators.

    Before: ``m = REDUCE(x(i), i; MAX)``, ``REDUCE(WHERE(x(j) == m | isnan(x(j)), mark(j), 0), j; MAX)``. After:
    ``p = REDUCE(TUPLE(x(j), mark(j)), j; "position")``, GETTUPLE(p, 0) and GETTUPLE(p, 1).
    """
    found: dict[UOp, UOp] = {}
    for u in sink.toposort():
        pair = _pair(u) if u.op is Ops.REDUCE and u.arg[0] is Ops.MAX else None
        if pair is not None and pair[0] not in found:
            top, both = pair
            found[top] = UOp(Ops.GETTUPLE, (both,), 0)
            found[u] = UOp(Ops.GETTUPLE, (both,), 1)
    return sink.substitute(found) if found else sink


def _pair(u: UOp) -> tuple[UOp, UOp] | None:
    """(the maximum, the reduction to both) where `u` is the position of a maximum."""
    pick = u.src[0]
    if pick.op is not Ops.WHERE or pick.src[2].op is not Ops.CONST or pick.src[2].arg != 0 or u.dtype.kind not in "iu":
        return None
    hit, marks, _ = pick.src
    tests = hit.src if hit.op is Ops.OR else (hit,)
    equal = next((t for t in tests if t.op is Ops.CMPEQ), None)
    if equal is None or marks.vmin < 0 or marks.dtype.weak:
        return None
    loops = u.src[1:]
    length = math.prod([int(r.src[0].vmax) for r in loops])
    for x, top in (equal.src, equal.src[::-1]):
        if length * x.dtype.itemsize <= CACHED_BYTES:
            continue
        if top.op is not Ops.REDUCE or top.arg[0] is not Ops.MAX or len(top.src) != len(u.src) or x.dtype.weak:
            continue
        if [r.src[0] for r in top.src[1:]] != [r.src[0] for r in loops] or not top.ranges <= u.ranges:
            continue
        if top.src[0].substitute(dict(zip(top.src[1:], loops, strict=True))) is not x:
            continue
        nan = UOp(Ops.CMPNE, (x, x))
        if len(tests) == (2 if x.dtype.kind == "f" else 1) and all(t is equal or t is nan for t in tests):
            return top, UOp(Ops.REDUCE, (UOp(Ops.TUPLE, (x, marks)), *loops), ("position", ()))
    return None
