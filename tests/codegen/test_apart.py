"""Nests of one kernel that write to places of their own run at the same time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aril.codegen.affine import add
from aril.codegen.apart import independent
from aril.codegen.heuristics import choose
from aril.codegen.plan import Plan
from aril.codegen.steps import Chunk
from aril.dtype import dtypes
from aril.ops import Ops
from aril.uop.args import AxisType
from aril.uop.node import UOp
from tests.codegen import build as b
from tests.codegen.run import TARGETS, renderer, run_all

OUT, IN = (UOp.param(slot, dtypes.float32, 1000) for slot in (0, 1))


def stored(places: list[tuple[int, int]], start: int) -> UOp:
    """A copy of loops of (length, step), from `start` on."""
    loops = [UOp.range(n, (100 * start + i,), AxisType.LOOP) for i, (n, _) in enumerate(places)]
    index: UOp = UOp.integer(start)
    for r, (_, step) in zip(loops, places, strict=True):
        index = UOp(Ops.ADD, (index, UOp(Ops.MUL, (r, UOp.integer(step)))))
    return OUT.index(index).store(IN.index(index).load()).end(*loops)


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        (([(8, 1)], 0), ([(8, 1)], 8), True),
        (([(8, 1)], 0), ([(8, 1)], 7), False),
        (([(9, 2)], 0), ([(9, 2)], 1), True),
        (([(9, 2)], 0), ([(3, 3)], 1), False),
        (([(9, 30), (10, 1)], 0), ([(9, 30), (20, 1)], 10), True),
        (([(9, 30), (11, 1)], 0), ([(9, 30), (20, 1)], 10), False),
        (([(9, 30), (10, 1)], 0), ([(8, 30), (21, 1)], 10), False),  # its last column is the next row's first
        (([(9, -30), (10, 1)], 900), ([(9, 30), (20, 1)], 10), True),
    ],
)
def test_who_is_apart(one: Any, other: Any, apart: bool) -> None:
    effects = stored(*one), stored(*other)
    assert independent(effects) is apart
    written = [set(np.add.outer(*parts).ravel()) for parts in map(_places, (one, other))]
    assert not (written[0] & written[1]) or not apart  # against all places, one by one


def _places(nest: Any) -> list[np.ndarray]:
    steps = [np.arange(n) * step for n, step in nest[0]]
    return [steps[0], nest[1] + (steps[1] if len(steps) > 1 else np.zeros(1, int))]


def test_what_one_reads_and_another_writes_is_not_apart() -> None:
    assert independent((stored([(8, 1)], 0), stored([(8, 1)], 8)))
    r = UOp.range(8, (900,), AxisType.LOOP)
    neighbour = OUT.index(add(r, 8)).store(OUT.index(r).load()).end(r)
    assert not independent((stored([(8, 1)], 0), neighbour))
    assert independent((stored([(8, 1)], 16), neighbour))
    somewhere = OUT.index(IN.index(UOp.integer(3)).load().cast(dtypes.int64)).store(UOp.const(dtypes.float32, 1.0))
    assert not independent((stored([(8, 1)], 0), somewhere))  # memory decides where


def joined(rows: int, columns: tuple[int, ...], axis: int) -> b.Kernel:
    """Arrays joined along an axis, a nest each."""
    make = b.Build()
    shapes = [(rows, n) if axis else (n, rows) for n in columns]
    arrays = [make.array(*shape) for shape in shapes]
    whole = (rows, sum(columns)) if axis else (sum(columns), rows)
    out = UOp.param(0, dtypes.float32, whole[0] * whole[1])
    effects, start = [], 0
    for slot, (shape, n) in enumerate(zip(shapes, columns, strict=True), 1):
        i, j = make.loops(*shape)
        place = add(b.at(whole, i, j), start * (1 if axis else rows))
        effects.append(out.index(place).store(b.load(slot, shape, i, j)).end(i, j))
        start += n
    expected = np.concatenate(arrays, axis)
    return b.Kernel(b.sink(*effects), [(0, np.zeros(expected.size, np.float32))], arrays, lambda: [expected])


@pytest.mark.parametrize("target", ["avx2", "wide"])
@pytest.mark.parametrize(
    ("rows", "columns", "axis"), [(300, (1000, 777), 0), (1061, (3, 1740), 1), (500, (501, 502), 1)]
)
def test_threads_share_the_parts_of_a_join(rows: int, columns: tuple[int, ...], axis: int, target: str) -> None:
    plan = Plan(joined(rows, columns, axis).sink, renderer(target))
    choose(plan)
    large = [n for n in columns if n * rows > 4_000]  # 8 us, a nanosecond for each load and store
    assert plan.stopped == "" and len([s for s in plan.steps if isinstance(s, Chunk)]) == len(large)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("axis", [0, 1])
def test_joins_of_many_chunks_hold_every_element(axis: int, target: str) -> None:
    run_all(joined(203, (1000, 777, 3), axis), target)
