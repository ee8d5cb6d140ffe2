"""Verifiers of the tensor, kernel and program forms (`docs/ir.md`): `check(root, form)` raises for an ill-formed node.

In: a graph and the name of the form it should have. Out: nothing, or a SpecError with the rule that is broken, the
node, and the line of Python that made it (where origins are recorded). Each form is a table of rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from aril.dtype import dtypes
from aril.ops import OpGroup, Ops
from aril.uop.args import AddrSpace, AxisType, KernelInfo, ParamArg, RangeArg
from aril.uop.exchange import Exchange
from aril.uop.node import UOp
from aril.uop.render import to_source
from aril.uop.shape import movement_arg

FORMS = ("tensor", "kernel", "program")


class SpecError(ValueError):
    """A graph that is not of the form it should have."""


@dataclass(frozen=True)
class Rule:
    """What must hold for nodes of `ops` (None: for all)."""

    ops: frozenset[Ops] | None
    says: str
    holds: Callable[[UOp], bool]


def _rule(ops: Ops | Iterable[Ops] | None, says: str, holds: Callable[[UOp], bool]) -> Rule:
    return Rule(None if ops is None else frozenset((ops,) if isinstance(ops, Ops) else ops), says, holds)


# --- tests shared by the forms ---


def _one_type(u: UOp) -> bool:
    """Operands of one concrete type beside weak ones; the result of that type (bool for comparisons)."""
    values = u.src[1:] if u.op is Ops.WHERE else u.src
    concrete = {s.dtype for s in values if not s.dtype.weak and s.op is not Ops.Invalid}
    if len(concrete) > 1:
        return False
    if u.op in OpGroup.COMPARISON:
        return u.dtype is dtypes.bool
    return not concrete or u.dtype in concrete


def _arity(u: UOp) -> bool:
    want = 1 if u.op in OpGroup.UNARY or u.op in (Ops.CAST, Ops.BITCAST) else 3 if u.op in OpGroup.TERNARY else 2
    return len(u.src) == want


def _const_value(u: UOp) -> bool:
    if u.dtype.kind == "b":
        return isinstance(u.arg, bool)
    if u.dtype.kind == "f":
        return isinstance(u.arg, float)
    in_range = u.dtype.weak or (u.dtype.kind in "iu" and u.dtype.min <= u.arg <= u.dtype.max)
    return isinstance(u.arg, int) and not isinstance(u.arg, bool) and in_range


def _storage_arg(u: UOp) -> bool:
    a = u.arg
    if not isinstance(a, ParamArg) or a.dtype is not u.dtype or u.src:
        return False
    if a.addrspace is AddrSpace.ALU:
        return a.size is None and u.dtype.kind in "iub"
    return not u.dtype.weak and (a.size is None or a.size >= 0)


_EVERYWHERE = [
    _rule(
        None,
        "has sources that are nodes, in a tuple",
        lambda u: isinstance(u.src, tuple) and all(isinstance(s, UOp) for s in u.src),
    ),
    _rule(OpGroup.ELEMENTWISE, "takes as many sources as its operation has operands", _arity),
    _rule(OpGroup.ALU - {Ops.SHL, Ops.SHR}, "takes operands of one type (and weak ones), and has that type", _one_type),
    _rule((Ops.SHL, Ops.SHR), "shifts integers by integers", lambda u: all(s.dtype.kind in "iu" for s in u.src)),
    _rule(Ops.WHERE, "chooses by a bool", lambda u: u.src[0].dtype is dtypes.bool),
    _rule((Ops.FLOORDIV, Ops.FLOORMOD, Ops.CDIV, Ops.CMOD), "divides numbers", lambda u: u.dtype.kind in "iuf"),
    _rule((Ops.AND, Ops.OR, Ops.XOR), "combines integers or bools", lambda u: u.dtype.kind in "iub"),
    _rule(
        (Ops.EXP2, Ops.LOG2, Ops.SIN, Ops.SQRT, Ops.RECIPROCAL, Ops.FDIV),
        "computes with floats",
        lambda u: u.dtype.kind == "f",
    ),
    _rule(Ops.CONST, "holds a Python value of its type", _const_value),
    _rule(
        OpGroup.STORAGE, "has a ParamArg of its own type (a weak one only for variables), and no sources", _storage_arg
    ),
    _rule((Ops.CAST, Ops.BITCAST), "turns into a type", lambda u: u.dtype is not dtypes.void and u.arg is None),
    _rule(
        Ops.WMMA,
        "adds products of packed pairs (uint32) to float32, its arg (element, how many)",
        lambda u: u.arg == (dtypes.bfloat16, 2) and [s.dtype.name for s in u.src] == ["uint32", "uint32", "float32"],
    ),
    _rule(Ops.WMMA, "takes vectors of one length (and scalars)", lambda u: _shapes_fit(u)),
    _rule(Ops.BITCAST, "reads the bits of a concrete type", lambda u: not u.dtype.weak and not u.src[0].dtype.weak),
    _rule(
        Ops.RANGE,
        "has one integer end and a RangeArg(id, kind)",
        lambda u: len(u.src) == 1 and u.src[0].dtype.kind in "iu" and isinstance(u.arg, RangeArg),
    ),
]


# --- tensor form ---


def _int(x: Any) -> bool:
    return isinstance(x, int)


def _shapes_fit(u: UOp) -> bool:
    shapes = {s.shape for s in u.src} - {()}
    return len(shapes) <= 1


def _reshape_fits(u: UOp) -> bool:
    a, b = u.src[0].shape, movement_arg(u)
    if all(map(_int, a)) and all(map(_int, b)):
        return math.prod(a) == math.prod(b) and all(d >= 0 for d in b)
    return True


def _expand_fits(u: UOp) -> bool:
    a, b = u.src[0].shape, movement_arg(u)
    return len(a) == len(b) and all(x is y or x == y or x == 1 for x, y in zip(a, b, strict=True))


def _pad_fits(u: UOp) -> bool:
    pairs = movement_arg(u)
    return len(pairs) == len(u.src[0].shape) and all(_int_at_least(v, 0) for p in pairs for v in p)


def _int_at_least(v: Any, low: int) -> bool:
    return bool((v if isinstance(v, int) else v.vmax) >= low)


def _shrink_fits(u: UOp) -> bool:
    pairs, shape = movement_arg(u), u.src[0].shape
    if len(pairs) != len(shape):
        return False
    for (start, length), d in zip(pairs, shape, strict=True):
        if not _int_at_least(start, 0) or not _int_at_least(length, 0):
            return False
        if _int(start) and _int(length) and _int(d) and start + length > d:
            return False
    return True


def _shear_fits(u: UOp) -> bool:
    axis, by, step, offset, length = u.arg
    shape = u.src[0].shape
    if not (0 <= axis < len(shape) and 0 <= by < len(shape) and axis != by):
        return False
    n, m = shape[axis], shape[by]
    if not _int(n) or not _int(m) or m == 0 or length == 0:
        return True
    ends = (offset, offset + step * (m - 1))
    return bool(min(ends) >= 0 and max(ends) + length <= n)


_REDUCERS = frozenset({Ops.ADD, Ops.MUL, Ops.MAX, Ops.AND, Ops.OR, Ops.XOR})


def _tensor_reduce(u: UOp) -> bool:
    if not (isinstance(u.arg, tuple) and len(u.arg) == 2 and len(u.src) == 1 and u.arg[0] in _REDUCERS):
        return False
    axes = u.arg[1]
    return tuple(sorted(set(axes))) == axes and all(0 <= a < len(u.src[0].shape) for a in axes)


def _bind_fits(u: UOp) -> bool:
    if len(u.src) != 2 or not u.src[0].is_variable or u.src[1].op is not Ops.CONST:
        return False
    low, high = u.src[0].bounds
    return bool(low <= u.src[1].arg <= high)


def _scatter_fits(u: UOp) -> bool:
    x, values, positions = u.src
    return (
        u.arg in (Ops.ADD, Ops.MUL, Ops.MAX, Ops.STORE)
        and values.dtype is x.dtype
        and positions.dtype.kind in "iu"
        and bool(x.shape)
        and values.shape == (*positions.shape, *x.shape[1:])
    )


_NOT_TENSOR = frozenset({
    Ops.RANGE, Ops.END, Ops.LOAD, Ops.IF, Ops.ENDIF, Ops.WMMA, Ops.SHUFFLE, Ops.BARRIER, Ops.STAGE,
})  # fmt: skip

_TENSOR = [
    *_EVERYWHERE,
    _rule(_NOT_TENSOR, "does not stand in the tensor form", lambda u: False),
    _rule(OpGroup.ELEMENTWISE, "takes sources of one shape (and scalars)", _shapes_fit),
    _rule(Ops.RESHAPE, "keeps the number of elements", _reshape_fits),
    _rule(Ops.EXPAND, "keeps the rank and repeats axes of length 1 only", _expand_fits),
    _rule(Ops.PERMUTE, "orders every axis once", lambda u: sorted(u.arg) == list(range(len(u.src[0].shape)))),
    _rule(Ops.PAD, "has a non-negative (before, after) for every axis", _pad_fits),
    _rule(Ops.SHRINK, "takes (start, length) inside every axis", _shrink_fits),
    _rule(
        Ops.FLIP,
        "names axes of its source, each once",
        lambda u: len(set(u.arg)) == len(u.arg) and all(0 <= a < len(u.src[0].shape) for a in u.arg),
    ),
    _rule(Ops.SHEAR, "reads elements that exist, along two different axes", _shear_fits),
    _rule(Ops.REDUCE, "has an associative operation and sorted axes of its source: (Ops, axes)", _tensor_reduce),
    _rule(Ops.SCATTER, "combines rows of its first source with values at integer positions", _scatter_fits),
    _rule(Ops.BIND, "binds a variable to a constant within its bounds", _bind_fits),
    _rule(
        Ops.STORE,
        "stores a value of the target's type (or a weak one)",
        lambda u: (
            len(u.src) in (2, 3)
            and (u.src[1].dtype is u.src[0].dtype or u.src[1].dtype.weak or u.src[1].op is Ops.Invalid)
        ),
    ),
    _rule(
        Ops.STORE, "stores a value of the target's shape, or a scalar", lambda u: u.src[1].shape in ((), u.src[0].shape)
    ),
    _rule(Ops.AFTER, "waits for effects: stores, calls and what contains them", lambda u: len(u.src) >= 2),
    _rule(
        Ops.COLLECTIVE,
        "gathers, hands out rows (one a process) or broadcasts a value of known shape",
        lambda u: (
            isinstance(u.arg, Exchange)
            and (u.arg.kind in ("gather", "broadcast") or (u.arg.kind == "alltoall" and u.shape[:1] == (u.arg.ranks,)))
            and all(_int(d) for d in u.shape)
        ),
    ),
    _rule(Ops.COPY, "names the device it copies to", lambda u: isinstance(u.arg, (str, tuple)) and len(u.src) == 1),
    _rule(
        Ops.GETTUPLE,
        "takes a result of a TUPLE, FUNCTION or CALL by number",
        lambda u: u.src[0].op in (Ops.TUPLE, Ops.FUNCTION, Ops.CALL, Ops.CUSTOM_FUNCTION) and isinstance(u.arg, int),
    ),
]


# --- kernel form ---

_NOT_KERNEL = (OpGroup.MOVEMENT - {Ops.SHRINK}) | {
    Ops.BIND, Ops.CONTIGUOUS, Ops.CONTIGUOUS_BACKWARD, Ops.DETACH, Ops.COPY, Ops.FUNCTION, Ops.CALL,
    Ops.MSTACK, Ops.MSELECT, Ops.UNSHARD, Ops.COLLECTIVE, Ops.CUSTOM_FUNCTION, Ops.LINEAR, Ops.PROGRAM,
}  # fmt: skip


def _whole(u: UOp) -> UOp:
    """The storage below AFTERs."""
    while u.op is Ops.AFTER:
        u = u.src[0]
    return u


def _is_address(u: UOp) -> bool:
    u = _whole(u)
    if u.op is Ops.INDEX:
        return _whole(u.src[0]).op in OpGroup.STORAGE or _whole(u.src[0]).op is Ops.STAGE
    if u.op is Ops.SHRINK:
        return u.arg[0] is None and _whole(u.src[0]).op in OpGroup.STORAGE | {Ops.STAGE}
    return (
        u.op is Ops.CUSTOMI or (u.op in OpGroup.STORAGE and u.arg.addrspace is not AddrSpace.ALU) or u.op is Ops.STAGE
    )


def _plain_value(u: UOp) -> bool:
    """A value to compute with: no address (which must be loaded), no effect."""
    return u.dtype is not dtypes.void and not (u.op in (Ops.INDEX, Ops.SHRINK) and _is_address(u)) and not (
        u.op in OpGroup.STORAGE and u.arg.addrspace is not AddrSpace.ALU
    )  # fmt: skip


def _may_be_invalid(i: UOp) -> bool:
    return i.op is Ops.Invalid or (i.op is Ops.WHERE and i.src[2].op is Ops.Invalid)


def _gated_load(u: UOp) -> bool:
    a = u.src[0]
    return len(u.src) > 1 or a.op is not Ops.INDEX or not any(_may_be_invalid(i) for i in a.src[1:])


def _closes_ranges(u: UOp) -> bool:
    rest = u.src[1:]
    if rest and rest[-1].dtype is dtypes.bool:
        rest = rest[:-1]
    return len(u.src) > 1 and all(r.op is Ops.RANGE for r in rest)


def _kernel_reduce(u: UOp) -> bool:
    if not (isinstance(u.arg, tuple) and len(u.arg) == 2 and u.arg[1] == ()):
        return False
    operands = [s for s in u.src if s.op is not Ops.RANGE]
    if not operands or len(operands) == len(u.src) or any(s.op is Ops.RANGE for s in u.src[: len(operands)]):
        return False
    if isinstance(u.arg[0], str):
        return len(operands) == 1 and operands[0].op is Ops.TUPLE
    return all(s.op is not Ops.TUPLE for s in operands)


_EFFECTS = frozenset(
    {
        Ops.END,
        Ops.STORE,
        Ops.GROUP,
        Ops.ATOMIC,
        Ops.BARRIER,
        Ops.CUSTOM,
        Ops.AFTER,
        Ops.NOOP,
        Ops.IF,
        Ops.ENDIF,
        Ops.WAIT,
    }
)

_MEMORY = [
    _rule(
        Ops.INDEX, "takes integer indices", lambda u: len(u.src) >= 2 and all(i.dtype.kind in "iu" for i in u.src[1:])
    ),
    _rule(
        Ops.LOAD, "loads from an address: INDEX or SHRINK of storage", lambda u: bool(u.src) and _is_address(u.src[0])
    ),
    _rule(
        Ops.STORE,
        "stores to an address: INDEX or SHRINK of storage",
        lambda u: len(u.src) in (2, 3) and _is_address(u.src[0]),
    ),
    _rule(
        Ops.STORE,
        "stores a value of the target's type",
        lambda u: u.src[1].dtype is u.src[0].dtype or u.src[1].dtype.weak or u.src[1].op is Ops.Invalid,
    ),
    _rule(
        OpGroup.ELEMENTWISE,
        "computes with values: an address must be loaded first",
        lambda u: all(_plain_value(s) for s in u.src),
    ),
]

_KERNEL = [
    *_EVERYWHERE,
    *_MEMORY,
    _rule(_NOT_KERNEL, "does not stand in a kernel", lambda u: False),
    _rule(Ops.GETTUPLE, "takes a result of a REDUCE by number", lambda u: u.src[0].op is Ops.REDUCE),
    _rule(
        Ops.PARAM,
        "is flat (a size), or a named variable",
        lambda u: (
            (u.arg.name is not None and u.arg.vmin_vmax is not None)
            if u.arg.addrspace is AddrSpace.ALU
            else u.arg.size is not None
        ),
    ),
    _rule(
        Ops.RANGE,
        "does not end at a value of lanes or copies",
        lambda u: all(r.arg.kind in (AxisType.GLOBAL, AxisType.LOOP, AxisType.REDUCE) for r in u.src[0].ranges),
    ),
    _rule(Ops.LOAD, "has an alternative where its index may be invalid", _gated_load),
    _rule(Ops.REDUCE, "has arg (operation, ()), for a TUPLE (name, ()), and RANGEs after its operands", _kernel_reduce),
    _rule(
        Ops.REDUCE,
        "closes no loop that ends at a value of another it closes",
        lambda u: not any(r in u.src[1:] for s in u.src[1:] if s.op is Ops.RANGE for r in s.src[0].ranges),
    ),
    _rule(Ops.END, "closes RANGEs (and may end with a bool condition)", _closes_ranges),
    _rule(Ops.SINK, "gathers effects", lambda u: all(s.op in _EFFECTS for s in u.src)),
    _rule(Ops.SINK, "carries a KernelInfo", lambda u: u.arg is None or isinstance(u.arg, KernelInfo)),
    _rule(Ops.SINK, "has every loop closed", lambda u: not u.ranges),
]


# --- program form ---

_IN_PROGRAM = OpGroup.ELEMENTWISE | {
    Ops.PARAM, Ops.BUFFER, Ops.SPECIAL, Ops.CONST, Ops.STACK, Ops.INDEX, Ops.SHRINK, Ops.LOAD, Ops.STORE,
    Ops.RANGE, Ops.END, Ops.IF, Ops.ENDIF, Ops.BARRIER, Ops.ATOMIC, Ops.CUSTOM, Ops.CUSTOMI, Ops.WMMA,
    Ops.SHUFFLE, Ops.INS, Ops.LINEAR, Ops.NOOP, Ops.SINK, Ops.GROUP, Ops.WAIT,
}  # fmt: skip


def _vector(u: UOp) -> bool:
    return u.op in OpGroup.STORAGE or len(u.shape) == 0 or (len(u.shape) == 1 and isinstance(u.shape[0], int))


_PROGRAM = [
    *_EVERYWHERE,
    *_MEMORY,
    _rule(set(Ops) - _IN_PROGRAM, "does not stand in a program", lambda u: False),
    _rule(None, "has a concrete type", lambda u: not u.dtype.weak),
    _rule(None, "is a scalar or a vector", _vector),
    _rule(OpGroup.ELEMENTWISE, "takes vectors of one length (and scalars)", _shapes_fit),
    _rule(Ops.STACK, "stacks scalars", lambda u: bool(u.src) and all(s.shape == () for s in u.src)),
    _rule(Ops.LOAD, "is LOAD(address) or LOAD(address, alternative, gate)", lambda u: len(u.src) in (1, 3)),
    _rule(
        Ops.END,
        "closes one RANGE (and may end with a bool condition)",
        lambda u: len(u.src) in (2, 3) and u.src[1].op is Ops.RANGE,
    ),
    _rule(Ops.IF, "tests one bool", lambda u: bool(u.src) and u.src[0].dtype is dtypes.bool),
    _rule(Ops.ENDIF, "ends an IF", lambda u: bool(u.src) and u.src[0].op is Ops.IF),
]

_TABLES = {"tensor": _TENSOR, "kernel": _KERNEL, "program": _PROGRAM}
_BY_OP: dict[str, dict[Ops, list[Rule]]] = {
    form: {op: [r for r in table if r.ops is None or op in r.ops] for op in Ops} for form, table in _TABLES.items()
}


def check_after(name: str, root: UOp, form: str) -> None:
    """`check` of what a pass made; the error names it: "after the pass 'expand' of code generation"."""
    try:
        check(root, form)
    except Exception as error:
        error.add_note(f"after the pass {name}")
        raise


def check(root: UOp, form: str) -> None:
    """Raise SpecError unless `root` is of `form`: "tensor", "kernel" or "program" (a LINEAR)."""
    if form not in FORMS:
        raise ValueError(f"form {form!r} does not exist: it is one of {', '.join(FORMS)}")
    rules = _BY_OP[form]
    for u in _nodes_of(root, form):
        for rule in rules[u.op]:
            try:
                fine = rule.holds(u)
            except Exception as e:  # a test that cannot even be made, on a node that is wrong in some other way
                raise _error(u, form, f"{rule.says} (the test itself failed: {type(e).__name__}: {e})") from e
            if not fine:
                raise _error(u, form, rule.says)
    if form == "kernel":
        _check_loops(root)
    elif form == "program":
        _check_order(root)


def _nodes_of(root: UOp, form: str) -> Iterable[UOp]:
    """The nodes that the form speaks of: in a tensor graph not the kernels that are called."""
    if form != "tensor":
        return root.toposort()
    out: dict[UOp, None] = {}
    todo = [root]
    while todo:
        for u in todo.pop().toposort(lambda n: n.op not in _CLOSED):
            if u not in out and u.op in _CLOSED:
                todo.extend([s for s in (u.src if u.op is Ops.CALL else u.src[1:]) if s not in out])
            out[u] = None
    return [u for u in out if u.op not in _CLOSED]


_CLOSED = frozenset({Ops.CALL, Ops.CUSTOM_FUNCTION, Ops.PROGRAM})


def _error(u: UOp, form: str, says: str) -> SpecError:
    text = to_source(u)
    if len(text) > 1500:
        text = "... " + text[-1500:]
    made = f"\nmade at {u.origin}" if u.origin else ""
    return SpecError(f"{form} form: {u.op.name} {says}; here it is {u.dtype.name} with arg {u.arg!r}{made}\n{text}")


def _check_loops(root: UOp) -> None:
    ids: dict[tuple[int, ...], UOp] = {}
    for u in root.toposort():
        if u.op is Ops.RANGE and ids.setdefault(u.arg.id, u) is not u:
            raise _error(u, "kernel", f"has an id of its own ({u.arg.id} also names {to_source(ids[u.arg.id])})")


def _check_order(root: UOp) -> None:
    if root.op is not Ops.LINEAR:
        raise SpecError(f"program form: the root is a LINEAR, not {root.op.name}")
    seen: set[UOp] = set()
    open_blocks: list[UOp] = []
    for u in root.src:
        for s in u.src:
            if s not in seen:
                raise _error(u, "program", f"comes after its sources ({s.op.name} has not come yet)")
        if u in seen:
            raise _error(u, "program", "stands in the order once")
        seen.add(u)
        if u.op in (Ops.RANGE, Ops.IF):
            open_blocks.append(u)
        elif u.op in (Ops.END, Ops.ENDIF):
            block = u.src[1] if u.op is Ops.END else u.src[0]
            if not open_blocks or open_blocks[-1] is not block:
                raise _error(u, "program", "closes the block opened last")
            open_blocks.pop()
    if open_blocks:
        raise _error(open_blocks[-1], "program", "is closed before the program ends")
