"""What nodes are at each turn of the loops that become copies or lanes: values, addresses and gates.

`expand` walks a kernel and asks here where its accesses lie.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from aril.codegen.affine import Linear, build_sum, divides, linear, split_gate
from aril.codegen.coalesce import Lanes
from aril.ops import Ops
from aril.uop.args import AxisType
from aril.uop.node import UOp
from aril.uop.symbolic import simplify

COPIES = frozenset({AxisType.UPCAST, AxisType.UNROLL})
EXPANDED = COPIES | {AxisType.VECTOR}
Key = tuple[int, ...]


def is_loop(u: UOp, *kinds: AxisType) -> bool:
    """Whether `u` is a RANGE of one of `kinds` (of any that stays a loop, where none are given)."""
    return u.op is Ops.RANGE and (u.arg.kind in kinds if kinds else u.arg.kind not in EXPANDED)


def lane_of(u: UOp) -> UOp | None:
    """The VECTOR loop that `u` lies in."""
    return next((r for r in u.ranges if r.arg.kind is AxisType.VECTOR), None)


def length_of(loop: UOp) -> int:
    """Turns of a loop to be expanded. Errors: ValueError where that is not a number."""
    end = loop.src[0]
    if end.op is not Ops.CONST:
        raise ValueError(f"{loop.arg.kind} loop {loop.arg.id} has no constant length: split it first")
    return int(end.arg)


class Copies:
    """Values of every node for every turn of the copied loops it lies in: `values[node][turns]`."""

    def __init__(self) -> None:
        self.values: dict[UOp, dict[Key, UOp]] = {}
        self.gates: dict[tuple[UOp, Key], UOp | None] = {}
        self.lanes: dict[tuple[UOp, Key], Lanes] = {}  # addresses that differ by numbers from lane to lane
        self.linears: dict[UOp, Linear] = {}
        self.memo: dict[UOp, Linear] = {}
        self.axes: dict[frozenset[UOp], tuple[UOp, ...]] = {}

    def _axes(self, u: UOp) -> tuple[UOp, ...]:
        live = u.ranges
        found = self.axes.get(live)
        if found is None:
            if len([r for r in live if r.arg.kind is AxisType.VECTOR]) > 1:
                names = sorted(str(r.arg.id) for r in live if r.arg.kind is AxisType.VECTOR)
                raise ValueError(
                    f"a value lies in several VECTOR loops ({', '.join(names)}): only one can become lanes"
                )
            found = tuple(sorted([r for r in live if r.arg.kind in COPIES], key=lambda r: r.arg.id))
            self.axes[live] = found
        return found

    def _at(self, u: UOp, turn: dict[UOp, int]) -> UOp:
        return self.values[u][tuple([turn[r] for r in self._axes(u)])]

    def _turns(self, u: UOp, kind: frozenset[AxisType], turn: dict[UOp, int]) -> Iterator[dict[UOp, int]]:
        own = [r for r in u.src[1:] if r.op is Ops.RANGE and r.arg.kind in kind]
        for combo in product(*[range(length_of(r)) for r in own]):
            yield {**turn, **dict(zip(own, combo, strict=True))}

    def _loop(self, u: UOp, turn: dict[UOp, int]) -> UOp:
        """A loop at a turn: the numbers of its lanes, the number of the copy, or itself."""
        if u.arg.kind is AxisType.VECTOR:
            return UOp.vector(*[UOp.integer(i) for i in range(length_of(u))]) if length_of(u) > 1 else UOp.integer(0)
        if u.arg.kind in COPIES:
            return UOp.integer(turn[u])
        return u.with_src(tuple([self._at(s, turn) for s in u.src]))

    def _address(self, u: UOp, key: Key, turn: dict[UOp, int]) -> UOp:
        target = self._at(u.src[0], turn)
        gate = split_gate(u.src[1])[1]
        gate = None if gate is None else self._at(gate, turn)
        if gate is not None and gate.op is Ops.CONST and gate.arg:
            gate = None
        self.gates[u, key] = gate
        lane = lane_of(u)
        found = self._offsets(split_gate(u.src[1])[0], lane, turn)
        if found is None:
            return self._gathered(u, target, turn)
        scalars, offsets = found
        masked = gate is not None and bool(gate.shape)
        lanes = Lanes(target, scalars, offsets)
        if len(offsets) == 1 or (lanes.step == 0 and not masked):
            return target.index(lanes.start)
        if lanes.step == 1:
            return lanes.contiguous(0, len(offsets))
        self.lanes[u, key] = lanes
        return target.index(UOp(Ops.ADD, (build_sum(scalars), UOp.vector(*[UOp.integer(i) for i in offsets]))))

    def _gathered(self, u: UOp, target: UOp, turn: dict[UOp, int]) -> UOp:
        """An address whose lanes are computed."""
        form = self.linears[u]
        index: UOp = UOp.integer(form.const)
        for atom, scale in form.terms.items():
            if is_loop(atom):
                value = atom
            else:  # a copied loop or the lanes are no node of an address's own order
                value = self._loop(atom, turn) if atom.op is Ops.RANGE else self._at(atom, turn)
            index = UOp(Ops.ADD, (index, value if scale == 1 else UOp(Ops.MUL, (value, UOp.integer(scale)))))
        return target.index(index)

    def _offsets(
        self, index: UOp, lane: UOp | None, turn: dict[UOp, int]
    ) -> tuple[dict[UOp, int], tuple[int, ...]] | None:
        """(what all lanes have in common, what each adds to it); None where that is not a number."""
        form = linear(index, self.memo)
        count = 1 if lane is None else length_of(lane)
        scalars: dict[UOp, int] = {}
        offsets = [form.const] * count
        for atom, scale in form.terms.items():
            if atom is lane:
                offsets = [o + scale * i for i, o in enumerate(offsets)]
            elif atom.op is Ops.RANGE and atom.arg.kind in COPIES:
                offsets = [o + scale * turn[atom] for o in offsets]
            elif lane is not None and lane in atom.ranges:
                parts = self._divided(atom, lane, turn)
                if parts is None:
                    return None
                for value, more in parts[0].items():
                    scalars[value] = scalars.get(value, 0) + scale * more
                offsets = [o + scale * p for o, p in zip(offsets, parts[1], strict=True)]
            else:
                value = atom if atom.op is Ops.RANGE else self._at(atom, turn)
                if value.shape:
                    return None
                if value.op is Ops.CONST:
                    offsets = [o + scale * int(value.arg) for o in offsets]
                else:
                    scalars[value] = scalars.get(value, 0) + scale
        return scalars, tuple(offsets)

    def _divided(self, atom: UOp, lane: UOp, turn: dict[UOp, int]) -> tuple[dict[UOp, int], tuple[int, ...]] | None:
        """`_offsets` of a quotient or remainder by a number that divides what the lanes have in common."""
        if atom.op not in (Ops.FLOORDIV, Ops.FLOORMOD) or atom.src[1].op is not Ops.CONST or atom.src[1].arg <= 0:
            return None
        by = int(atom.src[1].arg)
        inner = self._offsets(atom.src[0], lane, turn)
        if inner is None or not all(scale % by == 0 or divides(by, value) for value, scale in inner[0].items()):
            return None
        if atom.op is Ops.FLOORMOD:
            return {}, tuple([o % by for o in inner[1]])
        scalars: dict[UOp, int] = {}
        for value, scale in inner[0].items():
            exact = scale % by == 0
            part = value if exact else simplify(UOp(Ops.FLOORDIV, (value, UOp.integer(by))))
            scalars[part] = scalars.get(part, 0) + (scale // by if exact else scale)
        return scalars, tuple([o // by for o in inner[1]])

    def _gate(self, index: UOp, turn: dict[UOp, int], extra: tuple[UOp, ...]) -> UOp | None:
        gate = self.gates[index, tuple([turn[r] for r in self._axes(index)])]
        for more in extra:
            more = self._at(more, turn)
            gate = more if gate is None else UOp(Ops.AND, (gate, more))
        return gate

    def _are_open(self, u: UOp, turns: list[dict[UOp, int]]) -> bool:
        """Whether an access has no gate at any of the turns: only then may one of them do what others do too."""
        return all(self._gate(u.src[0], t, u.src[2:]) is None for t in turns)
