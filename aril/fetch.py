"""Files from the network, kept in the cache: `fetch`. Knows nothing of tensors.

In comes a URL; out goes the path of a file that is whole, no larger than allowed, and, where its sha256 was given, the
one that was meant. The network is untrusted: sizes are bounded, names are made safe, redirections do not leave https.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from aril.config import cache_dir

LIMIT = 4 << 30
TIMEOUT_S = 10.0
_PIECE = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,127}")

Progress = Callable[[int, int | None], None]  # bytes so far, bytes in all where the server says


class FetchError(RuntimeError):
    """A file that could not be had, or is not what it should be."""


def fetch(
    url: str,
    *,
    name: str | None = None,
    folder: str = "downloads",
    sha256: str | None = None,
    limit: int = LIMIT,
    gunzip: bool = False,
    insecure: bool = False,
    timeout: float = TIMEOUT_S,
    progress: bool | Progress = False,
) -> Path:
    """The file at `url`, downloaded once into `folder` of the cache (`ARIL_CACHE`); later calls give what is there.

    `name`: its file name (default: the URL's, after a hash of the whole URL). `sha256`: its content's hash in hex, of
    what was downloaded; a file in the cache with another is fetched again. `limit`: the most bytes it may have, before
    and after `gunzip`, which keeps the file unpacked. `insecure` admits plain http. `progress`: True for a line on
    stderr, or a function of (bytes so far, bytes in all or None).
    Errors: FetchError where no file comes, a wrong or too large one, or a URL of another kind; ValueError for names
    that are no plain file names.

    >>> fetch("ftp://example.com/x")
    Traceback (most recent call last):
    aril.fetch.FetchError: fetch: https URLs only (http with insecure=True), not 'ftp://example.com/x'
    """
    if not isinstance(url, str):
        raise TypeError(f"fetch: url is text, not {url!r:.60}")
    schemes = ("https", "http") if insecure else ("https",)
    _admit(url, schemes)
    place = cache_dir() / _plain(folder, "folder")
    key = hashlib.sha256(f"{url} {gunzip}".encode()).hexdigest()[:16]
    path = place / (_plain(name, "name") if name is not None else f"{key}-{_name_in(url)}")
    note = path.with_name(f"{path.name}.sha256")  # the hash of what was downloaded, beside what was made of it
    if path.is_file() and (sha256 is None or _noted(note) == sha256.lower()):
        return path
    place.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=place, prefix=".fetch-")
    try:
        with os.fdopen(handle, "w+b") as file:
            digest = hashlib.sha256()
            for piece in pieces(url, limit, timeout, schemes, _shown(url) if progress is True else progress or None):
                digest.update(piece)
                file.write(piece)
            found = digest.hexdigest()
            if sha256 is not None and found != sha256.lower():
                raise FetchError(f"fetch: {url} has sha256 {found}, expected {sha256.lower()}")
            if gunzip:
                _unpack(file, limit, url)
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)
    note.write_text(found)
    return path


def pieces(
    url: str, limit: int, timeout: float, schemes: tuple[str, ...] = ("https",), progress: Progress | None = None
) -> Iterator[bytes]:
    """The body at `url`, piece by piece. Errors: FetchError for no answer, an end too early, or more than `limit`."""
    _admit(url, schemes)
    opener = urllib.request.build_opener(_Redirects(schemes))
    try:
        with opener.open(urllib.request.Request(url, headers={"User-Agent": "aril"}), timeout=timeout) as answer:
            text = answer.headers.get("Content-Length", "")
            total = int(text) if text.isdigit() else None
            if total is not None and total > limit:
                raise FetchError(f"fetch: {url} has {total} bytes, more than the limit of {limit}")
            done = 0
            while piece := answer.read(_PIECE):
                done += len(piece)
                if done > limit:
                    raise FetchError(f"fetch: {url} has more than the limit of {limit} bytes")
                if progress is not None:
                    progress(done, total)
                yield piece
    except urllib.error.URLError as error:
        raise FetchError(f"fetch: no answer from {url} ({getattr(error, 'reason', error)})") from None
    except (OSError, ValueError) as error:  # a broken connection, a timeout, a malformed answer
        raise FetchError(f"fetch: {url} broke off ({error})") from None
    if total is not None and done != total:
        raise FetchError(f"fetch: {url} ended after {done} of {total} bytes")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Redirections stay with the schemes that are admitted."""

    def __init__(self, schemes: tuple[str, ...]) -> None:
        self.schemes = schemes

    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: str) -> Any:
        _admit(newurl, self.schemes)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _admit(url: str, schemes: tuple[str, ...]) -> None:
    parts = urlsplit(url)
    if parts.scheme not in schemes or not parts.hostname:
        raise FetchError(f"fetch: https URLs only (http with insecure=True), not {url!r}")


def _plain(name: str, what: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"fetch: {what} is letters, digits and . _ + -, not {name!r}")
    return name


def _name_in(url: str) -> str:
    last = unquote(urlsplit(url).path).rpartition("/")[2]
    return re.sub(r"[^A-Za-z0-9._+-]", "_", last).lstrip(".")[-64:] or "file"


def _noted(note: Path) -> str:
    try:
        return note.read_text().strip()
    except OSError:
        return ""


def _unpack(file: IO[bytes], limit: int, url: str) -> None:
    """The gzip file in `file`, unpacked in place."""
    file.seek(0)
    try:
        with tempfile.TemporaryFile() as packed:
            while piece := file.read(_PIECE):
                packed.write(piece)
            packed.seek(0)
            file.seek(0)
            file.truncate()
            done = 0
            with gzip.GzipFile(fileobj=packed) as content:
                while piece := content.read(_PIECE):
                    done += len(piece)
                    if done > limit:
                        raise FetchError(f"fetch: {url} unpacks to more than the limit of {limit} bytes")
                    file.write(piece)
    except (gzip.BadGzipFile, EOFError) as error:
        raise FetchError(f"fetch: {url} is no whole gzip file ({error})") from None


def _shown(url: str) -> Progress:
    def show(done: int, total: int | None) -> None:
        part = f"{100 * done // total:3d}%" if total else ""
        end = "\n" if done == total else ""
        print(f"\r{_name_in(url)} {done / 1e6:.1f} MB {part}", end=end, file=sys.stderr, flush=True)

    return show


__all__ = ["FetchError", "fetch"]
