"""Values on several devices: a tensor graph with UNSHARD in, the same graph with every node on one device out.

UNSHARD(MSTACK(parts), (axis, shape)) is one value whose part i lies on device i: consecutive stretches of `axis`, of
any lengths, or (axis None) the whole on each. `distribute` pushes UNSHARD to the roots: an operation on such values
becomes the same operation on each part, and data moves only where it must. Nothing is padded: parts differ in shape
where an axis does not divide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from aril.dtype import dtypes
from aril.ops import OpGroup, Ops
from aril.schedule import borders, collective, effects
from aril.schedule.collective import copy
from aril.schedule.parts import (
    MOVES,
    Layout,
    Parts,
    cut,
    gather,
    is_sharded_storage,
    memory_of,
    padded,
    split_as,
    split_over,
    starts,
    unshard,
)
from aril.schedule.prepare import IDENTITY, is_flat_view, is_view, split_bitcasts
from aril.uop import UOp
from aril.uop.function import inline
from aril.uop.shape import expand, movement_arg, reshape

Value = Any  # UOp: a value on one device or none; Parts; a tuple: the effects of a store, one a device


def layout_of(x: UOp) -> Layout | None:
    """Where `x` will lie when it is computed; None where it lies on one device."""
    if not isinstance(x.device, tuple):
        return None
    base = x
    while base.op is Ops.AFTER or base.op is Ops.CONTIGUOUS or base.op is Ops.DETACH:
        base = base.src[0]
    if base.op is Ops.UNSHARD:
        axis, parts = base.arg[0], base.src[0].src
        lengths = tuple([1 if axis is None else p.shape[axis] for p in parts])
        return Layout(base.src[0].device, axis, lengths)  # type: ignore[arg-type]
    m = Spread().of(split_bitcasts(inline(x)))
    if not isinstance(m, Parts):
        return Layout(x.device, None, (1,) * len(x.device))
    return Layout(m.devices, m.axis, m.lengths if m.axis is not None else (1,) * len(m.devices))


def distribute(sink: UOp) -> tuple[UOp, tuple[tuple[int, int | None], ...]]:
    """(`sink` with one root for every part, how its roots go together again).

    The latter is (how many parts, axis) of each root, 0 parts for a root on one device.

    Before: ``SINK(ADD(UNSHARD(MSTACK(a0, a1), (0, shape)), 1))``. After: ``SINK(ADD(a0, 1), ADD(a1, 1))``.
    """
    hints = sink.arg or ("",) * len(sink.src)
    if not any(isinstance(h, tuple) for h in hints) and not any(
        u.op is Ops.UNSHARD or (u.op is Ops.COPY and isinstance(u.arg, tuple)) for u in sink.toposort()
    ):
        return sink, ()
    spread = Spread()
    spread.count_readers(sink)
    roots: list[UOp] = []
    new_hints: list[str] = []
    plan: list[tuple[int, int | None]] = []
    for s, hint in zip(sink.src, hints, strict=True):
        spread.of(s)
        v = spread.settled(s)
        if isinstance(v, UOp) and isinstance(hint, tuple):
            v = Parts(hint, None, (v,) * len(hint))
        if isinstance(v, UOp):
            roots.append(v)
            new_hints.append(hint)
            plan.append((0, None))
            continue
        kept = _is_own_memory(s)
        roots += [_result(p, d, kept) for d, p in zip(v.devices, v.parts, strict=True)]
        new_hints += v.devices
        plan.append((len(v.parts), v.axis))
    return UOp(Ops.SINK, tuple(roots), tuple(new_hints)), tuple(plan)


def _is_own_memory(u: UOp) -> bool:
    """Whether `u` only rearranges the memory of a sharded tensor."""
    while u.op in OpGroup.MOVEMENT or u.op in (Ops.AFTER, Ops.CONTIGUOUS, Ops.DETACH):
        u = u.src[0]
    return is_sharded_storage(u)


def _result(part: UOp, device: str, kept: bool) -> UOp:
    """A part of a result, in whole storage.

    The tag tells a constant's parts apart, and keeps a copy of another tensor's memory.
    """
    if part.device is None and part.op is Ops.CONTIGUOUS:
        part = part.src[0]
    if part.device is None or (is_view(part) and not (kept and is_flat_view(part))):
        return UOp(Ops.CONTIGUOUS, (part,), tag=device)
    return part


def join_results(results: tuple[UOp, ...], plan: tuple[tuple[int, int | None], ...]) -> tuple[UOp, ...]:
    """The results of a distributed SINK as those of the user's: parts under UNSHARD."""
    out, at = [], 0
    for count, axis in plan:
        out.append(unshard(results[at : at + count], axis) if count else results[at])
        at += max(count, 1)
    return tuple(out)


class Spread:
    """One walk: what has become of each node."""

    def __init__(self) -> None:
        self.done: dict[UOp, Value] = {}
        self.readers: dict[UOp, int] = {}  # how many compute with a node's value; 2 stands for more
        self.costs: dict[tuple[UOp, int], int] = {}
        self.stretched: dict[tuple[UOp, borders.Wanted], tuple[UOp, ...]] = {}
        self.whole: dict[UOp, Parts] = {}  # values that have been brought together on every device

    def count_readers(self, sink: UOp) -> None:
        """Of each node; through what only rearranges or changes elements, but not through windows, which are made
        once."""
        for u in reversed(sink.toposort()):
            alike = u.op in _ALIKE
            for x in dict.fromkeys(u.src):
                self.readers[x] = min(self.readers.get(x, 0) + (self.readers.get(u, 1) if alike else 1), 2)

    def of(self, root: UOp) -> Value:
        done = self.done
        for u in root.toposort(lambda n: n not in done):
            if u not in done:
                done[u] = self.node(u)
        return done[root]

    def node(self, u: UOp) -> Value:
        if u.op is Ops.MSTACK:
            # a constant needs no copy: each device has it
            sources = [s.src[0] if s.op is Ops.COPY and self.done[s.src[0]].device is None else s for s in u.src]
            return Parts(u.device, None, tuple([self.one(s) for s in sources]))  # type: ignore[arg-type]
        if u.op is Ops.UNSHARD:
            return Parts(self.done[u.src[0]].devices, u.arg[0], self.done[u.src[0]].parts)
        if u.op is Ops.COPY:
            return self.copied(u)
        values = [self.done[s] for s in u.src]
        if not any(v.__class__ is not UOp for v in values):
            return u.with_src(tuple(values)) if u.src else u
        if (u.op in _THROUGH_SUMS and _is_pending(values[0])) or (
            u.op is Ops.ADD and all(_is_pending(v) and v.pending is Ops.ADD for v in values)
        ):
            return self.of_partial_results(u, values)
        for s in u.src:
            self.settled(s)
        rule = _RULES.get(u.op)
        found = None
        if u.op in OpGroup.MOVEMENT:
            found = self.moved(u)
        elif rule is not None:
            found = rule(self, u)
        return self.on_each(u) if found is None else found

    # --- partial results: combined as late as possible, for what is needed where it is needed may be less ---

    def of_partial_results(self, u: UOp, values: list[Value]) -> Parts:
        first: Parts = values[0]
        sources = [v.parts if isinstance(v, Parts) else (v,) * len(first.parts) for v in values]
        return replace(first, parts=tuple([u.with_src(src) for src in zip(*sources, strict=True)]))

    def settled(self, u: UOp) -> Value:
        """The value of `u`, combined on every device where it was partial results: below what only rearranges them, so
        that several views of a value cost one exchange."""
        chain = [u]
        while _is_pending(self.done[chain[-1]]) and chain[-1].op in _THROUGH_SUMS:
            chain.append(chain[-1].src[0])
        for n in reversed(chain):
            v = self.done[n]
            if not _is_pending(v):
                continue
            if n is chain[-1]:
                self.done[n] = v.with_parts(collective.allreduce(v.parts, v.pending, v.devices), None)
            else:
                below: Parts = self.done[n.src[0]]
                more = tuple([self.one(s) for s in n.src[1:]])
                self.done[n] = below.with_parts([n.with_src((p, *more)) for p in below.parts], None)
        return self.done[u]

    # --- ways to have a value ---

    def one(self, u: UOp) -> UOp:
        """The value of `u` as it is on one device."""
        v = self.done[u]
        if isinstance(v, Parts):
            raise NotImplementedError("a part of a sharded value that is itself sharded; move it to one device first")
        return v  # type: ignore[no-any-return]

    def on_each(self, u: UOp) -> Parts:
        """`u` computed as a whole on every device."""
        devices = next(v for v in [self.done[s] for s in u.src] if isinstance(v, Parts)).devices
        sources = [self.together(s, devices) for s in u.src]
        return Parts(
            devices, None, tuple([u.with_src(tuple([s.parts[i] for s in sources])) for i in range(len(devices))])
        )

    def together(self, u: UOp, devices: tuple[str, ...]) -> Parts:
        """The whole of `u` on every device. Gathered below what only rearranges or repeats it."""
        v = self.done[u]
        if isinstance(v, UOp):
            return Parts(devices, None, tuple([copy(v, d) for d in devices]))
        if v.devices != devices:
            raise ValueError(f"operands lie on {devices} and {v.devices}; shard them over the same devices")
        if v.axis is None:
            return v  # type: ignore[no-any-return]
        chain = [u]
        while chain[-1] not in self.whole and chain[-1].op in (Ops.RESHAPE, Ops.EXPAND, Ops.PERMUTE):
            chain.append(chain[-1].src[0])
        bottom = chain[-1]
        if bottom not in self.whole:
            below = self.done[bottom]
            self.whole[bottom] = (
                below if below.axis is None else below.with_parts([gather(below, d) for d in devices], None)
            )
        for n in reversed(chain[:-1]):
            self.whole[n] = Parts(
                devices, None, tuple([n.with_src((p, *n.src[1:])) for p in self.whole[n.src[0]].parts])
            )
        return self.whole[u]

    def laid_out(self, u: UOp, devices: tuple[str, ...], axis: int | None, lengths: Sequence[int]) -> Parts:
        """`u` in stretches of `lengths` along `axis`, each on its device."""
        v = self.done[u]
        if axis is None or not u.shape:
            return self.together(u, devices)
        if isinstance(v, UOp):
            cuts = [cut(v, axis, s, n) for s, n in zip(starts(lengths), lengths, strict=True)]
            return Parts(devices, axis, tuple([copy(c, d) for c, d in zip(cuts, devices, strict=True)]))
        if v.devices == devices and v.axis == axis and v.lengths == tuple(lengths):
            return v  # type: ignore[no-any-return]
        if v.devices == devices and v.axis is not None:
            wanted = borders.Wanted(devices, axis, borders.bounds_of(lengths))
            if v.axis == axis:
                return v.with_parts(borders.stretches(self, u, wanted), axis)  # type: ignore[no-any-return]
            if not _repeats(u):
                return v.with_parts(borders.exchange(v, wanted), axis)  # type: ignore[no-any-return]
        whole = self.together(u, devices)
        cuts = [cut(p, axis, s, n) for p, s, n in zip(whole.parts, starts(lengths), lengths, strict=True)]
        return whole.with_parts(cuts, axis)

    # --- rules ---

    def copied(self, u: UOp) -> Value:
        """COPY to one device gathers, to several replicates."""
        v = self.done[u.src[0]]
        if _is_pending(v):
            if not isinstance(u.arg, tuple):
                return collective.reduce_to(v.parts, v.pending, u.arg)
            v = self.settled(u.src[0])
        if isinstance(u.arg, tuple):
            if isinstance(v, UOp):
                return Parts(u.arg, None, tuple([copy(v, d) for d in u.arg]))
            if v.devices == u.arg:
                return self.together(u.src[0], u.arg)
            return Parts(u.arg, None, tuple([gather(v, d) for d in u.arg]))
        if isinstance(v, UOp):
            return u.with_src((v,)) if v.device is None else copy(v, u.arg)
        return gather(v, u.arg)

    def aligned(self, u: UOp) -> list[Parts]:
        """The operands of an elementwise node in one layout: that of the operand with most elements of its own."""
        shaped = [s for s in u.src if isinstance(self.done[s], Parts) and s.shape]
        devices = next(self.done[s].devices for s in u.src if isinstance(self.done[s], Parts))
        sharded = [s for s in shaped if self.done[s].axis is not None]
        axis, lengths = None, ()
        if sharded:
            main: Parts = self.done[max(sharded, key=_own_elements)]
            axis, lengths = main.axis, main.lengths  # type: ignore[assignment]
        return [self.laid_out(s, devices, axis, lengths) for s in u.src]

    def moved(self, u: UOp) -> Parts | None:
        m: Parts = self.done[u.src[0]]
        if not isinstance(m, Parts):
            return None
        more = tuple([self.one(s) for s in u.src[1:]])
        if m.axis is None:
            return m.with_parts([u.with_src((p, *more)) for p in m.parts], None)
        if u.op is Ops.SHEAR and m.axis == u.arg[0]:
            return borders.windows(self, u) if 0 not in u.shape else None
        arg = movement_arg(u.with_src((u.src[0], *more)))
        found = padded(m, m.axis, arg, u.arg[1]) if u.op is Ops.PAD else MOVES[u.op](m, m.axis, arg)
        if found is None and u.op is Ops.RESHAPE:
            return borders.reshaped(self, u)
        return None if found is None else m.with_parts(*found)


# A sum of such a rearrangement of each is the rearrangement of the sum.
_THROUGH_SUMS = frozenset(
    {Ops.RESHAPE, Ops.PERMUTE, Ops.SHRINK, Ops.FLIP, Ops.DETACH, Ops.CONTIGUOUS_BACKWARD, Ops.NOOP}
)


_ALIKE = (OpGroup.ELEMENTWISE | OpGroup.MOVEMENT | {Ops.DETACH, Ops.CONTIGUOUS_BACKWARD, Ops.NOOP}) - {Ops.SHEAR}


def _is_pending(v: Value) -> bool:
    return isinstance(v, Parts) and v.pending is not None


def _own_elements(u: UOp) -> int:
    """Elements below what only repeats or rearranges them: what gathering this value would move."""
    while u.op in (Ops.RESHAPE, Ops.EXPAND, Ops.PERMUTE, Ops.CAST, Ops.CONTIGUOUS):
        u = u.src[0]
    return math.prod([d if isinstance(d, int) else int(d.vmax) for d in u.shape])


def _repeats(u: UOp) -> bool:
    while u.op in (Ops.RESHAPE, Ops.EXPAND, Ops.PERMUTE):
        if u.op is Ops.EXPAND:
            return True
        u = u.src[0]
    return False


# --- other operations ---


def _elementwise(s: Spread, u: UOp) -> Parts:
    operands = s.aligned(u)
    first = next((o for o in operands if o.axis is not None), operands[0])
    return first.with_parts(
        [u.with_src(tuple([o.parts[i] for o in operands])) for i in range(len(first.parts))], first.axis
    )


def _reduced(s: Spread, u: UOp) -> Parts:
    m: Parts = s.done[u.src[0]]
    partial = [u.with_src((p,)) for p in m.parts]
    if m.axis is None or m.axis not in u.arg[1]:
        return m.with_parts(partial, m.axis)
    return Parts(m.devices, None, tuple(partial), u.arg[0])


def _stacked(s: Spread, u: UOp) -> Parts:
    operands = s.aligned(u)
    first = next((o for o in operands if o.axis is not None), operands[0])
    parts = [u.with_src(tuple([o.parts[i] for o in operands])) for i in range(len(first.parts))]
    return first.with_parts(parts, None if first.axis is None else first.axis + 1)


def _indexed(s: Spread, u: UOp) -> Parts | None:
    if len(u.src) != 2:
        return None
    x, where = (s.done[v] for v in u.src)
    devices = x.devices if isinstance(x, Parts) else where.devices
    if isinstance(where, Parts) and where.axis is not None:  # each device takes its own positions from the whole
        whole = s.together(u.src[0], devices)
        parts = [UOp(Ops.INDEX, (a, b)) for a, b in zip(whole.parts, where.parts, strict=True)]
        return where.with_parts(parts, where.axis)
    positions = s.together(u.src[1], devices)
    if not isinstance(x, Parts):
        x = s.together(u.src[0], devices)
    if x.axis == 0:
        return _from_rows(u, x, positions)
    parts = [UOp(Ops.INDEX, (a, b)) for a, b in zip(x.parts, positions.parts, strict=True)]
    return x.with_parts(parts, None if x.axis is None else x.axis - 1 + len(u.src[1].shape))


def _from_rows(u: UOp, x: Parts, positions: Parts) -> Parts | None:
    """Rows lie on the devices: each gives those it has, and zeros; their sum is the value."""
    if u.dtype.kind not in "fiu":
        return None
    shape = u.shape
    partial = []
    for p, at, s, n in zip(x.parts, positions.parts, starts(x.lengths), x.lengths, strict=True):
        zero = UOp.const(u.dtype, 0)
        if not n:
            partial.append(expand(reshape(zero, (1,) * len(shape)), shape))
            continue
        mine = (at >= s) & (at < s + n)
        rows = UOp(Ops.INDEX, (p, mine.where(at - s, 0)))
        seen = reshape(mine, (*mine.shape, *(1,) * (len(shape) - len(mine.shape))))
        partial.append(UOp(Ops.WHERE, (expand(seen, shape), rows, zero)))
    return Parts(x.devices, None, tuple(partial), Ops.ADD)


def _scattered(s: Spread, u: UOp) -> Parts | None:
    x, values, places = (s.done[v] for v in u.src)
    devices = next(v for v in (x, values, places) if isinstance(v, Parts)).devices
    before = len(u.src[2].shape)  # axes of `values` that count positions

    def on_each(xs: Sequence[UOp], vs: Parts, ps: Sequence[UOp], axis: int | None, pending: Ops | None = None) -> Parts:
        each = zip(xs, vs.parts, ps, strict=True)
        return Parts(devices, axis, tuple([u.with_src(src) for src in each]), pending)

    if isinstance(x, Parts) and x.axis == 0:  # positions count from each device's first row: others are outside
        ps = s.together(u.src[2], devices).parts
        kind = dtypes.int64 if ps[0].dtype.itemsize == 8 or ps[0].dtype is dtypes.uint32 else dtypes.int32
        ps = tuple([p.cast(kind) - first for p, first in zip(ps, starts(x.lengths), strict=True)])
        return on_each(x.parts, s.together(u.src[1], devices), ps, 0)
    columns = x if isinstance(x, Parts) and x.axis is not None else values
    if isinstance(columns, Parts) and columns.axis is not None and (columns is x or columns.axis >= before):
        axis = columns.axis if columns is x else columns.axis - before + 1
        xs = s.laid_out(u.src[0], devices, axis, columns.lengths)
        vs = s.laid_out(u.src[1], devices, axis + before - 1, columns.lengths)
        return on_each(xs.parts, vs, s.together(u.src[2], devices).parts, axis)
    some = next((v for v in (places, values) if isinstance(v, Parts) and v.axis is not None), None)
    if some is None or u.arg is Ops.STORE:
        return None
    # Each device combines its own values, the first beginning with what is there.
    start = s.together(u.src[0], devices).parts[0]
    empty = expand(reshape(UOp.const(u.dtype, IDENTITY[u.arg](u.dtype)), (1,) * len(u.shape)), u.shape)
    own_values, own_places = [s.laid_out(v, devices, some.axis, some.lengths) for v in u.src[1:]]
    return on_each([start, *[empty] * (len(devices) - 1)], own_values, own_places.parts, None, u.arg)


def _selected(s: Spread, u: UOp) -> UOp:
    return s.done[u.src[0]].parts[u.arg]  # type: ignore[no-any-return]


_RULES: dict[Ops, Callable[[Spread, UOp], Any]] = {
    **dict.fromkeys(OpGroup.ELEMENTWISE, _elementwise),
    **dict.fromkeys((Ops.CONTIGUOUS, Ops.CONTIGUOUS_BACKWARD, Ops.DETACH, Ops.NOOP), _elementwise),
    Ops.REDUCE: _reduced,
    Ops.STACK: _stacked,
    Ops.INDEX: _indexed,
    Ops.SCATTER: _scattered,
    Ops.STORE: effects.stored,
    Ops.AFTER: effects.after,
    Ops.MSELECT: _selected,
    Ops.CALL: effects.called,
}

__all__ = [
    "Layout",
    "distribute",
    "is_sharded_storage",
    "join_results",
    "layout_of",
    "memory_of",
    "split_as",
    "split_over",
]
