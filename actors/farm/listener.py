"""Inbound connections of a farm server: TLS, the HTTP handshake, then requests.

protocols/garlicfarm decides what a message means. This module moves the bytes and limits slow
connections. actors/metrics answers its HTTP requests by the same listener.
"""

import resource
import socket
import ssl
from collections import Counter
from typing import NamedTuple, Protocol

from ...net.sockets import KEEPALIVE_IDLE_S
from ...net.streams import IN, OUT, StreamPoll, TcpStream
from ...protocols.garlicfarm.server.inbound import PartialRequest
from ...protocols.garlicfarm.server.logins import names_of, network_of
from ...protocols.garlicfarm.wire.handshake import HEAD_TIMEOUT_MS, Reply
from ...protocols.garlicfarm.wire.values import Address

BACKLOG = 512
ACCEPTS_MAX = 16  # Per wake.
HANDSHAKE_STEPS_MAX = 8  # Per wake: TLS takes CPU time, and heartbeats must not wait for it.
OUT_BYTES_MAX = 64 << 10  # Unsent answers; above it the connection is not read.
LINGER_MS = 1000  # After a refusal: further input is discarded for so long, ...
LINGER_BYTES_MAX = 64 << 10  # ... up to so much: then the connection is not read.
BYTES_PER_MS_MIN = 16  # The slowest accepted rate of a response or a request.
REQUEST_MS_MIN = 5000  # For an empty request.
CHECK_INTERVAL_MS = 100  # How often deadlines are checked.
OTHER_FILES_MAX = 256  # Descriptors reserved for other files.


class ConnectionOwner(Protocol):
    """What receives the requests of an authenticated connection: one farm."""

    def on_requests(self, connection: "InboundStream", data: bytes) -> None: ...

    def on_closed(self, connection: "InboundStream") -> None: ...


class AdmittedConnection(NamedTuple):
    """An authenticated connection: its owner, user and number."""

    owner: ConnectionOwner
    user: str
    number: int  # From FarmPeer.accept().


class ConnectionLimits(NamedTuple):
    """Limits over all connections.

    connections_max     above it the oldest connection without a login is closed for a new one; if
                        there is none, the new one is closed
    partial_bytes_max   bytes of incomplete requests; above it the largest one is dropped with
                        its connection
    per_address_max     the same as connections_max for the connections of one address
    """

    connections_max: int
    partial_bytes_max: int
    per_address_max: int


class Handshake(Protocol):
    """Reads the head of an HTTP request."""

    def feed(self, data: bytes, now_ms: int) -> Reply | None:
        """Adds bytes; returns the reply once the head is complete or malformed."""
        ...

    def on_timeout(self) -> Reply:
        """The head did not arrive in time."""
        ...


class ListenerHost(Protocol):
    """The process that owns the listener."""

    now_ms: int
    counters: Counter[str]

    def log_rarely(self, event: str, **values: object) -> None: ...

    def make_handshake(self, connection: "InboundStream") -> Handshake | None:
        """None: no handshake; admit() follows at once."""
        ...

    def admit(self, cluster: str, user: str, connection: "InboundStream") -> AdmittedConnection: ...


class InboundStream:
    """One inbound connection: TLS, HTTP head, then messages until it closes."""

    __slots__ = (
        "_discarded", "_end_sent", "_handshake", "_is_full", "_listener", "_timed_request",
        "address", "admitted", "deadline_ms", "is_closing", "partial", "stream",
    )  # fmt: skip

    def __init__(self, listener: "FarmListener", stream: TcpStream, address: str = "") -> None:
        """address: of the client, as logins.network_of() names it."""
        self._listener = listener
        self._handshake: Handshake | None = None
        self._discarded = 0  # Bytes since it is closing.
        self._end_sent = False
        self._is_full = False  # Too many unanswered requests: it is not read.
        self._timed_request: int | None = None  # The partial request that deadline_ms is for.
        self.partial: PartialRequest | None = None
        self.address = address
        self.stream = stream
        self.admitted: AdmittedConnection | None = None
        self.is_closing = False  # It closes once `out` is sent.
        self.deadline_ms: int | None = listener.host.now_ms + HEAD_TIMEOUT_MS

    def on_ready(self) -> None:
        """The socket is readable or writable."""
        is_pending = self.admitted is None and not self.is_closing
        if is_pending and not self._listener.takes_step(self):
            return
        stream = self.stream
        if not stream.secured and not stream.secure():
            if stream.ended:
                self._listener.host.counters["tls_failed"] += 1
        else:
            if stream.out:
                stream.flush()
            if self._may_read and not stream.ended:
                self._receive(stream.read())
        self.update_poll()

    @property
    def certificate_names(self) -> frozenset[str] | None:
        """The names in the client's certificate; None without one."""
        certificate = self.stream.peer_certificate
        return names_of(certificate) if certificate else None

    @property
    def _may_read(self) -> bool:
        is_held = self._is_full or self._discarded > LINGER_BYTES_MAX
        return len(self.stream.out) <= OUT_BYTES_MAX and not is_held

    def _receive(self, data: bytes) -> None:
        if self.is_closing:
            self._discarded += len(data)
        if self.is_closing or not (data or self.stream.ended):
            return
        if self.admitted is None:
            if self._handshake is None:
                self._handshake = self._listener.host.make_handshake(self)
            if self._handshake is None:
                self._listener.on_login(self)
                self._admit("", "", data)
                return
            reply = self._handshake.feed(data, self._listener.host.now_ms)
            if reply is not None:
                self._reply(reply)
        elif data:
            self.admitted.owner.on_requests(self, data)

    def _reply(self, reply: Reply) -> None:
        """Answers the HTTP head, or its timeout."""
        self.stream.out += reply.data
        self._handshake = None
        if reply.status in (101, 200):
            self._listener.on_login(self)
        if reply.status == 101:
            self._admit(reply.cluster, reply.user, reply.rest)
        else:
            self._listener.host.counters[f"http_{reply.status}"] += 1
            if reply.status == 429:
                self._listener.host.log_rarely("logins-delayed", address=self.address)
            self.close_after_send()

    def _admit(self, cluster: str, user: str, rest: bytes) -> None:
        self.deadline_ms = None
        self.admitted = self._listener.host.admit(cluster, user, self)
        self._listener.host.counters["let_in"] += 1
        if rest:
            self.admitted.owner.on_requests(self, rest)

    def set_load(self, is_full: bool, partial: PartialRequest | None) -> None:
        """Sets whether too many requests are unanswered, and the partial request."""
        before, now = self.partial, partial
        self._is_full, self.partial = is_full, partial
        received = (now.received if now else 0) - (before.received if before else 0)
        self._listener.partial_bytes += received

    def _set_deadline(self, reads: bool) -> None:
        """Starts the deadline of a partial request, unless the connection is not read."""
        number = self.partial.number if self.partial is not None and reads else None
        if number == self._timed_request:
            return
        self._timed_request, self.deadline_ms = number, None
        if self.partial is not None and number is not None:
            timeout_ms = REQUEST_MS_MIN + self.partial.size // BYTES_PER_MS_MIN
            self.deadline_ms = self._listener.host.now_ms + timeout_ms

    def on_deadline(self) -> None:
        """The handshake or a request took too long, or the client did not close."""
        if self._handshake is not None and not self.is_closing:
            self._reply(self._handshake.on_timeout())
            self.update_poll()
        else:
            if not self.is_closing:
                counter = "silent_timeouts" if self.stream.secured else "tls_timeouts"
                counter = "request_timeouts" if self.admitted is not None else counter
                self._listener.host.counters[counter] += 1
            self._listener.close(self)

    def close_after_send(self) -> None:
        """Closes the connection when its output is sent, or after the slowest client's time."""
        if not self.is_closing:
            self.is_closing = True
            timeout_ms = LINGER_MS + len(self.stream.out) // BYTES_PER_MS_MIN
            self.deadline_ms = self._listener.host.now_ms + timeout_ms

    def send(self, data: bytearray) -> None:
        """Sends the bytes and clears them."""
        if not self.is_closing:
            self.stream.out += data
        data.clear()
        self.update_poll()

    def update_poll(self) -> None:
        """Call after every change: flushes output and updates the poll mask."""
        stream, poll = self.stream, self._listener.poll
        if stream.out and not stream.needs_out:
            stream.flush()
        if stream.ended:
            self._listener.close(self)
            return
        if self.is_closing and not stream.out and not self._end_sent:
            self._end_sent = True
            stream.end_sending()
        mask = OUT if stream.needs_out else 0
        if self.admitted is not None and not self.is_closing:
            self._set_deadline(self._may_read)
        if self._may_read:
            mask |= IN
            if stream.more:
                poll.more(stream.fd)
        poll.want(stream.fd, mask)


class FarmListener:
    def __init__(
        self,
        host: ListenerHost,
        poll: StreamPoll,
        context: ssl.SSLContext | None,
        limits: ConnectionLimits,
    ) -> None:
        """context: of TLS; None: plain TCP."""
        self.host = host
        self.poll = poll
        self.connections: dict[int, InboundStream] = {}  # By file descriptor.
        self._by_address: Counter[str] = Counter()  # Connections.
        self._pending: dict[int, InboundStream] = {}  # Those without a login, oldest first.
        self._late: dict[int, InboundStream] = {}  # Those whose handshake waits for the next wake.
        self._steps_left = HANDSHAKE_STEPS_MAX
        files_max = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - OTHER_FILES_MAX
        self._limits = limits._replace(connections_max=min(limits.connections_max, files_max))
        self.context = context
        self._next_check_ms = 0
        self._listener: socket.socket | None = None
        self.partial_bytes = 0  # Of all incomplete requests.

    def listen(self, address: Address) -> None:
        """Raises OSError."""
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address.host, address.port))
            listener.setblocking(False)
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
        self._listener = listener
        self.poll.add(listener.fileno(), IN, self._on_listener)

    def _on_listener(self) -> None:
        assert self._listener is not None
        for _ in range(ACCEPTS_MAX):
            try:
                sock, (host, *_) = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # Of that connection only: it has ended.
                self.host.counters["accept_failed"] += 1
                return
            self.add(sock, network_of(host))

    def add(self, sock: socket.socket, address: str = "") -> None:
        """Serves an accepted connection, or closes it."""
        if not self._make_room(address):
            sock.close()
            return
        sock.setblocking(False)
        stream = TcpStream(sock, self.context)
        stream.keep_alive(KEEPALIVE_IDLE_S)
        connection = InboundStream(self, stream, address)
        self.connections[stream.fd] = self._pending[stream.fd] = connection
        self._by_address[address] += 1
        self.poll.add(stream.fd, IN, connection.on_ready)

    def _make_room(self, address: str) -> bool:
        """Closes the oldest connection without a login, of this address or of any one, if there are
        too many. Returns whether a new one may be served.
        """
        pending = self._pending.values()
        is_full = len(self.connections) >= self._limits.connections_max
        has_share = self._by_address[address] >= self._limits.per_address_max
        if not is_full and not has_share:
            return True
        self.host.counters["connections_refused" if is_full else "address_refused"] += 1
        oldest = next((each for each in pending if not has_share or each.address == address), None)
        if oldest is not None:
            self.close(oldest)
        return oldest is not None

    def on_login(self, connection: InboundStream) -> None:
        self._pending.pop(connection.stream.fd, None)

    def takes_step(self, connection: InboundStream) -> bool:
        """Whether a connection may continue its handshake in this wake. Otherwise it is one of the
        first in the next one.
        """
        if self._steps_left:
            self._steps_left -= 1
            return True
        self._late[connection.stream.fd] = connection
        return False

    def _take_late_steps(self) -> None:
        late, self._late = self._late, {}
        self._steps_left = HANDSHAKE_STEPS_MAX
        for fd, connection in late.items():
            if self.connections.get(fd) is connection:
                connection.on_ready()

    def close(self, connection: InboundStream) -> None:
        stream = connection.stream
        if self.connections.pop(stream.fd, None) is None:
            return
        self._pending.pop(stream.fd, None)
        self._by_address[connection.address] -= 1
        if not self._by_address[connection.address]:
            del self._by_address[connection.address]
        self.poll.remove(stream.fd)
        stream.close()
        connection.set_load(False, None)
        if connection.admitted is not None:
            connection.admitted.owner.on_closed(connection)

    def check(self, now_ms: int) -> None:
        """Ends a wake: continues handshakes, drops the largest partial requests above the limit,
        and closes overdue connections.
        """
        self._take_late_steps()
        while self.partial_bytes > self._limits.partial_bytes_max:
            self.host.counters["half_requests_dropped"] += 1
            connections = self.connections.values()
            self.close(
                max(connections, key=lambda each: each.partial.received if each.partial else 0)
            )
        if now_ms < self._next_check_ms:
            return
        self._next_check_ms = now_ms + CHECK_INTERVAL_MS
        for connection in list(self.connections.values()):
            if connection.deadline_ms is not None and connection.deadline_ms <= now_ms:
                connection.on_deadline()

    def stop_accepting(self) -> None:
        if self._listener is not None:
            self.poll.remove(self._listener.fileno())
            self._listener.close()
            self._listener = None

    def close_all(self) -> None:
        self.stop_accepting()
        for connection in list(self.connections.values()):
            self.close(connection)
