"""Lowering of SCATTER: rows combined with values by position, in the order of the values.

In: a store of a SCATTER. Out: two nests over the same chunks. A chunk owns some rows: it fills them, then walks all
positions in order and takes the values whose position is one of its rows. No two chunks write one element and each
element is combined in one order, so neither threads nor chunks change a bit of the result, and repeated positions
need no atomics.
"""

from __future__ import annotations

from collections.abc import Sequence

from aril.ops import OpGroup, Ops
from aril.schedule.fuse import numel
from aril.schedule.lower import ZERO, Lowering, as_index, both, in_bounds, index_add, index_mul
from aril.uop import AxisType, UOp
from aril.uop.symbolic import simplify

# Nanoseconds: to fill an element, to go to a row, to add an element there, to ask whether a position is one's own.
_FILL_NS, _PLACE_NS, _ADD_NS, _STEP_NS = 0.15, 2.0, 0.2, 1.5
_CHUNK_NS, _MOST = 30_000, 64


def scatter_nests(state: Lowering, target: UOp, value: UOp) -> list[UOp]:
    """The nests of ``STORE(target, SCATTER(x, values, positions))``.

    Before: ``STORE(out, SCATTER(x, v, p; ADD))``. After: ``END(STORE(out[g*R + j, c], x[g*R + j, c]), g, j, c)`` and
    ``END(END(STORE(out[p[i], c], out[p[i], c] + v[i, c]), c), g, i, t)``, t a loop of one turn where p[i] is a row of
    chunk g, of none elsewhere.
    """
    x, values, positions = value.src
    rows, rest = target.shape[0], target.shape[1:]
    kept = x is target  # in place: what is not written stays as it is
    each = -(-rows // _chunks(value, kept)) if isinstance(rows, int) else rows
    count = -(-rows // each) if isinstance(rows, int) and isinstance(each, int) else 1  # none is left without rows
    chunk = state.new_range(count, AxisType.GLOBAL) if count > 1 else ZERO
    first = index_mul(chunk, each)
    left = index_add(UOp.integer(rows), index_mul(first, -1))
    mine = simplify(left.lesser(UOp.integer(each)))

    nests = []
    if not kept:
        row = state.new_range(mine, AxisType.LOOP) if count > 1 else _loop(state, rows)
        columns = [_loop(state, d) for d in rest]
        place = (simplify(UOp(Ops.ADD, (first, row))), *columns)
        fill = UOp(Ops.STORE, (state.target(target, place), state.value(x, place)))
        nests.append(_closed(fill, (chunk, row, *columns)))

    walk = tuple([_loop(state, d) for d in positions.shape])
    position = as_index(state.value(positions, walk))
    offset = index_add(position, index_mul(first, -1))
    gate = both(in_bounds(offset, mine), in_bounds(position, rows))
    turn = ZERO if gate is None else state.new_range(_one_if(gate), AxisType.LOOP)
    columns = [_loop(state, d) for d in rest]
    address = state.target(target, (position, *columns))
    new = state.value(values, (*walk, *columns))
    if turn is not ZERO:  # nothing is read or written where the turn is not taken
        memory = {u: u.after(turn) for u in new.toposort() if u.op in OpGroup.STORAGE and not u.is_variable}
        new = new.substitute(memory)
        address = UOp(Ops.INDEX, (address.src[0].after(turn), address.src[1]))
    if value.arg is not Ops.STORE:
        new = UOp(value.arg, (UOp(Ops.LOAD, (address,)), new))
    nests.append(_closed(_closed(UOp(Ops.STORE, (address, new)), columns), (chunk, *walk, turn)))
    return nests


def _chunks(value: UOp, kept: bool) -> int:
    """How many parts the rows are in: each is worth a thread's while, and all the walks over the positions together
    take no longer than half of what is done at them."""
    rows = value.shape[0]
    if not isinstance(rows, int):
        return 1
    size, walk = numel(value), max(1, numel(value.src[2]))
    row = size // max(1, rows)
    work = (0 if kept else size) * _FILL_NS + walk * (_PLACE_NS + row * _ADD_NS)
    return max(1, min(_MOST, rows, int(work / _CHUNK_NS), int(work / (2 * walk * _STEP_NS))))


def _loop(state: Lowering, size: object) -> UOp:
    one = isinstance(size, int) and size == 1
    return ZERO if one else state.new_range(size, AxisType.LOOP)  # type: ignore[arg-type]


def _one_if(gate: UOp) -> UOp:
    return UOp(Ops.WHERE, (gate, UOp.integer(1), ZERO))


def _closed(effect: UOp, loops: Sequence[UOp]) -> UOp:
    return effect.end(*[r for r in loops if r is not ZERO])
