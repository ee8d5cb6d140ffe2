"""What this namespace offers: capabilities, devices, types."""

from __future__ import annotations

from typing import Any

from aril.array_api import _dtypes as dt
from aril.device import Device
from aril.dtype import DType, dtypes

_NO_KERNELS = ("DISK", "NPY", "NULL")


class Info:
    """The answers of `__array_namespace_info__()`."""

    def capabilities(self) -> dict[str, Any]:
        """Masks as indices work, and so do results whose shape depends on values; shapes have 64 axes at most."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> str:
        """The device of arrays that name none."""
        return Device.DEFAULT

    def devices(self) -> list[str]:
        """Devices that compute here, the default one first."""
        found = [n for n in Device if n not in _NO_KERNELS and Device.why_not(n) is None]
        return [Device.DEFAULT, *[n for n in found if n != Device.DEFAULT]]

    def default_dtypes(self, *, device: Any = None) -> dict[str, DType]:
        """Types of arrays made without one. Complex types are left out."""
        whole = dtypes.default_int()
        return {"real floating": dtypes.default_float(), "integral": whole, "indexing": whole}

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, DType]:
        """The types by name, all or those of a kind (see `isdtype`)."""
        return {d.name: d for d in dt.ALL if kind is None or dt.isdtype(d, kind)}


def __array_namespace_info__() -> Info:
    """What this namespace offers."""
    return Info()
