"""The CPU allocator: alignment, reuse, the limit, and running out."""

import ctypes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aril.config import Context
from aril.device import Buffer, Device, OutOfMemory
from aril.dtype import dtypes
from aril.runtime import memory
from aril.runtime.memory import CPUAllocator, size_class


@given(st.integers(0, 1 << 45))
def test_a_size_class_fits_and_wastes_little(nbytes):
    size = size_class(nbytes)
    assert size >= max(nbytes, 1) and size % 64 == 0
    assert size_class(size) == size
    assert size <= max(64, nbytes * 1.25 + 64)


@given(st.integers(1, 1 << 30), st.integers(1, 1 << 30))
def test_size_classes_are_monotonic(a, b):
    assert (size_class(a) <= size_class(b)) if a <= b else (size_class(a) >= size_class(b))


@pytest.mark.parametrize("nbytes", [0, 1, 64, 1000, 65536, 65537, 1 << 20, (2 << 20) - 1, 2 << 20, 5_000_000])
def test_blocks_are_aligned_writable_and_apart(nbytes):
    allocator = CPUAllocator("CPU")
    blocks = [allocator._alloc(nbytes) for _ in range(3)]
    for number, block in enumerate(blocks):
        assert block % 64 == 0
        ctypes.memset(block, number + 1, nbytes)
    for number, block in enumerate(blocks):
        assert ctypes.string_at(block, nbytes) == bytes([number + 1]) * nbytes
        allocator._free(block, nbytes)
    allocator._release()


def test_a_freed_block_is_used_again_for_a_similar_size():
    allocator = CPUAllocator("CPU")
    for nbytes, similar in ((100, 120), (1_000_000, 999_000), (50_000_000, 49_000_000)):
        block = allocator._alloc(nbytes)
        allocator._free(block, nbytes)
        assert allocator._alloc(similar) == block


def test_the_limit_bounds_what_waits_and_the_oldest_goes_first():
    allocator = CPUAllocator("CPU", limit=5_000_000)
    blocks = [allocator._alloc(2_000_000) for _ in range(4)]
    for block in blocks:
        allocator._free(block, 2_000_000)
    assert allocator.cached <= 5_000_000
    assert [allocator._alloc(2_000_000) for _ in range(2)] == [blocks[3], blocks[2]]
    allocator = CPUAllocator("CPU")
    with Context(ALLOC_CACHE_LIMIT=0):
        allocator._free(allocator._alloc(2_000_000), 2_000_000)
    assert allocator.cached == 0 and allocator.mapped == 0


def test_release_gives_back_all_that_waits():
    allocator = CPUAllocator("CPU")
    size = size_class(3_000_000)
    allocator._free(allocator._alloc(3_000_000), 3_000_000)
    assert allocator._release() == size
    assert allocator.cached == allocator.mapped == 0


def test_running_out_says_what_was_asked_and_who_holds_what():
    held = Buffer("CPU", 12_345_678, dtypes.float32).allocate()
    with pytest.raises(OutOfMemory, match=r"1\d\d\d TiB") as caught:
        Buffer("CPU", 1 << 48, dtypes.float32).allocate()
    assert f"{held.size} x float32" in str(caught.value)


def test_memory_kept_for_reuse_is_given_back_before_giving_up(monkeypatch):
    allocator = Device["CPU"].allocator
    allocator.free(allocator.alloc(300 << 20), 300 << 20)
    available = memory.available_memory
    monkeypatch.setattr(memory, "available_memory", lambda: 0 if allocator.cached > 200 << 20 else available())
    block = allocator.alloc(700 << 20)
    assert allocator.cached <= 200 << 20
    allocator.free(block, 700 << 20)
    allocator._release()


def test_pages_from_two_mebibytes_on_are_aligned_to_them():
    assert memory.map_pages(memory.HUGE) % memory.HUGE == 0
