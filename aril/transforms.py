"""Functions of functions: vmap, jvp, vjp, jacobian, hessian, over the graphs that calls of a function build.

In come functions from tensors to tensors; out go such functions. A function is traced once; `vmap` then gives every
node that depends on a mapped argument one more axis in front.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from aril.config import Context
from aril.dtype import dtypes
from aril.nested import mapped, tensors
from aril.ops import OpGroup, Ops
from aril.tensor import Tensor
from aril.tensor_random import Mapped
from aril.uop.function import inline, stand_in
from aril.uop.node import UOp
from aril.uop.shape import expand, flip, movement_arg, pad, permute, reduce, reshape, scatter, shear, shrink

__all__ = ["hessian", "jacobian", "jvp", "vjp", "vmap"]

_SAME = frozenset({Ops.CONTIGUOUS, Ops.CONTIGUOUS_BACKWARD, Ops.DETACH, Ops.NOOP, Ops.COPY})


def vmap(f: Callable[..., Any], in_axes: Any = 0, out_axes: int = 0, randomness: str = "error") -> Callable[..., Any]:
    """`f` for single examples as a function over a batch of them, without a loop.

    `in_axes`: the axis of each argument that counts examples, None for an argument that all share; one number for all.
    `out_axes`: where the results have that axis. `randomness`: random numbers drawn inside are "different" for every
    example (those of a loop over them), the "same" for all, or (the default, as in PyTorch) an "error".
    Errors: ValueError for arguments that disagree about the number of examples or have none mapped, or for a draw;
    NotImplementedError where `f` assigns to a mapped value.

    >>> vmap(lambda a, b: (a * b).sum())(Tensor([[1., 2.], [3., 4.]]), Tensor([[1., 1.], [10., 0.]])).tolist()
    [3.0, 30.0]
    """
    if randomness not in ("error", "same", "different"):
        raise ValueError(f"vmap: randomness is 'error', 'same' or 'different', not {randomness!r}")

    @functools.wraps(f)
    def apply(*args: Tensor) -> Any:
        axes = list(in_axes) if isinstance(in_axes, (list, tuple)) else [in_axes] * len(args)
        if len(axes) != len(args):
            raise ValueError(f"vmap: in_axes has {len(axes)} entries for {len(args)} arguments")
        fronted = [t if a is None else t.movedim(a, 0) for t, a in zip(args, axes, strict=True)]
        sizes = {t.shape[0] for t, a in zip(fronted, axes, strict=True) if a is not None}
        if len(sizes) != 1:
            raise ValueError(
                f"vmap: arguments of shapes {[t.shape for t in args]} with in_axes {axes} must agree in one number of "
                f"examples, found {sorted(sizes) or 'none'}"
            )
        inner, batched = list(fronted), {}
        for i, (t, a) in enumerate(zip(fronted, axes, strict=True)):
            if a is not None:
                one = _stand_in(t, t.shape[1:])
                inner[i], batched[one.uop] = one, t.uop
        (size,) = sizes
        with Mapped(size, randomness) as frame:
            out = f(*inner)
        batched |= frame.batched()
        return mapped(out, lambda t: t._like(_batch(t.uop, batched, size)).movedim(0, out_axes))

    return apply


@Context(GRAD=1)
def vjp(f: Callable[..., Any], *primals: Tensor) -> tuple[Any, Callable[..., tuple[Tensor, ...]]]:
    """(f(*primals), a function from gradients of the result to gradients of the primals).

    >>> y, pull = vjp(lambda x: x * x, Tensor([1.0, 2.0]))
    >>> pull(Tensor([1.0, 10.0]))[0].tolist()
    [2.0, 40.0]
    """
    leaves, back = _leaves(primals)
    out = f(*leaves)
    results = list(tensors(out))

    @Context(GRAD=1)
    def pull(*cotangents: Tensor) -> tuple[Tensor, ...]:
        given = list(tensors(cotangents))
        if len(given) != len(results) or any(c.shape != r.shape for c, r in zip(given, results, strict=True)):
            raise ValueError(
                f"vjp: gradients of shapes {[c.shape for c in given]} for results of {[r.shape for r in results]}"
            )
        return tuple([back(g) for g in _pulled(results, given, leaves)])

    return mapped(out, back), pull


@Context(GRAD=1)
def jvp(f: Callable[..., Any], primals: Sequence[Tensor], tangents: Sequence[Tensor]) -> tuple[Any, Any]:
    """(f(*primals), its derivative in the direction of `tangents`), each of the structure of the result.

    The reverse derivative is linear in the gradient it starts from; its own gradient is the forward derivative.
    Errors: ValueError for tangents of other shapes.

    >>> jvp(lambda x: x.sin(), [Tensor([0.0])], [Tensor([2.0])])[1].tolist()
    [2.0]
    """
    if len(primals) != len(tangents) or any(p.shape != t.shape for p, t in zip(primals, tangents, strict=True)):
        raise ValueError(
            f"jvp: tangents of shapes {[t.shape for t in tangents]} for primals of {[p.shape for p in primals]}"
        )
    leaves, back = _leaves(primals)
    out = f(*leaves)
    results = list(tensors(out))
    seeds = [_stand_in(r, r.shape) for r in results]
    total: Tensor | None = None
    for g, t in zip(_pulled(results, seeds, leaves), tangents, strict=True):
        part = (g * t).sum()
        total = part if total is None else total + part
    assert total is not None
    moved = iter([back(t) for t in total.gradient(*seeds)])
    return mapped(out, back), mapped(out, lambda _: next(moved))


def jacobian(f: Callable[..., Tensor], argnums: int = 0) -> Callable[..., Tensor]:
    """The derivatives of every element of f's result by every element of argument `argnums`: result shape + argument
    shape.

    >>> jacobian(lambda x: x * x)(Tensor([1.0, 2.0])).tolist()
    [[2.0, 0.0], [0.0, 4.0]]
    """

    @functools.wraps(f)
    @Context(GRAD=1)
    def derivative(*args: Tensor) -> Tensor:
        x = args[argnums]
        leaf = _stand_in(x, x.shape)
        y = f(*args[:argnums], leaf, *args[argnums + 1 :])
        n = y.numel()
        if n == 0 or x.numel() == 0:
            return Tensor.zeros(*y.shape, *x.shape, dtype=x.dtype, device=x.device)
        seed = _stand_in(y, y.shape)
        (g,) = _pulled([y], [seed], [leaf])
        basis = Tensor.eye(n, dtype=y.dtype, device=y.device).reshape(n, *y.shape)
        rows = g._like(_batch(g.uop, {seed.uop: basis.uop}, n)).reshape(*y.shape, *x.shape)
        return rows._like(rows.uop.substitute({leaf.uop: x.uop}))

    return derivative


def hessian(f: Callable[..., Tensor], argnums: int = 0) -> Callable[..., Tensor]:
    """The second derivatives of a function with one result by argument `argnums`: argument shape twice.

    Errors: ValueError where the result has more than one element.

    >>> hessian(lambda x: (x * x * x).sum())(Tensor([1.0, 2.0])).tolist()
    [[6.0, 0.0], [0.0, 12.0]]
    """

    def slope(*args: Tensor) -> Tensor:
        y = f(*args)
        if y.numel() != 1:
            raise ValueError(f"hessian: the function gives shape {y.shape}; it must give one element")
        return y.gradient(args[argnums])[0]

    return functools.wraps(f)(jacobian(slope, argnums))


# ---------------------------------------------------------------------------------------------------- helpers


def _stand_in(like: Tensor, shape: tuple[Any, ...]) -> Tensor:
    one = like.uop.const_like(0)
    model = one._reshape((1,) * len(shape))._expand(tuple(shape)) if shape else one
    out = Tensor(stand_in(model))
    out._device = like._device
    return out


def _leaves(primals: Sequence[Tensor]) -> tuple[list[Tensor], Callable[[Tensor], Tensor]]:
    """Fresh tensors in place of `primals`, and a function that puts these back into a value."""
    leaves = [_stand_in(p, p.shape) for p in primals]
    home = {leaf.uop: p.uop for leaf, p in zip(leaves, primals, strict=True)}
    return leaves, lambda t: t._like(t.uop.substitute(home))


def _pulled(results: list[Tensor], seeds: list[Tensor], leaves: list[Tensor]) -> list[Tensor]:
    total: list[Tensor] | None = None
    for r, s in zip(results, seeds, strict=True):
        part = r.gradient(*leaves, gradient=s)
        total = part if total is None else [a + b for a, b in zip(total, part, strict=True)]
    assert total is not None
    return total


# ---------------------------------------------------------------------------------------------------- batching


def _batch(root: UOp, batched: dict[UOp, UOp], size: int) -> UOp:
    """`root` with the nodes of `batched` replaced by values with one more axis of `size` in front."""
    root = inline(root)
    done: dict[UOp, UOp] = dict(batched)  # a node -> its batched form; others are the same for all examples
    for u in root.toposort():
        if u not in done and any(s in done for s in u.src):
            done[u] = _batch_node(u, done, size)
    if root in done:
        return done[root]
    return expand(reshape(root, (1, *root.shape)), (size, *root.shape))


def _batch_node(u: UOp, done: dict[UOp, UOp], size: int) -> UOp:
    src = [done.get(s, s) for s in u.src]
    x = src[0]
    if u.op in OpGroup.MOVEMENT:
        if any(s in done for s in u.src[1:]):
            raise NotImplementedError(f"vmap: {u.op} by numbers that differ between examples")
        return _batch_movement(u, x, size)
    if u.op is Ops.REDUCE:
        op, axes = u.arg
        return reduce(x, op, tuple([a + 1 for a in axes]))
    if u.op is Ops.STACK:
        parts = [s if old in done else _all_share(s, size) for old, s in zip(u.src, src, strict=True)]
        stacked = UOp(Ops.STACK, tuple(parts), u.arg, u.dtype)
        return permute(stacked, (1, 0, *range(2, len(stacked.shape))))
    if u.op is Ops.INDEX and len(src) == 2:
        return _batch_index(u, src, done, size)
    if u.op is Ops.SCATTER:
        return _batch_scatter(u, src, done, size)
    if u.op in OpGroup.ALU or u.op is Ops.CAST:
        lifted = [_lifted(s, len(u.shape), old in done) for old, s in zip(u.src, src, strict=True)]
        shape = (size, *u.shape)
        lifted = [expand(s, shape) if s.shape and s.shape != shape else s for s in lifted]
        return u.with_src(tuple(lifted))
    if u.op in _SAME or u.op is Ops.BITCAST:
        return u.with_src(tuple(src))
    raise NotImplementedError(f"vmap: {u.op} of a mapped value has no rule; assign and realize outside of the function")


def _all_share(s: UOp, size: int) -> UOp:
    return expand(reshape(s, (1, *s.shape)), (size, *s.shape))


def _lifted(s: UOp, rank: int, is_batched: bool) -> UOp:
    """A source of an elementwise node with an axis for the batch; scalars that all share stay scalars."""
    if not is_batched:
        return reshape(s, (1, *s.shape)) if s.shape else s
    missing = rank + 1 - len(s.shape)
    return reshape(s, (s.shape[0], *(1,) * missing, *s.shape[1:])) if missing else s


def _batch_movement(u: UOp, x: UOp, size: int) -> UOp:
    arg = movement_arg(u)
    if u.op is Ops.RESHAPE:
        return reshape(x, (size, *arg))
    if u.op is Ops.EXPAND:
        return expand(x, (size, *arg))
    if u.op is Ops.PERMUTE:
        return permute(x, (0, *[a + 1 for a in arg]))
    if u.op is Ops.PAD:
        return pad(x, ((0, 0), *arg), u.arg[1])
    if u.op is Ops.SHRINK:
        return shrink(x, ((0, size), *arg))
    if u.op is Ops.FLIP:
        return flip(x, tuple([a + 1 for a in arg]))
    axis, by, step, offset, length = arg
    return shear(x, axis + 1, by + 1, step, offset, length)


def _batch_index(u: UOp, src: list[UOp], done: dict[UOp, UOp], size: int) -> UOp:
    x, index = src
    if u.src[0] not in done:
        return UOp(Ops.INDEX, (x, index))
    # Examples one after the other: positions count from the start of their own.
    n, rest = x.shape[1], x.shape[2:]
    if u.src[1] not in done:
        index = _all_share(index, size)
    kind = dtypes.int32 if size * n <= dtypes.int32.max else dtypes.int64
    start = reshape(UOp.iota(size).cast(kind) * n, (size, *(1,) * (len(index.shape) - 1)))
    start = expand(start, index.shape)
    return UOp(Ops.INDEX, (reshape(x, (size * n, *rest)), index.cast(kind) + start))


def _batch_scatter(u: UOp, src: list[UOp], done: dict[UOp, UOp], size: int) -> UOp:
    x, values, positions = [s if old in done else _all_share(s, size) for old, s in zip(u.src, src, strict=True)]
    n, rest = x.shape[1], x.shape[2:]
    # Rows of the examples one after the other. A position that is in no row of its example is in no row of any.
    wide = positions.dtype.itemsize == 8 or positions.dtype is dtypes.uint32 or size * n > dtypes.int32.max
    at = positions.cast(dtypes.int64 if wide else dtypes.int32)
    start = expand(reshape(UOp.iota(size).cast(at.dtype) * n, (size, *(1,) * (len(at.shape) - 1))), at.shape)
    at = ((at >= 0) & (at < n)).where(at + start, -1)
    return reshape(scatter(reshape(x, (size * n, *rest)), values, at, u.arg), x.shape)
