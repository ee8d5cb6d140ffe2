"""The short way of a call that is like the captured one: what it takes, and when it is left."""

import sys
import threading

import numpy as np
import pytest

from aril import Tensor, Variable, jit
from aril.config import Context
from aril.engine.capture import JitError
from aril.jit_calls import Plan

rng = np.random.default_rng(5)


def array(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def captured(function, *args, **kwargs):
    f = jit(function)
    for _ in range(2):
        f(*args, **kwargs)
    return f


@pytest.fixture
def short(monkeypatch):
    """Whether each call went the short way, in order."""
    went, run = [], Plan.run

    def noted(self, args, kwargs):
        out = run(self, args, kwargs)
        went.append(out is not None)
        return out

    monkeypatch.setattr(Plan, "run", noted)
    return went


def calls_of_python(f):
    """How many Python functions `f()` enters."""
    count = 0

    def see(frame, event, arg):
        nonlocal count
        count += event == "call"

    sys.setprofile(see)
    try:
        f()
    finally:
        sys.setprofile(None)
    return count


def test_a_warm_call_enters_few_functions():
    a, b = Tensor(array(16)).realize(), Tensor(array(16)).realize()
    f = captured(lambda x, y: x + y, a, b)
    f(a, b)
    assert calls_of_python(lambda: f(a, b)) <= 26
    many = [Tensor(array(4)).realize() for _ in range(50)]
    g = captured(lambda x, more: x + more[3], Tensor(array(4)).realize(), many)
    x = Tensor(array(4)).realize()
    assert calls_of_python(lambda: g(x, many)) <= 28  # none for each tensor
    assert calls_of_python(lambda: f(a, b).realize()) <= 36  # no node is made for what is computed already


def test_a_result_of_variable_length_costs_a_warm_call_no_more():
    n = Variable("n", 2, 64)
    x = Tensor(array(64, 32)).realize()
    known, f = captured(lambda x: x[:40] + 1, x), captured(lambda x, n: x[:n] + 1, x, n.bind(40))
    f(x, n.bind(7))
    bound = n.bind(7)
    assert calls_of_python(lambda: f(x, bound)) <= calls_of_python(lambda: known(x)) + 2
    large = Tensor(array(1024, 1024)).realize()  # in as many chunks as the variable says
    m = Variable("m", 2, 1024)
    g = captured(lambda x, m: x[:m].softmax(-1), large, m.bind(3))
    bounds = [m.bind(k) for k in (1000, 17)]
    for b in bounds:
        g(large, b)
    assert max(calls_of_python(lambda b=b: g(large, b)) for b in bounds) <= calls_of_python(lambda: known(x)) + 6
    first, second = f(x, n.bind(30)), f(x, n.bind(3))
    assert first.shape == second.shape == (n, 32)
    np.testing.assert_array_equal(first[:2].numpy(), x.numpy()[:2] + 1)
    for y, k in ((first, 30), (second, 3)):
        np.testing.assert_array_equal(Tensor(y.uop.base).reshape(64, 32)[:k].numpy(), x.numpy()[:k] + 1)
        with pytest.raises(ValueError, match="'n' has no value: bind it"):
            (y * 2).realize()


def test_results_are_tensors_of_their_own():
    xs = [array(3, 4) for _ in range(4)]
    f = captured(lambda x: x * 2, Tensor(xs[0]))
    out = [f(Tensor(x)) for x in xs]
    again = f(out[0])
    for x, y in zip(xs, out, strict=True):
        np.testing.assert_array_equal(y.numpy(), x * 2)
    assert again.shape == (3, 4) and again.device == out[0].device
    np.testing.assert_array_equal(again.numpy(), xs[0] * 4)
    out[1].assign(out[1] + 1).realize()
    np.testing.assert_array_equal(out[1].numpy(), xs[1] * 2 + 1)
    np.testing.assert_array_equal(out[2].numpy(), xs[2] * 2)


def test_containers_variables_and_names(short):
    n = Variable("n", 1, 8)

    def step(batch, n, scale, *, shift):
        x = batch["x"][:n] * scale + shift
        return {"sum": x.sum(), "parts": (batch["more"][0] + 1, batch["more"][1])}

    x, a, b = array(8), array(2), array(5)
    given = {"x": Tensor(x).realize(), "more": [Tensor(a).realize(), Tensor(b).realize()]}
    f = captured(step, given, n.bind(3), 2.0, shift=Tensor([1.0]).realize())
    for k in (1, 8, 5):
        out = f(given, n.bind(k), 2.0, shift=Tensor([0.5]).realize())
        np.testing.assert_allclose(out["sum"].item(), (x[:k].astype(np.float64) * 2 + 0.5).sum(), rtol=1e-5)
        np.testing.assert_array_equal(out["parts"][0].numpy(), a + 1)
        assert isinstance(out["parts"], tuple)
        np.testing.assert_array_equal(out["parts"][1].numpy(), b)
    assert short == [True] * 3


@pytest.mark.parametrize(
    "other",
    [
        lambda x: (Tensor(x[:2]).realize(), 1.0),
        lambda x: (Tensor(x).cast("float16").realize(), 1.0),
        lambda x: (Tensor(x, device="PYTHON").realize(), 1.0),
        lambda x: (Tensor(x).realize(), 1),
        lambda x: (Tensor(x).realize(), True),
        lambda x: (Tensor(x).realize(), -0.0),
        lambda x: (Tensor(x).realize(), None),
        lambda x: ([Tensor(x).realize()], 1.0),
        lambda x: (Tensor(x).realize(),),
    ],
)
def test_other_calls_are_refused(other):
    x = array(4)
    f = captured(lambda x, k=1.0: x + (k or 0.0), Tensor(x).realize(), 1.0)
    f(Tensor(x).realize(), 1.0)
    with pytest.raises(JitError, match="captured with"):
        f(*other(x))


def test_zeros_of_both_signs_are_told_apart():
    f = captured(lambda x, k: x * k, Tensor([1.0]), 0.0)
    with pytest.raises(JitError):
        f(Tensor([1.0]), -0.0)
    g = captured(lambda x, k: x * 2, Tensor([1.0]), float("nan"))
    assert g(Tensor([3.0]), float("nan")).item() == 6.0


def test_what_is_no_memory_yet_or_a_view_takes_the_long_way(short):
    x = array(4, 6)
    f = captured(lambda x: x.exp() + x, Tensor(x))
    whole = Tensor(x).realize()
    for given, value in [(whole + 1, x + 1), (whole.T.reshape(4, 6), x.T.reshape(4, 6)), (whole[::-1], x[::-1])]:
        want = np.exp(value.astype(np.float64)) + value
        np.testing.assert_allclose(f(given).numpy(), want, rtol=1e-5)
    assert short == [False] * 3
    f(whole)
    assert short[-1]


def test_memory_that_is_written_by_another_name_takes_the_long_way(short):
    state = Tensor(array(6)).realize()
    start = state.numpy().copy()

    def step(x):
        state.assign(state * 2 + x.flip(0))
        return state.sum()

    x, y = Tensor(array(6)).realize(), Tensor(array(6)).realize()
    f = captured(step, x)
    value = start.astype(np.float64)
    for _ in range(2):
        value = value * 2 + x.numpy()[::-1]
    for given in (x, y, x, y):
        np.testing.assert_allclose(f(given).item(), (value := value * 2 + given.numpy()[::-1]).sum(), rtol=1e-4)
    assert short == [True] * 4
    held = state.numpy().astype(np.float64).copy()
    np.testing.assert_allclose(f(state).item(), (held * 2 + held[::-1]).sum(), rtol=1e-4)
    assert not short[4]


def test_assignments_that_wait_are_computed_before_a_replay(short):
    """What was assigned between two calls to memory that the function reads, or reads and writes, whole or in part."""
    read, state = Tensor(array(4)).realize(), Tensor(array(4)).realize()
    a, b = read.numpy().astype(np.float64), state.numpy().astype(np.float64)

    def step(x):
        state.assign(state * 0.5 + x)
        return (read * x).sum() + state.sum()

    x = Tensor(array(4)).realize()
    f = captured(step, x)
    given = x.numpy().astype(np.float64)
    b = (b * 0.5 + given) * 0.5 + given
    for turn in range(4):
        if turn % 2:
            new = array(4)
            read.assign(Tensor(new))
            a = new.astype(np.float64)
            state.assign(state + 1)
            b = b + 1
        else:
            read[1:3] = Tensor(np.full(2, turn + 7, np.float32))
            a[1:3] = turn + 7
        b = b * 0.5 + given
        np.testing.assert_allclose(f(x).item(), (a * given).sum() + b.sum(), rtol=1e-5)
    np.testing.assert_allclose(state.numpy(), b, rtol=1e-5)
    assert short == [True] * 4


def test_one_tensor_in_two_places_where_one_is_written(short):
    def step(x, y):
        x.assign(x + y.flip(0))
        return y.sum()

    a, b = Tensor(array(5)).realize(), Tensor(array(5)).realize()
    f = captured(step, a, b)
    f(a, b)
    assert short == [True]
    before = a.numpy().astype(np.float64).copy()
    f(a, a)
    np.testing.assert_allclose(a.numpy(), before + before[::-1], rtol=1e-6)
    assert short == [True, False]


def test_values_computed_before_a_call_stay_what_they_were():
    state = Tensor(array(4)).realize()

    def step(x):
        state.assign(state + x)
        return x * 1

    x = Tensor(np.ones(4, np.float32)).realize()
    f = captured(step, x)
    double = (state * 2).realize()
    was = double.numpy().copy()
    f(x)
    np.testing.assert_array_equal(double.numpy(), was)
    np.testing.assert_allclose((state * 2).numpy(), was + 2, rtol=1e-6)


def test_a_result_gets_one_node_whoever_asks_first():
    f = captured(lambda x: x + 1, Tensor(array(4)).realize())
    x = Tensor(array(4)).realize()
    for _ in range(20):
        out, seen = f(x), []
        gate = threading.Barrier(4)

        def ask(out=out, seen=seen, gate=gate):
            gate.wait()
            seen.append(out.uop)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert len(set(seen)) == 1
    with pytest.raises(AttributeError, match="no attribute 'grads'"):
        _ = out.grads


def test_a_single_kernel_is_looked_at_like_others(capsys):
    x = Tensor(array(4)).realize()
    f = captured(lambda x: x + 1, x)
    with Context(DEBUG=2):
        f(x)
    assert "***" in capsys.readouterr().err
    with Context(JIT=0):
        np.testing.assert_array_equal(f(x).numpy(), x.numpy() + 1)
