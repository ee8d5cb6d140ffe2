"""The interpreter of program form: memory, loops, masks, errors and its device."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from aril.device import Buffer, CompiledKernel, Device
from aril.dtype import dtypes
from aril.ops import Ops
from aril.runtime.interpreter import Interpreter, KernelError, interpret
from aril.runtime.python import PythonRenderer, assemble
from aril.uop import AddrSpace, UOp

I32 = dtypes.int32


def const(value: float, dtype=I32) -> UOp:
    return UOp.const(dtype, value)


def linear(*effects: UOp) -> list[UOp]:
    return list(UOp.sink(*effects).toposort())


def in_order(*steps: UOp) -> list[UOp]:
    """A program of `steps` in this order, each after what it needs and is not there yet."""
    out: dict[UOp, None] = {}
    for step in steps:
        out.update(step.toposort(lambda u: u not in out))
    return list(out)


def loop(end: UOp | int, n: int = 0) -> UOp:
    return UOp.range(end if isinstance(end, UOp) else const(end), n)


def test_a_loop_copies_elements():
    out, x, i = UOp.param(0, "float32", 5), UOp.param(1, "float32", 5), loop(5)
    store = out.index(i).store(UOp(Ops.MUL, (x.index(i).load(), const(2.0, dtypes.float32))))
    data, result = np.arange(5, dtype=np.float32), np.zeros(5, np.float32)
    interpret(linear(store.end(i)), [result, data])
    assert result.tolist() == [0, 2, 4, 6, 8]


def test_launch_indices_are_lanes_and_blocks_of_them_follow_each_other():
    n = 100_000
    out, g = UOp.param(0, I32, n), UOp.special(const(n), "gidx0")
    result = np.zeros(n, np.int32)
    interpret(linear(out.index(g).store(UOp(Ops.MUL, (g, g)))), [result], chunks=n)
    assert np.array_equal(result, (np.arange(n) ** 2).astype(np.int32))


def test_vectors_load_store_shrink_and_pick_lanes():
    out, x, g = UOp.param(0, I32, 12), UOp.param(1, I32, 12), UOp.special(const(3), "gidx0")
    start = UOp(Ops.MUL, (g, const(4)))
    v = UOp(Ops.SHRINK, (x, start), (None, 4)).load()
    reverse = UOp.vector(*[UOp(Ops.INDEX, (v, const(3 - k))) for k in range(4)])
    store = UOp(Ops.SHRINK, (out, start), (None, 4)).store(UOp(Ops.ADD, (reverse, const(1))))
    data, result = np.arange(12, dtype=np.int32), np.zeros(12, np.int32)
    interpret(linear(store), [result, data], chunks=3)
    assert result.tolist() == [4, 3, 2, 1, 8, 7, 6, 5, 12, 11, 10, 9]
    halves = [UOp(Ops.SHRINK, (v,), (k, 2)) for k in (0, 2)]
    total = UOp(Ops.ADD, tuple(halves))
    interpret(linear(UOp(Ops.SHRINK, (out, start), (None, 2)).store(total)), [result, data], chunks=3)
    assert result.reshape(3, 4)[:, :2].tolist() == [[2, 4], [10, 12], [18, 20]]


def test_gather_and_scatter():
    out, x = UOp.param(0, I32, 8), UOp.param(1, I32, 8)
    spots = UOp.vector(*[const(k) for k in (6, 0, 3)])
    data, result = np.arange(8, dtype=np.int32) * 10, np.zeros(8, np.int32)
    store = out.index(UOp.vector(*[const(k) for k in (1, 2, 7)])).store(x.index(spots).load())
    interpret(linear(store), [result, data])
    assert result.tolist() == [0, 60, 0, 0, 0, 0, 0, 30]


def test_a_register_accumulates_over_a_loop_for_every_lane():
    n, k = 4, 6
    out, x, g = UOp.param(0, "float32", n), UOp.param(1, "float32", n * k), UOp.special(const(n), "gidx0")
    acc, r = UOp.buffer(0, "float32", 1, AddrSpace.REG), loop(k)
    at = acc.index(const(0))
    start = at.store(const(0.0, dtypes.float32))
    element = x.index(UOp(Ops.ADD, (UOp(Ops.MUL, (g, const(k))), r))).load()
    before, after = at.load(), UOp(Ops.LOAD, (at,), "after")
    step = at.store(UOp(Ops.ADD, (before, element)))
    program = in_order(start, r, before, step.end(r), out.index(g).store(after))
    data = np.random.default_rng(0).standard_normal((n, k)).astype(np.float32)
    result = np.zeros(n, np.float32)
    interpret(program, [result, data.reshape(-1)], chunks=n)
    assert np.allclose(result, data.sum(1))


def test_local_memory_belongs_to_a_lane():
    out, g = UOp.param(0, I32, 3), UOp.special(const(3), "gidx0")
    local = UOp.buffer(0, I32, 2, AddrSpace.LOCAL)
    spot = local.index(const(1))
    barrier = UOp(Ops.BARRIER)
    program = in_order(spot.store(UOp(Ops.MUL, (g, const(7)))), barrier, out.index(g).store(spot.load()))
    result = np.zeros(3, np.int32)
    interpret(program, [result], chunks=3)
    assert result.tolist() == [0, 7, 14]


def test_gated_loads_give_the_alternative_and_gated_stores_nothing():
    out, x, g = UOp.param(0, I32, 6), UOp.param(1, I32, 4), UOp.special(const(6), "gidx0")
    inside = UOp(Ops.CMPLT, (g, const(4)))
    value = x.index(g).load(const(-1), inside)
    result = np.zeros(6, np.int32)
    interpret(linear(out.index(g).store(value)), [result, np.arange(4, dtype=np.int32)], chunks=6)
    assert result.tolist() == [0, 1, 2, 3, -1, -1]
    interpret(linear(x.index(g).store(const(9), inside)), [result, data := np.zeros(4, np.int32)], chunks=6)
    assert data.tolist() == [9] * 4


def test_if_masks_lanes_and_nests():
    out, g = UOp.param(0, I32, 8), UOp.special(const(8), "gidx0")
    low, odd = UOp(Ops.CMPLT, (g, const(5))), UOp(Ops.CMPEQ, (UOp(Ops.AND, (g, const(1))), const(1)))
    first, second = UOp(Ops.IF, (low,)), UOp(Ops.IF, (odd,))
    store = out.index(g).store(g)
    program = in_order(low, odd, first, second, store, UOp(Ops.ENDIF, (second,)), UOp(Ops.ENDIF, (first,)))
    result = np.full(8, -1, np.int32)
    interpret(program, [result], chunks=8)
    assert result.tolist() == [-1, 1, -1, 3, -1, -1, -1, -1]


def test_a_loop_with_a_condition_stops_each_lane_by_itself():
    # the number of halvings until a value is below 1
    out, x, g = UOp.param(0, I32, 4), UOp.param(1, "float32", 4), UOp.special(const(4), "gidx0")
    value, count = UOp.buffer(0, "float32", 1, AddrSpace.REG), UOp.buffer(1, I32, 1, AddrSpace.REG)
    zero = const(0)
    v, c, r = value.index(zero), count.index(zero), loop(100)
    half = UOp(Ops.MUL, (v.load(), const(0.5, dtypes.float32)))
    step_v, step_c = v.store(half), c.store(UOp(Ops.ADD, (c.load(), const(1))))
    again = UOp(Ops.CMPLT, (const(1.0, dtypes.float32), half))
    init = [v.store(x.index(g).load()), c.store(zero)]
    end = UOp.group(step_v, step_c).end(r, condition=again)
    last = UOp(Ops.LOAD, (c,), "last")
    program = in_order(*init, r, half, step_v, step_c, end, out.index(g).store(last))
    result = np.zeros(4, np.int32)
    interpret(program, [result, np.array([1.5, 5, 100, 1000], np.float32)], chunks=4)
    assert result.tolist() == [1, 3, 7, 10]


def test_loops_whose_end_differs_between_lanes():
    out, g = UOp.param(0, I32, 5), UOp.special(const(5), "gidx0")
    r = loop(g)
    result = np.zeros(5, np.int32)
    interpret(linear(out.index(g).store(UOp(Ops.ADD, (r, const(1)))).end(r)), [result], chunks=5)
    assert result.tolist() == [0, 1, 2, 3, 4]


def test_atomics_of_many_lanes_on_one_element():
    out, g = UOp.param(0, I32, 2), UOp.special(const(100), "gidx0")
    add = UOp(Ops.ATOMIC, (out.index(UOp(Ops.AND, (g, const(1)))), g), (Ops.ADD, "relaxed", "device"))
    result = np.zeros(2, np.int32)
    interpret(linear(add), [result], chunks=100)
    assert result.tolist() == [sum(range(0, 100, 2)), sum(range(1, 100, 2))]


def test_variables_by_name_and_in_the_order_of_names():
    b, a = UOp.variable("b", 0, 10, I32), UOp.variable("a", 0, 10, I32)
    out = UOp.param(0, I32, 1)
    program = linear(out.index(const(0)).store(UOp(Ops.SUB, (b, a))))
    result = np.zeros(1, np.int32)
    interpret(program, [result], {"a": 3, "b": 8})
    assert result[0] == 5
    interpret(program, [result], [1, 9])
    assert result[0] == 8
    with pytest.raises(KernelError, match="takes 2 variables, not 1"):
        interpret(program, [result], [1])


def test_an_access_out_of_bounds_names_kernel_buffer_index_and_loop():
    out, x, i = UOp.param(0, I32, 8), UOp.param(1, I32, 4), loop(8, 3)
    program = linear(out.index(i).store(x.index(i).load()).end(i))
    with pytest.raises(KernelError, match=r"copy8: a LOAD at index 4 is outside buffer 1 of 4 int32 .*loops \(3,\)=4"):
        interpret(program, [np.zeros(8, np.int32), np.zeros(4, np.int32)], name="copy8")


def test_what_is_not_for_this_target_is_refused():
    custom = UOp(Ops.CUSTOM, (), ("asm volatile", dtypes.void), dtypes.void)
    with pytest.raises(KernelError, match="inline source"):
        Interpreter([custom])
    with pytest.raises(KernelError, match="WMMA"):
        Interpreter([UOp(Ops.WMMA, (), None, dtypes.float32)])
    with pytest.raises(KernelError, match="no EXP2 on int32"):
        Interpreter(linear(UOp(Ops.EXP2, (const(1),))))
    with pytest.raises(KernelError, match="RANGE is never closed"):
        Interpreter(linear(loop(3)))
    with pytest.raises(KernelError, match="buffer 0 has 3 elements, the kernel uses 8"):
        interpret(linear(UOp.param(0, I32, 8).index(const(0)).store(const(1))), [np.zeros(3, np.int32)])


@pytest.mark.parametrize("dtype", ["bfloat16", "fp8e4m3", "fp8e5m2", "float16", "bool"])
def test_memory_of_every_format(dtype):
    ml = pytest.importorskip("ml_dtypes")
    kind = {"bfloat16": ml.bfloat16, "fp8e4m3": ml.float8_e4m3fn, "fp8e5m2": ml.float8_e5m2}.get(dtype, dtype)
    data = np.array([0, 1, 1.75, 3, 100]).astype(kind)
    out, x, g = UOp.param(0, dtype, 5), UOp.param(1, dtype, 5), UOp.special(const(5), "gidx0")
    value = x.index(g).load()
    result = np.zeros(5, kind)
    interpret(linear(out.index(g).store(UOp(Ops.MUL, (value, value)))), [result, data], chunks=5)
    with np.errstate(all="ignore"):
        assert np.array_equal(result, data & data if dtype == "bool" else data * data, equal_nan=dtype != "bool")


def test_the_device_runs_a_program_from_its_bytes():
    n = 6
    out, x, g = UOp.param(0, I32, n), UOp.param(1, I32, n), UOp.special(const(n), "gidx0")
    kernel = assemble("negate", linear(out.index(g).store(UOp(Ops.NEG, (x.index(g).load(),)))), 2, chunks=n)
    device = Device["PYTHON"]
    result, data = Buffer("PYTHON", n, I32).allocate(), Buffer("PYTHON", n, I32)
    data.copyin(memoryview(np.arange(n, dtype=np.int32)))
    seconds = device.load(kernel)([result.opaque, data.opaque], wait=True)
    assert seconds is not None and seconds > 0
    assert np.frombuffer(result.as_memoryview(), np.int32).tolist() == [0, -1, -2, -3, -4, -5]
    assert "v1: int32 = NEG(v0)" in PythonRenderer().render("negate", linear(UOp(Ops.NEG, (const(1),))))


@pytest.mark.parametrize("what", [b"\x7fELF", b"[]", b"[[], [0]]", b'[[["EXEC", null, [], null, null]], [0]]', None])
def test_a_program_from_elsewhere_is_refused_and_not_executed(what, tmp_path):
    class Hostile:
        def __reduce__(self):
            return open, (str(tmp_path / "proof"), "w")

    binary = pickle.dumps(Hostile()) if what is None else what
    with pytest.raises(KernelError, match="not a program of PYTHON"):
        Device["PYTHON"].load(CompiledKernel("bad", binary, 1))
    assert not list(tmp_path.iterdir())


def test_inline_source_of_another_language_is_no_program():
    with pytest.raises(KernelError, match="CUSTOM has no form"):
        assemble("asm", [UOp(Ops.CUSTOM, (), "nop", dtypes.void)], 0)
