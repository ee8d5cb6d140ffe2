"""Files as buffers: lazy reads, views, whole files or none, clear errors."""

from __future__ import annotations

import os

import numpy as np
import pytest

from aril.counters import GlobalCounters
from aril.device import Buffer, Device, DeviceError
from aril.dtype import dtypes


def on_disk(path, size: int, dtype=dtypes.uint8) -> Buffer:
    return Buffer(f"DISK:{path}", size, dtype)


def test_parts_of_a_file_are_read_when_they_are_copied(tmp_path):
    path = tmp_path / "Numbers.bin"
    data = np.arange(100, dtype=np.float32)
    path.write_bytes(b"head" + data.tobytes())
    used = GlobalCounters.mem_used
    part = on_disk(path, 404).view(10, dtypes.float32, 4 + 4 * 20)
    target = Buffer("CPU", 10, dtypes.float32).copy_from(part)
    assert np.frombuffer(target.as_memoryview(), np.float32).tolist() == list(range(20, 30))
    assert GlobalCounters.mem_used - used <= 4096  # the file itself takes no memory
    assert bytes(part.as_memoryview()[:4]) == np.float32(20).tobytes()


def test_a_window_reads_nothing_until_touched_and_cannot_be_written(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(bytes(range(256)) * 100)
    whole = on_disk(path, 25600)
    view = whole.view(300, dtypes.uint8, 5000)
    window = Device[view.device].allocator.map(view.opaque, 300)
    assert bytes(window) == (bytes(range(256)) * 100)[5000:5300] and window.readonly
    with pytest.raises(DeviceError, match="holds 25 KiB"):
        Device[view.device].allocator.map(view.opaque, 30000)


def test_a_missing_or_short_file_is_named(tmp_path):
    path = tmp_path / "none.bin"
    with pytest.raises(DeviceError, match=r"there is no file .*none\.bin"):
        Buffer("CPU", 4, dtypes.uint8).copy_from(on_disk(path, 4))
    path.write_bytes(b"123")
    with pytest.raises(DeviceError, match=r"none\.bin holds 3 B \(3 bytes\), but bytes 0 to 4 were asked for"):
        Buffer("CPU", 4, dtypes.uint8).copy_from(on_disk(path, 4))
    with pytest.raises(DeviceError, match="is a folder|Is a directory"):
        Buffer("CPU", 4, dtypes.uint8).copy_from(on_disk(tmp_path, 4))
    with pytest.raises(DeviceError, match="DISK needs a file"):
        Buffer("DISK", 4, dtypes.uint8).allocate()


def test_a_file_is_written_whole(tmp_path):
    path = tmp_path / "out.bin"
    on_disk(path, 3).copyin(memoryview(b"abc"))
    assert path.read_bytes() == b"abc"
    on_disk(path, 5).copyin(memoryview(b"12345"))
    assert path.read_bytes() == b"12345"
    assert os.listdir(tmp_path) == ["out.bin"]
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask


def test_parts_are_written_in_place_and_a_missing_file_gets_its_full_size(tmp_path):
    path = tmp_path / "out.bin"
    whole = on_disk(path, 8)
    whole.view(2, dtypes.uint8, 6).copyin(memoryview(b"yz"))
    assert path.read_bytes() == bytes(6) + b"yz"
    whole.view(3, dtypes.uint8, 1).copyin(memoryview(b"abc"))
    assert path.read_bytes() == b"\0abc\0\0yz"
    on_disk(path, 12).view(2, dtypes.uint8, 10).copyin(memoryview(b"!!"))
    assert path.read_bytes() == b"\0abc\0\0yz\0\0!!"


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "out.bin"
    path.write_bytes(b"old")

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(DeviceError, match="cannot write .*No space left"):
        on_disk(path, 5).copyin(memoryview(b"12345"))
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["out.bin"]
    with pytest.raises(DeviceError, match="cannot write"):
        on_disk(tmp_path / "no" / "such" / "folder", 1).copyin(memoryview(b"1"))


def test_tensors_of_a_file(tmp_path):
    from aril import Tensor

    path = tmp_path / "t.bin"
    data = np.arange(12, dtype=np.int32)
    path.write_bytes(b"\0" * 7 + data.tobytes())  # not aligned to its elements
    t = Tensor.from_file(f"DISK:{path}", 7, (3, 4), dtypes.int32)
    assert np.array_equal(t.to("CPU").numpy(), data.reshape(3, 4))
    assert np.array_equal((t.to("CPU") + 1).numpy(), data.reshape(3, 4) + 1)
