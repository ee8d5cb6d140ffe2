"""What a result was measured on: processor, caches, memory, kernel, versions, revision, load."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

from aril.runtime.target import host_target


def describe(versions: dict[str, str], threads: int) -> dict[str, Any]:
    """As plain data, for the JSON file and the head of the page."""
    target = host_target()
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cpu": _cpu_name() or target.model,
        "arch": target.arch,
        "cores": os.cpu_count(),
        "threads": threads,
        "vector_bytes": target.vector_bytes,
        "cache_bytes": {"l1": target.l1, "l2": target.l2, "l3": target.l3},
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": versions,
        "revision": _revision(),
        "load_before": list(os.getloadavg()),
    }


def _cpu_name() -> str:
    """As the system calls it; "" where it does not."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((text.partition(":")[2].strip() for text in lines if text.startswith("model name")), "")


def _revision() -> str:
    """The commit, with a `+` where files differ from it; "" outside of a clone."""
    root = Path(__file__).parent.parent
    try:
        commit = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
        changed = subprocess.run(
            ["git", "-C", str(root), "status", "--porcelain", "--untracked-files=no"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
    return commit + ("+" if changed else "")
