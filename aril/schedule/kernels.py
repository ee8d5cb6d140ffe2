"""From the decision what is stored to kernels in order: bodies over numbered parameters, merged where that saves
traffic or launches.

In: the prepared SINK. Out: a `Schedule`, whose items name parameters by number: the graph's own first, then
temporaries.
"""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass
from functools import partial
from typing import Any

from aril.dtype import DType, strong
from aril.ops import OpGroup, Ops
from aril.schedule.chain import chain
from aril.schedule.fuse import (
    OP_WEIGHT,
    Fusion,
    choose_stored,
    concrete,
    forget_nodes,
    is_contraction,
    is_leaf,
    nbytes,
    numel,
    walks,
)
from aril.schedule.joins import split_joins
from aril.schedule.layout import placed
from aril.schedule.limits import Limit
from aril.schedule.lower import lower
from aril.schedule.merge import Draft, bundle, merge
from aril.schedule.numbers import read_on, stored_apart, without_tags
from aril.schedule.prepare import is_flat_view
from aril.schedule.versions import keep_every_state, keep_states, keep_values
from aril.uop import AddrSpace, KernelInfo, ParamArg, UOp
from aril.uop.call import targets
from aril.uop.exchange import Exchange
from aril.uop.node import view_flat
from aril.uop.order import toposort
from aril.uop.pattern import Pat, Rules
from aril.uop.rewrite import rewrite

BODY_WEIGHT = 500.0  # operations in one value's body
LARGE_RESULT = 8 << 20  # bytes from which a result may be larger than all caches: its kernel knows how it is aligned
ALIGN = 64  # what allocators give storage of that size
ATTEMPTS = 16  # rounds of deciding what is stored before every state gets a copy


@dataclass(frozen=True)
class Item:
    """One step of a schedule. `kernel` is a tensor-form body (see `lower`), or None for a transfer args[1] -> args[0]:
    a copy, or what `exchange` says between processes.

    `args` are parameter numbers, outputs first; `frees` are the temporaries nothing reads after this step.
    """

    kernel: UOp | None
    args: tuple[int, ...]
    outputs: int
    device: str
    origin: str | None = None
    frees: tuple[int, ...] = ()
    exchange: Exchange | None = None


@dataclass(frozen=True)
class Temp:
    """Storage that a schedule makes: an intermediate, or a result."""

    size: int
    dtype: DType
    device: str
    is_result: bool


@dataclass(frozen=True)
class Schedule:
    """Steps in order; `results[i]` is root i as a view of a parameter; `predicted_bytes` is what the cost rule
    expects to be moved; `limits` are what values of variables must satisfy.
    """

    items: tuple[Item, ...]
    params: int
    temps: tuple[Temp, ...]
    results: tuple[UOp, ...]
    predicted_bytes: int = 0
    limits: tuple[Limit, ...] = ()


def protect_targets(sink: UOp, fusion: Fusion) -> UOp:
    """What reads the target of a store at other places than it is stored to is computed to memory first."""
    change: dict[UOp, set[UOp]] = {}  # readers -> those of their sources that are stored first
    for root in fusion.stored:
        if root.op is Ops.STORE:
            target, value = root.src[:2]
            if walks(root) and value not in fusion.stored:  # goes to any place of the target, as its values come
                early = {s for s in value.src[1:] if _reads_elsewhere(UOp(Ops.NOOP, (s,)), target, fusion)}
                if early:
                    change.setdefault(value, set()).update(early)
                value = value.src[0]
            if _reads_elsewhere(value, target, fusion):
                change.setdefault(root, set()).add(root.src[1])
    if not change:
        return sink
    return rewrite(sink, _TARGETS_PROTECTED, change, once=True)


def _with_early_sources(ctx: dict[UOp, set[UOp]], u: UOp, old: UOp) -> UOp | None:
    early = ctx.get(old)
    if early is None:
        return None
    src = [UOp(Ops.CONTIGUOUS, (new,)) if s in early else new for s, new in zip(old.src, u.src, strict=True)]
    return u.with_src(tuple(src))


_TARGETS_PROTECTED = Rules([(Pat(name="u"), _with_early_sources)], name="protect targets")


def _region(root: UOp, fusion: Fusion) -> dict[UOp, None]:
    """What one kernel computes and reads: nodes down to stored values, storage and AFTER, sources first."""
    return root.toposort(lambda n: n is root or not (n in fusion.stored or n.op is Ops.AFTER))


def _reads_elsewhere(value: UOp, target: UOp, fusion: Fusion) -> bool:
    """Whether the kernel that computes `value` reads the target's storage in any other way than element by element."""
    base = target.base
    stack = [(value, True)]
    seen = set()
    while stack:
        at = stack.pop()
        if at in seen:
            continue
        seen.add(at)
        n, in_turn = at
        if n in fusion.stored or in_turn and n is target:
            continue
        if n.op is Ops.AFTER or n.op is Ops.PARAM:
            if n.base is base:
                return True
            continue
        in_turn = in_turn and (n.op in OpGroup.ELEMENTWISE or n.op is Ops.CONTIGUOUS)
        stack.extend([(s, in_turn) for s in n.src])
    return False


def cut_long_bodies(sink: UOp, fusion: Fusion) -> UOp:
    """Values are stored on the way where one kernel would have more operations than a compiler takes in reasonable
    time.
    """
    order = sink.toposort()
    weight: dict[UOp, float] = {}  # of what is computed for the node in its kernel; too high where parts are shared
    cut: set[UOp] = set()
    for u in order:
        if u in fusion.stored or is_leaf(u):
            weight[u] = 1.0 if u.op is not Ops.CONST else 0.0
            continue
        own = OP_WEIGHT.get(u.op, 1.0) if u.op in OpGroup.ALU or u.op is Ops.REDUCE else 0.0
        total = own + sum([weight[s] for s in dict.fromkeys(u.src)])
        if total > BODY_WEIGHT:
            total = _weigh(u, fusion.stored, cut)
            if total > BODY_WEIGHT and u.op in OpGroup.ELEMENTWISE and u.dtype.kind != "v" and not u.dtype.weak:
                cut.add(u)
                total = 1.0
        weight[u] = total
    return keep_values(sink, order, cut) if cut else sink


def _weigh(u: UOp, stored: Container[UOp], cut: set[UOp]) -> float:
    region = u.toposort(lambda n: n is u or not (n in stored or n in cut or is_leaf(n)))
    return sum([OP_WEIGHT.get(n.op, 1.0) for n in region if n.op in OpGroup.ALU or n.op is Ops.REDUCE])


def build(sink: UOp, params: int) -> Schedule:
    """The schedule of a prepared graph over `params` parameters."""
    fusion = choose_stored(sink)
    whole = cut_long_bodies(sink, fusion)
    if whole is not sink:
        sink = whole
        fusion = choose_stored(sink)
    whole = stored_apart(sink, fusion.stored)
    if whole is not sink:
        sink = whole
        fusion = choose_stored(sink)
    for attempt in range(ATTEMPTS):
        safe = keep_states(sink, fusion.stored)
        if safe is not sink and attempt == ATTEMPTS - 2:
            safe = keep_every_state(sink)
        if safe is sink:
            safe = protect_targets(sink, fusion)
        if safe is sink:
            break
        sink = safe
        fusion = choose_stored(sink)
    order = sink.toposort()
    rep, drafts, temps = _draft(order, fusion, params, sink)
    _link(drafts, fusion)
    merged = merge(list(drafts.values()), drafts, fusion)
    kernels = bundle(split_joins(chain(merged, sink.src, partial(_lowers, {}))))
    out = _finish(kernels, sink, rep, params, temps)
    forget_nodes()
    return out


def _draft(
    order: dict[UOp, None], fusion: Fusion, params: int, sink: UOp
) -> tuple[dict[UOp, UOp], dict[UOp, Draft], list[Temp]]:
    """(what a node is in the bodies of the kernels that read it, a kernel for each stored value, the temporaries)."""
    rep: dict[UOp, UOp] = {}
    drafts: dict[UOp, Draft] = {}
    temps: list[Temp] = []
    roots = set(sink.src)
    alone = len({s.device for s in roots}) == 1  # parts of a sharded result lie alike
    hints = dict(zip(sink.src, sink.arg or ("",) * len(sink.src), strict=True))
    fallback = next((h for h in hints.values() if h), "")
    numbers = any(u.device is None for u in fusion.stored if u.op is not Ops.STORE)
    places = read_on(list(order)) if numbers else {}
    for u in order:
        if u.op is Ops.SINK:
            continue
        src = tuple([rep[s] for s in u.src])
        if u.op is Ops.AFTER:
            rep[u] = src[0]
        elif u not in fusion.stored:
            rep[u] = u.with_src(src)
        elif u.op is Ops.CALL:
            rep[u] = u
            drafts[u] = _call_draft(u, src, str(u.device or fallback))
        elif u.op is Ops.STORE:
            rep[u] = u
            _add_draft(drafts, u, _place(u.src[0], rep), src[1], u.src[0].shape, u.src[0].device, fusion)
        else:
            device = u.device or hints.get(u) or places.get(u) or fallback
            dtype = strong(u.dtype)
            size = numel(u)
            slot = params + len(temps)
            temps.append(Temp(size, dtype, device or "", u in roots))  # type: ignore[arg-type]
            align = ALIGN if size * dtype.itemsize >= LARGE_RESULT else 1
            flat = UOp(Ops.PARAM, (), ParamArg(slot, dtype, size, device=device, align=align), dtype)
            rep[u] = placed(flat, u, fusion, u in roots) if u not in roots or alone else view_flat(flat, u.shape)
            value = src[0] if u.op is Ops.CONTIGUOUS or u.op in OpGroup.TRANSFER else u.with_src(src)
            value = value if value.dtype is dtype else value.cast(dtype)
            _add_draft(drafts, u, rep[u], value, u.shape, device, fusion)
    return rep, drafts, temps


def _call_draft(u: UOp, src: tuple[UOp, ...], device: str) -> Draft:
    """The kernel of a CALL, as it was written."""
    passed = [(s, s) for s in src if not s.is_variable]
    assigned = {t.base for t in src[: u.arg.written]}
    return Draft(u, [u], [passed], (), device, False, False, alone=True, assigned=assigned)


def _add_draft(
    drafts: dict[UOp, Draft], u: UOp, target: UOp, value: UOp, shape: tuple[Any, ...], device: Any, fusion: Fusion
) -> None:
    """The kernel that stores `value` in `target` for the stored node `u`; none for a value without elements."""
    if math.prod(concrete(d) for d in shape) == 0:
        return
    region = _region(u, fusion) if u.op not in OpGroup.TRANSFER else {}
    reductions = [n for n in region if n.op is Ops.REDUCE and (n is u or n not in fusion.stored)]
    key = None
    if len(reductions) == 1 and not is_contraction(reductions[0]):
        key = (reductions[0].src[0].shape, reductions[0].arg[1])
    drafts[u] = Draft(
        u,
        [u],
        [[(target, value)]],
        shape,
        str(device or ""),
        bool(reductions),
        any(is_contraction(r) for r in reductions),
        key,
        alone=u.op in OpGroup.TRANSFER or walks(u),
        weight=sum([OP_WEIGHT.get(n.op, 1.0) for n in region if n.op in OpGroup.ALU]),
        assigned={target.base} if u.op is Ops.STORE else set(),
    )


def _place(view: UOp, rep: dict[UOp, UOp]) -> UOp:
    """The target of a store, also where a copy of the same view is stored for others to read."""
    if view.op not in OpGroup.MOVEMENT:
        return rep[view]
    return view.with_src((_place(view.src[0], rep), *[rep[s] for s in view.src[1:]]))


def _link(drafts: dict[UOp, Draft], fusion: Fusion) -> None:
    """Dependencies: producers before readers; readers of a state of a storage before the store that ends it."""
    readers: dict[UOp, list[Draft]] = {}
    writers: dict[UOp, Draft] = {}
    for u, d in drafts.items():
        inside = (
            _region(u, fusion)
            if u.op not in OpGroup.TRANSFER and u.op is not Ops.CALL
            else toposort(u.src, lambda n: n not in fusion.stored and n.op is not Ops.AFTER)
        )
        own = set(_target_chain(u.src[0])) if u.op is Ops.STORE else set()
        for n in inside:
            if n is u:
                continue
            if n in drafts:
                d.deps.add(drafts[n])
                d.reads.add(n)
            elif n.op is Ops.AFTER:
                _after_deps(n, drafts, d)
                if n not in own or any(n in s.src for s in inside if s is not u and s not in own):
                    readers.setdefault(n, []).append(d)
                d.reads.add(n)
            elif n.op is Ops.PARAM and not n.is_variable:
                readers.setdefault(n, []).append(d)
                d.reads.add(n)
    for u, d in drafts.items():
        for target in targets(u) if u.op is Ops.STORE or u.op is Ops.CALL else ():
            state = next(n for n in _target_chain(target) if n.op is Ops.AFTER or n.op in OpGroup.STORAGE)
            d.deps.update(r for r in readers.get(state, ()) if r is not d)
            previous = writers.get(target.base)
            if previous is not None and previous is not d:
                d.deps.add(previous)
            writers[target.base] = d
    _order_collectives(drafts)


def _order_collectives(drafts: dict[UOp, Draft]) -> None:
    """Collectives follow each other as they were written, in every process alike: none waits for another's."""
    waiting = sorted([u for u in drafts if u.op is Ops.COLLECTIVE], key=lambda u: u.arg.serial)
    if len(waiting) < 2:
        return
    number = {u: 1 << i for i, u in enumerate(waiting)}
    below: dict[UOp, int] = {}
    for u in UOp.sink(*waiting).toposort():
        mask = 0
        for s in u.src:
            mask |= below[s] | number.get(s, 0)
        below[u] = mask
    done, last = 0, None
    while waiting:  # a body called twice has the same serial both times, so it need not be the first that can run
        u = next(w for w in waiting if not below[w] & ~done)
        if last is not None:
            drafts[u].deps.add(drafts[last])
        waiting.remove(u)
        done, last = done | number[u], u


def _target_chain(u: UOp) -> list[UOp]:
    out = [u]
    while out[-1].op in OpGroup.MOVEMENT or out[-1].op is Ops.AFTER:
        out.append(out[-1].src[0])
    return out


def _after_deps(n: UOp, drafts: dict[UOp, Draft], d: Draft) -> None:
    stack = [n]
    while stack:
        a = stack.pop()
        if a.op is Ops.AFTER:
            stack.extend(a.src)
        elif a.op in OpGroup.MOVEMENT:
            stack.append(a.src[0])
        elif a in drafts and (a.op is Ops.STORE or a.op is Ops.CALL) and drafts[a] is not d:
            d.deps.add(drafts[a])


def _finish(drafts: list[Draft], sink: UOp, rep: dict[UOp, UOp], params: int, temps: list[Temp]) -> Schedule:
    results = tuple([rep[s] if s.op is not Ops.STORE else rep[s.src[0]] for s in sink.src])
    kept = {n.arg.slot for r in results for n in r.toposort() if n.op is Ops.PARAM}
    _drop_unread(drafts, params, kept)
    temps = [Temp(t.size, t.dtype, t.device, params + i in kept) for i, t in enumerate(temps)]
    raw: list[tuple[UOp | None, tuple[int, ...], int, str, str | None, Exchange | None]] = []
    predicted = 0
    for d in drafts:
        if d.root.op is Ops.CALL:
            arg = d.root.arg
            slots = tuple([t.base.arg.slot for t, _ in d.stores[0]])
            raw.append((arg.kernel, slots, arg.written, d.device, d.root.origin, None))
            predicted += sum([nbytes(t) for t, _ in d.stores[0]])
            continue
        if d.root.op in OpGroup.TRANSFER:
            target, value = d.stores[0][0]
            what = d.root.arg if d.root.op is Ops.COLLECTIVE else None
            raw.append((None, (target.base.arg.slot, value.base.arg.slot), 1, d.device, d.root.origin, what))
            continue
        kernel, args, outputs, size = _body(d)
        predicted += size
        raw.append((kernel, args, outputs, d.device, d.root.origin, None))
    last: dict[int, int] = {}
    for i, (_, args, *_rest) in enumerate(raw):
        for a in args:
            last[a] = i
    frees: dict[int, list[int]] = {}
    for slot, i in last.items():
        if slot >= params and slot not in kept:
            frees.setdefault(i, []).append(slot)
    items = tuple([
        Item(k, a, n, dev, origin, tuple(frees.get(i, ())), what) for i, (k, a, n, dev, origin, what) in enumerate(raw)
    ])  # fmt: skip
    return Schedule(items, params, tuple(temps), results, predicted)


def _drop_unread(drafts: list[Draft], params: int, kept: set[int]) -> None:
    """Temporaries that only their own kernel read, which has the value at hand, are not written."""
    values = [v for d in drafts for stores in d.stores for _, v in stores]
    read = {n.arg.slot for n in toposort(values) if n.op is Ops.PARAM and not n.is_variable} | kept
    for d in drafts:
        for k, stores in enumerate(d.stores):
            d.stores[k] = [(t, v) for t, v in stores if t.base.arg.slot < params or t.base.arg.slot in read]
        d.stores = [stores for stores in d.stores if stores]
    drafts[:] = [d for d in drafts if d.stores]


def _body(d: Draft) -> tuple[UOp, tuple[int, ...], int, int]:
    """(the kernel's body with parameters numbered from 0, the global numbers, how many are written, bytes touched)."""
    nests = [UOp.group(*[UOp(Ops.STORE, (t, v)) for t, v in stores]) for stores in d.stores]
    sink = UOp.sink(*nests)
    scratch = {p: UOp.buffer(i, p.dtype, p.arg.size, AddrSpace.LOCAL) for i, p in enumerate(d.scratch)}
    written = dict.fromkeys(t.base for stores in d.stores for t, _ in stores if t.base not in scratch)
    used = dict(written)
    for n in sink.toposort():
        if n.op is Ops.PARAM and not n.is_variable and n not in scratch:
            used[n] = None
    local = {
        p: UOp(Ops.PARAM, (), p.arg._replace(slot=i, device=None, align=p.arg.align if p in written else 1), p.dtype)
        for i, p in enumerate(used)
    }
    body = without_tags(sink.substitute({**local, **scratch}))
    size = sum(nbytes(t) for stores in d.stores for t, _ in stores if t.base not in scratch) + _read_bytes(
        UOp.sink(*[v.substitute(scratch) for stores in d.stores for _, v in stores])
    )
    return body.replace(arg=KernelInfo(name=_name(d))), tuple([p.arg.slot for p in used]), len(written), size


def _lowers(known: dict[UOp, bool], d: Draft) -> bool:
    """Whether a draft with scratch has a kernel form. `known`: what was found of other bodies; layers have the same."""
    body = _body(d)[0]
    if body not in known:
        try:
            lower(body)
            known[body] = True
        except NotImplementedError:
            known[body] = False
    return known[body]


def _read_bytes(values: UOp) -> int:
    """Bytes of storage that computing `values` touches: of each parameter the largest view that is read."""
    views: dict[UOp, tuple[UOp, int]] = {}
    touched: dict[UOp, int] = {}
    for n in values.toposort():
        if n.op is Ops.PARAM and not n.is_variable:
            views[n] = (n, numel(n))
        elif n.op in OpGroup.MOVEMENT and n.src[0] in views:
            base, count = views[n.src[0]]
            views[n] = (base, min(count, numel(n)) if n.op is Ops.SHRINK else count)
        else:
            for base, count in [views[s] for s in n.src if s in views]:
                touched[base] = max(touched.get(base, 0), count)
    return sum(count * p.dtype.itemsize for p, count in touched.items())


def _name(d: Draft) -> str:
    kind = "s" if walks(d.root) else "c" if d.has_contraction else "r" if d.has_reduce else "e"
    dims = "x".join(str(concrete(x)) for x in d.shape if concrete(x) != 1) or "1"
    return f"{kind}_{dims}" + (f"_n{len(d.stores)}" if len(d.stores) > 1 else "")


__all__ = ["Item", "Schedule", "Temp", "build", "is_flat_view"]
