"""Tensors on several devices: split along an axis or whole on each. Mixed into Tensor.

A sharded tensor is used like any other; `x.device` is the tuple of its devices. Operations stay on the devices where
the parts lie, and move data only where they need other parts (`docs/decisions/0006-many-devices.md`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aril.device import Buffer, canonical
from aril.mixin.base import as_tuple, need_tensors
from aril.ops import Ops
from aril.schedule.parts import split, unshard
from aril.schedule.shard import Layout, layout_of, split_as, split_over
from aril.uop import UOp
from aril.uop.args import is_memory_only
from aril.uop.node import view_flat


class ShardMixin:
    """`shard`, `shard_`, `shard_like`."""

    __slots__ = ()

    def shard(self: Any, devices: Sequence[str], axis: int | None = None) -> Any:
        """This value on several devices: split along `axis`, as evenly as it goes, or (None) whole on each.

        Errors: ValueError for no devices, for one named twice and for a symbolic axis; IndexError for an axis that is
        not there.

        >>> Tensor([1, 2, 3, 4]).shard(("CPU:0", "CPU:1"), axis=0).device
        ('CPU', 'CPU:1')
        """
        if isinstance(devices, str):
            raise TypeError(f"shard: expected a sequence of device names, not {devices!r}; to() moves to one device")
        places = tuple([canonical(d) for d in as_tuple("shard: devices", devices)])
        if not places or len(set(places)) != len(places):
            raise ValueError(f"shard: expected different devices, at least one, not {tuple(devices)}")
        if axis is not None and not self.shape:
            raise IndexError(f"shard: axis {axis} does not exist in a 0-d tensor; axis=None puts it on every device")
        at = None if axis is None else self._axis(axis, "shard")
        if len(places) == 1:
            return self.to(places[0])
        return self._placed(self.cast_default()._split_over(places, at), places)

    def shard_(self: Any, devices: Sequence[str], axis: int | None = None) -> Any:
        """Shard this tensor itself; returns it.

        >>> Tensor([1, 2, 3, 4]).shard_(("CPU:0", "CPU:1"), axis=0).device
        ('CPU', 'CPU:1')
        """
        return self.replace(self.shard(devices, axis))

    def shard_like(self: Any, y: Any) -> Any:
        """This value on the devices of `y`, split along the same axis in the same stretches.

        Errors: ValueError where the axis `y` is split on has another length here.

        >>> x = Tensor([1, 2]).shard(("CPU:0", "CPU:1"), axis=0)
        >>> Tensor([3, 4]).shard_like(x).device
        ('CPU', 'CPU:1')
        """
        need_tensors("shard_like", y=y)
        layout = layout_of(y.uop) if isinstance(y.device, tuple) else None
        if layout is None:
            return self.shard(y.device) if isinstance(y.device, tuple) else self.to(y.device)
        if layout.axis is not None and (
            len(self.shape) <= layout.axis or self.shape[layout.axis] != sum(layout.lengths)
        ):
            raise ValueError(
                f"shard_like: a tensor of shape {self.shape} cannot lie as one of shape {y.shape} split on axis "
                f"{layout.axis}"
            )
        x = self.cast_default()
        if layout.axis is None and self.device == layout.devices:
            return x.to(layout.devices)
        return self._placed(x._split_as(layout), layout.devices)

    def _split_over(self: Any, devices: tuple[str, ...], axis: int | None) -> UOp:
        if axis is None or not isinstance(self.shape[axis], int) or not self._on_file():
            return split_over(self.uop, devices, axis)
        return self._split_as(Layout(devices, axis, split(self.shape[axis], len(devices))))

    def _split_as(self: Any, layout: Layout) -> UOp:
        if layout.axis is None or not self._on_file():
            return split_as(self.uop, layout)
        # no kernel can cut what lies there: each device is sent its own stretch
        parts, start = [], 0
        for device, n in zip(layout.devices, layout.lengths, strict=True):
            pairs = [(start, start + n) if i == layout.axis else (0, d) for i, d in enumerate(self.shape)]
            parts.append(
                self.shrink(tuple(pairs)).to(device).uop if n else UOp(Ops.COPY, (self._nothing(pairs),), device)
            )
            start += n
        return unshard(parts, layout.axis)

    def _nothing(self: Any, pairs: Any) -> UOp:
        return self.zeros(*[stop - start for start, stop in pairs], dtype=self.dtype).uop

    def _on_file(self: Any) -> bool:
        return is_memory_only(self.device)

    def _placed(self: Any, uop: UOp, devices: tuple[str, ...]) -> Any:
        from aril.tensor import recorded

        out = recorded(uop, devices)
        out._is_param = self._is_param
        return out


def storage_over(layout: Layout, shape: tuple[Any, ...], dtype: Any) -> UOp:
    """Fresh memory for a value of `shape` lying as `layout` says."""
    parts = []
    for device, n in zip(layout.devices, layout.lengths, strict=True):
        own = shape if layout.axis is None else (*shape[: layout.axis], n, *shape[layout.axis + 1 :])
        size = 1
        for d in own:
            size *= d if isinstance(d, int) else int(d.vmax)
        parts.append(view_flat(UOp.new_buffer(device, size, dtype), own))
    return unshard(parts, layout.axis)


def storage_like(x: UOp, value: UOp, devices: tuple[str, ...]) -> UOp:
    """Fresh memory on `devices` for `value`, lying as `x` does."""
    layout = layout_of(x) or Layout(devices, None, (1,) * len(devices))
    return storage_over(layout, value.shape, value.dtype)


def storage_on_each(shape: tuple[Any, ...], dtype: Any, devices: tuple[str, ...]) -> UOp:
    """Fresh memory for a whole value on every device."""
    return storage_over(Layout(devices, None, (1,) * len(devices)), shape, dtype)


def stored_on_each(raw: Any, shape: tuple[int, ...], dtype: Any, devices: tuple[str, ...]) -> UOp:
    """The bytes `raw` in fresh memory on every device."""
    whole = storage_on_each(shape, dtype, devices)
    for part in whole.src[0].src:
        node = part.base
        node.storage = Buffer(node.arg.device, node.arg.size, dtype).copyin(memoryview(raw))
    return whole
