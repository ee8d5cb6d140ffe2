"""PyTorch's files (`.pt`, `.pth`), both formats, without executing their pickles: tensors stay in the file until used.

The newer format is a zip archive: `NAME/data.pkl` describes the object, `NAME/data/KEY` holds each storage. The older
one is five pickles in a row (a magic number, a version, the machine, the object, the keys of its storages), then the
storages, each an 8-byte count of elements and the elements. A file is data from a stranger: names outside of the tables
below are refused.
"""

from __future__ import annotations

import io
import os
from dataclasses import dataclass, field
from typing import Any

from aril.dtype import DType, dtypes
from aril.nn.state_archives import zip_members
from aril.nn.state_files import FileFormatError, PathLike, check_spans, lazy, open_file
from aril.nn.state_pickle import Name, RefusedPickle, ordered_dict, read_pickle
from aril.tensor import Tensor

_MAGIC, _VERSION = 0x1950A86A20F9469CFC6C, 1001
_PICKLE_LIMIT = 1 << 30  # bytes: the description, not the data

_STORAGES: dict[str, DType] = {
    "Double": dtypes.float64, "Float": dtypes.float32, "Half": dtypes.float16, "BFloat16": dtypes.bfloat16,
    "Long": dtypes.int64, "Int": dtypes.int32, "Short": dtypes.int16, "Char": dtypes.int8, "Byte": dtypes.uint8,
    "Bool": dtypes.bool, "Untyped": dtypes.uint8,
}  # fmt: skip
_TYPES: dict[str, DType] = {
    d.name: d for d in dtypes.all if not d.name.startswith("fp8")
} | {
    "float8_e4m3fn": dtypes.fp8e4m3, "float8_e5m2": dtypes.fp8e5m2,
    "float8_e4m3fnuz": dtypes.fp8e4m3fnuz, "float8_e5m2fnuz": dtypes.fp8e5m2fnuz,
}  # fmt: skip


def torch_load(path: PathLike) -> Any:
    """What `torch.save` wrote: a state dict, or nested containers of tensors, numbers and text.

    Tensors lie on the file's own device and are read when they are used or moved; those whose elements are not in
    row-major order are lazy tensors of the default device. Tensors that shared storage are read each on its own.
    Errors: FileNotFoundError; FileFormatError for a file that is cut short, lies about itself, or whose pickle asks for
    anything but data (a whole model: save its `state_dict()` instead).
    """
    with open_file(path, "a file of torch.save") as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(4)
        file.seek(0)
        reader = _Reader(path, size)
        try:
            if start == b"PK\x03\x04":
                return reader.read_zip(file)
            return reader.read_old(file)
        except RefusedPickle as error:
            raise FileFormatError(
                f"{path}: refused: {error}. Only tensors, containers, numbers and text are read; nothing was executed. "
                "If you trust the file, load it with PyTorch and save its state_dict()"
            ) from None
        except FileFormatError:
            raise
        except ValueError as error:
            raise FileFormatError(f"{path}: {error}; the file is corrupt, or not one of torch.save") from None


@dataclass(eq=False, slots=True)
class _Storage:
    """A run of `count` elements somewhere in the file; in the old format its place is known only after the object."""

    key: str
    dtype: DType
    count: int
    offset: int | None = None
    parts: list[tuple[Any, int, int, DType]] = field(default_factory=list)


class _Reader:
    def __init__(self, path: PathLike, size: int) -> None:
        self.path, self.size = path, size
        self.storages: dict[str, _Storage] = {}
        self.names = {
            "collections OrderedDict": Name("collections.OrderedDict", ordered_dict),
            "torch Size": Name("torch.Size", tuple),
            "torch device": Name("torch.device", lambda *args: ":".join(map(str, args))),
            "torch._utils _rebuild_tensor": Name("_rebuild_tensor", self.tensor),
            "torch._utils _rebuild_tensor_v2": Name("_rebuild_tensor_v2", self.tensor),
            "torch._utils _rebuild_tensor_v3": Name("_rebuild_tensor_v3", self.tensor_of_type),
            "torch._utils _rebuild_parameter": Name("_rebuild_parameter", self.parameter),
            "torch._utils _rebuild_parameter_with_state": Name("_rebuild_parameter", self.parameter),
        }
        for name, dtype in _STORAGES.items():
            self.names[f"torch {name}Storage"] = Name(f"torch.{name}Storage", value=dtype)
        self.names["torch.storage UntypedStorage"] = self.names["torch UntypedStorage"]
        for name, dtype in _TYPES.items():
            self.names[f"torch {name}"] = Name(f"torch.{name}", value=dtype)

    # --- the two formats ---

    def read_zip(self, file: Any) -> Any:
        members = {m.name: m for m in zip_members(self.path, file)}
        described = [name for name in members if name == "data.pkl" or name.endswith("/data.pkl")]
        if len(described) != 1:
            raise FileFormatError(
                f"{self.path}: a zip archive with {len(described)} members data.pkl, where torch.save writes one"
            )
        prefix = described[0][: -len("data.pkl")]
        order = members.get(f"{prefix}byteorder")
        if order is not None and order.read(file, 16) != b"little":
            raise FileFormatError(f"{self.path}: its numbers are big-endian, which is not read here")

        def persistent(pid: Any) -> _Storage:
            storage = self.storage(pid)
            member = members.get(f"{prefix}data/{storage.key}")
            need = storage.count * storage.dtype.itemsize
            if member is None or not member.stored or member.size < need:
                found = "missing" if member is None else f"{member.size} bytes, {member.how}"
                raise FileFormatError(
                    f"{self.path}: storage {storage.key!r} of {need} bytes is {found}; the file is corrupt"
                )
            storage.offset = member.offset
            return storage

        raw = members[described[0]].read(file, _PICKLE_LIMIT)
        return self.finished(read_pickle(io.BytesIO(raw), self.names, persistent))

    def read_old(self, file: Any) -> Any:
        try:
            magic, version = read_pickle(file, {}), read_pickle(file, {})
        except ValueError:
            magic = version = None
        if magic != _MAGIC or version != _VERSION:
            raise FileFormatError(f"{self.path}: not a file of torch.save (neither a zip archive nor the older format)")
        machine = read_pickle(file, {})
        if not isinstance(machine, dict) or machine.get("little_endian") is not True:
            raise FileFormatError(f"{self.path}: its numbers are big-endian, which is not read here")
        out = read_pickle(file, self.names, self.storage)
        keys = read_pickle(file, {})
        if not isinstance(keys, list) or not all(isinstance(k, str) for k in keys) or len(set(keys)) != len(keys):
            raise FileFormatError(
                f"{self.path}: its list of storages is no list of different names; the file is corrupt"
            )
        for key in keys:
            storage = self.storages.get(key)
            count = int.from_bytes(file.read(8), "little", signed=True)
            begin = file.tell()
            if storage is None:
                raise FileFormatError(f"{self.path}: storage {key!r} belongs to no tensor; the file is corrupt")
            if count != storage.count:
                raise FileFormatError(
                    f"{self.path}: storage {key!r} holds {count} elements, its tensors say {storage.count}"
                )
            end = begin + count * storage.dtype.itemsize
            check_spans(self.path, [(begin, end, f"storage {key!r}")], self.size)
            storage.offset = begin
            file.seek(end)
        return self.finished(out)

    def finished(self, out: Any) -> Any:
        from aril.device import Buffer

        for storage in self.storages.values():
            for flat, start, count, dtype in storage.parts:
                if storage.offset is None:
                    raise FileFormatError(f"{self.path}: storage {storage.key!r} is missing; the file is cut short")
                begin = storage.offset + start * dtype.itemsize
                whole = Buffer(flat.device, begin + count * dtype.itemsize, dtypes.uint8)
                flat.uop.base.storage = whole.view(count, dtype, begin)
        return out

    # --- what the pickle may make ---

    def storage(self, pid: Any) -> _Storage:
        """The storage of a persistent id, ("storage", type, key, location, count); the old format adds a view."""
        if not isinstance(pid, tuple) or len(pid) not in (5, 6) or pid[0] != "storage" or not isinstance(pid[1], Name):
            raise RefusedPickle("it refers to something else than a storage")
        kind, key, count = pid[1].value, str(pid[2]), pid[4]
        if len(pid) == 6 and pid[5] is not None:
            raise FileFormatError(
                f"{self.path}: storage {key!r} is a view of another (PyTorch before 0.4); save it anew"
            )
        if not isinstance(kind, DType) or type(count) is not int or not 0 <= count < 1 << 62:
            raise ValueError(f"storage {key!r} has the count {count!r}")
        found = self.storages.setdefault(key, _Storage(key, kind, count))
        if (found.dtype, found.count) != (kind, count):
            raise ValueError(f"storage {key!r} is described twice, in different ways")
        return found

    def tensor(self, storage: Any, offset: Any, shape: Any, strides: Any, *more: Any) -> Tensor:
        """The tensor of a storage; `offset` and `strides` count elements. What is said of gradients is left out."""
        if not isinstance(storage, _Storage):
            raise RefusedPickle(f"it makes a tensor of a {type(storage).__name__}")
        return self.placed(storage, storage.dtype, offset, shape, strides)

    def tensor_of_type(
        self, storage: Any, offset: Any, shape: Any, strides: Any, grad: Any, hooks: Any, dtype: Any, *more: Any
    ) -> Tensor:
        """As `tensor`, of an untyped storage, whose count is in bytes."""
        if not isinstance(storage, _Storage) or not isinstance(dtype, Name) or not isinstance(dtype.value, DType):
            raise RefusedPickle(f"it makes a tensor of a {type(storage).__name__}")
        return self.placed(storage, dtype.value, offset, shape, strides)

    def placed(self, storage: _Storage, dtype: DType, offset: Any, shape: Any, strides: Any) -> Tensor:
        """A tensor over its own stretch of the storage; where that lies in the file is filled in at the end."""
        from aril.tensor_interop import strided_view

        numbers = (offset, *shape, *strides)
        if len(shape) != len(strides) or not all(type(n) is int and 0 <= n < 1 << 62 for n in numbers):
            raise ValueError(f"a tensor has the offset {offset!r}, shape {shape!r} and strides {strides!r}")
        last = sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
        empty = 0 in shape
        extent = 0 if empty else last + 1
        room = storage.count * storage.dtype.itemsize // dtype.itemsize
        if offset + extent > room and not empty:
            raise ValueError(
                f"a tensor takes elements {offset} to {offset + extent} of storage {storage.key!r}, which has {room}"
            )
        flat = lazy(self.path, 0, (extent,), dtype)
        storage.parts.append((flat, offset if not empty else 0, extent, dtype))
        row_major, step = True, 1
        for n, stride in zip(reversed(shape), reversed(strides), strict=True):
            row_major &= n == 1 or stride == step
            step *= n
        if empty or row_major:
            return flat.reshape(*shape)
        out: Tensor = strided_view(flat.to(None), tuple(shape), tuple(strides))
        return out

    def parameter(self, data: Any, *more: Any) -> Tensor:
        """A parameter is its values."""
        if not isinstance(data, Tensor):
            raise RefusedPickle(f"it makes a parameter of a {type(data).__name__}")
        return data
