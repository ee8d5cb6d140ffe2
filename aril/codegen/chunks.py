"""The launch index: which output loops threads share, so that a chunk is worth a thread's while.

A plan comes in and gets the steps for it. The number of chunks depends on the work alone, not on how many threads run.
"""

from __future__ import annotations

from math import ceil, sqrt

from aril.codegen.analysis import Nest, is_constant, length, reduce_loops_of
from aril.codegen.plan import Plan
from aril.codegen.steps import Chunk, Id, Split
from aril.ops import Ops
from aril.uop.node import UOp
from aril.uop.symbolic import simplify

CHUNKS = 64  # more chunks than this do not balance better on the machines we know
LEAST_NS = 4_000.0  # less work than this is not worth sending to another thread
LARGE_NS = 30_000.0  # a piece of one whose pieces should be few
OVERLAP = 1.05  # of the work, where blocks of lanes overlap
START_NS = 300.0  # of a chunk, to be taken and begun
_UNEVEN = 0.25  # of a chunk, by which threads end apart that had as many of them


def best_count(plan: Plan, total: float) -> int:
    """How many chunks of a nest of `total` nanoseconds waste the least.

    At the end threads wait for half a chunk on average, which is `cores / (2 * count)` of the time; `count` chunks
    begin, which is `count * START_NS / total`.
    """
    return max(1, int(sqrt(total * max(4, plan.renderer.cores) / 2 / START_NS)))


def best_parts(plan: Plan, total: float, whole: int, again: float) -> int:
    """In how many parts each of `whole` chunks is best taken, where each part costs `again` more: two threads share 17
    chunks better in halves, 16 as they are."""
    spent = {p: rounds(plan, whole * p) * (total / (whole * p) + START_NS + again) for p in range(1, CHUNKS + 1)}
    return min(spent, key=spent.__getitem__)


def rounds(plan: Plan, count: int) -> float:
    """For how many chunks of `count` the busiest thread takes time."""
    return ceil(count / plan.renderer.cores) + _UNEVEN


def chunk_output(
    plan: Plan,
    nest: Nest,
    total: float,
    lane: UOp | None,
    lane_block: int,
    loops: tuple[UOp, ...] | None = None,
    exact: bool = False,
    most: int = CHUNKS,
    least: float = LEAST_NS,
    near: UOp | None = None,
    tile: int | None = None,
) -> None:
    """Outer output loops to the launch index, so that a chunk is worth a thread's while.

    `total` is the nest's time in nanoseconds; `lane` the loop of the lanes, split in multiples of `lane_block` if need
    be, or about so many where a multiple of `tile` leaves less to be done twice. `loops` are those to take (default:
    all of the nest). With `exact` every chunk has the same number of turns; there are about `most` of them, or fewer,
    of `least` nanoseconds or more: with three, one of two threads waits. Turns of `near` touch neighbouring lines,
    which caches fetch in pairs: a chunk has two or more.
    """
    if not plan.shares or total < 2 * LEAST_NS or not nest.repeatable and any(u.op is Ops.ATOMIC for u in nest.nodes):
        return
    shared = nest.loops if loops is None else loops
    for u in nest.reduces:  # a reduction that a chunk loop does not move would be done once a chunk
        if nest.turns(u.ranges | set(reduce_loops_of(u))) * 8 > nest.turns(frozenset(nest.loops)):
            shared = tuple([r for r in shared if r in u.ranges])
    left = min(most, int(total // least))
    ids: list[Id] = []
    count = 1  # of chunks so far
    for r in sorted(shared, key=lambda r: r.arg.id):
        if r is lane or left < 2 or not _uniform(nest, r):
            continue
        n = length(r)
        if is_constant(r) and n <= (left if exact else left * 2) and (r is not near or n < 4):
            if n > 1:
                ids.append(r.arg.id)
                count *= n  # where they share out unevenly, rather some more
                left = left // n if exact or count % plan.renderer.cores == 0 else -(-left // n)
            continue
        block = max(2, -(-n // left))
        if exact:
            block = next((b for b in range(block, n) if n % b == 0), n)
            if block == n:
                continue
        if is_constant(r):
            blocks = {b: rounds(plan, count * -(-n // b)) * b for b in range(block, min(n, 2 * block))}
            block = min(blocks, key=lambda b: (blocks[b], n % b != 0, b), default=block)
        plan.do(Split(r.arg.id, block, "exact" if is_constant(r) and n % block == 0 else "ragged"), "turns of a chunk")
        ids.append((*r.arg.id, 0))
        left = 1
    if left >= 2 and lane is not None and lane in shared:
        n = length(lane)
        block = max(lane_block, -(-n // left // lane_block) * lane_block)
        if n >= 2 * block:
            if is_constant(lane):
                even = next((b for b in range(block, 2 * block, lane_block) if n % b == 0), None)
                block = even or _least_overlap(n, block, tile or lane_block)
            exact = is_constant(lane) and n % block == 0
            tail = "exact" if exact else ("overlap" if nest.repeatable and is_constant(lane) else "ragged")
            plan.do(Split(lane.arg.id, block, tail), "elements of a chunk")
            ids.append((*lane.arg.id, 0))
            plan.rename(lane.arg.id, (*lane.arg.id, 1))
    if ids:
        plan.do(Chunk(tuple(ids)), f"about {total / 1000:.0f} us of work")


def _least_overlap(n: int, block: int, tile: int) -> int:
    """The multiple of `tile`, near `block`, whose blocks cover `n` elements with few that two of them have."""
    count = -(-n // block)
    blocks = [-(-n // c // tile) * tile for c in range(count, 2 * count)]
    covered = {b: -(-n // b) * b for b in blocks}
    return next((b for b in blocks if covered[b] <= n * OVERLAP), min(blocks, key=covered.__getitem__))


def _uniform(nest: Nest, loop: UOp) -> bool:
    """Whether turns of the loop take equally long: no other loop's length depends on it, but for its last turn."""
    depend = [u.src[0] for u in nest.nodes if u.op is Ops.RANGE and u is not loop and loop in u.ranges]
    turns = [UOp.integer(i) for i in (0, max(0, length(loop) - 2))]
    return all(simplify(n.substitute({loop: turns[0]})) is simplify(n.substitute({loop: turns[1]})) for n in depend)
