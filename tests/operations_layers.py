"""More rows of the table of operations (`tests/operations.py`): windows, layers, losses, and picking by position.

Operands have any number of axes; what needs a certain rank works along the last axis of a batch of rows.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import special

from aril import Tensor
from tests.row import Row

WINDOW = np.array([[1.0, 2.0], [3.0, 1.0]])  # two output channels, one input channel, a window of two


def rows(x: Any) -> Any:
    """(batch, last axis)."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def images(x: Any) -> Any:
    """(batch, 1 channel, last axis)."""
    return x.reshape(math.prod(x.shape[:-1]), 1, x.shape[-1])


def weight(x: Tensor) -> Tensor:
    return Tensor(WINDOW.reshape(2, 1, 2), device=x.device).cast(x.dtype)


def convolved(x: Any) -> Any:
    x = rows(x)
    return np.stack([x[:, :-1] * w[0] + x[:, 1:] * w[1] for w in WINDOW], 1)


def spread(x: Any) -> Any:  # each element times the window, where it came from
    x = rows(x)
    out = np.zeros((x.shape[0], 2, x.shape[1] + 1), x.dtype)
    for k in range(2):
        out[:, :, k : k + x.shape[1]] += x[:, None] * WINDOW[:, k, None]
    return out


def backwards(x: Any) -> Tensor:
    """Positions that run the last axis backwards, of the shape of x."""
    positions = np.broadcast_to(np.arange(x.shape[-1])[::-1].astype(np.int32), x.shape).copy()
    return Tensor(positions, device=x.device)


def targets(x: Any) -> Any:
    """A class for each row."""
    return np.arange(rows(x).shape[0]) % x.shape[-1]


def log_softmax(x: Any) -> Any:
    return x - special.logsumexp(x, -1, keepdims=True)


def picked(x: Any) -> Any:
    return rows(x)[np.arange(rows(x).shape[0]), targets(x)]


def attended(x: Any) -> Any:
    if x.size == 0:
        return x
    scores = x @ np.swapaxes(x, -1, -2) / math.sqrt(x.shape[-1])
    return special.softmax(scores, -1) @ x


def labels(x: Tensor) -> Tensor:
    return Tensor(targets(x).astype(np.int32), device=x.device)


LAYERS = [
    Row("conv2d", lambda x: images(x).conv2d(weight(x)), convolved, gives="sum", least=1),
    Row("image_conv2d", lambda x: images(x).image_conv2d(weight(x)), convolved, gives="sum", least=1),
    Row(
        "conv_transpose2d",
        lambda x: images(x).conv_transpose2d(weight(x).transpose(0, 1)),
        spread,
        gives="sum",
        least=1,
    ),
    Row(
        "avg_pool2d", lambda x: x.avg_pool2d((2,), 1), lambda x: (x[..., 1:] + x[..., :-1]) / 2, gives="float", least=1
    ),
    Row("max_pool2d", lambda x: x.max_pool2d((2,), 1), lambda x: np.maximum(x[..., 1:], x[..., :-1]), least=1),
    Row(
        "interpolate",
        lambda x: images(x).interpolate((2 * x.shape[-1],), "nearest"),
        lambda x: np.repeat(images(x), 2, -1),
        least=1,
    ),
    Row(
        "layernorm",
        lambda x: x.layernorm(),
        lambda x: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5),
        gives="float",
        least=1,
    ),
    Row(
        "normalize",
        lambda x: x.normalize(axis=-1),
        lambda x: x / np.sqrt((x * x).sum(-1, keepdims=True)),
        gives="float",
        low=0.5,
        least=1,
    ),
    Row(
        "image_dot",
        lambda a, b: a.image_dot(b.transpose(-1, -2)),
        lambda a, b: a @ np.swapaxes(b, -1, -2),
        gives="sum",
        count=2,
        least=2,
    ),
    Row(
        "matmul",
        lambda a, b: a.matmul(b.transpose(-1, -2)),
        lambda a, b: a @ np.swapaxes(b, -1, -2),
        gives="sum",
        count=2,
        least=2,
    ),
    Row(
        "linear",
        lambda a, b: a.linear(b.transpose(-1, -2)),
        lambda a, b: a @ np.swapaxes(b, -1, -2),
        gives="sum",
        count=2,
        least=2,
    ),
    Row(
        "einsum",
        lambda a, b: a.einsum("...i,...i->...", b),
        lambda a, b: (a * b).sum(-1),
        gives="sum",
        count=2,
        least=1,
    ),
    Row(
        "scaled_dot_product_attention", lambda x: x.scaled_dot_product_attention(x, x), attended, least=2, gives="float"
    ),
    Row("dropout", lambda x: x.dropout(0.5), lambda x: x),  # nothing outside of training
    Row("sequential", lambda x: x.sequential([Tensor.abs, Tensor.square]), np.square),
    # losses of rows of numbers
    Row(
        "cross_entropy",
        lambda x: rows(x).cross_entropy(labels(x), "sum"),
        lambda x: -picked(log_softmax(x)).sum(),
        least=1,
        gives="float",
    ),
    Row(
        "sparse_categorical_crossentropy",
        lambda x: rows(x).sparse_categorical_crossentropy(labels(x), reduction="sum"),
        lambda x: -picked(log_softmax(x)).sum(),
        least=1,
        gives="float",
    ),
    Row(
        "nll_loss",
        lambda x: rows(x).nll_loss(labels(x), reduction="sum"),
        lambda x: -picked(x).sum(),
        least=1,
        gives="sum",
    ),
    Row(
        "binary_crossentropy",
        lambda a, b: a.binary_crossentropy(b, "sum"),
        lambda a, b: -(b * np.log(a) + (1 - b) * np.log(1 - a)).sum(),
        low=0.1,
        high=0.9,
        count=2,
        gives="float",
    ),
    Row(
        "binary_crossentropy_logits",
        lambda a, b: a.binary_crossentropy_logits(b, "sum"),
        lambda a, b: (np.logaddexp(0, a) - a * b).sum(),
        count=2,
        takes="buif",
        gives="float",
    ),
    # elementwise, with numbers or a second tensor
    Row("lerp", lambda a, b: a.lerp(b, 0.25), lambda a, b: a + (b - a) * 0.25, count=2, takes="uif", gives="float"),
    Row("clamp", lambda x: x.clamp(0, 1), lambda x: np.clip(x, 0, 1), gives="number"),
    Row("clip", lambda x: x.clip(0, 1), lambda x: np.clip(x, 0, 1), gives="number"),
    Row("relu6", lambda x: x.relu6(), lambda x: np.clip(x, 0, 6), gives="float"),
    Row("leaky_relu", lambda x: x.leaky_relu(), lambda x: np.where(x > 0, x, 0.01 * x), gives="float"),
    Row("hardsigmoid", lambda x: x.hardsigmoid(), lambda x: np.clip(x / 6 + 0.5, 0, 1), gives="float"),
    Row("hardswish", lambda x: x.hardswish(), lambda x: x * np.clip(x + 3, 0, 6) / 6, gives="float"),
    Row("hardtanh", lambda x: x.hardtanh(), lambda x: np.clip(x, -1, 1), gives="float"),
    Row("softsign", lambda x: x.softsign(), lambda x: x / (1 + np.abs(x)), gives="float"),
    Row("isclose", lambda a, b: a.isclose(b), lambda a, b: np.isclose(a, b), gives="bool", grad=False, count=2),
    Row("allclose", lambda a, b: a.allclose(b), lambda a, b: np.allclose(a, b), gives="bool", grad=False, count=2),
    Row("usum", lambda a, b: a.usum(b, a), lambda a, b: a + b + a, count=2),
    Row("uprod", lambda a, b: a.uprod(b, a), lambda a, b: a * b * a, count=2),
    Row("masked_fill", lambda x: x.masked_fill(x > 0, 1), lambda x: np.where(x > 0, 1, x), gives="number"),
    Row("lshift", lambda x: x << 1, lambda x: x << 1, grad=False, takes="bui", gives="number"),
    Row("rshift", lambda x: x >> 1, lambda x: x >> 1, grad=False, takes="bui", gives="number"),
    Row("std_mean", lambda x: x.std_mean(-1)[0], lambda x: x.std(-1, ddof=1), gives="float", least=1),
    Row("var_mean", lambda x: x.var_mean(-1)[1], lambda x: x.mean(-1), gives="float", least=1),
    Row("topk", lambda x: x.topk(2, -1)[0], lambda x: np.sort(x, -1)[..., ::-1][..., :2], least=1),
    # picking and placing
    Row("gather", lambda x: x.gather(-1, backwards(x)), lambda x: x[..., ::-1], least=1),
    Row("scatter", lambda x: x.scatter(-1, backwards(x), x), lambda x: x[..., ::-1], least=1),
    Row(
        "scatter_reduce",
        lambda x: x.scatter_reduce(-1, backwards(x), x, "amax"),
        lambda x: np.maximum(x, x[..., ::-1]),
        least=1,
    ),
    Row("repeat_interleave", lambda x: x.repeat_interleave(2, -1), lambda x: np.repeat(x, 2, -1), least=1),
    Row("unfold", lambda x: x.unfold(-1, 2, 1), lambda x: np.stack([x[..., :-1], x[..., 1:]], -1), least=1),
    Row(
        "pad",
        lambda x: x.pad([(0, 0)] * (x.ndim - 1) + [(1, 2)], value=1),
        lambda x: np.pad(x, [(0, 0)] * (x.ndim - 1) + [(1, 2)], constant_values=1),
        least=1,
    ),
    Row(
        "pad_to",
        lambda x: x.pad_to(*x.shape[:-1], x.shape[-1] + 2),
        lambda x: np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, 2)]),
        least=1,
    ),
    Row("shrink", lambda x: x.shrink([None] * (x.ndim - 1) + [(1, 2)]), lambda x: x[..., 1:2], least=1, view=True),
    Row("shrink_to", lambda x: x.shrink_to(*x.shape[:-1], 1), lambda x: x[..., :1], least=1, view=True),
    Row("split", lambda x: x.split(1, -1)[1], lambda x: x[..., 1:2], least=1, view=True),
    Row("chunk", lambda x: x.chunk(2, -1)[0], lambda x: x[..., : -(-x.shape[-1] // 2)], least=1, view=True),
    Row("diag", lambda x: x.flatten().diag(), lambda x: np.diag(x.ravel())),
    Row(
        "meshgrid",
        lambda a, b: a.flatten().meshgrid(b.flatten())[1],
        lambda a, b: np.meshgrid(a.ravel(), b.ravel(), indexing="ij")[1],
        count=2,
    ),
    Row("expand", lambda x: x.unsqueeze(0).expand(2, *x.shape), lambda x: np.stack([x, x]), view=True),
    Row("reshape", lambda x: x.reshape(x.numel(), 1), lambda x: x.reshape(x.size, 1), view=True),
    Row("view", lambda x: x.view(x.numel(), 1), lambda x: x.reshape(x.size, 1), view=True),
    Row("permute", lambda x: x.permute(*range(x.ndim)[::-1]), lambda x: x.T, least=1, view=True),
    Row("T", lambda x: x.flatten(0, -2).T if x.ndim > 2 else x.T, lambda x: rows(x).T, least=2, view=True),
    Row("squeeze", lambda x: x.unsqueeze(-1).squeeze(-1), lambda x: x, view=True),
    Row("unflatten", lambda x: x.flatten().unflatten(0, (x.numel(), 1)), lambda x: x.reshape(x.size, 1), view=True),
    Row("rearrange", lambda x: x.rearrange("... a b -> ... b a"), lambda x: np.swapaxes(x, -1, -2), least=2, view=True),
    Row("detach", lambda x: x.detach() * 1, lambda x: x, grad=False, gives="number"),
    Row("contiguous", lambda x: x.contiguous(), lambda x: x),
    Row("contiguous_backward", lambda x: x.contiguous_backward(), lambda x: x),
    Row("clone", lambda x: x.clone(), lambda x: x),
    Row("zeros_like", lambda x: x.zeros_like(), lambda x: x * 0, grad=False),
    Row("ones_like", lambda x: x.ones_like(), lambda x: x * 0 + 1, grad=False),
    Row("full_like", lambda x: x.full_like(3), lambda x: x * 0 + 3, grad=False),
]
