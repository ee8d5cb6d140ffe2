"""Verifiers accept the forms of docs/ir.md and say which rule an ill-formed node breaks."""

import pytest

from aril.dtype import dtypes
from aril.ops import Ops
from aril.uop import KernelInfo, UOp
from aril.uop import shape as sh
from aril.uop.args import AddrSpace
from aril.uop.node import track_origin
from aril.uop.verify import SpecError, check


def copy_kernel(n=8):
    out, a = UOp.param(0, dtypes.float32, n), UOp.param(1, dtypes.float32, n)
    r = UOp.range(n, 0)
    return UOp.sink(
        out.index(r).store(UOp(Ops.MUL, (a.index(r).load(), UOp.lift(2.0)))).end(r), arg=KernelInfo("double")
    )


def sum_kernel():
    out, a = UOp.param(0, dtypes.float32, 4), UOp.param(1, dtypes.float32, 32)
    i, j = UOp.range(4, 0), UOp.range(8, 1)
    at = UOp(Ops.ADD, (UOp(Ops.MUL, (i, UOp.lift(8))), j))
    total = UOp(Ops.REDUCE, (a.index(at).load(), j), (Ops.ADD, ()))
    return UOp.sink(out.index(i).store(total).end(i), arg=KernelInfo("sum"))


def test_well_formed_kernels_pass():
    check(copy_kernel(), "kernel")
    check(sum_kernel(), "kernel")


def test_a_gated_load_with_an_alternative_passes():
    a, r = UOp.param(0, dtypes.float32, 8), UOp.range(10, 0)
    at = r.valid(UOp(Ops.CMPLT, (r, UOp.lift(8))))
    check(UOp.sink(a.index(r).store(a.index(at).load(UOp.const(dtypes.float32, 0))).end(r)), "kernel")
    with pytest.raises(SpecError, match="alternative"):
        check(UOp.sink(a.index(r).store(a.index(at).load()).end(r)), "kernel")


def broken_kernels():
    a, r = UOp.param(0, dtypes.float32, 8), UOp.range(8, 0)
    load = a.index(r).load()
    yield "every loop closed", UOp.sink(a.index(r).store(load))
    yield "address must be loaded", UOp.sink(a.index(r).store(UOp(Ops.ADD, (a.index(r), load))).end(r))
    yield (
        "id of its own",
        UOp.sink(
            a.index(r).store(load).end(r),
            a.index(UOp.range(4, 0)).store(load.substitute({r: UOp.range(4, 0)})).end(UOp.range(4, 0)),
        ),
    )
    yield (
        "operands of one type",
        UOp.sink(a.index(r).store(UOp(Ops.ADD, (load, load.cast(dtypes.float64)), None, dtypes.float32)).end(r)),
    )
    yield "target's type", UOp.sink(a.index(r).store(load.cast(dtypes.int32)).end(r))
    yield "does not stand in a kernel", UOp.sink(a.index(r).store(UOp(Ops.CONTIGUOUS, (load,))).end(r))
    yield "RANGEs after its operand", UOp.sink(a.index(r).store(UOp(Ops.REDUCE, (load,), (Ops.ADD, (0,)))).end(r))
    yield "stores to an address", UOp.sink(UOp(Ops.STORE, (load, load)).end(r))
    yield "by a bool", UOp.sink(a.index(r).store(UOp(Ops.WHERE, (r, load, load))).end(r))
    yield "value of its type", UOp.sink(a.index(r).store(UOp(Ops.CONST, (), 1.5, dtypes.int32)).end(r))
    yield "gathers effects", UOp.sink(UOp.const(dtypes.float32, 1))


@pytest.mark.parametrize(("says", "kernel"), list(broken_kernels()), ids=lambda x: x if isinstance(x, str) else "")
def test_a_broken_kernel_is_told_its_rule(says, kernel):
    with pytest.raises(SpecError, match=says):
        check(kernel, "kernel")


def tensors():
    x = UOp.param_from_shape(0, (4, 6), dtypes.float32)
    return x, sh


def test_tensor_graphs_pass():
    x, s = tensors()
    y = s.permute(s.reshape(x, (2, 2, 6)), (2, 0, 1))
    z = s.reduce(UOp(Ops.ADD, (y, UOp.lift(1.0))), Ops.ADD, (0,))
    target = UOp.new_buffer("CPU", 4, dtypes.float32)
    view = s.reshape(target, (1, 2, 2))
    check(UOp.sink(view.after(view.store(z))), "tensor")
    check(s.shear(s.expand(s.reshape(s.pad(x, ((1, 1), (0, 0))), (6, 1, 6)), (6, 3, 6)), 0, 1, 1, 0, 4), "tensor")


def broken_tensors():
    x, s = tensors()
    yield "number of elements", UOp(Ops.RESHAPE, (x,), (5, 5))
    yield "axes of length 1 only", UOp(Ops.EXPAND, (x,), (4, 12))
    yield "every axis once", UOp(Ops.PERMUTE, (x,), (0, 0))
    yield "non-negative", UOp(Ops.PAD, (x,), ((0, -1, 0, 0), 0))
    yield "inside every axis", UOp(Ops.SHRINK, (x,), (0, 4, 3, 4))
    yield "elements that exist", UOp(Ops.SHEAR, (x,), (0, 1, 1, 0, 4))
    yield "one shape", UOp(Ops.ADD, (x, s.permute(x, (1, 0))))
    yield "does not stand in the tensor form", UOp(Ops.ADD, (x, UOp.range(4, 0).cast(dtypes.float32)))
    yield "sorted axes", UOp(Ops.REDUCE, (x,), (Ops.ADD, (1, 0)))
    yield "within its bounds", UOp(Ops.BIND, (UOp.variable("n", 1, 4), UOp.lift(9)))


@pytest.mark.parametrize(("says", "graph"), list(broken_tensors()), ids=lambda x: x if isinstance(x, str) else "")
def test_a_broken_tensor_graph_is_told_its_rule(says, graph):
    with pytest.raises(SpecError, match=says):
        check(graph, "tensor")


def program():
    out = UOp.param(0, dtypes.float32, 8)
    n = UOp.const(dtypes.int32, 8)
    r = UOp.range(n, 0)
    at = out.index(r)
    one = UOp.const(dtypes.float32, 1)
    store = at.store(one)
    return [out, n, r, at, one, store, store.end(r)]


def test_a_program_is_in_order_typed_and_closed():
    order = program()
    check(UOp(Ops.LINEAR, tuple(order)), "program")
    with pytest.raises(SpecError, match="comes after its sources"):
        check(UOp(Ops.LINEAR, tuple(order[1:] + order[:1])), "program")
    with pytest.raises(SpecError, match="closed before the program ends"):
        check(UOp(Ops.LINEAR, tuple(order[:-1])), "program")
    weak = UOp.range(8, 1)
    with pytest.raises(SpecError, match="concrete type"):
        check(UOp(Ops.LINEAR, (*order, weak.src[0], weak)), "program")


def test_registers_are_addressed_like_storage():
    reg = UOp.buffer(0, dtypes.float32, 8, AddrSpace.REG)
    zero = UOp.const(dtypes.int32, 0)
    whole = UOp(Ops.SHRINK, (reg, zero), (None, 8))
    value = whole.load()
    check(UOp(Ops.LINEAR, (reg, zero, whole, value, UOp(Ops.STORE, (whole, value)))), "program")


def test_an_error_names_the_line_that_made_the_node():
    track_origin(lambda: "user.py:7")
    try:
        broken = UOp(Ops.PERMUTE, (UOp.param_from_shape(3, (2, 3), dtypes.float32),), (1, 1))
    finally:
        track_origin(None)
    with pytest.raises(SpecError, match="user.py:7"):
        check(broken, "tensor")


def test_a_form_that_does_not_exist_is_an_error():
    with pytest.raises(ValueError, match="tensor, kernel, program"):
        check(copy_kernel(), "kernels")


def test_polynomials_stand_in_the_tensor_form():
    """`erf` and `tanh` are written with MULACC, which their derivatives know: SPEC=1 refused their graphs."""
    from aril import Tensor

    x = Tensor([1.0, 2.0]).realize()
    y = x.gelu()
    for u in (y.uop, (x.tanh() * y).sum().gradient(x)[0].uop):
        assert any(n.op is Ops.MULACC for n in u.toposort())
        check(u.sink(), "tensor")
