"""Kernels from kernel form to results: every kind, each vector width, with and without steps, also interpreted."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from aril import config
from aril.codegen import compile_kernel
from aril.ops import Ops
from tests.codegen import build as b
from tests.codegen.run import TARGETS, check, renderer, run_all, run_native

KERNELS = {
    "elementwise": lambda: b.elementwise(7, 33),
    "three elements": lambda: b.elementwise(3),
    "one element": lambda: b.elementwise(1),
    "bias": lambda: b.bias(5, 40),
    "transpose": lambda: b.transpose(20, 30),
    "row sum": lambda: b.row_sum(4, 100),
    "row maximum": lambda: b.row_sum(4, 101, Ops.MAX),
    "row product": lambda: b.row_sum(3, 37, Ops.MUL),
    "short rows": lambda: b.row_sum(40, 3),
    "column sum": lambda: b.column_sum(50, 70),
    "full sum": lambda: b.full_sum(30, 41),
    "softmax": lambda: b.softmax(4, 50),
    "softmax over one loop": lambda: b.softmax(4, 50, True),
    "softmax of 10": lambda: b.softmax(33, 10),
    "matmul": lambda: b.matmul(8, 32, 16),
    "matmul odd": lambda: b.matmul(37, 45, 29, relu=True),
    "matmul nt": lambda: b.matmul(40, 70, 50, "nt"),
    "matmul tn": lambda: b.matmul(40, 70, 50, "tn"),
    "matmul tt": lambda: b.matmul(40, 70, 50, "tt"),
    "matmul batched": lambda: b.matmul(20, 33, 20, "nn", 3),
    "matmul float64": lambda: b.matmul(37, 45, 29, dtype=np.float64),
    "matmul deep": lambda: b.matmul(24, 64, 300, "nt"),
    "matvec": lambda: b.matvec(50, 60),
    "matvec transposed": lambda: b.matvec(50, 60, True),
    "conv": lambda: b.conv(2, 3, 4, 10, 3),
    "conv with bias": lambda: b.conv(2, 8, 16, 20, 5, True),
    "conv of 1 channel": lambda: b.conv(3, 1, 8, 17, 5),
    "conv weights": lambda: b.conv_weight(2, 3, 4, 10, 3),
    "conv weights 5x5": lambda: b.conv_weight(3, 4, 32, 12, 5),
    "conv data": lambda: b.conv_data(2, 3, 4, 10, 3),
    "pad": lambda: b.padded_copy(8, 20, 2),
    "symbolic elementwise": lambda: b.symbolic_scale(100, 57),
    "symbolic of 1": lambda: b.symbolic_scale(100, 1),
    "symbolic sum": lambda: b.symbolic_sum(3, 100, 57),
    "symbolic sum of 2": lambda: b.symbolic_sum(3, 100, 2),
    "argmax": lambda: b.argmax(3, 40),
    "one hot": lambda: b.one_hot(5, 10),
    "gather rows": lambda: b.gather_rows(9, 20, 5),
    "two nests": lambda: b.two_outputs(4, 33),
    "updates": lambda: b.updates(400, 129, 3, 701),
    "depthwise": lambda: b.depthwise(2, 3, 20, 3),
    "depthwise weights": lambda: b.depthwise(2, 3, 20, 3, of_weight=True),
    "stepped window": lambda: b.stepped_window(3, 20, 4, 2),
    "stepped window of three": lambda: b.stepped_window(2, 11, 6, 3),
}
SLOW = {"conv with bias", "matmul deep", "matmul float64", "conv weights 5x5"}  # for the interpreter
LARGE = {
    "elementwise": lambda: b.elementwise(300, 1001),
    "softmax": lambda: b.softmax(300, 1000),
    "column sum": lambda: b.column_sum(300, 2003),
    "skinny": lambda: b.matmul(3, 1003, 700),
    "skinny batch": lambda: b.matmul(5, 300, 401, batch=3, relu=True),
    "skinny, transposed": lambda: b.matmul(8, 515, 601, "tn"),
    "column sum, wide": lambda: b.column_sum(37, 20_011),
    "bias": lambda: b.bias(512, 1000),
    "transpose": lambda: b.transpose(600, 500),
    "symbolic": lambda: b.symbolic_scale(2_000_000, 1_234_567),
    "matmul": lambda: b.matmul(250, 300, 257),
    "matmul deep": lambda: b.matmul(128, 96, 2048),
    "conv": lambda: b.conv(8, 16, 32, 24, 5),
    "conv weights": lambda: b.conv_weight(8, 16, 32, 24, 5),
    "conv data": lambda: b.conv_data(8, 16, 32, 24, 5),
    "updates": lambda: b.updates(500_000, 129, 3, 700_001),
    "matmul of strips": lambda: b.matmul(250, 300, 601, "tn"),
    "matmul of strips, narrow": lambda: b.matmul(211, 97, 1024, "tn"),
}


@pytest.mark.parametrize("name", KERNELS)
def test_is_right_without_steps(name: str) -> None:
    with config.Context(NOOPT=1):
        program = run_all(KERNELS[name](), interpret=name in ("three elements", "symbolic of 1", "short rows"))
    assert program.applied == ()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", KERNELS)
def test_is_right_with_the_default_steps(name: str, target: str) -> None:
    run_all(KERNELS[name](), target, interpret=target == "wide" and name not in SLOW)


@pytest.mark.parametrize("target", ["wide", "avx2", "small caches"])
@pytest.mark.parametrize("name", LARGE)
def test_large_kernels_are_right_and_in_chunks(name: str, target: str) -> None:
    program = run_all(LARGE[name](), target, interpret=False)
    assert program.chunks != 1


@pytest.mark.parametrize("name", ["elementwise", "softmax", "matmul odd", "conv with bias", "symbolic sum"])
def test_the_verifiers_accept_every_stage(name: str) -> None:
    with config.Context(SPEC=2):
        compile_kernel(KERNELS[name]().sink, renderer())


def test_source_is_the_same_in_every_process() -> None:
    script = (
        "import sys; from tests.codegen import build as b; from tests.codegen.run import renderer\n"
        "from aril.codegen import compile_kernel\n"
        "for k in (b.matmul(37, 45, 29), b.softmax(4, 50), b.conv(2, 8, 16, 20, 5, True)):\n"
        "    sys.stdout.write(compile_kernel(k.sink, renderer()).source)\n"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", script], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1


def test_results_do_not_depend_on_the_number_of_chunks_run_at_once() -> None:
    kernel = b.softmax(300, 1000)
    program = compile_kernel(kernel.sink, renderer())
    first, second = run_native(kernel, program), run_native(kernel, program)
    check(kernel, first)
    assert all(np.array_equal(x, y) for x, y in zip(first, second, strict=True))
