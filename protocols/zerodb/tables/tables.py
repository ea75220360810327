"""The small interface of the tables' engine: what a table_worker needs of one database.

rocks.py keeps it on a disk, tables/memory.py is its plain twin. Reads of a table that is not there
find nothing; a put makes it. One process writes; nothing here knows a log or a socket.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ..wire.ops import Op
from ..wire.values import TableOptions

if TYPE_CHECKING:
    from .effects import Effects
    from .recent_changes import RecentChanges

Pair = tuple[bytes, bytes]
LogPosition = tuple[int, int]  # Index and term.


class TableEntry(NamedTuple):
    """The operations of one entry of the log: they happen together or not at all."""

    log_index: int  # 0: of no log.
    term: int
    ops: Sequence[Op]


class Outcome(NamedTuple):
    """What an operation has to tell who asked for it (operations.py lays the data out)."""

    log_index: int  # Of its entry.
    position: int  # Of the operation in its entry, from 0.
    data: bytes
    problem: str = ""  # Why nothing was done, on every node alike; empty: it was.


class TableInfo(NamedTuple):
    """What a table takes; both numbers are the engine's estimates."""

    options: TableOptions
    keys: int
    size: int  # Bytes, in memory and on disk.


class Tables(Protocol):
    """One database of many tables. Whatever is wrong with it is raised as StorageError: StorageFull
    and Damaged when that is known, with the reason."""

    recent: "RecentChanges | None"  # What entries of no log do is kept there; None: nobody watches.

    @property
    def applied(self) -> tuple[int, int]:
        """Index and term of the last entry that is in the tables; (0, 0): none."""

    @property
    def problem(self) -> str:
        """Why the tables take no writes now; empty: they do."""

    @property
    def expires_ms(self) -> int:
        """When the first key or session ends, unix time; 0: none does. Then an Expire is due."""

    def tables(self) -> dict[int, TableOptions]:
        """The tables that are there."""

    # ---- reading ----

    def get(self, table: int, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of keys, None where there is none."""

    def exists(self, table: int, keys: Sequence[bytes]) -> list[bool]:
        """Which keys are there."""

    def count(self, table: int, start: bytes = b"", end: bytes = b"") -> int:
        """How many keys lie in start <= key <= end: the end counts. Empty: no bound."""

    def scan(
        self, table: int, start: bytes = b"", end: bytes = b"", reverse: bool = False
    ) -> Iterator[Pair]:
        """Keys and values of start <= key < end in their order, or in the opposite one. It sees the
        table as it is now, whatever is written meanwhile. Empty: no bound. Drop it when done: it
        holds on to what it sees."""

    def keys(
        self, table: int, start: bytes = b"", end: bytes = b"", reverse: bool = False
    ) -> Iterator[bytes]:
        """As scan(), without the values."""

    # ---- writing ----

    def write(self, entries: Sequence[TableEntry], sync: bool = False) -> list[Outcome]:
        """Applies entries in their order, all of them in one atomic batch that holds (index, term)
        of the last, too. sync: it is durable afterwards (where there is an engine's log).

        Entries at or below applied are skipped. After a StorageError nothing of it happened;
        the same call may succeed later, see recover().
        """

    def result(self, reqid: bytes) -> bytes | None:
        """The Outcome's data of a transaction that was applied under this reqid; None: unknown."""

    def effects(self, log_index: int) -> "list[Effects]":
        """What each operation of an entry did whose effect is not to be seen in itself, in their
        order; none of an entry that is too old (effects.py)."""

    def flush(self) -> None:
        """Makes everything that was written durable, as one."""

    def recover(self) -> bool:
        """Tries whether the tables take writes again. True: they do; applied may have gone back to
        what is durable, so go on behind it. Reads go on meanwhile."""

    # ---- upkeep ----

    def close_table(self, table: int) -> None:
        """Frees the memory that a table takes: it is flushed. The next request opens it again."""

    def compact(self, table: int, start: bytes = b"", end: bytes = b"") -> None:
        """Rewrites start <= key <= end without what was deleted; everything is flushed first."""

    def checkpoint(self, path: str) -> tuple[int, int]:
        """Makes a database at path, a folder that is not there yet, that holds all tables as they
        are now and never changes; returns its applied. Files are shared by hard links."""

    def split_points(self, table: int, start: bytes, end: bytes, count: int) -> list[bytes]:
        """At most count keys, ascending, strictly within (start, end), that part the range into
        pieces of about equal size."""

    def info(self, table: int) -> TableInfo | None:
        """None: the table is not there."""

    def content_hash(self, table: int) -> bytes:
        """32 bytes that are equal for equal keys and values; reads the whole table."""

    def close(self) -> None:
        """Ends the use of it; what was written is flushed, unless the disk is full."""


def store_applied(tables: Tables, position: LogPosition) -> None:
    """Stores the applied position in the database; the last entries may have changed no table of
    it. Raises StorageFailure."""
    if tables.applied < position:
        tables.write([TableEntry(*position, [])])
