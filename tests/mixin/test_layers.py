"""Normalisation, losses and attention against their formulas in NumPy and SciPy (float64)."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special

from aril import Context, Tensor, dtypes
from tests.values import both, check

RNG = np.random.default_rng(4)


def sample(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


@both
def test_layernorm(value):
    x = sample(2, 3, 5)
    w = x.astype(np.float64)
    for axis in (-1, (1, 2)):
        want = (w - w.mean(axis, keepdims=True)) / np.sqrt(w.var(axis, keepdims=True) + 1e-5)
        check(value, Tensor(x).layernorm(axis), want, rtol=1e-5, atol=1e-5)


@both
def test_batchnorm(value):
    x, weight, bias = sample(4, 3, 5, 5), sample(3), sample(3)
    mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3))
    invstd = 1 / np.sqrt(var + 1e-5)
    got = Tensor(x).batchnorm(Tensor(weight), Tensor(bias), Tensor(mean), Tensor(invstd))
    s = (1, 3, 1, 1)
    check(value, got, (x - mean.reshape(s)) * (invstd * weight).reshape(s) + bias.reshape(s), rtol=1e-5, atol=1e-5)


@both
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy(value, reduction, smoothing):
    x, y = sample(6, 5) * 3, RNG.integers(0, 5, 6)
    target = np.eye(5)[y] * (1 - smoothing) + smoothing / 5
    want = -(special.log_softmax(x.astype(np.float64), 1) * target).sum(1)
    want = {"mean": np.mean, "sum": np.sum, "none": lambda v: v}[reduction](want)
    for labels in (Tensor(y), Tensor(np.eye(5, dtype=np.float32)[y])):
        check(value, Tensor(x).cross_entropy(labels, reduction, smoothing), want, rtol=1e-5)
    check(value, Tensor(x).sparse_categorical_crossentropy(Tensor(y), -1, smoothing, reduction), want, rtol=1e-5)


@both
def test_cross_entropy_over_images(value):
    x, y = sample(2, 4, 3, 3), RNG.integers(0, 4, (2, 3, 3))
    logs = special.log_softmax(x.astype(np.float64), 1)
    want = -np.take_along_axis(logs, y[:, None], 1).mean()
    check(value, Tensor(x).cross_entropy(Tensor(y)), want, rtol=1e-5)
    check(value, Tensor(x).log_softmax(1).nll_loss(Tensor(y)), want, rtol=1e-5)
    with pytest.raises(ValueError, match="cross_entropy"):
        Tensor(x).cross_entropy(Tensor(y[:, 0]))
    with pytest.raises(ValueError, match="reduction"):
        Tensor(x).cross_entropy(Tensor(y), "avg")


@both
def test_ignored_and_weighted_classes(value):
    x, y, w = sample(6, 3), np.array([0, 2, -1, 1, -1, 2]), np.array([0.5, 2, 1], np.float32)
    logs = special.log_softmax(x.astype(np.float64), 1)
    keep = y >= 0
    each = np.where(keep, -logs[np.arange(6), y], 0)
    check(value, Tensor(x).sparse_categorical_crossentropy(Tensor(y)), each.sum() / keep.sum(), rtol=1e-5)
    weight = np.where(keep, w[y], 0)
    got = Tensor(logs.astype(np.float32)).nll_loss(Tensor(y), Tensor(w), ignore_index=-1)
    check(value, got, (each * weight).sum() / weight.sum(), rtol=1e-5)


@both
def test_binary_crossentropy(value):
    x, y = sample(20) * 4, RNG.uniform(0, 1, 20).astype(np.float32)
    p = special.expit(x.astype(np.float64))
    want = -(y * np.log(p) + (1 - y) * np.log1p(-p))
    check(value, Tensor(x).binary_crossentropy_logits(Tensor(y)), want.mean(), rtol=1e-5)
    check(value, Tensor(x).sigmoid().binary_crossentropy(Tensor(y), "none"), want, rtol=2e-4, atol=1e-5)
    extreme = np.array([1000.0, -1000.0], np.float32)
    check(value, Tensor(extreme).binary_crossentropy_logits(Tensor([0.0, 1.0]), "none"), [1000.0, 1000.0])
    weighted = -(3 * y * np.log(p) + (1 - y) * np.log1p(-p)).mean()
    got = Tensor(x).binary_crossentropy_logits(Tensor(y), pos_weight=Tensor(np.float32(3)))
    check(value, got, weighted, rtol=1e-5)


def attention(q, k, v, mask=None):
    s = q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    s = s if mask is None else np.where(mask, s, -np.inf)
    return special.softmax(s, -1) @ v


@both
def test_attention(value):
    q, k, v = sample(2, 3, 5, 4), sample(2, 3, 6, 4), sample(2, 3, 6, 7)
    tq, tk, tv = Tensor(q), Tensor(k), Tensor(v)
    check(value, tq.scaled_dot_product_attention(tk, tv), attention(q, k, v), rtol=1e-5, atol=1e-5)
    mask = RNG.random((5, 6)) > 0.3
    mask[:, 0] = True
    got = tq.scaled_dot_product_attention(tk, tv, Tensor(mask))
    check(value, got, attention(q, k, v, mask), rtol=1e-5, atol=1e-5)
    added = np.where(mask, 0, -np.inf).astype(np.float32)
    got = tq.scaled_dot_product_attention(tk, tv, Tensor(added))
    check(value, got, attention(q, k, v, mask), rtol=1e-5, atol=1e-5)
    got = tq.scaled_dot_product_attention(tk, tv, is_causal=True)
    check(value, got, attention(q, k, v, np.tri(5, 6, dtype=bool)), rtol=1e-5, atol=1e-5)
    got = tq.scaled_dot_product_attention(Tensor(k[:, :1]), Tensor(v[:, :1]), enable_gqa=True)
    check(value, got, attention(q, k[:, :1], v[:, :1]), rtol=1e-5, atol=1e-5)


@both
def test_a_row_that_sees_nothing_attends_to_nothing(value):
    q, k, v = sample(1, 2, 4), sample(1, 3, 4), sample(1, 3, 4)
    mask = np.array([[True, False, True], [False, False, False]])
    got = value(Tensor(q).scaled_dot_product_attention(Tensor(k), Tensor(v), Tensor(mask)))
    np.testing.assert_array_equal(got[0, 1], np.zeros(4))


@both
def test_one_hot(value):
    y = np.array([[0, 2], [3, -1]])
    check(value, Tensor(y).one_hot(3), (y[..., None] == np.arange(3)).astype(np.int32))
    with pytest.raises(TypeError, match="integers"):
        Tensor([1.0]).one_hot(3)


@both
def test_dropout(value):
    x = Tensor.ones(100, 100)
    assert value(x.dropout(0.5)).tolist() == value(x).tolist()
    with Context(TRAINING=1):
        Tensor.manual_seed(1)
        got = value(x.dropout(0.25))
        assert set(np.unique(got)) <= {0.0, np.float32(1 / 0.75)}
        assert abs((got == 0).mean() - 0.25) < 0.02
        check(value, x.dropout(1.0), np.zeros((100, 100)))
    with pytest.raises(ValueError, match="dropout"):
        x.dropout(1.5)


@both
def test_newton_schulz_moves_singular_values_to_one(value):
    out = value(Tensor(sample(6, 4)).newton_schulz(10))
    assert (np.abs(np.linalg.svd(out.astype(np.float64), compute_uv=False) - 1) < 0.35).all()


def test_sequential():
    out = Tensor([1.0, -2.0]).sequential([Tensor.relu, lambda x: x + 1])
    assert out.tolist() == [2.0, 1.0] and out.dtype is dtypes.float32


@both
def test_normalize(value):
    x = sample(3, 4)
    check(value, Tensor(x).normalize(), x / np.linalg.norm(x, axis=1, keepdims=True), rtol=1e-5)
    check(value, Tensor(x).normalize(1, 0), x / np.abs(x).sum(0), rtol=1e-5)
    check(value, Tensor.zeros(1, 3).normalize(), np.zeros((1, 3)))
    large = (1000 * x).astype(np.float16)  # whose squares are beyond the type
    for p in (2, 3):
        want = large / np.linalg.norm(large.astype(np.float64), p, axis=1, keepdims=True)
        check(value, Tensor(large).normalize(p).float(), want, rtol=1e-3, atol=1e-3)


@both
@pytest.mark.parametrize("kind", ["int8", "uint8", "int16"])
def test_one_hot_of_narrow_class_numbers(value, kind):
    numbers = np.array([0, 5, 44, 127], kind)  # with 300 classes, 300 - 256 is not class 44
    check(value, Tensor(numbers).one_hot(400), (numbers[:, None] == np.arange(400)).astype(np.int32))
