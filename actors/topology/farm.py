"""The sections of a topology for Garlic Farm: `farms:` of the file and `farm:` of a node."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...protocols.errors import ProtocolError
from ...protocols.garlicfarm.wire.messages import ID_MAX, SERVERS_MAX
from .schema import (
    BOOLEAN,
    GIB,
    KIB,
    MIB,
    NAME,
    URL,
    ChoiceType,
    DurationRangeType,
    ListType,
    Problem,
    ScalarType,
    SchemaReader,
    Unfit,
    ValueType,
    count,
    duration_ms,
    key,
    size,
    text,
    texts,
)
from .section import Section
from .yaml_values import Node, Scalar

FARMS_MAX = 64  # Per file.
ROLES = ("read", "append", "admin")
FILE_KEYS = (
    "certificate_file", "key_file", "ca_file", "passwords_file", "secret_file", "router_file",
    "publish_file", "client_ca_file",
)  # fmt: skip


def _parse_id(word: Scalar) -> int:
    if not re.fullmatch(r"[0-9]{1,10}", word.text) or not 0 < int(word.text) <= ID_MAX:
        raise Unfit(f"'{word.text}' is not a server id", f"write 1 to {ID_MAX}")
    return int(word.text)


def _parse_server(word: Scalar) -> str:
    if not NAME.fullmatch(word.text) and (wrong := endpoint_problem(word.text)):
        raise Unfit(f"'{word.text}' {wrong}", "write tcp://HOST:PORT")
    return word.text


ID = ScalarType("a server id", _parse_id, {"type": "integer", "minimum": 1, "maximum": ID_MAX})
SERVER = ScalarType("a node, or tcp://HOST:PORT", _parse_server, {"type": "string"})


class FarmServersType(ValueType):
    """Each server id with a node's name, or the endpoint of a server of another implementation."""

    values = "`{1: n1, 9: 'tcp://10.0.0.9:7401'}`"
    schema = {
        "type": "object", "patternProperties": {"^[0-9]{1,10}$": SERVER.schema},
        "maxProperties": SERVERS_MAX,
    }  # fmt: skip

    def read(self, reader: SchemaReader, node: Node, key: str) -> dict[int, str]:
        servers: dict[int, str] = {}
        for word, value in reader.mapping(node, key, "servers").entries:
            path = f"{key}.{word.text}"
            server_id = ID.read(reader, word, path)
            server = SERVER.read(reader, value, path)
            reader.places[f"{key}.{server_id}"] = reader.place(value.mark)
            if len(servers) >= SERVERS_MAX:
                reader.fail(word.mark, key, f"more than {SERVERS_MAX} servers", "list fewer")
            if server in servers.values():
                reader.fail(value.mark, key, f"'{server}' has two ids", "give it one id")
            servers[server_id] = server
        return servers


def endpoint_problem(text: str) -> str:
    """What is wrong with an endpoint that other servers connect to, or ''."""
    from ...protocols.garlicfarm.wire.values import parse_address

    try:
        parse_address(text)
    except ProtocolError as error:
        return f"is not an endpoint: {error}"
    return "" if text.startswith("tcp://") else "is not an endpoint: it must begin with tcp://"


def _parse_role(word: Scalar) -> str:
    if word.text not in ROLES:
        raise Unfit(f"'{word.text}' is not a role", f"write {', '.join(ROLES)}")
    return word.text


ROLE = ScalarType("a role", _parse_role, {"enum": list(ROLES)})


class ByUserType(ValueType):
    """A value for each of some users."""

    def __init__(self, value: ValueType, values: str) -> None:
        self._value, self.values = value, values
        self.schema = {"type": "object", "additionalProperties": value.schema}

    def read(self, reader: SchemaReader, node: Node, key: str) -> dict[str, Any]:
        users = reader.mapping(node, key, "users").entries
        read = self._value.read
        return {word.text: read(reader, value, f"{key}.{word.text}") for word, value in users}


class FarmSettings(Section):
    """`farms.NAME:`"""

    servers: Mapping[int, str] = key(FarmServersType())
    """for each server id a node that has `farm:`, or the endpoint of a server of another
    implementation"""
    initial_servers: tuple[int, ...] | None = key(
        ListType(ID, "server ids", "[1, 2, 3]", "server ids, `[1, 2, 3]`"), None, alias="begin"
    )
    """the servers that start the farm, by default all; others wait until they are added"""
    admins: tuple[str, ...] = key(texts("users"), ())
    """users that may add and remove servers"""
    user_server_ids: Mapping[str, int] = key(ByUserType(ID, "`{USER: ID}`"), {}, alias="bind")
    """users that may act as one server only"""
    roles: Mapping[str, tuple[str, ...]] | None = key(
        ByUserType(ListType(ROLE, "roles", "[read, append]"), "`{USER: [read, append, admin]}`"),
        None,
    )
    """roles of users. With this key, a user has no rights that neither it nor `admins` nor
    `user_server_ids` names, unless servers use it; without it every user may read and append"""
    certificate_users: Mapping[str, tuple[str, ...]] = key(
        ByUserType(texts("users"), "`{NAME: [USER, ..]}`"), {}
    )
    """users of client certificates, by a name in the certificate: its common name, or a DNS name,
    e-mail address, URI or IP address of it. A name that is not here is the user's own, or the
    host of a server"""
    server_users: tuple[str, ...] = key(texts("users"), ())
    """users that may act as any server, besides the `user` of each node of this file that serves
    the farm; name the users of servers in other topologies"""
    election_timeout_ms: tuple[int, int] = key(
        DurationRangeType(20, 600_000, (1000, 2000)), (1000, 2000)
    )
    """a follower that receives nothing from a leader for a random time of this range becomes a
    candidate; equal in all servers of a farm"""
    heartbeat_ms: int = key(duration_ms(5, 300_000), 250)
    """a leader sends to each follower at least this often"""
    request_timeout_ms: int = key(duration_ms(20, 600_000), 2000)
    """a server closes a connection to another one that has not answered a request for this time"""
    snapshot_entries: int = key(count(0, 1_000_000_000), 100_000)
    """a server makes a snapshot this many entries after the last one; 0: never"""
    snapshot_trailing_entries: int = key(count(0, 1_000_000_000), 10_000, alias="snapshot_behind")
    """this many entries below a snapshot stay in the log"""
    entries_bytes_max: int = key(size(64 * KIB, GIB), 64 * MIB)
    """size of the entries of one request"""
    entry_bytes_max: int = key(size(KIB, 64 * MIB), 10 * MIB)
    """size of the largest entry that a leader accepts from a client; entries that other servers
    committed may be larger"""


class NodeFarmSettings(Section):
    """`nodes.NAME.farm:`"""

    url: str = key(URL, alias="listen")
    """where servers and clients of all its farms connect; `tcp://` only"""
    public_url: str = key(text("`tcp://HOST:PORT`"), "", alias="endpoint")
    """where other servers connect, if not at `url`"""
    certificate_file: str = key(text("a PEM file"), "", alias="certificate")
    """the server's certificate; the server rereads this file and the other PEM files when they
    change"""
    key_file: str = key(text("a PEM file"), "", alias="key")
    """its private key, without a password"""
    ca_file: str = key(text("a PEM file"), "", alias="ca")
    """authorities that it trusts when it connects to other servers"""
    client_ca_file: str = key(text("a PEM file"), "")
    """authorities of the certificates that clients and other servers show; without it the server
    asks for none. Servers show `certificate_file`"""
    client_certificates: str = key(ChoiceType("required", "optional"), "required")
    """with `client_ca_file`: whether a client without a certificate is refused"""
    tls: str = key(ChoiceType("1.2", "1.3"), "1.3")
    """the lowest version of TLS"""
    server_name: str = key(text("a host name"), "")
    """name in other servers' certificates, if not that of their endpoint"""
    passwords_file: str = key(text("a file of `htdigest`"), "", alias="passwords")
    """users and their passwords; mode 0600; the server rereads it when it changes"""
    user: str = key(text("a user name"), "")
    """its user at other servers"""
    secret_file: str = key(text("a file"), "")
    """a file with the password of `user`; mode 0600"""
    connections_max: int = key(count(8, 60_000), 1000)
    """above it the server closes the oldest connection without a login, or else the new one. One
    address has at most a quarter of them, and at least 64; an address of a tunnel all"""
    i2p: bool = key(BOOLEAN, False)
    """no TLS, for a tunnel that ends here: `url` is a loopback address"""
    proxy: str = key(text("`HOST:PORT`"), "")
    """with `i2p`: an HTTP proxy for its connections; without it the other servers' endpoints are
    loopback addresses too"""
    insecure_jraft: bool = key(BOOLEAN, False)
    """neither TLS nor the handshake, for servers of JRaft: one farm, and only loopback addresses"""
    publish: str = key(ChoiceType("off", "on", "auto"), "auto")
    """whether this server may become the publisher"""
    post_interval_ms: int = key(duration_ms(0, 86_400_000), 60_000)
    """how often it posts its status; 0: never"""
    router_file: str = key(text("a JSON file"), "")
    """what the router reports about itself"""
    publish_file: str = key(text("a file"), "")
    """the publisher writes what is to be published to it"""


class FarmServerSettings(Section):
    """What the topology says for a farm_server.

    server       the node's own section; paths of files are absolute
    farms        the farms that it serves by name; initial_servers is given, and each server has an
                 endpoint
    server_ids   its id in each of these farms
    """

    server: NodeFarmSettings
    farms: Mapping[str, FarmSettings]
    server_ids: Mapping[str, int]


def roles_of(farm: FarmSettings, user: str) -> frozenset[str]:
    """The roles of a user, without its rights as a server."""
    if user in farm.admins:
        return frozenset(ROLES)
    stated = (farm.roles or {}).get(user, ())
    if farm.roles is None or user in farm.server_users or user in farm.user_server_ids:
        return frozenset(("read", "append", *stated))
    return frozenset(stated)


def admins_of(farm: FarmSettings) -> tuple[str, ...]:
    users = dict.fromkeys((*farm.admins, *(farm.roles or ())))
    return tuple(user for user in users if "admin" in roles_of(farm, user))


def farm_directory(data_dir: Path, farm: str) -> Path:
    """Where a node stores its replica of a farm."""
    return data_dir / "farm" / farm


def endpoint_of(node: NodeFarmSettings) -> str:
    """Where other servers connect to a node."""
    return node.public_url or node.url


def _host_users(
    farm: FarmSettings, nodes: Mapping[str, NodeFarmSettings]
) -> dict[str, tuple[str, ...]]:
    """The users of servers by the names in the servers' certificates."""
    from ...protocols.garlicfarm.wire.values import parse_address

    found: dict[str, tuple[str, ...]] = {}
    for server in farm.servers.values():
        node = nodes.get(server)
        users = farm.server_users if node is None else (node.user,)
        endpoint = server if node is None else endpoint_of(node)
        for name in {parse_address(endpoint).host, node.server_name if node else ""} - {""}:
            found[name] = (*found.get(name, ()), *users)
    return found


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
            certificate_users={**_host_users(farm, nodes), **farm.certificate_users},
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


def heartbeat_problems(key: str, settings: Any, *names: str) -> Iterator[Problem]:
    """A leader sends more often than a follower waits. names are times of the section at key."""
    low = settings.election_timeout_ms[0]
    for name in names:
        if (value := getattr(settings, name)) >= low:
            problem = f"{value} ms is not below the smallest election timeout, {low} ms"
            yield f"{key}.{name}", problem, "make it a third of that"


def farm_problems(
    farms: Mapping[str, FarmSettings], nodes: Mapping[str, NodeFarmSettings]
) -> Iterator[Problem]:
    """Checks between farms and nodes: key.path, problem, way out. Take the first one only.

    nodes   the `farm:` of each node that has one
    """
    for name, farm in farms.items():
        key = f"farms.{name}"
        for server_id, server in farm.servers.items():
            if NAME.fullmatch(server) and server not in nodes:
                way_out = "give that node its `farm:`, or write tcp://HOST:PORT"
                yield f"{key}.servers.{server_id}", f"no node '{server}' has `farm:`", way_out
        for server_id in farm.initial_servers or ():
            if server_id not in farm.servers:
                problem = f"{server_id} is not in `servers`"
                yield f"{key}.initial_servers", problem, "write ids of `servers`"
        yield from heartbeat_problems(key, farm, "heartbeat_ms")
    for node, own in nodes.items():
        served = farms_of(node, farms)
        for key, problem, way_out in _node_problems(own, served):
            yield f"nodes.{node}.{key}", problem, way_out
    for node, own in nodes.items():
        if _is_plain(own) and not own.proxy:
            for name in farms_of(node, farms):
                yield from _neighbour_problems(node, nodes, name, farms[name].servers)


def _neighbour_problems(
    node: str, nodes: Mapping[str, NodeFarmSettings], farm: str, servers: Mapping[int, str]
) -> Iterator[Problem]:
    """Without TLS and proxy, a server connects to loopback addresses only."""
    from ...protocols.garlicfarm.wire.values import is_loopback, parse_address

    for server_id, server in servers.items():
        endpoint = endpoint_of(nodes[server]) if server in nodes else server
        if server != node and not is_loopback(parse_address(endpoint).host):
            problem = f"node {node} would connect to {endpoint} without TLS"
            way_out = "give that node `proxy:` with `i2p: true`, or TLS"
            yield f"farms.{farm}.servers.{server_id}", problem, way_out


def _node_problems(own: NodeFarmSettings, served: Mapping[str, int]) -> Iterator[Problem]:
    from ...protocols.garlicfarm.wire.values import is_loopback, parse_address

    is_plain = _is_plain(own)
    if own.client_ca_file and is_plain:
        yield "farm.client_ca_file", "without TLS there are no certificates", "remove one of both"
    if not served:
        yield "farm", "no farm names this node", "name it in the `servers` of one of `farms:`"
    if own.public_url and (wrong := endpoint_problem(own.public_url)):
        yield "farm.public_url", f"'{own.public_url}' {wrong}", "write tcp://HOST:PORT"
    if not own.url.startswith("tcp://"):
        yield "farm.url", f"'{own.url}' is not tcp://HOST:PORT", "write tcp://HOST:PORT"
    if is_plain and not is_loopback(parse_address(own.url).host):
        yield "farm.url", "without TLS it must be a loopback address", "write 127.0.0.1"
    if own.insecure_jraft and len(served) > 1:
        problem = f"without the handshake a connection cannot choose one of {len(served)} farms"
        yield "farm.insecure_jraft", problem, "give each farm a node of its own"
    if own.proxy and (not own.i2p or endpoint_problem(f"tcp://{own.proxy}")):
        problem = "a proxy needs HOST:PORT and `i2p: true`"
        yield "farm.proxy", problem, "correct it, or add `i2p: true`"
    needed = [] if own.insecure_jraft else ["passwords_file", "user", "secret_file"]
    needed += [] if is_plain else ["certificate_file", "key_file", "ca_file"]
    for name in needed:
        if not getattr(own, name):
            yield "farm", f"key '{name}' is missing", f"add `{name}:`"
