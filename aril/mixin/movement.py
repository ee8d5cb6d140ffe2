"""Movement operations: the same elements in another arrangement, without arithmetic.

Each public method checks its arguments, counts negative axes from the back, and calls one primitive or composes a few.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Self

from aril.dtype import promote
from aril.mixin.base import (
    Dim,
    as_int,
    as_tuple,
    bound,
    check_part,
    dim_prod,
    dim_sub,
    dim_sum,
    length,
    same,
    shape_arg,
    shown,
)
from aril.mixin.operators import OperatorMixin
from aril.ops import Ops


class MovementMixin(OperatorMixin):
    """Reshaping, slicing, padding, joining. The dtype stays (joined values are promoted to a common one)."""

    __slots__ = ()

    # --- the shape ---

    def reshape(self, *shape: Any) -> Self:
        """The elements in row-major order at `shape`; one entry may be -1 (what is left), None keeps that axis.

        Errors: ValueError where the number of elements differs.

        >>> Tensor.arange(6).reshape(2, -1).tolist()
        [[0, 1, 2], [3, 4, 5]]
        """
        old = self.shape
        new = shape_arg("reshape", shape, none=True)
        if None in new:
            new = tuple([old[i] if d is None else d for i, d in enumerate(new)])
        if -1 in [d for d in new if isinstance(d, int)]:
            known = dim_prod([d for d in new if not (isinstance(d, int) and d == -1)])
            if sum(1 for d in new if isinstance(d, int) and d == -1) > 1:
                raise ValueError(f"reshape: only one dimension can be -1, not {new}")
            total = dim_prod(old)
            rest = self._quotient(total, known)
            if rest is None:
                raise ValueError(f"reshape: {total} elements (shape {old}) do not divide into {new}")
            new = tuple([rest if isinstance(d, int) and d == -1 else d for d in new])
        if new == old:
            return self
        have, want = bound(dim_prod(old)), bound(dim_prod(new))
        numbers = isinstance(have, int) and isinstance(want, int)
        if numbers and have != want or any(isinstance(d, int) and d < 0 for d in new):
            raise ValueError(
                f"reshape: shape {old} has {have} elements, {new} would have {want}; the numbers must agree"
            )
        return self._reshape(new)

    @staticmethod
    def _quotient(total: Dim, known: Dim) -> Dim | None:
        if isinstance(total, int) and isinstance(known, int):
            if known == 0:
                return 0 if total == 0 else None
            return total // known if total % known == 0 else None
        return (total // known)._as_dim()

    def view(self, *shape: Any) -> Self:
        """The same as `reshape`.

        >>> Tensor.arange(4).view(2, 2).tolist()
        [[0, 1], [2, 3]]
        """
        return self.reshape(*shape)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Self:
        """Axes `start_dim` to `end_dim` (included) as one.

        >>> Tensor.zeros(2, 3, 4).flatten(1).shape
        (2, 12)
        """
        start, end = self._axis(start_dim, "flatten"), self._axis(end_dim, "flatten")
        if not self.shape:
            return self._reshape((1,))
        if start > end:
            raise ValueError(f"flatten: start_dim {start_dim} lies behind end_dim {end_dim} in shape {self.shape}")
        return self.reshape(*self.shape[:start], dim_prod(self.shape[start : end + 1]), *self.shape[end + 1 :])

    def unflatten(self, dim: int, sizes: Sequence[Dim]) -> Self:
        """Axis `dim` as several of `sizes` (one may be -1).

        >>> Tensor.zeros(6, 4).unflatten(0, (2, 3)).shape
        (2, 3, 4)
        """
        d = self._axis(dim, "unflatten")
        sizes = shape_arg("unflatten", (as_tuple("unflatten: sizes", sizes),))
        known = dim_prod([s for s in sizes if not same(s, -1)])
        if any(same(s, -1) for s in sizes):
            sizes = tuple([self._quotient(self.shape[d], known) if same(s, -1) else s for s in sizes])
        if not same(dim_prod(sizes), self.shape[d]):
            raise ValueError(f"unflatten: an axis of {self.shape[d]} does not divide into {sizes}")
        return self._reshape((*self.shape[:d], *sizes, *self.shape[d + 1 :]))

    def squeeze(self, dim: Any = None) -> Self:
        """Without the axes of length 1 (all, or of those in `dim`).

        >>> Tensor.zeros(1, 3, 1).squeeze().shape
        (3,)
        """
        drop = set(range(self.ndim)) if dim is None else set(self._axes(dim, "squeeze"))
        new = tuple([d for i, d in enumerate(self.shape) if i not in drop or not same(d, 1)])
        return self._reshape(new) if len(new) != self.ndim else self

    def unsqueeze(self, dim: int) -> Self:
        """With a new axis of length 1 at `dim`.

        >>> Tensor.zeros(3).unsqueeze(0).shape
        (1, 3)
        """
        d = self._axis(dim, "unsqueeze", extra=1)
        return self._reshape((*self.shape[:d], 1, *self.shape[d:]))

    def expand(self, *shape: Any) -> Self:
        """Axes of length 1 repeated to `shape`, without a copy; -1 or None keeps an axis; new axes come in front.

        Errors: ValueError where a longer axis would change.

        >>> Tensor([[1], [2]]).expand(2, 3).tolist()
        [[1, 1, 1], [2, 2, 2]]
        """
        new = shape_arg("expand", shape, none=True)
        missing = len(new) - self.ndim
        if missing < 0:
            raise ValueError(f"expand: shape {self.shape} has more axes than {new}")
        old = (1,) * missing + self.shape
        new = tuple([o if n is None or (isinstance(n, int) and n == -1) else n for o, n in zip(old, new, strict=True)])
        for o, n in zip(old, new, strict=True):
            if not same(o, n) and not same(o, 1):
                raise ValueError(
                    f"expand: shape {self.shape} does not expand to {new}: only axes of length 1 can be repeated"
                )
        return self._broadcast_to(new)

    def repeat(self, *repeats: Any) -> Self:
        """The whole repeated along each axis (missing axes come in front): shape[i] * repeats[i].

        >>> Tensor([1, 2]).repeat(2).tolist()
        [1, 2, 1, 2]
        """
        counts = shape_arg("repeat", repeats)
        if any(isinstance(c, int) and c < 0 for c in counts) or len(counts) < self.ndim:
            raise ValueError(f"repeat: {counts} must give a count of at least 0 for each of the {self.ndim} axes")
        old = (1,) * (len(counts) - self.ndim) + self.shape
        inner = [d for c, s in zip(counts, old, strict=True) for d in (1, s)]
        outer = [d for c, s in zip(counts, old, strict=True) for d in (c, s)]
        final = tuple([dim_prod((c, s)) for c, s in zip(counts, old, strict=True)])
        return self._reshape(tuple(inner))._expand(tuple(outer))._reshape(final)._as_value()

    def repeat_interleave(self, repeats: int, dim: int | None = None) -> Self:
        """Each element repeated `repeats` times in place along `dim` (of the flattened value where None).

        >>> Tensor([1, 2]).repeat_interleave(2).tolist()
        [1, 1, 2, 2]
        """
        repeats = length("repeat_interleave", repeats)
        if isinstance(repeats, int) and repeats < 0:
            raise ValueError(f"repeat_interleave: repeats is at least 0, not {repeats}")
        x, d = (self.flatten(), 0) if dim is None else (self, self._axis(dim, "repeat_interleave"))
        s = x.shape
        wide = (*s[: d + 1], repeats, *s[d + 1 :])
        out = x.unsqueeze(d + 1)._expand(wide)._reshape((*s[:d], dim_prod((s[d], repeats)), *s[d + 1 :]))
        return out._as_value()

    # --- the order of axes ---

    def permute(self, *order: Any) -> Self:
        """Axis i of the result is axis order[i].

        >>> Tensor.zeros(2, 3, 4).permute(2, 0, 1).shape
        (4, 2, 3)
        """
        given = shape_arg("permute", order)
        axes = tuple([self._axis(d, "permute") for d in given])
        if sorted(axes) != list(range(self.ndim)):
            raise ValueError(f"permute: {given} is no order of the {self.ndim} axes of shape {self.shape}")
        return self._permute(axes) if axes != tuple(range(self.ndim)) else self

    def transpose(self, dim0: int = 1, dim1: int = 0) -> Self:
        """With two axes exchanged.

        >>> Tensor.zeros(2, 3, 4).transpose(0, 2).shape
        (4, 3, 2)
        """
        a, b = self._axis(dim0, "transpose"), self._axis(dim1, "transpose")
        order = list(range(self.ndim))
        if order:
            order[a], order[b] = order[b], order[a]
        return self.permute(*order) if order else self

    @property
    def T(self) -> Self:
        """The transpose of a matrix; with other ranks, the axes in reverse order.

        >>> Tensor([[1, 2], [3, 4]]).T.tolist()
        [[1, 3], [2, 4]]
        """
        return self._permute(tuple(range(self.ndim))[::-1]) if self.ndim > 1 else self

    def movedim(self, source: int, destination: int) -> Self:
        """With axis `source` moved to position `destination`.

        >>> Tensor.zeros(2, 3, 4).movedim(0, -1).shape
        (3, 4, 2)
        """
        a, b = self._axis(source, "movedim"), self._axis(destination, "movedim")
        order = [i for i in range(self.ndim) if i != a]
        order.insert(b, a)
        return self.permute(*order)

    def flip(self, *dims: Any) -> Self:
        """Reversed along the axes given.

        >>> Tensor([1, 2, 3]).flip(0).tolist()
        [3, 2, 1]
        """
        axes = self._axes(shape_arg("flip", dims), "flip")
        axes = tuple([a for a in axes if not same(self.shape[a], 1)])
        return self._flip(axes) if axes else self

    # --- parts ---

    def shrink(self, arg: Sequence[Any]) -> Self:
        """The part from start to end (excluded) on each axis: pairs, None keeps an axis.

        Errors: IndexError outside of the shape.

        >>> Tensor([1, 2, 3, 4]).shrink([(1, 3)]).tolist()
        [2, 3]
        """
        arg = as_tuple("shrink: arg", arg)
        if len(arg) != self.ndim:
            raise ValueError(f"shrink: {len(arg)} pairs for the {self.ndim} axes of shape {self.shape}")
        pairs: list[tuple[Dim, Dim]] = []
        for d, p in zip(self.shape, arg, strict=True):
            if p is not None and (not isinstance(p, (tuple, list)) or len(p) != 2):
                raise ValueError(f"shrink: {shown(p)} is no pair (start, end)")
            start, end = (0, d) if p is None else (length("shrink", v) for v in p)
            check_part("shrink", start, end, d, self.shape)
            pairs.append((start, dim_sub(end, start)))
        return self._shrink(tuple(pairs))

    def shrink_to(self, *sizes: Any) -> Self:
        """The first `sizes` elements on each axis; None keeps an axis.

        >>> Tensor([1, 2, 3, 4]).shrink_to(2).tolist()
        [1, 2]
        """
        given = shape_arg("shrink_to", sizes, none=True)
        return self.shrink([None if s is None else (0, s) for s in given])

    def pad(self, padding: Sequence[Any], mode: str = "constant", value: Any = 0) -> Self:
        """Elements added around: pairs (before, after) an axis with None for no change, or PyTorch's flat form, last
        axis first.

        Negative numbers cut off. `mode`: "constant" (of `value`), "reflect", "replicate" or "circular".

        >>> Tensor([1, 2]).pad((1, 2), value=9).tolist()
        [9, 1, 2, 9, 9]
        """
        pairs = self._pad_pairs(padding)
        if mode not in ("constant", "reflect", "replicate", "circular"):
            raise ValueError(f"pad: mode is constant, reflect, replicate or circular, not {mode!r}")
        if any(isinstance(v, int) and v < 0 for p in pairs for v in p):
            cut = [(max(-b, 0), d - max(-a, 0)) for (b, a), d in zip(pairs, self.shape, strict=True)]
            pairs = tuple([(max(b, 0), max(a, 0)) for b, a in pairs])
            return self.shrink(cut).pad(pairs, mode, value)
        if all(same(b, 0) and same(a, 0) for b, a in pairs):
            return self._as_value()
        if mode == "constant":
            self._unchanged(value, "pad")
            if any(same(d, 0) for d in self.shape):
                return self.const_like(value)._broadcast_to(
                    tuple([dim_sum(d, b, a) for d, (b, a) in zip(self.shape, pairs, strict=True)])
                )
            return self._pad(pairs, value)
        out = self
        for i, (before, after) in enumerate(pairs):
            out = out._pad_with_own(i, before, after, mode)
        return out

    def _pad_pairs(self, padding: Sequence[Any]) -> tuple[tuple[Dim, Dim], ...]:
        given = [
            p if p is None or isinstance(p, (tuple, list)) else length("pad", p)
            for p in as_tuple("pad: padding", padding)
        ]
        if all(isinstance(p, int) for p in given):
            if len(given) % 2 or len(given) > 2 * self.ndim:
                raise ValueError(
                    f"pad: {given} is no list of (before, after) numbers, last axis first, for shape {self.shape}"
                )
            back = [(given[i], given[i + 1]) for i in range(0, len(given), 2)][::-1]
            return ((0, 0),) * (self.ndim - len(back)) + tuple(back)
        if len(given) != self.ndim:
            raise ValueError(f"pad: {len(given)} pairs for the {self.ndim} axes of shape {self.shape}")
        if any(not isinstance(p, (tuple, list)) or len(p) != 2 for p in given if p is not None):
            raise ValueError(f"pad: {given} is no list of pairs (before, after), one an axis of shape {self.shape}")
        return tuple([(0, 0) if p is None else (length("pad", p[0]), length("pad", p[1])) for p in given])

    def _pad_with_own(self, axis: int, before: int, after: int, mode: str) -> Self:
        n = self.shape[axis]
        size = bound(n)
        limit = {"reflect": size - 1, "circular": size, "replicate": math.inf}[mode]
        if isinstance(size, int) and (max(before, after) > limit or (size == 0 and before + after)):
            raise ValueError(f"pad: {mode} cannot add {before} and {after} elements to an axis of {n}")

        def part(start: int, end: int) -> Any:
            return self.shrink([(start, end) if i == axis else None for i in range(self.ndim)])

        ends: tuple[Any, Any]
        if mode == "reflect":
            ends = part(1, before + 1).flip(axis), part(n - 1 - after, n - 1).flip(axis)
        elif mode == "circular":
            ends = part(n - before, n), part(0, after)
        else:
            counts = [[c if i == axis else 1 for i in range(self.ndim)] for c in (before, after)]
            ends = part(0, 1).repeat(*counts[0]), part(n - 1, n).repeat(*counts[1])
        pieces = [p for p in (ends[0] if before else None, self, ends[1] if after else None) if p is not None]
        return pieces[0].cat(*pieces[1:], dim=axis)

    def pad_to(self, *sizes: Any) -> Self:
        """Zeros added behind so that the shape becomes `sizes`; None keeps an axis.

        >>> Tensor([1, 2]).pad_to(4).tolist()
        [1, 2, 0, 0]
        """
        given = shape_arg("pad_to", sizes, none=True)
        if len(given) != self.ndim:
            raise ValueError(f"pad_to: {len(given)} sizes for the {self.ndim} axes of shape {self.shape}")
        return self.pad([None if s is None else (0, dim_sub(s, d)) for s, d in zip(given, self.shape, strict=True)])

    def split(self, sizes: int | Sequence[int], dim: int = 0) -> tuple[Self, ...]:
        """Consecutive parts along `dim`: of one size (the last may be smaller), or of the sizes given.

        >>> [part.tolist() for part in Tensor.arange(5).split([2, 3])]
        [[0, 1], [2, 3, 4]]
        """
        d = self._axis(dim, "split")
        n = self.shape[d]
        if not isinstance(sizes, Iterable):
            sizes = as_int("split: the size of a part", sizes, 1)
            n = self._known_length(d, "split into parts of one size")
            sizes = [min(sizes, n - i) for i in range(0, n, sizes)] or [0]
        sizes = tuple([length("split", s) for s in sizes])
        total = dim_sum(*sizes)
        if not same(total, n) and not same(bound(total), bound(n)):
            raise ValueError(f"split: sizes {tuple(sizes)} add up to {total}, axis {dim} of shape {self.shape} has {n}")
        out: list[Self] = []
        start: Dim = 0
        for size in sizes:
            end = dim_sum(start, size)
            out.append(self.shrink([(start, end) if i == d else None for i in range(self.ndim)]))
            start = end
        return tuple(out)

    def chunk(self, chunks: int, dim: int = 0) -> tuple[Self, ...]:
        """At most `chunks` consecutive parts of equal size along `dim`; the last may be smaller.

        >>> [part.tolist() for part in Tensor.arange(5).chunk(2)]
        [[0, 1, 2], [3, 4]]
        """
        chunks = as_int("chunk: the number of parts", chunks, 1)
        n = self._known_length(self._axis(dim, "chunk"), "chunk")
        return self.split(-(-n // chunks) or 1, dim) if n else self.split([0] * chunks, dim)

    def unfold(self, dim: int, size: int, step: int = 1) -> Self:
        """All windows of `size` elements along `dim`, `step` apart: that axis counts windows, a new last axis runs
        inside.

        >>> Tensor([1, 2, 3, 4]).unfold(0, 2, 1).tolist()
        [[1, 2], [2, 3], [3, 4]]
        """
        d = self._axis(dim, "unfold")
        n, size, step = bound(self.shape[d]), as_int("unfold: size", size), as_int("unfold: step", step)
        if size < 1 or step < 1 or isinstance(n, int) and size > n:
            raise ValueError(f"unfold: windows of {size} elements, {step} apart, do not exist on an axis of {n}")
        return self._windows(d, size, step)._as_value()

    def _windows(self, axis: int, size: int, step: int = 1, dilation: int = 1) -> Self:
        """out[.., o (axis), .., k (new last)] = x[.., o * step + k * dilation, ..]: EXPAND, SHEAR, then every
        step-th."""
        n = self.shape[axis]
        count = dim_sum((dim_sub(n, dilation * (size - 1) + 1)) // step, 1)
        if step == size and dilation == 1:  # no element lies in two windows: each window is a row of a reshape
            x = self._shrink(tuple([(0, count * size) if i == axis else (0, d) for i, d in enumerate(self.shape)]))
            x = x._reshape((*self.shape[:axis], count, size, *self.shape[axis + 1 :]))
            return x._permute((*range(axis + 1), *range(axis + 2, x.ndim), axis + 1))
        if not isinstance(n, int):
            return self._to_greatest(axis)._windows(axis, size, step, dilation)._first(axis, count)
        length = (count - 1) * step + 1
        x = self
        if step > 1:
            length = count * step
            more = whole_steps(n, size, step, dilation)
            if more:
                x = x._pad(tuple([(0, more) if i == axis else (0, 0) for i in range(x.ndim)]))
        wide = x._reshape((*x.shape, 1))._expand((*x.shape, size))
        return wide._shear(axis, self.ndim, dilation, 0, length)._every(axis, step)

    def _every(self, axis: int, step: int) -> Self:
        """Elements 0, step, 2 * step, ... of `axis`."""
        if step == 1:
            return self
        n = self.shape[axis]
        count = -(-n // step)
        x = self
        if count * step != n:
            x = x._pad(tuple([(0, count * step - n) if i == axis else (0, 0) for i in range(self.ndim)]))
        s = x.shape
        x = x._reshape((*s[:axis], count, step, *s[axis + 1 :]))
        x = x._shrink(tuple([(0, 1) if i == axis + 1 else (0, d) for i, d in enumerate(x.shape)]))
        return x._reshape((*s[:axis], count, *s[axis + 1 :]))

    def diagonal(self, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Self:
        """The elements x[.., i, .., i + offset, ..] of axes `dim1` and `dim2`, as a new last axis.

        >>> Tensor([[1, 2], [3, 4]]).diagonal().tolist()
        [1, 4]
        """
        a, b, offset = self._axis(dim1, "diagonal"), self._axis(dim2, "diagonal"), as_int("diagonal: offset", offset)
        if a == b or self.ndim < 2:
            raise ValueError(f"diagonal: two different axes are needed, not {dim1} and {dim2} of shape {self.shape}")
        rest = [i for i in range(self.ndim) if i not in (a, b)]
        if not (isinstance(self.shape[a], int) and isinstance(self.shape[b], int)):
            if not same(self.shape[a], self.shape[b]) or offset:
                for axis in (a, b):
                    self._known_length(axis, "diagonal")
            whole = self._to_greatest(a)._to_greatest(b).diagonal(0, a, b)
            return whole._first(whole.ndim - 1, self.shape[a])
        x = self._permute((*rest, a, b)) if (*rest, a, b) != tuple(range(self.ndim)) else self
        rows, columns = x.shape[-2:]
        top, left = max(-offset, 0), max(offset, 0)
        n = max(min(rows - top, columns - left), 0)
        lead = x.shape[:-2]
        x = x._shrink((*[(0, d) for d in lead], (top if n else 0, n), (left if n else 0, n)))
        if n == 0:
            return x._reshape((*lead, 0))
        x = x._shear(x.ndim - 1, x.ndim - 2, 1, 0, 1)
        return x._reshape((*lead, n))

    def diag(self) -> Self:
        """A vector as the diagonal of a square matrix.

        >>> Tensor([1, 2]).diag().tolist()
        [[1, 0], [0, 2]]
        """
        if self.ndim != 1:
            raise ValueError(f"diag: expected a vector, not shape {self.shape}")
        n = self.shape[0]
        return (
            self._reshape((n, 1))
            ._pad(((0, 0), (0, n)))
            ._reshape((n * (n + 1),))
            ._shrink(((0, n * n),))
            ._reshape((n, n))
        )

    # --- joining ---

    def cat(self, *others: Any, dim: int = 0) -> Self:
        """This value and `others` one after the other along `dim`; the other axes agree, dtypes are promoted.

        >>> Tensor([1, 2]).cat(Tensor([3])).tolist()
        [1, 2, 3]
        """
        if isinstance(self, (list, tuple)):  # called on the class, as other frameworks write it
            if not self:
                raise ValueError("cat: there are no values to join")
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
            return self._as_value()
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
        return out if out is not None else parts[0]._as_value()


def whole_steps(n: int, size: int, step: int, dilation: int) -> int:
    """How many elements an axis of `n` lacks for windows at every place of their last step."""
    count = (n - dilation * (size - 1) - 1) // step + 1
    return max(0, count * step + dilation * (size - 1) - n)


def _one_dtype(parts: list[Any]) -> list[Any]:
    if all(p.dtype is parts[0].dtype for p in parts):
        return parts
    common = promote(*[p.dtype for p in parts])
    return [p.cast(common) for p in parts]
