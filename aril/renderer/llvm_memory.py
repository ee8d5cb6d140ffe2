"""Memory in the LLVM renderer: arguments, registers, scratch, loads and stores with gates, hints, atomics."""

from __future__ import annotations

import math
from typing import Any

from aril.dtype import DType, dtypes
from aril.ops import Ops
from aril.renderer.base import RenderError
from aril.renderer.llvm_alu import memory_type, scalar_type, splat, suffix, vectorized
from aril.renderer.llvm_writer import Writer, is_memory, lanes_of
from aril.uop.args import AddrSpace
from aril.uop.node import UOp


class MemoryWriter(Writer):
    """The part of a function that touches memory."""

    def memories(self) -> None:
        """Load the arguments, make the registers, and tell LLVM that the memories do not overlap."""
        found: dict[UOp, None] = {}
        for u in self.uops:
            if u.op is Ops.BUFFER or (u.op is Ops.PARAM and u.arg.addrspace is not AddrSpace.ALU):
                found[u] = None
        for u in found:
            self.memory(u)
        for i, variable in enumerate(self.variables):
            self.entry.append(f"  %var{i}.at = getelementptr inbounds i64, ptr %args, i64 {self.nbufs + i}")
            self.entry.append(f"  %var{i}.wide = load i64, ptr %var{i}.at, align 8")
            self.values[variable] = f"%var{i}.wide"
            if variable.dtype.bits < 64:
                self.entry.append(f"  %var{i} = trunc i64 %var{i}.wide to {scalar_type(variable.dtype)}")
                self.values[variable] = f"%var{i}"
        # parameters of one slot are one memory, seen with several types
        named = list(dict.fromkeys([self.values[u] for u in found if u.arg.addrspace is not AddrSpace.REG]))
        if len(named) > 1:
            domain = self.note("distinct !{!0}")
            scopes = [self.note(f"distinct !{{!{i + 1}, {domain}}}") for i in range(len(named))]
            notes: dict[str, str] = {}
            for i, name in enumerate(named):
                mine = self.note(f"!{{{scopes[i]}}}")
                others = self.note(f"!{{{', '.join([s for k, s in enumerate(scopes) if k != i])}}}")
                notes[name] = f", !alias.scope {mine}, !noalias {others}"
            self.access = {u: notes[self.values[u]] for u in found if self.values[u] in notes}

    def memory(self, u: UOp) -> None:
        size = u.arg.size or 1
        if u.op is Ops.PARAM:
            name = f"%buf{u.arg.slot}"
            if name in self.values.values():
                self.values[u] = name
                return
            self.entry.append(f"  {name}.at = getelementptr inbounds i64, ptr %args, i64 {u.arg.slot}")
            self.entry.append(f"  {name} = load ptr, ptr {name}.at, align 8")
        elif u.arg.addrspace is AddrSpace.LOCAL:
            name = f"%local{len(self.values)}"
            self.entry.append(f"  {name} = getelementptr inbounds i8, ptr %scratch, i64 {self.offsets[u]}")
        else:
            name = f"%reg{len(self.values)}"
            self.entry.append(f"  {name} = alloca [{size} x {memory_type(u.dtype)}], align 64")
        self.values[u] = name

    def aligned(self, address: UOp) -> int:
        """Bytes to which an address is known to be aligned."""
        memory, item = address.src[0], max(address.dtype.itemsize, 1)
        base = 64 if memory.op is Ops.BUFFER else max(item, memory.arg.align)
        start = address.src[1] if len(address.src) > 1 else UOp.const(dtypes.int64, address.arg[0])
        if not lanes_of(address) or start.shape:
            return item  # more says nothing to a scalar access
        return math.gcd(base, item * self.factor(start), 64)

    def factor(self, u: UOp) -> int:
        """A number that divides every value of the integer expression `u` (0 for the constant 0)."""
        most = 1 << 20
        for n in u.toposort(lambda n: n not in self.factors):
            if n in self.factors:
                continue
            f = self.factors
            if n.op is Ops.CONST:
                f[n] = abs(int(n.arg))
            elif n.op is Ops.MUL:
                f[n] = math.gcd(
                    f[n.src[0]] * f[n.src[1]], most
                )  # a power of two: what divides counts, not what is less
            elif n.op in (Ops.ADD, Ops.SUB, Ops.MAX):
                f[n] = math.gcd(f[n.src[0]], f[n.src[1]])
            elif n.op is Ops.WHERE:
                f[n] = math.gcd(f[n.src[1]], f[n.src[2]])
            elif n.op is Ops.SHL and n.src[1].op is Ops.CONST:
                f[n] = math.gcd(f[n.src[0]] << min(int(n.src[1].arg), 20), most)
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
        if address.op not in (Ops.INDEX, Ops.SHRINK) or not is_memory(address.src[0]):
            raise RenderError(f"kernel {self.name}: {u.op} takes INDEX or SHRINK of a storage, not {address.op}")
        memory = address.src[0]
        meta, align = self.access.get(memory, ""), self.aligned(address)
        if hint == "prefetch":
            pass
        elif hint == "nontemporal":
            lanes = max(lanes_of(address), 1)
            # LLVM takes a non-temporal store apart where it is not aligned to the whole vector
            if align >= min(lanes * address.dtype.itemsize, self.renderer.vector_bytes):
                self.hint = self.hint or self.note("!{i32 1}")
                meta += f", !nontemporal {self.hint}"
        elif hint is not None:
            raise RenderError(
                f"kernel {self.name}: unknown hint {hint!r} on {u.op}; there are 'nontemporal' and 'prefetch'"
            )
        gathered = address.op is Ops.INDEX and bool(address.src[1].shape)
        return self.values[address], "vector" if gathered else "ptr", align, meta

    def volatile(self, address: UOp) -> str:
        return "volatile " if address.src[0].arg.volatile else ""

    def do_load(self, u: UOp) -> None:
        where, form, align, meta = self.place(u, u.arg)
        lanes, dtype = lanes_of(u), u.dtype
        t = vectorized(memory_type(dtype), lanes)
        gate = u.src[2] if len(u.src) > 2 else None
        if u.arg == "prefetch":  # nobody reads the value
            self.call_named("@llvm.prefetch.p0", "void", [("ptr", where), ("i32", "0"), ("i32", "3"), ("i32", "1")])
            self.values[u] = "poison"
            return
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
        self.bypasses = self.bypasses or u.arg == "nontemporal"
        lanes = lanes_of(u.src[0])
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
        after = self.branch(gate)
        self.lines.append(text)
        self.join(after)

    def do_atomic(self, u: UOp) -> None:
        """ATOMIC(address, value) or (address, value, gate), arg the operation or (operation, order): the old value."""
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
            or lanes_of(u.src[0])
        ):
            raise RenderError(
                f"kernel {self.name}: no atomic {arg[0]} on {dtype.name} with {max(lanes_of(u.src[0]), 1)} lanes"
            )
        if name == "max" or (kind == "f" and name != "xchg"):
            name = kind + name
        where, _, align, meta = self.place(u, None)
        t, x = memory_type(dtype), self.operand(u.src[1], 0)
        before = self.block
        after = self.branch(u.src[2]) if len(u.src) > 2 else ""
        old = self.value(f"atomicrmw {name} ptr {where}, {t} {x} {order}, align {align}{meta}")
        if after:
            inside = self.block
            self.join(after)
            old = self.value(f"phi {t} [ {splat(0, dtype, 0)}, %{before} ], [ {old}, %{inside} ]")
        self.values[u] = old

    def branch(self, gate: UOp) -> str:
        """Go on only where the gate holds; returns the label at which `join` comes together again."""
        ok = self.operand(gate, 0)
        then, after = self.fresh("then")[1:], self.fresh("next")[1:]
        self.lines.append(f"  br i1 {ok}, label %{then}, label %{after}")
        self.label(then)
        return after

    def join(self, after: str) -> None:
        self.lines.append(f"  br label %{after}")
        self.label(after)
