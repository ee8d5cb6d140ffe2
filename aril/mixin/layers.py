"""Functions that networks are built of: normalisation, losses, attention, dropout, one-hot."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Self

from aril.dtype import dtypes
from aril.mixin.base import to_pair
from aril.mixin.order import OrderMixin

_REDUCTIONS = ("none", "sum", "mean")


class LayersMixin(OrderMixin):
    """Shapes stand beside each; floats of low precision are normalised in float32."""

    __slots__ = ()

    def sequential(self, layers: Iterable[Callable[[Any], Any]]) -> Any:
        """This value through `layers`, one after the other.

        >>> Tensor([-1.0, 2.0]).sequential([Tensor.relu, lambda x: x * 10]).tolist()
        [0.0, 20.0]
        """
        out: Any = self
        for layer in layers:
            out = layer(out)
        return out

    # --- normalisation ---

    def layernorm(self, axis: Any = -1, eps: float = 1e-5) -> Self:
        """(x - mean) / sqrt(variance + eps) over `axis` (Ba et al. 2016).

        >>> [round(v, 3) for v in Tensor([1.0, 3.0]).layernorm().tolist()]
        [-1.0, 1.0]
        """
        x = self._floating()
        wide = x._wide()
        centred = wide - wide.mean(axis, True)
        return (centred * (centred.square().mean(axis, True) + eps).rsqrt()).cast(x.dtype)

    def batchnorm(self, weight: Self | None, bias: Self | None, mean: Self, invstd: Self, axis: Any = 1) -> Self:
        """(x - mean) * invstd * weight + bias, all of the shape of `axis` (one axis, or several).

        >>> Tensor([[1.0], [3.0]]).batchnorm(None, None, Tensor([2.0]), Tensor([0.5])).tolist()
        [[-0.5], [0.5]]
        """
        axes = self._axes(axis, "batchnorm")
        shape = tuple([d if i in axes else 1 for i, d in enumerate(self.shape)])
        x = self - mean.reshape(shape)
        if weight is not None:
            x = x * weight.reshape(shape)
        out = x * (invstd.reshape(shape) if invstd.ndim == len(axes) else invstd)
        return out if bias is None else out + bias.reshape(shape)

    def normalize(self, p: float = 2.0, axis: Any = 1, eps: float = 1e-12) -> Self:
        """x divided by its p-norm over `axis` (by `eps` where the norm is smaller).

        >>> [round(v, 4) for v in Tensor([[3.0, 4.0]]).normalize().flatten().tolist()]
        [0.6, 0.8]
        """
        x = self._floating()
        size = x.abs() if p != 2 else x
        norm = (size.square() if p == 2 else size.pow(p)).sum(axis, True)
        return x / (norm.sqrt() if p == 2 else norm.pow(1 / p)).maximum(eps)

    # --- losses ---

    def _loss_result(self, reduction: str, what: str) -> Self:
        if reduction not in _REDUCTIONS:
            raise ValueError(f"{what}: reduction is one of {', '.join(_REDUCTIONS)}, not {reduction!r}")
        return self if reduction == "none" else self.sum() if reduction == "sum" else self.mean()

    def binary_crossentropy(self, Y: Self, reduction: str = "mean") -> Self:
        """-(y log p + (1 - y) log(1 - p)) of probabilities p (this value) and targets of the same shape.

        >>> round(Tensor([0.5]).binary_crossentropy(Tensor([1.0])).item(), 4)
        0.6931
        """
        out = (Y * self.log() + (1 - Y) * (1 - self).log()).neg()
        return out._loss_result(reduction, "binary_crossentropy")

    def binary_crossentropy_logits(self, Y: Self, reduction: str = "mean", pos_weight: Self | None = None) -> Self:
        """`binary_crossentropy` of sigmoid(x), without overflow: max(x, 0) - x y + log(1 + exp(-|x|)).

        >>> round(Tensor([0.0]).binary_crossentropy_logits(Tensor([1.0])).item(), 4)
        0.6931
        """
        tail = self.abs().neg().exp().log1p()
        if pos_weight is None:
            out = self.maximum(0) - self * Y + tail
        else:
            weight = (pos_weight - 1) * Y + 1
            out = (1 - Y) * self + weight * (tail + self.neg().maximum(0))
        return out._loss_result(reduction, "binary_crossentropy_logits")

    def cross_entropy(self, Y: Self, reduction: str = "mean", label_smoothing: float = 0.0, axis: int = 1) -> Self:
        """-sum(y log softmax(x)) over the classes on `axis` (1; 0 of a vector).

        Y: class numbers, of the shape without that axis, or probabilities of the same shape.

        >>> round(Tensor([[0.0, 0.0]]).cross_entropy(Tensor([1])).item(), 4)
        0.6931
        """
        if not 0.0 <= label_smoothing <= 1.0:
            raise ValueError(f"cross_entropy: label_smoothing lies within 0 and 1, not {label_smoothing}")
        d = self._axis(axis, "cross_entropy") if self.ndim > 1 else 0
        classes = self.shape[d]
        rest = tuple([s for i, s in enumerate(self.shape) if i != d])
        if Y.shape == rest and (self.shape != Y.shape or Y.dtype.kind != "f"):
            target = Y.one_hot(classes)
            target = target.movedim(-1, d) if d != self.ndim - 1 else target
            target = target.cast(self._floating().dtype)
        elif Y.shape == self.shape:
            target = Y
        else:
            raise ValueError(
                f"cross_entropy: logits {self.shape} with classes on axis {d} do not fit targets {Y.shape}"
            )
        if label_smoothing:
            target = target * (1 - label_smoothing) + label_smoothing / classes
        return (self.log_softmax(d) * target).sum(d).neg()._loss_result(reduction, "cross_entropy")

    def sparse_categorical_crossentropy(
        self, Y: Self, ignore_index: int = -1, label_smoothing: float = 0.0, reduction: str = "mean"
    ) -> Self:
        """Cross-entropy of logits (.., classes) and class numbers (..); targets equal to `ignore_index` do not
        count.

        >>> round(Tensor([[0.0, 0.0]]).sparse_categorical_crossentropy(Tensor([1])).item(), 4)
        0.6931
        """
        if self.shape[:-1] != Y.shape:
            raise ValueError(f"sparse_categorical_crossentropy: logits {self.shape} do not fit class numbers {Y.shape}")
        logs = self.log_softmax(-1)
        counts = Y.ne(ignore_index)
        hit = Y.unsqueeze(-1).eq(self._iota(self.shape[-1]).cast(Y.dtype)) & counts.unsqueeze(-1)
        chosen = hit.where(logs, logs.const_like(0)).sum(-1).neg()
        smooth = counts.where(logs.mean(-1).neg(), logs.const_like(0))
        loss = chosen * (1 - label_smoothing) + smooth * label_smoothing if label_smoothing else chosen
        if reduction == "mean":
            return loss.sum() / counts.sum().cast(loss.dtype)
        return loss._loss_result(reduction, "sparse_categorical_crossentropy")

    def nll_loss(
        self, Y: Self, weight: Self | None = None, ignore_index: int | None = None, reduction: str = "mean"
    ) -> Self:
        """The negative log-likelihood of log-probabilities (N, classes, ..) and class numbers (N, ..).

        `weight` (classes,) weighs each class, also in the mean; targets equal to `ignore_index` do not count.

        >>> Tensor([[-0.5, -1.5]]).nll_loss(Tensor([1])).item()
        1.5
        """
        if self.ndim < 2 or (self.shape[0], *self.shape[2:]) != Y.shape:
            raise ValueError(f"nll_loss: log-probabilities {self.shape} do not fit class numbers {Y.shape}")
        classes = self.shape[1]
        hit = Y.unsqueeze(1).eq(self._iota(classes).cast(Y.dtype)._reshape((1, classes, *(1,) * (self.ndim - 2))))
        counts = (Y.eq(Y) if ignore_index is None else Y.ne(ignore_index)).cast(self.dtype)
        if weight is not None:
            per_class = weight._reshape((1, classes, *(1,) * (self.ndim - 2)))
            counts = counts * hit.where(per_class, self.const_like(0)).sum(1)
        loss = hit.where(self, self.const_like(0)).sum(1).neg() * counts
        return loss.sum() / counts.sum() if reduction == "mean" else loss._loss_result(reduction, "nll_loss")

    # --- unpooling ---

    def max_unpool2d(
        self,
        indices: Self,
        kernel_size: Any = (2, 2),
        stride: Any = None,
        dilation: Any = 1,
        padding: Any = 0,
        output_size: Any = None,
    ) -> Self:
        """The inverse of `max_pool2d` with its indices (N, C, *out): values back in their places, zeros elsewhere.

        Of several values for one place (windows that overlap) the last stays.

        >>> x = Tensor([[[[1.0, 5.0], [2.0, 3.0]]]])
        >>> x.max_unpool2d(Tensor([[[[0, 3], [8, 10]]]])).flatten().tolist()
        [1.0, 0.0, 0.0, 5.0, 0.0, 0.0, 0.0, 0.0, 2.0, 0.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0]
        """
        n = self.ndim - 2
        kernel, strides, dilations, pairs, _ = self._pool_setup(
            to_pair(kernel_size, n), stride, dilation, padding, False, "max_unpool2d"
        )
        spatial = output_size
        if spatial is None:
            spatial = [
                (o - 1) * s - b - a + d * (k - 1) + 1
                for o, s, (b, a), d, k in zip(self.shape[2:], strides, pairs, dilations, kernel, strict=True)
            ]
        spatial = tuple(spatial)[-n:]
        lead = self.shape[:2]
        total = math.prod(spatial)
        empty = self._const(self.dtype, 0)._broadcast_to((*lead, total))
        return empty.scatter(2, indices.flatten(2), self.flatten(2))._reshape((*lead, *spatial))

    # --- attention ---

    def scaled_dot_product_attention(
        self,
        key: Self,
        value: Self,
        attn_mask: Self | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        enable_gqa: bool = False,
    ) -> Self:
        """softmax(q k^T / sqrt(d)) v (Vaswani et al. 2017): q (.., L, d), k (.., S, d), v (.., S, e) give (.., L, e).

        `attn_mask` is bool (False: not seen) or is added; `is_causal` lets row i see columns up to i; `enable_gqa`
        repeats heads (axis -3) of key and value to those of the query. A row that sees nothing gives zeros.

        >>> q = Tensor.ones(1, 2, 4)
        >>> q.scaled_dot_product_attention(q, q, is_causal=True).shape
        (1, 2, 4)
        """
        k, v = key, value
        if enable_gqa:
            k = k.repeat_interleave(self.shape[-3] // k.shape[-3], -3)
            v = v.repeat_interleave(self.shape[-3] // v.shape[-3], -3)
        q, v = self._floating(), v._floating()
        scores = q.dot(k.transpose(-2, -1)) * (1.0 / math.sqrt(self.shape[-1]))
        seen: Self | None = None
        if is_causal:
            if attn_mask is not None:
                raise ValueError("scaled_dot_product_attention: give attn_mask or is_causal, not both")
            rows, columns = scores.shape[-2], scores.shape[-1]
            seen = self._iota(rows)._reshape((rows, 1)) >= self._iota(columns)._reshape((1, columns))
        elif attn_mask is not None and attn_mask.dtype.kind == "b":
            seen = attn_mask
        elif attn_mask is not None:
            scores = scores + attn_mask
        if seen is not None:
            scores = seen.where(scores, -math.inf)
        weights = scores._wide()
        top = weights._top(-1).detach()
        e = (weights - top.isfinite().where(top, top.const_like(0))).exp()
        total = e.sum(-1, True)
        weights = (e / total.eq(0).where(total.const_like(1), total)).cast(q.dtype)
        if dropout_p:
            weights = weights.dropout(dropout_p)  # type: ignore[attr-defined]
        return weights.dot(v)

    def one_hot(self, num_classes: Any) -> Self:
        """(..) class numbers as (.., num_classes) of 0 and 1, in the default integer type; other numbers give all 0.

        >>> Tensor([0, 2]).one_hot(3).tolist()
        [[1, 0, 0], [0, 0, 1]]
        """
        if self.dtype.kind == "f":
            raise TypeError(f"one_hot needs integers, not {self.dtype.name}")
        x = self.cast(dtypes.default_int()) if self.dtype.kind == "b" else self
        if isinstance(num_classes, int) and num_classes < 0:
            raise ValueError(f"one_hot: num_classes is at least 0, not {num_classes}")
        hit = x._reshape((*x.shape, 1)).eq(x._iota(num_classes).cast(x.dtype))
        return hit.cast(dtypes.default_int())

    def newton_schulz(
        self, steps: int = 5, params: tuple[float, float, float] = (3.4445, -4.775, 2.0315), eps: float = 1e-7
    ) -> Self:
        """Matrices (.., m, n) moved towards the nearest semi-orthogonal ones: X <- a X + (b A + c A A) X for A = X X^T.

        The iteration of Muon (Jordan et al. 2024).

        >>> Tensor.eye(2).newton_schulz(1).shape
        (2, 2)
        """
        a, b, c = params
        x = self / (self.square().sum((-2, -1), True).sqrt() + eps)
        wide = isinstance(self.shape[-2], int) and self.shape[-2] > self.shape[-1]
        x = x.transpose(-2, -1) if wide else x
        for _ in range(steps):
            gram = x.dot(x.transpose(-2, -1))
            x = x * a + (gram * b + gram.dot(gram) * c).dot(x)
        return x.transpose(-2, -1) if wide else x
