"""The LLVM renderer, node by node: programs built by hand run as machine code and agree with NumPy."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pytest

from aril.codegen.linearize import linearize
from aril.codegen.typing import assign_types
from aril.dtype import DType, dtypes
from aril.ops import Ops
from aril.renderer.base import RenderError, arguments
from aril.renderer.llvm import LLVMRenderer
from aril.runtime.llvm import compile_ir_to_asm
from aril.uop.args import AddrSpace, AxisType
from aril.uop.node import UOp
from tests.renderer.run_llvm import HOST, run

NUMPY = {d: np.dtype(d.name) for d in (dtypes.bool, *dtypes.ints, dtypes.float16, dtypes.float32, dtypes.float64)}
FLOATS = (dtypes.float16, dtypes.float32, dtypes.float64)
LANES = [0, 8]


def at(memory: UOp, i: UOp, lanes: int) -> UOp:
    return memory.index(i) if not lanes else UOp(Ops.SHRINK, (memory, i), (None, lanes))


def compute(build, dtype: DType, *inputs: np.ndarray, lanes: int = 0, renderer: LLVMRenderer = HOST) -> np.ndarray:
    """`build(*loads)` for every element of equally long inputs, `lanes` at a time."""
    n = len(inputs[0])
    step = lanes or 1
    assert n % step == 0
    r = UOp.range(n // step, 0)
    i = UOp(Ops.MUL, (r, UOp.const(dtypes.weakint, step)))
    kinds = {v: k for k, v in NUMPY.items()}
    loads = [at(UOp.param(k + 1, kinds[x.dtype], n), i, lanes).load() for k, x in enumerate(inputs)]
    sink = UOp.sink(at(UOp.param(0, dtype, n), i, lanes).store(build(*loads)).end(r))
    out = np.zeros(n, NUMPY[dtype])
    run(linearize(assign_types(sink)).src, out, *inputs, renderer=renderer)
    return out


def special_values(dtype: DType) -> np.ndarray:
    t = NUMPY[dtype]
    if dtype is dtypes.bool:
        return np.array([0, 1, 1, 0, 0, 0, 1, 1], t)
    if dtype.kind == "f":
        info = np.finfo(t)
        return np.array(
            [
                0.0,
                -0.0,
                1.0,
                -1.5,
                2.75,
                np.inf,
                -np.inf,
                np.nan,
                info.max,
                info.min,
                info.tiny,
                3e-5,
                100.3,
                -7.9,
                0.5,
                2.5,
            ],
            t,
        )
    info = np.iinfo(t)
    values = [0, 1, 2, 3, info.max, info.min, info.max - 1, 7, 13, info.min + 1, 5, 64, 31, 100, 17, 8]
    return np.array([int(v) for v in values], t)


def pairs(dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    values = special_values(dtype)
    a, b = zip(*itertools.product(values, values), strict=True)
    return np.array(a, values.dtype), np.array(b, values.dtype)


def same(a: np.ndarray, b: np.ndarray) -> None:
    np.testing.assert_array_equal(a, np.asarray(b).astype(a.dtype))


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_float_arithmetic_is_that_of_ieee_754(dtype: DType, lanes: int) -> None:
    a, b = pairs(dtype)
    table = {Ops.ADD: np.add, Ops.SUB: np.subtract, Ops.MUL: np.multiply, Ops.FDIV: np.divide, Ops.MAX: np.maximum}
    with np.errstate(all="ignore"):
        for op, reference in table.items():
            same(compute(lambda x, y, op=op: UOp(op, (x, y)), dtype, a, b, lanes=lanes), reference(a, b))
        for op, unary in {
            Ops.SQRT: np.sqrt,
            Ops.NEG: np.negative,
            Ops.TRUNC: np.trunc,
            Ops.RECIPROCAL: np.reciprocal,
        }.items():
            same(compute(lambda x, op=op: UOp(op, (x,)), dtype, a, lanes=lanes), unary(a))


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize(
    "dtype", (dtypes.bool, dtypes.int8, dtypes.uint16, dtypes.int32, dtypes.uint64, dtypes.float32), ids=str
)
def test_comparisons(dtype: DType, lanes: int) -> None:
    a, b = pairs(dtype)
    for op, reference in {Ops.CMPLT: np.less, Ops.CMPNE: np.not_equal, Ops.CMPEQ: np.equal}.items():
        same(compute(lambda x, y, op=op: UOp(op, (x, y)), dtypes.bool, a, b, lanes=lanes), reference(a, b))


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", dtypes.ints, ids=str)
def test_integer_arithmetic_wraps(dtype: DType, lanes: int) -> None:
    a, b = pairs(dtype)
    table = {
        Ops.ADD: np.add, Ops.SUB: np.subtract, Ops.MUL: np.multiply, Ops.MAX: np.maximum, Ops.AND: np.bitwise_and,
        Ops.OR: np.bitwise_or, Ops.XOR: np.bitwise_xor,
    }  # fmt: skip
    with np.errstate(all="ignore"):
        for op, reference in table.items():
            same(compute(lambda x, y, op=op: UOp(op, (x, y)), dtype, a, b, lanes=lanes), reference(a, b))


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", dtypes.ints, ids=str)
def test_division_truncates_and_never_traps(dtype: DType, lanes: int) -> None:
    a, b = pairs(dtype)
    quotients, remainders = [], []
    for x, y in zip(a.tolist(), b.tolist(), strict=True):
        q = 0 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
        quotients.append(q)
        remainders.append(0 if y == 0 else x - q * y)
    wrap = lambda values: np.array([v % 2**dtype.bits for v in values], np.uint64).astype(a.dtype)  # noqa: E731
    same(compute(lambda x, y: UOp(Ops.CDIV, (x, y)), dtype, a, b, lanes=lanes), wrap(quotients))
    same(compute(lambda x, y: UOp(Ops.CMOD, (x, y)), dtype, a, b, lanes=lanes), wrap(remainders))


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", (dtypes.int8, dtypes.uint32, dtypes.int64, dtypes.uint64), ids=str)
def test_shifts_by_the_width_or_more_shift_everything_out(dtype: DType, lanes: int) -> None:
    values = special_values(dtype)
    counts = np.array([0, 1, 5, dtype.bits - 1, dtype.bits, dtype.bits + 1, 100, 3], values.dtype)
    a, b = (np.array(v, values.dtype) for v in zip(*itertools.product(values, counts), strict=True))
    left = [x << y for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    same(
        compute(lambda x, y: UOp(Ops.SHL, (x, y)), dtype, a, b, lanes=lanes),
        np.array([v % 2**dtype.bits for v in left], np.uint64).astype(a.dtype),
    )
    right = [x >> y for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    same(compute(lambda x, y: UOp(Ops.SHR, (x, y)), dtype, a, b, lanes=lanes), np.array(right, a.dtype))
    same(compute(lambda x: UOp(Ops.SHR, (x, UOp.const(dtypes.int32, 3))), dtype, a, lanes=lanes), a >> a.dtype.type(3))


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("to", NUMPY, ids=str)
@pytest.mark.parametrize("frm", NUMPY, ids=str)
def test_casts(frm: DType, to: DType, lanes: int) -> None:
    a = special_values(frm)
    with np.errstate(all="ignore"):
        if frm.kind == "f" and to.kind in "iu":
            ref = np.array([0 if v != v else min(max(int(v), to.min), to.max) if np.isfinite(v) else
                            (to.max if v > 0 else to.min) for v in a.astype(object)], NUMPY[to])  # fmt: skip
        else:
            ref = a.astype(NUMPY[to])
    same(compute(lambda x: x.cast(to), to, a, lanes=lanes), ref)


def test_a_double_becomes_a_half_in_one_rounding() -> None:
    half = np.arange(0, 2**15, dtype=np.uint16).view(np.float16)
    half = half[np.isfinite(half)].astype(np.float64)
    middle = (half[:-1] + half[1:]) / 2
    values = np.concatenate(
        [middle, np.nextafter(middle, 0), np.nextafter(middle, np.inf), half, [65519.0, 65520.0, np.nan]]
    )
    values = np.concatenate([values, -values])
    values = np.resize(values, -(-len(values) // 8) * 8)
    with np.errstate(over="ignore"):
        for lanes in LANES:
            same(
                compute(lambda x: x.cast(dtypes.float16), dtypes.float16, values, lanes=lanes),
                values.astype(np.float16),
            )


@pytest.mark.parametrize("lanes", LANES)
def test_bitcasts_keep_the_bits(lanes: int) -> None:
    a = special_values(dtypes.float32)
    same(compute(lambda x: x.bitcast(dtypes.uint32), dtypes.uint32, a, lanes=lanes), a.view(np.uint32))
    same(
        compute(lambda x: x.bitcast(dtypes.float32).bitcast(dtypes.int32), dtypes.int32, a.view(np.int32), lanes=lanes),
        a.view(np.int32),
    )
    b = special_values(dtypes.bool)
    same(compute(lambda x: x.bitcast(dtypes.uint8), dtypes.uint8, b, lanes=lanes), b.view(np.uint8))


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", (dtypes.bool, dtypes.int16, dtypes.float16, dtypes.float64), ids=str)
def test_where_takes_one_of_two(dtype: DType, lanes: int) -> None:
    a, b = pairs(dtype)
    c = np.arange(len(a)) % 3 == 0
    same(compute(lambda p, x, y: UOp(Ops.WHERE, (p, x, y)), dtype, c, a, b, lanes=lanes), np.where(c, a, b))


def test_bools_add_and_multiply_as_or_and_and() -> None:
    a, b = pairs(dtypes.bool)
    for op, ref in {
        Ops.ADD: a | b,
        Ops.MUL: a & b,
        Ops.MAX: a | b,
        Ops.XOR: a ^ b,
        Ops.AND: a & b,
        Ops.OR: a | b,
    }.items():
        same(compute(lambda x, y, op=op: UOp(op, (x, y)), dtypes.bool, a, b, lanes=8), ref)


@pytest.mark.skipif(not HOST.has_fma, reason="the machine has no fused multiply-add")
def test_mulacc_rounds_once() -> None:
    rng = np.random.default_rng(0)
    a, b, c = (rng.standard_normal(64).astype(np.float32) for _ in range(3))
    exact = (a.astype(np.longdouble) * b + c).astype(np.float32)
    for lanes in LANES:
        same(compute(lambda x, y, z: UOp(Ops.MULACC, (x, y, z)), dtypes.float32, a, b, c, lanes=lanes), exact)


def test_float_constants_arrive_exactly() -> None:
    for dtype in FLOATS:
        a = special_values(dtype)
        for value in (0.1, -0.0, float("inf"), float("nan"), float(np.finfo(NUMPY[dtype]).smallest_subnormal)):
            out = compute(
                lambda x, value=value: UOp(Ops.WHERE, (UOp(Ops.CMPEQ, (x, x)), x.const_like(value), x)), dtype, a
            )
            assert out[0].tobytes() == NUMPY[dtype].type(value).tobytes() or np.isnan(value)


# --- vectors ---


def vector_program(build, n: int = 8, out_lanes: int = 8) -> np.ndarray:
    x = np.arange(n, dtype=np.float32) + 1
    out = np.zeros(out_lanes, np.float32)
    load = at(UOp.param(1, dtypes.float32, n), UOp.const(dtypes.weakint, 0), n).load()
    value = build(load)
    sink = UOp.sink(at(UOp.param(0, dtypes.float32, out_lanes), UOp.const(dtypes.weakint, 0), out_lanes).store(value))
    run(linearize(assign_types(sink)).src, out, x)
    return out


def test_lanes_parts_and_stacks_of_vectors() -> None:
    same(vector_program(lambda v: UOp.vector(*[v.index(7 - i) for i in range(8)])), np.arange(8, 0, -1))
    same(vector_program(lambda v: UOp(Ops.SHRINK, (v,), (2, 4)), out_lanes=4), [3, 4, 5, 6])
    same(vector_program(lambda v: UOp.vector(v.index(3), *[v.const_like(9.0)] * 3), out_lanes=4), [4, 9, 9, 9])
    same(vector_program(lambda v: UOp.vector(*[v.index(5)] * 4), out_lanes=4), [6] * 4)
    picked = UOp.vector(*[UOp.const(dtypes.weakint, i) for i in (6, 0, 0, 1)])
    same(vector_program(lambda v: UOp(Ops.INDEX, (v, picked)), out_lanes=4), [7, 1, 1, 2])


def test_gather_and_scatter_with_and_without_gates() -> None:
    n = 16
    where = UOp.vector(*[UOp.const(dtypes.weakint, i) for i in (3, 15, 0, 7)])
    gate = UOp.vector(*[UOp.const(dtypes.bool, i) for i in (True, False, True, True)])
    x = np.arange(n, dtype=np.float32)
    p, q = UOp.param(0, dtypes.float32, n), UOp.param(1, dtypes.float32, n)
    out = np.full(n, -1, np.float32)
    run(linearize(assign_types(UOp.sink(p.index(where).store(q.index(where).load())))).src, out, x)
    same(out, [0, -1, -1, 3, -1, -1, -1, 7, -1, -1, -1, -1, -1, -1, -1, 15])
    out[:] = -1
    value = q.index(where).load(UOp.const(dtypes.float32, 5.0), gate)
    run(linearize(assign_types(UOp.sink(at(p, UOp.const(dtypes.weakint, 0), 4).store(value)))).src, out, x)
    same(out[:4], [3, 5, 0, 7])
    out[:] = -1
    run(linearize(assign_types(UOp.sink(p.index(where).store(value, gate)))).src, out, x)
    assert out[15] == -1 and out[3] == 3


def guarded(size: int, dtype: type = np.float32) -> np.ndarray:
    """An array whose end lies at the end of the last page that may be touched."""
    import ctypes
    import mmap

    page = mmap.PAGESIZE
    area = mmap.mmap(-1, 2 * page)
    base = ctypes.addressof(ctypes.c_char.from_buffer(area))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(base + page), ctypes.c_size_t(page), 0) == 0
    return np.frombuffer(area, dtype, size, page - size * np.dtype(dtype).itemsize)


@pytest.mark.parametrize("dtype", (dtypes.float32, dtypes.uint8, dtypes.bool), ids=str)
def test_gated_accesses_touch_nothing_where_the_gate_is_false(dtype: DType) -> None:
    n, t = 6, NUMPY[dtype].type
    data = guarded(n, t)
    data[:] = [1, 0, 1, 1, 0, 1]
    r = UOp.range(64, 0)
    far = UOp(Ops.MUL, (r, UOp.const(dtypes.weakint, 128)))
    gate = UOp(Ops.CMPLT, (far, UOp.const(dtypes.weakint, n)))
    value = UOp.param(1, dtype, n).index(far.valid(gate)).load(UOp.const(dtype, 1))
    out = np.zeros(64, t)
    run(linearize(assign_types(UOp.sink(UOp.param(0, dtype, 64).index(r).store(value).end(r)))).src, out, data)
    same(out, np.ones(64))
    lanes = UOp.vector(*[UOp.const(dtypes.weakint, i) for i in range(8)])
    mask = UOp(Ops.CMPLT, (lanes, UOp.const(dtypes.weakint, n)))
    zero = UOp.const(dtypes.weakint, 0)
    load = at(UOp.param(1, dtype, n), zero, 8).load(UOp.const(dtype, 0), mask)
    run(linearize(assign_types(UOp.sink(at(UOp.param(0, dtype, 64), zero, 8).store(load)))).src, out, data)
    same(out[:8], [*data.tolist(), 0, 0])
    store = at(UOp.param(0, dtype, n), zero, 8).store(at(UOp.param(1, dtype, 64), zero, 8).load(), mask)
    run(linearize(assign_types(UOp.sink(store))).src, data, np.ones(64, t))
    same(data, np.ones(n))


def test_a_gated_vector_load_with_a_scalar_gate_takes_its_alternative() -> None:
    data = guarded(8)
    data[:] = np.arange(8)
    r = UOp.range(3, 0)
    start = UOp(Ops.MUL, (r, UOp.const(dtypes.weakint, 4)))
    gate = UOp(Ops.CMPLT, (r, UOp.const(dtypes.weakint, 2)))
    value = at(UOp.param(1, dtypes.float32, 8), start.valid(gate), 4).load(UOp.const(dtypes.float32, -1.0))
    out = np.zeros(12, np.float32)
    run(
        linearize(assign_types(UOp.sink(at(UOp.param(0, dtypes.float32, 12), start, 4).store(value).end(r)))).src,
        out,
        data,
    )
    same(out, [0, 1, 2, 3, 4, 5, 6, 7, -1, -1, -1, -1])


# --- control and arguments ---


def test_the_launch_index_and_variables_are_arguments() -> None:
    v, w = UOp.variable("a", 0, 100), UOp.variable("b", 0, 100, dtypes.int32)
    chunk = UOp.special(4, "gidx0")
    value = UOp(Ops.ADD, (UOp(Ops.MUL, (v, UOp.const(dtypes.weakint, 10))).cast(dtypes.int32), w))
    program = linearize(assign_types(UOp.sink(UOp.param(0, dtypes.int32, 4).index(chunk).store(value)))).src
    out = np.zeros(4, np.int32)
    run(program, out, variables=[7, 3], chunks=4)
    same(out, [73] * 4)
    count, names = arguments(program)
    assert (count, [u.arg.name for u in names]) == (1, ["a", "b"])


@pytest.mark.parametrize("n", [0, 1, 5])
def test_a_symbolic_loop_may_turn_no_time(n: int) -> None:
    v = UOp.variable("n", 0, 10)
    r = UOp.range(v, 0)
    out = np.zeros(10, np.int32)
    store = UOp.param(0, dtypes.int32, 10).index(r).store(UOp.const(dtypes.int32, 1)).end(r)
    run(linearize(assign_types(UOp.sink(store))).src, out, variables=[n])
    assert out.sum() == n


def test_if_does_its_body_only_where_the_condition_holds() -> None:
    i64 = dtypes.int64
    out = UOp.param(0, dtypes.int32, 8)
    end = UOp.const(i64, 8)
    r = UOp(Ops.RANGE, (end,), UOp.range(8, 0).arg)
    cond = UOp(Ops.CMPLT, (r, UOp.const(i64, 3)))
    begin = UOp(Ops.IF, (cond,), None, dtypes.void)
    address = UOp(Ops.INDEX, (out, r))
    store = address.store(UOp.const(dtypes.int32, 7))
    close = UOp(Ops.ENDIF, (begin,))
    got = np.zeros(8, np.int32)
    run([out, end, r, cond, begin, address, store, close, UOp(Ops.END, (store, r))], got)
    same(got, [7, 7, 7, 0, 0, 0, 0, 0])


def test_atomics_return_the_old_value() -> None:
    r = UOp.range(10, 0)
    total, seen = UOp.param(0, dtypes.int32, 1), UOp.param(1, dtypes.int32, 10)
    old = UOp(Ops.ATOMIC, (total.after(r).index(0), UOp.const(dtypes.int32, 2)), (Ops.ADD, "relaxed"))
    out, got = np.zeros(1, np.int32), np.zeros(10, np.int32)
    run(linearize(assign_types(UOp.sink(seen.index(r).store(old).end(r)))).src, out, got)
    same(out, [20])
    same(got, np.arange(0, 20, 2))


def test_a_gated_atomic_happens_where_the_gate_holds() -> None:
    r = UOp.range(10, 0)
    total = UOp.param(0, dtypes.int32, 1)
    gate = UOp(Ops.CMPLT, (r, UOp.const(dtypes.weakint, 3)))
    change = UOp(Ops.ATOMIC, (total.after(r).index(0), UOp.const(dtypes.int32, 2), gate), Ops.ADD)
    out = np.zeros(1, np.int32)
    run(linearize(assign_types(UOp.sink(change.end(r)))).src, out)
    same(out, [6])


def test_inline_llvm_is_written_in_and_other_languages_are_refused() -> None:
    def custom(language: str) -> list[UOp]:
        x = UOp.param(1, dtypes.int32, 4).index(1).load()
        value = UOp(Ops.CUSTOMI, (x,), ("call {t0} @llvm.ctpop.i32({t0} {0})", dtypes.int32, language), dtypes.int32)
        return list(linearize(assign_types(UOp.sink(UOp.param(0, dtypes.int32, 1).index(0).store(value)))).src)

    with pytest.raises(RenderError, match="inline source in c"):
        HOST.render("k", custom("c"))
    assert "call i32 @llvm.ctpop.i32(i32 %" in HOST.render("k", custom("llvm"))


def test_nontemporal_accesses_stay_vectors() -> None:
    zero = UOp.const(dtypes.weakint, 0)
    wide = HOST.vector_bytes // 4
    p, q = (UOp.param(i, dtypes.float32, 64, align=64) for i in range(2))
    store = UOp(Ops.STORE, (at(p, zero, wide), at(q, zero, wide).load(hint="nontemporal")), "nontemporal")
    text = HOST.render("k", linearize(assign_types(UOp.sink(store))).src)
    assert text.count("!nontemporal") == 2 and "movnt" in compile_ir_to_asm(text)


@pytest.mark.parametrize(
    ("apart", "align"), [(48, 64), (6, 8), (33554434, 8), (3 << 19, 64), (2000002, 8), (1 << 21, 64)]
)
def test_a_vector_is_as_aligned_as_its_place_whatever_the_step(apart: int, align: int) -> None:
    """Steps beyond 2**20 elements were taken for multiples of it: aligned stores to places that are not crashed."""
    i = UOp.range(4, 0)
    p, q = (UOp.param(n, dtypes.float32, 4 * apart, align=64) for n in range(2))
    place = UOp(Ops.MUL, (i, UOp.const(dtypes.weakint, apart)))
    sink = UOp.sink(at(p, place, 4).store(at(q, place, 4).load()).end(i))
    text = HOST.render("k", linearize(assign_types(sink)).src)
    (store,) = [line for line in text.splitlines() if line.startswith("  store <4 x float>")]
    assert f"align {align}," in store


def test_a_maximum_is_a_few_instructions_and_keeps_nan() -> None:
    zero = UOp.const(dtypes.weakint, 0)
    loads = [at(UOp.param(i, dtypes.float32, 8), zero, 8).load() for i in (1, 2)]
    sink = UOp.sink(at(UOp.param(0, dtypes.float32, 8), zero, 8).store(UOp(Ops.MAX, tuple(loads))))
    asm = compile_ir_to_asm(HOST.render("k", linearize(assign_types(sink)).src))
    assert sum(word in asm for word in ("maxps", "cmpunordps")) == 2 and asm.count("\tv") <= 8


def test_errors_name_the_node_and_what_to_do() -> None:
    x = UOp.param(1, dtypes.float32, 1).index(UOp.const(dtypes.int64, 0)).load()
    address = UOp.param(0, dtypes.float32, 1).index(UOp.const(dtypes.int64, 0))
    with pytest.raises(RenderError, match="Ops.EXP2 on float32: decompose"):
        HOST.render("k", linearize(UOp.sink(address.store(UOp(Ops.EXP2, (x,))))).src)
    with pytest.raises(RenderError, match="no bfloat16|emulated|bfloat16"):
        HOST.render("k", linearize(UOp.sink(address.store(x.cast(dtypes.fp8e4m3)))).src)
    with pytest.raises(RenderError, match="a int32 is stored where float32 lies"):
        HOST.render("k", linearize(UOp.sink(address.store(x.cast(dtypes.int32)))).src)
    with pytest.raises(RenderError, match="is no name"):
        HOST.render("two words", [])
    with pytest.raises(RenderError, match="weakint"):
        HOST.render(
            "k", linearize(UOp.sink(address.store(UOp.range(4, 0).cast(dtypes.float32)).end(UOp.range(4, 0)))).src
        )


def test_what_the_renderer_supports() -> None:
    assert HOST.supports(Ops.ADD, dtypes.float32) and HOST.supports(Ops.LOAD, dtypes.uint8)
    assert not HOST.supports(Ops.SIN, dtypes.float32)
    assert not HOST.supports(Ops.ADD, dtypes.bfloat16)
    assert not HOST.supports(Ops.MULACC, dtypes.float16)
    assert LLVMRenderer(has_fma=False).supports(Ops.MULACC, dtypes.float32) is False


def test_the_text_is_the_same_in_every_process() -> None:
    code = "from tests.renderer.test_llvm import sample; print(sample())"
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": "."},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert len(seen) == 1


def sample() -> str:
    """Some kernel with several buffers, loops and register buffers."""
    i, k = UOp.range(5, 0), UOp.range(7, 1, AxisType.REDUCE)
    acc = UOp.buffer(0, dtypes.float32, 1, AddrSpace.REG)
    first = acc.after(i).index(0).store(UOp.const(dtypes.float32, 0.0))
    place = acc.after(first, k).index(0)
    loads = [UOp.param(s, dtypes.float32, 35).index(UOp(Ops.ADD, (i, k))).load() for s in (1, 2, 3)]
    total = place.load()
    for x in loads:
        total = UOp(Ops.ADD, (total, x))
    done = place.store(total).end(k)
    sink = UOp.sink(UOp.param(0, dtypes.float32, 5).index(i).store(acc.after(done).index(0).load()).end(i))
    return LLVMRenderer().render("k", linearize(assign_types(sink)).src)
