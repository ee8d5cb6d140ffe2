"""Schedules for several devices, run as one batch: kernels of different devices at the same time.

In: an executable and its buffers, as for `run.run`. Out: the buffers with results, or None where the schedule has
to be run step by step. The batch is made once for an executable; its intermediates have memory only while it runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from aril.device import Buffer, Device
from aril.engine.capture import Capture
from aril.engine.commands import ring_of, span_of
from aril.engine.hazards import written_twice
from aril.engine.launch import Launch
from aril.engine.replay import Batch
from aril.engine.run import Executable, made


@dataclass(eq=False)
class Together:
    """A batch, the parameters it takes in order, and which of those (by their place) it writes."""

    batch: Batch
    params: list[int]
    written: set[int]


def run_together(exe: Executable, buffers: list[Buffer | None], values: dict[str, int]) -> list[Buffer | None] | None:
    """What `run.run` does, devices side by side."""
    steps = exe.schedule
    if exe.together is None:
        exe.together = _plan(exe, buffers) or False
    if exe.together is False:
        return None
    together: Together = exe.together
    given = [b for b in [buffers[s] for s in together.params] if b is not None]
    if together.written and written_twice({k: span_of(b) for k, b in enumerate(given)}, together.written) is not None:
        return None  # memory with two names: only the order of the schedule is right
    out: list[Buffer | None] = [*buffers, *[None] * len(steps.temps)]
    results = []
    for k, temp in enumerate(steps.temps):
        if temp.is_result:
            results.append(made(temp, Device.DEFAULT))
            out[steps.params + k] = results[-1]
    together.batch.run([*given, *results], values)
    return out


def _plan(exe: Executable, buffers: list[Buffer | None]) -> Together | None:
    """The batch of an executable; None where not all steps go to one ring."""
    steps = exe.schedule
    places: dict[int, Buffer] = {}
    for item in steps.items:
        for slot in item.args:
            if slot not in places:
                like = buffers[slot] if slot < steps.params else steps.temps[slot - steps.params]
                assert like is not None
                places[slot] = Buffer(like.device or Device.DEFAULT, like.size, like.dtype)
    launches = [
        Launch(loaded, [places[s] for s in item.args], [], 1, item)
        for item, loaded in zip(steps.items, exe.loaded, strict=True)
    ]
    rings = {ring_of(x) for x in launches}
    if None in rings or len(rings) != 1:
        return None
    params = sorted([s for s in places if s < steps.params])
    results = [steps.params + k for k, t in enumerate(steps.temps) if t.is_result]
    for slot in results:  # one without elements is in no step
        places.setdefault(slot, made(steps.temps[slot - steps.params], Device.DEFAULT))
    written = {s for item in steps.items for s in item.args[: item.outputs]}
    batch = Batch(Capture(launches), [places[s] for s in params], [places[s] for s in results], None)
    return Together(batch, params, {k for k, s in enumerate(params) if s in written})
