"""The interpreter's arithmetic: formats against ml_dtypes, casts, integers, fused multiply-add, threefry."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from aril.dtype import dtypes, to_dtype, wrap
from aril.ops import Ops
from aril.runtime import python_alu as alu

SMALL = {
    dtypes.bfloat16: ml_dtypes.bfloat16, dtypes.fp8e4m3: ml_dtypes.float8_e4m3fn, dtypes.fp8e5m2: ml_dtypes.float8_e5m2,
    dtypes.fp8e4m3fnuz: ml_dtypes.float8_e4m3fnuz, dtypes.fp8e5m2fnuz: ml_dtypes.float8_e5m2fnuz,
}  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal, with the signs of zeros; NaN equals NaN."""
    return bool(np.all((np.isnan(a) & np.isnan(b)) | ((a == b) & (np.signbit(a) == np.signbit(b)))))


@pytest.mark.parametrize("dtype", SMALL, ids=lambda d: d.name)
def test_every_code_of_the_small_formats_is_decoded_and_encoded(dtype):
    codes = np.arange(1 << dtype.bits).astype(alu.storage_type(dtype))
    expected = codes.view(SMALL[dtype]).astype(np.float32)
    values = alu.decode(codes, dtype)
    assert same(values, expected)
    numbers = ~np.isnan(values)
    assert np.array_equal(alu.encode(values, dtype)[numbers], codes[numbers])
    assert np.isnan(alu.decode(alu.encode(values[~numbers], dtype), dtype)).all()


@pytest.mark.parametrize("dtype", SMALL, ids=lambda d: d.name)
@pytest.mark.parametrize("wide", [np.float32, np.float64])
def test_rounding_to_the_small_formats(dtype, wide):
    rng = np.random.default_rng(1)
    x = np.concatenate([
        (rng.standard_normal(20000) * 2.0 ** rng.integers(-20, 20, 20000)).astype(wide),
        rng.integers(0, 2**32, 20000, dtype=np.uint32).view(np.float32).astype(wide),
        np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 448, 464, 465, 57344, 61440, 65536, 1e-9], wide),
    ])  # fmt: skip
    assert same(alu.round_to(x, dtype), x.astype(SMALL[dtype]).astype(np.float32))


def test_a_double_rounds_once():
    tie = 1 + 2.0**-8  # half way between two bfloat16
    x = np.array([tie + 2.0**-40, tie, tie - 2.0**-40])
    assert alu.cast(x, dtypes.float64, dtypes.bfloat16).tolist() == [1 + 2.0**-7, 1.0, 1.0]
    big = np.array([(1 << 62) + (1 << 54) + 1, -(1 << 62) - (1 << 54) - 1])
    assert alu.cast(big, dtypes.int64, dtypes.bfloat16).tolist() == [2.0**62 + 2.0**55, -(2.0**62) - 2.0**55]


@pytest.mark.parametrize("dst", dtypes.ints, ids=lambda d: d.name)
@pytest.mark.parametrize("src", [np.float16, np.float32, np.float64])
def test_floats_saturate_to_integers_and_nan_is_zero(src, dst):
    x = np.array([0.5, -0.5, 3.9, -3.9, 200, -200, 4e4, -4e4, 1e30, -1e30, np.inf, -np.inf, np.nan]).astype(src)
    expected = [wrap(float(v), dst) for v in x]
    source = {np.float16: dtypes.float16, np.float32: dtypes.float32, np.float64: dtypes.float64}[src]
    assert alu.cast(x, source, dst).tolist() == expected


@pytest.mark.parametrize("dtype", dtypes.ints, ids=lambda d: d.name)
def test_integer_division_of_every_sign_and_by_zero(dtype):
    ends = [int(dtype.min), int(dtype.max), 0, 1, 7, 100] + ([-1, -7, -100] if dtype.kind == "i" else [])
    pairs = [(a, b) for a in ends for b in ends]
    a, b = (np.array(v, alu.register_type(dtype)) for v in zip(*pairs, strict=True))
    rows = {
        Ops.FLOORDIV: lambda x, y: x // y, Ops.FLOORMOD: lambda x, y: x % y,
        Ops.CDIV: lambda x, y: int(Fraction(x, y)), Ops.CMOD: lambda x, y: x - int(Fraction(x, y)) * y,
    }  # fmt: skip
    for op, fn in rows.items():
        expected = [wrap(fn(x, y) if y else 0, dtype) for x, y in pairs]
        with np.errstate(all="ignore"):
            assert alu.evaluate(op, dtype, a, b).tolist() == expected, op


def test_integers_wrap_and_shift_out():
    a = np.array([2**31 - 1, -(2**31)], np.int32)
    assert alu.evaluate(Ops.ADD, dtypes.int32, a, np.array([1, -1], np.int32)).tolist() == [-(2**31), 2**31 - 1]
    shifts = np.array([31, 32, 40], np.int32)
    assert alu.evaluate(Ops.SHL, dtypes.int32, np.full(3, 1, np.int32), shifts).tolist() == [-(2**31), 0, 0]
    assert alu.evaluate(Ops.SHR, dtypes.int32, np.full(3, -8, np.int32), shifts).tolist() == [-1, -1, -1]
    powers = alu.evaluate(Ops.POW, dtypes.int32, np.array([3, -1, 2, 0, 5]), np.array([5, -3, -1, 0, 13]))
    assert powers.tolist() == [243, -1, 0, 1, wrap(5**13, dtypes.int32)]


def test_max_takes_nan_and_the_positive_zero():
    a, b = np.array([np.nan, 1, -0.0, 0.0, -0.0]), np.array([1, np.nan, 0.0, -0.0, -0.0])
    assert same(alu.evaluate(Ops.MAX, dtypes.float64, a, b), np.array([np.nan, np.nan, 0.0, 0.0, -0.0]))


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_fused_multiply_add_rounds_once(name):
    rng, dtype = np.random.default_rng(3), to_dtype(name)
    kind = alu.register_type(dtype)
    draw = lambda: alu.cast(rng.standard_normal(300), dtypes.float64, dtype).astype(kind)  # noqa: E731
    a, b = draw(), draw()
    c = np.where(np.arange(300) % 2, draw(), -(a.astype(np.float64) * b)).astype(kind)  # half of them cancel
    c = c if dtype is not dtypes.bfloat16 else alu.round_to(c, dtype)
    exact = [Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)) for x, y, z in zip(a, b, c, strict=True)]
    out = alu.evaluate(Ops.MULACC, dtype, a, b, c)
    step = 2.0**-dtype.mantissa
    for value, e in zip(out.tolist(), exact, strict=True):
        if e == 0:
            assert value == 0
        else:  # no neighbour is nearer
            exponent = max(int(np.frexp(abs(value))[1]) - 1, 2 - 2 ** (dtype.exponent - 1))
            gap = Fraction(float(np.ldexp(step, exponent)))
            assert abs(Fraction(value) - e) <= gap / 2, (value, float(e))


def test_threefry_gives_the_published_numbers():
    # Random123's known answers (kat_vectors: threefry2x32, 20 rounds)
    rows = [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 2, (0x1CB996FC, 0xBB002BE7)),
        ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
    ]
    pack = lambda v: np.array([v[0] | v[1] << 32], np.uint64)  # noqa: E731
    for counter, key, expected in rows:
        assert alu.evaluate(Ops.THREEFRY, dtypes.uint64, pack(counter), pack(key))[0] == pack(expected)[0]
