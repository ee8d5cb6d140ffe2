"""What users of NumPy and PyTorch write from habit, and values at the places where activations bend."""

from __future__ import annotations

import math

import numpy as np
import pytest

from aril import Tensor, dtypes


def slope(name: str, at: float) -> float:
    x = Tensor([at]).is_param_()
    getattr(x, name)().sum().backward()
    return x.grad.item()


@pytest.mark.parametrize(
    ("name", "expected"),
    [("sigmoid", 0.25), ("softplus", 0.5), ("logsigmoid", 0.5), ("silu", 0.5), ("mish", math.tanh(math.log(2)))]
    + [("elu", 1.0), ("celu", 1.0), ("selu", 1.6732632423543772 * 1.0507009873554805), ("leaky_relu", 0.01)],
)
@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_the_derivative_at_zero_is_the_limit_from_below(name, expected, zero):
    assert slope(name, zero) == pytest.approx(expected, rel=1e-5)


def test_a_tie_with_an_upper_limit_is_the_limits():
    x = Tensor([1.0, 0.5, 2.0, -1.0]).is_param_()
    x.clamp(-1.0, 1.0).sum().backward()
    assert x.grad.tolist() == [0, 1, 0, 0]


def test_sign_passes_no_gradient():
    x = Tensor([0.0, math.nan, 3.0]).is_param_()
    (x.sign() + x * 2).sum().backward()
    assert x.grad.tolist() == [2, 2, 2]


def test_relu6_and_hardswish_of_large_values():
    big = Tensor([1e20, math.inf, 1e8, 6.5, -1e20])
    assert big.relu6().tolist() == [6, 6, 6, 6, 0]
    got = big.hardswish().numpy()
    assert got[:4] == pytest.approx([1e20, math.inf, 1e8, 6.5]) and got[4] == 0


def test_softmax_and_logsumexp_of_nothing():
    x = Tensor.zeros(3, 0)
    assert x.softmax(1).shape == (3, 0) and x.log_softmax(1).numpy().shape == (3, 0)
    assert x.logsumexp(1).tolist() == [-math.inf] * 3


def test_padding_around_nothing_has_its_value():
    assert Tensor.zeros(2, 0).pad(((0, 1), (1, 2)), value=3.0).tolist() == [[3.0] * 3] * 3


def test_joined_from_a_list_on_the_class():
    a, b = Tensor([1, 2]), Tensor([3, 4])
    assert Tensor.stack([a, b]).tolist() == [[1, 2], [3, 4]] == Tensor.stack(a, b).tolist()
    assert Tensor.cat([a, b], dim=0).tolist() == [1, 2, 3, 4]
    assert Tensor.einsum("i,i->", a, b).item() == 11


def test_an_array_on_the_left_gives_a_tensor():
    x = Tensor([1.0, 2.0]).is_param_()
    out = np.array([3.0, 4.0], np.float32) * x
    assert isinstance(out, Tensor) and isinstance(np.float32(2) * x, Tensor)
    out.sum().backward()
    assert x.grad.tolist() == [3, 4]


def test_numpy_types_are_dtypes():
    assert Tensor([1, 2]).cast(np.float64).dtype is dtypes.float64
    assert Tensor([1, 2], dtype=np.int8).dtype is dtypes.int8 and Tensor([1]).cast(np.bool_).dtype is dtypes.bool


def test_a_dtype_is_no_device():
    with pytest.raises(TypeError, match="cast"):
        Tensor([1.0]).to(dtypes.float16)


def test_one_element_is_formatted_as_its_number():
    assert f"{Tensor(3.14159):.2f}" == "3.14" and f"{Tensor([7]):d}" == "7"


def test_nothing_equals_none_or_text():
    x = Tensor([1.0, 2.0])
    assert (x == None) is False and (x != None) is True and (x == "a") is False  # noqa: E711
    assert x in [None, x]


def test_parameters_are_floats():
    with pytest.raises(TypeError, match="is_param_: parameters are floats, not int32"):
        Tensor([1, 2]).is_param_()
    assert Tensor([1, 2]).is_param_(False).is_param is False


def test_names_of_numpy_and_pytorch_are_accepted():
    a = np.arange(12, dtype=np.float64).reshape(3, 4)
    x = Tensor(a)
    np.testing.assert_allclose(x.sum(dim=1, keepdims=True).numpy(), a.sum(1, keepdims=True))
    np.testing.assert_allclose(x.softmax(dim=0).numpy(), np.exp(a - a.max(0)) / np.exp(a - a.max(0)).sum(0))
    np.testing.assert_allclose(x.var(dim=0, unbiased=False).numpy(), a.var(0))
    np.testing.assert_allclose(x.std(0, ddof=1).numpy(), a.std(0, ddof=1))
    assert x.unsqueeze(axis=1).shape == (3, 1, 4) and x.cumsum(dim=1)[0, 3].item() == 6
    assert Tensor.stack([x, x], axis=1).shape == (3, 2, 4) and Tensor.cat(x, x, axis=-1).shape == (3, 8)
    assert x.sort(axis=0, descending=True)[0][0].tolist() == [8, 9, 10, 11]
    assert (x.uop.sum(dim=0)).shape == (4,)
    with pytest.raises(TypeError, match="sum: dim and axis are the same"):
        x.sum(dim=0, axis=1)
    with pytest.raises(TypeError, match="unexpected keyword"):
        x.sum(axes=0)


def test_functions_of_numpy_give_tensors():
    a = np.array([[3.0, -1.0, 2.5], [0.25, 7.0, -4.0]])
    x = Tensor(a)
    for f in (np.sum, np.mean, np.max, np.min, np.prod, np.std, np.var, np.argmax, np.argmin):
        for more in ({}, {"axis": 1}):
            got = f(x, **more)
            assert isinstance(got, Tensor), f
            np.testing.assert_allclose(got.numpy(), f(a, **more))
    np.testing.assert_allclose(np.sum(x, axis=0, keepdims=True).numpy(), a.sum(0, keepdims=True))
    np.testing.assert_allclose(np.std(x, ddof=1).numpy(), a.std(ddof=1))
    np.testing.assert_allclose(np.cumsum(x, axis=1).numpy(), a.cumsum(1))
    np.testing.assert_allclose(np.clip(x, -1, 3).numpy(), a.clip(-1, 3))
    np.testing.assert_allclose(np.round(x, 1).numpy(), a.round(1))
    assert np.reshape(x, (3, 2)).shape == (3, 2) and np.all(x > -9).item() and not np.any(x > 9).item()
    with pytest.raises(TypeError, match="sum: out="):
        np.sum(x, out=np.zeros(()))
