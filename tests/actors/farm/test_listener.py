"""Inbound connections of a farm server in virtual time: limits of slow clients."""

import json
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from kelek.actors.farm.listener import (
    HANDSHAKE_STEPS_MAX,
    LINGER_BYTES_MAX,
    LINGER_MS,
    REQUEST_MS_MIN,
    AdmittedConnection,
    ConnectionLimits,
    FarmListener,
    InboundStream,
)
from kelek.net.streams import READ_BYTES, StreamPoll
from kelek.protocols.garlicfarm.server.inbound import InboundConnection, PeerSession
from kelek.protocols.garlicfarm.wire.authenticator import DigestAuthenticator
from kelek.protocols.garlicfarm.wire.codec import encode_request
from kelek.protocols.garlicfarm.wire.handshake import (
    ChallengeCache,
    ConnectTarget,
    ServerHandshake,
    path_to,
)
from kelek.protocols.garlicfarm.wire.htdigest import users_of, with_user
from kelek.protocols.garlicfarm.wire.http_api import ViewRequest
from kelek.protocols.garlicfarm.wire.messages import (
    FarmLogEntry,
    MessageType,
    Request,
    Response,
    ValueType,
)

DEADLINE_S = 60
VIEW = json.dumps("x" * (8 << 20)).encode()
PATH = path_to("farm", "status")
ENTRIES_MAX = 1000
SOCKET_BYTES = 2 << 20  # What the two buffers of a pair take, at most.


class FakeListenerHost:
    """A process with one farm whose view has 8 MiB."""

    def __init__(self, is_open: bool = False) -> None:
        self.is_open = is_open  # Without a handshake.
        self.now_ms = 1000
        self.counters: Counter[str] = Counter()
        self.users = users_of(with_user("", "farm", "alice", "secret"), "farm")
        self.gate = DigestAuthenticator(b"k" * 16, bytes)
        self.inbound: dict[InboundStream, InboundConnection] = {}

    def watch(self, fd: int, handler: Any) -> None:
        """The test calls the handlers itself."""

    def log_rarely(self, event: str, **values: object) -> None:
        """No test needs it."""

    def render(self, view: ViewRequest) -> bytes:
        return VIEW

    def make_handshake(self, connection: InboundStream) -> ServerHandshake | None:
        if self.is_open:
            return None
        return ServerHandshake(self.gate, {"farm": self.users}, self.now_ms, {"farm": self})

    def admit(self, cluster: str, user: str, connection: InboundStream) -> AdmittedConnection:
        return AdmittedConnection(self, user, 1)

    # The owner of authenticated connections.

    def on_requests(self, connection: InboundStream, data: bytes) -> None:
        """The requests wait for answer()."""
        inbound = self.inbound.setdefault(connection, InboundConnection(PeerSession(), ENTRIES_MAX))
        for request in inbound.stream.feed(data):
            inbound.add(request, None).release_entries()
        connection.set_load(inbound.is_full, inbound.partial)

    def on_closed(self, connection: InboundStream) -> None:
        del self.inbound[connection]

    def answer(self, connection: InboundStream) -> None:
        """Answers all pending requests."""
        inbound = self.inbound[connection]
        for slot in inbound.pending:
            slot.response = Response(MessageType.APPEND_ENTRIES_RESPONSE, 1, 2, 3, 4, True)
        inbound.flush()
        connection.set_load(inbound.is_full, inbound.partial)
        connection.send(inbound.out)

    def request(self) -> bytes:
        challenges = ChallengeCache()
        offers = self.gate.challenges(self.users, self.now_ms)
        challenges.store([(b"www-authenticate", offer) for offer in offers], self.now_ms)
        target = ConnectTarget("a", "farm", "alice", "secret")
        answer = challenges.authorize(target, ("GET", PATH), "c").decode()
        return f"GET {PATH} HTTP/1.1\r\nHost: a\r\nAuthorization: {answer}\r\n\r\n".encode()


def test_a_slow_reader_gets_the_whole_view() -> None:
    """A slow reader has more time than a refused client. One that reads nothing is closed."""
    host = FakeListenerHost()
    limits = ConnectionLimits(10, 1 << 20, 10)
    listener = FarmListener(host, StreamPoll(host), None, limits)  # type: ignore[arg-type]
    server, client = socket.socketpair()
    with client:
        server.setblocking(False)
        client.settimeout(DEADLINE_S)
        listener.add(server)
        (connection,) = listener.connections.values()
        client.sendall(host.request())
        connection.on_ready()
        assert len(connection.stream.out) > len(VIEW) // 2, "the socket buffer is full"
        host.now_ms += LINGER_MS + 1
        listener.check(host.now_ms)
        got = b""
        while connection.stream.out:
            piece = client.recv(1 << 20)
            assert piece, "the connection was closed too early"
            got += piece
            connection.on_ready()
        client.setblocking(False)
        while data := client.recv(1 << 20):
            got += data
        assert got.partition(b"\r\n\r\n")[2] == VIEW
        host.now_ms += len(VIEW)
        listener.check(host.now_ms)
    assert not listener.connections
    listener.poll.close()


@contextmanager
def pending_connections(
    limits: ConnectionLimits,
) -> Iterator[tuple[FakeListenerHost, FarmListener, Callable[[str], socket.socket]]]:
    """A listener with a handshake, and a function that connects from an address."""
    host = FakeListenerHost()
    listener = FarmListener(host, StreamPoll(host), None, limits)  # type: ignore[arg-type]
    with ExitStack() as stack:

        def connect(address: str) -> socket.socket:
            server, client = socket.socketpair()
            stack.enter_context(client)
            client.settimeout(DEADLINE_S)
            listener.add(server, address)
            return client

        yield host, listener, connect
        listener.close_all()
    listener.poll.close()


def test_an_address_has_a_share_of_the_connections() -> None:
    with pending_connections(ConnectionLimits(10, 1 << 20, 3)) as (host, listener, connect):
        connect("10.0.0.2")
        silent = [connect("10.0.0.1") for _ in range(4)]
        assert silent[0].recv(1) == b"", "the oldest one of this address is closed"
        assert host.counters["address_refused"] == 1
        assert len(listener.connections) == 4
    with pending_connections(ConnectionLimits(10, 1 << 20, 1)) as (host, listener, connect):
        connect("10.0.0.1").sendall(host.request())
        (connection,) = listener.connections.values()
        connection.on_ready()
        assert connect("10.0.0.1").recv(1) == b"", "the other one has a login"
        connect("10.0.0.2")
        assert len(listener.connections) == 2


def test_clients_without_a_login_keep_no_others_out() -> None:
    """The oldest one is closed for a new client; one with a login is not."""
    with pending_connections(ConnectionLimits(4, 1 << 20, 4)) as (host, listener, connect):
        ann = connect("10.0.0.1")
        ann.sendall(host.request())
        (connection,) = listener.connections.values()
        connection.on_ready()
        silent = [connect("10.0.0.2") for _ in range(4)]
        assert host.counters["connections_refused"] == 1
        assert silent[0].recv(1) == b""
        assert connection in listener.connections.values()
        assert len(listener.connections) == 4


def test_handshakes_share_the_time_of_a_wake() -> None:
    """Those above the limit continue in the next wake, in turn, and none twice before others."""
    with pending_connections(ConnectionLimits(1000, 1 << 20, 1000)) as (host, listener, connect):
        clients = [connect("10.0.0.1") for _ in range(2 * HANDSHAKE_STEPS_MAX + 5)]
        for client in clients:
            client.sendall(b"bad request\r\n\r\n")

        def wake() -> int:
            for connection in list(listener.connections.values()):
                if not connection.is_closing:
                    connection.on_ready()
            listener.check(host.now_ms)
            return sum(connection.is_closing for connection in listener.connections.values())

        assert [wake(), wake()] == [2 * HANDSHAKE_STEPS_MAX, len(clients)]
        assert clients[-1].recv(100).startswith(b"HTTP/1.1 400 ")


def test_what_follows_a_refusal_is_read_up_to_a_limit() -> None:
    """A client without a login that sends without end costs no more."""
    with pending_connections(ConnectionLimits(10, 1 << 20, 10)) as (host, listener, connect):
        client = connect("10.0.0.1")
        client.setblocking(False)
        client.send(b"bad request\r\n\r\n")
        (connection,) = listener.connections.values()
        sent, most = 0, LINGER_BYTES_MAX + READ_BYTES + SOCKET_BYTES
        while connection.stream.fd in listener.connections and sent <= most:
            connection.on_ready()
            try:
                sent += client.send(bytes(1 << 20))
            except BlockingIOError:
                host.now_ms += LINGER_MS + 1
                listener.check(host.now_ms)
        assert LINGER_BYTES_MAX < sent <= most
        client.setblocking(True)
        assert client.recv(100).startswith(b"HTTP/1.1 400 ")


def request(size: int) -> bytes:
    """A request with one entry of size bytes."""
    entry = FarmLogEntry(0, ValueType.APPLICATION, bytes(size))
    return encode_request(Request(MessageType.CLIENT_REQUEST, entries=(entry,)))


@contextmanager
def connections(
    count: int,
) -> Iterator[tuple[FakeListenerHost, FarmListener, list[tuple[InboundStream, socket.socket]]]]:
    """A listener with count connections without a handshake, each with its client socket."""
    host = FakeListenerHost(is_open=True)
    limits = ConnectionLimits(10, 3 * ENTRIES_MAX, 10)
    listener = FarmListener(host, StreamPoll(host), None, limits)  # type: ignore[arg-type]
    with ExitStack() as stack:
        pairs = []
        for _ in range(count):
            server, client = socket.socketpair()
            stack.enter_context(client)
            server.setblocking(False)
            client.settimeout(DEADLINE_S)
            listener.add(server)
            pairs.append((list(listener.connections.values())[-1], client))
        yield host, listener, pairs
        listener.close_all()
        assert listener.partial_bytes == 0
    listener.poll.close()


def test_a_partial_request_has_a_deadline_by_its_size() -> None:
    """The deadline grows with the size; the next request has its own."""
    with connections(2) as (host, listener, ((slow, to_slow), (fine, to_fine))):
        data = request(800)
        to_slow.sendall(data[:50])
        slow.on_ready()
        to_fine.sendall(data + data[:50])
        fine.on_ready()
        host.now_ms += REQUEST_MS_MIN - 1
        to_slow.sendall(data[50:60])
        slow.on_ready()
        to_fine.sendall(data[50:] + data[:10])
        fine.on_ready()
        listener.check(host.now_ms)
        assert len(listener.connections) == 2
        host.now_ms += 101  # 858 bytes add about 50 ms.
        listener.check(host.now_ms)
        assert list(listener.connections.values()) == [fine]
        assert to_slow.recv(1) == b""
        assert host.counters["request_timeouts"] == 1
        to_fine.sendall(data[10:])
        fine.on_ready()
        host.now_ms += 10 * REQUEST_MS_MIN
        listener.check(host.now_ms)
        assert listener.connections, "without a partial request there is no deadline"


def test_the_largest_partial_request_is_dropped_above_the_limit() -> None:
    """Complete requests do not count."""
    with connections(5) as (host, listener, pairs):
        for count, (connection, to) in enumerate(pairs):
            to.sendall(request(900)[: 600 + 50 * count] if count else request(900))
            connection.on_ready()
        listener.check(host.now_ms)
        assert len(listener.connections) == 5
        pairs[0][1].sendall(request(900)[:700])
        pairs[0][0].on_ready()
        listener.check(host.now_ms)
        assert host.counters["half_requests_dropped"] == 1
        assert pairs[4][0] not in listener.connections.values()
        assert len(listener.connections) == 4


def test_a_connection_with_many_unanswered_requests_is_not_read() -> None:
    """Reading continues with the answers, and the partial request has its full time."""
    with connections(1) as (host, listener, ((connection, to),)):
        to.sendall(request(600) + request(600))
        connection.on_ready()
        inbound = host.inbound[connection]
        assert inbound.is_full
        assert [slot.request.entries for slot in inbound.pending] == [(), ()]
        to.sendall(request(100)[:60])
        connection.on_ready()
        assert inbound.partial is None, "it is not read"
        host.answer(connection)
        assert len(to.recv(100)) == 2 * 26
        connection.on_ready()
        assert connection.partial is not None
        host.now_ms += REQUEST_MS_MIN
        to.sendall(request(100)[60:])
        connection.on_ready()
        listener.check(host.now_ms)
        assert len(inbound.pending) == 1
