"""Operations and bytes of kernels whose work is known by hand."""

from __future__ import annotations

import pytest

from aril.codegen.estimate import estimate
from aril.dtype import dtypes
from aril.ops import Ops
from aril.uop.args import AxisType, Estimates
from aril.uop.node import UOp

F = dtypes.float32


def index(i: UOp, *rest: tuple[UOp, int]) -> UOp:
    for loop, scale in rest:
        i = UOp(Ops.ADD, (i, UOp(Ops.MUL, (loop, UOp.const(dtypes.weakint, scale)))))
    return i


def read(slot: int, size: int, at: UOp) -> UOp:
    return UOp.param(slot, F, size).index(at).load()


def write(size: int, at: UOp, value: UOp, *loops: UOp) -> UOp:
    return UOp.sink(UOp.param(0, F, size).index(at).store(value).end(*loops))


def test_an_elementwise_kernel_reads_and_writes_each_element_once() -> None:
    i = UOp.range(100, 0)
    value = UOp(Ops.ADD, (UOp(Ops.MUL, (read(1, 100, i), read(2, 100, i))), UOp.const(F, 1.0)))
    assert estimate(write(100, i, value, i)) == Estimates(200, 1200)


def test_a_matmul_counts_each_operand_once() -> None:
    m, n, k = 6, 10, 8
    i, j, r = UOp.range(m, 0), UOp.range(n, 1), UOp.range(k, 2, AxisType.REDUCE)
    product = UOp(Ops.MUL, (read(1, m * k, index(r, (i, k))), read(2, k * n, index(j, (r, n)))))
    total = UOp(Ops.REDUCE, (product, r), (Ops.ADD, ()))
    assert estimate(write(m * n, index(j, (i, n)), total, i, j)) == Estimates(
        2 * m * n * k, 4 * (m * k + k * n + m * n)
    )


def test_overlapping_windows_count_once() -> None:
    size, width = 20, 3
    x, y = UOp.range(size - width + 1, 0), UOp.range(width, 1, AxisType.REDUCE)
    total = UOp(Ops.REDUCE, (read(1, size, UOp(Ops.ADD, (x, y))), y), (Ops.ADD, ()))
    assert estimate(write(18, x, total, x)).bytes == 4 * (20 + 18)


def test_several_loops_over_one_row_count_its_elements_once() -> None:
    i, a, b = UOp.range(4, 0), UOp.range(32, 1, AxisType.REDUCE), UOp.range(32, 2)
    peak = UOp(Ops.REDUCE, (read(1, 128, index(a, (i, 32))), a), (Ops.MAX, ()))
    value = UOp(Ops.SUB, (read(1, 128, index(b, (i, 32))), peak))
    assert estimate(write(128, index(b, (i, 32)), value, i, b)) == Estimates(256, 1024)


def test_a_strided_read_counts_what_it_reads() -> None:
    i = UOp.range(50, 0)
    twice = UOp(Ops.MUL, (i, UOp.const(dtypes.weakint, 2)))
    assert estimate(write(50, i, read(1, 100, twice), i)).bytes == 400


def test_a_broadcast_read_counts_once() -> None:
    i, j = UOp.range(50, 0), UOp.range(10, 1)
    assert estimate(write(500, index(j, (i, 10)), read(1, 10, j), i, j)).bytes == 2040


def test_a_read_under_a_gate_stays_in_its_buffer() -> None:
    i = UOp.range(12, 0)
    inside = UOp(Ops.CMPLT, (i, UOp.const(dtypes.weakint, 10)))
    value = UOp.param(1, F, 10).index(i.valid(inside)).load()
    assert estimate(write(12, i, value, i)).bytes == 4 * (10 + 12)


@pytest.mark.parametrize("n", [3, 17])
def test_symbolic_loops_give_expressions(n: int) -> None:
    v = UOp.variable("n", 1, 64)
    i = UOp.range(v, 0)
    found = estimate(write(64, i, UOp(Ops.MUL, (read(1, 64, i), UOp.const(F, 2.0))), i))
    values = [e.substitute({v: UOp.const(dtypes.weakint, n)}) for e in (found.ops, found.bytes)]
    from aril.uop.symbolic import simplify

    assert [simplify(e).arg for e in values] == [n, 8 * n]


def test_a_gather_is_bounded_by_its_buffer() -> None:
    i = UOp.range(1000, 0)
    where = UOp.param(2, dtypes.int32, 1000).index(i).load()
    assert estimate(write(1000, i, read(1, 10, where), i)).bytes == 4 * (1000 + 10 + 1000)
