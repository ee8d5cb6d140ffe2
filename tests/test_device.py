"""Devices by name, buffers and counters."""

import gc
import sys
import threading
import types
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aril.config import Context
from aril.counters import GlobalCounters
from aril.device import Buffer, CompiledKernel, Device, DeviceError, DeviceSpec, canonical, parse_spec
from aril.dtype import dtypes


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("cpu", "CPU"),
        ("CPU:0", "CPU"),
        ("Cpu:01", "CPU:1"),
        ("CUDA:12", "CUDA:12"),
        ("disk:/Tmp/x.Bin", "DISK:/Tmp/x.Bin"),
    ],
)
def test_each_device_has_one_spelling(written, name):
    assert canonical(written) == name


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("CPU", DeviceSpec("CPU")),
        ("cpu:llvm", DeviceSpec("CPU", "LLVM")),
        ("CPU:1:LLVM", DeviceSpec("CPU:1", "LLVM")),
        ("USB+AMD:LLVM:gfx1100", DeviceSpec("AMD", "LLVM", "gfx1100", "USB")),
    ],
)
def test_dev_names_interface_device_renderer_and_architecture(text, spec):
    assert parse_spec(text) == spec


@pytest.mark.parametrize("text", ["CPU:", ":LLVM", "+CPU", "CPU:1:LLVM:arch:more", "CPU::LLVM"])
def test_a_malformed_dev_is_an_error(text):
    with pytest.raises(DeviceError, match="DEV="):
        parse_spec(text)


def test_a_device_is_opened_once_whoever_asks():
    found = []
    threads = [threading.Thread(target=lambda: found.append(Device["CPU:7"])) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(set(map(id, found))) == 1
    assert Device["cpu:7"] is found[0]


def test_an_unknown_device_says_what_there_is():
    with pytest.raises(DeviceError, match=r"'CUP'.*did you mean CPU\?.*Usable: .*CPU"):
        Device["cup"]
    with pytest.raises(DeviceError, match="number"):
        Device["CPU:one"]


def test_dev_chooses_the_default_in_its_thread():
    with Context(DEV=""):
        assert Device.DEFAULT == "CPU"
    with Context(DEV="null:1"):
        assert Device.DEFAULT == "NULL:1"
    with Context(DEV="CPU:LLVM"):
        assert Device["CPU"].renderer_name == "LLVM"
    with Context(DEV="CPU:FORTRAN"), pytest.raises(DeviceError, match="no renderer FORTRAN"):
        _ = Device["CPU"].renderer_name


def test_a_buffer_is_allocated_at_first_use_and_given_back():
    gc.collect()  # what earlier tests left in cycles
    before = GlobalCounters.device("CPU").mem_used
    buffer = Buffer("CPU", 1000, dtypes.float32)
    assert not buffer.is_allocated and buffer.nbytes == 4000
    assert buffer.address % 64 == 0
    assert GlobalCounters.device("CPU").mem_used == before + 4000
    del buffer
    gc.collect()
    assert GlobalCounters.device("CPU").mem_used == before


@pytest.mark.parametrize("device", ["CPU", "CPU:1"])
def test_what_is_copied_in_comes_out(device):
    data = np.arange(100, dtype=np.float32)
    buffer = Buffer(device, 100, dtypes.float32).copyin(memoryview(data))
    out = np.zeros(100, np.float32)
    buffer.copyout(memoryview(out))
    np.testing.assert_array_equal(out, data)
    other = Buffer("CPU:2", 100, dtypes.float32).copy_from(buffer)
    np.testing.assert_array_equal(np.frombuffer(other.as_memoryview(), np.float32), data)


def test_empty_buffers_work():
    buffer = Buffer("CPU", 0, dtypes.float32).copyin(memoryview(b""))
    assert buffer.copyout(memoryview(bytearray())).nbytes == 0
    assert bytes(buffer.as_memoryview()) == b""
    buffer.copyin(memoryview(np.zeros((0, 3), np.float32)))


def test_wrong_sizes_and_shapes_of_memory_are_errors():
    buffer = Buffer("CPU", 10, dtypes.float32).allocate()
    with pytest.raises(ValueError, match="36 bytes does not match the buffer of 40 bytes"):
        buffer.copyin(memoryview(bytes(36)))
    with pytest.raises(ValueError, match="non-contiguous"):
        buffer.copyin(memoryview(np.zeros(20, np.float32))[::2])
    with pytest.raises(DeviceError, match="never written"):
        Buffer("CPU", 10, dtypes.float32).copyout(memoryview(bytearray(40)))


def test_a_memoryview_shares_the_memory_and_keeps_it_alive():
    buffer = Buffer("CPU", 4, dtypes.int32).copyin(memoryview(np.arange(4, dtype=np.int32)))
    array = np.frombuffer(buffer.as_memoryview(), np.int32)
    address = buffer.address
    del buffer
    gc.collect()
    assert Buffer("CPU", 4, dtypes.int32).address != address
    array[0] = 7
    assert array.tolist() == [7, 1, 2, 3]


@given(st.integers(0, 100), st.integers(0, 100))
def test_a_view_shares_memory_or_is_refused(start, size):
    base = Buffer("CPU", 100, dtypes.uint8).copyin(memoryview(bytes(range(100))))
    if start + size > 100:
        with pytest.raises(ValueError, match="does not fit"):
            base.view(size, dtypes.uint8, start)
        return
    view = base.view(size, dtypes.uint8, start)
    assert bytes(view.as_memoryview()) == bytes(range(start, start + size))
    if size > 1:
        inner = view.view(size - 1, dtypes.uint8, 1)
        assert inner.address == base.address + start + 1 and inner.base is base


def test_a_view_keeps_its_base_and_allocates_it():
    view = Buffer("CPU", 100, dtypes.float32).view(10, dtypes.float32, 40)
    assert not view.is_allocated
    view.copyin(memoryview(bytes(40)))
    assert view.is_allocated and view.base.is_allocated


def test_external_memory_is_used_in_place_and_not_freed():
    array = np.arange(5, dtype=np.int64)
    before = GlobalCounters.mem_used
    buffer = Buffer("CPU", 5, dtypes.int64, opaque=array.ctypes.data, external=array)
    np.frombuffer(buffer.as_memoryview(), np.int64)[0] = 9
    assert array[0] == 9
    del buffer
    assert GlobalCounters.mem_used == before


def test_counters_count_by_device_and_reset():
    GlobalCounters.reset()
    GlobalCounters.record("CPU", ops=10, nbytes=20, time_s=0.5)
    GlobalCounters.record("NULL", ops=1, nbytes=2, kernels=3)
    assert (GlobalCounters.ops, GlobalCounters.bytes, GlobalCounters.kernels) == (11, 22, 4)
    assert GlobalCounters.time_s == 0.5
    assert GlobalCounters.per_device["CPU"].ops == 10
    kept = Buffer("CPU", 1000, dtypes.uint8).allocate()
    Buffer("CPU", 5000, dtypes.uint8).allocate()
    assert GlobalCounters.mem_peak >= GlobalCounters.mem_used + 5000
    GlobalCounters.reset()
    assert (GlobalCounters.ops, GlobalCounters.kernels, GlobalCounters.per_device["NULL"].kernels) == (0, 0, 0)
    assert GlobalCounters.mem_peak == GlobalCounters.mem_used >= kept.nbytes


def test_the_device_of_the_documentation_works(monkeypatch):
    text = (Path(__file__).parents[1] / "docs" / "adding-a-device.md").read_text()
    module = types.ModuleType("toy")
    exec(text.partition("```python\n")[2].partition("```")[0], module.__dict__)
    monkeypatch.setitem(sys.modules, "toy", module)
    monkeypatch.setitem(Device._modules, "TOY", "toy")
    buffer = Buffer("TOY:1", 8, dtypes.uint8).copyin(memoryview(b"abcdefgh"))
    Device["toy:1"].load(CompiledKernel("f", b"fill", 1, 1))([buffer.view(4, dtypes.uint8, 4).opaque], [0x41])
    assert bytes(buffer.as_memoryview()) == b"abcdAAAA"
    assert bytes(Buffer("CPU", 8, dtypes.uint8).copy_from(buffer).as_memoryview()) == b"abcdAAAA"
    monkeypatch.delitem(Device.opened, "TOY:1")
