"""The log and the hard state through random appends, conflicts, crashes, power losses, failed syncs
and full disks: what was acknowledged is never lost, nothing that was never written appears."""

from contextlib import suppress
from random import Random

import pytest

from kelek.protocols.raft.messages import HardState
from kelek.protocols.record import Record, decode_block, encode_block
from kelek.storage.errors import StorageError, StorageFull
from kelek.storage.log.hard_state import HardStateFile
from kelek.storage.log.log import Log
from kelek.storage.log.reader import LogReader
from kelek.storage.log.segment import Identity
from kelek.tests.storage.memory_disk import Killed, MemoryDisk

ME = Identity("demo", "n1")
SEGMENT_BYTES = 16 << 10
Entry = tuple[int, bytes]  # Term and data.


class FaultyMachine:
    """One peer's log on a faulty disk, and a model of its contents."""

    def __init__(self, seed: int, background_sync: bool) -> None:
        self.random = Random(seed)
        self.disk = MemoryDisk()
        self.background_sync = background_sync
        self.epoch = 0
        self.acked: list[Entry] = []  # Reported as durable.
        self.states: list[list[Entry]] = [
            []
        ]  # Permitted contents: acked, and after each later block.
        self.serial = 0
        self.reading = self.disk.process()  # Of another process, which outlives the writer.
        self.reader = LogReader(self.reading, ME)
        self.restart()

    def restart(self) -> None:
        self.epoch += 1
        self.files = self.disk.process()
        self.files.slow = self.random
        self.syncing: list[Entry] | None = None  # The contents after the running background sync.
        if not self.reading.alive:
            self.reading = self.disk.process()
            self.reader = LogReader(self.reading, ME)
        self.log = Log(
            self.files,
            ME,
            epoch=self.epoch,
            segment_bytes=SEGMENT_BYTES,
            background_sync=self.background_sync,
        )
        held = self.held()
        assert held in self.states
        assert self.log.last_index == len(held)
        assert self.log.last_term == (held[-1][0] if held else 0)
        self.acked, self.states = held, [held]

    def held(self) -> list[Entry]:
        entries: list[Entry] = []
        for batch in LogReader(self.files, ME).scan():
            assert batch.first_index == len(entries) + 1
            entries += [(batch.term, record.data) for record in decode_block(batch.block)[1]]
        return entries

    def append(self) -> None:
        try:
            self.append_some()
        finally:
            if not self.log.syncing:  # append() has waited for a running sync.
                self.synced()

    def synced(self) -> None:
        """A background sync has ended, if one ran."""
        if self.syncing is not None:
            self.acked, self.syncing = self.syncing, None
            while self.states[0] is not self.acked:
                del self.states[0]

    def append_some(self) -> None:
        random, entries = self.random, list(self.states[-1])
        prev_index = len(entries)
        if prev_index > 0 and random.random() < 0.1:
            prev_index = random.randrange(max(0, prev_index - 20), prev_index)
        prev_term = entries[prev_index - 1][0] if prev_index else 0
        term = max([prev_term, 1, *(term for term, _ in entries)])
        term += prev_index < len(entries) or random.random() < 0.1
        blocks, states, entries = [], [], entries[:prev_index]
        if prev_index < len(self.states[-1]):
            states.append(entries)
        for _ in range(random.randint(1, 3)):
            records = [self.record() for _ in range(random.randint(1, 5))]
            blocks.append(encode_block(len(entries) + 1, term, records).block)
            entries = entries + [(term, record.data) for record in records]
            states.append(entries)
        try:
            self.log.append(prev_index, prev_term, blocks)
        except StorageFull:
            assert self.log.last_index == len(self.states[-1])
        except (StorageError, Killed):
            self.states += states
            raise
        else:
            self.states += states

    def record(self) -> Record:
        self.serial += 1
        size = self.random.choice((1, 20, 700, 3000))
        filler = self.random.choice((b"\0", b"x"))
        # The request id has a purpose: a lost sector with a single set bit would look like a
        # flipped bit, and be refused.
        return Record(0, b"request%05d" % self.serial, (b"%d" % self.serial).ljust(size, filler))

    def sync(self) -> None:
        if self.background_sync and self.syncing is None and self.random.random() < 0.5:
            self.syncing = self.states[-1]
            if not self.log.start_sync():
                return
        elif self.background_sync and self.random.random() < 0.7:
            if not self.log.poll_sync():
                return
        else:
            self.log.sync()
            self.syncing = self.states[-1]
        self.synced()

    def fail_sync(self) -> None:
        self.disk.fail_sync()
        with pytest.raises(StorageError, match="EIO"):  # noqa: PT012
            self.append()
            self.append()
            self.log.sync()
        for again in (self.log.sync, self.append, self.log.background_step):
            with pytest.raises(StorageError, match="nothing is written after"):
                again()
        self.disk.fail_sync(0)
        self.disk.crash()
        self.restart()

    def crash(self) -> None:
        """Kills the writer, or all processes."""
        self.random.choice((self.files.crash, self.disk.crash))()
        self.states = self.states[-1:]
        self.restart()

    def power_loss(self) -> None:
        self.disk.power_loss(self.random)
        self.restart()

    def killed(self) -> None:
        """A kill at any step, also in the next recovery, sometimes with a power loss."""
        self.disk.kill_after(self.random.randrange(12))
        with suppress(Killed):
            while True:
                self.append()
                self.log.sync()
                self.acked, self.states = self.states[-1], self.states[-1:]
                self.idle()
        for _ in range(self.random.randrange(3)):
            if self.random.random() < 0.5:
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
        self.acked, self.states = self.states[-1], self.states[-1:]
        if self.random.random() < 0.5:
            self.disk.power_loss(self.random)
        self.restart()

    def idle(self) -> None:
        self.log.background_step()

    def read(self) -> None:
        """A long-lived reader gets the current contents of the log."""
        entries = self.states[-1]
        if not entries:
            return
        last_index = self.random.randint(1, len(entries))
        first_index = index = self.random.randint(max(1, last_index - 30), last_index)
        bytes_max = self.random.choice((1, 3000, 1 << 20))
        found = self.reader.batches(first_index, last_index, entries[last_index - 1][0], bytes_max)
        assert found
        for batch in found:
            assert batch.first_index == index
            index = batch.last_index + 1
            held = [(batch.term, record.data) for record in decode_block(batch.block)[1]]
            assert held == entries[batch.first_index - 1 : batch.last_index]
        assert index <= last_index + 1
        assert not self.reader.batches(first_index, last_index, 1 << 40, bytes_max)

    def fill(self) -> None:
        """The disk is full for a while."""
        self.disk.bytes_max = 0
        for _ in range(self.random.randint(1, 10)):
            self.append()
            self.idle()
        if self.log.lacks_space:
            with pytest.raises(StorageFull):
                self.log.append(self.log.last_index, self.log.last_term, [])
        self.disk.bytes_max = 1 << 40
        self.append()
        assert not self.log.lacks_space

    def run(self, steps: int) -> None:
        weights = {
            self.append: 30, self.sync: 12, self.idle: 10, self.read: 30, self.crash: 2,
            self.power_loss: 4, self.fail_sync: 2, self.killed: 4, self.close: 2, self.fill: 1,
        }  # fmt: skip
        for step in self.random.choices(list(weights), list(weights.values()), k=steps):
            step()


@pytest.mark.parametrize("background_sync", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_no_acknowledged_entry_is_lost(seed: int, background_sync: bool) -> None:
    machine = FaultyMachine(seed, background_sync)
    machine.run(200)
    machine.power_loss()


@pytest.mark.parametrize("seed", range(40))
def test_no_vote_is_forgotten(seed: int) -> None:
    random, disk = Random(seed), MemoryDisk()
    acked = asked = HardState()
    for term in range(1, 60):
        if random.random() < 0.5:
            disk.kill_after(random.randrange(15))
        try:
            file = HardStateFile(disk.process(), ME)
            assert not file.withheld
            assert file.state in (acked, asked)
            acked = asked = file.state  # From now on other peers may know it.
            for vote in range(random.randint(0, 3)):
                asked = HardState(term, f"n{vote}")
                if random.random() < 0.3:
                    disk.fail_sync()
                    for _ in range(2):
                        with pytest.raises(StorageError):
                            file.save(asked)
                    disk.fail_sync(0)
                    break
                file.save(asked)
                acked = asked
        except Killed:
            pass
        disk.kill_after(None)
        disk.fail_sync(0)
        if random.random() < 0.5:
            disk.power_loss(random)
        else:
            disk.crash()


@pytest.mark.parametrize("steps", range(30))
def test_killed_at_every_step_of_the_first_start(steps: int) -> None:
    """The next start makes files durable before it depends on them."""
    for seed in range(8):
        random, disk = Random(seed), MemoryDisk()
        disk.kill_after(steps)
        with suppress(Killed):
            HardStateFile(disk.process(), ME).close()
            Log(disk.process(), ME, epoch=1, segment_bytes=SEGMENT_BYTES)
        disk.kill_after(None)
        disk.crash()
        file = HardStateFile(disk.process(), ME)
        file.save(HardState(7, "n2"))
        log = Log(disk.process(), ME, epoch=2, segment_bytes=SEGMENT_BYTES)
        log.append(0, 0, [encode_block(1, 7, [Record(0, None, b"x")]).block])
        log.sync()
        disk.power_loss(random)
        assert HardStateFile(disk.process(), ME).state == HardState(7, "n2")
        log = Log(disk.process(), ME, epoch=3, segment_bytes=SEGMENT_BYTES)
        assert (log.last_index, log.last_term) == (1, 7)


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("bit", [0, 40, 64, 128, 200, 4095, 4096, 32767])
def test_a_damaged_slot_withholds_the_vote(number: int, bit: int) -> None:
    disk = MemoryDisk()
    file = HardStateFile(disk.process(), ME)
    for term in range(1, 8):
        file.save(HardState(term, "n2"))
    disk.crash()
    disk.flip("hard_state", number * 4096 * 8 + bit)
    for _ in range(3):  # Through restarts and new terms, until it is cleared.
        file = HardStateFile(disk.process(), ME)
        assert file.withheld
        assert file.state.term >= 6
        file.save(HardState(file.state.term + 1, None))
        disk.crash()
    file = HardStateFile(disk.process(), ME)
    file.withheld = False
    file.save(HardState(file.state.term + 1, None))
    disk.crash()
    assert not HardStateFile(disk.process(), ME).withheld


@pytest.mark.parametrize("number", [1, 2])
def test_every_flip_of_a_slot_is_detected(number: int) -> None:
    disk = MemoryDisk()
    file = HardStateFile(disk.process(), ME)
    file.save(HardState(1, "n2"))
    file.save(HardState(2, "n3"))
    disk.crash()
    inode = disk.names["hard_state"]
    before = bytes(inode.cache)
    for bit in (*range(40 * 8), *range(40 * 8, 4096 * 8, 61)):
        disk.flip("hard_state", number * 4096 * 8 + bit)
        assert HardStateFile(disk.process(), ME).withheld
        disk.crash()
        inode.cache[:] = inode.disk[:] = before


def test_every_cut_of_the_hard_state_is_refused() -> None:
    disk = MemoryDisk()
    HardStateFile(disk.process(), ME).save(HardState(1, "n2"))
    disk.crash()
    for size in range(3 * 4096 - 1, -1, -7):
        disk.cut("hard_state", size)
        with pytest.raises(StorageError, match=r"found \d+|has \d+ of"):
            HardStateFile(disk.process(), ME)


def test_both_slots_damaged() -> None:
    disk = MemoryDisk()
    file = HardStateFile(disk.process(), ME)
    file.save(HardState(1, "n2"))
    file.save(HardState(2, "n2"))
    disk.crash()
    for number in (1, 2):
        disk.flip("hard_state", number * 4096 * 8)
    file = HardStateFile(disk.process(), ME)
    assert (file.withheld, file.empty) == (True, False)


def test_a_damaged_identity_is_refused() -> None:
    disk = MemoryDisk()
    HardStateFile(disk.process(), ME).close()
    for bit in range(4096 * 8):
        disk.flip("hard_state", bit)
        with pytest.raises(StorageError):
            HardStateFile(disk.process(), ME)
        disk.flip("hard_state", bit)
