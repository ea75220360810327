"""Farm servers on their real storage over the in-memory disk: killed at any step of it, also by
power loss, during joins and snapshots.
"""

from random import Random

import pytest

from kelek.protocols.garlicfarm.server import membership
from kelek.protocols.garlicfarm.server.values import FarmSnapshot, RecoveredFarm
from kelek.protocols.garlicfarm.wire.messages import ClusterServer
from kelek.protocols.raft.messages import KIND_STATE, EntryBatch
from kelek.protocols.record import decode_block
from kelek.storage.farm.storage import FarmStorage
from kelek.storage.log.segment import Identity
from kelek.tests.protocols.garlicfarm.farm_cluster import (
    FarmCluster,
    FarmDisk,
    FarmRequester,
    client_request,
    server,
)
from kelek.tests.storage.memory_disk import Killed, MemoryDisk

SEGMENT_BYTES = 8 << 10
STATE = bytes(range(256)) * 400
STORAGE_METHODS = (
    "save", "reset", "batches", "read_snapshot", "write_snapshot", "install_snapshot",
)  # fmt: skip


class DurableFarmDisk(FarmDisk):
    """A server's directory and disk, which outlive it."""

    def __init__(self, number: int, servers: tuple[ClusterServer, ...], random: Random) -> None:
        super().__init__(servers)
        self.memory = MemoryDisk()
        self._number, self._servers, self._random = number, servers, random
        self._epoch = 0
        self.storage: FarmStorage | None = None

    def recover(self) -> RecoveredFarm:
        """The machine loses power and restarts."""
        self.memory.kill_after(None)
        self.memory.power_loss(self._random)
        self._epoch += 1
        identity = Identity("farm", str(self._number))
        files = self.memory.process()
        self.storage = FarmStorage(files, identity, self._epoch, self._servers, SEGMENT_BYTES)
        for name in STORAGE_METHODS:
            setattr(self, name, getattr(self.storage, name))
        return self.storage.recovered

    def append(self, batches: list[EntryBatch]) -> None:
        assert self.storage is not None
        self.storage.append(batches)
        self.storage.run_background_step()


class KeptWorld(FarmCluster):
    """Servers that are killed by their disks."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        super().__init__(seed)
        self.deaths = (Killed,)

    def make_disk(self, number: int, servers: tuple[ClusterServer, ...]) -> FarmDisk:
        return DurableFarmDisk(number, servers, self.rng)

    def disk(self, number: int) -> DurableFarmDisk:
        disk = self.disks[number]
        assert isinstance(disk, DurableFarmDisk)
        return disk

    def storage(self, number: int) -> FarmStorage:
        storage = self.disk(number).storage
        assert storage is not None
        return storage

    def threaten(self, number: int) -> None:
        """Kills the server a few disk steps later."""
        self.disk(number).memory.kill_after(self.random.randrange(12))

    def revive(self) -> None:
        for number in set(self.disks) - set(self.peers):
            self.start(number)

    def elect(self) -> int:
        """Restarts killed servers, so that a majority runs."""
        for _ in range(20):
            self.revive()
            self.run_until(lambda: self.settled or len(self.peers) < len(self.disks), must=False)
            if self.settled:
                break
        return super().elect()

    def committed(self, number: int) -> dict[int, tuple[int, bytes]]:
        core = self.peers[number].core
        index = min(core.commit_index, core.durable_index)
        first, term = core.log.base_index + 1, core.log.term_at(index)
        assert term is not None
        return {
            batch.first_index + at: (record.kind, record.data)
            for batch in self.storage(number).batches(first, index, term, 1 << 30)
            for at, record in enumerate(decode_block(batch.block)[1])
        }

    def make_snapshot(self, number: int) -> None:
        peer = self.peers[number]
        index = min(peer.core.commit_index, peer.core.durable_index)
        term = peer.core.log.term_at(index)
        assert term is not None
        mark = FarmSnapshot(index, term, peer.directory.at(index))
        if index > peer.snapshot.last_index:
            self.storage(number).make_snapshot(mark, [STATE], index)
            peer.on_own_snapshot(self.storage(number).snapshot, keep_entries=0)


@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_lost_by_servers_that_are_killed(seed: int) -> None:
    """A server joins at the end, by entries or by a snapshot."""
    cluster = KeptWorld(seed)
    acknowledged: list[bytes] = []
    cluster.start(4)
    for number in range(16):
        leader = cluster.elect()
        if number % 4 == 3:
            cluster.threaten(leader)
            cluster.guarded(leader, lambda: cluster.make_snapshot(leader))  # noqa: B023
        else:
            cluster.threaten(cluster.random.choice(sorted(cluster.peers)))
        if leader not in cluster.peers:
            continue
        value = b"value %d" % number
        client, admin = FarmRequester(cluster, leader), FarmRequester(cluster, leader)
        client.send(client_request(value))
        if number > 6:
            admin.send(membership.add_server_request(server(4)))
        cluster.run(cluster.random.randint(20, 1500))
        acknowledged += [value for answer in client.answers if answer.is_accepted]
    cluster.revive()
    for number in cluster.disks:
        cluster.disk(number).memory.kill_after(None)

    def is_in() -> bool:
        leader = cluster.leader
        if leader is not None and 4 in cluster.ids(leader) and 4 in cluster.ids(4):
            return True
        if leader is not None and cluster.peers[leader].membership.change is None:
            FarmRequester(cluster, leader).send(membership.add_server_request(server(4)))
        return False

    cluster.run_until(is_in, 200_000)
    assert cluster.ask(client_request(b"last")).is_accepted
    cluster.run(5000)
    cluster.check_same()
    ends = {peer.core.commit_index for peer in cluster.peers.values()}
    assert len(ends) == 1
    assert len(acknowledged) > 3
    for number, peer in cluster.peers.items():
        if peer.core.log.base_index == 0:
            found = [
                data for kind, data in cluster.committed(number).values() if kind == KIND_STATE
            ]
            assert [
                value for value in dict.fromkeys(found) if value in acknowledged
            ] == acknowledged
        else:
            assert cluster.storage(number).snapshot == peer.snapshot
