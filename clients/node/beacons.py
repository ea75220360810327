"""The UDP sockets for beacons of the nodes of this process, shared by interface and port."""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from ...native.net.datagrams import Datagrams
from ...native.net.interfaces import Interface
from ...protocols.zre.beacon import Beacon
from .reactor_node import ReactorNode

REPEAT_MS = 200  # A beacon that repeats sooner is delivered only to nodes added since.
RECENT_BEACONS_MAX = 4096
GOODBYES_MAX = 4096  # Goodbyes whose delivery is delayed.
GOODBYE_MS = 100  # A goodbye by UDP overtakes messages that were sent before it by TCP.


class ReceivedBeacon(NamedTuple):
    """A beacon, the descriptor of the socket that received it, and its source address."""

    fd: int
    beacon: Beacon
    source: str


class BeaconSockets:
    """Receives beacons and selects the nodes that get each. Under the reactor's lock."""

    def __init__(self) -> None:
        self._sockets: dict[tuple[Interface, int], Datagrams] = {}
        self._listeners: dict[int, list[ReactorNode]] = {}  # By the socket's descriptor.
        self._last_order = 0  # Of the node that was added last.
        # When a beacon was delivered last, and up to which node.
        self._recent: dict[ReceivedBeacon, tuple[int, int]] = {}
        self._goodbyes: deque[tuple[int, ReceivedBeacon]] = deque()  # With the time of delivery.
        self.goodbyes_dropped = 0

    def open(self, interface: Interface, port: int) -> Datagrams:
        """The socket of an interface and port. Raises OSError."""
        shared = self._sockets.get((interface, port))
        if shared is None:
            shared = self._sockets[interface, port] = Datagrams(interface, port)
            self._listeners[shared.fileno()] = []
        return shared

    def add(self, node: ReactorNode) -> None:
        """Delivers beacons of the node's socket, if it has one, to the node."""
        self._last_order += 1
        node.order = self._last_order
        if node.beacon_socket is not None:
            self._listeners[node.beacon_socket.fileno()].append(node)

    def is_last(self, node: ReactorNode) -> bool:
        """Whether no other node uses the node's socket."""
        shared = node.beacon_socket
        return shared is not None and self._listeners[shared.fileno()] == [node]

    def remove(self, node: ReactorNode) -> None:
        """Closes the node's socket after its last node."""
        shared = node.beacon_socket
        assert shared is not None
        listeners = self._listeners[shared.fileno()]
        listeners.remove(node)
        if not listeners:
            del self._listeners[shared.fileno()]
            del self._sockets[shared.interface, shared.port]
            shared.close()

    def receive(self, fd: int, now_ms: int) -> Iterator[ReceivedBeacon]:
        """Beacons that have arrived; goodbyes come later (due_goodbyes())."""
        shared = next((it for it in self._sockets.values() if it.fileno() == fd), None)
        for uuid, port, source, key in () if shared is None else shared.receive(now_ms):
            received = ReceivedBeacon(fd, Beacon(uuid, port, key), source)
            if port:
                yield received
            elif len(self._goodbyes) < GOODBYES_MAX:
                self._goodbyes.append((now_ms + GOODBYE_MS, received))
            else:
                self.goodbyes_dropped += 1

    @property
    def deadline_ms(self) -> int | None:
        """When a goodbye is due."""
        return self._goodbyes[0][0] if self._goodbyes else None

    def due_goodbyes(self, now_ms: int) -> Iterator[ReceivedBeacon]:
        while self._goodbyes and self._goodbyes[0][0] <= now_ms:
            yield self._goodbyes.popleft()[1]

    def listeners(self, received: ReceivedBeacon, now_ms: int) -> Iterator[ReactorNode]:
        """The nodes that get a beacon. One that repeats within REPEAT_MS goes only to nodes added
        since: n nodes starting together would otherwise cost O(n^3).
        """
        then_ms, order = self._recent.pop(received, (now_ms - REPEAT_MS, 0))
        if now_ms - then_ms >= REPEAT_MS:
            then_ms, order = now_ms, 0
        if received.beacon.port:
            if len(self._recent) >= RECENT_BEACONS_MAX:
                self._recent.clear()
            self._recent[received] = then_ms, self._last_order
        for node in reversed(self._listeners.get(received.fd, ())):
            if node.order <= order:
                break
            yield node
