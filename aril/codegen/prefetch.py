"""A step that asks for memory ahead of its use: what a later turn of an outer loop reads is fetched in this turn.

In: a kernel after the steps that make its tile. Out: the same with a LOAD of hint "prefetch" wherever the operand's
loop of lines turns; its value is not used.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from aril.codegen.accumulate import substitute_live
from aril.codegen.affine import Linear, linear, mul, split_gate
from aril.codegen.order import nodes_of
from aril.codegen.plan import Plan
from aril.codegen.steps import Id, Step, StepError, operands_of
from aril.dtype import dtypes
from aril.ops import Ops
from aril.uop.args import AxisType
from aril.uop.node import UOp

LINE = 64  # bytes of a cache line
MOST = 8  # lines asked for at once
ROW = 16 * LINE  # bytes of a row by position that is worth asking for
WORK = 8  # multiply-adds there should be for each line
_INSIDE = (AxisType.UPCAST, AxisType.UNROLL, AxisType.VECTOR)


@dataclass(frozen=True)
class Prefetch(Step):
    """Operand number `operand` is asked for `turns` turns of loop `id` ahead (the last turns ask for the last one).

    Copies and lanes that lie in one line are one request; so are the turns of loops that move by less than a line.
    Needed: a loop of constant length that moves the operand, and an index without gate.
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
        self.need(loop.src[0].op is Ops.CONST, "the loop has no constant length")
        self.need(loop in index.ranges and gate is None, f"operand {self.operand} does not move with it, or has a gate")
        size = load.dtype.itemsize
        form = linear(index, {})
        near = [r for r in index.ranges if r.arg.kind is AxisType.REDUCE and _bytes_a_turn(form, r, size) < LINE]
        still = {r: _int(0) for r in (*near, *[r for r in index.ranges if r.arg.kind in _INSIDE]) if r is not loop}
        spread = lines(form, size)
        self.need(len(spread) <= MOST, f"a turn touches {len(spread)} lines")
        back = UOp(Ops.ADD, (mul(loop, -1), _int(-self.turns)))  # of two numbers the less is -max(-a, -b)
        there = mul(UOp(Ops.MAX, (back, _int(1 - int(loop.src[0].arg)))), -1)
        ahead = substitute_live(index, {**still, loop: there})
        room = int(memory.arg.size) - 1 - int(ahead.vmax)
        asked = [
            memory.index(ahead if b == 0 else UOp(Ops.ADD, (ahead, _int(b // size)))).load(hint="prefetch")
            for b in spread
            if b // size <= room
        ]
        return sink.substitute({load: load.with_src((memory.after(*asked).index(load.src[0].src[1]), *load.src[1:]))})


def lines(form: Linear, size: int) -> list[int]:
    """How many bytes from the first each line lies that copies and lanes touch in one turn of the loops."""
    spread = [0]
    for r in sorted([r for r in form.terms if r.op is Ops.RANGE and r.arg.kind in _INSIDE], key=lambda r: r.arg.id):
        reach = sorted({start + _bytes_a_turn(form, r, size) * i for start in spread for i in range(_length(r))})
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
        outer = sorted([r for r in steps if r.arg.kind is AxisType.LOOP and _length(r) > 1], key=lambda r: r.arg.id)
        loop = next((r for r in reversed(outer) if steps[r] >= LINE), outer[-1] if outer else None)
        if loop is None or not steps[loop]:
            continue
        inside = [r for r in steps if r.arg.kind is not AxisType.GLOBAL and (r not in outer or r.arg.id > loop.arg.id)]
        turn = min(steps[loop], size * prod([_length(r) for r in inside])) if steps[loop] >= LINE else 0
        near = [r for r in own if r.arg.kind is AxisType.UNROLL or steps[r] < LINE]
        work = prod([_length(r) for r in {*reduction.ranges, *near} if r.arg.kind is AxisType.UPCAST or r in near])
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
        turns = [r for r in turns if _length(r) > 1]
        if not turns:
            continue
        if ROW <= size * prod([_length(r) for r in row]) <= plan.renderer.l2 // 8:
            try:
                plan.do(Prefetch(number, turns[-1].arg.id), "rows that positions name")
            except StepError:
                continue


def _is_constant(loop: UOp) -> bool:
    return loop.op is not Ops.RANGE or loop.src[0].op is Ops.CONST


def _length(loop: UOp) -> int:
    return int(loop.src[0].arg)


def _int(value: int) -> UOp:
    return UOp.const(dtypes.weakint, value)
