"""Kernels in the making become fewer: those over one iteration space merge, small independent ones share a launch.

In: drafts with their dependencies, one a stored value. Out: drafts of several values, in an order that respects the
dependencies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from aril.ops import OpGroup, Ops
from aril.schedule.fuse import SHORT_ROW, Fusion, concrete, nbytes, numel
from aril.uop import UOp
from aril.uop.order import toposort

BUNDLED_ELEMENTS = 1 << 16  # larger nests that others wait for run where their operands are still in cache
KERNEL_WEIGHT = 1000.0  # operations in a kernel of several values
NESTS_PER_KERNEL = 32  # independent loop nests that one launch may hold
FEW_ENDS = 1  # elements that a contraction may touch alone besides its result, for each


@dataclass(eq=False)
class Draft:
    """A kernel in the making: stores as (target view, value) over global parameters."""

    root: UOp
    members: list[UOp]
    stores: list[list[tuple[UOp, UOp]]]
    shape: tuple[Any, ...]
    device: str
    has_reduce: bool
    has_contraction: bool
    reduce_key: Any = None
    deps: set[Draft] = field(default_factory=set)
    alone: bool = False  # a copy of memory, a hand-written kernel, a SCATTER: nothing merges with it
    reads: set[UOp] = field(default_factory=set)
    assigned: set[UOp] = field(default_factory=set)  # storage of others that it writes
    weight: float = 0.0
    scratch: tuple[UOp, ...] = ()  # storage that only its own nests see
    _touched: set[UOp] | None = None

    @property
    def touched(self) -> set[UOp]:
        """The storage that its first nest reads or writes, as computed from it so far."""
        if self._touched is None:
            graph = toposort([u for store in self.stores[0] for u in store])
            self._touched = {u for u in graph if not u.src} | {t.base for t, _ in self.stores[0]}
        return self._touched

    def take(self, other: Draft) -> None:
        """What is known of `other`, whose stores are already among these."""
        self.members = other.members + self.members
        if other._touched is not None and self._touched is not None:
            self._touched |= other._touched
        else:
            self._touched = None
        self.deps = (other.deps | self.deps) - {other, self}
        self.reads |= other.reads
        self.assigned |= other.assigned
        self.weight += other.weight
        self.has_reduce |= other.has_reduce
        self.has_contraction |= other.has_contraction
        self.reduce_key = self.reduce_key or other.reduce_key


def reach(drafts: list[Draft]) -> dict[Draft, int]:
    """For each draft a bit mask of the drafts it depends on, directly or not."""
    number = {d: i for i, d in enumerate(drafts)}
    masks: dict[Draft, int] = {}
    for d in topological(drafts):
        m = 0
        for p in d.deps:
            m |= masks[p] | 1 << number[p]
        masks[d] = m
    return masks


def topological(drafts: list[Draft]) -> list[Draft]:
    """Drafts in an order that respects dependencies, otherwise as given. Errors: RuntimeError on a cycle (our own
    mistake).
    """
    position = {d: i for i, d in enumerate(drafts)}
    out: list[Draft] = []
    state: dict[Draft, int] = {}
    for start in drafts:
        stack = [start]
        while stack:
            d = stack[-1]
            if state.get(d) == 2:
                stack.pop()
                continue
            if state.get(d) == 1:
                state[d] = 2
                out.append(d)
                stack.pop()
                continue
            state[d] = 1
            for p in sorted(d.deps, key=position.__getitem__, reverse=True):
                if state.get(p) == 1:
                    raise RuntimeError("the kernels of this graph depend on each other in a circle")
                if p not in state:
                    stack.append(p)
    return out


def merge(drafts: list[Draft], owner: dict[UOp, Draft], fusion: Fusion) -> list[Draft]:
    """Kernels over one iteration space that read each other's results, or the same inputs, become one with several
    outputs.
    """
    merging = _Merging(drafts, owner, fusion)
    while any([merging.with_producers(), merging.with_readers_of_targets(), merging.with_readers_of_the_same()]):
        pass
    return list(merging.alive)


class _Merging:
    """Drafts that are `alive`, and what is known of them: `where` a value is made, as bits which drafts one stands for
    and (`masks`) depends on; its `users` depend on it."""

    def __init__(self, drafts: list[Draft], owner: dict[UOp, Draft], fusion: Fusion) -> None:
        self.where = dict(owner)
        self.alive = dict.fromkeys(drafts)
        self.masks = reach(drafts)
        self.bits = {d: 1 << i for i, d in enumerate(drafts)}
        self.users: dict[Draft, set[Draft]] = {d: set() for d in drafts}
        for d in drafts:
            for p in d.deps:
                self.users[p].add(d)
        self.fusion = fusion

    def with_producers(self) -> bool:
        """Kernels with those that make what they read, where the loops are the same. Whether any did."""
        changed = False
        for b in list(self.alive):
            if b not in self.alive or b.alone:
                continue
            for n in list(b.reads):
                a = _producer(n, self.where)
                if a is not None and a is not b and a in self.alive and self._can_follow(a, b):
                    self.join(a, b, True)
                    changed = True
        return changed

    def _can_follow(self, a: Draft, b: Draft) -> bool:
        """Whether `b`, which reads what `a` makes, may compute it in its own loops."""
        if a.alone or not _same_space(a, b):
            return False
        if a.has_contraction and b.has_reduce or a.has_reduce and b.has_contraction:
            return False
        if a.has_reduce and b.has_reduce and a.reduce_key != b.reduce_key:
            return False
        if a.has_contraction and _ends_cost(a, b, self.fusion):
            return False
        return _one_loop(a, b, self.where, self.fusion) and not self.is_needed_by_a_third(a, b)

    def with_readers_of_targets(self) -> bool:
        """A kernel that must read a storage before another writes it does so in the same turn of the loops."""
        changed = False
        for b in list(self.alive):
            for r in list(b.deps) if b in self.alive and not b.alone else ():
                if r not in self.alive or r.alone or r.has_reduce or b.has_reduce or not _same_space(r, b):
                    continue
                if self.is_needed_by_a_third(r, b) or not _waits_only_for_writes(r, b, self.where):
                    continue
                if _one_loop(r, b, self.where, self.fusion):
                    self.join(r, b, False)
                    changed = True
        return changed

    def with_readers_of_the_same(self) -> bool:
        """Kernels that read the same, where that is worth it, do so once."""
        groups: dict[Any, list[Draft]] = {}
        for d in self.alive:
            if not d.alone and not d.has_contraction and (not d.has_reduce or d.reduce_key is not None):
                groups.setdefault((d.shape, d.device, d.has_reduce, d.reduce_key), []).append(d)
        changed = False
        for group in groups.values():
            changed |= self._read_once(group)
        return changed

    def _read_once(self, group: list[Draft]) -> bool:
        changed = False
        readers: dict[UOp, list[Draft]] = {}  # of what is worth reading once
        place = {d: i for i, d in enumerate(group)}
        worth = {d: [n for n in d.reads if _is_worth(n, d)] for d in group}
        for d in group:
            for n in worth[d]:
                readers.setdefault(n, []).append(d)
        for a in group:
            later = {d for n in worth[a] for d in readers[n] if place[d] > place[a]}
            for b in sorted(later, key=place.__getitem__):
                if a not in self.alive or b not in self.alive or not self._are_independent(a, b):
                    continue
                if not _one_loop(a, b, self.where, self.fusion):
                    continue
                self.join(a, b, False)
                changed = True
                for n in set(worth[a]).difference(worth[b]):
                    worth[b].append(n)
                    readers[n].append(b)
                break
        return changed

    def _are_independent(self, a: Draft, b: Draft) -> bool:
        return not self.masks[a] & self.bits[b] and not self.masks[b] & self.bits[a]

    def is_needed_by_a_third(self, a: Draft, b: Draft) -> bool:
        """Whether b needs a through some third kernel."""
        return any(self.masks[m] & self.bits[a] for m in b.deps if m is not a)

    def join(self, a: Draft, b: Draft, direct: bool) -> None:
        """`a` becomes a part of `b`; `direct`: b computes with the values of a."""
        if direct:
            known = dict(a.stores[0])
            b.stores[0] = [(t, v.substitute(known)) for t, v in b.stores[0]]
        again = {t for t, _ in b.stores[0]}  # nobody sees what is written twice in one turn
        b.stores[0] = [(t, v) for t, v in a.stores[0] if t not in again] + b.stores[0]
        b.take(a)
        self.bits[b] |= self.bits[a]
        both = (self.masks[a] | self.masks[b]) & ~self.bits[b]
        self.masks[b] = both
        for m in a.members:
            self.where[m] = b
        del self.alive[a]
        for p in a.deps:
            self.users[p].discard(a)
        for p in b.deps:
            self.users[p].add(b)
        for d in self.users.pop(a):
            if d is not b:
                d.deps.remove(a)
                d.deps.add(b)
                self.users[b].add(d)
        after, below = [*self.users[b]], {b, *self.users[b]}
        while after:
            d = after.pop()
            self.masks[d] |= both | self.bits[b]
            after += self.users[d].difference(below)
            below |= self.users[d]


def _one_loop(a: Draft, b: Draft, where: dict[UOp, Draft], fusion: Fusion) -> bool:
    """Whether turn i of `b` may run straight after turn i of `a`: what one writes the other touches at the same place
    only.
    """
    if a.weight + b.weight > KERNEL_WEIGHT:
        return False
    made = [n for n in b.reads if n.op is not Ops.AFTER and where.get(n) is a]
    if not all(_read_in_place(n, b, fusion) for n in made):
        return False
    if made and a.has_reduce and any(_touches_elsewhere(v, t) for t, _ in a.stores[0] for _, v in b.stores[0]):
        return False  # element i of a flipped view: the reduction would be done twice
    for x, y in ((a, b), (b, a)):
        met = x.assigned & y.touched if x.assigned else ()
        for t in [t for t, _ in x.stores[0] if t.base in met] if met else ():
            for other, value in y.stores[0]:
                if (other.base is t.base and other is not t) or _touches_elsewhere(value, t):
                    return False
    return True


def _touches_elsewhere(value: UOp, target: UOp) -> bool:
    """Whether computing an element of `value` reads elements of the target's storage other than the same one of
    `target`.
    """
    base = target.base
    # The axes reduced on the way, along which a value repeated by EXPAND is still one element; None: elsewhere.
    stack: list[tuple[UOp, frozenset[int] | None]] = [(value, frozenset())]
    seen = set()
    while stack:
        at = stack.pop()
        if at in seen:
            continue
        seen.add(at)
        n, summed = at
        if summed is not None and n is target:
            continue
        if n is base:
            return True
        if n.op is Ops.REDUCE and summed is not None:
            summed = summed.union(n.arg[1])
        elif n.op is Ops.EXPAND and summed is not None:
            wide = [i for i, (d, s) in enumerate(zip(n.shape, n.src[0].shape, strict=True)) if d is not s and d != s]
            summed = summed if summed.issuperset(wide) else None
        elif n.op not in OpGroup.ELEMENTWISE:
            summed = None
        stack.extend([(s, summed) for s in n.src])
    return False


def _waits_only_for_writes(r: Draft, b: Draft, where: dict[UOp, Draft]) -> bool:
    """Whether `b` comes after `r` because of what `r` reads, not because of what it makes."""
    return not any(_producer(n, where) is r for n in b.reads)


def _producer(n: UOp, where: dict[UOp, Draft]) -> Draft | None:
    if n in where:
        return where[n]
    if n.op is Ops.AFTER and len(n.src) == 2:
        return where.get(n.src[1])
    return None


def _same_space(a: Draft, b: Draft) -> bool:
    return a.shape == b.shape and a.device == b.device and len(a.stores) == len(b.stores) == 1


def _read_in_place(n: UOp, b: Draft, fusion: Fusion) -> bool:
    """Whether every kernel of `b` that reads `n` reads element i of it in turn i only."""
    uses = fusion.uses.get(n, {})
    return all(w.signature == fusion.signature[m] and not w.turns for m in b.members for w in uses.get(m, ()))


def _ends_cost(a: Draft, b: Draft, fusion: Fusion) -> bool:
    """Whether what `b` touches costs more where contraction `a` ends than storing the sums for `b` to read.

    Rows shorter than a vector (a kernel's, in the gradient of a convolution's weight) are no lanes of the sums, so
    each element that stands beside them is loaded and stored alone.
    """
    rows = [concrete(d) for d in b.shape if concrete(d) > 1]
    if not rows or rows[-1] >= SHORT_ROW:
        return False
    size = math.prod(rows)
    others = [n for n in a.reads | b.reads if n not in a.members and numel(n) == size]
    kept = [n for n in a.members if any(k not in b.members for k in fusion.uses.get(n, ()))]
    return len(others) + len(b.stores[0]) + len(kept) - 1 > FEW_ENDS


def _is_worth(n: UOp, d: Draft) -> bool:
    """Whether what kernel `d` reads is worth reading once for it and another over the same space."""
    return not (n.op is Ops.PARAM and n.is_variable) and nbytes(n) * 4 >= math.prod(concrete(x) for x in d.shape)


def bundle(drafts: list[Draft]) -> list[Draft]:
    """Independent elementwise kernels share one launch, as loop nests of one kernel; each waits for the latest of
    them.
    """
    order = topological(drafts)
    users: dict[Draft, set[Draft]] = {d: set() for d in order}
    for d in order:
        for p in d.deps:
            users[p].add(d)
    position = {d: i for i, d in enumerate(order)}
    open_bundles: list[Draft] = []
    gone: dict[Draft, Draft] = {}
    for d in reversed(order):
        if d.has_reduce or d.alone or users[d] and math.prod(concrete(x) for x in d.shape) > BUNDLED_ELEMENTS:
            continue
        latest = min([position[u] for u in users[d]], default=len(order))
        for host in open_bundles:
            if (
                host.device == d.device
                and position[host] < latest
                and len(host.stores) + len(d.stores) <= NESTS_PER_KERNEL
            ):
                host.stores = d.stores + host.stores
                host.members = d.members + host.members
                host.deps = host.deps | d.deps
                for p in d.deps:
                    users[p].add(host)
                gone[d] = host
                break
        else:
            open_bundles.append(d)
    if not gone:
        return order
    kept = [d for d in order if d not in gone]
    for d in kept:
        d.deps = {gone.get(p, p) for p in d.deps} - {d}
    return topological(kept)
