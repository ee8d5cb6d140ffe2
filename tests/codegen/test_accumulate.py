"""Accumulators, and loops told apart."""

from __future__ import annotations

import math

import pytest

from aril.codegen.accumulate import accumulate, identity, separate
from aril.codegen.steps import loops_of
from aril.dtype import dtypes
from aril.ops import Ops
from aril.uop.args import AddrSpace
from aril.uop.node import UOp
from tests.codegen import build as b
from tests.codegen.run import run_all


def accumulators(sink: UOp) -> list[UOp]:
    return [u for u in sink.toposort() if u.op is Ops.BUFFER and u.arg.addrspace is AddrSpace.REG]


def ends(sink: UOp) -> list[UOp]:
    return [u for u in sink.toposort() if u.op is Ops.END]


def test_a_reduction_becomes_a_loop_over_an_accumulator() -> None:
    out = accumulate(b.row_sum(3, 20).sink)
    assert len(accumulators(out)) == 1 and len(ends(out)) == 2
    assert not [u for u in out.toposort() if u.op is Ops.REDUCE]


def test_kernels_without_reductions_stay_as_they_are() -> None:
    sink = b.elementwise(3, 4).sink
    assert accumulate(sink) is sink


def mean_and_square(shared: bool) -> b.Kernel:
    bld = b.Build()
    x = bld.array(4, 30)
    i = bld.loop(4)
    k = bld.loop(30, b.REDUCE)
    m = k if shared else bld.loop(30, b.REDUCE)
    square = b.load(1, (4, 30), i, m)
    total = b.reduce(Ops.ADD, b.load(1, (4, 30), i, k), k)
    squares = b.reduce(Ops.ADD, b.alu(Ops.MUL, square, square), m)
    value = b.alu(Ops.SUB, squares, total)
    d = x.astype(float)
    import numpy as np

    return b.Kernel(
        b.sink(b.store(0, (4,), [i], value)), [(0, np.zeros(4, np.float32))], [x], lambda: [(d * d).sum(1) - d.sum(1)]
    )


def test_reductions_over_one_loop_share_it() -> None:
    sink = separate(mean_and_square(True).sink)
    assert len(loops_of(sink)) == 2
    out = accumulate(sink)
    assert len(accumulators(out)) == 2 and len(ends(out)) == 2
    run_all(mean_and_square(True))


def test_reductions_over_two_loops_keep_both() -> None:
    assert len(ends(accumulate(separate(mean_and_square(False).sink)))) == 3
    run_all(mean_and_square(False))


def test_a_reduction_of_a_reduction_over_the_same_loop_gets_its_own() -> None:
    sink = separate(b.softmax(4, 10, one_loop=True).sink)
    assert len(loops_of(sink)) == 4
    assert separate(sink) is sink
    run_all(b.softmax(4, 10, one_loop=True))


def test_nests_over_the_same_loops_get_their_own() -> None:
    bld = b.Build()
    i = bld.loop(8)
    first = b.store(0, (8,), [i], b.alu(Ops.ADD, b.load(2, (8,), i), 1.0))
    second = b.store(1, (8,), [i], b.alu(Ops.MUL, b.load(2, (8,), i), 2.0))
    assert len(loops_of(separate(b.sink(first, second)))) == 2


@pytest.mark.parametrize(
    ("op", "dtype", "value"),
    [
        (Ops.ADD, dtypes.float32, 0), (Ops.MUL, dtypes.int32, 1), (Ops.MAX, dtypes.float32, -math.inf),
        (Ops.MAX, dtypes.int8, -128), (Ops.MAX, dtypes.uint8, 0), (Ops.AND, dtypes.bool, True),
        (Ops.AND, dtypes.uint16, 65535), (Ops.AND, dtypes.int32, -1), (Ops.OR, dtypes.bool, False),
        (Ops.XOR, dtypes.int64, 0),
    ],
)  # fmt: skip
def test_identities(op: Ops, dtype: object, value: object) -> None:
    assert identity(op, dtype) == value  # type: ignore[arg-type]


def test_what_is_no_reduction_is_named() -> None:
    with pytest.raises(ValueError, match=r"Ops.SUB is no reduction"):
        identity(Ops.SUB, dtypes.float32)
