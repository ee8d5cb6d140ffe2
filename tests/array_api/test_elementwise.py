"""Elementwise functions of the array API: special values as in NumPy, which follows the standard; types, operators."""

from __future__ import annotations

import math
import operator

import numpy as np
import pytest

import aril.array_api as xp

NUMPY = {
    "acos": "arccos", "acosh": "arccosh", "asin": "arcsin", "asinh": "arcsinh", "atan": "arctan", "atanh": "arctanh",
    "atan2": "arctan2", "pow": "power", "round": "rint", "bitwise_invert": "invert", "bitwise_left_shift": "left_shift",
    "bitwise_right_shift": "right_shift",
}  # fmt: skip
FLOATS = [np.float32, np.float64]
INTEGERS = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]

UNARY = [
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "conj", "cos", "cosh", "exp", "expm1", "floor",
    "isfinite", "isinf", "isnan", "log", "log10", "log1p", "log2", "negative", "positive", "real", "reciprocal",
    "round", "sign", "signbit", "sin", "sinh", "sqrt", "square", "tan", "tanh", "trunc",
]  # fmt: skip
BITS = ["bitwise_and", "bitwise_or", "bitwise_xor"]
COMPARISONS = ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"]
BINARY = [
    "add", "atan2", "copysign", "divide", "equal", "floor_divide", "greater", "greater_equal", "hypot", "less",
    "less_equal", "logaddexp", "maximum", "minimum", "multiply", "nextafter", "not_equal", "pow", "remainder",
    "subtract",
]  # fmt: skip


def reference(name):
    return getattr(np, NUMPY.get(name, name))


def specials(kind):
    limits = np.finfo(kind)
    least = np.nextafter(kind(0), kind(1))
    values = [0.0, 1, 0.5, 1.5, 2.5, 2, 3, 10, math.pi, math.pi / 2, 0.3, 100.7, 1e-10, 1e20, 88, 720, math.inf]
    values += [float(limits.max), float(limits.tiny), float(least), 1 + float(limits.eps)]
    return np.array([*values, *[-v for v in values], math.nan], kind)


def close(got, expected, ulp=16):
    got = np.asarray(got)
    assert got.dtype == expected.dtype and got.shape == expected.shape
    if expected.dtype.kind != "f":
        np.testing.assert_array_equal(got, expected)
        return
    with np.errstate(all="ignore"):
        error = np.abs(got.astype(np.longdouble) - expected) / np.where(expected == 0, 1, np.abs(expected))
    same = (got == expected) | (np.isnan(got) & np.isnan(expected)) | (error < ulp * np.finfo(expected.dtype).eps)
    same &= (np.signbit(got) == np.signbit(expected)) | np.isnan(expected)
    assert same.all(), f"got {got[~same][:5]}, expected {expected[~same][:5]} at {np.nonzero(~same)[0][:5]}"


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("name", UNARY)
def test_special_values_of_one_argument(name, kind):
    x = specials(kind)
    with np.errstate(all="ignore"):
        close(getattr(xp, name)(xp.asarray(x)), reference(name)(x))


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("name", BINARY)
def test_special_values_of_two_arguments(name, kind):
    v = specials(kind)
    a, b = [m.reshape(-1).copy() for m in np.meshgrid(v, v)]
    with np.errstate(all="ignore"):
        close(getattr(xp, name)(xp.asarray(a), xp.asarray(b)), reference(name)(a, b))


@pytest.mark.parametrize("kind", INTEGERS)
def test_integers(kind):
    limits = np.iinfo(kind)
    v = np.array([0, 1, 2, 3, 7, limits.max, limits.min, limits.max - 1], kind)
    x = xp.asarray(v)
    with np.errstate(all="ignore"):
        for name in (
            "abs",
            "ceil",
            "floor",
            "trunc",
            "round",
            "positive",
            "negative",
            "sign",
            "square",
            "bitwise_invert",
        ):
            expected = v if name in ("ceil", "floor", "trunc", "round") else reference(name)(v)
            close(getattr(xp, name)(x), expected)
        for name in ("isnan", "isinf", "isfinite"):
            close(getattr(xp, name)(x), reference(name)(v))
        a, b = [m.reshape(-1).copy() for m in np.meshgrid(v, v)]
        for name in (*BITS, "add", "subtract", "multiply", *COMPARISONS, "maximum", "minimum"):
            close(getattr(xp, name)(xp.asarray(a), xp.asarray(b)), reference(name)(a, b))
        d = np.where(b == 0, 1, b).astype(kind)
        keep = ~((a == limits.min) & (d == kind(-1 if limits.min < 0 else 1)) & (limits.min < 0))
        for name in ("floor_divide", "remainder"):
            close(getattr(xp, name)(xp.asarray(a[keep]), xp.asarray(d[keep])), reference(name)(a[keep], d[keep]))
        s = (np.arange(len(a)) % limits.bits).astype(kind)
        for name in ("bitwise_left_shift", "bitwise_right_shift"):
            close(getattr(xp, name)(xp.asarray(a), xp.asarray(s)), reference(name)(a, s).astype(kind))
        e = (np.arange(len(a)) % 5).astype(kind)
        close(xp.pow(xp.asarray(a), xp.asarray(e)), np.power(a, e))


def test_bools():
    a, b = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    x, y = xp.asarray(a), xp.asarray(b)
    for name in (
        "logical_and",
        "logical_or",
        "logical_xor",
        "bitwise_and",
        "bitwise_or",
        "bitwise_xor",
        "equal",
        "not_equal",
    ):
        close(getattr(xp, name)(x, y), reference(name)(a, b))
    close(xp.logical_not(x), ~a)
    close(~x, ~a)


@pytest.mark.parametrize("kind", FLOATS)
def test_remainders_are_exact_at_any_distance(kind):
    rng = np.random.default_rng(0)
    span = 120 if kind is np.float32 else 1000
    a = np.ldexp(rng.uniform(-1, 1, 400), rng.integers(-span, span, 400)).astype(kind)
    b = np.ldexp(rng.uniform(-1, 1, 400), rng.integers(-span, span, 400)).astype(kind)
    got = np.asarray(xp.remainder(xp.asarray(a), xp.asarray(b)))
    expected = np.array([x % y for x, y in zip(a.tolist(), b.tolist(), strict=True)]).astype(kind)
    np.testing.assert_array_equal(got, expected)


# --- types ---


def test_promotion_within_a_kind():
    def both(a, b):
        return xp.add(xp.ones(2, dtype=a), xp.ones(2, dtype=b)).dtype

    assert both(xp.int8, xp.int16) is xp.int16 and both(xp.uint8, xp.int8) is xp.int16
    assert both(xp.uint32, xp.int32) is xp.int64 and both(xp.float32, xp.float64) is xp.float64
    assert both(xp.uint8, xp.uint64) is xp.uint64
    assert xp.result_type(xp.int8, xp.ones(1, dtype=xp.uint16), 3) is xp.int32
    assert xp.can_cast(xp.int8, xp.int16) and not xp.can_cast(xp.int16, xp.int8)
    assert not xp.can_cast(xp.int8, xp.float32) and xp.can_cast(xp.ones(1), xp.float64)


@pytest.mark.parametrize(
    ("a", "b"),
    [("int32", "float32"), ("bool", "int8"), ("bool", "float64"), ("uint64", "int8"), ("int64", "uint64")],
)
def test_kinds_do_not_mix(a, b):
    x, y = xp.ones(2, dtype=getattr(xp, a)), xp.ones(2, dtype=getattr(xp, b))
    for f in (xp.equal, xp.maximum, operator.add, operator.lt, lambda p, q: xp.concat([p, q])):
        with pytest.raises(TypeError, match="promote|takes"):
            f(x, y)
    with pytest.raises(TypeError, match="promote"):
        xp.result_type(x, y)


def test_numbers_take_the_type_of_the_array_they_meet():
    assert (xp.ones(2, dtype=xp.int8) + 1).dtype is xp.int8 and (2 * xp.ones(2, dtype=xp.float64)).dtype is xp.float64
    assert (xp.ones(2) + 0.5).dtype is xp.float32 and (xp.ones(2) - 1).dtype is xp.float32
    assert (xp.ones(2, dtype=xp.bool) & True).dtype is xp.bool
    assert (
        xp.maximum(xp.ones(2), 3).dtype is xp.float32
        and xp.where(xp.asarray([True]), 1.0, xp.ones(1)).dtype is xp.float32
    )
    for f in (
        lambda: xp.ones(2, dtype=xp.int8) + 1.5,
        lambda: xp.ones(2, dtype=xp.bool) + 1,
        lambda: xp.ones(2, dtype=xp.int8) & True,
        lambda: 1 + xp.ones(2, dtype=xp.bool),
        lambda: xp.ones(2) + True,
    ):
        with pytest.raises(TypeError):
            f()
    with pytest.raises(OverflowError, match="300 does not fit int8"):
        xp.ones(2, dtype=xp.int8) + 300


@pytest.mark.parametrize(
    ("f", "kind"),
    [
        (xp.sin, "int32"), (xp.sqrt, "bool"), (xp.abs, "bool"), (xp.logical_not, "int8"),
        (xp.bitwise_invert, "float32"), (xp.divide, "int32"), (xp.bitwise_left_shift, "bool"), (xp.add, "bool"),
        (xp.imag, "float32"), (xp.atan2, "int8"),
    ],
)  # fmt: skip
def test_functions_refuse_other_kinds(f, kind):
    x = xp.ones(2, dtype=getattr(xp, kind))
    with pytest.raises(TypeError, match="takes"):
        f(x) if f in (xp.sin, xp.sqrt, xp.abs, xp.logical_not, xp.bitwise_invert, xp.imag) else f(x, x)


# --- operators ---

OPERATORS = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "divide": operator.truediv,
    "floor_divide": operator.floordiv, "remainder": operator.mod, "pow": operator.pow, "equal": operator.eq,
    "not_equal": operator.ne, "less": operator.lt, "less_equal": operator.le, "greater": operator.gt,
    "greater_equal": operator.ge,
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_are_the_functions(name):
    a, b = np.array([5.5, -2.0, 0.0], np.float32), np.array([2.0, 3.0, -1.5], np.float32)
    f = OPERATORS[name]
    with np.errstate(all="ignore"):
        close(f(xp.asarray(a), xp.asarray(b)), reference(name)(a, b))
        close(f(xp.asarray(a), 2.0), reference(name)(a, np.float32(2)))
        close(f(2.0, xp.asarray(a)), reference(name)(np.float32(2), a))


def test_bit_operators():
    a, b = np.array([5, 12, -3], np.int16), np.array([3, 2, 1], np.int16)
    x, y = xp.asarray(a), xp.asarray(b)
    for f in (operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift):
        close(f(x, y), f(a, b))
        close(f(x, 2), f(a, np.int16(2)))
        close(f(7, y), f(np.int16(7), b))
    close(~x, ~a)
    close(-x, -a)
    close(+x, +a)
    close(abs(x), abs(a))


@pytest.mark.parametrize("f", [operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ipow])
def test_in_place_operators_change_the_array_itself(f):
    v = np.array([1.5, 2.0], np.float64)
    x = xp.asarray(v)
    same, other = x, xp.asarray(x, copy=True)
    x = f(x, 2.0)
    assert x is same
    close(x, f(v.copy(), 2.0))
    close(other, v)
    with pytest.raises(ValueError, match="does not fit the array"):
        f(x, xp.ones((3, 2), dtype=xp.float64))
    with pytest.raises((TypeError, ValueError)):
        f(xp.ones(2, dtype=xp.float32), xp.ones(2, dtype=xp.float64))


def test_operators_leave_strangers_to_python():
    with pytest.raises(TypeError):
        xp.ones(2) + "a"
    assert (xp.ones(2) == "a") is False
    with pytest.raises(TypeError, match="neither an array nor a number"):
        xp.add(xp.ones(2), "a")
    with pytest.raises(TypeError, match="one argument at least is an array"):
        xp.add(1, 2)


def test_clip():
    v = np.array([-3.0, 0.5, math.nan, 9.0], np.float32)
    x = xp.asarray(v)
    close(xp.clip(x, -1, 2.5), np.clip(v, -1, 2.5))
    close(xp.clip(x, max=xp.asarray([0.0, 1.0, 2.0, 3.0])), np.minimum(v, np.array([0, 1, 2, 3], np.float32)))
    close(xp.clip(x), v)
    close(
        xp.clip(xp.asarray(v[:, None]), xp.asarray([0.0, 1.0]), None),
        np.clip(v[:, None], np.array([0, 1], np.float32), None),
    )
    assert xp.clip(xp.asarray([1, 2, 3]), 2, None).dtype is xp.int32
    with pytest.raises(TypeError):
        xp.clip(x, xp.asarray([1.0], dtype=xp.float64))
