"""Files from the network, from a server on this machine: kept, checked, bounded."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import threading
from collections.abc import Iterator

import pytest

from aril import Context, Tensor, fetch
from aril.fetch import FetchError

BODY = bytes(range(256)) * 40
SHA = hashlib.sha256(BODY).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    asked: list[str] = []

    def do_GET(self):
        self.asked.append(self.path)
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "ftp://example.com/x")
            self.end_headers()
            return
        if self.path == "/missing":
            self.send_error(404)
            return
        body = gzip.compress(BODY) if self.path.endswith(".gz") else BODY
        body = gzip.compress(bytes(1 << 20)) if self.path == "/bomb.gz" else body
        self.send_response(200)
        if self.path != "/endless":
            self.send_header("Content-Length", str(len(body) + (5 if self.path == "/short" else 0)))
        self.end_headers()
        for _ in range(50 if self.path == "/endless" else 1):
            self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def server(tmp_path) -> Iterator[str]:
    Handler.asked = []
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    with Context(ARIL_CACHE=str(tmp_path)):
        yield f"http://127.0.0.1:{made.server_port}"
    made.shutdown()
    made.server_close()
    thread.join()


def test_a_file_is_fetched_once_and_lies_in_the_cache(server, tmp_path):
    seen = []
    path = fetch(f"{server}/a/data.bin?x=1", sha256=SHA.upper(), insecure=True, progress=lambda *at: seen.append(at))
    assert path.read_bytes() == BODY and path.parent == tmp_path / "downloads" and path.name.endswith("-data.bin")
    assert fetch(f"{server}/a/data.bin?x=1", sha256=SHA, insecure=True) == path and len(Handler.asked) == 1
    assert seen == [(len(BODY), len(BODY))]
    other = fetch(f"{server}/a/data.bin?x=2", name="mine.bin", folder="models", insecure=True)
    assert other == tmp_path / "models" / "mine.bin" and len(Handler.asked) == 2


def test_unpacked_on_the_way(server):
    packed = hashlib.sha256(gzip.compress(BODY)).hexdigest()
    path = fetch(f"{server}/b.gz", gunzip=True, insecure=True)
    assert path.read_bytes() == BODY and fetch(f"{server}/b.gz", insecure=True) != path
    with pytest.raises(FetchError, match="no whole gzip file"):
        fetch(f"{server}/plain", gunzip=True, insecure=True)
    assert len(packed) == 64


@pytest.mark.parametrize(
    ("path", "more", "message"),
    [
        ("/x", {"sha256": "0" * 64}, f"has sha256 {SHA}, expected 0000"),
        ("/x", {"limit": 100}, "has 10240 bytes, more than the limit of 100"),
        ("/endless", {"limit": 100_000}, "has more than the limit of 100000 bytes"),
        ("/bomb.gz", {"limit": 20_000, "gunzip": True}, "unpacks to more than the limit"),
        ("/short", {}, "broke off|ended after"),
        ("/missing", {}, "no answer"),
        ("/moved", {}, "https URLs only"),
        ("/x", {"insecure": False}, "https URLs only"),
    ],
)
def test_what_is_wrong_leaves_nothing_behind(server, tmp_path, path, more, message):
    with pytest.raises(FetchError, match=message):
        fetch(server + path, **{"insecure": True, **more})
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


@pytest.mark.parametrize("url", ["file:///etc/passwd", "https://", "nonsense", "ftp://host/x"])
def test_other_urls_are_refused(url, server):
    with pytest.raises(FetchError, match="https URLs only"):
        fetch(url, insecure=True)


@pytest.mark.parametrize("name", ["../x", "/etc/x", "", ".hidden", "a/b", "a\0b", "x" * 200])
def test_names_are_plain(name, server):
    with pytest.raises(ValueError, match="letters, digits"):
        fetch(f"{server}/x", name=name, insecure=True)
    with pytest.raises(ValueError, match="letters, digits"):
        fetch(f"{server}/x", folder=name, insecure=True)


def test_nobody_there(server):
    with pytest.raises(FetchError, match="no answer"):
        fetch("http://127.0.0.1:9/x", insecure=True, timeout=2)


def test_a_tensor_of_what_is_there(server):
    t = Tensor.from_url(f"{server}/t.bin", insecure=True)
    assert t.device.startswith("DISK:") and t.shape == (len(BODY),)
    assert t[5:8].tolist() == [5, 6, 7] and (t[:4] + 1).tolist() == [1, 2, 3, 4]
