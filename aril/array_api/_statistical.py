"""Reductions, running totals, searching, sorting, sets and products of matrices."""

from __future__ import annotations

import builtins
import math
from collections import namedtuple
from collections.abc import Callable
from typing import Any

from aril.array_api import _dtypes as dt
from aril.array_api._array import Array, accepted, operands, tensor_of
from aril.array_api._manipulation import _axis
from aril.dtype import DType, dtypes, to_dtype
from aril.tensor import Tensor


def _axes(t: Tensor, axis: Any, what: str) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(t.ndim))
    out = tuple([_axis(a, t.ndim, what) for a in (axis if isinstance(axis, tuple) else (axis,))])
    if len(set(out)) != len(out):
        raise ValueError(f"{what}: an axis comes twice in {axis}")
    return out


def _summed_type(kind: DType, dtype: Any) -> DType:
    """What sums and products of `kind` are returned in: integers below the default's width in that width."""
    if dtype is not None:
        return to_dtype(dtype)
    wide = dtypes.default_int()
    if kind.kind == "i":
        return wide if kind.itemsize < wide.itemsize else kind
    if kind.kind == "u":
        own = dt.uint64 if wide.itemsize == 8 else dt.uint32
        return own if kind.itemsize < own.itemsize else kind
    return kind


def sum(x: Any, /, *, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Array:
    """The sum over these axes (all: None). Narrow integers give the default integer type, or its unsigned fellow."""
    t = accepted(tensor_of(x, "sum"), "sum", "numeric")
    kind = _summed_type(t.dtype, dtype)
    return Array(t.cast(kind).sum(_axes(t, axis, "sum"), keepdims, dtype=kind))


def prod(x: Any, /, *, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Array:
    """The product over these axes; types as in `sum`."""
    t = accepted(tensor_of(x, "prod"), "prod", "numeric")
    kind = _summed_type(t.dtype, dtype)
    return Array(t.cast(kind).prod(_axes(t, axis, "prod"), keepdims, dtype=kind))


def _cumulative(x: Any, axis: Any, dtype: Any, initial: bool, what: str, f: Callable[..., Tensor], first: int) -> Array:
    t = accepted(tensor_of(x, what), what, "numeric")
    if t.ndim == 0 or (axis is None and t.ndim != 1):
        raise ValueError(f"{what}: an axis is needed for shape {t.shape}")
    at = 0 if axis is None else _axis(axis, t.ndim, what)
    kind = _summed_type(t.dtype, dtype)
    out = f(t.cast(kind), at).cast(kind) if t.numel() else t.cast(kind)
    if initial:
        start = Tensor.full(tuple([1 if i == at else n for i, n in enumerate(t.shape)]), first, dtype=kind)
        out = start.cat(out, dim=at)
    return Array(out)


def cumulative_sum(x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Array:
    """The running sum along an axis (which may be left out for one axis only); with a 0 before it on request."""
    return _cumulative(x, axis, dtype, include_initial, "cumulative_sum", Tensor.cumsum, 0)


def cumulative_prod(x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Array:
    """The running product along an axis; with a 1 before it on request."""
    return _cumulative(x, axis, dtype, include_initial, "cumulative_prod", Tensor.cumprod, 1)


def max(x: Any, /, *, axis: Any = None, keepdims: bool = False) -> Array:
    """The greatest; NaN where there is one. ValueError over nothing."""
    t = accepted(tensor_of(x, "max"), "max", "numeric")
    return Array(t.max(_axes(t, axis, "max"), keepdims))


def min(x: Any, /, *, axis: Any = None, keepdims: bool = False) -> Array:
    """The least; NaN where there is one. ValueError over nothing."""
    t = accepted(tensor_of(x, "min"), "min", "numeric")
    return Array(t.min(_axes(t, axis, "min"), keepdims))


def mean(x: Any, /, *, axis: Any = None, keepdims: bool = False) -> Array:
    """The arithmetic mean; NaN of nothing."""
    t = accepted(tensor_of(x, "mean"), "mean", "floating-point")
    return Array(t.mean(_axes(t, axis, "mean"), keepdims))


def var(x: Any, /, *, axis: Any = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    """The variance over n - correction; NaN where that is not above 0."""
    t = accepted(tensor_of(x, "var"), "var", "floating-point")
    axes = _axes(t, axis, "var")
    count = math.prod([t.shape[a] for a in axes])
    gap = t - t.mean(axes, True)
    total = (gap * gap).sum(axes, keepdims)
    return Array(total / (count - correction) if count > correction else total * math.nan)


def std(x: Any, /, *, axis: Any = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    """The standard deviation: the square root of `var`."""
    return Array(var(x, axis=axis, correction=correction, keepdims=keepdims).tensor.sqrt())


def all(x: Any, /, *, axis: Any = None, keepdims: bool = False) -> Array:
    """Whether all elements are not 0; true of nothing."""
    t = tensor_of(x, "all")
    return Array(t.all(_axes(t, axis, "all"), keepdims))


def any(x: Any, /, *, axis: Any = None, keepdims: bool = False) -> Array:
    """Whether an element is not 0; false of nothing."""
    t = tensor_of(x, "any")
    return Array(t.any(_axes(t, axis, "any"), keepdims))


def count_nonzero(x: Any, /, *, axis: Any = None, keepdims: bool = False) -> Array:
    """The number of elements that are not 0."""
    t = tensor_of(x, "count_nonzero")
    return Array(t.bool().sum(_axes(t, axis, "count_nonzero"), keepdims).cast(dtypes.default_int()))


def diff(x: Any, /, *, axis: int = -1, n: int = 1, prepend: Any = None, append: Any = None) -> Array:
    """The n-th differences of neighbours along an axis, after joining `prepend` and `append` to its ends."""
    t = accepted(tensor_of(x, "diff"), "diff", "numeric")
    at = _axis(axis, t.ndim, "diff")
    if t.ndim == 0 or n < 0:
        raise ValueError(f"diff: needs an axis and an order of at least 0, not shape {t.shape} and {n}")
    parts = [tensor_of(v, "diff") for v in (prepend, x, append) if v is not None]
    t = parts[0].cat(*parts[1:], dim=at).cast(t.dtype) if len(parts) > 1 else t
    for _ in range(n):
        size = t.shape[at]
        ahead = (slice(None),) * at
        t = t[(*ahead, slice(1, None))] - t[(*ahead, slice(0, -1 if size else 0))]
    return Array(t)


# --- searching and sorting ---


def _extreme(x: Any, axis: Any, keepdims: bool, what: str, f: Callable[..., Tensor]) -> Array:
    t = accepted(tensor_of(x, what), what, "numeric")
    return Array(f(t, None if axis is None else _axis(axis, t.ndim, what), keepdims))


def argmax(x: Any, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """The position of the greatest element along an axis (of the flattened x: None), the first of several."""
    return _extreme(x, axis, keepdims, "argmax", Tensor.argmax)


def argmin(x: Any, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """The position of the least element, as `argmax`."""
    return _extreme(x, axis, keepdims, "argmin", Tensor.argmin)


def nonzero(x: Any, /) -> tuple[Array, ...]:
    """The positions of the elements that are not 0, one array an axis. Computes x."""
    t = tensor_of(x, "nonzero")
    if t.ndim == 0:
        raise ValueError("nonzero: an array of shape () has no positions")
    return tuple([Array(Tensor(a, dtype=dtypes.default_int(), device=t._device)) for a in t.numpy().nonzero()])


def where(condition: Any, x1: Any, x2: Any, /) -> Array:
    """x1 where the condition (bool) holds, x2 elsewhere; shapes broadcast, types promote."""
    c = accepted(tensor_of(condition, "where"), "where", "bool")
    if not isinstance(x1, (Array, Tensor)) and not isinstance(x2, (Array, Tensor)):
        from aril.array_api._creation import asarray

        x1 = asarray(x1, dtype=None)
    a, b = operands("where", x1, x2)
    kind = dt.promoted(a.dtype, b.dtype)
    from aril.mixin.base import broadcast_shape

    shape = broadcast_shape(c.shape, a.shape, b.shape, what="where")
    return Array(c._broadcast_to(shape).where(a.cast(kind)._broadcast_to(shape), b.cast(kind)._broadcast_to(shape)))


def searchsorted(x1: Any, x2: Any, /, *, side: str = "left", sorter: Any = None) -> Array:
    """Where each of x2 would stand in the sorted vector x1: before equal elements ("left") or behind them ("right")."""
    if side not in ("left", "right"):
        raise ValueError(f"searchsorted: side is 'left' or 'right', not {side!r}")
    a, b = operands("searchsorted", x1, x2)
    if a.ndim != 1:
        raise ValueError(f"searchsorted: needs a vector, not shape {a.shape}")
    kind = dt.promoted(a.dtype, b.dtype)
    a = a if sorter is None else a[tensor_of(sorter, "searchsorted")]
    row, column = a.cast(kind), b.cast(kind).unsqueeze(-1)
    before = row < column if side == "left" else row <= column
    return Array(before.sum(-1).cast(dtypes.default_int()))


def sort(x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """x sorted along an axis; NaN counts as the greatest. Always stable."""
    t = tensor_of(x, "sort")
    return Array(t.sort(_axis(axis, t.ndim, "sort"), descending)[0] if t.numel() else t)


def argsort(x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """The positions that would sort x; see `sort`."""
    t = tensor_of(x, "argsort")
    if t.numel() == 0:
        return Array(Tensor.zeros(*t.shape, dtype=dtypes.default_int()))
    return Array(t.argsort(_axis(axis, t.ndim, "argsort"), descending).cast(dtypes.default_int()))


# --- sets: their sizes depend on values, so these compute ---

UniqueAll = namedtuple("UniqueAll", ("values", "indices", "inverse_indices", "counts"))
UniqueCounts = namedtuple("UniqueCounts", ("values", "counts"))
UniqueInverse = namedtuple("UniqueInverse", ("values", "inverse_indices"))


def _unique(x: Any, what: str) -> tuple[Any, Any, Any, Any]:
    import numpy as np

    t = tensor_of(x, what)
    flat = t.numpy().reshape(-1)
    # NaN differ from each other, 0 and -0 do not.
    values, first, inverse, counts = np.unique(flat, True, True, True, equal_nan=False)

    def placed(a: Any, kind: DType) -> Array:
        return Array(Tensor(np.ascontiguousarray(a), dtype=kind, device=t._device).reshape(*a.shape))

    whole = dtypes.default_int()
    return (
        placed(values, t.dtype), placed(first, whole), placed(inverse.reshape(t.shape), whole), placed(counts, whole)
    )  # fmt: skip


def unique_all(x: Any, /) -> UniqueAll:
    """The different values, where each is first, which of them every element is, and how often each comes."""
    return UniqueAll(*_unique(x, "unique_all"))


def unique_counts(x: Any, /) -> UniqueCounts:
    """The different values and how often each comes."""
    values, _, _, counts = _unique(x, "unique_counts")
    return UniqueCounts(values, counts)


def unique_inverse(x: Any, /) -> UniqueInverse:
    """The different values and which of them every element is."""
    values, _, inverse, _ = _unique(x, "unique_inverse")
    return UniqueInverse(values, inverse)


def unique_values(x: Any, /) -> Array:
    """The different values."""
    out: Array = _unique(x, "unique_values")[0]
    return out


# --- products of matrices ---


def _pair(x1: Any, x2: Any, what: str) -> tuple[Tensor, Tensor, DType]:
    a, b = [accepted(tensor_of(v, what), what, "numeric") for v in (x1, x2)]
    kind = dt.promoted(a.dtype, b.dtype)
    return a.cast(kind), b.cast(kind), kind


def matmul(x1: Any, x2: Any, /) -> Array:
    """The matrix product; leading axes broadcast, vectors are rows and columns. ValueError for sizes that differ."""
    a, b, kind = _pair(x1, x2, "matmul")
    if a.ndim == 0 or b.ndim == 0:
        raise ValueError("matmul: arrays of shape () are no matrices; use multiply")
    inner = b.shape[0] if b.ndim == 1 else b.shape[-2]
    if a.shape[-1] != inner:
        raise ValueError(f"matmul: {a.shape} @ {b.shape}: inner sizes {a.shape[-1]} and {inner} differ")
    return Array(a.matmul(b).cast(kind))


def matrix_transpose(x: Any, /) -> Array:
    """The last two axes exchanged."""
    t = tensor_of(x, "matrix_transpose")
    if t.ndim < 2:
        raise ValueError(f"matrix_transpose: needs two axes at least, not shape {t.shape}")
    return Array(t.transpose(-1, -2))


def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Array:
    """The sum of products along an axis of both."""
    a, b, kind = _pair(x1, x2, "vecdot")
    n = builtins.min(a.ndim, b.ndim)
    if not -n <= axis <= -1 or a.shape[axis] != b.shape[axis]:
        raise ValueError(f"vecdot: axis {axis} (-1 to {-n}) of {a.shape} and {b.shape} is not of one length")
    from aril.mixin.base import broadcast_shape

    shape = broadcast_shape(a.shape, b.shape, what="vecdot")
    return Array((a._broadcast_to(shape) * b._broadcast_to(shape)).sum(axis, dtype=kind))


def tensordot(x1: Any, x2: Any, /, *, axes: Any = 2) -> Array:
    """The sum of products over axes of both: the last and first `axes`, or (axes of x1, axes of x2)."""
    a, b, kind = _pair(x1, x2, "tensordot")
    if isinstance(axes, int):
        left, right = list(range(a.ndim - axes, a.ndim)), list(range(axes))
        if not 0 <= axes <= builtins.min(a.ndim, b.ndim):
            raise ValueError(f"tensordot: {axes} axes of shapes {a.shape} and {b.shape}")
    else:
        left = [_axis(v, a.ndim, "tensordot") for v in axes[0]]
        right = [_axis(v, b.ndim, "tensordot") for v in axes[1]]
    if [a.shape[i] for i in left] != [b.shape[i] for i in right]:
        raise ValueError(f"tensordot: axes {left} of {a.shape} and {right} of {b.shape} differ in length")
    keep_a = [i for i in range(a.ndim) if i not in left]
    keep_b = [i for i in range(b.ndim) if i not in right]
    rows, inner = math.prod([a.shape[i] for i in keep_a]), math.prod([a.shape[i] for i in left])
    columns = math.prod([b.shape[i] for i in keep_b])
    shape = [a.shape[i] for i in keep_a] + [b.shape[i] for i in keep_b]
    one = (a.permute(*keep_a, *left) if a.ndim else a).reshape(rows, inner)
    two = (b.permute(*right, *keep_b) if b.ndim else b).reshape(inner, columns)
    return Array(one.matmul(two).cast(kind).reshape(*shape))


def _matmul(self: Array, other: Any) -> Any:
    return matmul(self, other) if isinstance(other, (Array, Tensor)) else NotImplemented


def _rmatmul(self: Array, other: Any) -> Any:
    return matmul(other, self) if isinstance(other, (Array, Tensor)) else NotImplemented


def _imatmul(self: Array, other: Any) -> Any:
    return self._in_place(_matmul(self, other), "matmul")


for _name, _method in {"__matmul__": _matmul, "__rmatmul__": _rmatmul, "__imatmul__": _imatmul}.items():
    setattr(Array, _name, _method)
