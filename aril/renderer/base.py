"""What code generation knows of a target: a frozen description, and the method that turns a program into its language.

In comes a program (nodes in order, `docs/ir.md`); out goes source text. No device is known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aril.dtype import DType, dtypes
from aril.ops import OpGroup, Ops
from aril.uop.args import AddrSpace
from aril.uop.node import UOp


class RenderError(ValueError):
    """A program the renderer cannot put into its language: names the node and what to do."""


@dataclass(frozen=True)
class Renderer:
    """A target as code generation sees it. Bytes for sizes; `cores` is how many chunks run at once.

    `chunks_are_lanes`: the launch index is the only axis that runs side by side, in one go (an interpreter's arrays).
    `name` is the renderer's ("LLVM"), `device` the device whose kernels it makes, `language` what CUSTOM nodes must be
    written in. `pair_lanes`: lengths of float32 vectors to which one instruction adds products of pairs of bfloat16.
    `ops` are the arithmetic operations it has, `dtypes` the types it computes with.
    """

    name: str = "NONE"
    device: str = "NULL"
    language: str = ""
    arch: str = ""
    vector_bytes: int = 16
    vector_registers: int = 16
    max_vector_lanes: int = 64
    l1: int = 32 << 10
    l2: int = 512 << 10
    l3: int = 4 << 20
    cores: int = 1
    has_fma: bool = True
    pair_lanes: tuple[int, ...] = ()
    chunks_are_lanes: bool = False
    ops: frozenset[Ops] = OpGroup.ALU
    dtypes: frozenset[DType] = frozenset(dtypes.all)

    def supports(self, op: Ops, dtype: DType) -> bool:
        """Whether the target does `op` on values of `dtype` (the operands' dtype in comparisons and casts)."""
        if dtype not in self.dtypes:
            return dtype is dtypes.void
        return op not in OpGroup.ALU or op in self.ops

    def render(self, name: str, uops: Sequence[UOp], nbufs: int | None = None) -> str:
        """Source text of the kernel `name`. `nbufs` is the number of buffer arguments where the program may not use the
        last of them (default: the highest slot it names, and one)."""
        raise NotImplementedError(f"{self.name} renders nothing: it only describes a target")

    def scratch_bytes(self, uops: Sequence[UOp]) -> int:
        """Bytes of scratch memory each worker needs for the program's LOCAL buffers."""
        return local_layout(uops)[1]


def local_layout(uops: Sequence[UOp]) -> tuple[dict[UOp, int], int]:
    """Byte offset of each LOCAL buffer, 64-byte aligned, in order of appearance; and the bytes of all."""
    offsets: dict[UOp, int] = {}
    total = 0
    for u in uops:
        if u.op is Ops.BUFFER and u.arg.addrspace is AddrSpace.LOCAL and u not in offsets:
            offsets[u] = total
            total += -(-u.arg.size * u.dtype.itemsize // 64) * 64
    return offsets, total


def arguments(uops: Sequence[UOp], nbufs: int | None = None) -> tuple[int, list[UOp]]:
    """(number of buffer arguments, variables in the order of their slots, which is that of their names)."""
    params = [u for u in uops if u.op is Ops.PARAM]
    slots = [u.arg.slot for u in params if u.arg.addrspace is not AddrSpace.ALU]
    variables = sorted({u for u in params if u.arg.addrspace is AddrSpace.ALU}, key=lambda u: u.arg.name)
    return max([nbufs or 0, *[s + 1 for s in slots]]), variables
