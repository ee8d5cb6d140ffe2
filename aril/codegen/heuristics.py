"""The default choice of optimisation steps, by a stated cost. A kernel and a target come in, the kernel after the steps
goes out.

Results never depend on how many threads run: chunks are parts of the outputs, and each output is computed in one
fixed order.
"""

from __future__ import annotations

import sys

from aril.codegen.access_cost import OPERATION, access_cost, cover_of, estimate_ns
from aril.codegen.analysis import SHORT, Nest, is_constant, length, reduce_loops_of
from aril.codegen.apart import independent
from aril.codegen.attention import is_chain, plan_chain
from aril.codegen.bypass import LINE
from aril.codegen.chunks import chunk_output
from aril.codegen.columns import plan_columns, rows_at_once
from aril.codegen.contraction import plan_contraction
from aril.codegen.order import bounding, forget
from aril.codegen.panels import COSTLY, Keep, kept
from aril.codegen.plan import Plan
from aril.codegen.prefetch import fetch_picked, fetch_rows
from aril.codegen.residues import split_residues
from aril.codegen.steps import (
    Chunk,
    Id,
    Merge,
    Split,
    StepError,
    Unroll,
    Upcast,
    Vectorize,
    can_merge,
    closers,
    index_roots,
)
from aril.codegen.transcendental import is_fit
from aril.codegen.transposing import RowTile, bands_last, tile_rows
from aril.codegen.walk import is_walk, plan_walk
from aril.config import DEBUG, NOOPT
from aril.ops import OpGroup, Ops
from aril.renderer.base import Renderer
from aril.uop.args import AxisType, KernelInfo
from aril.uop.node import UOp


def optimise(sink: UOp, renderer: Renderer) -> UOp:
    """The kernel after the steps it asks for (`opts_to_apply`), or after those chosen for the target.

    `NOOPT=1` chooses none. Errors: StepError where asked-for steps do not fit.
    """
    info = sink.arg if isinstance(sink.arg, KernelInfo) else KernelInfo()
    plan = Plan(sink, renderer)
    if info.opts_to_apply is not None:
        for step in info.opts_to_apply:
            plan.do(step)
    elif not NOOPT.value:
        choose(plan)
    forget()
    if DEBUG.value >= 3:
        print(f"{info.name}: {plan}", file=sys.stderr)
    return plan.finish(info)


def choose(plan: Plan) -> None:
    """Fill `plan` with the default steps. A step that does not fit ends the choice: the plan so far is right."""
    try:
        _choose_all(plan)
    except StepError as error:
        plan.stopped = str(error)


def _choose_all(plan: Plan) -> None:
    if is_chain(plan.sink):
        if not plan.renderer.chunks_are_lanes:
            plan_chain(plan, choose)
        return
    merge_loops(plan)
    if is_walk(plan.sink):
        if not plan.renderer.chunks_are_lanes:
            plan_walk(plan)
        return
    if plan.renderer.chunks_are_lanes:
        _spread(plan)
        return
    count = len(plan.sink.src)
    free = independent(plan.sink.src)
    for i in reversed(range(count)):  # from the last: a peeled nest moves those after it
        nest = plan.nest(i)
        if not _is_plain(nest) or plan_columns(plan, i, estimate_ns(nest, None), shared=free):
            continue
        if count > 1 or not plan_contraction(plan):
            _plan_generic(plan, i, shared=free)


def _spread(plan: Plan) -> None:
    """Every output loop becomes the launch index, and long reductions into few outputs become lanes."""
    nest = plan.nest(0)
    if len(plan.sink.src) != 1 or not _is_plain(nest):
        return
    outputs = nest.turns(frozenset(nest.loops))
    if nest.loops:
        plan.do(Chunk(tuple([r.arg.id for r in nest.loops])), "the launch index is an axis of arrays")
    if outputs < 256:
        for loop in [r for u in nest.reduces for r in u.src[1:] if is_constant(r) and length(r) >= 64]:
            vectorise_reduction(plan, loop.arg.id, plan.renderer.max_vector_lanes, copies=1)


def _is_plain(nest: Nest) -> bool:
    """Whether the steps know all of the nest: loops of one kind, no hand-written control or storage."""
    odd = (Ops.CUSTOM, Ops.CUSTOMI, Ops.ATOMIC, Ops.IF, Ops.BARRIER, Ops.AFTER, Ops.BUFFER, Ops.SHUFFLE, Ops.WMMA)
    if any(u.op in odd or (u.op is Ops.END and u is not nest.effect) for u in nest.nodes):
        return False
    if nest.effect.op is Ops.END and any(s.op is not Ops.RANGE for s in nest.effect.src[1:]):
        return False
    # a GLOBAL loop around the whole nest stands still (see `attention`)
    own = set(nest.effect.src[1:]) if nest.effect.op is Ops.END else set()
    kinds = {r.arg.kind for r in nest.nodes if r.op is Ops.RANGE and (r in own or r.arg.kind is not AxisType.GLOBAL)}
    return kinds <= {AxisType.LOOP, AxisType.REDUCE} and not own & bounding(nest.effect)


def merge_loops(plan: Plan) -> None:
    """Loops that always move together become one: `x[i*n + j]` is `x[r]`."""
    changed = True
    while changed:
        changed = False
        closed, roots = closers(plan.sink), index_roots(plan.sink)
        loops = sorted(closed, key=lambda r: r.arg.id)
        for a in loops:
            for b in loops:
                if a is not b and a.arg.kind is b.arg.kind and can_merge(a, b, closed, roots):
                    plan.do(Merge(a.arg.id, b.arg.id), "they move together")
                    changed = True
                    break
            if changed:
                break


def _plan_generic(plan: Plan, index: int, shared: bool) -> None:
    split_residues(plan, index)
    nest = plan.nest(index)
    widths = {r: width_of(plan, nest, r) for r in (*nest.loops, *[r for group in nest.groups for r in group])}
    lane, inner = _choose_lanes(nest, widths)
    _keep_row(plan, nest, lane, inner)
    tile = None if lane is None else tile_rows(plan, index, lane, widths[lane])
    costly = {loop: _costly_copies(plan, nest, loop, widths[loop]) for loop in inner}
    rows = 0 if lane is not None or len(inner) != 1 or costly[inner[0]] else rows_at_once(plan, index, inner[0])
    nest = plan.nest(index)
    if shared:
        _chunk(plan, nest, lane, tile)
    nest = plan.nest(index)
    if lane is not None:
        width = widths[lane]
        lane = plan.find(nest.loops, lane.arg.id)
        _fill_blocks(plan, nest, lane)
        _vectorise_output(plan, index, plan.find(plan.nest(index).loops, lane.arg.id), width, tile)
    _unroll_short(plan, nest, [r.arg.id for r in inner])
    for loop in inner:
        copies = costly[loop] or (max(1, plan.renderer.vector_registers // 2 // rows) if rows else 4)
        vectorise_reduction(plan, loop.arg.id, widths[loop], copies)
    if inner:
        fetch_rows(plan)
    else:
        fetch_picked(plan)


def _keep_row(plan: Plan, nest: Nest, lane: UOp | None, inner: list[UOp]) -> None:
    """Costly functions of a row that a reduction computes ahead of the row's results are computed once.

    Rows that are computed side by side, as their elements are neighbours, have no one row to keep.
    """
    if lane is None or _cover(nest, lane):
        return
    for loop in inner:
        short = length(loop) * nest.itemsize <= plan.renderer.l2 // 4
        if short and kept(nest.effect, loop, lane) is not None:
            plan.do(Keep(loop.arg.id, lane.arg.id), "dearer than a store and a load in cache")


def width_of(plan: Plan, nest: Nest, loop: UOp | None) -> int:
    """Lanes of a vector of the widest values that move with `loop`."""
    return max(2, plan.renderer.vector_bytes // nest.itemsize_in(loop))


def _cover(nest: Nest, lane: UOp) -> list[UOp]:
    """The loops whose turns fill the room between the lanes of a store."""
    stores = [a for a in nest.accesses if a.is_store and lane in a.loops]
    return list(dict.fromkeys([r for a in stores for r in cover_of(a, lane)]))


def _fill_blocks(plan: Plan, nest: Nest, lane: UOp) -> None:
    """Copies of the loops that fill the room between the lanes of a store."""
    for r in _cover(nest, lane):
        if r.arg.kind is AxisType.UPCAST:
            continue
        plan.do(Upcast(r.arg.id), "lanes and copies fill a block together")


def _unroll_short(plan: Plan, nest: Nest, lanes: list[Id]) -> None:
    """Copies of short reductions, such as a pooling window's. Of reductions one within the other the inner ones: their
    copies multiply."""
    loops_of = {u: u.ranges | set(reduce_loops_of(u)) for u in nest.reduces}
    depth = {reduce_loops_of(u): len(loops_of[u]) for u in nest.reduces}
    copied: set[UOp] = set()
    for group in sorted(nest.groups, key=lambda g: -depth[g]):
        if nest.turns(frozenset(group)) > SHORT or not all(is_constant(r) for r in group):
            continue
        more = copied | {r for r in group if r.arg.id not in lanes and length(r) > 1}
        if all(nest.turns(frozenset(more & loops)) <= SHORT * SHORT for loops in loops_of.values()):
            copied = more
    for group in nest.groups:
        for r in group:
            if r in copied:
                plan.do(Unroll(r.arg.id), "short loop")


def _choose_lanes(nest: Nest, widths: dict[UOp, int]) -> tuple[UOp | None, list[UOp]]:
    """(output loop to become lanes, loops of reductions to become lanes) of the least cost."""
    best: tuple[float, UOp | None, list[UOp]] | None = None
    for lane in (*sorted(nest.loops, key=lambda r: r.arg.id, reverse=True), None):
        if lane is not None and (length(lane) < 3 or lane.arg.kind is not AxisType.LOOP):
            continue
        inner: list[UOp] = []
        cost = 0.0
        for group in nest.groups:
            members = [u for u in nest.reduces if group == reduce_loops_of(u)]
            if lane is not None and any(lane in u.ranges for u in members):
                continue
            choice = _choose_reduction_lane(nest, group, members, widths)
            if choice is not None:
                inner.append(choice)
        for a in nest.accesses:
            mine = next((r for r in (*inner, *((lane,) if lane is not None else ())) if r in a.loops), None)
            cost += access_cost(a, mine, widths[mine] if mine is not None else 1, nest.turns)
        for u in nest.nodes:
            if u.op in OpGroup.ELEMENTWISE and not u.dtype.weak:
                mine = next((r for r in (*inner, *((lane,) if lane is not None else ())) if r in u.ranges), None)
                cost += nest.turns(u.ranges) * (OPERATION if mine is not None else OPERATION * 6)
        if best is None or cost < best[0]:
            best = (cost, lane, inner)
    assert best is not None
    return best[1], best[2]


def _choose_reduction_lane(
    nest: Nest, group: tuple[UOp, ...], members: list[UOp], widths: dict[UOp, int]
) -> UOp | None:
    def cost(loop: UOp | None) -> float:
        width = widths[loop] if loop is not None else 1
        return sum(access_cost(a, loop, width, nest.turns) for a in nest.accesses if any(r in a.loops for r in group))

    if any(u.op is Ops.REDUCE and u in members for m in members for u in m.src[0].toposort()):
        return None
    inside = {u for m in members for u in m.src[0].toposort() if u.op is Ops.REDUCE}
    options = [r for r in group if length(r) >= 4 and not any(r in u.ranges for u in inside)]
    best = min(options, key=cost, default=None)
    return best if best is not None and cost(best) <= cost(None) * 1.05 else None


def _vectorise_output(plan: Plan, index: int, lane: UOp, width: int, tile: RowTile | None) -> None:
    nest = plan.nest(index)
    n, id = length(lane), lane.arg.id
    registers = plan.renderer.vector_registers
    live = len([a for a in nest.accesses if lane in a.loops]) + len([u for u in nest.reduces if lane in u.ranges])
    copies = _costly_copies(plan, nest, lane, width) or max(1, min(4, registers // 2 // max(1, live)))
    copies = 1 << (copies.bit_length() - 1)
    if not is_constant(lane):
        if n >= width:
            _vectorise_variable(plan, nest, lane, width)
        return
    lanes = tile.lanes if tile is not None else min(width, 1 << (n.bit_length() - 1))
    while copies > 1 and n < 2 * copies * lanes and n % (copies * lanes):
        copies //= 2
    if tile is not None or any(r.arg.kind is AxisType.UPCAST for r in nest.loops):
        copies = tile.copies if tile is not None else 1
    block = lanes * copies
    tail = "overlap" if nest.repeatable else "peel"
    if n > block:
        plan.do(Split(id, block, tail if n % block else "exact"), "tiles of vectors")
        id = (*id, 1)
        rest = n % block
        if rest and tail == "peel" and rest >= lanes and copies > 1:
            plan.do(Split((*id[:-1], 2), lanes, "peel"), "vectors of the rest")
            plan.do(Vectorize((*id[:-1], 2, 1)), "contiguous")
    elif n != block:
        plan.do(Split(id, block, tail), "tiles of vectors")
        id = (*id, 1)
    plan.vectorise(id, lanes, copies, "contiguous for most accesses")
    if tile is not None:
        bands_last(plan, index, tile, (*id, 1) if copies > 1 else id)


def _vectorise_variable(plan: Plan, nest: Nest, lane: UOp, width: int) -> None:
    """Lanes of an output of unknown length: vectors side by side, vectors of the rest, then one by one. Sums of several
    vectors are made at once, as a step of theirs goes to another row."""
    id, sums = lane.arg.id, len([u for u in nest.reduces if lane in u.ranges])
    room = min(4, plan.renderer.vector_registers // 2 // sums) if sums else 1
    copies = _costly_copies(plan, nest, lane, width) or room
    if sums and copies > 1 and length(lane) >= 4 * copies * width:
        plan.do(Split(id, copies * width, "peel"), "tiles of vectors")
        plan.vectorise((*id, 1), width, copies, "independent vectors")
        id = (*id, 2)
    plan.do(Split(id, width, "peel"), "lanes; the rest one by one")
    plan.do(Vectorize((*id, 1)), "contiguous")


def _costly_copies(plan: Plan, nest: Nest, loop: UOp, width: int) -> int:
    """Vectors next to each other where costly functions move with `loop`; 0 where none do.

    Their constants need the registers. Exponentials have few: four are computed side by side (`linearize`). In a sum
    they fill a cache line where no cache holds what is read, to be asked for ahead as a whole.
    """
    found = {u.op for u in nest.nodes if u.op in COSTLY and loop in u.ranges and not is_fit(u)}
    if found != {Ops.EXP2}:
        return min(1, len(found))
    if loop.arg.kind is AxisType.LOOP:
        return 4
    large = any(a.storage.arg.size * a.itemsize > plan.renderer.l3 for a in nest.accesses if loop in a.loops)
    return max(1, LINE // nest.itemsize // width) if large else 1


def vectorise_reduction(plan: Plan, id: Id, width: int, copies: int = 4) -> None:
    """A reduction loop as lanes of several accumulators; the rest by single vectors, then one by one."""
    loop = plan.loop(id)
    if not is_constant(loop):
        copies = max(2, copies)
        if length(loop) < width * copies:
            return
        plan.do(Split(id, width * copies, "peel"), "lanes of a reduction")
        plan.vectorise((*id, 1), width, copies, "independent accumulators")
        plan.do(Split((*id, 2), width, "peel"), "rest of a reduction")
        plan.do(Vectorize((*id, 2, 1)), "rest of a reduction")
        return
    n = length(loop)
    lanes = min(width, 1 << (n.bit_length() - 1))
    while copies > 1 and n < copies * lanes:
        copies //= 2
    block = copies * lanes
    if n != block:
        plan.do(Split(id, block, "exact" if n % block == 0 else "peel"), "lanes of a reduction")
        main, rest = (*id, 1), (n % block)
    else:
        main, rest = id, 0
    if copies > 1:
        plan.do(Split(main, lanes), "independent accumulators")
        plan.do(Upcast((*main, 0)), "independent accumulators")
        plan.do(Vectorize((*main, 1)), "lanes of a reduction")
    else:
        plan.do(Vectorize(main), "lanes of a reduction")
    if rest:
        _vectorise_rest(plan, (*id, 2), rest, lanes)


def _vectorise_rest(plan: Plan, id: Id, rest: int, lanes: int) -> None:
    if rest >= lanes:
        if rest == lanes:
            plan.do(Vectorize(id), "rest of a reduction")
            return
        plan.do(Split(id, lanes, "exact" if rest % lanes == 0 else "peel"), "rest of a reduction")
        plan.do(Vectorize((*id, 1)), "rest of a reduction")
        id, rest = (*id, 2), rest % lanes
    if rest >= 4:
        part = 1 << (rest.bit_length() - 1)
        if part == rest:
            plan.do(Vectorize(id), "rest of a reduction")
        else:
            plan.do(Split(id, part, "peel"), "rest of a reduction")
            plan.do(Vectorize((*id, 1)), "rest of a reduction")
            rest -= part
            id = (*id, 2)
            if 1 < rest <= 4:
                plan.do(Unroll(id), "rest of a reduction")
    elif rest > 1:
        plan.do(Unroll(id), "rest of a reduction")


def _chunk(plan: Plan, nest: Nest, lane: UOp | None, tile: RowTile | None) -> None:
    width = width_of(plan, nest, lane)
    loops = tuple([r for r in nest.loops if r.arg.kind is AxisType.LOOP])
    # a rest that was peeled off goes with the loops that both have
    rests = [e for e in plan.sink.src if e.op is Ops.END and not set(loops).isdisjoint(e.src[1:])]
    loops = tuple([r for r in loops if all(r in e.src[1:] for e in rests)]) or loops
    near = None if tile is None else next((r for r in loops if r.arg.id == tile.loop), None)
    chunk_output(plan, nest, estimate_ns(nest, lane), lane, lane_block=width * 4, loops=loops, near=near)
