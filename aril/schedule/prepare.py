"""Passes on the normalised tensor graph before fusion: drop what means nothing to a schedule, split long reductions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from aril.dtype import DType, dtypes
from aril.ops import OpGroup, Ops
from aril.uop import UOp
from aril.uop.shape import expand, pad, reduce, reshape

_MARKS = frozenset({Ops.DETACH, Ops.CONTIGUOUS_BACKWARD, Ops.NOOP})

# A reduction with fewer results than this over at least this many elements each is done in two kernels: the partial
# results give every core work, the second kernel is small.
FEW_RESULTS = 64
LONG_REDUCTION = 1 << 15
PARTS = 64


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
    done: dict[UOp, UOp] = {}
    for u in sink.toposort():
        new = u.with_src(tuple([done[s] for s in u.src])) if u.src else u
        if (
            new.op in _MARKS
            or (new.op is Ops.CONTIGUOUS and new.tag is None and is_flat_view(new.src[0]))
            or (new.op is Ops.COPY and new.src[0].device == new.arg)
        ):
            new = new.src[0]
        done[u] = new
    return done[sink]


def read_masks_from_results(sink: UOp) -> UOp:
    """`0 < x` is read from `relu(x)` where the graph has it, so that a backward pass needs the result only, not x too.

    relu(x) is WHERE(0 < x, x, 0), or MAX(x, 0); both are positive exactly where x is (NaN compares false in the
    first; in the second NaN stays NaN and compares false as well). Before: ``CMPLT(0, x)``. After: ``CMPLT(0,
    WHERE(CMPLT(0, x), x, 0))``.
    """
    order = sink.toposort()
    results: dict[UOp, tuple[UOp, UOp | None]] = {}
    for u in order:
        if u.op is Ops.WHERE and _is_zero(u.src[2]):
            mask, x = u.src[0], u.src[1]
            if mask.op is Ops.CMPLT and _is_zero(mask.src[0]) and mask.src[1] is x and x.dtype.kind == "f":
                results[mask] = (u, mask)
    if not results:
        return sink
    done: dict[UOp, UOp] = {}
    for u in order:
        src = []
        for s in u.src:
            if s in results and u is not results[s][0]:
                result = done.get(results[s][0])
                src.append(done[s] if result is None else UOp(Ops.CMPLT, (s.src[0], result)))
            else:
                src.append(done[s])
        done[u] = u.with_src(tuple(src))
    return done[sink]


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
    found = {}
    for u in sink.toposort():
        if u.op is Ops.REDUCE and 0 in u.src[0].shape and 0 not in u.shape and u.arg[0] in IDENTITY:
            one = reshape(UOp.const(u.dtype, IDENTITY[u.arg[0]](u.dtype)), (1,) * len(u.shape))
            found[u] = expand(one, u.shape)
    return sink.substitute(found)


def split_long_reductions(sink: UOp) -> UOp:
    """Few results over many elements are reduced in two steps, the first in `PARTS` independent parts.

    Before: ``REDUCE(x (4096, 4096), ADD, (0, 1))``. After: ``REDUCE(CONTIGUOUS(REDUCE(x (64, 64, 4096), ADD, (1,
    2))), ADD, (0,))``.
    """
    done: dict[UOp, UOp] = {}
    for u in sink.toposort():
        new = u.with_src(tuple([done[s] for s in u.src])) if u.src else u
        if new.op is Ops.REDUCE and new.arg[0] in IDENTITY:
            new = _split_reduction(new)
        done[u] = new
    return done[sink]


def _split_reduction(u: UOp) -> UOp:
    x, (op, axes) = u.src[0], u.arg
    shape = x.shape
    if not all(isinstance(d, int) for d in shape):
        return u
    results = math.prod([d for i, d in enumerate(shape) if i not in axes and isinstance(d, int)])
    length = math.prod([int(shape[a]) for a in axes])
    if results >= FEW_RESULTS or length < LONG_REDUCTION or results == 0:
        return u
    axis = max(axes, key=lambda a: (shape[a] >= PARTS, -a))
    n = int(shape[axis])
    if n < 2:
        return u
    parts = min(PARTS, n)
    inner = -(-n // parts)
    parts = -(-n // inner)
    if parts * inner != n:
        amount = tuple((0, parts * inner - n) if i == axis else (0, 0) for i in range(len(shape)))
        x = pad(x, amount, IDENTITY[op](x.dtype))
    split = reshape(x, (*shape[:axis], parts, inner, *shape[axis + 1 :]))
    inner_axes = tuple(a + (a >= axis) if a != axis else axis + 1 for a in axes)
    partial = UOp(Ops.CONTIGUOUS, (reduce(split, op, inner_axes),))
    return reshape(reduce(partial, op, (axis,)), u.shape)
