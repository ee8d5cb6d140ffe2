"""Assignment through views: what a value holds once a view of it has been given other contents.

In come a view (one movement or BITCAST on a source) and the contents it is to have; out come those of the source.
"""

from __future__ import annotations

from aril.autograd import transpose
from aril.ops import OpGroup, Ops
from aril.uop import UOp
from aril.uop.shape import expand, movement_arg, reshape, simple_add

PLACES = frozenset({Ops.RESHAPE, Ops.PERMUTE, Ops.SHRINK, Ops.FLIP, Ops.BITCAST, Ops.DETACH})  # views of one place each


def in_source(view: UOp, value: UOp) -> UOp:
    """The contents of `view`'s source, when the view holds `value`: elements outside of it stay.

    Before: ``SHRINK(x (8,), ((2, 3),))`` and ``v (3,)``. After: ``WHERE(2 <= i < 5, PAD(v, (2, 3)), x)``.
    """
    assert view.op in PLACES
    source = view.src[0]
    if view.op is Ops.BITCAST:
        return UOp(Ops.BITCAST, (value,), None, source.dtype)
    if view.op is Ops.DETACH:
        return value
    moved = transpose(view, value)
    if view.op is not Ops.SHRINK:
        return moved
    inside: UOp | None = None
    for axis, ((start, n), d) in enumerate(zip(movement_arg(view), source.shape, strict=True)):
        if n is d or n == d:
            continue
        place = reshape(UOp.iota(d), tuple([d if i == axis else 1 for i in range(len(source.shape))]))
        here = expand((place >= start) & (place < simple_add(start, n)), source.shape)
        inside = here if inside is None else inside & here
    return value if inside is None else UOp(Ops.WHERE, (inside, moved, source))


def below_bitcasts(view: UOp, value: UOp) -> tuple[UOp, UOp]:
    """(a view of movements only, what to store there) that write what storing `value` in `view` writes.

    A BITCAST that keeps the size of elements changes places with the movements on top of it.
    """
    chain = [view]
    while chain[-1].op in PLACES:
        chain.append(chain[-1].src[0])
    if all(u.op in OpGroup.MOVEMENT for u in chain[:-1]):
        return view, value
    while any(u.op is Ops.BITCAST and u.dtype.itemsize != u.src[0].dtype.itemsize for u in chain):
        value = in_source(chain.pop(0), value)
    out = chain.pop()
    for u in reversed(chain):
        if u.op in OpGroup.MOVEMENT:
            out = u.with_src((out, *u.src[1:]))
    return out, UOp(Ops.BITCAST, (value,), None, out.dtype) if value.dtype is not out.dtype else value


__all__ = ["PLACES", "below_bitcasts", "in_source"]
