"""`jit`: capture the kernels a function launches, then replay them with new inputs as one native call.

In: a function of tensors. The first call runs it as it is, the second captures, later ones replay.
"""

from __future__ import annotations

import functools
import gc
import itertools
import os
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Generic, ParamSpec, TypeVar, overload

from aril.config import BEAM, JIT, JITBEAM, Context, unwatched
from aril.device import Buffer
from aril.engine.capture import Capture, JitError, capturing, local
from aril.engine.launch import Launch
from aril.engine.lock import locked, noted
from aril.engine.realize import is_realized, storage_of
from aril.engine.replay import Batch, root_of
from aril.forks import renewed_in_child
from aril.jit_arguments import (
    Arguments,
    arguments,
    difference,
    flatten,
    parameter_names,
    reached,
    shared,
    stand_ins,
)
from aril.jit_calls import Captured
from aril.nested import replaced
from aril.nested import tensors as tensors_in
from aril.ops import OpGroup, Ops
from aril.schedule.shard import Layout, layout_of, memory_of
from aril.tensor import Tensor
from aril.tensor_alive import alive, is_storage_view, place_of, set_node
from aril.tensor_memory import own_memory, realize, renew, set_apart
from aril.uop import UOp
from aril.uop.order import toposort

P = ParamSpec("P")
R = TypeVar("R")
SHARINGS = 8  # captures of one function besides the first


class Jit(Generic[P, R]):
    """A captured function. Call it like the function; `reset()` forgets the capture.

    Tensors may stand anywhere in lists, tuples and dicts of the arguments; bound variables are inputs too. Every
    other argument is part of what was captured and must not change. In-place updates of tensors the function reaches
    by closure or attribute are part of the batch. Results are fresh tensors at every call. A call whose arguments share
    memory that is written, with each other or with what the function reaches, in another way than before is captured
    anew. With `prune`, kernels that depend on no argument and on nothing that the batch writes are left out of
    replays: what they computed at the capture stays.
    Errors: JitError where shapes, dtypes, devices or other arguments differ from the captured ones, and where the
    function reads a tensor's value while being captured.
    """

    def __init__(self, function: Callable[P, R], prune: bool = False) -> None:
        if not callable(function):
            raise TypeError(f"jit: a function is needed, not {function!r}")
        self.function, self.prune = function, prune
        self.calls = 0
        self.captured: Captured | None = None
        self.others: list[Captured] = []  # for calls that share memory in other ways
        self.of_owner: dict[int, tuple[weakref.ref[Any], Jit[P, R]]] = {}  # of a method: one for each object
        self.names = parameter_names(function)
        self.lock = renewed_in_child(
            self, "lock"
        )  # calls of one capture come one after the other: they share its records
        functools.update_wrapper(self, function)

    def __get__(self, owner: object, kind: type | None = None) -> Any:
        if owner is None:
            return self
        key = id(owner)
        found = self.of_owner.get(key)
        if found is None:
            own = self.of_owner
            try:
                found = own[key] = (weakref.ref(owner, lambda _: own.pop(key, None)), Jit(self.function, self.prune))
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
        self.calls, self.captured, self.others = 0, None, []

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
        if not (unwatched.value or JIT.value) or local.capture is not None:
            return self.function(*args, **kwargs)  # inside another capture the kernels belong to the outer one
        c = self.captured
        if c is not None and c.plan is not None:
            with self.lock:
                quick = c.plan.run(args, kwargs)
            if quick is not None:
                return quick[0]  # type: ignore[no-any-return]
        tensors: list[Tensor] = []
        key: list[Any] = []
        values: dict[str, int] = {}
        names = self.names
        for i, a in enumerate(args):
            flatten(a, names[i] if i < len(names) else f"argument {i}", tensors, key, values)
        for name, a in kwargs.items():
            flatten(a, name, tensors, key, values)
        signature = tuple(key)
        if self.captured is not None:
            with self.lock:
                if signature != self.captured.signature:
                    raise JitError(difference(_place_of(self.function), self.captured.signature, signature))
                if any(c.writes_arguments for c in (self.captured, *self.others)):
                    own_memory(tensors)
                for c in (self.captured, *self.others):
                    given = self._given(c, tensors)
                    if given is not None:
                        c.expect(args, kwargs)
                        return self._replay(c, given, values)
                return self._capture(args, kwargs, signature, tensors)
        self.calls += 1
        if self.calls == 1:
            out = self.function(*args, **kwargs)
            results = list(tensors_in(out))
            if results:
                results[0].realize(*results[1:])
            return out
        return self._capture(args, kwargs, signature, tensors)

    # --- capture ---

    @locked
    def _capture(self, args: Any, kwargs: Any, signature: tuple[Any, ...], tensors: list[Tensor]) -> R:
        if len(self.others) >= SHARINGS:
            raise JitError(
                f"{_place_of(self.function)} is called with arguments that share written memory in more than "
                f"{SHARINGS} ways, each of which is captured: pass whole tensors and take views inside, or a clone()"
            )
        realize_assignments()  # those made before are no part of what is captured
        outside = reached(self.function, (args, kwargs))
        set_apart([*tensors, *outside])
        given, sharing = shared(tensors, {place_of(b) for t in outside for b in memory_of(t.uop)})
        del outside  # whether the function lets go of one of them is asked below
        inside, names = stand_ins(given, sharing)
        new_args, new_kwargs = replaced((args, kwargs), iter(inside))
        before = {id(t): (weakref.ref(t), t.uop) for t in alive()}
        capture = Capture(before={key: uop for key, (_, uop) in before.items()})
        try:
            with capturing(capture), Context(BEAM=JITBEAM.value or BEAM.value):
                out = self.function(*new_args, **new_kwargs)
                results = list(tensors_in(out))
                own = {b for t in inside for b in memory_of(t.uop)} | set(noted.assignments or ())
                left = [*results, *_left_behind(before, results, own, capture)]
                if left:
                    left[0].realize(*left[1:])
                own_memory(results)  # no two results of a replay show one value in one memory, nor what is reached
        except BaseException:  # what was assigned to the arguments before stays, as without a capture
            realize(inside)
            renew(given.buffers)
            given.put_back(range(len(given.buffers)))
            raise
        self._refuse_rebinding(capture, before)
        c = self._recorded(capture, names, signature, out, results)
        c.layouts, c.sharing = _layouts(given.tensors), None if sharing.is_plain else sharing
        c.expect(args, kwargs)
        del new_args, new_kwargs, inside
        meeting = c.meeting(given.places)
        if meeting is not None:
            raise JitError(
                f"{_place_of(self.function)} writes into the memory of {_paths(signature)[given.owner[meeting]]} "
                "by another name that could not be seen before (no closure, global, attribute or other argument): "
                "use one name for it, or pass a clone()"
            )
        if self.captured is None:
            self.captured = c
        else:
            self.others.append(c)
        _hand_back(c, given, names, results)
        return out

    def _recorded(
        self, capture: Capture, aliases: list[Buffer], signature: tuple[Any, ...], out: Any, results: list[Tensor]
    ) -> Captured:
        """The batch of what a capture ran. It holds none of the memory that its inputs, results and intermediates had
        in the captured run."""
        produced = {id(b) for launch in capture.launches for b in launch.buffers[: launch.item.outputs]}
        made = {id(b) for b in capture.made}
        number = {id(a): i for i, a in reversed(list(enumerate(aliases)))}
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
        state, reached, written_inputs, used = touched(capture.launches, aliases, kept)
        if self.prune:
            changing = [b for b in state.values() if id(root_of(b)) not in made]
            kept |= _prune(capture, {id(b) for b in [*aliases, *fresh, *changing]})
        empty = {id(b): Buffer(b.device, b.size, b.dtype) for b in [*aliases, *fresh]}  # stand for those of each call
        for launch in capture.launches:
            launch.buffers = [empty.get(id(b), b) for b in launch.buffers]
        # An entry that shares the memory of an earlier one is known by that one's name.
        places_in = [
            empty[id(b)] if number[id(b)] == i else Buffer(b.device, b.size, b.dtype) for i, b in enumerate(aliases)
        ]
        places_out = [empty[id(b)] for b in fresh]
        capture.made, capture.nodes = [], []
        batch = Batch(capture, places_in, places_out, kept)
        template = replaced(out, itertools.repeat(Tensor(0)))
        c = Captured(signature, batch, template, outputs, places_out)
        c.state, c.reached, c.written_inputs, c.used = state, reached, written_inputs, used
        return c

    def _refuse_layouts(self, c: Captured, tensors: list[Tensor]) -> None:
        """JitError where an input is split over its devices in another way than the captured one."""
        for i, (expected, found) in enumerate(zip(c.layouts or (), _layouts(tensors) or (), strict=True)):
            if expected != found:
                raise JitError(
                    f"{_place_of(self.function)} was captured with {expected} of {_paths(c.signature)[i]} and was "
                    f"called with {found}: shard it the same way, or make another jit of it for these arguments"
                )

    def _given(self, c: Captured, tensors: list[Tensor]) -> Arguments | None:
        """The arguments of a call for `c`; None where they share memory in a way for which it is not right."""
        sharing = c.sharing
        if sharing is not None and not sharing.fits(tensors):
            return None
        given = arguments(tensors, () if sharing is None else sharing.views)
        if sharing is not None and not sharing.holds(given):
            return None
        return None if c.meeting(given.places) is not None else given

    def _refuse_rebinding(self, capture: Capture, before: dict[int, tuple[weakref.ref[Tensor], UOp]]) -> None:
        """JitError where a tensor that the batch reads from outside is gone now: its name stands for another tensor."""
        gone = {uop for ref, uop in before.values() if ref() is None and uop.device is not None}
        if not gone:
            return
        gone -= {t.uop for t in alive()}
        for u in toposort(capture.graphs, lambda n: n not in gone):
            if u in gone:
                raise JitError(
                    f"{_place_of(self.function)} reads a tensor of shape {u.shape}, {u.dtype.name}, "
                    "and binds its name to another one: "
                    "a replay would read the old one again; write into it with assign()"
                )

    # --- replay ---

    def _replay(self, c: Captured, given: Arguments, values: dict[str, int]) -> R:
        if c.layouts is not None or any(isinstance(t.device, tuple) for t in given.tensors):
            self._refuse_layouts(c, given.tensors)
        out = c.replay(given.nodes, given.buffers, values)
        if given.copied:
            given.put_back(c.written_inputs)
        return out  # type: ignore[no-any-return]


def _hand_back(c: Captured, given: Arguments, names: list[Buffer], results: list[Tensor]) -> None:
    """Give the results of a captured run to the caller, whose inputs come back as themselves."""
    number = {id(b): i for i, b in reversed(list(enumerate(names)))}
    own_nodes = given.nodes
    for t in results:
        back = {b: number.get(id(storage_of(b))) for b in memory_of(t.uop)}
        set_node(t, t.uop.substitute({b: own_nodes[i] for b, i in back.items() if i is not None}))
    renew([*c.state.values(), *[given.buffers[i] for i in c.written_inputs]])
    given.put_back(c.written_inputs)


def _prune(capture: Capture, live: set[int]) -> set[int]:
    """Drop the launches that neither read nor write any memory of `live`, nor what such launches write; returns the
    identities of what they wrote, which stays.
    """
    keep: list[Launch] = []
    while True:  # a launch that goes on with what another one wrote keeps that one, too
        kept = [x for x in capture.launches if any(id(b) in live or id(root_of(b)) in live for b in x.buffers)]
        live |= {id(root_of(b)) for x in kept for b in x.buffers[: x.item.outputs]}
        if len(kept) == len(keep):
            break
        keep = kept
    written = {id(b) for x in capture.launches if x not in keep for b in x.buffers[: x.item.outputs]}
    capture.launches = keep
    return written


def touched(
    launches: list[Launch], inputs: list[Buffer], kept: set[int]
) -> tuple[dict[int, Buffer], list[Buffer], list[int], list[int]]:
    """(memory of `kept` that launches write, by identity; all of it that they touch; the inputs that they write; the
    inputs that they touch)."""
    number = {id(a): i for i, a in reversed(list(enumerate(inputs)))}
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
    outside = {id(b): b for launch in launches for b in launch.buffers if id(b) in kept and id(b) not in number}
    return state, list(outside.values()), written_inputs, used


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

    found = pending()
    if all(is_storage_view(t.uop) for t in found):  # assignments are computed in any case, whoever holds them
        return found
    gc.collect()  # not what only waits to be collected
    return pending()


def _is_assigned(u: UOp) -> bool:
    while u.op in OpGroup.MOVEMENT:
        u = u.src[0]
    return u.op is Ops.AFTER and u.storage is None


def _layouts(tensors: list[Tensor]) -> list[Layout | None] | None:
    """How each realized input lies on its devices; None where all lie on one."""
    if not any(isinstance(t.device, tuple) for t in tensors):
        return None
    return [layout_of(t.uop) for t in tensors]


def name_of(function: Any) -> str:
    """What a function is called."""
    return getattr(function, "__name__", None) or repr(function)


def _paths(signature: tuple[Any, ...]) -> list[str]:
    """Where each tensor stands in the arguments."""
    return [entry[0] for entry in signature if entry[1] == "tensor"]


def _place_of(function: Any) -> str:
    """What a function is called in messages: its name and the line it begins at."""
    code = getattr(function, "__code__", None)
    return name_of(function) + (f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else "")


@overload
def jit(function: Callable[P, R], *, prune: bool = False) -> Jit[P, R]: ...
@overload
def jit(*, prune: bool = False) -> Callable[[Callable[P, R]], Jit[P, R]]: ...
def jit(function: Any = None, *, prune: bool = False) -> Any:
    """Decorator: see `Jit`. `@jit` or `@jit(prune=True)`.

    >>> double = jit(lambda x: x * 2)
    >>> [double(Tensor([v])).tolist() for v in (1.0, 2.0, 3.0)]
    [[2.0], [4.0], [6.0]]
    """
    return Jit(function, prune) if function is not None else lambda f: Jit(f, prune)
