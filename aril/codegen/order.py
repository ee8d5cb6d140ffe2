"""The nodes of a kernel in order, kept while steps are chosen: a step changes one nest, and asks about them all.

In come effects (what a kernel's SINK does, one after another) and the SINK; out go their nodes, sources first.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import chain

from aril.ops import Ops
from aril.uop.node import UOp

KEPT = 128  # effects, and SINKs over them: a kernel has 32 effects at most, of which a step replaces one


@lru_cache(maxsize=KEPT)
def nodes_of(root: UOp) -> tuple[UOp, ...]:
    """The nodes of a kernel, or of a part of it, in the order of `toposort`."""
    if root.op is Ops.SINK and len(root.src) > 1:
        return (*dict.fromkeys(chain.from_iterable([nodes_of(effect) for effect in root.src])), root)
    return tuple(root.toposort())


@lru_cache(maxsize=KEPT)
def loops_in(effect: UOp) -> dict[UOp, None]:
    """The loops anywhere in one effect (an ordered set)."""
    return dict.fromkeys([u for u in nodes_of(effect) if u.op is Ops.RANGE])


def nodes_around(sink: UOp, loop: UOp) -> list[UOp]:
    """The nodes of the effects that have `loop` in them."""
    return [u for effect in sink.src if loop in loops_in(effect) for u in nodes_of(effect)]


def bounding(root: UOp) -> set[UOp]:
    """The loops that say how long others of a kernel are."""
    return {s for r in nodes_of(root) if r.op is Ops.RANGE for s in r.src[0].ranges}


def forget() -> None:
    """Let go of the nodes: the steps of a kernel are chosen."""
    nodes_of.cache_clear()
    loops_in.cache_clear()
