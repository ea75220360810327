"""What is left of a log after its writer ended, however it ended: read and judged, never changed.

A write that never finished is cut off; anything else that is wrong is corruption and refused
(docs/disk-format.md, "Recovery").
"""

from itertools import pairwise
from typing import NamedTuple

from ...native.log import segments
from ...native.log.blocks import crc32c
from ...protocols.record import BLOCK_HEADER, MAGIC_BLOCK, MAGIC_MARK
from ..disk.files import File, Files
from ..errors import Damaged, StorageError
from .runs import Runs
from .segment import (
    FOLDER,
    RESTORE,
    SEGMENT_START,
    CleanMark,
    Identity,
    SegmentHeader,
    decode_clean,
    decode_header,
    parse_name,
)

CLEAN = f"{FOLDER}/clean"
REWRITTEN_SHARE = 16  # Of a segment: up to that much is rather written anew.
PIECE_BYTES = 64 << 10  # Compared at a time.


class Tail(NamedTuple):
    """The end of a log that nobody is known to have synced: it must be written anew."""

    first_index: int
    previous_term: int
    blocks: list[bytes]


class RecoveredFiles(NamedTuple):
    """What a log's files hold."""

    headers: list[SegmentHeader]  # Of all segments, by sequence.
    runs: Runs  # With the tail.
    offset: int  # The end of what is good in the last segment.
    tail: Tail | None  # None: writing may go on at offset.


def read_clean(files: Files) -> CleanMark | None:
    file = files.open(CLEAN)
    if file is None:
        return None
    try:
        return decode_clean(file.read(0, file.size))
    finally:
        file.close()


def read_headers(files: Files, identity: Identity) -> list[SegmentHeader]:
    """The headers of all segments by sequence. Damaged, or StorageError: foreign."""
    headers = []
    for name in files.names(FOLDER):
        if not name.endswith(".seg"):
            continue
        path = f"{FOLDER}/{name}"
        place = files.full_path(path)
        file = files.open(path)
        if file is None:  # A reader is overtaken by the writer's clearing up.
            continue
        try:
            header = decode_header(file.read(0, SEGMENT_START), identity, place)
        finally:
            file.close()
        if parse_name(name) != (header.sequence, header.first_index):
            raise Damaged(place, f"it says of itself that it is {header.path}", RESTORE)
        headers.append(header)
    return sorted(headers, key=lambda header: header.sequence)


def live_segments(headers: list[SegmentHeader]) -> list[SegmentHeader]:
    """Those that still hold something: a later one that begins at or before them replaces them,
    and one behind a snapshot all that are older."""
    kept: list[SegmentHeader] = []
    for header in headers:
        if header.starts_log:
            kept.clear()
        while kept and kept[-1].first_index >= header.first_index:
            kept.pop()
        kept.append(header)
    return kept


def segments_after(headers: list[SegmentHeader], base_index: int) -> list[SegmentHeader]:
    """Those of live segments that hold something behind base_index, and at least the last one: the
    removal of the others may have been begun."""
    first = 0
    while first + 1 < len(headers) and headers[first + 1].first_index <= base_index + 1:
        first += 1
    return headers[first:]


def recover(files: Files, identity: Identity, base_index: int = 0) -> RecoveredFiles:
    """Reads the whole log, but segments that hold nothing behind base_index.

    Raises Damaged: corrupt, or entries behind base_index missing; StorageError: foreign.
    """
    headers = read_headers(files, identity)
    clean = read_clean(files)
    if not headers:
        if clean is not None:
            raise Damaged(files.full_path(FOLDER), "every segment is missing", RESTORE)
        return RecoveredFiles([], Runs(0, 0, [], 0), SEGMENT_START, None)
    kept = segments_after(live_segments(headers), base_index)
    base = kept[0]
    if base.first_index > base_index + 1:
        problem = f"expected entry {base_index + 1} in the first segment, found {base.first_index}"
        raise Damaged(files.full_path(base.path), problem, RESTORE)
    runs = Runs(base.first_index - 1, base.previous_term, [], base.first_index - 1)
    for header, successor in pairwise(kept):
        _scan_closed(files, header, successor, runs)
    last = _follow(files, kept[-1], runs)
    try:
        if clean is None:
            offset, tail = _scan_unclean(last, kept[-1], runs)
        else:
            offset, tail = _scan_clean(last, kept[-1], runs, clean), None
    finally:
        last.close()
    return RecoveredFiles(headers, runs, offset, tail)


def _follow(files: Files, header: SegmentHeader, runs: Runs) -> File:
    """Opens a segment that must continue what runs tells of."""
    place = files.full_path(header.path)
    if runs.term_at(header.first_index - 1) != header.previous_term:
        raise Damaged(
            place,
            f"it follows entry {header.first_index - 1} of term {header.previous_term}, the "
            f"segments before it end at {runs.last_index} with term {runs.last_term}",
            RESTORE,
        )
    runs.truncate(header.first_index - 1)
    file = files.open(header.path)
    if file is None:
        raise StorageError(place, "it disappeared", "leave this directory to its owner")
    if file.size > header.size:
        file.close()
        raise Damaged(place, f"expected {header.size} bytes, found {file.size}", RESTORE)
    return file


def _scan(data: memoryview, header: SegmentHeader, runs: Runs) -> tuple[segments.SegmentScan, int]:
    scan = segments.SegmentScan(SEGMENT_START, header.first_index, header.previous_term)
    code = scan.walk(data)
    runs.items += scan.runs
    runs.last_index = scan.next_index - 1
    return scan, code


def _scan_closed(files: Files, header: SegmentHeader, successor: SegmentHeader, runs: Runs) -> None:
    """A segment that a later one continues was synced as far as that one does not replace it."""
    file = _follow(files, header, runs)
    try:
        data = file.load()
    finally:
        file.close()
    scan, _ = _scan(data, header, runs)
    if scan.next_index < successor.first_index:
        raise corrupt(file.full_path, data, scan)


def _scan_clean(file: File, header: SegmentHeader, runs: Runs, clean: CleanMark) -> int:
    """The writer closed this log: whatever is wrong is corruption."""
    data = file.load()
    scan, code = _scan(data, header, runs)
    if code != 0:
        raise corrupt(file.full_path, data, scan)
    found = CleanMark(header.sequence, scan.offset, runs.last_index, runs.last_term)
    if found != clean or len(data) != header.size:
        raise Damaged(file.full_path, f"expected {clean}, found {found}", RESTORE)
    return scan.offset


def _scan_unclean(file: File, header: SegmentHeader, runs: Runs) -> tuple[int, Tail | None]:
    """The writer was killed, or the power failed, or a sync: only the disk itself is believed."""
    data = file.load(past_cache=True)
    scan, code = _scan(data, header, runs)
    if code != 0 and (scan.misplaced or not segments.segment_torn(data, scan.offset)):
        raise corrupt(file.full_path, data, scan)
    synced = segments.SegmentScan(SEGMENT_START, header.first_index, header.previous_term)
    # A segment with little in it is written anew as a whole: so kills in a row leave one, not many.
    start = scan.synced if scan.synced > header.size // REWRITTEN_SHARE else SEGMENT_START
    synced.walk(data[:start])
    unsynced = segments.segment_blocks(data[scan.synced : scan.offset])[0]
    nothing = code == 0 and not unsynced and len(data) == header.size
    # After a failed sync the cache may hold what the disk does not: never write beside that.
    if nothing and _equal(file.load(), data):
        return scan.offset, None
    tail = data[start : scan.offset]
    blocks = []
    while tail:
        places, used = segments.segment_blocks(tail)
        assert used > 0, f"{file.full_path}: {start} is no border of blocks"
        blocks += [bytes(tail[place[0] : place[0] + place[1]]) for place in places]
        tail = tail[used:]
    return scan.offset, Tail(synced.next_index, synced.term, blocks)


def _equal(one: memoryview, other: memoryview) -> bool:
    """A comparison of two views goes byte by byte; one of bytes does not."""
    return len(one) == len(other) and all(
        one[at : at + PIECE_BYTES].tobytes() == other[at : at + PIECE_BYTES].tobytes()
        for at in range(0, len(one), PIECE_BYTES)
    )


def corrupt(place: str, data: memoryview, scan: segments.SegmentScan) -> Damaged:
    """Says what stands at the offset where a scan stopped, and what belongs there."""
    at = scan.offset
    if at + BLOCK_HEADER.size > len(data):
        problem = f"expected entry {scan.next_index}, found the end of the file"
    else:
        magic, crc, first_index, term, count, size = BLOCK_HEADER.unpack_from(data, at)
        end = at + BLOCK_HEADER.size + size
        if magic not in (MAGIC_BLOCK, MAGIC_MARK):
            problem = f"expected magic {MAGIC_BLOCK:08x}, found {magic:08x}"
        elif end > len(data):
            problem = f"expected {size} bytes of records, found the end of the file"
        elif (expected := crc32c(data[at + 8 : end])) != crc:
            problem = f"expected checksum {expected:08x}, found {crc:08x}"
        elif scan.misplaced:
            problem = (
                f"expected entry {scan.next_index} of term {scan.term} or above, "
                f"found {count} from {first_index} of term {term}"
            )
        else:
            problem = f"expected {count} records in {size} bytes, found others"
    return Damaged(place, f"offset {at}: {problem}", RESTORE)
