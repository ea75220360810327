"""Snapshots between servers of a farm: to joining servers and to followers that were away."""

from collections.abc import Iterable

import pytest

from kelek.protocols.garlicfarm.server import membership
from kelek.protocols.garlicfarm.wire.messages import (
    FarmLogEntry,
    MessageType,
    Request,
    SnapshotSync,
    ValueType,
)
from kelek.protocols.garlicfarm.wire.values import encode_snapshot_sync
from kelek.tests.protocols.garlicfarm.farm_cluster import (
    FarmCluster,
    FarmRequester,
    client_request,
    server,
)
from kelek.tests.protocols.garlicfarm.server.test_peer import grow

STATE = bytes(range(256)) * 1000
BLOCK = 10_000


def filled(seed: int = 1) -> FarmCluster:
    cluster = FarmCluster(seed)
    for number in (1, 2, 3):
        cluster.kill(number)
        cluster.start(number, cluster.members, snapshot_block_bytes=BLOCK)
    for number in range(5):
        cluster.ask(client_request(*(b"%d.%d" % (number, at) for at in range(10))))
    return cluster


def is_same(cluster: FarmCluster, numbers: Iterable[int]) -> bool:
    """Whether all servers have the same commit index and members, and so the same log."""
    cores = [cluster.peers[number].core for number in numbers]
    return len({(core.commit_index, core.log.last_index) for core in cores}) == 1


@pytest.mark.parametrize("keep_entries", [0, 7])
def test_a_joining_server_gets_a_snapshot(keep_entries: int) -> None:
    """A SyncLog follows, as always."""
    cluster = filled()
    cluster.run(1000)
    for number in (1, 2, 3):
        mark = cluster.snapshot(number, STATE, keep_entries)
    cluster.ask(client_request(b"later"))
    grow(cluster, 4)
    assert cluster.disks[4].mark == mark
    assert cluster.disks[4].snapshot == STATE
    assert cluster.ask(client_request(b"last")).is_accepted
    cluster.run_until(lambda: is_same(cluster, (1, 2, 3, 4)))
    cluster.check_same()
    # It works like any other server, also
    cluster.kill(4)
    cluster.start(4)
    cluster.kill(cluster.elect())
    assert cluster.ask(client_request(b"very last")).is_accepted
    assert cluster.ids(4) == [1, 2, 3, 4]


def test_a_snapshot_of_nothing() -> None:
    cluster = FarmCluster(members=(1,))
    cluster.elect()
    cluster.snapshot(1, b"")
    grow(cluster, 2)
    assert cluster.disks[2].mark.last_index > 0


@pytest.mark.parametrize("seed", range(4))
def test_a_follower_that_was_away_gets_one(seed: int) -> None:
    """Also when the connection ends, a newer snapshot is made, or the follower is killed."""
    cluster = filled(seed)
    away = next(number for number in (1, 2, 3) if number != cluster.elect())
    cluster.kill(away)
    for number in range(3):
        cluster.ask(client_request(*(b"away %d.%d" % (number, at) for at in range(10))))
    for number in (1, 2, 3):
        if number != away:
            cluster.snapshot(number, STATE)
    cluster.start(away)
    for at in range(3):
        cluster.run(cluster.random.randint(20, 400))
        if at == 0:
            cluster.break_links()
        elif at == 1:
            cluster.ask(client_request(b"newer"))
            cluster.snapshot(cluster.elect(), STATE[::-1])
        else:
            cluster.kill(away)
            cluster.start(away)
    cluster.run_until(lambda: cluster.leader is not None and is_same(cluster, (1, 2, 3)))
    assert cluster.disks[away].mark.last_index >= 30
    assert cluster.disks[away].snapshot in (STATE, STATE[::-1])
    cluster.check_same()
    assert cluster.ask(client_request(b"more")).is_accepted


def test_answers_count_bytes() -> None:
    """The next index of an InstallSnapshotResponse is a byte offset. A chunk out of order is
    refused with 0 and the transfer restarts.
    """
    cluster = FarmCluster(members=(1,))
    cluster.start(4)
    leader = FarmRequester(cluster, 4)
    leader.send(
        Request(
            MessageType.JOIN_CLUSTER,
            *(1, 4, 5),
            entries=(FarmLogEntry(5, ValueType.CONFIGURATION, bytes(16)),),
        )
    )
    configuration = cluster.peers[1].directory.latest
    request = Request(MessageType.INSTALL_SNAPSHOT, 1, 4, 5, 5, 40, 40)
    for offset, done in ((0, False), (7, False), (100, False), (0, False), (7, False), (14, True)):
        sync = SnapshotSync(40, 5, configuration, offset, b"7 bytes", done)
        entry = FarmLogEntry(5, ValueType.SNAPSHOT_SYNC, encode_snapshot_sync(sync))
        leader.send(request._replace(entries=(entry,)))
    cluster.run_until(lambda: len(leader.answers) == 7)
    joined, *pieces = leader.answers
    assert (joined.next_index, joined.is_accepted) == (1, True)
    assert [(answer.next_index, answer.is_accepted) for answer in pieces] == [
        *[(7, True), (14, True), (0, False)],
        *[(7, True), (14, True), (21, True)],
    ]
    assert {answer.destination for answer in pieces} == {1}
    assert cluster.disks[4].snapshot == b"7 bytes" * 3
    assert cluster.peers[4].core.commit_index == 40
    assert cluster.ask(membership.add_server_request(server(9)), 4).destination == 1, (
        "it knows its leader"
    )
