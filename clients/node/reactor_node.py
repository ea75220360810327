"""A ZRE node of this process as the reactor sees it: its machine, sockets and unread events."""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ...native.net.datagrams import Datagrams
from ...native.net.interfaces import Interface
from ...native.net.messages import Frames
from ...native.net.sockets import Drain, native_socket, send_batch
from ...net.clock import monotonic_ms
from ...net.sockets import LINGER_MS, SocketOptions
from ...net.zre import NodeSockets
from ...protocols.zre import codec, values
from ...protocols.zre.effects import Connect, NodeSetup
from ...protocols.zre.peers import Event
from .access import NodeAccess

if TYPE_CHECKING:
    from .reactor import NodeReactor

# Unread events of a node; beyond that its mailbox is not read, and its peers wait.
EVENTS_MAX = 1 << 16
EVENT_BYTES_MAX = 64 << 20
RECEIVE_MESSAGES_MAX = 4000  # Messages of one connection that wait to be read.
HEADER_BYTES_MAX = 512  # Routing id, address and all frames before the content.
ARENA_BYTES, ARENA_FRAMES = 1 << 16, 1 << 12


class NodeConfig(NamedTuple):
    """The settings of a new node."""

    setup: NodeSetup  # The reactor chooses its port.
    interface: Interface | None  # For beacons; None: none are sent or received.
    udp_port: int
    patience_ms: int  # A peer without room for longer is lost.
    message_bytes_max: int = values.MESSAGE_BYTES  # Of a received message.
    access: NodeAccess | None = None  # Its CURVE keys; None: without CURVE.


class ReactorNode(NodeSockets):
    """A node of this process: its state machine, sockets and unread events.

    It exchanges messages with other nodes of the process in memory. Messages for which a peer has
    no room wait for patience_ms.
    """

    reconnect_ms = (100, 0)  # No growth.

    def __init__(self, reactor: "NodeReactor", config: NodeConfig) -> None:
        """Raises zmq.ZMQError: the address can't be bound, or no socket is left;
        LocalProtocolError."""
        self.message_bytes_max = config.message_bytes_max
        self.access = access = config.access
        super().__init__(
            reactor,
            config.setup,
            SocketOptions(
                hwm=RECEIVE_MESSAGES_MAX,
                message_bytes_max=config.message_bytes_max,
                curve=access.curve if access else None,
            ),
        )
        self._reactor = reactor
        if access is not None:
            access.set_used(self.machine.peer_keys)
        self.patience_ms = config.patience_ms
        self.beacon_socket: Datagrams | None = None
        self.events: deque[Event] = deque()
        self.bytes = 0  # Of messages received since the user last read all events.
        self.closed = False
        self.listeners: list[Callable[[], object]] = []  # Called once, in any thread.
        self.local: dict[int, tuple[ReactorNode, bytes]] = {}  # With our routing id there.
        self._opened: dict[int, Any] = {}  # The DEALERs as C knows them.
        self.unsent: dict[int, tuple[Frames, int]] = {}  # Messages without room, and since when.
        self.deadline_ms: int | None = 0
        self.order = 0  # Grows with each node that is added.
        self.endpoint = codec.endpoint_of(config.setup.address, self.machine.setup.port)
        self.drain = Drain(
            self.mailbox,
            message_bytes_max=config.message_bytes_max + HEADER_BYTES_MAX,
            message_frames_max=values.CONTENT_FRAMES_MAX + 8,
            arena_bytes=ARENA_BYTES,
            frames=ARENA_FRAMES,
            addressed=True,
            keys=access.allowed_keys if access else None,
        )

    @property
    def full(self) -> bool:
        return len(self.events) >= EVENTS_MAX or self.bytes >= EVENT_BYTES_MAX

    def notify(self) -> None:
        """Calls the listeners. Under the lock."""
        has_events, self.listeners = self.listeners, []
        for listener in has_events:
            listener()

    def connect(self, action: Connect) -> bool:
        local = self._reactor.nodes.get(action.endpoint)
        if local is None or local.machine.setup.public_key != action.key:
            return super().connect(action)
        self.local[action.number] = local, action.routing_id
        return True

    def on_disconnected(self, number: int) -> None:
        if not self.closed:
            super().on_disconnected(number)
            self._reactor.dirty.add(self)

    def disconnect(self, number: int) -> None:
        self.local.pop(number, None)
        self._opened.pop(number, None)
        if self.unsent.pop(number, None) is not None:
            self._reactor.changed.notify_all()
        super().disconnect(number)

    def send(self, number: int, frames: Frames) -> None:
        if self._send_some(number, frames):
            self.unsent.setdefault(number, (frames, monotonic_ms()))

    def _send_some(self, number: int, frames: Frames) -> int:
        """Sends as many messages as there is room for; returns how many are left."""
        dealer = self.dealers.get(number)
        if dealer is not None:
            send_batch(dealer, frames, "keep")
            return len(frames)
        if number not in self.local:
            frames.clear()
            return 0
        node, routing_id = self.local[number]
        if not node.full:
            source = self.machine.setup.address.encode()
            key = self.machine.setup.public_key
            node.machine.on_batch(routing_id, source, frames, monotonic_ms(), key)
            node.bytes += frames.size
            frames.clear()
            self._reactor.dirty.add(node)
        return len(frames)

    def retry_unsent(self, now_ms: int) -> None:
        """Sends messages that had no room; a peer without room for patience_ms is lost."""
        for number, (frames, since_ms) in list(self.unsent.items()):
            if not self._send_some(number, frames):
                del self.unsent[number]
            elif now_ms - since_ms > self.patience_ms:
                del self.unsent[number]
                frames.clear()
                self.machine.on_full(number)
                self._reactor.dirty.add(self)
        if not self.unsent:
            self.notify()
            self._reactor.changed.notify_all()

    def whisper(self, uuid: bytes, content: bytes) -> bool:
        """Sends one frame to a peer at once, if nothing else waits to be sent; returns whether it
        did. Under the lock."""
        peer = self.machine.direct_peer(uuid)
        if self.closed or peer is None:
            return False
        socket = self._opened.get(peer.number)
        if socket is None:
            dealer = self.dealers.get(peer.number)
            if dealer is None:
                return False
            socket = self._opened[peer.number] = native_socket(dealer)
        return self.machine.traffic.whisper(peer.slot, content, socket)

    def close_sockets(self) -> None:
        """In the polling thread."""
        for dealer in self.dealers.values():
            self._reactor.close_socket(dealer, LINGER_MS)
        self._reactor.close_socket(self.mailbox)
        self.dealers.clear()
        self.local.clear()
        self._opened.clear()
        self.unsent.clear()
