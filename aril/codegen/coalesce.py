"""Strided accesses of a tile become contiguous ones and a transposition in registers.

In come vectors as nodes; out go vectors, built of two-source shuffles (`STACK` of `INDEX` of two vectors), which
renderers know.
"""

from __future__ import annotations

from collections.abc import Sequence

from aril.uop.node import UOp


def lanes_of(u: UOp) -> int:
    """1 for a scalar, else the number of lanes."""
    return int(u.shape[0]) if u.shape else 1


def shuffle(a: UOp, b: UOp, picks: Sequence[int]) -> UOp:
    """The lanes `picks` of a and b, where b's are numbered after a's."""
    n = lanes_of(a)
    return UOp.stack(*[a.index(i) if i < n else b.index(i - n) for i in picks])


def concat(parts: Sequence[UOp]) -> UOp:
    """Vectors of one length (a power of two of them) behind each other."""
    out = list(parts)
    while len(out) > 1:
        n = lanes_of(out[0])
        out = [shuffle(out[i], out[i + 1], range(2 * n)) for i in range(0, len(out), 2)]
    return out[0]


def piece(vector: UOp, start: int, n: int) -> UOp:
    """`n` lanes from `start`."""
    return vector if n == lanes_of(vector) else shuffle(vector, vector, range(start, start + n))


def can_transpose(rows: int, columns: int) -> bool:
    """Whether `transpose` does a block of that many vectors and lanes."""
    return all(n >= 2 and n & (n - 1) == 0 for n in (rows, columns))


def transpose(rows: Sequence[UOp]) -> list[UOp]:
    """The vectors whose lane r is lane i of rows[r], for each i. Numbers of rows and lanes are powers of two."""
    height, width = len(rows), lanes_of(rows[0])
    m = min(height, width)
    blocks = [
        [_square([piece(r, x, m) for r in rows[y : y + m]]) for y in range(0, height, m)] for x in range(0, width, m)
    ]
    return [concat([block[i] for block in column]) for column in blocks for i in range(m)]


def _square(rows: list[UOp]) -> list[UOp]:
    """Each stage exchanges, between rows that differ in one bit, the halves of all blocks of that size."""
    n = len(rows)
    size = n // 2
    while size:
        out = list(rows)
        for i in range(n):
            if not i & size:
                a, b = rows[i], rows[i | size]
                out[i] = shuffle(a, b, [j if not j & size else n + (j ^ size) for j in range(n)])
                out[i | size] = shuffle(a, b, [j | size if not j & size else n + j for j in range(n)])
        rows = out
        size //= 2
    return rows
