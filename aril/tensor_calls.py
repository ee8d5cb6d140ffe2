"""Calls and schedules of tensors as nodes: `call`, `callify`, `schedule_linear`, `linear_with_vars`. Mixed into Tensor.

In come tensors; out go calls of functions, and the kernels that would compute them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aril.mixin.base import need_tensors
from aril.ops import Ops
from aril.schedule.shard import is_sharded_storage
from aril.tensor_alive import alive, is_storage_view, set_node
from aril.tensor_memory import realize
from aril.uop import UOp
from aril.uop.function import FunctionArg, call
from aril.uop.order import toposort


class CallsMixin:
    """What will be computed, as one node or as kernels in order."""

    __slots__ = ()

    def call(self: Any, *others: Any, fxn: Any, grad_fxn: Any = None) -> Any:
        """The function `fxn` of this tensor and `others`, as one node of the graph.

        `fxn`: a Python function of tensors (as `@function` takes), or an expression (Tensor or UOp) over parameters:
        number i, `x.as_param(i)` or `UOp.param_from_shape(i, shape, dtype)`, stands for tensor i. Gradients pass
        through the expression, or are what `grad_fxn(gradients, arguments)` says (see `aril.function`).
        Errors: ValueError for a parameter without a tensor, or of another number of elements or dtype.

        >>> a, b = Tensor([1.0, 2.0]), Tensor([3.0, 4.0])
        >>> a.call(b, fxn=a.as_param(0) * b.as_param(1) + 1).tolist()
        [4.0, 9.0]
        """
        from aril.function import function, on_nodes
        from aril.tensor import recorded

        if isinstance(fxn, Callable) and not isinstance(fxn, (UOp, type(self))):  # type: ignore[arg-type]
            return function(fxn, grad_fxn=grad_fxn)(self, *others)
        if not isinstance(fxn, (UOp, type(self))):
            raise TypeError(f"call: fxn is a function of tensors or an expression over parameters, not {fxn!r}")
        body: UOp = fxn if isinstance(fxn, UOp) else fxn.uop
        args = [self.uop, *[t.uop for t in others]]
        own: dict[UOp, UOp] = {}
        for p in body.toposort():
            if p.op is not Ops.PARAM or p.is_variable:
                continue
            if p.arg.slot >= len(args):
                raise ValueError(f"call: the function has a parameter {p.arg.slot}, there are {len(args)} tensors")
            a = args[p.arg.slot]
            if p.dtype is not a.dtype or p.max_numel() != a.max_numel():
                raise ValueError(
                    f"call: parameter {p.arg.slot} is of {p.max_numel()} {p.dtype.name}, the tensor for it "
                    f"{a.shape} {a.dtype.name}"
                )
            own[p] = a.param_like(p.arg.slot).base
        name = "call"
        arg = FunctionArg(name, None if grad_fxn is None else on_nodes(name, grad_fxn))
        node = UOp(Ops.FUNCTION, (UOp(Ops.TUPLE, (body.substitute(own),)), *args), arg)
        return recorded(UOp(Ops.GETTUPLE, (node,), 0), self._device)

    def callify(self: Any, *others: Any) -> Any:
        """Put what is pending for this tensor (and `others`, together) into one call of a function over the storage it
        reads; returns this tensor. Nothing is computed; values and gradients are the same.

        >>> x = Tensor([1.0, 2.0])
        >>> (x.exp() * x).callify().uop.op.name
        'GETTUPLE'
        """
        pending = [t for t in (self, *others) if not _is_leaf(t.uop)]
        roots = [t.uop for t in pending]
        held = {t.uop for t in alive() if is_storage_view(t.uop)}  # as users hold them, so that gradients find them

        def leaf(u: UOp) -> bool:
            return u in held or _is_leaf(u)

        leaves = [u for u in toposort(roots, lambda u: not leaf(u)) if leaf(u) and u.op is not Ops.CONST]
        for t, node in zip(pending, call(roots, leaves, leaves, FunctionArg("pending")), strict=True):
            set_node(t, node)
        return self

    def schedule_linear(self: Any, *others: Any) -> UOp:
        """The kernels and copies that compute this tensor (and `others`), in order, as a LINEAR of CALLs: a call's
        sources are the storage it works on, what it writes first; `call.arg.kernel` is its SINK in kernel form (a COPY
        for a copy).

        The tensors become views of memory that holds their values once the LINEAR has run
        (`aril.engine.linear.run_linear`); reading them before is an error. ValueError where variables are bound:
        `linear_with_vars` gives their values.

        >>> len((Tensor([1, 2]).realize() + 1).schedule_linear().src)
        1
        """
        linear, values = self.linear_with_vars(*others)
        if values:
            raise ValueError(f"schedule_linear: variables {', '.join(values)} have values; use linear_with_vars")
        return linear

    def linear_with_vars(self: Any, *others: Any) -> tuple[UOp, dict[str, int]]:
        """(the LINEAR of `schedule_linear`, the values of its bound variables by name).

        >>> (Tensor([1, 2]).realize() + 1).linear_with_vars()[1]
        {}
        """
        from aril.engine.linear import linear_of

        for t in others:
            need_tensors("linear_with_vars", others=t)
        found: list[tuple[UOp, dict[str, int]]] = []

        def plan(normal: Any, steps: Any) -> Any:
            linear, memory = linear_of(normal, steps)
            found.append((linear, normal.values))
            return memory

        realize((self, *others), plan)
        return found[0] if found else (UOp(Ops.LINEAR, ()), {})


def _is_leaf(u: UOp) -> bool:
    """Whether a call takes `u` as an argument: memory, assigned or computed already, and what has no sources."""
    return not u.src or u.storage is not None or u.op is Ops.AFTER or u.op is Ops.BIND or is_sharded_storage(u)
