"""Normalisation layers: over the batch with running statistics, over features, groups or channels. As PyTorch's."""

from __future__ import annotations

import math
from collections.abc import Sequence

from aril.config import TRAINING
from aril.dtype import dtypes, promote
from aril.mixin.base import as_int, as_number, need_tensors, shape_arg
from aril.nn.layer import Layer
from aril.nn.state import marked_param
from aril.tensor import Tensor


def _ones(*shape: int) -> Tensor:
    return marked_param(Tensor.ones(*shape).contiguous())


def _zeros(*shape: int) -> Tensor:
    return marked_param(Tensor.zeros(*shape).contiguous())


def _wide(x: Tensor) -> Tensor:
    """Small floats as float32, which holds their squares."""
    return x.float() if x.dtype.kind == "f" and x.dtype.itemsize < 4 else x


class BatchNorm(Layer):
    """Each channel (axis 1) shifted and scaled to mean 0 and variance 1, then `* weight + bias`; any number of axes.
    Small floats are computed with in float32.

    Under `Context(TRAINING=1)` by the statistics of the batch, and the running ones move by `momentum` towards them
    (the variance unbiased); else by the running ones. Moving them is an assignment like any other, computed when they
    are realized: give them to the optimizer along with the parameters, as `get_parameters` does, and `step` does it.

    >>> norm = nn.BatchNorm(3)
    >>> norm(Tensor.zeros(2, 3, 4, 4)).shape, norm.running_mean.shape
    ((2, 3, 4, 4), (3,))
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        affine: bool = True,
        track_running_stats: bool = True,
        momentum: float = 0.1,
    ) -> None:
        num_features = as_int("BatchNorm: num_features", num_features, 1)
        self.eps, self.momentum = as_number("BatchNorm: eps", eps, 0), as_number("BatchNorm: momentum", momentum, 0, 1)
        self.num_features = num_features
        self.weight = _ones(num_features) if affine else None
        self.bias = _zeros(num_features) if affine else None
        self.running_mean: Tensor | None = None
        self.running_var: Tensor | None = None
        self.num_batches_tracked: Tensor | None = None
        if track_running_stats:
            self.running_mean = marked_param(Tensor.zeros(num_features).contiguous(), False)
            self.running_var = marked_param(Tensor.ones(num_features).contiguous(), False)
            self.num_batches_tracked = marked_param(Tensor.zeros((), dtype=dtypes.int64).contiguous(), False)

    def __call__(self, x: Tensor) -> Tensor:
        need_tensors("BatchNorm", x=x)
        if x.ndim < 2 or x.shape[1] != self.num_features:
            raise ValueError(f"BatchNorm takes (batch, {self.num_features}, ...), the input has shape {x.shape}")
        wide = _wide(x)
        mean, var = self._statistics(wide)
        out = wide.batchnorm(self.weight, self.bias, mean, (var + self.eps).rsqrt())
        kind = x.dtype if self.weight is None else promote(x.dtype, self.weight.dtype)
        return out.cast(kind) if kind.kind == "f" else out

    def _statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of shape (channels,): of the batch, or the running ones."""
        if not TRAINING.value and self.running_mean is not None and self.running_var is not None:
            return self.running_mean, self.running_var
        axes = tuple([a for a in range(x.ndim) if a != 1])
        mean = x.mean(axes)
        centred = x - mean.reshape(1, -1, *(1,) * (x.ndim - 2))
        var = (centred * centred).mean(axes)
        if TRAINING.value:
            self._track(mean.detach(), var.detach(), math.prod(x.shape) // self.num_features)
        return mean, var

    def _track(self, mean: Tensor, var: Tensor, count: int) -> None:
        """Move the running statistics towards those of a batch of `count` elements a channel."""
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        keep, new = 1.0 - self.momentum, self.momentum
        unbiased = new * count / max(count - 1, 1)
        self.running_mean.assign(keep * self.running_mean + new * mean)
        self.running_var.assign(keep * self.running_var + unbiased * var)
        self.num_batches_tracked.assign(self.num_batches_tracked + 1)


BatchNorm1d = BatchNorm2d = BatchNorm3d = BatchNorm


class LayerNorm(Layer):
    """The last axes (`normalized_shape`) shifted and scaled to mean 0 and variance 1, then `* weight + bias`.

    >>> [round(v, 3) for v in nn.LayerNorm(2)(Tensor([[1.0, 3.0]]))[0].tolist()]
    [-1.0, 1.0]
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
    ) -> None:
        what = type(self).__name__
        shape = tuple([as_int(f"{what}: a size", d, 1) for d in shape_arg(what, (normalized_shape,))])
        if not shape:
            raise ValueError(f"{what}: there is no axis to normalise over; give at least one size")
        self.normalized_shape, self.eps = shape, as_number(f"{what}: eps", eps, 0)
        self.axes = tuple(range(-len(shape), 0))
        self.weight = _ones(*shape) if elementwise_affine else None
        self.bias = _zeros(*shape) if elementwise_affine and bias else None

    def __call__(self, x: Tensor) -> Tensor:
        need_tensors(type(self).__name__, x=x)
        if x.shape[-len(self.normalized_shape) :] != self.normalized_shape:
            wanted = ", ".join(map(str, self.normalized_shape))
            raise ValueError(f"LayerNorm takes (..., {wanted}), the input has shape {x.shape}")
        out = x.layernorm(self.axes, self.eps)
        out = out if self.weight is None else out * self.weight
        return out if self.bias is None else out + self.bias


class LayerNorm2d(LayerNorm):
    """`LayerNorm` over the channels (axis 1) of (N, C, H, W).

    >>> nn.LayerNorm2d(3)(Tensor.zeros(2, 3, 4, 4)).shape
    (2, 3, 4, 4)
    """

    def __init__(
        self, num_channels: int, eps: float = 1e-6, elementwise_affine: bool = True, bias: bool = True
    ) -> None:
        super().__init__(num_channels, eps, elementwise_affine, bias)

    def __call__(self, x: Tensor) -> Tensor:
        need_tensors("LayerNorm2d", x=x)
        if x.ndim != 4:
            raise ValueError(f"LayerNorm2d takes (batch, {self.normalized_shape[0]}, height, width), not {x.shape}")
        return super().__call__(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class GroupNorm(Layer):
    """The channels (axis 1) in `num_groups` groups, each of one sample to mean 0 and variance 1; `weight` and `bias` a
    channel.

    >>> nn.GroupNorm(2, 4)(Tensor.zeros(2, 4, 3)).shape
    (2, 4, 3)
    """

    def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True) -> None:
        what = type(self).__name__
        num_groups = as_int(f"{what}: num_groups", num_groups, 1)
        num_channels = as_int(f"{what}: num_channels", num_channels, 1)
        eps = as_number(f"{what}: eps", eps, 0)
        if num_channels % num_groups:
            raise ValueError(f"GroupNorm: {num_channels} channels do not divide into {num_groups} groups")
        self.num_groups, self.num_channels, self.eps = num_groups, num_channels, eps
        self.weight = _ones(num_channels) if affine else None
        self.bias = _zeros(num_channels) if affine else None

    def __call__(self, x: Tensor) -> Tensor:
        need_tensors(type(self).__name__, x=x)
        if x.ndim < 2 or x.shape[1] != self.num_channels:
            raise ValueError(
                f"{type(self).__name__} takes (batch, {self.num_channels}, ...), the input has shape {x.shape}"
            )
        out = x.reshape(x.shape[0], self.num_groups, -1).layernorm(-1, self.eps).reshape(x.shape)
        per_channel = (1, self.num_channels, *(1,) * (x.ndim - 2))
        out = out if self.weight is None else out * self.weight.reshape(per_channel)
        return out if self.bias is None else out + self.bias.reshape(per_channel)


class InstanceNorm(GroupNorm):
    """Each channel of each sample to mean 0 and variance 1, then `* weight + bias` where `affine`.

    >>> nn.InstanceNorm(4)(Tensor.zeros(2, 4, 3)).shape
    (2, 4, 3)
    """

    def __init__(self, num_features: int, eps: float = 1e-5, affine: bool = True) -> None:
        super().__init__(num_features, num_features, eps, affine)


class RMSNorm(Layer):
    """`x / sqrt(mean(x**2) + eps) * weight` over the last axis (Zhang and Sennrich, 2019).

    Small floats are squared and summed in float32.

    >>> [round(v, 3) for v in nn.RMSNorm(2)(Tensor([[3.0, 4.0]]))[0].tolist()]
    [0.849, 1.131]
    """

    def __init__(self, dim: int, eps: float = 1e-6, elementwise_affine: bool = True) -> None:
        dim = as_int("RMSNorm: dim", dim, 1)
        self.dim, self.eps = dim, as_number("RMSNorm: eps", eps, 0)
        self.weight = _ones(dim) if elementwise_affine else None

    def __call__(self, x: Tensor) -> Tensor:
        need_tensors("RMSNorm", x=x)
        if x.ndim == 0 or x.shape[-1] != self.dim:
            raise ValueError(f"RMSNorm takes (..., {self.dim}), the input has shape {x.shape}")
        wide = _wide(x)
        out = (wide * ((wide * wide).mean(-1, keepdim=True) + self.eps).rsqrt()).cast(x.dtype)
        return out if self.weight is None else out * self.weight
