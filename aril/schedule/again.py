"""Products that several sums read through a mask of positions are computed again for each of them.

In: the tensor graph of attention with its gradients. Out: the same, where each sum over weights has scores of its own,
so that it becomes one kernel in which they lie in scratch (`chain`) and hidden columns are left out (`hidden`). What
the elements of a row have in common, its maximum and sum, is computed once and stored.
See `docs/decisions/0020-scores-again.md`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from aril.ops import OpGroup, Ops
from aril.schedule.fuse import OP_WEIGHT, is_contraction
from aril.uop import UOp
from aril.uop.pattern import Pat, Rules
from aril.uop.rewrite import rewrite
from aril.uop.shape import expand, permute, reduce, reshape

AGAIN = "again"  # tag of what is computed again: (AGAIN, number of the sum)
MOST_TERMS = 256  # of a product that is computed again
LONGEST = 1 << 13  # columns: longer rows have no place in scratch
STORED_WEIGHT = 8.0  # of operations: an exponential
MOST_NODES = 256  # of weights as a function of scores

_FORMS = (Ops.RESHAPE, Ops.EXPAND, Ops.PERMUTE)


def sum_known_products(sink: UOp) -> UOp:
    """The sum of weights times products with b is a product with the sum of the weights times b, where that is known.

    Before: ``REDUCE(w_k * REDUCE(a_e * b_ek, ADD, e), ADD, k)`` beside ``o_e = REDUCE(w_k * b_ek, ADD, k)``. After:
    ``REDUCE(a_e * o_e, ADD, e)``. So the gradient of attention knows what the weights of a row have in common (the sum
    of each times its gradient) without going over them. A divisor that is the same all along the sum divides it once.
    """
    products = {u.src[0]: u for u in sink.toposort() if _sums_products(u)}
    done: dict[UOp, UOp] = {}
    return rewrite(sink, _KNOWN_PRODUCTS, (products, done), once=True, done=done)


def _known_product(ctx: tuple[dict[UOp, UOp], dict[UOp, UOp]], old: UOp) -> UOp | None:
    products, done = ctx
    if old.arg[0] is not Ops.ADD or old.dtype.kind != "f" or old.src[0] in products:
        return None
    return _from_known(old, products, done)


_KNOWN_PRODUCTS = Rules([(Pat(Ops.REDUCE), _known_product)], name="sum known products")


def _sums_products(u: UOp) -> bool:
    return u.op is Ops.REDUCE and u.arg[0] is Ops.ADD and u.src[0].op is Ops.MUL and is_contraction(u)


def _from_known(u: UOp, products: dict[UOp, UOp], done: dict[UOp, UOp]) -> UOp | None:
    """The sum `u` of weights times products, from a known sum of the same weights; None where there is none."""
    x, divisors, negative = u.src[0], list[UOp](), False
    while x.op is Ops.NEG or x.op is Ops.FDIV:
        if x.op is Ops.FDIV:
            wide = x.src[1]
            if wide.op is not Ops.EXPAND or any(wide.src[0].shape[a] != 1 for a in u.arg[1]):
                return None
            divisors.append(wide.src[0])
        negative ^= x.op is Ops.NEG
        x = x.src[0]
    if x.op is not Ops.MUL or len(u.arg[1]) != 1 or not all(isinstance(d, int) for d in x.shape):
        return None
    for weights, inner in (x.src, x.src[::-1]):
        if inner.op is Ops.NEG:
            inner, negative = inner.src[0], not negative
        while inner.op is Ops.RESHAPE:
            inner = inner.src[0]
        if products.get(inner.src[0] if inner.src else inner) is inner:
            out = _product_of_sum(u, weights, inner, products, done)
            if out is not None:
                for d in reversed(divisors):
                    out = UOp(Ops.FDIV, (out, done[d]))
                return UOp(Ops.NEG, (out,)) if negative else out
    return None


def _product_of_sum(u: UOp, weights: UOp, inner: UOp, products: dict[UOp, UOp], done: dict[UOp, UOp]) -> UOp | None:
    """The sum over `inner` = REDUCE(a * b) times weights as REDUCE(a * o), o the sum of weights times b."""
    frame, axis = inner.src[0], u.arg[1][0]
    before = math.prod(weights.shape[:axis])
    for a, b in (frame.src, frame.src[::-1]):
        seen = expand(reshape(weights, inner.shape), frame.shape)
        known = products.get(UOp(Ops.MUL, (seen, b)), products.get(UOp(Ops.MUL, (b, seen))))
        if known is None or known not in done or len(known.arg[1]) != 1:
            continue
        k = known.arg[1][0]
        if math.prod(inner.shape[:k]) != before or inner.shape[k] != weights.shape[axis]:
            continue
        if a.op is Ops.EXPAND and a.src[0].shape[k] == 1:
            own = expand(done[a.src[0]], known.shape)
            result = reshape(done[known], (*known.shape[:k], *known.shape[k + 1 :]))  # as others read it
            total = reduce(UOp(Ops.MUL, (own, reshape(result, known.shape))), Ops.ADD, inner.arg[1])
            return reshape(total, u.shape)
    return None


@dataclass(frozen=True)
class _Sum:
    """A sum of products that reads scores: `weights` is its operand, with one element along the axes that it does not
    have; `scores` are the products it is made of, each with the axes of `weights` that its own longer ones are; `rows`
    other reductions in it."""

    weights: UOp
    scores: dict[UOp, tuple[int, ...]]
    rows: frozenset[UOp]
    masked: bool
    turned: bool  # it goes along another axis than the last of its weights


def compute_scores_again(sink: UOp) -> UOp:
    """Products that several sums read through a mask of positions are computed again for all but the first.

    Before: ``s = REDUCE(q * k); p = f(WHERE(mask, s, -inf), REDUCE(s, MAX)); REDUCE(p * v), REDUCE(PERMUTE(p) * g)``.
    After: the second sum has an s of its own, told apart by its tag, in the order in which the sum goes along it, and
    both read a stored REDUCE(s, MAX). Where nothing is hidden, computing again costs more than reading.
    """
    order = sink.toposort()
    if not any(u.op is Ops.SPECIAL for u in order):
        return sink
    sums = {u: found for u in order if _sums_products(u) and (found := _sum_of(u)) is not None}
    first = _firsts(order, sums)
    if not first:
        return sink
    again = {u: f for u, f in sums.items() if f.scores.keys() <= first.keys()}
    rows = frozenset().union(*[f.rows for f in again.values()])
    # what a row sums up is read again by what follows: an exponential is computed once
    stored = rows | {r.src[0] for r in rows if OP_WEIGHT.get(r.src[0].op, 1.0) >= STORED_WEIGHT}
    own = {u: f for u, f in again.items() if any(first[s] is not u for s in f.scores)}
    numbers = {u: i for i, u in enumerate(order) if u in own}
    done: dict[UOp, UOp] = {}
    return rewrite(sink, _SCORES_AGAIN, _Again(own, numbers, stored, done), once=True, done=done)


class _Again(NamedTuple):
    """What `compute_scores_again` found: sums that get scores of their own, their numbers, and what is stored."""

    own: dict[UOp, _Sum]
    numbers: dict[UOp, int]
    stored: frozenset[UOp]
    done: dict[UOp, UOp]


def _again(ctx: _Again, u: UOp, old: UOp) -> UOp | None:
    if old in ctx.own:
        return _with_own_scores(old, ctx.own[old], ctx.done, (AGAIN, ctx.numbers[old]))
    return UOp(Ops.CONTIGUOUS, (u,)) if old in ctx.stored else None


_SCORES_AGAIN = Rules([(Pat(name="u"), _again)], name="compute scores again")


def _firsts(order: dict[UOp, None], sums: dict[UOp, _Sum]) -> dict[UOp, UOp]:
    """Scores that only sums through a mask read, several of them; for each the sum that needs no others if there is
    one, where the rows' maxima and the like are found on the way."""
    users: dict[UOp, list[UOp]] = {}
    for u, found in sums.items():
        for s in found.scores:
            users.setdefault(s, []).append(u)
    good = {s for s, readers in users.items() if len(readers) > 1 and all(sums[u].masked for u in readers)}
    if not good:
        return {}
    made_of: dict[UOp, set[UOp]] = {}  # node -> the scores that it is a function of, element by element
    rows: dict[UOp, set[UOp]] = {}  # reductions of such
    for u in order:
        below = set().union(*[made_of.get(s, ()) for s in u.src])
        if u.op is Ops.REDUCE:
            if u in sums:
                good -= below - sums[u].scores.keys()
            elif _sums_products(u):
                good -= below
            elif below:
                rows[u] = below
            below = {u} if u in good else set()
        elif below and not _is_function(u):
            good -= below
            below = set()
        made_of[u] = below
    while True:  # a sum that reads others too is none of these, nor are then its scores
        lost = {s for s in good for u in users[s] if not sums[u].scores.keys() <= good}
        if not lost:
            break
        good -= lost
    first = {s: min(users[s], key=lambda u: (len(sums[u].scores), sums[u].turned)) for s in good}
    alone = {u for u in first.values() if all(first[s] is u for s in sums[u].scores)}
    seen = frozenset().union(*[sums[u].rows for u in alone])
    lost = {s for row, below in rows.items() if row not in seen for s in below}
    return {} if lost & good else first


def _sum_of(u: UOp) -> _Sum | None:
    """`u` as a sum of weights times something, the weights an elementwise function of products; else None."""
    product = u.src[0]
    along = [a for a in u.arg[1] if product.shape[a] != 1]
    if len(along) != 1 or not all(isinstance(d, int) for d in product.shape) or product.shape[along[0]] > LONGEST:
        return None
    found = [_weights(x.src[0] if x.op is Ops.EXPAND else x, along[0]) for x in product.src]
    weights = [f for f in found if f is not None and f.scores]
    masked = [f for f in weights if f.masked]
    return masked[0] if len(masked) == 1 else weights[0] if len(weights) == 1 else None


def _weights(weights: UOp, along: int) -> _Sum | None:
    """What the operand `weights` of a sum along that axis is made of; None where a product in it has other axes."""
    axes = tuple([i for i, d in enumerate(weights.shape) if d != 1])
    if along not in axes:
        return None
    seen = {(weights, axes)}
    scores: dict[UOp, tuple[int, ...]] = {}
    rows: dict[UOp, None] = {}
    masked = False
    stack = [(weights, axes)]
    while stack:
        n, place = stack.pop()
        if n.op is Ops.REDUCE and not _sums_products(n):
            rows[n] = None
        elif n.op is Ops.REDUCE:
            if sorted(place) != list(axes) or math.prod([n.src[0].shape[a] for a in n.arg[1]]) > MOST_TERMS:
                return None
            if scores.setdefault(n, place) != place:
                return None
        elif _is_function(n):
            masked = masked or n.op is Ops.WHERE and _of_positions(n.src[0])
            for s in n.src:
                there = _below(n, s, place)
                if there is not None and (s, there) not in seen:
                    seen.add((s, there))
                    stack.append((s, there))
            if len(seen) > MOST_NODES:
                return None
    return _Sum(weights, scores, frozenset(rows), masked, along != axes[-1])


def _is_function(n: UOp) -> bool:
    """Whether an element of `n` is made of one of each source."""
    return n.op in OpGroup.ELEMENTWISE or n.op in _FORMS


def _below(n: UOp, s: UOp, place: tuple[int, ...]) -> tuple[int, ...] | None:
    """What the longer axes of source `s` are, those of `n` being `place`; None where they are not axes of `n`."""
    if not s.shape or not all(isinstance(d, int) for d in s.shape):
        return None
    if n.op is Ops.RESHAPE:
        return place if [d for d in s.shape if d != 1] == [d for d in n.shape if d != 1] else None
    wide = iter(place)
    whole = [next(wide) if d != 1 else -1 for d in n.shape]
    if n.op is Ops.PERMUTE:
        whole = [whole[n.arg.index(i)] for i in range(len(whole))]
    return tuple([a for a, d in zip(whole, s.shape, strict=True) if d != 1])


def _of_positions(condition: UOp) -> bool:
    """Whether a condition compares numbers that no memory holds."""
    nodes = condition.toposort()
    return any(n.op is Ops.CMPLT for n in nodes) and all(
        n.op in OpGroup.ELEMENTWISE or n.op in _FORMS or n.op in (Ops.CONST, Ops.SPECIAL) or n.is_variable
        for n in nodes
    )


def _with_own_scores(u: UOp, found: _Sum, done: dict[UOp, UOp], tag: tuple[str, int]) -> UOp:
    """`u` with scores of its own. They, and the weights, are stored with the axis of the sum last; `chain` makes one
    kernel of it all."""
    axes = u.arg[1]
    shape = found.weights.shape
    order = sorted(range(len(shape)), key=lambda a: (a in axes, shape[a] == 1, a))
    here: dict[UOp, UOp] = {}
    last = next(reversed(found.scores))
    for n in found.weights.toposort(_is_function):
        if n in found.scores:
            own = done[n].replace(tag=tag)
            here[n] = own if n is last else _stored(own, _order_of(n, found.scores[n], order), tag)
        else:
            here[n] = n.with_src(tuple([here[s] for s in n.src])) if _is_function(n) else done[n]
    weights = _stored(here[found.weights], order, tag)
    product = u.src[0]
    src = []
    for x in product.src:
        if (x.src[0] if x.op is Ops.EXPAND else x) is found.weights:
            src.append(expand(weights, product.shape))
        else:
            src.append(done[x])
    # the axes of the weights' rows come first, in their order: the loops that the kernel's parts share
    turned = UOp(Ops.MUL, tuple([permute(x, tuple(order)) for x in src]))
    total = reduce(turned, Ops.ADD, tuple([order.index(a) for a in axes]))
    return permute(total, _back(order))


def _stored(x: UOp, order: list[int], tag: tuple[str, int]) -> UOp:
    """`x` from memory in which its axes have this order."""
    return permute(UOp(Ops.CONTIGUOUS, (permute(x, tuple(order)),), tag=tag), _back(order))


def _back(order: list[int]) -> tuple[int, ...]:
    return tuple([order.index(i) for i in range(len(order))])


def _order_of(n: UOp, place: tuple[int, ...], order: list[int]) -> list[int]:
    """The axes of `n` in the order that those of the weights have, which `place` says they are."""
    wide = iter(place)
    where = [order.index(next(wide)) if d != 1 else -1 for d in n.shape]
    return sorted(range(len(where)), key=where.__getitem__)
