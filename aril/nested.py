"""Tensors in nested containers: lists, tuples, named tuples and dicts, as functions take and give them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from aril.tensor import Tensor


def tensors(thing: Any) -> Iterator[Tensor]:
    """The tensors in `thing`, depth first, in the order of its items."""
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, (list, tuple)):
        for part in thing:
            yield from tensors(part)
    elif isinstance(thing, dict):
        for part in thing.values():
            yield from tensors(part)


def mapped(thing: Any, change: Callable[[Tensor], Any]) -> Any:
    """`thing` with `change` applied to its tensors, in the order of `tensors`. The containers are new."""
    if isinstance(thing, Tensor):
        return change(thing)
    if isinstance(thing, tuple) and hasattr(thing, "_fields"):
        return type(thing)(*[mapped(part, change) for part in thing])
    if isinstance(thing, (list, tuple)):
        return (list if isinstance(thing, list) else tuple)([mapped(part, change) for part in thing])
    if isinstance(thing, dict):
        return {key: mapped(part, change) for key, part in thing.items()}
    return thing


def replaced(thing: Any, new: Iterator[Any]) -> Any:
    """`thing` with its tensors replaced by what `new` gives, in the order of `tensors`."""
    return mapped(thing, lambda _: next(new))
