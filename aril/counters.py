"""What ran and how much memory is in use, in all and on each device: `GlobalCounters`."""

from __future__ import annotations

from typing import TYPE_CHECKING


class Counters:
    """What ran since the last `reset`: `ops`, `bytes`, `time_s`, `kernels`; and memory, `mem_used` now, `mem_peak`."""

    __slots__ = ("bytes", "kernels", "mem_peak", "mem_used", "ops", "time_s")

    def __init__(self) -> None:
        self.ops = self.bytes = self.kernels = self.mem_used = self.mem_peak = 0
        self.time_s = 0.0

    def reset(self) -> None:
        """Start counting again. Memory in use stays what it is; the peak becomes it."""
        self.ops = self.bytes = self.kernels = 0
        self.time_s = 0.0
        self.mem_peak = self.mem_used

    def __repr__(self) -> str:
        return "Counters(" + ", ".join(f"{name}={getattr(self, name)}" for name in sorted(self.__slots__)) + ")"


class _GlobalCounters(Counters):
    """The sum over all devices, and one `Counters` a device in `per_device`. What ran is counted there alone."""

    __slots__ = ("per_device",)

    def __init__(self) -> None:
        self.per_device: dict[str, Counters] = {}
        self.mem_used = self.mem_peak = 0

    if not TYPE_CHECKING:
        ops = property(lambda self: sum([c.ops for c in self.per_device.values()]))
        bytes = property(lambda self: sum([c.bytes for c in self.per_device.values()]))
        kernels = property(lambda self: sum([c.kernels for c in self.per_device.values()]))
        time_s = property(lambda self: sum([c.time_s for c in self.per_device.values()]))

    def device(self, name: str) -> Counters:
        """The counters of one device (made at first use)."""
        return self.per_device.get(name) or self.per_device.setdefault(name, Counters())

    def record(self, device: str, ops: int, nbytes: int, time_s: float = 0.0, kernels: int = 1) -> None:
        """Count `kernels` launches on `device`."""
        own = self.per_device.get(device) or self.device(device)
        own.ops += ops
        own.bytes += nbytes
        own.time_s += time_s
        own.kernels += kernels

    def memory(self, own: Counters, change: int) -> None:
        """Count `change` more bytes in use on a device, whose counters are `own` (fewer when negative)."""
        self.mem_used = used = self.mem_used + change
        own.mem_used = mine = own.mem_used + change
        if change > 0:
            if used > self.mem_peak:
                self.mem_peak = used
            if mine > own.mem_peak:
                own.mem_peak = mine

    def reset(self) -> None:
        self.mem_peak = self.mem_used
        for one in self.per_device.values():
            one.reset()


GlobalCounters = _GlobalCounters()
