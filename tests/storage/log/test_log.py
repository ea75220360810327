"""Log, Writer and LogReader on a real disk."""

import select
from pathlib import Path
from random import Random

import pytest

from kelek.protocols.errors import LocalProtocolError
from kelek.protocols.raft.messages import AppendJob, EntryBatch
from kelek.protocols.record import Record, encode_block
from kelek.storage.disk.disk import Disk
from kelek.storage.errors import StorageError, StorageFull, StorageLocked
from kelek.storage.log.hard_state import HardStateFile
from kelek.storage.log.log import Log, Writer
from kelek.storage.log.reader import LogReader
from kelek.storage.log.segment import Identity
from kelek.tests.storage.memory_disk import MemoryDisk

ME = Identity("demo", "n1")
SEGMENT_BYTES = 16 << 10


def batch(first_index: int, count: int = 1, term: int = 1, size: int = 64) -> EntryBatch:
    records = [
        Record(0, b"%012d" % (first_index + i), b"%d:%d." % (term, first_index + i) * (size // 8))
        for i in range(count)
    ]
    return encode_block(first_index, term, records)


def opened(path: Path, epoch: int = 1, background_sync: bool = False) -> Log:
    return Log(
        Disk(path),
        ME,
        epoch=epoch,
        segment_bytes=SEGMENT_BYTES,
        background_sync=background_sync,
    )


def test_a_new_log_is_empty(tmp_path: Path) -> None:
    log = opened(tmp_path / "data")
    assert (log.first_index, log.last_index, log.last_term, log.runs) == (1, 0, 0, [])
    assert log.term_at(0) == 0
    assert log.term_at(1) is None
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
    assert LogReader(Disk(tmp_path / "data"), ME).batches(1, 1, 1, 100) == []
    log.close()


def test_other_processes_and_a_restart_read_appended_entries(tmp_path: Path) -> None:
    log = opened(tmp_path)
    reader = LogReader(Disk(tmp_path), ME)
    written: list[EntryBatch] = []
    for i in range(120):
        one = batch(5 * i + 1, 5, 1 + i // 50)
        log.append(one.first_index - 1, log.last_term, [one.block])
        log.sync()
        written.append(one)
        assert reader.batches(one.first_index, one.last_index, one.term, 1 << 20) == [one]
        log.background_step()
    assert len(list(tmp_path.glob("log/*.seg"))) > 3
    assert log.runs == [(1, 1), (251, 2), (501, 3)]
    for close in (True, False, True):
        if close:
            log.close()
        else:
            log.lock_file.close()
        log = opened(tmp_path)
        assert (log.last_index, log.last_term) == (600, 3)
        assert log.runs == [(1, 1), (251, 2), (501, 3)]
        assert list(LogReader(Disk(tmp_path), ME).scan()) == written
    log.close()


def test_a_reader_gets_exactly_the_requested_entries(tmp_path: Path) -> None:
    log = opened(tmp_path)
    for first_index in range(1, 400, 7):
        log.append(first_index - 1, log.last_term, [batch(first_index, 7).block])
    log.sync()
    reader = LogReader(Disk(tmp_path), ME)
    for first_index, last_index in [(1, 1), (3, 3), (7, 8), (2, 399), (100, 300), (399, 399)]:
        for bytes_max in (1, 2000, 1 << 20):
            index = first_index
            while index <= last_index:
                found = reader.batches(index, last_index, 1, bytes_max)
                assert found[0].first_index == index
                for one in found:
                    assert one == batch(index, one.count)
                    index = one.last_index + 1
            assert index == last_index + 1
    assert reader.batches(1, 400, 1, 100) == []
    assert reader.batches(1, 399, 2, 100) == []
    assert reader.batches(5, 4, 1, 100) == []
    reader.close()
    log.close()


def test_a_conflict_supersedes_older_entries(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append(0, 0, [batch(1, 10).block])
    log.append(10, 1, [batch(11, 10).block])
    log.sync()
    reader = LogReader(Disk(tmp_path), ME)
    assert reader.batches(1, 20, 1, 1 << 20)[-1].last_index == 20
    log.append(14, 1, [batch(15, 2, 3).block])
    assert log.runs == [(1, 1), (15, 3)]
    log.append(4, 1, [batch(5, 1, 4).block])
    log.append(5, 4, [batch(6, 1, 4).block])
    log.sync()
    assert log.runs == [(1, 1), (5, 4)]
    assert (log.last_index, log.last_term) == (6, 4)
    while log.background_step():
        pass
    expected = [batch(1, 4), batch(5, 1, 4), batch(6, 1, 4)]
    assert reader.batches(1, 6, 4, 1 << 20) == expected
    assert len(list(tmp_path.glob("log/*.seg"))) == 2
    log.lock_file.close()
    log = opened(tmp_path)
    assert log.runs == [(1, 1), (5, 4)]
    assert list(LogReader(Disk(tmp_path), ME).scan()) == expected
    log.close()


def test_blocks_that_do_not_follow_are_refused(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append(0, 0, [batch(1, 10, 2).block])
    for prev_index, prev_term, block in [
        (10, 1, batch(11, 1, 2).block),
        (11, 2, batch(12, 1, 2).block),
        (10, 2, batch(12, 1, 2).block),
        (10, 2, batch(11, 1, 1).block),
        (10, 2, batch(11, 1, 2).block[:-8]),
        (10, 2, b""),
    ]:
        with pytest.raises(LocalProtocolError):
            log.append(prev_index, prev_term, [block])
    assert log.last_index == 10
    log.close()


def test_one_writer_only(tmp_path: Path) -> None:
    log = opened(tmp_path)
    with pytest.raises(StorageLocked, match=r"process \d+ writes here"):
        opened(tmp_path)
    log.close()
    opened(tmp_path).close()


@pytest.mark.parametrize("other", [Identity("other", "n1"), Identity("demo", "n2")])
def test_another_clusters_or_peers_directory_is_refused(tmp_path: Path, other: Identity) -> None:
    opened(tmp_path).close()
    HardStateFile(Disk(tmp_path), ME).close()
    with pytest.raises(StorageError, match=r"belongs to .* not to"):
        Log(Disk(tmp_path), other, epoch=1)
    with pytest.raises(StorageError, match=r"belongs to .* not to"):
        HardStateFile(Disk(tmp_path), other)
    with pytest.raises(StorageError, match=r"belongs to .* not to"):
        list(LogReader(Disk(tmp_path), other).scan())


def test_calls_wait_for_a_background_sync(tmp_path: Path) -> None:
    """append(), sync(), a conflict and close() wait; the spare is synced in the background, too."""
    log = opened(tmp_path, background_sync=True)
    assert log.sync_fd is not None
    for index in range(1, 30):
        log.append(index - 1, min(1, index - 1), [batch(index, size=800).block])
        assert not log.syncing
        log.start_sync()
        while log.background_step():
            pass
    log.sync()
    assert not log.syncing
    log.append(29, 1, [batch(30).block])
    assert not log.start_sync()
    log.append(20, 1, [batch(21, 1, 2).block])
    assert not log.start_sync()
    log.close()
    reopened = opened(tmp_path, epoch=2)
    assert reopened.runs == [(1, 1), (21, 2)]
    reopened.close()


class NeverRandom(Random):
    """A disk with it ends a sync only for those that wait."""

    def random(self) -> float:
        return 0.0


def test_entries_do_not_wait_for_the_sync_of_the_spare() -> None:
    files = MemoryDisk().process()
    files.slow = NeverRandom()
    log = Log(files, ME, epoch=1, segment_bytes=SEGMENT_BYTES, background_sync=True)
    while log.background_step():
        pass
    assert not log.has_background_work, "the spare is being written"
    log.append(0, 0, [batch(1).block])
    assert not log.start_sync()
    assert log.poll_sync(wait=True)
    assert log.end is not None, "a steady state may begin"
    log.poll_spare(wait=True)
    log.close()


def test_a_spare_without_room_is_tried_again() -> None:
    disk = MemoryDisk()
    log = Log(disk.process(), ME, epoch=1, segment_bytes=SEGMENT_BYTES)
    disk.bytes_max, bytes_max = 0, disk.bytes_max
    assert not log.background_step()
    lacked_space = log.lacks_space
    assert not log.has_background_work, "the owner tries again, after a while"
    with pytest.raises(StorageFull):
        log.append(0, 0, [batch(1).block])
    disk.bytes_max = bytes_max
    log.append(0, 0, [batch(1).block])
    assert (lacked_space, log.lacks_space) == (True, False)
    log.close()


def test_a_spare_whose_sync_fails_ends_the_log() -> None:
    disk = MemoryDisk()
    files = disk.process()
    files.slow = NeverRandom()
    log = Log(files, ME, epoch=1, segment_bytes=SEGMENT_BYTES)
    assert not log.background_step()
    disk.fail_sync()
    with pytest.raises(StorageError, match="EIO"):
        log.poll_spare(wait=True)
    with pytest.raises(StorageError, match="nothing is written after"):
        log.append(0, 0, [batch(1).block])


def held_bytes(path: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in path.glob("log/*.seg"))


def test_kills_leave_no_unused_blocks_in_closed_segments(tmp_path: Path) -> None:
    entries, size = 0, 1 << 20
    written: list[EntryBatch] = []
    for epoch in range(1, 7):
        log = Log(Disk(tmp_path), ME, epoch=epoch, segment_bytes=size)
        assert log.last_index == entries
        for first_index in range(entries + 1, entries + 101, 10):
            written.append(batch(first_index, 10, size=1000))
            log.append(first_index - 1, log.last_term, [written[-1].block])
            log.sync()
        entries = log.last_index
        log.lock_file.close()  # As a kill: without a clean end.
    assert len(list(tmp_path.glob("log/*.seg"))) == 6
    assert held_bytes(tmp_path) < size + 2 * sum(len(one.block) for one in written)
    assert {file.stat().st_size for file in tmp_path.glob("log/*.seg")} == {size}
    assert list(LogReader(Disk(tmp_path), ME).scan()) == written


def test_conflicts_leave_no_unused_blocks_in_closed_segments(tmp_path: Path) -> None:
    size = 1 << 20
    log = Log(Disk(tmp_path), ME, epoch=1, segment_bytes=size)
    reader = LogReader(Disk(tmp_path), ME)
    for term in range(1, 7):
        log.append(term - 1, log.term_at(term - 1) or 0, [batch(term, 10, term, 1000).block])
        log.sync()
        assert len(reader.batches(term, term + 9, term, 1 << 20)) == 1  # It maps the segment.
    assert held_bytes(tmp_path) < 2 * size
    assert [one.first_index for one in reader.scan()] == [1, 2, 3, 4, 5, 6]
    log.close()


def test_a_writer_syncs_once_for_its_jobs(tmp_path: Path) -> None:
    writer = Writer(opened(tmp_path), 7)
    assert writer.flush() is None
    writer.enqueue(AppendJob(6, 1, 0, 0, [batch(1).block]))
    assert writer.dropped == 1
    assert writer.flush() is None
    writer.enqueue(AppendJob(7, 1, 0, 0, [batch(1, 3).block, batch(4).block]))
    writer.enqueue(AppendJob(7, 2, 4, 1, [batch(5, 2).block]))
    writer.enqueue(AppendJob(7, 3, 2, 1, [batch(3, 1, 2).block]))
    writer.enqueue(AppendJob(7, 4, 3, 2, [batch(4, 1, 2).block]))
    assert writer.flush() == 4
    assert writer.log.runs == [(1, 1), (3, 2)]
    assert writer.log.last_index == 4
    with pytest.raises(LocalProtocolError, match="after job 4"):
        writer.enqueue(AppendJob(7, 6, 4, 2, [batch(5, 1, 2).block]))
    writer.enqueue(AppendJob(7, 5, 4, 1, [batch(5, 1, 2).block]))
    with pytest.raises(LocalProtocolError, match="do not follow"):
        writer.flush()
    writer.log.close()


def test_jobs_queued_during_a_sync_share_the_next_one(tmp_path: Path) -> None:
    writer = Writer(opened(tmp_path, background_sync=True), 7)
    log = writer.log
    assert log.sync_fd is not None
    writer.enqueue(AppendJob(7, 1, 0, 0, [batch(1).block]))
    assert writer.flush() is None
    assert log.syncing
    for index in range(2, 40):
        writer.enqueue(AppendJob(7, index, index - 1, 1, [batch(index, size=900).block]))
        assert writer.flush() is None
        assert log.last_index == 1, "nothing is written while the disk syncs"
    ready, _, _ = select.select([log.sync_fd], [], [], 10.0)
    assert ready
    assert writer.poll_sync() == 1
    assert writer.poll_sync() is None
    assert writer.flush() is None  # All segments but the last are synced already.
    assert log.last_index == 39
    select.select([log.sync_fd], [], [], 10.0)
    assert writer.poll_sync() == 39
    writer.enqueue(AppendJob(7, 40, 38, 1, []))
    assert writer.flush() == 40, "a cut is durable at once"
    log.close()
    reopened = opened(tmp_path, epoch=2)
    assert reopened.last_index == 38
    reopened.close()
