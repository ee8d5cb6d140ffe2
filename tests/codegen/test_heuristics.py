"""The default steps: what is chosen, and for which kernels."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest

from aril import config
from aril.codegen import compile_kernel
from aril.codegen.accumulate import separate
from aril.codegen.heuristics import choose, optimise
from aril.codegen.panels import Block, Keep, Stage
from aril.codegen.plan import Plan
from aril.codegen.prefetch import Prefetch
from aril.codegen.steps import Chunk, Merge, Reorder, Split, StepError, Unroll, Upcast, Vectorize, loops_of
from aril.dtype import dtypes
from aril.ops import Ops
from aril.uop.args import AddrSpace, AxisType, KernelInfo
from aril.uop.node import UOp
from tests.codegen import build as b
from tests.codegen.run import renderer, run_all
from tests.codegen.test_pipeline import KERNELS, LARGE


def plan_of(kernel: b.Kernel, target: str = "avx2", **facts: Any) -> Plan:
    plan = Plan(separate(kernel.sink), renderer(target, **facts))
    choose(plan)
    return plan


def steps(kernel: b.Kernel, kind: type, target: str = "avx2") -> list[Any]:
    return [s for s in plan_of(kernel, target).steps if isinstance(s, kind)]


def chunk_counts(kernel: b.Kernel, target: str) -> list[int]:
    """Turns of the loops that two threads share."""
    plan = plan_of(kernel, target, cores=2)
    (chunk,) = [s for s in plan.steps if isinstance(s, Chunk)]
    return [int(loops_of(plan.sink)[i].src[0].arg) for i in chunk.ids]


def accumulators(plan: Plan) -> int:
    """Vectors that the copied output loops keep in registers."""
    reduction = next(u for u in plan.sink.toposort() if u.op is Ops.REDUCE)
    out = 1
    for r in reduction.ranges:
        out *= int(r.src[0].arg) if r.arg.kind is AxisType.UPCAST else 1
    return out


@pytest.mark.parametrize("target", ["wide", "avx2", "narrow"])
@pytest.mark.parametrize("name", [*KERNELS, *LARGE])
def test_every_step_chosen_fits(name: str, target: str) -> None:
    assert plan_of({**KERNELS, **LARGE}[name](), target).stopped == ""


def test_loops_that_move_together_are_one() -> None:
    assert steps(b.elementwise(7, 33), Merge) == [Merge((0,), (1,))]
    assert steps(b.bias(7, 33), Merge) == []


def test_row_sums_have_several_accumulators_of_lanes() -> None:
    plan = plan_of(b.row_sum(4, 1000))
    kinds = [r.arg.kind for r in plan.sink.toposort() if r.op is Ops.RANGE]
    assert AxisType.VECTOR in kinds and AxisType.UPCAST in kinds


def test_column_sums_have_lanes_along_the_columns() -> None:
    assert all(s.id[0] == 0 for s in steps(b.column_sum(50, 70), Vectorize))


@pytest.mark.parametrize("target", ["wide", "avx2", "narrow"])
@pytest.mark.parametrize(("m", "rows_first"), [(1, True), (4, True), (8, True), (9, False)])
def test_a_skinny_product_goes_over_its_matrix_in_the_order_of_memory(target: str, m: int, rows_first: bool) -> None:
    plan = plan_of(b.matmul(m, 1000, 600), target)
    assert any(isinstance(s, Block) for s in plan.steps) is rows_first
    assert plan.stopped == ""


@pytest.mark.parametrize(
    ("target", "columns", "block", "rows"),
    [("wide", 128, False, 2), ("wide", 600, True, 8), ("avx2", 96, False, 2), ("avx2", 128, True, 2)],
)
def test_short_rows_of_a_skinny_product_lie_in_registers(target: str, columns: int, block: bool, rows: int) -> None:
    """Where every sum of a row has a register, there is no panel; few rows that follow each other are one stream."""
    plan = plan_of(b.matmul(1, columns, 8000), target)
    assert any(isinstance(s, Block) for s in plan.steps) is block
    assert [s.factor for s in plan.steps if isinstance(s, Split) and s.id == (2,)] == [rows]
    assert plan.stopped == ""


def test_columns_of_a_small_matrix_stay_in_registers() -> None:
    assert steps(b.column_sum(50, 70), Block) == []
    assert len(steps(b.column_sum(600, 1000), Block)) == 1


def test_every_loop_of_a_softmax_has_lanes() -> None:
    assert {s.id[0] for s in steps(b.softmax(40, 100), Vectorize)} == {1, 2, 3}


@pytest.mark.parametrize(("target", "least", "most"), [("wide", 16, 30), ("avx2", 8, 14)])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_matrix_products_fill_the_registers(layout: str, target: str, least: int, most: int) -> None:
    assert least <= accumulators(plan_of(b.matmul(192, 192, 192, layout), target)) <= most


def test_the_right_operand_of_a_large_product_is_packed() -> None:
    kernel = b.matmul(8, 8, 8)
    assert steps(kernel, Stage) == []
    large = b.Build()
    i, j = large.loops(1024, 1024)
    k = large.loop(1024, b.REDUCE)
    shape = (1024, 1024)
    value = b.reduce(Ops.ADD, b.alu(Ops.MUL, b.load(1, shape, i, k), b.load(2, shape, k, j)), k)
    sink = b.sink(b.store(0, shape, [i, j], value))
    assert steps(b.Kernel(sink, [], [], list), Stage)


def test_the_gradient_of_weights_is_blocked_by_images() -> None:
    kernel = b.conv_weight(3, 32, 32, 24, 5)
    size = 512  # images: the arrays themselves are not needed here
    sink = kernel.sink.substitute({r: UOp.range(size, r.arg.id, r.arg.kind) for r in _loops(kernel.sink, 3)})
    plan = plan_of(b.Kernel(sink, [], [], list), "wide")
    assert [s for s in plan.steps if isinstance(s, Block)] and plan.stopped == ""


def test_the_images_gradient_of_one_channel_has_a_tile_too() -> None:
    """The window moves against the outputs, and terms of one plane of the gradient follow each other."""
    plan = plan_of(b.conv_data(16, 1, 8, 20, 3))
    assert accumulators(plan) >= 4
    kernel = b.conv_data(16, 2, 8, 20, 3)
    o, ky, kx = [r for r in loops_of(kernel.sink).values() if r.arg.kind is b.REDUCE]
    renamed = {r: UOp.range(r.src[0], n, r.arg.kind) for r, n in ((ky, 4), (kx, 5), (o, 6))}
    plan = plan_of(b.Kernel(kernel.sink.substitute(renamed), [], [], list))
    assert plan.steps[0] == Reorder(((6,), (4,), (5,)))


@pytest.mark.parametrize("target", ["avx2", "wide"])
def test_a_panel_lies_in_the_order_in_which_it_is_used(target: str) -> None:
    """Whatever the order of the loops in the sum: the channels, its last ones, move farthest and go outermost."""
    kernel = b.conv_data(16, 64, 128, 14, 3)
    o, ky, kx = [r for r in loops_of(kernel.sink).values() if r.arg.kind is b.REDUCE]
    reduction = next(u for u in kernel.sink.toposort() if u.op is Ops.REDUCE)
    turned = reduction.with_src((reduction.src[0], ky, kx, o))
    renamed = {r: UOp.range(r.src[0], n, r.arg.kind) for r, n in ((ky, 4), (kx, 5), (o, 6))}
    sink = kernel.sink.substitute({reduction: turned}).substitute(renamed)
    plan = plan_of(b.Kernel(sink, [], [], list), target)
    assert plan.steps[0] == Reorder(((6,), (4,), (5,)))
    staged = [s for s in plan.steps if isinstance(s, Stage)]
    assert staged and all(s.inner[:3] == ((4,), (5,), (6,)) for s in staged)


def test_channels_apart_are_fetched_ahead_where_the_image_exceeds_the_cache() -> None:
    """One request for the turns of a window's columns, a row of the result ahead; none for a small image."""
    large, small = plan_of(b.conv(4, 32, 64, 64, 3), "wide"), plan_of(b.conv(4, 4, 64, 20, 3), "wide")
    found = [s for s in large.steps if isinstance(s, Prefetch)]
    assert len(found) == 1 and found[0].operand == 0
    asked = [u for u in large.sink.toposort() if u.op is Ops.LOAD and u.arg == "prefetch"]
    assert len(asked) == 2  # one for each of the tile's images
    assert all(u.src[0].src[1].vmax < u.src[0].src[0].arg.size for u in asked)
    assert not [s for s in small.steps if isinstance(s, Prefetch)]


@pytest.mark.parametrize("target", ["wide", "avx2"])
@pytest.mark.parametrize(
    ("images", "channels", "size", "groups", "step"),
    [(2, (64, 64), 18, 4, 1), (3, (15, 33), 11, 3, 1), (2, (48, 36), 19, 3, 2)],
)
def test_tiles_of_a_grouped_convolution_lie_in_a_group(
    images: int, channels: tuple[int, int], size: int, groups: int, step: int, target: str
) -> None:
    """A loop over the channels of all groups has no one stride in the images."""
    kernel = b.conv(images, *channels, size, 3, groups=groups, step=step)
    plan = plan_of(kernel, target)
    assert Split((1,), channels[1] // groups) in plan.steps
    assert not any(u.op is Ops.FLOORDIV for u in plan.sink.toposort())
    run_all(kernel, target, interpret=False)


def _loops(sink: UOp, length: int) -> list[UOp]:
    return [r for r in sink.toposort() if r.op is Ops.RANGE and r.src[0].arg == length and r.arg.kind is b.REDUCE]


def test_small_kernels_are_one_chunk_and_large_ones_several() -> None:
    assert steps(b.elementwise(7, 33), Chunk) == []
    assert len(steps(b.elementwise(1000, 1000), Chunk)) == 1


def test_no_output_is_done_twice_where_the_kernel_reads_what_it_writes() -> None:
    r = UOp.range(1000, 0)
    p = UOp.param(0, "float32", 1000).index(r)
    sink = b.sink(p.store(b.alu(Ops.ADD, p.load(), 1.0)).end(r))
    assert all(s.tail != "overlap" for s in steps(b.Kernel(sink, [], [], list), Split))


def test_asked_for_steps_are_taken_and_noted() -> None:
    wanted = (Upcast((0,)),)
    sink = b.bias(4, 30).sink.replace(arg=KernelInfo("k", opts_to_apply=wanted))
    assert optimise(sink, renderer()).arg.applied == wanted
    with pytest.raises(StepError, match=r"Upcast\(id=\(5,\)\)"):
        optimise(sink.replace(arg=KernelInfo("k", opts_to_apply=(Upcast((5,)),))), renderer())


def test_noopt_takes_none() -> None:
    with config.Context(NOOPT=1):
        assert optimise(b.bias(4, 30).sink, renderer()).arg.applied == ()


def test_the_choice_is_shown_with_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    with config.Context(DEBUG=3):
        optimise(b.row_sum(4, 100).sink, renderer())
    assert "# lanes of a reduction" in capsys.readouterr().err


def test_a_short_window_is_unrolled() -> None:
    bld = b.Build()
    i = bld.loop(64)
    k = bld.loop(3, b.REDUCE)
    value = b.reduce(Ops.MAX, b.load(1, (66,), add_index(i, k)), k)
    sink = b.sink(b.store(0, (64,), [i], value))
    assert steps(b.Kernel(sink, [], [], list), Unroll) == [Unroll((1,))]


def test_of_short_reductions_within_each_other_the_inner_ones_are_unrolled() -> None:
    bld = b.Build()
    i = bld.loop(64)
    loops = [bld.loop(8, b.REDUCE) for _ in range(5)]
    value = b.load(1, (64, *(8,) * 5), i, *loops)
    for r in reversed(loops):
        value = b.reduce(Ops.ADD, UOp(Ops.MUL, (value, value)), r)
    # loop 5 becomes lanes; copies of all would be 8 ** 4, and minutes of compiling
    kernel = b.Kernel(b.sink(b.store(0, (64,), [i], value)), [], [], list)
    assert steps(kernel, Unroll) == [Unroll((4,)), Unroll((3,))]


def add_index(a: UOp, c: UOp) -> UOp:
    return UOp(Ops.ADD, (a, c))


@pytest.mark.parametrize(("target", "lanes"), [("wide", 16), ("avx2", 8)])
def test_a_wide_number_of_each_row_does_not_halve_the_lanes_of_its_elements(target: str, lanes: int) -> None:
    """Class numbers of 8 bytes beside rows of float32, as in a cross-entropy."""
    i, k = UOp.range(64, (0,), b.LOOP), UOp.range(1000, (1,), b.REDUCE)
    total = b.reduce(Ops.ADD, b.load(2, (64, 1000), i, k), k)
    counts = UOp(Ops.CMPNE, (b.load(1, (64,), i, dtype=dtypes.int64), UOp.const(dtypes.int64, -100)))
    value = UOp(Ops.WHERE, (counts, total, UOp.const(dtypes.float32, 0.0)))
    plan = Plan(separate(b.sink(b.store(0, (64,), [i], value))), renderer(target))
    choose(plan)
    lane = [r for r in loops_of(plan.sink).values() if r.arg.kind is AxisType.VECTOR and r.arg.id[0] == 1]
    assert max(int(r.src[0].arg) for r in lane) == lanes


@pytest.mark.parametrize("target", ["wide", "avx2"])
def test_sums_of_exponentials_leave_registers_for_the_constants(target: str) -> None:
    """Several accumulators would spill on 16 registers, and hide no latency: a turn is longer than an addition. Of what
    no cache holds they are as many as fill a line."""
    for l3, turn in (1 << 20, 16 if target == "wide" else 8), (1 << 16, 16):
        loops = loops_of(plan_of(b.softmax(40, 1024), target, l3=l3).sink).values()
        found = {n: prod([int(r.src[0].arg) for r in loops if r.arg.id[:2] == (n, 1)]) for n in (2, 3)}
        assert found[3] == turn and found[2] >= 32


@pytest.mark.parametrize("target", ["wide", "avx2"])
def test_results_of_exponentials_are_stored_a_line_at_a_time(target: str) -> None:
    """So that those larger than the caches go past them, on vectors of half a line too."""
    i = UOp.range(1 << 20, (0,), b.LOOP)
    value = UOp(Ops.EXP2, (b.load(1, (1 << 20,), i),))
    (out,) = (u for u in value.src[0].toposort() if u.op is Ops.PARAM)
    large = out.replace(arg=out.arg._replace(slot=0, align=64))
    kernel = UOp.sink(large.index(i).store(value).end(i), arg=KernelInfo("k"))
    assert "!nontemporal" in compile_kernel(kernel, renderer(target, l3=1 << 20), 2).source


@pytest.mark.parametrize("target", ["wide", "avx2"])
@pytest.mark.parametrize(("rows", "cols"), [(512, 1024), (521, 1031)])
def test_the_next_row_is_asked_for_where_arithmetic_sets_the_pace(target: str, rows: int, cols: int) -> None:
    """In the sum of exponentials, a line a turn: the maximum before it waits for memory."""
    plan = plan_of(b.softmax(rows, cols), target, l3=1 << 20)
    assert [(s.id, s.turns) for s in plan.steps if isinstance(s, Prefetch)] == [((0, 1), 1)]
    (asked,) = [u for u in plan.sink.toposort() if u.op is Ops.LOAD and u.arg == "prefetch"]
    assert {r.arg.id[0] for r in asked.src[0].src[1].ranges} == {0, 3}
    assert not [s for s in plan_of(b.softmax(rows, cols), target, l3=1 << 22).steps if isinstance(s, Prefetch)]
    run_all(b.softmax(37, 1031), "small caches", interpret=False)


def stepped_columns(rows: int, cols: int, step: int) -> b.Kernel:
    """The sums of every `step`-th column."""
    bld = b.Build()
    x = bld.array(rows, cols * step + 1)
    j, i = bld.loop(cols), bld.loop(rows, b.REDUCE)
    place = UOp(Ops.ADD, (UOp(Ops.MUL, (j, b.num(step))), b.num(1)))
    total = b.reduce(Ops.ADD, b.load(1, (rows, cols * step + 1), i, place), i)
    return b.Kernel(
        b.sink(b.store(0, (cols,), [j], total)), [(0, np.zeros(cols, np.float32))], [x],
        lambda: [x[:, 1::step].astype(float).sum(0)],
    )  # fmt: skip


@pytest.mark.parametrize("target", ["wide", "avx2"])
@pytest.mark.parametrize(("step", "block"), [(2, True), (4, True), (5, False)])
def test_sums_of_every_other_column_go_in_the_order_of_memory(target: str, step: int, block: bool) -> None:
    """As those of all columns do, as long as vectors load what lies between."""
    assert bool(steps(stepped_columns(700, 1255, step), Block, target)) is block
    run_all(stepped_columns(97, 403, step), "small caches", interpret=False)


@pytest.mark.parametrize("target", ["wide", "avx2"])
def test_short_windows_that_are_stored_transposed_are_transposed_in_registers(target: str) -> None:
    """A running sum along the first axis, of rows that lie the other way: lanes are not stored one by one."""
    rows, cols = 301, 517
    bld = b.Build()
    x = bld.array(cols, rows + 7)
    i, j, k = bld.loop(rows), bld.loop(cols), bld.loop(8, b.REDUCE)
    total = b.reduce(Ops.ADD, b.load(1, x.shape, j, UOp(Ops.ADD, (i, k))), k)
    kernel = b.Kernel(
        b.sink(b.store(0, (rows, cols), [i, j], total)), [(0, np.zeros((rows, cols), np.float32))], [x],
        lambda: [np.lib.stride_tricks.sliding_window_view(x.astype(float), 8, 1).sum(-1).T],
    )  # fmt: skip
    plan = plan_of(kernel, target)
    tile = [int(r.src[0].arg) for r in loops_of(plan.sink).values() if r.arg.kind is AxisType.UPCAST]
    assert prod(tile) == 16
    assert "masked." not in compile_kernel(kernel.sink, renderer(target), 2).source
    run_all(kernel, target, interpret=False)


@pytest.mark.parametrize("target", ["wide", "avx2"])
@pytest.mark.parametrize(("rows", "cols"), [(1289, 1644), (1644, 1289)])
def test_transposing_kernels_of_any_size_have_tiles_in_every_chunk(target: str, rows: int, cols: int) -> None:
    """Lines of the strided side are used whole: no lane is gathered, in the last chunk neither."""
    plan = plan_of(b.transpose(rows, cols), target)
    assert any(s.ids for s in plan.steps if isinstance(s, Chunk))
    tile = [int(r.src[0].arg) for r in loops_of(plan.sink).values() if r.arg.kind is AxisType.UPCAST]
    assert prod(tile) == 16
    program = compile_kernel(b.transpose(rows, cols).sink, renderer(target), 2)
    assert "masked.gather" not in program.source
    run_all(b.transpose(rows, cols), target, interpret=False)


@pytest.mark.parametrize("target", ["wide", "avx2"])
@pytest.mark.parametrize("cols", [100, 4096, 1037])
def test_a_softmax_computes_each_exponential_once(target: str, cols: int) -> None:
    """Beside the maximum there is one loop with exponentials; the results read what it kept."""
    kernel = b.softmax(8, cols)
    assert len(steps(kernel, Keep, target)) == 1
    plan = plan_of(kernel, target)
    at = {r.arg.id[0] for u in plan.sink.toposort() if u.op is Ops.EXP2 for r in u.ranges if r.arg.id[0] > 0}
    assert at == {3}


def test_rows_longer_than_the_cache_compute_their_exponentials_again() -> None:
    assert steps(b.softmax(2, 5000), Keep, "small caches") == []


def test_what_only_one_loop_computes_is_not_kept() -> None:
    with pytest.raises(StepError, match="in common"):
        Keep((1,), (0,)).apply(separate(b.row_sum(8, 8).sink))


def test_a_sum_of_one_tile_that_a_condition_reads_too_is_computed_once() -> None:
    """Seven exponentials: one vector of four and three alone, kept once; the total's zero is asked for beside it."""
    i, j, k = UOp.range(6, (0,), b.LOOP), UOp.range(7, (1,), b.LOOP), UOp.range(7, (2,), b.REDUCE)
    total = b.reduce(Ops.ADD, b.alu(Ops.EXP2, b.load(1, (6, 7), i, k)), k)
    safe = UOp(Ops.WHERE, (UOp(Ops.CMPEQ, (total, total.const_like(0.0))), total.const_like(1.0), total))
    value = b.alu(Ops.FDIV, b.alu(Ops.EXP2, b.load(1, (6, 7), i, j)), safe)
    program = compile_kernel(b.sink(b.store(0, (6, 7), [i, j], value)), renderer("avx2"))
    kept = [u for u in program.linear.src if u.op is Ops.STORE and u.src[0].src[0].op is Ops.BUFFER]
    assert len([u for u in kept if u.src[0].src[0].arg.addrspace is AddrSpace.LOCAL]) == 4


@pytest.mark.parametrize(("target", "vectors"), [("wide", 2), ("avx2", 1)])
@pytest.mark.parametrize("rows", [512, 4099])
def test_rows_of_a_matrix_share_the_vector(target: str, vectors: int, rows: int) -> None:
    """Eight rows at once: the vector is read once for them, and half of the registers hold their sums."""
    plan = plan_of(b.matvec(rows, 4096), target)
    copies = [int(loops_of(plan.sink)[s.id].src[0].arg) for s in plan.steps if isinstance(s, Upcast)]
    assert copies == ([8, vectors] if vectors > 1 else [8])
    assert plan.stopped == ""


@pytest.mark.parametrize("target", ["wide", "avx2"])
@pytest.mark.parametrize(("rows", "cols"), [(287, 2081), (1621, 1196), (2000, 1500)])
def test_chunks_of_a_matrix_by_a_vector_are_whole_turns_of_rows(target: str, rows: int, cols: int) -> None:
    """A chunk of 17 rows, 8 at once, did 24."""
    plan = plan_of(b.matvec(rows, cols), target)
    assert any(s.ids for s in plan.steps if isinstance(s, Chunk))
    kinds = [type(s) for s in plan.steps]
    assert kinds.index(Upcast) < kinds.index(Chunk)
    assert not [s for s in plan.steps if isinstance(s, Split) and s.tail == "repeat"]
    run_all(b.matvec(rows, cols), target, interpret=False)


@pytest.mark.parametrize("target", ["wide", "avx2", "narrow"])
@pytest.mark.parametrize(("rows", "cols"), [(5, 1100), (13, 1030), (1001, 1024), (300, 2049)])
def test_matrix_by_vector(target: str, rows: int, cols: int) -> None:
    run_all(b.matvec(rows, cols), target, interpret=rows < 20)


def test_short_rows_are_summed_one_by_one() -> None:
    assert all(s.id[0] != 0 for s in steps(b.matvec(1000, 64), Upcast))


def picked_rows(count: int, rows: int, cols: int) -> b.Kernel:
    """Rows of a matrix at positions that memory holds."""
    bld = b.Build()
    x, at = bld.array(rows, cols), bld.rng.integers(0, rows, count)
    i, j = bld.loops(count, cols)
    where = b.load(2, (count,), i, dtype=dtypes.int64).cast(dtypes.weakint)
    value = b.load(1, (rows, cols), where, j)
    return b.Kernel(
        b.sink(b.store(0, (count, cols), [i, j], value)), [(0, np.zeros((count, cols), np.float32))], [x, at],
        lambda: [x[at].astype(float)],
    )  # fmt: skip


@pytest.mark.parametrize("target", ["wide", "avx2"])
def test_picked_rows_are_asked_for_one_ahead(target: str) -> None:
    """Where the matrix exceeds the cache and a row is several lines; the last turn asks for its own row."""
    found = steps(picked_rows(300, 4096, 256), Prefetch, target)
    assert [(s.id[0], s.turns) for s in found] == [(0, 1)]
    assert steps(picked_rows(300, 512, 256), Prefetch, target) == []
    assert steps(picked_rows(300, 65536, 16), Prefetch, target) == []
    run_all(picked_rows(37, 4096, 272), target, interpret=False)


@pytest.mark.parametrize("target", ["wide", "avx2"])
@pytest.mark.parametrize(("m", "k", "n"), [(1048, 307, 258), (33, 500, 500), (12, 700, 900), (1000, 333, 777)])
def test_chunks_of_products_are_many_enough_to_end_together(target: str, m: int, k: int, n: int) -> None:
    """The busier of two threads has a twelfth more than half of them at worst, and no chunk is tiny."""
    count = prod(chunk_counts(b.matmul(m, n, k), target))
    assert -(-count // 2) <= 13 / 12 * count / 2 and 6 <= count <= m * k * n / 20_000


@pytest.mark.parametrize("target", ["wide", "avx2"])
def test_threads_share_products_of_a_million_terms(target: str) -> None:
    """They take over 8 microseconds of one core, whichever vectors it has."""
    assert len(steps(b.matmul(16, 512, 128, "nt"), Chunk, target)) == 1
    assert len(steps(b.matmul(96, 96, 96), Chunk, target)) == 1
    assert steps(b.matmul(8, 256, 64, "nt"), Chunk, target) == []


def test_three_chunks_are_no_share_of_two_threads() -> None:
    """18 rows are three tiles; the columns are shared as well."""
    assert chunk_counts(b.matmul(18, 512, 96), "avx2") == [3, 2]
    assert chunk_counts(b.matmul(24, 512, 96), "avx2") == [4]


@pytest.mark.parametrize(("columns", "counts"), [(1093, [18]), (1072, [17, 2])])
def test_panels_are_filled_twice_where_threads_share_them_unevenly(columns: int, counts: list[int]) -> None:
    """Groups of four panels; 18 of them are nine for each of two threads."""
    assert chunk_counts(b.matmul(1259, columns, 1694), "avx2") == counts


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("tiles", "group"), [(66, 4), (33, 2), (31, 1)])
def test_panels_of_neighbours_are_filled_at_once(dtype: type, tiles: int, group: int) -> None:
    """A line wide, they are read in pieces of 256 bytes of a row; chunks are whole groups, and enough for threads."""
    width = 64 // np.dtype(dtype).itemsize
    plan = plan_of(b.matmul(600, width * tiles, 300, dtype=dtype), "avx2", cores=2)
    (stage,) = [s for s in plan.steps if isinstance(s, Stage)]
    assert len(stage.inner) == (4 if group > 1 else 3)
    (chunk,) = [s for s in plan.steps if isinstance(s, Chunk)]
    assert int(loops_of(plan.sink)[chunk.ids[0]].src[0].arg) == -(-tiles // group)
    copy = next(u for u in plan.sink.toposort() if u.op is Ops.END)  # the nest itself comes after it
    order = [r.src[0] for r in sorted(copy.src[1:], key=lambda r: r.arg.id)]
    assert order[0].arg == 300  # rows of memory, each with its pieces


def test_groups_of_panels_that_do_not_come_out_even() -> None:
    """The last group has fewer panels, and the last panel starts early."""
    kernel = b.matmul(61, 821, 300)
    assert any(isinstance(s, Stage) and len(s.inner) == 4 for s in plan_of(kernel, "avx2", cores=2).steps)
    run_all(kernel, "avx2", interpret=False)


@pytest.mark.parametrize("size", [(1639, 373, 1433, 0), (1639, 240, 1433, None), (300, 257, 411, None)], ids=str)
def test_rows_by_columns_are_packed_where_a_panel_takes_their_place_in_cache(size: tuple[int, ...]) -> None:
    """`a.T @ b` reads a line of `a` at each step: 373 of them, and as many of a panel, do not fit 32 KiB. Where strips
    are short, filling the panels of `b` for each costs more."""
    m, k, n, packed = size
    first = [s.operand for s in steps(b.matmul(m, n, k, "tn"), Stage)][:1]
    assert (first == [0]) == (packed == 0)


def test_packed_strips_of_crowded_rows() -> None:
    run_all(b.matmul(700, 500, 311, "tn"), "avx2", interpret=False)


@pytest.mark.parametrize("target", ["wide", "avx2"])
@pytest.mark.parametrize("depth", [136, 138, 139])
def test_rows_are_packed_by_transposing_tiles_whatever_their_length(target: str, depth: int) -> None:
    """Four numbers of each row at once; the last tile begins earlier."""
    kernel = b.matmul(240, 320, depth, "nt")
    copies = [u for u in plan_of(kernel, target).sink.toposort() if u.op is Ops.END and u.src[0].op is Ops.STORE]
    loops = [[(r.arg.kind, r.src[0].arg) for r in u.src[1:]] for u in copies]
    assert any((AxisType.UPCAST, 4) in found and AxisType.VECTOR in dict(found) for found in loops)
    run_all(kernel, target, interpret=False)
