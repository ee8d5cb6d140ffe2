"""Random numbers: the published vectors, the same numbers everywhere, the right distributions."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from aril import Context, Tensor, dtypes, jit
from tests.values import both, check, of_graph


@both
@pytest.mark.parametrize(
    "counter, key, want",
    [  # known answers of threefry2x32 with 20 rounds (Random123's kat_vectors)
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_published_vectors(value, counter, key, want):
    words = [Tensor([low | high << 32], dtype="uint64") for low, high in (counter, key)]
    out = int(value(words[0].threefry(words[1]))[0])
    assert (out & 0xFFFFFFFF, out >> 32) == want


def test_the_same_numbers_by_graph_and_by_device():
    Tensor.manual_seed(7)
    draws = [Tensor.rand(50), Tensor.randint(50, low=-5, high=100), Tensor.random_bits(50)]
    for t in draws:
        np.testing.assert_array_equal(of_graph(t), t.numpy())
    normal = Tensor.randn(50)
    np.testing.assert_allclose(of_graph(normal), normal.numpy(), rtol=1e-5, atol=1e-6)


def test_a_seed_repeats_and_draws_differ():
    Tensor.manual_seed(42)
    a, b = Tensor.rand(20).tolist(), Tensor.rand(20).tolist()
    Tensor.manual_seed(42)
    assert Tensor.rand(20).tolist() == a and a != b
    Tensor.manual_seed(43)
    assert Tensor.rand(20).tolist() != a
    Tensor.manual_seed(42)
    big = Tensor.rand(40).tolist()
    assert big[:20] == a and big[20:] == b  # a draw continues where the one before ended


def test_a_draw_is_one_value_however_often_it_is_read():
    x = Tensor.rand(5)
    assert (x - x).tolist() == [0] * 5
    assert x.tolist() == x.tolist()


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32", "float64"])
def test_uniform(kind):
    Tensor.manual_seed(0)
    x = Tensor.rand(20000, dtype=kind).numpy().astype(np.float64)
    assert x.min() >= 0 and x.max() < 1
    assert stats.kstest(x, "uniform").pvalue > 1e-4 or kind == "bfloat16"


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_normal(kind):
    Tensor.manual_seed(0)
    x = Tensor.randn(20000, dtype=kind).numpy()
    assert np.isfinite(x).all() and stats.kstest(x, "norm").pvalue > 1e-4
    y = Tensor.normal(20000, mean=3.0, std=0.5).numpy()
    assert abs(y.mean() - 3) < 0.02 and abs(y.std() - 0.5) < 0.02


def test_integers():
    Tensor.manual_seed(0)
    x = Tensor.randint(30000, low=-3, high=3).numpy()
    counts = np.bincount(x + 3, minlength=6)
    assert x.dtype == np.int32 and len(counts) == 6 and stats.chisquare(counts).pvalue > 1e-4
    with pytest.raises(ValueError, match="randint"):
        Tensor.randint(3, low=5, high=5)
    with pytest.raises(TypeError, match="randint"):
        Tensor.rand(3, dtype="int32")


def test_initial_weights():
    for t, bound in (
        (Tensor.uniform(1000, low=-2, high=3), None),
        (Tensor.scaled_uniform(40, 25), 1000**-0.5),
        (Tensor.glorot_uniform(40, 25), (6 / 65) ** 0.5),
        (Tensor.kaiming_uniform(40, 25), (6 / (1.0001 * 25)) ** 0.5),
    ):
        x = t.numpy()
        low, high = (-2, 3) if bound is None else (-bound, bound)
        assert low <= x.min() and x.max() <= high and x.max() - x.min() > 0.95 * (high - low)
    assert abs(Tensor.kaiming_normal(200, 50).numpy().std() - (2 / (1.0001 * 50)) ** 0.5) < 0.01


def test_permutations_and_samples():
    Tensor.manual_seed(0)
    p = Tensor.randperm(100).tolist()
    assert sorted(p) == list(range(100)) and p != list(range(100))
    w = Tensor([1.0, 0.0, 3.0])
    x = w.multinomial(4000, replacement=True).numpy()
    assert set(x) == {0, 2} and abs((x == 2).mean() - 0.75) < 0.03
    y = Tensor([[1.0, 1.0, 1.0], [0.0, 1.0, 1.0]]).multinomial(2).numpy()
    assert y.shape == (2, 2) and all(len(set(row)) == 2 for row in y) and 0 not in y[1]


def test_captured_functions_draw_anew():
    @jit
    def masks(x):
        return (x + Tensor.rand(16)).realize()

    zero = Tensor.zeros(16).contiguous().realize()
    rows = [tuple(masks(zero).tolist()) for _ in range(6)]
    assert len(set(rows)) == 6


def test_like():
    x = Tensor.zeros(3, 4, dtype="float64")
    assert x.rand_like().dtype is dtypes.float64 and x.randn_like().shape == (3, 4)


def test_dropout_differs_between_calls():
    with Context(TRAINING=1):
        x = Tensor.ones(1000)
        assert x.dropout().tolist() != x.dropout().tolist()


@both
def test_nothing_to_draw(value):
    check(value, Tensor.rand(0, 3), np.zeros((0, 3)))
