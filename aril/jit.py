"""`jit`: capture the kernels a function launches, then replay them with new inputs as one native call.

In: a function of tensors. The first call runs it as it is, the second captures, later ones replay.
"""

from __future__ import annotations

import functools
import gc
import inspect
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Generic, ParamSpec, TypeVar

from aril.config import JIT, JITBEAM, Context
from aril.device import Buffer
from aril.engine.commands import span_of
from aril.engine.hazards import Area, written_twice
from aril.engine.lock import locked, noted
from aril.engine.realize import Capture, JitError, Launch, is_realized, local, realize_uops, storage_of
from aril.engine.replay import Batch
from aril.nested import replaced
from aril.nested import tensors as tensors_in
from aril.ops import OpGroup, Ops
from aril.schedule.prepare import is_flat_view
from aril.schedule.shard import Layout, is_sharded_storage, layout_of, memory_of
from aril.tensor import Tensor
from aril.tensor_memory import alive, renew
from aril.uop import UOp
from aril.uop.node import toposort

P = ParamSpec("P")
R = TypeVar("R")


class Captured:
    """One captured batch with what it expects and how its results are rebuilt."""

    __slots__ = (
        "batch",
        "fresh",
        "guarded",
        "layouts",
        "outputs",
        "runs",
        "signature",
        "state",
        "template",
        "used",
        "written_inputs",
    )

    def __init__(
        self,
        signature: tuple[Any, ...],
        batch: Batch,
        template: Any,
        outputs: list[tuple[UOp, tuple[int | None, ...]]],
        fresh: list[Buffer],
    ) -> None:
        self.signature, self.batch, self.template = signature, batch, template
        self.outputs, self.fresh = outputs, fresh
        self.state: dict[int, Buffer] = {}  # memory from outside that the batch writes, by identity
        self.guarded: Area | None = None  # the bytes of that memory
        self.written_inputs: list[int] = []
        self.layouts: list[Layout | None] | None = None  # of the inputs, where some are split over devices
        self.used: list[int] = []  # the inputs that its kernels touch
        self.runs = -1  # `local.runs` when the nodes of what is written were last renewed


def _flatten(x: Any, path: str, tensors: list[Tensor], key: list[Any], values: dict[str, int]) -> None:
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
            _flatten(v, f"{path}[{i}]", tensors, key, values)
    elif isinstance(x, dict):
        key.append((path, "dict", tuple(x)))
        for k, v in x.items():
            _flatten(v, f"{path}[{k!r}]", tensors, key, values)
    elif isinstance(x, (int, float, bool, str, bytes, type(None))):
        key.append((path, "value", type(x).__name__, x))
    else:
        key.append((path, "object", id(x)))


class Jit(Generic[P, R]):
    """A captured function. Call it like the function; `reset()` forgets the capture.

    Tensors may stand anywhere in lists, tuples and dicts of the arguments; bound variables are inputs too. Every
    other argument is part of what was captured and must not change. In-place updates of tensors the function reaches
    by closure or attribute are part of the batch. Results are fresh tensors at every call. Errors: JitError where
    shapes, dtypes, devices or other arguments differ from the captured ones, and where the function reads a tensor's
    value while being captured.
    """

    def __init__(self, function: Callable[P, R]) -> None:
        self.function = function
        self.calls = 0
        self.captured: Captured | None = None
        self.of_owner: dict[int, tuple[weakref.ref[Any], Jit[P, R]]] = {}  # of a method: one for each object
        self.names = _parameter_names(function)
        self.lock = threading.RLock()  # calls of one capture come one after the other: they share its records
        functools.update_wrapper(self, function)

    def __get__(self, owner: object, kind: type | None = None) -> Any:
        if owner is None:
            return self
        key = id(owner)
        found = self.of_owner.get(key)
        if found is None:
            own = self.of_owner
            try:
                found = own[key] = (weakref.ref(owner, lambda _: own.pop(key, None)), Jit(self.function))
            except TypeError as error:
                raise TypeError(
                    f"jit: a method's object must allow weak references; {type(owner).__name__} does not"
                ) from error
        bound = functools.partial(found[1], owner)  # type: ignore[arg-type]
        bound.reset = found[1].reset  # type: ignore[attr-defined]
        bound.save = found[1].save  # type: ignore[attr-defined]
        return bound

    def reset(self) -> None:
        """Capture again at the next calls."""
        self.calls, self.captured = 0, None

    def save(
        self,
        path: str | os.PathLike[str],
        state: Mapping[str, Tensor] | None = None,
        weights: str | os.PathLike[str] | None = None,
        compiled: bool = True,
    ) -> None:
        """Write what was captured as a file that `aril.load_captured` runs in a process without this function.

        What it reaches outside of its arguments (weights, optimizer state, random numbers) is saved by value. `state`
        names tensors of it, so that the loaded program's `state` has them by name: `get_state_dict(model)`. With
        `weights`, a safetensors file that holds those already, the container only refers to them; on loading the file
        is looked for beside it. `compiled=False` leaves out machine code. The file appears when it is whole.
        Errors: ProgramError for what is not captured yet, or has no form in a file: arguments that are objects inside
        of containers, inline source, a file that is read at every call.
        """
        import importlib

        importlib.import_module("aril.captured").save(self, path, state, weights, compiled)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if not JIT.value or local.capture is not None:  # inside another capture the kernels belong to the outer one
            return self.function(*args, **kwargs)
        tensors: list[Tensor] = []
        key: list[Any] = []
        values: dict[str, int] = {}
        names = self.names
        for i, a in enumerate(args):
            _flatten(a, names[i] if i < len(names) else f"argument {i}", tensors, key, values)
        for name, a in kwargs.items():
            _flatten(a, name, tensors, key, values)
        signature = tuple(key)
        if self.captured is not None:
            with self.lock:
                return self._replay(self.captured, signature, tensors, values)
        self.calls += 1
        if self.calls == 1:
            out = self.function(*args, **kwargs)
            results = list(tensors_in(out))
            if results:
                results[0].realize(*results[1:])
            return out
        if JITBEAM.value:
            with Context(BEAM=JITBEAM.value):
                return self._capture(args, kwargs, signature, tensors, values)
        return self._capture(args, kwargs, signature, tensors, values)

    # --- capture ---

    @locked
    def _capture(
        self, args: Any, kwargs: Any, signature: tuple[Any, ...], tensors: list[Tensor], values: dict[str, int]
    ) -> R:
        realize_assignments()  # those made before are no part of what is captured
        inputs = _input_buffers(tensors)
        # The function sees other names of the same memory, so that an input is told apart from a parameter it may
        # share.
        aliases = [Buffer(b.device, b.size, b.dtype, base=b.base or b, offset_bytes=b.offset_bytes) for b in inputs]
        stand_ins = []
        left_aliases = iter(aliases)
        for t in tensors:
            names = {b: name_for(next(left_aliases)) for b in memory_of(t.uop)}
            stand_ins.append(t.replace_uop(t.uop.substitute(names)))
        new_args, new_kwargs = replaced((args, kwargs), iter(stand_ins))
        before = {id(t): (weakref.ref(t), t.uop) for t in alive()}
        capture = Capture()
        local.capture, noted.assignments = capture, []
        try:
            out = self.function(*new_args, **new_kwargs)
            results = list(tensors_in(out))
            own = {b for t in stand_ins for b in memory_of(t.uop)} | set(noted.assignments)
            left = [*results, *_left_behind(before, results, own, capture)]
            if left:
                left[0].realize(*left[1:])
        finally:
            local.capture = noted.assignments = None
        self._refuse_rebinding(capture, before)
        number = {id(a): i for i, a in enumerate(aliases)}
        c = self._recorded(capture, aliases, signature, out, results)
        c.layouts = _layouts(tensors)
        del new_args, new_kwargs, stand_ins
        self._refuse_aliases(c, inputs)
        self.captured = c
        own_nodes = [b for t in tensors for b in memory_of(t.uop)]
        for t in results:  # the caller's inputs come back as themselves
            back = {b: number.get(id(storage_of(b))) for b in memory_of(t.uop)}
            t.uop = t.uop.substitute({b: own_nodes[i] for b, i in back.items() if i is not None})
        renew([*c.state.values(), *[inputs[i] for i in c.written_inputs]])
        return out

    def _recorded(
        self, capture: Capture, aliases: list[Buffer], signature: tuple[Any, ...], out: Any, results: list[Tensor]
    ) -> Captured:
        """The batch of what a capture ran. It holds none of the memory that its inputs, results and intermediates had
        in the captured run."""
        produced = {id(b) for launch in capture.launches for b in launch.buffers[: launch.item.outputs]}
        made = {id(b) for b in capture.made}
        number = {id(a): i for i, a in enumerate(aliases)}
        fresh: list[Buffer] = []
        outputs: list[tuple[UOp, tuple[int | None, ...]]] = []
        for t in results:
            places: list[int | None] = []  # of each of its buffers (one a device)
            names: dict[UOp, UOp] = {}
            for node in memory_of(t.uop):
                buffer = storage_of(node)
                if id(buffer) in number:
                    places.append(number[id(buffer)])
                elif id(buffer) in made and id(buffer) in produced:
                    if buffer not in fresh:
                        fresh.append(buffer)
                    places.append(len(aliases) + fresh.index(buffer))
                else:
                    places.append(None)
                    continue
                names[node] = UOp.new_buffer(node.arg.device, node.arg.size, node.dtype)
            outputs.append((t.uop.substitute(names), tuple(places)))
        kept = {
            id(b)
            for launch in capture.launches
            for b in launch.buffers
            if id(b.base or b) not in made and id(b) not in made
        }
        capture.graphs = []  # they hold the nodes of all that was realized on the way
        kept |= capture.held() - {id(b) for b in fresh}
        state, written_inputs, used = touched(capture.launches, aliases, kept)
        empty = {id(b): Buffer(b.device, b.size, b.dtype) for b in [*aliases, *fresh]}  # stand for those of each call
        for launch in capture.launches:
            launch.buffers = [empty.get(id(b), b) for b in launch.buffers]
        places_in = [empty[id(b)] for b in aliases]
        places_out = [empty[id(b)] for b in fresh]
        capture.made, capture.nodes = [], []
        batch = Batch(capture, places_in, places_out, kept)
        template = replaced(out, itertools.repeat(Tensor(0)))
        c = Captured(signature, batch, template, outputs, places_out)
        c.state, c.written_inputs, c.used = state, written_inputs, used
        return c

    def _refuse_layouts(self, c: Captured, tensors: list[Tensor]) -> None:
        """JitError where an input is split over its devices in another way than the captured one."""
        for i, (expected, found) in enumerate(zip(c.layouts or (), _layouts(tensors) or (), strict=True)):
            if expected != found:
                raise JitError(
                    f"{name_of(self.function)} was captured with {expected} of tensor {i} of its arguments and was "
                    f"called with {found}: shard it the same way, or make another jit of it for these arguments"
                )

    def _refuse_aliases(self, c: Captured, inputs: list[Buffer]) -> None:
        """JitError where the memory of an input is written under another name: the batch knows no order between the
        two.
        """
        if not c.state and not c.written_inputs:
            return
        if c.guarded is None:
            c.guarded = Area([span_of(b) for b in c.state.values()])
        spans = {k: span_of(inputs[k]) for k in c.used}
        i = next((k for k, s in spans.items() if c.guarded.meets(s)), None)
        i = written_twice(spans, set(c.written_inputs)) if i is None else i
        if i is not None:
            raise JitError(
                f"{name_of(self.function)} writes into the memory of tensor {i} of its arguments "
                "by another name (an attribute, a "
                "closure, a second argument): use one name for it, or pass a clone()"
            )

    def _refuse_rebinding(self, capture: Capture, before: dict[int, tuple[weakref.ref[Tensor], UOp]]) -> None:
        """JitError where a tensor that the batch reads from outside is gone now: its name stands for another tensor."""
        gone = {uop for ref, uop in before.values() if ref() is None and uop.device is not None}
        if not gone:
            return
        gone -= {t.uop for t in alive()}
        for u in toposort(capture.graphs, lambda n: n not in gone):
            if u in gone:
                raise JitError(
                    f"{name_of(self.function)} reads a tensor of shape {u.shape}, {u.dtype.name}, "
                    "and binds its name to another one: "
                    "a replay would read the old one again; write into it with assign()"
                )

    # --- replay ---

    def _replay(self, c: Captured, signature: tuple[Any, ...], tensors: list[Tensor], values: dict[str, int]) -> R:
        if signature != c.signature:
            raise JitError(_difference(self.function, c.signature, signature))
        inputs = _input_buffers(tensors)
        if c.layouts is not None or any(isinstance(t.device, tuple) for t in tensors):
            self._refuse_layouts(c, tensors)
        self._refuse_aliases(c, inputs)
        fresh = [Buffer(b.device, b.size, b.dtype) for b in c.fresh]
        buffers = inputs + fresh
        c.batch.run(buffers, values)
        if c.runs != local.runs:  # something was computed from the old contents and may still be found by its graph
            renew([*c.state.values(), *[inputs[i] for i in c.written_inputs]])
            c.runs = local.runs
        nodes: dict[int, UOp] = {}
        results = []
        own_nodes = [b for t in tensors for b in memory_of(t.uop)]
        for uop, places in c.outputs:
            names: dict[UOp, UOp] = {}
            for b, which in zip(memory_of(uop), places, strict=True):
                if which is None:
                    if id(b.storage) in c.state:
                        names[b] = name_for(b.storage)
                elif which < len(inputs):
                    names[b] = own_nodes[which]
                else:
                    if which not in nodes:
                        nodes[which] = name_for(buffers[which])
                    names[b] = nodes[which]
            results.append(Tensor(uop.substitute(names)))
        return replaced(c.template, iter(results))  # type: ignore[no-any-return]


def touched(
    launches: list[Launch], inputs: list[Buffer], kept: set[int]
) -> tuple[dict[int, Buffer], list[int], list[int]]:
    """(memory of `kept` that launches write, by identity; the inputs that they write; the inputs that they touch)."""
    number = {id(a): i for i, a in enumerate(inputs)}
    state: dict[int, Buffer] = {}
    written_inputs = []
    for launch in launches:
        for b in launch.buffers[: launch.item.outputs]:
            if id(b) in number:
                written_inputs.append(number[id(b)])
            elif id(b) in kept:
                state[id(b)] = b
                if b.base is not None:  # tensors may see the whole of it
                    state[id(b.base)] = b.base
    used = sorted({number[id(b)] for launch in launches for b in launch.buffers if id(b) in number})
    return state, written_inputs, used


def realize_assignments() -> None:
    """What has been assigned to tensors and waits to be computed is."""
    waiting = [t for t in alive() if _is_assigned(t.uop)]
    if waiting:
        waiting[0].realize(*waiting[1:])


def _left_behind(
    before: dict[int, tuple[weakref.ref[Tensor], UOp]], results: list[Tensor], own: set[UOp], capture: Capture
) -> list[Tensor]:
    """What a capture leaves to be computed besides its results: tensors bound to names outside, pending assignments.

    `own` are the nodes of its inputs and assignments: what depends on none of them or of what it computed is another
    thread's.
    """
    listed = {id(t) for t in results}

    def pending() -> list[Tensor]:
        ours = own | {n for n in [ref() for ref, _ in capture.nodes] if n is not None}
        out = []
        for t in alive():
            ref, uop = before.get(id(t), (None, None))
            if (
                ref is not None
                and ref() is t
                and uop is t.uop
                or id(t) in listed
                or is_realized(t.uop)
                or t.uop.storage is not None
            ):
                continue
            if any(n in ours for n in t.uop.toposort()):
                out.append(t)
        return out

    if not pending():
        return []
    gc.collect()  # not what only waits to be collected
    return pending()


def _is_assigned(u: UOp) -> bool:
    while u.op in OpGroup.MOVEMENT:
        u = u.src[0]
    return u.op is Ops.AFTER and u.storage is None


def _input_buffers(tensors: list[Tensor]) -> list[Buffer]:
    """Realized, whole, in order: the buffer of each input tensor. A view gets a copy first; inputs that are none stay
    as they are.
    """
    todo = [t for t in tensors if not _is_whole(t.uop)]
    if todo:
        for t, uop in zip(todo, realize_uops([_whole(t.uop) for t in todo], [t.device for t in todo]), strict=True):
            t.uop = uop
    return [storage_of(b) for t in tensors for b in memory_of(t.uop)]


def _is_whole(u: UOp) -> bool:
    return is_sharded_storage(u) or (is_flat_view(u) and u.base.op is Ops.BUFFER and u.op is not Ops.AFTER)


def _whole(u: UOp) -> UOp:
    view = u
    while view.op in OpGroup.MOVEMENT:
        view = view.src[0]
    return u if u.op is Ops.AFTER or is_flat_view(u) else UOp(Ops.CONTIGUOUS, (u,))


def _layouts(tensors: list[Tensor]) -> list[Layout | None] | None:
    """How each realized input lies on its devices; None where all lie on one."""
    if not any(isinstance(t.device, tuple) for t in tensors):
        return None
    return [layout_of(t.uop) for t in tensors]


def name_for(memory: Buffer) -> UOp:
    """A fresh node that stands for `memory`."""
    node = UOp.new_buffer(memory.device, memory.size, memory.dtype)
    node.storage = memory
    return node


def _difference(function: Any, expected: tuple[Any, ...], found: tuple[Any, ...]) -> str:
    name = name_of(function)
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
        return f"{name} was captured with {e[0]} = {_describe(e)} and was called with {_describe(f)}: {advice}"
    return f"{name} was captured with other arguments: {advice}"


def _parameter_names(function: Any) -> list[str]:
    try:
        kinds = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in kinds if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def name_of(function: Any) -> str:
    """What a function is called in messages."""
    return getattr(function, "__name__", None) or repr(function)


def _describe(k: tuple[Any, ...]) -> str:
    if k[1] == "tensor":
        return f"a tensor of shape {k[2]}, {k[3].name} on {k[4]}"
    return " ".join(str(v) for v in k[1:])


def jit(function: Callable[P, R]) -> Jit[P, R]:
    """Decorator: see `Jit`."""
    return Jit(function)
