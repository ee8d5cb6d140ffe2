"""Shapes: what each node's shape is, and the movement nodes with their arguments.

A movement node keeps its numbers in `arg`; a symbolic one stands as None there and as an extra source, in order, so
that substitution and walks reach it like any value.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aril.dtype import dtypes
from aril.ops import OpGroup, Ops
from aril.uop.node import Shape, SymbolicShape, UOp, sint


def split_symbolic(values: Iterable[sint]) -> tuple[tuple[int | None, ...], tuple[UOp, ...]]:
    """(numbers with None where a value is an expression, the expressions in order)."""
    numbers: list[int | None] = []
    symbols: list[UOp] = []
    for v in values:
        if isinstance(v, UOp) and v.op is Ops.CONST:
            v = v.arg
        if isinstance(v, UOp):
            numbers.append(None)
            symbols.append(v)
        else:
            numbers.append(int(v))
    return tuple(numbers), tuple(symbols)


def join_symbolic(numbers: Iterable[int | None], symbols: Iterable[UOp]) -> tuple[sint, ...]:
    """The inverse of `split_symbolic`."""
    it = iter(symbols)
    return tuple([next(it) if n is None else n for n in numbers])


def _pairs(flat: tuple[sint, ...]) -> tuple[tuple[sint, sint], ...]:
    return tuple(zip(flat[::2], flat[1::2], strict=True))


def movement_arg(u: UOp) -> Any:
    """The full argument of a movement node, expressions in place: a shape (RESHAPE, EXPAND), an order (PERMUTE), pairs
    (PAD: before and after; SHRINK: start and length), axes (FLIP), or (axis, by, step, offset, length) (SHEAR)."""
    if u.op in (Ops.RESHAPE, Ops.EXPAND):
        return u.arg if len(u.src) == 1 else join_symbolic(u.arg, u.src[1:])
    if u.op is Ops.PAD:
        return _pairs(u.arg[0] if len(u.src) == 1 else join_symbolic(u.arg[0], u.src[1:]))
    if u.op is Ops.SHRINK:
        return _pairs(u.arg if len(u.src) == 1 else join_symbolic(u.arg, u.src[1:]))
    return u.arg


def reshape(x: UOp, shape: Shape) -> UOp:
    """x at `shape` (same number of elements; checked by the mixins)."""
    # A view of a view stays two nodes: the inner one may be what a gradient is asked for. Scheduling folds them.
    if x.shape == shape:
        return x
    numbers, symbols = split_symbolic(shape)
    return UOp(Ops.RESHAPE, (x, *symbols), numbers)


def expand(x: UOp, shape: Shape) -> UOp:
    """x with axes of length 1 repeated to `shape` (same rank)."""
    if x.shape == shape:
        return x
    numbers, symbols = split_symbolic(shape)
    return UOp(Ops.EXPAND, (x, *symbols), numbers)


def permute(x: UOp, order: tuple[int, ...]) -> UOp:
    """Axis i of the result is axis order[i] of x."""
    return x if order == tuple(range(len(order))) else UOp(Ops.PERMUTE, (x,), order)


def pad(x: UOp, pairs: tuple[tuple[sint, sint], ...], fill: float = 0) -> UOp:
    """x with `before` and `after` elements of value `fill` added on each axis (non-negative)."""
    if all(isinstance(v, int) and v == 0 for p in pairs for v in p):
        return x
    numbers, symbols = split_symbolic([v for p in pairs for v in p])
    return UOp(Ops.PAD, (x, *symbols), (numbers, fill))


def shrink(x: UOp, pairs: tuple[tuple[sint, sint], ...]) -> UOp:
    """`length` elements from `start` on each axis; pairs are (start, length)."""
    if all(
        isinstance(s, int) and s == 0 and n is d or n == d for (s, n), d in zip(pairs, x.shape, strict=True)
    ) and all(isinstance(s, int) and s == 0 for s, _ in pairs):
        return x
    numbers, symbols = split_symbolic([v for p in pairs for v in p])
    return UOp(Ops.SHRINK, (x, *symbols), numbers)


def flip(x: UOp, axes: tuple[int, ...]) -> UOp:
    """x reversed along `axes`."""
    return UOp(Ops.FLIP, (x,), tuple(sorted(axes))) if axes else x


def shear(x: UOp, axis: int, by: int, step: int, offset: int, length: int) -> UOp:
    """out[.., i (axis), .., k (by), ..] = x[.., i + offset + step*k, .., k, ..] for i < length.

    Sliding windows are an EXPAND followed by a SHEAR; the transpose of a shear is a padded shear of the opposite step,
    so gradients of convolutions stay shears. Every element read must exist: pad first. Errors: IndexError.
    """
    n, m = x.shape[axis], x.shape[by]
    if isinstance(n, UOp) or isinstance(m, UOp):
        raise ValueError(
            f"windows over axes {axis} and {by} of shape {x.shape} need known lengths; pad to the greatest"
        )
    if m > 0 and length > 0:
        ends = (offset, offset + step * (m - 1))
        if min(ends) < 0 or max(ends) + length > n:
            raise IndexError(
                f"shear reads elements {min(ends)} to {max(ends) + length - 1} of an axis of {n}: pad it first"
            )
    return UOp(Ops.SHEAR, (x,), (axis, by, step, offset, length))


def reduce(x: UOp, op: Ops, axes: tuple[int, ...]) -> UOp:
    """x combined by `op` over `axes`, which stay with length 1."""
    return UOp(Ops.REDUCE, (x,), (op, tuple(sorted(axes)))) if axes else x


def scatter(x: UOp, values: UOp, positions: UOp, op: Ops) -> UOp:
    """x (n, *rest) after row `positions[i]` was combined by `op` with `values[i]`, for every i in order.

    `values` is of shape positions.shape + rest and x's dtype; `op` is ADD, MUL, MAX, or STORE (the last value stays).
    Positions outside of 0..n-1 do nothing. It is the transpose of INDEX.
    """
    return UOp(Ops.SCATTER, (x, values, positions), op)


def derive_shape(u: UOp) -> Shape:
    """The shape of a node whose sources' shapes are known. Errors: ValueError for sources that do not fit."""
    out = _shape(u)
    for d in out:
        if d.__class__ is UOp:
            return SymbolicShape(out) if out.__class__ is tuple else out
    return out


def _shape(u: UOp) -> Shape:
    op = u.op
    if op in OpGroup.ELEMENTWISE or op is Ops.WMMA:
        out: Shape = ()
        for s in u.src:
            shape = s.shape
            if shape and shape != out:
                if out:
                    raise ValueError(
                        f"{op}: shapes {out} and {shape} do not fit; elementwise nodes take one shape and scalars"
                    )
                out = shape
        if op is Ops.BITCAST and out and u.dtype.itemsize != u.src[0].dtype.itemsize:
            return (*out[:-1], out[-1] * u.src[0].dtype.itemsize // u.dtype.itemsize)
        return out
    if op in OpGroup.STORAGE:
        if u.arg.image is not None:
            return (*u.arg.image, 4)
        return () if u.arg.size is None else (u.arg.size,)
    if op in OpGroup.MOVEMENT:
        return _movement_shape(u)
    if op is Ops.REDUCE:
        shape = u.src[0].shape
        if isinstance(u.arg, tuple) and len(u.arg) == 2 and isinstance(u.arg[1], tuple):
            return tuple([1 if i in u.arg[1] else d for i, d in enumerate(shape)]) if len(u.src) == 1 else shape
        return shape
    if op is Ops.STACK:
        return (len(u.src), *u.src[0].shape)
    if op is Ops.INDEX:
        rest = u.src[0].shape[len(u.src) - 1 :]
        for i in u.src[1:]:
            if i.shape:
                return (*i.shape, *rest)
        return rest
    if op is Ops.UNSHARD:
        return u.arg[1]  # type: ignore[no-any-return]
    if op is Ops.COLLECTIVE and u.arg.kind == "gather":
        return (u.arg.ranks, *u.src[0].shape)
    if op is Ops.GETTUPLE:
        t = u.src[0] if u.src[0].op is Ops.TUPLE else u.src[0].src[0]
        return t.src[u.arg].shape  # type: ignore[no-any-return]
    if op in OpGroup.VOID or op is Ops.CALL or not u.src:
        return ()
    if op is Ops.SPECIAL and u.arg == "iota":
        n = u.src[0]
        return (int(n.arg) if n.op is Ops.CONST else n,)
    if op in (Ops.RANGE, Ops.SPECIAL, Ops.BIND):
        return ()
    return u.src[0].shape


def _movement_shape(u: UOp) -> Shape:
    arg, shape = movement_arg(u), u.src[0].shape
    if u.op in (Ops.RESHAPE, Ops.EXPAND):
        return arg  # type: ignore[no-any-return]
    if u.op is Ops.PERMUTE:
        return tuple([shape[i] for i in arg])
    if u.op is Ops.PAD:
        return tuple([simple_add(simple_add(d, b), a) for d, (b, a) in zip(shape, arg, strict=True)])
    if u.op is Ops.SHRINK:
        return tuple([n for _, n in arg])
    if u.op is Ops.SHEAR:
        return tuple([arg[4] if i == arg[0] else d for i, d in enumerate(shape)])
    return shape


def simple_add(a: sint, b: sint) -> sint:
    """a + b of dimensions, simplified where symbolic."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    from aril.uop.symbolic import simplify

    lift = UOp.lift
    out = simplify(UOp(Ops.ADD, (lift(a), lift(b)), None, dtypes.weakint))
    return int(out.arg) if out.op is Ops.CONST else out
