"""Factors of sums of products that stay bfloat16 in memory, because their kernel takes them two at a time.

Elsewhere a widened factor that is read many times is stored as float32. In: a prepared graph. Out: casts that are never
stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import prod

from aril.codegen.emulate import is_emulated_on_request
from aril.device import Device
from aril.dtype import dtypes
from aril.ops import OpGroup, Ops
from aril.uop import UOp

_PLAIN = frozenset({Ops.RESHAPE, Ops.PERMUTE, Ops.EXPAND, Ops.SHRINK})


LEAST_USES = 32  # of an element, for which it is worth a copy of an odd number of terms


def narrow_factors(order: Iterable[UOp]) -> set[UOp]:
    """CASTs to float32 of both factors of sums of products that devices take in pairs (`codegen.pairs`)."""
    found: set[UOp] = set()
    for u in order:
        if u.op is Ops.REDUCE and has_pairs(u) and is_narrow(u):
            found.update([c for x in product_of(u).src if (c := _widened(x)) is not None])
    return found


def product_of(u: UOp) -> UOp:
    """What a REDUCE sums, below the views of it."""
    x = u.src[0]
    while x.op in OpGroup.MOVEMENT:
        x = x.src[0]
    return x


def is_narrow(u: UOp) -> bool:
    """Whether REDUCE `u` sums products of bfloat16 in float32 on a device that takes them in pairs, if need be those of
    copies with a term more (`operands`)."""
    product = product_of(u)
    if u.arg[0] is not Ops.ADD or product.op is not Ops.MUL or u.dtype is not dtypes.float32:
        return False
    if any(_widened(x) is None for x in product.src) or not takes_pairs(u.device):
        return False
    return has_pairs(u) or product is u.src[0] and all(_uses(u, x) >= LEAST_USES for x in product.src)


def _uses(u: UOp, x: UOp) -> int:
    """How often the sum uses an element of a factor; 0 where its number of terms cannot be made even."""
    axis = u.arg[1][-1]
    while x.op is Ops.EXPAND and x.src[0].shape[axis] == x.shape[axis]:
        x = x.src[0]
    sizes = (*u.src[0].shape, *x.shape)
    known = not _is_window(x) and all(isinstance(n, int) for n in sizes) and x.op is not Ops.EXPAND and 0 not in sizes
    return int(prod(u.src[0].shape) // prod(x.shape)) if known else 0


def _widened(x: UOp) -> UOp | None:
    """The cast from bfloat16 that a factor is a view of, padded by zeros perhaps."""
    while x.op in OpGroup.MOVEMENT and (x.op is not Ops.PAD or x.arg[1] == 0):
        x = x.src[0]
    return x if x.op is Ops.CAST and x.dtype is dtypes.float32 and x.src[0].dtype is dtypes.bfloat16 else None


def _is_window(x: UOp) -> bool:
    """Whether a factor is more than a view of all its elements, such as windows, of which there is to be no copy."""
    while x.op in _PLAIN:
        x = x.src[0]
    return x.op in OpGroup.MOVEMENT


def has_pairs(u: UOp) -> bool:
    """Whether a sum has an even number of terms along some axis."""
    lengths = [u.src[0].shape[a] for a in u.arg[1]]
    return any(isinstance(n, int) and n % 2 == 0 for n in lengths)


def takes_pairs(device: object) -> bool:
    """Whether kernels of a device add products of pairs of bfloat16 in one instruction."""
    return isinstance(device, str) and not is_emulated_on_request(dtypes.bfloat16) and _takes_pairs(device)


@lru_cache(maxsize=64)
def _takes_pairs(device: str) -> bool:
    opened = Device[device]
    return bool(opened.renderer_name) and bool(getattr(opened.renderer(opened.target), "pair_lanes", ()))
