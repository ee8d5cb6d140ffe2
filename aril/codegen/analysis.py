"""What the heuristics ask of a kernel: its nests, their loops, and how every memory access moves with every loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from aril.codegen.affine import Linear, linear, split_gate
from aril.codegen.order import nodes_of
from aril.ops import OpGroup, Ops
from aril.uop.node import UOp

SHORT = 16  # turns of a reduction whose copies lie in the code
# Relative cost of an elementwise node on one element, in additions: polynomials are that long.
_SLOW = {
    Ops.EXP2: 12,
    Ops.LOG2: 16,
    Ops.SIN: 30,
    Ops.POW: 40,
    Ops.SQRT: 6,
    Ops.FDIV: 5,
    Ops.RECIPROCAL: 5,
    Ops.THREEFRY: 80,
}


@dataclass(frozen=True, eq=False)
class Access:
    """One load or store: `address` is the INDEX node, `loops` those it runs in."""

    node: UOp
    address: UOp
    form: Linear
    gated: bool

    @property
    def is_store(self) -> bool:
        return self.node.op is Ops.STORE

    @property
    def loops(self) -> frozenset[UOp]:
        return self.node.ranges

    @property
    def storage(self) -> UOp:
        return self.address.src[0].base

    @property
    def itemsize(self) -> int:
        return self.storage.dtype.itemsize

    def stride(self, loop: UOp) -> int | None:
        """Elements one turn of `loop` moves the address by; None where that is not one number."""
        return self.form.coefficient(loop)

    def reach(self, loop: UOp, lanes: int) -> str:
        """How far `lanes` turns of `loop` spread: "same", "contiguous", "near" (within a few vectors) or "far"."""
        stride = self.stride(loop)
        if stride is None:
            if sample(self.form, loop, 0) is None:  # memory decides at every turn
                return "far"
            at = [sample(self.form, loop, i) for i in range(lanes)]
            places = [int(a or 0) for a in at]
            span = max(places) - min(places) + 1
            steps = {b - a for a, b in zip(places, places[1:], strict=False)}
        else:
            span, steps = abs(stride) * (lanes - 1) + 1, {stride}
        if steps <= {0}:
            return "same"
        return "contiguous" if steps == {1} else ("near" if span <= 4 * lanes else "far")


def sample(form: Linear, loop: UOp, turn: int) -> int | None:
    """The value of an index at a turn of `loop`, all other loops at their first, variables at their greatest; None
    where memory decides."""
    total = form.const
    for atom, scale in form.terms.items():
        value = _sample_atom(atom, loop, turn)
        if value is None:
            return None
        total += scale * value
    return total


@lru_cache(1024)  # asked again for every candidate of a choice of steps
def _sample_atom(atom: UOp, loop: UOp, turn: int) -> int | None:
    values: dict[UOp, int] = {}
    for u in atom.toposort():
        src = [values[s] for s in u.src]
        if u.op is Ops.RANGE:
            values[u] = turn if u is loop else 0
        elif u.op is Ops.CONST:
            values[u] = int(u.arg)
        elif u.op in _SAMPLED and u.dtype.kind in "ib":
            values[u] = _SAMPLED[u.op](*src)
        elif loop in u.ranges:
            return None
        else:
            values[u] = int(u.vmax) if u.is_variable else 0
    return values[atom]


_SAMPLED: dict[Ops, Callable[..., int]] = {
    Ops.ADD: lambda a, b: a + b,
    Ops.SUB: lambda a, b: a - b,
    Ops.MUL: lambda a, b: a * b,
    Ops.NEG: lambda a: -a,
    Ops.MAX: max,
    Ops.FLOORDIV: lambda a, b: a // b if b else 0,
    Ops.FLOORMOD: lambda a, b: a % b if b else 0,
    Ops.CMPLT: lambda a, b: a < b,
    Ops.WHERE: lambda c, a, b: a if c else b,
}


@dataclass(eq=False)
class Nest:
    """One effect of the kernel with its loops, reductions and accesses."""

    effect: UOp
    loops: tuple[UOp, ...]
    reduces: list[UOp]
    accesses: list[Access]
    nodes: list[UOp] = field(repr=False, default_factory=list)

    def length(self, loop: UOp) -> int:
        """The number of turns, or the most there can be."""
        return length(loop)

    def turns(self, loops: frozenset[UOp]) -> int:
        out = 1
        for r in loops:
            out *= length(r)
        return out

    @cached_property
    def groups(self) -> list[tuple[UOp, ...]]:
        """The loops of reductions: one tuple for all that share them."""
        return list(dict.fromkeys(reduce_loops_of(u) for u in self.reduces))

    @cached_property
    def work(self) -> float:
        """Elementwise operations on values (not on indices), in additions, over all turns."""
        total = 0.0
        for u in self.nodes:
            if u.op in OpGroup.ELEMENTWISE and not u.dtype.weak:
                total += _SLOW.get(u.op, 1) * self.turns(u.ranges)
            elif u.op is Ops.REDUCE:
                total += self.turns(u.ranges | set(reduce_loops_of(u)))
        return total

    @cached_property
    def itemsize(self) -> int:
        """Bytes of the widest value."""
        sizes = [a.itemsize for a in self.accesses]
        sizes += [
            u.dtype.itemsize for u in self.nodes if u.op in OpGroup.ELEMENTWISE | {Ops.REDUCE} and not u.dtype.weak
        ]
        return max(sizes, default=4)

    def itemsize_in(self, loop: UOp | None) -> int:
        """Bytes of the widest value that changes with `loop` or is reduced over it: what lanes of that loop hold."""
        sizes = [a.itemsize for a in self.accesses if loop in a.loops]
        sizes += [
            u.dtype.itemsize
            for u in self.nodes
            if u.op in OpGroup.ELEMENTWISE | {Ops.REDUCE}
            and not u.dtype.weak
            and (loop in u.ranges or loop in u.src[1:])
        ]
        return max(sizes, default=self.itemsize)

    @cached_property
    def repeatable(self) -> bool:
        """Whether doing an element twice changes nothing: what is written is not read, nothing is added to memory."""
        read = {a.storage for a in self.accesses if not a.is_store and a.storage.op is not Ops.BUFFER}
        written = {a.storage for a in self.accesses if a.is_store}
        return not read & written and not any(u.op in (Ops.ATOMIC, Ops.CUSTOM) for u in self.nodes)


def length(loop: UOp) -> int:
    """The number of turns of a loop, or the most there can be."""
    end = loop.src[0]
    return int(end.arg) if end.op is Ops.CONST else max(1, int(end.vmax))


def is_constant(loop: UOp) -> bool:
    """Whether the number of turns is known."""
    return loop.src[0].op is Ops.CONST


def reduce_loops_of(u: UOp) -> tuple[UOp, ...]:
    """The loops a REDUCE closes."""
    return tuple([s for s in u.src[1:] if s.op is Ops.RANGE])


def nest_of(effect: UOp) -> Nest:
    """A nest: what one source of the kernel's SINK does."""
    memo: dict[UOp, Linear] = {}
    loops = tuple([s for s in effect.src[1:] if s.op is Ops.RANGE]) if effect.op is Ops.END else ()
    nodes = list(nodes_of(effect))
    accesses = []
    for u in nodes:
        if u.op in (Ops.LOAD, Ops.STORE) and u.src[0].op is Ops.INDEX and len(u.src[0].src) == 2:
            inner, gate = split_gate(u.src[0].src[1])
            accesses.append(Access(u, u.src[0], linear(inner, memo), gate is not None))
    return Nest(effect, loops, [u for u in nodes if u.op is Ops.REDUCE], accesses, nodes)
