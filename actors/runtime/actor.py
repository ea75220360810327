"""The base of every actor: its start and end, its reports to the supervisor. No protocol here."""

import contextlib
import fcntl
import gc
import importlib
import os
import signal
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgpack
import zmq

from ...native.net.connections import ConnectionLimits
from ...native.net.messages import Arena
from ...net.clock import monotonic_ms
from ...net.libc import allow_tracer, shorten_turns
from ...net.sockets import (
    Socket,
    SocketOptions,
    curve_threads,
    raise_nofile_limit,
    sockets_for_files,
)
from ...protocols.access.audit import (
    ALLOWED,
    DENIED,
    OK,
    AuditRecord,
    AuditTrail,
    Sender,
    denied_command,
)
from ...storage.errors import Damaged, StorageError
from ..access.audit import NAME as AUDIT_NAME
from ..access.audit import AuditFile, audit_guard
from ..errors import OperatorError, UnitBroken
from . import pipes
from .fork_server import supervisor_pid
from .process_loop import STOP_SIGNALS, ProcessLoop
from .setup import EXIT_BROKEN, EXIT_DAMAGED, EXIT_SETUP, EXIT_STOPPED, ActorSetup, Host

if TYPE_CHECKING:
    from ...net.client_keys import ClientKeys
    from ...protocols.access.zap import KeyChange
    from ..access.gate import AccessGate

REPORT_MS = 250  # How often an actor with news reports to the supervisor.
UNCHANGED_MS = 750  # How often it repeats a status that has not changed.
ORPHAN_S_MAX = 1.0  # How long an actor may outlive its supervisor.


class _Stopped(Exception):
    """Raised by the signal handler when the actor is stopped during its start."""


class Actor(ProcessLoop):
    """One process, one loop, one owner of its state.

    control   DEALER   [ready] [status, msgpack map]   to the supervisor; [status] asks for one
                       [adopted]   to it, once it has adopted what [setup, JSON] gave it

    A subclass makes its sockets in on_start(), receives messages as whole Arenas, acts once a wake
    in on_wake(), and calls ready() when it can serve. run() does everything; start(), run_once()
    and close() are its steps, for a caller with a loop of its own.
    """

    role = ""
    is_urgent = False  # Heartbeats wait for it: it shall run soon after an event (shorten_turns()).
    sockets_max = 1023  # At a time; the files that may be open may be enough for fewer.

    def __init__(self, setup: ActorSetup, host: Host | None = None) -> None:
        host = host or Host()
        limits = setup.settings.limits
        connections = ConnectionLimits(
            limits.connections_max,
            limits.address_connections_max,
            limits.held_bytes_max,
            limits.growth_bytes_max,
            limits.stall_ms,
        )
        super().__init__(host.context, host.log_fd, connections)
        self.setup = setup
        self.settings = setup.settings
        self._stop_fd = host.stop_fd
        self.access: AccessGate | None = None  # Of an actor with an endpoint that has CURVE.
        self._started = False
        self._ready_sent = False
        self._report_ms = 0  # When its status is looked at next.
        self._repeat_ms = 0  # When the status that was sent last is repeated.
        self._reported = b""
        self._idle = False  # Nothing has happened since then, and the status was an old one.

    # ---- What a subclass overrides ----

    def on_start(self) -> None:
        """Makes sockets and state. OperatorError and OSError end the actor with exit code 2."""

    def on_stop(self) -> None:
        """The loop has ended (or failed): close files. The sockets are closed afterwards."""

    def on_settings_changed(self) -> None:
        """Other values stand in self.settings, of keys that its role `adopts` (plan.py). May be
        called without a difference."""

    def on_keys_changed(self, changes: "Sequence[KeyChange]") -> None:
        """Keys were allowed or revoked, or have other grants. Messages that revoked keys have sent
        are dropped already."""

    def status(self) -> dict[str, Any]:
        """What `supervisor status` shows: numbers and strings."""
        return {}

    # ---- What a subclass calls ----

    def endpoint(self, actor: str, socket: str) -> str:
        """The pipe `socket` that the actor `actor` of this node binds."""
        return pipes.endpoint(self.setup.run_dir, self.setup.node, actor, socket)

    def bind_pipe(self, kind: int, name: str, **options: Any) -> Socket:
        """A socket at a pipe of this actor."""
        return self.socket(kind, SocketOptions((self.endpoint(self.setup.name, name),), **options))

    def pull(self, name: str, on_arena: Callable[[Arena], None], **options: Any) -> Socket:
        """A PULL at a pipe of this actor, whose messages go to on_arena."""
        socket = self.bind_pipe(zmq.PULL, name, **options)
        self.listen(socket, on_arena)
        return socket

    def connect_pipe(self, kind: int, actor: str, name: str, **options: Any) -> Socket:
        """A socket connected to a pipe of another actor of this node."""
        return self.socket(kind, SocketOptions(connect=(self.endpoint(actor, name),), **options))

    def push(self, actor: str, name: str, **options: Any) -> Socket:
        """A PUSH to a pipe of another actor, which queues messages only while that actor runs."""
        return self.connect_pipe(zmq.PUSH, actor, name, immediate=True, **options)

    def bind_url(self, kind: int, url: str, key: str, **options: Any) -> Socket:
        """A socket at an address of the topology; key is the setting that errors name.

        With `security:` in the topology it has CURVE (access/endpoints.py).
        """
        place, audit = self.setup.places.get(key, ""), audit_guard(key)
        made = SocketOptions((url,), place=place, audit=audit, **options)
        if self.settings.security is None:
            return self.socket(kind, made)
        from ..access.endpoints import bind_secured

        return bind_secured(self, kind, key, made)

    @cached_property
    def client_keys(self) -> "ClientKeys | None":
        """The keys of connections to endpoints of the topology. None: they have no CURVE."""
        security = self.settings.security
        if security is None:
            return None
        from ...net.client_keys import load_client_keys

        servers = {url: key or None for url, key in security.server_keys.items()}
        return load_client_keys(security.key_file, servers, self.setup.places.get("key_file", ""))

    # ---- audit ----

    @cached_property
    def audit_file(self) -> AuditFile:
        """Of the node: all its actors append to it."""
        setup = self.setup
        path = os.path.join(setup.node_dir or setup.data_dir, AUDIT_NAME)
        return AuditFile(path, setup.node, setup.name, self._on_audit_problem)

    def _on_audit_problem(self, problem: str) -> None:
        self.log_rarely("audit-not-written", problem=problem)

    def write_audit(self, trail: AuditTrail) -> None:
        """Writes the records of a trail, and samples of those that were denied."""
        for record in trail.pop() if trail else ():
            if record.result in (DENIED, ALLOWED):
                name, arguments = record.sender.key, record.arguments
                self.log_rarely("request-denied", key=name, command=record.command, **arguments)
                self.audit_file.write_denied(record, self.now_ms)
            else:
                self.audit_file.write(record)
        if trail.lost:
            self.counters["audit_lost"] += trail.lost
            trail.lost = 0

    def report_denied(self, socket: Socket, arena: Arena) -> None:
        super().report_denied(socket, arena)
        assert self.access is not None
        name, options = self.access.name_of(arena.slots()[0]), self.options_of(socket)
        self.log_rarely("not-allowed", key=name, url=options.addresses)
        guard = options.audit
        assert guard is not None
        command = denied_command(guard.kind, guard.unrouted, arena.head(0, 3))
        result = ALLOWED if guard.reports_only else DENIED
        sender, url = Sender(name, arena.address(0)), {"url": options.addresses}
        record = AuditRecord(command, result, sender, url)
        self.audit_file.write_denied(record, self.now_ms, arena.count)

    def report_connection(self, address: str, problem: str) -> None:
        """A new connection was refused."""
        record = AuditRecord("connect", DENIED, Sender(None, address), {"problem": problem})
        self.audit_file.write_denied(record, self.now_ms)

    def reload_keys(self) -> None:
        """Loads key files that have changed."""
        if self.access is not None and (changes := self.access.reload(monotonic_ms())):
            self.on_keys_changed(changes)
            if self.access.audits_keys:
                self._audit_keys(changes)

    def _audit_keys(self, changes: "Sequence[KeyChange]") -> None:
        for slot, name in changes:
            command = "allow-key" if slot.key else "revoke-key"
            self.audit_file.write(AuditRecord(command, OK, Sender(), {"name": name}))

    def ready(self) -> None:
        """Tells the supervisor that this actor serves now."""
        if not self._ready_sent:
            self._ready_sent = True
            self.send(self._control, [b"ready"])
            self._report(monotonic_ms())

    # ---- Start and end ----

    def run(self) -> int:
        """Runs until it is stopped or fails; returns the exit code."""
        code = EXIT_STOPPED
        try:
            self.start()
            gc.freeze()  # Objects of the start live on: no collection looks at them again.
            self.run_loop()
        except _Stopped:
            pass
        except (OperatorError, StorageError, OSError) as error:
            problem: object = error
            if isinstance(error, OSError):
                place = error.filename or self.setup.data_dir
                problem = f"{place}: {error.strerror}; see the log"
            self.log_problem(problem)
            setup = EXIT_DAMAGED if isinstance(error, Damaged) else EXIT_SETUP
            code = EXIT_BROKEN if self._started else setup
        except UnitBroken as error:
            self.log_problem(f"{self.setup.node}/{self.setup.name}: {error}; the unit restarts")
            code = EXIT_BROKEN
        finally:
            code = max(code, self._end())
        return code

    def start(self) -> None:
        """Opens the ties to the supervisor and calls on_start(); then run_once() may follow."""
        self._open()
        self.on_start()
        self._started = True

    def close(self) -> None:
        """Calls on_stop() if the start was complete, and closes all sockets."""
        try:
            if self._started:
                self.on_stop()
        finally:
            self.close_sockets()
            if self.access is not None:
                self.access.close()

    def _end(self) -> int:
        """Closes the files after a failure, too: a thread's locks would outlive it."""
        try:
            self.close()
        except StorageError as error:
            self.log_problem(error)
            return EXIT_BROKEN
        return EXIT_STOPPED

    # ---- Ties to the supervisor ----

    def _open(self) -> None:
        os.set_blocking(self._stop_fd, False)
        if not self._threaded:
            sockets = sockets_for_files(raise_nofile_limit())
            self.context.set(zmq.MAX_SOCKETS, min(sockets, self.sockets_max))
            if self.settings.security is not None:
                self.context.set(zmq.IO_THREADS, curve_threads())
            allow_tracer(supervisor_pid())
            if self.is_urgent:
                shorten_turns()  # Before libzmq makes its threads.
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
        with contextlib.suppress(OSError):  # Not a pipe: an operator starts it by hand.
            flags = fcntl.fcntl(self._stop_fd, fcntl.F_GETFL)
            fcntl.fcntl(self._stop_fd, fcntl.F_SETOWN, os.getpid())
            fcntl.fcntl(self._stop_fd, fcntl.F_SETFL, flags | os.O_ASYNC)
        if self._supervisor_gone():
            raise _Stopped

    def _on_signal(self, number: int, frame: object) -> None:
        gone = number == signal.SIGIO and self._supervisor_gone()
        if gone:  # If the loop hangs, no other process is left to end this one.
            signal.setitimer(signal.ITIMER_REAL, ORPHAN_S_MAX)
        if not self._started and not self.stopping and (gone or number != signal.SIGIO):
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
            self.request_stop()

    def _on_control(self) -> None:
        kind, *rest = self._control.recv_multipart(zmq.DONTWAIT)
        if kind == b"setup":
            self.setup = ActorSetup.of_json(rest[0], self.setup.control)
            self.settings = self.setup.settings
            self.on_settings_changed()
        self._report(monotonic_ms())
        if kind == b"setup":
            self.send(self._control, [b"adopted"])

    def _on_tick(self, now_ms: int) -> None:
        if now_ms >= self._report_ms:
            self._report(now_ms, now_ms >= self._repeat_ms)
        else:
            self._idle = False
        if self.stopping:
            self._check_drained(now_ms)

    def _tick_ms(self) -> int:
        report_ms = self._repeat_ms if self._idle else self._report_ms
        return min(report_ms, self._stop_ms) if self.stopping else report_ms

    def report_soon(self) -> None:
        """The next wake reports: what an operator asks for has changed."""
        self._report_ms = 0
        self._idle = False

    def _report(self, now_ms: int, repeat: bool = True) -> None:
        """Reports the status, if it has changed or shall be repeated."""
        self._report_ms = now_ms + REPORT_MS
        self.reload_keys()
        self.log_cuts()
        status = self.status()
        if self.connections is not None and self.connections.count:
            status = {**status, "connections": self.connections.count}
        if self.counters:
            status = {**status, "counters": dict(self.counters)}
        packed = msgpack.packb(status)
        # Key files are looked at as often as the status.
        self._idle = packed == self._reported and self.access is None
        if repeat or packed != self._reported:
            self._repeat_ms = now_ms + UNCHANGED_MS
            self._reported = packed
            self.send(self._control, [b"status", packed])


def actor_class(module: str) -> type[Actor]:
    """The actor of a module: the one subclass of Actor that it defines."""
    values = vars(importlib.import_module(module)).values()
    found = [each for each in values if isinstance(each, type) and issubclass(each, Actor)]
    (actor,) = [each for each in found if each.__module__ == module]
    return actor
