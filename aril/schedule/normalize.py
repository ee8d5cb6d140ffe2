"""From the user's graph to the key of its schedule: storage becomes numbered parameters, bound variables lose their
values.

Graphs of one structure over different buffers normalise to the same node, which is what the schedule cache looks up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from aril.ops import Ops
from aril.uop import UOp
from aril.uop.args import ParamArg
from aril.uop.function import bind
from aril.uop.pattern import Pat, Rules
from aril.uop.rewrite import rewrite


class Normalized(NamedTuple):
    """`graph`: the SINK over parameters; `buffers[i]`: the BUFFER node behind parameter i; `values`: bound variables;
    `effects`: the user's AFTER nodes that running the graph fulfils, the earliest first."""

    graph: UOp
    buffers: list[UOp]
    values: dict[str, int]
    effects: list[UOp]


def normalize(
    roots: list[UOp], devices: tuple[str, ...] | None = None, stands: Callable[[UOp], bool] = lambda u: True
) -> Normalized:
    """`devices[i]` is where root i goes if nothing in it has a device; it becomes the argument of the SINK.

    A node that has been realized is read where its value lies, if `stands` says so; else it is computed again.

    Errors: ValueError where one variable is bound to two values in the same graph.
    """
    effects: list[UOp] = []
    done: dict[UOp, Any] = {}  # a call's is the tuple of its results
    buffers: list[UOp] = []
    values: dict[str, int] = {}
    together: list[UOp] = []
    memory: dict[int, UOp] = {}  # by identity: the first BUFFER node over it
    stack = roots[::-1]
    entered: set[UOp] = set()
    while stack:
        u = stack[-1]
        if u in done:
            stack.pop()
        elif u in entered:
            stack.pop()
            if u.op in _CHANGED:
                done[u] = _changed(u, done, effects, together)
            else:  # sources of the same dtypes in the same order: its own stays
                src = tuple([done[s] for s in u.src])
                done[u] = u if src == u.src else UOp(u.op, src, u.arg, u.dtype, u.tag)
                if u.origin is not None:
                    done[u].origin = u.origin
        elif u.op is Ops.BUFFER:
            stack.pop()
            first = memory.setdefault(id(u.storage), u) if u.storage is not None else u
            if first is not u and first in done:
                done[u] = done[first]  # another name of the same memory: reads and writes of both have one order
                continue
            done[u] = UOp(Ops.PARAM, (), ParamArg(len(buffers), *u.arg[1:]), u.dtype)
            buffers.append(u)
        elif u.storage is not None and (
            u.op is Ops.AFTER or stands(u)
        ):  # a value that has been realized: the view of its buffer stands for it
            view = u.storage
            if view in done:
                stack.pop()
                done[u] = done[view]
            else:
                stack.append(view)
        elif u.op is Ops.BIND:
            stack.pop()
            variable, value = u.unbind()
            name = variable.arg.name
            if values.setdefault(name, value) != value:
                raise ValueError(
                    f"variable {name!r} is bound to {values[name]} and to {value} in one computation; bind it once"
                )
            done[u] = variable
        elif not u.src:
            stack.pop()
            done[u] = u
        else:
            entered.add(u)
            stack.extend([s for s in (u.src[:0:-1] if u.op is Ops.FUNCTION else u.src[::-1]) if s not in done])
    graph = UOp(Ops.SINK, tuple([done[r] for r in roots]), devices)
    graph = _renumbered(graph) if together else graph
    return Normalized(graph, buffers, values, effects)


_CHANGED = frozenset({Ops.FUNCTION, Ops.GETTUPLE, Ops.AFTER, Ops.REDUCE, Ops.SCATTER, Ops.COLLECTIVE})


def _changed(u: UOp, done: dict[UOp, Any], effects: list[UOp], together: list[UOp]) -> Any:
    """What becomes of a node of `_CHANGED`, whose sources are done."""
    if u.op is Ops.FUNCTION:  # its body, written over the arguments
        return bind(u, [done[s] for s in u.src[1:]])
    if u.op is Ops.GETTUPLE and u.src[0].op is Ops.FUNCTION:
        return done[u.src[0]][u.arg]
    sources = tuple([done[s] for s in u.src])
    if u.op is Ops.AFTER:  # its tag only tells it from one of the same reading that has run
        effects.append(u)
        return UOp(Ops.AFTER, sources)
    if u.op in (Ops.REDUCE, Ops.SCATTER) and u.tag is not None:  # asked for anew; computed once all the same
        return UOp(u.op, sources, u.arg)
    new = u.with_src(sources)
    if new.op is Ops.COLLECTIVE:
        together.append(new)
    return new


def _renumbered(graph: UOp) -> UOp:
    """Collectives count from 0: graphs of one structure are one, and keep the order in which they were written."""
    together = {u.arg.serial for u in graph.toposort() if u.op is Ops.COLLECTIVE}
    serials = {s: i for i, s in enumerate(sorted(together))}
    return rewrite(graph, _SERIALS, serials, once=True)


def _with_serial(ctx: dict[int, int], u: UOp) -> UOp:
    return u.replace(arg=u.arg._replace(serial=ctx[u.arg.serial]))


_SERIALS = Rules([(Pat(Ops.COLLECTIVE, name="u"), _with_serial)], name="number collectives")
