"""Missing dtypes in float32: formats, rounding, casts and arithmetic against ml_dtypes, through the interpreter."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from aril.codegen import emulate as em
from aril.codegen.decompose import decompose
from aril.codegen.typing import assign_types
from aril.config import Context
from aril.dtype import DType, dtypes
from aril.ops import Ops
from aril.renderer.base import Renderer
from aril.runtime.interpreter import interpret
from aril.uop import UOp
from aril.uop.composed import composed

SMALL = {
    dtypes.bfloat16: ml_dtypes.bfloat16, dtypes.fp8e4m3: ml_dtypes.float8_e4m3fn, dtypes.fp8e5m2: ml_dtypes.float8_e5m2,
    dtypes.fp8e4m3fnuz: ml_dtypes.float8_e4m3fnuz, dtypes.fp8e5m2fnuz: ml_dtypes.float8_e5m2fnuz,
    dtypes.float16: np.float16,
}  # fmt: skip
FORMATS = pytest.mark.parametrize("dtype", SMALL, ids=lambda d: d.name)
TARGET = Renderer(dtypes=frozenset(d for d in dtypes.all if d not in SMALL))
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def kernel(build: Callable[..., UOp], kinds: list[DType], n: int) -> UOp:
    """A kernel over n elements: out = build(inputs)."""
    at = UOp.range(n, 0)
    inputs = [UOp.param(i + 1, d, n).index(at).load() for i, d in enumerate(kinds)]
    value = build(*inputs)
    return UOp.sink(UOp.param(0, value.dtype, n).index(at).store(value).end(at))


def run(build: Callable[..., UOp], kinds: list[DType], *data: np.ndarray) -> np.ndarray:
    """`build` without the small dtypes, interpreted with a launch index in the place of the loop."""
    n = data[0].size
    at = UOp.special(UOp.const(dtypes.int32, n), "gidx0")
    inputs = [UOp.param(i + 1, d, n).index(at).load() for i, d in enumerate(kinds)]
    value = build(*inputs)
    sink = decompose(UOp.sink(UOp.param(0, value.dtype, n).index(at).store(value)), TARGET)
    assert not {u.dtype for u in sink.toposort()} & set(SMALL)
    out = np.zeros(n, SMALL.get(value.dtype) or np.dtype(value.dtype.name))
    interpret(list(sink.toposort()), [out, *[np.ascontiguousarray(d) for d in data]], chunks=n)
    return out


def same(a: np.ndarray, b: np.ndarray) -> bool:
    a, b = a.astype(np.float64), b.astype(np.float64)
    return bool(np.all((np.isnan(a) & np.isnan(b)) | ((a == b) & (np.signbit(a) == np.signbit(b)))))


def every(dtype: DType) -> np.ndarray:
    unsigned = np.uint8 if dtype.itemsize == 1 else np.uint16
    return np.arange(1 << dtype.bits).astype(unsigned).view(SMALL[dtype])


def hard_singles() -> np.ndarray:
    rng = np.random.default_rng(1)
    special = [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        448,
        464,
        465,
        57344,
        61440,
        65504,
        65519,
        65520,
        3.4e38,
        1e-9,
        1e-45,
    ]
    return np.concatenate([
        (rng.standard_normal(20000) * 2.0 ** rng.integers(-24, 20, 20000)).astype(np.float32),
        rng.integers(0, 2**32, 20000, dtype=np.uint32).view(np.float32), np.array(special, np.float32),
    ])  # fmt: skip


def positive_numbers(dtype: DType) -> np.ndarray:
    """The finite numbers from 0 up in the order of their codes, and the one that would follow the last."""
    numbers = every(dtype).astype(np.float64)[: 1 << (dtype.bits - 1)]
    numbers = numbers[np.isfinite(numbers)]
    return np.append(numbers, 2 * numbers[-1] - numbers[-2])


def nearest(x: np.ndarray, grid: np.ndarray, dtype: DType) -> np.ndarray:
    """The nearest number of the format, of two equally near the one of even code; ml_dtypes rounds doubles twice."""
    size = np.minimum(np.abs(x), grid[-1])
    high = np.clip(np.searchsorted(grid, size), 1, grid.size - 1)
    below, above = size - grid[high - 1], grid[high] - size
    pick = np.where((above < below) | ((above == below) & (high % 2 == 0)), high, high - 1)
    over = np.inf if np.isinf(every(dtype).astype(np.float64)).any() else np.nan
    out = np.where(pick == grid.size - 1, over, grid[pick])
    out = np.copysign(np.where(np.isnan(x), np.nan, np.where(np.isinf(x), over, out)), x)
    return np.where(out == 0, 0.0, out) if dtype.name.endswith("fnuz") else out


@FORMATS
def test_every_value_widens_and_comes_back(dtype):
    x = every(dtype)
    wide = run(lambda v: v.cast(dtypes.float32), [dtype], x)
    assert same(wide, x.astype(np.float32))
    assert same(run(lambda v: v.cast(dtype), [dtypes.float32], wide), x)
    assert same(run(lambda v: v, [dtype], x), x)


@FORMATS
def test_singles_and_doubles_round_once(dtype):
    x = hard_singles()
    assert same(run(lambda v: v.cast(dtype), [dtypes.float32], x), x.astype(SMALL[dtype]))
    grid = positive_numbers(dtype)
    ties = (grid[1:] + grid[:-1]) / 2
    around = np.concatenate([ties, np.nextafter(ties, np.inf), np.nextafter(ties, 0), x.astype(np.float64)])
    around = np.concatenate([around, -around])
    got = run(lambda v: v.cast(dtype), [dtypes.float64], around).astype(np.float64)
    assert same(got, nearest(around, grid, dtype))


@FORMATS
@pytest.mark.parametrize("op", [Ops.ADD, Ops.MUL, Ops.FDIV, Ops.SUB, Ops.MAX], ids=lambda o: o.name)
def test_arithmetic(dtype, op):
    rng = np.random.default_rng(2)
    codes = every(dtype)
    a, b = codes[rng.integers(0, codes.size, 30000)], codes[rng.integers(0, codes.size, 30000)]
    fn = {Ops.ADD: np.add, Ops.MUL: np.multiply, Ops.FDIV: np.true_divide, Ops.SUB: np.subtract, Ops.MAX: np.maximum}[
        op
    ]
    expected = fn(a.astype(np.float32), b.astype(np.float32)).astype(SMALL[dtype])
    got = run(lambda x, y: UOp(op, (x, y)), [dtype, dtype], a, b)
    if op is Ops.MAX:  # the sign of the greater of two zeros is not NumPy's to say
        got, expected = got.astype(np.float32) + 0, expected.astype(np.float32) + 0
    assert same(got, expected)


@FORMATS
def test_constants_comparisons_and_selection(dtype):
    x = every(dtype)
    wide = x.astype(np.float32)
    third = np.array(1 / 3).astype(SMALL[dtype]).astype(np.float32)
    weak = UOp.lift(1 / 3)
    assert same(run(lambda v: UOp(Ops.MUL, (v, weak)), [dtype], x), (wide * third).astype(SMALL[dtype]))
    less = run(lambda v: UOp(Ops.CMPLT, (v, weak)), [dtype], x)
    assert np.array_equal(less, wide < third)
    chosen = run(lambda v: UOp(Ops.WHERE, (UOp(Ops.CMPLT, (v, weak)), v, UOp(Ops.NEG, (v,)))), [dtype], x)
    assert same(chosen, np.where(wide < third, wide, -wide).astype(SMALL[dtype]))


@FORMATS
@pytest.mark.parametrize("kind", ["bool", "int8", "uint16", "int32", "uint32", "int64", "uint64"])
def test_integers(dtype, kind):
    rng = np.random.default_rng(3)
    source = np.dtype(kind)
    if kind == "bool":
        x = np.array([False, True])
    else:
        info = np.iinfo(source)
        shifts = rng.integers(0, info.bits, 5000).astype(source)
        spread = rng.integers(info.min, info.max, 5000, dtype=source, endpoint=True) >> shifts
        x = np.concatenate([spread, np.array([0, 1, info.max, info.min]).astype(source)])
    got = run(lambda v: v.cast(dtype), [getattr(dtypes, kind)], x)
    grid = positive_numbers(dtype).astype(np.longdouble)  # which holds 64-bit integers
    assert same(got, nearest(x.astype(np.longdouble), grid, dtype))
    back = run(lambda v: v.cast(getattr(dtypes, kind)), [dtype], every(dtype))
    values = every(dtype).astype(np.float64)
    if kind == "bool":
        assert np.array_equal(back, values != 0)
    else:
        clipped = np.clip(
            np.nan_to_num(np.trunc(values), nan=0.0, posinf=1e30, neginf=-1e30), float(info.min), float(info.max)
        )
        top = clipped >= float(info.max)
        assert np.array_equal(back, np.where(top, info.max, np.where(top, 0, clipped).astype(source)))


@FORMATS
def test_bits_come_and_go(dtype):
    unsigned = dtypes.uint8 if dtype.itemsize == 1 else dtypes.uint16
    codes = np.arange(1 << dtype.bits).astype(unsigned.name)
    assert np.array_equal(run(lambda v: v.bitcast(dtype), [unsigned], codes).view(codes.dtype), codes) or same(
        codes.view(SMALL[dtype]), run(lambda v: v.bitcast(dtype), [unsigned], codes)
    )
    numbers = ~np.isnan(every(dtype).astype(np.float32))
    assert np.array_equal(run(lambda v: v.bitcast(unsigned), [dtype], every(dtype))[numbers], codes[numbers])


def test_functions_are_rounded_from_float32():
    x = every(dtypes.bfloat16)
    exp = run(lambda v: composed(Ops.EXP2, v), [dtypes.bfloat16], x)
    exact = np.exp(x.astype(np.float64)).astype(np.float32).astype(ml_dtypes.bfloat16)
    a, b = exp.view(np.int16).astype(int), exact.view(np.int16).astype(int)
    numbers = ~np.isnan(exact.astype(np.float32))
    assert np.abs(a - b)[numbers].max() <= 1 and np.isnan(exp[~numbers].astype(np.float32)).all()
    got = run(lambda v: composed(Ops.SIN, v), [dtypes.bfloat16], x)
    want = np.cos(x.astype(np.float64)).astype(np.float32).astype(ml_dtypes.bfloat16)
    numbers = ~np.isnan(want.astype(np.float32))
    assert np.array_equal(got[numbers], want[numbers]) and np.isnan(got[~numbers].astype(np.float32)).all()


def test_gates_alternatives_registers_and_the_setting():
    from aril.uop import AddrSpace

    n, d = 6, dtypes.bfloat16
    at = UOp.range(n, 0)
    inside = UOp(Ops.CMPLT, (at, UOp.lift(4)))
    value = UOp.param(1, d, 4).index(at.valid(inside)).load(UOp.const(d, -1.5))
    sink = UOp.sink(UOp.param(0, d, n).index(at).store(value).end(at))
    low = assign_types(decompose(sink, TARGET))
    out = np.zeros(n, ml_dtypes.bfloat16)
    interpret(list(low.toposort()), [out, np.arange(4).astype(ml_dtypes.bfloat16)])
    assert out.astype(float).tolist() == [0, 1, 2, 3, -1.5, -1.5]
    reg = UOp.buffer(0, d, 1, AddrSpace.REG)
    assert em._replace(reg, (), {}, {d}).dtype is dtypes.float32
    half = UOp.sink(UOp.param(0, dtypes.float16, 1).index(0).store(UOp.const(dtypes.float16, 1)))
    assert em.emulate(half, Renderer()) is half
    with Context(EMULATED_DTYPES="float16, bfloat16"):
        assert dtypes.float16 not in {u.dtype for u in em.emulate(half, Renderer()).toposort()}
    with Context(EMULATED_DTYPES="float64"), pytest.raises(ValueError, match="float64 cannot be emulated"):
        em.emulate(half, Renderer())


def test_what_is_only_moved_keeps_its_bits():
    """A copy, a pick and a choice are moves of whole numbers: nothing is decoded, and NaNs keep their bits."""
    d, n = dtypes.bfloat16, 8
    at, x = UOp.range(n, 0), UOp.param(1, d, n)
    value = UOp(Ops.WHERE, (UOp(Ops.CMPLT, (at, UOp.const(dtypes.weakint, 6))), x.index(at).load(), UOp.const(d, 1.0)))
    low = assign_types(decompose(UOp.sink(UOp.param(0, d, n).index(at).store(value).end(at)), TARGET))
    assert not any(u.dtype is dtypes.float32 for u in low.toposort())
    bits = np.array([0, 0x8000, 0x7FC1, 0xFF81, 1, 0x3F80, 7, 7], np.uint16)
    out = np.zeros(n, np.uint16)
    interpret(list(low.toposort()), [out, bits])
    assert out.tolist() == [0, 0x8000, 0x7FC1, 0xFF81, 1, 0x3F80, 0x3F80, 0x3F80]


def test_a_weak_number_beside_a_moved_value_is_a_value():
    d, n = dtypes.bfloat16, 4
    at, x = UOp.range(n, 0), UOp.param(1, d, n)
    value = UOp(Ops.WHERE, (UOp(Ops.CMPLT, (at, UOp.const(dtypes.weakint, 2))), x.index(at).load(), UOp.lift(3.0)))
    low = assign_types(decompose(UOp.sink(UOp.param(0, d, n).index(at).store(value).end(at)), TARGET))
    out = np.zeros(n, np.uint16)
    interpret(list(low.toposort()), [out, np.array([1, 2, 3, 4], np.uint16)])
    assert out.tolist() == [1, 2, 0x4040, 0x4040]
