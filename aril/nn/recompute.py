"""Activation recomputation: a part of a network whose inner values are computed again for the gradient, not kept.

In comes a function over tensors; out goes one with the same results and gradients that needs less memory in between
(Chen et al., "Training deep nets with sublinear memory cost", 2016).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from aril.autograd import gradient
from aril.function import traced
from aril.nested import tensors
from aril.uop.function import FunctionArg, bind, stand_in
from aril.uop.node import UOp

__all__ = ["recompute"]


def recompute(f: Callable[..., Any]) -> Callable[..., Any]:
    """`f` (a layer, a list of layers called in order, or any function over tensors) with its inner values recomputed.

    Only its arguments, weights and results are kept for the gradient. Random numbers inside are the same both times.
    Errors: TypeError for a result that holds no tensor.

    >>> x = Tensor([1.0, 2.0])
    >>> recompute(lambda t: t.exp().log())(x).sum().gradient(x)[0].shape
    (2,)
    """
    body: Callable[..., Any] = (lambda x: x.sequential(f)) if isinstance(f, (list, tuple)) else f
    name = getattr(f, "__name__", type(f).__name__)

    @functools.wraps(body)
    def apply(*args: Any, **kwargs: Any) -> Any:
        made: list[UOp] = []

        def backward(grads: tuple[UOp, ...], now: tuple[UOp, ...]) -> list[UOp | None]:
            return _again(made[0], [g.contiguous() if g.shape else g for g in grads], now)

        out = traced(body, args, kwargs, FunctionArg(name, backward))
        made.append(next(tensors(out)).uop.src[0])
        return out

    return apply


def _again(node: UOp, grads: list[UOp], args: tuple[UOp, ...]) -> list[UOp | None]:
    """The gradients of the arguments, through the body computed once more when the gradients of its results are there.

    What makes it other nodes than the first time, and later ones, is a condition that reads the gradient and never
    holds, which no rule of algebra can know: 0 * g is 0 or NaN, not 1.
    """
    leaves = [stand_in(a) for a in args]
    total: dict[UOp, UOp] = {}
    wanted = [x for x in leaves if x.dtype.kind == "f"]
    for r, g in zip(bind(node, leaves), grads, strict=True):
        if r.dtype.kind != "f":
            continue
        for leaf, part in zip(wanted, gradient(r, g, wanted), strict=True):
            if part is not None:
                total[leaf] = part if leaf not in total else total[leaf] + part
    first = next(g for g in grads if g.shape)
    probe = first._reshape((first.numel(),))._shrink(((0, 1),))._reshape(())
    never = (probe * 0.0).eq(1.0)
    home = {
        leaf: never.where(a.const_like(0), a) if a.dtype.kind == "f" and a.shape else a
        for leaf, a in zip(leaves, args, strict=True)
    }
    return [None if leaf not in total else total[leaf].substitute(home) for leaf in leaves]
