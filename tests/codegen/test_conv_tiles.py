"""Tiles of convolutions, read from the assembly: the inner loop is loads and multiply-adds, and stores are of rows."""

from __future__ import annotations

import re
from math import prod

import numpy as np
import pytest

from aril.codegen import compile_kernel
from aril.codegen.accumulate import separate
from aril.codegen.affine import add, mul
from aril.codegen.analysis import nest_of, reduce_loops_of
from aril.codegen.heuristics import choose
from aril.codegen.panels import Block
from aril.codegen.plan import Plan
from aril.codegen.steps import Split, Upcast, Vectorize, adds_zeros, loops_of
from aril.codegen.windows import Window, sliding
from aril.ops import Ops
from aril.renderer.llvm import LLVMRenderer
from aril.runtime.llvm import compile_ir_to_asm
from aril.uop.args import AxisType
from aril.uop.node import UOp
from tests.codegen import build as b
from tests.codegen.run import TARGETS, renderer, run_all, run_native
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


@pytest.mark.parametrize(("size", "inputs", "outputs"), [(56, 64, 64), (26, 128, 192)])
def test_a_patch_of_an_image_wastes_less_than_a_stretch_of_a_row(size: int, inputs: int, outputs: int) -> None:
    """Six columns of 56 are ten tiles for 60, three columns of two rows 57; three of 26 by three vectors 27."""
    kernel = b.conv(8, inputs, outputs, size + 2, 3)
    applied = compile_kernel(kernel.sink, renderer("avx2")).applied
    factors = [(s.id, s.factor) for s in applied if isinstance(s, Split)]
    assert ((2,), 2) in factors and ((3,), 3) in factors
    run_all(kernel, "avx2", interpret=False)


@pytest.mark.parametrize("target", [AVX2, AVX512], ids=["avx2", "avx512"])
@pytest.mark.parametrize("size", [9, 30])
def test_weights_of_an_unrolled_window_are_packed_by_transposing_tiles(size: int, target: HostTarget) -> None:
    """Rows of 576 weights, three of which are one turn of the unrolled loop: none is looked up alone."""
    text = assembly(b.conv(2, 64, 64, size, 3), target)
    assert "gather" not in text and "vpextrq" not in text


@pytest.mark.parametrize("target", [AVX2, AVX512], ids=["avx2", "avx512"])
def test_windows_of_one_channel_read_a_panel_without_conditions(target: HostTarget) -> None:
    """A multiply-add of a vector reads its factor from memory; no lane is masked, the tile stays in registers."""
    body = innermost(assembly(b.padded_depthwise(4, 16, 28, 3), target))
    adds = len(re.findall(r"\bvfmadd\w*ps\b", body))
    assert adds >= 8 and "rsp" not in body
    assert not re.search(r"maskmov|\{%k|vpcmp", body)
    assert body.count("\n") <= 1.5 * adds + 8


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("size", "k", "step", "pad"),
    [(28, 3, 1, 1), (13, 5, 1, 2), (17, 3, 2, 1), (23, 7, 3, 2), (9, 3, 1, 0), (30, 4, 2, 0)],
)
def test_windows_of_one_channel(size: int, k: int, step: int, pad: int, target: str) -> None:
    """Pads, steps, sizes that are no multiple of a vector."""
    run_all(b.padded_depthwise(3, 7, size, k, step, pad), target, interpret=target == "narrow")


@pytest.mark.parametrize(("step", "k"), [(2, 3), (3, 5)])
def test_elements_of_one_remainder_lie_together_in_the_panel(step: int, k: int) -> None:
    """Lanes that would be gathered with a step are loaded as vectors."""
    program = compile_kernel(b.padded_depthwise(8, 8, 56, k, step).sink, renderer("avx2"))
    assert any(isinstance(s, Window) for s in program.applied)


def test_a_panel_holds_the_channels_of_one_group() -> None:
    """Four channels a group move like a window of four by steps of four, but do not overlap."""
    kernel = b.padded_groups(2, 8, 4, 28, 3, 2)
    nest = nest_of(kernel.sink.src[0])
    (image,) = [a for a in nest.accesses if a.gated]
    found = sliding(image, nest, reduce_loops_of(nest.reduces[0]))
    assert found is not None and found.size == 4 * 29 * 29
    assert (found.pairs, found.others) == ((((3,), (6,)), ((4,), (7,))), ((5,),))
    run_all(kernel, "wide", interpret=False)


@pytest.mark.parametrize("target", ["wide", "avx2"])
def test_conditions_of_broadcast_numbers_count(target: str) -> None:
    """Lanes go along a row, not along four channels that each ask for numbers behind conditions."""
    applied = compile_kernel(b.padded_groups(16, 32, 4, 28, 3, 2).sink, renderer(target)).applied
    (lanes,) = [s.id for s in applied if isinstance(s, Vectorize)]
    assert lanes[0] == 4


@pytest.mark.parametrize("columns", [7, 13, 43])
def test_what_is_left_of_a_row_is_one_masked_vector(columns: int) -> None:
    """The gradient of a weight sums over rows of the image; their ends are no loop of their own."""
    kernel = b.conv_weight(8, 16, 12, columns + 2, 3)
    program = run_all(kernel, "avx2", interpret=False)
    lanes = [s for s in program.applied if isinstance(s, Split) and s.tail == "peel"]
    assert not lanes


@pytest.mark.parametrize("target", ["wide", "avx2"])
@pytest.mark.parametrize(("size", "k", "step", "p"), [(28, 3, 2, 1), (17, 5, 3, 2), (14, 3, 1, 1), (15, 3, 2, 0)])
def test_the_gradient_of_a_weight_reads_a_panel(size: int, k: int, step: int, p: int, target: str) -> None:
    """The window moves by one element, the terms of its sum by `step`: those of one remainder lie together."""
    kernel = b.padded_depthwise_weight(3, 17, size, k, step, p)
    program = run_all(kernel, target, interpret=False)
    assert any(isinstance(s, Window) for s in program.applied) == (p > 0 or step > 1)
    assert "gather" not in assembly(kernel, AVX2 if target == "avx2" else AVX512)


@pytest.mark.parametrize("target", ["wide", "avx2"])
def test_what_a_panel_has_beyond_a_row_does_not_count(target: str) -> None:
    """Lanes past the end of a row are not read: the next row's NaN times a gradient that is left out would be one."""
    kernel = b.padded_depthwise_weight(2, 16, 28, 3, 2)
    kernel.inputs[1][:, :, 1::2, 0] = np.nan  # under the first and the last rows and the second column of a window
    (want,) = kernel.expected()
    (got,) = run_native(kernel, compile_kernel(kernel.sink, renderer(target)))
    assert np.isnan(want).any() and not np.isnan(want).all()
    np.testing.assert_array_equal(np.isnan(got.reshape(want.shape)), np.isnan(want))


def test_masks_take_registers_of_a_tile() -> None:
    """Without mask registers, the mask of a step and what it is made of lie in three of sixteen."""
    body = innermost(assembly(b.conv_weight(17, 96, 14, 49, 7), AVX2))
    assert "maskmov" in body and "rsp" not in body


def test_a_panel_goes_into_cache_by_loops_outside() -> None:
    """Of a large image as many rows as the panel holds are summed up at a time."""
    program = run_all(b.conv_weight(2, 3, 64, 120, 7), "avx2", interpret=False)
    (block,) = [s for s in program.applied if isinstance(s, Block)]
    assert len(block.ids) == 2


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("k", [2, 3])
def test_pixels_that_come_from_one_are_a_loop(k: int, target: str) -> None:
    """Nothing divides in the inner loop, and lanes are no quotients of a position."""
    kernel = b.enlarged(2, 32, 12, 11, k)
    program = run_all(kernel, target, interpret=target == "narrow")
    assert {((2,), k), ((3,), k)} <= {(s.id, s.factor) for s in program.applied if isinstance(s, Split)}


def test_loads_with_conditions_are_masked_again_only_where_asked() -> None:
    """Without mask registers a second mask costs what the rest of a row costs."""
    padded, plain = b.padded_depthwise(2, 3, 20, 7).sink, b.conv_weight(2, 3, 4, 9, 3).sink
    assert adds_zeros(padded, loops_of(padded)[(5,)]) and not adds_zeros(padded, loops_of(padded)[(5,)], gated=False)
    assert adds_zeros(plain, loops_of(plain)[(6,)], gated=False)


@pytest.mark.parametrize(("channels", "outputs", "size"), [(256, 1024, 14), (64, 256, 14), (512, 2048, 7)])
def test_tiles_of_wide_vectors_waste_few_lanes(channels: int, outputs: int, size: int) -> None:
    """Pictures of 196 or 49 numbers fill vectors of 16 badly: what is multiplied in vain costs more than loads do."""
    plan = Plan(separate(b.conv(2, channels, outputs, size, 1).sink), renderer("wide"))
    choose(plan)
    reduction = next(u for u in plan.sink.toposort() if u.op is Ops.REDUCE)
    inside = [r for r in reduction.ranges if r.arg.kind in (AxisType.UPCAST, AxisType.VECTOR)]
    tiles = [prod([int(r.src[0].arg) for r in inside if r.arg.id[0] == i]) for i in range(3)]
    waste = [-(-n // f) * f / n for n, f in zip((2, outputs, size * size), tiles, strict=True)]
    assert prod(waste) < 1.1


def test_wide_lanes_of_a_product_lie_over_the_result_where_their_panel_serves_many_rows() -> None:
    """Lanes along the sum load a vector for each row and column: a quarter slower for 115x373x847, a @ b.T."""
    program = compile_kernel(b.matmul(115, 847, 373, "nt").sink, renderer("wide"))
    assert {s.id[0] for s in program.applied if isinstance(s, Vectorize)} == {1}


def _channels_of_groups(n: int, groups: int, per: int, outputs: int, pixels: int) -> b.Kernel:
    """The gradient of a grouped 1x1 convolution for its image: `per` channels sum over all outputs of their group."""
    build = b.Build()
    g, w = build.array(n, groups * outputs, pixels), build.array(groups * outputs, per)
    shape = (n, groups * per, pixels)
    i, c, z = build.loops(*shape)
    o = build.loop(outputs, AxisType.REDUCE)
    of = add(mul(UOp(Ops.FLOORDIV, (c, b.num(per))), outputs), o)
    value = b.alu(Ops.MUL, b.load(1, g.shape, i, of, z), b.load(2, w.shape, of, UOp(Ops.FLOORMOD, (c, b.num(per)))))

    def expected() -> list[np.ndarray]:
        apart = g.astype(float).reshape(n, groups, outputs, pixels)
        weights = w.astype(float).reshape(groups, outputs, per)
        return [np.einsum("ngoz,gop->ngpz", apart, weights).reshape(shape)]

    stored = b.store(0, shape, [i, c, z], b.reduce(Ops.ADD, value, o))
    return b.Kernel(b.sink(stored), [(0, np.zeros(shape, np.float32))], [g, w], expected)


@pytest.mark.parametrize(("per", "blocked"), [(4, True), (9, False)])
def test_what_a_group_sums_over_is_read_once_for_its_channels(per: int, blocked: bool) -> None:
    """Few channels are weights of rows, more a register tile: copies of a multiply-add in either. They were as many
    sums over rows in the order of memory, each of which read all of it."""
    kernel = _channels_of_groups(2, 3, per, 40, 96)
    applied = compile_kernel(kernel.sink, renderer("small caches")).applied
    assert Split((1,), per, "exact") in applied
    assert any(isinstance(s, Upcast) and s.id[:2] == (1, 1) for s in applied)
    assert any(isinstance(s, Block) for s in applied) == blocked
    run_all(kernel, "small caches", interpret=False)
