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
from tests.codegen.run import TARGETS, run_all


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
