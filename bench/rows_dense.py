"""Rows of matrix products, elementwise operations, reductions and movements.

Each function makes a row from sizes, so that the fixed table and the drawn shapes share everything but the numbers.
"""

from __future__ import annotations

from typing import Any

from bench import reference
from bench.row import EVERY, Input, Layout, Row


def _bytes(*inputs: Input) -> float:
    return float(sum(i.nbytes for i in inputs))


def matmul(
    name: str,
    m: int,
    k: int,
    n: int,
    *,
    batch: int = 0,
    dtype: str = "float32",
    layouts: tuple[Layout, Layout] = ("plain", "plain"),
    quick: bool = False,
) -> Row:
    """a @ b of (batch, m, k) and (batch, k, n)."""
    lead = (batch,) if batch else ()
    a, b = Input((*lead, m, k), dtype, layout=layouts[0]), Input((*lead, k, n), dtype, layout=layouts[1])
    written = m * n * max(batch, 1) * (8 if dtype == "float64" else 4)
    return Row(
        name,
        "matrix products",
        (a, b),
        {
            EVERY: lambda _, a, b: a @ b,
            "numpy out": lambda np, out, a, b: np.matmul(a, b, out=out),
            "torch out": lambda torch, out, a, b: torch.matmul(a, b, out=out),
        },
        lambda a, b: a @ b,
        tolerance=1e-13 if dtype == "float64" else 1e-5,
        flops=2.0 * m * k * n * max(batch, 1),
        moved=_bytes(a, b) + written,
        written=written,
        precision="float64" if dtype == "float64" else "float32",
        quick=quick,
    )


def matmul_bfloat16(size: int) -> Row:
    """bfloat16 in, float32 out. PyTorch has that by a cast of the result, which it rounds first."""
    a = b = Input((size, size), "bfloat16")
    written = 4.0 * size * size
    return Row(
        f"bfloat16 to float32 {size}",
        "matrix products",
        (a, b),
        {
            "aril": lambda _, a, b: a.matmul(b, dtype="float32"),
            "numpy": lambda _, a, b: a @ b,  # float32 operands: NumPy has no bfloat16
            "torch": lambda _, a, b: (a @ b).float(),
            "jax": lambda jax, a, b: jax.numpy.matmul(a, b, preferred_element_type="float32"),
            "tinygrad": lambda tinygrad, a, b: a.matmul(b, dtype=tinygrad.dtypes.float32),
        },
        lambda a, b: a @ b,
        tolerances={"torch": 4e-3},
        flops=2.0 * size**3,
        moved=_bytes(a, b) + written,
        written=written,
    )


def transposed_product(name: str, m: int, k: int, n: int) -> Row:
    """a.T @ b of (k, m) and (k, n)."""
    a, b = Input((k, m)), Input((k, n))
    return Row(
        name,
        "matrix products",
        (a, b),
        {
            EVERY: lambda _, a, b: a.T @ b,
            "numpy out": lambda np, out, a, b: np.matmul(a.T, b, out=out),
            "torch out": lambda torch, out, a, b: torch.matmul(a.T, b, out=out),
        },
        lambda a, b: a.T @ b,
        flops=2.0 * m * k * n,
        moved=_bytes(a, b) + 4.0 * m * n,
        written=4.0 * m * n,
    )


def matvec(name: str, m: int, n: int, layout: Layout = "plain", quick: bool = False) -> Row:
    """a @ x of (m, n) and (n,)."""
    a, x = Input((m, n), layout=layout), Input((n,))
    return Row(
        name,
        "matrix and vector",
        (a, x),
        {EVERY: lambda _, a, x: a @ x},
        lambda a, x: a @ x,
        flops=2.0 * m * n,
        moved=_bytes(a, x),
        quick=quick,
    )


def vecmat(name: str, m: int, n: int, layout: Layout = "plain") -> Row:
    """x @ a of (m,) and (m, n)."""
    x, a = Input((m,)), Input((m, n), layout=layout)
    return Row(
        name,
        "matrix and vector",
        (x, a),
        {EVERY: lambda _, x, a: x @ a},
        lambda x, a: x @ a,
        flops=2.0 * m * n,
        moved=_bytes(x, a),
    )


def gelu_like(name: str, m: int, n: int, layout: Layout = "plain", quick: bool = False) -> Row:
    """x * sigmoid(1.702 x) + 1."""
    x = Input((m, n), layout=layout)
    return Row(
        name,
        "elementwise",
        (x,),
        {
            EVERY: lambda _, x: x * (1.702 * x).sigmoid() + 1,
            "numpy": lambda np, x: x / (1 + np.exp(-1.702 * x)) + 1,
            "jax": lambda jax, x: x * jax.nn.sigmoid(1.702 * x) + 1,
            "torch out": lambda torch, out, x: torch.mul(x, torch.sigmoid_(torch.mul(x, 1.702, out=out)), out=out).add_(
                1
            ),
        },
        reference.gelu_like,
        moved=2 * _bytes(x),
        written=_bytes(x),
        quick=quick,
    )


def multiply_add(name: str, m: int, n: int, layouts: tuple[Layout, Layout]) -> Row:
    """a * 2 + b, of operands that may lie any way."""
    a, b = Input((m, n), layout=layouts[0]), Input((m, n), layout=layouts[1])
    return Row(
        name,
        "elementwise",
        (a, b),
        {EVERY: lambda _, a, b: a * 2 + b},
        lambda a, b: a * 2 + b,
        moved=_bytes(a, b) + a.nbytes,
        written=a.nbytes,
    )


def total(name: str, m: int, n: int, axis: int | None = None, layout: Layout = "plain", quick: bool = False) -> Row:
    """The sum over an axis, or over all. Of numbers in [0, 1): the result is far from 0."""
    x = Input((m, n), fill="uniform", layout=layout)
    args = () if axis is None else (axis,)
    written = 0.0 if axis is None else 4.0 * (n if axis == 0 else m)
    return Row(
        name,
        "reductions",
        (x,),
        {EVERY: lambda _, x: x.sum(*args)},
        lambda x: x.sum(*args),
        moved=_bytes(x) + written,
        written=written,
        quick=quick,
    )


def extreme(name: str, m: int, n: int, layout: Layout = "plain") -> Row:
    """The largest of all elements."""
    x = Input((m, n), layout=layout)
    ways = {EVERY: lambda _, x: x.max()}
    return Row(name, "reductions", (x,), ways, lambda x: x.max(), tolerance=0, moved=_bytes(x))


def argmax(name: str, m: int, n: int, axis: int | None = None, layout: Layout = "plain") -> Row:
    """Where the largest is: of all, or of each row."""
    x = Input((m, n), layout=layout)
    args = () if axis is None else (axis,)
    return Row(
        name,
        "reductions",
        (x,),
        {EVERY: lambda _, x: x.argmax(*args)},
        lambda x: x.argmax(*args),
        tolerance=0,
        moved=_bytes(x),
    )


def cumsum(name: str, m: int, n: int, axis: int = 1, layout: Layout = "plain") -> Row:
    """The running sum over an axis."""
    x = Input((m, n), fill="uniform", layout=layout)
    return Row(
        name,
        "reductions",
        (x,),
        {
            EVERY: lambda _, x: x.cumsum(axis),
            "numpy out": lambda np, out, x: np.cumsum(x, axis, out=out),
            "torch out": lambda torch, out, x: torch.cumsum(x, axis, out=out),
        },
        lambda x: x.cumsum(axis),
        moved=2 * _bytes(x),
        written=_bytes(x),
    )


def softmax(name: str, m: int, n: int, layout: Layout = "plain", quick: bool = False) -> Row:
    """Softmax over rows."""
    x = Input((m, n), layout=layout)

    def numpy(np: Any, x: Any) -> Any:
        e = np.exp(x - x.max(-1, keepdims=True))
        e /= e.sum(-1, keepdims=True)
        return e

    return Row(
        name,
        "rows",
        (x,),
        {
            EVERY: lambda _, x: x.softmax(-1),
            "numpy": numpy,
            "jax": lambda jax, x: jax.nn.softmax(x, -1),
            "torch out": lambda torch, out, x: torch.softmax(x, -1, out=out),
        },
        reference.softmax,
        moved=2 * _bytes(x),
        written=_bytes(x),
        quick=quick,
    )


def layernorm(name: str, m: int, n: int, layout: Layout = "plain") -> Row:
    """Layer normalisation over rows."""
    x = Input((m, n), layout=layout)

    def plain(_: Any, x: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return centred / ((centred * centred).mean(-1, keepdims=True) + 1e-5) ** 0.5

    return Row(
        name,
        "rows",
        (x,),
        {
            EVERY: lambda _, x: x.layernorm(-1),
            "numpy": plain,
            "jax": plain,
            "torch": lambda torch, x: torch.nn.functional.layer_norm(x, (x.shape[-1],)),
        },
        reference.layernorm,
        moved=2 * _bytes(x),
        written=_bytes(x),
    )


def transpose(name: str, m: int, n: int, layout: Layout = "plain", quick: bool = False) -> Row:
    """A transposed copy."""
    x = Input((m, n), layout=layout)
    return Row(
        name,
        "movement",
        (x,),
        {
            EVERY: lambda _, x: x.T.contiguous(),
            "numpy": lambda np, x: x.T.copy(),
            # Of a captured transpose XLA makes a copy in memory, as its results lie in their own order.
            "jax": lambda jax, x: x.T.copy(),
            "torch out": lambda _, out, x: out.copy_(x.T),
            "numpy out": lambda np, out, x: np.copyto(out, x.T) or out,
        },
        lambda x: x.T,
        tolerance=0,
        moved=2 * _bytes(x),
        written=_bytes(x),
        quick=quick,
    )


def gather(name: str, rows: int, table: int, width: int, quick: bool = False) -> Row:
    """`rows` rows of a table, by number."""
    x, at = Input((table, width)), Input((rows,), "int64", "index", table)
    out = 4.0 * rows * width
    return Row(
        name,
        "movement",
        (x, at),
        {
            EVERY: lambda _, x, at: x[at],
            "torch": lambda torch, x, at: torch.index_select(x, 0, at),
            "torch out": lambda torch, out, x, at: torch.index_select(x, 0, at, out=out),
            "numpy out": lambda np, out, x, at: np.take(x, at, 0, out=out, mode="clip"),
        },
        lambda x, at: x[at],
        tolerance=0,
        moved=2 * out + at.nbytes,
        written=out,
        quick=quick,
    )


def cross_entropy(name: str, rows: int, classes: int, quick: bool = False) -> Row:
    """The mean cross-entropy of logits (rows, classes) and class numbers."""
    x, y = Input((rows, classes)), Input((rows,), "int64", "index", classes)

    def numpy(np: Any, x: Any, y: Any) -> Any:
        top = x.max(-1, keepdims=True)
        return (np.log(np.exp(x - top).sum(-1)) + top[:, 0] - x[np.arange(len(x)), y]).mean()

    def jax_loss(jax: Any, x: Any, y: Any) -> Any:
        chosen = jax.numpy.take_along_axis(x, y[:, None], 1)[:, 0]
        return (jax.nn.logsumexp(x, 1) - chosen).mean()

    return Row(
        name,
        "rows",
        (x, y),
        {
            EVERY: lambda _, x, y: x.sparse_categorical_crossentropy(y),
            "numpy": numpy,
            "jax": jax_loss,
            "torch": lambda torch, x, y: torch.nn.functional.cross_entropy(x, y),
        },
        reference.cross_entropy,
        moved=_bytes(x, y),
        quick=quick,
    )


ROWS: tuple[Row, ...] = (
    matmul("sgemm 512", 512, 512, 512, quick=True),
    matmul("sgemm 1024", 1024, 1024, 1024, quick=True),
    matmul("sgemm 2048", 2048, 2048, 2048),
    matmul("sgemm 1000x333x777", 1000, 333, 777, quick=True),
    matmul("sgemm 64 of 128x128x64", 128, 128, 64, batch=64),
    transposed_product("A^T B 1024", 1024, 1024, 1024),
    matmul("dgemm 1024", 1024, 1024, 1024, dtype="float64"),
    matmul_bfloat16(1024),
    matvec("matrix-vector 4096x4096", 4096, 4096, quick=True),
    vecmat("vector-matrix 4096x4096", 4096, 4096),
    gelu_like("x*sigmoid(1.702x)+1 4096x4096", 4096, 4096, quick=True),
    total("sum 4096x4096", 4096, 4096, quick=True),
    extreme("max 4096x4096", 4096, 4096),
    argmax("argmax 4096x4096", 4096, 4096),
    total("sum over axis 0 4096x4096", 4096, 4096, 0),
    cumsum("cumsum over axis 1 4096x4096", 4096, 4096),
    softmax("softmax 4096x4096", 4096, 4096, quick=True),
    layernorm("layernorm 4096x4096", 4096, 4096),
    transpose("transpose copy 4096x4096", 4096, 4096, quick=True),
    gather("gather 65536 of 50000x512", 65536, 50000, 512),
    cross_entropy("cross-entropy 4096x32000", 4096, 32000),
)
