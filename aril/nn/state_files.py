"""What all file formats of `nn.state` share: the error for a bad file, and pieces of files as lazy tensors.

A file is untrusted until its header is checked: nothing is allocated or read for a tensor before that.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from aril.dtype import DType
from aril.tensor import Tensor

PathLike = str | os.PathLike[str]


class FileFormatError(ValueError):
    """A file that is not what it should be; the message names the file and what is wrong with it."""


def open_file(path: PathLike, what: str) -> Any:
    """A file to read bytes from. Errors: FileNotFoundError that says what should be there."""
    try:
        return open(path, "rb")
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: no such file; give the path of {what}") from None


def lazy(path: PathLike, offset: int, shape: tuple[int, ...], dtype: DType) -> Tensor:
    """Bytes of a file as a tensor on the file's own device: read when they are used or moved."""
    out: Tensor = Tensor.from_file(f"DISK:{os.path.abspath(path)}", offset, shape, dtype)
    return out


def check_spans(path: PathLike, spans: Iterable[tuple[int, int, str]], size: int) -> None:
    """FileFormatError where a (begin, end, name) lies outside of the file's `size` bytes or two of them overlap."""
    at, before = 0, ""
    for begin, end, name in sorted(spans):
        if not 0 <= begin <= end <= size:
            raise FileFormatError(
                f"{path}: {name} lies at bytes {begin} to {end} of a file of {size}; the file is cut short or corrupt"
            )
        if begin < at and end > begin:
            raise FileFormatError(f"{path}: {name} begins at byte {begin}, inside of {before}; the file is corrupt")
        if end > at:
            at, before = end, name


def elements(shape: Iterable[int]) -> int:
    """The number of elements of a shape."""
    return math.prod(shape)


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Any]:
    """A file to write beside `path`; renamed to it when all has been written and has reached the disk."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: there is no directory {path.parent} to write it to")
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the rename itself
    finally:
        os.close(folder)
