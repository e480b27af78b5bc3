"""The allocator keeps freed memory, so that the same block again costs no page faults, or gives it back."""

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

HOLES = """
import ctypes, os
from tokenmill.hardware import allocator
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
print("set", allocator.{function}())
def resident(): return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
def block(size):
    made = libc.malloc(size << 20)
    ctypes.memset(made, 1, size << 20)
    return made
before = resident()
for half in range(2, 10):
    parts = [block(half), block(half)]
    whole = block(2 * half)
    for part in parts: libc.free(part)
print((resident() - before) >> 20)
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


def grown(function: str) -> int:
    code = HOLES.format(function=function)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    _, told, size = done.stdout.split()
    assert told == "True"
    return int(size)


def test_parts_of_a_matrix_leave_no_holes_while_a_model_loads() -> None:
    wholes = sum(2 * half for half in range(2, 10))  # MiB
    assert wholes <= grown("return_freed_memory") <= wholes + 2
    assert grown("keep_freed_memory") > wholes + 10  # what the parts leave is too small for the next two
