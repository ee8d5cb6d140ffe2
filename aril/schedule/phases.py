"""Sums of moved sums with a step are taken remainder by remainder, each as a dense sum.

The gradient of a convolution with a step puts what a window contributed back at its place: of the elements of an image
every step-th asks a given element of the kernel. Left so, each element would sum over the whole kernel and ask for
remainders, or all contributions would be stored. Here the elements of one remainder (the "polyphase components" of
signal processing, Vaidyanathan 1990) become a sum of their own over that part of the kernel that meets them: for a step
of 2 and a kernel of 3x3 four dense sums over 1x1, 1x2, 2x1 and 2x2. In: the tensor graph; out: the same. What is looked
at is where the sum reads, not how that was written, so that transposed convolutions are found as well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from aril.dtype import dtypes
from aril.ops import OpGroup, Ops
from aril.schedule.fuse import is_contraction, numel
from aril.schedule.lower import ZERO, Index, both, move_index
from aril.uop import AxisType, UOp
from aril.uop.linear import parse
from aril.uop.order import use_counts
from aril.uop.pattern import Pat, Rules
from aril.uop.rewrite import rewrite
from aril.uop.shape import expand, pad, permute, reduce, reshape, shear, shrink

CLASSES = 16  # combinations of remainders that become sums
MOST_CHECKED = 1 << 22  # pairs of a position and an element of the kernel for which conditions are compared one by one
READERS = 10  # movement nodes above the sum that are looked at for a shorter result
LONG_SUM = 32  # terms from which a sum made alone costs more than a pass over memory
_ONE_EACH = OpGroup.MOVEMENT - {Ops.SHEAR, Ops.EXPAND}  # an element of the source is read at most once


@dataclass(frozen=True)
class _Stepped:
    """An axis of the result: position p reads element ``(p + scale*k + offset) / step`` of `axis` with element k of
    `kernel`, where that is a whole number and exists."""

    result: int  # axis of the result, of `length`
    length: int
    axis: int
    size: int
    kernel: int
    taps: int
    scale: int
    offset: int
    step: int

    def taps_of(self, remainder: int) -> range:
        """The elements of the kernel that meet the positions of this remainder."""
        found = [k for k in range(self.taps) if (remainder + self.scale * k + self.offset) % self.step == 0]
        return range(found[0], found[-1] + 1, found[1] - found[0] if len(found) > 1 else 1) if found else range(0)

    def count(self, remainder: int) -> int:
        """How many positions have this remainder."""
        return max(0, -(-(self.length - remainder) // self.step))

    def reads(self, remainder: int) -> tuple[int, int, int, int]:
        """(first element read, elements a tap moves on, least, greatest element) of the positions of a remainder."""
        taps = self.taps_of(remainder)
        first = (remainder + self.scale * taps[0] + self.offset) // self.step
        each = self.scale * taps.step // self.step if len(taps) > 1 else 0
        ends = (first, first + each * (len(taps) - 1))
        return first, each, min(ends), max(ends) + self.count(remainder) - 1


def split_phases(sink: UOp) -> UOp:
    """Sums of contributions to every step-th element become dense sums, one a remainder.

    Before: ``REDUCE(SHEAR(PAD(RESHAPE(PAD(REDUCE(MUL(g, w), ADD, c))))), ADD, k)`` of length n with a step of 2. After:
    ``RESHAPE(WHERE(iota < 1, REDUCE(SHEAR(MUL(g, w'))), REDUCE(SHEAR(MUL(g, w'')))))``, w' every second element of w.
    """
    order = sink.toposort()
    if not any(u.op is Ops.SHEAR for u in order):
        return sink
    readers = use_counts(order)
    above = {s: u for u in order for s in u.src}  # of nodes with one reader
    tops: dict[UOp, tuple[list[UOp], UOp]] = {}  # the value that is made anew -> how it is made
    inside: set[UOp] = set()  # what a value that is made anew was made of
    for u in order:
        if readers.get(u) == 1 and u not in inside and _is_base(u, above):
            chain = _chain(u, above, readers)
            first = next((i for i, n in enumerate(chain) if n.op is Ops.REDUCE), len(chain))
            for end in range(len(chain), first, -1):
                if _split(chain[:end], u) is not None:
                    tops[chain[end - 1]] = chain[:end], u
                    inside.update(chain[:end])
                    break
    if not tops:
        return sink
    done: dict[UOp, UOp] = {}
    return rewrite(sink, _PHASES, (tops, done), once=True, done=done)


def _in_phases(ctx: tuple[dict[UOp, tuple[list[UOp], UOp]], dict[UOp, UOp]], u: UOp, old: UOp) -> UOp | None:
    tops, done = ctx
    if old not in tops:
        return None
    chain, base = tops[old]  # one may be computed from another
    new = _split([*[done[n] for n in chain[:-1]], u], done[base])
    assert new is not None
    return new


_PHASES = Rules([(Pat(name="u"), _in_phases)], name="split phases")


def store_before_cuts(sink: UOp) -> UOp:
    """A contraction whose result is put together from steps is stored whole where it is read from within one.

    Before: ``SHRINK(RESHAPE(PERMUTE(REDUCE(MUL(g, w), ADD, c))))`` of 6 steps of 2 elements, from element 1 on. After:
    ``SHRINK(CONTIGUOUS(RESHAPE(..)))``: element i is of step i // 2, which a loop over steps knows. Of (i + 1) // 2 no
    loop does, and each element would be summed alone.
    """
    return rewrite(sink, _CUTS, once=True)


def _uncut(u: UOp) -> UOp | None:
    chain = [u]
    while (below := chain[-1].src[0]).op in _ONE_EACH and len(chain[-1].src) == 1:
        chain.append(below)
    if below.op is not Ops.REDUCE or below.arg[0] is not Ops.ADD or not is_contraction(below):
        return None
    if not all(isinstance(d, int) and d > 0 for n in (*chain, below) for d in n.shape) or not _is_shifted(chain):
        return None
    whole = next(i for i in range(1, len(chain) + 1) if not _is_shifted(chain[i:]))
    if numel(below.src[0]) < LONG_SUM * numel(below):
        return None
    if whole == len(chain) or numel(chain[whole]) > 2 * min(numel(u), numel(below)):
        return None  # most of what would be stored is not asked for, or zeros
    new = UOp(Ops.CONTIGUOUS, (chain[whole],))
    for n in reversed(chain[:whole]):
        new = n.with_src((new,))
    return new


_CUTS = Rules([(Pat((Ops.SHRINK, Ops.PAD), name="u"), _uncut)], name="store before cuts")


def _is_shifted(chain: list[UOp]) -> bool:
    """Whether what `chain` moves, its first node on top, is read at a quotient of a loop and a number."""
    return bool(chain) and any(
        n.op is Ops.FLOORDIV and n.src[0].op is Ops.ADD and n.src[0].src[1].op is Ops.CONST
        for i in _below(chain[::-1], chain[0])[1]
        for n in i.toposort()
    )


def _is_base(u: UOp, above: dict[UOp, UOp]) -> bool:
    """Whether contributions may be `u`: a contraction, or products where there is one channel a group."""
    if u.op is Ops.MUL:
        return above[u].op in OpGroup.MOVEMENT and all(s.op is Ops.EXPAND for s in u.src)
    return u.op is Ops.REDUCE and u.arg[0] is Ops.ADD and is_contraction(u)


def _chain(u: UOp, above: dict[UOp, UOp], readers: dict[UOp, int]) -> list[UOp]:
    """The movement nodes and sums through which alone the value of `u` is read, and a few movement nodes after."""
    out: list[UOp] = []
    last = 0  # length up to the last sum
    n = u
    while readers.get(n) == 1 and len(out) - last <= READERS:
        n = above[n]
        if n.op is Ops.REDUCE and n.arg[0] is Ops.ADD and n.dtype is u.dtype:
            last = len(out) + 1
        elif n.op not in OpGroup.MOVEMENT or len(n.src) > 1 or n.op is Ops.PAD and n.arg[1] != 0:
            break
        out.append(n)
    return out if last else []


def _split(chain: list[UOp], base: UOp) -> UOp | None:
    """The value of the last node of `chain`, which moves and sums the contraction or product `base`, remainder by
    remainder; None where it has no steps, or does anything else besides."""
    top, chain = chain[-1], list(chain)
    body, axes = (base.src[0], base.arg[1]) if base.op is Ops.REDUCE else (base, ())
    if chain[0].op is Ops.RESHAPE and len(chain) > 1:  # groups and channels are one axis
        base = chain.pop(0)
    if not all(isinstance(d, int) and d > 0 for n in (*chain, base) for d in n.shape):
        return None
    places, index, gate = _below(chain, top)
    results = {r: i for i, r in enumerate(places[: len(top.shape)]) if r is not ZERO}
    gates = _conjuncts(gate)
    where = {e: a for a, e in enumerate(index) if e is not ZERO}  # what stands alone on an axis of the base
    steps: list[_Stepped] = []
    kept: dict[int, int] = {}  # axis of the result -> axis of the base, as it is
    for a, e in enumerate(index):
        if e.op is Ops.FLOORDIV or e.op is Ops.ADD:
            found = _stepped(a, e, base.shape, results, where, gates)
            if found is None:
                return None
            steps.append(found)
        elif e in results and base.shape[a] == top.shape[results[e]]:
            kept[results[e]] = a
        elif not (e is ZERO and base.shape[a] == 1 or e.op is Ops.RANGE and e not in results):
            return None
    whole = {*kept, *[s.result for s in steps]}
    if (
        gates
        or not steps
        or any(i not in whole for i in results.values())
        or len(where) < len(places) - places.count(ZERO)
    ):
        return None
    if math.prod([s.step for s in steps]) > CLASSES or all(len(s.taps_of(r)) < 2 for s in steps for r in range(s.step)):
        return None
    # the axes that are only summed over, the kernel's among them
    sums = tuple([a for e, a in where.items() if e.op is Ops.RANGE and e not in results])
    if any(s.step > 1 for s in steps):
        body = _by_taps(body, steps, len(body.shape) - len(base.shape))
    y = permute(body, (*[i for i in range(len(body.shape)) if i not in axes], *axes))
    y = reshape(y, (*base.shape, *[body.shape[a] for a in axes]))
    return _Phases(top, y, steps, kept, (*sums, *range(len(base.shape), len(y.shape)))).together(())


def _below(chain: list[UOp], top: UOp) -> tuple[list[UOp], Index, UOp | None]:
    """(loops of the axes of `top` and then of the sums in `chain`, where in what lies below the chain an element is
    read, the condition under which it is). An axis of length 1 has no loop, but ZERO."""
    places: list[UOp] = [ZERO if d == 1 else UOp.range(d, i, AxisType.LOOP) for i, d in enumerate(top.shape)]
    index: Index = tuple(places)
    gate: UOp | None = None
    for n in reversed(chain):
        if n.op is Ops.REDUCE:
            inner = list(index)
            for a in n.arg[1]:
                if n.src[0].shape[a] != 1:
                    places.append(UOp.range(n.src[0].shape[a], len(places), AxisType.REDUCE))
                    inner[a] = places[-1]
            index = tuple(inner)
        else:
            index, own = move_index(n, index)
            gate = both(gate, own)
    return places, index, gate


def _by_taps(body: UOp, steps: list[_Stepped], first: int) -> UOp:
    """The product with the kernel copied so that what one tap has lies together: each sum takes some taps only."""
    taps, fixed = [first + s.kernel for s in steps], [first + s.axis for s in steps]
    sizes = [(first + a, d) for s in steps for a, d in ((s.kernel, s.taps), (s.axis, s.size))]
    if body.op is not Ops.MUL or any(a < 0 or body.shape[a] != d for a, d in sizes):
        return body
    out = []
    for v in body.src:
        inner = v.src[0] if v.op is Ops.EXPAND and len(v.src) == 1 else v
        if inner is not v and all(inner.shape[a] == 1 for a in fixed) and all(inner.shape[a] != 1 for a in taps):
            order = (*taps, *[i for i in range(len(inner.shape)) if i not in taps])
            inner = UOp(Ops.CONTIGUOUS, (permute(inner, order),))
            v = expand(permute(inner, tuple([order.index(i) for i in range(len(order))])), v.shape)
        out.append(v)
    return body.with_src(tuple(out))


def _conjuncts(gate: UOp | None) -> list[UOp]:
    out: list[UOp] = []
    stack = [] if gate is None else [gate]
    while stack:
        g = stack.pop()
        if g.op is Ops.AND:
            stack.extend(g.src)
        else:
            out.append(g)
    return out


def _stepped(
    a: int, e: UOp, shape: tuple[Any, ...], results: dict[UOp, int], where: dict[UOp, int], gates: list[UOp]
) -> _Stepped | None:
    """Axis `a` of the base, read at ``e = (p + scale*k + offset) // step``. The gates that ask for whole numbers within
    the axis are taken out of `gates`; None where the gates on p and k are others."""
    whole, divisor = e.src if e.op is Ops.FLOORDIV else (e, UOp.const(dtypes.weakint, 1))
    form = parse(whole, dtypes.weakint)
    if form is None or divisor.op is not Ops.CONST or len(form[0]) != 2:
        return None
    scales, offset = form
    p = next((r for r in scales if r in results and scales[r] == 1), None)
    k = next((r for r in scales if r is not p and r not in results and r in where), None)
    if p is None or k is None:
        return None
    taps, step = int(k.vmax) + 1, int(divisor.arg)
    mine = [g for g in gates if not g.ranges.isdisjoint((p, k))]
    if any(g.ranges - {p, k} for g in mine) or not _ask_for(mine, p, k, scales[k], offset, step, shape[a]):
        return None
    gates[:] = [g for g in gates if g not in mine]
    return _Stepped(results[p], int(p.vmax) + 1, a, shape[a], where[k], taps, scales[k], offset, step)


def _ask_for(gates: list[UOp], p: UOp, k: UOp, scale: int, offset: int, step: int, size: int) -> bool:
    """Whether the gates hold for just those p and k with ``p + scale*k + offset`` one of 0, step, .. of `size` ones."""
    import numpy as np

    if (int(p.vmax) + 1) * (int(k.vmax) + 1) > MOST_CHECKED:
        return False
    p_all, k_all = np.arange(int(p.vmax) + 1)[:, None], np.arange(int(k.vmax) + 1)[None, :]
    alu: dict[Ops, Any] = {
        Ops.ADD: np.add, Ops.MUL: np.multiply, Ops.FLOORDIV: np.floor_divide, Ops.FLOORMOD: np.mod, Ops.CMPLT: np.less,
        Ops.CMPNE: np.not_equal, Ops.AND: np.logical_and, Ops.OR: np.logical_or, Ops.MAX: np.maximum,
    }  # fmt: skip
    done: dict[UOp, Any] = {p: p_all, k: k_all}
    for n in UOp.sink(*gates).toposort(lambda n: n not in done):
        if n.op is Ops.CONST:
            done[n] = n.arg
        elif n.op in alu:
            done[n] = alu[n.op](*[done[s] for s in n.src])
        elif n not in done and n.op is not Ops.SINK:
            return False
    at = p_all + scale * k_all + offset
    asked = np.ones(at.shape, bool)
    for g in gates:
        asked = asked & done[g]
    return bool(np.array_equal(asked, (at % step == 0) & (at >= 0) & (at < size * step)))


class _Phases(NamedTuple):
    """A value that is made one remainder at a time: `top`, as sums over the axes `sums` of `terms`, whose axis
    `kept[i]` is axis i of `top`; `steps` says how the other axes are read."""

    top: UOp
    terms: UOp
    steps: list[_Stepped]
    kept: dict[int, int]
    sums: tuple[int, ...]

    def together(self, remainders: tuple[int, ...]) -> UOp:
        """The elements of `top` whose remainders begin with `remainders`: those of each next one, side by side."""
        if len(remainders) == len(self.steps):
            return self._dense(remainders)
        s = self.steps[len(remainders)]
        most, axis = s.count(0), s.result
        out: UOp | None = None
        for r in reversed(range(s.step)):
            part = self.together((*remainders, r))
            shape = part.shape
            part = pad(part, tuple([(0, most - d) if i == axis else (0, 0) for i, d in enumerate(shape)]))
            part = reshape(part, (*shape[:axis], most, 1, *shape[axis + 1 :]))
            part = pad(part, tuple([(r, s.step - 1 - r) if i == axis + 1 else (0, 0) for i in range(len(part.shape))]))
            if out is None:
                out = part
                continue
            number = reshape(UOp.iota(s.step), tuple([s.step if i == axis + 1 else 1 for i in range(len(part.shape))]))
            mine = expand(number, part.shape) < r + 1
            out = mine.where(part, out)
        assert out is not None
        shape = out.shape
        out = reshape(out, (*shape[:axis], most * s.step, *shape[axis + 2 :]))
        return shrink(out, tuple([(0, s.length) if i == axis else (0, d) for i, d in enumerate(out.shape)]))

    def _dense(self, remainders: tuple[int, ...]) -> UOp:
        """The elements of `top` with these remainders, as one sum over `terms` and the kernel's part."""
        lengths = {s.result: s.count(r) for s, r in zip(self.steps, remainders, strict=True)}
        shape = tuple([lengths.get(i, d) for i, d in enumerate(self.top.shape)])
        if 0 in shape or any(not s.taps_of(r) for s, r in zip(self.steps, remainders, strict=True)):
            return expand(reshape(UOp.const(self.top.dtype, 0), (1,) * len(shape)), shape)
        y = self.terms
        n = len(y.shape)
        # the same for all remainders, so that they share an operand
        around = {s.axis: _padding(s, range(s.step)) for s in self.steps}
        if all(_padding(s, range(r, r + 1)) == (0, 0) for s, r in zip(self.steps, remainders, strict=True)):
            around = {s.axis: (0, 0) for s in self.steps}
        y = pad(y, tuple([around.get(i, (0, 0)) for i in range(n)]))
        for s, r in zip(self.steps, remainders, strict=True):
            taps, (first, each, _, _) = s.taps_of(r), s.reads(r)
            first += around[s.axis][0]
            if len(taps) > 1:
                y = _every(y, s.kernel, taps)
                y = shear(y, s.axis, s.kernel, each, first, s.count(r))
            else:
                part = {s.kernel: (taps[0], 1), s.axis: (first, s.count(r))}
                y = shrink(y, tuple([part.get(i, (0, d)) for i, d in enumerate(y.shape)]))
        y = reduce(y, Ops.ADD, tuple([a for a in self.sums if y.shape[a] > 1]))
        places = {**self.kept, **{s.result: s.axis for s in self.steps}}
        order = [places[i] for i in range(len(shape)) if i in places]
        return reshape(permute(y, (*order, *[a for a in range(n) if a not in order])), shape)


def _padding(s: _Stepped, remainders: range) -> tuple[int, int]:
    """How many elements before and after the axis the positions of these remainders read."""
    ends = [s.reads(r)[2:] for r in remainders if s.taps_of(r) and s.count(r)]
    return max(0, -min(e[0] for e in ends)), max(0, max(e[1] for e in ends) - s.size + 1)


def _every(y: UOp, axis: int, taken: range) -> UOp:
    """The elements `taken` of an axis."""
    shape = y.shape
    if taken.step == 1:
        return shrink(y, tuple([(taken[0], len(taken)) if i == axis else (0, d) for i, d in enumerate(shape)]))
    y = reshape(y, (*shape[:axis], 1, *shape[axis:]))
    y = expand(y, (*shape[:axis], len(taken), *shape[axis:]))
    y = shear(y, axis + 1, axis, taken.step, taken[0], 1)
    return reshape(y, (*shape[:axis], len(taken), *shape[axis + 1 :]))
