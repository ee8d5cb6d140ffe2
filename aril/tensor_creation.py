"""Tensors from nothing but a description: constants, ranges, files. Mixed into Tensor."""

from __future__ import annotations

import math
from typing import Any

from aril.dtype import DTypeLike, dtypes, promote, strong, to_dtype
from aril.mixin.base import as_int, as_number, dim_sub, shape_arg, shown
from aril.tensor_data import check_range
from aril.tensor_memory import elements, working_device
from aril.tensor_places import canonical_place
from aril.uop import UOp
from aril.uop.node import view_flat


class CreationMixin:
    """Class methods that make tensors. `device` and `dtype` default to the default ones; nothing is computed yet."""

    __slots__ = ()

    @classmethod
    def _of(cls, uop: UOp, device: Any) -> Any:
        from aril.tensor import Tensor

        return Tensor._new(uop, canonical_place(device))

    @classmethod
    def full(cls, shape: Any, fill_value: Any, dtype: DTypeLike | None = None, device: Any = None) -> Any:
        """All elements equal to a number (whose Python type decides the dtype unless it is given).

        >>> Tensor.full((2, 2), 7).tolist()
        [[7, 7], [7, 7]]
        """
        shape = shape_arg("full", (shape,))
        fill_value = fill_value.item() if hasattr(fill_value, "item") else fill_value
        for d in shape:
            if isinstance(d, int) and d < 0:
                raise ValueError(f"full: a dimension is at least 0, not {d} (shape {shape})")
        if not isinstance(fill_value, (bool, int, float, UOp)):
            raise TypeError(f"full: fill_value is a number, not {shown(fill_value)}")
        kind = strong(dtypes.from_py(fill_value)) if dtype is None else to_dtype(dtype)
        if dtype is None and kind.kind == "i":
            check_range("full", (fill_value,), kind)
        one = UOp.const(kind, fill_value)
        return cls._of(one._reshape((1,) * len(shape))._expand(shape) if shape else one, device)

    @classmethod
    def zeros(cls, *shape: Any, dtype: DTypeLike | None = None, device: Any = None) -> Any:
        """All 0, of the default float type.

        >>> Tensor.zeros(2, 2).tolist()
        [[0.0, 0.0], [0.0, 0.0]]
        """
        return cls.full(shape_arg("zeros", shape), 0, dtype or dtypes.default_float(), device)

    @classmethod
    def ones(cls, *shape: Any, dtype: DTypeLike | None = None, device: Any = None) -> Any:
        """All 1, of the default float type.

        >>> Tensor.ones(2, dtype=dtypes.int32).tolist()
        [1, 1]
        """
        return cls.full(shape_arg("ones", shape), 1, dtype or dtypes.default_float(), device)

    @classmethod
    def empty(cls, *shape: Any, dtype: DTypeLike | None = None, device: Any = None) -> Any:
        """Storage to be written by `assign`; reading it before is an error.

        >>> Tensor.empty(2, 3).shape
        (2, 3)
        """
        from aril.device import Device

        dims = shape_arg("empty", shape)
        place = canonical_place(device) or Device.DEFAULT
        if isinstance(place, tuple):
            from aril.tensor_shard import storage_on_each

            return cls._of(storage_on_each(dims, to_dtype(dtype or dtypes.default_float()), place), place)
        flat = UOp.new_buffer(place, elements(dims), to_dtype(dtype or dtypes.default_float()))
        return cls._of(view_flat(flat, dims), place)

    @classmethod
    def invalids(cls, *shape: Any, dtype: DTypeLike | None = None, device: Any = None) -> Any:
        """No element anywhere: stores of it do nothing. Concatenated or padded, it marks what is not there.

        >>> Tensor.invalids(2, 3).shape
        (2, 3)
        """
        dims = shape_arg("invalids", shape)
        one = UOp.invalid(to_dtype(dtype or dtypes.default_float()))
        return cls._of(one._reshape((1,) * len(dims))._expand(dims) if dims else one, device)

    @classmethod
    def arange(
        cls, start: Any, stop: Any = None, step: Any = 1, dtype: DTypeLike | None = None, device: Any = None
    ) -> Any:
        """start, start + step, .. before stop (0 to `start` where only one number is given). ValueError for a step
        of 0.

        >>> Tensor.arange(2, 8, 2).tolist()
        [2, 4, 6]
        """
        if stop is None:
            start, stop = 0, start
        start, stop, step = [v.item() if hasattr(v, "item") else v for v in (start, stop, step)]
        names = {"start": start, "stop": stop, "step": step}
        start, stop, step = [v if isinstance(v, UOp) else as_number(f"arange: {k}", v) for k, v in names.items()]
        if step == 0:
            raise ValueError("arange: the step is 0")
        if isinstance(start, UOp) or isinstance(stop, UOp):
            return cls._variable_range(start, stop, step, dtype, device)
        kind = (
            to_dtype(dtype) if dtype is not None else strong(promote(*[dtypes.from_py(v) for v in (start, stop, step)]))
        )
        n = max(math.ceil((stop - start) / step), 0)
        if (
            n
            and kind.kind in "iu"
            and not (kind.min <= start <= kind.max and kind.min <= stop - (1 if step > 0 else -1) <= kind.max)
        ):
            raise ValueError(f"arange: {start} to {stop} does not fit {kind.name}; give a wider dtype")
        return cls._of(UOp.iota(n), device)._affine(start, step, kind)

    @classmethod
    def _variable_range(cls, start: Any, stop: Any, step: Any, dtype: Any, device: Any) -> Any:
        if step.__class__ is not int or step != 1:
            raise ValueError(f"arange: from {start} to {stop}, which vary, the step is 1, not {step}")
        kind = dtypes.default_int() if dtype is None else to_dtype(dtype)
        return (cls._of(UOp.iota(dim_sub(stop, start)), device) + start).cast(kind)

    def _affine(self: Any, start: Any, step: Any, kind: Any) -> Any:
        """start + step * self for positions, in a type that is exact for them."""
        if all(isinstance(v, int) for v in (start, step)):
            whole = dtypes.int64 if kind.itemsize == 8 or kind.kind == "f" else dtypes.int32
            out = self.cast(whole)
            out = out * step if step != 1 else out
            return (out + start if start != 0 else out).cast(kind)
        wide = kind if kind.kind == "f" and kind.itemsize >= 4 else dtypes.float32
        return (self.cast(wide) * float(step) + float(start)).cast(kind)

    @classmethod
    def linspace(cls, start: Any, stop: Any, steps: int, dtype: DTypeLike | None = None, device: Any = None) -> Any:
        """`steps` numbers from start to stop (both included), equally spaced.

        >>> Tensor.linspace(0, 1, 5).tolist()
        [0.0, 0.25, 0.5, 0.75, 1.0]
        """
        steps = as_int("linspace: the number of steps", steps, 0)
        start, stop = as_number("linspace: start", start), as_number("linspace: stop", stop)
        kind = to_dtype(dtype or dtypes.default_float())
        place = cls._of(UOp.iota(steps), device)
        if steps == 1:
            return cls.full((1,), start, kind, device)
        wide = kind if kind.kind == "f" and kind.itemsize >= 4 else dtypes.float64
        t = place.cast(wide)
        gap = (stop - start) / max(steps - 1, 1)
        # From both ends, so that the last number is exactly `stop`.
        near_end = place * 2 >= steps
        return near_end.where(float(stop) - (steps - 1 - t) * gap, float(start) + t * gap).cast(kind)

    @classmethod
    def eye(cls, n: int, m: int | None = None, dtype: DTypeLike | None = None, device: Any = None) -> Any:
        """The (n, m) matrix with 1 on the main diagonal, 0 elsewhere; square where m is None.

        >>> Tensor.eye(2).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
        """
        n, m = shape_arg("eye", (n, n if m is None else m))
        if any(isinstance(d, int) and d < 0 for d in (n, m)):
            raise ValueError(f"eye: sizes are at least 0, not {n} and {m}")
        rows, columns = cls._of(UOp.iota(n), device), cls._of(UOp.iota(m), device)
        return rows.reshape(n, 1).eq(columns.reshape(1, m)).cast(dtype or dtypes.default_float())

    def full_like(self: Any, fill_value: Any, dtype: DTypeLike | None = None, device: Any = None) -> Any:
        """All elements equal to a number, with this shape, dtype and device.

        >>> Tensor([1.0, 2.0]).full_like(7).tolist()
        [7.0, 7.0]
        """
        if dtype is None:
            self._unchanged(fill_value, "full_like")
        return self.full(self.shape, fill_value, dtype or self.dtype, device or working_device(self))

    def zeros_like(self: Any, dtype: DTypeLike | None = None, device: Any = None) -> Any:
        """All 0, with this shape, dtype and device.

        >>> Tensor([5, 6]).zeros_like().tolist()
        [0, 0]
        """
        return self.full_like(0, dtype, device)

    def ones_like(self: Any, dtype: DTypeLike | None = None, device: Any = None) -> Any:
        """All 1, with this shape, dtype and device.

        >>> Tensor([5, 6]).ones_like().tolist()
        [1, 1]
        """
        return self.full_like(1, dtype, device)

    def empty_like(self: Any, dtype: DTypeLike | None = None, device: Any = None) -> Any:
        """Storage to be written, with this shape, dtype and device.

        >>> Tensor([1, 2]).empty_like().shape
        (2,)
        """
        return self.empty(*self.shape, dtype=dtype or self.dtype, device=device or working_device(self))

    # --- memory that exists already ---

    @classmethod
    def from_file(cls, device: str, offset: int, shape: Any, dtype: DTypeLike) -> Any:
        """The elements of a file on `device` ("DISK:path") from byte `offset` on: read when they are used or moved."""
        from aril.device import Buffer, canonical

        kind, dims, place = to_dtype(dtype), tuple(shape), canonical(device)
        n = math.prod(dims)
        flat = UOp.new_buffer(place, n, kind)
        whole = Buffer(place, offset + n * kind.itemsize, dtypes.uint8)
        flat.storage = whole.view(n, kind, offset)
        return cls._of(view_flat(flat, dims), place)

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Any:
        """The bytes of the file at `url` as uint8, downloaded into the cache once and read from there when used.

        `options` are those of `aril.fetch`: sha256, limit, gunzip, name, insecure, ..
        Errors: those of `aril.fetch`.

        >>> Tensor.from_url("https://example.org/weights.bin", sha256="...")  # doctest: +SKIP
        """
        from aril.fetch import fetch

        path = fetch(url, **options)
        return cls.from_file(f"DISK:{path}", 0, (path.stat().st_size,), dtypes.uint8)

    @classmethod
    def from_blob(
        cls, address: int, shape: Any, dtype: DTypeLike | None = None, device: Any = None, owner: object = None
    ) -> Any:
        """Memory at `address` in this process as a tensor, without a copy; it must stay valid (`owner` is kept
        alive).

        >>> memory = np.arange(3, dtype=np.float32)
        >>> Tensor.from_blob(memory.ctypes.data, (3,), dtype=dtypes.float32).tolist()
        [0.0, 1.0, 2.0]
        """
        from aril.device import Buffer, Device

        kind, dims = to_dtype(dtype or dtypes.default_float()), shape_arg("from_blob", (shape,))
        place = canonical_place(device) or Device.DEFAULT
        n = math.prod(dims)
        if n and not address:
            raise ValueError(f"from_blob: no memory lies at address {address}")
        flat = UOp.new_buffer(place, n, kind)
        flat.storage = Buffer(place, n, kind, opaque=address, external=owner if owner is not None else address)
        return cls._of(view_flat(flat, dims), place)

    @classmethod
    def from_numpy(cls, array: Any) -> Any:
        """A NumPy array as a tensor without a copy (on device NPY); later changes of the array are seen. Copied where
        its memory is not in row-major order. NPY runs no kernels: an operation copies it to the device of the other
        operand, else to the default one.

        >>> (Tensor.from_numpy(Tensor([0, 1, 2]).numpy()) + 1).tolist()
        [1, 2, 3]
        """
        import numpy as np

        raw = np.ascontiguousarray(array)
        return cls.from_blob(raw.ctypes.data, array.shape, to_dtype(raw.dtype.name), "NPY", owner=raw)
