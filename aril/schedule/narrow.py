"""Factors of sums of products that stay bfloat16 in memory, because their kernel takes them two at a time.

Elsewhere a widened factor that is read many times is stored as float32. In: a prepared graph. Out: casts that are never
stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from aril.codegen.emulate import is_emulated_on_request
from aril.device import Device
from aril.dtype import dtypes
from aril.ops import Ops
from aril.uop import UOp

_PLAIN = frozenset({Ops.RESHAPE, Ops.PERMUTE, Ops.EXPAND, Ops.SHRINK})


def narrow_factors(order: Iterable[UOp]) -> set[UOp]:
    """CASTs to float32 of both factors of sums of products that devices take in pairs (`codegen.pairs`)."""
    found: set[UOp] = set()
    for u in order:
        if u.op is Ops.REDUCE and u.arg[0] is Ops.ADD and u.src[0].op is Ops.MUL and u.dtype is dtypes.float32:
            casts = [_widened(x) for x in u.src[0].src]
            if None not in casts and _has_pairs(u) and takes_pairs(u.device):
                found.update([c for c in casts if c is not None])
    return found


def _widened(x: UOp) -> UOp | None:
    """The cast from bfloat16 that a factor is a plain view of."""
    while x.op in _PLAIN:
        x = x.src[0]
    return x if x.op is Ops.CAST and x.dtype is dtypes.float32 and x.src[0].dtype is dtypes.bfloat16 else None


def _has_pairs(u: UOp) -> bool:
    """Whether the terms of a sum are of an even number along some axis."""
    lengths = [u.src[0].shape[a] for a in u.arg[1]]
    return any(isinstance(n, int) and n % 2 == 0 for n in lengths)


def takes_pairs(device: object) -> bool:
    """Whether kernels of a device add products of pairs of bfloat16 in one instruction."""
    return isinstance(device, str) and not is_emulated_on_request(dtypes.bfloat16) and _takes_pairs(device)


@lru_cache(maxsize=64)
def _takes_pairs(device: str) -> bool:
    opened = Device[device]
    return bool(opened.renderer_name) and bool(getattr(opened.renderer(opened.target), "pair_lanes", ()))
