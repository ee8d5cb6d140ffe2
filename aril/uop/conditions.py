"""Bools and comparisons: one step towards the canonical form of a condition, and of AND, OR and XOR of anything.

In: a node over simplified sources. Out: a better node, or None. A comparison of indices has its terms on the side where
they are positive, a constant alone; `not (a < b)` of indices is `b - 1 < a`.
"""

from __future__ import annotations

import math

from aril.dtype import DType, dtypes, wrap
from aril.ops import Ops
from aril.uop.alu import exec_alu
from aril.uop.arithmetic import difference
from aril.uop.bounds import operand_type
from aril.uop.gates import FALSE, TRUE, simplify_and, under_gate
from aril.uop.linear import LIMIT, Terms, build, const, exact, greatest, is_int, order_key, span
from aril.uop.node import UOp


def connective(u: UOp) -> UOp | None:
    """AND, OR and XOR of bools."""
    a, b = u.src
    if u.op is Ops.AND:
        return simplify_and(u)
    if u.op is Ops.XOR:
        return UOp(Ops.CMPNE, u.src)
    if b.op is Ops.CONST:
        return b if b.arg else a
    if negation(a) is b or negation(b) is a:
        return TRUE
    parts: dict[UOp, None] = {}
    stack = [b, a]
    while stack and len(parts) < LIMIT:
        x = stack.pop()
        if x.op is Ops.OR:
            stack.extend((x.src[1], x.src[0]))
        elif x in parts:
            return _join([*parts, *reversed(stack)])
        else:
            parts[x] = None
    # a or (a and b) is a
    for x, y in ((a, b), (b, a)):
        if y.op is Ops.AND and x in y.src:
            return x
    return None


def _join(parts: list[UOp]) -> UOp:
    r = parts[0]
    for p in parts[1:]:
        r = UOp(Ops.OR, (r, p))
    return r


def negation(x: UOp) -> UOp:
    """not x."""
    return x.src[0] if x.op is Ops.CMPNE and x.src[1] is TRUE else UOp(Ops.CMPNE, (x, TRUE))


def compare(u: UOp) -> UOp | None:
    """CMPLT, CMPNE and CMPEQ."""
    a, b = u.src
    t = operand_type(u)
    if t.kind == "b":
        return _compare_bool(u)
    if t.kind == "f" or a.dtype.kind == "f" or b.dtype.kind == "f":
        return FALSE if a is b and u.op is Ops.CMPLT else None  # NaN differs from itself
    if not is_int(t) or (a.dtype is not t and b.dtype is not t):
        return None
    if a is b:
        return UOp.const(dtypes.bool, u.op is Ops.CMPEQ)
    for i, s in enumerate(u.src):
        if s.op is Ops.CAST and s.src[0].dtype is dtypes.bool and u.src[1 - i].op is Ops.CONST:
            return _of_bool(u, i, t)
    d = difference(a, b, t)
    if d is None:
        return None
    return _less(d[0], d[1], t) if u.op is Ops.CMPLT else _equal(d[0], d[1], t, u)


def _compare_bool(u: UOp) -> UOp | None:
    a, b = u.src
    if u.op is Ops.CMPLT:
        return UOp(Ops.AND, (negation(a), b))
    if a is b:
        return UOp.const(dtypes.bool, u.op is Ops.CMPEQ)
    if b.op is not Ops.CONST:
        if u.op is Ops.CMPEQ:
            return negation(UOp(Ops.CMPNE, (a, b)))
        return None
    if bool(b.arg) is (u.op is Ops.CMPEQ):
        return a
    # from here on it is "not a"
    if a.op is Ops.CMPNE and a.src[1] is TRUE:
        return a.src[0]
    if a.op is Ops.CMPLT and a.src[0].dtype is a.src[1].dtype is dtypes.weakint:
        return UOp(Ops.CMPLT, (UOp(Ops.ADD, (a.src[1], const(-1))), a.src[0]))
    if a.op in (Ops.CMPNE, Ops.CMPEQ) and a.src[0].dtype.kind != "b":
        return UOp(Ops.CMPEQ if a.op is Ops.CMPNE else Ops.CMPNE, a.src)
    return UOp(Ops.CMPNE, (a, TRUE)) if u.op is Ops.CMPEQ else None


def _of_bool(u: UOp, i: int, t: DType) -> UOp:
    """A comparison of a bool, cast to an integer, with a constant."""
    results = []
    for value in (0, 1):
        other = wrap(u.src[1 - i].arg, t)
        results.append(exec_alu(u.op, dtypes.bool, (value, other) if i == 0 else (other, value)))
    if results[0] == results[1]:
        return UOp.const(dtypes.bool, bool(results[0]))
    x = u.src[i].src[0]
    return x if results[1] else negation(x)


def _sides(terms: Terms, k: int, t: DType) -> tuple[UOp, UOp] | None:
    """(left, right) with left - right the sum, no coefficient negative, the constant right (or alone left)."""
    left = {a: c for a, c in terms.items() if c > 0}
    right = {a: -c for a, c in terms.items() if c < 0}
    lk, rk = (0, -k) if left else (k, 0)
    if not (exact(left, lk, t) and exact(right, rk, t)):
        return None
    return build(left, lk, t), build(right, rk, t)


def _less(terms: Terms, k: int, t: DType) -> UOp | None:
    """terms + k < 0."""
    low, high = span(terms, k)
    if low >= 0:
        return FALSE
    if high < 0 or greatest(terms, k, t) < 0:
        return TRUE
    if t.weak and len(terms) > 1 and _least(terms, k, t) >= 0:
        return FALSE
    g = math.gcd(*terms.values())
    if g > 1:  # g*S < -k where S < ceil(-k / g)
        terms = {a: c // g for a, c in terms.items()}
        k = k // g
    else:
        for g in sorted({abs(c) for c in terms.values()} - {1}, reverse=True):
            small = {a: c for a, c in terms.items() if c % g}
            big = {a: c for a, c in terms.items() if c % g == 0}
            if not small or not big:
                continue
            # big + small + k < 0: of small + k only the multiple of g below it counts, where that is always the same
            s_low, s_high = span(small, k)
            if s_low // g == s_high // g:
                terms, k = {a: c // g for a, c in big.items()}, s_low // g
                break
    if len(terms) == 1:
        (atom, c), *_ = terms.items()
        n = atom.src[1] if atom.op is Ops.FLOORDIV else None
        if n is not None and n.op is Ops.CONST and n.arg > 0 and abs(c) == 1 and atom.dtype.weak:
            m = int(n.arg)
            if c == 1:  # x // m < -k
                return UOp(Ops.CMPLT, (atom.src[0], const(-k * m, t)))
            return UOp(Ops.CMPLT, (const((k + 1) * m - 1, t), atom.src[0]))  # k < x // m
    both = _sides(terms, k, t)
    return None if both is None else UOp(Ops.CMPLT, both)


def _least(terms: Terms, k: int, t: DType) -> int:
    return -greatest({a: -c for a, c in terms.items()}, -k, t)


def _equal(terms: Terms, k: int, t: DType, u: UOp) -> UOp | None:
    """terms + k == 0, or its negation where `u` is CMPNE."""
    low, high = span(terms, k)
    g = math.gcd(*terms.values())
    if low > 0 or high < 0 or (g and k % g) or (t.weak and (greatest(terms, k, t) < 0 or _least(terms, k, t) > 0)):
        return UOp.const(dtypes.bool, u.op is Ops.CMPNE)
    if not terms:
        return UOp.const(dtypes.bool, (k == 0) is (u.op is Ops.CMPEQ))
    if g > 1:
        terms, k = {a: c // g for a, c in terms.items()}, k // g
    first = next(iter(sorted(terms, key=order_key))) if len(terms) > 1 else next(iter(terms))
    if terms[first] < 0:
        terms, k = {a: -c for a, c in terms.items()}, -k
    both = _sides(terms, k, t)
    return None if both is None else UOp(u.op, both)


def where(u: UOp) -> UOp | None:
    """WHERE: decided, merged with its neighbours, turned into AND or OR, or simplified under its gate."""
    gate, a, b = u.src
    low, high = gate.bounds
    if low == high:
        return a if low else b
    if a is b:
        return a
    if gate.op is Ops.CMPNE and gate.src[1] is TRUE:
        return UOp(Ops.WHERE, (gate.src[0], b, a)) if b.op is not Ops.Invalid else _gated(u)
    if a.op is Ops.WHERE and a.src[0] is gate:
        return UOp(Ops.WHERE, (gate, a.src[1], b))
    if b.op is Ops.WHERE and b.src[0] is gate:
        return UOp(Ops.WHERE, (gate, a, b.src[2]))
    if a.op is Ops.WHERE and a.src[2] is b:
        return UOp(Ops.WHERE, (UOp(Ops.AND, (gate, a.src[0])), a.src[1], b))
    if u.dtype.kind == "b" and Ops.Invalid not in (a.op, b.op):
        if a.op is Ops.CONST:
            if b.op is Ops.CONST:
                return gate if a.arg else negation(gate)
            return UOp(Ops.OR, (gate, b)) if a.arg else UOp(Ops.AND, (negation(gate), b))
        if b.op is Ops.CONST:
            return UOp(Ops.OR, (negation(gate), a)) if b.arg else UOp(Ops.AND, (gate, a))
    if a.op is Ops.Invalid and b.op is not Ops.Invalid:
        return UOp(Ops.WHERE, (negation(gate), b, a))
    return _gated(u) if b.op is Ops.Invalid else None


def _gated(u: UOp) -> UOp | None:
    """An index simplified by what its gate implies."""
    gate, x, invalid = u.src
    if x.dtype is not dtypes.weakint:
        return None
    better = under_gate(gate, x)
    return None if better is None else UOp(Ops.WHERE, (gate, better, invalid))


def bitwise(u: UOp) -> UOp | None:
    """AND, OR and XOR, of bools and of integers."""
    a, b = u.src
    op, dtype = u.op, u.dtype
    if a is b:
        return UOp.const(dtype, 0) if op is Ops.XOR else a
    if dtype.kind == "b":
        return connective(u)
    if dtype.kind == "f" or b.op is not Ops.CONST or a.dtype is not dtype:
        return None
    c = int(b.arg)
    ones = wrap(-1, dtype)
    if c == 0:
        return b if op is Ops.AND else a
    if c == ones:
        return a if op is Ops.AND else b if op is Ops.OR else None
    if a.op is op and a.src[1].op is Ops.CONST:
        value = exec_alu(op, dtype, (a.src[1].arg, c))
        return None if value is None else UOp(op, (a.src[0], UOp.const(dtype, value)))
    if op is Ops.AND and c > 0 and c & (c + 1) == 0 and a.bounds[0] >= 0 and a.bounds[1] <= c:
        return a
    return None
