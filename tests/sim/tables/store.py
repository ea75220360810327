"""The tables of a simulated worker: in memory, with what the last flush has saved.

As in storage/engine/rocks.py, a flush saves all tables with the index of their last entry, and what
comes after it is lost with the process.
"""

import hashlib
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from random import Random
from typing import NamedTuple, NoReturn

import msgpack

from kelek.protocols.zerodb.tables.operations import (
    LIFETIME_COUNTS,
    first_expiry_ms,
    tables_with_lifetimes,
)
from kelek.protocols.zerodb.tables.tables import (
    SYSTEM,
    LogPosition,
    Outcome,
    Pair,
    TableEntry,
    Tables,
    store_applied,
)
from kelek.protocols.zerodb.wire.values import TableOptions
from kelek.protocols.zerodb.worker.snapshot_participant import RestoredTables
from kelek.storage.disk.files import PIECE_BYTES, Files
from kelek.storage.errors import StorageFull
from kelek.storage.log.segment import Identity
from kelek.storage.snapshot.snapshot import newest, open_snapshot
from kelek.storage.snapshot.work import state_read
from kelek.storage.tables.sorted_keys import SortedKeys
from kelek.tests.storage.memory_disk import MemoryDisk
from kelek.tests.storage.memory_tables import MemoryTables

FLUSHES = 0.03  # The share of writes that fill the memory.
REOPENED = 0.5  # The share of full disks after which the database is opened again.
STATE_FILE = "tables"
_PAIR = struct.Struct("<qI")

Change = tuple[int, bytes, bytes | None]  # Table, key, and value; None: it is deleted.


class SavedTables(NamedTuple):
    """What a flush has saved."""

    applied: LogPosition
    options: dict[int, TableOptions]
    data: dict[int, dict[bytes, bytes]]

    def pack(self) -> bytes:
        options = {table: list(one) for table, one in self.options.items()}
        return bytes(msgpack.packb([self.applied, options, self.data]))


NO_TABLES = SavedTables((0, 0), {}, {SYSTEM: {}})


def unpack_saved(packed: bytes) -> SavedTables:
    applied, options, data = msgpack.unpackb(packed, strict_map_key=False)
    made = {table: TableOptions(*one) for table, one in options.items()}
    return SavedTables(tuple(applied), made, data)


class SimTables(MemoryTables):
    """Tables that know a number for their whole content, and their last changes."""

    def __init__(self, saved: SavedTables = NO_TABLES) -> None:
        super().__init__()
        self.content = 0  # Equal for equal pairs in all tables, however they came there.
        self.changes: list[Change] = []  # The owner clears it.
        self._sorted: dict[int, SortedKeys] = {SYSTEM: SortedKeys()}
        self._expires_ms: int | None = None
        for table, options in saved.options.items():
            self.create(table, options)
        for table, pairs in saved.data.items():
            self.put(table, list(pairs), list(pairs.values()))
        lifetimes = self.scan(SYSTEM, LIFETIME_COUNTS, LIFETIME_COUNTS + b"\xff" * 5)
        self.expiring_tables = tables_with_lifetimes(lifetimes)
        self.applied = saved.applied
        self.changes.clear()

    def save(self) -> SavedTables:
        data = {table: dict(pairs) for table, pairs in self.data.items()}
        return SavedTables(self.applied, dict(self.table_options), data)

    # ---- changes ----

    def create(self, table: int, options: TableOptions) -> None:
        super().create(table, options)
        self._sorted[table] = SortedKeys()

    def drop(self, table: int) -> None:
        self.delete(table, list(self.data[table]))
        super().drop(table)

    def rename(self, table: int, number: int) -> None:
        options, pairs = self.table_options[table], dict(self.data[table])
        for one in {table, number} & self.table_options.keys():
            self.drop(one)
        self.create(number, options)
        self.put(number, [*pairs], [*pairs.values()])

    def put(self, table: int, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        for key, value in zip(keys, values, strict=True):
            self._change(table, key, value)
        self._sorted[table].update(keys)
        super().put(table, keys, values)

    def delete(self, table: int, keys: Sequence[bytes]) -> None:
        for key in keys:
            self._change(table, key, None)
            self._sorted[table].discard(key)
        super().delete(table, keys)

    def _change(self, table: int, key: bytes, value: bytes | None) -> None:
        pairs = self.data[table]
        if key in pairs:
            self.content ^= _digest(table, key, pairs[key])
        if value is not None:
            self.content ^= _digest(table, key, value)
            pairs[key] = value  # The key may come again in the same operation.
        else:
            pairs.pop(key, None)
        if table == SYSTEM:
            self._expires_ms = None
        else:
            self.changes.append((table, key, value))

    # ---- reads ----

    def scan(
        self, table: int, start: bytes = b"", end: bytes = b"", reverse: bool = False
    ) -> Iterator[Pair]:
        found = [] if table not in self.data else list(self._sorted[table].between(start, end))
        if reverse:
            found.reverse()
        pairs = self.data.get(table, {})
        return iter([(key, pairs[key]) for key in found])

    @property
    def expires_ms(self) -> int:
        if self._expires_ms is None:
            self._expires_ms = first_expiry_ms(self)
        return self._expires_ms


def _digest(table: int, key: bytes, value: bytes) -> int:
    joined = _PAIR.pack(table, len(key)) + key + value
    return int.from_bytes(hashlib.blake2b(joined, digest_size=16).digest())


class WorkerTables(SimTables):
    """Those of a worker, which are checked after each write and saved now and then."""

    def __init__(self, disk: "WorkerDisk") -> None:
        super().__init__(disk.saved)
        self._disk = disk

    def write(self, entries: Sequence[TableEntry], sync: bool = False) -> list[Outcome]:
        try:
            self._disk.check_room()
        except StorageFull as error:
            self.problem = str(error)
            raise
        outcomes = super().write(entries, sync)
        if self.rows is not None:
            changes = ((table, [key], [value]) for table, key, value in self.changes)
            self.rows.write(changes, set())
        self.changes.clear()
        self._disk.on_written(self)
        if self._disk.random.random() < FLUSHES:
            self.flush()
        return outcomes

    def flush(self) -> None:
        self._disk.check_room()
        self._disk.saved = self.save()

    def recover(self) -> bool:
        """Accepts writes once there is room; if it was opened again, from what was saved."""
        if self.problem and not self._disk.is_full:
            self.problem = ""
            if self._disk.random.random() < REOPENED:
                super().__init__(self._disk.saved)
        return not self.problem


class WorkerDisk:
    """What is left of a worker's tables when its process has ended."""

    def __init__(self, random: Random, on_written: Callable[[SimTables], None]) -> None:
        """on_written: checks tables that were written or restored"""
        self.random = random
        self.on_written = on_written
        self.saved = NO_TABLES
        self.is_full = False
        self.states: dict[str, Files] = {}  # Parts of a snapshot, by their path.

    def check_room(self) -> None:
        if self.is_full:
            raise StorageFull("memory/tables")


class SimTableStore:
    """Does the work of storage/tables/directory.py."""

    local: Tables | None = None
    replicated: Tables

    def __init__(self, name: str, disk: WorkerDisk, files: Files, identity: Identity) -> None:
        self.name = name
        self._disk = disk
        self._files = files
        self._identity = identity
        self._unpacked = NO_TABLES
        self.drop_state()
        self.replicated = WorkerTables(disk)

    def write_state(self, at: LogPosition) -> str:
        store_applied(self.replicated, at)
        self.replicated.flush()
        self.drop_state()
        files = self._disk.states[self.name] = MemoryDisk().process()
        with closing(files.create(STATE_FILE)) as file:
            file.append([self._disk.saved.pack()])
        return self.name

    def drop_state(self) -> None:
        files = self._disk.states.pop(self.name, None)
        if files is not None:
            files.remove(STATE_FILE)

    def unpack_snapshot(self, applied: int) -> RestoredTables | None:
        info = newest(self._files, self._identity)
        if info is None or info.index <= applied:
            return None
        file = open_snapshot(self._files, self._identity, info)
        if file is None:
            return None  # A newer one has replaced it.
        with closing(file):
            read = state_read(file, f"{self.name}/{STATE_FILE}")
            packed = b"".join(iter(partial(read, PIECE_BYTES), b""))
        self._unpacked = unpack_saved(packed) if packed else NO_TABLES
        return RestoredTables((info.index, info.term), 1, len(packed))

    def replace(self, restored: RestoredTables) -> None:
        self._disk.saved = self._unpacked
        self.replicated = WorkerTables(self._disk)
        store_applied(self.replicated, restored.at)
        self._disk.on_written(self.replicated)
        self.replicated.flush()

    def refuse_log(self, applied: LogPosition, term: int) -> NoReturn:
        raise AssertionError(f"{self.name} has tables of another log: {applied}, not {term}")
