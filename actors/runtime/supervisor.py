"""The supervisor: starts, restarts and stops actors of some nodes. It never opens their data."""

import contextlib
import os
import secrets
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
from ...net.libc import allow_tracer
from ...net.notify import ServiceNotifier
from ...net.sockets import SocketOptions, raise_nofile_limit, sockets_for_files
from ...protocols.zerodb.wire.values import OWNER_BYTES
from ...version import __version__
from ..errors import OperatorError
from ..topology import client_topology
from . import data_dir, pipes
from .children import Child, LogFile, ProcessChild, ThreadChild
from .cluster_status import CommitHistory, add_lag, cluster_status
from .fork_server import HAS_FORK_SERVER, Forked, ForkServer
from .plan import LOG_ROLES, NodePlan, UnitPlan
from .process_loop import STOP_SIGNALS, ProcessLoop, format_event, timestamp, write_if_writable
from .profiles import Profiles, decode_request
from .reload import Reading, TopologySource, order_for, steps_to
from .run_dir import RunDir, sweep, users_of
from .setup import EXIT_BROKEN, EXIT_DAMAGED, EXIT_SETUP, EXIT_STOPPED, ActorSetup
from .units import REMOVE, RESTART, STOP, STOP_KILL_MS, UPDATE, Member, Unit, stop_members

BACKOFF_MS = (0, 100, 200, 400, 800, 1600, 3200, 5000, 5000)  # Then the unit is given up.
RETRY_MS = 30_000  # How often a unit is tried again that was ready before it was given up.
HEALTH_MS = 5000  # After this time without a failure the backoff begins anew.
SILENT_MS = 2000  # Without a report for this time an actor is shown as silent: it may hang.
STOP_NEXT_MS = 2000  # How long one stop rank may hold up the next.
STOP_MS_MAX = 4800
NOTIFY_MS = 1000  # How often the service manager is told how the processes do.
RELOAD_MS_MAX = 30_000  # A reload whose next step does not come within this time has ended.
CONTROL = "supervisor", "control"
PROGRESS = ("started", "ready")  # Events of a start that only `start --verbose` prints.


class StartOptions(NamedTuple):
    """Options of `supervisor start` besides the topology."""

    topology: str
    run_dir: Path
    one_process: bool = False
    bootstrap: bool = False
    verbose: bool = False


class Supervisor(ProcessLoop):
    """The parent of all actors of the nodes that it runs.

    control   ROUTER   [id, ready] [id, status, msgpack map] [id, adopted]   from each actor
                       [id, setup, JSON]   to an actor that adopts it while it runs
                       [id, ask-status] -> [list of maps]   from `supervisor status`
                       [id, ask-stop] -> ['']   from `supervisor stop`
                       [id, ask-reload, dry] -> map   `supervisor reload`
                       [id, ask-restart, [node, unit, fingerprint or '']] -> ['' or why not]
                                                          `supervisor reload` and `restart`
                       [id, ask-order, [stop or start, node, [unit, ..]]] -> ['' or why not]
                                                          `supervisor stop` and `start`, of units
                       [id, ask-profile, ProfileRequest] -> [path, reason]   `supervisor profile`,
                                                          once py-spy has ended

    Requests and answers are msgpack.
    """

    def __init__(
        self,
        nodes: Sequence[NodePlan],
        options: StartOptions,
        source: TopologySource | None = None,
    ) -> None:
        """source: of the topology; None: it does not change."""
        super().__init__(None, 2)
        self.drain_ms_max = STOP_MS_MAX
        self.exit_code = EXIT_STOPPED
        self.options = options
        # By which actors of this start authenticate to each other.
        self._secret = secrets.token_hex(OWNER_BYTES)
        self.nodes = list(nodes)
        self._source = source
        self.run_dirs = {node.name: RunDir(options.run_dir, node.name) for node in nodes}
        self.units: list[Unit] = []
        self._logs: dict[str, LogFile] = {}
        self._start_ms = monotonic_ms()
        self._stop_start_ms = 0
        # Every unit has been ready: later failures are not failures of the start.
        self._complete = False
        self._profiles = Profiles()
        self._forks: ForkServer | None = None
        self._notifier = ServiceNotifier(os.environ)
        self._notify_ms = 0  # When to notify next.
        self._commits = CommitHistory()
        self._reload_ms: int | None = None  # When the last step of a reload began.
        self._pipes_dir = "inproc://kelek" if options.one_process else str(options.run_dir)

    # ---- Start ----

    def run(self) -> int:
        """Runs until it is stopped; returns the exit code. Raises OperatorError at the start."""
        try:
            self._acquire()
            if self.options.one_process:
                allow_tracer(os.getpid())
            self._open_signals((*STOP_SIGNALS, signal.SIGCHLD))
            if HAS_FORK_SERVER and not self.options.one_process:
                modules = sorted({member.plan.module for member in self._members})
                self._forks = ForkServer(self, modules, self._wake_reaper)
                self._forks.start()
            for node in self.nodes:
                self._warn(node)
            names = ",".join(node.name for node in self.nodes)
            self.event("starting", nodes=names, actors=len(self._members))
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
        self._leave_topology()
        sweep(self.options.run_dir.parent)
        for node in self.nodes:
            try:
                self._make_node(node)
            except OSError as error:
                raise data_dir.problem(node.places["data_dir"], error) from error
        control = tuple(
            pipes.endpoint(str(self.options.run_dir), node.name, *CONTROL) for node in self.nodes
        )
        if self.options.one_process:
            control += (pipes.endpoint(self._pipes_dir, "all", *CONTROL),)
        self._control = self.socket(zmq.ROUTER, SocketOptions(bind=control, hwm=10_000))
        self.listen(self._control, self._on_control, arena_bytes=1 << 16)

    def _warn(self, node: NodePlan) -> None:
        """Reports what an operator must know of a node without encryption or grants."""
        for endpoint, url in node.open_endpoints.insecure.items():
            self.event("insecure", node=node.name, endpoint=endpoint, url=url or "-")
        if node.reports_only:
            self.event("grants-not-enforced", node=node.name, mode="allow")

    def _make_node(self, node: NodePlan) -> None:
        logs = Path(node.data_dir) / "logs"
        data_dir.make(Path(node.data_dir))
        for folder in data_dir.folders(Path(node.data_dir)):
            data_dir.close(folder)
        self._logs[node.name] = LogFile(logs / "supervisor.log")
        for plan in node.units:
            self._add_unit(node, plan)

    def _add_unit(self, node: NodePlan, plan: UnitPlan) -> Unit:
        unit = Unit(node, plan)
        unit.make_members(data_dir.make)
        self.units.append(unit)
        return unit

    @property
    def _members(self) -> list[Member]:
        return [member for unit in self.units for member in unit.members]

    def _start_unit(self, unit: Unit) -> None:
        unit.epoch = max(time.time_ns(), unit.epoch + 1)
        with contextlib.suppress(OSError):  # The actors report why.
            unit.adopt_plan(data_dir.make)
        self._follow_data(unit)
        unit.failed, unit.order = False, ""
        unit.restart_ms = unit.ready_ms = None
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

    def _setup(self, unit: Unit, member: Member) -> ActorSetup:
        plan, node = member.plan, unit.node
        return ActorSetup(
            node=node.name,
            role=plan.role,
            name=plan.name,
            cluster=node.cluster,
            run_dir=self._pipes_dir,
            data_dir=plan.data_dir,
            control=pipes.endpoint(
                self._pipes_dir, "all" if self.options.one_process else node.name, *CONTROL
            ),
            epoch=unit.epoch,
            # Only at the first start: a directory that is empty later has lost its data.
            bootstrap=self.options.bootstrap
            and not unit.was_ready
            and unit.fault_code != EXIT_DAMAGED,
            settings=node.settings,
            places=node.places,
            secret=self._secret,
            node_dir=node.data_dir,
            new_farms=() if unit.proved else node.new_farms,
        )

    def _spawn(self, unit: Unit, member: Member) -> Child:
        plan, setup = member.plan, self._setup(unit, member)
        child: Child
        if self.options.one_process:
            child = ThreadChild(setup, member.log, plan.module, self.context, self._wake_reaper)
        else:
            run_dir = self.run_dirs[unit.node.name]
            path = run_dir.write(f"{plan.name}.json", setup.to_json())
            forked = Forked(plan.module, str(path))
            child = ProcessChild(setup, member.log, forked, run_dir.lock_fd, self._forks)
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

    def _leave_topology(self) -> None:
        """Leaves what commands need of the topology that runs."""
        if self._source is not None:
            for folder in self.run_dirs.values():
                client_topology.leave(self._source.running.topology, folder)

    # ---- What arrives ----

    def on_signal(self, number: int) -> None:
        if number == signal.SIGCHLD:
            self._reap()
            self._answer_profiles()
        elif not self.stopping:
            self.event("stopping", reason=signal.Signals(number).name)
            self.request_stop()

    def _wake_reaper(self) -> None:
        """Called when a thread, or a process of the fork server, has ended: as SIGCHLD."""
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
                case [b"ask-reload", request]:
                    answer = self._on_reload_request(msgpack.unpackb(request))
                case [b"ask-restart", request]:
                    answer = self._on_restart_request(request)
                case [b"ask-order", request]:
                    answer = self._on_order(*msgpack.unpackb(request))
                case [b"ask-profile", request]:
                    reason = self._on_profile_request(routing_id, request)
                    answer = ["", reason] if reason else None
                case [kind, *rest]:
                    self._on_actor(routing_id, kind, rest)
            if answer is not None:
                self.send(self._control, [routing_id, msgpack.packb(answer)])

    def _on_actor(self, name: bytes, kind: bytes, rest: list[bytes]) -> None:
        for member in self._members:
            if name != member.routing_id:
                continue
            member.reported_ms = monotonic_ms()
            if kind == b"status":
                member.status = msgpack.unpackb(rest[0])
                self._commits.add([member.status], member.reported_ms)
            elif kind == b"ready" and member.state == "starting":
                self._on_ready(member, member.reported_ms)
            elif kind == b"adopted" and member.unit.order == UPDATE:
                self._on_adopted(member)

    def _on_ready(self, member: Member, now_ms: int) -> None:
        member.state = "ready"
        self.event("ready", **member.words, ms=now_ms - member.started_ms)
        if member.unit.is_ready:
            member.unit.was_ready = member.unit.proved = True
            member.unit.ready_ms = now_ms
            self._check_adopted()
        self._check_complete(now_ms)

    def _check_complete(self, now_ms: int) -> None:
        """Reports all-ready once every unit that was not given up has been ready."""
        units = [unit for unit in self.units if not (unit.given_up or unit.order == STOP)]
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
        self._notifier.ready()

    # ---- Requests about one unit or process ----

    def _unit(self, node: str, name: str) -> Unit | None:
        found = (it for it in self.units if (it.node.name, it.plan.name) == (node, name))
        return next(found, None)

    def _on_reload_request(self, dry: bool) -> dict[str, Any]:
        """What a reload would change here. Unless it is dry, and if no unit needs a step, the
        supervisor has the new topology at once."""
        if self._source is None:
            return {"problem": "the supervisor has no topology to read"}
        try:
            reading = self._source.read()
        except OperatorError as error:
            return {"problem": str(error)}
        refused = self._source.refusals(reading, self._cluster_members())
        steps = steps_to(reading, self.units)
        answer = {
            "problem": "",
            "fingerprint": reading.fingerprint,
            "changes": self._source.changes(reading),
            "refused": refused,
            "steps": steps,
        }
        if not dry and not refused:
            self._check_adopted()
        return answer

    def _cluster_members(self) -> set[str]:
        """The members by the log of the nodes here."""
        return {name for it in self._members for name in it.status.get("members", ())}

    def _check_adopted(self) -> None:
        """Once all units have the last reading of the topology, it is the one that runs."""
        if self._source is None or self._source.is_adopted or self.stopping:
            self._end_reload()
            return
        reading = self._source.latest
        if not all(it.is_settled for it in self.units) or steps_to(reading, self.units):
            return
        keys = [change.key for change in self._source.changes(reading)]
        self._source.adopt(reading)
        self._leave_topology()
        self._end_reload()
        self.nodes = [reading.nodes.get(node.name, node) for node in self.nodes]
        for unit in self.units:
            unit.node = reading.nodes.get(unit.node.name, unit.node)
        self.event("reloaded", topology=self.options.topology, changed=",".join(keys) or "-")

    def _end_reload(self) -> None:
        if self._reload_ms is not None:
            self._reload_ms = None
            self._notifier.ready()

    def _read(self, expected: str = "") -> Reading | None:
        """The topology as its file says now. Raises OperatorError if nodes that run can't have
        it."""
        if self._source is None:
            return None
        reading = self._source.read(expected)
        for place, problem, way_out in self._source.refusals(reading, self._cluster_members()):
            raise OperatorError(place, problem, way_out)
        return reading

    def _on_restart_request(self, request: bytes) -> str:
        """Begins to restart a unit with the topology as it is now, also one that was given up, or
        to update it if that is enough for a reload; starts a unit that is new, stops one that is
        gone. Returns '' or why not."""
        node, name, *expected = msgpack.unpackb(request)
        try:
            reading = self._read(*expected)
        except OperatorError as error:
            return str(error)
        unit = self._unit(node, name)
        order, problem = RESTART, f"node {node} has no unit {name} here"
        if reading is not None and node in self.run_dirs:
            plan = reading.nodes.get(node)
            new = next((it for it in plan.units if it.name == name), None) if plan else None
            if unit is None and plan and new:
                unit = self._add_unit(plan, new)
            elif unit is not None and plan and new:
                unit.next = plan, new
                if expected and unit.is_ready and not unit.order:
                    order = order_for(unit.node, plan, unit.plan) or RESTART
            elif unit is not None and expected:
                order = REMOVE
            else:
                problem = f"the topology has no {name} of {node}; `supervisor reload` stops it"
                unit = None
        if unit is None or self.stopping:
            return problem
        if expected and self._reload_ms is None:
            self._notifier.reloading()
        self._reload_ms = monotonic_ms() if expected else self._reload_ms
        if order == UPDATE:
            self._update(unit)
        else:
            event = "restarting" if unit.children else "starting"
            self.event(event, node=node, unit=name, reason="asked")
            self._order(unit, order)
        return ""

    def _update(self, unit: Unit) -> None:
        """Gives its actors their next setup. If they have not adopted it in time, they restart."""
        unit.adopt_plan(data_dir.make)
        unit.give(UPDATE, monotonic_ms())
        unit.updating = {member.plan.name for member in unit.members}
        for member in unit.members:
            setup = self._setup(unit, member).to_json().encode()
            self.send(self._control, [member.routing_id, b"setup", setup])

    def _on_adopted(self, member: Member) -> None:
        unit = member.unit
        unit.updating.discard(member.plan.name)
        if not unit.updating:
            unit.order, unit.proved = "", True
            self.event("updated", node=unit.node.name, unit=unit.plan.name)
            self._check_adopted()

    def _on_order(self, verb: str, node: str, names: list[str]) -> str:
        """Stops units until they are started, or starts units that were stopped. Returns '' or
        why not."""
        units = [unit for name in names if (unit := self._unit(node, name))]
        if self.stopping or len(units) != len(names):
            return f"node {node} has not all of these units here: {', '.join(names)}"
        if verb == "start":
            packed = (msgpack.packb([node, it.plan.name]) for it in units if it.order == STOP)
            return next((why for it in packed if (why := self._on_restart_request(it))), "")
        for unit in units:
            self.event("stopping", node=node, unit=unit.plan.name, reason="asked")
            unit.give(STOP, monotonic_ms())
        for unit in units:
            self._order(unit, STOP)
        return ""

    def _order(self, unit: Unit, order: str) -> None:
        now_ms = monotonic_ms()
        unit.give(order, now_ms)
        if unit.children:
            self._continue_order(unit, now_ms)
        else:
            self._on_order_done(unit, now_ms)

    def _continue_order(self, unit: Unit, now_ms: int) -> None:
        """Units of a node that stop together stop by rank, as at the end of the supervisor."""
        if unit.order == UPDATE:
            if now_ms - unit.order_ms >= STOP_KILL_MS:
                self.event("restarting", node=unit.node.name, unit=unit.plan.name, reason="hangs")
                self._order(unit, RESTART)
            return
        node, elapsed_ms = unit.node.name, now_ms - unit.order_ms
        together = [it for it in self.units if it.node.name == node and it.order == STOP]
        members = [member for it in together for member in it.members]
        if unit.order != STOP:
            stop_members(unit.members, elapsed_ms)
        else:
            stop_members(members, elapsed_ms, 1 if elapsed_ms >= STOP_NEXT_MS else 0)

    def _on_order_done(self, unit: Unit, now_ms: int) -> None:
        """No actor of the unit runs any more."""
        if unit.order == RESTART:
            unit.restart_ms = now_ms
        elif unit.order == STOP:
            unit.set_state("stopped")
            self.event("stopped", node=unit.node.name, unit=unit.plan.name)
        else:
            self.units.remove(unit)
            for member in unit.members:
                member.log.close()
            self._check_adopted()
        self._note(unit.node.name)

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
        if unit.order == UPDATE:
            unit.order = ""  # It starts again with the new settings.
        child.read_log()
        self.unwatch(child.log_fd)
        child.close()
        member.child = None
        member.state = "stopping" if unit.order else "exited"  # Other actors of it may run yet.
        member.status = {}
        self.event("exited", **words, **_cause(code))
        if not (self.stopping or unit.failed or unit.order):
            self._show_tail(member, child, words)
            unit.failed = True
            unit.fault_code, unit.fault_role = code, member.plan.role
            unit.fault = child.tail[-1] if child.tail else f"{member.plan.name} ended"
        if self.stopping:
            return
        if unit.order:
            self._continue_order(unit, monotonic_ms())
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
        if unit.order:
            self._on_order_done(unit, now_ms)
            return
        if unit.given_up:  # Together with its node.
            unit.set_state("given-up")
            return
        if unit.ready_ms is not None and now_ms - unit.ready_ms >= HEALTH_MS:
            unit.failures = 0
        unit.failures += 1
        words = {"node": unit.node.name, "unit": unit.plan.name}
        if unit.fault_code in (EXIT_SETUP, EXIT_DAMAGED) and not unit.proved:
            self._give_up(unit, "can't start", unit.fault_code)
        elif unit.failures > len(BACKOFF_MS):
            self._give_up(unit, f"failed {unit.failures} times in a row", EXIT_BROKEN)
            if unit.proved and unit.fault_code != EXIT_DAMAGED and not self.stopping:
                unit.restart_ms = now_ms + RETRY_MS  # Its disk may have been mended.
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
        for pid, topology, what in users_of(unit.fault, self.options.run_dir):
            way_out = f"end it: supervisor stop {shlex.quote(topology)}"
            self._error(f"supervisor {pid} with {topology} has {what}; {way_out}")
        self.exit_code = code
        self.event("stopping", reason="start failed")
        self.request_stop()

    def _leave_out(self, unit: Unit) -> bool:
        """Continues without a unit whose data is damaged; returns whether any unit is left.

        A damaged log takes its whole node out: the other units work on the same directory.
        """
        for other in self.units:
            if (
                other.node.name == unit.node.name
                and not other.given_up
                and unit.fault_role in LOG_ROLES
            ):
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
        if self._notifier.is_heard and now_ms >= self._notify_ms:
            self._notify(now_ms)
        for unit in self.units:
            if unit.restart_ms is not None and now_ms >= unit.restart_ms:
                unit.restarts += unit.failed  # Not those that an operator asked for.
                unit.given_up = ""
                self._start_unit(unit)
                break  # The next one after what has arrived: each may take long on a busy machine.
            if unit.order and unit.children:
                self._continue_order(unit, now_ms)

    def deadline_ms(self) -> int | None:
        soon_ms = monotonic_ms() + 50
        if self.stopping:
            return soon_ms
        due = [unit.restart_ms for unit in self.units if unit.restart_ms]
        due += [
            max(unit.order_ms + STOP_KILL_MS, soon_ms)
            for unit in self.units
            if unit.order and unit.children
        ]
        due += [self._notify_ms] * self._notifier.is_heard
        return min(due, default=None)

    def _notify(self, now_ms: int) -> None:
        """Shows the service manager how the processes do. It hears that this one is alive only
        while each actor that is ready reports."""
        self._notify_ms = now_ms + min(NOTIFY_MS, self._notifier.watchdog_ms // 2 or NOTIFY_MS)
        self._notifier.show(cluster_status(self.report()).summary)
        if self._reload_ms is not None and now_ms - self._reload_ms > RELOAD_MS_MAX:
            self._end_reload()
        ready = [member for member in self._members if member.state == "ready"]
        silent_ms = max((now_ms - member.reported_ms for member in ready), default=0)
        if silent_ms <= self._notifier.watchdog_ms:
            self._notifier.alive(now_ms)

    # ---- Stop ----

    def on_stop_requested(self) -> None:
        self._stop_start_ms = monotonic_ms()
        self._notifier.stopping()
        self._continue_stop(self._stop_start_ms)

    def drained(self) -> bool:
        return not any(unit.children for unit in self.units)

    def _continue_stop(self, now_ms: int) -> None:
        elapsed_ms = now_ms - self._stop_start_ms
        stop_members(self._members, elapsed_ms, 1 if elapsed_ms >= STOP_NEXT_MS else 0)

    def _end(self) -> None:
        self._profiles.stop()
        left = [child for unit in self.units for child in unit.children]
        for child in left:
            child.kill()
        if self._forks is not None:
            self._forks.close()
        if self._stop_start_ms:
            self.event("stopped", ms=monotonic_ms() - self._stop_start_ms)
        self._notifier.close()
        for run_dir in self.run_dirs.values():
            run_dir.release()
        if left and self.options.one_process:
            os._exit(EXIT_BROKEN)  # A thread that does not end can't be killed otherwise.
        self.close_sockets()

    # ---- Reports ----

    def report(self) -> list[dict[str, Any]]:
        """One map for each process, itself first: what `supervisor status` shows."""
        now_ms, topology = monotonic_ms(), dict[str, Any]()
        if self._source is not None:
            topology["topology"] = self._source.status(self._cluster_members())
        rows: list[dict[str, Any]] = [
            {
                "node": self.nodes[0].name if len(self.nodes) == 1 else None,
                "nodes": [node.name for node in self.nodes],
                "security": {
                    node.name: {"enforced": not node.reports_only, **node.open_endpoints._asdict()}
                    for node in self.nodes
                },
                "role": "supervisor",
                "name": "supervisor",
                "pid": os.getpid(),
                "version": __version__,
                "one_process": self.options.one_process,
                "state": "stopping" if self.stopping else "ready",
                "restarts": 0,
                "uptime": round((now_ms - self._start_ms) / 1000, 3),
                "commits_before": self._commits.known(now_ms),
                **topology,
            }
        ]
        rows += (self._row(member, now_ms) for member in self._members)
        add_lag(rows)
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
            "epoch": unit.epoch,  # It grows with each start.
            "uptime": round(uptime_ms / 1000, 3),
        }
        if unit.given_up:
            row["reason"] = unit.given_up
        if unit.order == UPDATE:
            row["updating"] = True
        return {**member.status, **row}

    def event(self, event: str, **values: object) -> None:
        """Writes a lifecycle line to the supervisor log of its node, and to stdout unless it only
        says how far the start is, or the stop after a failed start."""
        line = format_event(event, values)
        stamped = f"{timestamp()} {line}\n".encode()
        node = values.get("node")
        for name, log in self._logs.items():
            if node in (None, name):
                log.write(stamped)
        progress = event in PROGRESS or (self.stopping and event == "exited")
        if self._complete or self.options.verbose or not progress:
            write_if_writable(1, f"{line}\n")

    def _error(self, line: str) -> None:
        write_if_writable(2, f"supervisor: {line}\n")


def _cause(code: int) -> dict[str, object]:
    if code >= 0:
        return {"code": code}
    return {"signal": signal.Signals(-code).name}
