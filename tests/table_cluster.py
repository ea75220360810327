"""Three nodes with tables, each a process that can be killed like a machine."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import kelek
from kelek.bench.ports import free_ports
from kelek.tests.waiting import wait_until

COMMAND = "from kelek.console.admin.supervisor_cli import main; main()"
NAMES = ("n1", "n2", "n3")
DEADLINE_S = 120.0
STOP_S = 30.0
LOG_CHARACTERS = 1500  # Of each log, printed after a test.


class TableCluster:
    """Three nodes; each runs in one process."""

    def __init__(self, settings: str = "", broker: str = "") -> None:
        """settings   keys of `zerodb:` in the topology
        broker     keys of `broker:`; with keys each node has a broker
        """
        self.folder = Path(tempfile.mkdtemp(prefix="k", dir="/tmp"))
        ports = iter(free_ports(3 * len(NAMES)))
        self.urls: dict[str, str] = {}
        self.log_urls: dict[str, str] = {}
        self.brokers: dict[str, tuple[str, str]] = {}  # Urls of clients and workers.
        lines = []
        for name in NAMES:
            url, peer_url, tables_url = (f"tcp://127.0.0.1:{next(ports)}" for _ in range(3))
            self.urls[name], self.log_urls[name] = tables_url, url
            keys = f'url: "{url}", peer_url: "{peer_url}", zerodb: {{url: "{tables_url}"}}'
            if broker:
                clients, workers = (f"tcp://127.0.0.1:{port}" for port in free_ports(2))
                self.brokers[name] = clients, workers
                keys += f', broker: {{clients_url: "{clients}", workers_url: "{workers}"}}'
            lines.append(f"  {name}: {{{keys}}}")
        (self.folder / "topology.yaml").write_text(
            f"cluster: lost\ndata: {self.folder}/var\nraft: {{election_timeout_ms: [600, 1000]}}\n"
            f"zerodb: {{local_tables: [900-999], {settings}}}\nbroker: {{{broker}}}\nnodes:\n"
            + "\n".join(lines)
            + "\n"
        )
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for name in NAMES:
            self.start(name)

    def start(self, name: str) -> None:
        """Starts a node, or restarts it with its data."""
        command = [sys.executable, "-P", "-c", COMMAND, "start", "topology.yaml", "--node", name]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*command, "--one-process"],
                cwd=self.folder,
                env={**os.environ, "XDG_RUNTIME_DIR": str(self.folder)},
                stdout=log,
                stderr=log,
            )

    def kill(self, name: str) -> None:
        """Kills all processes of a node at once."""
        process = self.processes.pop(name)
        process.kill()
        process.wait(STOP_S)

    def name_of(self, url: str) -> str:
        return next(name for name, tables_url in self.urls.items() if tables_url == url)

    def table(self, number: int, *names: str) -> kelek.Table:
        urls = [self.urls[name] for name in names or self.urls]
        return kelek.Table(urls, number, timeout_ms=int(1000 * DEADLINE_S))

    def leader(self) -> str:
        """The node that leads."""
        with kelek.Log(
            list(self.log_urls.values()), "lost", timeout_ms=int(1000 * DEADLINE_S)
        ) as log:
            leader = log.config().leader
        assert leader is not None
        return leader

    def leases(self, name: str) -> list[str]:
        """The snapshots on a node's disk."""
        jobs = self.folder / "var" / name / "jobs"
        return sorted(it for it in os.listdir(jobs) if it.startswith("lease."))

    def wait(self, is_so: Callable[[], bool]) -> None:
        wait_until(is_so, deadline_s=DEADLINE_S)

    def stop(self) -> None:
        ended = {
            name: it.returncode for name, it in self.processes.items() if it.poll() is not None
        }
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        try:
            for process in self.processes.values():
                process.wait(STOP_S)
            assert not ended, f"nodes ended by themselves: {ended}"
        finally:
            for process in self.processes.values():
                process.kill()
                process.wait()
            for path in sorted([*self.folder.glob("*.log"), *self.folder.glob("var/*/logs/*.log")]):
                print(f"{path.relative_to(self.folder)}:\n{path.read_text()[-LOG_CHARACTERS:]}")
            shutil.rmtree(self.folder, ignore_errors=True)
