"""A sum that takes the one element where its loop reaches a position reads that element: kernel form in and out."""

from __future__ import annotations

from aril.dtype import dtypes
from aril.ops import Ops
from aril.uop import UOp
from aril.uop.pattern import Pat, Rules
from aril.uop.rewrite import rewrite
from aril.uop.symbolic import simplify


def pick_by_position(sink: UOp) -> UOp:
    """Sums over the places of a position (a class number, a row of a one-hot matrix) without their loop.

    Before: ``REDUCE(WHERE(p == k & c, f(k), 0), k, ..; ADD)`` with p the same for every k of 0..n-1. After:
    ``WHERE(0 <= p < n & c, f(p within 0..n-1), 0)``, summed over the other loops.
    """
    return rewrite(sink, _PICKS, once=True)


def _picked(u: UOp, value: UOp) -> UOp | None:
    loops = u.src[1:]
    if u.arg[0] is not Ops.ADD or value.src[2].op is not Ops.CONST or value.src[2].arg != 0:
        return None
    for test in _terms(value.src[0]):
        for place, position in (test.src, test.src[::-1]) if test.op is Ops.CMPEQ else ():
            loop = place.src[0] if place.op is Ops.CAST else place
            if loop not in loops or loop.src[0].op is not Ops.CONST or loop in position.ranges:
                continue
            n, kind = int(loop.src[0].arg), position.dtype
            if kind.kind not in "iu" or not kind.weak and n - 1 > int(kind.max):
                continue
            low, high = position.const_like(0), position.const_like(n - 1)
            outside = UOp(Ops.OR, (UOp(Ops.CMPLT, (position, low)), UOp(Ops.CMPLT, (high, position))))
            # of two numbers the less is -max(-a, -b)
            least = UOp(Ops.MAX, (position.cast(dtypes.weakint), UOp.integer(0)))
            at = UOp(
                Ops.MUL, (UOp(Ops.MAX, (UOp(Ops.MUL, (least, UOp.integer(-1))), UOp.integer(1 - n))), UOp.integer(-1))
            )
            # what memory says is asked for once, and the test itself holds at that place
            there = value.substitute({test: UOp.const(dtypes.bool, True), loop: simplify(at)})
            out = UOp(Ops.WHERE, (simplify(outside), value.src[2], simplify(there)))
            rest = tuple([r for r in loops if r is not loop])
            return UOp(Ops.REDUCE, (out, *rest), u.arg) if rest else out
    return None


_PICKS = Rules(
    [(Pat(Ops.REDUCE, (Pat(Ops.WHERE, name="value"),), name="u", any_src=True), _picked)], name="pick by position"
)


def _terms(condition: UOp) -> list[UOp]:
    """What all has to hold."""
    if condition.op is not Ops.AND:
        return [condition]
    return [t for s in condition.src for t in _terms(s)]
