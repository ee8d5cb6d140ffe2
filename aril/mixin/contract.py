"""Products summed over common axes: matrix products, einsum, convolutions and pooling.

Each is two expanded views, one MUL and one REDUCE(ADD) over everything summed, so that the compiler sees one
contraction.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Self

from aril.dtype import DTypeLike, accumulator, dtypes, promote, to_dtype
from aril.mixin.activations import ActivationMixin
from aril.mixin.base import as_int, bound, broadcast_shape, dim_prod, dim_sum, need_tensors, same, to_pair
from aril.mixin.movement import whole_steps
from aril.mixin.notation import parse_einsum
from aril.ops import Ops


class ContractMixin(ActivationMixin):
    """Types: operands are promoted; low-precision floats are multiplied and summed in float32 and rounded back once,
    small integers are summed in (and returned as) the type `accumulator` names. `dtype` asks for another."""

    __slots__ = ()

    def _contract(self, other: Self, axes: tuple[int, ...], dtype: DTypeLike | None = None) -> Self:
        """The sum over `axes` (which stay with length 1) of the product of two values that broadcast against each
        other."""
        common = promote(self.dtype, other.dtype)
        out_type = to_dtype(dtype) if dtype is not None else common if common.kind == "f" else accumulator(common)
        carried = accumulator(out_type if dtype is not None else common)
        a, b = self.cast(carried), other.cast(carried)
        shape = broadcast_shape(a.shape, b.shape, what="contraction")
        product = a._broadcast_to(shape)._alu(Ops.MUL, b._broadcast_to(shape))
        return product._reduced(Ops.ADD, axes, True, "contraction").cast(out_type)

    def dot(self, w: Any, dtype: DTypeLike | None = None) -> Self:
        """The matrix product as NumPy's `matmul`: (.., m, k) by (.., k, n) gives (.., m, n); vectors on either side
        lose their axis.

        Errors: ValueError where k differs or a side is a scalar.

        >>> Tensor([[1, 2], [3, 4]]).dot(Tensor([1, 10])).tolist()
        [21, 43]
        """
        w = self.ufix(w)
        if not self.shape or not w.shape:
            raise ValueError(f"matmul: scalars have no axis to sum over (shapes {self.shape} and {w.shape}); use mul")
        k = w.shape[-2] if w.ndim > 1 else w.shape[0]
        if not same(self.shape[-1], k):
            raise ValueError(
                f"matmul: {self.shape} by {w.shape}: the last axis of the left has {self.shape[-1]} elements, "
                f"the {'second last' if w.ndim > 1 else 'only'} axis of the right {k}; they must agree"
            )
        x = self if self.ndim > 1 else self.unsqueeze(0)
        y = w if w.ndim > 1 else w.unsqueeze(1)
        if x.ndim > 2 and y.ndim > 2:
            broadcast_shape(x.shape[:-2], y.shape[:-2], what="matmul, axes before the last two")
        left = x._reshape((*x.shape[:-1], 1, x.shape[-1]))
        right = y.transpose(-1, -2)._reshape((*y.shape[:-2], 1, y.shape[-1], y.shape[-2]))
        out = left._contract(right, (max(left.ndim, right.ndim) - 1,), dtype)
        shape = list(out.shape[:-1])
        if self.ndim == 1:
            del shape[-2]
        if w.ndim == 1:
            del shape[-1]
        return out._reshape(tuple(shape))

    def matmul(self, x: Any, reverse: Any = False, dtype: DTypeLike | None = None) -> Self:
        """The matrix product self @ x (x @ self where `reverse`); see `dot`.

        >>> Tensor([[1, 2], [3, 4]]).matmul(Tensor([[1], [10]])).tolist()
        [[21], [43]]
        """
        return self.ufix(x).dot(self, dtype) if reverse else self.dot(x, dtype)

    def __matmul__(self, x: Any) -> Self:
        return self.dot(x)

    def __rmatmul__(self, x: Any) -> Self:
        return self.matmul(x, True)

    def linear(self, weight: Self, bias: Self | None = None, dtype: DTypeLike | None = None) -> Self:
        """self @ weight + bias; a weight of one axis multiplies elementwise.

        >>> Tensor([[1.0, 2.0]]).linear(Tensor([[1.0], [10.0]]), Tensor([0.5])).tolist()
        [[21.5]]
        """
        need_tensors("linear", weight=weight, bias=bias, optional=("bias",))
        out = self * weight if weight.ndim == 1 else self.dot(weight, dtype)
        return out if bias is None else out + bias

    def einsum(self, formula: str, *others: Any, dtype: DTypeLike | None = None) -> Self:
        """Products summed as `formula` says (NumPy's notation, `...` too); this value is the first operand.

        >>> Tensor.einsum("ij,j->i", Tensor([[1, 2], [3, 4]]), Tensor([1, 10])).tolist()
        [21, 43]
        """
        if isinstance(self, str):  # called on the class, as other frameworks write it
            return formula.einsum(self, *others, dtype=dtype)
        operands = [self, *[self.ufix(x) for x in others]]
        inputs, output, letters = parse_einsum(formula, [x.shape for x in operands])
        placed = [x._einsum_operand(names, letters) for x, names in zip(operands, inputs, strict=True)]
        summed = tuple([i for i, c in enumerate(letters) if c not in output])
        out = placed[0]
        for x in placed[1:-1]:
            out = out * x
        if len(placed) > 1:
            out = out._contract(placed[-1], summed, dtype)
        else:
            out = out.sum(summed, True, dtype) if summed else out if dtype is None else out.cast(dtype)
        kept = [c for c in letters if c in output]
        out = out._reshape(tuple([d for i, d in enumerate(out.shape) if i not in summed]))
        return (out.permute(*[kept.index(c) for c in output]) if output else out)._as_value()

    def _einsum_operand(self, names: str, letters: str) -> Self:
        """This operand with an axis for each of `letters`, of length 1 where it has none."""
        x = self
        i = 0
        while i < len(names):  # an index that comes twice is a diagonal
            first = names.index(names[i])
            if first < i:
                x = x.diagonal(0, first, i)
                names = names[:first] + names[first + 1 : i] + names[i + 1 :] + names[i]
                i = 0
            else:
                i += 1
        order = sorted(range(len(names)), key=lambda k: letters.index(names[k]))
        x = x.permute(*order) if order else x
        sizes = dict(zip([names[k] for k in order], x.shape, strict=True))
        return x._reshape(tuple([sizes.get(c, 1) for c in letters]))

    # --- windows ---

    def _pool(self, kernel: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]) -> Self:
        """Windows over the last axes: (.., o1, .., on, k1, .., kn)."""
        n = len(kernel)
        first = self.ndim - n
        x = self
        for i, (k, s, d) in enumerate(zip(kernel, stride, dilation, strict=True)):
            x = x._windows(first + i, k, s, d)
        return x

    def _need_fit(self, what: str, kernel: tuple[int, ...], dilation: tuple[int, ...]) -> None:
        """ValueError where windows over the last axes of this padded value have no place."""
        for size, k, d in zip(map(bound, self.shape[self.ndim - len(kernel) :]), kernel, dilation, strict=True):
            if isinstance(size, int) and size < d * (k - 1) + 1:
                raise ValueError(
                    f"{what} of {kernel} (dilation {dilation}) does not fit into {self.shape} after padding"
                )

    def _spatial_padding(self, padding: Any, n: int) -> tuple[tuple[int, int], ...]:
        """Pairs (before, after) for the last `n` axes, from one int, one an axis, or PyTorch's flat form (last axis
        first)."""
        if isinstance(padding, str):
            raise ValueError(
                f"padding: {padding!r} is a word for layers (nn.Conv2d); here give numbers, such as 0 or (1, 2)"
            )
        if not isinstance(padding, Iterable):
            pad = as_int("padding", padding)
            return ((pad, pad),) * n
        flat = list(padding)
        if len(flat) == n and all(isinstance(p, (tuple, list)) and len(p) == 2 for p in flat):
            return tuple([(as_int("padding", a), as_int("padding", b)) for a, b in flat])
        flat = [as_int("padding", p) for p in flat]
        if len(flat) == n:
            return tuple([(p, p) for p in flat])
        if len(flat) == 2 * n:
            return tuple([(flat[i], flat[i + 1]) for i in range(0, 2 * n, 2)][::-1])
        raise ValueError(f"padding: expected one int, {n} or {2 * n} of them for {n} spatial axes, not {padding!r}")

    def conv2d(
        self,
        weight: Self,
        bias: Self | None = None,
        groups: Any = 1,
        stride: Any = 1,
        dilation: Any = 1,
        padding: Any = 0,
        dtype: DTypeLike | None = None,
    ) -> Self:
        """Cross-correlation of x (N, Cin, *spatial) with weight (Cout, Cin / groups, *kernel), over any number of
        spatial axes.

        Gives (N, Cout, *out) with out = (in + padding - dilation * (kernel - 1) - 1) // stride + 1 an axis. bias:
        (Cout,).

        >>> Tensor.ones(1, 1, 3, 3).conv2d(Tensor.ones(1, 1, 2, 2)).tolist()
        [[[[4.0, 4.0], [4.0, 4.0]]]]
        """
        need_tensors("conv2d", weight=weight, bias=bias, optional=("bias",))
        groups, n = as_int("conv2d: groups", groups, 1), weight.ndim - 2
        if n < 1 or self.ndim != weight.ndim:
            raise ValueError(
                f"conv2d: input {self.shape} and weight {weight.shape} must have the same rank, at least 3"
            )
        cout, cin = weight.shape[:2]
        kernel = weight.shape[2:]
        batch = self.shape[0]
        if not same(groups * cin, self.shape[1]) or cout % groups:
            raise ValueError(
                f"conv2d: input {self.shape} has {self.shape[1]} channels, weight {weight.shape} with "
                f"groups={groups} takes {groups * cin} and gives {cout}; they must agree and divide"
            )
        strides, dilations = to_pair("conv2d: stride", stride, n, 1), to_pair("conv2d: dilation", dilation, n, 1)
        common = promote(self.dtype, weight.dtype)
        kind = to_dtype(dtype) if dtype is not None else common if common.kind == "f" else accumulator(common)
        # cast ahead of the windows, so that their gradients are summed in the wide type, too
        x = self.cast(accumulator(kind)).pad(((0, 0), (0, 0), *self._spatial_padding(padding, n)))
        x._need_fit("conv2d: a kernel", kernel, dilations)
        # whole steps of all axes ahead of the first window: an element of x is padded, not one of every window
        more = [
            whole_steps(size, k, s, d) if isinstance(size, int) and s > 1 and (s != k or d != 1) else 0
            for size, k, s, d in zip(x.shape[2:], kernel, strides, dilations, strict=True)
        ]
        x = x._pad(((0, 0), (0, 0), *[(0, m) for m in more])) if any(more) else x
        x = x._pool(kernel, strides, dilations)  # (N, C, *out, *kernel)
        out = x.shape[2 : 2 + n]
        x = x._reshape((batch, groups, 1, cin, *out, *kernel))
        w = weight._reshape((1, groups, cout // groups, cin, *(1,) * n, *kernel))
        summed = (3, *range(4 + n, 4 + 2 * n))
        y = x._contract(w, summed, kind)._reshape((batch, cout, *out))
        return y if bias is None else y + bias._reshape((1, cout, *(1,) * n))

    def conv_transpose2d(
        self,
        weight: Self,
        bias: Self | None = None,
        groups: Any = 1,
        stride: Any = 1,
        dilation: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
    ) -> Self:
        """The transpose of `conv2d` in x (N, Cin, *spatial) with weight (Cin, Cout / groups, *kernel).

        Gives out = (in - 1) * stride - padding + dilation * (kernel - 1) + output_padding + 1 an axis.

        >>> Tensor.ones(1, 1, 2, 2).conv_transpose2d(Tensor.ones(1, 1, 2, 2)).tolist()
        [[[[1.0, 2.0, 1.0], [2.0, 4.0, 2.0], [1.0, 2.0, 1.0]]]]
        """
        need_tensors("conv_transpose2d", weight=weight, bias=bias, optional=("bias",))
        groups, n = as_int("conv_transpose2d: groups", groups, 1), weight.ndim - 2
        if n < 1 or self.ndim != weight.ndim or not same(self.shape[1], weight.shape[0]) or weight.shape[0] % groups:
            raise ValueError(
                f"conv_transpose2d: input {self.shape} and weight {weight.shape} with groups={groups} do not fit"
            )
        kernel, cin, rout = weight.shape[2:], weight.shape[0] // groups, weight.shape[1]
        strides, dilations = (
            to_pair("conv_transpose2d: stride", stride, n, 1),
            to_pair("conv_transpose2d: dilation", dilation, n, 1),
        )
        extra = to_pair("conv_transpose2d: output_padding", output_padding, n)
        around = self._spatial_padding(padding, n)
        if all(s == 1 for s in strides):  # a convolution with the weight mirrored
            w = weight._reshape((groups, cin, rout, *kernel)).transpose(1, 2)
            w = w.flip(*range(3, 3 + n))._reshape((groups * rout, cin, *kernel))
            pairs = [
                ((k - 1) * d - b, (k - 1) * d - a + e)
                for k, d, (b, a), e in zip(kernel, dilations, around, extra, strict=True)
            ]
            return self.pad(((0, 0), (0, 0), *pairs)).conv2d(w, bias, groups, 1, dilations)
        batch, *spatial = self.shape[0], *self.shape[2:]
        common = promote(self.dtype, weight.dtype)
        x = self._reshape((batch, groups, cin, 1, *spatial, *(1,) * n))
        w = weight._reshape((1, groups, cin, rout, *(1,) * n, *kernel))
        y = x._contract(w, (2,), accumulator(common))._reshape((batch, groups * rout, *spatial, *kernel))
        for i in reversed(range(n)):  # what each window gives goes to its place
            y = y._unwindowed(2 + i, strides[i], dilations[i])
        y = y.cast(common if common.kind == "f" else y.dtype)
        y = y.pad(((0, 0), (0, 0), *[(-b, e - a) for (b, a), e in zip(around, extra, strict=True)]))
        return y if bias is None else y + bias._reshape((1, groups * rout, *(1,) * n))

    def _unwindowed(self, axis: int, step: int, dilation: int) -> Self:
        """The transpose of `_windows`: out[.., o * step + k * dilation, ..] is the sum of x[.., o (axis), .., k
        (last)]."""
        *lead, size = self.shape
        count, before, rest = lead[axis], tuple(lead[:axis]), tuple(lead[axis + 1 :])
        if not isinstance(count, int):
            length = dim_sum((count - 1) * step, dilation * (size - 1) + 1)
            return self._to_greatest(axis)._unwindowed(axis, step, dilation)._first(axis, length)
        if step == size and dilation == 1:  # no place belongs to two windows
            x = self._permute((*range(axis + 1), self.ndim - 1, *range(axis + 1, self.ndim - 1)))
            return x._reshape((*before, count * size, *rest))
        along = lambda pair, other: tuple([pair if i == axis else other for i in range(self.ndim)])  # noqa: E731
        x = self
        if step > 1:  # zeros between the elements
            x = x._reshape((*before, count, 1, *rest, size))
            x = x._pad(tuple([(0, step - 1) if i == axis + 1 else (0, 0) for i in range(x.ndim)]))
            x = x._reshape((*before, count * step, *rest, size))
        reach = dilation * (size - 1)
        x = x._pad(along((reach, reach), (0, 0)))
        x = x._shear(axis, self.ndim - 1, -dilation, reach, (count - 1) * step + 1 + reach)
        return x.sum(-1)

    def _pool_setup(self, kernel_size: Any, stride: Any, dilation: Any, padding: Any, ceil_mode: Any, what: str) -> Any:
        n = len(kernel_size) if isinstance(kernel_size, (tuple, list)) else 2
        kernel = to_pair(f"{what}: kernel_size", kernel_size, n, 1)
        if self.ndim < n:
            raise ValueError(f"{what}: a window of {kernel} needs {n} spatial axes, the shape is {self.shape}")
        strides = kernel if stride is None else to_pair(f"{what}: stride", stride, n, 1)
        dilations = to_pair(f"{what}: dilation", dilation, n, 1)
        pairs = list(self._spatial_padding(padding, n))
        ceil_extra = [0] * n
        if ceil_mode:
            for axis in range(self.ndim - n, self.ndim):
                self._known_length(axis, f"{what} with ceil_mode")
            for i, (size, k, s, d, (b, a)) in enumerate(
                zip(self.shape[-n:], kernel, strides, dilations, pairs, strict=True)
            ):
                count = -(-(size + b + a - d * (k - 1) - 1) // s) + 1
                if (count - 1) * s >= size + b:  # PyTorch: no window starts in the padding behind
                    count -= 1
                ceil_extra[i] = max((count - 1) * s + d * (k - 1) + 1 - (size + b + a), 0)
        return kernel, strides, dilations, tuple(pairs), ceil_extra

    def avg_pool2d(
        self,
        kernel_size: Any = (2, 2),
        stride: Any = None,
        dilation: Any = 1,
        padding: Any = 0,
        ceil_mode: Any = False,
        count_include_pad: Any = True,
    ) -> Self:
        """Means over windows of the last axes (two for an int), `stride` (default: the window) apart.

        >>> Tensor.arange(16).reshape(1, 1, 4, 4).avg_pool2d().tolist()
        [[[[2.5, 4.5], [10.5, 12.5]]]]
        """
        kernel, strides, dilations, pairs, extra = self._pool_setup(
            kernel_size, stride, dilation, padding, ceil_mode, "avg_pool2d"
        )
        n = len(kernel)
        lead = ((0, 0),) * (self.ndim - n)
        axes = tuple(range(-n, 0))
        behind = (*lead, *[(0, e) for e in extra])

        def windows(x: Any, pad: Any) -> Any:
            x = x.pad((*lead, *pad)).pad(behind)
            x._need_fit("avg_pool2d: a window", kernel, dilations)
            return x._pool(kernel, strides, dilations).sum(axes)

        total = windows(self._floating(), pairs)
        if count_include_pad and not any(extra):
            return total / math.prod(kernel)
        ones = self._floating().const_like(1)._broadcast_to((1,) * (self.ndim - n) + self.shape[-n:])
        if count_include_pad:
            ones = ones._pad((*lead, *pairs), 1)
            return total / windows(ones, ((0, 0),) * n)
        return total / windows(ones, pairs)

    def max_pool2d(
        self,
        kernel_size: Any = (2, 2),
        stride: Any = None,
        dilation: Any = 1,
        padding: Any = 0,
        ceil_mode: Any = False,
        return_indices: Any = False,
    ) -> Any:
        """Maxima over windows of the last axes (two for an int), `stride` (default: the window) apart.

        With `return_indices` also where each lies, as a flat position in the (unpadded) spatial axes.

        >>> Tensor.arange(16).reshape(1, 1, 4, 4).max_pool2d().tolist()
        [[[[5, 7], [13, 15]]]]
        """
        kernel, strides, dilations, pairs, extra = self._pool_setup(
            kernel_size, stride, dilation, padding, ceil_mode, "max_pool2d"
        )
        n = len(kernel)
        lead = self.ndim - n
        pads = (*[(0, 0)] * lead, *[(b, a + e) for (b, a), e in zip(pairs, extra, strict=True)])
        x = self.pad(pads, value=self.dtype.min)
        x._need_fit("max_pool2d: a window", kernel, dilations)
        x = x._pool(kernel, strides, dilations)
        axes = tuple(range(-n, 0))
        top = x.max(axes)
        if not return_indices:
            return top
        spatial = self.shape[lead:]
        total = dim_prod(spatial)
        place = self._iota(total).cast(dtypes.default_int())._reshape(spatial)
        hit = x.eq(top._reshape((*top.shape, *(1,) * n)))
        if self.dtype.kind == "f":
            hit = hit | x.isnan()
        # The first of several: the one farthest from the end.
        ahead = (total - place).pad(pads[lead:], value=0)._pool(kernel, strides, dilations)
        index = total - hit.where(ahead, 0).max(axes)
        return top, index
