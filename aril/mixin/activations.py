"""Activations of neural networks, composed of a few elementwise nodes so that they differentiate and fuse."""

from __future__ import annotations

import math
from typing import Any, Self

from aril.dtype import dtypes
from aril.mixin.functions import MathMixin, in_wide_float
from aril.ops import Ops


class ActivationMixin(MathMixin):
    """Elementwise activations; integers give the default float. Shapes stay."""

    __slots__ = ()

    def relu(self) -> Self:
        """max(x, 0), NaN staying NaN; the gradient at 0 is 0.

        >>> Tensor([-2.0, 2.0]).relu().tolist()
        [0.0, 2.0]
        """
        return self._alu(Ops.MAX, self.const_like(0))

    def relu6(self) -> Self:
        """min(max(x, 0), 6).

        >>> Tensor([-2.0, 2.0, 9.0]).relu6().tolist()
        [0.0, 2.0, 6.0]
        """
        return self.relu().minimum(6.0)

    @in_wide_float
    def sigmoid(self) -> Self:
        """1 / (1 + exp(-x)), from exp(-|x|) so that nothing overflows.

        >>> Tensor([0.0]).sigmoid().tolist()
        [0.5]
        """
        t = (self < 0).where(self, self.neg()).exp()  # not abs, which is flat at 0 where sigmoid is not
        r = (t + 1.0).reciprocal()
        return (self < 0).where(t * r, r)

    @in_wide_float
    def logsigmoid(self) -> Self:
        """log(sigmoid(x)).

        >>> round(Tensor(0.0).logsigmoid().item(), 4)
        -0.6931
        """
        return self.neg().softplus().neg()

    @in_wide_float
    def silu(self) -> Self:
        """x * sigmoid(x) (Elfwing et al. 2017).

        >>> round(Tensor(1.0).silu().item(), 4)
        0.7311
        """
        return self._gated(1.0)

    def _gated(self, scale: float) -> Self:
        """x * sigmoid(scale * x)."""
        q = self._distance((800.0 if self.dtype is dtypes.float64 else 120.0) / scale)
        t = (q * -scale).exp()
        return self.relu() - q * (t / (t + 1.0))

    def _distance(self, end: float) -> Self:
        """|x|, with the derivative -1 at 0, held at an `end` where the gate is 0: what x times a gate falls short
        of relu(x) is a product with it that neither overflows nor is infinity times 0."""
        return (self > 0).where(self, self.neg()).minimum(end)

    def swish(self) -> Self:
        """The same as `silu`.

        >>> round(Tensor(1.0).swish().item(), 4)
        0.7311
        """
        return self.silu()

    @in_wide_float
    def gelu(self, approximate: str = "none") -> Self:
        """x times the normal distribution function (Hendrycks and Gimpel 2016); "tanh" uses their approximation.

        >>> round(Tensor(1.0).gelu().item(), 4)
        0.8413
        """
        if approximate not in ("none", "tanh"):
            raise ValueError(f"gelu: approximate is 'none' or 'tanh', not {approximate!r}")
        if approximate == "tanh":
            q = self._distance(30.0 if self.dtype is dtypes.float64 else 12.0)
            t = ((q + q * q * q * 0.044715) * (-2 * math.sqrt(2 / math.pi))).exp()  # (1 - tanh(u)) / 2 from exp(-2 u)
            return self.relu() - q * (t / (t + 1.0))
        q = self._distance(self._erfc_end() * math.sqrt(2.0))
        return self.relu() - q * q._erfc_within(0.5, 0.5)

    @in_wide_float
    def quick_gelu(self) -> Self:
        """x * sigmoid(1.702 x).

        >>> round(Tensor(1.0).quick_gelu().item(), 4)
        0.8458
        """
        return self._gated(1.702)

    @in_wide_float
    def softplus(self, beta: Any = 1.0) -> Self:
        """log(1 + exp(beta * x)) / beta.

        >>> round(Tensor(0.0).softplus().item(), 4)
        0.6931
        """
        x = self * beta
        return (x.maximum(0.0) + x._softplus_tail()) / beta

    def _softplus_tail(self) -> Self:
        """log(1 + exp(-|x|)), with the derivative 1/2 at 0: the one that the maximum of x and 0 leaves out there."""
        return (self > 0).where(self.neg(), self).exp().log1p()

    @in_wide_float
    def mish(self) -> Self:
        """x * tanh(softplus(x)) (Misra 2019), whose gate is a quotient of polynomials in exp(-|x|).

        >>> round(Tensor(1.0).mish().item(), 4)
        0.8651
        """
        q = self._distance(800.0 if self.dtype is dtypes.float64 else 120.0)
        t = q.neg().exp()
        square, positive = t * t, self > 0
        missing = positive.where(square * 2.0, square + t * 2.0)
        whole = positive.where(square * 2.0 + t * 2.0 + 1.0, square + t * 2.0 + 2.0)
        return self.relu() - q * (missing / whole)

    @in_wide_float
    def elu(self, alpha: Any = 1.0) -> Self:
        """x above 0, alpha * (exp(x) - 1) below (Clevert et al. 2015).

        >>> round(Tensor(-1.0).elu().item(), 4)
        -0.6321
        """
        return (self > 0).where(self, (self > 0).where(0.0, self).expm1() * alpha)

    @in_wide_float
    def celu(self, alpha: Any = 1.0) -> Self:
        """max(x, 0) + min(alpha * (exp(x / alpha) - 1), 0).

        >>> round(Tensor(-1.0).celu().item(), 4)
        -0.6321
        """
        return (self > 0).where(self, ((self > 0).where(0.0, self) / alpha).expm1() * alpha)

    @in_wide_float
    def selu(self, alpha: Any = 1.6732632423543772, gamma: Any = 1.0507009873554805) -> Self:
        """gamma * elu(x, alpha) (Klambauer et al. 2017).

        >>> round(Tensor(1.0).selu().item(), 4)
        1.0507
        """
        return self.elu(alpha) * gamma

    def leaky_relu(self, neg_slope: Any = 0.01) -> Self:
        """x above 0, neg_slope * x elsewhere, the gradient at 0 too.

        >>> Tensor([-2.0, 2.0]).leaky_relu(0.5).tolist()
        [-1.0, 2.0]
        """
        return (self > 0).where(self, self * neg_slope)

    def hardsigmoid(self, alpha: Any = 1 / 6, beta: Any = 0.5) -> Self:
        """alpha * x + beta, kept within 0 and 1.

        >>> Tensor([-4.0, 0.0, 4.0]).hardsigmoid().tolist()
        [0.0, 0.5, 1.0]
        """
        return (self * alpha + beta).clamp(0.0, 1.0)

    @in_wide_float
    def hardswish(self) -> Self:
        """x * relu6(x + 3) / 6 (Howard et al. 2019).

        >>> Tensor([-1.5, 0.0, 4.0]).hardswish().tolist()
        [-0.375, 0.0, 4.0]
        """
        return self.maximum(-3.0) * ((self + 3.0).relu6() * (1 / 6))

    def hardtanh(self, min_val: Any = -1.0, max_val: Any = 1.0) -> Self:
        """x kept within `min_val` and `max_val`.

        >>> Tensor([-4.0, 0.5, 4.0]).hardtanh().tolist()
        [-1.0, 0.5, 1.0]
        """
        return self.clamp(min_val, max_val)

    @in_wide_float
    def softsign(self) -> Self:
        """x / (1 + |x|); from 1 on as 1 - 1 / (1 + |x|), whose derivative does not cancel.

        >>> Tensor([-1.0, 3.0]).softsign().tolist()
        [-0.5, 0.75]
        """
        r = self._magnitude()
        inner, q = r < 1.0, (r + 1.0).reciprocal()
        return inner.where(inner.where(r, r.const_like(0)) * q, 1.0 - q).copysign(self)
