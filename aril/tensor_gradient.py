"""Gradients of tensors: `backward` and `gradient`. Mixed into Tensor.

In comes a value and what it was computed from, realized on the way or not; out go graphs of its gradients
(`aril/autograd.py` has the rules).
"""

from __future__ import annotations

from typing import Any

from aril.autograd import gradient as differentiate
from aril.mixin.base import need_tensors
from aril.tensor_alive import LOST, alive, is_storage_view
from aril.tensor_memory import has_older_state, with_history
from aril.uop import UOp
from aril.uop.args import is_memory_only
from aril.uop.order import toposort


class GradientMixin:
    """Reverse mode: gradients by parameters, or by any tensors."""

    __slots__ = ()

    def backward(self: Any, gradient: Any = None) -> Any:
        """Add the gradient of this scalar (or of sum(self * gradient)) to `.grad` of the parameters it depends on.

        These are the tensors marked with `is_param_()`; where there is none among them, the float tensors made from
        data.
        Errors: RuntimeError where it depends on nothing of either kind, or on a parameter that was assigned to since.

        >>> x = Tensor([1.0, 2.0]).is_param_()
        >>> _ = (x * x).sum().backward()
        >>> x.grad.tolist()
        [2.0, 4.0]
        """
        self._need_seed(gradient)
        root = with_history(self, ())
        inside = toposort((root,))
        found = [
            t for t in alive() if t.uop in inside and t.dtype.kind == "f" and t._is_param is not False and t is not self
        ]
        for t in alive():
            if t._is_param and t.uop not in inside and has_older_state(t.uop, inside):
                raise RuntimeError(
                    f"backward: a parameter of shape {t.shape} was assigned to after this value was computed from it; "
                    "call backward() before the assignment"
                )
        params = [t for t in found if t._is_param] or [t for t in found if is_storage_view(t.uop)]
        if not params:
            raise RuntimeError(
                "backward: this value depends on no parameter; mark some with is_param_(), call backward() before "
                "realizing what lies between, or use gradient(...)"
            )
        grads = self._gradients(with_history(self, tuple(params)), params, gradient)
        for t, g in zip(params, grads, strict=True):
            if g is not None:
                t.grad = g if t.grad is None else t.grad + g
        return self

    def _need_seed(self: Any, gradient: Any) -> None:
        if gradient is None and self.shape != () and self.numel() != 1:
            raise ValueError(
                f"backward of shape {self.shape} needs a gradient of that shape; or take sum() or mean() first"
            )

    def gradient(self: Any, *targets: Any, gradient: Any = None, materialize_grads: bool = True) -> list[Any]:
        """The gradient of this scalar (or of sum(self * gradient)) with respect to each target: its shape and dtype.

        A target it does not depend on has zeros (None without `materialize_grads`). Equal constants are one value of
        the graph:
        mark tensors made by `ones` or `full` with `is_param_()` to tell them apart.
        Errors: ValueError for a value with axes and no `gradient`, TypeError for other than floats, RuntimeError for a
        target on which it may depend by way of memory that has been assigned to since.

        >>> x = Tensor([1.0, 2.0])
        >>> (x * x).sum().gradient(x)[0].tolist()
        [2.0, 4.0]
        """
        need_tensors("gradient", gradient=gradient, optional=("gradient",))
        self._need_seed(gradient)
        for t in (self, *targets):
            need_tensors("gradient", target=t)
            if t.dtype.kind != "f":
                raise TypeError(f"gradient: only floats have one, not {t.dtype.name}")
        root = with_history(self, targets)
        out = self._gradients(root, targets, gradient)
        unknown = [g is None for g in out]
        if any(unknown):
            inside = toposort((root,))
            for t in alive():
                if t._history is LOST and t.uop.base in inside:
                    raise RuntimeError(
                        f"gradient: a value of shape {t.shape} on the way was computed from memory that has been "
                        "assigned to since; call gradient() or backward() before the assignment, or detach() that value"
                    )
        if materialize_grads:
            zeros = [t.const_like(0)._broadcast_to(t.shape) for t in targets]
            return [z if g is None else g for g, z in zip(out, zeros, strict=True)]
        return out

    def _gradients(self: Any, root: UOp, targets: Any, gradient: Any) -> list[Any]:
        """The gradient of the graph `root` by each target; None for those that it does not depend on."""
        seed = UOp.const(root.dtype, 1.0) if gradient is None else gradient.cast(self.dtype).uop
        out = differentiate(root, seed, [t.uop for t in targets])
        return [
            None if g is None else self._new(g, (is_memory_only(t._device) and g.device) or t._device)
            for t, g in zip(targets, out, strict=True)
        ]
