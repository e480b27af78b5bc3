"""How much of the machine's memory bandwidth and int8 arithmetic the kernels use."""

from __future__ import annotations

from collections.abc import Callable

from tokenmill.core.events import PeaksMeasured, StepCompleted
from tokenmill.observe.series import Values


class KernelWork:
    """Series of counted work and of its share of the machine's peaks. Not safe from several threads.

    Args:
        values: the series of a name.
    """

    def __init__(self, values: Callable[[str], Values]) -> None:
        self._seconds = values("tokenmill_engine_kernel_seconds")
        self._bytes = values("tokenmill_engine_moved_bytes")
        self._multiply_adds = values("tokenmill_engine_multiply_adds")
        self._memory_share = values("tokenmill_engine_memory_share_ratio")
        self._int8_share = values("tokenmill_engine_int8_share_ratio")
        self._peak_bytes = values("tokenmill_peak_read_bytes_per_second")
        self._peak_multiply_adds = values("tokenmill_peak_int8_multiply_adds_per_second")
        self._cpu = values("tokenmill_cpu_info")
        self._peaks: PeaksMeasured | None = None

    def compare_with(self, peaks: PeaksMeasured) -> None:
        """Steps from now on have shares."""
        self._peaks = peaks
        self._peak_bytes.set(peaks.read_bytes_per_second)
        self._peak_multiply_adds.set(peaks.int8_multiply_adds_per_second)
        self._cpu.set(1, peaks.isa, str(peaks.threads))

    def step(self, event: StepCompleted, phase: str) -> None:
        """Adds a step; one whose kernels do not count has no bytes and no shares."""
        self._seconds.add(event.compute_s, phase)
        if event.moved_bytes == 0:
            return
        self._bytes.add(event.moved_bytes, phase)
        self._multiply_adds.add(event.multiply_adds, phase)
        if self._peaks is not None and event.compute_s > 0:
            most_bytes = self._peaks.read_bytes_per_second * event.compute_s
            most_multiply_adds = self._peaks.int8_multiply_adds_per_second * event.compute_s
            self._memory_share.set(event.moved_bytes / most_bytes, phase)
            self._int8_share.set(event.multiply_adds / most_multiply_adds, phase)
