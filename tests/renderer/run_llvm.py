"""Runs a linear program through LLVM for tests: NumPy arrays in place of buffers."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from aril.renderer.llvm import LLVMRenderer, llvm_renderer
from aril.runtime.elf import load_object
from aril.runtime.llvm import compile_ir
from aril.runtime.target import host_target
from aril.uop.node import UOp

HOST = llvm_renderer(host_target())


def run(
    uops: Sequence[UOp],
    *arrays: np.ndarray,
    variables: Sequence[int] = (),
    chunks: int = 1,
    renderer: LLVMRenderer = HOST,
) -> None:
    """Run the program over `arrays`, which it changes in place."""
    loaded = load_object(compile_ir(renderer.render("kernel", uops)))
    slots = (ctypes.c_int64 * max(1, len(arrays) + len(variables)))(*[a.ctypes.data for a in arrays], *variables)
    room = np.zeros(renderer.scratch_bytes(uops) + 64, np.uint8)
    scratch = -(-room.ctypes.data // 64) * 64
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)(loaded.symbols["kernel"])
    for chunk in range(chunks):
        call(ctypes.addressof(slots), chunk, scratch)
