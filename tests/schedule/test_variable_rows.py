"""Rows of variable length: their sums are computed once a row, ahead of whole vectors of results and of the rest."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from aril import Tensor, Variable, jit
from aril.codegen.heuristics import optimise
from aril.codegen.panels import Keep
from aril.codegen.steps import Split, Upcast
from aril.schedule import normalize, schedule
from aril.schedule.lower import lower
from tests.codegen.run import renderer

ROWS, MOST = 19, 140
RNG = np.random.default_rng(3)
Array = np.ndarray


def softmax(a: Array) -> Array:
    e = np.exp(a - a.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def normalised(a: Array) -> Array:
    return (a - a.mean(-1, keepdims=True)) / np.sqrt(a.var(-1, keepdims=True) + 1e-5)


FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Array], Array]]] = {
    "softmax": (lambda t: t.softmax(-1), softmax),
    "log_softmax": (lambda t: t.log_softmax(-1), lambda a: np.log(softmax(a))),
    "layernorm": (lambda t: t.layernorm(), normalised),
    "a value again": (
        lambda t: t.exp() / t.exp().sum(-1, keepdim=True) + t.flip(1).exp(),
        lambda a: np.exp(a) / np.exp(a).sum(-1, keepdims=True) + np.exp(a[:, ::-1]),
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_of_rows_of_any_length(name: str) -> None:
    ours, theirs = FUNCTIONS[name]
    a = RNG.standard_normal((ROWS, MOST)).astype(np.float32)
    x, n = Tensor(a).realize(), Variable("n", 1, MOST)
    f = jit(lambda n: ours(x[:, :n]).realize())
    for k in (9, 9, 1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 139, 140):
        got = Tensor(f(n.bind(k)).uop.base).reshape(ROWS, MOST)[:, :k]
        np.testing.assert_allclose(got.numpy(), theirs(a[:, :k].astype(np.float64)), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("target", ["wide", "avx2"])
def test_a_row_is_reduced_once(target: str) -> None:
    x, n = Tensor(RNG.standard_normal((64, 1024)).astype(np.float32)).realize(), Variable("n", 1, 1024)
    for f, keeps in ((lambda t: t.softmax(-1), 1), (lambda t: t.layernorm(), 0)):
        (item,) = schedule(normalize([f(x[:, : n.bind(500)]).uop], ("CPU",)).graph, 1).items
        sink = optimise(lower(item.kernel), renderer(target))
        assert len(sink.src) == 1  # vectors and their rest lie in one loop over rows
        assert len([s for s in sink.arg.applied if isinstance(s, Keep)]) == keeps


@pytest.mark.parametrize("target", ["wide", "avx2"])
def test_sums_over_variable_columns_are_made_for_vectors_side_by_side(target: str) -> None:
    """A row's step goes to another line: four vectors of sums take one."""
    x, n = Tensor(RNG.standard_normal((64, 1024)).astype(np.float32)).realize(), Variable("n", 1, 1024)
    (item,) = schedule(normalize([x[:, : n.bind(500)].sum(0).uop], ("CPU",)).graph, 1).items
    steps = optimise(lower(item.kernel), renderer(target)).arg.applied
    copied = [s for s in steps if isinstance(s, Upcast)]
    lanes = renderer(target).vector_bytes // 4
    assert len(copied) == 1
    assert any(isinstance(s, Split) and s.factor == 4 * lanes and s.tail == "peel" for s in steps)


def test_sums_over_variable_columns() -> None:
    a = RNG.standard_normal((37, 300)).astype(np.float32)
    x, n = Tensor(a).realize(), Variable("n", 1, 300)
    f = jit(lambda n: x[:, :n].sum(0).realize())
    for k in (3, 3, 1, 15, 16, 64, 65, 81, 127, 128, 200, 299, 300):
        got = Tensor(f(n.bind(k)).uop.base)[:k]
        np.testing.assert_allclose(got.numpy(), a[:, :k].astype(np.float64).sum(0), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("target", ["wide", "avx2"])
def test_sums_over_variable_rows_have_four_accumulators(target: str) -> None:
    """And what they leave goes by vectors, then one by one."""
    x, n = Tensor(RNG.standard_normal((64, 1024)).astype(np.float32)).realize(), Variable("n", 1, 1024)
    (item,) = schedule(normalize([x[:, : n.bind(500)].layernorm().uop], ("CPU",)).graph, 1).items
    steps = optimise(lower(item.kernel), renderer(target)).arg.applied
    lanes = renderer(target).vector_bytes // 4
    tails = [s.factor for s in steps if isinstance(s, Split) and s.tail == "peel"]
    assert tails.count(4 * lanes) >= 1
    assert tails.count(lanes) >= 2
