"""The linearizer: a kernel's graph in, the order of its nodes out (program form: one LINEAR, loops opened and closed).

Every node goes into the innermost of the loops it depends on, no deeper: what a loop does not change is computed before
it. Inside a loop the order is that of demand, effect by effect, so values stand near their use. Only the graph decides:
the same kernel gives the same program in every process.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from aril.codegen.loops import one_end_a_range
from aril.ops import OpGroup, Ops
from aril.uop.args import AddrSpace
from aril.uop.node import UOp

_MEMORY = frozenset({Ops.LOAD, Ops.STORE, Ops.ATOMIC, Ops.CUSTOM, Ops.INS, Ops.BARRIER, Ops.WAIT, Ops.SHUFFLE})
_TRANSPARENT = frozenset({Ops.SINK, Ops.GROUP, Ops.NOOP, Ops.AFTER})


class LinearizeError(ValueError):
    """A kernel that has no order: its loops or effects contradict one another."""


def linearize(sink: UOp) -> UOp:
    """The program (LINEAR) of a kernel in kernel form after accumulation and typing.

        before: SINK(END(STORE(INDEX(p, r), LOAD(INDEX(q, r))), r))
        after:  LINEAR(p, q, 8, r, INDEX(q, r), LOAD, INDEX(p, r), STORE, END(STORE, r))

    Errors: LinearizeError where loops or effects depend on one another in a circle, or a value leaves its loop.
    """
    return UOp(Ops.LINEAR, tuple(_Linearizer(one_end_a_range(sink)).run()))


@dataclass(slots=True)
class _Item:
    """One node of the program. Loops are bit masks over the linearizer's list of ranges.

    `deps` are the items that come before it, `extra` loops it lies in whether or not its sources say so, `closes` (END)
    the loops that end with it, `effects` (END) the items done in each turn.
    """

    uop: UOp
    deps: list[int]
    extra: int = 0
    mask: int = 0
    closes: int = 0
    effects: tuple[int, ...] = ()
    memory: UOp | None = None
    condition: int | None = None


@dataclass(frozen=True, slots=True)
class _Seen:
    """What one node of the graph became: its node in the program, its item, effects in it, and what must come before a
    memory access through it (items, loops)."""

    uop: UOp
    item: int | None = None
    effects: tuple[int, ...] = ()
    wait: frozenset[int] = frozenset()
    wait_loops: int = 0


@dataclass(slots=True)
class _Block:
    """A loop's body, or the whole kernel: its children (items; loops as negative numbers), what each comes after."""

    children: list[int] = field(default_factory=list)
    before: dict[int, dict[int, None]] = field(default_factory=dict)


_Tree = tuple[dict[int, _Block], list[int], list[int], list[int]]  # blocks, loop around, depth, home of each item


class _Linearizer:
    def __init__(self, sink: UOp) -> None:
        self.sink = sink
        self.items: list[_Item] = []
        self.ranges: list[UOp] = []  # as in the graph
        self.opened: list[UOp] = []  # as in the program
        self.bit: dict[UOp, int] = {}
        self.range_deps: list[list[int]] = []  # items that a loop's end is computed from
        self.ends: list[int] = []  # the END item of each loop
        self.seen: dict[UOp, _Seen] = {}
        self.shared: dict[UOp, int] = {}  # items of nodes without effect
        self.copies: dict[UOp, int] = {}
        self.nests: list[int] = []  # the number of items before each further source of the SINK

    def run(self) -> list[UOp]:
        self._collect()
        self._place()
        self._order_accesses()
        position = self._nest_order()
        parent = self._tree(position)
        return self._emit(parent, position)

    # --- items ---

    def _collect(self) -> None:
        for source in self.sink.src:
            for u in source.toposort(lambda n: n not in self.seen):
                if u not in self.seen:
                    self.seen[u] = self._see(u)
            self.nests.append(len(self.items))
        tops = [e for s in self.sink.src for e in self.seen[s].effects]
        for before, after in zip(tops, tops[1:], strict=False):
            if before < after:
                self.items[after].deps.append(before)

    def _see(self, u: UOp) -> _Seen:
        op = u.op
        src = [self.seen[s] for s in u.src]
        wait, wait_loops = _waits(src)
        if op in _TRANSPARENT:
            effects = tuple(dict.fromkeys([e for s in src for e in s.effects]))
            if op is not Ops.AFTER:
                return _Seen(u, None, effects, wait, wait_loops)
            first = src[0]
            later, loops = set(first.wait), first.wait_loops
            for dep, found in zip(u.src[1:], src[1:], strict=True):
                if dep.op is Ops.RANGE:
                    loops |= 1 << self.bit[dep]
                later |= found.wait
                later.update(found.effects)
                if found.item is not None:
                    later.add(found.item)
            return _Seen(first.uop, first.item, first.effects, frozenset(later), loops)
        new = u.with_src(tuple([s.uop for s in src])) if op is not Ops.END else u
        deps = list(dict.fromkeys([s.item for s in src if s.item is not None]))
        if op is Ops.RANGE:
            return self._see_range(u, new, deps, wait)
        if op is Ops.END:
            return self._see_end(u, src)
        loops = sum(1 << self.bit[s] for s in dict.fromkeys(u.src) if s.op is Ops.RANGE)
        if op not in _MEMORY:
            found = self.shared.get(new)
            if found is None:
                found = self.shared[new] = self._add(_Item(new, deps, loops))
            return _Seen(new, found, (), wait, wait_loops)
        count = self.copies.get(new, 0)
        self.copies[new] = count + 1
        if count:  # equal but for what comes before: the program must tell them apart
            new = new.replace(tag=count)
        deps = list(dict.fromkeys([*deps, *sorted(wait), *[e for s in src for e in s.effects]]))
        item = self._add(_Item(new, deps, loops | wait_loops, memory=_memory(new)))
        is_effect = u.dtype.kind == "v" or op is Ops.ATOMIC
        return _Seen(new, item, (item,) if is_effect else ())

    def _add(self, item: _Item) -> int:
        self.items.append(item)
        return len(self.items) - 1

    def _see_range(self, u: UOp, new: UOp, deps: list[int], wait: frozenset[int]) -> _Seen:
        self.bit[u] = len(self.ranges)
        self.ranges.append(u)
        self.opened.append(new)
        self.range_deps.append([*deps, *sorted(wait)])
        self.ends.append(-1)
        return _Seen(new)

    def _see_end(self, u: UOp, src: list[_Seen]) -> _Seen:
        effects = src[0].effects
        if not effects:
            return _Seen(u)
        closes = 0
        condition = None
        for s, found in zip(u.src[1:], src[1:], strict=True):
            if s.op is Ops.RANGE:
                closes |= 1 << self.bit[s]
            else:
                condition = found.item
        deps = list(effects) if condition is None else [*effects, condition]
        index = self._add(_Item(u, deps, 0, closes=closes, effects=effects, condition=condition))
        for i in _bits(closes):
            self.ends[i] = index
        return _Seen(u, index, (index,))

    # --- loops of every item ---

    def _place(self) -> None:
        """Find the loops of every item: those of its sources, those an END around it closes, and those it must be done
        again in because another access to the same registers or panel is."""
        for item in self.items:
            for inner in item.effects:
                self.items[inner].extra |= item.closes
            if item.condition is not None:
                self.items[item.condition].extra |= item.closes
        containers = self._containers()
        updates = self._updates()
        groups = self._writers(containers)
        for _ in range(8):
            self._masks()
            changed = False
            for load, store in updates:
                changed |= self._lie_in(load, self.items[store].mask)
            for inits, loops in groups:
                mask = 0
                for i in loops:
                    mask |= self.items[i].mask
                for i in inits:
                    changed |= self._lie_in(i, mask)
            if not changed:
                return
        raise LinearizeError("the loops of this kernel's accumulators depend on one another in a circle")

    def _lie_in(self, index: int, mask: int) -> bool:
        item = self.items[index]
        if not mask & ~(item.mask | item.extra):
            return False
        item.extra |= mask
        return True

    def _masks(self) -> None:
        nested = sum(1 << r for r, deps in enumerate(self.range_deps) if deps)
        for item in self.items:
            mask = item.extra
            for d in item.deps:
                mask |= self.items[d].mask
            for r in _bits(item.extra & nested):  # a loop whose end lies in other loops lies in them too
                for d in self.range_deps[r]:
                    mask |= self.items[d].mask
            item.mask = mask & ~item.closes

    def _containers(self) -> dict[int, int]:
        """The END around each effect."""
        out: dict[int, int] = {}
        for index, item in enumerate(self.items):
            for inner in item.effects:
                out[inner] = index
        return out

    def _updates(self) -> list[tuple[int, int]]:
        """(LOAD, STORE) where the stored value is made of what the same registers or the same address held."""
        cones: list[frozenset[int]] = []
        out: list[tuple[int, int]] = []
        none: frozenset[int] = frozenset()
        for index, item in enumerate(self.items):
            u = item.uop
            cone = none
            if u.op is Ops.LOAD:
                cone = frozenset((index,)) if item.memory is not None else none
            else:
                for d in item.deps:
                    more = cones[d]
                    if more and more is not cone:
                        cone = cone | more if cone else more
            if u.op is Ops.STORE:
                for load in sorted(cone):
                    other = self.items[load]
                    if other.memory is item.memory and (_in_registers(item) or other.uop.src[0] is u.src[0]):
                        out.append((load, index))
                cone = none
            elif item.effects:
                cone = none
            cones.append(cone)
        return out

    def _writers(self, containers: dict[int, int]) -> list[tuple[list[int], list[int]]]:
        """For each register buffer and panel the outermost effects that write it, but an END around all of them."""
        stores: dict[UOp, list[int]] = {}
        for index, item in enumerate(self.items):
            if item.uop.op is Ops.STORE and item.memory is not None and item.memory.op is Ops.BUFFER:
                stores.setdefault(item.memory, []).append(index)
        groups: list[tuple[list[int], list[int]]] = []
        for found in stores.values():
            chains = []
            for s in found:
                chain = [s]
                while chain[-1] in containers:
                    chain.append(containers[chain[-1]])
                chains.append(chain)
            common = set(chains[0]).intersection(*chains[1:]) if len(chains) > 1 else set()
            tops = (
                list(dict.fromkeys([[c for c in chain if c not in common][-1] for chain in chains]))
                if len(chains) > 1
                else []
            )
            if len(tops) > 1:
                groups.append((tops, tops))
        return groups

    # --- order of accesses that no AFTER orders ---

    def _order_accesses(self) -> None:
        """A load sees what its AFTERs say, else what was there before this nest: it comes before the nest's stores to
        the same memory, and after those of earlier nests. Stores to one memory in one loop keep their order."""
        stores: dict[UOp, list[int]] = {}
        loads: dict[UOp, list[int]] = {}
        for index, item in enumerate(self.items):
            if item.memory is not None:
                kind = loads if item.uop.op is Ops.LOAD else stores
                kind.setdefault(item.memory, []).append(index)
        both = [m for m in stores if m in loads or len(stores[m]) > 1]
        number = {s: i for i, s in enumerate([s for m in both for s in stores[m]])}
        if not number:
            return
        above: list[int] = []  # the stores an item comes after, as bits
        for index, item in enumerate(self.items):
            bits = 1 << number[index] if index in number else 0
            for d in item.deps:
                bits |= above[d]
            above.append(bits)
        nest = 0
        nest_of = []
        for index in range(len(self.items)):
            while index >= self.nests[nest]:
                nest += 1
            nest_of.append(nest)
        later: list[tuple[int, int]] = []
        for memory in both:
            registers = memory.op is Ops.BUFFER and memory.arg.addrspace is AddrSpace.REG
            for load in loads.get(memory, ()):
                for store in stores[memory]:
                    if above[load] >> number[store] & 1:
                        continue
                    if nest_of[store] < nest_of[load]:
                        later.append((store, load))
                    elif nest_of[store] == nest_of[load] and (
                        not registers or self.items[store].mask == self.items[load].mask
                    ):
                        later.append((load, store))
            for first, second in zip(stores[memory], stores[memory][1:], strict=False):
                if self.items[first].mask == self.items[second].mask:
                    later.append((first, second))
        for before, after in later:
            self.items[after].deps.append(before)

    # --- nesting ---

    def _nest_order(self) -> list[int]:
        """Position of each loop from the outside in: what END and loop ends demand, then axis type, then id."""
        n = len(self.ranges)
        inside: list[set[int]] = [set() for _ in range(n)]
        count = [0] * n
        for r in range(n):
            outer = self.items[self.ends[r]].mask if self.ends[r] >= 0 else 0
            for d in self.range_deps[r]:
                outer |= self.items[d].mask
            for q in _bits(outer & ~(1 << r)):
                if r not in inside[q]:
                    inside[q].add(r)
                    count[r] += 1
        keys = [(r.arg.kind, r.arg.id, i) for i, r in enumerate(self.ranges)]
        ready = [keys[i] for i in range(n) if not count[i]]
        heapq.heapify(ready)
        position = [-1] * n
        placed = 0
        while ready:
            q = heapq.heappop(ready)[2]
            position[q] = placed
            placed += 1
            for r in inside[q]:
                count[r] -= 1
                if not count[r]:
                    heapq.heappush(ready, keys[r])
        if placed < n:
            names = ", ".join([str(self.ranges[i].arg) for i in range(n) if position[i] < 0])
            raise LinearizeError(f"no nesting order exists for these loops, each must lie in another: {names}")
        return position

    def _tree(self, position: list[int]) -> list[int]:
        """The loop around each loop (-1: none)."""
        at = [0] * len(position)  # bit at place p stands for the loop of position p
        for r, p in enumerate(position):
            at[p] = r
        around = [0] * len(position)
        for mask in dict.fromkeys([item.mask | item.closes for item in self.items]):
            places = sorted([position[i] for i in _bits(mask)])
            before = 0
            for p in places:
                around[p] |= before
                before |= 1 << p
        parent = [-1] * len(position)
        for p in range(len(position) - 1, -1, -1):
            if around[p]:
                q = around[p].bit_length() - 1
                parent[at[p]] = at[q]
                around[q] |= around[p] & ~(1 << q)
        return parent

    # --- order ---

    def _emit(self, parent: list[int], position: list[int]) -> list[UOp]:
        n = len(self.ranges)
        depth = [0] * n
        for r in sorted(range(n), key=position.__getitem__):
            depth[r] = depth[parent[r]] + 1 if parent[r] >= 0 else 1
        leaf: dict[int, int] = {0: -1}
        home = []  # the loop each item lies in; an END in the outermost loop it closes
        for item in self.items:
            if item.closes:
                home.append(min(_bits(item.closes), key=position.__getitem__))
                continue
            found = leaf.get(item.mask)
            if found is None:
                found = leaf[item.mask] = max(_bits(item.mask), key=position.__getitem__)
            home.append(found)
        blocks = {r: _Block() for r in range(-1, n)}
        for index, item in enumerate(self.items):
            if not item.closes:
                blocks[home[index]].children.append(index)
        for r in range(n):
            if self.ends[r] >= 0:
                blocks[parent[r]].children.append(~r)
        tree = (blocks, parent, depth, home)
        for index, item in enumerate(self.items):
            for d in item.deps:
                if not item.closes:
                    self._edge(tree, d, home[index], index, item.uop)
                elif d not in item.effects and d != item.condition:
                    self._edge(tree, d, parent[home[index]], ~home[index], None)
        for r in range(n):
            if self.ends[r] >= 0:
                for d in self.range_deps[r]:
                    self._edge(tree, d, parent[r], ~r, self.opened[r])
        return self._walk(blocks)

    def _edge(self, tree: _Tree, d: int, at: int, node: int, user: UOp | None) -> None:
        """Item `d` comes before child `node` of the loop `at`: an edge in the innermost loop that holds both."""
        blocks, parent, depth, home = tree
        a, first = home[d], d
        if self.items[d].closes:
            first = ~a
            a = parent[a]
        value_leaves = False
        while a != at:
            if a != -1 and (at == -1 or depth[a] >= depth[at]):
                first, a = ~a, parent[a]
                value_leaves = True
            else:
                node, at = ~at, parent[at]
        if value_leaves and user is not None and self.items[d].uop in user.src and self.items[d].uop.dtype.kind != "v":
            raise LinearizeError(
                f"a value ({self.items[d].uop.op}) is used by {user.op} outside the loop it is computed in: "
                "store it first"
            )
        if node == first and self.items[d].closes:
            raise LinearizeError(
                f"a value ({user.op if user else 'END'}) in the loop {self.ranges[~first].arg} comes after that loop: "
                "it is used outside the loop it is computed in"
            )
        if node != first:
            blocks[at].before.setdefault(node, {})[first] = None

    def _walk(self, blocks: dict[int, _Block]) -> list[UOp]:
        out: list[UOp] = []
        stack: list[tuple[int, int]] = [(-1, 0)]  # a loop, and where its body began
        orders = {-1: iter(self._sorted(blocks[-1]))}
        while stack:
            r, start = stack[-1]
            child = next(orders[r], None)
            if child is None:
                stack.pop()
                if r >= 0:
                    out.append(self._close(r, out, start))
            elif child >= 0:
                out.append(self.items[child].uop)
            else:
                loop = ~child
                out.append(self.opened[loop])
                stack.append((loop, len(out)))
                orders[loop] = iter(self._sorted(blocks[loop]))
        return out

    def _close(self, r: int, out: list[UOp], start: int) -> UOp:
        effect = next((u for u in reversed(out[start:]) if u.dtype.kind == "v"), UOp(Ops.NOOP, ()))
        end = self.items[self.ends[r]]
        if end.condition is None:
            return UOp(Ops.END, (effect, self.opened[r]))
        return UOp(Ops.END, (effect, self.opened[r], self.items[end.condition].uop))

    def _sorted(self, block: _Block) -> list[int]:
        """The children in order of demand: by number, what each needs ahead of it."""
        done: dict[int, bool] = {}
        out: list[int] = []
        for root in sorted(block.children, key=lambda c: (self.ends[~c], c) if c < 0 else (c, 0)):
            stack = [root]
            while stack:
                c = stack[-1]
                if done.get(c):
                    stack.pop()
                    continue
                needs = [d for d in block.before.get(c, ()) if not done.get(d)]
                if not needs:
                    done[c] = True
                    out.append(c)
                    stack.pop()
                    continue
                if c in done:  # visited, and what it needs is not done: it needs itself
                    raise LinearizeError(f"effects come before themselves: {self._name(c)} and {self._name(needs[0])}")
                done[c] = False
                stack.extend(reversed(needs))
        return out

    def _name(self, child: int) -> str:
        return f"the loop {self.ranges[~child].arg}" if child < 0 else str(self.items[child].uop.op)


def _bits(mask: int) -> list[int]:
    out = []
    while mask:
        low = mask & -mask
        out.append(low.bit_length() - 1)
        mask ^= low
    return out


def _waits(src: list[_Seen]) -> tuple[frozenset[int], int]:
    wait: frozenset[int] = frozenset()
    loops = 0
    for s in src:
        if s.wait:
            wait = wait | s.wait if wait else s.wait
        loops |= s.wait_loops
    return wait, loops


def _memory(u: UOp) -> UOp | None:
    """The storage a memory access goes to."""
    address = u.src[0] if u.src else u
    if u.op in (Ops.LOAD, Ops.STORE, Ops.ATOMIC) and address.op in (Ops.INDEX, Ops.SHRINK):
        memory = address.src[0]
        return memory if memory.op in OpGroup.STORAGE else None
    return None


def _in_registers(item: _Item) -> bool:
    return item.memory is not None and item.memory.op is Ops.BUFFER and item.memory.arg.addrspace is AddrSpace.REG
