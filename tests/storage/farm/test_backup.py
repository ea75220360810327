"""A farm's log, copied from one server and restored for others."""

from collections.abc import Iterator
from random import Random

import pytest

from kelek.protocols.garlicfarm.server.values import FarmSnapshot
from kelek.protocols.garlicfarm.wire.entries import configuration_batch
from kelek.protocols.garlicfarm.wire.messages import FarmConfiguration
from kelek.protocols.raft.membership import Configuration
from kelek.protocols.raft.messages import HardState
from kelek.storage.errors import StorageError
from kelek.storage.farm.backup import FarmCopy, fill_farm, read_farm
from kelek.storage.farm.storage import FarmStorage
from kelek.storage.log.segment import Identity
from kelek.storage.snapshot.backup import LogRange
from kelek.tests.protocols.garlicfarm.farm_cluster import server
from kelek.tests.storage.farm.test_storage import IDENTITY, MEMBERS, entries, opened, values_of
from kelek.tests.storage.memory_disk import MemoryDisk

SERVERS = (server(7), server(8), server(9))


@pytest.fixture
def running() -> Iterator[tuple[MemoryDisk, FarmStorage]]:
    """A server whose last two entries are not committed."""
    disk = MemoryDisk()
    storage = opened(disk, first=True)
    configuration = FarmConfiguration(1, 0, (*MEMBERS, server(3)))
    storage.append([configuration_batch(1, 1, configuration), *entries(2, 1, b"a", b"b", b"c")])
    storage.append(entries(5, 2, b"d", b"e", b"f"))
    storage.save(HardState(2, "2"), True)
    yield disk, storage
    storage.close()


def restored(copy: FarmCopy, number: int) -> FarmStorage:
    disk = MemoryDisk()
    identity = Identity("farm", str(number))
    fill_farm(disk.process(), identity, copy, SERVERS)
    disk.power_loss(Random(number))
    return FarmStorage(disk.process(), identity, 1, is_first_start=False)


@pytest.mark.parametrize("with_snapshot", [False, True])
def test_what_is_committed_is_restored_for_other_servers(
    running: tuple[MemoryDisk, FarmStorage], with_snapshot: bool
) -> None:
    disk, storage = running
    if with_snapshot:
        mark = FarmSnapshot(3, 1, FarmConfiguration(1, 0, MEMBERS))
        storage.make_snapshot(mark, [b"documents"], keep_from_index=3)
    copy = read_farm(disk.process(), IDENTITY, 5, 2)
    base = 3 if with_snapshot else 0
    assert copy.range == LogRange(base, base, 5, 2)
    copy = copy._replace(snapshot=iter([b"".join(copy.snapshot)]))
    found = restored(copy, 8)
    assert found.recovered.is_member
    assert found.recovered.hard_state == HardState(3)
    assert found.recovered.log.configurations.last == Configuration(("7", "8", "9"))
    (*_, (index, configuration)) = found.recovered.configurations
    assert (index, configuration) == (6, FarmConfiguration(6, 1, SERVERS))
    values = values_of(found)
    assert values[:-1] == ([b"c", b"d"] if with_snapshot else [*values[:1], b"a", b"b", b"c", b"d"])
    if with_snapshot:
        assert found.read_snapshot(found.snapshot, 0, 9) == b"documents"
    found.close()


def test_a_snapshot_beyond_the_committed_entry_is_enough(
    running: tuple[MemoryDisk, FarmStorage],
) -> None:
    disk, storage = running
    mark = FarmSnapshot(7, 2, FarmConfiguration(1, 0, MEMBERS))
    storage.make_snapshot(mark, [b"documents"], keep_from_index=8)
    copy = read_farm(disk.process(), IDENTITY, 5, 2)
    assert (copy.range, copy.batches) == (LogRange(7, 7, 7, 2), [])
    found = restored(copy, 7)
    assert found.recovered.log.last_index == 8
    found.close()


def test_a_server_without_the_committed_entry_is_refused(
    running: tuple[MemoryDisk, FarmStorage],
) -> None:
    """It lags behind, or has another entry at this index, which is not committed."""
    disk, _ = running
    for last in ((8, 2), (7, 3)):
        with pytest.raises(StorageError, match="is not in its log; it may lag"):
            read_farm(disk.process(), IDENTITY, *last)
