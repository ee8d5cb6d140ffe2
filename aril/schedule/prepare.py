"""Passes on the normalised tensor graph before fusion: drop what means nothing to a schedule, split long reductions."""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from typing import Any

from aril.dtype import DType, dtypes
from aril.ops import OpGroup, Ops
from aril.uop import UOp
from aril.uop.node import Shape
from aril.uop.order import use_counts
from aril.uop.pattern import Pat, Rules, V
from aril.uop.rewrite import rewrite
from aril.uop.shape import expand, permute, reduce, reshape, shrink
from aril.uop.symbolic import simplify

# A reduction with fewer results than this over at least this many elements each is done in two kernels: the partial
# results give every core work, the second kernel is small.
FEW_RESULTS = 64
LONG_REDUCTION = 1 << 15
PARTS = 64
VARIABLE_PARTS = 16  # of a variable length: what they leave is no part, and few elements make short ones

# The sum over the rows of a matrix of at least LARGE_MATRIX bytes is done in parts of about PART_BYTES, where there are
# not FEW_MATRICES of them for threads to share, nor MANY_COLUMNS. If all it is computed from is in memory, LARGE_STORED
# bytes are enough: where a kernel computes it first, what is summed is still in the caches.
LARGE_MATRIX = 4 << 20
LARGE_STORED = 2 << 20
PART_BYTES = 512 << 10
PART_ROWS = 32
MATRIX_PARTS = 32  # of 64 the combination, which one thread makes of what others hold in their caches, took a twentieth
FEW_MATRICES = 9
MANY_COLUMNS = 1 << 15
WALK = 64  # nodes that are looked at to see how an operand lies in memory


def is_view(u: UOp) -> bool:
    """True for storage seen through movement operations that need no kernel to be read (no PAD)."""
    while u.op in OpGroup.MOVEMENT:
        if u.op is Ops.PAD:
            return False
        u = u.src[0]
    return u.op in OpGroup.STORAGE or u.op is Ops.AFTER


def is_flat_view(u: UOp) -> bool:
    """True for whole storage in its own order (RESHAPEs only)."""
    while u.op is Ops.RESHAPE:
        u = u.src[0]
    return u.op in OpGroup.STORAGE and not u.is_variable or u.op is Ops.AFTER and is_flat_view(u.src[0])


def drop_marks(sink: UOp) -> UOp:
    """DETACH and the like are gone; a CONTIGUOUS of whole storage and a COPY to the same device are their source.

    Before: ``CONTIGUOUS(RESHAPE(PARAM))``. After: ``RESHAPE(PARAM)``.
    """
    return rewrite(sink, _MARKS_DROPPED, once=True)


_MARKS_DROPPED = Rules(
    [
        (Pat((Ops.DETACH, Ops.CONTIGUOUS_BACKWARD, Ops.NOOP), (V("x"),)), lambda x: x),
        (
            Pat(Ops.CONTIGUOUS, (V("x"),), name="u"),
            lambda u, x: x if u.tag is None and is_flat_view(x) else None,
        ),
        (Pat(Ops.COPY, (V("x"),), name="u"), lambda u, x: x if x.device == u.arg else None),
    ],
    name="drop marks",
)


_UNSIGNED = {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}


def split_bitcasts(sink: UOp) -> UOp:
    """A BITCAST to elements of another size is shifts of whole numbers, the low part first, as it lies in memory.

    Before: ``BITCAST(x (4,) uint32, uint16)``. After: ``RESHAPE(CAST(SHR(x (4, 1), (0, 16)), uint16), (8,))``.
    """
    return rewrite(sink, _BITCASTS_SPLIT, once=True)


def _shifted(u: UOp, x: UOp) -> UOp | None:
    if u.shape == x.shape:
        return None
    old, new = _UNSIGNED[x.dtype.itemsize], _UNSIGNED[u.dtype.itemsize]
    parts = max(old.itemsize, new.itemsize) // min(old.itemsize, new.itemsize)
    wide = old if old.itemsize > new.itemsize else new
    place = UOp.iota(parts).cast(wide) * min(old.bits, new.bits)
    bits, lead = x.bitcast(old), x.shape[:-1]
    if new.itemsize < old.itemsize:
        out = reshape((reshape(bits, (*x.shape, 1)) >> place).cast(new), u.shape)
    else:
        each = reshape(bits, (*lead, u.shape[-1], parts)).cast(wide)
        out = reshape(reduce(each << place, Ops.ADD, (len(lead) + 1,)), u.shape)
    return out.bitcast(u.dtype)


_BITCASTS_SPLIT = Rules([(Pat(Ops.BITCAST, (V("x"),), name="u"), _shifted)], name="split bitcasts")


def read_masks_from_results(sink: UOp) -> UOp:
    """`0 < x` is read from `relu(x)` where the graph has it, so that a backward pass needs the result only, not x too.

    relu(x) is WHERE(0 < x, x, 0), or MAX(x, 0); both are positive exactly where x is (NaN compares false in the
    first; in the second NaN stays NaN and compares false as well). Before: ``CMPLT(0, x)``. After: ``CMPLT(0,
    WHERE(CMPLT(0, x), x, 0))``.
    """
    results: dict[UOp, UOp] = {}
    for u in sink.toposort():
        if u.op is Ops.WHERE and _is_zero(u.src[2]):
            mask, x = u.src[0], u.src[1]
            if mask.op is Ops.CMPLT and _is_zero(mask.src[0]) and mask.src[1] is x and x.dtype.kind == "f":
                results[mask] = u
    if not results:
        return sink
    done: dict[UOp, UOp] = {}
    return rewrite(sink, _MASKS_READ, (results, done), once=True, done=done)


def _with_masks_of_results(ctx: tuple[dict[UOp, UOp], dict[UOp, UOp]], u: UOp, old: UOp) -> UOp | None:
    results, done = ctx
    if results.keys().isdisjoint(old.src):
        return None
    src = list(u.src)
    for i, s in enumerate(old.src):
        result = done.get(results[s]) if s in results and old is not results[s] else None
        if result is not None:
            src[i] = UOp(Ops.CMPLT, (s.src[0], result))
    return u.with_src(tuple(src))


_MASKS_READ = Rules([(Pat(name="u"), _with_masks_of_results)], name="read masks from results")


def _is_zero(u: UOp) -> bool:
    while u.op in (Ops.RESHAPE, Ops.EXPAND, Ops.CAST):
        u = u.src[0]
    return u.op is Ops.CONST and u.arg == 0


IDENTITY: dict[Ops, Callable[[DType], Any]] = {
    Ops.ADD: lambda d: 0,
    Ops.MUL: lambda d: 1,
    Ops.MAX: lambda d: d.min,
    Ops.AND: lambda d: True if d is dtypes.bool else -1,
    Ops.OR: lambda d: 0,
    Ops.XOR: lambda d: 0,
}


def empty_reductions(sink: UOp) -> UOp:
    """A reduction over no elements is its identity. Before: ``REDUCE(x (3, 0), ADD, (1,))``. After: ``EXPAND(0, (3,
    1))``.
    """
    return rewrite(sink, _EMPTY_REDUCTIONS, once=True)


def _identity_of_nothing(u: UOp) -> UOp | None:
    if 0 not in u.src[0].shape or 0 in u.shape or u.arg[0] not in IDENTITY:
        return None
    one = reshape(UOp.const(u.dtype, IDENTITY[u.arg[0]](u.dtype)), (1,) * len(u.shape))
    return expand(one, u.shape)


_EMPTY_REDUCTIONS = Rules([(Pat(Ops.REDUCE, name="u"), _identity_of_nothing)], name="empty reductions")


def scatter_into_targets(sink: UOp) -> UOp:
    """A SCATTER is stored as it is made, whatever rearranges it: into the target seen that way.

    Before: ``STORE(t (4, 3), RESHAPE(SCATTER(x (12,), ..)))``. After: ``STORE(RESHAPE(t, (12,)), SCATTER(x, ..))``.
    """
    return rewrite(sink, _SCATTERS_STORED, once=True)


def _stored_as_made(target: UOp, value: UOp) -> UOp | None:
    while value.op in (Ops.RESHAPE, Ops.PERMUTE) and len(value.src) == 1:
        if value.op is Ops.RESHAPE:
            target = reshape(target, value.src[0].shape)
        else:
            target = permute(target, tuple(sorted(range(len(value.arg)), key=value.arg.__getitem__)))
        value = value.src[0]
    return UOp(Ops.STORE, (target, value)) if value.op is Ops.SCATTER else None


_SCATTERS_STORED = Rules([(Pat(Ops.STORE, (V("target"), V("value"))), _stored_as_made)], name="scatter into targets")


def split_long_reductions(sink: UOp) -> UOp:
    """Few results over many elements are reduced in two steps, the first in independent parts; so are the columns of
    a matrix larger than the caches, whose rows are then gone over in the order of memory.

    Before: ``REDUCE(x (4096, 4096), ADD, (0, 1))``. After: ``REDUCE(CONTIGUOUS(REDUCE(x (64, 64, 4096), ADD, (1,
    2))), ADD, (0,))``.
    """
    return rewrite(sink, _REDUCTIONS_SPLIT, (use_counts(sink.toposort()), set()), once=True)


def _with_reductions_split(ctx: tuple[dict[UOp, int], set[UOp]], u: UOp, old: UOp) -> UOp:
    readers, shared = ctx
    new = _split_reduction(u, shared) if u.op is Ops.REDUCE and u.arg[0] in IDENTITY else u
    if readers.get(old, 0) > 1:
        shared.add(new)
    return new


_REDUCTIONS_SPLIT = Rules([(Pat(name="u"), _with_reductions_split)], name="split long reductions")


def _split_reduction(u: UOp, shared: set[UOp]) -> UOp:
    x, axes = u.src[0], u.arg[1]
    shape = _room(x.shape)
    if 0 in shape:
        return u
    results = math.prod([d for i, d in enumerate(shape) if i not in axes])
    length = math.prod([shape[a] for a in axes])
    if results < FEW_RESULTS:
        axis = axis_of_parts(x, axes, PARTS)
        return _in_parts(u, shared, axis, PARTS, False) if length >= LONG_REDUCTION else u
    size = results * length * x.dtype.itemsize
    if len(axes) > 1 or size < LARGE_STORED or length < 4 * PART_ROWS:
        return u
    if size < LARGE_MATRIX and not is_stored(x):
        return u
    columns = inner_axis(x)
    if columns is None or columns in axes or shape[columns] > MANY_COLUMNS:
        return u
    others = results // shape[columns]  # matrices, or weights of each row
    if others >= FEW_MATRICES:
        return u
    return _in_parts(u, shared, axes[0], min(MATRIX_PARTS, size // PART_BYTES, length // (PART_ROWS * others)), True)


def _in_parts(u: UOp, shared: set[UOp], axis: int, parts: int, columns: bool) -> UOp:
    """`u` in about `parts` parts of equal length along `axis`; what is left over is a short part of its own."""
    x, (op, axes) = u.src[0], u.arg
    n = x.shape[axis]
    inner: int | UOp
    rest: int | UOp
    if not isinstance(n, int):
        parts = min(parts, VARIABLE_PARTS)
        inner, rest = simplify(n // parts), simplify(n % parts)
    elif n < 2 or parts < 2:
        return u
    else:
        # What is left over is done by one thread: a few parts more may leave less.
        most = range(parts, min(n, parts * 3 // 2) + 1)
        inner = -(-n // parts) if parts * 4 > n else n // min(most, key=lambda p: n % p)
        parts, rest = divmod(n, inner)
    if parts < 2:
        return u

    split = reshape(part_of(x, axis, 0, n - rest, shared), (*x.shape[:axis], parts, inner, *x.shape[axis + 1 :]))
    partial = reduce(split, op, tuple([a + (a >= axis) for a in axes]))
    order = [axis, *[a for a in range(len(partial.shape)) if a != axis]] if columns else list(range(len(partial.shape)))
    partial = UOp(Ops.CONTIGUOUS, (permute(partial, tuple(order)),))  # a part's columns in a row, as they are summed
    total = reshape(reduce(partial, op, (order.index(axis),)), u.shape)
    if rest == 0:
        return total
    return UOp(op, (total, reduce(part_of(x, axis, n - rest, rest, shared), op, axes)))


def part_of(x: UOp, axis: int, start: int | UOp, length: int | UOp, shared: Container[UOp] = ()) -> UOp:
    """Elements of `x` along `axis`, computed from what is `shared` or in memory: were a value that several parts read
    cut itself, it would be stored for them."""

    def is_inner(v: UOp) -> bool:
        return v not in shared and v.op in OpGroup.ELEMENTWISE

    def part(v: UOp) -> UOp:
        return shrink(v, tuple([(start, length) if i == axis else (0, d) for i, d in enumerate(v.shape)]))

    return x.substitute({v: part(v) for v in x.toposort(is_inner) if v.shape and not is_inner(v)}, is_inner)


def _room(shape: Shape) -> list[int]:
    """The length of each axis, or the most it can be."""
    return [d if isinstance(d, int) else int(d.vmax) for d in shape]


def is_stored(x: UOp) -> bool:
    """Whether `x` is computed, element by element, from storage and constants alone."""
    below = x.toposort(lambda v: v.op in OpGroup.ELEMENTWISE)
    return all(v.op in OpGroup.ELEMENTWISE or v.op is Ops.CONST or is_view(v) for v in below)


def axis_of_parts(x: UOp, axes: tuple[int, ...], parts: int) -> int:
    """Which of `axes` is cut where a reduction of `x` over them is done in `parts`: of those that are long enough the
    one whose parts lie the farthest apart in memory."""
    shape, order = _room(x.shape), axes_in_memory(x)
    known = all(shape[a] == 1 or a in order for a in axes)
    place = {a: i for i, a in enumerate(order if known else axes)}
    return max(axes, key=lambda a: (shape[a] >= parts, -place.get(a, 0)))


def inner_axis(x: UOp) -> int | None:
    """The axis of `x` along which the largest storage it reads lies in a row; None where that is unclear."""
    order = axes_in_memory(x)
    return order[-1] if order else None


def axes_in_memory(x: UOp) -> list[int | None]:
    """The axes of `x`, as they follow each other in the largest storage it reads, the one whose elements lie in a row
    last; None for one that is no axis of `x`. Empty where that is unclear."""
    best: tuple[int, list[int | None]] = (0, [])
    stack: list[tuple[UOp, tuple[int | None, ...]]] = [(x, tuple(range(len(x.shape))))]
    seen: set[UOp] = set()
    while stack:
        u, axes = stack.pop()
        if u in seen:
            continue
        seen.add(u)
        if len(seen) > WALK or u.op is Ops.RESHAPE and not all(isinstance(d, int) for d in (*u.shape, *u.src[0].shape)):
            return []
        shape = _room(u.shape)
        if u.op in OpGroup.ELEMENTWISE:
            stack.extend([(s, axes) for s in u.src if s.shape == u.shape])
        elif u.op in OpGroup.MOVEMENT and not is_flat_view(u):
            stack.append((u.src[0], _axes_below(u, axes)))
        elif u.op is not Ops.CONST and math.prod(shape) > best[0]:
            wide = [a for a, d in zip(axes, shape, strict=True) if d > 1]
            best = (math.prod(shape), wide)
    return best[1]


def _axes_below(u: UOp, axes: tuple[int | None, ...]) -> tuple[int | None, ...]:
    """Which of `axes` (one for each axis of movement node `u`) each axis of its source is; None where it is none."""
    source, shape = u.src[0].shape, u.shape
    if u.op is Ops.PERMUTE:
        return tuple([axes[u.arg.index(i)] for i in range(len(source))])
    if u.op is Ops.EXPAND:
        return tuple([a if d == s else None for a, d, s in zip(axes, shape, source, strict=True)])
    if u.op is not Ops.RESHAPE:
        return axes
    steps = {_step(shape, i): a for i, a in enumerate(axes) if shape[i] != 1}
    return tuple([steps.get(_step(source, i)) if d != 1 else None for i, d in enumerate(source)])


def _step(shape: Shape, axis: int) -> int:
    return math.prod([int(d) for d in shape[axis + 1 :] if isinstance(d, int)])
