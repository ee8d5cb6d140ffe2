"""The bytes that the cost rule expects to be moved are the bytes that the kernels are counted to move."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aril import Context, Tensor, dtypes, nn
from aril.cli_mnist import Net
from aril.device import GlobalCounters
from aril.engine import realize
from aril.ops import Ops
from tests.schedule.graphs import scheduled

RNG = np.random.default_rng(0)


class Block:
    """A transformer block of two heads."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def __call__(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.before(x)).chunk(3, -1)
        q, k, v = [t.reshape(batch, length, 2, width // 2).permute(0, 2, 1, 3) for t in parts]
        scores = (q @ k.permute(0, 1, 3, 2)) * (width // 2) ** -0.5
        mixed = (scores.softmax(-1) @ v).permute(0, 2, 1, 3).reshape(batch, length, width)
        x = x + self.out(mixed)
        return x + self.down(self.up(self.between(x)).gelu())


def mnist_step() -> Callable[[], Any]:
    """A training step of the MNIST network."""
    net = Net()
    params = nn.state.get_parameters(net)
    params[0].realize(*params[1:])
    opt = nn.optim.Adam(params, lr=1e-3)
    x = Tensor(RNG.random((16, 1, 28, 28), np.float32)).realize()
    y = Tensor(RNG.integers(0, 10, 16).astype(np.int32)).realize()

    def step() -> None:
        with Context(TRAINING=1):
            opt.zero_grad()
            net(x).sparse_categorical_crossentropy(y).backward()
            opt.step()

    return step


def transformer_step() -> Callable[[], Any]:
    """A training step of two transformer blocks."""
    blocks = [Block(32), Block(32)]
    params = nn.state.get_parameters(blocks)
    params[0].realize(*params[1:])
    opt = nn.optim.SGD(params, lr=1e-3)
    x = Tensor(RNG.standard_normal((2, 16, 32), np.float32)).realize()

    def step() -> None:
        with Context(TRAINING=1):
            opt.zero_grad()
            y = x
            for b in blocks:
                y = b(y)
            (y * y).mean().backward()
            opt.step()

    return step


@pytest.mark.parametrize("make", [mnist_step, transformer_step])
def test_predicted_bytes(make: Callable[[], Callable[[], Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a tenth, for a whole training step."""
    predicted = []
    schedule = realize.schedule

    def counted(*args: Any) -> Any:
        found = schedule(*args)
        predicted.append(found.predicted_bytes)
        return found

    step = make()
    step()
    monkeypatch.setattr(realize, "schedule", counted)
    before = GlobalCounters.bytes
    step()
    moved = GlobalCounters.bytes - before
    assert abs(sum(predicted) - moved) <= 0.1 * moved


@pytest.mark.parametrize("way", ["tanh", "none"])
def test_signs_of_what_is_read_too_are_not_stored(way: str) -> None:
    """The gradient reads the argument of gelu again, and no conditions on it that the forward pass had."""
    x, w, v = [Tensor(RNG.standard_normal(s, np.float32)).realize() for s in ((64, 32), (32, 96), (96, 32))]
    grads = ((x @ w).gelu(way) @ v).square().sum().gradient(w, v)
    plan = scheduled(*grads)
    kernels = [i.kernel for i in plan.items if i.kernel is not None]
    assert len(kernels) == 6
    assert not [u for k in kernels for u in k.toposort() if u.op is Ops.PARAM and u.dtype is dtypes.bool]


def test_an_activation_is_stored_ahead_of_a_product_with_one_row() -> None:
    """A product of one row reads each weight once, so it is no contraction; what it multiplies serves all results."""
    weight, gate = (
        Tensor(RNG.random((512, 128), np.float32)).realize(),
        Tensor(RNG.random((1, 128), np.float32)).realize(),
    )
    before = GlobalCounters.ops
    ((gate.sigmoid() * gate.tanh()) @ weight.T).realize()
    assert GlobalCounters.ops - before < 4 * weight.numel()
