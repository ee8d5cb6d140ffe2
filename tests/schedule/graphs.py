"""Graphs over real buffers for tests of scheduling: build, realize, and compare with the NumPy evaluator."""

from __future__ import annotations

import math

import numpy as np

from aril.device import GlobalCounters
from aril.engine.realize import realize_uops, storage_of
from aril.schedule import Schedule, normalize, schedule
from aril.tensor import Tensor
from aril.uop import UOp
from aril.uop.shape import reshape
from tests.reference import evaluate


def put(array: np.ndarray) -> UOp:
    """A realized tensor-form value with the array's elements, on the CPU."""
    array = np.ascontiguousarray(array)
    node = UOp.new_buffer("CPU", math.prod(array.shape), str(array.dtype))
    storage_of(node).copyin(memoryview(array.reshape(-1)).cast("B") if array.size else memoryview(b""))
    return reshape(node, array.shape)


def get(u: UOp) -> np.ndarray:
    """The elements of a realized whole value."""
    flat = np.frombuffer(storage_of(u.base).as_memoryview(), dtype=np.dtype(u.dtype.fmt))
    return flat.reshape(u.shape).copy()


def realized(*roots: UOp) -> tuple[list[np.ndarray], int]:
    """(values, launches) of realizing the graphs together."""
    before = GlobalCounters.kernels
    out = realize_uops(list(roots), ["CPU"] * len(roots))
    return [get(u) for u in out], GlobalCounters.kernels - before


def check(*roots: UOp, tolerance: float = 1e-5) -> int:
    """Realize and compare with the evaluator in float64; returns the number of launches."""
    expected = [evaluate(r, wide=True) for r in roots]
    found, launches = realized(*roots)
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_allclose(f, e, rtol=tolerance, atol=tolerance)
    return launches


def scheduled(*roots: UOp | Tensor) -> Schedule:
    """The steps that would compute the values on the CPU."""
    normal = normalize([r if isinstance(r, UOp) else r.uop for r in roots], ("CPU",) * len(roots))
    return schedule(normal.graph, len(normal.buffers))


def kernels(t: Tensor) -> int:
    """How many kernels computing `t` takes."""
    before = GlobalCounters.kernels
    t.realize()
    return GlobalCounters.kernels - before
