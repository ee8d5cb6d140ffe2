"""What processes do together, as nodes: COLLECTIVE(value, arg=Exchange)."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from aril.ops import Ops
from aril.uop.node import UOp

_serials = itertools.count()


class Exchange(NamedTuple):
    """What a COLLECTIVE does, as process `rank` of `ranks` sees it. All do the same ones, in the order of `serial`.

    kind "gather": everybody gets the values of all, along a new axis 0. "alltoall": row i of the source goes to process
    i; row i of the result came from it. "broadcast": everybody gets the value of process `root`.
    """

    kind: str
    rank: int
    ranks: int
    root: int = 0
    serial: int = 0


def exchange(x: UOp, kind: str, among: Exchange) -> UOp:
    """A COLLECTIVE of `kind` on `x`, among the processes of `among`. Each call is one of its own: two of the same value
    are two messages, for what one process finds computed another may not."""
    return UOp(Ops.COLLECTIVE, (x,), among._replace(kind=kind, serial=next(_serials)))
