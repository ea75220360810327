"""Rows of loads in RocksDB: files that it takes in at once, before the batch that tells of them."""

import os
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest

from kelek.protocols.zerodb.tables.tables import SYSTEM, TableEntry
from kelek.protocols.zerodb.wire.chunks import SortedRows
from kelek.protocols.zerodb.wire.ops import (
    LoadBuild,
    LoadChunk,
    LoadCommit,
    Op,
    OperationsKnown,
    Put,
    Truncate,
)
from kelek.protocols.zerodb.wire.values import LOADED_FIRST, TableOptions
from kelek.storage.engine import ingest
from kelek.storage.engine.families import Resources, Stalled
from kelek.storage.engine.rocks import RocksTables, open_checkpoint, open_tables
from kelek.storage.engine.sst_scan import TableScan
from kelek.storage.errors import StorageError, StorageFull
from kelek.tests.protocols.zerodb.tables.test_loads import LOAD, UNTIL, chunk

HISTORY: list[Op] = [
    OperationsKnown(0, 3),
    Put(7, [b"a", b"old"], [b"0", b"1"]),
    LoadChunk(7, LOAD, 1, 0, UNTIL, chunk(a="1", c="3")),
    LoadChunk(7, LOAD, 1, 1, UNTIL, chunk(b="2", d="4")),
    LoadBuild(7, LOAD, 1, 0, 2, UNTIL),
    Put(7, [b"late"], [b"1"]),
    LoadChunk(7, LOAD, 2, 0, UNTIL, chunk(d="5", e="6")),
    LoadBuild(7, LOAD, 2, 0, 1, UNTIL),
    LoadCommit(7, LOAD, True, 3, UNTIL),
    Put(7, [b"c"], [b"new"]),
]
ENTRIES = [TableEntry(index, 1, [op]) for index, op in enumerate(HISTORY, 1)]
ROWS = {b"a": b"1", b"b": b"2", b"c": b"new", b"d": b"5", b"e": b"6"}


def content(tables: RocksTables) -> dict[int, object]:
    """What nodes compare: all tables with their options, and the notes about loads."""
    rows = {table: [*tables.scan(table)] for table in tables.tables()}
    notes = [pair for pair in tables.scan(SYSTEM) if pair[0][:1] != b"t"]
    return {**rows, SYSTEM: notes, -2: tables.tables()}


@pytest.mark.parametrize("killed_after", range(1, len(ENTRIES) + 1))
@pytest.mark.parametrize("flushed_after", [None, 3, 5])
def test_a_kill_loses_and_doubles_nothing(
    rocks: RocksTables,
    shared: Resources,
    tmp_path: Path,
    killed_after: int,
    flushed_after: int | None,
) -> None:
    """The files of rows are there after it, but not always the batch. The log has the rest."""
    for entry in ENTRIES[:killed_after]:
        rocks.write([entry])
        if entry.log_index == flushed_after:
            rocks.flush()
    shutil.copytree(rocks.path, tmp_path / "killed")
    killed = open_tables(str(tmp_path / "killed"), shared, replicated=True)
    assert killed.applied[0] <= killed_after
    for entry in ENTRIES:
        killed.write([entry])
        if entry.log_index > killed_after:
            rocks.write([entry])
    assert dict(killed.scan(7)) == ROWS
    assert content(killed) == content(rocks)
    killed.close()


def test_a_checkpoint_between_two_steps_has_all_that_a_node_needs(
    rocks: RocksTables, shared: Resources, tmp_path: Path
) -> None:
    """A node that lacks the entries before begins with it."""
    for entry in ENTRIES[:6]:
        rocks.write([entry])
    rocks.checkpoint(str(tmp_path / "copy"))
    reader = open_checkpoint(str(tmp_path / "copy"), shared)
    assert [key for key, _ in reader.scan(LOADED_FIRST)] == [b"a", b"b", b"c", b"d"]
    reader.close()
    copy = open_tables(str(tmp_path / "copy"), shared, replicated=True)
    for entry in ENTRIES:
        copy.write([entry])
        rocks.write([entry])
    assert content(copy) == content(rocks)
    copy.close()


def test_rows_of_a_batch_that_failed_get_into_no_other_table(
    rocks: RocksTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The column family has rows, though no table has it."""
    rocks.write(ENTRIES[:4])

    def fail(*_: object) -> None:
        raise StorageFull("here")

    with monkeypatch.context() as patch:
        patch.setattr(RocksTables, "_commit", fail)
        with pytest.raises(StorageFull):
            rocks.write([ENTRIES[4]])
    assert rocks.recover()
    makes = [Put(table, [b"only"], [b"1"]) for table in range(100, 140)]
    rocks.write([TableEntry(5, 1, makes)])
    for table in range(100, 140):
        assert [key for key, _ in rocks.scan(table)] == [b"only"]


def test_rows_that_overlap_wait_for_compactions(
    rocks: RocksTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocksDB would stop all writes when there are too many files that overlap."""
    monkeypatch.setattr(ingest, "FILES_OVERLAP_MAX", 0)
    monkeypatch.setattr("kelek.storage.engine.rocks.STALL_S_MAX", 0.0)
    rocks.write(ENTRIES[:4])
    with pytest.raises(Stalled, match="compactions cannot keep up with a load"):
        rocks.write([ENTRIES[4]])
    assert rocks.problem
    assert rocks.applied[0] == 4
    assert rocks.recover()
    monkeypatch.undo()
    for entry in ENTRIES[4:]:
        rocks.write([entry])
    assert dict(rocks.scan(7)) == ROWS


def test_many_runs_over_the_same_keys(rocks: RocksTables) -> None:
    """Of each key the last one counts, whatever RocksDB has compacted meanwhile."""
    entries: list[Op] = [OperationsKnown(0, 3)]
    for number in range(40):
        same = {f"{key:03}": str(number) for key in range(number, 100)}
        entries.append(LoadChunk(7, LOAD, 1, number, UNTIL, chunk(**same)))
    entries += [LoadBuild(7, LOAD, 1, number, 1, UNTIL) for number in range(40)]
    for index, op in enumerate(entries, 1):
        assert rocks.write([TableEntry(index, 1, [op])]) == []
    rocks.write([TableEntry(len(entries) + 1, 1, [LoadCommit(7, LOAD, False, 40, UNTIL)])])
    assert [int(value) for _, value in rocks.scan(7)] == [min(key, 39) for key in range(100)]


def test_files_that_a_kill_has_left_are_removed(
    rocks: RocksTables, shared: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    rocks.write(ENTRIES[:2])
    family = rocks.families[7]
    with monkeypatch.context() as patch:
        patch.setattr(ingest, "remove_left", lambda path: None)
        patch.setattr(ingest, "_write", lambda path, *_: Path(path).touch())
        with pytest.raises(StorageError):
            rocks.ingest(family, [SortedRows([b"k"], [b"v"])])
    del family
    assert "load.0" in os.listdir(rocks.path)
    rocks.close()
    again = open_tables(rocks.path, shared, replicated=True)
    assert "load.0" not in os.listdir(again.path)
    assert dict(again.scan(7)) == {b"a": b"0", b"old": b"1"}
    again.close()


def test_an_emptied_table_keeps_nothing_of_a_load(rocks: RocksTables, shared: Resources) -> None:
    for entry in ENTRIES:
        rocks.write([entry])
    last = len(ENTRIES)
    rocks.write([TableEntry(last + 1, 1, [Truncate(7)])])
    rocks.write([TableEntry(last + 2, 1, [Put(7, [b"k"], [b"v"])])])
    rocks.close()
    again = open_tables(rocks.path, shared, replicated=True)
    assert dict(again.scan(7)) == {b"k": b"v"}
    assert again.tables()[7] == TableOptions()
    again.close()


@pytest.mark.parametrize("overlaps", [False, True])
def test_rows_of_a_load_are_scanned_in_c(
    rocks: RocksTables, shared: Resources, tmp_path: Path, overlaps: bool
) -> None:
    """But for files with a sequence number that only RocksDB knows, until it compacts them: not yet
    with two."""
    entries: list[Op] = [OperationsKnown(0, 3)]
    for run in range(2):
        keys = range(run, 400, 2) if overlaps else range(200 * run, 200 * run + 200)
        rows = {f"{key:03}": f"{run}" for key in keys}
        entries.append(LoadChunk(7, LOAD, run, 0, UNTIL, chunk(**rows)))
        entries.append(LoadBuild(7, LOAD, run, 0, 1, UNTIL))
    entries += [LoadCommit(7, LOAD, False, 2, UNTIL), Put(7, [b"007", b"500"], [b"new", b"new"])]
    for index, op in enumerate(entries, 1):
        assert rocks.write([TableEntry(index, 1, [op])]) == []
    rocks.checkpoint(str(tmp_path / "copy"))
    reader = open_checkpoint(str(tmp_path / "copy"), shared, 7)
    scan = reader.pieces(7)
    assert isinstance(scan, TableScan)
    found: list[bytes] = []
    assert scan.read(1000, 1 << 20, found.extend).pairs == 401
    assert list(zip(found[::2], found[1::2], strict=True)) == list(reader.scan(7))
    assert (scan.engine_scan is not None) == overlaps
    assert dict(reader.scan(7))[b"007"] == b"new"
    assert reader.count_range(7, b"", b"") == 401
    reader.close()


def test_rows_that_are_kept_elsewhere_are_forgotten(rocks: RocksTables) -> None:
    """A load names no keys."""
    for entry in ENTRIES:
        rocks.rows = rows = Mock()
        rocks.write([entry])
        (op,) = entry.ops
        _, reshaped = rows.write.call_args.args
        assert (op.table in reshaped) == isinstance(op, LoadCommit)
    rocks.rows = None
