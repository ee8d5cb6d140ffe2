"""Neural networks: layers, optimizers, state and data sets, over Tensor.

Layers are plain classes whose parameters are tensors in attributes; each name is imported when it is first touched.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aril.nn import datasets as datasets
    from aril.nn import optim as optim
    from aril.nn import state as state
    from aril.nn.conv import Conv1d as Conv1d
    from aril.nn.conv import Conv2d as Conv2d
    from aril.nn.conv import ConvTranspose1d as ConvTranspose1d
    from aril.nn.conv import ConvTranspose2d as ConvTranspose2d
    from aril.nn.linear import Embedding as Embedding
    from aril.nn.linear import Linear as Linear
    from aril.nn.linear import LSTMCell as LSTMCell
    from aril.nn.norm import BatchNorm as BatchNorm
    from aril.nn.norm import BatchNorm1d as BatchNorm1d
    from aril.nn.norm import BatchNorm2d as BatchNorm2d
    from aril.nn.norm import BatchNorm3d as BatchNorm3d
    from aril.nn.norm import GroupNorm as GroupNorm
    from aril.nn.norm import InstanceNorm as InstanceNorm
    from aril.nn.norm import LayerNorm as LayerNorm
    from aril.nn.norm import LayerNorm2d as LayerNorm2d
    from aril.nn.norm import RMSNorm as RMSNorm

# Name -> the module that has it.
_WHERE: dict[str, str] = {
    **dict.fromkeys(("Linear", "Embedding", "LSTMCell"), "aril.nn.linear"),
    **dict.fromkeys(("Conv1d", "Conv2d", "ConvTranspose1d", "ConvTranspose2d"), "aril.nn.conv"),
    **dict.fromkeys(("BatchNorm", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d"), "aril.nn.norm"),
    **dict.fromkeys(("GroupNorm", "InstanceNorm", "LayerNorm", "LayerNorm2d", "RMSNorm"), "aril.nn.norm"),
}
_MODULES = ("datasets", "loader", "optim", "precision", "recompute", "schedules", "state")

__all__ = [*_WHERE, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"aril.nn.{name}")
    if name not in _WHERE:
        raise AttributeError(f"module 'aril.nn' has no attribute {name!r}; it offers {', '.join(__all__)}")
    globals()[name] = found = getattr(importlib.import_module(_WHERE[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
