"""Every tensor alive, and the memory that each reads without being a view of it.

Who writes memory needs to know whose values would change. An assignment walks all graphs once; a replay is to be short,
so what a tensor reads is found once after it was made or changed, and a replay compares sets.
"""

from __future__ import annotations

import weakref
from collections.abc import Container, Iterable
from typing import TYPE_CHECKING, Any

from aril.engine.lock import locked
from aril.engine.realize import storage_of
from aril.engine.replay import root_of
from aril.ops import OpGroup, Ops
from aril.schedule.shard import is_sharded_storage, memory_of
from aril.uop import UOp
from aril.uop.order import toposort

if TYPE_CHECKING:
    from aril.tensor import Tensor

# In place of a history whose graph reads memory that has been written since.
LOST = UOp(Ops.NOOP, (), tag="lost")
# BUFFER nodes that share the memory of another, and those that share one memory, whichever of them it was made for.
_twins: weakref.WeakSet[UOp] = weakref.WeakSet()
_groups: weakref.WeakKeyDictionary[UOp, weakref.WeakSet[UOp]] = weakref.WeakKeyDictionary()

# ----------------------------------------------------------------------------------------------------------- views

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


def is_flat(u: UOp) -> bool:
    """Whether `u` is whole storage in its own order, under any shape."""
    while u.op is Ops.RESHAPE or u.op is Ops.DETACH:
        u = u.src[0]
    return u.op is Ops.BUFFER or is_sharded_storage(u)


def bottom_of(u: UOp) -> UOp:
    """The storage at the bottom of a view and of the assignments to it."""
    while u.op not in OpGroup.STORAGE and u.src and not is_sharded_storage(u):
        u = u.storage if u.op is Ops.AFTER and u.storage is not None else u.src[0]
    return u


def place_of(node: UOp) -> int:
    """The identity of the memory behind a BUFFER node, whatever part of it the node is."""
    return id(root_of(storage_of(node)))


def _places(view: UOp) -> list[int]:
    """The identities of the memory below a view."""
    return [place_of(b) for b in memory_of(bottom_of(view))]


# ----------------------------------------------------------------------------------------------------------- twins


def make_twin(node: UOp, twin: UOp) -> None:
    """`twin` shows the memory of `node` to a tensor whose value is its own."""
    group = _groups.setdefault(node, weakref.WeakSet((node,)))
    group.add(twin)
    _groups[twin] = group
    _twins.add(twin)


def is_twin(node: UOp) -> bool:
    """Whether the memory of `node` is that of another tensor's value, too, and was made for that one."""
    return node in _twins and len(_groups[node]) > 1


# ----------------------------------------------------------------------------------------------------------- alive


class _LiveRef(weakref.ref):  # type: ignore[type-arg]
    __slots__ = ("base", "key")
    base: int  # where it is filed, 0 for nowhere
    key: int


_live: dict[int, _LiveRef] = {}  # every tensor alive, by identity
# The same tensors by the node that they are views of (its identity), so that an assignment finds those that follow it
# without a look at all others. Those with a new node wait in `_unfiled` until somebody asks.
_filed: dict[int, dict[int, _LiveRef]] = {}
_unfiled: dict[int, _LiveRef] = {}
EMPTY = 64  # places that nobody is filed at any more, before they are cleared away
# Those that read memory without being views of it; those with a new node wait in `_unread` until a replay asks.
_readers: dict[int, _LiveRef] = {}
_unread: dict[int, _LiveRef] = {}
_read: set[int] = set()  # the memory that some of `_readers` read, and perhaps some that none reads any more


def _forget(
    ref: _LiveRef,
    live: Any = _live,
    unfiled: Any = _unfiled,
    filed: Any = _filed,
    unread: Any = _unread,
    readers: Any = _readers,
) -> None:
    key = ref.key
    for known in (live, unfiled, unread, readers, filed.get(ref.base, {})):
        if known.get(key) is ref:
            known.pop(key, None)


def enlist(t: Tensor) -> None:
    """Count `t` among the tensors alive."""
    ref = _LiveRef(t, _forget)
    ref.key, ref.base = id(t), 0
    _live[ref.key] = _unfiled[ref.key] = _unread[ref.key] = ref


def set_node(t: Tensor, node: UOp) -> None:
    """Let `t` stand for another node."""
    t.uop = node
    ref = _live.get(id(t))
    if ref is None:
        enlist(t)
    else:
        _unfiled[ref.key] = _unread[ref.key] = ref


@locked
def viewers(base: UOp) -> list[Tensor]:
    """The tensors that are `base`, or views of it."""
    while _unfiled:
        ref = _unfiled.popitem()[1]
        t: Any = ref()
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


def alive() -> list[Tensor]:
    """Every tensor alive."""
    return [t for t in [r() for r in list(_live.values())] if t is not None]


# --------------------------------------------------------------------------------------------------------- readers


def _reads(t: Tensor) -> set[int]:
    """The memory whose contents `t`, or its gradient, is computed from: all but what it is a view of."""
    out: set[int] = set()
    roots = []
    base = storage_base(t.uop)
    if base.op is Ops.BUFFER:
        if is_twin(base):
            out.add(place_of(base))
    elif not (base.op is Ops.AFTER and base.storage is not None or is_sharded_storage(base)):
        roots.append(base)
    if t._history is not None:
        roots.append(t._history)
    if roots:
        for u in toposort(roots, _is_open):
            if u.op is Ops.BUFFER:
                out.add(place_of(u))
            elif u.storage is not None:
                out.update(_places(u.storage))
    return out


def _is_open(u: UOp) -> bool:
    """Whether a walk to what is read goes on below `u`: not below an assignment that has run."""
    return u.op is not Ops.AFTER or u.storage is None


@locked
def _look() -> None:
    """Find out what the tensors made or changed since the last time read."""
    while _unread:
        key, ref = _unread.popitem()
        t: Any = ref()
        if t is not None and (reads := _reads(t)):
            _read.update(reads)
            _readers[key] = ref


def are_read(places: set[int]) -> bool:
    """Whether a value or gradient of some tensor is computed from this memory. It may say so where none is."""
    if _unread:
        _look()
    return not _read.isdisjoint(places)


@locked
def look_again() -> None:
    """Forget memory that is read no more."""
    while _readers:
        key, ref = _readers.popitem()
        _unread[key] = ref
    _read.clear()
    _look()


_DEPENDS, _SHOWS = 1, 2  # computed from written memory at whatever depth; has its value there


def affected(
    tensors: Iterable[Tensor], places: Container[int], written: Container[UOp], last: Container[UOp] = ()
) -> tuple[list[Tensor], set[int], list[Tensor]]:
    """What writing memory changes: (the tensors whose values have to be computed before, the identities of those of
    them whose graph reads what is written, the tensors whose history does).

    `places` is the memory, `written` its nodes; nodes of `last` are the states it is in afterwards.
    """
    tensors = list(tensors)
    known: dict[UOp, int] = {}
    graphs = [g for t in tensors for g in (t.uop, t._history) if g is not None]
    for u in toposort(graphs, lambda n: n not in last and _is_open(n)):
        flags = 0
        if u.op is Ops.BUFFER:
            flags = _DEPENDS if place_of(u) in places else 0
        elif u not in last:
            if u.storage is not None and any(p in places for p in _places(u.storage)):
                flags = _SHOWS if _is_open(u) else _DEPENDS
            for s in u.src if _is_open(u) else ():
                flags |= known[s]
        known[u] = flags
    values, depending, histories = [], set(), []
    for t in tensors:
        if t._history is not None and known[t._history] & _DEPENDS:
            histories.append(t)
        base, flags = storage_base(t.uop), known[t.uop]
        if base.op is Ops.BUFFER:
            if base not in written and place_of(base) in places and is_twin(base):
                values.append(t)
        elif flags and not is_sharded_storage(base) and not (base.op is Ops.AFTER and base.storage is not None):
            values.append(t)
            if flags & _DEPENDS:
                depending.add(id(t))
    return values, depending, histories
