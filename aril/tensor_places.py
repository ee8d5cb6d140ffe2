"""Where tensors lie: names of devices in one form, and the device that an operation on several tensors runs on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aril.device import Device, canonical
from aril.uop.args import is_memory_only


def canonical_place(device: Any) -> Any:
    """A device's name, or a tuple of names, in the form that is compared; None stays None. Errors: DeviceError for one
    that cannot be used here: a constant on it would only be computed elsewhere."""
    if device is None:
        return None
    if isinstance(device, (tuple, list)):
        return tuple([canonical_place(d) for d in device])
    if isinstance(device, str) and is_memory_only(device):
        memory_only_seen.add(device[:3])
    place = canonical(device)
    Device.demand(place)
    return place


memory_only_seen: set[str] = set()  # empty: no operation needs to ask where its operands lie


def where_kernels_run(*tensors: Any) -> tuple[Any, ...]:
    """`tensors`, with those on devices that run no kernels (NPY, DISK) copied to the one of the others, else the
    default one."""
    if not any(is_memory_only(t._device) for t in tensors):
        return tensors
    places = [t._device for t in tensors if t._device is not None and not is_memory_only(t._device)]
    place = places[0] if places else Device.DEFAULT
    return tuple([t.to(place) if is_memory_only(t._device) else t for t in tensors])


def common_device(what: str, tensors: Iterable[Any]) -> Any:
    """The device that all of `tensors` lie on, or None. Errors: ValueError, naming `what`, where they differ."""
    found = {t._device for t in tensors if t._device is not None}
    if len(found) > 1:
        # A constant follows what it meets.
        real = {t._device for t in tensors if t._device is not None and t.uop.device is not None}
        if len(real) > 1:
            raise ValueError(
                f"{what}: operands lie on {' and '.join(sorted(map(str, real)))}; move one with .to(device) first"
            )
        found = real or found
    return next(iter(found), None)
