"""The native worker pool: threads that start once and walk batches of kernels together with the calling thread.

In comes the address of a batch (`pool_ir.py` says how it looks, `pool_ring.py` writes it); out goes the work, done. A
batch is one native call, without the GIL. Participants take a record's chunks by its atomic counter, from the front or
from the back, and wait only for the records whose memory it needs: they spin a bounded time, giving way to others, then
sleep on a futex. A chunk never knows who runs it, so results do not depend on the number of workers. `pool_ir.py` and
`pool_walk.py` are the loop.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import threading
import time
from functools import lru_cache

from aril.device import host_memory
from aril.runtime import pool_ir, pool_places
from aril.runtime.elf import LoadedObject, external_symbol, load_object
from aril.runtime.llvm import compile_cached
from aril.runtime.memory import map_pages, unmap_pages
from aril.runtime.target import generic_target, host_target, usable_cores

# Longer than a launch from Python takes, shorter than a scheduler's time slice.
SPIN_S = 60e-6
# Longer than waits among calls that follow each other: for another's chunk, for Python. To sleep and then to be woken
# costs caller and worker tens of microseconds each, more on a virtual machine. Such a wait gives way to whatever else
# wants the CPU, and a worker that waits in vain stops doing it (`pool_ir.MISSES`).
LINGER_S = 1e-3
MAX_CHUNKS = (1 << 31) - 1  # chunks of a kernel


@lru_cache(maxsize=1)
def _code() -> LoadedObject:
    # The oldest instruction set will do: nothing here computes. Kept for good, as threads run in it.
    arch = host_target().arch
    return load_object(compile_cached(pool_ir.pool_ir(arch), generic_target(arch)))


def copy_function() -> int:
    """The address of the kernel that copies (`pool_ir.COPY_BYTES` a chunk). Its arguments: to, from, bytes."""
    return _code().symbols["aril_pool_copy"]


class Pool:
    """`threads` participants: the calling thread and `threads - 1` workers. One batch runs at a time."""

    def __init__(self, threads: int, scratch_bytes: int = 4096) -> None:
        self.threads = threads
        self.lock = threading.Lock()
        symbols = _code().symbols
        # Not memory of a Python object: the interpreter would give that back at its end, under the workers' feet.
        self._size = pool_ir.SCRATCH + 12 * threads
        self._base = map_pages(self._size)
        self._memory = host_memory(self._base, self._size)
        self._scratch_bytes = 0
        self._scratch = (0, 0)
        self._handles: list[int] = []
        self.submission = {"ring_run": symbols["aril_pool_run"], "ring_pool": self._base}  # what calls it
        one = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64)
        self._run_one = one(symbols["aril_pool_run_one"])
        self.ensure_scratch(scratch_bytes)
        crowded = threads > len(_affinity())
        for at, seconds in ((pool_ir.SPIN, SPIN_S), (pool_ir.LINGER, LINGER_S)):
            self._memory[at : at + 4] = struct.pack("<i", 0 if crowded else _pauses(seconds))
        self._place(set() if crowded else _affinity())
        self._start(symbols["aril_pool_worker"])

    def _start(self, worker: int) -> None:
        create = ctypes.CDLL(None).pthread_create
        create.argtypes = (ctypes.POINTER(ctypes.c_void_p), *[ctypes.c_void_p] * 3)
        selves = (ctypes.c_int64 * (2 * self.threads))()
        self._selves = selves
        # Python's signal handlers run in its own threads; faults stay with the thread that made them.
        faults = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.valid_signals()) - faults)
        try:
            for index in range(1, self.threads):
                selves[2 * index], selves[2 * index + 1] = self._base, index
                handle = ctypes.c_void_p()
                if create(ctypes.byref(handle), None, worker, ctypes.addressof(selves) + 16 * index) != 0:
                    break  # the system allows no more threads: fewer share the work, with the same results
                self._handles.append(handle.value or 0)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        at = pool_ir.WORKERS
        self._memory[at : at + 4] = struct.pack("<i", len(self._handles))

    def _place(self, cpus: set[int]) -> None:
        """Workers may run on `cpus`, but not on the caller's (`pool_places`); none: wherever the system puts them."""
        tids = self._base + pool_ir.SCRATCH + 8 * self.threads
        bits = sum(1 << cpu for cpu in cpus if cpu < 8 * pool_places.ALLOWED_BYTES)
        table = struct.pack("<iiQ", -1, 0, tids) + bits.to_bytes(pool_places.ALLOWED_BYTES, "little")
        self._memory[pool_places.CALLER_CPU : pool_places.PLACES_END] = table

    def ensure_scratch(self, nbytes: int) -> None:
        """Make every participant's scratch area at least `nbytes`; 64-byte aligned."""
        if nbytes <= self._scratch_bytes:
            return
        with self.lock:  # no batch runs, so nobody holds the old area
            if nbytes <= self._scratch_bytes:
                return
            # Some lines more than a power of two apart: areas at equal distances would share cache sets.
            each = -(-nbytes // 4096) * 4096 + 64 * 5
            base = map_pages(each * self.threads)
            if self._scratch[0]:
                unmap_pages(*self._scratch)
            self._scratch = (base, each * self.threads)
            table = struct.pack(f"<{self.threads}Q", *(base + each * index for index in range(self.threads)))
            self._memory[pool_ir.SCRATCH : pool_ir.SCRATCH + len(table)] = table
            self._scratch_bytes = nbytes

    def run_one(self, fn: int, args: bytes, chunks: int) -> None:
        """Run one kernel; `args` are its packed slots."""
        with self.lock:
            self._run_one(self._base, fn, args, chunks)

    def close(self) -> None:
        """End the workers. The pool runs batches on the calling thread from then on."""
        with self.lock:
            self._memory[pool_ir.WORKERS : pool_ir.WORKERS + 4] = bytes(4)
            self._memory[pool_ir.QUIT : pool_ir.QUIT + 4] = struct.pack("<i", 1)
            generation = ctypes.c_int32.from_address(self._base + pool_ir.GENERATION)
            generation.value += 1
            wake = ctypes.CFUNCTYPE(ctypes.c_long, *[ctypes.c_long] * 4)(external_symbol("syscall"))
            number = 202 if host_target().arch == "x86_64" else 98
            wake(number, self._base + pool_ir.GENERATION, 129, (1 << 31) - 1)
            join = ctypes.CDLL(None).pthread_join
            join.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
            for handle in self._handles:
                join(handle, None)
            self._handles.clear()


def _affinity() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


@lru_cache(maxsize=4)
def _pauses(seconds: float) -> int:
    """How many pause instructions take `seconds`: between 10 and 140 cycles each, depending on the CPU."""
    pause = ctypes.CFUNCTYPE(None, ctypes.c_int64)(_code().symbols["aril_pool_pause"])
    pause(10)
    best = 1.0
    for _ in range(3):
        start = time.perf_counter()
        pause(200)
        best = min(best, time.perf_counter() - start)
    return max(1, int(200 * seconds / best))


_pools: dict[int, Pool] = {}
_lock = threading.Lock()


def shared_pool() -> Pool:
    """The process's pool, of as many threads as are usable now; all CPU devices share it."""
    threads = usable_cores()
    pool = _pools.get(threads)
    if pool is None:
        with _lock:
            pool = _pools.get(threads)
            if pool is None:
                pool = _pools[threads] = Pool(threads)
    return pool


def _forget() -> None:
    """In a child of fork no worker lives, and a lock may have been held by a thread that is gone."""
    global _lock
    _lock = threading.Lock()
    _pools.clear()


os.register_at_fork(after_in_child=_forget)
