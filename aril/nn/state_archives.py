"""Members of zip and tar archives and NumPy's files as tensors, read from the file when they are used.

Formats: PKWARE's APPNOTE (zip), POSIX pax (tar), and for npy
https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html.
"""

from __future__ import annotations

import ast
import io
import math
import os
import re
import tarfile
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aril.dtype import DType, dtypes, to_dtype
from aril.nn.state_files import FileFormatError, PathLike, check_spans, lazy, open_file, whole_file
from aril.tensor import Tensor

INFLATE_LIMIT = 1 << 32  # bytes that the compressed members of one archive may take together
_NPY_HEADER_LIMIT = 1 << 16


@dataclass(frozen=True, slots=True)
class Member:
    """A file in a zip archive: `packed` bytes at `offset`, `size` when unpacked."""

    name: str
    offset: int
    packed: int
    size: int
    method: int
    crc: int

    @property
    def stored(self) -> bool:
        """Whether its bytes lie in the archive as they are."""
        return self.method == zipfile.ZIP_STORED

    @property
    def how(self) -> str:
        """In words."""
        return "stored" if self.stored else f"compressed by method {self.method}"

    def read(self, file: Any, limit: int) -> bytes:
        """Its bytes, unpacked and checked. FileFormatError for more than `limit`, or other bytes than were packed."""
        if self.size > limit:
            raise FileFormatError(f"member {self.name!r} takes {self.size} bytes; at most {limit} are read")
        file.seek(self.offset)
        raw: bytes = file.read(self.packed)
        if not self.stored:
            try:
                raw = zlib.decompressobj(-15).decompress(raw, self.size + 1)
            except zlib.error as error:
                raise FileFormatError(f"member {self.name!r} does not unpack ({error})") from None
        if len(raw) != self.size or zlib.crc32(raw) != self.crc:
            raise FileFormatError(f"member {self.name!r} is not what the archive says it is; the file is corrupt")
        return raw


def zip_members(path: PathLike, file: Any) -> list[Member]:
    """The files of a zip archive, their places checked against the archive's size and each other.

    Errors: FileFormatError for a broken archive, encrypted members, and methods other than storing and deflation.
    """
    size = os.fstat(file.fileno()).st_size
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError) as error:
        raise FileFormatError(f"{path}: no zip archive, or cut short ({error})") from None
    out = []
    for entry in entries:
        name = entry.filename
        if not name or entry.header_offset < 0:
            raise FileFormatError(f"{path}: a member has {'no place' if name else 'no name'}; the archive is corrupt")
        if entry.is_dir():
            continue
        if entry.flag_bits & 1 or entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            how = "encrypted" if entry.flag_bits & 1 else f"compressed by method {entry.compress_type}"
            raise FileFormatError(f"{path}: member {name!r} is {how}; store or deflate it")
        file.seek(entry.header_offset)
        local = file.read(30)
        if len(local) < 30 or local[:4] != b"PK\x03\x04":
            raise FileFormatError(f"{path}: member {name!r} has no header at byte {entry.header_offset}; it is corrupt")
        offset = (
            entry.header_offset + 30 + int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")
        )
        if entry.compress_type == zipfile.ZIP_STORED and entry.compress_size != entry.file_size:
            raise FileFormatError(
                f"{path}: member {name!r} is stored in {entry.compress_size} bytes of {entry.file_size}"
            )
        out.append(Member(name, offset, entry.compress_size, entry.file_size, entry.compress_type, entry.CRC))
    if len({m.name for m in out}) != len(out):
        raise FileFormatError(f"{path}: two members have one name; the archive is corrupt")
    check_spans(path, [(m.offset, m.offset + m.packed, f"member {m.name!r}") for m in out], size)
    return out


def zip_extract(path: PathLike) -> dict[str, Tensor]:
    """The files of a zip archive by name, as vectors of uint8. Stored ones are read when they are used; deflated ones
    are unpacked now (at most 4 GiB of them).

    Errors: FileNotFoundError, or FileFormatError for broken, encrypted and otherwise compressed archives.
    """
    out, left = {}, INFLATE_LIMIT
    with open_file(path, "a zip archive") as file:
        for m in zip_members(path, file):
            if m.stored:
                out[m.name] = lazy(path, m.offset, (m.size,), dtypes.uint8)
            else:
                out[m.name] = Tensor(_unpacked(path, m, file, left))
                left -= m.size
    return out


def _unpacked(path: PathLike, member: Member, file: Any, limit: int) -> bytes:
    try:
        return member.read(file, limit)
    except FileFormatError as error:
        raise FileFormatError(f"{path}: {error}") from None


def tar_extract(path: PathLike) -> dict[str, Tensor]:
    """The regular files of an uncompressed tar archive by name, as vectors of uint8 that are read when they are used.

    Errors: FileNotFoundError, or FileFormatError for broken and compressed archives, and for sparse members.
    """
    with open_file(path, "a tar archive") as file:
        size = os.fstat(file.fileno()).st_size
        try:
            with tarfile.open(fileobj=file, mode="r:") as archive:
                entries = [m for m in archive.getmembers() if m.isreg()]
        except (tarfile.TarError, ValueError, OverflowError, EOFError) as error:
            raise FileFormatError(
                f"{path}: no tar archive, or cut short ({error}); unpack it first if it is compressed"
            ) from None
    if any(m.issparse() for m in entries):
        raise FileFormatError(f"{path}: has sparse members, which do not lie in the archive in one piece")
    check_spans(path, [(m.offset_data, m.offset_data + m.size, f"member {m.name!r}") for m in entries], size)
    return {m.name: lazy(path, m.offset_data, (m.size,), dtypes.uint8) for m in entries}


# --- npy and npz ---


def npy_load(path: PathLike) -> Tensor:
    """The array of an `.npy` file, read when it is used; one in column-major order is lazy on the default device.

    Errors: FileNotFoundError, or FileFormatError for files that are cut short, hold more than they say, or hold
    objects.

    >>> np.save(folder / "x.npy", [[1, 2]])
    >>> npy_load(folder / "x.npy").tolist()
    [[1, 2]]
    """
    with open_file(path, "an .npy file") as file:
        size = os.fstat(file.fileno()).st_size
        dtype, shape, columns, swapped, start = _npy_header(f"{path}", file, size)
    if swapped:
        return _swapped(Path(path).read_bytes()[start:], dtype, shape, columns)
    return _array(lazy(path, start, (math.prod(shape),), dtype), shape, columns)


def npz_load(path: PathLike) -> dict[str, Tensor]:
    """The arrays of an `.npz` file by name: stored ones as `npy_load`, compressed ones unpacked now.

    Errors: those of `npy_load` and `zip_extract`.

    >>> np.savez(folder / "x.npz", a=[1, 2])
    >>> npz_load(folder / "x.npz")["a"].tolist()
    [1, 2]
    """
    out, left = {}, INFLATE_LIMIT
    with open_file(path, "an .npz file") as file:
        for m in zip_members(path, file):
            if not m.name.endswith(".npy"):
                raise FileFormatError(f"{path}: member {m.name!r} is no .npy file; use zip_extract for other archives")
            where, name = f"{path}: {m.name}", m.name[: -len(".npy")]
            if m.stored:
                file.seek(m.offset)
                dtype, shape, columns, swapped, start = _npy_header(where, file, m.size)
                if not swapped:
                    flat = lazy(path, m.offset + start, (math.prod(shape),), dtype)
                    out[name] = _array(flat, shape, columns)
                    continue
            raw = _unpacked(path, m, file, left)
            left -= m.size
            dtype, shape, columns, swapped, start = _npy_header(where, io.BytesIO(raw), m.size)
            if swapped:
                out[name] = _swapped(raw[start:], dtype, shape, columns)
            else:
                out[name] = _array(Tensor(raw[start:], dtype=dtype), shape, columns)
    return out


def _npy_header(where: str, file: Any, size: int) -> tuple[DType, tuple[int, ...], bool, bool, int]:
    """(dtype, shape, whether columns come first, whether bytes are swapped, where the data begins)."""

    def refuse(why: str) -> FileFormatError:
        return FileFormatError(f"{where}: {why}; the file is corrupt or no .npy file")

    start = file.read(8)
    if start[:6] != b"\x93NUMPY" or len(start) < 8 or start[6] not in (1, 2, 3):
        raise refuse("it does not begin as one")
    width = 2 if start[6] == 1 else 4
    length = int.from_bytes(file.read(width), "little")
    if length > min(_NPY_HEADER_LIMIT, size):
        raise refuse(f"its header of {length} bytes is too long")
    raw = file.read(length)
    begin = 8 + width + length
    try:
        header = ast.literal_eval(raw.decode("utf-8" if start[6] == 3 else "latin1").strip())
        kind, columns, shape = header["descr"], header["fortran_order"], header["shape"]
    except (ValueError, SyntaxError, KeyError, TypeError, MemoryError, RecursionError) as error:
        raise refuse(f"its header is not readable ({type(error).__name__})") from None
    if (
        not isinstance(kind, str)
        or not re.fullmatch(r"[<>|=][biuf][1248]", kind)
        or kind[1:] in ("f1", "b2", "b4", "b8")
    ):
        raise refuse(f"it holds {kind!r}, where only numbers and bools are read")
    if not isinstance(shape, tuple) or not all(type(n) is int and 0 <= n < 1 << 62 for n in shape) or len(shape) > 64:
        raise refuse(f"its shape is {shape!r}")
    names = {
        "b": "bool",
        "i": f"int{8 * int(kind[2])}",
        "u": f"uint{8 * int(kind[2])}",
        "f": f"float{8 * int(kind[2])}",
    }
    dtype = to_dtype(names[kind[1]])
    if begin + math.prod(shape) * dtype.itemsize != size:
        raise refuse(f"{shape} of {dtype.name} from byte {begin} on does not end with the file, at {size}")
    return dtype, shape, bool(columns), kind[0] == ">" and dtype.itemsize > 1, begin


def _array(flat: Tensor, shape: tuple[int, ...], columns: bool) -> Tensor:
    if not columns or len([n for n in shape if n != 1]) < 2:
        return flat.reshape(*shape)
    order = tuple(reversed(range(len(shape))))
    return flat.to(None).reshape(*reversed(shape)).permute(*order)


def _swapped(raw: bytes, dtype: DType, shape: tuple[int, ...], columns: bool) -> Tensor:
    import numpy as np

    native = np.frombuffer(raw, np.dtype(dtype.name).newbyteorder(">")).astype(dtype.name)
    return _array(Tensor(native), shape, columns)


def npy_save(tensor: Tensor, path: PathLike) -> None:
    """Write a tensor as an `.npy` file, which appears when it is whole, or not at all. bfloat16 and fp8 as float32.

    >>> npy_save(Tensor([[1, 2]]), folder / "x.npy")
    >>> np.load(folder / "x.npy").tolist()
    [[1, 2]]
    """
    import numpy as np

    with whole_file(Path(path)) as file:
        np.lib.format.write_array(file, np.asarray(tensor), allow_pickle=False)


def npz_save(tensors: Mapping[str, Tensor], path: PathLike) -> None:
    """Write tensors by name as an `.npz` file (stored, not compressed, so that it can be read in parts).

    >>> npz_save({"a": Tensor([1, 2])}, folder / "x.npz")
    >>> np.load(folder / "x.npz")["a"].tolist()
    [1, 2]
    """
    import numpy as np

    with whole_file(Path(path)) as file, zipfile.ZipFile(file, "w") as archive:
        for name, t in tensors.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(t), allow_pickle=False)
