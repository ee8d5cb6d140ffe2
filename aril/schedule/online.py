"""Sums and positions that follow a maximum are taken part by part, so that memory is read once for both.

In: the tensor graph before long reductions are split. Out: the same, where a long maximum and what is computed from
it (the sum of exponentials of a softmax, the position of an argmax) have parts with results of their own and a short
combination at the end, as in online softmax (Milakov and Gimelshein 2018).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from aril.dtype import dtypes
from aril.ops import OpGroup, Ops
from aril.schedule.fuse import ROW_BYTES, numel
from aril.schedule.prepare import FEW_RESULTS, LONG_REDUCTION, PARTS, axis_of_parts, is_view, part_of
from aril.uop import UOp, sint
from aril.uop.order import use_counts
from aril.uop.pattern import Pat, Rules, V
from aril.uop.rewrite import rewrite
from aril.uop.shape import expand, permute, reduce, reshape, shrink

PART_BYTES = 1 << 16  # a part is gone over twice, the second time in the first- or second-level cache
MOST_PARTS = 1 << 12
# the least finite value of the types that sums of exponentials have
LOWEST = {dtypes.float32: -3.4028234663852886e38, dtypes.float64: -1.7976931348623157e308}


@dataclass(frozen=True)
class Cut:
    """How a reduction is cut: `axis` into `parts` of `inner` elements, and a `rest` that is no part: the combination
    reads its elements themselves."""

    axis: int
    parts: int
    inner: int
    rest: int

    def split(self, x: UOp, shape: tuple[sint, ...]) -> UOp:
        """`x`, which broadcasts to `shape`, in parts: with the axis as two, (.., parts, inner, ..)."""
        whole = part_of(_broadcast(x, shape), self.axis, 0, self.parts * self.inner)
        return reshape(whole, (*shape[: self.axis], self.parts, self.inner, *shape[self.axis + 1 :]))

    def left(self, x: UOp, shape: tuple[sint, ...]) -> UOp:
        """The rest of `x`, which broadcasts to `shape`."""
        return part_of(_broadcast(x, shape), self.axis, self.parts * self.inner, self.rest)

    def axes(self, axes: tuple[int, ...]) -> tuple[int, ...]:
        """The axes of a reduction inside the parts."""
        return tuple([a if a < self.axis else a + 1 for a in axes])


def _broadcast(x: UOp, shape: tuple[sint, ...]) -> UOp:
    return expand(reshape(x, (1,) * (len(shape) - len(x.shape)) + x.shape), shape) if x.shape != shape else x


@dataclass(frozen=True)
class Follower:
    """A reduction computed from the maximum `top` of the same elements. `build(x, m, M, cut)` gives its result from
    the elements in parts, the maxima of the parts and the maximum."""

    top: UOp
    build: Callable[[dict[UOp, UOp], UOp, UOp, Cut], UOp]


def split_with_maximum(sink: UOp) -> UOp:
    """Long maxima and the sums and positions that follow from them, in parts.

    Before: ``s = REDUCE(EXP2((x - m) * c), ADD)`` with ``m = REDUCE(x, MAX)``. After: for each part p its maximum
    ``m_p`` and ``s_p = REDUCE(EXP2((x - m_p) * c), ADD)``, both stored by one kernel; then ``m = REDUCE(m_p, MAX)`` and
    ``s = REDUCE(s_p * EXP2((m_p - m) * c), ADD)``. Maxima that nothing follows are left as they are. Of a position in
    all of a value in memory, only the first part with the maximum is looked at again.
    """
    order = sink.toposort()
    followers: dict[UOp, Follower] = {}
    cuts: dict[UOp, Cut] = {}
    for u in order:
        if u.op is not Ops.REDUCE or u.arg[0] not in (Ops.ADD, Ops.MAX):
            continue
        found = _sum_of_exponentials(u) if u.arg[0] is Ops.ADD else _position(u)
        if found is None:
            continue
        cut = cuts.get(found.top) or _cut(found.top)
        if cut is not None:
            followers[u] = found
            cuts[found.top] = cut
    if not followers:
        return sink
    done: dict[UOp, UOp] = {}
    return rewrite(sink, _IN_PARTS, _InParts(followers, cuts, done, {}), once=True, done=done)


class _InParts(NamedTuple):
    """What `split_with_maximum` found, and made so far: `done` of each node, `maxima` of the parts."""

    followers: dict[UOp, Follower]
    cuts: dict[UOp, Cut]
    done: dict[UOp, UOp]
    maxima: dict[UOp, UOp]


def _in_parts(ctx: _InParts, x: UOp, old: UOp) -> UOp | None:
    follower, cut = ctx.followers.get(old), ctx.cuts.get(old)
    if follower is not None:
        top = follower.top
        return follower.build(ctx.done, ctx.maxima[top], ctx.done[top], ctx.cuts[top])
    if cut is None:
        return None
    parts = cut.split(x, x.shape)
    found = ctx.maxima[old] = UOp(Ops.CONTIGUOUS, (reduce(parts, Ops.MAX, cut.axes(old.arg[1])),))
    return _with_rest(reduce(found, Ops.MAX, (cut.axis,)), cut, old, lambda: cut.left(x, x.shape))


_IN_PARTS = Rules([(Pat(Ops.REDUCE, (V("x"),)), _in_parts)], name="split with maximum")


def _with_rest(combined: UOp, cut: Cut, u: UOp, left: Callable[[], UOp]) -> UOp:
    """The result of reduction `u` from what its parts give together and its elements `left` over."""
    out = reshape(combined, u.shape)
    return UOp(u.arg[0], (out, reduce(left(), *u.arg))) if cut.rest else out


def _cut(top: UOp) -> Cut | None:
    """The parts of a maximum, or None where its rows stay in cache and there are enough of them."""
    shape, axes = top.src[0].shape, top.arg[1]
    if not axes or not all(isinstance(d, int) for d in shape) or 0 in shape:
        return None
    length = math.prod([shape[a] for a in axes])
    results = math.prod(shape) // length
    size = length * top.dtype.itemsize
    few = results < FEW_RESULTS and length >= LONG_REDUCTION
    if not few and (size <= ROW_BYTES or len(shape) - 1 not in axes):
        return None
    parts = min(max(PARTS if few else 2, -(-size // PART_BYTES)), MOST_PARTS)
    axis = axis_of_parts(top.src[0], axes, parts)
    n = shape[axis]
    parts = min(parts, n)
    if parts < 2:
        return None
    parts = min(range(parts, min(n, 2 * parts) + 1), key=lambda p: n % p)
    return Cut(axis, parts, n // parts, n % parts)


def _sum_of_exponentials(u: UOp) -> Follower | None:
    """`u` as a sum of 2**((x - level) * c), `level` the maximum of x, or 0 where that is not finite."""
    e = u.src[0]
    if e.op is not Ops.EXP2 or e.dtype.kind != "f":
        return None
    inner, scale = e.src[0], None
    if inner.op is Ops.MUL and inner.src[1].op is Ops.CONST:
        inner, scale = inner.src
        if not scale.arg > 0:
            return None
    if inner.op is not Ops.SUB:
        return None
    x, wide = inner.src
    level = wide.src[0] if wide.op is Ops.EXPAND else wide
    chain = _level(level, x, u.arg[1])
    if chain is None or x.dtype not in LOWEST or x.shape != e.shape:
        return None
    top, nodes = chain
    x_shape = x.shape

    def power(difference: UOp) -> UOp:
        return UOp(Ops.EXP2, (difference if scale is None else UOp(Ops.MUL, (difference, scale)),))

    def build(done: dict[UOp, UOp], m: UOp, whole: UOp, cut: Cut) -> UOp:
        parts = cut.split(done[x], x_shape)
        # A part of nothing but -inf has the sum 0, whatever the whole has: its level must not make it NaN. Written
        # apart from the level below, so that no mask is shared between the two kernels and stored for it.
        own = UOp(Ops.MAX, (m, UOp.const(x.dtype, LOWEST[x.dtype])))
        if nodes:
            finite = UOp(Ops.CMPLT, (m, UOp.const(x.dtype, math.inf)))
            own = UOp(Ops.WHERE, (finite, own, level.src[2]))
        sums = reduce(power(UOp(Ops.SUB, (parts, expand(own, parts.shape)))), Ops.ADD, cut.axes(u.arg[1]))
        sums = UOp(Ops.CONTIGUOUS, (sums,))
        here = {top: m}
        for n in nodes:
            here[n] = n.with_src(tuple([here.get(s, s) for s in n.src]))
        of_whole = expand(reshape(done[level], _beside(whole.shape, cut)), m.shape)
        terms = UOp(Ops.MUL, (sums, power(UOp(Ops.SUB, (here[level], of_whole)))))
        if nodes:  # a part of nothing but -inf is at level 0, which may be far above that of the whole
            zero = UOp.const(x.dtype, 0.0)
            terms = UOp(Ops.WHERE, (UOp(Ops.CMPEQ, (sums, zero)), zero, terms))

        def left() -> UOp:
            return power(UOp(Ops.SUB, (cut.left(done[x], x_shape), cut.left(done[wide], x_shape))))

        return _with_rest(reduce(terms, Ops.ADD, (cut.axis,)), cut, u, left)

    return Follower(top, build)


def _beside(shape: tuple[sint, ...], cut: Cut) -> tuple[sint, ...]:
    """A result's shape with an axis for the parts."""
    return (*shape[: cut.axis], 1, *shape[cut.axis :])


def _level(level: UOp, x: UOp, axes: tuple[int, ...]) -> tuple[UOp, list[UOp]] | None:
    """(the maximum of `x` over `axes`, the nodes from it to `level`): itself, or 0 where it is not finite."""
    top = level.src[1] if level.op is Ops.WHERE else level
    if top.op is not Ops.REDUCE or top.arg != (Ops.MAX, axes) or top.src[0] is not x:
        return None
    if top is level:
        return top, []
    test, _, other = level.src
    size = UOp(Ops.MAX, (top, UOp(Ops.NEG, (top,))))
    if test is not UOp(Ops.CMPLT, (size, UOp.const(x.dtype, math.inf))) or other is not UOp.const(x.dtype, 0.0):
        return None
    return top, [size.src[1], size, test, level]


def _position(u: UOp) -> Follower | None:
    """`u` as the greatest of the marks (at least 0) of those elements that are the maximum."""
    pick = u.src[0]
    if pick.op is not Ops.WHERE or pick.src[2].op is not Ops.CONST or pick.src[2].arg != 0 or u.dtype.kind not in "iu":
        return None
    hit, marks, nothing = pick.src
    equal, own = (hit.src[0], hit.src[1]) if hit.op is Ops.OR else (hit, None)
    if equal.op is not Ops.CMPEQ:
        return None
    x, wide = equal.src
    top = wide.src[0] if wide.op is Ops.EXPAND else wide
    if top.op is not Ops.REDUCE or top.arg != (Ops.MAX, u.arg[1]) or top.src[0] is not x or x.shape != pick.shape:
        return None
    if own is not None and not (own.op is Ops.CMPNE and own.src == (x, x)):
        return None
    if not marks.shape or len(marks.shape) != len(x.shape) or marks.vmin < 0:
        return None
    x_shape, falls = x.shape, _count_down(marks)

    def chosen(values: UOp, greatest: UOp, mark: UOp) -> UOp:
        is_it = UOp(Ops.CMPEQ, (values, expand(greatest, values.shape)))
        if own is not None:
            is_it = UOp(Ops.OR, (is_it, UOp(Ops.CMPNE, (values, values))))
        return UOp(Ops.WHERE, (is_it, mark, nothing))

    def build(done: dict[UOp, UOp], m: UOp, whole: UOp, cut: Cut) -> UOp:
        parts, mark = cut.split(done[x], x_shape), cut.split(done[marks], x_shape)
        beside = reshape(whole, _beside(whole.shape, cut))
        in_order = falls and all(d == 1 for d in x_shape[: cut.axis])
        if numel(u) == 1 and u.dtype.itemsize >= 4 and in_order and _reads_once(done[x]):
            # The maxima are made at the pace of memory; of the parts only the first that has it is gone over again.
            ahead = UOp(Ops.SUB, (UOp.const(u.dtype, cut.parts - 1), UOp.iota(cut.parts).cast(u.dtype)))
            from_end = reduce(chosen(m, beside, reshape(ahead, m.shape)), Ops.MAX, tuple(range(len(m.shape))))
            # As bits, of which no bounds are known: a proof of accesses takes it for data, as a position in memory is.
            place = UOp(Ops.SUB, (UOp.const(u.dtype, cut.parts - 1), reshape(from_end, ())))
            place = place.bitcast(dtypes.uint32 if u.dtype.itemsize == 4 else dtypes.uint64)
            values, mark = (_part_at(v, cut.axis, place) for v in (parts, mark))
            last = chosen(values, whole, mark)
            combined = reduce(last, Ops.MAX, tuple(range(len(last.shape))))
        else:
            first = UOp(Ops.CONTIGUOUS, (reduce(chosen(parts, m, mark), Ops.MAX, cut.axes(u.arg[1])),))
            combined = reduce(chosen(m, beside, first), Ops.MAX, (cut.axis,))

        def left() -> UOp:
            return chosen(cut.left(done[x], x_shape), whole, cut.left(done[marks], x_shape))

        return _with_rest(combined, cut, u, left)

    return Follower(top, build)


def _count_down(marks: UOp) -> bool:
    """Whether `marks` fall from each element to the next, row by row."""
    while marks.op in (Ops.CAST, Ops.RESHAPE):
        if marks.op is Ops.CAST and not marks.dtype.weak and marks.src[0].vmax > marks.dtype.max:
            return False
        marks = marks.src[0]
    return marks.op is Ops.SUB and marks.src[0].base.op is Ops.CONST and marks.src[1].arg == "iota"


def _reads_once(x: UOp) -> bool:
    """Whether `x` is computed element by element from one value in memory: to make a part again is to read it again."""
    below = x.toposort(lambda v: v.op in OpGroup.ELEMENTWISE)
    leaves = [v for v in below if v.op not in OpGroup.ELEMENTWISE and v.base.op is not Ops.CONST]
    return len(leaves) == 1 and is_view(leaves[0])


def _part_at(x: UOp, axis: int, place: UOp) -> UOp:
    """Element `place` of `x` along `axis`, which is dropped."""
    return UOp(Ops.INDEX, (permute(x, (axis, *[a for a in range(len(x.shape)) if a != axis])), place))


def divide_after_sums(sink: UOp) -> UOp:
    """A sum of products with quotients whose divisor is the same all along the sum is divided once, at the end.

    Before: ``REDUCE(MUL(FDIV(e, EXPAND(t)), v), ADD)`` with exponentials e that nothing else reads. After:
    ``FDIV(REDUCE(MUL(e, v), ADD), t)``: attention's exponentials are used as they are, its rows divided.

    Of the quotients that stay, those of exponentials by their own sum (a softmax) are products with its inverse, of
    which a row has one: ``MUL(e, EXPAND(RECIPROCAL(t)))``. The sum is at least 1, as the greatest exponential is 1.
    """
    done: dict[UOp, UOp] = {}
    return rewrite(sink, _DIVIDED_ONCE, (use_counts(sink.toposort()), done), once=True, done=done)


def _by_inverse(ctx: tuple[dict[UOp, int], dict[UOp, UOp]], old: UOp) -> UOp | None:
    (e, wide), done = old.src, ctx[1]
    total = wide.src[0] if wide.op is Ops.EXPAND else wide
    while total.op is Ops.RESHAPE:
        total = total.src[0]
    if wide.op is not Ops.EXPAND or total.op is not Ops.REDUCE or total.arg[0] is not Ops.ADD or total.src[0] is not e:
        return None
    if _sum_of_exponentials(total) is None:
        return None
    return UOp(Ops.MUL, (done[e], expand(UOp(Ops.RECIPROCAL, (done[wide].src[0],)), old.shape)))


def _divided_once(ctx: tuple[dict[UOp, int], dict[UOp, UOp]], old: UOp) -> UOp | None:
    u, (readers, done) = old, ctx
    product = u.src[0]
    if u.arg[0] is not Ops.ADD or product.op is not Ops.MUL or u.dtype.kind != "f":
        return None
    for weights, other in (product.src, product.src[::-1]):
        chain: list[UOp] = []
        n = weights
        while n.op in (Ops.RESHAPE, Ops.EXPAND, Ops.PERMUTE) and readers[n] == 1:
            chain.append(n)
            n = n.src[0]
        if n.op is not Ops.FDIV or readers[n] != 1 or n.src[1].op is not Ops.EXPAND:
            continue
        e, wide = n.src
        if (e.src[0] if e.op is Ops.CONTIGUOUS else e).op is not Ops.EXP2:
            continue
        same = {i for i, d in enumerate(wide.src[0].shape) if d == 1 and e.shape[i] != 1}
        left, total = done[e], done[wide].src[0]
        if numel(product) > numel(e):
            # exponentials that several results share are computed once; the sum of them would be gone through once a
            # tile of results
            left = left if left.op is Ops.CONTIGUOUS else UOp(Ops.CONTIGUOUS, (left,))
            total = UOp(Ops.CONTIGUOUS, (total.substitute({done[e]: left}),))
        divisor = expand(total, e.shape)
        for m in reversed(chain):
            same = _followed(same, m)
            left, divisor = (m.with_src((x, *m.src[1:])) for x in (left, divisor))
        if not all(a in same or product.shape[a] == 1 for a in u.arg[1]):
            continue
        divisor = shrink(divisor, tuple([(0, 1 if i in u.arg[1] else d) for i, d in enumerate(product.shape)]))
        pair = (left, done[other]) if weights is product.src[0] else (done[other], left)
        return UOp(Ops.FDIV, (reduce(UOp(Ops.MUL, pair), Ops.ADD, u.arg[1]), divisor))
    return None


_DIVIDED_ONCE = Rules([(Pat(Ops.REDUCE), _divided_once), (Pat(Ops.FDIV), _by_inverse)], name="divide after sums")


def _followed(axes: set[int], m: UOp) -> set[int]:
    """Where movement node `m` puts those axes of its source; the axes that it splits or merges are dropped."""
    if m.op is Ops.PERMUTE:
        return {m.arg.index(a) for a in axes}
    if m.op is Ops.EXPAND:
        return axes
    source, target = m.src[0].shape, m.shape
    if not all(isinstance(d, int) for d in (*source, *target)):  # only axes of one element come and go
        wide = [[i for i, d in enumerate(shape) if not isinstance(d, int) or d != 1] for shape in (source, target)]
        alike = [source[i] for i in wide[0]] == [target[i] for i in wide[1]]
        return {wide[1][wide[0].index(a)] for a in axes if a in wide[0]} if alike else set()
    starts = {(math.prod(target[:j]), d): j for j, d in enumerate(target) if d != 1}
    found = [starts.get((math.prod(source[:a]), source[a])) for a in axes]
    return {j for j in found if j is not None}
