"""Processes that speak through MPI, by mpi4py (the extra `mpi`): bytes of device memory, as they lie.

Before each message all processes agree that they are about to send the same one, so that a difference is an error and
no hang. Waiting has an end and is open to Ctrl-C. MPI's own launcher ends the job when a process is killed; here an
error that nobody caught does, and an end before the others'.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import sys
import threading
import time
from typing import Any

import numpy as np
from mpi4py import MPI

from aril.config import COLLECTIVE_TIMEOUT, NUM_CPU_THREADS, adopt
from aril.runtime.processes import ProcessError, World
from aril.runtime.target import usable_cores

SPIN_S = 1e-3  # waiting without sleep
NAP_S = 50e-6
LABEL_BYTES = 120
_END = "the end of the program"


class MpiWorld(World):
    """All processes of the MPI job."""

    name = "MPI"

    def __init__(self) -> None:
        self._comm = MPI.COMM_WORLD.Dup()  # messages of the program's own use of MPI are not ours
        self.rank, self.size = self._comm.rank, self._comm.size
        self._count = 0
        self._lock = threading.RLock()
        self._pid = os.getpid()
        atexit.register(self._finalize)
        self._crowded = False  # more processes than cores
        if self.size > 1:
            self._share_cores()
            self._end_together()

    def exchange(self, kind: str, sent: memoryview, got: memoryview, root: int, label: str) -> None:
        with self._lock:
            self._agree(label)
            s, g = [sent, MPI.BYTE], [got, MPI.BYTE]
            if max(sent.nbytes, got.nbytes) >= 1 << 31:
                raise ProcessError(f"{label}: a message has less than 2 GiB; send the value in pieces")
            if kind == "gather":
                request = self._comm.Iallgather(s, g)
            elif kind == "alltoall":
                request = self._comm.Ialltoall(s, g)
            else:
                if self.rank == root:
                    got[:] = sent
                request = self._comm.Ibcast(g, root)
            self._wait(request, label)

    def barrier(self) -> None:
        with self._lock:
            self._agree("barrier")

    # --- agreeing ---

    def _agree(self, label: str) -> None:
        """Return when every process is here with the same label. ProcessError in each of them where labels differ."""
        self._count += 1
        digest = hashlib.blake2b(f"{self._count} {label}".encode(), digest_size=7).digest()
        number = int.from_bytes(digest, "little")
        mine, found = np.array([number, -number]), np.empty(2, np.int64)
        self._wait(self._comm.Iallreduce(mine, found, MPI.MAX), label)
        if found[0] != -found[1]:
            raise ProcessError(self._difference(label))

    def _wait(self, request: Any, label: str) -> None:
        start = time.perf_counter()
        while not request.Test():
            waited = time.perf_counter() - start
            if self._crowded:
                os.sched_yield()  # to those that the core is shared with
            if waited > SPIN_S:
                limit = COLLECTIVE_TIMEOUT.value
                if limit and waited > limit:
                    raise ProcessError(
                        f"process {self.rank} waited {limit} s for the others at {label}: at least one has not come "
                        "there (COLLECTIVE_TIMEOUT sets the time)"
                    )
                time.sleep(NAP_S)

    def _difference(self, label: str) -> str:
        """What each process was about to do."""
        mine = np.zeros(LABEL_BYTES, np.uint8)
        text = label.encode()[:LABEL_BYTES]
        mine[: len(text)] = np.frombuffer(text, np.uint8)
        all_ = np.empty((self.size, LABEL_BYTES), np.uint8)
        self._comm.Allgather(mine, all_)
        labels = [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in all_]
        which = {one: [i for i, other in enumerate(labels) if other == one] for one in labels}
        said = "; ".join(
            [f"process{'es' * (len(n) > 1)} {', '.join(map(str, n))} to {one}" for one, n in which.items()]
        )
        return f"the processes do not do the same, as they must: {said} (message {self._count})"

    # --- living and dying together ---

    def _end_together(self) -> None:
        before = sys.excepthook

        def failed(kind: Any, error: Any, trace: Any) -> None:
            before(kind, error, trace)
            self._abort("an error that nobody caught")

        sys.excepthook = failed
        atexit.register(self._leave)
        _note("started", self.rank)

    def _leave(self) -> None:
        """A process that ends while others go on would leave them waiting."""
        if os.getpid() != self._pid:
            return  # a forked child's
        try:
            self._agree(_END)
        except ProcessError as error:
            print(f"aril: {error}", file=sys.stderr)
            self._abort(_END)
        except KeyboardInterrupt:
            self._abort("Ctrl-C")
        else:
            _note("ended", self.rank)

    def _finalize(self) -> None:
        if os.getpid() == self._pid and not MPI.Is_finalized():
            MPI.Finalize()

    def _abort(self, why: str) -> None:
        if os.getpid() != self._pid:
            return
        print(f"aril: process {self.rank} of {self.size} ends the job ({why})", file=sys.stderr)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        self._comm.Abort(1)

    # --- cores ---

    def _share_cores(self) -> None:
        """Processes that may run on the same cores divide them, unless NUM_CPU_THREADS is set."""
        if not hasattr(os, "sched_getaffinity"):
            return
        here = self._comm.Split_type(MPI.COMM_TYPE_SHARED)
        mine, shared = np.zeros(4096, np.int32), np.empty(4096, np.int32)
        own = [core for core in os.sched_getaffinity(0) if core < len(mine)]
        mine[own] = 1
        here.Allreduce(mine, shared)
        here.Free()
        rivals = int(shared[own].max(initial=1))
        self._crowded = usable_cores() < rivals
        if not os.environ.get("NUM_CPU_THREADS", "").strip():
            adopt(NUM_CPU_THREADS, max(1, usable_cores() // rivals))


def _note(what: str, rank: int) -> None:
    """Tell `aril launch` that this process started, or ended as it should."""
    folder = os.environ.get("ARIL_LAUNCH")
    if folder and os.path.isdir(folder):  # on other machines there is none
        with open(os.path.join(folder, f"{what}-{rank}"), "w"):
            pass
