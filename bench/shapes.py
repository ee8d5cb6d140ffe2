"""Rows of drawn shapes: primes and sizes from 257 to 2100, and operands that are views of other memory.

In comes a seed; out go rows by the same functions as the fixed table, which is to say the same claims on other shapes.
"""

from __future__ import annotations

import random

from bench import rows_conv, rows_dense
from bench.row import Layout, Row

LEAST, MOST = 257, 2100
LAYOUTS: tuple[Layout, ...] = ("plain", "transposed", "strided", "offset")


def primes(least: int = LEAST, most: int = MOST) -> list[int]:
    """The primes within the bounds."""
    return [n for n in range(least, most + 1) if all(n % d for d in range(2, int(n**0.5) + 1))]


def random_rows(seed: int) -> tuple[Row, ...]:
    """About 40 rows; each second size is a prime."""
    rng = random.Random(seed)
    odd = primes()

    def size() -> int:
        return rng.choice(odd) if rng.random() < 0.5 else rng.randint(LEAST, MOST)

    def layout() -> Layout:
        return rng.choice(LAYOUTS)

    rows: list[Row] = []

    def name(what: str, *sizes: object) -> str:
        return f"{what} {'x'.join(map(str, sizes))}"

    def shaped(what: str, m: int, n: int, *layouts: Layout) -> str:
        return " ".join([f"{what} {m}x{n}", *(x for x in layouts if x != "plain")])

    for index in range(8):
        m, k, n = size(), size(), size()
        two = ("plain", "plain") if index < 3 else (layout(), layout())
        rows.append(
            rows_dense.matmul(
                " ".join([name("sgemm", m, k, n), *two]).removesuffix(" plain plain"), m, k, n, layouts=two
            )
        )
    m, k, n = size(), size(), size()
    rows.append(rows_dense.transposed_product(name("A^T B", m, k, n), m, k, n))
    rows.append(rows_dense.matmul(name("dgemm", m, k, n), m, k, n, dtype="float64"))
    m, k, n = (rng.randint(60, 200) for _ in range(3))
    rows.append(rows_dense.matmul(f"sgemm 17 of {m}x{k}x{n}", m, k, n, batch=17))
    for _ in range(2):
        m, n, how = size(), size(), layout()
        rows.append(rows_dense.matvec(shaped("matrix-vector", m, n, how), m, n, how))
        m, n, how = size(), size(), layout()
        rows.append(rows_dense.vecmat(shaped("vector-matrix", m, n, how), m, n, how))
        m, n, how = size(), size(), layout()
        rows.append(rows_dense.gelu_like(shaped("x*sigmoid(1.702x)+1", m, n, how), m, n, how))
        m, n, pair = size(), size(), (layout(), layout())
        rows.append(rows_dense.multiply_add(shaped("a*2+b", m, n, *pair), m, n, pair))
        for axis in (None, 0, 1):
            m, n, how = size(), size(), layout()
            what = "sum" if axis is None else f"sum over axis {axis}"
            rows.append(rows_dense.total(shaped(what, m, n, how), m, n, axis, how))
        m, n, how = size(), size(), layout()
        rows.append(rows_dense.softmax(shaped("softmax", m, n, how), m, n, how))
        m, n, how = size(), size(), layout()
        rows.append(rows_dense.layernorm(shaped("layernorm", m, n, how), m, n, how))
    m, n, how = size(), size(), layout()
    rows.append(rows_dense.extreme(shaped("max", m, n, how), m, n, how))
    m, n, how = size(), size(), layout()
    rows.append(rows_dense.argmax(shaped("argmax over axis 1", m, n, how), m, n, 1, how))
    m, n, how, axis = size(), size(), layout(), rng.randint(0, 1)
    rows.append(rows_dense.cumsum(shaped(f"cumsum over axis {axis}", m, n, how), m, n, axis, how))
    m, n = size(), size()
    rows.append(rows_dense.transpose(name("transpose copy", m, n), m, n))
    m, k, n = size(), size(), size()
    rows.append(rows_dense.gather(f"gather {m} of {k}x{n}", m, k, n))
    m, n = size(), size()
    rows.append(rows_dense.cross_entropy(name("cross-entropy", m, n), m, n))
    for _ in range(3):
        kernel, stride = rng.choice((1, 3, 5, 7)), rng.choice((1, 1, 2))
        batch, cin, cout = rng.randint(1, 17), rng.randint(3, 97), rng.randint(5, 131)
        h, w, pad = rng.randint(13, 59), rng.randint(13, 59), rng.randint(0, kernel // 2)
        label = f"{kernel}x{kernel} stride {stride} pad {pad} {batch}x{cin}x{h}x{w} to {cout}"
        rows.extend(rows_conv.conv_rows(rows_conv.Conv(label, batch, cin, h, w, cout, kernel, stride, pad)))
    heads, queries, keys, width = (
        rng.randint(1, 13),
        rng.randint(257, 700),
        rng.randint(257, 900),
        rng.choice((40, 64, 80)),
    )
    label = f"attention {heads} heads {queries} to {keys} of {width}"
    rows.append(rows_conv.attention(label, heads, queries, keys, width))
    label = f"attention {heads} heads {queries} of {width} causal"
    rows.append(rows_conv.attention(label, heads, queries, queries, width, causal=True))
    return tuple(rows)
