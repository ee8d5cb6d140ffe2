"""Writing by position and the gradients of reading by position, against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

from aril import Tensor

torch = pytest.importorskip("torch", reason="PyTorch comes with the extra `peers`")
RNG = np.random.default_rng(0)


def same(ours, theirs, *pairs):
    """Equal results, and equal gradients of their weighted sums by each (our leaf, its leaf)."""
    np.testing.assert_allclose(ours.numpy(), theirs.detach().numpy(), rtol=1e-12, atol=1e-12)
    weight = RNG.normal(size=theirs.shape)
    grads = (ours * Tensor(weight)).sum().gradient(*[a for a, _ in pairs])
    (theirs * torch.tensor(weight)).sum().backward()
    for g, (_, leaf) in zip(grads, pairs, strict=True):
        np.testing.assert_allclose(g.numpy(), leaf.grad.numpy(), rtol=1e-11, atol=1e-12)


def leaves(*arrays):
    return [(Tensor(a), torch.tensor(a, requires_grad=True)) for a in arrays]


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
def test_scatter_reduce_with_ties_and_zeros(reduce, include_self):
    x, src = RNG.integers(-2, 3, (6, 4)) * 1.0, RNG.integers(-2, 3, (9, 4)) * 1.0
    index = RNG.integers(0, 6, (9, 4))
    if not include_self:
        x += 0.5  # PyTorch lets what is left out share the gradient of an extreme that it equals; here it does not
    a, b = leaves(x, src)
    ours = a[0].scatter_reduce(0, Tensor(index), b[0], reduce, include_self)
    theirs = a[1].scatter_reduce(0, torch.tensor(index), b[1], reduce, include_self=include_self)
    same(ours, theirs, a, b)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_gather_along_every_axis(dim):
    x = RNG.normal(size=(5, 4, 3))
    shape = [3, 4, 2]
    shape[dim] = 7
    index = RNG.integers(0, x.shape[dim], shape)
    (a,) = leaves(x)
    same(a[0].gather(dim, Tensor(index)), a[1].gather(dim, torch.tensor(index)), a)


def test_advanced_indexing_with_repeated_positions():
    x, rows, columns = RNG.normal(size=(6, 5, 3)), RNG.integers(-6, 6, (4, 2)), RNG.integers(-5, 5, (4, 2))
    (a,) = leaves(x)
    ours = a[0][Tensor(rows), Tensor(columns)]
    same(ours, a[1][torch.tensor(rows), torch.tensor(columns)], a)


def test_pooling_and_back():
    x = RNG.normal(size=(2, 3, 6, 8))
    top, where = torch.nn.functional.max_pool2d(torch.tensor(x), 2, return_indices=True)
    (a,) = leaves(top.numpy())
    same(a[0].max_unpool2d(Tensor(where.numpy())), torch.nn.functional.max_unpool2d(a[1], where, 2), a)


@pytest.mark.parametrize("largest", [True, False])
def test_the_gradient_of_the_greatest(largest):
    (a,) = leaves(RNG.normal(size=(4, 90)))
    same(a[0].topk(7, largest=largest)[0], a[1].topk(7, largest=largest)[0], a)
