"""Every operation of the table, and random programs of movements and reductions, give on several devices what they
give on one: values, dtypes and gradients, for uneven parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aril import Tensor
from tests.operations import TABLE, Row

DEVICES = ("CPU", "CPU:1", "CPU:2")
RNG = np.random.default_rng(0)
ONE = [None, 0, 1]
PAIRS = [(0, 0), (1, 1), (0, 1), (None, 1), (0, None)]


def both(f: Callable[..., Tensor], inputs: list[Any], devices: tuple[str, ...], axes: tuple[int | None, ...]) -> None:
    """`f` and the gradients of its sum, weighed at random, on one device and on several."""
    alone = [Tensor(a) for a in inputs]
    spread = [Tensor(a).shard(devices, axis).realize() for a, axis in zip(inputs, axes, strict=True)]
    want, found = f(*alone), f(*spread)
    assert found.dtype is want.dtype and found.device == devices
    np.testing.assert_allclose(found.numpy(), want.numpy(), rtol=1e-4, atol=1e-5)
    if want.dtype.kind == "f" and inputs[0].dtype.kind == "f":
        w = Tensor(np.random.default_rng(1).normal(size=want.shape).astype(np.float32))
        one = (want * w).sum().gradient(*alone)
        many = (found * w.shard(devices)).sum().gradient(*spread)
        for a, b in zip(many, one, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("number", "row"), list(enumerate(TABLE)), ids=[row.name for row in TABLE])
def test_operations_of_the_table(number: int, row: Row) -> None:
    rng = np.random.default_rng(number)
    a = [rng.uniform(row.low, row.high, (4, 5)).astype(np.float32) for _ in range(row.count)]
    if "f" not in row.takes:
        a = [np.ceil(x * 3).astype(np.int32) for x in a]
    devices = DEVICES[: 2 + number % 2]
    axes = (ONE[number % 3],) if row.count == 1 else PAIRS[number % 5]
    both(row.f, a, devices, axes)


def moves(rng: np.random.Generator, shape: tuple[int, ...]) -> list[Callable[[Tensor], Tensor]]:
    """What can be done with a value of this shape, on a random axis."""
    d = int(rng.integers(0, len(shape)))
    n, total = shape[d], int(np.prod(shape))
    lo = int(rng.integers(0, n))
    hi = int(rng.integers(lo + 1, n + 1))
    size, step = int(rng.integers(1, n + 1)), int(rng.integers(1, 3))
    order = [int(i) for i in rng.permutation(len(shape))]
    divisors = [i for i in range(1, total + 1) if total % i == 0]
    first = int(rng.choice(divisors))
    second = int(rng.choice([i for i in divisors if total // first % i == 0]))
    picks = [int(i) for i in rng.integers(0, n, 3)]

    def on_axis(t: Tensor, key: Any) -> Tensor:
        return t[tuple([key if i == d else slice(None) for i in range(t.ndim)])]

    return [
        lambda t: on_axis(t, slice(lo, hi)),
        lambda t: on_axis(t, slice(None, None, 2)),
        lambda t: on_axis(t, picks),
        lambda t: t.pad(tuple([(lo % 3, 2) if i == d else (0, 0) for i in range(t.ndim)])),
        lambda t: t.flip(d),
        lambda t: t.roll(lo, d),
        lambda t: t.permute(*order),
        lambda t: t.reshape(first, second, total // first // second),
        lambda t: t.reshape(first, total // first),
        lambda t: t.unfold(d, size, step).sum(-1),
        lambda t: t.cumsum(d),
        lambda t: t.cat(t * 2, dim=d),
        lambda t: t - t.mean(d, keepdim=True),
        lambda t: t.softmax(d) + t.max(d, keepdim=True),
        lambda t: (t > 0.1).where(t, t * 0.5),
        lambda t: t @ t.transpose(-1, -2) * 0.1,
    ]


@pytest.mark.parametrize("seed", range(12))
def test_random_programs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = [(4, 6), (6, 5), (3, 4, 5)][seed % 3]
    steps: list[Callable[[Tensor], Tensor]] = []
    now: tuple[int, ...] = shape
    while len(steps) < 4:
        found = moves(rng, now)
        step = found[int(rng.integers(0, len(found)))]
        after = step(Tensor.zeros(*now)).shape
        if np.prod(after) <= 500:
            steps.append(step)
            now = after

    def program(t: Tensor) -> Tensor:
        for step in steps:
            t = step(t)
        return t

    x = rng.normal(size=shape).astype(np.float32)
    both(program, [x], DEVICES[: 2 + seed % 2], (seed % len(shape),))


@pytest.mark.parametrize("length", [0, 1, 2])
def test_pads_of_devices_without_elements_have_their_value(length):
    x = np.arange(1.0, 1 + length)
    for pair in ((0, 1), (2, 0), (1, 2)):
        got = Tensor(x).shard(DEVICES, 0).pad((pair,), value=0.5)
        np.testing.assert_array_equal(got.numpy(), np.pad(x, pair, constant_values=0.5))
    empty = Tensor.empty(0, 2).realize()  # memory, not a constant
    np.testing.assert_array_equal(empty._pad(((1, 1), (0, 0)), 0.5).numpy(), np.full((2, 2), 0.5))


def test_lanes_that_lie_in_groups_apart_are_read_under_their_own_gates():
    """Windows over columns that are divided: the contiguous loads between the groups are nobody's."""
    x, m = RNG.normal(size=(2, 6, 8)), RNG.normal(size=(4, 3))

    def slope(t, other):
        y = t.unfold(1, 4, 2) @ other
        return (y * y).sum().gradient(t)[0].numpy()

    want = slope(Tensor(x), Tensor(m))
    np.testing.assert_allclose(slope(Tensor(x).shard(DEVICES, 2), Tensor(m).shard(DEVICES, 0)), want, rtol=1e-12)
