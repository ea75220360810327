"""Compaction, and logs that restart after a snapshot: single steps, then random steps against a
model, with crashes and power losses."""

from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from random import Random

import pytest

from kelek.native.log.updates import Reqids
from kelek.protocols.raft.messages import EntryBatch
from kelek.protocols.record import Record, decode_block, encode_block
from kelek.protocols.zmqraft.wire.config_codec import ConfigEntry, encode_config_entry
from kelek.storage.disk.disk import Disk
from kelek.storage.disk.files import Files
from kelek.storage.errors import Damaged, StorageFull
from kelek.storage.log.log import Log
from kelek.storage.log.peer_recovery import PeerFiles, RecoverySettings, recover_peer
from kelek.storage.log.reader import LogReader
from kelek.storage.log.recovery import recover
from kelek.storage.log.segment import Identity
from kelek.storage.snapshot.snapshot import Snapshots, newest
from kelek.storage.snapshot.work import ReqidLimits
from kelek.tests.storage.memory_disk import Killed, MemoryDisk

ME = Identity("demo", "n1")
MEMBERS = (("n1", "tcp://127.0.0.1:7201"),)
SEGMENT_BYTES = 16 << 10


def batch(first_index: int, count: int = 1, term: int = 1, size: int = 64) -> EntryBatch:
    data = [b"%d:%d" % (term, first_index + i) for i in range(count)]
    return encode_block(first_index, term, [Record(0, None, one.ljust(size)) for one in data])


def opened(files: Files, base: tuple[int, int] = (0, 0), epoch: int = 1) -> Log:
    return Log(files, ME, epoch=epoch, segment_bytes=SEGMENT_BYTES, base=base)


def filled(files: Files, last_index: int) -> Log:
    """Ten entries a batch, about a hundred a segment."""
    log = opened(files)
    for first_index in range(1, last_index, 10):
        log.append(first_index - 1, log.last_term, [batch(first_index, 10, size=120).block])
        log.sync()
    return log


def segments(files: Files) -> list[str]:
    return [name for name in files.names("log") if name.endswith(".seg")]


def rest(log: Log) -> None:
    while log.background_step():
        pass


@pytest.fixture(params=["disk", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Files]:
    """Opens the same data directory as a new process at each call."""
    if request.param == "disk":
        return lambda: Disk(tmp_path / "data")
    return MemoryDisk().process


def test_a_peer_starts_where_its_writer_does(place: Callable[[], Files]) -> None:
    """The writer removes old segments that the snapshot includes: the peer must not offer them to
    followers."""
    files = place()
    filled(files, 600).close()
    with closing(Snapshots(files, ME)) as snapshots:
        snapshots.create(450, 1, encode_config_entry(ConfigEntry(MEMBERS))).finish()
    log = opened(place(), (450, 1), epoch=2)
    known = RecoverySettings(ReqidLimits(1000, 1000), dict(MEMBERS), {})
    before = recover_peer(PeerFiles(place(), ME), LogReader(place(), ME), Reqids(), known)
    assert before.log.base_index == log.first_index - 1 > 0
    assert (before.log.last_index, before.snapshot.last_index, before.reset) == (600, 450, False)
    rest(log)
    after = recover_peer(PeerFiles(place(), ME), LogReader(place(), ME), Reqids(), known)
    assert (after.log.base_index, after.log.runs) == (before.log.base_index, before.log.runs)


def test_compaction_removes_whole_segments(place: Callable[[], Files]) -> None:
    files = place()
    log = filled(files, 600)
    reader = LogReader(place(), ME)
    assert reader.base() == (0, 0)
    assert reader.batches(1, 600, 1, 1)[0].first_index == 1
    before = segments(files)
    firsts = [int(name[17:33], 16) for name in before]
    assert len(firsts) > 4
    log.compact(firsts[2] - 2)
    assert log.first_index == firsts[1], "what holds an entry behind the index stays as it is"
    log.compact(firsts[2] - 1)
    assert (log.first_index, log.last_index) == (firsts[2], 600)
    assert log.term_at(firsts[2] - 1) == log.term_at(600) == 1
    assert log.term_at(firsts[2] - 2) is None
    log.compact(5)
    assert log.first_index == firsts[2]
    rest(log)
    assert segments(files) == before[2:]
    reader.close()
    assert reader.batches(1, 600, 1, 100) == []
    assert reader.base() == (firsts[2] - 1, 1)
    assert reader.base(firsts[3] - 2) == (firsts[2] - 1, 1)
    assert reader.base(firsts[3] - 1) == (firsts[3] - 1, 1), "a writer opened so drops the rest"
    assert reader.base(10_000) == (firsts[-1] - 1, 1)
    assert reader.batches(firsts[2], 600, 1, 1)[0].first_index == firsts[2]
    log.compact(600)
    rest(log)
    assert segments(files) == before[-1:], "the active one stays"
    log.append(600, 1, [batch(601, 2, 2).block])
    log.close()
    with pytest.raises(Damaged, match="expected entry 1 in the first segment, found"):
        recover(files, ME)
    log = opened(files, (600, 1))
    assert (log.first_index, log.last_index, log.runs) == (firsts[-1], 602, [(601, 2)])
    entries = LogReader(files, ME)
    assert [one.first_index for one in entries.scan(600)] == [600, 601]
    assert next(entries.scan()).first_index == firsts[-1]
    assert list(entries.scan(603)) == []
    log.close()


def test_a_log_restarts_after_a_snapshot(place: Callable[[], Files]) -> None:
    files = place()
    log = filled(files, 300)
    reader = LogReader(place(), ME)
    assert reader.batches(1, 300, 1, 100)
    log.reset(300, 1)
    log.reset(200, 1)
    assert (log.first_index, log.last_index) == (1, 300), "it holds these entries"
    for index, term in [(1000, 7), (1000, 8)]:
        log.reset(index, term)
        assert (log.first_index, log.last_index) == (index + 1, index)
        assert (log.last_term, log.term_at(log.first_index - 1), log.runs) == (term, term, [])
        assert reader.batches(1, index, term, 100) == []
    log.append(1000, 8, [batch(1001, 3, 8).block])
    log.sync()
    assert reader.batches(1001, 1003, 8, 100) == [batch(1001, 3, 8)]
    assert reader.batches(250, 1003, 8, 100) == [], "there is a gap before 1001"
    reader.close()
    assert reader.base() == (1000, 8)
    rest(log)
    assert len(segments(files)) == 1
    log.reset(90, 2)  # The replacement of a damaged snapshot may be older.
    rest(log)
    assert (log.first_index, log.last_index, len(segments(files))) == (91, 90, 1)
    log.close()
    log = opened(files, (90, 2))
    assert (log.first_index, log.last_index, log.last_term) == (91, 90, 2)
    log.close()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("base", [(301, 1), (150, 2), (1000, 9)])
def test_a_start_finds_a_snapshot_that_the_log_lacks(
    place: Callable[[], Files], base: tuple[int, int], clean: bool
) -> None:
    """The snapshot was renamed, then every process died."""
    files = place()
    log = filled(files, 300)
    if clean:
        log.close()
    else:
        log.lock_file.close()
    for epoch in (2, 3):
        log = opened(files, base, epoch)
        assert (log.first_index, log.last_index, log.last_term) == (base[0] + 1, *base)
        log.lock_file.close()
    log = opened(files, base, 4)
    rest(log)
    assert len(segments(files)) == 1
    log.close()


def test_recovery_skips_segments_that_a_snapshot_includes(place: Callable[[], Files]) -> None:
    """Such a segment may be removed or damaged."""
    files = place()
    log = filled(files, 600)
    log.close()
    names = segments(files)
    files.remove(f"log/{names[1]}")
    broken = files.open(f"log/{names[2]}", writable=True)
    assert broken is not None
    broken.write(5000, [b"junk"])
    broken.close()
    first_index = int(names[3][17:33], 16)
    with pytest.raises(Damaged):
        recover(files, ME, first_index - 2)
    log = opened(files, (first_index - 1, 1))
    assert (log.first_index, log.last_index) == (first_index, 600)
    rest(log)
    assert segments(files)[0] == names[3]
    log.close()


def test_a_restarted_log_needs_its_snapshot(place: Callable[[], Files]) -> None:
    files = place()
    log = filled(files, 100)
    log.reset(200, 3)
    log.close()
    for base_index in (0, 199):
        with pytest.raises(Damaged, match="in the first segment, found 201"):
            recover(files, ME, base_index)


def test_a_full_disk_keeps_the_old_log() -> None:
    disk = MemoryDisk()
    log = filled(disk.process(), 300)
    disk.bytes_max = 0
    with pytest.raises(StorageFull):
        log.reset(1000, 2)
    assert (log.first_index, log.last_index) == (1, 300)
    disk.bytes_max = 1 << 40
    log.append(300, 1, [batch(301).block])
    log.reset(1000, 2)
    assert log.last_index == 1000
    log.close()


Entry = tuple[int, bytes]  # Term and data.


class CompactionMachine:
    """One peer's log and snapshots on a faulty disk, and a model of their contents."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk = MemoryDisk()
        self.epoch = 0
        self.entries: list[Entry] = []  # b"" if only a received snapshot includes it.
        self.sure = 0  # The durable index.
        self.base = 0, 0
        self.arriving: tuple[int, int] | None = None
        self.installed = self.compacted = 0
        self.reading = self.disk.process()
        self.reader = LogReader(self.reading, ME)
        self.restart()

    def restart(self) -> None:
        self.epoch += 1
        self.files = self.disk.process()
        if not self.reading.alive:
            self.reading = self.disk.process()
            self.reader = LogReader(self.reading, ME)
        info = newest(self.files, ME)
        base = (info.index, info.term) if info else (0, 0)
        assert base == self.arriving or base[0] >= self.base[0]
        if base == self.arriving:
            self.install(base)
        self.arriving, self.base = None, base
        self.log = opened(self.files, base, self.epoch)
        held: list[Entry] = []
        for one in LogReader(self.files, ME).scan(base[0] + 1):
            assert one.first_index == base[0] + len(held) + 1
            held += [(one.term, record.data) for record in decode_block(one.block)[1]]
        last_index = base[0] + len(held)
        assert self.log.last_index == last_index
        assert self.log.term_at(base[0]) == base[1]
        assert self.sure <= last_index
        assert held == self.entries[base[0] : last_index]
        self.entries, self.sure = self.entries[:last_index], last_index

    def install(self, base: tuple[int, int]) -> None:
        index, term = base
        self.entries, self.sure, self.base = [(term, b"")] * index, index, base
        self.installed += 1

    def append(self) -> None:
        prev_index, prev_term = self.log.last_index, self.log.last_term
        term = prev_term + (self.random.random() < 0.1) or 1
        count = self.random.randint(1, 30)
        one = batch(prev_index + 1, count, term, self.random.choice((10, 200, 500)))
        self.entries += [(term, record.data) for record in decode_block(one.block)[1]]
        self.log.append(prev_index, prev_term, [one.block])

    def cut(self) -> None:
        """A conflict, never below the durable index, as a snapshot may include entries up to it."""
        index = self.random.randint(self.sure, self.log.last_index)
        term = self.log.last_term + 1
        one = batch(index + 1, 2, term)
        prev_term = self.log.term_at(index)
        assert prev_term is not None
        self.log.sync()  # So that the model has a single history.
        del self.entries[index:]
        self.entries += [(term, record.data) for record in decode_block(one.block)[1]]
        self.log.append(index, prev_term, [one.block])
        self.log.sync()

    def sync(self) -> None:
        self.log.sync()
        self.sure = self.log.last_index

    def compact(self) -> None:
        index = self.random.randint(self.base[0], self.sure)
        term = self.log.term_at(index)
        assert term is not None
        snapshots = Snapshots(self.disk.process(), ME)
        snapshots.create(index, term, b"").finish()
        snapshots.close()
        self.base = index, term
        first_index = self.log.first_index
        self.log.compact(index)
        self.compacted += self.log.first_index > first_index

    def receive(self) -> None:
        """Installs another peer's snapshot of missing or conflicting entries."""
        index = self.random.randint(self.base[0] + 1, self.log.last_index + 50)
        index = max(index, self.sure)
        base = self.arriving = index, self.log.last_term + 1
        snapshots = Snapshots(self.disk.process(), ME)
        snapshots.create(*base, b"").finish()
        snapshots.close()
        self.log.reset(*base)
        self.install(base)
        self.arriving = None

    def idle(self) -> None:
        self.log.background_step()

    def read(self) -> None:
        if self.log.last_index == self.base[0]:
            return
        last_index = self.random.randint(self.base[0] + 1, self.log.last_index)
        first_index = self.random.randint(max(1, last_index - 300), last_index)
        last_term = self.entries[last_index - 1][0]
        found = self.reader.batches(first_index, last_index, last_term, 3000)
        if not found:
            assert first_index <= self.reader.base()[0]
            return
        for one in found:
            held = [(one.term, record.data) for record in decode_block(one.block)[1]]
            assert held == self.entries[one.first_index - 1 : one.last_index]

    def crash(self) -> None:
        self.random.choice((self.files.crash, self.disk.crash))()
        self.restart()

    def power_loss(self) -> None:
        self.disk.power_loss(self.random)
        self.restart()

    def killed(self) -> None:
        """A kill at any step, also in the next recovery, mostly with a power loss."""
        step = self.random.choice((self.compact, self.receive, self.idle, self.append))
        self.disk.kill_after(self.random.randrange(20))
        with suppress(Killed):
            step()
            while True:
                self.idle()
                self.sync()
                self.append()
        for _ in range(self.random.randrange(3)):
            if self.random.random() < 0.7:
                self.disk.power_loss(self.random)
            self.disk.kill_after(self.random.randrange(20))
            try:
                self.restart()
            except Killed:
                continue
            break
        self.disk.kill_after(None)
        self.power_loss()

    def close(self) -> None:
        self.log.close()
        self.sure = len(self.entries)
        self.power_loss()

    def run(self, steps: int) -> None:
        weights = {
            self.append: 30, self.cut: 4, self.sync: 12, self.compact: 8, self.receive: 3,
            self.idle: 15, self.read: 25, self.crash: 2, self.power_loss: 3, self.killed: 4,
            self.close: 2,
        }  # fmt: skip
        for step in self.random.choices(list(weights), list(weights.values()), k=steps):
            step()


@pytest.mark.parametrize("seed", range(40))
def test_no_durable_entry_is_lost_and_no_other_appears(seed: int) -> None:
    machine = CompactionMachine(seed)
    machine.run(200)
    machine.power_loss()
    assert machine.installed > 0
    assert machine.compacted > 0
