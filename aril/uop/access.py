"""Proof that a kernel stays inside the storage it is given: for kernels that come from outside of this process.

In: a verified body (tensor form) or hand-written kernel (kernel form). Out: nothing, or an AccessError that names the
access that could leave its storage. In the tensor form movement operations keep inside by their own rules (`verify`);
what is left are symbolic sizes and positions that are computed. In the kernel form every address is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator

from aril.dtype import dtypes
from aril.ops import OpGroup, Ops
from aril.uop.args import AddrSpace, AxisType
from aril.uop.gates import conjuncts, implied
from aril.uop.node import UOp, sint
from aril.uop.pattern import Pat, Rules
from aril.uop.rewrite import rewrite
from aril.uop.shape import movement_arg
from aril.uop.symbolic import simplify
from aril.uop.verify import check

REGISTERS = 4096  # elements of a register buffer: it lies on a worker's stack
SCRATCH = 64 << 20  # bytes of all local buffers of a kernel
COPIES = 64  # of a body, by an unrolled loop
_LOOPS = frozenset({AxisType.GLOBAL, AxisType.LOOP, AxisType.REDUCE})


class AccessError(ValueError):
    """A kernel of which it cannot be proven that it stays inside the storage it is given."""


def check_accesses(root: UOp, form: str) -> None:
    """AccessError unless every element that `root` (a SINK of `form`, "tensor" or "kernel") touches exists.

    SpecError where it is not of that form at all.
    """
    if root.op is not Ops.SINK:
        raise AccessError(f"a kernel is a SINK of effects, not {root.op.name}")
    check(root, form)
    scratch = 0
    for u in root.toposort():
        if u.op in OpGroup.STORAGE and not u.is_variable:
            scratch += _check_storage(u)
        elif u.op is Ops.LOAD and form == "kernel" or u.op in (Ops.STORE, Ops.ATOMIC):
            _check_target(u, form)
        elif u.op is Ops.BITCAST and u.dtype.itemsize != u.src[0].dtype.itemsize:
            raise AccessError("a BITCAST between types of two sizes reads parts of elements")
        if form == "tensor":
            _check_tensor(u)
        else:
            _check_kernel(u)
    if scratch > SCRATCH:
        raise AccessError(f"a kernel takes {scratch} bytes of scratch; at most {SCRATCH} are accepted")


def written(root: UOp) -> set[int]:
    """The slots of the parameters that a body or kernel writes."""
    targets = [u.src[0] for u in root.toposort() if u.op in (Ops.STORE, Ops.ATOMIC)]
    return {s.arg.slot for s in map(_storage, targets) if s.op is Ops.PARAM}


def _nearest(u: UOp) -> UOp | None:
    axis = u.src[0].shape[0] if u.src[0].shape else 0
    if not isinstance(axis, int) or axis == 0 or len(u.src) != 2 or u.src[1].dtype.kind not in "iu":
        return None  # `check_accesses` says what is wrong
    low, high = u.src[1].bounds
    return (
        None if low >= 0 and high < axis else u.replace(src=(u.src[0], u.src[1].cast(dtypes.int64).clamp(0, axis - 1)))
    )


_NEAREST = Rules([(Pat(Ops.INDEX, name="u"), _nearest)], name="positions kept inside")


def keep_inside(root: UOp) -> UOp:
    """The body `root` in tensor form where each position that nothing bounds is the nearest one of its axis.

    The front end clamps positions; a kernel that finds them in memory, where another has put them, is not told. What
    is correct stays the same, and `check_accesses` has its proof.
    """
    return rewrite(root, _NEAREST)


def _storage(u: UOp) -> UOp:
    """What lies below an address or a view."""
    while u.op in OpGroup.MOVEMENT or u.op in (Ops.AFTER, Ops.INDEX):
        u = u.src[0]
    return u


def _check_storage(u: UOp) -> int:
    """The bytes of scratch that this storage takes."""
    space, size = u.arg.addrspace, u.arg.size
    if size is None or (u.op is Ops.PARAM) != (space is AddrSpace.GLOBAL) or u.arg.slot < 0:
        raise AccessError(f"storage of a kernel is a flat parameter, or a local buffer or registers, not {u.arg}")
    if space is AddrSpace.REG and size > REGISTERS:
        raise AccessError(f"a kernel keeps {size} elements in registers; at most {REGISTERS} are accepted")
    return size * u.dtype.itemsize if space is AddrSpace.LOCAL else 0


def _check_target(u: UOp, form: str) -> None:
    target = u.src[0]
    if _storage(target).op not in OpGroup.STORAGE or _storage(target).is_variable:
        raise AccessError(f"a {u.op.name} goes to storage, not to {_storage(target).op.name}")
    if form == "kernel" and target.op is not Ops.INDEX:
        raise AccessError(f"a {u.op.name} of a saved kernel goes to an INDEX of storage, not to {target.op.name}")
    while form == "tensor" and target.op not in OpGroup.STORAGE:
        if target.op in (Ops.PAD, Ops.INDEX):
            raise AccessError(f"a store goes to elements that exist, not through {target.op.name}")
        target = target.src[0]


# --- tensor form ---


def _check_tensor(u: UOp) -> None:
    if u.op is Ops.INDEX:
        if len(u.src) != 2 or u.src[1].dtype.kind not in "iu" or not u.src[0].shape:
            raise AccessError("an INDEX takes elements of one axis, by integers")
        low, high = u.src[1].bounds
        if low < 0 or high >= _least(u.src[0].shape[0]):
            raise AccessError(
                f"positions {low} to {high} of an axis of {u.src[0].shape[0]}: nothing in the graph keeps them inside"
            )
    elif u.op is Ops.STACK and len({s.shape for s in u.src}) != 1:
        raise AccessError("a STACK joins values of one shape")
    elif u.op in OpGroup.MOVEMENT:
        _check_movement(u)
    elif u.op is Ops.SPECIAL and (u.arg != "iota" or len(u.src) != 1):
        raise AccessError(f"SPECIAL {u.arg!r} does not stand in a body")
    elif u.op in OpGroup.ELEMENTWISE and any(s.dtype.kind == "v" for s in u.src):
        raise AccessError(f"{u.op.name} computes with an effect")


def _check_movement(u: UOp) -> None:
    if any(s.op in OpGroup.STORAGE and not s.is_variable or s.shape for s in u.src[1:]):
        raise AccessError(f"a size of {u.op.name} is no number")
    shape, arg = u.src[0].shape, movement_arg(u)
    if all(isinstance(d, int) for d in _numbers(arg)) and all(isinstance(d, int) for d in shape):
        return  # `verify` has compared them
    fine = True
    if u.op is Ops.RESHAPE:
        fine = _product(shape) is _product(arg)
    elif u.op is Ops.SHRINK:
        for (start, length), size in zip(arg, shape, strict=True):
            end = simplify(_node(start) + _node(length) - _node(size))
            fine = fine and _least(start) >= 0 and _least(length) >= 0 and end.vmax <= 0
    elif u.op is Ops.PAD:
        fine = all(_least(v) >= 0 for v in _numbers(arg))
    elif u.op is Ops.SHEAR:
        fine = False
    if not fine:
        raise AccessError(f"nothing keeps a {u.op.name} of shape {shape} by {arg} inside of its axes")


def _numbers(arg: object) -> Iterator[object]:
    if isinstance(arg, tuple):
        for x in arg:
            yield from _numbers(x)
    else:
        yield arg


def _node(d: sint) -> UOp:
    return UOp.lift(d)


def _least(d: object) -> int:
    return int(d.vmin) if isinstance(d, UOp) else int(d)  # type: ignore[call-overload]


def _product(shape: tuple[sint, ...]) -> UOp:
    out = UOp.lift(1)
    for d in shape:
        out = out * _node(d)
    return simplify(out)


# --- kernel form ---


def _check_kernel(u: UOp) -> None:
    if u.op is Ops.INDEX:
        if len(u.src) != 2:
            raise AccessError("an INDEX of a saved kernel counts elements of flat storage")
        base = _storage(u)
        size = base.arg.size if base.op in OpGroup.STORAGE else u.src[0].shape[0] if u.src[0].shape else 0
        low, high = _under_gate(u.src[1])
        if low < 0 or high >= size:
            raise AccessError(f"index {low} to {high} of storage of {size}: nothing in the kernel keeps it inside")
    elif u.op is Ops.RANGE and u.arg.kind not in _LOOPS and not (u.src[0].op is Ops.CONST and u.vmax < COPIES):
        raise AccessError(f"a loop of kind {u.arg.kind.name} has at most {COPIES} turns")
    elif u.op in OpGroup.MOVEMENT or u.op is Ops.SPECIAL:
        raise AccessError(f"{u.op.name} does not stand in a saved kernel")


def _under_gate(index: UOp) -> tuple[int, int]:
    """Bounds of an index where its gate holds."""
    if index.op is not Ops.WHERE or index.src[2].op is not Ops.Invalid:
        return index.bounds
    inner = simplify(index.src[1])
    facts = implied(conjuncts(simplify(index.src[0])))
    if facts is None:
        return inner.bounds  # the gate never holds
    if inner in facts[0]:
        return facts[0][inner]
    narrow = {e: UOp.variable(f"gate{i}", *bounds) for i, (e, bounds) in enumerate(facts[0].items())}
    return inner.substitute(narrow).bounds


def check_view(root: UOp) -> None:
    """AccessError unless `root` is storage, or constants, seen through movement operations that stay inside."""
    check(root, "tensor")
    for u in root.toposort():
        if u.op not in OpGroup.MOVEMENT | OpGroup.STORAGE and u.op not in (Ops.CONST, Ops.MSTACK, Ops.UNSHARD):
            raise AccessError(f"{u.op.name} does not stand in a view of memory")
        if u.op in OpGroup.MOVEMENT:
            _check_movement(u)
        elif u.op is Ops.UNSHARD:
            axis, shape = u.arg
            parts = [s.shape for s in u.src[0].src]
            lengths = {axis: sum([p[axis] for p in parts])} if axis is not None else {}
            whole = {tuple([lengths.get(i, n) for i, n in enumerate(p)]) for p in parts}
            if u.src[0].op is not Ops.MSTACK or whole != {shape}:
                raise AccessError(f"parts of shapes {parts} do not make up {shape}")
