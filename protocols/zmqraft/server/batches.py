"""What the core and the wire have done to batches of entries, by the batch in C."""

from ...raft.messages import KIND_CHECKPOINT, EntryBatch
from ...record import (
    Record,
    block_entries,
    block_from_entries,
    check_block,
    encode_block,
    slice_block,
)
from ..wire.config_codec import check_configs

CHECKPOINT_DATA = b"\xc0"


def term_entry(first_index: int, term: int) -> EntryBatch:
    """The entry with which a leader of this wire starts its term: a checkpoint."""
    return encode_block(first_index, term, [Record(KIND_CHECKPOINT, None, CHECKPOINT_DATA)])


def expand(batch: EntryBatch) -> list[bytes]:
    """The entries as frames of the text's wire."""
    return block_entries(batch, batch.first_index, batch.last_index)


def frame(first_index: int, frames: list[bytes]) -> list[EntryBatch]:
    """Entries of the text's wire as batches. Raises RemoteProtocolError."""
    return check_configs(block_from_entries(first_index, frames))


def check(block: bytes) -> EntryBatch:
    """A block that came as it is. Raises RemoteProtocolError."""
    return check_configs([check_block(block)])[0]


def trim(batch: EntryBatch, last_index: int) -> EntryBatch:
    """A batch without its entries behind last_index."""
    return slice_block(batch, batch.first_index, last_index)
