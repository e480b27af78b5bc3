"""The C library's allocator, told to keep what a step frees for the next step."""

from __future__ import annotations

import ctypes

# glibc's malloc.h: mallopt(parameter, value).
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST_MMAP_THRESHOLD = 32 << 20
_KEPT = 1 << 30


def keep_freed_memory() -> bool:
    """Keeps blocks below 32 MiB in the process when they are freed; returns whether the library can.

    By default each larger result of an operator is fresh memory from the kernel, which zeroes it page by
    page: on virtual machines that takes longer than the arithmetic (decoding 16 sequences: 153 ms a step
    against 61 ms).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    results = mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD), mallopt(_TRIM_THRESHOLD, _KEPT)
    return all(results)
