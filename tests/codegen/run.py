"""Runs the kernels of `build` natively and in the interpreter, and compares both with their reference."""

from __future__ import annotations

from typing import Any

import numpy as np

from aril.codegen import Program, compile_kernel
from aril.device import CompiledKernel
from aril.engine.compile import evaluate
from aril.renderer.base import Renderer
from aril.renderer.llvm import llvm_renderer
from aril.runtime.cpu import CPUProgram
from aril.runtime.interpreter import interpret
from aril.runtime.llvm import compile_ir
from aril.runtime.target import host_target
from tests.codegen.build import Kernel

TARGETS: dict[str, dict[str, Any]] = {
    "wide": {"vector_bytes": 64, "vector_registers": 32},
    "avx2": {"vector_bytes": 32, "vector_registers": 16},
    "narrow": {"vector_bytes": 16, "vector_registers": 16},
    "small caches": {"vector_bytes": 32, "vector_registers": 16, "l2": 16 << 10, "l3": 128 << 10},
}


def renderer(target: str = "wide", **facts: Any) -> Renderer:
    return llvm_renderer(host_target(), **{**TARGETS[target], **facts})


def _aligned(a: np.ndarray) -> np.ndarray:
    raw = np.zeros(a.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    out = raw[start : start + a.nbytes].view(a.dtype).reshape(a.shape)
    out[...] = a
    return out


def buffers_of(kernel: Kernel, program: Program) -> list[np.ndarray]:
    """Arrays by slot: the outputs' own, then the inputs."""
    out: dict[int, np.ndarray] = {slot: _aligned(zeros) for slot, zeros in kernel.outputs}
    rest = iter(kernel.inputs)
    return [out[i] if i in out else _aligned(next(rest)) for i in range(program.nbufs)]


def chunks_of(kernel: Kernel, program: Program) -> int:
    return int(evaluate(program.chunks, kernel.variables))


def run_native(kernel: Kernel, program: Program) -> list[np.ndarray]:
    compiled = CompiledKernel(
        program.name, compile_ir(program.source), program.nbufs, len(program.variables), program.scratch_bytes, 1
    )
    arrays = buffers_of(kernel, program)
    values = [kernel.variables[v.arg.name] for v in program.variables]
    CPUProgram(compiled)([a.ctypes.data for a in arrays], values, chunks_of(kernel, program))
    return [arrays[slot] for slot, _ in kernel.outputs]


def run_python(kernel: Kernel, program: Program) -> list[np.ndarray]:
    arrays = buffers_of(kernel, program)
    values = [kernel.variables[v.arg.name] for v in program.variables]
    interpret(program.linear.src, arrays, values, chunks_of(kernel, program))
    return [arrays[slot] for slot, _ in kernel.outputs]


def check(kernel: Kernel, got: list[np.ndarray]) -> None:
    for g, expected in zip(got, kernel.expected(), strict=True):
        want = np.asarray(expected).reshape(g.shape)
        scale = float(np.abs(want).max()) or 1.0
        np.testing.assert_allclose(g.astype(float), want, rtol=0, atol=kernel.tolerance * scale)


def run_all(kernel: Kernel, target: str = "wide", interpret: bool = True) -> Program:
    """Compile, run and compare."""
    program = compile_kernel(kernel.sink, renderer(target))
    check(kernel, run_native(kernel, program))
    if interpret:
        check(kernel, run_python(kernel, program))
    return program
