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
from dataclasses import dataclass, field
from typing import NamedTuple

from ...net.clock import monotonic_ms
from ...net.streams import TcpStream
from ...protocols.connections import Warn
from ...protocols.garlicfarm.client.client import FarmClient
from ...protocols.garlicfarm.client.values import ConnectFailure, FailureKind, OpenConnection
from ...protocols.garlicfarm.wire.values import Address, is_loopback
from ..io.notices import warn
from ..io.resources import Resources

HOST_MISMATCH = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
LOOPBACK_ONLY = "without TLS or a proxy only loopback addresses are allowed"
# Alerts about the client's certificate.
_CERTIFICATE_REASONS = frozenset((
    "TLSV13_ALERT_CERTIFICATE_REQUIRED", "TLSV1_ALERT_UNKNOWN_CA", "SSLV3_ALERT_BAD_CERTIFICATE",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED", "SSLV3_ALERT_CERTIFICATE_REVOKED",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE", "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
))  # fmt: skip
_CERTIFICATE_WAY_OUT = (
    "name your own with certificate_file and key_file, or --certificate and --key"
)
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


@dataclass(slots=True, eq=False)
class _Connection:
    """One socket, or the attempts at one: a host may have several addresses."""

    number: int
    address: Address
    addresses: deque[tuple[int, tuple[object, ...]]] = field(default_factory=deque)
    problem: str = "no address"
    stream: TcpStream | None = None
    is_up: bool = False  # TCP and TLS are connected.
    wants_write: bool = True  # Whether it polls for room to write.
    has_received: bool = False  # Whether any bytes have arrived.


class FarmLinks:
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

    @property
    def deadline_ms(self) -> int | None:
        return self.client.deadline_ms

    def run_once(self, give_up_ms: int, is_done: Callable[[], bool] = lambda: False, /) -> None:
        """One round: sends output, waits for input or a deadline, and processes it."""
        self._run_actions()
        if is_done():
            return
        until_ms = give_up_ms
        if self.deadline_ms is not None:
            until_ms = min(until_ms, self.deadline_ms)
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
        connection = _Connection(action.number, action.address)
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
        name = self._settings.server_name or connection.address.host
        while connection.addresses:
            family, address = connection.addresses.popleft()
            try:
                stream = TcpStream.connect(family, address, self._settings.tls, name)
            except OSError as error:
                connection.problem = error_text(error)
                continue
            stream.keep_alive(KEEPALIVE_S, KEEPALIVE_S)
            connection.stream, connection.wants_write = stream, True
            self.resources.add(stream)
            self._files[stream.fd] = connection
            self._watch(stream, True)
            return
        self._fail(connection, ConnectFailure(FailureKind.LOST, connection.problem))

    def _close(self, number: int) -> None:
        connection = self._connections.pop(number, None)
        if connection is not None:
            self._close_stream(connection)

    def _close_stream(self, connection: _Connection) -> None:
        stream, connection.stream = connection.stream, None
        if stream is not None:
            self._poll.unregister(stream.fd)
            del self._files[stream.fd]
            self.resources.close_socket(stream)

    def _fail(self, connection: _Connection, failure: ConnectFailure | None) -> None:
        self._close(connection.number)
        self.client.on_lost(connection.number, failure, monotonic_ms())

    # ---- sockets ----

    def _on_event(self, connection: _Connection) -> None:
        """Continues a connection that is readable or writable, or has ended."""
        stream = connection.stream
        assert stream is not None
        if connection.is_up:
            self._read(connection)
        elif stream.secure():
            connection.is_up = True
            self._set_wants_write(connection, False)
            self.client.on_open(connection.number, monotonic_ms())
            self._read(connection)
        elif not stream.ended:
            self._set_wants_write(connection, stream.needs_out)
        elif stream.connected:
            self._ended(connection, stream)
        else:
            connection.problem = error_text(stream.error)
            self._close_stream(connection)
            self._connect(connection)

    def _read_rest(self) -> None:
        """Reads what the last round has left unread."""
        unread, self._unread = self._unread, []
        for connection in unread:
            self._read(connection)

    def _ended(self, connection: _Connection, stream: TcpStream) -> None:
        """The server closed the connection, or it broke."""
        error, failure = stream.error, None
        if isinstance(error, ssl.SSLError):
            failure = tls_failure(error, connection.is_up)
        elif connection.is_up and not connection.has_received and self._settings.tls is None:
            text = f"{error_text(error)} without sending anything; does it require TLS?"
            failure = ConnectFailure(FailureKind.LOST, text)
        elif error is not None:
            failure = ConnectFailure(FailureKind.LOST, error_text(error))
        self._fail(connection, failure)

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
            if output.out and connection is not None and connection.is_up:
                stream = connection.stream
                assert stream is not None
                stream.out = output.out
                stream.flush()
                if stream.ended:
                    self._ended(connection, stream)
                else:
                    self._set_wants_write(connection, stream.needs_out)

    def _set_wants_write(self, connection: _Connection, wants_write: bool) -> None:
        if connection.stream is not None and connection.wants_write != wants_write:
            connection.wants_write = wants_write
            self._watch(connection.stream, wants_write)

    def _watch(self, stream: TcpStream, wants_write: bool) -> None:
        self._poll.register(stream, select.POLLIN | (select.POLLOUT if wants_write else 0))
        self.resources.watch(stream, wants_write)


def tls_failure(error: ssl.SSLError, is_up: bool) -> ConnectFailure:
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
    if error.reason in _CERTIFICATE_REASONS:
        text = (
            f"the server refuses the client's certificate: {reason.removeprefix('tlsv13 alert ')}"
        )
        return ConnectFailure(FailureKind.UNTRUSTED, f"{text}; {_CERTIFICATE_WAY_OUT}")
    if is_up or isinstance(error, ssl.SSLEOFError):
        return ConnectFailure(FailureKind.LOST, "it closed the connection during TLS")
    return ConnectFailure(FailureKind.LOST, f"TLS failed: {reason or error}")


def error_text(error: Exception | None) -> str:
    """The system's text for an error: "connection refused". None: the end of a connection."""
    if error is None:
        return "it closed the connection"
    code = getattr(error, "errno", None)
    return os.strerror(code).lower() if code else str(error)
