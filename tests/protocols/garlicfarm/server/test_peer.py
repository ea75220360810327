"""Servers of a farm in virtual time: election, commit, members, snapshots."""

import pytest

from kelek.protocols.garlicfarm.server import membership
from kelek.protocols.garlicfarm.wire.messages import MessageType
from kelek.protocols.raft.messages import KIND_CONFIG, KIND_STATE
from kelek.tests.protocols.garlicfarm.farm_world import Client, World, client_request, server


def test_a_farm_elects_a_leader_and_commits() -> None:
    world = World()
    leader = world.elect()
    answer = world.ask(client_request(b"one", b"two"))
    assert answer[:3] == (MessageType.APPEND_ENTRIES_RESPONSE, leader, leader)
    assert (answer.is_accepted, answer.next_index) == (True, 4)
    world.run(1000)
    for number in (1, 2, 3):
        kinds = [kind for kind, _ in world.committed(number).values()]
        assert kinds == [KIND_CONFIG, KIND_STATE, KIND_STATE]
        assert [data for _, data in world.committed(number).values()][1:] == [b"one", b"two"]
    world.check_same()


def test_the_first_entries_are_configurations() -> None:
    """The first entry is the Configuration of the first leader; each leader starts with such an
    entry.
    """
    world = World()
    leader = world.elect()
    world.kill(leader)
    world.run_until(lambda: world.leader not in (None, leader))
    second = world.elect()
    kinds = {at: kind for at, (kind, _) in world.committed(second).items()}
    assert kinds[1] == KIND_CONFIG
    configuration = world.peers[second].directory.latest
    assert configuration.servers == tuple(map(server, (1, 2, 3)))
    assert configuration.log_index == max(kinds)
    assert configuration.previous_log_index in kinds


@pytest.mark.parametrize("seed", range(3))
def test_no_entry_is_lost_when_servers_are_killed(seed: int) -> None:
    world = World(seed)
    told: list[bytes] = []
    for number in range(12):
        value = b"value %d" % number
        while True:
            if world.ask(client_request(value)).is_accepted:
                told.append(value)
                break
        victim = world.random.choice((1, 2, 3))
        if number % 3 == 0:
            world.kill(victim)
            world.run(world.random.randint(0, 3000))
            world.start(victim, world.members)
        elif number % 3 == 1:
            world.break_links()
    world.elect()
    world.run(5000)
    world.check_same()
    for number in (1, 2, 3):
        values = [data for kind, data in world.committed(number).values() if kind == KIND_STATE]
        assert [value for value in dict.fromkeys(values) if value in told] == told


def test_a_server_removed_while_down_refuses_an_invitation() -> None:
    """It considers itself a member and has campaigned; with an empty disk it joins."""
    world = World()
    leader = world.elect()
    away = next(number for number in (1, 2, 3) if number != leader)
    world.cut = {frozenset((away, other)) for other in (1, 2, 3) if other != away}
    world.ask(membership.remove_server_request(away))
    world.run_until(lambda: away not in world.ids(leader))
    world.run(10_000)
    world.cut = set()
    assert not world.peers[away].join_refusal
    assert world.ask(membership.add_server_request(server(away))).is_accepted
    world.run_until(lambda: bool(world.peers[away].join_refusal))
    said = f"server {leader} invited this server, which considers itself a member"
    assert world.peers[away].join_refusal == said
    world.kill(away)
    del world.disks[away], world.setups[away]
    world.start(away)
    world.run_until(lambda: world.peers[leader].membership.change is None)
    if away not in world.ids(leader):
        assert world.ask(membership.add_server_request(server(away))).is_accepted
    world.run_until(lambda: away in world.ids(leader))
    world.check_same()


def test_a_leader_that_is_cut_off_commits_nothing() -> None:
    world = World()
    leader = world.elect()
    client = Client(world, leader)
    world.cut = {frozenset((leader, other)) for other in (1, 2, 3) if other != leader}
    world.run(50)
    client.send(client_request(b"lost"))
    world.run_until(lambda: bool(client.answers))
    assert not client.answers[0].is_accepted
    world.run_until(lambda: world.leader not in (None, leader))
    assert world.ask(client_request(b"kept")).is_accepted
    world.cut = set()
    world.run(5000)
    world.check_same()
    for number in (1, 2, 3):
        values = [data for kind, data in world.committed(number).values() if kind == KIND_STATE]
        assert values == [b"kept"]


def test_a_follower_names_the_leader() -> None:
    world = World()
    leader = world.elect()
    world.run(1000)
    follower = next(number for number in (1, 2, 3) if number != leader)
    for request in (client_request(b"x"), client_request(), membership.remove_server_request(1)):
        answer = world.ask(request, follower)
        assert (answer.source, answer.destination, answer.is_accepted) == (follower, leader, False)
        if request.type is MessageType.CLIENT_REQUEST:
            assert answer.next_index == 0
    answer = world.ask(client_request(), leader)
    assert (answer.destination, answer.is_accepted) == (leader, True)
    before = len(world.disks[leader].values())
    world.run(1000)
    assert len(world.disks[leader].values()) == before, "a question leaves nothing in the log"


# ---- members ----


def grow(world: World, number: int) -> None:
    """Adds a server."""
    world.start(number)
    assert world.ask(membership.add_server_request(server(number))).is_accepted

    def is_in() -> bool:
        leader = world.leader
        return leader is not None and number in world.ids(leader) and number in world.ids(number)

    world.run_until(is_in)


def shrink(world: World, number: int) -> None:
    assert world.ask(membership.remove_server_request(number)).is_accepted

    def is_out() -> bool:
        leader = world.leader
        return leader not in (None, number) and number not in world.ids(leader or 0)

    world.run_until(is_out)


def test_a_server_is_added_and_removed() -> None:
    world = World()
    world.ask(client_request(b"one"))
    grow(world, 4)
    assert world.ask(client_request(b"two")).is_accepted
    world.run(2000)
    assert world.ids(4) == [1, 2, 3, 4]
    assert world.committed(4) == world.committed(world.elect())
    other = next(number for number in (1, 2, 3) if number != world.leader)
    shrink(world, other)
    world.run(5000)
    assert world.ids(4) == sorted({1, 2, 3, 4} - {other})
    assert not world.peers[other].is_member, "who has left is silent"
    assert world.peers[other].core.role.value == "follower"
    world.check_same()


def test_a_farm_of_one_grows() -> None:
    world = World(members=(1,))
    world.ask(client_request(*(b"%d" % number for number in range(50))))
    for number in (2, 3):
        grow(world, number)
    assert world.ids(1) == [1, 2, 3]
    world.kill(1)
    world.run_until(lambda: world.leader in (2, 3))
    assert world.ask(client_request(b"more")).is_accepted


def test_many_entries_take_many_packs() -> None:
    world = World(members=(1,))
    world.setups[1] = world.setups[1]._replace(sync_entries_max=20, sync_gap=5)
    world.kill(1)
    world.start(1, world.members)
    for number in range(20):
        world.ask(client_request(*(b"%d.%d" % (number, at) for at in range(11))))
    grow(world, 2)
    world.run(2000)
    assert world.committed(2) == world.committed(1)
    assert len(world.committed(2)) > 220


def test_a_leader_is_removed() -> None:
    world = World(3)
    leader = world.elect()
    shrink(world, leader)
    world.run(5000)
    left = sorted({1, 2, 3} - {leader})
    assert world.ids(left[0]) == world.ids(left[1]) == left
    assert not world.peers[leader].is_member
    assert world.ask(client_request(b"more")).is_accepted


def test_one_of_two_is_removed() -> None:
    world = World(members=(1, 2))
    leader = world.elect()
    shrink(world, leader)
    assert world.ids(3 - leader) == [3 - leader]
    world.run(3000)
    assert world.ask(membership.remove_server_request(3 - leader)).is_accepted is False, (
        "one has to stay"
    )


def test_changes_come_one_at_a_time() -> None:
    world = World()
    leader = world.elect()
    assert world.ask(
        membership.add_server_request(server(4)), leader
    ).is_accepted  # It does not run.
    assert not world.ask(membership.add_server_request(server(5)), leader).is_accepted
    assert not world.ask(membership.remove_server_request(1), leader).is_accepted
    assert world.ask(client_request(b"meanwhile")).is_accepted
    world.run_until(lambda: world.peers[leader].membership.change is None)
    assert world.ids(leader) == [1, 2, 3]
    assert not world.ask(membership.add_server_request(server(2))).is_accepted, "it is a member"
    assert not world.ask(membership.remove_server_request(9)).is_accepted, "it is none"
    other_id = server(2)._replace(id=9)
    assert not world.ask(membership.add_server_request(other_id)).is_accepted, "somebody is there"


@pytest.mark.parametrize("seed", range(4))
def test_a_join_survives_kills_of_either_side(seed: int) -> None:
    """The administrator repeats the request."""
    world = World(seed)
    world.ask(client_request(*(b"%d" % number for number in range(300))))
    world.start(4, sync_entries_max=10)
    for number in (1, 2, 3):
        world.kill(number)
        world.start(number, world.members, sync_entries_max=7, sync_gap=1)
    victim = 4
    for _ in range(6):
        leader = world.elect()
        world.ask(membership.add_server_request(server(4)), leader)
        world.run(world.random.randint(1, 300))
        victim = 4 if victim != 4 else leader
        world.kill(victim)
        world.run(world.random.randint(0, 4000))
        world.start(victim)
        if 4 in world.ids(world.elect()):
            break

    def is_in() -> bool:
        leader = world.leader
        if leader is not None and world.peers[leader].membership.change is None:
            if 4 in world.ids(leader) and 4 in world.ids(4):
                return True
            Client(world, leader).send(membership.add_server_request(server(4)))
        return False

    world.run_until(is_in, 200_000)
    assert world.ask(client_request(b"after")).is_accepted
    world.run(3000)
    world.check_same()
    assert world.committed(4) == world.committed(world.elect())
