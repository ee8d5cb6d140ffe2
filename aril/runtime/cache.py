"""The cache on disk: bytes found again by what they were made from. In come a kind and a key; out go bytes, or None.

One file an entry, written aside and renamed into place, so that several processes may share it and a kill at any moment
leaves whole entries only. What does not check out is dropped and made again.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from hashlib import blake2b
from pathlib import Path

from aril.config import CACHE_LIMIT, CACHELEVEL, NOCACHE, cache_dir

MAGIC = b"arilc1\r\n"  # a change of the format changes the magic: old entries are then made again
HEAD = len(MAGIC) + 16 + 8
STALE_TMP_S = 3600.0  # a temporary file this old belongs to nobody
TOUCH_S = 3600.0  # reads mark an entry as used at most this often: a write costs more than the lookup


class DiskCache:
    """A folder of checksummed entries, bounded in size, the ones unused longest dropped first."""

    def __init__(self, folder: Path | str, limit: int | None = None) -> None:
        self.folder = os.fspath(folder)
        self._limit = limit
        self._written = 0
        self._counted = False
        self._broken = False
        self.hits = self.misses = 0

    @property
    def limit(self) -> int:
        """The most bytes it may hold."""
        return CACHE_LIMIT.value if self._limit is None else self._limit

    def _path(self, kind: str, key: str | bytes) -> str:
        if not kind.isidentifier():
            raise ValueError(f"a kind of cache entries is a word such as 'object', not {kind!r}")
        name = blake2b(key.encode() if isinstance(key, str) else key, digest_size=20).hexdigest()
        return f"{self.folder}/{kind}/{name[:2]}/{name[2:]}"

    def get(self, kind: str, key: str | bytes) -> bytes | None:
        """The bytes put under `kind` and `key`, or None if there are none, or they no longer check out."""
        path = self._path(kind, key)
        try:
            with open(path, "rb", buffering=0) as file:
                content = file.readall()
                if time.time() - os.fstat(file.fileno()).st_mtime > TOUCH_S:
                    with contextlib.suppress(OSError):
                        os.utime(path)
        except OSError:
            self.misses += 1
            return None
        data = _unpack(content)
        if data is None:
            with contextlib.suppress(OSError):
                os.unlink(path)
            self.misses += 1
            return None
        self.hits += 1
        return data

    def put(self, kind: str, key: str | bytes, data: bytes) -> None:
        """Keep `data` under `kind` and `key`. Where the folder cannot be written: one warning, and nothing is kept."""
        if self._broken or len(data) + HEAD > self.limit:
            return
        path = self._path(kind, key)
        tmp = f"{path}.{os.getpid()}.{time.monotonic_ns()}.tmp"
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            try:
                with open(tmp, "wb", buffering=0) as file:
                    _write_all(file.fileno(), _pack(data))
                os.replace(tmp, path)
            except BaseException:  # Ctrl-C too
                with contextlib.suppress(OSError):
                    os.unlink(tmp)
                raise
        except OSError as error:
            self._broken = True
            print(
                f"aril: nothing is kept in {self.folder} ({error.strerror or error}); set ARIL_CACHE to a folder "
                "that can be written, or NOCACHE=1",
                file=sys.stderr,
            )
            return
        self._written += len(data) + HEAD
        # A count of all files costs milliseconds: once a process, then whenever a sixteenth of the limit is new.
        if not self._counted or self._written > self.limit // 16:
            self._counted, self._written = True, 0
            self.trim()

    def _entries(self) -> list[tuple[float, int, str, str]]:
        """(last use, bytes, kind, path) of every file below the folder."""
        found = []
        try:
            kinds = [one for one in os.scandir(self.folder) if one.is_dir(follow_symlinks=False)]
        except OSError:
            return []
        for kind in kinds:
            with contextlib.suppress(OSError):
                for group in os.scandir(kind.path):
                    # Nothing else in the folder is ours to count or delete.
                    if len(group.name) != 2 or not group.is_dir(follow_symlinks=False):
                        continue
                    for file in os.scandir(group.path):
                        with contextlib.suppress(OSError):  # another process may have dropped it
                            stat = file.stat(follow_symlinks=False)
                            found.append((stat.st_mtime, stat.st_size, kind.name, file.path))
        return found

    def trim(self, limit: int | None = None) -> int:
        """Drop the entries unused longest until at most `limit` bytes are left; the number of bytes dropped."""
        limit = self.limit if limit is None else limit
        entries = self._entries()
        total = sum(size for _, size, _, _ in entries)
        now, freed = time.time(), 0
        # Down to nine tenths, so that the next writes do not each trim again.
        goal = total if total <= limit else limit * 9 // 10
        for used, size, _, path in sorted(entries):
            if total - freed > goal or (path.endswith(".tmp") and now - used > STALE_TMP_S):
                with contextlib.suppress(OSError):
                    os.unlink(path)
                    freed += size
        return freed

    def clear(self) -> int:
        """Drop every entry; the number of bytes dropped."""
        freed = 0
        for _, size, _, path in self._entries():
            with contextlib.suppress(OSError):
                os.unlink(path)
                freed += size
        return freed

    def stats(self) -> dict[str, tuple[int, int]]:
        """Number of entries and bytes of each kind."""
        result: dict[str, tuple[int, int]] = {}
        for _, size, kind, path in self._entries():
            if not path.endswith(".tmp"):
                count, total = result.get(kind, (0, 0))
                result[kind] = (count + 1, total + size)
        return result


def _pack(data: bytes) -> bytes:
    return b"".join((MAGIC, blake2b(data, digest_size=16).digest(), len(data).to_bytes(8, "little"), data))


def _unpack(content: bytes) -> bytes | None:
    data = content[HEAD:]
    if content[: len(MAGIC)] != MAGIC or int.from_bytes(content[HEAD - 8 : HEAD], "little") != len(data):
        return None
    good = blake2b(data, digest_size=16).digest() == content[len(MAGIC) : HEAD - 8]
    return data if good else None


def _write_all(file: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]


_by_folder: dict[str, DiskCache] = {}


def disk_cache() -> DiskCache:
    """The cache the settings name (`ARIL_CACHE`)."""
    folder = os.fspath(cache_dir())
    return _by_folder.get(folder) or _by_folder.setdefault(folder, DiskCache(folder))


def cache_enabled() -> bool:
    """Whether the settings allow the disk cache (`CACHELEVEL`, `NOCACHE`)."""
    return CACHELEVEL.value >= 2 and not NOCACHE.value


def get(kind: str, key: str | bytes) -> bytes | None:
    """`DiskCache.get` of the cache the settings name; None when they turn it off."""
    return disk_cache().get(kind, key) if cache_enabled() else None


def put(kind: str, key: str | bytes, data: bytes) -> None:
    """`DiskCache.put` of the cache the settings name; nothing when they turn it off."""
    if cache_enabled():
        disk_cache().put(kind, key, data)
