"""Functions and activations against SciPy in float64, within a few ulp, with their special values."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special

from aril import GlobalCounters, Tensor
from aril.mixin import fits
from aril.ops import Ops
from tests.values import both, check

WIDE = np.concatenate([np.linspace(-9, 9, 181), np.geomspace(1e-6, 50, 60), -np.geomspace(1e-6, 50, 60), [0.0]])
UNIT = np.concatenate([np.linspace(-1, 1, 101), [1e-5, -1e-5, 1e-3]])
POSITIVE = np.geomspace(1e-6, 1e6, 120)

FUNCTIONS = {
    "exp": (np.exp, WIDE),
    "exp2": (np.exp2, WIDE),
    "expm1": (np.expm1, WIDE),
    "log": (np.log, POSITIVE),
    "log2": (np.log2, POSITIVE),
    "log10": (np.log10, POSITIVE),
    "log1p": (np.log1p, np.concatenate([POSITIVE, -POSITIVE[POSITIVE < 0.99]])),
    "sqrt": (np.sqrt, POSITIVE),
    "rsqrt": (lambda x: 1 / np.sqrt(x), POSITIVE),
    "reciprocal": (np.reciprocal, POSITIVE),
    "square": (np.square, WIDE),
    "sin": (np.sin, WIDE),
    "cos": (np.cos, WIDE),
    "tan": (np.tan, UNIT),
    "asin": (np.arcsin, UNIT),
    "acos": (np.arccos, UNIT),
    "atan": (np.arctan, WIDE),
    "sinh": (np.sinh, WIDE),
    "cosh": (np.cosh, WIDE),
    "tanh": (np.tanh, WIDE),
    "asinh": (np.arcsinh, WIDE),
    "acosh": (np.arccosh, 1 + POSITIVE),
    "atanh": (np.arctanh, UNIT[np.abs(UNIT) < 1]),
    "erf": (special.erf, WIDE),
    "sigmoid": (special.expit, WIDE),
    "logsigmoid": (special.log_expit, WIDE),
    "relu": (lambda x: np.maximum(x, 0), WIDE),
    "relu6": (lambda x: np.clip(x, 0, 6), WIDE),
    "silu": (lambda x: x * special.expit(x), WIDE),
    "swish": (lambda x: x * special.expit(x), WIDE),
    "gelu": (lambda x: x * special.ndtr(x), WIDE),
    "quick_gelu": (lambda x: x * special.expit(1.702 * x), WIDE),
    "softplus": (lambda x: np.logaddexp(0, x), WIDE),
    "mish": (lambda x: x * np.tanh(np.logaddexp(0, x)), WIDE),
    "elu": (lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))), WIDE),
    "celu": (lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))), WIDE),
    "selu": (lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(np.minimum(x, 0))), WIDE),
    "leaky_relu": (lambda x: np.where(x > 0, x, 0.01 * x), WIDE),
    "hardsigmoid": (lambda x: np.clip(x / 6 + 0.5, 0, 1), WIDE),
    "hardswish": (lambda x: x * np.clip(x + 3, 0, 6) / 6, WIDE),
    "hardtanh": (lambda x: np.clip(x, -1, 1), WIDE),
    "softsign": (lambda x: x / (1 + np.abs(x)), WIDE),
}


@both
@pytest.mark.parametrize("name", FUNCTIONS)
def test_float32(value, name):
    want, x = FUNCTIONS[name]
    x = x.astype(np.float32)
    # The exponential of a number of size 50 has an error of 50 roundings of the product x * log2(e), unless codegen
    # knows better.
    loose = {
        "exp": 6e-6,
        "expm1": 6e-6,
        "sinh": 6e-6,
        "cosh": 6e-6,
        "gelu": 2e-5,
        "silu": 8e-6,
        "swish": 8e-6,
        "quick_gelu": 2e-5,
        "sigmoid": 8e-6,
        "logsigmoid": 8e-6,
        "softplus": 8e-6,
        "mish": 1e-5,
        "tan": 4e-6,
    }
    check(value, getattr(Tensor(x), name)(), want(x.astype(np.float64)), rtol=loose.get(name, 2e-6), atol=3e-7)


@pytest.mark.parametrize("name", FUNCTIONS)
@both
def test_float64(value, name):
    want, x = FUNCTIONS[name]
    check(value, getattr(Tensor(x), name)(), want(x), rtol=3e-14, atol=3e-16)


@both
@pytest.mark.parametrize("name", ["exp", "tanh", "sigmoid", "gelu", "erf", "log1p", "cos"])
def test_float16_is_rounded_once(value, name):
    want, x = FUNCTIONS[name]
    x = x[np.abs(x) < 9].astype(np.float16)
    got = value(getattr(Tensor(x), name)())
    assert got.dtype == np.float16
    exact = want(x.astype(np.float64)).astype(np.float16)
    assert np.abs(got.view(np.int16).astype(int) - exact.view(np.int16)).max() <= 1


@both
@pytest.mark.parametrize(
    "name",
    ["exp", "exp2", "log", "log2", "sqrt", "tanh", "atan", "erf", "sinh", "cosh", "asinh", "log1p", "expm1", "sin"],
)
def test_special_values(value, name):
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, 1.0, 200.0, -200.0], np.float32)
    want = special.erf if name == "erf" else FUNCTIONS[name][0]
    with np.errstate(all="ignore"):
        check(value, getattr(Tensor(x), name)(), want(x).astype(np.float32), rtol=1e-5)


@both
def test_nothing_overflows_on_the_way(value):
    x = np.array([-1e4, -100, 100, 1e4], np.float32)
    check(value, Tensor(x).sigmoid(), [0, 0, 1, 1])
    check(value, Tensor(x).softplus(), [0, 0, 100, 1e4])
    check(value, Tensor(x).tanh(), [-1, -1, 1, 1])
    check(value, Tensor(x).silu(), [0, 0, 100, 1e4])
    check(value, Tensor(x).elu(), [-1, -1, 100, 1e4])
    check(value, Tensor(x).logaddexp(Tensor(x)), x + np.log(2), rtol=1e-6)
    check(value, Tensor(x).mish(), [0, 0, 100, 1e4])


@both
def test_relu_keeps_nan(value):
    check(value, Tensor(np.array([np.nan, -1, 2], np.float32)).relu(), [np.nan, 0, 2])
    check(value, Tensor(np.array([-3, 4], np.int32)).relu(), np.array([0, 4], np.int32))


@both
def test_gelu_by_tanh(value):
    x = WIDE.astype(np.float32)
    w = x.astype(np.float64)
    want = 0.5 * w * (1 + np.tanh(np.sqrt(2 / np.pi) * (w + 0.044715 * w**3)))
    check(value, Tensor(x).gelu("tanh"), want, rtol=2e-5, atol=1e-6)
    with pytest.raises(ValueError, match="approximate"):
        Tensor(x).gelu("fast")


@both
def test_integers_give_the_default_float(value):
    check(value, Tensor([1, 4, 9]).sqrt(), [1, 2, 3])
    check(value, Tensor([0, 1]).exp(), [1, np.e])


@pytest.mark.parametrize(
    "name", ["tanh", "sinh", "asinh", "atanh", "atan", "erf", "silu", "softsign", "expm1", "log1p", "asin"]
)
@both
def test_the_derivative_at_zero(value, name):
    """Odd functions computed from |x| keep their slope at 0."""
    x = Tensor(np.array([0.0, -0.0], np.float64))
    (g,) = getattr(x, name)().sum().gradient(x)
    slope = {"erf": 2 / np.sqrt(np.pi), "silu": 0.5}.get(name, 1.0)
    check(value, g, [slope, slope], rtol=1e-9)


@pytest.mark.parametrize(
    "name", [n for n in FUNCTIONS if n not in ("relu", "relu6", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu")]
)
def test_derivatives_against_differences(name):
    from tests.values import of_graph

    want, x = FUNCTIONS[name]
    x = x[(np.abs(x) > 1e-2) & (np.abs(x) < 8) & (np.abs(x) != 1)]
    if name == "acosh":
        x = x[x > 1.05]
    if name in ("asin", "acos", "atanh"):
        x = x[np.abs(x) < 0.97]
    t = Tensor(x)
    (g,) = getattr(t, name)().sum().gradient(t)
    h = 1e-5 * np.maximum(np.abs(x), 0.1)
    check(of_graph, g, (want(x + h) - want(x - h)) / (2 * h), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize(("dtype", "most"), [(np.float32, 3e7), (np.float64, 1_600_000)])
def test_cosine_and_tangent_keep_their_digits_at_far_zeros(dtype, most):
    rng = np.random.default_rng(0)
    turns = rng.integers(0, int(most / np.pi) - 1, 5000)
    zeros = ((turns + 0.5) * np.pi).astype(dtype)
    x = np.concatenate([zeros, np.nextafter(zeros, dtype(0)), -zeros, rng.uniform(-most, most, 5000).astype(dtype)])
    t = Tensor(x)
    for got, exact, least in ((t.cos(), np.cos, 2), (t.tan(), np.tan, 4)):
        want = exact(x.astype(np.longdouble))
        error = np.abs(got.numpy() - want) / np.spacing(np.abs(want).astype(dtype))
        assert error.max() < least


@pytest.mark.parametrize("x", [1e-6, -20.0, 40.0, 3e5, -1.0, -2.0, np.inf, np.nan, -0.0])
@pytest.mark.parametrize("name", ["exp", "cos", "log1p"])
def test_functions_of_constants_keep_the_digits_of_those_of_values(name, x):
    """`1e-6 + 1` is not rounded ahead of its logarithm where both are numbers of the graph either."""
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(np.float64(np.float32(x)))
        expected = np.float64(np.float32(expected)) if abs(expected) > 1e38 else expected
    for constant in (Tensor(x, dtype="float32"), Tensor.full((3,), x, dtype="float32")):
        np.testing.assert_allclose(getattr(constant, name)().numpy(), expected, rtol=3e-7)


def test_the_tail_of_gelu_is_right_to_its_last_digits():
    x = np.linspace(-12, 6, 20001)
    want = x * special.ndtr(x)
    np.testing.assert_allclose(Tensor(x).gelu().numpy(), want, rtol=4e-14)
    got = Tensor(x.astype(np.float32)).gelu().numpy().astype(np.float64)
    exact = x.astype(np.float32).astype(np.float64)
    exact *= special.ndtr(exact)
    # exp(-x*x/2): a rounding of the exponent counts as often as the exponent is large
    assert np.all(np.abs(got - exact) <= (4 + x * x) * 2.0**-23 * np.abs(exact) + 2.0**-149)


def test_a_logarithm_of_what_a_fit_covers_is_one_polynomial_and_a_cosine_one_sine():
    x = Tensor(np.ones(1000, np.float32)).realize()
    for f, most in ((Tensor.softplus, 35), (Tensor.logsigmoid, 36), (Tensor.cos, 5)):
        before = GlobalCounters.ops
        f(x).realize()
        assert GlobalCounters.ops - before < most * 1000, f


def test_polynomials_are_multiply_adds():
    x = Tensor(np.ones(1000, np.float32)).realize()
    before = GlobalCounters.ops
    x.gelu().realize()
    assert GlobalCounters.ops - before < 45 * 1000  # one polynomial of 10 steps, one exponential
    inner = [u.op for u in Tensor.zeros(4, dtype="float32").asin().uop.toposort()]
    assert inner.count(Ops.MULACC) == len(fits.ASIN_32) - 1
