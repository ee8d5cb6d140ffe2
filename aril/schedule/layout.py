"""In what order a stored operand of a contraction lies in memory.

A padded image that a convolution reads in short windows is copied anyway; its order is free. In: a value that is
stored, and how kernels use it. Out: the order of its axes in memory.
"""

from __future__ import annotations

import math

from aril.ops import Ops
from aril.schedule.fuse import Fusion, Signature, concrete
from aril.uop import UOp
from aril.uop.node import view_flat
from aril.uop.shape import permute

ALIAS = 2048  # rows a multiple of this many bytes apart push one another out of the first-level cache


def placed(flat: UOp, u: UOp, fusion: Fusion) -> UOp:
    """Flat storage for the value `u`, seen at its shape."""
    order = memory_order(u, fusion)
    if order is None:
        return view_flat(flat, u.shape)
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
