"""`Context(GRAD=0)`: what is computed there has no history, realized or not; leaves stay what they were."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from aril import Context, Tensor, function
from aril.transforms import hessian, jvp


def leaf() -> Tensor:
    return Tensor([1.0, 2.0, 3.0]).is_param_()


BUILDERS = {
    "arithmetic": lambda w: w * 2 + w,
    "a view": lambda w: w.reshape(3, 1),
    "a part": lambda w: w[:2].sum() + w[1:],
    "a chain": lambda w: (w.exp().sum() * w).tanh(),
    "a number": lambda w: 2.0 / w,
    "a cast": lambda w: w.half().float(),
    "a copy": lambda w: w.clone(),
    "another device": lambda w: w.to("CPU:1").to("CPU"),
    "contiguous": lambda w: w.contiguous(),
    "a function": lambda w: function(lambda x: x * x)(w),
    "joined": lambda w: Tensor.cat(w, w),
    "stacked": lambda w: Tensor.stack(w, w),
    "chosen": lambda w: (w > 1).where(w, 0.0),
    "taken": lambda w: w[Tensor([0, 2])],
    "a product": lambda w: w @ w,
}


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("realized", [False, True])
def test_what_is_built_inside_has_no_history_outside(name, realized):
    w = leaf()
    with Context(GRAD=0):
        inner = BUILDERS[name](w)
        if realized:
            inner.realize()
    outer = BUILDERS[name](leaf())
    np.testing.assert_allclose(inner.numpy(), outer.numpy())
    # what is inside counts as a constant: only the direct factor has a gradient
    (inner.sum() * w.sum()).backward()
    np.testing.assert_allclose(w.grad.numpy(), np.full(3, inner.numpy().sum()), rtol=1e-6)


def test_a_result_of_the_block_alone_has_nothing_to_differentiate():
    w = leaf()
    with Context(GRAD=0):
        loss = (w * w).sum()
    (g,) = loss.gradient(w, materialize_grads=False)
    assert g is None


def test_graphs_of_before_keep_their_history():
    w = leaf()
    before = w * w
    with Context(GRAD=0):
        inside = before + 1
    before.sum().backward()
    assert w.grad.tolist() == [2, 4, 6] and inside.tolist() == [2, 5, 10]


def test_blocks_nest_and_decorate():
    w = leaf()

    @Context(GRAD=0)
    def fixed(x):
        with Context(GRAD=1):
            live = x * x
        return live, x * 3

    live, constant = fixed(w)
    (live + constant).sum().backward()
    assert w.grad.tolist() == [2, 4, 6]


def test_another_thread_is_not_concerned():
    w = leaf()
    out = []
    with Context(GRAD=0):
        thread = threading.Thread(target=lambda: out.append(w * w))
        thread.start()
        thread.join()
    out[0].sum().backward()
    assert w.grad.tolist() == [2, 4, 6]


def test_a_parameter_changed_inside_stays_a_leaf():
    w, other = leaf(), leaf()
    with Context(GRAD=0):
        w.assign(w - other * 0.5)
        w[0:1] = other[2:] * 2
        w.detach()[1:2].assign(other[:1])
    (w * w).sum().backward()
    assert w.tolist() == [6, 1, 1.5] and w.grad.tolist() == [12, 2, 3] and other.grad is None


def test_a_parameter_made_inside_is_one():
    with Context(GRAD=0):
        w = leaf()
        v = (Tensor([1.0, 1.0]) * 3).is_param_()
    (w * w).sum().backward()
    (v * v).sum().backward()
    assert w.grad.tolist() == [2, 4, 6] and v.grad.tolist() == [6, 6]


def test_derivatives_of_functions_are_taken_inside_too():
    with Context(GRAD=0):
        assert jvp(lambda x: x.sin(), [Tensor([0.0])], [Tensor([2.0])])[1].tolist() == [2]
        assert hessian(lambda x: (x * x * x).sum())(Tensor([1.0, 2.0])).tolist() == [[6, 0], [0, 12]]


def test_the_graph_is_no_larger_than_with_gradients():
    w = leaf()
    with Context(GRAD=0):
        inside = ((w * 2 + 1).exp().reshape(3, 1).sum(0) + w).tanh()
    outside = ((w * 2 + 1).exp().reshape(3, 1).sum(0) + w).tanh()
    assert len(inside.uop.toposort()) == len(outside.uop.toposort()) + 1


def test_a_detached_parameter_that_is_realized_passes_nothing_on():
    w = leaf()
    fixed = w.detach().realize()
    (fixed * w).sum().backward()
    assert w.grad.tolist() == [1, 2, 3]
    w.assign(w * 0 + 5).realize()
    assert fixed.tolist() == [5, 5, 5]  # the same memory all the same
