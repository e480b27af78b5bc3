"""The C library's allocator: one heap, whose freed memory goes back while a model loads and is kept later."""

from __future__ import annotations

import ctypes

# glibc's malloc.h: mallopt(parameter, value).
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_LARGEST_MMAP_THRESHOLD = 32 << 20
_KEPT = 1 << 30
_MATRIX = 1 << 20


def share_one_heap() -> bool:
    """Lets threads that start from now on share the first heap; returns whether the library can.

    A thread's own heap is cut into pieces of 64 MiB, and what does not fit the rest of a piece begins another
    one: the blocks of a large vocabulary waste a seventh.
    """
    return _set(_ARENA_MAX, 1)


def return_freed_memory() -> bool:
    """Gives blocks from 1 MiB on back when they are freed; returns whether the library can.

    Parts that are put together into one matrix leave holes in the heap else, which the next need not fit (a
    model of 1.19 GB took 1.44).
    """
    return _set(_MMAP_THRESHOLD, _MATRIX)


def keep_freed_memory() -> bool:
    """Keeps blocks below 32 MiB in the process when they are freed; returns whether the library can.

    By default each larger result of an operator is fresh memory from the kernel, which zeroes it page by
    page: on virtual machines that takes longer than the arithmetic (decoding 16 sequences: 153 ms a step
    against 61 ms).
    """
    return _set(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD) and _set(_TRIM_THRESHOLD, _KEPT)


def _set(parameter: int, value: int) -> bool:
    try:
        return bool(ctypes.CDLL(None).mallopt(parameter, value))
    except (OSError, AttributeError):
        return False
