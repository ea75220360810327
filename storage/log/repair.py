"""Repair of a damaged log: keep its sound beginning and record how much it may have held.

The record is a durable mark. The peer reads it before it votes. The mark stays after the repair.
The hard state has the epoch of the last repaired mark, by which the peer knows that a mark is done
(hard_state.py).
"""

from contextlib import closing
from itertools import zip_longest
from struct import Struct
from typing import NamedTuple

from ...native.log import segments
from ...protocols.record import BLOCK_HEADER, MAGIC_BLOCK, MAGIC_MARK
from ..disk.files import Files, open_existing, read_file, replace
from ..errors import Damaged
from .recovery import (
    RecoveredFiles,
    Tail,
    live_segments,
    read_clean,
    read_header,
    scan_segment,
    segment_paths,
    segments_after,
    sound_blocks,
)
from .runs import Runs
from .segment import (
    FOLDER,
    SEGMENT_START,
    Identity,
    SegmentHeader,
    parse_name,
    with_crc,
    without_crc,
)

PATH = f"{FOLDER}/repair"
MAGIC = 0x524B4C4B  # "KLKR"
VERSION = 1
TEXT_BYTES_MAX = 2000
RENEWED = "the log's writer renews it"
BLOCK_ALIGNMENT = 8  # Bytes.

_HEAD = Struct("<IIQQH")  # magic, version, epoch, index, size of the text


class RepairMark(NamedTuple):
    """The mark of a damaged log."""

    epoch: int  # Of the writer that found the damage.
    last_index: int  # The peer may have acknowledged entries up to this one.
    problem: str  # Place and kind of the damage.


def read_mark(files: Files) -> RepairMark | None:
    """Reads the mark, repaired or not. Raises Damaged if the mark itself is damaged."""
    data = read_file(files, PATH)
    if data is None:
        return None
    body = without_crc(data)
    if body is not None and len(body) >= _HEAD.size:
        magic, version, epoch, index, size = _HEAD.unpack_from(body)
        text = body[_HEAD.size :]
        if (magic, version, size) == (MAGIC, VERSION, len(text)):
            return RepairMark(epoch, index, text.decode("utf-8", "replace"))
    raise Damaged(files.full_path(PATH), "wrong checksum or form", RENEWED)


def pending_mark(files: Files, repaired: int) -> RepairMark | None:
    """Reads the mark of damage that is not repaired yet. repaired: epoch of the last repaired mark.
    Raises Damaged if the mark itself is damaged."""
    mark = read_mark(files)
    return None if mark is None or mark.epoch == repaired else mark


def write_mark(files: Files, mark: RepairMark) -> None:
    """Makes the mark durable before it returns. Its last_index never goes back."""
    try:
        before = read_mark(files)
    except Damaged:
        before = None
    index = max(mark.last_index, before.last_index if before else 0)
    text = mark.problem.encode()[:TEXT_BYTES_MAX]
    head = _HEAD.pack(MAGIC, VERSION, mark.epoch, index, len(text))
    replace(files, PATH, with_crc(head + text))


class Salvage(NamedTuple):
    """The sound part of a damaged log. Write the mark before you change any file."""

    found: RecoveredFiles
    mark: RepairMark
    unreadable: list[str]  # Paths of segments without a readable header: rename them.


def salvage(files: Files, identity: Identity, base: tuple[int, int], mark: RepairMark) -> Salvage:
    """Finds the sound beginning of a damaged log, from which the writer continues.

    base   index and term of the last entry in the newest snapshot: the log restarts there if no
           sound segment follows the snapshot
    Raises StorageError: foreign, or refused by the system.
    """
    headers, unread = _headers(files, identity)
    clean = read_clean(files)
    index = max(mark.last_index, base[0], clean.last_index if clean else 0)
    for header in headers + unread:
        index = max(index, _last_index_bound(_load(files, header), header))
    live = segments_after(live_segments(headers), base[0])
    if not live or live[0].first_index > base[0] + 1:
        live = []
        runs, tail = Runs(*base, [], base[0]), Tail(base[0] + 1, base[1], [])
    else:
        first_index, term = live[0].first_index, live[0].previous_term
        runs, tail = Runs(first_index - 1, term, [], first_index - 1), Tail(first_index, term, [])
    for header, successor in zip_longest(live, live[1:]):
        if runs.term_at(header.first_index - 1) != header.previous_term:
            break
        runs.truncate(header.first_index - 1)
        data = _load(files, header)
        scan = scan_segment(data, header, runs)
        blocks, _ = sound_blocks(data[SEGMENT_START : scan.offset])
        tail = Tail(header.first_index, header.previous_term, blocks)
        if successor is not None and scan.next_index < successor.first_index:
            break
    found = RecoveredFiles(headers, runs, SEGMENT_START, tail)
    mark = mark._replace(last_index=max(index, runs.last_index))
    return Salvage(found, mark, [header.path for header in unread])


def _headers(files: Files, identity: Identity) -> tuple[list[SegmentHeader], list[SegmentHeader]]:
    """The readable headers by sequence, and headers made from the names of the other segments."""
    headers, unread = [], []
    for path in segment_paths(files):
        numbers = parse_name(path.removeprefix(f"{FOLDER}/"))
        if numbers is None:
            continue
        try:
            header = read_header(files, path, identity)
        except Damaged:
            unread.append(SegmentHeader(0, *numbers, 0))
            continue
        if header is not None:
            headers.append(header)
    return headers, unread


def _load(files: Files, header: SegmentHeader) -> memoryview:
    with closing(open_existing(files, header.path)) as file:
        return file.load(past_cache=True)


def _last_index_bound(data: memoryview, header: SegmentHeader) -> int:
    """Upper bound of the last index in a damaged segment, from intact blocks and plausible headers
    of damaged ones."""
    last_index = header.first_index - 1
    at = SEGMENT_START
    while at + BLOCK_HEADER.size <= len(data):
        places, used = segments.segment_blocks(data[at:])
        for place in places:
            last_index = max(last_index, place[2] + place[3] - 1)
        if used:
            at += used
            continue
        magic, _, first_index, _, count, size = BLOCK_HEADER.unpack_from(data, at)
        possible = magic == MAGIC_BLOCK and count <= size <= len(data) - at
        if possible and last_index < first_index <= last_index + len(data):
            last_index = first_index + count - 1
        at = _next_block(data, at + BLOCK_ALIGNMENT)
    return last_index


def _next_block(data: memoryview, at: int) -> int:
    """The next offset, from at on, where a block or mark may start; the end if there is none."""
    magics = [magic.to_bytes(4, "little") for magic in (MAGIC_BLOCK, MAGIC_MARK)]
    left = bytes(data[at:])
    found = [place for place in (left.find(magic) for magic in magics) if place >= 0]
    if not found:
        return len(data)
    return at + -(-min(found) // BLOCK_ALIGNMENT) * BLOCK_ALIGNMENT
