"""Data types by the standard: kinds, promotion (stricter than Tensor's), limits. Types are those of `aril.dtype`.

Types of different kinds never meet: an integer and a float, or a bool and an integer, are a TypeError.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aril.dtype import DType, dtypes, float_max, promote, to_dtype

bool_, float32, float64 = dtypes.bool, dtypes.float32, dtypes.float64
int8, int16, int32, int64 = dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64
uint8, uint16, uint32, uint64 = dtypes.uint8, dtypes.uint16, dtypes.uint32, dtypes.uint64

SIGNED = (int8, int16, int32, int64)
UNSIGNED = (uint8, uint16, uint32, uint64)
FLOATS = (float32, float64)
ALL = (bool_, *SIGNED, *UNSIGNED, *FLOATS)

_KINDS: dict[str, tuple[DType, ...]] = {
    "bool": (bool_,), "signed integer": SIGNED, "unsigned integer": UNSIGNED, "integral": SIGNED + UNSIGNED,
    "real floating": FLOATS, "complex floating": (), "numeric": SIGNED + UNSIGNED + FLOATS,
}  # fmt: skip
_WORDS = {"b": "bool", "i": "integer", "u": "integer", "f": "floating-point"}


def family(dtype: DType) -> str:
    """'b', 'i' (signed and unsigned) or 'f': within a family types promote."""
    return "i" if dtype.kind == "u" else dtype.kind


def promoted(*kinds: DType) -> DType:
    """The type of a result of operands of these types. TypeError where the standard defines none."""
    first = kinds[0]
    for k in kinds[1:]:
        if k is first:
            continue
        if family(k) != family(first):
            raise TypeError(
                f"{first.name} and {k.name} do not promote: {_WORDS[first.kind]} and {_WORDS[k.kind]} types do not "
                "mix; convert one with astype"
            )
    out: DType = promote(*kinds)
    if out.kind == "f" and family(first) == "i":
        names = ", ".join(sorted({k.name for k in kinds}))
        raise TypeError(f"{names} do not promote: no integer type holds the values of all; convert one with astype")
    return out


def _checked(dtype: Any) -> DType:
    return to_dtype(dtype)


def isdtype(dtype: DType, kind: Any) -> bool:
    """Whether `dtype` is `kind`: a type, the name of a kind ("bool", "signed integer", "unsigned integer", "integral",
    "real floating", "complex floating", "numeric"), or a tuple of these. ValueError for another name."""
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)
    if isinstance(kind, str):
        if kind not in _KINDS:
            raise ValueError(f"isdtype: {kind!r} is no kind; kinds are {', '.join(_KINDS)}")
        return dtype in _KINDS[kind]
    return dtype is _checked(kind)


def can_cast(from_: Any, to: Any, /) -> bool:
    """Whether an array or type `from_` promotes to the type `to`."""
    source = getattr(from_, "dtype", from_)
    try:
        return promoted(_checked(source), _checked(to)) is _checked(to)
    except TypeError as error:
        if "promote" in str(error):
            return False
        raise


@dataclass(frozen=True, slots=True)
class FloatInfo:
    """Limits of a floating-point type."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


@dataclass(frozen=True, slots=True)
class IntInfo:
    """Limits of an integer type."""

    bits: int
    max: int
    min: int
    dtype: DType


def finfo(type: Any, /) -> FloatInfo:
    """Limits of a floating-point type, or of an array's. TypeError for other types."""
    d = _checked(getattr(type, "dtype", type))
    if d.kind != "f":
        raise TypeError(f"finfo: {d.name} is no floating-point type; use iinfo")
    top = float_max(d)
    return FloatInfo(d.bits, 2.0**-d.mantissa, top, -top, 2.0 ** (2 - 2 ** (d.exponent - 1)), d)


def iinfo(type: Any, /) -> IntInfo:
    """Limits of an integer type, or of an array's. TypeError for other types."""
    d = _checked(getattr(type, "dtype", type))
    if d.kind not in "iu":
        raise TypeError(f"iinfo: {d.name} is no integer type; use finfo")
    return IntInfo(d.bits, int(d.max), int(d.min), d)
