"""ZeroMQ sockets: their options, their number, errors of bind, and sends that never block."""

import errno
import os
import resource
from collections.abc import Sequence
from typing import NamedTuple

import zmq

from ..native.net.guard import MessageGuard
from .errors import OperatorError

HWM = 1000
MESSAGE_BYTES_MAX = 64 << 20
MESSAGE_FRAMES_MAX = 8192
SUBSCRIPTION_BYTES_MAX = 1 << 10  # Of a message to a PUB or XPUB; libzmq stores each topic.
HANDSHAKE_MS = 2000
LINGER_MS = 1000  # For the last messages to leave.
RECONNECT_MS = (100, 1000)  # First and largest; libzmq adds its own jitter.
RECONNECT_PIPE_MS = (10, 100)
KEEPALIVE_IDLE_S = 30
FILES_MAX = 65_536
_FILES_A_SOCKET = 4  # Of the socket, its connection, the peer's connection, and the program.

# Plain numbers: an operation on zmq's flags costs 1 to 2 us.
_DONTWAIT = int(zmq.DONTWAIT)
_DONTWAIT_MORE = int(zmq.DONTWAIT | zmq.SNDMORE)

Socket = zmq.Socket[bytes]


class CurveServer(NamedTuple):
    """The key of an endpoint. The process's ZAP handler decides which keys may connect."""

    secret_key: bytes
    domain: str  # Under which the handler knows the endpoint.
    guard: MessageGuard | None = None  # None: each key that may connect may send all messages.

    def __repr__(self) -> str:
        return f"CurveServer(domain={self.domain!r})"


class CurveClient(NamedTuple):
    """The key of a connecting socket, and the key that the server must have."""

    server_key: bytes
    public_key: bytes
    secret_key: bytes

    def __repr__(self) -> str:
        return f"CurveClient(server_key={self.server_key!r})"


class SocketOptions(NamedTuple):
    """How a socket is made; the defaults fit a pipe between two processes of a node."""

    bind: tuple[str, ...] = ()
    connect: tuple[str, ...] = ()
    place: str = ""  # Where the topology names the bound address, for the operator's error.
    hwm: int = HWM
    send_hwm: int | None = None  # None: as hwm; 0: unbounded.
    message_bytes_max: int = MESSAGE_BYTES_MAX  # All frames together.
    message_frames_max: int = MESSAGE_FRAMES_MAX
    linger_ms: int = 0
    router_mandatory: bool = False
    router_handover: bool = False  # A new connection takes over the routing id of an old one.
    immediate: bool = False  # Queue only on a finished connection: peer DEALERs, pipes.
    keepalive: bool = True
    reconnect_ms: tuple[int, int] = RECONNECT_PIPE_MS
    routing_id: bytes = b""
    topics: tuple[bytes, ...] = ()  # A SUB's subscriptions.
    addressed: bool = False  # Received messages have the sender's address as second frame.
    curve: CurveServer | CurveClient | None = None  # Of 32 bytes each; None: without encryption.

    @property
    def addresses(self) -> str:
        return " ".join((*self.bind, *self.connect))


def configure(socket: Socket, kind: int, options: SocketOptions) -> None:
    """Sets all options of a new socket but its addresses."""
    socket.setsockopt(zmq.LINGER, options.linger_ms)
    socket.setsockopt(zmq.RCVHWM, options.hwm)
    send_hwm = options.hwm if options.send_hwm is None else options.send_hwm
    socket.setsockopt(zmq.SNDHWM, send_hwm)
    socket.setsockopt(zmq.MAXMSGSIZE, options.message_bytes_max)
    socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    socket.setsockopt(zmq.RECONNECT_IVL, options.reconnect_ms[0])
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, options.reconnect_ms[1])
    if options.keepalive:
        socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, KEEPALIVE_IDLE_S)
    if options.immediate:
        socket.setsockopt(zmq.IMMEDIATE, 1)
    if kind == zmq.ROUTER and options.router_mandatory:
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    if kind == zmq.ROUTER and options.router_handover:
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
    if kind == zmq.XPUB:
        socket.setsockopt(zmq.XPUB_VERBOSE, 1)  # Each new subscriber is reported.
    if isinstance(options.curve, CurveServer):
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, options.curve.secret_key)
        socket.setsockopt(zmq.ZAP_DOMAIN, options.curve.domain.encode())
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # Without a handler nothing is accepted.
    elif options.curve is not None:
        socket.setsockopt(zmq.CURVE_SERVERKEY, options.curve.server_key)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, options.curve.public_key)
        socket.setsockopt(zmq.CURVE_SECRETKEY, options.curve.secret_key)
    if options.routing_id:
        socket.setsockopt(zmq.ROUTING_ID, options.routing_id)
    for topic in options.topics:
        socket.setsockopt(zmq.SUBSCRIBE, topic)


def allow_ipv6(socket: Socket, address: str) -> None:
    """Enables IPv6 for an address that needs it."""
    if "[" in address:
        socket.setsockopt(zmq.IPV6, 1)


def send_message(socket: Socket, frames: Sequence[bytes]) -> bool:
    """Sends one message without blocking; False: the queue is full, or no peer has that id."""
    try:
        for i in range(len(frames) - 1):  # Only the first frame can be refused.
            socket.send(frames[i], _DONTWAIT_MORE)
        socket.send(frames[-1], _DONTWAIT)
    except zmq.ZMQError as error:
        if error.errno in (zmq.EAGAIN, zmq.EHOSTUNREACH):
            return False
        raise
    return True


def bind_error(address: str, place: str, error: zmq.ZMQError) -> OperatorError:
    """The operator's error for a failed bind."""
    number = error.errno or 0
    problem, way_out = {
        zmq.EADDRINUSE: ("is in use", "end the program that holds it, or choose another address"),
        zmq.EADDRNOTAVAIL: ("is not an address of this machine", "write one of its own"),
        errno.ENODEV: ("is not an address of this machine", "write one of its own"),
        errno.EACCES: ("may not be bound by this user", "choose a port above 1023"),
        errno.ENOENT: ("is in no directory", "make the directory"),
        errno.EPROTONOSUPPORT: (
            "is of a kind that this libzmq was built without",
            "choose tcp:// or ipc://",
        ),
    }.get(number, (f"can't be bound: {os.strerror(number)}", "choose another address"))
    return OperatorError(place or address, f"{address} {problem}" if place else problem, way_out)


def raise_nofile_limit() -> int:
    """Raises the limit of open files as far as this user may; returns the limit that then holds.

    Each connection is a file. At the limit libzmq's thread loops without progress. Connections
    can't be refused earlier: unbinding a listener also closes the connections it has accepted.
    """
    low, high = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if high == resource.RLIM_INFINITY else min(high, FILES_MAX)
    if low != resource.RLIM_INFINITY and low < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, high))
        return wanted
    return FILES_MAX if low == resource.RLIM_INFINITY else low


def sockets_for_files(files: int) -> int:
    """How many sockets with one connection each that many files allow."""
    return min(files, FILES_MAX) // _FILES_A_SOCKET
