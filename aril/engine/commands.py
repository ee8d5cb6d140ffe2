"""Launches as commands of a ring: which ring takes a launch, on which queue, and after which others.

In: launches in order, and what stands for each buffer. Out: a `Submission` that runs them all, devices side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from aril.device import Buffer, Device
from aril.engine.hazards import Span, waits
from aril.engine.program import Slot, Step, Submission
from aril.runtime.ring import Ring

if TYPE_CHECKING:
    from aril.engine.launch import Launch


def ring_of(launch: Launch) -> Ring | None:
    """The ring that takes a launch; None: no ring does, such as a message between processes."""
    devices, loaded = [b.device for b in launch.buffers], launch.loaded
    if loaded is not None:
        return Device[devices[0]].ring if hasattr(loaded.program, "address") else None
    if launch.item.exchange is not None:
        return None
    if not all(Device[d].allocator.host_visible for d in devices):
        return None
    return next((r for r in [Device[d].ring for d in devices] if r is not None), None)


def span_of(b: Buffer) -> Span:
    """The memory behind a buffer: bytes of this process, or of the block that it is a view of."""
    if Device[b.device].allocator.host_visible:
        return Span("host", b.opaque, b.opaque + b.nbytes)
    return Span(id(b.base or b), b.offset_bytes, b.offset_bytes + b.nbytes)


def submission(
    ring: Ring,
    launches: Sequence[Launch],
    argument: Callable[[Buffer], int | Slot] = lambda b: b.opaque,  # type: ignore[no-any-return]
    span: Callable[[Buffer], Span] = span_of,
    addresses: int = 0,
    values: dict[str, int] | None = None,
) -> Submission:
    """What runs the launches. With `values` variables are bound to them for good; else each run gives those named by
    `variables`, after its `addresses`.
    """
    spans = [[span(b) for b in launch.buffers] for launch in launches]
    after = waits([(s[x.item.outputs :], s[: x.item.outputs]) for s, x in zip(spans, launches, strict=True)])
    queues = _queues(ring, launches)
    steps, scratch = [], 0
    for launch, queue, before in zip(launches, queues, after, strict=True):
        arguments: list[int | Slot | str] = [argument(b) for b in launch.buffers]
        loaded = launch.loaded
        if loaded is None:
            size = launch.buffers[0].nbytes
            function, chunks = ring.copy_function(size)
            steps.append(Step(function, [*arguments, size], chunks, queue, before, is_copy=True))
            continue
        program: Any = loaded.program
        scratch = max(scratch, program.scratch_bytes)
        if values is None:
            arguments += loaded.variables
            steps.append(Step(program.address, arguments, loaded.chunks, queue, before))
        else:
            steps.append(Step(program.address, [*arguments, *launch.values], launch.chunks, queue, before))
    return Submission(ring, steps, addresses, variables_of(launches) if values is None else (), scratch)


def variables_of(launches: Iterable[Launch]) -> list[str]:
    """The variables that launches depend on, in order of their names."""
    found: set[str] = set()
    for launch in launches:
        if launch.loaded is not None:
            found.update(launch.loaded.variables)
            if not isinstance(launch.loaded.chunks, int):
                found.update(str(u.arg.name) for u in launch.loaded.chunks.toposort() if u.is_variable)
    return sorted(found)


def _queues(ring: Ring, launches: Sequence[Launch]) -> list[tuple[int, bool]]:
    """(device, whether it is the queue of its copies) of each launch, devices numbered from 0."""
    number: dict[str, int] = {}
    out = []
    for launch in launches:
        names = [b.device for b in launch.buffers]
        name = names[0] if launch.loaded is not None else next(n for n in names if Device[n].ring is ring)
        out.append((number.setdefault(name, len(number)), launch.loaded is None))
    # One device takes all in order: its copies need nothing but what its kernels do.
    return out if len(number) > 1 else [(0, False)] * len(out)
