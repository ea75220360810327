"""The folders of a table worker: what it opens, writes into a snapshot, and restores."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kelek.protocols.raft.messages import KIND_CONFIG, KIND_STATE
from kelek.protocols.record import Record, encode_block
from kelek.protocols.zerodb.tables.tables import Outcome, TableEntry, TablePartition, Tables
from kelek.protocols.zerodb.wire.ops import Expire, Open, Put, Truncate, pack
from kelek.protocols.zerodb.wire.values import TableOptions
from kelek.protocols.zerodb.worker.watch import decode_entries
from kelek.protocols.zerodb.worker.worker import find_entries, with_entry_position
from kelek.storage.disk.disk import Disk
from kelek.storage.engine.families import Resources
from kelek.storage.engine.rocks import open_tables
from kelek.storage.errors import Damaged, StorageError
from kelek.storage.log.segment import Identity
from kelek.storage.snapshot.archive import Source, folder_sources
from kelek.storage.snapshot.archive import pack as pack_archive
from kelek.storage.snapshot.snapshot import Snapshots
from kelek.storage.tables.directory import TableDirectory, TableFolder

ME = Identity("demo", "n1")


def open_database(path: str, replicated: bool) -> Tables:
    return open_tables(path, Resources.of(1 << 20, 8 << 20), replicated)


class DirectoryNode:
    """The data directory of a node with one worker."""

    def __init__(self, folder: Path, name: str = "table_worker", workers: int = 1) -> None:
        self.disk = Disk(str(folder / "raft"))
        self.disk.make_folder("")
        self.folder = TableFolder(str(folder / "tables"), name, workers)
        self.directory = TableDirectory(self.folder, open_database, False)

    def put(self, index: int, value: bytes) -> None:
        self.directory.replicated.write([TableEntry(index, 1, [Put(5, [b"key"], [value])])])

    def snapshot(self, at: tuple[int, int], state: bytes | None = None) -> None:
        """Makes a snapshot of the worker's state, or of other bytes."""
        pieces = [state] if state is not None else pack_archive(self.sources(at))
        snapshots = Snapshots(self.disk, ME)
        writer = snapshots.create(*at, b"")
        for piece in pieces:
            writer.write(piece)
        writer.finish()
        snapshots.close()

    def sources(self, at: tuple[int, int]) -> list[Source]:
        return folder_sources(Disk(self.directory.write_state(at)), self.folder.name)

    def restore(self, applied: int) -> bool:
        restored = self.directory.unpack_snapshot(self.disk, ME, applied)
        if restored is not None:
            self.directory.replace(restored)
        return restored is not None


def test_tables_are_restored_from_a_snapshot(tmp_path: Path) -> None:
    node = DirectoryNode(tmp_path)
    node.put(3, b"three")
    node.snapshot((7, 2))
    node.directory.drop_state()
    node.put(9, b"nine")
    assert not node.restore(9), "we are ahead"
    assert node.restore(6)
    assert node.directory.replicated.applied == (7, 2), "nothing was for us behind entry 3"
    assert node.directory.replicated.get(5, [b"key"]) == [b"three"]
    node.put(8, b"eight")
    node.directory.close()
    restarted = DirectoryNode(tmp_path)
    assert restarted.directory.replicated.get(5, [b"key"]) == [b"eight"]
    assert restarted.directory.replicated.applied == (8, 1)
    restarted.directory.close()


@pytest.mark.parametrize("state", [b"", b"KLKD of a log without tables"])
def test_a_snapshot_without_tables_empties_them(tmp_path: Path, state: bytes) -> None:
    node = DirectoryNode(tmp_path)
    node.put(3, b"three")
    node.snapshot((7, 2), state)
    assert node.restore(3)
    assert node.directory.replicated.applied == (7, 2)
    assert node.directory.replicated.tables() == {}
    node.directory.close()


def test_a_damaged_snapshot_leaves_the_tables_as_they_are(tmp_path: Path) -> None:
    node = DirectoryNode(tmp_path)
    node.put(3, b"three")
    node.snapshot((7, 2))
    (path,) = (tmp_path / "raft" / "snapshots").glob("*.snap")
    data = bytearray(path.read_bytes())
    data[len(data) * 2 // 3] ^= 1
    path.write_bytes(data)
    with pytest.raises(Damaged):
        node.directory.unpack_snapshot(node.disk, ME, 3)
    assert node.directory.replicated.get(5, [b"key"]) == [b"three"]
    node.directory.close()


def test_another_number_of_workers_is_refused(tmp_path: Path) -> None:
    DirectoryNode(tmp_path).directory.close()
    with pytest.raises(StorageError, match="made for `workers: 1`, not 2"):
        DirectoryNode(tmp_path, workers=2)
    with pytest.raises(StorageError, match="made for `workers: 1`, not 2"):
        DirectoryNode(tmp_path, "table_worker.2", workers=2)


def test_a_snapshot_of_another_number_of_workers_is_refused(tmp_path: Path) -> None:
    one, two = DirectoryNode(tmp_path / "one"), DirectoryNode(tmp_path / "two", workers=2)
    two.put(3, b"three")
    data = b"".join(pack_archive(two.sources((7, 2))))
    one.snapshot((7, 2), data)
    with pytest.raises(StorageError, match="give all nodes of a cluster one number"):
        one.restore(0)
    one.directory.close()
    two.directory.close()


def break_manifest(folder: Path) -> None:
    for path in folder.glob("MANIFEST-*"):
        path.write_bytes(b"nothing good" * 10)


def break_current(folder: Path) -> None:
    """A flipped bit: it names a manifest that is not there."""
    name = (folder / "CURRENT").read_text()
    (folder / "CURRENT").write_text(name.replace("MANIFEST-0", "MANIFEST-8"))


def lose_manifest(folder: Path) -> None:
    for path in folder.glob("MANIFEST-*"):
        path.unlink()


def lose_files(folder: Path) -> None:
    for path in folder.glob("*.sst"):
        path.unlink()


@pytest.mark.parametrize("damage", [break_manifest, break_current, lose_manifest, lose_files])
def test_damaged_tables_are_moved_away(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    node = DirectoryNode(tmp_path)
    node.put(3, b"three")
    node.directory.close()
    damage(tmp_path / "tables" / "table_worker" / "replicated")
    restarted = DirectoryNode(tmp_path)
    assert "replicated" in restarted.directory.damaged
    assert restarted.directory.replicated.applied == (0, 0), "they come again from the log"
    restarted.directory.close()


def test_damaged_local_tables_are_not_promised_again(tmp_path: Path) -> None:
    folder = TableFolder(str(tmp_path / "tables"), "table_worker", 1)
    TableDirectory(folder, open_database, True).close()
    for path in (tmp_path / "tables" / "table_worker" / "local").glob("MANIFEST-*"):
        path.write_bytes(b"nothing good" * 10)
    with pytest.raises(Damaged, match=r"/local: .*; only this node had these local tables"):
        TableDirectory(folder, open_database, True)


def test_tables_with_noted_damage_are_moved_away(tmp_path: Path) -> None:
    node = DirectoryNode(tmp_path)
    node.put(3, b"three")
    node.directory.note_damage("block 7 is wrong")
    node.directory.close()
    restarted = DirectoryNode(tmp_path)
    assert restarted.directory.damaged == "block 7 is wrong"
    assert restarted.directory.replicated.applied == (0, 0)
    restarted.put(4, b"four")
    restarted.directory.close()
    once = DirectoryNode(tmp_path)
    assert once.directory.damaged == ""
    assert once.directory.replicated.applied == (4, 1)
    once.directory.close()


@pytest.mark.parametrize("left", ["replicated.new", "replicated.old", "state"])
def test_remains_of_a_killed_worker_are_removed(tmp_path: Path, left: str) -> None:
    folder = tmp_path / "tables" / "table_worker" / left
    folder.mkdir(parents=True)
    (folder / "file").write_bytes(b"x")
    DirectoryNode(tmp_path).directory.close()
    assert not folder.exists()


def test_entries_are_partitioned_by_worker() -> None:
    def data(*tables: int) -> bytes:
        return pack([Put(table, [b"k"], [b"v"]) for table in tables])

    records = [
        Record(KIND_STATE, None, data(4)),
        Record(KIND_STATE, None, b"somebody else's"),
        Record(KIND_STATE, None, pack([Put(4, [b"k"], [b"v"]), Truncate(5), Truncate(6)])),
        Record(KIND_STATE, None, data(1000)),
        Record(KIND_STATE, None, data(7)[:-1]),
        Record(KIND_STATE, None, pack([Expire(0, 1), Open(9, TableOptions())])),
    ]
    batch = encode_block(10, 2, records)
    even = find_entries(batch, TablePartition(0, 2, frozenset([1000])))
    odd = find_entries(batch, TablePartition(1, 2, frozenset([1000])))
    one_by_one = [
        (one.log_index, len(one.ops)) for one in decode_entries(batch, TablePartition(1, 2))
    ]
    assert [pair for pair in one_by_one if pair[1]] == [(12, 1), (15, 2)]
    assert [(entry.log_index, len(entry.ops)) for entry in even.entries] == [
        (10, 1),
        (12, 2),
        (15, 1),
    ]
    assert [(entry.log_index, len(entry.ops)) for entry in odd.entries] == [(12, 1), (15, 2)]
    assert even.malformed == odd.malformed == 1
    assert with_entry_position(Outcome(12, 0, b""), odd.positions).position == 1, (
        "of the whole entry"
    )
    assert with_entry_position(Outcome(12, 1, b""), even.positions).position == 2
    assert find_entries(
        encode_block(1, 1, [Record(KIND_CONFIG, None, b"x")]), TablePartition(0, 1)
    ) == (
        [],
        {},
        0,
        set(),
    )
