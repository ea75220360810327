"""The machine of a farm's client against our servers, in virtual time."""

import pytest

from kelek.protocols.garlicfarm.client.client import FarmClient
from kelek.protocols.garlicfarm.client.values import FailureKind, FarmClientSetup, FarmCommand
from kelek.protocols.garlicfarm.wire import htdigest
from kelek.protocols.garlicfarm.wire.messages import MessageType
from kelek.tests.protocols.garlicfarm.client.client_world import FARM, Caller, place
from kelek.tests.protocols.garlicfarm.farm_world import World, server

OTHERS = htdigest.users_of(htdigest.with_user("", FARM, "alice", "other"), FARM)


def names(first: int, count: int) -> list[bytes]:
    return [f"v{number}".encode() for number in range(first, first + count)]


@pytest.mark.parametrize("first", [1, 2, 3])
def test_whoever_is_asked_first_the_leader_takes_it(first: int) -> None:
    world = World()
    leader = world.elect()
    caller = Caller(world, (first, 1 + first % 3, 1 + (first + 1) % 3))
    wish = caller.append(b"v0")
    caller.until(wish)
    assert wish.response is not None
    assert wish.response.source == leader
    assert caller.values(leader) == [b"v0"]
    assert caller.client.leader_id == leader
    assert bool(caller.client.counters["redirects"]) == (first != leader)


def test_many_travel_together_and_stay_in_order() -> None:
    """Requests are shared, 64 are on their way, and a challenge is answered once a server."""
    world = World()
    leader = world.elect()
    caller = Caller(world, (leader,))
    wishes = [caller.append(*names(number * 10, 10)) for number in range(300)]
    caller.until(*wishes)
    assert caller.values(leader) == names(0, 3000)
    assert caller.client.counters["requests"] == 3
    assert caller.statuses == [401, 101]


def test_a_later_connection_begins_with_the_second_request() -> None:
    world = World()
    leader = world.elect()
    caller = Caller(world, (leader,))
    caller.until(caller.append(b"v0"))
    caller.cut(leader)
    caller.until(caller.append(b"v1"))
    assert caller.statuses == [401, 101, 101]
    assert caller.values(leader) == [b"v0", b"v1"]


@pytest.mark.parametrize("seed", range(4))
def test_leaders_die_and_everything_is_appended_in_order(seed: int) -> None:
    """At least once: with repeats left out, what was sent is there, as it was sent."""
    world = World(seed)
    world.elect()
    caller = Caller(world, (1, 2, 3))
    wishes = []
    for round_ in range(4):
        wishes += [caller.append(*names((round_ * 20 + at) * 100, 100)) for at in range(20)]
        world.run(world.random.randint(1, 60))
        leader = world.leader
        if leader is not None:
            world.kill(leader)
            caller.cut(leader)
            world.run(world.random.randint(1, 3000))
            world.start(leader)
    caller.until(*wishes)
    assert all(wish.failure is None for wish in wishes)
    world.run(5000)
    found = caller.values(world.elect())
    assert list(dict.fromkeys(found)) == names(0, 8000)
    world.check_same()


def test_nobody_leads_yet() -> None:
    world = World()
    world.kill(2)
    world.kill(3)
    caller = Caller(world, (1, 2, 3))
    wish = caller.append(b"v0")
    world.run(5000)
    assert not wish.done
    assert caller.client.explain().kind is FailureKind.LEADERLESS
    assert "127.0.0.1:9001: server 1 knows no leader" in caller.client.explain().text
    assert caller.client.counters["connections"] < 40  # It does not hurry.
    world.start(2)
    caller.until(wish)
    assert wish.response is not None


def test_who_falls_silent_is_left() -> None:
    world = World()
    leader = world.elect()
    caller = Caller(world, (leader, 1 + leader % 3, 1 + (leader + 1) % 3), response_timeout_ms=3000)
    caller.until(caller.append(b"v0"))
    caller.deaf.add(leader)
    wish = caller.append(b"v1")
    world.run(1000)
    world.kill(leader)  # Its connections hang: nobody tells us.
    caller.until(wish)
    assert wish.response is not None
    assert wish.response.source != leader


def test_a_wrong_password_is_no_matter_of_patience() -> None:
    world = World()
    world.elect()
    caller = Caller(world, (1, 2, 3), password="wrong")
    wish = caller.append(b"v0")
    caller.until(wish, ms=2000)
    assert wish.failure is not None
    assert wish.failure.kind is FailureKind.DENIED
    assert "user alice or the password is wrong for the farm farm" in wish.failure.text


def test_one_server_that_denies_us_does_not_matter() -> None:
    world = World()
    leader = world.elect()
    follower = 1 + leader % 3
    caller = Caller(world, (follower, leader))
    caller.users[follower] = OTHERS
    wish = caller.append(b"v0")
    caller.until(wish)
    assert wish.response is not None


def test_another_farm() -> None:
    world = World()
    world.elect()
    caller = Caller(world, (1,), farm="barn")
    wish = caller.append(b"v0")
    caller.until(wish, ms=2000)
    assert wish.failure is not None
    assert wish.failure.kind is FailureKind.NO_FARM


def test_nobody_is_there() -> None:
    caller = Caller(World(members=(1,)), (7, 8))
    wish = caller.append(b"v0")
    caller.world.run(10_000)
    assert not wish.done
    assert caller.client.explain().kind is FailureKind.LOST
    assert caller.client.counters["lost"] < 20  # Ever slower.
    caller.client.cancel([wish])
    assert caller.client.outstanding == 0


def test_a_server_that_does_not_answer_is_waited_for() -> None:
    """Its address may be right: it counts as unreached once the attempt is over, not before."""
    client = FarmClient(
        FarmClientSetup("farm", (place(1),), "a", "b", unreachable_timeout_ms=2000), bytes
    )
    wish = client.submit(FarmCommand(MessageType.CLIENT_REQUEST, (), 60_000))
    assert len(client.ready(0)) == 1
    client.ready(2500)
    assert (wish.done, client.deadline_ms) == (False, client.setup.connect_timeout_ms)
    client.ready(client.setup.connect_timeout_ms)
    assert wish.failure is not None


def test_without_a_handshake_as_jraft_has_it() -> None:
    world = World()
    leader = world.elect()
    others = [number for number in (1, 2, 3) if number != leader]
    caller = Caller(world, (*others, leader), plain=True)
    wish = caller.append(b"v0")
    caller.until(wish)
    assert caller.values(leader) == [b"v0"]
    assert caller.statuses == []
    known = {number: caller.client.ids[number] for number in caller.client.ids}
    assert known.items() >= {leader: place(leader)}.items()


def test_a_leader_that_nobody_can_place() -> None:
    """On JRaft's wire only its id is told."""
    world = World()
    leader = world.elect()
    follower = 1 + leader % 3
    caller = Caller(world, (follower,), plain=True)
    wish = caller.append(b"v0")
    world.run(3000)
    assert not wish.done
    assert "no server knows its address" in caller.client.explain().text
    caller.client.learn_servers([server(leader)])
    caller.until(wish)
    assert wish.response is not None


def test_the_leader_alone_commits_nothing() -> None:
    world = World()
    leader = world.elect()
    caller = Caller(world, (leader,))
    caller.until(caller.append(b"v0"))
    for number in {1, 2, 3} - {leader}:
        world.kill(number)
    wish = caller.append(b"v1", ms=400)
    caller.until(wish)
    assert wish.failure is not None
    assert wish.failure.kind is FailureKind.TIMEOUT
    assert "a majority must run" in wish.failure.text
