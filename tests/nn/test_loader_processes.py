"""Loaders with worker processes: the batches made without them, in their order; errors, no hangs; nothing left."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from aril.nn.loader import DataLoader, LoaderError, rng
from tests.nn import loader_samples
from tests.nn.loader_samples import Fails, Numbers, Point, Sample, Samples

X, Y = np.arange(20).reshape(10, 2), np.arange(10)
METHODS = ["fork", "spawn", "forkserver"]


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def pids(loader: DataLoader) -> list[int]:
    assert loader._processes is not None
    return [w.process.pid for w in loader._processes.workers]


@pytest.mark.parametrize("method", METHODS)
def test_batches_do_not_depend_on_workers(method):
    def epochs(**kwargs):
        with DataLoader(
            X, Y, batch_size=3, seed=4, transform=loader_samples.noisy, drop_last=False, **kwargs
        ) as loader:
            return [(x.copy(), y.copy()) for _ in range(2) for x, y in loader]

    want = epochs()
    got = epochs(workers=2, start_method=method)
    assert len(want) == len(got) == 8
    for (x, y), (a, b) in zip(want, got, strict=True):
        np.testing.assert_array_equal(x, a)
        np.testing.assert_array_equal(y, b)
    assert not np.array_equal(want[0][0], want[0][0].round())  # something random was added
    assert sorted(np.concatenate([y for _, y in got[:4]]).tolist()) == list(range(10))


@pytest.mark.parametrize("workers", [0, 3])
def test_structures_of_every_kind(workers):
    with DataLoader(Samples(), batch_size=4, shuffle=False, workers=workers, drop_last=False) as loader:
        batches = list(loader)
    assert [len(b.label) for b in batches] == [4, 4, 2]
    b = batches[1]
    assert type(b) is Sample and b.image.dtype == np.float32 and b.label.dtype == np.int64
    np.testing.assert_array_equal(b.image, np.arange(24, 48, dtype=np.float32).reshape(4, 2, 3))
    assert b.label.tolist() == [4, 5, 6, 7] and b.weight.tolist() == [2, 2.5, 3, 3.5] and b.weight.dtype == np.float32
    point, (double, (even, nothing)) = b.more["point"], b.more["pair"]
    assert type(point) is Point and point.name == ["sample 4", "sample 5", "sample 6", "sample 7"]
    assert point.x.dtype == np.int16 and point.x.tolist() == [[i, i] for i in range(4, 8)]
    assert double.dtype == np.float64 and even.tolist() == [True, False, True, False] and nothing == [None] * 4


@pytest.mark.parametrize("source", [X, Samples(10), Numbers(10)])
def test_it_resumes_at_any_batch_with_any_number_of_workers(source):
    def label(batch):
        return (batch[0] if isinstance(batch, tuple) else getattr(batch, "label", batch)).tolist()

    loader = DataLoader(source, batch_size=3)
    whole = [label(b) for _ in range(2) for b in loader]
    for stop, first, then in [(0, 2, 0), (1, 1, 3), (2, 0, 2), (3, 3, 1), (5, 2, 2)]:
        with (
            DataLoader(source, batch_size=3, workers=first) as one,
            DataLoader(source, batch_size=3, workers=then) as two,
        ):
            got: list[list[int]] = []
            while len(got) < stop:
                batches = iter(one)
                for b in batches:
                    got.append(label(b))
                    if len(got) == stop:
                        break
            two.load_state(one.state())
            while len(got) < 6:
                got += [label(b) for b in two]
        assert got == whole


def test_what_is_iterated_over_is_walked_in_order_and_again_each_epoch():
    with DataLoader(Numbers(), batch_size=4, workers=2, drop_last=False) as loader:
        first, second = [np.concatenate([b.copy() for b in loader]) for _ in range(2)]
    assert first[:, 0].tolist() == second[:, 0].tolist() == list(range(11))
    assert len({int(n) for n in first[:, 1]}) == 1 and first[0, 1] != second[0, 1]
    with DataLoader(Numbers(), batch_size=4, workers=2) as loader:
        assert [len(b) for b in loader] == [4, 4]
    with pytest.raises(TypeError, match="no known number"):
        len(loader)
    with pytest.raises(ValueError, match="shuffle=True needs"):
        DataLoader(Numbers(), batch_size=2, shuffle=True)


def test_the_parts_of_ranks_make_up_the_batches():
    for source in (X, Numbers(10)):
        whole = [np.asarray(b[0] if isinstance(b, tuple) else b) for b in DataLoader(source, batch_size=4)]
        parts = [DataLoader(source, batch_size=4, part=(r, 2)) for r in range(2)]
        for want, *got in zip(whole, *parts, strict=True):
            cut = [g[0] if isinstance(g, tuple) else g for g in got]
            assert [len(c) for c in cut] == [2, 2]
            np.testing.assert_array_equal(np.concatenate(cut), want)
    with pytest.raises(ValueError, match=r"part=\(0, 3\) of batches of 4"):
        DataLoader(X, batch_size=4, part=(0, 3))


def test_work_is_divided_and_each_worker_has_its_own_seeds():
    with DataLoader(X, batch_size=1, transform=loader_samples.process, workers=2, prefetch=1, seed=3) as loader:
        seen = [(pid, r) for _, pid, r in loader]
        assert {pid for pid, _ in seen} == set(pids(loader)) and os.getpid() not in pids(loader)
        assert len({r for _, r in seen}) == len(seen)
    with DataLoader(
        X, batch_size=1, transform=loader_samples.recall, setup=loader_samples.remember, workers=2
    ) as loader:
        assert {w for _, w in loader} == {"0", "1"}
    with pytest.raises(RuntimeError, match="while a DataLoader makes it"):
        rng()


def test_batches_that_are_kept_are_not_overwritten():
    with DataLoader(np.arange(200), batch_size=4, workers=2, shuffle=False, prefetch=1) as loader:
        kept = [x for _ in range(2) for (x,) in loader]
    assert np.concatenate(kept).tolist() == [*range(200)] * 2  # after the workers' end, too
    kept[0][:] = -1  # and can be written to
    assert kept[1].tolist() == [4, 5, 6, 7]


def test_arrays_come_through_shared_memory():
    big = np.zeros((8, 1 << 18), np.float32)
    with DataLoader(big, batch_size=4, workers=1, prefetch=1) as loader:
        for (x,) in loader:
            assert x.flags.writeable and not x.flags.owndata
    assert not [f for f in os.listdir("/dev/shm") if "aril" in f]


def test_the_loop_may_be_left_and_begun_again():
    with DataLoader(X, Y, batch_size=2, workers=2, shuffle=False) as loader:
        for _ in range(3):
            for _, y in loader:
                assert y.tolist() == [0, 1]
                break
            started = pids(loader)
            loader.load_state({"epoch": 0, "done": 0, "seed": 0})
        assert [y.tolist() for _, y in loader] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]] and pids(loader) == started
        one = iter(loader)
        next(one)
        two = iter(loader)
        next(two)
        with pytest.raises(LoaderError, match="another iteration"):
            next(one)


@pytest.mark.parametrize("method", METHODS)
def test_an_error_in_a_worker_comes_with_its_traceback(method):
    with DataLoader(Fails("raise"), batch_size=2, shuffle=False, workers=2, start_method=method) as loader:
        batches = iter(loader)
        assert next(batches)[:, 0].tolist() == [0, 1] and next(batches)[:, 0].tolist() == [2, 3]
        with pytest.raises(KeyError, match="no sample five") as caught:
            next(batches)
        (note,) = caught.value.__notes__
        assert "at batch 2" in note and "loader_samples.py" in note and "__getitem__" in note
        assert loader.state()["done"] == 2
        loader.load_state({**loader.state(), "done": 3})
        assert [b[:, 0].tolist() for b in loader] == [[6, 7], [8, 9]]  # the workers are well


def test_an_error_that_cannot_be_pickled_comes_as_text():
    with (
        DataLoader(Fails("strange"), batch_size=2, shuffle=False, workers=1) as loader,
        pytest.raises(LoaderError, match=r"(?s)Strange in worker 0 .* at batch 2.*strange 3"),
    ):
        list(loader)


@pytest.mark.parametrize(("how", "said"), [("kill", "signal SIGKILL; .*memory"), ("exit", "exit status 7")])
@pytest.mark.parametrize("method", METHODS)
def test_a_worker_that_dies_is_an_error(how, said, method):
    loader = DataLoader(Fails(how), batch_size=1, shuffle=False, workers=2, start_method=method)
    with pytest.raises(LoaderError, match=f"aril-loader-[01] died at batch 5 .{said}"):
        list(loader)
    loader.load_state({**loader.state(), "done": 6})
    assert [int(b[0, 0]) for b in loader] == [6, 7, 8, 9]  # workers start again
    loader.close()


def test_a_worker_that_is_killed_while_idle_is_an_error():
    with DataLoader(X, batch_size=1, workers=2, prefetch=1) as loader:
        batches = iter(loader)
        next(batches)
        for pid in pids(loader):
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(LoaderError, match="SIGKILL"):
            list(batches)


def test_a_worker_that_hangs_is_an_error_after_the_timeout():
    loader = DataLoader(Fails("sleep"), batch_size=1, shuffle=False, workers=2, timeout=0.5)
    began, started = time.monotonic(), []
    with pytest.raises(LoaderError, match="batch 5 took more than timeout=0.5 s in aril-loader-"):
        for _ in loader:
            started = started or pids(loader)
    assert time.monotonic() - began < 10 and not any(alive(p) for p in started)


def test_nothing_is_left_behind():
    def files():
        return len(os.listdir("/proc/self/fd"))

    list(DataLoader(X, batch_size=2, workers=1, start_method="spawn"))  # what multiprocessing keeps for itself
    gc.collect()
    before, threads = files(), threading.active_count()
    loader = DataLoader(X, batch_size=2, workers=2)
    batches = iter(loader)
    kept = next(batches)
    started = pids(loader)
    assert all(alive(p) for p in started)
    del loader, batches
    gc.collect()
    assert not any(alive(p) for p in started)
    assert kept[0].shape == (2, 2)
    del kept
    gc.collect()
    assert files() == before and threading.active_count() == threads


PROGRAM = """
    import os, sys, time
    import numpy as np
    from aril.nn.loader import DataLoader

    def slow(x):
        time.sleep(0.05)
        return x, os.getpid()

    if __name__ == "__main__":
        loader = DataLoader(np.arange(10000), batch_size=2, transform=slow, workers=2, start_method=sys.argv[1])
        for i, (x, pid) in enumerate(loader):
            if i < 8:
                print(pid, flush=True)
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("how", ["SIGINT", "SIGKILL", "SIGTERM"])
def test_workers_end_with_the_program(method, how, tmp_path):
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(PROGRAM))
    root = str(Path(__file__).parents[2])
    process = subprocess.Popen(
        [sys.executable, str(path), method],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
        process_group=0,
    )
    assert process.stdout is not None
    workers = {int(process.stdout.readline()) for _ in range(8)}
    assert len(workers) == 2
    if how == "SIGINT":
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    else:
        process.send_signal(getattr(signal, how))
    _, said = process.communicate(timeout=20)
    assert process.returncode == -getattr(signal, how)
    if how == "SIGINT":
        assert said.count("Traceback") == 1 and said.rstrip().endswith("KeyboardInterrupt")
    end = time.monotonic() + 8
    while any(alive(p) for p in workers) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(alive(p) for p in workers)
