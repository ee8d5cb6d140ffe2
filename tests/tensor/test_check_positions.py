"""Positions in tensors that are out of range: the documented result, or an error where CHECK_POSITIONS asks for one."""

from __future__ import annotations

import numpy as np
import pytest

from aril import Context, Tensor, function, jit, nn

X = np.arange(12, dtype=np.float32).reshape(4, 3)

CASES = {
    "indexing": lambda x, i: x[i],
    "mixed indexing": lambda x, i: x[i, 1:],
    "gather": lambda x, i: x.gather(0, i.reshape(-1, 1).expand(-1, 3)),
    "scatter": lambda x, i: x.scatter(0, i.reshape(-1, 1).expand(-1, 3), Tensor(X[:2])),
    "scatter_reduce": lambda x, i: x.scatter_reduce(0, i.reshape(-1, 1).expand(-1, 3), Tensor(X[:2]), "sum"),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("wrong", [4, -5, 100])
def test_out_of_range(case, wrong):
    x, good, bad = Tensor(X), Tensor([1, -4]), Tensor([1, wrong])
    with Context(CHECK_POSITIONS=1):
        assert CASES[case](x, good).numpy().shape
        message = rf"position {wrong}, entry \(1,.*\) of the positions, is out of range for an axis of length 4"
        with pytest.raises(IndexError, match=message):
            CASES[case](x, bad)
    assert CASES[case](x, bad).numpy().shape  # the documented result: no error


def test_what_the_documents_say_without_it():
    np.testing.assert_array_equal(Tensor(X)[Tensor([9, -9])].numpy(), X[[3, 0]])
    kept = Tensor(X).scatter(0, Tensor([[9, 9, 9]]), Tensor.ones(1, 3))
    np.testing.assert_array_equal(kept.numpy(), X)


def test_embedding_and_assignment():
    with Context(CHECK_POSITIONS=1):
        with pytest.raises(IndexError, match="position 7"):
            nn.Embedding(5, 2)(Tensor([[0, 7]]))
        x = Tensor(X.copy()).realize()
        with pytest.raises(IndexError, match="position 5"):
            x[Tensor([0, 5])] = 1.0
        np.testing.assert_array_equal(x.numpy(), X)


def test_functions_and_captures_are_not_disturbed():
    step = jit(lambda x, i: (x[i] * 2).realize())
    body = function(lambda x, i: x[i])
    with Context(CHECK_POSITIONS=1):
        for _ in range(4):
            np.testing.assert_array_equal(step(Tensor(X).realize(), Tensor([3, 1]).realize()).numpy(), X[[3, 1]] * 2)
        np.testing.assert_array_equal(body(Tensor(X), Tensor([3, 1])).numpy(), X[[3, 1]])
