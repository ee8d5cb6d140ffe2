"""Rows of convolutions with their two gradients, and of attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench import reference
from bench.row import Input, Row


@dataclass(frozen=True)
class Conv:
    """A convolution of (n, cin, h, w) with (cout, cin / groups, k, k)."""

    label: str
    n: int
    cin: int
    h: int
    w: int
    cout: int
    k: int
    stride: int = 1
    pad: int = 0
    groups: int = 1
    quick: bool = False

    @property
    def out(self) -> tuple[int, int, int, int]:
        """The result's shape."""
        h, w = ((s + 2 * self.pad - self.k) // self.stride + 1 for s in (self.h, self.w))
        return (self.n, self.cout, h, w)

    @property
    def flops(self) -> float:
        """Of the convolution; each gradient takes as many."""
        n, cout, h, w = self.out
        return 2.0 * n * cout * h * w * self.cin // self.groups * self.k**2


def conv_rows(c: Conv) -> tuple[Row, Row, Row]:
    """The convolution, and its gradients with respect to input and weight."""
    x, w = Input((c.n, c.cin, c.h, c.w)), Input((c.cout, c.cin // c.groups, c.k, c.k), scale=0.1)
    g = Input(c.out)
    rest = (c.stride, c.pad, c.groups)

    def forward(_: Any, x: Any, w: Any) -> Any:
        return x.conv2d(w, groups=c.groups, stride=c.stride, padding=c.pad)

    def jax_forward(jax: Any, x: Any, w: Any) -> Any:
        pads = [(c.pad, c.pad)] * 2
        return jax.lax.conv_general_dilated(x, w, [c.stride] * 2, pads, feature_group_count=c.groups)

    def torch_backward(torch: Any, g: Any, x: Any, w: Any, mask: list[bool]) -> Any:
        two = [[v, v] for v in (c.stride, c.pad, 1)]
        return torch.ops.aten.convolution_backward(g, x, w, None, *two, False, [0, 0], c.groups, mask)

    def input_grad(lib: Any, g: Any, w: Any) -> Any:
        x = lib.Tensor.zeros(c.n, c.cin, c.h, c.w).contiguous()
        return forward(lib, x, w).gradient(x, gradient=g)[0]

    def weight_grad(lib: Any, x: Any, g: Any) -> Any:
        w = lib.Tensor.zeros(*weight.shape).contiguous()
        return forward(lib, x, w).gradient(w, gradient=g)[0]

    weight = w

    def jax_input_grad(jax: Any, g: Any, w: Any) -> Any:
        zero = jax.numpy.zeros(x.shape, "float32")
        return jax.vjp(lambda x: jax_forward(jax, x, w), zero)[1](g)[0]

    def jax_weight_grad(jax: Any, x: Any, g: Any) -> Any:
        zero = jax.numpy.zeros(weight.shape, "float32")
        return jax.vjp(lambda w: jax_forward(jax, x, w), zero)[1](g)[0]

    return (
        Row(
            f"conv {c.label}",
            "convolutions",
            (x, w),
            {
                "aril": forward,
                "tinygrad": forward,
                "torch": lambda torch, x, w: torch.nn.functional.conv2d(x, w, None, c.stride, c.pad, 1, c.groups),
                "jax": jax_forward,
            },
            lambda x, w: reference.conv2d(x, w, *rest),
            flops=c.flops,
            moved=x.nbytes + w.nbytes + g.nbytes,
            written=g.nbytes,
            quick=c.quick,
        ),
        Row(
            f"conv {c.label}, input gradient",
            "convolutions",
            (g, w),
            {
                "aril": input_grad,
                "tinygrad": input_grad,
                "torch": lambda torch, g, w: torch_backward(torch, g, g.new_empty(x.shape), w, [True, False, False])[0],
                "jax": jax_input_grad,
            },
            lambda g, w: reference.conv2d_input_grad(g, w, (c.h, c.w), *rest),
            flops=c.flops,
            moved=x.nbytes + w.nbytes + g.nbytes,
            written=x.nbytes,
            quick=c.quick,
        ),
        Row(
            f"conv {c.label}, weight gradient",
            "convolutions",
            (x, g),
            {
                "aril": weight_grad,
                "tinygrad": weight_grad,
                "torch": lambda torch, x, g: torch_backward(
                    torch, g, x, g.new_empty(weight.shape), [False, True, False]
                )[1],
                "jax": jax_weight_grad,
            },
            lambda x, g: reference.conv2d_weight_grad(x, g, (c.k, c.k), *rest),
            tolerances={"torch": 1e-4},  # its AVX2 kernels add up to 400,000 products in one sum
            flops=c.flops,
            moved=x.nbytes + w.nbytes + g.nbytes,
            written=w.nbytes,
            quick=c.quick,
        ),
    )


def attention(
    name: str, heads: int, rows: int, keys: int, width: int, *, causal: bool = False, quick: bool = False
) -> Row:
    """Attention of `rows` queries to `keys` keys in each head."""
    q, k = Input((1, heads, rows, width)), Input((1, heads, keys, width))
    seen = (keys + 1) / (2 * keys) if causal else 1.0  # of all pairs, these count
    moved = 2.0 * (q.nbytes + k.nbytes)

    def jax_way(jax: Any, q: Any, k: Any, v: Any) -> Any:
        q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))  # it wants (batch, rows, heads, width)
        return jax.nn.dot_product_attention(q, k, v, is_causal=causal).swapaxes(1, 2)

    def numpy_way(np: Any, q: Any, k: Any, v: Any) -> Any:
        scores = q @ k.swapaxes(-1, -2) * np.float32(width**-0.5)
        if causal:
            scores += np.triu(np.full(scores.shape[-2:], -np.inf, np.float32), 1)
        e = np.exp(scores - scores.max(-1, keepdims=True))
        return (e @ v) / e.sum(-1, keepdims=True)

    return Row(
        name,
        "attention",
        (q, k, k),
        {
            "aril": lambda _, q, k, v: q.scaled_dot_product_attention(k, v, is_causal=causal),
            "tinygrad": lambda _, q, k, v: q.scaled_dot_product_attention(k, v, is_causal=causal),
            "torch": lambda torch, q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal),
            "jax": jax_way,
            "numpy": numpy_way,
        },
        lambda q, k, v: reference.attention(q, k, v, causal),
        flops=4.0 * heads * rows * keys * width * seen,
        moved=moved,
        written=q.nbytes,
        quick=quick,
    )


CONVOLUTIONS = (
    Conv("3x3 16x64x56x56", 16, 64, 56, 56, 64, 3, pad=1, quick=True),
    Conv("1x1 16x256x14x14 to 1024", 16, 256, 14, 14, 1024, 1),
    Conv("3x3 stride 2 16x64x56x56 to 128", 16, 64, 56, 56, 128, 3, stride=2, pad=1),
    Conv("depthwise 3x3 16x128x28x28", 16, 128, 28, 28, 128, 3, pad=1, groups=128),
    Conv("5x5 512x1x28x28 to 32", 512, 1, 28, 28, 32, 5),
)

ROWS: tuple[Row, ...] = (
    *(row for conv in CONVOLUTIONS for row in conv_rows(conv)),
    attention("attention 8 heads 512x64", 8, 512, 512, 64, quick=True),
    attention("attention 8 heads 512x64 causal", 8, 512, 512, 64, causal=True),
    attention("attention decode 32 heads, 2048 keys of 128", 32, 1, 2048, 128),
)
