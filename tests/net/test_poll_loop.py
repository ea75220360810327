"""Limits of accepted connections. Peers that break the rules use TCP sockets without libzmq."""

import contextlib
import os
import random
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq

from kelek._native import lib
from kelek.bench.ports import free_port
from kelek.native.net.connections import (
    REFUSED_EXCESS,
    ConnectionLimits,
    Connections,
    held_bytes_max,
)
from kelek.native.net.messages import Arena
from kelek.net.access.zap import ZapSocket
from kelek.net.poll_loop import PollLoop
from kelek.net.sockets import CurveServer, ForeignBind, Socket, SocketOptions
from kelek.protocols.access.grants import EVERYTHING
from kelek.protocols.access.guards import row_of
from kelek.protocols.access.zap import NULL, AllowedKey, Keyring, ProtectedEndpoint, ZapHandler
from kelek.tests.zmtp_peer import MORE, ZmtpPeer, frame, greeting, ready

DEADLINE_S = 60
HANDSHAKE_BYTES = len(greeting() + ready())


class ListeningLoop(PollLoop):
    """A loop with one endpoint, and a well-behaved client in the same process."""

    def __init__(self, limits: ConnectionLimits, kind: int = zmq.ROUTER, **options: Any) -> None:
        super().__init__(connections=Connections(limits))
        self.port = free_port()
        url = f"tcp://127.0.0.1:{self.port}"
        self.bound = self.socket(kind, SocketOptions((url,), **options))
        self.received: list[list[bytes]] = []
        self.peers: list[ZmtpPeer] = []
        self.client: Socket = self.context.socket(zmq.DEALER)
        self.client.linger, self.client.sndhwm = 0, 0
        if kind == zmq.ROUTER:
            self.listen(self.bound, self._on_arena)
            self.client.connect(url)
            self.check_client()

    def _on_arena(self, arena: Arena) -> None:
        self.received += arena.messages()

    def check_client(self) -> None:
        """The client is still connected: its message arrives without a reconnect."""
        known = len(self.received)
        self.client.send(b"here")
        self.run_until(lambda: any(frames[-1] == b"here" for frames in self.received[known:]))

    def run_until(self, is_done: Callable[[], object]) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while not is_done():
            assert time.monotonic() < deadline_s, "the condition never holds"
            self.run_once(20)

    def peer(self, *arguments: Any, **options: Any) -> ZmtpPeer:
        self.peers.append(ZmtpPeer(self.port, *arguments, **options))
        return self.peers[-1]

    def try_peer(self, *arguments: Any, **options: Any) -> ZmtpPeer | None:
        """None: the connection has ended already, perhaps while the peer sent its READY."""
        try:
            return self.peer(*arguments, **options)
        except ConnectionError:
            return None

    @property
    def cuts(self) -> dict[str, int]:
        assert self.connections is not None
        return {key: count for key, count in self.connections.cut_counts().items() if count}

    @property
    def held(self) -> int:
        assert self.connections is not None
        return self.connections.held

    @property
    def connected(self) -> int:
        assert self.connections is not None
        return self.connections.count


Listening = Callable[..., ListeningLoop]


def is_cut(peer: ZmtpPeer | None, timeout_s: float = 0) -> bool:
    return peer is None or peer.is_cut(timeout_s)


@pytest.fixture
def listening() -> Iterator[Listening]:
    made: list[ListeningLoop] = []

    def make(limits: ConnectionLimits | None = None, **options: Any) -> ListeningLoop:
        made.append(ListeningLoop(limits or ConnectionLimits(), **options))
        return made[-1]

    yield make
    for loop in made:
        for peer in loop.peers:
            peer.close()
        loop.client.close()
        loop.close_sockets()


def test_held_bytes_are_their_twins(listening: Listening) -> None:
    """A plain Python twin adds up what was sent, less the whole messages that arrived."""
    loop, rng = listening(), random.Random(5)
    peers = [loop.peer() for _ in range(5)]
    unfinished = dict.fromkeys(range(5), 0)
    count = 0
    for _ in range(400):
        number = rng.randrange(5)
        data = rng.randbytes(rng.choice([0, 1, 255, 256, 5000]))
        more = rng.random() < 0.4
        peers[number].send(frame(data, MORE if more else 0))
        unfinished[number] = unfinished[number] + len(frame(data)) if more else 0
        count += not more
    loop.run_until(lambda: len(loop.received) == 1 + count)
    twin = 6 * HANDSHAKE_BYTES + sum(unfinished.values())
    # libzmq's own READY is as long as ours, or some bytes shorter.
    loop.run_until(lambda: abs(loop.held - twin) < 64)
    assert loop.cuts == {}
    for peer in peers:
        peer.close()
    loop.run_until(lambda: loop.connected == 1 and loop.held < HANDSHAKE_BYTES + 64)


def test_an_endless_message_ends_its_connection_alone(listening: Listening) -> None:
    loop = listening()
    peer, honest = loop.peer(), loop.peer()
    part = frame(bytes(1 << 20), MORE)
    sent = 0
    while not peer.is_cut():
        assert sent < 512, "the connection never ends"
        try:
            peer.send(part)
        except OSError:
            break
        sent += 1
        loop.run_once(1)
    loop.run_until(lambda: loop.connected == 2)
    assert loop.cuts == {"bytes": 1}
    assert loop.connections is not None
    (cut,) = loop.connections.pop_cuts()
    assert cut.reason == "bytes"
    assert cut.address.startswith("127.0.0.1:")
    assert cut.held > held_bytes_max(64 << 20, 8192, curve=False)
    honest.send(frame(b"honest"))
    loop.run_until(lambda: loop.received[-1][-1] == b"honest")
    loop.check_client()


def test_a_message_of_the_largest_size_arrives(listening: Listening) -> None:
    loop = listening(message_bytes_max=96 << 20)
    peer = loop.peer()
    for _ in range(95):
        peer.send(frame(bytes(1 << 20), MORE))
        loop.run_once(0)
    loop.run_until(lambda: loop.held > 95 << 20)
    peer.send(frame(b"end"))
    loop.run_until(lambda: loop.received[-1][-1] == b"end")
    loop.run_until(lambda: loop.held < 1 << 10)
    assert loop.cuts == {}


def test_small_messages_that_wait_for_a_paused_socket_end_nothing(listening: Listening) -> None:
    loop = listening(hwm=1000)
    loop.set_paused(loop.bound, True)
    for _ in range(2000):  # More than the queue of a socket; the rest waits in the kernel.
        loop.client.send(bytes(10_000))
    loop.run_until(lambda: loop.held > 9_000_000)
    loop.run_once(0)
    assert loop.cuts == {}
    loop.set_paused(loop.bound, False)
    loop.run_until(lambda: len(loop.received) == 2001)
    loop.run_until(lambda: loop.held < 1 << 10)
    assert loop.cuts == {}


def test_complete_messages_that_wait_end_nothing(listening: Listening) -> None:
    """As many as the socket's limit may wait: their sender may be faster than a busy loop."""
    loop = listening(ConnectionLimits(memory=1 << 30), hwm=1000)  # The client is in this process.
    for _ in range(160):
        loop.client.send(bytes(1 << 20))
    loop.set_paused(loop.bound, True)
    loop.run_until(lambda: loop.held > 128 << 20)
    loop.set_paused(loop.bound, False)
    loop.run_until(lambda: len(loop.received) == 161)
    assert loop.cuts == {}


def test_the_largest_holder_is_cut_when_all_hold_too_much(listening: Listening) -> None:
    """Metadata of a READY stays in memory as long as its connection."""
    loop = listening(ConnectionLimits(bytes=5 << 20))
    sizes = [1 << 20, 2 << 20, 3 << 20]
    peers = [loop.try_peer(greeting() + ready(filler=size)) for size in sizes]
    loop.run_until(lambda: "total" in loop.cuts and loop.connected == 3)
    assert [is_cut(peer) for peer in peers] == [False, False, True]
    loop.check_client()


def test_connections_without_a_message_hold_less_together(listening: Listening) -> None:
    """libzmq may hold handshakes of theirs, twice."""
    loop = listening(ConnectionLimits(bytes=256 << 20))
    peers = [loop.try_peer(greeting() + ready(filler=size << 20)) for size in (20, 30, 40)]
    loop.run_until(lambda: "total" in loop.cuts)
    assert not is_cut(peers[0])
    assert loop.cuts == {"total": 1}  # The largest at that time.
    loop.run_until(lambda: loop.held < held_bytes_max(64 << 20, 8192, curve=False))


def test_connections_that_never_sent_a_message_hold_one_together(listening: Listening) -> None:
    """libzmq's thread copies the metadata of each several times, and others wait."""
    loop = listening(ConnectionLimits(bytes=256 << 20), message_bytes_max=8 << 20)
    small, large = (loop.try_peer(greeting() + ready(filler=size << 20)) for size in (4, 5))
    loop.run_until(lambda: "total" in loop.cuts)
    assert (is_cut(small), is_cut(large, DEADLINE_S)) == (False, True)
    sender = loop.peer(timeout_s=DEADLINE_S)
    sender.send(frame(b"first"))
    loop.run_until(lambda: len(loop.received) == 2)
    sender.send(frame(bytes(5 << 20), MORE))
    loop.run_until(lambda: loop.held > 9 << 20)
    assert not sender.is_cut(0.1)
    assert loop.cuts == {"total": 1}


def test_connections_without_a_message_for_a_while_hold_less_together(
    listening: Listening,
) -> None:
    loop = listening(ConnectionLimits(bytes=256 << 20))
    peers = [loop.peer(timeout_s=DEADLINE_S) for _ in range(3)]
    for peer in peers:
        peer.send(frame(b"first"))
        peer.send(frame(bytes(25 << 20), MORE))  # Its message never ends.
    loop.run_until(lambda: loop.cuts == {"total": 1})
    assert sum(peer.is_cut() for peer in peers) == 1
    loop.check_client()


def test_new_connections_of_an_address_that_held_too_much_may_hold_little(
    listening: Listening,
) -> None:
    loop = listening(ConnectionLimits(bytes=8 << 20))
    before = loop.peer()
    before.send(frame(b"first"))
    loop.run_until(lambda: len(loop.received) == 2)
    assert not is_cut(loop.try_peer(greeting() + ready(filler=2 << 20)), 0.1)
    # Each costs a 16th of the connections that the address may make, and itself; with time they
    # come back. Below half of them it may hold little: that ends a large one for its own bytes.
    until_s, large, is_poor = time.monotonic() + DEADLINE_S, 0, False
    while not is_poor and time.monotonic() < until_s:
        assert is_cut(loop.try_peer(greeting() + ready(filler=6 << 20)), DEADLINE_S)
        large += 1
        if large <= 8:
            assert loop.cuts == {"total": large}
        elif "bytes" in loop.cuts:
            probe = loop.try_peer(greeting() + ready(filler=2 << 20))
            is_poor = is_cut(probe, 1)
            if probe is not None and not is_poor:
                probe.close()
    cuts = loop.cuts
    assert is_poor
    assert cuts["total"] + cuts["bytes"] == sum(cuts.values()) == large + 1
    before.send(frame(bytes(2 << 20), MORE))  # It has sent a message before.
    loop.run_until(lambda: loop.held > 2 << 20)
    assert not before.is_cut(0.1)
    assert loop.cuts == cuts
    loop.check_client()


def test_limits_hold_while_the_process_computes(listening: Listening) -> None:
    """The loop does not run at all."""
    loop = listening(ConnectionLimits(bytes=5 << 20))
    peer = loop.try_peer(greeting() + ready(filler=6 << 20))
    assert is_cut(peer, DEADLINE_S)
    assert loop.cuts == {"total": 1}


def test_small_frames_are_limited_by_the_memory_they_take(listening: Listening) -> None:
    loop = listening(ConnectionLimits(memory=16 << 20))
    peer = loop.peer()
    part = frame(b"", MORE) * 10_000  # 20 kB, which take 640 kB.
    for _ in range(2000):
        try:
            peer.send(part)
        except ConnectionError:
            break
        loop.run_once(0)
    loop.run_until(lambda: loop.cuts == {"memory": 1} and peer.is_cut())
    loop.check_client()


def test_own_queues_of_a_slow_process_end_no_sender(listening: Listening) -> None:
    """The sender is faster than the loop, which keeps all that it receives."""
    loop = listening(ConnectionLimits(memory=64 << 20), hwm=16)
    peer, size = loop.peer(timeout_s=DEADLINE_S), 1 << 20
    message, count = frame(bytes(size)), 300

    def send() -> None:
        for _ in range(count):
            peer.send(message)

    sender = threading.Thread(target=send)
    sender.start()
    while len(loop.received) <= count and not loop.cuts:
        loop.set_paused(loop.bound, True)
        loop.run_once(10)
        loop.set_paused(loop.bound, False)
        loop.run_once(10)
        loop.report_own_bytes(size * len(loop.received))
    assert loop.cuts == {}
    sender.join()


def test_connections_are_ended_when_no_descriptor_is_left(listening: Listening) -> None:
    loop = listening(ConnectionLimits(bytes=5 << 20))
    peer = loop.peer(greeting() + ready(filler=4 << 20))
    other = loop.peer(greeting() + ready()[:20], waits=False)
    loop.run_until(lambda: loop.connected == 3)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    largest, taken = max(map(int, os.listdir("/proc/self/fd"))), []
    resource.setrlimit(resource.RLIMIT_NOFILE, (largest + 2, hard))
    try:
        with contextlib.suppress(OSError):  # Until there is none.
            while True:
                taken.append(os.dup(0))
        peer.send(frame(bytes(2 << 20), MORE))
        loop.run_until(lambda: loop.cuts == {"total": 1})
        assert peer.is_cut(DEADLINE_S)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in taken:
            os.close(descriptor)
    assert not other.is_cut()


def test_an_address_that_held_too_much_waits_before_it_connects_again(
    listening: Listening,
) -> None:
    loop = listening(ConnectionLimits(bytes=1 << 20, per_address=16))
    hello = greeting() + ready(filler=2 << 20)
    for total in range(1, 16):
        loop.try_peer(hello, source="127.0.0.2")
        loop.run_until(lambda: sum(loop.cuts.values()) == total)  # noqa: B023
    assert loop.cuts["rate"] > 1
    other = loop.peer(source="127.0.0.3")
    loop.run_until(lambda: loop.connected == 2)
    assert not other.is_cut()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel refuses addresses on Linux")
def test_the_kernel_refuses_an_address(listening: Listening) -> None:
    """One that connects on and on: its SYNs are dropped for a second, so that none is accepted."""
    loop = listening(ConnectionLimits(per_address=16))
    connections = loop.connections
    assert connections is not None
    tried = 0
    while not connections.refused:
        tried += 1
        with contextlib.suppress(OSError):
            ZmtpPeer(loop.port, source="127.0.0.2", timeout_s=1).close()
        loop.run_once(0)
    # One that has left by itself counts among the excess, though it is not cut.
    assert loop.cuts
    assert tried >= 16 + REFUSED_EXCESS
    with pytest.raises(TimeoutError):
        loop.peer(source="127.0.0.2", timeout_s=0.2)
    assert not loop.peer(source="127.0.0.3").is_cut()
    loop.check_client()
    loop.run_until(lambda: loop.try_peer(source="127.0.0.2"))


def test_too_many_connections(listening: Listening) -> None:
    loop = listening(ConnectionLimits(connections=4))
    peers = [loop.try_peer() for _ in range(5)]
    loop.run_until(lambda: loop.cuts == {"connections": 2} and loop.connected == 4)
    assert [is_cut(peer) for peer in peers] == [False] * 3 + [True] * 2
    assert peers[0] is not None
    peers[0].close()
    loop.run_until(lambda: loop.connected == 3)
    assert not loop.peer().is_cut()


def test_too_many_connections_of_one_address(listening: Listening) -> None:
    loop = listening(ConnectionLimits(per_address=3))
    peers = [loop.try_peer(source="127.0.0.2") for _ in range(5)]
    loop.run_until(lambda: loop.cuts == {"address": 2} and loop.connected == 4)
    assert [is_cut(peer) for peer in peers] == [False] * 3 + [True] * 2
    for peer in loop.peers:
        peer.close()
    loop.run_until(lambda: loop.connected == 1)
    loop.try_peer(source="127.0.0.2")
    loop.run_until(lambda: loop.cuts == {"address": 2, "rate": 1})
    other = loop.peer(source="127.0.0.3")
    loop.run_until(lambda: loop.connected == 2)
    assert not other.is_cut()


def test_subscriptions_of_one_connection_are_limited(listening: Listening) -> None:
    loop = listening(kind=zmq.PUB, message_bytes_max=1 << 10)
    few, many = (loop.peer(greeting() + ready(b"SUB")) for _ in range(2))
    few.send(frame(b"\1topic"))
    for number in range(80):
        many.send(frame(b"\1%04d" % number + bytes(1000)))
    loop.run_until(lambda: loop.cuts == {"bytes": 1} and loop.connected == 1)
    assert many.is_cut(1)
    loop.send(loop.bound, [b"topic"])
    few.socket.settimeout(DEADLINE_S)
    received = b""
    while not received.endswith(frame(b"topic")):
        received += few.socket.recv(1000)


def test_an_unfinished_message_must_grow(listening: Listening) -> None:
    loop = listening(ConnectionLimits(stall_ms=300))
    stalled, slow = loop.peer(), loop.peer()
    for peer in (stalled, slow):
        peer.send(frame(bytes(200_000), MORE))
    while not loop.cuts:
        slow.send(frame(bytes(2000), MORE))
        loop.run_once(10)
    assert loop.cuts == {"stalled": 1}
    loop.run_until(stalled.is_cut)
    slow.send(frame(b"end"))
    loop.run_until(lambda: loop.received[-1][-1] == b"end")


def test_an_unfinished_message_may_wait_while_the_socket_is_paused(listening: Listening) -> None:
    loop = listening(ConnectionLimits(stall_ms=300))
    peer = loop.peer()
    loop.set_paused(loop.bound, True)
    peer.send(frame(bytes(200_000), MORE))
    until_s = time.monotonic() + 1
    loop.run_until(lambda: time.monotonic() > until_s)
    assert loop.cuts == {}


def test_little_is_held_before_the_end_of_a_curve_handshake(listening: Listening) -> None:
    secret = zmq.curve_keypair()[1]
    curve = CurveServer(secret, "test")
    loop = listening(kind=zmq.PULL, curve=curve)
    peer = loop.peer(greeting(b"CURVE") + frame(bytes(100_000), 4)[:90_000], waits=False)
    loop.run_until(lambda: loop.cuts == {"handshake": 1} and loop.connected == 0)
    assert peer.is_cut(1)


def test_a_foreign_peer_may_send_much_before_it_gets_an_answer(listening: Listening) -> None:
    keyring = Keyring()
    keyring.replace({NULL: AllowedKey("foreign", EVERYTHING)})
    foreign = ForeignBind(f"tcp://127.0.0.1:{free_port()}", "foreign")
    curve = CurveServer(zmq.curve_keypair()[1], "test")
    loop = listening(kind=zmq.PULL, curve=curve, foreign=foreign)
    loop.allowed_keys.replace(map(row_of, keyring.slots))
    endpoint = ProtectedEndpoint(NULL, EVERYTHING.rights, NULL)
    ZapSocket(loop, ZapHandler(keyring, {b"foreign": endpoint}).answer, lambda *problem: None)
    loop.listen(loop.bound, lambda arena: loop.received.extend(arena.messages()))
    client: Socket = loop.context.socket(zmq.PUSH)
    client.connect(foreign.address)
    for number in range(4):
        client.send(bytes(70_000))
        loop.run_until(lambda: len(loop.received) > number)  # noqa: B023
        for _ in range(6):  # A new connection is checked every 10 ms.
            loop.run_once(10)
    assert (loop.cuts, loop.connected) == ({}, 1)
    assert 0 < loop.held <= HANDSHAKE_BYTES
    client.close()


def test_a_slow_handshake_ends_after_two_seconds(listening: Listening) -> None:
    """HANDSHAKE_IVL counts from the beginning of the connection, not from its last byte."""
    loop = listening()
    peer = loop.peer(b"", waits=False)
    begun_s = time.monotonic()
    for byte in greeting() + ready(filler=5000):
        if peer.is_cut():
            break
        peer.send(bytes([byte]))
        loop.run_once(50)
    assert 1.5 < time.monotonic() - begun_s < 10
    loop.check_client()


def test_reused_descriptors_keep_their_own_counts(listening: Listening) -> None:
    """Connections that come and go have the same descriptors; the others lose no message."""
    loop, rng = listening(), random.Random(7)
    honest = loop.peer()
    for number in range(150):
        peer = loop.peer()
        peer.send(frame(bytes(rng.randrange(3000)), rng.choice([0, MORE])))
        if rng.random() < 0.5:
            loop.run_once(0)
        peer.close()
        honest.send(frame(b"%d" % number))
    loop.run_until(lambda: loop.received[-1][-1] == b"149" and loop.connected == 2)
    loop.run_until(lambda: loop.held < 2 * HANDSHAKE_BYTES + 64)
    assert loop.cuts == {}
    loop.check_client()


def test_sockets_with_the_descriptor_of_an_ended_connection_are_left_alone(
    listening: Listening,
) -> None:
    loop = listening(kind=zmq.PULL)
    assert loop.connections is not None
    open_files = len(os.listdir("/proc/self/fd"))
    lib.klk_connections_lock(loop.connections.state)  # It reads the events later.
    loop.peer(greeting() + ready(b"PUSH")).close()
    loop.run_until(lambda: len(os.listdir("/proc/self/fd")) == open_files)
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(4)]
    lib.klk_connections_unlock(loop.connections.state)
    loop.end_connections(loop.bound)
    assert loop.connected == 0
    for listener in listeners:
        socket.create_connection(listener.getsockname()).close()
        listener.accept()[0].close()  # Refused after a shutdown of the listener.
        listener.close()


def test_all_connections_of_an_endpoint_end_on_request(listening: Listening) -> None:
    loop = listening()
    peers = [loop.peer() for _ in range(3)]
    loop.run_until(lambda: loop.connected == 4)
    late = loop.peer()  # Its event may be unread yet.
    loop.end_connections(loop.bound)
    assert all(peer.is_cut(DEADLINE_S) for peer in (*peers, late))
    assert loop.cuts["keys"] >= 4
    loop.check_client()  # It has connected again.
