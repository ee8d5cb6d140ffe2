"""The order of effects: a read that could not run while the state it reads exists is computed to memory earlier.

In: the prepared SINK and what fusion stores. Out: the SINK with CONTIGUOUS where a value must be kept. Assignments
make a storage a chain of states (PARAM, AFTER, AFTER, ..); the stores get places 1, 2, .. in one order, and a state
lives from the store that makes it to the one that ends it. A kernel can run where all states it reads live at once.
What reads a state that has ended by the time the rest of its kernel can start is stored while it still lives.
"""

from __future__ import annotations

import heapq
from collections.abc import Container
from itertools import chain

from aril.ops import OpGroup, Ops
from aril.schedule.fuse import numel
from aril.uop import UOp
from aril.uop.call import targets

NEVER = 1 << 60
_EFFECTS = frozenset({Ops.STORE, Ops.CALL})


def _values(effect: UOp) -> tuple[UOp, ...]:
    """What an effect reads: the value stored, the arguments of a kernel that it does not write."""
    return effect.src[1:] if effect.op is Ops.STORE else effect.src[effect.arg.written :]


def state_of(view: UOp) -> UOp:
    """The state of storage that a view shows: an AFTER, or storage itself (or the computation that is viewed)."""
    while view.op in OpGroup.MOVEMENT:
        view = view.src[0]
    return view


def order_stores(order: dict[UOp, None]) -> dict[UOp, int]:
    """Places 1, 2, .. of the stores: each after those it needs and, where there is a choice, after those that read
    what it ends.
    """
    stores = [u for u in order if u.op in _EFFECTS]
    if len(stores) == 1:
        return {stores[0]: 1}
    return {stores[k]: place for place, k in enumerate(_in_turn(*_precedence(order, stores)), start=1)}


def _precedence(order: dict[UOp, None], stores: list[UOp]) -> tuple[list[list[int]], list[list[int]]]:
    """Of each store, by its number: the stores that need it, and those that end a state which it reads."""
    number = {s: i for i, s in enumerate(stores)}
    count = len(stores)
    states: dict[UOp, int] = {}  # bit count + i of a mask is state i, the bits below are stores
    needs: dict[UOp, int] = {}  # node -> stores before it and states it reads, directly or through values
    after: list[list[int]] = [[] for _ in stores]
    reads: list[int] = []  # of each store: the states that its values read, as bits
    ends: dict[int, list[int]] = {}  # state -> stores that end it
    for u in order:
        mask = 0
        if u.op is Ops.AFTER or u.op is Ops.PARAM:
            mask = 1 << count + len(states)
            states[u] = len(states)
            for s in u.src[1:]:
                mask |= 1 << number[s] if s in number else needs[s]
        elif u.op is not Ops.SINK:
            for s in u.src:
                mask |= needs[s]
        needs[u] = mask
        if u.op in _EFFECTS:
            k, value = number[u], 0
            for target in targets(u):
                state = states.get(state_of(target))
                if state is not None:
                    ends.setdefault(state, []).append(k)
            for s in _values(u):
                value |= needs[s]
            for i in _bits(mask & (1 << count) - 1):
                after[i].append(k)
            reads.append(value >> count)
    ended = 0
    for state in ends:
        ended |= 1 << state
    before = [
        list(dict.fromkeys([e for i in _bits(r & ended) for e in ends[i] if e != k])) for k, r in enumerate(reads)
    ]
    return after, before


def _in_turn(after: list[list[int]], before: list[list[int]]) -> list[int]:
    """The numbers of all stores in order: number k before those in `after[k]` and, where there is a choice, before
    those in `before[k]`; else the least first."""
    waits, hopes = [0] * len(after), [0] * len(after)  # how many must come first, and how many should
    for counts, later in ((waits, after), (hopes, before)):
        for e in chain.from_iterable(later):
            counts[e] += 1
    free = [k for k, n in enumerate(waits) if not n and not hopes[k]]
    ready = [k for k, n in enumerate(waits) if not n]
    out: dict[int, None] = {}
    while free or ready:
        k = heapq.heappop(free or ready)
        if k in out:
            continue
        out[k] = None
        for e in before[k]:
            hopes[e] -= 1
            if not hopes[e] and not waits[e]:
                heapq.heappush(free, e)
        for e in after[k]:
            waits[e] -= 1
            if not waits[e]:
                heapq.heappush(ready if hopes[e] else free, e)
    return list(out)


def _bits(mask: int) -> list[int]:
    """The numbers of the bits that are set, in order. Masks are as long as there are stores and states: taking the
    lowest bit off again and again would copy them as often."""
    text, out = bin(mask)[:1:-1], []
    i = text.find("1")
    while i >= 0:
        out.append(i)
        i = text.find("1", i + 1)
    return out


def keep_states(sink: UOp, stored: Container[UOp]) -> UOp:
    """`sink` with CONTIGUOUS over what must be computed before a later assignment; `sink` itself where nothing must."""
    order = sink.toposort()
    place = order_stores(order)
    if not place:
        return sink
    death: dict[UOp, int] = {}
    for s, i in place.items():
        for target in targets(s):
            state = state_of(target)
            death[state] = min(death.get(state, NEVER), i)
    first: dict[UOp, int] = {}  # the place from which a node can be computed
    last: dict[UOp, int] = {}  # the last place at which it can
    keep: set[UOp] = set()
    for u in order:
        if u.op is Ops.SINK:
            continue
        if u.op is Ops.AFTER:
            first[u] = max([place[s] if s in place else first[s] for s in u.src])
            last[u] = death.get(u, NEVER) - 1
            continue
        if not u.src:
            first[u], last[u] = 0, death.get(u, NEVER) - 1
            continue
        sources = _values(u) if u.op in _EFFECTS else u.src
        start = place[u] - 1 if u.op in _EFFECTS else max([first[s] for s in sources])
        end = NEVER
        for s in sources:
            if last[s] < start:
                keep.add(_smallest(s))
            else:
                end = min(end, last[s])
        first[u], last[u] = start, NEVER if u in stored else end
    return keep_values(sink, order, keep) if keep else sink


def keep_every_state(sink: UOp) -> UOp:
    """`sink` where every read of a state that some store ends reads a copy of it: right whatever is fused."""
    order = sink.toposort()
    ended = {state_of(target) for u in order if u.op in _EFFECTS for target in targets(u)}
    return keep_values(sink, order, ended)


def _smallest(u: UOp) -> UOp:
    """What to store so that `u` can be had later: below the movements that only make it larger."""
    while u.op in OpGroup.MOVEMENT and (u.op is Ops.EXPAND or numel(u.src[0]) <= numel(u)):
        u = u.src[0]
    return u


def keep_values(sink: UOp, order: dict[UOp, None], keep: set[UOp]) -> UOp:
    """The graph where values in `keep` are read from copies; targets of stores and results stay the storage itself."""
    done: dict[UOp, UOp] = {}
    itself: dict[UOp, UOp] = {}
    for u in order:
        if u.op is Ops.SINK:
            continue
        if u.op in OpGroup.MOVEMENT:
            itself[u] = u.with_src((itself[u.src[0]], *[done[s] for s in u.src[1:]]))
            new = u.with_src(tuple([done[s] for s in u.src]))
        elif u.op in (Ops.STORE, Ops.AFTER):
            new = itself[u] = u.with_src((itself[u.src[0]], *[done[s] for s in u.src[1:]]))
        elif u.op is Ops.CALL:
            n = u.arg.written
            new = itself[u] = u.with_src((*[itself[s] for s in u.src[:n]], *[done[s] for s in u.src[n:]]))
        else:
            new = itself[u] = u.with_src(tuple([done[s] for s in u.src])) if u.src else u
        done[u] = UOp(Ops.CONTIGUOUS, (new,)) if u in keep and new.op is not Ops.CONTIGUOUS else new
    return sink.with_src(
        tuple([itself[s] if state_of(s).op in (Ops.AFTER, Ops.PARAM, Ops.STORE) else done[s] for s in sink.src])
    )
