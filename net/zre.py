"""The sockets of a ZRE node, which carry out what its state machine decides.

The process zre_node (actors/zre/node.py) and the reactor of kelek.Node (clients/node/reactor.py)
have them in their poll loops.
"""

from contextlib import suppress
from functools import partial
from random import SystemRandom

import zmq

from ..native.net.messages import Frames
from ..native.net.sockets import send_batch
from ..protocols.errors import LocalProtocolError
from ..protocols.zre import values
from ..protocols.zre.codec import connection_of, endpoint_of
from ..protocols.zre.effects import Connect, NodeEffects, NodeSetup
from ..protocols.zre.node import NodeMachine
from .clock import monotonic_ms
from .poll_loop import PollLoop
from .sockets import CurveClient, CurveServer, Socket, SocketOptions

BIND_TRIES = 100
HEADER_FRAMES_MAX = 3  # Before the content: routing id, address, header.


def bind_free_port(socket: Socket, address: str) -> int:
    """Binds to a free port of RFC 20's range above the ephemeral ones. Raises zmq.ZMQError."""
    socket.setsockopt(zmq.IPV6, ":" in address)
    for _ in range(BIND_TRIES):
        port = SystemRandom().randint(values.MAILBOX_BIND_MIN, values.MAILBOX_BIND_MAX)
        try:
            socket.bind(endpoint_of(address, port))
        except zmq.ZMQError as error:
            if error.errno != zmq.EADDRINUSE:
                raise
        else:
            return port
    raise zmq.ZMQError(zmq.EADDRINUSE)


class NodeSockets:
    """A node's state machine and sockets.

    mailbox   ROUTER  [routing id][address][frames of a command ..]   from the DEALERs of peers
    dealers   DEALER  [frames of a command ..]                        to one peer's mailbox each
    """

    reconnect_ms = (100, 1000)

    def __init__(self, loop: PollLoop, setup: NodeSetup, mailbox: SocketOptions) -> None:
        """Binds a mailbox to a free port, which replaces that of the setup.

        mailbox   with CURVE it has the key of the setup

        Raises zmq.ZMQError: the address can't be bound, or no socket is left; LocalProtocolError.
        """
        self._loop = loop
        # One key at the mailbox and as a client of other nodes.
        self._secret_key = (
            mailbox.curve.secret_key if isinstance(mailbox.curve, CurveServer) else b""
        )
        self.mailbox = loop.socket(
            zmq.ROUTER,
            mailbox._replace(
                message_frames_max=values.CONTENT_FRAMES_MAX + HEADER_FRAMES_MAX,
                router_handover=True,  # A peer that greets again uses a new connection.
                addressed=True,
            ),
        )
        loop.limit_connections(self.mailbox)
        try:
            port = bind_free_port(self.mailbox, setup.address)
            self.machine = NodeMachine(setup._replace(port=port), monotonic_ms())
        except (zmq.ZMQError, LocalProtocolError):
            loop.close_socket(self.mailbox)
            raise
        self.dealers: dict[int, Socket] = {}  # By the peer's number.

    def run_effects(self, now_ms: int) -> NodeEffects:
        """Connects, disconnects and sends. Returns the effects: beacons and events are left."""
        effects = self.machine.ready(now_ms)
        for action in effects.actions:
            if not isinstance(action, Connect):
                self.disconnect(action.number)
            elif not self.connect(action):
                self.machine.on_unreachable(action.number)
        for number, frames in effects.sends:
            self.send(number, frames)
        return effects

    def connect(self, action: Connect) -> bool:
        """Makes a DEALER to a peer (RFC 20), with our identity. False: no socket is left, or the
        address does not exist here."""
        options = SocketOptions(
            connect=(connection_of(self.machine.setup.address, action.endpoint),),
            hwm=1,  # It receives nothing.
            send_hwm=values.SEND_HWM,
            routing_id=action.routing_id,
            reconnect_ms=self.reconnect_ms,
            curve=CurveClient(action.key, self.machine.setup.public_key, self._secret_key)
            if action.key
            else None,
        )
        dealer = self._loop.try_socket(zmq.DEALER, options)
        if dealer is None:
            return False
        self.dealers[action.number] = dealer
        if action.watched:
            # No socket is left; the peer's silence will show the loss.
            with suppress(zmq.ZMQError):
                on_lost = partial(self._on_connection_lost, action.number, dealer)
                self._loop.watch_connections(dealer, on_lost)
        return True

    def _on_connection_lost(self, number: int, dealer: Socket) -> None:
        if self.dealers.get(number) is dealer:
            self.on_disconnected(number)

    def on_disconnected(self, number: int) -> None:
        self.machine.on_disconnected(number, self._loop.now_ms)

    def disconnect(self, number: int) -> None:
        dealer = self.dealers.pop(number, None)
        if dealer is not None:
            self._loop.close_socket(dealer)

    def send(self, number: int, frames: Frames) -> None:
        """RFC 20: a full send buffer means "peer not responding", so no send blocks."""
        dealer = self.dealers.get(number)
        if dealer is not None:
            send_batch(dealer, frames, "keep")
            if len(frames):
                self.machine.on_full(number)
        frames.clear()
