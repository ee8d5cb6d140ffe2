"""Windows that slide over an operand: a step that copies what they see, pads and all, to a panel of the worker's own.

Kernel form to kernel form. Neighbouring outputs of a convolution read the same elements at different terms of their
sums, each behind the conditions of a pad, and with a step of the window from places apart. In the panel an element
lies once, without conditions, and those of one remainder of the step lie together.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod

from aril.codegen.accumulate import fresh_id, substitute_live
from aril.codegen.affine import Linear, add, linear, mul, split_gate
from aril.codegen.analysis import Access, Nest, is_constant, length
from aril.codegen.panels import free_slot
from aril.codegen.steps import Id, Step, operands_of, storages_of
from aril.ops import OpGroup, Ops
from aril.uop.args import AddrSpace, AxisType
from aril.uop.node import UOp

STEPS = 4  # the greatest step of a window over a panel
COPIES = 8  # vectors of a panel's row that are copied by code of their own, without conditions where none hold


@dataclass(frozen=True)
class Axis:
    """An axis of an operand that a window slides over: position ``step*o + tap*k`` (from 0), of `size`, `unit` elements
    apart in memory."""

    o: UOp
    k: UOp
    step: int
    tap: int
    unit: int

    @property
    def size(self) -> int:
        return self.step * (length(self.o) - 1) + abs(self.tap) * (length(self.k) - 1) + 1

    @property
    def spread(self) -> int:
        """Elements of one remainder of this number lie together: turns of the longer loop read neighbours."""
        if self.step > 1:
            return self.step
        return self.tap if 1 < self.tap <= STEPS and length(self.k) > length(self.o) else 1

    @property
    def overlaps(self) -> bool:
        """Whether windows of neighbours see the same elements."""
        reach, others = abs(self.tap) * (length(self.k) - 1), self.step * (length(self.o) - 1)
        return self.step <= reach and abs(self.tap) <= others

    def taps(self) -> UOp:
        """``tap*k`` from 0 on."""
        first = -self.tap * (length(self.k) - 1) if self.tap < 0 else 0
        return add(mul(self.k, self.tap), first)

    def loops_at(self, position: UOp) -> dict[UOp, UOp]:
        """Values of the two loops for which the window is at `position`."""
        last = length(self.k) - 1
        if self.step == 1:
            return {self.o: position, self.k: UOp.integer(last if self.tap < 0 else 0)}
        return {self.o: UOp.integer(0), self.k: position if self.tap > 0 else add(mul(position, -1), last)}


def axis_of(index: UOp, o: UOp, k: UOp) -> Axis | None:
    """The axis that output loop `o` and reduction loop `k` move along together; None where they do anything else."""
    inner, gate = split_gate(index)
    memo: dict[UOp, Linear] = {}
    form = linear(inner, memo)
    a, b = form.coefficient(o), form.coefficient(k)
    if not a or not b or not is_constant(o) or not is_constant(k):
        return None
    unit = gcd(a, b) if a > 0 else -gcd(a, b)
    axis = Axis(o, k, a // unit, b // unit, unit)
    if axis.step > min(STEPS, length(k)) or axis.step > 1 and abs(axis.tap) != 1:
        return None
    for u in gate.toposort() if gate is not None else ():
        if u.op in OpGroup.COMPARISON:
            side = linear(UOp(Ops.SUB, u.src), memo)
            ca, cb = side.coefficient(o), side.coefficient(k)
            if ca is None or cb is None or ca * b != cb * a:
                return None
    return axis


@dataclass(frozen=True, eq=False)
class Sliding:
    """What a `Window` of an operand takes: pairs of loops, the rest of the reduction's loops, elements of the panel."""

    pairs: tuple[tuple[Id, Id], ...]
    others: tuple[Id, ...]
    slides: frozenset[UOp]
    size: int


def sliding(a: Access, nest: Nest, own: tuple[UOp, ...]) -> Sliding | None:
    """How windows slide over the operand of access `a`, where a panel would spare conditions or gathered lanes."""
    axes: list[Axis] = []
    for k in own:
        found = [axis_of(a.address.src[1], o, k) for o in nest.loops if k in a.loops and o in a.loops]
        # where windows do not overlap (channels of groups, of images) only the remainders of memory gain
        fit = [x for x in found if x is not None and (x.overlaps or abs(x.unit) == 1)]
        axis = next((x for x in fit if x.o not in [y.o for y in axes]), None)
        if axis is not None:
            axes.append(axis)
    axes.sort(key=lambda x: -abs(x.unit))
    others = [r for r in own if r in a.loops and r not in [x.k for x in axes]]
    if not axes or abs(axes[-1].unit) != 1 or not all(map(is_constant, others)):
        return None
    if not a.gated and axes[-1].spread == 1 or len(a.node.src) > 2:
        return None
    size = prod([*map(length, others), *[x.size for x in axes]])
    pairs = tuple([(x.o.arg.id, x.k.arg.id) for x in axes])
    return Sliding(pairs, tuple([r.arg.id for r in others]), frozenset(x.o for x in axes), size)


def panel_loops(a: Access) -> frozenset[UOp]:
    """The loops for each turn of which the panel that access `a` reads is filled."""
    below = a.address.src[0]
    return below.ranges if below.op is Ops.AFTER else frozenset()


def fill_cost(nest: Nest, a: Access, around: frozenset[UOp]) -> float:
    """Cycles to fill the panel that access `a` reads, once."""
    sources = [x for x in nest.accesses if not x.is_store and x.node in a.address.src[0].toposort()]
    vectors = prod([length(r) for r in sources[0].loops - around if r.arg.kind is not AxisType.VECTOR])
    gather = 1 if all((x.stride(r) or 0) == 1 for x in sources for r in x.loops if r.arg.kind is AxisType.VECTOR) else 8
    return vectors * (1.5 if any(x.gated for x in sources) else 1.0) * gather


@dataclass(frozen=True)
class Window(Step):
    """The elements of operand number `operand` that windows see are copied to a panel ahead of the loops.

    before: x[r + k - 1] where 0 <= r + k - 1 < n, else 0      (output r of n, term k of 3)
    after:  panel[r + k] with panel[v] = x[v - 1] where 0 <= v - 1 < n, else 0, for v of n + 2

    `pairs` are (output loop, loop of the reduction) that move along one axis each, the last along memory; the panel
    has a plane for every turn of the loops `others`. Its rows are filled by vectors of `lanes`. With a step s of the
    window on the last axis, or of the terms where they are more (the gradient of a weight), position s*q + r lies at
    r*rows + q. Needed: an operand that no nest writes.
    """

    operand: int
    pairs: tuple[tuple[Id, Id], ...]
    others: tuple[Id, ...]
    lanes: int

    def apply(self, sink: UOp) -> UOp:
        loads = operands_of(sink)
        self.need(0 <= self.operand < len(loads), f"the kernel has operands 0 to {len(loads) - 1}")
        load = loads[self.operand]
        found = [axis_of(load.src[0].src[1], self.loop(sink, o), self.loop(sink, k)) for o, k in self.pairs]
        axes = [a for a in found if a is not None]
        self.need(bool(axes) and len(axes) == len(found), "two loops of a pair do not move along one axis")
        others = [self.loop(sink, i) for i in self.others]
        self.need(all(is_constant(r) for r in others), "a loop has no constant length")
        self.need(load.src[0].src[0].base not in storages_of(sink)[1], "the kernel writes the operand's buffer")
        last, start = axes[-1], fresh_id(sink)
        new: dict[UOp, UOp] = {}
        closing: list[UOp] = []
        there, here = UOp.integer(0), UOp.integer(0)  # places in the panel: of what is copied, of what is read
        for i, r in enumerate(others):
            new[r] = UOp.range(r.src[0], (start + i,))
            closing.append(new[r])
            there, here = add(mul(there, length(r)), new[r]), add(mul(here, length(r)), r)
        start += len(others)
        for i, axis in enumerate(axes[:-1]):
            row = UOp.range(UOp.integer(axis.size), (start + i,))
            closing.append(row)
            new |= axis.loops_at(row)
            position = add(mul(axis.o, axis.step), axis.taps())
            there, here = add(mul(there, axis.size), row), add(mul(here, axis.size), position)
        rows, place, position, loops = _row(last, self.lanes, start + len(axes))
        new |= last.loops_at(position)
        value = substitute_live(load, new)
        width = last.spread * rows
        if width > last.size:
            value = _within(value, position, last.size)
        there, here = add(mul(there, width), place), add(mul(here, width), _read(last, rows))
        size = prod([*map(length, others), *[a.size for a in axes[:-1]], width])
        panel = UOp.buffer(free_slot(sink), load.dtype, size, AddrSpace.LOCAL)
        copy = panel.index(there).store(value).end(*closing, *loops)
        return sink.substitute({load: panel.after(copy).index(here).load()})


def _row(axis: Axis, lanes: int, start: int) -> tuple[int, UOp, UOp, list[UOp]]:
    """(places of a row for each remainder, the place of an element, its position, the loops over a row)."""
    rows = -(-axis.size // axis.spread)
    lanes = min(lanes, 1 << (rows.bit_length() - 1))
    turns = -(-rows // lanes)
    turn = UOp.range(UOp.integer(turns), (start, 0), AxisType.UPCAST if turns <= COPIES else AxisType.LOOP)
    lane = UOp.range(UOp.integer(lanes), (start, 1), AxisType.VECTOR)
    first, most = mul(turn, lanes), UOp.integer(rows - lanes)
    at = first if rows % lanes == 0 else first.lesser(most)
    q = add(at, lane)
    if axis.spread == 1:
        return rows, q, q, [turn, lane]
    remainder = UOp.range(UOp.integer(axis.spread), (start, 2), AxisType.UPCAST)
    return rows, add(mul(remainder, rows), q), add(mul(q, axis.spread), remainder), [turn, lane, remainder]


def _read(axis: Axis, rows: int) -> UOp:
    """The place in its row of what a window reads."""
    if axis.spread == 1:
        return add(axis.o, axis.taps())
    short, long = (axis.taps(), axis.o) if axis.step > 1 else (axis.o, axis.k)
    by = UOp.integer(axis.spread)
    return add(mul(UOp(Ops.FLOORMOD, (short, by)), rows), add(long, UOp(Ops.FLOORDIV, (short, by))))


def _within(value: UOp, position: UOp, size: int) -> UOp:
    """The LOAD `value`, of nothing at positions from `size` on."""
    index = value.src[0]
    index = index.with_src(
        (index.src[0], index.src[1].valid(UOp(Ops.CMPLT, (position, UOp.integer(size)))), *index.src[2:])
    )
    return value.with_src((index, *(value.src[1:] or (value.const_like(0),))))
