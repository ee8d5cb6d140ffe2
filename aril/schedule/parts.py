"""A value on several devices as the list of its parts: how it is cut, gathered, laid out anew, and moved.

In come parts and the argument of a movement; out go parts, or None where the value cannot stay in parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from aril.ops import OpGroup, Ops
from aril.schedule.collective import copy, join
from aril.schedule.prepare import is_flat_view
from aril.uop import UOp
from aril.uop.node import Shape, sint
from aril.uop.shape import expand, pad, reshape, shear, shrink


@dataclass(frozen=True)
class Parts:
    """A value on several devices: `parts[i]` on `devices[i]`; `axis` None: the whole value on each.

    With `pending`, the parts are partial results of the whole shape, and the value is all of them combined by it.
    """

    devices: tuple[str, ...]
    axis: int | None
    parts: tuple[UOp, ...]
    pending: Ops | None = None

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


def gather(m: Parts, device: str) -> UOp:
    """The whole value on `device`."""
    if m.axis is None:
        at = m.devices.index(device) if device in m.devices else 0
        return copy(m.parts[at], device)
    full = [p for p in m.parts if p.shape[m.axis] != 0] or [m.parts[0]]
    whole = join([copy(p, device) for p in full], m.axis)
    return whole if len(full) == 1 else UOp(Ops.CONTIGUOUS, (whole,))


# --- movement of a value sharded on axis `a`: (parts, axis), Parts, or None where it cannot stay sharded ---


def with_length(shape: Sequence[sint], axis: int, n: int) -> Shape:
    """`shape` with `n` elements on `axis`."""
    return (*shape[:axis], n, *shape[axis + 1 :])


def _reshaped(m: Parts, a: int, shape: Shape) -> Any:
    old = m.shape
    if not all(isinstance(d, int) for d in (*old, *shape)) or 0 in old:
        return None
    if sum(n != 0 for n in m.lengths) == 1 and shape:  # all of it on one device: any axis will do
        return [
            reshape(p, shape if n else with_length(shape, 0, 0)) for p, n in zip(m.parts, m.lengths, strict=True)
        ], 0
    before, inner = math.prod(old[:a]), math.prod(old[a + 1 :])
    for b in range(len(shape)):
        unit = math.prod(shape[b + 1 :])
        if math.prod(shape[:b]) == before and all(n * inner % unit == 0 for n in m.lengths):
            return [
                reshape(p, with_length(shape, b, n * inner // unit)) for p, n in zip(m.parts, m.lengths, strict=True)
            ], b
    return None


def _expanded(m: Parts, a: int, shape: Shape) -> Any:
    if shape[a] != m.shape[a]:
        return None
    return [expand(p, with_length(shape, a, n)) for p, n in zip(m.parts, m.lengths, strict=True)], a


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
    if a != by:
        return [shear(p, *arg) for p in m.parts], a
    return [
        shear(p, axis, by, step, offset + step * s, length) if n else empty_shear(p, axis, length)
        for p, s, n in zip(m.parts, starts(m.lengths), m.lengths, strict=True)
    ], a


def empty_shear(p: UOp, axis: int, length: int) -> UOp:
    """A shear of a part without elements."""
    return reshape(p, with_length(p.shape, axis, length))


def padded(m: Parts, a: int, pairs: Any, fill: Any) -> Any:
    """The first part gets what is before, the last what is after."""
    if not all(isinstance(v, int) for v in pairs[a]):
        return None
    last = len(m.parts) - 1
    out = []
    for i, p in enumerate(m.parts):
        own = (pairs[a][0] if i == 0 else 0, pairs[a][1] if i == last else 0)
        out.append(pad(p, tuple([own if k == a else pair for k, pair in enumerate(pairs)]), fill))
    return out, a


MOVES: dict[Ops, Callable[[Parts, int, Any], Any]] = {
    Ops.RESHAPE: _reshaped,
    Ops.EXPAND: _expanded,
    Ops.PERMUTE: _permuted,
    Ops.FLIP: _flipped,
    Ops.SHRINK: _shrunk,
    Ops.SHEAR: _sheared,
}
