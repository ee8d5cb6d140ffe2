"""CHECK_OOB: kernels that stay inside their buffers are proved, others stop compilation with the index that leaves."""

from __future__ import annotations

import itertools
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aril.codegen import compile_kernel, lower_kernel
from aril.codegen.in_bounds import OutOfBounds, prove_accesses
from aril.codegen.linearize import linearize
from aril.config import Context
from aril.dtype import dtypes
from aril.jit import jit
from aril.ops import Ops
from aril.tensor import Tensor
from aril.uop import UOp
from tests.codegen import build as b
from tests.codegen.run import renderer
from tests.codegen.test_pipeline import KERNELS

POSITIONS = "gather rows"  # reads at positions from memory, which nothing bounds


@pytest.mark.parametrize("target", ["wide", "avx2"])
@pytest.mark.parametrize("name", [k for k in KERNELS if k != POSITIONS])
def test_every_access_of_optimised_kernels_is_proved(name, target):
    linear = linearize(lower_kernel(KERNELS[name]().sink, renderer(target)))
    prove_accesses(linear, name, 1)
    if target == "avx2" and len(linear.src) < 400:
        prove_accesses(linear, name, 2)


def kernel(*shape: int, size: int, index, gate=None) -> UOp:
    """out[i, j] = x[index(i, j)] where gate(i, j), else 0; x has `size` elements."""
    loops = b.Build().loops(*shape)
    address = index(*loops)
    if gate is None:
        value = UOp.param(1, dtypes.float32, size).index(address).load()
    else:
        value = UOp.param(1, dtypes.float32, size).index(address.valid(gate(*loops)))
        value = UOp(Ops.LOAD, (value, UOp.const(dtypes.float32, 0.0)))
    return b.sink(b.store(0, shape, loops, value), name="reads")


def is_proved(sink: UOp, level: int = 1) -> bool:
    with Context(CHECK_OOB=level):
        try:
            compile_kernel(sink, renderer("avx2"))
        except OutOfBounds:
            return False
    return True


@pytest.mark.parametrize("level", [1, 2])
def test_the_error_names_kernel_buffer_index_and_a_case(level):
    sink = kernel(40, size=40, index=lambda i: b.alu(Ops.ADD, i, 1))
    what = r"kernel reads: a LOAD of buffer 1 \(40 float32\)"
    with Context(CHECK_OOB=level), pytest.raises(OutOfBounds, match=what):
        compile_kernel(sink, renderer("avx2"))
    with pytest.raises(OutOfBounds, match=r"it is 40 where r0"):
        prove_accesses(linearize(lower_kernel(sink, renderer("avx2"))), "reads", level)


def test_stores_are_looked_at_too():
    i = b.Build().loop(9)
    out = UOp.param(0, dtypes.float32, 8).index(i).store(UOp.const(dtypes.float32, 1.0))
    assert not is_proved(b.sink(out.end(i)))


def test_a_gate_that_keeps_the_index_inside_is_enough():
    def shifted(i, j):
        return b.alu(Ops.ADD, b.alu(Ops.ADD, b.alu(Ops.MUL, i, 7), j), -8)

    assert not is_proved(kernel(9, 9, size=49, index=shifted))

    def inside(i, j):
        ends = [b.ge(i, 1), b.ge(j, 1), b.alu(Ops.CMPLT, i, 8), b.alu(Ops.CMPLT, j, 8)]
        return ends[0] & ends[1] & ends[2] & ends[3]

    assert is_proved(kernel(9, 9, size=49, index=shifted, gate=inside))
    assert not is_proved(kernel(9, 9, size=48, index=shifted, gate=inside))


@settings(max_examples=60)
@given(
    shape=st.tuples(st.integers(1, 6), st.integers(1, 9)),
    factors=st.tuples(st.integers(-3, 9), st.integers(-2, 3), st.integers(-4, 8)),
    division=st.tuples(st.sampled_from([Ops.FLOORDIV, Ops.FLOORMOD]), st.integers(1, 5)),
    limits=st.tuples(st.integers(-2, 12), st.integers(0, 40)),
    size=st.integers(1, 40),
)
def test_a_proof_is_found_exactly_where_no_case_leaves_the_buffer(shape, factors, division, limits, size):
    a, c, k = factors
    op, d = division

    def at(i, j):
        total = b.alu(Ops.ADD, b.alu(Ops.MUL, i, a), b.alu(op, b.alu(Ops.ADD, j, i), d))
        return b.alu(Ops.ADD, b.alu(Ops.ADD, total, b.alu(Ops.MUL, j, c)), k)

    def gate(i, j):
        return b.alu(Ops.CMPLT, b.alu(Ops.ADD, i, j), limits[0]) & b.alu(Ops.CMPLT, at(i, j), limits[1])

    divide = (lambda x: x // d) if op is Ops.FLOORDIV else (lambda x: x % d)
    cases = [(i, j, a * i + divide(i + j) + c * j + k) for i, j in itertools.product(*map(range, shape))]
    inside = all(0 <= at < size for i, j, at in cases if i + j < limits[0] and at < limits[1])
    assert is_proved(kernel(*shape, size=size, index=at, gate=gate)) is inside


def test_a_sum_that_wraps_is_not_taken_for_a_small_one():
    def wrapped(i):  # 0..299 in 8 bits are 0..127, then -128..
        return UOp(Ops.CAST, (UOp(Ops.CAST, (i,), None, dtypes.int8),), None, dtypes.weakint)

    assert not is_proved(kernel(300, size=300, index=wrapped))
    assert is_proved(kernel(300, size=300, index=lambda i: b.alu(Ops.MAX, wrapped(i), 0)))


def test_positions_from_memory_need_a_guard():
    assert not is_proved(KERNELS[POSITIONS]().sink)
    i = b.Build().loop(5)
    at = UOp(Ops.CAST, (b.load(2, (5,), i, dtype=dtypes.int32),), None, dtypes.weakint)
    inside = b.ge(at, 0) & b.alu(Ops.CMPLT, at, 9)
    value = UOp(Ops.LOAD, (UOp.param(1, dtypes.float32, 9).index(at.valid(inside)), UOp.const(dtypes.float32, 0.0)))
    assert is_proved(b.sink(b.store(0, (5,), [i], value)), 2)


def test_a_loop_that_a_condition_enters_is_under_that_condition():
    i = b.Build().loop(12)
    turn = UOp.range(UOp(Ops.WHERE, (b.alu(Ops.CMPLT, i, 8), b.num(1), b.num(0))), 7)
    effect = UOp.param(0, dtypes.float32, 8).after(turn).index(i).store(UOp.const(dtypes.float32, 1.0))
    with Context(SPEC=2):  # whatever steps were taken
        assert is_proved(b.sink(effect.end(turn).end(i)), 2)


def test_variables_stand_for_every_value_they_may_have():
    n = UOp.variable("n", 1, 10)
    i = UOp.range(n, 0)
    address = b.alu(Ops.ADD, i, b.alu(Ops.MUL, n, 2))
    value = UOp.const(dtypes.float32, 1.0)
    assert is_proved(b.sink(UOp.param(0, dtypes.float32, 30).index(address).store(value).end(i)), 2)
    assert not is_proved(b.sink(UOp.param(0, dtypes.float32, 29).index(address).store(value).end(i)))


def test_without_z3_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "z3", None)
    assert is_proved(kernel(4, size=4, index=lambda i: i))
    with Context(CHECK_OOB=1), pytest.raises(ImportError, match="pip install z3-solver"):
        compile_kernel(kernel(4, size=4, index=lambda i: b.alu(Ops.ADD, i, 1)), renderer("avx2"))
    with Context(CHECK_OOB=2), pytest.raises(ImportError, match="CHECK_OOB=2 asks z3 of every access"):
        compile_kernel(kernel(4, size=4, index=lambda i: i), renderer("avx2"))


def test_tensors_under_the_check_have_their_values():
    rng = np.random.default_rng(0)
    a = rng.standard_normal((9, 13)).astype(np.float32)
    picks = np.array([3, 8, 0, 3], np.int32)
    with Context(CHECK_OOB=1):
        x = Tensor(a).realize()
        np.testing.assert_array_equal(x.pad(((1, 2), (0, 3))).numpy(), np.pad(a, ((1, 2), (0, 3))))
        np.testing.assert_array_equal(x[Tensor(picks)].numpy(), a[picks])
        np.testing.assert_allclose((x @ x.T).numpy(), a.astype(float) @ a.T, rtol=1e-5, atol=1e-5)
        added = x.scatter_reduce(0, Tensor(picks).reshape(4, 1).expand(4, 13), x[:4], "sum")
        want = a.copy()
        np.add.at(want, picks, a[:4])
        np.testing.assert_allclose(added.numpy(), want, rtol=1e-6)
        doubled = jit(lambda t: (t * 2).realize())
        for _ in range(3):
            np.testing.assert_array_equal(doubled(x).numpy(), a * 2)


@pytest.mark.parametrize(("rows", "columns"), [(6, 5), (7, 9), (5, 34)])
def test_copies_that_share_a_block_of_a_padded_axis_do_not_read_before_it(rows, columns):
    """Lanes in steps of 2 over the turns of a kernel's columns: the block holds the pad of one of them."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 3, rows, columns)), rng.standard_normal((3, 1, 3, 2))
    around = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    seen = np.lib.stride_tricks.sliding_window_view(around, (3, 2), (2, 3))[:, :, ::2, ::2]
    with Context(CHECK_OOB=1):
        got = Tensor(x).realize().conv2d(Tensor(w).realize(), None, groups=3, stride=2, padding=1).numpy()
    np.testing.assert_allclose(got, (seen * w[None, :, 0, None, None]).sum((-1, -2)), rtol=1e-12, atol=1e-12)


def test_a_kernel_compiled_before_is_proved_when_the_check_is_asked_for():
    def past_the_end(out: UOp, x: UOp) -> UOp:
        i = UOp.range(4, 0)
        return out[i].store(x[(i + 1) // 2 * 2]).end(i).sink()

    def run() -> None:
        Tensor.custom_kernel(Tensor.empty(4), Tensor(np.ones(5, np.float32))[:4], fxn=past_the_end)[0].realize()

    with Context(CHECK_OOB=0):
        run()  # the fifth element is there, but not the kernel's
    with Context(CHECK_OOB=1), pytest.raises(OutOfBounds):
        run()


@pytest.mark.parametrize("size, inside", [(72, True), (71, False)])
def test_quotients_by_variables_are_asked_for_turn_by_turn(size, inside, monkeypatch):
    """z3 gives up on them: `roll` and `sort` over axes of variable length were refused."""
    monkeypatch.setattr("aril.codegen.in_bounds.TIMEOUT_MS", 20)
    n = UOp.variable("n", 6, 12)

    def rolled(i, j):
        flat = b.alu(Ops.ADD, b.alu(Ops.ADD, b.alu(Ops.MUL, i, n), j), -5)
        row, column = b.alu(Ops.CDIV, flat, n), b.alu(Ops.CMOD, flat, n)
        at = b.alu(Ops.ADD, b.alu(Ops.MUL, row, 12), column)
        return b.alu(Ops.MAX, at, 0)

    build = b.Build()
    i, j = build.loop(6), build.loop(n)
    value = UOp.param(1, dtypes.float32, size - 5).index(rolled(i, j)).load()
    assert is_proved(b.sink(b.store(0, (6, 12), [i, j], value), name="reads")) is inside
