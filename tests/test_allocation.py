"""What the process frees it keeps: fewer page faults for buffers that come and go."""

import platform
import subprocess
import sys

import pytest

FAULTS = """
import sys
from grre_jax.allocation import keep_freed_memory
kept = keep_freed_memory() if sys.argv[1] == "keep" else None
import ctypes, resource
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
def use():
    block = libc.malloc(3 << 30)  # more than the trim threshold's largest number
    libc.memset(block, 1, 128 << 20)
    libc.free(block)
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    use()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the settings are glibc's")
def test_a_buffer_that_comes_again_costs_no_page_faults():
    found = {}
    for how in ("keep", "plain"):
        done = subprocess.run(
            [sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True
        )
        kept, faults = done.stdout.split()
        found[how] = int(faults)
        assert kept == {"keep": "True", "plain": "None"}[how]
    assert found["keep"] < 100 < found["plain"]
