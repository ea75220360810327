"""Bulk loads on both kinds of tables: what they do, what they refuse, what they leave behind."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kelek.protocols.zerodb.tables import loads
from kelek.protocols.zerodb.tables.tables import SYSTEM, Outcome, TableEntry, Tables
from kelek.protocols.zerodb.wire.chunks import SortedRows, encode_chunk
from kelek.protocols.zerodb.wire.ops import (
    Expire,
    Expiry,
    KeepVersions,
    LoadBuild,
    LoadChunk,
    LoadCommit,
    LoadDrop,
    Op,
    Open,
    OperationsKnown,
    Put,
    Truncate,
)
from kelek.protocols.zerodb.wire.values import (
    CHUNK_TABLE,
    LOAD_TABLE,
    LOADED_FIRST,
    LOADS_MAX,
    LOADS_UNKNOWN,
    TableOptions,
)
from kelek.storage.engine.families import Resources
from kelek.storage.engine.rocks import open_tables
from kelek.tests.storage.memory_tables import MemoryTables

SHARED = Resources.of(8 << 20, 32 << 20)
LOAD, OTHER = b"l" * 16, b"o" * 16
UNTIL = 1000


def chunk(**pairs: str) -> bytes:
    rows = sorted((key.encode(), value.encode()) for key, value in pairs.items())
    return encode_chunk(SortedRows([key for key, _ in rows], [value for _, value in rows]))


class LoadLog:
    """Applies operations, each as an entry of its own."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.write(OperationsKnown(0, 3))

    def write(self, *ops: Op) -> list[Outcome]:
        return [
            outcome
            for op in ops
            for outcome in self.tables.write([TableEntry(self.tables.applied[0] + 1, 1, [op])])
        ]

    def problem(self, op: Op) -> str:
        """Why an operation is refused. Then it has changed nothing."""
        before = self.content()
        (outcome,) = self.write(op)
        assert self.content() == before
        return outcome.problem

    def content(self) -> dict[int, list[tuple[bytes, bytes]]]:
        """All tables, and what operations note about them."""
        found = {table: [*self.tables.scan(table)] for table in self.tables.tables()}
        system = [pair for pair in self.tables.scan(SYSTEM) if pair[0][:1] not in b"atwx"]
        return {**found, SYSTEM: system}

    def rows(self, table: int = 7) -> dict[bytes, bytes]:
        return dict(self.tables.scan(table))

    def ship(self, load: bytes, run: int, *chunks: bytes, table: int = 7) -> None:
        for number, data in enumerate(chunks):
            assert self.write(LoadChunk(table, load, run, number, UNTIL, data)) == []
        assert self.write(LoadBuild(table, load, run, 0, len(chunks), UNTIL)) == []


@pytest.fixture(params=["memory", "rocks"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LoadLog]:
    tables: Tables = MemoryTables()
    if request.param == "rocks":
        tables = open_tables(str(tmp_path / "db"), SHARED, replicated=True)
    yield LoadLog(tables)
    tables.close()


def test_rows_replace_those_of_the_table_in_one_step(log: LoadLog) -> None:
    log.write(Open(7, TableOptions(block_bytes=8192, bloom_bits=10)), Put(7, [b"old"], [b"1"]))
    log.ship(LOAD, 5, chunk(a="1", c="3"), chunk(b="2", d="4"), chunk(d="5"))
    log.write(Put(7, [b"late"], [b"2"]))
    assert log.rows() == {b"old": b"1", b"late": b"2"}
    assert log.write(LoadCommit(7, LOAD, True, 3, UNTIL)) == []
    assert log.rows() == {b"a": b"1", b"b": b"2", b"c": b"3", b"d": b"5"}
    assert log.tables.tables()[7] == TableOptions(block_bytes=8192, bloom_bits=10)
    assert set(log.tables.tables()) == {7, LOAD_TABLE}, "its hidden table and chunks are gone"
    log.write(Put(7, [b"a"], [b"new"]))
    assert log.rows()[b"a"] == b"new"


def test_a_repeated_operation_changes_nothing(log: LoadLog) -> None:
    """A client that has lost its answer, and one that goes on with what another one began."""
    log.ship(LOAD, 5, chunk(a="1"))
    log.ship(LOAD, 5, chunk(a="of another try"))
    log.ship(LOAD, 6, chunk(b="2"))
    log.ship(LOAD, 5, chunk(a="of another try"))
    assert log.write(LoadCommit(7, LOAD, False, 2, UNTIL)) == []
    log.write(Put(7, [b"c"], [b"3"]))
    assert log.write(LoadCommit(7, LOAD, False, 2, UNTIL)) == []
    assert log.rows() == {b"a": b"1", b"b": b"2", b"c": b"3"}
    assert log.problem(LoadChunk(7, LOAD, 9, 0, UNTIL, chunk(z="1"))) == loads.ENDED
    assert log.write(LoadBuild(7, LOAD, 5, 0, 1, UNTIL)) == []
    assert set(log.tables.tables()) == {7, LOAD_TABLE}


def test_a_run_that_is_not_built_does_not_count(log: LoadLog) -> None:
    log.write(LoadChunk(7, LOAD, 1, 0, UNTIL, chunk(failed="1")))
    log.ship(LOAD, 2, chunk(done="1"))
    log.write(LoadCommit(7, LOAD, False, 1, UNTIL))
    assert log.rows() == {b"done": b"1"}
    assert CHUNK_TABLE not in log.tables.tables()


def test_an_empty_load(log: LoadLog) -> None:
    log.write(LoadCommit(7, LOAD, False, 0, UNTIL))
    assert log.tables.tables()[7] == TableOptions()
    log.write(Put(7, [b"old"], [b"1"]), LoadCommit(7, OTHER, True, 0, UNTIL))
    assert log.rows() == {}


def test_lifetimes_of_replaced_keys_end(log: LoadLog) -> None:
    log.write(Put(7, [b"a"], [b"1"]), Expiry(7, 500, [b"a"]))
    log.ship(LOAD, 1, chunk(a="2"))
    log.write(LoadCommit(7, LOAD, True, 1, UNTIL))
    log.write(Expire(0, 600))
    assert log.rows() == {b"a": b"2"}


def test_a_load_that_was_given_up_is_removed_in_time(log: LoadLog) -> None:
    log.ship(LOAD, 1, chunk(a="1"))
    log.write(LoadChunk(8, OTHER, 1, 0, 9 * UNTIL, chunk(b="1")))
    assert log.tables.expires_ms == UNTIL
    log.write(Expire(0, UNTIL))
    assert log.problem(LoadBuild(7, LOAD, 1, 0, 1, UNTIL)) == loads.ENDED
    assert log.problem(LoadCommit(7, LOAD, True, 1, UNTIL)) == loads.ENDED
    assert [key[:4] for key, _ in log.tables.scan(CHUNK_TABLE)] == [b"\0\0\0\x08"]
    assert LOADED_FIRST in log.tables.tables(), "until the next load builds rows"
    log.write(LoadBuild(8, OTHER, 1, 0, 1, UNTIL))
    assert dict(log.tables.scan(LOADED_FIRST)) == {b"b": b"1"}
    log.write(LoadCommit(8, OTHER, False, 1, UNTIL))
    assert log.rows(8) == {b"b": b"1"}


def test_rows_of_a_load_that_begins_anew_are_not_counted_twice(log: LoadLog) -> None:
    """A straggler's chunk makes a new head of a load that was given up: its rows must not pass for
    all of them."""
    log.ship(LOAD, 1, chunk(a="1"))
    log.write(Expire(0, UNTIL))
    log.write(LoadChunk(7, LOAD, 2, 0, 9 * UNTIL, chunk(b="1")))
    log.write(LoadBuild(7, LOAD, 2, 0, 1, 9 * UNTIL))
    assert (
        log.problem(LoadCommit(7, LOAD, True, 2, UNTIL))
        == "the load has rows of 1 chunks, not of 2"
    )


def test_dropped(log: LoadLog) -> None:
    before = {**log.content(), LOAD_TABLE: []}
    log.ship(LOAD, 1, chunk(a="1"))
    log.write(LoadDrop(7, OTHER), LoadDrop(8, LOAD))
    assert LOADED_FIRST in log.tables.tables()
    log.write(LoadDrop(7, LOAD))
    assert log.content() == before
    assert log.problem(LoadCommit(7, LOAD, True, 1, UNTIL)) == loads.ENDED


def test_a_load_of_another_table_is_another_load(log: LoadLog) -> None:
    log.ship(LOAD, 1, chunk(a="1"))
    assert log.problem(LoadCommit(8, LOAD, True, 1, UNTIL)) == loads.ENDED
    assert log.problem(LoadBuild(8, LOAD, 1, 0, 1, UNTIL)) == loads.ENDED


def test_refused(log: LoadLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log.write(Put(7, [b"old"], [b"1"]))
    log.ship(LOAD, 1, chunk(a="1"))
    assert "table 7 has rows: a load fills an empty" in log.problem(
        LoadCommit(7, LOAD, False, 1, UNTIL)
    )
    assert "chunk 1 of run 1 of the load is not there" in log.problem(
        LoadBuild(7, LOAD, 1, 1, 1, UNTIL)
    )
    monkeypatch.setattr(loads, "LOAD_BYTES_MAX", 60)
    assert "more than 60 bytes" in log.problem(LoadChunk(7, LOAD, 1, 1, UNTIL, chunk(b="1" * 40)))
    monkeypatch.setattr(loads, "BUILD_BYTES_MAX", 10)
    log.write(LoadChunk(7, OTHER, 1, 0, UNTIL, chunk(b="1")))
    with monkeypatch.context() as patch:
        patch.setattr(loads, "BUILD_BYTES_MAX", 1 << 20)
        patch.setattr(loads, "BUILD_ROWS_MAX", 0)
        assert "more than 0 rows; name fewer" in log.problem(LoadBuild(7, OTHER, 1, 0, 1, UNTIL))
    assert "more than 10 bytes; name fewer" in log.problem(LoadBuild(7, OTHER, 1, 0, 1, UNTIL))


def test_a_malformed_chunk_is_refused_when_it_is_built(log: LoadLog) -> None:
    good = chunk(a="1", b="2")
    for number, bad in enumerate(
        (b"\2", b"\0", b"\1\xff\xff", good[:-12], good.replace(b"b", b"a"))
    ):
        log.write(LoadChunk(7, LOAD, 1, number, UNTIL, bad))
        assert f"chunk {number} of run 1: " in log.problem(LoadBuild(7, LOAD, 1, number, 1, UNTIL))


def test_a_table_with_versions_takes_no_load(log: LoadLog) -> None:
    log.ship(LOAD, 1, chunk(a="1"), table=8)
    log.write(KeepVersions(7), Open(7, TableOptions()), KeepVersions(8))
    refusal = "keeps versions of its keys: a load can't fill it"
    assert refusal in log.problem(LoadChunk(7, LOAD, 1, 0, UNTIL, chunk(a="1")))
    assert refusal in log.problem(LoadCommit(8, LOAD, True, 1, UNTIL))


def test_there_are_only_so_many_loads(log: LoadLog) -> None:
    for number in range(LOADS_MAX):
        log.ship(b"%016d" % number, 1, chunk(a="1"))
    log.write(LoadChunk(7, LOAD, 1, 0, UNTIL, chunk(a="1")))
    assert "there are 64 loads already" in log.problem(LoadBuild(7, LOAD, 1, 0, 1, UNTIL))
    log.write(LoadDrop(7, b"%016d" % 5))
    assert log.write(LoadBuild(7, LOAD, 1, 0, 1, UNTIL)) == []


def test_the_table_may_be_emptied_meanwhile(log: LoadLog) -> None:
    log.write(Put(7, [b"old"], [b"1"]))
    log.ship(LOAD, 1, chunk(a="1"))
    log.write(Truncate(7), LoadCommit(7, LOAD, False, 1, UNTIL))
    assert log.rows() == {b"a": b"1"}


def test_nothing_is_done_before_all_nodes_know_loads() -> None:
    tables = MemoryTables()
    op = LoadChunk(7, LOAD, 1, 0, UNTIL, chunk(a="1"))
    (outcome,) = tables.write([TableEntry(1, 1, [op])])
    assert outcome.problem == LOADS_UNKNOWN
    assert tables.tables() == {}
