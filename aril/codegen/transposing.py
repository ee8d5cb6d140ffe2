"""Tiles of transposing copies: rows that are strided on one side are copies next to lanes, so that both sides use their
lines of cache whole."""

from __future__ import annotations

from dataclasses import dataclass

from aril.codegen.analysis import SHORT, Nest, is_constant, length
from aril.codegen.bypass import LINE
from aril.codegen.plan import Plan
from aril.codegen.steps import Id, Reorder, Split, Upcast
from aril.uop.args import AxisType
from aril.uop.node import UOp


@dataclass(frozen=True)
class RowTile:
    """A tile of a transposing copy: so many rows, as copies, of `copies` vectors of `lanes`; `loop` is over tiles."""

    loop: Id | None
    lanes: int
    copies: int


def tile_rows(plan: Plan, index: int, lane: UOp, width: int) -> RowTile | None:
    """Rows of a transposing copy: as many as fill a cache line (or a part, where vectors side by side fill the results'
    lines). Taken ahead of chunks, which are whole tiles then."""
    nest = plan.nest(index)
    loop = _transposed_loop(nest, lane) if is_constant(lane) else None
    if loop is None:
        return None
    # a tile lies in registers: 16 vectors of 16 elements take half of 32
    many = plan.renderer.vector_registers >= 32
    n, m, id = length(lane), length(loop), loop.arg.id
    lanes = min(width if many else min(width, 8), 1 << (n.bit_length() - 1))
    copies = 1 if many else _line_copies(nest, lanes, n)
    rows = min(max(2, LINE // nest.itemsize // copies), 1 << (m.bit_length() - 1))
    held = nest.turns(frozenset([r for r in nest.loops if r.arg.kind is AxisType.UPCAST]))
    if rows * copies * held > 2 * plan.renderer.vector_registers:
        return None
    if m == rows:
        plan.do(Upcast(id), "lines of the strided side are used whole")
        return RowTile(None, lanes, copies)
    if m % rows and not nest.repeatable:
        return RowTile(None, lanes, 1)
    plan.do(Split(id, rows, "exact" if m % rows == 0 else "overlap"), "tile of a transposing copy")
    plan.do(Upcast((*id, 1)), "lines of the strided side are used whole")
    return RowTile((*id, 0), lanes, copies)


def _line_copies(nest: Nest, lanes: int, n: int) -> int:
    """Vectors that fill a line of the results of a transposing copy: a line that is stored whole need not be read."""
    copies = max(1, LINE // nest.itemsize // lanes) if nest.itemsize >= 4 else 1
    return copies if n % (copies * lanes) == 0 else 1


def _transposed_loop(nest: Nest, lane: UOp) -> UOp | None:
    """The loop along which an access that is strided in the lanes is contiguous."""
    if any(nest.turns(frozenset(group)) > SHORT for group in nest.groups):
        return None
    for a in nest.accesses:
        if lane in a.loops and a.stride(lane) not in (0, 1):
            for r in nest.loops:
                if r.arg.kind is not AxisType.LOOP or r is lane:
                    continue
                if a.stride(r) == 1 and is_constant(r) and length(r) >= 2:
                    return r
    return None


def bands_last(plan: Plan, index: int, tile: RowTile, lane: Id) -> None:
    """All tiles of one band of lanes next to each other."""
    ids = [r.arg.id for r in plan.nest(index).loops if r.arg.kind is AxisType.LOOP]
    rows = next((i for i in ids if tile.loop is not None and i[: len(tile.loop)] == tile.loop), None)
    outer = lane[: -1 if tile.copies == 1 else -2] + (0,)
    if len(lane) > 1 and outer in ids and rows is not None and rows < outer:
        plan.do(Reorder((outer, rows)), "neighbours in memory follow each other")
