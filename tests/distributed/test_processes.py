"""Several processes on this machine, started by MPI: what they agree on, training, and what happens when one dies."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from aril import Tensor, distributed, nn
from aril.cli_launch import find_mpiexec
from aril.schedule import normalize, schedule
from aril.uop.exchange import Exchange, exchange

PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).parents[2]
needs_mpi = pytest.mark.skipif(
    find_mpiexec() is None or importlib.util.find_spec("mpi4py") is None,
    reason="no MPI here: pip install -e '.[mpi]' brings one",
)


@pytest.fixture
def launch(tmp_path):
    """A function that runs a program in several processes: by `aril launch`, or (plain) by mpiexec itself, or (one)
    neither. It gives the exit status, what was said, and the result of each process.
    """

    def run(count: int, program: str, *arguments: str, plain: bool = False, **settings: str):
        results = tmp_path / f"{count}{program}{arguments}".replace("/", "-")
        results.mkdir()
        command = [sys.executable, "-m", "aril.cli", "launch", "-n", str(count), str(PROGRAMS / program), *arguments]
        if plain or count == 1:
            command = [sys.executable, str(PROGRAMS / program), *arguments]
        if plain:
            command = [str(find_mpiexec()), "-n", str(count), *command]
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        environment = {**os.environ, **root, "PYTHONPATH": str(ROOT), "RESULTS": str(results), **settings}
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
        return done.returncode, done.stdout + done.stderr, {int(f.name): f.read_text() for f in results.iterdir()}

    return run


@needs_mpi
@pytest.mark.parametrize("count", [2, 4])
def test_every_process_gets_the_right_values_and_the_same_bits(launch, count):
    status, said, results = launch(count, "values.py")
    assert status == 0, said
    assert len(results) == count and len(set(results.values())) == 1


@needs_mpi
def test_training_in_two_and_four_processes_equals_one_on_the_whole_batch(launch, tmp_path):
    def trained(count: int, cast: str = ""):
        path = tmp_path / f"{count}{cast}.npz"
        status, said, results = launch(count, "train.py", str(path), cast)
        assert status == 0, said
        assert len(results) == count and len(set(results.values())) == 1  # parameters and optimizer state, bit for bit
        with np.load(path) as file:
            return [file[k] for k in file]

    one = trained(1)
    for count in (2, 4):
        for a, b in zip(one, trained(count), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)
    for a, b in zip(one, trained(2, "bfloat16"), strict=True):
        np.testing.assert_allclose(a, b, rtol=0.1, atol=0.1)
    assert one[0][-1] < one[0][0]  # it learns


@needs_mpi
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("os._exit 0", "never came to the end"),
        ("os._exit 3", ""),
        ("SIGKILL", ""),
        ("SIGSEGV", ""),
        ("raise", "RuntimeError: one of two"),
        ("raise before joining", "RuntimeError: no first message"),
        ("sys.exit", "process 0 to gather 0 of 4 float32; process 1 to the end of the program"),
        ("another shape", "process 0 to gather 0 of 4 float32; process 1 to gather 0 of 5 float32"),
        ("another message", "process 0 to gather 0 of 4 float32; process 1 to broadcast 0 of 4 float32 from 0"),
        ("sleep", "process 0 waited 1 s for the others at gather 0 of 4 float32"),
    ],
)
def test_a_process_that_dies_or_goes_astray_ends_the_job_with_an_error(launch, how, said):
    began = time.monotonic()
    status, found, results = launch(2, "die.py", how, COLLECTIVE_TIMEOUT="1" if how == "sleep" else "60")
    assert status != 0 and said in found and not results
    assert time.monotonic() - began < 30


@needs_mpi
@pytest.mark.parametrize("how", ["raise", "sys.exit", "SIGKILL"])
def test_the_same_under_plain_mpiexec(launch, how):
    status, _, results = launch(2, "die.py", how, plain=True)
    assert status != 0 and not results


@needs_mpi
@pytest.mark.parametrize("deaf", ["", "deaf"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_the_launcher(number, deaf, tmp_path):
    command = [sys.executable, "-m", "aril.cli", "launch", "-n", "2", str(PROGRAMS / "stay.py"), str(tmp_path), deaf]
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    environment |= {"PYTHONPATH": str(ROOT)}
    launcher = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment, start_new_session=True)
    try:
        _until(lambda: len(list(tmp_path.glob("[0-9]*"))) == 2, 30)
        launcher.send_signal(number)
        assert launcher.wait(20) == (-number if number == signal.SIGKILL else 130)
        pids = [int(f.name) for f in tmp_path.glob("[0-9]*")]
        _until(lambda: not any(map(_runs, pids)), 10)
    finally:
        launcher.kill()


def _until(there, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    """Whether it is there, and no zombie that nobody has asked about."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    return bool(state) and not state.startswith("Z")


@needs_mpi
def test_a_forked_child_is_none_of_them(launch):
    status, said, results = launch(2, "die.py", "fork")
    assert status == 0 and results == dict.fromkeys((0, 1), "[2.0, 2.0, 2.0, 2.0]"), said


def test_alone_everything_is_its_own_value():
    world = distributed.init()
    assert (world.rank, world.size) == (0, 1) and "one process" in repr(world)
    x = Tensor([1.0, 2.0])
    for op in ("sum", "mean", "max"):
        assert distributed.allreduce(x, op).tolist() == [1.0, 2.0]
    assert distributed.gather(x).tolist() == [[1.0, 2.0]] and distributed.broadcast(x).tolist() == [1.0, 2.0]
    layer = nn.Linear(2, 1)
    distributed.same_everywhere(nn.state.get_parameters(layer))
    layer(x).sum().backward()
    distributed.reduce_gradients(nn.state.get_parameters(layer))
    assert layer.weight.grad.tolist() == [[1.0, 2.0]]
    distributed.barrier()


@pytest.mark.parametrize(
    ("wrong", "error", "said"),
    [
        (lambda x: distributed.allreduce(x, "min"), ValueError, "op='min'; there are sum, mean, max"),
        (lambda x: distributed.allreduce(x.cast("int32"), "mean"), TypeError, "mean of int32"),
        (lambda x: distributed.allreduce(x, cast="int8"), TypeError, "cast=int8 is no float type"),
        (lambda x: distributed.allreduce(x > 0), TypeError, "sum of bool"),
        (lambda x: distributed.broadcast(x, root=1), ValueError, "processes 0 to 0"),
        (lambda x: distributed.gather(x.shard(("CPU:0", "CPU:1"), 0)), NotImplementedError, "bring it to one"),
    ],
)
def test_what_cannot_be_sent_is_refused(wrong, error, said):
    with pytest.raises(error, match=said):
        wrong(Tensor([1.0, 2.0]))


def test_messages_run_in_the_order_they_were_written_whatever_is_asked_for_first():
    among = Exchange("", 0, 2)
    x = Tensor(np.ones(4, np.float32)).realize().uop
    a = exchange((x + 1).contiguous(), "gather", among)
    b = exchange((x + 2).contiguous(), "broadcast", among)
    c = exchange((x + 3).contiguous(), "gather", among)
    kinds = []
    for roots in ([a, b, c], [c, b, a], [(b * 2).contiguous(), c, a]):
        normal = normalize(roots)
        items = schedule(normal.graph, len(normal.buffers)).items
        kinds.append([i.exchange.kind for i in items if i.exchange is not None])
    assert kinds == [["gather", "broadcast", "gather"]] * 3
    again = normalize([exchange((x + 1).contiguous(), "gather", among)])
    assert again.graph is normalize([a]).graph  # messages of other runs are found in the schedule cache
