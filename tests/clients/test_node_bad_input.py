"""What must not upset a kelek.Node, over its sockets: forged beacons, floods, wrong messages."""

import socket
import time
from collections.abc import Callable, Iterator
from random import Random

import pytest
import zmq

import kelek
from kelek.native.interfaces import LOOPBACK
from kelek.protocols.zre import codec
from kelek.protocols.zre.beacon import Beacon, encode_beacon, own_uuid
from kelek.protocols.zre.codec import Command, Hello, Join, Whisper
from kelek.protocols.zre.values import PEERS_MAX, Version
from kelek.tests.ports import free_udp_port

DEADLINE_S = 60
FLOOD = 100_000
UUID = b"\x02" * 16


class Place:
    """A node, and a stranger with sockets of his own: a mailbox, a DEALER, one for datagrams."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.port = free_udp_port()
        self.tuning = kelek.NodeTuning(port=self.port, interface=LOOPBACK)
        self.node = kelek.Node("victim", tuning=self.tuning)
        self.mailbox, self.dealer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
        self.mailbox_port = self.mailbox.bind_to_random_port(f"tcp://{LOOPBACK}")
        self.dealer.setsockopt(zmq.ROUTING_ID, codec.routing_id(UUID, Version.V2))
        self.dealer.connect(self.node.endpoint)
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    def beacon(self, data: bytes) -> None:
        self.udp.sendto(data, (LOOPBACK, self.port))

    def say(self, sequence: int, command: Command) -> None:
        self.dealer.send_multipart(codec.encode(sequence, command, Version.V2))

    def hello(self, address: str = LOOPBACK, groups: tuple[str, ...] = ()) -> Hello:
        return Hello(address, self.mailbox_port, groups, 0, "stranger", {})

    def wait(self, is_so: Callable[[], object]) -> list[kelek.Event]:
        """Until something is so; what happened meanwhile."""
        until, found = time.monotonic() + DEADLINE_S, []
        while not is_so():
            assert time.monotonic() < until, self.node.counters
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
def place() -> Iterator[Place]:
    with zmq.Context() as context:
        made = Place(context)
        yield made
        made.node.close()
        made.udp.close()
        made.mailbox.close(0)
        made.dealer.close(0)


def test_forged_beacons(place: Place) -> None:
    """Nobody is believed, and nothing is connected to."""
    good = encode_beacon(Beacon(UUID, place.mailbox_port))
    for data in (good[:-1], good + b"x", b"ZRE\x02" + good[4:], b"", bytes(22)):
        place.beacon(data)
    place.beacon(encode_beacon(Beacon(UUID, 0)))
    ear = place.node._place.ear
    assert ear is not None
    place.wait(lambda: ear.malformed == 5)
    place.wait_for(beacon_port=1, unready=0)
    own = place.node.counters.get("beacon_own", 0)
    place.beacon(encode_beacon(Beacon(place.node.uuid, place.mailbox_port)))
    place.wait(lambda: place.node.counters["beacon_own"] != own)
    assert place.node._place.links == {}


def test_wrong_messages(place: Place) -> None:
    """They are counted, and whoever greets well afterwards is a peer."""
    place.say(1, Whisper([b"too early"]))
    place.say(2, Join("g", 1))
    place.say(1, place.hello("127.0.0.2"))
    long = codec.encode(1, place.hello(groups=("g" * 255,)), Version.V2)[0]
    place.dealer.send(long.replace(b"\0\0\0\xff" + b"g", b"\0\0\1\0" + b"gg"))
    place.dealer.send_multipart([b"", b"\xaa\xa1", b"junk"])
    place.wait_for(before_hello=2, message_address=1, message_limit=1, message_signature=1)
    assert (place.node.peers, place.node._place.links) == ([], {})

    place.say(1, place.hello(groups=("g" * 255,)))
    assert place.wait_event(kelek.EventKind.JOIN).group == "g" * 255
    frames = place.mailbox.recv_multipart()
    assert isinstance(codec.decode(frames[1:], Version.V2)[1], Hello)
    place.say(2, Whisper([b"well"]))
    assert place.wait_event(kelek.EventKind.WHISPER).content == [b"well"]
    place.say(4, Whisper([b"behind a gap"]))
    assert place.wait_event(kelek.EventKind.EXIT).peer is not None
    place.wait_for(gaps=1, peers=0)


def test_a_flood_of_beacons(place: Place) -> None:
    """Of nodes that are not there: few are believed, and who is there is found."""
    dice = Random(1)
    for _ in range(FLOOD):
        place.beacon(encode_beacon(Beacon(own_uuid(dice.randbytes(14)), place.mailbox_port)))
    place.wait(lambda: place.node.counters.get("beacon_refused"))
    assert len(place.node._place.links) <= PEERS_MAX // 4
    with kelek.Node("decent", tuning=place.tuning) as decent:
        place.wait(lambda: decent.uuid in {peer.uuid for peer in place.node.peers})
