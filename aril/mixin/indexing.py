"""Picking elements by position: tril and triu, gather, scatter, masks, sorting.

`x._take(i)` is the one primitive: elements i of the first axis, for integer values i of any shape. Positions found in
tensors cannot be checked when the graph is built: those out of range read the nearest element.
"""

from __future__ import annotations

import math
from typing import Any, Self

from aril.dtype import dtypes
from aril.mixin.base import dim_prod, same
from aril.mixin.contract import ContractMixin
from aril.ops import Ops


class IndexingMixin(ContractMixin):
    """Selection. Negative positions count from the end where that is said."""

    __slots__ = ()

    # --- masks ---

    def tril(self, diagonal: int = 0) -> Self:
        """The lower triangles of matrices (.., m, n), up to `diagonal` above the main one; zeros elsewhere."""
        return self._triangle(diagonal, lower=True)

    def triu(self, diagonal: int = 0) -> Self:
        """The upper triangles of matrices (.., m, n), from `diagonal` above the main one; zeros elsewhere."""
        return self._triangle(diagonal, lower=False)

    def _triangle(self, diagonal: int, lower: bool) -> Self:
        if self.ndim < 2:
            raise ValueError(f"tril and triu need matrices, not shape {self.shape}")
        rows, columns = self.shape[-2:]
        ahead = self._iota(columns)._reshape((1, columns)) - self._iota(rows)._reshape((rows, 1))
        keep = ahead <= diagonal if lower else ahead >= diagonal
        return keep.where(self, self.const_like(0))

    def masked_fill(self, mask: Any, value: Any) -> Self:
        """`value` where the mask holds, this value elsewhere."""
        return self.ufix(mask).where(value, self)

    # --- by position ---

    def _position(self, index: Self, n: Any, what: str) -> Self:
        """Integer positions, negative ones from the end, kept within 0..n-1."""
        if index.dtype.kind not in "iu":
            raise TypeError(f"{what}: positions are integers, not {index.dtype.name}")
        if index.dtype.kind == "i":
            index = (index < 0).where(index + n, index)
        return index.clamp(0, n - 1) if isinstance(n, int) else index

    def _take_checked(self, index: Self, what: str) -> Self:
        return self._take(self._position(index, self.shape[0], what))

    def gather(self, dim: int, index: Self) -> Self:
        """out[.., i, ..] = x[.., index[.., i, ..], ..] along `dim`; the other axes of `index` are at most as long as
        here."""
        d = self._axis(dim, "gather")
        if index.ndim != self.ndim or any(
            isinstance(a, int) and isinstance(b, int) and a > b
            for i, (a, b) in enumerate(zip(index.shape, self.shape, strict=True))
            if i != d
        ):
            raise ValueError(
                f"gather: index {index.shape} must have the rank of {self.shape} and be no longer outside of axis {dim}"
            )
        if not self.shape:
            return self
        kind = dtypes.int32 if self.max_numel() <= dtypes.int32.max else dtypes.int64
        place = self._position(index, self.shape[d], "gather").cast(kind) * dim_prod(self.shape[d + 1 :])
        for i in range(self.ndim):
            if i != d and not same(index.shape[i], 1):
                along = self._iota(index.shape[i])._reshape(
                    tuple([index.shape[i] if j == i else 1 for j in range(self.ndim)])
                )
                place = place + (along * dim_prod(self.shape[i + 1 :])).cast(kind)
        return self._reshape((dim_prod(self.shape),))._take(place)

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
        hit, source = self._scattered(d, index, src, "scatter")
        m = index.shape[d]
        order = self._iota(m).cast(dtypes.int32) + 1
        last = hit.where(order, 0).max(-1)  # 1 + the number of the last source, 0 for none
        place = (last - 1).maximum(0)
        chosen = source.gather(self.ndim, place.unsqueeze(-1)).squeeze(-1) if m else self
        return (last > 0).where(chosen, self)

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

    def _scattered(self, d: int, index: Self, src: Any, what: str) -> tuple[Self, Self]:
        """(whether source i goes to a place, source i), both (*shape of self, number of sources along d)."""
        if index.ndim != self.ndim:
            raise ValueError(f"{what}: index {index.shape} must have the rank of {self.shape}")
        source = src if src.__class__ is self.__class__ else self.const_like(src)._broadcast_to(index.shape)
        if source.dtype is not self.dtype:
            raise TypeError(f"{what}: src is {source.dtype.name}, this value {self.dtype.name}; cast one of them")
        source = source.shrink([(0, n) for n in index.shape])
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

    # --- order ---

    def sort(self, dim: int = -1, descending: bool = False) -> tuple[Self, Self]:
        """(sorted along `dim`, where each element came from); equal elements keep their order, NaN counts as the
        greatest."""
        d = self._axis(dim, "sort")
        if not self.shape:
            return self, self.const_like(0).cast(dtypes.default_int())
        place = self._ranks(d, descending)
        # The element whose rank is r goes to position r: the inverse permutation by the same comparison.
        n = self.shape[d]
        x = self.movedim(d, -1)
        rank = place.movedim(d, -1)
        row = self._iota(n).cast(rank.dtype)
        hit = rank.unsqueeze(-2).eq(row._reshape((n, 1)))  # (.., r, i)
        order = hit.where(row, 0).sum(-1).cast(rank.dtype)
        return x.gather(-1, order).movedim(-1, d), order.movedim(-1, d)

    def _ranks(self, d: int, descending: bool) -> Self:
        """How many elements come before each one along `d`: n * n comparisons, all independent."""
        x = self.movedim(d, -1)
        n = x.shape[-1]
        a, b = x.unsqueeze(-1), x.unsqueeze(-2)  # element i, compared with element j
        less, equal = (b > a, b.eq(a)) if descending else (b < a, b.eq(a))
        if x.dtype.kind == "f":
            na, nb = a.isnan(), b.isnan()
            less = (less | (nb & na.logical_not())) if descending else (less | (na & nb.logical_not()))
            equal = equal | (na & nb)
        i = self._iota(n)
        earlier = i._reshape((1, n)) < i._reshape((n, 1))
        return (less | (equal & earlier)).sum(-1).cast(dtypes.default_int()).movedim(-1, d)

    def argsort(self, dim: int = -1, descending: bool = False) -> Self:
        """Positions that would sort along `dim`; see `sort`."""
        return self.sort(dim, descending)[1]

    def topk(self, k: int, dim: int = -1, largest: bool = True, sorted_: bool = True) -> tuple[Self, Self]:
        """(the k greatest (or least) along `dim` in order, their positions)."""
        d = self._axis(dim, "topk")
        if not self.shape or not 0 <= k <= self.shape[d]:
            raise ValueError(f"topk: {k} elements of an axis of {self.shape[d] if self.shape else 1}")
        values, order = self.sort(d, descending=largest)
        part = [(0, k) if i == d else None for i in range(self.ndim)]
        return values.shrink(part), order.shrink(part)

    # --- special values ---

    def invalids_like(self) -> Self:
        """No element anywhere: stores of it do nothing (see `UOp.invalid`)."""
        return self._invalid(self.dtype)._broadcast_to(self.shape)

    def multi_take(self, positions: list[Self], first: int) -> Self:
        """x[:, .., p0, p1, ..] for integer positions of one shape on consecutive axes from `first`: their shape
        replaces the axes."""
        k = len(positions)
        shape = self.shape
        kind = dtypes.int32 if self.max_numel() <= dtypes.int32.max else dtypes.int64
        order = (*range(first, first + k), *range(first), *range(first + k, self.ndim))
        x = self._permute(order) if order != tuple(range(self.ndim)) else self
        place: Self | None = None
        for i, p in enumerate(positions):
            p = self._position(p, shape[first + i], "indexing").cast(kind)
            p = p * dim_prod(shape[first + i + 1 : first + k])
            place = p if place is None else place._matched(p)[0]._alu(Ops.ADD, place._matched(p)[1])
        assert place is not None
        rest = (*shape[:first], *shape[first + k :])
        out = x._reshape((math.prod(shape[first : first + k]), *rest))._take(place)
        m = place.ndim
        back = (*range(m, m + first), *range(m), *range(m + first, m + len(rest)))
        return out._permute(back) if back != tuple(range(out.ndim)) else out
