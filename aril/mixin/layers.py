"""Functions that networks are built of: normalisation, losses, attention, dropout, one-hot."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Self

from aril.dtype import dtypes
from aril.mixin.base import as_int, as_number, as_tuple, dim_prod, need_tensors, same, shape_arg, shown, to_pair
from aril.mixin.order import OrderMixin

_REDUCTIONS = ("none", "sum", "mean")
NEWTON_STEPS = 100  # far beyond what converges: each step is a part of the graph


class LayersMixin(OrderMixin):
    """Shapes stand beside each; floats of low precision are normalised in float32."""

    __slots__ = ()

    def sequential(self, layers: Iterable[Callable[[Any], Any]]) -> Any:
        """This value through `layers`, one after the other.

        >>> Tensor([-1.0, 2.0]).sequential([Tensor.relu, lambda x: x * 10]).tolist()
        [0.0, 20.0]
        """
        out: Any = self
        for layer in as_tuple("sequential: layers", layers):
            if not callable(layer):
                raise TypeError(f"sequential: a layer is a function or has __call__, which {shown(layer)} has not")
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
        optional = ("weight", "bias")
        need_tensors("batchnorm", weight=weight, bias=bias, mean=mean, invstd=invstd, optional=optional)
        axes = self._axes(axis, "batchnorm")
        shape = tuple([d if i in axes else 1 for i, d in enumerate(self.shape)])
        for name, t in (("weight", weight), ("bias", bias), ("mean", mean)):
            if t is not None and not same(t.numel(), dim_prod(shape)):
                raise ValueError(f"batchnorm: {name} has shape {t.shape}, axis {axis} of {self.shape} wants {shape}")
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
        p, x = as_number("normalize: p", p), self._floating()
        wide = x._wide()
        norm = wide.square().sum(axis, True).sqrt() if p == 2 else wide.abs().pow(p).sum(axis, True).pow(1 / p)
        return (wide / norm.maximum(eps)).cast(x.dtype)

    # --- losses ---

    def _loss_result(self, reduction: str, what: str) -> Self:
        if reduction not in _REDUCTIONS:
            raise ValueError(f"{what}: reduction is one of {', '.join(_REDUCTIONS)}, not {reduction!r}")
        return self if reduction == "none" else self.sum() if reduction == "sum" else self.mean()

    def _targets(self, Y: Any, what: str) -> Self:
        """Targets for each element, or one number for all. ValueError for another shape: a broadcast is a mistake."""
        Y = self.ufix(Y)
        if Y.shape and Y.shape != self.shape:
            raise ValueError(f"{what}: targets of shape {Y.shape} do not fit {self.shape}; their shapes must be equal")
        return Y

    def binary_crossentropy(self, Y: Self, reduction: str = "mean") -> Self:
        """-(y log p + (1 - y) log(1 - p)) of probabilities p (this value) and targets of the same shape.

        A logarithm is at least -100, as in PyTorch, so that a certainty that is wrong costs 100; where p is 0 or 1 that
        part has no gradient.

        >>> round(Tensor([0.5]).binary_crossentropy(Tensor([1.0])).item(), 4)
        0.6931
        """

        def log(p: Self) -> Self:
            none = p.eq(0)
            return none.where(-100.0, none.where(p.const_like(1), p).log().maximum(-100.0))

        Y = self._targets(Y, "binary_crossentropy")
        out = (Y * log(self) + (1 - Y) * log(1 - self)).neg()
        return out._loss_result(reduction, "binary_crossentropy")

    def binary_crossentropy_logits(self, Y: Self, reduction: str = "mean", pos_weight: Self | None = None) -> Self:
        """`binary_crossentropy` of sigmoid(x), without overflow: max(x, 0) - x y + log(1 + exp(-|x|)).

        `pos_weight` multiplies the part of the positive targets; its shape broadcasts to that of x.

        >>> round(Tensor([0.0]).binary_crossentropy_logits(Tensor([1.0])).item(), 4)
        0.6931
        """
        Y = self._targets(Y, "binary_crossentropy_logits")
        x = self._floating()
        tail = x._softplus_tail()  # type: ignore[attr-defined]
        if pos_weight is None:
            out = x.maximum(0) - x * Y + tail
        else:
            weight = (self.ufix(pos_weight) - 1) * Y + 1
            out = (1 - Y) * x + weight * (tail + (x > 0).where(x.const_like(0), x.neg()))
        return out._loss_result(reduction, "binary_crossentropy_logits")

    def cross_entropy(
        self,
        Y: Self,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        axis: int = 1,
        weight: Self | None = None,
        ignore_index: int = -100,
    ) -> Self:
        """-sum(y log softmax(x)) over the classes on `axis` (1; 0 of a vector).

        Y: class numbers, of the shape without that axis, or probabilities of the same shape. Class numbers equal to
        `ignore_index` do not count, also in the mean; `weight` (classes,) weighs each class, also in the mean over
        class numbers.
        Errors: ValueError for shapes that do not fit and a label_smoothing outside of 0 to 1.

        >>> round(Tensor([[0.0, 0.0]]).cross_entropy(Tensor([1])).item(), 4)
        0.6931
        """
        need_tensors("cross_entropy", Y=Y, weight=weight, optional=("weight",))
        label_smoothing = as_number("cross_entropy: label_smoothing", label_smoothing, 0, 1)
        d = self._axis(axis, "cross_entropy") if self.ndim > 1 else 0
        rest = tuple([s for i, s in enumerate(self.shape) if i != d])
        logs = self.log_softmax(d)
        if Y.shape == rest and (self.shape != Y.shape or Y.dtype.kind != "f"):
            return logs._at_classes(Y, d, weight, ignore_index, label_smoothing, reduction, "cross_entropy")
        if Y.shape != self.shape:
            raise ValueError(
                f"cross_entropy: logits {self.shape} with classes on axis {d} do not fit targets {Y.shape}"
            )
        target = Y * (1 - label_smoothing) + label_smoothing / self.shape[d] if label_smoothing else Y
        if weight is not None:
            logs = logs * self._weights(weight, d, "cross_entropy")
        return (logs * target).sum(d).neg()._loss_result(reduction, "cross_entropy")

    def sparse_categorical_crossentropy(
        self, Y: Self, ignore_index: int = -1, label_smoothing: float = 0.0, reduction: str = "mean"
    ) -> Self:
        """Cross-entropy of logits (.., classes) and class numbers (..); targets equal to `ignore_index` do not
        count.

        >>> round(Tensor([[0.0, 0.0]]).sparse_categorical_crossentropy(Tensor([1])).item(), 4)
        0.6931
        """
        need_tensors("sparse_categorical_crossentropy", Y=Y)
        if self.shape[:-1] != Y.shape:
            raise ValueError(f"sparse_categorical_crossentropy: logits {self.shape} do not fit class numbers {Y.shape}")
        what = "sparse_categorical_crossentropy"
        return self.log_softmax(-1)._at_classes(Y, self.ndim - 1, None, ignore_index, label_smoothing, reduction, what)

    def nll_loss(self, Y: Self, weight: Self | None = None, ignore_index: int = -100, reduction: str = "mean") -> Self:
        """The negative log-likelihood of log-probabilities (N, classes, ..) and class numbers (N, ..), or of (classes,)
        and one number.

        `weight` (classes,) weighs each class, also in the mean; targets equal to `ignore_index` do not count.

        >>> Tensor([[-0.5, -1.5]]).nll_loss(Tensor([1])).item()
        1.5
        """
        need_tensors("nll_loss", Y=Y, weight=weight, optional=("weight",))
        d = 1 if self.ndim > 1 else 0
        if not self.ndim or (*self.shape[:d], *self.shape[d + 1 :]) != Y.shape:
            raise ValueError(f"nll_loss: log-probabilities {self.shape} do not fit class numbers {Y.shape}")
        return self._at_classes(Y, d, weight, ignore_index, 0.0, reduction, "nll_loss")

    def _at_classes(
        self, Y: Self, d: int, weight: Self | None, ignore: int, smoothing: float, reduction: str, what: str
    ) -> Self:
        """The loss of these log-probabilities, the classes on axis d, at the class numbers Y."""
        if Y.dtype.kind == "f":
            raise TypeError(f"{what}: class numbers are integers, not {Y.dtype.name}; cast them")
        ignore, smoothing = (
            as_int(f"{what}: ignore_index", ignore),
            as_number(f"{what}: label_smoothing", smoothing, 0, 1),
        )
        numbers = Y if Y.dtype.itemsize >= 4 else Y.cast(dtypes.int32)  # a narrow type may not hold every class
        classes, none = self.shape[d], self.const_like(0)
        along = tuple([classes if i == d else 1 for i in range(self.ndim)])
        hit = numbers.unsqueeze(d).eq(self._iota(classes).cast(numbers.dtype)._reshape(along))
        counts = numbers.ne(ignore) if numbers.dtype.min <= ignore <= numbers.dtype.max else numbers.eq(numbers)
        hit = hit & counts.unsqueeze(d)
        weights = None if weight is None else self._weights(weight, d, what)
        logs = self if weights is None else self * weights
        loss = hit.where(logs, none).sum(d).neg()
        if smoothing:
            every = counts.where(logs._wide().sum(d).neg(), none)  # many logarithms may be too much for a small float
            loss = (loss * (1 - smoothing) + every * (smoothing / classes)).cast(self.dtype)
        if reduction != "mean":
            return loss._loss_result(reduction, what)
        wide = loss._wide()
        share = counts.cast(wide.dtype) if weights is None else hit.where(weights, none).sum(d).cast(wide.dtype)
        return (wide.sum() / share.sum()).cast(loss.dtype)

    def _weights(self, weight: Self, d: int, what: str) -> Self:
        """A weight for each class, along axis d of this value."""
        if weight.shape != (self.shape[d],):
            raise ValueError(f"{what}: weight {weight.shape} must have one number for each of {self.shape[d]} classes")
        return weight.cast(self.dtype)._reshape(tuple([n if i == d else 1 for i, n in enumerate(self.shape)]))

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
        need_tensors("max_unpool2d", indices=indices)
        n = self.ndim - 2
        kernel, strides, dilations, pairs, _ = self._pool_setup(
            to_pair("max_unpool2d: kernel_size", kernel_size, n, 1), stride, dilation, padding, False, "max_unpool2d"
        )
        spatial = output_size
        if spatial is None:
            spatial = [
                (o - 1) * s - b - a + d * (k - 1) + 1
                for o, s, (b, a), d, k in zip(self.shape[2:], strides, pairs, dilations, kernel, strict=True)
            ]
        spatial = shape_arg("max_unpool2d: output_size", (spatial,))[-n:]
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
        scale: float | None = None,
    ) -> Self:
        """softmax(q k^T / sqrt(d)) v (Vaswani et al. 2017): q (.., L, d), k (.., S, d), v (.., S, e) give (.., L, e).

        `attn_mask` is bool (False: not seen) or is added; `is_causal` lets row i see columns up to i; `enable_gqa`
        repeats heads (axis -3) of key and value to those of the query; `scale` stands in for 1 / sqrt(d). A row that
        sees nothing gives zeros. Dropout takes place in training only (`Context(TRAINING=1)`).
        Errors: ValueError for shapes that do not fit.

        >>> q = Tensor.ones(1, 2, 4)
        >>> q.scaled_dot_product_attention(q, q, is_causal=True).shape
        (1, 2, 4)
        """
        what = "scaled_dot_product_attention"
        need_tensors(what, key=key, value=value, attn_mask=attn_mask, optional=("attn_mask",))
        k, v = key, value
        shapes = f"query {self.shape}, key {key.shape}, value {value.shape}"
        if min(self.ndim, k.ndim, v.ndim) < 2 or not same(self.shape[-1], k.shape[-1]):
            raise ValueError(f"{what}: {shapes}: the last axes of query and key must agree")
        if not same(k.shape[-2], v.shape[-2]):
            raise ValueError(f"{what}: {shapes}: key and value must be of one length (axis -2)")
        if enable_gqa:
            grouped = min(self.ndim, k.ndim, v.ndim) >= 3 and all(t.shape[-3] for t in (k, v))
            if not grouped or any(self.shape[-3] % t.shape[-3] for t in (k, v)):
                raise ValueError(
                    f"{what}: {shapes}: with enable_gqa the heads (axis -3) of the query must be a multiple of those "
                    "of key and value"
                )
            k, v = (t.repeat_interleave(self.shape[-3] // t.shape[-3], -3) for t in (k, v))
        q, v = self._floating(), v._floating()
        scores = q._wide().dot(k._wide().transpose(-2, -1))
        if scale is None:
            scale = 1.0 / math.sqrt(self._known_length(self.ndim - 1, f"{what} without scale"))
        scores = scores * scale
        seen: Self | None = None
        if is_causal:
            if attn_mask is not None:
                raise ValueError(f"{what}: give attn_mask or is_causal, not both")
            rows, columns = scores.shape[-2], scores.shape[-1]
            seen = self._iota(rows)._reshape((rows, 1)) >= self._iota(columns)._reshape((1, columns))
        elif attn_mask is not None and attn_mask.dtype.kind == "b":
            seen = attn_mask
        elif attn_mask is not None:
            scores = scores + attn_mask
        if seen is not None:
            scores = seen.where(scores, -math.inf)
        top = scores._top(-1).detach()
        e = (scores - top.isfinite().where(top, top.const_like(0))).exp()
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
        x = self if self.dtype.itemsize >= 4 else self.cast(dtypes.int32)  # a narrow type may not hold every class
        if not hasattr(num_classes, "_as_dim"):
            num_classes = as_int("one_hot: num_classes", num_classes, 0)
        hit = x._reshape((*x.shape, 1)).eq(x._iota(num_classes).cast(x.dtype))
        return hit.cast(dtypes.default_int())

    def newton_schulz(
        self, steps: int = 5, params: tuple[float, float, float] = (3.4445, -4.775, 2.0315), eps: float = 1e-7
    ) -> Self:
        """Matrices (.., m, n) moved towards the nearest semi-orthogonal ones: X <- a X + (b A + c A A) X for A = X X^T.

        The iteration of Muon (Jordan et al. 2024). `steps` is at most 100, as each is a part of the graph.

        >>> Tensor.eye(2).newton_schulz(1).shape
        (2, 2)
        """
        if self.ndim < 2:
            raise ValueError(f"newton_schulz: expected matrices (.., m, n), not shape {self.shape}")
        steps = as_int("newton_schulz: steps", steps, 0, NEWTON_STEPS)
        if len(as_tuple("newton_schulz: params", params)) != 3:
            raise ValueError(f"newton_schulz: params are the three numbers a, b, c, not {params!r}")
        a, b, c = [as_number("newton_schulz: a, b and c: each", p) for p in params]
        eps = as_number("newton_schulz: eps", eps, 0)
        x = self / (self.square().sum((-2, -1), True).sqrt() + eps)
        rows, columns = self.shape[-2:]
        wide = isinstance(rows, int) and isinstance(columns, int) and rows > columns
        x = x.transpose(-2, -1) if wide else x
        for _ in range(steps):
            gram = x.dot(x.transpose(-2, -1))
            x = x * a + (gram * b + gram.dot(gram) * c).dot(x)
        return x.transpose(-2, -1) if wide else x
