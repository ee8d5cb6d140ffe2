"""Walks over a graph without recursion: nodes in order, sources first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aril.uop.node import UOp


def toposort(roots: Iterable[UOp], enter: Callable[[UOp], bool] | None = None) -> dict[UOp, None]:
    """Nodes reachable from `roots`, sources first, each once; `enter` as in `UOp.toposort`."""
    out: dict[UOp, None] = {}
    stack: list[UOp | None] = list(roots)
    stack.reverse()
    pop, push = stack.pop, stack.append
    while stack:
        u = pop()
        if u is None:  # all that the one below it needs is listed
            u = pop()
            out[u] = None  # type: ignore[index]
        elif u not in out:
            sources = u.src
            if not sources or (enter is not None and not enter(u)):
                out[u] = None
                continue
            push(u)
            push(None)
            if len(sources) == 1:
                if sources[0] not in out:
                    push(sources[0])
            else:
                for s in sources[::-1]:
                    if s not in out:
                        push(s)
    return out


def use_counts(order: Iterable[UOp]) -> dict[UOp, int]:
    """How often each node is a source of the nodes of `order`; those that never are have no entry."""
    out: dict[UOp, int] = {}
    for u in order:
        for s in u.src:
            out[s] = out.get(s, 0) + 1
    return out


def pending(root: UOp, slot: str) -> Iterator[UOp]:
    """The nodes below `root` whose cached `slot` is not known yet, sources first."""
    stack: list[UOp] = [root]
    while stack:
        u = stack[-1]
        if getattr(u, slot) is not None:
            stack.pop()
            continue
        todo = [s for s in u.src if getattr(s, slot) is None]
        if todo:
            stack.extend(todo)
        else:
            stack.pop()
            yield u
