"""Train a small network in several processes, each on its share of every batch: two spirals, told apart.

`aril launch -n 2 examples/data_parallel.py` or `mpiexec -n 2 python examples/data_parallel.py`; alone it runs, too.
"""

import numpy as np

from aril import Context, Tensor, distributed, jit, nn
from aril.nn.loader import DataLoader


def spirals(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Points on two spirals, and which of them each is on."""
    rng = np.random.default_rng(0)
    label = rng.integers(0, 2, count)
    turn = rng.uniform(0.5, 3.0, count)
    angle = turn * 2 * np.pi / 1.5 + label * np.pi
    points = np.stack([turn * np.cos(angle), turn * np.sin(angle)], 1) + rng.normal(0, 0.05, (count, 2))
    return points.astype(np.float32), label


def main() -> None:
    """Train, and have process 0 say how it goes."""
    world = distributed.init()
    net = [nn.Linear(2, 64), Tensor.silu, nn.Linear(64, 64), Tensor.silu, nn.Linear(64, 2)]
    parameters = nn.state.get_parameters(net)
    distributed.same_everywhere(parameters)
    optimizer = nn.optim.AdamW(parameters, lr=5e-3)

    @jit
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = x.sequential(net).sparse_categorical_crossentropy(y)
        loss.backward()
        distributed.reduce_gradients(parameters)
        optimizer.step()
        return distributed.allreduce(loss, "mean")

    points, labels = spirals(4096)
    loader = DataLoader(points, labels, batch_size=256, part=(world.rank, world.size))
    with Context(TRAINING=1):
        for epoch in range(20):
            losses = [step(Tensor(x), Tensor(y)) for x, y in loader]
            if world.rank == 0 and epoch % 5 == 4:
                print(f"epoch {epoch + 1}: loss {np.mean([loss.item() for loss in losses]):.4f}")


if __name__ == "__main__":
    main()
