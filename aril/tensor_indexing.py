"""`x[...]` and `x[...] = v` with NumPy's meaning. Mixed into Tensor.

Ints, slices, None and Ellipsis are views; integer arrays and tensors pick elements; bool masks ask the device which
elements they select (they compute the mask at once), unless a mask is assigned a value that fits everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from aril.config import CHECK_POSITIONS
from aril.device import DeviceError
from aril.dtype import dtypes
from aril.engine.capture import local
from aril.mixin.base import bound, broadcast_shape, check_part, dim_prod, dim_sub, dim_sum, need_tensors, same
from aril.ops import Ops
from aril.tensor_alive import is_writable_view
from aril.tensor_memory import make_writable, working_device
from aril.uop import UOp


class TensorIndexing:
    """Indexing. Positions known on the host are checked (IndexError); those in tensors are kept within the axis."""

    __slots__ = ()

    def __getitem__(self: Any, key: Any) -> Any:
        out, picks, front = _views(self, key)
        if not picks:
            return out
        axes = [a for a, _ in picks]
        positions = [p for _, p in picks]
        if axes != list(range(axes[0], axes[0] + len(axes))) or front:
            rest = [i for i in range(out.ndim) if i not in axes]
            out = out.permute(*axes, *rest)
            axes[0] = 0
        return out.multi_take(positions, axes[0])

    def __setitem__(self: Any, key: Any, value: Any) -> None:
        if isinstance(key, type(self)) and key.dtype is dtypes.bool and self._set_where(key, value):
            return
        view, picks, _ = _views(self, key, for_store=True)
        if view is None or picks:
            return self._set_picked(key, value)
        if not make_writable(self):
            self._own_storage()
            view = _views(self, key, for_store=True)[0]
        v = value if isinstance(value, type(self)) else view._unchanged(value, "indexing")
        v = v.cast(self.dtype)
        if v._device is not None and self._device is not None and v._device != self._device:
            v = v.to(self._device)
        if v.shape != view.shape:
            v = _fit(v, view.shape)
        if 0 not in view.shape:
            self._write(view.uop, v.uop)
        return None

    def _set_where(self: Any, mask: Any, value: Any) -> bool:
        """`x[mask] = value` as a selection, where the value fits wherever the mask may hold."""
        v = value if isinstance(value, type(self)) else self._unchanged(value, "indexing")
        rest = self.ndim - mask.ndim
        if mask.shape != self.shape[: mask.ndim]:
            raise IndexError(f"indexing: a mask of shape {mask.shape} does not fit the first axes of {self.shape}")
        if v.ndim > rest or (
            v.ndim and broadcast_shape(v.shape, self.shape[mask.ndim :], what="indexing") != self.shape[mask.ndim :]
        ):
            return False
        gate = mask.reshape(*mask.shape, *(1,) * rest)
        self._replace_values(gate.where(v.cast(self.dtype), self))
        return True

    def _set_picked(self: Any, key: Any, value: Any) -> None:
        v = (value if isinstance(value, type(self)) else self._unchanged(value, "indexing")).cast(self.dtype)
        place = working_device(self)
        if v._device is not None and place is not None and v._device != place:
            v = v.to(place)
        whole, picks, front = _views(self, key)
        k = len(picks)
        if whole is self and not front and [a for a, _ in picks] == list(range(k)):  # rows, as they lie
            place, rest = self._joint_place([p for _, p in picks], 0), self.shape[k:]
            v = _fit(v, (*place.shape, *rest))
            if v.numel():
                rows = self.reshape(dim_prod(self.shape[:k]), *rest)._scatter(v, place, Ops.STORE)
                self._replace_values(rows.reshape(self.shape))
            return
        total = self.numel()
        kind = dtypes.int32 if total <= dtypes.int32.max else dtypes.int64
        place = type(self).arange(total, dtype=kind, device=working_device(self)).reshape(self.shape)[key]
        v = _fit(v, place.shape).flatten()
        if v.numel():
            self._replace_values(self.flatten().scatter(0, place.flatten(), v).reshape(self.shape))

    def _replace_values(self: Any, new: Any) -> None:
        if is_writable_view(self.uop):
            self.assign(new)
        else:
            self._own_storage(new.uop)

    def _check_positions(self: Any, index: Any, n: Any, what: str) -> None:
        if not CHECK_POSITIONS.value or local.capture is not None or not isinstance(n, int):
            return
        try:
            values = index.numpy()
        except DeviceError:  # arguments of a function that is being traced have no values; other reasons come up later
            return
        wrong = (values >= n) | (values < (-n if index.dtype.kind == "i" else 0))
        if wrong.any():
            first = tuple([int(i[0]) for i in wrong.nonzero()])
            raise IndexError(
                f"{what}: position {int(values[first])}, entry {first} of the positions, is out of range for an axis "
                f"of length {n}, as {int(wrong.sum())} of {values.size} are"
            )

    # --- what needs the values to know the shape ---

    def nonzero(self: Any) -> Any:
        """The positions of the elements that are not zero, (count, axes). Computes this tensor.

        >>> Tensor([0, 5, 0, 7]).nonzero().tolist()
        [[1], [3]]
        """
        import numpy as np

        found = np.argwhere(self.numpy())
        kind = dtypes.default_int() if max(self.shape, default=0) <= dtypes.default_int().max else dtypes.int64
        return type(self)(found, dtype=kind, device=working_device(self))

    def masked_select(self: Any, mask: Any) -> Any:
        """The elements where the (broadcast) mask holds, as a vector. Computes the mask.

        >>> Tensor([1, 2, 3]).masked_select(Tensor([True, False, True])).tolist()
        [1, 3]
        """
        need_tensors("masked_select", mask=mask)
        shape = broadcast_shape(self.shape, mask.shape, what="masked_select") or (1,)
        return self._broadcast_to(shape)[mask._broadcast_to(shape)]


def _fit(v: Any, shape: tuple[Any, ...]) -> Any:
    """`v` broadcast to `shape`; leading axes of length 1 may be too many, as in NumPy's assignment."""
    while v.ndim > len(shape) and v.shape[0] == 1:
        v = v.reshape(v.shape[1:])
    if v.ndim > len(shape) or broadcast_shape(shape, v.shape, what="assignment") != tuple(shape):
        raise ValueError(f"assignment: values of shape {v.shape} do not fit the selected part of shape {tuple(shape)}")
    return (
        v._broadcast_to(tuple(shape))
        if v.shape
        else v._reshape((1,) * len(shape))._expand(tuple(shape))
        if shape
        else v
    )


def _items(x: Any, key: Any) -> list[Any]:
    """The key as a list with one entry an axis and None for new axes; masks become positions, Ellipsis slices."""
    np_kinds: tuple[Any, ...] = ()
    items = list(key) if isinstance(key, tuple) else [key]
    if any(type(k).__module__ == "numpy" for k in items) or any(isinstance(k, list) for k in items):
        import numpy as np

        np_kinds = (np.ndarray, np.generic)
        items = [
            np.asarray(k, dtype=None if k else np.int64) if isinstance(k, list) and not _holds_tensor(k) else k
            for k in items
        ]
    out: list[Any] = []
    for k in items:
        if isinstance(k, np_kinds) and k.dtype.kind == "b":
            if k.ndim == 0:
                raise IndexError("indexing: a single bool is no index here; use where()")
            out.extend(_mask_positions(x, k, len([i for i in out if i is not None and i is not Ellipsis])))
        elif isinstance(k, type(x)) and k.dtype is dtypes.bool and k.shape:
            out.extend(_mask_positions(x, k.numpy(), len([i for i in out if i is not None and i is not Ellipsis])))
        elif isinstance(k, np_kinds) and k.ndim == 0:
            out.append(int(k))
        elif isinstance(k, list):
            out.append(type(x)(k, device=working_device(x)))
        else:
            out.append(k)
    if sum(1 for k in out if k is Ellipsis) > 1:
        raise IndexError("indexing: only one Ellipsis can stand in an index")
    used = len([k for k in out if k is not None and k is not Ellipsis])
    if used > x.ndim:
        raise IndexError(f"indexing: {used} indices for the {x.ndim} axes of shape {x.shape}")
    fill = [slice(None)] * (x.ndim - used)
    at = next((i for i, k in enumerate(out) if k is Ellipsis), None)
    return out + fill if at is None else [*out[:at], *fill, *out[at + 1 :]]


def _holds_tensor(items: Any) -> bool:
    return any(_holds_tensor(i) if isinstance(i, list) else hasattr(i, "uop") for i in items)


def _mask_positions(x: Any, mask: Any, axis: int) -> list[Any]:
    if tuple(mask.shape) != tuple(map(bound, x.shape[axis : axis + mask.ndim])):
        raise IndexError(f"indexing: a mask of shape {mask.shape} does not fit axis {axis} on of shape {x.shape}")
    return list(mask.nonzero())


def _views(x: Any, key: Any, for_store: bool = False) -> tuple[Any, list[tuple[int, Any]], bool]:
    """(the view that ints, slices and None make, (axis, positions) pairs still to pick, whether picked axes come
    first).

    With `for_store`, (None, [], False) where no view without copies exists (a step that does not divide).
    """
    items = _items(x, key)
    picking = any(_is_array(k) for k in items)
    asked = _Asked()
    axis = 0
    for k in items:
        if k is None:
            asked.kept.append(None)
            asked.kinds += "v"
            continue
        n = x.shape[axis]
        if isinstance(k, slice):
            if not asked.take_slice(axis, n, *_slice(k, n, x.shape), for_store):
                return None, [], False
        elif _is_array(k):
            asked.pick(axis, n, _positions(x, k, n, axis))
        elif isinstance(k, UOp):
            if picking:
                raise IndexError("indexing: a symbolic position cannot be mixed with arrays of positions")
            check_part("indexing", k, dim_sum(k, 1), n, x.shape)
            asked.take_one(k)
        elif hasattr(k, "__index__") and not isinstance(k, (bool, type)):
            i = k.__index__()
            if isinstance(n, int) and not -n <= i < n:
                raise IndexError(f"indexing: position {i} is outside of axis {axis} of length {n} (shape {x.shape})")
            i = i + n if i < 0 else i
            if picking:
                asked.pick(axis, n, x._const(dtypes.int32, i))
            else:
                asked.take_one(i)
        else:
            raise IndexError(
                f"indexing: {k!r} of type {type(k).__name__} is no index; "
                "use ints, slices, None, Ellipsis, masks or integer arrays"
            )
        axis += 1
    where = {a: i for i, a in enumerate(asked.kept) if a is not None}
    return asked.view_of(x), [(where[a], p) for a, p in asked.picks], "v" in asked.kinds.strip("v")


@dataclass
class _Asked:
    """What a key asks of a value: a part of each axis, then flips and steps of more than one; positions to pick."""

    parts: list[tuple[Any, Any]] = field(default_factory=list)  # (start, length) of each axis
    flips: list[int] = field(default_factory=list)
    steps: list[tuple[int, int, int]] = field(default_factory=list)  # axis, step, length
    picks: list[tuple[int, Any]] = field(default_factory=list)  # axis, positions
    kept: list[int | None] = field(default_factory=list)  # the axis behind each of the result, None for a new one
    kinds: str = ""  # of the key's items: p for picked positions, v for a view

    def take_one(self, position: Any) -> None:
        """One position of an axis, which is gone."""
        self.parts.append((position, 1))
        self.kinds += "v"

    def pick(self, axis: int, n: Any, positions: Any) -> None:
        """Positions along an axis of length n, later."""
        self.parts.append((0, n))
        self.picks.append((axis, positions))
        self.kept.append(axis)
        self.kinds += "p"

    def take_slice(self, axis: int, n: Any, start: Any, length: Any, step: int, exact: bool) -> bool:
        """`length` elements of an axis from `start` on, `step` apart. With `exact`, False where they are no view of
        whole steps."""
        if step == 1 or isinstance(length, int) and length <= 1:
            self.parts.append((0 if same(length, 0) else start, length))
        else:
            low = start if step > 0 else start + (length - 1) * step
            size = abs(step)
            whole = length * size
            if step > 0 and low + whole <= n:
                self.parts.append((low, whole))
            elif step < 0 and size > 1 and low - (size - 1) >= 0:
                # reversed: the elements wanted are the first of each block counted from the back
                self.parts.append((low - (size - 1), whole))
            elif exact and size > 1:
                return False
            else:
                self.parts.append((low, (length - 1) * size + 1))
            if step < 0:
                self.flips.append(axis)
            if size > 1:
                self.steps.append((axis, size, length))
        self.kept.append(axis)
        self.kinds += "v"
        return True

    def view_of(self, x: Any) -> Any:
        """`x` seen so, the axes to pick from whole."""
        out = x._shrink(tuple(self.parts)) if self.parts else x
        if self.flips:
            out = out._flip(tuple(self.flips))
        for a, size, length in self.steps:
            out = out._every(a, size)
            if out.shape[a] != length:
                out = out._shrink(tuple([(0, length) if i == a else (0, d) for i, d in enumerate(out.shape)]))
        if self.kept == list(range(out.ndim)):
            return out
        return out._reshape(tuple([1 if a is None else out.shape[a] for a in self.kept]))


def _is_array(k: Any) -> bool:
    return (hasattr(k, "uop") and not isinstance(k, UOp)) or type(k).__module__ == "numpy" or isinstance(k, range)


def _positions(x: Any, k: Any, n: Any, axis: int) -> Any:
    """Integer positions as a tensor on the device of `x`; those known here are checked."""
    if hasattr(k, "uop"):
        if k.dtype.kind not in "iu":
            raise IndexError(f"indexing: positions are integers, not {k.dtype.name}")
        return k if k._device in (None, x._device) else k.to(working_device(x))
    import numpy as np

    array, n = np.asarray(k), bound(n)
    if array.size == 0:
        array = array.astype(np.int32)
    if array.dtype.kind not in "iu":
        raise IndexError(f"indexing: positions are integers, not {array.dtype}")
    if array.size and not -n <= array.min() <= array.max() < n:
        raise IndexError(
            f"indexing: positions {array.min()} to {array.max()} reach outside of axis {axis} of length {n}"
        )
    return type(x)(array.astype(np.int32 if n <= 2**31 else np.int64), device=working_device(x))


def _slice(k: slice, n: Any, shape: Any) -> tuple[Any, Any, int]:
    """(start, length, step) of a slice of an axis of length n; bounds may be symbolic where the step is 1."""
    if any(isinstance(v, UOp) for v in (k.start, k.stop, n)):
        if k.step not in (None, 1):
            raise IndexError(
                f"indexing: a slice of an axis of variable length (shape {shape}), or with bounds that vary, has step "
                f"1, not {k.step}; flip() reverses an axis"
            )
        start, stop = (0 if k.start is None else k.start), (n if k.stop is None else k.stop)
        start, stop = (dim_sum(n, v) if isinstance(v, int) and v < 0 else v for v in (start, stop))
        check_part("indexing", start, stop, n, shape)
        return start, dim_sub(stop, start), 1
    parts = []
    for v in (k.start, k.stop, k.step):
        if v is not None and not hasattr(v, "__index__"):
            raise IndexError(f"indexing: the bounds of a slice are integers, not {v!r}")
        parts.append(None if v is None else v.__index__())
    if parts[2] == 0:
        raise ValueError("indexing: the step of a slice is 0")
    start, stop, step = slice(*parts).indices(n)
    return start, len(range(start, stop, step)), step
