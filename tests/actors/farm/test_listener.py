"""Inbound connections of a farm server in virtual time: limits of slow clients."""

import json
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from kelek.actors.farm.listener import (
    LINGER_MS,
    REQUEST_MS_MIN,
    AdmittedConnection,
    ConnectionLimits,
    FarmListener,
    InboundStream,
)
from kelek.net.streams import StreamPoll
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
SHOWN = json.dumps("x" * (8 << 20)).encode()
PATH = path_to("farm", "status")
ENTRIES_MAX = 1000


class FakeListenerHost:
    """A process with one farm whose view is large."""

    def __init__(self, is_open: bool = False) -> None:
        self.is_open = is_open  # Messages begin at once.
        self.now_ms = 1000
        self.counters: Counter[str] = Counter()
        self.users = users_of(with_user("", "farm", "alice", "secret"), "farm")
        self.gate = DigestAuthenticator(b"k" * 16, bytes)
        self.inbound: dict[InboundStream, InboundConnection] = {}

    def watch(self, fd: int, handler: Any) -> None:
        """The poll loop's part: the test runs it."""

    def render(self, view: ViewRequest) -> bytes:
        return SHOWN

    def make_handshake(self) -> ServerHandshake | None:
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
    """A slow reader stays longer than a refused client; one that does not read is closed."""
    host = FakeListenerHost()
    limits = ConnectionLimits(10, 1 << 20)
    listener = FarmListener(host, StreamPoll(host), None, limits)  # type: ignore[arg-type]
    ours, theirs = socket.socketpair()
    with theirs:
        ours.setblocking(False)
        theirs.settimeout(DEADLINE_S)
        listener.add(ours)
        (connection,) = listener.connections.values()
        theirs.sendall(host.request())
        connection.on_ready()
        assert len(connection.stream.out) > len(SHOWN) // 2, "a socket takes only so much"
        host.now_ms += LINGER_MS + 1
        listener.check(host.now_ms)
        got = b""
        while connection.stream.out:
            piece = theirs.recv(1 << 20)
            assert piece, "it was closed too early"
            got += piece
            connection.on_ready()
        theirs.setblocking(False)
        while data := theirs.recv(1 << 20):
            got += data
        assert got.partition(b"\r\n\r\n")[2] == SHOWN
        host.now_ms += len(SHOWN)
        listener.check(host.now_ms)
    assert not listener.connections
    listener.poll.close()


def request(size: int) -> bytes:
    """A request of this size besides its head and its entry's."""
    entry = FarmLogEntry(0, ValueType.APPLICATION, bytes(size))
    return encode_request(Request(MessageType.CLIENT_REQUEST, entries=(entry,)))


@contextmanager
def let_in(
    count: int,
) -> Iterator[tuple[FakeListenerHost, FarmListener, list[tuple[InboundStream, socket.socket]]]]:
    """So many connections without a handshake, each with its other end."""
    host = FakeListenerHost(is_open=True)
    limits = ConnectionLimits(10, 3 * ENTRIES_MAX)
    listener = FarmListener(host, StreamPoll(host), None, limits)  # type: ignore[arg-type]
    with ExitStack() as stack:
        made = []
        for _ in range(count):
            ours, theirs = socket.socketpair()
            stack.enter_context(theirs)
            ours.setblocking(False)
            theirs.settimeout(DEADLINE_S)
            listener.add(ours)
            made.append((list(listener.connections.values())[-1], theirs))
        yield host, listener, made
        listener.close_all()
        assert listener.partial_bytes == 0
    listener.poll.close()


def test_half_a_request_has_its_time() -> None:
    """The deadline grows with the size; the next request has its own."""
    with let_in(2) as (host, listener, ((slow, to_slow), (fine, to_fine))):
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
        host.now_ms += 101  # The 858 bytes count, too.
        listener.check(host.now_ms)
        assert list(listener.connections.values()) == [fine]
        assert to_slow.recv(1) == b""
        assert host.counters["request_timeouts"] == 1
        to_fine.sendall(data[10:])
        fine.on_ready()
        host.now_ms += 10 * REQUEST_MS_MIN
        listener.check(host.now_ms)
        assert listener.connections, "it may be silent as long as it likes"


def test_too_many_half_requests() -> None:
    """The largest partial request is dropped; complete requests do not count."""
    with let_in(5) as (host, listener, made):
        for count, (connection, to) in enumerate(made):
            to.sendall(request(900)[: 600 + 50 * count] if count else request(900))
            connection.on_ready()
        listener.check(host.now_ms)
        assert len(listener.connections) == 5
        made[0][1].sendall(request(900)[:700])
        made[0][0].on_ready()
        listener.check(host.now_ms)
        assert host.counters["half_requests_dropped"] == 1
        assert made[4][0] not in listener.connections.values()
        assert len(listener.connections) == 4


def test_nothing_is_read_beyond_what_is_not_answered() -> None:
    """Reading continues with the answers, and the partial request has its full time."""
    with let_in(1) as (host, listener, ((connection, to),)):
        to.sendall(request(600) + request(600))
        connection.on_ready()
        inbound = host.inbound[connection]
        assert inbound.is_full
        assert [slot.request.entries for slot in inbound.pending] == [(), ()]
        to.sendall(request(100)[:60])
        connection.on_ready()
        assert inbound.partial is None, "it has read on"
        host.answer(connection)
        assert len(to.recv(100)) == 2 * 26
        connection.on_ready()
        assert connection.partial is not None
        host.now_ms += REQUEST_MS_MIN
        to.sendall(request(100)[60:])
        connection.on_ready()
        listener.check(host.now_ms)
        assert len(inbound.pending) == 1
