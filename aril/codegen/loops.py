"""Loops of their own: where several ENDs close one RANGE, the later ones get new RANGEs. Kernel form to kernel form."""

from __future__ import annotations

from aril.ops import Ops
from aril.uop.args import RangeArg
from aril.uop.node import UOp


def one_end_a_range(sink: UOp) -> UOp:
    """The kernel in which each RANGE is closed by one END.

    before: SINK(END(STORE(a), r0), END(STORE(b), r0))
    after:  SINK(END(STORE(a), r0), END(STORE(b), r1))
    """
    while True:
        order = sink.toposort()
        owner: dict[UOp, UOp] = {}
        for end in order:
            if end.op is Ops.END:
                shared = [r for r in end.src[1:] if r.op is Ops.RANGE and owner.setdefault(r, end) is not end]
                if shared:
                    break
        else:
            return sink
        first = 1 + max(u.arg.id[0] for u in order if u.op is Ops.RANGE)
        names = {r: r.replace(arg=RangeArg((first + i,), r.arg.kind)) for i, r in enumerate(shared)}
        sink = sink.substitute({end: _rename(end, names)})


def _rename(end: UOp, names: dict[UOp, UOp]) -> UOp:
    """`end` over other loops: everything in it that lies in the old ones is made anew."""
    old = frozenset(names)
    return end.substitute(names, lambda u: u is end or not old.isdisjoint(u.ranges))
