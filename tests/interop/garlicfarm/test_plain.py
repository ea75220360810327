"""Farm servers beside one that is written from the protocol's description alone."""

from functools import partial

import pytest

from kelek.protocols.garlicfarm.app.orders import encode_order
from kelek.protocols.garlicfarm.app.posters import POSTER_PREFIX
from kelek.protocols.garlicfarm.server import membership
from kelek.protocols.garlicfarm.wire.messages import MessageType
from kelek.protocols.raft.core import Role
from kelek.tests.interop.garlicfarm.farm_plain import APPLICATION, Plain
from kelek.tests.protocols.garlicfarm.app.app_world import AppWorld, publish
from kelek.tests.protocols.garlicfarm.farm_world import Client, World, client_request, server

PLAIN = 3
SLOW: dict[str, int] = {"election_timeout_ms_min": 20_000, "election_timeout_ms_max": 30_000}

FAST: dict[str, int] = {"election_timeout_ms_min": 3000, "election_timeout_ms_max": 5000}


def mixed(seed: int = 1, plain_leads: bool = False) -> tuple[World, Plain]:
    """Two kelek servers and a plain one, all initial members."""
    world = World(seed, (1, 2, 3), (PLAIN,))
    plain = add_plain(world, {each.id: each.endpoint for each in world.members}, PLAIN)
    if plain_leads:
        for number in (1, 2):
            world.kill(number)
            world.start(number, world.members, **SLOW)
        world.run_until(lambda: plain.role == "leader" and plain.commit > 0)
    else:
        world.elect()
    return world, plain


def add_plain(world: World, servers: dict[int, str], number: int) -> Plain:
    plain = Plain(number, servers, world.now_ms, world.random.randrange(1000))
    world.others[number] = plain
    return plain


def values_of(world: World, number: int) -> list[bytes]:
    """The Application entries that a kelek server has committed."""
    return [data for kind, data in world.committed(number).values() if kind == 0]


def plain_values(plain: Plain) -> list[bytes]:
    log = plain.log[: plain.commit - plain.start + 1]
    values = [entry.value for entry in log if entry.kind == APPLICATION]
    return [value for value in values if not value.startswith(POSTER_PREFIX)]


def test_it_follows_ours() -> None:
    world, plain = mixed()
    told = [b"value %d" % number for number in range(30)]
    for value in told:
        assert world.ask(client_request(value)).is_accepted
    world.run(2000)
    assert plain_values(plain) == told
    assert plain.leader == world.leader
    follower = next(number for number in (1, 2) if number != world.leader)
    world.kill(follower)
    assert world.ask(client_request(b"its vote counts")).is_accepted
    assert world.peers[plain.leader].malformed == 0


@pytest.mark.parametrize("lost", [1, 3, 30], ids=["one", "tail", "disk"])
def test_it_is_fed_again_when_it_has_lost_what_it_confirmed(lost: int) -> None:
    """JRaft does not sync: after a power cut its last entries are gone. Without the repair,
    nothing would be committed while a kelek server is down.
    """
    world, plain = mixed()
    told = [b"value %d" % number for number in range(20)]
    for value in told:
        assert world.ask(client_request(value)).is_accepted
    world.run(2000)
    assert plain_values(plain) == told
    leader = world.leader
    world.kill(PLAIN)
    del plain.log[-lost:]
    plain.commit = min(plain.commit, plain.last)
    world.others[PLAIN] = plain
    world.kill(next(number for number in (1, 2) if number != leader))
    assert world.ask(client_request(b"by its acknowledgement")).is_accepted
    world.run(2000)
    assert plain_values(plain) == [*told, b"by its acknowledgement"]
    assert world.leader == leader, "it was not helped by an election"


@pytest.mark.parametrize("seed", range(3))
def test_it_votes(seed: int) -> None:
    """No kelek server could win without its vote."""
    world, plain = mixed(seed)
    leader = world.leader
    assert leader is not None
    world.kill(leader)
    world.run_until(lambda: world.leader is not None or plain.role == "leader")
    if world.leader is not None:
        assert world.ask(client_request(b"on we go")).is_accepted


def test_it_leads_ours() -> None:
    world, plain = mixed(plain_leads=True)
    client = Client(world, PLAIN)
    told = [b"value %d" % number for number in range(30)]
    for value in told:
        client.send(client_request(value))
        world.run(50)
    world.run_until(lambda: plain_values(plain) == told)
    world.run(3000)
    assert [answer.is_accepted for answer in client.answers] == [True] * 30
    for number in (1, 2):
        assert values_of(world, number) == told
        assert world.peers[number].core.leader == str(PLAIN)
        assert world.peers[number].malformed == 0
    answer = world.ask(client_request(b"x"), 1)
    assert (answer.destination, answer.is_accepted, answer.next_index) == (PLAIN, False, 0)


def test_kelek_servers_accept_its_large_entry() -> None:
    """Above the limit for clients: other servers have committed it."""
    world, plain = mixed(plain_leads=True)
    term, large = plain.term, bytes(17 << 20)
    for value in (large, b"behind it"):
        Client(world, PLAIN).send(client_request(value))
    world.run_until(lambda: values_of(world, 1) == values_of(world, 2) == [large, b"behind it"])
    assert (plain.role, plain.term) == ("leader", term)
    assert [peer.malformed for peer in world.peers.values()] == [0, 0]


def test_it_is_not_deposed_by_a_server_that_it_can_not_feed() -> None:
    """Its requests are too large for server 1, but count as heartbeats."""
    world, plain = mixed(plain_leads=True)
    world.kill(1)
    Client(world, PLAIN).send(client_request(bytes(200_000)))
    world.run_until(lambda: len(values_of(world, 2)) == 1)
    term = plain.term
    world.start(1, world.members, **FAST, entries_bytes_max=100_000)
    world.run(30_000)
    assert world.peers[1].malformed > 5
    assert (plain.role, plain.term) == ("leader", term)
    assert world.peers[1].core.leader == str(PLAIN)


def test_ours_catch_up_from_it() -> None:
    """Also when none of their entries match."""
    world, plain = mixed(plain_leads=True)
    world.kill(1)
    client = Client(world, PLAIN)
    client.send(*[client_request(b"%d" % number) for number in range(40)])
    world.run_until(lambda: len(plain_values(plain)) == 40)
    world.start(1)
    world.run_until(lambda: values_of(world, 1) == plain_values(plain))
    world.kill(1)
    del world.disks[1]
    world.start(1, world.members, **SLOW)
    world.run_until(lambda: values_of(world, 1) == plain_values(plain))


@pytest.mark.parametrize("own_entries", [0, 1, 7])
@pytest.mark.parametrize("compacted", [False, True])
def test_it_joins_a_kelek_farm(compacted: bool, own_entries: int) -> None:
    """Also after it has led a cluster of one: it keeps its entries, as JRaft's servers do, and
    answers JoinCluster with the index after them.
    """
    world = World(members=(1, 2))
    for number in (1, 2):  # Needs many packs, whose offsets are checked.
        world.kill(number)
        world.start(number, world.members, sync_entries_max=4, sync_gap=2)
    told = [b"value %d" % number for number in range(25)]
    for value in told:
        world.ask(client_request(value))
    world.run(1000)
    if compacted:
        for number in (1, 2):
            world.snapshot(number, bytes(10_000))
        told = [b"later"]
        world.ask(client_request(*told))
    plain = add_plain(world, {}, 4)
    for _ in range(own_entries):
        plain.append(APPLICATION, b"of its own")
    assert world.ask(membership.add_server_request(server(4))).is_accepted
    world.run_until(lambda: not plain.joining)
    world.run_until(lambda: 4 in world.ids(1) and 4 in world.ids(2))
    assert world.ask(client_request(b"last")).is_accepted
    world.run_until(lambda: plain_values(plain) == [*told, b"last"])
    assert (plain.snapshot == bytes(10_000)) is compacted
    leader_log = world.committed(world.elect())
    assert [entry.value for entry in plain.log[:3]] == [
        leader_log[plain.start + at][1] for at in range(3)
    ]
    # And leaves again.
    assert world.ask(membership.remove_server_request(4)).is_accepted
    world.run_until(lambda: plain.left and world.ids(world.elect()) == [1, 2])


@pytest.mark.parametrize("compacted", [False, True])
def test_a_kelek_server_joins_its_farm(compacted: bool) -> None:
    world, plain = mixed(plain_leads=True)
    client = Client(world, PLAIN)
    client.send(*[client_request(b"%d" % number) for number in range(40)])
    world.run_until(lambda: len(plain_values(plain)) == 40)
    world.run(2000)
    if compacted:
        plain.compact(bytes(range(250)) * 50)
        client.send(client_request(b"later"))
        world.run_until(lambda: plain_values(plain) == [b"later"])
    world.start(4, (), **SLOW)
    world.run(500)
    client.send(membership.add_server_request(server(4)))
    world.run_until(lambda: 4 in plain.servers and 4 in world.ids(4))
    world.run_until(lambda: values_of(world, 4) == plain_values(plain))
    assert world.disks[4].snapshot == plain.snapshot
    assert world.peers[4].malformed == 0
    client.send(membership.remove_server_request(4))
    world.run_until(lambda: 4 not in plain.servers and not world.peers[4].is_member, 100_000)
    assert world.peers[4].core.role is Role.FOLLOWER
    kinds = [answer.type for answer in client.answers[-2:]]
    assert kinds == [MessageType.ADD_SERVER_RESPONSE, MessageType.REMOVE_SERVER_RESPONSE]
    # A removed server disturbs no other, also after a restart.
    world.kill(4)
    world.start(4)
    world.run(60_000)
    assert plain.role == "leader"
    client.send(client_request(b"last"))
    world.run_until(lambda: all(values_of(world, number)[-1:] == [b"last"] for number in (1, 2)))


def test_an_empty_follower_of_a_compacted_leader() -> None:
    """It refuses with next index 2, as 1 would stall a JRaft leader, and gets a snapshot."""
    world, plain = mixed(plain_leads=True)
    client = Client(world, PLAIN)
    client.send(*[client_request(b"%d" % number) for number in range(10)])
    world.run_until(lambda: len(values_of(world, 1)) == len(values_of(world, 2)) == 10)
    world.run(2000)
    plain.compact(b"a snapshot")
    world.kill(1)
    del world.disks[1]
    world.start(1, world.members)
    world.run_until(lambda: world.disks[1].snapshot == b"a snapshot")
    client.send(client_request(b"more"))
    world.run_until(lambda: values_of(world, 1) == [b"more"])


def has_answer(client: Client) -> bool:
    return bool(client.answers or client.closed)


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_lost_under_any_leader(seed: int) -> None:
    """Connections end and kelek servers are killed, with any outcome of elections."""
    world, plain = mixed(seed)
    told: list[bytes] = []
    for number in range(12):
        value = b"value %d" % number
        world.run_until(lambda: world.leader is not None or plain.role == "leader")
        if world.leader is not None and plain.role != "leader":
            # The plain server confirms before the commit, so its entries may be lost.
            client = Client(world, world.leader)
            client.send(client_request(value))
            world.run_until(partial(has_answer, client), 5000, must=False)
            told += [value for answer in client.answers if answer.is_accepted]
        world.break_links()
        world.run(world.random.randint(0, 2000))
        if number % 4 == 1:
            victim = world.random.choice((1, 2))
            world.kill(victim)
            world.run(world.random.randint(0, 6000))
            world.start(victim, world.members)
    world.run(20_000)
    world.check_same()
    assert told
    for found in (values_of(world, 1), values_of(world, 2), plain_values(plain)):
        assert [value for value in dict.fromkeys(found) if value in told] == told


def test_ours_post_through_it() -> None:
    """Their documents and orders are ordinary entries to it."""
    world = AppWorld(others=(PLAIN,))
    plain = add_plain(world, {each.id: each.endpoint for each in world.members}, PLAIN)
    for number in (1, 2):
        world.kill(number)
        world.start(number, world.members, **SLOW)
    world.run_until(lambda: plain.role == "leader" and plain.commit > 0)
    world.run_until(lambda: all(set(app.state.posted) == {1, 2} for app in world.apps.values()))
    client = Client(world, PLAIN)
    client.send(client_request(encode_order(publish(2))))
    world.run_until(lambda: all(app.publisher == 2 for app in world.apps.values()))
    world.run_until(world.is_settled)
    assert len(world.encoded) == 1
    assert len(plain_values(plain)) >= 3
