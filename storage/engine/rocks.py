"""Tables in RocksDB: one database, and one column family a table.

A replicated database has no write-ahead log: all tables are flushed together with the index of
their last entry, and entries behind it are applied again after a crash. A local database has a log,
and a write may wait for it.

The system column family is durable together with the data that it describes, but column families
are created and dropped at once. So no column family is used twice: a truncated table gets another
one, and the old one is dropped once it is durable that no table uses it. Its name is
`number.cache.block.buffer.bloom.compression`, because its options must be known to open it.

Traps of rocksdict 0.3.29 that this module avoids: flush() of one column family splits what must be
flushed together, and so does the end of an Rdict; compact_range() does not report failures;
set_iterate_lower_bound() sets the upper bound; a Snapshot reads later writes; items() ends silently
at damage.
"""

import os
import time
import weakref
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from operator import itemgetter
from types import GeneratorType
from typing import cast

import rocksdict

from ...native.tables.sst import Bounds
from ...protocols.zerodb.server.scan_chunks import ChunkSource, PairChunks
from ...protocols.zerodb.tables.content import SizedRange, content_hash, split_points
from ...protocols.zerodb.tables.effects import Effects, record_range
from ...protocols.zerodb.tables.operations import (
    LIFETIME_COUNTS,
    apply_entry,
    first_expiry_ms,
    result_key,
    stored_result,
    tables_with_lifetimes,
)
from ...protocols.zerodb.tables.recent_changes import RecentChanges
from ...protocols.zerodb.tables.tables import (
    SYSTEM,
    CachedRows,
    Outcome,
    Pair,
    SizedKeys,
    TableEntry,
    TableInfo,
)
from ...protocols.zerodb.tables.versions import VERSIONED, versioned_tables
from ...protocols.zerodb.wire.chunks import SortedRows
from ...protocols.zerodb.wire.ops import Op, Put
from ...protocols.zerodb.wire.values import TableOptions
from ..disk.disk import make_folders
from ..errors import Damaged, StorageError, StorageFull
from .batch import APPLIED, AT, NUMBER, TABLES, PendingWrites
from .counts import counted
from .families import (
    Family,
    Guard,
    Resources,
    Stalled,
    database_options,
    family_name,
    family_options,
    parse_family,
    without_traceback,
)
from .ingest import ingest, remove_left
from .log_check import DurableMark, check_logs
from .notes import Notes
from .sst_file import Unsupported
from .sst_scan import FileScan, SstQuery, TableScan, sampled_pieces
from .walk import Row, TableFile, Walk, file_pieces, files_of, share_within

SPARE_MIN = 16  # Prepared empty column families: creating one takes 20 to 150 ms.
SINGLES_MAX = 8  # Created one by one in a batch, before many are prepared.
BUFFERED = ("num-entries-active-mem-table", "num-immutable-mem-table")
# How long a database takes no writes, with free space, until recover() opens it again:
STALLED_S = 20.0  # while writes stall,
FULL_S = 7.0  # after a full disk, for whose space RocksDB looks every 5 s,
FAILED_S = 1.0  # after another error, with which RocksDB never resumes.
FREE_BYTES_MIN = 16 << 20  # On the disk, to open or to flush.
STALL_S_MAX = 1.0  # Of a write that waits for flushes and compactions.
SETTLE_S_MAX = 10.0  # Before a flush.
STALL_POLL_S = 0.002  # Interval of the checks.
EXACT_BYTES_MAX = 64 << 20  # Up to this size an unflushed table is read to split it: 0.3 s or more.
SAMPLED_BYTES = 4 << 20  # A larger one that is mostly in files is split by some of their keys,
SAMPLES_A_POINT, SAMPLES_MAX = 32, 512  # so many.
PIECE_PAIRS = 64  # In one piece then.


class _TooFewFamilies(Exception):
    """A batch makes more tables than there are prepared column families; it is built again then."""


def open_tables(path: str, shared: Resources, replicated: bool) -> "RocksTables":
    """Opens or creates a database. Raises StorageError."""
    check_logs(path, replicated)
    return RocksTables(path, shared, replicated, read_only=False)


def open_checkpoint(path: str, shared: Resources, table: int | None = None) -> "RocksTables":
    """Opens a checkpoint read-only. It writes nothing, so that many processes may open it. Raises
    StorageError.

    table   the only one to read, if it exists: others cost 0.6 ms each
    """
    check_logs(path, replicated=False)
    if table is None:
        return RocksTables(path, shared, replicated=True, read_only=True)
    system = RocksTables(path, shared, replicated=True, read_only=True, only=())
    try:
        name = system.get(SYSTEM, [TABLES + NUMBER.pack(table)])[0]
    finally:
        system.close()
    only = (name.decode(),) if name else ()
    return RocksTables(path, shared, replicated=True, read_only=True, only=only)


class RocksTables:
    """Tables in a RocksDB database. One process has it open, except for a checkpoint."""

    def __init__(
        self,
        path: str,
        shared: Resources,
        replicated: bool,
        read_only: bool,
        only: Sequence[str] | None = None,
    ) -> None:
        """only: the column families of tables to open, of a database that is read; None: all"""
        self.path = path
        self._only = only
        self.problem = ""
        self.applied = (0, 0)
        self.recent: RecentChanges | None = None
        self.rows: CachedRows | None = None
        self.families: dict[int, Family] = {}  # Includes SYSTEM.
        self.expiring_tables: set[int] = set()
        self.versioned_tables: set[int] = set()
        self._shared = shared
        self._replicated = replicated
        self._read_only = read_only
        self.spare_families: dict[TableOptions, list[Family]] = {}
        self._unused_families: list[Family] = []  # Dropped once that is durable.
        self._scans: weakref.WeakSet[Generator[object, None, None]] = weakref.WeakSet()
        self.file_scans: weakref.WeakSet[FileScan] = weakref.WeakSet()
        self._database: rocksdict.Rdict | None = None
        self._next_number = 1  # Of a column family.
        self._created_singly = 0  # Created for the current batch.
        self._stuck_since: float | None = None
        self._expires_ms: int | None = None  # None: not known.
        self._guard = Guard(path)
        self._notes = Notes()
        # By whether the write must be durable: the log makes replicated writes durable.
        self._write_options = [
            _write_options(replicated, sync and not replicated) for sync in (False, True)
        ]
        self._stop: weakref.finalize[..., RocksTables] | None = None
        self._durable = None if replicated else DurableMark(path)
        self._open(SPARE_MIN)

    # ---- opening ----

    def _open(self, spares: int) -> None:
        """Opens the database, with prepared column families if it is new or needs them."""
        there = os.path.exists(f"{self.path}/CURRENT")
        guard = Guard(self.path, opens=there and not self._read_only)
        with guard:
            names = rocksdict.Rdict.list_cf(self.path) if there else []
        if self._only is not None:
            names = [name for name in names if "." not in name or name in self._only]
        numbers = [int(name.split(".")[0]) for name in names if "." in name]
        self._next_number = max([0, *numbers]) + 1
        if not there or spares > SPARE_MIN:
            names += [self._next_name(TableOptions()) for _ in range(spares)]
        if not there and self._read_only:
            raise StorageError(self.path, "there are no tables", "see who removed them")
        if not there:
            make_folders(self.path)
        if not self._read_only:
            remove_left(self.path)
        parsed = {name: parse_family(name)[1] for name in names if "." in name}
        if self._read_only:  # A reader's memory is bounded, whatever its tables' cache sizes are.
            cache_bytes = TableOptions().cache_bytes
            parsed = {name: one._replace(cache_bytes=cache_bytes) for name, one in parsed.items()}
        made = {
            name: family_options(options, self._shared, self._replicated)
            for name, options in {"system": TableOptions(), **parsed}.items()
        }
        options = {name: one for name, (one, _) in made.items()}
        options["default"] = database_options(self._shared, self._replicated)
        access = rocksdict.AccessType
        with guard:
            self._database = rocksdict.Rdict(
                self.path,
                database_options(self._shared, self._replicated),
                options,
                access.read_only(False) if self._read_only else access.read_write(),
            )
            # However the process ends, all column families are flushed together, or none.
            self._stop = weakref.finalize(self, self._database.cancel_all_background, True)
            families = {
                name: self._family(name, parsed.get(name, TableOptions()), own)
                for name, (_, own) in made.items()
            }
        try:
            if self._durable is not None:
                with guard:
                    last = self.database().latest_sequence_number()
                self._durable.check(last)
            self._load(families)
        except StorageError:
            self._shut()
            raise

    def _next_name(self, options: TableOptions) -> str:
        number, self._next_number = self._next_number, self._next_number + 1
        return family_name(number, options)

    def _family(self, name: str, options: TableOptions, own: rocksdict.Cache | None) -> Family:
        database = self.database()
        data = database.get_column_family(name)
        return Family(name, options, own, data, database.get_column_family_handle(name))

    def database(self) -> rocksdict.Rdict:
        if self._database is None:
            raise StorageError(self.path, f"not open: {self.problem}", "it is tried again")
        return self._database

    def _load(self, families: dict[str, Family]) -> None:
        """Assigns column families to tables. Others were dropped or not used yet when the process
        ended."""
        self._notes = Notes()
        self.families = {SYSTEM: families.pop("system")}
        for key, value in self.scan(SYSTEM, TABLES, TABLES + b"\xff" * 5):
            table, name = NUMBER.unpack(key[1:])[0], value.decode()
            if self._only is not None and name not in self._only:
                continue
            if name not in families:
                problem = f"table {table} lacks its column family {name}"
                raise Damaged(self.path, problem, "move it away: it is made again")
            self.families[table] = families.pop(name)
        applied = self.get(SYSTEM, [APPLIED])[0]
        self.applied = (0, 0) if applied is None else AT.unpack(applied)
        self.expiring_tables = tables_with_lifetimes(
            self.scan(SYSTEM, LIFETIME_COUNTS, LIFETIME_COUNTS + b"\xff" * 5)
        )
        self.versioned_tables = versioned_tables(
            self.scan(SYSTEM, VERSIONED, VERSIONED + b"\xff" * 5)
        )
        self._expires_ms = None
        self.spare_families = {}
        self._unused_families = []
        for family in families.values():
            if next(iter(family.data.keys()), None) is None:
                self.spare_families.setdefault(family.options, []).append(family)
            else:
                self._unused_families.append(family)
        if not self._read_only:
            self._drop_unused_families()

    def claim_family(self, options: TableOptions) -> Family:
        """A prepared empty column family with these options. Raises _TooFewFamilies if the batch
        needs so many that they must be prepared first."""
        spare = self.spare_families.get(options)
        if spare:
            return spare.pop()
        if options == TableOptions() and not self._scanned():
            self._created_singly += 1
            if self._created_singly > SINGLES_MAX:
                raise _TooFewFamilies
        name = self._next_name(options)
        made, own = family_options(options, self._shared, self._replicated)
        with Guard(self.path):
            self.database().create_column_family(name, made)
            return self._family(name, options, own)

    def _grow(self, wanted: int) -> None:
        """Prepares column families: creating many while the database opens is faster than one by
        one."""
        spares = len(
            self.spare_families.get(TableOptions(), ())
        )  # A reference to a family would keep the database open.
        if wanted <= spares or wanted + len(self.families) <= SPARE_MIN or self._scanned():
            return
        self._reopen(wanted + max(SPARE_MIN + 1, len(self.families)))

    def _reopen(self, spares: int) -> None:
        self.flush()
        self._shut()
        self._open(spares)

    # ---- reading ----

    def tables(self) -> dict[int, TableOptions]:
        return {table: family.options for table, family in self.families.items() if table != SYSTEM}

    @property
    def expires_ms(self) -> int:
        if self._expires_ms is None:
            self._expires_ms = first_expiry_ms(self)
        return self._expires_ms

    def _family_of(self, table: int) -> Family | None:
        """None: the table does not exist. Raises StorageError: that is unknown."""
        self.database()
        return self.families.get(table)

    def get(self, table: int, keys: Sequence[bytes]) -> list[bytes | None]:
        family = self._family_of(table)
        if family is None:
            return [None] * len(keys)
        if table == SYSTEM and (noted := self._notes.found(keys)) is not None:
            return noted
        with self._guard:
            found: list[bytes | None] = family.data.get(list(keys))  # type: ignore[assignment]
        if table == SYSTEM:
            self._notes.keep(keys, found)
        return found

    def exists(self, table: int, keys: Sequence[bytes]) -> list[bool]:
        family = self._family_of(table)
        if family is None:
            return [False] * len(keys)
        with Guard(self.path):
            return [key in family.data for key in keys]

    def count(self, table: int, start: bytes = b"", end: bytes = b"") -> int:
        found = self.keys(table, start, end and end + b"\0")
        last = deque(enumerate(found, 1), maxlen=1)
        return last[0][0] if last else 0

    def scan(
        self, table: int, start: bytes = b"", end: bytes = b"", reverse: bool = False
    ) -> Iterator[Pair]:
        family = self._family_of(table)
        if family is None:
            return iter(())
        walk = self._walk(family, (start, end), reverse)
        found = family.data.items(reverse, walk.first, walk.options)
        return self._tracked(walk.rows(cast(Iterator[Pair], found), itemgetter(0)))

    def keys(
        self, table: int, start: bytes = b"", end: bytes = b"", reverse: bool = False
    ) -> Iterator[bytes]:
        family = self._family_of(table)
        if family is None:
            return iter(())
        walk = self._walk(family, (start, end), reverse)
        found = family.data.keys(reverse, walk.first, walk.options)
        return self._tracked(walk.rows(cast(Iterator[bytes], found), bytes))

    def pieces(
        self, table: int, start: bytes = b"", end: bytes = b"", with_values: bool = True
    ) -> ChunkSource:
        """As scan() or keys() (then values are empty), for readers of many pairs."""

        def engine(start: bytes) -> Iterator[Pair]:
            if with_values:
                return self.scan(table, start, end)
            return ((key, b"") for key in self.keys(table, start, end))

        query = self._file_query(table, Bounds(start, end), with_values)
        if query is None or (end and end <= start):
            return PairChunks(engine(start))
        scan = FileScan(query)
        if scan.files + sum(one.files for one in self.file_scans) > self._shared.files_max:
            return PairChunks(engine(start))
        self.file_scans.add(scan)
        return TableScan(scan, lambda last: engine(last or start))

    def count_range(self, table: int, start: bytes, end: bytes, at_once: int = 1) -> int:
        """The number of keys in start <= key < end of a checkpoint, without a Python object for a
        key. Raises StorageError.

        at_once   how many threads count
        """
        if end and end <= start:
            return 0
        query = self._file_query(table, Bounds(start, end), with_values=False)
        if query is not None:
            with suppress(Unsupported):
                return counted(query, self._shared.files_max // at_once)
        return sum(1 for _ in self.keys(table, start, end))

    def _file_query(self, table: int, bounds: Bounds, with_values: bool) -> SstQuery | None:
        """For a scan of a checkpoint's files in C; None: RocksDB scans the table."""
        family = self._family_of(table)
        files = self.table_files(family) if family and self._read_only else None
        if family is None or files is None:
            return None
        sequence = self.database().latest_sequence_number()
        return SstQuery(self.path, family.name, sequence, files, bounds, with_values)

    def table_files(self, family: Family) -> list[TableFile] | None:
        """All files of a table; None: it has unflushed data, too."""
        read = family.data.property_int_value
        with Guard(self.path):
            if any(read(f"rocksdb.{name}") != 0 for name in BUFFERED):
                return None
            files = files_of(family.data.property_value("rocksdb.sstables") or "")
            size = read("rocksdb.total-sst-files-size")
        return files if size == sum(file.size for file in files) else None

    def _walk(self, family: Family, bounds: tuple[bytes, bytes], reverse: bool) -> Walk:
        walk = Walk(self.path, family.data, *bounds, reverse)
        if self._read_only:
            walk.read_once()
        return walk

    def last_key(self, table: int) -> bytes:
        """Empty: the table is empty."""
        return next(self.keys(table, reverse=True), b"")

    def _tracked(self, scan: Generator[Row, None, None]) -> Iterator[Row]:
        self._scans.add(scan)
        return scan

    def _scanned(self) -> bool:
        """Whether a scan, which keeps the database open, is in use."""
        return any(cast("GeneratorType[object, None, None]", scan).gi_frame for scan in self._scans)

    # ---- writing ----

    def write(self, entries: Sequence[TableEntry], sync: bool = False) -> list[Outcome]:
        entries = [one for one in entries if one.log_index == 0 or one.log_index > self.applied[0]]
        until = time.monotonic() + STALL_S_MAX
        while entries:
            try:
                return self._write(entries, sync)
            except Stalled as error:  # Or waiting for space: RocksDB would wait for ever.
                if time.monotonic() > until:
                    full = StorageFull(self.path) if self._free() < FREE_BYTES_MIN else error
                    self.problem = str(full)
                    raise without_traceback(full) from None
                time.sleep(STALL_POLL_S)
            except StorageError as error:
                self.problem = str(error)
                raise without_traceback(error) from None
        return []

    def _write(self, entries: Sequence[TableEntry], sync: bool) -> list[Outcome]:
        made = {op.table for entry in entries for op in entry.ops if isinstance(op, Put)}
        self._grow(len(made.difference(self.families)))
        while True:
            self._created_singly = 0
            batch = PendingWrites(self)
            try:
                return self._write_batch(batch, entries, sync)
            except StorageError:
                self._release_families(batch)
                raise
            except _TooFewFamilies:
                self._release_families(batch)
                spares = max(2 * len(batch.made), SPARE_MIN + 1, len(self.families))
            del batch  # It would keep the database open.
            self._reopen(spares)

    def _note_durable(self) -> None:
        """All changes are durable now, except those of replicated tables."""
        if self._durable is not None:
            with Guard(self.path):
                self._durable.write(self.database().latest_sequence_number())

    def _release_families(self, batch: PendingWrites) -> None:
        """Returns the column families of a batch. Those with rows are not used again."""
        for family in batch.made:
            if family.name in batch.filled:
                self._unused_families.append(family)
            else:
                self.spare_families.setdefault(family.options, []).append(family)

    def ingest(self, family: Family, runs: Sequence[SortedRows]) -> None:
        """Adds rows to a column family at once, whether a batch is written or not."""
        options, _ = family_options(family.options, self._shared, self._replicated)
        ingest(self.path, family, options, runs)

    def _write_batch(
        self, batch: PendingWrites, entries: Sequence[TableEntry], sync: bool
    ) -> list[Outcome]:
        done: list[Op] | None = None if self.recent is None else []
        outcomes = [it for entry in entries for it in apply_entry(batch, entry, done)]
        self._commit(batch, entries[-1], sync)
        if self.recent is not None and done:
            self.recent.add(done)
        return outcomes

    def _commit(self, batch: PendingWrites, last: TableEntry, sync: bool) -> None:
        at = (last.log_index, last.term) if last.log_index else None
        made = batch.finish(at)
        sync = sync or bool(batch.dropped)
        with self._guard:
            self.database().write(made, self._write_options[sync])
        changes = [*batch.changed_rows()]
        self._notes.write(changes)
        if self.rows is not None:
            self.rows.write(changes, batch.reshaped)
        if sync:
            self._note_durable()
        self.families, self.versioned_tables = batch.families, batch.versioned_tables
        self.applied = at or self.applied
        if batch.changes_times:
            self._expires_ms = None
        self.problem = ""
        if batch.dropped:
            self._unused_families += batch.dropped
            self._drop_unused_families()

    def _drop_unused_families(self) -> None:
        """Drops unused column families. The next start drops the others: rocksdict forgets a column
        family before it knows whether the drop worked."""
        if not self._unused_families:
            return
        try:
            self.flush()
            while self._unused_families:
                name = self._unused_families.pop().name
                with Guard(self.path):
                    self.database().drop_column_family(name)
        except StorageError as error:
            self.problem = str(error)

    def results(self, reqids: Sequence[bytes]) -> list[bytes | None]:
        return [stored_result(data) for data in self.get(SYSTEM, [*map(result_key, reqids)])]

    def effects(self, log_index: int) -> list[Effects]:
        return [Effects(data) for _, data in self.scan(SYSTEM, *record_range(log_index))]

    def flush(self) -> None:
        if not self._replicated:
            with Guard(self.path):
                self.database().flush_wal(True)
            self._note_durable()
            return
        self._need(self._shared.buffers.get_usage())
        until = time.monotonic() + SETTLE_S_MAX
        while not self._flushed():
            if time.monotonic() > until:
                raise StorageError(self.path, "RocksDB does not flush", "see the file LOG there")
            time.sleep(STALL_POLL_S)

    def _flushed(self) -> bool:
        """Flushes all tables together. False: it was not possible."""
        self._settle()
        options = rocksdict.CompactOptions()
        options.set_exclusive_manual_compaction(False)
        with Guard(self.path):
            # Of rocksdict's functions only this one flushes all column families together.
            self.database().compact_range(None, None, options)
            read = self.families[SYSTEM].data.property_int_value
            return not any(read(f"rocksdb.{name}") for name in BUFFERED)

    def recover(self) -> bool:
        """RocksDB resumes some seconds after there is space again. Otherwise it is opened again,
        once the disk takes writes; that may lose what is not durable."""
        if not self.problem:
            return True
        try:
            if self._database is None:
                self._open(0)
            self._probe()
        except StorageError as error:
            self.problem = str(error)
            now = time.monotonic()
            if self._free() < FREE_BYTES_MIN or self._stuck_since is None:
                self._stuck_since = now
            limit_s = FAILED_S
            if isinstance(error, StorageFull | Stalled):
                limit_s = FULL_S if isinstance(error, StorageFull) else STALLED_S
            if now - self._stuck_since >= limit_s and not self._scanned() and self._disk_writes():
                self._stuck_since = now
                self._shut()
            return False
        self.problem = ""
        self._stuck_since = None
        self._drop_unused_families()
        return not self.problem

    def _probe(self) -> None:
        """Raises RocksDB's error for a write that changes nothing."""
        probe = rocksdict.WriteBatch(raw_mode=True)
        probe.delete(b"probe", self.families[SYSTEM].handle)
        with Guard(self.path):
            self.database().write(probe, self._write_options[True])

    def _disk_writes(self) -> bool:
        """Whether a file can be written there. Else an open database at least answers reads."""
        path = os.path.join(self.path, "probe")
        try:
            with open(path, "wb") as file:
                file.write(b"probe")
                file.flush()
                os.fsync(file.fileno())
            os.unlink(path)
        except OSError:
            return False
        return True

    def _settle(self) -> None:
        """Waits until RocksDB accepts writes; raises its error if it does not."""
        until = time.monotonic() + SETTLE_S_MAX
        while True:
            try:
                self._probe()
                return
            except Stalled:
                if time.monotonic() > until or self._free() < FREE_BYTES_MIN:
                    raise
                time.sleep(STALL_POLL_S)

    def _free(self) -> int:
        """Free bytes on the disk."""
        disk = os.statvfs(self.path)
        return disk.f_bavail * disk.f_frsize

    def _need(self, size: int) -> None:
        """Raises StorageFull without enough space: RocksDB would wait for it."""
        if self._free() < size + FREE_BYTES_MIN:
            raise StorageFull(self.path)

    # ---- upkeep ----

    def close_table(self, table: int) -> None:
        family = self._family_of(table)
        if family is None:
            return
        self.flush()
        if not self._replicated:
            with Guard(self.path):
                family.data.flush()
        if family.cache is not None:
            family.cache.set_capacity(0)
            family.cache.set_capacity(family.options.cache_bytes)

    def compact(self, table: int, start: bytes = b"", end: bytes = b"") -> None:
        family = self._family_of(table)
        if family is None:
            return
        errors = "rocksdb.background-errors"
        with Guard(self.path):
            before = family.data.property_int_value(errors)
            self.flush()
            self._need(family.data.property_int_value("rocksdb.total-sst-files-size") or 0)
            family.data.compact_range(start or None, end or None)
            failed = family.data.property_int_value(errors) != before
        if failed:
            self._probe()
            raise StorageError(self.path, f"compacting table {table} failed", "see the file LOG")

    def checkpoint(self, path: str) -> tuple[int, int]:
        make_folders(os.path.dirname(path))
        self.flush()
        with Guard(path):
            rocksdict.Checkpoint(self.database()).create_checkpoint(path)
        return self.applied

    def split_points(self, table: int, start: bytes, end: bytes, count: int) -> list[bytes]:
        family = self._family_of(table)
        if family is None or count < 1:
            return []
        with Guard(self.path):
            files = files_of(family.data.property_value("rocksdb.sstables") or "")
            size = sum(file.size for file in files)
            unflushed = family.data.property_int_value("rocksdb.cur-size-all-mem-tables") or 0
        if size + unflushed <= (EXACT_BYTES_MAX if size < unflushed else SAMPLED_BYTES):
            return split_points(self._pieces(table, start, end), count)
        sequence = self.database().latest_sequence_number()
        query = SstQuery(self.path, family.name, sequence, files, Bounds(start, end), False)
        try:
            samples = min(SAMPLES_A_POINT * (count + 1), SAMPLES_MAX)
            return split_points(sampled_pieces(query, samples), count)
        except (Unsupported, StorageError):  # A file was compacted away, or is of another form.
            return split_points(file_pieces(files, start, end), count)

    def range_size(self, table: int, start: bytes, end: bytes) -> SizedKeys | None:
        info = self.info(table)
        if info is None or info.size <= EXACT_BYTES_MAX:
            return None
        family = self.families[table]
        with Guard(self.path):
            files = files_of(family.data.property_value("rocksdb.sstables") or "")
        total = sum(file.size for file in files)
        # What no file holds yet is taken for spread like what they hold.
        within = sum(file.size * share_within(file, start, end) for file in files)
        share = within / total if total else 1.0
        return SizedKeys(round(info.keys * share), round(info.size * share))

    def _pieces(self, table: int, start: bytes, end: bytes) -> Iterator[SizedRange]:
        found = self.scan(table, start, end)
        while pairs := list(islice(found, PIECE_PAIRS)):
            yield pairs[0][0], sum(len(key) + len(value) for key, value in pairs)

    def info(self, table: int) -> TableInfo | None:
        family = self._family_of(table)
        if family is None:
            return None
        names = ("estimate-num-keys", "total-sst-files-size", "cur-size-all-mem-tables")
        with Guard(self.path):
            keys, *sizes = (
                family.data.property_int_value(f"rocksdb.{name}") or 0 for name in names
            )
        return TableInfo(family.options, keys, sum(sizes))

    def content_hash(self, table: int) -> bytes:
        return content_hash(self.scan(table))

    def close(self) -> None:
        if self._database is not None and not self._read_only:
            # What a full disk refuses is in RocksDB's log or in that of Raft.
            with suppress(StorageError):
                self.flush()
        self._shut()

    def _shut(self) -> None:
        """Drops the last references, which closes the database; unflushed data is lost."""
        if self._stop is not None:
            self._stop()
        self._stop = self._database = None
        if self._durable is not None:
            self._durable.close()
        self.families, self.spare_families, self._unused_families = {}, {}, []


def _write_options(replicated: bool, sync: bool) -> rocksdict.WriteOptions:
    options = rocksdict.WriteOptions()
    options.disable_wal = replicated  # type: ignore[method-assign, assignment]
    options.sync = sync
    options.no_slowdown = True  # It fails instead of waiting.
    return options
