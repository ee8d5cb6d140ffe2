"""Arguments that nodes carry: storage descriptions, axis types, kernel information. Plain values with a stable repr."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from aril.dtype import DType
from aril.numbered import Numbered, auto


class AddrSpace(Numbered):
    """Where storage lies: device memory, memory of a work group, registers, or a scalar value (variables)."""

    GLOBAL = auto()
    LOCAL = auto()
    REG = auto()
    ALU = auto()

    def __repr__(self) -> str:
        return f"AddrSpace.{self.name}"


class AxisType(Numbered):
    """What becomes of a loop. The order is the order of nesting, outermost first, among loops of one nest.

    GLOBAL is the launch index; LOOP and REDUCE are loops; UPCAST (output) and UNROLL (reduction) are copies of the
    body; VECTOR is the axis whose elements become the lanes of a vector, in outputs and in reductions alike.
    """

    DEVICE = auto()
    GLOBAL = auto()
    THREAD = auto()
    LOCAL = auto()
    WARP = auto()
    LOOP = auto()
    GROUP_REDUCE = auto()
    REDUCE = auto()
    UPCAST = auto()
    UNROLL = auto()
    VECTOR = auto()

    def __repr__(self) -> str:
        return f"AxisType.{self.name}"


class ParamArg(NamedTuple):
    """Description of one storage (PARAM, BUFFER). `size` counts elements; None is a scalar of shape ()."""

    slot: int
    dtype: DType
    size: int | None = None
    vmin_vmax: tuple[int, int] | None = None
    multiple_of: int = 1
    name: str | None = None
    addrspace: AddrSpace = AddrSpace.GLOBAL
    axis: int | None = None
    device: str | tuple[str, ...] | None = None
    volatile: bool = False
    image: tuple[int, int] | None = None
    align: int = 1


class RangeArg(NamedTuple):
    """A loop's identity (stable through splits: a tuple of ints) and what becomes of it."""

    id: tuple[int, ...]
    kind: AxisType


@dataclass(frozen=True)
class Estimates:
    """Work of one kernel launch: arithmetic operations and bytes of distinct memory touched. Ints, or expressions in
    the kernel's variables."""

    ops: Any = 0
    bytes: Any = 0


@dataclass(frozen=True)
class KernelInfo:
    """What is known of a kernel beside its graph; the argument of its SINK."""

    name: str = ""
    opts_to_apply: tuple[Any, ...] | None = None
    applied: tuple[Any, ...] = ()
    estimates: Estimates | None = None


def is_memory_only(device: Any) -> bool:
    """Whether `device` names one that holds memory and runs no kernels: files and NumPy's arrays."""
    return isinstance(device, str) and device[:4].upper() in ("DISK", "NPY", "NPY:")
