"""Arithmetic, comparison, bits and rounding against NumPy, with promotion and special values."""

from __future__ import annotations

import operator

import numpy as np
import pytest

from aril import Tensor, dtypes
from aril.ops import Ops
from tests.values import KINDS, both, check

RNG = np.random.default_rng(1)
SPECIAL = np.array([0.0, -0.0, 1.5, -2.5, 3.0, 0.5, -0.5, np.inf, -np.inf, np.nan, 1e30, -7.25], np.float32)
INTS = np.array([0, 1, -1, 7, -7, 12, -13, 100, 2**31 - 1, -(2**31)], np.int32)
SMALL = np.array([3, -3, 5, -5, 2, 7, -2, 9, 11, -11], np.int32)


def pairs(x):
    a, b = np.meshgrid(x, x)
    return a.ravel().copy(), b.ravel().copy()


@both
@pytest.mark.parametrize("f", [operator.add, operator.sub, operator.mul, operator.truediv])
def test_arithmetic_of_floats(value, f):
    a, b = pairs(SPECIAL)
    with np.errstate(all="ignore"):
        check(value, f(Tensor(a), Tensor(b)), f(a, b))


@both
@pytest.mark.parametrize("f", [operator.add, operator.sub, operator.mul])
def test_integers_wrap(value, f):
    a, b = pairs(INTS)
    with np.errstate(all="ignore"):
        check(value, f(Tensor(a), Tensor(b)), f(a, b))


@both
@pytest.mark.parametrize("f", [operator.floordiv, operator.mod])
def test_floor_division_and_remainder_of_integers(value, f):
    a, b = INTS, SMALL
    check(value, f(Tensor(a), Tensor(b)), f(a, b))
    check(value, f(Tensor(a), 7), f(a, 7))
    check(value, f(Tensor(a), -7), f(a, -7))


@both
def test_floor_division_and_remainder_of_floats(value):
    a, b = pairs(np.array([5.5, -5.5, 0.75, -0.25, 7.0, -3.0, 100.25], np.float32))
    check(value, Tensor(a) % Tensor(b), a % b)
    check(value, Tensor(a) // Tensor(b), a // b)
    check(value, Tensor(a).fmod(Tensor(b)), np.fmod(a, b))
    check(value, Tensor(a).fmod(np.inf), a)


@both
def test_division_by_rounding_mode(value):
    a = np.array([7, -7, 8, -8, 9], np.int32)
    check(value, Tensor(a).div(2, rounding_mode="trunc"), np.trunc(a / 2).astype(np.int32))
    check(value, Tensor(a).div(2, rounding_mode="floor"), a // 2)
    assert Tensor(a).div(2).dtype is dtypes.float32
    with pytest.raises(ValueError, match="rounding_mode"):
        Tensor(a).div(2, rounding_mode="up")


@both
def test_remainder_follows_the_sign_asked_for(value):
    check(value, Tensor(INTS).fmod(Tensor(SMALL)), np.fmod(INTS, SMALL))


@both
@pytest.mark.parametrize("f", [operator.lt, operator.gt, operator.le, operator.ge, operator.eq, operator.ne])
def test_comparisons(value, f):
    for x in (SPECIAL, INTS):
        a, b = pairs(x)
        check(value, f(Tensor(a), Tensor(b)), f(a, b))
        check(value, f(Tensor(x), 3), f(x, 3))
        check(value, f(3, Tensor(x)), f(3, x))


@both
def test_a_number_beyond_the_type_compares_as_itself(value):
    x = Tensor(np.array([1, 255], np.uint8))
    check(value, x < 300, [True, True])
    check(value, x > -1, [True, True])
    check(value, x == 256 + 1, [False, False])


@both
def test_maximum_and_minimum_propagate_nan(value):
    a, b = pairs(SPECIAL)
    check(value, Tensor(a).maximum(Tensor(b)), np.maximum(a, b))
    check(value, Tensor(a).minimum(Tensor(b)), np.minimum(a, b))
    i, j = pairs(INTS)
    check(value, Tensor(i).maximum(Tensor(j)), np.maximum(i, j))
    check(value, Tensor(i).minimum(Tensor(j)), np.minimum(i, j))
    u = np.array([0, 1, 255], np.uint8)
    check(value, Tensor(u).minimum(Tensor(u[::-1].copy())), np.minimum(u, u[::-1]))


@both
def test_clamp(value):
    check(value, Tensor(SPECIAL).clamp(-1, 2), np.clip(SPECIAL, -1, 2))
    check(value, Tensor(SPECIAL).clamp(min=0), np.clip(SPECIAL, 0, None))
    check(value, Tensor(INTS).clip(max=5), np.clip(INTS, None, 5))
    with pytest.raises(ValueError, match="clamp"):
        Tensor(INTS).clamp()


@both
@pytest.mark.parametrize("f", [operator.and_, operator.or_, operator.xor])
def test_bits(value, f):
    a, b = pairs(INTS)
    check(value, f(Tensor(a), Tensor(b)), f(a, b))
    p, q = pairs(np.array([True, False]))
    check(value, f(Tensor(p), Tensor(q)), f(p, q))
    with pytest.raises(TypeError, match="bitwise"):
        f(Tensor(SPECIAL), 1)


@both
def test_not(value):
    check(value, ~Tensor(INTS), ~INTS)
    check(value, ~Tensor(np.array([True, False])), [False, True])
    check(value, Tensor(SPECIAL).logical_not(), np.logical_not(SPECIAL))


@both
def test_shifts(value):
    for kind in (np.int32, np.uint32, np.int64, np.uint8):
        x = INTS.astype(kind)
        width = x.itemsize * 8
        for n in (0, 1, 5, width - 1):
            check(value, Tensor(x) << n, x << np.array(n, kind))
            check(value, Tensor(x) >> n, x >> np.array(n, kind))
        check(value, Tensor(x) << width, np.zeros_like(x))
        n = np.arange(len(x)).astype(kind)
        check(value, Tensor(x) << Tensor(n), x << n)
        check(value, Tensor(x) >> Tensor(n), x >> n)
    with pytest.raises(ValueError, match="count"):
        Tensor(INTS) << -1


@both
@pytest.mark.parametrize("name", ["floor", "ceil", "trunc", "round"])
def test_rounding(value, name):
    x = np.array([0.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.4999, 0.51, -0.51, 1e9, np.inf, -np.inf, np.nan], np.float32)
    check(value, getattr(Tensor(x), name)(), getattr(np, name)(x))
    check(value, getattr(Tensor(INTS), name)(), INTS)


@both
def test_sign_and_magnitude(value):
    check(value, Tensor(SPECIAL).sign(), np.sign(SPECIAL))
    check(value, Tensor(SPECIAL).abs(), np.abs(SPECIAL))
    with np.errstate(all="ignore"):
        check(value, abs(Tensor(INTS)), np.abs(INTS))
    check(value, -Tensor(SPECIAL), -SPECIAL)
    a, b = pairs(SPECIAL)
    check(value, Tensor(a).copysign(Tensor(b)), np.copysign(a, b))
    check(value, Tensor(a).copysign(Tensor(b)).signbit(), np.signbit(np.copysign(a, b)))


@both
def test_classes_of_floats(value):
    for name in ("isnan", "isinf", "isfinite"):
        check(value, getattr(Tensor(SPECIAL), name)(), getattr(np, name)(SPECIAL))
        check(value, getattr(Tensor(INTS), name)(), getattr(np, name)(INTS))
    check(value, Tensor(SPECIAL).isinf(detect_negative=False), np.isposinf(SPECIAL))
    a, b = pairs(SPECIAL)
    check(value, Tensor(a).isclose(Tensor(b)), np.isclose(a, b))
    check(value, Tensor(a).isclose(Tensor(b), equal_nan=True), np.isclose(a, b, equal_nan=True))


@both
def test_where_broadcasts_and_promotes(value):
    c = np.array([[True], [False]])
    x, y = np.arange(3, dtype=np.int32), np.array([0.5], np.float32)
    check(value, Tensor(c).where(Tensor(x), Tensor(y)), np.where(c, x.astype(np.float32), y))
    check(value, Tensor(c).where(Tensor(x), 7), np.where(c, x, 7).astype(np.int32))
    check(value, Tensor(c).where(1, Tensor(x)), np.where(c, 1, x).astype(np.int32))
    check(value, Tensor(c).where(1.0, 0), np.where(c, 1.0, 0))
    assert Tensor(c).where(1, 0).dtype is dtypes.int32


@both
@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 7, -1, -3, 0.5, -0.5, 2.5, 17])
def test_powers_of_floats_by_numbers(value, exponent):
    x = np.array([0.3, 1.0, 2.7, 10.0, -1.5, -2.0], np.float32)
    x = np.abs(x) if exponent not in (0, 1, 2, 3, 7, -1, -3, 17) else x
    check(value, Tensor(x) ** exponent, x.astype(np.float64) ** exponent, rtol=4e-6)


@both
def test_powers_of_tensors(value):
    a, b = pairs(np.array([0.5, 1.0, 2.0, 3.5, 0.0], np.float32))
    check(value, Tensor(a) ** Tensor(b), a.astype(np.float64) ** b, rtol=4e-6)
    check(value, 2 ** Tensor(b), 2.0**b)
    check(value, 1.5 ** Tensor(b), 1.5**b)
    neg = np.array([-2.0, -2.0, -0.5, -1.0], np.float32)
    check(value, Tensor(neg) ** Tensor(np.array([3, 2, -1, 0.5], np.float32)), [-8, 4, -2, np.nan])


@both
def test_integer_powers(value):
    base = np.array([2, -3, 7, 0, 1, -1, 10], np.int32)
    check(value, Tensor(base) ** 5, base**5)
    e = np.array([3, 4, 0, 0, 9, 7, 9], np.int32)
    check(value, Tensor(base) ** Tensor(e), base**e)
    check(value, Tensor(base) ** Tensor(-e - 1), [0, 0, 0, 0, 1, 1, 0])
    with pytest.raises(ValueError, match="cast the base"):
        Tensor(base) ** -1
    check(value, Tensor(base) ** 0.5, np.where(base >= 0, np.sqrt(np.maximum(base, 0)), np.nan))


@both
def test_lerp_usum_uprod(value):
    a, b = RNG.random((3, 4), np.float32), RNG.random((3, 4), np.float32)
    check(value, Tensor(a).lerp(Tensor(b), 0.25), a + (b - a) * 0.25)
    check(value, Tensor(a).usum(Tensor(b), 1), a + b + 1)
    check(value, Tensor(a).uprod(Tensor(b), 2), a * b * 2)


def test_promotion():
    i8, u8, i32, f16, f32 = (Tensor.zeros(2, dtype=d) for d in ("int8", "uint8", "int32", "float16", "float32"))
    assert (i8 + u8).dtype is dtypes.int16
    assert (i8 + 1).dtype is dtypes.int8
    assert (i32 + 1.5).dtype is dtypes.float32
    assert (f16 + 1.5).dtype is dtypes.float16
    assert (f16 + f32).dtype is dtypes.float32
    assert (f16 + i32).dtype is dtypes.float16
    assert (i32 / i32).dtype is dtypes.float32
    assert (i32 < 1.5).dtype is dtypes.bool
    assert (Tensor([True]) + 1).dtype is dtypes.int32
    assert (Tensor([True]) + Tensor([True])).dtype is dtypes.bool
    assert (Tensor([True]) * 1.5).dtype is dtypes.float32


def test_a_scalar_needs_no_expand():
    x = Tensor.empty(3, 4)
    assert {u.op for u in (x * 2 + 1).uop.toposort()} == {Ops.BUFFER, Ops.RESHAPE, Ops.CONST, Ops.MUL, Ops.ADD}


def test_errors_name_operation_and_shapes():
    with pytest.raises(ValueError, match=r"add: shapes \(3,\) and \(4,\) do not broadcast"):
        Tensor.zeros(3) + Tensor.zeros(4)
    with pytest.raises(TypeError, match="bools"):
        Tensor([True]) - Tensor([False])
    with pytest.raises(TypeError):
        Tensor([1]) + "a"


@both
def test_broadcasting(value):
    a, b = RNG.random((3, 1, 4), np.float32), RNG.random((2, 1), np.float32)
    check(value, Tensor(a) * Tensor(b), a * b)
    check(value, Tensor(a) - Tensor(np.float32(2.5)), a - np.float32(2.5))
    check(value, Tensor(np.zeros((0, 3), np.float32)) + Tensor(np.ones(3, np.float32)), np.zeros((0, 3)))


@both
@pytest.mark.parametrize("source", KINDS)
def test_casts_between_all_types(value, source):
    x = np.array([0, 1, 2, 3, 100, 7]).astype(source)
    for target in KINDS:
        check(value, Tensor(x).cast(target), x.astype(target))


@both
def test_bitcast(value):
    x = np.array([1.0, -2.5, np.inf], np.float32)
    check(value, Tensor(x).bitcast("int32"), x.view(np.int32))
    check(value, Tensor(x).bitcast("uint8"), x.view(np.uint8))
    check(value, Tensor(x.view(np.uint8)).bitcast("float32"), x)
    with pytest.raises(ValueError, match="divide"):
        Tensor(np.zeros(3, np.uint8)).bitcast("float32")


INTEGERS = [dtypes.int8, dtypes.uint8, dtypes.int32, dtypes.uint32, dtypes.int64, dtypes.uint64]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize(
    "f", [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne], ids=lambda f: f.__name__
)
def test_comparisons_with_integers_beyond_the_type_are_exact(f, dtype):
    """Python's own integers are the reference. int64 was compared as float64, which has no 2**63 - 1."""
    values = [dtype.min, dtype.min + 1, 0, 1, dtype.max - 1, dtype.max]
    x = Tensor(np.array(values, dtype.name))
    for n in (dtype.max, dtype.max + 1, dtype.min, dtype.min - 1, 2 * dtype.max + 2, 2**64, -(2**64), 10**400):
        assert f(x, n).tolist() == [f(v, n) for v in values]
        assert f(n, x).tolist() == [f(n, v) for v in values]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_limits_beyond_the_type_limit_nothing(dtype):
    values = [dtype.min, 1, dtype.max]
    x, low, high = Tensor(np.array(values, dtype.name)), dtype.min - 1, dtype.max + 1
    for y in (x.clip(low, high), x.maximum(low), x.minimum(high), x.clip(max=high), x.clip(min=low)):
        assert y.tolist() == values and y.dtype is dtype
    assert x.clip(low, 1).tolist() == np.minimum(np.array(values, dtype.name), 1).tolist()


def test_integers_beyond_the_type_wrap_only_where_all_integers_do():
    """They were taken modulo 2**bits: 255 // 300 was 5, and a fill of 300 was 44."""
    data = np.array([1, 200, 255], np.uint8)
    x = Tensor(data)
    for f in (operator.add, operator.sub, operator.mul, operator.and_, operator.or_, operator.xor):
        assert f(x, 300).tolist() == f(data.astype(int), 300).astype(np.uint8).tolist()
    assert (x / 256).tolist() == (data / np.float32(256)).tolist()
    assert (256 / x).tolist() == (np.float32(256) / data).tolist()
    assert (x << 256).tolist() == (x >> 256).tolist() == [0, 0, 0]
    y = Tensor(data).realize()
    refused = [
        lambda: x // 300, lambda: x % -1, lambda: 300 // x, lambda: x.fmod(300),
        lambda: x.div(300, rounding_mode="trunc"),
        lambda: x.maximum(300), lambda: x.minimum(-1), lambda: x.clip(300, 400), lambda: (x > 1).where(x, 300),
        lambda: (x > 1).where(-1, x), lambda: x.masked_fill(x > 1, 300), lambda: x.pad((1, 1), value=-1),
        lambda: x.full_like(300), lambda: x.scatter(0, Tensor([0]), 300), lambda: y.__setitem__(0, 300),
        lambda: y.__setitem__(y > 1, 300), lambda: y.__setitem__(Tensor([0]), 300), lambda: Tensor.full((2,), 2**40),
        lambda: (x > 1).where(2**40, 0),
    ]  # fmt: skip
    for g in refused:
        with pytest.raises(ValueError, match=r"(300|-1|1099511627776) does not fit u?int(8|32)"):
            g()
    assert y.tolist() == [1, 200, 255]


@both
def test_floats_divided_and_rounded_down_are_those_of_python(value):
    a, b = pairs(SPECIAL)  # among them numbers by infinities: 1 // -inf is -1
    with np.errstate(all="ignore"):
        check(value, Tensor(a) // Tensor(b), np.floor_divide(a, b))


@both
@pytest.mark.parametrize("kind", ["uint8", "int8", "int16", "int32"])
def test_differences_of_integers_do_not_wrap_where_floats_come_out(value, kind):
    info = np.iinfo(kind)
    a, b = pairs(np.array([info.min, 0, 1, 5, 100, info.max], kind))
    for rtol, atol in ((0.0, 2.0), (0.25, 0.5), (1e-5, 1e-8)):
        want = np.isclose(a.astype(np.float64), b.astype(np.float64), rtol, atol)
        check(value, Tensor(a).isclose(Tensor(b), rtol, atol), want)
    want = a + (b.astype(np.float64) - a) * 0.25
    check(value, Tensor(a).lerp(Tensor(b), 0.25), want)
