"""Limits of float expressions hold for every number; exponentials within them are as exact with fewer operations."""

from __future__ import annotations

import math

import numpy as np
import pytest

from aril.codegen import transcendental as tr
from aril.codegen.limits import limits
from aril.dtype import dtypes
from aril.ops import OpGroup, Ops
from aril.runtime.interpreter import interpret
from aril.uop import UOp

N = 4096
A = tr.Arithmetic()
FLOATS = {dtypes.float32: np.float32, dtypes.float64: np.float64}
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def loads(dtype, count=2):
    at = UOp.special(UOp.const(dtypes.int32, N), "gidx0")
    return [UOp.param(i + 1, dtype, N).index(at).load() for i in range(count)]


def values(build, dtype, *data):
    at = UOp.special(UOp.const(dtypes.int32, N), "gidx0")
    out = np.zeros(N, FLOATS[dtype])
    store = UOp.param(0, dtype, N).index(at).store(build(*loads(dtype, len(data))))
    interpret(list(UOp.sink(store).toposort()), [out, *data], chunks=N)
    return out


def every_size(dtype, seed):
    unsigned = np.uint32 if dtype is dtypes.float32 else np.uint64
    bits = np.random.default_rng(seed).integers(0, np.iinfo(unsigned).max, N, dtype=unsigned)
    x = bits.view(FLOATS[dtype]).copy()
    x[:8] = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 0.5]
    return x


def magnitude(x):
    return A.where(A.less(x, 0.0), A.op(Ops.NEG, x), x)


FORMS = {
    "magnitude": (magnitude, (0, math.inf)),
    "less than nothing": (lambda x: A.where(A.less(0.0, x), A.op(Ops.NEG, x), x), (-math.inf, 0)),
    "by its sign": (
        lambda x: A.where(A.less(x.bitcast(dtypes.int32), 0), A.op(Ops.NEG, x), x),
        (0, math.inf),
    ),
    "square": (lambda x: A.mul(A.mul(x, x), -0.5), (-math.inf, 0)),
    "least": (lambda x: A.op(Ops.NEG, A.op(Ops.MAX, A.op(Ops.NEG, magnitude(x)), -8.0)), (0, 8)),
    "sum": (lambda x: A.add(A.where(A.less(x, 3.0), x, 3.0), 1.0), (-math.inf, 4)),
    "plain": (lambda x: x, (-math.inf, math.inf)),
    "either": (lambda x: A.where(A.less(x, 0.0), 5.0, x), (0, math.inf)),
    "of another": (lambda x: A.where(A.less(A.add(x, 1.0), 0.0), x, A.op(Ops.NEG, x)), (-math.inf, math.inf)),
}


@pytest.mark.parametrize("name", FORMS)
def test_limits_hold(name):
    form, want = FORMS[name]
    assert limits(form(loads(dtypes.float32, 1)[0])) == want
    got = values(form, dtypes.float32, every_size(dtypes.float32, 1)).astype(np.float64)
    got = got[~np.isnan(got)]
    assert np.all((got >= want[0]) & (got <= want[1]))


def test_the_lesser_of_two_may_be_a_number_beside_nan():
    """min(x, y) as `x < y ? x : y` is y where x is NaN: only a constant in the place of x bounds it."""
    x, y = loads(dtypes.float32)
    small = A.where(A.less(x, 2.0), x, 2.0)
    assert limits(A.where(A.less(small, y), small, y)) == (-math.inf, math.inf)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_an_exponential_within_limits_takes_fewer_operations_and_is_as_exact(dtype, sign):
    def form(x):
        return A.mul(magnitude(x), sign)

    def natural(x):
        return tr.exp(form(x), A)

    x = every_size(dtype, 2)
    top = 110 if dtype is dtypes.float32 else 760
    x[N // 2 :] = np.random.default_rng(3).uniform(-top, top, N // 2)
    with np.errstate(all="ignore"):
        exact = np.exp(sign * np.abs(x).astype(np.longdouble))
        got, rounded = values(natural, dtype, x), exact.astype(FLOATS[dtype])
    assert np.array_equal(np.isnan(got), np.isnan(x))
    finite = np.isfinite(rounded) & ~np.isnan(x)
    assert np.array_equal(got[~finite & ~np.isnan(x)], rounded[~finite & ~np.isnan(x)])
    step = np.spacing(np.maximum(rounded[finite], np.finfo(FLOATS[dtype]).tiny)).astype(np.longdouble)
    assert np.max(np.abs(got[finite] - exact[finite]) / step) <= 1.1

    def count(u):
        return sum(n.op in OpGroup.ELEMENTWISE for n in u.toposort())

    (v,) = loads(dtype, 1)
    plain = count(tr.exp(v, A))
    assert count(tr.exp(form(v), A)) - count(form(v)) <= plain - 6


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_limits_hold_where_a_sum_is_rounded_past_them(dtype):
    """Exactly min(x, big) + 513 - 480 - big is at most 33; rounded it may be `step`, an ulp of the large number."""
    big, step = (1e10, 1024.0) if dtype is dtypes.float32 else (2.0**63, 2048.0)
    half = step / 2 + 1

    def form(x):
        return A.sub(A.sub(A.add(A.where(A.less(x, big), x, big), half), half - 33.0), big)

    x = np.full(N, 2 * big, FLOATS[dtype])
    got = values(form, dtype, x)
    assert np.all(got == step) and limits(form(loads(dtype, 1)[0]))[1] >= step
    assert np.all(values(lambda x: tr.exp2(form(x), A), dtype, x) == math.inf)


def test_an_exponential_of_what_is_not_positive_is_at_most_1():
    (x,) = loads(dtypes.float32, 1)
    small = UOp(Ops.EXP2, (A.mul(magnitude(x), -tr.LOG2E),))
    assert limits(small) == (0.0, 1.0)


def test_the_logarithm_of_1_and_a_fraction_is_a_polynomial_alone():
    """softplus: four vectors stand side by side, as for an exponential; others have more constants."""
    x, y = loads(dtypes.float32)
    small = UOp(Ops.EXP2, (A.mul(magnitude(x), -tr.LOG2E),))
    assert tr.is_fit(UOp(Ops.LOG2, (A.add(small, 1.0),)))
    assert not tr.is_fit(UOp(Ops.LOG2, (A.add(y, 1.0),))) and not tr.is_fit(UOp(Ops.LOG2, (small,)))
