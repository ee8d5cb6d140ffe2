"""Values stacked, rolled, laid out as a grid and rearranged by formula, by composition of movement operations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

from aril.mixin.base import as_int, broadcast_shape, dim_mod, dim_sub, need_tensors, same
from aril.mixin.movement import MovementMixin


class ArrangementMixin(MovementMixin):
    """The dtype stays; stacked values are promoted to a common one."""

    __slots__ = ()

    def stack(self, *others: Any, dim: int = 0) -> Self:
        """This value and `others`, all of one shape, along a new axis `dim`.

        >>> Tensor([1, 2]).stack(Tensor([3, 4])).tolist()
        [[1, 2], [3, 4]]
        """
        if isinstance(self, (list, tuple)):  # called on the class, as other frameworks write it
            if not self:
                raise ValueError("stack: there are no values to join")
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
        if not isinstance(dims, Iterable):
            shifts, dims = (shifts,), (dims,)
        shifts = list(shifts) if isinstance(shifts, Iterable) else [shifts]
        if len(shifts) != len(list(dims)):
            raise ValueError(f"roll: a shift for each of the axes {dims} is needed, not {shifts}")
        pairs = [(as_int("roll: a shift", s), d) for s, d in zip(shifts, dims, strict=True)]
        out = self
        for shift, dim in pairs:
            d = self._axis(dim, "roll")
            n = self.shape[d]
            cut = 0 if same(n, 0) else dim_mod(-shift, n)
            if not same(cut, 0):
                first, second = out.split([cut, dim_sub(n, cut)], d)
                out = second.cat(first, dim=d)
        return out._as_value()

    def meshgrid(self, *others: Self, indexing: str = "ij") -> tuple[Self, ...]:
        """Coordinates of a grid from vectors: one value an input, each of the grid's shape; "xy" swaps the first two
        axes.

        >>> [t.tolist() for t in Tensor([1, 2]).meshgrid(Tensor([3, 4]))]
        [[[1, 1], [2, 2]], [[3, 4], [3, 4]]]
        """
        if indexing not in ("ij", "xy"):
            raise ValueError(f"meshgrid: indexing is 'ij' or 'xy', not {indexing!r}")
        for v in others:
            need_tensors("meshgrid", others=v)
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
        return tuple([v._broadcast_to(shape)._as_value() for v in shaped])

    def rearrange(self, formula: str, **sizes: int) -> Self:
        """Axes renamed, split, joined and moved as `formula` says, in the notation of einops: "b (h w) c -> b c h
        w".

        >>> Tensor.zeros(2, 3, 4).rearrange("b h w -> b (h w)").shape
        (2, 12)
        """
        from aril.mixin.notation import parse_rearrange

        shape, order, final, _ = parse_rearrange(formula, self.shape, sizes)
        return self.reshape(shape).permute(order).reshape(final)
