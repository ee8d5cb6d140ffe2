"""Captured batches: the launches of one run turned into native records that are replayed with other buffers.

In: a `Capture`, and which buffers are inputs and results. Out: a `Batch` whose `run` patches addresses and makes one
native call a segment.
"""

from __future__ import annotations

import ctypes
import struct
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from aril.config import DEBUG, NAN_CHECK, PROFILE
from aril.device import Buffer, Device, GlobalCounters, readable_size
from aril.engine import profile
from aril.engine.compile import evaluate
from aril.engine.realize import Capture, Launch, _report, check_numbers
from aril.runtime.pool_ir import RECORD_BYTES

ALIGN = 256


def root_of(b: Buffer) -> Buffer:
    """The buffer that holds the memory `b` is a view of."""
    return b.base or b


@dataclass(eq=False)
class Segment:
    """Consecutive kernels that one native call runs: records, then their argument slots, in one block of memory."""

    launches: list[Launch]
    device: Any
    memory: Any = None
    address: int = 0
    scratch: int = 0
    patches: list[tuple[int, int, int]] = field(
        default_factory=list
    )  # (byte offset, replaced buffer, byte offset in it)
    symbolic: list[tuple[int, int, Launch]] = field(default_factory=list)  # (record, args offset, launch)


class Batch:
    """The replayable form of a capture.

    `inputs` and `fresh` (results) are the buffers that differ from call to call; `run` takes those of the call in the
    same order. `kept` names (by id) buffers that live on outside of the batch.
    """

    def __init__(self, capture: Capture, inputs: Sequence[Buffer], fresh: Sequence[Buffer], kept: set[int]) -> None:
        replaced = [*inputs, *fresh]
        self.inputs = len(inputs)
        self.index = {id(b): i for i, b in enumerate(replaced)}
        self.keep = list(replaced)
        self.launches = capture.launches
        self.values = dict(capture.values)
        self.plan: dict[int, Buffer] = {}
        self._plan_memory(kept)
        self.segments = self._segments()
        self.ops = self.bytes = 0
        for launch in self.launches:
            if launch.loaded is not None and isinstance(launch.loaded.estimates.ops, int):
                self.ops += launch.loaded.estimates.ops
                self.bytes += int(launch.loaded.estimates.bytes)
        self.per_device: dict[str, int] = {}
        for launch in self.launches:
            name = launch.buffers[0].device
            self.per_device[name] = self.per_device.get(name, 0) + 1

    # --- memory ---

    def _plan_memory(self, kept: set[int]) -> None:
        """Intermediates of the batch share memory where their lifetimes do not overlap (first fit by size, largest
        first).
        """
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        buffers: dict[int, Buffer] = {}
        for i, launch in enumerate(self.launches):
            for b in launch.buffers:
                r = root_of(b)
                if id(r) in self.index or id(b) in self.index or id(r) in kept or id(b) in kept:
                    continue
                first.setdefault(id(r), i)
                last[id(r)] = i
                buffers[id(r)] = r
        places: list[tuple[int, str, int]] = []
        sizes: dict[str, int] = {}
        taken: dict[str, list[tuple[int, int, int, int]]] = {}
        for key in sorted(buffers, key=lambda k: (-buffers[k].nbytes, first[k])):
            b = buffers[key]
            size = -(-max(b.nbytes, 1) // ALIGN) * ALIGN
            rivals = sorted(t for t in taken.get(b.device, ()) if t[2] <= last[key] and first[key] <= t[3])
            at = 0
            for start, end, _, _ in rivals:
                if at + size <= start:
                    break
                at = max(at, end)
            taken.setdefault(b.device, []).append((at, at + size, first[key], last[key]))
            sizes[b.device] = max(sizes.get(b.device, 0), at + size)
            places.append((key, b.device, at))
        from aril.dtype import dtypes

        pools = {device: Buffer(device, size, dtypes.uint8) for device, size in sizes.items()}
        for key, device, at in places:
            b = buffers[key]
            self.plan[key] = Buffer(device, b.size, b.dtype, base=pools[device], offset_bytes=at)
        self.planned_bytes = sum(sizes.values())
        if DEBUG.value >= 2:
            apart = readable_size(sum(b.nbytes for b in buffers.values()))
            print(
                f"*** planned peak: {len(buffers)} intermediates of {len(self.launches)} kernels share "
                f"{readable_size(self.planned_bytes)} ({apart} without sharing)",
                file=sys.stderr,
            )
        for launch in self.launches:
            launch.buffers = [self._moved(b) for b in launch.buffers]
        buffers.clear()
        for device in pools:  # what the captured run used would only wait for reuse beside the pool
            Device[device].allocator.release()

    def _moved(self, b: Buffer) -> Buffer:
        r = root_of(b)
        new = self.plan.get(id(r))
        if new is None or id(b) in self.index:
            return b
        if b is r:
            return new
        return Buffer(b.device, b.size, b.dtype, base=new.base, offset_bytes=new.offset_bytes + b.offset_bytes)

    # --- records ---

    def _segments(self) -> list[Segment | Launch]:
        out: list[Segment | Launch] = []
        for launch in self.launches:
            device = Device[launch.buffers[0].device] if launch.buffers else None
            native = (
                launch.loaded is not None and hasattr(device, "run_batch") and hasattr(launch.loaded.program, "address")
            )
            if not native:
                out.append(launch)
            elif out and isinstance(out[-1], Segment) and type(out[-1].device) is type(device):
                out[-1].launches.append(launch)
            else:
                out.append(Segment([launch], device))
        for s in out:
            if isinstance(s, Segment):
                self._encode(s)
        return out

    def _encode(self, s: Segment) -> None:
        from aril.runtime.pool import pack_record

        n = len(s.launches)
        slots = sum(l.loaded.program.slots for l in s.launches)  # type: ignore[union-attr]
        s.memory = ctypes.create_string_buffer(n * RECORD_BYTES + slots * 8 + 64)
        base = -(-ctypes.addressof(s.memory) // 64) * 64
        skew = base - ctypes.addressof(s.memory)
        view = memoryview(s.memory).cast("B")[skew:]
        s.address = base
        at = n * RECORD_BYTES
        written: list[tuple[Any, int, int]] = []
        read: list[tuple[Any, int, int]] = []
        for i, launch in enumerate(s.launches):
            program: Any = launch.loaded.program  # type: ignore[union-attr]
            outputs = launch.item.outputs
            spans = [self._span(b) for b in launch.buffers]
            barrier = any(_meets(x, written) for x in spans) or any(_meets(x, read) for x in spans[:outputs])
            if barrier:
                written, read = [], []
            written += spans[:outputs]
            read += spans[outputs:]
            pack_record(view, i, program.address, base + at, launch.chunks, barrier)
            s.scratch = max(s.scratch, program.scratch_bytes)
            for k, b in enumerate(launch.buffers):
                replaced = self.index.get(id(b))
                if replaced is None and b.base is not None and id(b.base) in self.index:
                    s.patches.append((skew + at + 8 * k, self.index[id(b.base)], b.offset_bytes))
                elif replaced is not None:
                    s.patches.append((skew + at + 8 * k, replaced, 0))
                else:
                    struct.pack_into("<Q", view, at + 8 * k, b.opaque)
            for k, v in enumerate(launch.values):
                struct.pack_into("<q", view, at + 8 * (len(launch.buffers) + k), v)
            if launch.loaded is not None and (launch.loaded.variables or not isinstance(launch.loaded.chunks, int)):
                s.symbolic.append((i, at, launch))
            at += 8 * program.slots
        s.patch = [(struct.Struct("<Q").pack_into, off, which, more) for off, which, more in s.patches]  # type: ignore[attr-defined]
        s.view = view  # type: ignore[attr-defined]

    def _span(self, b: Buffer) -> tuple[Any, int, int]:
        which = self.index.get(id(b), self.index.get(id(b.base)))
        if which is None:
            return ("memory", b.opaque, b.opaque + b.nbytes)
        # where an input lies is not known before the call: it may overlap anything but fresh results
        return ("input", 0, 1 << 62) if which < self.inputs else (which, 0, 1 << 62)

    # --- running ---

    def run(self, buffers: Sequence[Buffer], values: dict[str, int]) -> None:
        """Replay with `buffers` in the places of the replaced ones and these values of variables."""
        if DEBUG.value >= 2 or NAN_CHECK.value:
            with profile.timed("replay", f"replay of {len(self.launches)} kernels"):
                self._run_one_by_one(buffers, values)
            return
        profiled = PROFILE.value
        start, began = time.perf_counter(), profile.now()
        addresses = [b.opaque for b in buffers]
        for s in self.segments:
            if isinstance(s, Launch):
                begin = profile.now()
                self._run_launch(s, buffers, values)
                if profiled:
                    self._profile(s, values, begin, profile.now())
                continue
            memory = s.memory
            for pack, offset, which, more in s.patch:  # type: ignore[attr-defined]
                pack(memory, offset, addresses[which] + more)
            if s.symbolic:
                self._bind(s, values)
            if profiled and hasattr(s.device, "run_batch_timed"):
                times = s.device.run_batch_timed(s.address, len(s.launches), s.scratch)
                for launch, chunks in zip(s.launches, times, strict=True):
                    if chunks:
                        self._profile(launch, values, min(c.begin for c in chunks), max(c.end for c in chunks))
                        profile.record_workers(self._name(launch), chunks)
                continue
            s.device.run_batch(s.address, len(s.launches), s.scratch)
        if profiled:
            profile.record("replay", f"replay of {len(self.launches)} kernels", "", began, profile.now())
        elapsed = time.perf_counter() - start
        for i, (name, count) in enumerate(self.per_device.items()):
            GlobalCounters.record(
                name, self.ops if i == 0 else 0, self.bytes if i == 0 else 0, elapsed if i == 0 else 0.0, count
            )

    def _bind(self, s: Segment, values: dict[str, int]) -> None:
        known = {**self.values, **values}
        for record, at, launch in s.symbolic:
            loaded = launch.loaded
            assert loaded is not None
            numbers, chunks = loaded.launch_values(known)
            struct.pack_into("<q", s.view, record * RECORD_BYTES + 16, chunks)  # type: ignore[attr-defined]
            for k, v in enumerate(numbers):
                struct.pack_into("<q", s.view, at + 8 * (len(launch.buffers) + k), v)  # type: ignore[attr-defined]

    def _run_launch(self, launch: Launch, buffers: Sequence[Buffer], values: dict[str, int]) -> float:
        actual = [self._actual(b, buffers) for b in launch.buffers]
        if launch.loaded is None:
            actual[0].copy_from(actual[1])
            return 0.0
        numbers, chunks = launch.loaded.launch_values({**self.values, **values})
        return launch.loaded.program([b.opaque for b in actual], numbers, chunks, True) or 0.0

    def _actual(self, b: Buffer, buffers: Sequence[Buffer]) -> Buffer:
        if id(b) in self.index:
            return buffers[self.index[id(b)]]
        if b.base is not None and id(b.base) in self.index:
            return buffers[self.index[id(b.base)]].view(b.size, b.dtype, b.offset_bytes)
        return b

    @staticmethod
    def _name(launch: Launch) -> str:
        if launch.loaded is not None:
            return launch.loaded.name
        return f"copy {launch.buffers[1].device} -> {launch.buffers[0].device}"

    def _profile(self, launch: Launch, values: dict[str, int], begin: int, end: int) -> None:
        ops, size = 0, launch.buffers[0].nbytes
        if launch.loaded is not None:
            known = {**self.values, **values}
            ops, size = [evaluate(x, known) for x in (launch.loaded.estimates.ops, launch.loaded.estimates.bytes)]
        kind = "copy" if launch.loaded is None else "kernel"
        profile.record(kind, self._name(launch), launch.buffers[0].device, begin, end, ops, size)

    def _run_one_by_one(self, buffers: Sequence[Buffer], values: dict[str, int]) -> None:
        known = {**self.values, **values}
        for launch in self.launches:
            begin = profile.now()
            seconds = self._run_launch(launch, buffers, values)
            if PROFILE.value:
                self._profile(launch, values, begin, profile.now())
            e = launch.loaded.estimates if launch.loaded is not None else None
            ops = evaluate(e.ops, known) if e is not None else 0
            size = evaluate(e.bytes, known) if e is not None else launch.buffers[0].nbytes
            GlobalCounters.record(launch.buffers[0].device, ops, size, seconds)
            if DEBUG.value >= 2:
                _report(launch.loaded.name if launch.loaded is not None else "copy", launch, ops, size, seconds)
            if NAN_CHECK.value:
                check_numbers(launch, [self._actual(b, buffers) for b in launch.buffers])


def _meets(span: tuple[Any, int, int], others: list[tuple[Any, int, int]]) -> bool:
    """Whether a span may share memory with one of the others; an input may lie anywhere in memory."""
    for o in others:
        if o[0] == span[0]:
            if span[1] < o[2] and o[1] < span[2]:
                return True
        elif {o[0], span[0]} == {"input", "memory"}:
            return True
    return False
