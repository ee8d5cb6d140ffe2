"""Steps that put memory of the worker's own between a kernel's loops: packed operands and blocked reductions.

They are steps like those of `steps`, kernel form to kernel form; their panels are LOCAL buffers.
"""

from __future__ import annotations

from dataclasses import dataclass

from aril.codegen.accumulate import fresh_id, substitute_live
from aril.codegen.affine import add, linear, mul, split_gate
from aril.codegen.analysis import length
from aril.codegen.combines import identity
from aril.codegen.steps import Id, Step, operands_of, storages_of
from aril.ops import Ops
from aril.uop.args import AddrSpace, AxisType
from aril.uop.node import UOp

_TILE = (AxisType.UPCAST, AxisType.VECTOR)
# functions that become polynomials: dearer than a store and a load, with more constants than copies leave registers for
COSTLY = (Ops.EXP2, Ops.LOG2, Ops.SIN, Ops.POW, Ops.THREEFRY)


@dataclass(frozen=True)
class Stage(Step):
    """The elements of one operand that the loops `inner` touch are copied to a packed panel ahead of them.

    `operand` counts the LOADs of the kernel in order (`operands_of`); `inner` is the panel's layout, outermost loop
    first: the last one is contiguous. All loops that move the operand and are not in `inner` stay outside the copy.
    Needed: loops whose length is no other of them's (the panel has room for the most turns), and an operand that no
    nest writes.
    """

    operand: int
    inner: tuple[Id, ...]

    def apply(self, sink: UOp) -> UOp:
        loads = operands_of(sink)
        self.need(0 <= self.operand < len(loads), f"the kernel has operands 0 to {len(loads) - 1}")
        load = loads[self.operand]
        loops = [self.loop(sink, i) for i in self.inner]
        self.need(
            all(r in load.ranges for r in loops), f"operand {self.operand} does not move with all of {self.inner}"
        )
        self.need(
            not any(q in loops for r in loops for q in r.src[0].ranges), "a loop's length depends on another's turn"
        )
        self.need(load.src[0].src[0].base not in storages_of(sink)[1], "the kernel writes the operand's buffer")
        place, size = place_of(loops)
        panel = UOp.buffer(free_slot(sink), load.dtype, size, AddrSpace.LOCAL)
        new, closing = _copy_loops(load, loops, fresh_id(sink))
        copy = panel.index(substitute_live(place, new)).store(substitute_live(load, new)).end(*closing)
        return sink.substitute({load: panel.after(copy).index(place).load()})


def place_of(loops: list[UOp]) -> tuple[UOp, int]:
    """(row-major index over `loops`, number of elements); of a variable length, with room for the most turns."""
    place: UOp = UOp.integer(0)
    size = 1
    for r in reversed(loops):
        place = add(mul(r, size), place)
        size *= length(r)
    return place, size


def _copy_loops(load: UOp, loops: list[UOp], start: int) -> tuple[dict[UOp, UOp], list[UOp]]:
    """(what each loop is in the copy, the loops of the copy). Loops that move together are one, steps that the kernel
    unrolls too; where lanes are strided and the innermost loop is contiguous, a tile of it is copied at once, to be
    transposed in registers."""
    inner, gate = split_gate(load.src[0].src[1])
    form = linear(inner, {})
    new: dict[UOp, UOp] = {}
    closing: list[UOp] = []
    ahead = next((i for i, r in enumerate(loops) if r.arg.kind in _TILE), len(loops)) if gate is None else 0
    plain = [r for i, r in enumerate(loops) if r.arg.kind not in (*_TILE, AxisType.UNROLL) or i < ahead]
    groups: list[list[UOp]] = []
    for r in plain:
        before = groups[-1][-1] if groups and gate is None else None
        if before is not None and loops.index(before) + 1 == loops.index(r):
            a, b = form.coefficient(before), form.coefficient(r)
            known = before.src[0].op is r.src[0].op is Ops.CONST
            if known and a is not None and b is not None and a == b * int(r.src[0].arg):
                groups[-1].append(r)
                continue
        groups.append([r])
    lanes = next((r for r in loops if r.arg.kind is AxisType.VECTOR), None)
    if gate is None:  # nearest elements last, whatever the panel's order
        groups.sort(key=lambda g: -abs(form.coefficient(g[-1]) or 0))
    for i, group in enumerate(groups):
        turns = 1
        for r in group:
            turns *= length(r)
        last = group[-1]
        tile = 1
        strided = lanes is not None and gate is None and form.coefficient(lanes) not in (0, 1, None)
        known = last.src[0].op is Ops.CONST
        if i == len(groups) - 1 and strided and known and form.coefficient(last) == 1:
            tile = next((f for f in (4, 2) if turns > f), 1)
        loop = UOp.range(-(-turns // tile) if known else last.src[0], (start + i, 0))
        closing.append(loop)
        value = loop
        if tile > 1:
            inside = UOp.range(tile, (start + i, 1), AxisType.UPCAST)
            closing.append(inside)
            first, most = mul(loop, tile), UOp.integer(turns - tile)  # the last tile begins earlier
            first = first if turns % tile == 0 else first.lesser(most)
            value = add(first, inside)
        # the whole group moves as its last loop does: the others stand still, and in the panel likewise
        new.update({r: UOp.integer(0) for r in group[:-1]})
        new[last] = value
    for k, r in enumerate([r for r in loops if r not in plain]):
        row = lanes is None and gate is None and r is loops[-1] and form.coefficient(r) == 1
        kind = AxisType.VECTOR if r.arg.kind is AxisType.VECTOR or row else AxisType.UPCAST
        new[r] = UOp.range(r.src[0], (start + len(groups) + k,), kind)
        closing.append(new[r])
    return new, closing


@dataclass(frozen=True)
class Block(Step):
    """The reduction loops `ids` go around the loops of their nest: sums of the rest are added up in a panel of the
    worker's own.

    What the other loops of the reduction touch in one turn can then be staged. Output loops in `keep` stay around them.
    Needed: one reduction over the loops, and other output loops (but for the launch index) whose length is no other of
    them's; the panel has room for the most turns.
    """

    ids: tuple[Id, ...]
    keep: tuple[Id, ...] = ()

    def apply(self, sink: UOp) -> UOp:
        loops = [self.loop(sink, i) for i in self.ids]
        reductions = [u for u in sink.toposort() if u.op is Ops.REDUCE and not set(loops).isdisjoint(u.src[1:])]
        self.need(len(reductions) == 1, f"{len(reductions)} reductions are over the loops {self.ids}, not one")
        old = reductions[0]
        self.need(set(loops) <= set(old.src[1:]), f"the reduction is not over all of {self.ids}")
        self.need(isinstance(old.arg[0], Ops), f"the reduction carries several values ({old.arg[0]})")
        nests = [s for s in sink.src if old in s.toposort()]
        self.need(len(nests) == 1 and nests[0].op is Ops.END, "the reduction lies in no nest, or in several")
        rest = [s for s in old.src[1:] if s not in loops]
        self.need(any(s.op is Ops.RANGE for s in rest), "the reduction has no other loop")
        kept = [self.loop(sink, i) for i in self.keep]
        outs = sorted(
            [r for r in old.ranges if r.arg.kind is not AxisType.GLOBAL and r not in kept],
            key=lambda r: (r.arg.kind, r.arg.id),
        )
        self.need(
            not any(q in outs for r in outs for q in r.src[0].ranges),
            "an output loop's length depends on another's turn",
        )
        self.need(all(r in nests[0].src[1:] for r in (*outs, *kept)), "a loop around the reduction is not of the nest")
        op, start = old.arg[0], fresh_id(sink)
        place, size = place_of(outs)
        panel = UOp.buffer(free_slot(sink), old.dtype, size, AddrSpace.LOCAL)
        first = {r: UOp.range(r.src[0], (start + i,), r.arg.kind) for i, r in enumerate(outs)}
        start += len(outs)
        second = {r: UOp.range(r.src[0], (start + i,), r.arg.kind) for i, r in enumerate(outs)}
        zero = UOp.const(old.dtype, identity(op, old.dtype))
        fresh = panel.after(*kept) if kept else panel  # cleared at every turn of the loops around
        clear = fresh.index(substitute_live(place, first)).store(zero).end(*first.values())
        around = {r: UOp.range(r.src[0], r.arg.id, AxisType.LOOP) for r in loops}
        operands = [s for s in (old.src[0], *rest) if s.op is not Ops.RANGE]
        inner = UOp(Ops.REDUCE, (*operands, *[s for s in rest if s.op is Ops.RANGE]), old.arg)
        inner = substitute_live(inner, {**second, **around})
        here = panel.after(clear, *around.values()).index(substitute_live(place, second))
        update = here.store(UOp(op, (here.load(), inner))).end(*second.values()).end(*around.values())
        return sink.substitute({old: panel.after(update).index(place).load()})


def free_slot(sink: UOp) -> int:
    """A number that no panel of the kernel has."""
    return 1 + max([u.arg.slot for u in sink.toposort() if u.op is Ops.BUFFER], default=-1)


@dataclass(frozen=True)
class Keep(Step):
    """What a reduction computes for every turn of loop `id` is kept in a panel for the output loop `again`, which
    computed it once more.

    before: END(STORE(out[j], EXP2(x[j]) / REDUCE(EXP2(x[k]), k)), j)
    after:  END(STORE(out[j], AFTER(panel, s)[j] / s), j)
            with s = REDUCE(AFTER(e, STORE(panel[k], e)), k) and e = EXP2(x[k])

    Needed: two loops of one length, known or not, and a function of some cost (`kept`) that both compute.
    """

    id: Id
    again: Id

    def apply(self, sink: UOp) -> UOp:
        k, j = self.loop(sink, self.id), self.loop(sink, self.again)
        found = kept(sink, k, j)
        self.need(found is not None, "the two loops have no function in common that one of them could keep")
        assert found is not None
        reduction, value, again = found
        panel = UOp.buffer(free_slot(sink), value.dtype, length(k), AddrSpace.LOCAL)
        stored = panel.index(k).store(value)
        body = reduction.src[0].substitute({value: value.after(stored)})
        new = reduction.with_src((body, *reduction.src[1:]))
        return sink.substitute({reduction: new, again: panel.after(new).index(j).load()})


def kept(sink: UOp, k: UOp, j: UOp) -> tuple[UOp, UOp, UOp] | None:
    """(reduction over `k`, a costly value in it, the same value at `j`) where the kernel computes both."""
    if k.src[0] is not j.src[0]:
        return None
    nodes = sink.toposort()
    for u in nodes:
        if u.op is not Ops.REDUCE or u.src[1:] != (k,) or not isinstance(u.arg[0], Ops):
            continue
        for value in reversed(u.src[0].toposort()):
            if value.op not in COSTLY or k not in value.ranges or j in value.ranges or value.dtype.itemsize < 4:
                continue
            again = substitute_live(value, {k: j})
            if again in nodes:
                return u, value, again
    return None
