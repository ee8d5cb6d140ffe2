"""Random index expressions keep their value when they are simplified; simplifying again changes nothing."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aril.dtype import dtypes
from aril.ops import Ops
from aril.uop.linear import const
from aril.uop.node import UOp
from aril.uop.symbolic import simplify
from tests.uop.evaluate import INVALID, evaluate

CONSTANTS = [-1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 24, 28, 32, -2, -3, -4, -8]
DIVISORS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 24, 32, 35]


def expression(rng: random.Random, leaves: list[UOp], depth: int, t=dtypes.weakint) -> UOp:
    """A random integer expression of type `t`."""
    if depth == 0 or rng.random() < 0.1:
        return rng.choice(leaves) if rng.random() < 0.8 else const(rng.choice(CONSTANTS), t)
    x = expression(rng, leaves, depth - 1, t)
    kind = rng.randrange(16)
    if kind == 15 and t is dtypes.weakint:
        return lookup(x)
    kind %= 15
    if kind == 14:
        return x.cast(rng.choice([dtypes.int8, dtypes.uint8, dtypes.int32, dtypes.bool])).cast(t)
    if kind < 4:
        return UOp(Ops.ADD, (x, expression(rng, leaves, depth - 1, t)))
    if kind < 6:
        return UOp(Ops.MUL, (x, const(rng.choice(CONSTANTS), t)))
    if kind < 10:
        op = rng.choice([Ops.FLOORDIV, Ops.FLOORMOD, Ops.FLOORDIV, Ops.FLOORMOD, Ops.CDIV, Ops.CMOD])
        d = rng.choice(DIVISORS)
        return UOp(op, (x, const(-d if rng.random() < 0.1 and t.kind == "i" else d, t)))
    y = expression(rng, leaves, depth - 1, t)
    if kind == 10:
        return UOp(rng.choice([Ops.SUB, Ops.MAX]), (x, y))
    if kind == 11:
        return UOp(Ops.WHERE, (condition(rng, leaves, depth - 1, t), x, y))
    if kind == 12:
        return UOp(Ops.MUL, (x, y))
    return UOp(Ops.NEG, (x,)) if rng.random() < 0.5 else UOp(rng.choice([Ops.AND, Ops.OR, Ops.XOR]), (x, y))


def lookup(i: UOp) -> UOp:
    """An element of a table, at an index that is gated to lie in it."""
    table, zero = UOp.param(0, dtypes.int32, 16), UOp.const(dtypes.int32, 0)
    inside = UOp(Ops.AND, (UOp(Ops.CMPLT, (UOp.lift(-1), i)), UOp(Ops.CMPLT, (i, UOp.lift(16)))))
    return table.index(i.valid(inside)).load(zero).cast(dtypes.weakint)


def condition(rng: random.Random, leaves: list[UOp], depth: int, t=dtypes.weakint) -> UOp:
    """A random condition on expressions of type `t`."""
    if depth > 0 and rng.random() < 0.4:
        a, b = condition(rng, leaves, depth - 1, t), condition(rng, leaves, depth - 1, t)
        kind = rng.randrange(6)
        if kind == 0:
            return UOp(Ops.CMPNE, (a, UOp.const(dtypes.bool, True)))
        if kind == 1:
            return UOp(rng.choice([Ops.XOR, Ops.CMPNE, Ops.CMPEQ]), (a, b))
        return UOp(Ops.AND if kind < 5 else Ops.OR, (a, b))
    x = expression(rng, leaves, depth, t)
    y = const(rng.choice(CONSTANTS), t) if rng.random() < 0.7 else expression(rng, leaves, depth, t)
    op = rng.choice([Ops.CMPLT, Ops.CMPLT, Ops.CMPLT, Ops.CMPNE, Ops.CMPEQ])
    return UOp(op, (x, y) if rng.random() < 0.7 else (y, x))


def leaves_of(rng: random.Random, t=dtypes.weakint) -> list[UOp]:
    if t is dtypes.weakint:
        out = [UOp.range(rng.choice([1, 2, 3, 4, 5, 7, 8, 9, 16, 24]), i) for i in range(3)]
        return [*out, UOp.variable("v", rng.choice([-3, 0, 1]), rng.choice([4, 9]))]
    if rng.random() < 0.5:
        return [UOp.variable(n, 0, hi, t) for n, hi in zip("abcd", (3, 6, 7, 15), strict=True)]
    return [UOp.variable(n, int(t.min), int(t.max), t) for n in "abcd"]


def value_of(rng: random.Random, leaf: UOp) -> int:
    low, high = leaf.bounds
    return rng.choice([low, high, rng.randint(int(low), int(high)), rng.randint(int(low), int(high))])


def check(seed: int, t=dtypes.weakint, points: int = 60) -> None:
    rng = random.Random(seed)
    leaves = leaves_of(rng, t)
    kind = rng.randrange(4)
    depth = rng.randint(1, 4)
    if kind < 2:
        u = expression(rng, leaves, depth, t)
    elif kind == 2 or t is not dtypes.weakint:
        u = condition(rng, leaves, min(depth, 3), t)
    else:
        u = expression(rng, leaves, depth, t).valid(condition(rng, leaves, 2, t))
    s = simplify(u)
    assert s.dtype is u.dtype
    assert simplify(s) is s
    for _ in range(points):
        env = {leaf: value_of(rng, leaf) for leaf in leaves}
        expected, got = evaluate(u, env), evaluate(s, env)
        if expected is INVALID and s.op is not Ops.Invalid:
            assert got is INVALID, f"seed {seed}"
            continue
        assert expected == got, f"seed {seed}: {expected} became {got} at {[(k.arg, v) for k, v in env.items()]}"
        if u.dtype is not dtypes.bool and expected is not INVALID and s.op is not Ops.WHERE:
            assert s.vmin <= got <= s.vmax, f"seed {seed}: {got} outside {s.bounds}"


@settings(max_examples=200)
@given(st.integers(0, 2**48))
def test_index_expressions_keep_their_value(seed):
    check(seed)


@pytest.mark.parametrize("t", [dtypes.int8, dtypes.uint8, dtypes.int32, dtypes.uint32], ids=lambda t: t.name)
@settings(max_examples=60)
@given(seed=st.integers(0, 2**48))
def test_wrapping_types_keep_their_value(t, seed):
    check(seed, t)


def symbolic_expression(rng: random.Random, sizes: list[UOp], rows: list[UOp], depth: int) -> UOp:
    """A random expression of loops with symbolic ends, multiplied and divided by the variables themselves."""
    if depth == 0:
        return rng.choice([*rows, *rows, *sizes, UOp.lift(rng.choice([0, 1, 2, 3]))])
    x = symbolic_expression(rng, sizes, rows, depth - 1)
    size = rng.choice(sizes)
    if rng.random() < 0.3:
        size = UOp(Ops.ADD, (size, UOp.lift(1)))
    match rng.randrange(6):
        case 0 | 1:
            return UOp(Ops.ADD, (x, symbolic_expression(rng, sizes, rows, depth - 1)))
        case 2:
            return UOp(Ops.ADD, (UOp(Ops.MUL, (x, size)), symbolic_expression(rng, sizes, rows, depth - 1)))
        case 3:
            return UOp(Ops.FLOORDIV, (x, size))
        case 4:
            return UOp(Ops.FLOORMOD, (x, size))
    return UOp(rng.choice([Ops.MAX, Ops.SUB]), (x, symbolic_expression(rng, sizes, rows, depth - 1)))


@settings(max_examples=200)
@given(st.integers(0, 2**48))
def test_symbolic_sizes_keep_their_value(seed):
    rng = random.Random(seed)
    sizes = [UOp.variable("n", 1, 9), UOp.variable("m", 2, 5)]
    rows = [UOp.range(sizes[0], 0), UOp.range(sizes[1], 1), UOp.range(UOp(Ops.ADD, (sizes[0], UOp.lift(1))), 2)]
    u = symbolic_expression(rng, sizes, rows, rng.randint(1, 4))
    if rng.random() < 0.4:
        u = UOp(rng.choice([Ops.CMPLT, Ops.CMPEQ]), (u, symbolic_expression(rng, sizes, rows, 2)))
    s = simplify(u)
    assert simplify(s) is s
    for _ in range(40):
        n, m = rng.randint(1, 9), rng.randint(2, 5)
        values = (n, m, rng.randrange(n), rng.randrange(m), rng.randrange(n + 1))
        env = dict(zip([*sizes, *rows], values, strict=True))
        assert evaluate(u, env) == evaluate(s, env), f"seed {seed} at {values}"
