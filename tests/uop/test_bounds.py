"""Bounds contain every value an operation gives, and are tight where they decide something."""

import itertools

import numpy as np
import pytest

from aril.dtype import dtypes
from aril.ops import Ops
from aril.uop import UOp

NUMPY = {
    Ops.ADD: np.add, Ops.SUB: np.subtract, Ops.MUL: np.multiply, Ops.MAX: np.maximum, Ops.AND: np.bitwise_and,
    Ops.OR: np.bitwise_or, Ops.XOR: np.bitwise_xor, Ops.FLOORDIV: np.floor_divide, Ops.FLOORMOD: np.mod,
    Ops.CDIV: lambda a, b: np.trunc(a.astype(float) / np.where(b == 0, 1, b)).astype(a.dtype) * (b != 0),
    Ops.CMOD: lambda a, b: np.where(b == 0, 0, np.fmod(a, np.where(b == 0, 1, b))),
    Ops.CMPLT: np.less, Ops.CMPNE: np.not_equal, Ops.CMPEQ: np.equal,
}  # fmt: skip


@pytest.mark.parametrize("op", list(NUMPY), ids=lambda o: o.name)
@pytest.mark.parametrize("t", [dtypes.int8, dtypes.uint8], ids=lambda t: t.name)
def test_bounds_hold_on_every_pair_of_bytes(op, t):
    edges = [(-128, 127), (-3, 5), (0, 9), (2, 2), (-7, -2), (100, 127), (1, 4)]
    if t is dtypes.uint8:
        edges = [(0, 255), (0, 9), (2, 2), (200, 255), (1, 4)]
    for (a0, a1), (b0, b1) in itertools.product(edges, edges):
        u = UOp(op, (UOp.variable("a", a0, a1, t), UOp.variable("b", b0, b1, t)))
        a, b = np.meshgrid(np.arange(a0, a1 + 1).astype(t.name), np.arange(b0, b1 + 1).astype(t.name))
        with np.errstate(all="ignore"):
            values = NUMPY[op](a, b)
        assert u.vmin <= values.min() and values.max() <= u.vmax, (op, (a0, a1), (b0, b1), u.bounds)


def test_loops_and_variables():
    n = UOp.variable("n", 1, 10)
    assert UOp.range(7, 0).bounds == (0, 6)
    assert UOp.range(n, 0).bounds == (0, 9)
    assert UOp.special(16, "gidx0").bounds == (0, 15)
    assert n.bind(3).bounds == (1, 10)


def test_the_weak_integer_is_not_bounded_by_any_width():
    x = UOp.variable("x", 0, 2**40)
    assert UOp(Ops.MUL, (x, UOp.lift(2**40))).bounds == (0, 2**80)
    y = UOp.variable("y", 0, 2**20, dtypes.int32)
    assert UOp(Ops.MUL, (y, UOp.const(dtypes.int32, 2**20))).bounds == (-(2**31), 2**31 - 1)


def test_what_decides_a_condition():
    r = UOp.range(8, 0)
    assert UOp(Ops.CMPLT, (r, UOp.lift(8))).bounds == (True, True)
    assert UOp(Ops.CMPLT, (r, UOp.lift(0))).bounds == (False, False)
    assert UOp(Ops.CMPLT, (r, UOp.lift(7))).bounds == (False, True)
    assert UOp(Ops.CMPEQ, (r, UOp.lift(9))).bounds == (False, False)


def test_invalid_does_not_count():
    r = UOp.range(8, 0)
    assert r.valid(UOp(Ops.CMPLT, (r, UOp.lift(4)))).bounds == (0, 7)


def test_floats_are_unbounded_but_for_constants():
    f = UOp.param(0, dtypes.float32, 4).index(UOp.lift(0)).load()
    assert f.bounds == (-float("inf"), float("inf"))
    assert UOp.const(dtypes.float32, 2.5).bounds == (2.5, 2.5)
    assert UOp(Ops.CMPLT, (f, f)).bounds == (False, True)


def test_casts():
    r = UOp.range(300, 0)
    assert r.cast(dtypes.int32).bounds == (0, 299)
    assert r.cast(dtypes.int8).bounds == (-128, 127)
    assert UOp(Ops.CMPLT, (r, UOp.lift(3))).cast(dtypes.int32).bounds == (0, 1)


def test_reductions():
    r, s = UOp.range(8, 0), UOp.range(5, 1)
    assert UOp(Ops.REDUCE, (r, s), (Ops.ADD, ())).bounds == (0, 35)
    assert UOp(Ops.REDUCE, (r, s), (Ops.MAX, ())).bounds == (0, 7)


def test_the_lesser_of_two_is_below_both():
    i = UOp.range(10, 0)
    least = UOp(Ops.WHERE, (UOp(Ops.CMPLT, (i * 8, UOp.integer(70))), i * 8, UOp.integer(70)))
    assert least.bounds == (0, 70)
