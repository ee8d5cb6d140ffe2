"""`@function`: a Python function over tensors as one node of the graph, with a body that is shared by all calls.

In come tensors (also in lists, tuples and dicts); out go tensors whose graph holds a call. Calls with bodies of one
structure share it, gradients pass through the body, or are what the user's own gradient function says.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from aril.nested import replaced, tensors
from aril.tensor import Tensor, recorded
from aril.uop.function import FunctionArg, call, stand_in
from aril.uop.node import UOp

Gradient = Callable[[tuple[Tensor, ...], tuple[Tensor, ...]], Sequence[Tensor | None]]


def function(
    body: Callable[..., Any] | None = None, *, grad_fxn: Gradient | None = None, name: str | None = None
) -> Callable[..., Any]:
    """A decorator (`@function` or `@function(grad_fxn=...)`) that makes a function's calls nodes of the graph.

    The function is traced at every call; it must not assign to tensors from outside. `grad_fxn(gradients, arguments)`
    replaces differentiation of the body: it takes the gradients of the results and the tensors among the arguments, in
    order, and gives a gradient or None for each of those.

    Errors: TypeError for a result that holds no tensor, ValueError for a gradient of the wrong shape.

    >>> square = function(lambda x: x * x)
    >>> square(Tensor([2.0, 3.0])).tolist()
    [4.0, 9.0]
    """
    if body is None:
        return functools.partial(function, grad_fxn=grad_fxn, name=name)
    label: str = name or getattr(body, "__name__", None) or type(body).__name__
    arg = FunctionArg(label, None if grad_fxn is None else on_nodes(label, grad_fxn))

    @functools.wraps(body)
    def apply(*args: Any, **kwargs: Any) -> Any:
        return traced(body, args, kwargs, arg)

    return apply


def traced(body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], arg: FunctionArg) -> Any:
    """`body(*args, **kwargs)` as a call node of the function `arg`: its results, over the call instead of the body.

    Errors: TypeError for a result that holds no tensor.
    """
    given = list(tensors((args, kwargs)))
    inputs = [stand_in(t.uop) for t in given]
    traced_args, traced_kwargs = replaced((args, kwargs), iter([Tensor(u) for u in inputs]))
    out = body(*traced_args, **traced_kwargs)
    results = [t.uop for t in tensors(out)]
    if not results:
        raise TypeError(f"function {arg.name!r} gave {type(out).__name__} without any tensor; return tensors")
    nodes = call(results, inputs, [t.uop for t in given], arg)
    return replaced(out, iter([recorded(u, u.device) for u in nodes]))


def on_nodes(name: str, grad_fxn: Gradient) -> Callable[[tuple[UOp, ...], tuple[UOp, ...]], list[UOp | None]]:
    """A gradient function of tensors as one of nodes, its results checked."""

    def apply(grads: tuple[UOp, ...], args: tuple[UOp, ...]) -> list[UOp | None]:
        out = grad_fxn(tuple([Tensor(g) for g in grads]), tuple([Tensor(a) for a in args]))
        found = [out] if isinstance(out, Tensor) else list(out)
        if len(found) > len(args):
            raise ValueError(f"function {name!r}: grad_fxn gave {len(found)} gradients for {len(args)} arguments")
        for g, a in zip(found, args, strict=False):
            if g is not None and tuple(g.shape) not in ((), a.shape):
                raise ValueError(f"function {name!r}: grad_fxn gave a gradient of shape {g.shape} for one of {a.shape}")
        return [None if g is None else g.uop for g in found]

    return apply
