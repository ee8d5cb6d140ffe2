"""The worker pool: any number of workers gives the same result; barriers hold; nothing is lost or run twice."""

import contextlib
import ctypes
import itertools
import mmap
import os
import random
import struct
import subprocess
import sys
import threading
import time

import pytest

from aril.device import Device
from aril.runtime import pool as pool_module
from aril.runtime import pool_ir as pool_ir_module
from aril.runtime.llvm import compile_ir
from aril.runtime.pool import Pool, copy_function, shared_pool
from aril.runtime.pool_ir import COPY_BYTES, QUEUE_BYTES, QUEUES, R_LEFT, RECORD_BYTES, pool_ir
from aril.runtime.target import generic_target
from tests.runtime.kernels import ADD, OWNER, SCRATCH, TOTAL, kernel

N = 256


class Batch:
    """A batch written by hand: `add(program, chunks, buffers, values, waits, queue)`, then `run(pool)`.

    `waits` are numbers of records; None stands for all so far.
    """

    def __init__(self) -> None:
        self.records = []
        self.keep = []

    def add(self, program, chunks, buffers, values=(), waits=None, queue=0):
        args = ctypes.create_string_buffer(program.pack_args(buffers, values))
        self.keep += [args, program]
        waits = range(len(self.records)) if waits is None else waits
        self.records.append((program.address, ctypes.addressof(args), chunks, list(waits), queue))

    def write(self):
        queues = 1 + max(r[4] for r in self.records)
        order = sorted(range(len(self.records)), key=lambda i: self.records[i][4])
        start = -(-(QUEUES + QUEUE_BYTES * queues) // 64) * 64
        place = {i: start + RECORD_BYTES * n for n, i in enumerate(order)}
        at = start + RECORD_BYTES * len(order)
        self.memory = mmap.mmap(-1, at + 8 * sum(len(r[3]) for r in self.records) + 8)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        struct.pack_into("<q", self.memory, 0, queues)
        for q in range(queues):
            mine = [place[i] for i in order if self.records[i][4] == q] or [start]
            end = mine[-1] + RECORD_BYTES if any(r[4] == q for r in self.records) else start
            struct.pack_into(
                "<QQq", self.memory, QUEUES + QUEUE_BYTES * q, self.address + mine[0], self.address + end, q
            )
        for i, (fn, args, chunks, waits, _) in enumerate(self.records):
            row = (fn, args, chunks, self.address + at, len(waits), 0, max(chunks, 1))
            struct.pack_into("<QQqQqqq", self.memory, place[i], *row)
            for w in waits:
                struct.pack_into("<Q", self.memory, at, self.address + place[w] + R_LEFT)
                at += 8

    def run(self, pool):
        self.write()
        call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(pool.submission["ring_run"])
        with pool.lock:
            call(pool.submission["ring_pool"], self.address)


@contextlib.contextmanager
def pool_of(threads):
    pool = Pool(threads)
    try:
        yield pool
    finally:
        pool.close()


@pytest.fixture(scope="module")
def add():
    return Device["CPU"].load(kernel(ADD, "add", 1, 1))


@pytest.fixture(scope="module")
def total():
    return Device["CPU"].load(kernel(TOTAL, "total", 2, 1))


def ints(n=N):
    data = (ctypes.c_int64 * n)()
    return data, ctypes.addressof(data)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_every_chunk_runs_exactly_once(add, threads):
    rng = random.Random(threads)
    with pool_of(threads) as pool:
        data, address = ints()
        expected = [0] * N
        for _ in range(40):
            batch = Batch()
            for _ in range(rng.randint(1, 60)):
                chunks, value = rng.choice([0, 1, 1, 2, 3, 17, N]), rng.randint(-5, 5)
                batch.add(add, chunks, [address], [value])
                for i in range(chunks):
                    expected[i] += value
            batch.run(pool)
            assert list(data) == expected


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_record_sees_all_of_the_records_it_waits_for(add, total, threads):
    """Sums taken by several chunks, single chunks among them, between updates: each sees a whole number of updates."""
    with pool_of(threads) as pool:
        for turn in range(30):
            data, address = ints()
            outs = []
            batch = Batch()
            for step in range(20):
                batch.add(add, N, [address], [1])
                out, where = ints(8)
                chunks = (1, 4, 8)[(step + turn) % 3]
                batch.add(total, chunks, [address, where], [N])
                outs.append((out, chunks, (step + 1) * N))
            batch.run(pool)
            for out, chunks, sum_then in outs:
                assert list(out[:chunks]) == [sum_then] * chunks


@pytest.mark.parametrize("threads", [2, 4])
def test_records_that_wait_for_nothing_all_run(add, threads):
    with pool_of(threads) as pool:
        arrays = [ints() for _ in range(50)]
        batch = Batch()
        for index, (_, address) in enumerate(arrays):
            batch.add(add, (1, 5, N)[index % 3], [address], [index], waits=())
        for times in (1, 2, 3):
            batch.run(pool)  # a batch may be run again as it is
            for index, (data, _) in enumerate(arrays):
                chunks = (1, 5, N)[index % 3]
                assert list(data) == [index * times] * chunks + [0] * (N - chunks)


def test_a_record_waits_for_what_it_names_only(add, total):
    """add | one chunk elsewhere | many chunks after the first only, which sees the first whole."""
    with pool_of(3) as pool:
        for _ in range(100):
            data, address = ints()
            other, elsewhere = ints()
            out, where = ints(8)
            batch = Batch()
            batch.add(add, N, [address], [1])
            batch.add(add, 1, [elsewhere], [1], waits=[])
            batch.add(total, 8, [address, where], [N], waits=[0])
            batch.run(pool)
            assert list(out) == [N] * 8
            assert other[0] == 1


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
@pytest.mark.parametrize("queues", [1, 2, 4])
def test_random_programs_of_several_queues_compute_what_they_would_in_order(add, total, threads, queues):
    """Cells are added to and summed; each record waits for those that touched its cells. Sleeps between runs."""
    rng = random.Random(100 * threads + queues)
    with pool_of(threads) as pool:
        for turn in range(30):
            cells = [ints(64) for _ in range(5)]
            model = [[0] * 64 for _ in cells]
            readers, writer = [[] for _ in cells], [None] * len(cells)
            batch, sums = Batch(), []
            for i in range(rng.randint(1, 80)):
                c, chunks, queue = rng.randrange(5), rng.choice([0, 1, 1, 1, 2, 7, 64]), rng.randrange(queues)
                if rng.random() < 0.6:
                    waits = readers[c] + ([writer[c]] if writer[c] is not None else [])
                    batch.add(add, chunks, [cells[c][1]], [i], waits, queue)
                    readers[c], writer[c] = [], i
                    model[c] = [v + i if k < chunks else v for k, v in enumerate(model[c])]
                else:
                    out, where = ints(max(chunks, 1))
                    waits = [writer[c]] if writer[c] is not None else []
                    batch.add(total, chunks, [cells[c][1], where], [64], waits, queue)
                    readers[c].append(i)
                    sums.append((out, [sum(model[c])] * chunks or [0]))
            if turn % 10 == 0:
                time.sleep(0.001)  # the workers sleep
            batch.run(pool)
            assert [list(data) for data, _ in cells] == model
            assert [list(out) for out, _ in sums] == [s for _, s in sums]


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_record_without_chunks_is_done_when_its_waits_are(add, total, threads):
    """add in many chunks | nothing, after it | the sum, after nothing: it sees the whole of the first."""
    with pool_of(threads) as pool:
        for turn in range(60):
            data, address = ints()
            out, where = ints(4)
            batch = Batch()
            batch.add(add, N, [address], [1])
            batch.add(add, 0, [address], [5], waits=[0], queue=turn % 3)
            batch.add(total, 4, [address, where], [N], waits=[1], queue=1)
            batch.run(pool)
            assert list(out) == [N] * 4 and list(data) == [1] * N


def test_queues_are_walked_side_by_side(add):
    """Two queues in which every record waits for the other's one before: a queue at a time would never end."""
    with pool_of(2) as pool:
        data, address = ints(4)
        batch = Batch()
        for i in range(40):
            batch.add(add, 1, [address], [i], waits=[i - 1] if i else [], queue=i % 2)
        batch.run(pool)
        assert data[0] == sum(range(40))


@pytest.mark.parametrize("size", [1, 1000, COPY_BYTES, COPY_BYTES + 1, 3 * COPY_BYTES - 5])
def test_a_copy_moves_every_byte_and_no_other(size):
    source = ctypes.create_string_buffer(os.urandom(size), size + 8)
    target = ctypes.create_string_buffer(b"\xab" * (size + 8), size + 8)
    args = struct.pack("<QQq", ctypes.addressof(target), ctypes.addressof(source), size)
    with pool_of(2) as pool:
        pool.run_one(copy_function(), args, -(-size // COPY_BYTES))
    assert target.raw == source.raw[:size] + b"\xab" * 8


@pytest.mark.parametrize("threads", [1, 4])
def test_each_worker_has_aligned_scratch_of_its_own(threads):
    program = Device["CPU"].load(kernel(SCRATCH, "scratch", 1, scratch_bytes=8192))
    with pool_of(threads) as pool:
        pool.ensure_scratch(8192)
        out, where = ints(64)
        for _ in range(20):
            pool.run_one(program.address, program.pack_args([where]), 64)
            assert list(out) == [1024 * i for i in range(64)]


def test_two_threads_take_chunks_from_both_ends():
    """So that each finds its part of the memory in its own core's cache at the next call."""
    program = Device["CPU"].load(kernel(OWNER, "owner", 1, scratch_bytes=64))
    with pool_of(2) as pool:
        pool.ensure_scratch(64)
        out, where = ints(64)
        met = 0
        for _ in range(20):
            pool.run_one(program.address, program.pack_args([where]), 64)
            owners = list(out)
            changes = sum(a != b for a, b in itertools.pairwise(owners))
            assert changes == len(set(owners)) - 1
            met += changes
        assert met > 0


def test_several_python_threads_may_launch(add):
    with pool_of(3) as pool:
        arrays = [ints() for _ in range(4)]

        def launch(index):
            for _ in range(200):
                pool.run_one(add.address, add.pack_args([arrays[index][1]], [index]), 16)

        threads = [threading.Thread(target=launch, args=(index,)) for index in range(4)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        for index, (data, _) in enumerate(arrays):
            assert list(data[:16]) == [200 * index] * 16


def test_workers_sleep_and_wake_again(add):
    with pool_of(3) as pool:
        data, address = ints()
        for turn in range(20):
            time.sleep(0.002)  # far longer than a worker spins
            pool.run_one(add.address, add.pack_args([address], [1]), N)
            assert list(data) == [turn + 1] * N


def asleep(pool):
    """How many workers sleep until the next batch."""
    return ctypes.c_int32.from_address(pool._base + pool_ir_module.SLEEPERS).value


def wait_busily(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


@pytest.fixture
def long_waits(monkeypatch):
    """A worker waits so long awake that a busy machine does not blur when it sleeps."""
    monkeypatch.setattr(pool_module, "LINGER_S", 0.05)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="workers of a crowded pool sleep at once")
def test_workers_stay_awake_between_calls_that_follow_each_other(add, long_waits):
    """A gap is as long as the last chunk of the other thread, or Python: waking a worker costs both some of it."""
    with pool_of(2) as pool:
        data, address = ints()
        sleeps = []
        for _ in range(40):
            pool.run_one(add.address, add.pack_args([address], [1]), N)
            wait_busily(1e-3)
            sleeps.append(asleep(pool))
        assert sum(sleeps) <= 4


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="workers of a crowded pool sleep at once")
def test_workers_of_an_idle_process_sleep_and_soon_stop_waiting_awake(add, long_waits):
    with pool_of(2) as pool:
        data, address = ints()
        soon = []
        for turn in range(1, pool_ir_module.MISSES + 9):
            pool.run_one(add.address, add.pack_args([address], [1]), N)
            time.sleep(0.02)
            soon.append(asleep(pool))
            end = time.monotonic() + 20  # waiting, it gives way to whatever else wants the CPU
            while not asleep(pool):
                time.sleep(0.005)
                assert time.monotonic() < end
            assert list(data) == [turn] * N
        # The worker waited in vain so many times: from then on it sleeps soon, but where something else had its CPU.
        assert sum(soon[: pool_ir_module.MISSES]) <= 2 and sum(soon[pool_ir_module.MISSES :]) >= 5


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs to choose from")
@pytest.mark.parametrize("idle_s", [0.2, 0.0])  # far longer than a worker spins; while it does
def test_workers_leave_the_callers_cpu_alone(add, long_waits, idle_s):
    """Else the system may wake them there, behind the caller, for as long as other threads spin on the other CPUs, and
    a caller moved to where a worker spins would do all the work until the system parts them.
    """
    cpus = os.sched_getaffinity(0)
    with pool_of(2) as pool:
        data, address = ints(8)
        worker = pool._base + pool_ir_module.SCRATCH + 8 * pool.threads + 4
        try:
            for turn, cpu in enumerate([*sorted(cpus)[:2], min(cpus)], start=1):
                os.sched_setaffinity(0, {cpu})
                time.sleep(idle_s)
                pool.run_one(add.address, add.pack_args([address], [1]), 8)
                assert list(data) == [turn] * 8
                assert os.sched_getaffinity(ctypes.c_int32.from_address(worker).value) == cpus - {cpu}
        finally:
            os.sched_setaffinity(0, cpus)


def test_the_number_of_threads_is_bounded_by_the_setting():
    code = "from aril.runtime.pool import shared_pool; print(shared_pool().threads)"
    env = {**os.environ, "NUM_CPU_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


def test_a_closed_pool_works_alone(add):
    pool = Pool(3)
    pool.close()
    data, address = ints()
    pool.run_one(add.address, add.pack_args([address], [2]), N)
    assert list(data) == [2] * N


def test_a_child_of_fork_has_a_pool_of_its_own(add):
    data, address = ints()
    args = add.pack_args([address], [1])
    shared_pool().run_one(add.address, args, N)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            shared_pool().run_one(add.address, args, N)
            os.write(write, struct.pack(f"<{N}q", *data))
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        answer = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    assert struct.unpack(f"<{N}q", answer) == (2,) * N
    shared_pool().run_one(add.address, args, N)
    assert list(data) == [2] * N  # the child's memory was its own


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_the_loop_compiles_for_every_architecture(arch):
    assert b"aril_pool_worker" in compile_ir(pool_ir(arch), generic_target(arch))
