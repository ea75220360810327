"""Inspection of a data directory: identity, entries, damage."""

from collections.abc import Callable

import pytest

from kelek.native.log.updates import Reqids
from kelek.protocols.raft.messages import HardState
from kelek.protocols.record import Record, encode_block
from kelek.storage.errors import StorageError
from kelek.storage.log.hard_state import HardStateFile
from kelek.storage.log.log import Log
from kelek.storage.log.segment import Identity
from kelek.storage.log.verify import Finding, StoredEntry, entries, read_identity, verify
from kelek.storage.snapshot.snapshot import Snapshots
from kelek.tests.storage.memory_disk import MemoryDisk

ME = Identity("demo", "n1")
SEGMENT_BYTES = 16 << 10
LAST = 600


def record(index: int) -> Record:
    return Record(index % 3, b"%012d" % index if index % 2 else None, b"%d" % index * 40)


def filled(snapshot: int | None = None, clean: bool = True) -> MemoryDisk:
    """A peer's disk with entries 1 to LAST in several segments, those from 501 on in term 2."""
    disk = MemoryDisk()
    files = disk.process()
    state = HardStateFile(files, ME)
    for term in range(1, 4):
        state.save(HardState(term, "n2"))
    log = Log(files, ME, epoch=1, segment_bytes=SEGMENT_BYTES)
    reqids = Reqids()
    for first_index in range(1, LAST, 10):
        records = [record(index) for index in range(first_index, first_index + 10)]
        block = encode_block(first_index, 1 + (first_index > 500), records).block
        reqids.add_block(block)
        log.append(first_index - 1, log.last_term, [block])
        log.sync()
    if snapshot is not None:
        snapshots = Snapshots(files, ME)
        writer = snapshots.create(snapshot, 1, b"\x91\x92\xa2n1\xa1u", reqids.export(snapshot))
        writer.write(b"state" * 100)
        writer.finish()
        snapshots.close()
        log.compact(snapshot)
    while log.background_step():
        pass
    if clean:
        log.close()
    disk.crash()
    return disk


def segments(disk: MemoryDisk) -> list[str]:
    return sorted(path for path in disk.names if path.endswith(".seg"))


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("snapshot", [None, 0, 400])
def test_a_sound_directory_has_no_findings(snapshot: int | None, clean: bool) -> None:
    disk = filled(snapshot, clean)
    before = {path: bytes(inode.cache) for path, inode in disk.names.items()}
    files = disk.process()
    disk.read_only = True
    report = verify(files)
    assert report.findings == []
    assert (report.identity, report.closed) == (ME, clean)
    assert report.hard_state == HardState(3, "n2")
    assert (report.last_index, report.last_term) == (LAST, 2)
    assert [one.path for one in report.segments] == segments(disk)
    assert report.first_index == report.segments[0].first_index
    assert (report.first_index > 1) == (snapshot == 400)
    assert [one.index for one in report.snapshots] == ([] if snapshot is None else [snapshot])
    for one, other in zip(report.segments, report.segments[1:], strict=False):
        assert one.last_index + 1 == other.first_index
    assert {path: bytes(inode.cache) for path, inode in disk.names.items()} == before


def test_every_entry_is_listed() -> None:
    files = filled().process()
    assert read_identity(files) == ME
    expected = [
        StoredEntry(index, 1 + (index > 500), *record(index)) for index in range(1, LAST + 1)
    ]
    assert list(entries(files, ME)) == expected
    assert list(entries(files, ME, 505)) == expected[504:]
    assert list(entries(files, ME, 33, 205)) == expected[32:205]
    assert list(entries(files, ME, LAST + 1)) == []
    compacted = list(entries(filled(400).process(), ME))
    assert compacted == expected[compacted[0].index - 1 :]
    assert 1 < compacted[0].index <= 401


def flip(path: Callable[[MemoryDisk], str], offset: int) -> Callable[[MemoryDisk], str]:
    def damage(disk: MemoryDisk) -> str:
        disk.flip(path(disk), 8 * offset)
        return path(disk)

    return damage


def first(disk: MemoryDisk) -> str:
    return segments(disk)[0]


def last(disk: MemoryDisk) -> str:
    return segments(disk)[-1]


def removed(number: int) -> Callable[[MemoryDisk], str]:
    def damage(disk: MemoryDisk) -> str:
        path = segments(disk)[number]
        del disk.names[path]
        return segments(disk)[max(0, number - 1)]

    return damage


def snapshot_path(disk: MemoryDisk) -> str:
    return next(path for path in disk.names if path.endswith(".snap"))


DAMAGES = [
    (flip(first, 5000), 4744, "expected checksum"),
    (flip(first, 4100), 4096, "expected checksum|expected magic"),
    (flip(first, 20), 0, "expected checksum"),
    (flip(last, 5000), 4128, "expected checksum"),
    (removed(0), None, "entries .* to .* are missing"),
    (removed(2), None, "are missing"),
    (flip(lambda _: "hard_state", 100), 0, "expected checksum"),
    (flip(lambda _: "hard_state", 4100), 4096, "slot is damaged"),
    (flip(snapshot_path, 5), 4, "version"),
    (flip(snapshot_path, 4096), 4096, "expected checksum"),
    (flip(snapshot_path, 4105), 4103, "expected checksum"),
    (flip(snapshot_path, 4300), 4127, "expected checksum"),
    (lambda disk: disk.cut(first(disk), 8000) or first(disk), None, "expected"),
    (lambda disk: disk.cut(last(disk), 6000) or last(disk), None, "expected"),
    (lambda disk: disk.cut(snapshot_path(disk), 4500) or snapshot_path(disk), 24, "parts"),
]


@pytest.mark.parametrize(("damage", "offset", "problem"), DAMAGES)
def test_damage_is_found_with_file_and_offset(
    damage: Callable[[MemoryDisk], str], offset: int | None, problem: str
) -> None:
    disk = filled(0)
    path = damage(disk)
    findings = verify(disk.process()).findings
    matching = [one for one in findings if one.path == path]
    assert matching, findings
    assert any(one.offset == offset or offset is None for one in matching), findings
    with pytest.raises(AssertionError, match=problem):
        raise AssertionError(" ".join(one.problem for one in matching))


def test_several_faults_are_reported_once_each() -> None:
    disk = filled(400)
    for path in (segments(disk)[1], snapshot_path(disk)):
        disk.flip(path, 8 * 4300)
    report = verify(disk.process())
    assert sorted(one.path.split("/")[0] for one in report.findings) == ["log", "log", "snapshots"]
    missing = next(one for one in report.findings if "missing" in one.problem)
    assert missing.offset is None, "without its snapshot the log begins too late"
    assert report.last_index == LAST


def test_an_unfinished_write_is_no_finding() -> None:
    disk = filled(clean=False)
    files = disk.process()
    log = Log(files, ME, epoch=2, segment_bytes=SEGMENT_BYTES)
    block = encode_block(LAST + 1, 2, [Record(0, None, b"x" * 2000)]).block
    log.append(LAST, 2, [block])
    disk.crash()
    path = last(disk)
    end = bytes(disk.names[path].cache).rindex(b"x") + 1
    disk.cut(path, end - 1000)
    report = verify(disk.process())
    assert (report.findings, report.last_index) == ([], LAST)


def test_a_malformed_table_of_request_ids() -> None:
    disk = filled()
    snapshots = Snapshots(disk.process(), ME)
    info = snapshots.create(5, 1, b"", b"junk" * 10).finish()
    assert verify(disk.process()).findings == [
        Finding(info.path, 4096, "the table of request ids is malformed")
    ]


def test_a_directory_without_a_peer() -> None:
    disk = MemoryDisk()
    with pytest.raises(StorageError, match="no peer keeps its data here"):
        verify(disk.process())
    disk = filled()
    del disk.names["hard_state"]
    assert verify(disk.process()).findings == []
    for path in segments(disk):
        disk.flip(path, 8 * 50)
    with pytest.raises(StorageError, match="expected checksum"):
        read_identity(disk.process())
