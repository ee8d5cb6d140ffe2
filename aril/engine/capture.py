"""What a capture records while a function runs: launches, the memory made on the way, bound variables.

`local.capture` is the one under way in this thread, if any; `jit` begins and ends it.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from aril.device import Buffer
from aril.engine.launch import Launch
from aril.engine.lock import noted
from aril.ops import Ops
from aril.schedule.limits import Limit
from aril.schedule.shard import memory_of
from aril.uop import UOp
from aril.uop.node import live_nodes


class JitError(RuntimeError):
    """A call that does not fit what was captured, or a function that cannot be captured."""


@dataclass(eq=False, slots=True)
class Capture:
    """The launches of one captured run, in order, the buffers made on the way, and bound variables."""

    launches: list[Launch] = field(default_factory=list)
    made: list[Buffer] = field(default_factory=list)
    nodes: list[tuple[weakref.ref[UOp], Buffer]] = field(default_factory=list)
    limits: dict[Limit, None] = field(default_factory=dict)  # of the variables' values
    values: dict[str, int] = field(default_factory=dict)
    graphs: list[UOp] = field(default_factory=list)  # what was realized
    before: dict[int, UOp] = field(default_factory=dict)  # the graph of each tensor (its identity) alive at the start

    def stands(self, u: UOp) -> bool:
        """Whether the value of `u` that lies in memory is of this run. One from before is what its graph gave then; a
        replay has to compute it from what there is by then."""
        if u.op is Ops.BUFFER or u.storage is None:
            return True
        return all(any(b.storage is m for m in self.made) for b in memory_of(u.storage))

    def is_from_before(self, t: Any) -> bool:
        """Whether what a tensor stands for was there when the capture began."""
        return self.before.get(id(t)) is t.uop

    def held(self) -> set[int]:
        """Ids of the buffers made here that some graph outside still names."""
        live_nodes()  # sweeps the dead
        return {id(b) for node, b in self.nodes if node() is not None}


class _Local(threading.local):
    capture: Capture | None = None
    fresh: frozenset[UOp] = frozenset()  # the nodes of memory that the last run made for results

    def __init__(self) -> None:
        self.written: list[UOp] = []  # states of memory that assignments made, now computed, until tensors take note

    @contextlib.contextmanager
    def not_capturing(self) -> Iterator[None]:
        """What runs in here is no part of the capture that is going on."""
        held = self.capture, noted.assignments
        self.capture = noted.assignments = None
        try:
            yield
        finally:
            self.capture, noted.assignments = held


local = _Local()


@contextlib.contextmanager
def capturing(capture: Capture) -> Iterator[None]:
    """Record in `capture` what runs in here, and note the assignments it makes."""
    local.capture, noted.assignments = capture, []
    try:
        yield
    finally:
        local.capture = noted.assignments = None


def check_host_read() -> None:
    """JitError while a function is being captured: a replay would not come by here again to read the new value."""
    if local.capture is not None:
        frame = sys._getframe(1)
        while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "aril":
            frame = frame.f_back  # type: ignore[assignment]
        where = "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}: "
        raise JitError(
            f"{where}a captured function reads a tensor's value on the host, which replays cannot follow; "
            "return the tensor and read it outside, or compute with where() instead of a Python branch"
        )
