"""Picking elements by position: tril and triu, gather, masks.

`x._take(i)` is the one primitive: elements i of the first axis, for integer values i of any shape. Positions found in
tensors cannot be checked when the graph is built: those out of range read the nearest element.
"""

from __future__ import annotations

import math
from typing import Any, Self

from aril.dtype import dtypes
from aril.mixin.base import dim_prod, dim_sub, need_tensors, same
from aril.mixin.resize import ResizeMixin
from aril.ops import Ops


class IndexingMixin(ResizeMixin):
    """Selection. Negative positions count from the end where that is said."""

    __slots__ = ()

    # --- masks ---

    def tril(self, diagonal: int = 0) -> Self:
        """The lower triangles of matrices (.., m, n), up to `diagonal` above the main one; zeros elsewhere.

        >>> Tensor([[1, 2], [3, 4]]).tril().tolist()
        [[1, 0], [3, 4]]
        """
        return self._triangle(diagonal, lower=True)

    def triu(self, diagonal: int = 0) -> Self:
        """The upper triangles of matrices (.., m, n), from `diagonal` above the main one; zeros elsewhere.

        >>> Tensor([[1, 2], [3, 4]]).triu().tolist()
        [[1, 2], [0, 4]]
        """
        return self._triangle(diagonal, lower=False)

    def _triangle(self, diagonal: int, lower: bool) -> Self:
        if self.ndim < 2:
            raise ValueError(f"tril and triu need matrices, not shape {self.shape}")
        rows, columns = self.shape[-2:]
        ahead = self._iota(columns)._reshape((1, columns)) - self._iota(rows)._reshape((rows, 1))
        keep = ahead <= diagonal if lower else ahead >= diagonal
        return keep.where(self, self.const_like(0))

    def masked_fill(self, mask: Any, value: Any) -> Self:
        """`value` where the mask holds, this value elsewhere.

        >>> Tensor([1, 2, 3]).masked_fill(Tensor([True, False, True]), 9).tolist()
        [9, 2, 9]
        """
        return self.ufix(mask).where(value, self)

    # --- by position ---

    def _position(self, index: Self, n: Any, what: str) -> Self:
        """Integer positions, negative ones from the end, kept within 0..n-1."""
        if index.dtype.kind not in "iu":
            raise TypeError(f"{what}: positions are integers, not {index.dtype.name}")
        self._check_positions(index, n, what)
        signed = index.dtype.kind == "i"
        index = index._signed()
        if signed:
            index = (index < 0).where(index + n, index)
        return index.clamp(0, dim_sub(n, 1))

    def _check_positions(self, index: Self, n: Any, what: str) -> None:
        """Where values can be computed, IndexError for positions out of range if CHECK_POSITIONS asks for it."""

    def _signed(self) -> Self:
        """Integers in a type that holds -1 and any length of an axis; what it does not hold is its greatest."""
        small = self.dtype.itemsize < 4 or self.dtype is dtypes.int32
        x = self.minimum(dtypes.int64.max) if self.dtype is dtypes.uint64 else self
        return x if self.dtype.weak else x.cast(dtypes.int32 if small else dtypes.int64)

    def gather(self, dim: int, index: Self) -> Self:
        """out[.., i, ..] = x[.., index[.., i, ..], ..] along `dim`; the other axes of `index` are at most as long as
        here.

        >>> Tensor([[1, 2], [3, 4]]).gather(1, Tensor([[1], [0]])).tolist()
        [[2], [3]]
        """
        need_tensors("gather", index=index)
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
            return self._as_value()
        rows = self._one_index_a_row(index, d)
        if rows is not None:
            return self.movedim(d, 0)._take(self._position(rows, self.shape[d], "gather")).movedim(0, d)
        place = self._flat_place(self._position(index, self.shape[d], "gather"), d)
        return self._reshape((dim_prod(self.shape),))._take(place)

    def _flat_place(self, index: Self, d: int) -> Self:
        """Positions along axis d (of this rank, within the axis) as positions in the flattened value."""
        kind = dtypes.int32 if self.max_numel() <= dtypes.int32.max else dtypes.int64
        place = index.cast(kind) * dim_prod(self.shape[d + 1 :])
        for i in range(self.ndim):
            if i != d and not same(index.shape[i], 1):
                along = self._iota(index.shape[i])._reshape(
                    tuple([index.shape[i] if j == i else 1 for j in range(self.ndim)])
                )
                place = place + (along * dim_prod(self.shape[i + 1 :])).cast(kind)
        return place

    def _one_index_a_row(self, index: Self, d: int) -> Self | None:
        """The positions as a vector where `index` repeats one for each row along axis d, all of the row: then whole
        rows are picked or written."""
        u: Any = getattr(index, "uop", index)
        if u.op is not Ops.EXPAND or self.ndim < 2 or any(same(n, 0) for n in index.shape):
            return None
        for i, n in enumerate(self.shape):
            if i != d and not (same(u.src[0].shape[i], 1) and same(index.shape[i], n)):
                return None
        first = tuple([(0, n) if i == d else (0, 1) for i, n in enumerate(index.shape)])
        return index._shrink(first)._reshape((index.shape[d],))

    # --- special values ---

    def invalids_like(self) -> Self:
        """No element anywhere: stores of it do nothing (see `UOp.invalid`)."""
        return self._invalid(self.dtype)._broadcast_to(self.shape)

    def multi_take(self, positions: list[Self], first: int) -> Self:
        """x[:, .., p0, p1, ..] for integer positions of one shape on consecutive axes from `first`: their shape
        replaces the axes."""
        k = len(positions)
        shape = self.shape
        order = (*range(first, first + k), *range(first), *range(first + k, self.ndim))
        x = self._permute(order) if order != tuple(range(self.ndim)) else self
        place = self._joint_place(positions, first)
        rest = (*shape[:first], *shape[first + k :])
        out = x._reshape((math.prod(shape[first : first + k]), *rest))._take(place)
        m = place.ndim
        back = (*range(m, m + first), *range(m), *range(m + first, m + len(rest)))
        return out._permute(back) if back != tuple(range(out.ndim)) else out

    def _joint_place(self, positions: list[Self], first: int) -> Self:
        """Positions on consecutive axes from `first`, broadcast, as one on those axes taken together."""
        kind = dtypes.int32 if self.max_numel() <= dtypes.int32.max else dtypes.int64
        end = first + len(positions)
        place: Self | None = None
        for i, p in enumerate(positions, first):
            p = self._position(p, self.shape[i], "indexing").cast(kind) * dim_prod(self.shape[i + 1 : end])
            place = p if place is None else place._matched(p)[0]._alu(Ops.ADD, place._matched(p)[1])
        assert place is not None
        return place
