"""Timelines: what ran when, on which device and thread, while `PROFILE=1`.

In come intervals from the rooms that schedule, compile and launch; out go, when the program ends, a trace that Perfetto
and Chrome show (https://ui.perfetto.dev) and a table of the kernels.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from aril.config import PROFILE

LIMIT = 1 << 21  # intervals kept; later ones are only counted
ROWS = 40  # kernels the table shows


class Interval(NamedTuple):
    """One thing that happened, by `time.perf_counter_ns`. `device` is empty for work of a host thread."""

    kind: str  # "kernel", "copy", "compile", "schedule", "replay", "search", "chunks" (a thread's part of a kernel)
    name: str
    device: str
    thread: str
    start: int
    end: int
    ops: int = 0
    nbytes: int = 0


@dataclass
class _Recorder:
    intervals: list[Interval]
    dropped: int = 0
    is_registered: bool = False
    workers: dict[int, int] = field(default_factory=dict)  # participants of the pool, numbered as they are met


_recorder = _Recorder([])
now = time.perf_counter_ns


def record(kind: str, name: str, device: str, start: int, end: int, ops: int = 0, nbytes: int = 0) -> None:
    """Keep one interval. Call it only where PROFILE is set; it costs about a microsecond."""
    if len(_recorder.intervals) >= LIMIT:
        _recorder.dropped += 1
        return
    _recorder.intervals.append(Interval(kind, name, device, threading.current_thread().name, start, end, ops, nbytes))
    if not _recorder.is_registered:
        _recorder.is_registered = True
        atexit.register(_finish)


def record_workers(name: str, chunks: Iterable[Any]) -> None:
    """Keep what each participant of the pool did of one kernel; `chunks` have `begin`, `end` and `who`."""
    if len(_recorder.intervals) >= LIMIT:
        return
    spans: dict[int, tuple[int, int]] = {}
    for c in chunks:
        first, last = spans.get(c.who, (c.begin, c.end))
        spans[c.who] = (min(first, c.begin), max(last, c.end))
    for who, (first, last) in spans.items():
        number = _recorder.workers.setdefault(who, len(_recorder.workers))
        _recorder.intervals.append(Interval("chunks", name, "", f"pool {number}", first, last))


class timed:
    """`with timed("schedule", name):` records the block as one interval of this thread, where PROFILE is set."""

    __slots__ = ("device", "kind", "name", "start")

    def __init__(self, kind: str, name: str, device: str = "") -> None:
        self.kind, self.name, self.device, self.start = kind, name, device, 0

    def __enter__(self) -> timed:
        self.start = now() if PROFILE.value else 0
        return self

    def __exit__(self, *exc: object) -> None:
        if self.start:
            record(self.kind, self.name, self.device, self.start, now())


def intervals() -> list[Interval]:
    """What has been recorded, in the order in which it ended."""
    return list(_recorder.intervals)


def reset() -> None:
    """Forget what has been recorded."""
    _recorder.intervals.clear()
    _recorder.dropped = 0


def trace() -> dict[str, Any]:
    """The timeline in the Trace Event Format of Chrome: a track for each device, one for each host thread."""
    events: list[dict[str, Any]] = []
    tracks: dict[tuple[int, str], int] = {}
    pid = os.getpid()
    first = min([i.start for i in _recorder.intervals], default=0)
    for group, title in enumerate(("host", "devices")):
        events.append({"ph": "M", "name": "process_name", "pid": pid + group, "tid": 0, "args": {"name": title}})
    for i, track in _lanes(_recorder.intervals):
        key = (1 if i.device else 0, track)
        if key not in tracks:
            tracks[key] = len(tracks) + 1
            events.append(
                {"ph": "M", "name": "thread_name", "pid": pid + key[0], "tid": tracks[key], "args": {"name": key[1]}}
            )
        seconds = max(i.end - i.start, 1) / 1e9
        more: dict[str, Any] = {"thread": i.thread} if i.device else {}
        if i.ops or i.nbytes:
            more |= {"GFLOPS": round(i.ops / seconds / 1e9, 3), "GB/s": round(i.nbytes / seconds / 1e9, 3)}
            more |= {"operations": i.ops, "bytes": i.nbytes}
        events.append({
            "ph": "X", "cat": i.kind, "name": i.name, "pid": pid + key[0], "tid": tracks[key],
            "ts": (i.start - first) / 1e3, "dur": (i.end - i.start) / 1e3, "args": more,
        })  # fmt: skip
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def _lanes(found: list[Interval]) -> Iterator[tuple[Interval, str]]:
    """Each interval with the name of its track; a device that does several things at once has several tracks."""
    ends: dict[str, list[int]] = {}
    for i in sorted(found, key=lambda i: (i.start, -i.end)):
        if not i.device:
            yield i, i.thread
            continue
        busy = ends.setdefault(i.device, [])
        lane = next((k for k, end in enumerate(busy) if end <= i.start), len(busy))
        busy[lane : lane + 1] = [i.end]
        yield i, i.device if lane == 0 else f"{i.device} (also)" if lane == 1 else f"{i.device} (also {lane})"


def write(path: str | os.PathLike[str]) -> None:
    """Write the trace to `path`, whole or not at all."""
    path = os.fspath(path)
    part = f"{path}.{os.getpid()}.part"
    try:
        with open(part, "w", encoding="utf-8") as out:
            json.dump(trace(), out)
        os.replace(part, path)
    except BaseException:
        if os.path.exists(part):
            os.unlink(part)
        raise


def table(rows: int = ROWS) -> str:
    """The kernels and copies by total time: name, device, count, total, mean, share, GFLOPS, GB/s."""
    sums: dict[tuple[str, str], list[float]] = {}
    for i in _recorder.intervals:
        if i.kind in ("kernel", "copy"):
            one = sums.setdefault((i.name, i.device), [0, 0, 0, 0])
            for k, more in enumerate((1, i.end - i.start, i.ops, i.nbytes)):
                one[k] += more
    whole = sum([s[1] for s in sums.values()]) or 1
    lines = [
        f"{'kernel':36s} {'device':8s} {'count':>8s} {'total ms':>10s} {'mean us':>10s} {'share':>6s} {'GFLOPS':>8s} "
        f"{'GB/s':>8s}"
    ]
    order = sorted(sums.items(), key=lambda item: (-item[1][1], item[0]))
    for (name, device), (count, ns, ops, nbytes) in order[:rows]:
        ns = max(ns, 1)
        lines.append(
            f"{name[:36]:36s} {device:8s} {int(count):8d} {ns / 1e6:10.3f} {ns / 1e3 / count:10.2f} {ns / whole:6.1%} "
            f"{ops / ns:8.2f} {nbytes / ns:8.2f}"
        )
    if len(order) > rows:
        rest = sum([s[1] for _, s in order[rows:]])
        lines.append(f"and {len(order) - rows} more, {rest / 1e6:.3f} ms ({rest / whole:.1%})")
    for kind in ("schedule", "compile", "search", "replay"):
        found = [i for i in _recorder.intervals if i.kind == kind]
        if found:
            lines.append(f"{kind}: {len(found)} times, {sum([i.end - i.start for i in found]) / 1e6:.3f} ms")
    if _recorder.dropped:
        lines.append(f"{_recorder.dropped} intervals beyond the first {LIMIT} were not kept")
    return "\n".join(lines)


def default_path() -> str:
    """Where the trace of this process goes: a file of its own in the folder for temporary files."""
    return os.path.join(tempfile.gettempdir(), f"aril-profile-{os.getpid()}.json")


def _finish() -> None:
    if not _recorder.intervals:
        return
    print(table(), file=sys.stderr)
    path = default_path()
    try:
        write(path)
    except OSError as error:
        print(f"PROFILE: the trace could not be written to {path}: {error}", file=sys.stderr)
        return
    print(f"PROFILE: {path} (open it at https://ui.perfetto.dev)", file=sys.stderr)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=reset)  # a child tells of itself only
