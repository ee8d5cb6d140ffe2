"""The linearizer: a kernel's graph in, the order of its nodes out (program form: one LINEAR, loops opened and closed).

Every node goes into the innermost of the loops it depends on, no deeper: what a loop does not change is computed before
it. Inside a loop the order is that of demand, effect by effect, so values stand near their use; long chains of copies
stand side by side. Only the graph decides: the same kernel gives the same program in every process.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from aril.codegen.items import Items, LinearizeError, bits_of
from aril.codegen.loops import one_end_a_range
from aril.ops import Ops
from aril.uop.node import UOp

__all__ = ["LinearizeError", "linearize"]


def linearize(sink: UOp) -> UOp:
    """The program (LINEAR) of a kernel in kernel form after accumulation and typing.

        before: SINK(END(STORE(INDEX(p, r), LOAD(INDEX(q, r))), r))
        after:  LINEAR(p, q, 8, r, INDEX(q, r), LOAD, INDEX(p, r), STORE, END(STORE, r))

    Errors: LinearizeError where loops or effects depend on one another in a circle, or a value leaves its loop.
    """
    return UOp(Ops.LINEAR, tuple(_Linearizer(Items(one_end_a_range(sink))).run()))


CHAIN = 16  # operations in a row that are worth having others beside them
AT_ONCE = 4  # chains side by side; more have no registers


@dataclass(slots=True)
class _Block:
    """A loop's body, or the whole kernel: its children (items; loops as negative numbers), what each comes after."""

    children: list[int] = field(default_factory=list)
    before: dict[int, dict[int, None]] = field(default_factory=dict)


def _is_result(store: UOp) -> bool:
    """Whether a STORE goes to memory, not to registers or scratch."""
    memory = store.src[0].src[0]
    return memory.op is Ops.PARAM


_Tree = tuple[dict[int, _Block], list[int], list[int], list[int]]  # blocks, loop around, depth, home of each item


class _Linearizer:
    """Nests the loops, puts every item into its loop, and orders each loop's body."""

    def __init__(self, found: Items) -> None:
        self.items, self.ends = found.items, found.ends
        self.ranges, self.opened, self.range_deps = found.ranges, found.opened, found.range_deps

    def run(self) -> list[UOp]:
        position = self._nest_order()
        parent = self._tree(position)
        return self._emit(parent, position)

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
            for q in bits_of(outer & ~(1 << r)):
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
            places = sorted([position[i] for i in bits_of(mask)])
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
                home.append(min(bits_of(item.closes), key=position.__getitem__))
                continue
            found = leaf.get(item.mask)
            if found is None:
                found = leaf[item.mask] = max(bits_of(item.mask), key=position.__getitem__)
            home.append(found)
        blocks = {r: _Block() for r in range(-1, n)}
        for index, item in enumerate(self.items):
            if not item.closes:
                blocks[home[index]].children.append(index)
        for r in range(n):
            if self.ends[r] >= 0:
                blocks[parent[r]].children.append(~r)
        tree = (blocks, parent, depth, home)
        closes = [item.closes for item in self.items]
        for index, item in enumerate(self.items):
            at = home[index]
            before = blocks[at].before
            for d in item.deps:
                if not item.closes:
                    if home[d] == at and not closes[d]:  # side by side
                        before.setdefault(index, {})[d] = None
                    else:
                        self._edge(tree, d, at, index, item.uop)
                elif d not in item.effects and d != item.condition:
                    self._edge(tree, d, parent[at], ~at, None)
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
            by = Ops.END if user is None else user.op
            raise LinearizeError(
                f"a value ({by}) in the loop {self.ranges[~first].arg} comes after that loop: "
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
        before = block.before
        for root in sorted(block.children, key=lambda c: (self.ends[~c], c) if c < 0 else (c, 0)):
            if done.get(root):
                continue
            if root not in before:
                done[root] = True
                out.append(root)
                continue
            stack = [root]
            while stack:
                c = stack[-1]
                if done.get(c):
                    stack.pop()
                    continue
                needs = [d for d in before.get(c, ()) if not done.get(d)]
                if not needs:
                    done[c] = True
                    out.append(c)
                    stack.pop()
                    continue
                if c in done:  # visited, and what it needs is not done: it needs itself
                    raise LinearizeError(f"effects come before themselves: {self._name(c)} and {self._name(needs[0])}")
                done[c] = False
                stack.extend(reversed(needs))
        return self._in_turn(out, before)

    def _in_turn(self, order: list[int], before: dict[int, dict[int, None]]) -> list[int]:
        """`order` with the long chains of a few results (polynomials) side by side, an operation of each in turn.

        A core looks ahead by so many waiting operations; of chains one behind the other these are few chains.
        """
        parts: list[list[int]] = [[]]
        place: dict[int, int] = {}  # how many operations, each needing the last, end with a child
        deepest = 0
        for c in order:
            if c < 0:
                return order
            parts[-1].append(c)
            place[c] = 1 + max([place.get(d, 0) for d in before.get(c, ())], default=0)
            deepest = max(deepest, place[c])
            u = self.items[c].uop
            if u.op is Ops.STORE:
                if deepest < CHAIN or not _is_result(u):
                    return order
                parts.append([])
                deepest = 0
        rest = parts.pop()
        if not 2 <= len(parts) <= AT_ONCE:
            return order
        out: list[int] = []
        waiting = {c for part in parts for c in part}
        while waiting:
            for part in parts:
                if part and waiting.isdisjoint(before.get(part[0], ())):
                    out.append(part[0])
                    waiting.discard(part.pop(0))
        return out + rest

    def _name(self, child: int) -> str:
        return f"the loop {self.ranges[~child].arg}" if child < 0 else str(self.items[child].uop.op)
