"""A farm server's storage on the in-memory disk: kills, power losses, damage."""

from collections.abc import Callable
from random import Random

import pytest

from kelek.protocols.garlicfarm.server.values import FarmSnapshot
from kelek.protocols.garlicfarm.wire.entries import batches_of, configuration_batch
from kelek.protocols.garlicfarm.wire.messages import FarmConfiguration, FarmLogEntry, ValueType
from kelek.protocols.raft.membership import Configuration
from kelek.protocols.raft.messages import EntryBatch, HardState
from kelek.protocols.record import decode_block
from kelek.storage.errors import StorageError
from kelek.storage.farm.storage import SNAPSHOT, FarmStorage
from kelek.storage.log.segment import Identity
from kelek.tests.protocols.garlicfarm.farm_cluster import server
from kelek.tests.storage.memory_disk import Killed, MemoryDisk

MEMBERS = (server(1), server(2))
INITIAL = FarmConfiguration(0, 0, MEMBERS)
IDENTITY = Identity("farm", "1")
SEGMENT_BYTES = 8 << 10


def entries(first_index: int, term: int, *values: bytes) -> list[EntryBatch]:
    found = [FarmLogEntry(term, ValueType.APPLICATION, value) for value in values]
    return batches_of(first_index, found)


def opened(disk: MemoryDisk, epoch: int = 1, first: bool = False) -> FarmStorage:
    beginning = MEMBERS if first else ()
    return FarmStorage(disk.process(), IDENTITY, epoch, beginning, SEGMENT_BYTES)


def values_of(storage: FarmStorage) -> list[bytes]:
    """The values after the snapshot."""
    log = storage.recovered.log
    if log.last_index == log.base_index:
        return []
    term = log.last_term
    found = storage.batches(log.base_index + 1, log.last_index, term, 1 << 20)
    return [record.data for batch in found for record in decode_block(batch.block)[1]]


def test_what_was_kept_is_found_again() -> None:
    disk = MemoryDisk()
    storage = opened(disk, first=True)
    assert storage.recovered.is_member
    assert storage.recovered.log.configurations.last == Configuration(("1", "2"))
    configuration = FarmConfiguration(1, 0, (*MEMBERS, server(3)))
    storage.append([configuration_batch(1, 1, configuration), *entries(2, 1, b"a", b"b", b"c")])
    storage.append(entries(3, 2, b"B"))  # Replaces two entries.
    storage.save(HardState(2, "2"), True)
    disk.power_loss(Random(1))
    storage = opened(disk, 2, first=True)
    found = storage.recovered
    assert (found.hard_state, found.is_member) == (HardState(2, "2"), True)
    assert (found.log.last_index, found.log.last_term) == (3, 2)
    assert [index for index, _ in found.configurations] == [0, 1]
    assert found.configurations[1][1] == configuration
    assert found.log.configurations.last == Configuration(("1", "2", "3"))
    assert values_of(storage)[1:] == [b"a", b"B"]
    storage.close()


def test_an_entry_above_the_limit_of_clients_is_kept() -> None:
    """A leader of another implementation has committed it."""
    disk = MemoryDisk()
    storage = opened(disk, first=True)
    large = bytes(17 << 20)
    storage.append(entries(1, 1, b"a", large, b"b"))
    storage.save(HardState(1, ""), True)
    disk.power_loss(Random(1))
    storage = opened(disk, 2, first=True)
    assert storage.recovered.log.last_index == 3
    assert [record.data for record in decode_block(storage.batches(2, 3, 1, 1)[0].block)[1]] == [
        large
    ]
    storage.close()


def test_a_server_that_waits_is_no_member() -> None:
    disk = MemoryDisk()
    opened(disk).close()
    storage = opened(disk, 2, first=True)
    assert not storage.recovered.is_member, "its disk is not empty any more"
    storage.close()


def test_snapshots_are_kept() -> None:
    disk = MemoryDisk()
    storage = opened(disk, first=True)
    storage.append(entries(1, 1, *(b"%d" % number for number in range(10))))
    mark = FarmSnapshot(6, 1, INITIAL)
    storage.make_snapshot(mark, [b"one", b"", b"two"], keep_from_index=7)
    mark = mark._replace(size=6)
    assert storage.snapshot == mark
    assert storage.read_snapshot(mark, 2, 3) == b"etw"
    disk.power_loss(Random(1))
    storage = opened(disk, 2)
    assert storage.recovered.snapshot == mark
    assert storage.recovered.log.base_index == 6
    assert values_of(storage) == [b"6", b"7", b"8", b"9"]
    # A newer snapshot arrives.
    newer = FarmSnapshot(20, 3, FarmConfiguration(4, 0, MEMBERS[:1]), 5)
    storage.write_snapshot(0, b"false start")
    storage.write_snapshot(0, b"012")
    storage.write_snapshot(3, b"34")
    storage.install_snapshot(newer)
    assert storage.read_snapshot(mark, 0, 1) is None
    disk.power_loss(Random(1))  # Before the log was reset.
    storage = opened(disk, 3)
    assert storage.recovered.snapshot == newer
    assert storage.recovered.log.last_index == storage.recovered.log.base_index == 20
    storage.append(entries(21, 3, b"next"))
    assert storage.read_snapshot(newer, 0, 9)[:5] == b"01234"  # type: ignore[index]
    assert storage.batches(21, 21, 3, 100)
    storage.close()


def test_entries_below_a_snapshot_go() -> None:
    disk = MemoryDisk()
    storage = opened(disk, first=True)
    for number in range(20):
        storage.append(entries(number * 10 + 1, 1, *([bytes(200)] * 10)))
    before = sum(name.startswith("log/") for name in disk.names)
    mark = FarmSnapshot(200, 1, INITIAL)
    storage.make_snapshot(mark, [b"x"], keep_from_index=190)
    while storage.run_background_step():
        pass
    assert sum(name.startswith("log/") for name in disk.names) < before
    assert len(storage.batches(190, 200, 1, 1 << 20)) > 0
    storage.close()


@pytest.mark.parametrize("with_snapshot", [False, True])
def test_a_joining_server_starts_empty(with_snapshot: bool) -> None:
    disk = MemoryDisk()
    storage = opened(disk)
    storage.append(entries(1, 1, b"a", b"b", b"c"))
    if with_snapshot:
        storage.make_snapshot(FarmSnapshot(2, 1, INITIAL), [b"x"], 1)
    storage.reset(0, 0)
    disk.power_loss(Random(1))
    storage = opened(disk, 2)
    found = storage.recovered
    assert (found.log.last_index, found.snapshot.last_index) == (0, 0)
    storage.append(entries(1, 5, b"new"))
    disk.power_loss(Random(1))
    storage = opened(disk, 3)
    assert values_of(storage) == [b"new"]
    storage.close()


STORY: list[Callable[[FarmStorage], object]] = [
    lambda storage: storage.save(HardState(1, "1"), False),
    lambda storage: storage.append(entries(1, 1, b"a", b"b", b"c")),
    lambda storage: storage.append(entries(3, 2, b"C")),
    lambda storage: storage.make_snapshot(FarmSnapshot(2, 1, INITIAL), [b"12"], 3),
    lambda storage: storage.append(entries(4, 2, b"d")),
    lambda storage: storage.save(HardState(3, None), True),
    lambda storage: storage.write_snapshot(0, b"345"),
    lambda storage: storage.install_snapshot(FarmSnapshot(9, 3, INITIAL, 3)),
    lambda storage: storage.reset(9, 3),
    lambda storage: storage.append(entries(10, 3, b"e")),
    lambda storage: storage.reset(0, 0),
    lambda storage: storage.append(entries(1, 4, b"new")),
]


def state_of(storage: FarmStorage) -> tuple[object, ...]:
    found = storage.recovered
    log = found.log
    return (
        found.hard_state, found.is_member, found.snapshot[:2], log.base_index, log.last_index,
        log.last_term, tuple(values_of(storage)),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_a_kill_at_every_step_leaves_one_of_two_states(seed: int) -> None:
    """Each method's change is there completely or not at all, with all earlier changes."""
    random = Random(seed)
    states: list[tuple[object, ...]] = []
    for count in range(len(STORY) + 1):
        disk = MemoryDisk()
        storage = opened(disk)
        for step in STORY[:count]:
            step(storage)
        disk.crash()
        storage = opened(disk, 2)
        states.append(state_of(storage))
        storage.close()
    # An installed snapshot moves the log's base, also before the log is reset.
    assert states[8] == states[9]
    for count, step in enumerate(STORY):
        steps = 0
        while True:
            disk = MemoryDisk()
            storage = opened(disk)
            for before in STORY[:count]:
                before(storage)
            disk.kill_after(steps)
            try:
                step(storage)
            except Killed:
                done = False
            else:
                done = True
            disk.kill_after(None)
            disk.power_loss(random)
            storage = opened(disk, 2)
            allowed = [states[count + 1]] if done else [states[count], states[count + 1]]
            if count == 2:  # A new leader's entries replace conflicting ones first.
                allowed.append((*states[2][:4], 2, 1, (b"a", b"b")))
            if count == 10:  # The log is emptied first, then the snapshot removed.
                allowed += [states[9]]
            assert state_of(storage) in allowed, f"step {count}, killed after {steps}"
            storage.close()
            if done:
                break
            steps += 1


@pytest.mark.parametrize("at", [0, 3, 40, 60])
def test_a_damaged_snapshot_is_refused(at: int) -> None:
    disk = MemoryDisk()
    storage = opened(disk, first=True)
    storage.append(entries(1, 1, b"a", b"b"))
    storage.make_snapshot(FarmSnapshot(2, 1, INITIAL), [b"12345"], 3)
    storage.close()
    disk.flip(SNAPSHOT, 8 * at)
    with pytest.raises(StorageError, match="checksum"):
        opened(disk, 2)
    disk.cut(SNAPSHOT, 20)
    with pytest.raises(StorageError, match="20 bytes"):
        opened(disk, 3)


def test_a_damaged_log_is_refused() -> None:
    disk = MemoryDisk()
    storage = opened(disk, first=True)
    for number in range(1, 6):
        storage.append(entries(number, 1, b"value"))
    storage.close()
    name = next(name for name in disk.names if name.startswith("log/") and "spare" not in name)
    disk.flip(name, 8 * 4200)
    with pytest.raises(StorageError, match="add it again"):
        opened(disk, 2)
