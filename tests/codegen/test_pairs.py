"""Products of bfloat16 two terms at a time: plans, the instruction in the assembly, results natively and interpreted.

The reference is NumPy's product in float64 of the values that bfloat16 holds exactly.
"""

import re
from dataclasses import replace

import numpy as np
import pytest

from aril import Context, Tensor
from aril.codegen import compile_kernel
from aril.codegen.panels import Stage
from aril.device import GlobalCounters
from aril.dtype import dtypes
from aril.ops import Ops
from aril.runtime.llvm import compile_ir_to_asm
from aril.runtime.target import host_target
from tests.codegen import build as b
from tests.codegen.run import check, renderer, run_native, run_python
from tests.codegen.test_linearize import innermost

BF16 = dtypes.bfloat16
HAS_PAIRS = host_target().has_bf16_pairs


def paired(target: str):
    """The target with the instruction, whether this machine has it or not."""
    made = renderer(target)
    return replace(made, pair_lanes=tuple([n for n in (4, 8, 16) if n * 4 <= made.vector_bytes]))


def takes_pairs(program) -> bool:
    return any(u.op is Ops.WMMA for u in program.linear.src)


def narrow(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(values that bfloat16 holds, the bits of them)."""
    bits = (np.ascontiguousarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return (bits.astype(np.uint32) << 16).view(np.float32), bits


def product(m: int, k: int, n: int, layout: str = "nn", dtype=dtypes.float32) -> b.Kernel:
    """a @ b of bfloat16 summed in float32; `layout` "tn" has a as (k, m), "nt" b as (n, k)."""
    made = b.Build()
    shapes = ((k, m) if layout[0] == "t" else (m, k), (n, k) if layout[1] == "t" else (k, n))
    (x, xbits), (y, ybits) = [narrow(made.array(*shape)) for shape in shapes]
    i, j = made.loops(m, n)
    r = made.loop(k, b.REDUCE)
    left = b.load(1, shapes[0], *((r, i) if layout[0] == "t" else (i, r)), dtype=BF16).cast(dtypes.float32)
    right = b.load(2, shapes[1], *((j, r) if layout[1] == "t" else (r, j)), dtype=BF16).cast(dtypes.float32)
    total = b.reduce(Ops.ADD, b.alu(Ops.MUL, left, right), r).cast(dtype)
    a, c = x.astype(float), y.astype(float)
    a, c = a.T if layout[0] == "t" else a, c.T if layout[1] == "t" else c
    return b.Kernel(b.sink(b.store(0, (m, n), [i, j], total)), [(0, np.zeros((m, n), np.float32))], [xbits, ybits],
                    lambda: [a @ c], tolerance=2e-6)  # fmt: skip


@pytest.mark.parametrize("target", ["wide", "avx2", "small caches"])
@pytest.mark.parametrize("layout", ["nn", "tn", "nt"])
@pytest.mark.parametrize("shape", [(40, 32, 64), (17, 30, 47), (1, 256, 64), (64, 256, 1), (9, 7, 64)])
def test_products(shape, layout, target):
    kernel = product(*shape, layout)
    program = compile_kernel(kernel.sink, paired(target))
    assert takes_pairs(program) or min(shape) < 8
    check(kernel, run_python(kernel, program))
    if HAS_PAIRS:
        check(kernel, run_native(kernel, program))


def test_the_panel_holds_pairs_and_rows_are_read_where_they_lie():
    program = compile_kernel(product(1024, 1024, 1024).sink, paired("wide"))
    stages = [s for s in program.applied if isinstance(s, Stage)]
    assert len(stages) == 1 and stages[0].inner[-1] == (2, 1)  # the two terms of a pair innermost
    depth, bytes_each, columns = 1024, 2, int(next(s.factor for s in program.applied if s.id == (1,)))
    assert program.scratch_bytes == depth * columns * bytes_each


@pytest.mark.skipif(not HAS_PAIRS, reason="this CPU has no vdpbf16ps")
def test_the_inner_loop_is_dot_products_with_broadcasting_loads():
    program = compile_kernel(product(192, 256, 192).sink, paired("wide"))
    body = innermost(compile_ir_to_asm(program.source), "vdpbf16ps")
    dots = len(re.findall(r"vdpbf16ps", body))
    assert dots >= 16 and "vfmadd" not in body and "(%rsp)" not in body
    others = set(re.findall(r"\bv(?!dpbf16)\w+", body))
    assert others <= {"vbroadcastss", "vpbroadcastd", "vmovaps", "vmovups"}  # loads, nothing else


def test_rounding_and_denormal_numbers_where_the_type_is_emulated_on_request():
    kernel = product(16, 32, 16)
    with Context(EMULATED_DTYPES="bfloat16"):
        assert not takes_pairs(compile_kernel(kernel.sink, paired("wide")))
    tiny = Tensor(np.full((16, 32), 2.0**-130, np.float32)).cast("bfloat16").realize()
    huge = Tensor(np.full((32, 16), 2.0**126, np.float32)).cast("bfloat16").realize()
    with Context(EMULATED_DTYPES="bfloat16"):
        assert tiny.matmul(huge, dtype="float32").numpy().tolist() == [[2.0] * 16] * 16


@pytest.mark.parametrize("dtype", [None, "float32"])
@pytest.mark.parametrize(
    ("a", "c", "turn"),
    [((40, 64), (64, 48), ""), ((40, 64), (48, 64), "b"), ((64, 40), (64, 48), "a"), ((3, 20, 32), (3, 32, 40), ""),
     ((3, 20, 32), (32, 40), ""), ((40, 33), (33, 48), ""), ((600, 160), (600, 600), "a"), ((64, 35), (35, 99), ""),
     ((2, 64, 35), (2, 72, 35), "b")],
)  # fmt: skip
def test_tensors(a, c, turn, dtype):
    rng = np.random.default_rng(1)
    x, y = [narrow(rng.standard_normal(s))[0] for s in (a, c)]
    left, right = [Tensor(v).cast("bfloat16").realize() for v in (x, y)]
    left, x = (left.T, x.T) if turn == "a" else (left, x)
    right, y = (right.transpose(-1, -2), y.swapaxes(-1, -2)) if turn == "b" else (right, y)
    before, moved = GlobalCounters.kernels, GlobalCounters.bytes
    got = left.matmul(right, dtype=dtype).realize()
    if HAS_PAIRS and x.shape[-1] % 2 == 0 and x.size < 10_000:
        assert GlobalCounters.kernels - before == 1  # nothing is stored wider
    if HAS_PAIRS:  # a copy of a factor (transposed, or with a term more) is bfloat16: read, written and read again
        most = (
            6 * (x.size + y.size + max(x.size // x.shape[-1], y.size // y.shape[-2]))
            + 4 * got.numel() * got.dtype.itemsize
        )
        assert GlobalCounters.bytes - moved <= most
    want = x.astype(float) @ y.astype(float)
    assert got.dtype.name == (dtype or "bfloat16")
    error = np.abs(got.float().numpy() - want).max() / np.abs(want).max()
    assert error < (2e-6 if dtype else 2.0**-8)


@pytest.mark.parametrize("padding", [0, 1])
def test_convolutions_and_their_gradients(padding):
    """Also the input's gradient is one sum (of windows that were never stored), rounded once."""
    rng = np.random.default_rng(2)
    x, w = [narrow(rng.standard_normal(s))[0] for s in ((2, 8, 9, 10), (6, 8, 3, 3))]
    a, c = [Tensor(v).cast("bfloat16").realize() for v in (x, w)]
    got = a.conv2d(c, padding=padding)
    wide = [Tensor(v.astype(np.float64)) for v in (x, w)]
    want = wide[0].conv2d(wide[1], padding=padding)
    g = narrow(rng.standard_normal(got.shape))[0]
    grads = got.gradient(a, c, gradient=Tensor(g).cast("bfloat16").realize())
    exact = want.gradient(*wide, gradient=Tensor(g.astype(np.float64)))
    before = GlobalCounters.bytes
    grads[0].realize()
    assert GlobalCounters.bytes - before < 4 * 9 * x.size  # windows in float32 would be that, written and read
    for y, z in zip((got, *grads), (want, *exact), strict=True):
        y, z = y.float().numpy(), z.numpy()
        assert np.abs(y - z).max() <= 2.0**-8 * np.abs(z).max()
