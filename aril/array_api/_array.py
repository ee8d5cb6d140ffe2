"""Array: a tensor with the attributes, operators and promotion that the array API standard asks for.

`tensor` is the Tensor inside. Results stay lazy until a value is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from aril.array_api import _dtypes as dt
from aril.dtype import DType, dtypes
from aril.tensor import Tensor

VERSION = "2024.12"
VERSIONS = ("2021.12", "2022.12", "2023.12", VERSION)


class Array:
    """An array of the standard; make one with `asarray` and the other creation functions."""

    __slots__ = ("__weakref__", "tensor")
    __array_priority__ = 100  # NumPy's operators leave the work to ours
    __hash__ = None  # type: ignore[assignment]

    tensor: Tensor

    def __init__(self, tensor: Tensor) -> None:
        if not isinstance(tensor, Tensor):
            raise TypeError(f"Array: make arrays with asarray(...), not from a {type(tensor).__name__}")
        self.tensor = tensor

    # --- attributes ---

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.tensor.dtype

    @property
    def device(self) -> Any:
        """The device's name."""
        return self.tensor.device

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        return self.tensor.shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.tensor.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.tensor.shape)

    @property
    def T(self) -> Array:
        """The transpose of a matrix. ValueError for other ranks; see `mT` and `permute_dims`."""
        if self.ndim != 2:
            raise ValueError(f"T: needs two axes, not shape {self.shape}; use mT or permute_dims")
        return Array(self.tensor.permute(1, 0))

    @property
    def mT(self) -> Array:
        """The transpose of the last two axes. ValueError for fewer."""
        if self.ndim < 2:
            raise ValueError(f"mT: needs two axes at least, not shape {self.shape}")
        return Array(self.tensor.transpose(-1, -2))

    # --- values ---

    def _scalar(self, what: str) -> Any:
        if self.shape != ():
            raise TypeError(f"{what}: only an array of shape () is a number, not one of shape {self.shape}")
        return self.tensor.item()

    def __bool__(self) -> bool:
        return bool(self._scalar("bool"))

    def __int__(self) -> int:
        return int(self._scalar("int"))

    def __float__(self) -> float:
        return float(self._scalar("float"))

    def __complex__(self) -> complex:
        return complex(self._scalar("complex"))

    def __index__(self) -> int:
        if self.dtype.kind not in "iu":
            raise TypeError(f"an array of {self.dtype.name} is no index; integers are")
        return int(self._scalar("index"))

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array of shape (); it has no axes")
        return self.shape[0]

    def __iter__(self) -> Any:
        if not self.shape:
            raise TypeError("an array of shape () has no axis to iterate over")
        return iter([self[i] for i in range(self.shape[0])])

    def __repr__(self) -> str:
        return repr(self.tensor).replace("<Tensor", "<Array", 1)

    def __str__(self) -> str:
        return str(self.tensor).replace("<Tensor", "<Array", 1)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.tensor.__array__(dtype, copy)

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        """A DLPack capsule over this array's memory (see `Tensor.__dlpack__`)."""
        return self.tensor.__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.tensor.__dlpack_device__()

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        """The namespace of functions that take this array. ValueError for a version that is not offered."""
        if api_version is not None and api_version not in VERSIONS:
            raise ValueError(f"__array_namespace__: version {api_version!r} is not offered; {', '.join(VERSIONS)} are")
        import aril.array_api

        return aril.array_api

    def to_device(self, device: Any, /, *, stream: Any = None) -> Array:
        """This array on `device`. ValueError for a stream: devices here have none to choose."""
        if stream is not None:
            raise ValueError(f"to_device: stream is None here, not {stream!r}")
        return Array(self.tensor.to(device))

    # --- indexing ---

    def __getitem__(self, key: Any, /) -> Array:
        x, plain = self.tensor, _key(key)
        if isinstance(plain, Tensor) and plain.dtype is dtypes.bool and plain.shape == ():
            return Array(x.unsqueeze(0)[plain.reshape(1)])
        return Array(x[plain])

    def __setitem__(self, key: Any, value: Any, /) -> None:
        v = _operand(value, self.dtype, "assignment")
        if v is NotImplemented:
            raise TypeError(f"assignment: {type(value).__name__} is neither an array nor a number")
        if dt.promoted(self.dtype, v.dtype) is not self.dtype:
            raise TypeError(f"assignment: {v.dtype.name} values do not fit an array of {self.dtype.name}; use astype")
        # On a copy: other arrays over the same memory keep their values, whatever else is pending there.
        new, plain = self.tensor.clone(), _key(key)
        if isinstance(plain, Tensor) and plain.dtype is dtypes.bool and plain.shape == ():
            new = plain.where(v.cast(self.dtype)._broadcast_to(self.shape) if v.shape else v.cast(self.dtype), new)
        else:
            new[plain] = v.cast(self.dtype)
        self.tensor = new

    # --- operators ---

    def _op(
        self, other: Any, what: str, accepts: str, f: Callable[[Tensor, Tensor], Tensor], swap: bool = False
    ) -> Any:
        b = _operand(other, self.dtype, what)
        if b is NotImplemented:
            return NotImplemented
        return _binary(b, self.tensor, what, accepts, f) if swap else _binary(self.tensor, b, what, accepts, f)

    def _in_place(self, result: Any, what: str) -> Any:
        if result is NotImplemented:
            return NotImplemented
        if result.shape != self.shape or result.dtype is not self.dtype:
            raise ValueError(
                f"{what}: the result, {result.shape} {result.dtype.name}, does not fit the array, {self.shape} "
                f"{self.dtype.name}"
            )
        self.tensor = result.tensor
        return self

    def __neg__(self) -> Array:
        return _unary(self, "negative", "numeric", Tensor.neg)

    def __pos__(self) -> Array:
        return _unary(self, "positive", "numeric", lambda x: x)

    def __abs__(self) -> Array:
        return _unary(self, "abs", "numeric", Tensor.abs)

    def __invert__(self) -> Array:
        return _unary(self, "bitwise_invert", "integral or bool", Tensor.bitwise_not)


def _key(key: Any) -> Any:
    if isinstance(key, tuple):
        return tuple([_key(k) for k in key])
    if isinstance(key, Array):
        if key.shape == () and key.dtype.kind in "iu":
            return int(key)
        return key.tensor
    if isinstance(key, slice):
        return slice(*[int(v) if isinstance(v, Array) else v for v in (key.start, key.stop, key.step)])
    return key


_ACCEPTED = {
    "any": "biuf", "bool": "b", "integral": "iu", "integral or bool": "iub", "numeric": "iuf", "floating-point": "f",
}  # fmt: skip


def tensor_of(x: Any, what: str) -> Tensor:
    """The tensor of an array (or a Tensor itself). TypeError for anything else."""
    if isinstance(x, Array):
        return x.tensor
    if isinstance(x, Tensor):
        return x
    raise TypeError(f"{what}: expected an array, not {type(x).__name__}; make one with asarray")


def accepted(x: Tensor, what: str, accepts: str) -> Tensor:
    """`x`, if its type is one of those that a function takes."""
    if x.dtype.kind not in _ACCEPTED[accepts]:
        raise TypeError(f"{what}: takes {accepts} arrays, not {x.dtype.name}; convert it with astype")
    return x


def _operand(value: Any, beside: DType, what: str) -> Any:
    """An operand as a tensor: a Python number takes the type of the array it meets, if its kind allows that."""
    if isinstance(value, Array):
        return value.tensor
    if isinstance(value, Tensor):
        return value
    return scalar(value, beside, what)


def scalar(value: Any, beside: DType, what: str) -> Any:
    """A Python number as a tensor of the type `beside`; NotImplemented for what is no number. OverflowError for an int
    that does not fit, TypeError for another kind."""
    if isinstance(value, bool):
        fits = beside.kind == "b"
    elif isinstance(value, int):
        fits = beside.kind in "iuf"
        if beside.kind in "iu" and not beside.min <= value <= beside.max:
            raise OverflowError(f"{what}: {value} does not fit {beside.name}")
    elif isinstance(value, float):
        fits = beside.kind == "f"
    else:
        return NotImplemented
    if not fits:
        raise TypeError(f"{what}: a {type(value).__name__} and an array of {beside.name} do not mix; convert one")
    return Tensor.full((), value, dtype=beside)


def _unary(x: Any, what: str, accepts: str, f: Callable[[Tensor], Tensor]) -> Array:
    return Array(f(accepted(tensor_of(x, what), what, accepts)))


def _binary(a: Tensor, b: Tensor, what: str, accepts: str, f: Callable[[Tensor, Tensor], Tensor]) -> Array:
    kind = dt.promoted(accepted(a, what, accepts).dtype, accepted(b, what, accepts).dtype)
    return Array(f(a.cast(kind), b.cast(kind)))


def operands(what: str, *values: Any) -> list[Tensor]:
    """Arrays and Python numbers (one array at least) as tensors. TypeError for other things."""
    kinds = [tensor_of(v, what).dtype for v in values if isinstance(v, (Array, Tensor))]
    if not kinds:
        raise TypeError(f"{what}: one argument at least is an array; make one with asarray")
    beside = dt.promoted(*kinds)
    out = [_operand(v, beside, what) for v in values]
    for v, t in zip(values, out, strict=True):
        if t is NotImplemented:
            raise TypeError(f"{what}: {type(v).__name__} is neither an array nor a number")
    return out
