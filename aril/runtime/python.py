"""The PYTHON device: kernels are interpreted by NumPy. The reference that other targets are compared with.

In come programs as text (a listing, and the pickled LINEAR below it), out go launches. Nothing is compiled.
"""

from __future__ import annotations

import base64
import pickle
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aril.device import CompiledKernel, DeviceBase, Program, host_memory
from aril.ops import Ops
from aril.renderer.base import Renderer
from aril.runtime.interpreter import Interpreter, KernelError, run_linear
from aril.runtime.npy import NpyAllocator
from aril.uop.node import UOp

__all__ = ["Interpreter", "KernelError", "PythonDevice", "PythonRenderer", "assemble", "run_linear"]


class PythonProgram(Program):
    """A loaded kernel, interpreted at each call."""

    def __init__(self, kernel: CompiledKernel) -> None:
        self.name, self._chunks = kernel.name, kernel.chunks
        self._code = Interpreter(_unpack(kernel.binary, kernel.name), kernel.name)
        size = {u.arg.slot: (u.arg.size or 1) * u.dtype.itemsize for u in self._code.params}
        self._nbytes = [size.get(i, 0) for i in range(kernel.nbufs)]

    def __call__(
        self, buffers: Sequence[Any], values: Sequence[int] = (), chunks: int | None = None, wait: bool = False
    ) -> float | None:
        start = time.perf_counter()
        memory = [host_memory(int(a), n) for a, n in zip(buffers, self._nbytes, strict=False)]
        self._code.run(memory, values, self._chunks if chunks is None else chunks)
        return time.perf_counter() - start if wait else None


_PICKLE = "# pickle: "


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
        """A listing to read, and below it the program itself in text: what `PythonDevice.load` takes, encoded."""
        uops = uops[0].src if len(uops) == 1 and uops[0].op is Ops.LINEAR else uops
        number = {u: i for i, u in enumerate(uops)}
        lines = [f"# {name}"]
        depth = 0
        for i, u in enumerate(uops):
            depth -= u.op in (Ops.END, Ops.ENDIF)
            what = "" if u.arg is None else f" {u.arg}"
            sources = ", ".join(f"v{number[s]}" for s in u.src)
            lines.append(f"{'  ' * max(depth, 0)}v{i}: {u.dtype.name} = {u.op.name}({sources}){what}")
            depth += u.op in (Ops.RANGE, Ops.IF)
        packed = base64.b85encode(pickle.dumps(UOp(Ops.LINEAR, tuple(uops)))).decode()
        return "\n".join([*lines, _PICKLE + packed, ""])

    def compile(self, program: Any) -> bytes:
        """The binary of a `codegen.Program`: its text."""
        return str(program.source).encode()

    def scratch_bytes(self, uops: Sequence[UOp]) -> int:
        """None: the interpreter keeps LOCAL memory itself."""
        return 0


def python_renderer(target: object = None) -> PythonRenderer:
    """The renderer of the device; there is one, whatever the machine."""
    return PythonRenderer()


def _unpack(binary: bytes, name: str) -> tuple[UOp, ...]:
    try:
        if binary[:1] == b"#":
            binary = base64.b85decode(binary.decode().rpartition(_PICKLE)[2].strip())
        linear = pickle.loads(binary)
        if linear.op is not Ops.LINEAR:
            raise ValueError(f"a {linear.op}")
    except Exception as error:
        raise KernelError(f"{name}: this is not a program of PYTHON ({error})") from error
    return linear.src  # type: ignore[no-any-return]


def assemble(name: str, uops: Sequence[UOp], nbufs: int, nvars: int = 0, chunks: int = 1) -> CompiledKernel:
    """A program for this device: its "binary" is the text of `PythonRenderer`."""
    return CompiledKernel(name, PythonRenderer().render(name, uops).encode(), nbufs, nvars, 0, chunks)


class PythonDevice(DeviceBase):
    """Kernels are interpreted. Everything the IR says is supported, bounds are checked, nothing is fast."""

    NAME = "PYTHON"
    renderers = {"PYTHON": "aril.runtime.python:python_renderer"}

    def __init__(self, name: str) -> None:
        super().__init__(name, NpyAllocator(name))

    def load(self, kernel: CompiledKernel) -> PythonProgram:
        return PythonProgram(kernel)
