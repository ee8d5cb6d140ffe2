"""A sharded value in other stretches of its axis: devices exchange borders, where that moves least.

Sliding windows, and reshapes whose cuts do not fall on the parts' ends, need a few elements of the neighbours. In come
a node of the user's graph and what each device wants of it; out come the stretches. The stretches asked for may
overlap. They are not taken of the node itself where its sources are smaller: the windows of an image are never
exchanged, rows of the image are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from aril.ops import OpGroup, Ops
from aril.schedule.collective import copy, join
from aril.schedule.parts import Parts, cut, empty_shear, starts, with_length
from aril.uop import UOp
from aril.uop.node import Shape
from aril.uop.shape import expand, movement_arg, pad, reshape, shear, shrink

if TYPE_CHECKING:
    from aril.schedule.shard import Spread

Bounds = tuple[tuple[int, int], ...]  # of each device: the first element and the one after the last


class Wanted(NamedTuple):
    """What each device wants of a value: a stretch of an axis."""

    devices: tuple[str, ...]
    axis: int
    bounds: Bounds

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple([hi - lo for lo, hi in self.bounds])


_SAME_PLACE = OpGroup.ELEMENTWISE | {Ops.DETACH, Ops.CONTIGUOUS_BACKWARD, Ops.NOOP}


def bounds_of(lengths: Sequence[int]) -> Bounds:
    """The stretches of parts that follow each other."""
    return tuple([(s, s + n) for s, n in zip(starts(lengths), lengths, strict=True)])


def stretches(s: Spread, u: UOp, wanted: Wanted) -> tuple[UOp, ...]:
    """What each device wants of `u`, on that device."""
    key = (u, wanted)
    found = s.stretched.get(key)
    if found is None:
        found = s.stretched[key] = _stretches(s, u, wanted)
    return found


def _stretches(s: Spread, u: UOp, wanted: Wanted) -> tuple[UOp, ...]:
    v = s.settled(u)
    devices, axis, bounds = wanted
    if isinstance(v, UOp):
        return tuple([copy(cut(v, axis, lo, hi - lo), d) for (lo, hi), d in zip(bounds, devices, strict=True)])
    if v.axis is None:
        return tuple([cut(p, axis, lo, hi - lo) for (lo, hi), p in zip(bounds, v.parts, strict=True)])
    if v.axis == axis and bounds_of(v.lengths) == bounds:
        return v.parts  # type: ignore[no-any-return]
    # what a movement adds (pads, repeats) is not sent; what is computed is sent once, unless its sources are smaller
    moves = u.op in OpGroup.MOVEMENT and sources(s, u, axis) is not None
    if v.axis == axis and _moved(s, u, axis) < _row(u, axis) + moves:
        return through(s, u, wanted)
    return exchange(v, wanted)


def exchange(m: Parts, wanted: Wanted) -> tuple[UOp, ...]:
    """Stretches of a sharded value (on the axis wanted or another one): each device is sent the pieces it lacks."""
    axis = wanted.axis
    assert m.axis is not None and m.devices == wanted.devices
    out = []
    held = list(zip(m.parts, bounds_of(m.lengths), strict=True))
    for device, (lo, hi) in zip(m.devices, wanted.bounds, strict=True):
        pieces = []
        for p, (first, end) in held:
            low, high = (max(first, lo), min(end, hi)) if axis == m.axis else (lo, hi)
            if low < high and first < end:
                pieces.append(copy(cut(p, axis, low - (first if axis == m.axis else 0), high - low), device))
        if not pieces:
            zero = reshape(UOp.const(m.parts[0].dtype, 0), (1,) * len(m.shape))
            pieces = [expand(zero, with_length(m.shape, axis, hi - lo))]
        whole = join(pieces, m.axis)
        out.append(whole if len(pieces) == 1 else UOp(Ops.CONTIGUOUS, (whole,)))
    return tuple(out)


def _row(u: UOp, axis: int) -> int:
    """Bytes of one element of the axis with all that lies beside it."""
    return math.prod([d if isinstance(d, int) else int(d.vmax) for i, d in enumerate(u.shape) if i != axis]) * max(
        u.dtype.itemsize, 1
    )


def _moved(s: Spread, u: UOp, axis: int) -> int:
    """Bytes that exchanging one element of the axis costs: of `u` itself or of what it is computed from."""
    key = (u, axis)
    found = s.costs.get(key)
    if found is None:
        found = s.costs[key] = _cost(s, u, axis)
    return found


def _cost(s: Spread, u: UOp, axis: int) -> int:
    v = s.done.get(u)
    row = _row(u, axis)
    if isinstance(v, UOp):
        return 0 if v.device is None else row
    if v is not None and v.axis is None:
        return 0  # whole on each device
    if v is not None and v.axis != axis:
        return row * len(v.devices)
    below = sources(s, u, axis)
    return row if below is None else min(row, sum([_moved(s, x, a) for x, a in below]))


def sources(s: Spread, u: UOp, axis: int) -> list[tuple[UOp, int]] | None:
    """The sources of which stretches give a stretch of `u`, each with its axis; None where it must be had itself."""
    if u.op in _SAME_PLACE:
        return [(x, axis) for x in dict.fromkeys(u.src) if x.shape]
    if u.op is Ops.REDUCE and len(u.src) == 1 and axis not in u.arg[1]:
        # its part is computed again with the border, so only where nobody else asks for it
        return [(u.src[0], axis)] if s.readers.get(u, 2) < 2 else None
    if u.op not in OpGroup.MOVEMENT:
        return None
    arg = movement_arg(u)
    if u.op is Ops.RESHAPE:
        kept = kept_axis(u.src[0].shape, arg, axis)
        return None if kept is None else [(u.src[0], kept)]
    if u.op is Ops.PERMUTE:
        return [(u.src[0], arg[axis])]
    if u.op is Ops.EXPAND and u.src[0].shape[axis] != u.shape[axis]:
        return None
    if u.op in (Ops.PAD, Ops.SHRINK) and not all(isinstance(n, int) for n in arg[axis]):
        return None
    return [(u.src[0], axis)]


def kept_axis(old: Shape, new: Shape, axis: int) -> int | None:
    """The axis of `old` that a reshape to `new` leaves whole as `axis`; None where it splits or merges it."""
    if not all(isinstance(d, int) for d in (*old, *new)):
        return None
    before = math.prod(new[:axis])
    for a, n in enumerate(old):
        if n == new[axis] and math.prod(old[:a]) == before and n != 1:
            return a
    return None


def through(s: Spread, u: UOp, wanted: Wanted) -> tuple[UOp, ...]:
    """What each device wants of `u`, computed from stretches of its sources."""
    devices, axis, bounds = wanted
    if u.op in _SAME_PLACE:
        operands = [stretches(s, x, wanted) if x.shape else s.together(x, devices).parts for x in u.src]
        return tuple([u.with_src(src) for src in zip(*operands, strict=True)])
    if u.op is Ops.PAD:
        return _padded(s, u, wanted)
    if u.op is Ops.SHEAR:
        return _sheared(s, u, wanted)
    found = sources(s, u, axis)
    assert found is not None
    x, below = found[0]
    arg: Any = movement_arg(u) if u.op in OpGroup.MOVEMENT else ()
    if u.op is Ops.FLIP and axis in arg:
        bounds = tuple([(u.shape[axis] - hi, u.shape[axis] - lo) for lo, hi in bounds])
    if u.op is Ops.SHRINK:
        bounds = tuple([(lo + arg[axis][0], hi + arg[axis][0]) for lo, hi in bounds])
    parts = stretches(s, x, Wanted(devices, below, bounds))
    if u.op is Ops.RESHAPE:
        return tuple([reshape(p, with_length(arg, axis, n)) for p, n in zip(parts, wanted.lengths, strict=True)])
    if u.op is Ops.EXPAND:
        return tuple([expand(p, with_length(arg, axis, n)) for p, n in zip(parts, wanted.lengths, strict=True)])
    if u.op is Ops.SHRINK:
        return tuple([shrink(p, _pair(arg, axis, (0, n))) for p, n in zip(parts, wanted.lengths, strict=True)])
    return tuple([u.with_src((p, *u.src[1:])) for p in parts])


def _pair(pairs: Sequence[Any], axis: int, own: tuple[int, int]) -> tuple[Any, ...]:
    return tuple([own if i == axis else pair for i, pair in enumerate(pairs)])


def _padded(s: Spread, u: UOp, wanted: Wanted) -> tuple[UOp, ...]:
    devices, axis, bounds = wanted
    pairs = movement_arg(u)
    n, before = u.src[0].shape[axis], pairs[axis][0]
    inner = tuple([(min(max(lo - before, 0), n), min(max(hi - before, 0), n)) for lo, hi in bounds])
    out = []
    parts = stretches(s, u.src[0], Wanted(devices, axis, inner))
    for p, (lo, hi), (low, high) in zip(parts, bounds, inner, strict=True):
        ahead = min(max(before - lo, 0), hi - lo)
        out.append(pad(p, _pair(pairs, axis, (ahead, hi - lo - ahead - (high - low))), u.arg[1]))
    return tuple(out)


def _sheared(s: Spread, u: UOp, wanted: Wanted) -> tuple[UOp, ...]:
    devices, axis, bounds = wanted
    along, by, step, offset, length = u.arg
    if along == axis:
        low, high = sorted((offset, offset + step * (u.shape[by] - 1)))
        below = tuple([(lo + low, hi + high) if lo < hi else (0, 0) for lo, hi in bounds])
        parts = stretches(s, u.src[0], Wanted(devices, axis, below))
        return tuple([shear(p, along, by, step, offset - low, n) for p, n in zip(parts, wanted.lengths, strict=True)])
    parts = stretches(s, u.src[0], wanted)
    if by != axis:
        return tuple([shear(p, *u.arg) for p in parts])
    return tuple([
        shear(p, along, by, step, offset + step * lo, length) if lo < hi else empty_shear(p, along, length)
        for p, (lo, hi) in zip(parts, bounds, strict=True)
    ])  # fmt: skip


# --- the movements that need it ---


def windows(s: Spread, u: UOp) -> Parts:
    """A shear along the sharded axis: each device makes the windows over its own stretch, borders from others."""
    m: Parts = s.done[u.src[0]]
    lengths = _in_proportion(_own_lengths(s, u.src[0], u.arg[0]), u.shape[u.arg[0]])
    return m.with_parts(_sheared(s, u, Wanted(m.devices, u.arg[0], bounds_of(lengths))), u.arg[0])


def _own_lengths(s: Spread, u: UOp, axis: int) -> tuple[int, ...]:
    """Of the parts of `u`, without what was padded to the first and the last for windows to look at."""
    m: Parts = s.done[u]
    lengths = list(m.lengths)
    while u.op in (Ops.PAD, Ops.RESHAPE, Ops.EXPAND, Ops.PERMUTE):
        found = sources(s, u, axis)
        if found is None:
            break
        if u.op is Ops.PAD:
            before, after = movement_arg(u)[axis]
            lengths[0] -= before
            lengths[-1] -= after
        ((u, axis),) = found
    return tuple(lengths)


def _in_proportion(lengths: Sequence[int], total: int) -> tuple[int, ...]:
    """`total` elements divided as `lengths` are."""
    whole = sum(lengths)
    if not whole:
        return (total, *(0,) * (len(lengths) - 1))
    cuts = [round(total * at / whole) for at in (*starts(lengths), whole)]
    return tuple([b - a for a, b in zip(cuts, cuts[1:], strict=False)])


def reshaped(s: Spread, u: UOp) -> Parts | None:
    """A reshape of a value sharded on an axis whose parts do not end where an axis of the new shape can be cut.

    Where the axis is the first of those that change, its parts' ends move to the next cut of the new axis. Otherwise
    elements of all parts alternate in the result; the value is then sharded on an axis before, where there is a long
    one. None: it has no such axis.
    """
    x, shape = u.src[0], movement_arg(u)
    m: Parts = s.done[x]
    old: Any = x.shape
    if not all(isinstance(d, int) for d in (*old, *shape)) or 0 in old:
        return None
    a = m.axis
    assert a is not None
    at = _place_of(old, a, shape)
    if at is not None and shape[at] >= len(m.devices):
        unit, inner = math.prod(shape[at + 1 :]), math.prod(old[a + 1 :])
        cuts = [round(c * inner / unit) for c in (*starts(m.lengths), old[a])]
        lengths = [hi - lo for lo, hi in zip(cuts, cuts[1:], strict=False)]
        bounds = tuple([(lo * unit, hi * unit) for lo, hi in zip(cuts, cuts[1:], strict=False)])
        if all(lo % inner == 0 and hi % inner == 0 for lo, hi in bounds):
            parts = stretches(s, x, Wanted(m.devices, a, tuple([(lo // inner, hi // inner) for lo, hi in bounds])))
        else:
            flat = reshape(x, (*old[:a], old[a] * inner))
            s.of(flat)
            parts = stretches(s, flat, Wanted(m.devices, a, bounds))
        parts = tuple([reshape(p, with_length(shape, at, n)) for p, n in zip(parts, lengths, strict=True)])
        return m.with_parts(parts, at)
    for b, n in enumerate(old):
        at = _place_of(old, b, shape)
        if b != a and n >= len(m.devices) and at is not None:
            unit, inner = math.prod(shape[at + 1 :]), math.prod(old[b + 1 :])
            step = unit // math.gcd(unit, inner)  # elements of axis b between places where both can be cut
            if n // step < len(m.devices):
                continue
            lengths = [k * step for k in _in_proportion((1,) * len(m.devices), n // step)]
            lengths[-1] += n - sum(lengths)
            laid = s.laid_out(x, m.devices, b, lengths)
            out = [
                reshape(p, with_length(shape, at, k * inner // unit)) for p, k in zip(laid.parts, lengths, strict=True)
            ]
            return m.with_parts(out, at)
    return None


def _place_of(old: Sequence[int], axis: int, new: Sequence[int]) -> int | None:
    """The longest axis of `new` before which there are as many elements as before `axis` of `old`."""
    before = math.prod(old[:axis])
    found = [b for b in range(len(new)) if math.prod(new[:b]) == before]
    return max(found, key=lambda b: new[b], default=None)


__all__ = ["Wanted", "bounds_of", "exchange", "reshaped", "stretches", "windows"]
