"""Kernels that store a join (parts padded to their places and added or chosen between) store each part on its own.

In: drafts, after merging. Out: drafts where every nest covers a stretch of an axis in which each part either is whole
or is absent, so that a part is read at its own places only. `cat`, `stack`, and the gradient of a value that was read
in slices (the gates of a recurrent cell, its input at each step) are joins; of n parts, n - 1 loads of each element
and their gates go.
"""

from __future__ import annotations

import math
from dataclasses import replace

from aril.ops import OpGroup, Ops
from aril.schedule.fuse import SHORT_ROW, concrete
from aril.schedule.merge import NESTS_PER_KERNEL, Draft
from aril.uop import UOp
from aril.uop.node import Shape
from aril.uop.shape import expand, movement_arg, pad, reshape, shrink

STRETCH = 1 << 10  # elements of a stretch, on average, from which a loop of its own is worth its code

Stretch = tuple[int, int]  # along an axis: start, length


def split_joins(drafts: list[Draft]) -> list[Draft]:
    """Drafts of one elementwise value over joins become nests over their parts, several kernels where they are many."""
    out: list[Draft] = []
    for d in drafts:
        nests = [] if d.has_reduce or d.alone or [len(s) for s in d.stores] != [1] else _nests(*d.stores[0][0])
        while len(nests) > NESTS_PER_KERNEL:
            first = replace(d, stores=nests[:NESTS_PER_KERNEL], deps=set(d.deps))
            nests = nests[NESTS_PER_KERNEL:]
            d.deps.add(first)  # who waits for the value waits for all of its parts
            out.append(first)
        d.stores = nests or d.stores
        out.append(d)
    return out


def _nests(target: UOp, value: UOp) -> list[list[tuple[UOp, UOp]]]:
    """One store for each stretch of the axis along which `value` is joined; none where it is no join."""
    shape = value.shape
    if target.op is Ops.BITCAST or not all(isinstance(n, int) for n in shape):
        return []
    for axis in range(len(shape)):
        cuts = _cuts(value, axis)
        inner = math.prod(shape[axis + 1 :])
        if len(cuts) < 2 or math.prod(shape) < STRETCH * len(cuts) or min(n for _, n in cuts) * inner < SHORT_ROW:
            continue
        nests = []
        for stretch in cuts:
            part = _within(value, axis, stretch, {})
            if part.shape == ():
                part = _repeated(part, _shape_within(value, axis, stretch))
            nests.append([(_shrunk(target, axis, stretch), part)])
        return nests
    return []


def _cuts(value: UOp, axis: int) -> list[Stretch]:
    """The stretches of `axis` between the ends of the parts that are padded along it, where no two parts overlap."""
    found: set[Stretch] = set()
    stack, seen = [value], {value}
    while stack:
        u = stack.pop()
        if u.op is Ops.PAD:
            part = _part(u, axis)
            if part is None:
                return []
            if part[1] != u.shape[axis]:
                found.add(part)
                continue
        elif not _is_elementwise(u):
            continue
        for s in u.src[:1] if u.op is Ops.PAD else u.src:
            if s.shape and s not in seen:
                seen.add(s)
                stack.append(s)
    parts = sorted([p for p in found if p[1]])
    if len(parts) < 2:
        return []
    cuts: list[Stretch] = []
    at = 0
    for start, n in [*parts, (concrete(value.shape[axis]), 0)]:
        if start < at:
            return []
        if start > at:
            cuts.append((at, start - at))
        if n:
            cuts.append((start, n))
        at = start + n
    return cuts


def _is_elementwise(u: UOp) -> bool:
    return u.op in OpGroup.ELEMENTWISE and all(s.shape in ((), u.shape) for s in u.src)


def _part(u: UOp, axis: int) -> Stretch | None:
    """Where the source of a PAD lies along `axis`; None where that is not known."""
    (before, _), n = movement_arg(u)[axis], u.src[0].shape[axis]
    return (before, n) if isinstance(before, int) and isinstance(n, int) else None


def _shape_within(u: UOp, axis: int, stretch: Stretch) -> Shape:
    return (*u.shape[:axis], stretch[1], *u.shape[axis + 1 :])


def _repeated(number: UOp, shape: Shape) -> UOp:
    return expand(reshape(number, (1,) * len(shape)), shape)


def _shrunk(u: UOp, axis: int, stretch: Stretch) -> UOp:
    return shrink(u, tuple([stretch if i == axis else (0, n) for i, n in enumerate(u.shape)]))


def _within(u: UOp, axis: int, stretch: Stretch, known: dict[UOp, UOp]) -> UOp:
    """`u` over a stretch of `axis`: a scalar where it is the same number all along."""
    if u not in known:
        known[u] = _restricted(u, axis, stretch, known)
    return known[u]


def _restricted(u: UOp, axis: int, stretch: Stretch, known: dict[UOp, UOp]) -> UOp:
    start, length = stretch
    if u.shape == ():
        return u
    if u.op is Ops.CMPLT and u.src[0].base.op is Ops.SPECIAL and u.src[1].op is Ops.CONST:
        place = u.src[0]
        while place.op is Ops.RESHAPE:
            place = place.src[0]
        limit = u.src[1].arg
        along = place.op is Ops.SPECIAL and u.shape[axis] == place.shape[0]  # all other axes are of length 1
        if along and not start < limit < start + length:
            return UOp.const(u.dtype, start < limit)
    if _is_elementwise(u):
        src = tuple([_within(s, axis, stretch, known) for s in u.src])
        if u.op is Ops.WHERE and src[0].op is Ops.CONST:
            return src[1] if src[0].arg else src[2]
        if u.op is Ops.ADD:
            for one, other in (src, src[::-1]):
                if one.op is Ops.CONST and one.arg == 0:
                    return other
        return u.with_src(src)
    if u.op is Ops.EXPAND and u.src[0].shape[axis] == u.shape[axis]:
        inner = _within(u.src[0], axis, stretch, known)
        return inner if inner.shape == () else expand(inner, _shape_within(u, axis, stretch))
    if u.op is Ops.PAD:
        part = _part(u, axis)
        assert part is not None
        if start + length <= part[0] or start >= sum(part):
            return UOp.const(u.dtype, u.arg[1])
        if part[1] == u.shape[axis]:
            inner = _within(u.src[0], axis, stretch, known)
        elif part[0] <= start and start + length <= sum(part):
            inner = _shrunk(u.src[0], axis, (start - part[0], length))
        else:
            return _shrunk(u, axis, stretch)
        if inner.shape == ():
            inner = _repeated(inner, _shape_within(u.src[0], axis, stretch))
        pairs = tuple([(0, 0) if i == axis else pair for i, pair in enumerate(movement_arg(u))])
        return pad(inner, pairs, u.arg[1])
    return _shrunk(u, axis, stretch)


__all__ = ["split_joins"]
