"""Register tiles for contractions (matrix products, convolutions, their gradients): which, by an estimate of cycles.

A tile is `vectors` vectors along one loop, the lanes, times copies along one or two row loops: a load of a row or of a
vector serves many multiply-adds. An operand that is strided in the lanes, or whose steps lie far apart, is staged.
"""

from __future__ import annotations

from collections.abc import Iterator

from aril.codegen.analysis import Access, Nest, is_constant, length, reduce_loops_of
from aril.codegen.groups import groups_apart
from aril.codegen.pairs import narrow_factors, pair_lanes, pair_loop, steps_of
from aril.codegen.plan import Plan
from aril.codegen.steps import Reorder, Split, Unroll, operands_of
from aril.codegen.tile_cost import STRIPS, Operand, Tile, least_cost, masks_rest, score
from aril.codegen.tiling import Tiling, reduction_loads
from aril.codegen.windows import STEPS, Window, fill_cost, panel_loops, sliding
from aril.ops import Ops
from aril.uop.args import AxisType
from aril.uop.node import UOp

_FACTORS = (2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 20, 24)
_LEAST_WORK = 2048  # multiply-adds below which a tile does not pay for its code

_LEAST_LANES = 4  # turns of a loop that lanes are worth


def plan_contraction(plan: Plan) -> bool:
    """Take the steps of a good register tile; False, with nothing done, where the nest is no contraction worth one."""
    start = plan.mark()
    nest = groups_apart(plan, 0)
    nest = _deepest_last(plan, nest)
    found = _best(plan, nest)
    for way, gain in ((_in_pairs, 2.0), (_in_windows, 1.0)):
        before = plan.mark()
        other = way(plan, nest)
        better = None if other is None else _best(plan, other)
        if other is not None and better is not None and (found is None or better[1].cost < gain * found[1].cost):
            nest, found = other, better
        else:
            plan.undo(before)
    if found is None:
        plan.undo(start)
        return False
    Tiling(plan, nest, *found).take()
    return True


def _best(plan: Plan, nest: Nest) -> tuple[UOp, Tile] | None:
    """(the reduction, its tile)."""
    body = _body(nest)
    tile = None if body is None else _choose(plan, nest, *body)
    return None if body is None or tile is None else (body[0], tile)


def plan_tile(plan: Plan, rank: int) -> bool:
    """As `plan_contraction`, with the tile at place `rank` of the estimate's order (0: the best), for searches."""
    nest = groups_apart(plan, 0)
    nest = _deepest_last(plan, nest)
    nest = _in_pairs(plan, nest) or nest
    body = _body(nest)
    if body is None:
        return False
    tiles = _ranked(plan, nest, *body)
    if rank >= len(tiles):
        return False
    Tiling(plan, nest, body[0], tiles[rank]).take()
    return True


def _ranked(plan: Plan, nest: Nest, reduction: UOp, loads: list[Access]) -> list[Tile]:
    """Every tile with its cost, the cheapest first; one of those that differ only in what the estimate does not see."""
    found = _operands(plan, nest, reduction, loads)
    if found is None:
        return []
    width = max(2, plan.renderer.vector_bytes // nest.itemsize)
    scored = [score(plan, nest, reduction, *found, t) for t in _candidates(plan, nest, reduction, width)]
    return sorted([t for t in scored if t is not None], key=lambda t: t.cost)


def _body(nest: Nest, most: int = 1) -> tuple[UOp, list[Access]] | None:
    """(the reduction, its loads) where every load is used by several elements of the output, if need be as windows that
    are up to `most` elements apart."""
    if len(nest.reduces) != 1 or nest.effect.op is not Ops.END:
        return None
    reduction = nest.reduces[0]
    own = frozenset(reduce_loops_of(reduction))
    loads = [a for a in nest.accesses if not a.is_store and own & a.loops and _of_result(nest, a, own)]
    wide = [r for r in nest.loops if length(r) > 1]
    if len(loads) < 2 or reduction.arg[0] is not Ops.ADD or not own:
        return None
    alone = [a for a in loads if a.storage.op is not Ops.BUFFER and all(r in a.loops for r in wide)]
    if not all(_is_window(a, wide, own, most) for a in alone) or not all(r in reduction.ranges for r in wide):
        return None
    if nest.turns(frozenset(wide) | own) < _LEAST_WORK:
        return None
    return reduction, loads


def _deepest_last(plan: Plan, nest: Nest) -> Nest:
    """The nest with the loops of its reduction in order of how far they move in memory, the farthest outermost."""
    body = _body(nest)
    if body is None:
        return nest
    reduction, loads = body
    ids = sorted([r.arg.id for r in reduce_loops_of(reduction)])
    reach = {r.arg.id: max(abs(a.stride(r) or 0) * a.itemsize for a in loads) for r in reduce_loops_of(reduction)}
    order = sorted(ids, key=lambda i: -reach[i])
    if order == ids:
        return nest
    plan.do(Reorder(tuple(order)), "terms that lie together follow each other")
    return plan.nest(0)


def _in_pairs(plan: Plan, nest: Nest) -> Nest | None:
    """The nest with two neighbouring terms of its sum as one step, where the target has that; None, with nothing done,
    where it has not or the terms do not pair."""
    body = _body(nest) if pair_lanes(plan.renderer) else None
    if body is None or narrow_factors(body[0]) is None or any(a.gated for a in body[1]):
        return None
    even = [r for r in reduce_loops_of(body[0]) if is_constant(r) and length(r) % 2 == 0]
    if not even:
        return None
    loop = max(even, key=lambda r: (sum(a.stride(r) == 1 for a in body[1]), r.arg.id)).arg.id
    plan.do(Split(loop, 2), "terms in pairs")
    plan.do(Unroll((*loop, 1)), "terms in pairs")
    return plan.nest(0)


def _in_windows(plan: Plan, nest: Nest) -> Nest | None:
    """The nest with an operand that windows slide over in a panel, filled for each turn of the output loops that move
    it besides; None, with nothing done, where there is none or a panel has no room or too few turns."""
    body = _body(nest, STEPS)
    if body is None or not nest.repeatable:
        return None
    written = {a.storage for a in nest.accesses if a.is_store}
    order = reduction_loads(plan.sink)
    for a in body[1]:
        window = sliding(a, nest, reduce_loops_of(body[0])) if a.node in order and a.storage not in written else None
        if window is None or window.size * a.itemsize > plan.renderer.l2 // 4:
            continue
        around = [r for r in nest.loops if r in a.loops and r not in window.slides]
        if nest.turns(frozenset(around)) < 2 * STRIPS:  # threads share whole panels
            continue
        width = max(2, plan.renderer.vector_bytes // a.itemsize)
        plan.do(Window(operands_of(plan.sink).index(a.node), window.pairs, window.others, width), "windows overlap")
        ids = [r.arg.id for r in (*around, *[r for r in nest.loops if r not in around])]
        if ids != sorted(ids):
            plan.do(Reorder(tuple(ids)), "a panel is filled once for all tiles that use it")
        return plan.nest(0)
    return None


def _of_result(nest: Nest, a: Access, own: frozenset[UOp]) -> bool:
    """Whether an access lies in the loops of the result and `own` alone (and in chunks that nests share): copies to
    panels have loops of their own."""
    return all(r in own or r in nest.loops or r.arg.kind is AxisType.GLOBAL for r in a.loops)


def _is_window(a: Access, wide: list[UOp], own: frozenset[UOp], most: int) -> bool:
    """Whether elements of a load serve several outputs because an output loop moves as a loop of the reduction does
    (or against it, as in gradients), one of them up to `most` times as far as the other."""
    for r in wide:
        for k in own & a.loops:
            far, near = (r, k) if abs(a.stride(r) or 0) >= abs(a.stride(k) or 0) else (k, r)
            step = abs(a.stride(near) or 0)
            if step and abs(a.stride(far) or 0) in range(step, min(most + 1, length(near)) * step, step):
                return True
    return False


def _choose(plan: Plan, nest: Nest, reduction: UOp, loads: list[Access]) -> Tile | None:
    found = _operands(plan, nest, reduction, loads)
    if found is None:
        return None
    operands, ends = found
    own = frozenset(steps_of(reduction))
    width = max(2, plan.renderer.vector_bytes // nest.itemsize)
    best: Tile | None = None
    for tile in sorted(_candidates(plan, nest, reduction, width), key=lambda t: -t.accumulators):
        if best is not None and least_cost(plan, tile, own) >= best.cost:
            continue
        scored = score(plan, nest, reduction, operands, ends, tile)
        if scored is not None and (best is None or scored.cost < best.cost * 0.999):
            best = scored
    return best


def _operands(plan: Plan, nest: Nest, reduction: UOp, loads: list[Access]) -> tuple[list[Operand], list[Access]] | None:
    """(the reduction's operands, the accesses after it)."""
    written = {a.storage for a in nest.accesses if a.is_store}
    order = reduction_loads(plan.sink)
    own, outer = frozenset(reduce_loops_of(reduction)), frozenset(nest.loops)
    pair = pair_loop(reduction)
    operands: list[Operand] = []
    for a in loads:
        if a.storage.op is Ops.BUFFER:
            turns = nest.turns(own | (outer - panel_loops(a)))
            operands.append(Operand(-1, a, False, pair, fill_cost(nest, a, own | outer) / turns))
        elif a.node in order:
            operands.append(Operand(order.index(a.node), a, a.storage not in written, pair))
        else:
            return None
    return operands, [a for a in nest.accesses if _of_result(nest, a, frozenset())]


def _candidates(plan: Plan, nest: Nest, reduction: UOp, width: int) -> Iterator[Tile]:
    around = frozenset().union(*[panel_loops(a) for a in nest.accesses if a.storage.op is Ops.BUFFER])
    out = [r for r in nest.loops if length(r) > 1 and (is_constant(r) or _is_free(nest, r)) and r not in around]
    own = [r for r in steps_of(reduction) if is_constant(r)]
    loads = [a for a in nest.accesses if not a.is_store]
    # a patch of two axes that windows slide over covers an image with less waste than a stretch of one
    slides = [r for r in out if any(_is_window(a, [r], frozenset(own), STEPS) for a in loads)]
    limit = plan.renderer.vector_registers - 2
    for lane in (*out, *own):
        n = length(lane)
        if n < _LEAST_LANES:
            continue
        lanes = min(width, 1 << (n.bit_length() - 1))
        if lane in own:
            most = limit
            if masks_rest(plan, lane):
                lanes = min(width, 1 << (n - 1).bit_length())
                if n % lanes and plan.renderer.vector_registers < 32:
                    most -= 2  # the mask of a step and what it is made of take registers, as there are none for masks
            for a, b in _pairs([r for r in out if r is not lane]):
                for f in _factors(nest, a, 8):
                    for g in _factors(nest, b, 8):
                        if f * g + min(f, g) <= most and f * g >= 4:
                            yield Tile(lane, lanes, 1, ((a, f), (b, g)))
            continue
        for vectors in (1, 2, 3, 4):
            if vectors > 1 and (vectors - 1) * lanes >= n:
                break
            if vectors * lanes > n or (not nest.repeatable and n % (vectors * lanes)):
                continue
            most = (limit - vectors) // vectors
            for row in out:
                if row is lane:
                    continue
                for f in _factors(nest, row, most):
                    yield Tile(lane, lanes, vectors, ((row, f),))
                    for second in out:
                        both = row in slides and second in slides and row.arg.id < second.arg.id
                        if second is lane or second is row or f * 2 > most or not (f == length(row) or both):
                            continue
                        for g in _factors(nest, second, most // f):
                            yield Tile(lane, lanes, vectors, ((row, f), (second, g)))


def _is_free(nest: Nest, loop: UOp) -> bool:
    """Whether a loop of variable length may be tiled: turns past the end are the last one again, or masked."""
    return nest.repeatable and all(r.arg.kind is AxisType.GLOBAL for r in loop.src[0].ranges)


def _pairs(loops: list[UOp]) -> Iterator[tuple[UOp, UOp]]:
    for i, a in enumerate(loops):
        for b in loops[i + 1 :]:
            yield a, b


def _factors(nest: Nest, loop: UOp, most: int) -> list[int]:
    n = length(loop)
    found = [f for f in _FACTORS if f <= min(n, most) and (nest.repeatable or n % f == 0)]
    return found if n > most or n in found else [*found, n]
