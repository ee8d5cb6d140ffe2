"""Columns that a mask hides from a whole tile of rows are left out: neither computed nor summed.

In: nests that hand rows on through scratch, before their rows are tiled. Out: which loops go over fewer columns, and
from where to where. A causal mask, a window and a start by a variable are all the same: bounds on the column in a
condition, whatever else the condition asks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from aril.codegen.affine import Linear, add, linear
from aril.codegen.combines import identity
from aril.ops import OpGroup, Ops
from aril.uop import UOp
from aril.uop.alu import exec_alu
from aril.uop.symbolic import simplify

LEAST = 16  # columns that are always gone over, so that tiles of them have a full one

Number = float | int | bool


@dataclass(frozen=True)
class Seen:
    """Columns from the greatest of `low` to before the least of `high`, linear in the outer loops; the loops over all
    columns that may go over these alone."""

    low: tuple[Linear, ...]
    high: tuple[Linear, ...]
    loops: tuple[UOp, ...]

    def of_tile(self, row: UOp, first: UOp, rows: UOp) -> tuple[UOp, UOp] | None:
        """(first column, number of columns) for the rows `first` to `first + rows`; None where that is hardly fewer
        than all. At least `LEAST` of them, and never more than there are."""
        end = self.loops[0].src[0]
        last = add(add(first, rows), -1)
        low, high = UOp.integer(0), end
        for form in self.low:
            low = _greater(low, _at(form, row, first if (form.coefficient(row) or 0) > 0 else last))
        for form in self.high:
            high = simplify(high.lesser(_at(form, row, last if (form.coefficient(row) or 0) > 0 else first)))
        least = min(LEAST, max(0, int(end.vmin)))
        high = _greater(high, UOp.integer(least))
        low = _greater(UOp.integer(0), simplify(low.lesser(add(high, -least))))
        count = _greater(simplify(add(high, UOp(Ops.MUL, (low, UOp.integer(-1))))), UOp.integer(least))
        if (count.vmin + count.vmax) * 10 > end.vmax * 19:
            return None
        return low, count


def seen_columns(nests: tuple[UOp, ...], inside: Mapping[UOp, UOp], outer: tuple[UOp, ...]) -> Seen | None:
    """Bounds on the columns that count, from the conditions under which nothing is added to any sum or maximum; None
    where there are none, or some nest needs the other columns too.

    `inside` gives the position in its row of every access to scratch, `outer` the loops that all nests share. The
    maximum of -inf changes nothing, 2**-inf is 0, a sum is no greater by 0 times a finite number: so what a condition
    makes constant is followed to the sums that end it.
    """
    tried: set[UOp] = set()
    for position in inside.values():
        if position.op is not Ops.RANGE or position in tried:
            continue
        loops = _columns(nests, inside, position)
        tried.update(loops or (position,))
        if loops is None:
            continue
        conditions: dict[tuple[bool, UOp], tuple[Linear, dict[UOp, bool]]] = {}
        for nest in nests:
            for atom, seen in _conditions(nest):
                bound = next((b for b in (_bound(atom, seen, r, outer) for r in loops) if b is not None), None)
                if bound is not None:
                    key = (bound[0], simplify(bound[1].expression()))
                    conditions.setdefault(key, (bound[1], {}))[1][atom] = not seen
        kept = [
            (is_low, form)
            for (is_low, _), (form, hidden) in conditions.items()
            if _adds_nothing(nests, inside, loops, hidden)
        ]
        if kept:
            return Seen(
                tuple([f for is_low, f in kept if is_low]), tuple([f for is_low, f in kept if not is_low]), loops
            )
    return None


def _columns(nests: tuple[UOp, ...], inside: Mapping[UOp, UOp], position: UOp) -> tuple[UOp, ...] | None:
    """The loops over the same columns as `position` in all nests: those at which scratch is read that such a loop
    wrote, or the other way round; None where scratch is read in another order, or a result has such columns."""
    loops = {position: None}
    while True:
        scratch = {at.src[0] for at, r in inside.items() if r in loops}
        found = [r for at, r in inside.items() if at.src[0] in scratch]
        if any(r.op is not Ops.RANGE or r.src[0] is not position.src[0] for r in found):
            return None
        if all(r in loops for r in found):
            break
        loops.update(dict.fromkeys(found))
    for nest in nests:
        if any(r in loops and r is not inside.get(nest.src[0].src[0]) for r in nest.src[1:]):
            return None
    return tuple(loops)


def _conditions(nest: UOp) -> Iterator[tuple[UOp, bool]]:
    """Comparisons on which a WHERE turns by themselves, with what they are where something is seen; where both may be
    that, both."""
    found: dict[tuple[UOp, bool], None] = {}
    for u in nest.toposort():
        if u.op is not Ops.WHERE:
            continue
        for joint in (Ops.AND, Ops.OR):
            stack = [(u.src[0], True)]
            while stack:
                c, straight = stack.pop()
                if c.op is (joint if straight else _OPPOSITE[joint]):
                    stack.extend((s, straight) for s in c.src)
                elif c.op is Ops.CMPNE and c.src[1].op is Ops.CONST and c.src[1].arg is True:
                    stack.append((c.src[0], not straight))
                elif c.op is Ops.CMPLT and c.src[0].dtype.kind == c.src[1].dtype.kind == "i":
                    found[c, straight is (joint is Ops.AND)] = None
    yield from found


_OPPOSITE = {Ops.AND: Ops.OR, Ops.OR: Ops.AND}


def _bound(atom: UOp, seen: bool, column: UOp, outer: tuple[UOp, ...]) -> tuple[bool, Linear] | None:
    """(whether it is a lower bound, the bound): columns from or before it are where `atom`, a < b, is `seen`."""
    if column not in atom.ranges:
        return None
    memo: dict[UOp, Linear] = {}
    a, b = (_unbounded(s) for s in atom.src)
    if a is None or b is None:
        return None
    form = linear(UOp(Ops.SUB, (b, a)), memo)
    step = form.terms.get(column, 0)
    rest = Linear({x: c for x, c in form.terms.items() if x is not column}, form.const)
    if step not in (1, -1) or not all(x in outer or x.is_variable for x in rest.terms):
        return None
    # step * column + rest > 0 is `seen`
    if step == -1:
        return not seen, rest
    return seen, Linear({x: -c for x, c in rest.terms.items()}, 1 - rest.const)


def _unbounded(u: UOp) -> UOp | None:
    """An integer expression over loops and variables in index arithmetic; None where it may overflow its type."""
    done: dict[UOp, UOp] = {}
    for n in u.toposort():
        if n.dtype.kind != "i":
            return None
        if n.op in (Ops.RANGE, Ops.CONST) or n.is_variable:
            done[n] = UOp.integer(int(n.arg)) if n.op is Ops.CONST else n
        elif n.op in (Ops.ADD, Ops.SUB, Ops.MUL, Ops.NEG, Ops.CAST):
            src = tuple([done[s] for s in n.src])
            new = src[0] if n.op is Ops.CAST else UOp(n.op, src)
            if not n.dtype.weak and not n.dtype.min <= new.vmin <= new.vmax <= n.dtype.max:
                return None
            done[n] = new
        else:
            return None
    return done[u]


def _adds_nothing(
    nests: tuple[UOp, ...], inside: Mapping[UOp, UOp], loops: tuple[UOp, ...], hidden: dict[UOp, bool]
) -> bool:
    """Whether columns where the comparisons are as `hidden` says change no reduction over columns."""
    constant: dict[UOp, Number | None] = {}
    for nest in nests:
        memo: dict[UOp, Number | None] = {}

        def limit(root: UOp, memo: dict[UOp, Number | None] = memo) -> Number | None:
            for u in root.toposort(lambda n: n not in memo and n.op is not Ops.REDUCE):
                if u.op is Ops.LOAD:
                    at = u.src[0]
                    memo[u] = constant.get(at.src[0]) if inside.get(at) in loops else None
                elif u not in memo:
                    memo[u] = hidden[u] if u in hidden else _limit(u, [memo.get(s) for s in u.src])
            return memo[root]

        for u in nest.toposort():
            if u.op is not Ops.REDUCE or not any(r in loops for r in u.src[1:]):
                continue
            op = u.arg[0]
            if op not in (Ops.ADD, Ops.MAX, Ops.MUL) or limit(u.src[0]) != identity(op, u.dtype):
                return False
        store = nest.src[0]
        if store.src[0] in inside:
            constant[store.src[0].src[0]] = limit(store.src[1])
    return True


_ABSORBED = {Ops.MUL: 0, Ops.FDIV: 0, Ops.AND: False}


def _limit(u: UOp, values: list[Number | None]) -> Number | None:
    """The one value of `u` where its sources have `values`, None those that are any finite number."""
    if u.op is Ops.CONST:
        return u.arg if isinstance(u.arg, bool | int | float) else None
    if u.op not in OpGroup.ALU and u.op is not Ops.CAST:
        return None
    if u.op is Ops.CAST:
        x = values[0]
        return x if x is not None and u.dtype.kind == "f" and (x == 0 or math.isinf(x)) else None
    if u.op is Ops.WHERE:
        c, a, b = values
        if c is not None:
            return a if c else b
        return a if a is not None and a == b else None
    if u.op in _ABSORBED and any(x is not None and x == 0 for x in (values[:1] if u.op is Ops.FDIV else values)):
        return _ABSORBED[u.op]
    if u.op is Ops.OR and True in values:
        return True
    if u.op in (Ops.ADD, Ops.SUB) and u.dtype.kind == "f" and None in values:
        infinite = [(i, x) for i, x in enumerate(values) if x is not None and math.isinf(x)]
        if infinite:
            i, x = infinite[0]
            return -x if u.op is Ops.SUB and i == 1 else x
    known = tuple([x for x in values if x is not None])
    if len(known) < len(values):
        return None
    try:
        out = exec_alu(u.op, u.dtype, known)
    except (ArithmeticError, ValueError):
        return None
    return out if isinstance(out, bool | int | float) and out == out else None


def _at(form: Linear, row: UOp, where: UOp) -> UOp:
    """A bound at one row."""
    rest = {x: c for x, c in form.terms.items() if x is not row}
    scale = form.coefficient(row) or 0
    out = Linear(rest, form.const).expression()
    return simplify(UOp(Ops.ADD, (out, UOp(Ops.MUL, (where, UOp.integer(scale)))))) if scale else simplify(out)


def _greater(a: UOp, b: UOp) -> UOp:
    return simplify(UOp(Ops.MAX, (a, b)))
