"""Batches for training: arrays or a data set in, batches of NumPy arrays out, in an order a seed decides and a state
resumes. They are made in a thread or in worker processes, the same ones in either.
"""

from __future__ import annotations

import itertools
import queue
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aril.mixin.base import as_int
from aril.nn.collate import collate as collate_samples
from aril.nn.collate import open_structure
from aril.nn.loader_processes import LoaderError, Processes


class DataLoader:
    """Batches of `source`, one epoch an iteration.

    `source` is one of
    - arrays (several arguments, the same number of samples along axis 0 each): a batch is a tuple of arrays; or a dict
      of such arrays: a batch is a dict;
    - a data set with `__getitem__` and `__len__`: a batch is `collate` of its samples (default: arrays are stacked,
      Python numbers become arrays, strings lists; dicts, tuples and dataclasses of them stay what they are);
    - anything else to iterate over, for samples of which nobody knows how many there are. It is walked once an epoch,
      in its own order, by each worker, which collates and transforms its own batches only.

    Each epoch has its own order, decided by `(seed, epoch)`; `shuffle=False` (always so when iterating) keeps the
    order. `transform` changes a batch before it is handed out; it gets the arrays of a tuple one by one.
    `part=(rank, ranks)` gives that share of each batch of `batch_size`, for training in several processes.

    `workers` processes make batches, up to `prefetch` ahead each; 0 makes them in a thread here, with `prefetch=0` at
    the very moment. The batches do not depend on it, random numbers that come from `aril.nn.loader.rng()` neither.
    Arrays come through shared memory without a copy. `setup(i)` is called in worker i first. `start_method` is that
    of `multiprocessing`: where it is not "fork", `source` and functions must be such that pickle takes them, and the
    program's main module is imported again (`if __name__ == "__main__":`).

    `state()` and `load_state()` continue in the middle of an epoch with the batches that would have come, with any
    number of workers. `close()` (or `with`, or the end of the loader) ends the workers.

    Errors: ValueError for arrays of different lengths or a batch size that gives no batch; what the data set raises in
    a worker is raised here with the worker's traceback; LoaderError for a worker that died or took over `timeout` s.

    >>> loader = DataLoader(np.arange(6), batch_size=2, shuffle=False)
    >>> [x.tolist() for (x,) in loader]
    [[0, 1], [2, 3], [4, 5]]
    """

    def __init__(
        self,
        *source: Any,
        batch_size: int,
        shuffle: bool | None = None,
        drop_last: bool = True,
        seed: int = 0,
        transform: Callable[..., Any] | None = None,
        collate: Callable[[Sequence[Any]], Any] | None = None,
        part: tuple[int, int] = (0, 1),
        workers: int = 0,
        prefetch: int = 2,
        setup: Callable[[int], None] | None = None,
        timeout: float | None = None,
        start_method: str | None = None,
    ) -> None:
        batch_size = as_int("DataLoader: batch_size", batch_size)
        workers, prefetch = as_int("DataLoader: workers", workers), as_int("DataLoader: prefetch", prefetch)
        if batch_size < 1 or workers < 0 or prefetch < 0:
            raise ValueError(f"DataLoader: batch_size={batch_size}, workers={workers}, prefetch={prefetch}")
        rank, ranks = part
        if not 0 <= rank < ranks or batch_size % ranks or (ranks > 1 and not drop_last):
            raise ValueError(
                f"DataLoader: part={part} of batches of {batch_size} with drop_last={drop_last}: every rank from 0 to "
                f"{ranks - 1} needs as many samples, so batch_size must divide by {ranks} and drop_last be True"
            )
        taken = _rows_of(source)
        if taken.count is None and shuffle:
            raise ValueError("DataLoader: shuffle=True needs a data set with __len__ and __getitem__")
        if taken.count is not None and (taken.count == 0 or (drop_last and batch_size > taken.count)):
            raise ValueError(f"DataLoader: batch_size={batch_size} gives no batch of {taken.count} samples")
        shuffle = taken.count is not None if shuffle is None else shuffle
        self.count, self.batch_size, self.drop_last, self.seed = taken.count, batch_size, drop_last, seed
        self.workers, self.prefetch, self.timeout = workers, prefetch, timeout
        self.epoch, self.done = 0, 0  # batches of this epoch that were handed out
        self._make = _Maker(taken, batch_size, shuffle, drop_last, transform, collate or collate_samples, part)
        self._start: dict[str, Any] = {"method": start_method, "setup": setup, "timeout": timeout}
        self._processes: Processes | None = None

    def __len__(self) -> int:
        """Batches in an epoch. TypeError where nobody knows."""
        if self.count is None:
            raise TypeError("DataLoader: a source without __len__ has no known number of batches")
        whole, rest = divmod(self.count, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def state(self) -> dict[str, int]:
        """Where the loader stands: after the last batch that was handed out."""
        return {"epoch": self.epoch, "done": self.done, "seed": self.seed, "batch_size": self.batch_size}

    def load_state(self, state: dict[str, int]) -> None:
        """Continue where `state` was taken, in a loader over the same samples. ValueError for another batch size."""
        if state.get("batch_size", self.batch_size) != self.batch_size:
            raise ValueError(
                f"DataLoader: the state is of batches of {state['batch_size']} samples, "
                f"this loader's have {self.batch_size}"
            )
        self.epoch, self.done, self.seed = state["epoch"], state["done"], state["seed"]

    def __iter__(self) -> Iterator[Any]:
        end = None if self.count is None else len(self)
        if self.workers:
            batches = self._crew().batches(self.seed, self.epoch, self.done, end)
        else:
            batches = self._here(self.seed, self.epoch, self.done, end)
            batches = ahead(batches, self.prefetch) if self.prefetch else batches
        for batch in batches:
            self.done += 1
            yield batch
            del batch  # a worker may have its memory again
        self.epoch, self.done = self.epoch + 1, 0

    def _here(self, seed: int, epoch: int, first: int, end: int | None) -> Iterator[Any]:
        for i in itertools.count(first) if end is None else range(first, end):
            made = self._make(seed, epoch, i)
            if made is None:
                return
            yield made[0]

    def _crew(self) -> Processes:
        if self._processes is None or not self._processes.usable:
            self._processes = Processes(self._make, self.workers, max(1, self.prefetch), **self._start)
            weakref.finalize(self, self._processes.close)
        return self._processes

    def close(self) -> None:
        """End the worker processes. The next iteration starts them again."""
        if self._processes is not None:
            self._processes.close()

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# ------------------------------------------------------------------------------------------------- making one batch


class _Random(threading.local):
    key: tuple[int, ...] | None = None
    generator: np.random.Generator | None = None


_random = _Random()


def rng() -> np.random.Generator:
    """The random numbers of the batch being made: for augmentation in a data set or a `transform`.

    They depend on the loader's seed, the epoch and the batch only, not on which worker makes it. In the `__iter__` of
    a data set that is iterated over they belong to the epoch. Errors: RuntimeError outside of those.
    """
    if _random.key is None:
        raise RuntimeError("rng() gives the random numbers of a batch while a DataLoader makes it; none is being made")
    if _random.generator is None:
        _random.generator = np.random.default_rng(_random.key)
    return _random.generator


class _Columns:
    """Arrays with one sample a row, in a structure."""

    def __init__(self, structure: Any) -> None:
        self.structure = structure
        lengths = [len(a) for a in _leaves(structure)]
        if len(set(lengths)) != 1:
            raise ValueError(f"DataLoader: arrays of one length are needed, these have {lengths} samples")
        self.count: int | None = lengths[0]

    def batch(self, chosen: NDArray[np.intp], collate: Callable[[Sequence[Any]], Any]) -> Any:
        return _rows(self.structure, chosen)


def _leaves(x: Any) -> list[Any]:
    if isinstance(x, np.ndarray):
        return [x]
    opened = open_structure(x)
    if opened is None:
        raise TypeError(f"DataLoader: a structure of arrays holds a {type(x).__name__}; make it a NumPy array")
    return [leaf for value in opened[1] for leaf in _leaves(value)]


def _rows(x: Any, chosen: NDArray[np.intp]) -> Any:
    if isinstance(x, np.ndarray):
        return x[chosen]
    opened = open_structure(x)
    assert opened is not None
    return opened[2]([_rows(value, chosen) for value in opened[1]])


class _Items:
    """A data set whose samples have numbers."""

    def __init__(self, data: Any) -> None:
        self.data, self.count = data, len(data)

    def batch(self, chosen: NDArray[np.intp], collate: Callable[[Sequence[Any]], Any]) -> Any:
        return collate([self.data[i] for i in chosen.tolist()])


class _Stream:
    """Samples one after the other. Where an iteration of it stands is not part of a pickle."""

    count = None

    def __init__(self, data: Any) -> None:
        self.data = data
        self.rewind()

    def rewind(self) -> None:
        self.at: tuple[int, int, int] | None = None  # seed, epoch, samples taken
        self.samples: Iterator[Any] = iter(())
        self.generator: np.random.Generator | None = None

    def __getstate__(self) -> Any:
        return self.data

    def __setstate__(self, data: Any) -> None:
        self.__init__(data)  # type: ignore[misc]

    def take(self, seed: int, epoch: int, first: int, count: int) -> list[Any]:
        """Samples `first`, .. of an epoch; fewer than `count` at its end."""
        if self.at is None or self.at[:2] != (seed, epoch) or self.at[2] > first:
            self.rewind()
            self.at = (seed, epoch, 0)
        _random.key, _random.generator = (seed, epoch, 2), self.generator
        if self.at[2] == 0:
            self.samples = iter(self.data)
        try:
            out = list(itertools.islice(self.samples, first - self.at[2], first - self.at[2] + count))
        except BaseException:
            self.rewind()  # a generator that raised gives nothing more
            raise
        self.generator = _random.generator
        self.at = (seed, epoch, first + count)
        return out


def _rows_of(source: tuple[Any, ...]) -> _Columns | _Items | _Stream:
    if not source:
        raise TypeError("DataLoader: needs arrays or a data set")
    if all(hasattr(a, "shape") and hasattr(a, "dtype") for a in source):
        return _Columns(tuple([np.asarray(a) for a in source]))
    if len(source) > 1:
        raise TypeError(
            f"DataLoader: takes arrays, or one data set, not {', '.join(type(a).__name__ for a in source)}; "
            "np.asarray makes arrays of lists"
        )
    (data,) = source
    if isinstance(data, dict):
        return _Columns(data)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return _Items(data)
    if hasattr(data, "__iter__") and not hasattr(data, "__next__"):
        return _Stream(data)
    raise TypeError(
        f"DataLoader: {type(data).__name__} has neither __getitem__ and __len__ nor an __iter__ that starts anew "
        "each epoch"
    )


class _Maker:
    """Makes batch i of an epoch, whichever process it is in: a tuple of one, or None past the last."""

    def __init__(
        self,
        rows: _Columns | _Items | _Stream,
        batch_size: int,
        shuffle: bool,
        drop_last: bool,
        transform: Callable[..., Any] | None,
        collate: Callable[[Sequence[Any]], Any],
        part: tuple[int, int],
    ) -> None:
        self.rows, self.batch_size, self.shuffle, self.drop_last = rows, batch_size, shuffle, drop_last
        self.transform, self.collate, self.part = transform, collate, part
        self.order: tuple[tuple[int, int], NDArray[np.intp]] | None = None

    def __call__(self, seed: int, epoch: int, i: int) -> tuple[Any] | None:
        rank, ranks = self.part
        first, own = i * self.batch_size, slice(rank * self.batch_size // ranks, (rank + 1) * self.batch_size // ranks)
        before = _random.key, _random.generator
        try:
            if isinstance(self.rows, _Stream):
                samples = self.rows.take(seed, epoch, first, self.batch_size)
                if not samples or (self.drop_last and len(samples) < self.batch_size):
                    return None
                _random.key, _random.generator = (seed, epoch, 1, i), None
                batch = self.collate(samples[own])
            else:
                _random.key, _random.generator = (seed, epoch, 1, i), None
                chosen = self._order(seed, epoch)[first : first + self.batch_size][own]
                batch = self.rows.batch(chosen, self.collate)
            if self.transform is not None:
                batch = self.transform(*batch) if type(batch) is tuple else self.transform(batch)
            return (batch,)
        finally:
            _random.key, _random.generator = before

    def _order(self, seed: int, epoch: int) -> NDArray[np.intp]:
        if self.order is None or self.order[0] != (seed, epoch):
            assert self.rows.count is not None
            order = np.arange(self.rows.count)
            if self.shuffle:
                order = np.random.default_rng((seed, epoch)).permutation(self.rows.count)
            self.order = ((seed, epoch), order)
        return self.order[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "order": None}


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


__all__ = ["DataLoader", "LoaderError", "rng"]
