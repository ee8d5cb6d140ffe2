"""Which values are stored: the cost rule of fusion, on the prepared tensor graph.

In: the SINK over parameters. Out: the set of nodes whose values get storage of their own. What lies between stored
values is one kernel.

The rule. A value `u` that is not stored is computed again by every kernel that reads it, once for every loop turn it
depends on:

    fused  = sum over kernels k of  (turns(u, k) / numel(u)) * OP_BYTES * ops(u)  +  leaves(u)
    stored = OP_BYTES * ops(u) + leaves(u)  +  size(u) * (1 + number of kernels)

in bytes, where `ops(u)` is the arithmetic of computing all of `u` once from stored values, `leaves(u)` the bytes of
the stored values it reads, and OP_BYTES the bytes of memory traffic one arithmetic operation is worth. `u` is stored
where that is cheaper. What all the kernels have at hand for other reasons counts nothing for a condition. Inside a
contraction (a reduction that reads its operands more than once each) turns count every loop, because register tiling
leaves nothing outside. A reduction is fused into one reader only, and where the reader has more loops than the
reduction has results (a softmax row) only if what it reads per result stays in cache and
enough results remain for all cores.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from aril.dtype import dtypes, strong
from aril.ops import OpGroup, Ops
from aril.schedule.narrow import narrow_factors
from aril.schedule.prepare import is_flat_view, is_view
from aril.uop import UOp, sint
from aril.uop.shape import movement_arg

# One arithmetic operation on one element against one byte moved: two cores do about 100e9 vector operations and move
# about 20e9 bytes a second; transcendental functions are polynomials of about ten operations.
OP_BYTES = 0.2
OP_WEIGHT = {
    Ops.EXP2: 8.0, Ops.LOG2: 10.0, Ops.SIN: 15.0, Ops.POW: 25.0, Ops.FDIV: 4.0, Ops.RECIPROCAL: 4.0, Ops.SQRT: 4.0,
    Ops.THREEFRY: 80.0, Ops.FLOORDIV: 8.0, Ops.FLOORMOD: 8.0, Ops.CDIV: 8.0, Ops.CMOD: 8.0, Ops.BITCAST: 0.0,
}  # fmt: skip
ROW_BYTES = 1 << 18  # what one result's row may read to be gone over again in cache
ROW_RESULTS = 16  # rows below this many leave cores idle
LONG_ROW = 1 << 15  # elements from which idle cores matter
WALKS = 4  # times a SCATTER reads its positions: every chunk reads all, the more the larger its rows
WORD = 4  # bytes of a stored element, about
SHORT_ROW = 8  # elements: shorter rows of more elements than are read (windows) are no lanes
ALONE_BYTES = 8.0  # what an element that is stored alone costs besides
SMALL_REDUCTION = 64  # a reduction this short inside another is a few operations

Signature = tuple[frozenset["Loop"], ...]
_NO_LOOPS: frozenset[Loop] = frozenset()


@dataclass(frozen=True, eq=False, slots=True)
class Loop:
    """One loop of a kernel being sized up."""

    size: int
    is_reduce: bool


@dataclass(eq=False, slots=True)
class Use:
    """How one kernel evaluates a value: the loops each axis depends on, and turns that a contraction forces."""

    signature: Signature
    turns: float  # 0: the product of the loops in the signature
    loops: frozenset[Loop]  # all loops around the evaluation
    share: float = 1.0  # of the turns, those in which no pad hides the value
    results: frozenset[Loop] = _NO_LOOPS  # the loops of the results of the reduction around it

    def reached(self) -> float:
        """How often the place of the value is come to."""
        return self.turns or float(math.prod(l.size for l in frozenset().union(*self.signature)))

    def evaluations(self, again: bool) -> float:
        """How often the value is computed; `again`: what changes along a reduction, for every result of that."""
        if self.turns:
            return self.turns
        own = frozenset().union(*self.signature)
        if again and self.results and any(l.is_reduce for l in own):
            own |= self.results
        return self.share * math.prod(l.size for l in own)


@dataclass(eq=False, slots=True)
class Fusion:
    """The decision: `stored` nodes, and for each the loops of its kernel."""

    stored: dict[UOp, None] = field(default_factory=dict)
    uses: dict[UOp, dict[UOp, list[Use]]] = field(default_factory=dict)
    # the loops of each stored value's kernel, outermost first, and the same axis by axis
    loops: dict[UOp, list[Loop]] = field(default_factory=dict)
    signature: dict[UOp, Signature] = field(default_factory=dict)
    contraction: dict[UOp, UOp] = field(default_factory=dict)  # kernel -> the one contraction fused into it
    reduces: set[UOp] = field(default_factory=set)  # kernels that some reduction is fused into
    # the axes of stored values from the outside in, where they lie as what they are computed from
    orders: dict[UOp, tuple[int, ...]] = field(default_factory=dict)


def concrete(d: sint) -> int:
    """A dimension at its largest."""
    return d if isinstance(d, int) else int(d.vmax)


_numel: dict[UOp, int] = {}  # known sizes; emptied after every schedule
_contractions: dict[UOp, bool] = {}  # and which reductions are contractions


def numel(u: UOp) -> int:
    """How many elements `u` has, a symbolic dimension at its largest."""
    n = _numel.get(u)
    if n is None:
        n = _numel[u] = math.prod([d if d.__class__ is int else concrete(d) for d in u.shape])
    return n


def forget_nodes() -> None:
    """Let go of the nodes of which something is known."""
    _numel.clear()
    _contractions.clear()


def nbytes(u: UOp) -> int:
    """Bytes of a value when it is stored."""
    return numel(u) * strong(u.dtype).itemsize


def must_store(order: dict[UOp, None]) -> dict[UOp, None]:
    """Values that have to be in memory whatever the cost: results, copies, what is stored on request."""
    forced: dict[UOp, None] = {}
    in_place = _scattered_in_place(order)
    for u in order:
        if u.op is Ops.CONTIGUOUS or u.op in OpGroup.TRANSFER or u.op is Ops.SCATTER and u not in in_place:
            forced[u] = None
            if u.op in OpGroup.TRANSFER and not is_flat_view(u.src[0]):  # a transfer takes a whole storage
                forced[u.src[0]] = None
        elif u.op is Ops.STORE or u.op is Ops.CALL:
            forced[u] = None
        elif u.op is Ops.SINK:
            for s in u.src:
                if not is_view(s) and s.op is not Ops.STORE:
                    forced[s] = None
    forced.update(_compared_with_themselves(order, forced))
    return forced


def _scattered_in_place(order: dict[UOp, None]) -> set[UOp]:
    """SCATTERs that one assignment reads and nothing else: they are made in its target."""
    found = {u.src[1] for u in order if walks(u) and u.op is Ops.STORE}
    for u in order if found else ():
        if u.op is not Ops.STORE:
            found.difference_update(u.src)
    return found


def walks(kernel: UOp) -> bool:
    """Whether the kernel of this stored value goes along positions (a SCATTER, or an assignment of one)."""
    return kernel.op is Ops.SCATTER or kernel.op is Ops.STORE and kernel.src[1].op is Ops.SCATTER


def _compared_with_themselves(order: dict[UOp, None], forced: dict[UOp, None]) -> dict[UOp, None]:
    """Sums of floats from which both sides of a comparison come, as in `x == x.max()` of a product `x`.

    Two computations of a sum may differ by rounding, as loops and lanes order it: equal values would then compare
    unequal. So the sum (with the elementwise operations that follow it alone) is stored, and both sides read the same
    bits.
    """
    sums: list[UOp] = []
    below: dict[UOp, int] = {}
    readers: dict[UOp, list[UOp]] = {}
    found = 0
    for u in order:
        if u.op in OpGroup.COMPARISON:
            found |= below[u.src[0]] & below[u.src[1]]
        if u in forced or is_leaf(u):
            below[u] = 0
        elif u.op is Ops.REDUCE and u.arg[0] in (Ops.ADD, Ops.MUL) and u.dtype.kind == "f":
            below[u] = 1 << len(sums)
            sums.append(u)
        else:
            mask = 0
            for s in u.src:
                mask |= below[s]
            below[u] = mask
        for s in u.src:
            readers.setdefault(s, []).append(u)
    out: dict[UOp, None] = {}
    for i, u in enumerate(sums):
        if found >> i & 1:
            while (
                len(readers[u]) == 1
                and readers[u][0].op in OpGroup.ALU - OpGroup.COMPARISON
                and readers[u][0].shape == u.shape
            ):
                u = readers[u][0]
            out[u] = None
    return out


def choose_stored(sink: UOp) -> Fusion:
    """The values to store (STORE nodes stand for assignments). Two rounds: the second knows what the first stored."""
    order = sink.toposort()
    forced = must_store(order)
    stops = forced
    narrow = narrow_factors(order)
    fusion = Fusion()
    for _ in range(2):
        fusion = _decide(order, forced, stops, narrow)
        stops = fusion.stored
    return fusion


def is_leaf(u: UOp) -> bool:
    """Whether a kernel reads `u` instead of computing it."""
    return u.op in _LEAVES


def is_contraction(u: UOp) -> bool:
    """A reduction whose body is larger than what it reads: operands are used more than once."""
    found = _contractions.get(u)
    if found is None:
        found = _contractions[u] = _reads_again(u)
    return found


def _reads_again(u: UOp) -> bool:
    body = u.src[0]
    total = numel(body)
    while body.op in OpGroup.MOVEMENT:
        body = body.src[0]
    if total < 2 * numel(u) or total <= 1:
        return False
    stack, seen, read = [body], set(), 0
    while stack:
        n = stack.pop()
        if n in seen:
            continue
        seen.add(n)
        if len(seen) > 64:
            return False
        if is_leaf(n):
            read += numel(n) if n.op is not Ops.CONST else 0
        elif n.op is Ops.EXPAND or n.op is Ops.REDUCE:
            read += numel(n.src[0]) if n.op is Ops.EXPAND else numel(n)
        else:
            stack.extend(n.src[:1] if n.op in OpGroup.MOVEMENT else n.src)
    return body.op in (Ops.MUL, Ops.CAST) and read * 2 < total


_LEAVES = OpGroup.STORAGE | {Ops.AFTER, Ops.CONST, Ops.Invalid}


def region_cost(
    u: UOp,
    stops: dict[UOp, None],
    per_op: float = 0.0,
    per_byte: float = 0.0,
    enough: float = math.inf,
    is_free: Callable[[UOp], bool] | None = None,
) -> tuple[float, float, UOp | None]:
    """(operations to compute all of `u` once, bytes of stored values read, a reduction that lies in it or None).

    Counting ends where `per_op * operations + per_byte * bytes` exceeds `enough`. Values for which `is_free` holds cost
    nothing: they are at hand in any case.
    """
    ops = leaves = 0.0
    reduction = None
    stack, seen = [u], {u}
    while stack:
        n = stack.pop()
        if ops and per_op * ops + per_byte * leaves > enough:
            break
        if is_free and n is not u and is_free(n):
            continue
        if n is not u and (n.op in _LEAVES or n in stops):
            leaves += 0 if n.op is Ops.CONST else min(nbytes(n), 1 << 40)
            continue
        if n.op is Ops.SHRINK and (is_leaf(n.base) or n.base in stops):
            leaves += min(nbytes(n), nbytes(n.base))
            continue
        if n.op in OpGroup.ALU or n.op is Ops.CAST:
            ops += OP_WEIGHT.get(n.op, 1.0) * numel(n)
        elif n.op is Ops.REDUCE:
            ops += numel(n.src[0])
            reduction = n
        elif n.op is Ops.PAD:
            ops += 2.0 * numel(n)
        if len(seen) > 512:
            break
        for s in n.src[:1] if n.op in OpGroup.MOVEMENT else n.src:
            if s not in seen:
                seen.add(s)
                stack.append(s)
    return ops, leaves, reduction


def _decide(order: dict[UOp, None], forced: dict[UOp, None], stops: dict[UOp, None], narrow: set[UOp]) -> Fusion:
    out = Fusion()
    uses = out.uses
    for u in reversed(order):
        if u.op is Ops.SINK or u.op in (Ops.CONST, Ops.Invalid) or u.op in OpGroup.STORAGE:
            continue
        if u.op is Ops.AFTER:  # a read of memory; the effects behind it are kernels of their own
            continue
        if u in forced or u not in narrow and _should_store(u, out, stops):
            out.stored[u] = None
            value = u.src[1] if u.op is Ops.STORE else u
            shape = u.src[0].shape if u.op is Ops.STORE else u.shape
            loops = tuple([frozenset((Loop(concrete(d), False),)) if concrete(d) != 1 else _NO_LOOPS for d in shape])
            use = Use(loops, 0, frozenset().union(*loops))
            out.signature[u] = loops
            out.loops[u] = [l for axis in loops for l in axis]
            if u.op is Ops.REDUCE and is_contraction(u):
                out.contraction[u] = u
            if u.op is Ops.STORE:
                _add(uses, value, u, Use(loops if value.shape else (), 0, use.loops))
            elif u.op not in OpGroup.TRANSFER and u.op is not Ops.CALL:
                _spread(uses, u, u, use, {})
            continue
        shared: dict[Signature, dict[int, Loop]] = {}
        for kernel, ways in uses.get(u, {}).items():
            for use in ways:
                _spread(uses, u, kernel, use, shared.setdefault(use.signature, {}))
    out.stored = {u: None for u in order if u in out.stored}
    return out


def _add(uses: dict[UOp, dict[UOp, list[Use]]], u: UOp, kernel: UOp, use: Use) -> None:
    ways = uses.setdefault(u, {}).setdefault(kernel, [])
    if all(w.signature != use.signature for w in ways):
        ways.append(use)


def _spread(uses: dict[UOp, dict[UOp, list[Use]]], u: UOp, kernel: UOp, use: Use, loops: dict[int, Loop]) -> None:
    """Hand the evaluation of `u` on to its sources."""
    sig = use.signature
    if u.op is Ops.REDUCE:
        inner = list(sig)
        for a in u.arg[1]:
            n = concrete(u.src[0].shape[a])
            if n != 1:
                inner[a] = frozenset((loops.setdefault(a, Loop(n, True)),))
        around = use.loops.union(*inner)
        turns = float(math.prod(l.size for l in around)) if is_contraction(u) else use.turns
        _add(uses, u.src[0], kernel, Use(tuple(inner), turns, around, use.share, frozenset().union(*sig)))
    elif u.op in OpGroup.MOVEMENT:
        share = use.share * numel(u.src[0]) / max(1, numel(u)) if u.op is Ops.PAD else use.share
        _add(uses, u.src[0], kernel, Use(_move(u, sig), use.turns, use.loops, share, use.results))
    elif u.op is Ops.INDEX:
        x, place = u.src
        k = len(place.shape)
        rows = (_NO_LOOPS.union(*sig[:k]), *sig[k:])
        _add(uses, place, kernel, Use(sig[:k], use.turns, use.loops, use.share, use.results))
        _add(uses, x, kernel, Use(rows, use.turns, use.loops, use.share, use.results))
    elif u.op is Ops.SCATTER:
        x, values, places = u.src
        walk = tuple([frozenset((Loop(concrete(d), False),)) for d in places.shape])
        around = use.loops.union(*walk)
        _add(uses, x, kernel, use)
        _add(uses, values, kernel, Use((*walk, *sig[1:]), 0, around))
        _add(uses, places, kernel, Use(walk, float(WALKS * numel(places)), around))
    elif u.op is Ops.STACK:
        for s in u.src:
            _add(uses, s, kernel, Use(sig[1:], use.turns, use.loops, use.share, use.results))
    else:
        for s in u.src:
            _add(uses, s, kernel, use if s.shape else Use((), 0, use.loops))


def _move(u: UOp, sig: Signature) -> Signature:
    shape = u.src[0].shape
    arg = movement_arg(u)
    if u.op is Ops.EXPAND:
        return tuple([_NO_LOOPS if concrete(s) == 1 else x for s, x in zip(shape, sig, strict=True)])
    if u.op is Ops.PERMUTE:
        out = [_NO_LOOPS] * len(arg)
        for k, axis in enumerate(arg):
            out[axis] = sig[k]
        return tuple(out)
    if u.op is Ops.SHEAR:
        return tuple([x | sig[arg[1]] if i == arg[0] else x for i, x in enumerate(sig)])
    if u.op is not Ops.RESHAPE:
        return sig
    result: list[frozenset[Loop]] = []
    target = [concrete(d) for d in u.shape]
    source = [concrete(d) for d in shape]
    i = 0
    while len(result) < len(source):
        # the smallest blocks of equal size, as in lowering
        first, n, m, block = i, 1, source[len(result)], [len(result)]
        while n != m or (i < len(target) and target[i] == 1 and n == m and i == first):
            if n < m and i < len(target):
                n *= target[i]
                i += 1
            elif len(result) + len(block) < len(source):
                block.append(len(result) + len(block))
                m *= source[block[-1]]
            elif i < len(target):
                n *= target[i]
                i += 1
            else:
                break
        loops = frozenset().union(*sig[first:i]) if i > first else _NO_LOOPS
        result.extend(loops if source[b] != 1 else _NO_LOOPS for b in block)
    return tuple(result)


def _should_store(u: UOp, fusion: Fusion, stops: dict[UOp, None]) -> bool:
    uses = fusion.uses.get(u, {})
    if not uses or not u.shape and u.op is not Ops.REDUCE:
        return False
    if u.op in OpGroup.MOVEMENT and (
        u.op is not Ops.PAD or is_view(u.src[0]) and len(uses) == 1 and not _in_contraction(uses)
    ):
        return False
    if u.op in (Ops.BITCAST, Ops.STACK):
        return False
    size, count = nbytes(u), numel(u)
    if count == 0:
        return False
    # Positions and conditions come with the loops; of floats, what a reduction reads is made for each of its results.
    again = u.dtype.kind == "f"
    evaluations = [sum(w.evaluations(again) for w in ways) for ways in uses.values()]
    if u.op is Ops.REDUCE:
        if len(uses) > 1 or any(walks(kernel) for kernel in uses):
            return True
        kernel, ways = next(iter(uses.items()))
        contraction = is_contraction(u)
        # A contraction's loops are tiled; another reduction beside it would be gone through once a tile.
        if (
            kernel in fusion.contraction
            or contraction
            and kernel in fusion.reduces
            or not _fits_reader(u, ways, fusion.loops[kernel], contraction, stops)
        ):
            return True
        fusion.reduces.add(kernel)
        if contraction:
            fusion.contraction[kernel] = u
    if len(uses) == 1 and evaluations[0] <= count * 1.001:
        return False
    times, extra = sum(evaluations) / count, size * (1 + len(uses))
    enough = extra + (ALONE_BYTES * count if _inner(u) < SHORT_ROW else 0.0)
    is_free = (lambda n: _is_at_hand(n, uses, fusion)) if u.dtype is dtypes.bool else None
    ops, leaves, reduction = region_cost(u, stops, (times - 1) * OP_BYTES, len(uses) - 1, enough, is_free)
    if ops == 0 and u.op is not Ops.PAD:
        return False
    fused = times * OP_BYTES * ops + len(uses) * leaves
    windows = leaves < WORD * count and _inner(u) < SHORT_ROW
    stored = OP_BYTES * ops + leaves + extra + (ALONE_BYTES * count if windows else 0.0)
    if reduction is not None and len(uses) > 1:
        fused += size
        if windows:  # the reduction would be stored instead
            above = region_cost(u, {**stops, reduction: None})
            below = region_cost(reduction, stops)
            made = OP_BYTES * below[0] + below[1] + nbytes(reduction)
            fused = min(fused, times * OP_BYTES * above[0] + len(uses) * above[1] + made)
    return stored < fused


def _is_at_hand(n: UOp, uses: dict[UOp, list[Use]], fusion: Fusion) -> bool:
    """Whether every kernel in `uses` has the same element of `n` in each of these turns, for other readers of it.

    So the sign of a value is not stored for those that read the value too: it has a quarter of its bytes.
    """
    known = fusion.uses.get(n, {})
    return all(
        any(w.signature == use.signature for w in known.get(kernel, ()))
        for kernel, ways in uses.items()
        for use in ways
    )


def _inner(u: UOp) -> int:
    """The length of a value's rows."""
    return next((concrete(d) for d in reversed(u.shape) if concrete(d) > 1), 1)


def _in_contraction(uses: dict[UOp, list[Use]]) -> bool:
    return any(w.turns for ways in uses.values() for w in ways)


def _fits_reader(u: UOp, ways: list[Use], order: list[Loop], contraction: bool, stops: dict[UOp, None]) -> bool:
    """Whether the one kernel that reads reduction `u`, with loops in this order, may compute it."""
    count, body = numel(u), numel(u.src[0])
    length = body // max(count, 1)
    if any(w.turns for w in ways):
        return False  # an operand of a contraction
    evaluations = sum(w.reached() for w in ways)
    if evaluations > count:
        return not contraction and length <= SMALL_REDUCTION and OP_BYTES * body * evaluations / count < 2 * nbytes(u)
    for w in ways:
        own = frozenset().union(*w.signature)
        outside = w.loops - own
        if any(l.is_reduce for l in own) and length > SMALL_REDUCTION:
            return False  # a long reduction inside another one's loop
        if math.prod(l.size for l in outside) > 1:
            kept = [l for l in order if l.size > 1]
            if contraction or set(kept[: len(own)]) != own:
                return False  # its loops are not the outermost ones: nothing would hoist it
            _, leaves, _ = region_cost(u, stops)
            if leaves / max(count, 1) > ROW_BYTES or (count < ROW_RESULTS and body > LONG_ROW):
                return False
    return True
