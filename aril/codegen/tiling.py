"""The steps of a register tile: splits, lanes and copies, the order of the loops around it, chunks, packed panels.

In: a plan, its nest, and the tile that was chosen for it (`contraction.py`). The plan gets the steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from aril.codegen.accumulate import fresh_id
from aril.codegen.analysis import Nest, is_constant, length
from aril.codegen.chunks import CHUNKS, LARGE_NS, LEAST_NS, best_count, best_parts, chunk_output
from aril.codegen.order import nodes_of
from aril.codegen.pairs import pair_loop, steps_of
from aril.codegen.panels import Block, Stage
from aril.codegen.plan import Plan
from aril.codegen.prefetch import fetch_ahead
from aril.codegen.steps import Id, Reorder, Split, Unroll, Upcast, Vectorize, operands_of
from aril.codegen.tile_cost import STRIPS, Tile, chunks_each, masks_rest
from aril.codegen.windows import panel_loops
from aril.ops import Ops
from aril.uop.args import AxisType
from aril.uop.node import UOp

_SHARED = 5.0  # times the estimate: filling a panel that another thread fills too, from beyond the caches of both


class Tiling:
    """A tile on its way into a plan: what has become of the loops of the nest."""

    def __init__(self, plan: Plan, nest: Nest, reduction: UOp, tile: Tile) -> None:
        self.plan, self.nest, self.tile = plan, nest, tile
        self.own, self.pair = steps_of(reduction), pair_loop(reduction)
        self.operands = operands_of(reduction)
        self.outer: dict[UOp, Id] = {r: r.arg.id for r in nest.loops}  # loop -> the loop over its tiles
        self.inner: list[Id] = []  # vectors and lanes
        self.copied: dict[UOp, Id] = {}  # row loop -> its copies
        self.last: Id | None = None  # the loop over tiles of rows inside a strip
        self.within: Id | None = None  # the loop over tiles of lanes inside a group
        # loops that panels which operands are read through depend on, and those whose turns were put into one already
        self.filled = {r for a in nest.accesses if a.storage.op is Ops.BUFFER for r in panel_loops(a)}
        staged = [self.operands[number] for number in tile.staged]
        self.moved = {r for r in nest.loops if any(r in load.ranges for load in staged)} | self.filled
        self.strip = () if tile.strip is None else self.operands[tile.strip[0]].ranges

    def take(self) -> None:
        """Take the steps."""
        self._lanes()
        self._rows()
        self._unroll()
        self._order()
        self._chunks()
        self._panels()
        fetch_ahead(self.plan)

    # --- the tile ---

    def _lanes(self) -> None:
        plan, tile = self.plan, self.tile
        if tile.lane in self.own:
            _vectorise_depth(plan, tile.lane.arg.id, tile.lanes, length(tile.lane))
            return
        vector_id = self._split(tile.lane, tile.lanes * tile.vectors, "masked")
        if tile.vectors > 1:
            plan.do(Split(vector_id, tile.lanes), "vectors of the tile")
            plan.do(Upcast((*vector_id, 0)), "vectors of the tile")
            self.inner.append((*vector_id, 0))
            vector_id = (*vector_id, 1)
        plan.do(Vectorize(vector_id), "lanes of the tile")
        self.inner.append(vector_id)

    def _rows(self) -> None:
        """Copies of rows; tiles that one packed strip or group of panels serves lie in a loop of their own."""
        plan, tile, outer = self.plan, self.tile, self.outer
        for row, f in tile.rows:
            self.copied[row] = self._split(row, f)
            plan.do(Upcast(self.copied[row]), "rows of the tile")
        if tile.strip is not None:
            _, row, tiles = tile.strip
            count = -(-length(row) // dict(tile.rows)[row])
            if tiles < count:
                plan.do(Split(outer[row], tiles, "exact" if count % tiles == 0 else "overlap"), "rows of a panel")
                outer[row], self.last = (*outer[row], 0), (*outer[row], 1)
            else:
                self.last = outer.pop(row)
        if tile.group > 1:
            plan.do(Split(outer[tile.lane], tile.group, "ragged"), "neighbours' panels are filled at once")
            outer[tile.lane], self.within = (*outer[tile.lane], 0), (*outer[tile.lane], 1)

    def _split(self, loop: UOp, factor: int, variable: str = "repeat") -> Id:
        """Tiles of `factor`: the loop inside of one. `variable` is the tail where the length is no constant."""
        id, n = loop.arg.id, length(loop)
        if is_constant(loop) and n == factor:
            del self.outer[loop]
            return id  # type: ignore[no-any-return]
        if is_constant(loop):
            tail = "exact" if n % factor == 0 else ("overlap" if self.nest.repeatable else "peel")
        else:
            full = loop.src[0].vmin >= factor and self.nest.repeatable and variable == "repeat"
            tail = "overlap" if full else variable
        self.plan.do(Split(id, factor, tail), f"register tile, {self.tile.cost:.3f} cycles an element")
        self.outer[loop] = (*id, 0)
        return (*id, 1)

    def _unroll(self) -> None:
        """A short innermost reduction loop is copied where the body is small and registers hold what its copies
        share."""
        tile, blocked = self.tile, dict(self.tile.blocked)
        inner = [r for r in self.own if r is not tile.lane and r not in blocked]
        last = max(inner, key=lambda r: r.arg.id, default=None)
        if last is None or not is_constant(last):
            return
        turns = length(last)
        if not (1 < turns <= 8 and turns * tile.accumulators <= 48):
            return
        if tile.accumulators + turns * (tile.kept + 1) <= self.plan.renderer.vector_registers:
            self.plan.do(Unroll(last.arg.id), "short loop")

    # --- around it ---

    def _order(self) -> None:
        """What a panel or strip depends on goes outside: it is filled once for all tiles that use it."""
        if self.last is not None:
            self.last = self._reorder(self.strip, self.last, "a strip of rows is packed once for all tiles that use it")
        elif len(self.outer) > 1 and not self.moved.isdisjoint(self.outer):
            self.within = self._reorder(self.moved, self.within, "a panel is filled once for all tiles that use it")

    def _reorder(self, first: Iterable[UOp], last: Id | None, why: str) -> Id | None:
        """The loops over tiles in the order: those of `first`, the others, `last`, whose new id it gives."""
        outer = self.outer
        order = [outer[r] for r in outer if r in first] + [outer[r] for r in outer if r not in first]
        order += [] if last is None else [last]
        places = sorted(order)
        if order == places:
            return last
        self.plan.do(Reorder(tuple(order)), why)
        self.outer = {r: places[order.index(i)] for r, i in outer.items()}
        return None if last is None else places[-1]

    def _chunks(self) -> None:
        """What threads share: whole panels and strips, as chunks of other loops would fill the same ones again."""
        plan, tile, outer = self.plan, self.tile, self.outer
        # costs are of two multiply-adds of vectors a cycle, at 3 GHz; of vectors of 64 bytes it is one
        pace = 3 / max(1.0, plan.renderer.vector_bytes / 32)
        total = self.nest.turns(frozenset(self.nest.loops) | frozenset(self.own)) * tile.cost / pace
        now = plan.nest(0)
        loops = tuple([r for r in now.loops if r.arg.kind is AxisType.LOOP and r.arg.id != self.within])
        if self.filled:
            around = {outer[r] for r in self.filled}
            loops = tuple([r for r in loops if r.arg.id in around])
        most, least = CHUNKS, LARGE_NS
        plain = len(self.own) == 1  # windows are fetched ahead over the loops of a chunk: few and large ones
        if self.last is not None:
            strips = tuple([r for r in loops if r.arg.id in {outer[q] for q in outer if q in self.strip}])
            count = prod([length(r) for r in strips])
            loops = strips if count >= 2 * STRIPS else tuple([r for r in loops if r.arg.id != self.last])
            most = CHUNKS if count >= 2 * STRIPS else 2 * max(count, STRIPS)
        elif tile.staged:
            panels = prod([length(r) for r in now.loops if r.arg.id in {outer[q] for q in outer if q in self.moved}])
            fills = max(1, int(0.15 / max(tile.packing, 1e-9)))
            most = panels * min(fills, -(-max(16, 4 * plan.renderer.cores) // panels))
            if tile.blocked:
                most = max(min(panels, CHUNKS), chunks_each(plan))
            elif plain:
                again = _SHARED * total * tile.packing / panels
                most, least = best_count(plan, total), LEAST_NS
                most = panels * best_parts(plan, total, panels, again) if panels < most else most
        elif plain:
            most, least = best_count(plan, total), LEAST_NS
        chunk_output(plan, now, total, None, 1, loops, exact=bool(tile.blocked), most=most, least=least)

    def _panels(self) -> None:
        """Operands packed in the order of use."""
        names = {i: i for i in self.inner}
        depth = {r: r.arg.id for r in self.own}
        outside: list[Id] = []
        for r, inside in self.tile.blocked:
            outside.append(r.arg.id if inside == 1 else (*r.arg.id, 0))
            if inside > 1:
                self.plan.do(Split(r.arg.id, inside), "as much as a panel holds")
                depth[r] = (*r.arg.id, 1)
            else:
                del depth[r]
        if outside:
            names = self._block(tuple(outside), names)
        if self.tile.strip is not None and self.last is not None:
            number, row, _ = self.tile.strip
            self._stage(number, [self.last], depth, [self.copied[row]], "a strip of rows packed in the order of use")
        for number in self.tile.staged:
            within = [] if self.within is None else [self.within]
            self._stage(number, within, depth, [names[i] for i in self.inner], "packed in the order of use")

    def _stage(self, number: int, first: list[Id], depth: dict[UOp, Id], last: list[Id], why: str) -> None:
        """A panel of an operand: the loops `first`, those of the reduction that it depends on, those of the tile."""
        steps = [i for r, i in depth.items() if r in self.operands[number].ranges]
        twice = [] if self.pair is None else [self.pair.arg.id]  # the terms of a pair lie together
        load = operands_of(self.plan.sink).index(reduction_loads(self.plan.sink)[number])
        self.plan.do(Stage(load, (*first, *steps, *last, *twice)), why)

    def _block(self, ids: tuple[Id, ...], names: dict[Id, Id]) -> dict[Id, Id]:
        """Take the step, and give the new ids of the loops `names` inside the updates."""
        plan = self.plan
        reduction = next(u for u in nodes_of(plan.sink) if u.op is Ops.REDUCE)
        start = fresh_id(plan.sink)
        outs = sorted(
            [r for r in reduction.ranges if r.arg.kind is not AxisType.GLOBAL], key=lambda r: (r.arg.kind, r.arg.id)
        )
        plan.do(Block(ids), "so that a packed operand stays in cache")
        after = {r.arg.id: (start + len(outs) + i,) for i, r in enumerate(outs)}
        return {old: after[now] for old, now in names.items()}


def reduction_loads(sink: UOp) -> list[UOp]:
    """The operands of the kernel's only reduction, in the order of a walk."""
    reductions = [u for u in nodes_of(sink) if u.op is Ops.REDUCE]
    return operands_of(reductions[0]) if len(reductions) == 1 else []


def _vectorise_depth(plan: Plan, id: Id, lanes: int, n: int) -> None:
    if n == lanes:
        plan.do(Vectorize(id), "lanes of the reduction")
        return
    rest = n % lanes
    if rest and masks_rest(plan, plan.loop(id)):
        plan.do(Split(id, lanes, "masked"), "lanes of the reduction")
        plan.do(Vectorize((*id, 1)), "lanes of the reduction")
        return
    plan.do(Split(id, lanes, "peel" if rest else "exact"), "lanes of the reduction")
    plan.do(Vectorize((*id, 1)), "lanes of the reduction")
    if rest >= 4:
        part = 1 << (rest.bit_length() - 1)
        if part == rest:
            plan.do(Vectorize((*id, 2)), "rest of the reduction")
        else:
            plan.do(Split((*id, 2), part, "peel"), "rest of the reduction")
            plan.do(Vectorize((*id, 2, 1)), "rest of the reduction")
