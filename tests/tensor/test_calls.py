"""Calls and schedules as nodes: `call`, `callify`, `schedule_linear`, `linear_with_vars`."""

from __future__ import annotations

import numpy as np
import pytest

from aril import Context, Tensor, Variable, dtypes
from aril.engine.linear import run_linear
from aril.ops import Ops
from aril.uop import UOp

RNG = np.random.default_rng(0)
A, B = RNG.normal(size=(3, 4)).astype(np.float32), RNG.normal(size=(3, 4)).astype(np.float32)


def test_an_expression_over_parameters_is_called():
    a, b = Tensor(A), Tensor(B)
    p, q = (UOp.param_from_shape(i, (3, 4), dtypes.float32) for i in range(2))
    for body in (p * q + p, a.as_param(0) * b.as_param(1) + a.as_param(0), lambda x, y: x * y + x):
        out = a.call(b, fxn=body)
        assert out.uop.op is Ops.GETTUPLE
        np.testing.assert_allclose(out.numpy(), A * B + A, rtol=1e-6)
        first, second = out.sum().gradient(a, b)
        np.testing.assert_allclose(first.numpy(), B + 1, rtol=1e-6)
        np.testing.assert_allclose(second.numpy(), A, rtol=1e-6)


def test_a_matrix_product_is_called_with_a_gradient_of_its_own():
    a, b = Tensor(A), Tensor(B.T.copy())
    body = UOp.param_from_shape(0, (3, 4), dtypes.float32) @ UOp.param_from_shape(1, (4, 3), dtypes.float32)
    np.testing.assert_allclose(Tensor.call(a, b, fxn=body).numpy(), A @ B.T, rtol=1e-5)
    twice = a.call(b, fxn=body, grad_fxn=lambda grads, args: (args[0] * 2, None))
    (g,) = twice.sum().gradient(a)
    np.testing.assert_allclose(g.numpy(), 2 * A)


def test_calls_check_their_parameters():
    a = Tensor(A)
    with pytest.raises(ValueError, match="a parameter 1, there are 1 tensors"):
        a.call(fxn=a.as_param(1))
    with pytest.raises(ValueError, match="parameter 0 is of 3 float32, the tensor for it"):
        a.call(fxn=UOp.param_from_shape(0, (3,), dtypes.float32))


def test_what_is_pending_becomes_a_call():
    w = Tensor(A).is_param_()
    x, y = (w.exp() * 2).sum(0), w[1:] * 3
    assert x.callify(y) is x and x.uop.op is y.uop.op is Ops.GETTUPLE and x.uop.src[0] is y.uop.src[0]
    (x.sum() + y.sum()).backward()
    np.testing.assert_allclose(x.numpy(), (np.exp(A) * 2).sum(0), rtol=1e-5)
    np.testing.assert_allclose(y.numpy(), A[1:] * 3)
    np.testing.assert_allclose(w.grad.numpy(), np.exp(A) * 2 + [[0], [3], [3]], rtol=1e-5)


def test_pending_assignments_and_variables_are_arguments():
    x = Tensor([1.0, 2.0, 3.0, 4.0])
    x.assign(x * 10)
    n = Variable("n", 1, 4).bind(3)
    out = (x[:n].sum() + 1).callify()
    assert out.item() == 61 and x.tolist() == [10, 20, 30, 40]


def test_the_kernels_of_a_realization_in_order():
    a, b = Tensor(A), Tensor(B)
    out = (a.sum(0) * 2).contiguous() + b
    linear = out.schedule_linear()
    assert linear.op is Ops.LINEAR and all(c.op is Ops.CALL and c.arg.kernel.op is Ops.SINK for c in linear.src)
    assert linear.src[-1].src[0].op is Ops.BUFFER
    with pytest.raises(RuntimeError):
        out.tolist()  # nothing has run yet
    run_linear(linear)
    np.testing.assert_allclose(out.numpy(), A.sum(0) * 2 + B, rtol=1e-6)
    a.assign(a * 0 + 1).realize()
    run_linear(linear)  # the same kernels over the memory as it is now
    np.testing.assert_allclose(out.numpy(), np.full(4, 6.0) + B, rtol=1e-6)


def test_copies_and_values_of_variables():
    x = Tensor(A).to("CPU:1")
    n = Variable("n", 1, 3).bind(2)
    out = (x[:n] * 2).sum().to("CPU")
    linear, values = out.linear_with_vars()
    kinds = [c.arg.kernel.op for c in linear.src]
    assert values == {"n": 2} and kinds.count(Ops.COPY) == 2 and Ops.SINK in kinds
    run_linear(linear, values)
    np.testing.assert_allclose(out.numpy(), A[:2].sum() * 2, rtol=1e-5)
    with pytest.raises(ValueError, match="use linear_with_vars"):
        (Tensor(A)[:n] * 2).schedule_linear()


def test_assignments_are_kernels_too_and_nothing_is_none():
    x = Tensor([1.0, 2.0])
    x.assign(x + 1)
    linear = x.schedule_linear()
    assert len(linear.src) == 1
    run_linear(linear)
    assert x.tolist() == [2, 3] and x.schedule_linear().src == ()


def test_only_schedules_run():
    with pytest.raises(ValueError, match="expected a LINEAR of CALLs, not CONST"):
        run_linear(UOp.const(dtypes.int32, 1))


def test_interpreted_too():
    with Context(DEV="PYTHON"):
        out = Tensor(A, device="PYTHON") + 1
        run_linear(out.schedule_linear())
    np.testing.assert_allclose(out.numpy(), A + 1)
