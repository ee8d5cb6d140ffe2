"""Time spent in scheduling a 12-layer transformer's training step, cold and from the schedule cache:
`python -m bench.transformer_schedule`.

Counted are `normalize` and `schedule`: neither building the graph nor compiling.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import aril.engine.realize as engine
from aril import Context, Tensor, nn

LAYERS, WIDTH, HEADS, TOKENS, BATCH, STEPS = 12, 64, 4, 16, 2, 5


class Block:
    """Attention and a feed-forward part, each normalised before and added."""

    def __init__(self) -> None:
        self.split, self.join = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def __call__(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:2], HEADS, WIDTH // HEADS)
        q, k, v = [t.reshape(*shape).transpose(1, 2) for t in self.split(self.first(x)).chunk(3, -1)]
        seen = q.scaled_dot_product_attention(k, v, is_causal=True).transpose(1, 2).reshape(*x.shape)
        x = x + self.join(seen)
        return x + self.down(self.up(self.second(x)).gelu())


def main() -> None:
    """Print the seconds of each step: the first is cold, all from the third on find their schedule."""
    spent = 0.0

    def timed(f: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal spent
            start = time.perf_counter()
            try:
                return f(*args, **kwargs)
            finally:
                spent += time.perf_counter() - start

        return call

    layers = [Block() for _ in range(LAYERS)]
    parameters = nn.state.get_parameters(layers)
    optimizer = nn.optim.Adam(parameters)
    Tensor.realize(*parameters)
    engine.schedule, engine.normalize = timed(engine.schedule), timed(engine.normalize)  # type: ignore[attr-defined]
    with Context(TRAINING=1):
        for i in range(STEPS):
            x = Tensor(np.ones((BATCH, TOKENS, WIDTH), np.float32)).realize()
            optimizer.zero_grad()
            loss = x.sequential(layers).square().mean()
            loss.backward()
            spent = 0.0
            optimizer.step()
            loss.realize()
            print(f"step {i}: {spent * 1e3:.1f} ms of scheduling")


if __name__ == "__main__":
    main()
