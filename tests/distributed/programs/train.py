"""Ordinary training on a share of the data; process 0 saves what came out. Arguments: a file, gradients' cast."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import numpy as np

from aril import Context, Tensor, distributed, jit, nn
from aril.nn.loader import DataLoader

world = distributed.init()
cast = sys.argv[2] or None
Tensor.manual_seed(5 + world.rank)  # each its own: the parameters of process 0 are sent to all
net = [nn.Linear(12, 32), Tensor.gelu, nn.LayerNorm(32), nn.Linear(32, 4)]
parameters = nn.state.get_parameters(net)
distributed.same_everywhere(parameters)
optimizer = nn.optim.AdamW(parameters, lr=0.02)
rng = np.random.default_rng(0)
images, labels = rng.normal(size=(96, 12)).astype(np.float32), rng.integers(0, 4, 96)


@jit
def step(x: Tensor, y: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = x.sequential(net).sparse_categorical_crossentropy(y)
    loss.backward()
    distributed.reduce_gradients(parameters, cast=cast, bucket_bytes=1600)
    optimizer.step()
    return distributed.allreduce(loss, "mean")


losses = []
loader = DataLoader(
    images, labels, batch_size=24, seed=2, part=(world.rank, world.size), workers=1, start_method="fork"
)
with Context(TRAINING=1), loader:
    for _ in range(3):
        for x, y in loader:
            losses.append(step(Tensor(x), Tensor(y)).item())
everything = [p.numpy() for p in nn.state.get_parameters([net, optimizer])]
bits = hashlib.sha256(b"".join(a.tobytes() for a in everything)).hexdigest()
if world.rank == 0:
    np.savez(sys.argv[1], losses, *[p.numpy() for p in parameters])
(Path(os.environ["RESULTS"]) / str(world.rank)).write_text(bits)
