"""Devices as the rest of aril sees them: the registry, buffers and the classes a runtime implements.

In come device names and compiled kernels; out go memory and launches. Each device's own file is in `runtime/`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from aril.config import DEBUG, DEV
from aril.counters import GlobalCounters
from aril.forks import renewed_in_child

if TYPE_CHECKING:
    from aril.dtype import DType
    from aril.runtime.ring import Ring


class DeviceError(RuntimeError):
    """A device that does not exist here, or cannot do what was asked."""


class OutOfMemory(MemoryError):
    """A device has no room for a buffer, even after giving back everything that was only kept for reuse."""


# ------------------------------------------------------------------------------------------------- compiled kernels


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """A kernel ready to load: `binary` is an object file on the CPU, another device's code or text elsewhere.

    It takes `nbufs` buffers and `nvars` integer values; `chunks` is its launch count when that is a constant (a launch
    may give another), `scratch_bytes` the private memory each worker needs.
    """

    name: str
    binary: bytes
    nbufs: int
    nvars: int = 0
    scratch_bytes: int = 0
    chunks: int = 1


# ----------------------------------------------------------------------------------------------------------- memory


class Allocator:
    """Memory of one device. A runtime overrides the methods with an underscore; `opaque` is whatever names a block.

    On host-visible devices `opaque` is the address, an int, and views are sums.
    """

    host_visible: bool = True

    def __init__(self, device: str) -> None:
        self.device = device
        self._counters = GlobalCounters.device(device)

    def _alloc(self, nbytes: int) -> Any:
        """Memory of at least `nbytes`; MemoryError when there is none."""
        raise NotImplementedError(f"{type(self).__name__} cannot allocate memory")

    def _free(self, opaque: Any, nbytes: int) -> None:
        """Give back a block from `_alloc(nbytes)`."""

    def _view(self, opaque: Any, offset_bytes: int) -> Any:
        return opaque + offset_bytes

    def _copyin(self, opaque: Any, source: memoryview) -> None:
        host_memory(opaque, source.nbytes)[:] = source

    def _copyout(self, target: memoryview, opaque: Any) -> None:
        target[:] = host_memory(opaque, target.nbytes)

    def _release(self) -> int:
        """Give back what is kept only for reuse; the number of bytes."""
        return 0

    def release(self) -> int:
        """Give what is kept only for reuse back to the system; the number of bytes."""
        return self._release()

    def alloc(self, nbytes: int) -> Any:
        """Memory for `nbytes`. OutOfMemory says how much was asked for, what is held, and by whom."""
        try:
            opaque = self._alloc(nbytes)
        except MemoryError:
            import gc

            gc.collect()  # buffers in reference cycles come back first
            self._release()
            try:
                opaque = self._alloc(nbytes)
            except MemoryError as error:
                raise OutOfMemory(_memory_report(self.device, nbytes)) from error
        GlobalCounters.memory(self._counters, nbytes)
        return opaque

    def free(self, opaque: Any, nbytes: int) -> None:
        """Give back a block of `alloc(nbytes)`."""
        self._free(opaque, nbytes)
        GlobalCounters.memory(self._counters, -nbytes)


def host_memory(address: int, nbytes: int) -> memoryview:
    """The `nbytes` at `address` as writable bytes. Nothing keeps the memory alive: for use on the spot."""
    if nbytes == 0:
        return memoryview(bytearray())
    return _memory_at()(address, nbytes, 0x200)  # PyBUF_WRITE


@lru_cache(maxsize=1)
def _memory_at() -> Callable[[int, int, int], memoryview]:
    import ctypes

    make = ctypes.pythonapi.PyMemoryView_FromMemory
    make.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)
    make.restype = ctypes.py_object
    return make


def readable_size(nbytes: int) -> str:
    """`1536` -> `1.5 KiB`."""
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} TiB"


def _memory_report(device: str, asked: int) -> str:
    import gc

    groups: dict[tuple[int, str], int] = {}
    for thing in gc.get_objects():
        if type(thing) is Buffer and thing.device == device and thing.base is None and thing.is_allocated:
            key = (thing.nbytes, f"{thing.size} x {thing.dtype.name}")
            groups[key] = groups.get(key, 0) + 1
    largest = sorted(groups.items(), key=lambda item: -item[0][0] * item[1])[:4]
    holders = "; ".join(f"{n} of {readable_size(size)} ({what})" for (size, what), n in largest) or "none"
    held = readable_size(GlobalCounters.device(device).mem_used)
    return (
        f"{device} has no room for {readable_size(asked)}: buffers in use hold {held} (the largest: {holders}). "
        "Use a smaller batch, drop tensors no longer needed, or realize in smaller steps"
    )


class Buffer:
    """`size` elements of `dtype` on `device`, allocated at first use and given back when it is collected.

    `base` and `offset_bytes` make it a view of another buffer. `opaque` with `external` wraps memory that belongs to
    another object (a NumPy array): that object is kept alive, and nothing is freed.
    """

    __slots__ = (
        "__weakref__",
        "_allocator",
        "_opaque",
        "base",
        "device",
        "dtype",
        "external",
        "nbytes",
        "offset_bytes",
        "size",
    )

    def __init__(
        self,
        device: str,
        size: int,
        dtype: DType,
        *,
        opaque: Any = None,
        base: Buffer | None = None,
        offset_bytes: int = 0,
        external: object = None,
    ) -> None:
        self.device, self.size, self.dtype = device, size, dtype
        self.nbytes = size * dtype.itemsize
        self.base, self.offset_bytes, self.external = base, offset_bytes, external
        self._opaque = opaque
        self._allocator: Allocator | None = None

    @property
    def is_allocated(self) -> bool:
        return self._opaque is not None or (self.base is not None and self.base.is_allocated)

    def allocate(self) -> Buffer:
        """Make sure there is memory behind it, and return it. OutOfMemory when there is none."""
        if self._opaque is None:
            if self.base is None:
                device = Device.opened.get(self.device) or Device[self.device]
                self._opaque = device.allocator.alloc(self.nbytes)
                self._allocator = device.allocator
            else:
                self._opaque = Device[self.device].allocator._view(self.base.allocate()._opaque, self.offset_bytes)
        return self

    @property
    def opaque(self) -> Any:
        """What the device's launches take: the address, on host-visible devices. Allocates if need be."""
        return self._opaque if self._opaque is not None else self.allocate()._opaque

    @property
    def address(self) -> int:
        """The first byte's address in this process. DeviceError where the device's memory is not visible here."""
        opaque = self._opaque if self._opaque is not None else self.allocate()._opaque
        if type(opaque) is not int:
            raise DeviceError(f"memory on {self.device} has no address in this process; copy it out instead")
        return opaque

    def copyin(self, source: memoryview) -> Buffer:
        """Fill it from `source`, which must be contiguous and of the same number of bytes."""
        source = self._checked(source, "copyin from")
        if self.nbytes:
            self.allocate()
            Device[self.device].allocator._copyin(self._opaque, source)
        return self

    def copyout(self, target: memoryview) -> memoryview:
        """Copy it to `target`, which must be contiguous, writable and of the same number of bytes; returns `target`."""
        flat = self._checked(target, "copyout to")
        if self.nbytes:
            self._require_memory("copyout")
            Device[self.device].synchronize()
            Device[self.device].allocator._copyout(flat, self._opaque)
        return target

    def copy_from(self, source: Buffer) -> Buffer:
        """Fill it from another buffer of the same number of bytes, on any device."""
        if source.nbytes != self.nbytes:
            raise ValueError(f"cannot copy {source.nbytes} bytes from {source.device} to a buffer of {self.nbytes}")
        if not self.nbytes:
            return self
        if type(source.opaque) is int and Device[source.device].allocator.host_visible:
            Device[source.device].synchronize()
            return self.copyin(host_memory(source.address, source.nbytes))
        if type(self.opaque) is int and Device[self.device].allocator.host_visible:
            source.copyout(host_memory(self.address, self.nbytes))
            return self
        return self.copyin(source.copyout(memoryview(bytearray(source.nbytes))))

    def as_memoryview(self) -> memoryview:
        """Its bytes: without a copy (and keeping it alive) where the device's memory is visible, else copied out."""
        if not self.nbytes:
            return memoryview(bytearray())
        self._require_memory("read")
        if not Device[self.device].allocator.host_visible:
            return self.copyout(memoryview(bytearray(self.nbytes)))
        import ctypes

        Device[self.device].synchronize()
        window = (ctypes.c_char * self.nbytes).from_address(self.address)
        window.owner = self  # type: ignore[attr-defined]  # the memory lives as long as anyone looks at it
        return memoryview(window).cast("B")

    def view(self, size: int, dtype: DType, offset_bytes: int = 0) -> Buffer:
        """`size` elements of `dtype` from `offset_bytes` on, sharing this memory. ValueError outside of it."""
        if offset_bytes < 0 or offset_bytes + size * dtype.itemsize > self.nbytes:
            raise ValueError(
                f"a view of {size} x {dtype.name} at byte {offset_bytes} does not fit a buffer of {self.nbytes} bytes"
            )
        root = self.base or self
        return Buffer(self.device, size, dtype, base=root, offset_bytes=self.offset_bytes + offset_bytes)

    def _require_memory(self, what: str) -> None:
        if not self.is_allocated:
            raise DeviceError(f"cannot {what} a buffer of {self.nbytes} bytes on {self.device} that was never written")
        self.allocate()  # a view resolves its address now

    def _checked(self, memory: memoryview, what: str) -> memoryview:
        memory = memory if isinstance(memory, memoryview) else memoryview(memory)
        if not memory.contiguous or memory.nbytes != self.nbytes:
            raise ValueError(
                f"{what} {memory.nbytes} {'' if memory.contiguous else 'non-contiguous '}bytes does not match the "
                f"buffer of {self.nbytes} bytes ({self.size} x {self.dtype.name}) on {self.device}"
            )
        return memory if memory.format == "B" and memory.ndim == 1 else _as_bytes(memory)

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # No attribute at all when __init__ failed; no allocator when the memory is not ours. When the interpreter
        # ends, the modules below may be gone already, and the system takes the memory back anyway.
        try:
            allocator = self._allocator
        except AttributeError:
            return
        if allocator is not None and not finalizing():
            allocator.free(self._opaque, self.nbytes)

    def __repr__(self) -> str:
        where = "allocated" if self.is_allocated else "not allocated"
        view = f", view at byte {self.offset_bytes}" if self.base is not None else ""
        return f"<Buffer {self.device} {self.size} x {self.dtype.name}, {where}{view}>"


def _as_bytes(memory: memoryview) -> memoryview:
    if memory.nbytes == 0:
        return memoryview(bytearray())
    return memory.cast("B")


# ---------------------------------------------------------------------------------------------------------- devices


class Program:
    """A loaded kernel. Call it with the buffers' `opaque`s in order, then the values of its variables."""

    name: str

    def __call__(
        self, buffers: Sequence[Any], values: Sequence[int] = (), chunks: int | None = None, wait: bool = False
    ) -> float | None:
        """Launch `chunks` (default: the kernel's own) indices. With `wait`, seconds until all were done."""
        raise NotImplementedError

    def launcher(self, chunks: int) -> Callable[[Sequence[Any]], object]:
        """Launches of `chunks` indices with given buffers, for a kernel without variables that is launched again and
        again: what does not change is settled once."""
        return lambda buffers: self(buffers, (), chunks)


class DeviceBase:
    """One device. A runtime file holds one subclass, with `NAME` the name users write.

    `renderers` maps a renderer's name to where its maker is ("module:function"), the default first. A maker takes the
    device's `target` and returns the renderer.
    """

    NAME: ClassVar[str]
    renderers: ClassVar[dict[str, str]] = {}

    def __init__(self, name: str, allocator: Allocator) -> None:
        self.name, self.allocator = name, allocator

    @classmethod
    def why_not(cls) -> str | None:
        """None if the device is usable here, else the reason and what would make it so."""
        return None

    def summary(self) -> str:
        """A few words on the device for people, behind its name."""
        return ""

    @property
    def target(self) -> Any:
        """What code generation may know: architecture, features, vector registers, cache sizes. None: nothing."""
        return None

    @property
    def renderer_name(self) -> str:
        """The renderer in use: the one `DEV` names for this device, else its default, "" if it has none."""
        spec = Device.spec()
        if spec.renderer and spec.device.partition(":")[0] == self.NAME:
            if spec.renderer not in self.renderers:
                offered = ", ".join(self.renderers) or "none"
                raise DeviceError(f"DEV={DEV.value}: {self.NAME} has no renderer {spec.renderer}; it has {offered}")
            return spec.renderer
        return next(iter(self.renderers), "")

    @property
    def renderer(self) -> Any:
        """The maker of the renderer in use: `device.renderer(device.target)` turns kernels into source."""
        where = self.renderers.get(self.renderer_name)
        if where is None:
            raise DeviceError(f"{self.name} compiles no kernels")
        module, _, attribute = where.partition(":")
        return getattr(importlib.import_module(module), attribute)

    @property
    def ring(self) -> Ring | None:
        """How batches are encoded for it (`runtime/ring.py`). None: its launches are made one by one."""
        return None

    def load(self, kernel: CompiledKernel) -> Program:
        """Make `kernel` callable."""
        raise DeviceError(f"{self.name} runs no kernels")

    def synchronize(self) -> None:
        """Return when everything launched so far is done."""


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """What `DEV` asks for: `USB+AMD:1:LLVM:gfx1100` -> interface USB, device AMD:1, renderer LLVM, arch gfx1100."""

    device: str
    renderer: str = ""
    arch: str = ""
    interface: str = ""


@lru_cache(maxsize=256)
def parse_spec(text: str) -> DeviceSpec:
    """Read a value of `DEV`: `[interface+]device[:index][:renderer[:architecture]]`."""
    interface, plus, rest = text.strip().rpartition("+")
    parts = rest.split(":")
    if not all(parts) or len(parts) > 4 or (plus and not interface):
        raise DeviceError(f"DEV={text!r} is not a device; write it like CPU, CPU:1, CPU:LLVM or USB+AMD:LLVM:gfx1100")
    name = parts.pop(0)
    index = parts.pop(0) if parts and parts[0].isdigit() else "0"
    renderer = parts.pop(0).upper() if parts else ""
    arch = parts.pop(0) if parts else ""
    if parts:
        raise DeviceError(f"DEV={text!r} has {len(parts)} part(s) too many: {':'.join(parts)}")
    return DeviceSpec(canonical(f"{name}:{index}"), renderer, arch, interface.upper())


def canonical(name: str) -> str:
    """One spelling a device: `cpu:0` -> `CPU`, `Cuda:1` -> `CUDA:1`; what follows DISK: is a path and stays."""
    if not isinstance(name, str):
        raise TypeError(f"a device is named by text like CPU or CPU:1, not by {name!r}; a dtype goes to cast()")
    return _canonical(name)


@lru_cache(maxsize=1024)
def _canonical(name: str) -> str:
    kind, _, rest = name.partition(":")
    kind = kind.strip().upper()
    if rest.isdigit():
        rest = str(int(rest))
    return f"{kind}:{rest}" if rest and rest != "0" else kind


class _Registry:
    """All devices by name, opened at first use. `Device["CPU"]`, `Device.DEFAULT`."""

    def __init__(self) -> None:
        self._modules = {name: f"aril.runtime.{name.lower()}" for name in ("CPU", "PYTHON", "NULL", "DISK", "NPY")}
        self.opened: dict[str, DeviceBase] = {}  # so far
        self._lock = renewed_in_child(self, "_lock")
        self._default: str | None = None

    def register(self, name: str, module: str) -> None:
        """Add a device type: `module` holds one DeviceBase with `NAME == name`."""
        self._modules[name] = module

    def __getitem__(self, name: str) -> DeviceBase:
        found = self.opened.get(name) if isinstance(name, str) else None
        return found if found is not None else self._make(canonical(name))

    def _make(self, name: str) -> DeviceBase:
        with self._lock:
            if name not in self.opened:
                kind, _, index = name.partition(":")
                if index and not index.isdigit() and kind != "DISK":
                    raise DeviceError(f"device {name!r}: what follows {kind}: is a number, as in {kind}:1")
                self.demand(name)
                opened = self._class(kind)(name)  # type: ignore[call-arg]
                if DEBUG.value >= 1:
                    print(f"aril: opened {name}{opened.summary()}", file=sys.stderr)
                self.opened[name] = opened
            return self.opened[name]

    def demand(self, name: str) -> None:
        """Nothing, where `name` can be used here. Errors: DeviceError that says why not, and what can be used."""
        reason = None if name in self.opened else self.why_not(name)
        if reason is not None:
            usable = ", ".join(one for one in self._modules if self.why_not(one) is None)
            reason += "" if reason.endswith("?") else "."
            raise DeviceError(f"device {name!r} is not usable here: {reason} Usable: {usable}")

    def _class(self, kind: str) -> type[DeviceBase]:
        module = importlib.import_module(self._modules[kind])
        for thing in vars(module).values():
            if isinstance(thing, type) and issubclass(thing, DeviceBase) and getattr(thing, "NAME", None) == kind:
                return thing
        raise DeviceError(f"{module.__name__} holds no DeviceBase whose NAME is {kind!r}")

    def why_not(self, name: str) -> str | None:
        """None if the device `name` can be used here, else why not."""
        kind = canonical(name).partition(":")[0]
        if kind not in self._modules:
            import difflib

            close = difflib.get_close_matches(kind, self._modules, n=1)
            return "there is no such device" + (f"; did you mean {close[0]}?" if close else "")
        try:
            return self._class(kind).why_not()
        except ImportError as error:
            return f"its runtime does not import ({error})"

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def spec(self) -> DeviceSpec:
        """What `DEV` asks for in this thread; the CPU when it is empty."""
        return parse_spec(DEV.value or "CPU")

    @property
    def DEFAULT(self) -> str:  # reads as the constant it is for most programs
        return self._default or self.spec().device

    @DEFAULT.setter
    def DEFAULT(self, name: str) -> None:
        self._default = self[name].name


Device = _Registry()
