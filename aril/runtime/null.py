"""The NULL device: allocates nothing, launches nothing, still counts. For looking at schedules and compile times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aril.device import Allocator, CompiledKernel, DeviceBase, Program
from aril.runtime.target import HostTarget, host_target


class NullAllocator(Allocator):
    """Names blocks without any memory behind them; what is read back is zeros."""

    host_visible = False

    def _alloc(self, nbytes: int) -> Any:
        return 0

    def _copyin(self, opaque: Any, source: memoryview) -> None:
        pass

    def _copyout(self, target: memoryview, opaque: Any) -> None:
        target[:] = bytes(target.nbytes)


class NullProgram(Program):
    """A kernel that is never run."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(
        self, buffers: Sequence[Any], values: Sequence[int] = (), chunks: int | None = None, wait: bool = False
    ) -> float | None:
        return 0.0 if wait else None


class NullDevice(DeviceBase):
    """Kernels are compiled as for the CPU."""

    NAME = "NULL"
    renderers = {"LLVM": "aril.renderer.llvm:llvm_renderer"}

    def __init__(self, name: str) -> None:
        super().__init__(name, NullAllocator(name))

    @property
    def target(self) -> HostTarget:
        return host_target()

    def load(self, kernel: CompiledKernel) -> NullProgram:
        return NullProgram(kernel.name)
