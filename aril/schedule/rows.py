"""Nests that hand rows to one another share their outer loops as chunks, and keep the rows in scratch.

In: kernel form with LOCAL storage of whole values, as lowering writes a chain of kernels. Out: kernel form with GLOBAL
loops and LOCAL storage of a tile of rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from aril.codegen.accumulate import fresh_id
from aril.codegen.affine import Linear, add, linear, mul
from aril.codegen.analysis import length
from aril.codegen.steps import replace_loops
from aril.dtype import dtypes
from aril.ops import Ops
from aril.schedule.hidden import seen_columns
from aril.uop import AddrSpace, AxisType, RangeArg, UOp
from aril.uop.pattern import Pat, Rules
from aril.uop.rewrite import rewrite
from aril.uop.symbolic import simplify

SCRATCH_BYTES = 5 << 16  # of the rows of one tile: a part of the second-level cache
MOST_BYTES = 1 << 21  # of long rows, few at a time
MOST_ROWS = 64
LEAST_ROWS = 16  # rows that share what they read; fewer leave lanes empty
LEAST_CHUNKS = 8
LARGE_CHUNK = 1 << 22  # turns of a chunk beyond which too few chunks cost more than storing the rows
MOST_TERMS = 1024  # of a sum of products whose result is handed on: with more, storing it is next to nothing


def is_scratch(u: UOp) -> bool:
    """Whether `u` is memory of the worker's own."""
    return u.op is Ops.BUFFER and u.arg.addrspace is AddrSpace.LOCAL


@dataclass(frozen=True)
class _Rows:
    """The loops that all nests share, and what each scratch address is inside a row."""

    lead: tuple[UOp, ...]
    nests: tuple[UOp, ...]
    inside: dict[UOp, UOp]  # INDEX node -> position in its row
    lengths: dict[UOp, int]  # scratch -> elements of a row


def share_chunks(sink: UOp) -> UOp | None:
    """Nests over common outer loops with scratch of whole values: those loops become GLOBAL, scratch holds a tile.

    Before: ``END(STORE(INDEX(S, q*n + k), ..), q, k), END(STORE(.., f(LOAD(INDEX(S, p*n + j)))), p)``, S scratch of
    all rows. After: ``END(STORE(INDEX(S', k*t + a), ..), g, a, k), END(STORE(.., f(LOAD(INDEX(S', j*t + b)))), g, b)``
    with ``q = g*t + a`` and g GLOBAL; the rows of a tile lie next to each other, to be lanes. None where a nest reads
    rows other than its own, and where storing the rows costs less than sharing their loops (deep sums, few rows). Of a
    variable number of rows the last tile has fewer; scratch has room for a whole one.
    """
    count = min(len(_loops(nest)) for nest in sink.src)
    rows = next((r for r in (_rows(sink, n) for n in range(count, 0, -1)) if r is not None), None)
    if rows is None:
        return None
    tile = _tile(rows)
    if tile * sum([n * scratch.dtype.itemsize for scratch, n in rows.lengths.items()]) > MOST_BYTES:
        return None
    if not _pays(rows, tile):
        return None
    row = rows.lead[-1]
    start = fresh_id(UOp.sink(*rows.nests))
    chunks = [UOp.range(r.src[0], (start + i,), AxisType.GLOBAL) for i, r in enumerate(rows.lead[:-1])]
    outer, first, here = _tiles_of(row, tile, start + len(chunks))
    shared = (*chunks, *(() if outer is None else (outer,)))
    buffers = {b: b.replace(arg=b.arg._replace(size=size * tile)) for b, size in rows.lengths.items()}
    seen = seen_columns(rows.nests, rows.inside, rows.lead)
    bounds = None if seen is None else seen.of_tile(row, first, here)
    fewer: dict[UOp, tuple[UOp, tuple[UOp, ...]]] = {}
    nests = []
    for i, nest in enumerate(rows.nests):
        own = UOp.range(here, (start + len(chunks) + 1 + i,), AxisType.LOOP) if tile > 1 else None
        places = dict(zip(rows.lead[:-1], chunks, strict=True))
        places[row] = first if own is None else add(first, own)
        # the row's loop goes around the others: what a whole row has in common is then computed once for it
        loops = [r for r in nest.toposort() if r.op is Ops.RANGE and r not in places]
        later = {
            r: r.replace(arg=RangeArg((start + len(chunks) + 1 + len(rows.nests) + r.arg.id[0],), r.arg.kind))
            for r in loops
        }
        if seen is not None and bounds is not None:
            low, seen_count = (_substitute(b, dict(zip(rows.lead[:-1], chunks, strict=True))) for b in bounds)
            for r in loops:
                if r in seen.loops:
                    less = later[r].replace(src=(seen_count,))
                    fewer[later[r]] = (add(low, less), (less,))
        done: dict[UOp, UOp] = {**places, **buffers, **later}
        body = rewrite(nest.src[0], _PLACED, _Placed(rows.inside, done, tile, own), once=True, done=done)
        rest = [done[s] for s in nest.src[1:] if s not in rows.lead]
        nests.append(body.end(*shared, *(() if own is None else (own,)), *rest))
    out = sink.with_src(tuple(nests))
    return replace_loops(out, fewer) if fewer else out


def _tiles_of(row: UOp, tile: int, id: int) -> tuple[UOp | None, UOp, UOp]:
    """(the loop over the tiles of loop `row`, None where there is one; the first row of a tile; how many it has)."""
    n, end = length(row), row.src[0]
    tiles = simplify(UOp(Ops.FLOORDIV, (add(end, tile - 1), UOp.integer(tile))))
    outer = UOp.range(tiles, (id,), AxisType.GLOBAL) if n > tile else None
    first = UOp.integer(0) if outer is None else mul(outer, tile)
    here = UOp.integer(tile)
    if end.op is not Ops.CONST:  # the last tile ends earlier
        left = end if outer is None else UOp(Ops.ADD, (end, mul(outer, -tile)))
        here = left.lesser(UOp.integer(tile))
    elif outer is not None and n % tile:  # the last tile begins earlier: a row done twice is the same
        first = first.lesser(UOp.integer(n - tile))
    return outer, first, here


class _Placed(NamedTuple):
    """Where a nest finds what lies in scratch: `inside` gives the column of each access, `own` the row of the tile."""

    inside: Mapping[UOp, UOp]
    done: dict[UOp, UOp]
    tile: int
    own: UOp | None


def _in_scratch(ctx: _Placed, old: UOp) -> UOp | None:
    column = ctx.inside.get(old)
    if column is None:
        return None
    at = ctx.done[column] if column in ctx.done else _substitute(column, ctx.done)
    at = at if ctx.own is None else simplify(add(mul(at, ctx.tile), ctx.own))
    return UOp(Ops.INDEX, (ctx.done[old.src[0]], at))


_PLACED = Rules(
    [
        (Pat(Ops.INDEX), _in_scratch),
        (Pat(dtype=dtypes.weakint, name="u"), lambda u, old: None if u is old else simplify(u)),
    ],
    name="rows in scratch",
)


def _substitute(u: UOp, done: dict[UOp, UOp]) -> UOp:
    return u.substitute({n: done[n] for n in u.toposort() if n.op is Ops.RANGE and n in done and done[n] is not n})


def _loops(nest: UOp) -> tuple[UOp, ...]:
    return tuple([s for s in nest.src[1:] if s.op is Ops.RANGE]) if nest.op is Ops.END else ()


def _rows(sink: UOp, count: int) -> _Rows | None:
    """The first `count` loops of every nest as the common ones, or None where some nest reads across them."""
    lead = _loops(sink.src[0])[:count]
    if any(r.src[0].ranges for r in lead):
        return None
    sizes = [length(r) for r in lead]
    total = math.prod(sizes)
    nests = []
    for nest in sink.src:
        own = _loops(nest)[:count]
        if len(own) < count or [r.src[0] for r in own] != [r.src[0] for r in lead]:
            return None
        nests.append(nest.substitute(dict(zip(own, lead, strict=True))))
    inside: dict[UOp, UOp] = {}
    lengths: dict[UOp, int] = {}
    memo: dict[UOp, Linear] = {}
    nodes = UOp.sink(*nests).toposort()
    read = {u.src[0].src[0] for u in nodes if u.op is Ops.LOAD}
    handed = {u.src[0].src[0] for u in nodes if u.op is Ops.STORE} & read  # scratch, and results that others read too
    for u in nodes:
        if u in handed or not any(s in handed or is_scratch(s) for s in u.src):
            continue
        if u.op is not Ops.INDEX or len(u.src) != 2:
            return None
        scratch, index = u.src
        if scratch.arg.size % total:
            return None
        size = scratch.arg.size // total
        form = linear(index, memo)
        for i, r in enumerate(lead):
            if form.coefficient(r) != size * math.prod(sizes[i + 1 :]):
                return None
        rest = simplify(Linear({a: c for a, c in form.terms.items() if a not in lead}, form.const).expression())
        if rest.vmin < 0 or rest.vmax >= size or any(r in rest.ranges for r in lead):
            return None
        if is_scratch(scratch):
            lengths[scratch] = size
            inside[u] = rest
    return _Rows(lead, tuple(nests), inside, lengths)


def _tile(rows: _Rows) -> int:
    """How many rows a chunk takes: where rows share what a sum of products reads, as many as scratch has room for."""
    row, n = rows.lead[-1], length(rows.lead[-1])
    if n == 1 or not any(_is_shared(u, row) for nest in rows.nests for u in nest.toposort() if u.op is Ops.REDUCE):
        return 1
    size = sum([elements * scratch.dtype.itemsize for scratch, elements in rows.lengths.items()])
    most = max(LEAST_ROWS, min(MOST_ROWS, SCRATCH_BYTES // max(size, 1)) // LEAST_ROWS * LEAST_ROWS)
    others = math.prod([length(r) for r in rows.lead[:-1]])
    while most > LEAST_ROWS and others * -(-n // most) < LEAST_CHUNKS:
        most //= 2
    if n <= most:
        return n
    return next((t for t in range(most, most // 2, -1) if n % t == 0), most)


def _pays(rows: _Rows, tile: int) -> bool:
    """Whether rows in scratch are better than stored ones: then each nest has all its loops for tiles and threads."""
    turns = 0
    row = rows.lead[-1]
    for nest in rows.nests:
        most = 1
        for u in nest.toposort():
            if u.op is Ops.REDUCE:
                terms = math.prod([s.src[0].vmax for s in u.src[1:] if s.op is Ops.RANGE])
                if nest is not rows.nests[-1] and terms > MOST_TERMS and _is_shared(u, row):
                    return False
                most = max(most, terms)
        turns += most * math.prod([r.src[0].vmax for r in _loops(nest)])
    chunks = math.prod([length(r) for r in rows.lead[:-1]]) * -(-length(row) // tile)
    return chunks >= LEAST_CHUNKS or turns <= chunks * LARGE_CHUNK


def _is_shared(sum_: UOp, row: UOp) -> bool:
    """Whether other rows read the same elements for this sum."""
    loops = set(sum_.src[1:])
    loads = [u for u in sum_.src[0].toposort() if u.op is Ops.LOAD and not loops.isdisjoint(u.ranges)]
    return sum_.arg[0] is Ops.ADD and len(loads) > 1 and any(row not in u.ranges for u in loads)
