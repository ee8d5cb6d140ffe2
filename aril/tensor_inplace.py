"""Assignment, and the in-place operators (`x += y`) as NumPy and PyTorch have them. Mixed into Tensor."""

from __future__ import annotations

from typing import Any

from aril.config import GRAD
from aril.dtype import strong
from aril.engine.lock import locked, note_assignment
from aril.mixin.base import broadcast_shape
from aril.ops import OpGroup, Ops
from aril.schedule.shard import is_sharded_storage
from aril.schedule.written import below_bitcasts
from aril.tensor_alive import is_writable_view, set_node, storage_base
from aril.tensor_memory import advance, elements, is_only_view, make_writable
from aril.tensor_shard import storage_like
from aril.uop import UOp
from aril.uop.node import view_flat


class InPlaceMixin:
    """`x op= y` changes the tensor that `x` names, for all who hold it; `x = x op y` makes another.

    >>> x = y = Tensor([1, 2])
    >>> x += 1
    >>> y.tolist()
    [2, 3]
    """

    __slots__ = ()

    _history: UOp | None  # see Tensor

    def __iadd__(self, x: Any) -> Any:
        return self._become(self + x, "+=")

    def __isub__(self, x: Any) -> Any:
        return self._become(self - x, "-=")

    def __imul__(self, x: Any) -> Any:
        return self._become(self * x, "*=")

    def __itruediv__(self, x: Any) -> Any:
        return self._become(self / x, "/=")

    def __ifloordiv__(self, x: Any) -> Any:
        return self._become(self // x, "//=")

    def __imod__(self, x: Any) -> Any:
        return self._become(self % x, "%=")

    def __ipow__(self, x: Any) -> Any:
        return self._become(self**x, "**=")

    def __imatmul__(self, x: Any) -> Any:
        return self._become(self @ x, "@=")

    def __iand__(self, x: Any) -> Any:
        return self._become(self & x, "&=")

    def __ior__(self, x: Any) -> Any:
        return self._become(self | x, "|=")

    def __ixor__(self, x: Any) -> Any:
        return self._become(self ^ x, "^=")

    def __ilshift__(self, x: Any) -> Any:
        return self._become(self << x, "<<=")

    def __irshift__(self, x: Any) -> Any:
        return self._become(self >> x, ">>=")

    def _become(self: Any, value: Any, name: str) -> Any:
        """`assign`, but what is only computed so far stays so: there is no memory to write to yet, and none is needed.

        Errors: ValueError, TypeError where the result has another shape or dtype than this tensor.
        """
        if value.shape != self.shape:
            raise ValueError(f"{name}: the result has shape {value.shape}, not {self.shape}; write x = x op y")
        if value.dtype is not self.dtype:
            raise TypeError(
                f"{name}: the result is {value.dtype.name}, not {self.dtype.name}; cast, or write x = x op y"
            )
        start = self.uop
        while start.op in OpGroup.MOVEMENT:
            start = start.src[0]
        # a constant (`Tensor.zeros`) is state that begins there, and so is what is marked as a parameter
        if self._is_param is not None or start.op is Ops.CONST or is_writable_view(self.uop):
            return self.assign(value)
        return self.replace(value)

    @locked  # another thread that computes what is pending meanwhile would leave this tensor behind
    def assign(self: Any, x: Any) -> Any:
        """Write `x` (broadcast to this shape, of this dtype) into this tensor's storage, when it is realized;
        returns it.

        Views of the same storage see the new values; what was computed from the old ones keeps them.

        >>> x = Tensor([1.0, 2.0])
        >>> x.assign(x * 10).tolist()
        [10.0, 20.0]
        """
        value: Any = x if isinstance(x, InPlaceMixin) else self._unchanged(x, "assign")
        if value.dtype is not self.dtype:
            raise TypeError(f"assign: {value.dtype.name} values for a {self.dtype.name} tensor; cast them first")
        if value.shape != self.shape:
            if broadcast_shape(self.shape, value.shape, what="assign") != self.shape:
                raise ValueError(f"assign: values of shape {value.shape} do not fit a tensor of shape {self.shape}")
            value = value._broadcast_to(self.shape)
        if value._device is not None and self._device is not None and value._device != self._device:
            value = value.to(self._device)
        if value.uop is self.uop:
            return self
        if is_only_view(self) or not make_writable(self):  # nobody else looks at it: memory of its own will do
            self._own_storage(value.uop)
        else:
            self._write(self.uop, value.uop)
        return self

    def _own_storage(self: Any, value: UOp | None = None) -> Any:
        """Give this tensor storage of its own, filled with `value` (default: with what it holds now)."""
        value = self.uop if value is None else value
        if not GRAD.value and value.dtype.kind == "f":
            value = value.detach()
        if value.dtype.weak:
            value = value.cast(strong(value.dtype))
        self._device, self._history = self.device, None
        if isinstance(self._device, tuple):
            view = storage_like(self.uop, value, self._device)
        else:
            flat = UOp.new_buffer(self._device, elements(value.shape), value.dtype)
            view = view_flat(flat, value.shape)
        set_node(self, view.after(view.store(value)))
        note_assignment(self.uop)
        return self

    def _write(self: Any, view: UOp, value: UOp) -> None:
        """Store `value` at `view`, a view of this tensor's storage; this tensor and other views follow."""
        if not GRAD.value and value.dtype.kind == "f":
            value = value.detach()
        view, value = below_bitcasts(view, value)
        advance(storage_base(view), view.store(value))

    def _kernel_target(self: Any) -> Any:
        """Whole storage in its own order for a kernel to write: this tensor, or a copy of the part it shows."""
        if not make_writable(self):
            self._own_storage()
        u = self.uop
        while u.op is Ops.RESHAPE:
            u = u.src[0]
        return self if u.op in (Ops.BUFFER, Ops.AFTER) or is_sharded_storage(u) else self.clone()
