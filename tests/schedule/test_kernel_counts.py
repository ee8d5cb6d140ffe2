"""How many kernels an expression takes: a table, because a kernel more is a pass over memory more."""

from __future__ import annotations

import numpy as np
import pytest

from aril import Context, Tensor, nn
from aril.device import GlobalCounters


def kernels(*tensors: Tensor) -> int:
    """Launches of realizing `tensors` together."""
    before = GlobalCounters.kernels
    tensors[0].realize(*tensors[1:])
    return GlobalCounters.kernels - before


def rand(*shape: int) -> Tensor:
    return Tensor(np.random.default_rng(0).standard_normal(shape, dtype=np.float32)).realize()


TABLE = [
    ("add", 1, lambda: rand(64, 64) + 1),
    ("chain of elementwise operations", 1, lambda: ((rand(64, 64) + 1) * 2).exp().sqrt()),
    ("sum", 1, lambda: rand(64, 64).sum()),
    ("sum over an axis, then elementwise", 1, lambda: rand(64, 64).sum(1).exp()),
    ("softmax", 2, lambda: rand(64, 100).softmax(-1)),
    ("softmax of a long row", 2, lambda: rand(1, 100_000).softmax(-1)),
    ("logsumexp of a long row", 2, lambda: rand(1, 100_000).logsumexp(-1)),
    ("argmax of a long row", 2, lambda: rand(1, 100_000).argmax(-1)),
    ("attention", 1, lambda: rand(2, 64, 16).scaled_dot_product_attention(rand(2, 64, 16), rand(2, 64, 16))),
    ("log_softmax", 2, lambda: rand(64, 100).log_softmax(-1)),
    ("layernorm", 2, lambda: rand(64, 100).layernorm()),
    ("matmul + bias + relu", 1, lambda: (rand(64, 32) @ rand(32, 48) + rand(48)).relu()),
    ("two matmuls", 2, lambda: rand(64, 32) @ rand(32, 48) @ rand(48, 16)),
    ("cross-entropy", 3, lambda: rand(32, 10).sparse_categorical_crossentropy(Tensor([1] * 32).realize())),
    ("permute, then elementwise", 1, lambda: rand(8, 9, 10).permute(2, 0, 1) * 2),
    ("argmax", 2, lambda: rand(32, 100).argmax(1)),
    ("variance", 2, lambda: rand(32, 100).var(1)),
    ("conv2d + bias + relu", 2, lambda: rand(2, 3, 16, 16).conv2d(rand(8, 3, 3, 3), rand(8), padding=1).relu()),
    ("conv2d without padding", 1, lambda: rand(2, 3, 16, 16).conv2d(rand(8, 3, 3, 3)).relu()),
    ("max_pool2d", 1, lambda: rand(2, 3, 16, 16).max_pool2d()),
    ("contiguous of a buffer", 0, lambda: rand(8, 8).contiguous()),
    ("a view", 0, lambda: rand(8, 8).reshape(64)),
    ("copy to the same device", 0, lambda: rand(8, 8).to("CPU")),
]


@pytest.mark.parametrize(("limit", "make"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_takes_at_most(limit: int, make: object) -> None:
    """Each expression of the table takes at most so many launches."""
    assert kernels(make()) <= limit  # type: ignore[operator]


@pytest.mark.parametrize("rows", [3, 1000])
def test_adam_update_of_ten_parameters_takes_at_most_three(rows: int) -> None:
    """The updates of all parameters and moments share launches."""
    params = [rand(rows + i, max(7, rows)) for i in range(10)]
    opt = nn.optim.Adam(params, lr=1e-3)
    for p in params:
        p.grad = rand(*p.shape)
    with Context(TRAINING=1):
        opt.step()
        for p in params:
            p.grad = rand(*p.shape)
        before = GlobalCounters.kernels
        opt.step()
    assert GlobalCounters.kernels - before <= 3


def test_siblings_read_their_input_once() -> None:
    """Two sums of one tensor are one kernel with two results."""
    x = rand(64, 512)
    assert kernels(x.sum(1), (x * x).sum(1)) == 1
