"""Arithmetic of the interpreter: every operation of the IR on NumPy arrays, with the IR's rules in each dtype.

In come arrays in the register form of their dtype (`register_type`), out go arrays of the result's. Integers wrap,
floats round once to nearest even, transcendentals are evaluated wider and rounded: the reference of other targets.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aril.dtype import DType, dtypes, float_max, wrap
from aril.ops import Ops

Array = NDArray[Any]

_NATIVE: dict[DType, type[np.generic]] = {
    dtypes.bool: np.bool_, dtypes.int8: np.int8, dtypes.uint8: np.uint8, dtypes.int16: np.int16,
    dtypes.uint16: np.uint16, dtypes.int32: np.int32, dtypes.uint32: np.uint32,
    dtypes.int64: np.int64, dtypes.uint64: np.uint64, dtypes.float16: np.float16,
    dtypes.float32: np.float32, dtypes.float64: np.float64,
    dtypes.weakint: np.int64, dtypes.weakfloat: np.float64,
}  # fmt: skip
_SIGNED: dict[int, type[np.generic]] = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}
_UNSIGNED: dict[int, type[np.generic]] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def register_type(dtype: DType) -> type[np.generic]:
    """How values of `dtype` are held: its own NumPy type, or float32 for the formats NumPy lacks (bfloat16, fp8)."""
    return _NATIVE.get(dtype, np.float32)


def storage_type(dtype: DType) -> type[np.generic]:
    """How values of `dtype` lie in memory: as registers, but unsigned integers for the formats NumPy lacks."""
    return _NATIVE.get(dtype) or _UNSIGNED[dtype.itemsize]


# --------------------------------------------------------------------------------------------------- small formats


def round_to(x: Array, dtype: DType) -> Array:
    """`x` (float32 or float64) rounded once, to nearest even, to the values of a small float format; as float32.

    Overflow is infinity where the format has it (bfloat16, float16, fp8e5m2), else NaN.
    """
    wide = np.asarray(x, np.float64)
    finite = np.isfinite(wide)
    safe = np.where(finite, wide, 0.0)
    fnuz = dtype.name.endswith("fnuz")
    lowest = 2 - 2 ** (dtype.exponent - 1) - fnuz
    exponent = np.maximum(np.frexp(safe)[1] - 1, lowest) - dtype.mantissa
    rounded = np.ldexp(np.rint(np.ldexp(safe, -exponent)), exponent)
    beyond = (np.abs(rounded) > float_max(dtype)) | np.isinf(wide)
    has_inf = dtype in (dtypes.float16, dtypes.bfloat16, dtypes.fp8e5m2)
    out = np.where(beyond, np.copysign(np.inf, wide) if has_inf else np.nan, np.where(finite, rounded, wide))
    if fnuz:
        out = np.where(out == 0, 0.0, out)
    return out.astype(np.float32)


def encode(x: Array, dtype: DType) -> Array:
    """Register values of a small format (already on its grid) as the unsigned integers that lie in memory."""
    if dtype is dtypes.bfloat16:
        bits = np.ascontiguousarray(x, np.float32).view(np.uint32) >> np.uint32(16)
        return np.where(np.isnan(x), (bits & 0x8000) | 0x7FC0, bits).astype(np.uint16)
    fnuz = dtype.name.endswith("fnuz")
    lowest = 2 - 2 ** (dtype.exponent - 1) - fnuz
    size = np.where(np.isfinite(x), np.abs(x), 0.0).astype(np.float64)
    exponent = np.where(size == 0, lowest, np.maximum(np.frexp(size)[1] - 1, lowest))
    code = np.ldexp(size, dtype.mantissa - exponent).astype(np.int64) + ((exponent - lowest) << dtype.mantissa)
    sign = np.signbit(x).astype(np.int64) << (dtype.bits - 1)
    if fnuz:
        return np.where(np.isnan(x), 0x80, np.where(code == 0, 0, code | sign)).astype(np.uint8)
    top = (2**dtype.exponent - 1) << dtype.mantissa
    quiet = 0x7F if dtype is dtypes.fp8e4m3 else top | 1 << (dtype.mantissa - 1)
    code = np.where(np.isnan(x), quiet, np.where(np.isinf(x), top, code))
    return (code | sign).astype(_UNSIGNED[dtype.itemsize])


@cache
def _decode_table(dtype: DType) -> Array:
    fnuz = dtype.name.endswith("fnuz")
    lowest = 2 - 2 ** (dtype.exponent - 1) - fnuz
    out = np.empty(256, np.float32)
    for code in range(256):
        e, m = (code & 127) >> dtype.mantissa, code & (2**dtype.mantissa - 1)
        value = (
            math.ldexp(m, lowest - dtype.mantissa)
            if e == 0
            else math.ldexp(m + 2**dtype.mantissa, lowest - 1 + e - dtype.mantissa)
        )
        if fnuz:
            value = math.nan if code == 128 else value
        elif e == 2**dtype.exponent - 1 and dtype is dtypes.fp8e5m2:
            value = math.nan if m else math.inf
        elif code & 127 == 127 and dtype is dtypes.fp8e4m3:
            value = math.nan
        out[code] = math.copysign(value, -1.0 if code & 128 else 1.0)
    return out


def decode(bits: Array, dtype: DType) -> Array:
    """The inverse of `encode`."""
    if dtype is dtypes.bfloat16:
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return _decode_table(dtype)[bits]


def to_register(x: Array, dtype: DType) -> Array:
    """Memory form to register form."""
    return decode(x, dtype) if dtype not in _NATIVE else x


def to_storage(x: Array, dtype: DType) -> Array:
    """Register form to memory form."""
    return encode(x, dtype) if dtype not in _NATIVE else x


def constant(value: Any, dtype: DType) -> Array:
    """A constant of `dtype` in register form, shape (1, 1)."""
    return np.array([[wrap(value, dtype)]], register_type(dtype))


# ----------------------------------------------------------------------------------------------------------- casts


def cast(x: Array, src: DType, dst: DType) -> Array:
    """`x` converted: ints wrap, floats round once, float to int saturates and NaN becomes 0 (`docs/dtypes.md`)."""
    if src is dst:
        return x
    if dst.kind == "b":
        return x != 0
    if dst.kind in "iu":
        return _saturate(x, dst) if src.kind == "f" else x.astype(register_type(dst))
    if dst not in _NATIVE:
        return round_to(_to_double_sticky(x) if src.kind in "iu" and src.itemsize == 8 else x, dst)
    return x.astype(register_type(dst))


def _saturate(x: Array, dst: DType) -> Array:
    whole = np.trunc(x.astype(np.float64))
    low, end = float(dst.min), float(int(dst.max) + 1)  # both powers of two or zero: exact
    above, below = whole >= end, whole < low
    out = np.where(above | below | np.isnan(whole), 0.0, whole).astype(register_type(dst))
    out[above] = dst.max
    out[below] = dst.min
    return out


def _to_double_sticky(x: Array) -> Array:
    """64-bit integers as float64 such that a further rounding to few bits is as if from the exact integer."""
    if x.dtype == np.uint64:
        high = (x >> np.uint64(11)) | (x & np.uint64(2047) != 0)
        return np.where(x < 2**53, x.astype(np.float64), high.astype(np.float64) * 2048.0)
    high = (x >> 11) | (x & 2047 != 0)
    return np.where((x < 2**53) & (x > -(2**53)), x.astype(np.float64), high.astype(np.float64) * 2048.0)


def bitcast(x: Array, src: DType, dst: DType) -> Array:
    """The same bits read as `dst`; along a vector where the sizes differ."""
    bits = np.ascontiguousarray(to_storage(x, src))
    return to_register(bits.view(storage_type(dst)), dst)


# ------------------------------------------------------------------------------------------------------ operations


def evaluate(op: Ops, dtype: DType, *x: Array) -> Array:
    """`op` on arrays of one dtype (the sources'; WHERE's condition is bool). Comparisons give bool.

    Errors: NotImplementedError for an operation that is no arithmetic.
    """
    return function(op, dtype)(*x)


@cache
def function(op: Ops, dtype: DType) -> Callable[..., Array]:
    """`evaluate` for one operation and dtype."""
    table = _FLOAT if dtype.kind == "f" else _BOOL if dtype.kind == "b" else _INTEGER
    fn = table.get(op) or _ANY.get(op)
    if fn is None:
        raise NotImplementedError(f"the interpreter has no {op.name} on {dtype.name}")
    if op in (Ops.CMPLT, Ops.CMPNE, Ops.CMPEQ):
        return fn
    if dtype not in _NATIVE and op is not Ops.WHERE:
        return lambda *x: round_to(fn(*x), dtype)
    kind = np.dtype(register_type(dtype))

    def run(*x: Array) -> Array:
        out = fn(*x)
        return out if out.dtype is kind or out.dtype == kind else out.astype(kind)

    return run


def _wider(fn: Callable[..., Array]) -> Callable[..., Array]:
    """`fn` evaluated in float64, or in the machine's long double for float64 itself."""

    def run(*x: Array) -> Array:
        wide = np.longdouble if x[0].dtype == np.float64 else np.float64
        return fn(*[v.astype(wide) for v in x])

    return run


def _c_div(a: Array, b: Array) -> Array:
    zero = b == 0
    safe = np.where(zero, b.dtype.type(1), b)
    quotient, rest = a // safe, a % safe
    # floor and truncation differ by one where the division is inexact and the signs differ
    quotient = quotient + ((rest != 0) & ((a < 0) != (safe < 0))).astype(b.dtype)
    return np.where(zero, b.dtype.type(0), quotient)


def _integer_pow(base: Array, exponent: Array) -> Array:
    base, exponent = np.broadcast_arrays(base, exponent)
    one = base.dtype.type(1)
    out, square, left = np.ones_like(base), base.copy(), np.where(exponent < 0, 0, exponent)
    while left.any():
        out = np.where(left & 1 == 1, out * square, out)
        square, left = square * square, left >> 1
    if base.dtype.kind == "i":  # the truncated value of a fraction: 0 but for bases 1 and -1
        odd = exponent & 1 == 1
        unit = np.where(base == 1, one, np.where(base == -1, np.where(odd, -one, one), 0))
        out = np.where(exponent < 0, unit, out)
    return out


_U32 = np.uint64(0xFFFFFFFF)


def threefry(x: Array, key: Array) -> Array:
    """Threefry-2x32 with 20 rounds (Salmon et al., SC 2011). The low half of each uint64 is the first word."""
    rotations = ((13, 15, 26, 6), (17, 29, 16, 24))
    k0, k1 = key & _U32, key >> np.uint64(32)
    keys = (k0, k1, k0 ^ k1 ^ np.uint64(0x1BD11BDA))
    a, b = ((x & _U32) + k0) & _U32, ((x >> np.uint64(32)) + k1) & _U32
    for block in range(5):
        for r in rotations[block % 2]:
            a = (a + b) & _U32
            b = (((b << np.uint64(r)) & _U32) | (b >> np.uint64(32 - r))) ^ a
        a = (a + keys[(block + 1) % 3]) & _U32
        b = (b + keys[(block + 2) % 3] + np.uint64(block + 1)) & _U32
    return a | (b << np.uint64(32))


def fused(a: Array, b: Array, c: Array) -> Array:
    """a * b + c with one rounding."""
    if a.dtype == np.float64:
        return _fused_double(a, b, c)
    p, c = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)  # the product of two float32 is exact
    total, lost = _two_sum(p, c)
    # round to odd, so that the second rounding (to float32) is as if it were the only one (Boldo and Melquiond, 2008)
    even = np.ascontiguousarray(total).view(np.int64) & 1 == 0
    toward = np.where(lost > 0, np.inf, -np.inf)
    return np.where(np.isfinite(total) & (lost != 0) & even, np.nextafter(total, toward), total)


def pair_products(x: Array, y: Array, total: Array) -> Array:
    """float32 `total` plus the products of the two bfloat16 in each uint32 of x and y, the high ones first."""
    high = [(bits & np.uint32(0xFFFF0000)).view(np.float32) for bits in (x, y)]
    low = [(bits << np.uint32(16)).view(np.float32) for bits in (x, y)]
    total = fused(high[0], high[1], total).astype(np.float32)
    return fused(low[0], low[1], total).astype(np.float32)


@cache
def _libm_fma() -> Any:
    fma = ctypes.CDLL(ctypes.util.find_library("m") or None).fma
    fma.argtypes, fma.restype = (ctypes.c_double,) * 3, ctypes.c_double
    return np.frompyfunc(fma, 3, 1)


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    total = a + b
    part: Array = total - a
    return total, (a - (total - part)) + (b - part)


def _fused_double(a: Array, b: Array, c: Array) -> Array:
    """By error-free transformations and a rounding to odd (Boldo and Melquiond, 2008); by libm where they may overflow
    or underflow."""
    a, b, c = np.broadcast_arrays(a, b, c)
    p = a * b
    (ah, al), (bh, bl) = _halves(a), _halves(b)
    low = ((ah * bh - p) + ah * bl + al * bh) + al * bl
    upper, lower = _two_sum(c, low)
    high, rest = _two_sum(p, upper)
    tail, lost = _two_sum(rest, lower)
    even = np.ascontiguousarray(tail).view(np.int64) & 1 == 0
    tail = np.where((lost != 0) & even, np.nextafter(tail, np.where(lost > 0, np.inf, -np.inf)), tail)
    out = high + tail
    safe = np.ones(a.shape, np.bool_)
    for x, least in ((a, 1e-140), (b, 1e-140), (c, 1e-250)):
        size = np.abs(x)
        safe &= ((size > least) & (size < 1e140)) | ((x == 0) & (least < 1e-200))
    if not safe.all():
        slow = ~safe
        out[slow] = _libm_fma()(a[slow], b[slow], c[slow]).astype(np.float64)
    return out


def _halves(x: Array) -> tuple[Array, Array]:
    """Veltkamp's splitting: two numbers of 26 bits whose sum is x."""
    t = x * 134217729.0
    high = t - (t - x)
    return high, x - high


def _float_max(a: Array, b: Array) -> Array:
    out = np.maximum(a, b)  # NaN if either is
    return np.where((out == 0) & (a == b), np.where(np.signbit(a), b, a), out)  # of the two zeros the positive one


_ANY: dict[Ops, Callable[..., Array]] = {
    Ops.WHERE: np.where,
    Ops.MAX: np.maximum,
    Ops.CMPLT: np.less,
    Ops.CMPNE: np.not_equal,
    Ops.CMPEQ: np.equal,
    Ops.ADD: np.add,
    Ops.SUB: np.subtract,
    Ops.MUL: np.multiply,
}
_FLOAT: dict[Ops, Callable[..., Array]] = {
    Ops.EXP2: _wider(np.exp2),
    Ops.LOG2: _wider(np.log2),
    Ops.SIN: _wider(np.sin),
    Ops.SQRT: np.sqrt,
    Ops.RECIPROCAL: lambda x: x.dtype.type(1) / x,
    Ops.NEG: np.negative,
    Ops.TRUNC: np.trunc,
    Ops.FDIV: np.true_divide,
    Ops.POW: _wider(np.power),
    Ops.MAX: _float_max,
    Ops.MULACC: fused,
    Ops.FLOORDIV: np.floor_divide,
    Ops.FLOORMOD: np.mod,
    Ops.CDIV: lambda a, b: np.trunc(a / b),
    Ops.CMOD: np.fmod,
}
_INTEGER: dict[Ops, Callable[..., Array]] = {
    Ops.NEG: np.negative,
    Ops.TRUNC: lambda x: x,
    Ops.FLOORDIV: np.floor_divide,
    Ops.FLOORMOD: np.mod,
    Ops.CDIV: _c_div,
    Ops.CMOD: np.fmod,
    Ops.SHL: np.left_shift,
    Ops.SHR: np.right_shift,
    Ops.AND: np.bitwise_and,
    Ops.OR: np.bitwise_or,
    Ops.XOR: np.bitwise_xor,
    Ops.POW: _integer_pow,
    Ops.MULACC: lambda a, b, c: a * b + c,
    Ops.THREEFRY: threefry,
}
_BOOL: dict[Ops, Callable[..., Array]] = {
    Ops.ADD: np.logical_or,
    Ops.MUL: np.logical_and,
    Ops.SUB: np.logical_xor,
    Ops.MAX: np.logical_or,
    Ops.AND: np.logical_and,
    Ops.OR: np.logical_or,
    Ops.XOR: np.logical_xor,
    Ops.NEG: lambda x: x,
    Ops.MULACC: lambda a, b, c: (a & b) | c,
    Ops.CMPLT: lambda a, b: ~a & b,
}


_COMPOSED: dict[Ops, Callable[..., Array]] = {
    Ops.EXP2: np.exp,
    Ops.SIN: np.cos,
    Ops.LOG2: lambda x: np.log1p(x) / np.log(x.dtype.type(2)),
}


def composed(op: Ops, x: Array, dtype: DType) -> Array:
    """e**x, cos(x) or log2(1 + x), for the EXP2, SIN or LOG2 that stands for it (`aril/uop/composed.py`)."""
    out = _wider(_COMPOSED[op])(x)
    return round_to(out, dtype) if dtype not in _NATIVE else out.astype(register_type(dtype))
