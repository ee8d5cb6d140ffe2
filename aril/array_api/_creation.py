"""Arrays from numbers, sequences, other arrays and descriptions; conversion of types."""

from __future__ import annotations

import math
from typing import Any

from aril.array_api import _dtypes as dt
from aril.array_api._array import Array, tensor_of
from aril.dtype import DType, dtypes, to_dtype
from aril.tensor import Tensor
from aril.uop import UOp


def _int_type(*values: int) -> DType:
    """The default integer type, or a wider one where a value needs it. OverflowError where none is wide enough."""
    for d in (dtypes.default_int(), dtypes.int64, dtypes.uint64):
        if all(d.min <= v <= d.max for v in values):
            return d
    raise OverflowError(f"{max(values, key=abs)} does not fit any integer type")


def _type_of(values: list[Any], what: str) -> DType:
    kinds = {type(v) for v in values}
    if not kinds:
        return dtypes.default_float()
    if kinds == {bool}:
        return dtypes.bool
    if kinds <= {bool, int}:
        return _int_type(*values)
    if kinds <= {bool, int, float}:
        return dtypes.default_float()
    other = next(iter(kinds - {bool, int, float}))
    raise TypeError(f"{what}: expected bools, ints or floats, not {other.__name__}")


def _check_fit(values: list[Any], kind: DType, what: str) -> None:
    for v in values:
        if isinstance(v, complex):
            raise TypeError(f"{what}: {v!r} is complex; complex types are left out here")
        if kind.kind in "iu" and isinstance(v, int) and not kind.min <= v <= kind.max:
            raise OverflowError(f"{what}: {v} does not fit {kind.name}")


def _flat(data: Any) -> list[Any]:
    level = [data]
    while any(isinstance(x, (list, tuple)) for x in level):
        level = [y for x in level for y in (x if isinstance(x, (list, tuple)) else [x])]
    return level


def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Array:
    """An array of a number, nested sequences of numbers or arrays, another array, or memory (buffer protocol, DLPack).

    `copy`: True for memory of its own, False for no copy (ValueError where one is needed), None for one where needed.
    Errors: TypeError for other objects, OverflowError for integers that do not fit.
    """
    kind = None if dtype is None else to_dtype(dtype)
    if isinstance(obj, (Array, Tensor)):
        old = tensor_of(obj, "asarray")
        new = old if device is None else old.to(device)
        new = new if kind is None else new.cast(kind)
        if new is old:
            if copy:
                return Array(old.clone())
            return obj if isinstance(obj, Array) else Array(obj)
        if copy is False:
            raise ValueError("asarray: another dtype or device needs a copy; leave out copy=False")
        return Array(new)
    if isinstance(obj, (bool, int, float, complex, list, tuple)):
        if copy is False:
            raise ValueError(f"asarray: a {type(obj).__name__} has no memory to share; leave out copy=False")
        values = _flat(obj)
        if any(isinstance(v, (Array, Tensor)) for v in values):
            return _stacked(obj, kind, device)
        values = [v.item() if hasattr(v, "item") else v for v in values]
        want = kind or _type_of(values, "asarray")
        _check_fit(values, want, "asarray")
        return Array(Tensor(_plain(obj), dtype=want, device=device))
    if copy is False or (hasattr(obj, "__dlpack__") and type(obj).__module__ != "numpy"):
        if not hasattr(obj, "__dlpack__"):
            raise ValueError(f"asarray: a {type(obj).__name__} is not shared without a copy; leave out copy=False")
        try:
            shared = Tensor.from_dlpack(obj, device=device, copy=copy)
        except BufferError as error:
            raise ValueError(f"asarray: {error}") from None
        if kind is not None and shared.dtype is not kind:
            if copy is False:
                raise ValueError("asarray: another dtype needs a copy; leave out copy=False")
            shared = shared.cast(kind)
        return Array(shared)
    import numpy as np

    raw = np.asarray(obj)
    if raw.dtype.kind not in "biuf":
        raise TypeError(f"asarray: expected numbers, sequences, arrays or memory of numbers, not {type(obj).__name__}")
    return Array(Tensor(raw, dtype=kind, device=device))


def _plain(data: Any) -> Any:
    if isinstance(data, (list, tuple)):
        return [_plain(x) for x in data]
    return data.item() if hasattr(data, "item") else data


def _stacked(obj: Any, kind: DType | None, device: Any) -> Array:
    if isinstance(obj, (list, tuple)):
        parts = [_stacked(x, None, device).tensor for x in obj]
        common = dt.promoted(*[p.dtype for p in parts])
        out = parts[0].cast(common).stack(*[p.cast(common) for p in parts[1:]])
    else:
        out = asarray(obj, device=device).tensor
    return Array(out if kind is None else out.cast(kind))


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Array:
    """An array over the memory of another library's (see `Tensor.from_dlpack`)."""
    return Array(Tensor.from_dlpack(x.tensor if isinstance(x, Array) else x, device=device, copy=copy))


def _shape(shape: Any, what: str) -> tuple[int, ...]:
    dims = (shape,) if hasattr(shape, "__index__") else tuple(shape)
    out = tuple([d.__index__() for d in dims])
    if any(d < 0 for d in out):
        raise ValueError(f"{what}: dimensions are at least 0, not {out}")
    return out


def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Array:
    """All elements equal to a number, which decides the type unless it is given."""
    if isinstance(fill_value, Array):
        fill_value = fill_value.tensor.item()
    kind = _type_of([fill_value], "full") if dtype is None else to_dtype(dtype)
    _check_fit([fill_value], kind, "full")
    return Array(Tensor.full(_shape(shape, "full"), fill_value, dtype=kind, device=device))


def zeros(shape: Any, *, dtype: Any = None, device: Any = None) -> Array:
    """All 0, of the default float type unless another is given."""
    return full(shape, 0, dtype=dtype or dtypes.default_float(), device=device)


def ones(shape: Any, *, dtype: Any = None, device: Any = None) -> Array:
    """All 1, of the default float type unless another is given."""
    return full(shape, 1, dtype=dtype or dtypes.default_float(), device=device)


def empty(shape: Any, *, dtype: Any = None, device: Any = None) -> Array:
    """Elements that are to be written; they are 0 until then."""
    return zeros(shape, dtype=dtype, device=device)


def _like(x: Any, what: str, dtype: Any, device: Any) -> tuple[Tensor, DType, Any]:
    t = tensor_of(x, what)
    return t, t.dtype if dtype is None else to_dtype(dtype), t._device if device is None else device


def full_like(x: Any, /, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Array:
    """All elements equal to a number, with the shape, type and device of x unless others are given."""
    t, kind, place = _like(x, "full_like", dtype, device)
    return full(t.shape, fill_value, dtype=kind, device=place)


def zeros_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> Array:
    """All 0, as `full_like`."""
    return full_like(x, 0, dtype=dtype, device=device)


def ones_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> Array:
    """All 1, as `full_like`."""
    return full_like(x, 1, dtype=dtype, device=device)


def empty_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> Array:
    """Elements that are to be written, as `full_like`."""
    return zeros_like(x, dtype=dtype, device=device)


def arange(start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None) -> Array:
    """start, start + step, .. before stop (0 to `start` where only one number is given). ValueError for a step of 0."""
    if stop is None:
        start, stop = 0, start
    if step == 0:
        raise ValueError("arange: the step is 0")
    n = max(-((start - stop) // step), 0) if _whole(start, stop, step) else max(math.ceil((stop - start) / step), 0)
    if dtype is not None:
        kind = to_dtype(dtype)
    elif _whole(start, stop, step):
        kind = _int_type(start, start + max(n - 1, 0) * step)
    else:
        kind = dtypes.default_float()
    if n == 0:
        return zeros((0,), dtype=kind, device=device)
    _check_fit([start, start + (n - 1) * step] if _whole(start, step) else [], kind, "arange")
    return Array(Tensor._of(UOp.iota(n), device)._affine(start, step, kind))


def _whole(*values: Any) -> bool:
    return all(isinstance(v, int) for v in values)


def linspace(
    start: Any, stop: Any, /, num: int, *, dtype: Any = None, device: Any = None, endpoint: bool = True
) -> Array:
    """`num` numbers evenly from start to stop, which is left out without `endpoint`. ValueError for num below 0."""
    if num < 0:
        raise ValueError(f"linspace: the number of elements is at least 0, not {num}")
    kind = dtypes.default_float() if dtype is None else to_dtype(dtype)
    if num == 0:
        return zeros((0,), dtype=kind, device=device)
    # In float64, where the distance of two numbers of a narrower type cannot overflow.
    out = Tensor.linspace(start, stop, num if endpoint else num + 1, dtype=dtypes.float64, device=device).cast(kind)
    return Array(out if endpoint else out[:num])


def eye(n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = None, device: Any = None) -> Array:
    """A matrix with 1 on the k-th diagonal, 0 elsewhere; square where one size is given."""
    m = n_rows if n_cols is None else n_cols
    _shape((n_rows, m), "eye")
    rows, columns = Tensor._of(UOp.iota(n_rows), device), Tensor._of(UOp.iota(m), device)
    hit = (columns.reshape(1, m) - rows.reshape(n_rows, 1)).eq(k)
    return Array(hit.cast(dtype or dtypes.default_float()))


def _matrix(x: Any, what: str) -> Tensor:
    t = tensor_of(x, what)
    if t.ndim < 2:
        raise ValueError(f"{what}: needs two axes at least, not shape {t.shape}")
    return t


def tril(x: Any, /, *, k: int = 0) -> Array:
    """The lower triangles of matrices, up to the k-th diagonal; 0 elsewhere."""
    return Array(_matrix(x, "tril").tril(k))


def triu(x: Any, /, *, k: int = 0) -> Array:
    """The upper triangles of matrices, from the k-th diagonal; 0 elsewhere."""
    return Array(_matrix(x, "triu").triu(k))


def meshgrid(*arrays: Any, indexing: str = "xy") -> list[Array]:
    """Coordinate matrices of coordinate vectors; "xy" has the first along the second axis, "ij" along the first."""
    if indexing not in ("xy", "ij"):
        raise ValueError(f"meshgrid: indexing is 'xy' or 'ij', not {indexing!r}")
    parts = [tensor_of(a, "meshgrid").flatten() for a in arrays]
    if len({p.dtype for p in parts}) > 1:
        raise ValueError("meshgrid: arrays of one type are expected; convert with astype")
    n = len(parts)
    order = list(range(n))
    if indexing == "xy" and n > 1:
        order[0], order[1] = 1, 0
    dims = [1] * n
    for p, axis in zip(parts, order, strict=True):
        dims[axis] = p.shape[0]
    shaped = [p.reshape(*[p.shape[0] if i == a else 1 for i in range(n)]) for p, a in zip(parts, order, strict=True)]
    return [Array(p.expand(*dims)) for p in shaped]


# --- types ---


def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Array:
    """x as `dtype`. With `copy`, never memory that is shared; x itself without, where nothing changes."""
    t, kind = tensor_of(x, "astype"), to_dtype(dtype)
    out = (t if device is None else t.to(device)).cast(kind)
    if out is t:
        return Array(t.clone()) if copy else (x if isinstance(x, Array) else Array(t))
    return Array(out)


def result_type(*arrays_and_dtypes: Any) -> DType:
    """The type that these arrays, types and numbers promote to. TypeError where the standard defines none."""
    kinds = [to_dtype(getattr(v, "dtype", v)) for v in arrays_and_dtypes if not isinstance(v, (bool, int, float))]
    if not kinds:
        raise TypeError("result_type: one argument at least is an array or a type")
    out = dt.promoted(*kinds)
    for v in arrays_and_dtypes:
        if isinstance(v, (bool, int, float)):
            family = "b" if isinstance(v, bool) else "i" if isinstance(v, int) else "f"
            if dt.family(out) != family and not (family == "i" and out.kind == "f"):
                raise TypeError(f"result_type: a {type(v).__name__} and {out.name} do not promote")
    return out


def broadcast_arrays(*arrays: Any) -> list[Array]:
    """The arrays at the shape that all broadcast to. ValueError where they do not."""
    from aril.mixin.base import broadcast_shape

    parts = [tensor_of(a, "broadcast_arrays") for a in arrays]
    shape = broadcast_shape(*[p.shape for p in parts], what="broadcast_arrays") if parts else ()
    return [Array(p._broadcast_to(shape)) for p in parts]


def broadcast_to(x: Any, /, shape: Any) -> Array:
    """x at `shape`. ValueError where it does not broadcast to it."""
    from aril.mixin.base import broadcast_shape

    t, dims = tensor_of(x, "broadcast_to"), _shape(shape, "broadcast_to")
    if broadcast_shape(t.shape, dims, what="broadcast_to") != dims:
        raise ValueError(f"broadcast_to: shape {t.shape} does not broadcast to {dims}")
    return Array(t._broadcast_to(dims))


__all__ = [
    "arange", "asarray", "astype", "broadcast_arrays", "broadcast_to", "empty", "empty_like", "eye",
    "from_dlpack", "full", "full_like", "linspace", "meshgrid", "ones", "ones_like", "result_type", "tril", "triu",
    "zeros", "zeros_like",
]  # fmt: skip
