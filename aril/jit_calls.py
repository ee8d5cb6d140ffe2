"""What was captured, and the short way of a call that is like the captured one.

In: arguments. Out: results, or the word that the call has to be looked at more closely. `Captured` is a batch with what
it expects; `Plan` is a list of what to compare in the arguments of a call, and what to run and give back.
`docs/decisions/0015-short-calls.md` says what the short way may skip.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from aril.device import Buffer
from aril.engine.commands import span_of
from aril.engine.hazards import Area, written_twice
from aril.engine.realize import Runs, is_realized
from aril.engine.replay import Batch
from aril.jit_arguments import Sharing, name_for, value_key
from aril.nested import replaced
from aril.ops import Ops
from aril.schedule.shard import Layout, memory_of
from aril.tensor import Tensor
from aril.tensor_alive import is_twin
from aril.tensor_memory import keep_values, renew, settle
from aril.uop import UOp

APART = 256  # sets of addresses that are remembered as being apart from all that is written


class Captured:
    """One captured batch with what it expects and how its results are rebuilt."""

    __slots__ = (
        "_apart",
        "_guarded",
        "_lone",
        "_one",
        "_outside",
        "_written",
        "batch",
        "fresh",
        "layouts",
        "outputs",
        "plan",
        "reached",
        "runs",
        "sharing",
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
        self.reached: list[Buffer] = []  # all memory from outside that it touches
        self._guarded: tuple[Area, Area] | None = None  # the bytes of what it writes there, and of all
        self._apart: set[tuple[int, ...]] = set()  # addresses of inputs that do not meet them
        self._outside: set[int] | None = None  # the identities of the memory that holds it
        self._written: set[int] = set()  # and of that of it which is written
        self.written_inputs: list[int] = []
        self.layouts: list[Layout | None] | None = None  # of the inputs, where some are split over devices
        self.used: list[int] = []  # the inputs that its kernels touch
        self.sharing: Sharing | None = None  # of memory by the inputs; None: each has its own
        self.runs = -1  # `Runs.count` when the nodes of what is written were last renewed
        self.plan: Plan | None = None
        places = [p[0] for _, p in outputs if len(p) == 1]
        first = len(batch.keep) - len(fresh)
        # Results that show fresh memory which no other result shows: their nodes are made when asked for.
        self._lone = [
            len(p) == 1 and p[0] is not None and p[0] >= first and places.count(p[0]) == 1 and _is_one_view(u)
            for u, p in outputs
        ]
        self._one = template.__class__ is Tensor and self._lone == [True] and len(fresh) == 1

    def expect(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take the short way for calls like this one, if there is one: each input has memory of its own, on one
        device."""
        if self.plan is None and self.sharing is None and self.layouts is None:
            self.plan = Plan(self, args, kwargs)

    @property
    def writes(self) -> bool:
        """Whether the batch writes to memory of its inputs or of what it reaches."""
        return bool(self.state or self.written_inputs)

    @property
    def writes_arguments(self) -> bool:
        """Whether the batch may write to memory of its inputs: as theirs, or as that of what it reaches."""
        return bool(self.written_inputs or self.state and self.sharing is not None and self.sharing.bound)

    def meeting(self, places: Sequence[Buffer]) -> int | None:
        """The number of an entry whose memory the batch writes by another name, so that it knows no order between the
        two. `places` is the memory of the entries."""
        if not self.writes:
            return None
        addresses = tuple([places[k].opaque for k in self.used])
        if addresses in self._apart:
            return None
        if self._guarded is None:
            self._guarded = Area([span_of(b) for b in self.state.values()]), Area([span_of(b) for b in self.reached])
        spans, written = {k: span_of(places[k]) for k in self.used}, set(self.written_inputs)
        i = next((k for k, s in spans.items() if self._guarded[k in written].meets(s)), None)
        i = written_twice(spans, written) if i is None else i
        if i is None:
            if len(self._apart) >= APART:
                self._apart.clear()
            self._apart.add(addresses)
        return i

    def replay(self, nodes: Sequence[UOp], inputs: list[Buffer], values: dict[str, int]) -> Any:
        """Run the batch with the memory `inputs`, named by `nodes`; the results in their containers."""
        if self._outside is None:
            self._outside = {id(b.base or b) for b in self.reached}
            if self.state:
                self._written = {id(b.base or b) for b in self.state.values()}
        settle(self._outside)
        if self.state or self.written_inputs:  # what is still to be computed from the old contents
            if self.written_inputs:
                given = [inputs[i] for i in self.written_inputs]
                places = self._written.union([id(b.base or b) for b in given])
                keep_values(places, [nodes[i] for i in self.written_inputs])
            else:
                keep_values(self._written)
        buffers = [*inputs, *[Buffer(b.device, b.size, b.dtype) for b in self.fresh]]
        self.batch.run(buffers, values)
        if self.runs != Runs.count:  # something was computed from the old contents and may still be found by its graph
            if self.writes:
                renew([*self.state.values(), *[inputs[i] for i in self.written_inputs]])
            self.runs = Runs.count
        if self._one:
            return unnamed(buffers[-1], self.outputs[0][0])
        names: dict[int, UOp] = {}
        results = [
            unnamed(buffers[places[0]], uop)  # type: ignore[index]
            if lone
            else self._result(uop, places, nodes, buffers, names)
            for (uop, places), lone in zip(self.outputs, self._lone, strict=True)
        ]
        return results[0] if self.template.__class__ is Tensor else replaced(self.template, iter(results))

    def _result(
        self,
        uop: UOp,
        places: tuple[int | None, ...],
        nodes: Sequence[UOp],
        buffers: list[Buffer],
        made: dict[int, UOp],
    ) -> Tensor:
        names: dict[UOp, UOp] = {}
        for b, which in zip(memory_of(uop), places, strict=True):
            if which is None:
                if id(b.storage) in self.state:
                    names[b] = name_for(b.storage)
            elif which < len(nodes):
                names[b] = nodes[which]
            else:
                if which not in made:
                    made[which] = name_for(buffers[which])
                names[b] = made[which]
        return Tensor(uop.substitute(names))


def unnamed(memory: Buffer, view: UOp) -> Tensor:
    """A tensor over `memory` that nothing else shows: `view`, over some node, with a node for it. Both are made when
    its `uop` is first asked for; before that no graph can hold it, so it need not be found among those alive."""
    t = object.__new__(Tensor)
    t._device, t._waiting = memory.device, (memory, view)
    t.grad = t._is_param = t._history = None
    return t


def _is_one_view(u: UOp) -> bool:
    return is_realized(u) and u.base.op is Ops.BUFFER


_TENSOR, _VARIABLE, _VALUE, _OBJECT, _SEQUENCE, _MAPPING = range(6)


class Plan:
    """What calls of one signature have in common, found once from the arguments of one of them."""

    __slots__ = ("captured", "expected", "names", "writes")

    def __init__(self, captured: Captured, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.captured, self.names = captured, tuple(kwargs)
        self.expected = _expected([*args, *kwargs.values()])
        self.writes = captured.writes

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any] | None:
        """What the call gives, in a tuple; None for one that is not known to be like the captured one."""
        if kwargs:
            if tuple(kwargs) != self.names:
                return None
            args = (*args, *kwargs.values())
        nodes: list[UOp] = []
        buffers: list[Buffer] = []
        values: dict[str, int] = {}
        if len(args) != len(self.expected) or not _fits(args, self.expected, nodes, buffers, values):
            return None
        c = self.captured
        if self.writes:
            if c.meeting(buffers) is not None:
                return None
            for i in c.written_inputs:
                if is_twin(nodes[i]):
                    return None
        return (c.replay(nodes, buffers, values),)


def _expected(things: Iterable[Any]) -> tuple[tuple[Any, ...], ...]:
    """For each argument (its class, the kind of comparison, and three things to compare with)."""
    out: list[tuple[Any, ...]] = []
    for x in things:
        cls: Any = x.__class__
        if isinstance(x, Tensor):
            out.append((cls, _TENSOR, x.shape, x.dtype, x.device))
        elif isinstance(x, UOp) and x.op is Ops.BIND:
            out.append((cls, _VARIABLE, x.src[0], None, None))
        elif isinstance(x, (list, tuple)):
            out.append((cls, _SEQUENCE, _expected(x), None, None))
        elif isinstance(x, dict):
            out.append((cls, _MAPPING, tuple(x), _expected(x.values()), None))
        elif isinstance(x, (int, float, bool, str, bytes, type(None))):
            plain = cls in (int, bool, str, bytes, type(None))
            out.append((cls, _VALUE, x if plain else value_key("", x), not plain, None))
        else:
            out.append((cls, _OBJECT, id(x), None, None))
    return tuple(out)


def _fits(
    things: Iterable[Any], expected: Iterable[Any], nodes: list[UOp], buffers: list[Buffer], values: dict[str, int]
) -> bool:
    """Whether arguments are as expected, their tensors whole memory of one device each. Collects that memory, its
    nodes and the values of variables."""
    for x, (cls, kind, a, b, c) in zip(things, expected):  # noqa: B905  # of one length, as their reader has seen
        if x.__class__ is not cls:
            return False
        if kind == _TENSOR:
            u = x.uop
            if u.dtype is not b or x._device != c or (u._shape or u.shape) != a:
                return False
            while u.op is Ops.RESHAPE:
                u = u.src[0]
            if u.op is not Ops.BUFFER or u.storage is None:
                return False
            nodes.append(u)
            buffers.append(u.storage)
        elif kind == _VARIABLE:
            if x.op is not Ops.BIND or x.src[0] is not a:
                return False
            values[a.arg.name] = x.src[1].arg
        elif kind == _VALUE:
            if (value_key("", x) if b else x) != a:
                return False
        elif kind == _SEQUENCE:
            if len(x) != len(a) or not _fits(x, a, nodes, buffers, values):
                return False
        elif kind == _MAPPING:
            if tuple(x) != a or not _fits(x.values(), b, nodes, buffers, values):
                return False
        elif id(x) != a:
            return False
    return True


__all__ = ["Captured", "Plan"]
