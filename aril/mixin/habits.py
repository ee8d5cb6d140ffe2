"""Names of arguments that NumPy and PyTorch have for what is named otherwise here, accepted by every operation.

`dim` and `axis` are one, so are `keepdims` and `keepdim`, `ddof` and `correction`; `unbiased` is a correction of 1 or
0. What NumPy's functions pass along (`np.sum(t)` calls `t.sum(axis=None, out=None)`) is admitted where it asks nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import FunctionType
from typing import Any

_SAME = ({"axis", "dim"}, {"keepdim", "keepdims"}, {"correction", "ddof"})
_ASKS_NOTHING: dict[str, Any] = {"out": None, "dtype": None, "order": "C"}


def accept_other_names(cls: type) -> None:
    """Wrap the public methods of `cls`, inherited ones too, that take one of the names."""
    methods: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        methods.update({n: m for n, m in vars(base).items() if isinstance(m, FunctionType) and not n.startswith("_")})
    for name, method in methods.items():
        taken = _arguments(method)
        other = {b: a for group in _SAME for a in group & taken for b in group - taken}
        if other or name in _PASSED_ALONG:
            setattr(cls, name, _accepting(method, taken, other))


def _arguments(method: Any) -> set[str]:
    while hasattr(method, "__wrapped__"):
        method = method.__wrapped__
    code = method.__code__
    return set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


_PASSED_ALONG = frozenset({"clip", "round", "reshape"})  # NumPy's functions call these with `out` or `order`


def _accepting(method: Callable[..., Any], taken: set[str], other: dict[str, str]) -> Callable[..., Any]:
    @wraps(method)
    def accepting(*args: Any, **given: Any) -> Any:
        return method(*args, **_renamed(method, taken, other, given)) if given else method(*args)

    return accepting


def _renamed(
    method: Callable[..., Any], taken: set[str], other: dict[str, str], given: dict[str, Any]
) -> dict[str, Any]:
    """The named arguments `given` under the names that the method takes. TypeError for one that it cannot honour."""
    if given.keys() <= taken:
        return given
    out = {}
    for name, value in given.items():
        own = other.get(name, name)
        if name == "unbiased" and "correction" in taken:
            own, value = "correction", int(bool(value))
        if own not in taken and name in _ASKS_NOTHING:
            if value != _ASKS_NOTHING[name]:
                raise TypeError(
                    f"{method.__name__}: {name}={value!r} is not for tensors; "
                    + ("assign the result instead" if name == "out" else "cast or permute the tensor first")
                )
            continue
        if own in out or own != name and own in given:
            raise TypeError(f"{method.__name__}: {name} and {own} are the same; give one")
        out[own] = value
    return out
