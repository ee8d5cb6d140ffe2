"""Lowering: random chains of movement operations, reductions inside them, and gates, against the NumPy evaluator."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from aril.ops import Ops
from aril.uop import UOp
from aril.uop.shape import expand, flip, pad, permute, reduce, reshape, shear, shrink
from tests.schedule.graphs import check, put


def factors(n: int, draw: st.DrawFn) -> tuple[int, ...]:
    """A random shape of `n` elements."""
    out = []
    while n > 1 and len(out) < 4:
        divisors = [d for d in range(1, n + 1) if n % d == 0]
        d = draw(st.sampled_from(divisors))
        out.append(d)
        n //= d
    return (*out, n) if n > 1 or not out else tuple(out)


@st.composite
def moved(draw: st.DrawFn, x: UOp, steps: int) -> UOp:
    """`x` under a random chain of movement operations."""
    for _ in range(steps):
        shape = x.shape
        n = len(shape)
        kind = draw(st.sampled_from(["reshape", "permute", "pad", "shrink", "flip", "expand", "window", "sum"]))
        if kind == "reshape":
            x = reshape(x, factors(math.prod(shape), draw))
        elif kind == "permute" and n:
            x = permute(x, tuple(draw(st.permutations(range(n)))))
        elif kind == "pad" and math.prod(shape) < 400:
            x = pad(
                x,
                tuple((draw(st.integers(0, 2)), draw(st.integers(0, 2))) for _ in shape),
                draw(st.sampled_from([0, 0, 7])),
            )
        elif kind == "shrink" and n:
            starts = [draw(st.integers(0, d - 1)) for d in shape]
            x = shrink(x, tuple((s, draw(st.integers(1, d - s))) for s, d in zip(starts, shape, strict=True)))
        elif kind == "flip" and n:
            x = flip(x, tuple(draw(st.sets(st.integers(0, n - 1)))))
        elif kind == "expand" and math.prod(shape) < 400:
            x = expand(reshape(x, (*shape, 1)), (*shape, draw(st.integers(2, 3))))
        elif kind == "window" and n and math.prod(shape) < 400:
            axis = draw(st.integers(0, n - 1))
            k = draw(st.integers(1, min(3, shape[axis])))
            wide = expand(reshape(x, (*shape, 1)), (*shape, k))
            x = shear(wide, axis, n, 1, 0, shape[axis] - k + 1)
        elif kind == "sum" and n:
            x = reduce(
                x, draw(st.sampled_from([Ops.ADD, Ops.MAX])), tuple(draw(st.sets(st.integers(0, n - 1), min_size=1)))
            )
    return x


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_random_chains_agree_with_numpy(data: st.DataObject) -> None:
    """Whatever the chain of movements and reductions, every element is the one NumPy finds."""
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple))
    x = put(np.arange(1, math.prod(shape) + 1, dtype=np.float32).reshape(shape))
    u = data.draw(moved(x, data.draw(st.integers(1, 5))))
    check(UOp(Ops.ADD, (u, UOp.lift(1.0))))


def test_a_reshape_matches_axes_in_the_smallest_blocks() -> None:
    """Axes of equal size pass through a reshape without division."""
    from aril.schedule.lower import reshape_index

    i, j, k = (UOp.range(n, n) for n in (6, 5, 4))
    assert reshape_index((i, j, k), (6, 5, 4), (2, 3, 5, 4))[2:] == (j, k)
    assert reshape_index((i, j, k), (6, 5, 4), (6, 1, 20))[0] is i


def test_reductions_at_one_place_share_their_loop() -> None:
    """sum(x) and sum(x*x) of a row run in one loop; a reduction that needs another has a loop of its own."""
    from aril.schedule.lower import lower

    x = reshape(UOp.param(1, "float32", 32), (4, 8))
    a, b = reduce(x, Ops.ADD, (1,)), reduce(UOp(Ops.MUL, (x, x)), Ops.ADD, (1,))
    out = reshape(UOp.param(0, "float32", 4), (4, 1))
    both = lower(UOp.sink(UOp(Ops.STORE, (out, UOp(Ops.ADD, (a, b))))))
    assert sum(u.op is Ops.RANGE for u in both.toposort()) == 2
    second = reduce(UOp(Ops.MUL, (x, expand(a, (4, 8)))), Ops.ADD, (1,))
    chained = lower(UOp.sink(UOp(Ops.STORE, (out, second))))
    assert sum(u.op is Ops.RANGE for u in chained.toposort()) == 3


def test_a_shear_must_stay_inside_its_source() -> None:
    """Windows that reach outside of the axis are refused where they are made."""
    import pytest

    with pytest.raises(IndexError, match="pad it first"):
        shear(put(np.zeros((4, 3), np.float32)), 0, 1, 1, 0, 4)


def test_a_pad_around_a_pad_keeps_both_fills() -> None:
    """An element that the inner pad adds has the inner fill, whatever the outer one fills with."""
    x = put(np.array([1.0], np.float32))
    check(UOp(Ops.ADD, (pad(pad(x, ((0, 1),), 0), ((0, 1),), 7), UOp.lift(1.0))))
