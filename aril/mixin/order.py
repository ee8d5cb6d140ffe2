"""Order: sorting, the greatest elements, and writing by position, which asks what comes last at a place.

Each element and its position become one integer, all different, so order is a matter of least and greatest: blocks are
ordered by counting, runs are merged by a bitonic network (Batcher, "Sorting networks and their applications", 1968):
n log(n)**2 work in movement, min and max alone. The first few of many are looked for where the least of a block is
among the first of its kind: one pass over all, and an order of few.
"""

from __future__ import annotations

import math
from typing import Any, Self

from aril.dtype import accumulator, dtypes
from aril.mixin.base import as_int, bound, dim_prod, need_tensors, same
from aril.mixin.indexing import IndexingMixin
from aril.ops import Ops

_BLOCK = 32
_COMBINE = {"sum": Ops.ADD, "mean": Ops.ADD, "prod": Ops.MUL, "amax": Ops.MAX, "amin": Ops.MAX}
_SIGNED = {1: dtypes.int8, 2: dtypes.int16, 4: dtypes.int32, 8: dtypes.int64}


class OrderMixin(IndexingMixin):
    """Sorting is stable in both directions. NaN counts as the greatest, as in NumPy; -0.0 equals 0.0."""

    __slots__ = ()

    def sort(self, dim: int = -1, descending: bool = False) -> tuple[Self, Self]:
        """(sorted along `dim`, where each element came from); equal elements keep their order, NaN counts as the
        greatest.

        >>> [t.tolist() for t in Tensor([3, 1, 2]).sort()]
        [[1, 2, 3], [1, 2, 0]]
        """
        d = self._axis(dim, "sort")
        if not self.shape:
            return self._as_value(), self.const_like(0).cast(dtypes.default_int())
        order = self._order(d, descending)
        return self.gather(d, order), order

    def argsort(self, dim: int = -1, descending: bool = False) -> Self:
        """Positions that would sort along `dim`; see `sort`.

        >>> Tensor([3, 1, 2]).argsort().tolist()
        [1, 2, 0]
        """
        return self.sort(dim, descending)[1]

    def topk(self, k: int, dim: int = -1, largest: bool = True, sorted_: bool = True) -> tuple[Self, Self]:
        """(the k greatest (or least) along `dim` in order, their positions). They come sorted in any case.

        Errors: ValueError for a k beyond the axis.

        >>> [t.tolist() for t in Tensor([3, 1, 2]).topk(2)]
        [[3, 2], [0, 2]]
        """
        d = self._axis(dim, "topk")
        n = self.shape[d] if self.shape else 1
        k = as_int("topk: k", k)
        if k < 0 or isinstance(bound(n), int) and k > bound(n):
            raise ValueError(f"topk: {k} elements of an axis of {n}")
        if not self.shape:
            values, order = self._reshape((1,)).topk(k)
            return (values._reshape(()), order._reshape(())) if k else (values, order)
        order = self._order(d, largest, k)
        return self.gather(d, order), order

    def _order(self, d: int, descending: bool, first: int | None = None) -> Self:
        """The positions along axis d in order of their elements, in the default integer type; the `first` of them."""
        n = self.shape[d]
        k = n if first is None else first
        key = self._sort_key(descending)
        key = key if d == self.ndim - 1 else key.movedim(d, -1)
        lead = key.shape[:-1]
        rows = dim_prod(lead)
        kind = dtypes.default_int()
        if not isinstance(n, int):  # what fills a variable axis up comes last
            most = key._to_greatest(self.ndim - 1, key.dtype.max)
            order = most._order(self.ndim - 1, False)._first(self.ndim - 1, n)._first(self.ndim - 1, k)
            return order if d == self.ndim - 1 else order.movedim(-1, d)
        if n <= 1 or same(rows, 0) or k == 0:
            along = tuple([k if i == d else 1 for i in range(self.ndim)])
            whole = tuple([k if i == d else m for i, m in enumerate(self.shape)])
            return self._iota(k).cast(kind)._reshape(along)._broadcast_to(whole)
        order = _sorted_positions(key._reshape((rows, n)), k)
        order = order.cast(kind).contiguous()._reshape((*lead, k))
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

        >>> Tensor([0, 0, 0]).scatter(0, Tensor([2, 0]), Tensor([7, 9])).tolist()
        [9, 0, 7]
        """
        if reduce not in (None, "add", "multiply"):
            raise ValueError(f"scatter: reduce is None, 'add' or 'multiply', not {reduce!r}")
        if reduce is not None:
            return self.scatter_reduce(dim, index, src, "sum" if reduce == "add" else "prod")
        return self._scattered(dim, index, src, Ops.STORE, "scatter")

    def scatter_reduce(self, dim: int, index: Self, src: Any, reduce: str, include_self: bool = True) -> Self:
        """What `src` sends to each place along `dim` combined by "sum", "prod", "mean", "amax" or "amin".

        With `include_self` what is there counts too; places that nothing is sent to keep it in any case. Small floats
        are summed and multiplied in float32, in the order of `src`.

        >>> Tensor([1, 1, 1]).scatter_reduce(0, Tensor([0, 0, 2]), Tensor([5, 6, 7]), "sum").tolist()
        [12, 1, 8]
        """
        op = _COMBINE.get(reduce) if isinstance(reduce, str) else None
        if op is None:
            raise ValueError(f"scatter_reduce: reduce is sum, prod, mean, amax or amin, not {reduce!r}")
        if self.dtype.kind == "b":
            whole, counts = self.cast(dtypes.int32), src.cast(dtypes.int32) if src.__class__ is self.__class__ else src
            return whole.scatter_reduce(dim, index, counts, reduce, include_self).cast(dtypes.bool)
        source = self._source(dim, index, src, "scatter_reduce")
        x, wide = self, self.dtype if op is Ops.MAX else accumulator(self.dtype)

        def turned(v: Self) -> Self:  # the least is the greatest of these
            return v if reduce != "amin" else v.neg() if v.dtype.kind == "f" else v.bitwise_not()

        x, source = turned(self.cast(wide)), turned(source.cast(wide))
        zero, one = (self._const(dtypes.int32, v)._broadcast_to(self.shape) for v in (0, 1))
        ones = self._const(dtypes.int32, 1)._broadcast_to(index.shape)
        if not include_self:
            touched = zero._scattered(dim, index, ones, Ops.STORE, "scatter_reduce").ne(0)
            x = touched.where(x.const_like({Ops.ADD: 0, Ops.MUL: 1, Ops.MAX: wide.min}[op]), x)
        out = turned(x._scattered(dim, index, source, op, "scatter_reduce"))
        if reduce == "mean":
            count = (one if include_self else zero)._scattered(dim, index, ones, Ops.ADD, "scatter_reduce").maximum(1)
            out = out.div(count.cast(wide), rounding_mode=None if wide.kind == "f" else "floor")
        return out.cast(self.dtype)

    def _scattered(self, dim: int, index: Self, src: Any, op: Ops, what: str) -> Self:
        """This value with its elements at the places that `index` names along `dim` combined with `src` by `op`."""
        source = self._source(dim, index, src, what)
        if not self.shape:
            return self._reshape((1,))._scattered(0, index._reshape((1,)), source._reshape((1,)), op, what)._reshape(())
        d = self._axis(dim, what)
        n = self.shape[d]
        if any(isinstance(s, int) and s == 0 for s in (*self.shape, *index.shape)):
            return self._as_value()
        self._check_positions(index, n, what)
        kind = dtypes.int32 if self.max_numel() <= dtypes.int32.max else dtypes.int64
        rows = self._one_index_a_row(index, d)
        at = (index if rows is None else rows)._signed()
        at = (at < 0).where(at + n, at)
        inside = (at >= 0) & (at < n)
        at = at.cast(kind)
        if rows is not None:
            out = self.movedim(d, 0)._scatter(source.movedim(d, 0), inside.where(at, -1), op)
            return out.movedim(0, d)
        flat = self._reshape((dim_prod(self.shape),))
        place, size = inside.where(self._flat_place(at, d), -1), dim_prod(index.shape)
        return flat._scatter(source._reshape((size,)), place._reshape((size,)), op)._reshape(self.shape)

    def _source(self, dim: int, index: Self, src: Any, what: str) -> Self:
        """What is written, of the shape of `index` and this type."""
        need_tensors(what, index=index)
        if index.ndim != self.ndim:
            raise ValueError(f"{what}: index {index.shape} must have the rank of {self.shape}")
        if index.dtype.kind not in "iu":
            raise TypeError(f"{what}: positions are integers, not {index.dtype.name}")
        d = self._axis(dim, what)
        if any(
            isinstance(a, int) and isinstance(b, int) and a > b
            for i, (a, b) in enumerate(zip(index.shape, self.shape, strict=True))
            if i != d
        ):
            raise ValueError(f"{what}: index {index.shape} is longer than {self.shape} outside of axis {dim}")
        if src.__class__ is not self.__class__:
            self._unchanged(src, what)
        source = src if src.__class__ is self.__class__ else self.const_like(src)._broadcast_to(index.shape)
        if source.dtype is not self.dtype:
            raise TypeError(f"{what}: src is {source.dtype.name}, this value {self.dtype.name}; cast one of them")
        if source.ndim != index.ndim or any(
            isinstance(a, int) and isinstance(b, int) and a > b for a, b in zip(index.shape, source.shape, strict=True)
        ):
            raise ValueError(f"{what}: src {source.shape} must reach as far as index {index.shape} on every axis")
        return source.shrink([(0, n) for n in index.shape])


def _sorted_positions(key: Any, k: int) -> Any:
    """(rows, n) integer keys: the positions of the k least in order, equal ones as they stand, as int64."""
    rows, n = key.shape
    size = _block_size(n, k)
    if size > 1:
        return _positions_in_blocks(key, k, size)
    if key.dtype.itemsize == 8:  # by the low half, then, equal ones staying as they are, by the high half
        if key.dtype.kind == "u":
            key = (key ^ (1 << 63)).bitcast(dtypes.int64)
        low = ((key & 0xFFFFFFFF) - (1 << 31)).cast(dtypes.int32)
        first = _sorted_positions(low, n).contiguous()
        return first.gather(1, _sorted_positions((key.gather(1, first) >> 32).cast(dtypes.int32), k).contiguous())
    if key.dtype is dtypes.uint32:
        key = key.cast(dtypes.int64) - (1 << 31)
    return _least((key.cast(dtypes.int64) << 32) | key._iota(n).cast(dtypes.int64), k) & 0xFFFFFFFF


def _block_size(n: int, k: int) -> int:
    """Elements of a block, for the k first of n; 1 where blocks save less than half.

    n / size least elements are put in order and k * size elements of blocks: the fewest where the two are as many.
    """
    size = 1 << round(math.log2(n / k) / 2)
    return size if 2 * (-(-n // size) + k * size) <= n else 1


def _positions_in_blocks(key: Any, k: int, size: int) -> Any:
    """What `_sorted_positions` says, by blocks of neighbours. The k least lie in the k blocks with the k least of their
    least elements: one of another block comes after those k. Of blocks whose least are equal the earlier counts.
    """
    rows, n = key.shape
    count = -(-n // size)
    blocks = key._pad(((0, 0), (0, count * size - n)), key.dtype.max)._reshape((rows, count, size))
    chosen = _sorted_positions(blocks.min(-1).contiguous(), k)
    chosen = _least(chosen, k).contiguous()  # as they stand, so that equal elements do
    row = key._iota(rows).cast(dtypes.int64)._reshape((rows, 1))
    few = blocks._reshape((rows * count, size))._take(row * count + chosen)._reshape((rows, k * size))
    place = _sorted_positions(few.contiguous(), k).contiguous()
    return chosen.gather(1, place // size) * size + place % size


def _least(x: Any, k: int) -> Any:
    """(rows, n) different numbers: the k least of each row in order."""
    rows, n = x.shape
    if n <= 2 * _BLOCK:
        return _ordered_blocks(x.unsqueeze(1).contiguous(), k)._reshape((rows, k))
    size = _BLOCK << math.ceil(math.log2(-(-n // _BLOCK)))
    x = x._pad(((0, 0), (0, size - n)), dtypes.int64.max).contiguous()
    x = _ordered_blocks(x._reshape((rows, size // _BLOCK, _BLOCK)), _BLOCK)._reshape((rows, size))
    run = _BLOCK
    while run < x.shape[1]:
        if run < k:
            x, run = _merged(x, run), 2 * run
        else:  # what is not among the least of two runs is not among the least of all
            x = _lesser(x, run)
    return x._shrink(((0, rows), (0, k)))


def _ordered_blocks(x: Any, k: int) -> Any:
    """(rows, blocks, n) different numbers, the k least of each block in order: how many are less is where an element
    goes. Numbers filled in at the end may be the same: those all go to the first of their places, and the rest are the
    greatest too."""
    rank = (x.unsqueeze(-2) < x.unsqueeze(-1)).sum(-1).cast(dtypes.int32).contiguous()
    row = x._iota(k).cast(dtypes.int32)._reshape((k, 1))
    # The greatest element of rank r or less; there is one of each rank but for what was filled in.
    return (rank.unsqueeze(-2) <= row).where(x.unsqueeze(-2), dtypes.int64.min).max(-1).contiguous()


def _merged(x: Any, run: int) -> Any:
    """(rows, n) in sorted runs: pairs of runs merged, by comparing each with its mirror image, then at shrinking
    distances."""
    rows, n = x.shape
    x = x._reshape((rows, n // (2 * run), 2, run))
    return _settled(_exchanged(x, x._flip((2, 3)))._reshape((rows, n)), run // 2)


def _lesser(x: Any, run: int) -> Any:
    """(rows, n) in sorted runs: of each pair of runs the lesser half as one sorted run."""
    rows, n = x.shape
    x = x._reshape((rows, n // (2 * run), 2, run))
    one, other = (x._shrink(((0, rows), (0, n // (2 * run)), (i, 1), (0, run))) for i in range(2))
    return _settled(one.minimum(other._flip((3,))).contiguous()._reshape((rows, n // 2)), run // 2)


def _settled(x: Any, gap: int) -> Any:
    """(rows, n) in runs of 2 * gap that rise and fall: each sorted, by comparing at shrinking distances."""
    rows, n = x.shape
    while gap:
        x = x._reshape((rows, n // (2 * gap), 2, gap))
        x = _exchanged(x, x._flip((2,)))._reshape((rows, n))
        gap //= 2
    return x


def _exchanged(x: Any, other: Any) -> Any:
    """(rows, pairs, 2, gap): of each element and the `other` the less in the first half, the greater in the second."""
    low = x._iota(2)._reshape((2, 1)).eq(0)
    return low.where(x.minimum(other), x.maximum(other)).contiguous()
