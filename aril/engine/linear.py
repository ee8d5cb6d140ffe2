"""Schedules as nodes: the steps of a realization as a LINEAR of CALLs, and running one.

In come a normalised graph and its schedule; out goes LINEAR(CALL(written.., read.., CallArg(kernel, written)), ..) over
BUFFER nodes. A kernel is a SINK in kernel form; a copy's is a COPY of parameter 1, a message's a COLLECTIVE.
"""

from __future__ import annotations

from aril.device import Buffer, Device
from aril.engine.capture import JitError, local
from aril.engine.lock import locked
from aril.engine.realize import storage_of
from aril.engine.run import executable, run
from aril.ops import OpGroup, Ops
from aril.schedule import Item, Normalized, Schedule, lower
from aril.schedule.lower import HAND_WRITTEN
from aril.uop import UOp
from aril.uop.call import CallArg, call_kernel


def linear_of(normal: Normalized, steps: Schedule) -> tuple[UOp, list[Buffer | None]]:
    """The schedule as a LINEAR, and the memory of its parameters and temporaries, which nothing has been written to."""
    if local.capture is not None:
        raise JitError("a captured function runs what it computes; take its kernels outside of jit")
    default = Device.DEFAULT
    nodes = list(normal.buffers)
    nodes += [UOp.new_buffer(t.device or default, t.size, t.dtype) for t in steps.temps]
    calls = []
    for item in steps.items:
        sources = [nodes[slot] for slot in item.args]
        if item.exchange is not None:
            kernel = UOp(Ops.COLLECTIVE, (sources[1].param_like(1),), item.exchange)
        elif item.kernel is None:
            kernel = UOp(Ops.COPY, (sources[1].param_like(1),), item.device or default)
        else:
            kernel = lower(item.kernel).replace(tag=HAND_WRITTEN)
            used = [u.arg.slot for u in kernel.toposort() if u.op is Ops.PARAM and not u.is_variable]
            sources = sources[: 1 + max(used, default=-1)]
        calls.append(call_kernel(CallArg(kernel, item.outputs if item.kernel is not None else 1), sources))
    return UOp(Ops.LINEAR, tuple(calls)), [storage_of(n) for n in nodes]


@locked
def run_linear(linear: UOp, values: dict[str, int] | None = None) -> None:
    """Run the kernels and copies of a LINEAR in order; `values` are those of its variables, by name.

    Errors: ValueError for anything but a LINEAR of CALLs over BUFFERs, KeyError for a variable without a value.
    """
    if linear.op is not Ops.LINEAR or any(c.op is not Ops.CALL for c in linear.src):
        raise ValueError(f"run_linear: expected a LINEAR of CALLs, not {linear.op.name}")
    nodes = list(dict.fromkeys([s for c in linear.src for s in c.src]))
    for n in nodes:
        if n.op is not Ops.BUFFER:
            raise ValueError(f"run_linear: a call reads {n.op.name}; its sources are BUFFERs")
    slots = {n: i for i, n in enumerate(nodes)}
    items = []
    for c in linear.src:
        kernel, device = c.arg.kernel, c.src[0].arg.device
        body = None if kernel.op in OpGroup.TRANSFER else kernel
        what = kernel.arg if kernel.op is Ops.COLLECTIVE else None
        items.append(Item(body, tuple([slots[s] for s in c.src]), c.arg.written, device, exchange=what))
    steps = Schedule(tuple(items), len(nodes), (), ())
    run(executable(steps, Device.DEFAULT), [storage_of(n) for n in nodes], dict(values or {}))


__all__ = ["linear_of", "run_linear"]
