"""A ZRE node under bad input: forged beacons and HELLOs, junk, floods, gaps."""

from collections import Counter
from collections.abc import Sequence
from ipaddress import ip_network
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kelek.native.net.messages import Arena
from kelek.protocols.zre import codec
from kelek.protocols.zre.beacon import Beacon, decode_beacon, encode_beacon, own_uuid
from kelek.protocols.zre.codec import Command, Hello, Join, Ping, Shout, Whisper
from kelek.protocols.zre.effects import CloseLink, Connect, NodeEffects, NodeSetup
from kelek.protocols.zre.limiter import PeerAllowance
from kelek.protocols.zre.node import NodeMachine
from kelek.protocols.zre.peers import EventKind
from kelek.protocols.zre.values import Version

ME = own_uuid(b"\x11" * 14)
OTHER = b"\x02" * 16
SOURCE = "10.0.0.2"
HELLO = Hello(SOURCE, 61_000, ("g",), 1, "other", {})


class NodeWithPeer:
    """A node, and a foreign peer at SOURCE."""

    def __init__(self, version: Version = Version.V2, **settings: object) -> None:
        setup = NodeSetup(ME, "10.0.0.1", 61_000, "me", beacons=False)
        self.node = NodeMachine(setup._replace(**settings), 0)  # type: ignore[arg-type]
        self.version = version
        self.now_ms = 0

    def say(
        self, sequence: int, command: Command, source: str = SOURCE, uuid: bytes = OTHER
    ) -> NodeEffects:
        return self.send(codec.encode(sequence, command, self.version), source, uuid)

    def send(
        self, frames: Sequence[bytes], source: str = SOURCE, uuid: bytes = OTHER
    ) -> NodeEffects:
        routing_id = codec.routing_id(uuid, self.version)
        arena = Arena.from_messages([[routing_id, source.encode(), *frames]])
        self.node.on_messages(arena, self.now_ms)
        return self.node.ready(self.now_ms)

    def hear(self, data: bytes, source: str = SOURCE) -> NodeEffects:
        self.node.on_beacon(decode_beacon(data), source, self.now_ms)
        return self.node.ready(self.now_ms)

    def count(self, name: str) -> int:
        return self.node.counters[name]


def connected(ready: NodeEffects) -> list[str]:
    return [action.endpoint for action in ready.actions if isinstance(action, Connect)]


def test_a_greeting_that_names_another_address() -> None:
    place = NodeWithPeer()
    for address in ("10.0.0.3", "127.0.0.1", "10.0.0.1"):
        assert place.say(1, HELLO._replace(address=address)).actions == []
    assert place.say(1, HELLO, source="").actions == []
    assert place.say(1, HELLO, source="localhost:0:0:1").actions == []
    assert place.count("message_address") == 5
    assert place.node.peers == {}
    assert connected(place.say(1, HELLO)) == [f"tcp://{SOURCE}:61000"]


@pytest.mark.parametrize("said", ["fe80::2", "FE80:0::2", "fe80::2%elsewhere"])
def test_an_address_that_is_good_on_its_link_alone(said: str) -> None:
    """The node uses the link of the HELLO's connection, whatever the HELLO names."""
    place = NodeWithPeer(address="fe80::1%eth0")
    assert place.say(1, HELLO._replace(address=said), source="fe80::3%eth0").actions == []
    assert place.count("message_address") == 1
    ready = place.say(1, HELLO._replace(address=said), source="fe80::2%eth0")
    assert connected(ready) == ["tcp://[fe80::2%eth0]:61000"]
    (greeting,) = [frames.message(0) for _, frames in ready.sends]
    hello = codec.decode(greeting, Version.V2)[1]
    assert isinstance(hello, Hello)
    assert hello.address == "fe80::1"  # Its link is called otherwise elsewhere.


def test_a_subnet_of_ours_may_be_named() -> None:
    place = NodeWithPeer(subnets=(ip_network("192.168.7.0/24"),))
    assert place.say(1, HELLO._replace(address="192.168.8.1")).actions == []
    assert connected(place.say(1, HELLO._replace(address="192.168.7.1"))) == [
        "tcp://192.168.7.1:61000"
    ]


def test_no_other_node_replaces_a_peer() -> None:
    place = NodeWithPeer()
    place.say(1, HELLO)
    assert place.say(1, HELLO._replace(address="10.0.0.9"), source="10.0.0.9").actions == []
    assert place.hear(encode_beacon(Beacon(OTHER, 61_000)), "10.0.0.9").actions == []
    assert place.hear(encode_beacon(Beacon(OTHER, 0)), "10.0.0.9").actions == []
    assert place.count("hello_other_place") == 1
    assert place.count("beacon_other_place") == 1
    assert [peer.endpoint for peer in place.node.peers.values()] == [f"tcp://{SOURCE}:61000"]
    (event,) = place.hear(encode_beacon(Beacon(OTHER, 0))).events
    assert event.kind is EventKind.EXIT


def test_a_goodbye_of_a_v1_node_is_no_beacon() -> None:
    place = NodeWithPeer(Version.V1)
    place.say(1, HELLO._replace(name=""))
    assert place.hear(encode_beacon(Beacon(OTHER, 0))).events == []
    assert place.hear(encode_beacon(Beacon(b"\x09" * 16, 0))).actions == []
    assert place.count("beacon_port") == 2
    assert len(place.node.peers) == 1


def test_no_other_node_may_use_our_own_uuid() -> None:
    place = NodeWithPeer()
    assert place.hear(encode_beacon(Beacon(ME, 61_000))).actions == []
    assert place.say(1, HELLO, uuid=ME).actions == []
    assert (place.count("beacon_own"), place.count("hello_own")) == (1, 1)


@pytest.mark.parametrize("source", [SOURCE, "10.0.0.9", "10.0.0.1"])
def test_a_hello_with_our_own_uuid_removes_no_peer(source: str) -> None:
    place = NodeWithPeer(static_peers=(f"tcp://{SOURCE}:61000", "tcp://10.0.0.3:61000"))
    place.say(1, HELLO)
    for address in (SOURCE, "10.0.0.3"):
        assert place.say(1, HELLO._replace(address=address), source, uuid=ME).events == []
    assert place.count("hello_own") == 2
    assert set(place.node.peers) == {OTHER}
    status = place.node.status()
    assert (status["peers"], status["unready"]) == (1, 1), "the other static one is waited for"


def test_nothing_counts_before_a_greeting() -> None:
    place = NodeWithPeer()
    for sequence, command in ((1, Ping()), (2, Join("g", 1)), (3, Whisper([b"x"]))):
        assert place.say(sequence, command) == NodeEffects([], [], [], [])
    assert place.count("before_hello") == 3
    place.say(1, HELLO)
    ready = place.say(2, Whisper([b"now"]))
    assert [event.content for event in ready.events] == [[b"now"]]


def test_a_greeting_out_of_order() -> None:
    place = NodeWithPeer()
    assert place.say(2, HELLO).actions == []
    assert place.count("hello_sequence") == 1


@pytest.mark.parametrize("sequence", [2, 4, 0, 65_535])
def test_a_gap_ends_a_v2_peer(sequence: int) -> None:
    place = NodeWithPeer()
    place.say(1, HELLO)
    place.say(2, Whisper([b"x"]))
    ready = place.say(sequence, Whisper([b"lost"]))
    assert [event.kind for event in ready.events] == [EventKind.EXIT]
    assert [type(action) for action in ready.actions] == [CloseLink]
    assert place.say(3, Whisper([b"x"])).events == []
    assert place.count("gaps") == 1


def test_a_gap_of_a_v1_peer_is_counted() -> None:
    place = NodeWithPeer(Version.V1)
    place.say(1, HELLO._replace(name=""))
    # 514 has the octets of version 2.
    assert [event.content for event in place.say(514, Whisper([b"x"])).events] == [[b"x"]]
    assert [event.content for event in place.say(515, Whisper([b"y"])).events] == [[b"y"]]
    assert place.count("gaps") == 1


def test_a_version_stays_what_it_was() -> None:
    place = NodeWithPeer()
    place.say(1, HELLO)
    place.version = Version.V1
    assert place.say(2, Whisper([b"x"])).events == []
    assert place.count("before_hello") == 1
    ready = place.say(1, HELLO._replace(name=""))  # Who greets in the other one begins anew.
    assert [event.kind for event in ready.events] == [
        EventKind.EXIT,
        EventKind.ENTER,
        EventKind.JOIN,
    ]
    assert [event.content for event in place.say(2, Whisper([b"x"])).events] == [[b"x"]]
    assert place.count("version_changed") == 1


def test_group_names_are_used_as_they_are() -> None:
    place = NodeWithPeer()
    place.node.join("Group")
    place.say(1, HELLO)
    for sequence, group in ((2, "group"), (3, "GROUP"), (4, ""), (5, "x" * 255), (6, "Größe")):
        assert place.say(sequence, Shout(group, [b"x"])).events == []
    assert place.count("shouts_elsewhere") == 5
    (event,) = place.say(7, Shout("Group", [b"x"])).events
    assert event.group == "Group"


def test_groups_of_a_peer_have_a_limit() -> None:
    place = NodeWithPeer()
    place.say(1, HELLO._replace(groups=tuple(f"g{i}" for i in range(4096)), status=0))
    place.say(2, Join("one more", 1))
    assert place.count("groups_refused") == 1
    assert len(place.node.peer_groups) == 4096


def test_a_status_that_never_fits_is_asked_about_rarely() -> None:
    place = NodeWithPeer()
    place.say(1, HELLO)
    asked = sum(len(place.say(i + 2, Join("g", 77)).actions) for i in range(100))
    assert asked == 2, "one connection is closed, and made anew"
    assert place.count("status_gaps") == 100


def test_a_flood_of_beacons() -> None:
    """Few of 100,000 forged nodes are believed; the real one still enters."""
    place, dice = NodeWithPeer(), Random(1)
    connections = 0
    for _ in range(100_000):
        uuid = own_uuid(dice.randbytes(14)) if dice.random() < 0.5 else b"\x05" + dice.randbytes(15)
        place.node.on_beacon(Beacon(uuid, dice.randrange(1, 65_536)), SOURCE, 0)
    connections += len(connected(place.node.ready(0)))
    assert connections <= 125
    status = place.node.status()
    assert status["unready"] == 125
    assert place.count("beacon_refused") == 99_875
    assert place.say(1, HELLO._replace(address="10.0.0.3"), source="10.0.0.3").events
    for now_ms in range(0, 20_001, 1000):
        place.now_ms = now_ms
        place.node.ready(now_ms)
    assert place.node.status()["unready"] == 0


@pytest.mark.parametrize("forgers", [1, 5])
def test_during_a_flood_other_senders_are_read(forgers: int) -> None:
    """A node's beacon is believed at once during a flood of another address."""
    room = PeerAllowance(40)
    place, dice = NodeWithPeer(socket_allowance=room, peers_max=80), Random(1)
    near = NodeWithPeer(socket_allowance=room)
    for now_ms in range(0, 30_000, 100):
        place.now_ms = now_ms
        for _ in range(20):
            beacon = Beacon(own_uuid(dice.randbytes(14)), dice.randrange(1, 65_536))
            for node in (place.node, near.node):
                node.on_beacon(beacon, f"10.0.1.{dice.randrange(forgers)}", now_ms)
        place.node.ready(now_ms)
        near.node.ready(now_ms)
        if now_ms == 15_000:
            beacon = Beacon(own_uuid(b"\x33" * 14), 61_000)
            place.node.on_beacon(beacon, SOURCE, now_ms)
            assert f"tcp://{SOURCE}:61000" in connected(place.node.ready(now_ms))
    assert place.count("never_greeted")
    place.node.stop()
    near.node.stop()
    assert all(room.has_room_for(f"10.0.1.{one}") for one in range(forgers))
    assert (room.used, room.sources) == (0, {})


def greet(place: NodeWithPeer, host: int, number: int) -> bool:
    """Whether a node with this number, at a host, is a peer after its greeting."""
    address = f"10.0.1.{host}"
    uuid = own_uuid(bytes((host, number)) + bytes(12))
    place.say(1, HELLO._replace(address=address, port=1000 + number), address, uuid)
    return uuid in place.node.peers


def test_greetings_of_one_address_keep_no_others_out() -> None:
    """The address with most peers gives way, until others have as many."""
    place = NodeWithPeer(peers_max=10)
    for number in range(10):
        place.now_ms = number
        assert greet(place, 1, number)
    assert not greet(place, 1, 10), "its own address has the most"
    assert all(greet(place, 2, number) for number in range(5))
    assert not greet(place, 2, 5), "both have as many"
    assert greet(place, 3, 0)
    hosts = Counter(it.endpoint.rpartition(":")[0] for it in place.node.peers.values())
    assert sorted(hosts.values()) == [1, 4, 5]
    kept = {it.endpoint for it in place.node.peers.values() if "10.0.1.1:" in it.endpoint}
    assert "tcp://10.0.1.1:1000" not in kept, "the one that is silent longest goes first"
    assert "tcp://10.0.1.1:1009" in kept
    assert place.count("displaced") == 6


def test_a_flood_of_greetings() -> None:
    place, dice = NodeWithPeer(peers_max=100), Random(1)
    entered = 0
    for i in range(2000):
        hello = HELLO._replace(port=1 + i)
        entered += len(place.say(1, hello, uuid=b"\x05" + dice.randbytes(15)).actions)
    assert entered == 100
    assert len(place.node.peers) == 100
    assert place.count("hello_refused") == 1900


def test_a_peer_with_a_hello_replaces_one_known_by_beacon_only() -> None:
    place = NodeWithPeer(peers_max=4)
    place.hear(encode_beacon(Beacon(b"\x05" * 16, 1)))
    for i in range(4):
        place.say(1, HELLO._replace(port=10 + i), uuid=bytes([6 + i]) * 16)
    assert len(place.node.peers) == 4
    assert place.count("displaced") == 1


def test_two_nodes_have_not_one_mailbox() -> None:
    place = NodeWithPeer()
    place.say(1, HELLO)
    ready = place.say(1, HELLO, uuid=b"\x07" * 16)
    assert [event.kind for event in ready.events][:2] == [EventKind.EXIT, EventKind.ENTER]
    assert set(place.node.peers) == {b"\x07" * 16}


def test_a_subnet_is_no_leave_to_take_a_peers_place() -> None:
    place = NodeWithPeer(subnets=(ip_network("10.0.0.0/24"),))
    place.say(1, HELLO)
    for uuid in (b"\x07" * 16, b"\x08" * 16):
        assert place.say(1, HELLO, source="10.0.0.9", uuid=uuid).actions == []
    assert place.count("hello_taken_place") == 2
    assert set(place.node.peers) == {OTHER}
    assert place.say(2, Whisper([b"still there"])).events
    place.say(1, HELLO, uuid=b"\x07" * 16)  # From there itself: it has begun anew.
    assert set(place.node.peers) == {b"\x07" * 16}


@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"", b"x", OTHER, b"\x01" + OTHER, b"\x02" + OTHER, b"\x01" * 300]),
            st.lists(
                st.one_of(
                    st.binary(max_size=40),
                    st.binary(max_size=40).map(lambda data: b"\xaa\xa1" + data),
                    st.binary(max_size=40).map(lambda data: b"\xaa\xa1\x01\x02\x00\x01" + data),
                ),
                max_size=3,
            ),
        ),
        max_size=20,
    )
)
def test_junk_is_discarded(messages: list[tuple[bytes, list[bytes]]]) -> None:
    place = NodeWithPeer()
    for routing_id, frames in messages:
        arena = Arena.from_messages([[routing_id, SOURCE.encode(), *frames]])
        place.node.on_messages(arena, 0)
        place.node.on_batch(routing_id, SOURCE.encode(), Arena.from_messages([frames or [b""]]), 0)
        assert place.node.ready(0).events == []
    assert connected(place.say(1, HELLO)) == [f"tcp://{SOURCE}:61000"]
