"""Element types: the DType objects, the promotion lattice, weak literals and conversion of Python scalars.

Everything above this room names types through `dtypes`; nothing here knows tensors, devices or graphs.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from functools import cache
from typing import Final

from aril.config import DEFAULT_FLOAT, DEFAULT_INT

PyScalar = bool | int | float


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class DType:
    """One element type. There is exactly one object per type, so `is` compares types.

    `kind` is 'b' (bool), 'i' (signed), 'u' (unsigned), 'f' (float) or 'v' (void). `fmt` is the struct/buffer-protocol
    character, None where Python has none. `mantissa`/`exponent` count stored bits of float formats.
    """

    name: str
    kind: str
    itemsize: int
    fmt: str | None
    rank: int
    weak: bool = False
    mantissa: int = 0
    exponent: int = 0

    @property
    def bits(self) -> int:
        return 1 if self.kind == "b" else self.itemsize * 8

    @property
    def has_infinity(self) -> bool:
        """Whether infinities are among the values: of floats, all but three formats of a byte have them."""
        return self.kind == "f" and (self.itemsize > 1 or self is dtypes.fp8e5m2)

    @property
    def min(self) -> PyScalar:
        """Smallest value (-inf for floats that have it; the weak integer is unbounded, its bound here is int64's)."""
        if self.kind == "f":
            return -self.max
        return False if self.kind == "b" else (-(2 ** (self.bits - 1)) if self.kind == "i" else 0)

    @property
    def max(self) -> PyScalar:
        if self.kind == "f":
            return math.inf if self.has_infinity else float_max(self)
        return True if self.kind == "b" else 2 ** (self.bits - (1 if self.kind == "i" else 0)) - 1

    def __repr__(self) -> str:
        return f"dtypes.{self.name}"

    def __reduce__(self) -> tuple[object, ...]:
        return (_dtype_by_name, (self.name,))

    def __copy__(self) -> DType:
        return self

    def __deepcopy__(self, memo: object) -> DType:
        return self


class dtypes:
    """The namespace of types: `dtypes.float32`, `dtypes.int8`, ... and questions about them."""

    void: Final = DType("void", "v", 0, None, -1)
    bool: Final = DType("bool", "b", 1, "?", 0)
    weakint: Final = DType("weakint", "i", 8, None, 1, weak=True)
    int8: Final = DType("int8", "i", 1, "b", 2)
    uint8: Final = DType("uint8", "u", 1, "B", 3)
    int16: Final = DType("int16", "i", 2, "h", 4)
    uint16: Final = DType("uint16", "u", 2, "H", 5)
    int32: Final = DType("int32", "i", 4, "i", 6)
    uint32: Final = DType("uint32", "u", 4, "I", 7)
    int64: Final = DType("int64", "i", 8, "q", 8)
    uint64: Final = DType("uint64", "u", 8, "Q", 9)
    weakfloat: Final = DType("weakfloat", "f", 8, None, 10, weak=True, mantissa=52, exponent=11)
    fp8e4m3: Final = DType("fp8e4m3", "f", 1, None, 11, mantissa=3, exponent=4)
    fp8e5m2: Final = DType("fp8e5m2", "f", 1, None, 12, mantissa=2, exponent=5)
    fp8e4m3fnuz: Final = DType("fp8e4m3fnuz", "f", 1, None, 13, mantissa=3, exponent=4)
    fp8e5m2fnuz: Final = DType("fp8e5m2fnuz", "f", 1, None, 14, mantissa=2, exponent=5)
    float16: Final = DType("float16", "f", 2, "e", 15, mantissa=10, exponent=5)
    bfloat16: Final = DType("bfloat16", "f", 2, None, 16, mantissa=7, exponent=8)
    float32: Final = DType("float32", "f", 4, "f", 17, mantissa=23, exponent=8)
    float64: Final = DType("float64", "f", 8, "d", 18, mantissa=52, exponent=11)

    # names users of other frameworks bring
    half, float, double = float16, float32, float64
    char, uchar, short, ushort, int, uint, long, ulong = int8, uint8, int16, uint16, int32, uint32, int64, uint64

    fp8s: Final = (fp8e4m3, fp8e5m2, fp8e4m3fnuz, fp8e5m2fnuz)
    floats: Final = (*fp8s, float16, bfloat16, float32, float64)
    sints: Final = (int8, int16, int32, int64)
    uints: Final = (uint8, uint16, uint32, uint64)
    ints: Final = (*sints, *uints)
    all: Final = (bool, *ints, *floats)

    @staticmethod
    def is_float(dtype: DType) -> bool:  # type: ignore[valid-type]
        return dtype.kind == "f"

    @staticmethod
    def is_int(dtype: DType) -> bool:  # type: ignore[valid-type]
        """Signed, unsigned and the weak integer; bool is not an integer here."""
        return dtype.kind in "iu"

    @staticmethod
    def is_unsigned(dtype: DType) -> bool:  # type: ignore[valid-type]
        return dtype.kind == "u"

    @staticmethod
    def default_float() -> DType:
        """What weak floats become when nothing decides (`DEFAULT_FLOAT`)."""
        return to_dtype(DEFAULT_FLOAT.value)

    @staticmethod
    def default_int() -> DType:
        """What weak ints become when nothing decides (`DEFAULT_INT`)."""
        return to_dtype(DEFAULT_INT.value)

    @staticmethod
    def from_py(value: object) -> DType:
        """The weak type of a Python scalar (or of the widest scalar in a nested list)."""
        if value.__class__ is float_type:
            return dtypes.weakfloat
        if value is True or value is False:
            return dtypes.bool
        if isinstance(value, int_type):
            return dtypes.weakint
        if isinstance(value, float_type):
            return dtypes.weakfloat
        if isinstance(value, (list, tuple)):
            return promote(*[dtypes.from_py(v) for v in value]) if value else dtypes.weakfloat
        raise TypeError(
            f"no dtype for {value!r} of type {type(value).__name__}: expected bool, int, float or lists of them"
        )


int_type, float_type = int, float

_BY_NAME: Final = {d.name: d for d in (dtypes.void, dtypes.weakint, dtypes.weakfloat, *dtypes.all)}
_ALIASES: Final = {
    "half": dtypes.float16, "float": dtypes.float32, "double": dtypes.float64, "char": dtypes.int8,
    "uchar": dtypes.uint8, "short": dtypes.int16, "ushort": dtypes.uint16, "int": dtypes.int32, "uint": dtypes.uint32,
    "long": dtypes.int64, "ulong": dtypes.uint64, "bool_": dtypes.bool, "float8_e4m3fn": dtypes.fp8e4m3,
    "float8_e5m2": dtypes.fp8e5m2, "float8_e4m3fnuz": dtypes.fp8e4m3fnuz, "float8_e5m2fnuz": dtypes.fp8e5m2fnuz,
}  # fmt: skip

DTypeLike = DType | str


def _dtype_by_name(name: str) -> DType:
    return _BY_NAME[name]


def to_dtype(x: object) -> DType:
    """A DType from itself, from its name (`"float32"`, `"half"`), or from a NumPy-style dtype with a `.name`.

    Errors: TypeError naming what came and what is accepted.

    >>> to_dtype("float16"), to_dtype(float)
    (dtypes.float16, dtypes.float32)
    """
    if x.__class__ is DType:
        return x  # type: ignore[return-value]
    name = x.lower() if isinstance(x, str) else getattr(x, "name", None)
    if isinstance(x, type) and x.__module__ == "numpy":  # `np.float32` itself
        name = x.__name__.rstrip("_")
    found = (_BY_NAME.get(name) or _ALIASES.get(name)) if isinstance(name, str) else None
    if found is None and x in (bool, int_type, float_type):
        return {bool: dtypes.bool, int_type: dtypes.default_int(), float_type: dtypes.default_float()}[x]  # type: ignore[index]
    if found is None:
        raise TypeError(f"{x!r} is not a dtype: expected one of {', '.join(d.name for d in dtypes.all)}")
    return found


# Promotion: an edge leads to each type that holds (or by the field's habit receives) the values of this one. Integers
# meet floats at the float; a signed and an unsigned of one width meet at the next wider signed type; uint64 with a
# signed type meets at the default float, as no integer type holds both (the lattice of JAX's type-promotion note has
# this shape).
_UP: Final = {
    dtypes.bool: (dtypes.weakint,),
    dtypes.weakint: (dtypes.int8, dtypes.uint8),
    dtypes.int8: (dtypes.int16,), dtypes.uint8: (dtypes.int16, dtypes.uint16),
    dtypes.int16: (dtypes.int32,), dtypes.uint16: (dtypes.int32, dtypes.uint32),
    dtypes.int32: (dtypes.int64,), dtypes.uint32: (dtypes.int64, dtypes.uint64),
    dtypes.int64: (dtypes.weakfloat,), dtypes.uint64: (dtypes.weakfloat,),
    dtypes.weakfloat: dtypes.fp8s,
    **dict.fromkeys(dtypes.fp8s, (dtypes.float16, dtypes.bfloat16)),
    dtypes.float16: (dtypes.float32,), dtypes.bfloat16: (dtypes.float32,),
    dtypes.float32: (dtypes.float64,), dtypes.float64: (),
}  # fmt: skip


@cache
def _above(dtype: DType) -> frozenset[DType]:
    return frozenset({dtype}).union(*[_above(d) for d in _UP[dtype]])


@cache
def _promote_set(kinds: frozenset[DType]) -> DType:
    return min(frozenset.intersection(*[_above(d) for d in kinds]), key=lambda d: d.rank)


def promote(*kinds: DType) -> DType:
    """The type in which values of all `kinds` are combined. Weak types give way to concrete ones of their kind.

    A concrete integer (or bool) that meets a weak float becomes the default float: nothing else decides the width.

    >>> promote(dtypes.int8, dtypes.uint8), promote(dtypes.int64, dtypes.float32)
    (dtypes.int16, dtypes.float32)
    """
    first = kinds[0]
    if all(k is first for k in kinds):
        return first
    out = _promote_set(frozenset(kinds))
    if out is dtypes.weakfloat and any(not k.weak for k in kinds):
        return dtypes.default_float()
    return out


def strong(dtype: DType) -> DType:
    """The concrete type a weak one becomes when nothing decides; concrete types are returned as they are."""
    if not dtype.weak:
        return dtype
    return dtypes.default_int() if dtype.kind == "i" else dtypes.default_float()


def accumulator(dtype: DType) -> DType:
    """The type in which sums and products over elements of `dtype` are carried and returned.

    Bool and signed types below 32 bits sum in int32, unsigned below 32 bits in uint32; 8- and 16-bit floats are carried
    in float32 (and cast back by the caller).
    """
    if dtype.kind == "f":
        return dtypes.float32 if dtype.itemsize < 4 else dtype
    if dtype.kind == "b":
        return dtypes.int32
    if dtype.weak or dtype.itemsize >= 4:
        return dtype
    return dtypes.uint32 if dtype.kind == "u" else dtypes.int32


def can_hold(dst: DType, src: DType) -> bool:
    """True where every value of `src` is exactly a value of `dst`."""
    if dst is src or src.kind == "b":
        return True
    if dst.kind == "f":
        if src.kind == "f":
            return not src.weak and dst in _above(src)
        return (
            src.bits - (src.kind == "i") <= dst.mantissa + 1
            and src.bits - (src.kind == "i") <= 2 ** (dst.exponent - 1) - 1
        )
    if dst.kind == "b" or src.kind == "f":
        return False
    if dst.kind == src.kind:
        return dst.itemsize >= src.itemsize
    return dst.kind == "i" and dst.itemsize > src.itemsize


def wrap(value: PyScalar, dtype: DType) -> PyScalar:
    """`value` as a `dtype` constant: integers wrap, floats round to nearest even, bool is truth.

    A float out of an integer's range saturates at the ends, NaN becomes 0 (the cast rule of `docs/dtypes.md`).
    """
    kind = dtype.kind
    if value.__class__ is int and (kind == "i" or kind == "u") and (dtype.weak or 0 <= value < 128):
        return value  # most are
    if value.__class__ is not float_type and (isinstance(value, type) or not hasattr(value, "__float__")):
        raise TypeError(f"a {dtype.name} is made of a number, not of {value!r}")
    if kind == "f":
        return _round_float(float(value), dtype)
    if kind == "b":
        return bool(value)
    if isinstance(value, float):
        if math.isnan(value):
            return 0
        if dtype.weak:
            return int(value)
        return (
            int(min(max(value, dtype.min), dtype.max))
            if math.isinf(value)
            else min(max(int(value), int(dtype.min)), int(dtype.max))
        )
    value = int(value)
    if dtype.weak or dtype.min <= value <= dtype.max:
        return value
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if dtype.kind == "i" and value >> (dtype.bits - 1) else value


def _round_float(value: float, dtype: DType) -> float:
    if dtype.itemsize == 8 or value == 0 or not math.isfinite(value):
        # the fnuz formats have one NaN and neither infinities nor a negative zero; e4m3 has no infinity
        if dtype.itemsize == 1:
            if value == 0 and dtype.name.endswith("fnuz"):
                return 0.0
            if math.isinf(value) and not dtype.has_infinity:
                return math.nan
        return value
    if dtype.itemsize == 4:
        try:
            return float(struct.unpack("f", struct.pack("f", value))[0])
        except OverflowError:
            return math.copysign(math.inf, value)
    bias = 2 ** (dtype.exponent - 1) - 1 + dtype.name.endswith("fnuz")
    exponent = max(math.frexp(value)[1] - 1, 1 - bias)
    step = math.ldexp(1.0, exponent - dtype.mantissa)
    rounded = round(value / step) * step  # Python rounds half to even; value/step is exact (a power of two)
    if abs(rounded) > float_max(dtype):
        return math.copysign(math.inf, value) if dtype.has_infinity else math.nan
    if rounded == 0:
        return 0.0 if dtype.name.endswith("fnuz") else math.copysign(0.0, value)
    return rounded


@cache
def float_max(dtype: DType) -> float:
    """The largest finite value of a float type."""
    fnuz = dtype.name.endswith("fnuz")
    bias = 2 ** (dtype.exponent - 1) - 1 + fnuz
    if dtype is dtypes.fp8e4m3:
        return 448.0  # 1.75 * 2**8: the all-ones exponent holds numbers, only its all-ones mantissa is NaN (OCP OFP8)
    top = 2**dtype.exponent - 1 - bias - (0 if fnuz else 1)
    return (2.0 - 2.0**-dtype.mantissa) * 2.0**top
