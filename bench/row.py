"""What a row of the benchmark is: inputs, the same computation written for each peer, the reference, the cost.

In come the tables of `rows*.py`; out go arrays and callables for the harness. No framework is imported here.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

Array = np.ndarray[Any, Any]
Way = Callable[..., Any]  # (library, *inputs) -> result or tuple of results

Layout = Literal["plain", "transposed", "strided", "offset"]
EVERY = "*"  # the key of a way that is written alike for all libraries


@dataclass(frozen=True)
class Input:
    """An operand: logical `shape`, `dtype`, how it is filled, and how it lies in the memory it is a view of.

    `layout`: "plain"; "transposed" (last two axes swapped); "strided" (every second element of the last axis, from the
    second on); "offset" (a window that starts 3 elements into a larger last axis).
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    fill: Literal["normal", "uniform", "index"] = "normal"
    high: int = 0  # of fill "index": integers in [0, high)
    layout: Layout = "plain"
    scale: float = 1.0

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape of the memory behind the view."""
        *lead, last = self.shape
        if self.layout == "transposed":
            return (*lead[:-1], last, lead[-1])
        return (*lead, {"plain": last, "strided": 2 * last + 1, "offset": last + 5}[self.layout])

    @property
    def nbytes(self) -> int:
        """Bytes of the elements that are used."""
        return int(np.prod(self.shape)) * (2 if self.dtype == "bfloat16" else np.dtype(self.dtype).itemsize)

    def make(self, rng: np.random.Generator) -> Array:
        """The memory behind it. bfloat16 comes as float32 values that bfloat16 holds exactly."""
        shape = self.stored_shape
        if self.fill == "index":
            return rng.integers(0, self.high, shape).astype(self.dtype)
        dtype: Any = np.float64 if self.dtype == "float64" else np.float32
        values: Array = rng.random(shape, dtype) if self.fill == "uniform" else rng.standard_normal(shape, dtype)
        values *= dtype(self.scale)
        return round_to_bfloat16(values) if self.dtype == "bfloat16" else values

    def view(self, x: Any) -> Any:
        """The operand, of the memory `x`: by indexing, which all libraries have in common."""
        if self.layout == "transposed":
            return x.T if len(self.shape) == 2 else x.swapaxes(-1, -2) if isinstance(x, np.ndarray) else swapped(x)
        if self.layout == "strided":
            return x[..., 1::2]
        return x[..., 3 : 3 + self.shape[-1]] if self.layout == "offset" else x


def swapped(x: Any) -> Any:
    """`x` with its last two axes swapped, whatever the library calls that."""
    return x.swapaxes(-1, -2) if hasattr(x, "swapaxes") else x.transpose(-1, -2)


def round_to_bfloat16(x: Array) -> Array:
    """The nearest bfloat16 values (ties to even), as float32."""
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


@dataclass(frozen=True)
class Row:
    """One line of the table.

    `ways` gives the computation for a library ("aril", "numpy", "torch", "jax", "tinygrad", and "numpy out", "torch
    out", which take a preallocated result after the library) or `EVERY`; None leaves a library out. Or `program` builds
    a step of a network for any peer that has layers. `reference` computes in float64 with NumPy; without one, the first
    peer's result is the reference. `tolerance` bounds max|x - reference| / max|reference|; 0 asks for equality.
    """

    name: str
    group: str
    inputs: tuple[Input, ...] = ()
    ways: Mapping[str, Way | None] = field(default_factory=dict)
    reference: Way | None = None
    program: Callable[[Any, list[Array]], Callable[[], Any]] | None = None
    calls_compared: int = 1  # of a program: how many of its first results are compared
    tolerance: float = 1e-5
    tolerances: Mapping[str, float] = field(default_factory=dict)  # of one library, where it promises less
    flops: float = 0.0
    moved: float = 0.0  # bytes that must cross the memory bus at least once
    written: float = 0.0  # those of them that are stored
    precision: Literal["float32", "float64"] = "float32"
    eager: bool = True  # whether aril without capture stands beside
    quick: bool = False  # whether --quick takes it

    def way(self, library: str) -> Way | None:
        """The computation for `library`, None where it has none."""
        base = library.partition(" ")[0]
        return self.ways[library] if library in self.ways else self.ways.get(EVERY) if base == library else None

    def arrays(self) -> list[Array]:
        """The inputs' memory, the same at every run."""
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        return [i.make(rng) for i in self.inputs]

    def views(self, stored: list[Any]) -> list[Any]:
        """The operands, of what `arrays` gave or a library made of it."""
        return [i.view(x) for i, x in zip(self.inputs, stored, strict=True)]

    def expected(self, arrays: list[Array]) -> list[Array] | None:
        """The reference results in float64 (integers as they are)."""
        if self.reference is None:
            return None
        wide = [x.astype(np.float64) if x.dtype.kind == "f" else x for x in self.views(arrays)]
        out = self.reference(*wide)
        return [np.asarray(x) for x in (out if isinstance(out, tuple) else (out,))]
