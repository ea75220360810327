"""A copied log: its writer continues it as if each entry had been appended."""

from contextlib import closing
from random import Random

import pytest

from kelek.protocols.errors import LocalProtocolError
from kelek.protocols.raft.messages import KIND_STATE, EntryBatch
from kelek.protocols.record import Record, encode_block
from kelek.storage.errors import StorageFull
from kelek.storage.log import log_copy
from kelek.storage.log.log import Log
from kelek.storage.log.log_copy import LogCopy
from kelek.storage.log.segment import Identity
from kelek.storage.log.verify import entries, verify
from kelek.tests.storage.memory_disk import MemoryDisk

ME = Identity("demo", "n1")
SMALL = 32 << 10  # Of a segment here.


def blocks(random: Random, first_index: int, count: int, term: int = 1) -> list[EntryBatch]:
    """Some are larger than a segment."""
    found = []
    for _ in range(count):
        number, size = random.choice(((1, 3 * SMALL), (40, 300), (3, 20), (1, 0)))
        records = [Record(KIND_STATE, None, random.randbytes(size)) for _ in range(number)]
        found.append(encode_block(first_index, term, records))
        first_index += number
        term += random.random() < 0.2
    return found


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_copy, "SEGMENT_BYTES", SMALL)
    monkeypatch.setattr(log_copy, "PIECE_BYTES", 2000)


@pytest.mark.parametrize("seed", range(8))
def test_a_log_goes_on_after_a_copy(seed: int) -> None:
    random = Random(seed)
    base = (0, 0) if seed % 2 else (20, 2)
    disk = MemoryDisk()
    files = disk.process()
    batches = blocks(random, base[0] + 1, random.choice((0, 1, 30, 60)), base[1] + 1)
    with closing(LogCopy(files, ME, base)) as copy:
        for batch in batches:
            copy.append(batch)
        copy.finish()
    disk.power_loss(random)  # It was durable.
    files = disk.process()
    report = verify(files)
    assert not [finding for finding in report.findings if "missing" not in finding.problem]
    assert report.closed
    log = Log(files, ME, epoch=1, segment_bytes=SMALL, base=base)
    last = batches[-1] if batches else None
    assert log.first_index == base[0] + 1
    assert (log.last_index, log.last_term) == ((last.last_index, last.term) if last else base)
    more = blocks(random, log.last_index + 1, 5, log.last_term)
    for batch in more:
        log.append(log.last_index, log.last_term, [batch.block])
    log.sync()
    disk.crash()
    files = disk.process()
    again = Log(files, ME, epoch=2, segment_bytes=SMALL, base=base)
    assert (again.last_index, again.last_term) == (more[-1].last_index, more[-1].term)
    again.close()
    found = [(entry.index, entry.term, len(entry.data)) for entry in entries(files, ME)]
    assert [index for index, _, _ in found] == list(range(base[0] + 1, again.last_index + 1))
    at = {batch.first_index: batch.term for batch in (*batches, *more)}
    assert at.items() <= {index: term for index, term, _ in found}.items()


def test_it_takes_entries_in_order_only() -> None:
    with closing(LogCopy(MemoryDisk().process(), ME)) as copy:
        first, second, *_ = blocks(Random(1), 1, 3, 4)
        for wrong in (second, encode_block(first.last_index + 1, 3, [Record(0, None, b"")])):
            if wrong is not second:
                copy.append(first)
            with pytest.raises(LocalProtocolError, match="does not follow entry"):
                copy.append(wrong)


def test_a_full_disk_refuses() -> None:
    disk = MemoryDisk(bytes_max=2 * SMALL)
    large = [encode_block(1 + at, 1, [Record(0, None, bytes(SMALL))]) for at in range(3)]
    with closing(LogCopy(disk.process(), ME)) as copy:
        copy.append(large[0])
        with pytest.raises(StorageFull):
            copy.append(large[1])
