"""The ZRE nodes of this process: one poll loop, their sockets, and a thread that drives them.

Leader/followers: one thread at a time polls for all nodes (`_run_once`), without the lock. A thread
that waits in a blocking call becomes the poller, so that no message changes threads. The reactor's
own thread polls while no caller waits. docs/decisions/0035 has the measurements.

One lock protects everything of the nodes. Only the polling thread touches the poller.
"""

import atexit
import random
import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import zmq

from ...native.errors import fork_count
from ...native.net.datagrams import Datagrams
from ...native.net.interfaces import Interface
from ...native.net.messages import Frames
from ...native.net.poller import Poller, Source
from ...native.net.sockets import Drain, bind_libzmq, native_socket, send_batch
from ...net.clock import monotonic_ms
from ...net.sockets import HANDSHAKE_MS, LINGER_MS, raise_nofile_limit, sockets_for_files
from ...protocols.errors import LocalProtocolError
from ...protocols.zre import codec, values
from ...protocols.zre.beacon import Beacon
from ...protocols.zre.limiter import PeerAllowance
from ...protocols.zre.node import Connect, NodeMachine, NodeSetup
from ...protocols.zre.peers import Event
from ..io.zmq_context import Context

STANDBY_MS = 10  # The reactor's thread lets callers poll for this long after the last one left.
REPEAT_MS = 200  # A beacon that repeats sooner is delivered only to nodes added since.
RECENT_BEACONS_MAX = 4096
GOODBYES_MAX = 4096  # Goodbyes whose delivery is delayed.
RETRY_MS = 2  # Between two attempts to send to a peer without room.
IDLE_MS = 60_000
# Unread events of a node; beyond that its mailbox is not read, and its peers wait.
EVENTS_MAX = 1 << 16
EVENT_BYTES_MAX = 64 << 20
UNREADY_SHARE = 4  # Peers that have not greeted use a fourth of the sockets at most.
RECEIVE_MESSAGES_MAX = 4000  # Messages of one connection that wait to be read.
HEADER_BYTES_MAX = 512  # Routing id, address and all frames before the content.
RECEIVES_MAX = 16  # Reads of one mailbox in a row.
ARENA_BYTES, ARENA_FRAMES = 1 << 16, 1 << 12
GOODBYE_MS = 100  # A goodbye by UDP overtakes messages that were sent before it by TCP.
BIND_TRIES = 64
Socket = zmq.Socket[bytes]

bind_libzmq()  # Now, not while the first node starts.


class NodeConfig(NamedTuple):
    """The settings of a new node."""

    setup: NodeSetup  # The reactor chooses its port.
    interface: Interface | None  # For beacons; None: none are sent or received.
    udp_port: int
    patience_ms: int  # A peer without room for longer is lost.
    message_bytes_max: int = values.MESSAGE_BYTES  # Of a received message.


class ReactorNode:
    """A node of this process: its state machine, sockets and unread events."""

    def __init__(self, reactor: "NodeReactor", config: NodeConfig) -> None:
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
        self.mailbox = _mailbox(reactor.context, ":" in self.host, config.message_bytes_max)
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


class NodeReactor:
    """All nodes of this process.

    mailboxes   ROUTER  [routing id][frames of a command ..]   from the DEALERs of peers
    dealers     DEALER  [frames of a command ..]               to one peer's mailbox each
    monitors    PAIR    libzmq's events: lost                  of each dealer that is watched
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        # New events, room to send, a free poller, or a closed node.
        self.changed = threading.Condition(self.lock)
        self.context = Context()
        sockets_max = sockets_for_files(raise_nofile_limit())
        self.context.set(zmq.MAX_SOCKETS, sockets_max)
        self._socket_allowance = PeerAllowance(max(1, sockets_max // UNREADY_SHARE))
        self._nodes: dict[str, ReactorNode] = {}  # By endpoint.
        self._mailboxes: dict[Socket, ReactorNode] = {}
        self._monitors: dict[Socket, tuple[ReactorNode, int]] = {}  # With the peer's number.
        self._closing: list[ReactorNode] = []
        self._reservations = 0  # Nodes that are about to be added.
        self._beacon_sockets: dict[tuple[Interface, int], Datagrams] = {}
        self._beacon_listeners: dict[int, list[ReactorNode]] = {}  # By the socket's descriptor.
        self._last_order = 0  # Of the node that was added last.
        # By socket, beacon and source: when it was delivered last, and up to which node.
        self._recent_beacons: dict[tuple[int, Beacon, str], tuple[int, int]] = {}
        self._goodbyes: deque[tuple[int, int, Beacon, str]] = deque()  # With the time of delivery.
        self._goodbyes_dropped = 0
        self._dirty: set[ReactorNode] = set()
        self._unfinished: set[ReactorNode] = set()  # More waits than their arena took.
        self._deferred: deque[Callable[[], object]] = deque()  # Calls for the polling thread.
        self._polling = False  # A thread polls.
        self._deadline_ms: int | None = None  # The next deadline; None: unknown.
        self._now_ms = 0  # Of the last wake.
        self._followers = 0  # Threads that wait while another one polls.
        self._callers = 0  # Threads in wait().
        self._first_caller_ms = self._last_caller_ms = 0  # When they came, and left last.
        self._sleeps_until_notified = False  # The thread waits for the last caller to leave.
        self._callers_left = threading.Condition(self.lock)
        self._poller = Poller()
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._wake_fd = self._wake_in.fileno()
        self._poller.register(self._wake_fd, zmq.POLLIN)
        self._thread: threading.Thread | None = None
        self.closed = False

    # ---- adding and removing nodes ----

    def reserve(self) -> bool:
        """Keeps the reactor open until add(); False: it is closed."""
        with self.lock:
            self._reservations += not self.closed
            return not self.closed

    def add(self, config: NodeConfig) -> ReactorNode:
        """Adds a node after reserve(). Raises OSError, LocalProtocolError."""
        try:
            return self._add(config)
        finally:
            with self.lock:
                self._reservations -= 1
                if self._thread is None:
                    self._close()  # The first node failed: no other one uses this reactor yet.
                elif self._is_empty:
                    self.wake()

    def _add(self, config: NodeConfig) -> ReactorNode:
        try:
            node = ReactorNode(self, config)
        except zmq.ZMQError as error:
            raise OSError(error.errno, f"a mailbox at {config.setup.address}: {error}") from error
        try:
            setup = config.setup._replace(port=node.port, socket_allowance=self._socket_allowance)
            node.machine = NodeMachine(setup, monotonic_ms())
            with self.lock:
                if config.interface is not None:
                    node.beacon_socket = self._beacon_socket(config.interface, config.udp_port)
        except (OSError, LocalProtocolError):
            node.mailbox.close()
            raise
        with self.lock:
            self._last_order += 1
            node.order = self._last_order
            self._nodes[node.endpoint] = self._mailboxes[node.mailbox] = node
            if node.beacon_socket is not None:
                self._beacon_listeners[node.beacon_socket.fileno()].append(node)
            self._defer(lambda: self._register(node))
            self.flush(node)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kelek-nodes", daemon=True)
                self._thread.start()
        return node

    def _beacon_socket(self, interface: Interface, port: int) -> Datagrams:
        """The shared socket for beacons of an interface and port. Raises OSError."""
        shared = self._beacon_sockets.get((interface, port))
        if shared is None:
            shared = self._beacon_sockets[interface, port] = Datagrams(interface, port)
            self._beacon_listeners[shared.fileno()] = []
            fd = shared.fileno()
            self._defer(lambda: self._poller.register(fd, zmq.POLLIN))
        return shared

    def remove_later(self, node: ReactorNode) -> None:
        """Removes a node that was dropped; never blocks, callable from a finalizer in any
        thread."""
        self._defer(lambda: self.remove(node))

    def remove_all(self) -> None:
        """Removes all nodes at the process's exit."""
        with self.lock:
            nodes = list(self._nodes.values())
            for node in nodes:
                self.remove(node)
        for node in nodes:
            self.wait_closed(node)

    def remove(self, node: ReactorNode) -> None:
        """Sends goodbyes and removes a node; the polling thread closes its sockets."""
        with self.lock:
            if node.closed or node.machine is None:
                return
            node.machine.stop()
            self.flush(node)
            node.closed = True
            node.deadline_ms = None
            del self._nodes[node.endpoint], self._mailboxes[node.mailbox]
            self._closing.append(node)
            self._defer(lambda: self._close_node(node))
            node.notify()
            self.changed.notify_all()

    def wait_closed(self, node: ReactorNode) -> None:
        """Waits until a removed node's sockets are closed; after the last node, for the thread's
        end."""
        with self.lock:
            while node in self._closing or (self._is_empty and not self.closed):
                self.changed.wait()
            thread = self._thread if self.closed else None
        if thread is not None:
            thread.join()

    @property
    def _is_empty(self) -> bool:
        return not self._nodes and not self._closing and not self._reservations

    def _close_node(self, node: ReactorNode) -> None:
        """Closes the sockets of a removed node. In the polling thread."""
        self._poller.register(node.mailbox, 0)
        node.mailbox.close()
        for number, link in node.links.items():
            if not isinstance(link, ReactorNode):
                self._unwatch(node, number, link)
                link.close(LINGER_MS)
        node.links.clear()
        node.opened.clear()
        node.unsent.clear()
        self._unfinished.discard(node)
        if node.beacon_socket is not None:
            self._release_beacon_socket(node, node.beacon_socket)
        self._closing.remove(node)
        self.changed.notify_all()

    def _release_beacon_socket(self, node: ReactorNode, beacon_socket: Datagrams) -> None:
        listening = self._beacon_listeners[beacon_socket.fileno()]
        listening.remove(node)
        if not listening:
            del self._beacon_listeners[beacon_socket.fileno()]
            del self._beacon_sockets[beacon_socket.interface, beacon_socket.port]
            self._poller.register(beacon_socket.fileno(), 0)
            beacon_socket.close()

    def counters(self, node: ReactorNode) -> dict[str, int]:
        """What was discarded before it reached the node. Under the lock."""
        found = {
            "message_oversize": node.drain.dropped,
            "goodbyes_dropped": self._goodbyes_dropped,
        }
        if node.beacon_socket is not None:
            found["beacon_malformed"] = node.beacon_socket.malformed
            found["beacon_flooded"] = node.beacon_socket.flooded
            found["unsent_beacons"] = node.beacon_socket.unsent
        return {name: count for name, count in found.items() if count}

    def _defer(self, call: Callable[[], object]) -> None:
        """Has the polling thread make a call before its next wait."""
        self._deferred.append(call)
        self.wake()

    def wake(self) -> None:
        """Ends the wait of the polling thread."""
        with suppress(OSError):  # A wake is pending already, or the reactor is closed.
            self._wake_out.send(b"\0")

    # ---- the polling thread ----

    def _run(self) -> None:
        """The reactor's thread: polls while no caller does, until the last node is closed."""
        with self.lock:
            while True:
                if self._nodes:
                    self._stand_by()
                if self._polling:
                    self._wait_for_poller(STANDBY_MS)
                elif self._is_empty:
                    self._close()
                    return
                else:
                    self._run_once(IDLE_MS)

    def _stand_by(self) -> None:
        """Lets callers poll while there are any, and for STANDBY_MS after."""
        now_ms = monotonic_ms()
        while self._callers or now_ms - self._last_caller_ms < STANDBY_MS:
            self._sleeps_until_notified = (
                self._callers > 0 and now_ms - self._first_caller_ms >= STANDBY_MS
            )
            self._callers_left.wait(None if self._sleeps_until_notified else STANDBY_MS / 1000)
            now_ms = monotonic_ms()
        self._sleeps_until_notified = False

    def _close(self) -> None:
        """Closes the reactor after its last node; the next node gets a new one."""
        self.closed = True
        for end in (self._wake_in, self._wake_out):
            end.close()
        self.context.term()
        self.changed.notify_all()

    def _wait_for_poller(self, wait_ms: int) -> None:
        """Waits for a change made by the thread that polls."""
        self._followers += 1
        try:
            self.changed.wait(wait_ms / 1000)
        finally:
            self._followers -= 1

    def wait(self, is_done: Callable[[], bool], until_ms: int | None) -> None:
        """Waits until is_done() or the deadline, and polls meanwhile unless another thread does.

        Under the lock, held once: this releases it while it waits.
        """
        if not self._callers:
            self._first_caller_ms = monotonic_ms()
        self._callers += 1
        if self._polling:
            self.wake()  # The reactor's thread lets this one poll.
        try:
            while not is_done():
                left_ms = IDLE_MS if until_ms is None else until_ms - monotonic_ms()
                if left_ms <= 0:
                    return
                if self._polling:
                    self._wait_for_poller(left_ms)
                else:
                    self._run_once(left_ms)
        finally:
            self._callers -= 1
            self._last_caller_ms = self._now_ms
            if self._sleeps_until_notified:
                self._callers_left.notify_all()

    def _run_once(self, wait_ms: int) -> None:
        """Waits for messages or a deadline, receives, and runs all effects.

        Under the lock, held once; the wait itself is outside it.
        """
        while self._deferred:
            self._deferred.popleft()()
        if not self._nodes and self._is_empty:
            return
        wait_ms = self._wait_ms(wait_ms)
        self._polling = True
        try:
            self.lock.release()
            try:
                ready = self._poller.poll(wait_ms)
            finally:
                self.lock.acquire()
            self._now_ms = monotonic_ms()
            self._on_ready(ready, self._now_ms)
        finally:
            self._polling = False
            if self._followers:
                self.changed.notify_all()  # Another thread may poll now.

    def _on_ready(self, ready: list[tuple[Source, int]], now_ms: int) -> None:
        unfinished = [*self._unfinished]
        for source, _ in ready:
            if not isinstance(source, int):
                node = self._mailboxes.get(source)
                if node is not None and node not in self._unfinished:
                    self._receive(node, now_ms)
                elif source in self._monitors:
                    self._on_connection_lost(source, now_ms)
            elif source == self._wake_fd:
                self._drain_wakes()
            else:
                self._receive_beacons(source, now_ms)
        for node in unfinished:
            self._receive(node, now_ms)
        if self._deadline_ms is None or now_ms >= self._deadline_ms:
            self._on_deadline(now_ms)
        if self._dirty:
            self._flush_dirty(now_ms)

    def _on_deadline(self, now_ms: int) -> None:
        """Delivers goodbyes, marks nodes whose deadline has passed, retries sends."""
        self._deadline_ms = None
        while self._goodbyes and self._goodbyes[0][0] <= now_ms:
            self._deliver_beacon(*self._goodbyes.popleft()[1:], now_ms)
        for node in self._nodes.values():
            if node.deadline_ms is not None and node.deadline_ms <= now_ms:
                self._dirty.add(node)
            if node.unsent:
                self._retry_unsent(node, now_ms)

    def _wait_ms(self, most_ms: int) -> int:
        """How long to wait at most."""
        if self._unfinished:
            return 0
        now_ms = monotonic_ms()
        if self._deadline_ms is None:
            due_ms = self._goodbyes[0][0] if self._goodbyes else now_ms + IDLE_MS
            for node in self._nodes.values():
                if node.unsent:
                    return min(most_ms, RETRY_MS)  # Any message may have made room.
                if node.deadline_ms is not None and node.deadline_ms < due_ms:
                    due_ms = node.deadline_ms
            self._deadline_ms = due_ms
        return max(0, min(self._deadline_ms - now_ms, most_ms))

    def _lower_deadline(self, due_ms: int | None) -> None:
        """Shortens the current wait to a deadline."""
        if due_ms is not None and self._deadline_ms is not None and due_ms < self._deadline_ms:
            self._deadline_ms = due_ms

    def _drain_wakes(self) -> None:
        with suppress(BlockingIOError):
            while self._wake_in.recv(4096):
                pass

    # ---- receiving ----

    def _receive_beacons(self, fd: int, now_ms: int) -> None:
        beacon_socket = next(
            (
                beacon_socket
                for beacon_socket in self._beacon_sockets.values()
                if beacon_socket.fileno() == fd
            ),
            None,
        )
        if beacon_socket is None:
            return
        for uuid, port, source in beacon_socket.receive(now_ms):
            beacon = Beacon(uuid, port)
            if port:
                self._deliver_beacon(fd, beacon, source, now_ms)
            elif len(self._goodbyes) < GOODBYES_MAX:
                self._goodbyes.append((now_ms + GOODBYE_MS, fd, beacon, source))
                self._lower_deadline(now_ms + GOODBYE_MS)
            else:
                self._goodbyes_dropped += 1

    def _deliver_beacon(self, fd: int, beacon: Beacon, source: str, now_ms: int) -> None:
        """Delivers a beacon to the nodes that listen on a socket. A beacon that repeats within
        REPEAT_MS goes only to nodes added since: n nodes starting together would otherwise cost
        O(n^3)."""
        key = fd, beacon, source
        then_ms, order = self._recent_beacons.pop(key, (now_ms - REPEAT_MS, 0))
        if now_ms - then_ms >= REPEAT_MS:
            then_ms, order = now_ms, 0
        if beacon.port:
            if len(self._recent_beacons) >= RECENT_BEACONS_MAX:
                self._recent_beacons.clear()
            self._recent_beacons[key] = then_ms, self._last_order
        is_local = codec.endpoint_of(source, beacon.port) in self._nodes
        for node in reversed(self._beacon_listeners.get(fd, ())):
            if node.order <= order:
                break
            machine = node.machine
            if machine is None or node.closed:
                continue
            machine.on_beacon(beacon, source, now_ms, is_local=is_local)
            deadline_ms = machine.deadline_ms
            sooner = deadline_ms is not None and deadline_ms != node.deadline_ms
            if sooner or machine.has_effects:  # A foreign node is answered by a beacon at once.
                self._dirty.add(node)

    def _receive(self, node: ReactorNode, now_ms: int) -> None:
        """Reads a mailbox, unless too many events are unread."""
        self._unfinished.discard(node)
        machine = node.machine
        if node.closed or machine is None:
            return
        for _ in range(RECEIVES_MAX):
            if node.full:
                self._pause(node)
                return
            size = machine.receive(node.drain, now_ms)
            if size:
                node.bytes += size
                events = machine.take_events()
                if events is None:
                    self._run_effects(node, now_ms)
                else:
                    self._add_events(node, events)
            if not node.drain.more:
                return
        self._unfinished.add(node)

    def _register(self, node: ReactorNode) -> None:
        self._poller.register(node.mailbox, zmq.POLLIN, drained=True)

    def _pause(self, node: ReactorNode) -> None:
        node.paused = True
        self._poller.register(node.mailbox, 0)

    def resume(self, node: ReactorNode) -> None:
        """Reads the mailbox again after the user has read its events. Under the lock."""
        node.bytes = 0
        if node.paused and not node.closed:
            node.paused = False
            self._defer(lambda: self._resume(node))

    def _resume(self, node: ReactorNode) -> None:
        if not node.closed:
            self._register(node)
            self._unfinished.add(node)

    # ---- sending ----

    def whisper(self, node: ReactorNode, uuid: bytes, content: bytes) -> bool:
        """Sends one frame to a peer at once, if nothing else waits to be sent; returns whether it
        did. Under the lock."""
        machine = node.machine
        assert machine is not None
        peer = machine.direct_peer(uuid)
        if peer is None:
            return False
        socket = node.opened.get(peer.number)
        if socket is None:
            link = node.links.get(peer.number)
            if link is None or isinstance(link, ReactorNode):
                return False
            socket = node.opened[peer.number] = native_socket(link)
        return machine.traffic.whisper(peer.slot, content, socket)

    def flush(self, node: ReactorNode) -> None:
        """Runs a node's effects, and those that they cause in other nodes. Under the lock, after
        any call of the node's state machine."""
        if node.closed:
            return
        before_ms = node.deadline_ms
        now_ms = monotonic_ms()
        has_events = self._run_effects(node, now_ms)
        if self._dirty:
            has_events = self._flush_dirty(now_ms) or has_events
        if not self._polling:
            return
        after_ms = node.deadline_ms
        sooner = after_ms is not None and (before_ms is None or after_ms < before_ms)
        if node.unsent or sooner or (has_events and self._callers):
            self.wake()

    def _flush_dirty(self, now_ms: int) -> bool:
        """Runs the effects of all nodes that were marked; returns whether any has unread events."""
        has_events = False
        while self._dirty:
            node = self._dirty.pop()
            if node.machine is not None and not node.closed:
                has_events = self._run_effects(node, now_ms) or has_events
        return has_events

    def _run_effects(self, node: ReactorNode, now_ms: int) -> bool:
        """Runs a node's effects; returns whether it has unread events."""
        machine = node.machine
        assert machine is not None
        done = machine.ready(now_ms)
        node.deadline_ms = machine.deadline_ms
        self._lower_deadline(node.deadline_ms)
        for action in done.actions:
            if isinstance(action, Connect):
                self._connect(node, action)
            else:
                self._disconnect(node, action.number)
        for number, frames in done.sends:
            self._send(node, number, frames)
        if node.beacon_socket is not None:
            for beacon in done.beacons:
                node.beacon_socket.send(beacon)
        return self._add_events(node, done.events)

    def _add_events(self, node: ReactorNode, events: list[Event]) -> bool:
        node.events += events
        if not node.events:
            node.bytes = 0  # All events were read.
            return False
        if node.listeners:
            node.notify()
        if self._followers:
            self.changed.notify_all()
        return True

    def _connect(self, node: ReactorNode, action: Connect) -> None:
        local = self._nodes.get(action.endpoint)
        if local is not None:
            node.links[action.number] = local
            node.routing_ids[action.number] = action.routing_id
            return
        dealer = self._dealer(node, action)
        if dealer is not None:
            node.links[action.number] = dealer
            return
        assert node.machine is not None
        node.machine.on_unreachable(action.number)
        self._dirty.add(node)

    def _dealer(self, node: ReactorNode, action: Connect) -> Socket | None:
        """A DEALER to the peer; None: no socket is left, or the address does not exist here."""
        endpoint = codec.connection_of(node.host, action.endpoint)
        try:
            dealer = self.context.socket(zmq.DEALER)
        except zmq.ZMQError:
            return None
        for option, value in (
            (zmq.IPV6, "[" in endpoint),
            (zmq.LINGER, 0),
            (zmq.SNDHWM, values.SEND_HWM),
            (zmq.HANDSHAKE_IVL, HANDSHAKE_MS),
        ):
            dealer.setsockopt(option, value)
        dealer.setsockopt(zmq.ROUTING_ID, action.routing_id)
        try:
            if action.watched:
                self._watch(node, action.number, dealer)
            dealer.connect(endpoint)
        except zmq.ZMQError:
            self._unwatch(node, action.number, dealer)
            dealer.close()
            return None
        return dealer

    def _watch(self, node: ReactorNode, number: int, dealer: Socket) -> None:
        """Watches the DEALER's connection. Raises zmq.ZMQError."""
        monitor: Socket = dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        node.monitors[number] = monitor
        self._monitors[monitor] = node, number
        self._defer(lambda: self._poller.register(monitor, zmq.POLLIN))

    def _unwatch(self, node: ReactorNode, number: int, dealer: Socket) -> None:
        monitor = node.monitors.pop(number, None)
        if monitor is None:
            return
        dealer.disable_monitor()
        del self._monitors[monitor]

        def close() -> None:
            self._poller.register(monitor, 0)
            monitor.close()

        self._defer(close)

    def _on_connection_lost(self, monitor: Socket, now_ms: int) -> None:
        node, number = self._monitors[monitor]
        while monitor.poll(0):
            monitor.recv_multipart()
        if node.machine is not None and not node.closed:
            node.machine.on_disconnected(number, now_ms)
            self._dirty.add(node)

    def _disconnect(self, node: ReactorNode, number: int) -> None:
        link = node.links.pop(number, None)
        node.opened.pop(number, None)
        node.routing_ids.pop(number, None)
        if node.unsent.pop(number, None) is not None:
            self.changed.notify_all()
        if link is not None and not isinstance(link, ReactorNode):
            self._unwatch(node, number, link)
            link.close()

    def _send(self, node: ReactorNode, number: int, frames: Frames) -> None:
        link = node.links.get(number)
        if link is None:
            frames.clear()
        else:
            self._send_frames(node, number, link, frames)
            if len(frames):
                node.unsent.setdefault(number, (frames, monotonic_ms()))
                self._deadline_ms = None

    def _send_frames(
        self, node: ReactorNode, number: int, link: "Socket | ReactorNode", frames: Frames
    ) -> None:
        """Sends as many messages as there is room for."""
        if not isinstance(link, ReactorNode):
            send_batch(link, frames, "keep")
        elif not link.full:
            assert link.machine is not None
            source = node.host.encode()
            link.machine.on_batch(node.routing_ids[number], source, frames, monotonic_ms())
            link.bytes += frames.size
            frames.clear()
            self._dirty.add(link)

    def _retry_unsent(self, node: ReactorNode, now_ms: int) -> None:
        """Sends messages that had no room; a peer without room for patience_ms is lost."""
        assert node.machine is not None
        for number, (frames, since_ms) in list(node.unsent.items()):
            link = node.links.get(number)
            if link is not None:
                self._send_frames(node, number, link, frames)
            if not len(frames):
                del node.unsent[number]
            elif now_ms - since_ms > node.patience_ms:
                del node.unsent[number]
                frames.clear()
                node.machine.on_full([number])
                self._dirty.add(node)
        if not node.unsent:
            node.notify()
            self.changed.notify_all()


_reactor: NodeReactor | None = None
_reactor_forks = 0
_reactor_lock = threading.Lock()


def shared_reactor() -> NodeReactor:
    """The reactor of this process, reserved for a node that the caller adds."""
    global _reactor, _reactor_forks
    with _reactor_lock:
        if _reactor is None or _reactor_forks != fork_count() or not _reactor.reserve():
            if _reactor is None:
                atexit.register(_close_at_exit)
            _reactor, _reactor_forks = NodeReactor(), fork_count()
            _reactor.reserve()
        return _reactor


def _close_at_exit() -> None:
    """Says goodbye for nodes that were not closed."""
    if _reactor is not None and not _reactor.closed and _reactor_forks == fork_count():
        _reactor.remove_all()
