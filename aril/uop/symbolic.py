"""Simplification: every node brought to its canonical, cheapest form. `simplify(u)` is what other rooms call.

In: a graph of any form. Out: the same values with index arithmetic, conditions, constants and casts simplified. Integer rules hold for
wrapping types, float rules for NaN, infinities and signed zero. A late pass that writes NEG, SUB or CDIV on concrete types is not
undone; on the weak integer `a - b` is `a + b * -1`, and `not (a < b)` is `b - 1 < a`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from aril.dtype import DType, can_hold, dtypes, wrap
from aril.ops import OpGroup, Ops
from aril.uop import divmod
from aril.uop.alu import exec_alu
from aril.uop.bounds import in_type, operand_type
from aril.uop.gates import FALSE, TRUE, simplify_and, under_gate
from aril.uop.linear import (
    LIMIT,
    Terms,
    build,
    const,
    exact,
    factors,
    gather,
    greatest,
    merge,
    order_key,
    parse,
    product,
    signed,
    span,
)  # fmt: skip
from aril.uop.node import UOp
from aril.uop.pattern import Pat, Rules

CHAIN_LIMIT = 1000  # steps of one node: more are a cycle of rules

Step = Callable[[UOp], "UOp | None"]


def simplify(root: UOp) -> UOp:
    """The simplified graph: equal values, same dtype and shape. `simplify(simplify(u))` is `simplify(u)`.

    Memoised in the nodes. RANGE nodes keep their identity, but for those of length 1, which are 0.
    """
    done = root._simplified
    if done is not None:
        return root if done is True else done  # type: ignore[no-any-return]
    becomes: dict[UOp, UOp] = {}  # nodes whose form is that of a node being simplified
    stack = [root]
    while stack:
        u = stack[-1]
        if u._simplified is not None:
            stack.pop()
            continue
        r = becomes.get(u)
        if r is None:
            v = u
            if u.src and u.op is not Ops.RANGE:
                todo = [s for s in u.src if s._simplified is None]
                if todo:
                    todo.reverse()
                    stack.extend(todo)
                    continue
                v = u.with_src(tuple([s if (f := s._simplified) is True else f for s in u.src]))
            if v is not u:
                r = v
            else:
                r = _step(u)
                if r is None:
                    u._simplified = True
                    stack.pop()
                    continue
        final = r._simplified
        if final is None:
            if u in becomes or len(becomes) > CHAIN_LIMIT:
                raise RuntimeError(f"simplify does not end: {u.op.name} comes back to itself\n{u!r}")
            becomes[u] = r
            stack.append(r)
            continue
        becomes.pop(u, None)
        u._simplified = r if final is True else final
        stack.pop()
    done = root._simplified
    return root if done is True else done  # type: ignore[return-value]


def _step(u: UOp) -> UOp | None:
    """One step for a node over simplified sources: a better node, or None. Dtype and shape stay."""
    f = _STEPS.get(u.op)
    if f is None:
        return None
    r = f(u)
    if r is None or r is u:
        return None
    if r.dtype is not u.dtype:
        if u.op not in OpGroup.ELEMENTWISE:
            return None
        r = r.cast(u.dtype)
    if u.op in OpGroup.ELEMENTWISE and r.shape != u.shape:
        # a vector that turned out to be one scalar; tensors keep the form they have
        if len(u.shape) == 1 and r.shape == () and isinstance(u.shape[0], int) and _in_kernel(u):
            return UOp(Ops.STACK, (r,) * u.shape[0])
        return None
    return r


def _in_kernel(u: UOp) -> bool:
    """True where the lanes of vector `u` come from scalars or memory of a kernel, so that it is no tensor."""
    while u.op in OpGroup.ELEMENTWISE:
        u = next(s for s in u.src if s.shape)
    if u.op is Ops.SHRINK:
        return u.arg[0] is None and u.src[0].op in OpGroup.STORAGE
    return u.op in (Ops.STACK, Ops.LOAD)


def _is_int(dtype: DType) -> bool:
    return dtype.kind in "iu"


# --- steps common to elementwise operations ---


_OWN_SECOND = (Ops.SHL, Ops.SHR, Ops.POW)  # their second operand may have a type of its own


def _operands(u: UOp) -> UOp | None:
    """Constants take the type of what they meet, and stand second where the operation commutes."""
    t = operand_type(u)
    src = u.src
    if not t.weak:
        values = src[1:] if u.op is Ops.WHERE else src
        strange = any([s.op is Ops.CONST and s.dtype is not t for s in values])
        if strange and u.op not in _OWN_SECOND and any([s.op is not Ops.CONST and s.dtype is t for s in values]):
            new = tuple([UOp.const(t, s.arg) if s.op is Ops.CONST and s.dtype is not t else s for s in values])
            return UOp(u.op, (src[0], *new) if u.op is Ops.WHERE else new)
    if u.op in OpGroup.COMMUTATIVE and src[0].op is Ops.CONST and src[1].op is not Ops.CONST:
        return UOp(u.op, (src[1], src[0]))
    return None


def _fold(u: UOp) -> UOp | None:
    """An operation on constants alone."""
    for s in u.src:
        if s.op is not Ops.CONST:
            return None
    t = operand_type(u)
    if u.op in (Ops.CDIV, Ops.CMOD, Ops.FLOORDIV, Ops.FLOORMOD) and not u.src[1].arg:
        return None  # what the target does, it does at run time
    if t.kind == "v":
        return None
    keep = u.op is Ops.WHERE or u.op in (Ops.SHL, Ops.SHR)
    values = tuple([s.arg if keep else wrap(s.arg, t) for s in u.src])
    r = exec_alu(u.op, u.dtype, values)
    return None if r is None else UOp.const(u.dtype, r)


def _decided(u: UOp) -> UOp | None:
    """An integer or bool whose bounds leave one value."""
    low, high = u.bounds
    if low == high and u.op is not Ops.CONST and u.dtype.kind in "iub":
        return UOp.const(u.dtype, low)
    return None


def _hoist_invalid(u: UOp) -> UOp | None:
    """Arithmetic on a gated index is a gated index."""
    for i, s in enumerate(u.src):
        if s.op is Ops.WHERE and s.src[2].op is Ops.Invalid and s.dtype.weak:
            inner = UOp(u.op, (*u.src[:i], s.src[1], *u.src[i + 1 :]))
            return UOp(Ops.WHERE, (s.src[0], inner, UOp.invalid(inner.dtype)))
        if s.op is Ops.Invalid and s.dtype.weak:
            return UOp.invalid(u.dtype)
    return None


# --- integers ---


def _add(u: UOp) -> UOp | None:
    dtype = u.dtype
    if dtype.kind == "f":
        return _add_float(u)
    if dtype.kind == "b":
        return UOp(Ops.OR, u.src)
    a, b = u.src
    if b.op is Ops.CONST and b.dtype is dtype:
        if b.arg == 0:
            return a
        if a.dtype is dtype and a.op is not Ops.ADD:
            return None
    terms: Terms = {}
    k = gather(u, 1, terms, dtype)
    if k is None:
        return None
    while len(terms) > 1 and divmod.recombine(terms, dtype):
        k += terms.pop(divmod.ONE, 0)
    return build(_monomials(terms) if dtype.weak else terms, k, dtype, final=True)


def _monomials(terms: Terms) -> Terms:
    """Products in canonical order, so that equal ones meet."""
    if not any(a.op is Ops.MUL for a in terms):
        return terms
    out: Terms = {}
    for a, c in terms.items():
        if a.op is Ops.MUL:
            n, atoms = factors(a)
            p = product(atoms)
            if p is not None:
                merge(out, {p: c * n}, 1)
                continue
        merge(out, {a: c}, 1)
    return out


def _sub(u: UOp) -> UOp | None:
    a, b = u.src
    dtype = u.dtype
    if dtype.kind == "f":
        # x - 0.0 is x for every x; x - (-0.0) is x + 0.0
        return a if b.op is Ops.CONST and b.arg == 0 and math.copysign(1.0, b.arg) > 0 else None
    if dtype.kind == "b":
        return None
    if a is b:
        return const(0, dtype)
    if dtype.weak or b.op is Ops.CONST:
        return UOp(Ops.ADD, (a, UOp(Ops.MUL, (b, const(-1, dtype)))))
    return None


def _neg(u: UOp) -> UOp | None:
    x = u.src[0]
    if x.op is Ops.NEG:
        return x.src[0]
    return UOp(Ops.MUL, (x, const(-1))) if u.dtype.weak and u.dtype.kind == "i" else None


def _mul(u: UOp) -> UOp | None:
    a, b = u.src
    dtype = u.dtype
    if dtype.kind == "f":
        # x * 0 is not 0: x may be infinite, NaN or negative
        return a if b.op is Ops.CONST and b.arg == 1 else None
    if dtype.kind == "b":
        return UOp(Ops.AND, u.src)
    if b.op is Ops.CONST:
        c = int(b.arg)
        if c == 0:
            return const(0, dtype)
        if c == 1:
            return a
        if a.op is Ops.MUL and a.src[1].op is Ops.CONST and a.dtype is dtype:
            return UOp(Ops.MUL, (a.src[0], const(c * int(a.src[1].arg), dtype)))
        # over sums: always for indices; elsewhere only where it costs no multiplication
        if a.op is Ops.ADD and a.dtype is dtype and (dtype.weak or a.src[1].op is Ops.CONST):
            terms: Terms = {}
            k = gather(a, signed(c, dtype), terms, dtype)
            if k is not None and (dtype.weak or len(terms) == 1):
                return build(terms, k, dtype)
        return None
    if not dtype.weak:
        # a constant factor moves outwards
        for x, y in ((a, b), (b, a)):
            if x.op is Ops.MUL and x.src[1].op is Ops.CONST and x.dtype is dtype:
                return UOp(Ops.MUL, (UOp(Ops.MUL, (x.src[0], y)), x.src[1]))
        return None
    return _mul_symbolic(a, b, u)


def _mul_symbolic(a: UOp, b: UOp, u: UOp) -> UOp | None:
    """The product of two index expressions: sums multiplied out while they stay small, factors in order."""
    pa, pb = parse(a, u.dtype), parse(b, u.dtype)
    if pa is None or pb is None:
        return None
    na, nb = len(pa[0]) + bool(pa[1]), len(pb[0]) + bool(pb[1])
    if na * nb > LIMIT // 2:
        return None
    out: Terms = {}
    for x, cx in [*pa[0].items(), *([(None, pa[1])] if pa[1] else [])]:
        for y, cy in [*pb[0].items(), *([(None, pb[1])] if pb[1] else [])]:
            atoms = [*(factors(x)[1] if x is not None else ()), *(factors(y)[1] if y is not None else ())]
            p = product(atoms)
            merge(out, {divmod.ONE if p is None else p: cx * cy}, 1)
    k = out.pop(divmod.ONE, 0)
    return build(out, k, u.dtype)


def _floordiv(u: UOp) -> UOp | None:
    if not _is_int(u.dtype):
        return None
    return divmod.floordiv(u.src[0], u.src[1], u.dtype)


def _floormod(u: UOp) -> UOp | None:
    if not _is_int(u.dtype):
        return None
    return divmod.floormod(u.src[0], u.src[1], u.dtype)


def _truncating(u: UOp) -> UOp | None:
    """CDIV and CMOD: floor division where nothing is negative (indices only: late passes write CDIV on purpose)."""
    a, b = u.src
    if not _is_int(u.dtype):
        return None
    if u.dtype.weak and a.bounds[0] >= 0 and b.bounds[0] > 0:
        return UOp(Ops.FLOORDIV if u.op is Ops.CDIV else Ops.FLOORMOD, u.src)
    if b.op is Ops.CONST and b.arg == 1:
        return a if u.op is Ops.CDIV else const(0, u.dtype)
    if u.op is Ops.CMOD and b.op is Ops.CONST and b.arg > 0 and -b.arg < a.bounds[0] and a.bounds[1] < b.arg:
        return a if u.dtype.weak or in_type(a.bounds, u.dtype) == a.bounds else None
    return None


def _max(u: UOp) -> UOp | None:
    a, b = u.src
    if a is b:
        return a
    if u.dtype.kind == "f":
        return a if b.op is Ops.CONST and b.arg == -math.inf else None
    if u.dtype.kind == "b":
        return UOp(Ops.OR, u.src)
    if a.dtype is not b.dtype:
        return None
    if a.bounds[0] >= b.bounds[1]:
        return a
    if b.bounds[0] >= a.bounds[1]:
        return b
    if b.op is Ops.CONST and a.op is Ops.MAX and a.src[1].op is Ops.CONST:
        return UOp(Ops.MAX, (a.src[0], const(max(int(b.arg), int(a.src[1].arg)), u.dtype)))
    d = _difference(a, b, u.dtype)
    if d is not None:
        low, high = span(*d)
        if low >= 0:
            return a
        if min(high, greatest(*d, u.dtype)) <= 0:
            return b
    return None


def _difference(a: UOp, b: UOp, dtype: DType) -> tuple[Terms, int] | None:
    """Terms of a - b where neither wraps."""
    pa, pb = parse(a, dtype), parse(b, dtype)
    if pa is None or pb is None or not (exact(*pa, dtype) and exact(*pb, dtype)):
        return None
    terms = dict(pa[0])
    merge(terms, pb[0], -1)
    return terms, pa[1] - pb[1]


def _shift(u: UOp) -> UOp | None:
    a, b = u.src
    if b.op is Ops.CONST and b.arg == 0:
        return a
    if b.op is Ops.CONST and u.dtype.weak and 0 < b.arg < 63:
        op = Ops.MUL if u.op is Ops.SHL else Ops.FLOORDIV
        return UOp(op, (a, const(1 << int(b.arg))))
    return a if a.op is Ops.CONST and a.arg == 0 else None


def _bitwise(u: UOp) -> UOp | None:
    """AND, OR and XOR, of bools and of integers."""
    a, b = u.src
    op, dtype = u.op, u.dtype
    if a is b:
        return UOp.const(dtype, 0) if op is Ops.XOR else a
    if dtype.kind == "b":
        return _bool(u)
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


# --- bools and comparisons ---


def _bool(u: UOp) -> UOp | None:
    a, b = u.src
    if u.op is Ops.AND:
        return simplify_and(u)
    if u.op is Ops.XOR:
        return UOp(Ops.CMPNE, u.src)
    if b.op is Ops.CONST:
        return b if b.arg else a
    if _not(a) is b or _not(b) is a:
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


def _not(x: UOp) -> UOp:
    return x.src[0] if x.op is Ops.CMPNE and x.src[1] is TRUE else UOp(Ops.CMPNE, (x, TRUE))


def _compare(u: UOp) -> UOp | None:
    a, b = u.src
    t = operand_type(u)
    if t.kind == "b":
        return _compare_bool(u)
    if t.kind == "f" or a.dtype.kind == "f" or b.dtype.kind == "f":
        return FALSE if a is b and u.op is Ops.CMPLT else None  # NaN differs from itself
    if not _is_int(t) or (a.dtype is not t and b.dtype is not t):
        return None
    if a is b:
        return UOp.const(dtypes.bool, u.op is Ops.CMPEQ)
    d = _difference(a, b, t)
    if d is None:
        return None
    return _less(d[0], d[1], t, u) if u.op is Ops.CMPLT else _equal(d[0], d[1], t, u)


def _compare_bool(u: UOp) -> UOp | None:
    a, b = u.src
    if u.op is Ops.CMPLT:
        return UOp(Ops.AND, (_not(a), b))
    if a is b:
        return UOp.const(dtypes.bool, u.op is Ops.CMPEQ)
    if b.op is not Ops.CONST:
        if u.op is Ops.CMPEQ:
            return _not(UOp(Ops.CMPNE, (a, b)))
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


def _sides(terms: Terms, k: int, t: DType) -> tuple[UOp, UOp] | None:
    """(left, right) with left - right the sum and no negative coefficient; the constant right, or left where nothing else is."""
    left = {a: c for a, c in terms.items() if c > 0}
    right = {a: -c for a, c in terms.items() if c < 0}
    lk, rk = (0, -k) if left else (k, 0)
    if not (exact(left, lk, t) and exact(right, rk, t)):
        return None
    return build(left, lk, t), build(right, rk, t)


def _less(terms: Terms, k: int, t: DType, u: UOp) -> UOp | None:
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
    sides = _sides(terms, k, t)
    return None if sides is None else UOp(Ops.CMPLT, sides)


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
    sides = _sides(terms, k, t)
    return None if sides is None else UOp(u.op, sides)


def _where(u: UOp) -> UOp | None:
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
                return gate if a.arg else _not(gate)
            return UOp(Ops.OR, (gate, b)) if a.arg else UOp(Ops.AND, (_not(gate), b))
        if b.op is Ops.CONST:
            return UOp(Ops.OR, (_not(gate), a)) if b.arg else UOp(Ops.AND, (gate, a))
    if a.op is Ops.Invalid and b.op is not Ops.Invalid:
        return UOp(Ops.WHERE, (_not(gate), b, a))
    return _gated(u) if b.op is Ops.Invalid else None


def _gated(u: UOp) -> UOp | None:
    """An index simplified by what its gate implies."""
    gate, x, invalid = u.src
    if x.dtype is not dtypes.weakint:
        return None
    better = under_gate(gate, x)
    return None if better is None else UOp(Ops.WHERE, (gate, better, invalid))


# --- casts and floats ---


def _cast(u: UOp) -> UOp | None:
    x, to = u.src[0], u.dtype
    if x.dtype is to:
        return x
    if x.op is Ops.CONST:
        return UOp.const(to, x.arg)
    if x.op is Ops.Invalid:
        return UOp.invalid(to)
    if to.kind == "b" and x.dtype.kind in "iu":
        return UOp(Ops.CMPNE, (x, UOp.const(x.dtype, 0)))
    if x.op is Ops.CAST:
        y = x.src[0]
        if _holds(x.dtype, y) and _same_cast(x.dtype, y, to):
            return y.cast(to)
        if (
            _is_int(y.dtype)
            and _is_int(x.dtype)
            and _is_int(to)
            and not to.weak
            and not x.dtype.weak
            and to.bits <= x.dtype.bits
        ):
            return y.cast(to)  # of a wrapped number only the low bits count
    if x.op is Ops.WHERE and x.src[2].op is Ops.Invalid:
        return UOp(Ops.WHERE, (x.src[0], x.src[1].cast(to), UOp.invalid(to)))
    return None


def _holds(middle: DType, x: UOp) -> bool:
    """True where every value `x` has is exactly a value of `middle`."""
    if _is_int(x.dtype) and _is_int(middle):
        return middle.weak or in_type(x.bounds, middle) == x.bounds
    if x.dtype.weak:
        return False
    return middle is not dtypes.weakfloat and can_hold(middle, x.dtype)


def _same_cast(middle: DType, x: UOp, to: DType) -> bool:
    """True where a value is cast alike from `middle` and from its own type (floats saturate in integers, integers wrap)."""
    if middle.kind == "f" and x.dtype.kind != "f":
        return to.kind in "fb" or can_hold(to, x.dtype)
    return True


def _bitcast(u: UOp) -> UOp | None:
    x = u.src[0]
    if x.dtype is u.dtype:
        return x
    if x.op is Ops.BITCAST and x.src[0].dtype.itemsize == u.dtype.itemsize == x.dtype.itemsize:
        return x.src[0].bitcast(u.dtype)
    return None


def _never_negative_zero(x: UOp) -> bool:
    if x.op is Ops.CAST:
        return x.src[0].dtype.kind in "iub"
    if x.op is Ops.CONST:
        return bool(x.arg != 0) or math.copysign(1.0, x.arg) > 0
    if x.op is Ops.ADD:  # -0 only as the sum of two of them
        return any(
            s.op is Ops.CONST and (s.arg != 0 or math.copysign(1.0, s.arg) > 0) or s.op is Ops.EXP2 for s in x.src
        )
    return x.op is Ops.EXP2 or (x.op is Ops.MUL and x.src[0] is x.src[1])


def _add_float(u: UOp) -> UOp | None:
    a, b = u.src
    if b.op is Ops.CONST and b.arg == 0 and (math.copysign(1.0, b.arg) < 0 or _never_negative_zero(a)):
        return a
    return None


def _fdiv(u: UOp) -> UOp | None:
    a, b = u.src
    if b.op is not Ops.CONST or u.dtype.kind != "f":
        return None
    if b.arg == 1:
        return a
    mantissa, exponent = math.frexp(b.arg) if math.isfinite(b.arg) else (0.0, 0)
    # a power of two whose reciprocal is a normal number divides exactly by multiplication
    if abs(mantissa) == 0.5 and abs(exponent) < 2 ** (u.dtype.exponent - 1) - 3:
        return UOp(Ops.MUL, (a, UOp.const(u.dtype, 1.0 / b.arg)))
    return None


def _trunc(u: UOp) -> UOp | None:
    x = u.src[0]
    return x if _is_int(x.dtype) or x.op is Ops.TRUNC or (x.op is Ops.CAST and x.src[0].dtype.kind in "iub") else None


# --- memory and loops ---


def _range(u: UOp) -> UOp | None:
    end = u.src[0]
    return UOp.const(u.dtype, 0) if end.op is Ops.CONST and end.arg == 1 else None


def _closed(u: UOp) -> UOp | None:
    """END and REDUCE without the loops that have become constants."""
    if u.op is Ops.REDUCE and not (isinstance(u.arg, tuple) and len(u.arg) == 2 and u.arg[1] == ()):
        return None
    if not any(s.op is Ops.CONST and s.dtype.kind != "b" for s in u.src[1:]):
        if u.op is Ops.REDUCE and len(u.src) == 1:
            return u.src[0]
        return u.src[0] if u.op is Ops.END and (len(u.src) == 1 or u.src[0].op is Ops.NOOP) else None
    left = tuple([s for s in u.src[1:] if s.op is not Ops.CONST or s.dtype.kind == "b"])
    return UOp(u.op, (u.src[0], *left), u.arg, u.dtype, u.tag) if left else u.src[0]


def _invalid_index(address: UOp) -> bool:
    return address.op is Ops.INDEX and any(i.op is Ops.Invalid for i in address.src[1:])


def _load(u: UOp) -> UOp | None:
    address = u.src[0]
    if _invalid_index(address):
        return u.src[1] if len(u.src) > 1 else UOp.const(u.dtype, 0)
    if len(u.src) == 3 and u.src[2].op is Ops.CONST:
        return UOp(Ops.LOAD, (address,), u.arg, None, u.tag) if u.src[2].arg else u.src[1]
    if len(u.src) == 2 and address.op is Ops.INDEX and not any(_may_be_invalid(i) for i in address.src[1:]):
        return UOp(Ops.LOAD, (address,), u.arg, None, u.tag)
    return None


def _may_be_invalid(i: UOp) -> bool:
    return i.op not in (Ops.CONST, Ops.RANGE, Ops.ADD, Ops.MUL, Ops.FLOORDIV, Ops.FLOORMOD, Ops.SPECIAL, Ops.PARAM)


def _store(u: UOp) -> UOp | None:
    if _invalid_index(u.src[0]) or u.src[1].op is Ops.Invalid:
        return UOp(Ops.NOOP)
    if len(u.src) == 3 and u.src[2].op is Ops.CONST:
        return UOp(Ops.STORE, u.src[:2], u.arg, None, u.tag) if u.src[2].arg else UOp(Ops.NOOP)
    return None


def _effects(u: UOp) -> UOp | None:
    """GROUP and SINK without effects that do nothing."""
    if not any(s.op is Ops.NOOP and not s.src for s in u.src):
        return None
    left = tuple([s for s in u.src if s.op is not Ops.NOOP or s.src])
    if u.op is Ops.GROUP and len(left) < 2:
        return left[0] if left else UOp(Ops.NOOP)
    return UOp(u.op, left, u.arg, None, u.tag)


def _index_of_stack(u: UOp) -> UOp | None:
    """A lane of a vector made of scalars."""
    if (
        len(u.src) == 2
        and u.src[0].op is Ops.STACK
        and u.src[1].op is Ops.CONST
        and 0 <= u.src[1].arg < len(u.src[0].src)
    ):
        return u.src[0].src[int(u.src[1].arg)]
    return None


# --- the table ---


def _elementwise(own: Step | None, decide: bool = True) -> Step:
    """The common steps, then the operation's own. Sums and products of what is not constant need no look at bounds."""

    def step(u: UOp) -> UOp | None:
        r = _fold(u) or _operands(u)
        if r is not None:
            return r
        if u.dtype.weak:
            r = _hoist_invalid(u)
            if r is not None:
                return r
        if decide or not u.dtype.weak:
            r = _decided(u)
            if r is not None:
                return r
        return own(u) if own is not None else None

    return step


def _where_step(u: UOp) -> UOp | None:
    return _where(u) or _operands(u)


_STEPS: dict[Ops, Step] = {
    **{op: _elementwise(None) for op in OpGroup.ALU},
    Ops.ADD: _elementwise(_add, decide=False),
    Ops.SUB: _elementwise(_sub),
    Ops.NEG: _elementwise(_neg),
    Ops.MUL: _elementwise(_mul, decide=False),
    Ops.FLOORDIV: _elementwise(_floordiv),
    Ops.FLOORMOD: _elementwise(_floormod),
    Ops.CDIV: _elementwise(_truncating),
    Ops.CMOD: _elementwise(_truncating),
    Ops.MAX: _elementwise(_max),
    Ops.SHL: _elementwise(_shift),
    Ops.SHR: _elementwise(_shift),
    Ops.AND: _elementwise(_bitwise),
    Ops.OR: _elementwise(_bitwise),
    Ops.XOR: _elementwise(_bitwise),
    Ops.CMPLT: _elementwise(_compare),
    Ops.CMPNE: _elementwise(_compare),
    Ops.CMPEQ: _elementwise(_compare),
    Ops.FDIV: _elementwise(_fdiv),
    Ops.TRUNC: _elementwise(_trunc),
    Ops.WHERE: _where_step,
    Ops.CAST: _cast,
    Ops.BITCAST: _bitcast,
    Ops.RANGE: _range,
    Ops.REDUCE: _closed,
    Ops.END: _closed,
    Ops.LOAD: _load,
    Ops.STORE: _store,
    Ops.GROUP: _effects,
    Ops.SINK: _effects,
    Ops.INDEX: _index_of_stack,
}

# the same steps as rules, for passes that want them beside their own
symbolic = Rules([(Pat(op, name="u"), _step) for op in _STEPS], name="symbolic")
