"""Vectors that lie in one part of a concatenation, or in one row of a divided axis, are loaded whole."""

from __future__ import annotations

import numpy as np
import pytest

from aril import Tensor
from aril.codegen import Program, compile_kernel
from aril.ops import Ops
from aril.renderer.llvm import llvm_renderer
from aril.runtime.target import host_target
from aril.schedule import kernels, normalize, schedule
from tests.codegen.run import TARGETS

RNG = np.random.default_rng(0)


def heads_side_by_side(batch: int, heads: int, rows: int, width: int) -> tuple[Tensor, np.ndarray]:
    """Two tensors of heads, each put in rows of all heads, one beside the other."""
    a, b = [RNG.standard_normal((batch, heads, rows, width)).astype(np.float32) for _ in range(2)]
    flat = (batch, rows, heads * width)
    y = (Tensor(a).transpose(1, 2).reshape(flat) * 2).cat(Tensor(b).transpose(1, 2).reshape(flat), dim=2)
    return y, np.concatenate([x.transpose(0, 2, 1, 3).reshape(flat) for x in (a * 2.0, b)], 2)


def program_of(y: Tensor, target: str) -> Program:
    normal = normalize([y.uop], ("CPU",))
    plan = schedule(normal.graph, len(normal.buffers))
    (kernel,) = [i.kernel for i in plan.items if i.kernel is not None]
    return compile_kernel(kernels.lower(kernel), llvm_renderer(host_target(), **TARGETS[target]))


@pytest.mark.parametrize("target", ["wide", "avx2"])
def test_parts_of_whole_vectors_are_not_gathered(target: str) -> None:
    program = program_of(heads_side_by_side(2, 3, 32, 64)[0], target)
    loads = [u for u in program.linear.src if u.op is Ops.LOAD]
    assert loads and all(u.src[0].op is Ops.SHRINK for u in loads)


@pytest.mark.parametrize(
    "sizes", [(2, 3, 32, 64), (1, 2, 5, 16), (2, 3, 7, 24), (1, 5, 3, 12), (3, 2, 4, 1), (1, 7, 9, 33)]
)
def test_concatenated_heads(sizes: tuple[int, int, int, int]) -> None:
    """Rows of whole vectors, of parts of one, and shorter ones."""
    y, expected = heads_side_by_side(*sizes)
    np.testing.assert_array_equal(y.numpy(), expected)
