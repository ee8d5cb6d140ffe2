"""The CPU device: kernels are native code called in this process, on the worker pool when there is more than one chunk.

In come compiled kernels (object files) and addresses; out goes the work, done when the call returns.
"""

from __future__ import annotations

import ctypes
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from aril.device import CompiledKernel, DeviceBase, DeviceError, Program
from aril.runtime import faults
from aril.runtime.elf import LoadedObject, ObjectError, load_object
from aril.runtime.memory import CPUAllocator
from aril.runtime.pool import MAX_CHUNKS, shared_pool
from aril.runtime.target import HostTarget, host_target

if TYPE_CHECKING:
    from aril.runtime.ring import Ring

_KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_int64, ctypes.c_void_p)


class CPUProgram(Program):
    """A kernel in executable memory. `address` is its function: `void(void** args, int64 chunk, void* scratch)`.

    `args` are 64-bit slots, the buffers' addresses first, then the values of the variables.
    """

    __slots__ = (
        "_call",
        "_code",
        "_fault_slot",
        "_pack",
        "address",
        "chunks",
        "kernel",
        "name",
        "scratch_bytes",
        "slots",
    )

    def __init__(self, kernel: CompiledKernel) -> None:
        self.kernel, self.name, self.chunks = kernel, kernel.name, kernel.chunks
        self.scratch_bytes = kernel.scratch_bytes
        self._code: LoadedObject = load_object(kernel.binary)  # keeps the memory behind `address`
        if kernel.name not in self._code.symbols:
            raise ObjectError(f"the object of kernel {kernel.name!r} defines {', '.join(self._code.symbols)} only")
        self.address = self._code.symbols[kernel.name]
        self.slots = kernel.nbufs + kernel.nvars
        self._pack = struct.Struct(f"<{kernel.nbufs}Q{kernel.nvars}q").pack
        self._call = _KERNEL(self.address)
        self._fault_slot = faults.register(self._code, kernel.name)

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if getattr(self, "_fault_slot", -1) >= 0 and not finalizing():
            faults.forget(self._fault_slot)

    def pack_args(self, buffers: Sequence[int], values: Sequence[int] = ()) -> bytes:
        """The argument slots of a launch. TypeError says how many of each the kernel takes."""
        try:
            return self._pack(*buffers, *values)
        except struct.error as error:
            raise TypeError(
                f"kernel {self.name!r} takes {self.kernel.nbufs} buffer addresses and {self.kernel.nvars} 64-bit "
                f"values; it was given {len(buffers)} and {len(values)}: {error}"
            ) from None

    def bound(self, buffers: Sequence[int], values: Sequence[int] = (), keep: object = None) -> Callable[[], None]:
        """A launch of one chunk on the calling thread with these arguments, to be called any number of times. `keep`
        stays alive with it."""
        args, scratch = self.pack_args(buffers, values), ctypes.create_string_buffer(self.scratch_bytes + 64)
        launch = partial(self._call, args, 0, -(-ctypes.addressof(scratch) // 64) * 64)
        launch.keep = (self, scratch, keep)  # type: ignore[attr-defined]
        return launch

    def launcher(self, chunks: int) -> Callable[[Sequence[Any]], object]:
        if chunks == 1 and not self.scratch_bytes:
            pack, call = self._pack, self._call
            return lambda buffers: call(pack(*buffers), 0, None)
        return super().launcher(chunks)

    def __call__(
        self, buffers: Sequence[int], values: Sequence[int] = (), chunks: int | None = None, wait: bool = False
    ) -> float | None:
        start = perf_counter() if wait else 0.0
        try:
            args = self._pack(*buffers, *values)
        except struct.error:
            args = self.pack_args(buffers, values)  # says what is wrong
        if chunks is None:
            chunks = self.chunks
        if chunks == 1:
            # The pool is not even started for this: a first small result costs no threads.
            self._call(args, 0, _own_scratch(self.scratch_bytes) if self.scratch_bytes else None)
        elif 0 <= chunks <= MAX_CHUNKS:
            pool = shared_pool()
            if self.scratch_bytes:
                pool.ensure_scratch(self.scratch_bytes)
            pool.run_one(self.address, args, chunks)
        else:
            raise ValueError(f"kernel {self.name!r} was launched with {chunks} chunks; 0 to {MAX_CHUNKS} are possible")
        return perf_counter() - start if wait else None


class _Scratch(threading.local):
    """Scratch memory of one Python thread, for kernels that run on it alone."""

    def __init__(self) -> None:
        self.size = 0
        self.address = 0
        self.memory: object = None


_scratch = _Scratch()


def _own_scratch(nbytes: int) -> int:
    if nbytes > _scratch.size:
        memory = ctypes.create_string_buffer(nbytes + 64)
        _scratch.memory, _scratch.size = memory, nbytes
        _scratch.address = -(-ctypes.addressof(memory) // 64) * 64
    return _scratch.address


class CPUDevice(DeviceBase):
    """This machine's CPU. `CPU:1` and so on are the same cores and memory under other names, for trying out sharding.

    They share the pool: launches for several of them in one batch run side by side.
    """

    NAME = "CPU"
    renderers = {"LLVM": "aril.renderer.llvm:llvm_renderer"}

    def __init__(self, name: str) -> None:
        super().__init__(name, CPUAllocator(name))
        faults.install()

    @classmethod
    def why_not(cls) -> str | None:
        arch = host_target().arch
        return None if arch in ("x86_64", "aarch64") else f"it knows x86-64 and AArch64, this machine is {arch}"

    def summary(self) -> str:
        t = self.target
        return f": {t.arch}, {t.cores} threads, {t.vector_registers} vectors of {t.vector_bytes} bytes"

    @property
    def target(self) -> HostTarget:
        return host_target()

    def load(self, kernel: CompiledKernel) -> CPUProgram:
        try:
            return CPUProgram(kernel)
        except ObjectError as error:
            raise DeviceError(f"{self.name} cannot load kernel {kernel.name!r}: {error}") from error

    @property
    def ring(self) -> Ring:
        from aril.runtime.pool_ring import pool_ring

        return pool_ring()
