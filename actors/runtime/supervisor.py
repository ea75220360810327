"""The supervisor: starts, restarts and stops actors of some nodes. It never opens their data."""

import contextlib
import errno
import os
import secrets
import select
import shlex
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import zmq

from ...native.net.messages import Arena
from ...net.clock import monotonic_ms
from ...net.sockets import SocketOptions, raise_nofile_limit, sockets_for_files
from ...protocols.zerodb.wire.values import OWNER_BYTES
from ..errors import OperatorError
from . import data_dir, pipes
from .children import Child, LogFile, ProcessChild, ThreadChild, python_command
from .libc import allow_tracer
from .plan import LOG_ROLES, ActorPlan, NodePlan, UnitPlan
from .process_loop import STOP_SIGNALS, ProcessLoop, format_event, timestamp
from .profiles import Profiles, decode_request
from .run_dir import RunDir, sweep
from .setup import EXIT_BROKEN, EXIT_DAMAGED, EXIT_SETUP, EXIT_STOPPED, ActorSetup

BACKOFF_MS = (0, 100, 200, 400, 800, 1600, 3200, 5000, 5000)  # Then the unit is given up.
HEALTH_MS = 5000  # After this time without a failure the backoff begins anew.
SILENT_MS = 2000  # Without a report for this time an actor is shown as silent: it may hang.
STOP_NEXT_MS = 2000  # How long one stop rank may hold up the next.
STOP_KILL_MS = 4000
STOP_MS_MAX = 4800
CONTROL = "supervisor", "control"
STDOUT_BYTES_MAX = 4096  # PIPE_BUF: a pipe that polls writable takes as much without blocking.


class StartOptions(NamedTuple):
    """Options of `supervisor start` besides the topology."""

    topology: str
    run_dir: Path
    one_process: bool = False
    bootstrap: bool = False


class Member:
    """One actor of a unit, across restarts."""

    def __init__(self, unit: "Unit", plan: ActorPlan, log: LogFile) -> None:
        self.unit = unit
        self.plan = plan
        self.log = log
        self.child: Child | None = None
        self.state = "waiting"
        self.started_ms = 0
        self.reported_ms = 0
        self.status: dict[str, Any] = {}
        self.tail_shown: list[str] = []

    @property
    def words(self) -> dict[str, object]:
        """What names it in a lifecycle line."""
        pid = self.child.pid if self.child else 0
        return {"node": self.unit.node.name, "role": self.plan.name, "pid": pid}


class Unit:
    """A restart unit: actors that start and end together."""

    def __init__(self, node: NodePlan, plan: UnitPlan) -> None:
        self.node = node
        self.plan = plan
        self.members: list[Member] = []
        self.epoch = 0
        self.restarts = 0
        self.failures = 0  # In a row, less than HEALTH_MS apart.
        self.failed = False  # One of its actors has ended: the others are being killed.
        self.fault_code = EXIT_BROKEN
        self.fault_role = ""
        self.fault = ""
        self.was_ready = False
        self.ready_ms: int | None = None
        self.restart_ms: int | None = None
        self.restart_requested_ms: int | None = None  # By an operator; the unit is being stopped.
        self.given_up = ""

    @property
    def children(self) -> list[Child]:
        return [member.child for member in self.members if member.child]

    @property
    def is_ready(self) -> bool:
        return all(member.state == "ready" for member in self.members)

    def set_state(self, state: str) -> None:
        for member in self.members:
            member.state = state


class Supervisor(ProcessLoop):
    """The parent of all actors of the nodes that it runs.

    control   ROUTER   [id, ready] [id, status, msgpack map]   from each actor
                       [id, ask-status] -> [list of maps]   from `supervisor status`
                       [id, ask-stop] -> ['']   from `supervisor stop`
                       [id, ask-restart, [node, unit]] -> ['' or why not]   `supervisor restart`
                       [id, ask-profile, ProfileRequest] -> [path, reason]   `supervisor profile`,
                                                          once py-spy has ended

    Requests and answers are msgpack.
    """

    def __init__(self, nodes: Sequence[NodePlan], options: StartOptions) -> None:
        super().__init__(None, 2)
        self.drain_ms_max = STOP_MS_MAX
        self.exit_code = EXIT_STOPPED
        self.options = options
        # By which actors of this start authenticate to each other.
        self._secret = secrets.token_hex(OWNER_BYTES)
        self.nodes = nodes
        self.run_dirs = {node.name: RunDir(options.run_dir, node.name) for node in nodes}
        self.units: list[Unit] = []
        self._logs: dict[str, LogFile] = {}
        self._start_ms = monotonic_ms()
        self._stop_start_ms = 0
        # Every unit has been ready: later failures are not failures of the start.
        self._complete = False
        self._profiles = Profiles()
        self._pipes_dir = "inproc://kelek" if options.one_process else str(options.run_dir)

    # ---- Start ----

    def run(self) -> int:
        """Runs until it is stopped; returns the exit code. Raises OperatorError at the start."""
        try:
            self._acquire()
            if self.options.one_process:
                allow_tracer(os.getpid())
            self._open_signals((*STOP_SIGNALS, signal.SIGCHLD))
            for unit in self.units:
                self._start_unit(unit)
            self.run_loop()
        finally:
            self._end()
        return self.exit_code

    def _acquire(self) -> None:
        """Locks the run directories, makes the data directories and the control socket."""
        sockets = sockets_for_files(raise_nofile_limit())
        if self.options.one_process:
            self.context.set(zmq.MAX_SOCKETS, sockets)  # The actors share it.
        for node in self.nodes:
            self.run_dirs[node.name].acquire()
            self.run_dirs[node.name].write("secret", self._secret)
            self._note(node.name)
        sweep(self.options.run_dir.parent)
        for node in self.nodes:
            try:
                self._make_node(node)
            except OSError as error:
                raise data_error(node.places["data_dir"], error) from error
        control = tuple(
            pipes.endpoint(str(self.options.run_dir), node.name, *CONTROL) for node in self.nodes
        )
        if self.options.one_process:
            control += (pipes.endpoint(self._pipes_dir, "all", *CONTROL),)
        self._control = self.socket(zmq.ROUTER, SocketOptions(bind=control, hwm=10_000))
        self.listen(self._control, self._on_control, arena_bytes=1 << 16)

    def _make_node(self, node: NodePlan) -> None:
        logs = Path(node.data_dir) / "logs"
        data_dir.make(Path(node.data_dir))
        for folder in data_dir.folders(Path(node.data_dir)):
            data_dir.close(folder)
        self._logs[node.name] = LogFile(logs / "supervisor.log")
        for plan in node.units:
            unit = Unit(node, plan)
            for actor in plan.actors:
                data_dir.make(Path(actor.data_dir))
                unit.members.append(Member(unit, actor, LogFile(logs / f"{actor.name}.log")))
            self.units.append(unit)

    @property
    def _members(self) -> list[Member]:
        return [member for unit in self.units for member in unit.members]

    def _start_unit(self, unit: Unit) -> None:
        unit.epoch = max(time.time_ns(), unit.epoch + 1)
        self._follow_data(unit)
        unit.failed = False
        unit.restart_ms = unit.ready_ms = unit.restart_requested_ms = None
        for member in unit.members:
            member.child = self._spawn(unit, member)
            member.state = "starting"
            member.started_ms = member.reported_ms = monotonic_ms()
            member.status = {}
            self.event("started", **member.words)
        self._note(unit.node.name)

    def _follow_data(self, unit: Unit) -> None:
        """Makes folders again that were moved away; where that fails, the actors report why."""
        with contextlib.suppress(OSError):
            data_dir.make(Path(unit.node.data_dir))
        self._logs[unit.node.name].follow()
        for member in unit.members:
            member.log.follow()
            with contextlib.suppress(OSError):
                data_dir.make(Path(member.plan.data_dir))

    def _spawn(self, unit: Unit, member: Member) -> Child:
        plan, node = member.plan, unit.node
        one_process = self.options.one_process
        setup = ActorSetup(
            node=node.name,
            role=plan.role,
            name=plan.name,
            cluster=node.cluster,
            run_dir=self._pipes_dir,
            data_dir=plan.data_dir,
            control=pipes.endpoint(self._pipes_dir, "all" if one_process else node.name, *CONTROL),
            epoch=unit.epoch,
            # Only at the first start: a directory that is empty later has lost its data.
            bootstrap=self.options.bootstrap
            and not unit.was_ready
            and unit.fault_code != EXIT_DAMAGED,
            settings=node.settings,
            places=node.places,
            secret=self._secret,
            new_farms=() if unit.was_ready else node.new_farms,
        )
        child: Child
        if one_process:
            child = ThreadChild(setup, member.log, plan.module, self.context, self._wake_reaper)
        else:
            run_dir = self.run_dirs[node.name]
            path = run_dir.write(f"{plan.name}.json", setup.to_json())
            command = python_command(plan.module, path)
            child = ProcessChild(setup, member.log, command, run_dir.lock_fd)
        self.watch(child.log_fd, lambda: self._on_log(child))
        return child

    def _note(self, node: str) -> None:
        """Writes the current process ids into the lock file."""
        children = [
            child.pid for unit in self.units if unit.node.name == node for child in unit.children
        ]
        self.run_dirs[node].note(
            pid=os.getpid(), topology=str(Path(self.options.topology).resolve()), children=children
        )

    # ---- What arrives ----

    def on_signal(self, number: int) -> None:
        if number == signal.SIGCHLD:
            self._reap()
            self._answer_profiles()
        elif not self.stopping:
            self.event("stopping", reason=signal.Signals(number).name)
            self.request_stop()

    def _wake_reaper(self) -> None:
        """Called by a thread that ends, as SIGCHLD for a process."""
        os.write(self._signal_out, bytes([signal.SIGCHLD]))

    def _on_log(self, child: Child) -> None:
        if not child.read_log():
            self.unwatch(child.log_fd)

    def _on_control(self, arena: Arena) -> None:
        for routing_id, *frames in arena.messages():
            answer: object = None
            match frames:
                case [b"ask-status", *_]:
                    answer = self.report()
                case [b"ask-stop", *_]:
                    self.event("stopping", reason="asked")
                    self.request_stop()
                    answer = ""
                case [b"ask-restart", request]:
                    answer = self._on_restart_request(request)
                case [b"ask-profile", request]:
                    reason = self._on_profile_request(routing_id, request)
                    answer = ["", reason] if reason else None
                case [kind, *rest]:
                    self._on_actor(routing_id, kind, rest)
            if answer is not None:
                self.send(self._control, [routing_id, msgpack.packb(answer)])

    def _on_actor(self, name: bytes, kind: bytes, rest: list[bytes]) -> None:
        for member in self._members:
            if name != f"{member.unit.node.name}/{member.plan.name}/{member.unit.epoch}".encode():
                continue
            member.reported_ms = monotonic_ms()
            if kind == b"status":
                member.status = msgpack.unpackb(rest[0])
            elif kind == b"ready" and member.state == "starting":
                self._on_ready(member, member.reported_ms)

    def _on_ready(self, member: Member, now_ms: int) -> None:
        member.state = "ready"
        self.event("ready", **member.words, ms=now_ms - member.started_ms)
        if member.unit.is_ready:
            member.unit.was_ready = True
            member.unit.ready_ms = now_ms
        self._check_complete(now_ms)

    def _check_complete(self, now_ms: int) -> None:
        """Reports all-ready once every unit that was not given up has been ready."""
        units = [unit for unit in self.units if not unit.given_up]
        if self._complete or self.stopping or not all(unit.is_ready for unit in units):
            return
        self._complete = True
        words: dict[str, object] = {
            "nodes": len({unit.node.name for unit in units}),
            "actors": sum(len(unit.members) for unit in units),
            "ms": now_ms - self._start_ms,
        }
        if len(units) < len(self.units):
            words["given_up"] = ",".join(
                sorted(f"{it.node.name}/{it.plan.name}" for it in self.units if it.given_up)
            )
        self.event("all-ready", **words)

    # ---- Requests about one unit or process ----

    def _on_restart_request(self, request: bytes) -> str:
        """Begins to restart a unit, also one that was given up; returns '' or why not."""
        node, name = msgpack.unpackb(request)
        for unit in self.units:
            if (unit.node.name, unit.plan.name) == (node, name) and not self.stopping:
                now_ms = monotonic_ms()
                unit.failures, unit.given_up = 0, ""
                self.event("restarting", node=node, unit=name, reason="asked")
                if unit.children:
                    unit.restart_requested_ms = now_ms
                    self._continue_restart(unit, now_ms)
                else:
                    unit.restart_ms = now_ms
                return ""
        return f"node {node} has no unit {name} here"

    def _continue_restart(self, unit: Unit, now_ms: int) -> None:
        assert unit.restart_requested_ms is not None
        _stop_members(unit.members, now_ms - unit.restart_requested_ms)

    def _on_profile_request(self, asker: bytes, packed: bytes) -> str:
        """Starts py-spy; returns '' or why not."""
        request = decode_request(msgpack.unpackb(packed))
        if request is None:
            return "the request is malformed; is the command of the same version?"
        for member in self._members:
            if (member.unit.node.name, member.plan.name) == (request.node, request.role):
                if member.child is None:
                    return f"{request.node}/{request.role} does not run now; try again when it does"
                folder = self.run_dirs[request.node].path
                return self._profiles.start(request, member.child.pid, folder, asker)
        return f"node {request.node} has no process {request.role} here"

    def _answer_profiles(self) -> None:
        for profile, reason in self._profiles.finished():
            path = "" if reason else str(profile.path)
            self.send(self._control, [profile.asker, msgpack.packb([path, reason])])

    # ---- Ends and restarts ----

    def _reap(self) -> None:
        for member in self._members:
            code = member.child.poll() if member.child else None
            if code is not None:
                self._on_exit(member, code)

    def _on_exit(self, member: Member, code: int) -> None:
        unit, child, words = member.unit, member.child, member.words
        assert child is not None
        child.read_log()
        self.unwatch(child.log_fd)
        child.close()
        member.child = None
        member.state = "exited"
        member.status = {}
        self.event("exited", **words, **_cause(code))
        if not (self.stopping or unit.failed or unit.restart_requested_ms is not None):
            self._show_tail(member, child, words)
            unit.failed = True
            unit.fault_code, unit.fault_role = code, member.plan.role
            unit.fault = child.tail[-1] if child.tail else f"{member.plan.name} ended"
        if self.stopping:
            return
        if unit.restart_requested_ms is not None:
            self._continue_restart(unit, monotonic_ms())
        else:
            for other in unit.children:
                other.kill()
        if not unit.children:
            self._on_unit_down(unit)

    def _show_tail(self, member: Member, child: Child, words: dict[str, object]) -> None:
        """Logs the last lines of an actor; a repeated crash is shown once."""
        tail = list(child.tail)
        for line in tail if tail != member.tail_shown else ["as before"]:
            self.event("log-tail", **words, line=line)
        member.tail_shown = tail

    def _on_unit_down(self, unit: Unit) -> None:
        """Decides whether and when an ended unit starts again."""
        now_ms = monotonic_ms()
        if unit.restart_requested_ms is not None:
            unit.restart_ms = now_ms
            return
        if unit.given_up:  # Together with its node.
            unit.set_state("given-up")
            return
        if unit.ready_ms is not None and now_ms - unit.ready_ms >= HEALTH_MS:
            unit.failures = 0
        unit.failures += 1
        words = {"node": unit.node.name, "unit": unit.plan.name}
        if unit.fault_code in (EXIT_SETUP, EXIT_DAMAGED) and not unit.was_ready:
            self._give_up(unit, "can't start", unit.fault_code)
        elif unit.failures > len(BACKOFF_MS):
            self._give_up(unit, f"failed {unit.failures} times in a row", EXIT_BROKEN)
        else:
            delay_ms = BACKOFF_MS[unit.failures - 1]
            unit.restart_ms = now_ms + delay_ms
            unit.set_state("backoff")
            self.event("restarting", **words, restarts=unit.restarts + 1, in_ms=delay_ms)

    def _give_up(self, unit: Unit, reason: str, code: int) -> None:
        unit.given_up = f"{reason}: {unit.fault}"
        unit.set_state("given-up")
        self.event(
            "gave-up", node=unit.node.name, unit=unit.plan.name, reason=reason, line=unit.fault
        )
        if self._complete or self.stopping:
            return
        self._error(unit.fault)
        if code == EXIT_DAMAGED:
            code = EXIT_SETUP
            goes_on = self._leave_out(unit)
            if unit.fault_role in LOG_ROLES:
                self._error(self._recovery_hint(unit.node, goes_on))
            if goes_on:
                self._check_complete(monotonic_ms())
                return
        self.exit_code = code
        self.event("stopping", reason="start failed")
        self.request_stop()

    def _leave_out(self, unit: Unit) -> bool:
        """Continues without a unit whose data is damaged; returns whether any unit is left.

        A damaged log takes its whole node out: the other units work on the same directory.
        """
        for other in self.units:
            if other.node is unit.node and not other.given_up and unit.fault_role in LOG_ROLES:
                other.given_up = unit.given_up
                other.restart_ms = None
                other.failed = True
                for child in other.children:
                    child.kill()
                if not other.children:
                    self._on_unit_down(other)
        return not all(other.given_up for other in self.units)

    def _recovery_hint(self, node: NodePlan, goes_on: bool) -> str:
        """The commands after which a node copies all data from the others."""
        topology, data = shlex.quote(self.options.topology), shlex.quote(node.data_dir)
        if len(node.settings.members) < 2:
            return f"no other node has a copy: restore {data} from a backup"
        if goes_on:
            begun, start = "the others go on", f"restart {topology} {node.name}"
        else:
            begun, start = "nothing is left to run", f"start {topology}"
            start += f" --node {node.name}" * (len(self.nodes) == 1)
        return (
            f"node {node.name} is left out, {begun}; while a majority of the members is sound, it "
            f"copies everything from them after: mv {data} {data}.damaged && supervisor {start}"
        )

    def on_wake(self, now_ms: int) -> None:
        if self.stopping:
            self._continue_stop(now_ms)
            return
        for unit in self.units:
            if unit.restart_ms is not None and now_ms >= unit.restart_ms:
                unit.restarts += 1
                self._start_unit(unit)
            elif unit.restart_requested_ms is not None:
                self._continue_restart(unit, now_ms)

    def deadline_ms(self) -> int | None:
        soon_ms = monotonic_ms() + 50
        if self.stopping:
            return soon_ms
        due = [unit.restart_ms for unit in self.units if unit.restart_ms]
        due += [
            max(unit.restart_requested_ms + STOP_KILL_MS, soon_ms)
            for unit in self.units
            if unit.restart_requested_ms is not None
        ]
        return min(due, default=None)

    # ---- Stop ----

    def on_stop_requested(self) -> None:
        self._stop_start_ms = monotonic_ms()
        self._continue_stop(self._stop_start_ms)

    def drained(self) -> bool:
        return not any(unit.children for unit in self.units)

    def _continue_stop(self, now_ms: int) -> None:
        elapsed_ms = now_ms - self._stop_start_ms
        _stop_members(self._members, elapsed_ms, 1 if elapsed_ms >= STOP_NEXT_MS else 0)

    def _end(self) -> None:
        self._profiles.stop()
        left = [child for unit in self.units for child in unit.children]
        for child in left:
            child.kill()
        if self._stop_start_ms:
            self.event("stopped", ms=monotonic_ms() - self._stop_start_ms)
        for run_dir in self.run_dirs.values():
            run_dir.release()
        if left and self.options.one_process:
            os._exit(EXIT_BROKEN)  # A thread that does not end can't be killed otherwise.
        self.close_sockets()

    # ---- Reports ----

    def report(self) -> list[dict[str, Any]]:
        """One map for each process, itself first: what `supervisor status` shows."""
        now_ms = monotonic_ms()
        rows: list[dict[str, Any]] = [
            {
                "node": self.nodes[0].name if len(self.nodes) == 1 else None,
                "nodes": [node.name for node in self.nodes],
                "role": "supervisor",
                "name": "supervisor",
                "pid": os.getpid(),
                "state": "stopping" if self.stopping else "ready",
                "restarts": 0,
                "uptime": round((now_ms - self._start_ms) / 1000, 3),
            }
        ]
        rows += (self._row(member, now_ms) for member in self._members)
        _add_lag(rows)
        return rows

    def _row(self, member: Member, now_ms: int) -> dict[str, Any]:
        unit, state = member.unit, member.state
        if state == "ready" and now_ms - member.reported_ms > SILENT_MS:
            state = "silent"
        uptime_ms = now_ms - member.started_ms if member.child else 0
        row = {
            "node": unit.node.name,
            "unit": unit.plan.name,
            "role": member.plan.role,
            "name": member.plan.name,
            "pid": member.child.pid if member.child else None,
            "state": state,
            "restarts": unit.restarts,
            "uptime": round(uptime_ms / 1000, 3),
        }
        if unit.given_up:
            row["reason"] = unit.given_up
        return {**member.status, **row}

    def event(self, event: str, **values: object) -> None:
        """Writes a lifecycle line to stdout and to the supervisor log of its node."""
        line = format_event(event, values)
        stamped = f"{timestamp()} {line}\n".encode()
        node = values.get("node")
        for name, log in self._logs.items():
            if node in (None, name):
                log.write(stamped)
        _write_if_writable(1, f"{line}\n")

    def _error(self, line: str) -> None:
        _write_if_writable(2, f"supervisor: {line}\n")


def _stop_members(members: Sequence[Member], elapsed_ms: int, rank: int = 0) -> None:
    """Sends SIGTERM to the lowest rank that runs, at least to this one; SIGKILL after some time."""
    running = [(member, member.child) for member in members if member.child is not None]
    lowest = min((member.plan.stop_rank for member, _ in running), default=0)
    for member, child in running:
        if elapsed_ms >= STOP_KILL_MS:
            child.kill()
        elif member.plan.stop_rank <= max(lowest, rank) and member.state != "stopping":
            member.state = "stopping"
            child.request_stop()


def _cause(code: int) -> dict[str, object]:
    if code >= 0:
        return {"code": code}
    return {"signal": signal.Signals(-code).name}


def _add_lag(rows: list[dict[str, Any]]) -> None:
    """Adds how many committed entries each process has not applied, by the newest known commit."""
    rows = [row for row in rows if "farms" not in row]  # Farms have logs of their own.
    commit_index = max((row.get("commit_index") or 0 for row in rows), default=0)
    for row in rows:
        if row.get("applied_index") is not None and "commit_index" in row:
            row.setdefault("lag", max(0, commit_index - row["applied_index"]))


def _write_if_writable(fd: int, text: str) -> None:
    """Writes unless that would block: a slow reader of our output must not stop the nodes."""
    data = text.encode("utf-8", "backslashreplace")[:STDOUT_BYTES_MAX]
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    try:
        if poll.poll(0):
            os.write(fd, data)
    except OSError:
        return


def data_error(place: str, error: OSError) -> OperatorError:
    """The operator's error for a data directory that can't be used."""
    way_out = {
        errno.EACCES: "give this user the right to write there, or change `data`",
        errno.EROFS: "mount it for writing, or change `data`",
        errno.ENOSPC: "make room on that disk, or change `data`",
        errno.ENOTDIR: "remove the file that is in the way, or change `data`",
        errno.EEXIST: "remove the file that is in the way, or change `data`",
    }.get(error.errno or 0, "change `data`")
    return OperatorError(place, f"{error.filename}: {error.strerror}", way_out)
