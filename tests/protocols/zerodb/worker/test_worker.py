"""Each node cuts the log into other batches and joins entries within them; the tables must be
equal."""

from random import Random
from unittest.mock import Mock

import pytest

from kelek.native.tables.row_cache import BYTES_MIN, RowCache
from kelek.protocols.raft.messages import KIND_STATE, EntryBatch
from kelek.protocols.record import Record, encode_block
from kelek.protocols.zerodb.tables.tables import (
    SYSTEM,
    LogPosition,
    Outcome,
    TableEntry,
    TablePartition,
)
from kelek.protocols.zerodb.wire import ops
from kelek.protocols.zerodb.wire.values import TableOptions
from kelek.protocols.zerodb.wire.worker_pipe import ROWS
from kelek.protocols.zerodb.worker.requests import Databases, TableRequestLimits
from kelek.protocols.zerodb.worker.worker import (
    Worker,
    WorkerParts,
    find_entries,
    split_steps,
    with_entry_position,
)
from kelek.storage.errors import StorageError
from kelek.tests.storage.memory_tables import MemoryTables

WORKERS = 2
TABLES = (2, 4, 5)  # The last one belongs to the other worker.
SESSION = 3  # The entry with this index opens it.


def change(dice: Random) -> ops.Op:
    """Entries that may be joined."""
    table = dice.choice(TABLES)
    keys = [b"%d" % dice.randrange(6) for _ in range(dice.randrange(4))]
    if dice.random() < 0.3:
        return ops.Delete(table, keys)
    return ops.Put(table, keys, [b"%d" % dice.randrange(100) for _ in keys])


def other(dice: Random) -> ops.Op:
    """Entries between them, and lifetimes, which change their meaning."""
    table = dice.choice(TABLES)
    keys = [b"%d" % dice.randrange(6)]
    found: list[ops.Op] = [
        ops.Attach(table, SESSION, keys),
        ops.Attach(table, 99, keys),
        ops.Expiry(table, dice.randrange(2000), keys),
        ops.Expire(0, dice.randrange(1000)),
        ops.SessionKeep(0, SESSION, dice.randrange(1000)),
        ops.SessionOpen(0, 500, dice.randrange(1000)),
        ops.Truncate(table),
        ops.DeleteLimited(table, b"", 2),
        ops.DeleteRange(table, b"1", b"3"),
        ops.Transaction(
            table,
            b"%012d" % dice.randrange(3),
            [ops.Compare(table, keys[0], ops.PRESENT)],
            [ops.Get(table, keys)],
            [change(dice)],
        ),
    ]
    return dice.choice(found)


def history(dice: Random) -> list[bytes]:
    """The entries of a log."""
    entries = [ops.pack([ops.SessionOpen(0, 800, 0)])] * SESSION
    for _ in range(120):
        parts = [change(dice) for _ in range(dice.randint(1, 3))]
        if dice.random() < 0.2:
            parts.insert(dice.randrange(len(parts) + 1), other(dice))
        entries.append(ops.pack(parts) if dice.random() < 0.95 else ops.pack(parts)[:-1])
    return entries


def contents(tables: MemoryTables) -> object:
    found = tables.tables()
    pairs = {table: list(tables.scan(table)) for table in (SYSTEM, *found)}
    return pairs, found, tables.applied


@pytest.mark.parametrize("seed", range(8))
def test_merged_entries_do_what_each_does_alone(seed: int) -> None:
    dice = Random(seed)
    log = history(dice)
    one_by_one = MemoryTables()
    alone: list[Outcome] = []
    for index, data in enumerate(log, 1):
        batch = encode_block(index, 1, [Record(KIND_STATE, None, data)])
        alone += told_of(one_by_one, batch)
    for largest in (1, 7, 200):
        tables = MemoryTables()
        outcomes: list[Outcome] = []
        first = 0
        while first < len(log):
            some = log[first : first + dice.randint(1, largest)]
            records = [Record(KIND_STATE, None, data) for data in some]
            outcomes += told_of(tables, encode_block(first + 1, 1, records))
            first += len(some)
        tables.applied = one_by_one.applied  # The last entry may be for other workers.
        assert contents(tables) == contents(one_by_one)
        # Joined operations have no outcome: they cannot fail.
        assert outcomes == alone
        assert not any(isinstance(op, ops.Put | ops.Delete) for op in refused(log, alone))


def test_loads_are_applied_alone() -> None:
    """Between two steps the database writes what came before: rows of a load, which it stores at
    once, must not be there before them."""
    load = b"l" * 16
    build, commit = ops.LoadBuild(2, load, 1, 0, 1, 9), ops.LoadCommit(2, load, True, 1, 9)
    kinds: list[ops.Op] = [
        ops.Put(2, [b"a"], [b"1"]), ops.Put(2, [b"b"], [b"1"]), build, build,
        ops.LeaseKeep(0, 7), ops.Put(2, [b"c"], [b"1"]), commit, ops.LeaseEnd(0, 7),
        ops.LoadChunk(2, load, 1, 0, 9, b"c"),
    ]  # fmt: skip
    entries = [TableEntry(index, 1, [op]) for index, op in enumerate(kinds, 1)]
    steps = [*split_steps(entries, (12, 1))]
    assert [[entry.log_index for entry in step.entries] for step in steps] == [
        [1, 2], [3], [4], [6], [7], [9]
    ]  # fmt: skip
    assert [step.last[0] for step in steps] == [2, 3, 4, 6, 7, 12]
    assert [len(step.lease_changes) for step in steps] == [0, 0, 0, 1, 0, 1]
    assert [step.last for step in split_steps(entries[:4], (4, 1))] == [(2, 1), (3, 1), (4, 1)]


def told_of(tables: MemoryTables, batch: EntryBatch) -> list[Outcome]:
    """The worker's report of a batch."""
    found = find_entries(batch, TablePartition(0, WORKERS))
    return [
        with_entry_position(outcome, found.positions) for outcome in tables.write(found.entries)
    ]


def refused(log: list[bytes], outcomes: list[Outcome]) -> list[ops.Op]:
    return [ops.unpack(log[one.log_index - 1])[one.position] for one in outcomes if one.problem]


def applied(tables: MemoryTables, index: int, op: list[ops.Op]) -> int:
    """Applies one entry; returns the number of malformed entries."""
    batch = encode_block(index, 1, [Record(KIND_STATE, None, ops.pack(op))])
    found = find_entries(batch, TablePartition(0, 1))
    tables.write(found.entries)
    return found.malformed


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("kind", ["operations", "branches", "tables", "truncates"])
def test_an_entry_beyond_the_bounds_changes_nothing(
    kind: str, more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, "ENTRY_OPERATIONS_MAX", 10)
    monkeypatch.setattr(ops, "ENTRY_TABLES_MAX", 5)
    held: ops.Op = ops.Put(2, [b"k"], [b"v"])
    entry: list[ops.Op] = {
        "operations": [held, *[ops.SessionEnd(0, 1)] * (10 + more)],
        "branches": [
            held,
            ops.Transaction(2, bytes(12), [], [], [ops.DeleteRange(2, b"", b"")] * (9 + more)),
        ],
        "tables": [
            held,
            ops.Expire(0, 1),
            *(ops.Open(table, TableOptions()) for table in range(3, 7 + more)),
        ],
        "truncates": [held, *[ops.Truncate(9)] * (4 + more)],
    }[kind]
    tables = MemoryTables()
    assert applied(tables, 1, entry) == more
    assert (2 in tables.tables()) == (not more)
    pieces = [ops.unpack(each)[0] for each in ops.cut(ops.pack(entry), 2, b"r" * 12, 45)]
    for index, piece in enumerate(pieces, 2):
        applied(tables, index, [piece])
    assert (2 in tables.tables()) == (not more), "in pieces, too"


def test_puts_and_deletes_alone_are_bounded_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "ENTRY_TABLES_MAX", 5)
    tables = MemoryTables()
    assert not applied(tables, 1, [ops.Put(table, [b"k"], [b"v"]) for table in range(9)])
    assert len(tables.tables()) == 9


class LogUnderRepair:
    """The log of a peer that has not repaired a damaged segment yet, when it is asked first."""

    def __init__(self) -> None:
        self.asked = 0

    def base(self) -> LogPosition:
        self.asked += 1
        if self.asked == 1:
            raise StorageError("1.seg", "offset 0: expected another checksum", "restore this node")
        return 5, 1

    def batches(self, *_: int) -> list[EntryBatch]:
        return []


def test_a_worker_starts_while_its_peer_repairs_the_log() -> None:
    restores = []

    def unpack(applied: int) -> None:
        restores.append(applied)

    databases = Databases("table_worker", TablePartition(0, 1), MemoryTables(), None)
    parts = WorkerParts(Mock(), LogUnderRepair(), Mock(), lambda op, at: "", unpack)
    worker = Worker(databases, TableRequestLimits(1 << 20, 5000, True), 7, parts)
    assert restores == []
    worker.on_commit((9, 1), 0)
    worker.run(0, 0)
    assert restores == [0], "now it knows that the log begins behind its tables"


class WrittenLog:
    """A log of puts of one key."""

    def __init__(self, entries: int) -> None:
        put = ops.pack([ops.Put(2, [b"key"], [b"value"])])
        records = [Record(KIND_STATE, None, put)] * entries
        self._batch = encode_block(1, 1, records)

    def base(self) -> LogPosition:
        return 0, 0

    def batches(self, first: int, last: int, *_: int) -> list[EntryBatch]:
        return [self._batch] if (first, last) == (1, self._batch.last_index) else []


def test_shared_rows_have_the_index_that_is_applied_until_the_tables_are_replaced() -> None:
    rows = RowCache(bytearray(BYTES_MIN), "place", 1)
    databases = Databases("table_worker", TablePartition(0, 1), MemoryTables(), None)
    parts = WorkerParts(Mock(), WrittenLog(3), Mock(), lambda op, at: "", lambda at: None, rows)
    worker = Worker(databases, TableRequestLimits(1 << 20, 5000, True), 7, parts)
    assert rows.cache.applied == 0
    worker.on_commit((3, 1), 0)
    worker.run(0, 0)
    assert rows.cache.applied == 3
    generation = rows.cache.generation
    worker.applier.replace(restored := MemoryTables())
    assert rows.cache.applied == 0
    assert rows.cache.generation > generation
    assert restored.rows is rows
    (place,) = [report[1] for report in worker.reports(False, 0) if report[0][0] == ROWS]
    assert place == b"place"
