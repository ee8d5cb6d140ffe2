"""Tensor: what users hold. One UOp inside, the vocabulary of the mixins around it; realizing, gradients, assignment,
interop.

In come Python data, arrays and other tensors; nothing is computed until a value is asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from aril.config import DEBUG, GRAD, NAN_CHECK, SPEC, warn_of_misspelt
from aril.device import Buffer, Device
from aril.dtype import DType, DTypeLike, dtypes, strong, to_dtype
from aril.mixin import OpMixin
from aril.mixin.base import as_int, dim_prod, need_tensors, same, shown
from aril.ops import Ops
from aril.tensor_alive import enlist, is_flat, is_storage_view, set_node, storage_base
from aril.tensor_calls import CallsMixin
from aril.tensor_custom import CustomKernelMixin
from aril.tensor_data import uop_of_data
from aril.tensor_gradient import GradientMixin
from aril.tensor_hash import HashMixin
from aril.tensor_indexing import TensorIndexing
from aril.tensor_inplace import InPlaceMixin
from aril.tensor_interop import InteropMixin
from aril.tensor_linalg import LinalgMixin
from aril.tensor_memory import give_node, need_numbers, realize, working_device
from aril.tensor_places import canonical_place, common_device, memory_only_seen, where_kernels_run
from aril.tensor_random import RandomMixin
from aril.tensor_shard import ShardMixin
from aril.uop import UOp
from aril.uop.args import is_memory_only
from aril.uop.node import Variable, track_origin

__all__ = ["Tensor", "Variable"]

DeviceLike = Any  # a device's name, or a tuple of names


class Tensor(
    TensorIndexing,
    InteropMixin,
    RandomMixin,
    LinalgMixin,
    HashMixin,
    InPlaceMixin,
    CustomKernelMixin,
    CallsMixin,
    GradientMixin,
    ShardMixin,
    OpMixin,
):
    """A lazy array: `Tensor([1, 2, 3])`, `Tensor(numpy_array)`, `Tensor(2.5)`, `Tensor.zeros(3, 4)`.

    data: nested lists, a number, bytes, a NumPy array (copied), another framework's array (through the buffer
    protocol or DLPack), a UOp. dtype: by default that of the data; Python floats and ints have the default types.
    device: by default `Device.DEFAULT`.
    `uop` is the node behind it; `grad` the gradient that `backward` left, or None.
    Errors: TypeError for data of no known kind, ValueError for ragged lists.

    >>> (Tensor([[1, 2], [3, 4]]) * 2 + Tensor([10, 20])).tolist()
    [[12, 24], [16, 28]]
    """

    __slots__ = ("__weakref__", "_device", "_history", "_is_param", "_waiting", "grad", "uop")

    uop: UOp
    grad: Tensor | None
    _device: DeviceLike | None
    _is_param: bool | None
    _waiting: Any  # of a result that has no node yet: its memory and the view of it (`tensor_memory.give_node`)
    _history: UOp | None  # the graph a realized value came from, so that gradients flow through it while it is held

    _always_concrete = True

    def __init__(self, data: Any, device: DeviceLike | None = None, dtype: DTypeLike | None = None) -> None:
        wanted = None if dtype is None else to_dtype(dtype)
        place = canonical_place(device)
        if isinstance(data, Tensor):
            moved = data if place is None else data.to(place)
            uop, place = (moved if wanted is None else moved.cast(wanted))._as_value().uop, moved._device
        elif isinstance(data, UOp):
            uop = data if wanted is None else data.cast(wanted)
            place = uop.device if place is None else place
        else:
            uop = uop_of_data(data, wanted, place)
            place = uop.device if place is None else place
        self._set(uop, place)

    def _set(self, uop: UOp, device: DeviceLike | None) -> None:
        self.uop, self._device = uop, device
        self.grad = self._is_param = self._history = self._waiting = None
        enlist(self)

    if not TYPE_CHECKING:

        def __getattr__(self, what: str) -> Any:
            if what != "uop":
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {what!r}", name=what, obj=self)
            give_node(self)
            return self.uop

    @classmethod
    def _new(cls, uop: UOp, device: DeviceLike | None) -> Tensor:
        self = object.__new__(cls)
        self._set(uop, device)
        return self

    def replace_uop(self, uop: UOp) -> Tensor:
        """Another tensor with this one's marks and device around `uop`."""
        out = Tensor._new(uop, self._device)
        out._is_param = self._is_param
        return out

    # --- what it is ---

    @property
    def shape(self) -> tuple[Any, ...]:
        """The shape: ints, or expressions in bound variables.

        >>> Tensor([[1, 2, 3]]).shape
        (1, 3)
        """
        return self.uop.shape

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        """The element type.

        >>> Tensor([1.5]).dtype
        dtypes.float32
        """
        return self.uop.dtype

    @property
    def device(self) -> Any:
        """The device's name (a tuple of names for a sharded tensor); constants lie on the default one.

        >>> Tensor([1.0], device="PYTHON").device
        'PYTHON'
        """
        return self._device if self._device is not None else Device.DEFAULT

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a 0-d tensor; it has no axes")
        return self._known_length(0, "len()")

    def __iter__(self) -> Iterator[Tensor]:
        if not self.shape:
            raise TypeError("iteration over a 0-d tensor; it has no axes")
        return (self[i] for i in range(len(self)))

    __hash__ = object.__hash__

    @property
    def is_param(self) -> bool | None:
        """True: a parameter to train; False: other state of a model; None: nothing was said.

        >>> Tensor([1.0]).is_param_().is_param
        True
        """
        return self._is_param

    def is_param_(self, flag: bool = True) -> Tensor:
        """Mark it as a parameter (or as none) and return it. A parameter gets storage of its own, unlike any other's
        value. TypeError for a parameter that is not of floats.

        >>> Tensor([1.0]).is_param_().is_param
        True
        """
        if flag and self.dtype.kind != "f":
            raise TypeError(f"is_param_: parameters are floats, not {self.dtype.name}; mark other state False")
        self._is_param = flag
        if flag and not is_storage_view(self.uop):
            self._own_storage()
        return self

    def as_param(self, slot: int) -> Tensor:
        """A parameter of a function body that stands for this value.

        >>> Tensor([1.0, 2.0]).as_param(0).shape
        (2,)
        """
        return Tensor._new(self.uop.param_like(as_int("as_param: slot", slot, 0)), self._device)

    # --- primitives of the mixins ---

    def _alu(self, op: Ops, *others: Tensor) -> Tensor:
        if memory_only_seen:
            self, *others = where_kernels_run(self, *others)  # type: ignore[assignment]
        device = self._device
        for o in others:
            if o._device != device and o._device is not None:
                device = common_device(op.name.lower(), (self, *others))
                break
        return recorded(UOp(op, (self.uop, *[o.uop for o in others])), device)

    def _binary(self, op: Ops, other: Any, reverse: bool = False) -> Tensor:
        # The way of `a + 1` and `a * b`: everything on the nodes, one Tensor made.
        uop, cls = self.uop, other.__class__
        if not GRAD.value or memory_only_seen:
            return super()._binary(op, other, reverse)
        if cls is Tensor:
            b, device = other.uop, self._device
            if other._device != device:
                device = common_device(op.name.lower(), (self, other))
            if uop.dtype is b.dtype and uop.shape == b.shape:
                return Tensor._new(UOp(op, (b, uop) if reverse else (uop, b)), device)
        elif (cls is float and uop.dtype.kind == "f") or (cls is int and uop.dtype.kind in "fiu"):
            c = UOp.const(uop.dtype, other)
            return Tensor._new(UOp(op, (c, uop) if reverse else (uop, c)), self._device)
        return super()._binary(op, other, reverse)

    def _bare(self) -> UOp:
        """The node of this value, below the DETACH that every result has where GRAD is 0."""
        return self.uop.src[0] if not GRAD.value and self.uop.op is Ops.DETACH else self.uop

    def _computable(self) -> Tensor:
        return where_kernels_run(self)[0] if memory_only_seen else self

    def _as_value(self) -> Tensor:
        x = self._computable()
        if is_storage_view(x.uop):
            return recorded(UOp(Ops.NOOP, (x._bare(),)), x._device)
        return Tensor._new(x.uop, x._device)  # another tensor of the same value, that may change by itself

    def _like(self, uop: UOp) -> Tensor:
        return Tensor._new(uop, self._device)

    def _reshape(self, shape: Any) -> Tensor:
        return recorded(self._bare()._reshape(shape), self._device)

    def _expand(self, shape: Any) -> Tensor:
        return recorded(self._bare()._expand(shape), self._device)

    def _permute(self, order: tuple[int, ...]) -> Tensor:
        return recorded(self._bare()._permute(order), self._device)

    def _pad(self, pairs: Any, fill: Any = 0) -> Tensor:
        x = self._computable()
        return recorded(x._bare()._pad(pairs, fill), x._device)

    def _shrink(self, pairs: Any) -> Tensor:
        return recorded(self._bare()._shrink(pairs), self._device)

    def _flip(self, axes: tuple[int, ...]) -> Tensor:
        return recorded(self._bare()._flip(axes), self._device)

    def _shear(self, axis: int, by: int, step: int, offset: int, length: int) -> Tensor:
        return recorded(self._bare()._shear(axis, by, step, offset, length), self._device)

    def _reduce(self, op: Ops, axes: tuple[int, ...]) -> Tensor:
        x = self._computable()
        return recorded(x._bare()._reduce(op, axes), x._device)

    def _take(self, index: Tensor) -> Tensor:
        x, index = where_kernels_run(self, index)
        return recorded(x.uop._take(index.uop), common_device("indexing", (x, index)))

    def _scatter(self, values: Tensor, positions: Tensor, op: Ops) -> Tensor:
        x, values, positions = where_kernels_run(self, values, positions)
        device = common_device("scatter", (x, values, positions))
        return recorded(x.uop._scatter(values.uop, positions.uop, op), device)

    def _const(self, dtype: DType, value: Any) -> Tensor:
        return Tensor._new(UOp.const(dtype, value), self._device)

    def _iota(self, n: Any) -> Tensor:
        # Positions are compared and computed with other integers: those stay weak, so the type is the other's.
        return Tensor._new(UOp.iota(n), self._device)

    def _lift(self, value: Any) -> Tensor:
        if isinstance(value, Tensor):
            return value
        if isinstance(value, UOp):
            return Tensor._new(value, value.device)
        if value.__class__ in (bool, int, float):
            return Tensor._new(UOp.const(strong(dtypes.from_py(value)), value), self._device)
        return Tensor(value, device=working_device(self))

    def _invalid(self, dtype: DType) -> Tensor:
        return Tensor._new(UOp.invalid(dtype), self._device)

    def cast(self, dtype: DTypeLike) -> Tensor:
        """As `dtype`; itself where it has that type. Floats out of an integer type's range saturate, NaN becomes 0
        (`docs/dtypes.md`).

        >>> Tensor([1.9, -1.9]).cast(dtypes.int32).tolist()
        [1, -1]
        """
        d = to_dtype(dtype)
        if self.uop.dtype is d:
            return self
        x = self._computable()
        return recorded(x.uop.cast(d), x._device)

    def bitcast(self, dtype: DTypeLike) -> Tensor:
        """The same bits as `dtype`; with another size of elements the last axis changes. ValueError where it does
        not divide.

        >>> Tensor([1.0]).bitcast("int32").tolist()
        [1065353216]
        """
        d, old = to_dtype(dtype), self.dtype
        rest = dim_prod((self.shape[-1], old.itemsize)) % d.itemsize if self.shape else 1
        if d.itemsize != old.itemsize and (
            not same(rest if isinstance(rest, int) else rest._as_dim(), 0) or "b" in (d.kind, old.kind)
        ):
            raise ValueError(f"bitcast: a last axis of shape {self.shape} {old.name} does not divide into {d.name}")
        return recorded(self.uop.bitcast(d), self._device)

    def const(self, value: Any) -> Tensor:
        """A scalar constant of this dtype on this device.

        >>> Tensor([1.0, 2.0]).const(3).item()
        3.0
        """
        return self.const_like(value)

    def replace(self, x: Tensor) -> Tensor:
        """Let this tensor stand for the value of `x` (of the same shape and dtype); returns it.

        >>> x = Tensor([1, 2])
        >>> x.replace(Tensor([3, 4])).tolist()
        [3, 4]
        """
        if x.shape != self.shape or x.dtype is not self.dtype:
            raise ValueError(f"replace: {x.shape} {x.dtype.name} cannot stand for {self.shape} {self.dtype.name}")
        set_node(self, x.uop)
        self._device, self._history = x._device, x._history
        return self

    def alu(self, op: Ops, *src: Tensor) -> Tensor:
        """The elementwise node `op` of values of one dtype and shape: for those who write operations.

        >>> Tensor([4.0, 9.0]).alu(Ops.SQRT).tolist()
        [2.0, 3.0]
        """
        if not isinstance(op, Ops):
            raise TypeError(f"alu: op is a member of Ops, such as Ops.SQRT, not {shown(op)}")
        for x in src:
            need_tensors("alu", src=x)
        return self._alu(op, *src)

    def detach(self) -> Tensor:
        """The same values, through which no gradient flows.

        >>> x = Tensor([2.0])
        >>> (x * x.detach()).sum().gradient(x)[0].tolist()
        [2.0]
        """
        return self._like(self.uop.detach())

    def contiguous(self) -> Tensor:
        """The same values, stored in their own order when they are realized.

        >>> Tensor([[1, 2], [3, 4]]).T.contiguous().tolist()
        [[1, 3], [2, 4]]
        """
        x = self if is_flat(self.uop) else self._computable()
        return recorded(x.uop.contiguous(), x._device)

    def contiguous_backward(self) -> Tensor:
        """The same values; their gradient is stored.

        >>> Tensor([1, 2]).contiguous_backward().tolist()
        [1, 2]
        """
        return self._like(self.uop.contiguous_backward())

    def clone(self) -> Tensor:
        """A copy in storage of its own, which in-place changes of the original do not reach.

        >>> x = Tensor([1, 2])
        >>> y = x.clone()
        >>> _ = x.assign(x + 1)
        >>> y.tolist()
        [1, 2]
        """
        return self.replace_uop(self.uop)._own_storage()

    def __eq__(self, x: Any) -> Tensor:  # type: ignore[override]
        return NotImplemented if x is None or isinstance(x, str) else self.eq(x)  # equal to no such thing: False

    def __ne__(self, x: Any) -> Tensor:  # type: ignore[override]
        return NotImplemented if x is None or isinstance(x, str) else self.ne(x)

    def cast_default(self) -> Tensor:
        """A weak type as the default one of its kind; others as they are."""
        return self.cast(strong(self.dtype)) if self.dtype.weak else self

    # --- devices ---

    def to(self, device: DeviceLike | None) -> Tensor:
        """This value on `device`; itself where it is there already.

        >>> Tensor([1, 2]).to("PYTHON").device
        'PYTHON'
        """
        place = canonical_place(device) or Device.DEFAULT
        if place == self._device or (self._device is None and self.uop.device is None and place == Device.DEFAULT):
            return self
        if self.uop.device is None:
            return self.replace_uop(self.uop)._moved(place)
        if is_memory_only(self._device) and not is_flat(self.uop) and is_storage_view(self.uop):
            part = self._part_moved(place)
            return self._all_moved(place) if part is None else part
        return recorded(UOp(Ops.COPY, (self.uop,), place), place)

    def _all_moved(self, place: DeviceLike) -> Tensor:
        """This view of memory on a device that runs no kernels, as a view of a copy of all that memory."""
        base = storage_base(self.uop)
        return Tensor._new(self.uop.substitute({base: UOp(Ops.COPY, (base,), place)}), place)

    def _moved(self, device: DeviceLike) -> Tensor:
        self._device = device
        return self

    def to_(self, device: DeviceLike | None) -> Tensor:
        """Move this tensor itself to `device`.

        >>> Tensor([1, 2]).to_("PYTHON").device
        'PYTHON'
        """
        moved = self.to(device)
        set_node(self, moved.uop)
        self._device = moved._device
        return self

    # --- realizing ---

    def realize(self, *others: Tensor) -> Tensor:
        """Compute this value (and `others`, together) and keep the results; returns this tensor.

        >>> (Tensor([1, 2]) + 1).realize().tolist()
        [2, 3]
        """
        for t in others:
            need_tensors("realize", others=t)
        realize((self, *others))
        return self

    def _buffer(self) -> Buffer:
        """Host-visible memory with this value, in order; views and other devices' values are copied."""
        from aril.engine.capture import check_host_read
        from aril.engine.realize import storage_of

        check_host_read()
        x = self.cast_default()
        if isinstance(x.device, tuple):
            self.realize()
            x = self.to(x.device[0])
        need_numbers(self)
        if not (is_flat(x.uop) and x.uop.base.op is Ops.BUFFER):
            if x.uop.op is Ops.CONST or (x.uop.op is not Ops.CONTIGUOUS and is_storage_view(x.uop)):
                x = x._like(x.uop.contiguous())
            x = x._like(x.uop)
            realize((self, x) if x.uop is self.uop else (x,))
        return storage_of(x.uop.base)

    def data(self) -> memoryview:
        """The values as a memoryview of this shape (read it at once or keep it: it is a snapshot of memory, not a
        copy).

        Errors: TypeError for types Python has no format for (bfloat16, fp8).

        >>> Tensor([1, 2]).data().tolist()
        [1, 2]
        """
        fmt: Any = strong(self.dtype).fmt
        if fmt is None:
            raise TypeError(f"data: Python has no format for {self.dtype.name}; cast first, or use numpy()")
        memory = self._buffer().as_memoryview()
        shape = self.shape
        if 0 in shape:
            return memory.cast("B").cast(fmt) if len(shape) == 1 else memory
        return memory.cast("B").cast(fmt, shape) if shape else memory.cast("B").cast(fmt)

    def __bool__(self) -> bool:
        if self.numel() != 1:
            raise ValueError(f"the truth of a tensor of shape {self.shape} is ambiguous; use any() or all()")
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __index__(self) -> int:
        if self.dtype.kind not in "iub":
            raise TypeError(f"a {self.dtype.name} tensor is no index")
        return int(self.item())


def recorded(uop: UOp, device: DeviceLike | None) -> Tensor:
    """The result of an operation as a tensor. Where GRAD is 0 it stands under a DETACH, the only one of its graph:
    nothing flows back through it, wherever it is used."""
    if not GRAD.value and uop.op is not Ops.CONST:
        below = tuple([s.src[0] if s.op is Ops.DETACH else s for s in uop.src])
        uop = uop if below == uop.src else uop.with_src(below)
        uop = uop.detach() if uop.dtype.kind == "f" else uop
    return Tensor._new(uop, device)


# ---------------------------------------------------------------------------------------------------- the user's line


def _user_line() -> str | None:
    """The innermost frame outside of this package."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "aril":
        frame = frame.f_back  # type: ignore[assignment]
    return None if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


if DEBUG.value >= 2 or SPEC.value or NAN_CHECK.value:
    track_origin(_user_line)
warn_of_misspelt()
