"""Gradients of masked attention store no scores: each sum over them computes its own, and no hidden ones."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from aril import Tensor
from aril.schedule.lower import lower
from aril.uop import AxisType, Ops
from tests.schedule.graphs import scheduled

RNG = np.random.default_rng(23)
Arrays = tuple[np.ndarray, ...]


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, dtype=np.float32)


def plain(q: np.ndarray, k: np.ndarray, v: np.ndarray, g: np.ndarray, mask: np.ndarray) -> Arrays:
    """Attention and its three gradients in float64, what a row of `mask` hides from all of it being 0."""
    q, k, v, g = (x.astype(np.float64) for x in (q, k, v, g))
    scale = 1 / math.sqrt(q.shape[-1])
    s = np.where(mask, q @ np.swapaxes(k, -1, -2) * scale, -np.inf)
    top = s.max(-1, keepdims=True)
    p = np.exp(s - np.where(np.isfinite(top), top, 0))
    total = p.sum(-1, keepdims=True)
    p /= np.where(total == 0, 1, total)
    dp = g @ np.swapaxes(v, -1, -2)
    ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * scale
    return p @ v, ds @ k, np.swapaxes(ds, -1, -2) @ q, np.swapaxes(p, -1, -2) @ g


def with_gradients(arrays: Arrays, attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> tuple[Tensor, ...]:
    q, k, v, g = (Tensor(x).realize() for x in arrays)
    out = attend(q, k, v)
    return (out, *out.gradient(q, k, v, gradient=g))


def assert_close(found: tuple[Tensor, ...], expected: Arrays) -> None:
    found[0].realize(*found[1:])
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.numpy(), other, rtol=1e-4, atol=2e-5)


def rows_and_columns(n: int, m: int) -> tuple[Tensor, Tensor]:
    return Tensor.arange(n).reshape(n, 1), Tensor.arange(m).reshape(1, m)


MASKS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "causal": lambda i, j: j <= i,
    "window": lambda i, j: (j <= i) & (j > i - 20),
    "what comes": lambda i, j: j > i,
}
SHAPES = [
    ((2, 3, 37, 16), 37, 16),
    ((4, 100, 40), 75, 24),
    ((1, 65, 8), 130, 8),
    ((3, 7, 8), 4, 3),
    ((2, 200, 64), 1, 64),
]


@pytest.mark.parametrize("shape, keys, width", SHAPES)
@pytest.mark.parametrize("mask", MASKS)
def test_gradients_without_stored_scores(shape: tuple[int, ...], keys: int, width: int, mask: str) -> None:
    """Attention, what rows have in common, and a kernel for each gradient; nothing as large as the scores is stored."""
    lead, n, d = shape[:-2], shape[-2], shape[-1]
    arrays = (draw(*shape), draw(*lead, keys, d), draw(*lead, keys, width), draw(*lead, n, width))
    seen = MASKS[mask](*rows_and_columns(n, keys))
    found = with_gradients(arrays, lambda q, k, v: q.scaled_dot_product_attention(k, v, attn_mask=seen))
    if keys > 8 and n > 8:
        plan = scheduled(*found)
        assert len(plan.items) == 5
        largest = max(x.size for x in arrays)
        stored = [plan.temps[a - plan.params].size for item in plan.items for a in item.args if a >= plan.params]
        assert max(stored) <= largest
    assert_close(found, plain(*arrays, seen.numpy()))


def test_the_formula_written_out() -> None:
    """softmax of a masked product, times values; a bias from memory beside the mask."""
    arrays = (draw(2, 48, 16), draw(2, 48, 16), draw(2, 48, 16), draw(2, 48, 16))
    i, j = rows_and_columns(48, 48)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ((q @ k.transpose(-2, -1)) * 0.25).masked_fill(j > i, -math.inf).softmax(-1) @ v

    found = with_gradients(arrays, attend)
    assert len(scheduled(*found).items) == 5
    assert_close(found, plain(*arrays, np.tril(np.ones((48, 48), bool))))


def test_hidden_columns_are_left_out_of_every_gradient() -> None:
    """Tiles of queries go over the keys before them, tiles of keys over the queries after them."""
    found = with_gradients(
        tuple(draw(2, 256, 32) for _ in range(4)), lambda q, k, v: q.scaled_dot_product_attention(k, v, is_causal=True)
    )
    masked = 0
    for item in scheduled(*found).items:
        assert item.kernel is not None
        loops = [u for u in lower(item.kernel).toposort() if u.op is Ops.RANGE]
        tiles = [r for r in loops if r.arg.kind is AxisType.GLOBAL]
        masked += any(r in u.src[0].ranges for u in loops for r in tiles)
    assert masked == 4


def test_without_a_mask_scores_are_stored_once() -> None:
    """Reading them again costs less than computing them."""
    arrays = (draw(2, 64, 32), draw(2, 80, 32), draw(2, 80, 32), draw(2, 64, 32))
    found = with_gradients(arrays, lambda q, k, v: q.scaled_dot_product_attention(k, v))
    products = [i for i in scheduled(*found).items if i.kernel is not None and i.kernel.arg.name.startswith("c_")]
    assert len(products) == 6
    assert_close(found, plain(*arrays, np.ones((64, 80), bool)))


def test_weights_that_are_a_result() -> None:
    """They are stored, so all read them."""
    q, k, v, g = (draw(2, 40, 16) for _ in range(4))
    tq, tk, tv, tg = (Tensor(x).realize() for x in (q, k, v, g))
    i, j = rows_and_columns(40, 40)
    weights = ((tq @ tk.transpose(-2, -1)) * 0.25).masked_fill(j > i, -math.inf).softmax(-1)
    out = weights @ tv
    found = (out, *out.gradient(tq, tk, tv, gradient=tg))
    out.realize(*found[1:], weights)
    mask = np.tril(np.ones((40, 40), bool))
    assert_close(found, plain(q, k, v, g, mask))
    np.testing.assert_allclose(weights.numpy().sum(-1), 1, rtol=1e-5)
    assert (weights.numpy()[:, ~mask] == 0).all()


def test_rows_that_see_nothing_have_no_gradient() -> None:
    arrays = (draw(2, 30, 8), draw(2, 24, 8), draw(2, 24, 8), draw(2, 30, 8))
    i, j = rows_and_columns(30, 24)
    seen = (j + 10) <= i
    found = with_gradients(arrays, lambda q, k, v: q.scaled_dot_product_attention(k, v, attn_mask=seen))
    assert_close(found, plain(*arrays, seen.numpy()))
    assert (found[1].numpy()[:, :10] == 0).all()


def test_query_heads_that_share_keys() -> None:
    q, k, v, g = draw(6, 40, 16), draw(2, 40, 16), draw(2, 40, 16), draw(6, 40, 16)
    found = with_gradients(
        (q, k, v, g), lambda q, k, v: q.scaled_dot_product_attention(k, v, is_causal=True, enable_gqa=True)
    )
    out, dq, dk, dv = plain(q, k.repeat(3, 0), v.repeat(3, 0), g, np.tril(np.ones((40, 40), bool)))
    assert_close(found, (out, dq, dk.reshape(2, 3, 40, 16).sum(1), dv.reshape(2, 3, 40, 16).sum(1)))


def test_the_sum_of_weights_times_their_gradients_is_a_product_with_the_result() -> None:
    """So it goes over rows of values, not of scores: 64 rows of 8 instead of 512."""
    arrays = (draw(1, 64, 8), draw(1, 512, 8), draw(1, 512, 8), draw(1, 64, 8))
    found = with_gradients(arrays, lambda q, k, v: (q @ k.transpose(-2, -1)).softmax(-1) @ v)
    kernels = [i.kernel for i in scheduled(*found).items if i.kernel is not None]
    [common] = [k for k in kernels if k.arg.name == "r_64x512"]  # the gradient of the scores
    assert [math.prod(u.src[0].shape) // math.prod(u.shape) for u in common.toposort() if u.op is Ops.REDUCE] == [8]
