"""Conditions on indices: conjunctions put in order, and what a condition implies for the index it guards.

In: simplified bool expressions. Out: simpler ones; `under_gate(gate, x)` is x simplified with what `gate` says of it.
"""

from __future__ import annotations

from aril.dtype import dtypes
from aril.ops import Ops
from aril.uop.linear import build, const, order_key, parse
from aril.uop.node import UOp

TRUE = UOp(Ops.CONST, (), True, dtypes.bool)
FALSE = UOp(Ops.CONST, (), False, dtypes.bool)
_MANY = 16  # conjunctions of more conditions are only freed of repetitions

Range = tuple[int | None, int | None]


def conjuncts(gate: UOp) -> list[UOp]:
    """The conditions a gate joins with AND, each once, in a fixed order of first appearance."""
    out: dict[UOp, None] = {}
    stack = [gate]
    while stack:
        u = stack.pop()
        if u.op is Ops.AND:
            stack.extend((u.src[1], u.src[0]))
        else:
            out[u] = None
    return list(out)


def limits(c: UOp) -> tuple[UOp, Range] | None:
    """(expression, (least, greatest)) where condition `c` bounds a weak integer expression by a constant."""
    if c.op not in (Ops.CMPLT, Ops.CMPEQ, Ops.CMPNE):
        return None
    a, b = c.src
    if b.op is Ops.CONST and a.dtype is dtypes.weakint:
        v = int(b.arg)
        if c.op is Ops.CMPLT:
            return a, (None, v - 1)
        if c.op is Ops.CMPEQ:
            return a, (v, v)
        if a.bounds[0] == v:
            return a, (v + 1, None)
        if a.bounds[1] == v:
            return a, (None, v - 1)
    elif a.op is Ops.CONST and b.dtype is dtypes.weakint and c.op is Ops.CMPLT:
        return b, (int(a.arg) + 1, None)
    return None


def _meet(a: Range, b: Range) -> Range:
    low = a[0] if b[0] is None else b[0] if a[0] is None else max(a[0], b[0])
    high = a[1] if b[1] is None else b[1] if a[1] is None else min(a[1], b[1])
    return low, high


def implied(conditions: list[UOp]) -> tuple[dict[UOp, tuple[int, int]], list[UOp]] | None:
    """(bounds of expressions, the conditions that say nothing of the kind); None where they contradict each other."""
    known: dict[UOp, Range] = {}
    other: list[UOp] = []
    for c in conditions:
        found = limits(c)
        if found is None:
            other.append(c)
        else:
            known[found[0]] = _meet(known.get(found[0], (None, None)), found[1])
    out: dict[UOp, tuple[int, int]] = {}
    for x, r in known.items():
        low, high = _meet(r, x.bounds)
        assert low is not None and high is not None
        if low > high:
            return None
        out[x] = (low, high)
    return out, other


def simplify_and(u: UOp) -> UOp | None:
    """A conjunction without repetitions, with one bound a side of each expression, in canonical order."""
    parts = conjuncts(u)
    if len(parts) > _MANY:
        return None
    best: dict[tuple[UOp, int], UOp] = {}  # (expression, side) -> the tightest condition
    out: list[UOp] = []
    for c in parts:
        if c.op is Ops.CONST:
            if not c.arg:
                return FALSE
            continue
        if _negated(c) in parts:
            return FALSE
        found = limits(c) if c.op is Ops.CMPLT else None
        if found is None:
            out.append(c)
            continue
        x, (low, high) = found
        key = (x, 0 if low is None else 1)
        old = best.get(key)
        if old is None:
            best[key] = c
            continue
        was = limits(old)
        assert was is not None
        if (high is not None and high < was[1][1]) or (low is not None and low > was[1][0]):  # type: ignore[operator]
            best[key] = c
    out.extend(best.values())
    facts = implied(out)
    if facts is None:
        return FALSE
    if len(out) > 1:
        out = _drop_implied(out)
        out.sort(key=_condition_key)
    if not out:
        return TRUE
    r = out[0]
    for c in out[1:]:
        r = UOp(Ops.AND, (r, c))
    return None if r is u else r


def _condition_key(c: UOp) -> tuple[object, ...]:
    """Outer loops first; the bounds of one expression side by side, the lower one first."""
    found = limits(c)
    if found is None:
        return (*order_key(c)[:2], 1, c.digest, 0)
    return (*order_key(c)[:2], 0, found[0].digest, found[1][0] is None)


def _negated(c: UOp) -> UOp:
    if c.op is Ops.CMPNE and c.src[1] is TRUE:
        return c.src[0]
    return UOp(Ops.CMPNE, (c, TRUE))


def _drop_implied(conditions: list[UOp]) -> list[UOp]:
    """Without conditions that the others imply by bounds."""
    from aril.uop.symbolic import simplify

    kept = sorted(conditions, key=lambda c: (-len(c.ranges), order_key(c)))
    for c in list(kept):
        if len(kept) == 1 or not c.ranges:
            continue
        rest = [o for o in kept if o is not c and o.ranges & c.ranges]
        facts = implied(rest) if rest else None
        if facts is None:
            continue
        mapping = _stand_ins({x: r for x, r in facts[0].items() if _is_atom(x)})
        if not mapping:
            continue
        there = _replace(c, mapping)
        if there is not c and simplify(there) is TRUE:
            kept.remove(c)
    return kept


def _is_atom(x: UOp) -> bool:
    return x.op not in (Ops.ADD, Ops.MUL)


def _stand_ins(bounds: dict[UOp, tuple[int, int]]) -> dict[UOp, UOp]:
    """For each expression a variable of its narrower bounds (a constant, where they leave one value)."""
    out: dict[UOp, UOp] = {}
    for x, (low, high) in bounds.items():
        if (low, high) != x.bounds:
            out[x] = const(low) if low == high else _stand_in(x, low, high)
    return out


def _stand_in(x: UOp, low: int, high: int) -> UOp:
    return UOp.variable(f"~{x.digest.hex()}", low, high)  # of a name no other expression's has: gates nest


_GAINS = frozenset({
    Ops.FLOORDIV, Ops.FLOORMOD, Ops.CDIV, Ops.CMOD, Ops.MAX, Ops.WHERE, Ops.CMPLT, Ops.CMPNE, Ops.CMPEQ, Ops.SHR,
    Ops.AND,
})  # fmt: skip
_COST = {
    Ops.FLOORDIV: 8,
    Ops.FLOORMOD: 8,
    Ops.CDIV: 8,
    Ops.CMOD: 8,
    Ops.WHERE: 2,
    Ops.CONST: 0,
    Ops.RANGE: 0,
    Ops.PARAM: 0,
}


def cost(u: UOp) -> int:
    """A rough number of operations in an index expression."""
    return sum(_COST.get(n.op, 1) for n in u.toposort(_enter))


def _enter(u: UOp) -> bool:
    return u.op not in (Ops.LOAD, Ops.RANGE, Ops.REDUCE)


def _replace(x: UOp, mapping: dict[UOp, UOp]) -> UOp:
    """`x` with nodes replaced, but for what lies below loads.

    A load happens even where the gate is closed, so what the gate implies must not reach its address.
    """
    return x.substitute(mapping, _enter)


def under_gate(gate: UOp, x: UOp) -> UOp | None:
    """`x` made cheaper by what `gate` implies where it holds; None where nothing is gained.

    Atoms bounded by the gate become variables of narrower bounds; for a bounded sum one of its terms is solved for.
    """
    from aril.uop.symbolic import simplify

    nodes = x.toposort(_enter)
    if not any(n.op in _GAINS for n in nodes):
        return None
    facts = implied(conjuncts(gate))
    if facts is None:
        return None
    bounds, other = facts
    best, best_cost = x, cost(x)
    # conditions that appear inside, then bounded atoms
    mapping: dict[UOp, UOp] = {c: TRUE for c in other if c in nodes}
    mapping |= {n: TRUE for n in conjuncts(gate) if n in nodes}
    mapping |= {_negated(c): FALSE for c in conjuncts(gate) if _negated(c) in nodes}
    mapping |= _stand_ins({e: r for e, r in bounds.items() if _is_atom(e) and e in nodes})
    best, best_cost = _attempt(best, best_cost, mapping)
    for e, (low, high) in bounds.items():
        if _is_atom(e) or (low, high) == e.bounds:
            continue
        found = parse(e, dtypes.weakint)
        if found is None or not any(n in nodes for n in found[0]):
            continue
        terms, k = found
        stand_in = _stand_in(e, low, high)
        # solve for the terms of coefficient 1 or -1, innermost first
        for atom in sorted((a for a, c in terms.items() if c in (1, -1)), key=order_key, reverse=True):
            sign = terms[atom]
            rest = {a: -sign * n for a, n in terms.items() if a is not atom}
            solved = build({**rest, stand_in: sign}, -sign * k, dtypes.weakint)
            tried = simplify(_replace(best, {atom: solved}))
            back = simplify(_replace(tried, {stand_in: e}))
            n = cost(back)
            if n < best_cost:
                best, best_cost = back, n
    return None if best is x else best


def _attempt(best: UOp, best_cost: int, mapping: dict[UOp, UOp]) -> tuple[UOp, int]:
    from aril.uop.symbolic import simplify

    if not mapping:
        return best, best_cost
    back = {v: k for k, v in mapping.items() if v.op is Ops.PARAM}
    tried = simplify(_replace(simplify(_replace(best, mapping)), back))
    n = cost(tried)
    return (tried, n) if n < best_cost else (best, best_cost)
