"""A cluster in one child process, which ends with this process."""

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..clients.errors import Error

if TYPE_CHECKING:  # The child imports this package, too, and needs no clients.
    from ..clients.broker.broker import Broker
    from ..clients.log.log import Log
    from ..clients.table.table import Table

CLUSTER = "test"
START_S = 60.0  # Of a machine with much else to do.
STOP_S = 10.0
FIRST_TABLE = 1000  # table() without a number counts from here.
# A test machine may pause for longer; an election among threads of one process takes 5 ms.
ELECTION_TIMEOUT_MS = 300, 600
SEGMENT_BYTES = 1 << 20  # Each node writes zeros ahead for its next segments.


class LocalCluster:
    """A running cluster whose nodes n1, n2, ... are threads of one process.

    name         the cluster's ident
    folder       its topology.yaml and data; gone at the end
    topology     path of the topology, for `kelek -t` and `supervisor`
    log_urls     urls of all nodes for kelek.Log and kelek.AsyncLog
    table_urls   of all nodes for kelek.Table and kelek.AsyncTable
    broker_urls  of all brokers for kelek.Broker and kelek.AsyncBroker
    worker_urls  of all brokers for kelek.Worker

    All addresses are Unix sockets in the folder: tests that run at the same time never collide.
    """

    def __init__(self, nodes: int, sections: dict[str, Any]) -> None:
        self.name = CLUSTER
        self.folder = Path(tempfile.mkdtemp(prefix="kelek"))
        self.topology = str(self.folder / "topology.yaml")
        names = [f"n{number}" for number in range(1, nodes + 1)]
        self.log_urls = self._urls(names, "log")
        self.table_urls = self._urls(names, "tables")
        self.broker_urls = self._urls(names, "clients")
        self.worker_urls = self._urls(names, "workers")
        self._tables = count(FIRST_TABLE)
        urls = zip(
            names, self.log_urls, self.table_urls, self.broker_urls, self.worker_urls,
            self._urls(names, "peer"), self._urls(names, "news"), strict=True,
        )  # fmt: skip
        text: dict[str, Any] = {
            "cluster": self.name,
            "data": "data",
            "nodes": {
                name: {
                    "url": log,
                    "peer_url": peer,
                    "broadcast_url": news,
                    "zerodb": {"url": table},
                    "broker": {"clients_url": clients, "workers_url": workers},
                }
                for name, log, table, clients, workers, peer, news in urls
            },
            "raft": {"election_timeout_ms": ELECTION_TIMEOUT_MS},
            "log": {"segment_bytes": SEGMENT_BYTES},
        }
        for section, keys in sections.items():
            text[section] = {**text.get(section, {}), **keys} if isinstance(keys, dict) else keys
        Path(self.topology).write_text(json.dumps(text), encoding="utf-8")
        self._process: subprocess.Popen[str] | None = None

    def _urls(self, names: list[str], socket: str) -> list[str]:
        return [f"ipc://{self.folder}/{name}.{socket}" for name in names]

    @property
    def pid(self) -> int:
        """The process of the nodes; 0: it does not run."""
        return self._process.pid if self._process else 0

    def start(self) -> None:
        """Starts it, also after stop(), with its data; returns when all nodes are ready.

        Raises kelek.Error with what the supervisor printed when that fails.
        """
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", __package__, self.topology],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,  # The terminal's Ctrl-C ends the tests first.
            text=True,
        )
        self._process = process
        late = threading.Timer(START_S, process.kill)
        late.start()
        printed = []
        try:
            assert process.stdout is not None
            for line in process.stdout:
                printed.append(line)
                if line.startswith("all-ready ") and " given_up=" not in line:
                    return
        finally:
            late.cancel()
        self.stop()
        raise Error(f"the test cluster did not start:\n{''.join(printed)}")

    def stop(self) -> None:
        """Ends the process, and keeps the data. Without effect when it does not run."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def kill(self) -> None:
        """Ends the process by SIGKILL, as a crash of all nodes does; start() starts it again."""
        if self._process is not None:
            self._process.kill()
        self.stop()

    def log(self, **options: Any) -> "Log":
        """A kelek.Log of this cluster, with its keyword arguments."""
        from ..clients.log.log import Log

        return Log(self.log_urls, self.name, **options)

    def table(self, number: int | None = None, **options: Any) -> "Table":
        """A kelek.Table; without a number that of a table that no test has used before."""
        from ..clients.table.table import Table

        number = next(self._tables) if number is None else number
        return Table(self.table_urls, number, **options)

    def broker(self, **options: Any) -> "Broker":
        """A kelek.Broker of this cluster, with its keyword arguments."""
        from ..clients.broker.broker import Broker

        return Broker(self.broker_urls, **options)


@contextlib.contextmanager
def cluster(nodes: int = 3, **sections: Any) -> Iterator[LocalCluster]:
    """Runs a cluster with a log, tables and brokers until the end of the `with` block.

    nodes      the number of nodes, each a few threads of one child process
    sections   sections of the topology to add: `broker={"services": {"a": {"durable": True}}}`

    The process ends with the block, and also when this process is killed. Raises kelek.Error when
    it can't start.
    """
    running = LocalCluster(nodes, sections)
    try:
        running.start()
        yield running
    finally:
        running.stop()
        shutil.rmtree(running.folder, ignore_errors=True)
