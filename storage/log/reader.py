"""Reads committed entries from the segments, in batches, in any process of the node.

The reader can't tell which entries are committed. The caller names a committed entry by index and
term and gets entries up to it: by log matching, every entry before it is right, too.
"""

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from ...native.errors import HEADER_SIZE
from ...native.log import blocks as native_blocks
from ...native.log import segments
from ...protocols.raft.messages import EntryBatch
from ...protocols.record import BLOCK_BYTES_MAX, BLOCK_HEADER, slice_block
from ..disk.files import LISTINGS_MAX, File, Files
from ..errors import StorageError
from .recovery import live_segments, read_headers, segments_after
from .segment import RESTORE, SEGMENT_START, Identity, SegmentHeader

WALK_BYTES = 4 << 10, 128 << 10  # The first and the largest read when searching for a block.
READ_BYTES = 1 << 20  # A read without a limit from the caller.
INDEX_INTERVAL_BYTES = 256 << 10  # Between two blocks whose offsets a segment remembers.
OPEN_MAX = 4  # Open segments.


class BlockLocation(NamedTuple):
    """A block of a segment."""

    offset: int
    size: int
    term: int


class _Segment:
    """An open segment, and the offsets of some of its blocks."""

    def __init__(self, file: File, header: SegmentHeader) -> None:
        self.file = file
        self._indexes = [header.first_index]
        self._offsets = [SEGMENT_START]
        self._next = header.first_index, SEGMENT_START  # After the last read.
        self._found: tuple[int, int, BlockLocation] | None = None  # First index, last index.

    def note(self, index: int, offset: int) -> None:
        """Remembers that the block of entry index starts at offset."""
        self._next = index, offset
        if index > self._indexes[-1] and offset - self._offsets[-1] >= INDEX_INTERVAL_BYTES:
            self._indexes.append(index)
            self._offsets.append(offset)

    def find(self, index: int) -> BlockLocation | None:
        """Finds the block that holds index. It reads headers only."""
        if self._found is not None and self._found[0] <= index <= self._found[1]:
            return self._found[2]
        offset = self._offsets[bisect_right(self._indexes, index) - 1]
        if self._next[0] <= index:
            offset = max(offset, self._next[1])
        size, size_max = WALK_BYTES
        while offset < self.file.size:
            data = self.file.read(offset, size)
            found, walked = segments.segment_find(data, index)
            if found:
                _, _, first, term, count, payload = BLOCK_HEADER.unpack_from(data, walked)
                location = BlockLocation(offset + walked, native_blocks.block_size(payload), term)
                self._found = first, first + count - 1, location
                return location
            if not walked or walked + HEADER_SIZE <= len(data):
                return None
            offset += walked
            size = min(4 * size, size_max)
        return None

    def blocks(self, offset: int, size: int) -> list[tuple[EntryBatch, int]]:
        """Reads about size bytes of blocks at offset, but at least one block. Returns each block
        and the offset of its end; nothing if the first one is damaged."""
        data = self.file.read(offset, size)
        blocks, _ = segments.segment_blocks(data)
        if not blocks and len(data) == size:
            data = self.file.read(offset, BLOCK_BYTES_MAX + HEADER_SIZE)
            blocks, _ = segments.segment_blocks(data)
            blocks = blocks[:1]
        return [
            (
                EntryBatch(first_index, count, term, data[at : at + block_size]),
                offset + at + block_size,
            )
            for at, block_size, first_index, count, term in blocks
        ]


class _SegmentRemoved(Exception):
    """The writer has removed a segment since the reader listed the folder."""


class LogReader:
    """Reads one peer's log. Any number of processes may do so while the writer writes."""

    def __init__(self, files: Files, identity: Identity) -> None:
        self._files = files
        self._identity = identity
        self._headers: list[SegmentHeader] = []  # A segment ends where the next one starts.
        self._firsts: list[int] = []
        self._open: dict[str, _Segment] = {}
        self._verified = 0, 0  # Index and term of an entry that the listed segments hold.

    def close(self) -> None:
        """Closes the files. The reader stays usable and opens them again."""
        for segment in self._open.values():
            segment.file.close()
        self._open = {}
        self._headers, self._firsts, self._verified = [], [], (0, 0)

    def batches(
        self, first_index: int, last_index: int, last_term: int, bytes_max: int
    ) -> list[EntryBatch]:
        """Reads entries first_index to last_index: about bytes_max bytes, but at least one batch.

        last_index, last_term   an entry that the caller knows to be in the log

        Returns contiguous batches. It returns none if the segments do not hold the entries yet, or
        no longer: then base() is above first_index - 1. Raises StorageError: corrupt or foreign.
        """
        if first_index > last_index:
            return []
        listed = False
        for _ in range(LISTINGS_MAX):
            try:
                if not self._headers:
                    self._list()
                    listed = True
                if self._verify(last_index, last_term):
                    found = list(self._read(first_index, last_index, bytes_max))
                    if found:
                        return found
            except _SegmentRemoved:
                listed = False
            except StorageError:
                if listed:
                    raise
            if listed:
                return []
            self.close()  # The writer may have replaced segments: list them again.
        return []

    def base(self, snapshot_index: int = 0) -> tuple[int, int]:
        """Index and term of the entry before the first one in the segments, as last listed.

        snapshot_index   ignore the segments that a writer drops which opens the log after this
                         snapshot
        Raises StorageError: corrupt or foreign.
        """
        if not self._headers:
            self._list()
        if not self._headers:
            return 0, 0
        first = segments_after(self._headers, snapshot_index)[0]
        return first.first_index - 1, first.previous_term

    def scan(self, first_index: int = 0) -> Iterator[EntryBatch]:
        """Reads all entries from first_index, or from the log's first entry, to the end of the
        files, committed or not. For the start. Raises StorageError: corrupt or foreign."""
        index = first_index
        for _ in range(LISTINGS_MAX):
            self._list()
            if not self._headers:
                return
            try:
                for batch in self._read(max(index, self._firsts[0]), None, None):
                    yield batch
                    index = batch.last_index + 1
            except _SegmentRemoved:
                continue
            return

    def _list(self) -> None:
        self.close()
        self._headers = live_segments(read_headers(self._files, self._identity))
        self._firsts = [header.first_index for header in self._headers]

    def _segment(self, index: int) -> tuple[_Segment, int | None] | None:
        """The segment that holds index, if any, and the first index of the next segment."""
        at = bisect_right(self._firsts, index) - 1
        if at < 0:
            return None
        path = self._headers[at].path
        segment = self._open.get(path)
        if segment is None:
            file = self._files.open(path)
            if file is None:
                raise _SegmentRemoved
            if len(self._open) == OPEN_MAX:
                self._open.pop(next(iter(self._open))).file.close()
            segment = self._open[path] = _Segment(file, self._headers[at])
        return segment, self._firsts[at + 1] if at + 1 < len(self._firsts) else None

    def _verify(self, last_index: int, last_term: int) -> bool:
        if self._verified == (last_index, last_term):
            return True
        found = self._segment(last_index)
        location = found[0].find(last_index) if found else None
        if location is None or location.term != last_term:
            return False
        self._verified = last_index, last_term
        return True

    def _read(
        self, index: int, last_index: int | None, bytes_max: int | None
    ) -> Iterator[EntryBatch]:
        """Reads batches from index on, to last_index or to the end."""
        size = 0
        while (last_index is None or index <= last_index) and (
            bytes_max is None or size < bytes_max
        ):
            found = self._segment(index)
            location = found[0].find(index) if found else None
            if found is None or location is None:
                return
            segment, limit = found
            limits = [number for number in (limit, last_index and last_index + 1) if number]
            end = min(limits, default=None)
            wanted = self._wanted(segment, location, end, bytes_max and bytes_max - size)
            blocks = segment.blocks(location.offset, wanted)
            if not blocks and (last_index is not None or limit is not None):
                raise StorageError(
                    segment.file.full_path,
                    f"offset {location.offset}: the block of entry {index} is damaged",
                    RESTORE,
                )
            for batch, offset in blocks:
                if batch.first_index > index or (end is not None and index >= end):
                    break
                part = _part(batch, index, end)
                index = part.last_index + 1
                size += len(part.block)
                if part.last_index == batch.last_index:
                    segment.note(index, offset)
                yield part
            if not blocks:
                return

    def _wanted(
        self, segment: _Segment, location: BlockLocation, end: int | None, bytes_max: int | None
    ) -> int:
        """How many bytes to read at location: up to the block of entry end - 1 if it is near."""
        wanted = max(location.size, READ_BYTES if bytes_max is None else bytes_max)
        if end is None:
            return wanted
        last = segment.find(end - 1)
        return wanted if last is None else min(wanted, last.offset + last.size - location.offset)


def _part(batch: EntryBatch, first_index: int, end: int | None) -> EntryBatch:
    """The entries of a batch from first_index to end - 1."""
    last_index = batch.last_index if end is None else min(batch.last_index, end - 1)
    return slice_block(batch, max(first_index, batch.first_index), last_index)
