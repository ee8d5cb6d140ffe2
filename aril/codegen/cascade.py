"""Long sums of floats in blocks, so that their error does not grow with their length. Kernel form to kernel form.

Each addition to an accumulator may lose half a unit in its last place, and of equal terms many in a row lose the same:
n of them in one chain are off by up to n halves. In blocks, the sums of blocks in blocks again, no term goes through
more than a few blocks' lengths (N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 4.2).
"""

from __future__ import annotations

from math import prod

from aril.codegen.analysis import is_constant, length, reduce_loops_of
from aril.codegen.combines import results
from aril.codegen.order import bounding
from aril.codegen.steps import Id, Split, loops_of
from aril.ops import Ops
from aril.uop.args import AxisType
from aril.uop.node import UOp
from aril.uop.pattern import Pat, Rules
from aril.uop.rewrite import rewrite

BLOCK = 128  # turns of a chain: what a block costs at its end is a hundredth of it, where memory sets the pace nothing
TILE_BLOCK = 1024  # of a tile of products, which has registers for one level of sums
TILE = 8  # copies of a sum of products that make it a tile


def cascade(sink: UOp) -> UOp:
    """Sums of floats with an accumulator for each block of their terms, and one for the blocks.

    before: REDUCE(x[k], k) with k in 0..16383
    after:  REDUCE(REDUCE(x[k0*128 + k1], k1), k0) with k0, k1 in 0..127

    What else is reduced in the same loop is so too, that it stays one loop. Lanes and copies stay accumulators of their
    own up to the last level.
    """
    todo = [sink.toposort()]
    while todo:
        groups: dict[tuple[UOp, ...], list[UOp]] = {}
        for u in todo.pop():
            if u.op is Ops.REDUCE:
                groups.setdefault(reduce_loops_of(u), []).append(u)
        for loops, members in groups.items():
            if any(map(_rounds, members)):
                new = _with_level(sink, loops, TILE_BLOCK if any(map(_is_tile, members)) else BLOCK)
                if new is not sink:
                    sink = new
                    todo.append(sink.toposort())
                    break
    return sink


def _with_level(sink: UOp, loops: tuple[UOp, ...], block: int) -> UOp:
    """The kernel with one level more in the reductions over `loops`, if they are longer than two blocks."""
    inner = [r for r in loops if r.arg.kind is AxisType.UNROLL]
    turns = prod(map(length, inner))
    around = sorted([r for r in loops if r.arg.kind is AxisType.REDUCE], key=lambda r: r.arg.id)
    whole = len(inner)
    while around and turns * length(around[-1]) <= block:
        inner.append(around.pop())
        turns *= length(inner[-1])
    if prod(map(length, around)) * turns <= 2 * block:
        return sink
    last, most = around[-1], block // turns
    parts: tuple[Id, ...] = ()
    if most > 1 and last not in bounding(sink):
        sink = Split(last.arg.id, _factor(last, most), "ragged").apply(sink)
        parts = ((*last.arg.id, 0), (*last.arg.id, 1))
    elif len(inner) == whole:
        return sink
    made = loops_of(sink)
    ids = {r.arg.id for r in inner} | set(parts[1:])
    every = {r.arg.id for r in loops if r is not last or not parts} | set(parts)
    return rewrite(sink, _LEVELS, ({made[i] for i in every}, {made[i] for i in ids}), once=True)


def _factor(loop: UOp, most: int) -> int:
    """Turns of a block: at most so many, without a rest if more than half of them give one."""
    n = length(loop)
    exact = (f for f in range(most, most // 2, -1) if is_constant(loop) and n % f == 0)
    return next(exact, most)


def _level(ctx: tuple[set[UOp], set[UOp]], u: UOp) -> UOp | None:
    loops, inner = ctx
    own = reduce_loops_of(u)
    if set(own) != loops:
        return None
    sums = UOp(Ops.REDUCE, (u.src[0], *[r for r in own if r in inner]), u.arg)
    value = UOp(Ops.TUPLE, results(sums)) if isinstance(u.arg[0], str) else sums
    return u.with_src((value, *[r for r in own if r not in inner]))


_LEVELS = Rules([(Pat(Ops.REDUCE, name="u"), _level)], name="levels of a sum")


def _rounds(u: UOp) -> bool:
    """Whether a reduction adds up what is rounded."""
    return u.arg[0] in ("exponentials", "moments") or u.arg[0] is Ops.ADD and u.dtype.kind == "f"


def _is_tile(u: UOp) -> bool:
    """Whether a reduction is a sum of products in many copies."""
    copies = prod([length(r) for r in u.ranges if r.arg.kind is AxisType.UPCAST])
    return u.src[0].op is Ops.MUL and copies >= TILE
