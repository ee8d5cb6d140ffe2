"""Sharded tensors have the values that one device gives: operations, assignment, gradients, training, capture."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aril import Tensor, Variable, nn
from aril.config import Context
from aril.dtype import dtypes
from aril.engine.capture import JitError
from aril.function import function
from aril.jit import jit
from aril.nn import optim
from aril.nn.optim import SGD, AdamW
from aril.nn.state import get_state_dict, load_state_dict, safe_load, safe_save
from aril.schedule.shard import layout_of
from aril.uop import UOp

TWO = ("CPU", "CPU:1")
THREE = ("CPU", "CPU:1", "CPU:2")
ROWS = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32)

OPERATIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[np.ndarray], Any]]] = {
    "sum": (lambda t: t.sum(), lambda a: a.sum()),
    "sum over rows": (lambda t: t.sum(0), lambda a: a.sum(0)),
    "sum over columns": (lambda t: t.sum(1), lambda a: a.sum(1)),
    "greatest": (lambda t: t.max(0), lambda a: a.max(0)),
    "product": (lambda t: t.prod(1), lambda a: a.prod(1)),
    "index of the greatest": (lambda t: t.argmax(0), lambda a: a.argmax(0)),
    "a row": (lambda t: t[3] * 2, lambda a: a[3] * 2),
    "rows": (lambda t: t[1:4] + 1, lambda a: a[1:4] + 1),
    "every second": (lambda t: t[::2, ::3], lambda a: a[::2, ::3]),
    "reversed": (lambda t: t.flip(0) + t, lambda a: a[::-1] + a),
    "flat": (lambda t: t.reshape(35) * 2, lambda a: a.reshape(35) * 2),
    "reshaped across": (lambda t: t.reshape(7, 5) * 2, lambda a: a.reshape(7, 5) * 2),
    "transposed and flat": (lambda t: t.T.reshape(-1) * 2, lambda a: a.T.reshape(-1) * 2),
    "padded": (lambda t: t.pad(((1, 2), (3, 0))) + 1, lambda a: np.pad(a, ((1, 2), (3, 0))) + 1),
    "joined": (lambda t: t.cat(t * 2, dim=0), lambda a: np.concatenate([a, a * 2], 0)),
    "joined beside": (lambda t: t.cat(t * 2, dim=1), lambda a: np.concatenate([a, a * 2], 1)),
    "stacked": (lambda t: t.stack(t + 1, dim=1), lambda a: np.stack([a, a + 1], 1)),
    "with its transpose": (lambda t: t @ t.T, lambda a: a.astype(np.float64) @ a.T),
    "gram": (lambda t: t.T @ t, lambda a: a.T.astype(np.float64) @ a),
    "outer": (lambda t: t[:, :5] + t[:, :5].T, lambda a: a[:, :5] + a[:, :5].T),
    "running sum": (lambda t: t.cumsum(0), lambda a: a.cumsum(0)),
    "picked rows": (lambda t: t[[0, 4, 1, 1]], lambda a: a[[0, 4, 1, 1]]),
    "picked columns": (lambda t: t[:, [6, 0]], lambda a: a[:, [6, 0]]),
    "sorted": (lambda t: t.sort(0)[0], lambda a: np.sort(a, 0)),
    "comparison": (lambda t: (t > 0).sum(), lambda a: (a > 0).sum()),
    "integers": (lambda t: (t * 10).cast(dtypes.int32).sum(1), lambda a: (a * 10).astype(np.int32).sum(1)),
    "rolled": (lambda t: t.roll(2, 0), lambda a: np.roll(a, 2, 0)),
    "clipped": (lambda t: t.clip(-0.5, 0.5), lambda a: a.clip(-0.5, 0.5)),
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_operations(name: str, axis: int | None) -> None:
    ours, reference = OPERATIONS[name]
    x = Tensor(ROWS).shard(TWO, axis)
    for lazy in (True, False):  # from the copies on their way, and from memory
        out = ours(x if lazy else x.realize())
        assert out.device == TWO
        np.testing.assert_allclose(out.numpy(), reference(ROWS), rtol=1e-5, atol=1e-5)


def test_softmax_over_the_sharded_axis() -> None:
    e = np.exp(ROWS.astype(np.float64) - ROWS.max(0))
    np.testing.assert_allclose(Tensor(ROWS).shard(TWO, 0).softmax(0).numpy(), e / e.sum(0), rtol=1e-5)


@pytest.mark.parametrize("axis", [None, 0, 1, 2, 3])
def test_convolution(axis: int | None) -> None:
    from scipy.signal import correlate

    rng = np.random.default_rng(1)
    x, w = rng.normal(size=(4, 2, 6, 6)).astype(np.float32), rng.normal(size=(2, 2, 3, 3)).astype(np.float32)
    want = [
        [sum(correlate(x[n, c].astype(np.float64), w[o, c], "valid") for c in range(2)) for o in range(2)]
        for n in range(4)
    ]
    found = Tensor(x).shard(TWO, axis).conv2d(Tensor(w).shard(TWO))
    np.testing.assert_allclose(found.numpy(), want, rtol=1e-4, atol=1e-4)


def test_operands_split_on_different_axes() -> None:
    a, b = Tensor(ROWS).shard(THREE, 0), Tensor(ROWS * 2).shard(THREE, 1)
    assert ((a + b).numpy() == ROWS * 3).all()
    np.testing.assert_allclose((b - a).sum(1).numpy(), ROWS.sum(1), rtol=1e-5, atol=1e-5)


def test_devices_of_different_kinds() -> None:
    x = Tensor(ROWS).shard(("CPU", "PYTHON"), 0).realize()
    np.testing.assert_allclose((x * 2).sum(0).numpy(), ROWS.sum(0) * 2, rtol=1e-5, atol=1e-5)
    assert [p.base.arg.device for p in x.uop.src[0].src] == ["CPU", "PYTHON"]


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_any_shapes(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=3)))
    axis = data.draw(st.sampled_from([None, *range(len(shape))]))
    a = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
    x = Tensor(a).shard(THREE, axis)
    over = data.draw(st.integers(0, len(shape) - 1))
    order = data.draw(st.permutations(range(len(shape))))
    lo = [data.draw(st.integers(0, d)) for d in shape]
    hi = [data.draw(st.integers(l, d)) for l, d in zip(lo, shape, strict=True)]
    cut = tuple([slice(l, h) for l, h in zip(lo, hi, strict=True)])
    assert (x.sum(over).numpy() == a.sum(over)).all()
    assert ((x.permute(*order) * 2).reshape(-1).numpy() == (a.transpose(order) * 2).reshape(-1)).all()
    assert ((x[cut] + 1).numpy() == a[cut] + 1).all()
    assert (
        x.flip(over).pad(tuple([(1, 2)] * len(shape))).numpy() == np.pad(np.flip(a, over), 1 * [(1, 2)] * len(shape))
    ).all()


# --- places ---


def test_to_gathers_and_shard_splits_again() -> None:
    x = Tensor(ROWS).shard(THREE, 0)
    assert x.to("CPU:1").device == "CPU:1" and (x.to("CPU:1").numpy() == ROWS).all()
    y = x.shard(TWO, 1)
    assert layout_of(y.uop).lengths == (4, 3) and (y.numpy() == ROWS).all()  # type: ignore[union-attr]
    assert (x.to(THREE).numpy() == ROWS).all()
    assert Tensor(ROWS).shard_(TWO, 0).device == TWO


def test_shard_like() -> None:
    x = Tensor.zeros(5, 7).shard_like(Tensor(ROWS).shard(THREE, 1))
    assert layout_of(x.uop).axis == 1 and (x.numpy() == 0).all()  # type: ignore[union-attr]
    assert Tensor.zeros(3).shard_like(Tensor(ROWS).to("CPU:1")).device == "CPU:1"
    with pytest.raises(ValueError, match="cannot lie as one of shape"):
        Tensor.zeros(5, 6).shard_like(Tensor(ROWS).shard(THREE, 1))


def test_creation_on_several_devices() -> None:
    assert (Tensor(ROWS, device=TWO).numpy() == ROWS).all()
    assert (Tensor.zeros(3, device=TWO).realize() + 1).numpy().tolist() == [1.0] * 3
    Tensor.manual_seed(3)
    many = Tensor.rand(16, device=TWO).realize()
    Tensor.manual_seed(3)
    assert (Tensor.rand(16).numpy() == many.numpy()).all()


def test_what_cannot_be() -> None:
    x = Tensor(ROWS)
    with pytest.raises(TypeError, match="sequence of device names"):
        x.shard("CPU")
    with pytest.raises(ValueError, match="different devices"):
        x.shard(("CPU", "CPU:0"))
    with pytest.raises(IndexError, match="axis 2 does not exist"):
        x.shard(TWO, 2)
    with pytest.raises(IndexError, match="0-d"):
        Tensor(1.0).shard(TWO, 0)
    with pytest.raises(ValueError, match="operands lie on"):
        x.shard(TWO, 0) + x.shard(THREE, 0)


# --- assignment ---


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_assignment(axis: int | None) -> None:
    x, a = Tensor(ROWS).shard(THREE, axis).realize(), ROWS.copy()
    x[1:4] = 5.0
    a[1:4] = 5.0
    old = x * 1
    x[:, 2] = x[:, 3] * 2
    before = a.copy()
    a[:, 2] = a[:, 3] * 2
    x.assign(x + 1)
    a = a + 1
    assert (x.numpy() == a).all() and (old.numpy() == before).all()
    x.assign(Tensor(ROWS).shard(THREE, 1))  # laid out otherwise
    assert (x.numpy() == ROWS).all()
    x.assign(x.flip(0))  # overlapping itself
    assert (x.numpy() == ROWS[::-1]).all()
    x.assign(x)
    x.assign(Tensor(ROWS))  # from one device
    assert (x.numpy() == ROWS).all() and layout_of(x.uop).axis == axis  # type: ignore[union-attr]


def test_what_it_was_sharded_from_is_not_written() -> None:
    x = Tensor(ROWS)
    for axis in (None, 0):
        y = x.shard(TWO, axis).realize()
        y.assign(y * 0).realize()
        assert (x.numpy() == ROWS).all() and (y.numpy() == 0).all()


def test_assignment_by_picked_rows_and_masks() -> None:
    x, a = Tensor(ROWS).shard(TWO, 0).realize(), ROWS.copy()
    x[[0, 4]] = 1.0
    a[[0, 4]] = 1.0
    x[x > 0.5] = 0.0
    a[a > 0.5] = 0.0
    assert (x.numpy() == a).all()


def test_assignment_before_realizing() -> None:
    x = Tensor.zeros(6, 4).shard(TWO, 0)
    x += 1
    x.realize()
    assert x.numpy().sum() == 24 and layout_of(x.uop).lengths == (3, 3)  # type: ignore[union-attr]


@pytest.mark.parametrize("axis", [0, 1])
def test_assignment_across_the_axis(axis: int) -> None:
    a = np.arange(24, dtype=np.float32).reshape(2, 12)
    x = Tensor(a).shard(THREE, axis).clone().realize()
    a = a.copy()
    x.reshape(8, 3)[1:2].assign(Tensor.full((1, 3), -1.0))
    a.reshape(8, 3)[1:2] = -1
    x.reshape(24)[5:20].assign(x.reshape(24)[:15] * 2)  # overlaps what it is computed from
    a.reshape(24)[5:20] = a.reshape(24)[:15] * 2
    x.bitcast("int16").reshape(6, 8)[:, 3:5].assign(Tensor.full((6, 2), 0x4000, dtype="int16"))
    a.view(np.int16).reshape(6, 8)[:, 3:5] = 0x4000
    assert (x.numpy() == a).all() and layout_of(x.uop).axis == axis  # type: ignore[union-attr]


def test_an_offset_by_variable_on_the_sharded_axis() -> None:
    a = np.arange(20, dtype=np.float32).reshape(2, 10)
    x = Tensor(a).shard(THREE, 1).clone().realize()
    a = a.copy()
    for k in (0, 3, 7):
        at: UOp = Variable("at", 0, 7).bind(k)
        x.shrink(((0, 2), (at, at + 3))).assign(Tensor.full((2, 3), -float(k)))
        a[:, k : k + 3] = -k
        assert (x.numpy() == a).all()
        assert (x.shrink(((0, 2), (at, at + 3))).numpy() == a[:, k : k + 3]).all()


def test_a_view_that_others_copy_is_written_in_place() -> None:
    a = np.arange(12, dtype=np.int32).reshape(2, 6)
    x = Tensor(a).shard(THREE, 1).clone().realize()
    old = x[1:].to("CPU:2") * 3  # sends the row that is written
    x[1:].assign(x[1:] + x[1:].max())
    assert (x.numpy() == [a[0], a[1] + 11]).all() and (old.numpy() == a[1:] * 3).all()


def test_an_offset_by_variable() -> None:
    x, a = Tensor(np.zeros((8, 3), np.float32)).shard(TWO, 1).clone().realize(), np.zeros((8, 3), np.float32)
    for k in (2, 5):
        at: UOp = Variable("at", 0, 7).bind(k)
        x.shrink(((at, at + 1), (0, 3))).assign(Tensor.full((1, 3), float(k)).shard(TWO)).realize()
        a[k] = k
    assert (x.numpy() == a).all()


# --- gradients and training ---


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_gradients_reach_what_was_sharded(axis: int | None) -> None:
    x = Tensor(ROWS)
    (g,) = (x.shard(TWO, axis) ** 2).sum().gradient(x)
    assert g.device == "CPU"
    np.testing.assert_allclose(g.numpy(), 2 * ROWS, rtol=1e-6)
    y = Tensor(ROWS).shard(TWO, axis).realize()
    (g,) = (y * y * y).sum().gradient(y)
    assert g.device == TWO
    np.testing.assert_allclose(g.numpy(), 3 * ROWS**2, rtol=1e-5)
    (g,) = (y.to("CPU:1") * 3).sum().gradient(y)
    assert (g.numpy() == 3).all()


def test_functions() -> None:
    @function
    def twice(t: Tensor) -> Tensor:
        return (t * 2).sum(0)

    np.testing.assert_allclose(twice(Tensor(ROWS).shard(TWO, 0)).numpy(), ROWS.sum(0) * 2, rtol=1e-5, atol=1e-5)


RNG = np.random.default_rng(5)
BATCH = RNG.normal(size=(6, 4, 8)).astype(np.float32)
WANTED = RNG.normal(size=(6, 4, 8)).astype(np.float32)
WEIGHTS = {
    "qkv": RNG.normal(size=(8, 24)).astype(np.float32) * 0.3,
    "out": RNG.normal(size=(8, 8)).astype(np.float32) * 0.3,
    "up": RNG.normal(size=(8, 16)).astype(np.float32) * 0.3,
    "down": RNG.normal(size=(16, 8)).astype(np.float32) * 0.3,
    "scale": np.ones(8, np.float32),
}
PLANS: dict[str, tuple[dict[str, int], int | None]] = {  # the axis of each weight (others whole), the axis of the batch
    "data-parallel": ({}, 0),
    "tensor-parallel": ({"out": 0, "up": 1, "down": 0}, None),
    "fully sharded": (dict.fromkeys(WEIGHTS, 0), 0),
}


class Block:
    """A transformer block: attention of two heads, a feed-forward part, residual connections."""

    def __init__(self, plan: str | None, devices: tuple[str, ...]) -> None:
        self.w = {k: Tensor(v) for k, v in WEIGHTS.items()}
        if plan is not None:
            self.w = {k: v.shard(devices, PLANS[plan][0].get(k)) for k, v in self.w.items()}
        for v in self.w.values():
            v.is_param_()

    def __call__(self, x: Tensor) -> Tensor:
        w = self.w
        n, t, c = x.shape
        h = x.layernorm() * w["scale"]
        q, k, v = ((h @ w["qkv"]).reshape(n, t, 3, 2, c // 2)[:, :, i].permute(0, 2, 1, 3) for i in range(3))
        h = x + q.scaled_dot_product_attention(k, v).permute(0, 2, 1, 3).reshape(n, t, c) @ w["out"]
        return h + (h.layernorm() @ w["up"]).relu() @ w["down"]


def _train(
    plan: str | None, captured: bool, devices: tuple[str, ...] = TWO, steps: int = 4, rows: int = 6, low: bool = False
) -> tuple[list[float], Block]:
    """Losses and weights; `low`: activations and weights in bfloat16 for the forward and backward pass."""
    block = Block(plan, devices)
    optimizer = AdamW(list(block.w.values()), lr=0.01)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        if low:
            master = block.w
            block.w = {k: v.cast(dtypes.bfloat16) for k, v in master.items()}
            loss = ((block(x.cast(dtypes.bfloat16)).float() - y) ** 2).mean()
            block.w = master
        else:
            loss = ((block(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    run = jit(step) if captured else step
    losses = []
    for i in range(steps):
        x, y = Tensor(BATCH[:rows] + 0.1 * i), Tensor(WANTED[:rows])
        if plan is not None:
            x, y = x.shard(devices, PLANS[plan][1]), y.shard(devices, PLANS[plan][1])
        losses.append(run(x, y).item())
    for k, m in zip(block.w, optimizer.m, strict=True):  # state lies as its parameter does
        assert layout_of(m.uop) == layout_of(block.w[k].uop)
    return losses, block


@cache
def _one_device(rows: int = 6, low: bool = False) -> tuple[list[float], Block]:
    return _train(None, False, rows=rows, low=low)


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("plan", PLANS)
def test_training_equals_one_device(plan: str, captured: bool) -> None:
    losses, block = _train(plan, captured)
    alone, reference = _one_device()
    np.testing.assert_allclose(losses, alone, rtol=1e-4)
    for k, w in block.w.items():
        np.testing.assert_allclose(w.numpy(), reference.w[k].numpy(), rtol=1e-3, atol=1e-4)
        assert w.device == TWO


@pytest.mark.parametrize("plan", PLANS)
def test_training_with_uneven_parts_equals_one_device(plan: str) -> None:
    # 5 rows of the batch and 8 or 16 elements of the weights' axes over 3 devices
    losses, block = _train(plan, True, THREE, rows=5)
    alone, reference = _one_device(rows=5)
    np.testing.assert_allclose(losses, alone, rtol=1e-4)
    for k, w in block.w.items():
        np.testing.assert_allclose(w.numpy(), reference.w[k].numpy(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("plan", PLANS)
def test_training_in_bfloat16_equals_one_device(plan: str) -> None:
    losses, _ = _train(plan, True, low=True)
    alone, _ = _one_device(low=True)
    wide, _ = _one_device()
    # partial sums meet in another order, so results differ by roundings of 8 bits; they do from float32's too
    np.testing.assert_allclose(losses, alone, rtol=2e-2)
    assert losses[-1] < losses[0] and abs(losses[-1] - wide[-1]) < 0.03 * wide[-1]


@pytest.mark.parametrize("way", ["all2all", "ring"])
def test_training_by_other_collectives(way: str) -> None:
    with Context(ALLREDUCE=way):
        losses, _ = _train("data-parallel", True, THREE)
    np.testing.assert_allclose(losses, _one_device()[0], rtol=1e-4)


# --- capture ---


def test_a_captured_function_takes_and_gives_sharded_tensors() -> None:
    state = Tensor(np.zeros((5, 7), np.float32)).shard(THREE, 1).realize()

    @jit
    def add(x: Tensor) -> tuple[Tensor, Tensor]:
        state.assign(state + x)
        return x * 2, state.sum()

    total = np.zeros((5, 7), np.float32)
    for i in range(5):
        doubled, summed = add(Tensor(ROWS + i).shard(THREE, 1))
        total += ROWS + i
        np.testing.assert_allclose(doubled.numpy(), (ROWS + i) * 2, rtol=1e-6)
        assert doubled.device == THREE
        np.testing.assert_allclose(summed.item(), total.sum(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(state.numpy(), total, rtol=1e-5, atol=1e-5)


def test_a_captured_function_returns_its_sharded_input() -> None:
    @jit
    def bump(x: Tensor) -> Tensor:
        x.assign(x + 1)
        return x

    x = Tensor(ROWS).shard(TWO, 0).clone().realize()
    for i in range(4):
        bump(x)
        np.testing.assert_allclose(x.numpy(), ROWS + i + 1, rtol=1e-5)


def test_momentum_over_many_steps_keeps_memory_and_layout() -> None:
    w = Tensor(ROWS).shard(TWO, 0).is_param_()
    optimizer = SGD([w], lr=0.1, momentum=0.9)
    a, b = ROWS.astype(np.float64), np.zeros((5, 7))
    for _ in range(5):
        optimizer.zero_grad()
        (w * w).sum().backward()
        optimizer.step()
        b = 0.9 * b + 2 * a
        a = a - 0.1 * b
    np.testing.assert_allclose(w.numpy(), a, rtol=1e-4, atol=1e-5)
    assert layout_of(w.uop) == layout_of(optimizer.b[0].uop)


# --- around it ---


def test_files_are_read_in_parts(tmp_path: Path) -> None:
    path = str(tmp_path / "model.safetensors")
    safe_save({"w": Tensor(ROWS), "v": Tensor(ROWS).shard(TWO, 0)}, path)
    held = safe_load(path)
    for axis in (None, 0, 1):
        assert (held["w"].shard(TWO, axis).numpy() == ROWS).all()
    model = {"w": Tensor.zeros(5, 7).shard(TWO, 1).realize(), "v": Tensor.empty(5, 7, device=TWO)}
    load_state_dict(model, held)
    assert (model["w"].numpy() == ROWS).all() and (model["v"].numpy() == ROWS).all()
    assert layout_of(model["w"].uop).axis == 1  # type: ignore[union-attr]


def test_random_numbers_are_those_of_one_device_and_advance_in_replays() -> None:
    x = Tensor(ROWS).shard(TWO, 0).realize()
    with Context(TRAINING=1):
        Tensor.manual_seed(1)
        many = x.dropout(0.5).numpy()
        Tensor.manual_seed(1)
        assert (many == Tensor(ROWS).dropout(0.5).numpy()).all()
        drop = jit(lambda t: t.dropout(0.5) * 1)
        assert len({drop(x).numpy().tobytes() for _ in range(4)}) == 4


def test_symbolic_dimensions() -> None:
    x, n = Tensor(ROWS).shard(TWO, 0).realize(), Variable("n", 1, 7)
    for k in (3, 6):
        part = x.shrink(((0, 5), (0, n.bind(k))))
        np.testing.assert_allclose(part.sum(1).numpy(), ROWS[:, :k].sum(1), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(part.sum().numpy(), ROWS[:, :k].sum(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("of_index", [None, 0, 1])
def test_embedding_and_its_gradient(axis: int | None, of_index: int | None) -> None:
    w, i = np.arange(40, dtype=np.float32).reshape(10, 4), np.array([[1, 9, 3], [0, 5, 5]])
    table = Tensor(w).shard(TWO, axis).realize()
    out = table[Tensor(i).shard(TWO, of_index)]
    assert (out.numpy() == w[i]).all()
    want = np.zeros_like(w)
    np.add.at(want, i, 2 * w[i])
    np.testing.assert_allclose((out * out).sum().gradient(table)[0].numpy(), want)


def test_batch_norm_over_a_split_batch() -> None:
    x = np.random.default_rng(2).normal(size=(6, 8)).astype(np.float32)
    norm = nn.BatchNorm(8)
    for p in get_state_dict(norm).values():
        p.shard_(TWO)
    with Context(TRAINING=1):
        found = norm(Tensor(x).shard(TWO, 0)).numpy()
    wide = x.astype(np.float64)
    np.testing.assert_allclose(found, (wide - wide.mean(0)) / np.sqrt(wide.var(0) + 1e-5), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(norm.running_var.numpy(), 0.9 + 0.1 * wide.var(0, ddof=1), rtol=1e-4)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "LAMB", "LARS", "Muon"])
def test_optimizers_on_split_parameters(name: str) -> None:
    found = []
    for axis in (-1, 0, 1):
        w = Tensor(ROWS) if axis < 0 else Tensor(ROWS).shard(TWO, axis)
        optimizer = getattr(optim, name)([w.is_param_()], lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            ((w * w).sum() + w.exp().sum()).backward()
            optimizer.step()
        found.append(w.numpy())
    for f in found[1:]:
        np.testing.assert_allclose(f, found[0], rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_attention_split_on_any_axis(axis: int) -> None:
    q = np.random.default_rng(3).normal(size=(2, 4, 6, 8)).astype(np.float32)
    s = q.astype(np.float64) @ q.transpose(0, 1, 3, 2) / np.sqrt(8)
    s = np.where(np.tri(6, dtype=bool), s, -np.inf)
    e = np.exp(s - s.max(-1, keepdims=True))
    x = Tensor(q).shard(TWO, axis)
    found = x.scaled_dot_product_attention(x, x, is_causal=True)
    np.testing.assert_allclose(found.numpy(), e / e.sum(-1, keepdims=True) @ q, rtol=1e-4, atol=1e-5)


def test_every_form_of_the_graph_is_well_formed() -> None:
    with Context(SPEC=2):
        x = Tensor(ROWS).shard(TWO, 0)
        y = (x.T @ x + x.sum()).relu()
        assert y.sum().gradient(x)[0].numpy().shape == (5, 7)


def test_a_replay_refuses_another_layout() -> None:
    double = jit(lambda t: t * 2)
    for _ in range(3):
        double(Tensor(ROWS).shard(TWO, 0))
    with pytest.raises(JitError, match="shard it the same way"):
        double(Tensor(ROWS).shard(TWO, 1))


def test_capture_on_devices_of_different_kinds() -> None:
    add = jit(lambda t: (t * 2).sum(0) + t)
    for i in range(4):
        found = add(Tensor(ROWS + i).shard(("CPU", "PYTHON"), 0)).numpy()
        np.testing.assert_allclose(found, (ROWS + i).sum(0) * 2 + ROWS + i, rtol=1e-4, atol=1e-4)


def test_values_without_elements_meet_in_any_layout() -> None:
    a = np.zeros((5, 0, 1), np.int32)
    for axis in range(3):
        for other in range(3):
            x = Tensor(a).shard(THREE, axis) + Tensor(a).shard(THREE, other)
            assert x.numpy().shape == a.shape


def test_constants_have_memory_on_each_device_that_wants_them() -> None:
    a, b, c = Tensor.ones(3, 4, device=TWO), Tensor.ones(3, 4), Tensor.ones(3, 4, device="CPU:1")
    Tensor.realize(a, b, c)
    assert [t.uop.device for t in (a, b, c)] == [TWO, "CPU", "CPU:1"]
    later = Tensor.ones(3, 4).realize()
    assert later.uop.device == "CPU"
    later.assign(later * 2)
    assert [t.numpy().sum() for t in (a, b, c, later)] == [12, 12, 12, 24]
