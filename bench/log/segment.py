"""How should a segment be written: into zeros written ahead or a growing file?

    python -m kelek.bench segment [DIRECTORY]

Held equal: 2000 bytes a write, one sync each, the same file system, rounds interleaved. Bytes a
sync are those that the system counts for this process (/proc/self/io).
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from kelek.bench.report import aligned
from kelek.native.log import segments

ROUNDS = 9
WRITES = 60
BYTES = 2000
START = 4096
SEGMENT_BYTES = 4 << 20


class Writing:
    """One way to write. The file continues from round to round."""

    def __init__(self, path: Path, prepare: Callable[[int], None]) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT)
        prepare(self._fd)
        os.fsync(self._fd)
        self._segment = segments.Segment(self._fd, SEGMENT_BYTES)
        self._offset = START

    def write(self, data: bytes) -> None:
        self._segment.write(self._offset, [data])
        self._segment.sync()
        self._offset += len(data)

    def close(self) -> None:
        os.close(self._fd)


def by_pages(fd: int) -> None:
    segments.segment_zero(fd, 0, SEGMENT_BYTES)


def at_once(fd: int) -> None:
    os.pwrite(fd, bytes(SEGMENT_BYTES), 0)


def growing(fd: int) -> None:
    os.pwrite(fd, bytes(START), 0)


CASES = {
    "zeros ahead by pages": by_pages,
    "zeros ahead at once": at_once,
    "growing file": growing,
}


def written() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))


def measure(writing: Writing) -> tuple[float, float]:
    """Returns median microseconds and mean bytes of a write with its sync."""
    data, times, before = os.urandom(BYTES), [], written()
    for _ in range(WRITES):
        start = time.perf_counter()
        writing.write(data)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6, (written() - before) / WRITES


def main(arguments: list[str]) -> int:
    if not Path("/proc/self/io").exists():
        print("bench segment: needs /proc/self/io, which only Linux has", file=sys.stderr)
        return 2
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in CASES}
    with tempfile.TemporaryDirectory(dir=arguments[0] if arguments else ".") as folder:
        writings = {
            name: Writing(Path(folder, str(number)), case)
            for number, (name, case) in enumerate(CASES.items())
        }
        for _ in range(ROUNDS):
            for name, writing in writings.items():
                found[name].append(measure(writing))
        for writing in writings.values():
            writing.close()
    first = [us for us, _ in found[next(iter(CASES))]]
    rows = [["way", "us a write and sync", "over the first", "spread", "bytes a sync"]]
    for name, rounds in found.items():
        ratios = [us / base for (us, _), base in zip(rounds, first, strict=True)]
        rows.append(
            [
                name,
                f"{statistics.median(us for us, _ in rounds):.0f}",
                f"{statistics.median(ratios):.2f}",
                f"{min(ratios):.2f}-{max(ratios):.2f}",
                f"{statistics.median(size for _, size in rounds):.0f}",
            ]
        )
    print(aligned(rows))
    return 0
