"""Passes that bring gradients of contractions into the form of contractions: one sum over the product of two operands.

Reverse mode writes the gradient of a convolution's input as a sum over output channels inside sums over the window,
with pads and shears between. Left so, the inner sum would be stored for every window position. These passes make it
one sum and give each pad to the operand it concerns.
"""

from __future__ import annotations

import math

from aril.ops import OpGroup, Ops
from aril.schedule.fuse import concrete, numel
from aril.uop import UOp
from aril.uop.order import use_counts
from aril.uop.pattern import Pat, Rules, V
from aril.uop.rewrite import rewrite
from aril.uop.shape import expand, movement_arg, pad, permute, reduce, reshape, shear, split_symbolic

GROWTH = 2  # a merged sum may have this many times the terms of the inner one


def merge_sums(sink: UOp) -> UOp:
    """A sum over moved sums is one sum, where that adds few terms.

    Before: ``REDUCE(SHEAR(PAD(REDUCE(x, ADD, A))), ADD, B)``. After: ``REDUCE(SHEAR'(PAD'(x')), ADD, A' + B)`` with
    the axes A of x moved to the end.
    """
    return rewrite(sink, _SUMS_MERGED, (use_counts(sink.toposort()), set()), once=True)


def _with_sums_merged(ctx: tuple[dict[UOp, int], set[UOp]], u: UOp, old: UOp) -> UOp:
    readers, shared = ctx
    new = _merged(u, shared) if u.op is Ops.REDUCE and u.arg[0] is Ops.ADD else u
    if readers.get(old, 0) > 1:
        shared.add(new)
    return new


_SUMS_MERGED = Rules([(Pat(name="u"), _with_sums_merged)], name="merge sums")


def _merged(new: UOp, shared: set[UOp]) -> UOp:
    """REDUCE `new` with the sum below it merged in; values in `shared` have other readers and stay as they are."""
    chain: list[UOp] = []
    inner = new.src[0]
    while inner.op in OpGroup.MOVEMENT and not (inner.op is Ops.PAD and inner.arg[1] != 0) and len(inner.src) == 1:
        if inner in shared:
            return new
        chain.append(inner)
        inner = inner.src[0]
    if inner.op is not Ops.REDUCE or inner.arg[0] is not Ops.ADD or inner in shared:
        return new
    axes, x = inner.arg[1], inner.src[0]
    if not all(isinstance(d, int) for d in x.shape):
        return new
    rest = [i for i in range(len(x.shape)) if i not in axes]
    tail = tuple([x.shape[a] for a in axes])
    y = permute(x, (*rest, *axes))
    y = reshape(y, (*inner.shape, *tail))
    for m in reversed(chain):
        y = _beside(m, y, tail)
    if numel(y) > GROWTH * numel(x):
        return new
    n = len(new.src[0].shape)
    summed = reduce(y, Ops.ADD, (*new.arg[1], *range(n, n + len(tail))))
    return reshape(summed, new.shape)


def _beside(m: UOp, y: UOp, tail: tuple[int, ...]) -> UOp:
    """Movement node `m` done on the leading axes of `y`, whose trailing axes `tail` stay."""
    arg = movement_arg(m)
    if m.op is Ops.RESHAPE:
        return reshape(y, (*arg, *tail))
    if m.op is Ops.EXPAND:
        return expand(y, (*arg, *tail))
    if m.op is Ops.PERMUTE:
        return permute(y, (*arg, *range(len(arg), len(arg) + len(tail))))
    if m.op is Ops.PAD:
        return pad(y, (*arg, *[(0, 0)] * len(tail)), m.arg[1])
    if m.op is Ops.SHRINK:
        numbers, _ = split_symbolic([v for p in (*arg, *[(0, t) for t in tail]) for v in p])
        return UOp(Ops.SHRINK, (y,), numbers)
    return UOp(m.op, (y,), arg)  # FLIP, SHEAR: axes keep their numbers


def give_pads_to_operands(sink: UOp) -> UOp:
    """Inside a sum, a pad by zeros of a product is a pad of the one operand that varies along the padded axes.

    Before: ``REDUCE(SHEAR(PAD(MUL(g, EXPAND(w)))), ADD, ..)``. After: ``REDUCE(SHEAR(MUL(PAD(g), EXPAND(w))), ADD,
    ..)``. Where the other operand is infinite, a padded zero times it is NaN instead of nothing, as in every
    convolution that pads with zeros.
    """
    return rewrite(sink, _PADS_GIVEN, once=True)


def _sink_pads(x: UOp) -> UOp:
    """`x` (a chain of movement nodes over a product) with its pads moved down."""
    chain: list[UOp] = []
    while x.op in OpGroup.MOVEMENT:
        chain.append(x)
        x = x.src[0]
    if x.op is not Ops.MUL or not any(m.op is Ops.PAD for m in chain):
        return chain[0] if chain else x
    for m in reversed(chain):
        moved = push_pad(x, movement_arg(m)) if m.op is Ops.PAD and m.arg[1] == 0 and len(m.src) == 1 else None
        x = moved if moved is not None else m.with_src((x, *m.src[1:]))
    return x


def _with_pads_given(u: UOp, x: UOp) -> UOp | None:
    return u.with_src((_sink_pads(x),)) if u.arg[0] is Ops.ADD else None


_PADS_GIVEN = Rules([(Pat(Ops.REDUCE, (V("x"),), name="u"), _with_pads_given)], name="give pads to operands")


def push_pad(x: UOp, pairs: tuple[tuple[int, int], ...]) -> UOp | None:
    """PAD(x, pairs) by zeros with the pad as far down as it goes, or None where it stays on top."""
    padded = [i for i, p in enumerate(pairs) if p != (0, 0)]
    if x.op is Ops.MUL:
        a, b = x.src
        for one, other in ((a, b), (b, a)):
            wide = _widen(other, pairs, padded)
            if wide is not None:
                inner = push_pad(one, pairs)
                inner = inner if inner is not None else pad(one, pairs)
                return UOp(Ops.MUL, (inner, wide) if one is a else (wide, inner))
        return None
    if x.op is Ops.EXPAND:
        s = x.src[0].shape
        if any(s[i] != x.shape[i] for i in padded) or len(x.src) > 1:
            return None
        inner = push_pad(x.src[0], pairs)
        inner = inner if inner is not None else pad(x.src[0], pairs)
        return expand(inner, _sizes(x, pairs))
    if x.op is Ops.PERMUTE:
        below: list[tuple[int, int]] = [(0, 0)] * len(pairs)
        for k, axis in enumerate(x.arg):
            below[axis] = pairs[k]
        inner = push_pad(x.src[0], tuple(below))
        return permute(inner if inner is not None else pad(x.src[0], tuple(below)), x.arg)
    if x.op is Ops.RESHAPE:
        source = _reshaped_pairs(x, pairs)
        if source is None:
            return None
        inner = push_pad(x.src[0], source)
        return reshape(inner if inner is not None else pad(x.src[0], source), _sizes(x, pairs))
    if x.op is Ops.SHEAR and not any(i in x.arg[:2] for i in padded):
        inner = push_pad(x.src[0], pairs)
        return shear(inner if inner is not None else pad(x.src[0], pairs), *x.arg)
    return None


def _sizes(x: UOp, pairs: tuple[tuple[int, int], ...]) -> tuple[int, ...]:
    return tuple([concrete(d) + b + a for d, (b, a) in zip(x.shape, pairs, strict=True)])


def _widen(x: UOp, pairs: tuple[tuple[int, int], ...], padded: list[int]) -> UOp | None:
    """`x` at the padded shape where it is the same all along the padded axes, else None."""
    if not x.shape:
        return x
    if x.op is Ops.EXPAND and len(x.src) == 1:
        s = x.src[0].shape
        if all(s[i] == 1 for i in padded):
            return expand(x.src[0], _sizes(x, pairs))
        return None
    if x.op is Ops.PERMUTE:
        below: list[tuple[int, int]] = [(0, 0)] * len(pairs)
        for k, axis in enumerate(x.arg):
            below[axis] = pairs[k]
        inner = _widen(x.src[0], tuple(below), [i for i, p in enumerate(below) if p != (0, 0)])
        return None if inner is None else permute(inner, x.arg)
    if x.op is Ops.RESHAPE:
        source = _reshaped_pairs(x, pairs)
        if source is None:
            return None
        inner = _widen(x.src[0], source, [i for i, p in enumerate(source) if p != (0, 0)])
        return None if inner is None else reshape(inner, _sizes(x, pairs))
    return None


def _reshaped_pairs(x: UOp, pairs: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...] | None:
    """The pads of a RESHAPE's source that give `pairs` on its result: each padded axis must be an axis of both."""
    target, source = x.shape, x.src[0].shape
    if not all(isinstance(d, int) for d in (*target, *source)):
        return None
    starts: dict[int, int] = {}
    for j in range(len(source)):
        if source[j] != 1:
            starts[math.prod([concrete(d) for d in source[:j]])] = j
    out: list[tuple[int, int]] = [(0, 0)] * len(source)
    for i, p in enumerate(pairs):
        if p == (0, 0):
            continue
        at = starts.get(math.prod([concrete(d) for d in target[:i]])) if target[i] != 1 else None
        if at is None or source[at] != target[i]:
            return None
        out[at] = p
    return tuple(out)
