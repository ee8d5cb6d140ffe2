"""Batches with a clock: when each chunk of each kernel began and ended, and on which participant of the pool.

In: a packed batch (`pool.pack_record`). Out: the times of its chunks. Every record is replaced by one that calls a
small compiled function, which reads the clock around the kernel; order, barriers and threads stay as they are.
"""

from __future__ import annotations

import ctypes
import struct
from functools import lru_cache
from typing import NamedTuple

from aril.device import host_memory
from aril.runtime.elf import LoadedObject, load_object
from aril.runtime.llvm import compile_cached
from aril.runtime.pool import Pool
from aril.runtime.pool_ir import RECORD_BYTES
from aril.runtime.target import generic_target, host_target

_RECORD = struct.Struct("<QQqi")  # function, arguments, chunks, flags
_ROW = struct.Struct("<qqQ")  # begin, end, scratch memory of the participant

# CLOCK_MONOTONIC is the clock of time.perf_counter_ns (clock_gettime(2)). The arguments are the kernel, its own
# arguments, and the table of times, a row a chunk.
_TEXT = """
declare i32 @clock_gettime(i32, ptr)

define internal i64 @now() noinline {
  %spec = alloca [2 x i64], align 8
  %r = call i32 @clock_gettime(i32 1, ptr %spec)
  %s = load i64, ptr %spec, align 8
  %np = getelementptr i8, ptr %spec, i64 8
  %n = load i64, ptr %np, align 8
  %big = mul i64 %s, 1000000000
  %all = add i64 %big, %n
  ret i64 %all
}

define void @aril_timed(ptr %args, i64 %chunk, ptr %scratch) {
  %fn = load ptr, ptr %args, align 8
  %innerp = getelementptr i8, ptr %args, i64 8
  %inner = load ptr, ptr %innerp, align 8
  %timesp = getelementptr i8, ptr %args, i64 16
  %times = load ptr, ptr %timesp, align 8
  %offset = mul i64 %chunk, 24
  %row = getelementptr i8, ptr %times, i64 %offset
  %begin = call i64 @now()
  call void %fn(ptr %inner, i64 %chunk, ptr %scratch)
  %end = call i64 @now()
  store i64 %begin, ptr %row, align 8
  %endp = getelementptr i8, ptr %row, i64 8
  store i64 %end, ptr %endp, align 8
  %whop = getelementptr i8, ptr %row, i64 16
  store ptr %scratch, ptr %whop, align 8
  ret void
}
"""


class ChunkTime(NamedTuple):
    """When a chunk ran, by `time.perf_counter_ns`, and the scratch memory of whoever ran it (one a participant)."""

    begin: int
    end: int
    who: int


@lru_cache(maxsize=1)
def _code() -> LoadedObject:
    return load_object(compile_cached(_TEXT, generic_target(host_target().arch)))


def run_batch_timed(pool: Pool, address: int, count: int) -> list[list[ChunkTime]]:
    """Run the `count` records at `address`; for each record the times of its chunks."""
    timed = _code().symbols["aril_timed"]
    given = host_memory(address, count * RECORD_BYTES)
    rows = [_RECORD.unpack_from(given, i * RECORD_BYTES) for i in range(count)]
    chunks = [row[2] for row in rows]
    at_args = count * RECORD_BYTES
    at_times = at_args + 24 * count
    block = ctypes.create_string_buffer(at_times + 24 * sum(chunks) + 64)
    base = -(-ctypes.addressof(block) // 64) * 64
    memory = host_memory(base, at_times + 24 * sum(chunks))
    place = at_times
    for i, (fn, args, n, flags) in enumerate(rows):
        _RECORD.pack_into(memory, i * RECORD_BYTES, timed, base + at_args + 24 * i, n, flags)
        struct.pack_into("<QQQ", memory, at_args + 24 * i, fn, args, base + place)
        place += 24 * n
    pool.run_batch(base, count)
    out, place = [], at_times
    for n in chunks:
        out.append([ChunkTime(*_ROW.unpack_from(memory, place + 24 * k)) for k in range(n)])
        place += 24 * n
    return out
