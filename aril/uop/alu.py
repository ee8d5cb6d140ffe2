"""Arithmetic on constants: `exec_alu` computes one elementwise operation in Python as the compiled kernel would.

In: an operation, its result type, Python scalars. Out: a Python scalar of that type. Integers wrap, floats are IEEE 754
rounded to their type; x // 0 and x % 0 of integers are 0 (as in NumPy), shifts by the width or more shift all bits out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from aril.dtype import DType, PyScalar, wrap
from aril.ops import Ops


def _float_div(a: float, b: float) -> float:
    if b == 0:
        if a != a or a == 0:
            return math.nan
        return math.copysign(math.inf, a) * math.copysign(1.0, b)
    return a / b


def _float_max(a: float, b: float) -> float:
    if a != a or b != b:
        return math.nan
    if a == b:  # of the two zeros the positive one is greater
        return a if math.copysign(1.0, a) > 0 else b
    return a if a > b else b


def _exp2(x: float) -> float:
    try:
        return math.pow(2.0, x)
    except OverflowError:
        return math.inf


def _log2(x: float) -> float:
    if x == 0:
        return -math.inf
    return math.nan if x < 0 else math.log2(x)


def _pow(a: float, b: float) -> float:
    odd = b == b and math.isfinite(b) and b % 2 == 1
    try:
        return math.pow(a, b)
    except OverflowError:
        return -math.inf if a < 0 and odd else math.inf
    except ValueError:
        if a == 0 and b < 0:
            return math.copysign(math.inf, a) if odd else math.inf
        return math.nan


def _int_pow(a: int, b: int, dtype: DType) -> int:
    if b < 0:  # the quotient 1 / a**-b, towards zero
        return 0 if abs(a) != 1 else (1 if a == 1 or b % 2 == 0 else -1)
    return a**b if dtype.weak else pow(a, b, 1 << dtype.bits)


def _cdiv(a: int, b: int) -> int:
    if b == 0:
        return 0
    q = abs(a) // abs(b)
    return -q if (a < 0) != (b < 0) else q


def _shift(a: int, b: int, dtype: DType, left: bool) -> int:
    width = 1 << 16 if dtype.weak else dtype.bits
    if b < 0 or b >= width:
        return 0 if left or a >= 0 else -1
    return a << b if left else a >> b


_FLOAT: dict[Ops, Callable[..., Any]] = {
    Ops.ADD: lambda a, b: a + b,
    Ops.SUB: lambda a, b: a - b,
    Ops.MUL: lambda a, b: a * b,
    Ops.FDIV: _float_div,
    Ops.MAX: _float_max,
    Ops.POW: _pow,
    Ops.NEG: lambda a: -a,
    Ops.RECIPROCAL: lambda a: _float_div(1.0, a),
    Ops.EXP2: _exp2,
    Ops.LOG2: _log2,
    Ops.SIN: lambda a: math.sin(a) if math.isfinite(a) else math.nan,
    Ops.SQRT: lambda a: math.nan if a < 0 else math.sqrt(a),
    Ops.TRUNC: lambda a: math.copysign(float(math.trunc(a)), a) if math.isfinite(a) else a,
}
_INT: dict[Ops, Callable[..., Any]] = {
    Ops.ADD: lambda a, b: a + b,
    Ops.SUB: lambda a, b: a - b,
    Ops.MUL: lambda a, b: a * b,
    Ops.MAX: max,
    Ops.NEG: lambda a: -a,
    Ops.TRUNC: lambda a: a,
    Ops.CDIV: _cdiv,
    Ops.CMOD: lambda a, b: a - _cdiv(a, b) * b if b else 0,
    Ops.FLOORDIV: lambda a, b: a // b if b else 0,
    Ops.FLOORMOD: lambda a, b: a % b if b else 0,
    Ops.AND: lambda a, b: a & b,
    Ops.OR: lambda a, b: a | b,
    Ops.XOR: lambda a, b: a ^ b,
    Ops.MULACC: lambda a, b, c: a * b + c,
}
_BOOL: dict[Ops, Callable[..., Any]] = {
    Ops.ADD: lambda a, b: a or b,
    Ops.MUL: lambda a, b: a and b,
    Ops.MAX: lambda a, b: a or b,
    Ops.AND: lambda a, b: a and b,
    Ops.OR: lambda a, b: a or b,
    Ops.XOR: lambda a, b: a != b,
}
_COMPARE: dict[Ops, Callable[..., bool]] = {
    Ops.CMPLT: lambda a, b: a < b,
    Ops.CMPNE: lambda a, b: a != b,
    Ops.CMPEQ: lambda a, b: a == b,
}


def exec_alu(op: Ops, dtype: DType, values: tuple[PyScalar, ...]) -> PyScalar | None:
    """`op(*values)` as a value of `dtype` (for comparisons the type of the operands is that of `values`).

    None where Python cannot say what the kernel will compute (WMMA, THREEFRY, a fused multiply-add of floats).
    """
    if op in _COMPARE:
        return _COMPARE[op](*values)
    if op is Ops.WHERE:
        return values[1] if values[0] else values[2]
    if dtype.kind == "f":
        f = _FLOAT.get(op)
        if f is None:
            return None
        result = f(*[float(v) for v in values])
        return wrap(result, dtype)
    if dtype.kind == "b":
        f = _BOOL.get(op)
        return None if f is None else bool(f(*values))
    if any(v.__class__ is float for v in values):
        return None
    if op is Ops.POW:
        return wrap(_int_pow(int(values[0]), int(values[1]), dtype), dtype)
    if op in (Ops.SHL, Ops.SHR):
        return wrap(_shift(int(values[0]), int(values[1]), dtype, op is Ops.SHL), dtype)
    f = _INT.get(op)
    return None if f is None else wrap(f(*[int(v) for v in values]), dtype)
