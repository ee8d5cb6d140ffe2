"""Captured batches: the launches of one run as programs that are replayed with other buffers.

In: a `Capture`, and which buffers are inputs and results. Out: a `Batch` whose `run` makes one native call for all
launches that a ring takes (`program.py`), and one for each of the others.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

from aril.config import DEBUG, JIT, NAN_CHECK, PROFILE, unwatched
from aril.counters import GlobalCounters
from aril.device import Buffer, Device, readable_size
from aril.dtype import dtypes
from aril.engine import profile
from aril.engine.capture import Capture
from aril.engine.commands import ring_of, span_of, submission, variables_of
from aril.engine.compile import evaluate
from aril.engine.hazards import Span
from aril.engine.launch import Launch, check_numbers, report
from aril.engine.memory import Block, first_fit
from aril.engine.profile import now
from aril.engine.program import Slot, Submission
from aril.engine.transfer import transfer
from aril.uop import Estimates


def root_of(b: Buffer) -> Buffer:
    """The buffer that holds the memory `b` is a view of."""
    return b.base or b


@dataclass(eq=False)
class Segment:
    """Consecutive launches that one ring takes."""

    launches: list[Launch]
    commands: Submission
    variables: list[str]


class Single:
    """A launch that a ring would take alone: it needs none. Its arguments are among the addresses of the call and
    those that no call changes."""

    __slots__ = ("_fixed", "_pick", "_start", "launch")

    def __init__(self, launch: Launch, arguments: Sequence[int | Slot], addresses: int) -> None:
        loaded: Any = launch.loaded
        self.launch = launch
        self._fixed = [a for a in arguments if isinstance(a, int)]
        later = itertools.count(addresses)
        places = [next(later) if isinstance(a, int) else a.which for a in arguments]
        self._pick: Callable[[Sequence[int]], Sequence[int]] = (
            itemgetter(*places) if len(places) > 1 else lambda all_of_them: [all_of_them[i] for i in places]
        )
        is_plain = not loaded.variables and isinstance(loaded.chunks, int)
        self._start = loaded.program.launcher(loaded.chunks) if is_plain else None

    def run(self, addresses: Sequence[int], known: dict[str, int]) -> None:
        """Launch it with the addresses of a call and values of variables."""
        arguments = self._pick([*addresses, *self._fixed] if self._fixed else addresses)
        if self._start is not None:
            self._start(arguments)
        else:
            loaded: Any = self.launch.loaded
            loaded.program(arguments, *loaded.launch_values(known))


class Batch:
    """The replayable form of a capture.

    `inputs` and `fresh` (results) are the buffers that differ from call to call; `run` takes those of the call in the
    same order. `kept` names (by id) buffers that live on outside of the batch; with None there are none, and the batch
    has memory for its intermediates only while it runs.
    """

    def __init__(
        self, capture: Capture, inputs: Sequence[Buffer], fresh: Sequence[Buffer], kept: set[int] | None
    ) -> None:
        replaced = [*inputs, *fresh]
        self.inputs = len(inputs)
        self.index = {id(b): i for i, b in enumerate(replaced)}
        self.keep = list(replaced)
        self.launches = capture.launches
        self.values = dict(capture.values)
        self.limits = tuple(capture.limits)
        self.plan: dict[int, Buffer] = {}
        self.pools: list[tuple[str, int]] = []  # (device, bytes) of memory that each run gets anew
        self.label = f"replay of {len(self.launches)} kernels" if kept is not None else ""
        self._plan_memory(kept)
        if kept is not None:
            for device in {b.device for b in self.plan.values()}:
                Device[device].allocator.release()  # what the captured run used would only wait for reuse
        self.segments = self._segments()
        self.work: dict[str, list[int]] = {}  # of each device: operations, bytes, launches
        self.symbolic: list[Launch] = []  # whose operations and bytes are not among them
        for launch in self.launches:
            e = Estimates(0, launch.buffers[0].nbytes) if launch.loaded is None else launch.loaded.estimates
            ops, size = e.ops, e.bytes
            if not isinstance(ops, int) or not isinstance(size, int):
                self.symbolic.append(launch)
                ops = size = 0
            sums = self.work.setdefault(launch.buffers[0].device, [0, 0, 0])
            sums[:] = [a + b for a, b in zip(sums, (ops, size, 1), strict=True)]

    # --- memory ---

    def _plan_memory(self, kept: set[int] | None) -> None:
        """Intermediates of the batch share memory where their lifetimes do not overlap."""
        count, apart, pools = 0, 0, []
        for device, found in self._intermediates(kept).items():
            offsets, size = first_fit([Block(b.nbytes, first, last) for b, first, last in found])
            pools.append(Buffer(device, size, dtypes.uint8))
            for (b, _, _), at in zip(found, offsets, strict=True):
                self.plan[id(b)] = Buffer(device, b.size, b.dtype, base=pools[-1], offset_bytes=at)
            count, apart = count + len(found), apart + sum(b.nbytes for b, _, _ in found)
        self.planned_bytes = sum(p.nbytes for p in pools)
        if DEBUG.value >= 2:
            print(
                f"*** planned peak: {count} intermediates of {len(self.launches)} kernels share "
                f"{readable_size(self.planned_bytes)} ({readable_size(apart)} without sharing)",
                file=sys.stderr,
            )
        for launch in self.launches:
            launch.buffers = [self._moved(b) for b in launch.buffers]
        if kept is None:
            for pool in pools:
                self.index[id(pool)] = len(self.keep)
                self.keep.append(pool)
                self.pools.append((pool.device, pool.size))

    def _intermediates(self, kept: set[int] | None) -> dict[str, list[tuple[Buffer, int, int]]]:
        """Of each device: memory that only launches of the batch use, with the first and the last of those."""
        first: dict[int, int] = {}
        last: dict[int, tuple[int, Buffer]] = {}
        for i, launch in enumerate(self.launches):
            for b in launch.buffers:
                r = root_of(b)
                if id(r) in self.index or id(b) in self.index or kept and (id(r) in kept or id(b) in kept):
                    continue
                first.setdefault(id(r), i)
                last[id(r)] = i, r
        out: dict[str, list[tuple[Buffer, int, int]]] = {}
        for key, (i, r) in last.items():
            out.setdefault(r.device, []).append((r, first[key], i))
        return out

    def _moved(self, b: Buffer) -> Buffer:
        r = root_of(b)
        new = self.plan.get(id(r))
        if new is None or id(b) in self.index:
            return b
        if b is r:
            return new
        return Buffer(b.device, b.size, b.dtype, base=new.base, offset_bytes=new.offset_bytes + b.offset_bytes)

    # --- commands ---

    def _segments(self) -> list[Segment | Single | Launch]:
        out: list[Segment | Single | Launch] = []
        for ring, group in groupby(self.launches, ring_of):
            launches = list(group)
            if ring is None:
                out += launches
                continue
            if len(launches) == 1 and launches[0].loaded is not None:
                slots = [self._argument(b) for b in launches[0].buffers]
                if all(isinstance(s, int) or not s.offset for s in slots):
                    out.append(Single(launches[0], slots, len(self.keep)))
                    continue
            commands = submission(ring, launches, self._argument, self._span, len(self.keep))
            out.append(Segment(launches, commands, variables_of(launches)))
        return out

    def _place(self, b: Buffer) -> Slot | None:
        """Where a buffer lies in those that differ from call to call."""
        if id(b) in self.index:
            return Slot(self.index[id(b)], 0)
        return Slot(self.index[id(b.base)], b.offset_bytes) if id(b.base) in self.index else None

    def _argument(self, b: Buffer) -> int | Slot:
        return self._place(b) or b.opaque  # type: ignore[no-any-return]

    def _span(self, b: Buffer) -> Span:
        """Each input and result is a memory of its own: callers see to it that no input is written by another name."""
        place = self._place(b)
        return span_of(b) if place is None else Span(place.which, place.offset, place.offset + b.nbytes)

    # --- running ---

    def run(self, buffers: Sequence[Buffer], values: dict[str, int]) -> None:
        """Replay with `buffers` in the places of the replaced ones and these values of variables."""
        for limit in self.limits:
            limit.check({**self.values, **values}, evaluate)
        if self.pools:
            buffers = [*buffers, *[Buffer(device, size, dtypes.uint8) for device, size in self.pools]]
        watched = not unwatched.value
        if watched and (DEBUG.value >= 2 or NAN_CHECK.value or (JIT.value == 2 and self.label)):
            with profile.timed("replay", self.label):
                self._run_one_by_one(buffers, values)
            return
        began = now()
        addresses = [b.allocate()._opaque if b._opaque is None else b._opaque for b in buffers]
        known = {**self.values, **values} if self.values else values
        if watched and PROFILE.value:
            self._run_profiled(buffers, addresses, known, began)
        else:
            for s in self.segments:
                if s.__class__ is Single:
                    s.run(addresses, known)
                elif s.__class__ is Segment:
                    s.commands.run(addresses, [known[v] for v in s.variables])
                else:
                    self._run_launch(s, buffers, known)  # type: ignore[arg-type]
        seconds = (now() - began) * 1e-9
        for name, (ops, size, count) in self.work.items():
            GlobalCounters.record(name, ops, size, seconds, count)
            seconds = 0.0
        if not self.label:  # a replay does nothing in Python for a kernel
            for launch in self.symbolic:
                GlobalCounters.record(launch.device, *launch.cost(known), 0.0, 0)

    def _run_profiled(self, buffers: Sequence[Buffer], addresses: list[int], known: dict[str, int], began: int) -> None:
        for s in self.segments:
            if isinstance(s, Segment):
                self._run_timed(s, addresses, known)
                continue
            begin = profile.now()
            if isinstance(s, Single):
                s.run(addresses, known)
            else:
                self._run_launch(s, buffers, known)
            self._profile(s.launch if isinstance(s, Single) else s, known, begin, profile.now())
        if self.label:
            profile.record("replay", self.label, "", began, profile.now())

    def _run_timed(self, s: Segment, addresses: list[int], known: dict[str, int]) -> None:
        times = s.commands.run_timed(addresses, [known[v] for v in s.variables], known)
        for launch, chunks in zip(s.launches, times, strict=True):
            if chunks:
                self._profile(launch, known, min(c.begin for c in chunks), max(c.end for c in chunks))
                profile.record_workers(launch.name, chunks)

    def _run_launch(self, launch: Launch, buffers: Sequence[Buffer], known: dict[str, int]) -> float:
        actual = [self._actual(b, buffers) for b in launch.buffers]
        if launch.loaded is None:
            return transfer(launch.item, actual)
        numbers, chunks = launch.loaded.launch_values(known)
        return launch.loaded.program([b.opaque for b in actual], numbers, chunks, True) or 0.0

    def _actual(self, b: Buffer, buffers: Sequence[Buffer]) -> Buffer:
        if id(b) in self.index:
            return buffers[self.index[id(b)]]
        if b.base is not None and id(b.base) in self.index:
            return buffers[self.index[id(b.base)]].view(b.size, b.dtype, b.offset_bytes)
        return b

    def _profile(self, launch: Launch, known: dict[str, int], begin: int, end: int) -> None:
        kind = "copy" if launch.loaded is None else "kernel"
        profile.record(kind, launch.name, launch.device, begin, end, *launch.cost(known))

    def _run_one_by_one(self, buffers: Sequence[Buffer], values: dict[str, int]) -> None:
        known = {**self.values, **values}
        for launch in self.launches:
            begin = profile.now()
            seconds = self._run_launch(launch, buffers, known)
            if PROFILE.value:
                self._profile(launch, known, begin, profile.now())
            ops, size = launch.cost(known)
            GlobalCounters.record(launch.device, ops, size, seconds)
            if DEBUG.value >= 2:
                report(launch, ops, size, seconds)
            if NAN_CHECK.value:
                check_numbers(launch, [self._actual(b, buffers) for b in launch.buffers])
