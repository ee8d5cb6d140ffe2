"""Compile workers: answers, errors that name the task, death, and nothing left behind."""

import os
import signal
import subprocess
import sys
import time

import pytest

from aril.config import Context
from aril.runtime import workers
from aril.runtime.workers import WorkerError, Workers

TASKS = "tests.runtime.worker_tasks"


@pytest.fixture
def pool():
    pool = Workers(2)
    yield pool
    pool.close()


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_answers_come_back_whatever_their_size(pool):
    payloads = [b"", b"abc", os.urandom(300_000).hex().encode()] * 3
    futures = [pool.submit(f"{TASKS}:upper", one) for one in payloads]
    assert [future.result(60) for future in futures] == [one.upper() for one in payloads]


def test_processes_stay_warm_and_are_few(pool):
    pids = {pool.submit(f"{TASKS}:pid", b"").result(60) for _ in range(5)}
    assert len(pids) == 1
    both = [pool.submit(f"{TASKS}:pid", b"0.2") for _ in range(6)]
    assert len({future.result(60) for future in both}) == 2


def test_an_error_names_the_task_and_the_worker_goes_on(pool):
    with pytest.raises(WorkerError, match=r"(?s)kernel E_4.*no luck today"):
        pool.submit(f"{TASKS}:fail", b"luck", "kernel E_4").result(60)
    assert pool.submit(f"{TASKS}:upper", b"a").result(60) == b"A"


def test_a_worker_that_dies_gives_an_error_and_is_replaced(pool):
    with pytest.raises(WorkerError, match=r"kernel r_8: the worker process died \(signal SIGSEGV\)"):
        pool.submit(f"{TASKS}:die", str(int(signal.SIGSEGV)).encode(), "kernel r_8").result(60)
    assert pool.submit(f"{TASKS}:upper", b"a").result(60) == b"A"


def test_closing_ends_a_worker_in_the_middle_of_a_task():
    pool = Workers(1)
    pid = int(pool.submit(f"{TASKS}:pid", b"").result(60))
    slow = pool.submit(f"{TASKS}:pid", b"60")
    time.sleep(0.1)
    pool.close()
    with pytest.raises(WorkerError):
        slow.result(60)
    assert not alive(pid)


def test_no_workers_means_this_process():
    with Context(COMPILE_WORKERS=0):
        assert workers.submit(f"{TASKS}:pid", b"").result() == str(os.getpid()).encode()
        with pytest.raises(ValueError, match="no luck today"):
            workers.submit(f"{TASKS}:fail", b"luck").result()


SCRIPT = f"""
import os, sys, time
from aril.runtime.workers import submit
print(submit("{TASKS}:pid", b"").result().decode(), flush=True)
"""


def start(script: str, **options) -> tuple[subprocess.Popen, int]:
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=root, text=True, **options)
    return process, int(process.stdout.readline())


def gone(pid: int, seconds: float = 10) -> bool:
    end = time.time() + seconds
    while alive(pid) and time.time() < end:
        time.sleep(0.02)
    return not alive(pid)


@pytest.mark.parametrize(
    ("rest", "how"),
    [("", None), ("raise SystemExit(3)", None), ("time.sleep(60)", signal.SIGINT), ("time.sleep(60)", signal.SIGKILL)],
)
def test_no_worker_outlives_its_parent(rest, how):
    process, worker = start(SCRIPT + rest, stderr=subprocess.DEVNULL)
    if how is not None:
        process.send_signal(how)
    process.wait(30)
    process.stdout.close()
    assert gone(worker)


def test_a_child_of_fork_starts_workers_of_its_own():
    script = SCRIPT + (
        f"if os.fork() == 0:\n  mine = submit('{TASKS}:pid', b'').result()\n  print(mine.decode(), flush=True)\n"
        f"else:\n  os.wait(); print(submit('{TASKS}:pid', b'').result().decode())"
    )
    process, worker = start(script)
    of_child, of_parent = int(process.stdout.readline()), int(process.stdout.readline())
    process.wait(30)
    process.stdout.close()
    assert of_parent == worker != of_child
    assert gone(worker) and gone(of_child)


def test_ctrl_c_while_waiting_leaves_nothing():
    process, worker = start(SCRIPT + f"submit('{TASKS}:pid', b'60').result()", stderr=subprocess.PIPE)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    errors = process.communicate(timeout=30)[1]
    assert "KeyboardInterrupt" in errors
    assert gone(worker)


def test_a_worker_imports_only_what_its_tasks_need():
    heavy = "('numpy', 'llvmlite', 'aril.uop')"
    code = f"import sys; import aril.runtime.workers; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_getting_ready_opens_no_device():
    """A compile worker imports what it needs and stays one thread: a device would start its own and pin them."""
    code = (
        "import aril.engine.compile as c, threading, aril.device as d; assert c.import_compiler(b'x') == b'x';"
        "import sys; assert 'aril.codegen.linearize' in sys.modules; assert threading.active_count() == 1;"
        "assert not d.Device.opened, d.Device.opened"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
