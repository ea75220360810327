"""`supervisor upgrade`: three nodes of an older tree, under load, become those of this one."""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

import kelek
from kelek.bench.ports import free_ports
from kelek.console.admin import upgrade as upgrades
from kelek.console.admin.upgrade import RunningSupervisor
from kelek.console.cli_errors import CliError
from kelek.storage.log import segment
from kelek.storage.log.segment import Identity
from kelek.tests.waiting import PACE_S
from kelek.version import __version__

ROOT = Path(__file__).parents[3]
PARTS = (
    *("actors", "clients", "console", "csrc", "mapping", "native", "net", "pipeline"),
    *("protocols", "storage", "testing"),
)
PROGRAM = "kelek.console.admin.supervisor_cli"
DEADLINE_S = 120.0
OLD = "0.0.9"


class UpgradedCluster:
    """Three nodes, each with a supervisor; the commands run in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.old = folder / "old"
        (self.old / "kelek").mkdir(parents=True)
        for part in PARTS:
            # With compiled files, except those that another process is writing.
            ignored = shutil.ignore_patterns("*.pyc.*")
            shutil.copytree(ROOT / part, self.old / "kelek" / part, ignore=ignored)
        for file in [
            *ROOT.glob("*.py"),
            *ROOT.glob("*.pyi"),
            *ROOT.glob("*.so"),
            ROOT / "topology.yaml",
        ]:
            shutil.copy(file, self.old / "kelek")
        (self.old / "kelek" / "version.py").write_text(f'__version__ = "{OLD}"\n')
        ports = [f"tcp://127.0.0.1:{port}" for port in free_ports(6)]
        self.urls = ports[:3]
        nodes = [
            f"  n{at + 1}: {{url: '{ports[at]}', peer_url: '{ports[3 + at]}'}}\n" for at in range(3)
        ]
        (folder / "t.yaml").write_text("cluster: up\nnodes:\n" + "".join(nodes))
        self.environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}

    def run(self, *words: str, old: bool = False) -> subprocess.CompletedProcess[str]:
        path = {"PYTHONPATH": str(self.old)} if old else {}
        return subprocess.run(
            [sys.executable, "-P", "-m", PROGRAM, *words],
            cwd=self.folder,
            env={**self.environment, **path},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )

    def ok(self, *words: str, old: bool = False) -> str:
        done = self.run(*words, old=old)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture
def cluster() -> Iterator[UpgradedCluster]:
    folder = Path(tempfile.mkdtemp(prefix="k", dir="/tmp"))
    made = UpgradedCluster(folder)
    yield made
    made.run("stop", "t.yaml")
    shutil.rmtree(folder)


def test_no_request_fails_while_three_nodes_are_upgraded(cluster: UpgradedCluster) -> None:
    with ThreadPoolExecutor(3) as pool:
        started = [
            pool.submit(cluster.ok, "start", "t.yaml", "--detach", f"--node=n{at}", old=True)
            for at in (1, 2, 3)
        ]
        assert all(each.result() for each in started)
        assert cluster.ok("status", "t.yaml", "-o", "json").count(f'"version": "{OLD}"') == 3
        stop, done = threading.Event(), list[int]()

        def append() -> None:
            with kelek.Log(cluster.urls, "up") as log:
                while not stop.wait(PACE_S):
                    done.append(log.append(b"%d" % len(done)))

        appending = pool.submit(append)
        try:
            shown = cluster.ok("upgrade", "t.yaml")
        finally:
            stop.set()
        appending.result(DEADLINE_S)
    assert shown.count(f"from={OLD} to={__version__}") == 3, shown
    assert len(done) > 10
    assert done == sorted({*done})
    with kelek.Log(cluster.urls, "up") as log:
        entries = [bytes(entry.data) for entry in log.entries(after=0) if entry.type == 0]
    assert entries == [b"%d" % number for number in range(len(done))], "each once"
    assert cluster.ok("status", "t.yaml", "-o", "json").count(f'"version": "{__version__}"') == 3
    assert cluster.ok("upgrade", "t.yaml").startswith("0 of 3 supervisors restarted")
    cluster.ok("stop", "t.yaml", "--node=n3")
    refused = cluster.run("upgrade", "t.yaml", "--force")
    assert refused.returncode == 1
    assert "down n3" in refused.stderr
    assert "nothing was restarted" in refused.stderr
    cluster.ok("stop", "t.yaml", "--node=n2")
    deadline_s = time.monotonic() + DEADLINE_S
    while "no leader" not in cluster.run("status", "t.yaml").stdout:
        assert time.monotonic() < deadline_s, "n1 steps down without a majority"
    refused = cluster.run("upgrade", "t.yaml", "--force", "--allow-outage")
    assert refused.returncode == 1
    assert "no leader" in refused.stderr
    assert "nothing was restarted" in refused.stderr
    cluster.ok("stop", "t.yaml")
    assert cluster.run("upgrade", "t.yaml").returncode == 3


def test_a_supervisor_of_all_nodes_needs_allow_outage(cluster: UpgradedCluster) -> None:
    cluster.ok("start", "t.yaml", "--detach", old=True)
    with kelek.Log(cluster.urls, "up") as log:
        log.append(b"it leads")
    refused = cluster.run("upgrade", "t.yaml")
    assert refused.returncode == 2, refused.stderr
    assert "runs a majority of 3 nodes" in refused.stderr
    assert "give --allow-outage; nothing was restarted" in refused.stderr
    shown = cluster.ok("upgrade", "t.yaml", "--allow-outage")
    assert f"upgraded nodes=n1,n2,n3 from={OLD} to={__version__}" in shown
    assert cluster.ok("status", "t.yaml", "-o", "json").count(f'"version": "{__version__}"') == 1


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topology = SimpleNamespace(nodes=dict.fromkeys(("n1", "n2", "n3")), data_dir=tmp_path)
    one = RunningSupervisor(os.getpid(), ["n1"], OLD, False, True)
    log = tmp_path / "n1" / "raft" / segment.FOLDER
    log.mkdir(parents=True)
    upgrades.check_supervisor(topology, one, False)
    most = one._replace(nodes=["n1", "n2"])
    with pytest.raises(CliError, match=r"runs a majority of 3 nodes.*nothing was restarted"):
        upgrades.check_supervisor(topology, most, False)
    upgrades.check_supervisor(topology, most, True)
    block = segment.encode_identity(segment.MAGIC_SEGMENT, Identity("up", "n1"), b"")
    (log / "1.seg").write_bytes(block[:4] + b"\x07" + block[5:])
    with pytest.raises(
        CliError, match=r"n1: this version can't read .*expected version 1, found 7"
    ):
        upgrades.check_supervisor(topology, one, False)
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/x")
    waits = ["sh", "-c", "echo; read line"]  # An exec would empty its environment for a moment.
    with subprocess.Popen(waits, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as unit:
        assert unit.stdout is not None
        assert unit.stdout.read(1), "it runs, so its environment can be read"
        with pytest.raises(CliError, match="systemd runs its supervisor"):
            upgrades.check_supervisor(topology, one._replace(pid=unit.pid), False)
        unit.kill()
