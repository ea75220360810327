"""A ZRE node of this process as the reactor sees it: its machine, sockets and unread events."""

import random
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import zmq

from ...native.net.datagrams import Datagrams
from ...native.net.interfaces import Interface
from ...native.net.messages import Frames
from ...native.net.sockets import Drain
from ...net.sockets import HANDSHAKE_MS
from ...protocols.zre import codec, values
from ...protocols.zre.node import NodeMachine, NodeSetup
from ...protocols.zre.peers import Event

# Unread events of a node; beyond that its mailbox is not read, and its peers wait.
EVENTS_MAX = 1 << 16
EVENT_BYTES_MAX = 64 << 20
RECEIVE_MESSAGES_MAX = 4000  # Messages of one connection that wait to be read.
HEADER_BYTES_MAX = 512  # Routing id, address and all frames before the content.
ARENA_BYTES, ARENA_FRAMES = 1 << 16, 1 << 12
BIND_TRIES = 64
Socket = zmq.Socket[bytes]


class NodeConfig(NamedTuple):
    """The settings of a new node."""

    setup: NodeSetup  # The reactor chooses its port.
    interface: Interface | None  # For beacons; None: none are sent or received.
    udp_port: int
    patience_ms: int  # A peer without room for longer is lost.
    message_bytes_max: int = values.MESSAGE_BYTES  # Of a received message.


class ReactorNode:
    """A node of this process: its state machine, sockets and unread events."""

    def __init__(self, context: "zmq.Context[Socket]", config: NodeConfig) -> None:
        """Raises zmq.ZMQError: the address can't be bound, or no socket is left."""
        self.host = config.setup.address
        self.patience_ms = config.patience_ms
        self.machine: NodeMachine | None = None  # None until the mailbox has its port.
        self.beacon_socket: Datagrams | None = None
        self.events: deque[Event] = deque()
        self.bytes = 0  # Of messages received since the user last read all events.
        self.paused = False  # Too many events are unread: the mailbox is not read.
        self.closed = False
        self.listeners: list[Callable[[], object]] = []  # Called once, in any thread.
        self.links: dict[int, Socket | ReactorNode] = {}  # A DEALER, or a node of this process.
        self.monitors: dict[int, Socket] = {}  # Of the DEALERs that are watched.
        self.opened: dict[int, Any] = {}  # The DEALERs as C knows them.
        self.routing_ids: dict[int, bytes] = {}  # For nodes of this process.
        self.unsent: dict[int, tuple[Frames, int]] = {}  # Messages without room, and since when.
        self.deadline_ms: int | None = 0
        self.order = 0  # Grows with each node that is added.
        self.message_bytes_max = config.message_bytes_max
        self.mailbox = _mailbox(context, ":" in self.host, config.message_bytes_max)
        self.port = _bind(self.mailbox, self.host)
        self.drain = Drain(
            self.mailbox,
            message_bytes_max=config.message_bytes_max + HEADER_BYTES_MAX,
            message_frames_max=values.CONTENT_FRAMES_MAX + 8,
            arena_bytes=ARENA_BYTES,
            frames=ARENA_FRAMES,
            addressed=True,
        )

    @property
    def endpoint(self) -> str:
        return codec.endpoint_of(self.host, self.port)

    @property
    def full(self) -> bool:
        return len(self.events) >= EVENTS_MAX or self.bytes >= EVENT_BYTES_MAX

    def notify(self) -> None:
        """Calls the listeners. Under the lock."""
        has_events, self.listeners = self.listeners, []
        for listener in has_events:
            listener()


def _mailbox(context: "zmq.Context[Socket]", is_v6: bool, frame_bytes_max: int) -> Socket:
    mailbox = context.socket(zmq.ROUTER)
    for option, value in (
        (zmq.IPV6, is_v6),
        (zmq.LINGER, 0),
        (zmq.ROUTER_HANDOVER, 1),  # A peer that greets again uses a new connection.
        (zmq.RCVHWM, RECEIVE_MESSAGES_MAX),
        (zmq.MAXMSGSIZE, frame_bytes_max),
        (zmq.HANDSHAKE_IVL, HANDSHAKE_MS),
    ):
        mailbox.setsockopt(option, value)
    return mailbox


def _bind(mailbox: Socket, host: str) -> int:
    """Binds to a free port of the specification's range. Raises zmq.ZMQError."""
    for _ in range(BIND_TRIES):
        port = random.randint(values.MAILBOX_BIND_MIN, values.MAILBOX_BIND_MAX)
        try:
            mailbox.bind(codec.endpoint_of(host, port))
        except zmq.ZMQError as error:
            if error.errno != zmq.EADDRINUSE:
                mailbox.close()
                raise
            continue
        return port
    mailbox.close()
    raise zmq.ZMQError(zmq.EADDRINUSE)
