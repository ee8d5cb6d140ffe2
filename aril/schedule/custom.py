"""Hand-written kernels: what a Python function over placeholders built becomes a kernel that code generation takes.

In: a SINK over views of parameters, with lanes and barriers. Out: kernel form (flat indices, explicit loads, loops for
lanes), and which parameters it writes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from aril.codegen.accumulate import fresh_id, renumber, substitute_live
from aril.codegen.affine import linear
from aril.dtype import DType, dtypes, strong
from aril.ops import OpGroup, Ops
from aril.schedule.lower import HAND_WRITTEN, move_index
from aril.uop import AddrSpace, AxisType, Estimates, KernelInfo, UOp
from aril.uop.node import Shape
from aril.uop.pattern import Pat, Rules, V
from aril.uop.render import to_line
from aril.uop.rewrite import rewrite
from aril.uop.symbolic import simplify
from aril.uop.verify import check

_EFFECTS = frozenset({Ops.STORE, Ops.ATOMIC, Ops.CUSTOM, Ops.INS})


class KernelFormError(ValueError):
    """A hand-written kernel that cannot be one: says what was found and what is needed."""


def kernel_form(sink: UOp) -> UOp:
    """The kernel of a hand-written SINK, marked so that it is not lowered again.

    Before: ``SINK(END(STORE(INDEX(RESHAPE(out, (4, 5)), i, j), ADD(INDEX(x, i), 1)), i, j))``.
    After: ``SINK(END(STORE(INDEX(out, i*5 + j), ADD(LOAD(INDEX(x, i)), 1)), i, j))``.
    Errors: KernelFormError; SpecError for what no kernel may hold.
    """
    if not isinstance(sink, UOp) or sink.op is not Ops.SINK:
        found = sink.op if isinstance(sink, UOp) else type(sink).__name__
        raise KernelFormError(f"a custom kernel is a SINK of effects, not {found}: end the function with .sink()")
    flat = flatten_indices(sink)
    for u in flat.toposort():
        if u.op is Ops.INDEX and len(u.src) - 1 < len(u.src[0].shape):
            given = len(u.src) - 1
            raise KernelFormError(
                f"{given} {'index' if given == 1 else 'indices'} for a value of shape {u.src[0].shape}: a kernel works "
                "on single elements, give an index for each axis, or flatten() the value first"
            )
    whole = load_addresses(flat)
    _need_inside(whole)
    out = split_at_barriers(whole)
    info = out.arg if isinstance(out.arg, KernelInfo) else KernelInfo("custom")
    volatile = any(u.op is Ops.PARAM and u.arg.volatile for u in out.toposort())
    if info.opts_to_apply is None and (volatile or not is_parallel(out)):
        info = replace(info, opts_to_apply=())  # as written, in the order it was written
    if info.estimates is None and any(u.op is Ops.END and u.src[-1].op is not Ops.RANGE for u in out.toposort()):
        memory = [u.arg for u in out.toposort() if u.op is Ops.PARAM and not u.is_variable]
        size = sum([a.size * a.dtype.itemsize for a in memory])
        info = replace(info, estimates=Estimates(0, size))  # nobody knows how often such a loop goes round
    out = UOp(Ops.SINK, out.src, replace(info, name=info.name or "custom"), tag=HAND_WRITTEN)
    check(out, "kernel")
    return out


def flatten_indices(sink: UOp) -> UOp:
    """Every INDEX counts elements of flat storage: views on the way are gone."""
    return rewrite(sink, _FLAT, once=True)


def _flat(u: UOp) -> UOp:
    index: tuple[UOp, ...] = u.src[1:]
    x = u.src[0]
    while x.op is Ops.INDEX:  # a row of a row
        index = (*x.src[1:], *index)
        x = x.src[0]
    if x.op in OpGroup.ELEMENTWISE or x.op in (Ops.LOAD, Ops.STACK):
        return u  # a lane of a vector
    if len(index) < len(x.shape):
        return UOp(Ops.INDEX, (x, *index))  # an address once the other axes are indexed too
    if len(index) > len(x.shape) and not (len(index) == 1 and not x.shape):
        raise KernelFormError(f"{len(index)} indices for a value of shape {x.shape}")
    waits: tuple[UOp, ...] = ()
    gate: UOp | None = None
    index = tuple([i if i.dtype.weak else i.cast(dtypes.weakint) for i in index])
    if any(_may_be_invalid(i) for i in index):
        gates = [i.src[0] for i in index if _may_be_invalid(i)]
        gate = gates[0]
        for g in gates[1:]:
            gate = UOp(Ops.AND, (gate, g))
        index = tuple([i.src[1] if _may_be_invalid(i) else i for i in index])
    while x.op not in OpGroup.STORAGE:
        if x.op in OpGroup.MOVEMENT and x.op is not Ops.PAD:
            index, _ = move_index(x, index)
        elif x.op is Ops.AFTER:
            waits = (*waits, *x.src[1:])
        else:
            raise KernelFormError(f"an INDEX addresses storage, possibly seen through movement operations, not {x.op}")
        x = x.src[0]
    at = simplify(index[0]) if index else UOp.const(dtypes.weakint, 0)
    return UOp(Ops.INDEX, (x.after(*waits), at if gate is None else at.valid(gate)))


_FLAT = Rules(
    [(Pat(Ops.BIND, (V("variable"),), any_src=True), lambda variable: variable), (Pat(Ops.INDEX, name="u"), _flat)],
    name="flatten indices",
)


def _may_be_invalid(i: UOp) -> bool:
    return i.op is Ops.WHERE and i.src[2].op is Ops.Invalid


def _is_address(u: UOp) -> bool:
    while u.op is Ops.AFTER:
        u = u.src[0]
    if u.op is not Ops.INDEX:
        return False
    x = u.src[0]
    while x.op is Ops.AFTER:
        x = x.src[0]
    return x.op in OpGroup.STORAGE


def load_addresses(sink: UOp) -> UOp:
    """A value that is an address is what lies there: loads are made where they are left out. A statement of inline
    source (CUSTOM) and AFTER get the address itself."""
    return rewrite(sink, _ADDRESSES_LOADED, once=True)


def _with_loads(u: UOp) -> UOp:
    src = list(u.src)
    kept = len(src) if u.op in (Ops.CUSTOM, Ops.INS, Ops.AFTER, Ops.GROUP, Ops.BARRIER, Ops.SINK) else 0
    if u.op in (Ops.LOAD, Ops.STORE, Ops.ATOMIC, Ops.INDEX, Ops.SHRINK):
        kept = 1
    for k in range(kept, len(src)):
        if _is_address(src[k]):
            src[k] = _load(src[k])
    if u.op is Ops.LOAD and len(src) == 1 and src[0].op is Ops.INDEX:
        return _load(src[0]).replace(arg=u.arg)
    if u.op is Ops.STORE and src[1].dtype is not src[0].dtype and not src[1].dtype.weak:
        raise KernelFormError(f"a store of {src[1].dtype.name} into {src[0].dtype.name} storage: cast the value first")
    return u.with_src(tuple(src))


_ADDRESSES_LOADED = Rules([(Pat(name="u"), _with_loads)], name="load addresses")


def _load(address: UOp) -> UOp:
    if address.op is Ops.INDEX and _may_be_invalid(address.src[1]):
        return address.load(UOp.const(address.dtype, 0))
    return address.load()


def _need_inside(sink: UOp) -> None:
    """Errors: KernelFormError for an access that plainly leaves its storage: without a gate, at a sum of loops of known
    length, whose bounds are reached. Others are for CHECK_OOB."""
    order = sink.toposort()
    for end in order:
        if end.op is Ops.END and end.src[-1].op is not Ops.RANGE:
            return  # such a loop ends when its condition says so
    for u in order:
        if u.op not in (Ops.LOAD, Ops.STORE, Ops.ATOMIC) or u.src[0].op is not Ops.INDEX or len(u.src) > 2:
            continue
        storage, index = u.src[0].src
        while storage.op is Ops.AFTER:
            storage = storage.src[0]
        form = linear(index, {})
        if any(r.op is not Ops.RANGE or r.src[0].op is not Ops.CONST or r.src[0].arg < 1 for r in form.terms):
            continue
        spans = [step * (int(r.src[0].arg) - 1) for r, step in form.terms.items()]
        low, high = (form.const + sum([pick(s, 0) for s in spans]) for pick in (min, max))
        size = storage.arg.size
        if low < 0 or high >= (math.inf if size is None else size):
            what = f"buffer {storage.arg.slot}" if storage.op is Ops.PARAM else f"{storage.arg.addrspace.name} memory"
            raise KernelFormError(
                f"a {u.op.name} at index {to_line(index)} of {what} reaches {low if low < 0 else high}, outside of its "
                f"{size} elements: make the loops shorter, or give the access a gate: out[i.valid(i < n)].store(x)"
            )


def split_at_barriers(sink: UOp) -> UOp:
    """Lanes (LOCAL ranges) are loops; each is split at the barriers it meets: all lanes arrive before one goes on.

    Before: ``END(STORE(out[i], s.after(BARRIER(STORE(s[i], x)))[n - 1 - i]), i)``.
    After: ``END(STORE(out[i], s.after(END(STORE(s[j], x), j))[n - 1 - i]), i)``. A loop around a barrier is outside of
    the lanes.
    """
    order = sink.toposort()
    barriers = [u for u in order if u.op is Ops.BARRIER]
    if not barriers:
        return sink
    around = {r for b in barriers for r in b.ranges if r.arg.kind not in _LANES}
    kept = _kept_across(sink, barriers)
    if kept is not None:
        what = "register memory" if kept.op is Ops.BUFFER else f"a {kept.dtype.name} loaded from memory that changes"
        raise KernelFormError(f"a lane keeps {what} across a barrier: keep it in LOCAL memory, one element a lane")
    return rewrite(sink, _BARRIERS_SPLIT, _Closing(around, fresh_id(sink)), once=True)


_LANES = frozenset({AxisType.LOCAL, AxisType.WARP})


@dataclass
class _Closing:
    """Loops `around` barriers, and the number of the next loop."""

    around: set[UOp]
    next_id: int

    def close(self, effect: UOp) -> UOp:
        """`effect` in loops of its own over the lanes that it lies in."""
        lanes = sorted([r for r in effect.ranges if r.arg.kind in _LANES], key=lambda r: r.arg.id)
        names = renumber(lanes, self.next_id)
        self.next_id += len(lanes)
        return substitute_live(effect, names).end(*names.values())


def _at_barrier(ctx: _Closing, u: UOp, old: UOp) -> UOp:
    _need_closed_reads(old)
    return ctx.close(UOp.group(*u.src) if u.src else UOp(Ops.NOOP))


def _around_barrier(ctx: _Closing, u: UOp, old: UOp) -> UOp | None:
    if ctx.around.isdisjoint(old.src[1:]):
        return None
    loops = [s for s in u.src[1:] if s.op is Ops.RANGE and s.arg.kind not in _LANES]
    lanes = [s for s in u.src[1:] if s.op is Ops.RANGE and s.arg.kind in _LANES]
    rest = [s for s in u.src[1:] if s.op is not Ops.RANGE]
    body = ctx.close(u.src[0].end(*lanes) if lanes else u.src[0])
    if rest and any(r.arg.kind in _LANES for r in rest[0].ranges):
        raise KernelFormError(
            "the condition of a loop with a barrier differs from lane to lane; let all lanes go on together"
        )
    return UOp(Ops.END, (body, *loops, *rest)) if loops else body


_BARRIERS_SPLIT = Rules(
    [(Pat(Ops.BARRIER, name="u"), _at_barrier), (Pat(Ops.END, name="u"), _around_barrier)], name="split at barriers"
)


def _need_closed_reads(barrier: UOp) -> None:
    if any(s.dtype is not dtypes.void for s in barrier.src):
        raise KernelFormError(
            "a BARRIER waits for effects (stores), not for values: store what lanes read before it to LOCAL memory, "
            "one element a lane"
        )


def _kept_across(sink: UOp, barriers: list[UOp]) -> UOp | None:
    """Something of one lane that is used on both sides of a barrier: register memory, or what was loaded from memory
    that the kernel changes (which would be loaded again, when it may have changed)."""
    changed = {_storage(u.src[0]) for u in sink.toposort() if u.op in (Ops.STORE, Ops.ATOMIC)}
    parts = [UOp.sink(*b.src) for b in barriers if any(r.arg.kind in _LANES for r in b.ranges)]
    seen: set[UOp] = set()
    for part in [*parts, sink] if parts else []:
        own = [n for n in part.toposort(lambda n: n.op is not Ops.BARRIER) if _belongs_to_a_lane(n, changed)]
        again = next((n for n in own if n in seen), None)
        if again is not None:
            return again
        seen.update(own)
    return None


def _belongs_to_a_lane(n: UOp, changed: set[UOp | None]) -> bool:
    if n.op is Ops.LOAD:
        return _storage(n.src[0]) in changed and any(r.arg.kind in _LANES for r in n.ranges)
    return n.op is Ops.BUFFER and n.arg.addrspace is AddrSpace.REG


def written_slots(kernel: UOp) -> set[int]:
    """The parameters that a kernel writes: by stores, atomics, or inline statements that get their address."""
    out: set[int] = set()
    for u in kernel.toposort():
        if u.op in _EFFECTS:
            for s in u.src[:1] if u.op in (Ops.STORE, Ops.ATOMIC) else u.src:
                if s.op in (Ops.INDEX, Ops.SHRINK, Ops.PARAM) or s.op is Ops.AFTER:
                    base = _storage(s)
                    if base is not None and base.op is Ops.PARAM and not base.is_variable:
                        out.add(base.arg.slot)
    return out


def _storage(u: UOp) -> UOp | None:
    while u.op in (Ops.INDEX, Ops.SHRINK, Ops.AFTER):
        u = u.src[0]
    return u if u.op in OpGroup.STORAGE else None


def is_parallel(sink: UOp) -> bool:
    """Whether turns of its loops may run in any order: one nest that reads nothing it writes, no element twice."""
    if len(sink.src) != 1 or sink.src[0].op is not Ops.END or sink.src[0].src[0].op is not Ops.STORE:
        return False
    end, store = sink.src[0], sink.src[0].src[0]
    nodes = sink.toposort()
    if any(u.op in (Ops.AFTER, Ops.BARRIER, Ops.BUFFER, Ops.CUSTOM, Ops.INS) for u in nodes) or len(store.src) > 2:
        return False
    target = _storage(store.src[0])
    if any(u.op is Ops.LOAD and _storage(u.src[0]) is target for u in nodes):
        return False
    loops = [r for r in end.src[1:] if r.op is Ops.RANGE]
    form = linear(store.src[0].src[1], {})
    if len(loops) != len(end.src) - 1 or any(r.src[0].op is not Ops.CONST for r in loops):
        return False
    strides: list[tuple[int, int]] = []
    for r in loops:
        step = form.coefficient(r)
        if step is None:
            return False
        strides.append((abs(step), int(r.src[0].arg)))
    reach = 0
    for step, length in sorted(strides):
        if length > 1 and step <= reach:
            return False
        reach += step * (length - 1)
    return True


def renumber_parameters(kernel: UOp, slots: dict[int, int]) -> UOp:
    """The kernel with its parameters at other slots."""
    change = {
        u: UOp(Ops.PARAM, (), u.arg._replace(slot=slots[u.arg.slot], device=None), u.dtype)
        for u in kernel.toposort() if u.op is Ops.PARAM and not u.is_variable
    }  # fmt: skip
    return kernel.substitute(change)


def trace(fxn: Callable[..., UOp], values: Sequence[tuple[Shape, DType]]) -> tuple[UOp, set[int]]:
    """(the kernel that `fxn` makes of placeholders for values of these shapes and dtypes, the slots it writes)."""
    places = [UOp.param_from_shape(i, shape, strong(dtype)) for i, (shape, dtype) in enumerate(values)]
    kernel = kernel_form(fxn(*places))
    known = {p.base.arg for p in places}
    for u in kernel.toposort():
        if u.op is Ops.PARAM and not u.is_variable and u.arg._replace(volatile=False) not in known:
            raise KernelFormError(
                f"the kernel uses parameter {u.arg.slot} ({u.arg}), which is none of its {len(places)} arguments"
            )
    return kernel, written_slots(kernel)
