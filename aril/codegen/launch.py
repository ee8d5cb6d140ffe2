"""GLOBAL loops become one launch index, the chunk, which threads share. Kernel form to kernel form.

Nests over the same GLOBAL loops run in the same chunks; the others get chunks of their own, one range after another.
"""

from __future__ import annotations

from collections.abc import Sequence

from aril.codegen.accumulate import substitute_live
from aril.codegen.affine import add, mul
from aril.codegen.steps import replace_loops
from aril.ops import Ops
from aril.uop.args import AxisType
from aril.uop.node import UOp
from aril.uop.pattern import Pat, Rules, V
from aril.uop.rewrite import rewrite
from aril.uop.symbolic import simplify

_TURNS = 1 << 16  # nests without GLOBAL loops share a chunk until it has so many turns


def launch(sink: UOp) -> UOp:
    """All GLOBAL loops as parts of `gidx0`, the one with the greatest id fastest.

    before: GLOBAL loops a (of 4) and b (of 8)
    after:  a = gidx0 // 8, b = gidx0 % 8 with gidx0 in 0..31

    Of several nests with different GLOBAL loops each lies in a loop of one turn, of none where the chunk is another's:

    before: END(f(a), a), END(g(b), b)
    after:  END(f(gidx0), RANGE(gidx0 < 4)), END(g(gidx0 - 4), RANGE(3 < gidx0)) with gidx0 in 0..11
    """
    shares = _shares(sink)
    if not any(loops for loops, _ in shares):
        return sink
    totals = [_total(loops) for loops, _ in shares]
    count = totals[0]
    for t in totals[1:]:
        count = simplify(UOp(Ops.ADD, (count, t)))
    index = UOp.special(count, "gidx0")
    if len(shares) == 1:
        return _without_empty_ends(replace_loops(sink, _parts(shares[0][0], index)))
    new: dict[UOp, UOp] = {}
    start = UOp.integer(0)
    for (loops, nests), total in zip(shares, totals, strict=True):
        end = simplify(UOp(Ops.ADD, (start, total)))
        mine = simplify(
            UOp(
                Ops.AND, (UOp(Ops.CMPLT, (UOp(Ops.ADD, (start, UOp.integer(-1))), index)), UOp(Ops.CMPLT, (index, end)))
            )
        )
        own = simplify(UOp(Ops.WHERE, (mine, add(index, mul(start, -1)), UOp.integer(0))))
        mapping = _parts(loops, own)
        values = {r: v for r, (v, _) in mapping.items()}
        for nest in nests:
            guard = UOp.range(
                UOp(Ops.WHERE, (mine, UOp.integer(1), UOp.integer(0))), (-1, len(new)), AxisType.LOOP
            )  # outermost
            own_loops = [s for s in nest.src[1:] if s not in mapping] if nest.op is Ops.END else []
            inner = (
                UOp(Ops.END, (nest.src[0], *own_loops)) if own_loops else nest.src[0] if nest.op is Ops.END else nest
            )
            inner = substitute_live(inner, values) if values else inner
            effect, closed = (inner.src[0], inner.src[1:]) if own_loops else (inner, ())
            # nothing is read or written ahead of the loop
            effect = effect.substitute({u: u.after(guard) for u in effect.toposort() if _is_memory(u)})
            new[nest] = UOp(Ops.END, (effect, guard, *closed))
        start = end
    return sink.with_src(tuple([new[s] for s in sink.src]))


def _shares(sink: UOp) -> list[tuple[tuple[UOp, ...], list[UOp]]]:
    """(GLOBAL loops, the nests over them), one for each range of chunks."""
    loops: dict[UOp, tuple[UOp, ...]] = {}
    for nest in sink.src:
        found = {r for r in nest.toposort() if r.op is Ops.RANGE and r.arg.kind is AxisType.GLOBAL}
        loops[nest] = tuple(sorted(found, key=lambda r: r.arg.id))
    shares: dict[tuple[UOp, ...], list[UOp]] = {}
    small: list[tuple[tuple[UOp, ...], list[UOp]]] = []
    turns = _TURNS
    for nest, own in loops.items():
        if own:
            shares.setdefault(own, []).append(nest)
            continue
        size = _turns(nest)
        if turns + size > _TURNS:
            small.append(((), []))
            turns = 0
        small[-1][1].append(nest)
        turns += size
    return [*shares.items(), *small]


def _is_memory(u: UOp) -> bool:
    return u.op is Ops.PARAM and not u.is_variable


def _turns(nest: UOp) -> int:
    out = 1
    for r in nest.src[1:]:
        if r.op is Ops.RANGE:
            out *= max(1, int(r.src[0].vmax))
    return out


def _total(loops: Sequence[UOp]) -> UOp:
    total = UOp.integer(1)
    for r in loops:
        total = simplify(mul(total, r.src[0]))
    return total


def _parts(loops: Sequence[UOp], index: UOp) -> dict[UOp, tuple[UOp, tuple[UOp, ...]]]:
    """The turn of each loop at a chunk."""
    mapping: dict[UOp, tuple[UOp, tuple[UOp, ...]]] = {}
    rest = index
    for i, r in reversed(list(enumerate(loops))):
        size = r.src[0]
        mapping[r] = (rest if i == 0 else simplify(UOp(Ops.FLOORMOD, (rest, size))), ())
        rest = simplify(UOp(Ops.FLOORDIV, (rest, size)))
    return mapping


def _without_empty_ends(sink: UOp) -> UOp:
    """An END without loops left is its effect."""
    return rewrite(sink, _EMPTY_ENDS, once=True)


_EMPTY_ENDS = Rules([(Pat(Ops.END, (V("effect"),)), lambda effect: effect)], name="empty ends")
