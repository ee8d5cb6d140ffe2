"""How parts of a reduction become one: in trees, over lanes, and for reductions that carry several accumulators.

`REDUCE(TUPLE(x, y, ..), *loops)` with arg `(name, ())` names one of `COMBINES`; GETTUPLE takes its results. In come the
values of two parts, out goes the combination, as nodes. Every combination is associative, so that lanes, copies and
parts may be combined in any grouping.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from aril.codegen.coalesce import lanes_of
from aril.dtype import DType, PyScalar
from aril.ops import Ops
from aril.uop.node import UOp

Values = tuple[UOp, ...]
Part = TypeVar("Part")


@dataclass(frozen=True)
class Combine:
    """`count` accumulators; `identity(types)` and `step(a, b)` give as many values."""

    count: int
    identity: Callable[[tuple[DType, ...]], tuple[PyScalar, ...]]
    step: Callable[[Values, Values], Values]


def _position(a: Values, b: Values) -> Values:
    """(greatest value, greatest mark of those that have it); NaN is greater than all numbers."""
    top = UOp(Ops.MAX, (a[0], b[0]))
    marks = []
    for value, mark in (a, b):
        is_top = UOp(Ops.CMPEQ, (value, top))
        if value.dtype.kind == "f":
            is_top = UOp(Ops.OR, (is_top, UOp(Ops.CMPNE, (value, value))))
        marks.append(UOp(Ops.WHERE, (is_top, mark, mark.const_like(0))))
    return top, UOp(Ops.MAX, tuple(marks))


def _exponentials(a: Values, b: Values) -> Values:
    """(maximum, sum of 2**(x - maximum)), the online softmax of Milakov and Gimelshein (2018)."""
    top = UOp(Ops.MAX, (a[0], b[0]))
    total: UOp | None = None
    for level, amount in (a, b):
        # nothing but -inf so far: the difference of two infinities is not asked for
        empty = UOp(Ops.CMPEQ, (level, level.const_like(-math.inf)))
        factor = UOp(Ops.EXP2, (UOp(Ops.SUB, (level, top)),))
        term = UOp(Ops.WHERE, (empty, amount.const_like(0), UOp(Ops.MUL, (amount, factor))))
        total = term if total is None else UOp(Ops.ADD, (total, term))
    assert total is not None
    return top, total


def _moments(a: Values, b: Values) -> Values:
    """(mean, sum of squared distances from it, count), by the update of Chan, Golub and LeVeque (1979)."""
    count = UOp(Ops.ADD, (a[2], b[2]))
    none = UOp(Ops.CMPEQ, (count, count.const_like(0)))
    share = UOp(Ops.FDIV, (b[2], UOp(Ops.WHERE, (none, count.const_like(1), count))))
    apart = UOp(Ops.SUB, (b[0], a[0]))
    mean = UOp(Ops.ADD, (a[0], UOp(Ops.MUL, (apart, share))))
    between = UOp(Ops.MUL, (UOp(Ops.MUL, (apart, apart)), UOp(Ops.MUL, (a[2], share))))
    return mean, UOp(Ops.ADD, (UOp(Ops.ADD, (a[1], b[1])), between)), count


COMBINES: dict[str, Combine] = {
    "position": Combine(2, lambda types: (types[0].min, 0), _position),
    "exponentials": Combine(2, lambda types: (-math.inf, 0.0), _exponentials),
    "moments": Combine(3, lambda types: (0.0, 0.0, 0.0), _moments),
}


def combine_of(name: str) -> Combine:
    """The combination of that name. Errors: ValueError for one that is not known."""
    if name not in COMBINES:
        raise ValueError(f"{name!r} is no combination of accumulators: expected one of {', '.join(COMBINES)}")
    return COMBINES[name]


def results(reduction: UOp) -> Values:
    """The results of a REDUCE over a TUPLE, or of the TUPLE it has become."""
    if reduction.op is Ops.TUPLE:
        return reduction.src
    return tuple([UOp(Ops.GETTUPLE, (reduction,), i) for i in range(len(reduction.src[0].src))])


def identity(op: Ops, dtype: DType) -> PyScalar:
    """The value that changes nothing when combined by `op`. Errors: ValueError for an operation that has none."""
    if op in (Ops.ADD, Ops.OR, Ops.XOR):
        return False if dtype.kind == "b" else 0
    if op is Ops.MUL:
        return 1
    if op is Ops.MAX:
        return dtype.min
    if op is Ops.AND:
        return True if dtype.kind == "b" else (-1 if dtype.kind == "i" else int(dtype.max))
    raise ValueError(f"{op} is no reduction: expected ADD, MUL, MAX, AND, OR or XOR")


def joined(op: Ops | str, a: UOp, b: UOp) -> UOp:
    """What a reduction by `op` makes of the results of its two parts; a TUPLE for one of several accumulators."""
    if isinstance(op, str):
        return UOp(Ops.TUPLE, combine_of(op).step(results(a), results(b)))
    return UOp(op, (a, b))


def taken(u: UOp, source: UOp) -> UOp:
    """GETTUPLE `u` of what its source has become."""
    return source.src[u.arg] if source.op is Ops.TUPLE else u.with_src((source,))


def combine(op: Ops, a: UOp, b: UOp) -> UOp:
    """One step of a reduction with one accumulator."""
    return UOp(op, (a, b))


def in_tree(step: Callable[[Part, Part], Part], parts: list[Part]) -> Part:
    """All parts combined, in a balanced tree."""
    while len(parts) > 1:
        parts = [step(*parts[i : i + 2]) if i + 1 < len(parts) else parts[i] for i in range(0, len(parts), 2)]
    return parts[0]


def in_lanes(step: Callable[[Values, Values], Values], vectors: Values) -> Values:
    """The lanes of the vectors combined, one scalar each: halves upon halves, so the order is a balanced tree."""
    n = lanes_of(vectors[0])
    while n > 1 and n % 2 == 0:
        n //= 2
        low, high = (tuple([UOp(Ops.SHRINK, (x,), (k * n, n)) for x in vectors]) for k in (0, 1))
        vectors = step(low, high)
    return in_tree(step, [tuple([x.index(i) for x in vectors]) for i in range(n)])
