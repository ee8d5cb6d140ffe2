"""Bound variables as sizes and offsets, eager and captured: the values of NumPy, and one kernel for all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aril import Tensor, Variable, jit
from aril.engine import compile as compiler
from aril.engine.realize import storage_of
from aril.ops import Ops
from aril.uop import UOp
from tests.operations import TABLE

X = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((6, 5)).astype(np.float32)

CASES: list[tuple[str, Callable[[Any, Any, Any], Any], Callable[[Any, Any, int], Any]]] = [
    ("elementwise", lambda x, w, n: x[:n] * 2 + 1, lambda x, w, n: x[:n] * 2 + 1),
    ("sum over the variable axis", lambda x, w, n: x[:n].sum(0), lambda x, w, n: x[:n].sum(0)),
    ("sum beside it", lambda x, w, n: x[:n].sum(1), lambda x, w, n: x[:n].sum(1)),
    ("sum of all", lambda x, w, n: x[:n].sum(), lambda x, w, n: x[:n].sum()),
    ("matmul", lambda x, w, n: x[:n] @ w, lambda x, w, n: x[:n] @ w),
    ("matmul over it", lambda x, w, n: x[:n].permute(1, 0) @ x[:n], lambda x, w, n: x[:n].T @ x[:n]),
    ("offset", lambda x, w, n: x[n] + 1, lambda x, w, n: x[n] + 1),
    ("window", lambda x, w, n: x[n : n + 2] * 3, lambda x, w, n: x[n : n + 2] * 3),
    ("reshape", lambda x, w, n: x[:n].reshape(n, 2, 3).sum(2), lambda x, w, n: x[:n].reshape(n, 2, 3).sum(2)),
    ("max", lambda x, w, n: x[:n].max(0), lambda x, w, n: x[:n].max(0)),
    ("softmax over it", lambda x, w, n: x[:n].softmax(0), lambda x, w, n: np.exp(x[:n]) / np.exp(x[:n]).sum(0)),
    ("mean", lambda x, w, n: x[:n].mean(0), lambda x, w, n: x[:n].mean(0)),
]


def value_of(t: Tensor, n: int) -> np.ndarray:
    """The elements of a tensor whose axes may have a variable length; its memory has room for the greatest."""
    if all(isinstance(d, int) for d in t.shape):
        return t.numpy()
    t.realize()
    room = [d if isinstance(d, int) else int(d.vmax) for d in t.shape]
    flat = np.frombuffer(storage_of(t.uop.base).as_memoryview(), np.float32)
    found = flat[: int(np.prod(room))].reshape(room)
    return found[tuple([slice(d) if isinstance(d, int) else slice(n) for d in t.shape])].copy()


@pytest.mark.parametrize(("build", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_one_kernel_for_all_values(build: Any, expected: Any) -> None:
    x, w, v = Tensor(X).realize(), Tensor(W).realize(), Variable("n", 1, 6)
    counts = []
    for n in (3, 1, 6, 4):
        found = value_of(build(x, w, v.bind(n)), n)
        np.testing.assert_allclose(found, expected(X, W, n), rtol=1e-5, atol=1e-5)
        counts.append(sum(compiler.stats.values()))
    assert counts[0] == counts[-1]


@pytest.mark.parametrize(("build", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_captured_once_for_all_values(build: Any, expected: Any) -> None:
    w, v = Tensor(W).realize(), Variable("n", 1, 6)
    f = jit(lambda x, n: build(x, w, n))
    for n in (3, 1, 6, 4, 2):
        x = (X * n).astype(np.float32)
        np.testing.assert_allclose(value_of(f(Tensor(x), v.bind(n)), n), expected(x, W, n), rtol=1e-4, atol=1e-4)


A = np.random.default_rng(2).standard_normal((70, 40)).astype(np.float32)
B = np.random.default_rng(3).standard_normal((40, 67)).astype(np.float32)
DEEP = np.random.default_rng(4).standard_normal((5000, 48)).astype(np.float32)
WIDE = np.random.default_rng(5).standard_normal((600, 2048)).astype(np.float32)

LARGE: list[tuple[str, int, Callable[[Any, Any, Any, Any, Any], Any]]] = [
    ("rows of a product", 70, lambda a, b, d, w, n: a[:n] @ b),
    ("columns of a product", 67, lambda a, b, d, w, n: a @ b[:, :n]),
    ("both", 40, lambda a, b, d, w, n: a[:n] @ b[:, :n]),
    ("terms of a product", 40, lambda a, b, d, w, n: a[:, :n] @ b[:n]),
    ("terms in a panel", 600, lambda a, b, d, w, n: w[:128, :n] @ w[:n, :256]),
    ("rows that lie apart", 48, lambda a, b, d, w, n: d[:, :n].permute(1, 0) @ d),
    ("columns of deep sums", 48, lambda a, b, d, w, n: d.permute(1, 0) @ d[:, :n]),
    ("rows with a tail", 70, lambda a, b, d, w, n: (a[:n] @ b + b[0]).relu()),
    ("column sums", 600, lambda a, b, d, w, n: w[:n].sum(0)),
    ("all sums", 600, lambda a, b, d, w, n: w[:n].sum()),
    ("largest of columns", 600, lambda a, b, d, w, n: w[:n].max(0)),
]


class _Numpy:
    """An array in float64 with the few methods the cases use."""

    def __init__(self, x: np.ndarray) -> None:
        self.x = x

    def __getitem__(self, at: Any) -> _Numpy:
        return _Numpy(self.x[at])

    def __matmul__(self, other: _Numpy) -> _Numpy:
        return _Numpy(self.x @ other.x)

    def __add__(self, other: _Numpy) -> _Numpy:
        return _Numpy(self.x + other.x)

    def permute(self, *order: int) -> _Numpy:
        return _Numpy(self.x.transpose(order))

    def relu(self) -> _Numpy:
        return _Numpy(np.maximum(self.x, 0))

    def sum(self, axis: int | None = None) -> _Numpy:
        return _Numpy(self.x.sum(axis))

    def max(self, axis: int) -> _Numpy:
        return _Numpy(self.x.max(axis))


@pytest.mark.parametrize(("most", "build"), [c[1:] for c in LARGE], ids=[c[0] for c in LARGE])
def test_tiles_of_variable_length_hold_all_values(most: int, build: Any) -> None:
    """Sizes at which products take register tiles and sums panels: below, at and beyond the edges of tiles."""
    tensors = [Tensor(x).realize() for x in (A, B, DEEP, WIDE)]
    arrays = [_Numpy(x.astype(np.float64)) for x in (A, B, DEEP, WIDE)]
    v = Variable("n", 1, most)
    counts = []
    for n in (most - 1, 1, 2, 7, 16, 17, 33, most):
        found = value_of(build(*tensors, v.bind(n)), n)
        np.testing.assert_allclose(found, build(*arrays, n).x, rtol=1e-4, atol=2e-4)
        counts.append(sum(compiler.stats.values()))
    assert counts[0] == counts[-1]


def test_attention_over_variable_rows_and_keys() -> None:
    """Rows handed on in scratch: tiles of queries whose last one ends earlier."""
    data = np.random.default_rng(6).standard_normal((8, 80, 32)).astype(np.float32)
    x, v = Tensor(data).realize(), Variable("n", 1, 80)
    counts = []
    for n in (79, 1, 7, 64, 65, 80):
        part = x[:, : v.bind(n)]
        y = part.scaled_dot_product_attention(part, part).realize()
        flat = np.frombuffer(storage_of(y.uop.base).as_memoryview(), np.float32)
        q = data[:, :n].astype(np.float64)
        weights = np.exp(q @ q.transpose(0, 2, 1) / np.sqrt(32))
        expected = weights @ q / weights.sum(-1, keepdims=True)
        np.testing.assert_allclose(flat.reshape(8, 80, 32)[:, :n], expected, rtol=1e-4, atol=1e-5)
        counts.append(sum(compiler.stats.values()))
    assert counts[0] == counts[-1]


def test_values_outside_of_the_bounds_are_refused() -> None:
    with pytest.raises(ValueError, match="n"):
        Variable("n", 1, 6).bind(7)


def test_two_values_in_one_computation_are_refused() -> None:
    x, v = Tensor(X).realize(), Variable("n", 1, 6)
    with pytest.raises(ValueError, match="bind it once"):
        (x[v.bind(2)] + x[v.bind(3)]).realize()


def test_assignment_at_a_variable_place() -> None:
    x, v = Tensor(np.zeros((8, 2), np.float32)).realize(), Variable("n", 0, 7)
    expected = np.zeros((8, 2), np.float32)
    for n in (3, 0, 7):
        place = v.bind(n)
        x[place : place + 1] = x[place : place + 1] + Tensor(np.full((1, 2), n + 1, np.float32))
        x.realize()
        expected[n] += n + 1
        np.testing.assert_array_equal(x.numpy(), expected)


def test_a_part_beyond_its_axis_is_refused_with_the_values_that_make_it_so():
    n = Variable("n", 1, 10)
    x = Tensor(np.arange(10, dtype=np.float32)).realize()
    assert x[n.bind(8) : n.bind(8) + 2].tolist() == [8, 9]
    with pytest.raises(IndexError, match=r"indexing: 9 to 11 lies outside an axis of 10 \(shape \(10,\)\)"):
        x[n.bind(9) : n.bind(9) + 2]
    with pytest.raises(IndexError, match="shrink: 0 to 9 lies outside an axis of 5"):
        x[:5].shrink([(0, n.bind(9))])
    with pytest.raises(IndexError, match="indexing: 10 to 11 lies outside"):
        x[n.bind(10)]
    assert x[-2 : n.bind(9)].tolist() == [8] and x[n.bind(7) : -1].tolist() == [7, 8]


def test_a_reshape_has_as_many_elements_as_the_values_say():
    """It read on in memory behind the buffer, or left elements out."""
    n = Variable("n", 1, 8)
    x = Tensor(np.arange(100, dtype=np.float32).reshape(10, 10)).realize()
    rows = x[: n.bind(5) + 2]
    assert rows.reshape(7, 2, 5).tolist() == np.arange(70).reshape(7, 2, 5).tolist()
    for shape, count in (((40, 10), 400), ((3, 7), 21), ((n.bind(5), 10), 50)):
        with pytest.raises(ValueError, match=f"has 70 elements, .* would have {count}; the numbers must agree"):
            rows.reshape(*shape)
    fixed = jit(lambda x, i: x[: i + 2].reshape(7, 10).sum().realize())
    for _ in range(3):
        assert fixed(x, n.bind(5)).item() == 70 * 69 / 2
    for i, message in ((3, r"0 to 70 \(excluded\) of an axis of 50"), (8, r"0 to 100 \(excluded\) of an axis of 70")):
        with pytest.raises(IndexError, match=message):
            fixed(x, n.bind(i))


def test_an_assignment_beyond_its_axis_writes_nothing():
    n = Variable("n", 0, 10)
    around = Tensor(np.zeros(12, np.float32)).realize()
    cache = around[:8]
    with pytest.raises(IndexError, match="indexing: 8 to 9 lies outside an axis of 8"):
        cache[n.bind(8) : n.bind(8) + 1] = 5
    assert around.tolist() == [0] * 12


def test_a_replay_refuses_what_the_captured_call_did_not_meet():
    n = Variable("n", 0, 10)
    cache = Tensor(np.zeros(8, np.float32)).realize()

    @jit
    def put(i, value: Tensor) -> Tensor:
        cache[i : i + 1] = value
        return cache.sum().realize()

    for i in range(8):
        assert put(n.bind(i), Tensor([1.0]).realize()).item() == i + 1
    message = r"elements 8 to 9 \(excluded\) of an axis of 8 do not exist: n to \(n\+1\) where n is 8; bind"
    with pytest.raises(IndexError, match=message):
        put(n.bind(8), Tensor([1.0]).realize())
    assert cache.tolist() == [1] * 8
    assert put(n.bind(0), Tensor([3.0]).realize()).item() == 10


def test_parts_that_bounds_keep_inside_cost_no_check():
    from aril.schedule import normalize, schedule

    n = Variable("n", 1, 8)
    x = Tensor(np.arange(10, dtype=np.float32)).realize()
    for value in (x[n.bind(3) : n.bind(3) + 2], x.shrink([(0, n.bind(2))]).sum(), x[: n.bind(2)].max()):
        normal = normalize([value.uop], ("CPU",))
        assert schedule(normal.graph, len(normal.buffers)).limits == ()


REFUSED = {"diagonal", "step", "interpolate", "scaled_dot_product_attention", "split", "chunk"}
# Their operands in the table are made for a known length: they are among the cases below.
MADE_FOR = {"cross_entropy", "sparse_categorical_crossentropy", "nll_loss", "gather", "scatter", "scatter_reduce"}


@pytest.fixture
def undecided(monkeypatch):
    """An operation that asks whether an expression in variables is true would take "not known" for true."""

    def truth(u: UOp) -> bool:
        assert u.dtype.kind != "b" or not any(n.op is Ops.BIND for n in u.toposort()), f"decides by {u!r}"
        return True

    monkeypatch.setattr(UOp, "__bool__", truth, raising=False)


rows = [r for r in TABLE if r.name not in MADE_FOR]


@pytest.mark.parametrize("row", rows, ids=[r.name for r in rows])
def test_operations_over_a_variable_axis(row, undecided):
    """The values of NumPy at several lengths from one compiled kernel, or an error in plain words."""
    v, rng = Variable("n", 2, 9), np.random.default_rng(0)
    kind = np.float64 if "f" in row.takes else np.int64
    raw = [rng.uniform(row.low, row.high, (2, 9)).astype(kind) for _ in range(row.count)]
    tensors, counts = [Tensor(a).realize() for a in raw], []
    for n in (5, 2, 9, 7):
        try:
            out = row.f(*[t[:, : v.bind(n)] for t in tensors])
        except (ValueError, TypeError, IndexError) as error:
            text = str(error)
            assert "UOp" not in text and "variable" in text and row.name in REFUSED, text
            return
        assert row.name not in REFUSED
        np.testing.assert_allclose(out.numpy(), row.ref(*[a[:, :n] for a in raw]), rtol=1e-12, atol=1e-14)
        counts.append(sum(compiler.stats.values()))
    assert counts[0] == counts[-1]


LINES = np.random.default_rng(7).standard_normal((2, 3, 75)).astype(np.float32)
TAPS = np.random.default_rng(8).standard_normal((4, 3, 3)).astype(np.float32)
BACK = np.random.default_rng(9).standard_normal((3, 4, 3)).astype(np.float32)


def windows(x: np.ndarray, size: int, step: int = 1, apart: int = 1) -> np.ndarray:
    """(.., windows, size) of the last axis."""
    count = (x.shape[-1] - apart * (size - 1) - 1) // step + 1
    at = np.arange(count)[:, None] * step + np.arange(size) * apart
    return x[..., at]


def convolved(x: np.ndarray, step: int = 1, apart: int = 1, around: int = 0) -> np.ndarray:
    padded = np.pad(x, ((0, 0), (0, 0), (around, around)))
    return np.einsum("bcnk,ock->bon", windows(padded, 3, step, apart), TAPS)


def spread(x: np.ndarray, step: int) -> np.ndarray:
    out = np.zeros((x.shape[0], 4, (x.shape[2] - 1) * step + 3))
    for k in range(3):
        out[:, :, k : k + (x.shape[2] - 1) * step + 1 : step] += np.einsum("bcn,co->bon", x, BACK[:, :, k])
    return out


def put(x: np.ndarray) -> np.ndarray:
    out = x.copy()
    out[:, :, [1, 0]] = 7
    return out


def sampled(x: np.ndarray, new: int) -> np.ndarray:
    at = np.clip((np.arange(new) + 0.5) * x.shape[-1] / new - 0.5, 0, x.shape[-1] - 1)
    low = np.floor(at).astype(int)
    return x[..., low] * (1 - (at - low)) + x[..., np.minimum(low + 1, x.shape[-1] - 1)] * (at - low)


OVER: dict[str, tuple[Callable[[Tensor], Any], Callable[[np.ndarray], np.ndarray]]] = {
    "convolution": (lambda x: x.conv2d(Tensor(TAPS), padding=1), lambda x: convolved(x, around=1)),
    "with a step": (lambda x: x.conv2d(Tensor(TAPS), stride=2, padding=1), lambda x: convolved(x, 2, around=1)),
    "dilated": (lambda x: x.conv2d(Tensor(TAPS), dilation=2, padding=2), lambda x: convolved(x, 1, 2, 2)),
    "transposed": (lambda x: x.conv_transpose2d(Tensor(BACK)), lambda x: spread(x, 1)),
    "transposed with a step": (lambda x: x.conv_transpose2d(Tensor(BACK), stride=2), lambda x: spread(x, 2)),
    "maxima of windows": (lambda x: x.max_pool2d((3,), stride=2), lambda x: windows(x, 3, 2).max(-1)),
    "maxima of blocks": (lambda x: x.max_pool2d((3,)), lambda x: windows(x, 3, 3).max(-1)),
    "means of windows": (lambda x: x.avg_pool2d((2,), stride=1), lambda x: windows(x, 2).mean(-1)),
    "windows": (lambda x: x.unfold(2, 3, 2), lambda x: windows(x, 3, 2)),
    "cumsum": (lambda x: x.cumsum(2), lambda x: x.cumsum(2)),
    "cumprod": (lambda x: x.cumprod(2), lambda x: x.cumprod(2)),
    "cummax": (lambda x: x.cummax(2), lambda x: np.maximum.accumulate(x, 2)),
    "cumsum beside it": (lambda x: x.cumsum(1), lambda x: x.cumsum(1)),
    "sort": (lambda x: x.sort(2)[0], lambda x: np.sort(x, 2)),
    "descending": (lambda x: x.sort(2, descending=True)[0], lambda x: -np.sort(-x, 2)),
    "argsort": (lambda x: x.argsort(2), lambda x: np.argsort(x, 2, kind="stable")),
    "sort beside it": (lambda x: x.sort(1)[0], lambda x: np.sort(x, 1)),
    "topk": (lambda x: x.topk(3, 2)[0], lambda x: -np.sort(-x, 2)[..., :3]),
    "roll": (lambda x: x.roll(2, 2), lambda x: np.roll(x, 2, 2)),
    "roll back": (lambda x: x.roll(-3, 2), lambda x: np.roll(x, -3, 2)),
    "roll round": (lambda x: x.roll(100, 2), lambda x: np.roll(x, 100, 2)),
    "roll all": (lambda x: x.roll(5), lambda x: np.roll(x, 5)),
    "reflect": (lambda x: x.pad((2, 3), mode="reflect"), lambda x: np.pad(x, ((0, 0), (0, 0), (2, 3)), mode="reflect")),
    "circular": (lambda x: x.pad((2, 3), mode="circular"), lambda x: np.pad(x, ((0, 0), (0, 0), (2, 3)), mode="wrap")),
    "replicate": (
        lambda x: x.pad((2, 3), mode="replicate"),
        lambda x: np.pad(x, ((0, 0), (0, 0), (2, 3)), mode="edge"),
    ),
    "cut": (lambda x: x.pad((-1, -2)), lambda x: x[..., 1:-2]),
    "cat": (lambda x: x.cat(x, dim=2), lambda x: np.concatenate([x, x], 2)),
    "split": (lambda x: x.split([2, x.shape[2] - 2], 2)[1], lambda x: x[..., 2:]),
    "linear samples": (lambda x: x.interpolate((9,)), lambda x: sampled(x, 9)),
    "nearest samples": (
        lambda x: x.interpolate((9,), mode="nearest"),
        lambda x: x[..., np.arange(9) * x.shape[2] // 9],
    ),
    "diagonal": (
        lambda x: x[:, :1].transpose(1, 2).expand(2, x.shape[2], x.shape[2]).diagonal(0, 1, 2),
        lambda x: x[:, 0],
    ),
    "gather": (lambda x: x.gather(2, Tensor([[[1, -1, 99]]]).expand(2, 3, 3)), lambda x: x[:, :, [1, -1, -1]]),
    "scatter": (lambda x: x.scatter(2, Tensor([[[1, 0]]]).expand(2, 3, 2), 7.0), put),
    "class": (
        lambda x: x[:, 0].cross_entropy(Tensor([1, 3])),
        lambda x: np.mean(np.log(np.exp(x[:, 0]).sum(1)) - x[[0, 1], 0, [1, 3]]),
    ),
    "positions": (lambda x: x[0, 0] * Tensor.arange(x.shape[2]), lambda x: x[0, 0] * np.arange(x.shape[2])),
    "attention": (
        lambda x: x.scaled_dot_product_attention(x, x, scale=0.5),
        lambda x: (lambda e: (e / e.sum(-1, keepdims=True)) @ x)(np.exp(x @ x.transpose(0, 2, 1) * 0.5)),
    ),
}


@pytest.mark.parametrize("name", OVER)
def test_windows_and_orders_over_a_variable_axis(name, undecided):
    build, expected = OVER[name]
    v, x, counts = Variable("n", 6, 75), Tensor(LINES).realize(), []
    for n in (40, 6, 75, 33, 64, 7):
        want = expected(LINES[..., :n].astype(np.float64))
        np.testing.assert_allclose(build(x[..., : v.bind(n)]).numpy(), want, rtol=1e-4, atol=1e-4)
        counts.append(sum(compiler.stats.values()))
    assert counts[0] == counts[-1]


@pytest.mark.parametrize("name", ["convolution", "with a step", "transposed", "cumsum", "maxima of windows", "sort"])
def test_gradients_and_replays_over_a_variable_axis(name):
    """Against finite differences of NumPy's form."""
    build, expected = OVER[name]
    v, rng = Variable("n", 6, 20), np.random.default_rng(3)
    data, weight = rng.standard_normal((2, 3, 20)), rng.standard_normal((2, 4, 48))

    def loss(x: np.ndarray) -> float:
        y = expected(x)
        return float((y * weight[:, : y.shape[1], : y.shape[2]]).sum())

    def slope(x: Tensor, n: Any) -> Tensor:
        x = x.double()
        y = build(x[..., :n])
        w = Tensor(weight).realize()[:, : y.shape[1], : y.shape[2]]
        return (y.double() * w).sum().gradient(x)[0].realize()

    step = jit(slope)
    for n in (11, 6, 20, 7):
        want = np.zeros_like(data)
        for at in np.ndindex(2, 3, n):
            h = np.zeros_like(data)
            h[at] = 1e-5
            want[at] = (loss((data + h)[..., :n]) - loss((data - h)[..., :n])) / 2e-5
        np.testing.assert_allclose(step(Tensor(data).realize(), v.bind(n)).numpy(), want, rtol=1e-5, atol=1e-5)


def test_what_needs_a_known_length_says_so():
    v, x = Variable("n", 6, 75), Tensor(LINES).realize()
    part = x[0, :, : v.bind(9)]
    refused: list[Callable[[], Any]] = [
        lambda: part.chunk(2, 1),
        lambda: part.split(2, 1),
        lambda: len(part.T),
        lambda: part.qr(),
        lambda: part.max_pool2d((2,), ceil_mode=True),
        lambda: part.scaled_dot_product_attention(part, part),
    ]
    for f in refused:
        with pytest.raises(ValueError, match=r"axis [01] of shape \(.*n=9.*\) has a variable length"):
            f()
    with pytest.raises(ValueError, match="topk: 80 elements of an axis of n=9"):
        part.topk(80, 1)
    with pytest.raises(ValueError, match=r"a kernel of \(12,\) .* does not fit into \(2, 3, n=9\)"):
        x[..., : v.bind(9)].conv2d(Tensor.ones(1, 3, 12))
    assert f"{part.shape}" == "(3, n=9)" and f"{part.pad((1, 2)).shape[1]}" == "(n+3)=12"
