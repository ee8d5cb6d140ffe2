"""Reductions over the rows of a large matrix: rows are gone over in the order of memory, a few at a time.

A plan comes in and gets the steps for it. With one column's sum in a register, a step of the reduction is a step to
another row, often to another page, and memory delivers a part of what it can. Here the sums of many columns lie in a
panel that stays in the first-level cache, and a few rows are added to it at once.
"""

from __future__ import annotations

from aril.codegen.analysis import Nest, is_constant, length, reduce_loops_of
from aril.codegen.chunks import CHUNKS
from aril.codegen.panels import Block
from aril.codegen.plan import Plan
from aril.codegen.steps import Id, Split, Unroll
from aril.ops import Ops
from aril.uop.args import AxisType
from aril.uop.node import UOp

ROWS = 8  # at once: as many streams as prefetchers follow
COLUMNS = 256  # a chunk has a multiple of so many, where it has not all: short stretches of rows are read slower
PANEL = 16 << 10  # bytes of sums: half of a first-level cache


def rows_of_columns(plan: Plan, nest: Nest, lane: UOp | None) -> UOp | None:
    """The loop over the rows, where the nest's only reduction is one over rows of a matrix larger than the caches."""
    if lane is None or len(nest.reduces) != 1 or not nest.repeatable or not is_constant(lane):
        return None
    reduction = nest.reduces[0]
    loops = reduce_loops_of(reduction)
    if not isinstance(reduction.arg[0], Ops) or len(loops) != 1 or lane not in reduction.ranges:
        return None
    rows = loops[0]
    large = [a for a in nest.accesses if rows in a.loops and lane in a.loops]
    if not large or not is_constant(rows) or length(rows) < 4 * ROWS:
        return None
    for a in large:
        step = a.stride(rows)
        if a.gated or a.stride(lane) != 1 or step is None or abs(step) < length(lane):
            return None
    most = max(nest.turns(a.loops) * a.itemsize for a in large)
    return rows if most > plan.renderer.l2 and length(lane) * nest.itemsize >= 512 else None


def most_chunks(nest: Nest, lane: UOp) -> int:
    """How many chunks there may be, so that each one's sums fit a panel."""
    return max(CHUNKS, length(lane) * nest.itemsize // PANEL)


def plan_rows(plan: Plan, index: int, rows: Id, lanes: Id) -> None:
    """After lanes are chosen (`lanes` is the id their loop had): rows go around the columns."""
    nest = plan.nest(index)
    count = length(plan.loop(rows))
    at_once = next((f for f in (ROWS, ROWS - 1, ROWS - 2, ROWS + 1, ROWS + 2) if count % f == 0), ROWS)
    keep = tuple([r.arg.id for r in nest.loops if r.arg.kind is AxisType.LOOP and r.arg.id[: len(lanes)] != lanes])
    plan.do(Split(rows, at_once, "exact" if count % at_once == 0 else "peel"), "rows that are added at once")
    plan.do(Block((*rows, 0), keep), "rows in the order of memory")
    plan.do(Unroll((*rows, 1)), "rows that are added at once")
