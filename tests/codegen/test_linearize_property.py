"""Random kernels of nested, shared and consecutive loops: the program, run natively and interpreted, against NumPy."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aril.codegen.accumulate import accumulate, separate
from aril.codegen.linearize import linearize
from aril.codegen.typing import assign_types
from aril.dtype import dtypes
from aril.ops import Ops
from aril.runtime.interpreter import interpret
from aril.uop.args import AxisType
from aril.uop.node import UOp
from tests.renderer.run_llvm import run

I32 = dtypes.int32
AXES = 6  # loops a kernel may have; each is an axis of every reference array
OPS = {Ops.ADD: np.add, Ops.XOR: np.bitwise_xor, Ops.MAX: np.maximum, Ops.MUL: np.multiply}


class Random:
    """Grows values as (node, array over all axes) from the choices hypothesis makes."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.sizes = [draw(st.integers(1, 4)) for _ in range(AXES)]
        kinds = [draw(st.sampled_from((AxisType.LOOP, AxisType.REDUCE))) for _ in range(AXES)]
        self.loops = [UOp.range(n, i, kind) for i, (n, kind) in enumerate(zip(self.sizes, kinds, strict=True))]
        self.inputs: list[np.ndarray] = []
        self.pool: list[tuple[UOp, np.ndarray, frozenset[int]]] = []
        self.outputs = 0

    def pick(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def load(self, axes: list[int]) -> tuple[UOp, np.ndarray, frozenset[int]]:
        shape = [self.sizes[a] for a in axes]
        data = np.random.default_rng(len(self.inputs)).integers(-50, 50, shape).astype(np.int32)
        self.inputs.append(data)
        node = UOp.param(10 + len(self.inputs) - 1, I32, max(1, data.size)).index(self.index(axes)).load()
        return node, self.spread(data, axes), frozenset(axes)

    def index(self, axes: list[int]) -> UOp:
        at = UOp.const(dtypes.weakint, 0)
        for a in axes:
            at = UOp(Ops.ADD, (UOp(Ops.MUL, (at, UOp.const(dtypes.weakint, self.sizes[a]))), self.loops[a]))
        return at

    def spread(self, data: np.ndarray, axes: list[int]) -> np.ndarray:
        return data.transpose(np.argsort(axes)).reshape([self.sizes[a] if a in axes else 1 for a in range(AXES)])

    def value(self, live: list[int], depth: int) -> tuple[UOp, np.ndarray, frozenset[int]]:
        """A value in some of the loops `live`."""
        usable = [p for p in self.pool if p[2] <= set(live)]
        choice = self.pick(0, 4)
        if depth == 0 or choice == 0:
            return self.load([a for a in live if self.pick(0, 1)])
        if choice == 1 and usable:
            return usable[self.pick(0, len(usable) - 1)]
        free = [a for a in range(AXES) if a not in live]
        if choice == 2 and free:
            axis = free[self.pick(0, len(free) - 1)]
            node, data, axes = self.value(sorted([*live, axis]), depth - 1)
            if axis in axes:
                op = (Ops.ADD, Ops.MAX)[self.pick(0, 1)]
                out = UOp(Ops.REDUCE, (node, self.loops[axis]), (op, ()))
                data = OPS[op].reduce(data, axis, keepdims=True, dtype=np.int32)
                self.pool.append((out, data, axes - {axis}))
                return self.pool[-1]
        a, x, first = self.value(live, depth - 1)
        b, y, second = self.value(live, depth - 1)
        op = list(OPS)[self.pick(0, len(OPS) - 1)]
        self.pool.append((UOp(op, (a, b)), OPS[op](x, y), first | second))
        return self.pool[-1]


@st.composite
def kernels(draw: st.DrawFn) -> tuple[UOp, list[np.ndarray], list[np.ndarray]]:
    """(kernel, inputs, expected outputs)"""
    made = Random(draw)
    effects, expected = [], []
    for slot in range(made.pick(1, 3)):
        axes = sorted(draw(st.sets(st.integers(0, AXES - 1), max_size=3)))
        node, data, _ = made.value(axes, 4)
        shape = [made.sizes[a] for a in axes]
        full = np.broadcast_to(data, [made.sizes[a] if a in axes else 1 for a in range(AXES)]).reshape(shape)
        store = UOp.param(slot, I32, max(1, full.size)).index(made.index(axes)).store(node)
        effects.append(store.end(*[made.loops[a] for a in axes]))
        expected.append(full)
    return UOp.sink(*effects), made.inputs, expected


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(kernels())
def test_random_loops_compute_what_numpy_does(case: tuple[UOp, list[np.ndarray], list[np.ndarray]]) -> None:
    sink, inputs, expected = case
    with np.errstate(over="ignore"):
        while (apart := separate(sink)) is not sink:  # copies of nested reductions, one level at a time
            sink = apart
        program = linearize(assign_types(accumulate(sink))).src
        empty = [np.zeros(1, np.int32)] * (10 - len(expected))
        native, interpreted = ([np.zeros(e.shape, np.int32) for e in expected] for _ in range(2))
        run(program, *native, *empty, *inputs)
        interpret(
            list(program), [*[x.reshape(-1) for x in interpreted], *empty, *[x.reshape(-1) for x in inputs]], {}, 1
        )
        for got, same, want in zip(native, interpreted, expected, strict=True):
            np.testing.assert_array_equal(got, want)
            np.testing.assert_array_equal(same, want)
