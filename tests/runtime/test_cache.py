"""The disk cache: several processes, damage, kills and full disks leave whole entries or none."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aril.config import Context
from aril.runtime import cache
from aril.runtime.cache import DiskCache


@pytest.fixture
def store(tmp_path) -> DiskCache:
    return DiskCache(tmp_path / "cache", limit=1 << 20)


def files(store: DiskCache) -> list[Path]:
    return [one for one in Path(store.folder).rglob("*") if one.is_file()]


def test_what_is_put_is_got(store):
    assert store.get("object", "key") is None
    store.put("object", "key", b"data")
    store.put("object", b"bytes key", b"")
    store.put("other", "key", b"of another kind")
    assert store.get("object", "key") == b"data"
    assert store.get("object", b"bytes key") == b""
    assert store.get("other", "key") == b"of another kind"
    assert store.stats()["object"][0] == 2
    assert (store.hits, store.misses) == (3, 1)


def test_a_later_put_replaces(store):
    store.put("object", "key", b"old")
    store.put("object", "key", b"new")
    assert store.get("object", "key") == b"new"
    assert len(files(store)) == 1


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "extend"])
def test_a_damaged_entry_is_dropped(store, damage):
    store.put("object", "key", b"data" * 100)
    (path,) = files(store)
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[200] ^= 1
    content = {"truncate": content[:-1], "empty": b"", "extend": content + b"x"}.get(damage, content)
    path.write_bytes(content)
    assert store.get("object", "key") is None
    assert not path.exists()
    store.put("object", "key", b"data")
    assert store.get("object", "key") == b"data"


def test_its_size_is_bounded_and_the_oldest_go_first(tmp_path):
    store = DiskCache(tmp_path, limit=100_000)
    for number in range(30):
        store.put("object", str(number), bytes(10_000))
        for path in files(store):  # age what is there, in order
            stat = path.stat()
            os.utime(path, (stat.st_atime - 10, stat.st_mtime - 10))
    assert sum(path.stat().st_size for path in files(store)) <= 120_000
    assert store.get("object", "29") is not None
    assert store.get("object", "0") is None
    assert store.trim(30_000) > 0
    assert sum(path.stat().st_size for path in files(store)) <= 30_000


def test_a_read_keeps_an_old_entry_young(tmp_path):
    store = DiskCache(tmp_path)
    store.put("object", "key", b"data")
    (path,) = files(store)
    os.utime(path, (0, time.time() - 10 * cache.TOUCH_S))
    store.get("object", "key")
    assert path.stat().st_mtime > time.time() - 60


def test_clear_drops_everything_that_is_its_own(store):
    store.put("object", "key", b"data")
    foreign = Path(store.folder) / "object" / "notes.txt"
    foreign.write_text("not ours")
    assert store.clear() > 0
    assert store.get("object", "key") is None
    assert foreign.exists()


def test_a_folder_that_cannot_be_written_warns_once(tmp_path, capfd):
    (tmp_path / "file").write_text("in the way")
    store = DiskCache(tmp_path / "file" / "cache")
    store.put("object", "a", b"data")
    store.put("object", "b", b"data")
    assert store.get("object", "a") is None
    assert capfd.readouterr().err.count("ARIL_CACHE") == 1


def test_settings_turn_it_off():
    cache.put("object", "settings test", b"data")
    assert cache.get("object", "settings test") == b"data"
    for off in ({"NOCACHE": 1}, {"CACHELEVEL": 1}):
        with Context(**off):
            assert cache.get("object", "settings test") is None


def test_an_odd_kind_is_refused(store):
    with pytest.raises(ValueError, match="kind"):
        store.put("../escape", "key", b"")


def _hammer(folder: str, seed: int) -> None:
    store = DiskCache(folder, limit=200_000)
    for turn in range(150):
        key = str((turn * 7 + seed) % 20)
        found = store.get("object", key)
        assert found is None or found == key.encode() * 2000, key
        store.put("object", key, key.encode() * 2000)
        if turn % 50 == 49:
            store.trim(20_000)


def test_several_processes_share_it(tmp_path):
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_hammer, args=(str(tmp_path), seed)) for seed in range(4)]
    for one in processes:
        one.start()
    for one in processes:
        one.join()
    assert [one.exitcode for one in processes] == [0] * 4


def test_a_kill_in_the_middle_of_writing_leaves_no_broken_entry(tmp_path):
    code = (
        "import sys; from aril.runtime.cache import DiskCache; s = DiskCache(sys.argv[1])\n"
        "print('go', flush=True)\n"
        "while True:\n  for i in range(10): s.put('object', str(i), bytes([i]) * 3_000_000)"
    )
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
        process.stdout.readline()
        time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        for i in range(10):
            path = Path(DiskCache(tmp_path)._path("object", str(i)))
            present = path.exists()
            found = DiskCache(tmp_path).get("object", str(i))
            assert (found == bytes([i]) * 3_000_000) if present else found is None
    for path in tmp_path.rglob("*.tmp"):
        os.utime(path, (0, time.time() - 2 * cache.STALE_TMP_S))
    DiskCache(tmp_path).trim()
    assert not list(tmp_path.rglob("*.tmp"))
