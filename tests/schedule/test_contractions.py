"""Convolutions and their gradients are single contractions: no sum per window position is ever stored."""

from __future__ import annotations

import numpy as np
import pytest

from aril.autograd import gradient
from aril.ops import Ops
from aril.uop.shape import expand, reduce, reshape
from tests.schedule.graphs import check, put, scheduled


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


@pytest.mark.parametrize(("width", "operands"), [(3, 4), (16, 6)])
def test_short_rows_of_a_sum_end_alone(width: int, operands: int) -> None:
    """The step of a 3x3 kernel is not taken where the sums of its momentum end: no lanes. Rows of 16 are lanes."""
    rng = np.random.default_rng(4)
    draw = lambda *shape: put(rng.standard_normal(shape).astype(np.float32))  # noqa: E731
    spread = lambda x, shape: expand(reshape(x, shape), (48, 64, 8 * width))  # noqa: E731
    a, b, w, m = draw(48, 64), draw(48, 8 * width), draw(64, 8, width), draw(64, 8, width)
    grad = reshape(reduce(spread(a, (48, 64, 1)) * spread(b, (48, 1, 8 * width)), Ops.ADD, (0,)), w.shape)
    momentum = m * 0.9 + grad
    results = [momentum, w - momentum * 0.1]
    plan = scheduled(*results)
    sums = [i for i in plan.items if i.kernel is not None and i.kernel.arg.name.startswith("c")]
    assert [len(i.args) for i in sums] == [operands]
    check(*results, tolerance=1e-4)
