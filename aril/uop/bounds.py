"""Bounds of expressions: the least and greatest value of a node, derived from the bounds of its sources.

In: a node whose sources' bounds are known. Out: a pair (low, high), sound for every value the sources can take.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from aril.dtype import DType, dtypes, wrap
from aril.ops import OpGroup, Ops
from aril.uop.node import UOp

Bounds = tuple[Any, Any]
UNKNOWN: Bounds = (-math.inf, math.inf)
EITHER: Bounds = (False, True)


def full(dtype: DType) -> Bounds:
    """All values of a type; of a float every number, for NaN is among them and no comparison may be settled."""
    if dtype.kind == "f":
        return UNKNOWN
    return (0, 0) if dtype is dtypes.void else (dtype.min, dtype.max)


def fit(low: int, high: int, dtype: DType) -> Bounds:
    """[low, high] as values of `dtype`: all of them where the arithmetic may have wrapped (weak integers do not)."""
    if dtype.weak or (low >= dtype.min and high <= dtype.max):
        return (low, high)
    return (dtype.min, dtype.max)


def in_type(b: Bounds, dtype: DType) -> Bounds:
    """Bounds `b` of an integer operand once it is read as `dtype` (weak operands take the type of what they meet)."""
    if b[0] == b[1]:
        v = wrap(b[0], dtype)
        return (v, v)
    return fit(b[0], b[1], dtype)


def _corners(f: Callable[[int, int], int], a: Bounds, b: Bounds) -> Bounds:
    values = (f(a[0], b[0]), f(a[0], b[1]), f(a[1], b[0]), f(a[1], b[1]))
    return min(values), max(values)


def trunc_div(a: int, b: int) -> int:
    """Quotient rounded towards zero."""
    q = abs(a) // abs(b)
    return -q if (a < 0) != (b < 0) else q


def _floordiv(a: Bounds, b: Bounds, dtype: DType) -> Bounds:
    if b[0] <= 0 <= b[1]:
        # a division by zero is 0; otherwise no quotient exceeds the dividend
        m = max(abs(a[0]), abs(a[1]))
        return fit(-m if a[0] < 0 or b[0] < 0 else 0, m, dtype)
    return fit(*_corners(lambda x, y: x // y, a, b), dtype)


def _floormod(a: Bounds, b: Bounds, dtype: DType) -> Bounds:
    if b[0] > 0:
        if b[0] == b[1] and a[0] // b[0] == a[1] // b[0]:
            return (a[0] % b[0], a[1] % b[0])
        return (0, min(a[1], b[1] - 1) if a[0] >= 0 else b[1] - 1)
    if b[1] < 0:
        return (b[0] + 1, 0)
    return (min(0, b[0] + 1), max(0, b[1] - 1))


def _truncdiv(a: Bounds, b: Bounds, dtype: DType) -> Bounds:
    if b[0] <= 0 <= b[1]:
        m = max(abs(a[0]), abs(a[1]))
        return fit(-m if a[0] < 0 or b[0] < 0 else 0, m, dtype)
    return fit(*_corners(trunc_div, a, b), dtype)


def _truncmod(a: Bounds, b: Bounds, dtype: DType) -> Bounds:
    m = max(abs(b[0]), abs(b[1]), 1) - 1
    return (max(-m, a[0]) if a[0] < 0 else 0, min(m, a[1]) if a[1] > 0 else 0)


def _mul(a: Bounds, b: Bounds, dtype: DType) -> Bounds:
    return fit(*_corners(lambda x, y: x * y, a, b), dtype)


def _max(a: Bounds, b: Bounds, dtype: DType) -> Bounds:
    return (max(a[0], b[0]), max(a[1], b[1]))


def _shl(a: Bounds, b: Bounds, dtype: DType) -> Bounds:
    if b[0] < 0 or b[1] > 128:
        return full(dtype)
    return fit(*_corners(lambda x, y: x << y, a, b), dtype)


def _shr(a: Bounds, b: Bounds, dtype: DType) -> Bounds:
    if b[0] < 0:
        return (min(a[0], 0), max(a[1], 0)) if dtype.kind == "u" or a[0] >= 0 else (min(a[0], -1), max(a[1], 0))
    return _corners(lambda x, y: x >> min(y, 4096), a, b)


def _and(a: Bounds, b: Bounds, dtype: DType) -> Bounds:
    if a[0] >= 0 and b[0] >= 0:
        return (0, min(a[1], b[1]))
    if a[0] >= 0:
        return (0, a[1])
    if b[0] >= 0:
        return (0, b[1])
    return full(dtype)


def _or(a: Bounds, b: Bounds, dtype: DType) -> Bounds:
    if a[0] >= 0 and b[0] >= 0:
        return (max(a[0], b[0]), (1 << max(a[1].bit_length(), b[1].bit_length())) - 1)
    return full(dtype)


def _xor(a: Bounds, b: Bounds, dtype: DType) -> Bounds:
    if a[0] >= 0 and b[0] >= 0:
        return (0, (1 << max(int(a[1]).bit_length(), int(b[1]).bit_length())) - 1)
    if b == (-1, -1):  # all bits inverted: -x - 1
        return (-a[1] - 1, -a[0] - 1)
    return full(dtype)


_BINARY: dict[Ops, Callable[[Bounds, Bounds, DType], Bounds]] = {
    Ops.ADD: lambda a, b, d: fit(a[0] + b[0], a[1] + b[1], d),
    Ops.SUB: lambda a, b, d: fit(a[0] - b[1], a[1] - b[0], d),
    Ops.MUL: _mul,
    Ops.MAX: _max,
    Ops.FLOORDIV: _floordiv,
    Ops.FLOORMOD: _floormod,
    Ops.CDIV: _truncdiv,
    Ops.CMOD: _truncmod,
    Ops.SHL: _shl,
    Ops.SHR: _shr,
    Ops.AND: _and,
    Ops.OR: _or,
    Ops.XOR: _xor,
}


def operand_type(u: UOp) -> DType:
    """The type in which the operands of an elementwise node are read (that of a comparison is not its result's)."""
    if u.op not in OpGroup.COMPARISON:
        return u.dtype
    a, b = u.src[0].dtype, u.src[1].dtype
    return b if a.weak and not b.weak else a


def _compare(op: Ops, a: Bounds, b: Bounds) -> Bounds:
    if op is Ops.CMPLT:
        if a[1] < b[0]:
            return (True, True)
        return (False, False) if a[0] >= b[1] else EITHER
    apart = a[1] < b[0] or b[1] < a[0]
    same = a[0] == a[1] == b[0] == b[1]
    if not apart and not same:
        return EITHER
    value = apart if op is Ops.CMPNE else same
    return (value, value)


def _bool_binary(op: Ops, a: Bounds, b: Bounds) -> Bounds:
    if op in (Ops.AND, Ops.MUL):
        return (a[0] and b[0], a[1] and b[1])
    if op in (Ops.OR, Ops.MAX, Ops.ADD):
        return (a[0] or b[0], a[1] or b[1])
    if op is Ops.XOR and a[0] == a[1] and b[0] == b[1]:
        return (a[0] != b[0], a[0] != b[0])
    return EITHER


def _cast(u: UOp) -> Bounds:
    x, to = u.src[0], u.dtype
    low, high = x.bounds
    if to.kind == "f":
        return UNKNOWN
    if to.kind == "b":
        if x.dtype.kind == "f" or low <= 0 <= high:
            return EITHER if x.dtype.kind == "f" or low != high else (False, False)
        return (True, True)
    if x.dtype.kind == "f":
        return full(to)
    return fit(int(low), int(high), to)


def _reduce(u: UOp) -> Bounds:
    # kernel form only, where the loops are sources; the identity counts where a loop may have no turn
    if len(u.src) < 2 or u.dtype.kind not in "iu" or u.src[0].dtype is not u.dtype:
        return full(u.dtype)
    low, high = u.src[0].bounds
    op = u.arg[0]
    ends = [r.src[0].bounds for r in u.src[1:] if r.op is Ops.RANGE]
    if op is Ops.MAX and all(e[0] >= 1 for e in ends):
        return (low, high)
    if op is Ops.ADD and len(ends) == len(u.src) - 1:
        n = math.prod(max(int(e[1]), 0) for e in ends)
        return fit(min(0, low * n), max(0, high * n), u.dtype)
    return full(u.dtype)


def _union(u: UOp, values: tuple[UOp, ...]) -> Bounds:
    known = [v.bounds for v in values if v.op is not Ops.Invalid]
    if not known:
        return full(u.dtype)
    if u.dtype.kind in "iu":
        known = [in_type(b, u.dtype) for b in known]
    return min(b[0] for b in known), max(b[1] for b in known)


_PASS = OpGroup.MOVEMENT - {Ops.PAD} | {
    Ops.AFTER, Ops.DETACH, Ops.CONTIGUOUS, Ops.CONTIGUOUS_BACKWARD, Ops.COPY, Ops.NOOP, Ops.BIND, Ops.MSELECT,
    Ops.UNSHARD,
}  # fmt: skip


def derive_bounds(u: UOp) -> Bounds:
    """(least, greatest) value of `u`, whose sources' bounds are known. Floats other than constants: (-inf, inf).

    Integers of a concrete type wrap: where a result may leave its type, it can be anything. The weak integer does not.
    """
    op, dtype = u.op, u.dtype
    kind = dtype.kind
    if op is Ops.CONST:
        return UNKNOWN if u.arg != u.arg else (u.arg, u.arg)
    if op in OpGroup.COMPARISON:
        t = operand_type(u)
        if t.kind == "f" or u.src[0].dtype.kind == "f" or u.src[1].dtype.kind == "f":
            return EITHER
        a, b = u.src[0].bounds, u.src[1].bounds
        return _compare(op, a, b) if t.weak or t.kind == "b" else _compare(op, in_type(a, t), in_type(b, t))
    if kind == "f":
        return UNKNOWN
    if op is Ops.RANGE or op is Ops.SPECIAL:
        return (0, max(int(u.src[0].bounds[1]) - 1, 0))
    if op is Ops.PARAM:
        return u.arg.vmin_vmax if u.arg.vmin_vmax is not None else full(dtype)
    if op is Ops.WHERE:
        gate = u.src[0].bounds
        if gate[0] == gate[1]:
            return _union(u, (u.src[1] if gate[0] else u.src[2],))
        low, high = _union(u, u.src[1:])
        if kind in "iu" and u.src[0].op is Ops.CMPLT and u.src[0].src == u.src[1:]:  # the lesser of the two
            high = min(high, *[s.bounds[1] for s in u.src[1:]])
        return low, high
    if op is Ops.CAST:
        return _cast(u)
    if op in OpGroup.BINARY and op in _BINARY:
        a, b = u.src[0].bounds, u.src[1].bounds
        if kind == "b":
            return _bool_binary(op, a, b)
        if kind not in "iu" or u.src[0].dtype.kind == "f" or u.src[1].dtype.kind == "f":
            return full(dtype)
        if not dtype.weak:
            a = in_type(a, dtype)
            b = b if op in (Ops.SHL, Ops.SHR) else in_type(b, dtype)
        return _BINARY[op](a, b, dtype)
    if op is Ops.NEG and kind in "iu":
        low, high = u.src[0].bounds
        return fit(-high, -low, dtype)
    if op is Ops.STACK:
        return _union(u, u.src)
    if op is Ops.REDUCE:
        return _reduce(u)
    if op in _PASS:
        return u.src[0].bounds
    return EITHER if kind == "b" else full(dtype)
