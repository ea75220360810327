"""ZRE nodes in virtual time; test_bad_input.py has the bad input."""

from ipaddress import ip_network

import pytest

from kelek.protocols.errors import LocalProtocolError
from kelek.protocols.zre import gossip
from kelek.protocols.zre.beacon import Beacon, decode_beacon
from kelek.protocols.zre.node import NodeMachine, NodeSetup
from kelek.protocols.zre.peers import EventKind
from kelek.protocols.zre.values import Version
from kelek.tests.protocols.zre.zre_world import World

FOREIGN = bytes(range(1, 17))  # No UUID of ours.
OTHER = b"\x09" * 16


def test_two_nodes_find_each_other_at_once() -> None:
    world = World(1)
    a = world.add("a", headers={"X-THING": "tcp://10.0.0.2:1"})
    world.run(500)
    b = world.add("b")
    world.run(8)
    assert a.peer_names() == {"b"}
    assert b.peer_names() == {"a"}
    (peer,) = b.node.peers.values()
    assert peer.headers == {"X-THING": "tcp://10.0.0.2:1"}
    assert peer.endpoint == f"tcp://{a.address}:61000"
    assert a.seen(EventKind.ENTER) == ["b"]
    assert b.seen(EventKind.ENTER) == ["a"]


@pytest.mark.parametrize("greeting", [Version.V1, Version.V2])
def test_groups_whispers_and_shouts(greeting: Version) -> None:
    world = World(2)
    hosts = [world.add(name, greeting=greeting) for name in "abc"]
    a, b, c = hosts
    b.node.join("chat")
    world.run(2000)
    c.node.join("chat")
    c.node.join("Chat")
    world.act(c)
    world.run(10)
    assert {group: len(found) for group, found in a.node.peer_groups.items()} == {
        "chat": 2,
        "Chat": 1,
    }
    assert a.node.shout("chat", [b"to all"]) == 2
    assert a.node.shout("nobody", [b"x"]) == 0
    assert a.node.whisper(b.node.uuid, [b"to b"])
    assert not a.node.whisper(FOREIGN, [b"x"])
    world.act(a)
    world.run(10)
    told = [(event.kind, event.group, event.content) for event in b.events if event.content]
    assert told == [
        (EventKind.SHOUT, "chat", [b"to all"]),
        (EventKind.WHISPER, "", [b"to b"]),
    ]
    assert [event.content for event in c.events if event.content] == [[b"to all"]]
    c.node.leave("chat")
    world.act(c)
    world.run(10)
    assert a.node.shout("chat", [b"again"]) == 1
    joined = [(event.kind, event.group) for event in a.events if event.group]
    assert joined == [
        (EventKind.JOIN, "chat"),
        (EventKind.JOIN, "chat"),
        (EventKind.JOIN, "Chat"),
        (EventKind.LEAVE, "chat"),
    ]


def test_a_node_that_is_killed_is_noticed_in_time() -> None:
    world = World(3)
    a, b = world.add("a"), world.add("b")
    a.node.join("g")
    b.node.join("g")
    world.run(3000)
    world.kill(b)
    world.run(4000)
    assert EventKind.EVASIVE not in {event.kind for event in a.events}
    world.run(2000)
    assert a.seen(EventKind.EVASIVE) == ["b"]
    world.run(6000)
    assert a.seen(EventKind.SILENT) == ["b"]
    world.run(16_000)
    assert a.seen(EventKind.EXIT) == []
    world.run(5000)
    assert a.seen(EventKind.EXIT) == ["b"]
    assert a.node.peer_groups == {}
    again = world.add("b")
    world.run(100)
    assert a.peer_names() == {"b"} == again.peer_names() ^ {"a", "b"}


def test_a_goodbye_ends_it_at_once() -> None:
    world = World(4)
    a, b = world.add("a"), world.add("b")
    world.run(2000)
    world.stop(b)
    world.run(10)
    assert a.seen(EventKind.EXIT) == ["b"]
    assert a.peer_names() == set()
    assert a.node.counters["goodbyes"] == 1


@pytest.mark.parametrize("greeting", list(Version))
@pytest.mark.parametrize("other", list(Version))
def test_a_goodbye_is_said_if_anybody_understands_it(greeting: Version, other: Version) -> None:
    """For nodes of RFC 20 alone a beacon of port 0 is invalid."""
    world = World(4)
    a = world.add("a", greeting=greeting, uuid=OTHER)
    b = world.add("b" if other is Version.V2 else "", greeting=other, uuid=FOREIGN)
    b.node.setup = b.node.setup._replace(times=b.node.setup.times._replace(greet_wait_ms=100))
    world.run(2000)
    a.node.stop()
    said = [decode_beacon(data) for data in a.node.ready(world.now_ms).beacons]
    assert said == ([] if greeting is other is Version.V1 else [Beacon(OTHER, 0)])


@pytest.mark.parametrize("seed", range(3))
def test_beacons_that_are_lost_lose_no_peer(seed: int) -> None:
    """With 30 % of beacons lost no peer is lost in 60 s."""
    world = World(seed, beacon_loss=0.3)
    hosts = [world.add(f"n{i}") for i in range(10)]
    world.run(60_000)
    names = {host.name for host in hosts}
    for host in hosts:
        assert host.peer_names() == names - {host.name}
        assert host.seen(EventKind.EXIT) == []


def test_without_any_beacon_pings_keep_peers() -> None:
    world = World(5)
    a, b = world.add("a"), world.add("b")
    world.run(2000)
    world.beacon_loss = 1.0
    world.run(120_000)
    assert a.seen(EventKind.EXIT) == b.seen(EventKind.EXIT) == []
    assert a.peer_names() == {"b"}
    assert a.seen(EventKind.EVASIVE)
    assert not a.seen(EventKind.SILENT)


def test_a_host_that_was_cut_off_comes_back() -> None:
    world = World(6)
    a, b, c = (world.add(name) for name in "abc")
    for host in (a, b, c):
        host.node.join("g")
    world.run(2000)
    world.cut = {c.address}
    world.run(60_000)
    assert a.peer_names() == {"b"}
    assert c.peer_names() == set()
    world.cut = set()
    world.run(3000)
    assert a.peer_names() == {"b", "c"}
    assert c.peer_names() == {"a", "b"}
    assert c.node.shout("g", [b"back"]) == 2
    world.act(c)
    world.run(10)
    assert a.events[-1].content == [b"back"]


def test_many_nodes_of_both_versions() -> None:
    world = World(7, beacon_loss=0.1)
    hosts = [
        world.add(f"n{i}", uuid=bytes([i + 1]) * 16, greeting=Version(1 + i % 2)) for i in range(20)
    ]
    for i, host in enumerate(hosts):
        host.node.join(f"g{i % 3}")
    world.run(10_000)
    assert all(len(host.node.peers) == 19 for host in hosts)
    for host in hosts:
        host.node.shout("g0", [host.name.encode()])
        world.act(host)
    world.run(100)
    for i, host in enumerate(hosts):
        heard = {event.content[0] for event in host.events if event.kind is EventKind.SHOUT}
        others = {other.name.encode() for other in hosts if other is not host}
        assert heard == (others if i % 3 == 0 else set())


def test_who_greets_in_v1_is_answered_in_v1() -> None:
    """A foreign node may greet first for half a second; then it is greeted as configured."""
    world = World(8)
    old = world.add("", uuid=FOREIGN, greeting=Version.V1)
    old.node.setup = old.node.setup._replace(times=old.node.setup.times._replace(greet_wait_ms=100))
    mute = world.add("mute", uuid=b"\x02" * 16)
    mute.node.setup = mute.node.setup._replace(
        times=mute.node.setup.times._replace(greet_wait_ms=5000)
    )
    new = world.add("new", uuid=b"\x03" * 16)
    world.run(400)
    assert {peer.version for peer in new.node.peers.values()} == {Version.V1}
    assert {len(link.routing_id) for link in new.links.values()} == {16}
    world.run(400)
    assert {peer.version for peer in new.node.peers.values()} == {Version.V1, Version.V2}
    assert sorted(len(link.routing_id) for link in new.links.values()) == [16, 17]


def test_a_v1_peer_takes_one_frame() -> None:
    world = World(9)
    old = world.add("", greeting=Version.V1, uuid=FOREIGN)
    new = world.add("new", uuid=b"\x02" * 16)
    old.node.join("g")
    world.run(5000)
    with pytest.raises(LocalProtocolError):
        new.node.whisper(old.node.uuid, [b"one", b"two"])
    assert new.node.shout("g", [b"one", b"two"]) == 0
    assert new.node.shout("g", [b"one"]) == 1
    world.act(new)
    world.run(10)
    assert old.node.counters["gaps"] == 0
    assert old.events[-1].content == [b"one"]


def test_status_that_differs_is_repaired() -> None:
    world = World(10)
    a, b = world.add("a"), world.add("b")
    b.node.join("lost")
    world.run(2000)
    (peer,) = a.node.peer_table
    a.node.peer_table.leave(peer, "lost")  # As if a JOIN had gone astray.
    peer.status = 0
    b.node.join("next")
    world.act(b)
    world.run(10)
    assert a.node.counters["status_gaps"] == 1
    assert set(a.node.peer_groups) == {"lost", "next"}
    b.node.join("last")
    world.act(b)
    world.run(10)
    assert set(a.node.peer_groups) == {"lost", "next", "last"}
    assert a.node.counters["status_gaps"] == 1
    assert a.seen(EventKind.EXIT) == b.seen(EventKind.EXIT) == []


def test_a_peer_that_takes_nothing_is_let_go_and_comes_back() -> None:
    world = World(11)
    a, b = world.add("a"), world.add("b")
    world.run(2000)
    world.full = {f"tcp://{b.address}:61000"}
    a.node.whisper(b.node.uuid, [b"x"])
    world.act(a)
    assert a.seen(EventKind.EXIT) == ["b"]
    world.full = set()
    world.run(3000)
    assert a.peer_names() == {"b"}
    assert b.peer_names() == {"a"}
    a.node.whisper(b.node.uuid, [b"y"])
    world.act(a)
    world.run(10)
    assert b.events[-1].content == [b"y"]


def test_static_peers_need_no_beacon() -> None:
    world = World(12, beacon_loss=1.0)
    a = world.add("a")
    b = world.add("b", static=(f"tcp://{a.address}:61000", "tcp://10.9.9.9:61000"))
    world.run(100)
    assert a.peer_names() == {"b"}
    assert b.peer_names() == {"a"}
    world.run(120_000)
    assert a.seen(EventKind.EXIT) == b.seen(EventKind.EXIT) == []
    world.kill(a)
    world.run(40_000)
    assert b.seen(EventKind.EXIT) == ["a"]
    world.add("again", address=a.address)
    world.run(10_000)
    assert b.peer_names() == {"again"}


def test_a_static_peer_that_restarts_as_another_is_met_at_once() -> None:
    """The restarted peer does not know us and gets no beacon: only our HELLO helps."""
    world = World(12, beacon_loss=1.0)
    a = world.add("a")
    b = world.add("b", static=(f"tcp://{a.address}:61000",))
    world.run(1000)
    world.kill(a)
    world.run(1000)
    again = world.add("again", address=a.address)
    world.run(10)
    assert b.peer_names() == {"again"}
    assert (b.seen(EventKind.ENTER), b.seen(EventKind.EXIT)) == (["a", "again"], ["a"])
    assert again.peer_names() == {"b"}
    assert again.seen(EventKind.EXIT) == []
    greetings = world.greetings
    world.run(60_000)
    assert world.greetings == greetings, "they greet each other no more"


def test_a_connection_that_is_lost_again_and_again_costs_a_hello_in_5_s() -> None:
    """The peer still lives: there is no EXIT."""
    world = World(12, beacon_loss=1.0)
    a = world.add("a")
    b = world.add("b", static=(f"tcp://{a.address}:61000",))
    world.run(1000)
    greetings = world.greetings
    for _ in range(100):
        (number,) = b.links
        b.node.on_disconnected(number, world.now_ms)
        world.act(b)
        world.run(200)
    assert world.greetings - greetings <= 2 * (20_000 // 5000 + 1)
    assert a.seen(EventKind.EXIT) == b.seen(EventKind.EXIT) == []
    assert (a.peer_names(), b.peer_names()) == ({"b"}, {"a"})


def test_a_static_peer_that_is_itself() -> None:
    world = World(13)
    a = world.add("a", static=("tcp://10.0.0.2:61000",))
    world.run(20_000)
    assert a.node.status()["unready"] == 0


def test_sequences_wrap() -> None:
    world = World(14)
    a, b = world.add("a"), world.add("b")
    world.run(2000)
    for _ in range(70):
        for _ in range(1000):
            a.node.whisper(b.node.uuid, [b"x"])
        world.act(a)
        world.run(2)
    assert sum(event.kind is EventKind.WHISPER for event in b.events) == 70_000
    assert b.node.counters["gaps"] == 0


def test_a_group_has_one_leader() -> None:
    world = World(15)
    hosts = [world.add(name) for name in "abcd"]
    for host in hosts:
        host.node.join("g")
        host.node.elect("g")
    world.run(2000)
    least = min(host.node.uuid for host in hosts)
    assert {host.node.leader("g") for host in hosts} == {least}
    (first,) = (host for host in hosts if host.node.uuid == least)
    world.kill(first)
    world.run(40_000)
    rest = [host for host in hosts if host is not first]
    second = min(host.node.uuid for host in rest)
    assert {host.node.leader("g") for host in rest} == {second}
    leaders = [event for event in rest[0].events if event.kind is EventKind.LEADER]
    assert leaders[-1].group == "g"
    for host in rest:
        host.node.leave("g")
        world.act(host)
    world.run(10)
    assert {host.node.leader("g") for host in rest} == {None}


def test_beacons_are_not_answered_by_storms() -> None:
    """Two hundred nodes at once; each sends no more than necessary."""
    world = World(16)
    hosts = [world.add(f"n{i}") for i in range(60)]
    world.run(5000)
    assert all(len(host.node.peers) == 59 for host in hosts)
    assert world.beacons_sent < 60 * 12


@pytest.mark.parametrize(
    "setting",
    [
        {"name": "x" * 256},
        {"headers": {"k": "v" * 70_000}},
        {"uuid": b"\0" * 16},
        {"uuid": b"\1" * 15},
        {"static": ("tcp://somewhere:1",)},
        {"address": "0.0.0.0.0"},
    ],
)
def test_what_can_not_be_said(setting: dict[str, object]) -> None:
    setup = NodeSetup(FOREIGN, "10.0.0.1", 61_000)
    with pytest.raises(LocalProtocolError):
        NodeMachine(setup._replace(**setting), 0)  # type: ignore[arg-type]


def test_group_names_have_a_limit() -> None:
    node = World(18).add("a").node
    node.join("x" * 255)
    for name in ("", "x" * 256, "é" * 128):
        with pytest.raises(LocalProtocolError):
            node.join(name)


def test_a_header_that_is_set_reaches_all() -> None:
    world = World(19)
    hosts = [world.add(name) for name in "abc"]
    for host in hosts:
        host.node.join("g")
    world.run(2000)
    hosts[0].node.set_header("X-NEW", "tcp://1.2.3.4:5", world.now_ms)
    world.act(hosts[0])
    world.run(10)
    for host in hosts[1:]:
        assert host.node.peers[hosts[0].node.uuid].headers == {"X-NEW": "tcp://1.2.3.4:5"}
        assert host.seen(EventKind.CHANGED) == ["a"]
    assert hosts[0].node.shout("g", [b"x"]) == 2
    world.act(hosts[0])
    world.run(10)
    assert [host.events[-1].content for host in hosts[1:]] == [[b"x"], [b"x"]]
    with pytest.raises(LocalProtocolError):
        hosts[0].node.set_header("X" * 256, "", world.now_ms)
    world.run(20_000)
    assert not any(host.seen(EventKind.EXIT) for host in hosts)


@pytest.mark.parametrize("greeting", list(Version))
def test_gossip_makes_a_mesh_where_udp_is_closed(greeting: Version) -> None:
    """All nodes know one seed, which gossips; users get no events of gossip."""
    world = World(20, beacon_loss=1.0)
    subnets = (ip_network("10.0.0.0/24"),)
    seed = world.add("seed", gossip=True, subnets=subnets, greeting=greeting)
    static = (f"tcp://{seed.address}:61000",)
    hosts = [
        world.add(f"n{i}", static=static, gossip=True, subnets=subnets, greeting=greeting)
        for i in range(20)
    ]
    mute = world.add("mute", static=static)
    world.run(5000)
    assert all(len(host.node.peers) == 21 for host in hosts)
    assert len(mute.node.peers) == 21, "who does not gossip is told of"
    assert all(event.kind is EventKind.ENTER for host in hosts for event in host.events)
    world.run(60_000)
    assert not any(host.seen(EventKind.EXIT) for host in [seed, *hosts])


def test_gossip_leads_nobody_out_of_its_subnets() -> None:
    world = World(21, beacon_loss=1.0)
    seed = world.add("seed", gossip=True)
    static = (f"tcp://{seed.address}:61000",)
    hosts = [world.add(name, static=static, gossip=True) for name in "ab"]
    world.run(5000)
    assert [host.peer_names() for host in hosts] == [{"seed"}, {"seed"}]
    assert sum(host.node.counters["gossip_address"] for host in hosts) == 2
    for junk in (b"x", OTHER, OTHER + b"\xfftcp", OTHER + b"\x03abc", OTHER + b"\x00"):
        seed.node.whisper(hosts[0].node.uuid, [gossip.MARK + junk])
    world.act(seed)
    world.run(10)
    counters = hosts[0].node.counters
    assert counters["gossip_short"] + counters["gossip_address"] == 6
    assert hosts[0].seen(EventKind.WHISPER) == []
