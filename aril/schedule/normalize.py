"""From the user's graph to the key of its schedule: storage becomes numbered parameters, bound variables lose their
values.

Graphs of one structure over different buffers normalise to the same node, which is what the schedule cache looks up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from aril.ops import Ops
from aril.uop import UOp
from aril.uop.function import bind


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
    sink = UOp.sink(*roots, arg=devices)
    effects: list[UOp] = []
    done: dict[UOp, Any] = {}  # a call's is the tuple of its results
    buffers: list[UOp] = []
    values: dict[str, int] = {}
    together: list[UOp] = []
    stack: list[tuple[UOp, bool]] = [(sink, False)]
    while stack:
        u, visited = stack.pop()
        if u in done:
            continue
        if visited:
            if u.op is Ops.FUNCTION:  # its body, written over the arguments
                done[u] = bind(u, [done[s] for s in u.src[1:]])
                continue
            if u.op is Ops.GETTUPLE and u.src[0].op is Ops.FUNCTION:
                done[u] = done[u.src[0]][u.arg]
                continue
            sources = tuple([done[s] for s in u.src])
            if u.op is Ops.AFTER:  # its tag only tells it from one of the same reading that has run
                effects.append(u)
                done[u] = UOp(Ops.AFTER, sources)
            elif u.op in (Ops.REDUCE, Ops.SCATTER) and u.tag is not None:  # asked for anew; computed once all the same
                done[u] = UOp(u.op, sources, u.arg)
            else:
                done[u] = u.with_src(sources)
                if u.op is Ops.COLLECTIVE:
                    together.append(u)
        elif u.op is Ops.BUFFER:
            done[u] = UOp(Ops.PARAM, (), u.arg._replace(slot=len(buffers)), u.dtype)
            buffers.append(u)
        elif u.storage is not None and (
            u.op is Ops.AFTER or stands(u)
        ):  # a value that has been realized: the view of its buffer stands for it
            view = u.storage
            if view in done:
                done[u] = done[view]
            else:
                stack.append((u, False))
                stack.append((view, False))
        elif u.op is Ops.BIND:
            variable, value = u.unbind()
            name = variable.arg.name
            if values.setdefault(name, value) != value:
                raise ValueError(
                    f"variable {name!r} is bound to {values[name]} and to {value} in one computation; bind it once"
                )
            done[u] = variable
        elif not u.src:
            done[u] = u
        else:
            stack.append((u, True))
            stack.extend([(s, False) for s in reversed(u.src[1:] if u.op is Ops.FUNCTION else u.src)])
    graph = _renumbered(done[sink]) if together else done[sink]
    return Normalized(graph, buffers, values, effects)


def _renumbered(graph: UOp) -> UOp:
    """Collectives count from 0: graphs of one structure are one, and keep the order in which they were written."""
    order = graph.toposort()
    serials = {s: i for i, s in enumerate(sorted({u.arg.serial for u in order if u.op is Ops.COLLECTIVE}))}
    done: dict[UOp, UOp] = {}
    for u in order:
        new = u.with_src(tuple([done[s] for s in u.src])) if u.src else u
        done[u] = new.replace(arg=u.arg._replace(serial=serials[u.arg.serial])) if u.op is Ops.COLLECTIVE else new
    return done[graph]
