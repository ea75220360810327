"""The actor zre_beacon: UDP beacons in and out, floods, and a missing interface."""

import socket
from pathlib import Path

import pytest

from kelek.actors.errors import OperatorError
from kelek.actors.zre import pipes as zre_pipes
from kelek.actors.zre.beacon import ZreBeacon
from kelek.native.net.datagrams import ReceivedBeacon
from kelek.native.net.interfaces import LOOPBACK
from kelek.protocols.zre.beacon import Beacon, encode_beacon
from kelek.protocols.zre.limiter import Limiter, Rate
from kelek.tests.actors.actor_harness import ActorHarness
from kelek.tests.actors.zre.zre_settings import PEER, receive, settings

KEY = bytes(range(32))  # A public key.


def test_beacons_are_sent_and_received(harness: ActorHarness, tmp_path: Path) -> None:
    pipe = harness.bind("zre_node.heard")
    actor: ZreBeacon = harness.start_actor(ZreBeacon, str(tmp_path), 1, settings(beacon_ms=600_000))
    sends = harness.connect("zre_beacon.sends")
    beacon = encode_beacon(Beacon(PEER, 61_000))
    sends.send(beacon)
    beacons = zre_pipes.decode_heard(receive(harness, pipe))
    assert beacons == [ReceivedBeacon(PEER, 61_000, LOOPBACK)], "a broadcast reaches its sender too"
    sends.send(beacon)
    harness.run_until(lambda: actor.counters["repeated"])
    assert not pipe.poll(0), "repeats are not forwarded"
    sends.send(encode_beacon(Beacon(PEER, 61_000, KEY)))
    beacons = zre_pipes.decode_heard(receive(harness, pipe))
    assert beacons == [ReceivedBeacon(PEER, 61_000, LOOPBACK, KEY)]
    assert actor.counters["sent"] == 3


def test_a_flood_of_datagrams_is_dropped(harness: ActorHarness, tmp_path: Path) -> None:
    """C counts malformed datagrams. A rate limits the forwarded beacons of a source."""
    pipe = harness.bind("zre_node.heard")
    actor: ZreBeacon = harness.start_actor(ZreBeacon, str(tmp_path), 1, settings())
    actor.limiter = Limiter(Rate(burst=100, per_s=0))
    address = LOOPBACK, actor.settings.zre.port

    def processed() -> int:
        counts = actor.counters
        return counts["heard"] + counts["refused"] + actor.udp.flooded

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for i in range(100):
            sender.sendto(b"ZRE\x02" + i.to_bytes(18), address)
        harness.run_until(lambda: actor.udp.malformed >= 100)
        for first in range(0, 5000, 100):
            before = processed()
            for i in range(first, first + 100):
                uuid = b"\x07" + i.to_bytes(15)
                sender.sendto(encode_beacon(Beacon(uuid, 1 + i)), address)
            harness.run_until(lambda before=before: processed() > before)  # type: ignore[misc]
    assert pipe.poll(0)
    assert actor.counters["heard"] == 100
    assert actor.status()["malformed"] == 100


def test_a_missing_interface_is_reported(harness: ActorHarness, tmp_path: Path) -> None:
    harness.places["zre.interface"] = "t.yaml: nodes.n1.zre.interface"
    with pytest.raises(OperatorError, match=r"interface: no interface 'eth77'; there are .*lo; na"):
        harness.start_actor(ZreBeacon, str(tmp_path), 1, settings({"interface": "eth77"}))
