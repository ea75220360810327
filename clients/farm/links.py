"""The sockets of a farm client: non-blocking TCP, with TLS by default.

It performs the actions of the client state machine (protocols/garlicfarm/client/client.py) and
reports events to it.
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
from ...protocols.connections import Warn
from ...protocols.garlicfarm.client.client import FarmClient
from ...protocols.garlicfarm.client.values import ConnectFailure, FailureKind, OpenConnection
from ...protocols.garlicfarm.wire.values import Address, is_loopback
from ..io.notices import warn
from ..io.resources import Resources

HOST_MISMATCH = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
LOOPBACK_ONLY = "without TLS or a proxy only loopback addresses are allowed"
KEEPALIVE_S = 5  # A vanished server is detected after about three times as long.


class ConnectSettings(NamedTuple):
    """How connections are made.

    tls           None: plain TCP
    server_name   the name in the servers' certificates; "": the host that is connected to
    proxy         an HTTP proxy for all connections
    """

    tls: ssl.SSLContext | None = None
    server_name: str = ""
    proxy: Address | None = None


class ConnectionStage(IntEnum):
    """The progress of a connection."""

    CONNECT = 0
    SECURE = 1
    UP = 2


class _Connection:
    """One socket, or the attempts at one: a host may have several addresses."""

    __slots__ = (
        "address",
        "addresses",
        "has_received",
        "number",
        "problem",
        "socket",
        "stage",
        "stream",
        "wants_write",
    )  # fmt: skip

    def __init__(self, action: OpenConnection) -> None:
        self.number = action.number
        self.address = action.address
        self.addresses: deque[tuple[int, tuple[object, ...]]] = deque()
        self.problem = "no address"
        self.socket: socket.socket | None = None
        self.stream: TcpStream | None = None  # Once TCP is connected.
        self.stage = ConnectionStage.CONNECT
        self.wants_write = True  # Whether it polls for room to write.
        self.has_received = False  # Whether any bytes have arrived.


class FarmLinks:
    """The connections of a farm's client."""

    def __init__(
        self, client: FarmClient, settings: ConnectSettings, resources: Resources | None = None
    ) -> None:
        self.client = client
        self.resources = resources or Resources()
        self._settings = settings
        self._connections: dict[int, _Connection] = {}
        self._files: dict[int, _Connection] = {}
        self._unread: list[_Connection] = []  # TLS may hold their bytes, which no poll reports.
        self._poll = select.poll()

    def run_once(self, give_up_ms: int, is_done: Callable[[], bool] = lambda: False, /) -> None:
        """One round: sends output, waits for input or a deadline, and processes it."""
        self._run_actions()
        if is_done():
            return
        until_ms = give_up_ms
        if self.client.deadline_ms is not None:
            until_ms = min(until_ms, self.client.deadline_ms)
        self._receive(0 if self._unread else max(0, until_ms - monotonic_ms()))

    def run_ready(self) -> bool:
        """Sends and receives what is possible now; returns whether more may be possible."""
        self._receive(0)
        return bool(self._unread)

    def _receive(self, timeout_ms: int) -> None:
        ready = self._poll.poll(timeout_ms)
        self._read_rest()
        for fd, _ in ready:
            connection = self._files.get(fd)
            if connection is not None:
                self._on_event(connection)
        self._run_actions()

    def close(self) -> None:
        """Closes all connections."""
        for number in list(self._connections):
            self._close(number)
        self.resources.close()

    # ---- actions ----

    def _run_actions(self) -> None:
        while actions := self.client.ready(monotonic_ms()):
            for action in actions:
                if isinstance(action, OpenConnection):
                    self._open(action)
                elif isinstance(action, Warn):
                    warn(action.text)
                else:
                    self._close(action.number)
            self._send()
        self._send()

    def _open(self, action: OpenConnection) -> None:
        connection = _Connection(action)
        self._connections[action.number] = connection
        host, port = self._settings.proxy or action.address
        if self._settings.tls is None and self._settings.proxy is None and not is_loopback(host):
            self._fail(connection, ConnectFailure(FailureKind.LOST, LOOPBACK_ONLY))
            return
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            connection.problem = f"no such host: {error.strerror or error}"
        else:
            connection.addresses.extend((family, address) for family, *_, address in found)
        self._connect(connection)

    def _connect(self, connection: _Connection) -> None:
        """Tries the next address of the host."""
        while connection.addresses:
            family, address = connection.addresses.popleft()
            try:
                sock = begin_connect(family, address)
            except OSError as error:
                connection.problem = error_text(error)
                continue
            keep_alive(sock, KEEPALIVE_S, KEEPALIVE_S)
            connection.socket, connection.stage, connection.wants_write = (
                sock,
                ConnectionStage.CONNECT,
                True,
            )
            self.resources.add(sock)
            self._files[sock.fileno()] = connection
            self._watch(sock, True)
            return
        self._fail(connection, ConnectFailure(FailureKind.LOST, connection.problem))

    def _close(self, number: int) -> None:
        connection = self._connections.pop(number, None)
        if connection is not None:
            self._release_socket(connection)

    def _release_socket(self, connection: _Connection) -> None:
        if connection.socket is not None:
            fd = connection.socket.fileno()
            self._poll.unregister(fd)
            del self._files[fd]
            self.resources.close_socket(connection.socket)
            connection.socket = connection.stream = None

    def _fail(self, connection: _Connection, failure: ConnectFailure | None) -> None:
        self._close(connection.number)
        self.client.on_lost(connection.number, failure, monotonic_ms())

    # ---- sockets ----

    def _on_event(self, connection: _Connection) -> None:
        """Continues a connection that is readable or writable, or has ended."""
        try:
            if connection.stage is ConnectionStage.CONNECT and not self._finish_connect(connection):
                return
        except OSError as error:
            self._on_broken(connection, error)
            return
        stream = connection.stream
        assert stream is not None
        if connection.stage is ConnectionStage.SECURE and not stream.secure():
            if stream.ended:
                self._ended(connection, stream)
            else:
                self._set_wants_write(connection, stream.needs_out)
            return
        if connection.stage is not ConnectionStage.UP:
            self._on_up(connection)
        self._read(connection)

    def _read_rest(self) -> None:
        """Reads what the last round has left unread."""
        unread, self._unread = self._unread, []
        for connection in unread:
            self._read(connection)

    def _ended(self, connection: _Connection, stream: TcpStream) -> None:
        if isinstance(stream.error, ssl.SSLError):
            self._fail(connection, tls_failure(stream.error, connection.stage))
        else:
            self._on_broken(connection, stream.error)

    def _on_broken(self, connection: _Connection, error: Exception | None) -> None:
        """The server closed the connection, or it broke."""
        text = "it closed the connection" if error is None else error_text(error)
        if (
            connection.stage is ConnectionStage.UP
            and not connection.has_received
            and self._settings.tls is None
        ):
            text = f"{text} without sending anything; does it require TLS?"
        elif error is None:
            self._fail(connection, None)
            return
        self._fail(connection, ConnectFailure(FailureKind.LOST, text))

    def _finish_connect(self, connection: _Connection) -> bool:
        sock, tls = connection.socket, self._settings.tls
        assert sock is not None
        error = connect_error(sock)
        if error is not None:
            connection.problem = error_text(error)
            self._release_socket(connection)
            self._connect(connection)
            return False
        if tls is None:
            connection.stream = TcpStream(sock)
            return True
        name = self._settings.server_name or connection.address.host
        secure = tls.wrap_socket(sock, server_hostname=name, do_handshake_on_connect=False)
        self.resources.replace(sock, secure)
        connection.socket, connection.stream = secure, TcpStream(secure)
        connection.stage = ConnectionStage.SECURE  # The descriptor is unchanged.
        return True

    def _on_up(self, connection: _Connection) -> None:
        connection.stage = ConnectionStage.UP
        self._set_wants_write(connection, False)
        self.client.on_open(connection.number, monotonic_ms())

    def _read(self, connection: _Connection) -> None:
        stream = connection.stream
        if stream is None:
            return  # The client machine has closed it.
        data = stream.read()
        if data:
            connection.has_received = True
            self.client.on_data(connection.number, data, monotonic_ms())
        if connection.stream is not stream or connection.number not in self.client.connections:
            return
        if stream.ended:
            self._ended(connection, stream)
        elif stream.more:
            self._unread.append(connection)

    def _send(self) -> None:
        """Sends the output of the machine's connections, as much as the sockets take."""
        for number, output in list(self.client.connections.items()):
            connection = self._connections.get(number)
            if output.out and connection is not None and connection.stage is ConnectionStage.UP:
                stream = connection.stream
                assert stream is not None
                stream.out = output.out
                stream.flush()
                if stream.ended:
                    self._ended(connection, stream)
                else:
                    self._set_wants_write(connection, stream.needs_out)

    def _set_wants_write(self, connection: _Connection, wants_write: bool) -> None:
        if connection.socket is not None and connection.wants_write != wants_write:
            connection.wants_write = wants_write
            self._watch(connection.socket, wants_write)

    def _watch(self, sock: socket.socket, wants_write: bool) -> None:
        self._poll.register(sock, select.POLLIN | (select.POLLOUT if wants_write else 0))
        self.resources.watch(sock, wants_write)


def tls_failure(error: ssl.SSLError, stage: ConnectionStage) -> ConnectFailure:
    """The failure for a TLS error, with a hint."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message.rstrip(".")
        way_out = "name its CA with ca_file or --ca"
        if error.verify_code in HOST_MISMATCH:
            way_out = "connect to a host in the certificate, or use a certificate for this host"
        text = f"its certificate is not trusted: {why}; {way_out}"
        return ConnectFailure(FailureKind.UNTRUSTED, text)
    reason = (error.reason or "").replace("_", " ").lower()
    if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
        return ConnectFailure(
            FailureKind.UNTRUSTED, "the server does not use TLS; is it the right port?"
        )
    if error.reason in ("TLSV1_ALERT_PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL"):
        return ConnectFailure(
            FailureKind.UNTRUSTED, "the server uses another version of TLS; allow 1.2"
        )
    if stage is ConnectionStage.UP or isinstance(error, ssl.SSLEOFError):
        return ConnectFailure(FailureKind.LOST, "it closed the connection during TLS")
    return ConnectFailure(FailureKind.LOST, f"TLS failed: {reason or error}")


def error_text(error: Exception) -> str:
    """The system's text for an error: "connection refused"."""
    code = getattr(error, "errno", None)
    return os.strerror(code).lower() if code else str(error)
