"""A step that asks for memory ahead of its use: what a later turn of an outer loop reads is fetched in this turn.

In: a kernel after the steps that make its tile. Out: the same with a LOAD of hint "prefetch" wherever the operand's
loop of lines turns; its value is not used.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from aril.codegen.accumulate import substitute_live
from aril.codegen.affine import Linear, linear, mul, split_gate
from aril.codegen.analysis import length
from aril.codegen.order import nodes_of
from aril.codegen.panels import COSTLY
from aril.codegen.plan import Plan
from aril.codegen.steps import Id, Step, StepError, operands_of
from aril.ops import Ops
from aril.uop.args import AxisType
from aril.uop.node import UOp
from aril.uop.symbolic import simplify

LINE = 64  # bytes of a cache line
MOST = 8  # lines asked for at once
ROW = 16 * LINE  # bytes of a row by position that is worth asking for
WORK = 8  # multiply-adds there should be for each line
_INSIDE = (AxisType.UPCAST, AxisType.UNROLL, AxisType.VECTOR)


@dataclass(frozen=True)
class Prefetch(Step):
    """Operand number `operand` is asked for `turns` turns of loop `id` ahead (the last turns ask for the last one).

    Copies and lanes that lie in one line are one request; so are the turns of loops that move by less than a line.
    Needed: a loop that moves the operand, and an index without gate.
    """

    operand: int
    id: Id
    turns: int = 1

    def apply(self, sink: UOp) -> UOp:
        loads = operands_of(sink)
        self.need(0 <= self.operand < len(loads), f"the kernel has operands 0 to {len(loads) - 1}")
        load = loads[self.operand]
        loop = self.loop(sink, self.id)
        memory, (index, gate) = load.src[0].src[0], split_gate(load.src[0].src[1])
        self.need(loop in index.ranges and gate is None, f"operand {self.operand} does not move with it, or has a gate")
        size = load.dtype.itemsize
        form = linear(index, {})
        near = [r for r in index.ranges if r.arg.kind is AxisType.REDUCE and _bytes_a_turn(form, r, size) < LINE]
        still = {
            r: UOp.integer(0) for r in (*near, *[r for r in index.ranges if r.arg.kind in _INSIDE]) if r is not loop
        }
        spread = lines(form, size)
        self.need(len(spread) <= MOST, f"a turn touches {len(spread)} lines")
        back = UOp(Ops.ADD, (mul(loop, -1), UOp.integer(-self.turns)))  # of two numbers the less is -max(-a, -b)
        last = simplify(UOp(Ops.ADD, (mul(loop.src[0], -1), UOp.integer(1))))
        there = mul(UOp(Ops.MAX, (back, last)), -1)
        ahead = substitute_live(index, {**still, loop: there})
        room = int(memory.arg.size) - 1 - int(ahead.vmax)  # below 0 where bounds do not tell
        asked = [
            memory.index(ahead if b == 0 else UOp(Ops.ADD, (ahead, UOp.integer(b // size)))).load(hint="prefetch")
            for b in spread
            if b // size <= room or room < 0
        ]
        return sink.substitute({load: load.with_src((memory.after(*asked).index(load.src[0].src[1]), *load.src[1:]))})


def lines(form: Linear, size: int) -> list[int]:
    """How many bytes from the first each line lies that copies and lanes touch in one turn of the loops."""
    spread = [0]
    for r in sorted([r for r in form.terms if r.op is Ops.RANGE and r.arg.kind in _INSIDE], key=lambda r: r.arg.id):
        reach = sorted({start + _bytes_a_turn(form, r, size) * i for start in spread for i in range(length(r))})
        spread = [b for i, b in enumerate(reach) if i == 0 or b // LINE != reach[i - 1] // LINE]
    return spread


def _bytes_a_turn(form: Linear, loop: UOp, size: int) -> int:
    return abs(form.coefficient(loop) or 0) * size


def fetch_ahead(plan: Plan) -> None:
    """Prefetch what a contraction reads in lines that lie apart, from memory larger than the second-level cache.

    Hardware sees streams coming; a window's few columns in each of many channels are no stream. What one turn of the
    innermost loop that moves by a line reads has to fit the cache beside the panels.
    """
    reductions = [u for u in nodes_of(plan.sink) if u.op is Ops.REDUCE]
    if len(reductions) != 1:
        return
    reduction = reductions[0]
    for load in operands_of(reduction):
        number = operands_of(plan.sink).index(load)
        size, storage = load.dtype.itemsize, load.src[0].src[0]
        index, gate = split_gate(load.src[0].src[1])
        form = linear(index, {})
        steps = {r: _bytes_a_turn(form, r, size) for r in index.ranges}
        if gate is not None or storage.arg.size * size <= plan.renderer.l2 or not all(map(_is_constant, steps)):
            continue
        own = [r for r in reduction.src[1:] if r.op is Ops.RANGE and r in steps]
        if not any(r.arg.kind is AxisType.REDUCE and steps[r] >= LINE for r in own):
            continue
        outer = sorted([r for r in steps if r.arg.kind is AxisType.LOOP and length(r) > 1], key=lambda r: r.arg.id)
        loop = next((r for r in reversed(outer) if steps[r] >= LINE), outer[-1] if outer else None)
        if loop is None or not steps[loop]:
            continue
        inside = [r for r in steps if r.arg.kind is not AxisType.GLOBAL and (r not in outer or r.arg.id > loop.arg.id)]
        turn = min(steps[loop], size * prod([length(r) for r in inside])) if steps[loop] >= LINE else 0
        near = [r for r in own if r.arg.kind is AxisType.UNROLL or steps[r] < LINE]
        work = prod([length(r) for r in {*reduction.ranges, *near} if r.arg.kind is AxisType.UPCAST or r in near])
        if turn <= plan.renderer.l2 // 2 and len(lines(form, size)) * WORK <= work:
            try:
                plan.do(Prefetch(number, loop.arg.id, max(1, LINE // steps[loop])), "lines that lie apart")
            except StepError:
                continue


def fetch_picked(plan: Plan) -> None:
    """Prefetch rows that positions in memory name, one row ahead: hardware does not know where the next one is.

    Of rows of several lines, of memory larger than the second-level cache.
    """
    for number, load in enumerate(operands_of(plan.sink)):
        index, gate = split_gate(load.src[0].src[1])
        size, storage = load.dtype.itemsize, load.src[0].src[0]
        if gate is not None or storage.arg.size * size <= plan.renderer.l2:
            continue
        form = linear(index, {})
        picked = {r for atom in form.terms if any(u.op is Ops.LOAD for u in atom.toposort()) for r in atom.ranges}
        row = [r for r in index.ranges if form.coefficient(r) and r not in picked]
        turns = sorted([r for r in picked if r.arg.kind is AxisType.LOOP], key=lambda r: r.arg.id)
        if not all(map(_is_constant, [*row, *turns])) or any(r.arg.kind is AxisType.REDUCE for r in row):
            continue
        turns = [r for r in turns if length(r) > 1]
        if not turns:
            continue
        if ROW <= size * prod([length(r) for r in row]) <= plan.renderer.l2 // 8:
            try:
                plan.do(Prefetch(number, turns[-1].arg.id), "rows that positions name")
            except StepError:
                continue


def fetch_rows(plan: Plan) -> None:
    """Prefetch the next row in a costly reduction over a row that another has gone over, as in a softmax of a matrix
    larger than the last cache.

    Memory sets the pace of the first and is idle in the costly one, which finds the row in cache. (In a sum of squares
    it is not idle for long: prefetching there costs more than it gains.)
    """
    gone_over: set[UOp] = set()
    for u in [u for u in nodes_of(plan.sink) if u.op is Ops.REDUCE]:  # a reduction comes after those it needs
        own = frozenset(u.src[1:])
        costly = any(v.op in COSTLY and not own.isdisjoint(v.ranges) for v in nodes_of(u))
        for load in [load for load in operands_of(u) if not own.isdisjoint(load.ranges)]:
            storage = load.src[0].src[0]
            if costly and storage in gone_over and storage.arg.size * storage.dtype.itemsize > plan.renderer.l3:
                row = _row_loop(load, plan.renderer.l2 // 2)
                if row is not None:
                    plan.do(Prefetch(operands_of(plan.sink).index(load), row.arg.id), "memory is idle in this pass")
                    return
            gone_over.add(storage)


def _row_loop(load: UOp, most: int) -> UOp | None:
    """The loop whose turns are rows of a few lines to `most` bytes that `load` goes over with its other loops."""
    index, gate = split_gate(load.src[0].src[1])
    form, size = linear(index, {}), load.dtype.itemsize
    loops = [r for r in form.terms if r.op is Ops.RANGE]
    rows = [r for r in loops if r.arg.kind is AxisType.LOOP and length(r) > 1]
    inside = [r for r in loops if r.arg.kind not in (AxisType.LOOP, AxisType.GLOBAL)]
    if gate is not None or not rows or not all(map(_is_constant, inside)):
        return None
    row = max(rows, key=lambda r: r.arg.id)
    bytes_ = size * prod([length(r) for r in inside])
    return row if ROW <= bytes_ <= min(most, _bytes_a_turn(form, row, size)) else None


def _is_constant(loop: UOp) -> bool:
    return loop.op is not Ops.RANGE or loop.src[0].op is Ops.CONST
