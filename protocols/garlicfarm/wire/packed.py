"""Many log entries as their bytes on the wire: nobody takes apart what is only passed on.

What can't be passed on as it is (anything but Application) is made into a tuple by the codec.
"""

from collections.abc import Iterable, Sequence
from typing import overload

from ....native.errors import NativeError
from ....native.net.farm import blocks_of, count_entries, entries_of_block
from ...raft.messages import EntryBatch
from .messages import ENTRIES_MAX, FarmLogEntry


class PackedEntries(Sequence[FarmLogEntry]):
    """A tuple of entries that is made when somebody looks at one."""

    __slots__ = ("_count", "_entries", "data")

    def __init__(self, data: bytes, count: int) -> None:
        self.data = data
        self._count = count
        self._entries: tuple[FarmLogEntry, ...] | None = None

    def unpacked(self) -> tuple[FarmLogEntry, ...]:
        if self._entries is None:
            from .codec import decode_entries  # It makes these itself.

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

    def __hash__(self) -> int:
        return hash(self.unpacked())

    def __repr__(self) -> str:
        return repr(self.unpacked())


def parse_packed(data: bytes) -> PackedEntries | None:
    """The entries that fill the data; None when they are to be looked at one by one."""
    count = count_entries(data)
    return None if count is None or count > ENTRIES_MAX else PackedEntries(data, count)


def pack_batches(batches: Iterable[EntryBatch]) -> PackedEntries:
    """What a log holds, as the wire has it: entries.entries_of() in one piece."""
    parts = [entries_of_block(batch.block, batch.count) for batch in batches]
    return PackedEntries(b"".join(parts), sum(batch.count for batch in batches))


def unpack_batches(
    first_index: int, entries: PackedEntries, term: int = 0
) -> list[EntryBatch] | None:
    """The same as entries.batches_of(); None when it would say what is wrong.

    term   of all of them, in place of their own
    """
    try:
        return [EntryBatch(*block) for block in blocks_of(entries.data, first_index, term)]
    except NativeError:
        return None
