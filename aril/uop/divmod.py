"""Floor division and remainder of index expressions: what can be taken out, cancelled or decided by bounds.

In: a simplified dividend and divisor. Out: the simpler expression, or None where it is in canonical form already. The
quotient and the remainder of one dividend are reduced alike, so that `(x // c) * c + x % c` finds itself again.
"""

from __future__ import annotations

import math

from aril.dtype import DType
from aril.ops import Ops
from aril.uop.linear import (
    Linear,
    Terms,
    build,
    common_factor,
    const,
    divide_poly,
    exact,
    greatest,
    merge,
    parse,
    signed,
    span,
)  # fmt: skip
from aril.uop.node import UOp


def _residue(a: int, c: int) -> int:
    """a mod c with the sign of a: small coefficients stay as they are, negative ones negative."""
    return a % c if a >= 0 else -(-a % c)


def _window(terms: Terms, k: int, c: int) -> int | None:
    """m where the sum lies in [m*c, (m+1)*c) always."""
    low, high = span(terms, k)
    m = low // c
    return m if m == high // c else None


def _reduce(terms: Terms, k: int, c: int, dtype: DType) -> tuple[Terms, int, int | None]:
    """The sum modulo c: (terms, constant, window). Coefficients shrink; a residue that decides is preferred."""
    rest: Terms = {}
    for atom, a in terms.items():
        r = _residue(a, c)
        if r and (r * common_factor(atom)) % c:
            rest[atom] = r
    k %= c
    m = _window(rest, k, c)
    if m is None and rest:
        nearest = {atom: r - c if 2 * r > c else r + c if 2 * r < -c else r for atom, r in rest.items()}
        for other in (nearest, {a: r % c for a, r in rest.items()}, {a: r % c - c for a, r in rest.items()}):
            found = _window(other, k, c) if other != rest else None
            if found is not None:
                rest, m = other, found
                break
    return rest, k, m


def _inside(rest: Terms, c: int, dtype: DType) -> Terms:
    """Remainders below a remainder by a multiple: (y % m) modulo c is y where c divides m."""
    for _ in range(4):
        todo = [
            (atom, r)
            for atom, r in rest.items()
            if atom.op is Ops.FLOORMOD and atom.src[1].op is Ops.CONST and (r * int(atom.src[1].arg)) % c == 0
        ]
        if not todo:
            return rest
        rest = dict(rest)
        for atom, r in todo:
            found = _linear(atom.src[0], dtype)
            if found is None:
                return rest
            del rest[atom]
            merge(rest, found[0], r)
            if found[1]:
                rest[ONE] = rest.get(ONE, 0) + r * found[1]
    return rest


ONE = const(1)  # stands for the constant where terms travel without one


def _split(rest: Terms, k: int, c: int) -> tuple[int, Terms, int, Terms, int, int] | None:
    """(g, A, ka, B, kb, m): the sum is A + ka + B + kb; g divides c and A + ka; B + kb lies in [m*g, (m+1)*g)."""
    candidates = {g for a in rest.values() if (g := math.gcd(a, c)) > 1}
    for g in sorted(candidates, reverse=True):
        big = {a: r for a, r in rest.items() if r % g == 0}
        small = {a: r for a, r in rest.items() if r % g}
        kb = k % g
        m = _window(small, kb, g)
        if m is not None and (small or kb):
            return g, big, k - kb, small, kb, m
    return None


def _linear(x: UOp, dtype: DType) -> Linear | None:
    found = parse(x, dtype)
    return found if found is not None and exact(*found, dtype) else None


def floordiv(x: UOp, y: UOp, dtype: DType) -> UOp | None:
    """x // y rounded down."""
    if y.op is not Ops.CONST:
        return _symbolic(x, y, dtype, True)
    c = signed(int(y.arg), dtype) if dtype.kind == "i" else int(y.arg)
    if c == 1:
        return x
    if c == 0:
        return None
    found = _linear(x, dtype)
    if found is None:
        return None
    terms, k = found
    if c < 0:
        terms, k, c = {a: -r for a, r in terms.items()}, -k, -c
        if c == 1:
            return build(terms, k, dtype) if exact(terms, k, dtype) else None
        return UOp(Ops.FLOORDIV, (build(terms, k, dtype), const(c, dtype))) if exact(terms, k, dtype) else None
    rest, rk, m = _reduce(terms, k, c, dtype)
    if m is None:  # terms that divide go out; others stay whole: parts of them outside would be more work
        rest = {a: n for a, n in terms.items() if (n * common_factor(a)) % c}
    # what the rest leaves out is divisible
    quotient: Terms = {a: (n - rest.get(a, 0)) // c for a, n in terms.items() if (n - rest.get(a, 0)) % c == 0}
    if len(quotient) < len(terms):
        return _by_factors(terms, k, c, dtype)
    quotient = {a: q for a, q in quotient.items() if q}
    qk = (k - rk) // c
    if m is not None:
        return _checked(quotient, qk + m, dtype)
    if not exact(rest, rk, dtype):
        return None
    inner = _div_rest(rest, rk, c, dtype)
    if inner is None:
        if not quotient and not qk:
            return None
        inner = UOp(Ops.FLOORDIV, (build(rest, rk, dtype), const(c, dtype)))
    merge(quotient, {inner: 1}, 1)
    return _checked(quotient, qk, dtype)


def _by_factors(terms: Terms, k: int, c: int, dtype: DType) -> UOp | None:
    """Division where a term is divisible only through what is known of its atom (a variable's `multiple_of`): it stays
    whole beside the rest, which may still vanish by bounds."""
    whole = {a: n for a, n in terms.items() if (n * common_factor(a)) % c == 0}
    others = {a: n for a, n in terms.items() if a not in whole}
    m = _window(others, k, c)
    if not exact(whole, 0, dtype):
        return None
    if m is None or (not others and k == 0 and m == 0):
        g = math.gcd(c, *whole.values())
        if g > 1 and m is not None:
            return UOp(Ops.FLOORDIV, (build({a: n // g for a, n in whole.items()}, 0, dtype), const(c // g, dtype)))
        return None
    left = UOp(Ops.FLOORDIV, (build(whole, 0, dtype), const(c, dtype)))
    return UOp(Ops.ADD, (left, const(m, dtype))) if m else left


def _checked(terms: Terms, k: int, dtype: DType) -> UOp | None:
    return build(terms, k, dtype) if exact(terms, k, dtype) else None


def _div_rest(rest: Terms, k: int, c: int, dtype: DType) -> UOp | None:
    """Division of a sum whose coefficients are below c already."""
    div = Ops.FLOORDIV
    g = math.gcd(c, *rest.values())
    if g > 1:
        return UOp(div, (build({a: r // g for a, r in rest.items()}, k // g, dtype), const(c // g, dtype)))
    if len(rest) == 1:
        (atom, r), *_ = rest.items()
        d = atom.src[1] if atom.op in (div, Ops.FLOORMOD) else None
        if r == 1 and d is not None and d.op is Ops.CONST and d.arg > 0:
            n = int(d.arg)
            if atom.op is div:  # (y // n + k) // c
                found = parse(atom.src[0], dtype)
                if (
                    found is not None
                    and (dtype.weak or n * c <= dtype.max)
                    and exact(found[0], found[1] + k * n, dtype)
                ):
                    return UOp(div, (build(found[0], found[1] + k * n, dtype), const(n * c, dtype)))
            elif k == 0 and n % c == 0:  # (y % n) // c
                return UOp(Ops.FLOORMOD, (UOp(div, (atom.src[0], const(c, dtype))), const(n // c, dtype)))
    found2 = _split(rest, k, c)
    if found2 is not None:
        g, big, ka, _, _, m = found2
        return UOp(div, (build({a: r // g for a, r in big.items()}, ka // g + m, dtype), const(c // g, dtype)))
    return None


def floormod(x: UOp, y: UOp, dtype: DType) -> UOp | None:
    """x - (x // y) * y."""
    if y.op is not Ops.CONST:
        return _symbolic(x, y, dtype, False)
    c = signed(int(y.arg), dtype) if dtype.kind == "i" else int(y.arg)
    if c == 0:
        return None
    if c in (1, -1):
        return const(0, dtype)
    found = _linear(x, dtype)
    if found is None:
        return None
    terms, k = found
    if c < 0:
        terms = {a: -r for a, r in terms.items()}
        if not exact(terms, -k, dtype):
            return None
        inner = UOp(Ops.FLOORMOD, (build(terms, -k, dtype), const(-c, dtype)))
        return UOp(Ops.MUL, (inner, const(-1, dtype)))
    rest = _inside(terms, c, dtype)
    rest, rk, m = _reduce(rest, k + rest.pop(ONE, 0), c, dtype)
    if m is not None:
        return _checked(rest, rk - m * c, dtype)
    if not exact(rest, rk, dtype):
        return None
    g = math.gcd(c, *rest.values())
    if g > 1:
        inner = UOp(Ops.FLOORMOD, (build({a: r // g for a, r in rest.items()}, rk // g, dtype), const(c // g, dtype)))
        return _scaled(inner, g, {}, rk % g, dtype)
    found2 = _split(rest, rk, c)
    if found2 is not None:
        g, big, ka, small, kb, m = found2
        inner = UOp(
            Ops.FLOORMOD, (build({a: r // g for a, r in big.items()}, ka // g + m, dtype), const(c // g, dtype))
        )
        return _scaled(inner, g, small, kb - m * g, dtype)
    if rest == terms and rk == k:
        return None
    return UOp(Ops.FLOORMOD, (build(rest, rk, dtype), const(c, dtype)))


def _scaled(inner: UOp, g: int, more: Terms, k: int, dtype: DType) -> UOp:
    terms: Terms = {inner: g}
    merge(terms, more, 1)
    return build(terms, k, dtype)


def _symbolic(x: UOp, d: UOp, dtype: DType, quotient: bool) -> UOp | None:
    """Division by an expression known to be positive."""
    if not dtype.weak or d.bounds[0] <= 0:
        return None
    found = parse(x, dtype)
    if found is None:
        return None
    divided = divide_poly(*found, d, dtype) or ({}, 0, *found)
    q, qk, rest, rk = divided
    if span(rest, rk)[0] < 0:
        return None
    # rest < d: the greatest of rest - d is below zero
    less: Terms = dict(rest)
    parsed = parse(d, dtype)
    if parsed is None:
        return None
    merge(less, parsed[0], -1)
    if greatest(less, rk - parsed[1], dtype) >= 0:
        if quotient and (q or qk):
            left = UOp(Ops.FLOORDIV, (build(rest, rk, dtype), d))
            merge(q, {left: 1}, 1)
            return build(q, qk, dtype)
        return UOp(Ops.FLOORMOD, (build(rest, rk, dtype), d)) if q or qk else None
    return build(q, qk, dtype) if quotient else build(rest, rk, dtype)


def recombine(terms: Terms, dtype: DType) -> bool:
    """Put together quotient and remainder of one dividend: (y // a) * a * k + (y % a) * k is y * k. A remainder of the
    quotient completes a longer one: ((y // a) % b) * a * k + (y % a) * k is (y % (a * b)) * k. True if `terms` changed.
    """
    mods = [a for a in terms if a.op is Ops.FLOORMOD and a.src[1].op is Ops.CONST and a.src[1].arg > 0]
    for mod in mods:
        a, k = int(mod.src[1].arg), terms[mod]
        low = _linear(mod.src[0], dtype)
        if low is None:
            continue
        for high, n in terms.items():
            if high is mod or n != k * a or high.op not in (Ops.FLOORDIV, Ops.FLOORMOD):
                continue
            if high.op is Ops.FLOORDIV:
                y = _dividend({high: 1}, 0, a, low, dtype)
            elif high.src[1].op is Ops.CONST and high.src[1].arg > 0 and dtype.weak:
                q = parse(high.src[0], dtype)
                y = None if q is None else _dividend(*q, a, low, dtype)
                if y is not None:
                    longer = UOp(Ops.FLOORMOD, (build(*y, dtype), const(a * int(high.src[1].arg), dtype)))
                    y = ({longer: 1}, 0)
            else:
                continue
            if y is None:
                continue
            del terms[mod]
            del terms[high]
            merge(terms, y[0], k)
            if y[1]:
                terms[ONE] = terms.get(ONE, 0) + k * y[1]
            return True
    return False


def _dividend(terms: Terms, k: int, a: int, low: Linear, dtype: DType) -> Linear | None:
    """y where the sum is y // a and y is `low` modulo a: one term is such a quotient, the rest goes back into it."""
    for q, n in terms.items():
        if n != 1 or q.op is not Ops.FLOORDIV or q.src[1].op is not Ops.CONST or q.src[1].arg != a:
            continue
        y = _linear(q.src[0], dtype)
        if y is None:
            continue
        difference = dict(y[0])
        merge(difference, low[0], -1)
        if (y[1] - low[1]) % a or any(c % a for c in difference.values()):
            continue
        out = dict(y[0])
        merge(out, {t: c for t, c in terms.items() if t is not q}, a)
        return out, y[1] + a * k
    return None
