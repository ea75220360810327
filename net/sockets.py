"""ZeroMQ sockets: their options, their number, errors of bind, and sends that never block."""

import errno
import os
import resource
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import zmq

from ..native.net.guard import MessageGuard
from .errors import OperatorError

HWM = 1000
IN_USE = "is in use"  # Of an address, in an error.
MESSAGE_BYTES_MAX = 64 << 20
MESSAGE_FRAMES_MAX = 8192
SUBSCRIPTION_BYTES_MAX = 1 << 10  # Of a message to a PUB or XPUB; libzmq stores each topic.
SUBSCRIPTIONS_BYTES_MAX = 64 << 10  # Of one connection to it; libzmq takes 46 bytes for each.
BACKLOG = 4096  # Connections that may wait for their acceptance; libzmq's own 100 are few.
CONNECT_MS = 2000  # Then libzmq tries again; TCP alone would wait for up to 64 s between its tries.
HANDSHAKE_MS = 2000
LIBZMQ_MIN = (4, 3, 5)
LINGER_MS = 1000  # For the last messages to leave.
RECONNECT_MS = (100, 1000)  # First and largest; libzmq adds its own jitter.
RECONNECT_PIPE_MS = (10, 100)
KEEPALIVE_IDLE_S = 30
CURVE_THREADS_MAX = 4
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


class ForeignBind(NamedTuple):
    """A further address of a socket, without CURVE. The ZAP handler knows it by its domain."""

    address: str
    domain: str


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
    unacknowledged_ms: int = 0  # TCP: data for which no machine answers end the connection; 0: late
    routing_id: bytes = b""
    topics: tuple[bytes, ...] = ()  # A SUB's subscriptions.
    addressed: bool = False  # Received messages have the sender's address as second frame.
    opens_bundles: bool = False  # Several messages in a frame (native/net/sockets.py).
    curve: CurveServer | CurveClient | None = None  # Of 32 bytes each; None: without encryption.
    audit: MessageGuard | None = None  # Its administrative commands have addresses (Drain).
    foreign: ForeignBind | None = None  # Bound last: what is bound keeps the options of its time.

    @property
    def addresses(self) -> str:
        return " ".join((*self.bind, *self.connect))


@cache
def check_libzmq(curve: bool) -> None:
    """Raises OperatorError for a libzmq that is too old, or without CURVE where it is needed."""
    found = zmq.zmq_version_info()
    if found < LIBZMQ_MIN:
        problem = f"is older than {'.'.join(map(str, LIBZMQ_MIN))}"
    elif curve and not zmq.has("curve"):
        problem = "was built without CURVE, which keys need"
    else:
        return
    way_out = "install pyzmq's own wheel: pip install --force-reinstall --only-binary pyzmq pyzmq"
    raise OperatorError(f"libzmq {'.'.join(map(str, found))}", problem, way_out)


def configure(socket: Socket, kind: int, options: SocketOptions) -> None:
    """Sets all options of a new socket but its addresses. Raises what check_libzmq() does."""
    check_libzmq(options.curve is not None)
    socket.setsockopt(zmq.LINGER, options.linger_ms)
    socket.setsockopt(zmq.RCVHWM, options.hwm)
    send_hwm = options.hwm if options.send_hwm is None else options.send_hwm
    socket.setsockopt(zmq.SNDHWM, send_hwm)
    socket.setsockopt(zmq.MAXMSGSIZE, options.message_bytes_max)
    socket.setsockopt(zmq.BACKLOG, BACKLOG)
    socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    socket.setsockopt(zmq.CONNECT_TIMEOUT, CONNECT_MS)
    socket.setsockopt(zmq.TCP_MAXRT, options.unacknowledged_ms)
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
        add_curve(socket, options.curve)
    if options.routing_id:
        socket.setsockopt(zmq.ROUTING_ID, options.routing_id)
    for topic in options.topics:
        socket.setsockopt(zmq.SUBSCRIBE, topic)


def add_curve(socket: Socket, curve: CurveClient) -> None:
    """Addresses that are connected from now on have CURVE."""
    socket.setsockopt(zmq.CURVE_SERVERKEY, curve.server_key)
    socket.setsockopt(zmq.CURVE_PUBLICKEY, curve.public_key)
    socket.setsockopt(zmq.CURVE_SECRETKEY, curve.secret_key)


def remove_curve(socket: Socket, domain: str) -> None:
    """Addresses that are bound from now on have no CURVE."""
    socket.setsockopt(zmq.CURVE_SERVER, 0)
    socket.setsockopt(zmq.ZAP_DOMAIN, domain.encode())


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
        zmq.EADDRINUSE: (IN_USE, "end the program that holds it, or choose another address"),
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


def curve_threads(cores: int | None = None) -> int:
    """How many threads of libzmq serve the connections of a context with CURVE.

    A thread encrypts and decrypts what its connections carry, a frame in about 0.5 us; libzmq gives
    a new connection to the thread that has fewest.

    cores   None: those that the process may use
    """
    if cores is None and hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    cores = cores or os.cpu_count() or 1
    return max(1, min(CURVE_THREADS_MAX, cores // 2))


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
