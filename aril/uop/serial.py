"""Graphs as plain values (lists, numbers, text) for files and caches, and back, trusting nothing that comes in.

`to_rows(graphs)` lists every node once, sources first: `[operation, dtype, sources, argument, tag]`. Arguments are of
a closed set of types; what is not in the set has no form here, inline source and addresses of foreign functions among
it. `from_rows` builds nodes and runs nothing else; whether the graphs make sense is asked of `verify` afterwards.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence, Set
from typing import Any

from aril.dtype import DType, dtypes, to_dtype
from aril.ops import OpGroup, Ops
from aril.uop.args import AddrSpace, AxisType, Estimates, KernelInfo, ParamArg, RangeArg
from aril.uop.node import _CHOSEN_DTYPE, UOp
from aril.uop.order import toposort

MAX_NODES = 1 << 20
MAX_SOURCES = 1 << 16  # of one node
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")  # of kernels and variables: it reaches the compiler's input
WORDS = frozenset({"iota", "gidx0", "nontemporal", "relaxed", "acquire", "release", "acq_rel", "seq_cst", "kernel",
                   "position", "exponentials", "moments"})  # fmt: skip

OPERATIONS = OpGroup.ELEMENTWISE | OpGroup.MOVEMENT | OpGroup.STORAGE | {
    Ops.CONST, Ops.Invalid, Ops.SPECIAL, Ops.BIND, Ops.STACK, Ops.INDEX, Ops.LOAD, Ops.STORE, Ops.ATOMIC, Ops.BARRIER,
    Ops.RANGE, Ops.END, Ops.AFTER, Ops.GROUP, Ops.SINK, Ops.NOOP, Ops.REDUCE, Ops.SCATTER,
    Ops.CONTIGUOUS, Ops.CONTIGUOUS_BACKWARD, Ops.DETACH, Ops.TUPLE, Ops.GETTUPLE, Ops.MSTACK, Ops.UNSHARD,
}  # fmt: skip
PROGRAM_OPERATIONS = OPERATIONS | {Ops.IF, Ops.ENDIF, Ops.WMMA}  # of kernels in program form


class GraphFormatError(ValueError):
    """Rows that describe no graph, or a graph that has no form as rows."""


# --- arguments ---


def _to_plain(x: Any) -> Any:
    """An argument as a JSON value: numbers, flags and None as they are, all else a list that begins with its kind."""
    if x is None or isinstance(x, bool):
        return x
    if isinstance(x, (Ops, AxisType, AddrSpace)):
        return ["e", x.name]
    if isinstance(x, int):
        return x
    if isinstance(x, float):
        return x if math.isfinite(x) else ["f", str(x)]
    if isinstance(x, str):
        return ["s", x]
    if isinstance(x, DType):
        return ["d", x.name]
    if isinstance(x, ParamArg):
        if x.image is not None:
            raise GraphFormatError("an image has no form in a file")
        if x.name is not None:
            _named("variable", x.name)
        return ["p", *[_to_plain(v) for v in x]]
    if isinstance(x, RangeArg):
        return ["r", list(x.id), x.kind.name]
    if isinstance(x, KernelInfo):
        return _kernel_to_plain(x)
    if type(x) is tuple:
        return ["t", *[_to_plain(v) for v in x]]
    raise GraphFormatError(f"an argument of type {type(x).__name__} ({x!r:.60}) has no form in a file")


def _named(what: str, name: str) -> None:
    if not NAME.fullmatch(name):
        raise GraphFormatError(f"the name {name!r:.80} of a {what} has no form in a file: use letters, digits and _")


def _kernel_to_plain(x: KernelInfo) -> Any:
    if x.applied or x.opts_to_apply:
        raise GraphFormatError(f"kernel {x.name!r} carries optimisation steps: save the kernel without them")
    e = x.estimates
    numbers = [int(e.ops), int(e.bytes)] if e is not None and type(e.ops) is type(e.bytes) is int else None
    if e is not None and numbers is None:
        raise GraphFormatError(f"the estimates of kernel {x.name!r} depend on variables")
    _named("kernel", x.name)
    return ["k", x.name, x.opts_to_apply is not None, numbers]


def _from_plain(v: Any) -> Any:
    """Inverse of `_to_plain`. Errors: anything, for what it does not make."""
    if v is None or type(v) in (bool, int, float):
        return v
    kind, *rest = v
    if kind == "t":
        return tuple([_from_plain(x) for x in rest])
    if kind == "s":
        return _word(rest[0])
    if kind == "f":
        return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[rest[0]]
    if kind == "e":
        return _ENUMS[rest[0]]
    if kind == "d":
        return dtype_named(rest[0])
    if kind == "r":
        ids, axis = rest
        _need(isinstance(ids, list) and 0 < len(ids) < 64 and all(type(i) is int for i in ids), "a loop's id")
        return RangeArg(tuple(ids), AxisType[axis])
    if kind == "k":
        name, written_so, numbers = rest
        _need(NAME.fullmatch(name) is not None and type(written_so) is bool, "a kernel's name")
        estimates = None
        if numbers is not None:
            _need(len(numbers) == 2 and all(type(n) is int and 0 <= n < 1 << 62 for n in numbers), "estimates")
            estimates = Estimates(*numbers)
        return KernelInfo(name, () if written_so else None, estimates=estimates)
    if kind == "p":
        return _param_from_plain(rest)
    raise GraphFormatError(f"an argument of the unknown kind {kind!r:.40}")


def _param_from_plain(rest: list[Any]) -> ParamArg:
    slot, dtype, size, bounds, multiple, name, space, axis, device, volatile, image, align = rest
    arg = ParamArg(
        slot, _from_plain(dtype), size, _from_plain(bounds), multiple, name and name[1], _from_plain(space), axis,
        device and device[1], volatile, image, align,
    )  # fmt: skip
    numbers = (slot + 1 if type(slot) is int else slot, multiple, align)  # a variable's slot is -1
    natural = all(type(n) is int and 0 <= n < 1 << 48 for n in numbers)
    _need(natural and (size is None or (type(size) is int and 0 <= size < 1 << 48)), "numbers of a parameter")
    _need(isinstance(arg.dtype, DType) and isinstance(arg.addrspace, AddrSpace) and axis is None and image is None,
          "fields of a parameter")  # fmt: skip
    named = arg.addrspace is AddrSpace.ALU  # a variable has a name, and nothing else has
    _need(NAME.fullmatch(arg.name) is not None if named and arg.name else not named and arg.name is None,
          "a variable's name")  # fmt: skip
    _need(arg.device is None or (isinstance(arg.device, str) and len(arg.device) < 64), "a device's name")
    _need(type(volatile) is bool, "a flag of a parameter")
    if arg.vmin_vmax is not None:
        low, high = arg.vmin_vmax
        _need(type(low) is type(high) is int and -(1 << 62) < low <= high < 1 << 62, "bounds of a variable")
    return arg


_ENUMS: dict[str, Any] = {
    **{op.name: op for op in OpGroup.BINARY | {Ops.STORE}},  # what REDUCE and ATOMIC combine by
    **{space.name: space for space in AddrSpace},
}


def _word(text: Any) -> str:
    _need(text in WORDS, f"the word {text!r:.40}")
    return text  # type: ignore[no-any-return]


def dtype_named(name: Any) -> DType:
    """The dtype of a name as `DType.name` gives it, weak ones and void included. Errors: GraphFormatError."""
    special = {"weakint": dtypes.weakint, "weakfloat": dtypes.weakfloat, "void": dtypes.void}
    try:
        return special.get(name) or to_dtype(name if isinstance(name, str) else None)
    except TypeError as error:
        raise GraphFormatError(str(error)) from None


def _need(holds: bool, what: str) -> None:
    if not holds:
        raise GraphFormatError(f"{what} is not as it must be")


# --- graphs ---


def to_rows(graphs: Iterable[UOp], operations: Set[Ops] = OPERATIONS) -> tuple[list[list[Any]], list[int]]:
    """(rows, the row of each graph). Errors: GraphFormatError names what has no form, or is none of `operations`.

    >>> from aril.uop import UOp
    >>> to_rows([UOp.const(dtypes.int32, 2) + 3])[0]
    [['CONST', 'int32', [], 2, None], ['CONST', 'int32', [], 3, None], ['ADD', None, [0, 1], None, None]]
    """
    graphs = list(graphs)
    order = toposort(graphs)
    at = {u: i for i, u in enumerate(order)}
    rows = []
    for u in order:
        if u.op not in operations:
            raise GraphFormatError(f"{u.op.name} has no form in a file" + (f" (made at {u.origin})" * bool(u.origin)))
        dtype = u.dtype.name if u.op in _CHOSEN_DTYPE else None
        rows.append([u.op.name, dtype, [at[s] for s in u.src], _to_plain(u.arg), _to_plain(u.tag)])
    return rows, [at[g] for g in graphs]


def from_rows(rows: Any, wanted: Sequence[Any], operations: Set[Ops] = OPERATIONS) -> list[UOp]:
    """The graphs at rows `wanted`. Errors: GraphFormatError for anything `to_rows` of these operations does not make.

    >>> from aril.uop import UOp
    >>> x = UOp.variable("n", 1, 8) * 2
    >>> from_rows(*to_rows([x]))[0] is x
    True
    """
    if not isinstance(rows, list) or len(rows) > MAX_NODES:
        raise GraphFormatError(f"a graph is a list of at most {MAX_NODES} nodes")
    built: list[UOp] = []
    for i, row in enumerate(rows):
        try:
            name, dtype, src, arg, tag = row
            op = Ops[name]
            _need(op in operations, f"the operation {name}")
            _need(len(src) <= MAX_SOURCES, "the number of sources")
            for s in src:  # before they are used: -1 would be the last node
                _need(type(s) is int and 0 <= s < i, "a source")
            kind = None if dtype is None else dtype_named(dtype)
            built.append(UOp(op, tuple([built[s] for s in src]), _from_plain(arg), kind, _from_plain(tag)))
        except GraphFormatError as error:
            raise GraphFormatError(f"node {i}: {error}") from None
        except Exception as error:  # whatever a node of such parts cannot be made of
            raise GraphFormatError(f"node {i} ({row!r:.80}) is none: {type(error).__name__}: {error}") from None
    for w in wanted:
        if type(w) is not int or not 0 <= w < len(built):
            raise GraphFormatError(f"there is no node {w!r:.40}")
    return [built[w] for w in wanted]
