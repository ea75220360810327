"""What supervisors leave of a topology for commands."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kelek.actors.runtime import run_dir
from kelek.actors.runtime.run_dir import RunDir
from kelek.actors.topology import client_topology, topology
from kelek.tests.actors.topology.test_topology import write_topology

TEXT = """\ufeffcluster: demo
nodes:
  n1:
    url: tcp://127.0.0.1:7001
    peer_url: tcp://127.0.0.1:7021
    zerodb: {url: "tcp://127.0.0.1:7100"}
    broker: {clients_url: "tcp://127.0.0.1:7300", workers_url: "tcp://127.0.0.1:7301"}
  n2: {url: "tcp://127.0.0.1:7002", dialect: text}
clients: {timeout_ms: 600}
zerodb: {local_tables: [7, 9]}
broker: {heartbeat_interval_ms: 500, client_header: KLKC77}
"""


@pytest.fixture
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A topology that a supervisor runs. YAML can no longer be read."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    path = write_topology(tmp_path, TEXT)
    loaded = topology.load(path)
    folder = RunDir(run_dir.of_topology(path), "n1")
    folder.acquire()
    client_topology.leave(loaded, folder)

    def load(_: str) -> None:
        raise AssertionError("YAML was read")

    monkeypatch.setattr(topology, "load", load)
    yield path
    folder.release()
    assert not folder.path.parent.exists()


def test_a_command_reads_what_the_supervisor_has_left(left: str) -> None:
    found = client_topology.load(left)
    assert found.path == left
    assert (found.cluster, found.timeout_ms, found.election_grace_ms) == ("demo", 600, 300)
    assert found.nodes["n1"].tables_url == "tcp://127.0.0.1:7100"
    assert found.nodes["n1"].workers_url == "tcp://127.0.0.1:7301"
    assert (found.nodes["n2"].dialect, found.nodes["n2"].clients_url) == ("text", "")
    assert found.broker.heartbeat_interval_ms == 500
    assert found.broker.client_header == "KLKC77"
    assert [*found.local_tables] == [7, 9]
    assert (found.key_file, found.server_keys) == ("", None)


def test_it_is_what_the_file_says(left: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = client_topology.load(left)
    monkeypatch.undo()
    assert found == client_topology.of(topology.load(left))._replace(local_tables=[7, 9])


@pytest.mark.parametrize("what", ["text", "version", "damaged", "gone"])
def test_a_command_reads_the_file_if_nothing_fits(left: str, what: str) -> None:
    file = run_dir.of_topology(left) / "n1" / client_topology.FILE
    assert file.stat().st_mode & 0o777 == 0o600
    version, *rest = json.loads(file.read_text())
    match what:
        case "text":
            Path(left).write_text(f"{TEXT}# A comment.\n")
        case "version":
            file.write_text(json.dumps([f"{version}.1", *rest]))
        case "damaged":
            file.write_text(file.read_text()[:-9])
        case "gone":
            file.unlink()
    with pytest.raises(AssertionError, match="YAML was read"):
        client_topology.load(left)


def test_with_keys_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The servers' keys are in files of their own, which may change."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    key = "a" * 40
    node = "url: 'tcp://127.0.0.1:7001', peer_url: 'tcp://127.0.0.1:7021'"
    nodes = f"nodes: {{n1: {{{node}, server_key: '{key}'}}}}"
    path = write_topology(tmp_path, f"cluster: demo\n{nodes}\nsecurity: {{key_file: own}}\n")
    loaded = topology.load(path)
    folder = RunDir(run_dir.of_topology(path), "n1")
    folder.acquire()
    client_topology.leave(loaded, folder)
    assert not (folder.path / client_topology.FILE).exists()
    folder.release()
    found = client_topology.load(path)
    assert found.key_file == str(tmp_path / "own")
    assert found.server_keys == dict.fromkeys(["tcp://127.0.0.1:7001", "tcp://127.0.0.1:7021"], key)
