"""Memory shared with other libraries: NumPy views of realized graphs, and DLPack capsules both ways.

In come graphs that are memory seen through views, or another library's capsule; out go arrays and capsules over the
same memory. The structures are those of DLPack 1.0 (https://dmlc.github.io/dlpack/latest/c_api.html).
"""

from __future__ import annotations

import ctypes
import math
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aril.device import Buffer, Device
from aril.dtype import DType, dtypes
from aril.ops import OpGroup, Ops
from aril.uop import UOp

CPU = (1, 0)  # kDLCPU and its index, as `__dlpack_device__` gives them
_READ_ONLY, _COPIED = 1, 2  # bits of DLManagedTensorVersioned.flags
_UNSIGNED = {1: np.uint8, 2: np.uint16}

# --- realized graphs as NumPy arrays ---


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """NumPy's type of the same bits: unsigned integers for the floats it lacks (bfloat16, fp8)."""
    return np.dtype(dtype.name if dtype.fmt is not None else _UNSIGNED[dtype.itemsize])


def host_view(u: UOp) -> NDArray[Any] | None:
    """The value of a graph that is memory seen through views, as an array over that memory; None for other graphs.

    Strides, zero and negative ones too, are those of the view. Memory of a device that is not visible here is copied,
    a file is mapped (read-only).
    """
    found = memory_and_view(u)
    return None if found is None else found[1]


def memory_and_view(u: UOp) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """(the whole memory, the view of it that the graph is), as `host_view`."""
    chain: list[UOp] = []
    while True:
        if u.op is not Ops.BUFFER and u.storage is not None and u.op is not Ops.CONST:
            u = u.storage  # realized before: the memory that stands for it
        elif u.op in VIEWS and len(u.src) == 1 and u.dtype.itemsize == u.src[0].dtype.itemsize:
            chain.append(u)
            u = u.src[0]
        else:
            break
    if u.op is Ops.CONST and not u.dtype.weak and u.dtype.kind != "v" and u.dtype.fmt is not None:
        out = np.array(u.arg, dtype=numpy_dtype(u.dtype))
    elif u.op is Ops.BUFFER and isinstance(u.storage, Buffer) and (u.storage.is_allocated or _on_disk(u.storage)):
        out = _array(u.storage)
    else:
        return None
    view = out
    for v in reversed(chain):
        view = _seen_through(v, view)
    return out, view


VIEWS = OpGroup.MOVEMENT - {Ops.PAD, Ops.SHEAR} | {Ops.DETACH, Ops.BITCAST}


def _on_disk(buffer: Buffer) -> bool:
    return isinstance(buffer.device, str) and buffer.device.startswith("DISK:")


def _array(buffer: Buffer) -> NDArray[Any]:
    if _on_disk(buffer):
        memory: Any = Device[buffer.device].allocator.map(buffer.opaque, buffer.nbytes)  # type: ignore[attr-defined]
    else:
        memory = buffer.as_memoryview()
    if buffer.size == 0:
        return np.empty(0, numpy_dtype(buffer.dtype))
    return np.frombuffer(memory, numpy_dtype(buffer.dtype), count=buffer.size)


def _seen_through(u: UOp, x: NDArray[Any]) -> NDArray[Any]:
    if u.op is Ops.RESHAPE:
        return x.reshape(u.arg)
    if u.op is Ops.EXPAND:
        # numpy.broadcast_to would mark it read-only; writing to elements that share memory is the writer's affair
        strides = [0 if n != m else s for n, m, s in zip(u.arg, x.shape, x.strides, strict=True)]
        return np.lib.stride_tricks.as_strided(x, u.arg, strides)
    if u.op is Ops.PERMUTE:
        return x.transpose(u.arg)
    if u.op is Ops.SHRINK:
        pairs = zip(u.arg[::2], u.arg[1::2], strict=True)
        return x[tuple([slice(start, start + length) for start, length in pairs])]
    if u.op is Ops.FLIP:
        return np.flip(x, u.arg)
    if u.op is Ops.BITCAST:
        return x.view(numpy_dtype(u.dtype))
    return x  # DETACH


# --- DLPack ---


class _Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("index", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device", _Device), ("ndim", ctypes.c_int32), ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class _ManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _Tensor),
    ]  # fmt: skip


_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}
_OTHER_CODES = {
    dtypes.bfloat16: 4, dtypes.fp8e4m3: 10, dtypes.fp8e4m3fnuz: 11, dtypes.fp8e5m2: 12, dtypes.fp8e5m2fnuz: 13,
}  # fmt: skip
_KINDS = {(_OTHER_CODES.get(d, _CODES[d.kind]), 8 * d.itemsize): d for d in dtypes.all}  # bool has 8 bits there

# Capsules point at these names, so they live as long as the process.
_NAMES = {False: b"dltensor", True: b"dltensor_versioned"}
_USED = {False: b"used_dltensor", True: b"used_dltensor_versioned"}

_api = ctypes.pythonapi
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", _api)
)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
_set_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", _api))

_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

# What is lent out: by the structure's address, everything that must live until the borrower's deleter call.
_lent: dict[int, tuple[Any, ...]] = {}


@_DELETER
def _given_back(managed: int) -> None:
    _lent.pop(managed, None)


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
def _capsule_dropped(capsule: int) -> None:
    # Only a capsule that nobody took still has its first name.
    for name in _NAMES.values():
        if _is_valid(capsule, name):
            _lent.pop(_pointer(capsule, name), None)


# Borrowers may call back while the interpreter takes its modules apart: the thunks and what they use are never freed.
for _kept in (_given_back, _capsule_dropped, _lent, _given_back._objects, _capsule_dropped._objects):
    _api.Py_IncRef(ctypes.py_object(_kept))


def to_capsule(array: NDArray[Any], dtype: DType, versioned: bool, copied: bool = False) -> Any:
    """A DLPack capsule over `array`'s memory, which lives until the one who takes the capsule gives it back.

    `dtype` is the elements' type where NumPy has none. Errors: BufferError for read-only memory in an unversioned
    capsule, which cannot say so.
    """
    read_only = not array.flags.writeable
    if read_only and not versioned:
        raise BufferError(
            "__dlpack__: this memory is read-only, which needs max_version of at least (1, 0); copy it first"
        )
    n = array.ndim
    shape = (ctypes.c_int64 * n)(*array.shape)
    strides = (ctypes.c_int64 * n)(*[s // array.itemsize for s in array.strides])
    managed = _ManagedVersioned() if versioned else _Managed()
    if versioned:
        managed.major, managed.minor = 1, 0
        managed.flags = _READ_ONLY * read_only | _COPIED * copied
    t = managed.tensor
    t.data, t.ndim, t.device = array.ctypes.data if array.size else None, n, _Device(*CPU)
    t.dtype = _DataType(_OTHER_CODES.get(dtype, _CODES[dtype.kind]), 8 * dtype.itemsize, 1)
    t.shape, t.strides = shape, strides
    managed.deleter = ctypes.cast(_given_back, ctypes.c_void_p)
    address = ctypes.addressof(managed)
    _lent[address] = (managed, shape, strides, array)
    return _new_capsule(address, _NAMES[versioned], ctypes.cast(_capsule_dropped, ctypes.c_void_p))


class _Borrowed:
    """Another library's tensor: given back when this object goes."""

    def __init__(self, managed: Any) -> None:
        self.managed = managed

    def __del__(self, finalizing: Any = sys.is_finalizing, call: Any = _DELETER) -> None:
        # At the end of the process the lender may be gone before us, and the system takes the memory back.
        if self.managed.deleter and not finalizing():
            call(self.managed.deleter)(ctypes.addressof(self.managed))


def dense_order(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...] | None:
    """The axes from the slowest to the fastest where the elements fill their memory without gaps, else None."""
    order = sorted(range(len(shape)), key=lambda i: (-strides[i], i))
    step = 1
    for i in reversed(order):
        if shape[i] != 1 and strides[i] != step:
            return None
        step *= shape[i]
    return tuple(order)


@dataclass(frozen=True, slots=True)
class Foreign:
    """Memory of another library: strides in elements; `owner` keeps it alive."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    read_only: bool
    owner: object

    @property
    def dense_order(self) -> tuple[int, ...] | None:
        """See `dense_order`; axes that repeat one element (stride 0) count as of length 1."""
        sizes = tuple([1 if stride == 0 else n for n, stride in zip(self.shape, self.strides, strict=True)])
        return dense_order(sizes, self.strides)

    def array(self) -> NDArray[Any]:
        """The elements as an array over the same memory."""
        kind = numpy_dtype(self.dtype)
        if math.prod(self.shape) == 0:
            return np.empty(self.shape, kind)
        low = sum(min(s * (n - 1), 0) for n, s in zip(self.shape, self.strides, strict=True))
        high = sum(max(s * (n - 1), 0) for n, s in zip(self.shape, self.strides, strict=True))
        start = self.address + low * kind.itemsize
        memory = (ctypes.c_char * ((high - low + 1) * kind.itemsize)).from_address(start)
        memory.owner = self.owner  # type: ignore[attr-defined]
        flat: NDArray[Any] = np.frombuffer(memoryview(memory), kind)
        steps = [s * kind.itemsize for s in self.strides]
        return np.lib.stride_tricks.as_strided(flat[-low:], self.shape, steps, writeable=not self.read_only)


def from_capsule(source: Any, copy: bool | None = None) -> Foreign:
    """The memory behind an object with `__dlpack__` (on the CPU), taken over from its capsule.

    Errors: TypeError for an object without the protocol or with elements of no known type, BufferError for memory on
    another device.
    """
    if not hasattr(source, "__dlpack__") or not hasattr(source, "__dlpack_device__"):
        raise TypeError(f"from_dlpack: {type(source).__name__} has no __dlpack__; give an array of another library")
    kind, index = source.__dlpack_device__()
    if int(kind) != CPU[0]:
        raise BufferError(
            f"from_dlpack: the memory is on DLPack device ({int(kind)}, {index}), not on a CPU; copy it there"
        )
    try:
        capsule = source.__dlpack__(max_version=(1, 0), **({} if copy is None else {"copy": copy}))
    except TypeError:  # a protocol from before versions
        capsule = source.__dlpack__()
    held = id(capsule)
    versioned = bool(_is_valid(held, _NAMES[True]))
    if not _is_valid(held, _NAMES[versioned]):
        raise TypeError(f"from_dlpack: {type(source).__name__}.__dlpack__() gave no capsule that was still unused")
    layout = _ManagedVersioned if versioned else _Managed
    managed: Any = layout.from_address(_pointer(held, _NAMES[versioned]))
    if versioned and managed.major != 1:
        raise BufferError(f"from_dlpack: DLPack version {managed.major}.{managed.minor} came, 1.x was asked for")
    _set_name(capsule, _USED[versioned])
    owner = _Borrowed(managed)
    t = managed.tensor
    shape = tuple([t.shape[i] for i in range(t.ndim)])
    dtype = _KINDS.get((t.dtype.code, t.dtype.bits))
    if dtype is None or t.dtype.lanes != 1:
        raise TypeError(
            f"from_dlpack: elements of DLPack type code {t.dtype.code}, {t.dtype.bits} bits and {t.dtype.lanes} lanes "
            f"have no dtype here; cast them to one of {', '.join(d.name for d in dtypes.all)} first"
        )
    if t.strides:
        strides = tuple([t.strides[i] for i in range(t.ndim)])
    else:
        strides = tuple([math.prod(shape[i + 1 :]) for i in range(t.ndim)])
    read_only = bool(versioned and managed.flags & _READ_ONLY)
    return Foreign((t.data or 0) + t.byte_offset, shape, strides, dtype, read_only, owner)
