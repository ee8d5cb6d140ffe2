"""Gradients of convolutions with a step, and transposed convolutions: dense sums, one for each remainder."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from aril import Tensor
from aril.autograd import gradient
from aril.ops import Ops
from aril.schedule import phases
from aril.uop import UOp
from tests.schedule.graphs import check, put, scheduled

RNG = np.random.default_rng(5)


def draw(*shape: int) -> UOp:
    return put(RNG.standard_normal(shape).astype(np.float32))


def input_gradient(image: tuple[int, ...], weight: tuple[int, ...], **options: Any) -> tuple[UOp, int]:
    """(the gradient of a convolution's input, how many values its windows have)."""
    x, w = draw(*image), draw(*weight)
    y = x.conv2d(w, **options)
    (found,) = gradient(y, draw(*y.shape), [x])
    assert found is not None
    return found, math.prod(y.shape) // weight[0] * image[1] * math.prod(weight[2:])


CASES = [
    ((2, 4, 12, 13), (8, 4, 3, 3), {"stride": 2, "padding": 1}),
    ((2, 4, 13, 11), (8, 4, 5, 4), {"stride": (2, 3), "padding": (2, 1)}),
    ((1, 3, 20, 20), (8, 3, 7, 7), {"stride": 2, "padding": 3}),
    ((2, 4, 14, 15), (8, 4, 5, 4), {"stride": 3, "dilation": 2, "padding": 2}),
    ((2, 4, 14, 9), (8, 4, 4, 2), {"stride": (2, 1), "dilation": (3, 2), "padding": 1}),
    ((2, 8, 12, 12), (8, 4, 3, 3), {"stride": 2, "padding": 1, "groups": 2}),
    ((2, 6, 13, 15), (6, 1, 3, 3), {"stride": 2, "padding": 1, "groups": 6}),
    ((2, 4, 31), (8, 4, 6), {"stride": 4, "padding": 1}),
    ((1, 4, 6, 7, 8), (6, 4, 3, 3, 3), {"stride": 2, "padding": 1}),
]


@pytest.mark.parametrize(("image", "weight", "options"), CASES, ids=[str(c[2]) + str(c[1]) for c in CASES])
def test_input_gradients(image: tuple[int, ...], weight: tuple[int, ...], options: dict[str, Any]) -> None:
    """The evaluator's values; nothing stored is as large as all windows together."""
    found, windows = input_gradient(image, weight, **options)
    assert all(t.size < windows for t in scheduled(found).temps)
    check(found, tolerance=1e-4)


def test_long_signals_are_not_compared_element_by_element(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their memory would grow with the signal: windows are stored, as they are without remainders."""
    monkeypatch.setattr(phases, "MOST_CHECKED", 100)
    found, windows = input_gradient((2, 4, 131), (8, 4, 6), stride=4)
    assert any(t.size >= windows for t in scheduled(found).temps)
    check(found, tolerance=1e-4)


def test_each_remainder_sums_what_it_meets() -> None:
    """Of a 3x3 kernel with a step of 2: 1, 2, 2 and 4 elements for each channel."""
    found, _ = input_gradient((2, 8, 16, 16), (32, 8, 3, 3), stride=2, padding=1)
    terms = []
    for item in scheduled(found).items:
        assert item.kernel is not None
        for u in item.kernel.toposort():
            if u.op is Ops.REDUCE:
                terms.append(math.prod([u.src[0].shape[a] for a in u.arg[1]]))
    assert sorted(terms) == [32, 64, 64, 128]


@pytest.mark.parametrize(("size", "channels"), [(13, 8), (14, 8), (13, 1)])
def test_images_that_end_within_a_step(size: int, channels: int) -> None:
    """Both axes of odd sizes go by remainders, also where a group has one channel; windows are of one padded image."""
    groups = 8 // channels
    found, _ = input_gradient((2, 8, size, size), (16, channels, 3, 3), stride=2, groups=groups)
    assert all(t.size <= 2 * 8 * size * size for t in scheduled(found).temps)
    y = draw(2, 8, size, size).conv2d(draw(8, channels, 3, 3), stride=2, groups=groups)
    assert all(t.size <= 2 * 8 * 16 * 16 for t in scheduled(y).temps)
    check(found, y, tolerance=1e-4)


@pytest.mark.parametrize(
    ("stride", "options"),
    [(2, {"padding": 1, "output_padding": 1}), (3, {"dilation": 2}), (4, {"padding": 2}), ((1, 2), {"groups": 2})],
)
def test_transposed_convolutions(stride: int | tuple[int, int], options: dict[str, Any]) -> None:
    """The same as the gradient of the convolution with that weight, and no zeros between elements are stored."""
    y = draw(2, 8, 6, 5)
    out = y.conv_transpose2d(draw(8, 6, 3, 3), stride=stride, **options)
    assert all(t.size < 2 * math.prod(out.shape) for t in scheduled(out).temps if not t.is_result)
    check(out, tolerance=1e-4)


def test_a_gradient_beside_another_sum() -> None:
    """A sum over the windows of something else than a convolution keeps its form."""
    x = draw(2, 3, 9, 9)
    y = x.pad(((0, 0), (0, 0), (1, 1), (1, 1))).avg_pool2d(3, 2)
    (found,) = gradient(y, draw(*y.shape), [x])
    assert found is not None
    check(found, tolerance=1e-5)


def test_the_gradient_of_overlapping_maxima_stores_no_windows() -> None:
    """Which elements of 3x3 windows, 2 apart, are the greatest is found again where it is asked."""
    x, scale = draw(2, 4, 32, 32), draw(4)
    y = x * scale.reshape(1, 4, 1, 1)
    y = (y > 0.0).where(y, 0.0).max_pool2d((3, 3), 2, 1, 1)
    (found,) = gradient(y, draw(*y.shape), [x])
    assert found is not None
    assert all(t.size <= 2 * 4 * 32 * 32 for t in scheduled(found).temps)
    check(found, tolerance=1e-4)


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding"), [((12, 14), 2, 2, 1), ((13, 12), 2, 2, 1), ((16, 10), 3, 3, (1, 2))]
)
def test_windows_side_by_side_over_a_padded_image(size: Any, kernel: int, stride: int, padding: Any) -> None:
    """The gradient of the padded image is a dense sum of its own: the image begins within a window."""
    found, _ = input_gradient((2, 8, *size), (32, 8, kernel, kernel), stride=stride, padding=padding)
    padded = [
        d + 2 * p for d, p in zip(size, padding if isinstance(padding, tuple) else (padding, padding), strict=True)
    ]
    assert any(t.size >= 16 * math.prod(d // stride * stride for d in padded) for t in scheduled(found).temps)
    check(found, tolerance=1e-4)


def test_few_elements_of_steps_are_summed_alone() -> None:
    """What is cut out of a product of many steps is all that is computed of it."""
    y = (draw(32, 40) @ draw(40, 64)).reshape(32, 32, 2).permute((1, 2, 0)).reshape(64, 32)
    part = y.shrink(((3, 8), (0, 32)))
    assert [t.size for t in scheduled(part).temps] == [5 * 32]
    check(part, tolerance=1e-4)


def test_steps_one_after_the_other() -> None:
    """The gradient through two convolutions with steps is four sums for each; nothing is computed twice."""
    x = draw(2, 8, 16, 16)
    y = x.conv2d(draw(16, 8, 3, 3), stride=2, padding=1).conv2d(draw(32, 16, 3, 3), stride=2, padding=1)
    (found,) = gradient(y, draw(*y.shape), [x])
    assert found is not None
    kernels = [i.kernel for i in scheduled(found).items if i.kernel is not None]
    assert len([k for k in kernels if any(u.op is Ops.REDUCE for u in k.toposort())]) == 8
    check(found, tolerance=1e-4)


def test_a_gradient_without_steps_sums_where_the_image_is() -> None:
    """The pad of the image is no result: the gradient of the output is padded by one element, the weight is no copy."""
    found, _ = input_gradient((2, 8, 16, 16), (32, 8, 3, 3), padding=1)
    assert [t.size for t in scheduled(found).temps] == [2 * 32 * 18 * 18, 2 * 8 * 16 * 16]
    check(found, tolerance=1e-4)


def test_lanes_that_no_window_covers_are_not_quotients_of_zeros():
    """LLVM 22 takes 0 / 0 for 0 in lanes known to be 0, without mask registers. Shares of ties there are no NaN."""
    x = np.random.default_rng(0).standard_normal((3, 6, 4, 3)).astype(np.float32)
    t = Tensor(x)
    y = t.pad(((0, 0), (0, 0), (0, 0), (0, 1))).max_pool2d((3, 1), (2, 2))
    (dx,) = y.gradient(t, gradient=Tensor.ones(*y.shape))
    first = x[:, :, :3, ::2]  # windows of three rows in columns 0 and 2; the added column is in none
    expected = np.zeros_like(x)
    expected[:, :, :3, ::2] = first == first.max(2, keepdims=True)
    np.testing.assert_array_equal(dx.numpy(), expected)
