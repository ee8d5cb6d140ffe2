"""What a kernel's graph says of its program: the nodes to be ordered, the loops each lies in, what comes before what.

In comes kernel form after accumulation and typing; out go `Items`, from which `linearize` makes the order.
"""

from __future__ import annotations

from dataclasses import dataclass

from aril.ops import OpGroup, Ops
from aril.uop.args import AddrSpace
from aril.uop.node import UOp

_MEMORY = frozenset({Ops.LOAD, Ops.STORE, Ops.ATOMIC, Ops.CUSTOM, Ops.INS, Ops.BARRIER, Ops.WAIT, Ops.SHUFFLE})
_TRANSPARENT = frozenset({Ops.SINK, Ops.GROUP, Ops.NOOP, Ops.AFTER})


class LinearizeError(ValueError):
    """A kernel that has no order: its loops or effects contradict one another."""


@dataclass(slots=True)
class Item:
    """One node of the program. Loops are bit masks over the list of ranges.

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


# What one node of the graph became: its node in the program, its item, effects in it, what must come before a memory
# access through it (items, loops), and the bit of the loop that it is.
_Seen = tuple[UOp, int | None, tuple[int, ...], frozenset[int], int, int]
_NOTHING: frozenset[int] = frozenset()


class Items:
    """The items of a kernel, its loops, and their order as far as the graph decides it."""

    def __init__(self, sink: UOp) -> None:
        self.sink = sink
        self.items: list[Item] = []
        self.ranges: list[UOp] = []  # as in the graph
        self.opened: list[UOp] = []  # as in the program
        self.range_deps: list[list[int]] = []  # items that a loop's end is computed from
        self.ends: list[int] = []  # the END item of each loop
        self.seen: dict[UOp, _Seen] = {}
        self.shared: dict[UOp, int] = {}  # items of nodes without effect
        self.copies: dict[UOp, int] = {}
        self.updated: set[int] = set()  # loads of what is stored again at the same address
        self.nests: list[int] = []  # the number of items before each further source of the SINK

        self._collect()
        self._place()
        self._order_accesses()

    # --- items ---

    def _collect(self) -> None:
        for source in self.sink.src:
            for u in source.toposort((lambda n: n not in self.seen) if self.seen else None):
                if u not in self.seen:
                    self.seen[u] = self._see(u)
            self.nests.append(len(self.items))
        tops = [e for s in self.sink.src for e in self.seen[s][2]]
        for before, after in zip(tops, tops[1:], strict=False):
            if before < after:
                self.items[after].deps.append(before)

    def _see(self, u: UOp) -> _Seen:
        op, seen = u.op, self.seen
        if op in _TRANSPARENT:
            return self._see_through(u)
        if op is Ops.END:
            return self._see_end(u)
        deps: list[int] = []
        src: list[UOp] = []
        loops = wait_loops = 0
        wait = _NOTHING
        for s in u.src:
            program, item, _, later, later_loops, loop = seen[s]
            src.append(program)
            if item is not None and item not in deps:
                deps.append(item)
            if later:
                wait = wait | later if wait else later
            loops |= loop
            wait_loops |= later_loops
        new = u.with_src(tuple(src)) if src else u
        if op is Ops.RANGE:
            return self._see_range(u, new, deps, wait)
        if op not in _MEMORY:
            known = self.shared.get(new)
            if known is None:
                known = self.shared[new] = self._add(Item(new, deps, loops))
            return new, known, (), wait, wait_loops, 0
        count = self.copies.get(new, 0)
        self.copies[new] = count + 1
        if count:  # equal but for what comes before: the program must tell them apart
            new = new.replace(tag=count)
        deps = list(dict.fromkeys([*deps, *sorted(wait), *[e for s in u.src for e in seen[s][2]]]))
        item = self._add(Item(new, deps, loops | wait_loops, memory=_memory(new)))
        is_effect = u.dtype.kind == "v" or op is Ops.ATOMIC
        return new, item, (item,) if is_effect else (), _NOTHING, 0, 0

    def _see_through(self, u: UOp) -> _Seen:
        """A node that is none of the program: its effects, and for AFTER the value that waits for them."""
        src = [self.seen[s] for s in u.src]
        effects = tuple(dict.fromkeys([e for s in src for e in s[2]]))
        if u.op is not Ops.AFTER:
            wait, loops = _NOTHING.union(*[s[3] for s in src]), 0
            for s in src:
                loops |= s[4]
            return u, None, effects, wait, loops, 0
        program, item, effects, first, loops, _ = src[0]
        later = set(first)
        for _, dep, done, wait, _, loop in src[1:]:
            loops |= loop
            later |= wait
            later.update(done)
            if dep is not None:
                later.add(dep)
        return program, item, effects, frozenset(later), loops, 0

    def _add(self, item: Item) -> int:
        self.items.append(item)
        return len(self.items) - 1

    def _see_range(self, u: UOp, new: UOp, deps: list[int], wait: frozenset[int]) -> _Seen:
        number = len(self.ranges)
        self.ranges.append(u)
        self.opened.append(new)
        self.range_deps.append([*deps, *sorted(wait)])
        self.ends.append(-1)
        return new, None, (), _NOTHING, 0, 1 << number

    def _see_end(self, u: UOp) -> _Seen:
        effects = self.seen[u.src[0]][2]
        if not effects:
            return u, None, (), _NOTHING, 0, 0
        closes = 0
        condition = None
        for s in u.src[1:]:
            found = self.seen[s]
            if s.op is Ops.RANGE:
                closes |= found[5]
            else:
                condition = found[1]
        deps = list(effects) if condition is None else [*effects, condition]
        index = self._add(Item(u, deps, 0, closes=closes, effects=effects, condition=condition))
        for i in bits_of(closes):
            self.ends[i] = index
        return u, index, (index,), _NOTHING, 0, 0

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
        self.updated = {load for load, _ in updates}
        groups = self._repeated(containers, {store for _, store in updates})
        for _ in range(8):
            self._masks()
            changed = False
            for load, store in updates:
                changed |= self._lie_in(load, self.items[store].mask)
            for early, late in groups:
                changed |= self._lie_in(early, self.items[late].mask)
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
            if item.extra & nested:  # a loop whose end lies in other loops lies in them too
                for r in bits_of(item.extra & nested):
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

    def _repeated(self, containers: dict[int, int], updates: set[int]) -> list[tuple[int, int]]:
        """(early, late) effects on one register buffer or panel, where `late` goes on from what `early` left: what
        repeats the one must repeat the other, as the start of an accumulator lies in the row's loop with its sum."""
        chains: dict[UOp, list[list[int]]] = {}
        for index, item in enumerate(self.items):
            if item.uop.op is Ops.STORE and item.memory is not None and item.memory.op is Ops.BUFFER:
                chain = [index]
                while chain[-1] in containers:
                    chain.append(containers[chain[-1]])
                chains.setdefault(item.memory, []).append(chain)
        pairs: list[tuple[list[int], set[int]]] = []  # outermost effects on one memory, and those of them that go on
        for found in chains.values():
            common = set(found[0]).intersection(*found[1:])
            tops = {chain[0]: next((c for c in reversed(chain) if c not in common), -1) for chain in found}
            effects = list(dict.fromkeys([t for t in tops.values() if t >= 0]))
            if len(effects) > 1:
                pairs.append(
                    (effects, {t for store, t in tops.items() if _in_registers(self.items[store]) or store in updates})
                )
        number = {t: i for i, t in enumerate(dict.fromkeys([t for effects, _ in pairs for t in effects]))}
        if not number:
            return []
        above = self._come_before(number)
        return [
            (early, late)
            for effects, going_on in pairs
            for late in effects
            if late in going_on
            for early in effects
            if early != late and above[late] >> number[early] & 1
        ]

    def _come_before(self, number: dict[int, int]) -> list[int]:
        """For each item the numbered items that it comes after (and itself), as bits."""
        above: list[int] = []
        for index, item in enumerate(self.items):
            bits = 1 << number[index] if index in number else 0
            for d in item.deps:
                bits |= above[d]
            above.append(bits)
        return above

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
        above = self._come_before(number)
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
                        # what is added to in one loop and then in another (a rest) is not read ahead of both
                        turns = (
                            store < load and load in self.updated and self.items[store].mask != self.items[load].mask
                        )
                        later.append((store, load) if turns else (load, store))
            for first, second in zip(stores[memory], stores[memory][1:], strict=False):
                if self.items[first].mask == self.items[second].mask:
                    later.append((first, second))
        for before, after in later:
            self.items[after].deps.append(before)


def bits_of(mask: int) -> list[int]:
    """The numbers of the bits that are set, least first."""
    out = []
    while mask:
        low = mask & -mask
        out.append(low.bit_length() - 1)
        mask ^= low
    return out


def _memory(u: UOp) -> UOp | None:
    """The storage a memory access goes to."""
    address = u.src[0] if u.src else u
    if u.op in (Ops.LOAD, Ops.STORE, Ops.ATOMIC) and address.op in (Ops.INDEX, Ops.SHRINK):
        memory = address.src[0]
        return memory if memory.op in OpGroup.STORAGE else None
    return None


def _in_registers(item: Item) -> bool:
    return item.memory is not None and item.memory.op is Ops.BUFFER and item.memory.arg.addrspace is AddrSpace.REG
