"""Random programs of views, reads and assignments in any order: NumPy does one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aril import Tensor

PLACES: dict[str, tuple[tuple[str, ...], int | None]] = {
    "one device": ((), None),
    "whole on two": (("CPU", "CPU:1"), None),
    "rows on two": (("CPU", "CPU:1"), 0),
    "columns on three": (("CPU", "CPU:1", "CPU:2"), 1),
}


def views(rng: np.random.Generator, t: Tensor, a: Any) -> tuple[Tensor, Any]:
    """A random view of both: slices, reversed axes, other shapes and orders, other types."""
    for _ in range(rng.integers(0, 4)):
        kind = rng.integers(0, 5)
        if kind == 0:
            axis = int(rng.integers(0, a.ndim))
            lo = int(rng.integers(0, a.shape[axis]))
            hi = int(rng.integers(lo + 1, a.shape[axis] + 1))
            key = tuple([slice(lo, hi) if i == axis else slice(None) for i in range(a.ndim)])
            t, a = t[key], a[key]
        elif kind == 1:
            axis = int(rng.integers(0, a.ndim))
            t, a = t.flip(axis), np.flip(a, axis)
        elif kind == 2:
            order = [int(i) for i in rng.permutation(a.ndim)]
            t, a = t.permute(*order), a.transpose(order)
        elif kind == 3:
            shapes = [s for s in ((-1,), (2, -1), (3, -1), (-1, 4), (2, -1, 2)) if a.size % abs(np.prod(s)) == 0]
            shape = shapes[rng.integers(0, len(shapes))]
            if np.shares_memory(new := a.reshape(shape), a):
                t, a = t.reshape(shape), new
        else:
            d = ("int16", "int32", "uint8", "uint32")[rng.integers(0, 4)]
            size = np.dtype(d).itemsize
            if size == a.dtype.itemsize or (
                a.strides[-1] == a.dtype.itemsize
                and a.shape[-1] * a.dtype.itemsize % size == 0
                and all(s % size == 0 for s in a.strides[:-1])
            ):
                t, a = t.bitcast(d), a.view(d)
    return t, a


def changed(rng: np.random.Generator, t: Tensor, a: Any) -> tuple[Tensor, Any]:
    """A value computed from both."""
    kind = rng.integers(0, 4)
    if kind == 0:
        return t, a.copy()
    if kind == 1:
        return t * 3 + 1, (a * 3 + 1).astype(a.dtype)
    if kind == 2:
        return t.flip(0), np.flip(a, 0).copy()
    return t + t.max(), (a + a.max()).astype(a.dtype)


def run(seed: int, devices: tuple[str, ...], axis: int | None, realized: bool) -> None:
    rng = np.random.default_rng(seed)
    start = rng.integers(-9, 9, (4, 6)).astype(np.int32)
    a = start.copy()
    x = Tensor(start)
    x = (x.shard(devices, axis) if devices else x).clone()
    x.assign(x + 1)  # pending, but from here on there is storage that views share
    a += 1
    if realized:
        x.realize()
    kept: list[tuple[Tensor, Any]] = []
    for _ in range(8):
        action = rng.integers(0, 7)
        if action <= 2:
            t, v = views(rng, x, a)
            others = [views(rng, x, a) for _ in range(8)]
            fit = [(p, q) for p, q in others if q.shape == v.shape]
            source = fit[0] if fit and action else (t, v)
            new, want = changed(rng, *source)
            t.assign(new.cast(t.dtype))
            v[...] = want.astype(v.dtype)
        elif action == 3:
            lo, step = int(rng.integers(0, 3)), int(rng.integers(1, 4))
            x[:, lo::step] = seed % 7
            a[:, lo::step] = seed % 7
        elif action == 4:
            x[[2, 0]] = x[[1, 2]]
            a[[2, 0]] = a[[1, 2]]
        elif action == 5:
            x[x > 4] = -2
            a[a > 4] = -2
        else:
            t, v = views(rng, x, a)
            kept.append((t * 3, v * 3))  # a view would go on showing the storage
        if rng.integers(0, 4) == 0:
            x.realize()
    assert (x.numpy() == a).all()
    for t, v in kept:
        assert (t.numpy() == v).all()


@pytest.mark.parametrize("realized", [False, True])
@pytest.mark.parametrize("place", PLACES)
def test_steps_have_the_order_in_which_they_are_written(place: str, realized: bool) -> None:
    for seed in range(8):
        run(seed, *PLACES[place], realized)
