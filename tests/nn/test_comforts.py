"""Mixed precision, loss scaling, recomputation, and a run that continues exactly where it stopped."""

from __future__ import annotations

import numpy as np
import pytest

from aril import Context, GlobalCounters, Tensor, dtypes, jit, nn
from aril.nn.loader import DataLoader
from aril.nn.precision import LossScaler, lowered
from aril.nn.recompute import recompute

RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 6)).astype(np.float32)
Y = (X.sum(1) > 0).astype(np.int32)


def network():
    Tensor.manual_seed(3)
    return [nn.Linear(6, 8), Tensor.tanh, lambda t: t.dropout(0.2), nn.Linear(8, 2)]


def test_parameters_are_computed_with_in_the_lower_type_and_kept_in_theirs():
    net = network()
    params = nn.state.get_parameters(net)
    with lowered(params):
        assert net[0].weight.dtype is dtypes.bfloat16
        loss = Tensor(X).cast(dtypes.bfloat16).sequential(net).float().sparse_categorical_crossentropy(Tensor(Y))
    assert net[0].weight.dtype is dtypes.float32
    exact = Tensor(X).sequential(net).sparse_categorical_crossentropy(Tensor(Y)).gradient(net[0].weight)[0].numpy()
    loss.backward()
    assert net[0].weight.grad.dtype is dtypes.float32
    np.testing.assert_allclose(net[0].weight.grad.numpy(), exact, atol=0.02 * np.abs(exact).max())
    with pytest.raises(TypeError, match="in a float type, not int32"), lowered(params, dtypes.int32):
        pass


@pytest.mark.parametrize("capture", [False, True])
def test_a_step_with_infinite_gradients_changes_nothing_but_the_factor(capture):
    w = Tensor([1.0, 2.0]).is_param_()
    adam = nn.optim.Adam([w], lr=0.1)
    scaler = LossScaler(adam, init=8.0, interval=2)
    plain = Tensor([1.0, 2.0]).is_param_()
    other = nn.optim.Adam([plain], lr=0.1)

    def step(x):
        adam.zero_grad()
        scaler.scale((w * x).sum()).backward()
        scaler.step(adam)

    run = jit(step) if capture else step
    factors = []
    for scale in (1.0, 3.0, np.inf, 2.0, 5.0):
        run(Tensor([scale, 1.0]).realize())
        if np.isfinite(scale):
            other.zero_grad()
            (plain * Tensor([scale, 1.0])).sum().backward()
            other.step()
        np.testing.assert_allclose(w.numpy(), plain.numpy(), rtol=1e-6)
        factors.append(scaler.factor.item())
    assert factors == [8.0, 16.0, 8.0, 8.0, 16.0]


def deep(wrap):
    Tensor.manual_seed(5)
    weights = [[(Tensor.randn(64, 64) * 0.1).is_param_().realize() for _ in range(4)] for _ in range(6)]
    x = Tensor.randn(256, 64).realize()
    GlobalCounters.reset()
    before = GlobalCounters.mem_used
    for layer in weights:

        def block(t, layer=layer):
            for w in layer:
                t = (t @ w).sigmoid().sin()
            return t

        x = wrap(block)(x)
    optimizer = nn.optim.SGD([w for layer in weights for w in layer], lr=0.1)
    x.square().sum().backward()
    optimizer.step()
    return GlobalCounters.mem_peak - before, [w.numpy() for layer in weights for w in layer]


def test_recomputation_gives_the_same_numbers_in_less_memory():
    plain, want = deep(lambda f: f)
    less, got = deep(recompute)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    assert less < 0.7 * plain


def test_recomputation_repeats_random_numbers_and_differentiates_twice():
    with Context(TRAINING=1):
        net = recompute([nn.Linear(4, 4), lambda t: t.dropout(0.5), Tensor.square])
        x = Tensor(RNG.normal(size=(3, 4)).astype(np.float32))
        out = net(x)
        (g,) = out.sum().gradient(x)
        Tensor.realize(out, g)
    assert ((g.numpy() == 0).all(1) <= (out.numpy() == 0).all(1)).all()
    t = Tensor([2.0])
    y = recompute(lambda a: a * a * a)(t)
    (first,) = y.sum().gradient(t)
    np.testing.assert_allclose(first.sum().gradient(t)[0].numpy(), [12.0])


class Run:
    """A small training run whose whole state can be taken and put back."""

    def __init__(self):
        self.net = network()
        self.adam = nn.optim.Adam(nn.state.get_parameters(self.net), lr=0.05)
        self.loader = DataLoader(X, Y, batch_size=5, seed=1)
        self.batches = iter(())

    def steps(self, count):
        losses = []
        while len(losses) < count:
            batch = next(self.batches, None)
            if batch is None:
                self.batches = iter(self.loader)
                continue
            self.adam.zero_grad()
            with Context(TRAINING=1):
                loss = Tensor(batch[0]).sequential(self.net).sparse_categorical_crossentropy(Tensor(batch[1]))
                loss.backward()
            losses.append(loss.item())
            self.adam.step()
        return losses

    def state(self):
        tensors = nn.state.get_state_dict([self.net, self.adam])
        return {k: t.numpy().copy() for k, t in tensors.items()}, self.loader.state(), Tensor.random_state()

    def load(self, state):
        tensors, loader, random = state
        nn.state.load_state_dict([self.net, self.adam], {k: Tensor(v) for k, v in tensors.items()})
        self.loader.load_state(loader)
        Tensor.load_random_state(random)


@pytest.mark.parametrize("stop", [1, 4, 6])
def test_a_run_that_was_stopped_continues_to_the_same_numbers(stop):
    whole = Run()
    Tensor.manual_seed(11)
    want = whole.steps(9)
    first = Run()
    Tensor.manual_seed(11)
    got = first.steps(stop)
    state = first.state()
    first.batches.close() if hasattr(first.batches, "close") else None
    second = Run()
    Tensor.manual_seed(99)
    second.load(state)
    got += second.steps(9 - stop)
    assert got == want
