"""Farm servers beside one that is written from the protocol's description alone."""

from functools import partial

import pytest

from kelek.protocols.garlicfarm.app.orders import encode_order
from kelek.protocols.garlicfarm.app.posters import POSTER_PREFIX
from kelek.protocols.garlicfarm.server import membership
from kelek.protocols.garlicfarm.server.values import ConnectionClosed, FarmEvent, LinkUp
from kelek.protocols.garlicfarm.wire.messages import MessageType
from kelek.protocols.host.border import LinkLost, Requests, Responses
from kelek.protocols.raft.core import Role
from kelek.tests.interop.garlicfarm.farm_plain import APPLICATION, Plain
from kelek.tests.protocols.garlicfarm.app.app_cluster import AppWorld, publish
from kelek.tests.protocols.garlicfarm.farm_cluster import (
    FarmCluster,
    FarmRequester,
    client_request,
    server,
)

PLAIN = 3
SLOW: dict[str, int] = {"election_timeout_ms_min": 20_000, "election_timeout_ms_max": 30_000}

FAST: dict[str, int] = {"election_timeout_ms_min": 3000, "election_timeout_ms_max": 5000}


class PlainNode(Plain):
    """A Plain that receives the events of a FarmPeer."""

    def receive(self, event: FarmEvent, now_ms: int) -> None:
        match event:
            case Requests(number, data):
                self.on_requests(number, data, now_ms)
            case Responses(server_id, data):
                self.on_responses(server_id, data, now_ms)
            case LinkUp(server_id):
                self.on_connected(server_id, now_ms)
            case LinkLost(server_id):
                self.on_lost(server_id)
            case ConnectionClosed(number):
                self.on_closed(number)


def mixed(seed: int = 1, plain_leads: bool = False) -> tuple[FarmCluster, PlainNode]:
    """Two kelek servers and a plain one, all initial members."""
    cluster = FarmCluster(seed, (1, 2, 3), (PLAIN,))
    plain = add_plain(cluster, {each.id: each.endpoint for each in cluster.members}, PLAIN)
    if plain_leads:
        for number in (1, 2):
            cluster.kill(number)
            cluster.start(number, cluster.members, **SLOW)
        cluster.run_until(lambda: plain.role == "leader" and plain.commit > 0)
    else:
        cluster.elect()
    return cluster, plain


def add_plain(cluster: FarmCluster, servers: dict[int, str], number: int) -> PlainNode:
    plain = PlainNode(number, servers, cluster.now_ms, cluster.random.randrange(1000))
    cluster.others[number] = plain
    return plain


def values_of(cluster: FarmCluster, number: int) -> list[bytes]:
    """The Application entries that a kelek server has committed."""
    return [data for kind, data in cluster.committed(number).values() if kind == 0]


def plain_values(plain: Plain) -> list[bytes]:
    log = plain.log[: plain.commit - plain.start + 1]
    values = [entry.value for entry in log if entry.kind == APPLICATION]
    return [value for value in values if not value.startswith(POSTER_PREFIX)]


def test_it_follows_ours() -> None:
    cluster, plain = mixed()
    told = [b"value %d" % number for number in range(30)]
    for value in told:
        assert cluster.ask(client_request(value)).is_accepted
    cluster.run(2000)
    assert plain_values(plain) == told
    assert plain.leader == cluster.leader
    follower = next(number for number in (1, 2) if number != cluster.leader)
    cluster.kill(follower)
    assert cluster.ask(client_request(b"its vote counts")).is_accepted
    assert cluster.peers[plain.leader].malformed == 0


@pytest.mark.parametrize("lost", [1, 3, 30], ids=["one", "tail", "disk"])
def test_it_is_fed_again_when_it_has_lost_what_it_confirmed(lost: int) -> None:
    """JRaft does not sync: after a power cut its last entries are gone. Without the repair,
    nothing would be committed while a kelek server is down.
    """
    cluster, plain = mixed()
    told = [b"value %d" % number for number in range(20)]
    for value in told:
        assert cluster.ask(client_request(value)).is_accepted
    cluster.run(2000)
    assert plain_values(plain) == told
    leader = cluster.leader
    cluster.kill(PLAIN)
    del plain.log[-lost:]
    plain.commit = min(plain.commit, plain.last)
    cluster.others[PLAIN] = plain
    cluster.kill(next(number for number in (1, 2) if number != leader))
    assert cluster.ask(client_request(b"by its acknowledgement")).is_accepted
    cluster.run(2000)
    assert plain_values(plain) == [*told, b"by its acknowledgement"]
    assert cluster.leader == leader, "it was not helped by an election"


@pytest.mark.parametrize("seed", range(3))
def test_it_votes(seed: int) -> None:
    """No kelek server could win without its vote."""
    cluster, plain = mixed(seed)
    leader = cluster.leader
    assert leader is not None
    cluster.kill(leader)
    cluster.run_until(lambda: cluster.leader is not None or plain.role == "leader")
    if cluster.leader is not None:
        assert cluster.ask(client_request(b"on we go")).is_accepted


def test_it_leads_ours() -> None:
    cluster, plain = mixed(plain_leads=True)
    client = FarmRequester(cluster, PLAIN)
    told = [b"value %d" % number for number in range(30)]
    for value in told:
        client.send(client_request(value))
        cluster.run(50)
    cluster.run_until(lambda: plain_values(plain) == told)
    cluster.run(3000)
    assert [answer.is_accepted for answer in client.answers] == [True] * 30
    for number in (1, 2):
        assert values_of(cluster, number) == told
        assert cluster.peers[number].core.leader == str(PLAIN)
        assert cluster.peers[number].malformed == 0
    answer = cluster.ask(client_request(b"x"), 1)
    assert (answer.destination, answer.is_accepted, answer.next_index) == (PLAIN, False, 0)


def test_kelek_servers_accept_its_large_entry() -> None:
    """Above the limit for clients: other servers have committed it."""
    cluster, plain = mixed(plain_leads=True)
    term, large = plain.term, bytes(17 << 20)
    for value in (large, b"behind it"):
        FarmRequester(cluster, PLAIN).send(client_request(value))
    cluster.run_until(
        lambda: values_of(cluster, 1) == values_of(cluster, 2) == [large, b"behind it"]
    )
    assert (plain.role, plain.term) == ("leader", term)
    assert [peer.malformed for peer in cluster.peers.values()] == [0, 0]


def test_it_is_not_deposed_by_a_server_that_it_can_not_feed() -> None:
    """Its requests are too large for server 1, but count as heartbeats."""
    cluster, plain = mixed(plain_leads=True)
    cluster.kill(1)
    FarmRequester(cluster, PLAIN).send(client_request(bytes(200_000)))
    cluster.run_until(lambda: len(values_of(cluster, 2)) == 1)
    term = plain.term
    cluster.start(1, cluster.members, **FAST, entries_bytes_max=100_000)
    cluster.run(30_000)
    assert cluster.peers[1].malformed > 5
    assert (plain.role, plain.term) == ("leader", term)
    assert cluster.peers[1].core.leader == str(PLAIN)


def test_ours_catch_up_from_it() -> None:
    """Also when none of their entries match."""
    cluster, plain = mixed(plain_leads=True)
    cluster.kill(1)
    client = FarmRequester(cluster, PLAIN)
    client.send(*[client_request(b"%d" % number) for number in range(40)])
    cluster.run_until(lambda: len(plain_values(plain)) == 40)
    cluster.start(1)
    cluster.run_until(lambda: values_of(cluster, 1) == plain_values(plain))
    cluster.kill(1)
    del cluster.disks[1]
    cluster.start(1, cluster.members, **SLOW)
    cluster.run_until(lambda: values_of(cluster, 1) == plain_values(plain))


@pytest.mark.parametrize("own_entries", [0, 1, 7])
@pytest.mark.parametrize("compacted", [False, True])
def test_it_joins_a_kelek_farm(compacted: bool, own_entries: int) -> None:
    """Also after it has led a cluster of one: it keeps its entries, as JRaft's servers do, and
    answers JoinCluster with the index after them.
    """
    cluster = FarmCluster(members=(1, 2))
    for number in (1, 2):  # Needs many packs, whose offsets are checked.
        cluster.kill(number)
        cluster.start(number, cluster.members, sync_entries_max=4, sync_gap=2)
    told = [b"value %d" % number for number in range(25)]
    for value in told:
        cluster.ask(client_request(value))
    cluster.run(1000)
    if compacted:
        for number in (1, 2):
            cluster.snapshot(number, bytes(10_000))
        told = [b"later"]
        cluster.ask(client_request(*told))
    plain = add_plain(cluster, {}, 4)
    for _ in range(own_entries):
        plain.append(APPLICATION, b"of its own")
    assert cluster.ask(membership.add_server_request(server(4))).is_accepted
    cluster.run_until(lambda: not plain.joining)
    cluster.run_until(lambda: 4 in cluster.ids(1) and 4 in cluster.ids(2))
    assert cluster.ask(client_request(b"last")).is_accepted
    cluster.run_until(lambda: plain_values(plain) == [*told, b"last"])
    assert (plain.snapshot == bytes(10_000)) is compacted
    leader_log = cluster.committed(cluster.elect())
    assert [entry.value for entry in plain.log[:3]] == [
        leader_log[plain.start + at][1] for at in range(3)
    ]
    # And leaves again.
    assert cluster.ask(membership.remove_server_request(4)).is_accepted
    cluster.run_until(lambda: plain.left and cluster.ids(cluster.elect()) == [1, 2])


@pytest.mark.parametrize("compacted", [False, True])
def test_a_kelek_server_joins_its_farm(compacted: bool) -> None:
    cluster, plain = mixed(plain_leads=True)
    client = FarmRequester(cluster, PLAIN)
    client.send(*[client_request(b"%d" % number) for number in range(40)])
    cluster.run_until(lambda: len(plain_values(plain)) == 40)
    cluster.run(2000)
    if compacted:
        plain.compact(bytes(range(250)) * 50)
        client.send(client_request(b"later"))
        cluster.run_until(lambda: plain_values(plain) == [b"later"])
    cluster.start(4, (), **SLOW)
    cluster.run(500)
    client.send(membership.add_server_request(server(4)))
    cluster.run_until(lambda: 4 in plain.servers and 4 in cluster.ids(4))
    cluster.run_until(lambda: values_of(cluster, 4) == plain_values(plain))
    assert cluster.disks[4].snapshot == plain.snapshot
    assert cluster.peers[4].malformed == 0
    client.send(membership.remove_server_request(4))
    cluster.run_until(lambda: 4 not in plain.servers and not cluster.peers[4].is_member, 100_000)
    assert cluster.peers[4].core.role is Role.FOLLOWER
    kinds = [answer.type for answer in client.answers[-2:]]
    assert kinds == [MessageType.ADD_SERVER_RESPONSE, MessageType.REMOVE_SERVER_RESPONSE]
    # A removed server disturbs no other, also after a restart.
    cluster.kill(4)
    cluster.start(4)
    cluster.run(60_000)
    assert plain.role == "leader"
    client.send(client_request(b"last"))
    cluster.run_until(
        lambda: all(values_of(cluster, number)[-1:] == [b"last"] for number in (1, 2))
    )


def test_an_empty_follower_of_a_compacted_leader() -> None:
    """It refuses with next index 2, as 1 would stall a JRaft leader, and gets a snapshot."""
    cluster, plain = mixed(plain_leads=True)
    client = FarmRequester(cluster, PLAIN)
    client.send(*[client_request(b"%d" % number) for number in range(10)])
    cluster.run_until(lambda: len(values_of(cluster, 1)) == len(values_of(cluster, 2)) == 10)
    cluster.run(2000)
    plain.compact(b"a snapshot")
    cluster.kill(1)
    del cluster.disks[1]
    cluster.start(1, cluster.members)
    cluster.run_until(lambda: cluster.disks[1].snapshot == b"a snapshot")
    client.send(client_request(b"more"))
    cluster.run_until(lambda: values_of(cluster, 1) == [b"more"])


def has_answer(client: FarmRequester) -> bool:
    return bool(client.answers or client.closed)


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_lost_under_any_leader(seed: int) -> None:
    """Connections end and kelek servers are killed, with any outcome of elections."""
    cluster, plain = mixed(seed)
    told: list[bytes] = []
    for number in range(12):
        value = b"value %d" % number
        cluster.run_until(lambda: cluster.leader is not None or plain.role == "leader")
        if cluster.leader is not None and plain.role != "leader":
            # The plain server confirms before the commit, so its entries may be lost.
            client = FarmRequester(cluster, cluster.leader)
            client.send(client_request(value))
            cluster.run_until(partial(has_answer, client), 5000, must=False)
            told += [value for answer in client.answers if answer.is_accepted]
        cluster.break_links()
        cluster.run(cluster.random.randint(0, 2000))
        if number % 4 == 1:
            victim = cluster.random.choice((1, 2))
            cluster.kill(victim)
            cluster.run(cluster.random.randint(0, 6000))
            cluster.start(victim, cluster.members)
    cluster.run(20_000)
    cluster.check_same()
    assert told
    for found in (values_of(cluster, 1), values_of(cluster, 2), plain_values(plain)):
        assert [value for value in dict.fromkeys(found) if value in told] == told


def test_ours_post_through_it() -> None:
    """Their documents and orders are ordinary entries to it."""
    cluster = AppWorld(others=(PLAIN,))
    plain = add_plain(cluster, {each.id: each.endpoint for each in cluster.members}, PLAIN)
    for number in (1, 2):
        cluster.kill(number)
        cluster.start(number, cluster.members, **SLOW)
    cluster.run_until(lambda: plain.role == "leader" and plain.commit > 0)
    cluster.run_until(lambda: all(set(app.state.posted) == {1, 2} for app in cluster.apps.values()))
    client = FarmRequester(cluster, PLAIN)
    client.send(client_request(encode_order(publish(2))))
    cluster.run_until(lambda: all(app.publisher == 2 for app in cluster.apps.values()))
    cluster.run_until(cluster.is_settled)
    assert len(cluster.encoded) == 1
    assert len(plain_values(plain)) >= 3
