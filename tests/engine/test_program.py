"""The seam between batches and devices: a ring of another kind, with packets in streams as GPUs have, runs them too."""

from __future__ import annotations

import ctypes
import random
import struct
import threading
from typing import Any

import numpy as np
import pytest

from aril import Context, Tensor, Variable, jit
from aril.dtype import dtypes
from aril.engine.program import Slot, Step, Submission, _kernel, _load, encoding, replaying
from aril.ops import Ops
from aril.runtime.cpu import CPUDevice
from aril.runtime.pool_ring import pool_ring
from aril.runtime.ring import WORD, Command, Layout, Ring
from aril.uop import UOp
from aril.uop.verify import check

WAIT, LAUNCH, COPY, END = 1, 2, 3, 0
WAIT_WORDS, LAUNCH_WORDS, SIGNAL = 2, 5, 4


class StreamRing(Ring):
    """A stream of packets a queue: waits, each before its launch; copies are packets of their own; signals are words.

    `run` stands for the device: at random it goes on in one of the streams that can go on.
    """

    name = "stream"

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.log: list[int] = []
        self.kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        self.function = self.kind(self.run)
        self.given = {"stream_run": ctypes.cast(self.function, ctypes.c_void_p).value or 0}

    def layout(self, queues, waits) -> Layout:
        names = sorted(set(queues))
        at, commands, places, pointers = 1 + len(names), [0] * len(queues), [], []
        of: list[list[int]] = [[] for _ in queues]
        constants = [(0, len(names))]
        for k, name in enumerate(names):
            pointers.append((1 + k, at))
            for i, q in enumerate(queues):
                if q == name:
                    of[i] = [at + WAIT_WORDS * w for w in range(waits[i])]
                    commands[i] = at + WAIT_WORDS * waits[i]
                    at = commands[i] + LAUNCH_WORDS
            constants.append((at, END))
            at += 1
        for mine in of:
            places += mine
        return Layout(commands, places, pointers, constants, at)

    def launch(self, command: Command) -> dict[int, UOp]:
        return {0: _number(LAUNCH), 1: command.function, 2: command.arguments, 3: command.chunks}

    def copy(self, command: Command) -> dict[int, UOp]:
        return {0: _number(COPY), 2: command.arguments}

    def wait(self, signal: UOp) -> dict[int, UOp]:
        return {0: _number(WAIT), 1: signal}

    def signal(self, command: UOp) -> UOp:
        return command + SIGNAL * WORD

    def chunks_word(self) -> int:
        return 3

    def rearm(self, chunks: UOp) -> dict[int, UOp]:
        return {SIGNAL: _number(0)}

    def submit(self, batch: UOp) -> UOp:
        text = "%stream.run = inttoptr i64 {0} to ptr\ncall void %stream.run(ptr {1})"
        function = UOp.variable("stream_run", 0, 1 << 62, dtypes.int64)
        return UOp(Ops.CUSTOM, (function, batch), (text, dtypes.void, "llvm"), dtypes.void)

    def submission(self, scratch_bytes: int) -> tuple[threading.Lock, dict[str, int]]:
        self.scratch = ctypes.create_string_buffer(scratch_bytes + 64)
        return self.lock, self.given

    def run(self, batch: int) -> None:
        def word(address: int) -> Any:
            return ctypes.c_int64.from_address(address)

        streams = [word(batch + WORD * (1 + k)).value for k in range(word(batch).value)]
        rng, self.log = random.Random(len(self.log)), []
        kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
        scratch = -(-ctypes.addressof(self.scratch) // 64) * 64
        while streams:
            ready = [s for s in streams if word(s).value != WAIT or word(word(s + WORD).value).value]
            assert ready, "every stream waits for another"
            at = rng.choice(ready)
            streams.remove(at)
            what, next_at = word(at).value, at + WORD * LAUNCH_WORDS
            if what == WAIT:
                streams.append(at + WORD * WAIT_WORDS)
                continue
            if what == END:
                continue
            arguments = word(at + 2 * WORD).value
            if what == LAUNCH:
                for chunk in range(word(at + 3 * WORD).value):
                    kernel(word(at + WORD).value)(arguments, chunk, scratch)
            else:
                ctypes.memmove(*[word(arguments + WORD * k).value for k in range(3)])
            word(at + SIGNAL * WORD).value = 1
            self.log.append(what)
            streams.append(next_at)


def _number(n: int) -> UOp:
    return UOp.const(dtypes.int64, n)


@pytest.fixture
def stream(monkeypatch):
    ring = StreamRing()
    monkeypatch.setattr(CPUDevice, "ring", ring)
    return ring


@pytest.mark.parametrize("ring", [pool_ring(), StreamRing()])
def test_the_programs_are_kernels_like_others(ring):
    v = UOp.variable("0", 1, 100)
    for sink in (encoding(ring), replaying(ring, ()), replaying(ring, ((v + 15) // 16,))):
        check(sink, "kernel")
    assert encoding(ring) is encoding(ring)  # one for all batches


def test_kernels_copies_waits_and_variables_on_another_ring(stream):
    n = Variable("n", 1, 200_000)
    a, b = np.arange(200_000, dtype=np.int32), np.ones(1000, np.float32)
    whole = Tensor(a).realize()

    @jit
    def f(x: Tensor, v: Any) -> tuple[Tensor, Tensor]:
        y = (x + 1).contiguous().to("CPU:1")
        part = (whole.shrink(((0, v),)) * 3).contiguous().sum()
        return (y * 2).to("CPU") + x, part

    for v in (7, 200_000, 99_999, 1, 150_000):
        x, part = f(Tensor(b * v), n.bind(v))
        np.testing.assert_allclose(x.numpy(), (b * v + 1) * 2 + b * v)
        assert part.item() == (3 * v * (v - 1) // 2 + 2**31) % 2**32 - 2**31
    assert stream.log.count(COPY) == 2
    assert len(stream.log) == len(f.captured.batch.launches)


def test_eager_schedules_of_several_devices_on_another_ring(stream):
    a = np.random.default_rng(0).standard_normal((20, 30)).astype(np.float32)
    x = Tensor(a).shard(("CPU", "CPU:1", "CPU:2"), 0)
    np.testing.assert_allclose((x @ x.T).sum().numpy(), (a @ a.T).sum(), rtol=1e-3)
    assert COPY in stream.log and LAUNCH in stream.log


def test_addresses_values_and_constants_become_arguments():
    """A kernel that stores its second argument where its first points to, at three kinds of places."""
    ring = pool_ring()
    store = UOp.param(0, dtypes.int64, 8)[0].store(UOp.variable("v", 0, 1 << 40, dtypes.int64))
    function = _load(_kernel("store_one", store)).program
    memory = (ctypes.c_int64 * 4)()
    at = ctypes.addressof(memory)
    steps = [
        Step(function.address, [at, 11], 1, (0, False), ()),
        Step(function.address, [Slot(0, 8), "n"], 1, (0, False), (0,)),
        Step(function.address, [Slot(1, 0), 33], 1, (1, False), (0, 1)),
    ]
    submission = Submission(ring, steps, 2, ["n"])
    for n, third in ((22, 2), (44, 3)):
        submission.run([at, at + 8 * third], [n])
        assert list(memory[:2]) == [11, n] and memory[third] == 33


def test_settings_of_kernels_do_not_reach_the_programs():
    x = Tensor(np.arange(5, dtype=np.float32)).realize()
    with Context(BEAM=1, NOOPT=1):
        f = jit(lambda x: (x + 1).contiguous().to("CPU:1") * 2)
        for _ in range(3):
            np.testing.assert_array_equal(f(x).numpy(), (np.arange(5) + 1) * 2)


def test_the_words_of_a_batch_are_the_documented_ones():
    """docs/adding-a-device.md, read back from a batch of two queues."""
    submission = Submission(
        pool_ring(), [Step(5, [6], 0, (0, False), ()), Step(7, [8, 9], 0, (1, False), (0,))], scratch_bytes=0
    )
    memory, base = submission._memory, submission.address
    assert struct.unpack_from("<q", memory, 0) == (2,)
    rows = [struct.unpack_from("<QQq", memory, 32 + 32 * q) for q in range(2)]
    assert [(end - first, home) for first, end, home in rows] == [(64, 0), (64, 1)]
    first, second = [struct.unpack_from("<QQqQqqq", memory, r[0] - base) for r in rows]
    assert (first[0], first[2], first[4]) == (5, 0, 0) and (second[0], second[2], second[4]) == (7, 0, 1)
    assert struct.unpack_from("<q", memory, first[1] - base) == (6,)
    assert struct.unpack_from("<qq", memory, second[1] - base) == (8, 9)
    assert struct.unpack_from("<Q", memory, second[3] - base) == (rows[0][0] + 48,)
