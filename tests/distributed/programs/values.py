"""Each process checks what it gets against NumPy over all processes' values, and notes the bits of its results."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np

from aril import Context, Tensor, distributed, dtypes, jit

world = distributed.init()
rank, ranks = world.rank, world.size
bits = hashlib.sha256()
rng = np.random.default_rng(0)


def same(found: Tensor, wanted: np.ndarray, rtol: float = 0.0) -> None:
    """Compare, and note the bits."""
    found = found.cast(dtypes.float32) if found.dtype in (dtypes.bfloat16, dtypes.float16) else found
    got = found.numpy()
    bits.update(got.tobytes())
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=rtol, atol=rtol)


# every way (small: gather; large: chunks), sizes that do not divide, every operation, integers exactly
for shape in [(), (1,), (3, 5), (1001,), (7, 4001)]:
    values = rng.normal(size=(ranks, *shape))
    for name, unit in [("float64", 1e-14), ("float32", 1e-6), ("float16", 3e-3), ("int32", 0.0), ("uint8", 0.0)]:
        own = (values * 10).astype(name) if name != "uint8" else np.abs(values * 9).astype(np.uint8)
        x, wide = Tensor(own[rank]), own.astype(np.float64)
        same(distributed.allreduce(x), wide.sum(0), unit * 40)
        same(distributed.allreduce(x, "max"), wide.max(0))
        if x.dtype.kind == "f":
            same(distributed.allreduce(x, "mean"), wide.mean(0), unit * 40)
    for way in ("naive", "all2all"):
        with Context(ALLREDUCE=way):
            own = values.astype(np.float32)
            same(distributed.allreduce(Tensor(own[rank])), own.sum(0, dtype=np.float64), 1e-5)
            for cast, unit in (("bfloat16", 2**-8), ("float16", 2**-11)):
                got = distributed.allreduce(Tensor(own[rank]), "mean", cast=cast)
                assert got.dtype is dtypes.float32
                bound = unit * (np.abs(own).max(initial=0) + 1)
                same(got, np.broadcast_to(got.numpy(), shape))
                np.testing.assert_allclose(got.numpy(), own.mean(0, dtype=np.float64), rtol=2 * unit, atol=bound)

whole = rng.normal(size=(ranks, 6, 4)).astype(np.float32)
x = Tensor(whole[rank])
same(distributed.gather(x), whole)
same(distributed.gather(x.T * 2), whole.transpose(0, 2, 1) * 2)  # a view, computed values
same(distributed.broadcast(x, root=ranks - 1), whole[ranks - 1])
same(distributed.gather(Tensor.full((2,), 3.0)), np.full((ranks, 2), 3.0))  # a constant
t = Tensor.full((3,), rank + 1.0).contiguous().realize()
distributed.same_everywhere([t], root=1 % ranks)
same(t, np.full(3, 1 % ranks + 1.0))
distributed.barrier()

# the same message twice is two messages, in or out of one realization; their order is that of the program
a, b = distributed.gather(x), distributed.gather(x)
Tensor.realize(b, a)
same(a + b, 2 * whole)
nested = distributed.allreduce(distributed.allreduce(x).relu() + distributed.gather(x)[0])
same(nested, ranks * (np.maximum(whole.sum(0, dtype=np.float64), 0) + whole[0]), 1e-5)

# gradients are those of the sum of what all processes differentiate: here each weighs the result in its own way
weights = rng.normal(size=(ranks, ranks, 6, 4)).astype(np.float32)
x = Tensor(whole[rank]).is_param_()
(g,) = (distributed.gather(x) * Tensor(weights[rank])).sum().gradient(x)
bits_of_own = g.numpy()
np.testing.assert_allclose(bits_of_own, weights[:, rank].sum(0), rtol=1e-5, atol=1e-5)
with Context(ALLREDUCE="all2all"):
    (g,) = (distributed.allreduce(x * x, "mean") * Tensor(weights[rank, 0])).sum().gradient(x)
np.testing.assert_allclose(g.numpy(), 2 * whole[rank] * weights[:, 0].sum(0) / ranks, rtol=1e-4, atol=1e-5)
(g,) = (distributed.broadcast(x, root=0) * Tensor(weights[rank, 0])).sum().gradient(x)
np.testing.assert_allclose(g.numpy(), weights[:, 0].sum(0) if rank == 0 else np.zeros((6, 4)), rtol=1e-5, atol=1e-5)

# captured: one batch split at the messages
state = Tensor.zeros(6, 4).contiguous().realize()


@jit
def step(x: Tensor) -> Tensor:
    state.assign(state + distributed.allreduce(x * 2))
    return distributed.allreduce((state * x).sum(), "max")


total = np.zeros((6, 4))
for i in range(5):
    out = step(Tensor(whole[rank] + i))
    total += 2 * (whole + i).sum(0, dtype=np.float64)
    same(out, max((total * (w + i)).sum() for w in whole.astype(np.float64)), 1e-4)
    same(state, total, 1e-5)

for wrong in (lambda: distributed.allreduce(x, "min"), lambda: distributed.broadcast(x, root=ranks)):
    try:
        wrong()
    except ValueError:
        continue
    raise AssertionError("no error")

(Path(os.environ["RESULTS"]) / str(rank)).write_text(bits.hexdigest())
