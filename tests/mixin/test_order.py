"""Sorting and writing by position against NumPy, below and above the length at which runs are merged."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from aril import GlobalCounters, Tensor, dtypes

RNG = np.random.default_rng(0)
LENGTHS = [0, 1, 7, 64, 65, 200]


def numbers(shape, dtype):
    if dtype is np.bool_:
        return RNG.integers(0, 2, shape).astype(bool)
    info = np.iinfo(dtype) if np.issubdtype(dtype, np.integer) else None
    x = RNG.integers(0 if info is not None and info.min == 0 else -9, 9, shape).astype(dtype)
    flat = x.reshape(-1)
    if info is not None and flat.size > 6:
        flat[[0, 5]] = info.min, info.max
    elif flat.size > 6:
        flat[[0, 2, 3, 4, 5, 6]] = np.nan, np.inf, -np.inf, -0.0, 0.0, np.nan
    return x


def pairs(x, dim, descending):
    """NumPy's stable order, NaN greatest; backwards: the greatest first, equal ones as they came."""
    if not descending:
        return np.argsort(x, dim, kind="stable")
    back = np.flip(np.argsort(np.flip(x, dim), dim, kind="stable"), dim)
    return x.shape[dim] - 1 - back


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint64])
def test_sort_is_stable_in_both_directions(length, dtype):
    x = numbers((2, length), dtype)
    for descending in (False, True):
        values, order = Tensor(x).sort(1, descending)
        Tensor.realize(values, order)
        want = pairs(x, 1, descending)
        np.testing.assert_array_equal(order.numpy(), want)
        np.testing.assert_array_equal(values.numpy(), np.take_along_axis(x, want, 1))


@pytest.mark.parametrize(
    "dtype", [np.bool_, np.int8, np.uint8, np.int16, np.uint16, np.uint32, np.int64, np.float16, np.float64]
)
def test_sort_of_every_type(dtype):
    x = numbers((100,), dtype)
    values, order = Tensor(x).sort()
    Tensor.realize(values, order)
    np.testing.assert_array_equal(order.numpy(), np.argsort(x, kind="stable"))
    np.testing.assert_array_equal(values.numpy(), np.sort(x))


def test_sort_of_bfloat16():
    x = numbers((70,), np.float32).astype(ml_dtypes.bfloat16)
    got = Tensor(x.astype(np.float32)).cast(dtypes.bfloat16).argsort()
    np.testing.assert_array_equal(got.numpy(), np.argsort(x.astype(np.float32), kind="stable"))


def test_sort_of_views_and_along_any_axis():
    x = numbers((70, 3), np.int32)
    np.testing.assert_array_equal(Tensor(x).flip(0).sort(0)[0].numpy(), np.sort(x, 0))
    np.testing.assert_array_equal(Tensor(x).T[:, 3:].sort(-1)[1].numpy(), np.argsort(x.T[:, 3:], -1, kind="stable"))
    np.testing.assert_array_equal(Tensor(x[0]).reshape(1, 3).expand(66, 3).argsort(0).numpy()[:, 0], np.arange(66))


def test_sort_of_more_than_a_cache_holds():
    a = RNG.standard_normal((229, 692, 2)).astype(np.float32)
    np.testing.assert_array_equal(Tensor(a).sort(1)[0].numpy(), np.sort(a, 1))


def test_the_greatest_and_the_least():
    x = RNG.normal(size=(3, 100)).astype(np.float32)
    values, order = Tensor(x).topk(5)
    np.testing.assert_array_equal(values.numpy(), -np.sort(-x)[:, :5])
    np.testing.assert_array_equal(order.numpy(), np.argsort(-x)[:, :5])
    np.testing.assert_array_equal(Tensor(x).topk(5, largest=False)[0].numpy(), np.sort(x)[:, :5])
    with pytest.raises(ValueError, match="topk: 101 elements of an axis of 100"):
        Tensor(x).topk(101)
    assert [t.tolist() for t in Tensor(3.0).topk(1)] == [3.0, 0]


@pytest.mark.parametrize("n", [65, 200, 1030])
@pytest.mark.parametrize("k", [0, 1, 31, 32, 33, 64, 65])
def test_a_few_of_many_come_in_order_equal_ones_as_they_stood(n, k):
    x = RNG.integers(-9, 9, (3, n)).astype(np.float32)
    for largest in (True, False):
        values, order = Tensor(x).topk(k, 1, largest)
        want = np.argsort(-x if largest else x, 1, kind="stable")[:, :k]
        np.testing.assert_array_equal(order.numpy(), want)
        np.testing.assert_array_equal(values.numpy(), np.take_along_axis(x, want, 1))


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint8, np.uint32, np.uint64, np.int64, np.float16, np.float64])
def test_a_few_of_many_with_all_that_orders_last_or_is_equal(dtype):
    x = numbers((2, 517), dtype)  # no multiple of a block: what fills the last one up orders last too
    for largest in (True, False):
        values, order = Tensor(x).topk(9, 1, largest)
        want = pairs(x, 1, largest)[:, :9]
        np.testing.assert_array_equal(order.numpy(), want)
        np.testing.assert_array_equal(values.numpy(), np.take_along_axis(x, want, 1))


def test_a_few_of_many_take_a_few_operations_an_element():
    x = Tensor(RNG.normal(size=(4, 5000)).astype(np.float32)).realize()
    before = GlobalCounters.ops
    x.topk(5)[1].realize()
    assert GlobalCounters.ops - before < 40 * 4 * 5000  # an order of all of them takes above a thousand each


def test_the_greatest_of_wide_numbers_along_another_axis():
    x = RNG.integers(-(2**60), 2**60, (150, 2))
    np.testing.assert_array_equal(Tensor(x).topk(4, 0)[0].numpy(), -np.sort(-x, 0)[:4])


def test_the_gradient_of_a_sorted_value_goes_back_where_it_came_from():
    x = RNG.normal(size=70)
    weight = RNG.normal(size=70)
    t = Tensor(x)
    (got,) = (t.sort()[0] * Tensor(weight)).sum().gradient(t)
    want = np.empty(70)
    want[np.argsort(x)] = weight
    np.testing.assert_allclose(got.numpy(), want)


@pytest.mark.parametrize("m", [10, 100])
def test_the_last_of_several_writes_to_a_place_counts(m):
    x = RNG.normal(size=(4, 5, 90))
    index = RNG.integers(-90, 90, (3, 5, m))
    source = RNG.normal(size=(3, 5, m))
    want = x.copy()
    for i in np.ndindex(index.shape):
        want[i[0], i[1], index[i]] = source[i]
    np.testing.assert_array_equal(Tensor(x).scatter(2, Tensor(index), Tensor(source)).numpy(), want)
    moved = Tensor(x).movedim(2, 0).scatter(0, Tensor(index).movedim(2, 0), Tensor(source).movedim(2, 0))
    np.testing.assert_array_equal(moved.movedim(0, 2).numpy(), want)


def test_assignment_by_many_positions():
    x = np.arange(300.0)
    index = RNG.integers(0, 300, 200)
    t = Tensor(x)
    t[Tensor(index)] = Tensor(np.arange(200.0))
    x[index] = np.arange(200.0)
    np.testing.assert_array_equal(t.numpy(), x)


def test_scatter_says_what_does_not_fit():
    with pytest.raises(TypeError, match="positions are integers, not float32"):
        Tensor.zeros(3).scatter(0, Tensor.zeros(2), 1.0)
    with pytest.raises(ValueError, match=r"index \(2,\) must have the rank of \(3, 3\)"):
        Tensor.zeros(3, 3).scatter(0, Tensor([0, 1]), 1.0)


def test_a_random_order_has_every_number_once():
    Tensor.manual_seed(1)
    got = Tensor.randperm(200).numpy()
    np.testing.assert_array_equal(np.sort(got), np.arange(200))
    assert (got != np.arange(200)).any()
    assert Tensor.randperm(0).tolist() == []
