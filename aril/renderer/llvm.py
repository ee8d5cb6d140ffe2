"""The LLVM renderer: a linear program in, LLVM IR text (opaque pointers) of one function out. For CPUs.

ABI: `void name(ptr args, i64 chunk, ptr scratch)`, `docs/ir.md`. Vectors stay vectors; LLVM splits those wider than a
register.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from aril.dtype import DType, dtypes
from aril.ops import OpGroup, Ops
from aril.renderer.base import Renderer, RenderError
from aril.renderer.llvm_alu import (
    literal,
    memory_type,
    render_alu,
    render_cast,
    scalar_type,
    splat,
    vectorized,
)
from aril.renderer.llvm_memory import MemoryWriter
from aril.renderer.llvm_writer import Loop, is_memory, lanes_of, mask_of
from aril.uop.node import UOp

_OPS = frozenset(
    {Ops.SQRT, Ops.RECIPROCAL, Ops.NEG, Ops.TRUNC, Ops.ADD, Ops.SUB, Ops.MUL, Ops.FDIV, Ops.MAX, Ops.CDIV, Ops.CMOD,
     Ops.SHL, Ops.SHR, Ops.AND, Ops.OR, Ops.XOR, Ops.CMPLT, Ops.CMPNE, Ops.CMPEQ, Ops.WHERE, Ops.MULACC}
)  # fmt: skip
_TYPES = frozenset({dtypes.bool, *dtypes.ints, dtypes.float16, dtypes.float32, dtypes.float64})
_PASSIVE = frozenset({Ops.SINK, Ops.GROUP, Ops.NOOP, Ops.LINEAR})


class Target(Protocol):
    """What the renderer asks of a CPU's description (`aril.runtime.target.HostTarget`)."""

    arch: str
    vector_bytes: int
    vector_registers: int
    l1: int
    l2: int
    l3: int
    cores: int
    has_fma: bool
    has_f16_conversion: bool
    has_bf16_pairs: bool


@dataclass(frozen=True)
class LLVMRenderer(Renderer):
    """LLVM IR for a CPU. See `llvm_renderer` for the one of a machine."""

    name: str = "LLVM"
    device: str = "CPU"
    language: str = "llvm"
    ops: frozenset[Ops] = _OPS
    dtypes: frozenset[DType] = _TYPES

    def supports(self, op: Ops, dtype: DType) -> bool:
        if op is Ops.MULACC and (dtype not in (dtypes.float32, dtypes.float64) or not self.has_fma):
            return False  # of other types a product and a sum are the same; of half it would round twice
        return super().supports(op, dtype)

    def render(self, name: str, uops: Sequence[UOp], nbufs: int | None = None) -> str:
        """LLVM IR of the kernel. Errors: RenderError, naming the node, for what is not in program form."""
        return _Kernel(self, name, uops, nbufs).render()


def llvm_renderer(target: Target, **changes: Any) -> LLVMRenderer:
    """The renderer for a CPU. `changes` override fields (tests ask for narrower vectors)."""
    types = _TYPES if target.has_f16_conversion else _TYPES - {dtypes.float16}
    fields: dict[str, Any] = {
        "arch": target.arch, "vector_bytes": target.vector_bytes, "vector_registers": target.vector_registers,
        "l1": target.l1, "l2": target.l2, "l3": target.l3, "cores": target.cores, "has_fma": target.has_fma,
        "dtypes": types,
    }  # fmt: skip
    fields.update(changes)
    if target.has_bf16_pairs:
        fields.setdefault("pair_lanes", tuple([n for n in (4, 8, 16) if n * 4 <= fields["vector_bytes"]]))
    return LLVMRenderer(**fields)


class _Kernel(MemoryWriter):
    """Renders the nodes of one program."""

    def render(self) -> str:
        self.memories()
        for u in self.uops:
            self.node(u)
        if len(self.loops) > 1:
            raise RenderError(f"kernel {self.name}: {len(self.loops) - 1} loops are open at the end: END is missing")
        prefer = self.renderer.vector_bytes * 8
        finite = "" if self.conditional else " mustprogress willreturn"
        out = [
            f"define void @{self.name}"
            "(ptr noalias readonly captures(none) %args, i64 %chunk, ptr noalias %scratch) #0 {",
            "entry:",
            *self.entry,
            "  br label %body",
            "body:",
            *self.lines,
            *(["  fence seq_cst"] if self.bypasses else []),  # whoever reads the results sees all of them
            "  ret void",
            "}",
            *sorted(self.declares.values()),
            f'attributes #0 = {{ nounwind{finite} "prefer-vector-width"="{prefer}" }}',
            *[f"!{i} = {text}" for i, text in enumerate(self.metadata)],
        ]
        return "\n".join(out) + "\n"

    def node(self, u: UOp) -> None:
        op = u.op
        if op is Ops.CONST or op in _PASSIVE or op in OpGroup.STORAGE:
            return
        method = _METHODS.get(op)
        if method is not None:
            getattr(self, method)(u)
        elif op in OpGroup.ALU:
            lanes = lanes_of(u)
            self.values[u] = render_alu(self, u, self.operands(u, lanes), lanes)
        else:
            raise RenderError(f"kernel {self.name}: {op} is not in program form (docs/ir.md lists what is)")

    # --- values ---

    def do_special(self, u: UOp) -> None:
        if u.arg != "gidx0":
            raise RenderError(f"kernel {self.name}: a CPU has one launch index, gidx0, not {u.arg}")
        self.values[u] = "%chunk" if u.dtype.bits == 64 else self.value(f"trunc i64 %chunk to {scalar_type(u.dtype)}")

    def do_cast(self, u: UOp) -> None:
        lanes = lanes_of(u)
        self.values[u] = render_cast(self, u.dtype, u.src[0].dtype, self.operand(u.src[0], lanes), lanes)

    def do_bitcast(self, u: UOp) -> None:
        src = u.src[0]
        x, lanes, before = self.operand(src, lanes_of(src)), lanes_of(u), lanes_of(src)
        if src.dtype.kind == "b":
            x = self.value(f"zext {vectorized('i1', before)} {x} to {vectorized('i8', before)}")
        a, b = vectorized(memory_type(src.dtype), before), vectorized(memory_type(u.dtype), lanes)
        out = self.value(f"bitcast {a} {x} to {b}")
        if u.dtype.kind == "b":
            out = self.value(f"icmp ne {b} {out}, {splat(0, dtypes.uint8, lanes)}")
        self.values[u] = out

    def do_stack(self, u: UOp) -> None:
        n, scalar = len(u.src), scalar_type(u.dtype)
        if any(s.shape for s in u.src):
            raise RenderError(f"kernel {self.name}: STACK of vectors; a vector is made of scalars")
        if all(s.op is Ops.CONST for s in u.src):
            self.values[u] = "<" + ", ".join([f"{scalar} {literal(s.arg, s.dtype)}" for s in u.src]) + ">"
            return
        if all(s is u.src[0] for s in u.src):
            self.values[u] = self.operand(u.src[0], n)
            return
        out = self.picked(u)
        if out is None:
            out = "poison"
            for i, s in enumerate(u.src):
                out = self.value(f"insertelement {vectorized(scalar, n)} {out}, {scalar} {self.operand(s, 0)}, i64 {i}")
        self.values[u] = out

    def picked(self, u: UOp) -> str | None:
        """A STACK of lanes of one or two vectors as a shuffle."""
        vectors: list[UOp] = []
        mask: list[int] = []
        for s in u.src:
            if s.op is not Ops.INDEX or is_memory(s.src[0]) or s.src[1].op is not Ops.CONST:
                return None
            if s.src[0] not in vectors:
                vectors.append(s.src[0])
            mask.append(vectors.index(s.src[0]) * lanes_of(vectors[0]) + int(s.src[1].arg))
        if len(vectors) > 2 or lanes_of(vectors[0]) != lanes_of(vectors[-1]):
            return None
        t = vectorized(scalar_type(u.dtype), lanes_of(vectors[0]))
        second = self.operand(vectors[1], 0) if len(vectors) == 2 else "poison"
        return self.value(f"shufflevector {t} {self.operand(vectors[0], 0)}, {t} {second}, {mask_of(mask)}")

    def do_index(self, u: UOp) -> None:
        target, index = u.src[0], u.src[1]
        if is_memory(target):
            lanes = lanes_of(index)
            integer = vectorized(scalar_type(index.dtype), lanes)
            x = self.operand(index, lanes)
            self.values[u] = self.value(
                f"getelementptr inbounds {memory_type(u.dtype)}, ptr {self.values[target]}, {integer} {x}"
            )
            return
        t = vectorized(scalar_type(target.dtype), lanes_of(target))
        if index.op is Ops.CONST:
            self.values[u] = self.value(f"extractelement {t} {self.operand(target, 0)}, i64 {index.arg}")
        elif index.op is Ops.STACK and all(s.op is Ops.CONST for s in index.src):
            mask = mask_of([int(s.arg) for s in index.src])
            self.values[u] = self.value(f"shufflevector {t} {self.operand(target, 0)}, {t} poison, {mask}")
        else:
            raise RenderError(f"kernel {self.name}: the lane of a vector must be a constant, not {index.op}")

    def do_shrink(self, u: UOp) -> None:
        target = u.src[0]
        if is_memory(target):
            start = u.src[1] if len(u.src) > 1 else UOp.const(dtypes.int64, u.arg[0])
            kind = dtypes.int64 if start.dtype.weak and start.op is Ops.CONST else start.dtype
            self.values[u] = self.value(
                f"getelementptr inbounds {memory_type(u.dtype)}, ptr {self.values[target]}, "
                f"{scalar_type(kind)} {self.operand(start, 0)}"
            )
            return
        start, n = u.arg
        t = vectorized(scalar_type(u.dtype), lanes_of(target))
        self.values[u] = self.value(
            f"shufflevector {t} {self.operand(target, 0)}, {t} poison, {mask_of(range(start, start + n))}"
        )

    def do_wmma(self, u: UOp) -> None:
        """WMMA(x, y, sum) of pairs of bfloat16: the odd elements' product is added first, then the even ones'."""
        lanes = lanes_of(u)
        if lanes not in self.renderer.pair_lanes or u.arg != (dtypes.bfloat16, 2):
            raise RenderError(f"kernel {self.name}: no instruction for WMMA {u.arg} on {lanes} lanes")
        t, pairs = vectorized("float", lanes), vectorized("bfloat", 2 * lanes)
        x, y = [
            self.value(f"bitcast {vectorized('i32', lanes)} {self.operand(s, lanes)} to {pairs}") for s in u.src[:2]
        ]
        name = f"@llvm.x86.avx512bf16.dpbf16ps.{32 * lanes}"
        self.values[u] = self.call_named(name, t, [(t, self.operand(u.src[2], lanes)), (pairs, x), (pairs, y)])

    # --- control ---

    def do_range(self, u: UOp) -> None:
        end, t = self.operand(u.src[0], 0), scalar_type(u.dtype)
        label, after, counter = self.fresh("loop")[1:], f"done{self.count}", self.fresh("i")
        before = self.block
        if u.src[0].bounds[0] < 1:  # it may turn no time at all
            some = self.value(f"icmp sgt {t} {end}, 0")
            self.lines.append(f"  br i1 {some}, label %{label}, label %{after}")
        else:
            self.lines.append(f"  br label %{label}")
        self.label(label)
        loop = Loop(label, counter, len(self.lines))
        self.lines.append(f"  {counter} = phi {t} [ 0, %{before} ]")
        self.values[u] = counter
        self.loops.append(loop)

    def do_end(self, u: UOp) -> None:
        ranges = [s for s in u.src[1:] if s.op is Ops.RANGE]
        if len(ranges) != 1 or self.loops[-1].counter != self.values.get(ranges[0]):
            raise RenderError(f"kernel {self.name}: END must close the innermost open loop, one loop at a time")
        loop, r = self.loops[-1], ranges[0]
        t = scalar_type(r.dtype)
        step = self.value(f"add nuw nsw {t} {loop.counter}, 1")
        again = self.value(f"icmp slt {t} {step}, {self.operand(r.src[0], 0)}")
        if len(u.src) > 2:
            again = self.value(f"and i1 {again}, {self.operand(u.src[2], 0)}")
        self.lines[loop.phi_line] += f", [ {step}, %{self.block} ]"
        # the body is as wide as it should be already
        me = len(self.metadata)
        self.note(f"distinct !{{!{me}, !{me + 1}}}")
        self.note('!{!"llvm.loop.unroll.disable"}')
        after = "done" + loop.label[4:]
        self.lines.append(f"  br i1 {again}, label %{loop.label}, label %{after}, !llvm.loop !{me}")
        self.loops.pop()
        self.label(after)

    def do_if(self, u: UOp) -> None:
        then, after = self.fresh("then")[1:], self.fresh("else")[1:]
        self.lines.append(f"  br i1 {self.operand(u.src[0], 0)}, label %{then}, label %{after}")
        self.label(then)
        self.values[u] = after
        self.loops.append(Loop(then, f"if {after}", 0))

    def do_endif(self, u: UOp) -> None:
        after = self.values.get(u.src[0])
        if after is None or self.loops[-1].counter != f"if {after}":
            raise RenderError(f"kernel {self.name}: ENDIF must close the innermost open IF")
        self.loops.pop()
        self.lines.append(f"  br label %{after}")
        self.label(after)

    def do_barrier(self, u: UOp) -> None:
        self.lines.append('  fence syncscope("singlethread") seq_cst')  # a group runs on one thread of a CPU

    def do_custom(self, u: UOp) -> None:
        """CUSTOM and CUSTOMI, arg (format, dtype, "llvm"): code; `{0}` is the first operand, `{t0}` its type."""
        language = u.arg[2] if len(u.arg) > 2 else "an unnamed language"
        if language != self.renderer.language:
            raise RenderError(
                f"kernel {self.name}: inline source in {language}, but the LLVM renderer takes 'llvm' only"
            )
        operands = [self.values[s] if s in self.values else self.operand(s, 0) for s in u.src]
        types = {
            f"t{i}": vectorized(scalar_type(s.dtype), lanes_of(s)) for i, s in enumerate(u.src) if s.dtype.kind != "v"
        }
        text = u.arg[0].format(*operands, **types)
        if u.dtype.kind == "v":
            self.lines.extend(["  " + line.strip() for line in text.splitlines()])
        else:
            self.values[u] = self.value(text)

    do_customi = do_custom


_METHODS = {op: f"do_{op.name.lower()}" for op in Ops if hasattr(_Kernel, f"do_{op.name.lower()}")}
