"""A node's reports to log services: a socket for each, which waits for the subscription.

A PUB drops messages until the bound SUB's subscription arrives. XPUB is the same on the wire, and
shows the subscription.
"""

from collections import deque
from typing import NamedTuple

import zmq

from ...net.poll_loop import PollLoop
from ...net.sockets import SUBSCRIPTION_BYTES_MAX, CurveClient, Socket, SocketOptions

HWM = 1000  # Unsent reports for a log service; further ones are dropped.
RECENT_MAX = 256  # Reports that a new service gets ...
RECENT_MS = 60_000  # ... unless they are older.
SUBSCRIBED = 1  # The first octet of a subscription (ZMTP).


class EventReport(NamedTuple):
    """The two forms of a report of one event."""

    report: bytes | None  # For services of any kind; None: ZRE/LOG has no such event.
    presence: bytes  # For kelek's services.


class _Service(NamedTuple):
    endpoint: str
    socket: Socket
    is_kelek: bool  # A kelek service, which gets presence reports.


class Reports:
    """A node's connections to log services, by the UUID of the announcing node."""

    def __init__(self, loop: PollLoop) -> None:
        self._loop = loop
        self._services: dict[bytes, _Service] = {}
        self._listening: set[bytes] = set()
        self._recent: deque[tuple[int, EventReport]] = deque(maxlen=RECENT_MAX)  # With the time.

    def __len__(self) -> int:
        return len(self._services)

    def send(self, event_report: EventReport) -> None:
        """Sends to all subscribed services; others get it when they subscribe."""
        self._recent.append((self._loop.now_ms, event_report))
        for uuid in self._listening:
            self._send(self._services[uuid], event_report)

    def _send(self, service: _Service, event_report: EventReport) -> None:
        frame = event_report.presence if service.is_kelek else event_report.report
        if frame is not None:
            self._loop.send(service.socket, [frame])

    def connect(
        self, uuid: bytes, endpoint: str, curve: CurveClient | None = None, *, is_kelek: bool
    ) -> None:
        """Connects to a service; its old connection is closed if it has moved."""
        known = self._services.get(uuid)
        if known is not None:
            if (known.endpoint, known.is_kelek) == (endpoint, is_kelek):
                return
            self.disconnect(uuid)
        options = SocketOptions(
            hwm=HWM,
            message_bytes_max=SUBSCRIPTION_BYTES_MAX,
            curve=curve,
        )
        try:
            socket = self._loop.connect(zmq.XPUB, endpoint, options)
        except zmq.ZMQError:  # No file is left, or the address is bad.
            self._loop.counters["services_unreachable"] += 1
            return
        self._services[uuid] = _Service(endpoint, socket, is_kelek)
        self._loop.watch(socket, lambda: self._on_subscribed(uuid, socket))

    def _on_subscribed(self, uuid: bytes, socket: Socket) -> None:
        while socket.poll(0):
            word = socket.recv(zmq.DONTWAIT)
            if word[:1] != bytes([SUBSCRIBED]) or uuid in self._listening:
                continue
            self._listening.add(uuid)
            for then_ms, event_report in self._recent:
                if then_ms >= self._loop.now_ms - RECENT_MS:
                    self._send(self._services[uuid], event_report)

    def disconnect(self, uuid: bytes) -> None:
        service = self._services.pop(uuid, None)
        if service is not None:
            self._listening.discard(uuid)
            self._loop.close_socket(service.socket)
