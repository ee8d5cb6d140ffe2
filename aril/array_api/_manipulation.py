"""Functions that move elements: shapes, axes, joining, repeating, picking by position."""

from __future__ import annotations

from typing import Any

from aril.array_api import _dtypes as dt
from aril.array_api._array import Array, tensor_of
from aril.dtype import dtypes
from aril.tensor import Tensor


def _axis(axis: Any, ndim: int, what: str) -> int:
    at = axis.__index__()
    if not -ndim <= at < ndim:
        raise IndexError(f"{what}: axis {at} does not exist among {ndim} axes")
    return at % ndim if ndim else 0


def concat(arrays: Any, /, *, axis: int | None = 0) -> Array:
    """Arrays one after the other along an axis, flattened first where `axis` is None. Types promote."""
    parts = [tensor_of(a, "concat") for a in arrays]
    if not parts:
        raise ValueError("concat: no arrays are given")
    kind = dt.promoted(*[p.dtype for p in parts])
    parts = [(p.flatten() if axis is None else p).cast(kind) for p in parts]
    if parts[0].ndim == 0:
        raise ValueError("concat: arrays of shape () have no axis; use stack")
    at = _axis(0 if axis is None else axis, parts[0].ndim, "concat")
    return Array(parts[0].cat(*parts[1:], dim=at))


def stack(arrays: Any, /, *, axis: int = 0) -> Array:
    """Arrays of one shape along a new axis. Types promote."""
    parts = [tensor_of(a, "stack") for a in arrays]
    if not parts or any(p.shape != parts[0].shape for p in parts):
        raise ValueError(f"stack: needs arrays of one shape, not {[p.shape for p in parts]}")
    kind = dt.promoted(*[p.dtype for p in parts])
    at = _axis(axis, parts[0].ndim + 1, "stack")
    return Array(parts[0].cast(kind).stack(*[p.cast(kind) for p in parts[1:]], dim=at))


def unstack(x: Any, /, *, axis: int = 0) -> tuple[Array, ...]:
    """The slices of x along an axis."""
    t = tensor_of(x, "unstack")
    t = t.movedim(_axis(axis, t.ndim, "unstack"), 0)
    return tuple([Array(t[i]) for i in range(t.shape[0])])


def expand_dims(x: Any, /, axis: int = 0) -> Array:
    """x with a new axis of length 1 at `axis`. IndexError beyond the axes."""
    t = tensor_of(x, "expand_dims")
    return Array(t.unsqueeze(_axis(axis, t.ndim + 1, "expand_dims")))


def squeeze(x: Any, /, axis: Any) -> Array:
    """x without these axes, which have length 1 (ValueError for others)."""
    t = tensor_of(x, "squeeze")
    axes = [_axis(a, t.ndim, "squeeze") for a in (axis if isinstance(axis, tuple) else (axis,))]
    if any(t.shape[a] != 1 for a in axes):
        raise ValueError(f"squeeze: axes {axis} of shape {t.shape} are not all of length 1")
    return Array(t.reshape(*[n for i, n in enumerate(t.shape) if i not in axes]))


def flip(x: Any, /, *, axis: Any = None) -> Array:
    """x reversed along these axes; along all where `axis` is None."""
    t = tensor_of(x, "flip")
    axes = range(t.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    at = [_axis(a, t.ndim, "flip") for a in axes]
    return Array(t.flip(*at) if at else t)


def moveaxis(x: Any, source: Any, destination: Any, /) -> Array:
    """x with the axes `source` at the places `destination`; the others keep their order."""
    t = tensor_of(x, "moveaxis")
    a = [_axis(v, t.ndim, "moveaxis") for v in (source if isinstance(source, tuple) else (source,))]
    b = [_axis(v, t.ndim, "moveaxis") for v in (destination if isinstance(destination, tuple) else (destination,))]
    if len(a) != len(b) or len(set(a)) != len(a) or len(set(b)) != len(b):
        raise ValueError(f"moveaxis: {source} and {destination} are not as many different axes")
    order = [i for i in range(t.ndim) if i not in a]
    for place, axis in sorted(zip(b, a, strict=True)):
        order.insert(place, axis)
    return permute_dims(x, tuple(order))


def permute_dims(x: Any, /, axes: tuple[int, ...]) -> Array:
    """x with its axes in this order. ValueError where an axis is missing."""
    t = tensor_of(x, "permute_dims")
    order = [_axis(a, t.ndim, "permute_dims") for a in axes]
    if sorted(order) != list(range(t.ndim)):
        raise ValueError(f"permute_dims: {tuple(axes)} is no order of the {t.ndim} axes")
    return Array(t.permute(*order) if order else t)


def repeat(x: Any, repeats: Any, /, *, axis: int | None = None) -> Array:
    """Each element `repeats` times (a number, or one for each along the axis); x is flattened where axis is None."""
    t = tensor_of(x, "repeat")
    t = t.flatten() if axis is None else t
    at = 0 if axis is None else _axis(axis, t.ndim, "repeat")
    n = t.shape[at]
    if isinstance(repeats, (Array, Tensor)):
        counts = tensor_of(repeats, "repeat")
        if counts.dtype.kind not in "iu" or counts.ndim > 1 or (counts.ndim == 1 and counts.shape[0] not in (1, n)):
            raise ValueError(f"repeat: repeats are one integer or {n} of them, not {counts.dtype.name} {counts.shape}")
        many = counts.reshape(-1).tolist()
    else:
        many = [repeats.__index__()]
    many = many * n if len(many) == 1 else many
    if any(m < 0 for m in many):
        raise ValueError("repeat: repeats are at least 0")
    places = [i for i, m in enumerate(many) for _ in range(m)]
    return Array(_along(t, places, at))


def _along(t: Tensor, places: list[int], axis: int) -> Tensor:
    if not places or t.numel() == 0:
        return Tensor.zeros(*[len(places) if i == axis else n for i, n in enumerate(t.shape)], dtype=t.dtype)
    index = Tensor(places, dtype=dtypes.int64, device=t._device)
    out: Tensor = t[(slice(None),) * axis + (index,)]
    return out


def tile(x: Any, repetitions: tuple[int, ...], /) -> Array:
    """x laid side by side as often as `repetitions` says along each axis; new axes come first."""
    t = tensor_of(x, "tile")
    times = tuple([r.__index__() for r in repetitions])
    rank = max(t.ndim, len(times))
    t = t.reshape(*(1,) * (rank - t.ndim), *t.shape)
    times = (1,) * (rank - len(times)) + times
    if 0 in times or t.numel() == 0:
        return Array(Tensor.zeros(*[n * r for n, r in zip(t.shape, times, strict=True)], dtype=t.dtype))
    return Array(t.repeat(*times) if rank else t)


def reshape(x: Any, /, shape: Any, *, copy: bool | None = None) -> Array:
    """x at another shape of as many elements; one dimension may be -1. ValueError where it does not fit."""
    t = tensor_of(x, "reshape")
    dims = tuple([d.__index__() for d in ((shape,) if hasattr(shape, "__index__") else shape)])
    if -1 in dims and t.numel() == 0:
        known = 1
        for d in dims:
            known *= d if d != -1 else 1
        if known == 0 or dims.count(-1) > 1:
            raise ValueError(f"reshape: the -1 in {dims} is not determined for shape {t.shape}")
        dims = tuple([0 if d == -1 else d for d in dims])
    out = t.reshape(*dims)
    return Array(out.clone() if copy else out)


def roll(x: Any, /, shift: Any, *, axis: Any = None) -> Array:
    """x with its elements moved on by `shift`, those beyond the end to the beginning; flattened where axis is None."""
    t = tensor_of(x, "roll")
    if t.numel() == 0 or t.ndim == 0:
        return Array(t)
    if axis is None:
        n = t.numel()
        return Array(t.flatten().roll(int(shift) % n, 0).reshape(*t.shape))
    axes = axis if isinstance(axis, tuple) else (axis,)
    shifts = shift if isinstance(shift, tuple) else (shift,) * len(axes)
    if len(shifts) != len(axes):
        raise ValueError(f"roll: {len(shifts)} shifts for {len(axes)} axes")
    for s, a in zip(shifts, axes, strict=True):
        at = _axis(a, t.ndim, "roll")
        t = t.roll(int(s) % t.shape[at], at)
    return Array(t)


# --- by position ---


def take(x: Any, indices: Any, /, *, axis: int | None = None) -> Array:
    """The elements at integer positions along an axis, which may be left out for one axis only."""
    t, i = tensor_of(x, "take"), tensor_of(indices, "take")
    if axis is None and t.ndim != 1:
        raise ValueError(f"take: an axis is needed for shape {t.shape}")
    if i.dtype.kind not in "iu" or i.ndim > 1:
        raise TypeError(f"take: positions are one axis of integers, not {i.dtype.name} {i.shape}")
    at = 0 if axis is None else _axis(axis, t.ndim, "take")
    if i.numel() == 0 or t.numel() == 0:
        return Array(Tensor.zeros(*t.shape[:at], *i.shape, *t.shape[at + 1 :], dtype=t.dtype))
    return Array(t[(slice(None),) * at + (i,)])


def take_along_axis(x: Any, indices: Any, /, *, axis: int = -1) -> Array:
    """out[.., i, ..] = x[.., indices[.., i, ..], ..]; the other axes broadcast."""
    from aril.mixin.base import broadcast_shape

    t, i = tensor_of(x, "take_along_axis"), tensor_of(indices, "take_along_axis")
    if i.dtype.kind not in "iu" or i.ndim != t.ndim:
        raise ValueError(f"take_along_axis: positions are integers of the rank of x, not {i.dtype.name} {i.shape}")
    at = _axis(axis, t.ndim, "take_along_axis")
    rest = broadcast_shape(
        *[tuple([1 if k == at else n for k, n in enumerate(v.shape)]) for v in (t, i)], what="take_along_axis"
    )
    t = t._broadcast_to(tuple([t.shape[at] if k == at else n for k, n in enumerate(rest)]))
    i = i._broadcast_to(tuple([i.shape[at] if k == at else n for k, n in enumerate(rest)]))
    if i.numel() == 0:
        return Array(Tensor.zeros(*i.shape, dtype=t.dtype))
    return Array(t.gather(at, i))


__all__ = [
    "concat", "expand_dims", "flip", "moveaxis", "permute_dims", "repeat", "reshape", "roll", "squeeze", "stack",
    "take", "take_along_axis", "tile", "unstack",
]  # fmt: skip
