"""Long reductions in parts: the results are NumPy's, whatever is left over, and large columns take two kernels."""

import numpy as np
import pytest

from aril import Tensor
from aril.codegen import chunks
from aril.ops import Ops
from aril.schedule import _CACHE, normalize, prepare, schedule
from tests.schedule.graphs import kernels

RNG = np.random.default_rng(11)


@pytest.fixture(autouse=True)
def _small_is_large(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prepare, "LARGE_MATRIX", 1 << 16)
    monkeypatch.setattr(prepare, "LARGE_STORED", 1 << 16)
    monkeypatch.setattr(prepare, "PART_BYTES", 1 << 14)
    _CACHE.clear()
    yield
    _CACHE.clear()


@pytest.mark.parametrize("shape", [(512, 64), (521, 67), (1000, 129), (4099, 64), (257, 300), (3, 700, 65)])
@pytest.mark.parametrize("what", ["sum", "max", "prod", "mean"])
def test_columns_of_a_large_matrix_are_reduced_in_parts(shape: tuple[int, ...], what: str) -> None:
    x = RNG.uniform(0.9, 1.1, shape).astype(np.float32)
    t = Tensor(x).realize()
    got = getattr(t, what)(-2)
    want = getattr(np, what)(x.astype(np.float64), -2)
    assert kernels(got) == 2
    np.testing.assert_allclose(got.numpy(), want, rtol=shape[-2] * 2.0**-24)  # the bound of a chain of roundings


def test_a_vector_times_a_matrix_is_read_in_the_order_of_memory() -> None:
    a, x = RNG.standard_normal((1031, 259)).astype(np.float32), RNG.standard_normal(1031).astype(np.float32)
    got = Tensor(x).realize() @ Tensor(a).realize()
    assert kernels(got) == 2
    np.testing.assert_allclose(got.numpy(), x.astype(np.float64) @ a, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("rows", [1031, 1024])
def test_rows_are_not_cut(rows: int) -> None:
    """A transposed matrix's columns lie in a row: one kernel."""
    a = RNG.standard_normal((rows, 259)).astype(np.float32)
    t = Tensor(a).realize()
    assert kernels(t.T.sum(0)) == 1
    assert kernels(t.sum(1)) == 1
    np.testing.assert_allclose(t.T.sum(0).numpy(), a.astype(np.float64).sum(1), rtol=1e-5, atol=1e-4)


def test_many_matrices_are_not_cut() -> None:
    x = RNG.standard_normal((64, 128, 65)).astype(np.float32)
    t = Tensor(x).realize()
    got = t.sum(1)
    assert kernels(got) == 1
    np.testing.assert_allclose(got.numpy(), x.astype(np.float64).sum(1), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("n", [1 << 15, 65_537, 100_003])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_a_long_vector_is_reduced_in_parts(n: int, dtype: str) -> None:
    x = RNG.integers(-9, 9, n).astype(dtype)
    t = Tensor(x).realize()
    assert t.sum().item() == x.sum(dtype=np.int64)
    assert t.max().item() == x.max()
    got = (t * 2 + 1).sum()
    assert kernels(got) == 2
    assert got.item() == (x.astype(np.int64) * 2 + 1).sum()


def test_rows_with_a_nan_stay_nan() -> None:
    x = np.zeros((600, 70), np.float32)
    x[599, 3] = x[0, 5] = np.nan
    assert np.array_equal(np.isnan(Tensor(x).realize().max(0).numpy()), np.isnan(x.max(0)))


@pytest.mark.parametrize("n", [65_536, 100_003])
def test_what_is_reduced_in_parts_is_not_stored_before(n: int) -> None:
    """A whole vector and a rest are two readers of other elements each."""
    x = RNG.standard_normal(n).astype(np.float32)
    t = Tensor(x).realize()
    assert kernels((t > 3).any()) == kernels((t * t).sum()) == 2
    assert bool((t > 10).any().item()) is False and bool((t > x.max() - 1e-3).any().item()) is True
    np.testing.assert_allclose((t * t + 1).sum().item(), (x.astype(np.float64) ** 2 + 1).sum(), rtol=1e-5)


def test_what_others_read_too_is_computed_once() -> None:
    x = RNG.standard_normal(100_003).astype(np.float32)
    y = Tensor(x).realize().exp()
    total = y.sum()
    Tensor.realize(y, total)
    np.testing.assert_allclose(total.item(), np.exp(x.astype(np.float64)).sum(), rtol=1e-5)
    np.testing.assert_allclose(y.numpy(), np.exp(x), rtol=1e-5)


def test_parts_lie_far_apart_in_memory() -> None:
    """Whichever way the matrix is seen, a part is whole rows of its memory."""
    a = RNG.standard_normal((281, 293)).astype(np.float32)
    t = Tensor(a).realize()
    assert prepare.axis_of_parts(t.uop, (0, 1), 64) == 0
    for x in (t.T, t.T * 2 + 1, t[1:, 3:].T, t.reshape(281, 1, 293).T.flip(0)):
        long = [i for i, d in enumerate(x.shape) if d > 1]
        assert prepare.axis_of_parts(x.uop, tuple(range(x.ndim)), 64) == long[-1]
    assert prepare.axis_of_parts(Tensor(RNG.standard_normal((3, 9000))).realize().uop, (0, 1), 64) == 1
    for x, want in ((t.T, a.T), (t[1:, 3:].T, a[1:, 3:].T)):
        assert x.max().item() == want.max()
        np.testing.assert_allclose(x.sum().item(), want.astype(np.float64).sum(), rtol=1e-4, atol=1e-2)


def test_blocks_of_columns_overlap_little() -> None:
    """Columns that two threads add cost as much as others."""
    assert chunks._least_overlap(1031, 512, 32) == 352  # three of them: 1056 columns, not 1536
    assert chunks._least_overlap(641, 128, 32) == 96  # seven: 672, not 768
    for n in range(256, 2100, 7):
        for block in (128, 256, 512):
            b = chunks._least_overlap(n, block, 32)
            assert b % 32 == 0 and -(-n // b) * b <= -(-n // block) * block


@pytest.mark.parametrize("n", [1021, 1031, 1409, 2003, 4099])
def test_few_rows_are_left_over(n: int) -> None:
    """One thread adds what is in no part, as the others' results."""
    x = Tensor(RNG.standard_normal((n, 1031)).astype(np.float32)).realize()
    body = schedule(normalize([x.sum(0).uop], ("CPU",)).graph, 1).items[0].kernel
    over = [u for u in body.toposort() if u.op is Ops.REDUCE][0].src[0].shape
    assert n - over[0] * over[1] <= 8
    np.testing.assert_allclose(x.sum(0).numpy(), x.numpy().astype(np.float64).sum(0), rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("shape", [(1207, 83), (520, 181), (2049, 65)])
def test_fewer_bytes_are_enough_where_all_of_them_are_in_memory(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a kernel computes before its rows are added is in the caches."""
    monkeypatch.setattr(prepare, "LARGE_MATRIX", 1 << 20)
    a, w = RNG.standard_normal(shape).astype(np.float32), RNG.standard_normal(shape[0]).astype(np.float32)
    x, y = Tensor(a).realize(), Tensor(w).realize()
    wide = a.astype(np.float64)
    for f, want in (
        (lambda: y @ x, w.astype(np.float64) @ wide),
        (lambda: (x[:, ::-1] * 2 + 1).sum(0), (wide[:, ::-1] * 2 + 1).sum(0)),
    ):
        assert kernels(f()) == 2
        np.testing.assert_allclose(f().numpy(), want, rtol=1e-4, atol=1e-3)
    means = x.mean(1, keepdim=True)
    assert prepare.is_stored((x * y.reshape(-1, 1) + 1).uop)
    assert not prepare.is_stored((x - means).uop)
    assert not prepare.is_stored((x + x.pad(((1, 0), (0, 0)))[1:]).uop)
    assert kernels((x - means).sum(0)) == 2  # the means, then the sums
