"""Expansion: lanes, copies, and the loads that strided accesses become."""

from __future__ import annotations

import numpy as np
import pytest

from aril.codegen.affine import add, build_sum, divides, linear, mul, split_gate
from aril.codegen.coalesce import deinterleave, interleave, transpose
from aril.codegen.expand import expand
from aril.codegen.panels import Stage
from aril.codegen.steps import Split, Step, Unroll, Upcast, Vectorize
from aril.dtype import dtypes
from aril.ops import Ops
from aril.uop.args import AddrSpace, AxisType
from aril.uop.node import UOp
from tests.codegen import build as b
from tests.codegen.test_steps import run


def after(kernel: b.Kernel, *steps: Step) -> UOp:
    sink = kernel.sink
    for step in steps:
        sink = step.apply(sink)
    return expand(sink)


def count(sink: UOp, op: Ops, lanes: int | None = None) -> int:
    return len([u for u in sink.toposort() if u.op is op and (lanes is None or u.shape == (lanes,))])


def test_a_linear_form_collects_terms() -> None:
    i, j = UOp.range(4, 0), UOp.range(5, 1)
    form = linear(add(mul(add(mul(i, 5), j), 3), add(j, 7)), {})
    assert (form.terms, form.const) == ({i: 15, j: 4}, 7)
    assert form.coefficient(i) == 15
    assert linear(form.expression(), {}).terms == form.terms


def test_what_is_not_linear_is_an_atom_and_has_no_coefficient() -> None:
    i = UOp.range(40, 0)
    half = UOp(Ops.FLOORDIV, (i, b.num(2)))
    form = linear(add(half, mul(i, 3)), {})
    assert form.terms[half] == 1 and form.coefficient(i) is None


def test_divides() -> None:
    i = UOp.range(4, 0)
    start = UOp(Ops.WHERE, (UOp(Ops.CMPLT, (i, b.num(2))), mul(i, 16), b.num(4)))
    assert divides(4, start) and not divides(8, start) and not divides(2, i)
    assert build_sum({}, 3).arg == 3


def test_a_gate_is_told_from_its_index() -> None:
    i = UOp.range(4, 0)
    gate = UOp(Ops.CMPLT, (i, b.num(3)))
    assert split_gate(i.valid(gate)) == (i, gate)
    assert split_gate(i) == (i, None)


def test_contiguous_lanes_are_one_access() -> None:
    out = after(b.elementwise(6, 16), Vectorize((1,)))
    assert count(out, Ops.LOAD, 16) == 2 and count(out, Ops.SHRINK) == 3


def test_what_lanes_do_not_move_stays_a_scalar() -> None:
    out = after(b.bias(6, 16), Vectorize((1,)))
    assert count(out, Ops.LOAD, 16) == 2 and len([u for u in out.toposort() if u.op is Ops.LOAD and not u.shape]) == 1


def test_copies_share_what_does_not_depend_on_them() -> None:
    out = after(b.matmul(6, 16, 10), Upcast((0,)), Vectorize((1,)))
    assert count(out, Ops.REDUCE) == 6 and count(out, Ops.LOAD, 16) == 1
    assert len([u for u in out.toposort() if u.op is Ops.LOAD and not u.shape]) == 6


def test_a_reduction_in_lanes_ends_in_a_tree() -> None:
    out = after(b.row_sum(3, 8), Vectorize((1,)))
    assert count(out, Ops.REDUCE) == 0
    assert [count(out, Ops.ADD, n) for n in (4, 2)] == [1, 1]


def test_two_loops_of_lanes_are_an_error() -> None:
    sink = b.elementwise(4, 8).sink
    lanes = {r: UOp.range(r.src[0], r.arg.id, AxisType.VECTOR) for r in sink.toposort() if r.op is Ops.RANGE}
    with pytest.raises(ValueError, match="several VECTOR loops"):
        expand(sink.substitute(lanes))


def test_a_copied_loop_of_unknown_length_is_an_error() -> None:
    sink = b.symbolic_scale(100, 5).sink
    loop = next(r for r in sink.toposort() if r.op is Ops.RANGE)
    with pytest.raises(ValueError, match="no constant length"):
        expand(sink.substitute({loop: UOp.range(loop.src[0], 0, AxisType.UPCAST)}))


def test_a_transposing_tile_has_contiguous_accesses_only() -> None:
    kernel = b.transpose(16, 8)
    out = after(kernel, Vectorize((1,)), Upcast((0,)))
    assert all(u.src[0].op is Ops.SHRINK for u in out.toposort() if u.op in (Ops.LOAD, Ops.STORE))
    run(kernel, Vectorize((1,)), Upcast((0,)))
    run(b.transpose(8, 16), Vectorize((0,)), Upcast((1,)))  # strided stores
    run(b.transpose(16, 8), Vectorize((0,)), Upcast((1,)))


@pytest.mark.parametrize("rows", [3, 5, 6, 7, 12])
def test_a_transposing_tile_of_any_number_of_rows(rows: int) -> None:
    """Its rows are taken in powers of two; the one that may be left is stored lane by lane, at known places."""
    for steps in ((Vectorize((0,)), Upcast((1,))), (Vectorize((1,)), Upcast((0,)))):
        kernel = b.transpose(8, rows) if steps[0] == Vectorize((0,)) else b.transpose(rows, 8)
        out = after(kernel, *steps)
        assert not [u for u in out.toposort() if u.op is Ops.STORE and u.src[0].op is Ops.INDEX and u.src[0].shape]
        run(kernel, *steps)


def strided(n: int, step: int, offset: int = 0, divide: int = 1) -> b.Kernel:
    """y[i] = x[(i // divide) * step + offset]"""
    bld = b.Build()
    size = ((n - 1) // divide) * abs(step) + abs(offset) + 1
    x = bld.array(size)
    first = offset if step > 0 else size - 1
    i = bld.loop(n)
    index = add(mul(i if divide == 1 else UOp(Ops.FLOORDIV, (i, b.num(divide))), step), first)
    value = UOp.param(1, dtypes.float32, size).index(index).load()
    want = [(k // divide) * step + first for k in range(n)]
    return b.Kernel(
        b.sink(b.store(0, (n,), [i], value)), [(0, np.zeros(n, np.float32))], [x], lambda: [x[want].astype(float)]
    )


@pytest.mark.parametrize("step", [-3, -2, -1, 2, 3, 4, 7])
@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_strided_loads(step: int, lanes: int) -> None:
    run(strided(32, step), Split((0,), lanes), Vectorize((0, 1)))


@pytest.mark.parametrize("divide", [2, 4, 3])
def test_repeated_elements_are_loaded_once_and_spread(divide: int) -> None:
    run(strided(48, 1, 2, divide), Split((0,), 16), Vectorize((0, 1)))
    run(strided(20, 1, 0, divide), Split((0,), 16, "overlap"), Vectorize((0, 1)))


def test_near_strides_need_no_gather() -> None:
    out = after(strided(32, 2), Split((0,), 16), Vectorize((0, 1)))
    assert all(u.src[0].op is Ops.SHRINK for u in out.toposort() if u.op is Ops.LOAD)


@pytest.mark.parametrize("inner", [2, 4])
def test_lanes_and_copies_fill_a_block(inner: int) -> None:
    """y[i*inner + k] = 2 x[i*inner + k] with lanes along i"""
    bld = b.Build()
    x = bld.array(32, inner)
    i, k = bld.loops(32, inner)
    shape = (32, inner)
    value = b.alu(Ops.MUL, b.load(1, shape, i, k), 2.0)
    kernel = b.Kernel(
        b.sink(b.store(0, shape, [i, k], value)), [(0, np.zeros(shape, np.float32))], [x], lambda: [x.astype(float) * 2]
    )
    steps = (Split((0,), 8), Vectorize((0, 1)), Upcast((1,)))
    out = after(kernel, *steps)
    assert all(u.src[0].op is Ops.SHRINK for u in out.toposort() if u.op in (Ops.LOAD, Ops.STORE))
    run(kernel, *steps)


def lane_values(vectors: list[UOp], data: dict[UOp, list[float]]) -> list[list[float]]:
    done: dict[UOp, list[float]] = dict(data)
    for v in vectors:
        for u in v.toposort():
            if u not in done and u.op is Ops.STACK:
                done[u] = [done[s.src[0]][s.src[1].arg] for s in u.src]
    return [done[v] for v in vectors]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize(
    ("rows", "lanes"), [(2, 2), (4, 4), (8, 8), (4, 16), (16, 4), (2, 8), (8, 16), (16, 8), (4, 2)]
)
def test_transposition_by_shuffles(rows: int, lanes: int, dtype: str) -> None:
    vectors = [UOp.buffer(i, dtype, lanes, AddrSpace.REG) for i in range(rows)]
    data = {v: [float(lanes * i + k) for k in range(lanes)] for i, v in enumerate(vectors)}
    got = lane_values(transpose(vectors), data)
    assert got == np.arange(rows * lanes).reshape(rows, lanes).T.tolist()


@pytest.mark.parametrize("rows", [1, 2, 4, 8])
def test_interleaving_and_back(rows: int) -> None:
    vectors = [UOp.buffer(i, "float32", 8, AddrSpace.REG) for i in range(rows)]
    data = {v: [float(8 * i + k) for k in range(8)] for i, v in enumerate(vectors)}
    got = lane_values(interleave(vectors), data)
    assert sum(got, []) == np.arange(rows * 8).reshape(rows, 8).T.ravel().tolist()
    assert lane_values(deinterleave(vectors), data) == np.arange(rows * 8).reshape(8, rows).T.tolist()


def test_a_gate_of_lanes_becomes_a_mask() -> None:
    run(b.padded_copy(8, 20, 2), Split((1,), 8), Vectorize((1, 1)))
    run(b.padded_copy(8, 20, 2), Vectorize((0,)))
    run(b.padded_copy(8, 20, 2), Upcast((0,)), Split((1,), 8), Vectorize((1, 1)))


@pytest.mark.parametrize("step", [2, 3, 4])
def test_steps_with_a_gate_are_contiguous_loads_under_a_mask(step: int) -> None:
    """Neither the strided operand nor the one that all lanes share is gathered."""
    kernel = b.padded_steps(5, 61, 3, step)
    steps = (Split((1,), 8, "overlap"), Vectorize((1, 1)))
    loads = [u for u in after(kernel, *steps).toposort() if u.op is Ops.LOAD]
    assert all(u.src[0].op is Ops.SHRINK or not u.src[0].shape for u in loads)
    run(kernel, *steps)


def test_a_gate_that_holds_in_every_lane_of_a_copy_is_gone() -> None:
    out = after(b.padded_steps(3, 16, 2, 1), Split((1,), 4), Upcast((1, 0)), Vectorize((1, 1)))
    gated = [len(u.src) > 2 for u in out.toposort() if u.op is Ops.LOAD and u.src[0].op is Ops.SHRINK]
    assert sorted(gated) == [False] * 3 + [True] * 2


def test_a_strided_operand_is_transposed_into_its_panel() -> None:
    kernel = b.matmul(4, 16, 12, "nt")
    out = after(kernel, Vectorize((1,)), Upcast((0,)), Stage(1, ((2,), (1,))))
    assert not [u for u in out.toposort() if u.op is Ops.LOAD and u.src[0].op is Ops.INDEX and u.src[0].shape]
    run(kernel, Vectorize((1,)), Upcast((0,)), Stage(1, ((2,), (1,))))


def test_unrolled_operands_go_into_one_accumulator_in_turn() -> None:
    out = after(b.row_sum(3, 32), Split((1,), 4), Unroll((1, 1)))
    reduce = next(u for u in out.toposort() if u.op is Ops.REDUCE)
    assert len([s for s in reduce.src if s.op is not Ops.RANGE]) == 4


def test_a_condition_and_a_value_share_what_they_are_made_of() -> None:
    """WHERE(m < 1, m, 0) with m the greatest of a row of which lanes are hidden: m is computed once."""
    bld = b.Build()
    i = bld.loop(4)
    k = bld.loop(18, b.REDUCE)
    hidden = UOp(
        Ops.WHERE,
        (UOp(Ops.CMPLT, (k, add(i, 1))), b.load(1, (72,), add(mul(i, 18), k)), UOp.const(dtypes.float32, -1.0)),
    )
    m = b.reduce(Ops.MAX, hidden, k)
    sink = b.sink(b.store(0, (4,), [i], UOp(Ops.WHERE, (b.alu(Ops.CMPLT, m, 1.0), m, UOp.const(dtypes.float32, 0.0)))))
    out = after(b.Kernel(sink, [], [], list), Split((1,), 16, "peel"), Vectorize((1, 1)), Unroll((1, 2)))
    assert count(out, Ops.LOAD, 16) == 1 and count(out, Ops.WHERE, 16) == 1
