"""Columns that a mask hides from a whole tile of rows are not gone over, whatever the mask is made of."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from aril import Context, Tensor, Variable
from aril.schedule.lower import lower
from aril.uop import AxisType, Ops, UOp
from aril.uop.symbolic import simplify
from tests.schedule.graphs import scheduled

RNG = np.random.default_rng(11)


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, dtype=np.float32)


def plain(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray, bias: np.ndarray | float = 0) -> np.ndarray:
    """softmax over what `mask` shows, in float64; rows that see nothing are 0."""
    s = q.astype(np.float64) @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1]) + bias
    s = np.where(mask, s, -np.inf)
    top = s.max(-1, keepdims=True)
    p = np.exp(s - np.where(np.isfinite(top), top, 0))
    total = p.sum(-1, keepdims=True)
    return p / np.where(total == 0, 1, total) @ v


def columns(x: Tensor) -> list[int]:
    """How many columns each tile of rows goes over, of the one kernel that computes `x`."""
    (item,) = scheduled(x).items
    assert item.kernel is not None
    loops = [u for u in lower(item.kernel).toposort() if u.op is Ops.RANGE]
    (tile,) = [r for r in loops if r.arg.kind is AxisType.GLOBAL and any(r in u.src[0].ranges for u in loops)]
    ends = {u.src[0] for u in loops if tile in u.src[0].ranges}
    counts = [
        tuple(int(simplify(e.substitute({tile: UOp.const(tile.dtype, i)})).arg) for e in ends)
        for i in range(int(tile.src[0].arg))
    ]
    assert all(len(set(c)) == 1 for c in counts)  # every step over the same ones
    return [c[0] for c in counts]


def index(n: int, axis: int) -> Tensor:
    return Tensor.arange(n).reshape((n, 1) if axis == 0 else (1, n))


MASKS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Callable[[np.ndarray, np.ndarray], np.ndarray]]] = {
    "causal": (lambda i, j: j <= i, lambda i, j: j <= i),
    "causal, last rows see all": (lambda i, j: j - 41 <= i, lambda i, j: j - 41 <= i),
    "window": (lambda i, j: (j <= i) & (j > i - 20), lambda i, j: (j <= i) & (j > i - 20)),
    "both ways": (lambda i, j: (i - j < 30) & (j - i < 9), lambda i, j: (i - j < 30) & (j - i < 9)),
    "what comes": (lambda i, j: j > i, lambda i, j: j > i),
    "not hidden": (lambda i, j: (j > i).logical_not(), lambda i, j: ~(j > i)),
    "backwards": (lambda i, j: i + j < 150, lambda i, j: i + j < 150),
    "none": (lambda i, j: j < i - 1000, lambda i, j: j < i - 1000),
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize(("rows", "keys"), [(200, 200), (160, 201), (70, 33), (65, 300)])
def test_any_mask_of_positions(name: str, rows: int, keys: int) -> None:
    """Results are those of the formula, rows that see nothing included."""
    ours, theirs = MASKS[name]
    q, k, v = draw(2, rows, 16), draw(2, keys, 16), draw(2, keys, 24)
    mask = ours(index(rows, 0), index(keys, 1))
    want = plain(q, k, v, theirs(np.arange(rows)[:, None], np.arange(keys)[None, :]))
    got = Tensor(q).scaled_dot_product_attention(Tensor(k), Tensor(v), mask).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_columns_after_the_diagonal_are_left_out() -> None:
    q, k = (Tensor(draw(4, 320, 16)).realize() for _ in range(2))
    assert columns(q.scaled_dot_product_attention(k, k, is_causal=True)) == [64, 128, 192, 256, 320]


def test_columns_before_a_window_are_left_out() -> None:
    q, k = (Tensor(draw(4, 320, 16)).realize() for _ in range(2))
    i, j = index(320, 0), index(320, 1)
    assert columns(q.scaled_dot_product_attention(k, k, (j <= i) & (j > i - 10))) == [64, 73, 73, 73, 73]


def test_a_mask_from_memory_narrows_what_positions_leave() -> None:
    """A bool tensor says no bounds, and takes none away; nor does a bias of each pair (ALiBi)."""
    q, k, v, seen = draw(4, 192, 16), draw(4, 192, 16), draw(4, 192, 16), RNG.random((192, 192)) < 0.7
    i, j = np.arange(192)[:, None], np.arange(192)[None, :]
    slope = np.array([0.5, 0.25, 0.125, 0.0625], np.float32).reshape(4, 1, 1)
    tq, tk, tv, ts = (Tensor(x).realize() for x in (q, k, v, seen))
    distance = (index(192, 1) - index(192, 0)).cast("float32")
    scores = tq @ tk.transpose(-2, -1) * 0.25 + Tensor(slope).realize() * distance
    out = ((index(192, 1) <= index(192, 0)) & ts).where(scores, -math.inf).softmax(-1) @ tv
    assert columns(out) == [64, 128, 192]
    want = plain(q, k, v, (j <= i) & seen, slope * (j - i))
    some = ((j <= i) & seen).any(-1)
    np.testing.assert_allclose(out.numpy()[:, some], want[:, some], rtol=1e-4, atol=1e-5)
    assert np.isnan(out.numpy()[:, ~some]).all()  # the plain formula: 0 / 0


def test_large_numbers_are_not_infinity() -> None:
    """Where a mask writes -1e4, hidden columns count where a row sees nothing else: all are gone over."""
    q, k, v = draw(2, 128, 8), draw(2, 128, 8), draw(2, 128, 8)
    tq, tk, tv = (Tensor(x).realize() for x in (q, k, v))
    i, j = np.arange(128)[:, None], np.arange(128)[None, :]
    scores = (index(128, 1) < index(128, 0)).where(tq @ tk.transpose(-2, -1), -1e4)
    got = (scores.softmax(-1) @ tv).numpy()
    s = np.where(j < i, q.astype(np.float64) @ np.swapaxes(k, -1, -2), -1e4)
    p = np.exp(s - s.max(-1, keepdims=True))
    np.testing.assert_allclose(got, p / p.sum(-1, keepdims=True) @ v, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("start", [0, 1, 37, 100])
def test_a_start_by_a_variable(start: int) -> None:
    """Queries that continue a sequence of variable length see what came before."""
    at = Variable("start", 0, 100).bind(start)
    q, k, v = draw(2, 80, 16), draw(2, 180, 16), draw(2, 180, 16)
    seen = index(180, 1) <= index(80, 0) + at
    want = plain(q, k, v, np.arange(180)[None, :] <= np.arange(80)[:, None] + start)
    got = Tensor(q).scaled_dot_product_attention(Tensor(k), Tensor(v), seen).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_dropout_after_a_mask() -> None:
    """Weights that are dropped are 0 wherever they lie; those left are scaled."""
    q, k, v = draw(2, 128, 8), draw(2, 128, 8), np.ones((2, 128, 8), np.float32)
    tq, tk, tv = (Tensor(x).realize() for x in (q, k, v))
    with Context(TRAINING=1):
        got = tq.scaled_dot_product_attention(tk, tv, dropout_p=0.5, is_causal=True).numpy()
    assert abs(got[:, 64:].mean() - 1) < 0.1
    assert set(np.unique(got[:, 0])) <= {0.0, 2.0}  # one key, kept or not


def test_the_first_tile_sees_no_key_of_its_own() -> None:
    """Rows that all see nothing go over a few columns, and are zeros."""
    q, k, v = draw(2, 130, 8), draw(2, 130, 8), draw(2, 130, 8)
    seen = index(130, 1) < index(130, 0) - 70
    got = Tensor(q).scaled_dot_product_attention(Tensor(k), Tensor(v), seen).numpy()
    want = plain(q, k, v, np.arange(130)[None, :] < np.arange(130)[:, None] - 70)
    assert (got[:, :71] == 0).all()
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
