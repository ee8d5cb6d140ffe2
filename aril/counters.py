"""What ran and how much memory is in use, in all and on each device: `GlobalCounters`."""

from __future__ import annotations


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
    """The sum over all devices, and one `Counters` a device in `per_device`."""

    __slots__ = ("per_device",)

    def __init__(self) -> None:
        super().__init__()
        self.per_device: dict[str, Counters] = {}

    def device(self, name: str) -> Counters:
        """The counters of one device (made at first use)."""
        return self.per_device.get(name) or self.per_device.setdefault(name, Counters())

    def record(self, device: str, ops: int, nbytes: int, time_s: float = 0.0, kernels: int = 1) -> None:
        """Count `kernels` launches on `device`."""
        own = self.per_device.get(device) or self.device(device)
        self.ops += ops
        own.ops += ops
        self.bytes += nbytes
        own.bytes += nbytes
        self.time_s += time_s
        own.time_s += time_s
        self.kernels += kernels
        own.kernels += kernels

    def memory(self, device: str, change: int) -> None:
        """Count `change` more bytes in use on `device` (fewer when negative)."""
        own = self.per_device.get(device) or self.device(device)
        self.mem_used = used = self.mem_used + change
        if used > self.mem_peak:
            self.mem_peak = used
        own.mem_used = used = own.mem_used + change
        if used > own.mem_peak:
            own.mem_peak = used

    def reset(self) -> None:
        super().reset()
        for one in self.per_device.values():
            one.reset()


GlobalCounters = _GlobalCounters()
