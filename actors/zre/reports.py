"""What a node reports to the log services of others: one socket each, which waits until it listens.

A SUB that is bound hears nothing of a PUB that has just connected: what is sent before its
subscription has come back is lost. So the sockets are XPUBs, on the wire the same, that show it.
"""

from collections import deque
from typing import NamedTuple

import zmq

from ...net.poll_loop import PollLoop
from ...net.sockets import SUBSCRIPTION_BYTES_MAX, Socket, SocketOptions

HWM = 1000  # Reports that a log service leaves lying; what is beyond is dropped.
RECENT_MAX = 256  # Reports that a new service is told of ...
RECENT_MS = 60_000  # ... if they are no older.
SUBSCRIBED = 1  # What a subscription begins with (ZMTP).


class Told(NamedTuple):
    """What there is to say of one event."""

    report: bytes | None  # To services of any kind; None: the text has no word for it.
    presence: bytes  # To those of kelek.


class _Service(NamedTuple):
    endpoint: str
    socket: Socket
    is_own: bool  # Of kelek: it is told presences.


class Reports:
    """Those of one node, by the UUID of who has announced a service."""

    def __init__(self, loop: PollLoop) -> None:
        self._loop = loop
        self._services: dict[bytes, _Service] = {}
        self._listening: set[bytes] = set()
        self._recent: deque[tuple[int, Told]] = deque(maxlen=RECENT_MAX)  # When, and what.

    def __len__(self) -> int:
        return len(self._services)

    def send(self, told: Told) -> None:
        """To all services that listen; those that will get it when they do."""
        self._recent.append((self._loop.now_ms, told))
        for uuid in self._listening:
            self._say(self._services[uuid], told)

    def _say(self, service: _Service, told: Told) -> None:
        frame = told.presence if service.is_own else told.report
        if frame is not None:
            self._loop.send(service.socket, [frame])

    def connect(self, uuid: bytes, endpoint: str, *, is_own: bool) -> None:
        """A service is there; one that has moved is left."""
        known = self._services.get(uuid)
        if known is not None:
            if (known.endpoint, known.is_own) == (endpoint, is_own):
                return
            self.disconnect(uuid)
        options = SocketOptions(
            connect=(endpoint,), hwm=HWM, message_bytes_max=SUBSCRIPTION_BYTES_MAX
        )
        socket = self._loop.try_socket(zmq.XPUB, options)
        if socket is None:
            self._loop.counters["services_unreachable"] += 1
            return
        self._services[uuid] = _Service(endpoint, socket, is_own)
        self._loop.watch(socket, lambda: self._on_subscribed(uuid, socket))

    def _on_subscribed(self, uuid: bytes, socket: Socket) -> None:
        while socket.poll(0):
            word = socket.recv(zmq.DONTWAIT)
            if word[:1] != bytes([SUBSCRIBED]) or uuid in self._listening:
                continue
            self._listening.add(uuid)
            for then_ms, told in self._recent:
                if then_ms >= self._loop.now_ms - RECENT_MS:
                    self._say(self._services[uuid], told)

    def disconnect(self, uuid: bytes) -> None:
        service = self._services.pop(uuid, None)
        if service is not None:
            self._listening.discard(uuid)
            self._loop.close_socket(service.socket)
