"""Batches with a clock: when each chunk of each kernel began and ended, and on which participant of the pool.

In: an encoded batch. Out: the times of its chunks. For the time of a run every record calls a small compiled function
instead, which reads the clock around the kernel; order, waits and threads stay as they are.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache

from aril.runtime.elf import LoadedObject, load_object
from aril.runtime.llvm import compile_cached
from aril.runtime.pool_ir import R_FN
from aril.runtime.ring import ChunkTime
from aril.runtime.target import generic_target, host_target

_CALL = struct.Struct("<QQ")  # function and arguments, next to each other in a record (from R_FN on)
_ARGS = struct.Struct("<QQQ")  # of the small function: the kernel, its arguments, its rows
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


@lru_cache(maxsize=1)
def _code() -> LoadedObject:
    return load_object(compile_cached(_TEXT, generic_target(host_target().arch)))


def run_timed(
    memory: memoryview, records: Sequence[int], chunks: Sequence[int], run: Callable[[], None]
) -> list[list[ChunkTime]]:
    """`run()` the batch in `memory`; for each of its records (their bytes from its start) the times of its chunks."""
    timed = _code().symbols["aril_timed"]
    at_times = _ARGS.size * len(records)
    block = ctypes.create_string_buffer(at_times + _ROW.size * sum(chunks))
    base, place = ctypes.addressof(block), at_times
    before = [_CALL.unpack_from(memory, r + R_FN) for r in records]
    try:
        for i, (r, n, call) in enumerate(zip(records, chunks, before, strict=True)):
            _ARGS.pack_into(block, _ARGS.size * i, *call, base + place)
            _CALL.pack_into(memory, r + R_FN, timed, base + _ARGS.size * i)
            place += _ROW.size * n
        run()
    finally:
        for r, call in zip(records, before, strict=True):
            _CALL.pack_into(memory, r + R_FN, *call)
    out, place = [], at_times
    for n in chunks:
        out.append([ChunkTime(*_ROW.unpack_from(block, place + _ROW.size * k)) for k in range(n)])
        place += _ROW.size * n
    return out
