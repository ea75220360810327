"""The actors of a node, and which of them restart together. It starts no process."""

from collections.abc import Sequence
from typing import NamedTuple

from ...storage.log.hard_state import PATH as HARD_STATE
from ..topology.farm import farm_directory, initial_servers
from ..topology.settings import NodeSettings
from ..topology.topology import Topology
from .children import ACTORS
from .setup import TABLE_WORKER, worker_names

# The module of each role, below kelek.actors; it holds one subclass of Actor.
MODULES = {
    "broker": "broker.broker",
    "farm_server": "farm.server",
    "job_server": "jobs.server",
    "spark_job": "jobs.spark_job",
    "log_writer": "raft.log_writer",
    "raft_peer": "raft.peer",
    "snapshot_sender": "raft.snapshot_sender",
    "state_machine": "raft.state_machine",
    "table_worker": "tables.worker",
    "zerodb_server": "tables.server",
    "zre_beacon": "zre.beacon",
    "zre_log": "zre.log",
    "zre_node": "zre.node",
}
LOG_ROLES = ("raft_peer", "log_writer")  # Damage to their data takes the whole node out.


class ActorPlan(NamedTuple):
    """One actor: its module, and its setup besides that of its node."""

    role: str
    name: str
    module: str  # For `python -m`.
    data_dir: str
    stop_rank: int  # SIGTERM goes to rank 0 first; higher ranks serve it until it has ended.


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
    new_farms: tuple[str, ...] = ()  # Farms that start now; empty once its units have been ready.


def _actor(role: str, data_dir: str, stop_rank: int, name: str = "") -> ActorPlan:
    return ActorPlan(role, name or role, f"{ACTORS}.{MODULES[role]}", data_dir, stop_rank)


def node_plans(topology: Topology, nodes: Sequence[str], one_process: bool) -> list[NodePlan]:
    """The actors of all nodes that one supervisor runs.

    A farm is new when all its initial servers are here and none has a hard state. Only the
    supervisor of all of them can decide that.
    """
    begins = []
    for name, farm in topology.farms.items():
        ids = initial_servers(farm)
        homes = [farm_directory(topology.data_dir / farm.servers[each], name) for each in ids]
        is_ours = all(farm.servers[each] in nodes for each in ids)
        if is_ours and not any((home / HARD_STATE).exists() for home in homes):
            begins.append(name)
    plans = [node_plan(topology, node, one_process) for node in nodes]
    return [plan._replace(new_farms=tuple(begins)) for plan in plans]


def node_plan(topology: Topology, node: str, one_process: bool) -> NodePlan:
    """The actors of one node.

    Peer and writer are one restart unit: a message between them dies with either. In one process
    the whole node is one unit: an inproc pipe never connects a second time.
    """
    data_dir = topology.data_dir / node
    raft_dir = str(data_dir / "raft")
    peer = [_actor("raft_peer", raft_dir, 0)]
    if topology.log.writer == "process":
        peer.insert(0, _actor("log_writer", raft_dir, 1))
    state_machine = [_actor("state_machine", raft_dir, 1)]
    snapshot_sender = [_actor("snapshot_sender", raft_dir, 1)]
    alone = [*snapshot_sender, *state_machine]
    if topology.nodes[node].zerodb:
        names = worker_names(topology.node_settings(node))
        alone += [_actor(TABLE_WORKER, raft_dir, 1, name) for name in names]
        alone.append(_actor("zerodb_server", str(data_dir), 0))
        alone.append(_actor("job_server", str(data_dir), 1))
        if topology.zerodb.spark:
            alone.append(_actor("spark_job", str(data_dir), 0))
    if topology.nodes[node].broker:
        alone.append(_actor("broker", str(data_dir), 0))
    zre = topology.nodes[node].zre
    if zre:
        # zre_beacon sends zre_node's goodbye.
        alone.append(_actor("zre_beacon", str(data_dir), 1))
        alone.append(_actor("zre_node", str(data_dir), 0))
        if zre.log_service != "off":
            alone.append(_actor("zre_log", str(data_dir), 0))
    if topology.nodes[node].farm:
        alone.append(_actor("farm_server", str(data_dir), 0))
    units: tuple[UnitPlan, ...]
    if one_process:
        units = (UnitPlan(node, "node", (*peer, *alone)),)
    else:
        units = (
            UnitPlan(node, "raft", tuple(peer)),
            *(UnitPlan(node, actor.name, (actor,)) for actor in alone),
        )
    return NodePlan(
        node,
        topology.cluster,
        str(data_dir),
        topology.node_settings(node),
        topology.setting_places(node),
        units,
    )
