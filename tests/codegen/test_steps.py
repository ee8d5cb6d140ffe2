"""Steps keep a kernel's meaning, and say why they do not fit."""

from __future__ import annotations

import numpy as np
import pytest

from aril.codegen import compile_kernel
from aril.codegen.panels import Block, Keep, Stage
from aril.codegen.prefetch import Prefetch
from aril.codegen.steps import (
    Chunk,
    Merge,
    Reorder,
    Split,
    Step,
    StepError,
    Swap,
    Unroll,
    Upcast,
    Vectorize,
    loops_of,
)  # fmt: skip
from aril.config import Context
from aril.dtype import dtypes
from aril.ops import Ops
from aril.uop.args import AxisType, KernelInfo
from aril.uop.node import UOp
from tests.codegen import build as b
from tests.codegen.run import check, chunks_of, renderer, run_native


def run(kernel: b.Kernel, *steps: Step, target: str = "wide") -> UOp:
    """Run the kernel under exactly these steps; returns its SINK after them."""
    sink = kernel.sink.replace(arg=KernelInfo("k", opts_to_apply=steps))
    program = compile_kernel(sink, renderer(target))
    assert program.applied == steps
    check(kernel, run_native(kernel, program))
    for step in steps:
        sink = step.apply(sink)
    return sink


def ends(sink: UOp) -> dict[tuple[int, ...], object]:
    return {i: r.src[0].arg for i, r in loops_of(sink).items()}


def test_split_of_a_dividing_length_makes_two_loops() -> None:
    sink = run(b.elementwise(6, 20), Split((1,), 4))
    assert ends(sink) == {(0,): 6, (1, 0): 5, (1, 1): 4}


def test_split_needs_a_tail_where_the_length_does_not_divide() -> None:
    with pytest.raises(StepError, match=r"Split.*20 turns do not divide by 3; use tail='peel' or 'overlap'"):
        Split((1,), 3).apply(b.elementwise(6, 20).sink)


def test_a_peeled_rest_is_a_nest_of_its_own() -> None:
    sink = run(b.elementwise(6, 20), Split((1,), 8, "peel"))
    assert len(sink.src) == 2
    assert ends(sink)[1, 2] == 4


def test_a_peeled_reduction_combines_main_and_rest() -> None:
    sink = run(b.row_sum(3, 20), Split((1,), 8, "peel"))
    assert len([u for u in sink.toposort() if u.op is Ops.REDUCE]) == 2


def test_a_loop_shorter_than_the_tile_is_only_rest() -> None:
    sink = run(b.row_sum(3, 5), Split((1,), 8, "peel"))
    assert ends(sink)[1, 2] == 5 and (1, 0) not in ends(sink)


def test_overlapping_tiles_stay_inside() -> None:
    run(b.elementwise(6, 20), Split((1,), 8, "overlap"), Vectorize((1, 1)))


@pytest.mark.parametrize("n", [8, 15, 16, 40])
def test_overlapping_tiles_of_a_variable_length_that_is_surely_long_enough(n: int) -> None:
    v, a = UOp.variable("n", 8, 40), np.arange(40, dtype=np.float32)
    r = UOp.range(v, 0)
    x, out = UOp.param(1, "float32", 40), UOp.param(0, "float32", 40)
    sink = b.sink(out.index(r).store(b.alu(Ops.ADD, x.index(r).load(), 1.0)).end(r))
    want = np.where(np.arange(40) < n, a + 1, 0)
    kernel = b.Kernel(sink, [(0, np.zeros(40, np.float32))], [a], lambda: [want], {"n": n})
    run(kernel, Split((0,), 8, "overlap"), Vectorize((0, 1)))


@pytest.mark.parametrize("columns", [3, 8, 20])
def test_repeated_turns_stay_inside(columns: int) -> None:
    run(b.elementwise(6, columns), Split((1,), 8, "repeat"), Upcast((1, 1)))


@pytest.mark.parametrize("columns", [3, 8, 20])
def test_masked_lanes_touch_nothing(columns: int) -> None:
    with Context(SPEC=2):  # a load whose index may be invalid has an alternative
        run(b.elementwise(6, columns), Split((1,), 8, "masked"), Vectorize((1, 1)))


@pytest.mark.parametrize("tail", ["repeat", "masked"])
def test_filled_tiles_are_refused_for_reductions(tail: str) -> None:
    with pytest.raises(StepError, match="use tail='peel'"):
        Split((1,), 8, tail).apply(b.row_sum(3, 20).sink)


def test_overlap_is_refused_for_reductions() -> None:
    with pytest.raises(StepError, match="a reduction cannot take elements twice"):
        Split((1,), 8, "overlap").apply(b.row_sum(3, 20).sink)


def test_overlap_is_refused_where_a_kernel_reads_what_it_writes() -> None:
    r = UOp.range(20, 0)
    p = UOp.param(0, "float32", 20).index(r)
    with pytest.raises(StepError, match="the kernel reads a buffer it writes"):
        Split((0,), 8, "overlap").apply(b.sink(p.store(b.alu(Ops.ADD, p.load(), 1.0)).end(r)))


def test_overlap_is_refused_below_one_tile() -> None:
    with pytest.raises(StepError, match="length of at least 32"):
        Split((1,), 32, "overlap").apply(b.elementwise(6, 20).sink)


@pytest.mark.parametrize("n", [1, 15, 16, 17, 100])
@pytest.mark.parametrize("tail", ["peel", "ragged"])
def test_symbolic_lengths_are_tiled(tail: str, n: int) -> None:
    run(b.symbolic_scale(100, n), Split((0,), 16, tail))


@pytest.mark.parametrize("n", [1, 31, 32, 33])
def test_a_ragged_chunk_holds_vectors_and_a_rest(n: int) -> None:
    kernel = b.symbolic_scale(100, n)
    sink = kernel.sink.replace(
        arg=KernelInfo(
            "k", (Split((0,), 32, "ragged"), Chunk(((0, 0),)), Split((0, 1), 8, "peel"), Vectorize((0, 1, 1)))
        )
    )
    program = compile_kernel(sink, renderer())
    assert chunks_of(kernel, program) == -(-n // 32)
    check(kernel, run_native(kernel, program))


def test_a_constant_length_is_asked_for() -> None:
    with pytest.raises(StepError, match="no constant length"):
        Split((0,), 16).apply(b.symbolic_scale(100, 5).sink)
    with pytest.raises(StepError, match="no constant length"):
        Vectorize((0,)).apply(b.symbolic_scale(100, 5).sink)


@pytest.mark.parametrize("step", [Vectorize((0,)), Upcast((0,)), Split((0,), 3, "peel")])
def test_loops_that_say_how_long_others_are_stay_whole(step: Step) -> None:
    i = UOp.range(8, 0)
    j = UOp.range(i, 1)
    effect = UOp.param(0, "float32", 16).index(b.alu(Ops.ADD, i, j)).store(UOp.const(dtypes.float32, 1.0))
    with pytest.raises(StepError, match="says how long another is"):
        step.apply(b.sink(effect.end(j).end(i)))


def test_merging_loops_that_move_together() -> None:
    sink = run(b.elementwise(6, 20), Merge((0,), (1,)))
    assert ends(sink) == {(0,): 120}


def test_merging_is_refused_where_the_loops_move_apart() -> None:
    with pytest.raises(StepError, match="do not always move together"):
        Merge((0,), (1,)).apply(b.bias(6, 20).sink)


def test_loops_change_places() -> None:
    sink = run(b.bias(6, 20), Swap((0,), (1,)))
    assert ends(sink) == {(0,): 20, (1,): 6}
    sink = run(b.conv(2, 3, 4, 10, 3), Reorder(((3,), (2,), (0,), (1,))))
    assert list(ends(sink).values())[:4] == [8, 8, 2, 4]


def test_only_loops_of_one_kind_change_places() -> None:
    with pytest.raises(StepError, match="of one kind"):
        Swap((0,), (1,)).apply(b.row_sum(3, 20).sink)


def test_copies_lanes_and_accumulators_give_the_same_results() -> None:
    run(b.matmul(6, 16, 10), Upcast((0,)), Vectorize((1,)), Unroll((2,)))
    run(b.row_sum(3, 64), Split((1,), 32), Split((1, 1), 8), Upcast((1, 1, 0)), Vectorize((1, 1, 1)))
    run(b.row_sum(3, 64, Ops.MAX), Vectorize((1,)))
    run(b.row_sum(3, 6), Vectorize((1,)))  # six lanes: no power of two


def test_upcast_is_limited() -> None:
    with pytest.raises(StepError, match="100 turns are more than 64: split it first"):
        Upcast((1,)).apply(b.elementwise(6, 100).sink)


def test_unroll_is_for_reductions() -> None:
    with pytest.raises(StepError, match="is no reduction; use Upcast"):
        Unroll((1,)).apply(b.elementwise(6, 20).sink)


def test_a_value_has_the_lanes_of_one_loop_only() -> None:
    with pytest.raises(StepError, match="already have the lanes"):
        Vectorize((0,)).apply(Vectorize((1,)).apply(b.elementwise(4, 8).sink))


def test_chunks_are_output_loops() -> None:
    sink = run(b.elementwise(6, 20), Chunk(((0,),)))
    assert loops_of(sink)[0,].arg.kind is AxisType.GLOBAL
    run(b.bias(6, 20), Chunk(((0,), (1,))))
    with pytest.raises(StepError, match=r"some nest has loops of \(\(0,\), \(2,\)\) but no loop \(2,\)"):
        Chunk(((0,), (2,))).apply(b.two_outputs(4, 8).sink)
    with pytest.raises(StepError, match="no nest has the loops"):
        Chunk(((1,),)).apply(b.row_sum(4, 8).sink)


@pytest.mark.parametrize("layout", ["nn", "nt"])
def test_a_staged_operand_is_read_from_a_panel(layout: str) -> None:
    kernel = b.matmul(12, 32, 20, layout)
    steps = (Split((1,), 16), Vectorize((1, 1)), Split((0,), 4), Upcast((0, 1)), Swap((0, 0), (1, 0)))
    # the swap exchanged the ids of the tile loops; the lanes kept theirs
    sink = run(kernel, *steps, Stage(1, ((2,), (1, 1))))
    panels = [u for u in sink.toposort() if u.op is Ops.BUFFER]
    assert [u.arg.size for u in panels] == [20 * 16]


def test_a_staged_operand_of_a_convolution() -> None:
    run(b.conv(2, 3, 16, 10, 3), Vectorize((1,)), Upcast((3,)), Stage(1, ((4,), (5,), (6,), (1,))))


def test_staging_names_what_is_missing() -> None:
    sink = b.matmul(12, 32, 20).sink
    with pytest.raises(StepError, match="operands 0 to 1"):
        Stage(2, ((2,),)).apply(sink)
    with pytest.raises(StepError, match="does not move with all of"):
        Stage(0, ((1,),)).apply(sink)


def test_a_blocked_reduction_adds_up_in_a_panel() -> None:
    steps = (Vectorize((0,)), Upcast((3,)), Block(((4,),)))
    sink = run(b.conv_weight(3, 2, 16, 10, 3), *steps)
    assert [u.arg.size for u in sink.toposort() if u.op is Ops.BUFFER] == [16 * 2 * 3 * 3]


def test_blocking_needs_another_loop_of_the_reduction() -> None:
    with pytest.raises(StepError, match="no other loop"):
        Block(((2,),)).apply(b.matmul(12, 32, 20).sink)


def test_an_unknown_loop_is_named_with_those_there_are() -> None:
    with pytest.raises(StepError, match=r"no loop \(7,\); its loops are \(0,\), \(1,\)"):
        Upcast((7,)).apply(b.elementwise(6, 20).sink)


def test_steps_print_as_the_code_that_makes_them() -> None:
    for step in (Split((1,), 8, "peel"), Upcast((0,)), Chunk(((0,),)), Stage(1, ((2,), (1, 1))), Block(((4,),))):
        assert eval(repr(step)) == step


def test_what_is_no_step_is_refused() -> None:
    kernel = b.elementwise(4)
    with pytest.raises(StepError, match="no optimisation step"):
        compile_kernel(kernel.sink.replace(arg=KernelInfo("k", opts_to_apply=("split",))), renderer())


@pytest.mark.parametrize("seed", range(40))
def test_random_steps_keep_the_meaning(seed: int) -> None:
    rng = np.random.default_rng(seed)
    kernel = (b.matmul(12, 18, 20), b.softmax(6, 24), b.conv(2, 3, 6, 9, 3), b.bias(10, 21))[seed % 4]
    sink, steps = kernel.sink, []
    for _ in range(8):
        loops = [r for r in loops_of(sink).values() if r.arg.kind in (AxisType.LOOP, AxisType.REDUCE)]
        if not loops:
            break
        loop = loops[rng.integers(len(loops))]
        factor = int(rng.integers(2, 6))
        options: list[Step] = [
            Split(loop.arg.id, factor, "peel"), Split(loop.arg.id, factor, "overlap"), Upcast(loop.arg.id),
            Unroll(loop.arg.id), Vectorize(loop.arg.id), Split(loop.arg.id, factor),
        ]  # fmt: skip
        step = options[rng.integers(len(options))]
        if isinstance(step, (Upcast, Unroll)) and loop.src[0].arg > 6:
            continue
        try:
            sink = step.apply(sink)
        except StepError:
            continue
        steps.append(step)
    run(kernel, *steps)


def test_nests_without_the_loops_of_a_chunk_get_chunks_of_their_own() -> None:
    kernel = b.updates(64, 40, 5)
    sink = run(kernel, Chunk(((0,),)), Split((1,), 16, "ragged"), Chunk(((1, 0),)))
    assert loops_of(sink)[2,].arg.kind is AxisType.LOOP
    steps = sink.replace(arg=KernelInfo("k", opts_to_apply=()))
    assert chunks_of(kernel, compile_kernel(steps, renderer())) == 64 + 3 + 1


def test_nests_that_touch_what_others_write_cannot_have_chunks_apart() -> None:
    first, second = b.updates(8, 8).sink.src[:2]
    again = UOp.sink(first, second.substitute({u: UOp.param(0, u.dtype, 8) for u in second.src[0].src[0].src[:1]}))
    with pytest.raises(StepError, match="reads or writes what those that have it write"):
        Chunk(((0,),)).apply(again)


def test_prefetch_asks_for_a_later_turn_and_changes_no_result() -> None:
    kernel = b.conv(2, 3, 16, 20, 3)
    sink = run(kernel, Split((1,), 8), Vectorize((1, 1)), Split((3,), 3), Upcast((3, 1)), Prefetch(0, (2,), 2))
    (asked,) = [u for u in sink.toposort() if u.op is Ops.LOAD and u.arg == "prefetch"]
    index = asked.src[0].src[1]
    loops = {r.arg.id: r for r in index.ranges}
    assert set(loops) == {(0,), (2,), (3, 0), (4,), (5,)}  # not the window's columns, not the copies
    at = lambda turn: index.substitute({r: b.num(turn if i == (2,) else 0) for i, r in loops.items()}).vmax  # noqa: E731
    assert [at(t) for t in (0, 14, 15, 16, 17)] == [2 * 20, 16 * 20, 17 * 20, 17 * 20, 17 * 20]


def test_prefetch_needs_a_loop_that_moves_the_operand() -> None:
    with pytest.raises(StepError, match="does not move with it"):
        Prefetch(1, (2,)).apply(b.conv(3, 5, 16, 11, 3).sink)


def test_rows_that_keep_values_for_themselves_are_not_copied() -> None:
    """Copies of the loop over rows would write each other's panel."""
    sink = Keep((3,), (1,)).apply(b.softmax(4, 100).sink)
    with pytest.raises(StepError, match="keeps for itself"):
        Upcast((0,)).apply(sink)
