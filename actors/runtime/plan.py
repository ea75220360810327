"""The actors of a node, and which of them restart together. It starts no process."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import NamedTuple

from ...storage.log.hard_state import PATH as HARD_STATE
from ..errors import OperatorError
from ..topology.farm import farm_directory, initial_servers
from ..topology.security import OpenEndpoints
from ..topology.settings import NodeSettings
from ..topology.topology import Topology
from .setup import ACTORS, worker_names


class Role(NamedTuple):
    """What all actors of a role have in common."""

    module: str  # Below the package; it holds one subclass of Actor.
    stop_rank: int  # SIGTERM goes to rank 0 first; higher ranks serve it until it has ended.
    folder: str = ""  # Of the node's data directory.
    package: str = ACTORS
    # Settings whose new values it adopts while it runs (Actor.on_settings_changed); others of those
    # that it reads restart it.
    adopts: tuple[str, ...] = ()


# A name, and no import: nothing below the console depends on it.
WEB = f"{ACTORS.rpartition('.')[0]}.console.web"
ROLES = {
    "broker": Role("broker.broker", 0),
    "farm_server": Role("farm.server", 0),
    "job_server": Role("jobs.server", 1),
    "log_writer": Role("raft.log_writer", 1, "raft"),
    "metrics": Role("metrics.server", 1),
    "raft_peer": Role("raft.peer", 0, "raft"),
    "snapshot_sender": Role("raft.snapshot_sender", 1, "raft"),
    "spark_job": Role("jobs.spark_job", 0),
    "state_machine": Role("raft.state_machine", 1, "raft"),
    "table_worker": Role("tables.worker", 1, "raft"),
    "web": Role(
        "server", 1, package=WEB,
        adopts=("web.brokers", "web.logs", "web.server_keys", "web.tables"),
    ),
    "zerodb_server": Role("tables.server", 0),
    "zre_beacon": Role("zre.beacon", 1),  # It sends zre_node's goodbye.
    "zre_log": Role("zre.log", 0),
    "zre_node": Role("zre.node", 0, adopts=("node.broker", "node.farm", "node.zerodb")),
}  # fmt: skip
# Of the parts that an extra of the same name brings: its setting, and packages.
EXTRAS = {
    "metrics": ("metrics", ("prometheus_client",)),
    "web": ("web.address", ("starlette", "uvicorn")),
}
LOG_ROLES = ("raft_peer", "log_writer")  # Damage to their data takes the whole node out.


class ActorPlan(NamedTuple):
    """One actor: its module, and its setup besides that of its node."""

    role: str
    name: str
    module: str
    data_dir: str
    stop_rank: int


class UnitPlan(NamedTuple):
    """Actors that start and end together."""

    node: str
    name: str
    actors: tuple[ActorPlan, ...]


class NodePlan(NamedTuple):
    name: str
    cluster: str
    data_dir: str
    settings: NodeSettings
    places: dict[str, str]
    units: tuple[UnitPlan, ...]
    open_endpoints: OpenEndpoints = OpenEndpoints()
    new_farms: tuple[str, ...] = ()  # Farms that start now; empty once its units have been ready.

    @property
    def reports_only(self) -> bool:
        """Whether messages without a grant are accepted, and only reported."""
        return self.settings.security is not None and not self.settings.security.enforce


def node_plans(topology: Topology, nodes: Sequence[str], one_process: bool) -> list[NodePlan]:
    """The actors of all nodes that one supervisor runs.

    A farm is new when all its initial servers are here and none has a hard state. Only the
    supervisor of all of them can decide that.

    Raises OperatorError if a package that a node needs is not installed.
    """
    begins = []
    for name, farm in topology.farms.items():
        ids = initial_servers(farm)
        homes = [farm_directory(topology.data_dir / farm.servers[each], name) for each in ids]
        is_ours = all(farm.servers[each] in nodes for each in ids)
        if is_ours and not any((home / HARD_STATE).exists() for home in homes):
            begins.append(name)
    plans = [node_plan(topology, node, one_process) for node in nodes]
    for plan in plans:
        _check_packages(plan)
    return [plan._replace(new_farms=tuple(begins)) for plan in plans]


def _check_packages(plan: NodePlan) -> None:
    roles = {actor.role for unit in plan.units for actor in unit.actors}
    for extra in roles & EXTRAS.keys():
        setting, packages = EXTRAS[extra]
        for package in packages:
            if find_spec(package) is None:
                problem = f"`{extra}` needs {package}, which is not installed"
                way_out = f"pip install 'kelek[{extra}]'"
                raise OperatorError(plan.places.get(setting, setting), problem, way_out)


def node_plan(topology: Topology, node: str, one_process: bool) -> NodePlan:
    """The actors of one node.

    Peer and writer are one restart unit: a message between them dies with either. In one process
    the whole node is one unit: an inproc pipe never connects a second time.
    """
    data_dir, settings = topology.data_dir / node, topology.node_settings(node)

    def unit(name: str, actors: Sequence[str]) -> UnitPlan:
        plans = []
        for actor in actors:
            role = actor.partition(".")[0]
            its = ROLES[role]
            module, path = f"{its.package}.{its.module}", str(data_dir / its.folder)
            plans.append(ActorPlan(role, actor, module, path, its.stop_rank))
        return UnitPlan(node, name, tuple(plans))

    peer = [*["log_writer"] * (topology.log.writer == "process"), "raft_peer"]
    alone = ["snapshot_sender", "state_machine"]
    own = topology.nodes[node]
    if own.zerodb:
        alone += [*worker_names(settings), "zerodb_server", "job_server"]
        alone += ["spark_job"] if topology.zerodb.spark else []
    if own.broker:
        alone.append("broker")
    if own.zre:
        alone += ["zre_beacon", "zre_node"]
        alone += ["zre_log"] if own.zre.log_service != "off" else []
    if own.farm:
        alone.append("farm_server")
    if own.metrics:
        alone.append("metrics")
    if own.web:
        alone.append("web")
    if one_process:
        units = [unit("node", [*peer, *alone])]
    else:
        units = [unit("raft", peer), *(unit(name, [name]) for name in alone)]
    places = topology.setting_places(node)
    return NodePlan(
        node,
        topology.cluster,
        str(data_dir),
        settings,
        places,
        tuple(units),
        topology.open_endpoints(node),
    )
