"""Layers of sliding windows: Conv1d, Conv2d and their transposes. Initial values and shapes as PyTorch's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from aril.mixin.base import as_int, need_tensors, to_pair
from aril.nn.layer import Layer
from aril.nn.linear import uniform_param
from aril.tensor import Tensor

Size = int | Sequence[int]


class _Conv(Layer):
    axes: int

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size | str = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        dtype: Any = None,
    ) -> None:
        in_channels = as_int(f"{type(self).__name__}: in_channels", in_channels, 0)
        out_channels = as_int(f"{type(self).__name__}: out_channels", out_channels, 0)
        groups = as_int(f"{type(self).__name__}: groups", groups, 1)
        if in_channels % groups or out_channels % groups:
            raise ValueError(
                f"{type(self).__name__}: groups={groups} does not divide the channels {in_channels} and {out_channels}"
            )
        self.kernel_size = to_pair(f"{type(self).__name__}: kernel_size", kernel_size, self.axes, 1)
        self.stride = to_pair(f"{type(self).__name__}: stride", stride, self.axes, 1)
        self.dilation = to_pair(f"{type(self).__name__}: dilation", dilation, self.axes, 1)
        self.groups, self.in_channels = groups, in_channels
        self.padding = self._padding(padding)
        shape = self._weight_shape(in_channels, out_channels)
        fan_in = math.prod(shape[1:])
        bound = 1.0 / math.sqrt(fan_in) if fan_in else 0.0
        self.weight = uniform_param(bound, *shape, dtype=dtype)
        self.bias = uniform_param(bound, out_channels, dtype=dtype) if bias else None

    def _weight_shape(self, in_channels: int, out_channels: int) -> tuple[int, ...]:
        return (out_channels, in_channels // self.groups, *self.kernel_size)

    def _padding(self, padding: Size | str) -> tuple[int, ...]:
        """Before and after each axis, the last axis first (the order of `conv2d`'s `padding`)."""
        if isinstance(padding, str):
            if padding not in ("same", "valid"):
                raise ValueError(f'padding={padding!r}: give a number, one for each axis, "same" or "valid"')
            if padding == "same" and any(s != 1 for s in self.stride):
                raise ValueError(f'padding="same" needs a stride of 1, not {self.stride}')
            total = [
                d * (k - 1) if padding == "same" else 0 for d, k in zip(self.dilation, self.kernel_size, strict=True)
            ]
            return tuple([v for t in reversed(total) for v in (t // 2, t - t // 2)])
        return tuple(
            [v for p in reversed(to_pair(f"{type(self).__name__}: padding", padding, self.axes)) for v in (p, p)]
        )

    def _check(self, x: Tensor) -> None:
        need_tensors(type(self).__name__, x=x)
        if x.ndim != self.axes + 2 or x.shape[1] != self.in_channels:
            axes = ", ".join(("length",) if self.axes == 1 else ("height", "width"))
            raise ValueError(
                f"{type(self).__name__} takes (batch, {self.in_channels}, {axes}), the input has shape {x.shape}"
            )


class Conv2d(_Conv):
    """Correlation with `weight` (out, in/groups, kh, kw): (N, in, H, W) to (N, out, H', W').

    `H' = (H + 2*padding - dilation*(kh-1) - 1) // stride + 1`. `padding` is a number, one an axis, "same" or "valid".
    Parameters start in +-1/sqrt(in/groups * kh * kw).

    >>> nn.Conv2d(3, 8, 3, padding=1)(Tensor.zeros(2, 3, 5, 5)).shape
    (2, 8, 5, 5)
    """

    axes = 2

    def __call__(self, x: Tensor) -> Tensor:
        self._check(x)
        return x.conv2d(self.weight, self.bias, self.groups, self.stride, self.dilation, self.padding)


class Conv1d(_Conv):
    """`Conv2d` over one axis: (N, in, L) to (N, out, L'), `weight` (out, in/groups, k).

    >>> nn.Conv1d(3, 8, 3)(Tensor.zeros(2, 3, 5)).shape
    (2, 8, 3)
    """

    axes = 1

    def __call__(self, x: Tensor) -> Tensor:
        self._check(x)
        return x.conv2d(self.weight, self.bias, self.groups, self.stride, self.dilation, self.padding)


class _ConvTranspose(_Conv):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size = 0,
        output_padding: Size = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Size = 1,
        dtype: Any = None,
    ) -> None:
        self.pads = to_pair(f"{type(self).__name__}: padding", padding, self.axes)
        self.output_padding = to_pair(f"{type(self).__name__}: output_padding", output_padding, self.axes)
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, dtype)

    def _weight_shape(self, in_channels: int, out_channels: int) -> tuple[int, ...]:
        return (in_channels, out_channels // self.groups, *self.kernel_size)

    def __call__(self, x: Tensor) -> Tensor:
        self._check(x)
        return x.conv_transpose2d(
            self.weight, self.bias, self.groups, self.stride, self.dilation, self.pads, self.output_padding
        )


class ConvTranspose2d(_ConvTranspose):
    """The transpose of `Conv2d`: (N, in, H, W) to (N, out, H', W'), `weight` (in, out/groups, kh, kw).

    `H' = (H - 1)*stride - 2*padding + dilation*(kh-1) + output_padding + 1`.

    >>> nn.ConvTranspose2d(3, 8, 2, stride=2)(Tensor.zeros(2, 3, 5, 5)).shape
    (2, 8, 10, 10)
    """

    axes = 2


class ConvTranspose1d(_ConvTranspose):
    """`ConvTranspose2d` over one axis: (N, in, L) to (N, out, L'), `weight` (in, out/groups, k).

    >>> nn.ConvTranspose1d(3, 8, 2, stride=2)(Tensor.zeros(2, 3, 5)).shape
    (2, 8, 10)
    """

    axes = 1
