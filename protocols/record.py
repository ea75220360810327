"""The codec of log records and blocks (docs/reference/disk-format.md): of disk and peers alike.

The first receiver frames and checksums a block once. Every later receiver checks it. The codec
never interprets a record's data.
"""

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import NamedTuple

from ..native import errors
from ..native.errors import ECORRUPT, ETORN, KIND_MAX, RECORD_OVERHEAD_MAX, NativeError
from ..native.log import blocks
from ..native.log.blocks import block_check, block_encode, block_size, block_slice, block_walk
from ..native.log.entries import add_entries
from ..native.net.messages import Frames
from .errors import LocalProtocolError, RemoteProtocolError
from .raft.messages import KIND_CONFIG, KIND_STATE, EntryBatch

RECORD_BYTES_MAX = errors.RECORD_BYTES_MAX  # Data of a record that a client appends.
LONE_BYTES_MAX = errors.LONE_BYTES_MAX  # Data of a record that is alone in its block.
BLOCK_BYTES_MAX = block_size(LONE_BYTES_MAX + RECORD_OVERHEAD_MAX)  # The largest block.
BLOCK_COUNT_MAX = errors.BLOCK_COUNT_MAX
BLOCK_HEADER = Struct("<IIQQII")  # magic, crc, first index, term, count, payload size
MAGIC_BLOCK = 0x424B4C4B  # "KLKB"
MAGIC_MARK = 0x4D4B4C4B  # "KLKM"
REQID_SIZE = 12
TAG_REQID = 0x80
_ENTRY_KIND_TERM = slice(12, 20)  # Of an entry in the specification's form.
_CONFIG = bytes([KIND_CONFIG])


class Record(NamedTuple):
    """One log entry without index and term: its kind, request id and data."""

    kind: int  # 0 to 127
    reqid: bytes | None  # 12 bytes
    data: bytes


def encode_block(first_index: int, term: int, records: Sequence[Record]) -> EntryBatch:
    """Frames records as one block.

    Raises LocalProtocolError without records, or when one exceeds a limit.
    """
    for record in records:
        if not 0 <= record.kind <= KIND_MAX:
            raise LocalProtocolError(f"the kind of a record is 0 to 127, got {record.kind}")
        if record.reqid is not None and len(record.reqid) != REQID_SIZE:
            raise LocalProtocolError(f"a reqid has 12 bytes, got {len(record.reqid)}")
    try:
        block = block_encode(first_index, term, records)
    except (NativeError, OverflowError) as error:
        raise LocalProtocolError(
            f"no block can hold {len(records)} records of "
            f"{sum(len(record.data) for record in records)} bytes as index {first_index}, "
            f"term {term}"
        ) from error
    return EntryBatch(first_index, len(records), term, block)


def check_block(block: bytes) -> EntryBatch:
    """Checks the whole block: magic number, limits, checksum, framing of each record, no bytes left
    over.

    Raises RemoteProtocolError.
    """
    size = block_check(block)
    if size != len(block):
        raise RemoteProtocolError(_why(block, size))
    magic, _, first_index, term, count, _ = BLOCK_HEADER.unpack_from(block)
    if magic != MAGIC_BLOCK:
        raise RemoteProtocolError("expected a block, got a mark")
    return EntryBatch(first_index, count, term, block)


def _why(block: bytes, size: int) -> str:
    if size == ETORN:
        return f"a block ends early: {len(block)} bytes"
    if size == ECORRUPT:
        return f"a block of {len(block)} bytes has a wrong header, checksum or record"
    return f"a block of {size} bytes is followed by {len(block) - size} more"


def decode_block(block: bytes) -> tuple[EntryBatch, list[Record]]:
    """Checks a block and decodes its records. Raises RemoteProtocolError."""
    batch = check_block(block)
    numbers = block_walk(block, batch.count)
    records = []
    for at in range(0, len(numbers), 3):
        tag, offset, size = numbers[at : at + 3]
        reqid = block[offset - REQID_SIZE : offset] if tag & TAG_REQID else None
        records.append(Record(tag & ~TAG_REQID, reqid, block[offset : offset + size]))
    return batch, records


def block_kind(block: bytes) -> int:
    """Returns the kind of a checked block's first record, from the record's first bytes."""
    at = BLOCK_HEADER.size
    while block[at] & 0x80:  # Skips the size.
        at += 1
    return block[at + 1] & ~TAG_REQID


def block_record(batch: EntryBatch) -> Record:
    """Returns the record of a checked batch that holds exactly one."""
    tag, offset, size = block_walk(batch.block, 1)
    reqid = batch.block[offset - REQID_SIZE : offset] if tag & TAG_REQID else None
    return Record(tag & ~TAG_REQID, reqid, batch.block[offset : offset + size])


def slice_block(batch: EntryBatch, first_index: int, last_index: int) -> EntryBatch:
    """Returns entries first_index..last_index of a checked batch; the batch itself if these are
    all.

    Raises LocalProtocolError when they are not within the batch.
    """
    if first_index == batch.first_index and last_index == batch.last_index:
        return batch
    try:
        block = block_slice(batch.block, first_index, last_index)
    except (NativeError, OverflowError) as error:
        raise LocalProtocolError(
            f"entries {first_index}..{last_index} are not within "
            f"{batch.first_index}..{batch.last_index}"
        ) from error
    return EntryBatch(first_index, last_index - first_index + 1, batch.term, block)


def cut_block(batch: EntryBatch, first_index: int) -> EntryBatch:
    """Returns a checked batch without the entries below first_index."""
    return slice_block(batch, first_index, batch.last_index)


def trim_block(batch: EntryBatch, last_index: int) -> EntryBatch:
    """Returns a checked batch without the entries above last_index."""
    return slice_block(batch, batch.first_index, last_index)


def block_states(block: bytes, kind: int = KIND_STATE) -> tuple[bytes, list[int]]:
    """Extracts the records of one kind from a checked block, for a state machine.

    Returns (data, counts): the data of each record behind its size (u32 little endian), joined; and
    a list of 128 record counts, one for each kind.
    """
    return blocks.block_states(block, kind)


def block_entries(batch: EntryBatch, first_index: int, last_index: int) -> list[bytes]:
    """Returns entries first_index..last_index of a checked batch as frames in the specification's
    form.

    12 bytes  request id, zero when the record has none
     1 byte   kind
     7 bytes  term, little endian
     n bytes  data

    Raises LocalProtocolError when they are not within the batch.
    """
    frames = Frames()
    try:
        add_entries(frames, [], [batch.block], first_index, last_index)
    except (NativeError, OverflowError) as error:
        raise LocalProtocolError(
            f"entries {first_index}..{last_index} are not within "
            f"{batch.first_index}..{batch.last_index}"
        ) from error
    return frames.message(0)


def block_from_entries(first_index: int, frames: Iterable[bytes]) -> list[EntryBatch]:
    """Frames entries in the specification's form (see block_entries) as batches.

    Each batch holds a run of entries of equal kind and term. Each config entry gets a batch of its
    own, so that no reader has to search a block for one.

    Raises RemoteProtocolError on an entry without data, over the size limit, of an unknown kind, of
    term 0, or of a lower term than the entry before.
    """
    frames = list(frames)
    batches: list[EntryBatch] = []
    at = 0
    while at < len(frames):
        # One run at a time, so that entries of alternating terms do not cost quadratic time.
        kind_term = frames[at][_ENTRY_KIND_TERM]
        end = at + 1
        if kind_term[:1] != _CONFIG:
            while end < len(frames) and frames[end][_ENTRY_KIND_TERM] == kind_term:
                end += 1
        run = frames[at:end]
        try:
            block, used = blocks.block_from_entries(first_index, b"".join(run), [*map(len, run)])
        except NativeError as error:
            raise RemoteProtocolError(f"entry {first_index} or a later one is malformed") from error
        term = BLOCK_HEADER.unpack_from(block)[3]
        if batches and term < batches[-1].term:
            raise RemoteProtocolError(
                f"entry {first_index} has term {term} after term {batches[-1].term}"
            )
        batches.append(EntryBatch(first_index, used, term, block))
        first_index += used
        at += used
    return batches
