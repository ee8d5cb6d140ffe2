"""Reductions become loops over accumulators; loops shared by mistake become loops of their own.

`separate` takes and leaves kernel form before the optimisation steps. `accumulate` takes the expanded kernel and leaves
it without REDUCE: accumulators are REG buffers, stored before their loop, updated inside it and loaded after it.
"""

from __future__ import annotations

from collections.abc import Iterable

from aril.codegen.coalesce import lanes_of
from aril.codegen.combines import combine, combine_of, identity, taken
from aril.codegen.expand import broadcast
from aril.dtype import dtypes
from aril.ops import Ops
from aril.uop.args import AddrSpace, AxisType, RangeArg
from aril.uop.node import UOp
from aril.uop.pattern import Pat, Rules
from aril.uop.rewrite import rewrite


def accumulate(sink: UOp) -> UOp:
    """REDUCE nodes as accumulators. Those over the same loops are updated in one loop.

    before: REDUCE(x, k)
    after:  LOAD(AFTER(acc, END(STORE(acc, op(LOAD(acc), x)), k)))   with acc = 0 stored ahead of the loop
    """
    order = [u for u in sink.toposort() if u.op is Ops.REDUCE]
    if not order:
        return sink
    groups: dict[tuple[UOp, ...], list[UOp]] = {}
    for u in order:
        groups.setdefault(_loops(u), []).append(u)
    slot = 1 + max([u.arg.slot for u in sink.toposort() if u.op is Ops.BUFFER], default=-1)
    slots: dict[UOp, int] = {}
    for u in order:
        slots[u] = slot
        slot += len(u.src[0].src) if u.src[0].op is Ops.TUPLE else 1
    done: dict[UOp, UOp] = {}
    # a group is built when its last member's operands are ready: members do not depend on one another (see `separate`)
    for root in [*[g[0] for g in groups.values()], sink]:
        _build(root, groups, slots, done)
    return done[sink]


def _loops(u: UOp) -> tuple[UOp, ...]:
    return tuple(sorted([r for r in u.src if r.op is Ops.RANGE], key=lambda r: (r.arg.kind, r.arg.id)))


def _build(
    root: UOp,
    groups: dict[tuple[UOp, ...], list[UOp]],
    slots: dict[UOp, int],
    done: dict[UOp, UOp],
) -> None:
    stack = [root]
    while stack:
        u = stack[-1]
        if u in done:
            stack.pop()
            continue
        needs = u.src if u.op is not Ops.REDUCE else [s for m in groups[_loops(u)] for s in m.src]
        todo = [s for s in needs if s not in done]
        if todo:
            stack.extend(reversed(todo))
            continue
        stack.pop()
        if u.op is Ops.REDUCE:
            _build_group(groups[_loops(u)], slots, done)
        elif u.op is Ops.GETTUPLE:
            done[u] = taken(u, done[u.src[0]])
        else:
            done[u] = u.with_src(tuple([done[s] for s in u.src]))


def _build_group(members: list[UOp], slots: dict[UOp, int], done: dict[UOp, UOp]) -> None:
    loops = tuple([done[r] for r in _loops(members[0])])
    updates: list[tuple[UOp, ...]] = []
    accumulators: list[list[UOp]] = []
    outer = sorted(frozenset().union(*[m.ranges for m in members]), key=lambda r: (r.arg.kind, r.arg.id))
    for m in members:
        op = m.arg[0]
        operands = [done[x] for x in m.src if x.op is not Ops.RANGE]
        carried = operands[0].src if isinstance(op, str) else tuple(operands[:1])
        types = tuple([x.dtype for x in carried]) if isinstance(op, str) else (m.dtype,)
        starts = combine_of(op).identity(types) if isinstance(op, str) else (identity(op, m.dtype),)
        lanes = max(lanes_of(x) for x in (carried if isinstance(op, str) else operands))
        accs = [UOp.buffer(slots[m] + i, t, lanes, AddrSpace.REG) for i, t in enumerate(types)]
        accumulators.append(accs)
        inside: list[UOp] = []
        for acc, value in zip(accs, starts, strict=True):
            start = broadcast(UOp.const(acc.dtype, value), lanes)
            first = register(acc.after(*[done[r] for r in outer])).store(start)
            inside.append(register(acc.after(first, *loops)))
        totals = tuple([place.load() for place in inside])
        if isinstance(op, str):
            totals = combine_of(op).step(totals, tuple([broadcast(x, lanes) for x in carried]))
        else:
            for x in operands:
                totals = (combine(op, totals[0], x),)
        updates.append(tuple([place.store(total) for place, total in zip(inside, totals, strict=True)]))
    end = UOp.group(*[store for i in _order_of_use(members) for store in updates[i]]).end(*loops)
    for m, accs in zip(members, accumulators, strict=True):
        values = tuple([register(acc.after(end)).load() for acc in accs])
        done[m] = UOp(Ops.TUPLE, values) if isinstance(m.arg[0], str) else values[0]


def _order_of_use(members: list[UOp]) -> list[int]:
    """The members in an order in which few factors of their products are alive at a time.

    A tile of 14 rows by 2 vectors goes row by row: the 2 vectors stay in registers, each row's number is used twice
    and forgotten.
    """
    products = [m.src[0] for m in members]
    if not all(p.op is products[0].op for p in products) or products[0].op not in (Ops.MUL, Ops.WMMA):
        return list(range(len(members)))
    first: list[dict[UOp, int]] = [{}, {}]
    for p in products:
        for side, x in zip(first, p.src[:2], strict=True):
            side.setdefault(x, len(side))
    left, right = first
    more = max((left, right), key=lambda side: (len(side), sum(lanes_of(x) == 1 or x.op is Ops.STACK for x in side)))
    which = 0 if more is left else 1
    return sorted(range(len(members)), key=lambda i: more[products[i].src[which]])


def register(acc: UOp) -> UOp:
    """The address of a whole REG buffer (possibly behind AFTER): an element, or all lanes."""
    lanes = lanes_of(acc)
    zero = UOp.const(dtypes.weakint, 0)
    return acc.index(zero) if lanes == 1 else UOp(Ops.SHRINK, (acc, zero), (None, lanes))


def substitute_live(root: UOp, mapping: dict[UOp, UOp]) -> UOp:
    """`root` with loops replaced where they are live: parts that have closed a loop of the same node keep it."""
    keys = frozenset(mapping)
    return root.substitute(mapping, lambda u: not keys.isdisjoint(u.ranges))


def fresh_id(sink: UOp) -> int:
    """A first component that no loop's id has."""
    return 1 + max([u.arg.id[0] for u in sink.toposort() if u.op is Ops.RANGE], default=-1)


def renumber(loops: Iterable[UOp], start: int) -> dict[UOp, UOp]:
    """Each loop with a new id, counted from `start`; one that ends at a value of another comes after it in `loops`."""
    out: dict[UOp, UOp] = {}
    for i, r in enumerate(loops):
        end = substitute_live(r.src[0], out) if r.src[0].ranges else r.src[0]
        out[r] = r.replace(src=(end, *r.src[1:]), arg=RangeArg((start + i,), r.arg.kind))
    return out


def separate(sink: UOp) -> UOp:
    """Loops of their own for every nest, and for REDUCE nodes over the same RANGE that cannot share one loop.

    REDUCEs share a loop when they have the same loops, lie in the same outer loops and none depends on another.
    """
    # a nest given new loops takes copies of the REDUCEs in it, whose own loops are told apart in the next round
    while True:
        out = _separate_once(sink)
        if out is sink:
            return out
        sink = out


def _separate_once(sink: UOp) -> UOp:
    groups: list[tuple[frozenset[UOp], frozenset[UOp], int]] = []  # own loops, outer loops, members (bits)
    taken: set[UOp] = set()
    below: dict[UOp, int] = {}  # REDUCEs a node depends on, as bits
    renamed: dict[int, dict[UOp, UOp]] = {}
    names: dict[UOp, dict[UOp, UOp]] = {}  # of REDUCEs and ENDs that get loops of their own
    next_id, count = fresh_id(sink), 0
    for u in sink.toposort():
        bits = 0
        for s in u.src:
            bits |= below[s]
        own: frozenset[UOp] = frozenset()
        if u.op in (Ops.REDUCE, Ops.END):  # nests share the launch index
            own = frozenset(s for s in u.src[1:] if s.op is Ops.RANGE and s.arg.kind is not AxisType.GLOBAL)
        if own:
            index = -1
            if u.op is Ops.REDUCE:
                outer = u.ranges
                for i, (loops, around, members) in enumerate(groups):
                    if loops == own and around == outer and not members & bits:
                        index = i
                        break
            if index < 0:
                index = len(groups)
                groups.append((own, u.ranges, 0))
                clash = [s for s in u.src[1:] if s in own and s in taken]
                if clash:
                    renamed[index] = renumber(clash, next_id)
                    next_id += len(clash)
                taken |= own
            loops, around, members = groups[index]
            if u.op is Ops.REDUCE:
                groups[index] = (loops, around, members | 1 << count)
                bits |= 1 << count
                count += 1
            if index in renamed:
                names[u] = renamed[index]
        below[u] = bits
    return rewrite(sink, _SEPARATED, names, once=True) if names else sink


def _over_own_loops(ctx: dict[UOp, dict[UOp, UOp]], u: UOp, old: UOp) -> UOp | None:
    names = ctx.get(old)
    if names is None:
        return None
    return u.with_src((substitute_live(u.src[0], names), *[names.get(s, s) for s in u.src[1:]]))


_SEPARATED = Rules([(Pat((Ops.REDUCE, Ops.END), name="u"), _over_own_loops)], name="separate loops")
