"""What users rely on from `jit`: the same values as without it, whatever is passed, written, or reached."""

from __future__ import annotations

import gc
from typing import Any, NamedTuple

import numpy as np
import pytest

from aril import Context, Tensor, Variable, jit, nn
from aril.counters import GlobalCounters
from aril.jit import JitError

CALLS = 5


def arr(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_nested_containers_and_results() -> None:
    class Pair(NamedTuple):
        a: Any
        b: Any

    @jit
    def f(x: Any, *, named: Any) -> Any:
        return {"sum": x["l"][0] + x["t"][1].a, "pair": Pair(named * 2, [x["t"][0]]), "n": 3}

    for i in range(CALLS):
        base = Tensor(arr(i, 1))
        out = f({"l": [base], "t": (Tensor(arr(5, i)), Pair(Tensor(arr(1, 1)), None))}, named=Tensor(arr(i, i)))
        assert out["n"] == 3 and type(out["pair"]) is Pair
        np.testing.assert_array_equal(out["sum"].numpy(), arr(i + 1, 2))
        np.testing.assert_array_equal(out["pair"].a.numpy(), arr(2 * i, 2 * i))
        np.testing.assert_array_equal(out["pair"].b[0].numpy(), arr(5, i))


def test_an_old_result_is_not_overwritten() -> None:
    f = jit(lambda x: x * 2)
    outs = [f(Tensor(arr(i))) for i in range(CALLS)]
    assert [o.item() for o in outs] == [0, 2, 4, 6, 8]


def test_two_results_that_are_one_value() -> None:
    @jit
    def f(x: Tensor) -> Any:
        y = x + 1
        return y, y, y.reshape(1, 2), x

    for i in range(CALLS):
        x = Tensor(arr(i, i))
        a, b, c, d = f(x)
        for t in (a, b, c[0]):
            np.testing.assert_array_equal(t.numpy(), arr(i + 1, i + 1))
        np.testing.assert_array_equal(d.numpy(), arr(i, i))


def test_one_tensor_passed_twice() -> None:
    f = jit(lambda x, y: x * 2 + y)
    for i in range(CALLS):
        x = Tensor(arr(i)).realize()
        assert f(x, x).item() == 3 * i
    assert f(Tensor(arr(1)), Tensor(arr(10))).item() == 12


def test_a_tensor_passed_and_reached_by_closure() -> None:
    w = Tensor(arr(1, 2)).realize()

    @jit
    def f(x: Tensor) -> Tensor:
        w.assign(w + 1)
        return x + w

    expected = arr(1, 2)
    for _ in range(CALLS):
        other = Tensor(arr(10, 20))
        expected = expected + 1
        np.testing.assert_array_equal(f(other).numpy(), arr(10, 20) + expected)
    np.testing.assert_array_equal(w.numpy(), expected)


def test_a_value_that_was_computed_before_is_computed_anew_by_replays() -> None:
    w = Tensor(arr(1, 2)).realize()
    doubled = (w * 2).realize()  # while it is held, the same expression stands for it

    @jit
    def f() -> Tensor:
        return (w * 2).realize()

    for _ in range(3):
        assert f().tolist() == [2, 4]
    w.assign(w + 1).realize()
    assert f().tolist() == [4, 6] and doubled.tolist() == [2, 4]


def test_state_passed_as_an_argument() -> None:
    w = Tensor(arr(1, 2)).realize()

    @jit
    def f(x: Tensor) -> Tensor:
        w.assign(w + 1)
        return x * 2

    other = Tensor(arr(1, 2)).realize()
    for _ in range(3):
        assert f(other).tolist() == [2, 4]
    for i in range(0, 6, 2):
        assert f(w).tolist() == [2 * (5 + i), 2 * (6 + i)]
        assert f(other).tolist() == [2, 4]
        assert w.tolist() == [6 + i, 7 + i]


def test_shift_buffer() -> None:
    history = Tensor.zeros(4).contiguous().realize()

    @jit
    def push(x: Tensor) -> Tensor:
        history.assign(history[1:].cat(x))
        return history

    expected = np.zeros(4, np.float32)
    for i in range(6):
        expected = np.append(expected[1:], np.float32(i))
        np.testing.assert_array_equal(push(Tensor(arr(i))).numpy(), expected)


def test_ping_pong_of_results_as_inputs() -> None:
    f = jit(lambda a, b: (b, a + b))
    a, b = Tensor(arr(1)).realize(), Tensor(arr(1)).realize()
    x, y = 1, 1
    for _ in range(8):
        a, b = f(a, b)
        x, y = y, x + y
        assert (a.item(), b.item()) == (x, y)


def test_an_input_that_is_written_and_is_a_result() -> None:
    @jit
    def f(x: Tensor) -> Tensor:
        x.assign(x + 1)
        return x

    x = Tensor(arr(0)).realize()
    for i in range(CALLS):
        y = f(x)
        assert x.item() == y.item() == i + 1


def test_kv_cache_with_a_bound_position() -> None:
    cache = Tensor.zeros(8, 2).contiguous().realize()
    v = Variable("pos", 0, 7)

    @jit
    def put(x: Tensor, pos: Any) -> Tensor:
        cache[pos : pos + 1] = x
        return cache.sum(0)

    expected = np.zeros((8, 2), np.float32)
    for i in range(6):
        expected[i] = [i, 2 * i]
        out = put(Tensor(arr(i, 2 * i)).reshape(1, 2), v.bind(i))
        np.testing.assert_array_equal(out.numpy(), expected.sum(0))
    np.testing.assert_array_equal(cache.numpy(), expected)


def test_random_numbers_advance() -> None:
    f = jit(lambda x: x + Tensor.rand(4))
    seen = {tuple(f(Tensor.zeros(4).contiguous()).numpy()) for _ in range(6)}
    assert len(seen) == 6


def test_the_same_seed_gives_the_same_numbers() -> None:
    f = jit(lambda x: x + Tensor.rand(4))
    f(Tensor.zeros(4).contiguous())
    f(Tensor.zeros(4).contiguous())

    def run() -> list[Any]:
        Tensor.manual_seed(7)
        return [f(Tensor.zeros(4).contiguous()).numpy() for _ in range(CALLS)]

    np.testing.assert_array_equal(run(), run())


def test_gradients_accumulate_over_calls() -> None:
    w = Tensor(arr(1, 2)).is_param_().realize()
    w.grad = Tensor.zeros(2).contiguous().realize()

    @jit
    def step(x: Tensor) -> Tensor:
        assert w.grad is not None
        g = (w * x).sum().gradient(w)[0]
        w.grad.assign(w.grad + g)
        return w.grad

    total = np.zeros(2, np.float32)
    for i in range(CALLS):
        total = total + arr(i, 1)
        np.testing.assert_array_equal(step(Tensor(arr(i, 1))).numpy(), total)


@pytest.mark.parametrize("optimizer", [nn.optim.SGD, nn.optim.Adam])
def test_training_is_the_same_with_and_without(optimizer: Any) -> None:
    def train(wrap: Any) -> list[float]:
        Tensor.manual_seed(1)
        model = nn.Linear(3, 2)
        opt = optimizer(nn.state.get_parameters(model), lr=0.1)

        def step(x: Tensor, y: Tensor) -> Tensor:
            opt.zero_grad()
            loss = ((model(x) - y) ** 2).mean()
            loss.backward()
            opt.step()
            return loss

        step = wrap(step)
        rng = np.random.default_rng(0)
        with Context(TRAINING=1):
            return [
                step(
                    Tensor(rng.standard_normal((4, 3), np.float32)), Tensor(rng.standard_normal((4, 2), np.float32))
                ).item()
                for _ in range(6)
            ]

    np.testing.assert_allclose(train(lambda f: f), train(jit), rtol=1e-5)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda f: f(Tensor(arr(1, 2, 3)), 2), ["shape (2,)", "shape (3,)", "x"]),
        (lambda f: f(Tensor([1, 2]), 2), ["float32", "int"]),
        (lambda f: f(Tensor(arr(1, 2)), 3), ["n = the int 2", "the int 3", "tensor", "Variable"]),
        (lambda f: f(arr(1, 2), 2), ["x = a tensor of shape (2,)", "an object of type ndarray", "Tensor(x)"]),
        (lambda f: f(Tensor(arr(1, 2)), Variable("m", 1, 4)), ["n = the int 2", "an object of type UOp", "n.bind(3)"]),
        (lambda f: f(Tensor(arr(1, 2))), []),
        (lambda f: f([Tensor(arr(1, 2))], 2), []),
        (lambda f: f(Tensor(arr(1, 2), device="PYTHON"), 2), ["CPU", "PYTHON"]),
    ],
)
def test_a_call_that_does_not_fit_says_which_argument(call: Any, words: list[str]) -> None:
    @jit
    def scale(x: Tensor, n: int = 2) -> Tensor:
        return x * n

    for i in range(3):
        scale(Tensor(arr(i, 1)), 2)
    with pytest.raises(JitError) as found:
        call(scale)
    for w in [*words, "scale"]:
        assert w in str(found.value)
    assert scale(Tensor(arr(1, 2)), 2).tolist() == [2, 4]  # still works


@pytest.mark.parametrize(
    "read", [lambda t: t.item(), lambda t: t.numpy(), bool, lambda t: t.tolist(), float, lambda t: t.data()]
)
def test_reading_a_value_while_capturing_is_an_error_with_the_line(read: Any) -> None:
    @jit
    def f(x: Tensor) -> Tensor:
        y = x + 1
        read(y)
        return y

    f(Tensor(arr(1)))
    with pytest.raises(JitError, match=r"test_jit\.py:\d+"):
        f(Tensor(arr(1)))
    with pytest.raises(JitError):  # nothing was captured
        f(Tensor(arr(1)))
    assert (Tensor(arr(1)) + 1).item() == 2  # and values can be read again


def test_an_exception_leaves_no_half_capture() -> None:
    fail = [True]

    @jit
    def f(x: Tensor) -> Tensor:
        y = (x + 1).realize()
        if fail[0]:
            raise KeyError("user")
        return y * 2

    for _ in range(3):
        with pytest.raises(KeyError):
            f(Tensor(arr(1)))
    fail[0] = False
    for i in range(CALLS):
        assert f(Tensor(arr(i))).item() == 2 * (i + 1)


def test_methods_have_a_capture_for_each_object() -> None:
    class Model:
        def __init__(self, w: float) -> None:
            self.w = Tensor(arr(w)).realize()

        @jit
        def __call__(self, x: Tensor) -> Tensor:
            return x * self.w

    one, two = Model(1), Model(2)
    for i in range(CALLS):
        assert one(Tensor(arr(i))).item() == i
        assert two(Tensor(arr(i))).item() == 2 * i


def test_reset_captures_again() -> None:
    f = jit(lambda x: x + 1)
    for _ in range(3):
        f(Tensor(arr(1)))
    f.reset()
    for _ in range(3):
        assert f(Tensor(arr(1, 2))).tolist() == [2, 3]


def test_a_jit_inside_a_jit() -> None:
    inner = jit(lambda x: x + 1)
    outer = jit(lambda x: inner(inner(x)) * 2)
    for i in range(CALLS):
        assert outer(Tensor(arr(i))).item() == 2 * (i + 2)
        assert inner(Tensor(arr(i))).item() == i + 1


def test_realizing_inside() -> None:
    @jit
    def f(x: Tensor) -> Tensor:
        y = (x + 1).realize()
        z = (y * 2).realize()
        return z + y

    for i in range(CALLS):
        assert f(Tensor(arr(i))).item() == 3 * (i + 1)


def test_state_made_at_the_first_call() -> None:
    class Counter:
        n: Tensor | None = None

    c = Counter()

    @jit
    def f(x: Tensor) -> Tensor:
        if c.n is None:
            c.n = Tensor.zeros(1).contiguous().realize()
        c.n.assign(c.n + x)
        return c.n

    for i in range(CALLS):
        assert f(Tensor(arr(1))).item() == i + 1
    assert c.n is not None and c.n.item() == CALLS


def test_rebinding_to_a_lazy_tensor_is_refused() -> None:
    class State:
        h = Tensor(arr(0)).realize()

    s = State()

    @jit
    def f(x: Tensor) -> Tensor:
        s.h = s.h + x
        return s.h * 2

    f(Tensor(arr(1)))
    with pytest.raises(JitError, match=r"f \(.*test_jit\.py:\d+\) reads .* assign"):
        f(Tensor(arr(1)))


def test_an_attribute_bound_anew_without_reading_the_old_one_follows_the_replays() -> None:
    class State:
        last: Tensor | None = None

    s = State()

    @jit
    def f(x: Tensor) -> Tensor:
        s.last = x * 3
        return x + 1

    for i in range(CALLS):
        assert f(Tensor(arr(i))).item() == i + 1
        assert s.last is not None and s.last.item() == 3 * i


def test_gradients_made_anew_follow_the_replays() -> None:
    w = Tensor(arr(1, 2)).realize().is_param_()

    @jit
    def f(x: Tensor) -> Tensor:
        w.grad = None
        loss = (w * x).sum()
        loss.backward()
        return loss

    for i in range(CALLS):
        assert f(Tensor(arr(i, 1))).item() == i + 2
        assert w.grad is not None
        np.testing.assert_array_equal(w.grad.numpy(), arr(i, 1))


def test_a_pending_assignment_is_part_of_the_batch() -> None:
    n = Tensor(arr(0)).realize()

    @jit
    def f(x: Tensor) -> Tensor:
        n.assign(n + x)
        return x * 2

    for i in range(CALLS):
        assert f(Tensor(arr(1))).item() == 2
        assert n.item() == i + 1


def test_views_as_inputs() -> None:
    f = jit(lambda x: x + 1)
    whole = Tensor(np.arange(10, dtype=np.float32)).realize()
    for i in range(CALLS):
        np.testing.assert_array_equal(f(whole[i : i + 3]).numpy(), np.arange(i + 1, i + 4, dtype=np.float32))
    np.testing.assert_array_equal(whole.numpy(), np.arange(10))


def test_no_gradients_inside() -> None:
    f = jit(lambda x: x * 2)
    with Context(GRAD=0):
        for i in range(CALLS):
            assert f(Tensor(arr(i))).item() == 2 * i


def test_replays_do_not_grow_memory() -> None:
    w = Tensor.zeros(64, 64).contiguous().realize()

    @jit
    def f(x: Tensor) -> Tensor:
        w.assign(w + x)
        return (w @ x).relu() + 1

    x = Tensor.ones(64, 64).contiguous().realize()
    for _ in range(5):
        f(x)
    before = GlobalCounters.mem_used
    for _ in range(1000):
        f(x)
    assert GlobalCounters.mem_used <= before


def test_a_capture_holds_no_memory_of_the_call_it_was_made_of() -> None:
    w = Tensor.ones(1000).realize()

    @jit
    def f(x: Tensor) -> tuple[Tensor, list[Tensor]]:
        return (x + w).realize(), [x]

    before = GlobalCounters.mem_used
    for _ in range(3):
        x = Tensor.ones(1000).realize()
        out = f(x)
    assert out[0].numpy().tolist() == [2.0] * 1000
    del x, out
    assert GlobalCounters.mem_used == before


def test_the_planned_peak_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    @jit
    def f(x: Tensor) -> Tensor:
        for _ in range(4):
            x = (x + 1).realize()
        return x

    with Context(DEBUG=2, GRAD=0):
        for _ in range(2):
            f(Tensor.zeros(1000).realize())
    shown = capsys.readouterr().err
    assert "3 intermediates of 4 kernels share 8 KiB (11.72 KiB without sharing)" in shown
    assert "planned peak 3.906 KiB beside" in shown  # of x + 1: its result


def test_intermediates_of_a_chain_share_memory() -> None:
    @jit
    def f(x: Tensor) -> Tensor:
        for _ in range(10):
            x = (x - x.max() + 1).contiguous()
        return x

    for i in range(3):
        assert f(Tensor.full((1000,), float(i)).contiguous()).tolist() == [1.0] * 1000
    assert f.captured is not None
    assert f.captured.batch.planned_bytes <= 3 * 4096


def test_intermediates_that_only_their_own_kernel_reads_take_no_memory() -> None:
    @jit
    def f(x: Tensor) -> Tensor:
        for _ in range(10):
            x = (x.flip(0) + 1).contiguous()
        return x

    for i in range(3):
        assert f(Tensor.full((1000,), float(i)).contiguous()).tolist() == [i + 10.0] * 1000
    assert f.captured is not None
    assert f.captured.batch.planned_bytes == 0


def test_capturing_assignments_does_not_wait_for_the_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left to be computed besides the results are assignments, which are nobody's garbage."""
    w = Tensor([1.0, 2.0]).realize()

    def f(x: Tensor) -> Tensor:
        w.assign(w + x)
        x.assign(x * 2)
        return w * 1

    f = jit(f)
    f(Tensor([1.0, 1.0]).realize())
    with monkeypatch.context() as m:
        m.setattr(gc, "collect", lambda: pytest.fail("a full collection"))
        assert f(Tensor([1.0, 1.0]).realize()).tolist() == [3, 4]
    assert f(Tensor([1.0, 1.0]).realize()).tolist() == [4, 5]
