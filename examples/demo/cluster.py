"""The demo's nodes, through the command `supervisor`: one supervisor each, as on machines of their
own.
"""

import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
import yaml

from kelek.actors.topology import client_topology
from kelek.actors.topology.topology import Topology
from kelek.clients.log.log import Log
from kelek.clients.table.table import Table
from kelek.console import cli_errors, client_keys
from kelek.examples.demo.keys import make_key, public_key

STATUS_S = 0.1
MARKER = "made-by-the-kelek-demo"  # The demo only wipes a directory with this file.
URL_KEYS = ("url", "peer_url", "broadcast_url")
PORTS_MAX = 32_768  # The system uses ports from here on for outgoing connections.

T = TypeVar("T")
Rows = list[dict[str, Any]]


def say(line: str = "") -> None:
    click.echo(line)


def fail(line: str) -> NoReturn:
    raise cli_errors.CliError(line, cli_errors.FAILED)


class Cluster:
    """The nodes of a topology, and one more with a topology of its own."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.keys = client_keys.of_topology(client_topology.of(topology))  # Arguments of clients.
        self.urls = {name: topology.nodes[name].url for name in topology.own_nodes}
        self._paths = dict.fromkeys(self.urls, topology.path)  # Of each node's topology.
        numbers = itertools.count(len(topology.nodes) + 1)
        self._new_name = next(name for i in numbers if (name := f"n{i}") not in topology.nodes)
        self._new_urls = self._find_new_urls()
        if self.keys:  # Clients must know the key of each node that may lead.
            make_key(topology.data_dir, self._new_name)
            self.keys["server_keys"][self._new_urls["url"]] = public_key(
                topology.data_dir, self._new_name
            )

    def log(self, *urls: str, timeout_ms: int) -> Log:
        """A client of the log; urls: of these nodes only."""
        known = list(urls or self.urls.values())
        return Log(known, self.topology.cluster, timeout_ms=timeout_ms, **self.keys)

    def table(self, number: int, *urls: str, timeout_ms: int) -> Table:
        """A client of a table; urls: of these servers."""
        return Table(urls, number, timeout_ms=timeout_ms, **self.keys)

    def start(self, *nodes: str, bootstrap: bool = False) -> None:
        """Returns when all nodes are ready."""
        flags = ["--detach", *["--bootstrap"] * bootstrap]
        starting = [begin("start", self._paths[node], "--node", node, *flags) for node in nodes]
        outputs = [process.communicate() for process in starting]  # Of all, even if one fails.
        for process, (output, error) in zip(starting, outputs, strict=True):
            if process.returncode != 0:
                lines = (error.strip() or output.strip()).splitlines()
                raise cli_errors.CliError(lines[-1] if lines else "supervisor start said nothing")

    def stop(self, node: str) -> None:
        begin("stop", self._paths[node], "--node", node).communicate()

    def stop_all(self) -> None:
        for process in [begin("stop", path) for path in dict.fromkeys(self._paths.values())]:
            process.communicate()

    def processes(self) -> Rows:
        """The processes of all running nodes by `supervisor status`."""
        rows: Rows = []
        paths = dict.fromkeys(self._paths.values())
        for process in [begin("status", path, "-o", "json") for path in paths]:
            output, _ = process.communicate()
            with contextlib.suppress(ValueError, KeyError):
                rows += json.loads(output)["processes"]
        return [row for row in rows if row["role"] != "supervisor"]

    def wait(self, what: str, seconds: float, ask: Callable[[Rows], T | None]) -> T:
        """Polls the status until a condition holds."""
        until = time.monotonic() + seconds
        while (found := ask(self.processes())) is None:
            if time.monotonic() > until:
                fail(f"{self.topology.path}: {what} not within {seconds} s; see: {self.logs}")
            time.sleep(STATUS_S)
        return found

    @property
    def logs(self) -> str:
        return f"supervisor logs {self.topology.path}"

    def new_node(self) -> str:
        """Writes a topology with a new node beside the data; returns the node's name.

        The other nodes learn of it from the log; their topology stays. With keys it does not: the
        new node's key stands in it.
        """
        name = self._new_name
        text = yaml.safe_load(Path(self.topology.path).read_text(encoding="utf-8"))
        text["data"] = "."
        urls = text["nodes"][name] = self._new_urls
        path = self.topology.data_dir / "topology.yaml"
        if self.keys:
            path = Path(self.topology.path)
        path.write_text(yaml.safe_dump(text, sort_keys=False), encoding="utf-8")
        if self.keys:
            self._reload(str(path))
        self._paths[name], self.urls[name] = str(path), urls["url"]
        return name

    def _reload(self, path: str) -> None:
        """The running nodes take the changed topology."""
        process = begin("reload", path)
        output, error = process.communicate()
        if process.returncode != 0:
            fail(error.strip() or output.strip())

    def _find_new_urls(self) -> dict[str, str]:
        """Free addresses for one more node."""
        nodes = self.topology.nodes.values()
        known = {key: [getattr(node, key) for node in nodes] for key in URL_KEYS}
        text = Path(self.topology.path).read_text(encoding="utf-8")
        used = set(re.findall(r"tcp://[^\s'\",}\]]+", text))  # Those of services, too.
        urls: dict[str, str] = {}
        for key, others in known.items():
            if all(others):
                urls[key] = free_url(max(others), used)
                used.add(urls[key])
        return urls

    def wipe(self, node: str) -> None:
        """Deletes all data of a node."""
        shutil.rmtree(self.topology.data_dir / node)


def begin(*words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "kelek.console.admin.supervisor_cli", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def free_url(known: str, used: set[str]) -> str:
    """An address like a known one, on the next free port."""
    match = re.fullmatch(r"(tcp://(.*):)([0-9]+)", known)
    if match is None:
        return f"{known}-new"
    for port in range(int(match[3]) + 1, PORTS_MAX):
        url = f"{match[1]}{port}"
        if url not in used and is_free(match[2], port):
            return url
    fail(f"{known}: no free port behind it, below {PORTS_MAX}")


def is_free(host: str, port: int) -> bool:
    """Whether no process listens there."""
    with socket.socket() as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def kill_node(processes: Sequence[dict[str, Any]], node: str) -> dict[str, int]:
    """Sends SIGKILL to all processes of a node at once."""
    pids = {row["name"]: row["pid"] for row in processes if row["node"] == node and row["pid"]}
    for pid in pids.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return pids


def wipe(data_dir: Path) -> None:
    """Empties the data directory, if the demo made it."""
    if data_dir.exists() and any(data_dir.iterdir()):
        if not (data_dir / MARKER).is_file():
            problem = "holds a log that the demo has not made"
            raise cli_errors.CliError(f"{data_dir}: {problem}; move it away, or remove it")
        say(f"wiping {data_dir}, which an earlier demo left")
        shutil.rmtree(data_dir)
    data_dir.mkdir(parents=True, exist_ok=True)
    (data_dir / MARKER).write_text("./demo removes this directory when it starts again.\n")
