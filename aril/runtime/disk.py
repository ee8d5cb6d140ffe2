"""The DISK device: files as buffers. `DISK:path` is one file; a buffer is its bytes from the start on, a view any part.

Nothing is read before it is asked for: `_copyout` reads exactly the bytes wanted, `DiskAllocator.map` gives a read-only
window without a copy. What is written appears whole: a new file under its name when it is on the disk, or not at all.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import tempfile
from dataclasses import dataclass, replace
from typing import Any

from aril.device import Allocator, DeviceBase, DeviceError, readable_size

_CHUNK = 1 << 30  # one system call reads at most 2 GiB


@dataclass(frozen=True, slots=True)
class FileBlock:
    """A place in a file: what names memory on this device. `size` is the number of bytes of the whole buffer."""

    path: str
    size: int
    offset: int = 0


class DiskAllocator(Allocator):
    """The bytes of one file. Buffers cost no memory, so none is counted."""

    host_visible = False

    def __init__(self, device: str, path: str) -> None:
        super().__init__(device)
        self.path = path

    def alloc(self, nbytes: int) -> FileBlock:
        if not self.path:
            raise DeviceError("DISK needs a file: write DISK:path/of/the/file")
        return FileBlock(self.path, nbytes)

    def free(self, opaque: Any, nbytes: int) -> None:
        """Nothing is held."""

    def _view(self, opaque: FileBlock, offset_bytes: int) -> FileBlock:
        return replace(opaque, offset=opaque.offset + offset_bytes)

    def _copyout(self, target: memoryview, opaque: FileBlock) -> None:
        """Read into `target`. DeviceError for a file that is missing, or ends before the bytes asked for."""
        handle = _open(opaque.path)
        try:
            done = 0
            while done < target.nbytes:
                part = target[done : done + _CHUNK]
                got = os.preadv(handle, [part], opaque.offset + done)
                if got == 0:
                    raise _short(opaque, target.nbytes, os.fstat(handle).st_size)
                done += got
        finally:
            os.close(handle)

    def _copyin(self, opaque: FileBlock, source: memoryview) -> None:
        """Write `source`. Where all of the file is replaced, or it has to grow, a new file takes its place."""
        end = opaque.offset + source.nbytes
        existing = os.path.getsize(opaque.path) if os.path.exists(opaque.path) else -1
        if existing >= end and source.nbytes < existing:
            handle = os.open(opaque.path, os.O_RDWR | os.O_CLOEXEC)
            try:
                _write(handle, source, opaque.offset)
            finally:
                os.close(handle)
            return
        _replace_file(opaque, source, existing)

    def map(self, opaque: FileBlock, nbytes: int) -> memoryview:
        """A read-only window on the file, which reads pages as they are touched. Errors as `_copyout`."""
        handle = _open(opaque.path)
        try:
            size = os.fstat(handle).st_size
            if opaque.offset + nbytes > size:
                raise _short(opaque, nbytes, size)
            if nbytes == 0:
                return memoryview(b"")
            start = opaque.offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
            skip = opaque.offset - start
            window = mmap.mmap(handle, skip + nbytes, access=mmap.ACCESS_READ, offset=start)
            return memoryview(window)[skip:]
        finally:
            os.close(handle)


def _open(path: str) -> int:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise DeviceError(f"there is no file {path}: write it first, or correct the path") from None
    except OSError as error:
        raise DeviceError(f"cannot read {path}: {error.strerror}") from error
    if os.path.isdir(path):
        os.close(handle)
        raise DeviceError(f"cannot read {path}: it is a folder")
    return handle


def _short(block: FileBlock, nbytes: int, size: int) -> DeviceError:
    return DeviceError(
        f"{block.path} holds {readable_size(size)} ({size} bytes), but bytes {block.offset} to {block.offset + nbytes} "
        "were asked for: the file is incomplete, or it is another file than expected"
    )


def _write(handle: int, source: memoryview, offset: int) -> None:
    done = 0
    while done < source.nbytes:
        done += os.pwrite(handle, source[done : done + _CHUNK], offset + done)


def _replace_file(block: FileBlock, source: memoryview, existing: int) -> None:
    folder, name = os.path.split(block.path)
    try:
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{name}-")
    except OSError as error:
        raise DeviceError(f"cannot write {block.path}: {error.strerror}") from error
    try:
        try:
            whole = block.offset == 0 and source.nbytes >= existing
            if existing > 0 and not whole:
                with open(block.path, "rb") as old, os.fdopen(os.dup(handle), "wb") as new:
                    shutil.copyfileobj(old, new)
            size = max(block.offset + source.nbytes, block.size, 0 if whole else existing)
            os.ftruncate(handle, size)
            _write(handle, source, block.offset)
            os.fsync(handle)
        finally:
            os.close(handle)
        os.chmod(temporary, os.stat(block.path).st_mode & 0o777 if existing >= 0 else 0o666 & ~_umask())
        os.replace(temporary, block.path)
    except OSError as error:
        raise DeviceError(f"cannot write {block.path}: {error.strerror}") from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


class DiskDevice(DeviceBase):
    """One file. It runs no kernels: what is computed from its tensors is computed where they are moved."""

    NAME = "DISK"

    def __init__(self, name: str) -> None:
        path = name.partition(":")[2]
        super().__init__(name, DiskAllocator(name, os.path.abspath(os.path.expanduser(path)) if path else ""))
