"""`aril train mnist`: a convolutional network, trained, saved, loaded again and checked.

In come the digits and the options of the command; out go a progress line, a safetensors file and the accuracy.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aril import Tensor, jit, nn
from aril.config import Context
from aril.nn.datasets import mnist

Images = NDArray[np.uint8]
Labels = NDArray[np.uint8]


class Net:
    """Two blocks of convolution, ReLU, convolution, ReLU, batch norm and pooling, and a linear layer on top.

    `Net()(x)` takes images of shape (N, 1, 28, 28), uint8 or float in 0..255, and gives logits of shape (N, 10).
    """

    def __init__(self) -> None:
        self.layers: list[Callable[[Tensor], Tensor]] = [
            nn.Conv2d(1, 32, 5), Tensor.relu,
            nn.Conv2d(32, 32, 5), Tensor.relu,
            nn.BatchNorm(32), Tensor.max_pool2d,
            nn.Conv2d(32, 64, 3), Tensor.relu,
            nn.Conv2d(64, 64, 3), Tensor.relu,
            nn.BatchNorm(64), Tensor.max_pool2d,
            lambda x: x.flatten(1),
            nn.Linear(576, 10),
        ]  # fmt: skip

    def __call__(self, x: Tensor) -> Tensor:
        return (x.float() / 255).sequential(self.layers)


def batches(count: int, size: int, steps: int, seed: int) -> list[NDArray[np.intp]]:
    """`steps` index arrays of `size` of `count` samples: each epoch in a new order, its incomplete end left out."""
    rng = np.random.default_rng(seed)
    whole = count // size
    epochs = [rng.permutation(count)[: whole * size].reshape(whole, size) for _ in range(-(-steps // whole))]
    return list(np.concatenate(epochs)[:steps])


def train(net: Net, images: Images, labels: Labels, order: list[NDArray[np.intp]], lr: float) -> Iterator[float]:
    """Train `net` by Adam, a step for each index array of `order`; gives the loss of each step.

    The rate climbs to `lr` in five steps, stays, and falls to nothing in the last two fifths: a short run ends higher
    so than with one rate throughout.
    """
    optimizer = nn.optim.Adam(nn.state.get_parameters(net), lr=lr)
    steps = len(order)
    rate = nn.schedules.Schedule(optimizer, lambda t: lr * min(1.0, (t + 1) / 5, (steps - t) / (0.4 * steps)))

    @jit
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = net(x).sparse_categorical_crossentropy(y)
        loss.backward()
        optimizer.step()
        return loss.realize()

    with Context(TRAINING=1):
        for chosen in order:
            yield step(Tensor(images[chosen]).realize(), Tensor(labels[chosen]).realize()).item()
            rate.step()


def accuracy(net: Net, images: Images, labels: Labels, size: int = 500) -> float:
    """The share of `images` that `net` gives the right digit; `size` at a time, in evaluation mode."""

    @jit
    def guess(x: Tensor) -> Tensor:
        return net(x).argmax(1).realize()

    right = 0
    with Context(TRAINING=0, GRAD=0):
        whole = len(images) - len(images) % size
        for at in range(0, whole, size):
            found = guess(Tensor(images[at : at + size]).realize()).numpy()
            right += int((found == labels[at : at + size]).sum())
        if whole < len(images):  # an odd end has another shape, which a captured function does not take
            right += int((net(Tensor(images[whole:])).argmax(1).numpy() == labels[whole:]).sum())
    return right / len(images)


def save(net: Net, path: Path) -> None:
    """Write the weights as safetensors. The file appears under its name when it is whole, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    nn.state.safe_save(nn.state.get_state_dict(net), str(path))


def load(path: Path) -> Net:
    """A new `Net` with the weights of `path`."""
    net = Net()
    nn.state.load_state_dict(net, nn.state.safe_load(str(path)))
    return net


def progress(steps: int) -> Any:
    """A bar of tqdm, or where that is not installed something that prints a line now and then."""
    try:
        from tqdm import tqdm

        return tqdm(total=steps, unit="step", file=sys.stderr, dynamic_ncols=True)
    except ImportError:
        return _Lines(steps)


class _Lines:
    def __init__(self, steps: int) -> None:
        self.steps, self.done, self.text = steps, 0, ""

    def set_postfix_str(self, text: str, refresh: bool = True) -> None:
        self.text = text

    def update(self, count: int) -> None:
        self.done += count
        if self.done % 20 == 0 or self.done == self.steps:
            print(f"step {self.done}/{self.steps}  {self.text}", file=sys.stderr, flush=True)

    def close(self) -> None:
        pass


def main(options: argparse.Namespace) -> int:
    """Train, save, load, check; the last line is `test accuracy 98.6% in 74.2 s`, everything included."""
    begin = time.perf_counter()
    x_train, y_train, x_test, y_test = mnist(as_numpy=True)
    if options.batch > len(x_train):
        raise ValueError(f"--batch {options.batch} is more than the {len(x_train)} training images")
    Tensor.manual_seed(options.seed)
    net = Net()
    steps = options.steps if options.epochs is None else options.epochs * (len(x_train) // options.batch)
    bar = progress(steps)
    with contextlib.closing(bar):
        for loss in train(net, x_train, y_train, batches(len(x_train), options.batch, steps, options.seed), options.lr):
            bar.set_postfix_str(f"loss {loss:.3f}", refresh=False)
            bar.update(1)
        before = accuracy(net, x_test, y_test)
        bar.set_postfix_str(f"loss {loss:.3f}, test accuracy {before:.1%}")
    save(net, options.save)
    after = accuracy(load(options.save), x_test, y_test)
    if after != before:
        print(f"{options.save}: {after:.2%} right after loading it again, {before:.2%} before", file=sys.stderr)
        return 1
    print(f"saved {options.save}; loaded again it gives the same accuracy")
    print(f"test accuracy {after:.1%} in {time.perf_counter() - begin:.1f} s")
    return 0
