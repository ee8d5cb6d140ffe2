"""The LLVM renderer: a linear program in, LLVM IR text (opaque pointers) of one function out. For CPUs.

ABI: `void name(ptr args, i64 chunk, ptr scratch)`, `docs/ir.md`. Vectors stay vectors; LLVM splits those wider than a
register.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from aril.dtype import DType, dtypes
from aril.ops import OpGroup, Ops
from aril.renderer.base import Renderer, RenderError, arguments, local_layout
from aril.renderer.llvm_alu import (
    literal,
    memory_type,
    render_alu,
    render_cast,
    scalar_type,
    splat,
    suffix,
    vectorized,
)
from aril.uop.args import AddrSpace
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
    return LLVMRenderer(**{**fields, **changes})


class _Loop:
    """An open loop: its label, its counter, where its phi's second half goes, and operands broadcast inside it."""

    def __init__(self, label: str, counter: str, phi_line: int) -> None:
        self.label, self.counter, self.phi_line = label, counter, phi_line
        self.splats: dict[tuple[UOp, int], str] = {}


class _Kernel:
    """One function being written."""

    def __init__(self, renderer: LLVMRenderer, name: str, uops: Sequence[UOp], nbufs: int | None) -> None:
        if not re.fullmatch(r"[A-Za-z_.$][\w.$]*", name):
            raise RenderError(f"{name!r} is no name for a function: use letters, digits and underscores")
        self.renderer, self.name, self.uops = renderer, name, uops
        self.nbufs, self.variables = arguments(uops, nbufs)
        self.offsets, _ = local_layout(uops)
        self.entry: list[str] = []  # the first block: arguments and registers, ahead of everything
        self.lines: list[str] = []
        self.values: dict[UOp, str] = {}
        self.declares: dict[str, str] = {}
        self.metadata: list[str] = []
        self.loops: list[_Loop] = [_Loop("entry", "", 0)]
        self.block = "body"  # the label of the block being written
        self.count = 0
        self.factors: dict[UOp, int] = {}
        self.hint = ""
        self.access: dict[UOp, str] = {}  # alias metadata of each memory
        self.conditional = any(u.op is Ops.END and len(u.src) > 2 for u in uops)

    # --- writing ---

    def value(self, text: str) -> str:
        name = self.fresh("v")
        self.lines.append(f"  {name} = {text}")
        return name

    def fresh(self, prefix: str) -> str:
        self.count += 1
        return f"%{prefix}{self.count}"

    def label(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.block = label

    def call(self, intrinsic: str, result: str, args: list[tuple[str, str]], flags: str = "") -> str:
        types = [t for t, _ in args]
        overload = [result] if result != "void" else []
        if intrinsic.startswith("fpto"):
            overload.append(types[0])
        full = ".".join(["@llvm", intrinsic, *[suffix(t) for t in overload]])
        return self.call_named(full, result, args, flags)

    def call_named(self, full: str, result: str, args: list[tuple[str, str]], flags: str = "", tail: str = "") -> str:
        plain = ", ".join([t.split(" align ")[0] for t, _ in args])
        self.declares[full] = f"declare {result} {full}({plain})"
        text = f"call {flags + ' ' if flags else ''}{result} {full}({', '.join([f'{t} {x}' for t, x in args])}){tail}"
        if result != "void":
            return self.value(text)
        self.lines.append(f"  {text}")
        return ""

    def note(self, text: str) -> str:
        """A metadata node; returns its name."""
        self.metadata.append(text)
        return f"!{len(self.metadata) - 1}"

    # --- the whole ---

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
            "  ret void",
            "}",
            *sorted(self.declares.values()),
            f'attributes #0 = {{ nounwind{finite} "prefer-vector-width"="{prefer}" }}',
            *[f"!{i} = {text}" for i, text in enumerate(self.metadata)],
        ]
        return "\n".join(out) + "\n"

    def memories(self) -> None:
        """Load the arguments, make the registers, and tell LLVM that the memories do not overlap."""
        found: dict[UOp, None] = {}
        for u in self.uops:
            if u.op is Ops.BUFFER or (u.op is Ops.PARAM and u.arg.addrspace is not AddrSpace.ALU):
                found[u] = None
        named = [u for u in found if u.arg.addrspace is not AddrSpace.REG]
        for u in found:
            self.memory(u)
        for i, variable in enumerate(self.variables):
            self.entry.append(f"  %var{i}.at = getelementptr inbounds i64, ptr %args, i64 {self.nbufs + i}")
            self.entry.append(f"  %var{i}.wide = load i64, ptr %var{i}.at, align 8")
            self.values[variable] = f"%var{i}.wide"
            if variable.dtype.bits < 64:
                self.entry.append(f"  %var{i} = trunc i64 %var{i}.wide to {scalar_type(variable.dtype)}")
                self.values[variable] = f"%var{i}"
        if len(named) > 1:
            domain = self.note("distinct !{!0}")
            scopes = [self.note(f"distinct !{{!{i + 1}, {domain}}}") for i in range(len(named))]
            for i, u in enumerate(named):
                mine = self.note(f"!{{{scopes[i]}}}")
                others = self.note(f"!{{{', '.join([s for k, s in enumerate(scopes) if k != i])}}}")
                self.access[u] = f", !alias.scope {mine}, !noalias {others}"

    def memory(self, u: UOp) -> None:
        size = u.arg.size or 1
        if u.op is Ops.PARAM:
            name = f"%buf{u.arg.slot}"
            self.entry.append(f"  {name}.at = getelementptr inbounds i64, ptr %args, i64 {u.arg.slot}")
            self.entry.append(f"  {name} = load ptr, ptr {name}.at, align 8")
        elif u.arg.addrspace is AddrSpace.LOCAL:
            name = f"%local{len(self.values)}"
            self.entry.append(f"  {name} = getelementptr inbounds i8, ptr %scratch, i64 {self.offsets[u]}")
        else:
            name = f"%reg{len(self.values)}"
            self.entry.append(f"  {name} = alloca [{size} x {memory_type(u.dtype)}], align 64")
        self.values[u] = name

    def node(self, u: UOp) -> None:
        op = u.op
        if op is Ops.CONST or op in _PASSIVE or op in OpGroup.STORAGE:
            return
        method = getattr(self, f"do_{op.name.lower()}", None)
        if method is not None:
            method(u)
        elif op in OpGroup.ALU:
            lanes = _lanes(u)
            self.values[u] = render_alu(self, u, self.operands(u, lanes), lanes)
        else:
            raise RenderError(f"kernel {self.name}: {op} is not in program form (docs/ir.md lists what is)")

    # --- operands ---

    def operands(self, u: UOp, lanes: int) -> list[str]:
        if u.op is Ops.WHERE:
            cond = u.src[0]
            return [self.operand(cond, lanes if cond.shape else 0), *[self.operand(s, lanes) for s in u.src[1:]]]
        out = [self.operand(s, lanes) for s in u.src]
        if u.op in (Ops.SHL, Ops.SHR):
            if u.src[1].op is Ops.CONST:
                out[1] = splat(u.src[1].arg, u.dtype, lanes)
            else:
                out[1] = render_cast(self, u.dtype, u.src[1].dtype, out[1], lanes)
        return out

    def operand(self, u: UOp, lanes: int) -> str:
        """The value of `u`, in every one of `lanes` lanes if it is a scalar."""
        if u.op is Ops.CONST:
            return splat(u.arg, u.dtype, lanes)
        found = self.values.get(u)
        if found is None:
            raise RenderError(f"kernel {self.name}: {u.op} is used before it appears in the program")
        if not lanes or u.shape:
            return found
        for loop in self.loops:
            known = loop.splats.get((u, lanes))
            if known is not None:
                return known
        out = self.spread(found, scalar_type(u.dtype), lanes)
        self.loops[-1].splats[u, lanes] = out
        return out

    def spread(self, x: str, scalar: str, lanes: int) -> str:
        t = vectorized(scalar, lanes)
        first = self.value(f"insertelement {t} poison, {scalar} {x}, i64 0")
        return self.value(f"shufflevector {t} {first}, {t} poison, <{lanes} x i32> zeroinitializer")

    # --- values ---

    def do_special(self, u: UOp) -> None:
        if u.arg != "gidx0":
            raise RenderError(f"kernel {self.name}: a CPU has one launch index, gidx0, not {u.arg}")
        self.values[u] = "%chunk" if u.dtype.bits == 64 else self.value(f"trunc i64 %chunk to {scalar_type(u.dtype)}")

    def do_cast(self, u: UOp) -> None:
        lanes = _lanes(u)
        self.values[u] = render_cast(self, u.dtype, u.src[0].dtype, self.operand(u.src[0], lanes), lanes)

    def do_bitcast(self, u: UOp) -> None:
        src = u.src[0]
        x, lanes, before = self.operand(src, _lanes(src)), _lanes(u), _lanes(src)
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
            if s.op is not Ops.INDEX or _is_memory(s.src[0]) or s.src[1].op is not Ops.CONST:
                return None
            if s.src[0] not in vectors:
                vectors.append(s.src[0])
            mask.append(vectors.index(s.src[0]) * _lanes(vectors[0]) + int(s.src[1].arg))
        if len(vectors) > 2 or _lanes(vectors[0]) != _lanes(vectors[-1]):
            return None
        t = vectorized(scalar_type(u.dtype), _lanes(vectors[0]))
        second = self.operand(vectors[1], 0) if len(vectors) == 2 else "poison"
        return self.value(f"shufflevector {t} {self.operand(vectors[0], 0)}, {t} {second}, {_mask(mask)}")

    def do_index(self, u: UOp) -> None:
        target, index = u.src[0], u.src[1]
        if _is_memory(target):
            lanes = _lanes(index)
            integer = vectorized(scalar_type(index.dtype), lanes)
            x = self.operand(index, lanes)
            self.values[u] = self.value(
                f"getelementptr inbounds {memory_type(u.dtype)}, ptr {self.values[target]}, {integer} {x}"
            )
            return
        t = vectorized(scalar_type(target.dtype), _lanes(target))
        if index.op is Ops.CONST:
            self.values[u] = self.value(f"extractelement {t} {self.operand(target, 0)}, i64 {index.arg}")
        elif index.op is Ops.STACK and all(s.op is Ops.CONST for s in index.src):
            mask = _mask([int(s.arg) for s in index.src])
            self.values[u] = self.value(f"shufflevector {t} {self.operand(target, 0)}, {t} poison, {mask}")
        else:
            raise RenderError(f"kernel {self.name}: the lane of a vector must be a constant, not {index.op}")

    def do_shrink(self, u: UOp) -> None:
        target = u.src[0]
        if _is_memory(target):
            start = u.src[1] if len(u.src) > 1 else UOp.const(dtypes.int64, u.arg[0])
            kind = dtypes.int64 if start.dtype.weak and start.op is Ops.CONST else start.dtype
            self.values[u] = self.value(
                f"getelementptr inbounds {memory_type(u.dtype)}, ptr {self.values[target]}, "
                f"{scalar_type(kind)} {self.operand(start, 0)}"
            )
            return
        start, n = u.arg
        t = vectorized(scalar_type(u.dtype), _lanes(target))
        self.values[u] = self.value(
            f"shufflevector {t} {self.operand(target, 0)}, {t} poison, {_mask(range(start, start + n))}"
        )

    # --- memory ---

    def aligned(self, address: UOp) -> int:
        """Bytes to which an address is known to be aligned."""
        memory, item = address.src[0], max(address.dtype.itemsize, 1)
        base = 64 if memory.op is Ops.BUFFER else max(item, memory.arg.align)
        start = address.src[1] if len(address.src) > 1 else UOp.const(dtypes.int64, address.arg[0])
        if start.shape:
            return item
        return math.gcd(base, item * self.factor(start), 64)

    def factor(self, u: UOp) -> int:
        """A number that divides every value of the integer expression `u` (0 for the constant 0)."""
        for n in u.toposort(lambda n: n not in self.factors):
            if n in self.factors:
                continue
            f = self.factors
            if n.op is Ops.CONST:
                f[n] = abs(int(n.arg))
            elif n.op is Ops.MUL:
                f[n] = min(f[n.src[0]] * f[n.src[1]], 1 << 20)
            elif n.op in (Ops.ADD, Ops.SUB, Ops.MAX):
                f[n] = math.gcd(f[n.src[0]], f[n.src[1]])
            elif n.op is Ops.WHERE:
                f[n] = math.gcd(f[n.src[1]], f[n.src[2]])
            elif n.op is Ops.SHL and n.src[1].op is Ops.CONST:
                f[n] = min(f[n.src[0]] << min(int(n.src[1].arg), 20), 1 << 20)
            elif n.op is Ops.CAST and n.dtype.kind in "iu" and n.src[0].dtype.kind in "iu":
                f[n] = f[n.src[0]]
            elif n.op is Ops.PARAM:
                f[n] = n.arg.multiple_of
            else:
                f[n] = 1
        return self.factors[u]

    def place(self, u: UOp, hint: Any) -> tuple[str, str, int, str]:
        """(address, pointer or vector of pointers as type, alignment, metadata) of a LOAD's or STORE's first source."""
        address = u.src[0]
        if address.op not in (Ops.INDEX, Ops.SHRINK) or not _is_memory(address.src[0]):
            raise RenderError(f"kernel {self.name}: {u.op} takes INDEX or SHRINK of a storage, not {address.op}")
        memory = address.src[0]
        meta, align = self.access.get(memory, ""), self.aligned(address)
        if hint == "nontemporal":
            lanes = max(_lanes(address), 1)
            # LLVM takes a non-temporal store apart where it is not aligned to the whole vector
            if align >= min(lanes * address.dtype.itemsize, self.renderer.vector_bytes):
                self.hint = self.hint or self.note("!{i32 1}")
                meta += f", !nontemporal {self.hint}"
        elif hint is not None:
            raise RenderError(
                f"kernel {self.name}: unknown hint {hint!r} on {u.op}; the hint there is is 'nontemporal'"
            )
        gathered = address.op is Ops.INDEX and bool(address.src[1].shape)
        return self.values[address], "vector" if gathered else "ptr", align, meta

    def volatile(self, address: UOp) -> str:
        return "volatile " if address.src[0].arg.volatile else ""

    def do_load(self, u: UOp) -> None:
        where, form, align, meta = self.place(u, u.arg)
        lanes, dtype = _lanes(u), u.dtype
        t = vectorized(memory_type(dtype), lanes)
        gate = u.src[2] if len(u.src) > 2 else None
        if form == "vector":
            mask = self.operand(gate, lanes) if gate is not None else splat(True, dtypes.bool, lanes)
            other = self.in_memory(u.src[1], lanes) if gate is not None else "poison"
            name = f"@llvm.masked.gather.{suffix(t)}.v{lanes}p0"
            args = [(f"<{lanes} x ptr> align {align}", where), (f"<{lanes} x i1>", mask), (t, other)]
            out = self.from_memory(self.call_named(name, t, args, tail=meta), dtype, lanes)
        elif gate is not None and (gate.shape or (lanes and (u.src[0].src[0].arg.size or 0) < lanes)):
            args = [
                (f"ptr align {align}", where),
                (f"<{lanes} x i1>", self.operand(gate, lanes)),
                (t, self.in_memory(u.src[1], lanes)),
            ]
            out = self.from_memory(
                self.call_named(f"@llvm.masked.load.{suffix(t)}.p0", t, args, tail=meta), dtype, lanes
            )
        elif gate is not None:
            # no branch: where the gate is false, the first element is read and not used
            ok = self.operand(gate, 0)
            safe = self.value(f"select i1 {ok}, ptr {where}, ptr {self.values[u.src[0].src[0]]}")
            got = self.value(
                f"load {self.volatile(u.src[0])}{t}, ptr {safe}, align {min(align, max(dtype.itemsize, 1))}{meta}"
            )
            r = vectorized(scalar_type(dtype), lanes)
            got = self.from_memory(got, dtype, lanes)
            out = self.value(f"select i1 {ok}, {r} {got}, {r} {self.operand(u.src[1], lanes)}")
        else:
            out = self.from_memory(
                self.value(f"load {self.volatile(u.src[0])}{t}, ptr {where}, align {align}{meta}"), dtype, lanes
            )
        self.values[u] = out

    def in_memory(self, u: UOp, lanes: int) -> str:
        x = self.operand(u, lanes)
        if u.dtype.kind != "b":
            return x
        return self.value(f"zext {vectorized('i1', lanes)} {x} to {vectorized('i8', lanes)}")

    def from_memory(self, x: str, dtype: DType, lanes: int) -> str:
        if dtype.kind != "b":
            return x
        return self.value(f"icmp ne {vectorized('i8', lanes)} {x}, {splat(0, dtypes.uint8, lanes)}")

    def do_store(self, u: UOp) -> None:
        where, form, align, meta = self.place(u, u.arg)
        lanes = _lanes(u.src[0])
        if u.src[1].dtype is not u.src[0].dtype:
            raise RenderError(
                f"kernel {self.name}: a {u.src[1].dtype.name} is stored where {u.src[0].dtype.name} lies; cast it first"
            )
        t = vectorized(memory_type(u.src[0].dtype), lanes)
        gate = u.src[2] if len(u.src) > 2 else None
        x = self.in_memory(u.src[1], lanes)
        if form == "vector":
            mask = self.operand(gate, lanes) if gate is not None else splat(True, dtypes.bool, lanes)
            args = [(t, x), (f"<{lanes} x ptr> align {align}", where), (f"<{lanes} x i1>", mask)]
            self.call_named(f"@llvm.masked.scatter.{suffix(t)}.v{lanes}p0", "void", args, tail=meta)
            return
        if gate is not None and gate.shape:
            args = [(t, x), (f"ptr align {align}", where), (f"<{lanes} x i1>", self.operand(gate, lanes))]
            self.call_named(f"@llvm.masked.store.{suffix(t)}.p0", "void", args, tail=meta)
            return
        text = f"  store {self.volatile(u.src[0])}{t} {x}, ptr {where}, align {align}{meta}"
        if gate is None:
            self.lines.append(text)
            return
        ok = self.operand(gate, 0)
        then, after = self.fresh("store")[1:], self.fresh("next")[1:]
        self.lines.append(f"  br i1 {ok}, label %{then}, label %{after}")
        self.label(then)
        self.lines.append(text)
        self.lines.append(f"  br label %{after}")
        self.label(after)

    def do_atomic(self, u: UOp) -> None:
        """ATOMIC(address, value), arg the operation or (operation, order): the old value."""
        arg = u.arg if isinstance(u.arg, tuple) else (u.arg,)
        order = {"relaxed": "monotonic"}.get(arg[1], arg[1]) if len(arg) > 1 and arg[1] else "monotonic"
        dtype = u.src[0].dtype
        kind = "f" if dtype.kind == "f" else "u" if dtype.kind == "u" else ""
        names = {
            Ops.ADD: "add",
            Ops.SUB: "sub",
            Ops.MAX: "max",
            Ops.AND: "and",
            Ops.OR: "or",
            Ops.XOR: "xor",
            Ops.STORE: "xchg",
        }
        name = names.get(arg[0])
        if (
            name is None
            or (kind == "f" and name not in ("add", "sub", "max", "xchg"))
            or dtype.kind == "b"
            or _lanes(u.src[0])
        ):
            raise RenderError(
                f"kernel {self.name}: no atomic {arg[0]} on {dtype.name} with {max(_lanes(u.src[0]), 1)} lanes"
            )
        if name == "max" or (kind == "f" and name != "xchg"):
            name = kind + name
        where, _, align, meta = self.place(u, None)
        t = memory_type(dtype)
        self.values[u] = self.value(
            f"atomicrmw {name} ptr {where}, {t} {self.operand(u.src[1], 0)} {order}, align {align}{meta}"
        )

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
        loop = _Loop(label, counter, len(self.lines))
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
        self.loops.append(_Loop(then, f"if {after}", 0))

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
            f"t{i}": vectorized(scalar_type(s.dtype), _lanes(s)) for i, s in enumerate(u.src) if s.dtype.kind != "v"
        }
        text = u.arg[0].format(*operands, **types)
        if u.dtype.kind == "v":
            self.lines.extend(["  " + line.strip() for line in text.splitlines()])
        else:
            self.values[u] = self.value(text)

    do_customi = do_custom


def _lanes(u: UOp) -> int:
    """Number of lanes, 0 for a scalar."""
    return int(u.shape[0]) if u.shape else 0


def _is_memory(u: UOp) -> bool:
    return u.op in OpGroup.STORAGE and u.arg.addrspace is not AddrSpace.ALU


def _mask(lanes: Sequence[int]) -> str:
    return f"<{len(lanes)} x i32> <" + ", ".join([f"i32 {i}" for i in lanes]) + ">"
