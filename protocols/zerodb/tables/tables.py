"""The interface of a database of tables, as a table worker uses it.

storage/engine/rocks.py implements it on disk, tests/storage/memory_tables.py in memory. Reads of a
missing table find nothing; a put makes it. One process writes.
"""

from collections.abc import Iterable, Iterator, Sequence, Set
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ....native.tables.row_cache import RowChange
from ..wire.ops import Expire, LeaseEnd, LeaseKeep, Op, SessionEnd, SessionKeep, SessionOpen
from ..wire.values import TableOptions

if TYPE_CHECKING:
    from ..wire.chunks import SortedRows
    from .effects import Effects
    from .recent_changes import RecentChanges

Pair = tuple[bytes, bytes]
LogPosition = tuple[int, int]  # Index and term.
SYSTEM = -1  # The table of bookkeeping of operations.py.


# Operations without a table. Every worker applies sessions, so that their numbers are equal. Every
# worker reports changes of leases, because only the one that made the snapshot knows what comes
# before.
_EVERYBODYS = (SessionOpen, SessionKeep, SessionEnd, Expire, LeaseKeep, LeaseEnd)


class TablePartition(NamedTuple):
    """The tables of one worker: number, number + workers, ..."""

    number: int
    workers: int
    local: frozenset[int] = frozenset()  # Local tables, which are not in the log.

    def owns(self, table: int) -> bool:
        """Whether the table belongs to this worker, replicated or local."""
        return table % self.workers == self.number

    def applies(self, op: Op) -> bool:
        """Whether this worker applies the operation of an entry."""
        if isinstance(op, _EVERYBODYS):
            return True
        return self.owns(op.table) and op.table not in self.local


class TableEntry(NamedTuple):
    """The operations of a log entry; they are applied together or not at all."""

    log_index: int  # 0: the operations are of local tables.
    term: int
    ops: Sequence[Op]


class Outcome(NamedTuple):
    """The result of an operation for its client (operations.py has the layout of the data)."""

    log_index: int  # Of the entry.
    position: int  # Of the operation within its entry, from 0.
    data: bytes
    problem: str = ""  # Why all nodes refused the operation; empty: it was done.
    is_kept: bool = False  # It is the result of a transaction, and stored by its reqid.


class TableInfo(NamedTuple):
    """A table's options, and the database's estimates of its size."""

    options: TableOptions
    keys: int
    size: int  # Bytes in memory and on disk.


class SizedKeys(NamedTuple):
    """About how much is in a range."""

    keys: int
    size: int  # Bytes, on the disk.


class CachedRows(Protocol):
    """Rows that are kept somewhere else, too (native/tables/row_cache.py)."""

    def write(self, changes: Iterable[RowChange], reshaped: Set[int]) -> None:
        """All that a write has changed, in its order.

        reshaped   tables of which it has changed more
        """


class Tables(Protocol):
    """A database of many tables. Its errors are StorageFailure."""

    rows: CachedRows | None  # Is told what a write has changed, before write() returns.

    # Changes of local tables, kept while watches exist; None: there is no watch.
    recent: "RecentChanges | None"
    versioned_tables: set[int]  # As of TableState.

    @property
    def applied(self) -> tuple[int, int]:
        """Index and term of the last applied entry; (0, 0): none."""

    @property
    def problem(self) -> str:
        """Why the database refuses writes now, or an empty text."""

    @property
    def expires_ms(self) -> int:
        """Unix time at which the first key or session ends and an Expire is due; 0: never."""

    def tables(self) -> dict[int, TableOptions]:
        """The existing tables."""

    # ---- reading ----

    def get(self, table: int, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of keys; None: there is no such key."""

    def exists(self, table: int, keys: Sequence[bytes]) -> list[bool]:
        """Which keys exist."""

    def count(self, table: int, start: bytes = b"", end: bytes = b"") -> int:
        """Number of keys in start <= key <= end: the end is included. Empty: no bound."""

    def scan(
        self, table: int, start: bytes = b"", end: bytes = b"", reverse: bool = False
    ) -> Iterator[Pair]:
        """Pairs of start <= key < end, ascending or descending, as they are now: later writes are
        not seen. Empty: no bound. Drop the iterator when done; it pins what it reads."""

    def keys(
        self, table: int, start: bytes = b"", end: bytes = b"", reverse: bool = False
    ) -> Iterator[bytes]:
        """As scan(), without the values."""

    # ---- writing ----

    def write(self, entries: Sequence[TableEntry], sync: bool = False) -> list[Outcome]:
        """Applies entries in order as one atomic batch, together with the (index, term) of the last
        one. Entries at or below `applied` are skipped. After a StorageFailure nothing is applied; a
        later call may succeed, see recover().

        sync   make the batch durable, where the database has a log of its own
        """

    def results(self, reqids: Sequence[bytes]) -> list[bytes | None]:
        """The outcome data of the transactions that were applied under these reqids; None: unknown.
        Raises StorageFailure."""

    def effects(self, log_index: int) -> "list[Effects]":
        """The recorded effects of an entry's operations in order; empty if the entry is too old
        (effects.py)."""

    def flush(self) -> None:
        """Makes all writes durable, as one step."""

    def recover(self) -> bool:
        """Tries to accept writes again. True: writes are accepted; `applied` may be lower, and the
        caller must apply the entries behind it again. Reads work meanwhile."""

    # ---- upkeep ----

    def close_table(self, table: int) -> None:
        """Flushes a table and frees its memory. The next request opens it again."""

    def compact(self, table: int, start: bytes = b"", end: bytes = b"") -> None:
        """Rewrites start <= key <= end without deleted data, after a flush of everything."""

    def checkpoint(self, path: str) -> tuple[int, int]:
        """Makes an immutable copy of all tables in a new folder, by hard links; returns its
        `applied`."""

    def split_points(self, table: int, start: bytes, end: bytes, count: int) -> list[bytes]:
        """At most count ascending keys strictly within (start, end) that split the range into
        pieces of about equal size."""

    def range_size(self, table: int, start: bytes, end: bytes) -> SizedKeys | None:
        """About how much is in start <= key < end; None: the table is so small that its keys can be
        counted."""

    def info(self, table: int) -> TableInfo | None:
        """None: the table does not exist."""

    def content_hash(self, table: int) -> bytes:
        """The ContentHash of a table; reads it whole."""

    def close(self) -> None:
        """Flushes, unless the disk is full, and closes the database."""


class TableReader(Protocol):
    """Read access to tables; SYSTEM always exists."""

    def get(self, table: int, keys: Sequence[bytes]) -> list[bytes | None]: ...

    def scan(self, table: int, start: bytes, end: bytes) -> Iterator[Pair]:
        """Ascending pairs of start <= key < end, while nothing is changed."""


class TableState(TableReader, Protocol):
    """The tables as the previous operations left them."""

    expiring_tables: set[int]  # Tables that may have keys with a lifetime.
    versioned_tables: set[int]  # Tables that keep versions of their keys (versions.py).

    def options(self, table: int) -> TableOptions | None:
        """None: the table does not exist."""

    def create(self, table: int, options: TableOptions) -> None:
        """Makes an empty table, which does not exist yet."""

    def drop(self, table: int) -> None:
        """Removes a table with its content."""

    def rename(self, table: int, number: int) -> None:
        """Gives a table another number; a table with that number is removed. Neither has changes
        of the same batch."""

    def load(self, table: int, runs: "Sequence[SortedRows]") -> None:
        """Stores rows in a table that is not read before the batch is written. Of equal keys the
        last one wins. What is stored may stay if the batch is not written."""

    def put(self, table: int, keys: Sequence[bytes], values: Sequence[bytes]) -> None: ...

    def delete(self, table: int, keys: Sequence[bytes]) -> None: ...

    def delete_range(self, table: int, start: bytes, end: bytes) -> None: ...


def store_applied(tables: Tables, position: LogPosition) -> None:
    """Stores the applied position in the database; the last entries may have changed no table of
    it. Raises StorageFailure."""
    if tables.applied < position:
        tables.write([TableEntry(*position, [])])
