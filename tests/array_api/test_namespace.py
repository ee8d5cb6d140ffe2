"""The array API's other functions, attributes and indexing, against NumPy; shapes of 0 and no axes among them."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest

import aril.array_api as xp
from aril import Tensor, dtypes


def same(got, expected, kind=None):
    expected = np.asarray(expected)
    assert got.shape == expected.shape, (got.shape, expected.shape)
    assert got.dtype.name == (kind or expected.dtype.name)
    np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-6)


V = np.arange(24, dtype=np.float32).reshape(2, 3, 4) - 7
X = xp.asarray(V)


# --- the namespace ---


def test_version_and_info():
    assert xp.__array_api_version__ == "2024.12"
    info = xp.__array_namespace_info__()
    assert info.capabilities() == {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}
    assert info.default_device() == "CPU" and info.devices()[0] == "CPU"
    assert info.default_dtypes() == {"real floating": xp.float32, "integral": xp.int32, "indexing": xp.int32}
    assert len(info.dtypes()) == 11 and info.dtypes(kind="bool") == {"bool": xp.bool}
    assert set(info.dtypes(kind=("signed integer", "real floating"))) == {
        "int8", "int16", "int32", "int64", "float32", "float64",
    }  # fmt: skip
    assert info.dtypes(kind="complex floating") == {} and "uint8" in info.dtypes(kind="integral")
    assert X.__array_namespace__() is xp and X.__array_namespace__(api_version="2023.12") is xp
    with pytest.raises(ValueError, match="not offered"):
        X.__array_namespace__(api_version="1999.01")
    assert set(xp.__all__) <= set(dir(xp)) and math.isclose(xp.e, math.e) and xp.newaxis is None and math.isnan(xp.nan)


def test_dtype_functions():
    assert (
        xp.isdtype(xp.int8, "integral")
        and xp.isdtype(xp.int8, ("bool", xp.int8))
        and not xp.isdtype(xp.bool, "numeric")
    )
    with pytest.raises(ValueError, match="no kind"):
        xp.isdtype(xp.int8, "whole")
    f = xp.finfo(xp.float32)
    n = np.finfo(np.float32)
    assert (f.bits, f.eps, f.max, f.min, f.smallest_normal, f.dtype) == (32, n.eps, n.max, n.min, n.tiny, xp.float32)
    assert xp.finfo(xp.ones(1, dtype=xp.float64)).smallest_normal == np.finfo(float).tiny
    i = xp.iinfo(xp.uint16)
    assert (i.bits, i.max, i.min, i.dtype) == (16, 65535, 0, xp.uint16)
    with pytest.raises(TypeError, match="use iinfo"):
        xp.finfo(xp.int8)
    with pytest.raises(TypeError, match="use finfo"):
        xp.iinfo(xp.bool)


def test_attributes_and_numbers():
    assert (X.ndim, X.size, X.shape, X.device, X.dtype) == (3, 24, (2, 3, 4), "CPU", xp.float32)
    same(X.mT, V.swapaxes(-1, -2))
    same(X[0].T, V[0].T)
    with pytest.raises(ValueError, match="two axes"):
        _ = X.T
    assert float(X[0, 0, 1]) == -6 and int(xp.asarray(3)) == 3 and bool(xp.asarray(True)) and complex(X[0, 0, 0]) == -7
    assert range(5)[xp.asarray(2)] == 2 and len(X) == 2 and [float(x) for x in X[0, 0]] == [-7, -6, -5, -4]
    for f in (float, int, bool, complex):
        with pytest.raises(TypeError, match="shape \\(\\)"):
            f(xp.ones(1))
    with pytest.raises(TypeError):
        [1][xp.asarray(0.0)]
    with pytest.raises(TypeError):
        hash(X)
    assert repr(xp.asarray([1, 2])) == "<Array (2,) int32 on CPU: [1, 2]>"
    assert str(xp.asarray([1, 2]) + 1) == "<Array (2,) int32 on CPU: [2, 3]>"
    assert X.to_device("CPU").device == "CPU" and xp.asarray([1], device="PYTHON").device == "PYTHON"
    same(pickle.loads(pickle.dumps(X)), V)


# --- creation ---


def test_asarray_types():
    assert (
        xp.asarray(True).dtype is xp.bool
        and xp.asarray([1, 2]).dtype is xp.int32
        and xp.asarray(1.0).dtype is xp.float32
    )
    assert xp.asarray([1, 2.5]).dtype is xp.float32 and xp.asarray([]).dtype is xp.float32
    assert xp.asarray(2**40).dtype is xp.int64 and xp.asarray([2**63]).dtype is xp.uint64
    same(xp.asarray([[1, 2], [3, 4]], dtype=xp.uint8), np.array([[1, 2], [3, 4]], np.uint8))
    same(xp.asarray([X[0, 0], X[0, 1]]), V[0, :2])
    same(xp.asarray(np.array([1.5, 2.5])), np.array([1.5, 2.5]))
    same(xp.asarray(memoryview(b"abc")), np.frombuffer(b"abc", np.uint8))
    with pytest.raises(OverflowError):
        xp.asarray(300, dtype=xp.int8)
    with pytest.raises(OverflowError):
        xp.asarray(2**64)
    for bad in (1j, "a", None, [1, "a"], [object()]):
        with pytest.raises(TypeError):
            xp.asarray(bad)
    with pytest.raises(ValueError):
        xp.asarray([[1], [1, 2]])


def test_asarray_copies():
    x = xp.asarray([1.0, 2.0])
    alias, own, maybe = xp.asarray(x, copy=False), xp.asarray(x, copy=True), xp.asarray(x)
    x[0] = 9.0
    assert float(alias[0]) == 9 and float(own[0]) == 1 and maybe is x
    memory = np.ones(3, np.float32)
    shared = xp.asarray(memory, copy=False)
    memory[1] = 5
    assert float(shared[1]) == 5
    for bad in (lambda: xp.asarray([1.0], copy=False), lambda: xp.asarray(x, dtype=xp.int8, copy=False)):
        with pytest.raises(ValueError, match="copy=False"):
            bad()
    t = Tensor([1.0, 2.0])
    assert xp.asarray(t).tensor is t
    same(xp.from_dlpack(np.arange(3.0)), np.arange(3.0))
    same(xp.from_dlpack(x), [9.0, 2.0], "float32")
    np.testing.assert_array_equal(np.from_dlpack(x), [9.0, 2.0])


@pytest.mark.parametrize(
    "args",
    [(5,), (0,), (2, 7), (7, 2), (7, 2, -2), (0, 1, 0.25), (1.5, 6), (5, 5), (0, -3), (-4, 4, 3), (0.5, -2, -0.5)],
)
def test_arange(args):
    whole = all(isinstance(a, int) for a in args)
    same(xp.arange(*args), np.arange(*args).astype(np.int32 if whole else np.float32))
    same(xp.arange(*args, dtype=xp.float64), np.arange(*args, dtype=np.float64))


def test_arange_of_other_types():
    for name in ("int8", "uint8", "int64", "uint64", "float32"):
        same(xp.arange(3, 9, 2, dtype=getattr(xp, name)), np.arange(3, 9, 2, dtype=name))
    same(xp.arange(2**40, 2**40 + 3), np.arange(2**40, 2**40 + 3))
    same(xp.arange(0, -5, dtype=xp.uint8), np.zeros(0, np.uint8))
    same(xp.arange(2**63, 2**63 + 2, dtype=xp.uint64), np.arange(2**63, 2**63 + 2, dtype=np.uint64))
    with pytest.raises(ValueError, match="step is 0"):
        xp.arange(1, 2, 0)
    with pytest.raises(OverflowError):
        xp.arange(300, dtype=xp.int8)


@pytest.mark.parametrize("endpoint", [True, False])
@pytest.mark.parametrize("args", [(0, 1, 5), (0, 1, 0), (2, 9, 1), (5, -5, 4), (1.5, 1.5, 3), (0, 10, 2)])
def test_linspace(args, endpoint):
    same(xp.linspace(*args, endpoint=endpoint), np.linspace(*args, endpoint=endpoint).astype(np.float32))
    same(xp.linspace(*args, endpoint=endpoint, dtype=xp.float64), np.linspace(*args, endpoint=endpoint))


def test_filled_arrays():
    same(xp.full((2, 0), 3), np.full((2, 0), 3, np.int32))
    same(xp.full((), True), np.array(True))
    same(xp.full(3, 2.5), np.full(3, 2.5, np.float32))
    same(xp.full((2,), 2**40), np.full(2, 2**40))
    same(xp.zeros((2, 3), dtype=xp.int8), np.zeros((2, 3), np.int8))
    same(xp.ones(()), np.ones((), np.float32))
    same(xp.full_like(X, 2), np.full_like(V, 2))
    same(xp.zeros_like(X, dtype=xp.bool), np.zeros_like(V, dtype=bool))
    same(xp.ones_like(X[0]), np.ones_like(V[0]))
    assert xp.empty((2, 3), dtype=xp.int16).shape == (2, 3) and xp.empty_like(X).dtype is xp.float32
    for args in ((3, None, 0), (2, 4, 1), (4, 2, -1), (0, 3, 0), (3, 3, 5)):
        same(xp.eye(*args[:2], k=args[2]), np.eye(*args[:2], args[2], dtype=np.float32))
    for k in (-2, 0, 1, 5):
        same(xp.tril(X, k=k), np.tril(V, k))
        same(xp.triu(X, k=k), np.triu(V, k))
    same(xp.tril(xp.ones((2, 2), dtype=xp.bool)), np.tril(np.ones((2, 2), bool)))
    with pytest.raises(ValueError, match="two axes"):
        xp.tril(xp.ones(2))
    with pytest.raises(ValueError, match="at least 0"):
        xp.zeros(-1)


@pytest.mark.parametrize("indexing", ["xy", "ij"])
def test_meshgrid(indexing):
    parts = [np.arange(3), np.arange(2), np.arange(4)]
    for n in range(4):
        got = xp.meshgrid(*[xp.asarray(p) for p in parts[:n]], indexing=indexing)
        for g, e in zip(got, np.meshgrid(*parts[:n], indexing=indexing), strict=True):
            same(g, e)


def test_astype():
    same(xp.astype(X, xp.int8), V.astype(np.int8))
    same(xp.astype(X, xp.bool), V.astype(bool))
    assert xp.astype(X, xp.float32, copy=False) is X
    x = xp.asarray([1.0, 2.0])
    y = xp.astype(x, xp.float32)
    x[0] = 5.0
    same(y, [1.0, 2.0], "float32")


# --- reductions ---


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2), (), (0, 1, -1)])
def test_reductions(axis, keepdims):
    for name in ("sum", "prod", "max", "min", "mean", "std", "var"):
        same(getattr(xp, name)(X, axis=axis, keepdims=keepdims), getattr(np, name)(V, axis=axis, keepdims=keepdims))
    for name in ("all", "any"):
        same(getattr(xp, name)(X, axis=axis, keepdims=keepdims), getattr(np, name)(V, axis=axis, keepdims=keepdims))
    expected = np.asarray((V != 0).sum(axis=axis, keepdims=keepdims)).astype(np.int32)
    same(xp.count_nonzero(X, axis=axis, keepdims=keepdims), expected)


def test_types_of_sums():
    for name, out in {
        "int8": "int32", "int16": "int32", "int32": "int32", "int64": "int64", "uint8": "uint32", "uint16": "uint32",
        "uint64": "uint64", "float32": "float32", "float64": "float64",
    }.items():  # fmt: skip
        x = xp.ones((2, 3), dtype=getattr(xp, name))
        for f in (xp.sum, xp.prod):
            assert f(x).dtype.name == out
        assert xp.cumulative_sum(x, axis=0).dtype.name == out
        assert xp.sum(x, dtype=xp.float64).dtype is xp.float64
    same(xp.sum(xp.asarray([200, 100], dtype=xp.uint8)), np.uint32(300))
    same(xp.sum(xp.asarray([200, 100], dtype=xp.uint8), dtype=xp.uint8), np.uint8(44))
    with pytest.raises(TypeError, match="takes numeric"):
        xp.sum(xp.asarray([True]))
    with pytest.raises(TypeError, match="takes floating-point"):
        xp.mean(xp.asarray([1]))


def test_reductions_of_nothing_and_of_nan():
    empty = xp.zeros((0, 3))
    same(xp.sum(empty, axis=0), np.zeros(3, np.float32))
    same(xp.prod(empty), np.ones((), np.float32))
    same(xp.all(empty), np.array(True))
    same(xp.any(empty, axis=1), np.zeros(0, bool))
    assert math.isnan(float(xp.mean(empty))) and math.isnan(float(xp.var(empty)))
    x = xp.asarray([1.0, math.nan, 3.0])
    assert all(math.isnan(float(f(x))) for f in (xp.sum, xp.prod, xp.max, xp.min, xp.mean, xp.std, xp.var))
    assert bool(xp.all(x)) and bool(xp.any(xp.asarray([math.nan])))
    with pytest.raises(IndexError, match="axis 3"):
        xp.sum(X, axis=3)
    with pytest.raises(ValueError, match="twice"):
        xp.sum(X, axis=(0, -3))


@pytest.mark.parametrize("correction", [0, 1, 0.5, 2.0])
def test_corrections(correction):
    same(xp.var(X, axis=1, correction=correction), V.astype(np.float64).var(1, ddof=correction).astype(np.float32))
    same(xp.std(X, correction=correction), np.float32(V.astype(np.float64).std(ddof=correction)))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_running_totals(axis):
    same(xp.cumulative_sum(X, axis=axis), V.cumsum(axis))
    same(xp.cumulative_prod(X, axis=axis), V.cumprod(axis))
    got = xp.cumulative_sum(X, axis=axis, include_initial=True)
    same(got, np.concatenate([np.zeros_like(V.take([0], axis)), V.cumsum(axis)], axis))
    got = xp.cumulative_prod(X, axis=axis, include_initial=True)
    same(got, np.concatenate([np.ones_like(V.take([0], axis)), V.cumprod(axis)], axis))
    same(xp.diff(X, axis=axis), np.diff(V, axis=axis))
    same(xp.diff(X, axis=axis, n=2, prepend=X, append=X), np.diff(V, axis=axis, n=2, prepend=V, append=V))


def test_running_totals_at_the_edges():
    same(xp.cumulative_sum(xp.asarray([1, 2, 3])), np.array([1, 3, 6], np.int32))
    same(xp.cumulative_sum(xp.zeros((0,)), include_initial=True), np.zeros(1, np.float32))
    same(xp.diff(xp.ones((1,))), np.zeros(0, np.float32))
    same(xp.diff(xp.ones((2,)), n=0), np.ones(2, np.float32))
    with pytest.raises(ValueError, match="axis is needed"):
        xp.cumulative_sum(X)


# --- searching, sorting, sets ---


def test_positions_of_extremes():
    v = np.array([[3, 1, 3], [0, 0, 9]], np.int16)
    for name in ("argmax", "argmin"):
        for axis in (None, 0, -1):
            for keepdims in (False, True):
                got = getattr(xp, name)(xp.asarray(v), axis=axis, keepdims=keepdims)
                same(got, np.asarray(getattr(np, name)(v, axis=axis, keepdims=keepdims)).astype(np.int32))


def test_nonzero_and_where():
    v = np.array([[0, 1], [2, 0]])
    for g, e in zip(xp.nonzero(xp.asarray(v)), v.nonzero(), strict=True):
        same(g, e.astype(np.int32))
    with pytest.raises(ValueError):
        xp.nonzero(xp.asarray(1))
    mask = V > 0
    same(xp.where(X > 0, X, -X), np.where(mask, V, -V))
    same(xp.where(X > 0, X, 0.0), np.where(mask, V, np.float32(0)))
    same(xp.where(X[0] > 0, xp.asarray(1.0), X), np.where(mask[0], np.float32(1), V))
    assert xp.where(xp.asarray(True), xp.ones(2, dtype=xp.int8), xp.ones(2, dtype=xp.int16)).dtype is xp.int16
    with pytest.raises(TypeError, match="takes bool"):
        xp.where(X, X, X)


@pytest.mark.parametrize("side", ["left", "right"])
def test_searchsorted(side):
    a, b = np.array([1.0, 2.0, 2.0, 5.0]), np.array([[0.0, 1.0, 2.0], [3.0, 5.0, 9.0]])
    same(xp.searchsorted(xp.asarray(a), xp.asarray(b), side=side), a.searchsorted(b, side).astype(np.int32))
    order = np.array([3, 0, 2, 1])
    got = xp.searchsorted(xp.asarray(a[order]), xp.asarray(b), side=side, sorter=xp.asarray(order.argsort()))
    same(got, a.searchsorted(b, side).astype(np.int32))


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("axis", [0, -1])
def test_sort(axis, descending):
    v = np.random.default_rng(0).integers(-5, 5, (4, 6)).astype(np.int8)
    order = np.argsort(v, axis, kind="stable") if not descending else np.argsort(-v, axis, kind="stable")
    x = xp.asarray(v)
    same(xp.sort(x, axis=axis, descending=descending), np.take_along_axis(v, order, axis))
    same(xp.argsort(x, axis=axis, descending=descending), order.astype(np.int32))
    assert xp.sort(xp.zeros((0, 2))).shape == (0, 2) and xp.argsort(xp.zeros((2, 0))).dtype is xp.int32


def test_sets():
    v = np.array([[3.0, 1.0, 3.0], [-0.0, 0.0, math.nan], [math.nan, 1.0, 2.0]], np.float32)
    got = xp.unique_all(xp.asarray(v))
    assert got._fields == ("values", "indices", "inverse_indices", "counts")
    values = np.asarray(got.values)
    assert np.isnan(values).sum() == 2 and values[:4].tolist() == [0, 1, 2, 3]
    assert got.inverse_indices.shape == v.shape and int(xp.sum(got.counts)) == v.size
    np.testing.assert_array_equal(values[np.asarray(got.inverse_indices)], v)
    np.testing.assert_array_equal(v.reshape(-1)[np.asarray(got.indices)], values)
    assert xp.unique_counts(xp.asarray(v)).counts.shape == got.counts.shape
    assert xp.unique_inverse(xp.asarray(v)).inverse_indices.shape == v.shape
    same(xp.unique_values(xp.asarray([3, 1, 3])), np.array([1, 3], np.int32))
    assert xp.unique_all(xp.zeros((0, 2))).inverse_indices.shape == (0, 2)


# --- manipulation ---


def test_joining():
    a, b = np.arange(6.0, dtype=np.float32).reshape(2, 3), np.ones((1, 3))
    same(xp.concat([xp.asarray(a), xp.asarray(b)]), np.concatenate([a, b]))
    same(xp.concat([xp.asarray(a), xp.asarray(b)], axis=None), np.concatenate([a, b], None))
    same(xp.concat([xp.asarray(a), xp.zeros((2, 0))], axis=-1), a)
    same(xp.stack([xp.asarray(a), xp.asarray(a)], axis=-1), np.stack([a, a], -1))
    for g, e in zip(xp.unstack(X, axis=1), np.moveaxis(V, 1, 0), strict=True):
        same(g, e)
    with pytest.raises(ValueError, match="one shape"):
        xp.stack([xp.ones(2), xp.ones(3)])


def test_axes():
    same(xp.expand_dims(X, axis=-1), V[..., None])
    same(xp.expand_dims(X, axis=1), V[:, None])
    same(xp.squeeze(X[:, :1, None], axis=(1, -2)), V[:, 0])
    same(xp.permute_dims(X, (2, 0, 1)), V.transpose(2, 0, 1))
    same(xp.moveaxis(X, 0, -1), np.moveaxis(V, 0, -1))
    same(xp.moveaxis(X, (0, 1), (-1, 0)), np.moveaxis(V, (0, 1), (-1, 0)))
    same(xp.flip(X), np.flip(V))
    same(xp.flip(X, axis=(0, -1)), np.flip(V, (0, -1)))
    same(xp.flip(xp.asarray(1)), np.int32(1))
    refused = [
        (lambda: xp.squeeze(X, axis=0), ValueError),
        (lambda: xp.expand_dims(X, axis=4), IndexError),
        (lambda: xp.permute_dims(X, (0, 1)), ValueError),
        (lambda: xp.flip(X, axis=3), IndexError),
    ]
    for bad, kind in refused:
        with pytest.raises(kind):
            bad()


def test_reshape_and_broadcasting():
    same(xp.reshape(X, (4, -1)), V.reshape(4, -1))
    same(xp.reshape(X, (24,), copy=True), V.reshape(24))
    same(xp.reshape(xp.zeros((0, 3)), (-1, 3)), np.zeros((0, 3), np.float32))
    same(xp.reshape(xp.asarray(5), ()), np.int32(5))
    same(xp.broadcast_to(X[0], (5, 3, 4)), np.broadcast_to(V[0], (5, 3, 4)))
    got = xp.broadcast_arrays(xp.ones((3, 1)), xp.ones(4, dtype=xp.int8), xp.asarray(True))
    assert [g.shape for g in got] == [(3, 4)] * 3 and got[1].dtype is xp.int8
    with pytest.raises(ValueError):
        xp.broadcast_to(xp.ones(3), (2,))
    with pytest.raises(ValueError):
        xp.reshape(X, (5, 5))


def test_repeating_and_rolling():
    same(xp.repeat(X, 2), V.repeat(2))
    same(xp.repeat(X, 2, axis=1), V.repeat(2, 1))
    same(xp.repeat(X, xp.asarray([1, 0, 2]), axis=1), V.repeat([1, 0, 2], 1))
    same(xp.repeat(X, 0, axis=0), V.repeat(0, 0))
    same(xp.tile(X, (2,)), np.tile(V, 2))
    same(xp.tile(X, (2, 1, 1, 2)), np.tile(V, (2, 1, 1, 2)))
    same(xp.tile(X, (0, 1)), np.tile(V, (0, 1)))
    same(xp.tile(X, ()), V)
    same(xp.roll(X, 5), np.roll(V, 5))
    same(xp.roll(X, -2, axis=1), np.roll(V, -2, 1))
    same(xp.roll(X, (1, -1), axis=(0, 2)), np.roll(V, (1, -1), (0, 2)))
    same(xp.roll(xp.zeros((0,)), 3), np.zeros(0, np.float32))


def test_taking():
    i = np.array([2, 0, -1])
    same(xp.take(X, xp.asarray(i), axis=1), V.take(i, 1))
    same(xp.take(X, xp.asarray(i), axis=-1), V.take(i, -1))
    same(xp.take(X[0, 0], xp.asarray(i)), V[0, 0].take(i))
    assert xp.take(X, xp.zeros((0,), dtype=xp.int32), axis=0).shape == (0, 3, 4)
    order = np.argsort(-V, 1)
    same(xp.take_along_axis(X, xp.asarray(order), axis=1), np.take_along_axis(V, order, 1))
    same(xp.take_along_axis(X, xp.asarray(order[:1, :2, :1]), axis=1), np.take_along_axis(V, order[:1, :2, :1], 1))
    with pytest.raises(ValueError, match="axis is needed"):
        xp.take(X, xp.asarray(i))


# --- indexing ---


@pytest.mark.parametrize(
    "key",
    [0, -1, slice(1, None), slice(None, None, -1), (0, slice(None), 1), (..., 2), (None, 0, ..., None), slice(5, 9),
     (1, 2, 3), (slice(None), slice(2, 0, -1)), (slice(None, None, 2), ..., slice(-3, -1)), (), ...,
     (0, None, ..., slice(1, 1))],
)  # fmt: skip
def test_basic_indexing_and_assignment(key):
    same(X[key], V[key])
    x, v = xp.asarray(V), V.copy()
    x[key] = 3
    v[key] = 3
    same(x, v)
    value = np.arange(v[key].size, dtype=np.float32).reshape(v[key].shape)
    x[key] = xp.asarray(value)
    v[key] = value
    same(x, v)
    same(X, V)


def test_masks_and_integer_arrays():
    mask = V[0, 0] > -6
    same(X[X > 3], V[V > 3])
    same(X[:, :, xp.asarray(mask)], V[:, :, mask])
    same(xp.asarray([1, 2])[xp.asarray(False)], np.zeros((0, 2), np.int32))
    same(xp.asarray([1, 2])[xp.asarray(True)], np.array([[1, 2]], np.int32))
    same(X[0, 0][xp.asarray([3, -1, 0])], V[0, 0][[3, -1, 0]])
    i, j = np.array([0, 1]), np.array([2, 0])
    same(X[xp.asarray(i), xp.asarray(j)], V[i, j])
    same(X[xp.asarray(i), 1, xp.asarray(j)], V[i, 1, j])
    same(X[xp.asarray(1), ..., xp.asarray(2)], V[1, ..., 2])
    x, v = xp.asarray(V), V.copy()
    x[X > 3] = 0.0
    v[V > 3] = 0
    same(x, v)
    x[xp.asarray(False)] = 5.0
    same(x, v)


def test_what_an_index_or_value_must_not_be():
    for key in (2, (0, 5), (0, 0, 0, 0), -3):
        with pytest.raises(IndexError):
            X[key]
    x = xp.asarray([1, 2])
    with pytest.raises(TypeError):
        x[0] = 1.5
    with pytest.raises(TypeError, match="do not promote"):
        x[0] = xp.asarray(1.5)
    with pytest.raises(OverflowError):
        x[0] = 2**40
    with pytest.raises(TypeError, match="do not fit"):
        x[0] = xp.asarray(1, dtype=xp.int64)
    with pytest.raises(TypeError):
        x[0] = "a"


# --- products ---


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3,), (3,)),
        ((2, 3), (3, 4)),
        ((3,), (3, 4)),
        ((2, 3), (3,)),
        ((5, 1, 2, 3), (4, 3, 2)),
        ((0, 3), (3, 2)),
        ((2, 0), (0, 3)),
    ],
)
@pytest.mark.parametrize("kind", ["float32", "int8", "uint64"])
def test_matmul(a, b, kind):
    rng = np.random.default_rng(0)
    x, y = [rng.integers(0, 5, s).astype(kind) for s in (a, b)]
    same(xp.matmul(xp.asarray(x), xp.asarray(y)), x @ y)
    same(xp.asarray(x) @ xp.asarray(y), x @ y)


def test_other_products():
    a, b = np.arange(24.0).reshape(2, 3, 4), np.arange(24.0).reshape(4, 3, 2)
    for axes in (0, 1, ((2, 1), (0, 1)), ((0,), (2,)), ((-1,), (-3,))):
        same(xp.tensordot(xp.asarray(a), xp.asarray(b), axes=axes), np.tensordot(a, b, axes))
    same(xp.vecdot(xp.asarray(a), xp.asarray(a[0]), axis=-1), (a * a[0]).sum(-1))
    same(xp.vecdot(xp.asarray(a), xp.asarray(a), axis=-2), (a * a).sum(-2))
    same(xp.matrix_transpose(xp.asarray(a)), a.swapaxes(1, 2))
    for bad in (lambda: xp.matmul(xp.ones((2, 3)), xp.ones((2, 3))), lambda: xp.matmul(xp.asarray(1.0), xp.ones(1)),
                lambda: xp.tensordot(X, X), lambda: xp.vecdot(xp.ones(2), xp.ones(3)),
                lambda: xp.matrix_transpose(xp.ones(2))):  # fmt: skip
        with pytest.raises(ValueError):
            bad()
    with pytest.raises(TypeError):
        xp.matmul(xp.ones((2, 2)), xp.ones((2, 2), dtype=xp.int8))
    x = xp.ones((2, 2))
    y = x
    x @= xp.full((2, 2), 2.0)
    assert x is y
    same(x, np.full((2, 2), 4.0, np.float32))


# --- a program written for any library ---


def test_a_program_for_any_array_library():
    def standardized(x):
        ns = x.__array_namespace__()
        gap = x - ns.mean(x, axis=0, keepdims=True)
        return gap / ns.std(x, axis=0, keepdims=True)

    data = np.random.default_rng(0).normal(size=(20, 3))
    same(standardized(xp.asarray(data)), (data - data.mean(0)) / data.std(0))
    assert dtypes.float64 is xp.float64
