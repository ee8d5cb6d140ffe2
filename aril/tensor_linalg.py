"""Decompositions of matrices: QR by Householder reflections, SVD by one-sided Jacobi rotations. Mixed into Tensor.

In come matrices (.., m, n) of floats; out go graphs of a fixed number of steps, so nothing is computed when called.
Low precision is computed in float32 and rounded once.
"""

from __future__ import annotations

import math
from typing import Any

from aril.dtype import dtypes
from aril.tensor_memory import working_device


class LinalgMixin:
    """Decompositions, batched over the leading axes."""

    __slots__ = ()

    def qr(self: Any, mode: str = "reduced") -> tuple[Any, Any]:
        """Q and R with x = Q @ R, Q's columns orthonormal, R upper triangular, by Householder reflections.

        x (.., m, n) gives Q (.., m, k) and R (.., k, n) for k = min(m, n); with `mode` "complete", Q (.., m, m) and
        R (.., m, n). Signs are those of the reflections, as in LAPACK (R's diagonal is not made positive).
        Accuracy: |Q R - x| and |Q^T Q - 1| within about m * eps (Golub and Van Loan, "Matrix Computations", 5.2).
        Differentiable where the columns are independent.
        Errors: ValueError for fewer than two axes or another mode.

        >>> q, r = Tensor([[3.0, 1.0], [4.0, 2.0]]).qr()
        >>> (q @ r).numpy().round(4).tolist()
        [[3.0, 1.0], [4.0, 2.0]]
        """
        if self.ndim < 2:
            raise ValueError(f"qr: expected matrices (.., m, n), not shape {self.shape}")
        if mode not in ("reduced", "complete"):
            raise ValueError(f"qr: mode is 'reduced' or 'complete', not {mode!r}")
        x = self._floating()
        out, r = x._wide(), None
        m, n = [self._known_length(a, "qr") for a in (self.ndim - 2, self.ndim - 1)]
        lead = out.shape[:-2]
        k = m if mode == "complete" else min(m, n)
        rows = out._iota(m).cast(dtypes.int32).reshape(m, 1)
        reflections = []
        r = out
        for i in range(min(m - 1, n)):
            v, factor = _reflection(r.shrink([*[None] * (r.ndim - 1), (i, i + 1)]), rows, i)
            r = (r - v * (factor * (v * r).sum(-2, True))).contiguous()
            reflections.append((v, factor))
        q = (rows.eq(out._iota(k).cast(dtypes.int32).reshape(1, k))).cast(out.dtype)._broadcast_to((*lead, m, k))
        for v, factor in reversed(reflections):
            q = (q - v * (factor * (v * q).sum(-2, True))).contiguous()
        r = r.shrink([*[None] * (r.ndim - 2), (0, k), None]).triu()
        return q.cast(x.dtype), r.cast(x.dtype)

    def svd(self: Any, full_matrices: bool = True) -> tuple[Any, Any, Any]:
        """U, S, V^T with x = U @ diag(S) @ V^T, S descending and not negative, by one-sided Jacobi rotations.

        x (.., m, n) gives S (.., k) for k = min(m, n), U (.., m, m) and V^T (.., n, n), or U (.., m, k) and
        V^T (.., k, n) without `full_matrices` (as NumPy's `linalg.svd`).
        Accuracy: values within about 10 * max(m, n) * eps * S[0], mostly better (Demmel and Veselic, "Jacobi's method
        is more accurate than QR", 1992). The number of sweeps is fixed beforehand, enough for convergence in practice.
        Gradients (Townsend, "Differentiating the singular value decomposition", 2016) of S always; of U and V^T where
        singular values differ; the columns beyond k that `full_matrices` adds turn with the space they span.
        Errors: ValueError for fewer than two axes.

        >>> u, s, vt = Tensor([[3.0, 0.0], [0.0, 2.0]]).svd()
        >>> s.numpy().round(4).tolist()
        [3.0, 2.0]
        """
        if self.ndim < 2:
            raise ValueError(f"svd: expected matrices (.., m, n), not shape {self.shape}")
        from aril.function import function

        x = self._floating()
        m, n = [self._known_length(a, "svd") for a in (self.ndim - 2, self.ndim - 1)]
        full = bool(full_matrices) and m != n
        if 0 in (m, n) or 0 in x.shape:
            k = min(m, n)
            lead = x.shape[:-2]

            def unit(rows: int, columns: int) -> Any:
                return x.eye(rows, columns, dtype=x.dtype, device=working_device(x))._broadcast_to(
                    (*lead, rows, columns)
                )

            u, vt = (unit(m, m), unit(n, n)) if full_matrices else (unit(m, k), unit(k, n))
            return u, x.zeros(*lead, k, dtype=x.dtype, device=working_device(x)), vt

        def body(a: Any) -> tuple[Any, Any, Any]:
            if m < n:
                v, s, ut = _jacobi(a.transpose(-2, -1), full)
                return ut.transpose(-2, -1), s, v.transpose(-2, -1)
            return _jacobi(a, full)

        def grad(grads: tuple[Any, ...], args: tuple[Any, ...]) -> list[Any]:
            u, s, vt = (t.detach() for t in body(args[0].detach()))
            return [_svd_gradient(u, s, vt, *grads)]

        out = function(body, grad_fxn=grad, name="svd")(x._wide())
        return tuple([t.cast(x.dtype) for t in out])  # type: ignore[return-value]


def _reflection(column: Any, rows: Any, i: int) -> tuple[Any, Any]:
    """(v, f) such that 1 - f v v^T maps a column (.., m, 1) from row i on to a multiple of unit vector i."""
    x = (rows >= i).where(column, 0)
    scale = x.abs().max(-2, True).detach()
    x = x / scale.eq(0).where(1, scale)  # squares neither overflow nor vanish
    first = x.shrink([*[None] * (x.ndim - 2), (i, i + 1), None])
    square = x.square().sum(-2, True)
    zero = square.eq(0)
    norm = zero.where(1, square).sqrt()
    v = x + rows.eq(i).where((first < 0).where(norm.neg(), norm), 0)
    length = v.square().sum(-2, True)
    return v.contiguous(), zero.where(0, 2.0 / zero.where(1, length)).contiguous()


def _jacobi(a: Any, full: bool) -> tuple[Any, Any, Any]:
    """The SVD of (.., m, n), m >= n: columns are rotated in pairs until all are orthogonal (Hestenes, 1958).

    Pairs meet as teams do in a round-robin tournament: n / 2 at a time, all pairs in n - 1 rounds, after which every
    column is back in its place. V collects the rotations below the matrix, in the same tensor.
    """
    *lead, m, n = a.shape
    even = n + n % 2  # a column of zeros more where the number is odd: it takes part and is never rotated
    half = even // 2
    scale = a.abs().max((-2, -1), True)
    scale = scale.eq(0).where(1, scale)
    v = a.eye(n, n, dtype=a.dtype, device=a._device)._broadcast_to((*lead, n, n))
    w = (a / scale).cat(v, dim=-2).pad_to(*[None] * (a.ndim - 1), even)
    none = [None] * (a.ndim - 1)
    p, q = w.shrink([*none, (0, half)]).contiguous(), w.shrink([*none, (half, even)]).contiguous()
    sweeps = (6 if a.dtype is dtypes.float32 else 8) + max(math.ceil(math.log2(even)) // 2, 1)
    if n > 1:
        for _ in range(sweeps * (even - 1)):
            p, q = _round(*_rotate(p, q, m), none, half)
    w = p.cat(q, dim=-1).shrink([*none, (0, n)])
    w, v = w.shrink([*none[1:], (0, m), None]), w.shrink([*none[1:], (m, m + n), None])
    size = w.square().sum(-2).sqrt().contiguous()
    s, order = size.sort(-1, descending=True)
    order = order.unsqueeze(-2)
    w, v = [t.gather(-1, order._broadcast_to(t.shape)).contiguous() for t in (w, v)]
    # Columns of length zero leave directions open; the reflections of a QR find orthonormal ones for all.
    u, r = w.qr("complete" if full else "reduced")
    sign = (r.diagonal(0, -2, -1) < 0).where(-1.0, 1.0).cast(a.dtype)
    if u.shape[-1] > n:
        sign = sign.pad([*[None] * len(lead), (0, u.shape[-1] - n)], value=1)
    return u * sign.unsqueeze(-2), s * scale.reshape(*lead, 1), v.transpose(-2, -1)


def _rotate(p: Any, q: Any, m: int) -> tuple[Any, Any]:
    """Each pair of columns of p and q turned so that their first m rows are orthogonal."""
    part = [*[None] * (p.ndim - 2), (0, m), None]
    x, y = p.shrink(part), q.shrink(part)
    a, b, g = (t.sum(-2, True) for t in (x.square(), y.square(), x * y))
    zero = g.eq(0)
    zeta = (b - a) / (zero.where(1, g) * 2.0)
    t = (zeta < 0).where(-1.0, 1.0) / (zeta.abs() + (zeta.square() + 1.0).sqrt())
    t = zero.where(0.0, t).cast(p.dtype)
    c = (t.square() + 1.0).rsqrt().contiguous()
    s = (c * t).contiguous()
    return (c * p - s * q).contiguous(), (s * p + c * q).contiguous()


def _round(p: Any, q: Any, none: list[Any], half: int) -> tuple[Any, Any]:
    """The next round of the tournament: the first of p stays, the others move one place around."""
    if half == 1:
        return p, q

    def part(t: Any, start: int, end: int) -> Any:
        return t.shrink([*none, (start, end)])

    new_p = part(p, 0, 1).cat(part(q, 0, 1), part(p, 1, half - 1), dim=-1)
    return new_p, part(q, 1, half).cat(part(p, half - 1, half), dim=-1)


def _svd_gradient(u: Any, s: Any, vt: Any, du: Any, ds: Any, dvt: Any) -> Any:
    k = s.shape[-1]
    whole_u, whole_vt = u, vt
    u, vt = u.shrink([*[None] * (u.ndim - 1), (0, k)]), vt.shrink([*[None] * (vt.ndim - 2), (0, k), None])
    v = vt.transpose(-2, -1)
    middle = ds.unsqueeze(-1) * s.eye(k, k, dtype=s.dtype, device=s._device) if ds.shape else None
    inverse = s.eq(0).where(0, 1 / s.eq(0).where(1, s)).unsqueeze(-2)
    out = None
    if du.shape or dvt.shape:
        square = s.square()
        gap = square.unsqueeze(-2) - square.unsqueeze(-1)
        f = gap.eq(0).where(0, 1 / gap.eq(0).where(1, gap))
        row, column = s.unsqueeze(-2), s.unsqueeze(-1)
        if du.shape:
            beyond = _columns_beyond(whole_u, du, k)
            du = du.shrink([*[None] * (du.ndim - 1), (0, k)])
            inner = u.transpose(-2, -1) @ du
            term = f * (inner - inner.transpose(-2, -1)) * row
            middle = term if middle is None else middle + term
            out = ((du - u @ inner) * inverse) @ vt
            if beyond is not None:
                out = out - beyond[0] @ beyond[1].transpose(-2, -1) @ (u * inverse) @ vt
        if dvt.shape:
            beyond = _columns_beyond(whole_vt.transpose(-2, -1), dvt.transpose(-2, -1), k)
            dv = dvt.shrink([*[None] * (dvt.ndim - 2), (0, k), None]).transpose(-2, -1)
            inner = v.transpose(-2, -1) @ dv
            term = column * (f * (inner - inner.transpose(-2, -1)))
            middle = term if middle is None else middle + term
            side = (u * inverse) @ (dv - v @ inner).transpose(-2, -1)
            if beyond is not None:
                side = side - (u * inverse) @ vt @ beyond[1] @ beyond[0].transpose(-2, -1)
            out = side if out is None else out + side
    if middle is not None:
        main = u @ middle @ vt
        out = main if out is None else out + main
    return out


def _columns_beyond(vectors: Any, gradient: Any, k: int) -> tuple[Any, Any] | None:
    """The columns from k on of singular vectors, and their gradient; None where there are none.

    From V^T A^T U' = 0 for the columns U' beyond: U^T dU' = -S^-1 V^T dA^T U'.
    """
    n = vectors.shape[-1]
    if n == k or gradient.shape != vectors.shape:
        return None
    part = [*[None] * (vectors.ndim - 1), (k, n)]
    return vectors.shrink(part), gradient.shrink(part)
