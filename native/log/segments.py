"""Writes, syncs and scans segments of the log in C. The caller owns the files."""

import errno
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

from ..._native import ffi, lib
from ..errors import ETORN, HEADER_SIZE, Readable, checked, fork_count, uncleared
from ..latency import Latency


class Segment:
    """An open file of fixed, allocated size. The caller owns fd."""

    def __init__(self, fd: int, size: int) -> None:
        self._segment = ffi.new("struct klk_segment *", {"fd": fd, "size": size})

    def write(self, offset: int, parts: Sequence[bytes]) -> None:
        """Writes parts one after the other, in one call. OSError; NativeError beyond the size."""
        pointers = [ffi.from_buffer("uint8_t[]", part) for part in parts]
        sizes = [len(part) for part in parts]
        _system(lib.klk_segment_write(self._segment, offset, pointers, sizes, len(parts)))

    def sync(self) -> None:
        """Makes written bytes durable. After an OSError their state is unknown."""
        _system(lib.klk_segment_sync(self._segment))


class NotFilled(OSError):
    """Zeros could not be written. Those before may be there."""


class Syncer:
    """A thread of C that syncs and fills segments in the background.

    It belongs to one process: in a forked one start() and poll() raise OSError, and close() does
    nothing.
    """

    def __init__(self) -> None:
        self._syncer = ffi.new("struct klk_syncer *")
        _system(lib.klk_syncer_open(self._syncer))
        self._forks = fork_count()
        self.latency = Latency(ffi.addressof(self._syncer, "latency"))
        self._segments: deque[Segment] = deque()  # Keeps them alive while the thread uses them.
        self._close = weakref.finalize(self, _close_syncer, self._syncer, self._forks)

    def fileno(self) -> int:
        """Readable while poll() has an ended sync to report. Never read it."""
        return int(self._syncer.answers[0])

    def start(self, segment: Segment) -> None:
        """Queues a sync. Do not use the segment until poll() reports its end."""
        self._check()
        _system(lib.klk_syncer_start(self._syncer, segment._segment))
        self._segments.append(segment)

    def fill(self, segment: Segment, start: int, end: int) -> None:
        """As start(), for zeros between these offsets, which are written and synced in pieces."""
        self._check()
        _system(lib.klk_syncer_fill(self._syncer, segment._segment, start, end))
        self._segments.append(segment)

    def adopt(self, segment: Segment) -> None:
        """As start(), for a sync that C has started (csrc/steady)."""
        self._segments.append(segment)

    def poll(self, wait: bool = False) -> bool:
        """Reports the end of the sync or fill that was started first. False: it still runs, or none
        does.

        Raises NotFilled, and OSError when a sync has failed: the state of the segment is unknown.
        """
        self._check()
        if not self._segments:
            return False
        code = lib.klk_syncer_poll(self._syncer, wait)
        if code == lib.KLK_MORE:
            return False
        self._segments.popleft()
        if code == lib.KLK_ESPACE:
            raise NotFilled(ffi.errno, "zeros are not written")
        _system(code)
        return True

    def close(self) -> None:
        """Waits for running syncs, ends fills, and ends the thread."""
        self._close()

    def _check(self) -> None:
        if self._forks != fork_count() or not self._close.alive:
            raise OSError(errno.EBADF, "the syncer is closed or belongs to another process")


def _close_syncer(syncer: Any, fork_number: int) -> None:
    if fork_number == fork_count():
        _system(lib.klk_syncer_close(syncer))


class SegmentScan:
    """A scan of a whole segment; see klk_segment_scan().

    code         0: only zeros are left; ETORN: data ends within a block; ECORRUPT: anything else
    runs         (first index, term) of each run of equal terms
    offset       the end of the sound part
    next_index   the entry behind it
    term         of the entry before next_index
    synced       the largest synced offset of a mark
    misplaced    the scan stopped at a sound block or mark that does not follow
    """

    def __init__(self, data: Readable, offset: int, next_index: int, term: int) -> None:
        scan = ffi.new("struct klk_scan *")
        scan.offset = scan.synced = offset
        scan.next_index, scan.term = next_index, term
        buffer, runs = ffi.from_buffer(data), ffi.new("uint64_t[]", 2 * _RUNS_MAX)
        self.runs: list[tuple[int, int]] = []
        self.code: int = lib.KLK_ESPACE
        while self.code == lib.KLK_ESPACE:
            self.code = lib.klk_segment_scan(buffer, len(buffer), scan, runs, _RUNS_MAX)
            flat = ffi.unpack(runs, 2 * scan.runs) if scan.runs else []
            self.runs += zip(flat[::2], flat[1::2], strict=True)
        self.offset: int = scan.offset
        self.next_index: int = scan.next_index
        self.term: int = scan.term
        self.synced: int = scan.synced
        self.misplaced = bool(scan.order)


_RUNS_MAX = 256
_PLACES_MAX = 4096


def segment_torn(data: Readable, offset: int) -> bool:
    """Whether the bytes that a scan refused at offset are an unfinished write. False: corrupt."""
    buffer = ffi.from_buffer(data)
    return bool(lib.klk_segment_judge(buffer, len(buffer), offset) == ETORN)


def segment_find(data: Readable, index: int) -> tuple[bool, int]:
    """Walks headers from the start of data to the block that holds index.

    Returns whether it was found, and its offset or the end of the walk, which may be after data.
    """
    buffer = ffi.from_buffer(data)
    offset = ffi.new("uint64_t *")
    found = lib.klk_segment_find(buffer, len(buffer), index, offset)
    return bool(found), int(offset[0])


def segment_blocks(data: Readable) -> tuple[list[tuple[int, int, int, int, int]], int]:
    """The sound blocks at the start of data, at most 4096: (offset, size, first index, count, term)
    of each, and the number of bytes checked, marks included."""
    buffer = ffi.from_buffer(data)
    places = ffi.new("struct klk_block_info[]", min(len(buffer) // HEADER_SIZE + 1, _PLACES_MAX))
    used = ffi.new("uint64_t *")
    count = lib.klk_segment_blocks(buffer, len(buffer), places, len(places), used)
    return [
        (place.offset, place.size, place.first_index, place.count, place.term)
        for place in places[0:count]
    ], int(used[0])


def segment_zero(fd: int, offset: int, size: int) -> None:
    """Writes size zeros at offset and starts their writeback. OSError."""
    _system(lib.klk_segment_zero(fd, offset, size))


def segment_free(fd: int, offset: int, size: int) -> None:
    """Gives blocks of the file back, which then read as zeros. OSError: nothing has changed."""
    _system(lib.klk_segment_free(fd, offset, size))


def write_back(fd: int, offset: int, size: int) -> None:
    """Starts to write bytes to the disk, where the system can. They are not durable. OSError."""
    _system(lib.klk_segment_write_back(fd, offset, size))


def mark(synced_offset: int, epoch: int) -> bytes:
    """A mark: the writer of this epoch has synced its segment up to synced_offset."""
    out = uncleared("uint8_t[]", HEADER_SIZE)
    lib.klk_mark_write(out, synced_offset, epoch)
    return bytes(ffi.buffer(out))


def zeros(data: Readable) -> int:
    """The number of zero bytes at the start of data."""
    buffer = ffi.from_buffer(data)
    return int(lib.klk_zeros(buffer, len(buffer)))


def _system(code: int) -> None:
    if code == lib.KLK_EOS:
        raise OSError(ffi.errno, "the system refused")
    checked(code)
