"""Bound variables as sizes and offsets, eager and captured: the values of NumPy, and one kernel for all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aril import Tensor, Variable, jit
from aril.engine import compile as compiler

X = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((6, 5)).astype(np.float32)

CASES: list[tuple[str, Callable[[Any, Any, Any], Any], Callable[[Any, Any, int], Any]]] = [
    ("elementwise", lambda x, w, n: x[:n] * 2 + 1, lambda x, w, n: x[:n] * 2 + 1),
    ("sum over the variable axis", lambda x, w, n: x[:n].sum(0), lambda x, w, n: x[:n].sum(0)),
    ("sum beside it", lambda x, w, n: x[:n].sum(1), lambda x, w, n: x[:n].sum(1)),
    ("sum of all", lambda x, w, n: x[:n].sum(), lambda x, w, n: x[:n].sum()),
    ("matmul", lambda x, w, n: x[:n] @ w, lambda x, w, n: x[:n] @ w),
    ("matmul over it", lambda x, w, n: x[:n].permute(1, 0) @ x[:n], lambda x, w, n: x[:n].T @ x[:n]),
    ("offset", lambda x, w, n: x[n] + 1, lambda x, w, n: x[n] + 1),
    ("window", lambda x, w, n: x[n : n + 2] * 3, lambda x, w, n: x[n : n + 2] * 3),
    ("reshape", lambda x, w, n: x[:n].reshape(n, 2, 3).sum(2), lambda x, w, n: x[:n].reshape(n, 2, 3).sum(2)),
    ("max", lambda x, w, n: x[:n].max(0), lambda x, w, n: x[:n].max(0)),
    ("softmax over it", lambda x, w, n: x[:n].softmax(0), lambda x, w, n: np.exp(x[:n]) / np.exp(x[:n]).sum(0)),
    ("mean", lambda x, w, n: x[:n].mean(0), lambda x, w, n: x[:n].mean(0)),
]


def value_of(t: Tensor, n: int) -> np.ndarray:
    """The elements of a tensor whose first axis may have a variable length."""
    if all(isinstance(d, int) for d in t.shape):
        return t.numpy()
    from aril.engine.realize import storage_of

    t.realize()
    shape = tuple([d if isinstance(d, int) else n for d in t.shape])
    flat = np.frombuffer(storage_of(t.uop.base).as_memoryview(), np.float32)
    return flat[: int(np.prod(shape))].reshape(shape).copy()


@pytest.mark.parametrize(("build", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_one_kernel_for_all_values(build: Any, expected: Any) -> None:
    x, w, v = Tensor(X).realize(), Tensor(W).realize(), Variable("n", 1, 6)
    counts = []
    for n in (3, 1, 6, 4):
        found = value_of(build(x, w, v.bind(n)), n)
        np.testing.assert_allclose(found, expected(X, W, n), rtol=1e-5, atol=1e-5)
        counts.append(sum(compiler.stats.values()))
    assert counts[0] == counts[-1]


@pytest.mark.parametrize(("build", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_captured_once_for_all_values(build: Any, expected: Any) -> None:
    w, v = Tensor(W).realize(), Variable("n", 1, 6)
    f = jit(lambda x, n: build(x, w, n))
    for n in (3, 1, 6, 4, 2):
        x = (X * n).astype(np.float32)
        np.testing.assert_allclose(value_of(f(Tensor(x), v.bind(n)), n), expected(x, W, n), rtol=1e-4, atol=1e-4)


def test_values_outside_of_the_bounds_are_refused() -> None:
    with pytest.raises(ValueError, match="n"):
        Variable("n", 1, 6).bind(7)


def test_two_values_in_one_computation_are_refused() -> None:
    x, v = Tensor(X).realize(), Variable("n", 1, 6)
    with pytest.raises(ValueError, match="bind it once"):
        (x[v.bind(2)] + x[v.bind(3)]).realize()


def test_assignment_at_a_variable_place() -> None:
    x, v = Tensor(np.zeros((8, 2), np.float32)).realize(), Variable("n", 0, 7)
    expected = np.zeros((8, 2), np.float32)
    for n in (3, 0, 7):
        place = v.bind(n)
        x[place : place + 1] = x[place : place + 1] + Tensor(np.full((1, 2), n + 1, np.float32))
        x.realize()
        expected[n] += n + 1
        np.testing.assert_array_equal(x.numpy(), expected)
