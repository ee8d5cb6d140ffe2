"""The PYTHON device: kernels are interpreted by NumPy. The reference that other targets are compared with.

In come programs as rows of plain values (`uop/serial.py`), out go launches. Nothing is compiled.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aril.device import CompiledKernel, DeviceBase, Program, host_memory
from aril.ops import Ops
from aril.renderer.base import Renderer, RenderError
from aril.runtime.interpreter import Interpreter, KernelError
from aril.runtime.npy import NpyAllocator
from aril.uop.node import UOp
from aril.uop.serial import PROGRAM_OPERATIONS, GraphFormatError, from_rows, to_rows


class PythonProgram(Program):
    """A loaded kernel, interpreted at each call."""

    def __init__(self, kernel: CompiledKernel) -> None:
        self.name, self._chunks = kernel.name, kernel.chunks
        self._code = Interpreter(unpack(kernel.name, kernel.binary), kernel.name)
        size = {u.arg.slot: (u.arg.size or 1) * u.dtype.itemsize for u in self._code.params}
        self._nbytes = [size.get(i, 0) for i in range(kernel.nbufs)]

    def __call__(
        self, buffers: Sequence[Any], values: Sequence[int] = (), chunks: int | None = None, wait: bool = False
    ) -> float | None:
        start = time.perf_counter()
        memory = [host_memory(int(a), n) for a, n in zip(buffers, self._nbytes, strict=False)]
        self._code.run(memory, values, self._chunks if chunks is None else chunks)
        return time.perf_counter() - start if wait else None


@dataclass(frozen=True)
class PythonRenderer(Renderer):
    """Everything is supported as it is. The launch index is NumPy's axis."""

    name: str = "PYTHON"
    device: str = "PYTHON"
    language: str = "python"
    vector_bytes: int = 64
    vector_registers: int = 32
    chunks_are_lanes: bool = True

    def render(self, name: str, uops: Sequence[UOp], nbufs: int | None = None) -> str:
        """A listing to read. What runs is the program itself: `compile`. Errors: RenderError for inline source."""
        uops = uops[0].src if len(uops) == 1 and uops[0].op is Ops.LINEAR else uops
        number = {u: i for i, u in enumerate(uops)}
        lines = [f"# {name}"]
        depth = 0
        for i, u in enumerate(uops):
            if u.op in (Ops.CUSTOM, Ops.CUSTOMI, Ops.INS):
                raise RenderError(f"kernel {name} holds inline source ({u.arg!r}), which PYTHON cannot run")
            depth -= u.op in (Ops.END, Ops.ENDIF)
            what = "" if u.arg is None else f" {u.arg}"
            sources = ", ".join(f"v{number[s]}" for s in u.src)
            lines.append(f"{'  ' * max(depth, 0)}v{i}: {u.dtype.name} = {u.op.name}({sources}){what}")
            depth += u.op in (Ops.RANGE, Ops.IF)
        return "\n".join([*lines, ""])

    def compile(self, program: Any) -> bytes:
        """The binary of a `codegen.Program`."""
        return pack(program.name, program.linear.src)

    def scratch_bytes(self, uops: Sequence[UOp]) -> int:
        """None: the interpreter keeps LOCAL memory itself."""
        return 0


def python_renderer(target: object = None) -> PythonRenderer:
    """The renderer of the device; there is one, whatever the machine."""
    return PythonRenderer()


def pack(name: str, uops: Sequence[UOp]) -> bytes:
    """The "binary" of a program: its nodes as JSON, and their order. Errors: KernelError for what only others run."""
    try:
        return json.dumps(to_rows([u for u in uops if u.op is not Ops.SINK], PROGRAM_OPERATIONS)).encode()
    except GraphFormatError as error:
        raise KernelError(f"{name} cannot run on PYTHON: {error}") from None


def unpack(name: str, binary: bytes) -> list[UOp]:
    """The nodes of a program in order: inverse of `pack`. Errors: KernelError for anything else."""
    try:
        rows, order = json.loads(binary)
        return from_rows(rows, order, PROGRAM_OPERATIONS)
    except (ValueError, TypeError) as error:
        raise KernelError(f"{name}: this is not a program of PYTHON ({error})") from error


def assemble(name: str, uops: Sequence[UOp], nbufs: int, nvars: int = 0, chunks: int = 1) -> CompiledKernel:
    """A program for this device, ready to load."""
    return CompiledKernel(name, pack(name, uops), nbufs, nvars, 0, chunks)


class PythonDevice(DeviceBase):
    """Kernels are interpreted. Everything the IR says is supported, bounds are checked, nothing is fast."""

    NAME = "PYTHON"
    renderers = {"PYTHON": "aril.runtime.python:python_renderer"}

    def __init__(self, name: str) -> None:
        super().__init__(name, NpyAllocator(name))

    def load(self, kernel: CompiledKernel) -> PythonProgram:
        return PythonProgram(kernel)
