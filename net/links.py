"""One connection to one peer: its options, its events, and messages that wait for room.

Clients (clients/io/links.py) use it, and the sockets of a poll loop that connect (poll_loop.py).
"""

import errno
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import zmq

from ..native.net.messages import Frames
from ..native.net.sockets import send_batch
from .clock import monotonic_ms
from .host_names import NameLookup, host_name
from .sockets import CurveClient, Socket, SocketOptions, allow_ipv6

SEND_MESSAGES_MAX = 1 << 15  # More than a window of single updates.
RECEIVE_MESSAGES_MAX = 1000
ARENA_BYTES = 1 << 18
RECONNECT_MS = (50, 1000)
EVENTS = int(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
RETRY_MS = 1000  # Between two connections to a peer that refuses them.
ENDED_MIN = 5  # Handshakes in a row that a peer ended without a reason: libzmq repeats them ..
ENDED_RETRY_MS = (100, 2000)  # .. until then, every 50 ms. First and largest; it doubles.
_EVENT = struct.Struct("=HI")  # The beginning of a monitor's message (libzmq, zmq_socket_monitor).
_CONNECTED = int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
_LOST = int(zmq.EVENT_DISCONNECTED)
_ENDED = int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)  # Also if the key of the server is another.
_BROKEN = int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
_DENIED = int(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
_RETRIED = int(zmq.EVENT_CONNECT_RETRIED)  # No connection was made, maybe for want of an address.
_MECHANISM = int(zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)
NEVER_MS = 1 << 62


class LinkProblem(NamedTuple):
    """Why a connection is not made: the problem, and what its user can do."""

    text: str
    way_out: str
    may_pass: bool = False  # By itself, as when a machine gets its name later.


KEY_REFUSED = LinkProblem(
    "the server refused the key, which is unknown or revoked, or has no grant there",
    "kelek keys allow",
)
CLIENT_REFUSED = LinkProblem("the server refused this client", "ask its operator for access")
NO_CURVE = LinkProblem("the server has no CURVE", "connect without a key, or secure the server")
NEEDS_KEY = LinkProblem("the server needs a key", "give a key file and the server's public key")
OTHER_KEY = LinkProblem(
    "the server has another key than the pinned one, no CURVE, or no room for connections",
    "kelek keys show prints its public key",
)
NO_HANDSHAKE = LinkProblem("the server broke the handshake", "is the port right?")
ENDS = LinkProblem(
    "the server ends each handshake: it needs a key, or has no room for connections",
    "give a key file and the server's public key",
)

NO_ADDRESS = "write the address of the machine"


class LinkLimits(NamedTuple):
    """The largest message that is received; a larger one is dropped."""

    message_bytes_max: int = 32 << 20  # All frames together.
    message_frames_max: int = 1 << 13


def link_options(limits: LinkLimits, curve: CurveClient | None = None) -> SocketOptions:
    return SocketOptions(
        hwm=RECEIVE_MESSAGES_MAX,
        send_hwm=SEND_MESSAGES_MAX,
        message_bytes_max=limits.message_bytes_max,
        message_frames_max=limits.message_frames_max,
        reconnect_ms=RECONNECT_MS,
        curve=curve,
    )


class Link:
    """A socket with one connection, its monitor, and the messages that are to be sent.

    problem    why the connection is not made, as far as it is known
    retry_ms   when retry() must be called. libzmq does not connect again after a refusal; after a
               handshake that the peer ended it does so at once, which a wrong key never ends.
    """

    __slots__ = (
        "_ended",
        "_has_curve",
        "_host",
        "_lookup",
        "frames",
        "monitor",
        "problem",
        "retry_ms",
        "socket",
        "url",
    )

    def __init__(self, socket: Socket, url: str, has_curve: bool = False) -> None:
        """Before the socket connects: the monitor then sees each event."""
        self.socket = socket
        self.url = url
        self._host = host_name(url)  # "" once it is known to have an address.
        retried = _RETRIED if self._host else 0
        events = EVENTS | _ENDED | _BROKEN | _DENIED | retried
        self.monitor: Socket = socket.get_monitor_socket(events)
        self.frames = Frames()
        self.problem: LinkProblem | None = None
        self.retry_ms = NEVER_MS
        self._has_curve = has_curve
        self._ended = 0  # Handshakes in a row.
        self._lookup: NameLookup | None = None  # Of the host, while no connection is made.

    def connect(self) -> None:
        """Raises ZMQError for an invalid address."""
        allow_ipv6(self.socket, self.url)
        self.socket.connect(self.url)

    def retry(self, now_ms: int) -> None:
        """Connects again if that is due."""
        if self.retry_ms <= now_ms:
            self.retry_ms = NEVER_MS
            self.connect()

    def flush(self, bundled: bool = False) -> bool:
        """Sends what the peer has room for, in bundles if it accepts them; False: messages are
        left."""
        send_batch(self.socket, self.frames, "keep", bundled)
        return not len(self.frames)

    def events(self) -> Iterator[bool]:
        """What the monitor has seen: True a connection was made, False one was lost."""
        for event, value in _events(self.monitor):
            if event == _CONNECTED:
                self._ended, self.problem, self._host = 0, None, ""
                yield True
            elif event == _LOST:
                yield False
            elif event == _RETRIED:
                self._check_name()
            else:
                self._on_failed(event, value)

    def _check_name(self) -> None:
        """Has the host looked up, and again while it has no address."""
        if not self._host:
            return
        if self._lookup is None:
            self._lookup = NameLookup(self._host)
            return
        found = self._lookup.result()
        if found is None:
            return
        self._lookup = None
        if not found:
            self._host, self.problem = "", None
        elif self.problem is None or self.problem.text != found:
            self.problem = LinkProblem(found, NO_ADDRESS, may_pass=True)

    def _on_failed(self, event: int, value: int) -> None:
        """A handshake has failed."""
        if event == _ENDED:
            self._on_ended(value)
            return
        self._ended = 0
        if event == _DENIED:
            self.problem = KEY_REFUSED if self._has_curve else CLIENT_REFUSED
        elif value == _MECHANISM:
            self.problem = NO_CURVE if self._has_curve else NEEDS_KEY
        else:
            self.problem = OTHER_KEY if self._has_curve else NO_HANDSHAKE
        self._wait(RETRY_MS)

    def _on_ended(self, error: int) -> None:
        """The peer has ended the connection, or did not answer in time."""
        if error == errno.EAGAIN:
            return
        self._ended += 1
        if self._ended >= ENDED_MIN:
            self.problem = OTHER_KEY if self._has_curve else ENDS
            first_ms, largest_ms = ENDED_RETRY_MS
            self._wait(min(first_ms << min(self._ended - ENDED_MIN, 16), largest_ms))

    def _wait(self, wait_ms: int) -> None:
        """Connects again after so long, and not before."""
        with suppress(zmq.ZMQError):  # libzmq may have removed the connection.
            self.socket.disconnect(self.url)
        self.retry_ms = monotonic_ms() + wait_ms


def connection_events(monitor: Socket) -> Iterator[bool]:
    """What a monitor with EVENTS has seen: True a connection was made, False one was lost."""
    for event, _ in _events(monitor):
        yield event == _CONNECTED


def _events(monitor: Socket) -> Iterator[tuple[int, int]]:
    """Events and their values."""
    while monitor.poll(0):
        # [event, its value][endpoint]; pyzmq's own decoder imports asyncio, 40 ms of a start.
        yield _EVENT.unpack_from(monitor.recv_multipart()[0])
