"""Data sets that worker processes import by name, whichever way they start."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from typing import Any, NamedTuple

import numpy as np

from aril.nn.loader import rng


class Point(NamedTuple):
    x: np.ndarray
    name: str


@dataclasses.dataclass(frozen=True)
class Sample:
    image: np.ndarray
    label: int
    weight: float
    more: dict[str, Any]


class Samples:
    """Structures of every kind."""

    def __init__(self, count: int = 10) -> None:
        self.images = np.arange(count * 6, dtype=np.float32).reshape(count, 2, 3)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> Sample:
        more = {"point": Point(np.full(2, i, np.int16), f"sample {i}"), "pair": [np.float64(i), (i % 2 == 0, None)]}
        return Sample(self.images[i], i, i / 2, more)


class Numbers:
    """Walked one by one."""

    def __init__(self, count: int = 11) -> None:
        self.count = count

    def __iter__(self) -> Any:
        start = int(rng().integers(1000))  # of the epoch
        for i in range(self.count):
            yield np.array([i, start])


class Fails:
    """Sample 5 raises, or ends the process."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __len__(self) -> int:
        return 10

    def __getitem__(self, i: int) -> np.ndarray:
        if i == 5:
            if self.how == "raise":
                raise KeyError("no sample five")
            if self.how == "strange":
                raise Strange(1, 2)
            if self.how == "exit":
                os._exit(7)
            if self.how == "sleep":
                time.sleep(60)
            os.kill(os.getpid(), signal.SIGKILL)
        return np.full(3, i)


class Strange(Exception):
    """Cannot be pickled."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"strange {a + b}")


def noisy(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """An augmentation: random, and its result no contiguous array."""
    return (x + rng().normal(size=x.shape))[:, ::-1], y


def process(x: np.ndarray) -> tuple[np.ndarray, int, float]:
    time.sleep(0.01)
    return x, os.getpid(), float(np.random.random())


def remember(i: int) -> None:
    """A `setup`."""
    os.environ["LOADER_TEST_WORKER"] = str(i)


def recall(x: np.ndarray) -> tuple[np.ndarray, str]:
    time.sleep(0.01)
    return x, os.environ.get("LOADER_TEST_WORKER", "none")
