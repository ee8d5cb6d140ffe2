"""Values combined at positions: every reduction and type against a loop in NumPy, gradients, the work it takes,
devices, transforms, and the same bits however the work is divided."""

from __future__ import annotations

import numpy as np
import pytest

from aril import Tensor, dtypes, jit
from aril.device import GlobalCounters
from aril.ops import Ops
from aril.schedule import scatter as lowering
from aril.transforms import jacobian, jvp, vmap

DEVICES = ("CPU", "PYTHON")
REDUCES = {"sum": np.add, "prod": np.multiply, "mean": np.add, "amax": np.maximum, "amin": np.minimum}
RNG = np.random.default_rng(0)


def reference(x, dim, index, src, reduce, include_self=True):
    """A loop over the sources, in order, in float64 (integers as they are)."""
    wide = x.astype(np.float64) if x.dtype.kind == "f" else x.astype(np.int64)
    out, count = wide.copy(), np.full(x.shape, int(include_self))
    for at in np.ndindex(index.shape):
        i = index[at] + x.shape[dim] if index[at] < 0 else index[at]
        if not 0 <= i < x.shape[dim]:
            continue
        place = (*at[:dim], i, *at[dim + 1 :])
        first = count[place] == 0
        out[place] = src[at] if first else REDUCES[reduce](out[place], src[at])
        count[place] += 1
    if reduce == "mean":
        out = out / np.maximum(count, 1) if x.dtype.kind == "f" else out // np.maximum(count, 1)
    return out


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", REDUCES)
def test_every_reduction(reduce, include_self, device):
    x, index = RNG.normal(size=(5, 6, 3)), RNG.integers(-5, 5, (7, 4, 3))
    src = RNG.normal(size=(7, 5, 3))
    got = Tensor(x, device=device).scatter_reduce(
        0, Tensor(index, device=device), Tensor(src, device=device), reduce, include_self
    )
    np.testing.assert_allclose(got.numpy(), reference(x, 0, index, src, reduce, include_self), rtol=1e-13)


@pytest.mark.parametrize(
    "dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64, np.float16, np.float32]
)
def test_every_type(dtype):
    x, index, src = (RNG.integers(0, 4, n).astype(t) for n, t in ((20, dtype), (30, np.int32), (30, dtype)))
    for reduce in REDUCES:
        got = Tensor(x).scatter_reduce(0, Tensor(index), Tensor(src), reduce)
        assert got.dtype is Tensor(x).dtype
        # products of up to 30 threes leave the small types: those wrap
        want = reference(x, 0, index, src, reduce).astype(dtype)
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-3 if dtype is np.float16 else 1e-6)


@pytest.mark.parametrize("itype", [np.uint8, np.int16, np.uint32, np.uint64])
def test_every_type_of_positions(itype):
    x, index = RNG.normal(size=300), RNG.integers(0, 200, 40).astype(itype)
    src = RNG.normal(size=40)
    got = Tensor(x).scatter_reduce(0, Tensor(index), Tensor(src), "sum")
    np.testing.assert_allclose(got.numpy(), reference(x, 0, index.astype(np.int64), src, "sum"), rtol=1e-13)
    t = Tensor(x)
    (g,) = (t[Tensor(index)] * Tensor(src)).sum().gradient(t)
    np.testing.assert_allclose(g.numpy(), np.bincount(index, src, 300), rtol=1e-13)


def test_bool():
    x, src = np.array([True, False, False]), np.array([False, True, True, False])
    index = Tensor([0, 1, 1, 2])
    got = {r: Tensor(x).scatter_reduce(0, index, Tensor(src), r).tolist() for r in ("sum", "prod", "amax", "amin")}
    assert got["sum"] == got["amax"] == [True, True, False]
    assert got["prod"] == got["amin"] == [False, False, False]


def test_small_floats_are_summed_wide():
    ones = Tensor.ones(3000, dtype=dtypes.float16)
    got = Tensor.zeros(2, dtype=dtypes.float16).scatter_reduce(0, Tensor.zeros(3000, dtype=dtypes.int32), ones, "sum")
    assert got.tolist() == [3000.0, 0.0]  # float16 would stay at 2048


def test_places_outside_take_nothing():
    x = np.arange(4.0)
    index, src = np.array([4, -5, 2, -1, 1000]), np.arange(1.0, 6.0)
    got = Tensor(x).scatter_reduce(0, Tensor(index), Tensor(src), "sum")
    np.testing.assert_array_equal(got.numpy(), [0, 1, 5, 7])
    np.testing.assert_array_equal(Tensor(x).scatter(0, Tensor(index), Tensor(src)).numpy(), [0, 1, 3, 4])
    t = Tensor(src)
    (g,) = Tensor(x).scatter_reduce(0, Tensor(index), t, "sum").sum().gradient(t)
    np.testing.assert_array_equal(g.numpy(), [0, 0, 1, 1, 0])


def test_what_does_not_fit_is_said():
    with pytest.raises(ValueError, match=r"index \(2, 4\) is longer than \(3, 3\) outside of axis 0"):
        Tensor.zeros(3, 3).scatter_reduce(0, Tensor.zeros(2, 4, dtype=dtypes.int32), 1.0, "sum")
    with pytest.raises(ValueError, match="reduce is sum, prod, mean, amax or amin, not 'max'"):
        Tensor.zeros(3).scatter_reduce(0, Tensor([0]), 1.0, "max")


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_small_shapes(shape):
    x = np.ones(shape)
    index = np.zeros(shape, np.int32)
    got = Tensor(x).scatter_reduce(0, Tensor(index), Tensor(x), "sum")
    np.testing.assert_array_equal(got.numpy(), x * 2)


def test_one_position_for_a_whole_row():
    """An index that EXPAND repeats along the rows is walked by rows."""
    x, src, index = RNG.normal(size=(9, 40)), RNG.normal(size=(20, 40)), RNG.integers(-9, 9, 20)
    wide = Tensor(index).reshape(20, 1).expand(20, 40)
    want = reference(x, 0, np.broadcast_to(index[:, None], (20, 40)), src, "sum")
    np.testing.assert_allclose(Tensor(x).scatter_reduce(0, wide, Tensor(src), "sum").numpy(), want, rtol=1e-13)
    np.testing.assert_allclose(Tensor(x).T.scatter_reduce(1, wide.T, Tensor(src).T, "sum").numpy(), want.T, rtol=1e-13)
    np.testing.assert_array_equal(Tensor(x).gather(0, wide).numpy(), x[index])


# --- gradients ---


def slope(f, xs, weight, h=1e-6):
    out = []
    for k, x in enumerate(xs):
        g = np.empty(x.shape)
        for i in np.ndindex(x.shape):
            step = np.zeros(x.shape)
            step[i] = h
            a, b = (f(*[v + s * step if j == k else v for j, v in enumerate(xs)]) for s in (1, -1))
            g[i] = ((a - b) * weight).sum() / (2 * h)
        out.append(g)
    return out


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", REDUCES)
def test_gradients_are_those_of_finite_differences(reduce, include_self):
    x, src, index = RNG.normal(size=(5, 2)), RNG.normal(size=(8, 2)), RNG.integers(0, 5, (8, 2))
    weight = RNG.normal(size=(5, 2))
    a, b = Tensor(x), Tensor(src)
    out = (a.scatter_reduce(0, Tensor(index), b, reduce, include_self) * Tensor(weight)).sum()
    got = out.gradient(a, b)
    Tensor.realize(*got)
    want = slope(lambda *v: reference(v[0], 0, index, v[1], reduce, include_self), (x, src), weight)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g.numpy(), w, rtol=1e-6, atol=1e-8)


def test_the_gradient_of_a_product_with_zeros():
    x, src = np.array([2.0, 0.0, 3.0]), np.array([0.0, 5.0, 0.0, 0.0, 7.0])
    index = np.array([0, 0, 1, 2, 2])
    a, b = Tensor(x), Tensor(src)
    got = a.scatter_reduce(0, Tensor(index), b, "prod").sum().gradient(a, b)
    np.testing.assert_array_equal(got[0].numpy(), [0, 0, 0])
    np.testing.assert_array_equal(got[1].numpy(), [10, 0, 0, 21, 0])


def test_greatest_values_that_tie_share_the_gradient():
    a, b = Tensor([1.0, 4.0]), Tensor([1.0, 1.0, 2.0])
    got = a.scatter_reduce(0, Tensor([0, 0, 1]), b, "amax").sum().gradient(a, b)
    np.testing.assert_allclose(got[0].numpy(), [1 / 3, 1])
    np.testing.assert_allclose(got[1].numpy(), [1 / 3, 1 / 3, 0])


def test_only_the_last_value_of_a_place_has_a_gradient():
    a, b = Tensor([1.0, 2.0, 3.0]), Tensor([4.0, 5.0, 6.0])
    out = a.scatter(0, Tensor([1, 1, 0]), b) * Tensor([10.0, 20.0, 30.0])
    got = out.sum().gradient(a, b)
    assert got[0].tolist() == [0, 0, 30]
    assert got[1].tolist() == [0, 20, 10]


@pytest.mark.parametrize("reduce", ["sum", "prod", "amax"])
def test_second_order(reduce):
    x, src, index = RNG.normal(size=4), RNG.normal(size=6), np.array([0, 3, 3, 1, 0, 0])
    weight = RNG.normal(size=6)

    def first(v):
        b = Tensor(v)
        y = (b * b * b).sum() + Tensor(x).scatter_reduce(0, Tensor(index), b * b, reduce).square().sum()
        return y.gradient(b)[0]

    b = Tensor(src)
    y = (b * b * b).sum() + Tensor(x).scatter_reduce(0, Tensor(index), b * b, reduce).square().sum()
    (second,) = (y.gradient(b)[0] * Tensor(weight)).sum().gradient(b)
    want = slope(lambda v: first(v).numpy(), (src,), weight, 1e-5)[0]
    np.testing.assert_allclose(second.numpy(), want, rtol=1e-6, atol=1e-7)


def test_the_gradient_of_a_gradient_of_picked_rows():
    x, index, weight = RNG.normal(size=(6, 3)), np.array([1, 1, 5, 0]), RNG.normal(size=(6, 3))
    t = Tensor(x)
    (g,) = (t[Tensor(index)] ** 3).sum().gradient(t)
    (second,) = (g * Tensor(weight)).sum().gradient(t)
    np.testing.assert_allclose(second.numpy(), 6 * x * weight * np.bincount(index, minlength=6)[:, None], rtol=1e-12)


# --- work, order, places ---


def work(f):
    before = GlobalCounters.ops
    f().realize()
    return GlobalCounters.ops - before


def test_the_gradient_of_rows_takes_work_by_rows_picked():
    n, d, m = 4000, 16, 300
    w, g = Tensor(np.zeros((n, d), np.float32)).realize(), Tensor(np.ones((m, d), np.float32)).realize()
    index = Tensor(RNG.integers(0, n, m)).realize()
    assert work(lambda: w[index].gradient(w, gradient=g)[0]) < 2 * m * (d + 8)
    flat = Tensor(RNG.integers(0, n, (m, d))).realize()
    assert work(lambda: w.gather(0, flat).gradient(w, gradient=g)[0]) < 16 * m * d
    assert work(lambda: w.scatter_reduce(0, flat, g, "sum")) < 16 * m * d
    assert work(lambda: w.scatter(0, flat, g)) < 16 * m * d


@pytest.mark.parametrize(("n", "d", "m"), [(50, 37, 600), (700, 1, 900), (33, 64, 200)])
def test_bits_do_not_depend_on_how_rows_are_divided(n, d, m, monkeypatch):
    x, src = RNG.normal(size=(n, d)).astype(np.float32), RNG.normal(size=(m, d)).astype(np.float32)
    index = RNG.integers(0, n, m)
    want = x.copy()
    np.add.at(want, index, src)  # float32, in order
    for chunks in (1, 2, 7, 33):
        monkeypatch.setattr(lowering, "_chunks", lambda value, kept, chunks=chunks: chunks)
        # another constant makes another kernel: one divided otherwise is not found in the cache
        got = (Tensor(x) + float(chunks) * 0.0)._scatter(Tensor(src).maximum(-100.0 - chunks), Tensor(index), Ops.ADD)
        np.testing.assert_array_equal(got.numpy(), want)


@pytest.mark.parametrize("n", [3, 9, 40])
def test_all_values_meet_in_a_table_of_one_element(n):
    x = Tensor([[2.0]]).realize()
    w = Tensor(np.arange(n, dtype=np.float32)).reshape(n, 1)
    (g,) = (x[Tensor(np.zeros(n, np.int32))] * w).sum().gradient(x)
    assert g.tolist() == [[n * (n - 1) / 2]]


def test_in_jit():
    f = jit(lambda x, i, s: x.scatter_reduce(0, i, s, "sum") * 2)
    for seed in range(4):
        rng = np.random.default_rng(seed)
        x, i, s = rng.normal(size=50), rng.integers(0, 50, 80), rng.normal(size=80)
        want = x.copy()
        np.add.at(want, i, s)
        np.testing.assert_allclose(f(Tensor(x), Tensor(i), Tensor(s)).numpy(), want * 2, rtol=1e-12)


@pytest.mark.parametrize("mapped", [(0, 0, 0), (0, None, 0), (None, 0, 0), (None, 0, None)])
def test_vmap(mapped):
    x, index, src = RNG.normal(size=(3, 5, 2)), RNG.integers(-7, 7, (3, 4, 2)), RNG.normal(size=(3, 4, 2))
    args = [v if a == 0 else v[0] for v, a in zip((x, index, src), mapped, strict=True)]
    got = vmap(lambda a, i, s: a.scatter_reduce(0, i, s, "sum"), mapped)(*map(Tensor, args))
    for k in range(3):
        one = [v[k] if a == 0 else v for v, a in zip(args, mapped, strict=True)]
        np.testing.assert_allclose(got[k].numpy(), reference(one[0], 0, one[1], one[2], "sum"), rtol=1e-12)


def test_jacobian_and_jvp():
    index = Tensor([2, 0, 2])
    x = Tensor([1.0, 2.0, 3.0])
    got = jacobian(lambda v: Tensor.zeros(4).scatter_reduce(0, index, v, "sum"))(x)
    assert got.tolist() == [[0, 1, 0], [0, 0, 0], [1, 0, 1], [0, 0, 0]]
    assert jvp(lambda v: v[index], [x], [Tensor([1.0, 10.0, 100.0])])[1].tolist() == [100, 1, 100]


DISTRIBUTED = ("CPU", "CPU:1", "CPU:2")


@pytest.mark.parametrize("table", [None, 0, 1])
@pytest.mark.parametrize("batch", [None, 0])
def test_the_gradient_of_a_sharded_table(table, batch):
    x, index = RNG.normal(size=(7, 5)), RNG.integers(0, 7, (6, 2))
    weight = RNG.normal(size=(6, 2, 5))
    t = Tensor(x).shard(DISTRIBUTED, table).realize()
    i, w = Tensor(index).shard(DISTRIBUTED, batch), Tensor(weight).shard(DISTRIBUTED, batch)
    (g,) = (t[i] * w).sum().gradient(t)
    want = np.zeros_like(x)
    np.add.at(want, index, weight)
    np.testing.assert_allclose(g.numpy(), want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("op", [Ops.ADD, Ops.MUL, Ops.MAX, Ops.STORE])
@pytest.mark.parametrize("axes", [(0, None), (1, None), (None, 0), (None, 1), (0, 0), (1, 0)])
def test_sharded_rows_columns_and_values(op, axes):
    x, index, values = RNG.normal(size=(7, 5)), RNG.integers(-2, 9, 8), RNG.normal(size=(8, 5))
    want = x.copy()
    f = {Ops.ADD: np.add, Ops.MUL: np.multiply, Ops.MAX: np.maximum, Ops.STORE: lambda a, b: b}[op]
    for i, v in zip(index, values, strict=True):
        if 0 <= i < 7:
            want[i] = f(want[i], v)
    a, b = (Tensor(v).shard(DISTRIBUTED, axis).realize() for v, axis in zip((x, values), axes, strict=True))
    got = a._scatter(b, Tensor(index).shard(DISTRIBUTED, None), op)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-12)


# --- assignment ---


def test_assignment_by_position_goes_where_the_tensor_lies():
    x, rows = RNG.normal(size=(400, 32)), RNG.normal(size=(6, 32))
    index = RNG.integers(-400, 400, 6)
    t, i, v = Tensor(x).realize(), Tensor(index).realize(), Tensor(rows).realize()
    base = t.uop.base
    before = GlobalCounters.bytes
    t[i] = v
    t.realize()
    assert GlobalCounters.bytes - before < 8 * rows.nbytes < x.nbytes
    x[index] = rows
    np.testing.assert_array_equal(t.numpy(), x)
    assert base.op is Ops.BUFFER


def test_assignment_of_what_is_read_at_other_places():
    x, index = RNG.normal(size=(50, 3)), RNG.permutation(50)[:20]
    t, i = Tensor(x).realize(), Tensor(index).realize()
    t[i] = t[i] * 2 + t[(i + 1) % 50]
    x[index] = x[index] * 2 + x[(index + 1) % 50]
    np.testing.assert_array_equal(t.numpy(), x)
    t[i] += t.sum()
    x[index] += x.sum()
    np.testing.assert_allclose(t.numpy(), x, rtol=1e-12)
    order = Tensor(x[:, 0].argsort()).realize()
    t[order % 7, order % 3] = t[order, 0]
    want = x.copy()
    want[x[:, 0].argsort() % 7, x[:, 0].argsort() % 3] = x[x[:, 0].argsort(), 0]
    np.testing.assert_allclose(t.numpy(), want, rtol=1e-12)


def test_what_was_read_before_an_assignment_keeps_the_old_values():
    x, index = RNG.normal(size=(30, 4)), RNG.integers(0, 30, 9)
    t, i = Tensor(x).realize(), Tensor(index).realize()
    before = t[i] + 1
    t[i] = Tensor(np.zeros((9, 4)))
    after = t.sum(0)
    np.testing.assert_array_equal(before.numpy(), x[index] + 1)
    x[index] = 0
    np.testing.assert_allclose(after.numpy(), x.sum(0), rtol=1e-12)


def test_a_position_beyond_int64_is_beyond_the_axis():
    far = Tensor(np.array([2**64 - 1, 1], np.uint64))
    x = Tensor([10, 20, 30])
    assert x[far].tolist() == x.gather(0, far).tolist() == [30, 20]  # reading takes the nearest
    assert x.scatter(0, far, Tensor([7, 8])).tolist() == [10, 8, 30]
