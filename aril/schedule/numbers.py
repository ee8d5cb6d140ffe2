"""Values made of numbers only (positions, masks, tables) have no device: they are stored where they are read.

In: a prepared graph, each node of it on one device or on none. A kernel takes no memory of another device, so a value
that is read on several is stored on each of them.
"""

from __future__ import annotations

from collections.abc import Container

from aril.ops import Ops
from aril.uop import UOp


def _readers(order: list[UOp]) -> dict[UOp, dict[str, None]]:
    """The devices that each value without one is read on, by way of other such values too."""
    out: dict[UOp, dict[str, None]] = {}
    for u in reversed(order):
        device = u.src[0].device if u.op is Ops.STORE else u.device
        devices = {device: None} if isinstance(device, str) else out.get(u)
        for s in u.src if devices else ():
            if s.device is None and s.op is not Ops.STORE:
                out.setdefault(s, {}).update(devices or {})
    return out


def read_on(order: list[UOp]) -> dict[UOp, str]:
    """The device that each value without one is read on."""
    return {u: next(iter(devices)) for u, devices in _readers(order).items()}


def stored_apart(sink: UOp, stored: Container[UOp]) -> UOp:
    """`sink`, where a stored value without a device that is read on several is another graph for each.

    Before: ``SCATTER(a, x, iota)``, ``SCATTER(b, y, iota)``, a and b on two devices. After: each with an iota of its
    own, told apart by their tags.
    """
    order = list(sink.toposort())
    if not any(u.device is None and u in stored and u.op is not Ops.STORE for u in order):
        return sink
    readers = _readers(order)
    several = {u for u, devices in readers.items() if len(devices) > 1 and u in stored}
    if not several:
        return sink
    parts = {u for u in readers if u.op is not Ops.CONST and not u.is_variable and len(readers[u]) > 1}
    apart: dict[tuple[UOp, str], UOp] = {}
    done: dict[UOp, UOp] = {}
    for u in order:
        for device in readers[u] if u in parts else ():
            new = u.with_src(tuple([apart.get((s, device), s) for s in u.src])) if u.src else u
            if u.op is Ops.SPECIAL or u.op is Ops.CONTIGUOUS:
                new = new.replace(tag=device)
            elif new is u and u in several:
                new = UOp(Ops.CONTIGUOUS, (u,), tag=device)
            apart[u, device] = new
        on = u.src[0].device if u.op is Ops.STORE else u.device
        if on is None and len(readers.get(u, ())) == 1:
            on = next(iter(readers[u]))
        src = tuple([apart.get((s, on), done[s]) if isinstance(on, str) else done[s] for s in u.src])
        done[u] = u.with_src(src) if u.src else u
    return done[sink]


def without_tags(body: UOp) -> UOp:
    """A kernel's body without the marks by which `stored_apart` and `compute_scores_again` tell nodes apart."""
    done: dict[UOp, UOp] = {}
    for u in body.toposort():
        new = u.with_src(tuple([done[s] for s in u.src])) if u.src else u
        done[u] = new.replace(tag=None) if u.op in _TOLD_APART else new
    return done[body]


_TOLD_APART = (Ops.SPECIAL, Ops.REDUCE)
