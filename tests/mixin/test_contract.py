"""Matrix products, einsum, convolutions and pooling against NumPy and SciPy in float64."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.signal import correlate

from aril import Context, Tensor, dtypes
from aril.ops import Ops
from tests.values import both, check

RNG = np.random.default_rng(3)


def sample(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


@both
@pytest.mark.parametrize(
    "a, b",
    [
        ((3, 4), (4, 5)),
        ((4,), (4, 5)),
        ((3, 4), (4,)),
        ((4,), (4,)),
        ((2, 3, 4), (4, 5)),
        ((2, 1, 3, 4), (3, 4, 5)),
        ((3, 0), (0, 2)),
    ],
)
def test_matrix_products(value, a, b):
    x, y = sample(*a), sample(*b)
    check(value, Tensor(x) @ Tensor(y), x.astype(np.float64) @ y.astype(np.float64), rtol=1e-5, atol=1e-5)


def test_errors_of_matrix_products():
    with pytest.raises(ValueError, match=r"matmul: \(2, 3\) by \(4, 5\)"):
        Tensor.zeros(2, 3) @ Tensor.zeros(4, 5)
    with pytest.raises(ValueError, match="scalars"):
        Tensor(1.0).dot(Tensor.zeros(3))


@both
def test_types_of_products(value):
    i8 = np.full((4, 300), 100, np.int8)
    out = Tensor(i8) @ Tensor(i8.T.copy())
    assert out.dtype is dtypes.int32
    check(value, out, np.full((4, 4), 3_000_000, np.int32))
    h = sample(4, 8).astype(np.float16)
    out = Tensor(h) @ Tensor(h.T.copy())
    assert out.dtype is dtypes.float16
    check(value, out, (h.astype(np.float64) @ h.T.astype(np.float64)).astype(np.float16), rtol=1e-3)
    assert Tensor(h).dot(Tensor(h.T.copy()), dtype="float32").dtype is dtypes.float32
    assert (Tensor(h) @ Tensor(h.T.copy()).float()).dtype is dtypes.float32


def test_a_product_is_one_multiplication_under_one_sum():
    out = (Tensor.empty(3, 4) @ Tensor.empty(4, 5)).uop
    ops = [u.op for u in out.toposort()]
    assert ops.count(Ops.MUL) == ops.count(Ops.REDUCE) == 1
    conv = Tensor.empty(2, 3, 8, 8).conv2d(Tensor.empty(4, 3, 3, 3), stride=2, padding=1).uop
    ops = [u.op for u in conv.toposort()]
    assert ops.count(Ops.MUL) == ops.count(Ops.REDUCE) == 1


@both
def test_linear(value):
    x, w, b = sample(5, 4), sample(4, 3), sample(3)
    check(value, Tensor(x).linear(Tensor(w), Tensor(b)), x @ w + b, rtol=1e-5, atol=1e-5)


@both
@pytest.mark.parametrize(
    "formula, shapes",
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("ij->ji", [(2, 3)]),
        ("ii", [(3, 3)]),
        ("ii->i", [(3, 3)]),
        ("ij,kj", [(2, 3), (4, 3)]),
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
        ("i,i->", [(4,), (4,)]),
        ("i,j->ij", [(3,), (4,)]),
        ("...ij,...jk->...ik", [(2, 3, 4), (4, 5)]),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
        ("ij->", [(2, 3)]),
        ("...i->...", [(2, 3, 4)]),
        ("iji->ij", [(3, 2, 3)]),
    ],
)
def test_einsum(value, formula, shapes):
    args = [sample(*s) for s in shapes]
    first, *rest = [Tensor(a) for a in args]
    check(
        value,
        first.einsum(formula, *rest),
        np.einsum(formula, *[a.astype(np.float64) for a in args]),
        rtol=1e-5,
        atol=1e-5,
    )


def test_errors_of_einsum():
    with pytest.raises(ValueError, match="einsum"):
        Tensor.zeros(2, 3).einsum("ij,jk->ik", Tensor.zeros(4, 5))
    with pytest.raises(ValueError, match="operands"):
        Tensor.zeros(2, 3).einsum("ij,jk->ik")


def convolution(x, w, groups=1, stride=1, padding=0, dilation=1):
    """Cross-correlation by its definition, over any number of axes."""
    n = x.ndim - 2
    stride, padding, dilation = [(v,) * n if isinstance(v, int) else v for v in (stride, padding, dilation)]
    x = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *[(p, p) for p in padding]])
    wide = np.zeros((*w.shape[:2], *[d * (k - 1) + 1 for d, k in zip(dilation, w.shape[2:], strict=True)]))
    wide[(slice(None), slice(None), *[slice(None, None, d) for d in dilation])] = w
    cin, rout = w.shape[1], w.shape[0] // groups
    out = [
        [
            correlate(image[g * cin : (g + 1) * cin], wide[g * rout + o], mode="valid")[0]
            for g in range(groups)
            for o in range(rout)
        ]
        for image in x
    ]
    return np.array(out)[(slice(None), slice(None), *[slice(None, None, s) for s in stride])]


CONVOLUTIONS = [
    {},
    {"stride": 2},
    {"padding": 1},
    {"stride": (2, 3), "padding": (1, 2)},
    {"dilation": 2},
    {"dilation": (1, 2), "stride": 2, "padding": 1},
]


@both
@pytest.mark.parametrize("options", CONVOLUTIONS)
def test_conv2d(value, options):
    x, w, b = sample(2, 4, 9, 8), sample(6, 4, 3, 2), sample(6)
    got = Tensor(x).conv2d(Tensor(w), Tensor(b), **options)
    check(value, got, convolution(x, w, **options) + b.reshape(1, 6, 1, 1), rtol=1e-5, atol=2e-5)


@both
def test_grouped_and_other_ranks(value):
    x, w = sample(2, 4, 7, 7), sample(6, 2, 3, 3)
    check(
        value, Tensor(x).conv2d(Tensor(w), groups=2, padding=1), convolution(x, w, 2, padding=1), rtol=1e-5, atol=2e-5
    )
    x, w = sample(2, 4, 7, 7), sample(4, 1, 3, 3)
    check(value, Tensor(x).conv2d(Tensor(w), groups=4), convolution(x, w, 4), rtol=1e-5, atol=2e-5)
    x, w = sample(2, 3, 10), sample(4, 3, 3)
    check(value, Tensor(x).conv2d(Tensor(w), stride=3), convolution(x, w, stride=3), rtol=1e-5, atol=2e-5)
    x, w = sample(1, 2, 4, 5, 6), sample(3, 2, 2, 3, 2)
    check(value, Tensor(x).conv2d(Tensor(w)), convolution(x, w), rtol=1e-5, atol=2e-5)
    x, w = sample(1, 2, 5, 5), sample(3, 2, 3, 3)
    want = convolution(np.pad(x, ((0, 0), (0, 0), (1, 0), (2, 3))), w)
    check(value, Tensor(x).conv2d(Tensor(w), padding=(2, 3, 1, 0)), want, rtol=1e-5, atol=2e-5)


def test_errors_of_convolutions():
    with pytest.raises(ValueError, match="channels"):
        Tensor.zeros(1, 3, 5, 5).conv2d(Tensor.zeros(2, 4, 3, 3))
    with pytest.raises(ValueError, match="does not fit"):
        Tensor.zeros(1, 3, 2, 2).conv2d(Tensor.zeros(2, 3, 3, 3))


@both
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stride": 2},
        {"padding": 1},
        {"stride": 2, "padding": 1, "output_padding": 1},
        {"dilation": 2},
        {"stride": 3, "dilation": 2, "padding": 2},
    ],
)
def test_conv_transpose2d(value, options):
    """<conv(x, w), y> = <x, conv_transpose(y, w)> for every x and y: compared through the matrix of the convolution."""
    y, w = sample(1, 4, 3, 4), sample(4, 2, 3, 2)
    got = Tensor(y).conv_transpose2d(Tensor(w), **options)
    extra = options.get("output_padding", 0)
    forward = {k: v for k, v in options.items() if k != "output_padding"}
    shape = got.shape
    want = np.zeros(shape)
    for i in np.ndindex(*shape[1:]):
        unit = np.zeros(shape, np.float32)
        unit[(0, *i)] = 1
        seen = convolution(unit, w, **forward)[:, :, : y.shape[2], : y.shape[3]]
        want[(0, *i)] = (seen * y).sum()
    assert extra in (0, 1)
    check(value, got, want, rtol=1e-5, atol=2e-5)


def pooled(x, kernel, stride, padding, fill, f):
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)), constant_values=fill)
    view = np.lib.stride_tricks.sliding_window_view(x, kernel, (2, 3))[:, :, ::stride, ::stride]
    return f(view, axis=(-2, -1))


@both
@pytest.mark.parametrize("kernel, stride, padding", [((2, 2), 2, 0), ((3, 3), 2, 1), ((3, 2), 1, 1)])
def test_pooling(value, kernel, stride, padding):
    x = sample(2, 3, 8, 9)
    got = Tensor(x).max_pool2d(kernel, stride, padding=padding)
    check(value, got, pooled(x, kernel, stride, padding, -np.inf, np.max))
    got = Tensor(x).avg_pool2d(kernel, stride, padding=padding)
    check(value, got, pooled(x, kernel, stride, padding, 0, np.mean), rtol=1e-5)
    ones = pooled(np.ones_like(x), kernel, stride, padding, 0, np.sum)
    got = Tensor(x).avg_pool2d(kernel, stride, padding=padding, count_include_pad=False)
    check(value, got, pooled(x, kernel, stride, padding, 0, np.sum) / ones, rtol=1e-5)


@both
def test_pooling_with_positions_and_back(value):
    x = sample(2, 3, 6, 8)
    top, where = Tensor(x).max_pool2d(return_indices=True)
    view = x.reshape(2, 3, 3, 2, 4, 2).transpose(0, 1, 2, 4, 3, 5).reshape(2, 3, 3, 4, 4)
    inner = view.argmax(-1)
    rows = np.arange(3)[:, None] * 2 + inner // 2
    columns = np.arange(4) * 2 + inner % 2
    check(value, where, (rows * 8 + columns).astype(np.int32))
    check(value, top, view.max(-1))
    want = np.where(
        x.reshape(2, 3, 48) == np.repeat(np.repeat(view.max(-1), 2, 2), 2, 3).reshape(2, 3, 48), x.reshape(2, 3, 48), 0
    )
    check(value, top.max_unpool2d(where), want.reshape(x.shape))


@both
def test_pooling_with_a_last_partial_window(value):
    x = sample(1, 1, 5, 5)
    want = pooled(np.pad(x, ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=-np.inf), (2, 2), 2, 0, 0, np.max)
    check(value, Tensor(x).max_pool2d(2, ceil_mode=True), want)
    sums = pooled(np.pad(x, ((0, 0), (0, 0), (0, 1), (0, 1))), (2, 2), 2, 0, 0, np.sum)
    counts = pooled(np.pad(np.ones_like(x), ((0, 0), (0, 0), (0, 1), (0, 1))), (2, 2), 2, 0, 0, np.sum)
    check(value, Tensor(x).avg_pool2d(2, ceil_mode=True), sums / counts, rtol=1e-5)


@both
def test_interpolate(value):
    x = np.array([[[0.0, 10.0, 20.0]]], np.float32)
    check(value, Tensor(x).interpolate((6,)), [[[0, 2.5, 7.5, 12.5, 17.5, 20]]])
    check(value, Tensor(x).interpolate((5,), align_corners=True), [[[0, 5, 10, 15, 20]]])
    check(value, Tensor(x).interpolate((6,), mode="nearest"), [[[0, 0, 10, 10, 20, 20]]])
    image = sample(1, 2, 4, 4)
    assert Tensor(image).interpolate((8, 2)).shape == (1, 2, 8, 2)


@both
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize("times", [(2, 3), (7, 1)])
def test_interpolation_by_whole_factors_repeats(value, mode, times):
    """Its gradient is a sum over the repeated samples: nothing is found by position."""
    x, g = sample(2, 3, 5, 41), sample(2, 3, 5 * times[0], 41 * times[1])
    t = Tensor(x)
    out = t.interpolate(g.shape[2:], mode)
    check(value, out, x.repeat(times[0], 2).repeat(times[1], 3))
    (gradient,) = out.gradient(t, gradient=Tensor(g))
    assert not any(u.op in (Ops.INDEX, Ops.SCATTER) for u in gradient.uop.toposort())
    want = g.astype(np.float64).reshape(2, 3, 5, times[0], 41, times[1]).sum((3, 5))
    check(value, gradient, want, rtol=1e-5, atol=1e-5)


@both
def test_gradients_of_convolutions(value):
    """The gradient of sum(conv * g) in x is the transposed convolution of g; in w the correlation of x with g."""
    x, w, g = sample(2, 2, 6, 5), sample(3, 2, 3, 3), sample(2, 3, 4, 3)
    tx, tw = Tensor(x), Tensor(w)
    gx, gw = tx.conv2d(tw).gradient(tx, tw, gradient=Tensor(g))
    check(value, gx, value(Tensor(g).conv_transpose2d(Tensor(w))), rtol=1e-5, atol=2e-5)
    want = np.array(
        [
            [sum(correlate(x[n, c].astype(np.float64), g[n, o], mode="valid") for n in range(2)) for c in range(2)]
            for o in range(3)
        ]
    )
    check(value, gw, want, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize(
    "shapes", [((3, 5), (5, 7)), ((2, 3, 4), (4, 4)), ((5,), (5, 2)), ((3, 5), (5,)), ((5,), (5,))]
)
def test_image_dot_is_the_product(shapes):
    a, b = (RNG.normal(size=s) for s in shapes)
    np.testing.assert_allclose(Tensor(a).image_dot(Tensor(b)).numpy(), a @ b, rtol=1e-12)
    with Context(FLOAT16=1):
        half = Tensor(a).image_dot(Tensor(b))
        assert half.dtype is dtypes.float64
        np.testing.assert_allclose(half.numpy(), a @ b, rtol=2e-2, atol=2e-2)
    with pytest.raises(ValueError, match="matmul"):
        Tensor(a).image_dot(Tensor(RNG.normal(size=(6, 2))))


@pytest.mark.parametrize(("groups", "cin", "cout"), [(1, 3, 5), (1, 4, 8), (2, 6, 10), (3, 3, 3)])
def test_image_conv2d_is_the_convolution(groups, cin, cout):
    x, w, b = RNG.normal(size=(2, cin, 6, 5)), RNG.normal(size=(cout, cin // groups, 3, 2)), RNG.normal(size=cout)
    more = {"groups": groups, "stride": 2, "padding": 1}
    t = Tensor(x), Tensor(w), Tensor(b)
    wanted, got = t[0].conv2d(t[1], t[2], **more), t[0].image_conv2d(t[1], t[2], **more)
    np.testing.assert_allclose(got.numpy(), wanted.numpy(), rtol=1e-12)
    windows = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    corner = windows[0, : cin // groups, :3, :2]
    np.testing.assert_allclose(got.numpy()[0, 0, 0, 0], (corner * w[0]).sum() + b[0], rtol=1e-12)
    for g, h in zip(got.sum().gradient(*t), wanted.sum().gradient(*t), strict=True):
        np.testing.assert_allclose(g.numpy(), h.numpy(), rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match="conv2d"):
        t[0].image_conv2d(Tensor(RNG.normal(size=(4, cin + 1, 1, 1))))
