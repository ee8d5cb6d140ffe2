"""Layers of matrix products and look-up: Linear, Embedding, LSTMCell. Initial values and shapes as PyTorch's."""

from __future__ import annotations

import math
from typing import Any

from aril.mixin.base import as_int, as_tuple, need_tensors
from aril.nn.layer import Layer
from aril.nn.state import marked_param
from aril.tensor import Tensor


def uniform_param(bound: float, *shape: int, dtype: Any = None) -> Tensor:
    """A parameter drawn evenly from [-bound, bound)."""
    return marked_param(Tensor.uniform(*shape, low=-bound, high=bound, **({} if dtype is None else {"dtype": dtype})))


class Linear(Layer):
    """`x @ weight.T + bias`: (..., in_features) to (..., out_features).

    `weight` (out_features, in_features) and `bias` (out_features,) start in +-1/sqrt(in_features).

    >>> nn.Linear(3, 2)(Tensor.ones(5, 3)).shape
    (5, 2)
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, dtype: Any = None) -> None:
        in_features = as_int("Linear: in_features", in_features, 0)
        out_features = as_int("Linear: out_features", out_features, 0)
        bound = 1.0 / math.sqrt(in_features) if in_features else 0.0
        self.weight = uniform_param(bound, out_features, in_features, dtype=dtype)
        self.bias = uniform_param(bound, out_features, dtype=dtype) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        need_tensors("Linear", x=x)
        if x.ndim == 0 or x.shape[-1] != self.weight.shape[1]:
            raise ValueError(f"Linear takes (..., {self.weight.shape[1]}), the input has shape {x.shape}")
        return x.linear(self.weight.transpose(0, 1), self.bias)


class Embedding(Layer):
    """Row `i` of `weight` (vocab_size, embed_size) for each integer: shape S to (*S, embed_size). Starts normal(0, 1).

    An index beyond the last row reads the last one; negative ones count from the end, as in indexing.

    >>> nn.Embedding(10, 4)(Tensor([[1, 2, 3]])).shape
    (1, 3, 4)
    """

    def __init__(self, vocab_size: int, embed_size: int, dtype: Any = None) -> None:
        vocab_size = as_int("Embedding: vocab_size", vocab_size, 1)
        embed_size = as_int("Embedding: embed_size", embed_size, 1)
        more = {} if dtype is None else {"dtype": dtype}
        self.weight = marked_param(Tensor.normal(vocab_size, embed_size, mean=0.0, std=1.0, **more))

    def __call__(self, idx: Tensor) -> Tensor:
        need_tensors("Embedding", idx=idx)
        if idx.dtype.kind not in "iu":
            raise TypeError(f"Embedding takes integer indices, the input is {idx.dtype.name}; cast it first")
        return self.weight[idx]


class LSTMCell(Layer):
    """One step of a long short-term memory (Hochreiter and Schmidhuber, 1997; gates in the order i, f, g, o).

    Takes x (batch, input_size) and a state `(h, c)` of (batch, hidden_size) each, zeros when None; gives the new state.

    >>> h, c = nn.LSTMCell(3, 4)(Tensor.ones(2, 3))
    >>> h.shape, c.shape
    ((2, 4), (2, 4))
    """

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        input_size = as_int("LSTMCell: input_size", input_size, 1)
        hidden_size = as_int("LSTMCell: hidden_size", hidden_size, 1)
        bound = 1.0 / math.sqrt(hidden_size)
        self.weight_ih = uniform_param(bound, 4 * hidden_size, input_size)
        self.weight_hh = uniform_param(bound, 4 * hidden_size, hidden_size)
        self.bias_ih = uniform_param(bound, 4 * hidden_size) if bias else None
        self.bias_hh = uniform_param(bound, 4 * hidden_size) if bias else None

    def __call__(self, x: Tensor, state: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        need_tensors("LSTMCell", x=x)
        if x.ndim != 2 or x.shape[1] != self.weight_ih.shape[1]:
            raise ValueError(f"LSTMCell takes (batch, {self.weight_ih.shape[1]}), the input has shape {x.shape}")
        if state is None:
            zeros = Tensor.zeros(x.shape[0], self.weight_hh.shape[1], dtype=x.dtype, device=x.device)
            state = zeros, zeros
        h, c = as_tuple("LSTMCell: state", state)
        need_tensors("LSTMCell", h=h, c=c)
        gates = x.linear(self.weight_ih.transpose(0, 1), self.bias_ih)
        gates = gates + h.linear(self.weight_hh.transpose(0, 1), self.bias_hh)
        i, f, g, o = gates.chunk(4, dim=1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c
