"""Values on several devices: a tensor graph with UNSHARD in, the same graph with every node on one device out.

UNSHARD(MSTACK(parts), (axis, shape)) is one value whose part i lies on device i: consecutive stretches of `axis`, of any lengths, or
(axis None) the whole on each. `distribute` pushes UNSHARD to the roots: an operation on such values becomes the same operation on
each part, and data moves only where it must. Nothing is padded: parts differ in shape where an axis does not divide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from aril.ops import OpGroup, Ops
from aril.schedule import collective
from aril.schedule.collective import copy, join
from aril.schedule.prepare import is_flat_view, is_view
from aril.uop import UOp
from aril.uop.function import inline
from aril.uop.node import Shape, sint
from aril.uop.shape import expand, movement_arg, pad, reshape, shear, shrink


@dataclass(frozen=True)
class Parts:
    """A value on several devices: `parts[i]` on `devices[i]`; `axis` None: the whole value on each."""

    devices: tuple[str, ...]
    axis: int | None
    parts: tuple[UOp, ...]

    @property
    def device(self) -> tuple[str, ...]:
        """As of a node."""
        return self.devices

    @property
    def lengths(self) -> tuple[int, ...]:
        """Of each part along the axis."""
        return tuple([p.shape[self.axis] for p in self.parts])  # type: ignore[index,misc]

    @property
    def shape(self) -> Shape:
        """Of the whole value."""
        shape = self.parts[0].shape
        return shape if self.axis is None else (*shape[: self.axis], sum(self.lengths), *shape[self.axis + 1 :])

    def with_parts(self, parts: Sequence[UOp], axis: int | None) -> Parts:
        return Parts(self.devices, axis, tuple(parts))


class Layout(NamedTuple):
    """Where a value lies: `axis` None for whole copies; `lengths` of its parts along the axis."""

    devices: tuple[str, ...]
    axis: int | None
    lengths: tuple[int, ...]


Value = Any  # UOp: a value on one device or none; Parts; a tuple: the effects of a store, one a device


def starts(lengths: Sequence[int]) -> list[int]:
    """Where each part begins."""
    out, at = [], 0
    for n in lengths:
        out.append(at)
        at += n
    return out


def split(n: int, devices: int) -> tuple[int, ...]:
    """`n` elements over so many devices, as evenly as they go; the first have more."""
    return tuple([n // devices + (i < n % devices) for i in range(devices)])


def cut(x: UOp, axis: int, start: int, length: int) -> UOp:
    """`length` elements of `x` from `start` on along `axis`."""
    if x.op is Ops.EXPAND and x.src[0].shape[axis] == 1:  # repeated elements are all alike
        return expand(x.src[0], (*x.shape[:axis], length, *x.shape[axis + 1 :]))
    return shrink(x, tuple([(start, length) if i == axis else (0, d) for i, d in enumerate(x.shape)]))


def unshard(parts: Sequence[UOp], axis: int | None) -> UOp:
    """One value made of `parts`, each on a device of its own."""
    shape = Parts((), axis, tuple(parts)).shape
    return UOp(Ops.UNSHARD, (UOp(Ops.MSTACK, tuple(parts)),), (axis, shape))


def split_over(x: UOp, devices: tuple[str, ...], axis: int | None) -> UOp:
    """`x` over `devices`: a stretch of `axis` on each, or (None) a copy on each."""
    if axis is None:
        return unshard([UOp(Ops.COPY, (x,), d) for d in devices], None)
    n = x.shape[axis]
    if not isinstance(n, int):
        raise ValueError(f"shard: axis {axis} of shape {x.shape} is symbolic; shard another one")
    return split_as(x, Layout(devices, axis, split(n, len(devices))))


def split_as(x: UOp, layout: Layout) -> UOp:
    """`x` over the devices of `layout`, in stretches of its lengths."""
    if layout.axis is None:
        return split_over(x, layout.devices, None)
    where = zip(layout.devices, starts(layout.lengths), layout.lengths, strict=True)
    return unshard([UOp(Ops.COPY, (cut(x, layout.axis, s, n),), d) for d, s, n in where], layout.axis)


def is_sharded_storage(u: UOp) -> bool:
    """Whether `u` is memory on several devices, each part a whole storage."""
    return u.op is Ops.UNSHARD and all(is_flat_view(p) and p.base.op in OpGroup.STORAGE for p in u.src[0].src)


def memory_of(view: UOp) -> list[UOp]:
    """The storage nodes behind a view of memory, one a device; empty where it is no memory."""
    base = view.base
    if is_sharded_storage(base):
        return [p.base for p in base.src[0].src]
    return [base] if base.op is Ops.BUFFER else []


def layout_of(x: UOp) -> Layout | None:
    """Where `x` will lie when it is computed; None where it lies on one device."""
    if not isinstance(x.device, tuple):
        return None
    base = x
    while base.op is Ops.AFTER or base.op is Ops.CONTIGUOUS or base.op is Ops.DETACH:
        base = base.src[0]
    m = _Spread().of(base if base.op is Ops.UNSHARD else inline(x))
    if not isinstance(m, Parts):
        return Layout(x.device, None, (1,) * len(x.device))
    return Layout(m.devices, m.axis, m.lengths if m.axis is not None else (1,) * len(m.devices))


def distribute(sink: UOp) -> tuple[UOp, tuple[tuple[int, int | None], ...]]:
    """(`sink` with one root for every part, how its roots go together again: (how many parts, axis) of each; 0 for one of one device).

    Before: ``SINK(ADD(UNSHARD(MSTACK(a0, a1), (0, shape)), 1))``. After: ``SINK(ADD(a0, 1), ADD(a1, 1))``.
    """
    hints = sink.arg or ("",) * len(sink.src)
    if not any(isinstance(h, tuple) for h in hints) and not any(
        u.op is Ops.UNSHARD or (u.op is Ops.COPY and isinstance(u.arg, tuple)) for u in sink.toposort()
    ):
        return sink, ()
    spread = _Spread()
    roots: list[UOp] = []
    new_hints: list[str] = []
    plan: list[tuple[int, int | None]] = []
    for s, hint in zip(sink.src, hints, strict=True):
        v = spread.of(s)
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
    """A part of a result, in whole storage. The tag tells a constant's parts apart, and keeps a copy of another tensor's memory."""
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


class _Spread:
    """One walk: what has become of each node."""

    def __init__(self) -> None:
        self.done: dict[UOp, Value] = {}
        self.whole: dict[UOp, Parts] = {}  # values that have been brought together on every device

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
        rule = _RULES.get(u.op)
        found = None
        if u.op in OpGroup.MOVEMENT:
            found = self.moved(u)
        elif rule is not None:
            found = rule(self, u)
        return self.on_each(u) if found is None else found

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
        if v.devices == devices and v.axis is not None and not _repeats(u):
            return reshard(v, axis, lengths)
        whole = self.together(u, devices)
        cuts = [cut(p, axis, s, n) for p, s, n in zip(whole.parts, starts(lengths), lengths, strict=True)]
        return whole.with_parts(cuts, axis)

    # --- rules ---

    def copied(self, u: UOp) -> Value:
        """COPY to one device gathers, to several replicates."""
        v = self.done[u.src[0]]
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
        arg = movement_arg(u.with_src((u.src[0], *more)))
        found = _padded(m, m.axis, arg, u.arg[1]) if u.op is Ops.PAD else _MOVES[u.op](m, m.axis, arg)
        return None if found is None else m.with_parts(*found)


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


def gather(m: Parts, device: str) -> UOp:
    """The whole value on `device`."""
    if m.axis is None:
        at = m.devices.index(device) if device in m.devices else 0
        return copy(m.parts[at], device)
    full = [p for p in m.parts if p.shape[m.axis] != 0] or [m.parts[0]]
    whole = join([copy(p, device) for p in full], m.axis)
    return whole if len(full) == 1 else UOp(Ops.CONTIGUOUS, (whole,))


def reshard(m: Parts, axis: int, lengths: Sequence[int]) -> Parts:
    """A sharded value in other stretches: each device is sent the pieces it lacks."""
    assert m.axis is not None
    out = []
    held = list(zip(m.parts, starts(m.lengths), m.lengths, strict=True))
    for device, start, n in zip(m.devices, starts(lengths), lengths, strict=True):
        pieces = []
        for p, s, k in held:
            low, high = (max(s, start), min(s + k, start + n)) if axis == m.axis else (start, start + n)
            if low < high and k:
                pieces.append(copy(cut(p, axis, low - (s if axis == m.axis else 0), high - low), device))
        if not pieces:
            pieces = [copy(cut(m.parts[0], axis, 0, 0), device)]
        whole = join(pieces, m.axis)
        out.append(whole if len(pieces) == 1 else UOp(Ops.CONTIGUOUS, (whole,)))
    return m.with_parts(out, axis)


# --- movement of a value sharded on axis `a`: (parts, axis), Parts, or None where it cannot stay sharded ---


def _with(shape: Sequence[sint], axis: int, n: int) -> Shape:
    return (*shape[:axis], n, *shape[axis + 1 :])


def _reshaped(m: Parts, a: int, shape: Shape) -> Any:
    old = m.shape
    if not all(isinstance(d, int) for d in (*old, *shape)) or 0 in old:
        return None
    before, inner = math.prod(old[:a]), math.prod(old[a + 1 :])  # type: ignore[arg-type]
    for b in range(len(shape)):
        unit = math.prod(shape[b + 1 :])  # type: ignore[arg-type]
        if math.prod(shape[:b]) == before and all(n * inner % unit == 0 for n in m.lengths):  # type: ignore[arg-type]
            return [reshape(p, _with(shape, b, n * inner // unit)) for p, n in zip(m.parts, m.lengths, strict=True)], b
    return None


def _expanded(m: Parts, a: int, shape: Shape) -> Any:
    if shape[a] != m.shape[a]:
        return None
    return [expand(p, _with(shape, a, n)) for p, n in zip(m.parts, m.lengths, strict=True)], a


def _permuted(m: Parts, a: int, order: tuple[int, ...]) -> Any:
    return [UOp(Ops.PERMUTE, (p,), order) for p in m.parts], order.index(a)


def _flipped(m: Parts, a: int, axes: tuple[int, ...]) -> Any:
    parts = [UOp(Ops.FLIP, (p,), axes) for p in m.parts]
    if a in axes:
        parts = [copy(p, d) for p, d in zip(reversed(parts), m.devices, strict=True)]
    return parts, a


def _shrunk(m: Parts, a: int, pairs: Any) -> Any:
    start, length = pairs[a]
    if not isinstance(start, int) or not isinstance(length, int):
        return None
    out = []
    for p, s, n in zip(m.parts, starts(m.lengths), m.lengths, strict=True):
        low, high = max(start - s, 0), min(start + length - s, n)
        own = (low, high - low) if low < high else (0, 0)
        out.append(shrink(p, tuple([own if i == a else pair for i, pair in enumerate(pairs)])))
    return out, a


def _sheared(m: Parts, a: int, arg: tuple[int, int, int, int, int]) -> Any:
    axis, by, step, offset, length = arg
    if a == axis:
        return None
    if a != by:
        return [shear(p, *arg) for p in m.parts], a
    return [
        shear(p, axis, by, step, offset + step * s, length) if n else _empty_shear(p, axis, length)
        for p, s, n in zip(m.parts, starts(m.lengths), m.lengths, strict=True)
    ], a


def _empty_shear(p: UOp, axis: int, length: int) -> UOp:
    return reshape(p, _with(p.shape, axis, length))  # no elements either way


def _padded(m: Parts, a: int, pairs: Any, fill: Any) -> Any:
    if not all(isinstance(v, int) for v in pairs[a]):
        return None
    last = len(m.parts) - 1
    out = []
    for i, p in enumerate(m.parts):
        own = (pairs[a][0] if i == 0 else 0, pairs[a][1] if i == last else 0)
        out.append(pad(p, tuple([own if k == a else pair for k, pair in enumerate(pairs)]), fill))
    return out, a


_MOVES: dict[Ops, Callable[[Parts, int, Any], Any]] = {
    Ops.RESHAPE: _reshaped,
    Ops.EXPAND: _expanded,
    Ops.PERMUTE: _permuted,
    Ops.FLIP: _flipped,
    Ops.SHRINK: _shrunk,
    Ops.SHEAR: _sheared,
}


# --- other operations ---


def _elementwise(s: _Spread, u: UOp) -> Parts:
    operands = s.aligned(u)
    first = next((o for o in operands if o.axis is not None), operands[0])
    return first.with_parts(
        [u.with_src(tuple([o.parts[i] for o in operands])) for i in range(len(first.parts))], first.axis
    )


def _bitcast(s: _Spread, u: UOp) -> Parts | None:
    m: Parts = s.done[u.src[0]]
    if m.axis == len(u.shape) - 1 and u.dtype.itemsize != u.src[0].dtype.itemsize:
        return None
    return _elementwise(s, u)


def _reduced(s: _Spread, u: UOp) -> Parts:
    m: Parts = s.done[u.src[0]]
    partial = [u.with_src((p,)) for p in m.parts]
    if m.axis is None or m.axis not in u.arg[1]:
        return m.with_parts(partial, m.axis)
    return m.with_parts(collective.allreduce(partial, u.arg[0], m.devices), None)


def _stacked(s: _Spread, u: UOp) -> Parts:
    operands = s.aligned(u)
    first = next((o for o in operands if o.axis is not None), operands[0])
    parts = [u.with_src(tuple([o.parts[i] for o in operands])) for i in range(len(first.parts))]
    return first.with_parts(parts, None if first.axis is None else first.axis + 1)


def _indexed(s: _Spread, u: UOp) -> Parts | None:
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
    return x.with_parts(collective.allreduce(partial, Ops.ADD, x.devices), None)


def _stored(s: _Spread, u: UOp) -> Any:
    target = s.done[u.src[0]]
    if not isinstance(target, Parts):
        value = s.done[u.src[1]]
        return u.with_src((target, gather(value, target.device), *[s.one(g) for g in u.src[2:]]))
    if not all(_is_place(p) for p in target.parts):
        raise NotImplementedError(
            f"assignment to a view of shape {u.src[0].shape} that cuts across the axis a tensor is sharded on; assign to the whole "
            "tensor, or through a view that keeps that axis"
        )
    lengths = target.lengths if target.axis is not None else ()
    more = [s.laid_out(v, target.devices, target.axis, lengths) for v in u.src[1:]]
    return tuple([
        u.with_src((t, *[m.parts[i] for m in more])) if 0 not in t.shape else None for i, t in enumerate(target.parts)
    ])  # fmt: skip


def _is_place(u: UOp) -> bool:
    """Whether `u` is a view of storage, each element one place."""
    while u.op in (Ops.RESHAPE, Ops.PERMUTE, Ops.SHRINK, Ops.FLIP, Ops.BITCAST):
        u = u.src[0]
    return u.op in OpGroup.STORAGE or u.op is Ops.AFTER


def _after(s: _Spread, u: UOp) -> Any:
    m = s.done[u.src[0]]
    effects = [s.done[d] for d in u.src[1:]]
    if not isinstance(m, Parts):
        flat = [e for x in effects for e in (x if isinstance(x, tuple) else (x,)) if e is not None]
        return m.after(*flat)
    parts = []
    for i, p in enumerate(m.parts):
        own = [x[i] if isinstance(x, tuple) else x for x in effects]
        parts.append(
            UOp(Ops.AFTER, (p, *[e for e in own if e is not None]), tag=u.tag) if any(e is not None for e in own) else p
        )
    return m.with_parts(parts, m.axis)


def _selected(s: _Spread, u: UOp) -> UOp:
    return s.done[u.src[0]].parts[u.arg]  # type: ignore[no-any-return]


_RULES: dict[Ops, Callable[[_Spread, UOp], Any]] = {
    **dict.fromkeys(OpGroup.ELEMENTWISE, _elementwise),
    **dict.fromkeys((Ops.CONTIGUOUS, Ops.CONTIGUOUS_BACKWARD, Ops.DETACH, Ops.NOOP), _elementwise),
    Ops.BITCAST: _bitcast,
    Ops.REDUCE: _reduced,
    Ops.STACK: _stacked,
    Ops.INDEX: _indexed,
    Ops.STORE: _stored,
    Ops.AFTER: _after,
    Ops.MSELECT: _selected,
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
