"""Comparison, selection, rounding and signs: what asks of each element where it lies.

Operands broadcast as in NumPy and are promoted as `aril.dtype.promote` says.
"""

from __future__ import annotations

import math
from functools import wraps
from typing import Any, Self

from aril.dtype import dtypes, promote, strong
from aril.mixin.base import BaseMixin, as_int, broadcast_shape
from aril.ops import Ops


def operator(method: Any) -> Any:
    """An operator of Python, which leaves an operand of a higher kind (a Tensor beside a UOp) to that one's method."""

    @wraps(method)
    def method_or_defer(self: Any, x: Any) -> Any:
        kind = x.__class__
        if kind is not self.__class__ and kind not in _SCALARS and self._yields_to(x):
            return NotImplemented
        return method(self, x)

    return method_or_defer


_SCALARS = frozenset({bool, int, float})


class ComparisonMixin(BaseMixin):
    """Elementwise questions and what is answered with one of the operands. Shapes: those of the operands, broadcast."""

    __slots__ = ()

    # --- comparison ---

    def _compare(self, op: Ops, x: Any, reverse: Any = False) -> Self:
        if x.__class__ is int and not self._holds(x):  # beyond every value of the type: the same for all elements
            holds = op is Ops.CMPNE or (op is Ops.CMPLT and (x < 0 if reverse else x > 0))
            return self._alu(Ops.CMPEQ if holds else Ops.CMPNE, self)
        return self._binary(op, x, reverse)

    def eq(self, x: Any) -> Self:
        """self == x, elementwise.

        >>> Tensor([1, 2]).eq(2).tolist()
        [False, True]
        """
        return self._compare(Ops.CMPEQ, x)

    def ne(self, x: Any) -> Self:
        """self != x, elementwise.

        >>> Tensor([1, 2]).ne(2).tolist()
        [True, False]
        """
        return self._compare(Ops.CMPNE, x)

    @operator
    def __lt__(self, x: Any) -> Self:
        return self._compare(Ops.CMPLT, x)

    @operator
    def __gt__(self, x: Any) -> Self:
        return self._compare(Ops.CMPLT, x, True)

    @operator
    def __le__(self, x: Any) -> Self:
        return self._at_most(x, False)

    @operator
    def __ge__(self, x: Any) -> Self:
        return self._at_most(x, True)

    def _at_most(self, x: Any, reverse: Any) -> Self:
        other = self.ufix(x)
        if self.dtype.kind == "f" or other.dtype.kind == "f":  # with NaN, "not greater" is not "less or equal"
            return self._compare(Ops.CMPLT, x, reverse)._alu(Ops.OR, self._compare(Ops.CMPEQ, x))
        return self._compare(Ops.CMPLT, x, not reverse).logical_not()

    def isnan(self) -> Self:
        """True where the value is NaN.

        >>> Tensor([1.0, float("nan")]).isnan().tolist()
        [False, True]
        """
        return self._alu(Ops.CMPNE, self)

    def isinf(self, detect_positive: Any = True, detect_negative: Any = True) -> Self:
        """True where the value is an infinity (of the signs asked for).

        >>> Tensor([1.0, float("inf")]).isinf().tolist()
        [False, True]
        """
        if self.dtype.kind != "f":
            return self.ne(self)
        up, down = self.eq(math.inf), self.eq(-math.inf)
        if detect_positive and detect_negative:
            return up._alu(Ops.OR, down)
        return (
            up
            if detect_positive
            else down
            if detect_negative
            else self._const(dtypes.bool, False)._broadcast_to(self.shape)
        )

    def isfinite(self) -> Self:
        """True where the value is neither NaN nor an infinity.

        >>> Tensor([1.0, float("inf")]).isfinite().tolist()
        [True, False]
        """
        return self.abs() < math.inf if self.dtype.has_infinity else self.eq(self)

    def isclose(self, other: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: Any = False) -> Self:
        """|self - other| <= atol + rtol * |other|, elementwise; equal infinities are close, NaN only on request.
        Integers are compared in float64, as in NumPy.

        >>> Tensor([1.0, 2.0]).isclose(Tensor([1.000001, 2.1])).tolist()
        [True, False]
        """
        a, b = self._matched(other, "isclose")
        if a.dtype.kind == "b":
            return a.eq(b)
        if a.dtype.kind != "f":  # their difference may wrap
            a, b = a.cast(dtypes.float64), b.cast(dtypes.float64)
        near = b.isfinite() & ((a - b).abs() <= b.abs() * rtol + atol)
        out = near | a.eq(b)
        return out | (a.isnan() & b.isnan()) if equal_nan else out

    def where(self, x: Any, y: Any) -> Self:
        """x where this condition holds, y elsewhere; the three broadcast. The condition is bool (else: not zero).

        >>> Tensor([True, False]).where(1, Tensor([5, 6])).tolist()
        [1, 6]
        """
        cond = self if self.dtype.kind == "b" else self.ne(0)
        cls = self.__class__
        scalars = (bool, int, float)
        if x.__class__ is cls:
            a, b = x._matched(y, "where")
        elif y.__class__ is cls:
            b, a = y._matched(x, "where")
        elif x.__class__ in scalars and y.__class__ in scalars:
            d = promote(dtypes.from_py(x), dtypes.from_py(y))
            d = strong(d) if self._always_concrete else d
            one = self._const(d, 0)
            a, b = one._unchanged(x, "where"), one._unchanged(y, "where")
        else:
            a, b = self._lift(x)._matched(self._lift(y) if y.__class__ not in scalars else y, "where")
        shapes = {s for s in (cond.shape, a.shape, b.shape) if s}
        if len(shapes) > 1:
            shape = broadcast_shape(*shapes, what="where")
            cond, a, b = [v._broadcast_to(shape) if v.shape else v for v in (cond, a, b)]
        return cond._alu(Ops.WHERE, a, b)

    # --- rounding and sign ---

    def trunc(self) -> Self:
        """Rounded towards zero; integers as they are.

        >>> Tensor([-1.5, 1.2]).trunc().tolist()
        [-1.0, 1.0]
        """
        return self._alu(Ops.TRUNC) if self.dtype.kind == "f" else self._as_value()

    def floor(self) -> Self:
        """Rounded down; integers as they are.

        >>> Tensor([-1.5, 1.2]).floor().tolist()
        [-2.0, 1.0]
        """
        if self.dtype.kind != "f":
            return self._as_value()
        t = self._alu(Ops.TRUNC)
        return (self < t).where(t - 1.0, t)

    def ceil(self) -> Self:
        """Rounded up; integers as they are.

        >>> Tensor([-1.5, 1.2]).ceil().tolist()
        [-1.0, 2.0]
        """
        if self.dtype.kind != "f":
            return self._as_value()
        t = self._alu(Ops.TRUNC)
        return (t < self).where(t + 1.0, t)

    def round(self, decimals: Any = 0) -> Self:
        """Rounded to the nearest integer, halves to the even one; integers as they are. `decimals`: to so many digits
        after the point (before it where negative), as NumPy: of the product with a power of ten.

        >>> Tensor([0.5, 1.5, -2.6]).round().tolist()
        [0.0, 2.0, -3.0]
        """
        decimals = as_int("round: decimals", decimals)
        if self.dtype.kind != "f":
            if decimals < 0:
                raise TypeError(f"round: integers have no {decimals} decimals here; cast to a float first")
            return self._as_value()
        if abs(decimals) > 300:
            raise ValueError(f"round: decimals lies within -300 and 300, not {decimals}: no float has more")
        if decimals:
            scale = 10.0 ** abs(decimals)
            return (self * scale).round() / scale if decimals > 0 else (self / scale).round() * scale
        x = self.detach()  # flat between its steps
        size, whole = x.abs(), 2.0 ** strong(self.dtype).mantissa  # from there on all are integers; the sum is one, too
        return (size < whole).where((size + whole) - whole, size).copysign(x)

    def abs(self) -> Self:
        """The absolute value. The least signed integer has none and stays.

        >>> Tensor([-1.5, 2.0]).abs().tolist()
        [1.5, 2.0]
        """
        return self if self.dtype.kind in "ub" else self._alu(Ops.MAX, self._alu(Ops.NEG))

    def sign(self) -> Self:
        """-1, 0 or 1 by the sign; NaN stays NaN.

        >>> Tensor([-3.0, 0.0, 2.0]).sign().tolist()
        [-1.0, 0.0, 1.0]
        """
        if self.dtype.kind in "ub":
            return self.ne(0).cast(self.dtype)
        zero = self.detach() + 0.0 if self.dtype.kind == "f" else self.const_like(0)  # NaN, or 0 without its sign
        return (self > 0).where(self.const_like(1), (self < 0).where(self.const_like(-1), zero))

    def signbit(self) -> Self:
        """True for negative values, -0.0 and NaN with the sign set included.

        >>> Tensor([-0.0, 1.0]).signbit().tolist()
        [True, False]
        """
        if self.dtype.kind != "f":
            return self < 0
        return (
            self.bitcast({1: dtypes.int8, 2: dtypes.int16, 4: dtypes.int32, 8: dtypes.int64}[self.dtype.itemsize]) < 0
        )

    def copysign(self, other: Any) -> Self:
        """The magnitude of this value with the sign of `other`, signs of zero and NaN included.

        >>> Tensor([1.0, -2.0]).copysign(Tensor([-1.0, 1.0])).tolist()
        [-1.0, 2.0]
        """
        a, b = self._floating()._matched(other, "copysign")
        return b.signbit().ne(a.signbit()).where(-a, a)

    def lerp(self, end: Any, weight: Any) -> Self:
        """self + (end - self) * weight, in floats.

        >>> Tensor([0.0, 10.0]).lerp(Tensor([4.0, 20.0]), 0.5).tolist()
        [2.0, 15.0]
        """
        if self.dtype.kind == "b":
            raise TypeError("lerp goes between numbers, not bool; cast it first")
        a, b = self._floating()._matched(end, "lerp")
        return a + (b - a) * weight

    def const_like(self, value: Any) -> Self:
        """A scalar constant of this dtype; it broadcasts against anything.

        >>> Tensor([1.0, 2.0]).const_like(3).item()
        3.0
        """
        return self._const(self.dtype, value)
