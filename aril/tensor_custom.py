"""Hand-written kernels on tensors: `Tensor.custom_kernel`. Mixed into Tensor.

In come tensors and a function over placeholders; out go the tensors, those that the kernel writes with new values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from aril.config import GRAD
from aril.ops import Ops
from aril.schedule.custom import renumber_parameters, trace
from aril.schedule.shard import layout_of
from aril.tensor_memory import advance
from aril.uop import UOp
from aril.uop.call import CallArg, call_kernel

Gradient = Callable[[tuple[Any, ...], tuple[Any, ...]], Sequence[Any]]


class CustomKernelMixin:
    """A Python function over UOps as a kernel between others."""

    __slots__ = ()

    def custom_kernel(self: Any, *others: Any, fxn: Callable[..., UOp], grad_fxn: Gradient | None = None) -> list[Any]:
        """Run the kernel that `fxn` writes on this tensor and `others`; returns them all, in order.

        `fxn` gets a placeholder (a UOp of the tensor's shape and dtype) for each tensor and returns the kernel:

        >>> def double(out, x):
        ...     i = UOp.range(x.numel(), 0)
        ...     return out[i].store(x[i] * 2).end(i).sink()
        >>> Tensor.custom_kernel(Tensor.empty(2), Tensor([1.0, 2.0]), fxn=double)[0].tolist()
        [2.0, 4.0]

        Of tensors on several devices each device runs the kernel of its own parts: `fxn` is called with their shapes.
        Tensors the kernel stores to are written in place when they are realized, as by `assign`.
        `grad_fxn(gradients, arguments)` gives the gradient of each argument (or None) from those of the written ones,
        in order; all are tensors.
        Errors: ValueError for tensors on several devices, written storage that is passed twice, or a kernel that writes
        none of them.
        """
        if not callable(fxn):
            raise TypeError(f"custom_kernel: fxn is a function that writes a kernel, not {fxn!r}")
        tensors = [self, *others]
        devices = {t.device for t in tensors}
        if len(devices) > 1:
            raise ValueError(
                f"custom_kernel: tensors lie on {' and '.join(sorted(map(str, devices)))}; move them together first"
            )
        kernel, written = trace(fxn, [(t.shape, t.dtype) for t in tensors])
        parts = [trace(fxn, one) for one in _parts(tensors)]
        if any(w != written for _, w in parts):
            raise ValueError("custom_kernel: the kernel writes other tensors on one device than on another")
        if not written:
            raise ValueError(
                "custom_kernel: the kernel stores into none of its tensors; store to one of the placeholders"
            )
        used = {u.arg.slot for u in kernel.toposort() if u.op is Ops.PARAM and not u.is_variable}
        order = [*sorted(written), *sorted(used - written)]
        slots = {slot: n for n, slot in enumerate(order)}
        kernel, *shares = [renumber_parameters(k, slots) for k in (kernel, *[k for k, _ in parts])]
        for i in written:
            if tensors[i].dtype.weak:
                raise TypeError(f"custom_kernel: tensor {i} is {tensors[i].dtype.name}; cast it to a type with a size")
        place = {i: tensors[i]._kernel_target() for i in sorted(written)}
        sources = [place[i].uop if i in written else tensors[i].uop.contiguous() for i in order]
        memory = [_bottom(s) for s in sources]
        for n, i in enumerate(order[: len(written)]):
            if memory.count(memory[n]) > 1:
                raise ValueError(
                    f"custom_kernel: the memory of tensor {i}, which the kernel writes, is passed twice; pass a clone()"
                )
        binds = dict.fromkeys([u for t in tensors for u in t.uop.toposort() if u.op is Ops.BIND])
        named = {u.arg.name for u in kernel.toposort() if u.is_variable}
        sources += [b for b in binds if b.src[0].arg.name in named]
        if not GRAD.value:
            grad_fxn = _nothing
        grad = None if grad_fxn is None else _on_nodes(type(self), order, len(tensors), grad_fxn)
        arg = CallArg(kernel, len(written), grad, tuple(shares))
        call = call_kernel(arg, sources)
        for t in place.values():
            advance(_base(t.uop), call)
        for i, t in place.items():
            if t is not tensors[i]:
                tensors[i].assign(t)
        return tensors


def _nothing(gradients: tuple[Any, ...], arguments: tuple[Any, ...]) -> list[None]:
    return [None] * len(arguments)


def _parts(tensors: list[Any]) -> list[list[tuple[Any, Any]]]:
    """For each of several devices the shapes and dtypes of what lies there; nothing for tensors on one device."""
    if not isinstance(tensors[0].device, tuple):
        return []
    out: list[list[tuple[Any, Any]]] = [[] for _ in tensors[0].device]
    for t in tensors:
        layout = layout_of(t.uop)
        for i, one in enumerate(out):
            shape = t.shape
            if layout is not None and layout.axis is not None:
                shape = (*shape[: layout.axis], layout.lengths[i], *shape[layout.axis + 1 :])
            one.append((shape, t.dtype))
    return out


def _base(u: UOp) -> UOp:
    while u.op is Ops.RESHAPE:
        u = u.src[0]
    return u


def _bottom(u: UOp) -> UOp:
    if u.op is Ops.CONTIGUOUS and _base(u.src[0]).op in (Ops.BUFFER, Ops.AFTER):
        u = u.src[0]  # whole storage is read where it lies
    while u.op in (Ops.RESHAPE, Ops.AFTER):
        u = u.src[0]
    return u


def _on_nodes(cls: Any, order: list[int], count: int, grad_fxn: Gradient) -> Any:
    def apply(grads: tuple[UOp, ...], sources: tuple[UOp, ...]) -> list[UOp | None]:
        given: list[Any] = [None] * count
        for slot, s in zip(order, sources, strict=False):
            given[slot] = cls(s)
        out = grad_fxn(tuple([cls(g) for g in grads]), tuple(given))
        found = [out] if isinstance(out, cls) else list(out)
        if len(found) > count:
            raise ValueError(f"custom_kernel: grad_fxn gave {len(found)} gradients for {count} arguments")
        found += [None] * (count - len(found))
        for slot, g in enumerate(found):
            if g is not None and given[slot] is not None and tuple(g.shape) not in ((), given[slot].shape):
                raise ValueError(
                    f"custom_kernel: grad_fxn gave a gradient of shape {g.shape} for one of {given[slot].shape}"
                )
        return [None if found[slot] is None else found[slot].uop for slot in order]

    return apply
