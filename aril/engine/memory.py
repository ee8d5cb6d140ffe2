"""Memory planning: blocks that are not needed at the same time share memory.

In: how large each block is and from when to when it is needed. Out: where each lies in one piece of memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

ALIGN = 256  # bytes


class Block(NamedTuple):
    """Memory of so many bytes, needed from one step to another (both included)."""

    nbytes: int
    first: int
    last: int


def first_fit(blocks: Sequence[Block]) -> tuple[list[int], int]:
    """(the offset of each block, the bytes of the whole). Blocks that are needed at one time do not overlap.

    The largest is placed first, each at the lowest offset that fits: "greedy by size" of Pisarchyk and Lee, "Efficient
    Memory Management for Deep Neural Net Inference", 2020.

    >>> first_fit([Block(512, 0, 1), Block(256, 1, 2), Block(512, 2, 3)])
    ([0, 512, 0], 768)
    """
    offsets = [0] * len(blocks)
    placed: list[tuple[int, int, Block]] = []  # (begin, end, block)
    for k in sorted(range(len(blocks)), key=lambda k: (-blocks[k].nbytes, blocks[k].first)):
        block = blocks[k]
        size = -(-max(block.nbytes, 1) // ALIGN) * ALIGN
        at = 0
        for begin, end, other in sorted(placed):
            if other.first <= block.last and block.first <= other.last:
                if at + size <= begin:
                    break
                at = max(at, end)
        placed.append((at, at + size, block))
        offsets[k] = at
    return offsets, max([end for _, end, _ in placed], default=0)
