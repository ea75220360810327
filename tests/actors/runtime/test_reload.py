"""Which units a changed topology concerns, and that actors read only what READERS says."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kelek.actors.errors import OperatorError
from kelek.actors.runtime.reload import TopologySource, order_for, readers_of
from kelek.actors.runtime.units import RESTART, UPDATE
from kelek.actors.topology import topology
from kelek.bench.ports import free_ports, free_udp_port
from kelek.tests.actors.conftest import FAKES

ALL = {"raft", "snapshot_sender", "state_machine", "table_worker", "zerodb_server", "job_server",
       "broker"}  # fmt: skip


def source_of(path: Path, text: str, one_process: bool = False) -> TopologySource:
    path.write_text(text)
    return TopologySource(topology.load(str(path)), ["n1"], one_process)


def orders(path: Path, text: str, changed: str, one_process: bool = False) -> dict[str, str]:
    """What each unit of n1 that a change of the file concerns needs."""
    source = source_of(path, text, one_process)
    old = source.running.nodes["n1"]
    path.write_text(changed)
    new = source.read().nodes["n1"]
    found = {unit.name: order_for(old, new, unit) for unit in old.units}
    return {name: order for name, order in found.items() if order}


TEXT = """\
cluster: ring
nodes:
  n1:
    url: ipc:///a
    peer_url: ipc:///ap
    zerodb: {url: 'ipc:///z'}
    broker: {clients_url: 'ipc:///c', workers_url: 'ipc:///c'}
"""


@pytest.mark.parametrize(
    ("part", "instead", "units"),
    [
        ("clients_url: 'ipc:///c'", "clients_url: 'ipc:///d'", {"broker"}),
        ("cluster: ring", "cluster: ring\nbroker: {liveness: 5}", {"broker"}),
        ("cluster: ring", "cluster: ring\nraft: {heartbeat_ms: 60}", {"raft"}),
        ("cluster: ring", "cluster: ring\nlog: {writer: process}", {"raft"}),
        (
            "cluster: ring",
            "cluster: ring\nraft: {reqids_max: 5000}",
            {"raft", "snapshot_sender"},
        ),
        (
            "cluster: ring",
            "cluster: ring\nzerodb: {job_idle_s: 5}",
            {"table_worker", "zerodb_server", "job_server"},
        ),
        ("cluster: ring", "cluster: ring\nlimits: {stall_ms: 5000}", ALL),
        ("cluster: ring", "# A comment.\ncluster: ring\nclients: {timeout_ms: 700}", set()),
        (
            "nodes:",
            "nodes:\n  n2: {url: 'ipc:///b', peer_url: 'ipc:///bp'}",
            {"raft", "table_worker", "zerodb_server"},
        ),
        ("    zerodb: {url: 'ipc:///z'}\n", "", ALL - {"state_machine"}),
    ],
)
def test_units_whose_settings_differ_restart(
    tmp_path: Path, part: str, instead: str, units: set[str]
) -> None:
    found = orders(tmp_path / "t.yaml", TEXT, TEXT.replace(part, instead))
    assert found == dict.fromkeys(units, RESTART)


@pytest.mark.parametrize(
    ("part", "instead", "restarted", "updated"),
    [
        ("tcp://127.0.0.1:4", "tcp://127.0.0.1:49", {"broker"}, {"zre_node", "web"}),
        ("workers_url: tcp://127.0.0.1:5", "workers_url: tcp://127.0.0.1:59", {"broker"},
         {"zre_node"}),
        ("tcp://127.0.0.1:3", "tcp://127.0.0.1:39",
         {"zerodb_server", "job_server", "broker"}, {"zre_node", "web"}),
        ("'127.0.0.1:6'", "'127.0.0.1:69'", {"web"}, set()),
        ("interface: lo", "interface: 127.0.0.1", {"zre_beacon", "zre_node"}, set()),
        ("n1:\n", "n2: {url: 'tcp://127.0.0.1:7', peer_url: 'tcp://127.0.0.1:8'}\n  n1:\n",
         {"raft", "table_worker", "zerodb_server"}, {"web"}),
    ],
)  # fmt: skip
def test_what_announces_or_asks_a_server_adopts_its_new_url(
    tmp_path: Path, part: str, instead: str, restarted: set[str], updated: set[str]
) -> None:
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    text = (
        "cluster: ring\nnodes:\n  n1:\n"
        "    url: tcp://127.0.0.1:1\n    peer_url: tcp://127.0.0.1:2\n"
        "    zerodb: {url: 'tcp://127.0.0.1:3'}\n    zre: {interface: lo}\n"
        "    broker: {workers_url: tcp://127.0.0.1:5, clients_url: tcp://127.0.0.1:4}\n"
        "    web: {address: '127.0.0.1:6'}\n"
    )
    changed = text.replace(part, instead)
    found = orders(tmp_path / "t.yaml", text, changed)
    assert found == {**dict.fromkeys(restarted, RESTART), **dict.fromkeys(updated, UPDATE)}
    assert orders(tmp_path / "t.yaml", text, changed, True) == {"node": RESTART}


@pytest.mark.parametrize(
    ("port", "units"),
    [("clients_url: tcp://h:4", {"broker"}), ("url: tcp://h:1", ALL)],
)
def test_with_keys_another_port_of_a_broker_restarts_that_broker_alone(
    tmp_path: Path, port: str, units: set[str]
) -> None:
    text = (
        "cluster: ring\nsecurity: {}\nnodes:\n  n1:\n    url: tcp://h:1\n"
        "    peer_url: tcp://h:2\n    zerodb: {url: 'tcp://h:3'}\n"
        "    broker:\n      clients_url: tcp://h:4\n      workers_url: tcp://h:5\n"
        "    server_key: 'Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID'\n"
    )
    found = orders(tmp_path / "t.yaml", text, text.replace(port, f"{port}9"))
    assert found == dict.fromkeys(units, RESTART)


def test_a_setting_without_an_entry_concerns_every_role() -> None:
    assert readers_of("limits.stall_ms") is None
    assert readers_of("node.url") is None
    assert readers_of("node.broker.clients_url") == ("broker", "zre_node")
    assert readers_of("raft.reqids_max") == ("raft_peer", "snapshot_sender")


def test_a_file_that_changes_between_two_steps_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    source = source_of(path, TEXT)
    before = source.read().fingerprint
    path.write_text(f"# A comment.\n{TEXT}")
    assert source.read(before).fingerprint == before
    path.write_text(TEXT.replace("/z", "/y"))
    with pytest.raises(OperatorError, match="has changed since the reload began; run `supervisor"):
        source.read(before)


def test_the_status_names_changed_keys_and_a_broken_file(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    source = source_of(path, TEXT)
    assert source.status() == {"changed": [], "refused": "", "problem": ""}
    path.write_text(TEXT.replace("'ipc:///z'", "'ipc:///changed'"))
    assert source.status() == {
        "changed": ["nodes.n1.zerodb.url"], "refused": "", "problem": ""
    }  # fmt: skip
    assert source.is_adopted, "a look at the file adopts nothing"
    source.adopt(source.read())
    assert source.status()["changed"] == []
    path.write_text("cluster: [")
    assert "t.yaml:1:" in source.status()["problem"]
    path.unlink()
    assert "t.yaml" in source.status()["problem"]


def test_actors_read_only_what_the_table_of_readers_says(tmp_path: Path, ipc_dir: Path) -> None:
    """All roles of a node as threads of a process that notes each setting they read."""
    ports = free_ports(8)
    url = [f"'tcp://127.0.0.1:{port}'" for port in ports]
    path = tmp_path / "topology.yaml"
    path.write_text(
        "cluster: readers\nraft: {election_timeout_ms: [400, 600]}\nlog: {writer: process}\n"
        f"zre: {{port: {free_udp_port()}}}\n"
        "broker: {services: {mail: {durable: true}}}\n"
        f"nodes:\n  n1:\n    url: {url[0]}\n    peer_url: {url[1]}\n    broadcast_url: {url[2]}\n"
        f"    zerodb: {{url: {url[3]}, jobs_url: {url[4]}, events_url: {url[5]}}}\n"
        f"    broker: {{clients_url: {url[6]}, workers_url: {url[7]}}}\n"
        "    zre: {interface: lo, broadcast_address: 127.255.255.255, log_service: table}\n"
    )
    done = subprocess.run(
        [sys.executable, str(FAKES / "readers.py"), str(path)],
        capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    read: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    assert {"raft_peer", "broker", "job_server", "zre_node", "zre_log", "table_worker"} <= {*read}
    wrong = [
        f"{role} reads {setting}, which only {readers} may"
        for role, settings in read.items()
        for setting in settings
        if (readers := readers_of(setting)) is not None and role not in readers
    ]
    assert not wrong
    assert "raft.heartbeat_ms" in read["raft_peer"]
    assert "node.broker.clients_url" in read["broker"]
