"""The topology: valid files, and the error line of each mistake."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kelek.actors.errors import OperatorError
from kelek.actors.topology import settings as sections
from kelek.actors.topology import topology, yaml_tree
from kelek.actors.topology.farm import NodeFarmSettings
from kelek.actors.topology.security import NodeSecurity, OpenEndpoints
from kelek.actors.topology.zre import NodeZreSettings
from kelek.protocols.access.certificates import (
    Certificate,
    decode_key,
    format_certificate,
)
from kelek.tests.actors.topology.test_reference import renamed_keys

ROOT = Path(__file__).resolve().parents[3]

GOOD = """\
cluster: ring
data: here
raft:
  election_timeout_ms: [400, 600ms]
  heartbeat_ms: 100 ms
  update_ttl_s: 2h
  pre_vote: false
log:
  segment_bytes: 1 MiB
  writer: inline
clients:
  timeout_ms: 2 s
zerodb:
  workers: 2
  local_tables: [7, 100-102]
  allow_stale_reads: true
  cache_bytes: 1 GiB
broker: {request_ttl_ms: 2 min}
zre: {port: 5671, static_peers: ['tcp://10.0.0.9:61001'], expired_ms: 1 min}
nodes:
  a:
    url: tcp://10.0.0.1:7201
    broadcast_url: tcp://10.0.0.1:7211
    peer_url: tcp://10.0.0.1:7221
    zerodb: {url: 'tcp://10.0.0.1:7100', sub_url: 'epgm://eth0;239.1.1.1:5555'}
    broker: {clients_url: 'tcp://10.0.0.1:7300', workers_url: 'tcp://10.0.0.1:7300'}
    zre: {interface: eth0, broadcast_address: 10.0.0.255, log_service: table}
    insecure: [url, broadcast_url, peer_url, zerodb.url, zerodb.sub_url, broker.clients_url,
               broker.workers_url]
  b:
    url: tcp://[fe80::1]:7201
    peer_url: ipc:///tmp/b.peers
    insecure: [url]
  foreign:
    url: tcp://host.example.org:8000
    dialect: text
"""


def write_topology(folder: Path, text: str) -> str:
    path = folder / "t.yaml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    return str(path)


def problem(tmp_path: Path, text: str) -> str:
    path = write_topology(tmp_path, text)
    with pytest.raises(OperatorError) as error:
        topology.load(path)
    line = str(error.value)
    assert "\n" not in line
    return line.replace(path, "t.yaml")


def test_all_sections_are_read(tmp_path: Path) -> None:
    found = topology.load(write_topology(tmp_path, GOOD))
    assert found.cluster == "ring"
    assert found.data_dir == tmp_path / "here"
    assert found.raft.election_timeout_ms == (400, 600)
    assert found.raft.heartbeat_ms == 100
    assert found.raft.update_ttl_s == 7200
    assert found.raft.pre_vote is False
    assert found.raft.vote_retry_ms == 50, "a default"
    assert found.log.segment_bytes == 1 << 20
    assert found.log.writer == "inline"
    assert found.log.snapshot_entries == 4_000_000, "a default"
    assert found.clients == sections.ClientSettings(timeout_ms=2000)
    assert found.zerodb.local_tables == (7, 100, 101, 102)
    assert found.zerodb.allow_stale_reads
    assert found.own_nodes == ["a", "b"]
    assert found.nodes["foreign"].peer_url == ""
    assert found.place("nodes.b.url").endswith("t.yaml:31:10: nodes.b.url")
    assert found.place("raft.vote_retry_ms").endswith("t.yaml: raft.vote_retry_ms")
    settings = found.node_settings("a")
    assert settings.members["b"].peer_url == "ipc:///tmp/b.peers"
    assert settings.node.url == "tcp://10.0.0.1:7201"
    assert settings.node.zerodb == sections.TableEndpoints(
        url="tcp://10.0.0.1:7100", sub_url="epgm://eth0;239.1.1.1:5555"
    )
    assert settings.zerodb.workers == 2
    assert settings.zerodb.request_timeout_ms == 5000, "a default"
    places = found.setting_places("a")
    assert places["zerodb.url"].endswith("t.yaml:25:19: nodes.a.zerodb.url")
    assert places["zerodb.allow_stale_reads"].endswith("t.yaml:16:22: zerodb.allow_stale_reads")
    assert settings.node.workers_url == settings.node.clients_url
    assert settings.broker.request_ttl_ms == 120_000
    assert settings.broker.client_header == "KLKC01", "a default"
    assert places["broker.workers_url"].endswith("t.yaml:26:63: nodes.a.broker.workers_url")
    assert settings.node.zre == NodeZreSettings(
        interface="eth0", broadcast_address="10.0.0.255", log_service="table"
    )
    assert settings.zre.static_peers == ("tcp://10.0.0.9:61001",)
    assert settings.zre.expired_ms == 60_000
    assert settings.zre.evasive_ms == 5000, "a default"
    assert places["zre.interface"].endswith("t.yaml:27:22: nodes.a.zre.interface")
    assert places["zre.port"].endswith("t.yaml:19:13: zre.port")
    other = found.node_settings("b").node
    assert (other.zerodb, other.broker, other.zre) == (None, None, None)
    assert found.renamed == ()


OLD = """\
cluster: old
raft: {rpc_timeout_ms: 60}
log: {snapshot_behind: 11}
zerodb: {local: [7], stale: allowed, mapper: wasm, spark: {memory: 1 GiB}}
broker: {interval_ms: 600}
zre: {static: ['tcp://10.0.0.9:61001'], dead_ms: 1 min}
farms: {f: {servers: {1: a}, begin: [1], bind: {alice: 1}, snapshot_behind: 12}}
nodes:
  a:
    url: tcp://127.0.0.1:7201
    peer_url: tcp://127.0.0.1:7221
    zerodb: {url: 'tcp://127.0.0.1:7100', log_url: 'tcp://127.0.0.1:7103'}
    zre: {broadcast: 10.0.0.255}
    farm:
      listen: tcp://127.0.0.1:7401
      endpoint: tcp://farm.example:7401
      certificate: c
      key: k
      ca: a
      passwords: p
      user: u
      secret_file: s
"""


def test_old_names_of_keys_are_read_for_one_release(tmp_path: Path) -> None:
    found = topology.load(write_topology(tmp_path, OLD))
    own = found.nodes["a"]
    assert found.raft.vote_retry_ms == 60
    assert found.log.snapshot_trailing_entries == 11
    assert found.zerodb.local_tables == (7,)
    assert found.zerodb.allow_stale_reads
    assert found.zerodb.spark == sections.SparkSettings(memory_bytes=1 << 30)
    assert found.broker.heartbeat_interval_ms == 600
    assert found.zre.static_peers == ("tcp://10.0.0.9:61001",)
    assert found.zre.expired_ms == 60_000
    assert found.farms["f"].initial_servers == (1,)
    assert found.farms["f"].user_server_ids == {"alice": 1}
    assert found.farms["f"].snapshot_trailing_entries == 12
    assert own.zerodb is not None
    assert own.zerodb.events_url == "tcp://127.0.0.1:7103"
    assert own.zre == NodeZreSettings(broadcast_address="10.0.0.255")
    assert own.farm == NodeFarmSettings(
        url="tcp://127.0.0.1:7401", public_url="tcp://farm.example:7401", certificate_file="c",
        key_file="k", ca_file="a", passwords_file="p", user="u", secret_file="s",
    )  # fmt: skip
    assert len(found.renamed) == len(renamed_keys()), "OLD has every old name"
    path = str(tmp_path / "t.yaml")
    assert found.renamed[0] == (
        f"{path}:2:8: raft.rpc_timeout_ms: the key 'rpc_timeout_ms' is renamed to "
        "'vote_retry_ms'; write `vote_retry_ms:`, the next release refuses the old name"
    )
    assert "write `allow_stale_reads: true`" in found.renamed[3]
    assert found.place("zre.expired_ms") == f"{path}:6:50: zre.expired_ms"


def test_defaults_of_one_file_do_not_leak_into_the_next(tmp_path: Path) -> None:
    path = write_topology(
        tmp_path,
        "cluster: c\nnodes: {a: {url: 'tcp://localhost:1', peer_url: 'tcp://localhost:2'}}\n",
    )
    assert topology.load(path) == topology.load(path)
    assert topology.load(path).raft.election_timeout_ms == (1000, 1500)


def test_the_shipped_topology(monkeypatch: pytest.MonkeyPatch) -> None:
    found = topology.load(str(ROOT / "topology.yaml"))
    assert found.own_nodes == ["n1", "n2", "n3"]
    assert found.nodes["n2"].url == "tcp://127.0.0.1:7202"
    assert found.nodes["n3"].broadcast_url == "tcp://127.0.0.1:7213"
    assert found.nodes["n1"].peer_url == "tcp://127.0.0.1:7221"
    assert found.node_settings("n3").table_endpoints.jobs_url == "tcp://127.0.0.1:7124"
    assert found.nodes["n1"].broker == sections.BrokerEndpoints(
        clients_url="tcp://127.0.0.1:7300", workers_url="tcp://127.0.0.1:7301"
    )
    assert {node.zre for node in found.nodes.values()} == {NodeZreSettings(interface="lo")}
    assert found.renamed == ()
    assert found.data_dir == ROOT / "var" / "demo"


NODE = "a: {url: 'tcp://h:1', peer_url: 'tcp://h:2'}"
NODES = f"nodes: {{{NODE}}}\n"
HEAD = "cluster: c\n" + NODES


def node(text: str) -> str:
    return f"cluster: c\nnodes:\n  a:\n    url: tcp://h:1\n    peer_url: tcp://h:2\n    {text}\n"


DURABLE = "broker: {services: {work: {durable: true}}}\n"
TABLES = "zerodb: {url: 'tcp://h:3'}"
# (name, text, line)
USERS = "passwords_file: p, user: u, secret_file: s"
FARM = node("farm: {{{}}}").replace("nodes:", "farms: {{f: {{servers: {{1: a}}}}}}\nnodes:")
KEY = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
MISTAKES = [
    ("empty", "", "t.yaml:1:1: the file is empty; write `cluster:` and `nodes:`"),
    ("comment only", "# x\n", "t.yaml:1:1: the file is empty; write `cluster:` and `nodes:`"),
    ("a list", "- a\n", "t.yaml:1:1: a topology is a mapping; write `cluster:` and `nodes:`"),
    ("a word", "x", "t.yaml:1:1: a topology is a mapping; write `cluster:` and `nodes:`"),
    ("two documents", HEAD + "---\na: 1\n",
     "t.yaml:3:1: a second document begins here; keep one document a file"),
    ("unknown key", HEAD + "clutser: x\n",
     "t.yaml:3:1: clutser: unknown key 'clutser'; did you mean 'cluster'?"),
    ("unknown key, nothing near", HEAD + "zzz: x\n",
     "t.yaml:3:1: zzz: unknown key 'zzz'; known: cluster, data, "
     "state_machine, nodes, security, limits, raft, log, clients, zerodb, broker, zre, farms"),
    ("unknown key in a section", HEAD + "raft:\n  heartbeat: 5\n",
     "t.yaml:4:3: raft.heartbeat: unknown key 'heartbeat'; did you mean 'heartbeat_ms'?"),
    ("unknown key in a node", node("peer-url: tcp://h:3"),
     "t.yaml:6:5: nodes.a.peer-url: unknown key 'peer-url'; did you mean 'peer_url'?"),
    ("duplicate key", HEAD + "cluster: d\n",
     "t.yaml:3:1: key 'cluster' is given twice, first in line 1; remove one of them"),
    ("duplicate node", "cluster: c\nnodes:\n  a: {}\n  a: {}\n",
     "t.yaml:4:3: key 'a' is given twice, first in line 3; remove one of them"),
    ("anchor", "cluster: &x c\n" + NODES,
     "t.yaml:1:10: anchor &x is not supported; write the value out"),
    ("alias", HEAD + "data: *x\n", "t.yaml:3:7: alias *x is not supported; write the value out"),
    ("merge key", HEAD + "raft: {<<: {}}\n",
     "t.yaml:3:8: merge key << is not supported; write the values out"),
    ("tag", HEAD + "data: !!python/object:os.system x\n",
     "t.yaml:3:7: tag tag:yaml.org,2002:python/object:os.system is not supported; "
     "write a plain value"),
    ("complex key", HEAD + "? [a]\n: b\n",
     "t.yaml:3:3: a key must be a word; write `key: value`"),
    ("deep", HEAD + "data: " + "[" * 30 + "]" * 30,
     "t.yaml:3:23: nested deeper than 16; write it flat"),
    ("tab", HEAD + "raft:\n\theartbeat_ms: 5\n",
     "t.yaml:4:1: YAML cannot be indented by a tab; use spaces"),
    ("unclosed", HEAD + "data: [a\n",
     "t.yaml:4:1: expected ',' or ']', but got '<stream end>'; correct the YAML there"),
    ("control character", HEAD + "data: a\x01b\n",
     "t.yaml:3:8: character '\\x01' is not allowed in YAML; remove it"),
    ("not UTF-8", HEAD + "data: \udcff\n",
     "t.yaml:3:7: byte 0xff is not UTF-8; save the file as UTF-8"),
    ("huge", "#" * 300_000, "t.yaml: larger than 256 KiB; split it if it is a topology"),
    ("no nodes", "cluster: c\n", "t.yaml:1:1: nodes: key 'nodes' is missing; add `nodes:`"),
    ("no cluster", NODES, "t.yaml:1:1: cluster: key 'cluster' is missing; add `cluster:`"),
    ("empty nodes", "cluster: c\nnodes: {}\n",
     "t.yaml:2:8: nodes: there is no node; add `n1:` with its `url:`"),
    ("nodes is a list", "cluster: c\nnodes: [a]\n",
     "t.yaml:2:8: nodes: must be a mapping of nodes; write `key: value` below it"),
    ("a node without anything", "cluster: c\nnodes:\n  a:\n",
     "t.yaml:3:5: nodes.a: must be a mapping of settings; write `key: value` below it"),
    ("a node without url", "cluster: c\nnodes:\n  a:\n    peer_url: tcp://h:1\n",
     "t.yaml:4:5: nodes.a: key 'url' is missing; add `url:`"),
    ("a node without peer_url", "cluster: c\nnodes:\n  a:\n    url: tcp://h:1\n",
     "t.yaml:3:3: nodes.a: key 'peer_url' is missing; add `peer_url:`, or a `dialect:`"),
    ("only foreign nodes", "cluster: c\nnodes: {a: {url: 'tcp://h:1', dialect: text}}\n",
     "t.yaml:2:8: nodes: kelek runs no node of this file; remove a `dialect:`"),
    ("a node's name", f"cluster: c\nnodes: {{'../a': {NODE[3:]}}}\n",
     "t.yaml:2:9: nodes: '../a' is not a name; "
     "use 1 to 32 letters, digits, dots, dashes or underscores"),
    ("a long cluster ident", f"cluster: {'c' * 33}\n" + NODES,
     f"t.yaml:1:10: cluster: '{'c' * 33}' is not a name; "
     "use 1 to 32 letters, digits, dots, dashes or underscores"),
    ("Spark without mappers", HEAD + "zerodb:\n  spark: {}\n",
     "t.yaml:4:10: zerodb.spark: Spark runs mappers, and `mapper` is off; "
     "add `mapper: wasm` to `zerodb:`, or remove this key"),
    ("Spark without url", node("zerodb: {pull_url: 'tcp://h:3'}")
     + "zerodb: {mapper: wasm, spark: {}}\n",
     "t.yaml:6:13: nodes.a.zerodb: key 'url' is missing: with `zerodb: {spark: ...}` tasks "
     "read the tables there; add `url:`"),
    ("no value", "cluster:\n" + NODES,
     "t.yaml:1:9: cluster: has no value; write a name, or remove the key"),
    ("a mapping for a word", "cluster: {a: b}\n" + NODES,
     "t.yaml:1:10: cluster: must be a name; write one value"),
    ("not a number", HEAD + "raft: {heartbeat_ms: soon}\n",
     "t.yaml:3:22: raft.heartbeat_ms: 'soon' is not a time; "
     "write a time from 5 to 30000 (ms; or with a unit: ms, s, min, h)"),
    ("negative", HEAD + "raft: {heartbeat_ms: -5}\n",
     "t.yaml:3:22: raft.heartbeat_ms: '-5' is not a time; "
     "write a time from 5 to 30000 (ms; or with a unit: ms, s, min, h)"),
    ("out of range", HEAD + "raft: {append_inflight_max: 0}\n",
     "t.yaml:3:29: raft.append_inflight_max: 0 is out of range; "
     "write a whole number from 1 to 1024"),
    ("far out of range", HEAD + f"raft: {{append_inflight_max: {'9' * 5000}}}\n",
     f"t.yaml:3:29: raft.append_inflight_max: '{'9' * 5000}' is not a whole number; "
     "write a whole number from 1 to 1024"),
    ("unknown unit", HEAD + "log: {segment_bytes: 1 MB}\n",
     "t.yaml:3:22: log.segment_bytes: unknown unit 'MB'; did you mean 'MiB'?"),
    ("a unit where none belongs", HEAD + "raft: {append_inflight_max: 4s}\n",
     "t.yaml:3:29: raft.append_inflight_max: unknown unit 's'; write the number without a unit"),
    ("one time instead of two", HEAD + "raft: {election_timeout_ms: 200}\n",
     "t.yaml:3:29: raft.election_timeout_ms: must be two times; write [1000, 1500]"),
    ("times in the wrong order", HEAD + "raft: {election_timeout_ms: [300, 200]}\n",
     "t.yaml:3:29: raft.election_timeout_ms: 300 is not below 200; write [smallest, largest]"),
    ("heartbeat above the election", HEAD + "raft: {heartbeat_ms: 1000}\n",
     "t.yaml:3:22: raft.heartbeat_ms: 1000 ms is not below the smallest election timeout, 1000 ms; "
     "make it a third of that"),
    ("a bool in words", HEAD + "raft: {pre_vote: yes}\n",
     "t.yaml:3:18: raft.pre_vote: 'yes' is not true or false; write true or false"),
    ("unknown choice", HEAD + "log: {writer: proces}\n",
     "t.yaml:3:15: log.writer: unknown writer 'proces'; did you mean 'process'?"),
    ("url without port", node("broadcast_url: tcp://127.0.0.1"),
     "t.yaml:6:20: nodes.a.broadcast_url: 'tcp://127.0.0.1' is not a url; "
     "write tcp://HOST:PORT or ipc:///PATH"),
    ("url with another scheme", node("broadcast_url: http://h:1"),
     "t.yaml:6:20: nodes.a.broadcast_url: unknown scheme 'http'; "
     "write tcp://HOST:PORT or ipc:///PATH"),
    ("url with a path", node("broadcast_url: tcp://h:1/x"),
     "t.yaml:6:20: nodes.a.broadcast_url: 'tcp://h:1/x' is not a url; "
     "write tcp://HOST:PORT or ipc:///PATH"),
    ("wildcard", node("broadcast_url: tcp://*:5"),
     "t.yaml:6:20: nodes.a.broadcast_url: other nodes cannot connect to *; "
     "write this node's own address"),
    ("port out of range", node("broadcast_url: tcp://h:70000"),
     "t.yaml:6:20: nodes.a.broadcast_url: port 70000 is out of range; "
     "write a port from 1 to 65535"),
    ("port twice in a node", node("broadcast_url: tcp://h:2"),
     "t.yaml:6:20: nodes.a.broadcast_url: tcp://h:2 is already used by nodes.a.peer_url in "
     "line 5; give each its own address"),
    ("no list of tables", HEAD + "zerodb: {local_tables: 7}\n",
     "t.yaml:3:24: zerodb.local_tables: must be a list of table numbers; write [7, 100-199]"),
    ("no table", HEAD + "zerodb: {local_tables: [1, x]}\n",
     "t.yaml:3:28: zerodb.local_tables: 'x' is neither a table number nor a range of them; "
     "write [7, 100-199]"),
    ("a table beyond", HEAD + "zerodb: {local_tables: [4294967296]}\n",
     "t.yaml:3:25: zerodb.local_tables: '4294967296' is neither a table number nor a range "
     "of them; write [7, 100-199]"),
    ("too many tables", HEAD + "zerodb: {local_tables: [0-65536]}\n",
     "t.yaml:3:25: zerodb.local_tables: more than 65536 tables; list fewer"),
    ("no url of the tables", node("zerodb: {events_url: 'tcp://h:3'}"),
     "t.yaml:6:13: nodes.a.zerodb: there is no address for requests; "
     "add one of url, pull_url, sub_url, jobs_url"),
    ("a url in use", node("zerodb: {url: 'tcp://h:2'}"),
     "t.yaml:6:19: nodes.a.zerodb.url: tcp://h:2 is already used by nodes.a.peer_url in "
     "line 5; give each its own address"),
    ("a broker without workers_url", node("broker: {clients_url: 'tcp://h:3'}"),
     "t.yaml:6:13: nodes.a.broker: key 'workers_url' is missing; add `workers_url:`"),
    ("a url of a broker in use",
     node("broker: {clients_url: 'tcp://h:2', workers_url: 'tcp://h:3'}"),
     "t.yaml:6:27: nodes.a.broker.clients_url: tcp://h:2 is already used by nodes.a.peer_url in "
     "line 5; give each its own address"),
    ("a broker of a foreign node",
     node("dialect: text\n    broker: {clients_url: 'tcp://h:3', workers_url: 'tcp://h:4'}"),
     "t.yaml:7:13: nodes.a.broker: kelek does not run this node, its dialect is text; "
     "remove `broker:` or `dialect:`"),
    ("a header used twice", HEAD + "broker: {worker_header: KLKC01}\n",
     "t.yaml:3:25: broker.worker_header: KLKC01 is already another header; choose another one"),
    ("ZRE of a foreign node", node("dialect: text\n    zre: {}"),
     "t.yaml:7:10: nodes.a.zre: kelek does not run this node, its dialect is text; "
     "remove `zre:` or `dialect:`"),
    ("no address to broadcast to", node("zre: {broadcast_address: x}"),
     "t.yaml:6:30: nodes.a.zre.broadcast_address: 'x' is neither an IPv4 address nor an IPv6 "
     "multicast group; "
     "write a broadcast address, for example 10.0.0.255 or ff02::1"),
    ("no mailbox", HEAD + "zre: {static_peers: ['tcp://host:1']}\n",
     "t.yaml:3:22: zre.static_peers: 'tcp://host:1' is not a mailbox's endpoint; "
     "write tcp://ADDRESS:PORT"),
    ("no subnet", HEAD + "zre: {subnets: [10.0.0.1/24]}\n",
     "t.yaml:3:17: zre.subnets: '10.0.0.1/24' is not a subnet: 10.0.0.1/24 has host bits set; "
     "write subnets, as 10.1.0.0/16"),
    ("no list of mailboxes", HEAD + "zre: {static_peers: x}\n",
     "t.yaml:3:21: zre.static_peers: must be a list of tcp://ADDRESS:PORT; write [first, second]"),
    ("expired before silent", HEAD + "zre: {expired_ms: 4 s}\n",
     "t.yaml:3:19: zre.expired_ms: 4000 ms is not above `silent_ms`, 10000 ms; make it larger"),
    ("tables of a foreign node", node("dialect: text\n    zerodb: {url: 'tcp://h:3'}"),
     "t.yaml:7:13: nodes.a.zerodb: kelek does not run this node, its dialect is text; "
     "remove `zerodb:` or `dialect:`"),
    ("a node without a farm", node("farm: {url: 'tcp://127.0.0.1:3', i2p: true}"),
     "t.yaml:6:11: nodes.a.farm: no farm names this node; "
     "name it in the `servers` of one of `farms:`"),
    ("no node of a farm", HEAD + "farms: {f: {servers: {1: b}}}\n",
     "t.yaml:3:26: farms.f.servers.1: no node 'b' has `farm:`; "
     "give that node its `farm:`, or write tcp://HOST:PORT"),
    ("no id", HEAD + "farms: {f: {servers: {x: 'tcp://h:1'}}}\n",
     "t.yaml:3:23: farms.f.servers.x: 'x' is not a server id; write 1 to 2147483647"),
    ("no endpoint of a server", HEAD + "farms: {f: {servers: {1: 'tcp://h:0'}}}\n",
     "t.yaml:3:26: farms.f.servers.1: 'tcp://h:0' is not an endpoint: 'tcp://h:0' has a port "
     "outside 1 to 65535; write tcp://HOST:PORT"),
    ("an unknown initial server",
     HEAD + "farms: {f: {servers: {1: 'tcp://h:1'}, initial_servers: [2]}}\n",
     "t.yaml:3:57: farms.f.initial_servers: 2 is not in `servers`; write ids of `servers`"),
    ("no role", HEAD + "farms: {f: {servers: {1: 'tcp://h:1'}, roles: {ann: [write]}}}\n",
     "t.yaml:3:54: farms.f.roles.ann: 'write' is not a role; write read, append, admin"),
    ("a farm without TLS at a public address", FARM.format("url: 'tcp://10.0.0.1:3', i2p: true"),
     "t.yaml:7:17: nodes.a.farm.url: without TLS it must be a loopback address; "
     "write 127.0.0.1"),
    ("servers without TLS elsewhere", FARM.format(f"url: 'tcp://127.0.0.1:3', i2p: true, {USERS}")
     .replace("1: a", "1: a, 2: 'tcp://10.0.0.2:3'"),
     "t.yaml:2:32: farms.f.servers.2: node a would connect to tcp://10.0.0.2:3 without TLS; "
     "give that node `proxy:` with `i2p: true`, or TLS"),
    ("JRaft servers at other hosts", FARM.format("url: 'tcp://127.0.0.1:3', insecure_jraft: true")
     .replace("1: a", "1: a, 2: 'tcp://farm.example:3'"),
     "t.yaml:2:32: farms.f.servers.2: node a would connect to tcp://farm.example:3 without TLS; "
     "give that node `proxy:` with `i2p: true`, or TLS"),
    ("a proxy and TLS", FARM.format("url: 'tcp://10.0.0.1:3', proxy: 'h:1'"),
     "t.yaml:7:44: nodes.a.farm.proxy: a proxy needs HOST:PORT and `i2p: true`; "
     "correct it, or add `i2p: true`"),
    ("a farm without users", FARM.format("url: 'tcp://127.0.0.1:3', i2p: true"),
     "t.yaml:7:11: nodes.a.farm: key 'passwords_file' is missing; add `passwords_file:`"),
    ("old and new name", HEAD + "zre: {expired_ms: 1 min, dead_ms: 1 min}\n",
     "t.yaml:3:26: zre.dead_ms: 'expired_ms' and 'dead_ms' are the same key; "
     "remove `dead_ms:`, the old name"),
    ("new and old name", HEAD + "zerodb: {stale: allowed, allow_stale_reads: true}\n",
     "t.yaml:3:26: zerodb.allow_stale_reads: 'stale' and 'allow_stale_reads' are the same key; "
     "remove `stale:`, the old name"),
    ("unknown value of an old name", HEAD + "zerodb: {stale: maybe}\n",
     "t.yaml:3:17: zerodb.stale: unknown stale 'maybe'; known: refused, allowed"),
    ("relative ipc", node("broadcast_url: ipc://x"),
     "t.yaml:6:20: nodes.a.broadcast_url: ipc path 'x' is not absolute; write ipc:///PATH"),
    ("long ipc", node("broadcast_url: ipc:///" + "x" * 107),
     "t.yaml:6:20: nodes.a.broadcast_url: ipc path has 108 bytes, a socket's "
     "address holds 107; use a shorter directory"),
    ("an address of another node", GOOD.replace("tcp://[fe80::1]:7201", "tcp://10.0.0.1:7221"),
     "t.yaml:31:10: nodes.b.url: tcp://10.0.0.1:7221 is already used by nodes.a.peer_url in "
     "line 24; give each its own address"),
    ("too many nodes", "cluster: c\nnodes:\n" + "".join(
        f"  n{i}: {{url: 'tcp://h:{i + 1}'}}\n" for i in range(65)),
     "t.yaml:67:3: nodes: more than 64 nodes; use more clusters"),
    ("durable services without tables", HEAD + DURABLE,
     "t.yaml:3:37: broker.services.work.durable: durable requests are stored in a replicated "
     "table, and no node has tables; add `zerodb: {url: ...}` to the nodes, or remove this key"),
    ("a durable service of a node without tables",
     f"{DURABLE}{node(TABLES)}  b: {{url: 'tcp://i:1', "
     "peer_url: 'tcp://i:2', broker: {clients_url: 'tcp://i:3', workers_url: 'tcp://i:3'}}\n",
     "t.yaml:1:37: broker.services.work.durable: the broker of b stores durable requests in the "
     "tables of its own node, which has none; "
     "add `zerodb: {url: ...}` to b, or remove this key"),
    ("durable requests in a local table",
     f"zerodb: {{local_tables: [4294967290-4294967295]}}\n{DURABLE}{node(TABLES)}",
     "t.yaml: broker.store.table: table 4294967294 is local, but durable requests need a "
     "replicated table; choose a table that is not in `zerodb: {local_tables: ...}`"),
    ("too few connections", HEAD + "limits: {connections_max: 7}\n",
     "t.yaml:3:27: limits.connections_max: 7 is out of range; "
     "write a whole number from 8 to 65536"),
    ("messages that do not fit", HEAD + "limits: {held_bytes_max: 256 MiB}\n"
     "broker: {message_bytes_max: 256 MiB}\n",
     "t.yaml:4:29: broker.message_bytes_max: a message is not below `limits.held_bytes_max`, "
     "268435456 bytes; make it smaller, or the limit larger"),
    ("a service of the broker", HEAD + "broker: {services: {mmi.x: {}}}\n",
     "t.yaml:3:21: broker.services: the prefix of 'mmi.x' is reserved for the broker's own "
     "services; choose another name"),
    ("no service name", HEAD + "broker: {services: {\u00e4: {}}}\n",
     "t.yaml:3:21: broker.services: '\u00e4' is not a service name; "
     "use 1 to 255 printable characters of ASCII"),
    ("unknown key of a service", HEAD + "broker: {services: {a b: {durabel: true}}}\n",
     "t.yaml:3:27: broker.services.a b.durabel: unknown key 'durabel'; did you mean 'durable'?"),
    ("a service's answers kept for no time", HEAD + "broker: {services: {a: {reply_ttl_s: 0}}}\n",
     "t.yaml:3:38: broker.services.a.reply_ttl_s: 0 is out of range; "
     "write a time from 1 to 2592000 (s; or with a unit: s, min, h, d)"),
    ("a lease of a broker that is too short", HEAD + "broker: {store: {lease_ms: 1 ms}}\n",
     "t.yaml:3:28: broker.store.lease_ms: 1 ms is out of range; "
     "write a time from 500 to 600000 (ms; or with a unit: ms, s, min, h)"),
    ("an address for all without CURVE", node("dialect: kelek"),
     "t.yaml:4:10: nodes.a.url: tcp://h:1 has no CURVE, and other machines reach it; "
     "add `security:` (docs/security.md), or `insecure: [url]` to a"),
    ("metrics for all without insecure",
     node("insecure: [url, peer_url]\n    metrics: 0.0.0.0:9100"),
     "t.yaml:7:14: nodes.a.metrics: tcp://0.0.0.0:9100 has no CURVE, and other machines reach it; "
     "write 127.0.0.1:PORT, or add `insecure: [metrics]` to a"),
    ("metrics at a url", node("metrics: 'tcp://127.0.0.1:9100'"),
     "t.yaml:6:14: nodes.a.metrics: 'tcp://127.0.0.1:9100' is not HOST:PORT; "
     "write 127.0.0.1:9100"),
    ("metrics without a port", node("metrics: localhost"),
     "t.yaml:6:14: nodes.a.metrics: 'localhost' is not HOST:PORT; write 127.0.0.1:9100"),
    ("metrics of another implementation", node("metrics: localhost:9100\n    dialect: text"),
     "t.yaml:6:14: nodes.a.metrics: kelek does not run this node, its dialect is text; "
     "remove `metrics:` or `dialect:`"),
    ("an unknown insecure endpoint", node("insecure: [urls]"),
     "t.yaml:6:15: nodes.a.insecure: no endpoint 'urls'; did you mean 'url'?"),
    ("no key", node("") + "security: {}\n",
     "t.yaml:3:3: nodes.a: there is neither `server_key` nor keys/a.key beside this file; "
     "kelek keys new a"),
    ("a malformed key", node("server_key: abc"),
     "t.yaml:6:17: nodes.a.server_key: a key has 40 characters of Z85; "
     "write what `kelek keys show` prints, in quotes"),
    ("a key without security", node(f"server_key: '{KEY}'"),
     "t.yaml:6:17: nodes.a.server_key: the file has no `security:`; add `security: {}`"),
    ("the same key twice", "cluster: c\nsecurity: {}\nnodes:\n"
     + "".join(
         f"  {name}: {{url: 'tcp://h:{port}', peer_url: 'tcp://i:{port}', server_key: '{KEY}'}}\n"
         for name, port in (("a", 1), ("b", 2))),
     "t.yaml:5:60: nodes.b.server_key: it is the key of a; give each node its own"),
    ("foreign peers without grants",
     node(f"server_key: '{KEY}'\n    foreign_url: tcp://127.0.0.1:3") + "security: {}\n",
     "t.yaml:7:18: nodes.a.foreign_url: nodes.a has no `foreign_grants`; "
     "say what foreign peers may do: `foreign_grants: log.read`"),
    ("unknown grants", node("foreign_grants: log.raed"),
     "t.yaml:6:21: nodes.a.foreign_grants: log.raed: no such grant; use log.read, log.append, "
     "tables:RANGES:r or :rw, services:PATTERNS, jobs, worker:PATTERNS, observer, admin, zre, "
     "peer or internal; write them as `kelek keys allow --grant` takes them"),
    ("foreign peers of the network",
     node(f"server_key: '{KEY}'\n    foreign_url: tcp://h:3\n    foreign_grants: log.read")
     + "security: {}\n",
     "t.yaml:7:18: nodes.a.foreign_url: tcp://h:3 has no CURVE, and other machines reach it; "
     "add `security:` (docs/security.md), or `insecure: [foreign_url]` to a"),
    ("two foreign addresses of one address",
     node(f"server_key: '{KEY}'\n    foreign_grants: worker:echo\n    broker: {{clients_url: "
          "'tcp://h:3', workers_url: 'tcp://h:3', foreign_workers_url: 'tcp://127.0.0.1:4'}")
     + "security: {}\n",
     "t.yaml:8:87: nodes.a.broker.foreign_workers_url: the broker has one address for clients "
     "and workers; remove this key: foreign workers use foreign_clients_url"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "line"), [it[1:] for it in MISTAKES], ids=[it[0] for it in MISTAKES]
)
def test_an_error_names_place_problem_and_way_out(tmp_path: Path, text: str, line: str) -> None:
    assert problem(tmp_path, text) == line


def test_endpoints_with_curve(tmp_path: Path) -> None:
    text = (
        "cluster: c\nsecurity: {mode: allow, key_file: k/admin}\nnodes:\n  a:\n"
        "    url: tcp://h:1\n    peer_url: tcp://h:2\n    broadcast_url: ipc:///tmp/b\n"
        f"    server_key: '{KEY}'\n    insecure: [zerodb.url]\n    foreign_grants: log.read\n"
        "    foreign_url: tcp://127.0.0.1:3\n"
        "    zerodb: {url: 'tcp://h:4', pull_url: 'tcp://h:5'}\n"
    )
    found = topology.load(write_topology(tmp_path, text))
    secured = {"tcp://h:1", "tcp://h:2", "tcp://h:5"}
    assert found.server_keys == {
        **dict.fromkeys(secured, KEY), "tcp://h:4": "", "ipc:///tmp/b": "", "tcp://127.0.0.1:3": ""
    }  # fmt: skip
    security = found.node_settings("a").security
    assert security == NodeSecurity(
        allow=str(tmp_path / "keys/allowed"),
        enforce=False,
        key_file=str(tmp_path / "keys/a.key_secret"),
        node_keys={"a": KEY},
        server_keys=found.server_keys,
        insecure=("zerodb.url",),
        foreign_grants="log.read",
    )
    found_open = found.open_endpoints("a")
    assert found_open.insecure == {"zerodb.url": "tcp://h:4"}
    assert found_open.foreign == {"foreign_url": "tcp://127.0.0.1:3"}


def test_insecure_endpoints_are_those_that_other_machines_reach(tmp_path: Path) -> None:
    text = (
        "cluster: c\nnodes:\n  a:\n    url: tcp://127.0.0.1:1\n    peer_url: tcp://h:2\n"
        "    broadcast_url: ipc:///tmp/b\n    zre: {interface: INTERFACE}\n"
        "    insecure: [url, peer_url, broadcast_url, zre]\n"
    )
    for interface, more in (("eth0", {"zre": ""}), ("lo", {}), ("127.0.0.1", {})):
        path = write_topology(tmp_path, text.replace("INTERFACE", interface))
        found = topology.load(path).open_endpoints("a")
        assert found == OpenEndpoints({"peer_url": "tcp://h:2", **more}, {})


def test_the_public_key_of_a_node_is_in_its_file(tmp_path: Path) -> None:
    path = write_topology(tmp_path, node("") + "security: {}\n")
    key = Certificate(decode_key(KEY), b"", {"name": "a"})
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "a.key").write_text(format_certificate(key))
    assert set(topology.load(path).server_keys.values()) == {KEY}
    (tmp_path / "keys" / "a.key").write_text("metadata\n")
    with pytest.raises(OperatorError, match=r"nodes\.a: .*a\.key: it has no public-key"):
        topology.load(path)


def test_files_that_expand_are_refused_at_once(tmp_path: Path) -> None:
    """Expanding sixty levels of nine merge keys each would never end."""
    levels = [f"l{i}: &l{i} {{<<: [{', '.join([f'*l{i - 1}'] * 9)}]}}" for i in range(1, 60)]
    line = problem(tmp_path, "l0: &l0 {a: b}\n" + "\n".join(levels))
    assert line == "t.yaml:1:5: anchor &l0 is not supported; write the value out"
    wide = problem(tmp_path, "data: [" + "a," * 60_000 + "]")
    assert wide.endswith("more than 10000 values; split the file")


@pytest.mark.parametrize("path", ["/dev/null", "/", "/nowhere/t.yaml"])
def test_a_path_without_a_file_is_an_error(path: str) -> None:
    with pytest.raises(OperatorError):
        topology.load(path)


def test_a_broker_stores_requests_in_the_tables_of_its_node(tmp_path: Path) -> None:
    tables = GOOD.replace("  b:\n", "  b:\n    zerodb: {url: 'tcp://127.0.0.2:7100'}\n")
    found = topology.load(
        write_topology(tmp_path, tables.replace("broker: {", DURABLE[:-2] + ", ", 1))
    )
    assert found.node_settings("a").store_urls == ("tcp://10.0.0.1:7100",)
    assert found.broker.services == {"work": sections.ServiceSettings(durable=True)}


def test_the_names_in_certificates_of_servers(tmp_path: Path) -> None:
    """Those of nodes at one host belong to each of their users."""
    files = "certificate_file: c, key_file: k, ca_file: a, passwords_file: p, secret_file: s"
    text = """cluster: c
farms:
  f:
    servers: {1: a, 2: b, 9: 'tcp://other.example:1'}
    server_users: [theirs]
    certificate_users: {laptop: [ann, bob]}
nodes:
"""
    for name, port in (("a", 1), ("b", 4)):
        text += f"""  {name}:
    url: tcp://127.0.0.1:{port}
    peer_url: tcp://127.0.0.1:{port + 1}
    farm: {{url: 'tcp://h:{port + 2}', server_name: 'farm.example', user: of-{name}, {files}}}
"""
    settings = topology.load(write_topology(tmp_path, text)).node_settings("a").farm
    assert settings is not None
    assert settings.farms["f"].certificate_users == {
        "h": ("of-a", "of-b"),
        "farm.example": ("of-a", "of-b"),
        "other.example": ("theirs",),
        "laptop": ("ann", "bob"),
    }


@given(
    st.lists(
        st.sampled_from(
            ["a: 1", "b:", "- x", "'q'", '"d\\n"', "{k: v, w: [1, 2]}", "[a, {b: c}]", " ", "  ",
             "\n", "# c", "é", "\t", "|", ">-", ": ", ",", "}", "? ", "&a", "!t", "*a", "---",
             "\u2028", "\x07", "~"]
        ),
        max_size=12,
    ).map("".join)
)  # fmt: skip
def test_libyaml_reads_as_the_parser_in_python_does(text: str) -> None:
    """Or it refuses: then the parser in Python decides, and says what is wrong."""
    if (found := yaml_tree.read_fast("f", text)) is not None:
        assert found == yaml_tree._Builder("f", text, yaml.SafeLoader).document()
