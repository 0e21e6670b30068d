"""Memory of a process that trains on the CPU: what it frees it keeps, for the next step.

glibc gives a block of 32 MiB or more back to the system as soon as it is freed, and for the next
one the system has to zero every page anew. A training step frees and asks for the same blocks each
time; keeping them is what torch's own allocator does on a GPU. `benchmarks/host_memory.py` shows
what it brings, and what it holds.
"""

from __future__ import annotations

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_* of glibc's malloc.h
KEPT_BLOCK = 2**30
"""Bytes of the smallest block that still goes back at once."""
KEPT_FREE = 2**31 - 1
"""Bytes free at the end of the heap, above which it shrinks; mallopt takes no more."""


def keep_freed_memory() -> bool:
    """Ask the C library to keep what this process frees, from now on.

    Does nothing, and says so, where the user has set one of malloc's variables, `GLIBC_TUNABLES=`
    without a value included, or where the C library is none that can be asked.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(
        mallopt(_MMAP_THRESHOLD, KEPT_BLOCK) and mallopt(_TRIM_THRESHOLD, KEPT_FREE)
    )
