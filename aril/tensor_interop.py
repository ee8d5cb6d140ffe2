"""Values of tensors for others: Python numbers, NumPy, DLPack, the buffer protocol, pickles, text. Mixed into Tensor.

Where the value lies in this process's memory nothing is copied unless a method says so: what the other side writes is
seen by what is computed later, not by what was computed before.
"""

from __future__ import annotations

import math
import pickle
from typing import Any

from aril.device import Device
from aril.dtype import DTypeLike, dtypes, strong, to_dtype
from aril.mixin.base import bound
from aril.ops import Ops
from aril.tensor_creation import CreationMixin
from aril.tensor_memory import storage_base
from aril.uop.args import is_memory_only
from aril.uop.node import view_flat

_SHOWN = 200  # elements: a tensor that has its value and is no larger shows it
_SMALL = 4096  # elements
_PROTOCOLS_WITH_BUFFERS = 5  # pickle's first protocol that takes memory as it is (PEP 574)


def _number(d: Any) -> int:
    """A dimension as a number, from the values its variables are bound to. ValueError for one that is not bound."""
    out = bound(d)
    if not isinstance(out, int):
        raise ValueError(f"the length {d} depends on a variable without a value; bind it first")
    return out


class InteropMixin(CreationMixin):
    """Ways out of and into a tensor."""

    __slots__ = ()

    # --- NumPy and Python ---

    def _host(self: Any) -> Any:
        """The value (computed if need be) as a NumPy array over its memory; types NumPy lacks as unsigned integers."""
        from aril.engine.capture import check_host_read
        from aril.interop import host_view, numpy_dtype

        check_host_read()
        x = self.cast_default()
        if isinstance(x.device, tuple):
            x = x.realize().to(x.device[0])
        if not all(isinstance(d, int) for d in x.shape):
            sizes = tuple([_number(d) for d in x.shape])
            return x.pad_to(*x.max_shape)._host()[tuple([slice(n) for n in sizes])]
        out = host_view(x.uop)
        if out is None:
            # Reading elements one by one: computing all of a small value once beats a kernel for each of them.
            whole = _below_views(x.uop)
            if whole is not x.uop and not whole.dtype.weak and whole.max_numel() <= _SMALL:
                x._like(whole).realize()
            else:
                x.realize()
            out = host_view(x.uop)
        if out is None:
            np = _numpy()
            out = np.frombuffer(x._buffer().as_memoryview(), numpy_dtype(x.dtype)).reshape(x.shape)
        return out

    def numpy(self: Any) -> Any:
        """The values as a NumPy array (a copy). bfloat16 and fp8 come as float32, which holds them exactly.

        >>> Tensor([1, 2]).numpy()
        array([1, 2], dtype=int32)
        """
        x = self.cast_default()
        return (x if x.dtype.fmt is not None else x.cast(dtypes.float32))._host().copy("C")

    def item(self: Any) -> Any:
        """The value of a tensor of one element, as a Python number. ValueError for more.

        >>> Tensor([1.5]).item()
        1.5
        """
        if bound(self.numel()) != 1:
            raise ValueError(f"item: a tensor of shape {self.shape} has {self.numel()} elements; item() takes one")
        x = self.cast_default()
        return (x if x.dtype.fmt is not None else x.cast(dtypes.float32))._host().item()

    def tolist(self: Any) -> Any:
        """The values as nested lists of Python numbers (a number for shape ()).

        >>> Tensor([[1, 2], [3, 4]]).tolist()
        [[1, 2], [3, 4]]
        """
        return self.numpy().tolist()

    __array_priority__ = 1000  # `array + tensor` is the tensor's to answer, lazily and with its gradient

    def __format__(self: Any, spec: str) -> str:
        return format(self.item(), spec) if spec else str(self)

    def __array__(self: Any, dtype: Any = None, copy: Any = None) -> Any:
        out = self._host() if self.dtype.fmt is not None or self.dtype.weak else self.numpy()
        if copy is False and dtype is not None and out.dtype != dtype:
            raise ValueError(f"__array__: {self.dtype.name} as {dtype} needs a copy; leave out copy=False")
        if dtype is not None:
            out = out.astype(dtype, copy=False)
        return out.copy() if copy else out

    def __buffer__(self: Any, flags: int) -> memoryview:
        """The buffer protocol (PEP 688, Python 3.12): the value's memory with its shape and strides."""
        if self.dtype.fmt is None and not self.dtype.weak:
            raise BufferError(f"Python has no format for {self.dtype.name}; cast first, or use numpy()")
        return memoryview(self._host())

    # --- DLPack ---

    def __dlpack__(
        self: Any, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        """A DLPack capsule over this value's memory (computed if need be), strides included; nothing is copied.

        Errors: BufferError for another device than the CPU, or where memory is read-only and the taker is from before
        DLPack 1.0; ValueError for a stream, which the CPU has none of.
        """
        from aril.interop import CPU, to_capsule

        if stream is not None:
            raise ValueError(f"__dlpack__: the CPU has no streams; stream is None, not {stream!r}")
        if dl_device is not None and tuple([int(v) for v in dl_device]) != CPU:
            raise BufferError(f"__dlpack__: this memory is on the CPU {CPU}; device {tuple(dl_device)} was asked for")
        array = self._host()
        versioned = max_version is not None and max_version[0] >= 1
        return to_capsule(array.copy() if copy else array, strong(self.dtype), versioned, copied=bool(copy))

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's name of the memory that `__dlpack__` gives: the CPU's."""
        from aril.interop import CPU

        return CPU

    @classmethod
    def from_dlpack(cls, x: Any, device: Any = None, copy: bool | None = None) -> Any:
        """An array of another library (NumPy, PyTorch, ..) on the CPU as a tensor over the same memory.

        Copied where `copy` is True, or where it must be (and `copy` is not False): memory that is read-only, has gaps
        between its elements, runs backwards, or is not aligned to them. Permuted and expanded arrays are not copied.
        Errors: TypeError without the protocol, BufferError for other devices and for copies that `copy=False` forbids.
        """
        from aril.interop import from_capsule

        if isinstance(x, cls):
            same: Any = x
            moved = same if device is None else same.to(device)
            return moved.clone() if copy else moved
        found = from_capsule(x, copy)
        place = device if device is not None else Device.DEFAULT
        order = found.dense_order
        shared = not found.read_only and order is not None and found.address % found.dtype.itemsize == 0
        if math.prod(found.shape) and (copy or not shared):
            if copy is False:
                why = "is read-only" if found.read_only else f"with strides {found.strides} is not dense or not aligned"
                raise BufferError(f"from_dlpack: memory that {why} needs a copy; leave out copy=False")
            return cls._of_bytes(found.array().tobytes(), found.shape, found.dtype, place)
        if order is None or math.prod(found.shape) == 0:
            return cls.empty(*found.shape, dtype=found.dtype, device=place)
        host = place if isinstance(place, str) and Device[place].allocator.host_visible else "CPU"
        n = 1 + sum((size - 1) * stride for size, stride in zip(found.shape, found.strides, strict=True))
        flat = cls.from_blob(found.address, (n,), found.dtype, host, owner=found.owner)
        return strided_view(flat, found.shape, found.strides).to(place)

    def _part_moved(self: Any, place: Any) -> Any:
        """A view of memory on a device that runs no kernels, on `place`: only the stretch it lies in is copied."""
        from aril.interop import memory_and_view, numpy_dtype

        bottom, found = storage_base(self.uop), memory_and_view(self.uop)
        if found is None or bottom.op is not Ops.BUFFER:
            return None
        base, view = found
        if view.size == 0:
            return self.zeros(*view.shape, dtype=self.dtype, device=place)
        kind = numpy_dtype(self.dtype)
        start = view.__array_interface__["data"][0] - base.__array_interface__["data"][0]
        steps = [stride // kind.itemsize for stride in view.strides]
        low = sum(min(step * (n - 1), 0) for n, step in zip(view.shape, steps, strict=True))
        high = sum(max(step * (n - 1), 0) for n, step in zip(view.shape, steps, strict=True))
        begin, n = start + low * kind.itemsize, high - low + 1
        flat = self.empty(n, dtype=self.dtype, device=self.device)
        flat.uop.base.storage = bottom.storage.view(n, self.dtype, begin)
        return strided_view(flat.to(place), view.shape, tuple(steps), -low)

    @classmethod
    def _of_bytes(cls, raw: Any, shape: tuple[int, ...], dtype: DTypeLike, device: Any) -> Any:
        """Fresh storage with the bytes `raw`, in row-major order."""
        from aril.device import Buffer
        from aril.uop import UOp

        n, kind = math.prod(shape), to_dtype(dtype)
        out = cls.empty(n, dtype=kind, device=device)
        flat: UOp = out.uop.base
        flat.storage = Buffer(out.device, n, kind).copyin(memoryview(raw))
        return cls._of(view_flat(flat, tuple(shape)), out.device)

    # --- pickles and copies ---

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        """A pickle holds values, dtype, shape, device and whether it is a parameter; neither graph nor gradient."""
        array = self._host()
        if not array.flags.c_contiguous:
            array = array.copy("C")
        raw: Any = array.tobytes()
        if protocol >= _PROTOCOLS_WITH_BUFFERS and array.size:
            raw = pickle.PickleBuffer(array.reshape(-1).view("uint8"))
        kind = self.device if isinstance(self.device, str) else None
        place = None if kind is None or is_memory_only(kind) else kind
        return _unpickled, (type(self), raw, tuple(self.shape), strong(self.dtype).name, place, self._is_param)

    def __copy__(self: Any) -> Any:
        return self.replace_uop(self.uop)

    def __deepcopy__(self: Any, memo: Any) -> Any:
        """A copy in storage of its own, its gradient too."""
        out = self.clone()
        out.grad = None if self.grad is None else self.grad.clone()
        return out

    # --- text ---

    def __repr__(self: Any) -> str:
        """The values where they are known and few; shape, dtype and device always."""
        about = f"{self.shape} {self.dtype.name} on {self.device}{'' if self.grad is None else ', grad=...'}"
        n = self.numel()
        if not (isinstance(n, int) and 0 < n <= _SHOWN) or self.dtype.kind == "v" or self.dtype.weak:
            return f"<Tensor {about}>"
        from aril.engine.realize import is_realized

        if not is_realized(self.uop) and self.uop.op is not Ops.CONST:
            return f"<Tensor {about}>"
        try:
            values = self._shown()
        except RuntimeError:  # memory that was never written
            return f"<Tensor {about}>"
        return f"<Tensor {about}: {values}>" if "\n" not in values else f"<Tensor {about}:\n{values}>"

    def __str__(self: Any) -> str:
        """As `repr`, computed first where it is small enough to be shown: `print` shows values."""
        n = self.numel()
        if isinstance(n, int) and n <= _SHOWN and self.dtype.kind != "v":
            self.realize()
        return repr(self)

    def _shown(self: Any) -> str:
        from aril.interop import host_view

        view = host_view(self.uop)
        if view is None:
            raise RuntimeError("no value in memory")
        if self.dtype.fmt is None:  # through the exact reader of small floats, without computing anything
            view = _floats_of_bits(view, self.dtype)
        return str(_numpy().array2string(view, separator=", ", threshold=_SHOWN + 1))


def _below_views(u: Any) -> Any:
    """The computation that a graph shows through views."""
    from aril.interop import VIEWS

    while u.op in VIEWS and len(u.src) == 1 and u.dtype.itemsize == u.src[0].dtype.itemsize:
        u = u.src[0]
    return u


def strided_view(flat: Any, shape: tuple[int, ...], strides: tuple[int, ...], start: int = 0) -> Any:
    """The elements of a vector at start + sum(i * stride) over the axes: a view where the strides are those of a dense
    array in some order of its axes (0 repeats), else a gather."""
    from aril.interop import dense_order

    sizes = tuple([1 if stride == 0 else n for n, stride in zip(shape, strides, strict=True)])
    order = dense_order(sizes, strides)
    if order is not None:
        dense = flat.shrink([(start, start + math.prod(sizes))]).reshape(*[sizes[i] for i in order])
        return (dense.permute(*[order.index(i) for i in range(len(order))]) if order else dense).expand(shape)
    place = flat._const(dtypes.int64, start)
    for axis, (n, stride) in enumerate(zip(shape, strides, strict=True)):
        steps = (flat._iota(n) * stride).cast(dtypes.int64)
        place = place + steps.reshape([n if i == axis else 1 for i in range(len(shape))])
    return flat._take(place)


def _floats_of_bits(bits: Any, dtype: Any) -> Any:
    np = _numpy()
    wide = bits.astype(np.int64)
    mantissa = wide & ((1 << dtype.mantissa) - 1)
    exponent = wide >> dtype.mantissa & ((1 << dtype.exponent) - 1)
    top = (1 << dtype.exponent) - 1
    fnuz = dtype.name.endswith("fnuz")
    bias = (1 << (dtype.exponent - 1)) - 1 + fnuz
    value = np.where(exponent == 0, np.ldexp(mantissa * 1.0, 1 - bias - dtype.mantissa),
                     np.ldexp(1.0 + mantissa / (1 << dtype.mantissa), exponent - bias))  # fmt: skip
    negative = wide >> (dtype.bits - 1) != 0
    if fnuz:
        value = np.where(negative & (exponent == 0) & (mantissa == 0), np.nan, value)
    elif dtype is dtypes.fp8e4m3:
        value = np.where((exponent == top) & (mantissa == 7), np.nan, value)
    else:
        value = np.where(exponent == top, np.where(mantissa == 0, np.inf, np.nan), value)
    return np.where(negative, -value, value)


def _unpickled(
    kind: Any, raw: Any, shape: tuple[int, ...], dtype: str, device: str | None, is_param: bool | None
) -> Any:
    """The tensor of a pickle; on the default device where its own is not usable here."""
    place = device if device is not None and Device.why_not(device) is None else Device.DEFAULT
    out = kind._of_bytes(raw, shape, dtype, place)
    out._is_param = is_param
    return out


def _numpy() -> Any:
    import numpy

    return numpy
