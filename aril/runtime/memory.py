"""Memory of the CPU device: aligned blocks, kept for reuse when freed. In come sizes; out go addresses.

The first touch of fresh memory costs more than most kernels (a page fault every 4 KiB), so a training step should find
the blocks of the step before: sizes are rounded to classes, and freed blocks wait in lists, the latest freed first.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from functools import lru_cache

from aril.config import ALLOC_CACHE_LIMIT
from aril.device import Allocator
from aril.forks import renewed_in_child
from aril.runtime.libc import libc
from aril.runtime.target import read_line

ALIGN = 64
SLAB = 1 << 20  # small blocks are cut from slabs of this size
SMALL = 64 << 10  # and these are small
HUGE = 2 << 20  # from here on, pages of 2 MiB are worth asking for
SIZES = 8192  # that are remembered with their class
CHECKED = 256 << 20  # from here on, the system is asked first whether it has that much: it promises more than it has
_MADV_HUGEPAGE = 14


@lru_cache(maxsize=8192)
def size_class(nbytes: int) -> int:
    """The size of block that `nbytes` is served with: steps of a quarter (small) or an eighth of a power of two."""
    if nbytes <= ALIGN:
        return ALIGN
    steps = 4 if nbytes <= SMALL else 8
    unit = max(ALIGN if nbytes <= SMALL else mmap.PAGESIZE, (1 << ((nbytes - 1).bit_length() - 1)) // steps)
    return -(-nbytes // unit) * unit


class _Kept(list[tuple[int, int]]):
    """Freed blocks of one size class: (when, address), the latest last."""

    __slots__ = ("size",)

    def __init__(self, size: int) -> None:
        self.size = size


class CPUAllocator(Allocator):
    """Process memory by size class, with a cache of freed blocks up to `limit` bytes (ALLOC_CACHE_LIMIT)."""

    def __init__(self, device: str, limit: int | None = None) -> None:
        super().__init__(device)
        self._limit = limit
        # Blocks by class, with the time they were freed: the oldest go first when there are too many.
        self._free_blocks: dict[int, _Kept] = {}
        self._kept_for: dict[int, _Kept] = {}  # the same by the bytes asked for
        self._clock = 0
        self._slab = self._slab_end = self._colour = 0
        self.cached = 0  # bytes waiting for reuse
        self.mapped = 0  # bytes held from the system
        # A finalizer may free a buffer while this thread allocates one: the lock must let it in.
        self._lock = renewed_in_child(self, "_lock")

    @property
    def limit(self) -> int:
        return ALLOC_CACHE_LIMIT.value if self._limit is None else self._limit

    def _alloc(self, nbytes: int) -> int:
        with self._lock:
            blocks = self._kept_for.get(nbytes)
            if blocks is None:
                blocks = self._keep(nbytes)
            size = blocks.size
            if blocks:
                self.cached -= size
                return blocks.pop()[1]
            return self._carve(size) if size <= SMALL else self._map(size)

    def _free(self, opaque: int, nbytes: int) -> None:
        with self._lock:
            self._clock += 1
            blocks = self._kept_for.get(nbytes)
            if blocks is None:
                blocks = self._keep(nbytes)
            blocks.append((self._clock, opaque))
            self.cached = cached = self.cached + blocks.size
            if blocks.size > SMALL and cached > self.limit:  # small ones cannot be given back
                self._shrink(self.limit)

    def _keep(self, nbytes: int) -> _Kept:
        """Where blocks wait that serve `nbytes`."""
        size = size_class(nbytes)
        if len(self._kept_for) >= SIZES:
            self._kept_for.clear()
        self._kept_for[nbytes] = blocks = self._free_blocks.setdefault(size, _Kept(size))
        return blocks

    def _release(self) -> int:
        with self._lock:
            before = self.mapped
            self._shrink(0)
            return before - self.mapped

    def _carve(self, size: int) -> int:
        if self._slab + size > self._slab_end:
            self._slab = map_pages(SLAB)
            self._slab_end = self._slab + SLAB
            self.mapped += SLAB
        self._slab += size
        return self._slab - size

    def _map(self, size: int) -> int:
        if size >= CHECKED and size > available_memory():
            self._shrink(0)
            if size > available_memory():
                raise MemoryError(f"the system has {available_memory()} bytes left")
        # Blocks that all start a page would compete for the same cache sets, and loads would look like stores of
        # another block at the same place in its page (4 KiB aliasing).
        self._colour = (self._colour + 5) % 64
        address = map_pages(size + mmap.PAGESIZE) + self._colour * ALIGN
        self.mapped += size
        return address

    def _shrink(self, limit: int) -> None:
        """Unmap large blocks, the ones freed longest ago first, until at most `limit` bytes wait."""
        while self.cached > limit:
            lists = [(blocks[0][0], size) for size, blocks in self._free_blocks.items() if blocks and size > SMALL]
            if not lists:
                return  # slabs stay
            size = min(lists)[1]
            address = self._free_blocks[size].pop(0)[1]
            unmap_pages(address, size + mmap.PAGESIZE)
            self.cached -= size
            self.mapped -= size


def map_pages(nbytes: int) -> int:
    """The address of fresh zeroed pages; from 2 MiB on at a multiple of that, and in huge pages where the system can.

    MemoryError when the system refuses.
    """
    spare = HUGE if nbytes >= HUGE else 0
    length = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    protection, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address = libc().mmap(None, length + spare, protection, flags, -1, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        raise MemoryError(f"mmap of {nbytes} bytes: {os.strerror(ctypes.get_errno())}")
    if not spare:
        return int(address)
    start = -(-address // HUGE) * HUGE
    for at, size in ((address, start - address), (start + length, address + spare - start)):
        if size:
            libc().munmap(at, size)
    libc().madvise(start, length, _MADV_HUGEPAGE)  # a wish: an error changes nothing
    return int(start)


def unmap_pages(address: int, nbytes: int) -> None:
    """Give back the pages of `map_pages(nbytes)`."""
    libc().munmap(address & -mmap.PAGESIZE, -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE)


def available_memory() -> int:
    """Bytes that can still be used: the least of the system's estimate and what the cgroup leaves."""
    left = [1 << 62]
    try:
        with open("/proc/meminfo") as file:
            left += [int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:")]
    except OSError:
        pass
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        with contextlib.suppress(OSError, ValueError):  # no such group, or "max"
            left.append(int(read_line(limit)) - int(read_line(used)))
    return max(0, min(left))
