"""Picking elements by position: gather, scatter, triangles, sorting, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from aril import Tensor
from tests.values import both, check

RNG = np.random.default_rng(5)
X = RNG.standard_normal((4, 5)).astype(np.float32)


@both
def test_triangles(value):
    x = RNG.standard_normal((2, 4, 5)).astype(np.float32)
    for k in range(-5, 6):
        check(value, Tensor(x).tril(k), np.tril(x, k))
        check(value, Tensor(x).triu(k), np.triu(x, k))


@both
def test_masked_fill(value):
    check(value, Tensor(X).masked_fill(Tensor(X > 0), -1), np.where(X > 0, -1, X))


@both
def test_gather(value):
    for dim in (0, 1, -1):
        i = RNG.integers(0, X.shape[dim], (3, 4))
        check(value, Tensor(X).gather(dim, Tensor(i)), gathered(X, dim, i))
    check(value, Tensor(X).gather(1, Tensor(np.full((4, 1), -1))), X[:, -1:])
    with pytest.raises(ValueError, match="gather"):
        Tensor(X).gather(0, Tensor(np.zeros((3, 6), np.int32)))


def gathered(x, dim, index):
    out = np.zeros(index.shape, x.dtype)
    for at in np.ndindex(*index.shape):
        place = list(at)
        place[dim] = index[at]
        out[at] = x[tuple(place)]
    return out


def scattered(x, dim, index, src, f):
    out = x.copy()
    for at in np.ndindex(*index.shape):
        place = list(at)
        place[dim] = index[at]
        out[tuple(place)] = f(out[tuple(place)], src[at])
    return out


@both
@pytest.mark.parametrize("dim", [0, 1])
def test_scatter(value, dim):
    index, src = RNG.integers(0, 4, (3, 4)), RNG.standard_normal((3, 4)).astype(np.float32)
    ti, ts = Tensor(index), Tensor(src)
    check(value, Tensor(X).scatter(dim, ti, ts), scattered(X, dim, index, src, lambda a, b: b))
    check(value, Tensor(X).scatter(dim, ti, 2.5), scattered(X, dim, index, src, lambda a, b: 2.5))
    check(value, Tensor(X).scatter(dim, ti, ts, "add"), scattered(X, dim, index, src, lambda a, b: a + b), atol=1e-6)
    check(
        value, Tensor(X).scatter(dim, ti, ts, "multiply"), scattered(X, dim, index, src, lambda a, b: a * b), atol=1e-6
    )
    check(value, Tensor(X).scatter_reduce(dim, ti, ts, "amax"), scattered(X, dim, index, src, max))
    check(value, Tensor(X).scatter_reduce(dim, ti, ts, "amin"), scattered(X, dim, index, src, min))
    count = scattered(np.ones_like(X), dim, index, src, lambda a, b: a + 1)
    want = scattered(X, dim, index, src, lambda a, b: a + b) / count
    check(value, Tensor(X).scatter_reduce(dim, ti, ts, "mean"), want, atol=1e-6)
    touched = scattered(np.zeros_like(X), dim, index, src, lambda a, b: 1) > 0
    want = np.where(touched, scattered(np.zeros_like(X), dim, index, src, lambda a, b: a + b), X)
    check(value, Tensor(X).scatter_reduce(dim, ti, ts, "sum", include_self=False), want, atol=1e-6)


@both
@pytest.mark.parametrize("shape, dim", [((17,), 0), ((3, 40), 1), ((70, 2), 0), ((2, 3, 5), 1), ((1,), 0), ((0, 3), 0)])
def test_sort(value, shape, dim):
    for x in (RNG.standard_normal(shape).astype(np.float32), RNG.integers(-4, 4, shape).astype(np.int32)):
        values, order = Tensor(x).sort(dim)
        check(value, values, np.sort(x, dim))
        check(value, order, np.argsort(x, dim, kind="stable").astype(np.int32))
        values, order = Tensor(x).sort(dim, descending=True)
        check(value, values, np.flip(np.sort(x, dim), dim))
        check(value, order, np.argsort(-x, dim, kind="stable").astype(np.int32))
        check(value, Tensor(x).argsort(dim), np.argsort(x, dim, kind="stable").astype(np.int32))


@both
def test_sort_puts_nan_last(value):
    x = np.array([3, np.nan, -np.inf, np.inf, 0.0], np.float32)
    check(value, Tensor(x).sort()[0], np.sort(x))


@both
def test_topk(value):
    got, where = Tensor(X).topk(3, 1)
    order = np.argsort(-X, 1)[:, :3]
    check(value, got, np.take_along_axis(X, order, 1))
    check(value, where, order.astype(np.int32))
    check(value, Tensor(X).topk(2, 0, largest=False)[0], np.sort(X, 0)[:2])
    with pytest.raises(ValueError, match="topk"):
        Tensor(X).topk(6, 1)
