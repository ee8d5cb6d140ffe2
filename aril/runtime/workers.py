"""Warm worker processes that compile: LLVM takes one lock a process, so compiling in parallel takes processes.

In come the name of a function of bytes ("aril.codegen:compile_kernel_bytes") and its argument; out goes a future of the
bytes it returns. Frames with lengths go over pipes of our own; nothing is pickled.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import queue
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import lru_cache
from typing import IO

from aril.config import COMPILE_WORKERS
from aril.runtime.target import usable_cores

# Request: lengths of the function's name and of the payload. Answer: whether it succeeded, and a length.
_REQUEST = struct.Struct("<IQ")
_ANSWER = struct.Struct("<BQ")
_DONE, _FAILED = 0, 1
ORPHAN_CHECK_S = 2.0  # how soon a worker notices that its parent is gone, should its pipe stay open


class WorkerError(RuntimeError):
    """A task failed in a worker process, or the process died at it. Names the task."""


class Workers:
    """At most `limit` processes, each started when there is work that no idle one can take, and kept."""

    def __init__(self, limit: int) -> None:
        self.limit = max(1, limit)
        self._tasks: queue.SimpleQueue[tuple[str, bytes, str, Future[bytes]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._open = 0  # tasks handed in and not finished
        self._closed = False

    @property
    def started(self) -> bool:
        """Whether any work has been handed in."""
        return bool(self._threads)

    def submit(self, function: str, payload: bytes, label: str = "") -> Future[bytes]:
        """Run `function` ("module:name", bytes to bytes) on `payload` in a worker.

        The future holds what it returns, or a WorkerError that names `label` (or the function) and what happened.
        """
        future: Future[bytes] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("the compile workers were closed")
            self._open += 1
            self._tasks.put((function, payload, label or function, future))
            if len(self._threads) < min(self.limit, self._open):
                thread = threading.Thread(target=self._serve, name="aril-compile", daemon=True)
                self._threads.append(thread)
                thread.start()
        return future

    def get_ready(self, function: str) -> None:
        """Start all workers and have each run `function` (of bytes, to import what tasks need), without waiting."""
        for _ in range(self.limit):
            self.submit(function, b"")

    def _serve(self) -> None:
        """Own one process: give it tasks one by one, start it again when it died."""
        process: subprocess.Popen[bytes] | None = None
        while (task := self._tasks.get()) is not None:
            function, payload, label, future = task
            if future.set_running_or_notify_cancel():
                try:
                    if process is None:
                        process = self._spawn()
                    future.set_result(_exchange(process, function, payload, label))
                except WorkerError as error:
                    if process is not None and process.poll() is not None:
                        self._drop(process)
                        process = None
                    future.set_exception(error)
                except BaseException as error:
                    future.set_exception(WorkerError(f"{label}: no worker process could take it: {error!r}"))
                    if process is not None:
                        self._drop(process)
                        process = None
            with self._lock:
                self._open -= 1
        if process is not None:
            self._drop(process)

    def _spawn(self) -> subprocess.Popen[bytes]:
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        # -I: neither the user's current folder nor PYTHONSTARTUP and the like change what a worker runs; modules are
        # found where this process finds them.
        path = [root, *(one for one in sys.path if one and one != root)]
        code = f"import sys; sys.path[:] = {path!r}; from aril.runtime.workers import main; main()"
        # A group of its own: Ctrl-C reaches the parent, which decides.
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # buffered streams hold locks, which a fork may copy while they are taken
            process_group=0,
        )
        with self._lock:
            self._processes.add(process)
        return process

    def _drop(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._processes.discard(process)
        _end(process)

    def close(self) -> None:
        """End all processes, whatever they are doing. Tasks not finished fail."""
        with self._lock:
            self._closed = True
            processes = list(self._processes)
        for _ in self._threads:
            self._tasks.put(None)
        for process in processes:
            _end(process)


def _exchange(process: subprocess.Popen[bytes], function: str, payload: bytes, label: str) -> bytes:
    assert process.stdin is not None and process.stdout is not None
    name = function.encode()
    try:
        _write(process.stdin, _REQUEST.pack(len(name), len(payload)) + name)
        _write(process.stdin, payload)
        status, size = _ANSWER.unpack(_read(process.stdout, _ANSWER.size))
        answer = _read(process.stdout, size)
    except (OSError, EOFError, struct.error) as error:
        process.kill()
        code = process.wait()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        raise WorkerError(
            f"{label}: the worker process died ({how}); COMPILE_WORKERS=0 compiles in this process and shows more"
        ) from error
    if status != _DONE:
        raise WorkerError(f"{label}: {answer.decode(errors='replace')}")
    return answer


def _write(stream: IO[bytes], data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[stream.write(left) :]


def _read(stream: IO[bytes], size: int) -> bytes:
    parts = []
    while size:
        part = stream.read(size)
        if not part:
            raise EOFError(f"the pipe ended {size} bytes early")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _end(process: subprocess.Popen[bytes]) -> None:
    """A worker holds nothing that could be lost (its files are renamed into place), so it need not be asked."""
    with contextlib.suppress(OSError):
        process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


_shared: list[Workers] = []
_lock = threading.Lock()


def shared_workers() -> Workers | None:
    """The process's workers, as many as COMPILE_WORKERS says (-1: one a usable core); None when it says 0."""
    wanted = COMPILE_WORKERS.value
    if wanted == 0:
        return None
    with _lock:
        if not _shared:
            _shared.append(Workers(usable_cores() if wanted < 0 else wanted))
            atexit.register(_close)
        return _shared[0]


def submit(function: str, payload: bytes, label: str = "") -> Future[bytes]:
    """Run `function` ("module:name", bytes to bytes) in a worker, or here and now when COMPILE_WORKERS=0."""
    workers = shared_workers()
    if workers is not None:
        return workers.submit(function, payload, label)
    future: Future[bytes] = Future()
    try:
        future.set_result(_function(function)(payload))
    except Exception as error:
        future.set_exception(error)
    return future


def get_ready(function: str) -> None:
    """Start the workers, where there are any that have not started: see `Workers.get_ready`."""
    workers = shared_workers()
    if workers is not None and not workers.started:
        workers.get_ready(function)


def _close() -> None:
    if _shared:
        _shared.pop().close()


def _forget() -> None:
    """A child of fork must not talk over its parent's pipes, and the threads that own them do not exist in it."""
    global _lock
    _lock = threading.Lock()
    for workers in _shared:
        for process in workers._processes:
            process.returncode = 0  # not our child: neither waited for nor warned about
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()
    _shared.clear()


os.register_at_fork(after_in_child=_forget)


# -------------------------------------------------------------------------------------------- in the worker process


@lru_cache(maxsize=64)
def _function(where: str) -> Callable[[bytes], bytes]:
    module, _, name = where.partition(":")
    found: Callable[[bytes], bytes] = getattr(importlib.import_module(module), name)
    return found


def main() -> None:
    """The worker's loop: tasks from stdin, answers to stdout, until stdin ends or the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tasks = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    # What a task prints goes to stderr: the pipe carries answers only.
    os.dup2(2, 1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    threading.Thread(target=_watch_parent, args=(os.getppid(),), daemon=True).start()
    # Graphs are made and dropped by the hundred thousand and hold no cycles: looking for some takes a tenth of a task.
    gc.set_threshold(500_000, 20, 100)
    while len(head := tasks.read(_REQUEST.size)) == _REQUEST.size:
        name_size, size = _REQUEST.unpack(head)
        name = tasks.read(name_size).decode()
        payload = tasks.read(size)
        try:
            status, answer = _DONE, _function(name)(payload)
        except Exception as error:
            status, answer = _FAILED, _describe(error)
        try:
            answers.write(_ANSWER.pack(status, len(answer)))
            answers.write(answer)
            answers.flush()
        except OSError:
            break
    # No interpreter shutdown: there is nothing to finish, and LLVM's takes time.
    os._exit(0)


def _describe(error: Exception) -> bytes:
    import traceback

    if type(error).__name__ == "CompileError":
        return str(error).encode()
    return "".join(traceback.format_exception(error)).encode()


def _watch_parent(parent: int) -> None:
    """End with the parent even when a child of its fork keeps the other end of our pipe open."""
    import time

    while os.getppid() == parent:
        time.sleep(ORPHAN_CHECK_S)
    os._exit(0)


if __name__ == "__main__":
    main()
