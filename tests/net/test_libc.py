"""Freed memory that stays in the process, turns at the processor, and news of a directory."""

import platform
import resource
import select
import subprocess
import sys
from pathlib import Path

import pytest

from kelek.net.libc import SCHED_SETATTR, DirectoryWatch

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


TURNS = """
import ctypes, os, platform, threading
from kelek.net.libc import SCHED_SETATTR, TURN_NS, _SCHED_ATTR, shorten_turns

def turn():
    attributes = ctypes.create_string_buffer(_SCHED_ATTR.size)
    number = SCHED_SETATTR[platform.machine()] + 1  # sched_getattr(2).
    assert ctypes.CDLL(None).syscall(number, 0, attributes, _SCHED_ATTR.size, 0) == 0
    found = _SCHED_ATTR.unpack(attributes.raw)
    turns.append((found[1], found[3], found[5] == TURN_NS))

turns = []
os.nice(3)
assert shorten_turns()
turn()
thread = threading.Thread(target=turn)
thread.start()
thread.join()
print(turns)
"""


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in SCHED_SETATTR,
    reason="the number of the system call is not known",
)
def test_turns_are_short_and_the_priority_stays() -> None:
    """Of later threads, too. Before Linux 6.12 nothing changes."""
    release = tuple(map(int, platform.release().split("-")[0].split(".")[:2]))
    command = [sys.executable, "-c", TURNS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"{[(0, 3, release >= (6, 12))] * 2}\n"


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone has inotify")
def test_a_watch_tells_of_each_change_of_a_file(tmp_path: Path) -> None:
    path, other = tmp_path / "a.key", tmp_path / "b.key"
    watch = DirectoryWatch(tmp_path)

    def is_told() -> bool:
        found = bool(select.select([watch.fd], [], [], 0)[0])
        assert watch.clear() is found
        return found

    assert not is_told()
    for change in (
        lambda: path.write_text("new"),
        lambda: path.write_text("other"),
        lambda: path.chmod(0o600),
        lambda: path.rename(other),
        lambda: other.unlink(),
    ):
        change()
        assert is_told()
        assert not is_told()
    watch.close()


def test_a_watch_of_a_missing_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        DirectoryWatch(tmp_path / "missing")
