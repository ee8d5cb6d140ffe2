"""Formulas in float64 with NumPy, for comparison: convolutions, gradients, attention, losses.

In come float64 arrays (class numbers as integers); out come results that owe nothing to any library compared.
"""

from __future__ import annotations

import numpy as np

from bench.row import Array


def padded(x: Array, pad: int) -> Array:
    """`x` (N, C, H, W) with `pad` zeros around its last two axes."""
    return np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))


def conv2d(x: Array, w: Array, stride: int = 1, pad: int = 0, groups: int = 1) -> Array:
    """Cross-correlation: a matrix product for each place of the kernel."""
    n, _, height, width = x.shape
    out, per_group, kh, kw = w.shape
    oh, ow = (height + 2 * pad - kh) // stride + 1, (width + 2 * pad - kw) // stride + 1
    xp = padded(x, pad).reshape(n, groups, per_group, height + 2 * pad, width + 2 * pad)
    wg = w.reshape(groups, out // groups, per_group, kh, kw)
    y = np.zeros((n, groups, out // groups, oh * ow))
    for i in range(kh):
        for j in range(kw):
            part = xp[..., i : i + stride * oh : stride, j : j + stride * ow : stride]
            part = part[..., :oh, :ow].reshape(n, groups, per_group, oh * ow)
            y += wg[None, ..., i, j] @ part
    return y.reshape(n, out, oh, ow)


def conv2d_input_grad(
    g: Array, w: Array, size: tuple[int, int], stride: int = 1, pad: int = 0, groups: int = 1
) -> Array:
    """The gradient with respect to an input of spatial `size`."""
    n, out, oh, ow = g.shape
    _, per_group, kh, kw = w.shape
    gg = g.reshape(n, groups, out // groups, oh * ow)
    wg = w.reshape(groups, out // groups, per_group, kh, kw)
    dx = np.zeros((n, groups, per_group, size[0] + 2 * pad, size[1] + 2 * pad))
    for i in range(kh):
        for j in range(kw):
            part = wg[None, ..., i, j].swapaxes(-1, -2) @ gg
            dx[..., i : i + stride * oh : stride, j : j + stride * ow : stride][..., :oh, :ow] += part.reshape(
                n, groups, per_group, oh, ow
            )
    dx = dx.reshape(n, groups * per_group, size[0] + 2 * pad, size[1] + 2 * pad)
    return dx[..., pad : pad + size[0], pad : pad + size[1]]


def conv2d_weight_grad(
    x: Array, g: Array, kernel: tuple[int, int], stride: int = 1, pad: int = 0, groups: int = 1
) -> Array:
    """The gradient with respect to a weight of spatial size `kernel`."""
    n, cin, height, width = x.shape
    _, out, oh, ow = g.shape
    per_group = cin // groups
    xp = padded(x, pad).reshape(n, groups, per_group, height + 2 * pad, width + 2 * pad)
    gg = g.reshape(n, groups, out // groups, oh * ow)
    dw = np.zeros((groups, out // groups, per_group, *kernel))
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            part = xp[..., i : i + stride * oh : stride, j : j + stride * ow : stride]
            part = part[..., :oh, :ow].reshape(n, groups, per_group, oh * ow)
            dw[..., i, j] = (gg @ part.swapaxes(-1, -2)).sum(0)
    return dw.reshape(out, per_group, *kernel)


def softmax(x: Array) -> Array:
    """Over the last axis."""
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def layernorm(x: Array, eps: float = 1e-5) -> Array:
    """Over the last axis, without weight and bias."""
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + eps)


def attention(q: Array, k: Array, v: Array, causal: bool = False) -> Array:
    """softmax(q k^T / sqrt(d)) v; `causal`: row i sees columns up to i."""
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    return softmax(scores) @ v


def cross_entropy(x: Array, y: Array) -> Array:
    """The mean over rows of log(sum(exp(x))) - x[y]; a part of the rows at a time, as `x` is large."""
    total = 0.0
    for at in range(0, len(x), 256):
        part = x[at : at + 256]
        top = part.max(-1, keepdims=True)
        logs = np.log(np.exp(part - top).sum(-1)) + top[:, 0]
        total += float((logs - part[np.arange(len(part)), y[at : at + 256]]).sum())
    return np.asarray(total / len(x))


def gelu_like(x: Array) -> Array:
    """x * sigmoid(1.702 x) + 1."""
    return x / (1 + np.exp(-1.702 * x)) + 1
