"""Formats of other libraries by hand: PyTorch's pickles, zip, tar, npy, npz and GGUF, whole, corrupt and hostile."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import pickletools
import resource
import struct
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections import OrderedDict

import numpy as np
import pytest

from aril import Tensor, dtypes
from aril.nn.state import (
    FileFormatError,
    gguf_load,
    gguf_load_metadata,
    npy_load,
    npy_save,
    npz_load,
    npz_save,
    safe_load,
    tar_extract,
    torch_load,
    zip_extract,
)
from aril.nn.state_pickle import Name, RefusedPickle, ordered_dict, read_pickle

# --- pickles as data ---

NAMES = {"collections OrderedDict": Name("collections.OrderedDict", ordered_dict)}


def read(raw: bytes, names=NAMES):
    return read_pickle(io.BytesIO(raw), names)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_data_comes_as_the_pickle_module_reads_it(protocol):
    shared = [1, 2]
    data = {
        "numbers": [0, 1, 255, 256, 65535, 65536, -1, 2**31, -(2**63), 2**200, 1.5, float("inf")],
        "text": ["", "a", "é" * 300], "bytes": b"\x00\xff" if protocol >= 3 else b"",
        "nested": {"t": (), "t1": (1,), "t4": (1, 2, 3, 4), 5: None, (1, "k"): [True, False]},
        "again": [shared, shared], "ordered": OrderedDict([("b", 1), ("a", 2)]),
    }  # fmt: skip
    if protocol < 3:
        del data["bytes"]  # built there by a call into a codec
    if protocol >= 4:
        data["sets"] = [{1, 2}, frozenset({"x"}), set()]
    got = read(pickle.dumps(data, protocol))
    assert got == data and list(got["ordered"]) == ["b", "a"]
    assert got["again"][0] is got["again"][1]


class Evil:
    def __init__(self, function, *args):
        self.call = (function, args)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("function", [os.system, eval, exec, getattr, __import__, subprocess.Popen, open, print])
def test_calls_are_refused_by_name(function, protocol):
    raw = pickle.dumps({"x": Evil(function, "echo hacked > /tmp/hacked")}, protocol)
    with pytest.raises(RefusedPickle, match=f"it names .*{function.__name__}"):
        read(raw)


class Plain:
    pass


def raw_pickle(*parts: bytes) -> bytes:
    return b"\x80\x02" + b"".join(parts) + b"."


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (raw_pickle(b"ccollections\nOrderedDict\n"), "no data"),
        (raw_pickle(b"ccollections\nOrderedDict\n", b"]", b"R"), "cannot be called"),  # arguments that are no tuple
        (raw_pickle(b"K\x01", b")", b"R"), "calls int"),
        (raw_pickle(b"]", b"}", b"b"), "attributes of a list"),
        (raw_pickle(b"(ios\nsystem\n"), "opcode INST"),
        (raw_pickle(b"(cos\nsystem\n"), "names os.system"),
        (raw_pickle(b"\x82\x01"), "opcode EXT1"),
        (raw_pickle(b"X\x02\x00\x00\x00os", b"X\x06\x00\x00\x00system", b"\x93"), "names os.system"),
        (raw_pickle(b"}", b")", b"\x85", b"\x85", b"K\x01", b"s"), "as a key"),
        (raw_pickle(b"K\x01", b"Q"), "outside"),
    ],
)
def test_other_doors_are_shut(raw, why):
    with pytest.raises(RefusedPickle, match=why):
        read(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"\x80", b"\x80\x02", b"\x80\x02K", b"\x80\x02.", b"\x80\x02K\x01K\x02.", b"\x80\x02h\x05.", b"\x80\x02a.",
        b"\x80\x02X\xff\xff\xff\x7fabc.", b"\x80\x02\x85.", b"\x80\x02e.", b"\x80\x02](a.", b"\x80\x02}(K\x01u.",
        b"\x80\x02K\x01K\x02a.", b"\x80\x02\x8a\xff\x00.", b"\x80\x02t.", b"\xff" * 50, b"(((((.", b"\x80\x02q\x01.",
    ],
)  # fmt: skip
def test_streams_that_make_no_sense(raw):
    with pytest.raises(ValueError, match="makes no sense"):
        read(raw)


def test_every_prefix_and_many_flipped_bits_are_errors_or_data():
    raw = pickle.dumps({"a": [1, 2.5, "text", (1, (2, 3))], "b": OrderedDict(x=1)}, 2)
    rng = np.random.default_rng(0)
    for cut in range(len(raw)):
        with pytest.raises(ValueError):
            read(raw[:cut])
    for _ in range(500):
        bad = bytearray(raw)
        for _ in range(rng.integers(1, 4)):
            bad[rng.integers(len(bad))] = rng.integers(256)
        with contextlib.suppress(ValueError):  # RefusedPickle is one
            read(bytes(bad))


def test_deep_nesting_does_not_recurse():
    n = 50_000
    got = read(b"\x80\x02" + b"]" * n + b"a" * (n - 1) + b".")
    assert isinstance(got, list)
    while got:  # taken apart from the outside
        got = got[0]


# --- .pt files made by hand: those of PyTorch itself are in tests/peers ---


class Storage:
    """Pickles as PyTorch's persistent ids do."""

    def __init__(self, key, kind, count):
        self.pid = ("storage", Marker(kind), key, "cpu", count)


class Marker:
    def __init__(self, name):
        self.name = name


class Call:
    def __init__(self, module, name, *args):
        self.module, self.name, self.args = module, name, args


def dump(thing) -> bytes:
    """A pickle of containers, numbers, `Call`, `Marker` and `Storage`, written opcode by opcode."""

    def put(x) -> bytes:
        if isinstance(x, Storage):
            return put(x.pid) + b"Q"
        if isinstance(x, Marker):
            return b"c" + x.name.replace(" ", "\n").encode() + b"\n"
        if isinstance(x, Call):
            return f"c{x.module}\n{x.name}\n".encode() + put(tuple(x.args)) + b"R"
        if isinstance(x, dict):
            return b"}(" + b"".join(put(k) + put(v) for k, v in x.items()) + b"u"
        if isinstance(x, tuple):
            return b"(" + b"".join(put(v) for v in x) + b"t"
        if isinstance(x, list):
            return b"](" + b"".join(put(v) for v in x) + b"e"
        raw = pickle.dumps(x, 2)
        return b"".join(bytes(raw[a:b]) for op, a, b in ops(raw) if op not in ("PROTO", "STOP", "BINPUT"))

    def ops(raw):
        found = [(o.name, p) for o, _, p in pickletools.genops(raw)] + [("", len(raw))]
        return [(name, a, b) for (name, a), (_, b) in zip(found, found[1:], strict=False)]

    return b"\x80\x02" + put(thing) + b"."


def tensor(key="0", count=6, offset=0, shape=(2, 3), strides=(3, 1), kind="torch FloatStorage"):
    return Call("torch._utils", "_rebuild_tensor_v2", Storage(key, kind, count), offset, shape, strides, False, {})


def zip_file(path, thing, storages, prefix="model/", **more):
    with zipfile.ZipFile(path, "w", more.pop("method", zipfile.ZIP_STORED)) as archive:
        archive.writestr(prefix + "data.pkl", thing if isinstance(thing, bytes) else dump(thing))
        archive.writestr(prefix + "byteorder", more.get("order", "little"))
        for key, values in storages.items():
            archive.writestr(f"{prefix}data/{key}", np.asarray(values).tobytes())
    return path


DATA = np.arange(6, dtype=np.float32)


def test_a_file_with_shared_and_strided_storage(tmp_path):
    path = zip_file(
        tmp_path / "m.pt",
        {
            "plain": tensor(), "columns": tensor(shape=(3, 2), strides=(1, 3)),
            "part": tensor(offset=4, shape=(2,), strides=(1,)), "gaps": tensor(shape=(3,), strides=(2,)),
            "same": tensor(shape=(2, 3), strides=(0, 1)), "scalar": tensor(offset=5, shape=(), strides=()),
            "none": tensor(offset=6, shape=(0, 2), strides=(2, 1)), "step": 7, "names": ["a", None],
            "parameter": Call("torch._utils", "_rebuild_parameter", tensor(), True, {}),
            "half": Call("torch._utils", "_rebuild_tensor_v3", Storage("1", "torch.storage UntypedStorage", 4),
                         0, (2,), (1,), False, {}, Marker("torch uint16"), False),
        },
        {"0": DATA, "1": np.array([1, 65535], np.uint16)},
    )  # fmt: skip
    got = torch_load(path)
    square = DATA.reshape(2, 3)
    expected = {
        "plain": square, "columns": square.T, "part": DATA[4:], "gaps": DATA[::2], "same": np.stack([DATA[:3]] * 2),
        "scalar": DATA[5], "none": np.zeros((0, 2), np.float32), "parameter": square,
        "half": np.array([1, 65535], np.uint16),
    }  # fmt: skip
    assert got["plain"].device == f"DISK:{path}" and got["step"] == 7 and got["names"] == ["a", None]
    for name, values in expected.items():
        there = got[name].to("CPU")
        assert there.shape == values.shape and there.dtype.name == values.dtype
        np.testing.assert_array_equal(there.numpy(), values)
        np.testing.assert_array_equal((there + there).numpy(), values + values)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda p: zip_file(p, {"x": tensor(count=7)}, {"0": DATA}), "storage '0' of 28 bytes is 24 bytes"),
        (lambda p: zip_file(p, {"x": tensor("1")}, {"0": DATA}), "is missing"),
        (lambda p: zip_file(p, {"x": tensor(shape=(3, 3))}, {"0": DATA}), "takes elements 0 to 9"),
        (lambda p: zip_file(p, {"x": tensor(offset=1)}, {"0": DATA}), "takes elements 1 to 7"),
        (lambda p: zip_file(p, {"x": tensor(strides=(-3, 1))}, {"0": DATA}), "strides"),
        (lambda p: zip_file(p, {"x": tensor(shape=(2, "3"))}, {"0": DATA}), "shape"),
        (lambda p: zip_file(p, {"x": tensor(shape=(2,))}, {"0": DATA}), "shape"),
        (lambda p: zip_file(p, {"x": tensor(shape=(1 << 61, 1 << 61))}, {"0": DATA}), "takes elements"),
        (lambda p: zip_file(p, {"x": tensor(count=-6)}, {"0": DATA}), "count -6"),
        (lambda p: zip_file(p, {"x": tensor(), "y": tensor(count=5, shape=(1, 1))}, {"0": DATA}), "described twice"),
        (lambda p: zip_file(p, {"x": tensor()}, {"0": DATA}, order="big"), "big-endian"),
        (lambda p: zip_file(p, {"x": tensor()}, {"0": DATA}, method=zipfile.ZIP_DEFLATED), "compressed by method 8"),
        (lambda p: zip_file(p, {"x": tensor(kind="torch Size")}, {"0": DATA}), "count"),
        (lambda p: zip_file(p, {"x": Call("os", "system", "touch /tmp/hacked")}, {}), r"refused: it names os\.system"),
        (lambda p: zip_file(p, {"x": Call("torch._utils", "_rebuild_tensor_v2", 1, 0, (), ())}, {}), "tensor of a int"),
        (lambda p: zip_file(p, {"x": Call("torch._utils", "_rebuild_tensor_v2")}, {}), "makes no sense"),
        (lambda p: zip_file(p, {"x": Call("torch.nn.modules.linear", "Linear")}, {}), r"Linear.*save its state_dict"),
        (lambda p: p.write_bytes(b"PK\x03\x04" + bytes(100)), "no zip archive"),
        (lambda p: p.write_bytes(b"hello world"), "not a file of torch.save"),
        (lambda p: p.write_bytes(b""), "not a file of torch.save"),
    ],
)  # fmt: skip
def test_files_that_lie(make, why, tmp_path):
    path = tmp_path / "bad.pt"
    make(path)
    with pytest.raises(FileFormatError, match=why):
        torch_load(path)
    assert not os.path.exists("/tmp/hacked")


def old_file(path, thing, storages, keys=None, machine=None, counts=None):
    with open(path, "wb") as file:
        for part in (0x1950A86A20F9469CFC6C, 1001):
            file.write(pickle.dumps(part, 2))
        file.write(pickle.dumps({"protocol_version": 1001, "little_endian": True} if machine is None else machine, 2))
        file.write(dump(thing))
        file.write(pickle.dumps(list(storages) if keys is None else keys, 2))
        for i, values in enumerate(storages.values()):
            file.write(struct.pack("<q", len(values) if counts is None else counts[i]))
            file.write(np.asarray(values).tobytes())
    return path


def old(key="0", count=6, view=None, **more):
    t = tensor(key, count, **more)
    t.args[0].pid = (*t.args[0].pid, view)
    return t


def test_the_older_format(tmp_path):
    words = np.array([[1, -2]], np.int64)
    path = old_file(
        tmp_path / "m.pt",
        OrderedDict(
            a=old("k1"), b=old("k0", 2, shape=(1, 2), strides=(2, 1), kind="torch LongStorage"),
            c=old("k1", shape=(3, 2), strides=(1, 3)),
        ),
        {"k0": words[0], "k1": DATA},
    )  # fmt: skip
    got = torch_load(path)
    np.testing.assert_array_equal(got["a"].to("CPU").numpy(), DATA.reshape(2, 3))
    np.testing.assert_array_equal(got["b"].to("CPU").numpy(), words)
    np.testing.assert_array_equal(got["c"].to("CPU").numpy(), DATA.reshape(2, 3).T)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"counts": [7]}, "holds 7 elements, its tensors say 6"),
        ({"counts": [-6]}, "holds -6"),
        ({"keys": ["1"]}, "belongs to no tensor"),
        ({"keys": []}, "is missing"),
        ({"keys": ["0", "0"]}, "different names"),
        ({"keys": 3}, "different names"),
        ({"machine": {"little_endian": False}}, "big-endian"),
        ({"thing": {"x": Call("posix", "system", "id")}}, "names posix.system"),
        ({"thing": {"x": old(view=("v", 0, 3))}}, "view of another"),
    ],
)
def test_older_files_that_lie(more, why, tmp_path):
    path = old_file(tmp_path / "bad.pt", **{"thing": {"x": old()}, "storages": {"0": DATA}, **more})
    with pytest.raises(FileFormatError, match=why):
        torch_load(path)


@pytest.mark.parametrize("kind", ["zip", "old"])
def test_files_cut_anywhere_are_refused(kind, tmp_path):
    path = tmp_path / "m.pt"
    zip_file(path, {"x": tensor()}, {"0": DATA}) if kind == "zip" else old_file(path, {"x": old()}, {"0": DATA})
    raw = path.read_bytes()
    for cut in range(0, len(raw) - 1, 3):
        path.write_bytes(raw[:cut])
        with pytest.raises(FileFormatError):
            torch_load(path)


# --- archives ---


def test_members_of_archives(tmp_path):
    files = {"a.bin": bytes(range(100)), "dir/b.txt": b"hello", "empty": b""}
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(tmp_path / "x.zip", "w", method) as archive:
            archive.mkdir("dir")
            for name, raw in files.items():
                archive.writestr(name, raw)
        got = zip_extract(tmp_path / "x.zip")
        assert {k: bytes(v.to("CPU").numpy()) for k, v in got.items()} == files
        assert got["a.bin"].dtype is dtypes.uint8 and (method == zipfile.ZIP_DEFLATED) == (got["a.bin"].device == "CPU")
    for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        with tarfile.open(tmp_path / "x.tar", "w", format=form) as archive:
            for name, raw in {**files, "long/" + "n" * 90: b"!"}.items():
                info = tarfile.TarInfo(name)
                info.size = len(raw)
                archive.addfile(info, io.BytesIO(raw))
        got = tar_extract(tmp_path / "x.tar")
        assert {k: bytes(v.to("CPU").numpy()) for k, v in got.items()} == {**files, "long/" + "n" * 90: b"!"}


def zipped(path, change):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", b"x" * 50)
        archive.writestr("b", b"y" * 50)
    raw = bytearray(path.read_bytes())
    first = raw.index(b"PK\x01\x02")
    second = raw.index(b"PK\x01\x02", first + 4)
    change(raw, first, second)
    path.write_bytes(raw)


def put(raw, at, value, size=4):
    raw[at : at + size] = value.to_bytes(size, "little")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda raw, a, b: (put(raw, a + 20, 500), put(raw, a + 24, 500)), "a file of|inside of"),
        (lambda raw, a, b: (put(raw, b + 20, 5000), put(raw, b + 24, 5000)), "of a file of"),
        (lambda raw, a, b: put(raw, a + 24, 40), "stored in 50 bytes of 40"),
        (lambda raw, a, b: put(raw, b + 42, 0), "inside of"),
        (lambda raw, a, b: put(raw, b + 42, 7), "has no header"),
        (lambda raw, a, b: put(raw, a + 8, 1, 2), "encrypted"),
        (lambda raw, a, b: put(raw, a + 10, 12, 2), "compressed by method 12"),
        (lambda raw, a, b: raw.__setitem__(slice(b + 46, b + 47), b"a"), "one name"),
        (lambda raw, a, b: raw.__setitem__(slice(b + 46, b + 47), b"\0"), "no name"),
        (lambda raw, a, b: put(raw, len(raw) - 6, 5000), "no place|no zip archive"),  # newer Pythons see it themselves
    ],
)
def test_zip_archives_that_lie(change, why, tmp_path):
    zipped(tmp_path / "x.zip", change)
    with pytest.raises(FileFormatError, match=why):
        zip_extract(tmp_path / "x.zip")


def test_deflated_members_that_grow_or_differ(tmp_path):
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", bytes(1_000_000))
    raw = bytearray(path.read_bytes())
    put(raw, raw.index(b"PK\x01\x02") + 24, 10)
    path.write_bytes(raw)
    with pytest.raises(FileFormatError, match="not what the archive says"):
        zip_extract(path)
    put(raw, raw.index(b"PK\x01\x02") + 24, 0xFFFFFFF0)
    path.write_bytes(raw)
    with pytest.raises(FileFormatError, match="not what the archive says"):
        zip_extract(path)


def test_tar_archives_that_are_none(tmp_path):
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("a"))
    with pytest.raises(FileFormatError, match="unpack it first"):
        tar_extract(path)
    info = tarfile.TarInfo("a")
    info.size = 5000
    path.write_bytes(info.tobuf() + bytes(1024))
    with pytest.raises(FileFormatError, match="cut short|of a file of"):
        tar_extract(path)
    with pytest.raises(FileNotFoundError, match="give the path of a tar archive"):
        tar_extract(tmp_path / "none.tar")


# --- NumPy's files ---

ARRAYS = {
    "f4": np.arange(6, dtype=np.float32).reshape(2, 3), "b1": np.array([True, False]), "i8": np.array(-5),
    "columns": np.asfortranarray(np.arange(24, dtype=np.int16).reshape(2, 3, 4)),
    "big": np.arange(4, dtype=">i4").reshape(2, 2), "none": np.zeros((0, 3), np.uint64),
    "f2": np.array([1.5, np.nan], np.float16), "bigcolumns": np.asfortranarray(np.ones((2, 3), ">f8")),
}  # fmt: skip


@pytest.mark.parametrize("name", ARRAYS)
def test_npy_files(name, tmp_path):
    np.save(tmp_path / "x.npy", ARRAYS[name])
    got = npy_load(tmp_path / "x.npy")
    np.testing.assert_array_equal(got.to("CPU").numpy(), ARRAYS[name])
    assert got.dtype.name == ARRAYS[name].dtype.newbyteorder("=").name
    npy_save(got.to("CPU"), tmp_path / "y.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), ARRAYS[name])


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_files(save, tmp_path):
    save(tmp_path / "x.npz", **ARRAYS)
    got = npz_load(tmp_path / "x.npz")
    assert got.keys() == ARRAYS.keys() and got["f4"].device.startswith("DISK") == (save is np.savez)
    for name, values in ARRAYS.items():
        np.testing.assert_array_equal(got[name].to("CPU").numpy(), values)
    npz_save({k: v.to("CPU") for k, v in got.items()}, tmp_path / "y.npz")
    with np.load(tmp_path / "y.npz") as back:
        for name, values in ARRAYS.items():
            np.testing.assert_array_equal(back[name], values)


def npy(header: str, data: bytes = bytes(24), version=1, length=None) -> bytes:
    raw = header.encode()
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H", len(raw) if length is None else length) + raw + data


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "does not begin"),
        (b"\x93NUMPY\x09\x00" + bytes(20), "does not begin"),
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 4)}"), "does not end with the file"),
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2)}"), "does not end with the file"),
        (npy("{'descr': '|O', 'fortran_order': False, 'shape': (3,)}"), "only numbers"),
        (npy("{'descr': '<U2', 'fortran_order': False, 'shape': (3,)}"), "only numbers"),
        (npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (6,)}"), "only numbers"),
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-6,)}"), "its shape"),
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': 6}"), "its shape"),
        (npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2.0, 3)}"), "its shape"),
        (npy("{'descr': '<f4'}"), "not readable"),
        (npy("__import__('os').system('id')"), "not readable"),
        (npy("{", length=60000), "too long"),
        (npy("[" * 50 + "]" * 50), "not readable"),
    ],
)
def test_npy_files_that_lie(raw, why, tmp_path):
    (tmp_path / "x.npy").write_bytes(raw)
    with pytest.raises(FileFormatError, match=why):
        npy_load(tmp_path / "x.npy")


# --- GGUF ---


def text(s: str) -> bytes:
    return struct.pack("<Q", len(s.encode())) + s.encode()


def gguf(metadata, tensors, data, version=3, align=32, count=None):
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors) if count is None else count, len(metadata))
    for key, kind, raw in metadata:
        out += text(key) + struct.pack("<I", kind) + raw
    for name, dims, kind, offset in tensors:
        out += text(name) + struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", d) for d in dims)
        out += struct.pack("<IQ", kind, offset)
    return out + bytes(-len(out) % align) + data


META = [
    ("general.name", 8, text("tiny")), ("n", 4, struct.pack("<I", 7)), ("eps", 6, struct.pack("<f", 0.5)),
    ("flag", 7, b"\x01"), ("big", 10, struct.pack("<Q", 2**63)),
    ("tokens", 9, struct.pack("<IQ", 8, 2) + text("a") + text("é")),
    ("scores", 9, struct.pack("<IQ", 6, 3) + struct.pack("<3f", 1, 2, 3)),
    ("nested", 9, struct.pack("<IQ", 9, 1) + struct.pack("<IQ", 5, 2) + struct.pack("<2i", -1, 1)),
]  # fmt: skip


def test_gguf_metadata_and_tensors(tmp_path):
    path = tmp_path / "m.gguf"
    f32, f16 = np.arange(6, dtype=np.float32), np.arange(4, dtype=np.float16)
    blocks = np.arange(36, dtype=np.uint8)
    data = f32.tobytes() + bytes(8) + f16.tobytes() + bytes(24) + blocks.tobytes()
    rows = [("w", (3, 2), 0, 0), ("h", (4,), 1, 32), ("q", (32, 2), 2, 64)]
    path.write_bytes(gguf(META, rows, data))
    metadata, tensors = gguf_load(path)
    assert metadata == {
        "general.name": "tiny", "n": 7, "eps": 0.5, "flag": True, "big": 2**63, "tokens": ["a", "é"],
        "scores": [1.0, 2.0, 3.0], "nested": [[-1, 1]],
    }  # fmt: skip
    np.testing.assert_array_equal(tensors["w"].to("CPU").numpy(), f32.reshape(2, 3))
    np.testing.assert_array_equal(tensors["h"].to("CPU").numpy(), f16)
    np.testing.assert_array_equal(tensors["q"].to("CPU").numpy(), blocks.reshape(2, 18))
    infos = gguf_load_metadata(path)[1]
    assert infos["q"].kind == "Q4_0" and infos["q"].shape == (2, 32) and infos["w"].dtype is dtypes.float32


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"GGML" + bytes(40), "not a GGUF file"),
        (gguf([], [], b"", version=1), "version 1"),
        (gguf([], [], b"", count=1 << 60), "beyond the end"),
        (gguf([("k", 8, struct.pack("<Q", 1 << 60))], [], b""), "beyond the end"),
        (gguf([("k", 9, struct.pack("<IQ", 8, 1 << 60))], [], b""), "more than the file has"),
        (gguf([("k", 9, struct.pack("<IQ", 4, 1 << 60))], [], b""), "beyond the end"),
        (gguf([("k", 99, b"")], [], b""), "unknown type 99"),
        (gguf([("k", 9, struct.pack("<IQ", 9, 1) * 20)], [], b""), "nested too deep"),
        (gguf([("k", 0, b"1"), ("k", 0, b"1")], [], b""), "appears twice"),
        (gguf([("general.alignment", 4, struct.pack("<I", 0))], [], b""), "no power of 2"),
        (gguf([("general.alignment", 4, struct.pack("<I", 24))], [], b""), "no power of 2"),
        (gguf([], [("w", (2,), 0, 0)], b"1234"), "of a file of"),
        (gguf([], [("w", (2,), 0, 8)], bytes(64)), "not aligned"),
        (gguf([], [("w", (16,), 0, 0), ("v", (8,), 0, 32)], bytes(64)), "inside of"),
        (gguf([], [("w", (2,), 0, 0), ("w", (2,), 0, 32)], bytes(64)), "appears twice"),
        (gguf([], [("w", (2,), 77, 0)], bytes(64)), "type 77"),
        (gguf([], [("w", (33,), 2, 0)], bytes(64)), "no whole blocks"),
        (gguf([], [("w", (1 << 63,), 0, 0)], bytes(64)), "dimensions"),
        (gguf([], [("w", (1 << 61, 1 << 61), 0, 0)], bytes(64)), "of a file of"),
        (gguf([], [("w", (1,) * 9, 0, 0)], bytes(64)), "9 axes"),
    ],
)
def test_gguf_files_that_lie(raw, why, tmp_path):
    (tmp_path / "x.gguf").write_bytes(raw)
    with pytest.raises(FileFormatError, match=why):
        gguf_load(tmp_path / "x.gguf")


# --- one tensor of a large file ---

LARGE = """
import resource, struct, sys, zipfile
from aril import Tensor
from aril.nn.state import gguf_load, npz_load, safe_load, torch_load

def rchar():
    return int(open("/proc/self/io").read().split("rchar:")[1].split()[0])

def resident():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

kind, path = sys.argv[1:]
(Tensor([1.0, 2.0]) * 2).realize()  # the compiler is loaded
load = {"safetensors": safe_load, "gguf": lambda p: gguf_load(p)[1], "pt": torch_load, "npz": npz_load}[kind]
read, memory = rchar(), resident()
state = load(path)
assert state["big"].shape == (1 << 28,)
assert state["small"].to("CPU").tolist() == [1.0, 2.0, 3.0, 4.0]
assert (state["big"][5:9].to("CPU") + 1).tolist() == [1.0] * 4
print(rchar() - read, resident() - memory)
"""


def large(kind, path):
    """A file with 1 GiB of zeros (a hole) and four numbers behind it."""
    small, hole = np.arange(1, 5, dtype=np.float32).tobytes(), 1 << 30
    if kind == "safetensors":
        big = {"dtype": "F32", "shape": [1 << 28], "data_offsets": [0, hole]}
        header = json.dumps(
            {"big": big, "small": {"dtype": "F32", "shape": [4], "data_offsets": [hole, hole + 16]}}
        ).encode()
        pieces = [struct.pack("<Q", len(header)) + header, hole, small]
    elif kind == "gguf":
        pieces = [gguf([], [("big", (1 << 28,), 0, 0), ("small", (4,), 0, hole)], b""), hole, small]
    elif kind == "pt":
        state = {n: tensor(n, c, shape=(c,), strides=(1,)) for n, c in (("big", 1 << 28), ("small", 4))}
        pieces = zip_pieces({"m/data.pkl": [dump(state)], "m/data/big": [hole], "m/data/small": [small]})
    else:
        heads = [npy(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({count},)}}", b"") for count in (1 << 28, 4)]
        pieces = zip_pieces({"big.npy": [heads[0], hole], "small.npy": [heads[1], small]})
    with open(path, "wb") as file:
        for piece in pieces:
            file.seek(piece, os.SEEK_CUR) if isinstance(piece, int) else file.write(piece)


def zip_pieces(members):
    """A zip archive as pieces: bytes, or the length of a hole."""

    def size(parts):
        return sum([p if isinstance(p, int) else len(p) for p in parts])

    out, directory = [], b""
    for name, parts in members.items():
        n, raw = size(parts), name.encode()
        crc = zlib.crc32(parts[0]) if name.endswith("pkl") else 0
        fields = struct.pack("<HHHHHIIIHH", 20, 0, 0, 0, 0, crc, n, n, len(raw), 0)
        directory += b"PK\x01\x02" + struct.pack("<H", 20) + fields + struct.pack("<HHHII", 0, 0, 0, 0, size(out)) + raw
        out += [b"PK\x03\x04" + fields + raw, *parts]
    end = b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, len(members), len(members), len(directory), size(out), 0)
    return [*out, directory + end]


@pytest.mark.parametrize("kind", ["safetensors", "gguf", "pt", "npz"])
def test_one_tensor_of_a_large_file_is_read_alone(kind, tmp_path):
    path = tmp_path / "large"
    large(kind, path)
    assert path.stat().st_size > 1 << 30 and path.stat().st_blocks * 512 < 1 << 20
    done = subprocess.run([sys.executable, "-c", LARGE, kind, path], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    read, memory = map(int, done.stdout.split())
    assert read < 8 << 20 and memory < 64 << 20


def test_nothing_of_a_large_state_is_resident_before_it_is_used(tmp_path):
    large("safetensors", tmp_path / "large")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    state = safe_load(tmp_path / "large")
    assert state["big"].nbytes() == 1 << 30
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 << 10
    assert isinstance(state["small"], Tensor)
