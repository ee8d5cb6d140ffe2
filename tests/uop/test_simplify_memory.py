"""Simplification of kernels: loads, stores and loops that cannot or need not be."""

import pytest

from aril.dtype import dtypes
from aril.ops import Ops
from aril.uop import KernelInfo, UOp
from aril.uop import shape as sh
from aril.uop.symbolic import simplify
from aril.uop.verify import check

p, q = UOp.param(0, dtypes.float32, 64), UOp.param(1, dtypes.float32, 64)
ZERO = UOp.const(dtypes.float32, 0)
r, s = UOp.range(8, 0), UOp.range(4, 1)


def less(a, b):
    return UOp(Ops.CMPLT, (a, UOp.lift(b)))


def test_a_gate_that_always_holds_takes_the_alternative_with_it():
    load = q.index(r.valid(less(r, 8))).load(ZERO)
    assert simplify(load) is q.index(r).load()


def test_a_load_nowhere_is_its_alternative():
    assert simplify(q.index(r.valid(less(r, 0))).load(ZERO)) is ZERO
    assert simplify(q.index(r).load(ZERO, UOp.const(dtypes.bool, False))) is ZERO
    assert simplify(q.index(r).load(ZERO, UOp.const(dtypes.bool, True))) is q.index(r).load()


def test_a_kernel_of_stores_nowhere_is_empty():
    store = p.index(r.valid(less(r, 0))).store(ZERO).end(r)
    other = p.index(r).store(UOp.invalid(dtypes.float32)).end(r)
    assert simplify(UOp.sink(store, other, arg=KernelInfo("k"))) is UOp.sink(arg=KernelInfo("k"))


def test_one_store_of_a_group_that_does_nothing_leaves_the_other():
    a = p.index(r).store(ZERO)
    b = q.index(r.valid(less(r, 0))).store(ZERO)
    assert simplify(UOp.sink(UOp.group(a, b).end(r))) is UOp.sink(a.end(r))


def test_a_value_does_not_wait_for_a_store_nowhere():
    nothing = q.index(r.valid(less(r, 0))).store(ZERO).end(r)
    assert simplify(p.after(nothing).index(s).load()) is p.index(s).load()
    some = q.index(r).store(ZERO).end(r)
    assert simplify(p.after(nothing, some)) is p.after(some)


def test_a_loop_of_one_turn_is_not_a_loop():
    one = UOp.range(1, 5)
    at = UOp(Ops.ADD, (UOp(Ops.MUL, (r, UOp.lift(1))), one))
    assert simplify(p.index(at).store(ZERO).end(r, one)) is p.index(r).store(ZERO).end(r)
    assert simplify(p.index(one).store(ZERO).end(one)) is p.index(UOp.lift(0)).store(ZERO)
    total = UOp(Ops.REDUCE, (q.index(at).load(), one), (Ops.ADD, ()))
    assert simplify(total) is q.index(r).load()


def test_a_load_keeps_its_gate_under_the_same_gate():
    # the load happens even where the index it gives is not used
    table = UOp.param(2, dtypes.int32, 8)
    gate = less(r, 5)
    inner = table.index(r.valid(gate)).load(UOp.const(dtypes.int32, 0)).cast(dtypes.weakint)
    at = UOp(Ops.FLOORMOD, (UOp(Ops.ADD, (UOp(Ops.MUL, (inner, UOp.lift(8))), r)), UOp.lift(16)))
    load = simplify(q.index(at.valid(gate)).load(ZERO))
    assert inner.src[0] in load.toposort()


def test_loops_keep_their_identity():
    n = UOp.variable("n", 1, 8)
    odd = UOp.range(UOp(Ops.ADD, (n, UOp.lift(0))), 3)
    store = p.index(UOp(Ops.ADD, (odd, UOp.lift(0)))).store(ZERO).end(odd)
    assert simplify(store) is p.index(odd).store(ZERO).end(odd)
    assert simplify(odd) is odd


def test_a_condition_at_the_end_of_a_loop_stays():
    always = UOp.const(dtypes.bool, True)
    loop = p.index(r).store(ZERO).end(r, condition=always)
    assert simplify(loop) is loop


def test_a_simplified_kernel_is_of_kernel_form():
    at = UOp(Ops.ADD, (UOp(Ops.MUL, (r, UOp.lift(4))), s))
    row = UOp(Ops.FLOORDIV, (at, UOp.lift(4)))
    load = q.index(UOp(Ops.ADD, (row, UOp.lift(-1))).valid(less(row, 5))).load(ZERO)
    total = UOp(Ops.REDUCE, (load, s), (Ops.ADD, ()))
    kernel = UOp.sink(p.index(r).store(total).end(r), arg=KernelInfo("k"))
    check(kernel, "kernel")
    done = simplify(kernel)
    check(done, "kernel")
    assert simplify(done) is done


def test_vectors_stay_vectors():
    lanes = UOp.vector(*[UOp.lift(i) for i in range(4)])
    at = UOp(Ops.ADD, (UOp(Ops.MUL, (r, UOp.lift(4))), lanes))
    row = UOp(Ops.FLOORDIV, (at, UOp.lift(4)))
    assert simplify(row) is UOp.vector(r, r, r, r)
    assert simplify(UOp(Ops.FLOORMOD, (at, UOp.lift(4)))).shape == (4,)
    assert simplify(UOp(Ops.INDEX, (lanes, UOp.lift(2)))) is UOp.lift(2)


def test_tensors_keep_their_shape():
    x = UOp.param_from_shape(0, (3,), dtypes.int32)
    for u in (UOp(Ops.SUB, (x, x)), UOp(Ops.MUL, (x, UOp.lift(0))), UOp(Ops.CMPLT, (UOp.iota(3), UOp.lift(3)))):
        assert simplify(u).shape == (3,)
    assert simplify(UOp(Ops.ADD, (sh.reshape(x, (3, 1)), UOp.lift(0)))) is sh.reshape(x, (3, 1))


@pytest.mark.parametrize("t", [dtypes.int32, dtypes.uint8])
def test_a_result_keeps_its_type(t):
    v = UOp.variable("v", 0, 9, t)
    for u in (
        UOp(Ops.ADD, (r, UOp.const(t, 0))),
        UOp(Ops.SUB, (UOp(Ops.ADD, (v, r)), v)),
        UOp(Ops.MUL, (v, UOp.lift(0))),
        UOp(Ops.MAX, (r, UOp.const(t, 0))),
        UOp(Ops.WHERE, (UOp.const(dtypes.bool, True), UOp.lift(1), v)),
    ):
        assert u.dtype is t
        assert simplify(u).dtype is t
