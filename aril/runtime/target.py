"""What this machine's CPU is: architecture, vector registers, caches, cores we may use. Read from the system's files.

In come /proc and /sys; out goes a `HostTarget`. LLVM is not asked here: importing it costs 0.16 s, so its names of the
features wait until something is compiled.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b

from aril.config import CPU_TARGET, NUM_CPU_THREADS

# cpuinfo's spelling of the features code generation asks about, x86-64 then AArch64.
_FMA = frozenset({"fma", "asimd"})
_F16_CONVERT = frozenset({"f16c", "fphp"})
# Ice Lake, Zen 4 and later: there 512-bit instructions no longer lower the clock much.
_GOOD_AVX512 = frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vbmi2"})
# What each level of the x86-64 psABI lacks, by the beginnings of names that cpuinfo and LLVM have in common.
_BEYOND: dict[str, tuple[str, ...]] = {
    "": (),
    "x86-64-v2": ("avx", "amx", "fma", "f16c", "bmi", "vaes", "vpclmulqdq", "xop"),
    "x86-64-v3": ("avx512", "avx10", "amx", "avx_", "avxvnni", "avxifma", "avxneconvert"),
}


@dataclass(frozen=True)
class HostTarget:
    """A CPU as code generation and the compiler see it. `key` names it in caches.

    `vector_bytes` is the width worth using, `max_vector_bytes` the widest there is. `cpu` and `features` are LLVM's
    names; empty means "this machine", which LLVM finds out when it compiles. `level` is CPU_TARGET, of this machine.
    """

    arch: str = "x86_64"
    model: str = "generic"
    flags: frozenset[str] = frozenset()
    vector_bytes: int = 16
    max_vector_bytes: int = 16
    vector_registers: int = 16
    l1: int = 32 << 10
    l2: int = 512 << 10
    l3: int = 4 << 20
    cores: int = 1
    cpu: str = ""
    features: str = ""
    level: str = ""

    @property
    def has_fma(self) -> bool:
        return not _FMA.isdisjoint(self.flags)

    @property
    def has_f16_conversion(self) -> bool:
        return not _F16_CONVERT.isdisjoint(self.flags)

    @property
    def has_bf16_pairs(self) -> bool:
        """Whether it adds the products of pairs of bfloat16 to float32 in one instruction."""
        return {"avx512_bf16", "avx512vl"} <= self.flags

    @property
    def is_host(self) -> bool:
        return not self.cpu and not self.features

    @property
    def triple(self) -> str:
        return f"{self.arch}-unknown-linux-gnu"

    @cached_property
    def key(self) -> str:
        """Changes whenever compiled code may differ. The number of cores is no part of it."""
        flags = " ".join(sorted(self.flags))
        parts = (self.arch, self.model, flags, str(self.vector_bytes), self.cpu, self.features, self.level)
        return blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()


def generic_target(arch: str) -> HostTarget:
    """A machine of which only the architecture is known: SSE2 or NEON. For tests and for compiling for elsewhere."""
    if arch == "aarch64":
        return HostTarget(arch, flags=frozenset({"asimd"}), vector_registers=32, cpu="generic")
    return HostTarget(arch, cpu="x86-64")


@lru_cache(maxsize=1)
def host_target() -> HostTarget:
    """The machine we run on, as far as CPU_TARGET admits it."""
    arch = {"arm64": "aarch64", "amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    info = _cpuinfo("/proc/cpuinfo")
    level = CPU_TARGET.value if arch == "x86_64" else ""
    flags = frozenset(f for f in (info.get("flags") or info.get("Features") or "").split() if not beyond(level, f))
    names = ("vendor_id", "cpu family", "model", "model name", "stepping", "CPU implementer", "CPU part", "CPU variant")
    width, widest, registers = _vectors(arch, flags)
    l1, l2, l3 = _caches("/sys/devices/system/cpu/cpu0/cache")
    model = "|".join(info.get(name, "") for name in names)
    return HostTarget(arch, model, flags, width, widest, registers, l1, l2, l3, usable_cores(), level=level)


def beyond(level: str, feature: str) -> bool:
    """Whether a feature, by the name of cpuinfo or LLVM, is more than CPU_TARGET=`level` admits."""
    return feature.startswith(_BEYOND[level])


def _vectors(arch: str, flags: frozenset[str]) -> tuple[int, int, int]:
    """(bytes worth using, most bytes, registers)."""
    if arch == "aarch64":
        return 16, 16, 32
    if {"avx512f", "avx512vl"} <= flags:
        return (64 if flags >= _GOOD_AVX512 else 32), 64, 32
    return (32, 32, 16) if "avx2" in flags else (16, 16, 16)


def _cpuinfo(path: str) -> dict[str, str]:
    """The first processor's lines. The file is made line by line as it is read, so the others are not asked for."""
    info: dict[str, str] = {}
    try:
        with open(path, buffering=4096) as file:
            for line in file:
                name, colon, value = line.partition(":")
                if not colon:
                    break
                info[name.strip()] = value.strip()
    except OSError:
        pass  # not Linux: a generic machine
    return info


def _caches(folder: str) -> tuple[int, int, int]:
    """Bytes of the data caches of levels 1 to 3; usual sizes where the system does not say."""
    sizes = {1: 32 << 10, 2: 512 << 10, 3: 4 << 20}
    for index in range(8):
        try:
            kind, level, size = (read_line(f"{folder}/index{index}/{name}") for name in ("type", "level", "size"))
            if kind != "Instruction":
                sizes[int(level)] = int(size.rstrip("KMG")) << {"K": 10, "M": 20, "G": 30}.get(size[-1], 0)
        except (OSError, ValueError, IndexError):
            continue
    return sizes[1], sizes[2], sizes[3]


def read_line(path: str) -> str:
    """A small system file's text, without the spaces around it; OSError if there is none."""
    with open(path) as file:
        return file.read().strip()


def cgroup_quota(root: str = "/sys/fs/cgroup", mine: str = "/proc/self/cgroup") -> float | None:
    """How many CPUs' time this process may use, from cgroups of version 1 or 2; None without a limit.

    A limit of any group above ours binds too, so all of them are read.
    """
    try:
        lines = read_line(mine).splitlines()
    except OSError:
        return None
    limits = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        bases = [f"{root}/{controllers}", f"{root}/cpu", root] if controllers else [root, f"{root}/unified"]
        # In a container the path may be the host's, while what is mounted here is our own group.
        parts = [part for part in path.split("/") if part]
        for base in bases:
            for depth in range(len(parts) + 1):
                limits.append(_quota_of("/".join([base, *parts[:depth]])))
    known = [limit for limit in limits if limit is not None and limit > 0]
    return min(known, default=None)


def _quota_of(folder: str) -> float | None:
    try:
        quota, period = read_line(f"{folder}/cpu.max").split()[:2]
    except (OSError, ValueError):
        try:
            quota, period = read_line(f"{folder}/cpu.cfs_quota_us"), read_line(f"{folder}/cpu.cfs_period_us")
        except OSError:
            return None
    try:
        return None if quota == "max" else int(quota) / int(period)
    except (ValueError, ZeroDivisionError):
        return None


@lru_cache(maxsize=1)
def _system_cores() -> int:
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_quota()
    # Rounded down: a thread the quota does not cover is stopped while the others wait for it.
    return allowed if quota is None else max(1, min(allowed, int(quota)))


def usable_cores() -> int:
    """The least of the affinity, the cgroup quota and NUM_CPU_THREADS."""
    limit = NUM_CPU_THREADS.value
    return min(_system_cores(), limit) if limit else _system_cores()
