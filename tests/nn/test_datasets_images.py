"""CIFAR-10 and the 8x8 digits, from archives made here and from the package that holds the digits."""

from __future__ import annotations

import gzip
import hashlib
import importlib.metadata
import io
import tarfile

import numpy as np
import pytest

from aril.nn import datasets
from aril.nn import datasets_images as images
from aril.nn.datasets import DatasetError

RNG = np.random.default_rng(0)


def archive(path, parts: dict[str, bytes]):
    with tarfile.open(path, "w:gz") as file:
        for name, raw in {"cifar-10-batches-bin/readme.html": b"<html>", **parts}.items():
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            file.addfile(info, io.BytesIO(raw))
    return path


@pytest.fixture
def few(monkeypatch, tmp_path):
    """An archive of four images a part, in the place of the published one."""
    monkeypatch.setattr(images, "CIFAR_ROWS", 4)
    rows = {name: RNG.integers(0, 256, (4, images.CIFAR_ROW), np.uint8) for name in images.CIFAR_PARTS}
    parts = {f"cifar-10-batches-bin/{n}": a.tobytes() for n, a in rows.items()}
    monkeypatch.setattr(images, "fetch", lambda url, **options: tmp_path / "cifar.tar.gz")
    return rows, parts, tmp_path / "cifar.tar.gz"


def test_the_images_of_an_archive(few):
    rows, parts, path = few
    archive(path, dict(reversed(parts.items())))  # in any order
    x_train, y_train, x_test, y_test = datasets.cifar(as_numpy=True)
    assert x_train.shape == (20, 3, 32, 32) and x_test.shape == (4, 3, 32, 32) and y_test.shape == (4,)
    second = rows["data_batch_2.bin"]
    np.testing.assert_array_equal(y_train[4:8], second[:, 0])
    np.testing.assert_array_equal(x_train[5, 1, 2], second[1, 1 + 1024 + 64 : 1 + 1024 + 96])  # green plane, third line
    tensors = datasets.cifar()
    np.testing.assert_array_equal(tensors[2].numpy(), x_test)


def test_archives_that_are_something_else(few):
    _, parts, path = few
    archive(path, {n: raw for n, raw in parts.items() if "test" not in n})
    with pytest.raises(DatasetError, match="without test_batch.bin"):
        datasets.cifar()
    archive(path, {**parts, "cifar-10-batches-bin/test_batch.bin": b"short"})
    with pytest.raises(DatasetError, match="has 5 bytes"):
        datasets.cifar()
    path.write_bytes(b"no archive")
    with pytest.raises(DatasetError, match="damaged"):
        datasets.cifar()


def table(monkeypatch) -> bytes:
    """Digits made here, in the place of the published ones."""
    made = np.concatenate([RNG.integers(0, 17, (5, 64)), np.arange(5)[:, None]], 1).astype(np.uint8)
    monkeypatch.setattr(images, "DIGITS_ROWS", 5)
    digest = hashlib.sha256(made[:, :64].tobytes() + made[:, 64].tobytes()).hexdigest()
    monkeypatch.setattr(images, "DIGITS_SHA256", digest)
    return "\n".join(",".join(map(str, row)) for row in made).encode() + b"\n"


def test_digits_of_a_mirror(monkeypatch):
    text = table(monkeypatch)
    monkeypatch.setattr(images, "DIGITS_PACKAGE", "no-such-package")
    monkeypatch.setattr(images, "pieces", lambda url, limit, timeout: iter([text]))
    x, y = datasets.digits(as_numpy=True)
    assert x.shape == (5, 1, 8, 8) and y.tolist() == [0, 1, 2, 3, 4] and datasets.digits()[0].shape == (5, 1, 8, 8)
    monkeypatch.setattr(images, "pieces", lambda url, limit, timeout: iter([text.replace(b",", b";")]))
    with pytest.raises(DatasetError, match=r"not installed(.|\n)*no table of small numbers(.|\n)*install"):
        datasets.digits()
    monkeypatch.setattr(images, "pieces", lambda url, limit, timeout: iter([text[:-3] + b"9\n"]))
    with pytest.raises(DatasetError, match="checksum|shape"):
        datasets.digits()


def test_digits_of_a_package(monkeypatch, tmp_path):
    text = table(monkeypatch)
    (tmp_path / "digits.csv.gz").write_bytes(gzip.compress(text))

    class File:
        def as_posix(self) -> str:
            return images.DIGITS_FILE

        def locate(self):
            return tmp_path / "digits.csv.gz"

    monkeypatch.setattr(importlib.metadata, "files", lambda name: [File()])
    assert datasets.digits(as_numpy=True)[1].tolist() == [0, 1, 2, 3, 4]
