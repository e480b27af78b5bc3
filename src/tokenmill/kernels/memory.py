"""Large tensors whose memory is really there from the start."""

from __future__ import annotations

import contextlib
import math
import mmap

import torch


def committed(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A zeroed tensor whose pages are resident, huge ones where the system has them.

    Memory that is only promised would be taken page by page while serving, and may not be there then.
    """
    size = math.prod(shape) * dtype.itemsize
    if size == 0 or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(shape, dtype=dtype).zero_()
    region = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel built without huge pages
        region.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(region, dtype=dtype).view(shape).zero_()
