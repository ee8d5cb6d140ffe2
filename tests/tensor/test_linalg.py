"""Decompositions against NumPy: the factors give the matrix back, are orthogonal, and differentiate."""

from __future__ import annotations

import numpy as np
import pytest

from aril import Tensor

RNG = np.random.default_rng(0)
SHAPES = [(4, 4), (5, 3), (3, 5), (2, 4, 3), (1, 1)]


def orthonormal(q, tolerance):
    got = np.swapaxes(q, -1, -2) @ q
    np.testing.assert_allclose(got, np.broadcast_to(np.eye(q.shape[-1]), got.shape), atol=tolerance)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mode", ["reduced", "complete"])
def test_qr_gives_the_matrix_back(shape, mode):
    a = RNG.normal(size=shape)
    q, r = Tensor(a).qr(mode)
    Tensor.realize(q, r)
    q, r = q.numpy(), r.numpy()
    np.testing.assert_allclose(q @ r, a, atol=1e-14)
    orthonormal(q, 1e-14)
    want = np.linalg.qr(a, mode)
    assert q.shape == want.Q.shape
    assert r.shape == want.R.shape
    np.testing.assert_allclose(np.abs(r), np.abs(want.R), atol=1e-13)
    np.testing.assert_array_equal(r, np.triu(r))


def test_qr_of_a_matrix_without_full_rank_and_of_extreme_numbers():
    a = np.outer([1.0, 2.0, 3.0], [1.0, 1.0]) * 1e200
    q, r = Tensor(a).qr()
    orthonormal(q.numpy(), 1e-14)
    np.testing.assert_allclose(q.numpy() @ r.numpy(), a, rtol=1e-13)
    q, r = Tensor.zeros(3, 2).qr()
    orthonormal(q.numpy(), 1e-6)
    np.testing.assert_array_equal(r.numpy(), np.zeros((2, 2)))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("full", [False, True])
def test_svd_gives_the_matrix_back(shape, full):
    a = RNG.normal(size=shape)
    u, s, vt = Tensor(a).svd(full)
    Tensor.realize(u, s, vt)
    u, s, vt = u.numpy(), s.numpy(), vt.numpy()
    want = np.linalg.svd(a, full_matrices=full)
    assert (u.shape, s.shape, vt.shape) == (want.U.shape, want.S.shape, want.Vh.shape)
    k = s.shape[-1]
    np.testing.assert_allclose((u[..., :k] * s[..., None, :]) @ vt[..., :k, :], a, atol=1e-13)
    np.testing.assert_allclose(s, want.S, atol=1e-13)
    orthonormal(u, 1e-13)
    orthonormal(np.swapaxes(vt, -1, -2), 1e-13)


def test_svd_in_float32_and_without_full_rank():
    a = (RNG.normal(size=(6, 2)) @ RNG.normal(size=(2, 5))).astype(np.float32)
    u, s, vt = (t.numpy() for t in Tensor(a).svd(False))
    np.testing.assert_allclose((u * s) @ vt, a, atol=1e-5)
    orthonormal(u, 1e-5)
    np.testing.assert_allclose(s, np.linalg.svd(a, compute_uv=False), atol=1e-5)


def test_empty_matrices_decompose():
    u, s, vt = Tensor.zeros(0, 3).svd()
    assert (u.shape, s.shape, vt.shape) == ((0, 0), (0,), (3, 3))
    q, r = Tensor.zeros(3, 0).qr()
    assert (q.shape, r.shape) == ((3, 0), (0, 0))


@pytest.mark.parametrize("which", ["qr", "svd"])
def test_gradients_of_decompositions(which):
    a = RNG.normal(size=(3, 2))
    weights = [RNG.normal(size=s) for s in ([(3, 2), (2, 2)] if which == "qr" else [(3, 2), (2,), (2, 2)])]

    def loss(x):
        parts = x.qr() if which == "qr" else x.svd(False)
        # squares do not depend on the signs of the factors
        return sum((p * p * Tensor(w)).sum() for p, w in zip(parts, weights, strict=True))

    x = Tensor(a)
    got = loss(x).gradient(x)[0].numpy()
    want = np.empty_like(a)
    for i in np.ndindex(a.shape):
        step = np.zeros_like(a)
        step[i] = 1e-6
        want[i] = (loss(Tensor(a + step)).item() - loss(Tensor(a - step)).item()) / 2e-6
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("shape", [(4, 2), (2, 4), (3, 3)])
def test_gradients_of_all_singular_vectors(shape):
    a, (m, n) = RNG.normal(size=shape), shape
    k = min(shape)
    wu, wv = RNG.normal(size=(m, m)), RNG.normal(size=(n, n))

    def loss(u, vt):  # functions of single vectors up to their sign, and of the space that the others span
        total = (((u[:, :k] * u[:, :k]) @ np.arange(1.0, k + 1)) * wu[0]).sum()
        total += (((vt[:k] * vt[:k]).T @ np.arange(2.0, k + 2)) * wv[0]).sum()
        return total + ((u[:, k:] @ u[:, k:].T) * wu).sum() + ((vt[k:].T @ vt[k:]) * wv).sum()

    def of_numpy(x):
        u, _, vt = np.linalg.svd(x, full_matrices=True)
        return loss(u, vt)

    x = Tensor(a)
    u, _, vt = x.svd(True)
    columns = [Tensor(np.arange(first, k + first, dtype=np.float64)) for first in (1, 2)]
    total = ((u[:, :k] * u[:, :k] @ columns[0]) * Tensor(wu[0])).sum()
    total = total + (((vt[:k] * vt[:k]).T @ columns[1]) * Tensor(wv[0])).sum()
    if m > k:
        total = total + ((u[:, k:] @ u[:, k:].T) * Tensor(wu)).sum()
    if n > k:
        total = total + ((vt[k:].T @ vt[k:]) * Tensor(wv)).sum()
    want = np.empty_like(a)
    for i in np.ndindex(a.shape):
        step = np.zeros_like(a)
        step[i] = 1e-6
        want[i] = (of_numpy(a + step) - of_numpy(a - step)) / 2e-6
    np.testing.assert_allclose(total.gradient(x)[0].numpy(), want, rtol=1e-6, atol=1e-7)


def test_decompositions_say_what_they_need():
    with pytest.raises(ValueError, match=r"qr: expected matrices .* not shape \(3,\)"):
        Tensor.zeros(3).qr()
    with pytest.raises(ValueError, match="mode is 'reduced' or 'complete'"):
        Tensor.zeros(3, 3).qr("full")
    with pytest.raises(ValueError, match="svd: expected matrices"):
        Tensor.zeros(3).svd()
