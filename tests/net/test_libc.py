"""keep_freed_memory(): freed memory stays in the process."""

import platform
import resource
import subprocess
import sys

import pytest

BUFFERS, BUFFER_BYTES, TIMES = 5, 2 << 20, 20
PROGRAM = f"""
import resource, sys
from kelek.net.libc import keep_freed_memory
if sys.argv[1:]:
    keep_freed_memory()
for _ in range({TIMES}):
    held = [b"x" * {BUFFER_BYTES} for _ in range({BUFFERS})]
    del held
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""


def faults(*arguments: str) -> int:
    command = [sys.executable, "-c", PROGRAM, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="keep_freed_memory() needs glibc")
def test_large_buffers_are_reused_without_page_faults() -> None:
    pages = BUFFERS * BUFFER_BYTES // resource.getpagesize()
    assert faults() - faults("keep") > TIMES * pages // 4
