"""The topology: what is taken, and one golden line for each mistake."""

import json
from pathlib import Path

import pytest

from kelek.actors.errors import OperatorError
from kelek.actors.runtime import pipes, plan, run_dir
from kelek.actors.runtime.setup import ActorSetup
from kelek.actors.topology import topology

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
  segment_io: mmap
  writer: inline
clients:
  timeout_ms: 2 s
zerodb:
  workers: 2
  local: [7, 100-102]
  stale: allowed
  cache_bytes: 1 GiB
broker: {request_ttl_ms: 2 min}
zre: {port: 5671, static: ['tcp://10.0.0.9:61001'], subnets: [10.0.0.0/24], dead_ms: 1 min}
nodes:
  a:
    url: tcp://10.0.0.1:7201
    broadcast_url: tcp://10.0.0.1:7211
    peer_url: tcp://10.0.0.1:7221
    zerodb: {url: 'tcp://10.0.0.1:7100', sub_url: 'epgm://eth0;239.1.1.1:5555'}
    broker: {clients_url: 'tcp://10.0.0.1:7300', workers_url: 'tcp://10.0.0.1:7300'}
    zre: {interface: eth0, broadcast: 10.0.0.255, log_service: table}
  b:
    url: tcp://[fe80::1]:7201
    peer_url: ipc:///tmp/b.peers
  foreign:
    url: tcp://host.example.org:8000
    dialect: text
"""


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "t.yaml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    return str(path)


def problem(tmp_path: Path, text: str) -> str:
    path = write(tmp_path, text)
    with pytest.raises(OperatorError) as error:
        topology.load(path)
    line = str(error.value)
    assert "\n" not in line
    return line.replace(path, "t.yaml")


def test_everything_is_read(tmp_path: Path) -> None:
    found = topology.load(write(tmp_path, GOOD))
    assert found.cluster == "ring"
    assert found.data_dir == tmp_path / "here"
    assert found.raft["election_timeout_ms_min"] == 400
    assert found.raft["election_timeout_ms_max"] == 600
    assert found.raft["heartbeat_ms"] == 100
    assert found.raft["update_ttl_s"] == 7200
    assert found.raft["pre_vote"] is False
    assert found.raft["rpc_timeout_ms"] == 50, "a default"
    assert found.log["segment_bytes"] == 1 << 20
    assert found.log["segment_io"] == "mmap"
    assert found.log["writer"] == "inline"
    assert found.log["snapshot_entries"] == 4_000_000, "a default"
    assert found.clients == {"timeout_ms": 2000, "election_grace_ms": 300}
    assert found.zerodb["local"] == [7, 100, 101, 102]
    assert found.own_nodes == ["a", "b"]
    assert found.nodes["foreign"].peer_url == ""
    assert found.place("nodes.b.url").endswith("t.yaml:30:10: nodes.b.url")
    assert found.place("raft.rpc_timeout_ms").endswith("t.yaml: raft.rpc_timeout_ms")
    options = found.options("a")
    assert options["members"]["b"]["peer_url"] == "ipc:///tmp/b.peers"
    assert options["url"] == "tcp://10.0.0.1:7201"
    assert options["zerodb"]["url"] == "tcp://10.0.0.1:7100"
    assert options["zerodb"]["pull_url"] == ""
    assert options["zerodb"]["sub_url"] == "epgm://eth0;239.1.1.1:5555"
    assert options["zerodb"]["workers"] == 2
    assert options["zerodb"]["request_timeout_ms"] == 5000, "a default"
    places = found.option_places("a")
    assert places["zerodb.url"].endswith("t.yaml:26:19: nodes.a.zerodb.url")
    assert places["zerodb.stale"].endswith("t.yaml:17:10: zerodb.stale")
    assert options["broker"]["workers_url"] == options["broker"]["clients_url"]
    assert options["broker"]["request_ttl_ms"] == 120_000
    assert options["broker"]["client_header"] == "KLKC01", "a default"
    assert places["broker.workers_url"].endswith("t.yaml:27:63: nodes.a.broker.workers_url")
    assert options["zre"]["interface"] == "eth0"
    assert options["zre"]["broadcast"] == "10.0.0.255"
    assert options["zre"]["static"] == ["tcp://10.0.0.9:61001"]
    assert options["zre"]["dead_ms"] == 60_000
    assert options["zre"]["evasive_ms"] == 5000, "a default"
    assert places["zre.interface"].endswith("t.yaml:28:22: nodes.a.zre.interface")
    assert places["zre.port"].endswith("t.yaml:20:13: zre.port")
    assert not {"zerodb", "broker", "zre"} & set(found.options("b"))


def test_defaults_of_one_file_do_not_leak_into_the_next(tmp_path: Path) -> None:
    path = write(tmp_path, "cluster: c\nnodes: {a: {url: 'tcp://h:1', peer_url: 'tcp://h:2'}}\n")
    assert topology.load(path) == topology.load(path)
    assert topology.load(path).raft["election_timeout_ms_max"] == 300


def test_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    found = topology.load(str(ROOT / "topology.yaml"))
    assert found.own_nodes == ["n1", "n2", "n3"]
    assert found.nodes["n2"].url == "tcp://127.0.0.1:7202"
    assert found.nodes["n3"].broadcast_url == "tcp://127.0.0.1:7213"
    assert found.nodes["n1"].peer_url == "tcp://127.0.0.1:7221"
    assert found.nodes["n3"].zerodb["jobs_url"] == "tcp://127.0.0.1:7124"
    assert found.nodes["n1"].broker == {
        "clients_url": "tcp://127.0.0.1:7300",
        "workers_url": "tcp://127.0.0.1:7301",
    }
    assert {found.nodes[name].zre["interface"] for name in found.own_nodes} == {"lo"}
    assert found.data_dir == ROOT / "var" / "demo"


def test_where_a_topology_runs_is_known_without_reading_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, GOOD)
    monkeypatch.chdir(tmp_path)
    assert topology.load(path).run_dir == run_dir.of_topology("t.yaml")
    assert run_dir.of_topology("t.yaml") != run_dir.of_topology("u.yaml")


def test_the_plan_of_a_node(tmp_path: Path) -> None:
    text = GOOD.replace("writer: inline", "writer: process")
    found = topology.load(write(tmp_path, text))
    units = plan.node_plan(found, "a", one_process=False).units
    assert [[actor.role for actor in unit.actors] for unit in units] == [
        ["log_writer", "raft_peer"],
        ["snapshot_sender"],
        ["state_machine"],
        ["table_worker"],
        ["table_worker"],
        ["zerodb_server"],
        ["job_server"],
        ["broker"],
        ["zre_beacon"],
        ["zre_node"],
        ["zre_log"],
    ]
    assert [unit.name for unit in units[3:5]] == ["table_worker", "table_worker.2"]
    assert len(plan.node_plan(found, "b", one_process=False).units) == 3, "it has no tables"
    (unit,) = plan.node_plan(found, "a", one_process=True).units
    assert len(unit.actors) == 12
    spark = "zerodb:\n  mapper: wasm\n  spark: {memory: 2 GiB}"
    found = topology.load(write(tmp_path, GOOD.replace("zerodb:\n  workers: 2", spark)))
    assert found.options("a")["zerodb"]["spark"]["threshold_bytes"] == 256 << 20, "a default"
    units = plan.node_plan(found, "a", one_process=False).units
    assert "spark_job" in [unit.name for unit in units]
    assert len(plan.node_plan(found, "b", one_process=False).units) == 3, "it has no tables"
    for own in ("thread", "inline"):
        found = topology.load(write(tmp_path, GOOD.replace("writer: inline", f"writer: {own}")))
        assert len(plan.node_plan(found, "a", one_process=False).units[0].actors) == 1


def test_a_setup_survives_its_file(tmp_path: Path) -> None:
    found = topology.load(write(tmp_path, GOOD))
    node = plan.node_plan(found, "a", one_process=False)
    setup = ActorSetup(
        "a", "x", "x", "c", "/r", "/d", "ipc://c", 1 << 62, False, node.options, node.places
    )
    path = tmp_path / "setup.json"
    path.write_text(setup.to_json())
    assert ActorSetup.load(str(path)) == setup
    assert json.loads(setup.to_json())["epoch"] == 1 << 62


NODE = "a: {url: 'tcp://h:1', peer_url: 'tcp://h:2'}"
NODES = f"nodes: {{{NODE}}}\n"
HEAD = "cluster: c\n" + NODES


def node(text: str) -> str:
    return f"cluster: c\nnodes:\n  a:\n    url: tcp://h:1\n    peer_url: tcp://h:2\n    {text}\n"


# (name, text, line)
USERS = "passwords: p, user: u, secret_file: s"
FARM = node("farm: {{{}}}").replace("nodes:", "farms: {{f: {{servers: {{1: a}}}}}}\nnodes:")
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
     "t.yaml:3:1: zzz: unknown key 'zzz'; known are: cluster, data, "
     "state_machine, nodes, raft, log, clients, zerodb, broker, zre, farms"),
    ("unknown key in a section", HEAD + "raft:\n  heartbeat: 5\n",
     "t.yaml:4:3: raft.heartbeat: unknown key 'heartbeat'; did you mean 'heartbeat_ms'?"),
    ("unknown key in a node", node("peer-url: tcp://h:3"),
     "t.yaml:6:5: nodes.a.peer-url: unknown key 'peer-url'; did you mean 'peer_url'?"),
    ("duplicate key", HEAD + "cluster: d\n",
     "t.yaml:3:1: key 'cluster' is there twice, first in line 1; remove one of them"),
    ("duplicate node", "cluster: c\nnodes:\n  a: {}\n  a: {}\n",
     "t.yaml:4:3: key 'a' is there twice, first in line 3; remove one of them"),
    ("anchor", "cluster: &x c\n" + NODES,
     "t.yaml:1:10: anchor &x is not taken; write the value out"),
    ("alias", HEAD + "data: *x\n", "t.yaml:3:7: alias *x is not taken; write the value out"),
    ("merge key", HEAD + "raft: {<<: {}}\n",
     "t.yaml:3:8: merge key << is not taken; write the values out"),
    ("tag", HEAD + "data: !!python/object:os.system x\n",
     "t.yaml:3:7: tag tag:yaml.org,2002:python/object:os.system is not taken; "
     "write a plain value"),
    ("complex key", HEAD + "? [a]\n: b\n",
     "t.yaml:3:3: a key must be a word; write `key: value`"),
    ("deep", HEAD + "data: " + "[" * 30 + "]" * 30,
     "t.yaml:3:23: nested deeper than 16; write it flat"),
    ("tab", HEAD + "raft:\n\theartbeat_ms: 5\n",
     "t.yaml:4:1: a tab can't indent in YAML; write blanks"),
    ("unclosed", HEAD + "data: [a\n",
     "t.yaml:4:1: expected ',' or ']', but got '<stream end>'; correct the YAML there"),
    ("control character", HEAD + "data: a\x01b\n",
     "t.yaml:3:8: character '\\x01' is not allowed in YAML; remove it"),
    ("not UTF-8", HEAD + "data: \udcff\n",
     "t.yaml:3:7: byte 0xff is not UTF-8; save the file as UTF-8"),
    ("huge", "#" * 300_000, "t.yaml: larger than 256 KiB; is it a topology? split it"),
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
     "t.yaml:4:5: nodes.a: key 'peer_url' is missing; add `peer_url:`, or a `dialect:`"),
    ("only foreign nodes", "cluster: c\nnodes: {a: {url: 'tcp://h:1', dialect: text}}\n",
     "t.yaml:2:8: nodes: no node is ours; remove a `dialect:`"),
    ("a node's name", f"cluster: c\nnodes: {{'../a': {NODE[3:]}}}\n",
     "t.yaml:2:9: nodes: '../a' is not a name; "
     "use 1 to 32 letters, digits, dots, dashes or underscores"),
    ("a long cluster ident", f"cluster: {'c' * 33}\n" + NODES,
     f"t.yaml:1:10: cluster: '{'c' * 33}' is not a name; "
     "use 1 to 32 letters, digits, dots, dashes or underscores"),
    ("Spark without mappers", HEAD + "zerodb:\n  spark: {}\n",
     "t.yaml:4:10: zerodb.spark: Spark runs mappers, and they are switched off; "
     "add `mapper: wasm` to `zerodb:`, or remove this key"),
    ("Spark without a door", node("zerodb: {pull_url: 'tcp://h:3'}")
     + "zerodb: {mapper: wasm, spark: {}}\n",
     "t.yaml:6:13: nodes.a.zerodb: key 'url' is missing, and with `zerodb: {spark: ...}` tasks "
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
     "t.yaml:3:29: raft.election_timeout_ms: must be two times; write [200, 300]"),
    ("times in the wrong order", HEAD + "raft: {election_timeout_ms: [300, 200]}\n",
     "t.yaml:3:29: raft.election_timeout_ms: 300 is not below 200; write [smallest, largest]"),
    ("heartbeat above the election", HEAD + "raft: {heartbeat_ms: 300}\n",
     "t.yaml:3:22: raft.heartbeat_ms: 300 ms is not below the smallest election timeout, 200 ms; "
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
     "t.yaml:6:20: nodes.a.broadcast_url: * is no address that others can connect to; "
     "write this node's own address"),
    ("port out of range", node("broadcast_url: tcp://h:70000"),
     "t.yaml:6:20: nodes.a.broadcast_url: port 70000 is out of range; "
     "write a port from 1 to 65535"),
    ("port twice in a node", node("broadcast_url: tcp://h:2"),
     "t.yaml:6:20: nodes.a.broadcast_url: tcp://h:2 is taken already by nodes.a.peer_url in "
     "line 5; give each its own address"),
    ("no list of tables", HEAD + "zerodb: {local: 7}\n",
     "t.yaml:3:17: zerodb.local: must be a list of table numbers; write [7, 100-199]"),
    ("no table", HEAD + "zerodb: {local: [1, x]}\n",
     "t.yaml:3:21: zerodb.local: 'x' is no table number, nor a range of them; "
     "write [7, 100-199]"),
    ("a table beyond", HEAD + "zerodb: {local: [4294967296]}\n",
     "t.yaml:3:18: zerodb.local: '4294967296' is no table number, nor a range of them; "
     "write [7, 100-199]"),
    ("too many tables", HEAD + "zerodb: {local: [0-65536]}\n",
     "t.yaml:3:18: zerodb.local: more than 65536 tables; list fewer"),
    ("no door to the tables", node("zerodb: {log_url: 'tcp://h:3'}"),
     "t.yaml:6:13: nodes.a.zerodb: there is no door; "
     "add one of url, pull_url, sub_url, jobs_url"),
    ("a door taken already", node("zerodb: {url: 'tcp://h:2'}"),
     "t.yaml:6:19: nodes.a.zerodb.url: tcp://h:2 is taken already by nodes.a.peer_url in "
     "line 5; give each its own address"),
    ("a broker without a door", node("broker: {clients_url: 'tcp://h:3'}"),
     "t.yaml:6:13: nodes.a.broker: key 'workers_url' is missing; add `workers_url:`"),
    ("a broker's door taken already",
     node("broker: {clients_url: 'tcp://h:2', workers_url: 'tcp://h:3'}"),
     "t.yaml:6:27: nodes.a.broker.clients_url: tcp://h:2 is taken already by nodes.a.peer_url in "
     "line 5; give each its own address"),
    ("a broker of a foreign node",
     node("dialect: text\n    broker: {clients_url: 'tcp://h:3', workers_url: 'tcp://h:4'}"),
     "t.yaml:7:13: nodes.a.broker: this node is not ours; remove `broker:` or `dialect:`"),
    ("one header for two", HEAD + "broker: {worker_header: KLKC01}\n",
     "t.yaml:3:25: broker.worker_header: KLKC01 is a header of others, too; choose another one"),
    ("a foreign node that is found", node("dialect: text\n    zre: {}"),
     "t.yaml:7:10: nodes.a.zre: this node is not ours; remove `zre:` or `dialect:`"),
    ("no address to broadcast to", node("zre: {broadcast: x}"),
     "t.yaml:6:22: nodes.a.zre.broadcast: 'x' is no IPv4 address, nor a multicast group of IPv6; "
     "write the address that reaches all, as 10.0.0.255 or ff02::1"),
    ("no mailbox", HEAD + "zre: {static: ['tcp://host:1']}\n",
     "t.yaml:3:16: zre.static: 'tcp://host:1' is no endpoint of a mailbox; "
     "write tcp://ADDRESS:PORT"),
    ("no subnet", HEAD + "zre: {subnets: [10.0.0.1/24]}\n",
     "t.yaml:3:17: zre.subnets: '10.0.0.1/24' is no subnet: 10.0.0.1/24 has host bits set; "
     "write subnets, as 10.1.0.0/16"),
    ("no list of mailboxes", HEAD + "zre: {static: x}\n",
     "t.yaml:3:15: zre.static: must be a list of tcp://ADDRESS:PORT; write [first, second]"),
    ("dead before it is asked", HEAD + "zre: {dead_ms: 4 s}\n",
     "t.yaml:3:16: zre.dead_ms: 4000 ms is not above `silent_ms`, 10000 ms; make it larger"),
    ("tables of a foreign node", node("dialect: text\n    zerodb: {url: 'tcp://h:3'}"),
     "t.yaml:7:13: nodes.a.zerodb: this node is not ours; remove `zerodb:` or `dialect:`"),
    ("a node that no farm names", node("farm: {listen: 'tcp://127.0.0.1:3', i2p: true}"),
     "t.yaml:6:11: nodes.a.farm: no farm names this node; "
     "name it in the `servers` of one of `farms:`"),
    ("no node of a farm", HEAD + "farms: {f: {servers: {1: b}}}\n",
     "t.yaml:3:26: farms.f.servers.1: no node 'b' has `farm:`; "
     "give that node its `farm:`, or write tcp://HOST:PORT"),
    ("no id", HEAD + "farms: {f: {servers: {x: 'tcp://h:1'}}}\n",
     "t.yaml:3:23: farms.f.servers.x: 'x' is no server's id; write 1 to 2147483647"),
    ("no endpoint of a server", HEAD + "farms: {f: {servers: {1: 'tcp://h:0'}}}\n",
     "t.yaml:3:26: farms.f.servers.1: 'tcp://h:0' is no endpoint: 'tcp://h:0' has no port that "
     "there is; write tcp://HOST:PORT"),
    ("begun by a stranger", HEAD + "farms: {f: {servers: {1: 'tcp://h:1'}, begin: [2]}}\n",
     "t.yaml:3:47: farms.f.begin: 2 is not in `servers`; write ids of `servers`"),
    ("plain for everybody", FARM.format("listen: 'tcp://10.0.0.1:3', i2p: true"),
     "t.yaml:7:20: nodes.a.farm.listen: without TLS only a loopback address is served; "
     "write 127.0.0.1"),
    ("neighbours without TLS", FARM.format(f"listen: 'tcp://127.0.0.1:3', i2p: true, {USERS}")
     .replace("1: a", "1: a, 2: 'tcp://10.0.0.2:3'"),
     "t.yaml:2:32: farms.f.servers.2: node a would connect to tcp://10.0.0.2:3 without TLS; "
     "give that node `proxy:` with `i2p: true`, or TLS"),
    ("JRaft elsewhere", FARM.format("listen: 'tcp://127.0.0.1:3', insecure_jraft: true")
     .replace("1: a", "1: a, 2: 'tcp://farm.example:3'"),
     "t.yaml:2:32: farms.f.servers.2: node a would connect to tcp://farm.example:3 without TLS; "
     "give that node `proxy:` with `i2p: true`, or TLS"),
    ("a proxy and TLS", FARM.format("listen: 'tcp://10.0.0.1:3', proxy: 'h:1'"),
     "t.yaml:7:47: nodes.a.farm.proxy: a proxy has HOST:PORT, and is used with `i2p: true`; "
     "mend one of both"),
    ("a farm without users", FARM.format("listen: 'tcp://127.0.0.1:3', i2p: true"),
     "t.yaml:7:11: nodes.a.farm: key 'passwords' is missing; add `passwords:`"),
    ("relative ipc", node("broadcast_url: ipc://x"),
     "t.yaml:6:20: nodes.a.broadcast_url: ipc path 'x' is not absolute; write ipc:///PATH"),
    ("long ipc", node("broadcast_url: ipc:///" + "x" * 107),
     "t.yaml:6:20: nodes.a.broadcast_url: ipc path has 108 bytes, 107 fit into a socket's "
     "address; use a shorter directory"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "line"), [it[1:] for it in MISTAKES], ids=[it[0] for it in MISTAKES]
)
def test_a_mistake_has_place_problem_and_way_out(tmp_path: Path, text: str, line: str) -> None:
    assert problem(tmp_path, text) == line


def test_a_port_is_taken_by_another_node(tmp_path: Path) -> None:
    line = problem(tmp_path, GOOD.replace("tcp://[fe80::1]:7201", "tcp://10.0.0.1:7221"))
    assert line == (
        "t.yaml:30:10: nodes.b.url: tcp://10.0.0.1:7221 is taken already by nodes.a.peer_url in "
        "line 25; give each its own address"
    )


def test_too_many_nodes(tmp_path: Path) -> None:
    nodes = "".join(f"  n{i}: {{url: 'tcp://h:{i + 1}'}}\n" for i in range(65))
    assert problem(tmp_path, f"cluster: c\nnodes:\n{nodes}").endswith(
        "nodes: more than 64 nodes; use more clusters"
    )


def test_a_bomb_is_refused_at_once(tmp_path: Path) -> None:
    """Sixty levels of nine merge keys each: a reader that expands them never ends."""
    levels = [f"l{i}: &l{i} {{<<: [{', '.join([f'*l{i - 1}'] * 9)}]}}" for i in range(1, 60)]
    line = problem(tmp_path, "l0: &l0 {a: b}\n" + "\n".join(levels))
    assert line == "t.yaml:1:5: anchor &l0 is not taken; write the value out"
    wide = problem(tmp_path, "data: [" + "a," * 60_000 + "]")
    assert wide.endswith("more than 10000 values; split the file")


@pytest.mark.parametrize("path", ["/dev/null", "/", "/nowhere/t.yaml"])
def test_no_file(path: str) -> None:
    with pytest.raises(OperatorError):
        topology.load(path)


def test_pipes() -> None:
    assert pipes.endpoint("/r", "n1", "raft_peer", "jobs") == "ipc:///r/n1/raft_peer.jobs"
    assert pipes.endpoint("inproc://k", "n1", "a", "s") == "inproc://k/n1/a.s"
    with pytest.raises(OperatorError, match="at most 107 bytes, this has 1"):
        pipes.endpoint("/" + "r" * 100, "n1", "raft_peer", "jobs")


def test_a_run_directory_must_be_ours_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    base = run_dir.of_topology("t.yaml").parent
    assert base == tmp_path / "kelek"
    base.mkdir(mode=0o777)
    pipes.make_private(base)
    assert base.stat().st_mode & 0o777 == 0o700
    (base / "link").symlink_to(tmp_path)
    with pytest.raises(OperatorError, match="is not a directory of this user"):
        pipes.make_private(base / "link")


KEPT = "broker: {services: {work: {durable: true}}}\n"


@pytest.mark.parametrize(
    ("nodes", "broker", "place", "problem"),
    [
        ("", KEPT, "broker.services.work.durable", "no node has a door to tables"),
        (
            ', zerodb: {url: "tcp://127.0.0.1:7100"}}, n2: {url: "tcp://127.0.0.1:7202", '
            'peer_url: "tcp://127.0.0.1:7222", broker: {clients_url: "tcp://127.0.0.1:7302", '
            'workers_url: "tcp://127.0.0.1:7303"}',
            KEPT,
            "broker.services.work.durable",
            "n2 has a broker, which keeps durable requests by its own node's tables",
        ),
        (
            ', zerodb: {url: "tcp://127.0.0.1:7100"}',
            "zerodb: {local: [4294967290-4294967295]}\n" + KEPT,
            "broker.store.table",
            "is local",
        ),
        ("", "broker: {services: {mmi.x: {}}}\n", "broker.services", "the broker's own"),
        ("", "broker: {services: {\u00e4: {}}}\n", "broker.services", "is no name of a service"),
        ("", "broker: {services: {a b: {durabel: true}}}\n", "a b.durabel", "unknown key"),
        ("", "broker: {services: {a: {reply_ttl_s: 0}}}\n", "a.reply_ttl_s", "out of range"),
        ("", "broker: {store: {lease_ms: 1 ms}}\n", "broker.store.lease_ms", "out of range"),
    ],
)
def test_what_durable_services_need(
    tmp_path: Path, nodes: str, broker: str, place: str, problem: str
) -> None:
    path = tmp_path / "t.yaml"
    node = 'n1: {url: "tcp://127.0.0.1:7201", peer_url: "tcp://127.0.0.1:7221"'
    nodes = nodes.replace("}, n2", "}\n  n2")
    path.write_text(f"cluster: c\n{broker}nodes:\n  {node}{nodes}}}\n", encoding="utf-8")
    with pytest.raises(OperatorError) as found:
        topology.load(str(path))
    assert place in str(found.value)
    assert problem in str(found.value)


def test_a_broker_asks_its_own_nodes_tables(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    lines = [
        f'  n{n}: {{url: "tcp://127.0.0.1:720{n}", peer_url: "tcp://127.0.0.1:722{n}",'
        f' zerodb: {{url: "tcp://127.0.0.1:710{n}"}},'
        f' broker: {{clients_url: "tcp://127.0.0.1:73{n}0",'
        f' workers_url: "tcp://127.0.0.1:73{n}1"}}}}'
        for n in (1, 2, 3)
    ]
    path.write_text(f"cluster: c\n{KEPT}nodes:\n" + "\n".join(lines) + "\n", encoding="utf-8")
    options = topology.load(str(path)).options("n2")["broker"]
    assert options["store"]["urls"] == ["tcp://127.0.0.1:7102"]
    assert options["services"] == {"work": {"durable": True, "reply_ttl_s": 60}}
