"""What users hand to Tensor(...) as a node: numbers, nested lists, bytes, arrays. In comes Python data, out goes a UOp.

Data is copied into fresh storage of the device at once; casts that lose values are left to the
graph, whose rules they follow.
"""

from __future__ import annotations

import math
from typing import Any

from aril.device import Buffer, Device
from aril.dtype import DType, dtypes, promote, strong, to_dtype
from aril.uop import UOp
from aril.uop.node import view_flat


def uop_of_data(data: Any, dtype: DType | None, device: Any) -> UOp:
    """The node for `data` of any accepted kind, as `dtype` (default: its own). Errors: TypeError, ValueError."""
    if data is None or isinstance(data, (str, type)):
        raise TypeError(f"Tensor: expected numbers, nested lists, an array or bytes, not {data!r:.40}")
    if data.__class__ in (bool, int, float):
        kind = dtype or strong(dtypes.from_py(data))
        if dtype is None:
            check_range("Tensor", (data,), kind)
        return UOp.const(kind, data)
    place = device if device is not None else Device.DEFAULT
    if isinstance(data, (bytes, bytearray, memoryview)) and not hasattr(data, "__array_interface__"):
        if isinstance(data, memoryview) and data.format != "B":
            return uop_of_array(_numpy().asarray(data), dtype, place)
        kind = dtype or dtypes.uint8
        return stored(bytes(data), (len(data) // kind.itemsize,), kind, place)
    np = _numpy()
    if isinstance(data, (list, tuple)):
        return uop_of_list(data, dtype, place)
    if hasattr(data, "__dlpack__") and not hasattr(data, "__array_interface__") and not isinstance(data, np.ndarray):
        from aril.interop import from_capsule

        lent = from_capsule(data)
        own = stored(lent.array().tobytes(), lent.shape, lent.dtype, place)
        return own if dtype is None else own.cast(dtype)
    try:
        array = np.asarray(data)
    except Exception as error:
        raise TypeError(f"Tensor: {type(data).__name__} holds no array ({error})") from error
    if array.dtype == object:
        raise TypeError(f"Tensor: expected numbers, nested lists, an array or bytes, not {type(data).__name__}")
    return uop_of_array(array, dtype, place)


def check_range(what: str, numbers: Any, kind: DType) -> None:
    """ValueError where one of `numbers` does not fit the default type that they take. (A type that is asked for
    wraps them.)"""
    if kind.kind == "i" and numbers and not kind.min <= min(numbers) <= max(numbers) <= kind.max:
        far = next(n for n in numbers if not kind.min <= n <= kind.max)
        raise ValueError(f"{what}: {far} does not fit {kind.name}, the default integer type; give dtype='int64'")


def _numpy() -> Any:
    import numpy

    return numpy


def uop_of_list(data: Any, dtype: DType | None, place: Any) -> UOp:
    """The node for nested lists of numbers, or of tensors of one shape."""
    np = _numpy()
    flat: list[Any] = []
    shape = _flatten(data, flat)
    from aril.tensor import Tensor

    if any(isinstance(x, (Tensor, UOp)) for x in flat):
        items = [x if isinstance(x, Tensor) else Tensor(x, device=place) for x in flat]
        first = items[0].stack(*items[1:]).reshape(*shape, *items[0].shape)
        return (first if dtype is None else first.cast(dtype)).uop
    for x in flat:
        if not isinstance(x, (bool, int, float)) and not hasattr(x, "item"):
            raise TypeError(f"Tensor: {x!r} of type {type(x).__name__} is no number")
    if dtype is None:
        kinds = {x.__class__ for x in flat}
        if kinds <= {bool, int, float}:
            dtype = strong(promote(*[dtypes.from_py(k()) for k in kinds])) if kinds else dtypes.default_float()
            check_range("Tensor", flat, dtype)
        else:
            return uop_of_array(np.asarray(data), None, place)
    if dtype.kind in "iu":
        wide = [int(x) & ((1 << dtype.bits) - 1) for x in flat]
        raw = np.array(wide, dtype=f"u{dtype.itemsize}").view(dtype.name)
    elif dtype.kind == "b":
        raw = np.array([bool(x) for x in flat])
    else:
        return uop_of_array(np.array([float(x) for x in flat], dtype=np.float64).reshape(shape), dtype, place)
    return uop_of_array(raw.reshape(shape), dtype, place)


def _flatten(data: Any, out: list[Any]) -> tuple[int, ...]:
    """The items of nested lists, in order, and their shape. ValueError where lists of one level differ in length."""
    shape: list[int] = []
    level: list[Any] = [data]
    while level and isinstance(level[0], (list, tuple)):
        n = len(level[0])
        for x in level:
            if not isinstance(x, (list, tuple)) or len(x) != n:
                found = len(x) if isinstance(x, (list, tuple)) else "a number"
                raise ValueError(f"Tensor: lists of different lengths at level {len(shape)}: {n} and {found}")
        shape.append(n)
        level = [y for x in level for y in x]
    for x in level:
        if isinstance(x, (list, tuple)):
            raise ValueError(f"Tensor: a list stands beside numbers at level {len(shape)}")
    out.extend(level)
    return tuple(shape)


def uop_of_array(array: Any, dtype: DType | None, place: Any) -> UOp:
    """The node for a NumPy array, copied to `place`."""
    np = _numpy()
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    own = to_dtype(_ml_name(array.dtype.name))
    wanted = dtype or own
    if wanted is not own and own.fmt is not None and wanted.fmt is not None:
        # Casts of data are done here: the same rules (saturation, NaN to 0) by way of the constants' own.
        if own.kind == "f" and wanted.kind in "iu":
            return stored(np.ascontiguousarray(array).tobytes(), array.shape, own, place).cast(wanted)
        array, own = array.astype(wanted.name), wanted
    raw = np.ascontiguousarray(array)
    uop = stored(
        raw.tobytes() if raw.dtype.name == "bool" else raw.reshape(-1).view(np.uint8).data, array.shape, own, place
    )
    return uop.cast(wanted)


def _ml_name(name: str) -> str:
    return {"float8_e4m3fn": "fp8e4m3", "float8_e5m2": "fp8e5m2", "float8_e4m3fnuz": "fp8e4m3fnuz",
            "float8_e5m2fnuz": "fp8e5m2fnuz"}.get(name, name)  # fmt: skip


def stored(raw: Any, shape: tuple[int, ...], dtype: DType, place: Any) -> UOp:
    """Fresh storage on `place` (or on each of several) holding the bytes `raw`."""
    if isinstance(place, tuple):
        from aril.tensor_shard import stored_on_each

        return stored_on_each(raw, tuple(shape), dtype, place)
    n = math.prod(shape)
    flat = UOp.new_buffer(place, n, dtype)
    flat.storage = Buffer(place, n, dtype).copyin(memoryview(raw))
    return view_flat(flat, tuple(shape))
