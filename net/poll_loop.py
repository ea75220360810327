"""The poll loop of a process: its sockets, what has arrived on them, and pipes that never block.

Actors, the supervisor and a mapper's task in Spark run this loop. It knows no protocol.
"""

import os
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence

import zmq

from ..native.net.connections import Connections, Endpoint, held_bytes_max
from ..native.net.guard import AllowedKeys
from ..native.net.messages import Arena, Frames
from ..native.net.poller import Poller
from ..native.net.sockets import Drain, send_batch
from .clock import monotonic_ms
from .links import EVENTS, NEVER_MS, Link, LinkProblem, connection_events
from .sockets import (
    SUBSCRIPTIONS_BYTES_MAX,
    CurveServer,
    Socket,
    SocketOptions,
    allow_ipv6,
    bind_error,
    configure,
    curve_threads,
    remove_curve,
    send_message,
)

ARENA_BYTES = 4 << 20
ARENA_FRAMES = 1 << 14
IDLE_MS_MAX = 60_000  # The longest poll.
TCP = "tcp://"
SUBSCRIBED = (int(zmq.PUB), int(zmq.XPUB))
CONNECTION_EVENTS = int(
    zmq.EVENT_LISTENING
    | zmq.EVENT_ACCEPTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
BIND_RETRY_MS = 1000  # In one process a restarted thread's old sockets may still be closing.

# Plain numbers: an operation on zmq's flags costs 1 to 2 us, each wake.
_OUT = int(zmq.POLLOUT)
_NOT_OUT = ~_OUT


class Pipe:
    """A sending end that never blocks: messages for which the peer has no room wait here, in order.

    The sender checks `full` and pauses its sources while it is true. So the sender's own limit of
    received data also bounds what waits here.
    """

    def __init__(self, loop: "PollLoop", socket: Socket) -> None:
        self._loop = loop
        self.socket = socket
        self._waiting: deque[Sequence[bytes]] = deque()

    @property
    def full(self) -> bool:
        return bool(self._waiting)

    @property
    def count(self) -> int:
        """Messages that wait."""
        return len(self._waiting)

    def send(self, frames: Sequence[bytes]) -> None:
        if self._waiting or not send_message(self.socket, frames):
            self._waiting.append(frames)
            self._loop.watch_writable(self.socket, self._on_writable)
        self._loop.recheck(self.socket)

    def _on_writable(self) -> None:
        while self._waiting:
            if not send_message(self.socket, self._waiting[0]):
                return
            self._waiting.popleft()
        self._loop.watch_writable(self.socket, None)


class PollLoop:
    """Receives everything that has arrived, then acts once: one wake after the other.

    context       None: the loop makes one and destroys it in close_sockets()
    connections   limits of what connects to the loop's tcp endpoints; None: there are none
    """

    def __init__(
        self,
        context: zmq.Context[Socket] | None = None,
        connections: Connections | None = None,
    ) -> None:
        self.counters: Counter[str] = Counter()
        self.now_ms = monotonic_ms()  # When the last poll ended: the time of all that it brought.
        self.running = True
        self.allowed_keys = AllowedKeys()  # Of the process; endpoints with CURVE need one.
        self.context = context or zmq.Context(io_threads=1)
        self._threaded = context is not None
        self._own_context: zmq.Context[Socket] | None = (
            None  # Of endpoints with CURVE, if threaded.
        )
        self._sockets: dict[Socket, SocketOptions] = {}
        self._monitors: dict[Socket, Socket] = {}
        self._watched_links: dict[Socket, Link] = {}
        self._links_retry_ms = NEVER_MS  # Of the first refused link.
        self.connections = connections
        self._poller = Poller(connections)
        self._readers: dict[Socket | int, Callable[[], None]] = {}
        self._writers: dict[Socket | int, Callable[[], None]] = {}
        self._paused: set[Socket | int] = set()
        self._drained: set[Socket | int] = set()  # Sources that listen() reads until empty.
        self._unread: set[Socket | int] = set()  # Drains that hold more, which no poll shows.

    # ---- What a subclass overrides ----

    def on_wake(self, now_ms: int) -> None:
        """Called once a wake, after the handlers of everything that had arrived."""

    def wait(self, timeout_ms: int) -> list[tuple[Socket | int, int]]:
        """The sources that are ready and what for, after timeout_ms at the latest.

        A subclass that also serves requests in C does so here.
        """
        return self._poller.poll(timeout_ms)

    def deadline_ms(self) -> int | None:
        """When on_wake() must come next, in monotonic_ms(); None: not before something arrives."""
        return None

    def on_oversized(self, options: SocketOptions, count: int) -> None:
        """Messages over the limits of a socket were dropped."""
        self.counters["oversize-dropped"] += 1

    def on_link_refused(self, url: str, problem: LinkProblem) -> None:
        """A connection of connect() is not made; called once for each problem in a row."""

    def on_denied(self, socket: Socket, arena: Arena) -> None:
        """Messages were refused: their senders may not send them. The arena has their first
        frames alone."""

    def report_denied(self, socket: Socket, arena: Arena) -> None:
        """Counts them, before on_denied()."""
        self.counters["denied"] += arena.count

    # ---- Sockets ----

    @property
    def curve_context(self) -> "zmq.Context[Socket]":
        """Of the endpoints with CURVE and their ZAP handler: a context has one handler, so loops
        that share a context have another one for these."""
        if not self._threaded:
            return self.context
        if self._own_context is None:
            self._own_context = zmq.Context(io_threads=curve_threads())
        return self._own_context

    def socket(
        self, kind: int, options: SocketOptions, context: "zmq.Context[Socket] | None" = None
    ) -> Socket:
        """Makes a socket with its options, and binds and connects it.

        Raises OperatorError when an address can't be bound.
        """
        if isinstance(options.curve, CurveServer):
            context = self.curve_context
        socket: Socket = (context or self.context).socket(kind)
        self._sockets[socket] = options
        configure(socket, kind, options)
        if any(address.startswith(TCP) for address in options.bind):
            self.limit_connections(socket)
        for address in options.bind:
            allow_ipv6(socket, address)
            self._bind(socket, address, options.place)
        if options.foreign is not None:
            remove_curve(socket, options.foreign.domain)
            self._bind(socket, options.foreign.address, options.place)
            if self.connections is not None and socket in self.connections:
                self.connections.set_foreign(socket, socket.getsockopt_string(zmq.LAST_ENDPOINT))
        try:
            for address in options.connect:
                allow_ipv6(socket, address)
                socket.connect(address)
        except zmq.ZMQError:
            self.close_socket(socket)
            raise
        return socket

    def options_of(self, socket: Socket) -> SocketOptions:
        return self._sockets[socket]

    def limit_connections(self, socket: Socket) -> None:
        """Has the limits of connections apply to a socket, before it is bound."""
        connections = self.connections
        if connections is None or connections.is_full:
            return
        options, keeps = self._sockets[socket], socket.type in SUBSCRIBED
        curve = isinstance(options.curve, CurveServer)
        bytes_max = SUBSCRIPTIONS_BYTES_MAX
        if not keeps:
            bytes_max = held_bytes_max(options.message_bytes_max, options.message_frames_max, curve)
        monitor: Socket = socket.context.socket(zmq.PAIR)
        monitor.setsockopt(zmq.RCVHWM, 0)  # At a limit libzmq's thread would wait for us.
        monitor.setsockopt(zmq.LINGER, 0)
        address = f"inproc://connections-{os.urandom(8).hex()}"
        socket.monitor(address, CONNECTION_EVENTS)
        monitor.connect(address)
        self._monitors[socket] = monitor
        endpoint = Endpoint(bytes_max, options.message_bytes_max, curve, keeps)
        connections.add(socket, monitor, endpoint)

    def try_socket(self, kind: int, options: SocketOptions) -> Socket | None:
        """As socket(), for an address from a peer; None: no file is left, or the address is bad."""
        try:
            return self.socket(kind, options)
        except zmq.ZMQError:
            return None

    def _bind(self, socket: Socket, address: str, place: str) -> None:
        until_ms = monotonic_ms() + (BIND_RETRY_MS if self._threaded else 0)
        while True:
            try:
                socket.bind(address)
                return
            except zmq.ZMQError as error:
                if error.errno == zmq.EADDRINUSE and monotonic_ms() < until_ms:
                    time.sleep(0.01)
                    continue
                raise bind_error(address, place, error) from error

    def report_own_bytes(self, size: int) -> None:
        """The bytes in the process's own queues, which limits of connections leave out."""
        if self.connections is not None:
            self.connections.set_own(size)

    def end_connections(self, socket: Socket) -> None:
        """Ends all connections of a listening socket: peers that still may connect again."""
        if self.connections is not None and socket in self.connections:
            self.connections.end(socket, monotonic_ms())

    def end_revoked(self, revoked_ms: int, now_ms: int) -> None:
        """Ends the connections of keys that are no longer allowed (Connections.revoke())."""
        if self.connections is not None:
            self.connections.revoke(self.allowed_keys, revoked_ms, now_ms)

    def close_socket(self, socket: Socket, linger_ms: int | None = None) -> None:
        """Closes a socket and its monitor. linger_ms replaces the option."""
        self._watched_links.pop(socket, None)
        monitor = self._monitors.pop(socket, None)
        if monitor is not None:
            if self.connections is not None and socket in self.connections:
                self.connections.remove(socket)
            self.unwatch(monitor)
            socket.disable_monitor()
            monitor.close()
        if self.is_watched(socket):
            self._writers.pop(socket, None)
            self.unwatch(socket)
        del self._sockets[socket]
        socket.close(linger_ms)

    def close_sockets(self) -> None:
        for socket, monitor in self._monitors.items():
            if self.connections is not None and socket in self.connections:
                self.connections.remove(socket)
            socket.disable_monitor()
            monitor.close()  # The context's end would wait for it.
        for socket in self._sockets:
            socket.close()
        if self._own_context is not None:
            self._own_context.destroy()
        if not self._threaded:
            # Not term(): a start that was interrupted may have made a socket that we don't know.
            self.context.destroy()

    # ---- What arrives ----

    def listen(
        self,
        socket: Socket,
        on_arena: Callable[[Arena], None],
        arena_bytes: int = ARENA_BYTES,
        frames: int = ARENA_FRAMES,
    ) -> Drain:
        """Calls on_arena with everything that arrives on the socket, in whole messages.

        An arena is valid until the handler returns. Messages over the socket's limits are dropped
        (on_oversized()). Returns the drain, for subclasses that override wait().
        """
        options = self._sockets[socket]
        curve = options.curve if isinstance(options.curve, CurveServer) else None
        drain = Drain(
            socket,
            message_bytes_max=options.message_bytes_max,
            message_frames_max=options.message_frames_max,
            arena_bytes=arena_bytes,
            frames=frames,
            addressed=options.addressed,
            keys=self.allowed_keys if curve else None,
            guard=curve.guard if curve else None,
            audit=options.audit,
            connections=self.connections,
            opens_bundles=options.opens_bundles,
        )

        dropped = 0

        def receive() -> bool:
            nonlocal dropped
            arena = drain.receive()
            if drain.dropped != dropped:
                count, dropped = drain.dropped - dropped, drain.dropped
                self.on_oversized(options, count)
            if drain.is_guarded:
                self.handle_denied(socket, drain)
            if arena.count:
                on_arena(arena)
            return drain.more

        self.read_all(socket, receive)
        return drain

    def handle_denied(self, socket: Socket, drain: Drain) -> None:
        """Handles the refused messages of a drain once; for subclasses that override wait()."""
        if not drain.denied.count:
            return
        self.report_denied(socket, drain.denied)
        curve = self._sockets[socket].curve
        assert isinstance(curve, CurveServer)
        if curve.guard and not curve.guard.reports_only:
            self.on_denied(socket, drain.denied)
        drain.clear_denied()

    def read_all(self, socket: Socket, receive: Callable[[], bool]) -> None:
        """Calls receive() when something arrives, and in the next wake while it returns True: more
        has arrived, which no poll shows."""

        def on_readable() -> None:
            self._unread.discard(socket)
            if receive() and socket in self._readers:
                self._poller.recheck(socket)
                self._unread.add(socket)

        self._readers[socket] = on_readable
        self._drained.add(socket)
        self.register(socket)
        self._set_reads(socket)

    def watch(self, source: Socket | int, on_readable: Callable[[], None]) -> None:
        """Calls on_readable whenever a socket or file descriptor has something to read."""

        def on_readable_once() -> None:
            self._poller.recheck(source)  # It may not read everything.
            on_readable()

        self._readers[source] = on_readable_once
        self.register(source)

    def watch_connections(
        self, socket: Socket, on_lost: Callable[[], None], on_made: Callable[[], None] | None = None
    ) -> None:
        """Calls on_lost when a connection of the socket has ended, and on_made when one is made.

        Messages in flight are lost, and messages sent between the two calls may be. inproc sockets
        report neither.
        """
        monitor: Socket = socket.get_monitor_socket(EVENTS)

        def on_events() -> None:
            for connected in connection_events(monitor):
                if not connected:
                    on_lost()
                elif on_made is not None:
                    on_made()

        self._monitors[socket] = monitor
        self.watch(monitor, on_events)

    def connect(
        self, kind: int, url: str, options: SocketOptions, on_lost: Callable[[], None] | None = None
    ) -> Socket:
        """A socket with one connection, which is made again after a refusal.

        on_lost   called when the connection has ended

        Raises ZMQError for an invalid address.
        """
        socket = self.socket(kind, options)
        link = Link(socket, url, options.curve is not None)

        def on_event(connected: bool) -> None:
            if on_lost is not None and not connected:
                on_lost()

        self.watch_link(link, on_event, lambda problem: self.on_link_refused(url, problem))
        try:
            link.connect()
        except zmq.ZMQError:
            self.close_socket(socket)
            raise
        return socket

    def watch_link(
        self,
        link: Link,
        on_event: Callable[[bool], None],
        on_refused: Callable[[LinkProblem], None],
    ) -> None:
        """Connects a refused link again; close_socket() closes its monitor.

        on_event     True: the connection is made; False: it has ended
        on_refused   the connection is not made; called once for each problem in a row
        """
        known: LinkProblem | None = None

        def on_events() -> None:
            nonlocal known
            for connected in link.events():
                on_event(connected)
            problem = link.problem
            self._links_retry_ms = min(self._links_retry_ms, link.retry_ms)
            if problem is not known:
                known = problem
                if problem is not None:
                    on_refused(problem)

        self._watched_links[link.socket] = link
        self._monitors[link.socket] = link.monitor
        self.watch(link.monitor, on_events)

    def _retry_links(self, now_ms: int) -> None:
        """Connects refused links again whose time has come."""
        for link in self._watched_links.values():
            link.retry(now_ms)
        self._links_retry_ms = min(
            (link.retry_ms for link in self._watched_links.values()), default=NEVER_MS
        )

    def recheck(self, socket: Socket) -> None:
        """To be called after another class than this one has sent on a socket (native Poller)."""
        self._poller.recheck(socket)

    def set_lazy(self, source: Socket | int, lazy: bool) -> None:
        """What arrives may wait for 2 ms, or for another event."""
        self._poller.set_lazy(source, lazy)

    def is_watched(self, socket: Socket) -> bool:
        """Whether the poller waits for the socket or its monitor."""
        return socket in self._monitors or socket in self._readers or socket in self._writers

    def unwatch(self, source: Socket | int) -> None:
        self._readers.pop(source, None)
        self._paused.discard(source)
        self._drained.discard(source)
        self._unread.discard(source)
        self.register(source)

    def watch_writable(self, source: Socket | int, on_writable: Callable[[], None] | None) -> None:
        """Calls on_writable as long as the source can be written to; None: no more."""
        if on_writable is None:
            self._writers.pop(source, None)
        else:
            self._writers[source] = on_writable
        self.register(source)

    def set_paused(self, source: Socket | int, paused: bool) -> None:
        """Leaves what arrives unread, or reads it again."""
        if paused != (source in self._paused):
            (self._paused.add if paused else self._paused.discard)(source)
            self.register(source)
            self._set_reads(source)

    def _set_reads(self, source: Socket | int) -> None:
        if self.connections is not None and not isinstance(source, int):
            reads = source in self._readers and source not in self._paused
            self.connections.set_reads(source, reads)

    def register(self, source: Socket | int) -> None:
        """Has the poller wait for what the source's readers and writers need."""
        flags = 0
        if source in self._readers and source not in self._paused:
            flags |= zmq.POLLIN
        if source in self._writers:
            flags |= zmq.POLLOUT
        self._poller.register(source, flags, source in self._drained)

    # ---- What is sent ----

    def pipe(self, socket: Socket) -> Pipe:
        return Pipe(self, socket)

    def send(self, socket: Socket, frames: Sequence[bytes]) -> bool:
        """Sends one message; drops and counts it when there is no room or no such peer."""
        sent = send_message(socket, frames)
        self._poller.recheck(socket)
        if not sent:
            self.counters["send_dropped"] += 1
        return sent

    def send_batch(self, socket: Socket, batch: Frames) -> None:
        """Sends and clears a batch; messages without room or peer are dropped."""
        if batch:
            send_batch(socket, batch)
            self._poller.recheck(socket)

    # ---- The loop ----

    def run_loop(self) -> None:
        """Runs until stop()."""
        while self.running:
            self.run_once()

    def run_once(self, wait_ms_max: int = IDLE_MS_MAX) -> None:
        """One wake: waits until something arrives or is due, receives it, calls on_wake()."""
        unread = self._unread - self._paused if self._unread else ()
        timeout_ms = 0 if unread else self._timeout_ms()
        ready = self.wait(timeout_ms if timeout_ms < wait_ms_max else wait_ms_max)
        self.now_ms = monotonic_ms()
        for source in unread:
            if source in self._readers:
                self._readers[source]()
        for source, events in ready:
            if events & _NOT_OUT and source in self._readers:
                self._readers[source]()
            if events & _OUT and source in self._writers:
                self._writers[source]()
        now_ms = monotonic_ms()
        if self._links_retry_ms <= now_ms:
            self._retry_links(now_ms)
        self.on_wake(now_ms)
        self._on_tick(now_ms)

    def stop(self) -> None:
        """Ends the loop after this wake."""
        self.running = False

    def _on_tick(self, now_ms: int) -> None:
        """Called once a wake: the timers of a base class."""

    def _tick_ms(self) -> int:
        """When _on_tick() must come next."""
        return self.now_ms + IDLE_MS_MAX

    def _timeout_ms(self) -> int:
        deadline_ms = min(self._tick_ms(), self._links_retry_ms)
        own_ms = self.deadline_ms()
        if own_ms is not None:
            deadline_ms = min(deadline_ms, own_ms)
        return max(0, deadline_ms - monotonic_ms())
