"""Snapshots of shared leases: each node has exactly the entries before, despite crashes."""

import os
import shutil
from pathlib import Path
from random import Random

import pytest

from kelek.protocols.raft.messages import KIND_STATE
from kelek.protocols.record import Record, encode_block
from kelek.protocols.zerodb.tables.tables import TableEntry, TablePartition, Tables
from kelek.protocols.zerodb.wire import ops
from kelek.protocols.zerodb.wire.values import shared_lease
from kelek.protocols.zerodb.worker.worker import find_entries, split_steps
from kelek.storage.engine.families import Resources
from kelek.storage.engine.rocks import open_tables
from kelek.storage.errors import StorageError
from kelek.storage.tables.directory import TableDirectory, TableFolder
from kelek.storage.worker import shared_lease as module
from kelek.storage.worker.lease_folder import DESCRIPTION, LeaseDescription, LeaseFolder
from kelek.storage.worker.shared_lease import SharedLeases
from kelek.tests.storage.memory_tables import MemoryTables

WORKERS = 2
TABLES = (2, 4, 5)  # The last one belongs to the other worker.
NOW_MS = 1_700_000_000_000
IDLE_MS = 60_000


def open_database(path: str, replicated: bool) -> Tables:
    return open_tables(path, Resources.of(1 << 20, 8 << 20), replicated)


class LeaseNode:
    """A worker of a node: it applies a log and makes its snapshots."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "raft").mkdir(exist_ok=True)
        self.leases = LeaseFolder(str(folder / "raft" / "jobs"))
        self.table_folder = TableFolder(str(folder / "tables"), "w1", WORKERS)
        self.problems: dict[int, str] = {}
        self.lease_changes: list[ops.Op] = []
        self.start()

    def start(self) -> None:
        self.directory = TableDirectory(self.table_folder, open_database, False)
        self.snapshots = SharedLeases(self.directory, self.leases, IDLE_MS)

    def crash(self, before: Path) -> None:
        """Restores the disk as of the copy `before`, except for the folder of jobs."""
        self.directory.close()
        shutil.rmtree(self.table_folder.folder)
        shutil.copytree(before, self.table_folder.folder)
        self.start()

    def copy(self, to: Path) -> Path:
        """The tables as a crash now would leave them."""
        shutil.copytree(self.table_folder.folder, to)
        return to

    def apply(self, log: list[bytes], rng: Random, until: int = 0) -> None:
        """The entries behind the applied ones, in batches of any size."""
        applied = self.directory.replicated.applied[0]
        last = until or len(log)
        while applied < last:
            end = min(applied + rng.randint(1, 40), last)
            records = [Record(KIND_STATE, None, data) for data in log[applied:end]]
            entries = find_entries(
                encode_block(applied + 1, 1, records), TablePartition(0, WORKERS)
            ).entries
            for stage in split_steps(entries, (end, 1)):
                self.directory.replicated.write(stage.entries)
                self.lease_changes += stage.lease_changes
                if stage.lease_opened is not None:
                    problem = self.snapshots.make_snapshot(stage.lease_opened, stage.last, NOW_MS)
                    self.problems[stage.last[0]] = problem
            self.directory.replicated.write([TableEntry(end, 1, [])])
            applied = end

    def rows_of(self, index: int) -> dict[int, list[tuple[bytes, bytes]]]:
        tables = self.leases.tables(shared_lease(index))
        assert tables.applied[0] < index, "it was taken before the entry itself was applied"
        return {table: list(tables.scan(table)) for table in TABLES}


def history(rng: Random, length: int = 150) -> tuple[list[bytes], dict[int, object]]:
    """A log that opens leases, and the expected content of each."""
    log: list[bytes] = []
    expected: dict[int, object] = {}
    model = MemoryTables()
    while len(log) < length:
        index = len(log) + 1
        table = rng.choice(TABLES)
        keys = [b"%d" % rng.randrange(8) for _ in range(rng.randint(1, 3))]
        op: ops.Op
        match rng.randrange(12):
            case 0:
                op = ops.LeaseOpen(table, NOW_MS - 1000)
                if table != 5:
                    expected[index] = {number: list(model.scan(number)) for number in TABLES}
            case 1:
                op = ops.LeaseKeep(0, shared_lease(rng.randrange(200)))
            case 2:
                op = ops.Delete(table, keys)
            case 3:
                op = ops.Truncate(table)
            case _:
                op = ops.Put(table, keys, [b"%d" % index for _ in keys])
        log.append(ops.pack([op]))
        if isinstance(op, ops.Put | ops.Delete | ops.Truncate) and table != 5:
            model.write([TableEntry(index, 1, [op])])
    return log, expected


@pytest.mark.parametrize("seed", range(3))
def test_nodes_make_equal_snapshots_at_equal_index(seed: int, tmp_path: Path) -> None:
    log, expected = history(Random(seed))
    assert expected
    for name, batches in (("n1", 1), ("n2", 2)):
        (tmp_path / name).mkdir()
        node = LeaseNode(tmp_path / name)
        node.apply(log, Random(batches))
        assert node.problems == dict.fromkeys(expected, "")
        assert node.leases.shared() == [shared_lease(index) for index in sorted(expected)]
        for index, holds in expected.items():
            assert node.rows_of(index) == holds, f"entry {index}"
            mark = node.leases.description(shared_lease(index))
            assert mark is not None
            assert mark[1:3] == (index, 1)
        keeps = [op for data in log for op in ops.unpack(data) if isinstance(op, ops.LeaseKeep)]
        assert node.lease_changes == keeps
        node.directory.close()


def test_a_crash_neither_loses_nor_adds_snapshots(tmp_path: Path) -> None:
    """A killed worker applies again what was not durable."""
    log, expected = history(Random(7))
    node = LeaseNode(tmp_path)
    first = min(expected)
    node.apply(log, Random(1), first - 1)
    before = node.copy(tmp_path / "before")
    node.apply(log, Random(1))
    # Killed before its first snapshot was complete: no part of it counts. The tables do not know of
    # the entry, so it is applied again.
    node.leases.remove(shared_lease(first))
    staged = Path(node.table_folder.folder) / "w1" / "lease.tmp"
    staged.mkdir()
    (staged / "half").touch()
    node.crash(before)
    assert not (Path(node.table_folder.folder) / "w1" / "lease.tmp").exists()
    node.apply(log, Random(2))
    assert node.problems == dict.fromkeys(expected, "")
    for index, holds in expected.items():
        assert node.rows_of(index) == holds
    node.directory.close()


@pytest.mark.parametrize(
    ("late_ms", "free", "taken", "problem"),
    [
        (60_999, 1 << 40, 0, ""),
        (61_000, 1 << 40, 0, "the entry is 61 s old"),
        (-3_600_000, 1 << 40, 0, ""),  # The clock of the proposing node is ahead.
        (0, (1 << 20) * 127, 0, "127 MiB are free, a snapshot needs 128"),
        (0, 1 << 40, 2, "the nodes share 2 snapshots already"),
    ],
)
def test_a_node_without_a_snapshot_reports_why(
    late_ms: int, free: int, taken: int, problem: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(module, "SHARED_MAX", 2)
    monkeypatch.setattr(LeaseFolder, "free", lambda _: free)
    node = LeaseNode(tmp_path)
    for index in range(1, 1 + taken):
        assert not node.snapshots.make_snapshot(ops.LeaseOpen(4, NOW_MS), (index, 1), NOW_MS)
    node.directory.replicated.write([TableEntry(8, 1, [ops.Put(4, [b"k"], [b"v"])])])
    found = node.snapshots.make_snapshot(ops.LeaseOpen(4, NOW_MS), (9, 1), NOW_MS + late_ms)
    assert problem in found
    assert bool(found) == bool(problem)
    assert (shared_lease(9) in node.leases.shared()) == (not problem)
    assert node.directory.replicated.get(4, [b"k"]) == [b"v"], "it goes on"
    node.directory.close()


def test_a_failed_checkpoint_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = LeaseNode(tmp_path)

    def refuse(path: str) -> None:
        os.mkdir(path)
        raise StorageError(path, "broken", "mend it")

    monkeypatch.setattr(node.directory.replicated, "checkpoint", refuse)
    assert "broken" in node.snapshots.make_snapshot(ops.LeaseOpen(4, NOW_MS), (9, 1), NOW_MS)
    assert not node.leases.shared()
    assert not (Path(node.table_folder.folder) / "w1" / "lease").exists()
    node.directory.close()


def test_content_of_the_folder(tmp_path: Path) -> None:
    node = LeaseNode(tmp_path)
    assert node.leases.shared() == []
    assert node.leases.description(shared_lease(3)) is None
    assert not node.snapshots.make_snapshot(ops.LeaseOpen(4, NOW_MS), (3, 1), NOW_MS)
    assert node.leases.description(shared_lease(3)) == LeaseDescription(4, 3, 1, NOW_MS)
    (Path(node.leases.path(7))).mkdir()  # A lease of this node only, of an earlier process.
    half = Path(node.leases.path(shared_lease(5)) + ".tmp")
    half.mkdir()  # One that was being removed.
    node.leases.sweep(())
    assert node.leases.shared() == [shared_lease(3)]
    assert not half.exists()
    assert not Path(node.leases.path(7)).exists()
    mark = Path(node.leases.path(shared_lease(3))) / DESCRIPTION
    mark.write_text("4 3 1")  # By an earlier version.
    assert node.leases.description(shared_lease(3)) == LeaseDescription(4, 3, 1)
    for text in ("", "4 3", "4 3 x", "9 " * 100):
        mark.write_text(text)
        assert node.leases.description(shared_lease(3)) is None, text
    node.leases.remove(shared_lease(3))
    node.leases.remove(shared_lease(3))
    assert os.listdir(node.leases.folder) == []
    node.directory.close()
