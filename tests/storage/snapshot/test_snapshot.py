"""Snapshots on a real disk and on a disk in memory: made, read, received, damaged, cut."""

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from kelek.native.log.updates import Reqids
from kelek.storage.disk.disk import Disk
from kelek.storage.disk.files import PIECE_BYTES, SYNC_BYTES, Files, file_pieces
from kelek.storage.errors import StorageError, StorageFull, StorageLocked
from kelek.storage.log.segment import Identity
from kelek.storage.snapshot.snapshot import (
    FOLDER,
    SnapshotFile,
    SnapshotInfo,
    Snapshots,
    newest,
    newest_verified,
    open_snapshot,
    set_damaged_aside,
)
from kelek.tests.storage.memory_disk import Killed, MemoryDisk, MemoryFile

ME = Identity("demo", "n1")
OTHER = Identity("demo", "n2")
STATE_PATH = f"{FOLDER}/1.state.new"
CONFIGURATION = b"\x91\x92\xa2n1\xa1u"
REQIDS = bytes(Reqids().export(50))  # An empty table.


@pytest.fixture(params=["disk", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Files]:
    """Opens the same data directory as a new process at each call."""
    if request.param == "disk":
        return lambda: Disk(tmp_path / "data")
    return MemoryDisk().process


def make(
    snapshots: Snapshots, index: int, state: bytes = b"state", reqids: bytes = REQIDS
) -> SnapshotInfo:
    writer = snapshots.create(index, index // 10, CONFIGURATION, reqids)
    for at in range(0, len(state), 100_000):
        writer.write(state[at : at + 100_000])
    return writer.finish(made_s=1_800_000_000)


def opened(files: Files, info: SnapshotInfo, identity: Identity = ME) -> SnapshotFile:
    found = open_snapshot(files, identity, info)
    assert found is not None
    return found


def container(files: Files, info: SnapshotInfo) -> bytes:
    snapshot = opened(files, info)
    try:
        return snapshot.read(0, info.size + 1)
    finally:
        snapshot.close()


def names(files: Files) -> list[str]:
    return [name for name in files.names(FOLDER) if name != "lock"]


def test_a_snapshot_reads_back_as_written(place: Callable[[], Files]) -> None:
    state = Random(1).randbytes(2 * PIECE_BYTES + 77)
    snapshots = Snapshots(place(), ME)
    assert newest(place(), ME) is None
    info = make(snapshots, 100, state, b"r" * 40)
    assert (info.index, info.term, info.configuration) == (100, 10, CONFIGURATION)
    assert (info.reqids_size, info.state_size, info.made_s) == (40, len(state), 1_800_000_000)
    assert snapshots.newest == info == newest(place(), ME)
    snapshot = opened(place(), info)
    assert b"".join(snapshot.reqids()) == b"r" * 40
    assert b"".join(snapshot.state()) == state
    assert snapshot.read_state(PIECE_BYTES, 1000) == state[PIECE_BYTES : PIECE_BYTES + 1000]
    assert snapshot.read_state(len(state) - 5, 1000) == state[-5:]
    assert snapshot.read(info.state_offset, len(state) + 1) == state
    assert len(container(place(), info)) == info.size
    snapshot.check()
    snapshot.close()
    snapshots.close()
    assert newest(place(), OTHER) == info, "a snapshot is its cluster's, not one peer's"
    with pytest.raises(StorageError, match="belongs to cluster 'demo', not to 'other'"):
        newest(place(), Identity("other", "n1"))


def test_the_first_snapshot_holds_only_the_configuration(
    place: Callable[[], Files],
) -> None:
    snapshots = Snapshots(place(), ME)
    info = snapshots.create(0, 0, CONFIGURATION).finish()
    assert (
        newest(place(), ME)
        == info
        == SnapshotInfo(0, 0, CONFIGURATION, 0, 0, info.configuration_crc, 0, 0, 0)
    )
    snapshot = opened(place(), info)
    snapshot.check()
    assert list(snapshot.reqids()) == list(snapshot.state()) == []
    snapshot.close()
    snapshots.close()


def test_only_the_newest_stays_and_open_readers_continue(
    place: Callable[[], Files],
) -> None:
    files = place()
    snapshots = Snapshots(files, ME)
    older = make(snapshots, 10, b"older" * 1000)
    reader = opened(files, older)
    newer = make(snapshots, 20, b"newer")
    assert snapshots.newest == newer == newest(files, ME)
    assert names(files) == [newer.path.removeprefix(f"{FOLDER}/")]
    assert b"".join(reader.state()) == b"older" * 1000
    reader.close()
    assert open_snapshot(files, ME, older) is None
    rewritten = make(snapshots, 20, b"again")
    assert b"".join(opened(files, rewritten).state()) == b"again"
    snapshots.close()


def test_one_writer_only_and_unfinished_files_are_removed(place: Callable[[], Files]) -> None:
    files = place()
    snapshots = Snapshots(files, ME)
    with pytest.raises(StorageLocked):
        Snapshots(place(), ME)
    older = make(snapshots, 10)
    files.create(STATE_PATH).append([b"half a st"])
    snapshots.create(20, 1, b"", b"").write(b"half")
    gone = snapshots.create(30, 1, b"", b"")
    gone.write(b"given up")
    gone.abort()
    assert len(names(files)) == 3
    assert newest(files, ME) == older
    snapshots.close()
    Snapshots(files, ME).close()
    assert names(files) == [older.path.removeprefix(f"{FOLDER}/")]


def test_a_transfer_continues_after_a_restart(place: Callable[[], Files], tmp_path: Path) -> None:
    source = MemoryDisk().process()
    sent = Snapshots(source, OTHER)
    info = make(sent, 50, Random(3).randbytes(SYNC_BYTES + 500_000))
    data = container(source, info)
    files = place()
    snapshots = Snapshots(files, ME)
    incoming = snapshots.receive(info.index, info.term, info.size)
    assert incoming.offset == 0
    assert incoming.write(1000, data[1000:2000]) == 0, "a gap is not taken"
    assert incoming.write(0, data[:1000]) == 1000
    assert incoming.write(0, data[:1000]) == 1000, "nor a repeat"
    assert incoming.write(1000, data + b"more") == 1000, "nor more than there is"
    assert incoming.write(1000, memoryview(data)[1000:60_000]) == 60_000
    incoming.close()
    snapshots.close()
    snapshots = Snapshots(files, ME)
    incoming = snapshots.receive(info.index, info.term, info.size)
    assert incoming.offset == 60_000
    while incoming.offset < info.size:
        incoming.write(incoming.offset, data[incoming.offset : incoming.offset + PIECE_BYTES])
    assert newest(files, ME) is None
    assert incoming.finish() == info == snapshots.newest == newest(files, ME)
    assert container(files, info) == data
    assert len(names(files)) == 1
    snapshots.close()
    sent.close()


def test_another_snapshot_starts_at_its_beginning(place: Callable[[], Files]) -> None:
    files = place()
    snapshots = Snapshots(files, ME)
    first = b"KLKS" + bytes(4996)
    incoming = snapshots.receive(50, 5, 10_000)
    incoming.write(0, first)
    incoming.close()
    for name in [(50, 5, 10_001), (50, 6, 10_000), (51, 5, 10_000), (50, 5, 10_000)]:
        incoming = snapshots.receive(*name)
        assert incoming.offset == 0
        incoming.write(0, first)
        incoming.close()
        assert len(names(files)) == 1
    incoming = snapshots.receive(50, 5, 10_000)
    assert incoming.offset == 5000
    incoming.abort()
    assert names(files) == []
    incoming = snapshots.receive(50, 5, 10_000)
    incoming.write(0, bytes(5000))
    incoming.close()
    incoming = snapshots.receive(50, 5, 10_000)
    assert incoming.offset == 0, "nothing tells whether the disk still has all of a bare state"
    incoming.write(0, bytes(5000))
    incoming.close()
    make(snapshots, 50)
    snapshots.close()
    snapshots = Snapshots(files, ME)
    assert len(names(files)) == 1, "what is not newer than ours is not waited for"
    snapshots.close()


@pytest.mark.parametrize("state", [b"", b"x", b"KLK", Random(2).randbytes(PIECE_BYTES + 12345)])
def test_a_foreign_peers_plain_state_is_wrapped(place: Callable[[], Files], state: bytes) -> None:
    files = place()
    snapshots = Snapshots(files, ME)
    incoming = snapshots.receive(50, 5, len(state))
    incoming.write(0, state)
    info = incoming.finish(CONFIGURATION)
    assert (info.index, info.term, info.configuration) == (50, 5, CONFIGURATION)
    assert (info.reqids_size, info.state_size) == (0, len(state))
    assert newest(files, ME) == info
    assert b"".join(opened(files, info).state()) == state
    assert len(names(files)) == 1
    snapshots.close()


def test_a_file_that_is_gone() -> None:
    with pytest.raises(StorageError, match="disappeared"):
        list(file_pieces(MemoryDisk().process(), f"{FOLDER}/nothing.new"))


def received(files: Files, name: tuple[int, int], data: bytes) -> SnapshotInfo:
    snapshots = Snapshots(files, ME)
    try:
        incoming = snapshots.receive(*name, len(data))
        incoming.write(0, data)
        return incoming.finish()
    finally:
        snapshots.close()


def small() -> tuple[SnapshotInfo, bytes]:
    files = MemoryDisk().process()
    snapshots = Snapshots(files, OTHER)
    info = make(snapshots, 50)
    return info, container(files, info)


def damages(size: int) -> Iterator[tuple[int, int]]:
    """(offset, bit): each byte that is not zero, and some of the others."""
    random = Random(5)
    for offset in [*range(100), *range(4092, size), *random.sample(range(100, 4092), 100)]:
        yield offset, random.randrange(8)


def test_every_flipped_bit_is_found_when_it_arrives_and_when_it_is_read() -> None:
    info, data = small()
    for offset, bit in damages(len(data)):
        wrong = bytearray(data)
        wrong[offset] ^= 1 << bit
        files = MemoryDisk().process()
        with pytest.raises(StorageError, match=r"offset \d+: expected .* found|belongs"):
            received(files, (50, 5), bytes(wrong))
        assert names(files) == [], "it comes again from its start"
        disk = MemoryDisk()
        received(disk.process(), (50, 5), data)
        disk.flip(info.path, 8 * offset + bit)
        with pytest.raises(StorageError):
            opened(disk.process(), newest(disk.process(), ME) or info).check()


def test_every_cut_is_found() -> None:
    info, data = small()
    for size in [*range(50), *range(4000, len(data))]:
        with pytest.raises(StorageError):
            received(MemoryDisk().process(), (50, 5), data[:size])
        disk = MemoryDisk()
        received(disk.process(), (50, 5), data)
        disk.cut(info.path, size)
        with pytest.raises(StorageError, match=r"bytes"):
            newest(disk.process(), ME)


def test_another_snapshot_than_announced_is_refused() -> None:
    _, data = small()
    for name in [(51, 5), (50, 6)]:
        with pytest.raises(StorageError, match=r"expected entry 5. of term ., found 50 of 5"):
            received(MemoryDisk().process(), name, data)


@pytest.mark.parametrize(
    ("configuration", "reqids", "problem"),
    [
        (b"\x90", REQIDS, "offset 4096: no configuration: "),  # Without members.
        (b"\xc1", REQIDS, "offset 4096: no configuration: "),
        (b"\x81\xa3old\x90", REQIDS, "offset 4096: no configuration: "),
        (b"\x91\x92\xa2n1\x05", REQIDS, "offset 4096: no configuration: "),
        (CONFIGURATION, b"ids", "offset 4103: the table of request ids is malformed"),
        (CONFIGURATION, bytes(8) + REQIDS[8:] * 2, "offset 4103: the table of request ids is"),
    ],
)
def test_a_snapshot_that_no_peer_can_decode_is_never_published(
    configuration: bytes, reqids: bytes, problem: str
) -> None:
    """All checksums are right."""
    source = MemoryDisk().process()
    created = Snapshots(source, OTHER).create(50, 5, configuration, reqids).finish()
    file = source.open(created.path)
    assert file is not None
    files = MemoryDisk().process()
    with pytest.raises(StorageError, match=problem):
        received(files, (50, 5), file.read(0, created.size))
    assert names(files) == [], "it comes again from its start"


def test_a_published_snapshot_without_configuration_is_damage() -> None:
    files = MemoryDisk().process()
    snapshots = Snapshots(files, ME)
    sound = make(snapshots, 40)
    path = snapshots.create(50, 5, b"\x90").finish().path
    snapshots.close()
    found, damage = newest_verified(files, ME)
    assert found is None, "the older one is gone"
    assert damage is not None, "so the log's writer marks it for repair and puts it aside"
    snapshots = Snapshots(files, ME)
    assert (snapshots.newest, list(snapshots.damaged)) == (None, [path])
    assert make(snapshots, sound.index) == snapshots.newest
    assert snapshots.damaged == {}
    snapshots.close()


def test_a_damaged_snapshot_is_reported_and_replaced() -> None:
    disk = MemoryDisk()
    files = disk.process()
    snapshots = Snapshots(files, ME)
    info = make(snapshots, 50)
    snapshots.close()
    disk.flip(info.path, 8 * 40)
    with pytest.raises(StorageError, match="expected checksum"):
        newest(files, ME)
    snapshots = Snapshots(files, ME)
    found = snapshots.newest
    assert found is None
    assert list(snapshots.damaged) == [info.path]
    for index in (40, 50):
        info = make(snapshots, index)
        assert snapshots.newest == info == newest(files, ME)
        assert snapshots.damaged == {}
        assert names(files) == [info.path.removeprefix(f"{FOLDER}/")]
    snapshots.close()


def test_a_renamed_snapshot_is_refused() -> None:
    disk = MemoryDisk()
    files = disk.process()
    snapshots = Snapshots(files, ME)
    info = make(snapshots, 50)
    files.rename(info.path, replace(info, index=60).path)
    with pytest.raises(StorageError, match="its header says"):
        newest(files, ME)
    snapshots.close()


def test_a_full_disk_changes_nothing() -> None:
    disk = MemoryDisk()
    files = disk.process()
    snapshots = Snapshots(files, ME)
    older = make(snapshots, 10)
    writer = snapshots.create(20, 2, b"")
    writer.write(b"fits")
    disk.bytes_max = 20_000
    with pytest.raises(StorageFull):
        writer.write(bytes(20_000))
    disk.bytes_max = 1 << 40
    writer.write(b", then more")
    incoming = snapshots.receive(30, 3, 5)
    incoming.write(0, b"ab")
    disk.bytes_max = 0
    with pytest.raises(StorageFull):
        incoming.write(2, b"cde")
    assert newest(files, ME) == older
    assert incoming.offset == 2
    with pytest.raises(StorageFull):
        snapshots.create(40, 4, b"")
    disk.bytes_max = 1 << 40
    assert b"".join(opened(files, writer.finish()).state()) == b"fits, then more"
    incoming.write(2, b"cde")
    disk.bytes_max = 0
    with pytest.raises(StorageFull):
        incoming.finish(b"")
    disk.bytes_max = 1 << 40
    assert incoming.finish(b"").state_size == 5
    assert len(names(files)) == 1
    snapshots.close()


def test_a_write_that_fails_on_the_disk_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Disk(tmp_path).create("file")
    file.append([b"before"])
    writes = os.pwrite

    def full(fd: int, data: memoryview, offset: int) -> int:
        if offset < 8:
            return writes(fd, data[:2], offset)
        raise OSError(errno.ENOSPC, "")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StorageFull):
        file.append([b"more", b"and more"])
    monkeypatch.undo()
    assert file.size == 6 == (tmp_path / "file").stat().st_size
    file.append([b", behind"])
    assert file.read(0, 100) == b"before, behind"
    file.close()


def test_a_crash_at_any_step_leaves_the_older_or_the_newer_one() -> None:
    """A crash of the writer or of the machine, while a snapshot is made or received."""
    source = MemoryDisk().process()
    big = make(Snapshots(source, OTHER), 30, bytes(5000))
    data = container(source, big)
    outcomes = set()
    for seed in range(200):
        random = Random(seed)
        disk = MemoryDisk()
        snapshots = Snapshots(disk.process(), ME)
        older = make(snapshots, 10)
        disk.kill_after(random.randrange(25))
        try:
            if seed % 2:
                make(snapshots, 20)
            incoming = snapshots.receive(big.index, big.term, big.size)
            while incoming.offset < big.size:
                incoming.write(incoming.offset, data[incoming.offset : incoming.offset + 1000])
            incoming.finish()
        except Killed:
            pass
        disk.kill_after(None)
        if seed % 3:
            disk.power_loss(random)
        else:
            disk.crash()
        files = disk.process()
        snapshots = Snapshots(files, ME)
        found = newest(files, ME)
        assert found is not None
        assert found == snapshots.newest
        assert snapshots.damaged == {}
        assert older.index <= found.index
        opened(files, found).check()
        outcomes.add(found.index)
        if found.index < big.index:
            _resume(snapshots, big, data)
        assert newest(files, ME) == big
        assert len(names(files)) == 1
        snapshots.close()
    assert outcomes == {10, 20, 30}


def _resume(snapshots: Snapshots, info: SnapshotInfo, data: bytes) -> None:
    """Sends a snapshot as a leader does: again from the start after damage."""
    for _ in range(2):
        incoming = snapshots.receive(info.index, info.term, info.size)
        incoming.write(incoming.offset, data[incoming.offset :])
        try:
            incoming.finish()
        except StorageError:
            continue
        return
    raise AssertionError("it never arrives")


def test_a_listing_is_repeated_when_the_writer_replaces_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = MemoryDisk()
    snapshots = Snapshots(disk.process(), ME)
    make(snapshots, 10)
    files = disk.process()
    opens, indexes = files.open, iter(range(20, 1000, 10))

    def open_late(path: str, writable: bool = False) -> MemoryFile | None:
        index = next(indexes)
        if index <= last_index:
            make(snapshots, index)
        return opens(path, writable)

    monkeypatch.setattr(files, "open", open_late)
    last_index = 50
    found = newest(files, ME)
    assert found is not None
    assert found.index == 50
    last_index = 1000
    with pytest.raises(StorageError, match="changes all the time"):
        newest(files, ME)
    snapshots.close()


class SnapshotTwin:
    """The same steps on a real disk and on a disk in memory."""

    def __init__(self, random: Random, root: Path) -> None:
        self.random = random
        self.places: list[Callable[[], Files]] = [lambda: Disk(root), MemoryDisk().process]
        self.owners = [Snapshots(place(), ME) for place in self.places]
        self.index = 0

    def make(self) -> list[object]:
        self.index += self.random.randint(0, 2)
        state, ending = (
            self.random.randbytes(self.random.choice((0, 9, 9000))),
            self.random.random(),
        )
        outcomes: list[object] = []
        for owner in self.owners:
            writer = owner.create(self.index, 1, CONFIGURATION, state[:5])
            writer.write(state)
            if ending < 0.8:
                outcomes.append(writer.finish())
            elif ending < 0.9:
                writer.abort()
        return outcomes

    def receive(self) -> list[object]:
        """Receives a snapshot: sometimes damaged, from an unknown cluster, or incomplete."""
        source = MemoryDisk().process()
        name = self.index + self.random.randint(0, 3), 1
        data = bytearray(container(source, make(Snapshots(source, OTHER), name[0])))
        if self.random.random() < 0.4:
            data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
        end = len(data) if self.random.random() < 0.7 else self.random.randrange(len(data))
        configuration = self.random.choice((None, CONFIGURATION))
        term, outcomes = self.random.choice((name[0] // 10, 9)), list[object]()
        for owner in self.owners:
            incoming = owner.receive(name[0], term, len(data))
            outcomes.append(incoming.offset)
            incoming.write(incoming.offset, data[incoming.offset : max(end, incoming.offset)])
            if incoming.offset < len(data):
                outcomes.append(incoming.offset)
                incoming.close()
                continue
            try:
                outcomes.append(incoming.finish(configuration))
            except StorageError as error:
                outcomes.append(error.problem)
        if any(isinstance(one, SnapshotInfo) for one in outcomes):
            self.index = name[0]
        return outcomes

    def reopen(self) -> list[object]:
        for owner in self.owners:
            owner.close()
        self.owners = [Snapshots(place(), ME) for place in self.places]
        return []

    def inspect(self) -> list[object]:
        outcomes: list[object] = []
        for place in self.places:
            files = place()
            found = newest(files, ME)
            outcomes.append((names(files), found, found and container(files, found)))
        return outcomes


@pytest.mark.parametrize("seed", range(10))
def test_the_disk_and_its_twin_agree(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    twin = SnapshotTwin(random, tmp_path)
    for _ in range(60):
        for step in (random.choice((twin.make, twin.receive, twin.reopen)), twin.inspect):
            outcomes = step()
            assert outcomes[: len(outcomes) // 2] == outcomes[len(outcomes) // 2 :]
    for owner in twin.owners:
        owner.close()


@pytest.mark.parametrize("byte", [9, -3], ids=["header", "state"])
def test_a_damaged_snapshot_is_set_aside(place: Callable[[], Files], byte: int) -> None:
    """Readers get the one before it, or none; the other files stay."""
    files = place()
    snapshots = Snapshots(files, ME)
    info = make(snapshots, 7)
    assert newest_verified(files, ME) == (info, None)
    file = files.open(info.path, writable=True)
    assert file is not None
    at = byte % file.size
    file.write(at, [bytes([file.read(at, 1)[0] ^ 1])])
    file.close()
    sound, damage = newest_verified(files, ME)
    assert sound is None
    assert damage is not None
    assert info.path in damage.place
    snapshots.close()
    rewritten = Snapshots(files, ME)
    assert rewritten.newest is None
    assert list(rewritten.damaged) == [info.path]
    rewritten.close()
    set_damaged_aside(files, sound)
    assert newest(files, ME) is None
    assert newest_verified(files, ME) == (None, None)
