"""Processes that make a loader's batches: numbers of batches out, batches in, their arrays in shared memory.

Nothing has a name in the file system: the memory is files that are unlinked from the start, so it goes when the last
process that maps it is gone, however that came. Pipes carry numbers only.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import multiprocessing
import os
import pickle
import signal
import tempfile
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from io import BytesIO
from itertools import count
from multiprocessing import connection
from multiprocessing.reduction import DupFd
from typing import Any, NoReturn

import numpy as np

ALIGN = 64
LOOK_S = 2.0  # how often a worker looks whether its parent is there, should the pipe stay open
PATIENCE_S = 1.0  # how long workers get to end by themselves

_DONE, _END, _RAISED = "done", "end", "raised"

# What makes batch number `i`; None past the last one. Pickled once, for processes that are not forked.
Maker = Callable[[int, int, int], Any]  # (seed, epoch, i)


class LoaderError(RuntimeError):
    """A worker process of a loader died, or gave no answer in time."""


# ------------------------------------------------------------------------------------------------------------- memory


class SharedFile:
    """Memory shared with worker processes, growing as needed. Given to one as it starts; never named."""

    def __init__(self) -> None:
        if hasattr(os, "memfd_create"):
            self.fd = os.memfd_create("aril-loader", os.MFD_CLOEXEC)
        else:  # macOS
            with tempfile.TemporaryFile() as file:
                self.fd = os.dup(file.fileno())
        self.map: mmap.mmap | None = None
        weakref.finalize(self, os.close, self.fd).atexit = False

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (DupFd(self.fd),)  # only while a process is being started

    def memory(self, nbytes: int) -> memoryview:
        """At least `nbytes` of it, from its beginning. It lives as long as a view of it."""
        if self.map is None or len(self.map) < nbytes:
            size = max(os.fstat(self.fd).st_size, mmap.PAGESIZE)
            while size < nbytes:
                size *= 2
            if os.fstat(self.fd).st_size < size:
                os.ftruncate(self.fd, size)
            self.map = mmap.mmap(self.fd, size)
        return memoryview(self.map)

    def window(self, on_release: Callable[[], None] | None = None) -> memoryview:
        """All that is mapped; `on_release` is called when nobody looks at it any more."""
        assert self.map is not None
        owner = (ctypes.c_char * len(self.map)).from_buffer(self.map)
        if on_release is not None:
            weakref.finalize(owner, on_release).atexit = False
        return memoryview(owner).cast("B")


def _received(fd: Any) -> SharedFile:
    file = SharedFile.__new__(SharedFile)
    file.fd, file.map = fd.detach(), None
    weakref.finalize(file, os.close, file.fd).atexit = False
    return file


class _Pickler(pickle.Pickler):
    """Pickles whose arrays lie outside, also those that are not contiguous."""

    def reducer_override(self, x: Any) -> Any:
        if type(x) is np.ndarray and not x.dtype.hasobject and not (x.flags.c_contiguous or x.flags.f_contiguous):
            return np.ascontiguousarray(x).__reduce_ex__(5)
        return NotImplemented


# Where things lie in a SharedFile: (first byte, length) of the pickle, then of each array.
Places = list[tuple[int, int]]


def put(thing: Any, file: SharedFile) -> Places:
    """Write `thing` into `file`: arrays as they lie in memory, the rest as a pickle."""
    stream, outside = BytesIO(), list[pickle.PickleBuffer]()
    _Pickler(stream, 5, buffer_callback=outside.append).dump(thing)
    parts = [stream.getbuffer(), *[b.raw() for b in outside]]
    places, at = [], 0
    for part in parts:
        places.append((at, part.nbytes))
        at += -(-part.nbytes // ALIGN) * ALIGN
    memory = file.memory(at)
    for (start, size), part in zip(places, parts, strict=True):
        memory[start : start + size] = part
    return places


def take(file: SharedFile, places: Places, on_release: Callable[[], None] | None = None, copied: bool = False) -> Any:
    """What `put` wrote; its arrays are views of the memory, unless they are to be `copied`."""
    file.memory(max(start + size for start, size in places))
    window = file.window(on_release)
    head, *parts = [window[start : start + size] for start, size in places]
    return pickle.loads(head, buffers=[bytearray(p) if copied else p for p in parts])


# -------------------------------------------------------------------------------------------------- the worker process


def _work(
    number: int,
    pipe: connection.Connection,
    maker: Maker | tuple[SharedFile, Places],
    slots: list[SharedFile],
    setup: Callable[[int], None] | None,
    parent: int | None,
) -> None:
    """Batches as they are asked for: (turn, slot, seed, epoch, i) in, (turn, slot, kind, places) out."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of the terminal; the parent decides
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    process = multiprocessing.parent_process()
    assert process is not None
    failed: BaseException | None = None
    try:
        if isinstance(maker, tuple):
            maker = take(*maker)
        if setup is not None:
            setup(number)
    except Exception as error:  # told to whoever asks for the first batch
        failed = error
    seeded = (-1, -1)
    with contextlib.suppress(EOFError, OSError):
        while True:
            while pipe not in connection.wait([pipe, process.sentinel], LOOK_S):
                # Forked siblings may hold the other end of the pipe and of the sentinel.
                if not process.is_alive() or (parent is not None and os.getppid() != parent):
                    return
            task = pipe.recv()
            if task is None:
                return
            turn, slot, seed, epoch, i = task
            if seeded != (seed, epoch):
                seeded = (seed, epoch)
                _seed_globals(seed, epoch, number)
            try:
                if failed is not None:
                    raise failed
                batch = maker(seed, epoch, i)  # type: ignore[operator]
                answer = (_END, []) if batch is None else (_DONE, put(batch[0], slots[slot]))
            except Exception as error:
                answer = (_RAISED, put(_portable(error, number, i), slots[slot]))
            batch = None
            pipe.send((turn, slot, *answer))


def _seed_globals(seed: int, epoch: int, number: int) -> None:
    """Give the generators of `random` and `np.random` their own sequence in each worker and epoch."""
    import random

    words = np.random.SeedSequence((seed, epoch, number)).generate_state(4)
    random.seed(words.tobytes())
    np.random.seed(words)


def _portable(error: Exception, number: int, i: int) -> Exception:
    """`error` with the worker's traceback in a note; a LoaderError of the same text where it cannot be pickled."""
    text = "".join(traceback.format_exception(error)).rstrip()
    where = f"in worker {number} of the loader, at batch {i}:\n{text}"
    try:
        again = pickle.loads(pickle.dumps(error))
        if type(again) is type(error) and str(again) == str(error):
            error.__cause__ = error.__context__ = None
            error.add_note(where)
            pickle.dumps(error)
            return error
    except Exception:
        pass
    return LoaderError(f"{type(error).__name__} {where}")


# ------------------------------------------------------------------------------------------------- the parent's side


class _Worker:
    def __init__(self, process: Any, pipe: connection.Connection, slots: list[SharedFile]) -> None:
        self.process, self.pipe, self.slots = process, pipe, slots
        self.free = deque(range(len(slots)))
        self.asked: deque[int] = deque()  # numbers of batches it was asked for and has not answered


class Processes:
    """So many workers, each asked for up to `depth` batches ahead. They live until `close` or this process's end."""

    def __init__(
        self,
        maker: Maker,
        workers: int,
        depth: int,
        *,
        method: str | None = None,
        setup: Callable[[int], None] | None = None,
        timeout: float | None = None,
    ) -> None:
        self.depth, self.timeout, self.pid = depth, timeout, os.getpid()
        self.turn = 0
        context = multiprocessing.get_context(method)
        forked = context.get_start_method() == "fork"
        sent: Maker | tuple[SharedFile, Places] = maker
        if not forked:
            file = SharedFile()
            sent = (file, put(maker, file))
        self.workers: list[_Worker] = []
        # A worker starts with Ctrl-C blocked, so that one in its first instants does not end it with a traceback.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for number in range(workers):
                own, other = context.Pipe()
                # As many as it is asked for, one that the user looks at, one that the user may still hold from before.
                slots = [SharedFile() for _ in range(depth + 2)]
                arguments = (number, other, sent, slots, setup, self.pid if forked else None)
                process = context.Process(  # type: ignore[attr-defined]
                    target=_work, args=arguments, name=f"aril-loader-{number}", daemon=True
                )
                process.start()
                other.close()
                self.workers.append(_Worker(process, own, slots))
        except BaseException:
            self.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def batches(self, seed: int, epoch: int, first: int, end: int | None) -> Iterator[Any]:
        """Batches `first` to `end` (None: until the samples end) of an epoch, in order."""
        self.turn += 1  # answers to what an earlier, abandoned iteration asked for are dropped
        for w in self.workers:
            w.asked.clear()
        ready: dict[int, tuple[_Worker, int, str, Places]] = {}
        try:
            yield from self._in_order(seed, epoch, first, end, ready)
        finally:
            for worker, slot, _, _ in ready.values():
                worker.free.append(slot)

    def _in_order(
        self, seed: int, epoch: int, first: int, end: int | None, ready: dict[int, tuple[_Worker, int, str, Places]]
    ) -> Iterator[Any]:
        turn, asked = self.turn, first
        for i in count(first) if end is None else range(first, end):
            if turn != self.turn:
                raise LoaderError("another iteration of this loader began: its workers serve one at a time")
            began = time.monotonic()
            while True:
                asked = self._ask(seed, epoch, asked, end, turn)
                if i in ready:
                    break
                self._receive(ready, i, began)
            worker, slot, kind, places = ready.pop(i)
            release = _Release(worker.free, slot)
            if kind == _DONE:
                # Users who keep many batches get copies, so that their worker is never without a place to work in.
                copied = not worker.free and len(worker.asked) < self.depth
                batch = take(worker.slots[slot], places, release, copied)
                yield batch
                del batch
                continue
            if kind == _END:
                return release()
            error: BaseException = take(worker.slots[slot], places, release, copied=True)
            raise error

    @property
    def usable(self) -> bool:
        """Whether it was not closed, and is this process's own: a child of fork starts its own workers."""
        return bool(self.workers) and self.pid == os.getpid()

    def _ask(self, seed: int, epoch: int, asked: int, end: int | None, turn: int) -> int:
        """Hand out the next batches, each to the worker with the fewest; the number of the first not handed out."""
        while end is None or asked < end:
            able = [w for w in self.workers if w.free and len(w.asked) < self.depth]
            if not able:
                break
            worker = min(able, key=lambda w: len(w.asked))
            slot = worker.free.popleft()
            worker.asked.append(asked)
            with contextlib.suppress(OSError):  # it is gone: found when its answer is waited for
                worker.pipe.send((turn, slot, seed, epoch, asked))
            asked += 1
        return asked

    def _receive(self, ready: dict[int, tuple[_Worker, int, str, Places]], wanted: int, began: float) -> None:
        """Wait for some answers. LoaderError when a worker is gone, or `wanted` took too long."""
        by_pipe: dict[Any, _Worker] = {w.pipe: w for w in self.workers}
        by_sentinel: dict[Any, _Worker] = {w.process.sentinel: w for w in self.workers}
        left = None if self.timeout is None else max(0.0, began + self.timeout - time.monotonic())
        found: list[Any] = connection.wait([*by_pipe, *by_sentinel], left)
        if not found:
            stuck = next(w for w in self.workers if wanted in w.asked)
            what = f"batch {wanted} took more than timeout={self.timeout} s in {stuck.process.name}"
            self.close()
            raise LoaderError(f"{what} (process {stuck.process.pid})")
        for thing in found:
            worker = by_pipe.get(thing) or by_sentinel[thing]
            if thing is not worker.pipe:
                if worker.pipe.poll():
                    continue  # what it said before it died still counts
                self._died(worker)
            try:
                turn, slot, kind, places = worker.pipe.recv()
            except (EOFError, OSError):
                self._died(worker)
            if turn == self.turn:
                ready[worker.asked.popleft()] = (worker, slot, kind, places)
            else:
                worker.free.append(slot)

    def _died(self, worker: _Worker) -> NoReturn:
        worker.process.join(PATIENCE_S)
        code = worker.process.exitcode
        how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit status {code}"
        hint = "; the system ends a process so when memory runs out" if code == -signal.SIGKILL else ""
        at = f" at batch {worker.asked[0]}" if worker.asked else ""
        name = worker.process.name
        self.close()
        raise LoaderError(f"{name} died{at} ({how}{hint}); workers=0 makes the batches in this process and shows more")

    def close(self) -> None:
        """End the workers. Batches already handed out stay valid."""
        if os.getpid() != self.pid:
            return  # a child of fork: they are its parent's
        workers, self.workers = self.workers, []
        self.turn += 1
        for w in workers:
            with contextlib.suppress(OSError):
                w.pipe.send(None)
            w.pipe.close()
        end = time.monotonic() + PATIENCE_S
        for w in workers:
            w.process.join(max(0.0, end - time.monotonic()))
            if w.process.exitcode is None:
                w.process.kill()
                w.process.join()


class _Release:
    """Gives a slot back."""

    def __init__(self, free: deque[int], slot: int) -> None:
        self.free, self.slot = free, slot

    def __call__(self) -> None:
        self.free.append(self.slot)
