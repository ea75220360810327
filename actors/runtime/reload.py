"""The topology of a running supervisor: what its file says now, and which units that concerns."""

import os
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from ..errors import OperatorError
from ..topology import topology as topologies
from ..topology.changes import Change, changes, differences, fingerprint, refusals
from ..topology.json_values import encode
from ..topology.schema import Problem
from ..topology.topology import Topology
from .plan import ROLES, NodePlan, UnitPlan, node_plans
from .setup import participants
from .units import RESTART, STOP, UPDATE, Unit

ZRE = ("zre_beacon", "zre_log", "zre_node")
TABLES = ("job_server", "spark_job", "table_worker", "zerodb_server")
# Settings -> the roles that read them; all roles may read the settings that are not here.
# tests/actors/runtime/test_reload.py observes what the actors read.
READERS: dict[str, tuple[str, ...]] = {
    "broker": ("broker",),
    "farm": ("farm_server",),
    "holds_tables": ("raft_peer",),
    "log": ("log_writer", "raft_peer"),
    "members": ("raft_peer", "table_worker", "zerodb_server", "zre_log"),
    "node.broadcast_url": ("raft_peer", "state_machine"),
    "node.broker": ("broker", "zre_node"),
    "node.farm": ("farm_server", "zre_node"),
    "node.metrics": ("metrics",),
    "node.web": ("web",),
    "node.zerodb": ("job_server", "spark_job", "zerodb_server", "zre_node"),
    "node.zre": ZRE,
    "participants": ("raft_peer", "snapshot_sender"),
    "raft": ("raft_peer",),
    "raft.broadcast_heartbeat_ms": ("raft_peer", "state_machine"),
    "raft.entry_bytes_max": ("raft_peer", "zerodb_server"),
    "raft.reqids_max": ("raft_peer", "snapshot_sender"),
    "raft.update_ttl_s": ("raft_peer", "snapshot_sender"),
    "reserved_tables": ("job_server", "zerodb_server"),
    "store_urls": ("broker",),
    "web": ("web",),
    "zerodb": TABLES,
    "zerodb.workers": (*TABLES, "raft_peer", "snapshot_sender"),
    "zre": ZRE,
}


class Step(NamedTuple):
    """What a reload does with a unit: start, stop, restart or update it. An update gives actors
    their new settings while they run."""

    node: str
    unit: str
    verb: str


class Reading(NamedTuple):
    """The topology as its file was at one time."""

    topology: Topology
    fingerprint: str
    nodes: dict[str, NodePlan]  # Those of this supervisor that the file still has.


def readers_of(setting: str) -> tuple[str, ...] | None:
    """The roles that read a setting; None: any role. The longest key of READERS decides."""
    words = setting.split(".")
    prefixes = (".".join(words[:count]) for count in range(len(words), 0, -1))
    return next((READERS[it] for it in prefixes if it in READERS), None)


def order_for(old: NodePlan, new: NodePlan, unit: UnitPlan) -> str:
    """What a unit needs: RESTART, UPDATE if its actors adopt each setting that they read and that
    differs, "" if there is none."""
    if unit not in new.units:
        return RESTART
    concerned = [
        (actor.role, setting)
        for setting, _, _ in differences(_readable(old), _readable(new))
        for actor in unit.actors
        if (readers := readers_of(setting)) is None or actor.role in readers
    ]
    if all(_adopts(role, setting) for role, setting in concerned):
        return UPDATE if concerned else ""
    return RESTART


def _adopts(role: str, setting: str) -> bool:
    return any(f"{setting}.".startswith(f"{key}.") for key in ROLES[role].adopts)


def steps_to(reading: Reading, units: Sequence[Unit]) -> list[Step]:
    """What units need to have a reading: stops first, a server before the processes that use it."""
    planned = {(node.name, it.name) for node in reading.nodes.values() for it in node.units}
    known = {(unit.node.name, unit.plan.name): unit for unit in units}
    gone = [Step(*name, "stop") for name in reversed(known) if name not in planned]
    steps = []
    for node in reading.nodes.values():
        for plan in node.units:
            unit = known.get((node.name, plan.name))
            if unit is None:
                steps.append(Step(node.name, plan.name, "start"))
            elif unit.order != STOP and (order := order_for(unit.node, node, unit.plan)):
                steps.append(Step(node.name, plan.name, order))
    return gone + steps


def _readable(plan: NodePlan) -> dict[str, Any]:
    """All that actors of a node read, with what they derive from several settings."""
    settings = plan.settings
    values: dict[str, Any] = encode(settings)
    return {
        **values,
        "cluster": plan.cluster,
        "data_dir": plan.data_dir,
        "holds_tables": settings.node.zerodb is not None,
        "participants": list(participants(settings)),
    }


class TopologySource:
    """Reads the file of the topology that a supervisor runs.

    running   the last reading that all its units had
    latest    the last reading
    """

    def __init__(self, running: Topology, nodes: Sequence[str], one_process: bool) -> None:
        self._nodes, self._one_process = tuple(nodes), one_process
        self.running = self.latest = self._reading(running)
        self._stamp: tuple[tuple[int, ...], frozenset[str]] | None
        self._stamp = self._stamp_now(), frozenset()
        self._status: dict[str, Any] = {"changed": [], "refused": "", "problem": ""}

    @property
    def is_adopted(self) -> bool:
        return self.latest.fingerprint == self.running.fingerprint

    def _reading(self, found: Topology) -> Reading:
        names = [name for name in self._nodes if name in found.own_nodes]
        plans = node_plans(found, names, self._one_process)
        return Reading(found, fingerprint(found), {plan.name: plan for plan in plans})

    def read(self, expected: str = "") -> Reading:
        """Reads the file. Raises OperatorError if it is broken, or if it differs from the reading
        with the fingerprint `expected`."""
        found = topologies.load(self.running.topology.path)
        if fingerprint(found) != self.latest.fingerprint:
            self.latest = self._reading(found)
        if expected and expected != self.latest.fingerprint:
            problem = "the file has changed since the reload began"
            raise OperatorError(found.path, problem, "run `supervisor reload` again")
        return self.latest

    def changes(self, reading: Reading) -> list[Change]:
        return changes(self.running.topology, reading.topology)

    def refusals(self, reading: Reading, members: Collection[str]) -> list[Problem]:
        """What nodes that run can't adopt: FILE:LINE:COL: key.path, problem, way out."""
        return self._refusals(reading.topology, members)

    def _refusals(self, wanted: Topology, members: Collection[str]) -> list[Problem]:
        known = members or list(self.running.topology.nodes)
        found = refusals(changes(self.running.topology, wanted), known)
        return [(wanted.place(key), problem, way_out) for key, problem, way_out in found]

    def adopt(self, reading: Reading) -> None:
        """All units have this reading."""
        self.running = reading
        self._stamp = None

    def status(self, members: Collection[str] = ()) -> dict[str, Any]:
        """changed: the keys that differ from what runs; refused: why a reload refuses them;
        problem: why the file can't be read.

        Reads the file only if its size or time differs, or the members of the log.
        """
        stamp = self._stamp_now(), frozenset(members)
        if stamp != self._stamp:
            self._stamp = stamp
            keys: list[str] = []
            refused = problem = ""
            try:
                found = topologies.load(self.running.topology.path)
                keys = [change.key for change in changes(self.running.topology, found)]
                if problems := self._refusals(found, members):
                    refused = ": ".join(problems[0][:2])
            except OperatorError as error:
                problem = str(error)
            self._status = {"changed": keys, "refused": refused, "problem": problem}
        return self._status

    def _stamp_now(self) -> tuple[int, ...]:
        try:
            found = os.stat(self.running.topology.path)
        except OSError:
            return ()
        return found.st_ino, found.st_size, found.st_mtime_ns
