"""Tables in dictionaries: the twin of rocks.py for tests and the simulator.

Each scan sorts what it reads.
"""

import copy
from collections.abc import Iterator, Sequence

from kelek.protocols.zerodb.tables.content import content_hash, split_points
from kelek.protocols.zerodb.tables.effects import Effects, record_range
from kelek.protocols.zerodb.tables.operations import (
    apply_entry,
    first_expiry_ms,
    result_key,
    stored_result,
)
from kelek.protocols.zerodb.tables.recent_changes import RecentChanges
from kelek.protocols.zerodb.tables.tables import (
    SYSTEM,
    CachedRows,
    Outcome,
    Pair,
    TableEntry,
    TableInfo,
)
from kelek.protocols.zerodb.wire.chunks import SortedRows
from kelek.protocols.zerodb.wire.ops import Op
from kelek.protocols.zerodb.wire.values import TableOptions
from kelek.storage.errors import StorageError

READ_ONLY = "a checkpoint never changes"


class MemoryTables:
    """Tables in memory, and at once the TableState of operations.py."""

    def __init__(self, disk: "dict[str, MemoryTables] | None" = None) -> None:
        self.applied = (0, 0)
        self.problem = ""
        self.recent: RecentChanges | None = None
        self.rows: CachedRows | None = None
        self.disk = {} if disk is None else disk  # Checkpoints by path.
        self.expiring_tables: set[int] = set()
        self.versioned_tables: set[int] = set()
        self.table_options: dict[int, TableOptions] = {}
        self.data: dict[int, dict[bytes, bytes]] = {SYSTEM: {}}

    # ---- State ----

    def options(self, table: int) -> TableOptions | None:
        return self.table_options.get(table)

    def create(self, table: int, options: TableOptions) -> None:
        self.table_options[table] = options
        self.data[table] = {}

    def drop(self, table: int) -> None:
        del self.table_options[table], self.data[table]

    def rename(self, table: int, number: int) -> None:
        self.table_options[number] = self.table_options.pop(table)
        self.data[number] = self.data.pop(table)

    def load(self, table: int, runs: Sequence[SortedRows]) -> None:
        for rows in runs:
            self.put(table, rows.keys, rows.values)

    def put(self, table: int, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        self.data[table].update(zip(keys, values, strict=True))

    def delete(self, table: int, keys: Sequence[bytes]) -> None:
        for key in keys:
            self.data[table].pop(key, None)

    def delete_range(self, table: int, start: bytes, end: bytes) -> None:
        self.delete(table, list(self.keys(table, start, end)))

    def pairs(self) -> dict[tuple[int, bytes], bytes]:
        """The content of all tables but SYSTEM."""
        return {
            (table, key): value
            for table, pairs in self.data.items()
            if table != SYSTEM
            for key, value in pairs.items()
        }

    # ---- Tables ----

    @property
    def expires_ms(self) -> int:
        return first_expiry_ms(self)

    def tables(self) -> dict[int, TableOptions]:
        return dict(self.table_options)

    def get(self, table: int, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.data.get(table, {}).get(key) for key in keys]

    def exists(self, table: int, keys: Sequence[bytes]) -> list[bool]:
        return [value is not None for value in self.get(table, keys)]

    def count(self, table: int, start: bytes = b"", end: bytes = b"") -> int:
        return len(list(self.keys(table, start, end and end + b"\0")))

    def scan(
        self, table: int, start: bytes = b"", end: bytes = b"", reverse: bool = False
    ) -> Iterator[Pair]:
        pairs = self.data.get(table, {}).items()
        found = [pair for pair in pairs if start <= pair[0] and (not end or pair[0] < end)]
        return iter(sorted(found, reverse=reverse))

    def keys(
        self, table: int, start: bytes = b"", end: bytes = b"", reverse: bool = False
    ) -> Iterator[bytes]:
        return (key for key, _ in self.scan(table, start, end, reverse))

    def write(self, entries: Sequence[TableEntry], sync: bool = False) -> list[Outcome]:
        if self.problem:
            raise StorageError("memory", self.problem, "open the tables that it was made of")
        outcomes: list[Outcome] = []
        done: list[Op] | None = None if self.recent is None else []
        applied = self.applied[0]  # Several items may belong to one entry of the log.
        for entry in entries:
            if 0 < entry.log_index <= applied:
                continue
            outcomes += apply_entry(self, entry, done)
            if entry.log_index:
                self.applied = entry.log_index, entry.term
        if self.recent is not None and done:
            self.recent.add(done)
        return outcomes

    def results(self, reqids: Sequence[bytes]) -> list[bytes | None]:
        return [stored_result(data) for data in self.get(SYSTEM, [*map(result_key, reqids)])]

    def effects(self, log_index: int) -> list[Effects]:
        return [Effects(data) for _, data in self.scan(SYSTEM, *record_range(log_index))]

    def flush(self) -> None:
        """Writes are never lost."""

    def recover(self) -> bool:
        return not self.problem

    def close_table(self, table: int) -> None:
        """No memory can be freed."""

    def compact(self, table: int, start: bytes = b"", end: bytes = b"") -> None:
        """Deleted data needs no memory."""

    def checkpoint(self, path: str) -> tuple[int, int]:
        if path in self.disk:
            raise StorageError(path, "is there already", "choose another name")
        made = MemoryTables(self.disk)
        made.applied, made.problem = self.applied, READ_ONLY
        made.table_options, made.data = dict(self.table_options), copy.deepcopy(self.data)
        made.versioned_tables = set(self.versioned_tables)
        self.disk[path] = made
        return self.applied

    def split_points(self, table: int, start: bytes, end: bytes, count: int) -> list[bytes]:
        pairs = self.scan(table, start, end)
        return split_points(((key, len(key) + len(value)) for key, value in pairs), count)

    def range_size(self, table: int, start: bytes, end: bytes) -> None:
        """All tables are small."""

    def info(self, table: int) -> TableInfo | None:
        if table not in self.table_options:
            return None
        data = self.data[table]
        size = sum(len(key) + len(value) for key, value in data.items())
        return TableInfo(self.table_options[table], len(data), size)

    def content_hash(self, table: int) -> bytes:
        return content_hash(self.scan(table))

    def close(self) -> None:
        """Nothing is open."""
