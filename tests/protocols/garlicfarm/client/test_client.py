"""The client's state machine against farm servers, in virtual time."""

import pytest

from kelek.protocols.garlicfarm.client.client import FarmClient
from kelek.protocols.garlicfarm.client.values import FailureKind, FarmClientSetup, FarmCommand
from kelek.protocols.garlicfarm.wire import htdigest
from kelek.protocols.garlicfarm.wire.messages import MessageType
from kelek.tests.protocols.garlicfarm.client.client_cluster import FARM, Caller, place
from kelek.tests.protocols.garlicfarm.farm_cluster import FarmCluster, elected_farm, server

OTHERS = htdigest.users_of(htdigest.with_user("", FARM, "alice", "other"), FARM)


def names(first: int, count: int) -> list[bytes]:
    return [f"v{number}".encode() for number in range(first, first + count)]


@pytest.mark.parametrize("first", [1, 2, 3])
def test_any_server_leads_to_the_leader(first: int) -> None:
    cluster, leader = elected_farm()
    caller = Caller(cluster, (first, 1 + first % 3, 1 + (first + 1) % 3))
    command = caller.append(b"v0")
    caller.until(command)
    assert command.response is not None
    assert command.response.source == leader
    assert caller.values(leader) == [b"v0"]
    assert caller.client.leader_id == leader
    assert bool(caller.client.counters["redirects"]) == (first != leader)


def test_many_travel_together_and_stay_in_order() -> None:
    """Values share requests, 64 are under way, and the client answers one challenge per server."""
    cluster, leader = elected_farm()
    caller = Caller(cluster, (leader,))
    commands = [caller.append(*names(number * 10, 10)) for number in range(300)]
    caller.until(*commands)
    assert caller.values(leader) == names(0, 3000)
    assert caller.client.counters["requests"] == 3
    assert caller.statuses == [401, 101]


def test_a_later_connection_starts_with_the_second_request() -> None:
    cluster, leader = elected_farm()
    caller = Caller(cluster, (leader,))
    caller.until(caller.append(b"v0"))
    caller.cut(leader)
    caller.until(caller.append(b"v1"))
    assert caller.statuses == [401, 101, 101]
    assert caller.values(leader) == [b"v0", b"v1"]


@pytest.mark.parametrize("seed", range(4))
def test_leaders_die_and_everything_is_appended_in_order(seed: int) -> None:
    """At least once: without repeats, the log has what was sent, in order."""
    cluster = FarmCluster(seed)
    cluster.elect()
    caller = Caller(cluster, (1, 2, 3))
    commands = []
    for round_ in range(4):
        commands += [caller.append(*names((round_ * 20 + at) * 100, 100)) for at in range(20)]
        cluster.run(cluster.random.randint(1, 60))
        leader = cluster.leader
        if leader is not None:
            cluster.kill(leader)
            caller.cut(leader)
            cluster.run(cluster.random.randint(1, 3000))
            cluster.start(leader)
    caller.until(*commands)
    assert all(command.failure is None for command in commands)
    cluster.run(5000)
    found = caller.values(cluster.elect())
    assert list(dict.fromkeys(found)) == names(0, 8000)
    cluster.check_same()


def test_a_farm_without_a_leader() -> None:
    cluster = FarmCluster()
    cluster.kill(2)
    cluster.kill(3)
    caller = Caller(cluster, (1, 2, 3))
    command = caller.append(b"v0")
    cluster.run(5000)
    assert not command.done
    assert caller.client.explain().kind is FailureKind.LEADERLESS
    assert "127.0.0.1:9001: server 1 knows no leader" in caller.client.explain().text
    assert caller.client.counters["connections"] < 40  # It retries slowly.
    cluster.start(2)
    caller.until(command)
    assert command.response is not None


def test_a_silent_leader_is_left() -> None:
    cluster, leader = elected_farm()
    caller = Caller(
        cluster, (leader, 1 + leader % 3, 1 + (leader + 1) % 3), response_timeout_ms=3000
    )
    caller.until(caller.append(b"v0"))
    caller.muted.add(leader)
    command = caller.append(b"v1")
    cluster.run(1000)
    cluster.kill(leader)  # Its connections hang without an error.
    caller.until(command)
    assert command.response is not None
    assert command.response.source != leader


def test_a_wrong_password_is_no_matter_of_patience() -> None:
    cluster = FarmCluster()
    cluster.elect()
    caller = Caller(cluster, (1, 2, 3), password="wrong")
    command = caller.append(b"v0")
    caller.until(command, ms=2000)
    assert command.failure is not None
    assert command.failure.kind is FailureKind.DENIED
    assert "user alice or the password is wrong for the farm farm" in command.failure.text


def test_one_server_that_denies_us_does_not_matter() -> None:
    cluster, leader = elected_farm()
    follower = 1 + leader % 3
    caller = Caller(cluster, (follower, leader))
    caller.users[follower] = OTHERS
    command = caller.append(b"v0")
    caller.until(command)
    assert command.response is not None


def test_another_farm() -> None:
    cluster = FarmCluster()
    cluster.elect()
    caller = Caller(cluster, (1,), farm="barn")
    command = caller.append(b"v0")
    caller.until(command, ms=2000)
    assert command.failure is not None
    assert command.failure.kind is FailureKind.NO_FARM


def test_no_server_is_reachable() -> None:
    caller = Caller(FarmCluster(members=(1,)), (7, 8))
    command = caller.append(b"v0")
    caller.cluster.run(10_000)
    assert not command.done
    assert caller.client.explain().kind is FailureKind.LOST
    assert caller.client.counters["lost"] < 20  # With growing pauses.
    caller.client.cancel([command])
    assert not len(caller.client.commands)


def test_a_server_that_does_not_answer_is_waited_for() -> None:
    """It counts as unreached only after the attempt has timed out."""
    client = FarmClient(
        FarmClientSetup("farm", (place(1),), "a", "b", unreachable_timeout_ms=2000), bytes
    )
    command = client.submit(FarmCommand(MessageType.CLIENT_REQUEST, (), 60_000))
    assert len(client.ready(0)) == 1
    client.ready(2500)
    assert (command.done, client.deadline_ms) == (False, client.setup.connect_timeout_ms)
    client.ready(client.setup.connect_timeout_ms)
    assert command.failure is not None


def test_without_a_handshake_as_jraft_has_it() -> None:
    cluster, leader = elected_farm()
    others = [number for number in (1, 2, 3) if number != leader]
    caller = Caller(cluster, (*others, leader), plain=True)
    command = caller.append(b"v0")
    caller.until(command)
    assert caller.values(leader) == [b"v0"]
    assert caller.statuses == []
    known = {number: caller.client.servers.ids[number] for number in caller.client.servers.ids}
    assert known.items() >= {leader: place(leader)}.items()


def test_a_leader_with_an_unknown_address() -> None:
    """JRaft's wire has only the leader's id."""
    cluster, leader = elected_farm()
    follower = 1 + leader % 3
    caller = Caller(cluster, (follower,), plain=True)
    command = caller.append(b"v0")
    cluster.run(3000)
    assert not command.done
    assert "no server knows its address" in caller.client.explain().text
    caller.client.servers.learn([server(leader)])
    caller.until(command)
    assert command.response is not None


def test_the_leader_alone_commits_nothing() -> None:
    cluster, leader = elected_farm()
    caller = Caller(cluster, (leader,))
    caller.until(caller.append(b"v0"))
    for number in {1, 2, 3} - {leader}:
        cluster.kill(number)
    command = caller.append(b"v1", ms=400)
    caller.until(command)
    assert command.failure is not None
    assert command.failure.kind is FailureKind.TIMEOUT
    assert "a majority must run" in command.failure.text
