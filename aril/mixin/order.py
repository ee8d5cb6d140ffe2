"""Order: sorting, the greatest elements, and writing by position, which asks what comes last at a place.

Each element and its position become one integer, all different, so order is a matter of least and greatest: blocks are
ordered by counting, runs are merged by a bitonic network (Batcher, "Sorting networks and their applications", 1968):
n log(n)**2 work in movement, min and max alone.
"""

from __future__ import annotations

import math
from typing import Any, Self

from aril.dtype import dtypes
from aril.mixin.indexing import IndexingMixin

_BLOCK = 32
_SIGNED = {1: dtypes.int8, 2: dtypes.int16, 4: dtypes.int32, 8: dtypes.int64}


class OrderMixin(IndexingMixin):
    """Sorting is stable in both directions. NaN counts as the greatest, as in NumPy; -0.0 equals 0.0."""

    __slots__ = ()

    def sort(self, dim: int = -1, descending: bool = False) -> tuple[Self, Self]:
        """(sorted along `dim`, where each element came from); equal elements keep their order, NaN counts as the
        greatest."""
        d = self._axis(dim, "sort")
        if not self.shape:
            return self, self.const_like(0).cast(dtypes.default_int())
        order = self._order(d, descending)
        return self.gather(d, order), order

    def argsort(self, dim: int = -1, descending: bool = False) -> Self:
        """Positions that would sort along `dim`; see `sort`."""
        return self.sort(dim, descending)[1]

    def topk(self, k: int, dim: int = -1, largest: bool = True, sorted_: bool = True) -> tuple[Self, Self]:
        """(the k greatest (or least) along `dim` in order, their positions). They come sorted in any case.

        Errors: ValueError for a k beyond the axis.
        """
        d = self._axis(dim, "topk")
        if not self.shape or not 0 <= k <= self.shape[d]:
            raise ValueError(f"topk: {k} elements of an axis of {self.shape[d] if self.shape else 1}")
        part = [(0, k) if i == d else None for i in range(self.ndim)]
        order = self._order(d, largest).shrink(part)
        return self.gather(d, order), order

    def _order(self, d: int, descending: bool) -> Self:
        """The positions along axis d in order of their elements, in the default integer type."""
        n = self.shape[d]
        key = self._sort_key(descending)
        key = key if d == self.ndim - 1 else key.movedim(d, -1)
        lead = key.shape[:-1]
        rows = math.prod(lead)
        kind = dtypes.default_int()
        if n <= 1 or rows == 0:
            along = tuple([n if i == d else 1 for i in range(self.ndim)])
            return self._iota(n).cast(kind)._reshape(along)._broadcast_to(self.shape)
        order = _sorted_positions(key._reshape((rows, n)))
        order = order.cast(kind).contiguous()._reshape((*lead, n))
        return order if d == self.ndim - 1 else order.movedim(-1, d)

    def _sort_key(self, descending: bool) -> Self:
        """Integers in the same order: floats by their bits, all NaN alike and greatest, both zeros alike."""
        x = self.detach()
        d = x.dtype
        if d.kind == "b":
            x = x.cast(dtypes.uint8)
        elif d.kind == "f":
            if d.itemsize == 1:
                x, d = x.cast(dtypes.float32), dtypes.float32
            whole = _SIGNED[d.itemsize]
            bits = x.eq(0).where(x.const_like(0), x).bitcast(whole)
            # Negative floats order backwards: the complement of all but the sign turns them round.
            key = (bits < 0).where(bits ^ whole.max, bits)
            x = x.isnan().where(key.const_like(whole.max), key)
        return x.bitwise_not() if descending else x

    # --- writing by position ---

    def scatter(self, dim: int, index: Self, src: Any, reduce: str | None = None) -> Self:
        """This value with x[.., index[.., i, ..], ..] = src[.., i, ..] along `dim`; of several to one place the last
        counts.

        `reduce` "add" or "multiply" combines with what is there instead.
        """
        if reduce not in (None, "add", "multiply"):
            raise ValueError(f"scatter: reduce is None, 'add' or 'multiply', not {reduce!r}")
        if reduce is not None:
            return self.scatter_reduce(dim, index, src, "sum" if reduce == "add" else "prod")
        d = self._axis(dim, "scatter")
        if self.shape and index.ndim == self.ndim and index.shape[d] > 2 * _BLOCK:
            return self._scatter_sorted(d, index, src)
        hit, source = self._scattered(d, index, src, "scatter")
        m = index.shape[d]
        order = self._iota(m).cast(dtypes.int32) + 1
        last = hit.where(order, 0).max(-1)  # 1 + the number of the last source, 0 for none
        place = (last - 1).maximum(0)
        chosen = source.gather(self.ndim, place.unsqueeze(-1)).squeeze(-1) if m else self
        return (last > 0).where(chosen, self)

    def _scatter_sorted(self, d: int, index: Self, src: Any) -> Self:
        """`scatter` of many: the positions are sorted, every place looks for the last one that names it."""
        source = self._source(index, src, "scatter")
        n, m = self.shape[d], index.shape[d]
        if self.numel() == 0:
            return self
        kind = dtypes.int32 if self.max_numel() + m <= dtypes.int32.max else dtypes.int64
        index = index.cast(kind)
        index = (index < 0).where(index + n, index)

        def lines(x: Any, fill: Any) -> Any:  # (rows of this value, m); what `index` is short of names no place
            x = x.pad([(0, self.shape[i] - x.shape[i]) if i != d else (0, 0) for i in range(self.ndim)], value=fill)
            return x.movedim(d, -1)._reshape((self.numel() // n, m))

        names, source = lines(index, n), lines(source, 0)
        rows = names.shape[0]
        order = names.argsort(-1).cast(kind)
        names = names.gather(1, order)
        line = self._iota(rows).cast(kind)._reshape((rows, 1)) * m
        place = self._iota(n).cast(kind)._reshape((1, n))._broadcast_to((rows, n))
        # How many of the sorted positions are at most `place`: whole blocks first, then inside of the next one.
        size = math.isqrt(m - 1) + 1
        blocks = -(-m // size)
        names = names._reshape((rows, m))._pad(((0, 0), (0, blocks * size - m)), kind.max)
        ends = names._reshape((rows, blocks, size))._shrink(((0, rows), (0, blocks), (size - 1, 1)))
        ends = ends._reshape((rows, 1, blocks)).contiguous()
        before = (ends <= place.unsqueeze(-1)).sum(-1).cast(kind).minimum(blocks - 1).contiguous() * size
        names = names._reshape((rows * blocks * size,))
        row = self._iota(rows).cast(kind)._reshape((rows, 1)) * (blocks * size)
        inside = names._take((row + before).unsqueeze(-1) + self._iota(size).cast(kind))
        count = before + (inside <= place.unsqueeze(-1)).sum(-1).cast(kind)
        last = line + (count - 1).maximum(0)
        hit = (count > 0) & names._take(row + (count - 1).maximum(0)).eq(place)
        value = source._reshape((rows * m,))._take(line + order._reshape((rows * m,))._take(last))
        x = self.movedim(d, -1)
        return hit.where(value, x._reshape((rows, n)))._reshape(x.shape).movedim(-1, d)

    def scatter_reduce(self, dim: int, index: Self, src: Any, reduce: str, include_self: bool = True) -> Self:
        """What `src` sends to each place along `dim` combined by "sum", "prod", "mean", "amax" or "amin"."""
        d = self._axis(dim, "scatter_reduce")
        hit, source = self._scattered(d, index, src, "scatter_reduce")
        touched = hit.any(-1)
        own = self if include_self else None

        def combine(f: Any, g: Any, identity: Any) -> Any:
            new = f(hit.where(source, source.const_like(identity)))
            return g(new, own) if own is not None else touched.where(new, self)

        if reduce == "sum":
            return combine(lambda t: t.sum(-1).cast(self.dtype), lambda a, b: b + a, 0)
        if reduce == "prod":
            return combine(lambda t: t.prod(-1).cast(self.dtype), lambda a, b: b * a, 1)
        if reduce == "amax":
            return combine(lambda t: t.max(-1), lambda a, b: b.maximum(a), self.dtype.min)
        if reduce == "amin":
            return combine(lambda t: t.min(-1), lambda a, b: b.minimum(a), self.dtype.max)
        if reduce == "mean":
            count = hit.sum(-1)
            total = hit.where(source, source.const_like(0)).sum(-1).cast(self.dtype)
            if own is not None:
                return (
                    (own + total)
                    .div(count + 1, rounding_mode=None if self.dtype.kind == "f" else "floor")
                    .cast(self.dtype)
                )
            mean = total.div(count.maximum(1), rounding_mode=None if self.dtype.kind == "f" else "floor").cast(
                self.dtype
            )
            return touched.where(mean, self)
        raise ValueError(f"scatter_reduce: reduce is sum, prod, mean, amax or amin, not {reduce!r}")

    def _source(self, index: Self, src: Any, what: str) -> Self:
        """What is written, of the shape of `index` and this type."""
        if index.ndim != self.ndim:
            raise ValueError(f"{what}: index {index.shape} must have the rank of {self.shape}")
        if index.dtype.kind not in "iu":
            raise TypeError(f"{what}: positions are integers, not {index.dtype.name}")
        source = src if src.__class__ is self.__class__ else self.const_like(src)._broadcast_to(index.shape)
        if source.dtype is not self.dtype:
            raise TypeError(f"{what}: src is {source.dtype.name}, this value {self.dtype.name}; cast one of them")
        return source.shrink([(0, n) for n in index.shape])

    def _scattered(self, d: int, index: Self, src: Any, what: str) -> tuple[Self, Self]:
        """(whether source i goes to a place, source i), both (*shape of self, number of sources along d)."""
        source = self._source(index, src, what)
        n, m = self.shape[d], index.shape[d]
        index = (index < 0).where(index + n, index)
        order = [i for i in range(self.ndim) if i != d]

        def placed(x: Any) -> Any:  # (.., 1 at d, .., m), padded outside of d to this shape
            x = x.movedim(d, -1).unsqueeze(d) if self.ndim else x
            return x.pad(
                [(0, self.shape[i] - x.shape[i]) if i in order else (0, 0) for i in range(self.ndim)] + [(0, 0)]
            )

        there = placed(index.const_like(1).cast(dtypes.bool)._broadcast_to(index.shape))
        rows = self._iota(n).cast(index.dtype)._reshape(tuple([n if i == d else 1 for i in range(self.ndim)] + [1]))
        hit = placed(index).eq(rows) & there
        return hit, placed(source)._broadcast_to((*self.shape, m))


def _sorted_positions(key: Any) -> Any:
    """(rows, n) integer keys: their positions in order, as int64."""
    if key.dtype.itemsize == 8:  # by the low half, then, equal ones staying as they are, by the high half
        if key.dtype.kind == "u":
            key = (key ^ (1 << 63)).bitcast(dtypes.int64)
        first = _sorted_positions(((key & 0xFFFFFFFF) - (1 << 31)).cast(dtypes.int32)).contiguous()
        return first.gather(1, _sorted_positions((key.gather(1, first) >> 32).cast(dtypes.int32)).contiguous())
    rows, n = key.shape
    if key.dtype is dtypes.uint32:
        key = key.cast(dtypes.int64) - (1 << 31)
    pairs = (key.cast(dtypes.int64) << 32) | key._iota(n).cast(dtypes.int64)
    if n <= 2 * _BLOCK:
        pairs = _ordered_blocks(pairs.unsqueeze(1).contiguous())._reshape((rows, n))
    else:
        size = _BLOCK << math.ceil(math.log2(-(-n // _BLOCK)))
        pairs = pairs._pad(((0, 0), (0, size - n)), dtypes.int64.max).contiguous()
        pairs = _ordered_blocks(pairs._reshape((rows, size // _BLOCK, _BLOCK)))._reshape((rows, size))
        run = _BLOCK
        while run < size:
            pairs, run = _merged(pairs, run), 2 * run
        pairs = pairs._shrink(((0, rows), (0, n)))
    return pairs & 0xFFFFFFFF


def _ordered_blocks(x: Any) -> Any:
    """(rows, blocks, n) different numbers, each block in order: how many are less is where an element goes. Numbers
    filled in at the end may be the same: those all go to the first of their places, and the rest are the greatest too.
    """
    n = x.shape[-1]
    rank = (x.unsqueeze(-2) < x.unsqueeze(-1)).sum(-1).cast(dtypes.int32).contiguous()
    row = x._iota(n).cast(dtypes.int32)._reshape((n, 1))
    # The greatest element of rank r or less; there is one of each rank but for what was filled in.
    return (rank.unsqueeze(-2) <= row).where(x.unsqueeze(-2), dtypes.int64.min).max(-1).contiguous()


def _merged(x: Any, run: int) -> Any:
    """(rows, n) in sorted runs: pairs of runs merged, by comparing each with its mirror image, then at shrinking
    distances."""
    rows, n = x.shape
    first, gap = True, run
    while gap:
        x = x._reshape((rows, n // (2 * gap), 2, gap))
        other = x._flip((2, 3)) if first and gap > 1 else x._flip((2,))
        low = x._iota(2)._reshape((2, 1)).eq(0)
        x = low.where(x.minimum(other), x.maximum(other)).contiguous()._reshape((rows, n))
        first, gap = False, gap // 2
    return x
