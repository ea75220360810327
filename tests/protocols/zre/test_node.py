"""ZRE nodes in virtual time; test_bad_input.py has the bad input."""

from ipaddress import ip_network

import pytest

from kelek.protocols.errors import LocalProtocolError
from kelek.protocols.zre import gossip
from kelek.protocols.zre.beacon import Beacon, decode_beacon
from kelek.protocols.zre.effects import NodeSetup
from kelek.protocols.zre.node import NodeMachine
from kelek.protocols.zre.peers import EventKind
from kelek.protocols.zre.values import Version
from kelek.tests.protocols.zre.zre_network import ZreNetwork

FOREIGN = bytes(range(1, 17))  # No UUID of ours.
OTHER = b"\x09" * 16


def test_two_nodes_find_each_other_at_once() -> None:
    network = ZreNetwork(1)
    a = network.add("a", headers={"X-THING": "tcp://10.0.0.2:1"})
    network.run(500)
    b = network.add("b")
    network.run(8)
    assert a.peer_names() == {"b"}
    assert b.peer_names() == {"a"}
    (peer,) = b.node.peers.values()
    assert peer.headers == {"X-THING": "tcp://10.0.0.2:1"}
    assert peer.endpoint == f"tcp://{a.address}:61000"
    assert a.seen(EventKind.ENTER) == ["b"]
    assert b.seen(EventKind.ENTER) == ["a"]


@pytest.mark.parametrize("greeting", [Version.V1, Version.V2])
def test_groups_whispers_and_shouts(greeting: Version) -> None:
    network = ZreNetwork(2)
    hosts = [network.add(name, greeting=greeting) for name in "abc"]
    a, b, c = hosts
    b.node.join("chat")
    network.run(2000)
    c.node.join("chat")
    c.node.join("Chat")
    network.act(c)
    network.run(10)
    assert {group: len(found) for group, found in a.node.peer_groups.items()} == {
        "chat": 2,
        "Chat": 1,
    }
    assert a.node.shout("chat", [b"to all"]) == 2
    assert a.node.shout("nobody", [b"x"]) == 0
    assert a.node.whisper(b.node.uuid, [b"to b"])
    assert not a.node.whisper(FOREIGN, [b"x"])
    network.act(a)
    network.run(10)
    told = [(event.kind, event.group, event.content) for event in b.events if event.content]
    assert told == [
        (EventKind.SHOUT, "chat", [b"to all"]),
        (EventKind.WHISPER, "", [b"to b"]),
    ]
    assert [event.content for event in c.events if event.content] == [[b"to all"]]
    c.node.leave("chat")
    network.act(c)
    network.run(10)
    assert a.node.shout("chat", [b"again"]) == 1
    joined = [(event.kind, event.group) for event in a.events if event.group]
    assert joined == [
        (EventKind.JOIN, "chat"),
        (EventKind.JOIN, "chat"),
        (EventKind.JOIN, "Chat"),
        (EventKind.LEAVE, "chat"),
    ]


def test_a_node_that_is_killed_is_noticed_in_time() -> None:
    network = ZreNetwork(3)
    a, b = network.add("a"), network.add("b")
    a.node.join("g")
    b.node.join("g")
    network.run(3000)
    network.kill(b)
    network.run(4000)
    assert EventKind.EVASIVE not in {event.kind for event in a.events}
    network.run(2000)
    assert a.seen(EventKind.EVASIVE) == ["b"]
    network.run(6000)
    assert a.seen(EventKind.SILENT) == ["b"]
    network.run(16_000)
    assert a.seen(EventKind.EXIT) == []
    network.run(5000)
    assert a.seen(EventKind.EXIT) == ["b"]
    assert a.node.peer_groups == {}
    again = network.add("b")
    network.run(100)
    assert a.peer_names() == {"b"} == again.peer_names() ^ {"a", "b"}


@pytest.mark.parametrize("greeting", list(Version))
@pytest.mark.parametrize("other", list(Version))
def test_a_goodbye_is_sent_to_peers_that_know_it(greeting: Version, other: Version) -> None:
    """For nodes of RFC 20 alone a beacon of port 0 is invalid."""
    network = ZreNetwork(4)
    a = network.add("a", greeting=greeting, uuid=OTHER)
    b = network.add("b" if other is Version.V2 else "", greeting=other, uuid=FOREIGN)
    b.node.setup = b.node.setup._replace(times=b.node.setup.times._replace(greet_wait_ms=100))
    network.run(2000)
    a.node.stop()
    said = [decode_beacon(data) for data in a.node.ready(network.now_ms).beacons]
    assert said == ([] if greeting is other is Version.V1 else [Beacon(OTHER, 0)])


def test_without_any_beacon_pings_keep_peers() -> None:
    network = ZreNetwork(5)
    a, b = network.add("a"), network.add("b")
    network.run(2000)
    network.beacon_loss = 1.0
    network.run(120_000)
    assert a.seen(EventKind.EXIT) == b.seen(EventKind.EXIT) == []
    assert a.peer_names() == {"b"}
    assert a.seen(EventKind.EVASIVE)
    assert not a.seen(EventKind.SILENT)


def test_many_nodes_of_both_versions() -> None:
    network = ZreNetwork(7, beacon_loss=0.1)
    hosts = [
        network.add(f"n{i}", uuid=bytes([i + 1]) * 16, greeting=Version(1 + i % 2))
        for i in range(20)
    ]
    for i, host in enumerate(hosts):
        host.node.join(f"g{i % 3}")
    network.run(10_000)
    assert all(len(host.node.peers) == 19 for host in hosts)
    for host in hosts:
        host.node.shout("g0", [host.name.encode()])
        network.act(host)
    network.run(100)
    for i, host in enumerate(hosts):
        heard = {event.content[0] for event in host.events if event.kind is EventKind.SHOUT}
        others = {other.name.encode() for other in hosts if other is not host}
        assert heard == (others if i % 3 == 0 else set())


def test_a_hello_of_version_1_is_answered_in_version_1() -> None:
    """A foreign node may greet first for half a second; then it is greeted as configured."""
    network = ZreNetwork(8)
    old = network.add("", uuid=FOREIGN, greeting=Version.V1)
    old.node.setup = old.node.setup._replace(times=old.node.setup.times._replace(greet_wait_ms=100))
    mute = network.add("mute", uuid=b"\x02" * 16)
    mute.node.setup = mute.node.setup._replace(
        times=mute.node.setup.times._replace(greet_wait_ms=5000)
    )
    new = network.add("new", uuid=b"\x03" * 16)
    network.run(400)
    assert {peer.version for peer in new.node.peers.values()} == {Version.V1}
    assert {len(link.routing_id) for link in new.links.values()} == {16}
    network.run(400)
    assert {peer.version for peer in new.node.peers.values()} == {Version.V1, Version.V2}
    assert sorted(len(link.routing_id) for link in new.links.values()) == [16, 17]


def test_a_v1_peer_takes_one_frame() -> None:
    network = ZreNetwork(9)
    old = network.add("", greeting=Version.V1, uuid=FOREIGN)
    new = network.add("new", uuid=b"\x02" * 16)
    old.node.join("g")
    network.run(5000)
    with pytest.raises(LocalProtocolError):
        new.node.whisper(old.node.uuid, [b"one", b"two"])
    assert new.node.shout("g", [b"one", b"two"]) == 0
    assert new.node.shout("g", [b"one"]) == 1
    network.act(new)
    network.run(10)
    assert old.node.counters["gaps"] == 0
    assert old.events[-1].content == [b"one"]


def test_status_that_differs_is_repaired() -> None:
    network = ZreNetwork(10)
    a, b = network.add("a"), network.add("b")
    b.node.join("lost")
    network.run(2000)
    (peer,) = a.node.peer_table
    a.node.peer_table.leave(peer, "lost")  # As if a JOIN had gone astray.
    peer.status = 0
    b.node.join("next")
    network.act(b)
    network.run(10)
    assert a.node.counters["status_gaps"] == 1
    assert set(a.node.peer_groups) == {"lost", "next"}
    b.node.join("last")
    network.act(b)
    network.run(10)
    assert set(a.node.peer_groups) == {"lost", "next", "last"}
    assert a.node.counters["status_gaps"] == 1
    assert a.seen(EventKind.EXIT) == b.seen(EventKind.EXIT) == []


def test_static_peers_need_no_beacon() -> None:
    network = ZreNetwork(12, beacon_loss=1.0)
    a = network.add("a")
    b = network.add("b", static_peers=(f"tcp://{a.address}:61000", "tcp://10.9.9.9:61000"))
    network.run(100)
    assert a.peer_names() == {"b"}
    assert b.peer_names() == {"a"}
    network.run(120_000)
    assert a.seen(EventKind.EXIT) == b.seen(EventKind.EXIT) == []
    network.kill(a)
    network.run(40_000)
    assert b.seen(EventKind.EXIT) == ["a"]
    network.add("again", address=a.address)
    network.run(10_000)
    assert b.peer_names() == {"again"}


def test_a_static_peer_that_restarts_as_another_is_met_at_once() -> None:
    """The restarted peer does not know us and gets no beacon: only our HELLO helps."""
    network = ZreNetwork(12, beacon_loss=1.0)
    a = network.add("a")
    b = network.add("b", static_peers=(f"tcp://{a.address}:61000",))
    network.run(1000)
    network.kill(a)
    network.run(1000)
    again = network.add("again", address=a.address)
    network.run(10)
    assert b.peer_names() == {"again"}
    assert (b.seen(EventKind.ENTER), b.seen(EventKind.EXIT)) == (["a", "again"], ["a"])
    assert again.peer_names() == {"b"}
    assert again.seen(EventKind.EXIT) == []
    greetings = network.greetings
    network.run(60_000)
    assert network.greetings == greetings, "they greet each other no more"


def test_a_connection_that_is_lost_again_and_again_costs_a_hello_in_5_s() -> None:
    """The peer still lives: there is no EXIT."""
    network = ZreNetwork(12, beacon_loss=1.0)
    a = network.add("a")
    b = network.add("b", static_peers=(f"tcp://{a.address}:61000",))
    network.run(1000)
    greetings = network.greetings
    for _ in range(100):
        (number,) = b.links
        b.node.on_disconnected(number, network.now_ms)
        network.act(b)
        network.run(200)
    assert network.greetings - greetings <= 2 * (20_000 // 5000 + 1)
    assert a.seen(EventKind.EXIT) == b.seen(EventKind.EXIT) == []
    assert (a.peer_names(), b.peer_names()) == ({"b"}, {"a"})


def test_a_static_peer_that_is_itself() -> None:
    network = ZreNetwork(13)
    a = network.add("a", static_peers=("tcp://10.0.0.2:61000",))
    network.run(20_000)
    assert a.node.status()["unready"] == 0


def test_sequences_wrap() -> None:
    network = ZreNetwork(14)
    a, b = network.add("a"), network.add("b")
    network.run(2000)
    for _ in range(70):
        for _ in range(1000):
            a.node.whisper(b.node.uuid, [b"x"])
        network.act(a)
        network.run(2)
    assert sum(event.kind is EventKind.WHISPER for event in b.events) == 70_000
    assert b.node.counters["gaps"] == 0


def test_a_group_has_one_leader() -> None:
    network = ZreNetwork(15)
    hosts = [network.add(name) for name in "abcd"]
    for host in hosts:
        host.node.join("g")
        host.node.elect("g")
    network.run(2000)
    least = min(host.node.uuid for host in hosts)
    assert {host.node.leader("g") for host in hosts} == {least}
    (first,) = (host for host in hosts if host.node.uuid == least)
    network.kill(first)
    network.run(40_000)
    rest = [host for host in hosts if host is not first]
    second = min(host.node.uuid for host in rest)
    assert {host.node.leader("g") for host in rest} == {second}
    leaders = [event for event in rest[0].events if event.kind is EventKind.LEADER]
    assert leaders[-1].group == "g"
    for host in rest:
        host.node.leave("g")
        network.act(host)
    network.run(10)
    assert {host.node.leader("g") for host in rest} == {None}


def test_beacons_are_not_answered_by_storms() -> None:
    """Two hundred nodes at once; each sends no more than necessary."""
    network = ZreNetwork(16)
    hosts = [network.add(f"n{i}") for i in range(60)]
    network.run(5000)
    assert all(len(host.node.peers) == 59 for host in hosts)
    assert network.beacons_sent < 60 * 12


@pytest.mark.parametrize(
    "setting",
    [
        {"name": "x" * 256},
        {"headers": {"k": "v" * 70_000}},
        {"uuid": b"\0" * 16},
        {"uuid": b"\1" * 15},
        {"static_peers": ("tcp://somewhere:1",)},
        {"address": "0.0.0.0.0"},
    ],
)
def test_values_that_cannot_be_encoded(setting: dict[str, object]) -> None:
    setup = NodeSetup(FOREIGN, "10.0.0.1", 61_000)
    with pytest.raises(LocalProtocolError):
        NodeMachine(setup._replace(**setting), 0)  # type: ignore[arg-type]


def test_group_names_have_a_limit() -> None:
    node = ZreNetwork(18).add("a").node
    node.join("x" * 255)
    for name in ("", "x" * 256, "é" * 128):
        with pytest.raises(LocalProtocolError):
            node.join(name)


def test_a_header_that_is_set_reaches_all() -> None:
    network = ZreNetwork(19)
    hosts = [network.add(name) for name in "abc"]
    for host in hosts:
        host.node.join("g")
    network.run(2000)
    hosts[0].node.set_headers({"X-NEW": "tcp://1.2.3.4:5"}, network.now_ms)
    network.act(hosts[0])
    network.run(10)
    for host in hosts[1:]:
        assert host.node.peers[hosts[0].node.uuid].headers == {"X-NEW": "tcp://1.2.3.4:5"}
        assert host.seen(EventKind.CHANGED) == ["a"]
    assert hosts[0].node.shout("g", [b"x"]) == 2
    network.act(hosts[0])
    network.run(10)
    assert [host.events[-1].content for host in hosts[1:]] == [[b"x"], [b"x"]]
    with pytest.raises(LocalProtocolError):
        hosts[0].node.set_headers({"X" * 256: ""}, network.now_ms)
    network.run(20_000)
    assert not any(host.seen(EventKind.EXIT) for host in hosts)


@pytest.mark.parametrize("greeting", list(Version))
def test_gossip_makes_a_mesh_where_udp_is_closed(greeting: Version) -> None:
    """All nodes know one seed, which gossips; users get no events of gossip."""
    network = ZreNetwork(20, beacon_loss=1.0)
    subnets = (ip_network("10.0.0.0/24"),)
    seed = network.add("seed", gossip=True, subnets=subnets, greeting=greeting)
    static = (f"tcp://{seed.address}:61000",)
    hosts = [
        network.add(f"n{i}", static_peers=static, gossip=True, subnets=subnets, greeting=greeting)
        for i in range(20)
    ]
    mute = network.add("mute", static_peers=static)
    network.run(5000)
    assert all(len(host.node.peers) == 21 for host in hosts)
    assert len(mute.node.peers) == 21, "who does not gossip is told of"
    assert all(event.kind is EventKind.ENTER for host in hosts for event in host.events)
    network.run(60_000)
    assert not any(host.seen(EventKind.EXIT) for host in [seed, *hosts])


def test_gossip_reaches_no_address_outside_the_subnets() -> None:
    network = ZreNetwork(21, beacon_loss=1.0)
    seed = network.add("seed", gossip=True)
    static = (f"tcp://{seed.address}:61000",)
    hosts = [network.add(name, static_peers=static, gossip=True) for name in "ab"]
    network.run(5000)
    assert [host.peer_names() for host in hosts] == [{"seed"}, {"seed"}]
    assert sum(host.node.counters["gossip_address"] for host in hosts) == 2
    for junk in (b"x", OTHER, OTHER + b"\xfftcp", OTHER + b"\x03abc", OTHER + b"\x00"):
        seed.node.whisper(hosts[0].node.uuid, [gossip.MARK + junk])
    network.act(seed)
    network.run(10)
    counters = hosts[0].node.counters
    assert counters["gossip_short"] + counters["gossip_address"] == 6
    assert hosts[0].seen(EventKind.WHISPER) == []
