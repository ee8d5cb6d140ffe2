"""Register tiles for contractions (matrix products, convolutions, their gradients): which, by an estimate of cycles.

A tile is `vectors` vectors along one loop, the lanes, times copies along one or two row loops: a load of a row or of a
vector serves many multiply-adds. An operand that is strided in the lanes, or whose steps lie far apart, is staged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from aril.codegen.analysis import Access, Nest, is_constant, length, reduce_loops_of
from aril.codegen.plan import Plan
from aril.codegen.steps import Id, Reorder, Split, Stage, Unroll, Upcast, Vectorize, operands_of
from aril.ops import Ops
from aril.uop.args import AxisType
from aril.uop.node import UOp

_FACTORS = (2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 20, 24)
_LEAST_WORK = 2048  # multiply-adds below which a tile does not pay for its code
_WAYS, _WAY = 8, 4096  # a first-level cache holds this many lines at one distance


@dataclass(frozen=True, eq=False)
class Tile:
    """A register tile. `cost` is in cycles a multiply-add of one lane; `staged` numbers operands put into a panel."""

    lane: UOp
    lanes: int
    vectors: int
    rows: tuple[tuple[UOp, int], ...]
    staged: tuple[int, ...]
    cost: float


def plan_contraction(plan: Plan, nest: Nest) -> bool:
    """Take the steps of a good register tile; False, with nothing done, where the nest is no contraction worth one."""
    body = _body(nest)
    if body is None:
        return False
    reduction, loads = body
    width = max(2, plan.renderer.vector_bytes // nest.itemsize)
    tile = _choose(plan, nest, reduction, loads, width)
    if tile is None:
        return False
    _apply(plan, nest, reduction, tile)
    return True


def _body(nest: Nest) -> tuple[UOp, list[Access]] | None:
    """(the reduction, its loads) where every load is used by several elements of the output."""
    if len(nest.reduces) != 1 or nest.effect.op is not Ops.END:
        return None
    reduction = nest.reduces[0]
    own = frozenset(reduce_loops_of(reduction))
    loads = [a for a in nest.accesses if not a.is_store and own & a.loops]
    wide = [r for r in nest.loops if length(r) > 1]
    if len(loads) < 2 or reduction.arg[0] is not Ops.ADD or not own:
        return None
    if any(all(r in a.loops for r in wide) for a in loads) or not all(r in reduction.ranges for r in wide):
        return None
    if nest.turns(frozenset(wide) | own) < _LEAST_WORK:
        return None
    return reduction, loads


@dataclass(frozen=True, eq=False)
class _Operand:
    """A load of the body: its number among the kernel's operands, strides, and whether it may be staged."""

    number: int
    access: Access
    stageable: bool

    def uses(self, loop: UOp) -> bool:
        return loop in self.access.loops


def _choose(plan: Plan, nest: Nest, reduction: UOp, loads: list[Access], width: int) -> Tile | None:
    numbers = {u: i for i, u in enumerate(operands_of(plan.sink))}
    written = {a.storage for a in nest.accesses if a.is_store}
    operands = [_Operand(numbers[a.node], a, a.storage not in written) for a in loads if a.node in numbers]
    if len(operands) != len(loads):
        return None
    stores = [a for a in nest.accesses if a.is_store]
    best: Tile | None = None
    for tile in _candidates(plan, nest, reduction, width):
        scored = _score(plan, nest, reduction, operands, stores, tile)
        if scored is not None and (best is None or scored.cost < best.cost * 0.999):
            best = scored
    return best


def _candidates(plan: Plan, nest: Nest, reduction: UOp, width: int) -> Iterator[Tile]:
    out = [r for r in nest.loops if is_constant(r) and length(r) > 1]
    own = [r for r in reduce_loops_of(reduction) if is_constant(r)]
    limit = plan.renderer.vector_registers - 2
    for lane in (*out, *own):
        n = length(lane)
        if n < 4:
            continue
        lanes = min(width, 1 << (n.bit_length() - 1))
        if lane in own:
            for a, b in _pairs([r for r in out if r is not lane]):
                for f in _factors(nest, a, 8):
                    for g in _factors(nest, b, 8):
                        if f * g + min(f, g) <= limit and f * g >= 4:
                            yield Tile(lane, lanes, 1, ((a, f), (b, g)), (), 0.0)
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
                    yield Tile(lane, lanes, vectors, ((row, f),), (), 0.0)
                    if f == length(row) and f * 2 <= most:
                        for second in out:
                            if second is not lane and second is not row:
                                for g in _factors(nest, second, most // f):
                                    yield Tile(lane, lanes, vectors, ((row, f), (second, g)), (), 0.0)


def _pairs(loops: list[UOp]) -> Iterator[tuple[UOp, UOp]]:
    for i, a in enumerate(loops):
        for b in loops[i + 1 :]:
            yield a, b


def _factors(nest: Nest, loop: UOp, most: int) -> list[int]:
    n = length(loop)
    found = [f for f in _FACTORS if f <= min(n, most) and (nest.repeatable or n % f == 0)]
    return found if n > most or n in found else [*found, n]


def _score(
    plan: Plan, nest: Nest, reduction: UOp, operands: list[_Operand], stores: list[Access], tile: Tile
) -> Tile | None:
    renderer, lane = plan.renderer, tile.lane
    own = reduce_loops_of(reduction)
    factors = dict(tile.rows)
    accumulators = tile.vectors * prod(factors.values())
    across = lane in own
    loads = staging = 0.0
    staged: list[int] = []
    for x in operands:
        count = prod([f for r, f in tile.rows if x.uses(r)])
        if not x.uses(lane):
            conflicts = False
            for r, f in tile.rows:
                stride = x.access.stride(r)
                if x.uses(r) and f > _WAYS and stride and stride * x.access.itemsize % _WAY == 0:
                    conflicts = True
            loads += count * (4.0 if conflicts else 1.0)
            continue
        count *= tile.vectors
        stride = x.access.stride(lane)
        contiguous = stride == 1
        far = not across and contiguous and _is_far(x, own, lane, tile)
        if not across and (not contiguous or far):
            panel = tile.lanes * tile.vectors * prod([length(r) for r in own if x.uses(r)])
            free = not any(x.uses(r) for r, _ in tile.rows) and all(is_constant(r) for r in own if x.uses(r))
            reuse = prod([length(r) for r in nest.loops if not x.uses(r)])
            pack = (0.3 if contiguous else 1.5) * tile.lanes * 2
            if x.stageable and free and panel * x.access.itemsize <= renderer.l2 // 2:
                cheaper = count * (1.6 if far else tile.lanes * 1.2)
                price = pack * prod([length(r) for r in own if x.uses(r)]) * tile.vectors
                steps = prod([length(r) for r in own]) * max(1.0, reuse / max(1, prod(factors.values())))
                if price / steps + count < cheaper:
                    staged.append(x.number)
                    staging += price / steps
                    loads += count
                    continue
            loads += count * (1.6 if far else tile.lanes * 1.2)
        else:
            loads += count * (1.3 if contiguous else tile.lanes * 1.2)
    cycles = max(accumulators / 2, loads / 2, (accumulators + loads + 2) / 4, 4.0) + staging
    depth = prod([length(r) for r in own])
    steps = depth / tile.lanes if across else depth
    end = 15.0 + accumulators
    for s in stores:
        if across:
            end += accumulators * 14
        else:
            end += accumulators * (1.0 if s.stride(lane) == 1 else tile.lanes * 1.3)
    n, block = length(lane), tile.lanes * tile.vectors
    if across:
        waste = (n // tile.lanes + (n % tile.lanes > 0) * 1.2) * tile.lanes / n
    else:
        waste = -(-n // block) * block / n
    for r, f in tile.rows:
        waste *= -(-length(r) // f) * f / length(r)
    cost = (cycles + end / max(1.0, steps)) * waste / (accumulators * tile.lanes)
    return Tile(lane, tile.lanes, tile.vectors, tile.rows, tuple(staged), cost)


def _is_far(x: _Operand, own: tuple[UOp, ...], lane: UOp, tile: Tile) -> bool:
    """Whether steps of the reduction lie so far apart that a packed panel reads better."""
    strides = [abs(x.access.stride(r) or 0) * x.access.itemsize for r in own if x.uses(r)]
    deep = prod([length(r) for r in own if x.uses(r)])
    return bool(strides) and min(strides) >= 512 and deep * tile.lanes * tile.vectors * x.access.itemsize > 16 << 10


def _apply(plan: Plan, nest: Nest, reduction: UOp, tile: Tile) -> None:
    own = reduce_loops_of(reduction)
    lane_id = tile.lane.arg.id
    why = f"register tile, {tile.cost:.3f} cycles an element"
    across = tile.lane in own
    outer: dict[UOp, Id] = {r: r.arg.id for r in nest.loops}
    inner: list[Id] = []
    if across:
        _vectorise_depth(plan, lane_id, tile.lanes, length(tile.lane))
    else:
        tile_id, vector_id = _split(plan, nest, tile.lane, tile.lanes * tile.vectors, why)
        if tile_id is None:
            outer.pop(tile.lane)
        else:
            outer[tile.lane] = tile_id
        if tile.vectors > 1:
            plan.do(Split(vector_id, tile.lanes), "vectors of the tile")
            plan.do(Upcast((*vector_id, 0)), "vectors of the tile")
            inner.append((*vector_id, 0))
            vector_id = (*vector_id, 1)
        plan.do(Vectorize(vector_id), "lanes of the tile")
        inner.append(vector_id)
    for row, f in tile.rows:
        tile_id, copies = _split(plan, nest, row, f, why)
        if tile_id is None:
            outer.pop(row)
        else:
            outer[row] = tile_id
        plan.do(Upcast(copies), "rows of the tile")
    moved: set[UOp] = set()
    for number in tile.staged:
        access = next(a for a in nest.accesses if a.node is operands_of_nest(nest)[number])
        depth = tuple([r.arg.id for r in own if r in access.loops])
        moved |= {r for r in outer if r in access.loops}
        plan.do(Stage(number, (*depth, *inner)), "packed in the order of use")
    _unroll(plan, own, tile)
    if moved and len(outer) > 1:
        order = [outer[r] for r in outer if r in moved] + [outer[r] for r in outer if r not in moved]
        if order != sorted(order):
            plan.do(Reorder(tuple(order)), "a panel is filled once for all tiles that use it")
    from aril.codegen.heuristics import chunk_output

    total = nest.turns(frozenset(nest.loops) | frozenset(own)) * tile.cost / 3
    now = plan.nest(0)
    loops = tuple([r for r in now.loops if r.arg.kind is AxisType.LOOP])
    chunk_output(plan, now, total, None, 1, loops)


def operands_of_nest(nest: Nest) -> list[UOp]:
    """The operands as `Stage` numbers them, of a kernel of one nest."""
    return operands_of(nest.effect)


def _split(plan: Plan, nest: Nest, loop: UOp, factor: int, why: str) -> tuple[Id | None, Id]:
    """(loop over tiles or None, loop inside a tile) of a tile of `factor`."""
    id, n = loop.arg.id, length(loop)
    if n == factor:
        return None, id
    tail = "exact" if n % factor == 0 else ("overlap" if nest.repeatable else "peel")
    plan.do(Split(id, factor, tail), why)
    return (*id, 0), (*id, 1)


def _unroll(plan: Plan, own: tuple[UOp, ...], tile: Tile) -> None:
    """A short innermost reduction loop is copied where the body is small."""
    last = max((r for r in own if r is not tile.lane), key=lambda r: r.arg.id, default=None)
    if last is None or not is_constant(last):
        return
    size = tile.vectors * prod([f for _, f in tile.rows])
    if 1 < length(last) * size <= 48 and length(last) <= 8:
        plan.do(Unroll(last.arg.id), "short loop")


def _vectorise_depth(plan: Plan, id: Id, lanes: int, n: int) -> None:
    if n == lanes:
        plan.do(Vectorize(id), "lanes of the reduction")
        return
    rest = n % lanes
    plan.do(Split(id, lanes, "peel" if rest else "exact"), "lanes of the reduction")
    plan.do(Vectorize((*id, 1)), "lanes of the reduction")
    if rest >= 4:
        part = 1 << (rest.bit_length() - 1)
        if part == rest:
            plan.do(Vectorize((*id, 2)), "rest of the reduction")
        else:
            plan.do(Split((*id, 2), part, "peel"), "rest of the reduction")
            plan.do(Vectorize((*id, 2, 1)), "rest of the reduction")
