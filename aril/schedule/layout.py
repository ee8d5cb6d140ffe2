"""In what order a stored value lies in memory.

A padded image that a convolution reads in short windows is copied anyway; its order is free. So is that of a result:
it lies as what it is computed from. In: a value that is stored, and how kernels use it. Out: the order of its axes in
memory.
"""

from __future__ import annotations

import math

from aril.ops import OpGroup, Ops
from aril.schedule.fuse import Fusion, Signature, concrete, nbytes, numel
from aril.schedule.prepare import WALK, is_flat_view
from aril.uop import UOp
from aril.uop.node import view_flat
from aril.uop.shape import permute

ALIAS = 2048  # rows a multiple of this many bytes apart push one another out of the first-level cache


LARGE = 1 << 18  # bytes of a result from which the order of its operands is worth a view: reading it may be slower
SHORT = 16  # turns of a reduction whose results lie as what it reads: a window, a block of a running sum
_ALIKE = OpGroup.ELEMENTWISE | OpGroup.MOVEMENT | {Ops.REDUCE}


def placed(flat: UOp, u: UOp, fusion: Fusion, is_result: bool) -> UOp:
    """Flat storage for the value `u`, seen at its shape."""
    follows = is_result or u.op is Ops.REDUCE or u in fusion.reduces
    order = order_of_operands(u, fusion) if follows else memory_order(u, fusion)
    if order is None:
        return view_flat(flat, u.shape)
    if follows:
        fusion.orders[u] = order
    there = view_flat(flat, tuple([u.shape[a] for a in order]))
    return permute(there, tuple([order.index(a) for a in range(len(order))]))


def memory_order(u: UOp, fusion: Fusion) -> tuple[int, ...] | None:
    """The axes of a stored PAD from the outside in, or None for the order they have.

    Images (n, channels, h, w) under a window lie as (n, h, channels, w): what a row of the result sums up, all channels
    of a few rows of the image, then lies together, so that the processor sees it coming. Channels apart are as many
    pages, and each short run of a window's columns would wait for memory.
    """
    if u.op is not Ops.PAD or not all(isinstance(d, int) for d in u.shape):
        return None
    wide = [a for a, d in enumerate(u.shape) if concrete(d) > 1]
    for ways in fusion.uses.get(u, {}).values():
        for use in ways:
            if use.turns and wide:
                windows, sums = _kinds(use.signature, wide[:-1])
                if windows and sums and _is_window(use.signature, wide[-1]) and min(sums) < max(windows):
                    rest = [a for a in range(len(u.shape)) if a not in sums]
                    at = rest.index(wide[-1])
                    row = math.prod([concrete(u.shape[a]) for a in (*sums, *rest[at:])]) * u.dtype.itemsize
                    return None if row % ALIAS == 0 else (*rest[:at], *sums, *rest[at:])
    return None


def order_of_operands(u: UOp, fusion: Fusion) -> tuple[int, ...] | None:
    """The axes of a result from the outside in, as all it reads of about its size lies in memory; None for the order
    they have. What short reductions make on the way to a result, such as the totals of blocks, follows them too.

    ``x.T * 2`` is then a walk along memory, as ``x * 2`` is, and seen transposed; so are parts, pads, windows and
    running sums of ``x.T``. What a longer reduction or positions in memory make has no such order. `contiguous()` asks
    for the other one.
    """
    if u.op not in _ALIKE or not all(isinstance(d, int) for d in u.shape) or nbytes(u) < LARGE:
        return None
    orders: set[tuple[int, ...]] = set()
    stack, seen = [u], {u}
    while stack and len(orders) < 2 and len(seen) <= WALK:
        n = stack.pop()
        if 2 * numel(n) <= numel(u):
            continue
        if n is not u and n in fusion.stored or is_flat_view(n):
            own = fusion.orders.get(n, tuple(range(len(n.shape))))
            ways = [tuple([use.signature[a] for a in own]) for use in fusion.uses[n].get(u, ())]
            found = [_order_in(signature, fusion.signature[u]) for signature in ways]
            orders.update([o for o in found if o is not None])
        elif n.op in _ALIKE and (n.op is not Ops.REDUCE or numel(n.src[0]) <= SHORT * numel(n)):
            more = [s for s in (n.src[:1] if n.op in OpGroup.MOVEMENT else n.src) if s not in seen]
            stack.extend(more)
            seen.update(more)
        elif n.op is not Ops.CONST:
            return None
    order = orders.pop() if not stack and len(orders) == 1 else None
    return None if order == tuple(range(len(u.shape))) else order


def _order_in(operand: Signature, result: Signature) -> tuple[int, ...] | None:
    """The axes of the result in the order in which an operand has them, if it has each in one place."""
    places: list[int] = []
    for loops in result:
        found = [k for k, own in enumerate(operand) if not loops.isdisjoint(own)]
        if loops and len(found) != 1:
            return None
        places.append(found[0] if found else -1)
    return tuple(sorted(range(len(result)), key=places.__getitem__))


def _kinds(signature: Signature, axes: list[int]) -> tuple[list[int], list[int]]:
    """(axes that a window slides over, axes that are only summed over)."""
    windows = [a for a in axes if _is_window(signature, a)]
    sums = [a for a in axes if signature[a] and all(l.is_reduce for l in signature[a])]
    return windows, sums


def _is_window(signature: Signature, axis: int) -> bool:
    """Whether a window shorter than the result slides over the axis."""
    inside = math.prod([l.size for l in signature[axis] if l.is_reduce])
    outside = math.prod([l.size for l in signature[axis] if not l.is_reduce])
    return 1 < inside < outside
