"""Reads a log after its writer has ended in any way. It changes no file.

Recovery cuts off a write that never finished and refuses any other fault as corruption
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
REWRITTEN_SHARE = 16  # Up to 1/16 of a segment is rewritten rather than kept as a segment.
PIECE_BYTES = 64 << 10  # Of one comparison.


class Tail(NamedTuple):
    """The end of a log without proof that it was synced: the writer writes it again."""

    first_index: int
    previous_term: int
    blocks: list[bytes]


class RecoveredFiles(NamedTuple):
    """The contents of a log's files."""

    headers: list[SegmentHeader]  # Of all segments, by sequence.
    runs: Runs  # Of all entries, the tail included.
    offset: int  # The end of the sound part of the last segment.
    tail: Tail | None  # None: the writer may continue at offset.


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
        if file is None:  # The writer has removed the segment since.
            continue
        try:
            header = decode_header(file.read(0, SEGMENT_START), identity, place)
        finally:
            file.close()
        if parse_name(name) != (header.sequence, header.first_index):
            raise Damaged(place, f"its header says that it is {header.path}", RESTORE)
        headers.append(header)
    return sorted(headers, key=lambda header: header.sequence)


def live_segments(headers: list[SegmentHeader]) -> list[SegmentHeader]:
    """The segments that are not superseded. A later segment supersedes older ones from its first
    index on; one that starts the log after a snapshot supersedes all older ones."""
    live: list[SegmentHeader] = []
    for header in headers:
        if header.starts_log:
            live.clear()
        while live and live[-1].first_index >= header.first_index:
            live.pop()
        live.append(header)
    return live


def segments_after(headers: list[SegmentHeader], base_index: int) -> list[SegmentHeader]:
    """The live segments with entries after base_index, and at least the last one. The writer may
    have started to remove the others."""
    first = 0
    while first + 1 < len(headers) and headers[first + 1].first_index <= base_index + 1:
        first += 1
    return headers[first:]


def recover(files: Files, identity: Identity, base_index: int = 0) -> RecoveredFiles:
    """Reads all segments with entries after base_index.

    Raises Damaged: corrupt, or entries after base_index are missing; StorageError: foreign.
    """
    headers = read_headers(files, identity)
    clean = read_clean(files)
    if not headers:
        if clean is not None:
            raise Damaged(files.full_path(FOLDER), "every segment is missing", RESTORE)
        return RecoveredFiles([], Runs(0, 0, [], 0), SEGMENT_START, None)
    live = segments_after(live_segments(headers), base_index)
    base = live[0]
    if base.first_index > base_index + 1:
        problem = f"expected entry {base_index + 1} in the first segment, found {base.first_index}"
        raise Damaged(files.full_path(base.path), problem, RESTORE)
    runs = Runs(base.first_index - 1, base.previous_term, [], base.first_index - 1)
    for header, successor in pairwise(live):
        _scan_closed(files, header, successor, runs)
    last = _follow(files, live[-1], runs)
    try:
        if clean is None:
            offset, tail = _scan_unclean(last, live[-1], runs)
        else:
            offset, tail = _scan_clean(last, live[-1], runs, clean), None
    finally:
        last.close()
    return RecoveredFiles(headers, runs, offset, tail)


def _follow(files: Files, header: SegmentHeader, runs: Runs) -> File:
    """Opens a segment and checks that it continues runs."""
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
    """Scans a segment that is not the last one. It was synced up to the successor's first entry."""
    file = _follow(files, header, runs)
    try:
        data = file.load()
    finally:
        file.close()
    scan, _ = _scan(data, header, runs)
    if scan.next_index < successor.first_index:
        raise corrupt(file.full_path, data, scan)


def _scan_clean(file: File, header: SegmentHeader, runs: Runs, clean: CleanMark) -> int:
    """Scans the last segment of a cleanly closed log: any fault is corruption."""
    data = file.load()
    scan, code = _scan(data, header, runs)
    if code != 0:
        raise corrupt(file.full_path, data, scan)
    found = CleanMark(header.sequence, scan.offset, runs.last_index, runs.last_term)
    if found != clean or len(data) != header.size:
        raise Damaged(file.full_path, f"expected {clean}, found {found}", RESTORE)
    return scan.offset


def _scan_unclean(file: File, header: SegmentHeader, runs: Runs) -> tuple[int, Tail | None]:
    """Scans the last segment after a kill, a power failure or a failed sync.

    It reads past the page cache: only the bytes on the disk count.
    """
    data = file.load(past_cache=True)
    scan, code = _scan(data, header, runs)
    if code != 0 and (scan.misplaced or not segments.segment_torn(data, scan.offset)):
        raise corrupt(file.full_path, data, scan)
    synced = segments.SegmentScan(SEGMENT_START, header.first_index, header.previous_term)
    # Rewrite a segment with few entries as a whole: repeated kills then leave one segment.
    start = scan.synced if scan.synced > header.size // REWRITTEN_SHARE else SEGMENT_START
    synced.walk(data[:start])
    unsynced = segments.segment_blocks(data[scan.synced : scan.offset])[0]
    nothing = code == 0 and not unsynced and len(data) == header.size
    # After a failed sync the page cache may differ from the disk: never write to such pages.
    if nothing and _equal(file.load(), data):
        return scan.offset, None
    tail = data[start : scan.offset]
    blocks = []
    while tail:
        places, used = segments.segment_blocks(tail)
        assert used > 0, f"{file.full_path}: no block starts at {start}"
        blocks += [bytes(tail[place[0] : place[0] + place[1]]) for place in places]
        tail = tail[used:]
    return scan.offset, Tail(synced.next_index, synced.term, blocks)


def _equal(one: memoryview, other: memoryview) -> bool:
    """Compares in pieces of bytes: comparing two memoryviews is slow."""
    return len(one) == len(other) and all(
        one[at : at + PIECE_BYTES].tobytes() == other[at : at + PIECE_BYTES].tobytes()
        for at in range(0, len(one), PIECE_BYTES)
    )


def corrupt(place: str, data: memoryview, scan: segments.SegmentScan) -> Damaged:
    """The error for the offset where a scan stopped: what was expected and found there."""
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
