"""The schedule cache: what was scheduled once is found by its structure, whatever memory it reads."""

import numpy as np

from aril import Tensor, schedule


def compute(values: list[float], scale: float) -> np.ndarray:
    x = Tensor(values).realize()
    return ((x * scale).exp() + x.sum()).numpy()


def test_the_same_structure_with_new_buffers_is_found_and_right():
    compute([1.0, 2.0, 3.0], 0.5)
    held = len(schedule._CACHE)
    found = compute([4.0, 5.0, 6.0], 0.5)
    assert len(schedule._CACHE) == held
    np.testing.assert_allclose(found, np.exp(np.array([4, 5, 6]) * 0.5) + 15, rtol=1e-6)


def test_another_structure_is_scheduled_anew():
    compute([1.0, 2.0, 3.0], 0.5)
    held = len(schedule._CACHE)
    found = compute([1.0, 2.0, 3.0, 4.0], 0.5)
    assert len(schedule._CACHE) > held
    np.testing.assert_allclose(found, np.exp(np.arange(1, 5) * 0.5) + 10, rtol=1e-6)
