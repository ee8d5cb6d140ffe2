"""A value is equal to itself: sums that both sides of a comparison come from are computed once."""

from __future__ import annotations

import numpy as np

from aril import Tensor

RNG = np.random.default_rng(0)


def test_the_greatest_of_summed_rows_is_found() -> None:
    """`x == x.max()` holds once a row, whatever loops the sums behind x are computed in."""
    x = Tensor(RNG.standard_normal((7, 37, 5)).astype(np.float32)).sum(1)[Tensor(np.array([6, 1, 0, 2]))]
    assert x.eq(x.max(1, True)).numpy().sum(1).tolist() == [1, 1, 1, 1]


def test_gradients_of_a_maximum_reach_one_element() -> None:
    """The gradient of the maximum of sums arrives whole."""
    a = Tensor(RNG.standard_normal((7, 37, 5)).astype(np.float32)).is_param_()
    a.sum(1)[Tensor(np.array([6, 1, 0, 2]))].max(1).sum().backward()
    assert a.grad is not None
    assert a.grad.numpy()[:, 0].sum(1).tolist() == [1, 1, 1, 0, 0, 0, 1]


def test_pooling_keeps_its_gradient_when_the_result_is_read_first() -> None:
    """Reading the pooled values between backward() and the gradients changes nothing."""
    x = RNG.standard_normal((2, 4, 12, 12)).astype(np.float32)
    w = RNG.standard_normal((6, 4, 3, 3)).astype(np.float32)
    got = []
    for read_first in (False, True):
        bias = Tensor(np.zeros(6, np.float32)).is_param_()
        y = Tensor(x).conv2d(Tensor(w), bias, padding=1).relu().max_pool2d(2)
        y.sum().backward()
        if read_first:
            y.numpy()
        assert bias.grad is not None
        got.append(bias.grad.numpy())
    positive = (Tensor(x).conv2d(Tensor(w), padding=1).max_pool2d(2).numpy() > 0).sum((0, 2, 3))
    for g in got:  # each window's gradient goes to one place, unless all of it is 0
        np.testing.assert_array_equal(g, positive)
