"""Operands of contractions are copied where their sums would go from line to line, and only there."""

import numpy as np
import pytest

from aril import Tensor
from aril.schedule import _CACHE, operands
from tests.schedule.graphs import kernels

RNG = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def _few_lines(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(operands, "LINES", 64)
    monkeypatch.setattr(operands, "USES", 16)
    _CACHE.clear()
    yield
    _CACHE.clear()


def values(*shape: int, dtype: str = "float32") -> tuple[Tensor, np.ndarray]:
    t = Tensor(RNG.standard_normal(shape).astype(np.float32)).cast(dtype).realize()
    return t, t.cast("float64").numpy()


def close(got: Tensor, want: np.ndarray) -> None:
    np.testing.assert_allclose(got.cast("float64").numpy(), want, rtol=0, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize(("k", "m", "n"), [(100, 70, 60), (131, 65, 67), (65, 1024, 16)])
def test_a_transposed_left_operand_is_copied_once(k: int, m: int, n: int) -> None:
    (a, fa), (b, fb) = values(k, m), values(k, n)
    got = a.T @ b
    assert kernels(got) == 2
    close(got, fa.T @ fb)


def test_a_transposed_left_operand_of_a_batch_is_copied() -> None:
    (a, fa), (b, fb) = values(3, 100, 70), values(3, 100, 60)
    got = a.transpose(1, 2) @ b
    assert kernels(got) == 2
    close(got, fa.transpose(0, 2, 1) @ fb)


@pytest.mark.parametrize(("n", "t"), [(3, 40), (2, 131)])
def test_a_sum_over_several_axes_is_copied_too(n: int, t: int) -> None:
    """The gradient of a linear layer's weights sums over examples and places; below `LINES` steps nothing is copied."""
    (x, fx), (g, fg) = values(n, t, 70), values(n, t, 64)
    got = (g.reshape(n, t, 64, 1) * x.reshape(n, t, 1, 70)).sum((0, 1))
    assert kernels(got) == 2
    close(got, np.einsum("nto,nti->oi", fg, fx))
    (x, fx), (g, fg) = values(2, 20, 70), values(2, 20, 65)
    got = (g.reshape(2, 20, 65, 1) * x.reshape(2, 20, 1, 70)).sum((0, 1))
    assert kernels(got) == 1
    close(got, np.einsum("nto,nti->oi", fg, fx))


@pytest.mark.parametrize("form", ["plain", "right", "short", "few uses", "narrow"])
def test_others_are_read_where_they_are(form: str) -> None:
    shapes = {"plain": ((70, 100), (100, 60)), "right": ((70, 100), (60, 100)), "short": ((64, 70), (64, 60))}
    shapes |= {"few uses": ((100, 70), (100, 15)), "narrow": ((100, 63), (100, 60))}
    (a, fa), (b, fb) = values(*shapes[form][0]), values(*shapes[form][1])
    if form != "plain" and form != "right":
        a, fa = a.T, fa.T
    if form == "right":
        b, fb = b.T, fb.T
    got = a @ b
    assert kernels(got) == 1
    close(got, fa @ fb)


def test_casts_are_done_in_the_order_of_memory() -> None:
    (a, fa), (b, fb) = values(256, 260, dtype="bfloat16"), values(260, 300, dtype="bfloat16")
    close(a.matmul(b, dtype="float32"), fa @ fb)
    close(a.T.matmul(a, dtype="float32"), fa.T @ fa)


def test_gradients_of_a_product_are_right() -> None:
    (x, fx), (w, fw) = values(150, 80), values(80, 70)
    hidden = x @ w
    of_w, of_x = (hidden * hidden).sum().gradient(w, x)
    close(of_w, 2 * fx.T @ (fx @ fw))
    close(of_x, 2 * (fx @ fw) @ fw.T)


@pytest.mark.parametrize(
    ("kind", "narrow"),
    [("int32", "int8"), ("int32", "uint32"), ("int64", "uint16"), ("float32", "float16"), ("float64", "int16")],
)
def test_every_one_of_several_casts_is_done(kind: str, narrow: str) -> None:
    """A cast to a narrow type on the way to the type of the product was left out: its low bits, or its rounding."""
    rng = np.random.default_rng(0)
    a = (rng.standard_normal((24, 16)) * 100).astype(kind)
    a[0, :3] = (-3, 300, 70000 if kind[0] == "i" else 7)
    b = rng.standard_normal((16, 8))
    want = a.astype(narrow).astype(np.float64) @ b
    np.testing.assert_allclose((Tensor(a).cast(narrow) @ Tensor(b)).numpy(), want, rtol=1e-12, atol=1e-10)
    wide = Tensor(a).realize().T.cast(narrow).cast("float64").T @ Tensor(b)
    np.testing.assert_allclose(wide.numpy(), want, rtol=1e-12, atol=1e-10)
