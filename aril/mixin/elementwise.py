"""Elementwise operations: arithmetic and bits.

Operands broadcast as in NumPy and are promoted as `aril.dtype.promote` says; Python scalars take the type of what
they meet.
"""

from __future__ import annotations

from typing import Any, Self

from aril.dtype import DType, dtypes, promote
from aril.mixin.comparison import ComparisonMixin
from aril.ops import Ops


class ElementwiseMixin(ComparisonMixin):
    """Arithmetic and comparison. Shapes: those of the operands, broadcast."""

    __slots__ = ()

    # --- casts by name ---

    def float(self) -> Self:
        """As float32.

        >>> Tensor([1]).float().dtype
        dtypes.float32
        """
        return self.cast(dtypes.float32)

    def half(self) -> Self:
        """As float16.

        >>> Tensor([1]).half().dtype
        dtypes.float16
        """
        return self.cast(dtypes.float16)

    def double(self) -> Self:
        """As float64.

        >>> Tensor([1]).double().dtype
        dtypes.float64
        """
        return self.cast(dtypes.float64)

    def bfloat16(self) -> Self:
        """As bfloat16.

        >>> Tensor([1.0]).bfloat16().dtype
        dtypes.bfloat16
        """
        return self.cast(dtypes.bfloat16)

    def int(self) -> Self:
        """As int32.

        >>> Tensor([1.9, -1.9]).int().tolist()
        [1, -1]
        """
        return self.cast(dtypes.int32)

    def long(self) -> Self:
        """As int64.

        >>> Tensor([1]).long().dtype
        dtypes.int64
        """
        return self.cast(dtypes.int64)

    def short(self) -> Self:
        """As int16.

        >>> Tensor([1]).short().dtype
        dtypes.int16
        """
        return self.cast(dtypes.int16)

    def bool(self) -> Self:
        """As bool: true where the value is not zero (NaN is true).

        >>> Tensor([0.0, 2.0]).bool().tolist()
        [False, True]
        """
        return self.cast(dtypes.bool)

    # --- arithmetic ---

    def add(self, x: Any, reverse: Any = False) -> Self:
        """self + x.

        >>> Tensor([1, 2]).add(10).tolist()
        [11, 12]
        """
        return self._binary(Ops.ADD, x, reverse)

    def sub(self, x: Any, reverse: Any = False) -> Self:
        """self - x. TypeError for bools, where it has no meaning.

        >>> Tensor([5, 7]).sub(2).tolist()
        [3, 5]
        """
        a, b = self._matched(x, Ops.SUB)
        if a.dtype.kind == "b":
            raise TypeError("sub of two bools has no meaning; use bitwise_xor, or cast one to an integer")
        return b._alu(Ops.SUB, a) if reverse else a._alu(Ops.SUB, b)

    def mul(self, x: Any, reverse: Any = False) -> Self:
        """self * x.

        >>> Tensor([1, 2]).mul(0.5).tolist()
        [0.5, 1.0]
        """
        return self._binary(Ops.MUL, x, reverse)

    def div(self, x: Any, reverse: Any = False, rounding_mode: str | None = None) -> Self:
        """self / x, in floats (integers become the default float first).

        `rounding_mode` "trunc" or "floor" rounds the quotient; integers then stay integers.

        >>> Tensor([7, -7]).div(2).tolist()
        [3.5, -3.5]
        >>> Tensor([7, -7]).div(2, rounding_mode="floor").tolist()
        [3, -4]
        """
        if rounding_mode is not None:
            if rounding_mode not in ("trunc", "floor"):
                raise ValueError(f"div: rounding_mode is None, 'trunc' or 'floor', not {rounding_mode!r}")
            a, b = self._matched(x, "div")
            a, b = (b, a) if reverse else (a, b)
            if rounding_mode == "floor":
                return a._floordiv(b)
            return (
                a._alu(Ops.FDIV, b)._alu(Ops.TRUNC) if a.dtype.kind == "f" else _integer(a)._alu(Ops.CDIV, _integer(b))
            )
        a, b = self._matched(float(x) if x.__class__ is int and not self._holds(x) else x, "div")
        if a.dtype.kind != "f":
            a, b = a.cast(dtypes.default_float()), b.cast(dtypes.default_float())
        return b._alu(Ops.FDIV, a) if reverse else a._alu(Ops.FDIV, b)

    def floordiv(self, x: Any, reverse: Any = False) -> Self:
        """The quotient rounded down, as `//` in Python: `(a // b) * b + a % b == a`.

        >>> Tensor([7, -7]).floordiv(2).tolist()
        [3, -4]
        """
        a, b = self._matched(x, "floordiv")
        return b._floordiv(a) if reverse else a._floordiv(b)

    def mod(self, x: Any, reverse: Any = False) -> Self:
        """The remainder with the sign of the divisor, as `%` in Python and NumPy.

        >>> Tensor([-7, 7]).mod(3).tolist()
        [2, 1]
        """
        a, b = self._matched(x, "mod")
        return b._floormod(a) if reverse else a._floormod(b)

    def fmod(self, x: Any) -> Self:
        """The remainder with the sign of the dividend, as C's `fmod`.

        Exact for integers; for floats exact while the quotient is below 2**mantissa of the type computed in (float64
        for float32 and smaller).

        >>> Tensor([-7.0, 7.0]).fmod(3).tolist()
        [-1.0, 1.0]
        """
        a, b = self._matched(x, "fmod")
        return a._fmod(b) if a.dtype.kind == "f" else _integer(a)._alu(Ops.CMOD, _integer(b))

    def _floordiv(self, b: Self) -> Self:
        if self.dtype.kind != "f":
            return _integer(self)._alu(Ops.FLOORDIV, _integer(b))
        # As Python: from the exact remainder, not by rounding the quotient, which may round up to the next integer.
        r = self._fmod(b)
        towards_zero = self._alu(Ops.SUB, r)._alu(Ops.FDIV, b).round()
        down = (r.ne(0) & (r < 0).ne(b < 0)).where(towards_zero - 1.0, towards_zero)
        return b.eq(0).where(self._alu(Ops.FDIV, b), down)

    def _floormod(self, b: Self) -> Self:
        if self.dtype.kind != "f":
            return _integer(self)._alu(Ops.FLOORMOD, _integer(b))
        r = self._fmod(b)
        return (r.ne(0) & (r < 0).ne(b < 0)).where(r._alu(Ops.ADD, b), r)

    def _fmod(self, b: Self) -> Self:
        d = self.dtype
        wide = dtypes.float64
        x, y = self.cast(wide), b.cast(wide)
        r = x._alu(Ops.SUB, x._alu(Ops.FDIV, y)._alu(Ops.TRUNC)._alu(Ops.MUL, y))
        # The quotient may have been rounded up to an integer: the remainder is then one divisor off.
        r = (x.ne(0) & r.ne(0) & (r < 0).ne(x < 0)).where(r + y.abs() * (x < 0).where(-1.0, 1.0), r)
        return (x.isfinite() & y.isinf()).where(x, r).cast(d)

    def neg(self) -> Self:
        """-self. Unsigned integers wrap; bool is an error.

        >>> Tensor([1, -2]).neg().tolist()
        [-1, 2]
        """
        if self.dtype.kind == "b":
            raise TypeError("neg of a bool has no meaning; use logical_not")
        return self._alu(Ops.NEG)

    def reciprocal(self) -> Self:
        """1 / self, in floats.

        >>> Tensor([2, 4]).reciprocal().tolist()
        [0.5, 0.25]
        """
        return self._floating()._alu(Ops.RECIPROCAL)

    def square(self) -> Self:
        """self * self.

        >>> Tensor([2, -3]).square().tolist()
        [4, 9]
        """
        return self._alu(Ops.MUL, self)

    def usum(self, *others: Any) -> Self:
        """The sum of this value and `others`, elementwise.

        >>> Tensor([2]).usum(Tensor([3]), 4).tolist()
        [9]
        """
        out = self
        for x in others:
            out = out.add(x)
        return out._as_value()

    def uprod(self, *others: Any) -> Self:
        """The product of this value and `others`, elementwise.

        >>> Tensor([2]).uprod(Tensor([3]), 4).tolist()
        [24]
        """
        out = self
        for x in others:
            out = out.mul(x)
        return out._as_value()

    def pow(self, x: Any, reverse: Any = False) -> Self:
        """self ** x.

        Small whole exponents multiply; 0.5 is `sqrt`; integers stay integers and wrap, where a negative exponent
        written as a number is a ValueError and one found in a tensor gives the truncated value (0 beyond bases of 1
        and -1).

        >>> Tensor([2.0, 3.0]).pow(2).tolist()
        [4.0, 9.0]
        """
        if isinstance(x, (int, float)) and not reverse:
            return self._power_of(x)
        a, b = self._matched(x, Ops.POW)
        a, b = (b, a) if reverse else (a, b)
        if a.dtype.kind == "f":
            return b._alu(Ops.EXP2) if reverse and x.__class__ in (int, float) and x == 2 else a._alu(Ops.POW, b)
        return _integer(a)._integer_power(_integer(b))

    def _power_of(self, exponent: Any) -> Self:
        base = self
        if isinstance(exponent, float) and base.dtype.kind != "f":
            base = base.cast(promote(base.dtype, dtypes.weakfloat))
        if base.dtype.kind == "f":
            if exponent == 0.5:
                return base._alu(Ops.SQRT)
            if exponent == -0.5:
                return base._alu(Ops.SQRT)._alu(Ops.RECIPROCAL)
            if not (abs(exponent) <= 16 and exponent == int(exponent)):
                return base._alu(Ops.POW, base._const(base.dtype, exponent))
        elif exponent < 0:
            raise ValueError(f"pow: {base.dtype.name} to the power {exponent} is no integer; cast the base to a float")
        elif base.dtype.kind == "b":
            base = _integer(base)
        n = abs(int(exponent))
        if n == 0:
            return base.const_like(1)._broadcast_to(base.shape)
        out: Self | None = None
        while n:
            if n & 1:
                out = base if out is None else out._alu(Ops.MUL, base)
            n >>= 1
            if n:
                base = base._alu(Ops.MUL, base)
        assert out is not None
        return out._alu(Ops.RECIPROCAL) if exponent < 0 else out._as_value()

    def _integer_power(self, exponent: Self) -> Self:
        out, base = self.const_like(1), self
        # Bits of the exponent from the lowest; a base doubled 64 times over has wrapped for good or is 0, 1.
        for k in range(exponent.dtype.bits - (exponent.dtype.kind == "i")):
            out = (exponent._alu(Ops.AND, exponent.const_like(1 << k))).ne(0).where(out._alu(Ops.MUL, base), out)
            base = base._alu(Ops.MUL, base)
        if exponent.dtype.kind == "u":
            return out
        odd = exponent._alu(Ops.AND, exponent.const_like(1)).ne(0)
        inverse = self.eq(1).where(
            1, self.eq(-1).where(odd.where(self.const_like(-1), self.const_like(1)), self.const_like(0))
        )
        return (exponent < 0).where(inverse, out)

    def maximum(self, x: Any) -> Self:
        """The greater of both; NaN where either is NaN. ValueError for an integer above all of the type's.

        >>> Tensor([1, 5]).maximum(3).tolist()
        [3, 5]
        """
        if x.__class__ is int and x < 0 and not self._holds(x):
            return self._as_value()
        return self._binary(Ops.MAX, self._unchanged(x, "maximum") if x.__class__ is int else x)

    def minimum(self, x: Any) -> Self:
        """The lesser of both; NaN where either is NaN. ValueError for an integer below all of the type's.

        >>> Tensor([1, 5]).minimum(3).tolist()
        [1, 3]
        """
        if x.__class__ is int and x > 0 and not self._holds(x):
            return self._as_value()
        a, b = self._matched(x, "minimum")
        if isinstance(x, (int, float)) and a.dtype.kind == "f":  # stays a constant: a tie is a constant's (autograd)
            return a._mirrored()._alu(Ops.MAX, a.const_like(-x))._mirrored()
        return a._mirrored()._alu(Ops.MAX, b._mirrored())._mirrored()

    def _mirrored(self) -> Self:
        """An order-reversing map that is its own inverse: negation of floats, complement of integers and bool."""
        return self._alu(Ops.NEG) if self.dtype.kind == "f" else self.bitwise_not()

    def clamp(self, min_: Any = None, max_: Any = None, *, min: Any = None, max: Any = None) -> Self:
        """Not below `min` and not above `max`, each a number or a tensor; at least one is given. Where the value
        is equal to a number, the gradient is that of the number: 0.

        >>> Tensor([-3, 0, 3]).clamp(-1, 1).tolist()
        [-1, 0, 1]
        """
        low, high = (min if min_ is None else min_), (max if max_ is None else max_)
        if low is None and high is None:
            raise ValueError("clamp: neither min nor max is given")
        out = self if low is None else self.maximum(low)
        return out if high is None else out.minimum(high)

    def clip(self, min_: Any = None, max_: Any = None, *, min: Any = None, max: Any = None) -> Self:
        """The same as `clamp`.

        >>> Tensor([-3, 0, 3]).clip(max=1).tolist()
        [-3, 0, 1]
        """
        return self.clamp(min_, max_, min=min, max=max)

    # --- bits ---

    def bitwise_and(self, x: Any, reverse: Any = False) -> Self:
        """self & x, for integers and bool.

        >>> Tensor([6, 5]).bitwise_and(3).tolist()
        [2, 1]
        """
        return self._bits(Ops.AND, x)

    def bitwise_or(self, x: Any, reverse: Any = False) -> Self:
        """self | x, for integers and bool.

        >>> Tensor([6, 5]).bitwise_or(3).tolist()
        [7, 7]
        """
        return self._bits(Ops.OR, x)

    def bitwise_xor(self, x: Any, reverse: Any = False) -> Self:
        """self ^ x, for integers and bool.

        >>> Tensor([6, 5]).bitwise_xor(3).tolist()
        [5, 6]
        """
        return self._bits(Ops.XOR, x)

    def _bits(self, op: Ops, x: Any) -> Self:
        a, b = self._matched(x, op)
        if a.dtype.kind == "f":
            raise TypeError(
                f"bitwise {op.name.lower()} needs integers or bools, not {self.dtype.name} and {_dtype_name(x)}"
            )
        return a._alu(op, b)

    def bitwise_not(self) -> Self:
        """~self, for integers and bool.

        >>> Tensor([0, 5]).bitwise_not().tolist()
        [-1, -6]
        """
        if self.dtype.kind == "f":
            raise TypeError(f"bitwise_not needs integers or bools, not {self.dtype.name}")
        return self.logical_not() if self.dtype.kind == "b" else self._alu(Ops.XOR, self.const_like(-1))

    def logical_not(self) -> Self:
        """True where the value is zero (or False).

        >>> Tensor([0, 3]).logical_not().tolist()
        [True, False]
        """
        if self.dtype.kind != "b":
            return self.eq(0)
        return self._alu(Ops.CMPNE, self._const(dtypes.bool, True))

    def lshift(self, x: Any, reverse: Any = False) -> Self:
        """self << x, for integers. A count of at least the width gives 0.

        >>> Tensor([1, 3]).lshift(2).tolist()
        [4, 12]
        """
        return self._shift(Ops.SHL, x, reverse)

    def rshift(self, x: Any, reverse: Any = False) -> Self:
        """self >> x, for integers; signed values keep their sign. A count of at least the width shifts everything
        out.

        >>> Tensor([8, 12]).rshift(2).tolist()
        [2, 3]
        """
        return self._shift(Ops.SHR, x, reverse)

    def _shift(self, op: Ops, x: Any, reverse: Any) -> Self:
        count = min(x, 64) if x.__class__ is int and not reverse else x  # 64 shifts everything out, and fits
        a, b = self._matched(count, op)
        a, b = (b, a) if reverse else (a, b)
        if a.dtype.kind == "f":
            raise TypeError(f"{op.name.lower()} needs integers, not {self.dtype.name} and {_dtype_name(x)}")
        a, b = _integer(a), _integer(b)
        last = a.dtype.bits - 1
        if isinstance(x, int) and not reverse:
            if x < 0:
                raise ValueError(f"{op.name.lower()}: a count is at least 0, not {x}")
            if x <= last:
                return a._alu(op, b)
        elif a.dtype.weak:
            return a._alu(op, b)
        inside = b <= last
        if op is Ops.SHR:
            return (
                a._alu(op, inside.where(b, last))
                if a.dtype.kind == "i"
                else inside.where(a._alu(op, b.minimum(last)), 0)
            )
        return inside.where(a._alu(op, b.minimum(last)), 0)


def _integer(x: Any) -> Any:
    """Bool as an integer of the default type (of the weak one in index expressions)."""
    if x.dtype.kind != "b":
        return x
    d: DType = dtypes.default_int() if x._always_concrete else dtypes.weakint
    return x.cast(d)


def _dtype_name(x: Any) -> str:
    return x.dtype.name if hasattr(x, "dtype") else type(x).__name__
