"""Constants fold as NumPy computes them; float rules hold for NaN, infinities and both zeros."""

import itertools
import math

import ml_dtypes
import numpy as np
import pytest

from aril.dtype import dtypes
from aril.ops import Ops
from aril.uop import UOp
from aril.uop.alu import exec_alu
from aril.uop.symbolic import simplify

INTS = [
    dtypes.int8,
    dtypes.uint8,
    dtypes.int16,
    dtypes.uint16,
    dtypes.int32,
    dtypes.uint32,
    dtypes.int64,
    dtypes.uint64,
]
FLOATS = {
    dtypes.float16: np.float16,
    dtypes.bfloat16: ml_dtypes.bfloat16,
    dtypes.float32: np.float32,
    dtypes.float64: np.float64,
}
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, 3.0, -2.5, math.inf, -math.inf, math.nan, 1e-30, 65504.0, 3e38]

NUMPY_INT = {
    Ops.ADD: np.add, Ops.SUB: np.subtract, Ops.MUL: np.multiply, Ops.MAX: np.maximum, Ops.AND: np.bitwise_and,
    Ops.OR: np.bitwise_or, Ops.XOR: np.bitwise_xor, Ops.FLOORDIV: np.floor_divide, Ops.FLOORMOD: np.mod,
    Ops.CMOD: np.fmod, Ops.CMPLT: np.less, Ops.CMPNE: np.not_equal, Ops.CMPEQ: np.equal,
}  # fmt: skip
NUMPY_FLOAT = {
    Ops.ADD: np.add, Ops.SUB: np.subtract, Ops.MUL: np.multiply, Ops.FDIV: np.divide, Ops.MAX: np.maximum,
    Ops.CMPLT: np.less, Ops.CMPNE: np.not_equal, Ops.CMPEQ: np.equal,
}  # fmt: skip
NUMPY_UNARY = {
    Ops.NEG: np.negative, Ops.SQRT: np.sqrt, Ops.TRUNC: np.trunc, Ops.EXP2: np.exp2, Ops.LOG2: np.log2, Ops.SIN: np.sin,
    Ops.RECIPROCAL: lambda x: np.divide(x.dtype.type(1), x),
}  # fmt: skip


def same(a, b):
    return (a != a and b != b) or (a == b and math.copysign(1, float(a)) == math.copysign(1, float(b)))


@pytest.mark.parametrize("op", list(NUMPY_INT), ids=lambda o: o.name)
@pytest.mark.parametrize("t", INTS, ids=lambda t: t.name)
def test_integers_fold_as_numpy_does(op, t):
    low, high = int(t.min), int(t.max)
    values = sorted({v for v in (low, low + 1, -7, -1, 0, 1, 2, 3, 100, high - 1, high) if low <= v <= high})
    for a, b in itertools.product(values, values):
        with np.errstate(all="ignore"):
            expected = NUMPY_INT[op](np.array(a, t.name), np.array(b, t.name))
        assert exec_alu(op, dtypes.bool if op in (Ops.CMPLT, Ops.CMPNE, Ops.CMPEQ) else t, (a, b)) == expected, (a, b)


@pytest.mark.parametrize("t", list(FLOATS), ids=lambda t: t.name)
@pytest.mark.parametrize("op", list(NUMPY_FLOAT), ids=lambda o: o.name)
def test_floats_fold_as_numpy_does(op, t):
    n = FLOATS[t]
    out = dtypes.bool if op in (Ops.CMPLT, Ops.CMPNE, Ops.CMPEQ) else t
    for a, b in itertools.product(SPECIAL, SPECIAL):
        with np.errstate(all="ignore"):
            x, y = n(a), n(b)
            if op is Ops.MAX and x == y == 0:
                continue  # which zero is greater is not said
            expected = NUMPY_FLOAT[op](x, y)
        assert same(exec_alu(op, out, (float(x), float(y))), float(expected)), (a, b)


@pytest.mark.parametrize("t", [dtypes.float32, dtypes.float64], ids=lambda t: t.name)
@pytest.mark.parametrize("op", list(NUMPY_UNARY), ids=lambda o: o.name)
def test_functions_fold_as_numpy_does(op, t):
    n = FLOATS[t]
    for a in SPECIAL:
        if op is Ops.SIN and abs(a) > 1e6:
            continue
        with np.errstate(all="ignore"):
            x = n(a)
            expected = float(NUMPY_UNARY[op](np.array(x)))
        got = exec_alu(op, t, (float(x),))
        assert same(got, expected) or abs(got - expected) <= 2e-7 * abs(expected), a


POWERS = [
    (2.0, 0.5), (0.0, -1.0), (-0.0, -3.0), (-8.0, 3.0), (-8.0, 0.5), (math.inf, 0.0), (math.nan, 0.0), (1.0, math.nan),
    (-1.0, math.inf), (1e300, 2.0), (-1e300, 3.0),
]  # fmt: skip


@pytest.mark.parametrize("pair", POWERS)
def test_powers_fold_as_numpy_does(pair):
    with np.errstate(all="ignore"):
        assert same(exec_alu(Ops.POW, dtypes.float64, pair), float(np.power(*map(np.float64, pair))))


def test_division_of_integers_by_zero_is_left_to_the_machine():
    u = UOp(Ops.FLOORDIV, (UOp.const(dtypes.int32, 7), UOp.const(dtypes.int32, 0)))
    assert simplify(u) is u
    assert exec_alu(Ops.FLOORDIV, dtypes.int32, (7, 0)) == 0


def loaded(t=dtypes.float32, slot=0):
    return UOp.param(slot, t, 4).index(UOp.lift(0)).load()


x, y = loaded(), loaded(slot=1)


def f(v):
    return UOp.const(dtypes.float32, v)


def op(o, *s):
    return UOp(o, s)


UNSOUND = [
    op(Ops.MUL, x, f(0.0)),  # NaN, infinity, -0
    op(Ops.ADD, x, f(0.0)),  # -0 + 0 is 0
    op(Ops.SUB, x, x),  # inf - inf
    op(Ops.FDIV, x, x),
    op(Ops.CMPNE, x, x),  # the test for NaN
    op(Ops.CMPEQ, x, x),
    op(Ops.FDIV, op(Ops.MUL, x, y), y),
    op(Ops.SUB, op(Ops.ADD, x, y), y),
    op(Ops.ADD, op(Ops.ADD, x, f(1.0)), f(1e30)),
    op(Ops.MUL, op(Ops.MUL, x, f(3.0)), f(1e30)),
    op(Ops.FDIV, x, f(3.0)),
    op(Ops.FDIV, x, f(0.0)),
    op(Ops.FDIV, x, f(2.0**-140)),
    op(Ops.MAX, x, f(0.0)),
    op(Ops.RECIPROCAL, op(Ops.RECIPROCAL, x)),
    op(Ops.SQRT, op(Ops.MUL, x, x)),
    x.cast(dtypes.float16).cast(dtypes.float32),
    x.cast(dtypes.int32).cast(dtypes.float32),
    loaded(dtypes.int32).cast(dtypes.float32).cast(dtypes.int32),
    loaded(dtypes.int16).cast(dtypes.float32).cast(dtypes.int8),  # saturates; a direct cast would wrap
    loaded(dtypes.int32).cast(dtypes.int8).cast(dtypes.int32),
]  # fmt: skip


@pytest.mark.parametrize("u", UNSOUND, ids=lambda u: u.op.name)
def test_what_would_be_wrong_for_some_float_stays(u):
    assert simplify(u) is u


SOUND = [
    (op(Ops.MUL, x, f(1.0)), x),
    (op(Ops.MUL, f(1.0), x), x),
    (op(Ops.ADD, x, f(-0.0)), x),
    (op(Ops.SUB, x, f(0.0)), x),
    (op(Ops.ADD, op(Ops.EXP2, x), f(0.0)), op(Ops.EXP2, x)),
    (op(Ops.FDIV, x, f(1.0)), x),
    (op(Ops.FDIV, x, f(8.0)), op(Ops.MUL, x, f(0.125))),
    (op(Ops.MAX, x, x), x),
    (op(Ops.MAX, x, f(-math.inf)), x),
    (op(Ops.NEG, op(Ops.NEG, x)), x),
    (op(Ops.CMPLT, x, x), UOp.const(dtypes.bool, False)),
    (op(Ops.WHERE, op(Ops.CMPLT, x, y), y, y), y),
    (op(Ops.MUL, x, UOp.lift(2.0)), op(Ops.MUL, x, f(2.0))),
    (op(Ops.MUL, UOp.lift(2), x), op(Ops.MUL, x, f(2.0))),
    (x.cast(dtypes.float64).cast(dtypes.float32), x),
    (x.cast(dtypes.float64).cast(dtypes.float16), x.cast(dtypes.float16)),
    (loaded(dtypes.float16).cast(dtypes.float32).cast(dtypes.float64), loaded(dtypes.float16).cast(dtypes.float64)),
    (loaded(dtypes.int8).cast(dtypes.int32).cast(dtypes.int16), loaded(dtypes.int8).cast(dtypes.int16)),
    (loaded(dtypes.int32).cast(dtypes.int16).cast(dtypes.int8), loaded(dtypes.int32).cast(dtypes.int8)),
    (loaded(dtypes.bool).cast(dtypes.int32).cast(dtypes.bool), loaded(dtypes.bool)),
    (loaded(dtypes.int8).cast(dtypes.float32).cast(dtypes.int8), loaded(dtypes.int8)),
    (op(Ops.TRUNC, loaded(dtypes.int8).cast(dtypes.float32)), loaded(dtypes.int8).cast(dtypes.float32)),
    (op(Ops.ADD, f(1.5), f(2.0)), f(3.5)),
    (op(Ops.FDIV, f(0.0), f(0.0)), f(math.nan)),
    (op(Ops.MUL, f(math.inf), f(0.0)), f(math.nan)),
]  # fmt: skip


@pytest.mark.parametrize(("u", "becomes"), SOUND, ids=lambda u: u.op.name)
def test_what_holds_for_every_float(u, becomes):
    assert simplify(u) is becomes
