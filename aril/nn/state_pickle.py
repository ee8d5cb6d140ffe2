"""Reading pickles as data: a machine that knows containers, numbers, text and a table of names, and runs nothing.

In comes a stream of opcodes (taken apart by the standard library's `pickletools`, which executes nothing either); out
comes the object. Whatever a pickle could do beyond that is refused with its name.
"""

from __future__ import annotations

import pickletools
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any


class RefusedPickle(ValueError):
    """A pickle that asks for more than data."""


class Name:
    """A global a pickle may name: `make` takes the arguments it is called with; None: it is only a mark."""

    __slots__ = ("make", "value", "what")

    def __init__(self, what: str, make: Callable[..., Any] | None = None, value: Any = None) -> None:
        self.what, self.make, self.value = what, make, value


_MARK = object()
_PUSHED = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_ARGUMENT = {
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "UNICODE", "BINUNICODE",
    "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8", "STRING", "BINSTRING",
    "SHORT_BINSTRING",
}  # fmt: skip
_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_SET": set, "EMPTY_TUPLE": tuple}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_IGNORED = {"PROTO", "FRAME", "STOP"}


def read_pickle(file: Any, names: Mapping[str, Name], persistent: Callable[[Any], Any] | None = None) -> Any:
    """The object of the pickle that begins where `file` stands, which is left behind its end.

    names: what may be named, by "module name". persistent: makes an object of a persistent id.
    Errors: RefusedPickle for names that are not in the table, and anything else that is no data; ValueError for a
    stream that is cut short or makes no sense.
    """
    machine = _Machine(names, persistent)
    try:
        for opcode, argument, _ in pickletools.genops(file):
            machine.step(opcode.name, argument)
        (value,) = machine.stack
    except RefusedPickle:
        raise
    except (IndexError, TypeError, KeyError, AttributeError, OverflowError, ValueError) as error:
        raise ValueError(f"the pickle makes no sense ({type(error).__name__}: {error})") from None
    if isinstance(value, Name):
        raise RefusedPickle(f"it holds {value.what} itself, no data")
    return value


class _Machine:
    def __init__(self, names: Mapping[str, Name], persistent: Callable[[Any], Any] | None) -> None:
        self.names, self.persistent = names, persistent
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def step(self, op: str, arg: Any) -> None:
        stack = self.stack
        if op in _ARGUMENT:
            stack.append(arg)
        elif op in _PUSHED:
            stack.append(_PUSHED[op])
        elif op in _EMPTY:
            stack.append(_EMPTY[op]())
        elif op in _TUPLES:
            n = _TUPLES[op]
            self._need(n)
            stack[-n:] = [tuple(stack[-n:])]
        elif op in ("BINPUT", "LONG_BINPUT", "PUT"):
            self.memo[int(arg)] = stack[-1]
        elif op == "MEMOIZE":
            self.memo[len(self.memo)] = stack[-1]
        elif op in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(self.memo[int(arg)])
        elif op not in _IGNORED:
            handler = _HANDLERS.get(op)
            if handler is None:
                raise RefusedPickle(f"it uses the opcode {op}, which data does not need")
            handler(self, arg)

    def _need(self, n: int) -> None:
        if len(self.stack) < n or any(x is _MARK for x in self.stack[-n:]):
            raise ValueError("it takes more from the stack than was put there")

    def _pop(self) -> Any:
        self._need(1)
        return self.stack.pop()

    def _to_mark(self) -> list[Any]:
        at = len(self.stack) - 1
        while self.stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise ValueError("a mark is missing")
        items = self.stack[at + 1 :]
        del self.stack[at:]
        return items

    def _mark(self, arg: Any) -> None:
        self.stack.append(_MARK)

    def _drop(self, arg: Any) -> None:
        self.stack.pop()

    def _pop_mark(self, arg: Any) -> None:
        self._to_mark()

    def _dup(self, arg: Any) -> None:
        self.stack.append(self.stack[-1])

    def _tuple(self, arg: Any) -> None:
        self.stack.append(tuple(self._to_mark()))

    def _list(self, arg: Any) -> None:
        self.stack.append(self._to_mark())

    def _dict(self, arg: Any) -> None:
        items = self._to_mark()
        self.stack.append({_key(k): v for k, v in zip(items[::2], items[1::2], strict=True)})

    def _frozenset(self, arg: Any) -> None:
        self.stack.append(frozenset([_key(k) for k in self._to_mark()]))

    def _append(self, arg: Any) -> None:
        value = self._pop()
        self._last(list).append(value)

    def _appends(self, arg: Any) -> None:
        items = self._to_mark()
        self._last(list).extend(items)

    def _additems(self, arg: Any) -> None:
        items = self._to_mark()
        self._last(set).update([_key(k) for k in items])

    def _setitem(self, arg: Any) -> None:
        value, key = self._pop(), self._pop()
        self._last(dict)[_key(key)] = value

    def _setitems(self, arg: Any) -> None:
        items = self._to_mark()
        target = self._last(dict)
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[_key(key)] = value

    def _last(self, kind: type) -> Any:
        target = self.stack[-1]
        if not isinstance(target, kind):
            raise ValueError(f"it fills a {type(target).__name__} as if it were a {kind.__name__}")
        return target

    # --- names and calls ---

    def _global(self, arg: Any) -> None:
        found = self.names.get(arg)
        if found is None:
            raise RefusedPickle(
                f"it names {arg.replace(' ', '.', 1)}, which is not among the things that data is made of"
            )
        self.stack.append(found)

    def _stack_global(self, arg: Any) -> None:
        name, module = self._pop(), self._pop()
        self._global(f"{module} {name}")

    def _reduce(self, arg: Any) -> None:
        args, callee = self._pop(), self._pop()
        if not isinstance(callee, Name) or callee.make is None or not isinstance(args, tuple):
            what = callee.what if isinstance(callee, Name) else type(callee).__name__
            raise RefusedPickle(f"it calls {what}, which cannot be called")
        self.stack.append(callee.make(*args))

    def _build(self, arg: Any) -> None:
        # The attributes of a state dict (`_metadata`) are of no use here; nothing else in the table has any.
        self._pop()
        if not isinstance(self.stack[-1], OrderedDict):
            raise RefusedPickle(f"it sets attributes of a {type(self.stack[-1]).__name__}")

    def _persid(self, arg: Any) -> None:
        self.stack.append(arg)
        self._binpersid(arg)

    def _binpersid(self, arg: Any) -> None:
        if self.persistent is None:
            raise RefusedPickle("it refers to objects outside of it")
        self.stack.append(self.persistent(self._pop()))


_HANDLERS: dict[str, Callable[[_Machine, Any], None]] = {
    "MARK": _Machine._mark, "POP": _Machine._drop, "POP_MARK": _Machine._pop_mark, "DUP": _Machine._dup,
    "TUPLE": _Machine._tuple, "LIST": _Machine._list, "DICT": _Machine._dict, "FROZENSET": _Machine._frozenset,
    "APPEND": _Machine._append, "APPENDS": _Machine._appends, "ADDITEMS": _Machine._additems,
    "SETITEM": _Machine._setitem, "SETITEMS": _Machine._setitems, "GLOBAL": _Machine._global,
    "STACK_GLOBAL": _Machine._stack_global, "REDUCE": _Machine._reduce, "NEWOBJ": _Machine._reduce,
    "BUILD": _Machine._build, "PERSID": _Machine._persid, "BINPERSID": _Machine._binpersid,
}  # fmt: skip


def _key(value: Any) -> Any:
    """A key of a dict or a member of a set. Nested tuples are refused: their hashes can be made to take forever."""
    parts = value if isinstance(value, tuple) else (value,)
    if not all(p is None or isinstance(p, (str, bytes, int, float)) for p in parts):
        raise RefusedPickle(f"it uses a {type(value).__name__} as a key; text and numbers are accepted")
    return value


def ordered_dict(items: Any = ()) -> OrderedDict[Any, Any]:
    """`collections.OrderedDict` for a table of names: empty, or from a list of pairs."""
    if not isinstance(items, (list, tuple)):
        raise ValueError("an OrderedDict is made of a list of pairs")
    return OrderedDict([(_key(k), v) for k, v in items])
