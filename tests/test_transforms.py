"""Transforms: mapped functions equal loops, derivatives equal finite differences."""

from __future__ import annotations

import numpy as np
import pytest

from aril import Context, Tensor, dtypes, function
from aril.transforms import hessian, jacobian, jvp, vjp, vmap

RNG = np.random.default_rng(0)
A = RNG.normal(size=(3, 4))
W = RNG.normal(size=(4, 2))


@function
def squared(x):
    return x * x + 1.0


MAPPED = {
    "elementwise": lambda x: (x.sin() * 2.0 + x.sum()).exp(),
    "matmul": lambda x: x @ Tensor(W),
    "softmax": lambda x: x.softmax(),
    "windows": lambda x: x.unfold(0, 2).sum(-1),
    "flip, pad, slice": lambda x: x.flip(0).pad((1, 2))[1:5].reshape(2, 2).T,
    "one row for all": lambda x: x + Tensor(W[:, 0]),
    "gather": lambda x: x[Tensor([2, 0, 2])],
    "argmax": lambda x: x.argmax(),
    "position by example": lambda x: Tensor(W)[x.argmax()],
    "own position": lambda x: x[x.argmax().reshape(1)],
    "stack": lambda x: x.stack(x * 2),
    "shared": lambda x: Tensor(W) * 1.0,
    "function": lambda x: squared(x) * x,
    "gradient": lambda x: (x.sin() * x).sum().gradient(x)[0],
}


@pytest.mark.parametrize("name", MAPPED)
def test_a_mapped_function_is_a_loop(name):
    f = MAPPED[name]
    got = vmap(f)(Tensor(A)).numpy()
    want = np.stack([f(Tensor(row)).numpy() for row in A])
    np.testing.assert_allclose(got, want, rtol=1e-12)


def test_axes_of_arguments_and_results():
    def f(a, b, c):
        return a * b.sum() + c, b

    b = RNG.normal(size=(5, 3))
    one, two = vmap(f, in_axes=(0, 1, None), out_axes=1)(Tensor(A), Tensor(b), Tensor(W[:, 1]))
    np.testing.assert_allclose(one.numpy(), (A * b.sum(0)[:, None] + W[:, 1]).T)
    np.testing.assert_allclose(two.numpy(), b)


def test_mapping_twice():
    got = vmap(vmap(lambda a, b: a * b, in_axes=(None, 0)), in_axes=(0, None))(Tensor(A[:, 0]), Tensor(W[:, 0]))
    np.testing.assert_allclose(got.numpy(), np.outer(A[:, 0], W[:, 0]))


def test_vmap_says_what_does_not_fit():
    with pytest.raises(ValueError, match="must agree in one number of examples"):
        vmap(lambda a, b: a + b)(Tensor(A), Tensor(W))
    with pytest.raises(ValueError, match="in_axes has 1 entries for 2 arguments"):
        vmap(lambda a, b: a + b, in_axes=(0,))(Tensor(A), Tensor(A))


def f_of(x):
    return (x @ Tensor(W)).sin() * x.sum(-1, keepdim=True)


def value(a):
    return np.sin(a @ W) * a.sum(-1, keepdims=True)


def test_forward_derivatives():
    v = RNG.normal(size=A.shape)
    y, moved = jvp(f_of, [Tensor(A)], [Tensor(v)])
    np.testing.assert_allclose(y.numpy(), value(A))
    h = 1e-6
    np.testing.assert_allclose(moved.numpy(), (value(A + h * v) - value(A - h * v)) / (2 * h), rtol=1e-6, atol=1e-8)


def test_reverse_derivatives_are_the_adjoint():
    v, w = RNG.normal(size=A.shape), RNG.normal(size=(3, 2))
    _, moved = jvp(f_of, [Tensor(A)], [Tensor(v)])
    y, pull = vjp(f_of, Tensor(A))
    np.testing.assert_allclose(y.numpy(), value(A))
    (g,) = pull(Tensor(w))
    np.testing.assert_allclose((moved.numpy() * w).sum(), (g.numpy() * v).sum())


def test_the_jacobian():
    a = A[:2]
    got = jacobian(f_of)(Tensor(a)).numpy()
    assert got.shape == (2, 2, 2, 4)
    for i in np.ndindex(a.shape):
        step = np.zeros_like(a)
        step[i] = 1e-6
        want = (value(a + step) - value(a - step)) / 2e-6
        np.testing.assert_allclose(got[(..., *i)], want, rtol=1e-6, atol=1e-8)


def test_the_hessian():
    x = A[0]
    got = hessian(lambda t: (t.exp() * t.sum()).sum())(Tensor(x)).numpy()
    # d2/dxi dxj of sum(exp) * sum: exp_i + exp_j + [i = j] exp_i * sum
    e = np.exp(x)
    np.testing.assert_allclose(got, e[:, None] + e[None, :] + np.diag(e * x.sum()), rtol=1e-12)
    with pytest.raises(ValueError, match="must give one element"):
        hessian(lambda t: t * t)(Tensor(x))


def test_derivatives_of_several_arguments():
    _, moved = jvp(lambda a, b: a * b, [Tensor([2.0]), Tensor([3.0])], [Tensor([1.0]), Tensor([10.0])])
    assert moved.tolist() == [23.0]
    got = jacobian(lambda a, b: a * b, argnums=1)(Tensor([2.0, 5.0]), Tensor([3.0, 4.0])).tolist()
    assert got == [[2.0, 0.0], [0.0, 5.0]]
    with pytest.raises(ValueError, match="tangents of shapes"):
        jvp(lambda a: a, [Tensor([1.0])], [Tensor([1.0, 2.0])])


def test_random_numbers_of_examples():
    x = Tensor(np.zeros((4, 500)))

    def noisy(row):
        return row + Tensor.rand(500, dtype=dtypes.float64)

    with pytest.raises(ValueError, match="say randomness="):
        vmap(noisy)(x)
    with pytest.raises(ValueError, match="randomness is 'error', 'same' or 'different'"):
        vmap(noisy, randomness="some")
    same = vmap(noisy, randomness="same")(x).numpy()
    assert (same == same[0]).all() and 0.45 < same[0].mean() < 0.55
    Tensor.manual_seed(7)
    apart = vmap(noisy, randomness="different")(x).numpy()
    after = Tensor.rand(500, dtype=dtypes.float64).numpy()
    Tensor.manual_seed(7)  # the numbers that a loop over the examples would draw
    np.testing.assert_array_equal(apart, [noisy(row).numpy() for row in x])
    np.testing.assert_array_equal(after, Tensor.rand(500, dtype=dtypes.float64).numpy())


def test_random_numbers_of_examples_of_examples():
    x = Tensor(np.zeros((2, 3, 8)))
    inner = vmap(lambda row: row + Tensor.rand(8, dtype=dtypes.float64), randomness="different")
    out = vmap(inner, randomness="different")(x).numpy()
    assert len(np.unique(out)) == 48
    shared = vmap(inner, randomness="same")(x).numpy()
    assert (shared[0] == shared[1]).all() and len(np.unique(shared)) == 24


def test_dropout_of_examples():
    with Context(TRAINING=1):
        kept = vmap(lambda row: row.dropout(0.5), randomness="different")(Tensor.ones(3, 1000)).numpy()
    assert set(np.unique(kept)) == {0, 2} and (kept[0] != kept[1]).any() and 0.9 < kept.mean() < 1.1
