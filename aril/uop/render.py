"""Text of graphs: `to_source`, Python that builds the graph again; for people `to_expr`, a formula, and
`to_listing`, a program.

In: a node. Out: a string, the same in every process. Shared nodes are written once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from aril.dtype import DType, dtypes
from aril.ops import OpGroup, Ops
from aril.uop.args import AddrSpace, AxisType, Estimates, KernelInfo, ParamArg, RangeArg
from aril.uop.node import _CHOSEN_DTYPE, UOp
from aril.uop.order import use_counts

INLINE = 24  # graphs up to this many nodes, without sharing, are one expression


def _literal(x: Any) -> str:
    """A Python expression for an argument."""
    if isinstance(x, float) and not math.isfinite(x):
        return 'float("nan")' if x != x else f'float("{x}")'
    if isinstance(x, (Ops, AddrSpace, AxisType, DType)):
        return repr(x)
    if isinstance(x, ParamArg):
        default = ParamArg(0, dtypes.void)._asdict()
        more = [f"{k}={_literal(v)}" for k, v in x._asdict().items() if k not in ("slot", "dtype") and v != default[k]]
        return f"ParamArg({', '.join([str(x.slot), _literal(x.dtype), *more])})"
    if isinstance(x, RangeArg):
        return f"RangeArg({x.id!r}, {x.kind!r})"
    if isinstance(x, (KernelInfo, Estimates)):
        fields = [f"{k}={_literal(getattr(x, k))}" for k in x.__dataclass_fields__ if getattr(x, k) is not None]
        return f"{type(x).__name__}({', '.join(fields)})"
    if isinstance(x, tuple) and type(x) is tuple:
        return "(" + ", ".join([_literal(v) for v in x]) + ("," if len(x) == 1 else "") + ")"
    if isinstance(x, UOp):
        return to_source(x)
    return repr(x)


def _node_source(u: UOp, src: list[str]) -> str:
    if u.op is Ops.CONST and u.tag is None:
        return f"UOp.const({u.dtype!r}, {_literal(u.arg)})"
    sources = f"({', '.join(src)}{',' if len(src) == 1 else ''})"
    parts = [repr(u.op)]
    if src or u.arg is not None:
        parts.append(sources)
    if u.arg is not None:
        parts.append(_literal(u.arg))
    if u.op in _CHOSEN_DTYPE and u.op not in OpGroup.STORAGE:
        parts.append(f"dtype={u.dtype!r}")
    if u.tag is not None:
        parts.append(f"tag={_literal(u.tag)}")
    return f"UOp({', '.join(parts)})"


def to_source(u: UOp) -> str:
    """Python text that builds `u` from the names of `aril.uop`, `dtypes` and `Ops`.

    A small tree is one expression (for `eval`); where nodes are shared or many, lines `x0 = ...` of which the last
    names the graph `root` (for `exec`).
    """
    order = list(u.toposort())
    uses = use_counts(order)
    text: dict[UOp, str] = {}
    depth: dict[UOp, int] = {}
    lines: list[str] = []
    simple = len(order) <= INLINE and all(n <= 1 or not s.src for s, n in uses.items())
    for n in order:
        body = _node_source(n, [text[s] for s in n.src])
        depth[n] = 1 + max([depth[s] for s in n.src], default=0)
        inline = simple or n.op is Ops.CONST or (uses.get(n, 0) <= 1 and depth[n] < 3 and len(body) < 80)
        if inline and n is not u:
            text[n] = body
            continue
        if n is u:
            lines.append(body if simple else f"root = {body}")
        else:
            name = f"x{len(lines)}"
            lines.append(f"{name} = {body}")
            text[n] = name
            depth[n] = 0
    return "\n".join(lines)


def from_source(text: str) -> UOp:
    """The graph that text of `to_source` describes. Runs it as Python: only for text of one's own."""
    import aril.uop as names

    space: dict[str, Any] = {**{k: getattr(names, k) for k in names.__all__}, "dtypes": dtypes}
    if "root = " not in text:
        return eval(text, space)  # type: ignore[no-any-return]
    exec(text, space)
    return space["root"]  # type: ignore[no-any-return]


_INFIX = {
    Ops.ADD: "+", Ops.SUB: "-", Ops.MUL: "*", Ops.FDIV: "/", Ops.FLOORDIV: "//", Ops.FLOORMOD: "%", Ops.SHL: "<<",
    Ops.SHR: ">>", Ops.AND: "&", Ops.OR: "|", Ops.XOR: "^", Ops.CMPLT: "<", Ops.CMPNE: "!=", Ops.CMPEQ: "==",
}  # fmt: skip
_CALL = {Ops.RECIPROCAL: "1/", Ops.NEG: "-"}


def _expr(u: UOp, s: list[str]) -> str:
    op = u.op
    if op is Ops.CONST:
        return str(u.arg)
    if op is Ops.RANGE:
        return "r" + "_".join(str(i) for i in u.arg.id)
    if op is Ops.SPECIAL:
        return str(u.arg)
    if op is Ops.PARAM:
        return u.arg.name or f"buf{u.arg.slot}"
    if op is Ops.BIND:
        return s[0]
    if op is Ops.BUFFER:
        return {AddrSpace.REG: "reg", AddrSpace.LOCAL: "local"}.get(u.arg.addrspace, "buffer") + str(u.arg.slot)
    if op in _INFIX:
        return f"({s[0]}{_INFIX[op]}{s[1]})"
    if op in _CALL:
        return f"({_CALL[op]}{s[0]})"
    if op is Ops.WHERE:
        return f"({s[1]} if {s[0]} else {s[2]})"
    if op is Ops.INDEX:
        return f"{s[0]}[{', '.join(s[1:])}]"
    if op is Ops.LOAD:
        return s[0] if len(s) == 1 else f"load({', '.join(s)})"
    if op is Ops.STORE:
        return f"{s[0]} = {s[1]}" if len(s) == 2 else f"{s[0]} = {s[1]} if {s[2]}"
    if op is Ops.CAST:
        return f"{u.dtype.name}({s[0]})"
    if op is Ops.BITCAST:
        return f"bits_{u.dtype.name}({s[0]})"
    if op is Ops.REDUCE and isinstance(u.arg, tuple) and len(u.arg) == 2:
        rest = s[1:] or [str(u.arg[1])]
        return f"{getattr(u.arg[0], 'name', str(u.arg[0])).lower()}_over[{', '.join(rest)}]({s[0]})"
    more = [] if u.arg is None else [str(u.arg)]
    return f"{op.name.lower()}({', '.join([*s, *more])})"


def to_expr(u: UOp, limit: int = 4000) -> str:
    """A readable formula: `(r0*4+r1)`, `buf0[r0]`, `max(a, b)`. Long parts are named on lines before it."""
    text: dict[UOp, str] = {}
    lines: list[str] = []
    for n in u.toposort():
        t = _expr(n, [text[s] for s in n.src])
        if len(t) > limit // 8 and n is not u:
            lines.append(f"t{len(lines)} = {t}")
            t = f"t{len(lines) - 1}"
        text[n] = t
    return "\n".join([*lines, text[u]])


def to_line(u: UOp) -> str:
    """`to_expr` in at most 200 characters of one line, for messages."""
    line = " ".join(to_expr(u).split())
    return line if len(line) <= 200 else line[:200] + " ..."


def to_dim(u: UOp) -> str | None:
    """A dimension, position or length for people: `n=7`, `(n*2)=14`, `n` where it has no value; None for what is none
    (for what depends on more than variables)."""
    order = u.toposort()
    if u.dtype.kind not in "iu" or any(not n.src and n.op is not Ops.CONST and not n.is_variable for n in order):
        return None
    value = u._bound_dim()
    return to_expr(u) + (f"={value}" if isinstance(value, int) and u.op is not Ops.CONST else "")


def to_listing(program: Sequence[UOp]) -> str:
    """The nodes of a program, in order, a line each: `v3: float32x8 = buf1[r0]`. Loops indent what is in them.

    Constants, loops, storage and addresses stand where they are used.
    """
    text: dict[UOp, str] = {}
    lines: list[str] = []
    indent = 0
    for u in program:
        t = _expr(u, [text[s] for s in u.src])
        if u.op in (Ops.RANGE, Ops.IF):
            head = f"for {t} in {text[u.src[0]]}:" if u.op is Ops.RANGE else f"if {text[u.src[0]]}:"
            lines.append("  " * indent + head)
            indent += 1
        elif u.op in (Ops.END, Ops.ENDIF):
            if len(u.src) == 3:
                lines.append("  " * indent + f"while {text[u.src[2]]}")
            indent -= 1
        elif u.op in _INLINE_IN_LISTING or (u.op in (Ops.INDEX, Ops.SHRINK) and u.src[0].op in OpGroup.STORAGE):
            pass
        elif u.dtype.kind == "v" or u.op is Ops.STORE:
            lines.append("  " * indent + t)
        else:
            lanes = f"x{u.shape[0]}" if u.shape else ""
            lines.append("  " * indent + f"v{len(lines)}: {u.dtype.name}{lanes} = {t}")
            t = f"v{len(lines) - 1}"
        text[u] = t
    return "\n".join(lines)


_INLINE_IN_LISTING = frozenset({Ops.CONST, Ops.PARAM, Ops.BUFFER, Ops.SPECIAL, Ops.NOOP})
