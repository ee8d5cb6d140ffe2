"""Losses where they are asked for what they are rarely asked for: against formulas in NumPy (float64) and by finite
differences."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special

from aril import Tensor, dtypes
from tests.values import both, check

RNG = np.random.default_rng(14)
LOGITS = RNG.normal(size=(6, 4))
NUMBERS = np.array([0, 3, -100, 1, 3, -100])
KEPT = NUMBERS >= 0
WEIGHT = np.array([0.5, 2.0, 1.0, 0.25])


def wanted(weight, smoothing, reduction):
    """The definition in PyTorch's documentation of CrossEntropyLoss, class by class."""
    logs = special.log_softmax(LOGITS, 1) * weight
    each = np.where(KEPT, -(1 - smoothing) * logs[np.arange(6), NUMBERS * KEPT] - smoothing / 4 * logs.sum(1), 0)
    if reduction != "mean":
        return each if reduction == "none" else each.sum()
    return each.sum() / weight[NUMBERS[KEPT]].sum()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["even", "weighted"])
def test_targets_of_minus_100_do_not_count(weight, smoothing, reduction):
    want = wanted(np.ones(4) if weight is None else weight, smoothing, reduction)
    given = None if weight is None else Tensor(weight)
    got = Tensor(LOGITS).cross_entropy(Tensor(NUMBERS), reduction, smoothing, weight=given)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-12)
    if not smoothing:
        got = Tensor(LOGITS).log_softmax(1).nll_loss(Tensor(NUMBERS), given, reduction=reduction)
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-12)


def test_weighted_probabilities():
    target = special.softmax(RNG.normal(size=(6, 4)), 1)
    want = -(special.log_softmax(LOGITS, 1) * WEIGHT * target).sum(1).mean()
    np.testing.assert_allclose(
        Tensor(LOGITS).cross_entropy(Tensor(target), weight=Tensor(WEIGHT)).item(), want, rtol=1e-12
    )


@both
def test_a_class_that_is_out_of_the_question_costs_nothing(value):
    x = np.array([[1.0, -np.inf, 0.0], [-np.inf, 2.0, 2.0]], np.float32)
    check(value, Tensor(x).cross_entropy(Tensor([0, 2]), "none"), [np.log1p(np.exp(-1)), np.log(2)], rtol=1e-6)
    t = Tensor(x)
    (slope,) = t.cross_entropy(Tensor([0, 2]), "sum").gradient(t)
    check(value, slope, special.softmax(x, 1) - np.eye(3)[[0, 2]], rtol=1e-6, atol=1e-7)


def test_one_example_without_a_batch():
    want = -special.log_softmax(LOGITS[0])[2]
    np.testing.assert_allclose(Tensor(LOGITS[0]).cross_entropy(Tensor(2)).item(), want)
    np.testing.assert_allclose(Tensor(LOGITS[0]).log_softmax(0).nll_loss(Tensor(2)).item(), want)


def test_class_numbers_of_a_narrow_type_name_their_own_class_only():
    x = RNG.normal(size=(2, 300))
    got = Tensor(x).cross_entropy(Tensor(np.array([5, 255], np.uint8)), "none")
    np.testing.assert_allclose(got.numpy(), -special.log_softmax(x, 1)[[0, 1], [5, 255]])


def test_the_mean_of_more_losses_than_float16_can_count():
    got = Tensor.zeros(70000, 2, dtype=dtypes.float16).cross_entropy(Tensor.zeros(70000, dtype=dtypes.int32))
    np.testing.assert_allclose(got.item(), np.log(2), rtol=1e-3)


def test_losses_of_classes_say_what_is_wrong():
    with pytest.raises(ValueError, match=r"weight \(3,\) .* each of 4 classes"):
        Tensor(LOGITS).cross_entropy(Tensor(NUMBERS), weight=Tensor.ones(3))
    with pytest.raises(TypeError, match="class numbers are integers, not float32"):
        Tensor(LOGITS).nll_loss(Tensor.zeros(6))


@both
def test_probabilities_of_0_and_1(value):
    p, y = Tensor([0.0, 1.0, 0.0, 1.0, 0.5]), Tensor([0.0, 1.0, 1.0, 0.0, 1.0])
    check(value, p.binary_crossentropy(y, "none"), [0, 0, 100, 100, np.log(2)], rtol=1e-6)
    (slope,) = p.binary_crossentropy(y, "sum").gradient(p)
    assert np.isfinite(value(slope)).all()


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_the_gradient_of_a_logit_of_zero(weight):
    x, y = Tensor(np.zeros(3)), Tensor(np.array([0.0, 1.0, 0.25]))
    for given in (None, Tensor(np.float64(weight))):
        w = 1.0 if given is None else weight
        (slope,) = x.binary_crossentropy_logits(y, "sum", given).gradient(x)
        np.testing.assert_allclose(slope.numpy(), [0.5, -0.5 * w, 0.75 * 0.5 - 0.25 * 0.5 * w])


@both
def test_attention_of_a_given_scale(value):
    q, k, v = (RNG.normal(size=s).astype(np.float32) for s in ((2, 3, 4), (2, 5, 4), (2, 5, 3)))
    want = special.softmax(0.3 * q.astype(np.float64) @ k.swapaxes(1, 2), -1) @ v
    check(value, Tensor(q).scaled_dot_product_attention(Tensor(k), Tensor(v), scale=0.3), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "key, value, says",
    [
        ((1, 3, 6, 5), (1, 3, 6, 4), "last axes of query and key"),
        ((1, 4, 6, 8), (1, 4, 5, 8), "one length"),
        ((1, 3, 6, 8), (1, 3, 6, 8), "a multiple"),
    ],
)
def test_attention_says_what_does_not_fit(key, value, says):
    with pytest.raises(ValueError, match=says):
        Tensor.ones(1, 4, 5, 8).scaled_dot_product_attention(Tensor.ones(*key), Tensor.ones(*value), enable_gqa=True)


@both
def test_smoothed_labels_over_many_classes_in_float16(value):
    x = np.where(np.arange(3000) % 7, 0.0, 40.0).astype(np.float16).reshape(1, -1)  # the logarithms add up to -120,000
    logs = x.astype(np.float64) - special.logsumexp(x.astype(np.float64))
    want = -0.9 * logs[0, 1] - 0.1 * logs.mean()
    got = Tensor(x).cross_entropy(Tensor([1]), label_smoothing=0.1)
    check(value, got.float(), want, rtol=2e-3)
