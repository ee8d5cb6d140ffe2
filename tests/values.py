"""Two ways to ask for a tensor's value: NumPy's reading of its graph, and the compiler with the default device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aril import Tensor
from tests.reference import evaluate

Value = Callable[[Any], np.ndarray]

# the types that NumPy has as well
KINDS = (
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"
)  # fmt: skip


def of_graph(t: Tensor) -> np.ndarray:
    """The value by the reference evaluator; what has no NumPy type comes as float32, as from `numpy()`."""
    out = evaluate(t.uop)
    return out.astype(np.float32) if out.dtype.kind == "V" or out.dtype.name not in np.sctypeDict else out


def of_device(t: Tensor) -> np.ndarray:
    """The value by schedule, compiler and device."""
    out: np.ndarray = t.numpy()
    return out


both = pytest.mark.parametrize("value", [of_graph, of_device], ids=["graph", "device"])


def check(value: Value, got: Any, want: Any, rtol: float = 2e-6, atol: float = 1e-6) -> None:
    """`got` has the shape of `want` and agrees with it: exactly for integers and bool, NaN equal to NaN."""
    a, b = value(got), np.asarray(want)
    assert a.shape == b.shape, f"shape {a.shape}, expected {b.shape}"
    if a.dtype.kind in "biu":
        assert b.dtype.kind in "biu", f"integers, expected {b.dtype}"
        np.testing.assert_array_equal(a, b)
    else:
        np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=rtol, atol=atol)
