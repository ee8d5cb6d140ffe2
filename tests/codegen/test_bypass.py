"""Large results are stored past the caches: whole aligned lines only, and never memory that the kernel reads."""

import numpy as np
import pytest

from aril import Tensor
from aril.codegen import Program, compile_kernel
from aril.ops import Ops
from aril.renderer.llvm import llvm_renderer
from aril.runtime.target import host_target
from aril.schedule import kernels, normalize, schedule
from aril.uop.node import UOp
from tests.codegen import build as b
from tests.codegen.run import TARGETS, check, run_native


def large(kernel: b.Kernel, align: int = 64) -> b.Kernel:
    """The same kernel, whose result says how it is aligned."""
    new = {
        u: u.replace(arg=u.arg._replace(align=align))
        for u in kernel.sink.toposort()
        if u.op is Ops.PARAM and u.arg.slot == 0
    }
    kernel.sink = kernel.sink.substitute(new)
    return kernel


def program_of(kernel: b.Kernel, target: str, l3: int = 1 << 10) -> Program:
    return compile_kernel(kernel.sink, llvm_renderer(host_target(), **{**TARGETS[target], "l3": l3}))


def hints(program: Program) -> tuple[int, int]:
    """(stores to the result with the hint, without)."""
    stores = [u for u in program.linear.src if u.op is Ops.STORE and u.src[0].src[0].op is Ops.PARAM]
    with_hint = [u for u in stores if u.arg == "nontemporal"]
    return len(with_hint), len(stores) - len(with_hint)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "make",
    [lambda: b.elementwise(48, 64), lambda: b.bias(31, 96), lambda: b.softmax(20, 128), lambda: b.elementwise(7, 33)],
    ids=["elementwise", "bias", "softmax", "short rows"],
)
def test_results_are_the_same_past_the_caches(make, target: str) -> None:
    kernel = large(make())
    program = program_of(kernel, target)
    check(kernel, run_native(kernel, program))
    if "fence" not in program.source:
        assert hints(program)[0] == 0


@pytest.mark.parametrize("target", ["wide", "avx2"])
def test_whole_lines_go_past_the_caches(target: str) -> None:
    program = program_of(large(b.bias(32, 96)), target)
    assert hints(program)[0] > 0
    assert hints(program)[1] == 0
    assert "!nontemporal" in program.source
    assert "fence seq_cst" in program.source


@pytest.mark.parametrize(
    ("kernel", "l3"),
    [
        (large(b.bias(32, 96)), 1 << 20),  # fits the cache
        (b.bias(32, 96), 1 << 10),  # may lie anywhere
        (large(b.bias(32, 97)), 1 << 10),  # rows begin in the middle of a line
        (large(b.bias(32, 96), align=16), 1 << 10),
    ],
    ids=["small", "unknown", "odd rows", "little alignment"],
)
def test_other_stores_stay_in_the_caches(kernel: b.Kernel, l3: int) -> None:
    program = program_of(kernel, "wide", l3)
    assert hints(program)[0] == 0
    assert "fence" not in program.source


def test_memory_that_the_kernel_reads_stays_in_the_caches() -> None:
    r = UOp.range(4096, 0)
    p = UOp.param(0, "float32", 4096, align=64).index(r)
    sink = b.sink(p.store(p.load() + 1.0).end(r))
    assert hints(program_of(b.Kernel(sink, [], [], list), "wide"))[0] == 0


def test_only_large_results_of_a_schedule_are_known_to_be_aligned() -> None:
    for shape, want in (((2048, 1024), 64), ((64, 64), 1)):
        x = Tensor.empty(*shape)
        steps = schedule(*_graph(x + 1))
        params = [u for u in steps.items[0].kernel.toposort() if u.op is Ops.PARAM]
        assert {u.arg.slot: u.arg.align for u in params} == {0: want, 1: 1}


def _graph(x: Tensor) -> tuple[UOp, int]:
    found = normalize([x.uop])
    return found.graph, len(found.buffers)


def test_a_large_result_is_right() -> None:
    size = kernels.LARGE_RESULT // 4 + 64
    x = np.arange(size, dtype=np.float32)
    assert np.array_equal((Tensor(x) * 2).numpy(), x * 2)


@pytest.mark.parametrize("target", ["wide", "avx2"])
@pytest.mark.parametrize(("rows", "cols"), [(64, 96), (48, 32), (80, 1000)])
def test_a_transposed_copy_fills_the_lines_of_its_result(target: str, rows: int, cols: int) -> None:
    """Also where a vector is half of a line: two of them then, one after the other."""
    kernel = large(b.transpose(cols, rows))
    program = program_of(kernel, target)
    check(kernel, run_native(kernel, program))
    past, others = hints(program)
    assert past > 0
    assert others == 0


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("rows", "cols"), [(33, 17), (24, 40), (8, 16), (9, 130)])
def test_transposed_copies_of_any_size(target: str, rows: int, cols: int) -> None:
    kernel = b.transpose(rows, cols)
    check(kernel, run_native(kernel, program_of(kernel, target)))


@pytest.mark.parametrize("target", ["wide", "avx2"])
@pytest.mark.parametrize(("rows", "cols"), [(1657, 659), (977, 880), (563, 2048)])
def test_chunks_of_transposed_copies_are_whole_tiles(target: str, rows: int, cols: int) -> None:
    """Whatever the number of rows: no element is loaded alone."""
    kernel = b.transpose(rows, cols)
    program = program_of(kernel, target)
    assert int(program.chunks) > 1
    loads = [u for u in program.linear.src if u.op is Ops.LOAD and u.src[0].src[0].op is Ops.PARAM]
    assert loads and all(u.src[0].op is Ops.SHRINK for u in loads)
    check(kernel, run_native(kernel, program))
