"""Functions that two nodes stand for: e to the x as EXP2(x * log2(e)), cos(x) as SIN(x + pi / 2), log2(1 + x) as
LOG2(x + 1).

In: a node. Out: the x of such a pair, or None. The constant stands for the exact number: neither the product nor the
sum is rounded on the way.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from aril.dtype import wrap
from aril.ops import Ops
from aril.uop.node import UOp

LOG2E = 1.4426950408889634
_PAIRS = {Ops.EXP2: (Ops.MUL, LOG2E), Ops.SIN: (Ops.ADD, math.pi / 2), Ops.LOG2: (Ops.ADD, 1.0)}

_EXACT: dict[Ops, Callable[[float], float]] = {
    Ops.EXP2: math.exp,
    Ops.SIN: math.cos,
    Ops.LOG2: lambda x: math.log1p(x) / math.log(2),
}


def operand_of(u: UOp) -> UOp | None:
    """x where `u` is e**x, cos(x) or log2(1 + x)."""
    inner, number = _PAIRS.get(u.op, (None, 0.0))
    if inner is not None and u.src[0].op is inner:
        for x, c in (u.src[0].src, u.src[0].src[::-1]):
            if c.op is Ops.CONST and c.arg in (number, wrap(number, u.dtype)):
                return x
    return None


def of_constant(op: Ops, x: UOp) -> UOp:
    """What `composed(op, x)` is for a CONST x, rounded once: folded one by one, 1e-6 + 1 would have lost its digits."""
    try:
        value = _EXACT[op](float(x.arg))
    except OverflowError:
        value = math.inf
    except ValueError:  # the sine of infinity, the logarithm of zero and below
        value = -math.inf if op is Ops.LOG2 and x.arg == -1 else math.nan
    return UOp.const(x.dtype, wrap(value, x.dtype))


def composed(op: Ops, x: UOp) -> UOp:
    """e**x (EXP2), cos(x) (SIN) or log2(1 + x) (LOG2)."""
    inner, number = _PAIRS[op]
    return UOp(op, (UOp(inner, (x, x.const_like(number))),))
