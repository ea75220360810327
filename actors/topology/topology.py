"""Loads and checks topology.yaml: the nodes of a cluster and their settings. It starts nothing.

Each problem is an OperatorError whose place is FILE:LINE:COL: key.path.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path

from ..errors import OperatorError
from ..runtime import run_dir
from . import yaml_tree
from .farm import (
    NodeFarmSettings,
    farm_problems,
    farm_server_settings,
    heartbeat_problems,
)
from .schema import Problem, SchemaReader, SectionType, keys_of
from .security import (
    NodeSecurity,
    OpenEndpoints,
    has_curve,
    open_endpoints,
    security_problems,
)
from .settings import (
    NodeAddresses,
    NodeSettings,
    NodeTopology,
    TableEndpoints,
    TopologyFile,
    WebSettings,
)
from .yaml_values import Mapping as YamlMapping

ADDRESSES_PER_NODE = ("url", "broadcast_url", "peer_url", "foreign_url", "foreign_peer_url")
NO_REQUESTS = ("events_url", "foreign_url")  # Addresses that do not serve alone.
HEADERS = ("client_header", "worker_header", "deadline_header", "named_header")


class Topology(TopologyFile):
    """A topology with all defaults filled in."""

    path: str  # As the operator wrote it.
    text: str  # Of the file.
    data_dir: Path
    places: Mapping[str, str]  # key.path -> FILE:LINE:COL
    renamed: tuple[str, ...]  # A line for the operator for each key given by its old name.

    @property
    def run_dir(self) -> Path:
        """The run directory. It is worked out when asked for: its hash loads OpenSSL."""
        return run_dir.of_topology(self.path)

    @property
    def own_nodes(self) -> list[str]:
        """The nodes that a supervisor runs, without those of other implementations."""
        return [name for name, node in self.nodes.items() if node.dialect == "kelek"]

    @property
    def farm_nodes(self) -> dict[str, NodeFarmSettings]:
        """The `farm:` of each node that has one."""
        return {name: node.farm for name, node in self.nodes.items() if node.farm}

    @property
    def has_durable_services(self) -> bool:
        return any(service.durable for service in self.broker.services.values())

    def place(self, key: str) -> str:
        """FILE:LINE:COL: key.path, or the file alone for a key that is not given."""
        return f"{self.places[key]}: {key}" if key in self.places else f"{self.path}: {key}"

    def node_settings(self, node: str) -> NodeSettings:
        """The settings of a node's actors."""
        own = self.nodes[node]
        reserved = [self.broker.store.table] if self.has_durable_services else []
        if any(other.zre and other.zre.log_service == "table" for other in self.nodes.values()):
            reserved.append(self.zre.log_table)
        return NodeSettings(
            node=own,
            members={
                name: NodeAddresses(
                    **{one.name: getattr(other, one.name) for one in fields(NodeAddresses)}
                )
                for name, other in self.nodes.items()
            },
            state_machine=self.state_machine,
            limits=self.limits,
            raft=self.raft,
            log=self.log,
            zerodb=self.zerodb,
            broker=self.broker,
            zre=self.zre,
            reserved_tables=tuple(reserved),
            store_urls=(own.tables_url,) if own.tables_url else (),
            farm=farm_server_settings(node, self.farm_nodes, self.farms, run_dir.home(self.path))
            if own.farm
            else None,
            web=self._web_settings(own) if own.web else None,
            security=self._node_security(node),
        )

    @property
    def server_keys(self) -> dict[str, str]:
        """The public key (Z85) of the server at each url; "": the endpoint has no CURVE."""
        return self._server_keys()

    def _server_keys(self, excluded: str | None = None) -> dict[str, str]:
        """excluded: the section of a node whose endpoints are left out."""
        return {
            url: node.server_key if has_curve(self, name, endpoint, url) else ""
            for name, node in self.nodes.items()
            for endpoint, url in endpoints_of(node)
            if url and endpoint.partition(".")[0] != excluded
        }

    def open_endpoints(self, node: str) -> OpenEndpoints:
        """The endpoints of a node without encryption."""
        return open_endpoints(self, node, dict(endpoints_of(self.nodes[node])))

    def resolve(self, path: str) -> str:
        """A path that is relative to the file."""
        return str(run_dir.home(self.path) / Path(path).expanduser())

    def _web_settings(self, own: NodeTopology) -> WebSettings:
        assert own.web is not None
        nodes = self.nodes.items()
        return WebSettings(
            address=own.web.address,
            key_file=self.resolve(own.web.key_file) if own.web.key_file else "",
            server_keys={} if self.security is None else self.server_keys,
            logs={name: str(self.data_dir / name / "logs") for name in self.own_nodes},
            tables={name: node.tables_url for name, node in nodes if node.tables_url},
            brokers={name: node.clients_url for name, node in nodes if node.clients_url},
        )

    def _node_security(self, name: str) -> NodeSecurity | None:
        if self.security is None:
            return None
        own = self.nodes[name]
        return NodeSecurity(
            allow=self.resolve(self.security.allow),
            enforce=self.security.mode == "enforce",
            key_file=self.resolve(own.key_file or f"keys/{name}.key_secret"),
            node_keys={
                each: node.server_key for each, node in self.nodes.items() if node.server_key
            },
            # None but `web` is a client of a broker: another port concerns no other process.
            server_keys=self._server_keys(excluded="broker"),
            insecure=own.insecure,
            foreign_grants=own.foreign_grants,
        )

    def setting_places(self, node: str) -> dict[str, str]:
        """The place of each setting that actors of a node name in errors.

        A key of a node has no prefix: `url`, `zerodb.url`. It hides a key of the whole file.
        """
        keys = {name: name for name in _key_paths(TopologyFile)} | {"data_dir": "data"}
        keys |= {f"farms.{name}": f"farms.{name}" for name in self.farms}
        keys |= {name: f"nodes.{node}.{name}" for name in _key_paths(NodeTopology)}
        return {setting: self.place(key) for setting, key in keys.items()}


def _key_paths(section: type) -> Iterator[str]:
    """The keys of a section, and those of the sections in it."""
    for name, key in keys_of(section).items():
        yield name
        if isinstance(key.type, SectionType):
            yield from (f"{name}.{inner}" for inner in keys_of(key.type.section))


def load(path: str) -> Topology:
    """Reads and checks a topology. Raises OperatorError with the first problem."""
    reader = SchemaReader(path)
    text = yaml_tree.read_text(path)
    tree = yaml_tree.parse(path, text)
    if not isinstance(tree, YamlMapping):
        reader.fail(tree.mark, "", "a topology is a mapping", "write `cluster:` and `nodes:`")
    file = reader.section(tree, "", TopologyFile)
    topology = Topology(
        **{name: getattr(file, name) for name in keys_of(TopologyFile)},
        path=path,
        text=text,
        data_dir=run_dir.home(path) / Path(file.data).expanduser(),
        places=reader.places,
        renamed=tuple(reader.renamed),
    )
    if topology.security is not None:
        topology = replace(topology, nodes=_with_server_keys(topology))
    for key, problem, way_out in _problems(topology):
        raise OperatorError(topology.place(key), problem, way_out)
    return topology


def _with_server_keys(topology: Topology) -> dict[str, NodeTopology]:
    """The nodes, each with its public key: that of `keys/NAME.key` where the file has none."""
    from ...net.access.keys import load_public_key

    found = dict(topology.nodes)
    for name, node in topology.nodes.items():
        if node.dialect == "kelek" and not node.server_key:
            path = topology.resolve(f"keys/{name}.key")
            try:
                key = load_public_key(path, topology.place(f"nodes.{name}"))
            except FileNotFoundError:
                continue  # _problems() says so.
            found[name] = replace(node, server_key=key)
    return found


def _problems(topology: Topology) -> Iterator[Problem]:
    """Checks between two values. A later check relies on the earlier ones."""
    if not topology.nodes:
        yield "nodes", "there is no node", "add `n1:` with its `url:`"
    for name, node in topology.nodes.items():
        for key, problem, way_out in _node_problems(node):
            yield f"nodes.{name}{key}", problem, way_out
    if not topology.own_nodes:
        yield "nodes", "kelek runs no node of this file", "remove a `dialect:`"
    yield from _address_problems(topology)
    broker, zre = topology.broker, topology.zre
    yield from heartbeat_problems("raft", topology.raft, "heartbeat_ms", "append_timeout_ms")
    held_bytes_max = topology.limits.held_bytes_max
    if broker.message_bytes_max >= held_bytes_max:
        problem = f"a message is not below `limits.held_bytes_max`, {held_bytes_max} bytes"
        yield "broker.message_bytes_max", problem, "make it smaller, or the limit larger"
    headers = [getattr(broker, key) for key in HEADERS]
    for key in HEADERS[1:]:
        header = getattr(broker, key)
        if headers.count(header) > 1 or header.startswith("MDP"):
            yield f"broker.{key}", f"{header} is already another header", "choose another one"
    for key, other in (("silent_ms", "evasive_ms"), ("expired_ms", "silent_ms")):
        high, below = getattr(zre, key), getattr(zre, other)
        if high <= below:
            problem = f"{high} ms is not above `{other}`, {below} ms"
            yield f"zre.{key}", problem, "make it larger"
    if topology.zerodb.spark:
        yield from _spark_problems(topology)
    if topology.has_durable_services:
        yield from _durable_problems(topology)
    yield from farm_problems(topology.farms, topology.farm_nodes)
    addresses = {name: dict(endpoints_of(node)) for name, node in topology.nodes.items()}
    yield from security_problems(topology, addresses)


def _node_problems(node: NodeTopology) -> Iterator[Problem]:
    """Each node alone. A node of another implementation has no roles of ours."""
    if node.dialect == "kelek" and not node.peer_url:
        yield "", "key 'peer_url' is missing", "add `peer_url:`, or a `dialect:`"
    for role in ("zerodb", "broker", "zre", "farm", "metrics", "web"):
        if getattr(node, role) not in (None, "") and node.dialect != "kelek":
            problem = f"kelek does not run this node, its dialect is {node.dialect}"
            yield f".{role}", problem, f"remove `{role}:` or `dialect:`"
    if node.zerodb and node.zerodb == TableEndpoints(
        events_url=node.zerodb.events_url, foreign_url=node.zerodb.foreign_url
    ):
        requests = [key for key in keys_of(TableEndpoints) if key not in NO_REQUESTS]
        way_out = f"add one of {', '.join(requests)}"
        yield ".zerodb", "there is no address for requests", way_out


def endpoints_of(node: NodeTopology) -> Iterator[tuple[str, str]]:
    """(key, address) of all that a node may bind: `zerodb.url`; '' where it does not."""
    for key in ADDRESSES_PER_NODE:
        yield key, getattr(node, key)
    for role, endpoints in (("zerodb", node.zerodb), ("broker", node.broker)):
        if endpoints is not None:
            for key in keys_of(type(endpoints)):
                yield f"{role}.{key}", getattr(endpoints, key)
    if node.farm:
        yield "farm.url", node.farm.url
    yield "metrics", f"tcp://{node.metrics}" if node.metrics else ""
    yield "web.address", f"tcp://{node.web.address}" if node.web else ""


def _address_problems(topology: Topology) -> Iterator[Problem]:
    """No address is bound twice, except that a broker's clients and workers may share one."""

    def position(item: tuple[str, str]) -> tuple[int, ...]:
        return tuple(int(number) for number in topology.places[item[0]].rsplit(":", 2)[1:])

    given = [
        (f"nodes.{name}.{key}", url)
        for name, node in topology.nodes.items()
        for key, url in endpoints_of(node)
        if url
    ]
    bound: dict[str, str] = {}
    for key, url in sorted(given, key=position):
        other = bound.setdefault(url, key)
        section = key.rpartition(".")[0]
        is_broker = {key, other} == {f"{section}.clients_url", f"{section}.workers_url"}
        if other != key and not is_broker:
            line = topology.places[other].split(":")[-2]
            problem = f"{url} is already used by {other} in line {line}"
            yield key, problem, "give each its own address"


def _spark_problems(topology: Topology) -> Iterator[Problem]:
    """Spark needs mappers, and its tasks read the tables at `url`."""
    if topology.zerodb.mapper == "off":
        way_out = "add `mapper: wasm` to `zerodb:`, or remove this key"
        yield "zerodb.spark", "Spark runs mappers, and `mapper` is off", way_out
    for name in topology.own_nodes:
        zerodb = topology.nodes[name].zerodb
        if zerodb and not zerodb.url:
            problem = (
                "key 'url' is missing: with `zerodb: {spark: ...}` tasks read the tables there"
            )
            yield f"nodes.{name}.zerodb", problem, "add `url:`"


def _durable_problems(topology: Topology) -> Iterator[Problem]:
    """A broker stores durable requests in the tables of its own node."""
    services = topology.broker.services
    durable = next(name for name, service in services.items() if service.durable)
    key = f"broker.services.{durable}.durable"
    if not any(node.tables_url for node in topology.nodes.values()):
        problem = "durable requests are stored in a replicated table, and no node has tables"
        yield key, problem, "add `zerodb: {url: ...}` to the nodes, or remove this key"
    for name, node in topology.nodes.items():
        if node.broker and not node.tables_url:
            problem = f"the broker of {name} stores durable requests in the tables of its own node"
            way_out = f"add `zerodb: {{url: ...}}` to {name}, or remove this key"
            yield key, f"{problem}, which has none", way_out
    table = topology.broker.store.table
    if table in topology.zerodb.local_tables:
        problem = f"table {table} is local, but durable requests need a replicated table"
        way_out = "choose a table that is not in `zerodb: {local_tables: ...}`"
        yield "broker.store.table", problem, way_out
