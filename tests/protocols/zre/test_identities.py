"""ZRE nodes with CURVE: which keys they greet, and which key each UUID belongs to."""

from collections.abc import Iterable
from ipaddress import ip_network
from typing import Any

import pytest

from kelek.native.net.messages import Arena
from kelek.protocols.access.certificates import encode_key
from kelek.protocols.access.grants import parse_grants
from kelek.protocols.access.zap import AllowedKey, Keyring
from kelek.protocols.errors import LocalProtocolError
from kelek.protocols.zre import codec, identities
from kelek.protocols.zre.beacon import Beacon, own_uuid
from kelek.protocols.zre.codec import Command, Hello, Ping, Whisper
from kelek.protocols.zre.effects import Connect, NodeEffects, NodeSetup
from kelek.protocols.zre.identities import KEYS_MAX, UUIDS_MAX, Identities
from kelek.protocols.zre.node import NodeMachine
from kelek.protocols.zre.peers import EventKind
from kelek.protocols.zre.values import TIMES, Version
from kelek.tests.protocols.zre.zre_network import Host, ZreNetwork

ME, ANN, EVE, STRANGER = (bytes([number]) * 32 for number in (1, 2, 3, 4))
UUID = own_uuid(b"\x22" * 14)
SOURCE, OTHER_SOURCE = "10.0.0.2", "10.0.0.9"
PORT = 61_000
ZRE = parse_grants("zre")


def ring(keys: Iterable[bytes]) -> Keyring:
    keyring = Keyring()
    keyring.replace({key: AllowedKey(f"k{key[0]}", ZRE) for key in keys})
    return keyring


class SecuredNode:
    """A node with CURVE that allows ANN and EVE, without sockets."""

    def __init__(self, **settings: object) -> None:
        self.keyring = ring([ANN, EVE])
        setup = NodeSetup(
            own_uuid(b"\x11" * 14), "10.0.0.1", PORT, "me", public_key=ME, keyring=self.keyring
        )
        self.node = NodeMachine(setup._replace(**settings), 0)  # type: ignore[arg-type]
        self.now_ms = 0

    def hear(self, key: bytes, source: str = SOURCE, port: int = PORT) -> list[Connect]:
        """A beacon with UUID; returns the connections that the node makes."""
        self.node.on_beacon(Beacon(UUID, port, key), source, self.now_ms)
        return [act for act in self.ready().actions if isinstance(act, Connect)]

    def send(
        self, key: bytes, command: Command, sequence: int = 1, source: str = SOURCE
    ) -> NodeEffects:
        """A message of UUID by a connection of that key."""
        frames = Arena.from_messages([codec.encode(sequence, command, Version.V2)])
        routing_id = codec.routing_id(UUID, Version.V2)
        self.node.on_batch(routing_id, source.encode(), frames, self.now_ms, key)
        return self.ready()

    def greet(
        self, key: bytes, header_key: bytes | None = None, source: str = SOURCE
    ) -> NodeEffects:
        headers = {identities.HEADER: encode_key(header_key or key)}
        return self.send(key, Hello(source, PORT, (), 0, "peer", headers), source=source)

    def ready(self) -> NodeEffects:
        effects = self.node.ready(self.now_ms)
        for _, frames in effects.sends:
            frames.clear()
        return effects

    def pass_time(self, ms: int) -> NodeEffects:
        self.now_ms += ms
        return self.ready()

    def counted(self, name: str) -> int:
        return self.node.counters[name]

    def peer_keys(self) -> list[str]:
        return [peer.public_key for peer in self.node.peers.values()]


def secure(network: ZreNetwork, name: str, key: bytes, allowed: Iterable[bytes]) -> Host:
    return network.add(name, public_key=key, keyring=ring(allowed))


# ---- networks ----


def test_secured_nodes_find_each_other_and_no_one_else() -> None:
    network = ZreNetwork(1)
    a = secure(network, "a", ME, [ANN])
    b = secure(network, "b", ANN, [ME, EVE])
    eve = secure(network, "eve", EVE, [ME, ANN])
    plain, other_plain = network.add("plain"), network.add("other plain")
    network.run(3000)
    assert a.peer_names() == {"b"}, "it does not allow eve"
    assert b.peer_names() == {"a", "eve"}
    assert eve.peer_names() == {"b"}
    assert (plain.peer_names(), other_plain.peer_names()) == ({"other plain"}, {"plain"})
    assert a.node.counters["beacon_insecure"] > 0
    assert a.node.counters["beacon_key"] > 0
    assert plain.node.counters["beacon_secured"] > 0
    (seen,) = a.node.peers.values()
    assert seen.public_key == encode_key(ANN) == seen.headers["X-PUBLICKEY"]
    a.node.whisper(b.node.uuid, [b"secret"])
    network.act(a)
    network.run(100)
    assert [event.content for event in b.events if event.kind is EventKind.WHISPER] == [[b"secret"]]


def test_a_goodbye_of_a_secured_peer_is_believed_when_it_is_silent() -> None:
    network = ZreNetwork(2)
    a, b = secure(network, "a", ME, [ANN]), secure(network, "b", ANN, [ME])
    network.run(1000)
    a.node.on_beacon(Beacon(b.node.uuid, 0, ANN), b.address, network.now_ms)  # Forged.
    network.act(a)
    network.run(5000)
    assert a.seen(EventKind.EXIT) == []
    assert a.node.counters["goodbyes_forged"] == 1
    network.stop(b)
    network.run(2500)
    assert a.seen(EventKind.EXIT) == ["b"]


def test_forged_beacons_do_not_keep_a_dead_peer() -> None:
    network = ZreNetwork(3)
    a, b = secure(network, "a", ME, [ANN]), secure(network, "b", ANN, [ME])
    network.run(1000)
    network.kill(b)
    for _ in range(2 * TIMES.expired_ms // 1000 + 2):
        a.node.on_beacon(Beacon(b.node.uuid, PORT, ANN), b.address, network.now_ms)
        network.act(a)
        network.run(1000)
    assert a.seen(EventKind.EXIT) == ["b"]


def test_static_peers_and_gossip_with_keys() -> None:
    network = ZreNetwork(4)
    closed: dict[str, Any] = {
        "beacons": False,
        "gossip": True,
        "subnets": (ip_network("10.0.0.0/8"),),
    }
    keys = [bytes([10 + number]) * 32 for number in range(4)]
    first = network.add("n0", public_key=keys[0], keyring=ring(keys), **closed)
    endpoint = codec.keyed_endpoint(first.address, PORT, keys[0])
    hosts = [first] + [
        network.add(
            f"n{number}", public_key=key, keyring=ring(keys), static_peers=(endpoint,), **closed
        )
        for number, key in enumerate(keys[1:], 1)
    ]
    network.run(3000)
    for host in hosts:
        assert host.peer_names() == {other.name for other in hosts if other is not host}


# ---- beacons ----


def test_a_beacon_leads_to_its_key_alone() -> None:
    node = SecuredNode()
    (connect,) = node.hear(ANN)
    assert (connect.endpoint, connect.key) == (f"tcp://{SOURCE}:{PORT}", ANN)


@pytest.mark.parametrize(("key", "counter"), [(b"", "beacon_insecure"), (STRANGER, "beacon_key")])
def test_other_beacons_lead_nowhere(key: bytes, counter: str) -> None:
    node = SecuredNode()
    assert node.hear(key) == []
    assert node.counted(counter) == 1
    assert node.node.status()["unready"] == 0


def test_a_forged_beacon_does_not_keep_the_true_node_out() -> None:
    """Any program can send a beacon with a UUID and an allowed key: the key's owner wins."""
    node = SecuredNode()
    node.hear(EVE, OTHER_SOURCE)
    assert [connect.key for connect in node.hear(ANN)] == [ANN]
    assert node.greet(ANN).events[0].kind is EventKind.ENTER
    assert node.peer_keys() == [encode_key(ANN)]
    assert node.node.status()["unready"] == 0
    node.hear(EVE, OTHER_SOURCE)
    assert node.counted("beacon_key") == 1


def test_forged_beacons_use_bounded_memory() -> None:
    node = SecuredNode(peers_max=40)
    for number in range(2000):
        uuid = own_uuid(number.to_bytes(2) * 7)
        node.node.on_beacon(Beacon(uuid, PORT, ANN), f"10.1.{number % 50}.1", node.now_ms)
        node.node.on_beacon(Beacon(UUID, PORT, (ANN, EVE)[number % 2]), SOURCE, node.now_ms)
        node.ready()
    assert len(node.node.peer_table) <= 10, "a fourth of the table"


# ---- HELLO ----


def test_a_hello_without_its_key_is_refused() -> None:
    node = SecuredNode()
    assert node.greet(ANN, header_key=EVE).events == []
    assert node.send(ANN, Hello(SOURCE, PORT, (), 0, "peer", {})).events == []
    assert node.counted("message_key") == 2
    assert node.greet(STRANGER).events == []
    assert node.counted("hello_other_key") == 1
    assert node.node.peers == {}


def test_a_hello_with_another_key_than_the_beacons_is_refused() -> None:
    node = SecuredNode()
    node.hear(ANN)
    assert node.greet(EVE).events == []
    assert node.counted("hello_other_key") == 1
    assert node.greet(ANN).events[0].kind is EventKind.ENTER


def test_no_other_key_takes_over_a_uuid() -> None:
    """Neither while the peer is there, nor after it has gone."""
    node = SecuredNode()
    node.greet(ANN)
    for source in (SOURCE, OTHER_SOURCE):
        assert node.greet(EVE, source=source).events == []
    assert node.hear(EVE) == []
    assert node.send(EVE, Whisper([b"forged"]), 2).events == []
    assert node.counted("message_other_key") == 1
    whisper = node.send(ANN, Whisper([b"true"]), 2)
    assert [event.content for event in whisper.events] == [[b"true"]]
    for _ in range(20):
        node.pass_time(TIMES.expired_ms // 10)
    assert node.node.peers == {}
    assert node.greet(EVE).events == []
    assert node.hear(EVE) == []
    assert node.greet(ANN).events[0].kind is EventKind.ENTER


def test_a_mailbox_belongs_to_its_key() -> None:
    """Another allowed key at the same address can't remove the peer."""
    node = SecuredNode()
    node.greet(ANN)
    frames = Arena.from_messages(
        [
            codec.encode(
                1, Hello(SOURCE, PORT, (), 0, "eve", {"X-PUBLICKEY": encode_key(EVE)}), Version.V2
            )
        ]
    )
    routing_id = codec.routing_id(own_uuid(b"\x33" * 14), Version.V2)
    node.node.on_batch(routing_id, SOURCE.encode(), frames, 0, EVE)
    assert node.counted("hello_taken_place") == 1
    assert node.peer_keys() == [encode_key(ANN)]


def test_a_static_peer_has_its_pinned_key() -> None:
    node = SecuredNode(static_peers=(codec.keyed_endpoint(SOURCE, PORT, ANN),))
    (connect,) = [act for act in node.ready().actions if isinstance(act, Connect)]
    assert connect.key == ANN
    assert node.greet(EVE).events == []
    assert node.counted("hello_other_key") == 1
    assert node.greet(ANN).events[0].kind is EventKind.ENTER


@pytest.mark.parametrize(
    ("static", "problem"),
    [
        (codec.endpoint_of(SOURCE, PORT), "needs its key"),
        (codec.keyed_endpoint(SOURCE, PORT, STRANGER), "not allowed"),
        (f"tcp://{SOURCE}:{PORT}|short", "40 characters"),
    ],
)
def test_bad_static_peers(static: str, problem: str) -> None:
    with pytest.raises(LocalProtocolError, match=problem):
        SecuredNode(static_peers=(static,))


def test_the_peers_of_a_revoked_key_leave() -> None:
    node = SecuredNode()
    node.greet(ANN)
    node.keyring.replace({EVE: AllowedKey("eve", ZRE)})
    node.node.on_keys_changed()
    assert [event.kind for event in node.ready().events] == [EventKind.EXIT]
    assert node.send(ANN, Ping(), 2).sends == []
    assert node.greet(ANN).events == []
    assert node.hear(ANN) == []
    assert node.greet(EVE).events[0].kind is EventKind.ENTER, "the UUID is free again"


# ---- bound UUIDs ----


def test_the_uuids_of_one_key_do_not_push_out_those_of_others() -> None:
    known = Identities(ring([ANN, EVE]))
    known.bind(UUID, ANN)
    flood = [number.to_bytes(16) for number in range(10 * UUIDS_MAX)]
    for uuid in flood:
        known.bind(uuid, EVE)
    assert not known.is_free(UUID, EVE)
    assert known.is_free(UUID, ANN)
    assert [known.is_free(uuid, ANN) for uuid in flood].count(False) == UUIDS_MAX


def test_keys_with_bound_uuids_are_bounded() -> None:
    known = Identities(ring([ANN]))
    for number in range(KEYS_MAX + 100):
        known.bind(number.to_bytes(16), number.to_bytes(32, "big") if number else ANN)
    assert sum(not known.is_free(n.to_bytes(16), EVE) for n in range(KEYS_MAX + 100)) == KEYS_MAX
