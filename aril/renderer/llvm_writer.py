"""The text of one LLVM function as it is written: lines, names, metadata, operands broadcast to lanes.

In come instructions and nodes; out go names. What the nodes are is not known here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from aril.ops import OpGroup, Ops
from aril.renderer.base import Renderer, RenderError, arguments, local_layout
from aril.renderer.llvm_alu import render_cast, scalar_type, splat, suffix, vectorized
from aril.uop.args import AddrSpace
from aril.uop.node import UOp


class Loop:
    """An open loop: its label, its counter, where its phi's second half goes, and operands broadcast inside it."""

    def __init__(self, label: str, counter: str, phi_line: int) -> None:
        self.label, self.counter, self.phi_line = label, counter, phi_line
        self.splats: dict[tuple[UOp, int], str] = {}


class Writer:
    """One function being written."""

    def __init__(self, renderer: Renderer, name: str, uops: Sequence[UOp], nbufs: int | None) -> None:
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
        self.loops: list[Loop] = [Loop("entry", "", 0)]
        self.block = "body"  # the label of the block being written
        self.count = 0
        self.factors: dict[UOp, int] = {}
        self.hint = ""
        self.bypasses = False  # whether some store goes past the caches
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


def lanes_of(u: UOp) -> int:
    """Number of lanes, 0 for a scalar."""
    return int(u.shape[0]) if u.shape else 0  # type: ignore[arg-type]


def is_memory(u: UOp) -> bool:
    """Whether `u` is storage, not a variable or a value."""
    return u.op in OpGroup.STORAGE and u.arg.addrspace is not AddrSpace.ALU


def mask_of(lanes: Sequence[int]) -> str:
    """The mask operand of a shuffle."""
    return f"<{len(lanes)} x i32> <" + ", ".join([f"i32 {i}" for i in lanes]) + ">"
