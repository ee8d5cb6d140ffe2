"""Realizing: lazy graphs in, buffers with values out. `realize_uops` is what Tensor calls."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from aril.config import PROFILE
from aril.device import Buffer, Device
from aril.engine import profile
from aril.engine.capture import local
from aril.engine.compile import foresee
from aril.engine.lock import locked
from aril.engine.run import executable, run
from aril.ops import OpGroup, Ops
from aril.schedule import Normalized, Schedule, normalize, schedule
from aril.schedule.shard import is_sharded_storage, memory_of
from aril.uop import UOp


class Runs:
    """How often values were computed and kept at their nodes."""

    count = 0


Compute = Callable[[Normalized, Schedule], "list[Buffer | None]"]


def is_realized(u: UOp) -> bool:
    """Whether `u` is memory that holds its value: a buffer (or one on each device) seen through movement operations
    and DETACH."""
    while u.op in OpGroup.MOVEMENT or u.op is Ops.DETACH:
        if u.op is Ops.PAD:
            return False
        u = u.src[0]
    return u.op is Ops.BUFFER or is_sharded_storage(u)


def realized_view(u: UOp) -> UOp:
    """`u`, or the view of memory that stands for it since it was realized."""
    return u.storage if u.op is not Ops.BUFFER and u.storage is not None else u


def storage_of(u: UOp) -> Buffer:
    """The device buffer behind a BUFFER node (made, not allocated, at first use)."""
    if u.storage is None:
        u.storage = Buffer(u.arg.device, u.arg.size, u.dtype)
        if local.capture is not None:  # each replay has its own, unless it outlives the function
            local.capture.made.append(u.storage)
            local.capture.nodes.append((weakref.ref(u), u.storage))
    return u.storage  # type: ignore[no-any-return]


@locked
def realize_uops(uops: list[UOp], devices: list[str | None] | None = None, compute: Compute | None = None) -> list[UOp]:
    """Compute every graph in `uops`; returns for each a view of memory with its value.

    `devices[i]` is where a graph of constants only is put (default: the default device). Assignments inside the
    graphs happen once. `compute` stands in for running the schedule: it gives the memory of its parameters and
    temporaries. Errors: what building, compiling and running raise; nothing is marked realized then.
    """
    capture = local.capture
    stands = (lambda u: True) if capture is None else capture.stands
    out = list(uops)
    pending: dict[UOp, Any] = {}
    for i, u in enumerate(uops):
        hint: Any = ""
        if u.device is None and u.op is not Ops.CONST:  # constants have memory of their own on each device
            hint = (devices[i] if devices is not None else None) or Device.DEFAULT
            u = UOp(Ops.CONTIGUOUS, (u,), tag=hint)
        out[i] = u = realized_view(u) if u.op is Ops.AFTER or stands(u) else u
        if u.op is not Ops.CONST and not is_realized(u):  # a number needs no memory
            pending.setdefault(u, hint)
    if not pending:
        return out
    roots = list(pending)
    if local.capture is not None:
        local.capture.graphs += roots
    began = profile.now() if PROFILE.value else 0
    normal = normalize(roots, tuple(pending.values()), stands)
    steps = schedule(normal.graph, len(normal.buffers), foresee)
    if began:
        profile.record("schedule", f"schedule of {len(roots)}", "", began, profile.now())
    if compute is not None:
        made = compute(normal, steps)
    else:
        buffers: list[Buffer | None] = [storage_of(b) for b in normal.buffers]
        made = run(executable(steps, Device.DEFAULT), buffers, normal.values)
    Runs.count += 1
    local.written += normal.effects
    nodes: dict[UOp, UOp] = {}
    fresh = _renewed(normal.effects)
    values = {}
    for root, result in zip(roots, steps.results, strict=True):
        view = _restore(result, normal.buffers, made, steps, nodes)
        values[root] = view.substitute(fresh) if fresh else view
    given = set(normal.buffers)
    local.fresh = frozenset([n for n in nodes.values() if n.op is Ops.BUFFER and n not in given])
    for root, view in values.items():
        if root.op is Ops.CONTIGUOUS and root.tag is not None:
            continue  # made for this run: the graph of no tensor
        own = memory_of(view)
        if all(b in local.fresh for b in own):  # what shows other memory is that memory's value only till it is written
            root.storage = view
            for b in own:
                b.came_from = [*getattr(b, "came_from", ()), weakref.ref(root)]
    return [values[u] if u in values else realized_view(u) for u in out]


def _renewed(effects: list[UOp]) -> dict[UOp, UOp]:
    """Memory that has been written, each with a new node over it, on which the views of `effects` go on: nodes over the
    old one that hold a computed value (`x * 2`, still alive) are never found for the new contents."""
    fresh: dict[UOp, UOp] = {}
    new: set[UOp] = set()
    for effect in effects:
        if effect.storage is None:
            view = _resolve(effect.src[0])
            for memory in memory_of(view):
                if memory not in fresh and memory not in new:
                    fresh[memory] = alias(memory)
                    new.add(fresh[memory])
            effect.storage = view.substitute(fresh)
    for memory in fresh:
        forget_values(memory)
    return fresh


def forget_values(memory: UOp) -> None:
    """What was computed into the memory of a BUFFER node does not lie there any more."""
    for ref in getattr(memory, "came_from", ()):
        node = ref()
        if node is not None:
            node.storage = None
    memory.came_from = []


def alias(buffer: UOp) -> UOp:
    """Another node over the memory of a BUFFER node."""
    memory = storage_of(buffer)
    node = UOp.new_buffer(buffer.arg.device, buffer.arg.size, buffer.dtype)
    node.storage = memory
    if local.capture is not None and any(memory is b for b in local.capture.made):
        local.capture.nodes.append((weakref.ref(node), memory))
    return node


def _resolve(view: UOp) -> UOp:
    """A target view with the assignments below it resolved to the memory they wrote."""
    done = {n: n.storage for n in view.toposort(lambda n: n.op is not Ops.AFTER) if n.op is Ops.AFTER}
    return view.substitute(done)


def _restore(result: UOp, inputs: list[UOp], made: list[Buffer | None], steps: Schedule, nodes: dict[UOp, UOp]) -> UOp:
    """The view `result` of a parameter as a view of the memory behind it."""
    views, whole = [], result
    while result.op is not Ops.PARAM and result.op is not Ops.MSTACK:
        if not result.src:
            return whole  # a constant is its own value
        views.append(result)
        result = result.src[0]
    node = nodes.get(result)
    if node is None and result.op is Ops.MSTACK:
        node = nodes[result] = result.with_src(tuple([_restore(p, inputs, made, steps, nodes) for p in result.src]))
    if node is None:
        slot = result.arg.slot
        if slot < steps.params:
            node = inputs[slot]
        else:
            buffer = made[slot]
            assert buffer is not None
            node = UOp.new_buffer(buffer.device, buffer.size, buffer.dtype)
            node.storage = buffer
            if local.capture is not None:
                local.capture.nodes.append((weakref.ref(node), buffer))
        nodes[result] = node
    for v in reversed(views):
        node = v.with_src((node, *v.src[1:]))
    return node
