"""The harness: results first, then warm-up, then the contenders in turn, A B A B; medians and spread.

In come a row and the peers that are ready; out goes a `Measured`: a line of the table.
"""

from __future__ import annotations

import contextlib
import gc
import signal
import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench.limits import Limits
from bench.peers import Peer, Step
from bench.row import Array, Row

ROUNDS, QUICK_ROUNDS, FEWEST = 15, 5, 3
BLOCK_S = 2e-3  # shorter calls are timed in blocks of at least this
WARM_S = 50e-3  # up to here each turn begins with a call that is not timed
PAUSE_S = 2e-3  # between turns, and again while threads of another library spin for work:
SPIN_LIMIT_S = 0.3  # OpenBLAS's do so for a tenth of a second, and take a processor from the next contender


class TooLong(RuntimeError):
    """A contender that was not ready within its time."""


@dataclass
class Timing:
    """What one contender did: seconds a call."""

    median: float
    low: float  # 25th and 75th percentile
    high: float
    best: float
    rounds: int


@dataclass
class Measured:
    """A row with what was found. `failures` says why a contender has no time: an exception, a wrong result."""

    row: Row
    limit_s: float
    limit_kind: str
    times: dict[str, Timing] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)  # max|x - reference| / max|reference|
    failures: dict[str, str] = field(default_factory=dict)
    reference: str = ""
    kernels: int = 0  # of aril, a call

    @property
    def ok(self) -> bool:
        """Whether aril gave the right result and was timed."""
        return "aril" in self.times

    def peers(self) -> dict[str, Timing]:
        """The contenders that are not aril."""
        return {name: t for name, t in self.times.items() if not name.startswith("aril")}

    @property
    def best_peer(self) -> str | None:
        """The fastest of them."""
        peers = self.peers()
        return min(peers, key=lambda name: peers[name].median) if peers else None

    def ratio(self, name: str) -> float | None:
        """How many times faster aril is than `name`, by medians."""
        if not self.ok or name not in self.times:
            return None
        return self.times[name].median / self.times["aril"].median

    @property
    def of_limit(self) -> float | None:
        """The physical limit's time over aril's: 1 is as fast as can be."""
        return self.limit_s / self.times["aril"].median if self.ok and self.limit_s else None


def measure(
    row: Row, peers: list[Peer], limits: Limits, rounds: int, budget_s: float, ready_s: float = 600.0
) -> Measured:
    """Compare and time `row`. `budget_s` bounds the timed part: slow contenders get fewer rounds, at least FEWEST.

    A contender that is not compiled, compared and warm within `ready_s` is given up.
    """
    limit_s, kind = limits.of(row)
    found = Measured(row, limit_s, kind)
    with contextlib.ExitStack() as stack:
        stack.callback(gc.collect)
        arrays = row.arrays()
        expected = row.expected(arrays)
        found.reference = "NumPy float64" if expected is not None else ""
        ready: list[tuple[Peer, Step]] = []
        # Where there is no reference, a peer's result is one: then aril must not come first.
        order = peers if expected is not None else sorted(peers, key=lambda p: p.library == "aril")
        for peer in order:
            if not peer.takes(row):
                continue
            try:
                with time_limit(ready_s), peer.context(row):
                    step = peer.prepare(row, arrays)
                    got = [x for _ in range(row.calls_compared) for x in peer.results(step())]
                    if expected is None:
                        expected, found.reference = got, peer.name
                    else:
                        error = difference(got, expected)
                        found.errors[peer.name] = error
                        allowed = row.tolerances.get(peer.library.partition(" ")[0], row.tolerance)
                        if not error <= allowed:
                            found.failures[peer.name] = f"wrong: {error:.2g}, allowed {allowed:.2g}"
                            continue
                    del got
                    _warm(peer, step, found)
            except Exception as error:  # a contender that fails must not end the table
                found.failures[peer.name] = f"{type(error).__name__}: {_essence(str(error))}"
                continue
            ready.append((peer, step))
        ready.sort(key=lambda pair: peers.index(pair[0]))
        del expected, arrays
        _take_turns(ready, row, found, rounds, budget_s)
        ready.clear()
    return found


def _essence(message: str) -> str:
    """The first line of a message; of a traceback of another process the last, too."""
    lines = [text for text in message.strip().splitlines() if text.strip()] or [""]
    return (f"{lines[0]} {lines[-1]}" if "Traceback" in lines[0] else lines[0])[:300]


def _warm(peer: Peer, step: Step, found: Measured) -> None:
    """Calls until everything is compiled and captured; counts aril's kernels."""
    for _ in range(2):
        step()
    if peer.name == "aril":
        counters = peer.module.GlobalCounters
        before = counters.kernels
        step()
        found.kernels = counters.kernels - before


def _take_turns(ready: list[tuple[Peer, Step]], row: Row, found: Measured, rounds: int, budget_s: float) -> None:
    """`rounds` rounds of a turn for each contender, in order."""
    first: dict[str, float] = {}
    for peer, step in ready:
        with peer.context(row):
            first[peer.name] = min(_timed(step, 1), _timed(step, 1))
    # A contender gets fewer rounds when its own would take more than its share of the budget.
    share = budget_s / max(1, len(ready))
    wanted = {name: max(FEWEST, min(rounds, int(share / max(s, BLOCK_S)))) for name, s in first.items()}
    blocks = {name: max(1, int(BLOCK_S / max(s, 1e-7))) for name, s in first.items()}
    taken: dict[str, list[float]] = {peer.name: [] for peer, _ in ready}
    gc.collect()
    gc.disable()
    try:
        for index in range(rounds):
            for peer, step in ready:
                if index >= wanted[peer.name]:
                    continue
                with peer.context(row):
                    _pause()
                    if first[peer.name] < WARM_S:
                        step()
                    taken[peer.name].append(_timed(step, blocks[peer.name]))
    finally:
        gc.enable()
    for name, times in taken.items():
        found.times[name] = timing(times)


def _pause() -> None:
    """Sleep until no other thread of this process runs (where the system tells), or SPIN_LIMIT_S."""
    end = time.perf_counter() + SPIN_LIMIT_S
    time.sleep(PAUSE_S)
    while _others_run() and time.perf_counter() < end:
        time.sleep(PAUSE_S)


def _others_run() -> bool:
    own = str(threading.get_native_id())
    for task in Path("/proc/self/task").glob("*"):
        with contextlib.suppress(OSError):  # a thread may end while we look
            # proc(5): the state follows the name, which is in parentheses
            if task.name != own and (task / "stat").read_text().rpartition(")")[2].split()[0] == "R":
                return True
    return False


def timing(times: list[float]) -> Timing:
    """The median and spread of `times`."""
    low, high = np.percentile(times, [25, 75])
    return Timing(statistics.median(times), float(low), float(high), min(times), len(times))


def _timed(step: Step, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        step()
    return (time.perf_counter() - start) / calls


def difference(got: list[Array], expected: list[Array]) -> float:
    """The largest max|x - reference| / max|reference| of the results; infinite where shapes or NaNs differ."""
    if len(got) != len(expected):
        return float("inf")
    worst = 0.0
    for x, want in zip(got, expected, strict=True):
        if x.shape != want.shape:
            return float("inf")
        if not x.size:
            continue
        scale = float(np.abs(want).max())
        # In parts: the results of some rows are half a gigabyte.
        flat, flat_want = x.reshape(-1), want.reshape(-1)
        for at in range(0, flat.size, 1 << 24):
            part = flat[at : at + (1 << 24)].astype(np.float64) - flat_want[at : at + (1 << 24)]
            worst = max(worst, _or_infinite(float(np.abs(part).max())) / (scale or 1.0))
    return worst


def _or_infinite(x: float) -> float:
    return x if x == x else float("inf")


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TooLong in this (the main) thread after `seconds`. A native call that runs is waited for."""

    def stop(*_: Any) -> None:
        raise TooLong(f"not ready within {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
