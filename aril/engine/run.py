"""Running schedules: kernels are loaded once, then launched in the schedule's order; on the CPU a launch returns when
its work is done.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any

from aril.config import DEBUG, NAN_CHECK, PROFILE, VALIDATE_WITH_CPU
from aril.counters import GlobalCounters
from aril.device import Buffer, Device, readable_size
from aril.engine import profile
from aril.engine.capture import local
from aril.engine.compile import SETTINGS, Loaded, evaluate, load_kernels
from aril.engine.launch import Launch, check_numbers, report
from aril.engine.transfer import transfer
from aril.schedule import Schedule, Temp


@dataclass(eq=False, slots=True)
class Executable:
    """A schedule with its kernels loaded, for one choice of the device that constants fall to."""

    schedule: Schedule
    loaded: list[Loaded | None]
    together: Any = False  # its batch (`together.py`); None: to be made; False: its steps follow each other


_by_identity: dict[int, tuple[Schedule, dict[tuple[Any, ...], Executable]]] = {}


def made(temp: Temp, default_device: str) -> Buffer:
    """Storage for a temporary."""
    return Buffer(temp.device or default_device, temp.size, temp.dtype)


def executable(steps: Schedule, default_device: str) -> Executable:
    """The schedule with loaded kernels (kept as long as the schedule is)."""
    kept = _by_identity.get(id(steps))
    if kept is None or kept[0] is not steps:
        kept = _by_identity[id(steps)] = (steps, {})
        if len(_by_identity) > 8192:
            _by_identity.pop(next(iter(_by_identity)))
    key = (default_device, *[s.value for s in SETTINGS])
    found = kept[1].get(key)
    if found is None:
        start = time.perf_counter()
        kernels = [(i.kernel, i.device or default_device) for i in steps.items if i.kernel is not None]
        loaded = iter(load_kernels(kernels))  # type: ignore[arg-type]
        several = len({device for _, device in kernels}) > 1
        found = Executable(
            steps, [next(loaded) if i.kernel is not None else None for i in steps.items], None if several else False
        )
        kept[1][key] = found
        if DEBUG.value >= 2:
            ready = f"{len(kernels)} kernel{'s' if len(kernels) != 1 else ''} ready"
            print(
                f"*** {ready} in {time.perf_counter() - start:.3f} s; planned peak "
                f"{readable_size(planned_peak(steps))} beside what they are given",
                file=sys.stderr,
            )
    return found


def planned_peak(steps: Schedule) -> int:
    """The most bytes that temporaries and results hold at one time."""
    size = {steps.params + k: t.size * t.dtype.itemsize for k, t in enumerate(steps.temps)}
    held = {slot for slot in size if steps.temps[slot - steps.params].is_result}
    peak = 0
    for item in steps.items:
        held.update([a for a in item.args if a in size])
        peak = max(peak, sum([size[a] for a in held]))
        held.difference_update(item.frees)
    return peak


def run(exe: Executable, buffers: list[Buffer | None], values: dict[str, int]) -> list[Buffer | None]:
    """Launch every step; `buffers` holds the parameters and is extended by the temporaries that are results."""
    for limit in exe.schedule.limits:
        limit.check(values, evaluate)
    if local.capture is not None or DEBUG.value >= 2 or NAN_CHECK.value or VALIDATE_WITH_CPU.value:
        return _run_watched(exe, buffers, values)
    if exe.together is not False:
        from aril.engine.together import run_together

        done = run_together(exe, buffers, values)
        if done is not None:
            return done
    return (_run_watched if PROFILE.value else _run_unseen)(exe, buffers, values)


def _run_unseen(exe: Executable, buffers: list[Buffer | None], values: dict[str, int]) -> list[Buffer | None]:
    """The steps one after the other, where nobody captures, prints, times or checks them."""
    steps, default = exe.schedule, Device.DEFAULT
    params = steps.params
    out = [*buffers, *[made(t, default) if t.is_result else None for t in steps.temps]]
    for item, loaded in zip(steps.items, exe.loaded, strict=True):
        args = []
        for slot in item.args:
            b = out[slot]
            if b is None:
                b = out[slot] = made(steps.temps[slot - params], default)
            args.append(b)
        if loaded is None:
            seconds = transfer(item, args)
            GlobalCounters.record(args[0].device, 0, args[0].nbytes, seconds)
        else:
            numbers, chunks = loaded.launch_values(values)
            loaded.program([b.opaque if b._opaque is None else b._opaque for b in args], numbers, chunks)
            ops, size = loaded.cost(values)
            GlobalCounters.record(loaded.device, ops, size)
        for slot in item.frees:
            out[slot] = None
    return out


def _run_watched(exe: Executable, buffers: list[Buffer | None], values: dict[str, int]) -> list[Buffer | None]:
    """The steps one after the other: recorded for the capture under way, timed, printed and checked as settings ask."""
    steps, default, capture = exe.schedule, Device.DEFAULT, local.capture
    out = [*buffers, *[None] * len(steps.temps)]
    if capture is not None:
        capture.values.update(values)
        capture.limits.update(dict.fromkeys(steps.limits))

    def make(slot: int) -> Buffer:
        b = out[slot] = made(steps.temps[slot - steps.params], default)
        if capture is not None:
            capture.made.append(b)
        return b

    for k, temp in enumerate(steps.temps):
        if temp.is_result:
            make(steps.params + k)
    for item, loaded in zip(steps.items, exe.loaded, strict=True):
        args = [out[slot] or make(slot) for slot in item.args]
        numbers, chunks = loaded.launch_values(values) if loaded is not None else ([], 1)
        launch = Launch(loaded, args, numbers, chunks, item)
        ops, size = launch.cost(values)
        seconds = _timed(launch, values, ops, size)
        GlobalCounters.record(launch.device, ops, size, seconds)
        if DEBUG.value >= 2:
            report(launch, ops, size, seconds)
        if NAN_CHECK.value:
            check_numbers(launch, args)
        if capture is not None:
            capture.launches.append(launch)
        for slot in item.frees:
            out[slot] = None
    return out


def _timed(launch: Launch, values: dict[str, int], ops: int, size: int) -> float:
    """Run one step, compared with its reference where VALIDATE_WITH_CPU asks for that. Returns seconds; 0.0 where
    nobody asks how long a kernel takes."""
    loaded, item, args, compare = launch.loaded, launch.item, launch.buffers, None
    if loaded is not None and VALIDATE_WITH_CPU.value:
        from aril.engine.validate import expect

        compare = expect(item.kernel, loaded.name, loaded.device, args, item.outputs, values)
    addresses = [b.opaque for b in args]
    began = profile.now()
    if loaded is None:
        seconds = transfer(item, args)
    else:
        is_timed = DEBUG.value >= 2 or bool(PROFILE.value)
        seconds = loaded.program(addresses, launch.values, launch.chunks, is_timed) or 0.0
    if PROFILE.value:
        kind = "copy" if loaded is None else "kernel"
        profile.record(kind, launch.name, launch.device, began, profile.now(), ops, size)
    if compare is not None:
        compare()
    return seconds
