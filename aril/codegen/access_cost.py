"""What accesses and nests cost before they are planned, in nanoseconds of one core: what lanes are chosen by."""

from __future__ import annotations

import math
from collections.abc import Callable

from aril.codegen.analysis import Access, Nest, is_constant, length
from aril.uop.args import AxisType
from aril.uop.node import UOp

# An element moved by vectors, one moved alone, an addition in a vector of 8.
CONTIGUOUS, ALONE, OPERATION = 0.15, 1.0, 0.05
UNITS = (1, -1, 2, -2, 3, -3, 4, -4)  # elements between neighbours that contiguous loads have together


def access_cost(access: Access, lanes: UOp | None, width: int, turns: Callable[[frozenset[UOp]], int]) -> float:
    """Nanoseconds of an access over all turns when the loop `lanes` becomes lanes."""
    count = turns(access.loops)
    if lanes is None or lanes not in access.loops:
        return count * ALONE * (0.5 if lanes is None else 0.3)
    n = length(lanes)
    used = min(width, 1 << (n.bit_length() - 1))
    reach = access.reach(lanes, used)
    if reach == "contiguous":
        return count * CONTIGUOUS * math.sqrt(width / used)
    if reach == "same":
        return count * 0.2 / used
    if reach == "near" and (not access.is_store or cover_of(access, lanes)):
        return count * CONTIGUOUS * 2 * math.sqrt(width / used)
    shared = _shared_block(access, lanes)
    if shared is not None:
        return turns(access.loops - shared) * CONTIGUOUS * 4 * math.sqrt(width / used)
    if any(r is not lanes and length(r) >= 4 and access.stride(r) == 1 for r in access.loops):
        return count * 0.4  # a tile of a transposing copy
    return count * ALONE * (1.5 if access.is_store else 1.0)


def cover_of(access: Access, lane: UOp, unit: int = 1) -> list[UOp]:
    """Short loops of the output whose turns lie between neighbouring lanes of an access, `unit` elements apart, and
    fill the room; none where they do not."""
    step, off = divmod(access.stride(lane) or 0, unit)
    if off or step not in (2, 4, 8):
        return []
    kinds = (AxisType.LOOP, AxisType.UPCAST)
    short = {access.stride(r): r for r in access.loops if r.arg.kind in kinds and is_constant(r) and length(r) > 1}
    found: list[UOp] = []
    reach = 1
    while reach < step:
        loop = short.get(reach * unit)
        if loop is None or loop in found:
            return []
        found.append(loop)
        reach *= length(loop)
    return found if reach == step else []


def _shared_block(access: Access, lane: UOp | None) -> frozenset[UOp] | None:
    """Loops of an access whose turns read, of blocks of memory that copies and lanes fill together, what others read
    too: a window that stays in its block. None where there are no such blocks."""
    for unit in UNITS[:1] if access.is_store else UNITS:
        cover = [] if lane is None else cover_of(access, lane, unit)
        if lane is not None and cover and all(r.arg.kind is AxisType.UPCAST for r in cover):
            step = abs(access.stride(lane) or 0)
            return frozenset([r for r in access.loops if r not in cover and 0 < abs(access.stride(r) or 0) < step])
    return None


def estimate_ns(nest: Nest, lane: UOp | None) -> float:
    """Nanoseconds the nest takes on one core, roughly."""
    memory = 0.0
    for a in nest.accesses:
        aside = lane is None or lane not in a.loops or a.stride(lane) in (0, 1)
        shared = frozenset() if aside else _shared_block(a, lane)
        cost = ALONE if shared is None else CONTIGUOUS * a.itemsize / 4
        memory += nest.turns(a.loops - (shared or frozenset())) * cost
    return max(memory, nest.work * OPERATION)
