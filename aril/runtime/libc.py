"""The C library's calls for pages of memory, with the types of their arguments."""

from __future__ import annotations

import ctypes
from functools import lru_cache


@lru_cache(maxsize=1)
def libc() -> ctypes.CDLL:
    """`mmap`, `munmap`, `mprotect` and `madvise`; `ctypes.get_errno()` says why one failed."""
    out = ctypes.CDLL(None, use_errno=True)
    out.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    out.mmap.restype = ctypes.c_void_p
    out.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    for change in (out.mprotect, out.madvise):
        change.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return out
