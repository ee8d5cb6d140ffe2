"""Optimisation steps: each a small checked move on a kernel that keeps its meaning. A list of them is a schedule.

A step names loops by id, says what it needs (`StepError` otherwise), prints as the Python that makes it, and returns a
new kernel. Heuristics, searches and people only choose lists of steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from aril.codegen.accumulate import substitute_live
from aril.codegen.affine import LINEAR_OPS, Linear, add, linear, mul
from aril.codegen.apart import are_apart
from aril.codegen.combines import joined, taken
from aril.codegen.order import bounding, loops_in, nodes_around, nodes_of
from aril.dtype import dtypes
from aril.ops import Ops
from aril.uop.args import AxisType, RangeArg
from aril.uop.node import UOp
from aril.uop.pattern import Pat, Rules, V
from aril.uop.rewrite import rewrite
from aril.uop.symbolic import simplify

Id = tuple[int, ...]
TAILS = ("exact", "peel", "overlap", "ragged", "repeat", "masked")


class StepError(ValueError):
    """A step that does not fit the kernel: says which step, what it found, and what it needs."""


@dataclass(frozen=True)
class Step:
    """A move on a kernel. `apply` checks and returns the new SINK."""

    def apply(self, sink: UOp) -> UOp:
        raise NotImplementedError

    def need(self, holds: bool, message: str) -> None:
        """StepError with this step's text unless `holds`."""
        if not holds:
            raise StepError(f"{self}: {message}")

    def loop(self, sink: UOp, id: Id) -> UOp:
        """The loop of that id."""
        loops = loops_of(sink)
        self.need(id in loops, f"the kernel has no loop {id}; its loops are {', '.join(map(str, loops)) or 'none'}")
        return loops[id]


def loops_of(sink: UOp) -> dict[Id, UOp]:
    """Every loop of the kernel by its id, in order of id."""
    return {r.arg.id: r for r in sorted([r for e in sink.src for r in loops_in(e)], key=lambda r: r.arg.id)}


def reduce_loops(sink: UOp) -> set[UOp]:
    """The loops that some REDUCE closes."""
    return {s for u in nodes_of(sink) if u.op is Ops.REDUCE for s in u.src if s.op is Ops.RANGE}


def replace_loops(
    sink: UOp, mapping: dict[UOp, tuple[UOp, tuple[UOp, ...]]], known: dict[UOp, UOp] | None = None
) -> UOp:
    """Each loop becomes an expression, and the loops of that expression take its place where it was closed. `known`:
    what other expressions of these loops become."""
    done = {loop: new[0] for loop, new in mapping.items()} | (known or {})
    done |= {nest: nest for nest in sink.src if loops_in(nest).keys().isdisjoint(mapping)}
    return rewrite(sink, _LOOPS_CLOSED, mapping, once=True, done=done)


def _with_loops_closed(ctx: dict[UOp, tuple[UOp, tuple[UOp, ...]]], u: UOp, old: UOp) -> UOp:
    src: list[UOp] = []
    for before, s in zip(old.src, u.src, strict=True):
        src.extend(ctx[before][1] if before in ctx else (s,))
    return u.with_src(tuple(src))


_LOOPS_CLOSED = Rules([(Pat((Ops.END, Ops.REDUCE), name="u"), _with_loops_closed)], name="replace loops")


def retype(sink: UOp, loops: Iterable[UOp], kind: AxisType) -> UOp:
    """The same loops with another fate."""
    new = {r: r.replace(arg=RangeArg(r.arg.id, kind)) for r in loops}
    return replace_loops(sink, {r: (n, (n,)) for r, n in new.items()})


def copy_single_turns(sink: UOp) -> UOp:
    """Loops that turn once become copies, of which there is one: what lies in them is the same as elsewhere."""
    once = [r for r in loops_of(sink).values() if r.src[0].op is Ops.CONST and r.src[0].arg == 1]
    sink = retype(sink, [r for r in once if r.arg.kind is AxisType.LOOP], AxisType.UPCAST)
    return retype(sink, [r for r in once if r.arg.kind is AxisType.REDUCE], AxisType.UNROLL)


@dataclass(frozen=True)
class Split(Step):
    """Loop `id` of n turns becomes `id+(0,)` over tiles and `id+(1,)` of `factor` turns inside a tile.

    Where n is no multiple of `factor`: "peel" adds a nest of its own, loop `id+(2,)`, for the rest (any n, also a
    symbolic one); "overlap" lets the last tile begin earlier, at n - factor (outputs only; the kernel must not read
    what it writes; n surely >= factor); "ragged" ends the last tile's loop earlier (any n; the inner loop then has no
    constant length). For outputs of any n, in one nest whose inner loop has a constant length: "repeat" does the last
    turn again in place of those past the end (copies: each has an address of its own; the kernel must not read what it
    writes); "masked" loads nothing and stores nothing there (lanes of a vector; also those of a sum of products, to
    which factors that are not loaded add 0).
    """

    id: Id
    factor: int
    tail: str = "exact"

    def apply(self, sink: UOp) -> UOp:
        loop = self.loop(sink, self.id)
        end, f = loop.src[0], self.factor
        self.need(f >= 1, "the factor must be at least 1")
        self.need(self.tail in TAILS, f"the tail is one of {', '.join(TAILS)}")
        n = int(end.arg) if end.op is Ops.CONST else None
        if n is not None and n % f == 0:
            return self._exact(sink, loop, UOp.integer(n // f))
        if self.tail == "exact":
            self.need(n is not None, f"loop {self.id} has no constant length; use tail='peel'")
            self.need(False, f"{n} turns do not divide by {f}; use tail='peel' or 'overlap'")
        self.need(loop not in bounding(sink), f"loop {self.id} says how long another is, so it has no parts of its own")
        if self.tail == "overlap":
            return self._overlap(sink, loop)
        if self.tail == "ragged":
            return self._ragged(sink, loop)
        if self.tail in ("repeat", "masked"):
            return self._filled(sink, loop)
        return self._peel(sink, loop)

    def _part(self, loop: UOp, part: int, end: UOp) -> UOp:
        return UOp.range(end, (*self.id, part), loop.arg.kind)

    def _exact(self, sink: UOp, loop: UOp, tiles: UOp) -> UOp:
        outer, inner = self._part(loop, 0, tiles), self._part(loop, 1, UOp.integer(self.factor))
        by = (loop, UOp.integer(self.factor))
        parts = {UOp(Ops.FLOORDIV, by): outer, UOp(Ops.FLOORMOD, by): inner}
        return replace_loops(sink, {loop: (add(mul(outer, self.factor), inner), (outer, inner))}, parts)

    def _need_repeatable(self, sink: UOp, loop: UOp) -> None:
        self.need(loop not in reduce_loops(sink), "a reduction cannot take elements twice; use tail='peel'")
        read, written = storages_of(sink)
        self.need(
            not read & written, "the kernel reads a buffer it writes, so no element may be done twice; use tail='peel'"
        )

    def _overlap(self, sink: UOp, loop: UOp) -> UOp:
        end, f = loop.src[0], self.factor
        self.need(end.vmin >= f, f"overlapping tiles need a length of at least {f}, not {end.arg or end.vmin}")
        self._need_repeatable(sink, loop)
        tiles = simplify(UOp(Ops.FLOORDIV, (add(end, f - 1), UOp.integer(f))))
        outer, inner = self._part(loop, 0, tiles), self._part(loop, 1, UOp.integer(f))
        first, last = mul(outer, f), simplify(add(end, -f))
        start = first.lesser(last)
        return replace_loops(sink, {loop: (add(start, inner), (outer, inner))})

    def _ragged(self, sink: UOp, loop: UOp) -> UOp:
        end, f = loop.src[0], self.factor
        outer = self._part(loop, 0, simplify(UOp(Ops.FLOORDIV, (add(end, f - 1), UOp.integer(f)))))
        left = UOp(Ops.ADD, (end, UOp(Ops.MUL, (outer, UOp.integer(-f)))))
        inner = self._part(loop, 1, left.lesser(UOp.integer(f)))
        return replace_loops(sink, {loop: (add(mul(outer, f), inner), (outer, inner))})

    def _filled(self, sink: UOp, loop: UOp) -> UOp:
        end, f = loop.src[0], self.factor
        if self.tail == "repeat":
            self._need_repeatable(sink, loop)
        elif loop in reduce_loops(sink):
            self.need(adds_zeros(sink, loop), "what is not loaded would count in the reduction; use tail='peel'")
        outer = self._part(loop, 0, simplify(UOp(Ops.FLOORDIV, (add(end, f - 1), UOp.integer(f)))))
        inner = self._part(loop, 1, UOp.integer(f))
        turn = add(mul(outer, f), inner)
        inside = UOp(Ops.CMPLT, (turn, end))
        if self.tail == "repeat":
            last = add(end, -1)
            return replace_loops(sink, {loop: (UOp(Ops.WHERE, (inside, turn, last)), (outer, inner))})
        gated = rewrite(sink, _GATED, (loop, UOp(Ops.CMPLT, (loop, end))), once=True)
        return replace_loops(gated, {loop: (turn, (outer, inner))})

    def _peel(self, sink: UOp, loop: UOp) -> UOp:
        end, f = loop.src[0], self.factor
        tiles = simplify(UOp(Ops.FLOORDIV, (end, UOp.integer(f))))
        rest = simplify(UOp(Ops.FLOORMOD, (end, UOp.integer(f))))
        outer, inner, last = self._part(loop, 0, tiles), self._part(loop, 1, UOp.integer(f)), self._part(loop, 2, rest)
        main, tail = add(mul(outer, f), inner), add(simplify(mul(tiles, f)), last)
        parts = [(main, (outer, inner)), (tail, (last,))]
        if tiles.op is Ops.CONST and tiles.arg == 0:
            del parts[0]
        return flatten_effects(rewrite(sink, _PEELED, (loop, parts), once=True))


def _moves_with(loop: UOp, address: UOp) -> bool:
    return address.op is Ops.INDEX and loop in address.ranges and address.src[0].base.op in (Ops.PARAM, Ops.BUFFER)


def _gated_index(ctx: tuple[UOp, UOp], u: UOp) -> UOp | None:
    loop, held = ctx
    return u.with_src((u.src[0], u.src[1].valid(held), *u.src[2:])) if _moves_with(loop, u) else None


def _gated_load(ctx: tuple[UOp, UOp], u: UOp, address: UOp) -> UOp | None:
    return u.with_src((address, UOp.const(u.dtype, 0))) if _moves_with(ctx[0], address) else None


_GATED = Rules(
    [(Pat(Ops.INDEX, name="u"), _gated_index), (Pat(Ops.LOAD, (V("address"),), name="u"), _gated_load)],
    name="gate a loop",
)


def _peeled(ctx: tuple[UOp, list[tuple[UOp, tuple[UOp, ...]]]], u: UOp) -> UOp | None:
    loop, parts = ctx
    if loop not in u.src[1:]:
        return None
    others = [s for s in u.src if s is not loop]
    made = [_closed(u, others, loop, turn, loops) for turn, loops in parts]
    if len(made) == 1:
        return made[0]
    if u.op is Ops.REDUCE:
        return joined(u.arg[0], *made)
    outer = [s for s in others[1:] if s.op is Ops.RANGE]
    if outer and any(n.op is Ops.REDUCE and loop not in n.ranges for n in u.src[0].toposort()):
        # what is reduced for a row is so once, ahead of the row's results and of their rest
        made = [_closed(u, others[:1], loop, turn, loops) for turn, loops in parts]
        return UOp(Ops.END, (UOp.group(*made), *outer))
    return UOp.group(*made)


_PEELED = Rules(
    [
        (Pat((Ops.END, Ops.REDUCE), name="u"), _peeled),
        (Pat(Ops.GETTUPLE, (V("source"),), name="u"), lambda u, source: taken(u, source)),
    ],
    name="peel",
)


def _closed(u: UOp, others: list[UOp], loop: UOp, value: UOp, loops: tuple[UOp, ...]) -> UOp:
    operands = [substitute_live(s, {loop: value}) for s in others if s.op is not Ops.RANGE]
    count = len(operands)
    return u.with_src((*operands, *[s for s in others if s.op is Ops.RANGE], *loops)) if count else u


def flatten_effects(sink: UOp) -> UOp:
    """GROUPs among the sources of the SINK opened up."""
    src: list[UOp] = []
    stack = list(reversed(sink.src))
    while stack:
        u = stack.pop()
        if u.op is Ops.GROUP:
            stack.extend(reversed(u.src))
        else:
            src.append(u)
    return sink.with_src(tuple(src))


@dataclass(frozen=True)
class Merge(Step):
    """Loops `outer` and `inner` (of n turns) become one, named `outer`, of n times as many turns.

    Needed: every expression of either moves n times as far with a turn of the outer loop as with one of the inner.
    """

    outer: Id
    inner: Id

    def apply(self, sink: UOp) -> UOp:
        a, b = self.loop(sink, self.outer), self.loop(sink, self.inner)
        self.need(a is not b, "a loop cannot merge with itself")
        self.need(a.arg.kind is b.arg.kind, f"the loops differ in kind: {a.arg.kind} and {b.arg.kind}")
        self.need(can_merge(a, b, closers(sink), index_roots(sink)), "the two loops do not always move together")
        one = UOp.range(simplify(mul(a.src[0], b.src[0])), self.outer, a.arg.kind)
        return replace_loops(sink, {a: (UOp.integer(0), (one,)), b: (one, ())})


def closers(sink: UOp) -> dict[UOp, list[UOp]]:
    """The nests and reductions that close each loop."""
    out: dict[UOp, list[UOp]] = {}
    for u in nodes_of(sink):
        if u.op in (Ops.END, Ops.REDUCE):
            for s in u.src[1:]:
                if s.op is Ops.RANGE:
                    out.setdefault(s, []).append(u)
    return out


def index_roots(sink: UOp) -> list[Linear]:
    """The linear forms of all expressions of loops: addresses, gates and values."""
    memo: dict[UOp, Linear] = {}
    roots: dict[UOp, None] = {}
    for u in nodes_of(sink):
        if u.op in (Ops.END, Ops.REDUCE, Ops.SINK, Ops.RANGE) or (u.op in LINEAR_OPS and u.dtype.weak):
            continue
        for s in u.src:
            if s.dtype is dtypes.weakint and s.op is not Ops.CONST and s.op is not Ops.Invalid:
                roots[s] = None
    return [linear(r, memo) for r in roots]


def can_merge(a: UOp, b: UOp, closed: dict[UOp, list[UOp]], roots: list[Linear]) -> bool:
    """Whether loops a (outer) and b can become one: closed by the same nodes, and never moving apart."""
    size = b.src[0]
    if size.op is not Ops.CONST or closed.get(a) != closed.get(b) or b in a.src[0].ranges or a in b.src[0].ranges:
        return False
    for form in roots:
        ca, cb = form.coefficient(a), form.coefficient(b)
        if ca is None or cb is None or ca != cb * size.arg:
            return False
    return True


@dataclass(frozen=True)
class Reorder(Step):
    """The given loops of one nest change places: the first of `ids` becomes the outermost of them, and so on.

    A loop's place among those of its kind is its id, so after this step the ids (sorted) name the loops in the new
    order.
    """

    ids: tuple[Id, ...]

    def apply(self, sink: UOp) -> UOp:
        loops = [self.loop(sink, i) for i in self.ids]
        self.need(len(set(self.ids)) == len(self.ids), "a loop is named twice")
        self.need(len({r.arg.kind for r in loops}) == 1, "only loops of one kind change places; the kind decides first")
        new = {
            r: r.replace(arg=RangeArg(i, r.arg.kind))
            for r, i in zip(loops, sorted(self.ids), strict=True)
            if r.arg.id != i
        }
        return replace_loops(sink, {r: (n, (n,)) for r, n in new.items()})


@dataclass(frozen=True)
class Swap(Step):
    """Two loops change places."""

    first: Id
    second: Id

    def apply(self, sink: UOp) -> UOp:
        ids = (self.second, self.first) if self.first < self.second else (self.first, self.second)
        return Reorder(ids).apply(sink)


@dataclass(frozen=True)
class Retype(Step):
    """Loop `id` becomes of another kind; the subclasses name the kinds."""

    id: Id
    kind: ClassVar[AxisType]
    most: ClassVar[int]

    def apply(self, sink: UOp) -> UOp:
        loop = self.loop(sink, self.id)
        end = loop.src[0]
        self.need(loop.arg.kind in (AxisType.LOOP, AxisType.REDUCE), f"loop {self.id} is already {loop.arg.kind}")
        self.need(end.op is Ops.CONST, f"loop {self.id} has no constant length: split it first")
        self.need(
            end.op is not Ops.CONST or end.arg <= self.most,
            f"{end.arg} turns are more than {self.most}: split it first",
        )
        self.need(loop not in bounding(sink), f"loop {self.id} says how long another is: its turns do not go together")
        for u in nodes_around(sink, loop):
            kept = u.op is Ops.STORE and u.src[0].src[0].base.op is Ops.BUFFER and loop in u.ranges
            self.need(
                not kept or loop in u.src[0].ranges,
                f"copies of loop {self.id} would write the same elements of memory that each keeps for itself",
            )
        self.check(sink, loop)
        return retype(sink, (loop,), self.kind)

    def check(self, sink: UOp, loop: UOp) -> None:
        """What the kind needs beside a constant length."""


@dataclass(frozen=True)
class Upcast(Retype):
    """The body once for each turn, next to each other: outputs together; of a reduction, accumulators of their own."""

    kind: ClassVar[AxisType] = AxisType.UPCAST
    most: ClassVar[int] = 64


@dataclass(frozen=True)
class Unroll(Retype):
    """The body once for each turn, one after the other, into the same accumulator."""

    kind: ClassVar[AxisType] = AxisType.UNROLL
    most: ClassVar[int] = 64

    def check(self, sink: UOp, loop: UOp) -> None:
        self.need(loop in reduce_loops(sink), f"loop {self.id} is no reduction; use Upcast")


@dataclass(frozen=True)
class Vectorize(Retype):
    """The turns become the lanes of a vector."""

    kind: ClassVar[AxisType] = AxisType.VECTOR
    most: ClassVar[int] = 128

    def check(self, sink: UOp, loop: UOp) -> None:
        for u in nodes_around(sink, loop):
            others = [r.arg.id for r in u.ranges if r.arg.kind is AxisType.VECTOR] if loop in u.ranges else []
            self.need(
                not others, f"values of loop {self.id} already have the lanes of loop {others[0] if others else ''}"
            )


@dataclass(frozen=True)
class Chunk(Step):
    """Output loops become the launch index, shared among threads: their turns must be independent.

    Needed: a nest has all of `ids`, or none and no part in what nests that have them read and write: it gets chunks of
    its own (see `launch`).
    """

    ids: tuple[Id, ...]

    def apply(self, sink: UOp) -> UOp:
        loops = [self.loop(sink, i) for i in self.ids]
        apart: list[UOp] = []
        together: list[UOp] = []
        for effect in sink.src:
            missing = [r.arg.id for r in loops if effect.op is not Ops.END or r not in effect.src[1:]]
            self.need(
                len(missing) in (0, len(loops)),
                f"some nest has loops of {self.ids} but no loop {missing[0] if missing else ''}",
            )
            (apart if missing else together).append(effect)
        self.need(bool(together), f"no nest has the loops {self.ids} among its own")
        self.need(
            all(are_apart(one, other) for one in apart for other in together),
            f"some nest has no loop {self.ids[0]}, and reads or writes what those that have it write",
        )
        return retype(sink, loops, AxisType.GLOBAL)


def adds_zeros(sink: UOp, loop: UOp, gated: bool = True) -> bool:
    """Whether turns of `loop`, of a reduction, would add 0 if nothing were loaded in them: it is a sum of products of
    loads that all move with the loop, without conditions of their own unless `gated`."""
    over = [u for u in sink.toposort() if u.op is Ops.REDUCE and loop in u.src[1:]]
    for u in over:
        factors = list(u.src[0].src) if u.src[0].op is Ops.MUL else []
        for i, x in enumerate(factors):
            while x.op is Ops.CAST:
                x = x.src[0]
            factors[i] = x
        moved = all(_is_left_out(x, loop) and (gated or len(x.src) == 1) for x in factors)
        if u.arg[0] is not Ops.ADD or not factors or not moved or any(s.op is not Ops.RANGE for s in u.src[1:]):
            return False
    return bool(over)


def _is_left_out(x: UOp, loop: UOp) -> bool:
    """Whether `x` is a load that a condition on `loop` keeps from memory, and that gives 0 then."""
    zero = len(x.src) == 1 or x.op is Ops.LOAD and len(x.src) == 2 and x.src[1].op is Ops.CONST and x.src[1].arg == 0
    return x.op is Ops.LOAD and zero and _moves_with(loop, x.src[0])


def operands_of(sink: UOp) -> list[UOp]:
    """The LOADs of GLOBAL storage in the kernel, in the order of a walk: operands are numbered so."""
    return [
        u for u in nodes_of(sink) if u.op is Ops.LOAD and u.src[0].op is Ops.INDEX and u.src[0].src[0].op is Ops.PARAM
    ]


def storages_of(sink: UOp) -> tuple[set[UOp], set[UOp]]:
    """(storage read, storage written) of GLOBAL memory."""
    read, written = set(), set()
    for u in nodes_of(sink):
        if u.op is Ops.LOAD:
            read.add(u.src[0].src[0].base)
        elif u.op in (Ops.STORE, Ops.ATOMIC):
            written.add(u.src[0].src[0].base)
    return {b for b in read if b.op is Ops.PARAM}, {b for b in written if b.op is Ops.PARAM}
