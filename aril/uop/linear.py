"""Sums of products: the canonical form of integer arithmetic, shared by all rules on indices.

In: a simplified integer expression. Out: its terms (atom -> coefficient) and constant, and back: `build` writes the one
expression a sum has, terms in the order of the loops they depend on, outermost first, the constant last.
"""

from __future__ import annotations

import math
from typing import Any

from aril.dtype import DType, dtypes, wrap
from aril.ops import Ops
from aril.uop.node import UOp

Terms = dict[UOp, int]
Linear = tuple[Terms, int]
LIMIT = 48  # sums of more terms are left as they are: gathering them again at every addition would be quadratic

Key = tuple[Any, ...]


def is_int(dtype: DType) -> bool:
    """True for integers, the weak one included; bool is none."""
    return dtype.kind in "iu"


def const(value: int, dtype: DType = dtypes.weakint) -> UOp:
    """An integer constant of `dtype`, wrapped to it."""
    return UOp(Ops.CONST, (), wrap(value, dtype), dtype)


def order_key(u: UOp) -> Key:
    """Where a term stands in a sum: by its innermost loop, variables first. The same in every process."""
    if u.op is Ops.RANGE:
        return (int(u.arg.kind), u.arg.id, 0, u.digest)
    live = u.ranges
    if live:
        kind, ids = max([(int(r.arg.kind), r.arg.id) for r in live])
        return (kind, ids, 1, u.digest)
    return (-1, (), int(u.op), u.arg.name if u.op is Ops.PARAM and u.arg.name else "", u.digest)


def _key(item: tuple[UOp, int]) -> Key:
    return order_key(item[0])


def signed(c: int, dtype: DType) -> int:
    """A coefficient of a wrapping type as the representative nearest zero."""
    if dtype.weak:
        return c
    half = 1 << (dtype.bits - 1)
    return (c + half) % (2 * half) - half


def parse(u: UOp, dtype: DType) -> Linear | None:
    """Terms and constant of `u` within arithmetic of `dtype`; None where it has more terms than `LIMIT`."""
    terms: Terms = {}
    k = gather(u, 1, terms, dtype)
    return None if k is None else (terms, k)


def gather(u: UOp, scale: int, terms: Terms, dtype: DType) -> int | None:
    """Add `scale * u` to `terms`; returns what it adds to the constant, None past `LIMIT`."""
    total = 0
    stack = [u]
    steps = 0
    while stack:
        u = stack.pop()
        steps += 1
        if steps > 2 * LIMIT:
            return None
        op = u.op
        if op is Ops.CONST:
            total += scale * int(u.arg)
            continue
        if op is Ops.ADD and u.dtype.kind != "b":
            stack.append(u.src[1])
            stack.append(u.src[0])
            continue
        c = scale
        if op is Ops.MUL and u.src[1].op is Ops.CONST and u.dtype.kind != "b":
            c *= signed(u.src[1].arg, u.dtype)
            u = u.src[0]
        c += terms.pop(u, 0)
        if c:
            terms[u] = c
    return None if len(terms) > LIMIT else total


_PAIRS = frozenset({Ops.FLOORDIV, Ops.FLOORMOD})


def build(terms: Terms, k: int, dtype: DType, final: bool = False) -> UOp:
    """The canonical expression of a sum, of type `dtype`.

    Its parts are marked as simplified where the terms are and cannot combine further (`final`: they have been).
    """
    items = list(terms.items())
    if len(items) > 1:
        items.sort(key=_key)
        final = final or sum([a.op in _PAIRS for a in terms]) < 2
    else:
        final = True
    weak = dtype.weak
    out: UOp | None = None
    for atom, c in items:
        if not weak:
            c = signed(c, dtype)
        if c == 0:
            continue
        final = final and atom._simplified is True
        if c == 1:
            t = atom
        else:
            t = UOp(Ops.MUL, (atom, UOp(Ops.CONST, (), wrap(c, dtype), dtype)))
            if final and atom.op is not Ops.MUL and atom.op is not Ops.ADD:
                t._simplified = True
            else:
                final = False
        if out is None:
            out = t
        else:
            out = UOp(Ops.ADD, (out, t))
            if final and weak:
                out._simplified = True
    if out is None:
        return const(k, dtype)
    k = int(wrap(k, dtype))
    if k:
        out = UOp(Ops.ADD, (out, UOp(Ops.CONST, (), k, dtype)))
        if final and weak:
            out._simplified = True
    return out if out.dtype is dtype else UOp(Ops.CAST, (out,), None, dtype)


def span(terms: Terms, k: int) -> tuple[int, int]:
    """Least and greatest value of a sum, computed without wrapping."""
    low = high = k
    for atom, c in terms.items():
        a, b = atom.bounds
        if c > 0:
            low += c * a
            high += c * b
        else:
            low += c * b
            high += c * a
    return int(low), int(high)


def exact(terms: Terms, k: int, dtype: DType) -> bool:
    """True where the sum cannot wrap, so that it is its mathematical value."""
    if dtype.weak:
        return True
    low, high = span(terms, k)
    return bool(low >= dtype.min and high <= dtype.max)


def factors(u: UOp) -> tuple[int, tuple[UOp, ...]]:
    """(coefficient, atoms) of a product."""
    c = 1
    atoms: list[UOp] = []
    stack = [u]
    while stack:
        u = stack.pop()
        if u.op is Ops.CONST:
            c *= int(u.arg)
        elif u.op is Ops.MUL:
            stack.extend((u.src[1], u.src[0]))
        else:
            atoms.append(u)
    return c, tuple(atoms)


def product(atoms: tuple[UOp, ...] | list[UOp]) -> UOp | None:
    """The canonical product of atoms; None where there are none."""
    out: UOp | None = None
    for a in sorted(atoms, key=order_key) if len(atoms) > 1 else atoms:
        out = a if out is None else UOp(Ops.MUL, (out, a))
    return out


def common_factor(u: UOp) -> int:
    """A number that every value of `u` is a multiple of (0 for the constant 0)."""
    if u.op is Ops.CONST and u.dtype.kind in "iu":
        return abs(int(u.arg))
    if u.op is Ops.PARAM:
        return int(u.arg.multiple_of)
    if not u.dtype.weak:  # a wrapped value keeps powers of two only; not needed
        return 1
    if u.op is Ops.ADD:
        found = parse(u, u.dtype)
        return 1 if found is None else math.gcd(found[1], *[c * common_factor(a) for a, c in found[0].items()])
    if u.op is Ops.MUL:
        c, atoms = factors(u)
        return abs(c) * math.prod(int(a.arg.multiple_of) for a in atoms if a.op is Ops.PARAM)
    return 1


def merge(into: Terms, terms: Terms, scale: int) -> None:
    """into += scale * terms."""
    for a, c in terms.items():
        n = into.pop(a, 0) + scale * c
        if n:
            into[a] = n


def divide_poly(terms: Terms, k: int, d: UOp, dtype: DType) -> tuple[Terms, int, Terms, int] | None:
    """Quotient and remainder of a sum by a symbolic divisor: multiples of its leading product are divided, the rest
    remains. None where nothing divides.
    """
    parsed = parse(d, dtype)
    if parsed is None or not parsed[0]:
        return None
    lead, lead_c = next(iter(sorted(parsed[0].items(), key=lambda e: (-len(factors(e[0])[1]), order_key(e[0])))))
    lead_atoms = factors(lead)[1]
    rest, rest_k = dict(terms), k
    quotient: Terms = {}
    quotient_k = 0
    for _ in range(8):
        for atom, c in rest.items():
            if c % lead_c:
                continue
            left = list(factors(atom)[1])
            try:
                for f in lead_atoms:
                    left.remove(f)
            except ValueError:
                continue
            break
        else:
            break
        q = c // lead_c
        p = product(left)
        if p is None:
            quotient_k += q
            merge(rest, parsed[0], -q)
            rest_k -= q * parsed[1]
            continue
        merge(quotient, {p: q}, 1)
        for atom, dc in parsed[0].items():
            m = product([*left, *factors(atom)[1]])
            merge(rest, {m: 1}, -q * dc)  # type: ignore[dict-item]
        merge(rest, {p: 1}, -q * parsed[1])
    return (quotient, quotient_k, rest, rest_k) if quotient or quotient_k else None


def raise_ranges(terms: Terms, k: int, dtype: DType) -> Linear:
    """The sum with each loop variable of symbolic length put at its end where that makes the sum greatest."""
    out: Terms = {}
    for atom, c in terms.items():
        if atom.op is Ops.RANGE and atom.src[0].op is not Ops.CONST:
            if c < 0:  # its least value is 0
                continue
            found = parse(atom.src[0], dtype)
            if found is not None:
                merge(out, found[0], c)
                k += c * (found[1] - 1)
                continue
        merge(out, {atom: c}, 1)
    return out, k


def greatest(terms: Terms, k: int, dtype: DType) -> int:
    """An upper bound of the sum that also uses symbolic loop lengths."""
    high = span(terms, k)[1]
    if dtype.weak and any(a.op is Ops.RANGE and a.src[0].op is not Ops.CONST for a in terms):
        high = min(high, span(*raise_ranges(terms, k, dtype))[1])
    return high
