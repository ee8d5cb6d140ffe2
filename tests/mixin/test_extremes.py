"""Elementwise functions where they bend, overflow, vanish or end: values and derivatives, against formulas in float64.

The formulas hold at infinities too, as limits. Types below float32 are checked where they round to.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from scipy import special

from aril import Tensor, dtypes

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
TYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32, "float64": np.float64}
SELU, SELU_ALPHA = 1.0507009873554805, 1.6732632423543772
sigmoid, cdf = special.expit, special.ndtr


def density(x: Any) -> Any:
    return np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


class Function(NamedTuple):
    """A function, its derivative, and where it is defined."""

    value: Callable[[Any], Any]
    slope: Callable[[Any], Any]
    low: float = -math.inf
    high: float = math.inf


def gate(value: Callable[[Any], Any], slope: Callable[[Any], Any]) -> Function:
    """A function that is 0 far below 0 and the identity far above, where its formula would have infinity times 0."""

    def limited(f: Callable[[Any], Any], above: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda x: np.where(x > 5000, above(x), f(np.clip(x, -5000, 5000).astype(np.longdouble)))

    return Function(limited(value, lambda x: x), limited(slope, np.ones_like))


def tanh_gate(x: Any) -> Any:  # (1 + tanh(u)) / 2 is sigmoid(2 u)
    return 1 / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def mish_gate(x: Any) -> Any:
    t = np.exp(-np.abs(x))
    return np.where(x > 0, (1 + 2 * t) / (1 + 2 * t + 2 * t * t), (t * t + 2 * t) / (t * t + 2 * t + 2))


def mish_slope(x: Any) -> Any:
    g = mish_gate(x)
    return g + x * (1 - g) * (1 + g) / (1 + np.exp(-x))


def longsig(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


FUNCTIONS = {
    "exp": Function(np.exp, np.exp),
    "exp2": Function(np.exp2, lambda x: math.log(2) * np.exp2(x)),
    "expm1": Function(np.expm1, np.exp),
    "log": Function(np.log, lambda x: 1 / x, 0.0),
    "log2": Function(np.log2, lambda x: 1 / x / math.log(2), 0.0),
    "log10": Function(np.log10, lambda x: 1 / x / math.log(10), 0.0),
    "log1p": Function(np.log1p, lambda x: 1 / (1 + x), -1.0),
    "sqrt": Function(np.sqrt, lambda x: 0.5 / np.sqrt(x), 0.0),
    "reciprocal": Function(lambda x: 1 / x, lambda x: -1 / x / x),
    "asin": Function(np.arcsin, lambda x: 1 / np.sqrt((1 - x) * (1 + x)), -1.0, 1.0),
    "acos": Function(np.arccos, lambda x: -1 / np.sqrt((1 - x) * (1 + x)), -1.0, 1.0),
    "atan": Function(np.arctan, lambda x: 1 / np.hypot(1, x) ** 2),
    "sinh": Function(np.sinh, np.cosh),
    "cosh": Function(np.cosh, np.sinh),
    "tanh": Function(np.tanh, lambda x: 4 * sigmoid(2 * x) * sigmoid(-2 * x)),
    "asinh": Function(np.arcsinh, lambda x: 1 / np.hypot(1, x)),
    "acosh": Function(np.arccosh, lambda x: 1 / np.sqrt(x - 1) / np.sqrt(x + 1), 1.0),
    "atanh": Function(np.arctanh, lambda x: 1 / ((1 - x) * (1 + x)), -1.0, 1.0),
    "erf": Function(special.erf, lambda x: 2 / math.sqrt(math.pi) * np.exp(-x * x)),
    "sigmoid": Function(sigmoid, lambda x: sigmoid(x) * sigmoid(-x)),
    "logsigmoid": Function(special.log_expit, lambda x: sigmoid(-x)),
    "softplus": Function(lambda x: np.logaddexp(0, x), sigmoid),
    "silu": gate(lambda x: x * longsig(x), lambda x: longsig(x) * (1 + x * longsig(-x))),
    "quick_gelu": gate(
        lambda x: x * longsig(1.702 * x), lambda x: longsig(1.702 * x) * (1 + 1.702 * x * longsig(-1.702 * x))
    ),
    "gelu": gate(lambda x: x * cdf(np.float64(x)), lambda x: cdf(np.float64(x)) + x * density(x)),
    "gelu tanh": gate(
        lambda x: x * tanh_gate(x),
        lambda x: (
            tanh_gate(x) + x * tanh_gate(x) * tanh_gate(-x) * 2 * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)
        ),
    ),
    "mish": gate(lambda x: x * mish_gate(x), mish_slope),
    "elu": Function(lambda x: np.where(x > 0, x, np.expm1(x)), lambda x: np.exp(np.minimum(x, 0))),
    "celu": Function(lambda x: np.where(x > 0, x, np.expm1(x)), lambda x: np.exp(np.minimum(x, 0))),
    "selu": Function(
        lambda x: SELU * np.where(x > 0, x, SELU_ALPHA * np.expm1(x)),
        lambda x: SELU * np.where(x > 0, 1, SELU_ALPHA * np.exp(np.minimum(x, 0))),
    ),
    "hardswish": Function(
        lambda x: np.where(x <= -3, 0, np.where(x >= 3, x, x * np.clip(x + 3, 0, 6) / 6)),
        lambda x: np.where(x <= -3, 0, np.where(x >= 3, 1, (2 * x + 3) / 6)),
    ),
    "hardsigmoid": Function(lambda x: np.clip(x / 6 + 0.5, 0, 1), lambda x: np.where(np.abs(x) >= 3, 0, 1 / 6)),
    "softsign": Function(
        lambda x: np.where(np.isinf(x), np.sign(x), x / (1 + np.abs(x))), lambda x: 1 / (1 + np.abs(x)) ** 2
    ),
    "square": Function(np.square, lambda x: 2 * x),
    "abs": Function(np.abs, lambda x: np.where(np.isnan(x), 0, np.sign(x))),
}


def points(kind: str) -> np.ndarray:
    """Numbers of all sizes of a type, with both signs, those beside which functions overflow among them."""
    info = ml_dtypes.finfo(TYPES[kind])
    top, tiny, least = float(info.max), float(info.tiny), float(info.smallest_subnormal)
    x = [0.0, least, tiny, float(info.eps), 1e-8, 1e-4, 1e-3, 0.1, 0.25, 0.4, 0.41, 0.5, 0.51, 1 - float(info.eps) / 2]
    x += [1.0, 1 + float(info.eps), 1.5, 2.0, 3.01, 5.0, 7.0, 10.0, 20.0, 50.0, 80.0, 88.5, 89.1, 89.4, 104.0, 700.0]
    x += [709.9, 710.3, 710.6, 1e5, 1e8, 1e20, 1e38, 1e300, top / 2, top]
    kept = np.array([v for v in x if v <= top]).astype(TYPES[kind])
    return np.concatenate([kept, -kept, np.array([math.inf, -math.inf, math.nan], TYPES[kind])])


def tensor(x: np.ndarray, kind: str) -> Tensor:
    if kind != "bfloat16":
        return Tensor(x)
    return Tensor(x.view(np.uint16)).bitcast(dtypes.bfloat16).contiguous().realize()


def apply(name: str, x: Tensor) -> Tensor:
    return x.gelu("tanh") if name == "gelu tanh" else getattr(x, name)()


def close(got: np.ndarray, want: np.ndarray, kind: str, x: np.ndarray, ulps: float) -> None:
    """`got` within `ulps` of `want` (and the rounding of the argument of an exponential as small as `want`), or within
    the type's least normal number; an infinity may stand for the greatest number and the other way round."""
    info = ml_dtypes.finfo(TYPES[kind])
    top = float(info.max)
    with np.errstate(over="ignore"):
        rounded = want.astype(TYPES[kind]).astype(np.float64)
    assert np.array_equal(np.isnan(got), np.isnan(rounded)), x[np.isnan(got) != np.isnan(rounded)]
    a, b = np.clip(got, -top, top), np.clip(want, -top, top)
    allowed = ulps + (2 * np.abs(np.log(np.maximum(np.abs(b), 1e-300))) if info.bits > 16 else 0.0)
    error = np.abs(a - b) > allowed * float(info.eps) * np.abs(b) + float(info.tiny)
    error &= ~np.isnan(b)
    assert not error.any(), [
        (float(v), float(p), float(q)) for v, p, q in zip(x[error], a[error], b[error], strict=True)
    ]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_at_the_ends_of_every_type(name):
    for kind in TYPES:
        x = points(kind)
        wide = x.astype(np.float64)
        got = apply(name, tensor(x, kind)).numpy().astype(np.float64)
        want = np.asarray(FUNCTIONS[name].value(wide), np.float64)
        close(got, want, kind, wide, 64 if TYPES[kind](1).itemsize > 2 else 1)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_at_the_ends_of_every_type(name):
    one = FUNCTIONS[name]
    for kind in TYPES:
        x = points(kind)
        x = x[~((x < one.low) | (x > one.high))]
        wide = x.astype(np.float64)
        t = tensor(x, kind)
        (g,) = apply(name, t).sum().gradient(t)
        want = np.asarray(one.slope(wide), np.float64)
        close(g.numpy().astype(np.float64), want, kind, wide, 128 if TYPES[kind](1).itemsize > 2 else 4)


@pytest.mark.parametrize("values", [[1.0, 2.0, 3.0], [0.0, 2.0, 3.0], [0.0, 0.0, 3.0], [0.0, 0.0, 0.0]])
def test_the_second_derivative_of_a_product_with_zeros(values):
    x = Tensor(values, dtype=dtypes.float64)
    weight = np.array([1.0, 10.0, 100.0])
    (g,) = x.prod().gradient(x)
    (second,) = (g * Tensor(weight)).sum().gradient(x)
    v = np.array(values)
    want = [sum(weight[i] * np.prod(np.delete(v, [i, j])) for i in range(3) if i != j) for j in range(3)]
    np.testing.assert_allclose(g.numpy(), [np.prod(np.delete(v, i)) for i in range(3)])
    np.testing.assert_allclose(second.numpy(), want)


@pytest.mark.parametrize(
    "f, want",
    [
        (Tensor.log1p, lambda x: -1 / (1 + x) ** 2),
        (Tensor.asinh, lambda x: -x / (1 + x * x) ** 1.5),
        (lambda t: t.logaddexp(Tensor(np.zeros(6))), lambda x: 1 / (2 + np.exp(x) + np.exp(-x))),
        (lambda t: t.binary_crossentropy_logits(Tensor(np.ones(6))), lambda x: 1 / (2 + np.exp(x) + np.exp(-x)) / 6),
    ],
    ids=["log1p", "asinh", "logaddexp", "binary_crossentropy_logits"],
)
def test_second_derivatives_at_and_near_zero(f, want):
    x = np.array([0.0, 1e-20, 2e-16, -1e-8, 3e-3, -0.25])
    t = Tensor(x)
    (slope,) = f(t).sum().gradient(t)
    (second,) = slope.sum().gradient(t)
    np.testing.assert_allclose(second.numpy(), want(x), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype, rtol", [(np.float32, 6e-7), (np.float64, 2e-15)])
def test_three_derivatives_of_log1p_are_exact(dtype, rtol):
    x = np.linspace(-0.9, 2.0, 301).astype(dtype)
    wide = 1 + x.astype(np.float64)
    t = Tensor(x)
    slope = t.log1p()
    for want in (1 / wide, -1 / wide**2, 2 / wide**3):
        (slope,) = slope.sum().gradient(t)
        np.testing.assert_allclose(slope.numpy(), want, rtol=rtol)


@pytest.mark.parametrize("dtype, rtol", [(np.float32, 4e-7), (np.float64, 1e-15)])
def test_the_slope_of_softplus_is_the_sigmoid(dtype, rtol):
    x = np.linspace(-40, 40, 1001).astype(dtype)
    t = Tensor(x)
    (slope,) = t.softplus().sum().gradient(t)
    np.testing.assert_allclose(slope.numpy(), special.expit(x.astype(np.float64)), rtol=rtol)


def test_a_logarithm_that_is_not_chosen_leaves_the_gradient_alone():
    x = Tensor([2.0, -3.0])
    (slope,) = (x > 0).where(x.log1p(), x).sum().gradient(x)
    np.testing.assert_allclose(slope.numpy(), [1 / 3, 1.0], rtol=1e-6)


def test_sums_of_exponentials_with_infinities():
    a = np.array([-math.inf, math.inf, math.nan, 1.0, -math.inf, 3e38])
    b = np.array([-math.inf, math.inf, 1.0, math.inf, 2.0, 3e38])
    np.testing.assert_allclose(Tensor(a).logaddexp(Tensor(b)).numpy(), np.logaddexp(a, b))
    x, y = Tensor(a), Tensor(b)
    first, second = x.logaddexp(y).sum().gradient(x, y)
    np.testing.assert_allclose(first.numpy(), [0.5, 0.5, math.nan, 0, 0, 0.5])
    np.testing.assert_allclose(second.numpy(), [0.5, 0.5, math.nan, 1, 1, 0.5])
    for row in (
        [-math.inf, -math.inf, 1.0, 2.0],
        [1.0, math.inf, 2.0],
        [-math.inf, 3.0, math.inf],
        [1.0, math.nan, 2.0],
    ):
        np.testing.assert_allclose(Tensor(row).logcumsumexp(0).numpy(), np.logaddexp.accumulate(row), rtol=1e-6)
        np.testing.assert_allclose(Tensor(row).logsumexp(0).numpy(), np.logaddexp.reduce(row), rtol=1e-6)
