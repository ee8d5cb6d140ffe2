"""Reductions: sums, extremes, statistics, positions, running totals, and the softmax family.

Sums and products of small types are carried in the type `aril.dtype.accumulator` names: small integers also return it,
low-precision floats are rounded back once at the end.
"""

from __future__ import annotations

import math
from typing import Any, Self

from aril.dtype import DTypeLike, accumulator, dtypes, to_dtype
from aril.mixin.arrangement import ArrangementMixin
from aril.mixin.base import as_number, dim_prod, same
from aril.ops import Ops

_IDENTITY = {Ops.ADD: 0, Ops.MUL: 1}
_SCAN_BLOCK = 8  # work a level is so many additions an element, levels are its logarithms


class ReduceMixin(ArrangementMixin):
    """Reductions take `axis` (an int, several, or None for all) and `keepdim` (reduced axes stay with length 1)."""

    __slots__ = ()

    def _reduced(self, op: Ops, axis: Any, keepdim: Any, what: str) -> Self:
        axes = self._axes(axis, what)
        shape = self.shape
        if any(same(shape[a], 0) for a in axes):
            if op not in _IDENTITY:
                raise ValueError(f"{what}: axis {axis} of shape {shape} is empty, and {what} of nothing has no value")
            kept = tuple([1 if i in axes else d for i, d in enumerate(shape)])
            out = self.const_like(_IDENTITY[op])._broadcast_to(kept)
        else:
            long = tuple([a for a in axes if not same(shape[a], 1)])
            out = self._reduce(op, long) if long else self._as_value()
        if keepdim or not axes:
            return out
        return out._reshape(tuple([d for i, d in enumerate(out.shape) if i not in axes]))

    # --- sums and products ---

    def sum(self, axis: Any = None, keepdim: Any = False, dtype: DTypeLike | None = None) -> Self:
        """The sum. `dtype`: carry and return it in this type instead.

        >>> Tensor([[1, 2], [3, 4]]).sum(1, keepdim=True).tolist()
        [[3], [7]]
        """
        return self._accumulated(Ops.ADD, axis, keepdim, dtype, "sum")

    def prod(self, axis: Any = None, keepdim: Any = False, dtype: DTypeLike | None = None) -> Self:
        """The product. `dtype`: carry and return it in this type instead.

        >>> Tensor([[1, 2], [3, 4]]).prod(1).tolist()
        [2, 12]
        """
        return self._accumulated(Ops.MUL, axis, keepdim, dtype, "prod")

    def _accumulated(self, op: Ops, axis: Any, keepdim: Any, dtype: DTypeLike | None, what: str) -> Self:
        if dtype is not None:
            out_type = to_dtype(dtype)
            return self.cast(accumulator(out_type))._reduced(op, axis, keepdim, what).cast(out_type)
        carried = accumulator(self.dtype)
        out = self.cast(carried)._reduced(op, axis, keepdim, what)
        return out.cast(self.dtype) if self.dtype.kind == "f" else out

    def mean(self, axis: Any = None, keepdim: Any = False) -> Self:
        """The arithmetic mean, in floats (the default float for integers). NaN of nothing.

        >>> Tensor([[1, 2], [3, 4]]).mean(0).tolist()
        [2.0, 3.0]
        """
        x = self._floating()
        n = dim_prod([self.shape[a] for a in self._axes(axis, "mean")])
        total = x._wide()._reduced(Ops.ADD, axis, keepdim, "mean")
        return (total / n).cast(x.dtype)

    def var(self, axis: Any = None, keepdim: Any = False, correction: Any = 1) -> Self:
        """The variance around the mean, over n - correction (never below 0) elements.

        >>> Tensor([1.0, 3.0, 5.0]).var().item()
        4.0
        """
        return self.var_mean(axis, keepdim, correction)[0]

    def std(self, axis: Any = None, keepdim: Any = False, correction: Any = 1) -> Self:
        """The standard deviation: the square root of `var`.

        >>> Tensor([1.0, 3.0, 5.0]).std().item()
        2.0
        """
        return self.std_mean(axis, keepdim, correction)[0]

    def var_mean(self, axis: Any = None, keepdim: Any = False, correction: Any = 1) -> tuple[Self, Self]:
        """Variance and mean, in two passes over the data (the one-pass formula cancels).

        >>> [t.item() for t in Tensor([1.0, 3.0, 5.0]).var_mean()]
        [4.0, 3.0]
        """
        x = self._floating()
        axes, correction = self._axes(axis, "var"), as_number("var: correction", correction)
        n = dim_prod([self.shape[a] for a in axes])
        wide = x._wide()
        mean = wide.mean(axes, True)
        total = (wide - mean).square()._reduced(Ops.ADD, axes, keepdim, "var")
        count = max(n - correction, 0) if isinstance(n, int) else n - correction
        if not keepdim and axes:
            mean = mean._reshape(total.shape)
        return (total / count).cast(x.dtype), mean.cast(x.dtype)

    def std_mean(self, axis: Any = None, keepdim: Any = False, correction: Any = 1) -> tuple[Self, Self]:
        """Standard deviation and mean.

        >>> [t.item() for t in Tensor([1.0, 3.0, 5.0]).std_mean()]
        [2.0, 3.0]
        """
        x = self._floating()
        var, mean = x._wide().var_mean(axis, keepdim, correction)  # the variance may be too much for a small float
        return var.sqrt().cast(x.dtype), mean.cast(x.dtype)

    # --- extremes and truth ---

    def max(self, axis: Any = None, keepdim: Any = False) -> Self:
        """The greatest element; NaN where there is one. ValueError over an empty axis.

        >>> Tensor([[1, 9], [7, 3]]).max(1).tolist()
        [9, 7]
        """
        return self._reduced(Ops.MAX, axis, keepdim, "max")

    def min(self, axis: Any = None, keepdim: Any = False) -> Self:
        """The least element; NaN where there is one. ValueError over an empty axis.

        >>> Tensor([[1, 9], [7, 3]]).min(1).tolist()
        [1, 3]
        """
        return self._mirrored()._reduced(Ops.MAX, axis, keepdim, "min")._mirrored()

    def any(self, axis: Any = None, keepdim: Any = False) -> Self:
        """True where an element is not zero; False of nothing.

        >>> Tensor([[0, 0], [0, 1]]).any(1).tolist()
        [False, True]
        """
        x = self.bool()
        if any(same(x.shape[a], 0) for a in x._axes(axis, "any")):
            return x.sum(axis, keepdim).bool()
        return x._reduced(Ops.MAX, axis, keepdim, "any")

    def all(self, axis: Any = None, keepdim: Any = False) -> Self:
        """True where every element is not zero; True of nothing.

        >>> Tensor([[1, 0], [1, 1]]).all(1).tolist()
        [False, True]
        """
        return self.bool().logical_not().any(axis, keepdim).logical_not()

    def allclose(self, other: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: Any = False) -> Any:
        """True where all elements are close (see `isclose`): a bool of shape ().

        >>> Tensor([1.0, 2.0]).allclose(Tensor([1.0, 2.000001])).item()
        True
        """
        return self.isclose(other, rtol, atol, equal_nan).all()

    def argmax(self, axis: Any = None, keepdim: Any = False) -> Self:
        """The position of the greatest element, the first of several; of the first NaN where there is one.

        Of the flattened value where `axis` is None. The result has the default integer type.

        >>> Tensor([[1, 9], [7, 3]]).argmax(1).tolist()
        [1, 0]
        """
        x = self if self.shape else self._reshape((1,))
        axes = tuple(range(x.ndim)) if axis is None else (self._axis(axis, "argmax"),)
        n = dim_prod(tuple([x.shape[a] for a in axes]))
        top = x._reduced(Ops.MAX, axes, True, "argmax")
        # Where an element is the greatest, how far it lies from the end; the greatest distance is the first position.
        hit = x.eq(top) | x.isnan() if x.dtype.kind == "f" else x.eq(top)
        kind = dtypes.default_int() if not isinstance(n, int) or n <= dtypes.default_int().max else dtypes.int64
        ahead = (n - x._iota(n))._reshape(tuple([s if i in axes else 1 for i, s in enumerate(x.shape)])).cast(kind)
        out = (n - hit.where(ahead, ahead.const_like(0))._reduced(Ops.MAX, axes, True, "argmax")).cast(kind)
        if keepdim and self.shape:
            return out
        return out._reshape(tuple([s for i, s in enumerate(x.shape) if i not in axes]))

    def argmin(self, axis: Any = None, keepdim: Any = False) -> Self:
        """The position of the least element, as `argmax`.

        >>> Tensor([[1, 9], [7, 3]]).argmin(1).tolist()
        [0, 1]
        """
        return self._mirrored().argmax(axis, keepdim)

    # --- running reductions ---

    def cumsum(self, axis: Any = 0) -> Self:
        """The running sum along `axis`. Types as in `sum`.

        >>> Tensor([1, 2, 3]).cumsum().tolist()
        [1, 3, 6]
        """
        carried = self.cast(accumulator(self.dtype))._scan(Ops.ADD, axis, 0, "cumsum")
        return carried.cast(self.dtype) if self.dtype.kind == "f" else carried

    def cumprod(self, axis: Any = 0) -> Self:
        """The running product along `axis`. Types as in `prod`.

        >>> Tensor([1, 2, 3, 4]).cumprod().tolist()
        [1, 2, 6, 24]
        """
        carried = self.cast(accumulator(self.dtype))._scan(Ops.MUL, axis, 1, "cumprod")
        return carried.cast(self.dtype) if self.dtype.kind == "f" else carried

    def cummax(self, axis: Any = 0) -> Self:
        """The running maximum along `axis`.

        >>> Tensor([1, 3, 2]).cummax().tolist()
        [1, 3, 3]
        """
        return self._scan(Ops.MAX, axis, self.dtype.min, "cummax")

    def cummin(self, axis: Any = 0) -> Self:
        """The running minimum along `axis`.

        >>> Tensor([3, 1, 2]).cummin().tolist()
        [3, 1, 1]
        """
        x = self._mirrored()
        return x._scan(Ops.MAX, axis, x.dtype.min, "cummin")._mirrored()

    def _scan(self, op: Ops, axis: Any, identity: Any, what: str) -> Self:
        """The running `op`: within blocks by windows, over block totals by itself; about n * _SCAN_BLOCK work a level.

        Two levels of blocks of b over n elements: blocks cost n * b, the totals of n / b blocks n / b * b, and so on.
        """
        d = self._axis(axis, what)
        n = self.shape[d] if self.shape else 1
        if same(n, 0) or same(n, 1):
            return self._as_value()
        if not isinstance(n, int):  # what comes behind an element does not count for it
            return self._to_greatest(d, identity)._scan(op, d, identity, what)._first(d, n)
        return self._scan_blocks(op, d, n, identity)

    def _scan_blocks(self, op: Ops, d: int, n: int, identity: Any) -> Self:
        """Axis `d` stays where it is: what lies beside it in memory becomes lanes."""
        none = [(0, 0)] * self.ndim
        if n <= 2 * _SCAN_BLOCK:
            padded = self._pad((*none[:d], (n - 1, 0), *none[d + 1 :]), identity)
            return padded._windows(d, n)._reduce(op, (self.ndim,))._reshape(self.shape)
        lead, trail = self.shape[:d], self.shape[d + 1 :]
        blocks = -(-n // _SCAN_BLOCK)
        more = blocks * _SCAN_BLOCK - n
        x = self._pad((*none[:d], (0, more), *none[d + 1 :]), identity) if more else self
        inner = x._reshape((*lead, blocks, _SCAN_BLOCK, *trail))
        within = inner._scan_blocks(op, d + 1, _SCAN_BLOCK, identity)
        # What lies before each block: the running totals, one block later. Nothing asks for that of the last block:
        # where it is short it has no total, which would be made under conditions; else all of it is read evenly.
        full = n // _SCAN_BLOCK
        whole = self._first(d, full * _SCAN_BLOCK)._reshape((*lead, full, _SCAN_BLOCK, *trail))
        totals = whole._reduce(op, (d + 1,))._reshape((*lead, full, *trail))._scan_blocks(op, d, full, identity)
        before = totals._pad((*none[:d], (1, 0), *none[d + 1 :]), identity)._first(d, blocks)
        before = before._reshape((*lead, blocks, 1, *trail))._expand(inner.shape)
        out = within._alu(op, before)._reshape(x.shape)
        return out._first(d, n) if more else out

    def logcumsumexp(self, axis: Any = 0) -> Self:
        """log(cumsum(exp(x))) along `axis`, scaled by running maxima so that nothing overflows.

        >>> [round(v, 4) for v in Tensor([0.0, 0.0]).logcumsumexp().tolist()]
        [0.0, 0.6931]
        """
        d = self._axis(axis, "logcumsumexp")
        x = self._floating()
        if not self.shape or same(self.shape[d], 0):
            return x._as_value()
        n = x.shape[d]
        if not isinstance(n, int):
            return x._to_greatest(d).logcumsumexp(d)._first(d, n)
        return x._wide()._log_scan(d, n).cast(x.dtype)

    def _log_scan(self, d: int, n: int) -> Self:
        """The running log of the sum of exponentials, in blocks as `_scan_blocks`: what lies before a block is one more
        term, and every exponential is taken from the greatest term that counts there."""
        none = [(0, 0)] * self.ndim
        if n <= 2 * _SCAN_BLOCK:
            return self._log_within(d, n, None)
        lead, trail = self.shape[:d], self.shape[d + 1 :]
        blocks = -(-n // _SCAN_BLOCK)
        more = blocks * _SCAN_BLOCK - n
        x = self._pad((*none[:d], (0, more), *none[d + 1 :]), -math.inf) if more else self
        inner = x._reshape((*lead, blocks, _SCAN_BLOCK, *trail))
        whole = self._first(d, (blocks - 1) * _SCAN_BLOCK)._reshape((*lead, blocks - 1, _SCAN_BLOCK, *trail))
        # Of a block of nothing but -inf the logarithm is not asked for: its derivative has no value.
        top = whole._reduce(Ops.MAX, (d + 1,)).detach()
        none_yet, level = top.eq(-math.inf), top.isfinite().where(top, top.const_like(0))
        total = (whole - level).exp()._reduce(Ops.ADD, (d + 1,))
        total = none_yet.where(total.const_like(1), total).log() + none_yet.where(top, level)
        totals = total._reshape((*lead, blocks - 1, *trail))._log_scan(d, blocks - 1)
        before = totals._pad((*none[:d], (1, 0), *none[d + 1 :]), -math.inf)
        before = before._reshape((*lead, blocks, 1, *trail))._expand(inner.shape)
        out = inner._log_within(d + 1, _SCAN_BLOCK, before)._reshape(x.shape)
        return out._first(d, n) if more else out

    def _log_within(self, d: int, n: int, before: Self | None) -> Self:
        """`_log_scan` of a short axis by windows into the past, with a term `before` for each element."""
        top = self._scan_blocks(Ops.MAX, d, n, -math.inf)
        top = (top if before is None else top._alu(Ops.MAX, before)).detach()
        level = top.isfinite().where(top, top.const_like(0))
        none = [(0, 0)] * self.ndim
        past = self._pad((*none[:d], (n - 1, 0), *none[d + 1 :]), -math.inf)._windows(d, n)
        total = (past - level.unsqueeze(-1)).exp().sum(-1)
        return (total if before is None else total + (before - level).exp()).log() + level

    # --- the softmax family ---

    def logsumexp(self, axis: Any = None, keepdim: Any = False) -> Self:
        """log(sum(exp(x))), without overflow.

        >>> round(Tensor([0.0, 0.0]).logsumexp().item(), 4)
        0.6931
        """
        x = self._floating()
        wide = x._wide()
        top = wide._top(axis)
        level = top.isfinite().where(top, top.const_like(0)).detach()
        out = (wide - level).exp().sum(axis, True).log() + level
        if not keepdim:
            axes = x._axes(axis, "logsumexp")
            out = out._reshape(tuple([d for i, d in enumerate(out.shape) if i not in axes])) if axes else out
        return out.cast(x.dtype)

    def softmax(self, axis: Any = -1, dtype: DTypeLike | None = None) -> Self:
        """exp(x) / sum(exp(x)) along `axis`, computed from x - max(x).

        >>> Tensor([0.0, 0.0]).softmax().tolist()
        [0.5, 0.5]
        """
        x = self._floating() if dtype is None else self.cast(dtype)
        _, e, total = x._softmax_parts(axis)
        return (e / total).cast(x.dtype)

    def log_softmax(self, axis: Any = -1, dtype: DTypeLike | None = None) -> Self:
        """log(softmax(x)) along `axis`, without taking the logarithm of small quotients.

        >>> [round(v, 4) for v in Tensor([0.0, 0.0]).log_softmax().tolist()]
        [-0.6931, -0.6931]
        """
        x = self._floating() if dtype is None else self.cast(dtype)
        m, _, total = x._softmax_parts(axis)
        return (m - total.log()).cast(x.dtype)

    def softmin(self, axis: Any = -1, dtype: DTypeLike | None = None) -> Self:
        """softmax(-x) along `axis`.

        >>> Tensor([0.0, 0.0]).softmin().tolist()
        [0.5, 0.5]
        """
        return self._floating().neg().softmax(axis, dtype)

    def _top(self, axis: Any) -> Self:
        """The greatest along `axis`, which stays; -inf along an empty one, whose sum of exponentials is 0."""
        axes = self._axes(axis, "max")
        if any(same(self.shape[a], 0) for a in axes):
            return self.const_like(-math.inf)._broadcast_to(
                tuple([1 if i in axes else d for i, d in enumerate(self.shape)])
            )
        return self.max(axis, True)

    def _softmax_parts(self, axis: Any) -> tuple[Self, Self, Self]:
        wide = self._wide()
        m = wide - wide._top(axis).detach()
        e = m.exp()
        return m, e, e.sum(axis, True)
