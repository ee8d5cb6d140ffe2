"""Expansion: UPCAST and UNROLL loops become copies of what depends on them, a VECTOR loop becomes lanes.

In comes kernel form after the optimisation steps; out goes the same with values of shape `()` or `(lanes,)`, where
REDUCE nodes are left over plain loops only (several operands of one REDUCE are taken in turn).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from aril.codegen.affine import Linear, build_sum, linear, split_gate
from aril.codegen.coalesce import can_transpose, lanes_of, transpose
from aril.dtype import dtypes
from aril.ops import OpGroup, Ops
from aril.uop.args import AxisType
from aril.uop.node import UOp
from aril.uop.symbolic import simplify

_COPIES = frozenset({AxisType.UPCAST, AxisType.UNROLL})
_EXPANDED = _COPIES | {AxisType.VECTOR}
Key = tuple[int, ...]


def expand(sink: UOp) -> UOp:
    """The kernel without UPCAST, UNROLL and VECTOR loops.

        before: STORE(INDEX(p, r*8 + v), x(v))      (v a VECTOR loop of 8)
        after:  STORE(SHRINK(p, r*8; 8), x(<0..7>))

    Addresses that move by one element a lane become SHRINK, those that stay are scalars, all others gather; but where
    a copied loop makes them contiguous the tile is transposed in registers (`coalesce`). Errors: ValueError for a
    value that lies in two VECTOR loops, or for a loop to be expanded whose length is not a number.
    """
    return _Expander(sink).run()


def is_loop(u: UOp, *kinds: AxisType) -> bool:
    """Whether `u` is a RANGE of one of `kinds`."""
    return u.op is Ops.RANGE and u.arg.kind in kinds


def broadcast(u: UOp, lanes: int) -> UOp:
    """The scalar `u` in every lane; a vector as it is."""
    return u if u.shape or lanes == 1 else UOp.stack(*[u] * lanes)


def combine(op: Ops, a: UOp, b: UOp) -> UOp:
    """One step of a reduction."""
    return UOp(op, (a, b))


def combine_lanes(op: Ops, vector: UOp) -> UOp:
    """All lanes combined: halves upon halves, so the order is a balanced tree."""
    n = lanes_of(vector)
    while n > 1 and n % 2 == 0:
        n //= 2
        vector = combine(op, UOp(Ops.SHRINK, (vector,), (0, n)), UOp(Ops.SHRINK, (vector,), (n, n)))
    parts = [vector.index(i) for i in range(n)]
    while len(parts) > 1:
        parts = [combine(op, *parts[i : i + 2]) if i + 1 < len(parts) else parts[i] for i in range(0, len(parts), 2)]
    return parts[0]


@dataclass(frozen=True, eq=False)
class _Strided:
    """An address that moves by `step` elements a lane: of lane l, `scalars + const + l*step`."""

    target: UOp
    scalars: dict[UOp, int]
    const: int
    step: int
    lanes: int

    def contiguous(self, lane: int, width: int) -> UOp:
        """The address of `width` elements from that of `lane`."""
        return UOp(Ops.SHRINK, (self.target, build_sum(self.scalars, self.const + lane * self.step)), (None, width))


class _Expander:
    """Values of every node for every turn of the copied loops it lies in: `values[node][turns]`."""

    def __init__(self, sink: UOp) -> None:
        self.sink = sink
        self.values: dict[UOp, dict[Key, UOp]] = {}
        self.gates: dict[tuple[UOp, Key], UOp | None] = {}
        self.reversed: set[tuple[UOp, Key]] = set()
        self.strided: dict[tuple[UOp, Key], _Strided] = {}
        self.tiles: dict[tuple[UOp, Key], list[UOp]] = {}  # transposed tiles by access and its first turn
        self.linears: dict[UOp, Linear] = {}
        self.memo: dict[UOp, Linear] = {}
        self.axes: dict[frozenset[UOp], tuple[UOp, ...]] = {}

    def run(self) -> UOp:
        for u in self._order():
            axes = self._axes(u)
            out = self.values[u] = {}
            for key in product(*[range(_length(r)) for r in axes]):
                out[key] = self._expand(u, key, dict(zip(axes, key, strict=True)))
        return self.values[self.sink][()]

    def _axes(self, u: UOp) -> tuple[UOp, ...]:
        live = u.ranges
        found = self.axes.get(live)
        if found is None:
            if len([r for r in live if r.arg.kind is AxisType.VECTOR]) > 1:
                names = sorted(str(r.arg.id) for r in live if r.arg.kind is AxisType.VECTOR)
                raise ValueError(
                    f"a value lies in several VECTOR loops ({', '.join(names)}): only one can become lanes"
                )
            found = tuple(sorted([r for r in live if r.arg.kind in _COPIES], key=lambda r: r.arg.id))
            self.axes[live] = found
        return found

    def _lanes(self, u: UOp) -> int:
        return next((_length(r) for r in u.ranges if r.arg.kind is AxisType.VECTOR), 1)

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

    def _at(self, u: UOp, turn: dict[UOp, int]) -> UOp:
        return self.values[u][tuple([turn[r] for r in self._axes(u)])]

    def _expand(self, u: UOp, key: Key, turn: dict[UOp, int]) -> UOp:
        op = u.op
        if op is Ops.RANGE:
            if u.arg.kind is AxisType.VECTOR:
                return UOp.stack(*[_int(i) for i in range(_length(u))])
            if u.arg.kind in _COPIES:
                return _int(turn[u])
            return u.with_src(tuple([self._at(s, turn) for s in u.src]))
        if op is Ops.INDEX and u in self.linears:
            return self._address(u, key, turn)
        if op is Ops.LOAD and (u.src[0], key) in self.gates:
            return self._load(u, key, turn)
        if op is Ops.STORE and u.src[0] in self.linears:
            return self._store(u, turn)
        if op is Ops.REDUCE:
            return self._reduce(u, turn)
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
            return simplify(out)
        return out

    def _address(self, u: UOp, key: Key, turn: dict[UOp, int]) -> UOp:
        form, target = self.linears[u], self._at(u.src[0], turn)
        const, lanes, step = form.const, 1, 0
        scalars: dict[UOp, int] = {}
        vectors: list[tuple[UOp, int]] = []
        for atom, scale in form.terms.items():
            if atom.op is Ops.RANGE and atom.arg.kind in _EXPANDED:
                if atom.arg.kind is AxisType.VECTOR:
                    lanes, step = _length(atom), scale
                else:
                    const += scale * turn[atom]
                continue
            value = atom if atom.op is Ops.RANGE else self._at(atom, turn)
            if value.op is Ops.CONST:
                const += scale * int(value.arg)
            elif value.shape:
                lanes = lanes_of(value)
                vectors.append((value, scale))
            else:
                scalars[value] = scalars.get(value, 0) + scale
        gate = split_gate(u.src[1])[1]
        gate = None if gate is None else self._at(gate, turn)
        if gate is not None and gate.op is Ops.CONST and gate.arg:
            gate = None
        if gate is not None and gate.shape:
            lanes = lanes_of(gate)
        self.gates[u, key] = gate
        if not vectors and lanes == 1:
            return target.index(build_sum(scalars, const))
        masked = gate is not None and bool(gate.shape)
        if not vectors and (step == 1 or (step == -1 and not masked)):
            if step == -1:
                self.reversed.add((u, key))
                const -= lanes - 1
            return UOp(Ops.SHRINK, (target, build_sum(scalars, const)), (None, lanes))
        if not vectors and step == 0 and not masked:
            return target.index(build_sum(scalars, const))
        if not vectors and not masked:
            self.strided[u, key] = _Strided(target, scalars, const, step, lanes)
        index = UOp(Ops.ADD, (build_sum(scalars, const), UOp.stack(*[_int(step * i) for i in range(lanes)])))
        for value, scale in vectors:
            index = UOp(Ops.ADD, (index, value if scale == 1 else UOp(Ops.MUL, (value, _int(scale)))))
        return target.index(index)

    def _gate(self, index: UOp, turn: dict[UOp, int], extra: tuple[UOp, ...]) -> UOp | None:
        gate = self.gates[index, tuple([turn[r] for r in self._axes(index)])]
        for more in extra:
            more = self._at(more, turn)
            gate = more if gate is None else UOp(Ops.AND, (gate, more))
        return gate

    def _load(self, u: UOp, key: Key, turn: dict[UOp, int]) -> UOp:
        address = self._at(u.src[0], turn)
        gate = self._gate(u.src[0], turn, u.src[2:])
        alt = self._at(u.src[1], turn) if len(u.src) > 1 else u.const_like(0)
        tile = self._tile(u, turn) if gate is None else None
        if tile is not None:
            axis, strided, first = tile
            rows = self.tiles.get((u, first))
            if rows is None:
                loads = [strided.contiguous(i, _length(axis)).load(hint=u.arg) for i in range(strided.lanes)]
                rows = self.tiles[u, first] = transpose(loads)
            out = rows[turn[axis]]
        elif gate is None:
            out = address.load(hint=u.arg)
        elif gate.op is Ops.CONST and not gate.arg:
            return alt
        else:
            out = address.load(alt, gate, hint=u.arg)
        if (u.src[0], key) in self.reversed:
            out = _reverse(out)
        return out

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
        tile = self._tile(u, turn) if gate is None else None
        if tile is not None and _length(tile[0]) == lanes:
            axis, strided, first = tile
            rows = self.tiles.get((u, first))
            if rows is None:
                values = [broadcast(self._at(u.src[1], {**turn, axis: i}), lanes) for i in range(_length(axis))]
                rows = self.tiles[u, first] = transpose(values)
            return strided.contiguous(turn[axis], lanes).store(rows[turn[axis]])
        value = broadcast(value, lanes)
        if (u.src[0], key) in self.reversed:
            value = _reverse(value)
        return address.store(value, gate)

    def _tile(self, u: UOp, turn: dict[UOp, int]) -> tuple[UOp, _Strided, Key] | None:
        """(copied loop along which a strided access is contiguous, the address at its first turn, key of that turn)."""
        index = u.src[0]
        key = tuple([turn[r] for r in self._axes(index)])
        if (index, key) not in self.strided:
            return None
        for axis in self._axes(index):
            moves_by = self.linears[index].coefficient(axis)
            if moves_by == 1 and can_transpose(self.strided[index, key].lanes, _length(axis)):
                first = {**turn, axis: 0}
                strided = self.strided[index, tuple([first[r] for r in self._axes(index)])]
                return axis, strided, tuple([first[r] for r in self._axes(u)])
        return None

    def _turns(self, u: UOp, kind: frozenset[AxisType], turn: dict[UOp, int]) -> Iterator[dict[UOp, int]]:
        own = [r for r in u.src[1:] if r.op is Ops.RANGE and r.arg.kind in kind]
        for combo in product(*[range(_length(r)) for r in own]):
            yield {**turn, **dict(zip(own, combo, strict=True))}

    def _reduce(self, u: UOp, turn: dict[UOp, int]) -> UOp:
        op, _ = u.arg
        loops = tuple([self._at(r, turn) for r in u.src[1:] if not is_loop(r, *_EXPANDED) and r.op is Ops.RANGE])
        lanes = next((_length(r) for r in u.src[1:] if is_loop(r, AxisType.VECTOR)), 1)
        parts: list[UOp] = []
        for outer in self._turns(u, frozenset({AxisType.UPCAST}), turn):
            values: list[UOp] = []
            for inner in self._turns(u, frozenset({AxisType.UNROLL}), outer):
                values.extend([broadcast(self._at(x, inner), lanes) for x in u.src if x.op is not Ops.RANGE])
            widest = max(lanes_of(x) for x in values)
            values = [broadcast(x, widest) for x in values]
            if loops:
                parts.append(UOp(Ops.REDUCE, (*values, *loops), u.arg))
            else:
                total = values[0]
                for x in values[1:]:
                    total = combine(op, total, x)
                parts.append(total)
        while len(parts) > 1:
            parts = [
                combine(op, *parts[i : i + 2]) if i + 1 < len(parts) else parts[i] for i in range(0, len(parts), 2)
            ]
        return combine_lanes(op, parts[0]) if lanes > 1 else parts[0]

    def _end(self, u: UOp, turn: dict[UOp, int]) -> UOp:
        rest = [s for s in u.src[1:] if not is_loop(s, *_EXPANDED)]
        effects: list[UOp] = []
        for inner in self._turns(u, _COPIES, turn):
            effect = self._at(u.src[0], inner)
            effects.extend(effect.src if effect.op is Ops.GROUP else (effect,))
        effects = [e for e in dict.fromkeys(effects) if e.op is not Ops.NOOP] or [UOp(Ops.NOOP, ())]
        body = UOp.group(*effects)
        if body.op is Ops.NOOP or not rest:
            return body
        return UOp(Ops.END, (body, *[self._at(s, turn) for s in rest]))


def _reverse(vector: UOp) -> UOp:
    return UOp.stack(*[vector.index(i) for i in range(lanes_of(vector) - 1, -1, -1)])


def _length(loop: UOp) -> int:
    end = loop.src[0]
    if end.op is not Ops.CONST:
        raise ValueError(f"{loop.arg.kind} loop {loop.arg.id} has no constant length: split it first")
    return int(end.arg)


def _int(value: int) -> UOp:
    return UOp.const(dtypes.weakint, value)
