"""Expansion: UPCAST and UNROLL loops become copies of what depends on them, a VECTOR loop becomes lanes.

In comes kernel form after the optimisation steps; out goes the same with values of shape `()` or `(lanes,)`, where
REDUCE nodes are left over plain loops only (several operands of one REDUCE are taken in turn).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial, reduce
from itertools import product
from math import gcd

from aril.codegen.affine import build_sum, linear, split_gate
from aril.codegen.coalesce import (
    Block,
    Lanes,
    can_transpose,
    deinterleave,
    interleave,
    lanes_of,
    shuffle,
    tile_of,
    transpose,
)
from aril.codegen.combines import combine, combine_of, identity, in_lanes, in_tree, results, taken
from aril.codegen.copies import COPIES, EXPANDED, Copies, Key, is_loop, lane_of, length_of
from aril.codegen.pairs import narrow_factors, pair_products
from aril.dtype import dtypes
from aril.ops import OpGroup, Ops
from aril.uop.args import AxisType
from aril.uop.node import UOp
from aril.uop.symbolic import simplify, simplify_node

Tile = tuple[UOp, int, int, Lanes, Key]  # copied loop, first turn and number of turns, address at the first, its key


def expand(sink: UOp, pair_lanes: tuple[int, ...] = ()) -> UOp:
    """The kernel without UPCAST, UNROLL and VECTOR loops. Sums of products of bfloat16 take two neighbouring terms at a
    time in vectors of `pair_lanes` (`pairs`).

        before: STORE(INDEX(p, r*8 + v), x(v))      (v a VECTOR loop of 8)
        after:  STORE(SHRINK(p, r*8; 8), x(<0..7>))

    Addresses that move by one element a lane become SHRINK, those that stay are scalars, all others gather; but where
    a copied loop makes them contiguous the tile is transposed in registers (`coalesce`). Errors: ValueError for a
    value that lies in two VECTOR loops, or for a loop to be expanded whose length is not a number.
    """
    return _Expander(sink, pair_lanes).run()


def broadcast(u: UOp, lanes: int) -> UOp:
    """The scalar `u` in every lane; a vector as it is."""
    return u if u.shape or lanes == 1 else UOp.vector(*[u] * lanes)


class _Expander(Copies):
    """A kernel node by node, sources first."""

    def __init__(self, sink: UOp, pair_lanes: tuple[int, ...]) -> None:
        super().__init__()
        self.sink = sink
        self.pair_lanes = pair_lanes
        self.tiles: dict[tuple[UOp, Key], list[UOp]] = {}  # transposed tiles by access and its first turn
        self.blocks: dict[tuple[UOp, Key], tuple[int, int, list[dict[UOp, int]]] | None] = {}
        self.from_memory: set[UOp] = set()  # nodes whose values depend on what is loaded

    def run(self) -> UOp:
        for u in self._order():
            if u.op is Ops.LOAD or any(s in self.from_memory for s in u.src):
                self.from_memory.add(u)
            axes = self._axes(u)
            out = self.values[u] = {}
            for key in product(*[range(length_of(r)) for r in axes]):
                out[key] = self._expand(u, key, dict(zip(axes, key, strict=True)))
        return self.values[self.sink][()]

    def _needs(self, u: UOp) -> tuple[UOp, ...]:
        """The nodes whose values `u` is made of: an address only of the atoms of its index."""
        if u.op is not Ops.INDEX or u.src[0].base.op not in OpGroup.STORAGE or len(u.src) != 2:
            return u.src
        inner, gate = split_gate(u.src[1])
        form = self.linears[u] = linear(inner, self.memo)
        atoms = [a for a in form.terms if a.op is not Ops.RANGE]
        return (u.src[0], *atoms, *((gate,) if gate is not None else ()))

    def _order(self) -> Iterator[UOp]:
        done: set[UOp] = set()
        stack: list[tuple[UOp, bool]] = [(self.sink, False)]
        while stack:
            u, visited = stack.pop()
            if u in done:
                continue
            if visited:
                done.add(u)
                yield u
            else:
                stack.append((u, True))
                stack.extend([(s, False) for s in reversed(self._needs(u)) if s not in done])

    def _expand(self, u: UOp, key: Key, turn: dict[UOp, int]) -> UOp:
        op = u.op
        if op is Ops.RANGE:
            return self._loop(u, turn)
        if op is Ops.INDEX and u in self.linears:
            return self._address(u, key, turn)
        if op is Ops.LOAD and (u.src[0], key) in self.gates:
            return self._load(u, key, turn)
        if op is Ops.STORE and u.src[0] in self.linears:
            return self._store(u, turn)
        if op is Ops.REDUCE:
            return self._reduce(u, turn) if isinstance(u.arg[0], Ops) else self._reduce_tuple(u, turn)
        if op is Ops.GETTUPLE:
            return taken(u, self._at(u.src[0], turn))
        if op is Ops.END:
            return self._end(u, turn)
        if op is Ops.GROUP:
            return UOp.group(*[self._at(s, turn) for s in u.src])
        src = tuple([self._at(s, turn) for s in u.src])
        if src == u.src:
            return u
        out = u.with_src(src)
        if (
            op in OpGroup.ELEMENTWISE
            and not out.shape
            and (out.dtype.kind != "f" or all(s.op is Ops.CONST for s in src))
        ):
            # What a condition shares with a value stays one node, and is computed once.
            return simplify_node(out) if u in self.from_memory else simplify(out)
        if op in OpGroup.COMPARISON and out.shape and out.vmin == out.vmax:  # a copy of which all lanes are inside
            return UOp.const(dtypes.bool, bool(out.vmin))
        if op is Ops.AND and out.shape:  # of several conditions those that are known
            known = next((s for s in src if s.op is Ops.CONST and s.dtype is dtypes.bool), None)
            if known is not None:
                return next(s for s in src if s is not known) if known.arg else known
        return out

    def _load(self, u: UOp, key: Key, turn: dict[UOp, int]) -> UOp:
        address = self._at(u.src[0], turn)
        gate = self._gate(u.src[0], turn, u.src[2:])
        alt = self._at(u.src[1], turn) if len(u.src) > 1 else u.const_like(0)
        if gate is not None and gate.op is Ops.CONST and not gate.arg:
            return alt
        block = self._block(u, turn)
        if block is not None and block.part(0, block.parts[1]).is_near:
            return self._load_block(u, block)
        tile = self._tile(u, turn)
        if tile is not None:
            axis, start, size, lanes, first = tile
            rows = self.tiles.get((u, first))
            if rows is None:
                loads = [lanes.contiguous(i, size).load(hint=u.arg) for i in range(len(lanes.offsets))]
                rows = self.tiles[u, first] = transpose(loads)
            return rows[turn[axis] - start]
        spread = self.lanes.get((u.src[0], key))
        if spread is not None and gate is not None and gate.shape:
            if spread.step == 0 and _always_inside(u.src[0]):  # one element, which may be read whatever the gate says
                value = broadcast(spread.target.index(spread.start).load(hint=u.arg), len(spread.offsets))
                return UOp(Ops.WHERE, (gate, value, broadcast(alt, len(spread.offsets))))
            gates = [g for g in (split_gate(u.src[0].src[1])[1], *u.src[2:]) if g is not None]
            apart = len(set(spread.offsets)) == len(spread.offsets)  # lanes at one element may have different gates
            if apart and spread.is_near and not alt.shape and all(self._can_rearrange(g, turn) for g in gates):
                return spread.load(u, lambda readers: (alt, self._rearranged_gate(gates, turn, readers)))
        elif spread is not None and spread.is_near:
            return spread.load(u, lambda readers: () if gate is None else (alt, gate))
        return address.load(*(() if gate is None else (alt, gate)), hint=u.arg)

    def _can_rearrange(self, u: UOp, turn: dict[UOp, int]) -> bool:
        """Whether a gate is built of comparisons whose sides are known sums in every lane."""
        lane = lane_of(u)
        if lane is None:
            return not self._at(u, turn).shape if u in self.values else False
        if u.dtype is dtypes.weakint:
            return self._offsets(u, lane, turn) is not None
        return u.op in OpGroup.ELEMENTWISE and all(self._can_rearrange(s, turn) for s in u.src)

    def _rearranged_gate(self, gates: list[UOp], turn: dict[UOp, int], readers: list[int | None]) -> UOp:
        """The gates of the given lanes, in that order; closed where there is no lane."""

        def arranged(u: UOp) -> UOp:
            lane = lane_of(u)
            if lane is None:
                return self._at(u, turn)
            if u.dtype is dtypes.weakint:
                found = self._offsets(u, lane, turn)
                assert found is not None
                scalars, offsets = found
                # what stands between two lanes continues the first: a vector in equal steps is cheaper to make
                known = {i: offsets[r] for i, r in enumerate(readers) if r is not None}
                places = sorted(known)
                values = []
                for i in range(len(readers)):
                    left = max([p for p in places[:-1] if p <= i], default=places[0])
                    right = next((p for p in places if p > left), left + 1)
                    more = (known.get(right, known[left]) - known[left]) * (i - left) // (right - left)
                    values.append(UOp.integer(known[left] + more))
                return UOp(Ops.ADD, (build_sum(scalars), UOp.vector(*values)))
            return u.with_src(tuple([arranged(s) for s in u.src]))

        out = UOp.vector(*[UOp.const(dtypes.bool, r is not None) for r in readers]) if None in readers else None
        for g in gates:
            more = arranged(g)
            out = more if out is None else UOp(Ops.AND, (out, more))
        assert out is not None
        return broadcast(out, len(readers))

    def _store(self, u: UOp, turn: dict[UOp, int]) -> UOp:
        key = tuple([turn[r] for r in self._axes(u.src[0])])
        address, value = self._at(u.src[0], turn), self._at(u.src[1], turn)
        gate = self._gate(u.src[0], turn, u.src[2:])
        if gate is not None and gate.op is Ops.CONST:
            if not gate.arg:
                return UOp(Ops.NOOP, ())
            gate = None
        lanes = lanes_of(address)
        if lanes == 1 and value.shape:
            raise ValueError(
                f"every lane would store to one address: {u.src[0]} does not move with the VECTOR loop of its value"
            )
        block = self._block(u, turn)
        if block is not None and block.unit == 1:
            return self._store_block(u, block)
        tile = self._tile(u, turn)
        if tile is not None:
            return self._store_tile(u, turn, tile)
        value = broadcast(value, lanes)
        spread = self.lanes.get((u.src[0], key))
        if spread is not None and spread.step == -1 and (gate is None or not gate.shape):
            return spread.contiguous(lanes - 1, lanes).store(shuffle(value, value, range(lanes - 1, -1, -1)), gate)
        if spread is not None and gate is None:  # an address a lane costs more than a number a lane
            starts = [build_sum(spread.scalars, o) for o in spread.offsets]
            return UOp.group(*[spread.target.index(at).store(value.index(i)) for i, at in enumerate(starts)])
        return address.store(value, gate)

    def _store_tile(self, u: UOp, turn: dict[UOp, int], tile: Tile) -> UOp:
        """This copy's share of the contiguous stores of a transposed tile."""
        axis, start, copies, lanes, first = tile
        rows, count = self.tiles.get((u, first)), len(lanes.offsets)
        if rows is None:
            values = [broadcast(self._at(u.src[1], {**turn, axis: start + i}), count) for i in range(copies)]
            rows = self.tiles[u, first] = transpose(values)
        mine = [i for i in range(count) if i * copies // count == turn[axis] - start]
        stores = [lanes.contiguous(i, copies).store(rows[i]) for i in mine]
        return UOp.group(*stores) if stores else UOp(Ops.NOOP, ())

    def _block(self, u: UOp, turn: dict[UOp, int]) -> Block | None:
        """The block that the access is of, and its place there, where copies fill the room between neighbouring lanes
        together: `x[lane*2 + copy]`, or windows in a block, `x[lane*8 + copy - step]` where that is not negative."""
        index = u.src[0]
        lanes = self.lanes.get((index, tuple([turn[r] for r in self._axes(index)])))
        if lanes is None or lanes.step is None or abs(lanes.step) < 2:
            return None
        form = self.linears[index]
        moves = {r: form.coefficient(r) or 0 for r in self._axes(index)}
        axes = [r for r, c in moves.items() if 0 < abs(c) < abs(lanes.step)]
        others = tuple([turn[r] for r in self._axes(u) if r not in axes])
        if (u, others) not in self.blocks:
            self.blocks[u, others] = self._turns_of_block(u, lanes.step, {r: moves[r] for r in axes}, turn)
        found = self.blocks[u, others]
        if found is None:
            return None
        unit, low, turns = found
        mine = (sum([c * turn[r] for r, c in moves.items() if r in axes]) - low) // unit
        begin = self.lanes[index, tuple([turns[0][r] for r in self._axes(index)])]
        return Block(turns, mine, unit, begin, tuple([turns[0][r] for r in self._axes(u)]))

    def _turns_of_block(
        self, u: UOp, step: int, moves: dict[UOp, int], turn: dict[UOp, int]
    ) -> tuple[int, int, list[dict[UOp, int]]] | None:
        """(elements from a place of the block to the next, where it begins, a turn for each place), where the turns of
        copies that are not left out reach every place, and all without a condition."""
        unit = gcd(*moves.values()) * (1 if step > 0 else -1)
        if not unit or step // unit not in (2, 4, 8) or step % unit:
            return None
        turns: dict[int, dict[UOp, int]] = {}
        for combo in product(*[range(length_of(r)) for r in moves]):
            there = {**turn, **dict(zip(moves, combo, strict=True))}
            gate = self._gate(u.src[0], there, u.src[2:])
            if gate is None:
                turns.setdefault(sum([c * t for c, t in zip(moves.values(), combo, strict=True)]) // unit, there)
            elif gate.op is not Ops.CONST or gate.arg:
                return None
        low = min(turns, default=0)
        if sorted(turns) != list(range(low, low + step // unit)):
            return None
        return unit, low * unit, [turns[i] for i in sorted(turns)]

    def _store_block(self, u: UOp, block: Block) -> UOp:
        """This copy's share of the contiguous stores of a block."""
        rows, (length, width) = self.tiles.get((u, block.first)), block.parts
        if rows is None:
            values = [broadcast(self._at(u.src[1], t), block.count) for t in block.turns]
            rows = self.tiles[u, block.first] = transpose(values) if block.is_square else interleave(values)
        mine = [i for i in range(length) if i * len(block.turns) // length == block.mine]
        stores = [block.lanes.contiguous(0, width, i * width).store(rows[i]) for i in mine]
        return UOp.group(*stores) if stores else UOp(Ops.NOOP, ())

    def _load_block(self, u: UOp, block: Block) -> UOp:
        rows, (length, width) = self.tiles.get((u, block.first)), block.parts
        if rows is None:
            parts = [block.part(i * width, width) for i in range(length)]
            loads = [x.contiguous(0, width).load(hint=u.arg) if x.step == 1 else x.load(u, lambda _: ()) for x in parts]
            rows = self.tiles[u, block.first] = transpose(loads) if block.is_square else deinterleave(loads)
        return rows[block.mine]

    def _tile(self, u: UOp, turn: dict[UOp, int]) -> Tile | None:
        """The tile that the access is of, where it is strided and a copied loop makes it contiguous."""
        index = u.src[0]
        key = tuple([turn[r] for r in self._axes(index)])
        lanes = self.lanes.get((index, key))
        if lanes is None or lanes.step in (None, -1):
            return None
        for axis in self._axes(index):
            n = length_of(axis)
            if self.linears[index].coefficient(axis) != 1 or abs(lanes.step or 0) < n:
                continue
            start, size = tile_of(turn[axis], n)
            together = [{**turn, axis: i} for i in range(start, start + size)]
            if can_transpose(len(lanes.offsets), size) and self._are_open(u, together):
                first = together[0]
                begin = self.lanes[index, tuple([first[r] for r in self._axes(index)])]
                return axis, start, size, begin, tuple([first[r] for r in self._axes(u)])
        return None

    def _reduce(self, u: UOp, turn: dict[UOp, int]) -> UOp:
        op, _ = u.arg
        loops = tuple([self._at(r, turn) for r in u.src[1:] if not is_loop(r, *EXPANDED) and r.op is Ops.RANGE])
        lanes = next((length_of(r) for r in u.src[1:] if is_loop(r, AxisType.VECTOR)), 1)
        parts: list[UOp] = []
        for outer in self._turns(u, frozenset({AxisType.UPCAST}), turn):
            values: list[UOp] = []
            turns = list(self._turns(u, frozenset({AxisType.UNROLL}), outer))
            while turns:
                pair = self._pair(u, *turns[:2]) if len(turns) > 1 and self.pair_lanes else None
                if pair is not None:
                    values.append(pair)
                    turns = turns[2:]
                    continue
                inner = turns.pop(0)
                values.extend([broadcast(self._at(x, inner), lanes) for x in u.src if x.op is not Ops.RANGE])
            widest = max(lanes_of(x) for x in values)
            values = [broadcast(x, widest) for x in values]
            if loops:
                parts.append(UOp(Ops.REDUCE, (*values, *loops), u.arg))
            else:
                # what a closed condition leaves out adds nothing; sums that begin alike are then one
                nothing = broadcast(UOp.const(u.dtype, identity(op, u.dtype)), widest)
                values = [x for x in values if x is not nothing] or values[:1]
                parts.append(reduce(partial(combine, op), values))
        total = in_tree(partial(combine, op), parts)
        return in_lanes(lambda a, b: (combine(op, *a, *b),), (total,))[0] if lanes > 1 else total

    def _pair(self, u: UOp, first: dict[UOp, int], second: dict[UOp, int]) -> UOp | None:
        """The sum of the terms of two turns whose factors lie next to each other in memory, as one instruction."""
        loads = narrow_factors(u)
        words = [self._word(x, first, second) for x in loads or ()]
        found = [w for w in words if w is not None]
        if len(found) < 2 or max(map(lanes_of, found)) not in self.pair_lanes:
            return None
        return pair_products(*found)

    def _word(self, load: UOp, first: dict[UOp, int], second: dict[UOp, int]) -> UOp | None:
        """What LOAD `load` reads at two turns, in one uint32; None where that is not one element and the next."""
        index = load.src[0]
        if index not in self.linears or len(load.src) > 1 or split_gate(index.src[1])[1] is not None:
            return None
        lane = lane_of(index)
        here, there = (self._offsets(index.src[1], lane, turn) for turn in (first, second))
        if here is None or there is None or here[0] != there[0]:
            return None
        lanes = Lanes(self._at(index.src[0], first), *here)
        if any(b != a + 1 for a, b in zip(here[1], there[1], strict=True)) or lanes.step not in (0, 1, 2):
            return None
        n = len(lanes.offsets)
        if lanes.step == 0 or n == 1:
            return lanes.contiguous(0, 2).load(hint=load.arg).bitcast(dtypes.uint32).index(0)
        return lanes.contiguous(0, 2 * n).load(hint=load.arg).bitcast(dtypes.uint32) if lanes.step == 2 else None

    def _reduce_tuple(self, u: UOp, turn: dict[UOp, int]) -> UOp:
        """The TUPLE of results of a reduction with several accumulators."""
        how = combine_of(u.arg[0])
        loops = tuple([self._at(r, turn) for r in u.src[1:] if not is_loop(r, *EXPANDED)])
        lanes = next((length_of(r) for r in u.src[1:] if is_loop(r, AxisType.VECTOR)), 1)
        parts: list[tuple[UOp, ...]] = []
        for outer in self._turns(u, frozenset({AxisType.UPCAST}), turn):
            total: tuple[UOp, ...] | None = None
            for inner in self._turns(u, frozenset({AxisType.UNROLL}), outer):
                values = self._at(u.src[0], inner).src
                total = values if total is None else how.step(total, values)
            assert total is not None
            widest = max(lanes, *[lanes_of(x) for x in total])
            total = tuple([broadcast(x, widest) for x in total])
            parts.append(results(UOp(Ops.REDUCE, (UOp(Ops.TUPLE, total), *loops), u.arg)) if loops else total)
        total = in_tree(how.step, parts)
        return UOp(Ops.TUPLE, in_lanes(how.step, total) if lanes > 1 else total)

    def _end(self, u: UOp, turn: dict[UOp, int]) -> UOp:
        rest = [s for s in u.src[1:] if not is_loop(s, *EXPANDED)]
        effects: list[UOp] = []
        for inner in self._turns(u, COPIES, turn):
            effect = self._at(u.src[0], inner)
            effects.extend(effect.src if effect.op is Ops.GROUP else (effect,))
        effects = [e for e in dict.fromkeys(effects) if e.op is not Ops.NOOP] or [UOp(Ops.NOOP, ())]
        body = UOp.group(*effects)
        if body.op is Ops.NOOP or not rest:
            return body
        return UOp(Ops.END, (body, *[self._at(s, turn) for s in rest]))


def _always_inside(index: UOp) -> bool:
    """Whether an address is one of its buffer even where its gate is closed."""
    place, size = split_gate(index.src[1])[0], index.src[0].base.arg.size  # below an AFTER
    return isinstance(size, int) and place.vmin >= 0 and place.vmax < size
