"""Invalid marks "no element here": storing it changes nothing."""

from __future__ import annotations

import numpy as np

from aril import Tensor
from tests.values import both, check


@both
def test_storing_nothing_changes_nothing(value):
    x = Tensor([1.0, 2.0, 3.0])
    x.assign(Tensor.invalids(3))
    check(value, x, [1.0, 2.0, 3.0])


def test_some_elements_are_written():
    x = Tensor(np.arange(6, dtype=np.float32))
    even = (Tensor.arange(6) % 2).eq(0)
    x.assign(even.where(x * 10, Tensor.invalids(6)))
    assert x.tolist() == [0, 1, 20, 3, 40, 5]
