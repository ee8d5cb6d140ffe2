"""Products in the layout of images: channels in groups of four, as GPU image objects hold them.

`image_dot` and `image_conv2d` equal `dot` and `conv2d`; channels are filled up with zeros to a multiple of 4, so that
a renderer with images finds whole pixels. With `FLOAT16=1` operands and results are stored as float16.
"""

from __future__ import annotations

from typing import Any, Self

from aril.config import FLOAT16
from aril.dtype import DTypeLike, dtypes, promote
from aril.mixin.base import as_int, need_tensors
from aril.mixin.layers import LayersMixin


class ImageMixin(LayersMixin):
    """Contractions over channels that come in fours. Shapes, dtypes and errors: those of `dot` and `conv2d`."""

    __slots__ = ()

    def image_dot(self, w: Self, dtype: DTypeLike | None = None) -> Self:
        """The matrix product of `dot`, both inner axes and the columns filled up to multiples of 4.

        >>> Tensor([[1.0, 2.0, 3.0]]).image_dot(Tensor([[1.0], [1.0], [2.0]])).tolist()
        [[9.0]]
        """
        need_tensors("image_dot", w=w)
        if self.ndim == 0 or w.ndim == 0 or self.shape[-1] != w.shape[-2 if w.ndim > 1 else 0]:
            return self.dot(w, dtype)  # which says what is wrong
        x, y = self._filled(self.ndim - 1), w._filled(w.ndim - 2 if w.ndim > 1 else 0)
        y = y._filled(w.ndim - 1) if w.ndim > 1 else y
        out = x._in_half().dot(y._in_half(), dtype)
        out = out.shrink([None] * (out.ndim - 1) + [(0, w.shape[-1])]) if w.ndim > 1 else out
        return out._as_product(self, w, dtype)

    def image_conv2d(
        self,
        weight: Self,
        bias: Self | None = None,
        groups: int = 1,
        stride: Any = 1,
        dilation: Any = 1,
        padding: Any = 0,
        dtype: DTypeLike | None = None,
    ) -> Self:
        """The convolution of `conv2d`, channels in and out of each group filled up to multiples of 4.

        >>> Tensor.ones(1, 3, 2, 2).image_conv2d(Tensor.ones(2, 3, 2, 2)).tolist()
        [[[[12.0]], [[12.0]]]]
        """
        need_tensors("image_conv2d", weight=weight, bias=bias, optional=("bias",))
        groups = as_int("image_conv2d: groups", groups, 1)
        if weight.ndim < 3 or self.ndim != weight.ndim or groups * weight.shape[1] != self.shape[1]:
            return self.conv2d(weight, bias, groups, stride, dilation, padding, dtype)  # which says what is wrong
        batch, spatial = self.shape[0], self.shape[2:]
        cout, cin, *kernel = weight.shape
        x = self.reshape(batch, groups, cin, *spatial)._filled(2)
        x = x.reshape(batch, groups * x.shape[2], *spatial)
        w = weight.reshape(groups, cout // groups, cin, *kernel)._filled(1)._filled(2)
        rows = w.shape[1]
        w = w.reshape(groups * rows, *w.shape[2:])
        out = x._in_half().conv2d(w._in_half(), None, groups, stride, dilation, padding, dtype)
        out = out.reshape(batch, groups, rows, *out.shape[2:])
        out = out.shrink([(0, cout // groups) if i == 2 else None for i in range(out.ndim)])
        out = out.reshape(batch, cout, *out.shape[3:])._as_product(self, weight, dtype)
        return out if bias is None else out + bias.reshape(1, cout, *(1,) * len(spatial))

    def _filled(self, axis: int) -> Self:
        n = self.shape[axis]
        return self.pad([(0, -n % 4) if i == axis else (0, 0) for i in range(self.ndim)])

    def _in_half(self) -> Self:
        return self.cast(dtypes.float16) if FLOAT16.value and self.dtype.kind == "f" else self

    def _as_product(self, a: Self, b: Self, dtype: DTypeLike | None) -> Self:
        """This product of halves in the type that a product of `a` and `b` has."""
        if not FLOAT16.value or dtype is not None or self.dtype.kind != "f":
            return self
        return self.cast(promote(a.dtype, b.dtype))
