"""`x[...]` and `x[...] = v` have NumPy's meaning."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from aril import Tensor
from tests.values import both, check, of_graph

X = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
s = np.s_
KEYS = [
    s[0],
    s[1, 2],
    s[-1, ..., -2],
    s[1:],
    s[:, 1:3],
    s[..., ::2],
    s[:, ::-1],
    s[:, :, 3:0:-2],
    s[::-2, ::3, 4:1:-1],
    s[None, 0],
    s[..., None, ::3],
    s[1:1],
    s[2:1],
    s[:, -2:],
    s[5:],
    s[...],
    s[()],
    s[:, [0, 2]],
    s[[0, 1], [1, 2]],
    s[0, :, [1, 2]],
    s[:, [[0, 1], [1, 2]]],
    s[[1], :, [2]],
    s[[-1, 0]],
    s[np.array([0, 1]), None, 1],
    s[:, 1, [0, 1]],
    s[[0, 1], :, None, 0],
    s[X > 20],
    s[:, np.array([True, False, True, False])],
    s[np.array([True, False, True]), 1:3],
    s[X[0] > 7],
    s[[], 0],
    s[np.int64(1)],
    s[range(2)],
]


def readable(key):
    return np.asarray(key) if isinstance(key, range) else key


@both
@pytest.mark.parametrize(
    "key", KEYS, ids=lambda k: str(k)[:30].replace("\n", " ") if not isinstance(k, np.ndarray) else "mask"
)
def test_read(value, key):
    if isinstance(key, np.ndarray) and key.shape == (4, 5):
        check(value, Tensor(X[0])[key], X[0][key])
    else:
        check(value, Tensor(X)[key], X[readable(key)])


@both
@pytest.mark.parametrize(
    "key", KEYS, ids=lambda k: str(k)[:30].replace("\n", " ") if not isinstance(k, np.ndarray) else "mask"
)
def test_write(value, key):
    want = X.copy() if not (isinstance(key, np.ndarray) and key.shape == (4, 5)) else X[0].copy()
    got = Tensor(want)
    v = -1 - np.arange(want[readable(key)].size, dtype=np.float32).reshape(want[readable(key)].shape)
    got[key] = Tensor(v)
    want[readable(key)] = v
    check(value, got, want)
    got[key] = 7
    want[readable(key)] = 7
    check(value, got, want)


@both
def test_by_tensors(value):
    i, mask = np.array([2, 0, -1]), X[:, 0, 0] > 10
    check(value, Tensor(X)[Tensor(i)], X[i])
    check(value, Tensor(X)[:, Tensor(i)], X[:, i])
    check(value, Tensor(X)[Tensor(i), 1:3, Tensor(i)], X[i, 1:3, i])
    check(value, Tensor(X)[Tensor(mask)], X[mask])
    check(value, Tensor(X)[Tensor(1)], X[1])
    check(value, Tensor(X)[Tensor(i).reshape(3, 1), Tensor(i)], X[i.reshape(3, 1), i])
    got, want = Tensor(X), X.copy()
    got[Tensor(i), Tensor(i)] = 3
    want[i, i] = 3
    check(value, got, want)
    got[Tensor(want > 30)] = -5
    want[want > 30] = -5
    check(value, got, want)


def test_positions_in_tensors_stay_within_the_axis():
    assert Tensor([10, 20, 30])[Tensor([5, -9])].tolist() == [30, 10]


@both
def test_the_last_of_equal_positions_is_written(value):
    got, want = Tensor(np.zeros(4, np.float32)), np.zeros(4, np.float32)
    got[[1, 1, 2]] = Tensor([5.0, 6.0, 7.0])
    want[[1, 1, 2]] = [5, 6, 7]
    check(value, got, want)


@both
def test_written_values_are_cast_and_broadcast(value):
    got, want = Tensor(np.zeros((2, 3), np.int32)), np.zeros((2, 3), np.int32)
    got[:, 1] = 2.7
    want[:, 1] = 2
    got[1] = Tensor([[1, 2, 3]])
    want[1] = np.array([[1, 2, 3]])
    check(value, got, want)
    with pytest.raises(ValueError, match="do not fit|broadcast"):
        got[0] = Tensor([1, 2])


def test_errors():
    x = Tensor(X)
    with pytest.raises(IndexError, match="position 3 is outside of axis 0"):
        x[3]
    with pytest.raises(IndexError, match="4 indices for the 3 axes"):
        x[0, 0, 0, 0]
    with pytest.raises(IndexError, match="reach outside"):
        x[[0, 3]]
    with pytest.raises(IndexError, match="no index"):
        x["a"]
    with pytest.raises(IndexError, match="integers"):
        x[Tensor([1.0])]
    with pytest.raises(IndexError, match="mask"):
        x[np.array([True, False])]
    with pytest.raises(ValueError, match="step"):
        x[::0]


@given(st.data(), hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5))
@settings(max_examples=80)
def test_any_basic_index(data, shape):
    x = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
    key = data.draw(hnp.basic_indices(shape, allow_ellipsis=True, allow_newaxis=True))
    check(of_graph, Tensor(x)[key], x[key])
    want, got = x.copy(), Tensor(x)
    want[key] = -1
    got[key] = -1
    check(of_graph, got, want)


@both
def test_what_needs_values(value):
    x = np.array([[0, 3, 0], [5, 0, 7]])
    check(value, Tensor(x).nonzero(), np.argwhere(x).astype(np.int32))
    check(value, Tensor(x).masked_select(Tensor(x > 2)), x[x > 2])


def test_parts_of_nothing_are_well_formed():
    """Of an empty axis backwards: the part began before the axis."""
    from aril.uop.verify import check

    x = Tensor(np.zeros((0, 3), np.float32))
    for y in (x[::-1], x[::-2, :2], x.flip(0), x.sort(1)[0], x.gather(1, Tensor.zeros(0, 2, dtype="int32"))):
        check(y.uop.sink(), "tensor")
        assert y.numpy().shape == y.shape


def test_masks_of_shape_nothing_select_a_vector():
    x = Tensor(3.0)
    assert x.masked_select(x > 0).tolist() == [3.0]
    assert x.masked_select(x < 0).shape == (0,)
    assert Tensor([1.0, 2.0]).masked_select(Tensor(True)).tolist() == [1.0, 2.0]
