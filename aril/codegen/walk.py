"""Steps for kernels that walk positions (SCATTER, see `schedule/scatter.py`): the columns of a row become lanes.

The order of the walk is what makes the result one and the same, so its loops stay as they are; columns are independent.
"""

from __future__ import annotations

from aril.codegen.affine import linear, split_gate
from aril.codegen.analysis import is_constant, length
from aril.codegen.order import bounding
from aril.codegen.plan import Plan
from aril.codegen.steps import Id, Split, Vectorize
from aril.ops import Ops
from aril.uop.args import AxisType
from aril.uop.node import UOp

_COPIES = 4  # vectors next to each other


def is_walk(sink: UOp) -> bool:
    """Whether turns of a loop may meet at one place: memory decides where something is stored, or there is one place
    only."""
    return any(
        u.op is Ops.STORE and any(n.op is Ops.LOAD for i in u.src[0].src[1:] for n in i.toposort())
        for u in sink.toposort()
    ) or any(
        r.op is Ops.RANGE and r.arg.kind is AxisType.LOOP and r not in address.ranges
        for u in sink.toposort()
        if u.op is Ops.END
        for address in _addresses(u)
        for r in u.src[1:]
    )


def _addresses(effect: UOp) -> list[UOp]:
    """Where the stores of a nest go."""
    while effect.op is Ops.END:
        effect = effect.src[0]
    return [u.src[0].src[1] for u in (effect.src if effect.op is Ops.GROUP else (effect,)) if u.op is Ops.STORE]


def plan_walk(plan: Plan) -> None:
    """Lanes for the columns of every nest. The chunks are there already."""
    for store in [u for u in plan.sink.toposort() if u.op is Ops.STORE]:
        width = max(2, plan.renderer.vector_bytes // store.src[0].dtype.itemsize)
        form = linear(split_gate(store.src[0].src[1])[0], {})
        for r in [r for r in form.terms if r.op is Ops.RANGE and r.arg.kind is AxisType.LOOP and length(r) >= 4]:
            if form.coefficient(r) == 1 and r not in bounding(plan.sink):
                _vectorise(plan, r.arg.id, width)


def _vectorise(plan: Plan, id: Id, width: int) -> None:
    loop = plan.loop(id)
    n, known = length(loop), is_constant(loop)
    lanes = min(width, 1 << (n.bit_length() - 1))
    copies = min(_COPIES, 1 << ((n // lanes).bit_length() - 1))
    block = lanes * copies
    main, rest = id, n % block if known else 0
    if not known or n != block:
        plan.do(Split(id, block, "exact" if known and not rest else "peel"), "tiles of columns")
        main = (*id, 1)
    plan.vectorise(main, lanes, copies, "columns of a row")
    if copies > 1 and rest >= lanes:
        last = (*id, 2)
        if rest > lanes:
            plan.do(Split(last, lanes, "exact" if rest % lanes == 0 else "peel"), "vectors of the rest")
            last = (*last, 1)
        plan.do(Vectorize(last), "columns of a row")
