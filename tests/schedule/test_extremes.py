"""Sizes at the edges: nothing, one element, many axes, thousands of operations, hundreds of tensors."""

from __future__ import annotations

import math

import numpy as np
import pytest

from aril import Tensor


def test_nothing_and_one_element() -> None:
    e = Tensor(np.zeros((0, 3), np.float32))
    assert (e + 1).numpy().shape == (0, 3)
    np.testing.assert_array_equal(e.sum(0).numpy(), np.zeros(3))
    assert e.sum().item() == 0
    assert (e @ Tensor(np.ones((3, 2), np.float32))).numpy().shape == (0, 2)
    assert e.cat(Tensor(np.ones((1, 3), np.float32))).numpy().tolist() == [[1, 1, 1]]
    e.assign(e + 1).realize()
    assert (Tensor(3.0) * Tensor(np.float32(2.0))).exp().log().item() == pytest.approx(6, rel=1e-5)
    assert Tensor(np.array(2.0, np.float32)).sum().item() == 2


def test_constants_and_casts() -> None:
    assert Tensor(2.5).realize().item() == 2.5
    assert Tensor.ones(2, 3).realize().tolist() == [[1.0] * 3] * 2
    assert Tensor([1.5, -2.5]).cast("int32").tolist() == [1, -2]
    assert Tensor([1, 2]).cast("float32").cast("int8").tolist() == [1, 2]


def test_many_axes() -> None:
    x = np.arange(2**12, dtype=np.float32).reshape((2,) * 12)
    t = Tensor(x)
    order = tuple(reversed(range(12)))
    np.testing.assert_array_equal((t.permute(*order) + 1).numpy(), x.transpose(order) + 1)
    np.testing.assert_array_equal(t.sum((1, 3, 5)).numpy(), x.sum((1, 3, 5)))


@pytest.mark.parametrize("depth", [3000])
def test_deep_chains_are_cut_into_kernels_of_one_structure(depth: int) -> None:
    x = Tensor(np.full(8, 0.5, np.float32)).realize()
    y, z = x, 0.5
    for i in range(depth):
        y = (y * 0.5 + x).sqrt() if i % 2 else y * x + 1
        z = math.sqrt(z * 0.5 + 0.5) if i % 2 else z * 0.5 + 1
    np.testing.assert_allclose(y.numpy(), np.full(8, z), rtol=1e-4)


def test_repeated_squaring_is_one_body() -> None:
    """What is shared counts once: 2^40 paths are 40 operations."""
    x = Tensor(np.full(4, 0.9, np.float32)).realize()
    y, z = x, 0.9
    for _ in range(40):
        y, z = y * y + 0.1, z * z + 0.1
    np.testing.assert_allclose(y.numpy(), np.full(4, z), rtol=1e-3)


def test_many_inputs_and_many_results() -> None:
    xs = [Tensor(np.full(4, i, np.float32)) for i in range(60)]
    y = xs[0]
    for x in xs[1:]:
        y = y + x
    assert y.numpy().tolist() == [sum(range(60))] * 4
    outs = [x * 2 for x in xs]
    outs[0].realize(*outs[1:])
    assert [o.numpy()[0] for o in outs] == [2 * i for i in range(60)]
