"""The NPY device: memory of NumPy arrays as buffers, without a copy, whatever its alignment.

In come arrays (`buffer_of`), out go arrays (`array_of`) over the same memory. It runs no kernels.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aril.device import Allocator, Buffer, DeviceBase
from aril.dtype import DType, to_dtype

# the small float formats as the package ml_dtypes names them, which makes NumPy know them
_NAMES = {"float8_e4m3fn": "fp8e4m3", "float8_e5m2": "fp8e5m2", "float8_e4m3fnuz": "fp8e4m3fnuz"}
_NAMES["float8_e5m2fnuz"] = "fp8e5m2fnuz"
_UNSIGNED = {1: np.uint8, 2: np.uint16}


class NpyAllocator(Allocator):
    """NumPy's memory. Buffers made here (not wrapped) own an array of bytes."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self._held: dict[int, NDArray[np.uint8]] = {}

    def _alloc(self, nbytes: int) -> int:
        block = np.empty(nbytes + 64, np.uint8)
        address = -(-block.ctypes.data // 64) * 64
        self._held[address] = block
        return address

    def _free(self, opaque: int, nbytes: int) -> None:
        self._held.pop(opaque, None)


class NpyDevice(DeviceBase):
    """Memory that NumPy and aril share."""

    NAME = "NPY"

    def __init__(self, name: str) -> None:
        super().__init__(name, NpyAllocator(name))


def dtype_of(array: NDArray[Any]) -> DType:
    """The dtype of an array's elements. TypeError for what aril has no type for."""
    return to_dtype(_NAMES.get(array.dtype.name, array.dtype.name))


def buffer_of(array: NDArray[Any]) -> Buffer:
    """A buffer over `array`'s memory, elements in row-major order. What is written to one is seen in the other.

    A copy is made only where the memory is not contiguous in that order, is read-only, or has the bytes of its elements
    the other way round. Errors: TypeError for elements that aril has no type for.
    """
    kind = dtype_of(array)
    swapped = array.dtype.byteorder == (">" if sys.byteorder == "little" else "<")
    if swapped or not array.flags.c_contiguous or not array.flags.writeable:
        array = np.array(array, array.dtype.newbyteorder("="), order="C")
    return Buffer("NPY", array.size, kind, opaque=array.ctypes.data, external=array)


def array_of(buffer: Buffer) -> NDArray[Any]:
    """The elements of a buffer as a flat array over its memory; types NumPy lacks as unsigned integers of their size.

    Errors: DeviceError for a buffer that was never written.
    """
    fmt = buffer.dtype.fmt
    return np.frombuffer(buffer.as_memoryview(), np.dtype(fmt) if fmt else _UNSIGNED[buffer.dtype.itemsize])
