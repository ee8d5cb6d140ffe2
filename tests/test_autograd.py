"""Gradients: every rule against finite differences in float64, and what is promised of shapes, dtypes and ties."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from aril.autograd import gradient
from aril.dtype import dtypes
from aril.ops import Ops
from aril.tensor import Tensor
from aril.uop import UOp
from aril.uop.shape import shear
from tests.reference import evaluate

STEP = 1e-4


def leaf(array):
    """A float64 tensor that holds `array`."""
    return Tensor(np.asarray(array, dtype=np.float64))


def value(t):
    """The elements of a tensor or a node, by the NumPy evaluator."""
    return np.asarray(evaluate(t if isinstance(t, UOp) else t.uop))


def arrays(*shapes, low=-2.0, high=2.0, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.uniform(low, high, s) for s in shapes]


def numeric(f, at, weights):
    """Central differences of sum(f * weights), of fourth order, for every element of every input."""
    out = []
    for k, x in enumerate(at):
        slope = np.zeros_like(x)
        for i in np.ndindex(x.shape):
            total = 0.0
            for steps, factor in ((1, 8.0), (-1, -8.0), (2, -1.0), (-2, 1.0)):
                moved = [a.copy() for a in at]
                moved[k][i] += steps * STEP
                total += factor * float((value(f(*[leaf(a) for a in moved])) * weights).sum())
            slope[i] = total / (12 * STEP)
        out.append(slope)
    return out


def check(f, *at, rtol=1e-6):
    leaves = [leaf(a) for a in at]
    out = f(*leaves)
    weights = np.random.default_rng(1).uniform(0.5, 1.5, tuple(out.shape))
    grads = gradient(out.uop, leaf(weights).uop, [t.uop for t in leaves])
    for got, x, expected in zip(grads, at, numeric(f, at, weights), strict=True):
        assert got is not None and got.shape == x.shape and got.dtype is dtypes.float64
        np.testing.assert_allclose(value(got), expected, rtol=rtol, atol=1e-7)


def node(op, *src, arg=None):
    return Tensor(UOp(op, tuple([s.uop for s in src]), arg))


A, B = arrays((2, 3), (2, 3))
POSITIVE, POWER = arrays((2, 3), (2, 3), low=0.3, high=2.0)
SCALAR = np.array(1.3)

ELEMENTWISE = {
    "add": (lambda a, b: a + b, A, B),
    "sub": (lambda a, b: a - b, A, B),
    "mul": (lambda a, b: a * b, A, B),
    "mul of one by itself": (lambda a: a * a, A),
    "fdiv": (lambda a, b: node(Ops.FDIV, a, b), A, POSITIVE),
    "reciprocal": (lambda a: node(Ops.RECIPROCAL, a), POSITIVE),
    "neg": (lambda a: -a, A),
    "exp2": (lambda a: node(Ops.EXP2, a), A),
    "log2": (lambda a: node(Ops.LOG2, a), POSITIVE),
    "sin": (lambda a: node(Ops.SIN, a), A),
    "sqrt": (lambda a: node(Ops.SQRT, a), POSITIVE),
    "pow": (lambda a, b: node(Ops.POW, a, b), POSITIVE, B),
    "max": (lambda a, b: node(Ops.MAX, a, b), A, B),
    "where": (lambda a, b: (a < b).where(a * 2.0, b * 3.0), A, B),
    "mulacc": (lambda a, b, c: node(Ops.MULACC, a, b, c), A, B, POSITIVE),
    "fmod": (lambda a, b: a.fmod(b), A, POSITIVE),
    "mod": (lambda a, b: a % b, A, POSITIVE),
    "scalar added": (lambda a, s: a + s, A, SCALAR),
    "scalar multiplied": (lambda s, a: s * a, SCALAR, A),
    "scalar powers": (lambda s, a: node(Ops.POW, s, a), SCALAR, A),
    "abs": (lambda a: a.abs(), A),
    "relu": (lambda a: a.relu(), A),
    "exp": (lambda a: a.exp(), A),
    "log": (lambda a: a.log(), POSITIVE),
    "sigmoid": (lambda a: a.sigmoid(), A),
    "tanh": (lambda a: a.tanh(), A),
    "gelu": (lambda a: a.gelu(), A),
}

REDUCTIONS = {
    "sum": (lambda a: node(Ops.REDUCE, a, arg=(Ops.ADD, (1,))), A),
    "max over axes": (lambda a: node(Ops.REDUCE, a, arg=(Ops.MAX, (1,))), A),
    "min": (lambda a: a.min(0), A),
    "product": (lambda a: node(Ops.REDUCE, a, arg=(Ops.MUL, (1,))), A),
    "product beside one zero": (
        lambda a: node(Ops.REDUCE, a, arg=(Ops.MUL, (0,))),
        np.array([[0.0, 0.0], [2.0, 3.0], [4.0, 0.0]]),
    ),
    "mean": (lambda a: a.mean(), A),
    "variance": (lambda a: a.var(1), A),
    "softmax": (lambda a: a.softmax(-1), A),
    "log softmax": (lambda a: a.log_softmax(0), A),
    "logsumexp": (lambda a: a.logsumexp(1), A),
    "matmul": (lambda a, b: a @ b, *arrays((2, 3), (3, 2))),
    "cumsum": (lambda a: a.cumsum(1), A),
}

MOVEMENT = {
    "reshape": (lambda a: a.reshape(3, 2) * leaf(np.arange(6.0).reshape(3, 2)), A),
    "expand": (lambda a: a.reshape(1, 6).expand(4, 6), A),
    "permute": (lambda a: a.reshape(1, 2, 3).permute(2, 0, 1), A),
    "pad": (lambda a: a.pad(((1, 2), (0, 1))), A),
    "pad with a value": (lambda a: a.pad(((1, 2), (0, 1)), value=3.0) * 2.0, A),
    "shrink": (lambda a: a.shrink(((0, 1), (1, 3))), A),
    "flip": (lambda a: a.flip(0), A),
    "cat": (lambda a, b: a.cat(b, dim=1), A, B),
    "stack": (lambda a, b: a.stack(b, dim=0), A, B),
    "rows by position": (lambda a: a._take(Tensor(np.array([[1, 1, 0]], dtype=np.int32))), A),
    "windows of a shear": (lambda a: _windows(a), *arrays((6,))),
    "shear backwards": (lambda a: Tensor(shear(a.uop, 0, 1, -2, 5, 3)), *arrays((9, 3))),
    "shear downwards with room": (lambda a: Tensor(shear(a.uop, 1, 0, 3, 1, 2)), *arrays((2, 7))),
}

NETWORKS = {
    "conv2d": (lambda x, w: x.conv2d(w, padding=1), *arrays((1, 2, 3, 3), (2, 2, 2, 2))),
    "strided and dilated conv2d": (lambda x, w: x.conv2d(w, stride=2, dilation=2), *arrays((1, 1, 6, 5), (2, 1, 2, 2))),
    "grouped conv2d": (lambda x, w: x.conv2d(w, groups=2), *arrays((1, 2, 3, 3), (2, 1, 2, 2))),
    "max pooling": (lambda x: x.max_pool2d(), *arrays((1, 1, 4, 4))),
    "average pooling": (lambda x: x.avg_pool2d(), *arrays((1, 1, 4, 4))),
    "layer norm": (lambda x: x.layernorm(), *arrays((2, 4))),
}


def _windows(a):
    return Tensor(shear(a.reshape(6, 1).expand(6, 3).uop, 0, 1, 1, 0, 4))


TABLES = {"elementwise": ELEMENTWISE, "reductions": REDUCTIONS, "movement": MOVEMENT, "networks": NETWORKS}


@pytest.mark.parametrize(("table", "name"), [(t, name) for t, rows in TABLES.items() for name in rows])
def test_a_gradient_is_that_of_finite_differences(table, name):
    check(*TABLES[table][name])


@pytest.mark.parametrize(
    "name", ["mul", "fdiv", "exp2", "log2", "sin", "sqrt", "pow", "reciprocal", "where", "sigmoid", "scalar multiplied"]
)
def test_second_order(name):
    f, *at = ELEMENTWISE[name]
    check(lambda *xs: _slope(f, xs), *at, rtol=1e-5)


@pytest.mark.parametrize("name", ["product", "softmax", "variance", "matmul"])
def test_second_order_of_reductions(name):
    f, *at = REDUCTIONS[name]
    check(lambda *xs: _slope(f, xs), *at, rtol=1e-5)


def test_second_order_of_a_convolution():
    f, *at = NETWORKS["conv2d"]
    check(lambda *xs: _slope(f, xs), *at, rtol=1e-5)


def _slope(f, xs):
    """The gradient of sum(f**2) with respect to the first input."""
    out = f(*xs)
    (g,) = gradient((out * out).uop, (out * 0.0 + 1.0).uop, [xs[0].uop])
    return Tensor(g)


# --- promises ---


def one_gradient(out, *leaves):
    return [
        None if g is None else value(g) for g in gradient(out.uop, UOp.const(out.dtype, 1.0), [t.uop for t in leaves])
    ]


def test_what_the_root_does_not_depend_on_has_no_gradient():
    a, b = leaf(A), leaf(B)
    got = one_gradient(a * 2.0, a, b)
    np.testing.assert_array_equal(got[0], np.full((2, 3), 2.0))
    assert got[1] is None


def test_detach_trunc_and_comparisons_pass_nothing_on():
    a = leaf(A)
    assert one_gradient(a.detach() * 2.0 + a.trunc() + (a < 0.0).cast(dtypes.float64), a) == [None]


def test_integers_have_no_gradient():
    n = Tensor(np.arange(3, dtype=np.int32))
    x = leaf(np.ones(3))
    got = one_gradient(x * n.cast(dtypes.float64), x, n)
    np.testing.assert_array_equal(got[0], [0.0, 1.0, 2.0])
    assert got[1] is None


def test_a_root_of_integers_is_refused():
    n = Tensor(np.arange(3, dtype=np.int32))
    with pytest.raises(ValueError, match="only floats have gradients"):
        gradient(n.uop, n.uop, [n.uop])


def test_a_root_gradient_of_another_shape_is_refused():
    a = leaf(A)
    with pytest.raises(ValueError, match=r"shape \(2, 3\)"):
        gradient(a.uop, leaf(np.ones(3)).uop, [a.uop])


def test_the_root_itself_is_a_target():
    a = leaf(A)
    np.testing.assert_array_equal(one_gradient(a, a)[0], np.ones((2, 3)))


def test_a_target_in_the_middle_has_a_gradient_and_passes_it_on():
    a = leaf(A)
    middle = a * 3.0
    got = one_gradient(middle * 2.0, middle, a)
    np.testing.assert_array_equal(got[0], np.full((2, 3), 2.0))
    np.testing.assert_array_equal(got[1], np.full((2, 3), 6.0))


def test_greatest_elements_that_tie_share_the_gradient_evenly():
    x = leaf([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])
    got = one_gradient(x.max(1), x)[0]
    np.testing.assert_allclose(got, [[0.0, 0.5, 0.5], [1 / 3, 1 / 3, 1 / 3]])


def test_two_equal_operands_of_maximum_have_half_the_gradient_each():
    a, b = leaf([1.0, 2.0]), leaf([1.0, 3.0])
    got = one_gradient(a.maximum(b), a, b)
    np.testing.assert_array_equal(got[0], [0.5, 0.0])
    np.testing.assert_array_equal(got[1], [0.5, 1.0])


def test_relu_has_gradient_zero_at_zero_and_lets_nan_through():
    x = leaf([-1.0, 0.0, 2.0, math.nan])
    np.testing.assert_array_equal(one_gradient(x.relu(), x)[0], [0.0, 0.0, 1.0, 1.0])


def test_power_at_zero():
    base, power = leaf([0.0, 0.0, 2.0]), leaf([0.0, 2.0, 0.0])
    got = one_gradient(node(Ops.POW, base, power), base, power)
    np.testing.assert_array_equal(got[0], [0.0, 0.0, 0.0])
    np.testing.assert_allclose(got[1], [0.0, 0.0, math.log(2.0)])


def test_a_cast_brings_the_gradient_back_to_the_type_of_its_source():
    x = Tensor(np.ones(3, dtype=np.float16))
    (g,) = gradient((x.cast(dtypes.float32) * 3.0).uop, UOp.const(dtypes.float32, 1.0), [x.uop])
    assert g.dtype is dtypes.float16


def test_small_floats_are_summed_wide():
    x = Tensor(np.float16(1.0))
    (g,) = gradient((x + Tensor(np.zeros(5000, dtype=np.float16))).uop, UOp.const(dtypes.float16, 1.0), [x.uop])
    assert g.dtype is dtypes.float16
    assert float(value(g)) == 5000.0  # in float16 alone the sum sticks at 2048


def test_a_long_chain_needs_no_recursion():
    x = leaf([1.0])
    u = x.uop
    for _ in range(10_000):
        u = UOp(Ops.NEG, (u,))
    (g,) = gradient(u, UOp.const(dtypes.float64, 1.0), [x.uop])
    assert g.shape == (1,)


def test_gradient_passes_an_assignment_to_the_value_and_to_what_was_not_overwritten():
    old, new = leaf(np.arange(4.0)), leaf([10.0, 20.0])
    view = old.shrink(((1, 3),)).uop
    after = UOp(Ops.AFTER, (old.uop, UOp(Ops.STORE, (view, new.uop))))
    out = Tensor(after) * leaf([1.0, 2.0, 3.0, 4.0])
    to_old, to_new = gradient(out.uop, UOp.const(dtypes.float64, 1.0), [old.uop, new.uop])
    np.testing.assert_array_equal(value(to_old), [1.0, 0.0, 0.0, 4.0])
    np.testing.assert_array_equal(value(to_new), [2.0, 3.0])


def test_an_operation_without_a_rule_is_named():
    x = leaf(np.ones(4))
    odd = UOp(Ops.REDUCE, (x.uop,), (Ops.XOR, (0,)))
    with pytest.raises(NotImplementedError, match="XOR"):
        gradient(odd, UOp.const(dtypes.float64, 1.0), [x.uop])


@pytest.mark.parametrize("table", TABLES)
def test_compiled_gradients_are_those_of_the_evaluator(table):
    found, expected = [], []
    for f, *at in TABLES[table].values():
        leaves = [leaf(a) for a in at]
        out = f(*leaves)
        weights = leaf(np.random.default_rng(1).uniform(0.5, 1.5, tuple(out.shape)))
        for g in gradient(out.uop, weights.uop, [t.uop for t in leaves]):
            found.append(Tensor(g))
            expected.append(value(g))
    Tensor.realize(*found)
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("zeros", range(5))
def test_products_have_derivatives_of_every_order_at_zeros(zeros):
    """The k-th along directions a, b, ..: over all k different elements, theirs times the product of the others."""
    rng = np.random.default_rng(zeros)
    x, along = rng.normal(size=5), rng.normal(size=(4, 5))
    x[rng.permutation(5)[:zeros]] = 0
    t = Tensor(x)
    slope = t.prod()
    for order in range(1, 5):
        slope = (slope.gradient(t)[0] * Tensor(along[order - 1])).sum()
        want = 0.0
        for chosen in itertools.permutations(range(5), order):
            rest = [x[j] for j in range(5) if j not in chosen]
            want += math.prod([along[i, j] for i, j in enumerate(chosen)]) * math.prod(rest)
        assert abs(slope.item() - want) < 1e-12, order


def test_second_derivatives_of_products_over_several_axes():
    x = np.random.default_rng(0).normal(size=(3, 2, 3))
    x[0, :, 1] = x[2, 0, 0] = 0
    t, weight = Tensor(x), np.random.default_rng(1).normal(size=(3, 2, 3))

    def slope(at):
        out = np.empty_like(at)
        for i in np.ndindex(at.shape):
            others = at.copy()
            others[i] = 1
            out[i] = others[:, i[1]].prod()
        return out

    (first,) = t.prod((0, 2)).sum().gradient(t)
    np.testing.assert_allclose(first.numpy(), slope(x), rtol=1e-12, atol=1e-14)
    (second,) = (first * Tensor(weight)).sum().gradient(t)
    want = np.empty_like(x)
    for i in np.ndindex(x.shape):
        h = np.zeros_like(x)
        h[i] = 1  # linear in each element
        want[i] = ((slope(x + h) - slope(x)) * weight).sum()
    np.testing.assert_allclose(second.numpy(), want, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("kind", ["float32", "float64", "bfloat16"])
def test_gradients_that_cancel_leave_no_rounding_of_the_way_to_base_2(kind):
    """The softmax over one class is 1 wherever it is."""
    x = Tensor(np.random.default_rng(0).normal(size=(33, 1)) * 5).cast(kind)
    labels = Tensor(np.zeros(33, np.int32))
    for loss in (x.cross_entropy(labels), x.cross_entropy(labels, weight=Tensor([0.3]).cast(kind)), x.softmax(1).sum()):
        assert not loss.gradient(x)[0].float().numpy().any()
    y = Tensor([3.0, 5.0])
    assert y.log().sum().gradient(y)[0].tolist() == [np.float32(1) / np.float32(3), np.float32(1) / np.float32(5)]
    e = y.exp()
    assert (e.sum().gradient(y)[0] - e).tolist() == [0, 0]
