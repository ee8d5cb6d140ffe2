"""The CPU device: launches, their errors, and buffers kernels can work on."""

import threading

import numpy as np
import pytest

from aril.device import Buffer, CompiledKernel, Device, DeviceError
from aril.dtype import dtypes
from aril.runtime.target import usable_cores
from tests.runtime.kernels import ADD, SCRATCH, TOTAL, kernel


@pytest.fixture(scope="module")
def cpu():
    return Device["CPU"]


def numbers(buffer):
    return np.frombuffer(buffer.as_memoryview(), dtype=np.int64)


@pytest.mark.parametrize("chunks", [0, 1, 2, 100])
def test_a_kernel_runs_once_a_chunk(cpu, chunks):
    add = cpu.load(kernel(ADD, "add", 1, 1))
    data = Buffer("CPU", 100, dtypes.int64).copyin(memoryview(bytes(800)))
    for _ in range(3):
        assert add([data.address], [-7], chunks) is None
    assert numbers(data).tolist() == [-21] * chunks + [0] * (100 - chunks)


def test_the_kernels_own_launch_count_is_the_default(cpu):
    add = cpu.load(kernel(ADD, "add", 1, 1, chunks=5))
    data = Buffer("CPU", 8, dtypes.int64).copyin(memoryview(bytes(64)))
    add([data.opaque], [1])
    assert numbers(data).tolist() == [1] * 5 + [0] * 3


def test_waiting_gives_the_time(cpu):
    add = cpu.load(kernel(ADD, "add", 1, 1))
    data = Buffer("CPU", 8, dtypes.int64).copyin(memoryview(bytes(64)))
    assert 0 < add([data.opaque], [1], 8, wait=True) < 10


@pytest.mark.parametrize("chunks", [1, 50])
def test_scratch_is_there_and_aligned(cpu, chunks):
    program = cpu.load(kernel(SCRATCH, "scratch", 1, scratch_bytes=8192))
    out = Buffer("CPU", chunks, dtypes.int64).allocate()
    program([out.opaque], (), chunks)
    assert numbers(out).tolist() == [1024 * i if chunks > 1 else 0 for i in range(chunks)]


def test_wrong_arguments_are_an_error_that_counts_them(cpu):
    total = cpu.load(kernel(TOTAL, "total", 2, 1))
    for buffers, values in (([0], [1]), ([0, 0], []), ([0, 0, 0], [1]), ([0, 0], [1 << 63]), ([0, -1], [1])):
        with pytest.raises(TypeError, match=r"'total' takes 2 buffer addresses and 1"):
            total(buffers, values)
    with pytest.raises(ValueError, match="chunks"):
        total([0, 0], [0], -1)


def test_a_damaged_binary_is_an_error_that_names_the_kernel(cpu):
    with pytest.raises(DeviceError, match="'broken'"):
        cpu.load(CompiledKernel("broken", b"not an object", 0))
    good = kernel(ADD, "add", 1, 1)
    with pytest.raises(DeviceError, match="'other'"):
        cpu.load(CompiledKernel("other", good.binary, 1, 1))


def test_virtual_devices_run_the_same_kernels():
    data = Buffer("CPU:3", 8, dtypes.int64).copyin(memoryview(bytes(64)))
    assert Device["CPU:3"] is not Device["CPU"]
    Device["cpu:3"].load(kernel(ADD, "add", 1, 1))([data.opaque], [1], 8)
    assert numbers(data).tolist() == [1] * 8


def test_python_threads_share_a_program(cpu):
    add = cpu.load(kernel(ADD, "add", 1, 1))
    buffers = [Buffer("CPU", 16, dtypes.int64).copyin(memoryview(bytes(128))) for _ in range(4)]

    def launch(index):
        for turn in range(200):
            add([buffers[index].opaque], [index], 1 + 15 * (turn % 2))

    threads = [threading.Thread(target=launch, args=(index,)) for index in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    for index, buffer in enumerate(buffers):
        assert numbers(buffer).tolist() == [200 * index] + [100 * index] * 15


def test_the_target_describes_the_machine(cpu):
    target = cpu.target
    assert target.vector_bytes in (16, 32, 64) and target.vector_registers in (16, 32)
    assert target.cores == usable_cores() >= 1
    assert target.l1 <= target.l2
