"""Casts and floats: the few steps that hold for NaN, infinities and signed zero, and casts that change nothing.

In: a node over simplified sources. Out: a better node, or None. Floats are never reassociated here.
"""

from __future__ import annotations

import math

from aril.dtype import DType, can_hold, dtypes
from aril.ops import Ops
from aril.uop.bounds import in_type
from aril.uop.linear import is_int
from aril.uop.node import UOp


def cast(u: UOp) -> UOp | None:
    """A cast of a constant, of the same type, to bool, or of a cast that changed nothing."""
    x, to = u.src[0], u.dtype
    if x.dtype is to:
        return x
    if x.op is Ops.CONST:
        return UOp.const(to, x.arg)
    if x.op is Ops.Invalid:
        return UOp.invalid(to)
    if x.op is Ops.CAST:
        y = x.src[0]
        if _holds(x.dtype, y) and _same_cast(x.dtype, y, to):
            return y.cast(to)
        if (
            is_int(y.dtype)
            and is_int(x.dtype)
            and is_int(to)
            and not to.weak
            and not x.dtype.weak
            and to.bits <= x.dtype.bits
        ):
            return y.cast(to)  # of a wrapped number only the low bits count
    if to.kind == "b" and is_int(x.dtype):
        return UOp(Ops.CMPNE, (x, UOp.const(x.dtype, 0)))
    if x.op is Ops.WHERE and x.src[2].op is Ops.Invalid:
        return UOp(Ops.WHERE, (x.src[0], x.src[1].cast(to), UOp.invalid(to)))
    return None


def _holds(middle: DType, x: UOp) -> bool:
    """True where every value `x` has is exactly a value of `middle`."""
    if is_int(x.dtype) and is_int(middle):
        return middle.weak or in_type(x.bounds, middle) == x.bounds
    if x.dtype.weak:
        return False
    return middle is not dtypes.weakfloat and can_hold(middle, x.dtype)


def _same_cast(middle: DType, x: UOp, to: DType) -> bool:
    """True where a value casts alike from `middle` and from its own type (floats saturate, integers wrap)."""
    if middle.kind == "f" and x.dtype.kind != "f":
        return to.kind in "fb" or can_hold(to, x.dtype)
    return True


def bitcast(u: UOp) -> UOp | None:
    """BITCAST of the same type or of another BITCAST."""
    x = u.src[0]
    if x.dtype is u.dtype:
        return x
    if x.op is Ops.BITCAST and x.src[0].dtype.itemsize == u.dtype.itemsize == x.dtype.itemsize:
        return x.src[0].bitcast(u.dtype)
    return None


def _never_negative_zero(x: UOp) -> bool:
    if x.op is Ops.CAST:
        return x.src[0].dtype.kind in "iub"
    if x.op is Ops.CONST:
        return bool(x.arg != 0) or math.copysign(1.0, x.arg) > 0
    if x.op is Ops.ADD:  # -0 only as the sum of two of them
        return any(
            s.op is Ops.CONST and (s.arg != 0 or math.copysign(1.0, s.arg) > 0) or s.op is Ops.EXP2 for s in x.src
        )
    return x.op is Ops.EXP2 or (x.op is Ops.MUL and x.src[0] is x.src[1])


def add(u: UOp) -> UOp | None:
    """a + b: x + -0.0 is x; x + 0.0 is x only where x cannot be -0.0."""
    a, b = u.src
    if b.op is Ops.CONST and b.arg == 0 and (math.copysign(1.0, b.arg) < 0 or _never_negative_zero(a)):
        return a
    return None


def fdiv(u: UOp) -> UOp | None:
    """a / b by 1 or by a power of two."""
    a, b = u.src
    if b.op is not Ops.CONST or u.dtype.kind != "f":
        return None
    if b.arg == 1:
        return a
    mantissa, exponent = math.frexp(b.arg) if math.isfinite(b.arg) else (0.0, 0)
    # a power of two whose reciprocal is a normal number divides exactly by multiplication
    if abs(mantissa) == 0.5 and abs(exponent) < 2 ** (u.dtype.exponent - 1) - 3:
        return UOp(Ops.MUL, (a, UOp.const(u.dtype, 1.0 / b.arg)))
    return None


def trunc(u: UOp) -> UOp | None:
    """TRUNC of what is whole already."""
    x = u.src[0]
    return x if is_int(x.dtype) or x.op is Ops.TRUNC or (x.op is Ops.CAST and x.src[0].dtype.kind in "iub") else None
