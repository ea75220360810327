"""Connections that others have opened to a farm's server: TLS, the HTTP handshake, then requests.

What is said in them is decided in protocols/garlicfarm; here it gets in and out, and who is slow is
bounded.
"""

import resource
import socket
import ssl
from collections import Counter
from typing import NamedTuple, Protocol

from ...net.sockets import KEEPALIVE_IDLE_S
from ...net.streams import IN, OUT, StreamPoll, TcpStream, keep_alive
from ...protocols.garlicfarm.server.inbound import PartialRequest
from ...protocols.garlicfarm.wire.handshake import HEAD_TIMEOUT_MS, Reply, ServerHandshake
from ...protocols.garlicfarm.wire.values import Address

BACKLOG = 512
ACCEPT_MAX = 64  # A wake.
OUT_BYTES_MAX = 64 << 10  # Answers that wait for a slow reader; beyond it is not read from.
LINGER_MS = 1000  # So long the rest of a refused one's words is thrown away.
READ_BYTES_PER_MS = 16  # So slowly may an answer of HTTP be read, or a request come.
HALF_MS = 5000  # For a request of no bytes.
LOOK_MS = 100  # How often it is looked who is late.
FILES_OTHER = 256  # Descriptors that are for other things than connections.


class ConnectionOwner(Protocol):
    """What a connection is for, once it is let in: one farm."""

    def on_requests(self, connection: "Connection", data: bytes) -> None: ...

    def on_closed(self, connection: "Connection") -> None: ...


class Inside(NamedTuple):
    """Where a connection is, behind its handshake."""

    part: ConnectionOwner
    user: str
    number: int  # Of FarmPeer.accept().


class ConnectionLimits(NamedTuple):
    """What all of them together may take.

    connections_max   more are closed as they come
    halves_bytes_max  of requests that are here in part; then the largest goes, with its connection
    """

    connections_max: int
    halves_bytes_max: int


class Host(Protocol):
    """The process that they come to."""

    now_ms: int
    counters: Counter[str]

    def begin_handshake(self) -> ServerHandshake | None:
        """None: there is none, and let_in() follows at once."""
        ...

    def let_in(self, cluster: str, user: str, connection: "Connection") -> Inside: ...


class Connection:
    """One of them: TLS, then head, then open, or ending."""

    __slots__ = (
        "_doors",
        "_full",
        "_handshake",
        "_said_end",
        "_timed",
        "deadline_ms",
        "ending",
        "inside",
        "partial",
        "stream",
    )  # fmt: skip

    def __init__(self, doors: "FarmListener", stream: TcpStream) -> None:
        self._doors = doors
        self._handshake: ServerHandshake | None = None
        self._said_end = False
        self._full = False  # Too much of it is not answered: nothing is read.
        self._timed: int | None = None  # Which half request deadline_ms is for.
        self.partial: PartialRequest | None = None
        self.stream = stream
        self.inside: Inside | None = None
        self.ending = False  # What is to be sent is sent, then it is closed.
        self.deadline_ms: int | None = doors.host.now_ms + HEAD_TIMEOUT_MS

    def on_ready(self) -> None:
        """Something may be read or written."""
        stream = self.stream
        if not stream.secured and not stream.secure():
            if stream.ended:
                self._doors.host.counters["tls_failed"] += 1
        else:
            if stream.out:
                stream.flush()
            if self._may_read and not stream.ended:
                self._take(stream.read())
        self.settle()

    @property
    def _may_read(self) -> bool:
        return len(self.stream.out) <= OUT_BYTES_MAX and not self._full

    def _take(self, data: bytes) -> None:
        if self.ending or not (data or self.stream.ended):
            return
        if self.inside is None:
            if self._handshake is None:
                self._handshake = self._doors.host.begin_handshake()
            if self._handshake is None:
                self._enter("", "", data)
                return
            reply = self._handshake.feed(data, self._doors.host.now_ms)
            if reply is not None:
                self._answer(reply)
        elif data:
            self.inside.part.on_requests(self, data)

    def _answer(self, reply: Reply) -> None:
        """The head is here, or was not in time."""
        self.stream.out += reply.data
        self._handshake = None
        if reply.status == 101:
            self._enter(reply.cluster, reply.user, reply.rest)
        else:
            self._doors.host.counters[f"http_{reply.status}"] += 1
            self.end()

    def _enter(self, cluster: str, user: str, rest: bytes) -> None:
        self.deadline_ms = None
        self.inside = self._doors.host.let_in(cluster, user, self)
        self._doors.host.counters["let_in"] += 1
        if rest:
            self.inside.part.on_requests(self, rest)

    def bound(self, full: bool, half: PartialRequest | None) -> None:
        """How much of it waits here: for answers, and to become whole."""
        before, now = self.partial, half
        self._full, self.partial = full, half
        self._doors.hold((now.received if now else 0) - (before.received if before else 0))

    def _time(self, reads: bool) -> None:
        """What has begun to arrive has a while to become whole, as long as it is read."""
        number = self.partial.number if self.partial is not None and reads else None
        if number == self._timed:
            return
        self._timed, self.deadline_ms = number, None
        if self.partial is not None and number is not None:
            patience_ms = HALF_MS + self.partial.size // READ_BYTES_PER_MS
            self.deadline_ms = self._doors.host.now_ms + patience_ms

    def on_deadline(self) -> None:
        """The handshake or a request took too long, or the other side does not close."""
        if self._handshake is not None and not self.ending:
            self._answer(self._handshake.on_timeout())
            self.settle()
        else:
            if not self.ending:
                late = "silent_timeouts" if self.stream.secured else "tls_timeouts"
                late = "request_timeouts" if self.inside is not None else late
                self._doors.host.counters[late] += 1
            self._doors.close(self)

    def end(self) -> None:
        """What waits is still sent, then it is closed."""
        if not self.ending:
            self.ending = True
            patience_ms = LINGER_MS + len(self.stream.out) // READ_BYTES_PER_MS
            self.deadline_ms = self._doors.host.now_ms + patience_ms

    def send(self, data: bytearray) -> None:
        """Sends what FarmPeer has for this one, and clears it."""
        if not self.ending:
            self.stream.out += data
        data.clear()
        self.settle()

    def settle(self) -> None:
        """Behind anything that was done: sends, and says what is waited for now."""
        stream, poll = self.stream, self._doors.poll
        if stream.out and not stream.needs_out:
            stream.flush()
        if stream.ended:
            self._doors.close(self)
            return
        if self.ending and not stream.out and not self._said_end:
            self._said_end = True
            stream.end_sending()
        mask = OUT if stream.needs_out else 0
        if self.inside is not None and not self.ending:
            self._time(self._may_read)
        if self._may_read:
            mask |= IN
            if stream.more:
                poll.more(stream.fd)
        poll.want(stream.fd, mask)


class FarmListener:
    """The listener, and all that came through it."""

    def __init__(
        self, host: Host, poll: StreamPoll, context: ssl.SSLContext | None, room: ConnectionLimits
    ) -> None:
        """context: of TLS; None: they are plain."""
        self.host = host
        self.poll = poll
        self.connections: dict[int, Connection] = {}  # By descriptor.
        files_max = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - FILES_OTHER
        self._connections_max = min(room.connections_max, files_max)
        self.context = context
        self._look_ms = 0
        self._listener: socket.socket | None = None
        self._halves_bytes = 0
        self._halves_bytes_max = room.halves_bytes_max

    def listen(self, address: Address) -> None:
        """Raises OSError."""
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        self._listener = listener
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address.host, address.port))
        listener.setblocking(False)
        listener.listen(BACKLOG)
        self.poll.add(listener.fileno(), IN, self._on_listener)

    def _on_listener(self) -> None:
        assert self._listener is not None
        for _ in range(ACCEPT_MAX):
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # Of that connection alone: it has ended already.
                self.host.counters["accept_failed"] += 1
                return
            if len(self.connections) >= self._connections_max:
                self.host.counters["connections_refused"] += 1
                sock.close()
            else:
                self._begin(sock)

    def _begin(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        keep_alive(sock, KEEPALIVE_IDLE_S)
        if self.context is not None:
            try:
                sock = self.context.wrap_socket(
                    sock, server_side=True, do_handshake_on_connect=False
                )
            except OSError:  # It has ended already.
                self.host.counters["accept_failed"] += 1
                sock.close()
                return
        stream = TcpStream(sock)
        connection = Connection(self, stream)
        self.connections[stream.fd] = connection
        self.poll.add(stream.fd, IN, connection.on_ready)

    def close(self, connection: Connection) -> None:
        stream = connection.stream
        if self.connections.pop(stream.fd, None) is None:
            return
        self.poll.remove(stream.fd)
        stream.close()
        connection.bound(False, None)
        if connection.inside is not None:
            connection.inside.part.on_closed(connection)

    def hold(self, more_bytes: int) -> None:
        """So much more is here of requests that are not whole."""
        self._halves_bytes += more_bytes

    def step(self, now_ms: int) -> None:
        """Ends those that are late, or hold too much; an actor wakes often enough for the former
        by itself."""
        while self._halves_bytes > self._halves_bytes_max:
            self.host.counters["half_requests_dropped"] += 1
            connections = self.connections.values()
            self.close(
                max(connections, key=lambda each: each.partial.received if each.partial else 0)
            )
        if now_ms < self._look_ms:
            return
        self._look_ms = now_ms + LOOK_MS
        for connection in list(self.connections.values()):
            if connection.deadline_ms is not None and connection.deadline_ms <= now_ms:
                connection.on_deadline()

    def refuse_new(self) -> None:
        """From now on nobody comes in."""
        if self._listener is not None:
            self.poll.remove(self._listener.fileno())
            self._listener.close()
            self._listener = None

    def close_all(self) -> None:
        self.refuse_new()
        for connection in list(self.connections.values()):
            self.close(connection)
