"""Random programs of many operations: the device agrees with NumPy's reading of the same graph."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from aril import Tensor
from tests.values import of_device, of_graph

STEPS = {
    "add": lambda x, k: x + k,
    "mul": lambda x, k: x * 0.5 + x.flip(0),
    "relu": lambda x, k: x.relu(),
    "tanh": lambda x, k: x.tanh(),
    "where": lambda x, k: (x > 0).where(x, k),
    "sum": lambda x, k: x - x.sum(k % x.ndim, keepdim=True) * 0.1,
    "max": lambda x, k: x - x.max(k % x.ndim, keepdim=True),
    "softmax": lambda x, k: x.softmax(k % x.ndim),
    "transpose": lambda x, k: x.transpose(0, 1).contiguous() if k % 2 else x.transpose(0, 1),
    "pad": lambda x, k: x.pad(((1, 0), (0, k % 3))),
    "shrink": lambda x, k: x[: max(x.shape[0] - 1, 1), k % x.shape[1] :],
    "roll": lambda x, k: x.roll(k, 0),
    "matmul": lambda x, k: x @ x.transpose(0, 1) * 0.1,
    "window": lambda x, k: x.unfold(0, min(2, x.shape[0])).mean(-1),
    "cumsum": lambda x, k: x.cumsum(k % 2) * 0.2,
    "cat": lambda x, k: x.cat(x[:1] * k, dim=0) if x.shape[0] < 12 else x,
    "gather": lambda x, k: x[[k % x.shape[0], 0]],
    "diagonal": lambda x, k: x.tril(k % 3),
    "argmax": lambda x, k: x + x.argmax(0).float() * 0.01,
    "stack": lambda x, k: x.stack(x * 2, dim=0).mean(0),
}


@given(
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
    st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 5)), min_size=1, max_size=7),
)
@settings(max_examples=40)
def test_any_chain(shape, steps):
    x = Tensor(np.random.default_rng(len(steps)).standard_normal(shape).astype(np.float32))
    for name, k in steps:
        x = STEPS[name](x, k)
    want = of_graph(x)
    np.testing.assert_allclose(of_device(x), want, rtol=2e-4, atol=2e-4)
