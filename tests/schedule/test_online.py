"""Long softmax, logsumexp and argmax in parts: few kernels, and the plain formula's special values."""

from __future__ import annotations

import numpy as np
import pytest

from aril import Context, Tensor
from aril.device import GlobalCounters
from aril.ops import Ops
from aril.schedule.lower import lower
from tests.schedule.graphs import scheduled

SHAPES = [((1, 100_000), 1), ((100_003,), 0), ((3, 65_537), 1), ((70, 70_001), 1), ((40_000, 3), 0)]


def counted(value: Tensor) -> tuple[int, np.ndarray]:
    """(launches, the result)."""
    before = GlobalCounters.kernels
    value.realize()
    return GlobalCounters.kernels - before, value.numpy()


def draw(shape: tuple[int, ...]) -> np.ndarray:
    return (np.random.default_rng(1).standard_normal(shape) * 3).astype(np.float32)


@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_softmax_family_of_long_rows(shape: tuple[int, ...], axis: int) -> None:
    """Softmax, log_softmax and logsumexp agree with float64."""
    a = draw(shape)
    wide = a.astype(np.float64)
    top = wide.max(axis, keepdims=True)
    e = np.exp(wide - top)
    total = e.sum(axis, keepdims=True)
    x = Tensor(a).realize()
    np.testing.assert_allclose(x.softmax(axis).numpy(), e / total, rtol=5e-6)
    np.testing.assert_allclose(x.log_softmax(axis).numpy(), wide - top - np.log(total), rtol=1e-6, atol=1e-5)
    launches, result = counted(x.logsumexp(axis))
    np.testing.assert_allclose(result, (np.log(total) + top).squeeze(axis), rtol=1e-6)
    assert launches <= 2


@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_positions_in_long_rows(shape: tuple[int, ...], axis: int) -> None:
    """argmax and argmin in two kernels; of equal elements the first."""
    a = np.round(draw(shape) * 4)
    x = Tensor(a).realize()
    for ours, theirs in ((x.argmax(axis), a.argmax(axis)), (x.argmin(axis), a.argmin(axis))):
        launches, result = counted(ours)
        np.testing.assert_array_equal(result, theirs)
        assert launches <= 2


def test_positions_of_integers_and_of_nan() -> None:
    """Integers compare exactly; the first NaN is the greatest."""
    ints = np.random.default_rng(2).integers(-5, 5, 90_000).astype(np.int32)
    assert Tensor(ints).argmax().item() == ints.argmax()
    a = draw((90_000,))
    a[[70_000, 80_000]] = np.nan
    assert Tensor(a).argmax().item() == 70_000
    assert Tensor(np.full(50_000, -np.inf, np.float32)).argmax().item() == 0


@pytest.mark.parametrize("level", [0.0, 1e4, -1e4])
def test_masked_parts_count_for_nothing(level: float) -> None:
    """Parts of nothing but -inf, wherever the rest lies."""
    a = draw((2, 70_000)) + np.float32(level)
    a[0, :69_000] = -np.inf
    a[1, 3_000:] = -np.inf
    wide = a.astype(np.float64)
    top = wide.max(1, keepdims=True)
    e = np.exp(wide - top)
    x = Tensor(a).realize()
    np.testing.assert_allclose(x.softmax(1).numpy(), e / e.sum(1, keepdims=True), rtol=5e-6)
    np.testing.assert_allclose(x.logsumexp(1).numpy(), np.log(e.sum(1)) + top[:, 0], rtol=1e-6)


def test_special_rows_are_those_of_the_plain_formula() -> None:
    """A row of nothing but -inf, one with +inf and one with NaN."""
    a = np.zeros((3, 70_000), np.float32)
    a[0] = -np.inf
    a[1, 5] = np.inf
    a[2, 60_000] = np.nan
    x = Tensor(a).realize()
    short = Tensor(np.ascontiguousarray(a[:, [0, 5, 60_000]])).realize()
    np.testing.assert_array_equal(x.logsumexp(1).numpy(), short.logsumexp(1).numpy())
    assert np.isnan(x.softmax(1).numpy()).all()


@pytest.mark.parametrize(("own", "quotients"), [(True, 0), (False, 1)])
def test_a_softmax_has_one_division_a_row(own: bool, quotients: int) -> None:
    """Exponentials times the inverse of their sum; quotients by other numbers of a row stay quotients."""
    a = draw((40, 300))
    x = Tensor(a).realize()
    e = (x - x.max(1, keepdim=True)).exp()
    by = e.sum(1, keepdim=True) if own else x.max(1, keepdim=True)
    steps = scheduled(e / by)
    nodes = [n for item in steps.items if item.kernel is not None for n in item.kernel.toposort()]
    assert len([n for n in nodes if n.op is Ops.FDIV]) == quotients
    wide = np.exp(a.astype(np.float64) - a.max(1, keepdims=True))
    below = wide.sum(1, keepdims=True) if own else a.max(1, keepdims=True)
    np.testing.assert_allclose((e / by).numpy(), wide / below, rtol=5e-6)


def test_gradient_of_a_long_softmax() -> None:
    """The gradient of sum(w softmax(x)) is p (w - sum(w p))."""
    a, w = draw((1, 50_000)), draw((1, 50_000))[:, ::-1].copy()
    x = Tensor(a)
    (x.softmax(1) * Tensor(w)).sum().backward()
    p = np.exp(a.astype(np.float64) - a.max())
    p /= p.sum()
    np.testing.assert_allclose(x.grad.numpy(), p * (w - (w * p).sum()), rtol=1e-3, atol=1e-8)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int8])
def test_positions_in_rows_beyond_the_first_cache(dtype: type) -> None:
    """One loop with two accumulators finds the maximum and its place."""
    a = np.round(draw((65, 30_001)) * 4).astype(dtype)
    launches, result = counted(Tensor(a).realize().argmax(1))
    np.testing.assert_array_equal(result, a.argmax(1))
    assert launches == 1
    if a.dtype.kind == "f":
        a[:, 777] = np.nan
        np.testing.assert_array_equal(Tensor(a).argmax(1).numpy(), a.argmax(1))


@pytest.mark.parametrize("part", ["first", "middle", "last", "rest"])
@pytest.mark.parametrize("dtype", [np.float32, np.int16])
def test_of_the_parts_of_everything_one_is_gone_over_again(part: str, dtype: type) -> None:
    """The maxima of the parts, then the place in the first part that has the greatest: ties, NaN, what is left over."""
    a = np.round(draw((100_003,)) * 4).astype(dtype)
    place = {"first": 1, "middle": 50_001, "last": 99_900, "rest": 100_002}[part]
    a[[place, min(place + 1, 100_002), 100_002]] = np.nan if dtype is np.float32 else 1000
    x = Tensor(a).realize()
    found = x.argmax()
    bodies = [lower(item.kernel) for item in scheduled(found).items if item.kernel is not None]
    assert found.item() == a.argmax() == place
    assert len(bodies) == 2
    assert not [u for u in bodies[0].toposort() if u.op is Ops.TUPLE], "only maxima"
    assert max(int(u.src[0].vmax) for u in bodies[1].toposort() if u.op is Ops.RANGE) < 4000


def test_the_part_that_is_gone_over_again_is_proved_to_be_one() -> None:
    """CHECK_OOB proves the accesses of the kernel that reads at a place it has found itself."""
    a = draw((277, 331))
    with Context(CHECK_OOB=1):
        assert Tensor(a).argmax().item() == a.argmax()


def test_marks_that_rise_are_taken_from_all_parts() -> None:
    """The last of equal elements, and the first where an axis ahead of the parts is short."""
    a = np.round(draw((3, 40_001)) * 4)
    x = Tensor(a).realize()
    assert x.argmax().item() == a.argmax()
    places = Tensor.arange(a.size).reshape(3, 40_001)
    last = a.size - 1 - a.ravel()[::-1].argmax()
    assert (x == x.max()).where(places, 0).max().item() == last


VIEWS = {
    "whole": lambda t: t,
    "transposed": lambda t: t.T,
    "offset": lambda t: t[1:, 2:],
    "strided": lambda t: t[::2, ::-1],
}


@pytest.mark.parametrize("shape", [(281, 293), (3, 20_001), (20_001, 3)])
@pytest.mark.parametrize("view", VIEWS)
def test_positions_in_all_of_a_view(shape: tuple[int, ...], view: str) -> None:
    """Row by row as the view has them; each element is read along rows, not found by dividing its position."""
    a = np.round(draw(shape) * 4)
    t, want = VIEWS[view](Tensor(a).realize()), VIEWS[view](a)
    for ours, theirs in ((t.argmax(), want.argmax()), (t.argmin(), want.argmin())):
        assert ours.item() == theirs
    assert t.argmax(keepdim=True).shape == (1, 1)
    steps = scheduled(t.argmax())
    bodies = [lower(item.kernel) for item in steps.items if item.kernel is not None]
    assert len(bodies) <= 3
    odd = (Ops.FLOORDIV, Ops.FLOORMOD, Ops.CDIV, Ops.CMOD)
    assert not [u for b in bodies for u in b.toposort() if u.op in odd]
