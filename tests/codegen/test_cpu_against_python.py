"""Every operation in every dtype, compiled for this CPU and interpreted: the same results, special values included."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from aril.codegen import compile_kernel
from aril.device import CompiledKernel, Device
from aril.dtype import DType, dtypes, to_dtype
from aril.engine.compile import renderer_of
from aril.ops import Ops
from aril.runtime.interpreter import interpret
from aril.runtime.llvm import compile_ir
from aril.runtime.python import PythonRenderer
from aril.uop import KernelInfo, UOp

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
N = 403  # full vectors and a remainder


def storage(dtype: DType) -> np.dtype:
    return np.dtype(dtype.fmt) if dtype.fmt else np.dtype({1: np.uint8, 2: np.uint16}[dtype.itemsize])


def both(build: Callable[..., list[UOp]], kinds: list[DType], *data: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """The results of CPU and PYTHON for each value that `build` gives, as they lie in memory. One kernel for all."""
    at = UOp.range(N, 0)
    first = len(build(*[UOp.const(d, 1) for d in kinds]))  # outputs have the first slots
    out = build(*[UOp.param(first + i, d, N).index(at).load() for i, d in enumerate(kinds)])
    stores = [UOp.param(i, v.dtype, N).index(at).store(v) for i, v in enumerate(out)]
    sink = UOp.sink(UOp.group(*stores).end(at), arg=KernelInfo("test"))
    arrays = [np.ascontiguousarray(d) for d in data]
    native, interpreted = ([np.zeros(N, storage(v.dtype)) for v in out] for _ in range(2))
    program = compile_kernel(sink, renderer_of("CPU"))
    device = Device["CPU"]
    binary = compile_ir(program.source, device.target)
    kernel = CompiledKernel(program.name, binary, first + len(arrays), 0, program.scratch_bytes, program.chunks)
    device.load(kernel)([a.ctypes.data for a in (*native, *arrays)], wait=True)
    reference = compile_kernel(sink, PythonRenderer())
    interpret(reference.linear.src, [*interpreted, *arrays], chunks=reference.chunks)
    return list(zip(native, interpreted, strict=True))


def values(dtype: DType, seed: int) -> np.ndarray:
    """N values as they lie in memory: every kind of number the type has."""
    rng = np.random.default_rng(seed)
    if dtype.kind == "b":
        return rng.integers(0, 2, N).astype(bool)
    if dtype.kind in "iu":
        info = np.iinfo(dtype.name)
        some = rng.integers(info.min, info.max, N, dtype=dtype.name, endpoint=True)
        some[::3] = rng.integers(0, 9, some[::3].size)
        some[:4] = [info.min, info.max, 0, 1]
    elif dtype.fmt:
        some = rng.normal(0, 3, N).astype(dtype.name)
        some[:12] = [0.0, -0.0, math.inf, -math.inf, math.nan, 1, -1, 60000, 2.0**-24, -(2.0**-14), 0.5, 2.5]
    else:
        some = rng.integers(0, 1 << dtype.bits, N).astype(storage(dtype))
    rng.shuffle(some)
    return some


def number(x: np.ndarray, dtype: DType) -> np.ndarray:
    from aril.runtime.python_alu import decode

    return x if dtype.fmt else decode(x, dtype)


def same(a: np.ndarray, b: np.ndarray, dtype: DType) -> bool:
    a, b = number(a, dtype), number(b, dtype)
    if a.dtype.kind != "f":
        return bool(np.array_equal(a, b))
    nan = np.isnan(a) & np.isnan(b)
    return bool(np.all(nan | ((a == b) & (np.signbit(a) == np.signbit(b)))))


WHOLE = [Ops.ADD, Ops.SUB, Ops.MUL, Ops.MAX, Ops.AND, Ops.OR, Ops.XOR, Ops.CDIV, Ops.CMOD, Ops.FLOORDIV, Ops.FLOORMOD]
BINARY = {
    "b": [Ops.AND, Ops.OR, Ops.XOR, Ops.MAX, Ops.ADD, Ops.MUL],
    "i": [*WHOLE, Ops.POW],
    "u": [*WHOLE, Ops.POW],
    "f": [Ops.ADD, Ops.SUB, Ops.MUL, Ops.FDIV, Ops.MAX],
}
COMPARE = [Ops.CMPLT, Ops.CMPNE, Ops.CMPEQ]
UNARY = {"b": [], "i": [Ops.NEG], "u": [Ops.NEG], "f": [Ops.NEG, Ops.SQRT, Ops.RECIPROCAL, Ops.TRUNC]}


@pytest.mark.parametrize("dtype", dtypes.all, ids=lambda d: d.name)
def test_exact_operations(dtype):
    binary, unary = [*BINARY[dtype.kind], *COMPARE], UNARY[dtype.kind]

    def build(a: UOp, b: UOp, c: UOp) -> list[UOp]:
        chosen = UOp(Ops.WHERE, (UOp(Ops.CMPLT, (a, b)), b, c))
        return [chosen, *[UOp(op, (a, b)) for op in binary], *[UOp(op, (a,)) for op in unary]]

    pairs = both(build, [dtype] * 3, values(dtype, 1), values(dtype, 2), values(dtype, 3))
    names = [Ops.WHERE, *binary, *unary]
    kinds = [dtypes.bool if op in COMPARE else dtype for op in names]
    assert not [op for op, d, pair in zip(names, kinds, pairs, strict=True) if not same(*pair, d)]


@pytest.mark.parametrize("dtype", dtypes.ints, ids=lambda d: d.name)
def test_shifts_by_any_amount(dtype):
    amount = np.resize(np.arange(80), N).astype(dtype.name)
    shifts = both(lambda a, b: [UOp(Ops.SHL, (a, b)), UOp(Ops.SHR, (a, b))], [dtype, dtype], values(dtype, 1), amount)
    assert all(same(*pair, dtype) for pair in shifts)


@pytest.mark.parametrize("src", dtypes.all, ids=lambda d: d.name)
def test_casts(src):
    x = values(src, 4)
    if src in (dtypes.float32, dtypes.float64):
        ends = [127, 128, 255, 256, 3e4, 4e4, 7e4, 2**31, 2**32, 2**53, 2**63, 2**64, 1e30, 448, 464, 3e38, 1e-9, 65519]
        x[: 2 * len(ends)] = [*ends, *[-v for v in ends]]
    pairs = both(lambda a: [a.cast(d) for d in dtypes.all if d is not src], [src], x)
    others = [d for d in dtypes.all if d is not src]
    assert not [d.name for d, pair in zip(others, pairs, strict=True) if not same(*pair, d)]


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_functions_within_the_stated_ulp(name):
    dtype, names = to_dtype(name), [Ops.EXP2, Ops.LOG2, Ops.SIN, Ops.POW]
    lowest = 2 - 2 ** (dtype.exponent - 1)
    pairs = both(
        lambda a, b: [*[UOp(op, (a,)) for op in names[:3]], UOp(Ops.POW, (a, b))],
        [dtype, dtype],
        values(dtype, 5),
        values(dtype, 6),
    )
    for op, pair in zip(names, pairs, strict=True):
        got, expected = (number(v, dtype) for v in pair)
        for special in (np.isnan, np.isinf):
            assert np.array_equal(special(got), special(expected)), op
        usual = np.isfinite(expected)
        got, expected = got[usual].astype(np.float64), expected[usual].astype(np.float64)
        step = np.ldexp(1.0, np.maximum(np.frexp(expected)[1] - 1, lowest) - dtype.mantissa)
        assert np.all(np.abs(got - expected) <= 2 * step), op


def test_natural_exponentials_are_accurate_for_large_arguments():
    x = np.linspace(-87, 88, N).astype(np.float32)
    natural = lambda a: [UOp(Ops.EXP2, (UOp(Ops.MUL, (a, UOp.lift(1 / math.log(2)))),))]  # noqa: E731
    for got in both(natural, [dtypes.float32], x)[0]:
        exact = np.exp(x.astype(np.float64))
        assert np.max(np.abs(got - exact) / np.spacing(exact.astype(np.float32))) <= 1.0
