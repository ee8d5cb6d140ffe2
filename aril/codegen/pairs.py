"""Sums of products of bfloat16 two terms at a time: the target's instruction adds the products of a pair to float32.

In come reductions; out goes what the planner and the expander ask of them. `docs/decisions/0017-pairs-of-bfloat16.md`
says why, and what it means for results.
"""

from __future__ import annotations

from aril.codegen.analysis import reduce_loops_of
from aril.codegen.emulate import is_emulated_on_request
from aril.dtype import dtypes
from aril.ops import Ops
from aril.renderer.base import Renderer
from aril.uop.args import AxisType
from aril.uop.node import UOp

PAIR = (dtypes.bfloat16, 2)  # the argument of such a WMMA: the elements, and how many are summed


def pair_lanes(renderer: Renderer) -> tuple[int, ...]:
    """The vectors of float32 that products of pairs are added to; none where bfloat16 is to be emulated."""
    return () if is_emulated_on_request(dtypes.bfloat16) else renderer.pair_lanes


def narrow_factors(reduction: UOp) -> tuple[UOp, UOp] | None:
    """The two LOADs of bfloat16 whose products, exact in float32, a REDUCE sums up; None for any other."""
    product = reduction.src[0]
    if reduction.arg[0] is not Ops.ADD or product.op is not Ops.MUL or product.dtype is not dtypes.float32:
        return None
    loads = [s.src[0] for s in product.src if s.op is Ops.CAST and s.src[0].op is Ops.LOAD]
    if len(loads) < 2 or any(x.dtype is not dtypes.bfloat16 for x in loads):
        return None
    return loads[0], loads[1]


def pair_products(x: UOp, y: UOp) -> UOp:
    """The products of the pairs in the words of x and y, summed: WMMA(x, y, 0)."""
    return UOp(Ops.WMMA, (x, y, UOp.const(dtypes.float32, 0.0)), PAIR, dtypes.float32)


def steps_of(reduction: UOp) -> tuple[UOp, ...]:
    """The loops of a REDUCE but those that are copied, the outermost first: a turn of all of them is a step."""
    own = [r for r in reduce_loops_of(reduction) if r.arg.kind is not AxisType.UNROLL]
    return tuple(sorted(own, key=lambda r: r.arg.id))


def pair_loop(reduction: UOp) -> UOp | None:
    """The loop of two turns that make a pair, where the planner has split one off."""
    return next((r for r in reduce_loops_of(reduction) if r.arg.kind is AxisType.UNROLL), None)
