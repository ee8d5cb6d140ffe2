"""Which tensors are alive and what memory they see: realizing them, versions of memory, what they were computed from.

In come tensors (anything with `uop`, `_device`, `_history`); their nodes are changed to those of memory that holds
their values. `docs/decisions/0005-versions-of-memory.md` says why written memory goes on under a new node.
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
from aril.engine.lock import locked, note_assignment
from aril.forks import renewed_in_child
from aril.ops import OpGroup, Ops
from aril.schedule.shard import is_sharded_storage, memory_of
from aril.uop import UOp
from aril.uop.args import is_memory_only
from aril.uop.node import view_flat
from aril.uop.order import toposort

if TYPE_CHECKING:
    from aril.tensor import Tensor

# Every tensor alive, by identity. Assignments need to know who still reads what they overwrite.
_live: dict[int, _LiveRef] = {}
# The same tensors by the node that they are views of (its identity), so that an assignment finds those that follow it
# without a look at all others. Those with a new node wait in `_unfiled` until somebody asks.
_filed: dict[int, dict[int, _LiveRef]] = {}
_unfiled: dict[int, _LiveRef] = {}
EMPTY = 64  # places that nobody is filed at any more, before they are cleared away
_repeats = itertools.count()  # tells apart assignments that read alike
# BUFFER nodes over the same memory, of tensors that were computed alike and may change apart.
_twins: weakref.WeakKeyDictionary[UOp, weakref.WeakSet[UOp]] = weakref.WeakKeyDictionary()
# States of memory that assignments made and that may not be computed yet.
_assigned: weakref.WeakSet[UOp] = weakref.WeakSet()


def _forget(ref: _LiveRef, live: Any = _live, unfiled: Any = _unfiled, filed: Any = _filed) -> None:
    key = ref.key
    for known in (live, unfiled, filed.get(ref.base, {})):
        if known.get(key) is ref:
            known.pop(key, None)


class _LiveRef(weakref.ref):  # type: ignore[type-arg]
    __slots__ = ("base", "key")
    base: int  # where it is filed, 0 for nowhere
    key: int


def enlist(t: Tensor) -> None:
    """Count `t` among the tensors alive."""
    ref = _LiveRef(t, _forget)
    ref.key, ref.base = id(t), 0
    _live[ref.key] = _unfiled[ref.key] = ref


def set_node(t: Tensor, node: UOp) -> None:
    """Let `t` stand for another node."""
    t.uop = node
    ref = _live.get(id(t))
    if ref is None:
        enlist(t)
    else:
        _unfiled[ref.key] = ref


@locked
def _viewers(base: UOp) -> list[Tensor]:
    """The tensors that are `base`, or views of it."""
    while _unfiled:
        ref = _unfiled.popitem()[1]
        t = ref()
        if t is None:
            continue
        now = id(storage_base(t.uop))
        if ref.base != now:
            _filed.get(ref.base, {}).pop(ref.key, None)
            ref.base = now
            _filed.setdefault(now, {})[ref.key] = ref
    if len(_filed) > 2 * len(_live) + EMPTY:  # they are left by tensors that die, which may happen at any time
        for key in [key for key, refs in _filed.items() if not refs]:
            del _filed[key]
    found = [ref() for ref in list(_filed.get(id(base), {}).values())]
    return [t for t in found if t is not None and storage_base(t.uop) is base]  # of an id used before: the present ones


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
        t.uop = node if view.op is Ops.BUFFER else view.with_src((node, *view.src[1:]))
        t._waiting = None
        enlist(t)


@locked
def advance(base: UOp, effect: UOp) -> None:
    """The storage `base` goes on in the state after `effect`: all tensors that are views of it follow."""
    new = base.after(effect)
    if new.storage is not None:  # the same step done before (x.assign(x * 2) again), its node still alive: do it anew
        new = UOp(Ops.AFTER, new.src, tag=next(_repeats))
    for t in _viewers(base):
        set_node(t, t.uop.substitute({base: new}))
        t._history = None
    _assigned.add(new)
    note_assignment(new)


# ---------------------------------------------------------------------------------------------------- realizing


@locked
def realize(tensors: Iterable[Tensor], compute: Any = None) -> None:
    """Compute all of `tensors` in one schedule. What else still reads a value that an assignment among them
    overwrites is computed too, before it is lost. `compute`: see `realize_uops`."""
    from aril.engine.realize import alias, is_realized, local, realize_uops, realized_view

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
    while more := _readers_of_overwritten([t.uop for t in todo], {id(t) for t in todo}):
        todo += more  # these may hold assignments of their own
    taken = {t.uop for t in todo if t.uop.storage is not None}
    results = realize_uops([t.uop for t in todo], [t._device for t in todo], compute)
    for t, new in zip(todo, results, strict=True):
        old = t.uop
        if old is new:
            continue
        base = new.base
        moved, detached = _only_moves(base, old)
        if detached:  # what was there already, seen through a DETACH
            new = new.detach()
        if GRAD.value and t.dtype.kind == "f" and not is_storage_view(old) and not moved:
            t._history = old
        bottom = _bottom(new)
        if bottom.op is Ops.BUFFER and not is_storage_view(old):
            if old in taken:  # the memory of another tensor that was computed alike, not of one that this is a view of
                twin = alias(bottom)
                new = new.substitute({bottom: twin})
                group = _twins[twin] = _twins.setdefault(bottom, weakref.WeakSet((bottom,)))
                group.add(twin)
                bottom = twin
            taken.add(old)
            if getattr(bottom, "came_from", None) is None:
                bottom.came_from = weakref.ref(old)
        set_node(t, new)
        if t._device is None:
            t._device = new.device
    while local.written:
        state = local.written.pop()
        for t in _viewers(state):
            set_node(t, t.uop.substitute({state: realized_view(state)}))


def _only_moves(base: UOp, u: UOp) -> tuple[bool, bool]:
    """Whether `u` asks for what lies in `base` already, such as `contiguous()` of whole storage: that is no history;
    and whether it does so without passing gradients on."""
    detached = False
    while u.op is Ops.CONTIGUOUS or u.op in OpGroup.MOVEMENT or u.op is Ops.DETACH:
        detached |= u.op is Ops.DETACH
        u = u.src[0]
    return u is base, detached and u is base


def settle(memory: set[int]) -> None:
    """Compute the assignments to `memory` (identities of buffers) that wait: a replay reads it without the graph."""
    if _assigned:
        _settle(memory)


@locked
def _settle(memory: set[int]) -> None:
    waiting = set()
    for state in list(_assigned):
        if state.storage is not None:
            _assigned.discard(state)
            continue
        buffers = [b.storage for b in memory_of(_bottom(state))]
        if any(b is not None and id(b.base or b) in memory for b in buffers):
            waiting.add(state)
    if waiting:
        realize([t for t in alive() if storage_base(t.uop) in waiting])


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


def alive() -> list[Tensor]:
    """Every tensor alive."""
    return [t for t in [r() for r in list(_live.values())] if t is not None]


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


def _readers_of_overwritten(roots: list[UOp], chosen: set[int]) -> list[Tensor]:
    if not _any_writes(roots):
        return []
    writes = [u for u in toposort(roots, _pending) if u.op is Ops.AFTER and u.storage is None]
    written = {_bottom(u) for u in writes}
    last = set(writes) - {u.src[0] for u in writes}
    tensors = [t for t in alive() if id(t) not in chosen]
    stale: dict[UOp, bool] = {}
    graphs = [g for t in tensors for g in (t.uop, t._history) if g is not None]
    for u in toposort(graphs, lambda n: n not in last):
        if u.op is Ops.BUFFER:
            stale[u] = u in written
        elif u in last:
            stale[u] = False
        elif u.storage is not None:
            stale[u] = _bottom(u.storage) in written
        else:
            stale[u] = any(stale[s] for s in u.src)
    out = []
    for t in tensors:
        if t._history is not None and stale[t._history]:
            t._history = None  # its graph would be computed from other values than it was
        base = storage_base(t.uop)
        if (
            stale[t.uop]
            and t.uop.storage is None
            and base.op is not Ops.BUFFER
            and (base.op is not Ops.AFTER or base.storage is None)
        ):
            out.append(t)
    return out


def _bottom(u: UOp) -> UOp:
    """The storage at the bottom of a view and of the assignments to it."""
    while u.op not in OpGroup.STORAGE and u.src:
        u = u.storage if u.op is Ops.AFTER and u.storage is not None else u.src[0]
    return u


_VIEWS = OpGroup.MOVEMENT - {Ops.PAD} | {Ops.DETACH, Ops.BITCAST}
# Through an EXPAND or SHEAR several elements may be one place in memory.
_WRITABLE = _VIEWS - {Ops.EXPAND, Ops.SHEAR}


def storage_base(u: UOp) -> UOp:
    """Where a view begins: storage, an assignment, or the computation below the view operations."""
    while u.op in _VIEWS:
        u = u.src[0]
    return u


def is_storage_view(u: UOp) -> bool:
    """Whether `u` is memory seen through views, possibly with assignments pending."""
    base = storage_base(u)
    return base.op is Ops.AFTER or base.op is Ops.BUFFER or is_sharded_storage(base)


def is_writable_view(u: UOp) -> bool:
    """Whether each element of `u` is a place of its own in memory."""
    while u.op in _WRITABLE:
        u = u.src[0]
    return u.op in (Ops.AFTER, Ops.BUFFER) or is_sharded_storage(u)


def _is_shared(view: UOp) -> bool:
    """Whether another tensor may stand for the value in this storage: by way of the graph it was computed by, or by a
    node of its own over the same memory."""
    bottom = _bottom(view)
    origin = getattr(bottom, "came_from", None)
    return origin is not None and origin() is not None or len(_twins.get(bottom, ())) > 1


def is_only_view(t: Tensor) -> bool:
    """Whether `t` is all of some memory that no other tensor is a view of, though a graph stands for its value."""
    if not is_flat(t.uop) or not is_writable_view(t.uop):
        return False
    t._history = None
    return _is_shared(t.uop) and len(_viewers(storage_base(t.uop))) == 1


@locked
def make_writable(t: Tensor) -> bool:
    """Whether the elements of `t` are places in memory to write to. Where a graph stands for what is in that memory
    (`x * 2`, realized and still held), the memory goes on as a copy for all tensors that are views of it."""
    if not is_writable_view(t.uop):
        return False
    t._history = None  # what it was computed from is not what it will be
    if not _is_shared(t.uop):
        return True
    base = storage_base(t.uop)
    if base.op is not Ops.BUFFER and base.op is not Ops.AFTER:
        return False
    flat = UOp.new_buffer(base.device, elements(base.shape), base.dtype)  # type: ignore[arg-type]
    view = view_flat(flat, base.shape)
    state = view.after(view.store(base))
    for v in _viewers(base):
        set_node(v, v.uop.substitute({base: state}))
    _assigned.add(state)
    note_assignment(state)
    return True


def has_older_state(u: UOp, graph: dict[UOp, None]) -> bool:
    """Whether `graph` reads memory that `u` is a view of as it was before an assignment."""
    base = storage_base(u)
    if base in graph:
        return False
    if base.op is Ops.BUFFER:
        return base.storage is not None and any(n.op is Ops.BUFFER and n.storage is base.storage for n in graph)
    while base.op is Ops.AFTER:
        base = storage_base(base.src[0])
        if base in graph:
            return True
    return False


def is_flat(u: UOp) -> bool:
    """Whether `u` is whole storage in its own order, under any shape."""
    while u.op is Ops.RESHAPE or u.op is Ops.DETACH:
        u = u.src[0]
    return u.op is Ops.BUFFER or is_sharded_storage(u)


def with_history(root: Tensor, targets: tuple[Tensor, ...]) -> UOp:
    """The graph of `root` as it was before parts of it were realized, as far as tensors still held remember; targets
    as they are now, and assignments that have run as the memory they wrote."""
    known = {t.uop: t._history for t in alive() if t._history is not None and is_flat(t.uop)}
    own = {t.uop.base for t in targets}
    before = {u.base: h._reshape(u.base.shape) for u, h in known.items() if u.base not in own}
    now = {t._history: t.uop for t in targets if t._history is not None}
    graph = root._history if root._history is not None and root.uop.base not in own else root.uop
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
