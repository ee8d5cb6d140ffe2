"""Functions in the graph: calls compute what their bodies say, share them, and have gradients."""

from __future__ import annotations

import numpy as np
import pytest

from aril import Tensor
from aril.function import function
from aril.ops import Ops
from aril.uop.function import inline

X, Y = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[0.5, -1.0], [2.0, 0.25]])


def calls(t):
    return [u for u in t.uop.toposort() if u.op is Ops.FUNCTION]


@function
def scaled_product(a, b):
    return a * b * 2.0


def test_a_call_gives_what_the_body_computes():
    out = scaled_product(Tensor(X), Tensor(Y))
    assert len(calls(out)) == 1
    np.testing.assert_array_equal(out.numpy(), X * Y * 2.0)


def test_calls_of_one_structure_share_their_body():
    one, two = scaled_product(Tensor(X), Tensor(Y)), scaled_product(Tensor(Y), Tensor(X))
    assert calls(one)[0].src[0] is calls(two)[0].src[0]


def test_several_results_in_a_structure():
    @function
    def both(pair, scale=1.0):
        return {"sum": pair[0] + pair[1], "rest": (pair[0] * scale, "text")}

    out = both([Tensor(X), Tensor(Y)], scale=3.0)
    np.testing.assert_array_equal(out["sum"].numpy(), X + Y)
    np.testing.assert_array_equal(out["rest"][0].numpy(), X * 3.0)
    assert out["rest"][1] == "text"


def test_gradients_pass_through_the_body_to_arguments_and_what_it_closes_over():
    w, x = Tensor(Y).is_param_(True), Tensor(X).is_param_(True)

    @function
    def layer(a):
        return a * a * w

    out = layer(layer(x))  # x**4 * w**3
    to_x, to_w = out.sum().gradient(x, w)
    np.testing.assert_allclose(to_x.numpy(), 4 * X**3 * Y**3)
    np.testing.assert_allclose(to_w.numpy(), X**4 * 3 * Y**2)


def test_second_order_through_a_call():
    @function
    def cube(a):
        return a * a * a

    x = Tensor(X).is_param_(True)
    (first,) = cube(x).sum().gradient(x)
    (second,) = first.sum().gradient(x)
    np.testing.assert_allclose(second.numpy(), 6 * X)


def test_a_gradient_of_the_users_own():
    seen = []

    def backward(grads, args):
        seen.append((len(grads), len(args)))
        return grads[0] * 10.0, None

    @function(grad_fxn=backward)
    def product(a, b):
        return a * b

    x, y = Tensor(X).is_param_(True), Tensor(Y).is_param_(True)
    (product(x, y) * 3.0).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.full((2, 2), 30.0))
    assert y.grad is None and seen == [(1, 2)]


def test_a_gradient_of_another_shape_is_refused():
    @function(grad_fxn=lambda grads, args: (grads[0].sum(0),))
    def same(a):
        return a * 1.0

    x = Tensor(X).is_param_(True)
    with pytest.raises(ValueError, match="shape"):
        same(x).sum().backward()


def test_functions_inside_functions():
    @function
    def outer(a, b):
        return scaled_product(scaled_product(a, b), a)

    x, y = Tensor(X).is_param_(True), Tensor(Y)
    out = outer(x, y)
    np.testing.assert_allclose(out.numpy(), 4 * X * X * Y)
    (g,) = outer(x, y).sum().gradient(x)
    np.testing.assert_allclose(g.numpy(), 8 * X * Y)


def test_inline_leaves_no_call():
    out = scaled_product(Tensor(X), Tensor(Y))
    assert [Ops.FUNCTION in {n.op for n in u.toposort()} for u in (out.uop, inline(out.uop))] == [True, False]


def test_a_function_without_a_tensor_result_is_an_error():
    with pytest.raises(TypeError, match="gave int without any tensor"):
        function(lambda a: 3)(Tensor(X))
