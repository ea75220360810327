"""A kelek.Node under bad input on its sockets: forged beacons, floods, malformed messages."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice
from random import Random

import pytest
import zmq

import kelek
from kelek.bench.ports import free_udp_port
from kelek.clients.node import beacons, reactor_node
from kelek.native.net.interfaces import LOOPBACK
from kelek.protocols.zre import codec
from kelek.protocols.zre.beacon import Beacon, encode_beacon, own_uuid
from kelek.protocols.zre.codec import Command, Hello, Join, Ping, Whisper
from kelek.protocols.zre.values import CONTENT_FRAMES_MAX, PEERS_MAX, Version
from kelek.tests.interop.zre.zre_nodes import OURS, NodeProcess

DEADLINE_S = 60
FLOOD = 100_000
BLOCKED_MS = 500  # A DEALER without room for so long has a peer that does not read.
UUID, OTHER = b"\x02" * 16, b"\x03" * 16
FORGER = "127.0.0.2"  # Any loopback address may be a source.
OPEN_FILES = 160  # Of a process with a node: enough for 40 sockets.


class NodeAndPeer:
    """A node, and a foreign peer with a mailbox, a DEALER and a socket for datagrams."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.port = free_udp_port()
        self.tuning = kelek.NodeTuning(port=self.port, interface=LOOPBACK)
        self.node = kelek.Node("victim", tuning=self.tuning)
        self.context = context
        self.mailbox, self.dealer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
        self.mailbox_port = self.mailbox.bind_to_random_port(f"tcp://{LOOPBACK}")
        self.dealer.setsockopt(zmq.ROUTING_ID, codec.routing_id(UUID, Version.V2))
        self.dealer.connect(self.node.endpoint)
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    def restart(self, uuid: bytes) -> None:
        """Makes a new peer with the same mailbox, without knowledge of other peers."""
        self.mailbox.close(0)
        self.dealer.close(0)
        self.mailbox = self.context.socket(zmq.ROUTER)
        self.dealer = self.context.socket(zmq.DEALER)
        self.dealer.setsockopt(zmq.ROUTING_ID, codec.routing_id(uuid, Version.V2))
        self.wait(self._is_bound)

    def _is_bound(self) -> bool:
        """The port is free once libzmq has closed the last socket."""
        try:
            self.mailbox.bind(f"tcp://{LOOPBACK}:{self.mailbox_port}")
        except zmq.ZMQError:
            return False
        return True

    def greet_back(self) -> None:
        """Receives a node's HELLO, and greets it."""
        assert self.mailbox.poll(DEADLINE_S * 1000)
        hello = codec.decode(self.mailbox.recv_multipart()[1:], Version.V2)[1]
        assert isinstance(hello, Hello), hello
        self.dealer.connect(codec.endpoint_of(hello.address, hello.port))
        self.send(1, self.hello())

    def send_beacon(self, data: bytes) -> None:
        self.udp.sendto(data, (LOOPBACK, self.port))

    def send(self, sequence: int, command: Command) -> None:
        self.dealer.send_multipart(codec.encode(sequence, command, Version.V2))

    def hello(self, address: str = LOOPBACK, groups: tuple[str, ...] = ()) -> Hello:
        return Hello(address, self.mailbox_port, groups, 0, "foreign", {})

    def wait(self, is_so: Callable[[], object]) -> list[kelek.Event]:
        """Waits until a condition holds; returns the events meanwhile."""
        deadline_s, found = time.monotonic() + DEADLINE_S, []
        while not is_so():
            assert time.monotonic() < deadline_s, self.node.counters
            found += self.node.receive(50)
        return found + self.node.receive(0)

    def wait_for(self, **counters: int) -> None:
        self.wait(lambda: counters.items() <= self.node.counters.items())

    def wait_event(self, kind: kelek.EventKind) -> kelek.Event:
        for event in self.node.events(DEADLINE_S * 1000):
            if event.kind is kind:
                return event
        raise AssertionError(f"no {kind}: {self.node.counters}")


@pytest.fixture
def pair() -> Iterator[NodeAndPeer]:
    with zmq.Context() as context:
        pair = NodeAndPeer(context)
        yield pair
        pair.node.close()
        pair.udp.close()
        pair.mailbox.close(0)
        pair.dealer.close(0)


def test_forged_beacons_make_no_connection(pair: NodeAndPeer) -> None:
    good = encode_beacon(Beacon(UUID, pair.mailbox_port))
    for data in (good[:-1], good + b"x", b"ZRE\x02" + good[4:], b"", bytes(22)):
        pair.send_beacon(data)
    pair.send_beacon(encode_beacon(Beacon(UUID, 0)))
    pair.wait_for(beacon_malformed=5, beacon_port=1, unready=0)
    own = pair.node.counters.get("beacon_own", 0)
    pair.send_beacon(encode_beacon(Beacon(pair.node.uuid, pair.mailbox_port)))
    pair.wait(lambda: pair.node.counters["beacon_own"] != own)
    assert pair.node.counters["unready"] == 0


def test_a_static_peer_is_greeted_without_a_beacon(pair: NodeAndPeer) -> None:
    """The node lists it when it has answered."""
    static = f"tcp://{LOOPBACK}:{pair.mailbox_port}"
    tuning = pair.tuning._replace(static_peers=(static,), beacons=False)
    with kelek.Node("alone", tuning=tuning) as node:
        frames = pair.mailbox.recv_multipart()
        hello = codec.decode(frames[1:], Version.V2)[1]
        assert isinstance(hello, Hello)
        assert (hello.name, node.peers) == ("alone", [])
        pair.dealer.connect(codec.endpoint_of(hello.address, hello.port))
        pair.dealer.disconnect(pair.node.endpoint)
        pair.send(1, pair.hello())
        assert next_peer(node).endpoint == static


def test_a_static_peer_with_a_new_uuid_is_greeted_at_once(pair: NodeAndPeer) -> None:
    """A restarted peer does not greet first, and would not understand a PING."""
    tuning = pair.tuning._replace(static_peers=(f"tcp://{LOOPBACK}:{pair.mailbox_port}",))
    with kelek.Node("alone", tuning=tuning._replace(beacons=False)) as node:
        pair.dealer.disconnect(pair.node.endpoint)
        pair.greet_back()
        assert next_peer(node).uuid == UUID
        pair.restart(OTHER)
        pair.greet_back()
        assert [event.kind.value for event in islice(node.events(DEADLINE_S * 1000), 2)] == [
            "EXIT",
            "ENTER",
        ]
        assert [peer.uuid for peer in node.peers] == [OTHER]


def test_too_many_goodbyes_are_dropped(pair: NodeAndPeer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beacons, "GOODBYES_MAX", 0)
    pair.send_beacon(encode_beacon(Beacon(UUID, 0)))
    pair.wait_for(goodbyes_dropped=1)


def test_malformed_messages_are_counted(pair: NodeAndPeer) -> None:
    """A correct HELLO afterwards makes a peer."""
    pair.send(1, Whisper([b"too early"]))
    pair.send(2, Join("g", 1))
    pair.send(1, pair.hello("127.0.0.2"))
    long = codec.encode(1, pair.hello(groups=("g" * 255,)), Version.V2)[0]
    pair.dealer.send(long.replace(b"\0\0\0\xff" + b"g", b"\0\0\1\0" + b"gg"))
    pair.dealer.send_multipart([b"", b"\xaa\xa1", b"junk"])
    pair.dealer.send_multipart([b"x"] * (CONTENT_FRAMES_MAX + 9))
    pair.wait_for(before_hello=2, message_address=1, message_limit=1, message_signature=1)
    pair.wait_for(message_oversize=1)
    pair.dealer.send(b"\xaa\xa1\x01\x02\x00\x01\x20tcp")
    pair.dealer.send(b"\xaa\xa1\x01\x03\x00\x01")
    with zmq.Context() as context, context.socket(zmq.DEALER) as nameless:
        nameless.linger = 0
        nameless.routing_id = UUID[:5]
        nameless.connect(pair.node.endpoint)
        nameless.send_multipart(codec.encode(1, pair.hello(), Version.V2))
        pair.wait_for(message_short=1, message_version=1, message_routing_id=1)
    assert (pair.node.peers, pair.node.counters["unready"]) == ([], 0)

    pair.send(1, pair.hello(groups=("g" * 255,)))
    assert pair.wait_event(kelek.EventKind.JOIN).group == "g" * 255


def test_messages_over_the_limits_are_dropped(pair: NodeAndPeer) -> None:
    """A frame over the limit ends its connection; a message over the limit is dropped."""
    with kelek.Node("small", tuning=pair.tuning._replace(message_bytes_max=2000)) as node:
        pair.dealer.disconnect(pair.node.endpoint)
        pair.dealer.connect(node.endpoint)
        pair.dealer.send_multipart([b"\xaa\xa1", bytes(2001)])

        def dropped() -> object:
            pair.dealer.send_multipart([bytes(1300)] * 2)  # The first may be lost.
            return node.counters.get("message_oversize")

        pair.wait(dropped)
        assert "message_short" not in node.counters


def test_a_flood_of_beacons_hides_no_real_node(pair: NodeAndPeer) -> None:
    """The node connects to few forged peers."""
    dice = Random(1)
    for _ in range(FLOOD):
        pair.send_beacon(encode_beacon(Beacon(own_uuid(dice.randbytes(14)), pair.mailbox_port)))
    pair.wait(lambda: pair.node.counters.get("beacon_refused"))
    assert pair.node.counters["unready"] <= PEERS_MAX // 4
    with kelek.Node("decent", tuning=pair.tuning) as decent:
        pair.wait(lambda: decent.uuid in {peer.uuid for peer in pair.node.peers})


def test_a_node_stops_reading_while_many_events_are_unread(
    pair: NodeAndPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The messages wait at their sender, and none is lost."""
    monkeypatch.setattr(reactor_node, "EVENTS_MAX", 100)
    pair.send(1, pair.hello())
    pair.wait_event(kelek.EventKind.ENTER)
    sent = 0
    while pair.dealer.poll(BLOCKED_MS, zmq.POLLOUT):
        assert sent < FLOOD, "the node reads without a limit"
        pair.send(sent + 2, Whisper([b"%d" % sent + bytes(10_000)]))
        sent += 1
    numbers: list[int] = []
    for event in pair.node.events(DEADLINE_S * 1000):
        assert event.kind is kelek.EventKind.WHISPER
        numbers.append(int(event.content[0].rstrip(b"\0")))
        if len(numbers) == sent:
            break
    assert numbers == list(range(sent))


def forged_beacons(port: int, count: int) -> None:
    """Sends beacons of count nodes that do not exist, from another address."""
    dice = Random(2)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.bind((FORGER, 0))
        for i in range(count):
            beacon = Beacon(own_uuid(dice.randbytes(14)), 1 + i)
            sender.sendto(encode_beacon(beacon), (LOOPBACK, port))


def forged_hellos(stack: ExitStack, endpoint: str, count: int) -> list[zmq.Socket[bytes]]:
    """Sends HELLOs of count nodes that do not exist; returns their DEALERs."""
    context, dealers = stack.enter_context(zmq.Context()), []
    for i in range(count):
        dealer = stack.enter_context(context.socket(zmq.DEALER))
        dealer.linger = 0
        dealer.routing_id = codec.routing_id(b"\x03" + i.to_bytes(15), Version.V2)
        dealer.connect(endpoint)
        hello = Hello(LOOPBACK, 1 + i, (), 0, f"forged {i}", {})
        dealer.send_multipart(codec.encode(1, hello, Version.V2))
        dealers.append(dealer)
    return dealers


def next_peer(node: kelek.Node) -> kelek.PeerInfo:
    """The next peer that enters."""
    events = node.events(DEADLINE_S * 1000)
    found = next(event.peer for event in events if event.kind is kelek.EventKind.ENTER)
    assert found is not None
    return found


def test_floods_with_a_low_limit_of_open_files() -> None:
    """The reactor keeps running and discovers real nodes."""
    port = free_udp_port()
    tuning = kelek.NodeTuning(port=port, interface=LOOPBACK)
    limited = ("sh", "-c", f'ulimit -n {OPEN_FILES} && exec "$@"', "sh")
    with NodeProcess(OURS, port, name="victim", within=limited) as victim, ExitStack() as all_:
        forged_beacons(port, OPEN_FILES)
        first = all_.enter_context(kelek.Node("first", tuning=tuning))
        victim.wait_for("ENTER", name="first")
        dealers = forged_hellos(all_, next_peer(first).endpoint, 50)
        victim.wait_for("ENTER", name="forged 49")
        for dealer in dealers:  # A message out of order ends the peer.
            dealer.send_multipart(codec.encode(9, Ping(), Version.V2))
        victim.wait_for("EXIT", name="forged 0")
        second = all_.enter_context(kelek.Node("second", tuning=tuning))
        while next_peer(second).name != "victim":
            pass
        victim.tell("count")
        counters = victim.wait_for("COUNTERS")
        assert counters["beacon_refused"] >= OPEN_FILES // 2
        assert counters["unreachable"] >= 10
        victim.stop()
