"""Several Python threads build, compile and realize at once; processes forked or spawned afterwards compute too; errors
leave caches sane; what crashes says which kernel it was.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aril import Tensor, jit
from aril.engine import compile as compiler
from aril.runtime import workers
from aril.runtime.workers import WorkerError
from tests.engine.child import compute

ROOT = str(Path(__file__).parents[2])


def test_threads_at_once() -> None:
    shared = Tensor(np.arange(12, dtype=np.float32).reshape(3, 4)).realize()
    errors: list[BaseException] = []
    start = threading.Barrier(6)

    def work(k: int) -> None:
        try:
            start.wait()
            own = Tensor(np.full((3, 4), k, np.float32))
            f = jit(lambda x: (x + shared).sum(0) * 2)
            for i in range(6):
                y = ((own + shared) * (k + 2)).sum(1)
                np.testing.assert_allclose(y.numpy(), ((k + np.arange(12).reshape(3, 4)) * (k + 2)).sum(1))
                own.assign(own + 1).realize()
                own.assign(own - 1)
                assert own.numpy().tolist() == [[k] * 4] * 3
                out = f(Tensor(np.full((3, 4), i, np.float32)))
                np.testing.assert_allclose(out.numpy(), (i + np.arange(12).reshape(3, 4)).sum(0) * 2)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    assert not errors


def test_one_lazy_value_realized_by_many_threads() -> None:
    x = Tensor(np.arange(1000, dtype=np.float32)).realize()
    for _ in range(5):
        y = (x * 3 + 1).sum()
        found: list[Any] = []
        threads = [threading.Thread(target=lambda y=y, found=found: found.append(y.item())) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
        assert found == [999 * 1000 / 2 * 3 + 1000] * 4


def test_a_forked_process_computes() -> None:
    x = Tensor(np.arange(100_000, dtype=np.float32)).realize()
    expected = (x * 2).sum().item()
    pid = os.fork()
    if pid == 0:
        try:
            ok = (x * 2).sum().item() == expected and (x + 5).max().item() == 100_004
            os._exit(0 if ok else 1)
        except BaseException:
            os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0
    assert (x * 2).sum().item() == expected


@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt()])
def test_an_error_while_compiling_leaves_everything_usable(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    x = Tensor(np.arange(7, dtype=np.float32)).realize()
    y = (x * 1.25 + (0.5 if isinstance(error, RuntimeError) else 0.75)).sum()

    def fail(*_: Any) -> Any:
        raise error

    with monkeypatch.context() as m:
        m.setattr(compiler, "compile_body", fail)
        m.setattr(compiler.cache, "get", lambda *_: None)
        with pytest.raises(type(error)):
            y.realize()
    assert y.item() == pytest.approx(26.25 + 7 * (0.5 if isinstance(error, RuntimeError) else 0.75))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_of_every_kind_compute_after_the_parent_has(method: str) -> None:
    assert compute(3) == 3 * 4950 + 100
    context = multiprocessing.get_context(method)
    with context.Pool(2) as pool:
        assert pool.map_async(compute, range(4)).get(60) == [k * 4950 + 100 for k in range(4)]


FORKS = """
    import os, signal, sys, threading, time
    import numpy as np
    from aril import Tensor, jit

    stop = threading.Event()
    numbers = np.arange(100, dtype=np.float32)

    def work(k):
        step = jit(lambda x: (x * k).sum())
        i = 0
        while not stop.is_set():
            i += 1
            Tensor.rand(3).realize()
            (Tensor(numbers[: i % 50 + 2]) * (k + 1)).sum().item()  # new kernels, lazy imports
            step(Tensor(numbers)).item()

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for t in threads:
        t.start()
    wrong = []
    for n in range(12):
        pid = os.fork()
        if pid == 0:
            good = (Tensor(numbers) * n).sum().item() == 4950 * n and Tensor.rand(2).shape == (2,)
            os._exit(0 if good else 1)
        end = time.monotonic() + 20
        while (done := os.waitpid(pid, os.WNOHANG))[0] == 0 and time.monotonic() < end:
            time.sleep(0.005)
        if done != (pid, 0):
            wrong.append((n, done))
            os.kill(pid, signal.SIGKILL)
            break
    stop.set()
    for t in threads:
        t.join()
    print("wrong:", wrong)
"""


def run(program: str, cwd: Path | None = None, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": ROOT, **settings}
    command = [sys.executable, "-c", textwrap.dedent(program)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, cwd=cwd)


def test_a_fork_while_other_threads_import_compile_and_run() -> None:
    done = run(FORKS)
    assert done.stdout == "wrong: []\n", done.stdout + done.stderr


IMPORTS = """
    import os, sys, threading

    entered, go = threading.Event(), threading.Event()
    os.makedirs("slowly")
    with open("slowly/__init__.py", "w") as f:
        f.write("import __main__; __main__.entered.set(); __main__.go.wait(60); ready = True")
    sys.path.insert(0, ".")

    from aril import Tensor, forks

    forks.PATIENCE_S = 0.05  # the fork comes while the thread is still in the middle of it
    thread = threading.Thread(target=lambda: __import__("slowly"))
    thread.start()
    entered.wait(60)
    pid = os.fork()
    if pid == 0:
        import faulthandler

        faulthandler.dump_traceback_later(20, exit=True)
        go.set()
        import slowly

        os._exit(0 if slowly.ready and Tensor([1, 2]).sum().item() == 3 else 1)
    print("child:", os.waitpid(pid, 0)[1])
    go.set()
    thread.join()
"""


def test_a_child_imports_what_a_thread_of_its_parent_was_importing(tmp_path: Path) -> None:
    done = run(IMPORTS, cwd=tmp_path)
    assert done.stdout == "child: 0\n", done.stdout + done.stderr


BAD_CALL = """
    from aril import Tensor, dtypes
    from aril.ops import Ops
    from aril.uop import KernelInfo, UOp

    def reckless(out, x):
        i = UOp.range(x.numel(), 0)
        call = "call float inttoptr (i64 64 to ptr)({t0} {0})"
        value = UOp(Ops.CUSTOMI, (x[i],), (call, dtypes.float32, "llvm"), dtypes.float32)
        return out[i].store(value).end(i).sink().replace(arg=KernelInfo("reckless"))

    x = Tensor.arange(8).float().realize()
    print("before", flush=True)
    Tensor.custom_kernel(Tensor.empty(8), x, fxn=reckless)[0].realize()
    print("after")
"""


def test_a_kernel_that_crashes_ends_with_its_name() -> None:
    began = time.monotonic()
    done = run(BAD_CALL)
    assert done.returncode == -signal.SIGSEGV and done.stdout == "before\n"
    assert "aril: kernel crashed: reckless" in done.stderr, done.stderr
    assert time.monotonic() - began < 60


def test_a_compile_worker_that_dies_is_an_error_with_the_kernels_name(monkeypatch: pytest.MonkeyPatch) -> None:
    x = Tensor(np.arange(11, dtype=np.float32)).realize()
    sums = [(x * k).exp().sum() for k in (1.0625, 2.0625)]
    products = [(x + k).sin() for k in (1.0625, 2.0625)]
    submit = workers.submit

    def die(function: str, payload: bytes, label: str = "") -> Any:
        return submit("tests.runtime.worker_tasks:die", str(int(signal.SIGKILL)).encode(), label)

    with monkeypatch.context() as m:
        m.setattr(workers, "submit", die)
        m.setattr(compiler.cache, "get", lambda *_: None)
        m.setattr(compiler, "PARALLEL_FROM", 2)
        with pytest.raises(WorkerError, match=r"^[er]_\d\w*: the worker process died \(signal SIGKILL\)"):
            sums[0].realize(*sums[1:], *products)
    sums[0].realize(*sums[1:], *products)
    np.testing.assert_allclose(sums[0].item(), np.exp(np.arange(11) * 1.0625).sum(), rtol=1e-5)
