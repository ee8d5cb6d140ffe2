"""Dtypes a target lacks (bfloat16, fp8, float16): kept as unsigned integers in memory, as float32 in registers.

In comes kernel form, out goes kernel form without those dtypes. Every result is rounded to the missing type's values,
once, to nearest even, as if the target had it. `EMULATED_DTYPES` names types to treat so where the target has them.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Set
from types import MappingProxyType

from aril.codegen.transcendental import Arithmetic
from aril.config import EMULATED_DTYPES
from aril.dtype import DType, dtypes, float_max, to_dtype, wrap
from aril.ops import OpGroup, Ops
from aril.renderer.base import Renderer
from aril.uop.args import AddrSpace
from aril.uop.composed import composed, operand_of
from aril.uop.node import UOp

_U32, _F32, _F64 = dtypes.uint32, dtypes.float32, dtypes.float64
_UNSIGNED = {1: dtypes.uint8, 2: dtypes.uint16}
_EXACT = frozenset({Ops.WHERE, Ops.MAX, Ops.NEG, Ops.TRUNC})  # their results are among the operands' values
_A = Arithmetic(fma=False)


def emulated(renderer: Renderer) -> frozenset[DType]:
    """The float types that are computed through float32 on this target.

    Errors: TypeError for a name in EMULATED_DTYPES that is no dtype, ValueError for a type this cannot be done for.
    """
    small = {d for d in dtypes.floats if d.itemsize < 4}
    asked = _asked()
    if asked - small:
        names = ", ".join(sorted(d.name for d in asked - small))
        raise ValueError(f"EMULATED_DTYPES: {names} cannot be emulated, only floats of 8 and 16 bits can")
    return frozenset(asked | {d for d in small if d not in renderer.dtypes})


def _asked() -> set[DType]:
    return {to_dtype(name.strip()) for name in EMULATED_DTYPES.value.split(",") if name.strip()}


def is_emulated_on_request(dtype: DType) -> bool:
    """Whether EMULATED_DTYPES names the type."""
    return dtype in _asked()


def emulate(sink: UOp, renderer: Renderer) -> UOp:
    """`sink` without the dtypes that `emulated` lists.

    before: STORE(INDEX(PARAM(bfloat16), i), ADD(LOAD(..), x))
    after:  STORE(INDEX(PARAM(uint16), i), encode(round(ADD(decode(LOAD(..)), x))))
    """
    order = sink.toposort()
    missing = {u.dtype for u in order} & emulated(renderer)
    if not missing:
        return sink
    coded = {u.src[0].src[0].src[0].base for u in order if _reads_bits(u) and u.src[0].dtype in missing}
    done: dict[UOp, UOp] = {}
    codes: dict[UOp, UOp] = {}
    for u in order:
        src = tuple([done[s] for s in u.src])
        if u.dtype in missing:
            code = _moved(u, src, codes)
            if code is not None:
                codes[u] = code
        done[u] = _replace(u, src, done, missing, coded, codes)
    return done[sink]


def _reads_bits(u: UOp) -> bool:
    """Whether `u` asks for the bits of elements that lie in memory."""
    return u.op is Ops.BITCAST and u.src[0].op is Ops.LOAD


def _moved(u: UOp, src: tuple[UOp, ...], codes: dict[UOp, UOp]) -> UOp | None:
    """The bits of a value that is only moved: loaded, picked from vectors, put into others. None for a computed one."""
    kind = _UNSIGNED[u.dtype.itemsize]
    if u.op is Ops.CONST:
        return UOp.const(kind, _code(wrap(u.arg, u.dtype), u.dtype))
    if u.op is Ops.LOAD:
        return None if src[0].dtype is _F32 else _load_code(u, src, u.dtype)
    first = 1 if u.op is Ops.WHERE else 0
    values = u.src[first:] if u.op in (Ops.WHERE, Ops.STACK) else u.src[:1] if u.op in (Ops.INDEX, Ops.SHRINK) else ()
    if not values or any(s not in codes for s in values):
        return None
    bits = tuple([codes[s] for s in values])
    return UOp(u.op, (*src[:first], *bits, *src[first + len(bits) :]), u.arg)


def _replace(
    u: UOp,
    src: tuple[UOp, ...],
    done: dict[UOp, UOp],
    missing: set[DType],
    coded: Set[UOp] = frozenset(),
    codes: Mapping[UOp, UOp] = MappingProxyType({}),
) -> UOp:
    kind = u.dtype
    if u.op in OpGroup.COMPARISON:
        kind = next((s.dtype for s in u.src if s.dtype in missing), kind)
    if u.op is Ops.STORE and u.src[0].dtype in missing:
        kind = u.src[0].dtype
        if src[0].dtype is not _F32:
            code = codes.get(u.src[1])
            if code is None:
                code = encode(_as_value(u.src[1], src[1], kind), kind)
            return UOp(Ops.STORE, (src[0], code, *src[2:]))
        return UOp(Ops.STORE, (src[0], _as_value(u.src[1], src[1], kind), *src[2:]))
    if u.op is Ops.BITCAST and u.src[0].dtype in missing:
        code = codes.get(u.src[0])
        return (encode(src[0], u.src[0].dtype) if code is None else code).bitcast(u.dtype)
    if u.op is Ops.CAST and u.src[0].dtype in missing and kind not in missing:
        return src[0].cast(kind)
    if kind not in missing:
        return u.with_src(src) if src else u
    if u.op in OpGroup.STORAGE:
        # memory of the kernel's own holds float32 (a panel is read many times for once that it is filled), but bits
        # where bits are read
        dtype = _UNSIGNED[kind.itemsize] if u.arg.addrspace is AddrSpace.GLOBAL or u in coded else _F32
        return UOp(u.op, (), u.arg._replace(dtype=dtype), dtype)
    if u.op is Ops.CONST:
        return UOp.const(_F32, u.arg)
    if u.op is Ops.Invalid:
        return UOp.invalid(_F32)
    if u.op is Ops.LOAD:
        return _load(u, src, kind)
    if u.op is Ops.CAST:
        return round_to(_to_single(src[0]), kind) if u.src[0].dtype.kind != "b" else src[0].cast(_F32)
    if u.op is Ops.BITCAST:
        return decode(src[0].bitcast(_UNSIGNED[kind.itemsize]), kind)
    if u.op is Ops.ATOMIC:
        raise NotImplementedError(f"an ATOMIC on {kind.name}, which this target lacks: accumulate in float32 instead")
    if u.op in OpGroup.ALU or u.op is Ops.STACK:
        first = 1 if u.op is Ops.WHERE else 0
        values = [_as_value(s, n, kind) for s, n in zip(u.src[first:], src[first:], strict=True)]
        operand = operand_of(u)
        if operand is not None:  # what stands for exp or cos is not rounded on the way
            out = composed(u.op, _as_value(operand, done[operand], kind))
        else:
            out = UOp(u.op, (*src[:first], *values))
        return out if u.op in _EXACT or u.op is Ops.STACK or u.op in OpGroup.COMPARISON else round_to(out, kind)
    return u.with_src(src)


def _as_value(old: UOp, new: UOp, kind: DType) -> UOp:
    """An operand as float32 on the grid of `kind`: a weak number takes the type's value, as it would in that type."""
    if old.op is Ops.CONST:
        return UOp.const(_F32, wrap(old.arg, kind))
    if old.op is Ops.Invalid:
        return UOp.invalid(_F32)
    return new if new.dtype is _F32 else round_to(_to_single(new), kind)


def _load(u: UOp, src: tuple[UOp, ...], kind: DType) -> UOp:
    if src[0].dtype is _F32:
        alternative = tuple([_as_value(s, n, kind) for s, n in zip(u.src[1:2], src[1:2], strict=True)])
        return UOp(Ops.LOAD, (src[0], *alternative, *src[2:]), u.arg)
    return decode(_load_code(u, src, kind), kind)


def _load_code(u: UOp, src: tuple[UOp, ...], kind: DType) -> UOp:
    """LOAD `u` from memory that holds bits, as bits."""
    alternative: tuple[UOp, ...] = ()
    if len(src) > 1:
        if u.src[1].op is Ops.CONST:
            code = _code(wrap(u.src[1].arg, kind), kind)
            alternative = (UOp.const(_UNSIGNED[kind.itemsize], code),)
        else:
            alternative = (encode(_as_value(u.src[1], src[1], kind), kind),)
    return UOp(Ops.LOAD, (src[0], *alternative, *src[2:]), u.arg)


# ----------------------------------------------------------------------------------------------------------- formats


def _bias(dtype: DType) -> int:
    return int(2 ** (dtype.exponent - 1) - 1 + dtype.name.endswith("fnuz"))


def _has_infinity(dtype: DType) -> bool:
    return dtype in (dtypes.float16, dtypes.bfloat16, dtypes.fp8e5m2)


def _top(dtype: DType) -> int:
    """The code of the first number whose exponent bits are all ones."""
    return int((2**dtype.exponent - 1) << dtype.mantissa)


def _quiet(dtype: DType) -> int:
    """The code of NaN."""
    if dtype.name.endswith("fnuz"):
        return 0x80
    return 0x7F if dtype is dtypes.fp8e4m3 else _top(dtype) | 1 << (dtype.mantissa - 1)


def _code(value: float, dtype: DType) -> int:
    """The bits of a number of the format."""
    if value != value:
        return _quiet(dtype)
    sign = 1 << (dtype.bits - 1) if math.copysign(1.0, value) < 0 else 0
    if dtype.name.endswith("fnuz") and value == 0:
        sign = 0
    if math.isinf(value):
        return sign | _top(dtype)
    lowest = 1 - _bias(dtype)
    exponent = max(math.frexp(value)[1] - 1, lowest) if value else lowest
    return sign | (int(math.ldexp(abs(value), dtype.mantissa - exponent)) + ((exponent - lowest) << dtype.mantissa))


def _single_bits(value: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def decode(code: UOp, dtype: DType) -> UOp:
    """The float32 value of the bits `code` (uint8 or uint16). Every value of the formats is one of float32's."""
    a, wide = _A, code.cast(_U32)
    if dtype is dtypes.bfloat16:
        return a.shl(wide, 16).bitcast(_F32)
    cut, sign_bit = 23 - dtype.mantissa, 1 << (dtype.bits - 1)
    sign, size = a.shl(a.both(wide, sign_bit), 32 - dtype.bits), a.both(wide, sign_bit - 1)
    shifted = a.shl(size, cut)
    bits = a.add(shifted, (127 - _bias(dtype)) << 23)
    small = a.mul(size.cast(dtypes.int32).cast(_F32), 2.0 ** (1 - _bias(dtype) - dtype.mantissa)).bitcast(_U32)
    bits = a.where(a.less(size, 1 << dtype.mantissa), small, bits)
    if _has_infinity(dtype):
        bits = a.where(a.less(size, _top(dtype)), bits, a.either(shifted, 0x7F800000))
    else:
        bits = a.where(a.equal(wide if _quiet(dtype) == 0x80 else size, _quiet(dtype)), 0x7FC00000, bits)
    return a.either(bits, sign).bitcast(_F32)


def round_to(x: UOp, dtype: DType) -> UOp:
    """float32 `x` rounded to the nearest value of the format (ties to even); beyond its range infinity or NaN."""
    a, bits = _A, x.bitcast(_U32)
    cut = 23 - dtype.mantissa
    if dtype is dtypes.bfloat16:
        up = a.add(a.both(a.shr(bits, cut), 1), (1 << (cut - 1)) - 1)
        rounded = a.both(a.add(bits, up), (0xFFFFFFFF >> cut) << cut).bitcast(_F32)
        return a.where(a.differ(x, x), math.nan, rounded)
    sign, size = a.both(bits, 1 << 31), a.both(bits, (1 << 31) - 1)
    up = a.add(a.both(a.shr(size, cut), 1), (1 << (cut - 1)) - 1)
    usual = a.both(a.add(size, up), (0xFFFFFFFF >> cut) << cut)
    # below the normal numbers the step is constant: adding a number of that last place rounds to it
    lowest = 1 - _bias(dtype)
    magic = 1.5 * 2.0 ** (23 + lowest - dtype.mantissa)
    small = a.sub(a.add(size.bitcast(_F32), magic), magic).bitcast(_U32)
    out = a.where(a.less(size, _single_bits(2.0**lowest)), small, usual)
    over = a.less(_single_bits(float_max(dtype)), out)
    if _has_infinity(dtype):
        beyond: UOp | int = a.where(a.less(0x7F800000, size), 0x7FC00000, size.const_like(0x7F800000))
    else:
        beyond = 0x7FC00000
    out = a.where(over, beyond, out)
    if dtype.name.endswith("fnuz"):
        sign = a.where(a.equal(out, 0), 0, sign)
    return a.either(out, sign).bitcast(_F32)


def encode(x: UOp, dtype: DType) -> UOp:
    """The bits of float32 `x`, a value of the format, as uint8 or uint16."""
    a, bits, unsigned = _A, x.bitcast(_U32), _UNSIGNED[dtype.itemsize]
    if dtype is dtypes.bfloat16:
        return a.shr(bits, 16).cast(unsigned)
    cut = 23 - dtype.mantissa
    sign, size = a.both(a.shr(bits, 32 - dtype.bits), 1 << (dtype.bits - 1)), a.both(bits, (1 << 31) - 1)
    lowest = 1 - _bias(dtype)
    usual = a.sub(a.shr(size, cut), (127 - _bias(dtype)) << dtype.mantissa)
    steps = a.mul(size.bitcast(_F32), 2.0 ** (dtype.mantissa - lowest))
    small = a.less(size, _single_bits(2.0**lowest))
    code = a.where(small, a.where(small, steps, 0.0).cast(dtypes.int32).cast(_U32), usual)
    if _has_infinity(dtype):
        special = a.where(a.equal(size, 0x7F800000), _top(dtype), size.const_like(_quiet(dtype)))
        code = a.where(a.less(size, 0x7F800000), code, special)
        return a.either(code, sign).cast(unsigned)
    finite = a.less(size, 0x7F800000)
    if _quiet(dtype) == 0x80:  # one NaN, in the place of the negative zero
        return a.where(finite, a.either(code, a.where(a.equal(code, 0), 0, sign)), 0x80).cast(unsigned)
    return a.either(a.where(finite, code, _quiet(dtype)), sign).cast(unsigned)


# ------------------------------------------------------------------------------------------------------------- casts


def _to_single(x: UOp) -> UOp:
    """`x` as a float32 from which a further rounding to fewer bits is as if from `x` itself ("round to odd")."""
    kind = x.dtype
    if kind is _F32:
        return x
    if kind is _F64:
        return _odd(x)
    if kind.kind == "f" or kind.itemsize <= 2 or (x.vmin >= -(2**24) and x.vmax <= 2**24):
        return x.cast(_F32)
    if kind.itemsize == 4 or (x.vmin >= -(2**53) and x.vmax <= 2**53):
        return _odd(x.cast(_F64))
    # the bits that float64 cannot hold become one
    a = _A
    sticky = a.where(a.differ(a.both(x, 2047), 0), x.const_like(1), x.const_like(0))
    high = a.either(a.shr(x, 11), sticky).cast(_F64)
    fits = a.less(x, 2**53)
    if kind.kind == "i":
        fits = a.both(fits, a.less(-(2**53), x))
    return _odd(a.where(fits, x.cast(_F64), a.mul(high, 2048.0)))


def _odd(x: UOp) -> UOp:
    a = _A
    near = x.cast(_F32)
    back, bits = near.cast(_F64), near.bitcast(_U32)
    absolute: Callable[[UOp], UOp] = lambda v: a.both(v.bitcast(dtypes.uint64), (1 << 63) - 1)  # noqa: E731
    away = a.less(absolute(x), absolute(back))
    below = a.where(away, a.sub(bits, 1), bits)
    return a.where(a.equal(back, x), bits, a.either(below, 1)).bitcast(_F32)
