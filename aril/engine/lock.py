"""What threads share: the one lock around what changes many tensors at once (realizing, assigning, capturing,
renewing after a replay), and what each thread has for itself.

Building graphs needs no lock; kernels of one realization run while it is held.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from aril.forks import fork_waits_for, renewed_in_child

P = ParamSpec("P")
R = TypeVar("R")

_held = renewed_in_child(sys.modules[__name__], "_held")
# A fork in the middle of another thread's work would leave the child half of it.
fork_waits_for(lambda seconds: _held.acquire(timeout=seconds), lambda: _held.release())


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
        with _held:
            return function(*args, **kwargs)

    return wrapper
