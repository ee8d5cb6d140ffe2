"""Steps that are no kernels: copies between devices, messages between processes."""

from __future__ import annotations

import time
from collections.abc import Sequence

from aril.device import Buffer, Device, host_memory
from aril.runtime.processes import world
from aril.schedule import Item
from aril.uop.exchange import Exchange


def transfer(item: Item, buffers: Sequence[Buffer]) -> float:
    """Fill buffers[0] from buffers[1]: a copy, or what the item exchanges with other processes. Returns seconds."""
    start = time.perf_counter()
    if item.exchange is None:
        buffers[0].copy_from(buffers[1])
    else:
        _send(item.exchange, *buffers)
    return time.perf_counter() - start


def transfer_name(item: Item, buffers: Sequence[Buffer]) -> str:
    """What to call it in reports."""
    if item.exchange is not None:
        return f"{item.exchange.kind} among {item.exchange.ranks} processes"
    return f"copy {buffers[1].device} -> {buffers[0].device}"


def _send(what: Exchange, target: Buffer, source: Buffer) -> None:
    of = f" from {what.root}" if what.kind == "broadcast" else ""
    label = f"{what.kind} {what.serial} of {source.size} {source.dtype.name}{of}"
    sent = _memory(source) if _is_visible(source) else source.as_memoryview()
    got = _memory(target) if _is_visible(target) else memoryview(bytearray(target.nbytes))
    world(what.ranks).exchange(what.kind, sent, got, what.root, label)
    if not _is_visible(target):
        target.copyin(got)


def _is_visible(b: Buffer) -> bool:
    return Device[b.device].allocator.host_visible and type(b.opaque) is int


def _memory(b: Buffer) -> memoryview:
    Device[b.device].synchronize()
    return host_memory(b.address, b.nbytes)
