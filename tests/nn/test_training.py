"""Training as users write it: a captured step trains as a plain one does, running statistics and rates included."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from aril import Context, GlobalCounters, Tensor, jit, nn, schedule, tensor_alive
from aril.engine import compile
from aril.engine import run as running
from aril.uop.node import live_nodes

RNG = np.random.default_rng(0)
X = RNG.normal(size=(6, 16, 1, 8, 8)).astype(np.float32)
Y = np.arange(16, dtype=np.int32) % 5


def network():
    Tensor.manual_seed(7)
    return [
        nn.Conv2d(1, 4, 3), Tensor.relu, nn.BatchNorm(4), Tensor.max_pool2d, lambda t: t.flatten(1), nn.Linear(36, 5)
    ]  # fmt: skip


def stepper(net, optimizer, capture):
    """One step of training as a function of a batch."""

    def step(x, y):
        optimizer.zero_grad()
        loss = x.sequential(net).sparse_categorical_crossentropy(y)
        loss.backward()
        optimizer.step()
        return loss.realize()

    return jit(step) if capture else step


def train(net, capture, optimizer=nn.optim.Adam):
    adam = optimizer(nn.state.get_parameters(net), lr=0.01)
    schedule = nn.schedules.Schedule(adam, nn.schedules.step_decay(0.01, 2, 0.5))

    step = stepper(net, adam, capture)
    losses = []
    with Context(TRAINING=1):
        for x in X:
            losses.append(step(Tensor(x).realize(), Tensor(Y).realize()).item())
            schedule.step()
    return losses


@pytest.mark.parametrize("optimizer", [nn.optim.Adam, nn.optim.SGD, nn.optim.LAMB])
def test_a_captured_step_trains_as_a_plain_one(optimizer):
    one, two = network(), network()
    np.testing.assert_allclose(train(one, False, optimizer), train(two, True, optimizer), rtol=1e-5)
    mine, other = nn.state.get_state_dict(one), nn.state.get_state_dict(two)
    assert mine["2.num_batches_tracked"].item() == other["2.num_batches_tracked"].item() == len(X)
    for name, t in mine.items():
        np.testing.assert_allclose(t.numpy(), other[name].numpy(), rtol=1e-4, atol=1e-6, err_msg=name)


def test_the_loss_falls_on_one_batch():
    net = network()
    losses = []
    adam = nn.optim.Adam(nn.state.get_parameters(net), lr=0.01)
    for _ in range(12):
        adam.zero_grad()
        with Context(TRAINING=1):
            loss = Tensor(X[0]).sequential(net).sparse_categorical_crossentropy(Tensor(Y))
            loss.backward()
            losses.append(loss.item())
            adam.step()
    assert losses[-1] < 0.6 * losses[0]


def test_gradients_of_several_batches_add_up():
    w = Tensor([1.0, 2.0]).is_param_()
    for scale in (1.0, 10.0):
        (w * w * scale).sum().backward()
    np.testing.assert_allclose(w.grad.numpy(), [22.0, 44.0])


def test_evaluation_changes_no_statistics():
    net = network()
    Tensor(X[0]).sequential(net).realize()
    np.testing.assert_array_equal(net[2].running_mean.numpy(), np.zeros(4))
    assert net[2].num_batches_tracked.item() == 0


@pytest.mark.parametrize("capture", [False, True])
def test_nothing_grows_from_step_to_step(capture):
    net = [nn.Linear(6, 8), nn.BatchNorm(8), Tensor.relu, lambda t: t.dropout(0.2), nn.Linear(8, 3)]
    adam = nn.optim.Adam(nn.state.get_parameters(net), lr=0.01)

    def held():
        gc.collect()
        caches = (schedule._CACHE, compile._loaded, running._by_identity, tensor_alive.alive())
        return live_nodes(), GlobalCounters.mem_used, *[len(c) for c in caches]

    run = stepper(net, adam, capture)
    with Context(TRAINING=1):
        for i in range(50):
            run(Tensor(RNG.normal(size=(4, 6)).astype(np.float32)).realize(), Tensor([0, 1, 2, i % 3]).realize()).item()
            if i == 19:
                before = held()
    assert held() == before
