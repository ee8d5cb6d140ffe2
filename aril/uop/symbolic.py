"""Simplification: every node brought to its canonical, cheapest form. `simplify(u)` is what other rooms call.

In: a graph of any form. Out: the same values with index arithmetic, conditions, constants and casts simplified. Integer
rules hold for wrapping types, float rules for NaN, infinities and signed zero. On the weak integer
`a - b` is `a + b * -1`; NEG, SUB, CDIV and shifts that a late pass writes on concrete types are not undone.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from aril.config import TRACK_REWRITES
from aril.dtype import wrap
from aril.ops import OpGroup, Ops
from aril.uop import arithmetic, conditions, floats, memory, tracking
from aril.uop.alu import exec_alu
from aril.uop.bounds import operand_type
from aril.uop.composed import of_constant, operand_of
from aril.uop.node import UOp

CHAIN_LIMIT = 1000  # steps of one node: more are a cycle of rules

Step = Callable[[UOp], "UOp | None"]


def simplify(root: UOp) -> UOp:
    """The simplified graph: equal values, same dtype and shape. `simplify(simplify(u))` is `simplify(u)`.

    Memoised in the nodes. RANGE nodes keep their identity, but for those of length 1, which are 0.
    """
    done = root._simplified
    if done is not None:
        return root if done is True else done
    step = _tracked_step if TRACK_REWRITES.value else _step
    becomes: dict[UOp, UOp] = {}  # nodes whose form is that of a node being simplified
    stack = [root]
    while stack:
        u = stack[-1]
        if u._simplified is not None:
            stack.pop()
            continue
        r = becomes.get(u)
        if r is None:
            v = u
            if u.src and u.op is not Ops.RANGE:
                todo = [s for s in u.src if s._simplified is None]
                if todo:
                    todo.reverse()
                    stack.extend(todo)
                    continue
                v = u.with_src(tuple([s if (f := s._simplified) is True else f for s in u.src]))
                x = operand_of(u) if v is not u else None
                if x is not None:
                    x = x if (f := x._simplified) is True else f
                    v = of_constant(u.op, x) if x is not None and x.op is Ops.CONST else v
            if v is not u:
                r = v
            else:
                r = step(u)
                if r is None:
                    u._simplified = True
                    stack.pop()
                    continue
        final = r._simplified
        if final is None:
            if u in becomes or len(becomes) > CHAIN_LIMIT:
                raise RuntimeError(f"simplify does not end: {u.op.name} comes back to itself\n{u!r}")
            becomes[u] = r
            stack.append(r)
            continue
        becomes.pop(u, None)
        u._simplified = r if final is True else final
        stack.pop()
    done = root._simplified
    return root if done is True else done


def simplify_node(u: UOp) -> UOp:
    """`u` as the rules make it from the sources it has: these stay the nodes they are, simplified or not."""
    for _ in range(CHAIN_LIMIT):
        r = _step(u)
        if r is None:
            break
        u = r
    return u


def _step(u: UOp) -> UOp | None:
    """One step for a node over simplified sources: a better node, or None. Dtype and shape stay."""
    f = _STEPS.get(u.op)
    if f is None:
        return None
    r = f(u)
    if r is None or r is u:
        return None
    if r.dtype is not u.dtype:
        if u.op not in OpGroup.ELEMENTWISE:
            return None
        r = r.cast(u.dtype)
    if u.op in OpGroup.ELEMENTWISE and r.shape != u.shape:
        # a vector that turned out to be one scalar; tensors keep the form they have
        if len(u.shape) == 1 and r.shape == () and isinstance(u.shape[0], int) and _in_kernel(u):
            return UOp(Ops.STACK, (r,) * u.shape[0])
        return None
    return r


def _tracked_step(u: UOp) -> UOp | None:
    started = time.perf_counter()
    r = _step(u)
    tracking.count(f"simplify {u.op.name}", r is not None, time.perf_counter() - started)
    return r


def _in_kernel(u: UOp) -> bool:
    """True where the lanes of vector `u` come from scalars or memory of a kernel, so that it is no tensor."""
    while u.op in OpGroup.ELEMENTWISE:
        u = next(s for s in u.src if s.shape)
    if u.op is Ops.SHRINK:
        return u.arg[0] is None and u.src[0].op in OpGroup.STORAGE
    return u.op in (Ops.STACK, Ops.LOAD)


# --- steps common to elementwise operations ---


_OWN_SECOND = (Ops.SHL, Ops.SHR, Ops.POW)  # their second operand may have a type of its own


def _operands(u: UOp) -> UOp | None:
    """Constants take the type of what they meet, and stand second where the operation commutes."""
    t = operand_type(u)
    src = u.src
    if not t.weak:
        values = src[1:] if u.op is Ops.WHERE else src
        strange = any(s.op is Ops.CONST and s.dtype is not t for s in values)
        if strange and u.op not in _OWN_SECOND and any(s.op is not Ops.CONST and s.dtype is t for s in values):
            new = tuple([UOp.const(t, s.arg) if s.op is Ops.CONST and s.dtype is not t else s for s in values])
            return UOp(u.op, (src[0], *new) if u.op is Ops.WHERE else new)
    if u.op in OpGroup.COMMUTATIVE and src[0].op is Ops.CONST and src[1].op is not Ops.CONST:
        return UOp(u.op, (src[1], src[0]))
    return None


def _fold(u: UOp) -> UOp | None:
    """An operation on constants alone."""
    for s in u.src:
        if s.op is not Ops.CONST:
            return None
    t = operand_type(u)
    if u.op in (Ops.CDIV, Ops.CMOD, Ops.FLOORDIV, Ops.FLOORMOD) and not u.src[1].arg:
        return None  # what the target does, it does at run time
    if t.kind == "v":
        return None
    keep = u.op is Ops.WHERE or u.op in (Ops.SHL, Ops.SHR)
    values = tuple([s.arg if keep else wrap(s.arg, t) for s in u.src])
    r = exec_alu(u.op, u.dtype, values)
    return None if r is None else UOp.const(u.dtype, r)


def _decided(u: UOp) -> UOp | None:
    """An integer or bool whose bounds leave one value."""
    low, high = u.bounds
    if low == high and u.op is not Ops.CONST and u.dtype.kind in "iub":
        return UOp.const(u.dtype, low)
    return None


def _hoist_invalid(u: UOp) -> UOp | None:
    """Arithmetic on a gated index is a gated index."""
    for i, s in enumerate(u.src):
        if s.op is Ops.WHERE and s.src[2].op is Ops.Invalid and s.dtype.weak:
            inner = UOp(u.op, (*u.src[:i], s.src[1], *u.src[i + 1 :]))
            return UOp(Ops.WHERE, (s.src[0], inner, UOp.invalid(inner.dtype)))
        if s.op is Ops.Invalid and s.dtype.weak:
            return UOp.invalid(u.dtype)
    return None


# --- the table ---


def _elementwise(own: Step | None, decide: bool = True) -> Step:
    """The common steps, then the operation's own. Sums and products of what is not constant need no look at bounds."""

    def step(u: UOp) -> UOp | None:
        r = _fold(u)
        if r is None:
            r = _operands(u)
        if r is not None:
            return r
        if u.dtype.weak:
            r = _hoist_invalid(u)
            if r is not None:
                return r
        if decide or not u.dtype.weak:
            r = _decided(u)
            if r is not None:
                return r
        return own(u) if own is not None else None

    return step


def _where_step(u: UOp) -> UOp | None:
    r = conditions.where(u)
    return r if r is not None else _operands(u)


_STEPS: dict[Ops, Step] = {
    **{op: _elementwise(None) for op in OpGroup.ALU},
    Ops.ADD: _elementwise(arithmetic.add, decide=False),
    Ops.SUB: _elementwise(arithmetic.sub),
    Ops.NEG: _elementwise(arithmetic.neg),
    Ops.MUL: _elementwise(arithmetic.mul, decide=False),
    Ops.FLOORDIV: _elementwise(arithmetic.floordiv),
    Ops.FLOORMOD: _elementwise(arithmetic.floormod),
    Ops.CDIV: _elementwise(arithmetic.truncating),
    Ops.CMOD: _elementwise(arithmetic.truncating),
    Ops.MAX: _elementwise(arithmetic.maximum),
    Ops.SHL: _elementwise(arithmetic.shift),
    Ops.SHR: _elementwise(arithmetic.shift),
    Ops.AND: _elementwise(conditions.bitwise),
    Ops.OR: _elementwise(conditions.bitwise),
    Ops.XOR: _elementwise(conditions.bitwise),
    Ops.CMPLT: _elementwise(conditions.compare),
    Ops.CMPNE: _elementwise(conditions.compare),
    Ops.CMPEQ: _elementwise(conditions.compare),
    Ops.FDIV: _elementwise(floats.fdiv),
    Ops.TRUNC: _elementwise(floats.trunc),
    Ops.WHERE: _where_step,
    Ops.CAST: floats.cast,
    Ops.BITCAST: floats.bitcast,
    Ops.RANGE: memory.range,
    Ops.REDUCE: memory.closed,
    Ops.GETTUPLE: memory.taken,
    Ops.END: memory.closed,
    Ops.LOAD: memory.load,
    Ops.STORE: memory.store,
    Ops.GROUP: memory.effects,
    Ops.SINK: memory.effects,
    Ops.AFTER: memory.after,
    Ops.INDEX: memory.index_of_stack,
}
