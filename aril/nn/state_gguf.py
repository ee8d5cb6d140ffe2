"""GGUF files (versions 2 and 3): metadata, and tensors that are read from the file when they are used.

Plain numbers come as tensors; quantised ones as the bytes of their blocks, one row a row, with their type in the
description. The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import math
import os
import struct
from dataclasses import dataclass
from typing import Any

from aril.dtype import DType, dtypes
from aril.nn.state_files import FileFormatError, PathLike, check_spans, lazy, open_file
from aril.tensor import Tensor

_PLAIN: dict[int, tuple[str, DType]] = {
    0: ("F32", dtypes.float32), 1: ("F16", dtypes.float16), 24: ("I8", dtypes.int8), 25: ("I16", dtypes.int16),
    26: ("I32", dtypes.int32), 27: ("I64", dtypes.int64), 28: ("F64", dtypes.float64), 30: ("BF16", dtypes.bfloat16),
}  # fmt: skip
# number: (name, elements of a block, bytes of a block)
_BLOCKS: dict[int, tuple[str, int, int]] = {
    2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 36), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292), 16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136), 29: ("IQ1_M", 256, 56), 34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
}  # fmt: skip
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_DEPTH = 8  # arrays of arrays of ..


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """A tensor of a GGUF file: its shape (slowest axis first), the name of its type, and its bytes in the file."""

    name: str
    shape: tuple[int, ...]
    kind: str
    dtype: DType | None  # None: quantised, `row_bytes` bytes for each row of the last axis
    offset: int
    nbytes: int
    row_bytes: int


class _Cursor:
    """Numbers and text from a file, which never reach beyond its end."""

    def __init__(self, path: PathLike, file: Any, size: int) -> None:
        self.path, self.file, self.size = path, file, size

    def take(self, n: int, what: str) -> bytes:
        """The next n bytes."""
        at = self.file.tell()
        if n > self.size - at:
            raise FileFormatError(f"{self.path}: {what} of {n} bytes at byte {at} reaches beyond the end, {self.size}")
        out: bytes = self.file.read(n)
        return out

    def number(self, fmt: str, what: str) -> Any:
        """One number of a `struct` format."""
        return struct.unpack(fmt, self.take(struct.calcsize(fmt), what))[0]

    def text(self, what: str) -> str:
        """A string with its length before it."""
        return self.take(self.number("<Q", what), what).decode("utf-8", "replace")

    def value(self, kind: int, what: str, depth: int = 0) -> Any:
        """A metadata value; arrays of numbers come as tuples."""
        if kind in _SCALARS:
            return self.number(_SCALARS[kind], what)
        if kind == _STRING:
            return self.text(what)
        if kind != _ARRAY or depth >= _DEPTH:
            raise FileFormatError(f"{self.path}: {what} is of the unknown type {kind}, or nested too deep")
        inner, n = self.number("<I", what), self.number("<Q", what)
        if inner in _SCALARS:
            letter = _SCALARS[inner][1]
            raw = self.take(n * struct.calcsize(f"<{letter}"), what)
            return list(struct.unpack(f"<{n}{letter}", raw))
        if n > self.size:  # each takes a byte at least
            raise FileFormatError(f"{self.path}: {what} has {n} entries, more than the file has bytes")
        return [self.value(inner, what, depth + 1) for _ in range(n)]


def gguf_load_metadata(path: PathLike) -> tuple[dict[str, Any], dict[str, GGUFTensor]]:
    """(metadata by key, descriptions of the tensors by name) of a GGUF file, checked.

    Errors: FileNotFoundError, or FileFormatError for anything the format does not allow: other versions, unknown types,
    lengths beyond the end of the file, names that repeat, tensors that overlap or lie outside.
    """
    with open_file(path, "a GGUF file") as file:
        size = os.fstat(file.fileno()).st_size
        cursor = _Cursor(path, file, size)
        if size < 24 or file.read(4) != b"GGUF":
            raise FileFormatError(f"{path}: not a GGUF file, or cut short ({size} bytes)")
        version = cursor.number("<I", "the version")
        if version not in (2, 3):
            raise FileFormatError(f"{path}: GGUF version {version}; 2 and 3 are read here (little-endian)")
        count, keys = cursor.number("<Q", "a count"), cursor.number("<Q", "a count")
        metadata: dict[str, Any] = {}
        for _ in range(keys):
            key = cursor.text("a key")
            if key in metadata:
                raise FileFormatError(f"{path}: the key {key!r} appears twice; the file is corrupt")
            metadata[key] = cursor.value(cursor.number("<I", f"the type of {key!r}"), f"the value of {key!r}")
        rows = []
        for _ in range(count):
            name = cursor.text("a name")
            n = cursor.number("<I", f"the rank of {name!r}")
            if n > 8:
                raise FileFormatError(f"{path}: tensor {name!r} has {n} axes; the file is corrupt")
            dims = tuple([cursor.number("<Q", f"the shape of {name!r}") for _ in range(n)])
            rows.append((name, dims, cursor.number("<I", f"the type of {name!r}"), cursor.number("<Q", "an offset")))
        align = metadata.get("general.alignment", 32)
        if type(align) is not int or align < 1 or align & (align - 1):
            raise FileFormatError(f"{path}: the alignment is {align!r}, no power of 2; the file is corrupt")
        start = -(-file.tell() // align) * align
    infos = {r[0]: _described(path, r, start, align) for r in rows}
    if len(infos) != len(rows):
        raise FileFormatError(f"{path}: a tensor's name appears twice; the file is corrupt")
    check_spans(path, [(i.offset, i.offset + i.nbytes, f"tensor {i.name!r}") for i in infos.values()], size)
    return metadata, infos


def _described(path: PathLike, row: tuple[str, tuple[int, ...], int, int], start: int, align: int) -> GGUFTensor:
    name, dims, kind, offset = row
    if offset % align:
        raise FileFormatError(f"{path}: tensor {name!r} lies at {offset}, which is not aligned to {align}")
    if any(d >= 1 << 62 for d in dims):
        raise FileFormatError(f"{path}: tensor {name!r} has the dimensions {dims}; the file is corrupt")
    length = dims[0] if dims else 1  # the fastest axis comes first in the file
    if kind in _PLAIN:
        label, dtype = _PLAIN[kind]
        row_bytes = length * dtype.itemsize
    elif kind in _BLOCKS:
        label, block, block_bytes = _BLOCKS[kind]
        dtype = None
        if length % block:
            raise FileFormatError(f"{path}: tensor {name!r} has rows of {length}, no whole blocks of {block} ({label})")
        row_bytes = length // block * block_bytes
    else:
        raise FileFormatError(f"{path}: tensor {name!r} is of type {kind}, which is not known here")
    nbytes = row_bytes * math.prod(dims[1:])
    return GGUFTensor(name, tuple(reversed(dims)), label, dtype, start + offset, nbytes, row_bytes)


def gguf_load(path: PathLike) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """(metadata, tensors by name) of a GGUF file; tensors are read when they are used or moved.

    A quantised tensor of shape (.., n) comes as uint8 of shape (.., bytes of a row): `gguf_load_metadata` names its
    type.
    Errors: those of `gguf_load_metadata`.
    """
    metadata, infos = gguf_load_metadata(path)
    out = {}
    for name, i in infos.items():
        if i.dtype is not None:
            out[name] = lazy(path, i.offset, i.shape, i.dtype)
        else:
            out[name] = lazy(path, i.offset, (*i.shape[:-1], i.row_bytes), dtypes.uint8)
    return metadata, out
