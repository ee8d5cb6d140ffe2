"""Optimizers step by step against their formulas in NumPy float64, and what they promise about state and errors."""

from __future__ import annotations

import numpy as np
import pytest

from aril import Tensor, dtypes, nn
from aril.nn import schedules

RNG = np.random.default_rng(0)
SHAPES = [(3, 4), (5,), (2, 3, 2)]
START = [RNG.normal(size=s) for s in SHAPES]
GRADS = [[RNG.normal(size=s) for s in SHAPES] for _ in range(4)]
LR = 0.03  # not exact in float32


def run(make, start=START, grads=GRADS):
    """The parameters after a step for each set of gradients."""
    params = [Tensor(p.copy()).is_param_(True) for p in start]
    optimizer = make(params)
    for step in grads:
        optimizer.zero_grad()
        for p, g in zip(params, step, strict=True):
            p.grad = Tensor(g)
        optimizer.step()
    return [p.numpy() for p in params]


def expect(got, rule, start=START, grads=GRADS, rtol=1e-12):
    """Each parameter as `rule(p, g, state, t)` moves it."""
    for i, p in enumerate(start):
        state: dict[str, np.ndarray] = {}
        for t, step in enumerate(grads, 1):
            p = rule(p, step[i], state, t)
        np.testing.assert_allclose(got[i], p, rtol=rtol, atol=1e-14)


def norm(x):
    return np.sqrt((x * x).sum())


@pytest.mark.parametrize(
    ("momentum", "decay", "nesterov"), [(0.0, 0.0, False), (0.0, 0.1, False), (0.9, 0.0, False), (0.9, 0.1, True)]
)
def test_sgd(momentum, decay, nesterov):
    def rule(p, g, state, t):
        g = g + decay * p
        b = state["b"] = momentum * state.get("b", 0.0) + g
        return p - LR * (g + momentum * b if nesterov else b)

    expect(run(lambda ps: nn.optim.SGD(ps, LR, momentum, decay, nesterov)), rule)


def moments(g, state, t, betas, eps):
    m = state["m"] = betas[0] * state.get("m", 0.0) + (1 - betas[0]) * g
    v = state["v"] = betas[1] * state.get("v", 0.0) + (1 - betas[1]) * g * g
    return (m / (1 - betas[0] ** t)) / (np.sqrt(v / (1 - betas[1] ** t)) + eps)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adam(decay):
    def rule(p, g, state, t):
        return p - LR * moments(g + decay * p, state, t, (0.9, 0.999), 1e-8)

    expect(run(lambda ps: nn.optim.Adam(ps, LR, weight_decay=decay)), rule)


def test_adamw():
    def rule(p, g, state, t):
        return p - LR * 0.1 * p - LR * moments(g, state, t, (0.8, 0.9), 1e-6)

    expect(run(lambda ps: nn.optim.AdamW(ps, LR, (0.8, 0.9), 1e-6, 0.1)), rule)


def test_lamb():
    def rule(p, g, state, t):
        u = moments(g, state, t, (0.9, 0.999), 1e-6) + 0.1 * p
        return p - LR * norm(p) / norm(u) * u

    expect(run(lambda ps: nn.optim.LAMB(ps, LR, weight_decay=0.1)), rule)


@pytest.mark.parametrize("nesterov", [False, True])
def test_lars(nesterov):
    def rule(p, g, state, t):
        scale = 0.02 * norm(p) / (norm(g) + 0.1 * norm(p)) if p.ndim > 1 else 1.0
        step = LR * scale * (g + 0.1 * p)
        b = state["b"] = 0.9 * state.get("b", 0.0) + step
        return p - (step + 0.9 * b if nesterov else b)

    expect(run(lambda ps: nn.optim.LARS(ps, LR, 0.9, 0.1, nesterov, trust=0.02)), rule)


def test_muon():
    start, grads = [START[0], START[2]], [[g[0], g[2]] for g in GRADS]

    def rule(p, g, state, t):
        b = state["b"] = 0.95 * state.get("b", 0.0) + 0.05 * g
        x = (0.95 * b + 0.05 * g).reshape(len(g), -1)
        x = x / (norm(x) + 1e-7)
        for _ in range(5):
            s = x @ x.T
            x = 3.4445 * x + (-4.7750 * s + 2.0315 * s @ s) @ x
        step = x.reshape(p.shape) * max(1.0, x.shape[0] / x.shape[1]) ** 0.5
        return p - LR * 0.1 * p - LR * step

    expect(run(lambda ps: nn.optim.Muon(ps, LR), start, grads), rule, start, grads)


# --- promises ---


def test_a_parameter_without_gradient_stays_and_the_others_move():
    a, b = (Tensor([1.0, 2.0]).is_param_(True) for _ in range(2))
    optimizer = nn.optim.SGD([a, b], lr=0.5)
    a.grad = Tensor([1.0, 1.0])
    optimizer.step()
    np.testing.assert_array_equal(a.numpy(), [0.5, 1.5])
    np.testing.assert_array_equal(b.numpy(), [1.0, 2.0])


def test_running_statistics_are_realized_but_not_trained():
    norm_layer = nn.BatchNorm(2)
    optimizer = nn.optim.SGD(nn.state.get_parameters(norm_layer), lr=0.5)
    assert len(optimizer.params) == 2 and len(optimizer.buffers) == 3


def test_a_step_without_any_gradient_is_an_error():
    optimizer = nn.optim.Adam([Tensor([1.0]).is_param_(True)])
    with pytest.raises(RuntimeError, match="no parameter has a gradient"):
        optimizer.step()


def test_what_cannot_be_trained_is_refused():
    with pytest.raises(ValueError, match="no parameters"):
        nn.optim.SGD([])
    with pytest.raises(TypeError, match=r"Adam takes a list of tensors, not a Linear; of a model: nn.state.get_param"):
        nn.optim.Adam(nn.Linear(2, 2))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="SGD takes a list of tensors, not a Tensor;"):
        nn.optim.SGD(Tensor([1.0]).is_param_())
    with pytest.raises(TypeError, match="SGD takes a list of tensors, not a dict with a str in it;"):
        nn.optim.SGD(nn.state.get_state_dict(nn.Linear(2, 2)))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="int32"):
        nn.optim.SGD([Tensor([1, 2], dtype=dtypes.int32).is_param_(True)])
    with pytest.raises(ValueError, match="SGD: lr is at least 0, not -1"):
        nn.optim.SGD([Tensor([1.0]).is_param_(True)], lr=-1)
    with pytest.raises(ValueError, match="no matrix"):
        nn.optim.Muon([Tensor([1.0]).is_param_(True)])


def test_a_group_steps_all_of_its_optimizers():
    a, b = (Tensor([1.0]).is_param_(True) for _ in range(2))
    group = nn.optim.OptimizerGroup(nn.optim.SGD([a], lr=0.5), nn.optim.SGD([b], lr=0.25))
    a.grad, b.grad = Tensor([1.0]), Tensor([1.0])
    group.step()
    assert (a.item(), b.item()) == (0.5, 0.75)
    group.zero_grad()
    assert a.grad is None and b.grad is None


def test_training_a_line_by_backward_and_step():
    w, b = Tensor([0.0]).is_param_(True), Tensor([0.0]).is_param_(True)
    x, y = Tensor([0.0, 1.0, 2.0, 3.0]), Tensor([1.0, 3.0, 5.0, 7.0])
    optimizer = nn.optim.Adam([w, b], lr=0.125)
    for _ in range(150):
        optimizer.zero_grad()
        ((w * x + b - y) ** 2).mean().backward()
        optimizer.step()
    assert abs(w.item() - 2.0) < 0.05 and abs(b.item() - 1.0) < 0.1


def test_clipping_scales_all_gradients_to_the_joint_length():
    a, b = (Tensor([1.0, 1.0]).is_param_(True) for _ in range(2))
    a.grad, b.grad = Tensor([3.0, 0.0]), Tensor([0.0, 4.0])
    assert abs(nn.optim.clip_grad_norm([a, b], 1.0).item() - 5.0) < 1e-6
    np.testing.assert_allclose(a.grad.numpy(), [0.6, 0.0], rtol=1e-6)
    np.testing.assert_allclose(b.grad.numpy(), [0.0, 0.8], rtol=1e-6)
    assert abs(nn.optim.clip_grad_norm([a, b], 10.0).item() - 1.0) < 1e-5
    np.testing.assert_allclose(a.grad.numpy(), [0.6, 0.0], rtol=1e-6)
    a.grad = Tensor(np.full(3, 0.1))  # gradients of float64 are measured in it
    assert abs(nn.optim.clip_grad_norm([a], 10.0).item() - np.sqrt(3 * 0.1**2)) < 1e-15


# --- schedules ---


def rates(rate, count):
    return [rate(t) for t in range(count)]


def test_step_decay():
    np.testing.assert_allclose(rates(schedules.step_decay(1.0, 2, 0.5), 5), [1, 1, 0.5, 0.5, 0.25])


def test_cosine_ends_at_its_final_rate_and_stays():
    expected = [0.1 + 0.9 * 0.5 * (1 + np.cos(np.pi * t / 4)) for t in range(5)] + [0.1]
    np.testing.assert_allclose(rates(schedules.cosine(1.0, 4, 0.1), 6), expected)


def test_warm_up_rises_to_what_follows():
    rate = schedules.warm_up(4, schedules.step_decay(1.0, 2, 0.5))
    np.testing.assert_allclose(rates(rate, 8), [0, 0.25, 0.5, 0.75, 1, 1, 0.5, 0.5])


def test_one_cycle_rises_to_the_peak_and_falls_to_the_end():
    got = rates(schedules.one_cycle(1.0, 10, 0.3, 25.0, 100.0), 10)
    assert got[0] == pytest.approx(0.04) and max(got) == got[2] == pytest.approx(1.0)
    assert got[-1] == pytest.approx(0.0004) and got[2:] == sorted(got[2:], reverse=True)


def test_a_schedule_sets_the_rate_the_next_step_uses():
    p = Tensor([1.0]).is_param_(True)
    optimizer = nn.optim.SGD([p], lr=1.0)
    schedule = schedules.Schedule(optimizer, schedules.step_decay(0.5, 1, 0.5))
    for _ in range(2):
        p.grad = Tensor([1.0])
        optimizer.step()
        schedule.step()
    assert p.item() == 0.25 and schedule.get_lr() == 0.125
