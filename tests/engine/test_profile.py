"""Timelines: what is recorded under PROFILE=1, the trace that is written, the table of kernels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from aril.config import Context
from aril.engine import profile
from aril.jit import jit
from aril.tensor import Tensor


@pytest.fixture(autouse=True)
def nothing_recorded():
    profile.reset()
    yield
    profile.reset()


def test_nothing_is_recorded_unless_asked_for():
    (Tensor(np.arange(8.0)) + 1).numpy()
    assert profile.intervals() == []


def test_kernels_and_scheduling_are_recorded_with_their_work():
    with Context(PROFILE=1):
        (Tensor(np.ones((64, 64), np.float32)) @ Tensor(np.ones((64, 64), np.float32))).numpy()
    found = {i.kind: i for i in profile.intervals()}
    assert {"kernel", "schedule"} <= set(found)
    kernel = found["kernel"]
    assert kernel.device == "CPU" and kernel.end > kernel.start
    assert kernel.ops >= 2 * 64**3 and kernel.nbytes >= 3 * 64 * 64 * 4


def test_a_copy_between_devices_is_recorded():
    with Context(PROFILE=1):
        Tensor(np.ones(100, np.float32)).realize().to("CPU:1").realize()
    copies = [i for i in profile.intervals() if i.kind == "copy" and i.device == "CPU:1"]
    assert copies and copies[0].nbytes == 400


def test_kernels_of_a_replay_are_timed_one_by_one():
    @jit
    def step(x: Tensor) -> Tensor:
        return ((x + 1).contiguous().sum() * 2).realize()

    x = Tensor(np.ones(1000, np.float32)).realize()
    for _ in range(3):
        step(x)
    with Context(PROFILE=1):
        assert step(x).item() == 4000
    kinds = [i.kind for i in profile.intervals()]
    assert "replay" in kinds and "kernel" in kinds


def test_the_trace_has_a_track_for_each_device_and_thread(tmp_path):
    def work():
        with Context(PROFILE=1):
            (Tensor(np.ones(10, np.float32)) * 3).realize()

    thread = threading.Thread(target=work, name="second")
    thread.start()
    thread.join()
    work()
    path = tmp_path / "trace.json"
    profile.write(path)
    events = json.loads(path.read_text())["traceEvents"]
    tracks = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {"CPU", "second", "MainThread"} <= tracks
    whole = [e for e in events if e["ph"] == "X"]
    assert all(e["dur"] >= 0 and e["ts"] >= 0 and {"pid", "tid", "name", "cat"} <= set(e) for e in whole)
    assert os.listdir(tmp_path) == ["trace.json"]


def test_the_table_sums_launches_by_kernel():
    profile.record("kernel", "a", "CPU", 0, 1000, ops=2000, nbytes=4000)
    profile.record("kernel", "a", "CPU", 5000, 8000, ops=2000, nbytes=4000)
    profile.record("kernel", "b", "CPU", 0, 500)
    rows = profile.table().splitlines()
    assert rows[1].split() == ["a", "CPU", "2", "0.004", "2.00", "88.9%", "1.00", "2.00"]
    assert rows[2].split()[:3] == ["b", "CPU", "1"]
    assert "and 1 more" in profile.table(rows=1)


def test_a_program_leaves_a_trace_and_a_table_when_it_ends(tmp_path):
    code = "from aril import Tensor; (Tensor.ones(1000).contiguous() + 1).realize()"
    environment = {**os.environ, "PROFILE": "1", "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "GFLOPS" in done.stderr and "PROFILE: " in done.stderr
    (name,) = [n for n in os.listdir(tmp_path) if n.startswith("aril-profile")]
    assert json.loads((tmp_path / name).read_text())["traceEvents"]


def test_recording_costs_little():
    start = profile.now()
    for _ in range(1000):
        profile.record("kernel", "a", "CPU", 0, 1)
    assert (profile.now() - start) / 1000 < 100_000  # nanoseconds each; about 1,000 when nothing else runs


def test_a_replayed_batch_says_when_each_kernel_ran_and_on_which_threads():
    @jit
    def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        a, b = (x + 1).contiguous(), (y * 2).contiguous()
        Tensor.realize(a, b)
        return a, b

    x = Tensor(np.ones(1_000_000, np.float32)).realize()
    y = Tensor(np.ones(1_000_000, np.float32), device="CPU:1").realize()
    for _ in range(2):
        step(x, y)
    with Context(PROFILE=1):
        start = profile.now()
        a, b = step(x, y)
        end = profile.now()
    assert a.numpy()[-1] == 2 and b.numpy()[-1] == 2
    kernels = [i for i in profile.intervals() if i.kind == "kernel"]
    assert {k.device for k in kernels} == {"CPU", "CPU:1"}
    assert all(start <= k.start < k.end <= end for k in kernels)
    threads = {i.thread for i in profile.intervals() if i.kind == "chunks"}
    assert threads and all(t.startswith("pool ") for t in threads)


def test_what_a_device_does_at_once_lies_on_several_tracks():
    for start, end in ((0, 100), (50, 150), (120, 200)):
        profile.record("kernel", "a", "CPU", start, end)
    events = profile.trace()["traceEvents"]
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert [tracks[e["tid"]] for e in events if e["ph"] == "X"] == ["CPU", "CPU (also)", "CPU"]
