"""Operands of contractions are laid out as their loops read them, where that is worth a copy.

In: the tensor graph before fusion. Out: the same, with casts done on storage in its own order, and with operands that
every step of the sum would read from another line copied so that the sum goes along a row.
"""

from __future__ import annotations

import math

from aril.ops import OpGroup, Ops
from aril.schedule.fuse import is_contraction, is_leaf
from aril.schedule.narrow import has_pairs, is_narrow
from aril.schedule.prepare import inner_axis
from aril.uop import UOp
from aril.uop.order import use_counts
from aril.uop.pattern import Pat, Rules, V
from aril.uop.rewrite import rewrite
from aril.uop.shape import expand, pad, permute

LINES = 512  # of a first-level cache: sums of fewer steps find their lines again there
PAGE, AT_PAGES = 4096, 64  # lines a page apart share a set of the cache: few stay
APART = 256  # bytes between the lines of two steps from which prefetching does not help
USES = 128  # how often each element is read: a copy is one read and one write

_CHAIN = frozenset({Ops.RESHAPE, Ops.PERMUTE, Ops.EXPAND, Ops.CAST})


def lay_out_operands(sink: UOp) -> UOp:
    """`a.T @ b` copies a.T where it is large; casts of moved storage become moved casts.

    Before: ``REDUCE(MUL(EXPAND(PERMUTE(a)), EXPAND(CAST(PERMUTE(b)))), ADD)``. After: ``REDUCE(MUL(EXPAND(CONTIGUOUS(
    PERMUTE(a))), EXPAND(PERMUTE(CAST(b)))), ADD)``.
    """
    return rewrite(sink, _OPERANDS, use_counts(sink.toposort()), once=True)


def _with_operands(ctx: dict[UOp, int], u: UOp, body: UOp, old: UOp) -> UOp | None:
    if u.arg[0] is not Ops.ADD or not is_contraction(old):
        return None
    if is_narrow(old):
        return u.with_src((_of_narrow_factors(old, body),))
    product = old.src[0]
    if product.op is not Ops.MUL:
        return None
    operands = [_laid_out(old, s, new, ctx) for s, new in zip(product.src, body.src, strict=True)]
    return u.with_src((body.with_src(tuple(operands)),))


_OPERANDS = Rules([(Pat(Ops.REDUCE, (V("body"),), name="u"), _with_operands)], name="lay out operands")


def _of_narrow_factors(u: UOp, body: UOp) -> UOp:
    """What `u` sums, `body`, with the factors of the product in it laid out."""
    chain: list[UOp] = []
    while body.op is not Ops.MUL:
        chain.append(body)
        body = body.src[0]
    body = UOp(Ops.MUL, tuple([_laid_out_narrow(u, x, not chain) for x in body.src]))
    for m in reversed(chain):
        body = m.with_src((body, *m.src[1:]))
    return body


def _laid_out_narrow(u: UOp, factor: UOp, plain: bool) -> UOp:
    """A factor that stays bfloat16 in memory: whatever is copied is copied as such, the cast stands on top. Where the
    sum has an odd number of terms along every axis, a zero is added to the last one. `plain`: the factor has the axes
    of the sum."""
    chain: list[UOp] = []
    while factor.op is not Ops.CAST:
        chain.append(factor)
        factor = factor.src[0]
    wide, factor = factor.dtype, factor.src[0]
    for m in reversed(chain):
        factor = m.with_src((factor, *m.src[1:]))
    if not has_pairs(u):
        factor = _lengthened(factor, u.arg[1][-1], inner_axis(factor))
    elif plain and _is_scattered(u, factor):
        factor = _copied(u, factor)
    return factor.cast(wide)


def _lengthened(x: UOp, axis: int, inner: int | None) -> UOp:
    """`x` from a copy with a zero more along `axis`; axis `inner` is the last in memory, as it was."""
    if x.op is Ops.EXPAND:
        below = _lengthened(x.src[0], axis, inner)
        return expand(below, (*x.shape[:axis], below.shape[axis], *x.shape[axis + 1 :]))
    order = [i for i in range(len(x.shape)) if i != inner] + ([] if inner is None else [inner])
    longer = pad(x, tuple([(0, int(i == axis)) for i in range(len(x.shape))]))
    copy = UOp(Ops.CONTIGUOUS, (permute(longer, tuple(order)),))
    return permute(copy, tuple([order.index(i) for i in range(len(order))]))


def _laid_out(u: UOp, old: UOp, new: UOp, readers: dict[UOp, int]) -> UOp:
    """Operand `old` of contraction `u` as its kernel is to read it; `new` is what it has become so far."""
    chain: list[UOp] = []
    value = new
    while value.op in _CHAIN and len(value.src) == 1:
        chain.append(value)
        value = value.src[0]
    if not chain:
        return new
    below = old
    for _ in chain:
        below = below.src[0]
    if not is_leaf(value) and value.op is not Ops.CONTIGUOUS and readers.get(below, 0) < 2:
        return new  # it may be computed in place
    if is_leaf(value) and any(m.op is Ops.CAST for m in chain):
        for m in reversed(chain):  # each of several casts: one to a narrow type rounds, or takes the low bits
            value = value.cast(m.dtype)
        for m in reversed(chain):
            value = value if m.op is Ops.CAST else m.with_src((value,))
        new = value
    return _copied(u, new) if _is_scattered(u, new) else new


def _is_scattered(u: UOp, operand: UOp) -> bool:
    """Whether steps of the sum read lines of `operand` that lie apart and are gone from cache at the next row."""
    body = u.src[0]
    shape = [d for d in body.shape if isinstance(d, int)]
    if len(shape) < len(body.shape) or operand.shape != body.shape:
        return False
    axes = [a for a in u.arg[1] if shape[a] > 1]
    if len(axes) > 1 and not _lies_as_seen(operand):
        return False
    steps = math.prod([shape[a] for a in axes])
    inner = inner_axis(operand)
    wide = [i for i, d in enumerate(shape) if d > 1 and i not in axes]
    if inner is None or inner in axes or inner == wide[-1]:  # lanes of the tile are loaded together
        return False
    own = _own_elements(operand)
    if math.prod(shape) < USES * own or own < shape[inner] * steps:
        return False
    apart = shape[inner] * operand.dtype.itemsize
    return apart >= APART and (steps > LINES or apart % PAGE == 0 and steps >= AT_PAGES)


def _lies_as_seen(operand: UOp) -> bool:
    """Whether below axes that come, go and change places there are plain values, not windows of them."""
    while operand.op in _CHAIN:
        operand = operand.src[0]
    return operand.op not in OpGroup.MOVEMENT


def _own_elements(operand: UOp) -> int:
    while operand.op is Ops.EXPAND:
        operand = operand.src[0]
    return math.prod([d for d in operand.shape if isinstance(d, int)])


def _copied(u: UOp, operand: UOp) -> UOp:
    """`operand` read from a copy of it in which the axes of the sum are the last."""
    if operand.op is Ops.EXPAND:
        return operand.with_src((_copied(u, operand.src[0]), *operand.src[1:]))
    axes = u.arg[1]
    order = [*[i for i in range(len(operand.shape)) if i not in axes], *axes]
    copy = UOp(Ops.CONTIGUOUS, (permute(operand, tuple(order)),))
    return permute(copy, tuple([order.index(i) for i in range(len(order))]))
