"""Log entries kept as wire bytes, so that forwarding them needs no decoding.

The C functions handle Application entries only; the codec decodes other entries to tuples.
"""

from collections.abc import Iterable, Sequence
from typing import overload

from ....native.errors import NativeError
from ....native.net.farm import blocks_of, count_entries, entries_of_block
from ...raft.messages import EntryBatch
from .messages import ENTRIES_MAX, FarmLogEntry


class PackedEntries(Sequence[FarmLogEntry]):
    """A sequence of entries that decodes them on first access."""

    __slots__ = ("_count", "_entries", "data")

    def __init__(self, data: bytes, count: int) -> None:
        self.data = data
        self._count = count
        self._entries: tuple[FarmLogEntry, ...] | None = None

    def unpacked(self) -> tuple[FarmLogEntry, ...]:
        if self._entries is None:
            from .codec import decode_entries  # The codec imports this module.

            self._entries = decode_entries(self.data)
        return self._entries

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> FarmLogEntry: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[FarmLogEntry, ...]: ...
    def __getitem__(self, at: int | slice) -> FarmLogEntry | tuple[FarmLogEntry, ...]:
        return self.unpacked()[at]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PackedEntries):
            return self.data == other.data
        return self.unpacked() == other


def parse_packed(data: bytes) -> PackedEntries | None:
    """Entries that fill the data; None if the codec must decode each entry."""
    count = count_entries(data)
    return None if count is None or count > ENTRIES_MAX else PackedEntries(data, count)


def pack_batches(batches: Iterable[EntryBatch]) -> PackedEntries:
    """Log batches in the wire's layout: entries_of() as one block of bytes."""
    parts = [entries_of_block(batch.block, batch.count) for batch in batches]
    return PackedEntries(b"".join(parts), sum(batch.count for batch in batches))


def unpack_batches(
    first_index: int, entries: PackedEntries, term: int = 0
) -> list[EntryBatch] | None:
    """Like entries.batches_of(), but None if an entry is invalid.

    term   replaces the entries' own terms, unless 0
    """
    try:
        return [EntryBatch(*block) for block in blocks_of(entries.data, first_index, term)]
    except NativeError:
        return None
