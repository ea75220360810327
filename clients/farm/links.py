"""The connections of a farm's client: TCP, with TLS unless told otherwise, none of which blocks.

It does what the machine (protocols/garlicfarm/client/client.py) asks for, and tells it what befalls
them.
"""

import os
import select
import socket
import ssl
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from ...net.clock import monotonic_ms
from ...net.streams import TcpStream, begin_connect, connect_error, keep_alive
from ...protocols.garlicfarm.client.client import FarmClient
from ...protocols.garlicfarm.client.values import ConnectFailure, FailureKind, OpenConnection
from ...protocols.garlicfarm.wire.values import Address, is_loopback
from ..io.resources import Resources

OTHER_HOST = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
ONLY_HERE = "without TLS or a proxy only this machine is asked"
KEEPALIVE_S = 5  # A peer that has vanished is known to be lost after about three times as long.


class Reach(NamedTuple):
    """How servers are reached.

    tls           None: plain TCP
    server_name   whom certificates are to name; "": the host that is connected to
    proxy         all connections go there, instead
    """

    tls: ssl.SSLContext | None = None
    server_name: str = ""
    proxy: Address | None = None


class ConnectionStage(IntEnum):
    """How far a connection is."""

    CONNECT = 0
    SECURE = 1
    UP = 2


class _Connection:
    """One socket, or the attempts at one: a name may have several addresses."""

    __slots__ = (
        "addresses", "heard", "number", "place", "problem", "socket", "stage", "stream", "writes",
    )  # fmt: skip

    def __init__(self, action: OpenConnection) -> None:
        self.number = action.number
        self.place = action.address
        self.addresses: deque[tuple[int, tuple[object, ...]]] = deque()
        self.problem = "nobody listens there"
        self.socket: socket.socket | None = None
        self.stream: TcpStream | None = None  # Once TCP is connected.
        self.stage = ConnectionStage.CONNECT
        self.writes = True  # Whether room to write is waited for.
        self.heard = False  # Whether anything has come from the other side.


class FarmLinks:
    """Turned by whoever waits: kelek.Farm."""

    def __init__(
        self, client: FarmClient, reach: Reach, resources: Resources | None = None
    ) -> None:
        self.client = client
        self.resources = resources or Resources()
        self._reach = reach
        self._connections: dict[int, _Connection] = {}
        self._files: dict[int, _Connection] = {}
        self._unread: list[_Connection] = []  # TLS may hold bytes of theirs, which no poll shows.
        self._poll = select.poll()

    def run_once(self, give_up_ms: int, is_done: Callable[[], bool] = lambda: False, /) -> None:
        """One round: sends what is due, waits until something arrives or is due, takes it in."""
        self._act()
        if is_done():
            return
        until_ms = give_up_ms
        if self.client.deadline_ms is not None:
            until_ms = min(until_ms, self.client.deadline_ms)
        timeout_ms = 0 if self._unread else max(0, until_ms - monotonic_ms())
        ready = self._poll.poll(timeout_ms)
        self._read_on()
        for file, _ in ready:
            connection = self._files.get(file)
            if connection is not None:
                self._on_event(connection)
        self._act()

    def close(self) -> None:
        """Ends all connections."""
        for number in list(self._connections):
            self._close(number)
        self.resources.close()

    # ---- what the machine wants ----

    def _act(self) -> None:
        while actions := self.client.ready(monotonic_ms()):
            for action in actions:
                if isinstance(action, OpenConnection):
                    self._open(action)
                else:
                    self._close(action.number)
            self._send()
        self._send()

    def _open(self, action: OpenConnection) -> None:
        connection = _Connection(action)
        self._connections[action.number] = connection
        host, port = self._reach.proxy or action.address
        if self._reach.tls is None and self._reach.proxy is None and not is_loopback(host):
            self._lost(connection, ConnectFailure(FailureKind.LOST, ONLY_HERE))
            return
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            connection.problem = f"no such host: {error.strerror or error}"
        else:
            connection.addresses.extend((family, address) for family, *_, address in found)
        self._connect(connection)

    def _connect(self, connection: _Connection) -> None:
        """Tries the next address."""
        while connection.addresses:
            family, address = connection.addresses.popleft()
            try:
                made = begin_connect(family, address)
            except OSError as error:
                connection.problem = words_of(error)
                continue
            keep_alive(made, KEEPALIVE_S, KEEPALIVE_S)
            connection.socket, connection.stage, connection.writes = (
                made,
                ConnectionStage.CONNECT,
                True,
            )
            self.resources.add(made)
            self._files[made.fileno()] = connection
            self._watch(made.fileno(), True)
            return
        self._lost(connection, ConnectFailure(FailureKind.LOST, connection.problem))

    def _close(self, number: int) -> None:
        connection = self._connections.pop(number, None)
        if connection is not None:
            self._end(connection)

    def _end(self, connection: _Connection) -> None:
        if connection.socket is not None:
            file = connection.socket.fileno()
            self._unwatch(file)
            del self._files[file]
            self.resources.close_socket(connection.socket)
            connection.socket = connection.stream = None

    def _lost(self, connection: _Connection, trouble: ConnectFailure | None) -> None:
        self._close(connection.number)
        self.client.on_lost(connection.number, trouble, monotonic_ms())

    # ---- sockets ----

    def _on_event(self, connection: _Connection) -> None:
        """Continues a connection that is readable or writable, or has ended."""
        try:
            if connection.stage is ConnectionStage.CONNECT and not self._connected(connection):
                return
        except OSError as error:
            self._broken(connection, error)
            return
        stream = connection.stream
        assert stream is not None
        if connection.stage is ConnectionStage.SECURE and not stream.secure():
            if stream.ended:
                self._ended(connection, stream)
            else:
                self._want_room(connection, stream.needs_out)
            return
        if connection.stage is not ConnectionStage.UP:
            self._up(connection)
        self._read(connection)

    def _read_on(self) -> None:
        """Reads what the last round has left."""
        unread, self._unread = self._unread, []
        for connection in unread:
            self._read(connection)

    def _ended(self, connection: _Connection, stream: TcpStream) -> None:
        if isinstance(stream.error, ssl.SSLError):
            self._lost(connection, tls_trouble(stream.error, connection.stage))
        else:
            self._broken(connection, stream.error)

    def _broken(self, connection: _Connection, error: Exception | None) -> None:
        """The other side has closed it, or it broke."""
        text = "it closed the connection" if error is None else words_of(error)
        if (
            connection.stage is ConnectionStage.UP
            and not connection.heard
            and self._reach.tls is None
        ):
            text = f"{text} without a word: does it want TLS?"
        elif error is None:
            self._lost(connection, None)
            return
        self._lost(connection, ConnectFailure(FailureKind.LOST, text))

    def _connected(self, connection: _Connection) -> bool:
        made, tls = connection.socket, self._reach.tls
        assert made is not None
        error = connect_error(made)
        if error is not None:
            connection.problem = words_of(error)
            self._end(connection)
            self._connect(connection)
            return False
        if tls is None:
            connection.stream = TcpStream(made)
            return True
        name = self._reach.server_name or connection.place.host
        secure = tls.wrap_socket(made, server_hostname=name, do_handshake_on_connect=False)
        self.resources.replace(made, secure)
        connection.socket, connection.stream = secure, TcpStream(secure)
        connection.stage = ConnectionStage.SECURE  # The file is the same, and watched.
        return True

    def _up(self, connection: _Connection) -> None:
        connection.stage = ConnectionStage.UP
        self._want_room(connection, False)
        self.client.on_open(connection.number, monotonic_ms())

    def _read(self, connection: _Connection) -> None:
        stream = connection.stream
        if stream is None:
            return  # The client machine has closed it.
        data = stream.read()
        if data:
            connection.heard = True
            self.client.on_data(connection.number, data, monotonic_ms())
        if connection.stream is not stream or connection.number not in self.client.connections:
            return
        if stream.ended:
            self._ended(connection, stream)
        elif stream.more:
            self._unread.append(connection)

    def _send(self) -> None:
        """Sends the output of the machine's connections, as much as the sockets take."""
        for number, line in list(self.client.connections.items()):
            connection = self._connections.get(number)
            if line.out and connection is not None and connection.stage is ConnectionStage.UP:
                stream = connection.stream
                assert stream is not None
                stream.out = line.out
                stream.flush()
                if stream.ended:
                    self._ended(connection, stream)
                else:
                    self._want_room(connection, stream.needs_out)

    def _want_room(self, connection: _Connection, writes: bool) -> None:
        if connection.socket is not None and connection.writes != writes:
            connection.writes = writes
            self._watch(connection.socket.fileno(), writes)

    # ---- who watches ----

    def _watch(self, file: int, writes: bool) -> None:
        self._poll.register(file, select.POLLIN | (select.POLLOUT if writes else 0))

    def _unwatch(self, file: int) -> None:
        self._poll.unregister(file)


def tls_trouble(error: ssl.SSLError, stage: ConnectionStage) -> ConnectFailure:
    """What has failed, and what may help."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message.rstrip(".")
        way_out = "name the CA that has signed it, ca_file or --ca"
        if error.verify_code in OTHER_HOST:
            way_out = "connect to a host that it names, or have it name this one"
        text = f"its certificate is not to be trusted: {why}; {way_out}"
        return ConnectFailure(FailureKind.UNTRUSTED, text)
    reason = (error.reason or "").replace("_", " ").lower()
    if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
        return ConnectFailure(
            FailureKind.UNTRUSTED, "what answers there speaks no TLS; is it the right port?"
        )
    if error.reason in ("TLSV1_ALERT_PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL"):
        return ConnectFailure(
            FailureKind.UNTRUSTED, "it speaks another version of TLS; 1.2 is to be asked for"
        )
    if stage is ConnectionStage.UP or isinstance(error, ssl.SSLEOFError):
        return ConnectFailure(FailureKind.LOST, "it closed the connection within TLS")
    return ConnectFailure(FailureKind.LOST, f"TLS failed: {reason or error}")


def words_of(error: Exception) -> str:
    """The system's words for an error: "connection refused"."""
    code = getattr(error, "errno", None)
    return os.strerror(code).lower() if code else str(error)
