"""Reads a log after its writer has ended in any way. It changes no file.

Recovery cuts off a write that never finished and refuses any other fault as corruption
(docs/reference/disk-format.md, "Recovery").
"""

from contextlib import closing
from itertools import pairwise
from typing import NamedTuple

from ...native.log import segments
from ...native.log.blocks import crc32c
from ...protocols.record import BLOCK_HEADER, MAGIC_BLOCK, MAGIC_MARK
from ..disk.files import File, Files, open_existing, read_file
from ..errors import Damaged
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
    data = read_file(files, CLEAN)
    return None if data is None else decode_clean(data)


def segment_paths(files: Files) -> list[str]:
    """The paths of all segments by sequence."""
    return [f"{FOLDER}/{name}" for name in files.names(FOLDER) if name.endswith(".seg")]


def read_header(files: Files, path: str, identity: Identity) -> SegmentHeader | None:
    """None: the writer has removed the segment. Damaged, or StorageError: foreign."""
    data, place = read_file(files, path, SEGMENT_START), files.full_path(path)
    if data is None:
        return None
    header = decode_header(data, identity, place)
    if header.path != path:
        raise Damaged(place, f"offset 16: its header says that it is {header.path}", RESTORE)
    return header


def read_headers(files: Files, identity: Identity) -> list[SegmentHeader]:
    """The headers of all segments by sequence. Damaged, or StorageError: foreign."""
    found = [read_header(files, path, identity) for path in segment_paths(files)]
    return [header for header in found if header is not None]


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
    with closing(_follow(files, live[-1], runs)) as last:
        if clean is None:
            offset, tail = _scan_unclean(last, live[-1], runs)
        else:
            offset, tail = _scan_clean(last, live[-1], runs, clean), None
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
    file = open_existing(files, header.path)
    if file.size > header.size:
        file.close()
        raise Damaged(place, f"expected {header.size} bytes, found {file.size}", RESTORE)
    return file


def scan_segment(data: memoryview, header: SegmentHeader, runs: Runs) -> segments.SegmentScan:
    """Scans a segment that continues runs, and extends them by its entries."""
    scan = segments.SegmentScan(data, SEGMENT_START, header.first_index, header.previous_term)
    runs.items += scan.runs
    runs.last_index = scan.next_index - 1
    return scan


def _scan_closed(files: Files, header: SegmentHeader, successor: SegmentHeader, runs: Runs) -> None:
    """Scans a segment that is not the last one. It was synced up to the successor's first entry."""
    with closing(_follow(files, header, runs)) as file:
        data = file.load()
    scan = scan_segment(data, header, runs)
    if scan.next_index < successor.first_index:
        raise corrupt(file.full_path, data, scan)


def _scan_clean(file: File, header: SegmentHeader, runs: Runs, clean: CleanMark) -> int:
    """Scans the last segment of a cleanly closed log: any fault is corruption."""
    data = file.load()
    scan = scan_segment(data, header, runs)
    if scan.code != 0:
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
    scan = scan_segment(data, header, runs)
    if scan.code != 0 and (scan.misplaced or not segments.segment_torn(data, scan.offset)):
        raise corrupt(file.full_path, data, scan)
    # Rewrite a segment with few entries as a whole: repeated kills then leave one segment.
    start = scan.synced if scan.synced > header.size // REWRITTEN_SHARE else SEGMENT_START
    before = header.first_index, header.previous_term
    synced = segments.SegmentScan(data[:start], SEGMENT_START, *before)
    unsynced = segments.segment_blocks(data[scan.synced : scan.offset])[0]
    nothing = scan.code == 0 and not unsynced and len(data) == header.size
    # After a failed sync the page cache may differ from the disk: never write to such pages.
    if nothing and _equal(file.load(), data):
        return scan.offset, None
    blocks, size = sound_blocks(data[start : scan.offset])
    assert start + size == scan.offset, f"{file.full_path}: no block starts at {start + size}"
    return scan.offset, Tail(synced.next_index, synced.term, blocks)


def sound_blocks(data: memoryview) -> tuple[list[bytes], int]:
    """The blocks at the start of data, and the size of what they and the marks among them fill."""
    blocks: list[bytes] = []
    rest = data
    while rest:
        places, used = segments.segment_blocks(rest)
        if not used:
            break
        blocks += [bytes(rest[place[0] : place[0] + place[1]]) for place in places]
        rest = rest[used:]
    return blocks, len(data) - len(rest)


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
