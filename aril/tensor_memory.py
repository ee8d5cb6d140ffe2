"""What memory tensors see: realizing them, versions of memory, what they were computed from.

In come tensors (anything with `uop`, `_device`, `_history`); their nodes are changed to those of memory that holds
their values. `docs/decisions/0005-versions-of-memory.md` says why written memory goes on under a new node, and who
makes way for a write.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from aril.config import GRAD
from aril.device import Buffer, Device
from aril.dtype import strong
from aril.engine.capture import local
from aril.engine.lock import locked, note_assignment
from aril.engine.realize import alias, forget_values, is_realized, realize_uops, realized_view
from aril.forks import renewed_in_child
from aril.ops import OpGroup, Ops
from aril.schedule.shard import is_sharded_storage, memory_of
from aril.tensor_alive import (
    LOST,
    affected,
    alive,
    are_read,
    bottom_of,
    enlist,
    is_flat,
    is_storage_view,
    is_twin,
    is_writable_view,
    look_again,
    make_twin,
    place_of,
    set_node,
    storage_base,
    viewers,
)
from aril.uop import UOp
from aril.uop.args import is_memory_only
from aril.uop.node import view_flat
from aril.uop.order import toposort

if TYPE_CHECKING:
    from aril.tensor import Tensor

_repeats = itertools.count()  # tells apart assignments that read alike
# States of memory that assignments made and that may not be computed yet.
_assigned: set[weakref.ref[UOp]] = set()


# Held while a tensor gets a node that had none (a result of a replay, `jit_calls.unnamed`).
_naming = renewed_in_child(sys.modules[__name__], "_naming")


def has_memory_only(t: Tensor) -> bool:
    """Whether `t` is a result of a replay that nobody asked for its node yet: it is realized."""
    return t._waiting is not None


def give_node(t: Tensor) -> None:
    """Give a tensor that waits for it the node of its memory."""
    with _naming:
        if t._waiting is None:  # another thread did
            return
        memory, view = t._waiting
        node = UOp.new_buffer(memory.device, memory.size, memory.dtype)
        node.storage = memory
        t.uop = view.substitute({memory_of(view)[0]: node})
        t._waiting = None
        enlist(t)


@locked
def advance(base: UOp, effect: UOp) -> None:
    """The storage `base` goes on in the state after `effect`: all tensors that are views of it follow."""
    new = base.after(effect)
    if new.storage is not None:  # the same step done before (x.assign(x * 2) again), its node still alive: do it anew
        new = UOp(Ops.AFTER, new.src, tag=next(_repeats))
    for t in viewers(base):
        set_node(t, t.uop.substitute({base: new}))
        t._history = None
    _assigned.add(weakref.ref(new, _assigned.discard))
    note_assignment(new)


# ---------------------------------------------------------------------------------------------------- realizing


@locked
def realize(tensors: Iterable[Tensor], compute: Any = None) -> None:
    """Compute all of `tensors` in one schedule. What else still reads a value that an assignment among them
    overwrites is computed too, before it is lost. `compute`: see `realize_uops`."""
    todo = []
    for t in {id(t): t for t in tensors}.values():
        if has_memory_only(t):
            continue
        need_numbers(t)
        if t.uop.dtype.weak:
            set_node(t, t.uop.cast(strong(t.uop.dtype)))
        if not is_realized(t.uop):
            todo.append(t)
    if not todo:
        return
    stale = _make_way(todo) if _any_writes([t.uop for t in todo]) else set()
    for t in todo:  # a gradient finds its way back from whole memory of one device only
        shown = None if is_storage_view(t.uop) else _shown(t.uop)
        if shown is not None and (is_sharded_storage(shown) or t.uop.storage is None and not _is_whole(t.uop)):
            _move(t)
    results = realize_uops([t.uop for t in todo], [t._device for t in todo], compute)
    fresh, local.fresh = set(local.fresh), frozenset()
    for t, new in zip(todo, results, strict=True):
        old = t.uop
        if old is new:
            continue
        if not is_storage_view(old):
            if GRAD.value and t.dtype.kind == "f":
                t._history = LOST if id(t) in stale else old
            bottom = bottom_of(new)
            if bottom in fresh:
                fresh.discard(bottom)
            elif bottom.op is Ops.BUFFER:  # another tensor's memory: of one computed alike, or of what this one moves
                twin = alias(bottom)
                new = new.substitute({bottom: twin})
                make_twin(bottom, twin)
        set_node(t, new)
        if t._device is None:
            t._device = new.device
    while local.written:
        state = local.written.pop()
        for t in viewers(state):
            set_node(t, t.uop.substitute({state: realized_view(state)}))


def _make_way(todo: list[Tensor]) -> set[int]:
    """Before assignments among `todo` are computed: what else depends on the memory they write joins it, values that
    lie there go on in memory of their own. The identities of those that no gradient flows through afterwards."""
    stale: set[int] = set()
    lost: list[Tensor] = []
    while True:
        writes = [u for u in toposort([t.uop for t in todo], _pending) if u.op is Ops.AFTER and u.storage is None]
        nodes = {b for u in writes for b in memory_of(bottom_of(u))}
        places = {place_of(b) for b in nodes}
        last = set(writes) - {u.src[0] for u in writes}
        values, depending, histories = affected([*todo, *alive()], places, nodes, last)
        stale |= depending
        lost += histories
        chosen = {id(t) for t in todo}
        more = list({id(t): t for t in values if id(t) not in chosen}.values())
        if local.capture is not None and (before := [t for t in more if local.capture.is_from_before(t)]):
            with local.not_capturing():
                realize(before)
            continue
        for t in more:
            need_numbers(t)
        if not more:
            break
        todo += more  # these may hold assignments of their own
    for t in lost:
        t._history = LOST
    for t in todo:
        shown = _shown(t.uop)
        if shown is not None and shown not in last and any(place_of(b) in places for b in memory_of(bottom_of(shown))):
            _move(t, id(t) in stale)
    return stale


_SAME = OpGroup.MOVEMENT - {Ops.PAD} | {Ops.DETACH, Ops.BITCAST, Ops.NOOP, Ops.CONTIGUOUS_BACKWARD}
_WHOLE = frozenset({Ops.RESHAPE, Ops.DETACH, Ops.NOOP, Ops.CONTIGUOUS_BACKWARD, Ops.CONTIGUOUS})


def _shown(u: UOp) -> UOp | None:
    """The storage, or assignment to it, that holds the value of `u` by itself: no kernel computes that."""
    while True:
        if u.op is not Ops.BUFFER and u.op is not Ops.AFTER and u.storage is not None:
            u = u.storage
        elif u.op in _SAME or u.op is Ops.CONTIGUOUS and _is_whole(u):
            u = u.src[0]
        else:
            return u if u.op is Ops.BUFFER or u.op is Ops.AFTER or is_sharded_storage(u) else None


def _is_whole(u: UOp) -> bool:
    """Whether `u` has all elements of some memory, in their order."""
    while True:
        if u.op in _WHOLE:
            u = u.src[0]
        elif u.op is not Ops.BUFFER and u.op is not Ops.AFTER and u.storage is not None:
            u = u.storage
        else:
            return u.op is Ops.BUFFER or u.op is Ops.AFTER or is_sharded_storage(u)


def _move(t: Tensor, stale: bool = False) -> None:
    """Have the value of `t` computed into memory of its own, though it may be had as a view of some that is there."""
    base = storage_base(t.uop)
    if is_storage_view(t.uop):
        return _apart(base)
    history = t.uop
    t._own_storage()
    t._history = LOST if stale else history if t.dtype.kind == "f" else None
    return None


def settle(memory: set[int]) -> None:
    """Compute the assignments to `memory` (identities of buffers) that wait: a replay reads it without the graph."""
    if _assigned:
        _settle(memory)


@locked
def _settle(memory: set[int]) -> None:
    waiting = set()
    for ref in list(_assigned):
        state = ref()
        if state is None or state.storage is not None:
            _assigned.discard(ref)
        elif any(place_of(b) in memory for b in memory_of(bottom_of(state))):
            waiting.add(state)
    if waiting:
        realize([t for t in alive() if storage_base(t.uop) in waiting])


def keep_values(memory: set[int], nodes: Iterable[UOp] = ()) -> None:
    """Compute what depends on `memory` (identities of buffers) as it is: a replay writes it without the graph. `nodes`
    are those that name parts of it which may be new since the last replay."""
    if are_read(memory) or any(getattr(n, "came_from", None) for n in nodes):
        keep_all_values(memory)


@locked
def keep_all_values(memory: set[int]) -> None:
    """`keep_values`, asking each tensor."""
    values, stale, histories = affected(alive(), memory, ())
    for t in histories:
        t._history = LOST
    for t in values:
        if _shown(t.uop) is not None:
            _move(t, id(t) in stale)
    realize(values)
    for t in values:
        if id(t) in stale:
            t._history = LOST
    for b in {b for t in alive() if is_storage_view(t.uop) for b in memory_of(bottom_of(t.uop))}:
        if place_of(b) in memory:
            forget_values(b)
    look_again()


def set_apart(tensors: Iterable[Tensor]) -> None:
    """Before a function is captured that is given or reaches `tensors`: those that are still to be computed from memory
    are, as they are without a capture, and no other value lies in the memory that its replays will read or write."""
    todo = list(tensors)
    realize([t for t in todo if not is_realized(t.uop) and any(u.op is Ops.BUFFER for u in t.uop.toposort())])
    keep_all_values({place_of(b) for t in todo for b in memory_of(t.uop)})


def own_memory(tensors: Iterable[Tensor]) -> None:
    """Compute `tensors`; those whose memory was made for another value get a copy of it."""
    todo = list(tensors)
    realize(todo)
    shared = [t for t in todo if (base := storage_base(t.uop)).op is Ops.BUFFER and is_twin(base)]
    for t in shared:
        _apart(storage_base(t.uop))
    realize(shared)


@locked
def renew(written: Iterable[Buffer]) -> None:
    """Put new nodes in place of those over memory that was written without the graph (a replay), in every tensor:
    values computed from the old contents stay with the old nodes."""
    memory = {id(b) for b in written}
    fresh: dict[UOp, UOp] = {}
    for t in alive():
        base = storage_base(t.uop)
        written_to = [b for b in memory_of(base) if b.storage is not None and id(b.storage) in memory]
        for b in written_to:
            if b not in fresh:
                fresh[b] = UOp.new_buffer(b.arg.device, b.arg.size, b.dtype)
                fresh[b].storage = b.storage
        if written_to:
            set_node(t, t.uop.substitute({b: fresh[b] for b in written_to}))
            t._history = None


def _pending(u: UOp) -> bool:
    return u.op is not Ops.BUFFER and u.storage is None


def _any_writes(roots: list[UOp]) -> bool:
    """Whether computing `roots` does an assignment. Asked at every realization, so it keeps no order."""
    seen = set(roots)
    stack = list(seen)
    while stack:
        u = stack.pop()
        if u.storage is None:
            if u.op is Ops.AFTER:
                return True
            for s in u.src:
                if s not in seen:
                    seen.add(s)
                    stack.append(s)
    return False


def is_only_view(t: Tensor) -> bool:
    """Whether `t` is all of some memory that it shares with another value, and no other tensor is a view of it."""
    if not is_flat(t.uop) or not is_writable_view(t.uop):
        return False
    base = storage_base(t.uop)
    return is_twin(base) and len(viewers(base)) == 1


@locked
def make_writable(t: Tensor) -> bool:
    """Whether the elements of `t` are places in memory to write to. Where that memory was made for another value, it
    goes on as a copy for all tensors that are views of it."""
    if not is_writable_view(t.uop):
        return False
    t._history = None  # what it was computed from is not what it will be
    _apart(storage_base(t.uop))
    return True


def _apart(base: UOp) -> None:
    """Where the memory of `base` was made for another value, let all that are views of it go on with a copy."""
    if base.op is not Ops.BUFFER or not is_twin(base):
        return
    flat = UOp.new_buffer(base.device, elements(base.shape), base.dtype)  # type: ignore[arg-type]
    view = view_flat(flat, base.shape)
    state = view.after(view.store(base))
    for v in viewers(base):
        set_node(v, v.uop.substitute({base: state}))
    _assigned.add(weakref.ref(state, _assigned.discard))
    note_assignment(state)


def has_older_state(u: UOp, graph: dict[UOp, None]) -> bool:
    """Whether `graph` reads memory that `u` is a view of as it was before an assignment."""
    base = storage_base(u)
    if base in graph:
        return False
    if base.op is Ops.BUFFER:
        return base.storage is not None and any(
            n.op is Ops.BUFFER and n.storage is base.storage and not is_twin(n) for n in graph
        )
    while base.op is Ops.AFTER:
        base = storage_base(base.src[0])
        if base in graph:
            return True
    return False


def with_history(root: Tensor, targets: tuple[Tensor, ...]) -> UOp:
    """The graph of `root` as it was before parts of it were realized, as far as tensors still held remember; targets
    as they are now, and assignments that have run as the memory they wrote."""
    known = {t.uop: t._history for t in alive() if t._history not in (None, LOST) and is_flat(t.uop)}
    own = {t.uop.base for t in targets}
    before = {u.base: h._reshape(u.base.shape) for u, h in known.items() if u.base not in own}
    now = {t._history: t.uop for t in targets if t._history not in (None, LOST)}
    graph = root._history if root._history not in (None, LOST) and root.uop.base not in own else root.uop
    while True:
        order = graph.toposort()
        mapping = {u: now[u] for u in order if u in now}
        mapping |= {u: before[u] for u in order if u in before}
        mapping |= {u: u.storage for u in order if u.op is Ops.AFTER and u.storage is not None}
        if not mapping:
            return graph
        graph = graph.substitute(mapping)


def working_device(t: Tensor) -> Any:
    """Where what is made to be computed with `t` lies: on its device, unless that holds memory only."""
    return Device.DEFAULT if is_memory_only(t._device) else t._device


def elements(shape: tuple[Any, ...]) -> int:
    """The number of elements of a shape, of symbolic dimensions at their greatest values."""
    out = 1
    for d in shape:
        out *= d if isinstance(d, int) else int(d.vmax)
    return out


def need_numbers(t: Tensor) -> None:
    """TypeError for what has no numbers to compute (a call's tuple, an effect)."""
    for u in t.uop.toposort() if t.uop.dtype.kind == "v" else ():
        raise TypeError(f"{u.op} is no value that can be computed")
