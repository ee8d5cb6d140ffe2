"""What a register tile costs: cycles of arithmetic, loads, stores, packing, and traffic beyond the caches.

In come a nest's operands and a `Tile`; out goes the tile with its cost and what it stages.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from aril.codegen.analysis import Access, Nest, is_constant, length
from aril.codegen.pairs import steps_of
from aril.codegen.plan import Plan
from aril.codegen.steps import adds_zeros
from aril.uop.node import UOp

_BYTES_A_CYCLE = 5.0  # of one core from beyond its second-level cache
_WAYS, _WAY = 8, 4096  # a first-level cache holds this many lines at one distance
_PIECE = 256  # bytes of a row of memory that are worth reading at once
_LINE, _LINES = 64, 512  # bytes of a cache line, lines of a first-level cache
STRIPS = 8  # strips of rows there should be, for threads to share
_STORE = 4.0  # cycles for a line that a tile stores in part
_WIDEN = 3.0  # cycles to widen a number and broadcast it, for those that a broadcasting load does not widen
_GATHER = 2.0  # cycles to bring two numbers together
_GATE = 3.0  # cycles of the conditions of a vector's load
_BRANCH = 1.0  # cycles of the conditions of a number: they are predicted, but take instructions
_MASK = 0.5  # of lanes that are left out
_CROWD = 1.5  # cycles that lines cost which the first-level cache has no room for beside a panel
_COPY, _TURN, _TURN_WIDE = 0.3, 0.5, 0.6  # cycles a number to fill a panel by rows, or transposed in registers
_REFILL = 0.6  # cycles a number to fill a panel again
_FETCH = 24.0  # cycles for a line whose neighbours in time lie in other pages
_WHOLE = 32  # bytes of the vectors that two units of multiply-adds take whole; Zen 4 takes wider ones in halves
# behind multiply-adds in halves: cycles of a load of a vector, of a number, and the share of what loads cost beyond one
_WIDE, _NARROW, _BEYOND = 0.3, 0.05, 0.5


@dataclass(frozen=True, eq=False)
class Tile:
    """A register tile. `cost` is in cycles a multiply-add of one lane; `staged` numbers the reduction's operands that
    are put into a panel, `blocked` are its loops that go around the nest so that panels stay small (with
    the turns that stay inside), `packing` is the share of the time that filling panels takes. `strip` is (the operand,
    its row loop, tiles) of an operand without lanes that is packed for so many tiles of its rows at once. Of a step's
    vectors `kept` serve several rows. Panels of `group` neighbours along the lanes are filled at once."""

    lane: UOp
    lanes: int
    vectors: int
    rows: tuple[tuple[UOp, int], ...]
    staged: tuple[int, ...] = ()
    blocked: tuple[tuple[UOp, int], ...] = ()
    cost: float = 0.0
    packing: float = 0.0
    strip: tuple[int, UOp, int] | None = None
    kept: int = 0
    group: int = 1

    @property
    def accumulators(self) -> int:
        return self.vectors * prod([f for _, f in self.rows])


@dataclass(frozen=True, eq=False)
class Operand:
    """A load of the body: its number among the kernel's operands, strides, and whether it may be staged. `pair`: the
    loop of two terms that are one step. `fill`: cycles a multiply-add to fill the panel it is read from."""

    number: int
    access: Access
    stageable: bool
    pair: UOp | None = None
    fill: float = 0.0

    @property
    def itemsize(self) -> int:
        """Bytes that a step takes of it."""
        return self.access.itemsize * self.unit

    @property
    def unit(self) -> int:
        """Elements of a step."""
        return 1 if self.pair is None else 2

    @property
    def is_loose(self) -> bool:
        """Whether the terms of a pair do not lie together, so that only a panel brings them together."""
        return self.pair is not None and self.access.stride(self.pair) != 1

    @property
    def is_widened(self) -> bool:
        """Whether elements are computed with in a wider type, one by one."""
        return self.pair is None and self.access.node.dtype.kind == "f" and self.access.itemsize < 4

    def uses(self, loop: UOp) -> bool:
        return loop in self.access.loops


def least_cost(plan: Plan, tile: Tile, own: frozenset[UOp]) -> float:
    """What `score` cannot go below."""
    cost = max(_multiply_adds(plan, tile), 4.8) / (tile.accumulators * tile.lanes)
    if tile.lane not in own:
        block = tile.lanes * tile.vectors
        cost *= _waste(tile.lane, block)
    for r, f in tile.rows:
        cost *= _waste(r, f)
    return cost


def _multiply_adds(plan: Plan, tile: Tile) -> float:
    """Cycles of a step's multiply-adds: two vectors a cycle, or one of those that are taken in halves."""
    return tile.accumulators / (1 if _is_halved(plan) else 2)


def _is_halved(plan: Plan) -> bool:
    return plan.renderer.vector_bytes > _WHOLE


def _waste(loop: UOp, factor: int) -> float:
    """Turns done in tiles of `factor`, for each that is asked for; of a variable length, as for an eighth of the
    greatest, with a last tile half full."""
    n = length(loop)
    if not is_constant(loop):
        return 1.0 + (factor - 1) / 2 / max(1.0, n / 8)
    return -(-n // factor) * factor / n


def score(
    plan: Plan, nest: Nest, reduction: UOp, operands: list[Operand], ends: list[Access], tile: Tile
) -> Tile | None:
    """The tile with its cost and what it stages; None where it cannot read an operand."""
    step = _Step(plan, nest, steps_of(reduction), tile)
    if not all(step.add(x) for x in sorted(operands, key=lambda x: x.uses(tile.lane))):
        return None
    return step.tile_with_cost(operands, ends)


class _Step:
    """Cycles of a step of the reduction with a tile, of loads and of filling panels; operands are added one by one,
    those without lanes first."""

    def __init__(self, plan: Plan, nest: Nest, own: tuple[UOp, ...], tile: Tile) -> None:
        self.plan, self.nest, self.own, self.tile = plan, nest, own, tile
        self.rows = prod([f for _, f in tile.rows])
        self.accumulators = tile.vectors * self.rows
        self.across = tile.lane in own
        self.masked = self.across and length(tile.lane) % tile.lanes > 0 and masks_rest(plan, tile.lane)
        self.depth = prod([length(r) for r in own])
        self.loads = self.staging = self.traffic = 0.0
        self.kept = self.wide = self.numbers = 0
        self.staged: list[int] = []
        self.blocked: tuple[tuple[UOp, int], ...] = ()
        self.strip: tuple[int, UOp, int] | None = None

    def add(self, x: Operand) -> bool:
        """Whether the tile can read the operand."""
        count = prod([f for r, f in self.tile.rows if x.uses(r)])
        self.traffic += _traffic(self.plan, x, self.own, self.tile)
        self.staging += x.fill * self.accumulators * self.tile.lanes
        if not x.uses(self.tile.lane):
            return self._add_numbers(x, count)
        count *= self.tile.vectors
        self.wide += count
        self.kept += self.tile.vectors if count < self.accumulators else 0
        return self._add_along(x, count) if self.across else self._add_vectors(x, count)

    def _add_numbers(self, x: Operand, count: int) -> bool:
        """An operand that stands still along the lanes: numbers that are broadcast, from a strip of rows if need be."""
        tile, own = self.tile, self.own
        self.numbers += count
        self.loads += count * (_broadcast_cost(x, tile) + (_BRANCH if x.access.gated else 0.0))
        scattered = _is_scattered(x, own)
        tiles = _strip_tiles(self.plan, self.nest, x, own, tile) if self.strip is None else None
        uses = max(1.0, self._turns(x, moved=False) / (tile.lanes * tile.vectors))
        if (x.is_loose or scattered) and tiles is not None:
            self.strip = (x.number, *tiles)
            self.staging += (_FETCH if scattered else _GATHER * count) / uses
            self.traffic -= _traffic(self.plan, x, own, tile)
        elif tiles is not None and _is_crowded(x, own, tile):
            again = _REFILL * tile.lanes * tile.vectors / tiles[1]  # the other operand's panel, for every strip
            self.strip = (x.number, *tiles) if _FETCH / uses + again < _CROWD else None
        elif x.is_loose:
            return False
        elif scattered:
            self.staging += _FETCH
        return True

    def _add_along(self, x: Operand, count: int) -> bool:
        """An operand whose lanes are terms of the sum."""
        contiguous = self._is_contiguous(x)
        if x.pair is not None and not contiguous:
            return False
        extra = max(_GATE if x.access.gated else 0.0, _MASK if self.masked else 0.0)
        self.loads += count * ((1.3 if contiguous else self.tile.lanes * 1.5) + extra)
        return True

    def _add_vectors(self, x: Operand, count: int) -> bool:
        """An operand with lanes of the result: read where it lies, or from a panel where that is cheaper."""
        tile, contiguous = self.tile, self._is_contiguous(x)
        far = contiguous and _is_far(x, self.own, tile)
        gate = _GATE if x.access.gated else 0.0
        direct = count * (gate + ((1.6 if far else 1.3) + x.is_widened if contiguous else tile.lanes * 1.5))
        if contiguous and _is_scattered(x, self.own):
            direct += 2 * _FETCH * tile.vectors
        panel = None if contiguous and not far else _panel(self.plan, x, self.own, tile)
        if panel is not None:
            price = self._fill_price(x, panel, contiguous)
            goes = not panel or self.strip is None and (not self.blocked or panel == self.blocked)
            if goes and price + count < direct:
                self.staged.append(x.number)
                self.staging += price
                self.traffic -= _traffic(self.plan, x, self.own, tile)
                self.blocked = panel or self.blocked
                self.loads += count
                return True
        if x.pair is not None and not contiguous:
            return False
        self.loads += direct
        return True

    def _fill_price(self, x: Operand, panel: tuple[tuple[UOp, int], ...], contiguous: bool) -> float:
        """Cycles a step to fill the panel, and where `panel` names loops that go around, to add up what each leaves."""
        tile = self.tile
        packed = prod([length(r) for r in self.own if x.uses(r)]) * tile.vectors
        panels = self._turns(x, moved=True) / (tile.lanes * tile.vectors)
        again = max(1.0, chunks_each(self.plan) / max(1.0, panels)) if panel else 1.0
        uses = max(1.0, self._turns(x, moved=False) / self.rows / again)
        uses = uses if self.strip is None else min(uses, self.strip[2])
        each = _COPY if contiguous else _TURN_WIDE if _is_halved(self.plan) else _TURN
        price = packed * each * tile.lanes * x.itemsize / 4 / (self.depth * uses)
        inner = self.depth / prod([length(r) / inside for r, inside in panel])
        return price + (2.5 * self.accumulators / inner if panel else 0.0)

    def _is_contiguous(self, x: Operand) -> bool:
        return x.access.stride(self.tile.lane) == x.unit and not x.is_loose

    def _turns(self, x: Operand, moved: bool) -> int:
        """Turns of the output loops that move the operand, or of the others."""
        return prod([length(r) for r in self.nest.loops if x.uses(r) is moved])

    def tile_with_cost(self, operands: list[Operand], ends: list[Access]) -> Tile:
        """The tile with its cost: that of steps, then of the end of each tile, times what is done in vain."""
        tile, accumulators = self.tile, self.accumulators
        loads = self.loads
        cycles = max(_multiply_adds(self.plan, tile), loads / 2, (accumulators + loads + 2) / 4, 4.8, self.traffic)
        cycles += self.staging
        if _is_halved(self.plan):
            cycles += _WIDE * self.wide + _NARROW * self.numbers + _BEYOND * (loads - self.wide - self.numbers)
        end = 15.0 + accumulators + sum(_end_cost(a, tile, accumulators, self.across) for a in ends)
        if _is_halved(self.plan):
            end += self.rows * len(ends)  # a row's vectors lie across one line more
        n = length(tile.lane)
        if self.across:
            waste = _rest(n, tile.lanes, self.masked) * tile.lanes / n
            end /= tile.lanes
        else:
            waste = _waste(tile.lane, tile.lanes * tile.vectors)
        for r, f in tile.rows:
            waste *= _waste(r, f)
        steps = self.depth / tile.lanes if self.across else self.depth
        cost = (cycles + end / max(1.0, steps)) * waste / (accumulators * tile.lanes)
        staged = [x for x in operands if x.number in self.staged]
        alone = self.blocked or self.strip is not None
        return replace(
            tile, staged=tuple(self.staged), blocked=self.blocked, strip=self.strip, kept=self.kept, cost=cost,
            group=1 if alone else _group(self.plan, self.nest, tile, self.own, staged), packing=self.staging / cycles,
        )  # fmt: skip


def masks_rest(plan: Plan, lane: UOp) -> bool:
    """Whether lanes along a sum end in a masked vector. Without mask registers, conditions of loads are masks made
    anew for each, and one more costs what it spares."""
    return adds_zeros(plan.sink, lane, gated=plan.renderer.vector_registers >= 32)


def _rest(n: int, lanes: int, masked: bool) -> float:
    """Steps of `n` terms in vectors: what is left in a masked one, or in shorter ones and one by one."""
    full, rest = divmod(n, lanes)
    if masked or rest == 0:
        return full + (rest > 0)
    part = 1 << (rest.bit_length() - 1) if rest >= 4 else 0
    return full + (part > 0) + rest - part


def _traffic(plan: Plan, x: Operand, own: tuple[UOp, ...], tile: Tile) -> float:
    """Cycles a step in which memory beyond the second-level cache delivers the operand; 0 where it stays in there."""
    strides = {abs(x.access.stride(r) or 0) for r in own if x.uses(r)}
    # rows that move as a loop of the reduction does see the same elements again (windows)
    fresh = prod([f for r, f in tile.rows if x.uses(r) and abs(x.access.stride(r) or 0) not in strides])
    if x.uses(tile.lane):
        fresh *= tile.lanes * tile.vectors
    total = fresh * prod([length(r) for r in own if x.uses(r) and r is not tile.lane])
    if min(total, (x.access.storage.arg.size or total) / x.unit) * x.itemsize <= plan.renderer.l2 // 2:
        return 0.0
    return fresh * x.itemsize / _BYTES_A_CYCLE


def chunks_each(plan: Plan) -> int:
    """Chunks of a blocked reduction. Each packs its operand anew, so there are few of them."""
    return max(4, 2 * plan.renderer.cores)


def _broadcast_cost(x: Operand, tile: Tile) -> float:
    if x.is_widened:
        return 1.0 + _WIDEN
    for r, f in tile.rows:
        stride = x.access.stride(r)
        if x.uses(r) and f > _WAYS and stride and stride * x.access.itemsize % _WAY == 0:
            return 4.0  # the rows push one another out of the first-level cache
    apart = any(x.uses(r) and abs(x.access.stride(r) or 64) * x.access.itemsize >= 64 for r, _ in tile.rows)
    return 1.05 if apart else 1.0


def _is_scattered(x: Operand, own: tuple[UOp, ...], most: int = _LINES) -> bool:
    """Whether every step of the reduction reads another line of the operand, more than `most`, which stay in cache."""
    strides = [abs(x.access.stride(r) or 0) * x.access.itemsize for r in own if x.uses(r)]
    if not strides or min(strides) < 4 * _LINE:
        return False
    steps = prod([length(r) for r in own if x.uses(r)])
    return steps > most or min(strides) % _WAY == 0 and steps > _WAYS


def _is_crowded(x: Operand, own: tuple[UOp, ...], tile: Tile) -> bool:
    """Whether the lines of a sum's steps do not stay in the first-level cache beside those of a panel."""
    beside = tile.lanes * tile.vectors * x.itemsize / _LINE
    return _is_scattered(x, own, int(_LINES / (1 + beside)))


def _strip_tiles(plan: Plan, nest: Nest, x: Operand, own: tuple[UOp, ...], tile: Tile) -> tuple[UOp, int] | None:
    """(the row loop, how many of its tiles are packed at once); None where the operand cannot be packed so."""
    rows = [(r, f) for r, f in tile.rows if x.uses(r)]
    inside = [r for r in own if x.uses(r)]
    if len(rows) != 1 or not x.stageable or not all(is_constant(r) for r in inside) or not is_constant(rows[0][0]):
        return None
    row, f = rows[0]
    tiles = -(-length(row) // f)
    room = plan.renderer.l2 // 4 // (x.itemsize * f * prod([length(r) for r in inside]))
    if room < 1 or tiles < 2:
        return None
    least = STRIPS // max(1, prod([length(r) for r in nest.loops if x.uses(r) and r is not row]))
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
    return elements * 2.2 + lines * _STORE


def _panel(plan: Plan, x: Operand, own: tuple[UOp, ...], tile: Tile) -> tuple[tuple[UOp, int], ...] | None:
    """The loops of the reduction to go outside so that a panel of the operand stays in cache, each with the turns that
    stay inside; None where a panel cannot be made or kept."""
    inside = sorted([r for r in own if x.uses(r)], key=lambda r: r.arg.id)
    if not x.stageable or any(x.uses(r) for r, _ in tile.rows) or any(r.src[0].ranges for r in inside):
        return None
    room = plan.renderer.l2 // 4 // (x.itemsize * tile.lanes * tile.vectors)
    outside: list[tuple[UOp, int]] = []
    while prod([length(r) for r in inside]) > room:
        loop = inside.pop(0)
        if not is_constant(loop):
            return None
        rest = prod([length(r) for r in inside])
        most = room // rest
        kept = 1 if most < 8 else max(f for f in range(1, most + 1) if length(loop) % f == 0)
        outside.append((loop, kept if kept * rest >= 64 and kept >= most // 4 else 1))
        if outside[-1][1] > 1:
            break
        if not inside:
            return None
    if outside and prod([length(r) for r in inside]) * outside[-1][1] < 32:
        return None
    return tuple(outside)


def _group(plan: Plan, nest: Nest, tile: Tile, own: tuple[UOp, ...], staged: list[Operand]) -> int:
    """How many neighbouring tiles of lanes get their panels at once, where one takes no more than a line of a row of
    memory: rows are then read in longer pieces, and what the tile's rows read serves all of them from the second-level
    cache. Whole groups are left for threads to share."""
    if not staged or not is_constant(tile.lane) or any(x.access.stride(tile.lane) != x.unit for x in staged):
        return 1
    piece = max(x.itemsize for x in staged) * tile.lanes * tile.vectors
    room = plan.renderer.l2 // 2 // sum(piece * prod([length(r) for r in own if x.uses(r)]) for x in staged)
    around = [r for r in nest.loops if r is not tile.lane and any(x.uses(r) for x in staged)]
    tiles = -(-length(tile.lane) // (tile.lanes * tile.vectors))
    share = tiles * prod([length(r) for r in around]) // max(2 * STRIPS, 8 * plan.renderer.cores)
    return max(1, min(_PIECE // piece, room, tiles, share)) if piece <= _LINE else 1


def _is_far(x: Operand, own: tuple[UOp, ...], tile: Tile) -> bool:
    """Whether steps of the reduction lie so far apart that a packed panel reads better."""
    strides = [abs(x.access.stride(r) or 0) * x.access.itemsize for r in own if x.uses(r)]
    deep = prod([length(r) for r in own if x.uses(r)])
    return bool(strides) and min(strides) >= 512 and deep * tile.lanes * tile.vectors * x.itemsize > 16 << 10
