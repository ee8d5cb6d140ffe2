"""Strided accesses of a tile become contiguous ones and a transposition in registers.

In come vectors as nodes; out go vectors, built of two-source shuffles (`STACK` of `INDEX` of two vectors), which
renderers know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aril.codegen.affine import build_sum
from aril.ops import Ops
from aril.uop.node import UOp

UNIT = 16  # bytes within which a shuffle costs least


def lanes_of(u: UOp) -> int:
    """1 for a scalar, else the number of lanes."""
    return int(u.shape[0]) if u.shape else 1  # type: ignore[arg-type]  # never symbolic in a kernel


@dataclass(frozen=True, eq=False)
class Lanes:
    """Addresses of a vector's lanes in `target`: `sum(scalars) + offsets[lane]`."""

    target: UOp
    scalars: dict[UOp, int]
    offsets: tuple[int, ...]

    @property
    def step(self) -> int | None:
        """The distance of neighbours, None where it is not one number."""
        steps = {b - a for a, b in zip(self.offsets, self.offsets[1:], strict=False)} or {1}
        return steps.pop() if len(steps) == 1 else None

    @property
    def start(self) -> UOp:
        """The first lane's index."""
        return build_sum(self.scalars, self.offsets[0])

    @property
    def span(self) -> int:
        """Elements from the least address to the greatest."""
        return max(self.offsets) - min(self.offsets) + 1

    @property
    def is_near(self) -> bool:
        """Whether a few contiguous loads hold all lanes."""
        return 2 <= self.span <= 4 * len(self.offsets) and len(self.offsets) > 2

    def contiguous(self, lane: int, width: int, more: int = 0) -> UOp:
        """The address of `width` elements from that of `lane` (and `more`)."""
        start = build_sum(self.scalars, self.offsets[lane] + more)
        return UOp(Ops.SHRINK, (self.target, start), (None, width))

    def load(self, u: UOp, more: Callable[[list[int | None]], tuple[UOp, ...]]) -> UOp:
        """The lanes, picked from contiguous loads that begin and end with an element some lane reads.

        `more` gives the value and the gate of a contiguous load, from the lanes that read its elements (None: nobody).
        """
        low, span, n = min(self.offsets), self.span, len(self.offsets)
        width = min(n, 1 << (span.bit_length() - 1))
        starts = [min(i * width, span - width) for i in range(-(-span // width))]
        which = [min((o - low) // width, len(starts) - 1) for o in self.offsets]
        used = sorted(set(which))  # between lanes that lie far apart there is a load that nobody reads
        reader = {o - low: lane for lane, o in enumerate(self.offsets)}
        vectors = [
            UOp(Ops.SHRINK, (self.target, build_sum(self.scalars, low + s)), (None, width)).load(
                *more([reader.get(s + i) for i in range(width)]), hint=u.arg
            )
            for s in [starts[w] for w in used]
        ]
        return _pick(vectors, [(used.index(w), o - low - starts[w]) for w, o in zip(which, self.offsets, strict=True)])


@dataclass(frozen=True, eq=False)
class Block:
    """Copies that fill the room between lanes: a turn for each place of the block, in order, the place that is asked
    for, `unit` elements from one place to the next in memory, the address at the first turn, its key."""

    turns: list[dict[UOp, int]]
    mine: int
    unit: int
    lanes: Lanes
    first: tuple[int, ...]

    @property
    def count(self) -> int:
        """The number of lanes."""
        return len(self.lanes.offsets)

    @property
    def is_square(self) -> bool:
        """Whether it is transposed with a row for each lane: fewer shuffles, where rows are no shorter than vectors."""
        return self.count <= len(self.turns) and can_transpose(self.count, len(self.turns))

    @property
    def parts(self) -> tuple[int, int]:
        """(number, length) of the contiguous vectors that it is loaded or stored as."""
        return (self.count, len(self.turns)) if self.is_square else (len(self.turns), self.count)

    def part(self, start: int, count: int) -> Lanes:
        """So many places from `start`, in order: those of the second lane follow those of the first."""
        offsets = [self.lanes.offsets[0] + self.unit * (start + i) for i in range(count)]
        return Lanes(self.lanes.target, self.lanes.scalars, tuple(offsets))


def _pick(vectors: list[UOp], picks: list[tuple[int, int]]) -> UOp:
    """The given (vector, lane) pairs, by shuffles of two."""
    n = lanes_of(vectors[0])
    if len(vectors) <= 2:
        return shuffle(vectors[0], vectors[-1], [which * n + lane for which, lane in picks])
    half = len(vectors) // 2
    left = _pick(vectors[:half], [(w, i) if w < half else (0, 0) for w, i in picks])
    right = _pick(vectors[half:], [(w - half, i) if w >= half else (0, 0) for w, i in picks])
    count = len(picks)
    return shuffle(left, right, [k if w < half else count + k for k, (w, _) in enumerate(picks)])


def interleave(rows: Sequence[UOp]) -> list[UOp]:
    """Vectors that follow one another as lane 0 of every row, lane 1 of every row, ... (a power of two of rows)."""
    count = len(rows)
    if count == 1:
        return list(rows)
    even, odd = interleave(rows[::2]), interleave(rows[1::2])
    out: list[UOp] = []
    for a, b in zip(even, odd, strict=True):
        n = lanes_of(a)
        for start in (0, n // 2):
            out.append(shuffle(a, b, [start + i // 2 + (n if i % 2 else 0) for i in range(n)]))
    return out


def deinterleave(rows: Sequence[UOp]) -> list[UOp]:
    """The inverse of `interleave`."""
    if len(rows) == 1:
        return list(rows)
    n = lanes_of(rows[0])
    pairs = list(zip(rows[::2], rows[1::2], strict=True))
    even = deinterleave([shuffle(a, b, range(0, 2 * n, 2)) for a, b in pairs])
    odd = deinterleave([shuffle(a, b, range(1, 2 * n, 2)) for a, b in pairs])
    return [x for both in zip(even, odd, strict=True) for x in both]


def shuffle(a: UOp, b: UOp, picks: Sequence[int]) -> UOp:
    """The lanes `picks` of a and b, where b's are numbered after a's."""
    n = lanes_of(a)
    return UOp.vector(*[a.index(i) if i < n else b.index(i - n) for i in picks])


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


def tile_of(row: int, rows: int) -> tuple[int, int]:
    """(first, number) of the rows that are transposed together with `row`: powers of two, the largest first."""
    start = 0
    while True:
        size = 1 << ((rows - start).bit_length() - 1)
        if row < start + size:
            return start, size
        start += size


def transpose(rows: Sequence[UOp]) -> list[UOp]:
    """The vectors whose lane r is lane i of rows[r], for each i. Numbers of rows and lanes are powers of two.

    Units of 16 bytes are transposed by interleaving, which every vector instruction set does in place; what lies
    further apart changes places as whole units.
    """
    height, width = len(rows), lanes_of(rows[0])
    unit = max(2, UNIT // rows[0].dtype.itemsize)
    if height > width == unit:
        rows, height = [concat(rows[i::width]) for i in range(width)], width
        return _interleaved_units(rows, unit)
    within = min(unit, width)
    if height <= within:
        mixed, part = _interleaved_units(rows, within), within // height  # columns of a unit that one vector has
        places = [(i // within * within, i % within) for i in range(width)]
        return [piece(mixed[j // part], at + j % part * height, height) for at, j in places]
    m = min(height, width)
    blocks = [
        [_square([piece(r, x, m) for r in rows[y : y + m]], unit) for y in range(0, height, m)]
        for x in range(0, width, m)
    ]
    return [concat([block[i] for block in column]) for column in blocks for i in range(m)]


def _square(rows: list[UOp], unit: int) -> list[UOp]:
    """Each stage exchanges, between rows that differ in one bit, the halves of all blocks of that size."""
    n = len(rows)
    size = n // 2
    while size >= unit:
        out = list(rows)
        for i in range(n):
            if not i & size:
                a, b = rows[i], rows[i | size]
                out[i] = shuffle(a, b, [j if not j & size else n + (j ^ size) for j in range(n)])
                out[i | size] = shuffle(a, b, [j | size if not j & size else n + j for j in range(n)])
        rows = out
        size //= 2
    unit = min(unit, n)
    return [x for i in range(0, n, unit) for x in _interleaved_units(rows[i : i + unit], unit)]


def _interleaved_units(rows: Sequence[UOp], unit: int) -> list[UOp]:
    """`interleave` inside each `unit` lanes of the rows: vector i has, of each unit, the i-th part of what follows."""
    n, half = lanes_of(rows[0]), len(rows) // 2
    out = list(rows)
    for _ in range(half.bit_length()):
        next_: list[UOp] = []
        for a, b in zip(out[:half], out[half:], strict=True):
            for start in (0, unit // 2):
                picks = [u + start + i // 2 + (n if i % 2 else 0) for u in range(0, n, unit) for i in range(unit)]
                next_.append(shuffle(a, b, picks))
        out = next_
    return out
