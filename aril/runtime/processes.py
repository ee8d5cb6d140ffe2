"""The processes that train together: who they are, and the messages between them, behind one interface.

In comes memory; out goes the memory of the others. What carries it is a `World`: MPI (`mpi.py`), or nothing where this
process is alone. Other carriers stand beside them.
"""

from __future__ import annotations

import os
import sys
import threading


class ProcessError(RuntimeError):
    """Processes that should work together do not: they disagree about what comes next, one is gone, or none answers."""


class World:
    """`size` processes, of which this is number `rank`; all of them call the same methods in the same order."""

    name = "one process"
    rank = 0
    size = 1

    def exchange(self, kind: str, sent: memoryview, got: memoryview, root: int, label: str) -> None:
        """Send and receive bytes: "gather" (`got` is what everyone sent, in the order of ranks), "alltoall" (piece i of
        `sent` goes to process i; piece i of `got` came from it) or "broadcast" (`got` is what `root` sent).

        Errors: ProcessError in every process where their `label`s differ.
        """
        got[:] = sent

    def barrier(self) -> None:
        """Return when all processes are here. Errors: ProcessError."""

    def __repr__(self) -> str:
        return f"World(rank={self.rank}, size={self.size}, {self.name})"


_joined: list[World | None] = []  # None: in a forked child of one of several
_lock = threading.Lock()

# What a launcher tells each process: MPICH and Intel MPI (Hydra), Open MPI, MVAPICH, and Slurm by PMIx or PMI.
_LAUNCHERS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMIX_RANK")


def launched() -> bool:
    """Whether a launcher of several processes started this one."""
    return any(name in os.environ for name in _LAUNCHERS)


def join() -> World:
    """The world of this process, joined at the first call: that of the launcher, or of this process alone.

    Errors: ProcessError where a launcher started it and there is no MPI to speak with the others.
    """
    with _lock:
        if not _joined and not launched():
            _joined.append(World())
        if not _joined:
            try:
                import mpi4py

                mpi4py.rc.finalize = False  # at its end a forked child would do it too, and take its parent's job down
                from aril.runtime.mpi import MpiWorld
            except (ImportError, RuntimeError) as error:  # mpi4py says RuntimeError where it finds no MPI library
                raise ProcessError(
                    f"this process was started with others, and cannot speak with them: {error}. "
                    "Install mpi4py and an MPI library (in a clone: pip install -e '.[mpi]')"
                ) from error
            _joined.append(MpiWorld())
        found = _joined[0]
        if found is None:
            raise ProcessError("a forked child cannot speak for its parent; let the parent do it")
        return found


def world(size: int) -> World:
    """The world that a message among `size` processes goes to. Errors: ProcessError where it is another one."""
    found = join()
    if found.size != size:
        raise ProcessError(f"this was written for {size} processes and runs in {found.size}")
    return found


def _forget() -> None:
    """A child of fork is none of the processes, and must not speak for its parent."""
    global _lock
    _lock = threading.Lock()
    if _joined and _joined[0] is not None and _joined[0].size > 1:
        _joined[:] = [None]


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forget)
