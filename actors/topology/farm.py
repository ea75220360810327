"""The keys of the topology that are Garlic Farm's: `farms:` of the file, and `farm:` of a node."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from ...protocols.errors import ProtocolError
from ...protocols.garlicfarm.wire.messages import ID_MAX, SERVERS_MAX
from ...protocols.garlicfarm.wire.values import is_loopback, parse_address
from ..errors import OperatorError
from .schema import (
    GIB,
    KIB,
    MIB,
    NAME,
    Key,
    SchemaReader,
    boolean_key,
    check_name,
    choice_key,
    count_key,
    duration_ms_key,
    list_key,
    path_key,
    range_ms_key,
    size_key,
    text_key,
    url_key,
)
from .yaml_tree import Node, Sequence

FARMS_MAX = 64  # That one file names.
FILES = ("certificate", "key", "ca", "passwords", "secret_file", "router_file", "publish_file")


def _id_key(reader: SchemaReader, node: Node, key: str) -> int:
    scalar = reader.scalar(node, key, "a server's id")
    if not re.fullmatch(r"[0-9]{1,10}", scalar.text) or not 0 < int(scalar.text) <= ID_MAX:
        reader.fail(scalar.mark, key, f"'{scalar.text}' is no server's id", f"write 1 to {ID_MAX}")
    return int(scalar.text)


def _read_servers(reader: SchemaReader, node: Node, key: str) -> dict[int, str]:
    """Each id with the name of a node, or the endpoint of a server of another make."""
    mapping = reader.mapping(node, key, "servers")
    servers: dict[int, str] = {}
    for word, value in mapping.entries:
        server_id = _id_key(reader, word, f"{key}.{word.text}")
        scalar = reader.scalar(value, f"{key}.{word.text}", "a node, or tcp://HOST:PORT")
        reader.places[f"{key}.{server_id}"] = f"{reader.path}:{value.mark.line}:{value.mark.column}"
        if len(servers) >= SERVERS_MAX:
            reader.fail(word.mark, key, f"more than {SERVERS_MAX} servers", "list fewer")
        if not NAME.fullmatch(scalar.text) and endpoint_problem(scalar.text):
            problem = f"'{scalar.text}' {endpoint_problem(scalar.text)}"
            reader.fail(scalar.mark, f"{key}.{word.text}", problem, "write tcp://HOST:PORT")
        if scalar.text in servers.values():
            reader.fail(scalar.mark, key, f"'{scalar.text}' has two ids", "give it one")
        servers[server_id] = scalar.text
    return servers


def endpoint_problem(text: str) -> str:
    """What is wrong with an endpoint that others shall connect to, or nothing."""
    try:
        parse_address(text)
    except ProtocolError as error:
        return f"is no endpoint: {error}"
    return "" if text.startswith("tcp://") else "is no endpoint: it begins with tcp://"


def _read_ids(reader: SchemaReader, node: Node, key: str) -> list[int]:
    if not isinstance(node, Sequence):
        reader.fail(node.mark, key, "must be a list of servers' ids", "write [1, 2, 3]")
    return [_id_key(reader, item, key) for item in node.items[:SERVERS_MAX]]


def _read_bind(reader: SchemaReader, node: Node, key: str) -> dict[str, int]:
    """Users that speak for one server alone."""
    mapping = reader.mapping(node, key, "users")
    return {
        word.text: _id_key(reader, value, f"{key}.{word.text}") for word, value in mapping.entries
    }


FARM_KEYS = {
    "servers": Key(_read_servers),
    "begin": Key(_read_ids, None),
    "admins": list_key("users", lambda text: ""),
    "bind": Key(_read_bind, {}),
    "server_users": list_key("users", lambda text: ""),
    "election_timeout_ms": range_ms_key(20, 600_000, (1000, 2000)),
    "heartbeat_ms": duration_ms_key(5, 300_000, 250),
    "request_timeout_ms": duration_ms_key(20, 600_000, 2000),
    "snapshot_entries": count_key(0, 1_000_000_000, 100_000),
    "snapshot_behind": count_key(0, 1_000_000_000, 10_000),
    "entries_bytes_max": size_key(64 * KIB, GIB, 64 * MIB),
    "entry_bytes_max": size_key(KIB, 64 * MIB, 10 * MIB),
}

NODE_FARM_KEYS = {
    "listen": url_key(),
    "endpoint": text_key("tcp://HOST:PORT", ""),
    "certificate": path_key(""),
    "key": path_key(""),
    "ca": path_key(""),
    "tls": choice_key("1.2", "1.3", default="1.3"),
    "server_name": text_key("a host's name", ""),
    "passwords": path_key(""),
    "user": text_key("a user's name", ""),
    "secret_file": path_key(""),
    "connections_max": count_key(8, 60_000, 1000),
    "i2p": boolean_key(False),
    "proxy": text_key("HOST:PORT", ""),
    "insecure_jraft": boolean_key(False),
    "publish": choice_key("off", "on", "auto", default="auto"),
    "post_interval_ms": duration_ms_key(0, 86_400_000, 60_000),
    "router_file": path_key(""),
    "publish_file": path_key(""),
}


def read_farms(reader: SchemaReader, node: Node, key: str) -> dict[str, dict[str, Any]]:
    """Settings by the farm's name, which is the cluster's in the text, and the realm."""
    mapping = reader.mapping(node, key, "farms")
    farms: dict[str, dict[str, Any]] = {}
    for word, value in mapping.entries:
        check_name(reader, word, key)
        if len(farms) >= FARMS_MAX:
            reader.fail(word.mark, key, f"more than {FARMS_MAX} farms", "list fewer")
        path = f"{key}.{word.text}"
        reader.places[path] = f"{reader.path}:{word.mark.line}:{word.mark.column}"
        farms[word.text] = reader.section(value, path, FARM_KEYS)
    return farms


def farm_home(data_dir: Path, farm: str) -> Path:
    """Where a node keeps its part of a farm."""
    return data_dir / "farm" / farm


def endpoint_of(farm: dict[str, Any]) -> str:
    """Where other servers find a node with these settings."""
    return str(farm["endpoint"] or farm["listen"])


def public_endpoint(farm: dict[str, Any]) -> str:
    """The same as clients write it: tls:// where that is spoken."""
    return endpoint_of(farm).replace("tcp://", "tcp://" if _is_plain(farm) else "tls://", 1)


def _is_plain(farm: dict[str, Any]) -> bool:
    return bool(farm["i2p"] or farm["insecure_jraft"])


def farms_of(node: str, farms: dict[str, dict[str, Any]]) -> dict[str, int]:
    """The farms that a node serves, with its id in each."""
    return {
        name: server_id
        for name, farm in farms.items()
        for server_id, server in farm["servers"].items()
        if server == node
    }


def node_options(
    node: str, own: dict[str, dict[str, Any]], farms: dict[str, dict[str, Any]], home: Path
) -> dict[str, Any]:
    """What a farm_server is told.

    own    the `farm:` of each node that has one
    home   what the paths of files are relative to
    """
    settings = dict(own[node])
    for key in FILES:
        settings[key] = str(home / Path(settings[key]).expanduser()) if settings[key] else ""
    served = {}
    for name, server_id in farms_of(node, farms).items():
        farm = dict(farms[name])
        farm["servers"] = {
            str(each): endpoint_of(own[server]) if server in own else server
            for each, server in farm["servers"].items()
        }
        farm["server_users"] = sorted(
            {*farm["server_users"]}
            | {own[server]["user"] for server in farms[name]["servers"].values() if server in own}
        )
        farm["begin"] = list(farms[name]["servers"]) if farm["begin"] is None else farm["begin"]
        low, high = farm.pop("election_timeout_ms")
        served[name] = {
            **farm,
            "server_id": server_id,
            "election_timeout_ms_min": low,
            "election_timeout_ms_max": high,
        }
    return {**settings, "farms": served}


def check_farms(
    farms: dict[str, dict[str, Any]],
    nodes: dict[str, dict[str, Any]],
    place: Callable[[str], str],
) -> None:
    """What only shows when farms and nodes are seen together.

    nodes   the `farm:` of each node, empty where it has none

    Raises OperatorError.
    """

    def fail(key: str, problem: str, way_out: str) -> NoReturn:
        raise OperatorError(place(key), problem, way_out)

    for name, farm in farms.items():
        key = f"farms.{name}"
        for server_id, server in farm["servers"].items():
            if NAME.fullmatch(server) and not nodes.get(server):
                way_out = "give that node its `farm:`, or write tcp://HOST:PORT"
                fail(f"{key}.servers.{server_id}", f"no node '{server}' has `farm:`", way_out)
        for server_id in farm["begin"] or ():
            if server_id not in farm["servers"]:
                fail(f"{key}.begin", f"{server_id} is not in `servers`", "write ids of `servers`")
        low = farm["election_timeout_ms"][0]
        if farm["heartbeat_ms"] >= low:
            problem = f"{farm['heartbeat_ms']} ms is not below the smallest election timeout"
            fail(f"{key}.heartbeat_ms", f"{problem}, {low} ms", "make it a third of that")
    for node, own in nodes.items():
        if own:
            _check_node(node, own, farms_of(node, farms), fail)
    for node, own in nodes.items():
        if own and _is_plain(own) and not own["proxy"]:
            for name in farms_of(node, farms):
                _check_neighbours(node, nodes, (name, farms[name]["servers"]), fail)


def _check_neighbours(
    node: str,
    nodes: dict[str, dict[str, Any]],
    farm: tuple[str, dict[int, str]],
    fail: Callable[[str, str, str], NoReturn],
) -> None:
    """What this node sends has neither TLS nor a tunnel: it may not leave the machine."""
    name, servers = farm
    for server_id, server in servers.items():
        endpoint = endpoint_of(nodes[server]) if server in nodes else server
        if server != node and not is_loopback(parse_address(endpoint).host):
            problem = f"node {node} would connect to {endpoint} without TLS"
            way_out = "give that node `proxy:` with `i2p: true`, or TLS"
            fail(f"farms.{name}.servers.{server_id}", problem, way_out)


def _check_node(
    node: str,
    own: dict[str, Any],
    served: dict[str, int],
    refuse: Callable[[str, str, str], NoReturn],
) -> None:
    def fail(key: str, problem: str, way_out: str) -> NoReturn:
        refuse(f"nodes.{node}.{key}", problem, way_out)

    is_plain = _is_plain(own)
    if not served:
        fail("farm", "no farm names this node", "name it in the `servers` of one of `farms:`")
    if own["endpoint"] and endpoint_problem(own["endpoint"]):
        problem = f"'{own['endpoint']}' {endpoint_problem(own['endpoint'])}"
        fail("farm.endpoint", problem, "write tcp://HOST:PORT")
    if not own["listen"].startswith("tcp://"):
        fail("farm.listen", f"'{own['listen']}' is not tcp://HOST:PORT", "write tcp://HOST:PORT")
    if is_plain and not is_loopback(parse_address(own["listen"]).host):
        fail("farm.listen", "without TLS only a loopback address is served", "write 127.0.0.1")
    if own["insecure_jraft"] and len(served) > 1:
        problem = f"without the handshake nobody can say which of {len(served)} farms is meant"
        fail("farm.insecure_jraft", problem, "give each farm a node of its own")
    if own["proxy"] and (not own["i2p"] or endpoint_problem(f"tcp://{own['proxy']}")):
        fail(
            "farm.proxy", "a proxy has HOST:PORT, and is used with `i2p: true`", "mend one of both"
        )
    needed = [] if own["insecure_jraft"] else ["passwords", "user", "secret_file"]
    needed += [] if is_plain else ["certificate", "key", "ca"]
    for key in needed:
        if not own[key]:
            fail("farm", f"key '{key}' is missing", f"add `{key}:`")
