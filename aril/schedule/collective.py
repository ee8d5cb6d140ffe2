"""Collectives: one partial value on each of several devices (or processes) in, the combined value on every one out.

Copies and elementwise nodes only, so that no later pass knows of more than one device; between processes messages
(COLLECTIVE) in place of the copies. Everybody gets the same bits: for each element the terms are combined in one order,
whoever asks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from aril.config import ALLREDUCE, ALLREDUCE_CAST
from aril.dtype import DType, to_dtype
from aril.ops import Ops
from aril.uop import UOp
from aril.uop.exchange import Exchange, exchange
from aril.uop.shape import pad, reshape, shrink

# Below this a message costs its start, not its bytes: fewest steps win. Above the second figure each device keeps to
# its neighbour, so that no link carries more than one chunk at a time. Neither has been measured between GPUs.
SMALL = 64 << 10
LARGE = 8 << 20

_SAME_SIZE = {Ops.RESHAPE, Ops.EXPAND, Ops.PERMUTE, Ops.FLIP}


def settings() -> tuple[str, str]:
    """What the form of a collective depends on besides its graph: part of the key of a schedule."""
    return ALLREDUCE.value, ALLREDUCE_CAST.value


def copy(x: UOp, device: str) -> UOp:
    """`x` on `device`: itself where it is there (or is constant). What only rearranges is done after the copy."""
    if x.device in (None, device):
        return x
    views = []
    while x.op in _SAME_SIZE:
        views.append(x)
        x = x.src[0]
    out = UOp(Ops.COPY, (x,), device)
    for v in reversed(views):
        out = v.with_src((out, *v.src[1:]))
    return out


def traffic_type(dtype: DType) -> DType:
    """The type in which values of `dtype` travel (ALLREDUCE_CAST), never a wider one."""
    if not ALLREDUCE_CAST.value or dtype.kind != "f":
        return dtype
    narrow = to_dtype(ALLREDUCE_CAST.value)
    return narrow if narrow.itemsize < dtype.itemsize else dtype


def choose(nbytes: int | None, devices: int) -> str:
    """The way to combine `nbytes` over so many devices: "naive", "all2all" or "ring". None: the size is symbolic."""
    if nbytes is None or devices == 1:
        return "naive"
    if ALLREDUCE.value != "auto":
        return ALLREDUCE.value
    if devices == 2 or nbytes < SMALL:
        return "naive"
    return "all2all" if nbytes < LARGE else "ring"


def allreduce(parts: Sequence[UOp], op: Ops, devices: Sequence[str]) -> tuple[UOp, ...]:
    """On every device all of `parts` (one a device, of one shape) combined by `op`.

    naive: every part goes everywhere; n(n-1) copies of the whole. all2all: device i combines chunk i, then chunks go
    everywhere; 2n(n-1) copies of a chunk. ring: chunks travel from neighbour to neighbour (Patarasuk and Yuan,
    "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009);
    as many copies, one a device at a time.
    """
    if len(parts) == 1:
        return tuple(parts)
    shape, dtype = parts[0].shape, parts[0].dtype
    size = math.prod(shape) if all(isinstance(d, int) for d in shape) else None
    nbytes = None if size is None else size * dtype.itemsize
    way = choose(nbytes, len(devices))
    n = len(devices)
    if way == "naive" or size < n:  # type: ignore[operator]
        sent = [_narrow(p) for p in parts]
        return tuple([_combine([_wide(copy(s, d), dtype) for s in sent], op) for d in devices])
    assert size is not None
    bounds = [size * i // n for i in range(n + 1)]
    flat = [reshape(p, (size,)) for p in parts]
    chunks = [[shrink(f, ((bounds[c], bounds[c + 1] - bounds[c]),)) for c in range(n)] for f in flat]
    if way == "ring":
        done = [_ring(chunks, c, op, devices) for c in range(n)]
    else:
        done = [_meet(chunks, c, op, devices) for c in range(n)]
    return tuple([reshape(join([_wide(done[c][i], dtype) for c in range(n)], 0), shape) for i in range(n)])


def allreduce_between(x: UOp, op: Ops, among: Exchange, cast: DType | None = None) -> UOp:
    """`x` of every process combined by `op`, the same bits in all of them. `cast`: the type in which it travels.

    Small values go from all to all. Of larger ones process i combines chunk i, and hands it out: everything is sent
    twice, whatever the number of processes.
    """
    n, shape, dtype = among.ranks, x.shape, x.dtype
    if n == 1:
        return x
    size = math.prod([d for d in shape if isinstance(d, int)])  # symbolic ones are refused before
    narrow = traffic_type(dtype) if cast is None else cast
    sent = x.cast(narrow)
    if choose(size * dtype.itemsize, n) == "naive" or size < n:
        return _sum_of_rows(exchange(_stored(sent), "gather", among), n, op, dtype)
    chunk = -(-size // n)
    flat = pad(reshape(sent, (size,)), ((0, chunk * n - size),))
    mine = exchange(_stored(reshape(flat, (n, chunk))), "alltoall", among)
    total = _sum_of_rows(mine, n, op, dtype).cast(narrow)
    out = exchange(_stored(total), "gather", among)
    return reshape(shrink(reshape(out, (n * chunk,)), ((0, size),)), shape).cast(dtype)


def _stored(x: UOp) -> UOp:
    """A message is sent from whole memory."""
    return UOp(Ops.CONTIGUOUS, (x,))


def _sum_of_rows(rows: UOp, n: int, op: Ops, dtype: DType) -> UOp:
    """The rows combined one after the other, not as a reduction, whose order is the kernel's own choice."""
    shape = rows.shape[1:]
    whole = tuple([(0, d) for d in shape])
    return _combine([_wide(reshape(shrink(rows, ((i, 1), *whole)), shape), dtype) for i in range(n)], op)


def reduce_to(parts: Sequence[UOp], op: Ops, device: str) -> UOp:
    """All of `parts` combined by `op`, on `device` only."""
    dtype = parts[0].dtype
    return _combine([p if p.device == device else _wide(copy(_narrow(p), device), dtype) for p in parts], op)


def _narrow(x: UOp) -> UOp:
    return x.cast(traffic_type(x.dtype))


def _wide(x: UOp, dtype: DType) -> UOp:
    return x.cast(dtype)


def _combine(terms: Sequence[UOp], op: Ops) -> UOp:
    out = terms[0]
    for t in terms[1:]:
        out = UOp(op, (out, t))
    return out


def _meet(chunks: list[list[UOp]], c: int, op: Ops, devices: Sequence[str]) -> list[UOp]:
    """Chunk `c` combined on device `c`, then copied to each device."""
    home, dtype = devices[c], chunks[0][0].dtype
    total = _combine([_wide(copy(_narrow(mine[c]), home), dtype) for mine in chunks], op)
    return _spread(total, devices)


def _ring(chunks: list[list[UOp]], c: int, op: Ops, devices: Sequence[str]) -> list[UOp]:
    """Chunk `c` handed round from device c on, each adding its own, then handed on from the last."""
    n, dtype = len(devices), chunks[0][0].dtype
    total = chunks[c][c]
    for step in range(1, n):
        i = (c + step) % n
        total = UOp(op, (_wide(copy(_narrow(total), devices[i]), dtype), chunks[i][c]))
    at = (c + n - 1) % n
    out: list[UOp] = [total] * n
    out[at] = held = UOp(Ops.CONTIGUOUS, (_narrow(total),))
    for _ in range(n - 1):
        at = (at + 1) % n
        out[at] = held = copy(held, devices[at])
    return out


def _spread(total: UOp, devices: Sequence[str]) -> list[UOp]:
    held = UOp(Ops.CONTIGUOUS, (_narrow(total),))
    return [copy(held, d) for d in devices]


def join(parts: Sequence[UOp], axis: int) -> UOp:
    """`parts` (on one device) one after the other along `axis`, those without elements left out."""
    full = [p for p in parts if p.shape[axis] != 0]
    if not full:
        return parts[0]
    return full[0] if len(full) == 1 else full[0].cat(*full[1:], dim=axis)


__all__ = ["allreduce", "allreduce_between", "choose", "copy", "join", "reduce_to", "settings", "traffic_type"]
