"""The base of every process: its sockets, its loop, its ties to the supervisor. No protocol here.

This is the only place that polls and the only one that makes sockets.
"""

import contextlib
import errno
import fcntl
import gc
import json
import os
import signal
import struct
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import msgpack
import zmq

from ...native.files import raise_open_files, sockets_within
from ...native.net.messages import Arena as Arena
from ...native.net.messages import Frames as Batch
from ...native.net.poller import Poller
from ...native.net.sockets import Drain, send_batch
from ...storage.errors import Damaged, StorageError
from ..errors import OperatorError, UnitBroken
from . import pipes
from .tracing import allow_tracer

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

EXIT_STOPPED = 0
EXIT_BROKEN = 1  # It failed while it ran: worth a restart.
EXIT_SETUP = 2  # It can't start like this: somebody has to change something.
EXIT_DAMAGED = 3  # It can't start with what is left of its data.

REPORT_MS = 250  # How often an actor reports to the supervisor.
DRAIN_MS_MAX = 1500  # How long an actor may go on after SIGTERM.
ORPHAN_S_MAX = 1.0  # How long an actor may outlive its supervisor.
RARELY_MS = 60_000  # Bad input is logged this often at most.
BIND_RETRY_MS = 1000  # In one process a restarted thread's old sockets may still be closing.

HWM = 1000
MESSAGE_BYTES_MAX = 64 << 20
MESSAGE_FRAMES_MAX = 8192
SUBSCRIPTION_BYTES_MAX = 1 << 10  # What a PUB or XPUB takes in; libzmq keeps each topic.
ARENA_BYTES = 4 << 20
HANDSHAKE_MS = 2000
RECONNECT_MS = (100, 1000)  # First and largest; libzmq adds its own jitter.
RECONNECT_PIPE_MS = (10, 100)

# As plain numbers: an operation on zmq's flags costs a microsecond or two, each wake.
_OUT = int(zmq.POLLOUT)
_NOT_OUT = ~_OUT
_DONTWAIT = int(zmq.DONTWAIT)
_DONTWAIT_MORE = int(zmq.DONTWAIT | zmq.SNDMORE)

Socket = zmq.Socket[bytes]
Frames = Sequence[bytes]


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class ActorSetup(NamedTuple):
    """Everything that an actor is told at its start: one JSON file of these keys, mode 0600."""

    node: str
    role: str
    name: str  # Unique in the node: the role, or role.2 and so on.
    cluster: str
    run_dir: str  # Where its pipes are (pipes.endpoint).
    data_dir: str  # The node's own directory below the topology's `data`.
    control: str  # Endpoint of the supervisor's ROUTER.
    epoch: int  # New at each start of the restart unit: nanoseconds, growing.
    bootstrap: bool  # An empty data directory is a first start: the operator said so.
    options: dict[str, Any]  # What the topology says for this actor, all defaults filled in.
    places: dict[str, str]  # Option -> FILE:LINE:COL: key.path, for the operator's errors.

    @classmethod
    def load(cls, path: str) -> Self:
        with open(path, encoding="utf-8") as file:
            return cls(**json.load(file))

    def to_json(self) -> str:
        return json.dumps(self._asdict())


class Host(NamedTuple):
    """What carries an actor: a process of its own, or a thread of the supervisor's."""

    stop_fd: int = 0  # End of file: the supervisor is gone, stop at once. A byte: SIGTERM's twin.
    log_fd: int = 2
    context: zmq.Context[Socket] | None = None  # Given to a thread, which gets no signals.


class SocketOptions(NamedTuple):
    """How a socket is made; the defaults fit a pipe between two processes of a node."""

    bind: tuple[str, ...] = ()
    connect: tuple[str, ...] = ()
    place: str = ""  # The place in the topology of what is bound, for the operator's error.
    hwm: int = HWM
    send_hwm: int | None = None  # None: as hwm; 0: unbounded.
    message_bytes_max: int = MESSAGE_BYTES_MAX  # All frames together.
    message_frames_max: int = MESSAGE_FRAMES_MAX
    linger_ms: int = 0
    router_mandatory: bool = False
    router_handover: bool = False  # A new connection takes over the routing id of an old one.
    immediate: bool = False  # Queue only on a finished connection: peer DEALERs, pipes.
    reconnect_ms: tuple[int, int] = RECONNECT_PIPE_MS
    routing_id: bytes = b""
    topics: tuple[bytes, ...] = ()  # A SUB's subscriptions.
    addressed: bool = False  # listen(): what arrives has its sender's address as a second frame.


class _Stopped(Exception):
    """Raised by the signal handler when the actor is stopped during its start."""


class Pipe:
    """A sending end that never blocks: what the other side can't take yet waits here, in order.

    Whoever sends looks at `full` and pauses its sources while it is true: the limit of what waits
    here is what the caller has taken in already.
    """

    def __init__(self, loop: "Loop", socket: Socket) -> None:
        self._loop = loop
        self.socket = socket
        self._waiting: deque[Frames] = deque()

    @property
    def full(self) -> bool:
        return bool(self._waiting)

    @property
    def count(self) -> int:
        """Messages that wait."""
        return len(self._waiting)

    def send(self, frames: Frames) -> None:
        if self._waiting or not _send(self.socket, frames):
            self._waiting.append(frames)
            self._loop.want_out(self.socket, self._on_writable)
        self._loop.check(self.socket)

    def _on_writable(self) -> None:
        while self._waiting:
            if not _send(self.socket, self._waiting[0]):
                return
            self._waiting.popleft()
        self._loop.want_out(self.socket, None)


def _send(socket: Socket, frames: Frames) -> bool:
    """Sends one message, DONTWAIT; False when it does not fit or has nobody to go to."""
    try:
        for i in range(len(frames) - 1):  # Only the first frame can find no room.
            socket.send(frames[i], _DONTWAIT_MORE)
        socket.send(frames[-1], _DONTWAIT)
    except zmq.ZMQError as error:
        if error.errno in (zmq.EAGAIN, zmq.EHOSTUNREACH):
            return False
        raise
    return True


class Loop:
    """One poll loop and its sockets: what an actor and the supervisor have in common."""

    def __init__(self, context: zmq.Context[Socket] | None, log_fd: int) -> None:
        self.counters: Counter[str] = Counter()
        self.now_ms = monotonic_ms()  # When the last poll ended: the time of all that it brought.
        self.running = True
        self.stopping = False  # SIGTERM was taken in: finish what is open, take in nothing new.
        self.drain_ms_max = DRAIN_MS_MAX
        self._threaded = context is not None
        self.context = context or zmq.Context(io_threads=1)
        self._log_fd = log_fd
        self._sockets: dict[Socket, SocketOptions] = {}
        self._monitors: dict[Socket, Socket] = {}
        self._poller = Poller()
        self._readers: dict[Socket | int, Callable[[], None]] = {}
        self._writers: dict[Socket | int, Callable[[], None]] = {}
        self._paused: set[Socket | int] = set()
        self._drained: set[Socket | int] = set()  # What listen() reads until nothing is left.
        self._unread: set[Socket | int] = set()  # A drain has more, which no poll tells of.
        self._said_ms: dict[str, int] = {}
        self._unsaid: Counter[str] = Counter()
        self._stop_ms = 0
        self._starting = True

    # ---- What a subclass fills in ----

    def on_start(self) -> None:
        """Makes sockets and state. OperatorError and OSError end the actor with exit code 2."""

    def on_wake(self, now_ms: int) -> None:
        """Called once a wake, after everything that had arrived was handed over."""

    def wait(self, timeout_ms: int) -> list[tuple[Socket | int, int]]:
        """What is ready and for what, after timeout_ms at the latest. Whoever serves in C, too,
        does it here."""
        return self._poller.poll(timeout_ms)

    def deadline_ms(self) -> int | None:
        """When on_wake() must come next, in monotonic_ms(), whatever arrives; None: no matter."""
        return None

    def on_stop_asked(self) -> None:
        """SIGTERM: take in nothing new; the loop goes on until drained() is true, or 1.5 s."""

    def drained(self) -> bool:
        return True

    def on_stop(self) -> None:
        """The loop has ended (or failed): close files. The sockets are closed afterwards."""

    # ---- What a subclass calls ----

    def socket(self, kind: int, options: SocketOptions) -> Socket:
        """Makes a socket. Everything that design.md says of libzmq's options is done here.

        Raises OperatorError when an address can't be bound.
        """
        socket: Socket = self.context.socket(kind)
        self._sockets[socket] = options
        socket.setsockopt(zmq.LINGER, options.linger_ms)
        socket.setsockopt(zmq.RCVHWM, options.hwm)
        send_hwm = options.hwm if options.send_hwm is None else options.send_hwm
        socket.setsockopt(zmq.SNDHWM, send_hwm)
        socket.setsockopt(zmq.MAXMSGSIZE, options.message_bytes_max)
        socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        socket.setsockopt(zmq.RECONNECT_IVL, options.reconnect_ms[0])
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, options.reconnect_ms[1])
        socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 30)
        if options.immediate:
            socket.setsockopt(zmq.IMMEDIATE, 1)
        if kind == zmq.ROUTER and options.router_mandatory:
            socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        if kind == zmq.ROUTER and options.router_handover:
            socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        if kind == zmq.XPUB:
            socket.setsockopt(zmq.XPUB_VERBOSE, 1)  # Each new subscriber is heard of.
        if options.routing_id:
            socket.setsockopt(zmq.ROUTING_ID, options.routing_id)
        for topic in options.topics:
            socket.setsockopt(zmq.SUBSCRIBE, topic)
        for address in options.bind:
            if "[" in address:
                socket.setsockopt(zmq.IPV6, 1)
            self._bind(socket, address, options.place)
        self._connect(socket, options.connect)
        return socket

    def try_socket(self, kind: int, options: SocketOptions) -> Socket | None:
        """As socket(), to where somebody else says; None: no file is left, or no such address is
        here."""
        try:
            return self.socket(kind, options)
        except zmq.ZMQError:
            return None

    def _connect(self, socket: Socket, addresses: Sequence[str]) -> None:
        try:
            for address in addresses:
                if "[" in address:
                    socket.setsockopt(zmq.IPV6, 1)
                socket.connect(address)
        except zmq.ZMQError:
            self.close(socket)
            raise

    def listen(
        self,
        socket: Socket,
        on_arena: Callable[[Arena], None],
        arena_bytes: int = ARENA_BYTES,
    ) -> Drain:
        """Hands everything that arrives on the socket to on_arena, in whole messages.

        An arena is good until the handler returns. Messages over the socket's limits are dropped,
        counted and logged at most once a minute. Returns how it is read, for wait().
        """
        options = self._sockets[socket]
        drain = Drain(
            socket,
            message_bytes_max=options.message_bytes_max,
            message_frames_max=options.message_frames_max,
            arena_bytes=arena_bytes,
            addressed=options.addressed,
        )

        dropped = 0

        def on_readable() -> None:
            nonlocal dropped
            arena = drain.take()
            if drain.dropped != dropped:
                count, dropped = drain.dropped - dropped, drain.dropped
                self.log_rarely("oversize-dropped", count=count, socket=_address(options))
            self._unread.discard(socket)
            if drain.more:
                self._poller.check(socket)
                self._unread.add(socket)
            if arena.count:
                on_arena(arena)

        self._readers[socket] = on_readable
        self._drained.add(socket)
        self._register(socket)
        return drain

    def watch(self, source: Socket | int, on_readable: Callable[[], None]) -> None:
        """Calls on_readable whenever a socket or file descriptor has something to read."""

        def on_readable_once() -> None:
            self._poller.check(source)  # It may not read everything.
            on_readable()

        self._readers[source] = on_readable_once
        self._register(source)

    def on_disconnected(
        self, socket: Socket, react: Callable[[], None], again: Callable[[], None] | None = None
    ) -> None:
        """Calls react whenever a connection of the socket has ended: what was in it is lost, and
        what is sent before `again` is called may be. Neither is called of inproc sockets."""
        from zmq.utils.monitor import recv_monitor_message  # Few need it.

        events = zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED
        monitor: Socket = socket.get_monitor_socket(events)

        def on_events() -> None:
            while monitor.poll(0):
                if recv_monitor_message(monitor)["event"] == zmq.EVENT_DISCONNECTED:
                    react()
                elif again is not None:
                    again()

        self._monitors[socket] = monitor
        self.watch(monitor, on_events)

    def check(self, socket: Socket) -> None:
        """To be called after a socket was sent on other than by this class (native.Poller)."""
        self._poller.check(socket)

    def unwatch(self, source: Socket | int) -> None:
        self._readers.pop(source, None)
        self._paused.discard(source)
        self._unread.discard(source)
        self._register(source)

    def want_out(self, source: Socket | int, on_writable: Callable[[], None] | None) -> None:
        """Calls on_writable as long as the source can be written to; None: no more."""
        if on_writable is None:
            self._writers.pop(source, None)
        else:
            self._writers[source] = on_writable
        self._register(source)

    def pause(self, source: Socket | int) -> None:
        """Leaves what arrives where it is, until resume()."""
        if source not in self._paused:
            self._paused.add(source)
            self._register(source)

    def resume(self, source: Socket | int) -> None:
        if source in self._paused:
            self._paused.remove(source)
            self._register(source)

    def pipe(self, socket: Socket) -> Pipe:
        return Pipe(self, socket)

    def send(self, socket: Socket, frames: Frames) -> bool:
        """Sends one message, or drops and counts it when there is no room or nobody there."""
        sent = _send(socket, frames)
        self._poller.check(socket)
        if not sent:
            self.counters["send_dropped"] += 1
        return sent

    def send_batch(self, socket: Socket, batch: Batch) -> None:
        """Sends what is in a batch and clears it; what finds no room or nobody is dropped."""
        if len(batch):
            send_batch(socket, batch)
            self._poller.check(socket)

    def close(self, socket: Socket) -> None:
        monitor = self._monitors.pop(socket, None)
        if monitor is not None:
            self.unwatch(monitor)
            socket.disable_monitor()
            monitor.close()
        self._writers.pop(socket, None)
        self.unwatch(socket)
        del self._sockets[socket]
        socket.close()

    def stop(self) -> None:
        """Ends the loop after this wake."""
        self.running = False

    def unpacked(
        self, arena: Arena, layout: struct.Struct, pipe: str
    ) -> Iterator[tuple[tuple[int, ...], list[bytes]]]:
        """Each message's first frame, unpacked, and its other frames; what has another size is
        dropped, counted, and logged at most once a minute."""
        for head, *rest in arena.messages():
            if len(head) == layout.size:
                yield layout.unpack(head), rest
            else:
                self.log_rarely("malformed-dropped", pipe=pipe, size=len(head))

    def log(self, event: str, **values: object) -> None:
        """Writes one line `time event key=value` to this actor's log."""
        self._write(f"{timestamp()} {format_event(event, values)}\n")

    def log_rarely(self, event: str, **values: object) -> None:
        """As log(), but an event at most once a minute: for what others can provoke."""
        now_ms = monotonic_ms()
        self.counters[event] += 1
        if event in self._said_ms and now_ms - self._said_ms[event] < RARELY_MS:
            self._unsaid[event] += 1
            return
        self._said_ms[event] = now_ms
        unsaid = self._unsaid.pop(event, 0)
        self.log(event, **values, **({"more_since_last_line": unsaid} if unsaid else {}))

    # ---- The loop ----

    def run_loop(self) -> None:
        """Everything that has arrived is taken in, then on_wake() acts once."""
        while self.running:
            unread = self._unread - self._paused if self._unread else ()
            ready = self.wait(0 if unread else self._timeout_ms())
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
            self.on_wake(now_ms)
            self._on_tick(now_ms)
            if self.stopping and (self.drained() or now_ms >= self._stop_ms):
                self.running = False

    def ask_stop(self) -> None:
        """What SIGTERM does."""
        if not self.stopping:
            self.stopping = True
            self._stop_ms = monotonic_ms() + self.drain_ms_max
            self.on_stop_asked()

    def _on_tick(self, now_ms: int) -> None:
        """Called once a wake: the base's own timer."""

    def _tick_ms(self) -> int:
        """When _on_tick() must come next."""
        return monotonic_ms() + RARELY_MS

    def _timeout_ms(self) -> int:
        deadline_ms = self._tick_ms()
        own_ms = self.deadline_ms()
        if own_ms is not None:
            deadline_ms = min(deadline_ms, own_ms)
        if self.stopping:
            deadline_ms = min(deadline_ms, self._stop_ms)
        return max(0, deadline_ms - monotonic_ms())

    def _open_signals(self, numbers: Sequence[int]) -> None:
        """A signal wakes the poll through a pipe: pyzmq restarts a poll that was interrupted."""
        self._signal_in, self._signal_out = os.pipe()
        os.set_blocking(self._signal_in, False)
        os.set_blocking(self._signal_out, False)
        signal.set_wakeup_fd(self._signal_out, warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, self._on_signal)
        self.watch(self._signal_in, self._on_signal_fd)

    def _on_signal(self, number: int, frame: object) -> None:
        """Runs between any two bytecodes: it may only end a start that has no poll yet."""

    def _on_signal_fd(self) -> None:
        for number in set(os.read(self._signal_in, 4096)):
            self.on_signal(number)

    def on_signal(self, number: int) -> None:
        if number in STOP_SIGNALS:
            self.ask_stop()

    def _register(self, source: Socket | int) -> None:
        flags = 0
        if source in self._readers and source not in self._paused:
            flags |= zmq.POLLIN
        if source in self._writers:
            flags |= zmq.POLLOUT
        self._poller.register(source, flags, source in self._drained)

    # ---- Small things ----

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
                raise _bind_error(address, place, error) from error

    def say(self, problem: object) -> None:
        """One line for the operator, without a time."""
        self._write(f"{problem}\n")

    def _write(self, text: str) -> None:
        try:
            os.write(self._log_fd, text.encode("utf-8", "backslashreplace"))
        except OSError:
            self.counters["log_dropped"] += 1  # The supervisor is gone, or its pipe is full.

    def close_sockets(self) -> None:
        for socket, monitor in self._monitors.items():
            socket.disable_monitor()
            monitor.close()  # The context's end would wait for it.
        for socket in self._sockets:
            socket.close()
        if not self._threaded:
            # Not term(): a start that was interrupted may have made a socket that we don't know.
            self.context.destroy()


class Actor(Loop):
    """One process, one loop, one owner of its state.

    control   DEALER   [ready] [status, msgpack map]   to the supervisor; [status] asks for one

    A subclass makes its sockets in on_start(), gets what arrives as whole Arenas, acts once a wake
    in on_wake(), and says ready() when it can serve.
    """

    role = ""
    sockets_max = 1023  # At a time; the files that may be open may be enough for fewer.

    def __init__(self, setup: ActorSetup, host: Host | None = None) -> None:
        host = host or Host()
        super().__init__(host.context, host.log_fd)
        self.setup = setup
        self.options = setup.options
        self._stop_fd = host.stop_fd
        self._said_ready = False
        self._report_ms = 0

    def status(self) -> dict[str, Any]:
        """What `supervisor status` shows: numbers and strings."""
        return {}

    def endpoint(self, actor: str, socket: str) -> str:
        """The pipe `socket` that the actor `actor` of this node binds."""
        return pipes.endpoint(self.setup.run_dir, self.setup.node, actor, socket)

    def ready(self) -> None:
        """Tells the supervisor that this actor serves now."""
        if not self._said_ready:
            self._said_ready = True
            self.send(self._control, [b"ready"])
            self._report(monotonic_ms())

    def run(self) -> int:
        """Runs until it is stopped or fails; returns the exit code."""
        code = EXIT_STOPPED
        try:
            self._open()
            self.on_start()
            self._starting = False
            gc.freeze()  # What the start made stays: no collection looks at it again.
            self.run_loop()
        except _Stopped:
            pass
        except OperatorError as error:
            self.say(error)
            code = EXIT_SETUP if self._starting else EXIT_BROKEN
        except StorageError as error:
            self.say(error)
            setup = EXIT_DAMAGED if isinstance(error, Damaged) else EXIT_SETUP
            code = setup if self._starting else EXIT_BROKEN
        except OSError as error:
            self.say(f"{error.filename or self.setup.data_dir}: {error.strerror}; see the log")
            code = EXIT_SETUP if self._starting else EXIT_BROKEN
        except UnitBroken as error:
            self.say(f"{self.setup.node}/{self.setup.name}: {error}; the unit restarts")
            code = EXIT_BROKEN
        finally:
            code = max(code, self._end())
            self.close_sockets()
        return code

    def _end(self) -> int:
        """Closes the files, of an actor that has failed too: a thread's locks would live on."""
        try:
            if not self._starting:
                self.on_stop()
        except StorageError as error:
            self.say(error)
            return EXIT_BROKEN
        return EXIT_STOPPED

    # ---- Ties to the supervisor ----

    def _open(self) -> None:
        os.set_blocking(self._stop_fd, False)
        if not self._threaded:
            sockets = sockets_within(raise_open_files())
            self.context.set(zmq.MAX_SOCKETS, min(sockets, self.sockets_max))
            allow_tracer(os.getppid())
            self._open_signals((*STOP_SIGNALS, signal.SIGIO))
            self._open_stop_signal()
        self.watch(self._stop_fd, self._on_stop_fd)
        name = f"{self.setup.node}/{self.setup.name}/{self.setup.epoch}"
        self._control = self.socket(
            zmq.DEALER,
            SocketOptions(connect=(self.setup.control,), hwm=16, routing_id=name.encode()),
        )
        self.watch(self._control, self._on_control)

    def _open_stop_signal(self) -> None:
        """SIGIO comes when the supervisor's end of stdin closes: for a long start without poll."""
        with contextlib.suppress(OSError):  # Not a pipe: somebody starts it by hand.
            flags = fcntl.fcntl(self._stop_fd, fcntl.F_GETFL)
            fcntl.fcntl(self._stop_fd, fcntl.F_SETOWN, os.getpid())
            fcntl.fcntl(self._stop_fd, fcntl.F_SETFL, flags | os.O_ASYNC)
        if self._supervisor_gone():
            raise _Stopped

    def _on_signal(self, number: int, frame: object) -> None:
        gone = number == signal.SIGIO and self._supervisor_gone()
        if gone:  # Should the loop hang: nobody else is left to end this process.
            signal.setitimer(signal.ITIMER_REAL, ORPHAN_S_MAX)
        if self._starting and not self.stopping and (gone or number != signal.SIGIO):
            self.stopping = True
            raise _Stopped

    def _supervisor_gone(self) -> bool:
        try:
            return not os.read(self._stop_fd, 1)
        except BlockingIOError:
            return False

    def _on_stop_fd(self) -> None:
        if self._supervisor_gone():
            self.log("supervisor-gone")
            self.running = False
        else:
            self.ask_stop()

    def _on_control(self) -> None:
        self._control.recv_multipart(zmq.DONTWAIT)
        self._report(monotonic_ms())

    def _on_tick(self, now_ms: int) -> None:
        if now_ms >= self._report_ms:
            self._report(now_ms)

    def _tick_ms(self) -> int:
        return self._report_ms

    def _report(self, now_ms: int) -> None:
        self._report_ms = now_ms + REPORT_MS
        status = self.status()
        if self.counters:
            status = {**status, "counters": dict(self.counters)}
        self.send(self._control, [b"status", msgpack.packb(status)])


def _bind_error(address: str, place: str, error: zmq.ZMQError) -> OperatorError:
    number = error.errno or 0
    problem, way_out = {
        zmq.EADDRINUSE: ("is in use", "end the program that holds it, or choose another address"),
        zmq.EADDRNOTAVAIL: ("is not an address of this machine", "write one of its own"),
        errno.ENODEV: ("is not an address of this machine", "write one of its own"),
        errno.EACCES: ("may not be bound by this user", "choose a port above 1023"),
        errno.ENOENT: ("is in no directory", "make the directory"),
        errno.EPROTONOSUPPORT: (
            "is of a kind that this libzmq was built without",
            "choose tcp:// or ipc://",
        ),
    }.get(number, (f"can't be bound: {os.strerror(number)}", "choose another address"))
    return OperatorError(place or address, f"{address} {problem}" if place else problem, way_out)


def _address(options: SocketOptions) -> str:
    return " ".join((*options.bind, *options.connect))


def timestamp() -> str:
    """The time as log lines begin: UTC, milliseconds."""
    now = time.time()
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}.{int(now * 1000) % 1000:03}Z"


def format_event(event: str, values: Mapping[str, object]) -> str:
    """`event key=value`: the form of every log and lifecycle line."""
    return " ".join([event, *(f"{key}={_word(value)}" for key, value in values.items())])


def _word(value: object) -> str:
    """One value of a log line: quoted when it would not be one word."""
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    if text and text.isprintable() and not any(c in text for c in ' "='):
        return text
    return json.dumps(text)


def main(actor: type[Actor]) -> None:
    """Entry of `python -m kelek.actors.ROLE --setup FILE.json`."""
    if len(sys.argv) != 3 or sys.argv[1] != "--setup":
        sys.exit(f"usage: python -m {actor.__module__} --setup FILE.json")
    sys.exit(actor(ActorSetup.load(sys.argv[2])).run())
