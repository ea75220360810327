"""Three kelek nodes as a user starts them: a topology file and `supervisor start`.

The benchmark asks them what every client may ask (RequestLogInfo, text form). It finds the
processes in /proc: the children of its supervisor, by the role in their setup file.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgpack
import zmq

from kelek.bench.load.loadgen import libzmq
from kelek.bench.machine import BenchError
from kelek.bench.peers import START_S_MAX, reap, spawn
from kelek.bench.ports import free_ports
from kelek.version import __version__

IDENT = "bench"
NODES = ("n1", "n2", "n3")
ANSWER_MS_MAX = 300
SNAPSHOT_MS_MAX = 20_000
POLL_S = 0.02
WATCH_S = 0.005  # Polling interval where a time is measured.
LAST_WORDS = 20  # Lines of each log that an error shows.
REPOSITORY = Path(__file__).resolve().parent.parent
START = [sys.executable, "-P", "-m", "kelek.console.admin.supervisor_cli", "start"]


class LogInfo(NamedTuple):
    """The fields of RequestLogInfo's answer that the benchmarks use."""

    leads: bool
    first_index: int
    applied: int
    commit_index: int
    last_index: int


def uint(frame: bytes) -> int:
    return int.from_bytes(frame, "little")


def node_line(name: str, url: str, peer_url: str, broadcast_url: str) -> str:
    """Returns the topology's line of a node."""
    return f"  {name}: {{url: {url}, peer_url: {peer_url}, broadcast_url: {broadcast_url}}}"


class Kelek:
    """A cluster of three nodes under one supervisor, everything at its default."""

    name = "kelek"  # An instance with other settings has another name.
    answer_ms_max = ANSWER_MS_MAX
    start_s_max = START_S_MAX

    def __init__(self, directory: Path, settings: str = "") -> None:
        """settings is appended to the topology: other defaults for a comparison."""
        self.directory = directory
        self.topology = directory / "topology.yaml"
        self.settings = settings
        ports = iter(free_ports(3 * len(NODES)))
        self.urls = {name: f"tcp://127.0.0.1:{next(ports)}" for name in NODES}
        self.lines = [
            node_line(name, url, f"tcp://127.0.0.1:{next(ports)}", f"tcp://127.0.0.1:{next(ports)}")
            for name, url in self.urls.items()
        ]
        self.supervisors: dict[str, subprocess.Popen[bytes]] = {}
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()

    @property
    def target(self) -> list[str]:
        return ["--libzmq", libzmq(), "--urls", ",".join(self.urls.values())]

    def version(self) -> str:
        """The commit of a checkout; of an installed package its version."""
        command = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty"]
        if not (REPOSITORY / ".git").exists() or shutil.which("git") is None:
            return __version__
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.strip() or __version__

    def start_fresh(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        self.write_topology(self.topology, self.lines)
        self.start()

    def write_topology(self, path: Path, nodes: list[str]) -> None:
        path.write_text(
            "\n".join([f"cluster: {IDENT}", "data: data", "nodes:", *nodes, self.settings])
        )

    def start(self) -> None:
        self._start("supervisor", [str(self.topology)])

    def _start(self, name: str, arguments: list[str]) -> None:
        command = [*START, *arguments]
        self.supervisors[name] = spawn(command, self.directory / "supervisor.log")

    def stop(self) -> None:
        """Sends SIGKILL to each supervisor and to all processes below it."""
        for name in [*self.supervisors]:
            self._stop(name)

    def _stop(self, name: str) -> None:
        supervisor = self.supervisors.pop(name)
        children = children_of(supervisor.pid)
        reap([supervisor], signal.SIGKILL)
        for pid in children:
            kill(pid)

    def restart(self) -> float:
        """Kills everything and starts it again; returns when the kill began (time.monotonic)."""
        started = time.monotonic()
        self.stop()
        self.start()
        return started

    def kill_node(self, node: str) -> float:
        """Kills all processes of a node; returns when (time.monotonic)."""
        pids = self.node_pids(node)
        if not pids:
            raise BenchError(f"{node} has no processes")
        killed = time.monotonic()
        for pid in pids:
            kill(pid)
        return killed

    def pids(self) -> dict[str, list[int]]:
        """Returns all actors as NODE/ROLE, and the supervisors."""
        found: dict[str, list[int]] = {}
        for name, supervisor in self.supervisors.items():
            found[name] = [supervisor.pid]
            for pid in children_of(supervisor.pid):
                if role := actor_name(pid):
                    found.setdefault(role, []).append(pid)
        return found

    def node_pids(self, node: str) -> list[int]:
        return [pid for name, pids in self.pids().items() for pid in pids if f"{node}/" in name]

    def info(self, node: str) -> LogInfo | None:
        """Returns a node's log info; None if it does not answer."""
        frames = self._ask(node, [b"%"], self.answer_ms_max)
        if frames is None:
            return None
        if len(frames) < 9:
            raise BenchError(f"{node} answers RequestLogInfo with {len(frames)} frames")
        leads = any(frames[1][:1]) and frames[1][:1] != b"\0"
        return LogInfo(leads, *map(uint, frames[4:8]))

    def _ask(self, node: str, request: list[bytes], wait_ms: int) -> list[bytes] | None:
        """Returns the answer to a client's request; None if none comes."""
        with self.client_socket(self.urls[node]) as socket:
            socket.send_multipart([b"bench-info-1", *request])
            return socket.recv_multipart() if socket.poll(wait_ms) else None

    def client_socket(self, url: str) -> zmq.Socket[bytes]:
        """Returns a DEALER that is connected to an address of the cluster."""
        socket = self.context.socket(zmq.DEALER)
        socket.linger = 0
        socket.connect(url)
        return socket

    def make_snapshot(self, node: str) -> int:
        """Makes a node create a snapshot; returns its LOG INDEX."""
        frames = self._ask(node, [b"ks", IDENT.encode()], SNAPSHOT_MS_MAX)
        index, _, reason = msgpack.unpackb(frames[2]) if frames else (0, 0, "it does not answer")
        if not index:
            raise BenchError(f"{node} makes no snapshot: {reason}")
        return int(index)

    def leader(self) -> str:
        """Waits until all three nodes answer and have applied what is committed; returns the
        leader."""
        until = time.monotonic() + self.start_s_max
        while time.monotonic() < until:
            self._check_runs()
            infos = {node: self.info(node) for node in NODES}
            leaders = [node for node, info in infos.items() if info and info.leads]
            if len(leaders) == 1 and all(infos.values()):
                top = infos[leaders[0]]
                assert top is not None
                if all(info and info.applied >= top.commit_index for info in infos.values()):
                    return leaders[0]
            time.sleep(POLL_S)
        raise BenchError(f"no leader with three healthy nodes: {infos}; {self.last_words()}")

    def last_words(self) -> str:
        """Returns the end of the supervisor's and the peers' logs, for an error."""
        logs = [self.directory / "supervisor.log", *self.directory.glob("data/*/logs/*.log")]
        parts = []
        for path in logs:
            lines = path.read_text(errors="replace").splitlines()[-LAST_WORDS:]
            parts.append("\n".join([f"{path.relative_to(self.directory)}:", *lines]))
        return "\n".join(parts)

    def _check_runs(self) -> None:
        for name, supervisor in self.supervisors.items():
            if supervisor.poll() is not None:
                log = (self.directory / "supervisor.log").read_text().splitlines()
                raise BenchError(f"{name} has ended: {log[-1] if log else 'no word'}")


class Apart(Kelek):
    """The same with a supervisor for each node, so that a node can stop, lose its data or join."""

    name = "kelek, a supervisor each"

    def __init__(self, directory: Path, settings: str = "") -> None:
        super().__init__(directory, settings)
        self.topologies = dict.fromkeys(NODES, self.topology)

    def start(self) -> None:
        for node in NODES:
            self.start_node(node)

    def start_newcomer(self, node: str) -> str:
        """Starts a node whose topology names it and the members; they do not know it yet.

        Returns its url.
        """
        url, peer_url, broadcast_url = (f"tcp://127.0.0.1:{port}" for port in free_ports(3))
        self.topologies[node] = self.directory / f"{node}.yaml"
        line = node_line(node, url, peer_url, broadcast_url)
        self.write_topology(self.topologies[node], [*self.lines, line])
        self.urls[node] = url
        self.start_node(node)
        return url

    def start_node(self, node: str) -> float:
        """Starts a node; returns when (time.monotonic)."""
        started = time.monotonic()
        self._start(node, [str(self.topologies[node]), "--node", node])
        return started

    def wipe(self, node: str) -> None:
        """Kills a node with its supervisor and removes its data."""
        self._stop(node)
        data = self.directory / "data" / node
        lost = data.rename(data.with_name(f"{node}-lost-{time.monotonic_ns()}"))
        shutil.rmtree(lost, ignore_errors=True)  # Killed processes may still be ending.

    def snapshots_of(self, node: str) -> Path:
        return self.directory / "data" / node / "raft" / "snapshots"

    def snapshot_size(self, node: str) -> int:
        """Of the newest snapshot on a node's disk (bytes)."""
        return max(self.snapshots_of(node).glob("*.snap")).stat().st_size

    def wait(self, node: str, wanted: Callable[[LogInfo], bool], what: str) -> float:
        """Waits until a node's log meets the condition; returns when (time.monotonic)."""
        until = time.monotonic() + START_S_MAX
        while time.monotonic() < until:
            self._check_runs()
            info = self.info(node)
            now = time.monotonic()
            if info is not None and wanted(info):
                return now
            time.sleep(WATCH_S)
        raise BenchError(f"{node}: {what} not within {START_S_MAX:.0f} s: {info}")


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def children_of(pid: int) -> list[int]:
    """All descendants of a process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(child) for child in task.read_text().split()]
        except OSError:
            continue
    return found + [below for child in found for below in children_of(child)]


def actor_name(pid: int) -> str:
    """NODE/ROLE of an actor's process, "" when it is none."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        setup = json.loads(Path(command[command.index("--setup") + 1]).read_text())
    except (OSError, ValueError):
        return ""
    return f"{setup['node']}/{setup['role']}"
