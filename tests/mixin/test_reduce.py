"""Reductions against NumPy and SciPy in float64: values, types, positions, running totals, softmax."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special

from aril import Tensor, dtypes
from tests.values import both, check

RNG = np.random.default_rng(2)
X = RNG.standard_normal((3, 4, 5)).astype(np.float32)
AXES = [None, 0, 1, -1, (0, 2), (0, 1, 2)]


@both
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("name", ["sum", "mean", "prod", "max", "min"])
def test_plain_reductions(value, name, axis):
    for keep in (False, True):
        want = getattr(np, name)(X.astype(np.float64), axis=axis, keepdims=keep)
        check(value, getattr(Tensor(X), name)(axis, keepdim=keep), want, rtol=1e-5, atol=1e-5)


@both
@pytest.mark.parametrize("axis", AXES)
def test_variance(value, axis):
    for correction in (0, 1):
        want = X.astype(np.float64)
        check(value, Tensor(X).var(axis, correction=correction), want.var(axis, ddof=correction), rtol=1e-5)
        check(value, Tensor(X).std(axis, True, correction), want.std(axis, ddof=correction, keepdims=True), rtol=1e-5)
    std, mean = Tensor(X).std_mean(axis)
    check(value, std, X.std(axis, ddof=1), rtol=1e-5)
    check(value, mean, X.mean(axis), rtol=1e-5, atol=1e-6)


@both
def test_variance_of_numbers_far_from_zero(value):
    x = (np.arange(8) + 1e6).astype(np.float32)
    check(value, Tensor(x).var(), x.astype(np.float64).var(ddof=1), rtol=1e-6)


@both
def test_integers_sum_wider(value):
    x = np.full(300, 100, np.int8)
    check(value, Tensor(x).sum(), np.int32(30000))
    assert Tensor(x).sum().dtype is dtypes.int32
    assert Tensor(x.astype(np.uint8)).sum().dtype is dtypes.uint32
    assert Tensor(x.astype(np.int64)).sum().dtype is dtypes.int64
    check(value, Tensor(x > 0).sum(), np.int32(300))
    check(value, Tensor(x).mean(), 100.0)
    check(value, Tensor(x).sum(dtype="int8"), np.int8(np.full(300, 100).sum() % 256))


@both
def test_halves_sum_in_float32(value):
    x = np.full(4096, 1.0, np.float16)
    check(value, Tensor(x).sum(), np.float16(4096))
    assert Tensor(x).sum().dtype is dtypes.float16
    check(value, Tensor(np.full(70000, 1.0, np.float16)).mean(), np.float16(1))


@both
def test_truth(value):
    x = np.array([[True, False], [True, True], [False, False]])
    check(value, Tensor(x).any(1), x.any(1))
    check(value, Tensor(x).all(1), x.all(1))
    check(value, Tensor(X).any(), np.True_)
    check(value, Tensor(X).allclose(Tensor(X)), np.True_)


@both
def test_nan_and_infinities(value):
    x = np.array([[1, np.nan, 3], [np.inf, 2, -np.inf], [-5, -1, -3]], np.float32)
    for name in ("max", "min", "sum", "argmax", "argmin"):
        with np.errstate(all="ignore"):
            want = getattr(np, name)(x, axis=1)
        check(value, getattr(Tensor(x), name)(1), want.astype(np.int32) if "arg" in name else want)


@both
def test_positions(value):
    x = RNG.integers(-3, 3, (5, 7, 6)).astype(np.int32)
    for data in (X, x, x.astype(np.uint8)):
        for axis in (None, 0, 1, 2, -1):
            for name in ("argmax", "argmin"):
                check(value, getattr(Tensor(data), name)(axis), getattr(np, name)(data, axis).astype(np.int32))
    check(value, Tensor(X).argmax(1, keepdim=True), X.argmax(1, keepdims=True).astype(np.int32))


@both
def test_extremes_of_the_integer_range(value):
    x = np.array([-(2**31), 0, 2**31 - 1], np.int32)
    check(value, Tensor(x).min(), x.min())
    check(value, Tensor(x).max(), x.max())
    check(value, Tensor(np.array([0, 255], np.uint8)).min(), np.uint8(0))


@both
@pytest.mark.parametrize("n", [1, 2, 31, 64, 65, 100, 1000, 3000])
def test_running_totals(value, n):
    x = RNG.uniform(0.5, 1.5, (2, n)).astype(np.float32)
    wide = x.astype(np.float64)
    check(value, Tensor(x).cumsum(1), wide.cumsum(1), rtol=1e-5)
    check(value, Tensor(x.T.copy()).cumsum(0), wide.cumsum(1).T, rtol=1e-5)
    check(value, Tensor(x).cummax(1), np.maximum.accumulate(x, 1))
    check(value, Tensor(x).cummin(1), np.minimum.accumulate(x, 1))
    check(value, Tensor(np.arange(n, dtype=np.int32)).cumsum(), np.arange(n).cumsum().astype(np.int32))
    if n <= 100:
        check(value, Tensor(x).cumprod(1), wide.cumprod(1), rtol=1e-4)


@both
def test_logcumsumexp(value):
    x = np.array([[-1000, 0, 3, 1000, 2], [1, 2, 3, 4, 5]], np.float32)
    check(value, Tensor(x).logcumsumexp(1), np.logaddexp.accumulate(x.astype(np.float64), 1))
    check(value, Tensor(x).logcumsumexp(0), np.logaddexp.accumulate(x.astype(np.float64), 0))


@pytest.mark.parametrize("n", [9, 17, 64, 300])
def test_logcumsumexp_of_blocks(n):
    """Rows that begin with -inf, have whole blocks of it, and terms far apart; the derivative of a row with some."""
    x = RNG.standard_normal((4, n)) * 50
    x[0, :12], x[1, 2:], x[2] = -np.inf, -np.inf, np.where(np.arange(n) // 8 % 2, x[2], -np.inf)
    want = np.logaddexp.accumulate(x, 1)
    for axis, a, out in ((1, x, want), (0, x.T.copy(), want.T)):
        np.testing.assert_allclose(Tensor(a.astype(np.float32)).logcumsumexp(axis).numpy(), out, rtol=1e-6, atol=1e-5)
    row, g = Tensor(np.where(np.arange(n) // 8 == 1, -np.inf, x[3])), RNG.standard_normal(n)
    ends = np.logaddexp.accumulate(row.numpy())
    parts = np.exp(row.numpy()[:, None] - ends[None]) * (np.arange(n)[:, None] <= np.arange(n))
    np.testing.assert_allclose((row.logcumsumexp() * Tensor(g)).sum().gradient(row)[0].numpy(), parts @ g, atol=1e-9)


@pytest.mark.parametrize("step", [2, 3, -1, -2])
@pytest.mark.parametrize("columns", [263, 264])
def test_running_totals_of_every_so_many_columns(step, columns):
    x = RNG.uniform(0.9, 1.1, (18, abs(step) * columns)).astype(np.float32)
    seen, wide = Tensor(x)[:, ::step], x[:, ::step].astype(np.float64)
    np.testing.assert_allclose(seen.cumsum(1).numpy(), wide.cumsum(1), rtol=1e-5)
    np.testing.assert_allclose(seen.cumprod(1).numpy(), wide.cumprod(1), rtol=1e-4)
    np.testing.assert_array_equal(seen.cummax(1).numpy(), np.maximum.accumulate(x[:, ::step], 1))


@both
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax_family(value, axis):
    x = X * 30
    wide = x.astype(np.float64)
    check(value, Tensor(x).softmax(axis), special.softmax(wide, axis), rtol=2e-5)
    check(value, Tensor(x).log_softmax(axis), special.log_softmax(wide, axis), rtol=2e-5, atol=2e-5)
    check(value, Tensor(x).logsumexp(axis), special.logsumexp(wide, axis), rtol=1e-5)
    check(value, Tensor(x).softmin(axis), special.softmax(-wide, axis), rtol=2e-5)


@both
def test_softmax_of_infinities(value):
    x = np.array([[-np.inf, 0, 1], [1e30, 1, 2]], np.float32)
    check(value, Tensor(x).softmax(), special.softmax(x.astype(np.float64), 1))
    check(value, Tensor(np.full((1, 3), -np.inf, np.float32)).logsumexp(1), [-np.inf])
    check(value, Tensor(np.array([[np.inf, 1]], np.float32)).logsumexp(1), [np.inf])


@both
def test_nothing_to_reduce(value):
    e = np.zeros((0, 3), np.float32)
    check(value, Tensor(e).sum(0), np.zeros(3))
    check(value, Tensor(e).prod(), 1.0)
    check(value, Tensor(e).sum(1), np.zeros(0))
    check(value, Tensor(e).all(), np.True_)
    check(value, Tensor(e).any(), np.False_)
    check(value, Tensor(e).mean(0), np.full(3, np.nan))
    with pytest.raises(ValueError, match="max of nothing"):
        Tensor(e).max(0)
    check(value, Tensor(np.float32(3)).sum(), 3.0)
    check(value, Tensor(np.float32(3)).max(0), 3.0)


def test_errors():
    with pytest.raises(IndexError, match=r"sum: axis 3 does not exist in shape \(3, 4, 5\)"):
        Tensor(X).sum(3)
    with pytest.raises(ValueError, match="twice"):
        Tensor(X).sum((0, 0))


@both
@pytest.mark.parametrize("name", ["fp8e4m3", "fp8e5m2", "fp8e4m3fnuz", "fp8e5m2fnuz"])
def test_maxima_of_types_with_and_without_infinities(value, name):
    x = np.array([[-3.0, -1.0, -2.0, -4.0], [-1.0, -2.0, -3.0, -5.0]], np.float32)
    t = Tensor(x).cast(name)
    check(value, t.max().float(), -1.0)
    check(value, t.min().float(), -5.0)
    check(value, t.cummax(1).float(), np.maximum.accumulate(x, 1))
    check(value, t.cummin(1).float(), np.minimum.accumulate(x, 1))
    check(value, t.max_pool2d(2, padding=1).float(), [[-3, -1, -4], [-1, -2, -5]])
    check(value, t.isfinite(), np.full(x.shape, True))
    check(value, Tensor([1.0, np.nan]).cast(name).isfinite(), [True, False])
    check(value, Tensor([1.0, np.nan, 2.0]).cast(name).max().float(), np.nan)


@both
def test_a_deviation_is_there_where_the_variance_is_beyond_the_type(value):
    x = (1000 * RNG.standard_normal((3, 40)) - 500).astype(np.float16)
    want = x.astype(np.float64)
    check(value, Tensor(x).std(1).float(), want.std(1, ddof=1), rtol=1e-3)
    std, mean = Tensor(x).std_mean(1)
    assert std.dtype is mean.dtype is dtypes.float16
    check(value, std.float(), want.std(1, ddof=1), rtol=1e-3)
    check(value, mean.float(), want.mean(1), rtol=1e-3)
