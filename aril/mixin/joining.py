"""Values joined, turned round and laid out as a grid, by composition of movement operations."""

from __future__ import annotations

from typing import Any, Self

from aril.dtype import promote
from aril.mixin.base import Dim, broadcast_shape, dim_sub, dim_sum, same
from aril.mixin.movement import MovementMixin
from aril.ops import Ops


class JoiningMixin(MovementMixin):
    """Joined values are promoted to a common dtype."""

    __slots__ = ()

    def cat(self, *others: Any, dim: int = 0) -> Self:
        """This value and `others` one after the other along `dim`; the other axes agree, dtypes are promoted.

        >>> Tensor([1, 2]).cat(Tensor([3])).tolist()
        [1, 2, 3]
        """
        if isinstance(self, (list, tuple)):  # called on the class, as other frameworks write it
            return self[0].cat(*self[1:], *others, dim=dim)
        if len(others) == 1 and isinstance(others[0], (list, tuple)):
            others = tuple(others[0])
        d = self._axis(dim, "cat")
        parts: list[Self] = [self, *[self.ufix(x) for x in others]]
        for p in parts:
            if p.ndim != self.ndim or any(
                not same(m, n) for i, (m, n) in enumerate(zip(self.shape, p.shape, strict=False)) if i != d
            ):
                raise ValueError(f"cat: shapes {[q.shape for q in parts]} differ outside of axis {dim}")
        if len(parts) == 1:
            return self
        parts = _one_dtype(parts)
        total = dim_sum(*[p.shape[d] for p in parts])
        index = self._iota(total)._reshape(tuple([total if i == d else 1 for i in range(self.ndim)]))
        out: Self | None = None
        start: Dim = 0
        # Joined by selection, not by adding padded parts: that would turn -0.0 into 0.0 and copy NaN bits through an
        # addition.
        for p in parts:
            n = p.shape[d]
            if same(n, 0):
                continue
            after = dim_sub(dim_sub(total, start), n)
            padded = p._pad(tuple([(start, after) if i == d else (0, 0) for i in range(self.ndim)]))
            if out is None:
                out = padded
            else:
                out = (index < start)._broadcast_to(padded.shape)._alu(Ops.WHERE, out, padded)
            start = dim_sum(start, n)
        return out if out is not None else parts[0]

    def stack(self, *others: Any, dim: int = 0) -> Self:
        """This value and `others`, all of one shape, along a new axis `dim`.

        >>> Tensor([1, 2]).stack(Tensor([3, 4])).tolist()
        [[1, 2], [3, 4]]
        """
        if isinstance(self, (list, tuple)):  # called on the class, as other frameworks write it
            return self[0].stack(*self[1:], *others, dim=dim)
        if len(others) == 1 and isinstance(others[0], (list, tuple)):
            others = tuple(others[0])
        parts = [self, *[self.ufix(x) for x in others]]
        if any(p.shape != self.shape for p in parts):
            raise ValueError(f"stack: shapes {[p.shape for p in parts]} differ; stack joins values of one shape")
        first, *rest = [p.unsqueeze(dim) for p in parts]
        return first.cat(*rest, dim=self._axis(dim, "stack", extra=1))

    def roll(self, shifts: Any, dims: Any = None) -> Self:
        """Elements moved by `shifts` along `dims`, those beyond the end back at the start (of the flattened value
        where None).

        >>> Tensor([1, 2, 3]).roll(1).tolist()
        [3, 1, 2]
        """
        if dims is None:
            return self.flatten().roll(shifts, 0)._reshape(self.shape)
        pairs = [(shifts, dims)] if isinstance(dims, int) else list(zip(shifts, dims, strict=True))
        out = self
        for shift, dim in pairs:
            d = self._axis(dim, "roll")
            n = self.shape[d]
            cut = -shift % n if n else 0
            if cut:
                first, second = out.split([cut, n - cut], d)
                out = second.cat(first, dim=d)
        return out

    def meshgrid(self, *others: Self, indexing: str = "ij") -> tuple[Self, ...]:
        """Coordinates of a grid from vectors: one value an input, each of the grid's shape; "xy" swaps the first two
        axes.

        >>> [t.tolist() for t in Tensor([1, 2]).meshgrid(Tensor([3, 4]))]
        [[[1, 1], [2, 2]], [[3, 4], [3, 4]]]
        """
        if indexing not in ("ij", "xy"):
            raise ValueError(f"meshgrid: indexing is 'ij' or 'xy', not {indexing!r}")
        vectors = [v.flatten() for v in (self, *others)]
        position = list(range(len(vectors)))
        if indexing == "xy" and len(vectors) > 1:
            position[:2] = [1, 0]
        n = len(vectors)
        shaped = [
            v._reshape(tuple([v.shape[0] if i == p else 1 for i in range(n)]))
            for v, p in zip(vectors, position, strict=True)
        ]
        shape = broadcast_shape(*[v.shape for v in shaped])
        return tuple([v._broadcast_to(shape) for v in shaped])

    def rearrange(self, formula: str, **sizes: int) -> Self:
        """Axes renamed, split, joined and moved as `formula` says, in the notation of einops: "b (h w) c -> b c h
        w".

        >>> Tensor.zeros(2, 3, 4).rearrange("b h w -> b (h w)").shape
        (2, 12)
        """
        from aril.mixin.notation import parse_rearrange

        shape, order, final, _ = parse_rearrange(formula, self.shape, sizes)
        return self.reshape(shape).permute(order).reshape(final)


def _one_dtype(parts: list[Any]) -> list[Any]:
    if all(p.dtype is parts[0].dtype for p in parts):
        return parts
    common = promote(*[p.dtype for p in parts])
    return [p.cast(common) for p in parts]
