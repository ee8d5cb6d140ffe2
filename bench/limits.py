"""The physical limits, measured on the spot by kernels of our own: peak multiply-adds, copy, read.

In: this machine; out: `Limits`, and the least time a row can take. The kernels are LLVM IR, compiled and run by the
runtime that runs aril's kernels (arguments: `void** slots, i64 chunk, void* scratch`).
"""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass

from aril.runtime.elf import LoadedObject, load_object
from aril.runtime.llvm import compile_ir
from aril.runtime.memory import CPUAllocator
from aril.runtime.pool import shared_pool
from aril.runtime.target import HostTarget, host_target
from bench.row import Row

CHUNKS = 64  # many more than threads: one that starts late takes fewer
SIZES = (64 << 20, 512 << 20)  # of the rows' matrices, and larger than most last caches
ROUNDS = 15


@dataclass(frozen=True)
class Limits:
    """Best rates: multiply-adds count 2 (GFLOPS), a copy counts bytes read and written (GB/s)."""

    float32_gflops: float
    float64_gflops: float
    copy_gbs: dict[str, float]  # by size of the buffer
    read_gbs: dict[str, float]

    @property
    def copy(self) -> float:
        """The best copy rate, in bytes a second."""
        return max(self.copy_gbs.values()) * 1e9

    @property
    def read(self) -> float:
        """The best rate of reading, in bytes a second."""
        return max(self.read_gbs.values()) * 1e9

    def merged(self, other: Limits) -> Limits:
        """The better rate of each kind: a limit measured while something else ran is too low."""
        return Limits(
            max(self.float32_gflops, other.float32_gflops),
            max(self.float64_gflops, other.float64_gflops),
            {size: max(rate, other.copy_gbs.get(size, 0.0)) for size, rate in self.copy_gbs.items()},
            {size: max(rate, other.read_gbs.get(size, 0.0)) for size, rate in self.read_gbs.items()},
        )

    def of(self, row: Row) -> tuple[float, str]:
        """The least time for `row` in seconds, and what sets it: "fma", "read", "copy" or "" for unknown."""
        peak = self.float64_gflops if row.precision == "float64" else self.float32_gflops
        fma = row.flops / (peak * 1e9)
        # A tenth of the bytes stored makes it a copy; less is a read.
        kind, rate = ("copy", self.copy) if row.written * 10 > row.moved else ("read", self.read)
        memory = row.moved / rate
        if not fma and not memory:
            return 0.0, ""
        return (fma, "fma") if fma >= memory else (memory, kind)


def measure_limits(rounds: int = ROUNDS, sizes: tuple[int, ...] = SIZES) -> Limits:
    """Measure them; takes some seconds."""
    target = host_target()
    widths = sorted({32, target.vector_bytes, target.max_vector_bytes} if target.arch == "x86_64" else {16})
    widths = [w for w in widths if w <= target.max_vector_bytes]
    rates = {kind: max(_fma_rate(target, kind, w, rounds) for w in widths) for kind in ("float", "double")}
    allocator = CPUAllocator("CPU", limit=0)
    copy: dict[str, float] = {}
    read: dict[str, float] = {}
    for size in sizes:
        a, b = allocator.alloc(size), allocator.alloc(size)
        try:
            name = f"{size >> 20} MiB"
            clear = _memory_code(target, "copy")
            _run(clear, (b, a, size // CHUNKS), 1)  # first touch of both sides is no part of it
            _run(clear, (a, b, size // CHUNKS), 1)
            copy[name] = 2 * size / _run(clear, (b, a, size // CHUNKS), rounds) / 1e9
            read[name] = size / _run(_memory_code(target, "read"), (b, a, size // CHUNKS), rounds) / 1e9
        finally:
            allocator.free(a, size)
            allocator.free(b, size)
    return Limits(rates["float"], rates["double"], copy, read)


def _run(code: LoadedObject, slots: tuple[int, ...], rounds: int) -> float:
    """The best time of `rounds` runs over all chunks, in seconds."""
    pool, args = shared_pool(), struct.pack(f"<{len(slots)}q", *slots)
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        pool.run_one(code.symbols["kernel"], args, CHUNKS)
        best = min(best, time.perf_counter() - start)
    return best


def _fma_rate(target: HostTarget, kind: str, width: int, rounds: int) -> float:
    """GFLOPS of multiply-adds between registers, with vectors of `width` bytes."""
    lanes = width // (4 if kind == "float" else 8)
    chains = 24 if target.vector_registers >= 32 and (width == 64 or target.arch != "x86_64") else 12
    steps = 100_000
    code = load_object(compile_ir(fma_ir(kind, lanes, chains, steps, target.has_fma), level=0))
    allocator = CPUAllocator("CPU", limit=0)
    memory = allocator.alloc(64 * CHUNKS + 64)
    try:
        seconds = _run(code, (memory,), rounds)
    finally:
        allocator.free(memory, 64 * CHUNKS + 64)
    return 2.0 * lanes * chains * steps * CHUNKS / seconds / 1e9


def fma_ir(kind: str, lanes: int, chains: int, steps: int, fused: bool) -> str:
    """`steps` times x = x * y + z in `chains` independent vectors, nothing but registers; each chunk stores its sum.

    Enough chains hide the latency: 4 cycles, two a cycle, on the CPUs of the last ten years, so 8 are the least.
    """
    vector = f"<{lanes} x {kind}>"
    suffix = f"v{lanes}f{32 if kind == 'float' else 64}"
    lines = []
    for c in range(chains):
        lines.append(f"  %a{c} = phi {vector} [ %start, %entry ], [ %n{c}, %loop ]")
    for c in range(chains):
        if fused:
            lines.append(f"  %n{c} = call {vector} @llvm.fma.{suffix}({vector} %a{c}, {vector} %y, {vector} %z)")
        else:
            lines += [f"  %m{c} = fmul {vector} %a{c}, %y", f"  %n{c} = fadd {vector} %m{c}, %z"]
    total = "\n".join(f"  %t{c} = fadd {vector} %n{c}, {f'%t{c - 1}' if c > 1 else '%n0'}" for c in range(1, chains))
    body = "\n".join(lines)
    ones = splat(kind, lanes, "1.0")
    return f"""
define void @kernel(ptr %slots, i64 %chunk, ptr %scratch) {{
entry:
  %out = load ptr, ptr %slots
  %place = getelementptr [64 x i8], ptr %out, i64 %chunk
  %number = sitofp i64 %chunk to {kind}
  %one = insertelement {vector} poison, {kind} %number, i32 0
  %start = shufflevector {vector} %one, {vector} poison, <{lanes} x i32> zeroinitializer
  %z = fadd {vector} %start, {ones}
  %y = fdiv {vector} {ones}, %z
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]
{body}
  %j = add i64 %i, 1
  %more = icmp slt i64 %j, {steps}
  br i1 %more, label %loop, label %end
end:
{total}
  store {vector} %t{chains - 1}, ptr %place, align 16
  ret void
}}
declare {vector} @llvm.fma.{suffix}({vector}, {vector}, {vector})
"""


def splat(kind: str, lanes: int, value: str) -> str:
    """The constant vector of `lanes` times `value`."""
    return "<" + ", ".join(f"{kind} {value}" for _ in range(lanes)) + ">"


def _memory_code(target: HostTarget, what: str) -> LoadedObject:
    lanes = target.vector_bytes // 4
    return load_object(compile_ir(copy_ir(lanes) if what == "copy" else read_ir(lanes), level=0))


def copy_ir(lanes: int) -> str:
    """Each chunk copies its part of slot 1's memory to slot 0's with streaming stores; slot 2 is the part's bytes."""
    step = 4 * lanes
    parts = "\n".join(
        f"""  %p{k} = getelementptr i8, ptr %from, i64 {k * step}
  %q{k} = getelementptr i8, ptr %to, i64 {k * step}
  %v{k} = load <{lanes} x float>, ptr %p{k}, align {step}
  store <{lanes} x float> %v{k}, ptr %q{k}, align {step}, !nontemporal !0"""
        for k in range(4)
    )
    return f"""
define void @kernel(ptr %slots, i64 %chunk, ptr %scratch) {{
entry:
{_SLOTS}
  br label %loop
loop:
  %at = phi i64 [ %begin, %entry ], [ %next, %loop ]
  %from = getelementptr i8, ptr %source, i64 %at
  %to = getelementptr i8, ptr %target, i64 %at
{parts}
  %next = add i64 %at, {4 * step}
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  fence seq_cst
  ret void
}}
!0 = !{{i32 1}}
"""


def read_ir(lanes: int) -> str:
    """Each chunk adds up its part of slot 1's memory and writes the sums to the part's begin in slot 0's."""
    vector, step, chains = f"<{lanes} x i32>", 4 * lanes, 8
    heads = "\n".join(f"  %a{k} = phi {vector} [ zeroinitializer, %entry ], [ %n{k}, %loop ]" for k in range(chains))
    parts = "\n".join(
        f"""  %p{k} = getelementptr i8, ptr %from, i64 {k * step}
  %v{k} = load {vector}, ptr %p{k}, align {step}
  %n{k} = add {vector} %a{k}, %v{k}"""
        for k in range(chains)
    )
    total = "\n".join(f"  %t{k} = add {vector} %n{k}, {f'%t{k - 1}' if k > 1 else '%n0'}" for k in range(1, chains))
    return f"""
define void @kernel(ptr %slots, i64 %chunk, ptr %scratch) {{
entry:
{_SLOTS}
  br label %loop
loop:
  %at = phi i64 [ %begin, %entry ], [ %next, %loop ]
{heads}
  %from = getelementptr i8, ptr %source, i64 %at
{parts}
  %next = add i64 %at, {chains * step}
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %done
done:
{total}
  %to = getelementptr i8, ptr %target, i64 %begin
  store {vector} %t{chains - 1}, ptr %to, align {step}
  ret void
}}
"""


_SLOTS = """  %target = load ptr, ptr %slots
  %slot1 = getelementptr ptr, ptr %slots, i64 1
  %source = load ptr, ptr %slot1
  %slot2 = getelementptr ptr, ptr %slots, i64 2
  %bytes = load i64, ptr %slot2
  %begin = mul i64 %chunk, %bytes
  %end = add i64 %begin, %bytes"""
