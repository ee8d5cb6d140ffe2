"""A row of the table of operations: what `tests/operations.py` says of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Row(NamedTuple):
    """One operation of `count` tensors. Inputs for values lie in low..high."""

    name: str
    f: Callable[..., Any]
    ref: Callable[..., Any]
    takes: str = "buif"
    gives: str = "same"
    low: float = -2.0
    high: float = 2.0
    grad: bool = True
    count: int = 1
    least: int = 0  # the number of axes it needs
    view: bool = False  # shows the memory of its operand: what is assigned to one shows in the other
