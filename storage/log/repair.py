"""What is done about a damaged log: its sound beginning is kept, a durable mark says how much it
may have held. Whoever votes reads the mark; it is never removed, only answered (hard_state.py).
"""

from itertools import zip_longest
from struct import Struct
from typing import NamedTuple

from ...native.log import segments
from ...native.log.blocks import crc32c
from ...protocols.record import BLOCK_HEADER, MAGIC_BLOCK, MAGIC_MARK
from ..disk.files import Files, replace
from ..errors import Damaged, StorageError
from .recovery import RecoveredFiles, Tail, live_segments, read_clean
from .runs import Runs
from .segment import FOLDER, SEGMENT_START, Identity, SegmentHeader, decode_header, parse_name

PATH = f"{FOLDER}/repair"
DAMAGED_SUFFIX = ".damaged"  # What a segment is renamed to whose header can't be read.
MAGIC = 0x524B4C4B  # "KLKR"
VERSION = 1
TEXT_BYTES_MAX = 2000
RENEWED = "the log's writer renews it"
BLOCK_ALIGNMENT = 8  # Blocks begin at multiples of it.

_HEAD = Struct("<IIQQH")  # magic, version, epoch, index, size of the text
_CRC = Struct("<I")


class RepairMark(NamedTuple):
    """The mark."""

    epoch: int  # Of the writer that found the damage.
    last_index: int  # Entries up to here may have been acknowledged by this log.
    problem: str  # Where it was, and what.


def read_mark(files: Files) -> RepairMark | None:
    """The mark, whether it was answered or not. A damaged one raises Damaged."""
    file = files.open(PATH)
    if file is None:
        return None
    try:
        data = file.read(0, file.size)
    finally:
        file.close()
    if len(data) < _HEAD.size + _CRC.size:
        raise Damaged(
            files.full_path(PATH), f"it has {len(data)} bytes", "the log's writer renews it"
        )
    magic, version, epoch, index, size = _HEAD.unpack_from(data)
    text = data[_HEAD.size : -_CRC.size]
    sound = crc32c(data[: -_CRC.size]) == _CRC.unpack(data[-_CRC.size :])[0]
    if not sound or magic != MAGIC or version != VERSION or size != len(text):
        raise Damaged(files.full_path(PATH), "wrong checksum or form", RENEWED)
    return RepairMark(epoch, index, text.decode("utf-8", "replace"))


def pending_mark(files: Files, repaired: int) -> RepairMark | None:
    """The mark, unless the damage that it tells of was made good: repaired is the epoch of the last
    mark of which that is known. Damaged: it can't be read."""
    mark = read_mark(files)
    return None if mark is None or mark.epoch == repaired else mark


def write_mark(files: Files, repair: RepairMark) -> None:
    """Makes the mark durable before it returns. It never promises less than the one before."""
    try:
        before = read_mark(files)
    except Damaged:
        before = None
    index = max(repair.last_index, before.last_index if before else 0)
    text = repair.problem.encode()[:TEXT_BYTES_MAX]
    data = _HEAD.pack(MAGIC, VERSION, repair.epoch, index, len(text)) + text
    data += _CRC.pack(crc32c(data))
    replace(files, PATH, data)


class Salvage(NamedTuple):
    """What is left of a damaged log. Nothing was changed yet: the mark comes first."""

    found: RecoveredFiles
    repair: RepairMark
    aside: list[str]  # Paths of segments whose headers can't be read: in the way of every reader.


def salvage(files: Files, identity: Identity, base: tuple[int, int], repair: RepairMark) -> Salvage:
    """The sound beginning of a damaged log, as something to go on with.

    base   index and term of the last entry in the newest snapshot: where the log begins when
           nothing of it is left that follows
    Raises StorageError: foreign, or refused by the system.
    """
    headers, unread = _headers(files, identity)
    clean = read_clean(files)
    index = max(repair.last_index, base[0], clean.last_index if clean else 0)
    for header in headers + unread:
        index = max(index, _last_index(_load(files, header), header))
    kept = live_segments(headers)
    while len(kept) > 1 and kept[1].first_index <= base[0] + 1:
        kept.pop(0)
    if not kept or kept[0].first_index > base[0] + 1:
        kept = []
        runs, tail = Runs(*base, [], base[0]), Tail(base[0] + 1, base[1], [])
    else:
        first_index, term = kept[0].first_index, kept[0].previous_term
        runs, tail = Runs(first_index - 1, term, [], first_index - 1), Tail(first_index, term, [])
    for header, successor in zip_longest(kept, kept[1:]):
        if runs.term_at(header.first_index - 1) != header.previous_term:
            break
        runs.truncate(header.first_index - 1)
        data = _load(files, header)
        scan = segments.SegmentScan(SEGMENT_START, header.first_index, header.previous_term)
        scan.walk(data)
        runs.items += scan.runs
        runs.last_index = scan.next_index - 1
        blocks = _blocks(data[SEGMENT_START : scan.offset])
        tail = Tail(header.first_index, header.previous_term, blocks)
        if successor is not None and scan.next_index < successor.first_index:
            break
    found = RecoveredFiles(headers, runs, SEGMENT_START, tail)
    repair = repair._replace(last_index=max(index, runs.last_index))
    return Salvage(found, repair, [header.path for header in unread])


def _headers(files: Files, identity: Identity) -> tuple[list[SegmentHeader], list[SegmentHeader]]:
    """Those that can be read, by sequence; the others as far as their names tell."""
    headers, unread = [], []
    for name in files.names(FOLDER):
        place = parse_name(name)
        file = files.open(f"{FOLDER}/{name}") if place else None
        if place is None or file is None:
            continue
        try:
            header = decode_header(file.read(0, SEGMENT_START), identity, file.full_path)
        except Damaged:
            header = None
        finally:
            file.close()
        if header is None or place != (header.sequence, header.first_index):
            unread.append(SegmentHeader(0, *place, 0))
        else:
            headers.append(header)
    return sorted(headers, key=lambda header: header.sequence), unread


def _load(files: Files, header: SegmentHeader) -> memoryview:
    file = files.open(header.path)
    if file is None:
        raise StorageError(files.full_path(header.path), "it disappeared", "start again")
    try:
        return file.load(past_cache=True)
    finally:
        file.close()


def _blocks(data: memoryview) -> list[bytes]:
    blocks: list[bytes] = []
    while data:
        places, used = segments.segment_blocks(data)
        if not used:
            break
        blocks += [bytes(data[place[0] : place[0] + place[1]]) for place in places]
        data = data[used:]
    return blocks


def _last_index(data: memoryview, header: SegmentHeader) -> int:
    """The last entry that a segment may have held, by whatever sound blocks stand anywhere in it,
    and by what the headers of damaged ones say as long as that is possible."""
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
        at = _next(data, at + BLOCK_ALIGNMENT)
    return last_index


def _next(data: memoryview, at: int) -> int:
    """Where the next block or mark may begin, at or behind a place; the end when none does."""
    magics = [magic.to_bytes(4, "little") for magic in (MAGIC_BLOCK, MAGIC_MARK)]
    left = bytes(data[at:])
    found = [place for place in (left.find(magic) for magic in magics) if place >= 0]
    if not found:
        return len(data)
    return at + -(-min(found) // BLOCK_ALIGNMENT) * BLOCK_ALIGNMENT
