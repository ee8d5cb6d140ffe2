"""Attention from its plain formula is one kernel, whatever the sizes, masks and devices; its special rows stay."""

from __future__ import annotations

import math

import numpy as np
import pytest

from aril import Context, Tensor, Variable
from aril.codegen import heuristics
from aril.codegen.accumulate import separate
from aril.codegen.attention import EachNest
from aril.codegen.plan import Plan
from aril.codegen.steps import Upcast
from aril.device import GlobalCounters
from aril.schedule import kernels
from aril.schedule.lower import lower
from aril.uop import UOp
from tests.codegen.run import renderer
from tests.schedule.graphs import scheduled

RNG = np.random.default_rng(7)


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, dtype=np.float32)


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    """softmax(q k^T / sqrt(d) + mask) v in float64; rows that see nothing are 0."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    s = q @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1])
    s = s if mask is None else s + mask
    top = s.max(-1, keepdims=True)
    p = np.exp(s - np.where(np.isfinite(top), top, 0))
    total = p.sum(-1, keepdims=True)
    return p / np.where(total == 0, 1, total) @ v


def launches(value: Tensor) -> tuple[int, np.ndarray]:
    """(kernels it took, the result)."""
    before = GlobalCounters.kernels
    value.realize()
    return GlobalCounters.kernels - before, value.numpy()


SIZES = [
    ((2, 64, 32), 64, 32),
    ((3, 19, 7), 29, 5),
    ((2, 3, 50, 16), 33, 24),
    ((100, 16), 50, 16),
    ((1, 130, 64), 300, 64),
    ((2, 7, 8), 4, 3),
]


@pytest.mark.parametrize(("shape", "keys", "width"), SIZES)
@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_one_kernel(shape: tuple[int, ...], keys: int, width: int, causal: bool) -> None:
    """Scores and weights have no storage."""
    q, k, v = draw(*shape), draw(*shape[:-2], keys, shape[-1]), draw(*shape[:-2], keys, width)
    tq, tk, tv = (Tensor(x).realize() for x in (q, k, v))
    mask = np.where(np.tril(np.ones((shape[-2], keys), bool)), 0, -np.inf) if causal else None
    count, result = launches(tq.scaled_dot_product_attention(tk, tv, is_causal=causal))
    np.testing.assert_allclose(result, attention(q, k, v, mask), rtol=1e-4, atol=1e-5)
    assert count == 1


def test_the_formula_written_out() -> None:
    """softmax(q @ k.T * scale + mask) @ v."""
    q, k, v, mask = draw(4, 40, 16), draw(4, 56, 16), draw(4, 56, 16), draw(40, 56)
    tq, tk, tv, tm = (Tensor(x).realize() for x in (q, k, v, mask))
    count, result = launches(((tq @ tk.transpose(-2, -1)) * 0.25 + tm).softmax(-1) @ tv)
    np.testing.assert_allclose(result, attention(q, k, v, mask), rtol=1e-4, atol=1e-5)
    assert count == 1


def test_rows_that_see_nothing() -> None:
    """Zeros from `scaled_dot_product_attention`, NaN from the plain formula; other rows are untouched."""
    q, k, v = draw(2, 20, 8), draw(2, 24, 8), draw(2, 24, 8)
    seen = RNG.random((20, 24)) < 0.5
    seen[3] = False
    mask = np.where(seen, 0, -np.inf)
    tq, tk, tv = (Tensor(x).realize() for x in (q, k, v))
    result = tq.scaled_dot_product_attention(tk, tv, attn_mask=Tensor(seen)).numpy()
    np.testing.assert_allclose(result, attention(q, k, v, mask), rtol=1e-4, atol=1e-5)
    assert (result[:, 3] == 0).all()
    scores = (tq @ tk.transpose(-2, -1)) / math.sqrt(8) + Tensor(mask.astype(np.float32))
    plain = (scores.softmax(-1) @ tv).numpy()
    assert np.isnan(plain[:, 3]).all()
    rest = np.arange(20) != 3
    np.testing.assert_allclose(plain[:, rest], result[:, rest], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("width", [8, 32, 40, 128, 200])
@pytest.mark.parametrize("keys", [3, 500, 1031])
def test_one_query_against_many_keys(width: int, keys: int) -> None:
    """Decoding: a row of scores a head, in one kernel (but for heads so narrow that scores are computed twice)."""
    q, k, v = draw(9, 1, width), draw(9, keys, width), draw(9, keys, width)
    tq, tk, tv = (Tensor(x).realize() for x in (q, k, v))
    count, result = launches(tq.scaled_dot_product_attention(tk, tv))
    np.testing.assert_allclose(result, attention(q, k, v), rtol=1e-4, atol=1e-5)
    assert count == 1 or width == 8 and count <= 3


@pytest.mark.parametrize("n", [1, 2, 63, 500])
def test_one_query_against_a_variable_number_of_keys(n: int) -> None:
    """A cache of keys that grows has one kernel, whatever is in it."""
    q, k, v = draw(9, 1, 32), draw(9, 500, 32), draw(9, 500, 32)
    tq, tk, tv = (Tensor(x).realize() for x in (q, k, v))
    count = Variable("n", 1, 500).bind(n)
    kernels, result = launches(tq.scaled_dot_product_attention(tk[:, :count], tv[:, :count]))
    np.testing.assert_allclose(result, attention(q, k[:, :n], v[:, :n]), rtol=1e-4, atol=1e-5)
    assert kernels == 1


def test_query_heads_that_share_keys() -> None:
    """Grouped queries: keys and values are not copied, and one kernel computes all."""
    q, k, v = draw(12, 1, 32), draw(3, 300, 32), draw(3, 300, 32)
    tq, tk, tv = (Tensor(x).realize() for x in (q, k, v))
    count, result = launches(tq.scaled_dot_product_attention(tk, tv, enable_gqa=True))
    np.testing.assert_allclose(result, attention(q, k.repeat(4, 0), v.repeat(4, 0)), rtol=1e-4, atol=1e-5)
    assert count == 1


def test_gradients_of_attention() -> None:
    """Against finite differences of the float64 formula."""
    q, k, v = draw(1, 6, 4), draw(1, 7, 4), draw(1, 7, 4)
    tensors = [Tensor(x) for x in (q, k, v)]
    tensors[0].scaled_dot_product_attention(tensors[1], tensors[2]).square().sum().backward()
    arrays = [x.astype(np.float64) for x in (q, k, v)]
    for which, t in enumerate(tensors):
        got = t.grad.numpy()
        for at in np.ndindex(arrays[which].shape):
            values = []
            for step in (1e-5, -1e-5):
                moved = [x.copy() for x in arrays]
                moved[which][at] += step
                values.append((attention(*moved) ** 2).sum())
            assert abs((values[0] - values[1]) / 2e-5 - got[at]) < 1e-3


def test_interpreter_agrees() -> None:
    """The same kernel on the PYTHON device."""
    q, k, v = draw(2, 24, 8), draw(2, 20, 8), draw(2, 20, 8)
    tq, tk, tv = (Tensor(x, device="PYTHON").realize() for x in (q, k, v))
    count, result = launches(tq.scaled_dot_product_attention(tk, tv, is_causal=True))
    mask = np.where(np.tril(np.ones((24, 20), bool)), 0, -np.inf)
    np.testing.assert_allclose(result, attention(q, k, v, mask), rtol=1e-4, atol=1e-5)
    assert count == 1


def test_what_others_read_is_stored() -> None:
    """Weights that are a result of their own keep their storage, and the kernels stay apart."""
    q, k, v = draw(2, 24, 8), draw(2, 20, 8), draw(2, 20, 8)
    tq, tk, tv = (Tensor(x).realize() for x in (q, k, v))
    weights = ((tq @ tk.transpose(-2, -1)) / math.sqrt(8)).softmax(-1)
    out = weights @ tv
    weights.realize(out)
    np.testing.assert_allclose(weights.numpy().sum(-1), np.ones((2, 24)), rtol=1e-5)
    np.testing.assert_allclose(out.numpy(), attention(q, k, v), rtol=1e-4, atol=1e-5)


def test_blocks_of_a_transformer() -> None:
    """Projections before and after attention are kernels of their own; the result is right."""
    x, w, o = draw(2, 32, 24), draw(24, 72) / 5, draw(24, 24) / 5
    tx, tw, to = (Tensor(a).realize() for a in (x, w, o))
    q, k, v = ((tx @ tw).reshape(2, 32, 3, 2, 12).permute(2, 0, 3, 1, 4)[i] for i in range(3))
    out = q.scaled_dot_product_attention(k, v, is_causal=True).transpose(1, 2).reshape(2, 32, 24) @ to
    wide = (x.astype(np.float64) @ w).reshape(2, 32, 3, 2, 12).transpose(2, 0, 3, 1, 4)
    mask = np.where(np.tril(np.ones((32, 32), bool)), 0, -np.inf)
    expected = attention(*wide, mask).transpose(0, 2, 1, 3).reshape(2, 32, 24) @ o
    np.testing.assert_allclose((out + tx).numpy(), expected + x, rtol=1e-3, atol=1e-4)


def test_a_chain_whose_steps_were_searched_is_right() -> None:
    q, k, v = draw(2, 40, 8), draw(2, 36, 8), draw(2, 36, 8)
    tq, tk, tv = (Tensor(x).realize() for x in (q, k, v))
    with Context(BEAM=1, BEAM_TIMEOUT=1):
        result = tq.scaled_dot_product_attention(tk, tv).numpy()
    np.testing.assert_allclose(result, attention(q, k, v), rtol=1e-4, atol=1e-5)


def test_deep_sums_keep_kernels_of_their_own() -> None:
    """A convolution, a mean over its pixels and a product are no attention: each has all its loops for threads."""
    x, w, head = draw(8, 128, 6, 6), draw(64, 128, 3, 3), draw(64, 10)
    tx, tw, th = (Tensor(a).realize() for a in (x, w, head))
    count, result = launches(tx.conv2d(tw).relu().mean((2, 3)) @ th)
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), (3, 3), (2, 3))
    expected = np.maximum(np.einsum("ncyxij,ocij->noyx", windows, w), 0).mean((2, 3)) @ head
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-3)
    assert count == 3


@pytest.mark.parametrize(("target", "copies"), [("wide", [2, 1]), ("avx2", [2, 2])])
def test_products_have_register_tiles(target: str, copies: list[int]) -> None:
    """Both products: copies of rows and of columns, so that a loaded operand serves several sums; a vector of 64 bytes
    of the values serves 16 rows."""
    q, k, v = (Tensor(draw(2, 512, 64)).realize() for _ in range(3))
    (item,) = scheduled(q.scaled_dot_product_attention(k, v)).items
    assert item.kernel is not None
    plan = Plan(separate(lower(item.kernel)), renderer(target))
    heuristics.choose(plan)
    (each,) = plan.steps
    assert isinstance(each, EachNest)
    assert [sum([isinstance(s, Upcast) for s in steps]) for steps in (each.steps[0], each.steps[-1])] == copies


def test_equal_layers_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a chain has a kernel form is asked once for all layers of equal sizes."""
    asked = []

    def lower_counted(body: UOp) -> UOp:
        asked.append(body)
        return lower(body)

    monkeypatch.setattr(kernels, "lower", lower_counted)
    x = Tensor(draw(2, 40, 24)).realize()
    w = [Tensor(draw(24, 24)).realize() for _ in range(6)]
    for one in w:
        x = (x @ one).scaled_dot_product_attention(x, x, is_causal=True)
    bodies = [i.kernel for i in scheduled(x).items if len(i.kernel.src) > 1]
    assert len(bodies) == 6  # a chain a layer; the first and the last read and store other memory
    assert len(asked) == len(set(asked)) <= 3
