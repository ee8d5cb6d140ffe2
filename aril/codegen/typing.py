"""Types and gates of the program form: weak types become concrete, Invalid becomes gates, products in sums fuse.

All passes take the kernel after expansion, accumulation and decompositions, and leave kernel form of concrete types.
"""

from __future__ import annotations

from aril.dtype import DType, dtypes, strong
from aril.ops import OpGroup, Ops
from aril.renderer.base import Renderer
from aril.uop.args import AddrSpace
from aril.uop.node import UOp
from aril.uop.order import use_counts
from aril.uop.pattern import Pat, Rules
from aril.uop.rewrite import rewrite

_VALUES = OpGroup.ELEMENTWISE | {Ops.STACK}
_SMALL, _LARGE = -(2**31), 2**31 - 1


def assign_types(sink: UOp) -> UOp:
    """Gates, then concrete types. A kernel whose stores are all at or of Invalid becomes a SINK of nothing."""
    return concretize(gate_accesses(sink))


# --- gates ---


def gate_accesses(sink: UOp) -> UOp:
    """Invalid in addresses and stored values as gates of the accesses.

        before: LOAD(INDEX(p, WHERE(g, i, Invalid)), alt)      STORE(INDEX(q, i), WHERE(g, x, Invalid))
        after:  LOAD(INDEX(p, i), alt, g)                      STORE(INDEX(q, i), x, g)

    A load whose gate never holds is its alternative (0 where it has none); such a store is left out.
    """
    if not any(u.op is Ops.Invalid for u in sink.toposort()):
        return sink
    gates: dict[UOp, UOp] = {}  # of a node with Invalid in it: where it is valid
    return rewrite(sink, _GATES, gates, once=True)


_FALSE, _TRUE = (UOp(Ops.CONST, (), value, dtypes.bool) for value in (False, True))
_NOTHING = UOp(Ops.NOOP, ())


def _all_of(gates: list[UOp]) -> UOp | None:
    """The conjunction of `gates`; None where it always holds."""
    out: UOp | None = None
    for gate in dict.fromkeys(gates):
        if gate.op is Ops.CONST:
            if not gate.arg:
                return gate
        else:
            out = gate if out is None else UOp(Ops.AND, (out, gate))
    return out


def _both(a: UOp, b: UOp) -> UOp:
    gate = _all_of([a, b])
    return _TRUE if gate is None else gate


def _gated_invalid(ctx: dict[UOp, UOp], u: UOp, old: UOp) -> UOp:
    ctx[old] = _FALSE
    return UOp.const(u.dtype, 0)


def _gated_where(ctx: dict[UOp, UOp], u: UOp, old: UOp) -> UOp | None:
    if old.src[1] not in ctx and old.src[2] not in ctx:
        return None
    cond, one, other = u.src
    first, second = ctx.get(old.src[1], _TRUE), ctx.get(old.src[2], _TRUE)
    if second is _FALSE:
        ctx[old] = _both(cond, first)
        return one
    if first is _FALSE:
        ctx[old] = _both(UOp(Ops.XOR, (cond, _TRUE)), second)
        return other
    ctx[old] = UOp(Ops.WHERE, (cond, first, second))
    return UOp(Ops.WHERE, (cond, one, other))


def _gated_load(ctx: dict[UOp, UOp], u: UOp, old: UOp) -> UOp:
    alt = u.src[1] if len(u.src) > 1 else UOp.const(u.dtype, 0)
    gate = _all_of([*[ctx[s] for s in old.src if s in ctx], *u.src[2:]])
    if gate is None:
        return u.with_src((u.src[0],))
    return alt if gate is _FALSE else u.with_src((u.src[0], alt, gate))


def _gated_store(ctx: dict[UOp, UOp], u: UOp, old: UOp) -> UOp:
    gate = _all_of([*[ctx[s] for s in old.src if s in ctx], *u.src[2:]])
    if gate is None:
        return u.with_src((u.src[0], u.src[1]))
    return _NOTHING if gate is _FALSE else u.with_src((u.src[0], u.src[1], gate))


def _without_nothing(u: UOp) -> UOp:
    if u.op is Ops.END:
        return _NOTHING if u.src[0].op is Ops.NOOP else u
    kept = tuple([s for s in u.src if s.op is not Ops.NOOP])
    if u.op is Ops.GROUP and not kept:
        return _NOTHING
    return UOp(u.op, kept, u.arg)


def _gated_value(ctx: dict[UOp, UOp], old: UOp) -> None:
    gate = _all_of([ctx[s] for s in old.src if s in ctx])
    if gate is not None:
        ctx[old] = gate


_GATES = Rules(
    [
        (Pat(Ops.Invalid, name="u"), _gated_invalid),
        (Pat(Ops.WHERE, name="u"), _gated_where),
        (Pat(Ops.LOAD, name="u"), _gated_load),
        (Pat(Ops.STORE, name="u"), _gated_store),
        (Pat((Ops.GROUP, Ops.SINK, Ops.END), name="u"), _without_nothing),
        (Pat(), _gated_value),
    ],
    name="gate accesses",
)


# --- types ---


def concretize(sink: UOp) -> UOp:
    """The kernel without weak types.

    Weak constants take the type of what they meet. Scalar index arithmetic is int64, the width of an address; vectors
    of indices are int32 where their bounds say that it is enough (twice the lanes), else int64.
    """
    done: dict[UOp, UOp] = {}
    for u in sink.toposort():
        if u.op is Ops.CONST or not u.src and not u.dtype.weak:
            done[u] = u  # constants are decided by what uses them
            continue
        src = [done[s] for s in u.src]
        if u.op in _VALUES:
            done[u] = _value(u, src)
        elif u.op is Ops.LOAD:
            rest = [_to(src[1], u.dtype), src[2]] if len(src) > 2 else []
            done[u] = u.with_src((src[0], *rest))
        elif u.op is Ops.STORE or u.op is Ops.ATOMIC:
            done[u] = u.with_src((src[0], _to(src[1], src[0].dtype) if u.src[1].dtype.weak else src[1], *src[2:]))
        elif u.op is Ops.PARAM:
            dtype = _alone(u)
            done[u] = UOp(Ops.PARAM, (), u.arg._replace(dtype=dtype), dtype, u.tag)
        else:
            new = [_to(s, _alone(old)) if s.dtype.weak else s for old, s in zip(u.src, src, strict=True)]
            done[u] = u.with_src(tuple(new))
    return done[sink]


def _alone(u: UOp) -> DType:
    """The concrete type of a weak value that nothing else decides."""
    if u.dtype.kind != "i":
        return strong(u.dtype)
    return dtypes.int32 if u.shape and _fits(u) else dtypes.int64


def _fits(u: UOp) -> bool:
    low, high = u.bounds
    return bool(low >= _SMALL and high <= _LARGE)


def _value(u: UOp, src: list[UOp]) -> UOp:
    op = u.op
    if op is Ops.CAST or op is Ops.BITCAST:
        x = _to(src[0], _alone(u.src[0])) if src[0].dtype.weak else src[0]
        dtype = _alone(u) if u.dtype.weak else u.dtype
        return x.cast(dtype) if op is Ops.CAST else x.bitcast(dtype)
    kind = _common(u, u.src[1:] if op is Ops.WHERE else u.src)
    if op is Ops.WHERE:
        return UOp(op, (src[0], _to(src[1], kind), _to(src[2], kind)), None, None, u.tag)
    if op is Ops.STACK and u.dtype.kind == "b":
        return u.with_src(tuple(src))
    return UOp(op, tuple([_to(s, kind) for s in src]), u.arg, None, u.tag)


def _common(u: UOp, operands: tuple[UOp, ...]) -> DType:
    """The type in which a node is computed."""
    if u.op not in OpGroup.COMPARISON and not u.dtype.weak:
        return u.dtype
    first = operands[0].dtype
    kinds = {first} if len(operands) == 2 and operands[1].dtype is first else {s.dtype for s in operands}
    if len(kinds) == 1 and not first.weak:
        return first
    concrete = {k for k in kinds if not k.weak}
    if concrete:
        return UOp(Ops.ADD, operands[:2]).dtype if len(operands) > 1 else concrete.pop()
    if dtypes.weakfloat in kinds:
        return strong(dtypes.weakfloat)
    if u.op is not Ops.STACK and not any(s.shape for s in operands):
        return dtypes.int64
    fit = all(_fits(s) for s in operands) and (u.dtype.kind != "i" or _fits(u))
    return dtypes.int32 if fit else dtypes.int64


def _to(u: UOp, dtype: DType) -> UOp:
    if u.dtype is dtype:
        return u
    if u.op is Ops.STACK and all(s.op is Ops.CONST for s in u.src):
        return UOp(Ops.STACK, tuple([UOp.const(dtype, s.arg) for s in u.src]))
    return u.cast(dtype)


# --- multiply-add ---


def fuse_mulacc(sink: UOp, renderer: Renderer) -> UOp:
    """Sums that are carried in an accumulator as chains of multiply-adds, where the target has them.

        before: STORE(acc, ADD(ADD(LOAD(acc), MUL(a, b)), MUL(c, d)))
        after:  STORE(acc, MULACC(c, d, MULACC(a, b, LOAD(acc))))

    Only accumulators: what is added elsewhere keeps the rounding of the product.
    """
    order = sink.toposort()
    stores = [u for u in order if u.op is Ops.STORE and _memory(u) is not None and u.src[1].op is Ops.ADD]
    stores = [u for u in stores if renderer.supports(Ops.MULACC, u.src[1].dtype)]
    if not stores:
        return sink
    uses = use_counts(order)
    sums: dict[UOp, list[UOp]] = {}
    for store in stores:
        terms = _accumulation(store, uses)
        if terms is not None:
            sums[store.src[1]] = terms
    if not sums:
        return sink
    done: dict[UOp, UOp] = {}
    return rewrite(sink, _CHAINS, (sums, done), once=True, done=done)


def _chain(ctx: tuple[dict[UOp, list[UOp]], dict[UOp, UOp]], old: UOp) -> UOp | None:
    sums, done = ctx
    terms = sums.get(old)
    if terms is None:
        return None
    total = done[terms[0]]
    for t in [done[t] for t in terms[1:]]:
        if t.op is Ops.WMMA and t.src[2].op is Ops.CONST and t.src[2].arg == 0:
            total = t.with_src((*t.src[:2], total))
        else:
            total = UOp(Ops.MULACC, (*t.src, total)) if t.op is Ops.MUL else UOp(Ops.ADD, (total, t))
    return total


_CHAINS = Rules([(Pat(Ops.ADD, name="u"), _chain)], name="multiply-add")


def _memory(u: UOp) -> UOp | None:
    """The register buffer or panel that a STORE or LOAD goes to."""
    address = u.src[0]
    memory = address.src[0].base if address.op in (Ops.INDEX, Ops.SHRINK) else address
    return memory if memory.op is Ops.BUFFER and memory.arg.addrspace in (AddrSpace.REG, AddrSpace.LOCAL) else None


def _accumulation(store: UOp, uses: dict[UOp, int]) -> list[UOp] | None:
    """What the accumulator held, and then the terms of the sum that `store` keeps in it, in the order in which they are
    added; None where none fuses."""
    memory = _memory(store)
    terms: list[UOp] = []
    stack = [store.src[1]]
    while stack:
        u = stack.pop()
        if u.op is Ops.ADD and u.dtype is store.src[1].dtype and (u is store.src[1] or uses[u] == 1):
            stack.extend((u.src[1], u.src[0]))
        else:
            terms.append(u)
    start = next((t for t in terms if t.op is Ops.LOAD and _memory(t) is memory), None)
    if start is None or not any(t.op in _FUSED for t in terms):
        return None
    terms.remove(start)
    return [start, *sorted(terms, key=lambda t: t.op in _FUSED)]  # plain terms first, each kind in its order


_FUSED = frozenset({Ops.MUL, Ops.WMMA})
