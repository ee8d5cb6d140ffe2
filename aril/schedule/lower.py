"""Lowering by demand: one kernel's tensor-form body in, kernel form (loops, indices, loads, stores) out.

`value(u, index, gate)` is the element of `u` at `index`, memoised on all three. Movement nodes change the index,
elementwise nodes pass it on, reductions add loops, storage becomes a load. See
`docs/decisions/0002-lowering-by-demand.md`.
"""

from __future__ import annotations

from typing import Any

from aril.config import CHECK_OOB
from aril.dtype import dtypes
from aril.ops import OpGroup, Ops
from aril.schedule.pairs import pair_positions
from aril.schedule.picks import pick_by_position
from aril.uop import AxisType, KernelInfo, UOp, sint
from aril.uop.composed import of_constant, operand_of
from aril.uop.shape import movement_arg
from aril.uop.symbolic import simplify

Index = tuple[UOp, ...]
Request = tuple[UOp, Index, UOp | None]

HAND_WRITTEN = "kernel"  # tag of a SINK that is in kernel form already
ZERO = UOp.const(dtypes.weakint, 0)
_THROUGH = frozenset({Ops.CONTIGUOUS, Ops.CONTIGUOUS_BACKWARD, Ops.DETACH, Ops.AFTER, Ops.NOOP})


def as_index(position: UOp) -> UOp:
    """A position that the kernel computes itself as an index expression."""
    return simplify(position.cast(dtypes.weakint))


def index_add(a: UOp, b: sint) -> UOp:
    """a + b, simplified."""
    return a if isinstance(b, int) and b == 0 else simplify(UOp(Ops.ADD, (a, UOp.integer(b))))


def index_mul(a: UOp, b: sint) -> UOp:
    """a * b, simplified."""
    return a if isinstance(b, int) and b == 1 else simplify(UOp(Ops.MUL, (a, UOp.integer(b))))


def both(a: UOp | None, b: UOp | None) -> UOp | None:
    """The conjunction of two gates, None standing for true."""
    if a is None or b is None or a is b:
        return a if b is None else b
    out = simplify(UOp(Ops.AND, (a, b)))
    return None if out.op is Ops.CONST and out.arg else out


def in_bounds(i: UOp, size: sint) -> UOp | None:
    """The gate `0 <= i < size`, or None where the bounds of `i` prove it."""
    low = None if i.vmin >= 0 else UOp(Ops.CMPLT, (UOp.const(dtypes.weakint, -1), i))
    high = None if isinstance(size, int) and i.vmax < size else UOp(Ops.CMPLT, (i, UOp.integer(size)))
    out = both(None if low is None else simplify(low), None if high is None else simplify(high))
    return None if out is not None and out.op is Ops.CONST and out.arg else out


def _within(i: UOp, size: sint) -> UOp:
    """The index nearest to `i` of an axis of `size`: what a proof of accesses takes a position for."""
    if in_bounds(i, size) is None:
        return i
    last = index_add(UOp.integer(size), -1)
    i = i.lesser(last)
    return simplify(UOp(Ops.MAX, (i, ZERO)))


def reshape_index(index: Index, out_shape: tuple[sint, ...], in_shape: tuple[sint, ...]) -> Index:
    """Indices into `in_shape` of the element that lies at `index` in `out_shape`.

    Axes are matched from the left in the smallest blocks of equal size, so that division appears only inside a block.
    """
    out: list[UOp] = []
    i = j = 0
    while i < len(out_shape) or j < len(in_shape):
        block_out: list[int] = []
        block_in: list[int] = []
        size_out: sint = 1
        size_in: sint = 1
        while True:
            if i < len(out_shape) and (not block_out or _less(size_out, size_in)):
                size_out = _times(size_out, out_shape[i])
                block_out.append(i)
                i += 1
            elif j < len(in_shape) and (not block_in or _less(size_in, size_out)):
                size_in = _times(size_in, in_shape[j])
                block_in.append(j)
                j += 1
            elif _same(size_out, size_in) or (i == len(out_shape) and j == len(in_shape)):
                break
            elif i < len(out_shape):
                size_out = _times(size_out, out_shape[i])
                block_out.append(i)
                i += 1
            else:
                size_in = _times(size_in, in_shape[j])
                block_in.append(j)
                j += 1
        block_out = [k for k in block_out if not _same(out_shape[k], 1)]
        wide = [k for k in block_in if not _same(in_shape[k], 1)]
        if len(wide) == 1 and len(block_out) == 1:
            parts = {wide[0]: index[block_out[0]]}
        else:
            flat = ZERO
            for k in block_out:
                flat = simplify(UOp(Ops.ADD, (index_mul(flat, out_shape[k]), index[k])))
            parts = {}
            for n, k in enumerate(reversed(wide)):
                if n == len(wide) - 1:
                    parts[k] = flat
                else:
                    size = UOp.integer(in_shape[k])
                    parts[k] = simplify(UOp(Ops.FLOORMOD, (flat, size)))
                    flat = simplify(UOp(Ops.FLOORDIV, (flat, size)))
        out.extend(parts.get(k, ZERO) for k in block_in)
    return tuple(out)


def _times(a: sint, b: sint) -> sint:
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    out = simplify(UOp(Ops.MUL, (UOp.integer(a), UOp.integer(b))))
    return int(out.arg) if out.op is Ops.CONST else out


def _same(a: sint, b: sint) -> bool:
    return a is b or (isinstance(a, int) and isinstance(b, int) and a == b)


def _less(a: sint, b: sint) -> bool:
    if isinstance(a, int) and isinstance(b, int):
        return a < b
    return not _same(a, b) and UOp.integer(a).vmax < UOp.integer(b).vmax


def move_index(u: UOp, index: Index) -> tuple[Index, UOp | None]:
    """(indices into the source of movement node `u`, gate) for the element at `index`; a gate only from PAD."""
    arg = movement_arg(u)
    shape = u.src[0].shape
    if u.op is Ops.RESHAPE:
        return reshape_index(index, arg, shape), None
    if u.op is Ops.EXPAND:
        return tuple(
            [ZERO if _same(s, 1) and not _same(d, 1) else i for i, s, d in zip(index, shape, arg, strict=True)]
        ), None
    if u.op is Ops.PERMUTE:
        out = [ZERO] * len(arg)
        for k, axis in enumerate(arg):
            out[axis] = index[k]
        return tuple(out), None
    if u.op is Ops.SHRINK:
        return tuple([index_add(i, start) for i, (start, _) in zip(index, arg, strict=True)]), None
    if u.op is Ops.FLIP:
        flipped = list(index)
        for axis in arg:
            last = index_add(UOp.integer(shape[axis]), -1)
            flipped[axis] = simplify(UOp(Ops.ADD, (last, UOp(Ops.MUL, (index[axis], UOp.integer(-1))))))
        return tuple(flipped), None
    if u.op is Ops.SHEAR:
        axis, by, step, offset, _ = arg
        moved = list(index)
        moved[axis] = index_add(simplify(UOp(Ops.ADD, (index[axis], index_mul(index[by], step)))), offset)
        return tuple(moved), None
    if u.op is Ops.PAD:
        gate: UOp | None = None
        moved = []
        for i, (before, after), size in zip(index, arg, shape, strict=True):
            if isinstance(before, int) and isinstance(after, int) and before == after == 0:
                moved.append(i)
                continue
            i = simplify(UOp(Ops.ADD, (i, UOp(Ops.MUL, (UOp.integer(before), UOp.integer(-1))))))
            gate = both(gate, in_bounds(i, size))
            moved.append(i)
        return tuple(moved), gate
    raise AssertionError(f"{u.op} is no movement node")


class Lowering:
    """The state of lowering one kernel: what has been asked for, and the loops that reductions added."""

    def __init__(self) -> None:
        self.done: dict[Request, UOp] = {}
        self.loops: dict[Any, tuple[UOp, ...]] = {}
        self.levels: dict[UOp, int] = {}
        self.next_id = 0

    def new_range(self, size: sint, kind: AxisType) -> UOp:
        self.next_id += 1
        return UOp.range(size, self.next_id - 1, kind)

    def level(self, u: UOp) -> int:
        """How many reductions lie one inside another below (and including) `u`."""
        levels = self.levels
        if u not in levels:
            for n in u.toposort(lambda n: n not in levels):
                if n not in levels:
                    levels[n] = max([levels[s] for s in n.src], default=0) + (n.op is Ops.REDUCE)
        return levels[u]

    def value(self, u: UOp, index: Index, gate: UOp | None = None) -> UOp:
        """The element of `u` at `index` as a kernel-form expression; loads happen only where `gate` holds."""
        root: Request = (u, index, gate)
        stack = [root]
        plans: dict[Request, tuple[list[Request], Any]] = {}
        done = self.done
        while stack:
            request = stack[-1]
            if request in done:
                stack.pop()
                continue
            plan = plans.get(request)
            if plan is None:
                plan = plans[request] = self.plan(request)
                todo = [r for r in plan[0] if r not in done]
                if todo:
                    stack.extend(reversed(todo))
                    continue
            if plan[1] is self:
                del plans[request]
                continue
            stack.pop()
            done[request] = self.build(request, [done[r] for r in plan[0]], plan[1])
        return done[root]

    def plan(self, request: Request) -> tuple[list[Request], Any]:
        """(the requests this one needs, whatever `build` wants to know)."""
        u, index, gate = request
        op = u.op
        if op in OpGroup.ELEMENTWISE:
            return [(s, index if s.shape else (), gate) for s in u.src], None
        if op in OpGroup.MOVEMENT:
            moved, own = move_index(u, index)
            return [(u.src[0], moved, both(gate, own))], own
        if op in _THROUGH:
            return [(u.src[0], index, gate)], None
        if op is Ops.REDUCE:
            axes = [a for a in u.arg[1] if not _same(u.src[0].shape[a], 1)]
            ranges = self.reduce_loops(u, index, axes)
            inner = list(index)
            for a, r in zip(axes, ranges, strict=True):
                inner[a] = r
            return [(u.src[0], tuple(inner), gate)], ranges
        if op is Ops.STACK:
            return [(s, index[1:], gate) for s in u.src], None
        if op is Ops.INDEX:
            x, place = u.src
            wanted: Request = (place, index[: len(place.shape)], gate)
            if wanted not in self.done:
                return [wanted], self  # asked again once the position is known
            at = as_index(self.done[wanted])
            if CHECK_OOB.value:  # positions are data, of which the front end sees to it that they are within the axis
                at = _within(at, x.shape[0])
            return [(x, (at, *index[len(place.shape) :]), gate)], None
        return [], None

    def reduce_loops(self, u: UOp, index: Index, axes: list[int]) -> tuple[UOp, ...]:
        # Reductions of one depth at one place over equal sizes share their loops: none of them can depend on another.
        sizes = tuple([u.src[0].shape[a] for a in axes])
        key = (index, tuple(axes), sizes, self.level(u))
        if key not in self.loops:
            self.loops[key] = tuple([self.new_range(n, AxisType.REDUCE) for n in sizes])
        return self.loops[key]

    def build(self, request: Request, src: list[UOp], plan: Any) -> UOp:
        u, index, gate = request
        op = u.op
        if op in OpGroup.ELEMENTWISE:
            x = operand_of(u)
            x = None if x is None else self.done.get((x, index if x.shape else (), gate))
            return of_constant(op, x) if x is not None and x.op is Ops.CONST else simplify(u.with_src(tuple(src)))
        if op is Ops.PAD:
            if plan is None:
                return src[0]
            fill = UOp.const(src[0].dtype, u.arg[1])
            if (
                src[0].op is Ops.LOAD
                and len(src[0].src) == 2
                and src[0].src[1] is not fill
                and gate is None
                and _one_pad(u)
            ):
                return UOp(Ops.LOAD, (src[0].src[0], fill))
            if src[0].op is Ops.LOAD and len(src[0].src) == 2 and src[0].src[1] is fill:
                return src[0]
            return simplify(UOp(Ops.WHERE, (plan, src[0], fill)))
        if op in OpGroup.MOVEMENT or op in _THROUGH or op is Ops.INDEX:
            return src[0]
        if op is Ops.REDUCE:
            return UOp(Ops.REDUCE, (src[0], *plan), (u.arg[0], ())) if plan else src[0]
        if op in (Ops.CONST, Ops.Invalid):
            return u
        if op in OpGroup.STORAGE:
            if u.is_variable:
                return u
            return self.load(u, index, gate)
        if op is Ops.STACK:
            out = src[-1]
            for k in range(len(src) - 2, -1, -1):
                out = UOp(Ops.WHERE, (UOp(Ops.CMPLT, (index[0], UOp.integer(k + 1))), src[k], out))
            return simplify(out)
        if op is Ops.SPECIAL and u.arg == "iota":  # positions along an axis: the element is its index
            return index[0]
        raise NotImplementedError(f"no lowering for {op} inside a kernel")

    def load(self, u: UOp, index: Index, gate: UOp | None) -> UOp:
        address = self.address(u, index, gate)
        return UOp(Ops.LOAD, (address,)) if gate is None else UOp(Ops.LOAD, (address, UOp.const(u.dtype, 0)))

    @staticmethod
    def address(u: UOp, index: Index, gate: UOp | None) -> UOp:
        flat = index[0] if index else ZERO
        return UOp(Ops.INDEX, (u, flat if gate is None else simplify(flat.valid(gate))))

    def target(self, u: UOp, index: Index) -> UOp:
        """The address that element `index` of the view `u` has in its storage."""
        while u.op not in OpGroup.STORAGE:
            if u.op in OpGroup.MOVEMENT and u.op is not Ops.PAD:
                index, _ = move_index(u, index)
            elif u.op not in _THROUGH:
                raise NotImplementedError(
                    f"cannot store through {u.op}: a target is storage seen through movement operations"
                )
            u = u.src[0]
        return self.address(u, index, None)


def _one_pad(u: UOp) -> bool:
    """Whether the loads of PAD `u` have no gate but its own."""
    u = u.src[0]
    while u.op in OpGroup.MOVEMENT and u.op is not Ops.PAD or u.op in _THROUGH:
        u = u.src[0]
    return u.op in OpGroup.STORAGE


def lower(kernel: UOp) -> UOp:
    """A kernel's tensor-form body (a SINK of STOREs and GROUPs of STOREs, storage as PARAMs) in kernel form. Errors:
    NotImplementedError for what no kernel does.

    Before: ``SINK(STORE(out, REDUCE(MUL(a, b))))``. After: ``SINK(END(STORE(INDEX(out, i), REDUCE(MUL(LOAD..,
    LOAD..), k)), i))``.
    """
    if kernel.tag == HAND_WRITTEN:
        return kernel.replace(tag=None)
    from aril.schedule.scatter import scatter_nests

    state = Lowering()
    effects: list[UOp] = []
    for nest in kernel.src:
        stores = nest.src if nest.op is Ops.GROUP else (nest,)
        if stores[0].src[1].op is Ops.SCATTER:
            effects.extend(scatter_nests(state, *stores[0].src))
            continue
        shape = stores[0].src[0].shape
        index = tuple([ZERO if _same(d, 1) else state.new_range(d, AxisType.LOOP) for d in shape])
        ranges = [r for r in index if r is not ZERO]
        body = []
        for s in stores:
            target, value = s.src
            body.append(UOp(Ops.STORE, (state.target(target, index), state.value(value, index if value.shape else ()))))
        effects.append(UOp.group(*body).end(*ranges))
    from aril.schedule.rows import is_scratch, share_chunks  # brings code generation, which a warm start does not need

    sink = UOp.sink(*effects, arg=kernel.arg if kernel.arg is not None else KernelInfo())
    sink = pair_positions(pick_by_position(sink))
    if any(is_scratch(u) for u in sink.toposort()):
        shared = share_chunks(sink)
        if shared is None:
            raise NotImplementedError("nests that hand values on in scratch need common outer loops")
        return shared
    return sink
