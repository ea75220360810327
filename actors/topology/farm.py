"""The sections of a topology for Garlic Farm: `farms:` of the file and `farm:` of a node."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from ...protocols.errors import ProtocolError
from ...protocols.garlicfarm.wire.messages import ID_MAX, SERVERS_MAX
from ..errors import OperatorError
from .schema import (
    GIB,
    KIB,
    MIB,
    NAME,
    BooleanType,
    ChoiceType,
    NamedSectionsType,
    SchemaReader,
    TextListType,
    TextType,
    UrlType,
    ValueType,
    check_name,
    count,
    duration_ms,
    duration_range_ms,
    key,
    size,
)
from .yaml_values import Node

FARMS_MAX = 64  # Per file.
FILE_KEYS = (
    "certificate_file", "key_file", "ca_file", "passwords_file", "secret_file", "router_file",
    "publish_file",
)  # fmt: skip
ID_PATTERN = "^[0-9]{1,10}$"
ID_SCHEMA = {"type": "integer", "minimum": 1, "maximum": ID_MAX}


def _read_id(reader: SchemaReader, node: Node, key: str) -> int:
    scalar = reader.scalar(node, key, "a server id")
    if not re.fullmatch(r"[0-9]{1,10}", scalar.text) or not 0 < int(scalar.text) <= ID_MAX:
        problem = f"'{scalar.text}' is not a server id"
        reader.fail(scalar.mark, key, problem, f"write 1 to {ID_MAX}")
    return int(scalar.text)


class FarmServersType(ValueType):
    """Each server id with a node's name, or the endpoint of a server of another implementation."""

    def read(self, reader: SchemaReader, node: Node, key: str) -> dict[int, str]:
        servers: dict[int, str] = {}
        for word, value in reader.mapping(node, key, "servers").entries:
            server_id = _read_id(reader, word, f"{key}.{word.text}")
            scalar = reader.scalar(value, f"{key}.{word.text}", "a node, or tcp://HOST:PORT")
            reader.places[f"{key}.{server_id}"] = reader.place(value.mark)
            if len(servers) >= SERVERS_MAX:
                reader.fail(word.mark, key, f"more than {SERVERS_MAX} servers", "list fewer")
            if not NAME.fullmatch(scalar.text) and endpoint_problem(scalar.text):
                problem = f"'{scalar.text}' {endpoint_problem(scalar.text)}"
                reader.fail(scalar.mark, f"{key}.{word.text}", problem, "write tcp://HOST:PORT")
            if scalar.text in servers.values():
                reader.fail(scalar.mark, key, f"'{scalar.text}' has two ids", "give it one id")
            servers[server_id] = scalar.text
        return servers

    def json_schema(self) -> dict[str, Any]:
        inner = {ID_PATTERN: {"type": "string"}}
        return {"type": "object", "patternProperties": inner, "maxProperties": SERVERS_MAX}

    def describe(self) -> str:
        return "`{1: n1, 9: 'tcp://10.0.0.9:7401'}`"


def endpoint_problem(text: str) -> str:
    """What is wrong with an endpoint that other servers connect to, or ''."""
    from ...protocols.garlicfarm.wire.values import parse_address

    try:
        parse_address(text)
    except ProtocolError as error:
        return f"is not an endpoint: {error}"
    return "" if text.startswith("tcp://") else "is not an endpoint: it must begin with tcp://"


class ServerIdsType(ValueType):
    """A list of server ids."""

    def read(self, reader: SchemaReader, node: Node, key: str) -> tuple[int, ...]:
        items = reader.sequence(node, key, "server ids", "[1, 2, 3]")
        return tuple(_read_id(reader, item, key) for item in items[:SERVERS_MAX])

    def json_schema(self) -> dict[str, Any]:
        return {"type": "array", "items": ID_SCHEMA}

    def describe(self) -> str:
        return "server ids, `[1, 2, 3]`"


class UserServerIdsType(ValueType):
    """Users, each with the only server that it may act as."""

    def read(self, reader: SchemaReader, node: Node, key: str) -> dict[str, int]:
        return {
            word.text: _read_id(reader, value, f"{key}.{word.text}")
            for word, value in reader.mapping(node, key, "users").entries
        }

    def json_schema(self) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": ID_SCHEMA}

    def describe(self) -> str:
        return "`{USER: ID}`"

    def show(self, value: Any) -> str:
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FarmSettings:
    """`farms.NAME:`"""

    servers: Mapping[int, str] = key(
        FarmServersType(),
        "for each server id a node that has `farm:`, or the endpoint of a server of another "
        "implementation",
    )
    initial_servers: tuple[int, ...] | None = key(
        ServerIdsType(),
        "the servers that start the farm, by default all; others wait until they are added",
        None,
        alias="begin",
    )
    admins: tuple[str, ...] = key(
        TextListType("users"), "users that may add and remove servers", ()
    )
    user_server_ids: Mapping[str, int] = key(
        UserServerIdsType(), "users that may act as one server only", {}, alias="bind"
    )
    server_users: tuple[str, ...] = key(
        TextListType("users"),
        "users that may act as any server, besides the `user` of each node of this file that "
        "serves the farm; name the users of servers in other topologies",
        (),
    )
    election_timeout_ms: tuple[int, int] = key(
        duration_range_ms(20, 600_000, (1000, 2000)),
        "a follower that receives nothing from a leader for a random time of this range becomes "
        "a candidate; equal in all servers of a farm",
        (1000, 2000),
    )
    heartbeat_ms: int = key(
        duration_ms(5, 300_000), "a leader sends to each follower at least this often", 250
    )
    request_timeout_ms: int = key(
        duration_ms(20, 600_000),
        "a server closes a connection to another one that has not answered a request for this time",
        2000,
    )
    snapshot_entries: int = key(
        count(0, 1_000_000_000),
        "a server makes a snapshot this many entries after the last one; 0: never",
        100_000,
    )
    snapshot_trailing_entries: int = key(
        count(0, 1_000_000_000),
        "this many entries below a snapshot stay in the log",
        10_000,
        alias="snapshot_behind",
    )
    entries_bytes_max: int = key(
        size(64 * KIB, GIB), "size of the entries of one request", 64 * MIB
    )
    entry_bytes_max: int = key(
        size(KIB, 64 * MIB),
        "size of the largest entry that a leader accepts from a client; entries that other servers "
        "committed may be larger",
        10 * MIB,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFarmSettings:
    """`nodes.NAME.farm:`"""

    url: str = key(
        UrlType(),
        "where servers and clients of all its farms connect; `tcp://` only",
        alias="listen",
    )
    public_url: str = key(
        TextType("`tcp://HOST:PORT`"),
        "where other servers connect, if not at `url`",
        "",
        alias="endpoint",
    )
    certificate_file: str = key(
        TextType("a PEM file"),
        "the server's certificate; the server rereads this file, `key_file` and `ca_file` when "
        "they change",
        "",
        alias="certificate",
    )
    key_file: str = key(
        TextType("a PEM file"), "its private key, without a password", "", alias="key"
    )
    ca_file: str = key(
        TextType("a PEM file"),
        "authorities that it trusts when it connects to other servers",
        "",
        alias="ca",
    )
    tls: str = key(ChoiceType("1.2", "1.3"), "the lowest version of TLS", "1.3")
    server_name: str = key(
        TextType("a host name"),
        "name in other servers' certificates, if not that of their endpoint",
        "",
    )
    passwords_file: str = key(
        TextType("a file of `htdigest`"),
        "users and their passwords; mode 0600; the server rereads it when it changes",
        "",
        alias="passwords",
    )
    user: str = key(TextType("a user name"), "its user at other servers", "")
    secret_file: str = key(TextType("a file"), "a file with the password of `user`; mode 0600", "")
    connections_max: int = key(
        count(8, 60_000), "the server closes further connections at once", 1000
    )
    i2p: bool = key(
        BooleanType(), "no TLS, for a tunnel that ends here: `url` is a loopback address", False
    )
    proxy: str = key(
        TextType("`HOST:PORT`"),
        "with `i2p`: an HTTP proxy for its connections; without it the other servers' endpoints "
        "are loopback addresses too",
        "",
    )
    insecure_jraft: bool = key(
        BooleanType(),
        "neither TLS nor the handshake, for servers of JRaft: one farm, and only loopback "
        "addresses",
        False,
    )
    publish: str = key(
        ChoiceType("off", "on", "auto"), "whether this server may become the publisher", "auto"
    )
    post_interval_ms: int = key(
        duration_ms(0, 86_400_000), "how often it posts its status; 0: never", 60_000
    )
    router_file: str = key(TextType("a JSON file"), "what the router reports about itself", "")
    publish_file: str = key(
        TextType("a file"), "the publisher writes what is to be published to it", ""
    )


FARMS_TYPE = NamedSectionsType(FarmSettings, "farms", FARMS_MAX, "list fewer", check_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class FarmServerSettings:
    """What the topology says for a farm_server.

    server       the node's own section; paths of files are absolute
    farms        the farms that it serves by name; initial_servers is given, and each server has an
                 endpoint
    server_ids   its id in each of these farms
    """

    server: NodeFarmSettings
    farms: Mapping[str, FarmSettings]
    server_ids: Mapping[str, int]


def farm_directory(data_dir: Path, farm: str) -> Path:
    """Where a node stores its replica of a farm."""
    return data_dir / "farm" / farm


def endpoint_of(node: NodeFarmSettings) -> str:
    """Where other servers connect to a node."""
    return node.public_url or node.url


def public_endpoint(node: NodeFarmSettings) -> str:
    """The same for clients: tls:// if the node uses TLS."""
    return endpoint_of(node).replace("tcp://", "tcp://" if _is_plain(node) else "tls://", 1)


def _is_plain(node: NodeFarmSettings) -> bool:
    return node.i2p or node.insecure_jraft


def farms_of(node: str, farms: Mapping[str, FarmSettings]) -> dict[str, int]:
    """The farms that a node serves, with its id in each."""
    return {
        name: server_id
        for name, farm in farms.items()
        for server_id, server in farm.servers.items()
        if server == node
    }


def farm_server_settings(
    node: str,
    nodes: Mapping[str, NodeFarmSettings],
    farms: Mapping[str, FarmSettings],
    base: Path,
) -> FarmServerSettings:
    """The settings of a node's farm_server.

    nodes   the `farm:` of each node that has one
    base    the paths of files are relative to this directory
    """
    own = nodes[node]
    files: dict[str, Any] = {
        name: str(base / Path(path).expanduser())
        for name in FILE_KEYS
        if (path := getattr(own, name))
    }
    server_ids = farms_of(node, farms)
    served = {}
    for name in server_ids:
        farm = farms[name]
        users = {nodes[server].user for server in farm.servers.values() if server in nodes}
        served[name] = replace(
            farm,
            servers={
                server_id: endpoint_of(nodes[server]) if server in nodes else server
                for server_id, server in farm.servers.items()
            },
            initial_servers=initial_servers(farm),
            server_users=tuple(sorted({*farm.server_users} | users)),
        )
    return FarmServerSettings(server=replace(own, **files), farms=served, server_ids=server_ids)


def initial_servers(farm: FarmSettings) -> tuple[int, ...]:
    """The servers that start a farm: all, unless the topology names them."""
    return tuple(farm.servers) if farm.initial_servers is None else farm.initial_servers


def check_farms(
    farms: Mapping[str, FarmSettings],
    nodes: Mapping[str, NodeFarmSettings],
    place: Callable[[str], str],
) -> None:
    """Checks between farms and nodes.

    nodes   the `farm:` of each node that has one

    Raises OperatorError.
    """

    def fail(key: str, problem: str, way_out: str) -> NoReturn:
        raise OperatorError(place(key), problem, way_out)

    for name, farm in farms.items():
        key = f"farms.{name}"
        for server_id, server in farm.servers.items():
            if NAME.fullmatch(server) and server not in nodes:
                way_out = "give that node its `farm:`, or write tcp://HOST:PORT"
                fail(f"{key}.servers.{server_id}", f"no node '{server}' has `farm:`", way_out)
        for server_id in farm.initial_servers or ():
            if server_id not in farm.servers:
                problem = f"{server_id} is not in `servers`"
                fail(f"{key}.initial_servers", problem, "write ids of `servers`")
        low = farm.election_timeout_ms[0]
        if farm.heartbeat_ms >= low:
            problem = f"{farm.heartbeat_ms} ms is not below the smallest election timeout"
            fail(f"{key}.heartbeat_ms", f"{problem}, {low} ms", "make it a third of that")
    for node, own in nodes.items():
        _check_node(node, own, farms_of(node, farms), fail)
    for node, own in nodes.items():
        if _is_plain(own) and not own.proxy:
            for name in farms_of(node, farms):
                _check_neighbours(node, nodes, (name, farms[name].servers), fail)


def _check_neighbours(
    node: str,
    nodes: Mapping[str, NodeFarmSettings],
    farm: tuple[str, Mapping[int, str]],
    fail: Callable[[str, str, str], NoReturn],
) -> None:
    """Without TLS and proxy, a server connects to loopback addresses only."""
    from ...protocols.garlicfarm.wire.values import is_loopback, parse_address

    name, servers = farm
    for server_id, server in servers.items():
        endpoint = endpoint_of(nodes[server]) if server in nodes else server
        if server != node and not is_loopback(parse_address(endpoint).host):
            problem = f"node {node} would connect to {endpoint} without TLS"
            way_out = "give that node `proxy:` with `i2p: true`, or TLS"
            fail(f"farms.{name}.servers.{server_id}", problem, way_out)


def _check_node(
    node: str,
    own: NodeFarmSettings,
    served: Mapping[str, int],
    refuse: Callable[[str, str, str], NoReturn],
) -> None:
    from ...protocols.garlicfarm.wire.values import is_loopback, parse_address

    def fail(key: str, problem: str, way_out: str) -> NoReturn:
        refuse(f"nodes.{node}.{key}", problem, way_out)

    is_plain = _is_plain(own)
    if not served:
        fail("farm", "no farm names this node", "name it in the `servers` of one of `farms:`")
    if own.public_url and endpoint_problem(own.public_url):
        problem = f"'{own.public_url}' {endpoint_problem(own.public_url)}"
        fail("farm.public_url", problem, "write tcp://HOST:PORT")
    if not own.url.startswith("tcp://"):
        fail("farm.url", f"'{own.url}' is not tcp://HOST:PORT", "write tcp://HOST:PORT")
    if is_plain and not is_loopback(parse_address(own.url).host):
        fail("farm.url", "without TLS it must be a loopback address", "write 127.0.0.1")
    if own.insecure_jraft and len(served) > 1:
        problem = f"without the handshake a connection cannot choose one of {len(served)} farms"
        fail("farm.insecure_jraft", problem, "give each farm a node of its own")
    if own.proxy and (not own.i2p or endpoint_problem(f"tcp://{own.proxy}")):
        problem = "a proxy needs HOST:PORT and `i2p: true`"
        fail("farm.proxy", problem, "correct it, or add `i2p: true`")
    needed = [] if own.insecure_jraft else ["passwords_file", "user", "secret_file"]
    needed += [] if is_plain else ["certificate_file", "key_file", "ca_file"]
    for name in needed:
        if not getattr(own, name):
            fail("farm", f"key '{name}' is missing", f"add `{name}:`")
