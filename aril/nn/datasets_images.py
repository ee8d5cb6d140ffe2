"""CIFAR-10 and the 8x8 digits: small images by name, their content checked. `aril.nn.datasets` offers them.

In comes nothing but the network or an installed package; out go arrays or tensors of uint8.
"""

from __future__ import annotations

import gzip
import hashlib
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aril.fetch import FetchError, fetch, pieces

Images = tuple[NDArray[np.uint8], ...]

CIFAR_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
CIFAR_SHA256 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
CIFAR_LIMIT = 200 << 20
CIFAR_PARTS = tuple([f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"])
CIFAR_ROWS, CIFAR_ROW = 10_000, 1 + 3 * 32 * 32  # images in a part; bytes of one: its class, then three planes

DIGITS_URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/optdigits/optdigits.tes"
DIGITS_PACKAGE, DIGITS_FILE = "scikit-learn", "sklearn/datasets/data/digits.csv.gz"
DIGITS_ROWS, DIGITS_LIMIT = 1797, 1 << 20
DIGITS_SHA256 = "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"  # of the pixels, then the classes
TIMEOUT_S = 10.0


def cifar(*, as_numpy: bool = False) -> tuple[Any, Any, Any, Any]:
    """The CIFAR-10 images: `X_train, Y_train, X_test, Y_test = cifar()` (Krizhevsky 2009).

    X is uint8 of shape (50000, 3, 32, 32) and (10000, 3, 32, 32); Y is uint8 of shape (50000,) and (10000,), the class.
    `as_numpy` gives NumPy arrays in place of tensors. Downloaded once (170 MB) and kept in the cache.
    Errors: FetchError without the network; DatasetError for an archive that does not hold them.
    """
    path = fetch(CIFAR_URL, name="cifar-10-binary.tar.gz", folder="datasets", sha256=CIFAR_SHA256, limit=CIFAR_LIMIT)
    parts = _cifar_parts(path)
    rows = np.concatenate([parts[name] for name in CIFAR_PARTS])
    split = (len(CIFAR_PARTS) - 1) * CIFAR_ROWS
    images, classes = rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0]
    out = images[:split], classes[:split], images[split:], classes[split:]
    return _given(out, as_numpy)  # type: ignore[return-value]


def digits(*, as_numpy: bool = False) -> tuple[Any, Any]:
    """The 1797 digits of 8x8 pixels: `X, Y = digits()` (Alpaydin and Kaynak 1998, the test half of "optdigits").

    X is uint8 of shape (1797, 1, 8, 8), values 0 to 16; Y is uint8 of shape (1797,). `as_numpy` gives NumPy arrays.
    Taken from the installed package scikit-learn (its data file; its code is not imported), else downloaded.
    Errors: DatasetError, which says what each source answered.
    """
    from aril.nn.datasets import DatasetError

    failures = []
    sources: tuple[tuple[str, Callable[[], bytes]], ...] = (
        (f"package {DIGITS_PACKAGE}", _digits_of_package),
        (DIGITS_URL, lambda: b"".join(pieces(DIGITS_URL, DIGITS_LIMIT, TIMEOUT_S))),
    )
    for name, source in sources:
        try:
            return _given(_digits_of_text(source()), as_numpy)  # type: ignore[return-value]
        except (DatasetError, FetchError, OSError, EOFError) as error:
            failures.append(f"  {name}: {error}")
    raise DatasetError(
        "the 8x8 digits could not be had:\n" + "\n".join(failures) + f"\nConnect to the network, or install "
        f"{DIGITS_PACKAGE}"
    )


def _given(arrays: Images, as_numpy: bool) -> tuple[Any, ...]:
    arrays = tuple([np.ascontiguousarray(a) for a in arrays])
    if as_numpy:
        return arrays
    from aril.tensor import Tensor

    return tuple([Tensor(a) for a in arrays])


def _cifar_parts(path: Path) -> dict[str, NDArray[np.uint8]]:
    """The rows of each part of the archive, read in place: nothing is unpacked to a file."""
    from aril.nn.datasets import DatasetError

    size = CIFAR_ROWS * CIFAR_ROW
    found = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                name = member.name.rpartition("/")[2]
                if name not in CIFAR_PARTS or not member.isreg():
                    continue
                content = archive.extractfile(member)
                raw = b"" if member.size != size or content is None else content.read(size)
                if len(raw) != size:
                    raise DatasetError(f"{member.name} has {member.size} bytes, a part of CIFAR-10 has {size}")
                found[name] = np.frombuffer(raw, np.uint8).reshape(CIFAR_ROWS, CIFAR_ROW)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise DatasetError(f"a damaged archive ({error})") from None
    missing = [name for name in CIFAR_PARTS if name not in found]
    if missing:
        raise DatasetError(f"an archive without {', '.join(missing)}")
    return found


def _digits_of_package() -> bytes:
    from aril.nn.datasets import file_of_package

    with gzip.open(file_of_package(DIGITS_PACKAGE, DIGITS_FILE)) as file:
        return file.read(DIGITS_LIMIT)


def _digits_of_text(text: bytes) -> Images:
    """Pixels and classes of comma-separated lines, checked against the published ones."""
    from aril.nn.datasets import DatasetError

    try:
        rows = [[int(v) for v in line.split(b",")] for line in text.splitlines() if line.strip()]
        table = np.array(rows, np.uint8)
    except (ValueError, OverflowError) as error:
        raise DatasetError(f"no table of small numbers ({error})") from None
    if table.shape != (DIGITS_ROWS, 65):
        raise DatasetError(f"a table of shape {table.shape}, not {(DIGITS_ROWS, 65)}")
    pixels, classes = table[:, :64], table[:, 64]
    if hashlib.sha256(pixels.tobytes() + classes.tobytes()).hexdigest() != DIGITS_SHA256:
        raise DatasetError("its digits are not the published ones (checksum)")
    return pixels.reshape(-1, 1, 8, 8), classes


__all__ = ["cifar", "digits"]
