"""Every listed name exists and is compared with something from outside; the casts and facts that have no row."""

from __future__ import annotations

import numpy as np
import pytest

from aril import Tensor, Variable, dtypes
from aril.ops import Ops
from tests import vocabulary

ARRAY = np.array([[1.5, -2.25, 3.0], [0.0, 100.0, -0.5]], np.float32)


@pytest.mark.parametrize("name", vocabulary.NAMES)
def test_a_listed_name_is_there(name):
    assert hasattr(Tensor, name)


def test_every_listed_name_is_tested():
    assert vocabulary.untested() == []


def test_casts_by_name():
    kinds = {"int": np.int32, "long": np.int64, "short": np.int16, "bool": np.bool_, "half": np.float16,
             "float": np.float32, "double": np.float64}  # fmt: skip
    for name, kind in kinds.items():
        got = getattr(Tensor(ARRAY), name)().numpy()
        assert got.dtype == kind
        np.testing.assert_array_equal(got, ARRAY.astype(kind))
    assert Tensor(ARRAY).bfloat16().dtype is dtypes.bfloat16


def test_facts_are_those_of_numpy():
    x = Tensor(ARRAY)
    assert (x.ndim, x.numel(), x.nbytes(), x.element_size()) == (2, ARRAY.size, ARRAY.nbytes, ARRAY.itemsize)
    assert x.size() == ARRAY.shape and x.size(1) == 3
    assert x.is_floating_point() and not x.int().is_floating_point()
    part = Tensor(ARRAY)[:, : Variable("n", 1, 3).bind(2)]
    assert part.max_shape == (2, 3) and part.max_numel() == 6


def test_what_operations_are_written_with():
    x = Tensor(ARRAY)
    np.testing.assert_array_equal(x.alu(Ops.MUL, x).numpy(), ARRAY * ARRAY)
    assert x.ufix(2).dtype is dtypes.float32 and x.int().ufix(2.5).item() == 2.5
    assert x.const_like(7).item() == 7 and x.const_like(7).dtype is dtypes.float32 and x.const(3).shape == ()
    y = Tensor(ARRAY)
    assert y.to_("PYTHON") is y and y.device == "PYTHON"
    np.testing.assert_array_equal(y.numpy(), ARRAY)


def test_random_of_the_shape_of_another():
    x = Tensor.zeros(200, 100, dtype=dtypes.float64)
    drawn = x.randn_like()
    assert drawn.shape == (200, 100) and drawn.dtype is dtypes.float64
    assert abs(drawn.mean().item()) < 0.03 and abs(drawn.std().item() - 1) < 0.03


def test_storage_for_one_of_the_shape_of_another():
    x = Tensor(ARRAY)
    room = Tensor.empty(2, 3)
    assert room.assign(x).tolist() == ARRAY.tolist() and room.uop.shape == (2, 3)
    assert x.empty_like().shape == x.shape and x.replace(Tensor(ARRAY * 2)).tolist() == (ARRAY * 2).tolist()
