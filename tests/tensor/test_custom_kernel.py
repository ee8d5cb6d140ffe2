"""Hand-written kernels between others: what they compute and write, their gradients, their order, their errors."""

from __future__ import annotations

import re
import threading

import numpy as np
import pytest

from aril.codegen import compile_kernel
from aril.dtype import dtypes
from aril.engine.compile import renderer_of
from aril.jit import jit
from aril.ops import Ops
from aril.renderer.base import RenderError
from aril.schedule.custom import KernelFormError, is_parallel, kernel_form
from aril.schedule.lower import lower
from aril.tensor import Tensor, Variable
from aril.uop import AddrSpace, AxisType, KernelInfo, UOp

DEVICES = ("CPU", "PYTHON")


def add_one(out: UOp, x: UOp) -> UOp:
    out, x = out.flatten(), x.flatten()
    i = UOp.range(x.numel(), 0)
    return out[i].store(x[i] + 1).end(i).sink(arg=KernelInfo(name="add_one"))


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("device", DEVICES)
def test_a_kernel_stands_between_other_kernels(device):
    a = numbers(3, 4)
    x = Tensor(a, device=device) * 2
    out = Tensor.custom_kernel(Tensor.empty(3, 4, device=device), x, fxn=add_one)[0]
    np.testing.assert_allclose((out.permute(1, 0) * 3).numpy(), (a * 2 + 1).T * 3, rtol=1e-6)


def test_nothing_is_computed_before_a_value_is_asked_for():
    out = Tensor.custom_kernel(Tensor.empty(4), Tensor(np.zeros(4, np.float32)), fxn=add_one)[0]
    assert out.uop.op is not Ops.BUFFER
    np.testing.assert_array_equal(out.numpy(), np.ones(4))


def test_a_part_of_storage_is_written_in_place():
    x = Tensor(np.zeros((4, 3), np.float32)).realize()
    row = x[2]
    Tensor.custom_kernel(row, Tensor(np.float32([1, 2, 3])), fxn=add_one)
    want = np.zeros((4, 3))
    want[2] = [2, 3, 4]
    np.testing.assert_array_equal(x.numpy(), want)


def test_readers_of_the_old_contents_see_them():
    def double(x: UOp) -> UOp:
        i = UOp.range(x.numel(), 0)
        return x[i].store(x[i] * 2).end(i).sink()

    a = numbers(16)
    x = Tensor(a).realize()
    before = x + 0.5
    Tensor.custom_kernel(x, fxn=double)
    after = x + 0.5
    Tensor.custom_kernel(x, fxn=double)
    np.testing.assert_allclose(after.numpy(), a * 2 + 0.5, rtol=1e-6)
    np.testing.assert_allclose(before.numpy(), a + 0.5, rtol=1e-6)
    np.testing.assert_allclose(x.numpy(), a * 4, rtol=1e-6)


def test_two_results_of_one_kernel_run_it_once():
    def count(total: UOp, copy: UOp, x: UOp) -> UOp:
        i = UOp.range(x.numel(), 0)
        return UOp.group(copy[i].store(x[i]), total[0].store(total[0] + x[i])).end(i).sink()

    a = numbers(8)
    total, copy, _ = Tensor.custom_kernel(Tensor.zeros(1), Tensor.empty(8), Tensor(a), fxn=count)
    np.testing.assert_allclose(copy.numpy(), a)
    np.testing.assert_allclose(total.numpy(), [a.sum()], rtol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_turns_that_depend_on_each_other_keep_their_order(device):
    def scan(x: UOp) -> UOp:
        i = UOp.range(x.numel() - 1, 0)
        return x[i + 1].store(x[i] + x[i + 1]).end(i).sink()

    a = np.arange(300, dtype=np.float32)
    x = Tensor.custom_kernel(Tensor(a, device=device), fxn=scan)[0]
    np.testing.assert_array_equal(x.numpy(), np.cumsum(a))


@pytest.mark.parametrize("device", DEVICES)
def test_lanes_meet_at_a_barrier(device):
    def reverse(out: UOp, x: UOp) -> UOp:
        rows, n = x.shape
        g, lane = UOp.range(rows, 0, AxisType.GLOBAL), UOp.range(n, 1, AxisType.LOCAL)
        s = UOp.placeholder((n,), dtypes.float32, 0, AddrSpace.LOCAL)
        s = s.after(UOp.barrier(s[lane].store(x[g, lane])))
        return out[g, lane].store(s[n - 1 - lane]).end(g, lane).sink()

    a = numbers(5, 8)
    out = Tensor.custom_kernel(Tensor.empty(5, 8, device=device), Tensor(a, device=device), fxn=reverse)[0]
    np.testing.assert_array_equal(out.numpy(), a[:, ::-1])


@pytest.mark.parametrize("device", DEVICES)
def test_a_loop_around_a_barrier_is_gone_through_by_all_lanes_together(device):
    n = 16

    def scan(out: UOp, x: UOp) -> UOp:  # Hillis and Steele's prefix sum, two rows of LOCAL memory in turns
        lane, step = UOp.range(n, 0, AxisType.LOCAL), UOp.range(4, 1)
        s = UOp.placeholder((2, n), dtypes.float32, 0, AddrSpace.LOCAL)
        filled = s.after(UOp.barrier(s[0, lane].store(x[lane])))
        shift = UOp.const(dtypes.int32, 1) << step.cast(dtypes.int32)
        now, then = step % 2, (step + 1) % 2
        inside = filled.after(step)
        far = lane.cast(dtypes.int32) >= shift
        other = inside[now, (lane - shift.cast(dtypes.weakint)).maximum(0)].load()
        value = inside[now, lane].load() + far.where(other, 0.0)
        rounds = UOp.barrier(inside[then, lane].store(value)).end(step)
        return out[lane].store(filled.after(rounds)[0, lane]).end(lane).sink()

    a = numbers(n)
    out = Tensor.custom_kernel(Tensor.empty(n, device=device), Tensor(a, device=device), fxn=scan)[0]
    np.testing.assert_allclose(out.numpy(), np.cumsum(a.astype(np.float64)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_atomics_add_from_every_chunk(device):
    def histogram(out: UOp, idx: UOp) -> UOp:
        i = UOp.range(idx.numel(), 0, AxisType.GLOBAL)
        return out[idx[i]].atomic(Ops.ADD, 1).end(i).sink()

    idx = np.random.default_rng(3).integers(0, 7, 500).astype(np.int32)
    out = Tensor.zeros(7, dtype=dtypes.int32, device=device)
    out = Tensor.custom_kernel(out, Tensor(idx, device=device), fxn=histogram)[0]
    np.testing.assert_array_equal(out.numpy(), np.bincount(idx, minlength=7))


@pytest.mark.parametrize("device", DEVICES)
def test_a_loop_goes_on_while_its_condition_holds(device):
    def collatz(out: UOp, n: UOp) -> UOp:
        i, r = UOp.range(n.numel(), 0), UOp.loop(1)
        v = UOp.placeholder((2,), dtypes.int32, 0, AddrSpace.REG).after(i)
        v = v.after(v[0].store(n[i]), v[1].store(0))
        w = v.after(r)
        c = w[0].load()
        turn = UOp.group(w[0].store((c % 2).eq(0).where(c // 2, c * 3 + 1)), w[1].store(w[1] + 1))
        end = turn.end(r, condition=v.after(turn)[0] > 1)
        return out[i].store(v.after(end)[1]).end(i).sink()

    n = Tensor(np.int32([2, 3, 6, 7, 27]), device=device)
    out = Tensor.custom_kernel(Tensor.empty(5, dtype=dtypes.int32, device=device), n, fxn=collatz)[0]
    assert out.tolist() == [1, 7, 8, 16, 111]


def test_inline_source_is_for_renderers_of_its_language():
    def square(out: UOp, x: UOp) -> UOp:
        i = UOp.range(x.numel(), 0)
        value = UOp(Ops.CUSTOMI, (x[i],), ("fmul {t0} {0}, {0}", dtypes.float32, "llvm"), dtypes.float32)
        return out[i].store(value).end(i).sink()

    a = numbers(10)
    out = Tensor.custom_kernel(Tensor.empty(10), Tensor(a), fxn=square)[0]
    np.testing.assert_allclose(out.numpy(), a * a, rtol=1e-6)
    other = Tensor.custom_kernel(Tensor.empty(10, device="PYTHON"), Tensor(a, device="PYTHON"), fxn=square)[0]
    with pytest.raises(RenderError, match="inline source"):
        other.realize()


def test_a_gradient_of_the_users_own():
    def cube(out: UOp, x: UOp) -> UOp:
        i = UOp.range(x.numel(), 0)
        return out[i].store(x[i] * x[i] * x[i]).end(i).sink()

    def grad(grads, args):
        return None, grads[0] * 3 * args[1] * args[1]

    a = numbers(6)
    x = Tensor(a)
    y = Tensor.custom_kernel(Tensor.empty(6), x * 2, fxn=cube, grad_fxn=grad)[0]
    (g,) = (y * Tensor(np.arange(6, dtype=np.float32))).sum().gradient(x)
    np.testing.assert_allclose(g.numpy(), np.arange(6) * 3 * (2 * a) ** 2 * 2, rtol=1e-5)


def test_without_a_gradient_it_says_what_to_give():
    x = Tensor(numbers(4))
    y = Tensor.custom_kernel(Tensor.empty(4), x, fxn=add_one)[0]
    with pytest.raises(NotImplementedError, match="grad_fxn"):
        y.sum().gradient(x)


def test_a_kernel_is_part_of_a_capture():
    @jit
    def step(x: Tensor) -> Tensor:
        out = Tensor.custom_kernel(Tensor.empty(4), x * 2, fxn=add_one)[0]
        return out * 10

    for k in range(5):
        a = numbers(4, seed=k)
        np.testing.assert_allclose(step(Tensor(a).realize()).numpy(), (a * 2 + 1) * 10, rtol=1e-5)


def test_a_capture_writes_state_in_place_at_each_replay():
    def count(x: UOp) -> UOp:
        i = UOp.range(x.numel(), 0)
        return x[i].store(x[i] + 1).end(i).sink()

    state = Tensor(np.zeros(3, np.float32)).realize()

    @jit
    def step(x: Tensor) -> Tensor:
        Tensor.custom_kernel(state, fxn=count)
        return (state * x).realize()

    for k in range(1, 6):
        got = step(Tensor(np.float32([1, 2, 3])).realize()).numpy()
        np.testing.assert_array_equal(got, np.float32([1, 2, 3]) * k)
    np.testing.assert_array_equal(state.numpy(), np.full(3, 5))


def test_a_bound_variable_reaches_the_kernel():
    n = Variable("n", 1, 8)

    def fill(out: UOp, x: UOp) -> UOp:
        i = UOp.range(x.shape[0], 0)
        return out[i].store(x[i] * 2).end(i).sink()

    a = numbers(8)
    for k in (3, 8):
        x = Tensor(a).realize()[: n.bind(k)]
        out = Tensor.custom_kernel(Tensor.zeros(8), x, fxn=fill)[0]
        np.testing.assert_allclose(out.numpy(), np.concatenate([a[:k] * 2, np.zeros(8 - k)]), rtol=1e-6)


def test_arguments_that_cannot_be():
    x = Tensor(numbers(4)).realize()
    with pytest.raises(ValueError, match="passed twice"):
        Tensor.custom_kernel(x, x, fxn=add_one)
    with pytest.raises(ValueError, match="stores into none"):
        Tensor.custom_kernel(x, fxn=lambda a: UOp.sink())
    with pytest.raises(ValueError, match="lie on"):
        Tensor.custom_kernel(x, Tensor(numbers(4), device="PYTHON"), fxn=add_one)
    with pytest.raises(KernelFormError, match="SINK"):
        Tensor.custom_kernel(x, fxn=lambda a: a[0])
    with pytest.raises(KernelFormError, match=r"1 index for a value of shape \(2, 3\): .* an index for each axis"):
        Tensor.custom_kernel(Tensor.empty(2, 3), fxn=lambda a: a[0].store(a[1]).sink())
    with pytest.raises(KernelFormError, match="cast"):
        Tensor.custom_kernel(x, fxn=lambda a: a[0].store(UOp.const(dtypes.int32, 1)).sink())


def test_only_independent_turns_are_optimised():
    def kernel(store) -> UOp:
        x, i = UOp.placeholder((8,), dtypes.float32, 0), UOp.range(8, 0)
        y = UOp.placeholder((8,), dtypes.float32, 1)
        return kernel_form(store(x, y, i).end(i).sink())

    assert is_parallel(kernel(lambda x, y, i: x[7 - i].store(y[i])))
    assert not is_parallel(kernel(lambda x, y, i: x[0].store(y[i])))
    assert not is_parallel(kernel(lambda x, y, i: x[i // 2].store(y[i])))
    assert not is_parallel(kernel(lambda x, y, i: x[i].store(x[7 - i])))


def test_a_kernel_inside_a_function_takes_what_it_is_called_with():
    from aril.function import function

    def cube(out: UOp, x: UOp) -> UOp:
        i = UOp.range(x.numel(), 0)
        return out[i].store(x[i] * x[i] * x[i]).end(i).sink()

    @function
    def f(x: Tensor) -> Tensor:
        def grad(grads, args):
            return None, grads[0] * 3 * args[1] * args[1]

        return Tensor.custom_kernel(Tensor.empty(10), x, fxn=cube, grad_fxn=grad)[0] + 1

    a = numbers(10)
    x = Tensor(a)
    y = f(x * 2)
    np.testing.assert_allclose(y.numpy(), (2 * a) ** 3 + 1, rtol=1e-5)
    (g,) = f(x * 2).sum().gradient(x)
    np.testing.assert_allclose(g.numpy(), 6 * (2 * a) ** 2, rtol=1e-5)


def test_a_foreign_function_is_called_by_its_address():
    import ctypes
    import ctypes.util

    library = ctypes.util.find_library("m")
    assert library is not None
    address = ctypes.cast(ctypes.CDLL(library).cosf, ctypes.c_void_p).value

    def cosine(out: UOp, x: UOp) -> UOp:
        i = UOp.range(x.numel(), 0)
        call = f"call float inttoptr (i64 {address} to ptr)({{t0}} {{0}})"
        return out[i].store(UOp(Ops.CUSTOMI, (x[i],), (call, dtypes.float32, "llvm"), dtypes.float32)).end(i).sink()

    a = numbers(10)
    out = Tensor.custom_kernel(Tensor.empty(10), Tensor(a), fxn=cosine)[0]
    np.testing.assert_allclose(out.numpy(), np.cos(a), rtol=1e-5)


def test_a_value_that_a_lane_keeps_across_a_barrier_is_refused():
    def kernel(x: UOp) -> UOp:
        lane = UOp.range(8, 0, AxisType.LOCAL)
        s = UOp.placeholder((8,), dtypes.float32, 0, AddrSpace.LOCAL)
        t = UOp.placeholder((8,), dtypes.float32, 1, AddrSpace.LOCAL)
        filled = s.after(UOp.barrier(s[lane].store(x[lane])))
        value = filled[7 - lane].load()
        other = UOp.barrier(t[lane].store(value + 1))
        return filled.after(other)[lane].store(value).end(lane).sink()

    with pytest.raises(KernelFormError, match="across a barrier"):
        Tensor.custom_kernel(Tensor(numbers(8)), Tensor(numbers(8)), fxn=lambda x, y: kernel(x))


@pytest.mark.parametrize("axis", [0, 1, None])
def test_each_device_runs_the_kernel_of_its_own_part(axis):
    devices = ("CPU", "CPU:1")
    a = numbers(5, 4)
    x = Tensor(a).shard(devices, axis)
    out = Tensor.empty(5, 4).shard(devices, axis)
    out = Tensor.custom_kernel(out, x * 2, fxn=add_one)[0]
    assert out.device == devices
    np.testing.assert_allclose((out * 3).numpy(), (a * 2 + 1) * 3, rtol=1e-6)


def test_a_loop_without_an_end_counts_no_operations():
    x, r = UOp.placeholder((4,), dtypes.int32, 0), UOp.loop(0)
    kernel = kernel_form(x[0].store(x[0] + 1).end(r, condition=x[0] < 10).sink())
    assert (kernel.arg.estimates.ops, kernel.arg.estimates.bytes) == (0, 16)


def test_a_volatile_buffer_is_read_at_every_turn():
    """A kernel that waits for a number that another thread writes meanwhile."""

    def wait(out, flag):
        flag, r = flag.volatile(), UOp.loop(0)
        seen = flag.after(r)[0]
        turn = out[0].store(seen).end(r, condition=seen < 1)
        return out.after(turn)[1].store(flag.after(turn)[0] + 1).sink()

    places = [UOp.placeholder(2, dtypes.int32, 0), UOp.placeholder(1, dtypes.int32, 1)]
    source = compile_kernel(lower(kernel_form(wait(*places))), renderer_of("CPU")).source
    assert source.count("load volatile i32") == 2 and "store volatile" not in source

    memory = np.zeros(1, np.int32)
    flag = Tensor.from_blob(memory.ctypes.data, (1,), dtypes.int32, owner=memory)
    found = []

    def run():
        found.append(Tensor.custom_kernel(Tensor.zeros(2, dtype=dtypes.int32).contiguous(), flag, fxn=wait)[0].tolist())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(0.5)
    assert thread.is_alive()
    memory[0] = 7
    thread.join(20)
    assert found == [[7, 8]]


def test_a_kernel_that_plainly_leaves_its_tensors_is_refused():
    def doubled(at, read=lambda i: i, length=4):
        def kernel(out, x):
            i = UOp.range(length, 0)
            return out[at(i)].store(x[read(i)] * 2).end(i).sink()

        return Tensor.custom_kernel(Tensor.zeros(4).contiguous(), Tensor([1.0, 2.0, 3.0, 4.0]), fxn=kernel)[0].tolist()

    for error, give in {
        "STORE at index (r0+1) of buffer 0 reaches 4, outside of its 4 elements": {"at": lambda i: i + 1},
        "LOAD at index (r0+-1) of buffer 1 reaches -1, outside of its 4": {"at": lambda i: i, "read": lambda i: i - 1},
        "STORE at index (r0*2) of buffer 0 reaches 6": {"at": lambda i: i * 2},
        "STORE at index r0 of buffer 0 reaches 4": {"at": lambda i: i, "read": lambda i: i % 4, "length": 5},
    }.items():
        with pytest.raises(KernelFormError, match=re.escape(error)):
            doubled(**give)
    assert doubled(lambda i: 3 - i) == [8.0, 6.0, 4.0, 2.0]
    assert doubled(lambda i: i.valid(i < 4), lambda i: i.valid(i < 4), 5) == [2.0, 4.0, 6.0, 8.0]
    assert doubled(lambda i: i * 2, length=2) == [2.0, 0.0, 4.0, 0.0]
