"""Batches for the worker pool: records in queues, their waits, and the call that runs them. See `pool_ir.py`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import lru_cache

from aril.dtype import dtypes
from aril.ops import Ops
from aril.runtime import pool_ir
from aril.runtime.pool import copy_function, shared_pool
from aril.runtime.ring import WORD, ChunkTime, Command, Layout, Ring
from aril.runtime.timed import run_timed
from aril.uop.node import UOp

_RECORD = pool_ir.RECORD_BYTES // WORD
_CHUNKS, _LEFT = pool_ir.R_CHUNKS // WORD, pool_ir.R_LEFT // WORD


class PoolRing(Ring):
    """The CPU's encoding: the queues of all CPU devices are one batch, which the pool's participants walk together.

    A record waits until nothing is left of the records it names: the count of chunks left is a record's signal.
    """

    name = "pool"

    def layout(self, queues: Sequence[tuple[int, bool]], waits: Sequence[int]) -> Layout:
        names = sorted(set(queues))
        start = -(-(pool_ir.QUEUES + pool_ir.QUEUE_BYTES * len(names)) // pool_ir.RECORD_BYTES) * _RECORD
        pointers, constants = [], [(0, len(names))]
        at, row, free = start, pool_ir.QUEUES // WORD, {}
        for name in names:
            free[name] = at
            pointers.append((row + pool_ir.Q_FIRST // WORD, at))
            at += _RECORD * queues.count(name)
            pointers.append((row + pool_ir.Q_END // WORD, at))
            constants.append((row + pool_ir.Q_HOME // WORD, name[0]))
            row += pool_ir.QUEUE_BYTES // WORD
        commands = []
        for name in queues:
            commands.append(free[name])
            free[name] += _RECORD
        places = list(range(at, at + sum(waits)))
        return Layout(commands, places, pointers, constants, at + len(places))

    def launch(self, command: Command) -> dict[int, UOp]:
        return {
            pool_ir.R_FN // WORD: command.function,
            pool_ir.R_ARGS // WORD: command.arguments,
            _CHUNKS: command.chunks,
            pool_ir.R_WAITS // WORD: command.first_wait,
            pool_ir.R_WAIT_COUNT // WORD: command.waits,
        }

    def copy(self, command: Command) -> dict[int, UOp]:
        return self.launch(command)  # a copy is a kernel like others here

    def wait(self, signal: UOp) -> dict[int, UOp]:
        return {0: signal}

    def signal(self, command: UOp) -> UOp:
        return command + UOp.const(dtypes.int64, pool_ir.R_LEFT)

    def chunks_word(self) -> int:
        return _CHUNKS

    def rearm(self, chunks: UOp) -> dict[int, UOp]:
        one = UOp.const(dtypes.int64, 1)
        return {pool_ir.R_NEXT // WORD: UOp.const(dtypes.int64, 0), _LEFT: UOp(Ops.MAX, (chunks, one))}

    def submit(self, batch: UOp) -> UOp:
        address = UOp.variable("ring_run", 0, 1 << 62, dtypes.int64)
        pool = UOp.variable("ring_pool", 0, 1 << 62, dtypes.int64)
        text = (
            "%ring.run = inttoptr i64 {0} to ptr\n%ring.pool = inttoptr i64 {1} to ptr\n"
            "call void %ring.run(ptr %ring.pool, ptr {2})"
        )
        return UOp(Ops.CUSTOM, (address, pool, batch), (text, dtypes.void, "llvm"), dtypes.void)

    def submission(self, scratch_bytes: int) -> tuple[threading.Lock, dict[str, int]]:
        pool = shared_pool()
        if scratch_bytes:
            pool.ensure_scratch(scratch_bytes)
        return pool.lock, pool.submission

    def timed(
        self, memory: memoryview, commands: Sequence[int], chunks: Sequence[int], run: Callable[[], None]
    ) -> list[list[ChunkTime]]:
        return run_timed(memory, [WORD * c for c in commands], chunks, run)

    def copy_function(self, nbytes: int) -> tuple[int, int]:
        return copy_function(), -(-nbytes // pool_ir.COPY_BYTES)


@lru_cache(maxsize=1)
def pool_ring() -> PoolRing:
    """The ring of all CPU devices."""
    return PoolRing()
