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
from kelek.tests.protocols.garlicfarm.farm_world import (
    Client,
    World,
    client_request,
    server,
)
from kelek.tests.protocols.garlicfarm.server.test_peer import grow

STATE = bytes(range(256)) * 1000
BLOCK = 10_000


def filled(seed: int = 1) -> World:
    world = World(seed)
    for number in (1, 2, 3):
        world.kill(number)
        world.start(number, world.members, snapshot_block_bytes=BLOCK)
    for number in range(5):
        world.ask(client_request(*(b"%d.%d" % (number, at) for at in range(10))))
    return world


def is_same(world: World, numbers: Iterable[int]) -> bool:
    """Whether all servers have the same commit index and members, and so the same log."""
    cores = [world.peers[number].core for number in numbers]
    return len({(core.commit_index, core.log.last_index) for core in cores}) == 1


@pytest.mark.parametrize("keep_entries", [0, 7])
def test_a_joining_server_gets_a_snapshot(keep_entries: int) -> None:
    """A SyncLog follows, as always."""
    world = filled()
    world.run(1000)
    for number in (1, 2, 3):
        mark = world.snapshot(number, STATE, keep_entries)
    world.ask(client_request(b"later"))
    grow(world, 4)
    assert world.disks[4].mark == mark
    assert world.disks[4].snapshot == STATE
    assert world.ask(client_request(b"last")).is_accepted
    world.run_until(lambda: is_same(world, (1, 2, 3, 4)))
    world.check_same()
    # It works like any other server, also
    world.kill(4)
    world.start(4)
    world.kill(world.elect())
    assert world.ask(client_request(b"very last")).is_accepted
    assert world.ids(4) == [1, 2, 3, 4]


def test_a_snapshot_of_nothing() -> None:
    world = World(members=(1,))
    world.elect()
    world.snapshot(1, b"")
    grow(world, 2)
    assert world.disks[2].mark.last_index > 0


@pytest.mark.parametrize("seed", range(4))
def test_a_follower_that_was_away_gets_one(seed: int) -> None:
    """Also when the connection ends, a newer snapshot is made, or the follower is killed."""
    world = filled(seed)
    away = next(number for number in (1, 2, 3) if number != world.elect())
    world.kill(away)
    for number in range(3):
        world.ask(client_request(*(b"away %d.%d" % (number, at) for at in range(10))))
    for number in (1, 2, 3):
        if number != away:
            world.snapshot(number, STATE)
    world.start(away)
    for at in range(3):
        world.run(world.random.randint(20, 400))
        if at == 0:
            world.break_links()
        elif at == 1:
            world.ask(client_request(b"newer"))
            world.snapshot(world.elect(), STATE[::-1])
        else:
            world.kill(away)
            world.start(away)
    world.run_until(lambda: world.leader is not None and is_same(world, (1, 2, 3)))
    assert world.disks[away].mark.last_index >= 30
    assert world.disks[away].snapshot in (STATE, STATE[::-1])
    world.check_same()
    assert world.ask(client_request(b"more")).is_accepted


def test_answers_count_bytes() -> None:
    """The next index of an InstallSnapshotResponse is a byte offset. A chunk out of order is
    refused with 0 and the transfer restarts.
    """
    world = World(members=(1,))
    world.start(4)
    leader = Client(world, 4)
    leader.send(
        Request(
            MessageType.JOIN_CLUSTER,
            *(1, 4, 5),
            entries=(FarmLogEntry(5, ValueType.CONFIGURATION, bytes(16)),),
        )
    )
    configuration = world.peers[1].directory.latest
    request = Request(MessageType.INSTALL_SNAPSHOT, 1, 4, 5, 5, 40, 40)
    for offset, done in ((0, False), (7, False), (100, False), (0, False), (7, False), (14, True)):
        sync = SnapshotSync(40, 5, configuration, offset, b"7 bytes", done)
        entry = FarmLogEntry(5, ValueType.SNAPSHOT_SYNC, encode_snapshot_sync(sync))
        leader.send(request._replace(entries=(entry,)))
    world.run_until(lambda: len(leader.answers) == 7)
    joined, *pieces = leader.answers
    assert (joined.next_index, joined.is_accepted) == (1, True)
    assert [(answer.next_index, answer.is_accepted) for answer in pieces] == [
        *[(7, True), (14, True), (0, False)],
        *[(7, True), (14, True), (21, True)],
    ]
    assert {answer.destination for answer in pieces} == {1}
    assert world.disks[4].snapshot == b"7 bytes" * 3
    assert world.peers[4].core.commit_index == 40
    assert world.ask(membership.add_server_request(server(9)), 4).destination == 1, (
        "it knows its leader"
    )
