"""Limits of the connections that a process accepts, checked by a thread in C."""

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from ..._native import ffi, lib
from ..errors import os_error

if TYPE_CHECKING:
    import zmq

    from .guard import AllowedKeys

ENDPOINTS_MAX: int = lib.KLK_ENDPOINTS_MAX
CUT_REASONS = (
    "connections",
    "address",
    "rate",
    "handshake",
    "bytes",
    "total",
    "memory",
    "stalled",
    "keys",
)
CURVE_FRAME_BYTES = 33  # That CURVE adds to each frame: command, nonce, check and flags.
FRAME_HEADER_BYTES = 9  # Of a long frame.
SLACK_BYTES = 64 << 10  # Greeting, READY and commands.
NEW_MS: int = lib.KLK_NEW_MS
REFUSED_EXCESS: int = lib.KLK_REFUSED_EXCESS  # Connections of one address, ended in a second.
HELD_BYTES_MIN = 64 << 20  # Also of many small messages, until the process reads them.


class ConnectionLimits(NamedTuple):
    """Limits of all endpoints of a process.

    connections   accepted connections
    per_address   the same, of one IPv4 address or /64 network of IPv6. An address that had as many
                  may make a tenth of them each second.
    bytes         that libzmq holds of all connections: read from them, but not received
    memory        growth of the process, beside what is held, one largest message and its own
                  queues, while libzmq holds 1 MiB or more
    stall_ms      in which an unfinished message of 64 KiB or more must grow by 16 KiB
    """

    connections: int = 4096
    per_address: int = 1024
    bytes: int = 512 << 20
    memory: int = 256 << 20
    stall_ms: int = 10_000


class Cut(NamedTuple):
    """A connection that was ended: why, its address and port, and the bytes that libzmq held."""

    reason: str
    address: str
    held: int


class Endpoint(NamedTuple):
    """A listening socket.

    bytes_max    that libzmq may hold of one connection: of an unfinished message, or of messages
                 that are not received for a second
    message      its largest message
    curve        it is encrypted
    keeps        libzmq keeps what arrives: subscriptions, at a PUB or XPUB
    """

    bytes_max: int
    message: int
    curve: bool = False
    keeps: bool = False


def held_bytes_max(message_bytes_max: int, message_frames_max: int, curve: bool) -> int:
    """What libzmq may hold of a connection while no message waits: the largest, and more."""
    frame_bytes = FRAME_HEADER_BYTES + (CURVE_FRAME_BYTES if curve else 0)
    largest = message_bytes_max + message_frames_max * frame_bytes
    return max(HELD_BYTES_MIN, largest) + SLACK_BYTES


class Connections:
    """The accepted connections of a process.

    A thread ends a connection over a limit by a shutdown of its socket: libzmq then frees what it
    holds, and no other connection is disturbed. The thread starts with the first endpoint.
    """

    def __init__(self, limits: ConnectionLimits) -> None:
        made = ffi.new("struct klk_connections *")
        made.connections_max, made.address_max = limits.connections, limits.per_address
        made.bytes_max, made.memory_max = limits.bytes, limits.memory
        made.stall_ms = limits.stall_ms
        made.seed = int.from_bytes(os.urandom(8), "little")
        if lib.klk_connections_open(made) != lib.KLK_OK:
            raise os_error("the tables of connections")
        self.state = ffi.gc(made, lib.klk_connections_close)
        self._numbers: dict[zmq.Socket[bytes], int] = {}

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        lib.klk_connections_lock(self.state)
        try:
            yield
        finally:
            lib.klk_connections_unlock(self.state)

    def add(
        self, socket: "zmq.Socket[bytes]", monitor: "zmq.Socket[bytes]", endpoint: Endpoint
    ) -> None:
        """Adds a listening socket, before it is bound, with a PAIR that receives its events. Until
        remove() the thread alone uses the PAIR."""
        number = next(n for n in range(ENDPOINTS_MAX) if not self.state.endpoints[n].monitor)
        row, fd, socket_fd = self.state.endpoints[number], monitor.FD, socket.FD
        with self._locked():
            row.bytes_max, row.keeps = endpoint.bytes_max, endpoint.keeps
            row.message_bytes = endpoint.message
            row.frame_bytes = CURVE_FRAME_BYTES if endpoint.curve else 0
            row.reads, row.foreign, row.bound = 0, b"", 0
            row.fd, row.socket_fd = fd, socket_fd
            row.monitor = ffi.cast("void *", monitor.underlying)
        self._numbers[socket] = number
        if lib.klk_connections_start(self.state) != lib.KLK_OK:
            raise os_error("a thread for the limits of connections")

    def set_foreign(self, socket: "zmq.Socket[bytes]", address: str) -> None:
        """Connections to this address of the socket have no CURVE, unlike its others."""
        with self._locked():
            self.state.endpoints[self._numbers[socket]].foreign = address.encode()

    @property
    def is_full(self) -> bool:
        return len(self._numbers) == ENDPOINTS_MAX

    def __contains__(self, socket: object) -> bool:
        return socket in self._numbers

    def remove(self, socket: "zmq.Socket[bytes]") -> None:
        """Forgets a socket; to be called before its monitor is closed."""
        with self._locked():
            self.state.endpoints[self._numbers.pop(socket)].monitor = ffi.NULL

    def end(self, socket: "zmq.Socket[bytes]", now_ms: int) -> None:
        """Ends all connections of a listening socket. Their peers connect again."""
        lib.klk_connections_end(self.state, self._numbers[socket], now_ms)

    def revoke(self, keys: "AllowedKeys", revoked_ms: int, now_ms: int) -> None:
        """Ends the connections of keys that are no longer allowed, and those whose keys are unknown
        as they have sent no message. Those of allowed keys stay.

        revoked_ms   when the keys were revoked: now, and in another call NEW_MS later, as
                     connections that were in their handshake have so long to send a message
        """
        lib.klk_connections_revoke(self.state, keys.state, revoked_ms, now_ms)

    def set_reads(self, socket: "zmq.Socket[bytes]", reads: bool) -> None:
        """Whether all that arrives on a socket is received at once."""
        number = self._numbers.get(socket)
        if number is not None:
            self.state.endpoints[number].reads = reads

    def frame_bytes(self, socket: "zmq.Socket[bytes]") -> int | None:
        """What encryption adds to each frame; None: received frames are not counted."""
        number = self._numbers.get(socket)
        if number is None:
            return None
        return int(self.state.endpoints[number].frame_bytes)

    def pop_cuts(self) -> list[Cut]:
        """Some of the connections that were ended since the last call."""
        state = self.state
        with self._locked():
            cuts = [
                Cut(CUT_REASONS[cut.reason], ffi.string(cut.address).decode(), int(cut.held))
                for cut in state.cuts[0 : state.cuts_kept]
            ]
            state.cuts_kept = 0
        return cuts

    def cut_counts(self) -> dict[str, int]:
        """How many connections were ended, by reason."""
        return {reason: int(self.state.cut[i]) for i, reason in enumerate(CUT_REASONS)}

    @property
    def refused(self) -> int:
        """How often an address connected so often that the kernel had to refuse it for a while."""
        return int(self.state.refused)

    def set_own(self, size: int) -> None:
        """Bytes of requests in the process's own queues: their growth is not libzmq's."""
        self.state.own = size

    @property
    def count(self) -> int:
        return int(self.state.count)

    @property
    def held(self) -> int:
        """Bytes that libzmq holds of all connections."""
        return int(self.state.held)
