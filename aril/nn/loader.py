"""Batches for training: arrays of samples in, tuples of arrays out, in an order a seed decides and a state resumes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Batch = tuple[NDArray[Any], ...]


class DataLoader:
    """Batches of `arrays` (the same number of samples along axis 0), one epoch an iteration.

    Each epoch has its own order, decided by `(seed, epoch)`. `transform` changes a batch before it is handed out;
    `prefetch` batches are made ahead in a thread. `state()` and `load_state()` continue in the middle of an epoch, with
    the very batches that would have come.

    Errors: ValueError for arrays of different lengths or a batch size that gives no batch.
    """

    def __init__(
        self,
        *arrays: NDArray[Any],
        batch_size: int,
        shuffle: bool = True,
        drop_last: bool = True,
        seed: int = 0,
        transform: Callable[..., Batch] | None = None,
        prefetch: int = 2,
    ) -> None:
        lengths = {len(a) for a in arrays}
        if len(lengths) != 1:
            raise ValueError(
                f"DataLoader: arrays of one length are needed, these have {[len(a) for a in arrays]} samples"
            )
        self.arrays, self.count = arrays, lengths.pop()
        if batch_size < 1 or (drop_last and batch_size > self.count):
            raise ValueError(f"DataLoader: batch_size={batch_size} gives no batch of {self.count} samples")
        self.batch_size, self.shuffle, self.drop_last, self.seed = batch_size, shuffle, drop_last, seed
        self.transform, self.prefetch = transform, prefetch
        self.epoch, self.done = 0, 0  # batches of this epoch that were handed out

    def __len__(self) -> int:
        """Batches in an epoch."""
        whole, rest = divmod(self.count, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def state(self) -> dict[str, int]:
        """Where the loader stands."""
        return {"epoch": self.epoch, "done": self.done, "seed": self.seed}

    def load_state(self, state: dict[str, int]) -> None:
        """Continue where `state` was taken; for a loader over the same arrays and batch size."""
        self.epoch, self.done, self.seed = state["epoch"], state["done"], state["seed"]

    def __iter__(self) -> Iterator[Batch]:
        order = self._order(self.epoch)
        turns = range(self.done, len(self))
        batches = (self._batch(order, i) for i in turns)
        for batch in ahead(batches, self.prefetch) if self.prefetch else batches:
            self.done += 1
            yield batch
        self.epoch, self.done = self.epoch + 1, 0

    def _order(self, epoch: int) -> NDArray[np.intp]:
        if not self.shuffle:
            return np.arange(self.count)
        return np.random.default_rng((self.seed, epoch)).permutation(self.count)

    def _batch(self, order: NDArray[np.intp], i: int) -> Batch:
        chosen = order[i * self.batch_size : (i + 1) * self.batch_size]
        batch = tuple([a[chosen] for a in self.arrays])
        return batch if self.transform is None else self.transform(*batch)


def ahead(items: Iterator[Any], count: int) -> Iterator[Any]:
    """`items` in order, up to `count` of them made ahead in a thread; its errors are raised here."""
    ready: queue.Queue[tuple[str, Any]] = queue.Queue(count)
    stop = threading.Event()

    def put(kind: str, thing: Any) -> None:
        while not stop.is_set():
            try:
                return ready.put((kind, thing), timeout=0.1)
            except queue.Full:
                continue

    def work() -> None:
        try:
            for item in items:
                put("item", item)
                if stop.is_set():
                    return
            put("end", None)
        except BaseException as error:  # handed to the thread that asked
            put("error", error)

    worker = threading.Thread(target=work, name="aril-loader", daemon=True)
    worker.start()
    try:
        while True:
            kind, thing = ready.get()
            if kind == "end":
                return
            if kind == "error":
                raise thing
            yield thing
    finally:
        stop.set()
        worker.join()
