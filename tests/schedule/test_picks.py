"""Sums that take one element read that element: what becomes of the kernel, and values at every edge."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aril import Tensor
from aril.codegen.estimate import estimate
from aril.dtype import DType, dtypes
from aril.ops import Ops
from aril.schedule.picks import pick_by_position
from aril.uop import UOp
from tests.codegen import build as b


def chosen(rows: int, n: int, kind: DType) -> UOp:
    """For each row the sum over k of x[row, k] where k is the row's number."""
    i, k = UOp.range(rows, (0,), b.LOOP), UOp.range(n, (1,), b.REDUCE)
    hit = UOp(Ops.CMPEQ, (b.load(1, (rows,), i, dtype=kind), k.cast(kind)))
    value = UOp(Ops.WHERE, (hit, b.load(2, (rows, n), i, k), UOp.const(dtypes.float32, 0.0)))
    return b.sink(b.store(0, (rows,), [i], b.reduce(Ops.ADD, value, k)))


def sums(sink: UOp) -> int:
    return sum(u.op is Ops.REDUCE for u in sink.toposort())


@pytest.mark.parametrize("kind", [dtypes.int32, dtypes.int64, dtypes.uint8])
def test_the_loop_over_classes_goes(kind: DType) -> None:
    """What is read is 5 numbers and 5 elements, not every element."""
    out = pick_by_position(chosen(5, 200, kind))
    assert sums(out) == 0
    assert estimate(out).bytes == 5 * kind.itemsize + 5 * 4 + 5 * 4


def test_numbers_that_a_type_cannot_hold_keep_the_loop() -> None:
    assert sums(pick_by_position(chosen(5, 300, dtypes.uint8))) == 1


def test_a_number_that_changes_along_the_sum_keeps_the_loop() -> None:
    k = UOp.range(7, (1,), b.REDUCE)
    hit = UOp(Ops.CMPEQ, (b.load(1, (7,), k, dtype=dtypes.int64), k.cast(dtypes.int64)))
    value = UOp(Ops.WHERE, (hit, b.load(2, (7,), k), UOp.const(dtypes.float32, 0.0)))
    assert sums(pick_by_position(b.sink(b.store(0, (), [], b.reduce(Ops.ADD, value, k))))) == 1


def test_a_scan_and_a_pick_of_the_same_elements_touch_all_of_them() -> None:
    """The estimate does not take one element a row for the whole row."""
    i, k = UOp.range(5, (0,), b.LOOP), UOp.range(200, (2,), b.REDUCE)
    picked = pick_by_position(chosen(5, 200, dtypes.int64)).src[0].src[0].src[1]
    total = UOp(Ops.ADD, (picked, b.reduce(Ops.ADD, b.load(2, (5, 200), i, k), k)))
    assert estimate(b.sink(b.store(0, (5,), [i], total))).bytes == 5 * 8 + 5 * 4 + 5 * 200 * 4


def reference(x: np.ndarray, y: np.ndarray, ignore: int) -> Any:
    wide = x.astype(float)
    top = wide.max(1)
    logs = wide - top[:, None] - np.log(np.exp(wide - top[:, None]).sum(1))[:, None]
    inside = (y >= 0) & (y < x.shape[1]) & (y != ignore)
    return np.where(inside, -logs[np.arange(len(y)), np.where(inside, y, 0)], 0), inside


@pytest.mark.parametrize(("rows", "classes"), [(1, 1), (3, 7), (37, 257), (4, 9001)])
@pytest.mark.parametrize("kind", [np.int64, np.int32, np.int16])
def test_cross_entropy_picks_its_class(rows: int, classes: int, kind: Any) -> None:
    rng = np.random.default_rng(rows)
    x = (rng.standard_normal((rows, classes)) * 3).astype(np.float32)
    y = rng.integers(0, classes, rows).astype(kind)
    y[rows // 2 :: 5] = -100
    losses, counted = reference(x, y, -100)
    got = Tensor(x).cross_entropy(Tensor(y), reduction="none").numpy()
    np.testing.assert_allclose(got, losses, rtol=1e-5, atol=1e-5)
    if counted.any():
        mean = Tensor(x).cross_entropy(Tensor(y)).item()
        assert mean == pytest.approx(losses.sum() / counted.sum(), rel=1e-5)


def test_a_pick_beside_not_a_number_is_itself() -> None:
    """Elements that are not taken do not count, whatever they are."""
    x = np.array([[1.0, np.nan, np.inf], [np.nan, 2.0, -np.inf]], np.float32)
    hit = Tensor(np.array([[0], [1]])).eq(Tensor.arange(3))
    np.testing.assert_array_equal(hit.where(Tensor(x), 0.0).sum(1).numpy(), [1, 2])


def test_a_pick_of_a_computed_row_beside_another_sum() -> None:
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((6, 11)).astype(np.float32), rng.standard_normal((11, 5)).astype(np.float32)
    at = rng.integers(0, 11, 6)
    hit = Tensor(at).unsqueeze(1).eq(Tensor.arange(11)).unsqueeze(2)
    got = hit.where((Tensor(x).unsqueeze(2) * Tensor(w)).exp(), 0.0).sum((1, 2)).numpy()
    want = np.exp(x[np.arange(6), at][:, None].astype(float) * w[at]).sum(1)
    np.testing.assert_allclose(got, want, rtol=1e-5)
