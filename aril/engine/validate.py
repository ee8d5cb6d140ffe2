"""VALIDATE_WITH_CPU: every kernel is run a second time, by a reference, and the results are compared.

In: a launch about to happen. Out: a check to call once it has happened; `KernelMismatch` names the kernel and the
element. The reference of the CPU is the interpreter (PYTHON); that of other devices is the CPU, or the interpreter
with `2`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from aril.config import VALIDATE_WITH_CPU
from aril.device import Buffer
from aril.dtype import DType
from aril.engine.compile import load_kernels
from aril.ops import Ops
from aril.uop import UOp

# Relative to the element, or to a hundredth of the largest. Kernels with reductions may differ by 4 eps (1 + log2 n)
# sum|x| besides.
TOLERANCE = {"float64": 1e-12, "float32": 3e-5, "float16": 4e-3}
# What still differs is compared with what the reference itself makes of inputs that differ by as much as sums of them
# are off (the stochastic arithmetic of Vignes, 1993): noise that a kernel divides by its own size is no fault.
TRIALS, SPREAD = 12, 16
CODES = 2  # elements of other float types, and floats whose bits lie in integers, may differ by so many codes


_OWN_SOURCE = frozenset({Ops.CUSTOM, Ops.CUSTOMI, Ops.INS})  # text for one target: the reference cannot run it


class KernelMismatch(AssertionError):
    """A kernel gave something else than its reference."""


def expect(
    body: Any, name: str, device: str, buffers: Sequence[Buffer], outputs: int, values: dict[str, int]
) -> Callable[[], None]:
    """Run kernel `body` by the reference on copies of its buffers; the function returned compares them with the
    buffers.
    """
    kind = device.partition(":")[0]
    if kind == "PYTHON" or body is None or any(u.op in _OWN_SOURCE for u in body.toposort()):
        return lambda: None
    reference = "PYTHON" if kind == "CPU" or VALIDATE_WITH_CPU.value == 2 else "CPU"
    loaded = load_kernels([(body, reference)])[0]
    given = [bytes(b.as_memoryview()) if b.is_allocated and b.nbytes else b"" for b in buffers]
    numbers, chunks = loaded.launch_values(values)
    terms = max([b.size for b in buffers]) / max(min([b.size for b in buffers[:outputs]], default=1), 1)

    def copied(seed: int | None) -> list[Buffer]:
        copies = []
        for b, content in zip(buffers, given, strict=True):
            c = Buffer(reference, b.size, b.dtype).allocate()
            if content:
                c.copyin(memoryview(content))
                if seed is not None:
                    _disturb(c, np.random.default_rng(seed), terms)
            copies.append(c)
        return copies

    def run(copies: list[Buffer]) -> list[Buffer]:
        loaded.program([c.opaque for c in copies], numbers, chunks, True)
        return copies

    copies = copied(None)
    slack, bits = _reduction_slack(body, copies, outputs), _takes_bits(body)
    run(copies)

    def spread(k: int) -> Iterator[Any]:
        wanted = _numbers(copies[k])
        for seed in range(TRIALS):
            yield np.abs(_numbers(run(copied(seed))[k]) - wanted)

    def check() -> None:
        for k in range(outputs):
            _compare(name, k, buffers[k], copies[k], reference, slack, bits, spread)

    return check


def _disturb(b: Buffer, rng: Any, terms: float) -> None:
    """Floats moved by as much as a sum of so many terms may be off, a term: some sqrt(terms) units of the last."""
    if b.dtype.kind == "f" and b.dtype.fmt is not None:
        x = np.frombuffer(b.as_memoryview(), np.dtype(b.dtype.fmt))
        moved = np.isfinite(x) & (x != 0)
        x[moved] *= 1 + np.finfo(x.dtype).eps * 4 * np.sqrt(max(terms, 1.0)) * rng.uniform(-1, 1, moved.sum())


def _takes_bits(body: UOp) -> bool:
    """Whether integers are made of the bits of floats, as the keys of a sort are."""
    return any(u.op is Ops.BITCAST and u.src[0].dtype.kind == "f" and u.dtype.kind in "iu" for u in body.toposort())


def _reduction_slack(body: UOp, buffers: list[Buffer], outputs: int) -> float:
    """What the order of summing may change in one result, in units of eps: 4 (1 + log2 n) times the mean of sum|x|."""
    if not any(u.op is Ops.REDUCE for u in body.toposort()):
        return 0.0
    out = 0.0
    count = max(min([b.size for b in buffers[:outputs]], default=1), 1)
    for b in buffers:
        if b.dtype.kind == "f" and b.dtype.fmt is not None and b.nbytes:
            x = _numbers(b)
            total = float(np.abs(x[np.isfinite(x)]).sum())
            out = max(out, 4 * (1 + math.log2(max(b.size / count, 1))) * total / count)
    return out


def _compare(
    name: str,
    k: int,
    found: Buffer,
    wanted: Buffer,
    reference: str,
    slack: float,
    bits: bool,
    spread: Callable[[int], Iterator[Any]],
) -> None:
    if not found.nbytes:
        return
    f, w = _numbers(found), _numbers(wanted)
    with np.errstate(all="ignore"):
        wrong = _far(f, w, found.dtype, slack, bits)
        if wrong.any() and found.dtype.kind == "f" and found.dtype.fmt is not None:
            for moved in spread(k):
                wrong &= ~(np.abs(f - w) <= SPREAD * moved)
                if not wrong.any():
                    break
    bad = np.flatnonzero(wrong)
    if bad.size:
        i = int(bad[0])
        raise KernelMismatch(
            f"kernel {name} on {found.device} wrote {f[i]!r} as element {i} of {f.size} of result {k}; "
            f"{reference} wrote {w[i]!r} "
            f"({bad.size} elements differ). Run it alone with DEBUG=4 to see its source"
        )


def _far(f: Any, w: Any, dtype: DType, slack: float, bits: bool) -> Any:
    if bits and dtype.kind in "iu":  # a number that differs by so many codes, at some place within the integer
        distance = (np.maximum(f, w) - np.minimum(f, w)).astype(np.uint64)
        lowest = distance & (~distance + np.uint64(1))
        return distance > np.uint64(CODES) * lowest
    if dtype.kind != "f":
        return f != w
    if dtype.fmt is None:
        return np.abs(f - w) > CODES
    finite = np.abs(w[np.isfinite(w)])
    scale = np.maximum(np.abs(w), 0.01 * (finite.max() if finite.size else 0.0))
    near = np.abs(f - w) <= TOLERANCE[dtype.name] * scale + 2.0 ** -(dtype.mantissa + 1) * slack
    return ~(near | (f == w) | (np.isnan(f) & np.isnan(w)))


def _numbers(b: Buffer) -> Any:
    """The elements as NumPy numbers; of a float type NumPy lacks, its codes in the order of the numbers they stand
    for.
    """
    memory = b.as_memoryview()
    if b.dtype.fmt is not None:
        out = np.frombuffer(memory, np.dtype(b.dtype.fmt)).copy()
        with np.errstate(invalid="ignore"):  # bits that are no number yet
            return out.astype(np.float64) if b.dtype.kind == "f" else out
    codes = np.frombuffer(memory, f"u{b.dtype.itemsize}").astype(np.int64)
    sign = 1 << (8 * b.dtype.itemsize - 1)
    return np.where(codes & sign, -(codes & (sign - 1)), codes)
