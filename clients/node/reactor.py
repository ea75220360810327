"""The ZRE nodes of this process: one poll loop, their sockets, and a thread that drives them.

Leader/followers: one thread at a time polls for all nodes (`_run_once`), without the lock. A thread
that waits in a blocking call becomes the poller, so that no message changes threads. The reactor's
own thread polls while no caller waits. docs/decisions/0035 has the measurements.

One lock protects everything of the nodes. Only the polling thread touches the poller.
"""

import atexit
import threading
from collections.abc import Callable

import zmq

from ...native.errors import fork_count
from ...native.net.messages import Frames
from ...native.net.poller import Poller, Source
from ...native.net.sockets import bind_libzmq, native_socket, send_batch
from ...net.clock import monotonic_ms
from ...net.sockets import HANDSHAKE_MS, LINGER_MS, raise_nofile_limit, sockets_for_files
from ...protocols.errors import LocalProtocolError
from ...protocols.zre import codec, values
from ...protocols.zre.limiter import PeerAllowance
from ...protocols.zre.node import Connect, NodeMachine
from ...protocols.zre.peers import Event
from ..io.zmq_context import Context
from .beacons import BeaconSockets, ReceivedBeacon
from .callers import STANDBY_MS, Callers, DeferredCalls
from .reactor_node import NodeConfig, ReactorNode, Socket

RETRY_MS = 2  # Between two attempts to send to a peer without room.
IDLE_MS = 60_000
UNREADY_SHARE = 4  # Peers that have not greeted use a fourth of the sockets at most.
RECEIVES_MAX = 16  # Reads of one mailbox in a row.

bind_libzmq()  # Now, not while the first node starts.


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
        self._poller = Poller()
        self._deferred = DeferredCalls()
        self._poller.register(self._deferred.fd, zmq.POLLIN)
        self._beacons = BeaconSockets()
        self._dirty: set[ReactorNode] = set()
        self._unfinished: set[ReactorNode] = set()  # More waits than their arena took.
        self._polling = False  # A thread polls.
        self._deadline_ms: int | None = None  # The next deadline; None: unknown.
        self._now_ms = 0  # Of the last wake.
        self._callers = Callers(self.lock)
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
            node = ReactorNode(self.context, config)
        except zmq.ZMQError as error:
            raise OSError(error.errno, f"a mailbox at {config.setup.address}: {error}") from error
        try:
            setup = config.setup._replace(port=node.port, socket_allowance=self._socket_allowance)
            node.machine = NodeMachine(setup, monotonic_ms())
            with self.lock:
                if config.interface is not None:
                    node.beacon_socket = self._beacons.open(config.interface, config.udp_port)
                    fd = node.beacon_socket.fileno()
                    self._defer(lambda: self._poller.register(fd, zmq.POLLIN))
        except (OSError, LocalProtocolError):
            node.mailbox.close()
            raise
        with self.lock:
            self._beacons.add(node)
            self._nodes[node.endpoint] = self._mailboxes[node.mailbox] = node
            self._defer(lambda: self._register(node))
            self.flush(node)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kelek-nodes", daemon=True)
                self._thread.start()
        return node

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
            fd = node.beacon_socket.fileno()
            if self._beacons.is_last(node):
                self._poller.register(fd, 0)
            self._beacons.remove(node)
        self._closing.remove(node)
        self.changed.notify_all()

    def counters(self, node: ReactorNode) -> dict[str, int]:
        """What was discarded before it reached the node. Under the lock."""
        found = {
            "message_oversize": node.drain.dropped,
            "goodbyes_dropped": self._beacons.goodbyes_dropped,
        }
        if node.beacon_socket is not None:
            found["beacon_malformed"] = node.beacon_socket.malformed
            found["beacon_flooded"] = node.beacon_socket.flooded
            found["unsent_beacons"] = node.beacon_socket.unsent
        return {name: count for name, count in found.items() if count}

    def _defer(self, call: Callable[[], object]) -> None:
        """Has the polling thread make a call before its next wait."""
        self._deferred.add(call)

    def wake(self) -> None:
        """Ends the wait of the polling thread."""
        self._deferred.wake()

    # ---- the polling thread ----

    def _run(self) -> None:
        """The reactor's thread: polls while no caller does, until the last node is closed."""
        with self.lock:
            while True:
                if self._nodes:
                    self._callers.stand_by()
                if self._polling:
                    self._wait_for_poller(STANDBY_MS)
                elif self._is_empty:
                    self._close()
                    return
                else:
                    self._run_once(IDLE_MS)

    def _close(self) -> None:
        """Closes the reactor after its last node; the next node gets a new one."""
        self.closed = True
        self._deferred.close()
        self.context.term()
        self.changed.notify_all()

    def _wait_for_poller(self, wait_ms: int) -> None:
        """Waits for a change made by the thread that polls."""
        self._callers.followers += 1
        try:
            self.changed.wait(wait_ms / 1000)
        finally:
            self._callers.followers -= 1

    def wait(self, is_done: Callable[[], bool], until_ms: int | None) -> None:
        """Waits until is_done() or the deadline, and polls meanwhile unless another thread does.

        Under the lock, held once: this releases it while it waits.
        """
        self._callers.enter()
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
            self._callers.leave(self._now_ms)

    def _run_once(self, wait_ms: int) -> None:
        """Waits for messages or a deadline, receives, and runs all effects.

        Under the lock, held once; the wait itself is outside it.
        """
        self._deferred.run()
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
            if self._callers.followers:
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
            elif source == self._deferred.fd:
                self._deferred.drain()
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
        for received in self._beacons.due_goodbyes(now_ms):
            self._deliver_beacon(received, now_ms)
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
            due_ms = self._beacons.deadline_ms or now_ms + IDLE_MS
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

    # ---- receiving ----

    def _receive_beacons(self, fd: int, now_ms: int) -> None:
        for received in self._beacons.receive(fd, now_ms):
            self._deliver_beacon(received, now_ms)
        self._lower_deadline(self._beacons.deadline_ms)

    def _deliver_beacon(self, received: ReceivedBeacon, now_ms: int) -> None:
        """Delivers a beacon to the nodes that listen on its socket."""
        _, beacon, source = received
        is_local = codec.endpoint_of(source, beacon.port) in self._nodes
        for node in self._beacons.listeners(received, now_ms):
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
        if node.unsent or sooner or (has_events and self._callers.count):
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
        if self._callers.followers:
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
