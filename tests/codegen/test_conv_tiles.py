"""Tiles of convolutions, read from the assembly: the inner loop is loads and multiply-adds, and stores are of rows."""

from __future__ import annotations

import re

import pytest

from aril.codegen import compile_kernel
from aril.renderer.llvm import LLVMRenderer
from aril.runtime.llvm import compile_ir_to_asm
from tests.codegen import build as b
from tests.codegen.test_linearize import AVX2, AVX512, HostTarget, innermost

SHAPES = {
    "3x3 of 64": lambda: b.conv(2, 64, 64, 30, 3),
    "3x3 of 17": lambda: b.conv(2, 17, 40, 23, 3),
    "5x5 of 20": lambda: b.conv(2, 20, 32, 20, 5),
    "7x7 of 3": lambda: b.conv(2, 3, 64, 26, 7),
    "1x1 of 96": lambda: b.conv(2, 96, 64, 14, 1),
    "3x3 of 64, input gradient": lambda: b.conv_data(2, 64, 64, 26, 3),
    "5x5 of 17, input gradient": lambda: b.conv_data(2, 17, 40, 23, 5),
    "3x3 of 32, weight gradient": lambda: b.conv_weight(2, 32, 64, 22, 3),
}


def assembly(kernel: b.Kernel, target: HostTarget) -> str:
    renderer = LLVMRenderer(vector_bytes=target.vector_bytes, vector_registers=target.vector_registers)
    return compile_ir_to_asm(compile_kernel(kernel.sink, renderer).source, target)


@pytest.mark.parametrize("target", [AVX2, AVX512], ids=["avx2", "avx512"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_inner_loop_of_a_convolution_stays_in_registers(shape: str, target: HostTarget) -> None:
    body = innermost(assembly(SHAPES[shape](), target))
    adds = len(re.findall(r"\bvfmadd\w*ps\b", body))
    assert adds >= 8 and "rsp" not in body, "spilled to the stack"
    assert body.count("\n") <= 2.2 * adds + 6


@pytest.mark.parametrize("target", [AVX2, AVX512], ids=["avx2", "avx512"])
def test_no_element_of_a_tile_is_stored_through_an_address_of_its_own(target: HostTarget) -> None:
    """Lanes along the channels, six or seven columns: two of them or more are stored at once."""
    text = assembly(b.conv(2, 64, 64, 30, 3), target)
    assert "scatter" not in text and "vpextrq" not in text and "vextractps" not in text
