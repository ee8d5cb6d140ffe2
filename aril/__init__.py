"""aril: a deep-learning stack small enough to read and fast enough to use.

What users write starts here. Each name is imported when it is first touched, so that `import aril` itself is quick.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aril import nn as nn
    from aril.captured import load_captured as load_captured
    from aril.config import Context as Context
    from aril.counters import GlobalCounters as GlobalCounters
    from aril.device import Device as Device
    from aril.dtype import dtypes as dtypes
    from aril.fetch import fetch as fetch
    from aril.function import function as function
    from aril.jit import jit as jit
    from aril.tensor import Tensor as Tensor
    from aril.tensor import Variable as Variable

__version__ = "0.1.0"

# Name -> (module, attribute); no attribute means the module itself.
_WHERE: dict[str, tuple[str, str]] = {
    "Context": ("aril.config", "Context"),
    "Device": ("aril.device", "Device"),
    "GlobalCounters": ("aril.counters", "GlobalCounters"),
    "Tensor": ("aril.tensor", "Tensor"),
    "Variable": ("aril.tensor", "Variable"),
    "dtypes": ("aril.dtype", "dtypes"),
    "fetch": ("aril.fetch", "fetch"),
    "function": ("aril.function", "function"),
    "jit": ("aril.jit", "jit"),
    "load_captured": ("aril.captured", "load_captured"),
    "nn": ("aril.nn", ""),
}

__all__ = [
    "Context", "Device", "GlobalCounters", "Tensor", "Variable", "dtypes", "fetch", "function", "jit", "load_captured",
    "nn",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'aril' has no attribute {name!r}; it offers {', '.join(__all__)}")
    module, attribute = _WHERE[name]
    found = importlib.import_module(module)
    globals()[name] = getattr(found, attribute) if attribute else found
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """This module, except that importing the submodule `aril.jit` does not hide the decorator of that name."""

    def __setattr__(self, name: str, value: Any) -> None:
        shadows = isinstance(value, ModuleType) and name in _WHERE and _WHERE[name][1] != ""
        if not shadows:
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
