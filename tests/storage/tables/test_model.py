"""A history of tables: RocksDB and the memory twin against a model of dictionaries, through
restarts, crashes, checkpoints and all kinds of entries."""

import shutil
import struct
import tempfile
from collections.abc import Iterable, Iterator, Sequence, Set
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kelek.native.tables.row_cache import RowChange
from kelek.protocols.zerodb.tables.tables import SYSTEM, Outcome, TableEntry
from kelek.protocols.zerodb.tables.versions import VERSION
from kelek.protocols.zerodb.wire.ops import (
    EQUAL,
    VERSION_CHANGES,
    VERSION_INDEX,
    Append,
    Attach,
    Compare,
    Delete,
    DeleteLimited,
    DeleteRange,
    Expire,
    Expiry,
    GetRange,
    KeepVersions,
    Op,
    Open,
    OperationsKnown,
    Put,
    SessionEnd,
    SessionOpen,
    Transaction,
    Truncate,
    gate_of,
)
from kelek.protocols.zerodb.wire.values import TableOptions
from kelek.storage.engine.families import Resources
from kelek.storage.engine.rocks import RocksTables, open_checkpoint, open_tables
from kelek.tests.storage.memory_tables import MemoryTables

SHARED = Resources.of(8 << 20, 32 << 20)
TABLES = st.integers(1, 3)
KEYS = st.sampled_from([b"a", b"aa", b"b", b"b\0", b"b\xff", b"c", b"\xff", b"\xff\xff"])
SOME_KEYS = st.lists(KEYS, min_size=1, max_size=4)
BOUNDS = KEYS | st.just(b"")
VALUES = st.sampled_from([b"", b"1", b"2", bytes(200)])
TIMES = st.integers(1, 20)
SESSIONS = st.integers(1, 12)
OPTIONS = st.sampled_from([TableOptions(), TableOptions(1 << 20, 1 << 10, 1 << 20, 10, False)])


@st.composite
def puts(draw: Any) -> Put:
    keys = draw(SOME_KEYS)
    return Put(draw(TABLES), keys, [draw(VALUES) for _ in keys])


STEPS = (
    puts()
    | st.builds(Delete, TABLES, SOME_KEYS)
    | st.builds(DeleteRange, TABLES, BOUNDS, BOUNDS)
    | st.builds(Expiry, TABLES, TIMES, SOME_KEYS)
    | st.builds(Attach, TABLES, SESSIONS, SOME_KEYS)
)
OPS = (
    puts()
    | STEPS
    | st.builds(DeleteLimited, TABLES, BOUNDS, st.integers(0, 4))
    | st.builds(Open, TABLES, OPTIONS)
    | st.builds(Truncate, TABLES)
    | st.builds(SessionOpen, TABLES, TIMES, TIMES)
    | st.builds(SessionEnd, TABLES, SESSIONS)
    | st.builds(Expire, TABLES, TIMES)
    | st.builds(
        lambda table, reqid, key, value, then, other, more: Transaction(
            table, b"%012d" % reqid, [Compare(table, key, EQUAL, value)], more + then, other
        ),
        TABLES,
        st.integers(1, 8),
        KEYS,
        VALUES,
        st.lists(STEPS, max_size=3),
        st.lists(STEPS, max_size=3),
        st.lists(
            st.builds(lambda pairs: Append(*pairs), puts())
            | st.builds(GetRange, TABLES, BOUNDS, BOUNDS, st.integers(0, 3)),
            max_size=2,
        ),
    )
    | st.builds(OperationsKnown, st.just(0), st.sampled_from([1, 2, 2]))
    | st.builds(KeepVersions, TABLES)
    | st.builds(
        lambda table, reqid, key, kind, number, then, other: Transaction(
            table, b"v%011d" % reqid, [Compare(table, key, kind, number)], then, other
        ),
        TABLES,
        st.integers(1, 50),
        KEYS,
        st.sampled_from([VERSION_INDEX, VERSION_CHANGES]),
        st.integers(0, 6).map(lambda number: number.to_bytes(8, "little")),
        st.lists(STEPS, max_size=3),
        st.lists(STEPS, max_size=3),
    )
)


class Model:
    """The meaning of the operations, as short as possible."""

    def __init__(self) -> None:
        self.tables: dict[int, dict[bytes, bytes]] = {}
        self.options: dict[int, TableOptions] = {}
        self.at: dict[tuple[int, bytes], int] = {}
        self.session_of: dict[tuple[int, bytes], int] = {}
        self.sessions: dict[int, int] = {}  # End time by session.
        self.last_session = 0
        self.results: dict[bytes, bool] = {}
        self.level = 0  # Of the operations that all members know.
        self.versioned: set[int] = set()
        self.versions: dict[tuple[int, bytes], tuple[int, int]] = {}

    def apply(self, index: int, op: Any) -> None:
        getattr(self, type(op).__name__)(op, index)

    def free(self, table: int, key: bytes) -> None:
        self.at.pop((table, key), None)
        self.session_of.pop((table, key), None)

    def remove(self, table: int, keys: Sequence[bytes]) -> None:
        for key in keys:
            self.tables.get(table, {}).pop(key, None)
            self.versions.pop((table, key), None)
            self.free(table, key)

    def end(self, session: int) -> None:
        if self.sessions.pop(session, None) is not None:
            for (table, key), of in list(self.session_of.items()):
                if of == session:
                    self.remove(table, [key])

    def Put(self, op: Put, index: int) -> None:
        self.options.setdefault(op.table, TableOptions())
        for key, value in zip(op.keys, op.values, strict=True):
            self.free(op.table, key)
            if op.table in self.versioned:
                _, changes = self.versions.get((op.table, key), (0, 0))
                self.versions[op.table, key] = index, changes + 1
            self.tables.setdefault(op.table, {})[key] = value

    def Append(self, op: Append, index: int) -> None:
        for key, more in zip(op.keys, op.values, strict=True):
            value = self.tables.get(op.table, {}).get(key, b"")
            self.Put(Put(op.table, [key], [value + more]), index)
        self.Put(Put(op.table, [], []), index)

    def GetRange(self, op: GetRange, _: int) -> None:
        """The outcomes of the others are compared."""

    def OperationsKnown(self, op: OperationsKnown, _: int) -> None:
        self.level = max(self.level, op.level)

    def KeepVersions(self, op: KeepVersions, _: int) -> None:
        if not self.tables.get(op.table):
            self.versioned.add(op.table)

    def Delete(self, op: Delete, _: int) -> None:
        self.remove(op.table, op.keys)

    def DeleteRange(self, op: DeleteRange, _: int) -> None:
        found = [key for key in self.tables.get(op.table, {}) if op.start <= key]
        self.remove(op.table, [key for key in found if not op.end or key < op.end])

    def DeleteLimited(self, op: DeleteLimited, _: int) -> None:
        found = sorted(key for key in self.tables.get(op.table, {}) if op.start <= key)
        self.remove(op.table, found[: op.limit])

    def Open(self, op: Open, _: int) -> None:
        self.options.setdefault(op.table, op.options)

    def Truncate(self, op: Truncate, _: int) -> None:
        self.remove(op.table, list(self.tables.get(op.table, {})))
        self.options.pop(op.table, None)

    def Expiry(self, op: Expiry, _: int) -> None:
        for key in op.keys:
            if key in self.tables.get(op.table, {}):
                self.at[op.table, key] = op.at_ms

    def Attach(self, op: Attach, _: int) -> None:
        for key in op.keys:
            if op.session not in self.sessions:
                self.remove(op.table, [key])
            elif key in self.tables.get(op.table, {}):
                self.session_of[op.table, key] = op.session

    def SessionOpen(self, op: SessionOpen, index: int) -> None:
        self.last_session = max(index, self.last_session + 1)
        self.sessions[self.last_session] = op.ttl_ms + op.now_ms

    def SessionEnd(self, op: SessionEnd, _: int) -> None:
        self.end(op.session)

    def Expire(self, op: Expire, _: int) -> None:
        for (table, key), at in list(self.at.items()):
            if at <= op.now_ms:
                self.remove(table, [key])
        for session, until in list(self.sessions.items()):
            if until <= op.now_ms:
                self.end(session)

    def Transaction(self, op: Transaction, index: int) -> None:
        if op.reqid not in self.results:
            (compare,) = op.compares
            value = self.tables.get(compare.table, {}).get(compare.key)
            holds = value == compare.operand
            if compare.kind != EQUAL:
                if compare.table not in self.versioned:
                    return  # It is refused.
                version = self.versions.get((compare.table, compare.key), (0, 0))
                found = version[compare.kind == VERSION_CHANGES]
                holds = found == int.from_bytes(compare.operand, "little")
            self.results[op.reqid] = holds
            for step in op.then if holds else op.otherwise:
                self.apply(index, step)

    @property
    def expires_ms(self) -> int:
        return min([*self.at.values(), *self.sessions.values()], default=0)


def versions(tables: RocksTables | MemoryTables) -> Iterator[tuple[tuple[int, bytes], object]]:
    for name, data in tables.scan(SYSTEM, VERSION, VERSION + b"\xff" * 5):
        yield (int.from_bytes(name[1:5], "big"), name[5:]), struct.unpack(">QQ", data)


class ToldRows:
    """What a table has told of its changes."""

    def __init__(self) -> None:
        self.values: dict[tuple[int, bytes], bytes | None] = {}
        self.reshaped: set[int] = set()

    def write(self, changes: Iterable[RowChange], reshaped: Set[int]) -> None:
        self.reshaped |= reshaped
        for table, keys, values in changes:
            for key, value in zip(keys, values or [None] * len(keys), strict=True):
                if table != SYSTEM:
                    self.values[table, key] = value

    def hides(self, changes: dict[tuple[int, bytes], bytes | None]) -> bool:
        """Whether it does not tell one of these changes."""
        named = {one: value for one, value in changes.items() if one[0] not in self.reshaped}
        return not named.items() <= self.values.items()


class History(RuleBasedStateMachine):
    """All three apply the entries; now and then the database is opened again."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="kelek-tables-"))
        self.rocks: RocksTables = open_tables(str(self.folder / "0"), SHARED, replicated=True)
        self.memory = MemoryTables()
        self.model = Model()
        self.log: list[TableEntry] = []
        self.restarts = 0
        self.told: list[Outcome] = []

    @rule(entries=st.lists(st.lists(OPS, max_size=12), min_size=1, max_size=3))
    def write(self, entries: list[list[Op]]) -> None:
        batch = [
            TableEntry(len(self.log) + offset, 1, ops) for offset, ops in enumerate(entries, 1)
        ]
        before, self.rocks.rows = self.memory.pairs(), (rows := ToldRows())
        outcomes = self.rocks.write(batch)
        assert outcomes == self.memory.write(batch)
        after = self.memory.pairs()
        changed = {
            one: after.get(one) for one in before | after if before.get(one) != after.get(one)
        }
        assert not rows.hides(changed)
        kept = {one: value for one, value in rows.values.items() if one[0] not in rows.reshaped}
        assert all(after.get(one) == value for one, value in kept.items())
        for entry in batch:
            if gate_of(entry.ops) > self.model.level:
                continue
            for op in entry.ops:
                self.model.apply(entry.log_index, op)
        self.log += batch

    @rule()
    def restart(self) -> None:
        self.rocks.close()
        self.rocks = open_tables(self.rocks.path, SHARED, replicated=True)
        assert self.rocks.applied[0] == len(self.log)

    @rule()
    def crash(self) -> None:
        """A killed process leaves the present content of its files."""
        self.restarts += 1
        left = self.folder / str(self.restarts)
        self.rocks.families[SYSTEM].data.cancel_all_background(True)  # It would remove files.
        shutil.copytree(self.rocks.path, left)
        self.rocks = open_tables(str(left), SHARED, replicated=True)
        self.rocks.write(self.log[self.rocks.applied[0] :])

    @rule()
    def flush(self) -> None:
        self.rocks.flush()

    @rule(table=TABLES)
    def close_table(self, table: int) -> None:
        self.rocks.close_table(table)

    @rule(table=TABLES, start=BOUNDS, end=BOUNDS)
    def compact(self, table: int, start: bytes, end: bytes) -> None:
        self.rocks.compact(table, start, end)

    @rule()
    def checkpoint(self) -> None:
        self.restarts += 1
        path = str(self.folder / f"lease.{self.restarts}")
        assert self.rocks.checkpoint(path)[0] == len(self.log)
        reader = open_checkpoint(path, SHARED)
        for table, pairs in self.model.tables.items():
            assert dict(reader.scan(table)) == pairs
        reader.close()

    @rule(table=TABLES, start=BOUNDS, end=BOUNDS)
    def read(self, table: int, start: bytes, end: bytes) -> None:
        pairs = sorted(self.model.tables.get(table, {}).items())
        within = [one for one in pairs if start <= one[0] and (not end or one[0] < end)]
        counted = [one for one in pairs if start <= one[0] and (not end or one[0] <= end)]
        for tables in (self.rocks, self.memory):
            assert list(tables.scan(table, start, end)) == within
            assert list(tables.scan(table, start, end, reverse=True)) == within[::-1]
            assert list(tables.keys(table, start, end)) == [key for key, _ in within]
            assert tables.count(table, start, end) == len(counted)
            assert tables.content_hash(table) == self.memory.content_hash(table)

    @rule(table=TABLES, keys=SOME_KEYS)
    def get(self, table: int, keys: list[bytes]) -> None:
        expected = [self.model.tables.get(table, {}).get(key) for key in keys]
        for tables in (self.rocks, self.memory):
            assert tables.get(table, keys) == expected
            assert tables.exists(table, keys) == [value is not None for value in expected]

    @rule(reqid=st.integers(1, 8))
    def result(self, reqid: int) -> None:
        name = b"%012d" % reqid
        holds = self.model.results.get(name)
        for tables in (self.rocks, self.memory):
            (result,) = tables.results([name])
            assert (result and struct.unpack("<?Q", result)[0]) == holds

    @invariant()
    def equal(self) -> None:
        if not hasattr(self, "model"):
            return
        for tables in (self.rocks, self.memory):
            assert tables.tables() == self.model.options
            assert tables.expires_ms == self.model.expires_ms
            assert tables.applied == (len(self.log), 1 if self.log else 0)
            for table in self.model.options:
                assert dict(tables.scan(table)) == self.model.tables.get(table, {})
            assert tables.versioned_tables == self.model.versioned
            assert dict(versions(tables)) == self.model.versions

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.rocks.close()
            shutil.rmtree(self.folder)


TestHistory = History.TestCase
TestHistory.settings = settings(
    max_examples=settings().max_examples * 3 // 20,
    stateful_step_count=20,
    suppress_health_check=list(HealthCheck),
)
