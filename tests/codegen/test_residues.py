"""Positions whose remainder says what counts: the transpose of windows with a step, of any size."""

from __future__ import annotations

import numpy as np
import pytest

from aril.codegen.affine import add, mul
from aril.codegen.steps import Split
from aril.dtype import dtypes
from aril.ops import Ops
from aril.uop.node import UOp
from tests.codegen import build as b
from tests.codegen.run import TARGETS, chunks_of, run_all


def spread_out(rows: int, columns: int, k: int, step: int) -> b.Kernel:
    """What k*k elements of a window at every `step`-th position add to each of (rows, columns) elements."""
    build = b.Build()
    counts = [(n - k) // step + 1 for n in (rows, columns)]
    x, w = build.array(*counts), build.array(k, k)
    places = build.loops(rows, columns)
    taps = [build.loop(k, b.REDUCE) for _ in range(2)]
    gates, index = [], []
    for place, tap, count in zip(places, taps, counts, strict=True):
        at = add(add(place, mul(tap, -1)), step * k)  # from 0 on
        whole = UOp(Ops.CMPLT, (b.alu(Ops.FLOORMOD, at, b.num(step)), b.num(1)))
        position = add(b.alu(Ops.FLOORDIV, at, b.num(step)), -k)
        gates.append(b.alu(Ops.AND, whole, b.alu(Ops.AND, b.ge(position, 0), UOp(Ops.CMPLT, (position, b.num(count))))))
        index.append(position)
    where = b.at(x.shape, *index).valid(b.alu(Ops.AND, *gates))
    value = UOp.param(1, dtypes.float32, x.size).index(where).load(UOp.const(dtypes.float32, 0.0))
    total = b.reduce(Ops.ADD, b.alu(Ops.MUL, value, b.load(2, w.shape, *taps)), *taps)

    def expected() -> list[np.ndarray]:
        out = np.zeros((rows, columns))
        for i in range(counts[0]):
            for j in range(counts[1]):
                out[i * step : i * step + k, j * step : j * step + k] += x[i, j].astype(float) * w
        return [out]

    output = b.store(0, (rows, columns), places, total)
    return b.Kernel(b.sink(output), [(0, np.zeros((rows, columns), np.float32))], [x, w], expected)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("rows", "columns", "k", "step"), [(34, 36, 3, 2), (35, 35, 3, 2), (23, 40, 3, 3), (41, 44, 4, 3), (21, 19, 2, 2)]
)
def test_positions_of_one_remainder_are_copies(rows: int, columns: int, k: int, step: int, target: str) -> None:
    """Those beyond a multiple of the step are a nest of their own."""
    program = run_all(spread_out(rows, columns, k, step), target, interpret=target == "narrow")
    found = {s.id: s.tail for s in program.applied if isinstance(s, Split) and s.factor == step and len(s.id) == 1}
    tails = {(i,): "peel" if n % step else "exact" for i, n in enumerate((rows, columns))}
    assert found and found.items() <= tails.items()
    assert found == tails or k * k * step * step > 64, "copies of the body"


def running_sum(rows: int, columns: int, step: int) -> b.Kernel:
    """Running sums along every `step`-th column (from the last on, where that is negative), from blocks of 8 and what
    lies before each block."""
    build = b.Build()
    near = abs(step)
    x, before = build.array(rows, near * columns), build.array(rows, -(-columns // 8))
    i, j = build.loops(rows, columns)
    k = build.loop(8, b.REDUCE)
    inside = UOp(Ops.CMPLT, (b.num(6), add(b.alu(Ops.FLOORMOD, j, b.num(8)), k)))
    first = 0 if step > 0 else near * columns - 1
    where = b.at(x.shape, i, add(mul(add(add(j, k), -7), step), first)).valid(inside)
    value = UOp.param(1, dtypes.float32, x.size).index(where).load(UOp.const(dtypes.float32, 0.0))
    base = b.load(2, before.shape, i, b.alu(Ops.FLOORDIV, j, b.num(8)))

    def expected() -> list[np.ndarray]:
        seen = x[:, first::step].astype(float)[:, :columns]
        starts = [seen[:, : c - c % 8].sum(1) for c in range(columns)]
        return [seen.cumsum(1) - np.stack(starts, 1) + before.repeat(8, 1)[:, :columns]]

    output = b.store(0, (rows, columns), [i, j], b.alu(Ops.ADD, b.reduce(Ops.ADD, value, k), base))
    return b.Kernel(b.sink(output), [(0, np.zeros((rows, columns), np.float32))], [x, before], expected)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("rows", "columns", "step"), [(3, 512, 1), (17, 523, 1), (18, 259, 2), (16, 300, -1), (1, 256, 3)]
)
def test_running_sums_share_the_loads_of_a_block(rows: int, columns: int, step: int, target: str) -> None:
    """No element is asked for alone but those beyond the last whole block, and equal sums are made once."""
    program = run_all(running_sum(rows, columns, step), target, interpret=target == "narrow")
    loads = [u for u in program.linear.src if u.op is Ops.LOAD and u.src[0].op is Ops.INDEX]
    assert all(not u.shape for u in loads), "a gather"
    assert len(loads) <= columns % 8 + 1
    sums = [u for u in program.linear.src if u.op is Ops.ADD and u.dtype is dtypes.float32 and u.shape]
    assert len(sums) == 7 + 8


def test_few_rows_of_odd_length_are_shared_by_columns() -> None:
    """A rest of their own would keep threads from parts of them."""
    kernel = running_sum(1, 100_003, 1)
    program = run_all(kernel, "avx2", interpret=False)
    assert not any(isinstance(s, Split) and s.tail == "peel" for s in program.applied)
    assert chunks_of(kernel, program) > 1
