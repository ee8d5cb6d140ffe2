"""Whether loop nests of a kernel touch places of their own, so that they may run at the same time.

In come effects of kernel form; out goes yes or no. Nests that store parts of one result (a join) write to one storage,
each within its stretch of an axis.
"""

from __future__ import annotations

from itertools import combinations

from aril.codegen.affine import Linear, linear, split_gate
from aril.codegen.order import nodes_of
from aril.ops import Ops
from aril.uop.node import UOp

_Touched = dict[UOp, list[UOp]]  # the addresses in each GLOBAL storage


def independent(effects: tuple[UOp, ...]) -> bool:
    """Whether no effect writes where another reads or writes.

    apart: ``STORE(p[2*i])`` and ``STORE(p[2*i + 1])``; ``STORE(p[i])`` for i < 8 and ``STORE(p[i + 8])``
    """
    touched = [_touched(e) for e in effects]
    return all(_are_apart(a, b) for a, b in combinations(touched, 2))


def are_apart(one: UOp, other: UOp) -> bool:
    """Whether neither of two effects writes where the other reads or writes."""
    return _are_apart(_touched(one), _touched(other))


def _touched(effect: UOp) -> tuple[_Touched, _Touched]:
    """(addresses read, addresses written)."""
    read: _Touched = {}
    written: _Touched = {}
    for u in nodes_of(effect):
        if u.op in (Ops.LOAD, Ops.STORE, Ops.ATOMIC):
            storage = u.src[0].src[0].base
            if storage.op is Ops.PARAM:
                (read if u.op is Ops.LOAD else written).setdefault(storage, []).append(u.src[0])
    return read, written


def _are_apart(one: tuple[_Touched, _Touched], other: tuple[_Touched, _Touched]) -> bool:
    (read, written), (other_read, other_written) = one, other
    for mine, theirs in ((written, other_written), (written, other_read), (read, other_written)):
        for storage in mine.keys() & theirs.keys():
            forms = [[_form(a) for a in found[storage]] for found in (mine, theirs)]
            if not all(a is not None and b is not None and _never_meet(a, b) for a in forms[0] for b in forms[1]):
                return False
    return True


def _form(address: UOp) -> Linear | None:
    """An address as a sum; None where it is not one element."""
    return linear(split_gate(address.src[1])[0], {}) if address.op is Ops.INDEX and len(address.src) == 2 else None


def _never_meet(a: Linear, b: Linear) -> bool:
    """Whether two sums never have the same value: as their bounds, or those of their remainders by the length of a row,
    say."""
    for row in (0, *sorted({abs(c) for c in (*a.terms.values(), *b.terms.values())} - {0, 1})):
        spans = [_span(f, row) for f in (a, b)]
        if spans[0] is not None and spans[1] is not None:
            (low, high), (other_low, other_high) = spans[0], spans[1]
            if high < other_low or other_high < low:
                return True
    return False


def _span(form: Linear, row: int) -> tuple[int, int] | None:
    """(least, greatest) of a sum, or of its remainder by `row` where that is not 0 and the sum stays within a row."""
    low = high = form.const
    for atom, scale in form.terms.items():
        if row == 0 or scale % row:
            ends = [scale * int(v) for v in atom.bounds]
            low, high = low + min(ends), high + max(ends)
    if row:
        if low // row != high // row:
            return None
        low, high = low % row, high % row
    return low, high


__all__ = ["are_apart", "independent"]
