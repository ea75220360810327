"""A table's client with what streams of changes need besides the public methods."""

from ...clients.io.operations import Operation, operation
from ...clients.table.arguments import Range
from ...clients.table.reads import TableReads
from ...clients.table.table import Table
from ...protocols.zerodb.wire.answers import WatchedChange


class ChangesOperations(TableReads):
    """What entries of the log did, entry by entry."""

    @operation
    def next_index(self) -> Operation[int]:
        """The index from which a watch misses nothing."""
        return self._next_index()

    @operation
    def entries_from(
        self, start: bytes, end: bytes, index: int, wait_ms: int
    ) -> Operation[tuple[int, list[WatchedChange]]]:
        """What entries from an index on did to a range, none after wait_ms, and the next index.
        Raises TableCompacted."""
        return self._entries_from(Range(start, end), index, wait_ms, limited=True)


class ChangesTable(ChangesOperations, Table):
    """A kelek.Table for streams of changes."""
