"""The order in memory of a padded image that a convolution reads."""

from __future__ import annotations

import numpy as np
import pytest

from aril.ops import Ops
from aril.schedule import Schedule
from tests.schedule.graphs import check, put, scheduled


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape, dtype=np.float32)


def stored_through(plan: Schedule) -> list[tuple[int, ...]]:
    """The permutations through which the first kernel stores."""
    kernel = plan.items[0].kernel
    assert kernel is not None
    stores = [u for u in kernel.toposort() if u.op is Ops.STORE]
    return [n.arg for s in stores for n in s.src[0].toposort() if n.op is Ops.PERMUTE]


def test_channels_of_a_row_lie_together() -> None:
    """(n, channels, h, w) is stored as (n, h, channels, w) where a window shorter than the image slides over it."""
    x, w = put(draw(2, 8, 20, 21)), put(draw(16, 8, 3, 3))
    assert stored_through(scheduled(x.conv2d(w, padding=1))) == [(0, 2, 1, 3)]
    check(x.conv2d(w, padding=1), x.conv2d(w, padding=1, stride=2), tolerance=1e-4)


@pytest.mark.parametrize(
    ("image", "weight", "groups"),
    [
        ((2, 8, 20, 21), (8, 1, 3, 3), 8),  # no sum over channels
        ((2, 16, 30, 30), (4, 16, 3, 3), 1),  # rows would lie 2 KiB apart
    ],
)
def test_the_order_stays_where_it_does_not_help(image: tuple[int, ...], weight: tuple[int, ...], groups: int) -> None:
    y = put(draw(*image)).conv2d(put(draw(*weight)), padding=1, groups=groups)
    assert stored_through(scheduled(y)) == []
