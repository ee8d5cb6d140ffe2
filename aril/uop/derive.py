"""What follows from a node's operation, sources and argument: its dtype, its digest, the loops it lies in, its
device.

Shapes are `shape.py`, bounds `bounds.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from aril.dtype import DType, dtypes, promote
from aril.ops import OpGroup, Ops

if TYPE_CHECKING:
    from aril.uop.node import UOp


def derive_dtype(op: Ops, src: tuple[UOp, ...], arg: Any) -> DType:
    """The dtype of a node that does not choose it. Errors: TypeError where nothing decides it."""
    rule = _DTYPE_RULES[op]
    if rule is _first_dtype:
        return src[0].dtype if src else dtypes.void
    return rule(op, src, arg)


def _first_dtype(op: Ops, src: tuple[UOp, ...], arg: Any) -> DType:
    return src[0].dtype if src else dtypes.void


def _widest_dtype(op: Ops, src: tuple[UOp, ...], arg: Any) -> DType:
    values = src[1:] if op is Ops.WHERE else src
    first = values[0].dtype
    if len(values) == 1 or (first is values[1].dtype and len(values) == 2):
        return first
    return _meet([v.dtype for v in values if v.op is not Ops.Invalid] or [first])


def _result_dtype(op: Ops, src: tuple[UOp, ...], arg: Any) -> DType:
    t = src[0] if src[0].op is Ops.TUPLE else src[0].src[0]
    return t.src[arg].dtype  # type: ignore[no-any-return]


def _no_dtype(op: Ops, src: tuple[UOp, ...], arg: Any) -> DType:
    raise TypeError(f"{op} needs a dtype: nothing in its sources decides it")


def _dtype_rules() -> list[Callable[[Ops, tuple[UOp, ...], Any], DType]]:
    """How the dtype of each operation comes about, by its number."""
    out: dict[Ops, Callable[[Ops, tuple[UOp, ...], Any], DType]] = dict.fromkeys(Ops, _first_dtype)
    out |= dict.fromkeys(OpGroup.ALU - {Ops.SHL, Ops.SHR} | {Ops.STACK}, _widest_dtype)
    out |= dict.fromkeys((Ops.CONST, Ops.CAST, Ops.BITCAST, Ops.CUSTOM, Ops.CUSTOMI), _no_dtype)
    out |= dict.fromkeys((Ops.PARAM, Ops.BUFFER), lambda op, src, arg: arg.dtype)
    out |= {Ops.GETTUPLE: _result_dtype, Ops.GETADDR: lambda op, src, arg: dtypes.uint64}
    out |= dict.fromkeys(OpGroup.VOID, lambda op, src, arg: dtypes.void)
    out |= dict.fromkeys(OpGroup.COMPARISON, lambda op, src, arg: dtypes.bool)
    return [out.get(n, _first_dtype) for n in range(max(Ops) + 1)]  # type: ignore[call-overload]


_DTYPE_RULES = _dtype_rules()


def _meet(kinds: list[DType]) -> DType:
    """The type of an elementwise node: the one concrete type among its sources, or the promotion of weak ones."""
    concrete = {k for k in kinds if not k.weak}
    if len(concrete) == 1:
        return concrete.pop()
    return promote(*(concrete or kinds))


def derive_digest(u: UOp) -> bytes:
    """Of a node whose sources have theirs."""
    h = hashlib.blake2b(digest_size=16)
    h.update(f"{u.op.name}|{u.dtype.name}|{u.arg!r}|{u.tag!r}|{len(u.src)}".encode())
    for s in u.src:
        h.update(s._digest)
    return h.digest()


def derive_ranges(u: UOp) -> frozenset[UOp]:
    """The loops a node lies in, those of its sources known."""
    if u.op is Ops.RANGE:
        return frozenset((u,)).union(*[s._live for s in u.src])
    if not u.src:
        return frozenset()
    live = u.src[0]._live
    for s in u.src[1:]:
        if s._live is not live and s._live:
            live = live | s._live
    if u.op is Ops.REDUCE or u.op is Ops.END:
        closed = [s for s in u.src[1:] if s.op is Ops.RANGE]
        return live.difference(closed) if closed else live  # type: ignore[no-any-return]
    return live  # type: ignore[no-any-return]


def device_of(u: UOp) -> tuple[UOp | None, Any]:
    """(a source whose device must be known first, None) or (None, the device of `u`: of its first source with one)."""
    if u.op in OpGroup.STORAGE:
        return None, u.arg.device
    if u.op is Ops.COPY:
        return None, u.arg
    for s in u.src:
        if s._device is False:
            return s, None
        if u.op is Ops.MSELECT:
            return None, s._device[u.arg] if isinstance(s._device, tuple) else s._device
        if s._device is not None and u.op is not Ops.MSTACK:
            return None, s._device
    return None, tuple([s._device for s in u.src]) if u.op is Ops.MSTACK else None
