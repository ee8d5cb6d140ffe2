"""Memory and loops: loads and stores at indices that cannot be, loops of one turn, effects that do nothing.

In: a node of the kernel form over simplified sources. Out: a better node, or None.
"""

from __future__ import annotations

from aril.ops import Ops
from aril.uop.node import UOp


def range(u: UOp) -> UOp | None:
    """A loop of one turn is 0."""
    end = u.src[0]
    return UOp.const(u.dtype, 0) if end.op is Ops.CONST and end.arg == 1 else None


def closed(u: UOp) -> UOp | None:
    """END and REDUCE without the loops that have become constants."""
    if u.op is Ops.REDUCE and not (isinstance(u.arg, tuple) and len(u.arg) == 2 and u.arg[1] == ()):
        return None
    if not any(s.op is Ops.CONST and s.dtype.kind != "b" for s in u.src[1:]):
        if u.op is Ops.REDUCE and len(u.src) == 1:
            return u.src[0]
        return u.src[0] if u.op is Ops.END and (len(u.src) == 1 or u.src[0].op is Ops.NOOP) else None
    left = tuple([s for s in u.src[1:] if s.op is not Ops.CONST or s.dtype.kind == "b"])
    return UOp(u.op, (u.src[0], *left), u.arg, u.dtype, u.tag) if left else u.src[0]


def taken(u: UOp) -> UOp | None:
    """A result of a TUPLE is its source."""
    return u.src[0].src[u.arg] if u.src[0].op is Ops.TUPLE else None


def _invalid_index(address: UOp) -> bool:
    return address.op is Ops.INDEX and any(i.op is Ops.Invalid for i in address.src[1:])


def load(u: UOp) -> UOp | None:
    """A load that never or always happens, or needs no alternative."""
    address = u.src[0]
    if _invalid_index(address):
        return u.src[1] if len(u.src) > 1 else UOp.const(u.dtype, 0)
    if len(u.src) == 3 and u.src[2].op is Ops.CONST:
        return UOp(Ops.LOAD, (address,), u.arg, None, u.tag) if u.src[2].arg else u.src[1]
    if len(u.src) == 2 and address.op is Ops.INDEX and not any(_may_be_invalid(i) for i in address.src[1:]):
        return UOp(Ops.LOAD, (address,), u.arg, None, u.tag)
    return None


def _may_be_invalid(i: UOp) -> bool:
    return i.op not in (Ops.CONST, Ops.RANGE, Ops.ADD, Ops.MUL, Ops.FLOORDIV, Ops.FLOORMOD, Ops.SPECIAL, Ops.PARAM)


def store(u: UOp) -> UOp | None:
    """A store that never or always happens."""
    if _invalid_index(u.src[0]) or u.src[1].op is Ops.Invalid:
        return UOp(Ops.NOOP)
    if len(u.src) == 3 and u.src[2].op is Ops.CONST:
        return UOp(Ops.STORE, u.src[:2], u.arg, None, u.tag) if u.src[2].arg else UOp(Ops.NOOP)
    return None


def effects(u: UOp) -> UOp | None:
    """GROUP and SINK without effects that do nothing."""
    if not any(s.op is Ops.NOOP and not s.src for s in u.src):
        return None
    left = tuple([s for s in u.src if s.op is not Ops.NOOP or s.src])
    if u.op is Ops.GROUP and len(left) < 2:
        return left[0] if left else UOp(Ops.NOOP)
    return UOp(u.op, left, u.arg, None, u.tag)


def after(u: UOp) -> UOp | None:
    """A value that waits for nothing."""
    left = tuple([s for s in u.src[1:] if s.op is not Ops.NOOP or s.src])
    if len(left) + 1 == len(u.src):
        return None
    return UOp(Ops.AFTER, (u.src[0], *left), u.arg, None, u.tag) if left else u.src[0]


def index_of_stack(u: UOp) -> UOp | None:
    """A lane of a vector made of scalars."""
    if (
        len(u.src) == 2
        and u.src[0].op is Ops.STACK
        and u.src[1].op is Ops.CONST
        and 0 <= u.src[1].arg < len(u.src[0].src)
    ):
        return u.src[0].src[int(u.src[1].arg)]
    return None
