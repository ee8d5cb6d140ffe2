"""What a mistake is answered with: the operation, what was found, and what to do, in one style."""

from __future__ import annotations

import re

import pytest

from aril import Tensor

MISTAKES = {
    "matmul": (
        lambda: Tensor.ones(3, 4) @ Tensor.ones(5, 6),
        ValueError,
        "matmul: (3, 4) by (5, 6): the last axis of the left has 4 elements, the second last axis of the right 5; "
        "they must agree",
    ),
    "batches": (
        lambda: Tensor.ones(2, 3, 4) @ Tensor.ones(3, 4, 5),
        ValueError,
        "matmul, axes before the last two: shapes (2,) and (3,) do not broadcast: axis -1 has 2 and 3; sizes must be "
        "equal or 1",
    ),
    "text": (lambda: Tensor("hello"), TypeError, "expected numbers, nested lists, an array or bytes, not 'hello'"),
    "scalars have no elements": (lambda: list(Tensor(3.0)), TypeError, "iteration over a 0-d tensor"),
    "half a dimension": (lambda: Tensor.zeros(2.5), TypeError, "a dimension is an integer, not 2.5 (shape (2.5,))"),
    "device": (
        lambda: Tensor([1.0], device="CPUU"),
        RuntimeError,
        "device 'CPUU' is not usable here: there is no such device; did you mean CPU? Usable: CPU",
    ),
    "broadcast": (
        lambda: Tensor.ones(3, 4) + Tensor.ones(2, 4),
        ValueError,
        "add: shapes (3, 4) and (2, 4) do not broadcast: axis -2 has 3 and 2; sizes must be equal or 1",
    ),
    "dtype": (lambda: Tensor([1], dtype="flaot32"), (TypeError, ValueError), "flaot32"),
    "devices": (
        lambda: Tensor.ones(2).contiguous().to("CPU").clone() + Tensor([1.0, 2.0], device="PYTHON"),
        ValueError,
        "add: operands lie on CPU and PYTHON; move one with .to(device) first",
    ),
    "axis": (
        lambda: Tensor.ones(3, 4).sum(2),
        IndexError,
        "sum: axis 2 does not exist in shape (3, 4); axes are -2 to 1",
    ),
    "reshape": (
        lambda: Tensor.ones(3, 4).reshape(5, 2),
        ValueError,
        "reshape: shape (3, 4) has 12 elements, (5, 2) would have 10; the numbers must agree",
    ),
    "item": (lambda: Tensor.ones(2, 2).item(), ValueError, "item"),
    "backward": (
        lambda: (Tensor([1.0, 2.0]).is_param_() * 2).backward(),
        ValueError,
        "backward of shape (2,) needs a gradient of that shape; or take sum() or mean() first",
    ),
    "index": (
        lambda: Tensor.ones(3, 4)[:, 4],
        IndexError,
        "indexing: position 4 is outside of axis 1 of length 4 (shape (3, 4))",
    ),
    "too many indices": (lambda: Tensor.ones(3)[0, 0], IndexError, "indexing: 2 indices for the 1 axes of shape (3,)"),
    "truth": (lambda: bool(Tensor.ones(2)), ValueError, "the truth of a tensor of shape (2,) is ambiguous; use any()"),
    "cat": (
        lambda: Tensor.ones(2, 3).cat(Tensor.ones(2, 4)),
        ValueError,
        "cat: shapes [(2, 3), (2, 4)] differ outside of axis 0",
    ),
    "permute": (
        lambda: Tensor.ones(2, 3).permute(0, 0),
        ValueError,
        "permute: (0, 0) is no order of the 2 axes of shape (2, 3)",
    ),
    "bits of floats": (lambda: Tensor([1.0]) & Tensor([2.0]), TypeError, "bitwise and needs integers or bools"),
    "gradient of integers": (
        lambda: Tensor([1]).sum().gradient(Tensor([1])),
        TypeError,
        "gradient: only floats have one, not int32",
    ),
    "assign dtype": (
        lambda: Tensor([1.0]).assign(Tensor([1])),
        TypeError,
        "assign: int32 values for a float32 tensor; cast them first",
    ),
    "mode": (
        lambda: Tensor.ones(1, 1, 2, 2).interpolate((3, 3), "area"),
        ValueError,
        "interpolate: mode is one of nearest, nearest-exact, linear, cubic, not 'area'",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_where_it_is_made(name):
    make, kind, message = MISTAKES[name]
    with pytest.raises(kind, match=re.escape(message)):
        make()
