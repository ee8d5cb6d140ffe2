"""Index expressions as sums: which loops an address moves with, and by how much a turn.

In come index expressions of kernel form; out go linear forms over atoms (loops, variables, anything not linear).
"""

from __future__ import annotations

from dataclasses import dataclass

from aril.dtype import dtypes
from aril.ops import Ops
from aril.uop.node import UOp
from aril.uop.order import toposort

LINEAR_OPS = frozenset({Ops.ADD, Ops.SUB, Ops.MUL, Ops.NEG})


@dataclass(frozen=True, eq=False)
class Linear:
    """`const + sum(coefficient * atom)`; an atom is a RANGE, a variable or an expression that is not linear."""

    terms: dict[UOp, int]
    const: int = 0

    def coefficient(self, loop: UOp) -> int | None:
        """How much one turn of `loop` adds; None where that is not one number."""
        for atom in self.terms:
            if atom is not loop and loop in atom.ranges:
                return None
        return self.terms.get(loop, 0)

    def expression(self) -> UOp:
        """The sum as a node, terms in their order, the constant last."""
        return build_sum(self.terms, self.const)


def build_sum(terms: dict[UOp, int], const: int = 0) -> UOp:
    """The node `sum(coefficient * atom) + const`."""
    out: UOp | None = None
    for atom, scale in terms.items():
        if scale == 0:
            continue
        term = atom if scale == 1 else UOp(Ops.MUL, (atom, _const(scale)))
        out = term if out is None else UOp(Ops.ADD, (out, term))
    if out is None:
        return _const(const)
    return out if const == 0 else UOp(Ops.ADD, (out, _const(const)))


def add(a: UOp, b: UOp | int) -> UOp:
    """a + b of index expressions; nothing is added for 0."""
    b = b if isinstance(b, UOp) else _const(b)
    if b.op is Ops.CONST:
        if a.op is Ops.CONST:
            return _const(a.arg + b.arg)
        return a if b.arg == 0 else UOp(Ops.ADD, (a, b))
    return b if a.op is Ops.CONST and a.arg == 0 else UOp(Ops.ADD, (a, b))


def mul(a: UOp, b: UOp | int) -> UOp:
    """a * b of index expressions; constants fold."""
    b = b if isinstance(b, UOp) else _const(b)
    if b.op is Ops.CONST:
        if a.op is Ops.CONST:
            return _const(a.arg * b.arg)
        return a if b.arg == 1 else (b if b.arg == 0 else UOp(Ops.MUL, (a, b)))
    return UOp(Ops.MUL, (a, b))


def divides(by: int, u: UOp) -> bool:
    """Whether an index expression is surely a multiple of `by`."""
    stack = [u]
    while stack:
        x = stack.pop()
        if x.op is Ops.CONST:
            if int(x.arg) % by:
                return False
        elif x.op is Ops.MUL and x.src[1].op is Ops.CONST and int(x.src[1].arg) % by == 0:
            continue
        elif x.op in (Ops.ADD, Ops.SUB, Ops.MAX):
            stack.extend(x.src)
        elif x.op is Ops.WHERE:
            stack.extend(x.src[1:])
        else:
            return False
    return True


def _const(value: int) -> UOp:
    return UOp.const(dtypes.weakint, value)


def split_gate(index: UOp) -> tuple[UOp, UOp | None]:
    """(index, gate) of `index.valid(gate)`; the gate is None where the index holds always, False where never."""
    if index.op is Ops.Invalid:
        return UOp.const(index.dtype, 0), UOp.const(dtypes.bool, False)
    if index.op is Ops.WHERE and index.src[2].op is Ops.Invalid:
        inner, gate = split_gate(index.src[1])
        return inner, index.src[0] if gate is None else UOp(Ops.AND, (index.src[0], gate))
    return index, None


def linear(u: UOp, memo: dict[UOp, Linear]) -> Linear:
    """The linear form of an index expression; `memo` keeps those of its parts."""
    found = memo.get(u)
    if found is not None:
        return found
    for n in toposort((u,), lambda x: x.op in LINEAR_OPS and x not in memo):
        if n not in memo:
            memo[n] = _derive(n, memo)
    return memo[u]


def _derive(u: UOp, memo: dict[UOp, Linear]) -> Linear:
    if u.op is Ops.CONST and u.arg.__class__ is int:
        return Linear({}, u.arg)
    if u.op not in LINEAR_OPS or not u.dtype.weak:
        return Linear({u: 1})
    a = memo[u.src[0]]
    if u.op is Ops.NEG:
        return _scale(a, -1)
    b = memo[u.src[1]]
    if u.op is Ops.MUL:
        if not b.terms:
            return _scale(a, b.const)
        return _scale(b, a.const) if not a.terms else Linear({u: 1})
    sign = 1 if u.op is Ops.ADD else -1
    terms = dict(a.terms)
    for atom, scale in b.terms.items():
        total = terms.get(atom, 0) + sign * scale
        if total:
            terms[atom] = total
        else:
            del terms[atom]
    return Linear(terms, a.const + sign * b.const)


def _scale(a: Linear, by: int) -> Linear:
    if by == 1:
        return a
    return Linear({atom: scale * by for atom, scale in a.terms.items()} if by else {}, a.const * by)
