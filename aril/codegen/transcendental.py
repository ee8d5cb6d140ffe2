"""EXP2, LOG2, SIN and POW of float32 and float64 in operations that every target has: no tables, no branches.

In comes an expression, scalar or vector; out goes one in additions, products, comparisons and bit operations. The
polynomials interpolate at Chebyshev nodes, computed in 200-bit arithmetic; their errors are below 2**-27 and 2**-56,
below 2**-29 where sines and powers of float32 are evaluated in float64.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from aril.codegen import coefficients
from aril.codegen.limits import Limits, limits
from aril.dtype import DType, dtypes
from aril.ops import Ops
from aril.uop.composed import LOG2E, operand_of
from aril.uop.node import UOp

_LOG2E_LOW = 2.0355273740931033e-17  # log2(e) less the float64 above

# the first 1408 bits of 1 / pi after the binary point
_ONE_OVER_PI = int(
    "517cc1b727220a94fe13abe8fa9a6ee06db14acc9e21c820ff28b1d5ef5de2b0db92371d2126e9700324977504e8c90e7f0ef58e5894d39f"
    "74411afa975da24274ce38135a2fbf209cc8eb1cc1a99cfa4e422fc5defc941d8ffc4bffef02cc07f79788c5ad05368fb69b3f6793e584db"
    "a7a31fb34f2ff516ba93dd63f5f2f8bd9e839cfbc529497535fdafd88fc6ae842b0198237e3db5d5f867de104d7a1b0ed4f1c8b0af730d84"
    "32ccc2af8a503420",
    16,
)

# (limit of |x|, bits of 1 / pi left out) for the sine of float32. From 2**(24 + bits) on the last bit of x times a bit
# left out is even; a set serves a factor 2**26 of x, for the integers next to x / pi then stay below 2**50.
_SETS = ((2.0**50, 0), (2.0**76, 26), (2.0**102, 52), (2.0**128, 78))

LONG = 12  # coefficients of a polynomial from which two shorter chains are worth a multiplication


@dataclass(frozen=True)
class _Format:
    """What the bit tricks need of a float format."""

    signed: DType
    unsigned: DType
    mantissa: int
    bias: int
    bits: int


_FORMATS = {
    dtypes.float32: _Format(dtypes.int32, dtypes.uint32, 23, 127, 32),
    dtypes.float64: _Format(dtypes.int64, dtypes.uint64, 52, 1023, 64),
}


@dataclass(frozen=True)
class Arithmetic:
    """Builds expressions; Python numbers become constants of the other operand's type. `fma`: the target has MULACC."""

    fma: bool = True

    @staticmethod
    def op(op: Ops, *operands: UOp | float) -> UOp:
        """`op` of nodes and numbers; the numbers take the dtype of the last node among the operands."""
        like = next(x for x in reversed(operands) if isinstance(x, UOp))
        return UOp(op, tuple([x if isinstance(x, UOp) else like.const_like(x) for x in operands]))

    def add(self, a: UOp | float, b: UOp | float) -> UOp:
        return self.op(Ops.ADD, a, b)

    def sub(self, a: UOp | float, b: UOp | float) -> UOp:
        return self.op(Ops.SUB, a, b)

    def mul(self, a: UOp | float, b: UOp | float) -> UOp:
        return self.op(Ops.MUL, a, b)

    def mad(self, a: UOp | float, b: UOp | float, c: UOp | float) -> UOp:
        """a * b + c, fused where the target has it."""
        return self.op(Ops.MULACC, a, b, c) if self.fma else self.add(self.mul(a, b), c)

    def shl(self, a: UOp, n: UOp | int) -> UOp:
        return self.op(Ops.SHL, a, n)

    def shr(self, a: UOp, n: UOp | int) -> UOp:
        return self.op(Ops.SHR, a, n)

    def both(self, a: UOp, b: UOp | int) -> UOp:
        return self.op(Ops.AND, a, b)

    def either(self, a: UOp, b: UOp | int) -> UOp:
        return self.op(Ops.OR, a, b)

    def xor(self, a: UOp, b: UOp | int) -> UOp:
        return self.op(Ops.XOR, a, b)

    def less(self, a: UOp | float, b: UOp | float) -> UOp:
        return self.op(Ops.CMPLT, a, b)

    def equal(self, a: UOp, b: UOp | float) -> UOp:
        return self.op(Ops.CMPEQ, a, b)

    def differ(self, a: UOp, b: UOp | float) -> UOp:
        return self.op(Ops.CMPNE, a, b)

    def where(self, condition: UOp, a: UOp | float, b: UOp | float) -> UOp:
        return self.op(Ops.WHERE, condition, a, b)

    def polynomial(self, x: UOp, coefficients: Sequence[float]) -> UOp:
        """The polynomial with these coefficients, the constant one first (at least two).

        Long ones as that of the even powers plus x times that of the odd ones: each step of a chain waits for the last,
        two chains half as long do not wait for each other.
        """
        if len(coefficients) < LONG:
            return self._horner(x, coefficients)
        square = self.mul(x, x)
        return self.mad(self._horner(square, coefficients[1::2]), x, self._horner(square, coefficients[::2]))

    def _horner(self, x: UOp, coefficients: Sequence[float]) -> UOp:
        out: UOp | float = coefficients[-1]
        for c in coefficients[-2::-1]:
            out = self.mad(out, x, c) if isinstance(out, UOp) else self.mad(x, out, c)
        assert isinstance(out, UOp)
        return out

    def product_error(self, a: UOp, b: UOp | float, p: UOp) -> UOp:
        """a * b - p exactly, where p is the rounded product."""
        if self.fma:
            return self.op(Ops.MULACC, a, b, self.op(Ops.NEG, p))
        split = 134217729.0 if p.dtype is dtypes.float64 else 4097.0  # Dekker's: the halves' products are exact
        b = b if isinstance(b, UOp) else a.const_like(b)

        def halves(x: UOp) -> tuple[UOp, UOp]:
            t = self.mul(x, split)
            high = self.sub(t, self.sub(t, x))
            return high, self.sub(x, high)

        (ah, al), (bh, bl) = halves(a), halves(b)
        e = self.sub(self.mul(ah, bh), p)
        return self.add(self.add(self.add(e, self.mul(ah, bl)), self.mul(al, bh)), self.mul(al, bl))


# ----------------------------------------------------------------------------------------------------------- EXP2


def exp2(x: UOp, a: Arithmetic) -> UOp:
    """2**x within 1 ulp, denormal results included; 17 operations, 12 or 13 where a limit of x is known."""
    f = _FORMATS[x.dtype]
    lift, low, high = _lift(limits(x), f)
    x = _clamp(x, low, high, a)
    shifted = a.add(x, _magic(f, lift))
    whole = a.sub(shifted, _magic(f, lift))
    return _power_of_two(a.sub(x, whole), shifted, a, lift)


def exp(x: UOp, a: Arithmetic) -> UOp:
    """e**x within 1 ulp: the EXP2 of x * log2(e) whose product is carried in more precision than it has."""
    if not a.fma:
        return exp2(a.mul(x, LOG2E), a)
    f = _FORMATS[x.dtype]
    high = float(x.const_like(LOG2E).arg)
    low = _LOG2E_LOW if x.dtype is dtypes.float64 else LOG2E - high
    least, most = limits(x)
    lift, bottom, top = _lift((least * LOG2E, most * LOG2E), f)
    x = _clamp(x, math.ceil(bottom / LOG2E) if bottom > -math.inf else bottom,
               math.floor(top / LOG2E) if top < math.inf else top, a)  # fmt: skip
    shifted = a.mad(x, high, _magic(f, lift))
    whole = a.sub(shifted, _magic(f, lift))
    return _power_of_two(a.mad(x, low, a.mad(x, high, a.op(Ops.NEG, whole))), shifted, a, lift)


def _lift(of: Limits, f: _Format) -> tuple[int | None, float, float]:
    """(lift, low, high) for 2**x with x within `of`: 2**(x + lift) is a normal number where x is within [low, high],
    and beyond them 2**x is the same as there. None: no lift does it for all x. Infinite: x does not go there."""
    half = f.bias / 2  # denormal numbers go less far below the normal ones
    if of[1] <= half - 8:
        lift, low, high = int(half), -1.5 * f.bias + 8, math.inf
    elif of[0] >= 8 - half:
        lift, low, high = -int(half), -math.inf, 1.5 * f.bias - 8
    else:
        return None, 4 - 2.0 * f.bias, 2.0 * f.bias - 4
    return lift, low if of[0] < low else -math.inf, high if of[1] > high else math.inf


def _magic(f: _Format, lift: int | None) -> float:
    """Added to a small number it leaves round(x) + bias + lift, or round(x) + 2 * bias, in the low bits of the sum."""
    return 1.5 * 2.0**f.mantissa + f.bias + (f.bias if lift is None else lift)


def _clamp(x: UOp, low: float, high: float, a: Arithmetic) -> UOp:
    """x within [low, high]; NaN stays (each WHERE is one minimum or maximum instruction)."""
    x = a.where(a.less(x, low), low, x) if low > -math.inf else x
    return a.where(a.less(high, x), high, x) if high < math.inf else x


def _power_of_two(fraction: UOp, shifted: UOp, a: Arithmetic, lift: int | None = None) -> UOp:
    """2**(fraction + n), where the low bits of `shifted` hold n + bias + lift: a power of two and a constant scale the
    fraction's. Without `lift` they hold n + 2 * bias: two halves of 2**n do. Either rounds a denormal result once and
    overflows to infinity."""
    f = _FORMATS[fraction.dtype]
    p = a.mad(a.polynomial(fraction, coefficients.EXP2[fraction.dtype]), fraction, 1.0)
    bits = shifted.bitcast(f.unsigned)
    if lift is not None:
        return a.mul(a.mul(p, a.shl(bits, f.mantissa).bitcast(fraction.dtype)), 2.0**-lift)
    half = a.shr(bits, 1)
    first = a.shl(half, f.mantissa).bitcast(fraction.dtype)
    second = a.shl(a.sub(bits, half), f.mantissa).bitcast(fraction.dtype)
    return a.mul(a.mul(p, first), second)


# ----------------------------------------------------------------------------------------------------------- LOG2


def _split_exponent(x: UOp, a: Arithmetic) -> tuple[UOp, UOp]:
    """(m, e) with x = m * 2**e and m from sqrt(1/2) to sqrt(2), for positive finite x, denormals among them."""
    f = _FORMATS[x.dtype]
    tiny = a.less(x, 2.0 ** (1 - f.bias))
    lift = f.mantissa + 2
    bits = a.where(tiny, a.mul(x, 2.0**lift), x).bitcast(f.signed)
    half = 0x3F3504F3 if x.dtype is dtypes.float32 else 0x3FE6A09E667F3BCD  # sqrt(1/2)
    e = a.shr(a.sub(bits, half), f.mantissa)
    m = a.sub(bits, a.shl(e, f.mantissa)).bitcast(x.dtype)
    return m, a.sub(e, a.where(tiny, bits.const_like(lift), bits.const_like(0))).cast(x.dtype)


def log2(x: UOp, a: Arithmetic) -> UOp:
    """log2(x) within 1.5 ulp; -inf at 0, NaN below it."""
    m, e = _split_exponent(x, a)
    return _usual_log2(x, a.add(_log2_of_mantissa(a.sub(m, 1.0), a), e), a)


def is_fit(u: UOp) -> bool:
    """Whether `u` is log2(1 + x) of an x that is from 0 to 1: a polynomial alone (`log2_of_fraction`)."""
    x = operand_of(u) if u.op is Ops.LOG2 else None
    low, high = (-math.inf, math.inf) if x is None else limits(x)
    return low >= 0.0 and high <= 1.0


def log2_of_fraction(x: UOp, a: Arithmetic) -> UOp:
    """log2(1 + x) for x from 0 to 1, within 2 ulp."""
    return a.mul(a.polynomial(x, coefficients.LOG2_OF_FRACTION[x.dtype]), x)


def log2_of_next(x: UOp, above: UOp, a: Arithmetic) -> UOp:
    """log2(1 + x) of x and of `above`, its sum with 1, rounded: near 1 what is above 1, and the sign of a zero, are
    not those of the sum. Within 2 ulp."""
    m, e = _split_exponent(above, a)
    near = a.equal(e, 0.0)
    out = _log2_of_mantissa(a.where(near, x, a.sub(m, 1.0)), a)
    return _usual_log2(above, a.where(near, out, a.add(out, e)), a)


def _log2_of_mantissa(f: UOp, a: Arithmetic) -> UOp:
    """log2(1 + f) for f from sqrt(1/2) - 1 to sqrt(2) - 1."""
    high = float(f.const_like(LOG2E).arg)
    low = _LOG2E_LOW if f.dtype is dtypes.float64 else LOG2E - high
    tail = a.mul(f, a.mad(f, a.polynomial(f, coefficients.LOG2[f.dtype]), low))
    return a.mad(f, high, tail)


def _usual_log2(x: UOp, out: UOp, a: Arithmetic) -> UOp:
    """`out`, the logarithm of a positive number, where x is one."""
    usual = a.both(a.less(0.0, x), a.less(x, math.inf))
    rest = a.where(a.less(x, 0.0), math.nan, a.where(a.equal(x, 0.0), -math.inf, x))
    return a.where(usual, out, rest)


# ------------------------------------------------------------------------------------------------------------ SIN


def sin(x: UOp, a: Arithmetic) -> UOp:
    """sin(x) for every finite x, within 1 ulp in float32, 2 in float64; NaN for infinities."""
    return _sin_single(x, a) if x.dtype is dtypes.float32 else _sin_double(x, a)


def cos(x: UOp, a: Arithmetic) -> UOp:
    """cos(x) as exactly: the sine half a turn of pi further on, which is added to x / pi."""
    return _sin_single(x, a, 0.5) if x.dtype is dtypes.float32 else _cos_double(x, a)


def _sin_single(x: UOp, a: Arithmetic, ahead: float = 0.0) -> UOp:
    """sin(pi f) in float64 for the distance f of x / pi + `ahead` to an integer next to it. Its parity gives the sign.

    Of 1 / pi those bits are taken that matter for x, as Payne and Hanek do (1983): bits whose products with the last
    bit of x are even are left out, so that a few sets of 109 bits serve all x. The products with the first two parts
    of a set are exact.
    """
    wide = x.cast(dtypes.float64)
    size = a.both(wide.bitcast(dtypes.uint64), (1 << 63) - 1).bitcast(dtypes.float64)
    parts: list[UOp] = [wide.const_like(v) for v in _inverse_of_pi(_SETS[-1][1])]
    for limit, start in _SETS[-2::-1]:
        below = a.less(size, limit)
        parts = [a.where(below, v, rest) for v, rest in zip(_inverse_of_pi(start), parts, strict=True)]
    product = a.mul(wide, parts[0])
    magic = 1.5 * 2.0**52
    turns = a.mad(wide, parts[1], product)
    shifted = a.add(a.add(turns, ahead) if ahead else turns, magic)
    whole = a.sub(shifted, magic)
    f = a.mad(wide, parts[2], a.mad(wide, parts[1], a.sub(product, a.sub(whole, ahead) if ahead else whole)))
    s = a.mul(f, a.polynomial(a.mul(f, f), coefficients.SIN_TURNS))
    return a.xor(s.bitcast(dtypes.uint64), a.shl(shifted.bitcast(dtypes.uint64), 63)).bitcast(s.dtype).cast(x.dtype)


def _inverse_of_pi(start: int) -> tuple[float, float, float]:
    """Three numbers of 28, 28 and 53 bits whose sum is 1 / pi less its first `start` bits after the point."""
    out, done = [], start
    for bits in (28, 28, 53):
        done += bits
        out.append((_ONE_OVER_PI >> 1408 - done & (1 << bits) - 1) * 2.0**-done)
    return out[0], out[1], out[2]


def _sin_double(x: UOp, a: Arithmetic) -> UOp:
    """The sine of |x| where that is below pi / 2, of its distance to the nearest multiple of pi beyond."""
    f = _FORMATS[x.dtype]
    bits = x.bitcast(f.unsigned)
    sign = a.both(bits, 1 << 63)
    size = a.xor(bits, sign)
    small = a.less(size, _bits_of(math.pi / 2, x.dtype))
    reduced, flip = _reduce_double(size, a)
    r = a.where(small, size.bitcast(x.dtype), reduced)
    z = a.mul(r, r)
    s = a.mad(a.mul(r, z), a.polynomial(z, coefficients.SIN), r)
    flip = a.xor(a.where(small, size.const_like(0), flip), sign)
    out = a.xor(s.bitcast(f.unsigned), flip).bitcast(x.dtype)
    return a.where(a.less(size, 2047 << 52), out, math.nan)


def _cos_double(x: UOp, a: Arithmetic) -> UOp:
    """The sine of pi / 2 - |x| where |x| is below 1, of the distance of |x| + pi / 2 to a multiple of pi beyond."""
    size = a.both(x.bitcast(dtypes.uint64), (1 << 63) - 1)
    small = a.less(size, _bits_of(1.0, x.dtype))
    reduced, flip = _reduce_double(size, a, 1 << 62)
    near = a.add(a.sub(math.pi / 2, size.bitcast(x.dtype)), 6.123233995736766e-17)
    r = a.where(small, near, reduced)
    z = a.mul(r, r)
    s = a.mad(a.mul(r, z), a.polynomial(z, coefficients.SIN), r)
    out = a.xor(s.bitcast(dtypes.uint64), a.where(small, size.const_like(0), flip)).bitcast(x.dtype)
    return a.where(a.less(size, 2047 << 52), out, math.nan)


def _bits_of(value: float, dtype: DType) -> int:
    single = dtype is dtypes.float32
    packed = struct.pack("<f" if single else "<d", value)
    return int(struct.unpack("<I" if single else "<Q", packed)[0])


def _words(count: int) -> list[UOp]:
    """`count` words of 64 bits: the bits of 1 / pi after 64 zeros."""
    padded, total = _ONE_OVER_PI, 1408 + 64
    return [UOp.const(dtypes.uint64, padded >> total - 64 * (i + 1) & (1 << 64) - 1) for i in range(count)]


def _select(words: Sequence[UOp], k: UOp, most: int, count: int, a: Arithmetic) -> list[UOp]:
    """`words[k : k + count]` for k up to `most`: a barrel shifter of WHEREs, one level a bit of k."""
    out = list(words)
    step = 1 << (most.bit_length() - 1)
    while step:
        taken = a.differ(a.both(k, step), 0)
        keep = min(count + step - 1, len(out))
        out = [a.where(taken, out[min(i + step, len(out) - 1)], out[i]) for i in range(keep)]
        step >>= 1
    return out[:count]


def _high_product(x: UOp, y: UOp, a: Arithmetic) -> UOp:
    """The upper 64 bits of the product of two uint64, by halves."""
    low = 0xFFFFFFFF
    x0, x1, y0, y1 = a.both(x, low), a.shr(x, 32), a.both(y, low), a.shr(y, 32)
    p01 = a.mul(x0, y1)
    middle = a.add(a.add(a.shr(a.mul(x0, y0), 32), a.both(p01, low)), a.mul(x1, y0))
    return a.add(a.add(a.mul(x1, y1), a.shr(p01, 32)), a.shr(middle, 32))


def _reduce_double(size: UOp, a: Arithmetic, ahead: int = 0) -> tuple[UOp, UOp]:
    """(r, flip) for the bits `size` of |x| >= 1: sin |x| = sin r or, where the sign bit `flip` is set, -sin r. With
    `ahead` of |x| + pi `ahead` / 2**63.

    As Payne and Hanek do, with 192 bits of 1 / pi and 128 of the product. Between pi / 2 and pi the sine mirrors, so
    the distance to the nearest multiple of pi is the complement.
    """
    f64 = dtypes.float64
    m = a.either(a.both(size, (1 << 52) - 1), 1 << 52)
    place = a.sub(a.shr(size, 52), 1023 - 11)
    k, shift = a.shr(place, 6), a.both(place, 63)
    t = _select(_words(20), k, 16, 4, a)
    # a shift by 64 - shift in two steps, so that shift 0 is no shift by the width
    w0, w1, w2 = [a.either(a.shl(t[i], shift), a.shr(a.shr(t[i + 1], 1), a.xor(shift, 63))) for i in range(3)]
    p1 = a.mul(m, w1)
    low = a.add(p1, _high_product(m, w2, a))
    carry = a.less(low, p1).cast(dtypes.uint64)
    high = a.add(a.add(a.mul(m, w0), _high_product(m, w1, a)), carry)
    high = a.add(high, ahead) if ahead else high
    twice = a.either(a.shl(high, 1), a.shr(low, 63))
    back = a.shr(twice.bitcast(dtypes.int64), 63).bitcast(dtypes.uint64)
    high_part, low_part = a.xor(twice, back), a.xor(a.shl(low, 1), back)
    # 53 bits exactly, and what is below them
    h = a.shr(high_part, 11).cast(dtypes.int64).cast(f64)
    rest = a.either(a.shl(a.both(high_part, 2047), 52), a.shr(low_part, 12)).cast(dtypes.int64).cast(f64)
    pi = math.pi * 2.0**-53
    r = a.mul(h, pi)
    tail = a.add(
        a.product_error(h, pi, r), a.mad(h, 1.2246467991473532e-16 * 2.0**-53, a.mul(rest, math.pi * 2.0**-116))
    )
    return a.add(r, tail), a.both(high, 1 << 63)


# ------------------------------------------------------------------------------------------------------------ POW


def power(x: UOp, y: UOp, a: Arithmetic) -> UOp:
    """x**y with the special cases of IEEE 754-2019's pow, within 1 ulp. float32 is computed in float64."""
    f = _FORMATS[x.dtype]
    size = a.both(x.bitcast(f.unsigned), (1 << (f.bits - 1)) - 1).bitcast(x.dtype)
    if x.dtype is dtypes.float32:
        out = _power_single(size.cast(dtypes.float64), y.cast(dtypes.float64), a).cast(dtypes.float32)
    else:
        out = _power_double(size, y, a)
    up = a.less(0.0, y)
    out = a.where(a.equal(size, 0.0), a.where(up, 0.0, x.const_like(math.inf)), out)
    out = a.where(a.equal(size, math.inf), a.where(up, math.inf, x.const_like(0.0)), out)
    whole = a.equal(a.op(Ops.TRUNC, y), y)
    half = a.mul(y, 0.5)
    odd = a.both(whole, a.differ(a.op(Ops.TRUNC, half), half))
    negative = a.less(x.bitcast(f.signed), 0)
    out = a.where(a.both(odd, negative), a.op(Ops.NEG, out), out)
    finite_negative = a.both(a.less(x, 0.0), a.less(-math.inf, x))
    out = a.where(a.both(finite_negative, a.equal(whole, False)), math.nan, out)
    out = a.where(a.either(a.differ(x, x), a.differ(y, y)), math.nan, out)
    # -1 to an infinite power is 1, and so is 1 to any and any to 0, NaN among them
    endless = a.both(
        a.equal(size, 1.0), a.equal(a.both(y.bitcast(f.signed), (1 << (f.bits - 1)) - 1), _bits_of(math.inf, x.dtype))
    )
    one = a.either(a.either(endless, a.equal(x, 1.0)), a.equal(y, 0.0))
    return a.where(one, 1.0, out)


def _power_single(x: UOp, y: UOp, a: Arithmetic) -> UOp:
    """x**y, held at 2**-400 and 2**400, of float64 that were positive float32: neither they nor the powers of two that
    matter are near the ends of float64, so that exponents are moved by additions to bits."""
    half, bias, mask = _bits_of(math.sqrt(0.5), x.dtype), 1023 << 52, (1 << 52) - 1
    t = a.add(x.bitcast(dtypes.uint64), bias - half)  # m from sqrt(1/2) to sqrt(2) in the mantissa, less the former
    m = a.add(a.both(t, mask), half).bitcast(x.dtype)
    e = a.sub(a.either(a.shr(t, 52), _bits_of(2.0**52, x.dtype)).bitcast(x.dtype), 2.0**52 + 1023)
    f = a.sub(m, 1.0)
    log2 = a.mad(f, a.mad(f, a.polynomial(f, coefficients.LOG2_OF_POWER), LOG2E), e)
    p = _clamp(a.mul(y, log2), -400.0, 400.0, a)
    shifted = a.add(p, 1.5 * 2.0**52)
    fraction = a.sub(p, a.sub(shifted, 1.5 * 2.0**52))
    out = a.mad(a.polynomial(fraction, coefficients.EXP2_OF_POWER), fraction, 1.0)
    return a.add(out.bitcast(dtypes.uint64), a.shl(shifted.bitcast(dtypes.uint64), 52)).bitcast(x.dtype)


def _power_double(x: UOp, y: UOp, a: Arithmetic) -> UOp:
    """exp2(y * log2(x)) with the logarithm and the product as sums of two float64 (x positive)."""
    m, e = _split_exponent(x, a)
    f, d = a.sub(m, 1.0), a.add(m, 1.0)
    d_low = a.sub(m, a.sub(d, 1.0))
    inverse = a.op(Ops.RECIPROCAL, d)
    s = a.mul(f, inverse)  # log2(m) = 2 / ln(2) * atanh(f / d)
    rest = a.add(a.op(Ops.NEG, a.product_error(s, d, f)), a.op(Ops.NEG, a.mul(s, d_low)))
    s_low = a.mul(rest, inverse)
    z = a.mul(s, s)
    z_low = a.mad(a.mul(s, 2.0), s_low, a.product_error(s, s, z))
    t = a.mul(z, a.polynomial(z, coefficients.ATANH))
    third, third_low = 0.3333333333333333, 1.850371707708594e-17
    u = a.add(t, third)
    u_low = a.add(a.add(a.sub(third, u), t), third_low)
    v = a.mul(z, u)
    v_low = a.add(a.product_error(z, u, v), a.mad(z, u_low, a.mul(z_low, u)))
    w = a.mul(s, v)
    w_low = a.add(a.product_error(s, v, w), a.mad(s, v_low, a.mul(s_low, v)))
    at = a.add(s, w)
    at_low = a.add(a.add(a.sub(s, at), w), a.add(s_low, w_low))
    k, k_low = 2 * LOG2E, 2 * _LOG2E_LOW
    q = a.mul(at, k)
    q_low = a.add(a.product_error(at, k, q), a.mad(at_low, k, a.mul(at, k_low)))
    high = a.add(e, q)
    low = a.add(a.add(a.sub(e, high), q), q_low)
    log = a.add(high, low)
    log_low = a.add(a.sub(high, log), low)
    p = a.mul(y, log)
    p_low = a.mad(y, log_low, a.product_error(y, log, p))
    limit = 2.0 * 1023 - 4
    near = a.both(a.less(-limit, p), a.less(p, limit))
    p = _clamp(p, -limit, limit, a)
    magic = _magic(_FORMATS[x.dtype], None)
    shifted = a.add(p, magic)
    fraction = a.add(a.sub(p, a.sub(shifted, magic)), a.where(near, p_low, 0.0))
    return _power_of_two(fraction, shifted, a)
