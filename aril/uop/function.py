"""Functions in the graph: FUNCTION(TUPLE of results over parameters, arguments...), its results taken by GETTUPLE.

In come results and the parameters they are written in; out go nodes of a call, and graphs in which calls have been
replaced by their bodies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from aril.dtype import strong
from aril.ops import OpGroup, Ops
from aril.uop.node import UOp, view_flat


class FunctionArg(NamedTuple):
    """A function's name, and its own gradient if it has one: (result gradients, arguments) -> argument gradients."""

    name: str
    grad: Callable[[tuple[UOp, ...], tuple[UOp, ...]], Sequence[UOp | None]] | None = None

    def __repr__(self) -> str:
        return f"FunctionArg({self.name!r})"


def stand_in(u: UOp) -> UOp:
    """Fresh storage of the shape, dtype and device of `u`, unlike any other node."""
    size = math.prod([d if isinstance(d, int) else int(d.vmax) for d in u.shape])
    # a value of constants only has no device, and neither has what stands for it
    return view_flat(UOp.new_buffer(u.device, size, strong(u.dtype)), u.shape)  # type: ignore[arg-type]


def call(results: Sequence[UOp], inputs: Sequence[UOp], args: Sequence[UOp], arg: FunctionArg) -> tuple[UOp, ...]:
    """The results of a function applied to `args`; `results` are written in `inputs` (stand-ins of the arguments).

    What the body computes or reads without its inputs (weights of a layer) becomes further arguments, so that bodies of
    one structure are one node and gradients reach what they close over.
    """
    inner = {i: a.param_like(n) for n, (i, a) in enumerate(zip(inputs, args, strict=True))}
    outer = list(args)
    for free in _free_of(results, set(inputs)):
        inner[free] = free.param_like(len(outer))
        outer.append(free)
    body = UOp(Ops.TUPLE, tuple(results)).substitute(inner)
    node = UOp(Ops.FUNCTION, (body, *outer), arg)
    return tuple([UOp(Ops.GETTUPLE, (node,), n) for n in range(len(results))])


def _free_of(results: Sequence[UOp], inputs: set[UOp]) -> list[UOp]:
    """The largest parts of a body that depend on no input and on some storage, in the order met."""
    bound: set[UOp] = set(inputs)  # depends on an input
    stored: set[UOp] = set()  # depends on storage other than the inputs
    used: list[UOp] = []  # by what depends on an input
    done: set[UOp] = set(inputs)
    stack: list[tuple[UOp, bool]] = [(r, False) for r in reversed(results)]
    while stack:
        u, visited = stack.pop()
        if u in done:
            continue
        sources = outer_sources(u)
        if not visited:
            stack.append((u, True))
            stack.extend([(s, False) for s in reversed(sources) if s not in done])
            continue
        done.add(u)
        if any(s in bound for s in sources):
            bound.add(u)
            used += sources
        if u.op in OpGroup.STORAGE and not u.is_variable or any(s in stored for s in sources):
            stored.add(u)
    return list(dict.fromkeys([s for s in (*used, *results) if s in stored and s not in bound]))


def outer_sources(u: UOp) -> tuple[UOp, ...]:
    """The sources of a node in the graph it stands in: of a call its arguments, not its body."""
    return u.src[1:] if u.op is Ops.FUNCTION else u.src


def bind(node: UOp, args: Sequence[UOp]) -> tuple[UOp, ...]:
    """The results of the FUNCTION `node` with `args` for its parameters, calls inside it replaced as well."""
    mapping = {a.param_like(n): value for n, (a, value) in enumerate(zip(node.src[1:], args, strict=True))}
    return inline(node.src[0]).substitute(mapping).src


def inline(root: UOp) -> UOp:
    """The graph with every call replaced by its body. A function inside a function costs one level of recursion."""
    done: dict[UOp, Any] = {}
    stack: list[tuple[UOp, bool]] = [(root, False)]
    while stack:
        u, visited = stack.pop()
        if u in done:
            continue
        sources = outer_sources(u)
        if not visited and sources:
            stack.append((u, True))
            stack.extend([(s, False) for s in reversed(sources) if s not in done])
        elif u.op is Ops.FUNCTION:
            done[u] = bind(u, [done[s] for s in sources])
        elif u.op is Ops.GETTUPLE and isinstance(done[u.src[0]], tuple):
            done[u] = done[u.src[0]][u.arg]
        else:
            done[u] = u.with_src(tuple([done[s] for s in sources]))
    return done[root]  # type: ignore[no-any-return]
