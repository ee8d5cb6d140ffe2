"""GLOBAL loops become one launch index, the chunk, which threads share. Kernel form to kernel form."""

from __future__ import annotations

from aril.codegen.affine import mul
from aril.codegen.steps import replace_loops
from aril.ops import Ops
from aril.uop.args import AxisType
from aril.uop.node import UOp
from aril.uop.symbolic import simplify


def launch(sink: UOp) -> UOp:
    """All GLOBAL loops as parts of `gidx0`, the one with the greatest id fastest.

    before: GLOBAL loops a (of 4) and b (of 8)
    after:  a = gidx0 // 8, b = gidx0 % 8 with gidx0 in 0..31
    """
    loops = sorted(
        {r for r in sink.toposort() if r.op is Ops.RANGE and r.arg.kind is AxisType.GLOBAL}, key=lambda r: r.arg.id
    )
    if not loops:
        return sink
    total = loops[0].src[0]
    for r in loops[1:]:
        total = simplify(mul(total, r.src[0]))
    index = UOp.special(total, "gidx0")
    mapping: dict[UOp, tuple[UOp, tuple[UOp, ...]]] = {}
    rest = index
    for i, r in reversed(list(enumerate(loops))):
        size = r.src[0]
        mapping[r] = (rest if i == 0 else simplify(UOp(Ops.FLOORMOD, (rest, size))), ())
        rest = simplify(UOp(Ops.FLOORDIV, (rest, size)))
    out = replace_loops(sink, mapping)
    # an END without loops left is its effect
    done: dict[UOp, UOp] = {}
    for u in out.toposort():
        src = tuple([done[s] for s in u.src])
        done[u] = src[0] if u.op is Ops.END and len(src) == 1 else u.with_src(src)
    return done[out]
