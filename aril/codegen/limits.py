"""Limits of float expressions, as far as their form tells: `-(x * x)` is never positive, `min(x, 8)` never above 8.

In: a float node. Out: (low, high) that hold wherever its value is a number; NaN may come in any case. They hold for
arithmetic rounded to the node's dtype and for exact arithmetic, so also where a product is fused with a sum. A function
such as EXP2 may pass a limit other than 0 by its own error, so who uses one leaves room for that.
"""

from __future__ import annotations

import math

from aril.dtype import dtypes, wrap
from aril.ops import Ops
from aril.uop.node import UOp

Limits = tuple[float, float]
_ANY: Limits = (-math.inf, math.inf)
_DEPTH = 12
_ARITHMETIC = (Ops.NEG, Ops.MUL, Ops.ADD, Ops.SUB, Ops.MAX, Ops.MULACC)


def limits(u: UOp) -> Limits:
    """(low, high) of `u`, looking a few nodes down."""
    return _limits(u, _DEPTH, {})


def _limits(u: UOp, depth: int, known: dict[UOp, Limits]) -> Limits:
    if u.op is Ops.CONST:
        return (float(u.arg), float(u.arg)) if u.arg == u.arg else _ANY
    if depth == 0 or u.dtype.kind != "f":
        return _ANY
    if u not in known:
        if u.op is Ops.WHERE:
            low, high = _choice(u, depth - 1, known)
        elif u.op in _ARITHMETIC:
            low, high = _rounded(_arithmetic(u, [_limits(s, depth - 1, known) for s in u.src]), u)
        elif u.op is Ops.EXP2:
            high = _limits(u.src[0], depth - 1, known)[1]
            low, high = 0.0, 2.0**high if high < 1000.0 else math.inf
        else:
            low, high = (0.0, math.inf) if u.op is Ops.SQRT else _ANY
        known[u] = (low if low == low else -math.inf), (high if high == high else math.inf)
    return known[u]


def _arithmetic(u: UOp, of: list[Limits]) -> Limits:
    low, high = of[0]
    if u.op is Ops.NEG:
        return -high, -low
    if u.op is Ops.ADD:
        return low + of[1][0], high + of[1][1]
    if u.op is Ops.SUB:
        return low - of[1][1], high - of[1][0]
    if u.op is Ops.MAX:
        return max(low, of[1][0]), max(high, of[1][1])
    products = [a * b if a and b else 0.0 for a in of[0] for b in of[1]]  # 0 times infinity would be NaN
    low, high = min(products), max(products)
    low = max(low, 0.0) if u.src[0] is u.src[1] else low
    return (low, high) if u.op is Ops.MUL else (low + of[2][0], high + of[2][1])


def _rounded(of: Limits, u: UOp) -> Limits:
    """Limits of exact results that are rounded, or fused with what is done with them: rounding keeps the order."""
    low, high = of
    if u.dtype is dtypes.float64 and u.op not in (Ops.MAX, Ops.NEG):  # those here are rounded themselves, but for 0
        return (math.nextafter(low, -math.inf) if low else low), (math.nextafter(high, math.inf) if high else high)
    return min(low, float(wrap(low, u.dtype))), max(high, float(wrap(high, u.dtype)))


def _choice(u: UOp, depth: int, known: dict[UOp, Limits]) -> Limits:
    """Of a WHERE: each branch within what the condition says of it."""
    condition, yes, no = u.src
    holds: list[tuple[UOp, Limits]] = []  # where the condition does, and where it does not
    fails: list[tuple[UOp, Limits]] = []
    if condition.op is Ops.CMPLT:
        p, q = condition.src
        if p.op is Ops.BITCAST and p.src[0].dtype.kind == "f" and q.op is Ops.CONST and q.arg == 0:  # the sign
            p, q = p.src[0], p.src[0].const_like(0.0)
        if p.dtype.kind == "f":
            of_p, of_q = _limits(p, depth, known), _limits(q, depth, known)
            holds = [(p, (-math.inf, of_q[1])), (q, (of_p[0], math.inf))]
            # Where p < q does not hold either may be NaN, but for a constant.
            fails += [(p, (of_q[0], math.inf))] if q.op is Ops.CONST else []
            fails += [(q, (-math.inf, of_p[1]))] if p.op is Ops.CONST else []
    a = _within(yes, _limits(yes, depth, known), holds)
    b = _within(no, _limits(no, depth, known), fails)
    return min(a[0], b[0]), max(a[1], b[1])


def _within(u: UOp, of: Limits, facts: list[tuple[UOp, Limits]]) -> Limits:
    """Limits `of` u, narrowed by those of some nodes: it, or what it is the negative of."""
    low, high = of
    for node, (least, most) in facts:
        if u is node:
            low, high = max(low, least), min(high, most)
        elif u.op is Ops.NEG and u.src[0] is node:
            low, high = max(low, -most), min(high, -least)
    return low, high
