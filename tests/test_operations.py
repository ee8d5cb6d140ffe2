"""Every operation of the table: types of results, values over all layouts, gradients, CPU against interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from aril import Tensor, dtypes, jit
from aril.tensor_alive import is_storage_view
from aril.uop import UOp
from aril.uop.verify import check
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


@rows
def test_graphs_are_of_the_tensor_form(row):
    """As `SPEC=1` and the saving of captured functions ask; the gradients' graphs too."""
    x = [Tensor.empty(2, 3, dtype=dtypes.float32 if "f" in row.takes else dtypes.int32) for _ in range(row.count)]
    out = row.f(*x)
    grads = out.sum().gradient(*x) if row.grad and out.dtype.kind == "f" else ()
    check(UOp.sink(*[t.uop for t in (out, *grads)]), "tensor")


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


@rows
def test_only_views_show_the_memory_of_their_operand(row):
    """Axes of length 1 among them, over which a sum, a sort or a join changes nothing."""
    asked = 0
    for kind in (np.float32, np.int32):
        for shape in ((), (1,), (1, 1), (2, 1), (1, 4), (2, 4), (3, 1, 1)):
            if len(shape) < row.least or np.dtype(kind).kind not in row.takes:
                continue
            try:
                out = row.f(*[Tensor(x) for x in operands(row, shape, kind)])
            except (ValueError, IndexError):  # no window, no second element
                continue
            assert is_storage_view(out.uop) == row.view or row.name == "clone", (shape, kind)
            asked += 1
    assert asked


UNCHANGING = {
    "cat": lambda x: x.cat(),
    "stack": lambda x: x[0].stack(),
    "pow": lambda x: x**1,
    "+x": lambda x: +x,
    "x + 0": lambda x: x + 0,
    "x * 1": lambda x: x * 1,
    "usum": lambda x: x.usum(),
    "uprod": lambda x: x.uprod(),
    "repeat": lambda x: x.repeat(2, 1),
    "repeat_interleave": lambda x: x.repeat_interleave(1, 0),
    "pad": lambda x: x.pad((0, 0)),
    "pad mode": lambda x: x.pad((0, 0), mode="circular"),
    "pad a negative": lambda x: x.pad((0, -1)),
    "pad_to": lambda x: x.pad_to(None, None),
    "roll": lambda x: x.roll(4, 1),
    "meshgrid": lambda x: x[0].meshgrid()[0],
    "unfold": lambda x: x.unfold(1, 2, 1),
    "sum": lambda x: x[:, :1].sum(1),
    "sum of no axis": lambda x: x.sum(()),
    "max": lambda x: x[:, :1].max(1, keepdim=True),
    "cumsum": lambda x: x[:1].cumsum(0),
    "einsum": lambda x: Tensor.einsum("ij->ji", x),
    "interpolate": lambda x: x.interpolate((8,), mode="nearest"),
    "max_pool2d": lambda x: x.max_pool2d(1),
    "dropout": lambda x: x.dropout(0.5),
    "clip": lambda x: x.clip(min=-1e9),
    "where": lambda x: (x == x).where(x, 0),
    "round": lambda x: x.int().round(),
    "Tensor": lambda x: Tensor(x),
}


@pytest.mark.parametrize("f", UNCHANGING.values(), ids=UNCHANGING)
def test_what_changes_nothing_keeps_its_value(f):
    data = np.arange(8, dtype=np.float32).reshape(2, 4)
    want = f(Tensor(data)).numpy()
    x = Tensor(data)
    lazy, kept = f(x), f(x).realize()
    x.assign(x * 0 - 7)
    np.testing.assert_array_equal(lazy.numpy(), want)
    np.testing.assert_array_equal(kept.numpy(), want)
    kept.assign(kept * 0)  # and what is written to the result does not reach the operand
    kept.realize()
    assert x.tolist() == [[-7] * 4] * 2
    base = Tensor(data) * 1.5  # of a value that is still to be computed, too
    other = f(base)
    other.assign(other * 0)
    other.realize()
    assert base.tolist() == (data * 1.5).tolist()
    y = Tensor(data)
    step = jit(lambda x: (f(x), x.assign(x + 1))[0])
    for k in range(3):
        found = step(y)
        np.testing.assert_array_equal(found.numpy(), f(Tensor(data + k)).numpy())
    z = Tensor(data)
    np.testing.assert_array_equal(
        f(z).float().sum().gradient(z)[0].numpy().sum(), 0 if f is UNCHANGING["round"] else want.size
    )
