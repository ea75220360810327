"""Servers of a farm in virtual time: election, commit, members, snapshots."""

import pytest

from kelek.protocols.garlicfarm.server import membership
from kelek.protocols.garlicfarm.wire.messages import MessageType
from kelek.protocols.raft.messages import KIND_CONFIG, KIND_STATE
from kelek.tests.protocols.garlicfarm.farm_cluster import (
    FarmCluster,
    FarmRequester,
    client_request,
    elected_farm,
    server,
)


def test_a_farm_elects_a_leader_and_commits() -> None:
    cluster, leader = elected_farm()
    answer = cluster.ask(client_request(b"one", b"two"))
    assert answer[:3] == (MessageType.APPEND_ENTRIES_RESPONSE, leader, leader)
    assert (answer.is_accepted, answer.next_index) == (True, 4)
    cluster.run(1000)
    for number in (1, 2, 3):
        kinds = [kind for kind, _ in cluster.committed(number).values()]
        assert kinds == [KIND_CONFIG, KIND_STATE, KIND_STATE]
        assert [data for _, data in cluster.committed(number).values()][1:] == [b"one", b"two"]
    cluster.check_same()


def test_the_first_entries_are_configurations() -> None:
    """The first entry is the Configuration of the first leader; each leader starts with such an
    entry.
    """
    cluster, leader = elected_farm()
    cluster.kill(leader)
    cluster.run_until(lambda: cluster.leader not in (None, leader))
    second = cluster.elect()
    kinds = {at: kind for at, (kind, _) in cluster.committed(second).items()}
    assert kinds[1] == KIND_CONFIG
    configuration = cluster.peers[second].directory.latest
    assert configuration.servers == tuple(map(server, (1, 2, 3)))
    assert configuration.log_index == max(kinds)
    assert configuration.previous_log_index in kinds


@pytest.mark.parametrize("seed", range(3))
def test_no_entry_is_lost_when_servers_are_killed(seed: int) -> None:
    cluster = FarmCluster(seed)
    told: list[bytes] = []
    for number in range(12):
        value = b"value %d" % number
        while True:
            if cluster.ask(client_request(value)).is_accepted:
                told.append(value)
                break
        victim = cluster.random.choice((1, 2, 3))
        if number % 3 == 0:
            cluster.kill(victim)
            cluster.run(cluster.random.randint(0, 3000))
            cluster.start(victim, cluster.members)
        elif number % 3 == 1:
            cluster.break_links()
    cluster.elect()
    cluster.run(5000)
    cluster.check_same()
    for number in (1, 2, 3):
        values = [data for kind, data in cluster.committed(number).values() if kind == KIND_STATE]
        assert [value for value in dict.fromkeys(values) if value in told] == told


def test_a_server_removed_while_down_refuses_an_invitation() -> None:
    """It considers itself a member and has campaigned; with an empty disk it joins."""
    cluster, leader = elected_farm()
    away = next(number for number in (1, 2, 3) if number != leader)
    cluster.cut_off(away, {1, 2, 3} - {away})
    cluster.ask(membership.remove_server_request(away))
    cluster.run_until(lambda: away not in cluster.ids(leader))
    cluster.run(10_000)
    cluster.network.heal()
    assert not cluster.peers[away].own_membership.refusal
    assert cluster.ask(membership.add_server_request(server(away))).is_accepted
    cluster.run_until(lambda: bool(cluster.peers[away].own_membership.refusal))
    said = f"server {leader} invited this server, which considers itself a member"
    assert cluster.peers[away].own_membership.refusal == said
    cluster.kill(away)
    del cluster.disks[away], cluster.setups[away]
    cluster.start(away)
    cluster.run_until(lambda: cluster.peers[leader].membership.change is None)
    if away not in cluster.ids(leader):
        assert cluster.ask(membership.add_server_request(server(away))).is_accepted
    cluster.run_until(lambda: away in cluster.ids(leader))
    cluster.check_same()


def test_a_leader_that_is_cut_off_commits_nothing() -> None:
    cluster, leader = elected_farm()
    client = FarmRequester(cluster, leader)
    cluster.cut_off(leader, {1, 2, 3} - {leader})
    cluster.run(50)
    client.send(client_request(b"lost"))
    cluster.run_until(lambda: bool(client.answers))
    assert not client.answers[0].is_accepted
    cluster.run_until(lambda: cluster.leader not in (None, leader))
    assert cluster.ask(client_request(b"kept")).is_accepted
    cluster.network.heal()
    cluster.run(5000)
    cluster.check_same()
    for number in (1, 2, 3):
        values = [data for kind, data in cluster.committed(number).values() if kind == KIND_STATE]
        assert values == [b"kept"]


def test_a_follower_names_the_leader() -> None:
    cluster, leader = elected_farm()
    cluster.run(1000)
    follower = next(number for number in (1, 2, 3) if number != leader)
    for request in (client_request(b"x"), client_request(), membership.remove_server_request(1)):
        answer = cluster.ask(request, follower)
        assert (answer.source, answer.destination, answer.is_accepted) == (follower, leader, False)
        if request.type is MessageType.CLIENT_REQUEST:
            assert answer.next_index == 0
    answer = cluster.ask(client_request(), leader)
    assert (answer.destination, answer.is_accepted) == (leader, True)
    before = len(cluster.disks[leader].values())
    cluster.run(1000)
    assert len(cluster.disks[leader].values()) == before, "a question leaves nothing in the log"


# ---- members ----


def grow(cluster: FarmCluster, number: int) -> None:
    """Adds a server."""
    cluster.start(number)
    assert cluster.ask(membership.add_server_request(server(number))).is_accepted

    def is_in() -> bool:
        leader = cluster.leader
        return (
            leader is not None and number in cluster.ids(leader) and number in cluster.ids(number)
        )

    cluster.run_until(is_in)


def shrink(cluster: FarmCluster, number: int) -> None:
    assert cluster.ask(membership.remove_server_request(number)).is_accepted

    def is_out() -> bool:
        leader = cluster.leader
        return leader not in (None, number) and number not in cluster.ids(leader or 0)

    cluster.run_until(is_out)


def test_a_server_is_added_and_removed() -> None:
    cluster = FarmCluster()
    cluster.ask(client_request(b"one"))
    grow(cluster, 4)
    assert cluster.ask(client_request(b"two")).is_accepted
    cluster.run(2000)
    assert cluster.ids(4) == [1, 2, 3, 4]
    assert cluster.committed(4) == cluster.committed(cluster.elect())
    other = next(number for number in (1, 2, 3) if number != cluster.leader)
    shrink(cluster, other)
    cluster.run(5000)
    assert cluster.ids(4) == sorted({1, 2, 3, 4} - {other})
    assert not cluster.peers[other].is_member, "who has left is silent"
    assert cluster.peers[other].core.role.value == "follower"
    cluster.check_same()


def test_a_farm_of_one_grows() -> None:
    cluster = FarmCluster(members=(1,))
    cluster.ask(client_request(*(b"%d" % number for number in range(50))))
    for number in (2, 3):
        grow(cluster, number)
    assert cluster.ids(1) == [1, 2, 3]
    cluster.kill(1)
    cluster.run_until(lambda: cluster.leader in (2, 3))
    assert cluster.ask(client_request(b"more")).is_accepted


def test_many_entries_take_many_packs() -> None:
    cluster = FarmCluster(members=(1,))
    cluster.setups[1] = cluster.setups[1]._replace(sync_entries_max=20, sync_gap=5)
    cluster.kill(1)
    cluster.start(1, cluster.members)
    for number in range(20):
        cluster.ask(client_request(*(b"%d.%d" % (number, at) for at in range(11))))
    grow(cluster, 2)
    cluster.run(2000)
    assert cluster.committed(2) == cluster.committed(1)
    assert len(cluster.committed(2)) > 220


def test_a_leader_is_removed() -> None:
    cluster, leader = elected_farm(3)
    shrink(cluster, leader)
    cluster.run(5000)
    left = sorted({1, 2, 3} - {leader})
    assert cluster.ids(left[0]) == cluster.ids(left[1]) == left
    assert not cluster.peers[leader].is_member
    assert cluster.ask(client_request(b"more")).is_accepted


def test_a_removed_server_leads_only_until_its_removal_is_committed() -> None:
    """Beside the old leader it alone has the entry, so it must win and commit it."""
    cluster, leader = elected_farm()
    leaver, away = sorted({1, 2, 3} - {leader})
    cluster.cut_off(away, {leader, leaver})
    assert cluster.ask(membership.remove_server_request(leaver)).is_accepted
    cluster.run_until(lambda: cluster.peers[leaver].directory.find(leaver) is None)
    cluster.kill(leader)
    cluster.start(leader)
    cluster.network.heal()
    cluster.cut_off(leader, {away})
    cluster.run_until(lambda: cluster.leader == leaver)
    cluster.network.heal()
    cluster.run_until(lambda: cluster.leader in (leader, away))
    assert cluster.ask(client_request(b"more")).is_accepted
    assert cluster.ids(away) == sorted({leader, away})


def test_one_of_two_is_removed() -> None:
    cluster, leader = elected_farm(members=(1, 2))
    shrink(cluster, leader)
    assert cluster.ids(3 - leader) == [3 - leader]
    cluster.run(3000)
    assert cluster.ask(membership.remove_server_request(3 - leader)).is_accepted is False, (
        "one has to stay"
    )


def test_changes_come_one_at_a_time() -> None:
    cluster, leader = elected_farm()
    assert cluster.ask(
        membership.add_server_request(server(4)), leader
    ).is_accepted  # It does not run.
    assert not cluster.ask(membership.add_server_request(server(5)), leader).is_accepted
    assert not cluster.ask(membership.remove_server_request(1), leader).is_accepted
    assert cluster.ask(client_request(b"meanwhile")).is_accepted
    cluster.run_until(lambda: cluster.peers[leader].membership.change is None)
    assert cluster.ids(leader) == [1, 2, 3]
    assert not cluster.ask(membership.add_server_request(server(2))).is_accepted, "it is a member"
    assert not cluster.ask(membership.remove_server_request(9)).is_accepted, "it is none"
    other_id = server(2)._replace(id=9)
    assert not cluster.ask(membership.add_server_request(other_id)).is_accepted, "somebody is there"


@pytest.mark.parametrize("seed", range(4))
def test_a_join_survives_kills_of_either_side(seed: int) -> None:
    """The administrator repeats the request."""
    cluster = FarmCluster(seed)
    cluster.ask(client_request(*(b"%d" % number for number in range(300))))
    cluster.start(4, sync_entries_max=10)
    for number in (1, 2, 3):
        cluster.kill(number)
        cluster.start(number, cluster.members, sync_entries_max=7, sync_gap=1)
    victim = 4
    for _ in range(6):
        leader = cluster.elect()
        cluster.ask(membership.add_server_request(server(4)), leader)
        cluster.run(cluster.random.randint(1, 300))
        victim = 4 if victim != 4 else leader
        cluster.kill(victim)
        cluster.run(cluster.random.randint(0, 4000))
        cluster.start(victim)
        if 4 in cluster.ids(cluster.elect()):
            break

    def is_in() -> bool:
        leader = cluster.leader
        if leader is not None and cluster.peers[leader].membership.change is None:
            if 4 in cluster.ids(leader) and 4 in cluster.ids(4):
                return True
            FarmRequester(cluster, leader).send(membership.add_server_request(server(4)))
        return False

    cluster.run_until(is_in, 200_000)
    assert cluster.ask(client_request(b"after")).is_accepted
    cluster.run(3000)
    cluster.check_same()
    assert cluster.committed(4) == cluster.committed(cluster.elect())
