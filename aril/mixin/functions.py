"""Functions of analysis, composed of a few elementwise nodes so that they differentiate and fuse.

Low-precision floats are computed in float32 and rounded once. Sources of the formulas stand beside them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any, Self

from aril.dtype import dtypes
from aril.mixin import fits
from aril.mixin.reduce import ReduceMixin
from aril.ops import Ops


def in_wide_float(f: Callable[..., Any]) -> Callable[..., Any]:
    """Integers come in as the default float, low precision is computed in float32 and rounded back once."""

    @wraps(f)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        x = self._floating()
        if x.dtype.itemsize >= 4:
            return f(x, *args, **kwargs)
        return f(x.cast(dtypes.float32), *args, **kwargs).cast(x.dtype)

    return method


class MathMixin(ReduceMixin):
    """Elementwise functions; integers give the default float. Shapes stay."""

    __slots__ = ()

    # --- powers, exponentials and logarithms ---

    def sqrt(self) -> Self:
        """The square root; NaN below zero.

        >>> Tensor([4, 9]).sqrt().tolist()
        [2.0, 3.0]
        """
        return self._floating()._alu(Ops.SQRT)

    def rsqrt(self) -> Self:
        """1 / sqrt(self).

        >>> Tensor([4.0, 16.0]).rsqrt().tolist()
        [0.5, 0.25]
        """
        return self.sqrt()._alu(Ops.RECIPROCAL)

    def exp2(self) -> Self:
        """2 ** self.

        >>> Tensor([3, -1]).exp2().tolist()
        [8.0, 0.5]
        """
        return self._floating()._alu(Ops.EXP2)

    def log2(self) -> Self:
        """The logarithm to base 2.

        >>> Tensor([8, 0.5]).log2().tolist()
        [3.0, -1.0]
        """
        return self._floating()._alu(Ops.LOG2)

    @in_wide_float
    def exp(self) -> Self:
        """e ** self, as 2 ** (self * log2(e)).

        >>> round(Tensor(1).exp().item(), 4)
        2.7183
        """
        return self._alu(Ops.MUL, self.const_like(1 / math.log(2)))._alu(Ops.EXP2)

    @in_wide_float
    def log(self) -> Self:
        """The natural logarithm.

        >>> Tensor([1.0]).log().tolist()
        [0.0]
        """
        return self._alu(Ops.LOG2)._alu(Ops.MUL, self.const_like(math.log(2)))

    @in_wide_float
    def log10(self) -> Self:
        """The logarithm to base 10.

        >>> round(Tensor(1000.0).log10().item(), 4)
        3.0
        """
        return self._alu(Ops.LOG2)._alu(Ops.MUL, self.const_like(math.log10(2)))

    @in_wide_float
    def expm1(self) -> Self:
        """exp(self) - 1 without cancellation: its Taylor series near zero, the difference elsewhere.

        >>> round(Tensor(1e-6).expm1().item(), 10)
        1e-06
        """
        terms = 15 if self.dtype is dtypes.float64 else 9
        small = self.abs() < 0.4
        x = small.where(self, self.const_like(0))
        series = _horner(x, [1 / math.factorial(k) for k in range(terms, 0, -1)]) * x
        return small.where(series, self.exp() - 1.0)

    @in_wide_float
    def log1p(self) -> Self:
        """log(1 + self) without cancellation, as the logarithm of a sum that no target rounds (`aril/uop/composed.py`).
        Within 4 ulp.

        >>> round(Tensor(1e-6).log1p().item(), 10)
        1e-06
        """
        return self._alu(Ops.ADD, self.const_like(1.0)).log()

    @in_wide_float
    def logaddexp(self, other: Any) -> Self:
        """log(exp(self) + exp(other)), without overflow.

        >>> round(Tensor(1000.0).logaddexp(1000.0).item(), 2)
        1000.69
        """
        a, b = self._matched(other, "logaddexp")
        apart = a - b
        first = apart > 0  # one branch at a tie, so that the derivatives of both parts add up to those of the whole
        level = a.eq(b) & a.isinf()
        gap = level.where(a.const_like(0), first.where(apart.neg(), apart))
        top = level.where((a + b) * 0.5, first.where(a, b))
        return top + gap.exp().log1p()

    # --- trigonometry ---

    def sin(self) -> Self:
        """The sine of radians.

        >>> Tensor([0.0]).sin().tolist()
        [0.0]
        """
        return self._floating()._alu(Ops.SIN)

    @in_wide_float
    def cos(self) -> Self:
        """The cosine of radians, as the sine of self + pi / 2, a sum that no target rounds (`aril/uop/composed.py`).

        >>> Tensor([0.0]).cos().tolist()
        [1.0]
        """
        return self._alu(Ops.ADD, self.const_like(math.pi / 2))._alu(Ops.SIN)

    @in_wide_float
    def tan(self) -> Self:
        """The tangent of radians.

        >>> round(Tensor(1.0).tan().item(), 4)
        1.5574
        """
        return self.sin() / self.cos()

    @in_wide_float
    def atan(self) -> Self:
        """The angle in -pi/2..pi/2 whose tangent this is.

        atan(x) = pi/2 - atan(1/x) beyond 1, then twice atan(x) = 2 atan(x / (1 + sqrt(1 + x*x))), then Taylor's
        series, whose terms fall below rounding for |x| < tan(pi/16).

        >>> round(Tensor(1.0).atan().item(), 4)
        0.7854
        """
        r = self._magnitude()
        big = r > 1.0
        # A harmless operand where the branch is not taken keeps infinities out of the gradient.
        t = big.where(big.where(r, r.const_like(1)).reciprocal(), big.where(r.const_like(0), r))
        for _ in range(2):
            t = t / ((t * t + 1.0).sqrt() + 1.0)
        terms = 13 if self.dtype is dtypes.float64 else 6
        angle = _horner(t * t, [(-1) ** k / (2 * k + 1) for k in range(terms - 1, -1, -1)]) * t * 4.0
        # The smallest numbers would lose digits in the halving; there the angle is the number.
        tiny = r < (1e-9 if self.dtype is dtypes.float64 else 1e-5)
        return tiny.where(self, big.where(math.pi / 2 - angle, angle).copysign(self))

    @in_wide_float
    def asin(self) -> Self:
        """The angle in -pi/2..pi/2 whose sine this is; NaN beyond 1, where the derivative is infinite.

        >>> round(Tensor(0.5).asin().item(), 4)
        0.5236
        """
        outer, angle = self._half_angle()
        return outer.where(math.pi / 2 - angle * 2.0, angle).copysign(self)

    @in_wide_float
    def acos(self) -> Self:
        """The angle in 0..pi whose cosine this is; NaN beyond 1.

        >>> round(Tensor(0.5).acos().item(), 4)
        1.0472
        """
        outer, angle = self._half_angle()
        twice = angle * 2.0
        return outer.where((self < 0).where(math.pi - twice, twice), math.pi / 2 - angle.copysign(self))

    def _half_angle(self) -> tuple[Self, Self]:
        """(whether |x| is above 1/2, asin(sqrt((1 - |x|) / 2)) where it is and asin(|x|) elsewhere), from a fit of our
        own in the square of the sine. asin(x) = pi/2 - 2 asin(sqrt((1 - x) / 2))."""
        r = self._magnitude()
        outer = r > 0.5
        square = outer.where((1.0 - r) * 0.5, 0.25)  # harmless where it is not taken
        sine = outer.where(square.sqrt(), r)
        fit = fits.ASIN_64 if self.dtype is dtypes.float64 else fits.ASIN_32
        return outer, _horner(outer.where(square, r * r), fit) * sine

    @in_wide_float
    def sinh(self) -> Self:
        """The hyperbolic sine: a fit of our own up to 1, (exp(|x|) - exp(-|x|)) / 2 beyond.

        >>> round(Tensor(1.0).sinh().item(), 4)
        1.1752
        """
        r = self._magnitude()
        inner = r < 1.0
        x = inner.where(r, r.const_like(0))
        near = _horner(x * x, fits.SINH_64 if self.dtype is dtypes.float64 else fits.SINH_32) * x
        half = inner.where(r.const_like(1), r)._half_exp()
        return inner.where(near, half - 0.25 / half).copysign(self)

    @in_wide_float
    def cosh(self) -> Self:
        """The hyperbolic cosine: a fit of our own up to 1, whose derivative does not cancel, (exp(|x|) + exp(-|x|)) / 2
        beyond.

        >>> Tensor([0.0]).cosh().tolist()
        [1.0]
        """
        r = self.abs()
        inner = r < 1.0
        x = inner.where(self, self.const_like(0))
        near = _horner(x * x, fits.COSH_64 if self.dtype is dtypes.float64 else fits.COSH_32)
        half = inner.where(r.const_like(1), r)._half_exp()
        return inner.where(near, half + 0.25 / half)

    def _half_exp(self) -> Self:
        """exp(x) / 2 for x from 1, as exp(x - 1) * (e / 2): the difference is exact, and nothing overflows before the
        result does."""
        return (self - 1.0).exp() * (math.e / 2)

    @in_wide_float
    def tanh(self) -> Self:
        """The hyperbolic tangent: with m = exp(-2|x|) - 1, -m / (m + 2) with the sign of x.

        >>> round(Tensor(1.0).tanh().item(), 4)
        0.7616
        """
        m = (self._magnitude() * -2.0).expm1()
        return (m / (m + 2.0)).neg().copysign(self)

    @in_wide_float
    def asinh(self) -> Self:
        """The inverse of `sinh`: log1p(r + r*r / (1 + sqrt(1 + r*r))) for r = |x|.

        >>> round(Tensor(1.0).asinh().item(), 4)
        0.8814
        """
        r = self._magnitude()
        large = r > 1e15 if self.dtype is dtypes.float64 else r > 1e7
        s = large.where(r.const_like(1), r)
        near = (s + s * s / ((s * s + 1.0).sqrt() + 1.0)).log1p()
        return large.where(large.where(r, r.const_like(1)).log() + math.log(2), near).copysign(self)

    @in_wide_float
    def acosh(self) -> Self:
        """The inverse of `cosh` for values from 1; NaN below: log1p(t + sqrt(t) * sqrt(2 + t)) for t = x - 1.

        >>> Tensor([1.0]).acosh().tolist()
        [0.0]
        """
        t = self - 1.0
        large = t > 1e15 if self.dtype is dtypes.float64 else t > 1e7
        s = large.where(t.const_like(1), t)
        far = large.where(self, self.const_like(1)).log() + math.log(2)
        out = large.where(far, (s + s.sqrt() * (s + 2.0).sqrt()).log1p())
        return (t < 0).where(self.const_like(math.nan), out)

    @in_wide_float
    def atanh(self) -> Self:
        """The inverse of `tanh`; infinite at 1, NaN beyond: (log1p(x) - log1p(-x)) / 2.

        >>> round(Tensor(0.5).atanh().item(), 4)
        0.5493
        """
        return (self.log1p() - self.neg().log1p()) * 0.5

    @in_wide_float
    def erf(self) -> Self:
        """The error function, from fits of our own (`aril/mixin/fits.py`): x P(x*x) up to 1, 1 - exp(-x*x) Q(t) beyond.

        Within 4 ulp of float32, 1e-15 of float64.

        >>> round(Tensor(1.0).erf().item(), 4)
        0.8427
        """
        r = self._magnitude()
        inner = r < 1.0
        x = inner.where(r, r.const_like(0))
        near = _horner(x * x, fits.ERF_SMALL_64 if self.dtype is dtypes.float64 else fits.ERF_SMALL_32) * x
        return inner.where(near, 1.0 - r._erfc()).copysign(self)

    def _erfc(self) -> Self:
        """1 - erf(r) for r that are not negative, to the same relative error everywhere."""
        return self.minimum(self._erfc_end())._erfc_within(1.0, 1.0)

    def _erfc_end(self) -> float:
        return fits.ERFC_END_64 if self.dtype is dtypes.float64 else fits.ERFC_END_32

    def _erfc_within(self, square: float, factor: float) -> Self:
        """`factor` times 1 - erf(sqrt(square) * r), where that root is between 0 and `_erfc_end`."""
        centre = fits.ERFCX_CENTRE / math.sqrt(square)
        fit = fits.ERFCX_64 if self.dtype is dtypes.float64 else fits.ERFCX_32
        t = (self - centre) / (self + centre)
        return (self * self * -square).exp() * _horner(t, [factor * c for c in fit])

    def _magnitude(self) -> Self:
        """|x| whose derivative at 0 is the one `copysign` undoes, for odd functions computed from the magnitude."""
        return self.signbit().where(self.neg(), self)


def _horner(x: Any, coefficients: list[float]) -> Any:
    """The polynomial in x, highest power first. Each step waits for the last, so it is one operation, rounded once,
    where the target has multiply-adds."""
    out = x.const_like(coefficients[0])
    for c in coefficients[1:]:
        out = out._alu(Ops.MULACC, x, x.const_like(c))
    return out
