"""The ZRE nodes of this process: one poll loop, their sockets, and a thread that drives them.

Leader/followers: one thread at a time polls for all nodes (`_run_once`), without the lock. A thread
that waits in a blocking call becomes the poller, so that no message changes threads. The reactor's
own thread polls while no caller waits. docs/decisions/0035 has the measurements.

One lock protects everything of the nodes. Only the polling thread touches the poller.
"""

import atexit
import threading
from collections.abc import Callable
from functools import partial

import zmq

from ...native.errors import fork_count
from ...native.net.sockets import bind_libzmq
from ...net.clock import monotonic_ms
from ...net.poll_loop import PollLoop
from ...net.sockets import Socket, raise_nofile_limit, sockets_for_files
from ...protocols.errors import LocalProtocolError
from ...protocols.zre import codec
from ...protocols.zre.limiter import PeerAllowance
from ...protocols.zre.peers import Event
from ..io.zmq_context import Context
from .access import NodeGate
from .beacons import BeaconSockets, ReceivedBeacon
from .callers import STANDBY_MS, Callers, DeferredCalls
from .reactor_node import NodeConfig, ReactorNode

RETRY_MS = 2  # Between two attempts to send to a peer without room.
IDLE_MS = 60_000
UNREADY_SHARE = 4  # Peers that have not greeted use a fourth of the sockets at most.
RECEIVES_MAX = 16  # Reads of one mailbox in a row.

bind_libzmq()  # Now, not while the first node starts.


class NodeReactor(PollLoop):
    """All nodes of this process. Their sockets are as in NodeSockets."""

    def __init__(self) -> None:
        context = Context()
        sockets_max = sockets_for_files(raise_nofile_limit())
        context.set(zmq.MAX_SOCKETS, sockets_max)
        super().__init__(context)
        self.lock = threading.RLock()
        # New events, room to send, a free poller, or a closed node.
        self.changed = threading.Condition(self.lock)
        self.nodes: dict[str, ReactorNode] = {}  # By endpoint.
        self.dirty: set[ReactorNode] = set()  # Nodes with effects.
        self._socket_allowance = PeerAllowance(max(1, sockets_max // UNREADY_SHARE))
        self._closing: list[ReactorNode] = []
        self._reservations = 0  # Nodes that are about to be added.
        self._deferred = DeferredCalls()
        self._beacons = BeaconSockets()
        self._gate = NodeGate(self)
        self._polling = False  # A thread polls ...
        self._waiting = False  # ... and waits, without the lock.
        self._deadline_ms: int | None = None  # The next deadline; None: unknown.
        self._callers = Callers(self.lock)
        self._thread: threading.Thread | None = None
        self.closed = False
        self.watch(self._deferred.fd, self._deferred.drain)

    @property
    def curve_context(self) -> "zmq.Context[Socket]":
        return self.context  # No other loop uses it.

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
                    self._deferred.wake()

    def _add(self, config: NodeConfig) -> ReactorNode:
        setup = config.setup._replace(socket_allowance=self._socket_allowance)
        if config.access is not None:
            with self.lock:
                self._gate.open(config.access)
        try:
            node = ReactorNode(self, config._replace(setup=setup))
        except (LocalProtocolError, zmq.ZMQError) as error:
            with self.lock:
                self._gate.close(config.access)
            if isinstance(error, LocalProtocolError):
                raise
            raise OSError(error.errno, f"a mailbox at {setup.address}: {error}") from error
        with self.lock:
            if config.interface is not None:
                try:
                    node.beacon_socket = self._beacons.open(config.interface, config.udp_port)
                except OSError:
                    self._gate.close(config.access)
                    self.close_socket(node.mailbox)
                    raise
                fd = node.beacon_socket.fileno()
                self.watch(fd, partial(self._receive_beacons, fd))
            self._beacons.add(node)
            self.nodes[node.endpoint] = node
            self.read_all(node.mailbox, partial(self._receive, node))
            self.flush(node)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kelek-nodes", daemon=True)
                self._thread.start()
        return node

    def remove_later(self, node: ReactorNode) -> None:
        """Removes a node that was dropped; never blocks, callable from a finalizer in any
        thread."""
        self._deferred.add(partial(self.remove, node))

    def remove_all(self) -> None:
        """Removes all nodes at the process's exit."""
        with self.lock:
            nodes = list(self.nodes.values())
            for node in nodes:
                self.remove(node)
        for node in nodes:
            self.wait_closed(node)

    def remove(self, node: ReactorNode) -> None:
        """Sends goodbyes and removes a node; the polling thread closes its sockets."""
        with self.lock:
            if node.closed:
                return
            node.machine.stop()
            self.flush(node)
            node.closed = True
            node.deadline_ms = None
            del self.nodes[node.endpoint]
            self._closing.append(node)
            self._deferred.add(partial(self._close_node, node))
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
        return not self.nodes and not self._closing and not self._reservations

    def _close_node(self, node: ReactorNode) -> None:
        """Closes the sockets of a removed node. In the polling thread."""
        node.close_sockets()
        if node.beacon_socket is not None:
            fd = node.beacon_socket.fileno()
            if self._beacons.is_last(node):
                self.unwatch(fd)
            self._beacons.remove(node)
        self._gate.close(node.access)
        self._closing.remove(node)
        self.changed.notify_all()

    def dropped(self, node: ReactorNode) -> dict[str, int]:
        """What was discarded before it reached the node. Under the lock."""
        found = {
            "message_oversize": node.drain.dropped,
            "goodbyes_dropped": self._beacons.goodbyes_dropped,
        }
        if node.beacon_socket is not None:
            found["beacon_malformed"] = node.beacon_socket.malformed
            found["beacon_flooded"] = node.beacon_socket.flooded
            found["unsent_beacons"] = node.beacon_socket.unsent
        if node.access is not None:
            found["connection_refused"] = node.access.refused
        return {name: count for name, count in found.items() if count}

    # ---- the polling thread ----

    def _run(self) -> None:
        """The reactor's thread: polls while no caller does, until the last node is closed."""
        with self.lock:
            while True:
                if self.nodes:
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
        self._gate.close_socket()
        self.context.term()
        self.changed.notify_all()

    def _wait_for_poller(self, wait_ms: int) -> None:
        """Waits for a change made by the thread that polls."""
        self._callers.followers += 1
        try:
            self.changed.wait(wait_ms / 1000)
        finally:
            self._callers.followers -= 1

    def wait_until(self, is_done: Callable[[], bool], until_ms: int | None) -> None:
        """Waits until is_done() or the deadline, and polls meanwhile unless another thread does.

        Under the lock, held once: this releases it while it waits.
        """
        self._callers.enter()
        if self._polling:
            self._deferred.wake()  # The reactor's thread lets this one poll.
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
            self._callers.leave(self.now_ms)

    def _run_once(self, wait_ms: int) -> None:
        """Waits for messages or a deadline, receives, and runs all effects.

        Under the lock, held once; the wait itself is outside it.
        """
        self._deferred.run()
        if not self.nodes and self._is_empty:
            return
        self._polling = True
        try:
            self.run_once(wait_ms)
        finally:
            self._polling = False
            if self._callers.followers:
                self.changed.notify_all()  # Another thread may poll now.

    def wait(self, timeout_ms: int) -> list[tuple[Socket | int, int]]:
        self._waiting = True
        self.lock.release()
        try:
            return self._poller.poll(timeout_ms)
        finally:
            self.lock.acquire()
            self._waiting = False

    def register(self, source: Socket | int) -> None:
        if self._waiting:
            self._deferred.add(partial(super().register, source))
        else:
            super().register(source)

    def close_socket(self, socket: Socket, linger_ms: int | None = None) -> None:
        if self._waiting and self.is_watched(socket):
            self._deferred.add(partial(super().close_socket, socket, linger_ms))
        else:
            super().close_socket(socket, linger_ms)

    def on_wake(self, now_ms: int) -> None:
        # The time at which the wait ended: else each long wake of many nodes answers new beacons.
        now_ms = self.now_ms
        if self._deadline_ms is None or now_ms >= self._deadline_ms:
            self._on_deadline(now_ms)
        if self.dirty:
            self._flush_dirty(now_ms)

    def _on_deadline(self, now_ms: int) -> None:
        """Delivers goodbyes, marks nodes whose deadline has passed, retries sends."""
        self._deadline_ms = None
        for received in self._beacons.due_goodbyes(now_ms):
            self._deliver_beacon(received, now_ms)
        changed = self._gate.reload(now_ms)
        for node in self.nodes.values():
            if node.access in changed:
                node.machine.on_keys_changed()
                self.dirty.add(node)
            if node.deadline_ms is not None and node.deadline_ms <= now_ms:
                self.dirty.add(node)
            if node.unsent:
                node.retry_unsent(now_ms)

    def deadline_ms(self) -> int:
        if self._deadline_ms is None:
            now_ms = monotonic_ms()
            due_ms = self._beacons.deadline_ms or now_ms + IDLE_MS
            if (reload_ms := self._gate.deadline_ms) is not None:
                due_ms = min(due_ms, reload_ms)
            for node in self.nodes.values():
                if node.unsent:
                    return now_ms + RETRY_MS  # Any message may have made room.
                if node.deadline_ms is not None and node.deadline_ms < due_ms:
                    due_ms = node.deadline_ms
            self._deadline_ms = due_ms
        return self._deadline_ms

    def _lower_deadline(self, due_ms: int | None) -> None:
        """Shortens the current wait to a deadline."""
        if due_ms is not None and self._deadline_ms is not None and due_ms < self._deadline_ms:
            self._deadline_ms = due_ms

    # ---- receiving ----

    def _receive_beacons(self, fd: int) -> None:
        for received in self._beacons.receive(fd, self.now_ms):
            self._deliver_beacon(received, self.now_ms)
        self._lower_deadline(self._beacons.deadline_ms)

    def _deliver_beacon(self, received: ReceivedBeacon, now_ms: int) -> None:
        """Delivers a beacon to the nodes that listen on its socket."""
        _, beacon, source = received
        is_local = codec.endpoint_of(source, beacon.port) in self.nodes
        for node in self._beacons.listeners(received, now_ms):
            machine = node.machine
            if node.closed:
                continue
            machine.on_beacon(beacon, source, now_ms, is_local=is_local)
            deadline_ms = machine.deadline_ms
            sooner = deadline_ms is not None and deadline_ms != node.deadline_ms
            if sooner or machine.has_effects:  # A foreign node is answered by a beacon at once.
                self.dirty.add(node)

    def _receive(self, node: ReactorNode) -> bool:
        """Reads a mailbox, unless too many events are unread. Returns whether more waits."""
        for _ in range(RECEIVES_MAX):
            if node.closed:
                return False
            if node.full:
                self.set_paused(node.mailbox, True)
                return True
            size = node.machine.receive(node.drain, self.now_ms)
            if size:
                node.bytes += size
                events = node.machine.take_events()
                if events is None:
                    self._run_effects(node, self.now_ms)
                else:
                    self._add_events(node, events)
            if not node.drain.more:
                return False
        return True

    def on_read(self, node: ReactorNode) -> None:
        """The user has read all events: reads the mailbox again. Under the lock."""
        node.bytes = 0
        if not node.closed:
            self.set_paused(node.mailbox, False)

    # ---- sending ----

    def flush(self, node: ReactorNode) -> None:
        """Runs a node's effects, and those that they cause in other nodes. Under the lock, after
        any call of the node's state machine."""
        if node.closed:
            return
        before_ms = node.deadline_ms
        now_ms = monotonic_ms()
        has_events = self._run_effects(node, now_ms)
        if self.dirty:
            has_events = self._flush_dirty(now_ms) or has_events
        if not self._polling:
            return
        after_ms = node.deadline_ms
        sooner = after_ms is not None and (before_ms is None or after_ms < before_ms)
        if node.unsent or sooner or (has_events and self._callers.count):
            self._deferred.wake()

    def _flush_dirty(self, now_ms: int) -> bool:
        """Runs the effects of all nodes that were marked; returns whether any has unread events."""
        has_events = False
        while self.dirty:
            node = self.dirty.pop()
            if not node.closed:
                has_events = self._run_effects(node, now_ms) or has_events
        return has_events

    def _run_effects(self, node: ReactorNode, now_ms: int) -> bool:
        """Runs a node's effects; returns whether it has unread events."""
        effects = node.run_effects(now_ms)
        node.deadline_ms = node.machine.deadline_ms
        if node.unsent:
            self._deadline_ms = None
        else:
            self._lower_deadline(node.deadline_ms)
        if node.machine.has_effects:  # A Connect failed.
            self.dirty.add(node)
        if node.beacon_socket is not None:
            for beacon in effects.beacons:
                node.beacon_socket.send(beacon)
        return self._add_events(node, effects.events)

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
