"""Single log entries in the specification's form, as clients receive them.

Peers convert whole blocks in C (record.block_entries, record.block_from_entries).
"""

from collections.abc import Sequence
from typing import NamedTuple

from ....native.log.blocks import block_walk
from ...errors import RemoteProtocolError
from ...limits import NUMBER_MAX
from ...raft.messages import EntryBatch
from ...record import RECORD_BYTES_MAX, REQID_SIZE, TAG_REQID
from ...reqids import REQID_BYTES

ENTRY_HEADER_BYTES = REQID_BYTES + 1 + 7
KIND_MAX = 127
NO_REQID = bytes(REQID_BYTES)


class Entry(NamedTuple):
    """One log entry with its index and term."""

    index: int  # type: ignore[assignment]  # A tuple, as one is made per entry; hides its index.
    term: int
    type: int
    reqid: bytes | None
    data: bytes


def decode_entries(first_index: int, frames: Sequence[bytes]) -> list[Entry]:
    """Decodes consecutive entries (docs/protocols/zmq-raft.md, "Types").

    12 bytes  request id; all zero: none
     1 byte   entry type: 0 state, 1 config, 2 checkpoint
     7 bytes  term, little endian
     n bytes  data, at least one

    Raises RemoteProtocolError on a type above 127, term 0 or over 2**53 - 1, or a wrong size.
    """
    entries = []
    for index, frame in enumerate(frames, first_index):
        if not 0 < len(frame) - ENTRY_HEADER_BYTES <= RECORD_BYTES_MAX:
            raise RemoteProtocolError(f"an entry of {len(frame)} bytes")
        reqid, kind, term = frame[:12], frame[12], int.from_bytes(frame[13:20], "little")
        if kind > KIND_MAX or not 0 < term <= NUMBER_MAX:
            raise RemoteProtocolError(f"an entry of type {kind}, term {term}")
        entries.append(Entry(index, term, kind, None if reqid == NO_REQID else reqid, frame[20:]))
    return entries


def check_heads(frames: Sequence[bytes]) -> None:
    """Raises RemoteProtocolError unless decode_entries accepts these entries of valid size."""
    for frame in frames:
        if frame[12] > KIND_MAX or not 0 < int.from_bytes(frame[13:20], "little") <= NUMBER_MAX:
            raise RemoteProtocolError(f"invalid entry header {frame[:20].hex()}")


def block_log_entries(batch: EntryBatch) -> list[Entry]:
    """Decodes the entries of a checked block, with index and term."""
    block, index, term = batch.block, batch.first_index, batch.term
    entries = []
    numbers = iter(block_walk(block, batch.count))
    for tag, offset, size in zip(numbers, numbers, numbers, strict=True):
        reqid = block[offset - REQID_SIZE : offset] if tag & TAG_REQID else None
        entries.append(Entry(index, term, tag & KIND_MAX, reqid, block[offset : offset + size]))
        index += 1
    return entries
