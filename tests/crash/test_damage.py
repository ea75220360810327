"""Every cut and every flipped bit of small logs: recovered or refused, never silently shorter."""

from contextlib import suppress
from itertools import product
from random import Random

import pytest

from kelek.protocols.raft.messages import EntryBatch
from kelek.protocols.record import Record, encode_block
from kelek.storage.errors import Damaged, StorageError
from kelek.storage.log import repair
from kelek.storage.log.log import Log
from kelek.storage.log.reader import LogReader
from kelek.storage.log.recovery import RecoveredFiles, recover
from kelek.storage.log.segment import Identity
from kelek.tests.storage.memory_disk import Killed, MemoryDisk, MemoryFiles

ME = Identity("demo", "n1")
SEGMENT_BYTES = 8 << 10
HEADER = 4096


def batches(count: int) -> list[EntryBatch]:
    """Small and large batches of text or zeros, of one or two records, with rising terms."""
    made, index = [], 1
    for i in range(count):
        data = (b"entry %d" % i, bytes(700), b"x" * 1300, b"")[i % 4]
        reqid = b"request%05d" % i
        records = [Record(0, reqid, data), Record(2, None, b"\xc0")][: 1 + i % 2]
        made.append(encode_block(index, 1 + i // 5, records))
        index += len(records)
    return made


def log_of(count: int, close: bool) -> tuple[MemoryDisk, list[EntryBatch]]:
    """A log of count synced batches; its writer has closed it or was killed."""
    disk, made = MemoryDisk(), batches(count)
    log = Log(disk.process(), ME, epoch=1, segment_bytes=SEGMENT_BYTES)
    for batch in made:
        log.append(batch.first_index - 1, log.last_term, [batch.block])
        log.sync()
    if close:
        log.close()
    disk.crash()
    return disk, made


def segments(disk: MemoryDisk) -> list[str]:
    return sorted(path for path in disk.names if path.endswith(".seg"))


def held(files: MemoryFiles, recovered: RecoveredFiles, made: list[EntryBatch]) -> int:
    """The number of batches in a recovered log, which must be the first ones."""
    count = sum(batch.last_index <= recovered.runs.last_index for batch in made)
    assert recovered.runs.last_index == (made[count - 1].last_index if count else 0)
    assert recovered.runs.last_term == (made[count - 1].term if count else 0)
    for batch in made[:count]:
        assert recovered.runs.term_at(batch.first_index) == batch.term
    return count


def sizes(disk: MemoryDisk, path: str) -> list[int]:
    """The offsets at which a segment's marks and blocks end, and where they begin."""
    from kelek.native.log.segments import segment_blocks

    data = disk.process().open(path)
    assert data is not None
    places, _ = segment_blocks(data.read(HEADER, data.size))
    return [HEADER + place[0] + place[1] for place in places]


@pytest.mark.parametrize("close", [False, True], ids=["killed", "closed"])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_every_cut_of_three_segments(number: int, close: bool) -> None:
    disk, made = log_of(16, close)
    paths = segments(disk)
    assert len(paths) == 3
    path = paths[number]
    ends = sizes(disk, path)
    before = sum(len(sizes(disk, other)) for other in paths[:number])
    for size in range(disk.process().open(path).size - 1, -1, -1):  # type: ignore[union-attr]
        disk.cut(path, size)
        files = disk.process()
        whole = sum(end <= size for end in ends)
        sound = whole == len(ends) if number < 2 else not close
        try:
            recovered = recover(files, ME)
        except StorageError as error:
            assert not sound or size < HEADER, size
            assert path in str(error)  # noqa: PT017
        else:
            assert sound, size
            assert size >= HEADER
            expected = len(made) if number < 2 else before + whole
            assert held(files, recovered, made) == expected
            assert number < 2 or recovered.tail is not None


@pytest.mark.parametrize("close", [False, True], ids=["killed", "closed"])
@pytest.mark.parametrize("part", range(8))
def test_every_flip_of_a_small_log(part: int, close: bool) -> None:
    """Everything was acknowledged: recovery finds all of it or refuses the log."""
    disk, made = log_of(5, close)
    (path,) = segments(disk)
    end = sizes(disk, path)[-1]
    size = disk.process().open(path).size * 8  # type: ignore[union-attr]
    refused = 0
    for bit in range(part * size // 8, (part + 1) * size // 8):
        disk.flip(path, bit)
        files = disk.process()
        try:
            recovered = recover(files, ME)
        except StorageError as error:
            refused += 1
            assert error.place.endswith(path)  # noqa: PT017
            assert "expected" in error.problem  # noqa: PT017
        else:
            assert not close
            assert bit >= end * 8, "only what stands behind the last entry may be cut off"
            assert held(files, recovered, made) == len(made)
        disk.flip(path, bit)
    assert refused > 0 or part > end * 8 // size


def test_every_flip_of_the_clean_mark() -> None:
    """A damaged clean mark counts as none: recovery works as after a kill."""
    disk, made = log_of(5, close=True)
    for bit in range(len(disk.names["log/clean"].cache) * 8):
        disk.flip("log/clean", bit)
        files = disk.process()
        assert held(files, recover(files, ME), made) == 5
        disk.flip("log/clean", bit)


def test_damage_before_a_later_segment_is_corruption() -> None:
    disk, _ = log_of(16, close=False)
    for path in segments(disk)[:2]:
        for end in sizes(disk, path):
            disk.flip(path, (end - 9) * 8)
            with pytest.raises(StorageError, match=r"offset \d+: expected"):
                recover(disk.process(), ME)
            disk.flip(path, (end - 9) * 8)


def test_a_missing_segment_is_refused() -> None:
    disk, _ = log_of(16, close=True)
    paths = segments(disk)
    for path in paths:
        inode = disk.names.pop(path)
        with pytest.raises(StorageError):
            recover(disk.process(), ME)
        disk.names[path] = inode
    for path in paths:
        del disk.names[path]
    with pytest.raises(StorageError, match="every segment is missing"):
        recover(disk.process(), ME)


def test_another_version_is_refused() -> None:
    disk, _ = log_of(1, close=False)
    (path,) = segments(disk)
    disk.flip(path, 33)
    with pytest.raises(StorageError, match="expected version 1, found 3; use the kelek"):
        Log(disk.process(), ME, epoch=2)


def test_a_renamed_segment_is_refused() -> None:
    disk, _ = log_of(1, close=False)
    (path,) = segments(disk)
    disk.names[path.replace("01.seg", "02.seg")] = disk.names.pop(path)
    with pytest.raises(Damaged, match="its header says"):
        recover(disk.process(), ME)


def whole(disk: MemoryDisk) -> list[EntryBatch]:
    return list(LogReader(disk.process(), ME).scan())


def test_repair_keeps_the_sound_beginning_of_a_damaged_log() -> None:
    """Wherever a bit flips or a segment is lost, in whatever log: a prefix is left, and the mark
    says as much as was acknowledged. All this survives a next start, which finds nothing wrong."""
    for close, number in product((False, True), range(3)):
        for at in (8, HEADER + 40, HEADER + 700, 6000, None):
            disk, made = log_of(16, close)
            path = segments(disk)[number]
            end = sizes(disk, path)[-1]
            if at is None:
                disk.process().remove(path)
                disk.process().sync_folder("log")
            else:
                disk.flip(path, min(at, end - 9) * 8)
            if at is None and number == 2 and not close:
                continue  # No file shows that there was another entry.
            log = Log(disk.process(), ME, epoch=7, segment_bytes=SEGMENT_BYTES)
            assert log.damage is not None
            assert log.damage.last_index >= made[-1].last_index or at is None
            left = log.last_index
            disk.power_loss(Random(1))
            mark = repair.pending_mark(disk.process(), 0)
            assert mark == log.damage
            assert repair.pending_mark(disk.process(), 7) is None
            again = Log(disk.process(), ME, epoch=8, segment_bytes=SEGMENT_BYTES)
            assert again.damage is None
            assert again.last_index == left < made[-1].last_index
            entries = [batch for batch in made if batch.last_index <= left]
            assert [batch.block for batch in whole(disk)] == [batch.block for batch in entries]


@pytest.mark.parametrize("steps", range(0, 40, 3))
def test_killed_during_a_repair(steps: int) -> None:
    """The mark is durable before the first change, so the damage is never forgotten."""
    for at in (8, 700):
        disk, made = log_of(16, close=False)
        disk.flip(segments(disk)[2 if at == 8 else 1], at * 8 if at == 8 else (HEADER + at) * 8)
        disk.kill_after(steps)
        with suppress(Killed):
            Log(disk.process(), ME, epoch=7, segment_bytes=SEGMENT_BYTES)
        disk.kill_after(None)
        disk.power_loss(Random(steps))
        Log(disk.process(), ME, epoch=8, segment_bytes=SEGMENT_BYTES)
        mark = repair.pending_mark(disk.process(), 0)
        assert mark is not None
        assert mark.last_index >= made[-1].last_index


def test_every_flip_of_the_mark_is_detected_and_repaired() -> None:
    disk, _ = log_of(5, close=False)
    disk.flip(segments(disk)[0], (HEADER + 40) * 8)
    Log(disk.process(), ME, epoch=7, segment_bytes=SEGMENT_BYTES)
    disk.crash()
    for bit in range(len(disk.names[repair.PATH].cache) * 8):
        disk.flip(repair.PATH, bit)
        with pytest.raises(Damaged):
            repair.read_mark(disk.process())
        disk.flip(repair.PATH, bit)
    disk.flip(repair.PATH, 99)
    log = Log(disk.process(), ME, epoch=9, segment_bytes=SEGMENT_BYTES)
    assert log.damage is not None
    assert repair.pending_mark(disk.process(), 7) == log.damage


def test_a_reader_tells_corruption_from_missing_entries() -> None:
    disk, made = log_of(5, close=False)
    (path,) = segments(disk)
    ends = sizes(disk, path)
    reader = LogReader(disk.process(), ME)
    last = made[-1]
    assert reader.batches(last.last_index + 1, last.last_index + 1, last.term, 100) == []
    disk.flip(path, (ends[2] - 9) * 8)
    assert len(reader.batches(1, last.last_index, last.term, 1)) == 1
    with pytest.raises(StorageError, match=r"\.seg: offset \d+: the block of entry \d is damaged"):
        reader.batches(made[2].first_index, last.last_index, last.term, 100)
    with pytest.raises(StorageError, match="is damaged"):
        reader.batches(1, last.last_index, last.term, 1 << 20)
