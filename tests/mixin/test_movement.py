"""Movement operations against NumPy: the same elements, in the arrangement asked for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from aril import Tensor
from aril.mixin.base import broadcast_shape
from tests.reference import evaluate
from tests.values import both, check, of_graph

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


@both
def test_reshape(value):
    check(value, Tensor(X).reshape(4, 6), X.reshape(4, 6))
    check(value, Tensor(X).reshape((-1, 2)), X.reshape(-1, 2))
    check(value, Tensor(X).view(None, 12), X.reshape(2, 12))
    check(value, Tensor(X).flatten(1), X.reshape(2, 12))
    check(value, Tensor(X).flatten(0, 1).unflatten(0, (-1, 3)), X)
    check(value, Tensor(np.float32(3)).flatten(), [3])
    check(value, Tensor(X).unsqueeze(1).squeeze(1).unsqueeze(-1), X[..., None])
    check(value, Tensor(X[:1, :, :1]).squeeze(), X[0, :, 0])
    for bad in ((5, 5), (-1, 7), (-1, -1, 2)):
        with pytest.raises(ValueError, match="reshape"):
            Tensor(X).reshape(bad)


@both
def test_expand_and_repeat(value):
    check(value, Tensor(X[:, :1]).expand(2, 5, 4), np.broadcast_to(X[:, :1], (2, 5, 4)))
    check(value, Tensor(X[:, :1]).expand(3, -1, 5, -1), np.broadcast_to(X[:, :1], (3, 2, 5, 4)))
    check(value, Tensor(X).repeat(2, 1, 3), np.tile(X, (2, 1, 3)))
    check(value, Tensor(X).repeat((2, 1, 1, 2)), np.tile(X, (2, 1, 1, 2)))
    check(value, Tensor(X).repeat_interleave(2, 1), np.repeat(X, 2, 1))
    check(value, Tensor(X).repeat_interleave(3), np.repeat(X, 3))
    with pytest.raises(ValueError, match="only axes of length 1"):
        Tensor(X).expand(2, 6, 4)


@both
def test_order_of_axes(value):
    check(value, Tensor(X).permute(2, 0, 1), X.transpose(2, 0, 1))
    check(value, Tensor(X).permute(-1, 0, 1), X.transpose(2, 0, 1))
    check(value, Tensor(X).transpose(), X.swapaxes(0, 1))
    check(value, Tensor(X).transpose(-1, 0), X.swapaxes(0, 2))
    check(value, Tensor(X[0]).T, X[0].T)
    check(value, Tensor(X).movedim(0, 2), np.moveaxis(X, 0, 2))
    check(value, Tensor(X).flip(0, -1), X[::-1, :, ::-1])
    check(value, Tensor(X).flip((1,)), X[:, ::-1])
    with pytest.raises(ValueError, match="no order"):
        Tensor(X).permute(0, 0, 1)
    with pytest.raises(IndexError, match="axis 3"):
        Tensor(X).transpose(3, 0)


@both
def test_shrink_and_pad(value):
    check(value, Tensor(X).shrink(((0, 1), None, (1, 3))), X[:1, :, 1:3])
    check(value, Tensor(X).shrink_to(1, None, 2), X[:1, :, :2])
    check(value, Tensor(X).pad(((1, 0), None, (0, 2))), np.pad(X, ((1, 0), (0, 0), (0, 2))))
    check(value, Tensor(X).pad((1, 2, 0, 1), value=7.5), np.pad(X, ((0, 0), (0, 1), (1, 2)), constant_values=7.5))
    check(value, Tensor(X).pad((-1, 2)), np.pad(X[..., 1:], ((0, 0), (0, 0), (0, 2))))
    check(value, Tensor(X).pad_to(None, 5, 4), np.pad(X, ((0, 0), (0, 2), (0, 0))))
    modes = (("reflect", "reflect"), ("replicate", "edge"), ("circular", "wrap"))
    for mode, theirs in modes:
        check(value, Tensor(X).pad((2, 3, 1, 0), mode=mode), np.pad(X, ((0, 0), (1, 0), (2, 3)), mode=theirs))
    with pytest.raises(IndexError, match="shrink"):
        Tensor(X).shrink(((0, 3), None, None))
    with pytest.raises(ValueError, match="reflect"):
        Tensor(X).pad((4, 0), mode="reflect")


@both
def test_parts(value):
    for got, want in zip(Tensor(X).split(2, 2), np.split(X, [2], 2), strict=True):
        check(value, got, want)
    for got, want in zip(Tensor(X).split([1, 3], -1), np.split(X, [1], 2), strict=True):
        check(value, got, want)
    assert [p.shape for p in Tensor(X).chunk(2, 1)] == [(2, 2, 4), (2, 1, 4)]
    with pytest.raises(ValueError, match="add up"):
        Tensor(X).split([1, 1], 2)


@both
def test_joining(value):
    check(value, Tensor(X).cat(Tensor(X[:, :1]), Tensor(X), dim=1), np.concatenate([X, X[:, :1], X], 1))
    check(value, Tensor(X).cat(Tensor(X.astype(np.int32)), dim=-1), np.concatenate([X, X], 2))
    check(value, Tensor(X).stack(Tensor(-X), dim=1), np.stack([X, -X], 1))
    check(value, Tensor(X).stack(Tensor(-X), dim=-1), np.stack([X, -X], -1))
    special = np.array([-0.0, np.nan, np.inf], np.float32)
    got = value(Tensor(special).cat(Tensor(special)))
    np.testing.assert_array_equal(np.signbit(got[[0, 3]]), [True, True])
    check(value, Tensor(special).cat(Tensor(special)), np.concatenate([special, special]))
    with pytest.raises(ValueError, match="differ outside"):
        Tensor(X).cat(Tensor(X[0]))


@both
def test_roll(value):
    check(value, Tensor(X).roll(1, 2), np.roll(X, 1, 2))
    check(value, Tensor(X).roll(-5, 1), np.roll(X, -5, 1))
    check(value, Tensor(X).roll((1, 2), (0, 2)), np.roll(X, (1, 2), (0, 2)))
    check(value, Tensor(X).roll(5), np.roll(X, 5))


@both
def test_windows(value):
    x = np.arange(20, dtype=np.float32).reshape(2, 10)
    for size, step in ((3, 1), (3, 2), (4, 4), (2, 3), (10, 1), (1, 5)):
        want = np.lib.stride_tricks.sliding_window_view(x, size, 1)[:, ::step]
        check(value, Tensor(x).unfold(1, size, step), want)
    check(value, Tensor(X).unfold(0, 2), np.lib.stride_tricks.sliding_window_view(X, 2, 0))
    with pytest.raises(ValueError, match="windows"):
        Tensor(x).unfold(1, 11)


@both
def test_diagonals(value):
    for offset in range(-4, 5):
        check(value, Tensor(X).diagonal(offset, 1, 2), np.diagonal(X, offset, 1, 2))
    check(value, Tensor(X).diagonal(1, 2, 0), np.diagonal(X, 1, 2, 0))
    check(value, Tensor(X[0, 0]).diag(), np.diag(X[0, 0]))


@both
def test_meshgrid_and_rearrange(value):
    a, b = np.arange(3), np.arange(4)
    for indexing in ("ij", "xy"):
        for got, want in zip(
            Tensor(a).meshgrid(Tensor(b), indexing=indexing), np.meshgrid(a, b, indexing=indexing), strict=True
        ):
            check(value, got, want)
    y = X.reshape(2, 12)
    check(value, Tensor(y).rearrange("b (h w) -> w b h", w=4), y.reshape(2, 3, 4).transpose(2, 0, 1))
    check(value, Tensor(X).rearrange("b ... -> (...) b"), X.reshape(2, 12).T)
    with pytest.raises(ValueError, match="rearrange"):
        Tensor(y).rearrange("a b -> a c")
    for formula, sizes, says in (
        ("(a b -> a b", {}, "no part of a formula"),
        ("a b -> b a", {"c": 3}, "does not name"),
        ("... a ... -> a ...", {}, "once"),
    ):
        with pytest.raises(ValueError, match=says):
            Tensor(y).rearrange(formula, **sizes)


@both
def test_empty_tensors(value):
    e = np.zeros((0, 3), np.float32)
    check(value, Tensor(e).reshape(3, 0), e.reshape(3, 0))
    check(value, Tensor(e).cat(Tensor(e)), e)
    check(value, Tensor(e).cat(Tensor(np.ones((2, 3), np.float32))), np.ones((2, 3)))
    check(value, Tensor(e).pad(((1, 1), None)), np.zeros((2, 3)))
    check(value, Tensor(e).flip(0), e)


shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=1, max_side=4)


@given(st.data(), shapes)
@settings(max_examples=60)
def test_any_chain_of_movements(data, shape):
    want = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)
    got = Tensor(want)
    for _ in range(data.draw(st.integers(1, 5))):
        n = want.ndim
        kind = data.draw(st.sampled_from(["flat", "permute", "pad", "shrink", "flip", "expand", "window"]))
        if kind == "flat":
            got, want = got.reshape(-1, 1), want.reshape(-1, 1)
        elif kind == "permute":
            order = data.draw(st.permutations(range(n)))
            got, want = got.permute(*order) if n else got, want.transpose(order)
        elif kind == "pad" and n:
            pairs = [data.draw(st.tuples(st.integers(0, 2), st.integers(0, 2))) for _ in range(n)]
            got, want = got.pad(pairs, value=-1), np.pad(want, pairs, constant_values=-1)
        elif kind == "shrink":
            cuts = [sorted((data.draw(st.integers(0, d)), data.draw(st.integers(0, d)))) for d in want.shape]
            if all(a < b for a, b in cuts):
                got, want = got.shrink(cuts), want[tuple(slice(a, b) for a, b in cuts)]
        elif kind == "flip" and n:
            axis = data.draw(st.integers(0, n - 1))
            got, want = got.flip(axis), np.flip(want, axis)
        elif kind == "expand":
            got, want = got.unsqueeze(0).expand(2, *want.shape), np.broadcast_to(want, (2, *want.shape))
        elif kind == "window" and n and want.size < 2000:
            axis = data.draw(st.integers(0, n - 1))
            size = data.draw(st.integers(1, want.shape[axis]))
            step = data.draw(st.integers(1, 3))
            view = np.lib.stride_tricks.sliding_window_view(want, size, axis)
            got, want = got.unfold(axis, size, step), view[(slice(None),) * axis + (slice(None, None, step),)]
    check(of_graph, got, want)


@given(shapes, st.data())
def test_broadcast_shapes_as_numpy(a, data):
    b = data.draw(shapes)
    try:
        want = np.broadcast_shapes(a, b)
    except ValueError:
        with pytest.raises(ValueError, match="broadcast"):
            broadcast_shape(a, b)
    else:
        assert broadcast_shape(a, b) == want


def test_movement_is_lazy_and_shares_nodes():
    x = Tensor(X)
    assert x.reshape(2, 3, 4) is x and x.expand(2, 3, 4).uop is x.uop
    assert x.reshape(6, 4).uop is x.reshape(-1, 4).uop
    assert x.permute(0, 1, 2) is x
    assert evaluate(x.reshape(24).uop).shape == (24,)


def test_lanes_that_read_one_element_keep_their_own_gates():
    x = np.float32([[1, 2, 3]])
    padded = Tensor(x).pad(((0, 1), (0, 1))).reshape(8) + 1
    np.testing.assert_array_equal(padded.numpy(), [2, 3, 4, 1, 1, 1, 1, 1])
