"""What threads share: the one lock around what changes many tensors at once (realizing, assigning, capturing,
renewing after a replay), and what each thread has for itself.

Building graphs needs no lock; kernels of one realization run while it is held.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_held = [threading.RLock()]


def _renew() -> None:
    _held[0] = threading.RLock()  # the thread that held it does not exist in a forked process


os.register_at_fork(after_in_child=_renew)


class _Noted(threading.local):
    assignments: list[Any] | None = None


noted = _Noted()


def note_assignment(state: Any) -> None:
    """Tell a capture of this thread of the node that an assignment made."""
    if noted.assignments is not None:
        noted.assignments.append(state)


def locked(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: one thread at a time, and it again inside."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        with _held[0]:
            return function(*args, **kwargs)

    return wrapper
