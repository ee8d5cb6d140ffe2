"""What a fork must see to, lowest of all rooms: a child has one thread, and locks that others held stay shut for good.

In come locks by their owner and name; in the child they are made anew. A fork waits for what other threads are in the
middle of: importing (Python keeps a lock a module) and what else asks for it.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

PATIENCE_S = 10.0  # a thread that is in the middle of something may itself wait for the one that forks

_owners: list[tuple[weakref.ref[Any], str, Callable[[], Any]]] = []
_waits: list[tuple[Callable[[float], object], Callable[[], object]]] = []


def renewed_in_child(owner: Any, name: str, make: Callable[[], Any] = threading.RLock) -> Any:
    """A lock for `owner` (an object, or a module) to keep under `name`: a child of fork finds a new one there."""
    if len(_owners) > 4096:
        _owners[:] = [entry for entry in _owners if entry[0]() is not None]
    _owners.append((weakref.ref(owner), name, make))
    return make()


def fork_waits_for(acquire: Callable[[float], object], release: Callable[[], object]) -> None:
    """Have a fork call `acquire(seconds)` before and, if it gave something true, `release()` after, in the parent."""
    _waits.append((acquire, release))


class _Held(threading.local):
    releases: list[Callable[[], object]] | None = None


_held = _Held()


def _before() -> None:
    end = time.monotonic() + PATIENCE_S
    _held.releases = [release for acquire, release in _waits if acquire(max(0.0, end - time.monotonic()))]
    while threading.active_count() > 1 and time.monotonic() < end and _importing():
        time.sleep(0.001)


def _importing() -> bool:
    """Whether some thread imports a module that is not there yet."""
    return any(getattr(getattr(m, "__spec__", None), "_initializing", False) for m in list(sys.modules.values()))


def _after_in_parent() -> None:
    for release in _held.releases or ():
        release()
    _held.releases = None


def _forget_imports() -> None:
    """In the child: modules that threads of the parent were importing after all are imported again when asked for.

    Between the wait and the fork another thread may have run. Its module's lock would never open here.
    """
    locks = getattr(importlib._bootstrap, "_module_locks", {})  # type: ignore[attr-defined]  # CPython's
    for name, reference in list(locks.items()):
        owner = getattr(reference(), "owner", None)
        if owner is not None and owner != threading.get_ident():
            del locks[name]
            if getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False):
                del sys.modules[name]


def _after_in_child() -> None:
    _held.releases = None
    _forget_imports()
    for reference, name, make in _owners:
        owner = reference()
        if owner is not None:
            setattr(owner, name, make())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
