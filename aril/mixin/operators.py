"""Operators of Python on values: arithmetic and bits. Those that compare are in `comparison.py`."""

from __future__ import annotations

from typing import Any, Self

from aril.mixin.comparison import operator
from aril.mixin.elementwise import ElementwiseMixin
from aril.ops import Ops


class OperatorMixin(ElementwiseMixin):
    """`a + b`, `a // b`, `a << b`, `-a` and the like, with either operand a value or a Python scalar."""

    __slots__ = ()

    @operator
    def __add__(self, x: Any) -> Self:
        return self._binary(Ops.ADD, x)

    @operator
    def __radd__(self, x: Any) -> Self:
        return self._binary(Ops.ADD, x, True)

    @operator
    def __sub__(self, x: Any) -> Self:
        return self.sub(x)

    @operator
    def __rsub__(self, x: Any) -> Self:
        return self.sub(x, True)

    @operator
    def __mul__(self, x: Any) -> Self:
        return self._binary(Ops.MUL, x)

    @operator
    def __rmul__(self, x: Any) -> Self:
        return self._binary(Ops.MUL, x, True)

    @operator
    def __truediv__(self, x: Any) -> Self:
        return self.div(x)

    @operator
    def __rtruediv__(self, x: Any) -> Self:
        return self.div(x, True)

    @operator
    def __floordiv__(self, x: Any) -> Self:
        return self.floordiv(x)

    @operator
    def __rfloordiv__(self, x: Any) -> Self:
        return self.floordiv(x, True)

    @operator
    def __mod__(self, x: Any) -> Self:
        return self.mod(x)

    @operator
    def __rmod__(self, x: Any) -> Self:
        return self.mod(x, True)

    @operator
    def __pow__(self, x: Any) -> Self:
        return self.pow(x)

    @operator
    def __rpow__(self, x: Any) -> Self:
        return self.pow(x, True)

    @operator
    def __and__(self, x: Any) -> Self:
        return self._bits(Ops.AND, x)

    @operator
    def __or__(self, x: Any) -> Self:
        return self._bits(Ops.OR, x)

    @operator
    def __xor__(self, x: Any) -> Self:
        return self._bits(Ops.XOR, x)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    @operator
    def __lshift__(self, x: Any) -> Self:
        return self._shift(Ops.SHL, x, False)

    @operator
    def __rlshift__(self, x: Any) -> Self:
        return self._shift(Ops.SHL, x, True)

    @operator
    def __rshift__(self, x: Any) -> Self:
        return self._shift(Ops.SHR, x, False)

    @operator
    def __rrshift__(self, x: Any) -> Self:
        return self._shift(Ops.SHR, x, True)

    def __neg__(self) -> Self:
        return self.neg()

    def __pos__(self) -> Self:
        return self._as_value()

    def __invert__(self) -> Self:
        return self.bitwise_not()

    def __abs__(self) -> Self:
        return self.abs()
