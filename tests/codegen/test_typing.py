"""Weak types become concrete, Invalid becomes gates, products in accumulated sums become multiply-adds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aril.codegen.typing import assign_types, concretize, fuse_mulacc, gate_accesses
from aril.dtype import dtypes
from aril.ops import Ops
from aril.renderer.base import Renderer
from aril.uop.args import AddrSpace, AxisType
from aril.uop.node import UOp

F32, I32, I64 = dtypes.float32, dtypes.int32, dtypes.int64


def num(value: int) -> UOp:
    return UOp.const(dtypes.weakint, value)


def stored(value: UOp, dtype=F32, at: UOp | None = None) -> UOp:
    return UOp.sink(UOp.param(0, dtype, 64).index(num(0) if at is None else at).store(value))


def value_of(sink: UOp) -> UOp:
    return next(u for u in sink.toposort() if u.op is Ops.STORE).src[1]


def no_weak(sink: UOp) -> bool:
    return not any(u.dtype.weak for u in sink.toposort())


def test_scalar_index_arithmetic_is_int64() -> None:
    r = UOp.range(8, 0)
    v = UOp.variable("n", 1, 9)
    out = concretize(stored(UOp.const(F32, 1.0), at=UOp(Ops.ADD, (UOp(Ops.MUL, (r, num(4))), v))))
    assert no_weak(out)
    assert {u.dtype for u in out.toposort() if u.op in (Ops.RANGE, Ops.ADD, Ops.MUL, Ops.PARAM) and u.arg != 0} <= {
        I64,
        F32,
    }


@pytest.mark.parametrize(("step", "dtype"), [(1000, I32), (2**31, I64)])
def test_vectors_of_indices_are_int32_where_that_is_enough(step: int, dtype) -> None:
    r = UOp.range(8, 0)
    lanes = UOp.vector(*[num(i * step) for i in range(4)])
    index = UOp(Ops.ADD, (r, lanes))
    out = concretize(UOp.sink(UOp.param(0, F32, 2**34).index(index).store(UOp.const(F32, 1.0)).end(r)))
    assert no_weak(out)
    assert next(u for u in out.toposort() if u.op is Ops.ADD).dtype is dtype


def test_weak_constants_take_the_type_of_what_they_meet() -> None:
    x = UOp.param(1, dtypes.float16, 4).index(num(0)).load()
    value = value_of(concretize(stored(UOp(Ops.ADD, (x, UOp.const(dtypes.weakfloat, 0.1))), dtypes.float16)))
    assert value.dtype is dtypes.float16 and value.src[1] is UOp.const(dtypes.float16, 0.1)
    n = UOp.param(1, dtypes.uint8, 4).index(num(0)).load()
    compared = value_of(concretize(stored(UOp(Ops.CMPLT, (n, num(3))), dtypes.bool)))
    assert compared.src[1] is UOp.const(dtypes.uint8, 3)


def test_a_loop_counter_meets_a_value_in_its_type() -> None:
    r = UOp.range(8, 0)
    x = UOp.param(1, I32, 8).index(r).load()
    value = value_of(concretize(UOp.sink(UOp.param(0, I32, 8).index(r).store(UOp(Ops.ADD, (x, r))).end(r))))
    assert value.dtype is I32 and value.src[1].op is Ops.CAST and value.src[1].src[0].dtype is I64


def test_weak_values_alone_become_the_default_types_and_stores_that_of_their_buffer() -> None:
    cond = UOp(Ops.CMPLT, (UOp.range(8, 0), num(3)))
    value = UOp(Ops.WHERE, (cond, UOp.const(dtypes.weakfloat, 1.0), UOp.const(dtypes.weakfloat, 0.0)))
    out = concretize(stored(value, dtypes.float64))
    assert no_weak(out) and value_of(out).dtype is dtypes.float64


def test_an_invalid_index_becomes_a_gate() -> None:
    r = UOp.range(8, 0)
    inside = UOp(Ops.CMPLT, (r, num(5)))
    load = UOp.param(1, F32, 5).index(r.valid(inside)).load(UOp.const(F32, 2.0))
    got = value_of(gate_accesses(stored(load)))
    assert got.src[0].src[1] is r and got.src[1].arg == 2.0 and got.src[2] is inside


def test_invalid_below_arithmetic_and_a_second_gate() -> None:
    r = UOp.range(8, 0)
    inside, even = UOp(Ops.CMPLT, (r, num(5))), UOp(Ops.CMPNE, (r, num(2)))
    shifted = UOp(Ops.ADD, (r.valid(inside), num(1))).valid(even)
    got = value_of(gate_accesses(stored(UOp.param(1, F32, 9).index(shifted).load())))
    assert got.src[0].src[1] is UOp(Ops.ADD, (r, num(1)))
    assert got.src[1].arg == 0.0 and got.src[2] is UOp(Ops.AND, (even, inside))


def test_a_store_of_invalid_is_gated() -> None:
    x = UOp.param(1, F32, 4).index(num(0)).load()
    cond = UOp(Ops.CMPLT, (x, UOp.const(F32, 0.0)))
    store = next(u for u in gate_accesses(stored(x.valid(cond))).toposort() if u.op is Ops.STORE)
    assert store.src[1] is x and store.src[2] is cond
    other = UOp(Ops.WHERE, (cond, UOp.invalid(F32), x))
    store = next(u for u in gate_accesses(stored(other)).toposort() if u.op is Ops.STORE)
    assert store.src[1] is x and store.src[2].op is Ops.XOR


def test_a_kernel_of_nothing_but_invalid_does_not_exist() -> None:
    r = UOp.range(8, 0)
    p = UOp.param(0, F32, 8)
    sink = UOp.sink(p.index(UOp.invalid()).store(UOp.const(F32, 1.0)).end(r), p.index(r).store(UOp.invalid(F32)).end(r))
    assert assign_types(sink).src == ()


def test_a_load_at_invalid_is_its_alternative() -> None:
    load = UOp.param(1, F32, 8).index(UOp.invalid()).load(UOp.const(F32, 3.0))
    assert value_of(gate_accesses(stored(load))) is UOp.const(F32, 3.0)


# --- multiply-add ---

FMA = Renderer()


def accumulated(build, lanes: int = 1) -> UOp:
    k = UOp.range(8, 0, AxisType.REDUCE)
    acc = UOp.buffer(0, F32, lanes, AddrSpace.REG)
    inside = acc.after(k).index(num(0))
    a, b, c, d = (UOp.param(i + 1, F32, 8).index(k).load() for i in range(4))
    return UOp.sink(inside.store(build(inside.load(), a, b, c, d)).end(k))


def plus(a: UOp, b: UOp) -> UOp:
    return UOp(Ops.ADD, (a, b))


def times(a: UOp, b: UOp) -> UOp:
    return UOp(Ops.MUL, (a, b))


def test_an_accumulated_product_is_one_multiply_add() -> None:
    got = value_of(fuse_mulacc(accumulated(lambda acc, a, b, c, d: plus(acc, times(a, b))), FMA))
    assert got.op is Ops.MULACC and got.src[2].op is Ops.LOAD


def test_unrolled_products_are_a_chain() -> None:
    for build in (
        lambda acc, a, b, c, d: plus(plus(acc, times(a, b)), times(c, d)),
        lambda acc, a, b, c, d: plus(acc, plus(times(a, b), times(c, d))),
    ):
        got = value_of(fuse_mulacc(accumulated(build), FMA))
        assert got.op is Ops.MULACC and got.src[2].op is Ops.MULACC
        assert not any(u.op in (Ops.MUL, Ops.ADD) for u in got.toposort())


def test_terms_that_are_no_products_are_added_first() -> None:
    got = value_of(fuse_mulacc(accumulated(lambda acc, a, b, c, d: plus(plus(acc, times(a, b)), c)), FMA))
    assert got.op is Ops.MULACC and got.src[2].op is Ops.ADD


def test_sums_elsewhere_keep_their_rounding() -> None:
    x, y = (UOp.param(i, F32, 8).index(num(0)).load() for i in (1, 2))
    sink = stored(plus(times(x, y), x))
    assert fuse_mulacc(sink, FMA) is sink


def test_a_target_without_multiply_add_keeps_the_sum() -> None:
    sink = accumulated(lambda acc, a, b, c, d: plus(acc, times(a, b)))
    assert fuse_mulacc(sink, replace(FMA, ops=FMA.ops - {Ops.MULACC})) is sink
