"""Reverse-mode differentiation of the tensor form: one rule an operation, over the IR only.

In come a root, its gradient and targets; out goes, for each target, the graph of its gradient: ordinary nodes, so that
the gradient of a gradient is the same call again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from aril.dtype import DType, accumulator, dtypes
from aril.ops import OpGroup, Ops
from aril.uop.args import is_memory_only
from aril.uop.call import result_number, written_views
from aril.uop.composed import operand_of
from aril.uop.exchange import exchange
from aril.uop.function import FunctionArg, bind, call, stand_in
from aril.uop.node import Shape, UOp, sint
from aril.uop.shape import expand, flip, movement_arg, pad, permute, reduce, reshape, scatter, shear, shrink, simple_add

Grads = tuple[UOp | None, ...]
Rule = Callable[[UOp, UOp], Grads]  # (node, gradient of the node) -> the gradient of each of its `inputs`

_RULES: dict[Ops, Rule] = {}
# Their derivative is zero wherever it exists, or they were asked to let nothing through: paths end here.
_STOPS = frozenset({Ops.DETACH, Ops.TRUNC, Ops.FLOORDIV, Ops.CDIV, Ops.BITCAST, Ops.CONST, Ops.Invalid, Ops.THREEFRY})
_LN2 = math.log(2.0)


def gradient(root: UOp, root_grad: UOp, targets: Sequence[UOp]) -> list[UOp | None]:
    """The gradient of sum(root * root_grad) with respect to each target, of its shape and dtype.

    None where root does not depend on the target through anything differentiable (integers, comparisons, DETACH and
    steps such as TRUNC pass nothing on). Ties: a maximum over axes shares the gradient evenly among the greatest
    elements; an elementwise maximum halves it, but against a constant the constant wins (so relu'(0) = 0).

    Errors: ValueError for a root gradient that does not fit, NotImplementedError for an operation without a rule.
    """
    if root_grad.shape not in ((), root.shape):
        raise ValueError(
            f"gradient: the root has shape {root.shape}, its gradient {root_grad.shape}; make them the same"
        )
    if root.dtype.kind != "f":
        raise ValueError(f"gradient: only floats have gradients, the root is {root.dtype.name}; cast it first")
    return _reverse({root: _fit(root_grad, root)}, targets)


def _reverse(grads: dict[UOp, UOp], targets: Sequence[UOp]) -> list[UOp | None]:
    """The gradients of `targets`, given those of some roots."""
    wanted = set(targets)
    order = _paths(grads, wanted)
    for u in reversed(order):
        g = grads.get(u) if u in wanted else grads.pop(u, None)
        if g is None:  # on a path, yet every rule above gave nothing
            continue
        sources = inputs(u)
        if not any(s in order for s in sources):
            continue
        rule = _RULES.get(u.op)
        if rule is None:
            raise NotImplementedError(f"gradient: {u.op} has no rule; detach() its operand or compute it another way")
        for s, contribution in zip(sources, rule(u, g), strict=True):
            if contribution is not None and s in order:
                contribution = _fit(contribution, s)
                grads[s] = contribution if s not in grads else _add(grads[s], contribution)
    return [grads.get(t) for t in targets]


def inputs(u: UOp) -> tuple[UOp, ...]:
    """The sources a rule gives gradients for, in order. An assignment's are the old value and the values stored."""
    if u.op in _STOPS:
        return ()
    if u.op is Ops.AFTER:
        if u.src[1].op is Ops.CALL:
            return u.src[1:]
        return (u.src[0], *[store.src[1] for store in _stores(u)])
    if u.op is Ops.UNSHARD:  # of its MSTACK: one a device
        return u.src[0].src
    if u.op is Ops.WHERE:
        return u.src[1:]
    if u.op in OpGroup.MOVEMENT or u.op in OpGroup.TRANSFER or u.op in (Ops.REDUCE, Ops.INDEX):
        return u.src[:1]
    if u.op is Ops.SCATTER:
        return u.src[:2]
    if u.op is Ops.FUNCTION:
        return u.src[1:]
    return u.src


def _paths(roots: Iterable[UOp], targets: set[UOp]) -> dict[UOp, None]:
    """The nodes that lie on a differentiable way from a root to a target, sources first."""
    kept: dict[UOp, None] = {}
    seen: set[UOp] = set()
    stack: list[tuple[UOp, bool]] = [(r, False) for r in roots]
    while stack:
        u, done = stack.pop()
        if done:
            if u in targets or any(s in kept for s in inputs(u)):
                kept[u] = None
        elif u not in seen and (u.dtype.kind == "f" or u.op in (Ops.FUNCTION, Ops.TUPLE, Ops.CALL)):
            seen.add(u)
            stack.append((u, True))
            stack.extend([(s, False) for s in inputs(u) if s not in seen])
    return kept


def _fit(g: UOp, like: UOp) -> UOp:
    """`g` with the shape and dtype of `like`: summed where `like` is a scalar, repeated where `g` is."""
    if g.op is Ops.TUPLE:
        return g
    if g.shape != like.shape:
        if like.shape == ():
            g = reshape(_sum(g, range(len(g.shape))), ())
        else:
            g = _spread(reshape(g, (1,) * len(like.shape)), like.shape)
    return g if like.dtype.weak else g.cast(like.dtype)


def _add(a: UOp, b: UOp) -> UOp:
    """The sum of two contributions; those to a call are TUPLEs, one gradient a result."""
    if a.op is Ops.TUPLE:
        return UOp(Ops.TUPLE, tuple([_add(x, y) for x, y in zip(a.src, b.src, strict=True)]))
    if a.op is Ops.CONST and a.arg == 0:
        return b
    return a if b.op is Ops.CONST and b.arg == 0 else a + b


def _sum(g: UOp, axes: Iterable[int]) -> UOp:
    """Sum over `axes`, which stay with length 1; small floats are carried wider."""
    return reduce(g.cast(accumulator(g.dtype)), Ops.ADD, tuple(axes)).cast(g.dtype)


def _spread(g: UOp, shape: Shape) -> UOp:
    return expand(g, shape)


def _rule(*ops: Ops) -> Callable[[Rule], Rule]:
    def add(rule: Rule) -> Rule:
        _RULES.update(dict.fromkeys(ops, rule))
        return rule

    return add


def _times(g: UOp, c: UOp) -> UOp:
    """g * c. What exp and log multiply by on their way to base 2 and back leaves nothing, not even its rounding."""
    if c.op is Ops.CONST and g.op is Ops.MUL and g.src[1].op is Ops.CONST:
        pair = {c, g.src[1]}
        if pair == {c.const_like(_LN2), c.const_like(1 / _LN2)}:
            return g.src[0]
    return g * c


# --- elementwise: a source of shape () under a shaped result is summed by `_fit` ---

_RULES[Ops.CAST] = lambda u, g: (g,)  # `_fit` casts
_RULES[Ops.NEG] = lambda u, g: (-g,)
_RULES[Ops.EXP2] = lambda u, g: (g * u * _LN2,)
_RULES[Ops.LOG2] = lambda u, g: (_times(g, u.const_like(1 / _LN2)) / u.src[0],)
_RULES[Ops.SQRT] = lambda u, g: (g / (u * 2.0),)
_RULES[Ops.RECIPROCAL] = lambda u, g: (-g * u * u,)
_RULES[Ops.ADD] = lambda u, g: (g, g)
_RULES[Ops.SUB] = lambda u, g: (g, -g)
_RULES[Ops.MUL] = lambda u, g: (_times(g, u.src[1]), _times(g, u.src[0]))
_RULES[Ops.FDIV] = lambda u, g: (g / u.src[1], -g * u / u.src[1])
_RULES[Ops.MULACC] = lambda u, g: (g * u.src[1], g * u.src[0], g)
_RULES[Ops.WHERE] = lambda u, g: (u.src[0].where(g, 0.0), u.src[0].where(0.0, g))


@_rule(Ops.SIN)
def _sin(u: UOp, g: UOp) -> Grads:
    x = operand_of(u)
    return (g * u.src[0].cos(),) if x is None else (-g * x.sin(),)


@_rule(Ops.POW)
def _pow(u: UOp, g: UOp) -> Grads:
    base, power = u.src
    to_base = power.eq(0.0).where(0.0, g * power * UOp(Ops.POW, (base, power - 1.0)))
    # 0**y is 0 for every y > 0: flat there, although log(0) is not finite
    flat = base.eq(0.0) & (power >= 0.0)
    return to_base, flat.where(0.0, g * u * (flat.where(1.0, base).log2() * _LN2))


@_rule(Ops.MAX)
def _max(u: UOp, g: UOp) -> Grads:
    a, b = u.src
    if (a.op is Ops.CONST) is not (b.op is Ops.CONST):
        above = u.ne(a if a.op is Ops.CONST else b)  # asks the result, so a NaN passes its gradient on
        to_other, to_constant = above.where(g, 0.0), above.where(0.0, g)
        return (to_constant, to_other) if a.op is Ops.CONST else (to_other, to_constant)
    half = a.eq(b).where(g * 0.5, g)
    return (a < b).where(0.0, half), (b < a).where(0.0, half)


# --- reductions ---


@_rule(Ops.REDUCE)
def _reduce(u: UOp, g: UOp) -> Grads:
    (op, axes), x = u.arg, u.src[0]
    if op is Ops.ADD:
        return (_spread(g, x.shape),)
    if op is Ops.MAX:
        # Another node than u: that may have been realized from an x that is computed anew here, with other rounding.
        greatest = x.eq(_spread(UOp(Ops.REDUCE, (x,), u.arg, tag="again"), x.shape))
        share = g / _sum(greatest.cast(x.dtype), axes)
        return (greatest.where(_spread(share, x.shape), 0.0),)
    if op is Ops.MUL:
        leaf = stand_in(x)
        others = call([_by_division(leaf, axes)], [leaf], [x], FunctionArg("others", _Tournament(axes)))
        return (_spread(g, x.shape) * others[0],)
    raise NotImplementedError(f"gradient: a reduction by {op} has no rule")


def _by_division(x: UOp, axes: tuple[int, ...]) -> UOp:
    """For each element the product of all others over `axes`: that of all that are not 0 divided by the element, or 0
    where another one is 0."""
    zero = x.eq(0.0)
    nonzero, count = zero.where(1.0, x), zero.cast(x.dtype)
    others = _spread(_sum(count, axes), x.shape) - count
    return others.eq(0.0).where(_spread(reduce(nonzero, Ops.MUL, axes), x.shape) / nonzero, 0.0)


@dataclass(frozen=True, slots=True)
class _Tournament:
    """The gradient of `_by_division`, whose own formula is flat at zeros."""

    axes: tuple[int, ...]

    def __call__(self, grads: tuple[UOp, ...], args: tuple[UOp, ...]) -> Sequence[UOp | None]:
        return _reverse({_by_products(args[0], self.axes): grads[0]}, args)


def _by_products(x: UOp, axes: tuple[int, ...]) -> UOp:
    """`_by_division` by products alone: zeros are numbers like any other, and derivatives of every order are right.

    A tournament: pairs are multiplied, then pairs of those, and so on; an element's result is the product of what it,
    its pair, .. met on the way.
    """
    rest = [a for a in range(len(x.shape)) if a not in axes]
    order = (*rest, *axes)
    moved = permute(x, order)
    k, shape = len(rest), moved.shape
    lead, most = shape[:k], [d if isinstance(d, int) else int(d.vmax) for d in shape[k:]]
    n = math.prod(most)
    size = 1 << (n - 1).bit_length()
    whole = pad(moved, (*[(0, 0)] * k, *[(0, _minus(m, d)) for m, d in zip(most, shape[k:], strict=True)]), 1.0)
    level = pad(reshape(whole, (*lead, n)), (*[(0, 0)] * k, (0, size - n)), 1.0)
    met: list[UOp] = []
    while size > 1:
        size //= 2
        halves = reshape(level, (*lead, 2, size))
        met.append(flip(halves, (k,)))
        one, other = [shrink(halves, (*[(0, d) for d in lead], (i, 1), (0, size))) for i in (0, 1)]
        level = reshape(one * other, (*lead, size))
    out = expand(reshape(level.const_like(1.0), (1,) * (k + 1)), (*lead, 1))
    for other in reversed(met):
        out = reshape(expand(reshape(out, (*lead, 1, size)), other.shape) * other, (*lead, 2 * size))
        size *= 2
    parts = tuple([(0, d) for d in lead])
    out = shrink(reshape(shrink(out, (*parts, (0, n))), (*lead, *most)), tuple([(0, d) for d in shape]))
    return permute(out, tuple([order.index(a) for a in range(len(order))]))


# --- movement: the transpose of each ---


def _minus(a: sint, *more: sint) -> sint:
    for b in more:
        a = simple_add(a, -b if isinstance(b, int) else b * -1)
    return a


def _transpose_shear(u: UOp, g: UOp) -> UOp:
    axis, by, step, offset, length = u.arg
    n, m = u.src[0].shape[axis], u.src[0].shape[by]
    reach = step * (m - 1)  # of the last row beyond the first
    before, after = offset + max(reach, 0), n - offset - min(reach, 0) - length
    padded = pad(g, tuple([(before, after) if i == axis else (0, 0) for i in range(len(g.shape))]))
    return shear(padded, axis, by, -step, before - offset, n)


def transpose(u: UOp, g: UOp) -> UOp:
    """The gradient of the source of a movement node."""
    shape, arg = u.src[0].shape, movement_arg(u)
    if u.op is Ops.RESHAPE:
        return reshape(g, shape)
    if u.op is Ops.EXPAND:
        return _sum(g, [i for i, (a, b) in enumerate(zip(shape, arg, strict=True)) if a is not b and a != b])
    if u.op is Ops.PERMUTE:
        return permute(g, tuple(sorted(range(len(arg)), key=arg.__getitem__)))
    if u.op is Ops.PAD:
        return shrink(g, tuple([(before, d) for (before, _), d in zip(arg, shape, strict=True)]))
    if u.op is Ops.SHRINK:
        return pad(g, tuple([(start, _minus(d, start, n)) for (start, n), d in zip(arg, shape, strict=True)]))
    if u.op is Ops.FLIP:
        return flip(g, arg)
    return _transpose_shear(u, g)


_RULES.update(dict.fromkeys(OpGroup.MOVEMENT, lambda u, g: (transpose(u, g),)))


@_rule(Ops.STACK)
def _stack(u: UOp, g: UOp) -> Grads:
    rest = tuple([(0, d) for d in g.shape[1:]])
    return tuple([reshape(shrink(g, ((i, 1), *rest)), s.shape) for i, s in enumerate(u.src)])


# --- positions ---


@_rule(Ops.INDEX)
def _index(u: UOp, g: UOp) -> Grads:
    if len(u.src) != 2:
        raise NotImplementedError("gradient: an INDEX of several positions has no rule; take one axis at a time")
    x, positions = u.src
    wide = accumulator(x.dtype)
    return (scatter(_full(x, 0.0, wide), g.cast(wide), positions, Ops.ADD).cast(x.dtype),)


@_rule(Ops.SCATTER)
def _scatter(u: UOp, g: UOp) -> Grads:
    (x, values, positions), op = u.src, u.arg
    if op is Ops.ADD:
        return g, _rows(g, positions)
    if op is Ops.STORE:  # the last value of a place has its gradient, what it hides has none
        m = math.prod(positions.shape)
        flat, none = reshape(positions, (m,)), expand(reshape(UOp.const(dtypes.int32, -1), (1,)), u.shape[:1])
        order = UOp.iota(m).cast(dtypes.int32)
        last = scatter(none, order, flat, Ops.STORE)
        mine = reshape(_rows(last, flat).eq(order), positions.shape)
        to_values = _like_rows(mine, values).where(_rows(g, positions), 0.0)
        return _like_rows(last < 0, x).where(g, 0.0), to_values
    if op is Ops.MAX:  # shared evenly among the greatest, as by a maximum over axes
        again = UOp(Ops.SCATTER, u.src, op, tag="again")
        own, theirs = x.eq(again), values.eq(_rows(again, positions))
        count = scatter(own.cast(x.dtype), theirs.cast(x.dtype), positions, Ops.ADD)
        share = g / count.eq(0.0).where(1.0, count)
        return own.where(share, 0.0), theirs.where(_rows(share, positions), 0.0)
    # the product of the others, as by a product over axes
    zero, zeros = values.eq(0.0), x.eq(0.0)
    others = scatter(zeros.where(1.0, x), zero.where(1.0, values), positions, Ops.MUL)
    count = scatter(zeros.cast(x.dtype), zero.cast(x.dtype), positions, Ops.ADD)
    whole, single = count.eq(0.0).where(g * others, 0.0), count.eq(1.0).where(g * others, 0.0)
    return (
        zeros.where(single, whole / zeros.where(1.0, x)),
        zero.where(_rows(single, positions), _rows(whole, positions) / zero.where(1.0, values)),
    )


def _full(like: UOp, value: float, dtype: DType) -> UOp:
    return expand(reshape(UOp.const(dtype, value), (1,) * len(like.shape)), like.shape)


def _rows(x: UOp, positions: UOp) -> UOp:
    """The rows of x at `positions`; zeros where there is none."""
    small = positions.dtype.itemsize < 4 or positions.dtype is dtypes.int32
    at = positions.cast(dtypes.int32 if small else dtypes.int64)
    inside = (at >= 0) & (at < x.shape[0])
    rows = UOp(Ops.INDEX, (x, inside.where(at, 0)))
    return _like_rows(inside, rows).where(rows, rows.const_like(0))


def _like_rows(flags: UOp, rows: UOp) -> UOp:
    """One flag a row, as one an element."""
    wide = reshape(flags, (*flags.shape, *(1,) * (len(rows.shape) - len(flags.shape))))
    return expand(wide, rows.shape)


# --- places ---

_RULES[Ops.CONTIGUOUS] = _RULES[Ops.NOOP] = lambda u, g: (g,)
_RULES[Ops.CONTIGUOUS_BACKWARD] = lambda u, g: (UOp(Ops.CONTIGUOUS, (g,)),)


@_rule(Ops.UNSHARD)
def _unshard(u: UOp, g: UOp) -> Grads:
    axis, parts = u.arg[0], u.src[0].src
    if axis is None:  # the same value on every device: one of them stands for it
        return (UOp(Ops.COPY, (g,), parts[0].device), *[None] * (len(parts) - 1))
    out: list[UOp] = []
    start: sint = 0
    for p in parts:
        pairs = tuple([(start, n) if i == axis else (0, n) for i, n in enumerate(p.shape)])
        out.append(UOp(Ops.COPY, (shrink(g, pairs),), p.device))
        start = simple_add(start, p.shape[axis])
    return tuple(out)


@_rule(Ops.COPY)
def _copy(u: UOp, g: UOp) -> Grads:
    home = u.src[0].device  # a file or another's array is no place to write a gradient to
    return (g if home is None or is_memory_only(home) else UOp(Ops.COPY, (g,), home),)


@_rule(Ops.COLLECTIVE)
def _collective(u: UOp, g: UOp) -> Grads:
    """The gradient of the sum of what every process differentiates: each sends the others' shares to them. The graph
    is the same in all of them, so that none leaves a message out."""
    if u.arg.kind == "alltoall":
        return (exchange(g, "alltoall", u.arg),)
    if u.arg.kind == "broadcast":  # all to the root, nothing to the others
        around = ((u.arg.root, u.arg.ranks - 1 - u.arg.root), *[(0, 0)] * len(g.shape))
        g = pad(reshape(g, (1, *g.shape)), around)
    return (reshape(_sum(exchange(g, "alltoall", u.arg), (0,)), u.src[0].shape),)


# --- assignment ---


def _stores(u: UOp) -> list[UOp]:
    return [d for d in u.src[1:] if d.op is Ops.STORE]


@_rule(Ops.AFTER)
def _after(u: UOp, g: UOp) -> Grads:
    if u.src[1].op is Ops.CALL:
        results, mine = written_views(u.src[1]), result_number(u)
        own = reshape(g, results[mine].shape)
        return (UOp(Ops.TUPLE, tuple([own if n == mine else UOp.const(r.dtype, 0) for n, r in enumerate(results)])),)
    old: UOp = u.src[0]
    left: UOp | None = g  # `left`: the gradient of what no later store has hidden; None once all is
    to_values: list[UOp | None] = []
    for store in reversed(_stores(u)):
        views, below = [], store.src[0]
        while below is not old and below.op in OpGroup.MOVEMENT:
            views.append(below)
            below = below.src[0]
        if below is not old:
            raise NotImplementedError("gradient: an assignment to something that is no view of the value it changes")
        seen, shape = left, store.src[0].shape
        if seen is not None:
            for view in reversed(views):
                seen = view.with_src((seen, *view.src[1:]))
        to_values.append(seen)
        if not views:
            left = None
        elif left is not None:
            written = _spread(reshape(left.const_like(1.0), (1,) * len(shape)), shape)
            for view in views:
                written = transpose(view, written)
            left = written.ne(0.0).where(0.0, left)
    return (left, *reversed(to_values))


# --- functions and kernels ---


@_rule(Ops.CALL)
def _call(u: UOp, g: UOp) -> Grads:
    if u.arg.grad is None:
        raise NotImplementedError(
            f"gradient: the custom kernel {u.arg.kernel.arg.name!r} has none; give custom_kernel a grad_fxn, or "
            "detach() its result"
        )
    given = u.arg.grad(tuple([_fit(x, v) for x, v in zip(g.src, written_views(u), strict=True)]), u.src)
    return (*given, *[None] * (len(u.src) - len(given)))


@_rule(Ops.GETTUPLE)
def _gettuple(u: UOp, g: UOp) -> Grads:
    results = u.src[0].src if u.src[0].op is Ops.TUPLE else u.src[0].src[0].src
    return (UOp(Ops.TUPLE, tuple([g if n == u.arg else UOp.const(r.dtype, 0) for n, r in enumerate(results)])),)


@_rule(Ops.TUPLE)
def _tuple(u: UOp, g: UOp) -> Grads:
    return g.src


@_rule(Ops.FUNCTION)
def _function(u: UOp, g: UOp) -> Grads:
    args = u.src[1:]
    results = u.src[0].src
    grads = [_fit(x, r) for x, r in zip(g.src, results, strict=True)]
    if u.arg.grad is not None:
        given = tuple(u.arg.grad(tuple(grads), args))
        return (*given, *[None] * (len(args) - len(given)))
    # differentiated where every argument is a leaf, though one may be computed from another outside
    leaves = [stand_in(a) for a in args]
    roots = [(r, x) for r, x in zip(bind(u, leaves), grads, strict=True) if r.dtype.kind == "f"]
    total: dict[UOp, UOp] = {}
    for r, x in roots:
        total[r] = x if r not in total else _add(total[r], x)
    outer = dict(zip(leaves, args, strict=True))
    return tuple([None if x is None else x.substitute(outer) for x in _reverse(total, leaves)])
