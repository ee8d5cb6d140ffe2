"""Every operation of the table: types of results, values over all layouts, gradients, CPU against interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from aril import Tensor, dtypes
from tests.operations import FUNCTIONS, TABLE, Row, result

RNG = np.random.default_rng(0)
TYPES = [
    dtypes.bool, dtypes.uint8, dtypes.uint16, dtypes.uint32, dtypes.uint64, dtypes.int8, dtypes.int16, dtypes.int32,
    dtypes.int64, dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64,
]  # fmt: skip
rows = pytest.mark.parametrize("row", TABLE, ids=[r.name for r in TABLE])

LAYOUTS = {
    "0-d": ((), lambda x: x, lambda x: x),
    "plain": ((2, 3), lambda x: x, lambda x: x),
    "empty": ((0, 3), lambda x: x, lambda x: x),
    "expanded": ((2, 1, 3), lambda x: x.expand(2, 4, 3), lambda x: np.broadcast_to(x, (2, 4, 3))),
    "flipped": ((2, 3), lambda x: x.flip(0, 1), lambda x: x[::-1, ::-1]),
    "permuted": ((3, 2, 4), lambda x: x.permute(2, 0, 1), lambda x: x.transpose(2, 0, 1)),
    "sliced": ((5, 7), lambda x: x[1:4, 6:0:-2], lambda x: x[1:4, 6:0:-2]),
}


def operands(row: Row, shape, kind=np.float64):
    return [RNG.uniform(row.low, row.high, shape).astype(kind) for _ in range(row.count)]


@rows
def test_types_are_those_of_the_table(row):
    for d in TYPES:
        inputs = [Tensor.ones(2, 2, dtype=d) for _ in range(row.count)]
        if d.kind in row.takes:
            assert row.f(*inputs).dtype is result(row, d), f"{row.name} of {d.name}"
        else:
            with pytest.raises(TypeError, match="float|bool"):
                row.f(*inputs)


@rows
def test_values_over_all_layouts(row):
    got, want = [], []
    kind = np.float64 if "f" in row.takes else np.int64
    for name, (shape, mine, theirs) in LAYOUTS.items():
        raw = operands(row, shape, kind)
        views = [theirs(x) for x in raw]
        if views[0].ndim >= row.least:
            got.append((name, row.f(*[mine(Tensor(x)) for x in raw])))
            want.append(row.ref(*views))
    Tensor.realize(*[t for _, t in got])
    for (name, t), expected in zip(got, want, strict=True):
        assert t.shape == np.shape(expected), name
        np.testing.assert_allclose(t.numpy(), expected, rtol=1e-12, atol=1e-14, err_msg=name)


@pytest.mark.parametrize("row", [r for r in TABLE if r.grad], ids=[r.name for r in TABLE if r.grad])
def test_gradients_are_those_of_finite_differences(row):
    x = operands(row, (2, 3))
    weight = RNG.normal(size=row.ref(*x).shape)
    tensors = [Tensor(a) for a in x]
    grads = (row.f(*tensors) * Tensor(weight)).sum().gradient(*tensors)
    Tensor.realize(*grads)
    h = 1e-5
    for k, g in enumerate(grads):
        want = np.empty((2, 3))
        for i in np.ndindex(2, 3):
            step = np.zeros((2, 3))
            step[i] = h
            ends = [[a + s * step if j == k else a for j, a in enumerate(x)] for s in (1, -1)]
            want[i] = sum(s * (row.ref(*e) * weight).sum() for s, e in zip((1, -1), ends, strict=True)) / (2 * h)
        np.testing.assert_allclose(g.numpy(), want, rtol=2e-6, atol=2e-8)


@pytest.mark.parametrize("row", FUNCTIONS[::3], ids=[r.name for r in FUNCTIONS[::3]])
def test_the_interpreter_agrees(row):
    x = operands(row, (3, 5), np.float32)
    one = row.f(*[Tensor(a, device="CPU") for a in x]).numpy()
    two = row.f(*[Tensor(a, device="PYTHON") for a in x]).numpy()
    np.testing.assert_allclose(one, two, rtol=1e-6, atol=1e-7)
