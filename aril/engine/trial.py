"""Kernels on made-up data: whether two compute the same, and how long they take.

In: a kernel in kernel form, a device, loaded kernels. Out: verdicts and times.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aril.device import Buffer, host_memory
from aril.dtype import DType, dtypes
from aril.ops import Ops
from aril.uop import UOp

MARGIN = 256  # bytes before and after each buffer that nobody may touch
LEAST_NS = 200_000  # a timed run repeats short kernels until it takes this long
FAR = 3.0  # a candidate this many times slower than the best is not timed again


class Trial:
    """Random arguments for a kernel, and what the kernel without any optimisation step makes of them.

    Two sets of values: with signs, so that an element left out shows in a sum, and positive, so that logarithms and
    roots are numbers. Variables take their greatest value, then one half way.
    """

    def __init__(self, sink: UOp, device: str, reference: Any) -> None:
        params = {u.arg.slot: u for u in sink.toposort() if u.op is Ops.PARAM and not u.is_variable}
        count = 1 + max(params, default=-1)
        self.params = [params.get(i) for i in range(count)]
        variables = [u for u in sink.toposort() if u.is_variable]
        most = {str(u.arg.name): int(u.vmax) for u in variables}
        half = {str(u.arg.name): int(u.vmin + u.vmax) // 2 for u in variables}
        sizes = [2 * MARGIN + (p.arg.size * p.dtype.itemsize if p is not None else 0) for p in self.params]
        self.buffers = [Buffer(device, size, dtypes.uint8).allocate() for size in sizes]
        self.memory = [np.frombuffer(host_memory(b.opaque, b.nbytes), np.uint8) for b in self.buffers]
        self.addresses = [b.opaque + MARGIN for b in self.buffers]
        rng = np.random.default_rng(1)
        self.cases: list[tuple[list[Any], dict[str, int], list[Any]]] = []
        for signed in (True, False):
            filled = [self._fill(rng, b.nbytes, p, signed) for b, p in zip(self.buffers, self.params, strict=True)]
            for values in (most, half) if variables else (most,):
                self._set(filled)
                self.launch(reference, values)
                self.cases.append((filled, values, [m.copy() for m in self.memory]))
        self.values = most

    @staticmethod
    def _fill(rng: np.random.Generator, nbytes: int, p: UOp | None, signed: bool) -> Any:
        out = rng.integers(0, 255, nbytes, np.uint8)
        if p is not None:
            data = made_up(rng, int(p.arg.size), p.dtype, signed)
            out[MARGIN : MARGIN + data.nbytes] = data.view(np.uint8)
        return out

    def _set(self, filled: list[Any]) -> None:
        for m, f in zip(self.memory, filled, strict=True):
            m[:] = f

    def launch(self, loaded: Any, values: dict[str, int]) -> float:
        """Seconds of one run."""
        numbers, chunks = loaded.launch_values(values)
        return float(loaded.program(self.addresses, numbers, chunks, True) or 0.0)

    def is_right(self, loaded: Any) -> bool:
        """Whether a kernel leaves in memory what the reference left: integers exactly, floats within rounding, margins
        and inputs untouched."""
        for filled, values, wanted in self.cases:
            self._set(filled)
            self.launch(loaded, values)
            for p, m, w in zip(self.params, self.memory, wanted, strict=True):
                if p is None:
                    if not np.array_equal(m, w):
                        return False
                    continue
                if not np.array_equal(m[:MARGIN], w[:MARGIN]) or not np.array_equal(m[-MARGIN:], w[-MARGIN:]):
                    return False
                if not same(m[MARGIN:-MARGIN], w[MARGIN:-MARGIN], p.dtype):
                    return False
        return True


def same(a: Any, b: Any, dtype: DType) -> bool:
    """Whether bytes `a` and `b` of one dtype are equal values, floats within the rounding of another order of sums."""
    if dtype.kind != "f" or np.array_equal(a, b):
        return bool(np.array_equal(a, b))
    x, y = as_float64(a, dtype), as_float64(b, dtype)
    finite = np.isfinite(y)
    if not np.array_equal(np.isfinite(x), finite) or not np.array_equal(np.isnan(x), np.isnan(y)):
        return False
    if not np.array_equal(x[np.isinf(y)], y[np.isinf(y)]):
        return False
    x, y = x[finite], y[finite]
    if not y.size:
        return True
    # A sum that lacks one of n normal numbers is off by about 1/sqrt(n) of its size, far more than this.
    near = {8: 1e-10, 4: 1e-4}.get(dtype.itemsize, 2.0 ** (2 - _fraction_bits(dtype)))
    return bool(np.all(np.abs(x - y) <= near * (np.abs(y) + np.sqrt(np.mean(y * y)))))


def _fraction_bits(dtype: DType) -> int:
    return {"float16": 10, "bfloat16": 7}.get(dtype.name, 3 if "e4m3" in dtype.name else 2)


def as_float64(raw: Any, dtype: DType) -> Any:
    """Bytes of a float type as float64 values."""
    if dtype.fmt is not None:
        return raw.view(np.dtype(dtype.fmt)).astype(np.float64)
    if dtype is dtypes.bfloat16:
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return raw.astype(np.float64)  # an fp8: its code, monotonic in the value


def made_up(rng: np.random.Generator, size: int, dtype: DType, signed: bool) -> Any:
    """`size` random values of `dtype` as an array of its bytes' width."""
    if dtype.kind == "b":
        return rng.integers(0, 2, size).astype(np.uint8)
    if dtype.kind in "iu":
        low = -4 if signed and dtype.kind == "i" else 1
        values = rng.integers(low, 8, size)
        return values.astype(np.dtype(f"{dtype.kind}{dtype.itemsize}"))
    numbers = rng.standard_normal(size) if signed else rng.uniform(0.5, 1.5, size)
    if dtype.fmt is not None:
        return numbers.astype(np.dtype(dtype.fmt))
    if dtype is dtypes.bfloat16:
        return (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return rng.integers(0x20, 0x38, size).astype(np.uint8)  # codes of fp8 numbers about 1


def time_all(trial: Trial, kernels: list[Any], repeats: int) -> list[float]:
    """The least nanoseconds of a run of each kernel. They take turns: what disturbs the machine disturbs all."""
    best = [float("inf")] * len(kernels)
    turns = [1] * len(kernels)
    for k, kernel in enumerate(kernels):  # the first run warms caches and says how often to repeat
        once = trial.launch(kernel, trial.values) * 1e9
        once = min(once, trial.launch(kernel, trial.values) * 1e9)
        turns[k] = max(1, min(200, int(LEAST_NS / max(once, 100.0))))
        best[k] = once
    for _ in range(repeats):
        limit = FAR * min(best, default=0.0)
        for k, kernel in enumerate(kernels):
            if best[k] <= limit:
                for _ in range(turns[k]):
                    best[k] = min(best[k], trial.launch(kernel, trial.values) * 1e9)
    return best
