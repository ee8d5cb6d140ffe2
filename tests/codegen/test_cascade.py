"""Long sums of floats go in levels: what becomes of their loops, and how close the results are to float64."""

from __future__ import annotations

import numpy as np
import pytest

from aril import Tensor
from aril.codegen.analysis import length, reduce_loops_of
from aril.codegen.cascade import BLOCK, cascade
from aril.dtype import dtypes
from aril.ops import Ops
from aril.uop.node import UOp
from aril.uop.render import to_source
from aril.uop.verify import check
from tests.codegen import build as b
from tests.codegen.run import run_all
from tests.codegen.test_accumulate_tuples import log_sum, tupled

SIX = 6 * BLOCK


def reductions(sink: UOp) -> list[UOp]:
    return [u for u in sink.toposort() if u.op is Ops.REDUCE]


def long_sum(rows: int, n: int, values: np.ndarray, down: bool = False, tolerance: float = 3e-6) -> b.Kernel:
    """Sums of rows of n elements, or of columns of n (`down`)."""
    bld = b.Build()
    i, k = bld.loop(rows), bld.loop(n, b.REDUCE)
    x = values.reshape((n, rows) if down else (rows, n))
    value = b.load(1, x.shape, *((k, i) if down else (i, k)))
    effect = b.store(0, (rows,), [i], b.reduce(Ops.ADD, value, k))
    return b.Kernel(
        b.sink(effect), [(0, np.zeros(rows, np.float32))], [x],
        lambda: [x.astype(np.float64).sum(0 if down else 1)], tolerance=tolerance,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("n", "levels"),
    [
        (2 * BLOCK, [2 * BLOCK]),
        (SIX, [BLOCK, 6]),
        (1000, [125, 8]),  # blocks without a rest
        (SIX + 1, [BLOCK, 7]),  # the last block is shorter
        (BLOCK * BLOCK * 5, [BLOCK, BLOCK, 5]),
    ],
)
def test_a_long_sum_has_levels(n: int, levels: list[int]) -> None:
    out = cascade(long_sum(2, n, np.zeros(2 * n, np.float32)).sink)
    check(out, "kernel")
    assert [int(np.prod([length(r) for r in reduce_loops_of(u)])) for u in reductions(out)] == levels


def test_a_sum_over_several_loops_has_its_outer_ones_in_levels_above() -> None:
    bld = b.Build()
    i, j, k = bld.loop(20, b.REDUCE), bld.loop(8, b.REDUCE), bld.loop(32, b.REDUCE)
    sums = b.reduce(Ops.ADD, b.load(1, (20, 8, 32), i, j, k), i, j, k)
    inner, outer = reductions(cascade(b.sink(UOp.param(0, dtypes.float32, 1).index(b.num(0)).store(sums))))
    assert outer.src[0] is inner
    assert [length(r) for r in reduce_loops_of(inner)] == [4, 32]
    assert sorted(length(r) for r in reduce_loops_of(outer)) == [2, 20]


@pytest.mark.parametrize(("op", "dtype"), [(Ops.MAX, dtypes.float32), (Ops.ADD, dtypes.int32)])
def test_exact_reductions_stay_one_loop(op: Ops, dtype: object) -> None:
    bld = b.Build()
    i, k = bld.loop(2), bld.loop(SIX, b.REDUCE)
    sink = b.sink(b.store(0, (2,), [i], b.reduce(op, b.load(1, (2, SIX), i, k, dtype=dtype), k)))
    assert cascade(sink) is sink


def test_what_shares_a_loop_with_a_sum_still_does() -> None:
    bld = b.Build()
    i, k = bld.loop(2), bld.loop(SIX, b.REDUCE)
    x = b.load(1, (2, SIX), i, k)
    both = b.alu(Ops.ADD, b.reduce(Ops.ADD, x, k), b.reduce(Ops.MAX, x, k))
    found = reductions(cascade(b.sink(b.store(0, (2,), [i], both))))
    assert len(found) == 4
    assert len({reduce_loops_of(u) for u in found}) == 2


@pytest.mark.parametrize("target", ["wide", "avx2"])
@pytest.mark.parametrize("down", [False, True])
@pytest.mark.parametrize("equal", [False, True])
def test_long_sums_keep_their_digits(target: str, down: bool, equal: bool) -> None:
    rows, n = (8, 1 << 16) if down else (2, (1 << 18) + 5)
    values = np.full(rows * n, 0.1) if equal else np.random.default_rng(1).random(rows * n)
    run_all(long_sum(rows, n, values.astype(np.float32), down), target, interpret=False)


@pytest.mark.parametrize("target", ["wide", "avx2"])
def test_levels_mean_the_same(target: str) -> None:
    values = np.random.default_rng(2).standard_normal(3 * (SIX + 7)).astype(np.float32)
    run_all(long_sum(3, SIX + 7, values, True, 1e-6), target)


def test_carried_values_have_levels_too() -> None:
    kernel = log_sum(1, 64 * (SIX + 1), 900)
    program = run_all(kernel, interpret=False)
    assert len([u for u in program.linear.src if u.op is Ops.RANGE]) == 2
    bld = b.Build()
    k = bld.loop(SIX + 1, b.REDUCE)
    x = b.load(1, (SIX + 1,), k)
    mean = UOp(Ops.GETTUPLE, (tupled("moments", x, x.const_like(0), x.const_like(1)),), 0)
    out = cascade(b.sink(UOp.param(0, dtypes.float32, 1).index(b.num(0)).store(mean)))
    check(out, "kernel")
    assert len(reductions(out)) == 2, to_source(out)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("axis", [0, 1, None])
def test_means_of_equal_values(dtype: str, axis: int | None) -> None:
    x = np.full((1 << 18, 8), 0.1, dtype)
    x = x if axis == 0 else x.reshape(8, 1 << 18)
    want = float(x[0, 0])
    got = Tensor(x).float().mean(axis).numpy().astype(np.float64)
    np.testing.assert_allclose(got, want, rtol=3e-6)
