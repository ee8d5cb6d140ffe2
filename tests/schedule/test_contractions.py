"""Convolutions and their gradients are single contractions: no sum per window position is ever stored."""

from __future__ import annotations

import numpy as np
import pytest

from aril.autograd import gradient
from tests.schedule.graphs import check, put


@pytest.mark.parametrize(("size", "kernel", "padding"), [(8, 3, 0), (8, 3, 1), (9, 5, 2), (6, 1, 0)])
def test_gradients_of_a_convolution(size: int, kernel: int, padding: int) -> None:
    """Forward and both gradients agree with the evaluator, each in one contraction and at most one padded copy."""
    rng = np.random.default_rng(0)
    x = put(rng.standard_normal((2, 3, size, size)).astype(np.float32))
    w = put(rng.standard_normal((4, 3, kernel, kernel)).astype(np.float32))
    y = x.conv2d(w, padding=padding)
    g = put(rng.standard_normal(y.shape).astype(np.float32))
    assert check(y, tolerance=1e-4) <= 2
    for d in gradient(y, g, [x, w]):
        assert d is not None
        assert check(d, tolerance=1e-4) <= 2


@pytest.mark.parametrize(("stride", "dilation", "groups"), [(2, 1, 1), (1, 2, 1), (3, 1, 1), (1, 1, 2), (2, 2, 4)])
def test_gradients_of_strided_dilated_and_grouped_convolutions(stride: int, dilation: int, groups: int) -> None:
    """The same values as the evaluator's, whatever the stride, dilation and groups."""
    rng = np.random.default_rng(1)
    x = put(rng.standard_normal((2, 4, 9, 9)).astype(np.float32))
    w = put(rng.standard_normal((8, 4 // groups, 3, 3)).astype(np.float32))
    y = x.conv2d(w, padding=1, stride=stride, dilation=dilation, groups=groups)
    g = put(rng.standard_normal(y.shape).astype(np.float32))
    check(y, *[d for d in gradient(y, g, [x, w]) if d is not None], tolerance=1e-4)


def test_a_sum_of_sums_is_one_sum() -> None:
    """Reducing one axis after the other takes one kernel."""
    x = put(np.random.default_rng(2).standard_normal((6, 7, 8)).astype(np.float32))
    assert check(x.sum(2).sum(0)) == 1
