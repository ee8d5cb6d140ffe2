"""Kernel-form graphs built by hand for the tests of code generation, each with its reference in NumPy float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from aril.codegen.affine import add, mul
from aril.dtype import DType, dtypes
from aril.ops import Ops
from aril.uop.args import AxisType, KernelInfo
from aril.uop.node import UOp

LOOP, REDUCE = AxisType.LOOP, AxisType.REDUCE


@dataclass
class Kernel:
    """A kernel, the arrays it reads, and what its outputs should be (float64 unless exact)."""

    sink: UOp
    outputs: list[tuple[int, Any]]
    inputs: list[np.ndarray]
    expected: Callable[[], list[np.ndarray]]
    variables: dict[str, int] = field(default_factory=dict)
    tolerance: float = 1e-5


class Build:
    """Numbers loops and parameters."""

    def __init__(self, seed: int = 0) -> None:
        self.next_loop = 0
        self.rng = np.random.default_rng(seed)

    def loop(self, end: int | UOp, kind: AxisType = LOOP) -> UOp:
        self.next_loop += 1
        return UOp.range(end, self.next_loop - 1, kind)

    def loops(self, *ends: int | UOp) -> list[UOp]:
        return [self.loop(e) for e in ends]

    def array(self, *shape: int, dtype: Any = np.float32) -> np.ndarray:
        return self.rng.standard_normal(shape).astype(dtype)


def at(shape: tuple[int, ...], *index: UOp | int) -> UOp:
    """The flat row-major index."""
    out: UOp = UOp.const(dtypes.weakint, 0)
    stride = 1
    strides = []
    for n in reversed(shape):
        strides.append(stride)
        stride *= n
    for i, s in zip(index, reversed(strides), strict=True):
        out = add(out, mul(i if isinstance(i, UOp) else UOp.const(dtypes.weakint, i), s))
    return out


def load(slot: int, shape: tuple[int, ...], *index: UOp | int, dtype: DType = dtypes.float32) -> UOp:
    size = int(np.prod(shape))
    return UOp.param(slot, dtype, size).index(at(shape, *index)).load()


def store(slot: int, shape: tuple[int, ...], index: list[UOp], value: UOp, loops: list[UOp] | None = None) -> UOp:
    size = int(np.prod(shape))
    return (
        UOp.param(slot, value.dtype, size)
        .index(at(shape, *index))
        .store(value)
        .end(*(index if loops is None else loops))
    )


def reduce(op: Ops, x: UOp, *loops: UOp) -> UOp:
    return UOp(Ops.REDUCE, (x, *loops), (op, ()))


def alu(op: Ops, *src: UOp | float) -> UOp:
    return UOp(op, tuple([s if isinstance(s, UOp) else UOp.lift(s) for s in src]))


def sink(*effects: UOp, name: str = "k", **info: Any) -> UOp:
    return UOp.sink(*effects, arg=KernelInfo(name, **info))


def elementwise(*shape: int) -> Kernel:
    """x * y + 1"""
    b = Build()
    x, y = b.array(*shape), b.array(*shape)
    r = b.loops(*shape)
    value = alu(Ops.ADD, alu(Ops.MUL, load(1, shape, *r), load(2, shape, *r)), 1.0)
    return Kernel(
        sink(store(0, shape, r, value)), [(0, np.zeros(shape, np.float32))], [x, y], lambda: [x.astype(float) * y + 1]
    )


def bias(rows: int, cols: int) -> Kernel:
    """x + b over the last axis, and x + c over the first"""
    b = Build()
    x, c, d = b.array(rows, cols), b.array(cols), b.array(rows)
    i, j = b.loops(rows, cols)
    value = alu(Ops.ADD, alu(Ops.ADD, load(1, (rows, cols), i, j), load(2, (cols,), j)), load(3, (rows,), i))
    return Kernel(
        sink(store(0, (rows, cols), [i, j], value)), [(0, np.zeros((rows, cols), np.float32))], [x, c, d],
        lambda: [x.astype(float) + c + d[:, None]],
    )  # fmt: skip


def transpose(rows: int, cols: int) -> Kernel:
    b = Build()
    x = b.array(cols, rows)
    i, j = b.loops(rows, cols)
    return Kernel(
        sink(store(0, (rows, cols), [i, j], load(1, (cols, rows), j, i))),
        [(0, np.zeros((rows, cols), np.float32))], [x],
        lambda: [x.T.astype(float)],
    )  # fmt: skip


def row_sum(rows: int, cols: int, op: Ops = Ops.ADD) -> Kernel:
    b = Build()
    x = b.array(rows, cols)
    i = b.loop(rows)
    j = b.loop(cols, REDUCE)
    f = {Ops.ADD: np.sum, Ops.MAX: np.max, Ops.MUL: np.prod}[op]
    return Kernel(
        sink(store(0, (rows,), [i], reduce(op, load(1, (rows, cols), i, j), j))),
        [(0, np.zeros(rows, np.float32))], [x],
        lambda: [f(x.astype(float), axis=1)],
    )  # fmt: skip


def column_sum(rows: int, cols: int) -> Kernel:
    b = Build()
    x = b.array(rows, cols)
    j = b.loop(cols)
    i = b.loop(rows, REDUCE)
    return Kernel(
        sink(store(0, (cols,), [j], reduce(Ops.ADD, load(1, (rows, cols), i, j), i))),
        [(0, np.zeros(cols, np.float32))], [x],
        lambda: [x.astype(float).sum(0)],
    )  # fmt: skip


def full_sum(*shape: int) -> Kernel:
    b = Build()
    x = b.array(*shape)
    r = [b.loop(n, REDUCE) for n in shape]
    return Kernel(
        sink(store(0, (1,), [UOp.const(dtypes.weakint, 0)], reduce(Ops.ADD, load(1, shape, *r), *r), [])),
        [(0, np.zeros(1, np.float32))], [x], lambda: [np.array([x.astype(float).sum()])],
    )  # fmt: skip


def softmax(rows: int, cols: int, one_loop: bool = False) -> Kernel:
    """exp2(x - max) / sum: three loops a row. With `one_loop` the reductions are written over one RANGE."""
    b = Build()
    x = b.array(rows, cols)
    i, j = b.loops(rows, cols)
    k = b.loop(cols, REDUCE)
    m = k if one_loop else b.loop(cols, REDUCE)
    shape = (rows, cols)
    top = reduce(Ops.MAX, load(1, shape, i, k), k)
    total = reduce(Ops.ADD, alu(Ops.EXP2, alu(Ops.SUB, load(1, shape, i, m), top)), m)
    value = alu(Ops.FDIV, alu(Ops.EXP2, alu(Ops.SUB, load(1, shape, i, j), top)), total)

    def expected() -> list[np.ndarray]:
        e = np.exp2(x.astype(float) - x.max(1, keepdims=True))
        return [e / e.sum(1, keepdims=True)]

    return Kernel(sink(store(0, shape, [i, j], value)), [(0, np.zeros(shape, np.float32))], [x], expected)


def matmul(
    m: int, n: int, k: int, layout: str = "nn", batch: int = 0, relu: bool = False, dtype: Any = np.float32
) -> Kernel:
    """a @ b; layout says for each operand whether it is stored as it is ("n") or transposed ("t")."""
    bld = Build()
    lead = (batch,) if batch else ()
    a = bld.array(*lead, *((m, k) if layout[0] == "n" else (k, m)), dtype=dtype)
    b = bld.array(*lead, *((k, n) if layout[1] == "n" else (n, k)), dtype=dtype)
    kind = dtypes.float32 if dtype is np.float32 else dtypes.float64
    head = [bld.loop(batch)] if batch else []
    i, j = bld.loops(m, n)
    r = bld.loop(k, REDUCE)
    left = load(1, a.shape, *head, *((i, r) if layout[0] == "n" else (r, i)), dtype=kind)
    right = load(2, b.shape, *head, *((r, j) if layout[1] == "n" else (j, r)), dtype=kind)
    value = reduce(Ops.ADD, alu(Ops.MUL, left, right), r)
    if relu:
        value = alu(Ops.MAX, value, 0.0)
    shape = (*lead, m, n)

    def expected() -> list[np.ndarray]:
        x = a.astype(float) if layout[0] == "n" else np.swapaxes(a, -1, -2).astype(float)
        y = b.astype(float) if layout[1] == "n" else np.swapaxes(b, -1, -2).astype(float)
        return [np.maximum(x @ y, 0) if relu else x @ y]

    return Kernel(sink(store(0, shape, [*head, i, j], value)), [(0, np.zeros(shape, dtype))], [a, b], expected)


def matvec(m: int, k: int, transposed: bool = False) -> Kernel:
    b = Build()
    a, x = b.array(*((k, m) if transposed else (m, k))), b.array(k)
    i = b.loop(m)
    r = b.loop(k, REDUCE)
    left = load(1, a.shape, *((r, i) if transposed else (i, r)))
    value = reduce(Ops.ADD, alu(Ops.MUL, left, load(2, (k,), r)), r)
    return Kernel(
        sink(store(0, (m,), [i], value)), [(0, np.zeros(m, np.float32))], [a, x],
        lambda: [(a.T if transposed else a).astype(float) @ x],
    )  # fmt: skip


def windows(x: np.ndarray, kh: int, kw: int) -> np.ndarray:
    """(..., oy, ox, ky, kx) views of an image batch."""
    return np.lib.stride_tricks.sliding_window_view(x, (kh, kw), axis=(-2, -1))


def conv(
    n: int, ic: int, oc: int, size: int, k: int, with_bias: bool = False, groups: int = 1, step: int = 1
) -> Kernel:
    """Valid convolution of n images, each group of output channels over its group of input channels."""
    b = Build()
    out = (size - k) // step + 1
    each, of = ic // groups, oc // groups
    x, w, c = b.array(n, ic, size, size), b.array(oc, each, k, k), b.array(oc)
    i, o, y, z = b.loops(n, oc, out, out)
    rc, ry, rz = [b.loop(e, REDUCE) for e in (each, k, k)]
    channel = rc if groups == 1 else add(mul(UOp(Ops.FLOORDIV, (o, num(of))), each), rc)
    value = alu(
        Ops.MUL,
        load(1, x.shape, i, channel, add(mul(y, step), ry), add(mul(z, step), rz)),
        load(2, w.shape, o, rc, ry, rz),
    )
    value = reduce(Ops.ADD, value, rc, ry, rz)
    if with_bias:
        value = alu(Ops.ADD, value, load(3, (oc,), o))
    shape = (n, oc, out, out)

    def expected() -> list[np.ndarray]:
        seen, weights = windows(x.astype(float), k, k)[:, :, ::step, ::step], w.astype(float)
        parts = [
            np.einsum("ncyxij,ocij->noyx", seen[:, each * g :][:, :each], weights[of * g :][:of], optimize=True)
            for g in range(groups)
        ]
        got = np.concatenate(parts, 1)
        return [got + c[:, None, None] if with_bias else got]

    inputs = [x, w, c] if with_bias else [x, w]
    return Kernel(sink(store(0, shape, [i, o, y, z], value)), [(0, np.zeros(shape, np.float32))], inputs, expected)


def conv_weight(n: int, ic: int, oc: int, size: int, k: int) -> Kernel:
    """The gradient of the weights of `conv`."""
    b = Build()
    out = size - k + 1
    x, dy = b.array(n, ic, size, size), b.array(n, oc, out, out)
    o, c, ky, kx = b.loops(oc, ic, k, k)
    i, y, z = [b.loop(e, REDUCE) for e in (n, out, out)]
    value = alu(Ops.MUL, load(1, dy.shape, i, o, y, z), load(2, x.shape, i, c, add(y, ky), add(z, kx)))
    shape = (oc, ic, k, k)

    def expected() -> list[np.ndarray]:
        return [np.einsum("noyx,ncyxij->ocij", dy.astype(float), windows(x.astype(float), k, k), optimize=True)]

    return Kernel(
        sink(store(0, shape, [o, c, ky, kx], reduce(Ops.ADD, value, i, y, z))),
        [(0, np.zeros(shape, np.float32))],
        [dy, x],
        expected,
    )


def conv_data(n: int, ic: int, oc: int, size: int, k: int) -> Kernel:
    """The gradient of the images of `conv`: dy padded by k-1 on each side, and a shear of step -1."""
    b = Build()
    out = size - k + 1
    pad = out + 2 * (k - 1)
    dy, w = b.array(n, oc, out, out), b.array(oc, ic, k, k)
    padded = np.pad(dy, ((0, 0), (0, 0), (k - 1, k - 1), (k - 1, k - 1)))
    i, c, y, z = b.loops(n, ic, size, size)
    o, ky, kx = [b.loop(e, REDUCE) for e in (oc, k, k)]
    back = lambda p, q: add(add(p, k - 1), mul(q, -1))  # noqa: E731
    value = alu(Ops.MUL, load(1, (n, oc, pad, pad), i, o, back(y, ky), back(z, kx)), load(2, w.shape, o, c, ky, kx))
    shape = (n, ic, size, size)

    def expected() -> list[np.ndarray]:
        return [
            np.einsum(
                "noyxij,ocij->ncyx",
                windows(padded.astype(float), k, k),
                w[:, :, ::-1, ::-1].astype(float),
                optimize=True,
            )
        ]

    return Kernel(
        sink(store(0, shape, [i, c, y, z], reduce(Ops.ADD, value, o, ky, kx))),
        [(0, np.zeros(shape, np.float32))],
        [padded, w],
        expected,
    )


def padded_depthwise(n: int, channels: int, size: int, k: int, step: int = 1, p: int = 1) -> Kernel:
    """Each channel of n images, with p zeros around, under its own window: gates in both axes."""
    b = Build()
    x, w = b.array(n, channels, size, size), b.array(channels, k, k)
    out = (size + 2 * p - k) // step + 1
    i, c, y, z = b.loops(n, channels, out, out)
    ky, kx = b.loop(k, REDUCE), b.loop(k, REDUCE)
    rows, columns = add(mul(y, step), ky), add(mul(z, step), kx)
    inside = [alu(Ops.AND, ge(r, p), UOp(Ops.CMPLT, (r, num(size + p)))) for r in (rows, columns)]
    index = at(x.shape, i, c, add(rows, -p), add(columns, -p)).valid(alu(Ops.AND, *inside))
    image = UOp.param(1, dtypes.float32, x.size).index(index).load(UOp.const(dtypes.float32, 0.0))
    value = reduce(Ops.ADD, alu(Ops.MUL, image, load(2, w.shape, c, ky, kx)), ky, kx)
    shape = (n, channels, out, out)

    def expected() -> list[np.ndarray]:
        padded = np.pad(x.astype(float), ((0, 0), (0, 0), (p, p), (p, p)))
        return [np.einsum("ncyxij,cij->ncyx", windows(padded, k, k)[:, :, ::step, ::step], w.astype(float))]

    return Kernel(sink(store(0, shape, [i, c, y, z], value)), [(0, np.zeros(shape, np.float32))], [x, w], expected)


def padded_depthwise_weight(n: int, channels: int, size: int, k: int, step: int = 1, p: int = 1) -> Kernel:
    """The gradient of the weights of `padded_depthwise`."""
    b = Build()
    out = (size + 2 * p - k) // step + 1
    x, dy = b.array(n, channels, size, size), b.array(n, channels, out, out)
    c, ky, kx = b.loops(channels, k, k)
    i, y, z = [b.loop(e, REDUCE) for e in (n, out, out)]
    rows, columns = add(mul(y, step), ky), add(mul(z, step), kx)
    inside = [alu(Ops.AND, ge(r, p), UOp(Ops.CMPLT, (r, num(size + p)))) for r in (rows, columns)]
    index = at(x.shape, i, c, add(rows, -p), add(columns, -p)).valid(alu(Ops.AND, *inside))
    image = UOp.param(2, dtypes.float32, x.size).index(index).load(UOp.const(dtypes.float32, 0.0))
    value = reduce(Ops.ADD, alu(Ops.MUL, load(1, dy.shape, i, c, y, z), image), i, y, z)
    shape = (channels, k, k)

    def expected() -> list[np.ndarray]:
        padded = np.pad(x.astype(float), ((0, 0), (0, 0), (p, p), (p, p)))
        return [np.einsum("ncyx,ncyxij->cij", dy.astype(float), windows(padded, k, k)[:, :, ::step, ::step])]

    return Kernel(sink(store(0, shape, [c, ky, kx], value)), [(0, np.zeros(shape, np.float32))], [dy, x], expected)


def enlarged(n: int, ic: int, oc: int, size: int, k: int) -> Kernel:
    """A transposed convolution whose windows touch: of each pixel, k*k of the result."""
    b = Build()
    x, w = b.array(n, ic, size, size), b.array(ic, oc, k, k)
    i, o, y, z = b.loops(n, oc, k * size, k * size)
    c = b.loop(ic, REDUCE)
    pixel = [alu(Ops.FLOORDIV, r, num(k)) for r in (y, z)]
    weight = load(2, w.shape, c, o, *[alu(Ops.FLOORMOD, r, num(k)) for r in (y, z)])
    value = reduce(Ops.ADD, alu(Ops.MUL, load(1, x.shape, i, c, *pixel), weight), c)
    shape = (n, oc, k * size, k * size)

    def expected() -> list[np.ndarray]:
        return [np.einsum("ncyx,coij->noyixj", x.astype(float), w.astype(float)).reshape(shape)]

    return Kernel(sink(store(0, shape, [i, o, y, z], value)), [(0, np.zeros(shape, np.float32))], [x, w], expected)


def padded_groups(n: int, groups: int, per: int, size: int, k: int, step: int, p: int = 1) -> Kernel:
    """As `padded_depthwise` with `per` channels to a group, each of whose outputs sums over all of them."""
    b = Build()
    x, w = b.array(n, groups, per, size, size), b.array(groups, per, per, k, k)
    out = (size + 2 * p - k) // step + 1
    i, g, o, y, z = b.loops(n, groups, per, out, out)
    c, ky, kx = b.loop(per, REDUCE), b.loop(k, REDUCE), b.loop(k, REDUCE)
    rows, columns = add(mul(y, step), ky), add(mul(z, step), kx)
    inside = [alu(Ops.AND, ge(r, p), UOp(Ops.CMPLT, (r, num(size + p)))) for r in (rows, columns)]
    index = at(x.shape, i, g, c, add(rows, -p), add(columns, -p)).valid(alu(Ops.AND, *inside))
    image = UOp.param(1, dtypes.float32, x.size).index(index).load(UOp.const(dtypes.float32, 0.0))
    value = reduce(Ops.ADD, alu(Ops.MUL, image, load(2, w.shape, g, o, c, ky, kx)), c, ky, kx)
    shape = (n, groups, per, out, out)

    def expected() -> list[np.ndarray]:
        padded = np.pad(x.astype(float), ((0, 0), (0, 0), (0, 0), (p, p), (p, p)))
        return [np.einsum("ngcyxij,gocij->ngoyx", windows(padded, k, k)[..., ::step, ::step, :, :], w.astype(float))]

    return Kernel(sink(store(0, shape, [i, g, o, y, z], value)), [(0, np.zeros(shape, np.float32))], [x, w], expected)


def padded_copy(rows: int, cols: int, p: int) -> Kernel:
    """x with p zeros on every side: a gate in each axis."""
    b = Build()
    x = b.array(rows, cols)
    h, w = rows + 2 * p, cols + 2 * p
    i, j = b.loops(h, w)
    inside = [alu(Ops.AND, ge(r, p), UOp(Ops.CMPLT, (r, num(n + p)))) for r, n in ((i, rows), (j, cols))]
    index = at((rows, cols), add(i, -p), add(j, -p)).valid(alu(Ops.AND, *inside))
    value = UOp.param(1, dtypes.float32, rows * cols).index(index).load(UOp.const(dtypes.float32, 0.0))
    return Kernel(
        sink(store(0, (h, w), [i, j], value)),
        [(0, np.zeros((h, w), np.float32))],
        [x],
        lambda: [np.pad(x, p).astype(float)],
    )


def padded_steps(rows: int, cols: int, p: int, step: int) -> Kernel:
    """Every step-th column of x with p zeros on both sides, times a number of the row's, which has the same gate."""
    b = Build()
    x, f = b.array(rows, cols), b.array(rows)
    count = -(-(cols + 2 * p) // step)
    i, j = b.loops(rows, count)
    column = mul(j, step)
    inside = alu(Ops.AND, ge(column, p), UOp(Ops.CMPLT, (column, num(cols + p))))
    zero = UOp.const(dtypes.float32, 0.0)
    index = at((rows, cols), i, add(column, -p)).valid(inside)
    value = UOp.param(1, dtypes.float32, rows * cols).index(index).load(zero)
    factor = UOp.param(2, dtypes.float32, rows).index(i.valid(inside)).load(zero)
    return Kernel(
        sink(store(0, (rows, count), [i, j], alu(Ops.MUL, value, factor))),
        [(0, np.zeros((rows, count), np.float32))],
        [x, f],
        lambda: [np.pad(x.astype(float) * f[:, None], ((0, 0), (p, p)))[:, ::step]],
    )


def ge(a: UOp, b: int) -> UOp:
    return UOp(Ops.CMPLT, (num(b - 1), a))


def num(value: int) -> UOp:
    return UOp.const(dtypes.weakint, value)


def symbolic_scale(most: int, n: int) -> Kernel:
    """2 * x over a variable number of elements."""
    b = Build()
    v = UOp.variable("n", 1, most)
    x = b.array(most)
    i = b.loop(v)
    effect = store(0, (most,), [i], alu(Ops.MUL, load(1, (most,), i), 2.0))
    out = np.zeros(most, np.float32)
    return Kernel(
        sink(effect), [(0, out)], [x], lambda: [np.where(np.arange(most) < n, x.astype(float) * 2, 0)], {"n": n}
    )


def symbolic_sum(rows: int, most: int, n: int) -> Kernel:
    """Row sums over a variable number of columns."""
    b = Build()
    v = UOp.variable("n", 1, most)
    x = b.array(rows, most)
    i = b.loop(rows)
    j = b.loop(v, REDUCE)
    effect = store(0, (rows,), [i], reduce(Ops.ADD, load(1, (rows, most), i, j), j))
    return Kernel(
        sink(effect), [(0, np.zeros(rows, np.float32))], [x], lambda: [x[:, :n].astype(float).sum(1)], {"n": n}
    )


def argmax(rows: int, cols: int) -> Kernel:
    """The first index of a row's maximum: a MAX over index arithmetic."""
    b = Build()
    x = b.array(rows, cols)
    i = b.loop(rows)
    k, m = b.loop(cols, REDUCE), b.loop(cols, REDUCE)
    top = reduce(Ops.MAX, load(1, (rows, cols), i, k), k)
    hit = alu(Ops.CMPEQ, load(1, (rows, cols), i, m), top)
    turn = UOp(Ops.CAST, (add(mul(m, -1), cols),), None, dtypes.int32)
    best = reduce(Ops.MAX, alu(Ops.WHERE, hit, turn, UOp.const(dtypes.int32, 0)), m)
    value = alu(Ops.SUB, UOp.const(dtypes.int32, cols), best)
    return Kernel(
        sink(store(0, (rows,), [i], value)),
        [(0, np.zeros(rows, np.int32))],
        [x],
        lambda: [x.argmax(1).astype(np.int32)],
        tolerance=0,
    )


def one_hot(rows: int, cols: int) -> Kernel:
    """labels == column, as float: an index used as a value."""
    b = Build()
    labels = b.rng.integers(0, cols, rows).astype(np.int32)
    i, j = b.loops(rows, cols)
    hit = alu(Ops.CMPEQ, load(1, (rows,), i, dtype=dtypes.int32), UOp(Ops.CAST, (j,), None, dtypes.int32))
    value = alu(Ops.WHERE, hit, UOp.const(dtypes.float32, 1.0), UOp.const(dtypes.float32, 0.0))
    return Kernel(
        sink(store(0, (rows, cols), [i, j], value)), [(0, np.zeros((rows, cols), np.float32))], [labels],
        lambda: [np.eye(cols)[labels]], tolerance=0,
    )  # fmt: skip


def gather_rows(rows: int, cols: int, picked: int) -> Kernel:
    """x[index]: a loaded index."""
    b = Build()
    x = b.array(rows, cols)
    index = b.rng.integers(0, rows, picked).astype(np.int32)
    i, j = b.loops(picked, cols)
    row = UOp(Ops.CAST, (load(2, (picked,), i, dtype=dtypes.int32),), None, dtypes.weakint)
    value = load(1, (rows, cols), row, j)
    return Kernel(
        sink(store(0, (picked, cols), [i, j], value)), [(0, np.zeros((picked, cols), np.float32))], [x, index],
        lambda: [x[index].astype(float)],
    )  # fmt: skip


def two_outputs(rows: int, cols: int) -> Kernel:
    """One nest with two stores, and a second nest with a reduction."""
    b = Build()
    x = b.array(rows, cols)
    i, j = b.loops(rows, cols)
    shape = (rows, cols)
    value = load(3, shape, i, j)
    both = UOp.group(
        UOp.param(0, dtypes.float32, rows * cols).index(at(shape, i, j)).store(alu(Ops.ADD, value, 1.0)),
        UOp.param(1, dtypes.float32, rows * cols).index(at(shape, i, j)).store(alu(Ops.MUL, value, 2.0)),
    ).end(i, j)
    p = b.loop(rows)
    q = b.loop(cols, REDUCE)
    last = store(2, (rows,), [p], reduce(Ops.ADD, load(3, shape, p, q), q))
    d = x.astype(float)
    zeros = [(0, np.zeros(shape, np.float32)), (1, np.zeros(shape, np.float32)), (2, np.zeros(rows, np.float32))]
    return Kernel(sink(both, last), zeros, [x], lambda: [d + 1, d * 2, d.sum(1)])


def updates(*sizes: int) -> Kernel:
    """A nest in place for each size, `p = p*0.5 + g`, and one that sums the last operand into one number."""
    b = Build()
    effects: list[UOp] = []
    before = [b.array(n) for n in sizes]
    more = [b.array(n) for n in sizes]
    count = len(sizes)
    for k, n in enumerate(sizes):
        i = b.loop(n)
        value = alu(Ops.ADD, alu(Ops.MUL, load(k, (n,), i), 0.5), load(count + 1 + k, (n,), i))
        effects.append(store(k, (n,), [i], value))
    r = b.loop(sizes[-1], REDUCE)
    total = reduce(Ops.ADD, load(2 * count, (sizes[-1],), r), r)
    effects.append(UOp.param(count, dtypes.float32, 1).index(0).store(total))
    outputs = [*enumerate(before), (count, np.zeros(1, np.float32))]
    return Kernel(
        sink(*effects), outputs, more,
        lambda: [*[p.astype(float) * 0.5 + g for p, g in zip(before, more, strict=True)], more[-1].astype(float).sum()],
    )  # fmt: skip


def stepped_window(rows: int, n: int, window: int, step: int) -> Kernel:
    """The sum over k of `x[row, (i - k) / step, k]` where the division leaves no rest and the place exists."""
    b = Build()
    x = b.array(rows, n, window)
    size = (n - 1) * step + window
    row, i = b.loops(rows, size)
    k = b.loop(window, REDUCE)
    moved = UOp(Ops.ADD, (i, UOp(Ops.MUL, (k, UOp.const(dtypes.weakint, -1)))))
    by, one = UOp.const(dtypes.weakint, step), UOp.const(dtypes.weakint, 1)
    place = UOp(Ops.FLOORDIV, (moved, by))
    gate = UOp(Ops.CMPLT, (UOp(Ops.FLOORMOD, (moved, by)), one))
    gate = UOp(Ops.AND, (gate, UOp(Ops.CMPLT, (place, UOp.const(dtypes.weakint, n)))))
    gate = UOp(Ops.AND, (gate, UOp(Ops.CMPLT, (UOp.const(dtypes.weakint, -1), place))))
    index = UOp(Ops.WHERE, (gate, at((rows, n, window), row, place, k), UOp(Ops.Invalid, (), None, dtypes.weakint)))
    value = UOp.param(1, dtypes.float32, x.size).index(index).load(UOp.const(dtypes.float32, 0.0))

    def expected() -> list[np.ndarray]:
        out = np.zeros((rows, size))
        for j in range(n):
            out[:, j * step : j * step + window] += x[:, j]
        return [out]

    out = store(0, (rows, size), [row, i], reduce(Ops.ADD, value, k))
    return Kernel(sink(out), [(0, np.zeros((rows, size), np.float32))], [x], expected)


def depthwise(n: int, channels: int, size: int, k: int, of_weight: bool = False) -> Kernel:
    """A window of its own for every channel; or the gradient of these windows."""
    b = Build()
    out = size - k + 1
    x = b.array(n, channels, size, size)
    other = b.array(n, channels, out, out) if of_weight else b.array(channels, k, k)
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(float), (k, k), (2, 3))
    if of_weight:
        c, i, j = b.loops(channels, k, k)
        m, y, z = [b.loop(d, REDUCE) for d in (n, out, out)]
        shape, index, closed, text = (channels, k, k), [c, i, j], [m, y, z], "ncyzij,ncyz->cij"
        second = load(2, (n, channels, out, out), m, c, y, z)
    else:
        m, c, y, z = b.loops(n, channels, out, out)
        i, j = [b.loop(k, REDUCE) for _ in range(2)]
        shape, index, closed, text = (n, channels, out, out), [m, c, y, z], [i, j], "ncyzij,cij->ncyz"
        second = load(2, (channels, k, k), c, i, j)
    first = load(1, (n, channels, size, size), m, c, add(y, i), add(z, j))
    value = reduce(Ops.ADD, alu(Ops.MUL, first, second), *closed)
    return Kernel(
        sink(store(0, shape, index, value)), [(0, np.zeros(shape, np.float32))], [x, other],
        lambda: [np.einsum(text, windows, other.astype(float))],
    )  # fmt: skip
