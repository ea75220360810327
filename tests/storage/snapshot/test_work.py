"""The work of snapshot_sender on a disk in memory, and the start of a peer from its files."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from kelek.native.log.updates import Reqids
from kelek.protocols.raft.messages import KIND_CONFIG, EntryBatch
from kelek.protocols.record import Record, encode_block
from kelek.protocols.zmqraft.snapshots.orders import (
    ChunkRead,
    ChunkWritten,
    CreateSnapshot,
    EntriesRead,
    ReadChunk,
    ReadEntries,
    Snapshot,
    SnapshotCreated,
    SnapshotInstalled,
    WriteChunk,
)
from kelek.protocols.zmqraft.wire.values import encode_members
from kelek.storage.disk.files import Files
from kelek.storage.log.log import Log
from kelek.storage.log.peer_recovery import (
    PeerFiles,
    RecoverySettings,
    recover_peer,
    snapshot_reqids,
)
from kelek.storage.log.reader import LogReader
from kelek.storage.log.segment import Identity
from kelek.storage.snapshot.snapshot import newest, open_snapshot
from kelek.storage.snapshot.work import ReqidLimits, SnapshotWork, write_state
from kelek.tests.storage.memory_disk import MemoryDisk

ME = Identity("demo", "n1")
KEEP = ReqidLimits(9 * 3600, 1000)
TWO = encode_members((("n1", "tcp://n1"), ("n2", "tcp://n2")))
THREE = encode_members((("n1", "tcp://n1"), ("n2", "tcp://n2"), ("n3", "tcp://n3")))
STATE = b"state " * 1000


def reqid(number: int) -> bytes:
    return (1_700_000_000).to_bytes(4) + number.to_bytes(8)


def blocks(first_index: int, last_index: int, term: int = 1) -> Iterator[EntryBatch]:
    for index in range(first_index, last_index + 1, 10):
        end = min(index + 9, last_index)
        records = [Record(0, reqid(number), b"data" * 25) for number in range(index, end + 1)]
        yield encode_block(index, term, records)


class SnapshotNode:
    """A log with entries, and its snapshots."""

    def __init__(self, entries: int = 200) -> None:
        self.disk = MemoryDisk()
        self.log = Log(self.disk.process(), ME, epoch=1, segment_bytes=8192)
        self.work = SnapshotWork(self.disk.process(), ME, KEEP)
        if entries:
            self.append(blocks(1, entries))

    def append(self, batches: Iterator[EntryBatch]) -> None:
        for batch in batches:
            self.log.append(self.log.last_index, self.log.last_term, [batch.block])
        self.log.sync()

    def order_snapshot(
        self, index: int, state: bytes = STATE, at: int | None = None
    ) -> SnapshotCreated:
        term = self.log.term_at(index) or 0
        assert self.work.execute(CreateSnapshot(index, term, TWO)) is None
        pending = self.work.pending_make
        assert pending is not None
        assert pending.last_index == index
        at = at or index
        write_state(self.disk.process(), at, lambda write: write(state))
        self.work.on_state_written(at, self.log.term_at(at) or 0)
        return self.finish()

    def finish(self) -> SnapshotCreated:
        while (snapshot := self.work.step()) is None:
            pass
        assert not self.work.busy
        return snapshot

    def refusal(self, index: int, at: int, **parts: Files) -> str:
        """Why there is no snapshot, with the state as of entry at."""
        self.work.execute(CreateSnapshot(index, 1, TWO))
        write_state(self.disk.process(), at, lambda write: write(STATE))
        self.work.on_state_written(at, 1, parts)
        self.disk.bytes_max = 0
        refused = self.finish()
        assert refused.snapshot is None
        return refused.problem

    def make_snapshot(self, index: int) -> Snapshot:
        snapshot = self.order_snapshot(index).snapshot
        assert snapshot is not None
        return snapshot


def test_a_snapshot_holds_state_configuration_and_request_ids() -> None:
    node = SnapshotNode()
    node.append(iter([encode_block(201, 2, [Record(KIND_CONFIG, None, THREE)])]))
    node.append(blocks(202, 230, 2))
    snapshot = node.make_snapshot(100)
    assert (snapshot.last_index, snapshot.last_term, snapshot.configuration) == (100, 1, TWO)
    snapshot = node.make_snapshot(220)
    assert (snapshot.last_index, snapshot.last_term, snapshot.configuration) == (220, 2, THREE)
    peer_files = PeerFiles(node.disk.process(), ME)
    info = newest(*peer_files)
    file = info and open_snapshot(*peer_files, info)
    assert file
    assert b"".join(file.state()) == STATE
    table, live = Reqids(), Reqids()
    table.load(snapshot_reqids(peer_files))
    for batch in LogReader(node.disk.process(), ME).batches(1, 220, 2, 1 << 20):
        live.add_block(batch.block)
    live.settle(*KEEP)
    assert bytes(table.export(220)) == bytes(live.export(220))
    assert table.find(reqid(100)) == 100
    assert table.find(reqid(221)) is None


def test_the_state_may_be_of_a_later_entry() -> None:
    snapshot = SnapshotNode().order_snapshot(50, at=70).snapshot
    assert snapshot is not None
    assert snapshot.last_index == 70


def test_a_state_without_an_order_is_removed() -> None:
    node = SnapshotNode()
    write_state(node.disk.process(), 30, lambda write: write(STATE))
    node.work.on_state_written(30, 1)
    assert not [name for name in node.disk.names if "state" in name]


def test_no_snapshot_beyond_the_log() -> None:
    assert "not in the log" in SnapshotNode(20).refusal(15, 90)


def test_no_snapshot_without_the_state_of_a_process_that_has_restarted() -> None:
    problem = SnapshotNode().refusal(100, 100, table_worker=MemoryDisk().process())
    assert "it disappeared" in problem


def test_no_snapshot_of_damaged_tables() -> None:
    """Its owner is named; the next snapshot, of sound tables, is made."""
    node, tables = SnapshotNode(), MemoryDisk().process()
    with closing(tables.create("MANIFEST-000001")) as file:
        file.append([b"\1\0\0\0\4\0\1data"])
    problem = node.refusal(100, 100, **{"table_worker.2": tables})
    assert "MANIFEST-000001: offset 0: a record does not match its checksum" in problem
    assert node.work.damaged_part == ("table_worker.2", problem)
    node.disk.bytes_max = 1 << 40
    assert node.make_snapshot(100).last_index == 100
    assert node.work.damaged_part == ("", "")


def test_a_snapshot_is_received_while_parts_are_checked() -> None:
    """The older snapshot is gone then. The sender once ended there."""
    source, target = SnapshotNode(), SnapshotNode()
    snapshot = source.make_snapshot(150)
    read = source.work.execute(ReadChunk("n2", 150, 1, 0, snapshot.size, False))
    assert isinstance(read, ChunkRead)
    target.make_snapshot(50)
    tables = MemoryDisk().process()
    tables.create("CURRENT").close()
    target.work.execute(CreateSnapshot(100, 1, TWO))
    write_state(target.disk.process(), 100, lambda write: write(STATE))
    target.work.on_state_written(100, 1, {"table_worker": tables})
    assert target.work.step() is None
    received = target.work.execute(WriteChunk(150, 1, 0, snapshot.size, read.chunk, b""))
    assert received == SnapshotInstalled(snapshot)
    assert target.finish() == SnapshotCreated(snapshot)


def test_a_full_disk_is_reported() -> None:
    node = SnapshotNode()
    assert "no space" in node.refusal(100, 100)
    node.disk.bytes_max = 1 << 40
    assert node.make_snapshot(100).last_index == 100


def test_a_snapshot_goes_from_node_to_node_and_the_log_follows() -> None:
    source, target = SnapshotNode(), SnapshotNode(30)
    snapshot = source.make_snapshot(150)
    offset = 0
    while True:
        piece = source.work.execute(
            ReadChunk("n2", 150, 1, offset, min(5000, snapshot.size - offset), False)
        )
        assert isinstance(piece, ChunkRead)
        assert piece.found
        result = target.work.execute(WriteChunk(150, 1, offset, snapshot.size, piece.chunk, b""))
        if isinstance(result, SnapshotInstalled):
            break
        assert isinstance(result, ChunkWritten)
        offset = result.offset
    assert result.snapshot == snapshot
    repeated = target.work.execute(WriteChunk(150, 1, 0, snapshot.size, b"late", b""))
    assert repeated == SnapshotInstalled(snapshot)

    # The log writer has not restarted the log yet: the next start does.
    peer_files, reqids = PeerFiles(target.disk.process(), ME), Reqids()
    found = recover_peer(
        peer_files,
        LogReader(peer_files.files, ME),
        reqids,
        RecoverySettings(KEEP, {"n1": "tcp://n1"}, {}),
    )
    assert found.reset
    assert (found.log.base_index, found.log.base_term, found.log.last_index) == (150, 1, 150)
    assert found.directory
    assert found.directory.encode_at(150) == TWO
    assert reqids.find(reqid(150)) == 150


def test_a_transfer_continues_after_the_received_part() -> None:
    source, target = SnapshotNode(), SnapshotNode(0)
    snapshot = source.make_snapshot(150)
    first = source.work.execute(ReadChunk("n2", 150, 1, 0, 4500, False))
    assert isinstance(first, ChunkRead)
    assert target.work.execute(
        WriteChunk(150, 1, 0, snapshot.size, first.chunk, b"")
    ) == ChunkWritten(150, 1, 4500)
    target.work.close()
    target.work = SnapshotWork(target.disk.process(), ME, KEEP)
    assert target.work.execute(
        WriteChunk(150, 1, 0, snapshot.size, first.chunk, b"")
    ) == ChunkWritten(150, 1, 4500)


def test_a_damaged_transfer_starts_again() -> None:
    source, target = SnapshotNode(), SnapshotNode(0)
    snapshot = source.make_snapshot(150)
    piece = source.work.execute(ReadChunk("n2", 150, 1, 0, snapshot.size, False))
    assert isinstance(piece, ChunkRead)
    damaged = piece.chunk[:-1] + bytes([piece.chunk[-1] ^ 1])
    assert target.work.execute(WriteChunk(150, 1, 0, snapshot.size, damaged, b"")) == ChunkWritten(
        150, 1, 0
    )
    assert newest(target.disk.process(), ME) is None
    result = target.work.execute(WriteChunk(150, 1, 0, snapshot.size, piece.chunk, b""))
    assert isinstance(result, SnapshotInstalled)


def test_a_foreign_state_is_wrapped() -> None:
    node = SnapshotNode(0)
    result = node.work.execute(WriteChunk(150, 3, 0, 5, b"state", THREE))
    assert isinstance(result, SnapshotInstalled)
    assert result.snapshot[:2] == (150, 3)
    assert (result.snapshot.state_size, result.snapshot.configuration) == (5, THREE)
    piece = node.work.execute(ReadChunk("n3", 150, 3, 0, 5, True))
    assert piece == ChunkRead("n3", 150, 3, 0, b"state", True)


def test_the_first_configuration_is_a_snapshot_at_index_0() -> None:
    node = SnapshotNode(0)
    snapshot = node.work.execute(CreateSnapshot(0, 0, THREE))
    assert isinstance(snapshot, SnapshotCreated)
    assert snapshot.snapshot is not None
    assert snapshot.snapshot.configuration == THREE
    assert node.work.execute(CreateSnapshot(0, 0, TWO)) == snapshot


def test_old_entries_and_compacted_ones() -> None:
    node = SnapshotNode()
    node.make_snapshot(150)
    read = node.work.execute(ReadEntries("n2", 21, 200, 1, 500))
    assert isinstance(read, EntriesRead)
    assert read.batches[0].first_index == 21
    gone = node.work.execute(ReadChunk("n2", 99, 1, 0, 10, False))
    assert gone == ChunkRead("n2", 99, 1, 0, b"", False)


@pytest.mark.parametrize("behind", [0, 60])
def test_a_start_reads_snapshot_and_the_log_after_it(behind: int) -> None:
    node = SnapshotNode()
    node.make_snapshot(200 - behind)
    node.log.compact(100)
    while node.log.background_step():
        pass
    peer_files, reqids = PeerFiles(node.disk.process(), ME), Reqids()
    found = recover_peer(
        peer_files,
        LogReader(peer_files.files, ME),
        reqids,
        RecoverySettings(KEEP, {"n1": "tcp://n1"}, {}),
    )
    assert not found.reset
    assert 0 < found.log.base_index <= 200 - behind
    assert (found.log.last_index, found.snapshot.last_index) == (200, 200 - behind)
    assert bool(found.bytes_after_snapshot) is bool(behind)
    assert [reqids.find(reqid(number)) for number in (1, 150, 200)] == [1, 150, 200]
