"""Arguments of captured functions: the key of a call, its tensors as memory, and how that memory is shared.

In: the arguments of a call. Out: what `jit` compares with the captured call, buffers to run with, and stand-ins by
which a captured function's use of an argument is told apart from its use of the same memory by another name.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from aril.device import Buffer
from aril.engine.realize import is_realized, realize_uops, storage_of
from aril.engine.replay import root_of
from aril.ops import Ops
from aril.schedule.prepare import is_flat_view
from aril.schedule.shard import is_sharded_storage, memory_of
from aril.tensor import Tensor
from aril.tensor_memory import realize
from aril.uop import UOp

MOST_OBJECTS = 100_000  # looked at for tensors that a function reaches

# ------------------------------------------------------------------------------------------------ the key of a call


def flatten(x: Any, path: str, tensors: list[Tensor], key: list[Any], values: dict[str, int]) -> None:
    """Collect tensors of a nested argument in order, and everything else into the key of the call."""
    if isinstance(x, Tensor):
        tensors.append(x)
        key.append((path, "tensor", x.shape, x.dtype, x.device))
    elif isinstance(x, UOp) and x.op is Ops.BIND:
        variable, value = x.unbind()
        values[variable.arg.name] = value
        key.append((path, "variable", variable))
    elif isinstance(x, (list, tuple)):
        key.append((path, type(x).__name__, len(x)))
        for i, v in enumerate(x):
            flatten(v, f"{path}[{i}]", tensors, key, values)
    elif isinstance(x, dict):
        key.append((path, "dict", tuple(x)))
        for k, v in x.items():
            flatten(v, f"{path}[{k!r}]", tensors, key, values)
    elif isinstance(x, (int, float, bool, str, bytes, type(None))):
        key.append(value_key(path, x))
    else:
        key.append((path, "object", type(x).__name__, id(x)))


def value_key(path: str, x: Any) -> tuple[Any, ...]:
    """The part of a key that stands for a plain value: a NaN is like another one, and -0.0 is not 0.0.

    >>> value_key("x", float("nan")) == value_key("x", float("nan")), value_key("x", 0.0) == value_key("x", -0.0)
    (True, False)
    """
    key = (path, "value", type(x).__name__)
    if isinstance(x, float) and math.isnan(x):
        return (*key, math.nan)  # the same object, so it is found equal
    if isinstance(x, float) and x == 0 and math.copysign(1.0, x) < 0:
        return (*key, x, "negative")
    return (*key, x)


def difference(name: str, expected: tuple[Any, ...], found: tuple[Any, ...]) -> str:
    """Which argument of a call is not as captured, and how to give it so that it may change."""
    advice = "call it as captured, or make another jit of it for these arguments"
    for e, f in itertools.zip_longest(expected, found):
        if e == f:
            continue
        if e is None or f is None or e[0] != f[0]:
            return (
                f"{name} was captured with {_describe(e) if e else 'nothing'} "
                f"where it now has {_describe(f) if f else 'nothing'} "
                f"({e[0] if e else f[0]}): {advice}"
            )
        if e[1] == f[1] == "variable":
            advice = "bind the variable it was captured with"
        elif f[1] == "object" and f[2] == "UOp":
            advice = "a Variable is given with its value of this call, as in n.bind(3)"
        elif e[1] == "value" and e[2] == f[2] in ("int", "float"):
            advice = "what changes from call to call is given as a tensor, or as a bound Variable; else " + advice
        elif f[1] == "object":
            advice = "what changes from call to call is given as a tensor, as in Tensor(x)"
        return f"{name} was captured with {e[0]} = {_describe(e)} and was called with {_describe(f)}: {advice}"
    return f"{name} was captured with other arguments: {advice}"


def _describe(k: tuple[Any, ...]) -> str:
    if k[1] == "tensor":
        return f"a tensor of shape {k[2]}, {k[3].name} on {k[4]}"
    if k[1] == "variable":
        return f"the variable {k[2].arg.name!r}"
    if k[1] == "value":
        return f"the {k[2]} {k[3]!r}" if k[3] is not None else "None"
    if k[1] == "object":
        return f"an object of type {k[2]}"
    return " ".join(str(v) for v in k[1:])


def parameter_names(function: Any) -> list[str]:
    """The names of parameters that may be given by position; none where Python does not know."""
    try:
        kinds = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in kinds if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


# ---------------------------------------------------------------------------------------------- tensors as memory


@dataclass(slots=True)
class Arguments:
    """The tensors of a call and the buffers behind them, one a device of each tensor: the entries.

    A view is given as a copy of it (`copied` names the view), unless it is among those that are passed as views; its
    entry is then the whole memory below it. `places[i]` is where a write to entry i arrives in the end.
    """

    tensors: list[Tensor]
    nodes: list[UOp]
    buffers: list[Buffer]
    places: list[Buffer]
    copied: dict[int, Tensor] = field(default_factory=dict)  # by the number of the tensor

    @property
    def owner(self) -> list[int]:
        """The number of the tensor of each entry."""
        return [k for k, t in enumerate(self.tensors) for _ in memory_of(t.uop)]

    def put_back(self, written: Sequence[int]) -> None:
        """What was written to copies goes to the views they were made of."""
        owner = self.owner
        for k in sorted({owner[i] for i in written} & self.copied.keys()):
            self.copied[k].assign(self.tensors[k].detach()).realize()


def arguments(tensors: list[Tensor], as_views: Container[int] = ()) -> Arguments:
    """The tensors as memory: computed where they were not yet, in row-major order where they are other views."""
    realize([t for t in tensors if not is_realized(t.uop)])
    views = [k for k, t in enumerate(tensors) if not is_whole(t.uop) and k not in as_views]
    given, copied = tensors, {}
    if views:  # they stay views
        given = list(tensors)
        graphs = [UOp(Ops.CONTIGUOUS, (tensors[k].uop,), tag="copy") for k in views]  # a node that no tensor stands for
        for k, uop in zip(views, realize_uops(graphs, [tensors[k].device for k in views]), strict=True):
            copied[k], given[k] = tensors[k], tensors[k].replace_uop(uop)
    nodes = [b for t in given for b in memory_of(t.uop)]
    buffers = [storage_of(b) for b in nodes]
    places = [storage_of(b) for t in tensors for b in memory_of(t.uop)] if copied else buffers
    return Arguments(given, nodes, buffers, places, copied)


def is_whole(u: UOp) -> bool:
    """Whether `u` is whole memory in its own order, with no assignment pending."""
    return is_sharded_storage(u) or (is_flat_view(u) and u.base.op is Ops.BUFFER and u.op is not Ops.AFTER)


# ------------------------------------------------------------------------------------------------- shared memory


@dataclass
class Sharing:
    """How the entries of a captured call share memory; a replay is right for calls that share it likewise.

    `same`: the first entry with the same memory, for each. `bound`: entries whose memory the function also reaches
    without its arguments. `views`: tensors that are passed as views, over parameters in place of their storage.
    """

    same: list[int]
    bound: dict[int, Buffer] = field(default_factory=dict)
    views: dict[int, UOp] = field(default_factory=dict)

    @property
    def is_plain(self) -> bool:
        """Whether each entry has memory of its own."""
        return not self.bound and not self.views and self.same == list(range(len(self.same)))

    def fits(self, given: list[Tensor]) -> bool:
        """Whether views are passed where they were."""
        return all(_over_parameters(given[k].uop) is view for k, view in self.views.items())

    def holds(self, args: Arguments) -> bool:
        """Whether the entries share memory as they did."""
        buffers = args.buffers
        return all(buffers[i] is b for i, b in self.bound.items()) and all(
            buffers[i] is buffers[k] for i, k in enumerate(self.same) if i != k
        )


def _over_parameters(view: UOp) -> UOp | None:
    if not is_realized(view):
        return None
    nodes = memory_of(view)
    return view.substitute({n: UOp.param(k, n.dtype, n.arg.size, device=n.arg.device) for k, n in enumerate(nodes)})


def shared(tensors: list[Tensor], reached: set[int]) -> tuple[Arguments, Sharing]:
    """The tensors of a call that is captured, and how they share memory with each other and with what is `reached`."""
    computed = arguments(tensors)
    roots: dict[int, set[int]] = {}  # which tensors lie in each memory
    owner = computed.owner
    for b, k in zip(computed.places, owner, strict=True):
        roots.setdefault(id(root_of(b)), set()).add(k)
    bound = {k for root, owners in roots.items() if root in reached for k in owners}
    entangled = bound | {k for owners in roots.values() if len(owners) > 1 for k in owners}
    views = {k: _over_parameters(tensors[k].uop) for k in computed.copied if k in entangled}
    args = arguments(tensors, views) if views else computed
    first: dict[int, int] = {}
    same = [first.setdefault(id(b), i) if owner[i] not in bound else i for i, b in enumerate(args.buffers)]
    bound_entries = {i: b for i, b in enumerate(args.buffers) if owner[i] in bound}
    return args, Sharing(same, bound_entries, {k: v for k, v in views.items() if v is not None})


def stand_ins(args: Arguments, sharing: Sharing) -> tuple[list[Tensor], list[Buffer]]:
    """(tensors for a captured function to work with, the buffer by which each entry is known in its launches).

    They are other names of the same memory, so that an argument is told apart from a parameter it may share memory
    with. What the function reaches anyway is passed as it is.
    """
    names = [
        Buffer(b.device, b.size, b.dtype, base=root_of(b), offset_bytes=b.offset_bytes) if i not in sharing.bound else b
        for i, b in enumerate(args.buffers)
    ]
    known = [names[k] for k in sharing.same]
    nodes = [name_for(b) for b in names]
    out: list[Tensor] = []
    objects: dict[int, Tensor] = {}  # one that is passed twice is one inside, too
    at = 0
    for t in args.tensors:
        own = memory_of(t.uop)
        entries = range(at, at + len(own))
        at += len(own)
        new = {b: nodes[sharing.same[i]] for b, i in zip(own, entries, strict=True)}
        is_bound = any(i in sharing.bound for i in entries)
        out.append(t if is_bound else objects.setdefault(id(t), t.replace_uop(t.uop.substitute(new))))
    empty = {i: Buffer(b.device, b.size, b.dtype) for i, b in sharing.bound.items()}  # no launch knows these
    return out, [empty.get(i, b) for i, b in enumerate(known)]


def name_for(memory: Buffer) -> UOp:
    """A fresh node that stands for `memory`."""
    node = UOp.new_buffer(memory.device, memory.size, memory.dtype)
    node.storage = memory
    return node


# ---------------------------------------------------------------------------------- what a function reaches by itself


def reached(function: Any, args: Any) -> list[Tensor]:
    """The tensors that `function` reaches without its tensor arguments: by closure, defaults,
    globals it names, the object it belongs to, attributes, containers, and objects among its arguments.

    It need not find all: memory that is written by two names which it did not see is refused after the capture.
    """
    found: list[Tensor] = []
    seen: set[int] = set()
    todo: list[Any] = [function, *_objects(args)]
    while todo and len(seen) < MOST_OBJECTS:
        x = todo.pop()
        if isinstance(x, Tensor):
            if id(x) not in seen:
                seen.add(id(x))
                found.append(x)
                todo += [x.grad] * (x.grad is not None)
        elif id(x) not in seen and not isinstance(x, (*_PLAIN, type)):
            seen.add(id(x))
            todo.extend(_parts(x))
    return found


_PLAIN = (int, float, complex, str, bytes, type(None), UOp, Buffer, ModuleType, BuiltinFunctionType, CodeType)


def _objects(args: Any) -> Iterator[Any]:
    """What stands in nested arguments besides tensors and plain values."""
    if isinstance(args, (list, tuple)):
        for x in args:
            yield from _objects(x)
    elif isinstance(args, dict):
        for x in args.values():
            yield from _objects(x)
    elif not isinstance(args, (Tensor, *_PLAIN)):
        yield args


def _parts(x: Any) -> Iterator[Any]:
    if isinstance(x, dict):
        yield from x.values()
    elif isinstance(x, (list, tuple, set, frozenset)):
        yield from x
    elif isinstance(x, FunctionType):
        if not str(x.__module__).startswith("aril."):
            yield from _globals_of(x)
        yield from (x.__defaults__ or ())
        yield from (x.__kwdefaults__ or {}).values()
        for cell in x.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # not bound yet
                continue
    elif isinstance(x, MethodType):
        yield from (x.__self__, x.__func__)
    elif isinstance(x, functools.partial):
        yield from (x.func, x.args, x.keywords)
    else:
        own = getattr(x, "__dict__", {})
        yield from [own["__wrapped__"]] if "__wrapped__" in own else own.values()
        for kind in type(x).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                yield getattr(x, name, None)
            if kind is not object and not str(kind.__module__).startswith(("aril.", "numpy")):
                yield from [v for v in vars(kind).values() if isinstance(v, (FunctionType, Tensor))]


def _globals_of(function: FunctionType) -> Iterator[Any]:
    """Values of the module's names that the code of a function speaks of, and of names in modules among them."""
    codes: list[CodeType] = [function.__code__]
    names: set[str] = set()
    while codes:
        code = codes.pop()
        names.update(code.co_names)
        codes += [c for c in code.co_consts if isinstance(c, CodeType)]
    for name in names & function.__globals__.keys():
        value = function.__globals__[name]
        if isinstance(value, ModuleType):
            yield from [vars(value)[n] for n in names & vars(value).keys() if not value.__name__.startswith("aril")]
        else:
            yield value
