"""Register tiles for contractions (matrix products, convolutions, their gradients): which, by an estimate of cycles.

A tile is `vectors` vectors along one loop, the lanes, times copies along one or two row loops: a load of a row or of a
vector serves many multiply-adds. An operand that is strided in the lanes, or whose steps lie far apart, is staged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from aril.codegen.accumulate import fresh_id
from aril.codegen.analysis import Access, Nest, is_constant, length, reduce_loops_of
from aril.codegen.chunks import CHUNKS, chunk_output
from aril.codegen.panels import Block, Stage
from aril.codegen.plan import Plan
from aril.codegen.steps import Id, Reorder, Split, Unroll, Upcast, Vectorize, operands_of
from aril.ops import Ops
from aril.uop.args import AxisType
from aril.uop.node import UOp

_FACTORS = (2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 20, 24)
_LEAST_WORK = 2048  # multiply-adds below which a tile does not pay for its code
_BYTES_A_CYCLE = 5.0  # of one core from beyond its second-level cache
_WAYS, _WAY = 8, 4096  # a first-level cache holds this many lines at one distance
_LINE, _LINES = 64, 512  # bytes of a cache line, lines of a first-level cache
_STRIPS = 8  # strips of rows there should be, for threads to share
_STORE = 6.0  # cycles for a line that a tile stores in part
_FETCH = 24.0  # cycles for a line whose neighbours in time lie in other pages


@dataclass(frozen=True, eq=False)
class Tile:
    """A register tile. `cost` is in cycles a multiply-add of one lane; `staged` numbers the reduction's operands that
    are put into a panel, `blocked` are its loops that go around the nest so that panels stay small (with
    the turns that stay inside), `packing` is the share of the time that filling panels takes. `strip` is (the operand,
    its row loop, tiles) of an operand without lanes that is packed for so many tiles of its rows at once."""

    lane: UOp
    lanes: int
    vectors: int
    rows: tuple[tuple[UOp, int], ...]
    staged: tuple[int, ...] = ()
    blocked: tuple[tuple[UOp, int], ...] = ()
    cost: float = 0.0
    packing: float = 0.0
    strip: tuple[int, UOp, int] | None = None

    @property
    def accumulators(self) -> int:
        return self.vectors * prod([f for _, f in self.rows])


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


def plan_tile(plan: Plan, nest: Nest, rank: int) -> bool:
    """As `plan_contraction`, with the tile at place `rank` of the estimate's order (0: the best), for searches."""
    body = _body(nest)
    if body is None:
        return False
    tiles = _ranked(plan, nest, *body)
    if rank >= len(tiles):
        return False
    _apply(plan, nest, body[0], tiles[rank])
    return True


def _ranked(plan: Plan, nest: Nest, reduction: UOp, loads: list[Access]) -> list[Tile]:
    """Every tile with its cost, the cheapest first; one of those that differ only in what the estimate does not see."""
    width = max(2, plan.renderer.vector_bytes // nest.itemsize)
    found = _operands(plan, nest, reduction, loads)
    if found is None:
        return []
    scored = [_score(plan, nest, reduction, *found, t) for t in _candidates(plan, nest, reduction, width)]
    return sorted([t for t in scored if t is not None], key=lambda t: t.cost)


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
    found = _operands(plan, nest, reduction, loads)
    if found is None:
        return None
    operands, ends = found
    own = frozenset(reduce_loops_of(reduction))
    best: Tile | None = None
    for tile in sorted(_candidates(plan, nest, reduction, width), key=lambda t: -t.accumulators):
        if best is not None and _least_cost(tile, own) >= best.cost:
            continue
        scored = _score(plan, nest, reduction, operands, ends, tile)
        if scored is not None and (best is None or scored.cost < best.cost * 0.999):
            best = scored
    return best


def _operands(
    plan: Plan, nest: Nest, reduction: UOp, loads: list[Access]
) -> tuple[list[_Operand], list[Access]] | None:
    """(the reduction's operands, the accesses after it)."""
    written = {a.storage for a in nest.accesses if a.is_store}
    order = reduction_loads(plan.sink)
    if any(a.node not in order for a in loads):
        return None
    own = frozenset(reduce_loops_of(reduction))
    operands = [_Operand(order.index(a.node), a, a.storage not in written) for a in loads]
    return operands, [a for a in nest.accesses if not own & a.loops]


def _least_cost(tile: Tile, own: frozenset[UOp]) -> float:
    """What `_score` cannot go below."""
    cost = max(tile.accumulators / 2, 4.8) / (tile.accumulators * tile.lanes)
    if tile.lane not in own:
        block = tile.lanes * tile.vectors
        cost *= -(-length(tile.lane) // block) * block / length(tile.lane)
    for r, f in tile.rows:
        cost *= -(-length(r) // f) * f / length(r)
    return cost


def reduction_loads(sink: UOp) -> list[UOp]:
    """The operands of the kernel's only reduction, in the order of a walk."""
    reductions = [u for u in sink.toposort() if u.op is Ops.REDUCE]
    return operands_of(reductions[0]) if len(reductions) == 1 else []


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
                    if f == length(row) and f * 2 <= most:
                        for second in out:
                            if second is not lane and second is not row:
                                for g in _factors(nest, second, most // f):
                                    yield Tile(lane, lanes, vectors, ((row, f), (second, g)))


def _pairs(loops: list[UOp]) -> Iterator[tuple[UOp, UOp]]:
    for i, a in enumerate(loops):
        for b in loops[i + 1 :]:
            yield a, b


def _factors(nest: Nest, loop: UOp, most: int) -> list[int]:
    n = length(loop)
    found = [f for f in _FACTORS if f <= min(n, most) and (nest.repeatable or n % f == 0)]
    return found if n > most or n in found else [*found, n]


def _score(
    plan: Plan, nest: Nest, reduction: UOp, operands: list[_Operand], ends: list[Access], tile: Tile
) -> Tile | None:
    """The tile with its cost and what it stages, in cycles a step of the reduction and then for each element."""
    lane, own = tile.lane, reduce_loops_of(reduction)
    rows = prod([f for _, f in tile.rows])
    accumulators = tile.vectors * rows
    across = lane in own
    depth = prod([length(r) for r in own])
    loads = staging = traffic = 0.0
    staged: list[int] = []
    blocked: tuple[tuple[UOp, int], ...] = ()
    strip: tuple[int, UOp, int] | None = None
    for x in sorted(operands, key=lambda x: x.uses(lane)):
        count = prod([f for r, f in tile.rows if x.uses(r)])
        traffic += _traffic(plan, x, own, tile)
        if not x.uses(lane):
            loads += count * _broadcast_cost(x, tile)
            if _is_scattered(x, own):
                tiles = _strip_tiles(plan, nest, x, own, tile)
                if tiles is not None and strip is None:
                    uses = prod([length(r) for r in nest.loops if not x.uses(r)]) / (tile.lanes * tile.vectors)
                    strip = (x.number, *tiles)
                    staging += _FETCH / max(1.0, uses)
                    traffic -= _traffic(plan, x, own, tile)
                else:
                    staging += _FETCH
            continue
        count *= tile.vectors
        contiguous = x.access.stride(lane) == 1
        if across:
            loads += count * (1.3 if contiguous else tile.lanes * 1.5)
            continue
        far = contiguous and _is_far(x, own, tile)
        direct = count * ((1.6 if far else 1.3) if contiguous else tile.lanes * 1.5)
        if contiguous and _is_scattered(x, own):
            direct += 2 * _FETCH * tile.vectors
        panel = None if contiguous and not far else _panel(plan, x, own, tile)
        if panel is not None:
            packed = prod([length(r) for r in own if x.uses(r)]) * tile.vectors
            panels = prod([length(r) for r in nest.loops if x.uses(r)]) / (tile.lanes * tile.vectors)
            again = max(1.0, _chunks_each(plan) / max(1.0, panels)) if panel else 1.0
            uses = max(1.0, prod([length(r) for r in nest.loops if not x.uses(r)]) / rows / again)
            uses = uses if strip is None else min(uses, strip[2])
            price = packed * (0.3 if contiguous else 0.5) * tile.lanes / (depth * uses)
            inner = depth / prod([length(r) / inside for r, inside in panel])
            price += 2.5 * accumulators / inner if panel else 0.0
            if price + count < direct and (not panel or strip is None and (not blocked or panel == blocked)):
                staged.append(x.number)
                staging += price
                traffic -= _traffic(plan, x, own, tile)
                blocked = panel or blocked
                loads += count
                continue
        loads += direct
    cycles = max(accumulators / 2, loads / 2, (accumulators + loads + 2) / 4, 4.8, traffic) + staging
    end = 15.0 + accumulators + sum(_end_cost(a, tile, accumulators, across) for a in ends)
    n, block = length(lane), tile.lanes * tile.vectors
    if across:
        waste = (n // tile.lanes + (n % tile.lanes > 0) * 1.2) * tile.lanes / n
        end /= tile.lanes
    else:
        waste = -(-n // block) * block / n
    for r, f in tile.rows:
        waste *= -(-length(r) // f) * f / length(r)
    steps = depth / tile.lanes if across else depth
    cost = (cycles + end / max(1.0, steps)) * waste / (accumulators * tile.lanes)
    return replace(tile, staged=tuple(staged), blocked=blocked, cost=cost, packing=staging / cycles, strip=strip)


def _traffic(plan: Plan, x: _Operand, own: tuple[UOp, ...], tile: Tile) -> float:
    """Cycles a step in which memory beyond the second-level cache delivers the operand; 0 where it stays in there."""
    strides = {abs(x.access.stride(r) or 0) for r in own if x.uses(r)}
    # rows that move as a loop of the reduction does see the same elements again (windows)
    fresh = prod([f for r, f in tile.rows if x.uses(r) and abs(x.access.stride(r) or 0) not in strides])
    if x.uses(tile.lane):
        fresh *= tile.lanes * tile.vectors
    total = fresh * prod([length(r) for r in own if x.uses(r) and r is not tile.lane])
    if min(total, x.access.storage.arg.size or total) * x.access.itemsize <= plan.renderer.l2 // 2:
        return 0.0
    return fresh * x.access.itemsize / _BYTES_A_CYCLE


def _chunks_each(plan: Plan) -> int:
    """Chunks of a blocked reduction. Each packs its operand anew, so there are few of them."""
    return max(4, 2 * plan.renderer.cores)


def _broadcast_cost(x: _Operand, tile: Tile) -> float:
    for r, f in tile.rows:
        stride = x.access.stride(r)
        if x.uses(r) and f > _WAYS and stride and stride * x.access.itemsize % _WAY == 0:
            return 4.0  # the rows push one another out of the first-level cache
    apart = any(x.uses(r) and abs(x.access.stride(r) or 64) * x.access.itemsize >= 64 for r, _ in tile.rows)
    return 1.05 if apart else 1.0


def _is_scattered(x: _Operand, own: tuple[UOp, ...]) -> bool:
    """Whether every step of the reduction reads another line of the operand, and they do not stay in cache."""
    strides = [abs(x.access.stride(r) or 0) * x.access.itemsize for r in own if x.uses(r)]
    if not strides or min(strides) < 4 * _LINE:
        return False
    steps = prod([length(r) for r in own if x.uses(r)])
    return steps > _LINES or min(strides) % _WAY == 0 and steps > _WAYS


def _strip_tiles(plan: Plan, nest: Nest, x: _Operand, own: tuple[UOp, ...], tile: Tile) -> tuple[UOp, int] | None:
    """(the row loop, how many of its tiles are packed at once); None where the operand cannot be packed so."""
    rows = [(r, f) for r, f in tile.rows if x.uses(r)]
    inside = [r for r in own if x.uses(r)]
    if len(rows) != 1 or not x.stageable or not all(is_constant(r) for r in inside) or not is_constant(rows[0][0]):
        return None
    row, f = rows[0]
    tiles = -(-length(row) // f)
    room = plan.renderer.l2 // 4 // (x.access.itemsize * f * prod([length(r) for r in inside]))
    if room < 1 or tiles < 2:
        return None
    least = _STRIPS // max(1, prod([length(r) for r in nest.loops if x.uses(r) and r is not row]))
    parts = max(-(-tiles // room), min(least, tiles // 4))
    count = -(-tiles // max(1, parts))
    if tiles % count and not nest.repeatable:
        return None
    return row, count


def _end_cost(a: Access, tile: Tile, accumulators: int, across: bool) -> float:
    """Cycles of a store, or of a load after the reduction, for one tile."""
    if across:
        return accumulators * 14.0
    stride = a.stride(tile.lane)
    if tile.lane not in a.loops or stride == 1:
        return float(accumulators)
    elements = accumulators * tile.lanes
    # what the tile's rows leave of each line is fetched again for later tiles
    near = prod([f for r, f in tile.rows if 0 < abs(a.stride(r) or 0) * a.itemsize < _LINE])
    lines = elements / max(1, min(near, _LINE // a.itemsize)) if abs(stride or _LINE) * a.itemsize >= _LINE else 0.0
    for r, f in tile.rows:
        if a.stride(r) == 1 and f >= 4 and f & (f - 1) == 0:
            return elements * 0.6 + lines * _STORE  # transposed in registers
    return elements * 1.3 + lines * _STORE


def _panel(plan: Plan, x: _Operand, own: tuple[UOp, ...], tile: Tile) -> tuple[tuple[UOp, int], ...] | None:
    """The loops of the reduction to go outside so that a panel of the operand stays in cache, each with the turns that
    stay inside; None where a panel cannot be made or kept."""
    inside = sorted([r for r in own if x.uses(r)], key=lambda r: r.arg.id)
    if not x.stageable or any(x.uses(r) for r, _ in tile.rows) or not all(is_constant(r) for r in inside):
        return None
    room = plan.renderer.l2 // 4 // (x.access.itemsize * tile.lanes * tile.vectors)
    outside: list[tuple[UOp, int]] = []
    while prod([length(r) for r in inside]) > room:
        loop = inside.pop(0)
        rest = prod([length(r) for r in inside])
        most = room // rest
        kept = 1 if most < 8 else max(f for f in range(1, most + 1) if length(loop) % f == 0)
        outside.append((loop, kept if kept * rest >= 64 and kept >= most // 4 else 1))
        if outside[-1][1] > 1:
            break
        if not inside:
            return None
    if len(outside) > 1 or (outside and prod([length(r) for r in inside]) * outside[0][1] < 32):
        return None
    return tuple(outside)


def _is_far(x: _Operand, own: tuple[UOp, ...], tile: Tile) -> bool:
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
    copied: dict[UOp, Id] = {}
    for row, f in tile.rows:
        tile_id, copies = _split(plan, nest, row, f, why)
        copied[row] = copies
        if tile_id is None:
            outer.pop(row)
        else:
            outer[row] = tile_id
        plan.do(Upcast(copies), "rows of the tile")
    last: Id | None = None
    if tile.strip is not None:
        _, row, tiles = tile.strip
        count, tile_id = -(-length(row) // dict(tile.rows)[row]), outer[row]
        if tiles < count:
            plan.do(Split(tile_id, tiles, "exact" if count % tiles == 0 else "overlap"), "rows of a panel")
            outer[row], last = (*tile_id, 0), (*tile_id, 1)
        else:
            outer.pop(row)
            last = tile_id
    moved = {r for r in outer for number in tile.staged if r in reduction_loads_of(reduction)[number].ranges}
    _unroll(plan, tuple([r for r in own if r not in dict(tile.blocked)]), tile)
    if last is not None:
        assert tile.strip is not None
        strip = reduction_loads_of(reduction)[tile.strip[0]].ranges
        order = [outer[r] for r in outer if r in strip] + [outer[r] for r in outer if r not in strip] + [last]
        places = sorted(order)
        if order != places:
            plan.do(Reorder(tuple(order)), "a strip of rows is packed once for all tiles that use it")
            outer = {r: places[order.index(i)] for r, i in outer.items()}
            last = places[-1]
    elif moved and len(outer) > 1:
        order = [outer[r] for r in outer if r in moved] + [outer[r] for r in outer if r not in moved]
        if order != sorted(order):
            plan.do(Reorder(tuple(order)), "a panel is filled once for all tiles that use it")
            places = sorted(order)
            outer = {r: places[order.index(i)] for r, i in outer.items()}
    total = nest.turns(frozenset(nest.loops) | frozenset(own)) * tile.cost / 3
    now = plan.nest(0)
    loops = tuple([r for r in now.loops if r.arg.kind is AxisType.LOOP])
    most = CHUNKS
    if last is not None:
        # chunks of other loops than the strip's pack it again
        strips = tuple([r for r in loops if r.arg.id in {outer[q] for q in outer if q in strip}])
        count = prod([length(r) for r in strips])
        loops = strips if count >= 2 * _STRIPS else tuple([r for r in loops if r.arg.id != last])
        most = CHUNKS if count >= 2 * _STRIPS else 2 * max(count, _STRIPS)
    elif tile.staged:  # chunks beyond those of the panels pack again what others have packed
        panels = prod([length(r) for r in now.loops if r.arg.id in {outer[q] for q in moved}])
        again = max(1, int(0.15 / max(tile.packing, 1e-9)))
        most = panels * min(again, -(-max(16, 4 * plan.renderer.cores) // panels))
        if tile.blocked:
            most = max(min(panels, CHUNKS), _chunks_each(plan))
    chunk_output(plan, now, total, None, 1, loops, exact=bool(tile.blocked), most=most)
    names = {i: i for i in inner}
    depth = {r: r.arg.id for r in own}
    for r, inside in tile.blocked:
        if inside > 1:
            plan.do(Split(r.arg.id, inside), "as much as a panel holds")
            depth[r] = (*r.arg.id, 1)
            names = _block(plan, (*r.arg.id, 0), names)
        else:
            del depth[r]
            names = _block(plan, r.arg.id, names)
    if tile.strip is not None and last is not None:
        row = tile.strip[1]
        layout = [last, *[i for r, i in depth.items() if r in strip], copied[row]]
        load = reduction_loads(plan.sink)[tile.strip[0]]
        plan.do(Stage(operands_of(plan.sink).index(load), tuple(layout)), "a strip of rows packed in the order of use")
    for number in tile.staged:
        load = reduction_loads(plan.sink)[number]
        layout = [i for r, i in depth.items() if r in reduction_loads_of(reduction)[number].ranges]
        layout += [names[i] for i in inner]
        plan.do(Stage(operands_of(plan.sink).index(load), tuple(layout)), "packed in the order of use")


def reduction_loads_of(reduction: UOp) -> list[UOp]:
    """The operands of a reduction, in the order of a walk."""
    return operands_of(reduction)


def _block(plan: Plan, id: Id, names: dict[Id, Id]) -> dict[Id, Id]:
    """Take the step, and give the new ids of the loops `names` inside the updates."""
    reduction = next(u for u in plan.sink.toposort() if u.op is Ops.REDUCE)
    start = fresh_id(plan.sink)
    outs = sorted(
        [r for r in reduction.ranges if r.arg.kind is not AxisType.GLOBAL], key=lambda r: (r.arg.kind, r.arg.id)
    )
    plan.do(Block(id), "so that a packed operand stays in cache")
    after = {r.arg.id: (start + len(outs) + i,) for i, r in enumerate(outs)}
    return {old: after[now] for old, now in names.items()}


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
    last = max([r for r in own if r is not tile.lane], key=lambda r: r.arg.id, default=None)
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
