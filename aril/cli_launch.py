"""`aril launch -n COUNT program.py`: one program in several processes, started by MPI's own launcher.

In come a program and a number; out goes the exit status, which is 0 only where every process came to its end. As a
module this is what each process runs: it joins the others first, so that an error at any line ends all of them.
"""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

# Settings of Open MPI (4, then 5) without which it starts no more processes than there are cores.
_MORE_THAN_CORES = {"OMPI_MCA_rmaps_base_oversubscribe": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}


def launch(count: int, program: str, arguments: Sequence[str], options: Sequence[str] = ()) -> int:
    """Run `program` in `count` processes; `options` go to mpiexec. Errors: ValueError where there is no mpiexec."""
    mpiexec = find_mpiexec()
    if mpiexec is None:
        raise ValueError("launch: there is no mpiexec here; `pip install aril[mpi]` brings one")
    if not Path(program).is_file():
        raise ValueError(f"launch: there is no file {program}")
    root = str(Path(__file__).parent.parent)
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))
    with tempfile.TemporaryDirectory(prefix="aril-launch-") as folder:
        environment = {**_MORE_THAN_CORES, **os.environ, "PYTHONPATH": path, "ARIL_LAUNCH": folder}
        command = [mpiexec, *options, "-n", str(count), sys.executable, "-m", "aril.cli_launch", program, *arguments]
        status = subprocess.call(command, env=environment)
        lost = [i for i in range(count) if _noted(folder, "started", i) and not _noted(folder, "ended", i)]
    if status == 0 and lost:
        # os._exit(0), or the like, looks to a launcher as an end should
        print(f"aril: process {', '.join(map(str, lost))} of {count} never came to the end", file=sys.stderr)
        return 1
    return status if status >= 0 else 128 - status


def find_mpiexec() -> str | None:
    """The launcher beside this Python, where pip puts it, else that of the system."""
    beside = Path(sys.executable).parent / "mpiexec"
    return str(beside) if beside.exists() else shutil.which("mpiexec") or shutil.which("mpirun")


def _noted(folder: str, what: str, rank: int) -> bool:
    return os.path.exists(os.path.join(folder, f"{what}-{rank}"))


def main() -> None:
    """In each process: join the others, then run the program as `python program.py` would."""
    from aril.distributed import init

    init()
    program, *arguments = sys.argv[1:]
    sys.argv = [program, *arguments]
    sys.path[0] = str(Path(program).resolve().parent)
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
