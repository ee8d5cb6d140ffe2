"""EXP2, LOG2, SIN and POW in elementary operations: their error in ulp against wider arithmetic, and special values."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from aril.codegen import transcendental as tr
from aril.dtype import DType, dtypes
from aril.ops import OpGroup
from aril.runtime.interpreter import interpret
from aril.uop import UOp

FLOATS = {dtypes.float32: np.float32, dtypes.float64: np.float64}
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def run(build: Callable[..., UOp], dtype: DType, *data: np.ndarray, fma: bool = True) -> np.ndarray:
    """`build(x, ..., arithmetic)` on arrays, interpreted."""
    n = data[0].size
    at = UOp.special(UOp.const(dtypes.int32, n), "gidx0")
    values = [UOp.param(i + 1, dtype, n).index(at).load() for i in range(len(data))]
    store = UOp.param(0, dtype, n).index(at).store(build(*values, tr.Arithmetic(fma)))
    out = np.zeros(n, FLOATS[dtype])
    interpret(list(UOp.sink(store).toposort()), [out, *[np.ascontiguousarray(d) for d in data]], chunks=n)
    return out


def ulps(got: np.ndarray, exact: np.ndarray) -> float:
    """The largest error in units of the last place of the exact result. NaN must meet NaN, infinities themselves."""
    kind = got.dtype.type
    rounded = exact.astype(kind)
    assert np.array_equal(np.isnan(got), np.isnan(rounded))
    usual = np.isfinite(exact) & np.isfinite(got)
    beyond = ~usual & ~np.isnan(rounded)
    top = np.finfo(kind).max
    near_top = np.clip(got, -top, top) == np.clip(rounded, -top, top)  # the last finite number is an ulp from infinity
    assert near_top[beyond].all(), (got[beyond & ~near_top][:3], exact[beyond & ~near_top][:3])
    if not usual.any():
        return 0.0
    spacing = np.spacing(np.maximum(np.abs(rounded[usual]), np.finfo(kind).tiny)).astype(np.longdouble)
    return float(np.max(np.abs(got[usual].astype(np.longdouble) - exact[usual]) / spacing))


def samples(dtype: DType, low: float, high: float, n: int = 20000) -> np.ndarray:
    rng = np.random.default_rng(7)
    return rng.uniform(low, high, n).astype(FLOATS[dtype])


def all_sizes(dtype: DType, n: int = 30000) -> np.ndarray:
    """Numbers of every exponent, and the special ones."""
    kind = FLOATS[dtype]
    rng = np.random.default_rng(8)
    unsigned = np.uint32 if kind is np.float32 else np.uint64
    bits = rng.integers(0, np.iinfo(unsigned).max, n, dtype=unsigned)
    info = np.finfo(kind)
    special = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 2.0, 0.5]
    special += [info.max, -info.max, info.tiny, info.smallest_subnormal]
    return np.concatenate([bits.view(kind), np.array(special, kind)])


@pytest.mark.parametrize("fma", [True, False])
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_exp2(dtype, fma):
    wide = np.longdouble
    limit = 160.0 if dtype is dtypes.float32 else 1100.0
    for x in (samples(dtype, -limit, limit), samples(dtype, -1, 1), all_sizes(dtype)):
        assert ulps(run(tr.exp2, dtype, x, fma=fma), np.exp2(x.astype(wide))) <= (1.0 if fma else 1.5)
    whole = np.arange(-160 if limit == 160 else -1100, int(limit)).astype(FLOATS[dtype])
    assert np.array_equal(run(tr.exp2, dtype, whole, fma=fma), np.exp2(whole.astype(wide)).astype(FLOATS[dtype]))


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_exp(dtype):
    limit = 110.0 if dtype is dtypes.float32 else 800.0
    for x in (samples(dtype, -limit, limit), samples(dtype, -1, 1), all_sizes(dtype)):
        assert ulps(run(tr.exp, dtype, x), np.exp(x.astype(np.longdouble))) <= 1.0


@pytest.mark.parametrize("fma", [True, False])
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_log2(dtype, fma):
    for x in (samples(dtype, 0, 2), samples(dtype, 0.9, 1.1), np.abs(all_sizes(dtype)), all_sizes(dtype)):
        assert ulps(run(tr.log2, dtype, x, fma=fma), np.log2(x.astype(np.longdouble))) <= (1.5 if fma else 2.0)


@pytest.mark.parametrize("fma", [True, False])
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_sin(dtype, fma):
    kind = FLOATS[dtype]
    turns = (np.arange(1, 20000) * np.pi / 2).astype(kind)  # the numbers nearest to multiples of pi / 2
    # 6381956970095103 * 2**797 is the double closest to a multiple of pi / 2 (Muller, Elementary Functions)
    hard = np.array([math.ldexp(6381956970095103, 797), 1e22, 16367173 * 2.0**72], kind)
    for x in (samples(dtype, -10, 10), samples(dtype, -1e5, 1e5), turns, hard, all_sizes(dtype)):
        most = 1.0 if kind is np.float32 else 2.0
        assert ulps(run(tr.sin, dtype, x, fma=fma), np.sin(x.astype(np.longdouble))) <= most
        assert ulps(run(tr.cos, dtype, x, fma=fma), np.cos(x.astype(np.longdouble))) <= most
    zeros = run(tr.sin, dtype, np.array([0.0, -0.0], kind))
    assert np.signbit(zeros).tolist() == [False, True]


@pytest.mark.parametrize("fma", [True, False])
def test_sin_of_float32_next_to_multiples_of_pi(fma):
    """For each exponent the float32 nearest to multiples of pi and between them, the ends of what each set serves."""
    found = []
    for e in range(105):
        x = (np.arange(1 << 23, 1 << 24, 997, dtype=np.float32) * np.float32(2.0**e)).astype(np.float64)
        found += [x[np.argmin(np.abs(np.sin(x)))], x[np.argmin(np.abs(np.cos(x)))]]
    ends = [
        np.nextafter(np.float32(limit), np.float32(way))
        for limit in (2.0**50, 2.0**76, 2.0**102)
        for way in (0, np.inf)
    ]
    x = np.array([*found, *ends, 2.0**50, 2.0**76, 2.0**102, np.finfo(np.float32).max], np.float32)
    tops = np.concatenate([np.linspace(0.5, 1, 3001) * top for top in (2.0**50, 2.0**76, 2.0**102, 2.0**128)])
    x = np.concatenate([x, tops[np.abs(tops) < 2.0**128 * (1 - 2.0**-25)].astype(np.float32)])
    for signed in (x, -x):
        assert ulps(run(tr.sin, dtypes.float32, signed, fma=fma), np.sin(signed.astype(np.longdouble))) <= 1.0
        assert ulps(run(tr.cos, dtypes.float32, signed, fma=fma), np.cos(signed.astype(np.longdouble))) <= 1.0


def test_sines_and_powers_of_float32_take_few_operations():
    x, y = (UOp.param(i, dtypes.float32, 1).index(UOp.const(dtypes.int32, 0)).load() for i in range(2))

    def count(u: UOp) -> int:
        return sum(n.op in OpGroup.ELEMENTWISE for n in u.toposort())

    assert count(tr.sin(x, tr.Arithmetic())) < 45  # each twice as often where a vector of float64 has half the lanes
    assert count(tr.power(x, y, tr.Arithmetic())) < 95


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_pow(dtype):
    kind = FLOATS[dtype]
    rng = np.random.default_rng(9)
    n = 20000
    base = np.exp(rng.uniform(-40, 40, n)).astype(kind)
    top = 60.0 if kind is np.float32 else 500.0
    exponent = rng.uniform(-1, 1, n) * top / np.maximum(np.abs(np.log(base)), 0.1)
    pairs = [
        (base, exponent.astype(kind)),
        ((1 + rng.uniform(-1e-3, 1e-3, n)).astype(kind), rng.uniform(-1e4, 1e4, n).astype(kind)),
        (np.abs(all_sizes(dtype)), np.resize(all_sizes(dtype)[::-1], all_sizes(dtype).size)),
        (rng.uniform(-20, 20, n).astype(kind), rng.integers(-9, 10, n).astype(kind)),
    ]
    for x, y in pairs:
        assert ulps(run(tr.power, dtype, x, y), np.power(x.astype(np.longdouble), y.astype(np.longdouble))) <= 1.0


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_pow_of_special_values(dtype):
    values = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 3.0, -3.0, 1e30, -1e30, math.inf, -math.inf, math.nan]
    x, y = (v.reshape(-1).astype(FLOATS[dtype]) for v in np.meshgrid(values, values))
    got, expected = run(tr.power, dtype, x, y), np.power(x.astype(np.longdouble), y).astype(FLOATS[dtype])
    assert ulps(got, expected.astype(np.longdouble)) <= 1.0
    zero = expected == 0
    assert np.array_equal(np.signbit(got[zero]), np.signbit(expected[zero]))
