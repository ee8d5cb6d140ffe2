"""Output loops that some operand sees in groups, such as the channels of a grouped convolution, as two loops.

In comes a plan; out goes the plan with a loop over groups and one within a group, where an operand stands still.
"""

from __future__ import annotations

from aril.codegen.analysis import Nest, is_constant, length
from aril.codegen.plan import Plan
from aril.codegen.steps import Split
from aril.ops import Ops
from aril.uop.node import UOp


def groups_apart(plan: Plan, index: int) -> Nest:
    """Nest `index` with a loop over all channels of groups, or over pixels of which so many come from one, as two:
    within a group an operand stays the same, or moves by one number.

    before: for o of 64: x[o // 16, c] * w[o, c]
    after:  for g of 4, for p of 16: x[g, c] * w[16 * g + p, c]
    """
    nest = plan.nest(index)
    if len(nest.reduces) != 1:
        return nest
    asked: dict[UOp, set[int]] = {}
    for a in nest.accesses:
        for atom in a.form.terms:
            if atom.op is Ops.FLOORDIV and atom.src[0] in nest.loops and atom.src[1].op is Ops.CONST:
                asked.setdefault(atom.src[0], set()).add(int(atom.src[1].arg))
    apart = {r: by.pop() for r, by in asked.items() if len(by) == 1 and is_constant(r)}
    apart = {r: by for r, by in apart.items() if 1 < by < length(r) and length(r) % by == 0}
    for r, by in apart.items():
        plan.do(Split(r.arg.id, by, "exact"), "a group is taken at a time")
    return plan.nest(index) if apart else nest
