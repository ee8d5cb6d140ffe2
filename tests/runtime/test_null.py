"""The NULL device: no memory, no work, but counts."""

from aril.counters import GlobalCounters
from aril.device import Buffer, CompiledKernel, Device
from aril.dtype import dtypes


def test_huge_buffers_cost_nothing_and_are_counted():
    before = GlobalCounters.device("NULL").mem_used
    buffer = Buffer("NULL", 1 << 50, dtypes.float32).allocate()
    assert GlobalCounters.device("NULL").mem_used - before == 1 << 52
    del buffer
    assert GlobalCounters.device("NULL").mem_used == before


def test_copies_go_nowhere_and_zeros_come_back():
    buffer = Buffer("NULL", 4, dtypes.int32).copyin(memoryview(b"x" * 16))
    assert bytes(buffer.as_memoryview()) == bytes(16)


def test_any_kernel_launches():
    program = Device["NULL"].load(CompiledKernel("k", b"", 1))
    assert program([0], (), 1 << 40) is None
    assert program([0], wait=True) == 0.0
