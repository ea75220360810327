"""Processes, and their CPU time and memory, for the benchmarks (Linux only)."""

import os
import platform
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from kelek.mapping.sandbox import die_with_parent

SYNC_COUNT = 50


class BenchError(Exception):
    """Why a measurement cannot be made, in one line."""


def ends_with_us() -> Callable[[], None]:
    """For Popen's preexec_fn: the kernel ends the child when the benchmark ends, also by SIGKILL
    (Linux)."""
    parent = os.getpid()

    def prepare() -> None:
        die_with_parent()
        if os.getppid() != parent:  # The parent has ended already.
            os._exit(1)

    return prepare


def cpu_s(pids: Iterable[int]) -> float:
    """Returns the CPU seconds of processes and their living threads, to the nanosecond."""
    total = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            try:
                total += int(task.read_text().split()[0])
            except OSError:
                continue  # The process has ended meanwhile.
    return total / 1e9


class Memory(NamedTuple):
    """Proportional set size in bytes: a page that n processes share counts 1/n for each."""

    anonymous: int  # Heaps, stacks, private writable pages.
    file: int  # Code and mapped files, which the kernel can drop.


def memory(pids: Iterable[int]) -> Memory:
    """Returns the sum over processes, from /proc/PID/smaps_rollup."""
    anonymous = file = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            key, _, rest = line.partition(":")
            if key == "Pss_Anon":
                anonymous += int(rest.split()[0]) * 1024
            elif key == "Pss_File":
                file += int(rest.split()[0]) * 1024
    return Memory(anonymous, file)


def sync_us(directory: Path) -> float:
    """Returns the median microseconds of fdatasync after 4 KiB written over zeros."""
    path = directory / "sync"
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
    times = []
    try:
        os.pwrite(descriptor, bytes(4096 * SYNC_COUNT), 0)
        os.fsync(descriptor)
        for i in range(SYNC_COUNT):
            started = time.perf_counter()
            os.pwrite(descriptor, b"x" * 4096, i * 4096)
            os.fdatasync(descriptor)
            times.append(time.perf_counter() - started)
    finally:
        os.close(descriptor)
        path.unlink()
    return statistics.median(times) * 1e6


def file_system(directory: Path) -> str:
    """Returns the type of a directory's file system."""
    if shutil.which("findmnt") is None:
        return "unknown"
    command = ["findmnt", "-n", "-o", "FSTYPE", "-T", str(directory)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def describe(directory: Path) -> dict[str, str]:
    """Describes the machine and the data's place, for the head of the results."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "machine": f"{os.cpu_count()} x {model}, {pages / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "data on": f"{file_system(directory)}, fdatasync of 4 KiB {sync_us(directory):.0f} us",
    }
