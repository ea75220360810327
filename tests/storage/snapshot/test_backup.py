"""Backups: written, read, continued, restored, damaged."""

from collections.abc import Iterator
from contextlib import closing
from random import Random

import pytest

from kelek.native.log.updates import Reqids
from kelek.protocols.raft.messages import KIND_STATE, EntryBatch, HardState
from kelek.protocols.record import Record, encode_block
from kelek.protocols.zmqraft.wire.config_codec import (
    ConfigEntry,
    batch_config,
    decode_config_entry,
    encode_config_entry,
)
from kelek.storage.errors import Damaged, StorageError, StorageFull
from kelek.storage.log.rescue import OldLog, fill
from kelek.storage.log.segment import Identity
from kelek.storage.log.verify import entries, verify
from kelek.storage.snapshot.backup import (
    LOG,
    SNAPSHOT,
    TOPOLOGY,
    Backup,
    BackupWriter,
    LogRange,
    Manifest,
    check_chain,
    open_backup,
    read_closed,
    up_to,
)
from kelek.storage.snapshot.snapshot import Snapshots, newest, open_snapshot
from kelek.tests.storage.memory_disk import MemoryDisk, MemoryFiles

OLD = ConfigEntry((("n1", "tcp://127.0.0.1:1"),), tables_from=4)
NEW = (("a", "tcp://127.0.0.1:2"), ("b", "tcp://127.0.0.1:3"))
STATE = Random(1).randbytes(1500)


def blocks(first_index: int, *sizes: int) -> list[EntryBatch]:
    """Blocks of so many entries each, with growing terms."""
    found = []
    for number, count in enumerate(sizes):
        records = [
            Record(KIND_STATE, (first_index + at).to_bytes(12), b"entry %d" % (first_index + at))
            for at in range(count)
        ]
        found.append(encode_block(first_index, 1 + first_index // 10 + number, records))
        first_index += count
    return found


def container(index: int) -> bytes:
    """A snapshot's file."""
    files = MemoryDisk().process()
    with closing(Snapshots(files, Identity("old", "n1"))) as snapshots:
        reqids = bytes(Reqids().export(index))
        writer = snapshots.create(index, 1, encode_config_entry(OLD), reqids)
        writer.write(STATE)
        info = writer.finish(made_s=1_800_000_000)
    file = open_snapshot(files, Identity("old", "n1"), info)
    assert file is not None
    with closing(file):
        return file.read(0, info.size)


def make(
    files: MemoryFiles,
    name: str,
    after: int = 0,
    log: list[EntryBatch] | None = None,
    since: str = "",
    snapshot: bytes = b"",
) -> str:
    """Writes a backup; returns its id."""
    log = blocks(after + 1, 5, 1, 3) if log is None else log
    writer = BackupWriter(files, name)
    if snapshot:
        writer.begin(SNAPSHOT)
        writer.write(snapshot)
    writer.begin(LOG)
    for batch in log:
        writer.write_batch(batch)
    writer.begin(TOPOLOGY)
    writer.write(b"cluster: old\n")
    last = (log[-1].last_index, log[-1].term) if log else (after, 1)
    found = LogRange(after if snapshot else 0, after, *last)
    with closing(writer.finish(Manifest("old", "1", 1_800_000_000, "n1", found, since))) as backup:
        return backup.id


def test_a_backup_reads_back_as_written() -> None:
    files = MemoryDisk().process()
    made = make(files, "one", after=20, snapshot=container(20))
    assert files.names("") == ["one"]
    with closing(open_backup(files, "one")) as backup:
        assert backup.id == made
        assert backup.manifest.log == LogRange(20, 20, 29, 5)
        assert backup.manifest.parts.keys() == {SNAPSHOT, LOG, TOPOLOGY}
        assert list(backup.log()) == blocks(21, 5, 1, 3)
        part = backup.snapshot_part()
        assert part is not None
        snapshot = backup.open_snapshot(part)
        assert b"".join(snapshot.reqids())
        assert b"".join(snapshot.state()) == STATE
        part.check()
        read: list[int] = []
        backup.verify(read.append)
        assert sum(read) == sum(one.size for one in backup.manifest.parts.values())


def test_an_unfinished_backup_has_no_name() -> None:
    disk = MemoryDisk()
    files = disk.process()
    writer = BackupWriter(files, "one")
    writer.begin(LOG)
    writer.write_batch(blocks(1, 5)[0])
    with pytest.raises(Damaged, match="it ends at entry 5 of term 1, not at 9"):
        writer.finish(Manifest("old", "1", 0, "n1", LogRange(0, 0, 9, 1)))
    writer.abort()
    assert files.names("") == []


@pytest.mark.parametrize("size", [1, 1000, 4095, 4096, 5000, 1 << 20])
def test_a_snapshot_is_checked_while_it_is_written(size: int) -> None:
    """In pieces of any size. A wrong bit of its head, its request ids or its state is found."""
    good, after = container(20), 20

    def write(data: bytes) -> None:
        writer = BackupWriter(MemoryDisk().process(), "one")
        writer.begin(SNAPSHOT)
        for at in range(0, len(data), size):
            writer.write(data[at : at + size])
        writer.begin(LOG)
        writer.finish(Manifest("old", "1", 0, "n1", LogRange(after, after, after, 1))).close()

    write(good)
    reqids_at = len(good) - len(STATE) - 1
    for at in (10, 40, 4097, reqids_at, reqids_at + 1, len(good) - 700, len(good) - 1):
        with pytest.raises(Damaged, match="snapshot: offset"):
            write(good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :])


def test_a_full_disk_leaves_no_backup() -> None:
    disk = MemoryDisk()
    files = disk.process()
    writer = BackupWriter(files, "one")
    writer.begin(TOPOLOGY)
    disk.bytes_max = 100
    with pytest.raises(StorageFull):
        writer.write(bytes(20_000))
    writer.abort()
    assert files.names("") == []


def whole(data: bytes) -> None:
    """Reads a backup completely. Raises Damaged."""
    files = MemoryDisk().process()
    with closing(files.create("it")) as file:
        file.append([data])
    with closing(open_backup(files, "it")) as backup:
        backup.verify()


@pytest.fixture(scope="module")
def stored() -> bytes:
    files = MemoryDisk().process()
    make(files, "one", after=20, snapshot=container(20))
    with closing(files.create("x")):
        pass
    file = files.open("one")
    assert file is not None
    with closing(file):
        return file.read(0, file.size)


def damaged_copies(data: bytes, random: Random) -> Iterator[bytes]:
    for at in range(0, len(data), 7 if random.random() else 1):
        flipped = bytearray(data)
        flipped[at] ^= 1 << random.randrange(8)
        yield bytes(flipped)
    for size in (0, 1, 7, 8, 12, len(data) - 1, *random.sample(range(len(data)), 100)):
        yield data[:size]
    for at in random.sample(range(len(data)), 50):  # A sector that did not arrive.
        torn = data[:at] + bytes(min(512, len(data) - at)) + data[at + 512 :]
        if torn != data:
            yield torn
    yield data + b"\0"


def test_every_flipped_bit_and_every_missing_end_is_refused(stored: bytes) -> None:
    whole(stored)
    for copy in damaged_copies(stored, Random(5)):
        with pytest.raises(Damaged) as refused:
            whole(copy)
        assert "it" in refused.value.place
        assert refused.value.way_out in (
            "use another backup",
            "use the version of kelek that made it",
        )


def test_heads_and_manifest_flipped_bit_by_bit(stored: bytes) -> None:
    """They are what finds the rest."""
    manifest = stored.index(b"manifest") - 12
    for at in (*range(28), *range(manifest, len(stored))):
        for bit in range(8):
            flipped = bytearray(stored)
            flipped[at] ^= 1 << bit
            with pytest.raises(Damaged):
                whole(bytes(flipped))


def test_what_is_no_backup_is_refused() -> None:
    files = MemoryDisk().process()
    with pytest.raises(StorageError, match="there is no such file; check its name"):
        open_backup(files, "one")
    with closing(files.create("one")) as file:
        file.append([container(20)])
    with pytest.raises(Damaged, match="expected an archive"):
        open_backup(files, "one")


@pytest.mark.parametrize(
    ("log", "line"),
    [
        (blocks(22, 5), "expected entry 21, found 22"),
        ([*blocks(21, 2), *blocks(24, 2)], "expected entry 23, found 24"),
    ],
)
def test_a_log_with_a_gap_gets_no_name(log: list[EntryBatch], line: str) -> None:
    files = MemoryDisk().process()
    with pytest.raises(Damaged, match=line):
        make(files, "one", 20, log, snapshot=container(20))


def test_backups_continue_each_other() -> None:
    files = MemoryDisk().process()
    first = make(files, "one")
    second = make(files, "two", 9, since=first)
    make(files, "three", 18, [], since=second)
    make(files, "other", 9, since="0" * 64)
    assert read_closed(files, "three").since == second
    opened = {name: open_backup(files, name) for name in ("one", "two", "three", "other")}

    def chain(*names: str) -> list[Backup]:
        return [opened[name] for name in names]

    check_chain(chain("one", "two", "three"))
    check_chain(chain("two", "three"), is_whole=False)
    for names in (["two", "three"], ["one", "three"], ["one", "other"], ["one", "one"]):
        with pytest.raises(StorageError, match="continue"):
            check_chain(chain(*names))


@pytest.mark.parametrize("index", [9, 8, 5, 3])
def test_a_log_restored_to_an_index(index: int) -> None:
    files, target = MemoryDisk().process(), MemoryDisk().process()
    make(files, "one")
    with closing(open_backup(files, "one")) as backup:
        old = OldLog(None, (0, 0), up_to(backup.log(), index), 3)
        fill([(target, Identity("anew", "b"))], old, NEW)
    report = verify(target)
    assert report.identity == Identity("anew", "b")
    assert not report.findings
    assert (report.first_index, report.last_index, report.last_term) == (1, index + 1, 4)
    assert report.hard_state == HardState(4)
    found = list(entries(target, report.identity))
    assert [entry.data for entry in found[:-1]] == [b"entry %d" % it for it in range(1, index + 1)]
    assert decode_config_entry(found[-1].data) == ConfigEntry(NEW)


def test_a_snapshot_is_restored_under_the_new_cluster() -> None:
    """With the request ids, the state and `tables_from`, but the new members."""
    files, target = MemoryDisk().process(), MemoryDisk().process()
    make(files, "one", after=20, snapshot=container(20))
    with closing(open_backup(files, "one")) as backup:
        part = backup.snapshot_part()
        assert part is not None
        fill(
            [(target, Identity("anew", "a"))],
            OldLog(backup.open_snapshot(part), (20, 1), backup.log(), 5),
            NEW,
        )
        part.check()
    report = verify(target)
    assert not report.findings
    assert (report.first_index, report.last_index) == (21, 30)
    info = newest(target, report.identity)
    assert info is not None
    assert decode_config_entry(info.configuration) == ConfigEntry(NEW, tables_from=4)
    file = open_snapshot(target, report.identity, info)
    assert file is not None
    with closing(file):
        assert b"".join(file.state()) == STATE
    (*_, last) = entries(target, report.identity)
    assert decode_config_entry(last.data) == ConfigEntry(NEW, tables_from=4)


def test_the_newest_seal_of_tables_in_the_log_counts() -> None:
    target = MemoryDisk().process()
    record = Record(1, None, encode_config_entry(OLD._replace(tables_from=2)))
    log = [*blocks(1, 2), encode_block(3, 4, [record])]
    assert batch_config(log[-1]) is not None
    fill([(target, Identity("anew", "a"))], OldLog(None, (0, 0), log, 4), NEW)
    (*_, last) = entries(target, Identity("anew", "a"))
    assert decode_config_entry(last.data).tables_from == 2
