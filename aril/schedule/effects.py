"""Stores to sharded storage, and hand-written kernels over it: one effect a device.

In come the nodes of the user's graph with what has become of their sources; out go tuples of effects, one a device
(None where a device has nothing to do), and the parts of the storage after them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aril.ops import OpGroup, Ops
from aril.schedule.parts import Parts, gather
from aril.schedule.prepare import is_flat_view
from aril.schedule.written import PLACES, in_source
from aril.uop import UOp
from aril.uop.call import CallArg, call_kernel

if TYPE_CHECKING:
    from aril.schedule.shard import Spread


def stored(s: Spread, u: UOp) -> Any:
    """STORE(view, value): each device stores what falls into its part."""
    target = s.done[u.src[0]]
    if not isinstance(target, Parts):
        value = s.done[u.src[1]]
        return u.with_src((target, gather(value, target.device), *[s.one(g) for g in u.src[2:]]))
    view, value = u.src[:2]
    while not all(_is_place(p) for p in target.parts):
        # The parts of this view are computed, they are no places: what it is a view of is written instead.
        value = in_source(view, value)
        view = view.src[0]
        target = s.done[view]
        s.of(value)
        s.settled(value)
    lengths = target.lengths if target.axis is not None else ()
    more = [s.laid_out(v, target.devices, target.axis, lengths) for v in (value, *u.src[2:])]
    return tuple([
        UOp(Ops.STORE, (t, *[m.parts[i] for m in more])) if 0 not in t.shape else None
        for i, t in enumerate(target.parts)
    ])  # fmt: skip


def _is_place(u: UOp) -> bool:
    """Whether `u` is a view of storage, each element one place."""
    while u.op in PLACES:
        u = u.src[0]
    return u.op in OpGroup.STORAGE or u.op is Ops.AFTER


def after(s: Spread, u: UOp) -> Any:
    """AFTER(storage, effects): of each part, after those on its device."""
    m = s.done[u.src[0]]
    effects = [s.done[d] for d in u.src[1:]]
    if not isinstance(m, Parts):
        flat = [e for x in effects for e in (x if isinstance(x, tuple) else (x,)) if e is not None]
        return m.after(*flat)
    parts = []
    for i, p in enumerate(m.parts):
        own = [x[i] if isinstance(x, tuple) else x for x in effects]
        parts.append(
            UOp(Ops.AFTER, (p, *[e for e in own if e is not None]), tag=u.tag) if any(e is not None for e in own) else p
        )
    return m.with_parts(parts, m.axis)


def called(s: Spread, u: UOp) -> Any:
    """A hand-written kernel: one on each device, over the parts there."""
    arg: CallArg = u.arg
    values = [s.done[x] for x in u.src]
    devices = next(v for v in values if isinstance(v, Parts)).devices
    sources = [v if isinstance(v, Parts) else s.together(x, devices) for x, v in zip(u.src, values, strict=True)]
    if not all(is_flat_view(p) for m in sources[: arg.written] for p in m.parts):
        raise NotImplementedError(
            "a kernel that writes a view across the axis a tensor is sharded on; give it the tensor"
        )
    calls = []
    for i, kernel in enumerate(arg.parts):
        calls.append(call_kernel(CallArg(kernel, arg.written), [m.parts[i] for m in sources]))
    return tuple(calls)


__all__ = ["after", "called", "stored"]
