"""`aril launch -n COUNT program.py`: one program in several processes, started by MPI's own launcher.

In come a program and a number; out goes the exit status, which is 0 only where every process came to its end. As a
module this is what each process runs: it joins the others first, so that an error at any line ends all of them. No
process outlives the launcher: each waits, in a thread, for the end of a FIFO that only the launcher writes.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

# Settings of Open MPI (4, then 5) without which it starts no more processes than there are cores.
_MORE_THAN_CORES = {"OMPI_MCA_rmaps_base_oversubscribe": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}

GRACE_S = 5.0  # after Ctrl-C or SIGTERM, for what the program does at its end
_LIFE = "launcher"  # the FIFO's name


class _Stopped(BaseException):
    """A signal that ends a launcher came."""


def launch(count: int, program: str, arguments: Sequence[str], options: Sequence[str] = ()) -> int:
    """Run `program` in `count` processes; `options` go to mpiexec. Errors: ValueError where there is no mpiexec."""
    mpiexec = find_mpiexec()
    if mpiexec is None:
        raise ValueError("launch: there is no mpiexec here; aril's extra `mpi` brings one: pip install -e '.[mpi]'")
    if not Path(program).is_file():
        raise ValueError(f"launch: there is no file {program}")
    root = str(Path(__file__).parent.parent)
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))
    with tempfile.TemporaryDirectory(prefix="aril-launch-") as folder:
        environment = {**_MORE_THAN_CORES, **os.environ, "PYTHONPATH": path, "ARIL_LAUNCH": folder}
        command = [mpiexec, *options, "-n", str(count), sys.executable, "-m", "aril.cli_launch", program, *arguments]
        with _life(folder):
            status = _wait(subprocess.Popen(command, env=environment))
        lost = [i for i in range(count) if _noted(folder, "started", i) and not _noted(folder, "ended", i)]
    if status == 0 and lost:
        # os._exit(0), or the like, looks to a launcher as an end should
        print(f"aril: process {', '.join(map(str, lost))} of {count} never came to the end", file=sys.stderr)
        return 1
    return status if status >= 0 else 128 - status


@contextlib.contextmanager
def _life(folder: str) -> Iterator[None]:
    """While this is open the processes may live. However the launcher ends, the system closes it."""
    path = os.path.join(folder, _LIFE)
    os.mkfifo(path)
    end = os.open(path, os.O_RDWR)  # opening it to write only would wait for the first reader
    try:
        yield
    finally:
        os.close(end)


def _die_with_launcher() -> None:
    """End this process, whatever it does and whichever signals it ignores, when the launcher is gone."""
    path = os.path.join(os.environ.get("ARIL_LAUNCH", ""), _LIFE)
    if not os.path.exists(path):  # on other machines there is none
        return
    end = os.open(path, os.O_RDONLY)

    def work() -> None:
        os.read(end, 1)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=work, name="aril-launcher", daemon=True).start()


def _wait(mpiexec: subprocess.Popen[bytes]) -> int:
    """The exit status of `mpiexec`. Signals that end a launcher are passed on; what goes on after GRACE_S is killed."""

    def stop(number: int, frame: object) -> None:
        if number != signal.SIGINT or not _in_foreground():
            mpiexec.send_signal(number)
        raise _Stopped

    before = {n: signal.signal(n, stop) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        return mpiexec.wait()
    except _Stopped as stopped:
        try:
            mpiexec.wait(GRACE_S)
        except (subprocess.TimeoutExpired, _Stopped):
            mpiexec.kill()
            mpiexec.wait()
        raise KeyboardInterrupt from stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _in_foreground() -> bool:
    """Whether a terminal's Ctrl-C comes to this process; mpiexec gets its own then, and takes a second one as haste."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    finally:
        os.close(terminal)


def find_mpiexec() -> str | None:
    """The launcher beside this Python, where pip puts it, else that of the system."""
    beside = Path(sys.executable).parent / "mpiexec"
    return str(beside) if beside.exists() else shutil.which("mpiexec") or shutil.which("mpirun")


def _noted(folder: str, what: str, rank: int) -> bool:
    return os.path.exists(os.path.join(folder, f"{what}-{rank}"))


def main() -> None:
    """In each process: join the others, then run the program as `python program.py` would."""
    from aril.distributed import init

    _die_with_launcher()
    init()
    program, *arguments = sys.argv[1:]
    sys.argv = [program, *arguments]
    sys.path[0] = str(Path(program).resolve().parent)
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
