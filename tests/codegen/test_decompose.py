"""Decompositions of integer division, powers, threefry, bool arithmetic and what a small target lacks, interpreted."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from aril.codegen.decompose import decompose, lower_operations
from aril.dtype import DType, dtypes, wrap
from aril.ops import OpGroup, Ops
from aril.renderer.base import Renderer
from aril.runtime.interpreter import interpret
from aril.uop import UOp

LACKING = {Ops.EXP2, Ops.LOG2, Ops.SIN, Ops.POW, Ops.FLOORDIV, Ops.FLOORMOD, Ops.THREEFRY}
CPU = Renderer(ops=OpGroup.ALU - LACKING)
LITTLE = {
    Ops.ADD, Ops.MUL, Ops.FDIV, Ops.CDIV, Ops.CMOD, Ops.SHL, Ops.SHR, Ops.AND, Ops.OR, Ops.XOR, Ops.CMPLT, Ops.CMPNE,
    Ops.WHERE, Ops.SQRT,
}  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def run(build: Callable[..., UOp], kinds: list[DType], *data: np.ndarray, target: Renderer = CPU) -> np.ndarray:
    n = data[0].size
    at = UOp.special(UOp.const(dtypes.int32, n), "gidx0")
    value = build(*[UOp.param(i + 1, d, n).index(at).load() for i, d in enumerate(kinds)])
    sink = decompose(UOp.sink(UOp.param(0, value.dtype, n).index(at).store(value)), target)
    assert not [u for u in sink.toposort() if u.op in OpGroup.ALU and u.op not in target.ops]
    out = np.zeros(n, value.dtype.name)
    interpret(list(sink.toposort()), [out, *[np.ascontiguousarray(d) for d in data]], chunks=n)
    return out


def numbers(dtype: DType) -> np.ndarray:
    rng = np.random.default_rng(0)
    info = np.iinfo(dtype.name)
    ends = np.array([info.min, info.max, info.max - 1, 0, 1, 2, 7, 8, 100]).astype(dtype.name)
    return np.concatenate(
        [ends, rng.integers(info.min, info.max, 200, dtype=dtype.name), np.arange(50).astype(dtype.name)]
    )


FUNCTIONS = {
    Ops.FLOORDIV: lambda x, y: x // y,
    Ops.FLOORMOD: lambda x, y: x % y,
    Ops.CDIV: lambda x, y: int(Fraction(x, y)),
    Ops.CMOD: lambda x, y: x - int(Fraction(x, y)) * y,
}


@pytest.mark.parametrize("op", FUNCTIONS, ids=lambda o: o.name)
@pytest.mark.parametrize("dtype", dtypes.ints, ids=lambda d: d.name)
def test_division_by_constants_and_variables(dtype, op):
    x = numbers(dtype)
    fn = FUNCTIONS[op]
    divisors = [1, 2, 3, 7, 8, 64, 100] + ([-1, -2, -7, -128] if dtype.kind == "i" else [])
    for d in divisors:
        got = run(lambda v, d=d: UOp(op, (v, v.const_like(d))), [dtype], x)
        assert got.tolist() == [wrap(fn(int(v), d), dtype) for v in x], d
    y = np.resize(np.array([*divisors, 0]).astype(dtype.name), x.size)
    got = run(lambda v, w: UOp(op, (v, w)), [dtype, dtype], x, y)
    assert got.tolist() == [wrap(fn(int(v), int(w)) if w else 0, dtype) for v, w in zip(x, y, strict=True)]


def test_indices_that_cannot_be_negative_divide_by_shifts_and_masks():
    i = UOp.range(1000, 0)
    shift = lower_operations(UOp(Ops.FLOORDIV, (i, UOp.const(dtypes.weakint, 8))), CPU)
    mask = lower_operations(UOp(Ops.FLOORMOD, (i, UOp.const(dtypes.weakint, 8))), CPU)
    plain = lower_operations(UOp(Ops.FLOORMOD, (i, UOp.const(dtypes.weakint, 10))), CPU)
    assert (shift.op, shift.src[1].arg, mask.op, mask.src[1].arg, plain.op) == (Ops.SHR, 3, Ops.AND, 7, Ops.CMOD)
    assert all(u.dtype is dtypes.weakint for u in (shift, mask, plain))


def test_a_long_chain_of_decompositions_does_not_recurse():
    x = UOp.param(0, dtypes.int32, 1).index(0).load()
    for k in range(3000):
        x = UOp(Ops.FLOORMOD, (UOp(Ops.ADD, (x, x.const_like(k))), x.const_like(k + 3)))
    out = lower_operations(x, CPU)
    assert Ops.FLOORMOD not in {u.op for u in out.toposort()}


@pytest.mark.parametrize("dtype", dtypes.ints, ids=lambda d: d.name)
def test_powers_of_integers(dtype):
    base = np.resize(
        np.array([0, 1, 2, 3, 5, 10, *([-1, -2, -3] if dtype.kind == "i" else [254])]).astype(dtype.name), 360
    )
    exponent = np.resize(np.array([0, 1, 2, 3, 7, 31, 63, 100, *([-1, -2] if dtype.kind == "i" else [])]), 360).astype(
        dtype.name
    )

    def power(b: int, e: int) -> int:
        if e >= 0:
            return b**e
        return 0 if abs(b) != 1 else b ** (-e)

    expected = [wrap(power(int(b), int(e)), dtype) for b, e in zip(base, exponent, strict=True)]
    assert run(lambda b, e: UOp(Ops.POW, (b, e)), [dtype, dtype], base, exponent).tolist() == expected
    cube = run(lambda b: UOp(Ops.POW, (b, b.const_like(3))), [dtype], base)
    assert cube.tolist() == [wrap(int(b) ** 3, dtype) for b in base]


def test_threefry_gives_the_published_numbers():
    # Random123's known answers (kat_vectors: threefry2x32, 20 rounds)
    x = np.array([0, 2**64 - 1, 0x85A308D3243F6A88], np.uint64)
    key = np.array([0, 2**64 - 1, 0x0370734413198A2E], np.uint64)
    got = run(lambda a, b: UOp(Ops.THREEFRY, (a, b)), [dtypes.uint64, dtypes.uint64], x, key)
    assert [hex(v) for v in got] == ["0x99ba4efe6b200159", "0xbb002be71cb996fc", "0x483df7a0c4923a9c"]


def test_arithmetic_on_bool_is_logic():
    a, b = np.array([False, False, True, True]), np.array([False, True, False, True])
    kinds = [dtypes.bool, dtypes.bool]
    rows = {Ops.ADD: a | b, Ops.MUL: a & b, Ops.MAX: a | b, Ops.SUB: a ^ b, Ops.CMPLT: ~a & b}
    for op, expected in rows.items():
        assert np.array_equal(run(lambda x, y, op=op: UOp(op, (x, y)), kinds, a, b), expected), op
    assert np.array_equal(run(lambda x, y: UOp(Ops.NEG, (x,)), kinds, a, b), a)


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64, dtypes.float16], ids=lambda d: d.name)
def test_a_target_with_little_has_everything(dtype):
    target = Renderer(ops=frozenset(LITTLE))
    rng = np.random.default_rng(1)
    special = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -2.5, 0.5, 60000.0, -0.25, 2.0**-24]
    x, y = (v.reshape(-1).astype(dtype.name) for v in np.meshgrid([*special, *rng.normal(0, 9, 20)], special))
    same = lambda a, b: np.array_equal(a, b, equal_nan=True) and np.array_equal(np.signbit(a), np.signbit(b))  # noqa: E731
    kinds = [dtype, dtype]
    wide, other = x.astype(np.float64), y.astype(np.float64)
    assert np.array_equal(run(lambda a, b: UOp(Ops.SUB, (a, b)), kinds, x, y, target=target), x - y, equal_nan=True)
    assert np.array_equal(run(lambda a, b: UOp(Ops.CMPEQ, (a, b)), kinds, x, y, target=target), x == y)
    numbers = ~np.isnan(x)
    assert same(run(lambda a, b: UOp(Ops.TRUNC, (a,)), kinds, x, y, target=target)[numbers], np.trunc(x)[numbers])
    assert same(run(lambda a, b: UOp(Ops.RECIPROCAL, (a,)), kinds, x, y, target=target)[numbers], (1 / x)[numbers])
    largest = run(lambda a, b: UOp(Ops.MAX, (a, b)), kinds, x, y, target=target)
    assert np.array_equal(largest, np.maximum(x, y), equal_nan=True)
    zeros = (x == 0) & (y == 0)
    assert np.array_equal(np.signbit(largest[zeros]), np.signbit(x[zeros]) & np.signbit(y[zeros]))
    whole = run(lambda a, b: UOp(Ops.FLOORDIV, (a, b)), kinds, x, y, target=target)
    finite = np.isfinite(wide) & np.isfinite(other) & (other != 0)
    assert np.array_equal(whole[finite], np.floor((x / y).astype(dtype.name))[finite])


def test_half_goes_through_float32():
    x = np.linspace(-12, 12, 999).astype(np.float16)
    half = dtypes.float16
    exp = run(lambda v: UOp(Ops.EXP2, (UOp(Ops.MUL, (v, UOp.lift(math.log2(math.e)))),)), [half], x)
    assert np.array_equal(exp, np.exp(x.astype(np.float64)).astype(np.float16))
    sine = run(lambda v: UOp(Ops.SIN, (v,)), [half], x)
    assert np.array_equal(sine, np.sin(x.astype(np.float64)).astype(np.float16))


def test_vectors_stay_vectors():
    x = UOp(Ops.SHRINK, (UOp.param(1, dtypes.float32, 8), UOp.const(dtypes.int32, 0)), (None, 8)).load()
    for op in (Ops.EXP2, Ops.LOG2, Ops.SIN):
        assert lower_operations(UOp(op, (x,)), CPU).shape == (8,)
    out, data = np.zeros(8, np.float32), np.arange(8, dtype=np.float32) / 2
    address = UOp(Ops.SHRINK, (UOp.param(0, dtypes.float32, 8), UOp.const(dtypes.int32, 0)), (None, 8))
    sink = decompose(UOp.sink(address.store(UOp(Ops.SIN, (x,)))), CPU)
    interpret(list(sink.toposort()), [out, data])
    assert np.allclose(out, np.sin(data), rtol=1e-6)
