"""The log as any other process sees it: entries that are known to be committed, by the batch.

It only reads, and never tells what is durable: the caller knows an index and the term of the entry
there, and gets entries up to it. By log matching, everything before that entry is then right too.
"""

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from ...native.errors import HEADER_SIZE
from ...native.log import blocks as native_blocks
from ...native.log import segments
from ...protocols.raft.messages import EntryBatch
from ...protocols.record import BLOCK_BYTES_MAX, BLOCK_HEADER, slice_block
from ..disk.files import File, Files
from ..errors import StorageError
from .recovery import live_segments, read_headers, segments_after
from .segment import RESTORE, SEGMENT_START, Identity, SegmentHeader

WALK_BYTES = 4 << 10, 128 << 10  # Read at a time to look for a block: at first, at most.
READ_BYTES = 1 << 20  # Read at a time when nothing else says how much.
INDEX_INTERVAL_BYTES = 256 << 10  # How far apart the places are that a segment remembers.
OPEN_MAX = 4  # Segments that are kept open.
LISTINGS_MAX = 8  # How often the writer may overtake one call.


class BlockLocation(NamedTuple):
    """Where a block stands in its segment."""

    offset: int
    size: int
    term: int


class _Segment:
    """An open segment, and the places of some of its blocks."""

    def __init__(self, file: File, header: SegmentHeader) -> None:
        self.file = file
        self._indexes = [header.first_index]
        self._offsets = [SEGMENT_START]
        self._next = header.first_index, SEGMENT_START  # Behind what was read last.
        self._found: tuple[int, int, BlockLocation] | None = None  # First and last index, place.

    def note(self, index: int, offset: int) -> None:
        """Remembers that the entries from index on stand at offset and behind."""
        self._next = index, offset
        if index > self._indexes[-1] and offset - self._offsets[-1] >= INDEX_INTERVAL_BYTES:
            self._indexes.append(index)
            self._offsets.append(offset)

    def find(self, index: int) -> BlockLocation | None:
        """The block that holds index, by headers alone."""
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
                place = BlockLocation(offset + walked, native_blocks.block_size(payload), term)
                self._found = first, first + count - 1, place
                return place
            if not walked or walked + HEADER_SIZE <= len(data):
                return None
            offset += walked
            size = min(4 * size, size_max)
        return None

    def blocks(self, offset: int, size: int) -> list[tuple[EntryBatch, int]]:
        """Sound blocks from offset on, about size bytes of them but at least one, and where each
        ends; none: what stands there is not sound."""
        data = self.file.read(offset, size)
        places, _ = segments.segment_blocks(data)
        if not places and len(data) == size:
            data = self.file.read(offset, BLOCK_BYTES_MAX + HEADER_SIZE)
            places, _ = segments.segment_blocks(data)
            places = places[:1]
        return [
            (
                EntryBatch(first_index, count, term, data[at : at + block_size]),
                offset + at + block_size,
            )
            for at, block_size, first_index, count, term in places
        ]


class _Overtaken(Exception):
    """The writer removed a segment since the folder was listed."""


class LogReader:
    """Reads one peer's log; any number of processes may, while its writer goes on."""

    def __init__(self, files: Files, identity: Identity) -> None:
        self._files = files
        self._identity = identity
        self._headers: list[SegmentHeader] = []  # Each holds the entries up to the next one's.
        self._firsts: list[int] = []
        self._open: dict[str, _Segment] = {}
        self._known = 0, 0  # The entry that the files listed were last seen to hold.

    def close(self) -> None:
        """Closes the files; the reader may be used again."""
        for segment in self._open.values():
            segment.file.close()
        self._open = {}
        self._headers, self._firsts, self._known = [], [], (0, 0)

    def batches(
        self, first_index: int, last_index: int, last_term: int, bytes_max: int
    ) -> list[EntryBatch]:
        """The entries first_index to last_index, about bytes_max of them but at least one batch.

        The caller knows that its log holds last_index, with last_term. Returns contiguous batches,
        or none when they are not there: not yet, or, as base() then tells, no more.
        Raises StorageError: corrupt or foreign.
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
            except _Overtaken:
                listed = False
            except StorageError:
                if listed:
                    raise
            if listed:
                return []
            self.close()  # The files may have been replaced: look again.
        return []

    def base(self, snapshot_index: int = 0) -> tuple[int, int]:
        """Index and term of the entry before the first one that the files hold, as of the last look
        at them: a snapshot includes what is missing. StorageError: corrupt or foreign.

        With the index of a snapshot: without the segments that a writer which opens the log behind
        it takes for superseded.
        """
        if not self._headers:
            self._list()
        if not self._headers:
            return 0, 0
        first = segments_after(self._headers, snapshot_index)[0]
        return first.first_index - 1, first.previous_term

    def scan(self, first_index: int = 0) -> Iterator[EntryBatch]:
        """All entries from first_index or from the first one on, as far as the files go: for
        start-up. Raises StorageError: corrupt or foreign."""
        index = first_index
        for _ in range(LISTINGS_MAX):
            self._list()
            if not self._headers:
                return
            try:
                for batch in self._read(max(index, self._firsts[0]), None, None):
                    yield batch
                    index = batch.last_index + 1
            except _Overtaken:
                continue
            return

    def _list(self) -> None:
        self.close()
        self._headers = live_segments(read_headers(self._files, self._identity))
        self._firsts = [header.first_index for header in self._headers]

    def _segment(self, index: int) -> tuple[_Segment, int | None] | None:
        """The segment that holds index, if any does, and the first index that the next one holds
        instead."""
        at = bisect_right(self._firsts, index) - 1
        if at < 0:
            return None
        path = self._headers[at].path
        segment = self._open.get(path)
        if segment is None:
            file = self._files.open(path)
            if file is None:
                raise _Overtaken
            if len(self._open) == OPEN_MAX:
                self._open.pop(next(iter(self._open))).file.close()
            segment = self._open[path] = _Segment(file, self._headers[at])
        return segment, self._firsts[at + 1] if at + 1 < len(self._firsts) else None

    def _verify(self, last_index: int, last_term: int) -> bool:
        if self._known == (last_index, last_term):
            return True
        found = self._segment(last_index)
        place = found[0].find(last_index) if found else None
        if place is None or place.term != last_term:
            return False
        self._known = last_index, last_term
        return True

    def _read(
        self, index: int, last_index: int | None, bytes_max: int | None
    ) -> Iterator[EntryBatch]:
        """Batches from index on: to last_index, or as far as there are any."""
        size = 0
        while (last_index is None or index <= last_index) and (
            bytes_max is None or size < bytes_max
        ):
            found = self._segment(index)
            place = found[0].find(index) if found else None
            if found is None or place is None:
                return
            segment, limit = found
            limits = [number for number in (limit, last_index and last_index + 1) if number]
            end = min(limits, default=None)
            wanted = self._wanted(segment, place, end, bytes_max and bytes_max - size)
            blocks = segment.blocks(place.offset, wanted)
            if not blocks and (last_index is not None or limit is not None):
                raise StorageError(
                    segment.file.full_path,
                    f"offset {place.offset}: the block of entry {index} is damaged",
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
        self, segment: _Segment, place: BlockLocation, end: int | None, bytes_max: int | None
    ) -> int:
        """How many bytes to read at place: up to the block of entry end - 1 when that is near."""
        wanted = max(place.size, READ_BYTES if bytes_max is None else bytes_max)
        if end is None:
            return wanted
        last = segment.find(end - 1)
        return wanted if last is None else min(wanted, last.offset + last.size - place.offset)


def _part(batch: EntryBatch, first_index: int, end: int | None) -> EntryBatch:
    """The entries of a batch from first_index on and before end."""
    last_index = batch.last_index if end is None else min(batch.last_index, end - 1)
    return slice_block(batch, max(first_index, batch.first_index), last_index)
