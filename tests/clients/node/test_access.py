"""kelek.Node with CURVE: which nodes it greets, and which connections it believes."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import zmq

import kelek
from kelek.clients.errors import KeyUnusable
from kelek.native.net.datagrams import Datagrams
from kelek.native.net.interfaces import LOOPBACK, LOOPBACK_BROADCAST, Interface
from kelek.net.private_files import replace_file
from kelek.net.sockets import CurveClient, SocketOptions, configure
from kelek.protocols.access.certificates import (
    Certificate,
    decode_key,
    encode_key,
    format_certificate,
)
from kelek.protocols.zre import codec
from kelek.protocols.zre.beacon import Beacon, encode_beacon, own_uuid
from kelek.protocols.zre.codec import Command, Hello, Whisper
from kelek.protocols.zre.identities import HEADER
from kelek.protocols.zre.values import Version
from kelek.tests.clients.curve_gate import new_key, write_key
from kelek.tests.clients.node.nodes import DEADLINE_MS, Kind, peer_of, tuned, wait_for
from kelek.tests.interop.zre.zre_nodes import OURS, NodeProcess

UUID = own_uuid(b"\x22" * 14)


class Network:
    """Keys in a folder, an allow directory, and nodes on one UDP port."""

    def __init__(self, folder: Path, port: int, stack: ExitStack) -> None:
        self.folder, self.port, self._stack = folder, port, stack
        self.allowed = folder / "allowed"
        self.allowed.mkdir()

    def key(self, name: str, grants: str | None = "zre") -> Certificate:
        """A new key; grants None: it is not allowed."""
        key = new_key(name)
        write_key(self.folder, key)
        if grants is not None:
            public = Certificate(key.public_key, b"", {"name": name, "grants": grants})
            replace_file(self.allowed / f"{name}.key", format_certificate(public), 0o644)
        return key

    def node(self, key: Certificate, allow: Any = None, **settings: Any) -> kelek.Node:
        path = self.folder / f"{key.name}.key_secret"
        tuning = tuned(self.port, **settings)
        node = kelek.Node(key.name, tuning=tuning, key=path, allow=allow or self.allowed)
        return self._stack.enter_context(node)

    def plain_node(self) -> kelek.Node:
        """Without CURVE."""
        return self._stack.enter_context(kelek.Node("plain", tuning=tuned(self.port)))

    def peer(self, node: kelek.Node, key: Certificate) -> "RawPeer":
        return self._stack.enter_context(RawPeer(self, node, key))


class RawPeer:
    """A DEALER at a node's mailbox, which says what it likes."""

    def __init__(self, network: Network, node: kelek.Node, key: Certificate) -> None:
        self.key, self.node = key, node
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.dealer = self._context.socket(zmq.DEALER)
        server_key = decode_key(node.public_key)
        curve = CurveClient(server_key, key.public_key, key.secret_key)
        options = SocketOptions(curve=curve, routing_id=codec.routing_id(UUID, Version.V2))
        configure(self.dealer, zmq.DEALER, options)
        self.dealer.connect(node.endpoint)
        interface = Interface("lo", LOOPBACK, LOOPBACK_BROADCAST)
        self._udp = Datagrams(interface, network.port)

    def __enter__(self) -> "RawPeer":
        return self

    def __exit__(self, *error: object) -> None:
        self._udp.close()
        self._context.destroy(linger=0)

    def beacon(self, key: bytes) -> None:
        self._udp.send(encode_beacon(Beacon(UUID, 1, key)))

    def say(self, sequence: int, command: Command) -> None:
        self.dealer.send_multipart(codec.encode(sequence, command, Version.V2))

    def greet(self, key: Certificate | None = None) -> None:
        headers = {HEADER: encode_key((key or self.key).public_key)}
        self.say(1, Hello(LOOPBACK, 1, (), 0, self.key.name, headers))

    def wait(self, is_so: Callable[[], object]) -> None:
        deadline_s = time.monotonic() + DEADLINE_MS / 1000
        while not is_so():
            assert time.monotonic() < deadline_s, self.node.counters
            self.node.receive(20)

    def wait_counted(self, name: str, count: int = 1) -> None:
        self.wait(lambda: self.node.counters.get(name, 0) >= count)


@pytest.fixture
def network(tmp_path: Path, port: int) -> Iterator[Network]:
    with ExitStack() as stack:
        yield Network(tmp_path, port, stack)


# ---- nodes ----


def test_nodes_of_one_process_with_keys(network: Network) -> None:
    ann, bob = network.key("ann"), network.key("bob")
    eve = network.key("eve", grants=None)
    a, b = network.node(ann), network.node(bob)
    stranger = network.node(eve)
    plain = network.plain_node()
    seen = peer_of(a, "bob")
    assert seen.public_key == encode_key(bob.public_key) == b.public_key
    assert peer_of(b, "ann").public_key == a.public_key
    assert a.whisper(seen, b"secret")
    assert wait_for(b, Kind.WHISPER).content == [b"secret"]
    assert {peer.name for node in (a, b) for peer in node.peers} == {"ann", "bob"}
    assert stranger.peers == plain.peers == []
    b.close()
    assert wait_for(a, Kind.EXIT).peer == seen


def test_nodes_of_two_processes_with_keys(network: Network) -> None:
    ann, bob = network.key("ann"), network.key("bob")
    node = network.node(ann)
    bob_path = network.folder / "bob.key_secret"
    other = NodeProcess(
        OURS, network.port, name="bob", host=LOOPBACK, broadcast=LOOPBACK_BROADCAST,
        key=bob_path, allow=network.allowed,
    )  # fmt: skip
    try:
        seen = peer_of(node, "bob")
        assert seen.public_key == encode_key(bob.public_key)
        for number in range(50):
            assert node.whisper(seen, f"{number}")
        other.wait_for("WHISPER", content=["49"])
        said = [event["content"] for event in other.said("WHISPER")]
        assert said == [[f"{number}"] for number in range(50)]
    finally:
        other.kill()


def test_any_key_is_encryption_alone(network: Network) -> None:
    ann, eve = network.key("ann", grants=None), network.key("eve", grants=None)
    node = network.node(ann, allow="*")
    peer = network.peer(node, eve)
    peer.greet()
    assert wait_for(node, Kind.ENTER).peer is not None
    assert [one.public_key for one in node.peers] == [encode_key(eve.public_key)]


def test_keys_as_text(network: Network) -> None:
    ann, bob = network.key("ann"), network.key("bob")
    a = network.node(ann, allow=[encode_key(bob.public_key)])
    network.node(bob, allow=[a.public_key])
    assert peer_of(a, "bob").name == "bob"


@pytest.mark.parametrize(
    ("key", "allow", "problem"),
    [
        ("ann.key_secret", None, "key is given without allow"),
        (None, "*", "allow is given without key"),
        ("ann.key_secret", "missing", "No such file"),
        ("ann.key_secret", ["short"], "40 characters"),
        ("allowed/ann.key", "*", "is a public key"),
        ("nothing", "*", "No such file"),
    ],
)
def test_keys_that_cannot_be_used(
    network: Network, monkeypatch: pytest.MonkeyPatch, key: str, allow: Any, problem: str
) -> None:
    network.key("ann")
    (network.allowed / "ann.key").chmod(0o600)
    monkeypatch.chdir(network.folder)
    with pytest.raises(KeyUnusable, match=problem):
        kelek.Node("ann", tuning=tuned(network.port), key=key, allow=allow)


# ---- attacks ----


@pytest.mark.parametrize("grants", [None, "log.read"])
def test_other_keys_do_not_connect(network: Network, grants: str | None) -> None:
    ann, eve = network.key("ann"), network.key("eve", grants)
    node = network.node(ann)
    peer = network.peer(node, eve)
    peer.greet()
    peer.wait_counted("connection_refused")
    peer.beacon(eve.public_key)
    peer.wait_counted("beacon_key")
    assert node.peers == []


def test_an_allowed_key_speaks_for_itself_alone(network: Network) -> None:
    """It steals the routing id of another peer: its messages are dropped."""
    ann, bob, eve = network.key("ann"), network.key("bob"), network.key("eve")
    node = network.node(ann)
    peer = network.peer(node, bob)
    peer.greet(eve)
    peer.wait_counted("message_key")
    peer.greet()
    wait_for(node, Kind.ENTER)
    peer.say(2, Whisper([b"true"]))
    assert wait_for(node, Kind.WHISPER).content == [b"true"]
    thief = network.peer(node, eve)
    for number in range(3, 7):
        thief.say(number, Whisper([b"forged"]))
    thief.wait_counted("message_other_key", 4)
    thief.greet()
    thief.wait_counted("hello_other_key")
    thief.beacon(eve.public_key)
    thief.wait_counted("beacon_key")
    assert [one.public_key for one in node.peers] == [encode_key(bob.public_key)]
    assert all(event.kind is not Kind.WHISPER for event in node.receive(0))


def test_a_revoked_key_is_no_peer_within_two_seconds(network: Network) -> None:
    ann, bob = network.key("ann"), network.key("bob")
    node = network.node(ann)
    peer = network.peer(node, bob)
    peer.greet()
    wait_for(node, Kind.ENTER)
    (network.allowed / "bob.key").unlink()
    before_s = time.monotonic()
    wait_for(node, Kind.EXIT)
    assert time.monotonic() - before_s < 2
    peer.say(2, Whisper([b"late"]))
    peer.greet()
    assert node.receive(300) == []
