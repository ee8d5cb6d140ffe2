"""Eager schedules for several devices: their kernels run at the same time, with the results of one device."""

from __future__ import annotations

import numpy as np
import pytest

from aril import Context, Tensor, Variable
from aril.counters import GlobalCounters
from aril.engine import capture, profile
from aril.runtime import pool_ring
from aril.runtime.pool import Pool

DEVICES = ("CPU", "CPU:1")


@pytest.fixture
def batches(monkeypatch):
    """The executables that ran as one batch."""
    from aril.engine import together

    found = []
    before = together.run_together

    def noted(*args):
        out = before(*args)
        found.append(out is not None)
        return out

    monkeypatch.setattr(together, "run_together", noted)
    return found


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)


@pytest.mark.parametrize("axis", [0, 1, None])
def test_sharded_values_are_those_of_one_device(threads, batches, axis):
    a, b = numbers(30, 40), numbers(40, 20)
    x, w = Tensor(a).shard(DEVICES, axis), Tensor(b).shard(DEVICES, 0)
    expected = np.tanh(a.astype(np.float64) @ b).sum(0)
    np.testing.assert_allclose((x @ w).tanh().sum(0).numpy(), expected, rtol=1e-4, atol=1e-5)
    assert batches and all(batches)


def test_any_number_of_threads_gives_the_same_bits():
    a, found = numbers(64, 3000), []
    for n in (1, 2, 4):
        pool = Pool(n)
        with pytest.MonkeyPatch.context() as m:
            m.setattr(pool_ring, "shared_pool", lambda pool=pool: pool)
            found.append((Tensor(a).shard(DEVICES, 0).exp() / 3).sum().numpy())
        pool.close()
    assert found[0].tobytes() == found[1].tobytes() == found[2].tobytes()


def test_kernels_of_two_devices_overlap(monkeypatch):
    pool = Pool(2)
    monkeypatch.setattr(pool_ring, "shared_pool", lambda: pool)
    x = Tensor(np.linspace(0, 1, 600_000, dtype=np.float32)).shard(DEVICES, 0).realize()
    (x.sin().exp() + 1).realize()  # compiled
    for _ in range(20):  # the machine may be busy with something else
        profile.reset()
        with Context(PROFILE=1):
            (x.sin().exp() + 1).realize()
        kernels = [i for i in profile.intervals() if i.kind == "kernel"]
        first, second = [next(k for k in kernels if k.device == d) for d in DEVICES]
        if first.start < second.end and second.start < first.end:
            break
    else:
        pytest.fail("the kernels followed each other")
    profile.reset()
    pool.close()


def test_in_place_updates_keep_their_order(threads, batches):
    a = numbers(10, 6)
    x = Tensor(a.copy()).shard(DEVICES, 0).realize()
    y = x * 2
    x.assign(x + 1)
    z = x * 3
    x[2:7] = 0
    Tensor.realize(y, z, x)
    np.testing.assert_allclose(y.numpy(), a * 2, rtol=1e-6)
    np.testing.assert_allclose(z.numpy(), (a + 1) * 3, rtol=1e-6)
    expected = a + 1
    expected[2:7] = 0
    np.testing.assert_allclose(x.numpy(), expected, rtol=1e-6)
    assert any(batches)


def test_memory_with_two_names_is_run_step_by_step(batches):
    """Two storages over one piece of memory, one of them written: the batch would know them as two."""
    memory = numbers(12)
    a = memory.copy()
    x, y = Tensor.from_dlpack(memory), Tensor.from_dlpack(memory)
    elsewhere = Tensor(numbers(3), device="CPU:1").realize()
    z, w = y * 2, elsewhere + 1
    x.assign(x + 1)
    Tensor.realize(z, w, x)
    assert batches == [False]
    np.testing.assert_allclose(memory, a + 1, rtol=1e-6)
    np.testing.assert_allclose(w.numpy(), numbers(3) + 1, rtol=1e-6)


def test_variables_are_bound_at_each_run(threads, batches):
    n = Variable("n", 1, 50)
    a = numbers(50, 8)
    x = Tensor(a).shard(DEVICES, 1).realize()
    for v in (3, 50, 1):
        out = (x.shrink(((0, n.bind(v)), (0, 8))) * 2).sum(0)
        np.testing.assert_allclose(out.numpy(), a[:v].sum(0) * 2, rtol=1e-4, atol=1e-5)
    assert any(batches)


def test_launches_and_work_are_counted_for_each_device(batches):
    x = Tensor(numbers(16, 16)).shard(DEVICES, 0).realize()
    y = Tensor(numbers(16, 16)).shard(DEVICES, 0).realize()
    GlobalCounters.reset()
    (x + y).realize()
    assert batches == [True]
    for d in DEVICES:
        c = GlobalCounters.device(d)
        assert (c.kernels, c.ops, c.bytes) == (1, 8 * 16, 3 * 8 * 16 * 4)


def test_intermediates_have_memory_only_while_they_are_computed():
    x = Tensor(numbers(1000, 100)).shard(DEVICES, 0).realize()

    def step():
        return ((x.exp().contiguous() - x.max(0)).contiguous() * 2).sum()

    step().realize()
    before = GlobalCounters.mem_used
    for _ in range(20):
        step().realize()
    assert GlobalCounters.mem_used <= before


def test_a_failing_batch_leaves_the_rest_usable(monkeypatch):
    x = Tensor(numbers(8)).shard(DEVICES, 0).realize()

    def fail(*_):
        raise RuntimeError("broken")

    with monkeypatch.context() as m:
        m.setattr(pool_ring.PoolRing, "submission", fail)
        with pytest.raises(RuntimeError, match="broken"):
            (x + 5).realize()
    np.testing.assert_allclose((x + 5).numpy(), numbers(8) + 5, rtol=1e-6)
    assert capture.local.capture is None
