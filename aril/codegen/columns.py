"""Sums over the rows of a large matrix, plain or with a few weights for each row (a skinny product), and along them.

A plan comes in and gets the steps for it. Sums along rows that share a vector are made for a few rows at once
(`rows_at_once`). For sums over the rows: with a column's sum in a register, a step of the reduction is a step to
another row, often to another page, and memory delivers a part of what it can. Here the sums of many columns lie in a
panel that stays in cache, rows are gone over in the order of memory, and a few of them are added at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from aril.codegen.analysis import Access, Nest, is_constant, length, reduce_loops_of
from aril.codegen.chunks import CHUNKS, chunk_output
from aril.codegen.groups import groups_apart
from aril.codegen.panels import Block
from aril.codegen.plan import Plan
from aril.codegen.steps import Id, Split, Unroll, Upcast, Vectorize
from aril.ops import Ops
from aril.uop.args import AxisType
from aril.uop.node import UOp

ROWS = 8  # at once: as many streams as prefetchers follow
STRETCH = 1024  # bytes of rows that follow each other in memory, at once: one stream
COLUMNS = 128  # a chunk has about so many or more, where it has not all: short stretches of rows are read slower
LONG_ROW = 4096  # bytes of a row from which several are gone along at once: a page, which prefetchers do not cross
WEIGHTS = 8  # a row's elements are used at most so often; more make a product that arithmetic bounds
PANEL = 16 << 10  # bytes of sums of a chunk of columns: half of a first-level cache
LEAST = 128  # bytes of a row that are worth going over at once
NEAR = (1, 2, 4)  # elements between neighbours of a row that vectors load together, those between them too
SIDE_BY_SIDE = 2  # vectors of columns whose sums are in registers while a few rows are added
COPIES = 64  # of a multiply-add in the code


@dataclass(frozen=True, eq=False)
class Columns:
    """The loops of such a sum: over the matrix's rows, its columns (lanes), and the weights of a row."""

    rows: UOp
    lane: UOp
    weights: tuple[UOp, ...]
    step: int  # elements from a column to the next in memory
    dense: bool  # whether a row begins where the one before it ends

    @property
    def sums(self) -> int:
        """How many sums each column has."""
        return prod([length(r) for r in self.weights])


def plan_columns(plan: Plan, index: int, nanoseconds: float, shared: bool) -> bool:
    """Take the steps where nest `index` is such a sum, about so long; else False, with nothing done. Loops become the
    launch index where they may (`shared`)."""
    start = plan.mark()
    nest = groups_apart(plan, index)  # the channels of a group are weights of its rows
    found = _columns(plan, nest)
    if found is None:
        plan.undo(start)
        return False
    lane = found.lane.arg.id
    if shared:
        most = max(CHUNKS, found.sums * length(found.lane) * nest.itemsize // PANEL)
        loops = tuple([r for r in nest.loops if r not in found.weights])
        tile = SIDE_BY_SIDE * max(2, plan.renderer.vector_bytes // nest.itemsize)
        chunk_output(plan, nest, nanoseconds, found.lane, COLUMNS // found.step, loops, most=most, tile=tile)
        lane = plan.renames.get(lane, lane)
    dense = found.dense and lane == found.lane.arg.id
    vectors, whole = _vectorise(plan, lane, nest.itemsize, found.sums, dense)
    for r in found.weights:
        plan.do(Upcast(r.arg.id), "weights of a row")
    rows, count = found.rows.arg.id, length(found.rows)
    known = is_constant(found.rows)
    most = max(1, min(ROWS, STRETCH // (length(found.lane) * nest.itemsize))) if dense else ROWS
    near = (most, most - 1, most - 2, most + 1, most + 2)
    at_once = next((f for f in near if f > 1 and known and count % f == 0), most)
    if whole:  # every sum of a row lies in a register
        if at_once > 1 and at_once * vectors * found.sums <= COPIES:
            plan.do(Split(rows, at_once, "exact" if known and count % at_once == 0 else "peel"), "a few rows a turn")
            plan.do(Unroll((*rows, 1)), "a few rows a turn")
        return True
    own = {r.arg.id for r in plan.nest(index).loops if r.arg.kind is AxisType.LOOP}
    keep = tuple(sorted(i for i in own if i[: len(lane)] != lane))
    plan.do(Split(rows, at_once, "exact" if known and count % at_once == 0 else "peel"), "rows that are added at once")
    plan.do(Block(((*rows, 0),), keep), "rows in the order of memory")
    if at_once * vectors * found.sums <= COPIES:
        plan.do(Unroll((*rows, 1)), "rows that are added at once")
    return True


def _columns(plan: Plan, nest: Nest) -> Columns | None:
    """The loops, where the nest's only reduction goes over the rows of a matrix larger than the second-level cache."""
    if len(nest.reduces) != 1 or not nest.repeatable:
        return None
    reduction = nest.reduces[0]
    loops = reduce_loops_of(reduction)
    if not isinstance(reduction.arg[0], Ops) or len(loops) != 1 or loops[0].src[0].ranges:
        return None
    rows = loops[0]
    if length(rows) < 4 * ROWS or not all(r in reduction.ranges for r in nest.loops):
        return None
    large = [a for a in nest.accesses if rows in a.loops and _size(plan, nest, a) > plan.renderer.l2]
    lanes = {next((r for r in nest.loops if r in a.loops and a.stride(r) in NEAR), None) for a in large}
    lane = lanes.pop() if len(lanes) == 1 else None
    if lane is None or not is_constant(lane) or length(lane) * nest.itemsize < LEAST:
        return None
    for a in large:
        step = a.stride(rows)
        if a.gated or step is None or abs(step) < length(lane) * (a.stride(lane) or 0):
            return None
    dense = all(abs(a.stride(rows) or 0) == length(lane) for a in large)
    step = max([a.stride(lane) or 1 for a in large])
    if any(lane in a.loops and a.stride(lane) != 1 for a in nest.accesses if a.is_store or a not in large):
        return None
    weights = tuple([r for r in nest.loops if not any(r in a.loops for a in large)])
    found = Columns(rows, lane, weights, step, dense)
    if not all(is_constant(r) for r in weights) or found.sums > WEIGHTS:
        return None
    return found


def _size(plan: Plan, nest: Nest, a: Access) -> int:
    """Bytes that pass before an element is read again; of a nest that is done for every chunk, those of all."""
    return (nest.turns(a.loops) if plan.shares else int(a.storage.arg.size)) * a.itemsize


def _vectorise(plan: Plan, lane: Id, itemsize: int, sums: int, dense: bool) -> tuple[int, bool]:
    """Vectors of the columns, side by side as registers allow: of `dense` rows all, if there is room. How many, and
    whether they are all."""
    n = length(plan.loop(lane))
    width = max(2, plan.renderer.vector_bytes // itemsize)
    lanes = min(width, 1 << (n.bit_length() - 1))
    room = max(1, plan.renderer.vector_registers * 3 // 4 // sums)
    vectors = -(-n // lanes)
    if dense and vectors <= room:
        if vectors > 1:
            plan.do(Split(lane, lanes, "exact" if n % lanes == 0 else "overlap"), "independent vectors")
            plan.do(Upcast((*lane, 0)), "independent vectors")
            lane = (*lane, 1)
        plan.do(Vectorize(lane), "columns are contiguous")
        return vectors, True
    vectors = next(v for v in (SIDE_BY_SIDE, 1) if v <= room and (v == 1 or v * lanes <= n))
    block = lanes * vectors
    if n > block:
        plan.do(Split(lane, block, "exact" if n % block == 0 else "overlap"), "tiles of vectors")
        lane = (*lane, 1)
    plan.vectorise(lane, lanes, vectors, "columns are contiguous")
    return vectors, False


def rows_at_once(plan: Plan, index: int, along: UOp) -> int:
    """Copies of an output loop of nest `index` whose turns share an operand of its one sum over the long loop `along`
    (a matrix by a vector); how many, 0 for none.

    A row by itself reads the whole vector, which the matrix has pushed out of the first-level cache meanwhile, and
    memory has one stream to fetch ahead. Taken ahead of chunks, which are whole turns of so many rows then.
    """
    nest = plan.nest(index)
    loads = [a for a in nest.accesses if not a.is_store and along in a.loops]
    if len(nest.reduces) != 1 or nest.reduces[0].src[1:] != (along,) or length(along) * nest.itemsize < LONG_ROW:
        return 0
    for r in reversed(nest.loops):
        shared = [a for a in loads if r not in a.loops]
        if not shared or len(shared) == len(loads) or r.arg.kind is not AxisType.LOOP or not nest.repeatable:
            continue
        n, id = length(r), r.arg.id
        rows = next((f for f in (ROWS, ROWS - 1, ROWS - 2) if is_constant(r) and n % f == 0), min(ROWS, n))
        if rows < 2:
            continue
        if not is_constant(r) or n != rows:
            tail = "repeat" if not is_constant(r) else "overlap" if n % rows else "exact"
            plan.do(Split(id, rows, tail), "rows at once")
            id = (*id, 1)
        plan.do(Upcast(id), "rows that share the vector")
        return rows
    return 0
