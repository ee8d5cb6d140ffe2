"""Values joined from parts (`cat`, `stack`, gradients of slices) are stored part by part: nothing is chosen between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aril import Tensor
from aril.device import GlobalCounters

RNG = np.random.default_rng(0)


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def counted(make: Callable[[], Tensor]) -> tuple[np.ndarray, int, int]:
    """(the value, operations on elements, launches)."""
    before = GlobalCounters.ops, GlobalCounters.kernels
    out = make().realize()
    return out.numpy(), GlobalCounters.ops - before[0], GlobalCounters.kernels - before[1]


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("n", [2, 5, 40])
def test_parts_are_copied(axis: int, n: int) -> None:
    parts = [draw(9, 17, 24) for _ in range(n)]
    parts[0][:] = -0.0
    memory = [Tensor(p).realize() for p in parts]
    for make, expected in ((Tensor.cat, np.concatenate(parts, axis)), (Tensor.stack, np.stack(parts, axis))):
        value, ops, launches = counted(lambda make=make: make(memory[0], *memory[1:], dim=axis))
        assert value.tobytes() == expected.tobytes()
        assert (ops, launches) == (0, -(-n // 32))


def test_what_follows_a_join_is_computed_part_by_part() -> None:
    """Elementwise operations, beside a whole value and below pads of other axes and of all of them."""
    a, b, c = draw(16, 40, 8), draw(16, 24, 8), draw(16, 64, 8)
    x, y, z = (Tensor(v).realize() for v in (a, b, c))
    value, ops, _ = counted(lambda: (x.cat(y, dim=1) * 2 + z).pad(((1, 2), (0, 0), (3, 0)), value=7.0) + 1)
    joined = np.concatenate([a, b], 1) * 2 + c
    expected = np.pad(joined, ((1, 2), (0, 0), (3, 0)), constant_values=7) + 1
    np.testing.assert_allclose(value, expected, rtol=1e-6, atol=1e-6)
    value, _, _ = counted(lambda: (x.cat(y, dim=1) * 2 + z).pad(((0, 0), (1, 1), (0, 0))))
    np.testing.assert_allclose(value, np.pad(joined, ((0, 0), (1, 1), (0, 0))), rtol=1e-6, atol=1e-6)


def test_parts_of_integers_and_conditions() -> None:
    a, b = (RNG.integers(-5, 5, (64, n)).astype(np.int32) for n in (24, 72))
    x, y = Tensor(a).realize(), Tensor(b).realize()
    np.testing.assert_array_equal(x.cat(y, dim=1).numpy(), np.concatenate([a, b], 1))
    np.testing.assert_array_equal((x > 0).cat(y > 1, dim=1).numpy(), np.concatenate([a > 0, b > 1], 1))
    np.testing.assert_array_equal(
        x.cast("float16").cat(y.cast("float16")[:, :24]).numpy(), np.concatenate([a, b[:, :24]])
    )


@pytest.mark.parametrize("step", [1, 3])
def test_gradient_of_slices(step: int) -> None:
    """What each slice gives is read once; it was read, behind a gate, for every element of the whole."""
    a, w = draw(16, 40, 64), draw(16, 40, 64)
    x, weight = Tensor(a).realize(), Tensor(w).realize()
    parts = [(x[:, t] * x[:, t] * weight[:, t]).contiguous() for t in range(0, 40, step)]
    total: Any = sum(p.sum() for p in parts)
    (gradient,) = total.gradient(x)
    expected = 2.0 * a * w
    expected[:, [t for t in range(40) if t % step]] = 0
    value, ops, _ = counted(lambda: gradient)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    assert ops < 5 * a.size


def test_parts_that_overlap_are_added() -> None:
    a = draw(64, 64)
    x = Tensor(a).realize()
    value = (x[:40].pad(((0, 24), (0, 0))) + x[24:].pad(((24, 0), (0, 0)))).numpy()
    expected = a.copy()
    expected[24:40] *= 2
    np.testing.assert_allclose(value, expected, rtol=1e-6)
