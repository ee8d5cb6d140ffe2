"""Index arithmetic that is the same for all lanes of a vector. Kernel form to kernel form."""

from __future__ import annotations

from aril.ops import Ops
from aril.uop.args import AxisType
from aril.uop.node import UOp
from aril.uop.symbolic import simplify

SPLIT = frozenset({Ops.FLOORDIV, Ops.FLOORMOD, Ops.CMPLT})


def whole_vectors(sink: UOp) -> UOp:
    """Quotients, remainders and limits of an index that a whole vector shares are taken of its tile.

        before: (t*16 + v) // 64, (t*16 + v) % 64, t*16 + v < 768      (v a VECTOR loop of 16)
        after:  t // 4, t % 4 * 16 + v, t < 48

    So what lies behind them is loaded as a vector where lanes would have been gathered: parts put one after another
    whose rows are longer than a vector.
    """
    order = sink.toposort()
    lanes = [u for u in order if u.op is Ops.RANGE and u.arg.kind is AxisType.VECTOR]
    found: dict[UOp, UOp] = {}
    for u in order if lanes else ():
        if u.op in SPLIT and u.src[0].dtype.weak and u.src[0].dtype.kind == "i" and not u.shape:
            graph = u.toposort()
            if any(v in graph for v in lanes) and not any(n.op is Ops.LOAD for n in graph):
                new = simplify(u)
                if new is not u:
                    found[u] = new
    return sink.substitute(found)
