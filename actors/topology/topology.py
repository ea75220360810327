"""Which processes there are and what each is told: topology.yaml, checked. It starts nothing.

Every problem is an OperatorError whose place is FILE:LINE:COL: key.path.
"""

from pathlib import Path
from typing import Any, NamedTuple

from ...protocols.zerodb.wire.values import BROKER_TABLE
from ..errors import OperatorError
from ..runtime import run_dir
from . import yaml_tree
from .farm import FARM_KEYS, NODE_FARM_KEYS, check_farms, node_options, read_farms
from .schema import (
    GIB,
    KIB,
    MIB,
    TABLE_MAX,
    Key,
    SchemaReader,
    boolean_key,
    check_name,
    choice_key,
    count_key,
    duration_ms_key,
    duration_s_key,
    name_key,
    path_key,
    range_ms_key,
    section_key,
    size_key,
    tables_key,
    text_key,
    url_key,
)
from .yaml_tree import Mapping, Node, Scalar
from .zre import NODE_ZRE_KEYS, ZRE_KEYS

NODES_MAX = 64
SERVICES_MAX = 1024  # That the topology names.
OWN_SERVICES = ("mmi.", "titanic.", "klk.")


class NodeTopology(NamedTuple):
    """One node's part."""

    name: str
    url: str
    broadcast_url: str
    peer_url: str
    dialect: str
    zerodb: dict[str, str]  # The urls of its doors to the tables; empty: it has none.
    broker: dict[str, str]  # The urls of its broker; empty: it has none.
    zre: dict[str, str]  # How other nodes find it; empty: they don't.
    farm: dict[str, Any]  # How it serves farms; empty: it does not.


class Topology(NamedTuple):
    """A topology with all defaults filled in."""

    path: str  # As the operator wrote it.
    cluster: str
    data_dir: Path
    run_dir: Path
    state_machine: str
    raft: dict[str, Any]
    log: dict[str, Any]
    clients: dict[str, Any]
    zerodb: dict[str, Any]
    broker: dict[str, Any]
    zre: dict[str, Any]
    farms: dict[str, dict[str, Any]]  # By name.
    nodes: dict[str, NodeTopology]
    places: dict[str, str]  # key.path -> FILE:LINE:COL

    @property
    def own_nodes(self) -> list[str]:
        """The nodes that a supervisor runs: not those of another implementation."""
        return [name for name, node in self.nodes.items() if node.dialect == "kelek"]

    def place(self, key: str) -> str:
        """FILE:LINE:COL: key.path, or the file alone for a value that is a default."""
        return f"{self.places[key]}: {key}" if key in self.places else f"{self.path}: {key}"

    def options(self, node: str) -> dict[str, Any]:
        """What the actors of a node are told."""
        own = self.nodes[node]
        members = {
            name: {
                "url": other.url,
                "broadcast_url": other.broadcast_url,
                "peer_url": other.peer_url,
                "dialect": other.dialect,
            }
            for name, other in self.nodes.items()
        }
        return {
            "url": own.url,
            "broadcast_url": own.broadcast_url,
            "peer_url": own.peer_url,
            "members": members,
            "state_machine": self.state_machine,
            **({"zerodb": self._zerodb(own)} if own.zerodb else {}),
            **({"broker": self._broker(own)} if own.broker else {}),
            **({"zre": {**self.zre, **own.zre}} if own.zre else {}),
            **({"farm": self._farm(node)} if own.farm else {}),
            **self.raft,
            **self.log,
        }

    @property
    def has_durable_services(self) -> bool:
        return any(service["durable"] for service in self.broker["services"].values())

    def _zerodb(self, own: NodeTopology) -> dict[str, Any]:
        """With the tables that processes of the nodes alone write, beside the reserved numbers."""
        reserved = [self.broker["store"]["table"]] if self.has_durable_services else []
        if any(node.zre.get("log_service") == "table" for node in self.nodes.values()):
            reserved.append(self.zre["log_table"])
        return {**self.zerodb, **own.zerodb, "reserved": reserved}

    def _broker(self, own: NodeTopology) -> dict[str, Any]:
        """With its own node's tables: there durable requests are kept, and there it is known."""
        urls = [url for url in [own.zerodb.get("url", "")] if url]
        return {**self.broker, **own.broker, "store": {**self.broker["store"], "urls": urls}}

    def _farm(self, node: str) -> dict[str, Any]:
        own = {name: other.farm for name, other in self.nodes.items() if other.farm}
        return node_options(node, own, self.farms, run_dir.home(self.path))

    def option_places(self, node: str) -> dict[str, str]:
        """Where the options of a node stand in the file."""
        keys = {
            **{key: f"nodes.{node}.{key}" for key in NODE_KEYS},
            **{key: f"raft.{key}" for key in RAFT_KEYS},
            **{key: f"log.{key}" for key in LOG_KEYS},
            **{f"zerodb.{key}": f"zerodb.{key}" for key in ZERODB_KEYS},
            **{f"zerodb.{key}": f"nodes.{node}.zerodb.{key}" for key in NODE_ZERODB_KEYS},
            **{f"broker.{key}": f"broker.{key}" for key in BROKER_KEYS},
            **{f"broker.{key}": f"nodes.{node}.broker.{key}" for key in NODE_BROKER_KEYS},
            **{f"zre.{key}": f"zre.{key}" for key in ZRE_KEYS},
            **{f"zre.{key}": f"nodes.{node}.zre.{key}" for key in NODE_ZRE_KEYS},
            **{f"farm.{key}": f"nodes.{node}.farm.{key}" for key in NODE_FARM_KEYS},
            **{
                f"farms.{name}.{key}": f"farms.{name}.{key}"
                for name in self.farms
                for key in FARM_KEYS
            },
            "data_dir": "data",
            "state_machine": "state_machine",
        }
        return {option: self.place(key) for option, key in keys.items()}


NODE_ZERODB_KEYS = {
    "url": url_key(""),
    "pull_url": url_key(""),
    "sub_url": url_key("", multicast=True),
    "log_url": url_key(""),
    "jobs_url": url_key(""),
}

NODE_BROKER_KEYS = {
    "clients_url": url_key(),
    "workers_url": url_key(),
}

NODE_KEYS = {
    "url": url_key(),
    "broadcast_url": url_key(""),
    "peer_url": url_key(""),
    "dialect": choice_key("kelek", "text", "node", default="kelek"),
    "zerodb": section_key(NODE_ZERODB_KEYS, default={}),
    "broker": section_key(NODE_BROKER_KEYS, default={}),
    "zre": section_key(NODE_ZRE_KEYS, default={}),
    "farm": section_key(NODE_FARM_KEYS, default={}),
}

# docs/topology.md has the same table in words; a test holds them together.
RAFT_KEYS = {
    "election_timeout_ms": range_ms_key(20, 60_000, (200, 300)),
    "heartbeat_ms": duration_ms_key(5, 30_000, 70),
    "rpc_timeout_ms": duration_ms_key(5, 30_000, 50),
    "append_timeout_ms": duration_ms_key(5, 30_000, 100),
    "append_inflight_max": count_key(1, 1024, 4),
    "append_bytes_max": size_key(64 * KIB, 16 * MIB, MIB),
    "broadcast_heartbeat_ms": duration_ms_key(10, 60_000, 500),
    "entry_bytes_max": size_key(1, 10 * MIB, 10 * MIB),
    "inflight_max": count_key(1, 16_777_216, 65_536),
    "inflight_bytes_max": size_key(MIB, 4 * GIB, 64 * MIB),
    "reqids_max": count_key(1000, 1_000_000_000, 10_000_000),
    "update_ttl_s": duration_s_key(60, 60_000, 8 * 3600),
    "pre_vote": boolean_key(True),
    "check_quorum": boolean_key(True),
}

LOG_KEYS = {
    "segment_bytes": size_key(64 * KIB, GIB, 16 * MIB),
    "snapshot_entries": count_key(0, 1_000_000_000, 4_000_000),
    "snapshot_bytes": size_key(0, 1024 * GIB, GIB),
    "snapshot_behind": count_key(0, 1_000_000_000, 1_000_000),
    "segment_io": choice_key("pwrite", "mmap", default="pwrite"),
    "writer": choice_key("process", "thread", "inline", default="thread"),
}

CLIENT_KEYS = {
    "timeout_ms": duration_ms_key(10, 600_000, 500),
    "election_grace_ms": duration_ms_key(0, 600_000, 300),
}

SPARK_KEYS = {
    "threshold_bytes": size_key(0, 1024 * GIB, 256 * MIB),
    "master": text_key("a master of Spark", "local[*,4]"),
    "memory": size_key(512 * MIB, 1024 * GIB, GIB),
}

ZERODB_KEYS = {
    "workers": count_key(1, 16, 1),
    "local": tables_key(),
    "stale": choice_key("refused", "allowed", default="refused"),
    "request_timeout_ms": duration_ms_key(50, 600_000, 5000),
    "response_bytes_max": size_key(MIB, 512 * MIB, 64 * MIB),
    "chunk_pairs": count_key(1, 1_000_000, 1000),
    "job_idle_s": duration_s_key(1, 86_400, 60),
    "cache_bytes": size_key(MIB, 1024 * GIB, 256 * MIB),
    "write_buffer_bytes": size_key(MIB, 1024 * GIB, 256 * MIB),
    "open_on_the_fly": boolean_key(True),
    "mapper": choice_key("off", "wasm", default="off"),
    "allow_native": boolean_key(False),
    "spark": section_key(SPARK_KEYS, default={}),
}

SERVICE_KEYS = {
    "durable": boolean_key(False),
    "reply_ttl_s": duration_s_key(1, 30 * 86_400, 60),
}

STORE_KEYS = {
    "table": count_key(0, TABLE_MAX, BROKER_TABLE),
    "bytes_max": size_key(MIB, 1024 * GIB, 512 * MIB),
    "request_ttl_s": duration_s_key(1, 30 * 86_400, 86_400),
    "lease_ms": duration_ms_key(500, 600_000, 3000),
}


def _read_services(reader: SchemaReader, node: Node, key: str) -> dict[str, dict[str, Any]]:
    """Settings by the name of a service, which is no YAML word of ours: it may hold blanks."""
    mapping = reader.mapping(node, key, "services")
    services: dict[str, dict[str, Any]] = {}
    for word, value in mapping.entries:
        name, path = word.text, f"{key}.{word.text}"
        if len(services) >= SERVICES_MAX:
            reader.fail(word.mark, key, f"more than {SERVICES_MAX} services", "list fewer")
        if not 0 < len(name) <= 255 or not name.isascii() or not name.isprintable():
            way_out = "use 1 to 255 printable characters of ASCII"
            reader.fail(word.mark, key, f"{name!r} is no name of a service", way_out)
        if name.startswith(OWN_SERVICES):
            problem = f"'{name}' is a name of the broker's own services"
            reader.fail(word.mark, key, problem, "choose another one")
        services[name] = reader.section(value, path, SERVICE_KEYS)
    return services


BROKER_KEYS = {
    "interval_ms": duration_ms_key(10, 600_000, 2500),
    "liveness": count_key(2, 100, 4),
    "request_ttl_ms": duration_ms_key(10, 86_400_000, 60_000),
    "inflight_max": count_key(1, 1_000_000, 4096),
    "message_bytes_max": size_key(KIB, 512 * MIB, 64 * MIB),
    "service_bytes_max": size_key(MIB, 1024 * GIB, 256 * MIB),
    "bytes_max": size_key(MIB, 1024 * GIB, GIB),
    "client_header": name_key("KLKC01"),
    "worker_header": name_key("KLKW01"),
    "deadline_header": name_key("KLKD01"),
    "named_header": name_key("KLKN01"),
    "services": Key(_read_services, {}),
    "store": section_key(STORE_KEYS),
}


def _read_nodes(reader: SchemaReader, node: Node, key: str) -> dict[str, NodeTopology]:
    mapping = reader.mapping(node, key, "nodes")
    if not mapping.entries:
        reader.fail(mapping.mark, key, "there is no node", "add `n1:` with its `url:`")
    if len(mapping.entries) > NODES_MAX:
        reader.fail(mapping.mark, key, f"more than {NODES_MAX} nodes", "use more clusters")
    nodes: dict[str, NodeTopology] = {}
    taken: dict[str, str] = {}
    for node_name, value in mapping.entries:
        path = f"{key}.{node_name.text}"
        check_name(reader, node_name, key)
        reader.places[path] = f"{reader.path}:{node_name.mark.line}:{node_name.mark.column}"
        settings = reader.section(value, path, NODE_KEYS)
        if settings["dialect"] == "kelek" and not settings["peer_url"]:
            reader.fail(
                value.mark, path, "key 'peer_url' is missing", "add `peer_url:`, or a `dialect:`"
            )
        _check_zerodb(reader, path, value, settings)
        _check_ours(reader, path, value, settings)
        _check_taken(reader, path, value, taken)
        nodes[node_name.text] = NodeTopology(node_name.text, **settings)
    return nodes


def _check_zerodb(reader: SchemaReader, path: str, node: Node, settings: dict[str, Any]) -> None:
    """A node with tables has a door to them, and is one that we run."""
    if not settings["zerodb"]:
        return
    path = f"{path}.zerodb"
    assert isinstance(node, Mapping)
    mark = next(value.mark for word, value in node.entries if word.text == "zerodb")
    if settings["dialect"] != "kelek":
        reader.fail(mark, path, "this node is not ours", "remove `zerodb:` or `dialect:`")
    doors = [key for key in NODE_ZERODB_KEYS if key != "log_url"]
    if not any(settings["zerodb"][key] for key in doors):
        reader.fail(mark, path, "there is no door", f"add one of {', '.join(doors)}")


def _check_ours(reader: SchemaReader, path: str, node: Node, settings: dict[str, Any]) -> None:
    """A node with a broker, or a farm, or that others shall find, is one that we run."""
    for key in ("broker", "zre", "farm"):
        if settings[key] and settings["dialect"] != "kelek":
            assert isinstance(node, Mapping)
            mark = next(value.mark for word, value in node.entries if word.text == key)
            way_out = f"remove `{key}:` or `dialect:`"
            reader.fail(mark, f"{path}.{key}", "this node is not ours", way_out)


def _check_taken(reader: SchemaReader, path: str, node: Node, taken: dict[str, str]) -> None:
    """No address is bound twice."""
    assert isinstance(node, Mapping)
    for name_, value in node.entries:
        if name_.text in ("zerodb", "broker", "farm"):
            _check_taken(reader, f"{path}.{name_.text}", value, taken)
        if not name_.text.endswith(("url", "listen")) or not isinstance(value, Scalar):
            continue
        other = taken.get(value.text)
        if other and other != f"{path}.clients_url":  # A broker's workers may come there, too.
            line = reader.places[other].split(":")[-2]
            reader.fail(
                value.mark,
                f"{path}.{name_.text}",
                f"{value.text} is taken already by {other} in line {line}",
                "give each its own address",
            )
        taken[value.text] = f"{path}.{name_.text}"


TOP_KEYS = {
    "cluster": name_key(),
    "data": path_key("var"),
    "state_machine": choice_key("broadcast", "digest", default="broadcast"),
    "nodes": Key(_read_nodes),
    "raft": section_key(RAFT_KEYS),
    "log": section_key(LOG_KEYS),
    "clients": section_key(CLIENT_KEYS),
    "zerodb": section_key(ZERODB_KEYS),
    "broker": section_key(BROKER_KEYS),
    "zre": section_key(ZRE_KEYS),
    "farms": Key(read_farms, {}),
}


def load(path: str) -> Topology:
    """Reads and checks a topology. Raises OperatorError with the first problem."""
    reader = SchemaReader(path)
    tree = yaml_tree.load(path)
    if not isinstance(tree, Mapping):
        reader.fail(tree.mark, "", "a topology is a mapping", "write `cluster:` and `nodes:`")
    found = reader.section(tree, "", TOP_KEYS)
    topology = Topology(
        path,
        found["cluster"],
        run_dir.home(path) / Path(found["data"]).expanduser(),
        run_dir.of_topology(path),
        found["state_machine"],
        _raft(found["raft"]),
        found["log"],
        found["clients"],
        found["zerodb"],
        found["broker"],
        found["zre"],
        found["farms"],
        found["nodes"],
        reader.places,
    )
    _check_together(topology)
    return topology


def _raft(found: dict[str, Any]) -> dict[str, Any]:
    """The raft section as its actors read it: a range becomes two options."""
    low, high = found["election_timeout_ms"]
    others = {key: value for key, value in found.items() if key != "election_timeout_ms"}
    return {"election_timeout_ms_min": low, "election_timeout_ms_max": high, **others}


def _check_together(topology: Topology) -> None:
    """What only shows when two values are seen together."""
    low = topology.raft["election_timeout_ms_min"]
    for key in ("heartbeat_ms", "append_timeout_ms"):
        if topology.raft[key] >= low:
            raise OperatorError(
                topology.place(f"raft.{key}"),
                f"{topology.raft[key]} ms is not below the smallest election timeout, {low} ms",
                "make it a third of that",
            )
    headers = [topology.broker[key] for key in BROKER_KEYS if key.endswith("_header")]
    for key in ("worker_header", "deadline_header", "named_header"):
        if headers.count(topology.broker[key]) > 1 or topology.broker[key].startswith("MDP"):
            problem = f"{topology.broker[key]} is a header of others, too"
            raise OperatorError(topology.place(f"broker.{key}"), problem, "choose another one")
    zre = topology.zre
    for key, other in (("silent_ms", "evasive_ms"), ("dead_ms", "silent_ms")):
        if zre[key] <= zre[other]:
            problem = f"{zre[key]} ms is not above `{other}`, {zre[other]} ms"
            raise OperatorError(topology.place(f"zre.{key}"), problem, "make it larger")
    if topology.zerodb["spark"]:
        _check_spark(topology)
    if topology.has_durable_services:
        _check_durable(topology)
    farms = {name: node.farm for name, node in topology.nodes.items()}
    check_farms(topology.farms, farms, topology.place)
    if not topology.own_nodes:
        raise OperatorError(topology.place("nodes"), "no node is ours", "remove a `dialect:`")


def _check_spark(topology: Topology) -> None:
    """What Spark is for, and what its tasks need."""
    if topology.zerodb["mapper"] == "off":
        raise OperatorError(
            topology.place("zerodb.spark"),
            "Spark runs mappers, and they are switched off",
            "add `mapper: wasm` to `zerodb:`, or remove this key",
        )
    for name in topology.own_nodes:
        if topology.nodes[name].zerodb and not topology.nodes[name].zerodb["url"]:
            raise OperatorError(
                topology.place(f"nodes.{name}.zerodb"),
                "key 'url' is missing, and with `zerodb: {spark: ...}` tasks read the tables there",
                "add `url:`",
            )


def _check_durable(topology: Topology) -> None:
    """Where durable requests are kept."""
    durable = [name for name, service in topology.broker["services"].items() if service["durable"]]
    place = topology.place(f"broker.services.{durable[0]}.durable")
    if not any(node.zerodb.get("url") for node in topology.nodes.values()):
        raise OperatorError(
            place,
            "durable requests are kept in a replicated table, and no node has a door to tables",
            "add `zerodb: {url: ...}` to the nodes, or remove this key",
        )
    for name, node in topology.nodes.items():
        if node.broker and not node.zerodb.get("url"):
            raise OperatorError(
                place,
                f"{name} has a broker, which keeps durable requests by its own node's tables, and "
                "none has it",
                f"add `zerodb: {{url: ...}}` to {name}, or remove this key",
            )
    if topology.broker["store"]["table"] in topology.zerodb["local"]:
        raise OperatorError(
            topology.place("broker.store.table"),
            f"table {topology.broker['store']['table']} is local, durable requests need all nodes",
            "choose a table that is not listed in `zerodb: {local: ...}`",
        )
