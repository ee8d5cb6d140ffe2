"""Captured batches as programs: the waits they hold, copies among kernels, variables, devices side by side."""

from __future__ import annotations

import random
import struct
from typing import Any

import numpy as np
import pytest

from aril import Context, Tensor, Variable, jit
from aril.engine import profile
from aril.engine.replay import Segment
from aril.runtime import pool_ring
from aril.runtime.pool import Pool
from aril.runtime.pool_ir import Q_END, Q_FIRST, QUEUE_BYTES, QUEUES, R_LEFT, R_WAIT_COUNT, R_WAITS, RECORD_BYTES


def only_segment(f: Any) -> Segment:
    """The one native call that a capture is."""
    (segment,) = f.captured.batch.segments
    assert isinstance(segment, Segment)
    return segment


def waits_in_memory(segment: Segment) -> list[set[int]]:
    """What each launch waits for, read from the words of the encoded batch."""
    memory, base = segment.commands._memory, segment.commands.address
    (queues,) = struct.unpack_from("<q", memory, 0)
    rows = [QUEUES + QUEUE_BYTES * q for q in range(queues)]
    records = []
    for row in rows:
        first, end = [struct.unpack_from("<q", memory, row + w)[0] for w in (Q_FIRST, Q_END)]
        records += range(first, end, RECORD_BYTES)
    assert sorted(records) == sorted(base + 8 * p for p in segment.commands._places)
    number = {base + 8 * p + R_LEFT: i for i, p in enumerate(segment.commands._places)}
    out = []
    for p in segment.commands._places:
        at = struct.unpack_from("<q", memory, 8 * p + R_WAITS)[0] - base
        count = struct.unpack_from("<q", memory, 8 * p + R_WAIT_COUNT)[0]
        out.append({number[w] for w in struct.unpack_from(f"<{count}q", memory, at)} if count else set())
    return out


def conflicts(segment: Segment, inputs: dict[int, int]) -> list[set[int]]:
    """What each launch must come after, looked at pair by pair and byte by byte (of memory numbered by its address)."""

    def touched(launch: Any) -> tuple[set[Any], set[Any]]:
        cells = []
        for b in launch.buffers:
            root = b if id(b) in inputs else b.base if id(b.base) in inputs else None
            start, memory = (b.opaque, "host") if root is None else (b.offset_bytes if b is not root else 0, id(root))
            cells.append({(memory, k) for k in range(start, start + b.nbytes)})
        n = launch.item.outputs
        return set().union(*cells[:n]), set().union(*cells[n:])

    sets = [touched(x) for x in segment.launches]
    out: list[set[int]] = []
    for i, (writes, reads) in enumerate(sets):
        before = {j for j in range(i) if sets[j][0] & (writes | reads) or sets[j][1] & writes}
        out.append(before.union(*[out[j] for j in before]))
    return out


def closed(waits: list[set[int]]) -> list[set[int]]:
    out: list[set[int]] = []
    for mine in waits:
        out.append(mine.union(*[out[w] for w in mine]))
    return out


@pytest.mark.parametrize("seed", range(6))
def test_a_random_program_waits_for_conflicts_and_nothing_else(seed, threads):
    """In-place updates of slices on two devices, sums, copies between the devices: results as NumPy's, in any pool."""
    rng = random.Random(seed)
    devices = ("CPU", "CPU:1")
    state = [Tensor(np.zeros(24, np.float32), device=d).contiguous().realize() for d in devices for _ in range(2)]
    plan = []
    for _ in range(14):
        kind, a, b = rng.choice(["add", "add", "move", "sum"]), rng.randrange(4), rng.randrange(4)
        at, n = rng.randrange(12), rng.randrange(1, 12)
        plan.append((kind, a, b, at, n))

    def run(x: Any, state: list[Any], on: Any, set_to: Any) -> list[Any]:
        out = []
        for kind, a, b, at, n in plan:
            if kind == "add":
                set_to(state[a], at, n, state[a][at : at + n] * 2 + on(x, a)[:n])
            elif kind == "move":
                set_to(state[a], at, n, on(state[b], a)[:n] + 1)
            else:
                out.append(state[a][at : at + n].sum())
        return out

    def on(t: Tensor, a: int) -> Tensor:
        return t.to(devices[a // 2])

    def set_to(t: Tensor, at: int, n: int, value: Tensor) -> None:
        t[at : at + n] = value
        t.realize()

    @jit
    def step(x: Tensor) -> list[Tensor]:
        return [t.realize() for t in run(x, state, on, set_to)]

    model = [np.zeros(24, np.float32) for _ in state]

    def set_model(t: Any, at: int, n: int, value: Any) -> None:
        t[at : at + n] = value

    for turn in range(6):
        x = np.arange(24, dtype=np.float32) + turn
        expected = run(x, model, lambda t, a: t, set_model)
        found = step(Tensor(x))
        np.testing.assert_allclose([t.item() for t in found], expected, rtol=1e-5)
    for t, m in zip(state, model, strict=True):
        np.testing.assert_allclose(t.numpy(), m, rtol=1e-5)
    segment = only_segment(step)
    wanted = conflicts(segment, step.captured.batch.index)
    assert closed(waits_in_memory(segment)) == wanted
    assert any(wanted) or len(plan) < 2


def test_a_copy_between_devices_does_not_split_the_batch(threads):
    @jit
    def f(x: Tensor) -> Tensor:
        y = (x + 1).contiguous().to("CPU:1")
        return (y * 2).to("CPU") + x

    for i in range(5):
        x = np.full(100_000, i, np.float32)
        np.testing.assert_array_equal(f(Tensor(x)).numpy(), (x + 1) * 2 + x)
    kinds = [launch.loaded is None for launch in only_segment(f).launches]
    assert kinds == [False, True, False, True, False]


def test_a_copy_of_an_input_follows_the_input(threads):
    f = jit(lambda x: x.to("CPU:1") + 1)
    for i in range(6):
        x = np.full(7, i, np.float32)
        np.testing.assert_array_equal(f(Tensor(x)).numpy(), x + 1)
    assert [launch.loaded is None for launch in only_segment(f).launches] == [True, False]


def test_launch_counts_follow_variables(threads):
    n = Variable("n", 1, 1_000_000)
    whole = Tensor(np.arange(1_000_000, dtype=np.int32)).realize()

    @jit
    def f(v: Any) -> Tensor:
        return (whole.shrink(((0, v),)) * 3).contiguous().sum()

    for v in (5, 1_000_000, 1, 400_001, 999_999, 17):
        assert f(n.bind(v)).item() == (3 * v * (v - 1) // 2 + 2**31) % 2**32 - 2**31
    assert any(not isinstance(x.loaded.chunks, int) for x in only_segment(f).launches if x.loaded)


def test_kernels_of_two_devices_run_at_the_same_time():
    pool = Pool(2)

    @jit
    def f(x: Tensor) -> Tensor:
        for _ in range(4):
            x = (x.sin() + 1).realize()
        return x

    data = np.linspace(0, 1, 400_000, dtype=np.float32)
    x = Tensor(data).shard(("CPU", "CPU:1"), 0).realize()
    with pytest.MonkeyPatch.context() as m:
        m.setattr(pool_ring, "shared_pool", lambda: pool)
        for _ in range(3):
            f(x)
        for _ in range(20):  # the machine may be busy with something else
            profile.reset()
            with Context(PROFILE=1):
                out = f(x)
            kernels = [i for i in profile.intervals() if i.kind == "kernel"]
            first, second = [[k for k in kernels if k.device == d] for d in ("CPU", "CPU:1")]
            assert len(first) == len(second) == 4
            if any(a.start < b.end and b.start < a.end for a in first for b in second):
                break
        else:
            pytest.fail("the kernels of two devices followed each other")
    profile.reset()
    pool.close()
    expected = data
    for _ in range(4):
        expected = np.sin(expected) + 1
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-5)


def test_one_call_into_native_code_for_all_kernels(monkeypatch):
    calls = []
    ring = pool_ring.PoolRing

    def counted(self: Any, scratch: int, before: Any = ring.submission) -> Any:
        calls.append(scratch)
        return before(self, scratch)

    @jit
    def f(x: Tensor) -> Tensor:
        for _ in range(20):
            x = (x + 1).realize()
        return x.to("CPU:1") * 2

    for i in range(3):
        f(Tensor([float(i)]))
    monkeypatch.setattr(ring, "submission", counted)
    assert f(Tensor([1.0])).item() == 42
    assert len(calls) == 1


def test_an_input_that_is_written_waits_for_its_readers(threads):
    @jit
    def f(x: Tensor, y: Tensor) -> Tensor:
        total = (x * 2).sum().realize()
        x.assign(x + y).realize()
        return total + x.sum()

    x, y = np.arange(1000, dtype=np.float32), np.ones(1000, np.float32)
    a, b = Tensor(x.copy()).realize(), Tensor(y).realize()
    for _ in range(5):
        expected = 2 * x.sum() + (x + y).sum()
        assert f(a, b).item() == pytest.approx(expected)
        x = x + y
    segment = only_segment(f)
    assert closed(waits_in_memory(segment)) == conflicts(segment, f.captured.batch.index)
