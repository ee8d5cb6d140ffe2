"""`x += y` and its kin: who holds the tensor sees the new values, as in NumPy."""

from __future__ import annotations

import operator

import numpy as np
import pytest

from aril import GlobalCounters, Tensor, dtypes, jit

FLOATS = [
    operator.iadd,
    operator.isub,
    operator.imul,
    operator.itruediv,
    operator.ifloordiv,
    operator.imod,
    operator.ipow,
]
INTEGERS = [
    operator.iadd, operator.isub, operator.imul, operator.ifloordiv, operator.imod, operator.iand, operator.ior,
    operator.ixor, operator.ilshift, operator.irshift,
]  # fmt: skip


@pytest.mark.parametrize("change, kind", [*[(f, "float32") for f in FLOATS], *[(f, "int32") for f in INTEGERS]])
@pytest.mark.parametrize("computed", [False, True], ids=["realized", "computed"])
@pytest.mark.parametrize("tensor", [False, True], ids=["number", "tensor"])
def test_all_holders_see_it(change, kind, computed, tensor):
    a, b = np.array([7, 5, 3], kind), np.array([2, 1, 3], kind)
    x = Tensor(a)
    if computed:
        x = x * 2
        a = a * 2
    alias, base = x, a
    x, a = change(x, Tensor(b) if tensor else 2), change(a, b if tensor else 2)
    assert x is alias and a is base
    np.testing.assert_allclose(alias.numpy(), a, rtol=1e-6)
    assert alias.dtype.name == kind


def test_views_of_memory_see_it():
    a = np.arange(12, dtype=np.float32).reshape(3, 4)
    x, b = Tensor(a.copy()).realize(), a.copy()
    row, old = x[1], (x * 1).realize()
    row *= 10
    b[1] *= 10
    x -= Tensor([1.0, 2.0, 3.0, 4.0])
    b -= np.array([1, 2, 3, 4], np.float32)
    x @= Tensor.eye(4)
    np.testing.assert_array_equal(x.numpy(), b)
    np.testing.assert_array_equal(row.numpy(), b[1])
    np.testing.assert_array_equal(old.numpy(), a)


def test_what_is_computed_is_not_stored_for_it():
    x, w = Tensor(np.ones((4, 4), np.float32)).realize(), Tensor(np.ones((4, 4), np.float32)).realize()
    y = x @ w
    y += 1
    y *= 2
    before = GlobalCounters.kernels
    assert y.relu().sum().item() == 160
    assert GlobalCounters.kernels - before <= 2


def test_gradients_pass():
    p = Tensor([1.0, 2.0]).is_param_()
    total = p * 2
    total += p * p
    total.sum().backward()
    np.testing.assert_allclose(p.grad.numpy(), [4.0, 6.0])


def test_state_and_arguments_of_a_captured_function():
    count = Tensor.zeros(2, dtype=dtypes.int32)

    @jit
    def step(x):
        nonlocal count
        count += 1
        x += 10
        return x * 2

    for i in range(5):
        x = Tensor([float(i), 0.0]).realize()
        assert step(x).tolist() == [2.0 * i + 20, 20.0]
        assert x.tolist() == [i + 10.0, 10.0]
        assert count.tolist() == [i + 1, i + 1]


def test_a_result_of_another_shape_or_dtype_is_refused():
    x = Tensor([1, 2])
    with pytest.raises(TypeError, match=r"\+=: the result is float32, not int32"):
        x += 1.5
    with pytest.raises(ValueError, match=r"\*=: the result has shape \(3, 2\), not \(2,\)"):
        x *= Tensor.ones(3, 2, dtype=dtypes.int32)
    assert x.tolist() == [1, 2]
