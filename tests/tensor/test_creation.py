"""Tensors from data and from descriptions: shapes, types, values, errors; and back to Python and NumPy."""

from __future__ import annotations

import array

import ml_dtypes
import numpy as np
import pytest

from aril import Context, Tensor, Variable, dtypes
from tests.values import both, check


@both
def test_from_numbers_and_lists(value):
    check(value, Tensor(3), np.int32(3))
    check(value, Tensor(2.5), 2.5)
    check(value, Tensor(True), np.True_)
    check(value, Tensor([[1, 2], [3, 4]]), np.array([[1, 2], [3, 4]], np.int32))
    check(value, Tensor([1, 2.5]), [1, 2.5])
    check(value, Tensor([]), np.zeros(0))
    check(value, Tensor([[], []]), np.zeros((2, 0)))
    check(value, Tensor((1, 2), dtype="uint8"), np.array([1, 2], np.uint8))
    check(value, Tensor([300, -1], dtype="uint8"), np.array([44, 255], np.uint8))
    check(value, Tensor([Tensor([1.0, 2.0]), Tensor([3.0, 4.0])]), [[1.0, 2.0], [3.0, 4.0]])
    assert Tensor([1.5]).dtype is dtypes.float32 and Tensor([1]).dtype is dtypes.int32
    with Context(DEFAULT_FLOAT="float64"):
        assert Tensor([1.5]).dtype is dtypes.float64


@both
@pytest.mark.parametrize("kind", ["bool", "int8", "uint16", "int64", "uint64", "float16", "float32", "float64"])
def test_from_numpy_and_back(value, kind):
    x = np.arange(6).reshape(2, 3).astype(kind)
    check(value, Tensor(x), x)
    check(value, Tensor(x.T), x.T)
    check(value, Tensor(x[:, ::-1]), x[:, ::-1])
    assert Tensor(x).numpy().dtype == x.dtype


@both
def test_small_floats(value):
    x = np.array([1.0, -0.3, 1e-3, 3e38], np.float32)
    check(value, Tensor(x.astype(ml_dtypes.bfloat16)), x.astype(ml_dtypes.bfloat16).astype(np.float32))
    check(value, Tensor(x, dtype="bfloat16"), x.astype(ml_dtypes.bfloat16).astype(np.float32))
    y = np.array([1.0, -0.3, 0.01, 440.0], np.float32)
    check(value, Tensor(y, dtype="fp8e4m3"), y.astype(ml_dtypes.float8_e4m3fn).astype(np.float32))


def test_data_is_copied():
    x = np.zeros(3, np.float32)
    t = Tensor(x)
    x[0] = 1
    assert t.tolist() == [0, 0, 0]


@both
def test_from_bytes_and_buffers(value):
    check(value, Tensor(b"\x01\x02"), np.array([1, 2], np.uint8))
    check(value, Tensor(np.float32([1, 2]).tobytes(), dtype="float32"), [1.0, 2.0])
    check(value, Tensor(array.array("i", [1, 2, 3])), np.array([1, 2, 3], np.int32))
    check(value, Tensor(memoryview(array.array("d", [1, 2]))), np.array([1.0, 2.0]))


def test_errors_of_data():
    with pytest.raises(ValueError, match="different lengths"):
        Tensor([[1, 2], [3]])
    with pytest.raises(TypeError, match="no number"):
        Tensor([1, "a"])
    with pytest.raises(TypeError, match="None"):
        Tensor(None)
    with pytest.raises(TypeError):
        Tensor(object())
    with pytest.raises(TypeError, match="no dtype|not a dtype"):
        Tensor([1], dtype="floaty")


@both
def test_constants(value):
    check(value, Tensor.zeros(2, 3), np.zeros((2, 3)))
    check(value, Tensor.ones((2, 3), dtype="int8"), np.ones((2, 3), np.int8))
    check(value, Tensor.full((2,), 7), np.full(2, 7, np.int32))
    check(value, Tensor.full((), 1.5), 1.5)
    check(value, Tensor.full_like(Tensor([1.0, 2.0]), 3), [3.0, 3.0])
    check(value, Tensor([1, 2]).zeros_like(), np.zeros(2, np.int32))
    check(value, Tensor([1, 2]).ones_like(dtype="float32"), np.ones(2))
    check(value, Tensor.eye(3), np.eye(3))
    check(value, Tensor.eye(2, 4, dtype="int32"), np.eye(2, 4, dtype=np.int32))
    with pytest.raises(ValueError, match="dimension"):
        Tensor.zeros(-1)


@both
def test_ranges(value):
    check(value, Tensor.arange(5), np.arange(5, dtype=np.int32))
    check(value, Tensor.arange(2, 11, 3), np.arange(2, 11, 3, dtype=np.int32))
    check(value, Tensor.arange(5, -5, -2), np.arange(5, -5, -2, dtype=np.int32))
    check(value, Tensor.arange(0, 1, 0.125), np.arange(0, 1, 0.125))
    check(value, Tensor.arange(3, dtype="float64"), np.arange(3.0))
    check(value, Tensor.arange(0), np.zeros(0, np.int32))
    check(value, Tensor.arange(5, 5), np.zeros(0, np.int32))
    for steps in (1, 2, 5, 100):
        check(value, Tensor.linspace(-1, 2.5, steps), np.linspace(-1, 2.5, steps), rtol=1e-6)
    with pytest.raises(ValueError, match="step"):
        Tensor.arange(3, step=0)
    with pytest.raises(ValueError, match="int8"):
        Tensor.arange(300, dtype="int8")


def test_back_to_python():
    x = Tensor([[1, 2], [3, 4]])
    assert x.tolist() == [[1, 2], [3, 4]] and x[1, 0].item() == 3 and isinstance(x[0, 0].item(), int)
    assert Tensor(2.5).item() == 2.5 and float(Tensor(2.5)) == 2.5 and int(Tensor([7])) == 7
    assert bool(Tensor([1])) and not Tensor(0) and len(x) == 2
    assert list(range(5))[Tensor(2)] == 2
    assert np.asarray(x).tolist() == [[1, 2], [3, 4]]
    assert x.data().tolist() == [[1, 2], [3, 4]] and x.data().shape == (2, 2)
    assert [row.tolist() for row in x] == [[1, 2], [3, 4]]
    with pytest.raises(ValueError, match="item"):
        x.item()
    with pytest.raises(ValueError, match="ambiguous"):
        bool(x)
    with pytest.raises(TypeError, match="0-d"):
        len(Tensor(1))
    assert "(2, 2)" in repr(x) and "int32" in repr(x)


def test_other_libraries_read_it():
    np.testing.assert_array_equal(np.from_dlpack(Tensor([1.0, 2.0])), [1.0, 2.0])


def test_memory_that_exists_is_not_copied():
    x = np.arange(4, dtype=np.float32)
    t = Tensor.from_blob(x.ctypes.data, (2, 2), owner=x)
    x[0] = 9
    assert t.tolist() == [[9, 1], [2, 3]]


def test_sizes():
    x = Tensor.zeros(2, 3, dtype="int16")
    assert (x.ndim, x.numel(), x.size(), x.size(-1), x.element_size(), x.nbytes()) == (2, 6, (2, 3), 3, 2, 12)
    assert x.max_shape == (2, 3) and not x.is_floating_point()


def test_symbolic_shapes():
    n = Variable("n", 1, 10)
    x = Tensor(np.arange(10, dtype=np.float32)).shrink([(0, n.bind(4))])
    assert x.sum().item() == 6
    y = Tensor(np.arange(10, dtype=np.float32))[n.bind(3) : n.bind(3) + 2]
    assert y.sum().item() == 7
    assert (Tensor([1, 2]) + n.bind(5)).tolist() == [6, 7]
    assert x.numpy().tolist() == [0, 1, 2, 3]
    cache = Tensor.zeros(8)
    for i in (0, 5):
        cache[n.bind(i + 1) : n.bind(i + 1) + 1] = i + 1
        cache.realize()
    assert cache.tolist() == [0, 1, 0, 0, 0, 0, 6, 0]
    assert (n.bind(5) - Tensor([1, 2])).tolist() == [4, 3]
    assert Tensor(np.arange(4.0))[: n.bind(2)].argmax().item() == 1
