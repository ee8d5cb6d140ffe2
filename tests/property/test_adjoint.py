"""The gradient of a linear chain of movement and sums is its adjoint: <f(x), y> = <x, gradient(f, y)>."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from aril.autograd import gradient
from aril.dtype import dtypes
from aril.ops import Ops
from aril.uop import UOp
from aril.uop.shape import expand, flip, pad, permute, reduce, reshape, shear, shrink
from tests.reference import evaluate


def draw_step(draw, x):
    """One movement node or sum over `x`."""
    shape, axes = x.shape, range(len(x.shape))
    kind = draw(st.sampled_from(["reshape", "permute", "pad", "shrink", "flip", "expand", "windows", "shear", "sum"]))
    if kind == "reshape":
        sizes = draw(st.sampled_from([(math.prod(shape),), (*shape, 1), (1, *shape)]))
        if len(shape) > 1 and draw(st.booleans()):
            sizes = (shape[0] * shape[1], *shape[2:])
        return reshape(x, sizes)
    if kind == "permute":
        return permute(x, tuple(draw(st.permutations(list(axes)))))
    if kind == "pad":
        return pad(x, tuple([(draw(st.integers(0, 2)), draw(st.integers(0, 2))) for _ in axes]))
    if kind == "shrink":
        starts = [draw(st.integers(0, d - 1)) for d in shape]
        return shrink(x, tuple([(s, draw(st.integers(1, d - s))) for s, d in zip(starts, shape, strict=True)]))
    if kind == "flip":
        return flip(x, tuple([a for a in axes if draw(st.booleans())]))
    if kind == "expand":
        x = reshape(x, (*shape, 1))
        return expand(x, (*shape, draw(st.integers(1, 3))))
    if kind == "sum":
        return reduce(x, Ops.ADD, tuple([a for a in axes if draw(st.booleans())]))
    if kind == "windows":
        width = draw(st.integers(1, shape[-1]))
        wide = expand(reshape(x, (*shape, 1)), (*shape, width))
        return shear(wide, len(shape) - 1, len(shape), 1, 0, shape[-1] - width + 1)
    if len(shape) < 2:
        return x
    step, rows = draw(st.integers(-2, 2)), shape[1]
    lowest, highest = min(0, step * (rows - 1)), max(0, step * (rows - 1))
    if shape[0] <= highest - lowest:
        return x
    offset = draw(st.integers(-lowest, shape[0] - 1 - highest))
    return shear(x, 0, 1, step, offset, draw(st.integers(1, shape[0] - highest - offset)))


@given(st.data())
def test_the_gradient_of_a_linear_chain_is_its_adjoint(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    x = reshape(UOp.new_buffer("CPU", math.prod(shape), dtypes.float64), shape)
    out = x
    for _ in range(data.draw(st.integers(1, 5))):
        if len(out.shape) <= 5 and math.prod(out.shape) <= 2000:
            out = draw_step(data.draw, out)
    y = reshape(UOp.new_buffer("CPU", math.prod(out.shape), dtypes.float64), out.shape)
    (g,) = gradient(out, y, [x])
    rng = np.random.default_rng(0)
    # whole numbers: both sides are exact
    a, b = (rng.integers(-9, 10, u.src[0].arg.size if u.op is Ops.RESHAPE else u.arg.size) * 1.0 for u in (x, y))
    buffers = {u.base: v for u, v in ((x, a), (y, b))}
    assert g.shape == shape
    left = float((evaluate(out, buffers) * b.reshape(out.shape)).sum())
    right = float((a.reshape(shape) * evaluate(g, buffers)).sum())
    assert left == right
