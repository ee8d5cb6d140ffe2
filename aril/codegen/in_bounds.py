"""CHECK_OOB: every access of a program is proved to lie inside of its storage, or compilation stops with the index.

In: a program (LINEAR) as the renderer takes it. Out: nothing, or `OutOfBounds`. Most accesses are settled by the bounds
of their index; z3 (https://github.com/Z3Prover/z3) decides the rest from the loops, conditions and gates around them.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import prod
from time import monotonic
from typing import Any

from aril.codegen.coalesce import lanes_of
from aril.dtype import DType
from aril.ops import OpGroup, Ops
from aril.uop.bounds import operand_type
from aril.uop.node import UOp
from aril.uop.render import to_line

TIMEOUT_MS = 10_000  # for one question
MOST_TURNS = 20_000  # for which z3 is asked one by one
_ACCESSES = frozenset({Ops.LOAD, Ops.STORE, Ops.ATOMIC})


class OutOfBounds(IndexError):
    """A kernel has an access that lies outside of its storage, or that could not be proved to lie inside."""


def prove_accesses(linear: UOp, name: str, level: int = 1) -> None:
    """Raise OutOfBounds unless every LOAD, STORE and ATOMIC of the program `linear` stays inside of its storage.

    `level` 2 asks z3 about every access, also where bounds suffice. A prefetch reads nothing and is not looked at, nor
    is inline source. Errors: ImportError where z3 is needed and not installed.
    """
    around: list[UOp] = []  # the loops and conditions that are open
    seen: set[tuple[Any, ...]] = set()
    for u in linear.src:
        if u.op in (Ops.RANGE, Ops.IF):
            around.append(u)
        elif u.op in (Ops.END, Ops.ENDIF):
            around.pop()
        elif u.op in _ACCESSES and u.arg != "prefetch" and u.src[0].op in (Ops.INDEX, Ops.SHRINK):
            storage, index = u.src[0].src
            wide = u.src[0].arg[1] if u.src[0].op is Ops.SHRINK else 1
            gate = u.src[2] if len(u.src) == 3 else None
            key = (storage, index, wide, gate, tuple(around))
            if key not in seen:
                seen.add(key)
                low, high = index.bounds
                if level < 2 and low >= 0 and high + wide <= storage.arg.size:
                    continue
                found = _counterexample(u.src[0], wide, gate, around, level)
                if found is not None:
                    raise _error(u, found, name)


def _error(u: UOp, found: str, name: str) -> OutOfBounds:
    storage, index = u.src[0].src
    what = f"buffer {storage.arg.slot}" if storage.op is Ops.PARAM else f"{storage.arg.addrspace.name} memory"
    after = f" and the {u.src[0].arg[1] - 1} after it" if u.src[0].op is Ops.SHRINK else ""
    return OutOfBounds(
        f"kernel {name}: a {u.op.name} of {what} ({storage.arg.size} {storage.dtype.name}) at index "
        f"{to_line(index)}{after} is not proved to lie inside: {found}"
    )


def _counterexample(address: UOp, wide: int, gate: UOp | None, around: list[UOp], level: int) -> str | None:
    """Values for which an access of `wide` elements lies outside, in words; None where z3 proves that none are."""
    storage, index = address.src
    last = storage.arg.size - 1
    try:
        import z3
    except ImportError:
        if level >= 2:
            raise ImportError("CHECK_OOB=2 asks z3 of every access: pip install z3-solver") from None
        low, high = index.bounds
        raise ImportError(
            f"CHECK_OOB: bounds alone say {low} to {high} of the index {to_line(index)} where it may be 0 to "
            f"{last + 1 - wide}; to decide it takes z3: pip install z3-solver"
        ) from None
    terms = _Terms(z3)
    solver = z3.Solver()
    solver.set("timeout", TIMEOUT_MS)
    for block in around:
        if block.op is Ops.IF:
            solver.add(terms.of(block.src[0])[0])
        else:
            terms.of(block)  # its turns, of which there is one
    outside = []
    gates = terms.of(gate) if gate is not None else [z3.BoolVal(True)]
    indices = terms.of(index)
    if address.op is Ops.SHRINK:  # neighbours; each lane has a gate of its own where the gate is a vector
        indices = [indices[0] + i for i in range(wide)]
    lanes = max(len(indices), len(gates))
    for i in range(lanes):
        at = indices[i % len(indices)]
        outside.append(z3.And(gates[i % len(gates)], z3.Or(at < 0, at > last)))
    solver.add(*terms.facts, z3.Or(*outside))
    model = _model(z3, solver, terms)
    if model is None:
        return None
    if isinstance(model, str):
        return model
    broken = next(i for i in range(lanes) if z3.is_true(model.eval(outside[i], model_completion=True)))
    known = [(v, label) for v, label, lane in terms.leaves if lane in (None, broken) and model[v] is not None]
    values = [f"{label} = {model.eval(v)}" for v, label in known]
    reached = model.eval(indices[broken % len(indices)], model_completion=True)
    return f"it is {reached}" + (f" where {', '.join(values)}" if values else "")


def _model(z3: Any, solver: Any, terms: _Terms) -> Any:
    """Values that satisfy all of `solver`; None where there are none; what to say where z3 has no answer.

    Quotients by variables are beyond z3 but for small cases: each turn of the loops, for each value of the variables,
    is then a question of its own, in which they are constants. All of them together have the time of ten.
    """
    answer = solver.check()
    walked = [(v[0], u) for u, v in terms.done.items() if u.is_variable or u.op in (Ops.RANGE, Ops.SPECIAL)]
    spans = [range(int(u.bounds[0]), int(u.bounds[1]) + 1) for _, u in walked]
    if answer == z3.unknown and walked and prod(map(len, spans)) <= MOST_TURNS:
        end = monotonic() + 10 * TIMEOUT_MS / 1000
        for turn in product(*spans):
            if monotonic() > end:
                answer = z3.unknown
                break
            values = [(v, z3.IntVal(n)) for (v, _), n in zip(walked, turn, strict=True)]
            here = [z3.simplify(z3.substitute(a, *values)) for a in solver.assertions()]
            if any(z3.is_false(a) for a in here):
                answer = z3.unsat
                continue
            one = z3.Solver()
            one.set("timeout", TIMEOUT_MS)
            one.add(*here, *[v == n for v, n in values])
            answer = one.check()
            if answer != z3.unsat:
                solver = one
                break
    if answer == z3.unknown:
        return f"z3 has no answer after {TIMEOUT_MS / 1000:.0f} s"
    return None if answer == z3.unsat else solver.model()


class _Terms:
    """z3's terms for integers and bools of a program: one for a scalar, one a lane for a vector.

    Integers are z3's unbounded ones. Where a result may leave its type, the term says how it wraps.
    """

    def __init__(self, z3: Any) -> None:
        self.z3 = z3
        self.done: dict[UOp, list[Any]] = {}
        self.facts: list[Any] = []
        self.leaves: list[tuple[Any, str, int | None]] = []  # a value, how it is called, its lane

    def of(self, root: UOp) -> list[Any]:
        for u in root.toposort(lambda n: n not in self.done and n.op not in (Ops.LOAD, Ops.PARAM)):
            if u not in self.done and u.dtype.kind in "iub":
                self.done[u] = self._make(u)
        return self.done[root]

    def _make(self, u: UOp) -> list[Any]:
        op, z3 = u.op, self.z3
        if op is Ops.CONST:
            return [z3.BoolVal(bool(u.arg)) if u.dtype.kind == "b" else z3.IntVal(int(u.arg))]
        if op in (Ops.RANGE, Ops.SPECIAL):
            turn = self._opaque(u)
            self.facts.append(turn[0] < self.done[u.src[0]][0])
            return turn
        if op is Ops.STACK and all(s in self.done for s in u.src):
            return [self.done[s][0] for s in u.src]
        if op is Ops.INDEX and u.src[0] in self.done and u.src[1].op is Ops.CONST:
            return [self.done[u.src[0]][int(u.src[1].arg)]]
        if op is Ops.SHRINK and u.src[0] in self.done:
            start, n = u.arg
            return self.done[u.src[0]][start : start + n]
        rule = _RULES.get(op)
        if rule is None or any(s not in self.done for s in u.src):
            return self._opaque(u)
        lanes = max([len(self.done[s]) for s in u.src])
        out = []
        for i in range(lanes):
            term = rule(z3, u, [self.done[s][i % len(self.done[s])] for s in u.src])
            if term is None:
                return self._opaque(u)
            out.append(self._wrapped(u, term))
        return out

    def _opaque(self, u: UOp) -> list[Any]:
        """Values of which nothing but their bounds is known."""
        lanes = lanes_of(u)
        out = []
        for i in range(lanes):
            name = f"v{len(self.leaves)}"
            v = self.z3.Bool(name) if u.dtype.kind == "b" else self.z3.Int(name)
            if u.dtype.kind != "b":
                low, high = u.bounds
                self.facts += [v >= int(low), v <= int(high)]
            self.leaves.append((v, _label(u), i if lanes > 1 else None))
            out.append(v)
        return out

    def _wrapped(self, u: UOp, term: Any) -> Any:
        if u.op not in _MAY_WRAP or u.dtype.kind == "b" or _fits(u):
            return term
        low = int(u.dtype.min)
        return (term - low) % (1 << u.dtype.bits) + low


def _fits(u: UOp) -> bool:
    """Whether bounds show that `u` stays within its type: they are all of the type where it may not."""
    return bool(u.bounds[0] > u.dtype.min or u.bounds[1] < u.dtype.max)


def _label(u: UOp) -> str:
    if u.op is Ops.LOAD:
        storage = u.src[0].src[0]
        return f"an element of {'buffer ' + str(storage.arg.slot) if storage.op is Ops.PARAM else 'local memory'}"
    return to_line(u)


def _is_plain(u: UOp) -> bool:
    """A division of what is not negative by what is positive: the same in every way of rounding."""
    return bool(u.src[0].bounds[0] >= 0 and u.src[1].bounds[0] > 0)


def _floor(z3: Any, u: UOp, v: list[Any]) -> Any:
    """Division by a positive number rounds down, as z3's does; others are left alone."""
    return v[0] / v[1] if u.src[1].bounds[0] > 0 else None


def _floor_rest(z3: Any, u: UOp, v: list[Any]) -> Any:
    return v[0] % v[1] if u.src[1].bounds[0] > 0 else None


def _truncating(z3: Any, u: UOp, v: list[Any]) -> Any:
    if _is_plain(u):
        return v[0] / v[1]
    return z3.If(v[0] >= 0, v[0] / v[1], -(-v[0] / v[1])) if u.src[1].bounds[0] > 0 else None


def _truncating_rest(z3: Any, u: UOp, v: list[Any]) -> Any:
    if _is_plain(u):
        return v[0] % v[1]
    return z3.If(v[0] >= 0, v[0] % v[1], -(-v[0] % v[1])) if u.src[1].bounds[0] > 0 else None


def _shift_left(z3: Any, u: UOp, v: list[Any]) -> Any:
    return v[0] * (1 << int(u.src[1].arg)) if _is_shift(u) else None


def _shift_right(z3: Any, u: UOp, v: list[Any]) -> Any:
    return v[0] / (1 << int(u.src[1].arg)) if _is_shift(u) else None


def _is_shift(u: UOp) -> bool:
    return u.src[1].op is Ops.CONST and 0 <= u.src[1].arg < u.dtype.bits


def _and(z3: Any, u: UOp, v: list[Any]) -> Any:
    if u.dtype.kind == "b":
        return z3.And(*v)
    mask = u.src[1].arg if u.src[1].op is Ops.CONST else -1
    return v[0] % (mask + 1) if mask > 0 and mask & (mask + 1) == 0 else None


def _xor(z3: Any, u: UOp, v: list[Any]) -> Any:
    if u.dtype.kind == "b":
        return z3.Xor(*v)
    is_not = u.dtype.kind == "i" and u.src[1].op is Ops.CONST and u.src[1].arg == -1
    return -v[0] - 1 if is_not else None


def _of_bools(join: Callable[[Any, list[Any]], Any]) -> Callable[[Any, UOp, list[Any]], Any]:
    return lambda z3, u, v: join(z3, v) if u.dtype.kind == "b" else None


def _compare(of_numbers: Callable[[Any, Any], Any], of_bools: Callable[[Any, Any, Any], Any]) -> Any:
    """A comparison, in the type in which it is made: an operand that would wrap in it is not followed."""

    def rule(z3: Any, u: UOp, v: list[Any]) -> Any:
        if u.src[0].dtype.kind == "b":
            return of_bools(z3, v[0], v[1])
        t: DType = operand_type(u)
        return of_numbers(v[0], v[1]) if all(s.bounds[0] >= t.min and s.bounds[1] <= t.max for s in u.src) else None

    return rule


def _cast(z3: Any, u: UOp, v: list[Any]) -> Any:
    if u.src[0].dtype.kind == "b":
        return v[0] if u.dtype.kind == "b" else z3.If(v[0], z3.IntVal(1), z3.IntVal(0))
    return v[0] != 0 if u.dtype.kind == "b" else v[0]


def _of_numbers(compute: Callable[[Any, list[Any]], Any]) -> Callable[[Any, UOp, list[Any]], Any]:
    return lambda z3, u, v: compute(z3, v) if u.dtype.kind != "b" else None


_MAY_WRAP = frozenset({Ops.ADD, Ops.SUB, Ops.MUL, Ops.NEG, Ops.SHL, Ops.MULACC, Ops.CAST})
_RULES: dict[Ops, Callable[[Any, UOp, list[Any]], Any]] = {
    Ops.ADD: _of_numbers(lambda z3, v: v[0] + v[1]),
    Ops.SUB: _of_numbers(lambda z3, v: v[0] - v[1]),
    Ops.MUL: _of_numbers(lambda z3, v: v[0] * v[1]),
    Ops.MULACC: _of_numbers(lambda z3, v: v[0] * v[1] + v[2]),
    Ops.NEG: _of_numbers(lambda z3, v: -v[0]),
    Ops.MAX: _of_numbers(lambda z3, v: z3.If(v[0] > v[1], v[0], v[1])),
    Ops.FLOORDIV: _floor,
    Ops.FLOORMOD: _floor_rest,
    Ops.CDIV: _truncating,
    Ops.CMOD: _truncating_rest,
    Ops.SHL: _shift_left,
    Ops.SHR: _shift_right,
    Ops.AND: _and,
    Ops.OR: _of_bools(lambda z3, v: z3.Or(*v)),
    Ops.XOR: _xor,
    Ops.CMPLT: _compare(lambda a, b: a < b, lambda z3, a, b: z3.And(z3.Not(a), b)),
    Ops.CMPNE: _compare(lambda a, b: a != b, lambda z3, a, b: a != b),
    Ops.CMPEQ: _compare(lambda a, b: a == b, lambda z3, a, b: a == b),
    Ops.WHERE: lambda z3, u, v: z3.If(*v),
    Ops.CAST: _cast,
}
assert _RULES.keys() <= OpGroup.ELEMENTWISE
