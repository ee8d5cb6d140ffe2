"""Reductions with several accumulators: argmax, online softmax and moments, in lanes, copies, rests and plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest

from aril.codegen.combines import COMBINES, combine_of, results
from aril.codegen.steps import Split, Unroll, Upcast, Vectorize
from aril.dtype import dtypes
from aril.ops import Ops
from aril.uop.node import UOp
from aril.uop.render import to_source
from aril.uop.verify import check
from tests.codegen import build as b
from tests.codegen.run import run_all

SIZES = [(1, 1), (3, 5), (4, 64), (5, 100), (2, 1001)]


def tupled(name: str, *values: UOp) -> UOp:
    loops = sorted(frozenset().union(*[v.ranges for v in values]), key=lambda r: r.arg.id)
    return UOp(Ops.REDUCE, (UOp(Ops.TUPLE, values), *[r for r in loops if r.arg.kind is b.REDUCE]), (name, ()))


def argmax(rows: int, cols: int, **info: object) -> b.Kernel:
    """The greatest value of each row and how far the first of its places is from the end."""
    bld = b.Build()
    x = np.round(bld.array(rows, cols) * 3)
    i, k = bld.loop(rows), bld.loop(cols, b.REDUCE)
    mark = UOp(Ops.ADD, (UOp(Ops.MUL, (k, b.num(-1))), b.num(cols))).cast(dtypes.int32)
    top, place = results(tupled("position", b.load(2, (rows, cols), i, k), mark))
    effect = UOp.group(
        UOp.param(0, dtypes.float32, rows).index(i).store(top), UOp.param(1, dtypes.int32, rows).index(i).store(place)
    ).end(i)
    return b.Kernel(
        b.sink(effect, **info), [(0, np.zeros(rows, np.float32)), (1, np.zeros(rows, np.int32))], [x],
        lambda: [x.max(1), cols - x.argmax(1)], tolerance=0,
    )  # fmt: skip


def log_sum(rows: int, cols: int, masked: int = 0) -> b.Kernel:
    """log2(sum(2**x)) of each row; the first `masked` elements are -inf."""
    bld = b.Build()
    x = bld.array(rows, cols) * 20
    x[:, :masked] = -np.inf
    i, k = bld.loop(rows), bld.loop(cols, b.REDUCE)
    value = b.load(1, (rows, cols), i, k)
    top, total = results(tupled("exponentials", value, value.const_like(1)))
    out = b.alu(Ops.ADD, top, b.alu(Ops.LOG2, total))

    def expected() -> list[np.ndarray]:
        wide = x.astype(float)
        top = wide.max(1, keepdims=True)
        return [(top + np.log2(np.exp2(wide - top).sum(1, keepdims=True)))[:, 0]]

    return b.Kernel(b.sink(b.store(0, (rows,), [i], out)), [(0, np.zeros(rows, np.float32))], [x], expected)


def variance(rows: int, cols: int) -> b.Kernel:
    """The variance of numbers far from 0."""
    bld = b.Build()
    x = bld.array(rows, cols) + 100
    i, k = bld.loop(rows), bld.loop(cols, b.REDUCE)
    value = b.load(1, (rows, cols), i, k)
    _, apart, count = results(tupled("moments", value, value.const_like(0), value.const_like(1)))
    return b.Kernel(
        b.sink(b.store(0, (rows,), [i], b.alu(Ops.FDIV, apart, count))), [(0, np.zeros(rows, np.float32))], [x],
        lambda: [x.astype(float).var(1)], tolerance=1e-4,
    )  # fmt: skip


@pytest.mark.parametrize(("rows", "cols"), SIZES)
@pytest.mark.parametrize("target", ["wide", "narrow"])
def test_results_agree_with_the_reference(rows: int, cols: int, target: str) -> None:
    """Natively and in the interpreter, with the steps that are chosen."""
    for make in (argmax, log_sum, variance):
        run_all(make(rows, cols), target)


def test_masked_elements_count_for_nothing() -> None:
    """Lanes that have seen only -inf do not make NaN."""
    run_all(log_sum(3, 100, masked=70))


@pytest.mark.parametrize(
    "steps",
    [
        (),
        (Split((1,), 8, "peel"), Vectorize((1, 1))),
        (Split((1,), 4, "peel"), Unroll((1, 1))),
        (Split((1,), 32, "peel"), Split((1, 1), 8), Upcast((1, 1, 0)), Vectorize((1, 1, 1))),
        (Split((1,), 6, "peel"), Vectorize((1, 1)), Upcast((0,))),
    ],
)
def test_steps_keep_the_meaning(steps: tuple[object, ...]) -> None:
    """Rests, lanes, copies and unrolled bodies combine to the same."""
    run_all(argmax(3, 101, opts_to_apply=steps))


def test_the_node_is_checked_printed_and_typed() -> None:
    """A name needs a TUPLE, results have their own types, and printing gives Python."""
    kernel = argmax(2, 9)
    check(kernel.sink, "kernel")
    reduction = next(u for u in kernel.sink.toposort() if u.op is Ops.REDUCE)
    assert [r.dtype for r in results(reduction)] == [dtypes.float32, dtypes.int32]
    assert "'position'" in to_source(kernel.sink)
    wrong = kernel.sink.substitute({reduction: reduction.replace(arg=(Ops.MAX, ()))})
    with pytest.raises(Exception, match="REDUCE"):
        check(wrong, "kernel")
    with pytest.raises(ValueError, match="expected one of"):
        combine_of("nothing")


@pytest.mark.parametrize("name", list(COMBINES))
def test_identities_change_nothing(name: str) -> None:
    """Every combination has as many identity values as accumulators."""
    how = COMBINES[name]
    types = (dtypes.float32, dtypes.int32) if name == "position" else (dtypes.float32,) * how.count
    assert len(how.identity(types)) == how.count
    if name != "moments":
        assert how.identity(types)[0] == -math.inf
