"""Resizing along the last axes: samples between the given ones, by position or by a weighted mean of neighbours.

In comes a value whose last axes are spatial; out goes one of another size there, axis by axis.
"""

from __future__ import annotations

from typing import Any, Self

from aril.dtype import dtypes
from aril.mixin.base import dim_sub, shape_arg
from aril.mixin.contract import ContractMixin

_MODES = ("nearest", "nearest-exact", "linear", "cubic")


class ResizeMixin(ContractMixin):
    """Conventions follow PyTorch: samples lie at the middle of their cells unless corners are aligned."""

    __slots__ = ()

    def interpolate(self, size: Any, mode: str = "linear", align_corners: Any = False, antialias: Any = False) -> Self:
        """The last axes resized to `size`: "linear" or "cubic" (over each axis in turn), "nearest" or "nearest-exact".

        `align_corners` maps the first and last samples onto each other; `antialias` widens the kernel where the size
        shrinks (linear and cubic), so that every sample counts; what lies beyond the ends then weighs nothing. Cubic is
        Keys' kernel with a = -0.75, with antialias -0.5 (Keys, "Cubic convolution interpolation for digital image
        processing", 1981).
        Floats keep their type; integers keep it with the nearest modes and give the default float otherwise.
        Errors: ValueError for another mode, an axis without samples, or options that the mode does not have.

        >>> Tensor([[[1.0, 3.0]]]).interpolate((4,), mode="nearest").tolist()
        [[[1.0, 1.0, 3.0, 3.0]]]
        """
        sizes = shape_arg("interpolate", (size,))
        if mode not in _MODES:
            raise ValueError(f"interpolate: mode is one of {', '.join(_MODES)}, not {mode!r}")
        if mode.startswith("nearest") and (align_corners or antialias):
            raise ValueError(f"interpolate: mode {mode!r} takes neither align_corners nor antialias")
        if align_corners and antialias:
            raise ValueError("interpolate: antialias does not go with align_corners")
        if any(not isinstance(s, int) for s in sizes):
            raise TypeError(
                f"interpolate: sizes are ints, not {', '.join(map(str, sizes))}; a variable one has to be known"
            )
        if len(sizes) > self.ndim or any(s < 1 for s in sizes) or 0 in self.shape[self.ndim - len(sizes) :]:
            raise ValueError(f"interpolate: shape {self.shape} cannot be resized to {sizes} on its last axes")
        x = self if mode.startswith("nearest") else self._floating()
        out = x if mode.startswith("nearest") else x._wide()
        for k, new in enumerate(sizes):
            out = out._resized(self.ndim - len(sizes) + k, new, mode, align_corners, antialias)
        return out.cast(x.dtype)._as_value()

    def _resized(self, axis: int, new: int, mode: str, align_corners: Any, antialias: Any) -> Self:
        old = self.shape[axis]
        kind = self.dtype if self.dtype is dtypes.float64 else dtypes.float32
        # of a variable length everything that follows is computed, too
        last: Any = old - 1 if isinstance(old, int) else self._lift(old - 1).cast(kind)
        ratio: Any = old / new if isinstance(old, int) else self._lift(old).cast(kind) / new
        place = self._iota(new).cast(kind)
        if mode.startswith("nearest"):
            if isinstance(old, int) and new % old == 0:  # no positions: its gradient is a sum, not a scatter
                return self.repeat_interleave(new // old, axis)
            shift = 0.5 if mode == "nearest-exact" else 0.0
            index = ((place + shift) * ratio).floor().cast(dtypes.int32).clamp(0, dim_sub(old, 1))
            return self.movedim(axis, 0)._take(index).movedim(0, axis)
        source = place * (last / max(new - 1, 1)) if align_corners else (place + 0.5) * ratio - 0.5
        if antialias:
            scale = max(ratio, 1.0) if isinstance(old, int) else ratio.maximum(1.0)
            return self._smoothed(axis, source, scale, mode)
        if mode == "linear":
            source = source.clamp(0.0, float(last) if isinstance(old, int) else last)
        low = source.floor()
        t = source - low
        taps = (0, 1) if mode == "linear" else (-1, 0, 1, 2)
        x = self.movedim(axis, 0)
        out: Self | None = None
        for k in taps:
            weight = _kernel((t - k).abs(), mode, -0.75)._reshape((new, *(1,) * (x.ndim - 1)))
            part = x._take((low.cast(dtypes.int32) + k).clamp(0, dim_sub(old, 1))) * weight
            out = part if out is None else out + part
        assert out is not None
        return out.movedim(0, axis)

    def _smoothed(self, axis: int, source: Self, scale: Any, mode: str) -> Self:
        """Every sample weighed by a kernel `scale` times as wide, the weights of each result adding up to 1."""
        old, new = self.shape[axis], source.shape[0]
        gap = self._iota(old).cast(source.dtype)._reshape((1, old)) - source._reshape((new, 1))
        weight = _kernel((gap / scale).abs(), mode, -0.5)
        weight = weight / weight.sum(-1, True)
        return self.movedim(axis, -1).dot(weight.transpose(-1, -2).cast(self.dtype)).movedim(-1, axis)


def _kernel(r: Any, mode: str, a: float) -> Any:
    """The weight of a sample at distance r >= 0."""
    if mode == "linear":
        return (1.0 - r).maximum(0.0)
    near = ((a + 2.0) * r - (a + 3.0)) * r * r + 1.0
    far = ((a * r - 5.0 * a) * r + 8.0 * a) * r - 4.0 * a
    return (r <= 1.0).where(near, (r < 2.0).where(far, 0.0))
