"""The overheads, apart from the rows: replay, one eager operation, sizes that are variables, import, first operation,
first step of MNIST, its memory.

In come the peers that are ready; out go seconds, bytes or ratios by what and by whom. What happens once in a process
runs in new ones.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers import Peer

KERNELS = 100
PYTORCH_PEAK = 331 * 2**20  # of the MNIST step by PyTorch 2.13 with two threads: the figure where it does not take part
ROOT = Path(__file__).parent.parent


@dataclass
class Overhead:
    """A line: seconds (or what `unit` says: bytes "B", a ratio "x") by contender, the figure aril is to keep, and notes
    on contenders that have none."""

    name: str
    target: float
    values: dict[str, float] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    unit: str = "s"

    @property
    def met(self) -> bool | None:
        """Whether aril keeps the figure; None without a value."""
        return None if "aril" not in self.values else self.values["aril"] <= self.target


def measure_overheads(
    peers: list[Peer], rounds: int, say: Callable[[str], None], end: float = float("inf")
) -> list[Overhead]:
    """All of them. `rounds` is of the short ones; new processes are started three times, or when quick once
    and for aril only. None starts after `end` (of `time.perf_counter`)."""
    by_name = {p.name: p for p in peers}
    libraries = [p for p in ("aril", "torch", "jax", "tinygrad") if p in by_name]
    again = 3 if rounds >= 15 else 1
    once = libraries if again == 3 else ["aril"]
    networks = [p for p in once if p != "jax"]
    tasks: list[Callable[[], Overhead]] = [
        lambda: _replay(by_name, rounds),
        lambda: _eager(by_name, rounds),
        *[lambda case=case: _variable(by_name, rounds, *case) for case in VARIABLE],  # type: ignore[misc]
        lambda: _imports(libraries, 5 if again == 3 else 3),
        lambda: _once("first operation, cold", 1.0, "first", once, again, warm=False),
        lambda: _once("first operation, warm", 0.4, "first", once, again, warm=True),
        lambda: _once("first MNIST step, cold", 6.0, "mnist", networks, again, warm=False),
        lambda: _once("first MNIST step, warm", 2.0, "mnist", networks, again, warm=True),
        *[
            lambda kind=kind, figure=figure: _once(  # type: ignore[misc]
                f"first {FIRST_STEPS[kind]} step, cold",
                figure,
                kind,
                [p for p in networks if p != "tinygrad"],
                1,
                warm=False,
            )
            for kind, figure in (("resnet", 10.0), ("gpt2", 8.0))
            if again == 3
        ],
        lambda: _peak([p for p in libraries if p in ("aril", "torch")], again),
    ]
    out = []
    for task in tasks:
        if time.perf_counter() > end:
            say("skipped: the other overheads (--quick is over)")
            break
        found = task()
        out.append(found)
        values = ", ".join(f"{name} {readable(v, found.unit)}" for name, v in found.values.items())
        notes = "".join(f"; {name}: {text}" for name, text in found.notes.items())
        say(f"{found.name:<34} {values or '-'} (aril's figure: {readable(found.target, found.unit)}){notes}")
    return out


def readable(value: float, unit: str) -> str:
    """Seconds, bytes as MiB, or a ratio."""
    if unit == "x":
        return f"{value:.2f}x"
    return readable_s(value) if unit == "s" else f"{value / 2**20:.0f} MiB"


def readable_s(seconds: float) -> str:
    """`0.0123` -> `12.3 ms`."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def _median(step: Callable[[], Any], rounds: int, calls: int) -> float:
    for _ in range(3):
        step()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            step()
        times.append((time.perf_counter() - start) / calls)
    return statistics.median(times)


def _replay(peers: dict[str, Peer], rounds: int) -> Overhead:
    """A hundred dependent kernels of 16 numbers each, captured; a kernel's share of a replay."""
    out = Overhead(f"replay of {KERNELS} tiny kernels, a kernel", 5e-6)
    aril = peers["aril"]

    def chain(x: Any) -> Any:
        for _ in range(KERNELS):
            x = (x + 1).realize()  # else they would all be one kernel
        return x

    try:
        run, x = aril.captured(chain), aril.tensor(np.zeros(16, np.float32))
        for _ in range(3):
            result = run(x)
        if not np.array_equal(aril.array(result), np.full(16, KERNELS, np.float32)):
            raise ValueError("a wrong result")
        counters = aril.module.GlobalCounters
        before = counters.kernels
        run(x)
        kernels = counters.kernels - before
        out.values["aril"] = _median(lambda: run(x), rounds, 20) / KERNELS
        if kernels != KERNELS:
            out.notes["aril"] = f"{kernels} kernels ran"
    except Exception as error:
        out.notes["aril"] = f"{type(error).__name__}: {error}"
    if "torch" in peers:
        torch = peers["torch"]
        with torch.inference():
            x = torch.tensor(np.zeros(16, np.float32))

            def eager() -> None:
                y = x
                for _ in range(KERNELS):
                    y = y + 1

            out.values["torch"] = _median(eager, rounds, 20) / KERNELS
    return out


def _eager(peers: dict[str, Peer], rounds: int) -> Overhead:
    """x + 1 of 16 numbers, from the call to the stored result."""
    out = Overhead("one eager tiny operation", 100e-6)
    x = np.ones(16, np.float32)
    steps: dict[str, Callable[[Any], Any]] = {
        "aril": lambda t: (t + 1).realize(),
        "numpy": lambda t: t + 1,
        "torch": lambda t: t + 1,
        "jax": lambda t: (t + 1).block_until_ready(),
        "tinygrad": lambda t: (t + 1).realize(),
    }
    for name, step in steps.items():
        if name in peers:
            t = peers[name].tensor(x)
            calls = 3 if name == "tinygrad" else 100
            out.values[name] = _median(lambda step=step, t=t: step(t), rounds, calls)  # type: ignore[misc]
    return out


# what, the operation on x (1024, 1024), w (1024, 512) and n (a number or a bound variable)
VARIABLE: tuple[tuple[str, Callable[[Any, Any, Any], Any]], ...] = (
    ("rows of a product", lambda x, w, n: x[:n] @ w),
    ("terms of a product", lambda x, w, n: x[:, :n] @ w[:n]),
    ("column sums", lambda x, w, n: x[:n].sum(0)),
    ("softmax", lambda x, w, n: x[:n].softmax(-1)),
)
TURNS = 1000  # the value of the variable, of at most 1024


def _variable(peers: dict[str, Peer], rounds: int, what: str, step: Callable[[Any, Any, Any], Any]) -> Overhead:
    """The time of a captured step whose size is a variable, over that of the same size written as a number."""
    out = Overhead(f"a variable size: {what}", 1.2, unit="x")
    aril = peers["aril"]
    rng = np.random.default_rng(0)
    x, w = [aril.tensor(rng.standard_normal(s).astype(np.float32)) for s in ((1024, 1024), (1024, 512))]
    n = aril.module.Variable("n", 1, 1024).bind(TURNS)
    known = aril.module.jit(lambda: step(x, w, TURNS).realize())
    variable = aril.module.jit(lambda n: step(x, w, n).realize())
    times: list[list[float]] = [[], []]
    for _ in range(3):  # in turns: a machine's speed changes
        times[0].append(_median(known, rounds, 3))
        times[1].append(_median(lambda: variable(n), rounds, 3))
    out.values["aril"] = min(times[1]) / min(times[0])
    return out


def _imports(libraries: list[str], again: int) -> Overhead:
    """`import x` in a new process, over a bare interpreter."""
    out = Overhead("import, over a bare interpreter", 0.25)

    def start(code: str) -> float:
        times = []
        for _ in range(again + 1):  # the first fills the system's file cache
            begin = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True)
            times.append(time.perf_counter() - begin)
        return statistics.median(times[1:])

    bare = start("pass")
    for name in libraries:
        code = "from aril import Tensor" if name == "aril" else f"import {name}"  # `import aril` alone loads little
        out.values[name] = max(0.0, start(code) - bare)
    return out


def _once(name: str, target: float, task: str, libraries: list[str], again: int, warm: bool) -> Overhead:
    """What a new process takes for its first operation or step; caches cold, or warm from an earlier run.

    The first operation counts from the start of the import, the first step without it.
    """
    out = Overhead(name, target)
    for library in libraries:
        times = []
        try:
            for _ in range(again):
                with tempfile.TemporaryDirectory(prefix="bench-") as cache:
                    if warm:
                        _process(task, library, cache)
                    times.append(_process(task, library, cache))
        except (RuntimeError, OSError, ValueError, subprocess.TimeoutExpired) as error:
            out.notes[library] = str(error)[:200]
            continue
        out.values[library] = statistics.median(times)
    return out


def _peak(libraries: list[str], again: int) -> Overhead:
    """How far the resident memory of a process rises above what it is after import and one operation, in five steps of
    the MNIST row: the first ones, in which a library captures or tunes, included. Caches are warm."""
    out = Overhead("peak memory of the MNIST step", PYTORCH_PEAK, unit="B")
    for library in libraries:
        try:
            with tempfile.TemporaryDirectory(prefix="bench-") as cache:
                if library == "aril":
                    _process("peak", library, cache)  # compiles
                out.values[library] = statistics.median([_process("peak", library, cache) for _ in range(again)])
        except (RuntimeError, OSError, ValueError, subprocess.TimeoutExpired) as error:
            out.notes[library] = str(error)[:200]
    out.target = out.values.get("torch", out.target)
    return out


def _process(task: str, library: str, cache: str) -> float:
    environment = dict(os.environ, ARIL_CACHE=cache, XDG_CACHE_HOME=cache, CACHEDB=f"{cache}/tinygrad.db")
    done = subprocess.run(
        [sys.executable, "-m", "bench.overheads", task, library],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise RuntimeError(lines[-1] if lines else f"exit status {done.returncode}")
    return float(json.loads(done.stdout.strip().splitlines()[-1]))


def _first(library: str) -> float:
    """`Tensor([1, 2, 3]).sum().item()`, from the start of the import."""
    start = time.perf_counter()
    if library == "torch":
        import torch

        value = torch.tensor([1.0, 2.0, 3.0]).sum().item()
    elif library == "jax":
        import jax.numpy as jnp

        value = jnp.array([1.0, 2.0, 3.0]).sum().item()
    elif library == "tinygrad":
        from tinygrad import Tensor as Other

        value = Other([1.0, 2.0, 3.0], device="CPU").sum().item()
    else:
        from aril import Tensor

        value = Tensor([1.0, 2.0, 3.0]).sum().item()
    taken = time.perf_counter() - start
    assert value == 6.0
    return taken


# What stands in front of the names of rows, and in those of the lines above.
FIRST_STEPS = {"mnist": "MNIST", "resnet": "ResNet-18 training", "gpt2": "GPT-2 small training"}


def _network(kind: str, library: str) -> tuple[Peer, Any, list[Any]]:
    """The library, set up, and the row of that network with its data."""
    from bench import peers, rows_networks

    peer_type = {"aril": peers.Aril, "torch": peers.Torch, "tinygrad": peers.Tinygrad}[library]
    peer = peer_type()
    peer.start(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    rows = (*rows_networks.ROWS, rows_networks.GPT2_STEP)
    row = next(row for row in rows if row.name.startswith(FIRST_STEPS[kind]))
    return peer, row, row.arrays()


def _step(kind: str, library: str) -> float:
    """One training step of a network, from the call; import and the making of the data excluded."""
    peer, row, arrays = _network(kind, library)
    start = time.perf_counter()
    step = peer.prepare(row, arrays)
    peer.results(step())
    return time.perf_counter() - start


def _mnist_peak(library: str) -> float:
    """Bytes that five steps of the MNIST row add to the resident memory at their highest (Linux counts it)."""
    peer, row, arrays = _network("mnist", library)
    x = peer.tensor(np.ones(2, np.float32))
    peer.results(x + x)  # what a first operation of any kind loads is no part of the step
    Path("/proc/self/clear_refs").write_text("5")  # the highest so far becomes the present
    before = _status("VmRSS")
    step = peer.prepare(row, arrays)
    for _ in range(5):
        peer.results(step())
    return _status("VmHWM") - before


def _status(name: str) -> float:
    """A line of /proc/self/status that is in kB, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"{name}:"))) * 1024


if __name__ == "__main__":
    task, of = sys.argv[1:3]
    print(json.dumps(_step(task, of) if task in FIRST_STEPS else {"first": _first, "peak": _mnist_peak}[task](of)))
