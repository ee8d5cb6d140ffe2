"""Variables as parts of axes: what their values must satisfy for a graph to read and write elements that exist.

In: a tensor graph. Out: a `Limit` for each part of an axis that the bounds of its variables do not keep inside, and two
for each reshape whose numbers of elements are not known to agree.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import NamedTuple

from aril.ops import Ops
from aril.uop import UOp, sint
from aril.uop.render import to_expr
from aril.uop.shape import movement_arg
from aril.uop.symbolic import simplify


class Limit(NamedTuple):
    """Elements `start` to `end` (excluded) of an axis of `size`, each an expression in variables."""

    start: UOp
    end: UOp
    size: UOp

    def check(self, values: dict[str, int], evaluate: Callable[[UOp, dict[str, int]], int]) -> None:
        """Errors: IndexError for values of the variables with which the part does not lie inside of the axis."""
        start, end, size = (evaluate(x, values) for x in self)
        if 0 <= start <= end <= size:
            return
        used = sorted({u.arg.name for x in self for u in x.toposort() if u.is_variable})
        raise IndexError(
            f"elements {start} to {end} (excluded) of an axis of {size} do not exist: {to_expr(self.start)} to "
            f"{to_expr(self.end)} where {', '.join([f'{name} is {values[name]}' for name in used])}; bind other values"
        )


def limits(graph: UOp) -> tuple[Limit, ...]:
    """The limits of a graph of tensor form over unbound variables, each once."""
    found: dict[Limit, None] = {}
    for u in graph.toposort():
        if u.op is Ops.RESHAPE and any(isinstance(d, UOp) for d in u.shape + u.src[0].shape):
            have, want = [_expr(prod(d)) for d in (u.src[0].shape, u.shape)]
            if have is not want:  # as many elements: neither has more
                found |= {Limit(_expr(0), want, have): None, Limit(_expr(0), have, want): None}
        if u.op is not Ops.SHRINK or len(u.src) < 2:  # a part in numbers was checked when it was made
            continue
        for (start, length), d in zip(movement_arg(u), u.src[0].shape, strict=True):
            one = Limit(_expr(start), _sum(start, length), _expr(d))
            beyond = _sum(one.end, UOp(Ops.MUL, (one.size, _expr(-1))))
            if one.start.vmin < 0 or _expr(length).vmin < 0 or beyond.vmax > 0:
                found[one] = None
    return tuple(found)


def _expr(n: sint) -> UOp:
    return simplify(UOp.integer(n))


def _sum(a: sint, b: sint) -> UOp:
    return simplify(UOp(Ops.ADD, (_expr(a), _expr(b))))
