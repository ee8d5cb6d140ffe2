"""Layers against their formulas in NumPy and SciPy (float64), their initial values, shapes and errors."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from scipy.signal import correlate

from aril import Context, Tensor, dtypes, nn

RNG = np.random.default_rng(0)


def sample(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def close(got, expected, tolerance=2e-5):
    np.testing.assert_allclose(got.numpy(), expected, rtol=tolerance, atol=tolerance)


def array(t):
    return t.numpy().astype(np.float64)


def normalized(x, axes, eps):
    x = x.astype(np.float64)
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


def test_linear():
    layer, x = nn.Linear(4, 3), sample(2, 5, 4)
    close(layer(Tensor(x)), x @ array(layer.weight).T + array(layer.bias))
    assert nn.Linear(4, 3, bias=False).bias is None


def correlation(x, w, bias):
    x, w = x.astype(np.float64), w.astype(np.float64)
    out = np.stack([[correlate(image, kernel, mode="valid")[0] for kernel in w] for image in x])
    return out + bias.reshape(1, -1, *(1,) * (x.ndim - 2))


def test_conv2d():
    layer, x = nn.Conv2d(3, 4, (2, 3)), sample(2, 3, 6, 5)
    close(layer(Tensor(x)), correlation(x, layer.weight.numpy(), array(layer.bias)))


def test_conv1d():
    layer, x = nn.Conv1d(3, 4, 2), sample(2, 3, 6)
    close(layer(Tensor(x)), correlation(x, layer.weight.numpy(), array(layer.bias)))


def test_conv2d_padded_to_the_same_size_and_strided():
    layer, x = nn.Conv2d(2, 3, (3, 2), padding="same", bias=False), sample(1, 2, 5, 4)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (0, 1)))
    full = correlation(padded, layer.weight.numpy(), np.zeros(3))
    close(layer(Tensor(x)), full)
    strided = nn.Conv2d(2, 3, (3, 2), stride=2, bias=False)
    strided.weight = layer.weight
    close(strided(Tensor(padded)), full[:, :, ::2, ::2])


@pytest.mark.parametrize("kind", [nn.ConvTranspose1d, nn.ConvTranspose2d])
def test_transposed_convolution_is_the_gradient_of_the_convolution(kind):
    axes = 1 if kind is nn.ConvTranspose1d else 2
    layer = kind(3, 2, 3, stride=2, padding=1, output_padding=1, bias=False)
    forward = (nn.Conv1d if axes == 1 else nn.Conv2d)(2, 3, 3, stride=2, padding=1, bias=False)
    forward.weight = layer.weight
    y = Tensor(sample(2, 3, *(4,) * axes))
    out = layer(y)
    assert out.shape == (2, 2, *(8,) * axes)
    x = Tensor(sample(*out.shape)).is_param_(True)
    (expected,) = (forward(x) * y).sum().gradient(x)
    close(out, array(expected))


def test_batchnorm_in_training_uses_the_batch_and_moves_the_running_statistics():
    layer, x = nn.BatchNorm(3), sample(4, 3, 2, 5)
    with Context(TRAINING=1):
        close(layer(Tensor(x)), normalized(x, (0, 2, 3), 1e-5))
    close(layer.running_mean, 0.1 * x.mean((0, 2, 3)))
    close(layer.running_var, 0.9 + 0.1 * x.astype(np.float64).var((0, 2, 3), ddof=1))
    assert layer.num_batches_tracked.item() == 1


def test_batchnorm_outside_of_training_uses_the_running_statistics():
    layer, x = nn.BatchNorm(3), sample(4, 3)
    layer.running_mean.assign(Tensor([1.0, 2.0, 3.0]))
    layer.running_var.assign(Tensor([1.0, 4.0, 9.0]))
    layer.weight.assign(Tensor([2.0, 2.0, 2.0]))
    expected = 2.0 * (x - np.array([1.0, 2.0, 3.0])) / np.sqrt(np.array([1.0, 4.0, 9.0]) + 1e-5)
    close(layer(Tensor(x)), expected)
    close(layer.running_mean, [1.0, 2.0, 3.0])


def test_layernorm():
    layer, x = nn.LayerNorm((3, 4)), sample(2, 3, 4)
    layer.weight, layer.bias = Tensor(sample(3, 4)), Tensor(sample(3, 4))
    close(layer(Tensor(x)), normalized(x, (1, 2), 1e-5) * array(layer.weight) + array(layer.bias))


def test_layernorm2d():
    layer, x = nn.LayerNorm2d(3), sample(2, 3, 4, 5)
    close(layer(Tensor(x)), normalized(x, (1,), 1e-6))


def test_groupnorm_and_instancenorm():
    x = sample(2, 4, 3)
    grouped = normalized(x.reshape(2, 2, 6), (2,), 1e-5).reshape(2, 4, 3)
    close(nn.GroupNorm(2, 4)(Tensor(x)), grouped)
    close(nn.InstanceNorm(4)(Tensor(x)), normalized(x, (2,), 1e-5))


def test_rmsnorm():
    layer, x = nn.RMSNorm(4), sample(3, 4)
    close(layer(Tensor(x)), x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-6))


def test_embedding_and_its_gradient():
    layer = nn.Embedding(5, 3)
    out = layer(Tensor([[0, 4], [2, 2]]))
    close(out, array(layer.weight)[[[0, 4], [2, 2]]])
    (g,) = out.sum().gradient(layer.weight)
    np.testing.assert_array_equal(g.numpy(), np.array([1.0, 0, 2, 0, 1]).reshape(5, 1).repeat(3, 1))


def test_lstm_cell():
    layer, x, h, c = nn.LSTMCell(3, 2), sample(4, 3), sample(4, 2), sample(4, 2)
    gates = x @ array(layer.weight_ih).T + array(layer.bias_ih) + h @ array(layer.weight_hh).T + array(layer.bias_hh)
    i, f, g, o = np.split(gates, 4, axis=1)

    def sigmoid(v):
        return 1 / (1 + np.exp(-v))

    new_c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    got_h, got_c = layer(Tensor(x), (Tensor(h), Tensor(c)))
    close(got_c, new_c)
    close(got_h, sigmoid(o) * np.tanh(new_c))
    fresh, _ = layer(Tensor(x))
    assert fresh.shape == (4, 2)


# --- initial values ---


@pytest.mark.parametrize(
    ("layer", "shape", "fan_in"),
    [
        (nn.Linear(40, 30), (30, 40), 40),
        (nn.Conv2d(8, 16, 3, groups=2), (16, 4, 3, 3), 36),
        (nn.Conv1d(8, 16, 5), (16, 8, 5), 40),
        (nn.ConvTranspose2d(8, 16, 3), (8, 16, 3, 3), 144),
    ],
)
def test_weights_start_evenly_within_one_over_the_root_of_the_fan_in(layer, shape, fan_in):
    weight, bound = layer.weight.numpy(), fan_in**-0.5
    assert weight.shape == shape and np.abs(weight).max() <= bound
    assert np.abs(weight).max() > 0.9 * bound and abs(weight.mean()) < 0.2 * bound
    assert weight.std() == pytest.approx(bound / 3**0.5, rel=0.1)
    assert np.abs(layer.bias.numpy()).max() <= bound


def test_embedding_starts_normal():
    weight = nn.Embedding(100, 50).weight.numpy()
    assert abs(weight.mean()) < 0.1 and weight.std() == pytest.approx(1.0, rel=0.1)


def test_parameters_are_marked_and_running_statistics_are_not():
    layer = nn.BatchNorm(2)
    assert layer.weight.is_param and layer.bias.is_param
    assert not layer.running_mean.is_param and not layer.running_var.is_param
    assert layer.num_batches_tracked.dtype is dtypes.int64


# --- errors ---


@pytest.mark.parametrize(
    ("layer", "shape", "message"),
    [
        (nn.Linear(4, 3), (2, 5), r"Linear takes \(..., 4\), the input has shape \(2, 5\)"),
        (nn.Conv2d(3, 4, 2), (3, 5, 5), r"Conv2d takes \(batch, 3, height, width\)"),
        (nn.Conv1d(3, 4, 2), (1, 2, 5), r"Conv1d takes \(batch, 3, length\)"),
        (nn.BatchNorm(3), (2, 4), r"BatchNorm takes \(batch, 3, ...\)"),
        (nn.LayerNorm(4), (2, 3), r"LayerNorm takes \(..., 4\)"),
        (nn.GroupNorm(1, 4), (2, 3), r"GroupNorm takes \(batch, 4, ...\)"),
        (nn.RMSNorm(4), (2, 3), r"RMSNorm takes \(..., 4\)"),
        (nn.LSTMCell(3, 2), (2, 4), r"LSTMCell takes \(batch, 3\)"),
    ],
)
def test_an_input_that_does_not_fit_is_told_what_would(layer, shape, message):
    with pytest.raises(ValueError, match=message):
        layer(Tensor.zeros(*shape))


def test_arguments_that_make_no_layer_are_refused():
    with pytest.raises(ValueError, match="groups=2 does not divide"):
        nn.Conv2d(3, 4, 2, groups=2)
    with pytest.raises(ValueError, match="Conv2d: kernel_size is one int or 2 of them"):
        nn.Conv2d(3, 4, (1, 2, 3))
    with pytest.raises(ValueError, match="stride of 1"):
        nn.Conv2d(3, 4, 2, stride=2, padding="same")
    with pytest.raises(ValueError, match="do not divide"):
        nn.GroupNorm(3, 4)
    with pytest.raises(TypeError, match="float32"):
        nn.Embedding(3, 2)(Tensor([1.0]))
    with pytest.raises(AttributeError, match="Liner"):
        nn.Liner  # noqa: B018


@pytest.mark.parametrize("affine", [True, False])
def test_batch_statistics_of_small_floats_are_carried_in_float32(affine):
    x = (1000 * sample(8, 2, 5) + 1000).astype(np.float16)
    layer = nn.BatchNorm(2, affine=affine)
    with Context(TRAINING=1):
        out = layer(Tensor(x))
    assert out.dtype is (dtypes.float32 if affine else dtypes.float16)
    want = normalized(x, (0, 2), 1e-5)
    np.testing.assert_allclose(out.float().numpy(), want, rtol=1e-3, atol=1e-3)
    # the squares are beyond float16, and the means have more digits than it holds
    close(layer.running_mean, 0.1 * x.astype(np.float64).mean((0, 2)), 1e-6)
    close(layer.running_var, 0.9 + 0.1 * x.astype(np.float64).var((0, 2), ddof=1), 1e-6)
    assert nn.BatchNorm(3, affine=False)(Tensor.ones(2, 3, dtype="int32")).dtype is dtypes.float32


def test_a_layer_prints_as_it_was_made():
    class Wide(nn.Linear):
        def __init__(self, width: int, *, more: str = "") -> None:
            super().__init__(width, 2 * width)

    layers = [nn.Linear(784, 10), nn.Conv2d(3, 64, kernel_size=3, stride=2, padding="valid"), nn.BatchNorm2d(8, 1e-5)]
    layers += [nn.LayerNorm((2, 3)), nn.Embedding(10, 4, dtype=dtypes.float16), nn.GroupNorm(2, 4), Wide(3, more="x")]
    texts = ["Linear(784, 10)", "Conv2d(3, 64, 3, stride=2, padding='valid')", "BatchNorm(8)"]
    texts += ["LayerNorm((2, 3))", "Embedding(10, 4, dtype=dtypes.float16)", "GroupNorm(2, 4)", "Wide(3, more='x')"]
    assert [repr(layer) for layer in layers] == texts
    assert [repr(copy.deepcopy(layer)) for layer in layers[:-1]] == texts[:-1]
    assert list(nn.state.get_state_dict(layers[0])) == ["weight", "bias"]
    with pytest.raises(TypeError, match="out_features"):
        nn.Linear(3)
