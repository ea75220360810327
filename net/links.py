"""One DEALER to one peer: its options, its connection's events, and messages that wait for room.

Clients (clients/io/links.py) and actors that are clients of another process (actors/raft) use it.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

import zmq

from ..native.net.messages import Frames
from ..native.net.sockets import send_batch
from .sockets import Socket, SocketOptions

SEND_MESSAGES_MAX = 1 << 15  # More than a window of single updates.
RECEIVE_MESSAGES_MAX = 1000
ARENA_BYTES = 1 << 18
RECONNECT_MS = (50, 1000)
EVENTS = int(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
_EVENT = struct.Struct("=H")  # The beginning of a monitor's message (libzmq, zmq_socket_monitor).
_CONNECTED = int(zmq.EVENT_HANDSHAKE_SUCCEEDED)


class LinkLimits(NamedTuple):
    """The largest message that is received; a larger one is dropped."""

    message_bytes_max: int = 32 << 20  # All frames together.
    message_frames_max: int = 1 << 13


def link_options(limits: LinkLimits) -> SocketOptions:
    return SocketOptions(
        hwm=RECEIVE_MESSAGES_MAX,
        send_hwm=SEND_MESSAGES_MAX,
        message_bytes_max=limits.message_bytes_max,
        message_frames_max=limits.message_frames_max,
        reconnect_ms=RECONNECT_MS,
    )


class Link:
    """A DEALER, its monitor, and the messages that are to be sent."""

    __slots__ = ("frames", "monitor", "socket")

    def __init__(self, socket: Socket) -> None:
        """Before the socket connects: the monitor then sees each event."""
        self.socket = socket
        self.monitor: Socket = socket.get_monitor_socket(EVENTS)
        self.frames = Frames()

    def flush(self) -> bool:
        """Sends what the peer has room for; False: messages are left."""
        send_batch(self.socket, self.frames, "keep")
        return not len(self.frames)

    def events(self) -> Iterator[bool]:
        return connection_events(self.monitor)


def connection_events(monitor: Socket) -> Iterator[bool]:
    """What the monitor has seen: True a connection was made, False one was lost."""
    while monitor.poll(0):
        # [event, its value][endpoint]; pyzmq's own decoder imports asyncio, 40 ms of a start.
        (event,) = _EVENT.unpack_from(monitor.recv_multipart()[0])
        yield event == _CONNECTED
