"""What the layers of this room share: each prints as it was made. In come a layer's arguments; out goes their text."""

from __future__ import annotations

import inspect
from typing import Any, Self

from aril.mixin.base import shown


class Layer:
    """A layer whose text is the call that makes it, without what is as by default: also in a list of layers.

    A class derived from one shows its own arguments.

    >>> [nn.Conv2d(3, 64, 3, stride=2), nn.Linear(784, 10, bias=False)]
    [Conv2d(3, 64, 3, stride=2), Linear(784, 10, bias=False)]
    """

    _arguments = "..."  # of one that was made without a call, and has no state yet

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        self = super().__new__(cls)
        try:
            given = inspect.signature(cls).bind(*args, **kwargs)
        except TypeError:  # __init__ says what is wrong; nothing is given where a copy is made
            return self
        texts = []
        for name, value in given.arguments.items():
            kind, default = given.signature.parameters[name].kind, given.signature.parameters[name].default
            if kind is inspect.Parameter.VAR_POSITIONAL:
                texts += [shown(v) for v in value]
            elif kind is inspect.Parameter.VAR_KEYWORD:
                texts += [f"{k}={shown(v)}" for k, v in value.items()]
            elif default is inspect.Parameter.empty:
                texts.append(shown(value))
            elif shown(value) != shown(default):
                texts.append(f"{name}={shown(value)}")
        self._arguments = ", ".join(texts)
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._arguments})"
