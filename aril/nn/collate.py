"""Samples to a batch: structures of arrays, numbers and strings in, one structure with a leading axis out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def collate(samples: Sequence[Any]) -> Any:
    """The batch of `samples`, which are structures of one form; the batch has that form too.

    Arrays are stacked along a new axis 0; Python numbers become an array of bool, int64 or float32; strings, bytes and
    None stay as they are, in a list. Dicts, lists, tuples, named tuples and dataclasses are gone through.
    Errors: ValueError where two samples differ in form, shape or kind, with the place; TypeError for other objects.

    >>> batch = collate([{"x": np.zeros(3), "y": 1}, {"x": np.ones(3), "y": 2}])
    >>> batch["x"].shape, batch["y"].tolist()
    ((2, 3), [1, 2])
    """
    if not samples:
        raise ValueError("collate: a batch of no samples has no form")
    return _collate(samples, "sample")


def _collate(samples: Sequence[Any], path: str) -> Any:
    first = samples[0]
    parts = open_structure(first)
    if parts is None:
        return _leaves(samples, path)
    keys, values, build = parts
    columns: list[list[Any]] = [[] for _ in values]
    for i, sample in enumerate(samples):
        found = open_structure(sample)
        if type(sample) is not type(first) or found is None or sorted_names(found[0]) != sorted_names(keys):
            raise ValueError(
                f"collate: {path} is {_form(first)} in sample 0 and {_form(sample)} in sample {i}: "
                "samples need one form"
            )
        own = found[1] if found[0] == keys else [sample[k] for k in keys]
        for column, value in zip(columns, own, strict=True):
            column.append(value)
    return build([_collate(c, f"{path}[{k!r}]") for k, c in zip(keys, columns, strict=True)])


def open_structure(x: Any) -> tuple[list[Any], list[Any], Callable[[list[Any]], Any]] | None:
    """(keys, values, what builds the like of other values) of a dict, list, tuple or dataclass; None of others."""
    if isinstance(x, dict):
        keys = list(x)
        return keys, list(x.values()), lambda values: dict(zip(keys, values, strict=True))
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return list(x._fields), list(x), lambda values: type(x)(*values)
    if isinstance(x, (list, tuple)):
        return list(range(len(x))), list(x), lambda values: values if isinstance(x, list) else tuple(values)
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        names = [f.name for f in dataclasses.fields(x)]
        return names, [getattr(x, n) for n in names], lambda values: _like(x, dict(zip(names, values, strict=True)))
    return None


def sorted_names(keys: list[Any]) -> list[str]:
    """The keys in an order of their own: dicts are equal in whatever order they were filled."""
    return sorted(map(repr, keys))


def _like(x: Any, values: dict[str, Any]) -> Any:
    """A dataclass as `x` with these values; its `__init__` is not run, for it may compute what is given here."""
    new = object.__new__(type(x))
    for name, value in values.items():
        object.__setattr__(new, name, value)
    return new


def _leaves(samples: Sequence[Any], path: str) -> Any:
    first = samples[0]
    if first is None or isinstance(first, (str, bytes)):
        for i, s in enumerate(samples):
            if not isinstance(s, (str, bytes, type(None))):
                raise ValueError(f"collate: {path} is {_form(first)} in sample 0 and {_form(s)} in sample {i}")
        return list(samples)
    if isinstance(first, (bool, int, float)):  # NumPy's own scalars keep their dtype: they come as arrays, below
        kinds = {type(s) for s in samples}
        if kinds <= {bool, int, float}:
            dtype = np.bool_ if kinds == {bool} else np.float32 if float in kinds else np.int64
            return np.array(samples, dtype)
    if not hasattr(first, "__array__") and not isinstance(first, (int, float)):
        raise TypeError(
            f"collate: {path} is {_form(first)}: arrays, numbers, strings, and dicts, lists, tuples and dataclasses of "
            "them make a batch; give the loader a collate= of your own for other things"
        )
    arrays = [np.asarray(s) for s in samples]
    for i, a in enumerate(arrays):
        if a.shape != arrays[0].shape or a.dtype != arrays[0].dtype:
            raise ValueError(
                f"collate: {path} is {_form(arrays[0])} in sample 0 and {_form(a)} in sample {i}: "
                "bring them to one shape and dtype, or give the loader a collate= of your own"
            )
    return np.stack(arrays)


def _form(x: Any) -> str:
    """A few words on what `x` is, for errors."""
    if isinstance(x, np.ndarray):
        return f"an array of shape {x.shape} and dtype {x.dtype}"
    parts = open_structure(x)
    return f"{type(x).__name__} of {parts[0]}" if parts is not None else type(x).__name__
