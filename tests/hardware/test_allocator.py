"""The allocator keeps freed memory: the same block again costs no page faults."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import ctypes, resource
from tokenmill.hardware.allocator import keep_freed_memory
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
if {keep}: print("kept", keep_freed_memory())
def touch():
    block = libc.malloc(16 << 20)
    ctypes.memset(block, 1, 16 << 20)
    libc.free(block)
touch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10): touch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(*, keep: bool) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(keep=keep)], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_freed_blocks_are_used_again_without_page_faults() -> None:
    *told, count = faults(keep=True)
    assert told == ["kept", "True"]
    # 10 x 16 MiB are 40,960 pages of 4 KiB
    assert int(count) < 1000
