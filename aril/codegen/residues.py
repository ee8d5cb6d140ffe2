"""Windows of which elements count by a remainder of the position: those with a step, seen from the input, and those
that do not reach beyond the begin of their block (running sums).

In comes a plan with a nest whose gates ask for remainders; out goes the plan with a copy of the nest for each one,
in which those gates are known.
"""

from __future__ import annotations

from aril.codegen.affine import linear
from aril.codegen.analysis import Nest, is_constant, length
from aril.codegen.plan import Plan
from aril.codegen.steps import Split, Upcast
from aril.ops import Ops
from aril.uop.args import AxisType
from aril.uop.node import UOp

_STEP = 4  # the greatest divisor
_BLOCK = 8  # of the place in a block, where a window must not reach beyond its begin
_ROWS = 16
_WINDOW = 16  # terms of a window that is unrolled
_COPIES = 64  # of the body: remainders times the turns of the window


def split_residues(plan: Plan, index: int) -> None:
    """Output loops of the nest whose remainder (with a window's position) is asked for go in copies, one a remainder.

    before: sum over k of 3 of (r - k) % 2 == 0 ? x[(r - k) // 2, k] : 0
    after:  for r = 2*q the terms k = 0 and 2, for r = 2*q + 1 the term k = 1

    Positions beyond a multiple of the divisor are a nest of their own.
    """
    nest = plan.nest(index)
    turns = [nest.turns(frozenset(g)) for g in nest.groups]
    if turns and max(turns) > _WINDOW or not all(is_constant(r) for g in nest.groups for r in g):
        return
    copies = 1
    for t in turns:
        copies *= t
    for loop, by in _asked(nest).items():
        if length(loop) > by and copies * by <= _COPIES:
            copies *= by
            rest = length(loop) % by
            plan.do(Split(loop.arg.id, by, "peel" if rest else "exact"), "what counts depends on the remainder")
            plan.do(Upcast((*loop.arg.id, 1)), "what counts depends on the remainder")
            if rest > 1:
                plan.do(Upcast((*loop.arg.id, 2)), "what counts depends on the remainder")
            plan.rename(loop.arg.id, (*loop.arg.id, 0))


def _asked(nest: Nest) -> dict[UOp, int]:
    """Output loops that stand in a remainder, alone or together with a loop of a reduction, and its divisor."""
    out: dict[UOp, int] = {}
    inner = {r for g in nest.groups for r in g}
    sums = [linear(s, {}).terms for u in nest.nodes if u.op is Ops.CMPLT and u.src[0].dtype.weak for s in u.src]
    windows = {a for terms in sums if not inner.isdisjoint(terms) for a in terms}
    for u in nest.nodes:
        if u.op is not Ops.FLOORMOD or u.src[1].op is not Ops.CONST:
            continue
        by, terms = int(u.src[1].arg), linear(u.src[0], {}).terms
        free = [r for r, scale in terms.items() if scale % by]
        own = [r for r in free if r in nest.loops and r.arg.kind is AxisType.LOOP and is_constant(r)]
        if len(own) != 1 or by < 2 or not all(r in inner for r in free if r is not own[0]):
            continue
        if by <= _STEP or by <= _BLOCK and u in windows and _fills_rows(nest, own[0], by):
            out[own[0]] = by
    return out


def _fills_rows(nest: Nest, loop: UOp, by: int) -> bool:
    """Whether results of neighbouring turns lie together, and threads can share the rows where some are left over."""
    rows = nest.turns(frozenset(nest.loops)) // length(loop)
    return (length(loop) % by == 0 or rows >= _ROWS) and all(a.stride(loop) == 1 for a in nest.accesses if a.is_store)
