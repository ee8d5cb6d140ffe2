"""NumPy memory as buffers: shared, whatever the alignment; copied only where it must be."""

from __future__ import annotations

import gc
import weakref

import ml_dtypes
import numpy as np
import pytest

from aril.device import Buffer, DeviceError
from aril.dtype import dtypes
from aril.runtime.npy import array_of, buffer_of


def test_buffer_and_array_share_memory():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    buffer = buffer_of(array)
    assert (buffer.device, buffer.size, buffer.dtype) == ("NPY", 6, dtypes.float32)
    array[0, 0] = 9
    assert array_of(buffer)[0] == 9
    array_of(buffer)[5] = -1
    assert array[1, 2] == -1


def test_memory_of_any_alignment_is_taken_as_it_is():
    raw = np.zeros(41, np.uint8)
    array = raw[1:].view(np.float64)
    assert array.ctypes.data % 8
    array[:] = range(5)
    assert buffer_of(array).address == array.ctypes.data
    copy = Buffer("CPU", 5, dtypes.float64).copy_from(buffer_of(array))
    assert np.frombuffer(copy.as_memoryview(), np.float64).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("change", [lambda a: a.T, lambda a: a[:, ::2], lambda a: a.astype(">f4"), lambda a: a[::-1]])
def test_other_orders_are_copied(change):
    array = change(np.arange(12, dtype=np.float32).reshape(3, 4))
    assert np.array_equal(array_of(buffer_of(array)), array.reshape(-1))


def test_read_only_memory_stays_as_it_is():
    array = np.arange(3)
    array.flags.writeable = False
    buffer = buffer_of(array)
    array_of(buffer)[0] = 7
    assert array[0] == 0


def test_the_array_lives_as_long_as_the_buffer():
    array = np.zeros(3)
    alive, buffer = weakref.ref(array), buffer_of(array)
    del array
    gc.collect()
    assert alive() is not None
    del buffer
    gc.collect()
    assert alive() is None


def test_small_formats_of_ml_dtypes_and_unknown_elements():
    assert buffer_of(np.ones(2, ml_dtypes.bfloat16)).dtype is dtypes.bfloat16
    assert buffer_of(np.ones(2, ml_dtypes.float8_e4m3fn)).dtype is dtypes.fp8e4m3
    assert array_of(buffer_of(np.ones(2, ml_dtypes.bfloat16))).tolist() == [0x3F80, 0x3F80]
    with pytest.raises(TypeError, match="complex64"):
        buffer_of(np.ones(2, np.complex64))


def test_fresh_memory_is_numpys_too():
    buffer = Buffer("NPY", 4, dtypes.int16)
    with pytest.raises(DeviceError, match="never written"):
        array_of(buffer)
    buffer.copyin(memoryview(np.arange(4, dtype=np.int16)))
    assert array_of(buffer).tolist() == [0, 1, 2, 3]


def test_tensors_over_arrays():
    from aril import Tensor

    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    t = Tensor.from_numpy(array)
    assert np.array_equal(t.to("CPU").numpy(), array)
    assert np.array_equal((t.to("CPU") * 2).to("NPY").numpy(), array * 2)
