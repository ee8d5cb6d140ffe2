"""The order in memory of a padded image that a convolution reads, and of results."""

from __future__ import annotations

import numpy as np
import pytest

from aril import Tensor, jit
from aril.codegen import compile_kernel
from aril.ops import Ops
from aril.schedule import Schedule
from aril.schedule.lower import lower
from tests.codegen.run import renderer
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


def in_memory(t: Tensor) -> np.ndarray:
    """The numbers of a realized tensor as they lie in memory."""
    return np.frombuffer(t.realize().uop.base.storage.as_memoryview(), np.float32)


def test_a_result_lies_as_what_it_is_computed_from() -> None:
    a, b, c = draw(300, 70, 11), draw(300, 70, 11), draw(70)
    x, y, row = (Tensor(v).realize() for v in (a, b, c))
    made = x.permute(2, 0, 1) * 2 + y.permute(2, 0, 1) * row.reshape(1, 1, 70)
    want = a.transpose(2, 0, 1) * 2 + b.transpose(2, 0, 1) * c
    np.testing.assert_array_equal(in_memory(made), want.transpose(1, 2, 0).ravel())
    np.testing.assert_array_equal(made.numpy(), want)
    np.testing.assert_array_equal(in_memory(made.contiguous()), want.ravel())
    np.testing.assert_allclose(made.sum(0).numpy(), want.sum(0), rtol=1e-5, atol=1e-5)
    made += 1  # a view of its memory, written to
    np.testing.assert_array_equal(made.numpy(), want + 1)


def test_a_result_of_operands_in_several_orders_is_row_by_row() -> None:
    a = draw(300, 300)
    x = Tensor(a).realize()
    for made, want in (
        (x.T + x, a.T + a),
        (x.T.contiguous(), a.T),
        ((x.T * 2).flip(0) + x, np.flip(a.T * 2, 0) + a),
        (x[:100, :100].T * 2, a[:100, :100].T * 2),  # small
    ):
        np.testing.assert_array_equal(in_memory(made), want.ravel())


def test_parts_windows_and_running_sums_lie_as_what_they_read() -> None:
    a = draw(301, 290)
    x = Tensor(a).realize()
    for made, want in (
        (x[:, 3:].T * 2, a[:, 3:].T * 2),
        (x.T.pad(((1, 2), (3, 4))), np.pad(a.T, ((1, 2), (3, 4)))),
        ((x.T * 2).flip(0) + x.T, np.flip(a.T * 2, 0) + a.T),
        (x.T - x.sum(0).reshape(290, 1), a.T - a.sum(0, dtype=np.float64).reshape(290, 1)),
        (x.T.cumsum(1), a.T.cumsum(1, dtype=np.float64)),
        (x.T.cumsum(0), a.T.cumsum(0, dtype=np.float64)),
        (x.T.cummax(1), np.maximum.accumulate(a.T, 1)),
    ):
        np.testing.assert_allclose(made.numpy(), want, rtol=1e-5, atol=1e-4)
        np.testing.assert_allclose(in_memory(made), want.T.ravel(), rtol=1e-5, atol=1e-4)


def test_running_sums_over_rows_walk_along_rows() -> None:
    """No block total is stored with its axis moved: what lies side by side stays side by side."""
    a = draw(70, 33)
    kernels = [i.kernel for i in scheduled(put(a).cumsum(0)).items if i.kernel is not None]
    assert kernels and not any(n.op is Ops.PERMUTE for k in kernels for n in k.toposort())
    b = draw(5, 131, 6)
    for axis in range(3):
        np.testing.assert_allclose(
            Tensor(b).cumsum(axis).numpy(), b.cumsum(axis, dtype=np.float64), rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("target", ["wide", "avx2"])
@pytest.mark.parametrize("axis", [0, 1])
def test_totals_of_blocks_lie_as_what_they_are_sums_of(axis: int, target: str) -> None:
    """What a running sum of `x.T` adds to its blocks is loaded as vectors (shuffles are those of blocks in a row)."""
    plan = scheduled(put(draw(1304, 904)).transpose(0, 1).cumsum(axis))
    program = compile_kernel(lower(plan.items[-1].kernel), renderer(target))
    loads = [u for u in program.linear.src if u.op is Ops.LOAD]
    assert all(not u.shape for u in loads if u.src[0].op is Ops.INDEX)
    assert not any(u.op is Ops.STACK for u in program.linear.src) or axis == 0


def test_totals_of_blocks_ask_no_conditions() -> None:
    """Of a length that is no multiple of 8: the total of the last block is not made."""
    totals = scheduled(put(draw(40, 1773)).cumsum(1)).items[0]
    program = compile_kernel(lower(totals.kernel), renderer("avx2"))
    assert not any(u.op is Ops.CMPLT for u in program.linear.src)


def test_totals_of_blocks_that_fill_the_axis_read_all_of_it() -> None:
    """No part of 112 blocks is cut off 113, whose rows vectors fill to the end."""
    totals = scheduled(put(draw(1304, 904)).transpose(0, 1).cumsum(0)).items[0]
    program = compile_kernel(lower(totals.kernel), renderer("avx2"))
    assert 113 * 1304 in [u.arg.size for u in program.linear.src if u.op is Ops.PARAM]


def test_replays_give_results_in_the_order_of_their_operands() -> None:
    f = jit(lambda x: (x.T.exp(), x.T * 2))
    for _ in range(4):
        a = draw(260, 301)
        e, twice = f(Tensor(a).realize())
        np.testing.assert_array_equal(in_memory(twice), (a * 2).ravel())
        np.testing.assert_array_equal(twice.numpy(), a.T * 2)
        np.testing.assert_allclose(e.numpy(), np.exp(a.T), rtol=1e-6)
        np.testing.assert_allclose((twice.T @ twice).numpy(), 4 * a @ a.T, rtol=1e-4, atol=1e-3)
