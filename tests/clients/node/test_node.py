"""kelek.Node: several nodes in this process, and nodes of other processes."""

import select
import socket
import threading

import pytest

import kelek
from kelek.bench.ports import free_ports
from kelek.native.net.datagrams import Datagrams
from kelek.native.net.interfaces import LOOPBACK, LOOPBACK_BROADCAST, Interface
from kelek.protocols.zre.beacon import Beacon, encode_beacon
from kelek.tests.clients.node.nodes import DEADLINE_MS, Kind, Make, peer_of, tuned, wait_for
from kelek.tests.interop.zre.zre_nodes import OURS, NodeProcess


def test_a_foreign_beacon_is_answered_by_a_beacon_at_once(port: int) -> None:
    """A foreign node needs a beacon to find us; it must not wait for the next one."""
    hour_ms = 3_600_000
    tuning = tuned(
        port, beacon_ms=hour_ms, evasive_ms=hour_ms, silent_ms=hour_ms, expired_ms=hour_ms
    )
    datagrams = Datagrams(Interface("lo", LOOPBACK, LOOPBACK_BROADCAST), port)
    try:
        with kelek.Node(tuning=tuning) as node:

            def wait_beacon() -> None:
                while node.uuid not in {one.uuid for one in datagrams.receive(0)}:
                    assert select.select([datagrams], [], [], DEADLINE_MS / 1000)[0], "no beacon"

            wait_beacon()
            datagrams.send(encode_beacon(Beacon(b"a foreign uuid..", free_ports(1)[0])))
            wait_beacon()
    finally:
        datagrams.close()


def test_nodes_of_one_process_find_each_other(make: Make) -> None:
    a = make("a", {"X-A": "1"})
    b = make("b")
    seen = peer_of(b, "a")
    assert (seen.headers, seen.uuid, seen.endpoint) == ({"X-A": "1"}, a.uuid, a.endpoint)
    assert peer_of(a, "b").uuid == b.uuid
    assert [peer.name for peer in a.peers] == ["b"]
    assert a.peer(b.uuid) == a.peers[0]
    assert b.whisper(seen, [b"two", b"frames"])
    whisper = wait_for(a, Kind.WHISPER)
    assert whisper.peer is not None
    assert (whisper.peer.name, whisper.content) == ("b", [b"two", b"frames"])
    assert not b.whisper(bytes(16), b"to nobody")
    b.close()
    assert wait_for(a, Kind.EXIT).peer == whisper.peer
    assert a.peers == []


def test_static_peers_and_gossip_work_without_udp(make: Make, port: int) -> None:
    """All nodes find each other without a UDP socket."""
    closed = {"beacons": False, "gossip": True, "subnets": ("127.0.0.0/8",)}
    seed = make("seed", **closed)
    nodes = [make(name, static_peers=(seed.endpoint,), **closed) for name in "abc"]
    for node in nodes:
        names = {"seed", "a", "b", "c"} - {node.name}
        while {peer.name for peer in node.peers} != names:
            assert node.receive(DEADLINE_MS)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("", port))  # It fails while any socket has the port.
    assert {peer.name for peer in seed.peers} == {"a", "b", "c"}


def test_shouts_and_elections_of_a_group(make: Make) -> None:
    nodes = [make(name) for name in "abc"]
    a, b, c = nodes
    for node in nodes:
        node.join("lights")
    for node in nodes:
        for other in nodes:
            if other is not node:
                wait_for(node, Kind.JOIN)
    assert a.groups == {"lights"}
    assert {peer.name for peer in a.peer_groups["lights"]} == {"b", "c"}
    assert a.shout("lights", "on") == 2
    assert a.shout("Lights", "names differ by case") == 0
    for node in (b, c):
        event = wait_for(node, Kind.SHOUT)
        assert (event.group, event.content) == ("lights", [b"on"])
    c.leave("lights")
    assert wait_for(a, Kind.LEAVE, "c").group == "lights"
    assert a.shout_many("lights", ["1", "2", "3"]) == 1
    assert [wait_for(b, Kind.SHOUT).content for _ in range(3)] == [[b"1"], [b"2"], [b"3"]]
    a.elect("lights")
    leader = a.leader("lights")
    assert leader == min(a.uuid, b.uuid)


def test_a_fast_sender_waits_for_a_slow_reader(port: int, make: Make) -> None:
    """Nothing is lost, and no peer expires, though the reader's buffers are full."""
    count = 80_000
    a, b = make("a"), make("b", patience_ms=DEADLINE_MS)
    peer = peer_of(b, "a")
    results = []
    text = [b"%d" % i for i in range(count)]
    sender = threading.Thread(target=lambda: results.append(b.whisper_many(peer, text)))
    sender.start()
    got: list[bytes] = []
    while len(got) < count:
        events = a.receive(DEADLINE_MS)
        assert events
        got += [event.content[0] for event in events if event.kind is Kind.WHISPER]
    sender.join()
    assert results == [True]
    assert got == text


def test_a_peer_without_room_is_lost_after_the_patience(port: int, make: Make) -> None:
    """The peer is a process that reads nothing."""
    a = make("a", patience_ms=50)
    with NodeProcess(OURS, port, name="b") as b:
        peer = peer_of(a, "b")
        b.pause()
        while a.whisper_many(peer, [bytes(10_000)] * 1000):
            pass
        assert wait_for(a, Kind.EXIT).peer == peer
        b.go_on()
        assert peer_of(a, "b").uuid == peer.uuid, "it is discovered again"


def test_a_closed_node_cannot_be_used(make: Make) -> None:
    node, other = make("a"), make("b")
    node.close()
    node.close()
    assert node.closed
    assert all(event.kind is Kind.ENTER for event in node.events()), "earlier events only"
    assert node.receive() == []
    for use in (lambda: node.join("g"), lambda: node.whisper(other.uuid, b"")):
        with pytest.raises(kelek.NodeError, match="closed"):
            use()
    other.close()


def test_invalid_arguments_are_refused(port: int, make: Make) -> None:
    node = make("a")
    with pytest.raises(ValueError, match="group"):
        node.join("x" * 256)
    with pytest.raises(ValueError, match="255"):
        kelek.Node("x" * 256, tuning=tuned(port))
    with pytest.raises(ValueError, match="greeting is the version of ZRE, 1 or 2, not 'v2'"):
        kelek.Node(tuning=tuned(port, greeting="v2"))
    with pytest.raises(ValueError, match="message_bytes_max"):
        kelek.Node(tuning=tuned(port, message_bytes_max=0))
    for large in (bytes((1 << 20) + 1), [bytes(1 << 19)] * 3, [b""] * 1025):
        with pytest.raises(ValueError, match=r"at most 1048576 bytes .* in 1024 frames"):
            node.whisper(node.uuid, large)
        with pytest.raises(ValueError, match="at most"):
            node.shout_many("g", [large])
    with pytest.raises(OSError, match="no interface"):
        kelek.Node(tuning=kelek.NodeTuning(interface="nowhere"))
    with pytest.raises(TypeError, match="a peer is"):
        node.whisper(7, b"")  # type: ignore[arg-type]


def test_events_end_after_their_timeout(make: Make) -> None:
    node = make("a")
    assert list(node.events(0)) == []
    assert node.receive(1) == []
