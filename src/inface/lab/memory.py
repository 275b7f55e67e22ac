"""Make glibc keep freed memory, so that the large arrays of each batch need no system calls."""

from __future__ import annotations

import ctypes
import sys

__all__ = ["keep_freed_memory"]

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
LARGE = 32 << 20  # the largest threshold that glibc accepts


def keep_freed_memory() -> bool:
    """Make the allocator of this process keep freed memory; return whether it can.

    This speeds up the training of convolutions. The memory is returned when the process ends, so call it only in
    processes that just train.
    """
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):
        return False
    return bool(libc.mallopt(MMAP_THRESHOLD, LARGE) and libc.mallopt(TRIM_THRESHOLD, 1 << 30))
