"""backward() and gradient(): where gradients go, and what they survive."""

from __future__ import annotations

import numpy as np
import pytest

from aril import Tensor


def test_backward_accumulates():
    w = Tensor([1.0, 2.0, 3.0]).is_param_()
    (w * w).sum().backward()
    assert w.grad.tolist() == [2, 4, 6]
    (w * 10).sum().backward()
    assert w.grad.tolist() == [12, 14, 16]


def test_only_parameters_where_there_are_some():
    w, x = Tensor([2.0]).is_param_(), Tensor([3.0])
    (w * x).backward()
    assert w.grad.tolist() == [3] and x.grad is None
    x2, y2 = Tensor([3.0]), Tensor([4.0]).is_param_(False)
    (x2 * y2).backward()
    assert x2.grad.tolist() == [4] and y2.grad is None


def test_equal_parameters_are_different_parameters():
    a, b = Tensor.zeros(2).is_param_(), Tensor.zeros(2).is_param_()
    (a * 2 + b * 3).sum().backward()
    assert a.grad.tolist() == [2, 2] and b.grad.tolist() == [3, 3]


def test_after_the_value_was_looked_at():
    w = Tensor([3.0]).is_param_()
    h = w * 2
    loss = (h * h).sum()
    assert loss.item() == 36 and h.item() == 6 and w.item() == 3
    loss.backward()
    assert w.grad.tolist() == [24]
    h2 = (w * 2).realize()
    (h2 * h2).sum().backward()
    assert w.grad.tolist() == [48]


def test_gradient_of_any_tensor():
    x = Tensor([1.0, 2.0])
    h = x * 3
    out = (h * h).sum()
    gx, gh = out.gradient(x, h)
    assert gx.tolist() == [18, 36] and gh.tolist() == [6, 12]
    (none,) = out.gradient(Tensor([5.0, 5.0]))
    assert none.tolist() == [0, 0]
    (g,) = h.gradient(x, gradient=Tensor([1.0, 10.0]))
    assert g.tolist() == [3, 30]


def test_second_order():
    x = Tensor([2.0])
    (g,) = (x**3).gradient(x)
    (gg,) = g.gradient(x)
    assert (g.item(), gg.item()) == (12, 12)


def test_errors():
    w = Tensor([1.0, 2.0]).is_param_()
    with pytest.raises(ValueError, match="needs a gradient"):
        (w * 2).backward()
    with pytest.raises(TypeError, match="only floats"):
        Tensor([1, 2]).sum().gradient(w)
    with pytest.raises(RuntimeError, match="no parameter"):
        Tensor.arange(3).float().sum().backward()


def test_gradients_still_hold_after_the_update():
    w = Tensor([1.0, 2.0]).is_param_()
    loss = (w * w).sum()
    loss.backward()
    w.assign(w - 0.5 * w.grad)
    w.realize()
    assert w.tolist() == [0, 0] and w.grad.tolist() == [2, 4] and loss.item() == 5


def test_a_small_regression_learns():
    rng = np.random.default_rng(0)
    x, true = rng.standard_normal((64, 3)).astype(np.float32), np.array([[1.0], [-2.0], [0.5]], np.float32)
    w = Tensor.zeros(3, 1).is_param_()
    data, target = Tensor(x), Tensor(x @ true)
    for _ in range(60):
        w.grad = None
        ((data @ w - target) ** 2).mean().backward()
        w.assign(w - 0.2 * w.grad).realize()
    np.testing.assert_allclose(w.numpy(), true, atol=1e-3)


def test_gradients_pass_what_was_stored_already():
    # contiguous() of whole storage computes nothing: it must not become its own history.
    w = Tensor(np.array([1.0, 2.0], np.float32)).contiguous().realize()
    x = Tensor(np.array([3.0, 4.0], np.float32)).contiguous().realize()
    (gradient,) = (w * x).sum().gradient(x)
    np.testing.assert_array_equal(gradient.numpy(), [1.0, 2.0])


@pytest.mark.parametrize(("tokens", "width"), [(18, 8), (59, 16)])
def test_causal_attention_of_a_few_tokens(tokens: int, width: int) -> None:
    """Against the derivatives of softmax(q k^T / sqrt(width)) v written out, in float64."""
    rng = np.random.default_rng(tokens)
    q, k, v, g = (rng.standard_normal((2, tokens, width)).astype(np.float32) for _ in range(4))
    s = np.where(np.tri(tokens) > 0, q.astype(np.float64) @ k.swapaxes(1, 2) / np.sqrt(width), -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    dp = g.astype(np.float64) @ v.swapaxes(1, 2)
    ds = p * (dp - (p * dp).sum(-1, keepdims=True)) / np.sqrt(width)
    want = (ds @ k, ds.swapaxes(1, 2) @ q, p.swapaxes(1, 2) @ g)
    tensors = [Tensor(x) for x in (q, k, v)]
    found = tensors[0].scaled_dot_product_attention(*tensors[1:], is_causal=True).gradient(*tensors, gradient=Tensor(g))
    for a, b in zip(found, want, strict=True):
        np.testing.assert_allclose(a.numpy(), b, rtol=1e-4, atol=1e-5)


def test_attention_of_a_mask_that_heads_share() -> None:
    """The scores of a few heads lie beside each other: their rows are computed together."""
    rng = np.random.default_rng(95)
    q, k, v, g = (rng.standard_normal((2, 4, n, 16)).astype(np.float32) for n in (95, 33, 33, 95))
    mask = rng.random((95, 33)) < 0.7
    mask[:, 0] = True
    s = np.where(mask, q.astype(np.float64) @ k.swapaxes(-1, -2) / 4, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    tensors = [Tensor(x) for x in (q, k, v)]
    out = tensors[0].scaled_dot_product_attention(*tensors[1:], attn_mask=Tensor(mask))
    found = out.gradient(tensors[2], gradient=Tensor(g))[0]
    np.testing.assert_allclose(found.numpy(), p.swapaxes(-1, -2) @ g, rtol=1e-4, atol=1e-5)
