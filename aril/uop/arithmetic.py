"""Integer arithmetic: one step towards the canonical form of sums, products, maxima, shifts and divisions.

In: an elementwise node over simplified sources. Out: a better node, or None. Valid for wrapping types and the weak
integer.
"""

from __future__ import annotations

import math

from aril.dtype import DType
from aril.ops import Ops
from aril.uop import divmod, floats
from aril.uop.bounds import in_type
from aril.uop.linear import (
    LIMIT,
    Terms,
    build,
    const,
    exact,
    factors,
    gather,
    greatest,
    is_int,
    merge,
    parse,
    product,
    signed,
    span,
)
from aril.uop.node import UOp


def add(u: UOp) -> UOp | None:
    """a + b: one canonical sum. Sums of many terms stay as they are."""
    dtype = u.dtype
    if dtype.kind == "f":
        return floats.add(u)
    if dtype.kind == "b":
        return UOp(Ops.OR, u.src)
    a, b = u.src
    if b.op is Ops.CONST and b.dtype is dtype:
        if b.arg == 0:
            return a
        if a.dtype is dtype and a.op is not Ops.ADD:
            return None
    terms: Terms = {}
    k = gather(u, 1, terms, dtype)
    if k is None:
        return None
    while len(terms) > 1 and divmod.recombine(terms, dtype):
        k += terms.pop(divmod.ONE, 0)
    return build(_monomials(terms) if dtype.weak else terms, k, dtype, final=True)


def _monomials(terms: Terms) -> Terms:
    """Products in canonical order, so that equal ones meet."""
    if not any(a.op is Ops.MUL for a in terms):
        return terms
    out: Terms = {}
    for a, c in terms.items():
        if a.op is Ops.MUL:
            n, atoms = factors(a)
            p = product(atoms)
            if p is not None:
                merge(out, {p: c * n}, 1)
                continue
        merge(out, {a: c}, 1)
    return out


def sub(u: UOp) -> UOp | None:
    """a - b: a sum, where no late pass has chosen SUB."""
    a, b = u.src
    dtype = u.dtype
    if dtype.kind == "f":
        # x - 0.0 is x for every x; x - (-0.0) is x + 0.0
        return a if b.op is Ops.CONST and b.arg == 0 and math.copysign(1.0, b.arg) > 0 else None
    if dtype.kind == "b":
        return None
    if a is b:
        return const(0, dtype)
    if dtype.weak or b.op is Ops.CONST:
        return UOp(Ops.ADD, (a, UOp(Ops.MUL, (b, const(-1, dtype)))))
    return None


def neg(u: UOp) -> UOp | None:
    """-x."""
    x = u.src[0]
    if x.op is Ops.NEG:
        return x.src[0]
    return UOp(Ops.MUL, (x, const(-1))) if u.dtype.weak and u.dtype.kind == "i" else None


def mul(u: UOp) -> UOp | None:
    """a * b: constants last, multiplied out over index sums."""
    a, b = u.src
    dtype = u.dtype
    if dtype.kind == "f":
        # x * 0 is not 0: x may be infinite, NaN or negative
        return a if b.op is Ops.CONST and b.arg == 1 else None
    if dtype.kind == "b":
        return UOp(Ops.AND, u.src)
    if b.op is Ops.CONST:
        c = int(b.arg)
        if c == 0:
            return const(0, dtype)
        if c == 1:
            return a
        if a.op is Ops.MUL and a.src[1].op is Ops.CONST and a.dtype is dtype:
            return UOp(Ops.MUL, (a.src[0], const(c * int(a.src[1].arg), dtype)))
        # over sums: always for indices; elsewhere only where it costs no multiplication
        if a.op is Ops.ADD and a.dtype is dtype and (dtype.weak or a.src[1].op is Ops.CONST):
            terms: Terms = {}
            k = gather(a, signed(c, dtype), terms, dtype)
            if k is not None and (dtype.weak or len(terms) == 1):
                return build(terms, k, dtype)
        return None
    if not dtype.weak:
        # a constant factor moves outwards
        for x, y in ((a, b), (b, a)):
            if x.op is Ops.MUL and x.src[1].op is Ops.CONST and x.dtype is dtype:
                return UOp(Ops.MUL, (UOp(Ops.MUL, (x.src[0], y)), x.src[1]))
        return None
    return _mul_symbolic(a, b, u)


def _mul_symbolic(a: UOp, b: UOp, u: UOp) -> UOp | None:
    """The product of two index expressions: sums multiplied out while they stay small, factors in order."""
    pa, pb = parse(a, u.dtype), parse(b, u.dtype)
    if pa is None or pb is None:
        return None
    na, nb = len(pa[0]) + bool(pa[1]), len(pb[0]) + bool(pb[1])
    if na * nb > LIMIT // 2:
        return None
    out: Terms = {}
    for x, cx in [*pa[0].items(), *([(None, pa[1])] if pa[1] else [])]:
        for y, cy in [*pb[0].items(), *([(None, pb[1])] if pb[1] else [])]:
            atoms = [*(factors(x)[1] if x is not None else ()), *(factors(y)[1] if y is not None else ())]
            p = product(atoms)
            merge(out, {divmod.ONE if p is None else p: cx * cy}, 1)
    k = out.pop(divmod.ONE, 0)
    return build(out, k, u.dtype)


def floordiv(u: UOp) -> UOp | None:
    """x // y of integers."""
    if not is_int(u.dtype):
        return None
    return divmod.floordiv(u.src[0], u.src[1], u.dtype)


def floormod(u: UOp) -> UOp | None:
    """x % y of integers."""
    if not is_int(u.dtype):
        return None
    return divmod.floormod(u.src[0], u.src[1], u.dtype)


def truncating(u: UOp) -> UOp | None:
    """CDIV and CMOD: floor division where nothing is negative (indices only: late passes write CDIV on purpose)."""
    a, b = u.src
    if not is_int(u.dtype):
        return None
    if u.dtype.weak and a.bounds[0] >= 0 and b.bounds[0] > 0:
        return UOp(Ops.FLOORDIV if u.op is Ops.CDIV else Ops.FLOORMOD, u.src)
    if b.op is Ops.CONST and b.arg == 1:
        return a if u.op is Ops.CDIV else const(0, u.dtype)
    if u.op is Ops.CMOD and b.op is Ops.CONST and b.arg > 0 and -b.arg < a.bounds[0] and a.bounds[1] < b.arg:
        return a if u.dtype.weak or in_type(a.bounds, u.dtype) == a.bounds else None
    return None


def maximum(u: UOp) -> UOp | None:
    """The greater of two, where bounds or the difference say which."""
    a, b = u.src
    if a is b:
        return a
    if u.dtype.kind == "f":
        return a if b.op is Ops.CONST and b.arg == -math.inf else None
    if u.dtype.kind == "b":
        return UOp(Ops.OR, u.src)
    if a.dtype is not b.dtype:
        return None
    if a.bounds[0] >= b.bounds[1]:
        return a
    if b.bounds[0] >= a.bounds[1]:
        return b
    if b.op is Ops.CONST and a.op is Ops.MAX and a.src[1].op is Ops.CONST:
        return UOp(Ops.MAX, (a.src[0], const(max(int(b.arg), int(a.src[1].arg)), u.dtype)))
    d = difference(a, b, u.dtype)
    if d is not None:
        low, high = span(*d)
        if low >= 0:
            return a
        if min(high, greatest(*d, u.dtype)) <= 0:
            return b
    return None


def difference(a: UOp, b: UOp, dtype: DType) -> tuple[Terms, int] | None:
    """Terms of a - b where neither wraps."""
    pa, pb = parse(a, dtype), parse(b, dtype)
    if pa is None or pb is None or not (exact(*pa, dtype) and exact(*pb, dtype)):
        return None
    terms = dict(pa[0])
    merge(terms, pb[0], -1)
    return terms, pa[1] - pb[1]


def shift(u: UOp) -> UOp | None:
    """SHL and SHR."""
    a, b = u.src
    if b.op is Ops.CONST and b.arg == 0:
        return a
    if b.op is Ops.CONST and u.dtype.weak and 0 < b.arg < 63:
        op = Ops.MUL if u.op is Ops.SHL else Ops.FLOORDIV
        return UOp(op, (a, const(1 << int(b.arg))))
    return a if a.op is Ops.CONST and a.arg == 0 else None
