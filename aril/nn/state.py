"""The tensors of a model by name, and safetensors files of them: lazy on the way in, whole or absent on the way out.

The other formats have files of their own beside this one and are reached from here. A file is untrusted until its
header is checked. The format is described at https://github.com/huggingface/safetensors.
"""

from __future__ import annotations

import importlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from aril.dtype import DType, dtypes
from aril.mixin.base import shown
from aril.nn.state_files import FileFormatError, PathLike, lazy, open_file, whole_file
from aril.tensor import Tensor

if TYPE_CHECKING:
    from aril.nn.state_archives import npy_load, npy_save, npz_load, npz_save, tar_extract, zip_extract
    from aril.nn.state_gguf import gguf_load, gguf_load_metadata
    from aril.nn.state_torch import torch_load

__all__ = [
    "FileFormatError", "get_parameters", "get_state_dict", "gguf_load", "gguf_load_metadata", "load_state_dict",
    "marked_param", "npy_load", "npy_save", "npz_load", "npz_save", "safe_load", "safe_load_metadata", "safe_save",
    "tar_extract", "torch_load", "zip_extract",
]  # fmt: skip

# Formats that are imported when they are first asked for: layers need names only.
_WHERE = {
    **dict.fromkeys(("npy_load", "npy_save", "npz_load", "npz_save", "tar_extract", "zip_extract"), "state_archives"),
    **dict.fromkeys(("gguf_load", "gguf_load_metadata"), "state_gguf"),
    "torch_load": "state_torch",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'aril.nn.state' has no attribute {name!r}; it offers {', '.join(__all__)}")
    globals()[name] = found = getattr(importlib.import_module(f"aril.nn.{_WHERE[name]}"), name)
    return found


HEADER_LIMIT = 100_000_000  # bytes, as in the reference implementation

_NAMES: dict[DType, str] = {
    dtypes.bool: "BOOL", dtypes.int8: "I8", dtypes.uint8: "U8", dtypes.int16: "I16", dtypes.uint16: "U16",
    dtypes.int32: "I32", dtypes.uint32: "U32", dtypes.int64: "I64", dtypes.uint64: "U64", dtypes.float16: "F16",
    dtypes.bfloat16: "BF16", dtypes.float32: "F32", dtypes.float64: "F64", dtypes.fp8e4m3: "F8_E4M3",
    dtypes.fp8e5m2: "F8_E5M2", dtypes.fp8e4m3fnuz: "F8_E4M3FNUZ", dtypes.fp8e5m2fnuz: "F8_E5M2FNUZ",
}  # fmt: skip
_DTYPES: dict[str, DType] = {name: dtype for dtype, name in _NAMES.items()}
_AS_INTEGER = {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}


# --- the tensors of a model ---


def marked_param(t: Tensor, param: bool = True) -> Tensor:
    """`t`, marked as a parameter to train, or as other state of a model (running statistics)."""
    return t.is_param_(param)


def get_state_dict(model: object, prefix: str = "") -> dict[str, Tensor]:
    """Every tensor reachable from `model` through attributes, lists, tuples and dicts, by its dotted name
    (`layers.0.weight`), after `prefix` and a dot where one is given. An object met again on the way down is not entered
    a second time. Errors: TypeError for a prefix that is no text.

    >>> list(get_state_dict(nn.Linear(3, 2)))
    ['weight', 'bias']
    """
    if not isinstance(prefix, str):
        raise TypeError(f"get_state_dict: prefix is the text that names begin with, not {shown(prefix)}")
    return dict(_walk(model, prefix.strip("."), ()))


def _walk(thing: Any, name: str, above: tuple[int, ...]) -> Iterator[tuple[str, Tensor]]:
    if isinstance(thing, Tensor):
        yield name, thing
        return
    if id(thing) in above:
        return
    if isinstance(thing, (list, tuple)):
        parts: Any = enumerate(thing)
    elif isinstance(thing, Mapping):
        parts = thing.items()
    elif hasattr(thing, "__dict__") and not isinstance(thing, (type, ModuleType, FunctionType)):
        parts = vars(thing).items()
    else:
        return
    for key, part in list(parts):
        yield from _walk(part, f"{name}.{key}" if name else str(key), (*above, id(thing)))


def get_parameters(model: object) -> list[Tensor]:
    """The tensors of `get_state_dict`, each once: what an optimizer takes (it trains the parameters among them).

    >>> [p.shape for p in get_parameters(nn.Linear(3, 2))]
    [(2, 3), (2,)]
    """
    return list({id(t): t for t in get_state_dict(model).values()}.values())


def load_state_dict(model: object, state: Mapping[str, Tensor], strict: bool = True) -> None:
    """Copy the tensors of `state` into those of `model` with the same names, cast to their dtypes.

    Errors, all before anything is changed: KeyError for names that only one side has (`strict=False` ignores them),
    ValueError for shapes that differ.

    >>> a, b = nn.Linear(3, 2), nn.Linear(3, 2)
    >>> load_state_dict(a, get_state_dict(b))
    >>> (a.weight == b.weight).all().item()
    True
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"load_state_dict: state is a dict of tensors by name, not {shown(state)}")
    own = get_state_dict(model)
    if strict:
        missing, unknown = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
        if missing or unknown:
            parts = [f"the model needs {_some(missing)}"] * bool(missing)
            parts += [f"the state also has {_some(unknown)}"] * bool(unknown)
            raise KeyError(f"load_state_dict: {'; '.join(parts)}; pass strict=False to load what both have")
    pairs = [(name, t, state[name]) for name, t in own.items() if name in state]
    wrong = [f"{n} is {tuple(t.shape)}, the state has {tuple(v.shape)}" for n, t, v in pairs if t.shape != v.shape]
    if wrong:
        raise ValueError(f"load_state_dict: shapes differ: {'; '.join(wrong[:5])}{' ...' * (len(wrong) > 5)}")
    changed = [t.assign(v.detach().shard_like(t).cast(t.dtype)) for _, t, v in pairs]
    if changed:
        Tensor.realize(*changed)


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:5])
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown


# --- safetensors ---


def safe_load_metadata(path: PathLike) -> tuple[int, dict[str, Any]]:
    """(offset of the data, checked header) of a safetensors file; the header maps names to `dtype` (a DType), `shape`
    and `data_offsets` (counted from the data), and `__metadata__` to strings.

    Errors: FileNotFoundError, or FileFormatError for anything the format does not allow: a header too long or cut
    short, names that repeat, unknown dtypes, sizes that do not match, overlaps, gaps, data outside of the file.

    >>> safe_save({"w": Tensor([1.0])}, folder / "w.safetensors", {"step": "7"})
    >>> safe_load_metadata(folder / "w.safetensors")[1]["__metadata__"]
    {'step': '7'}
    """
    with open_file(path, "a safetensors file") as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > size - 8:
            raise FileFormatError(f"{path}: not a safetensors file, or cut short ({size} bytes)")
        if length > HEADER_LIMIT:
            raise FileFormatError(f"{path}: a header of {length} bytes; at most {HEADER_LIMIT} are accepted")
        raw = file.read(length)
    return 8 + length, _check_header(path, raw, size - 8 - length)


def _check_header(path: PathLike, raw: bytes, data_bytes: int) -> dict[str, Any]:
    def refuse(why: str) -> FileFormatError:
        return FileFormatError(f"{path}: {why}; the file is corrupt or no safetensors file")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError("a name appears twice")
        return dict(pairs)

    try:
        if not raw.startswith(b"{"):
            raise ValueError("it does not begin with {")
        header = json.loads(raw.decode(), object_pairs_hook=unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise refuse(f"the header is not valid ({error})") from None
    metadata = header.get("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise refuse("__metadata__ is not a map of strings")
    spans = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
            raise refuse(f"tensor {name!r} is not described by dtype, shape and data_offsets")
        dtype = _DTYPES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
        if dtype is None:
            raise refuse(f"tensor {name!r} has the dtype {entry['dtype']!r}, which is not known here")
        shape, offsets = entry["shape"], entry["data_offsets"]
        if not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2 or len(shape) > 64:
            raise refuse(f"tensor {name!r} has a shape or offsets that are not lists of natural numbers")
        begin, end = offsets
        if not begin <= end <= data_bytes:
            raise refuse(f"tensor {name!r} lies at {begin} to {end}, outside of the {data_bytes} bytes of data")
        if math.prod(shape) * dtype.itemsize != end - begin:
            raise refuse(f"tensor {name!r} of shape {shape} and dtype {dtype.name} does not take {end - begin} bytes")
        header[name] = {"dtype": dtype, "shape": tuple(shape), "data_offsets": (begin, end)}
        spans.append((begin, end, name))
    at, before = 0, ""
    for begin, end, name in sorted(spans):
        if begin != at:
            raise refuse(
                f"tensor {name!r} begins at {begin}, but what is before it ({before or 'nothing'}) ends at {at}"
            )
        at, before = end, name
    if at != data_bytes:
        raise refuse(f"the tensors take {at} bytes, the file holds {data_bytes}")
    return header


def _naturals(values: object) -> bool:
    return isinstance(values, list) and all(type(v) is int and 0 <= v < 1 << 63 for v in values)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def safe_load(path: PathLike) -> dict[str, Tensor]:
    """The tensors of a safetensors file by name, on the file's own device: read when they are used or moved.

    Errors: as `safe_load_metadata`.

    >>> safe_save({"w": Tensor([[1.0, 2.0]])}, folder / "w.safetensors")
    >>> safe_load(folder / "w.safetensors")["w"].shape
    (1, 2)
    """
    start, header = safe_load_metadata(path)
    out = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            out[name] = lazy(path, start + begin, entry["shape"], entry["dtype"])
    return out


def safe_save(tensors: Mapping[str, Tensor], path: PathLike, metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors by name as a safetensors file, which appears under its name when it is whole and on the disk, or
    not at all.

    Errors: TypeError for what is no tensor, ValueError for a name the format keeps for itself, OSError of the disk.

    >>> safe_save({"w": Tensor([1.0, 2.0])}, folder / "w.safetensors")
    >>> safe_load(folder / "w.safetensors")["w"].tolist()
    [1.0, 2.0]
    """
    for what, given in (("tensors", tensors), ("metadata", {} if metadata is None else metadata)):
        if not isinstance(given, Mapping):
            raise TypeError(f"safe_save: {what} is a dict by name, not {shown(given)}")
    for name, t in tensors.items():
        if not isinstance(t, Tensor):
            raise TypeError(f"safe_save: {name!r} is a {type(t).__name__}; give tensors (get_state_dict of a model)")
        if name == "__metadata__":
            raise ValueError("safe_save: the name '__metadata__' is taken by the format; rename the tensor")
    header: dict[str, Any] = {}
    if metadata:
        header["__metadata__"] = {str(k): str(v) for k, v in metadata.items()}
    at = 0
    # wide types first: every tensor is then aligned to its element
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0]))
    for name, t in ordered:
        size = math.prod(t.shape) * t.dtype.itemsize
        header[name] = {"dtype": _NAMES[t.dtype], "shape": list(t.shape), "data_offsets": [at, at + size]}
        at += size
    raw = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    with whole_file(Path(path)) as file:
        file.write(len(raw).to_bytes(8, "little"))
        file.write(raw)
        for _, t in ordered:
            file.write(_bytes(t))


def _bytes(t: Tensor) -> memoryview:
    """The elements of a tensor, in order, as they lie in memory."""
    if t.dtype.fmt is None:  # NumPy has no such type: the bits are the same as an integer's
        t = t.contiguous().bitcast(_AS_INTEGER[t.dtype.itemsize])
    array = t.detach().numpy()
    if math.prod(array.shape) == 0:
        return memoryview(b"")
    return memoryview(array.tobytes() if not array.flags.c_contiguous else array.reshape(-1)).cast("B")
