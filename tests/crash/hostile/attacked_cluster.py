"""A demo cluster with honest clients, and what an attack does to it: latencies, processor time,
memory, heartbeats, ended connections."""

import contextlib
import math
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import kelek
from kelek.actors.topology import topology
from kelek.tests.actors.demo_cluster import LEADERS
from kelek.tests.crash.hostile import hostile_peers

SAMPLE_S = 0.1
CUT = "connection-cut-"
TICKS_S = os.sysconf("SC_CLK_TCK")
SERVICE = "examples.services:delay"
# Linux shares the processors among sessions first: with -15 the cluster's and this one count more
# than other work on the machine. Only root may raise it.
SESSION_NICE = os.environ.get("KELEK_HOSTILE_NICE", "")
CPUS_MIN = 0.02  # Processes below it are not printed.


class Latencies(NamedTuple):
    """Of one kind of request, in ms."""

    requests: int
    p50_ms: float
    p99_ms: float
    largest_ms: float

    @classmethod
    def of(cls, times_s: list[float]) -> "Latencies":
        ranked = sorted(1000 * it for it in times_s)
        count = len(ranked)
        return cls(count, ranked[count // 2], ranked[count * 99 // 100], ranked[-1])

    def __str__(self) -> str:
        return (
            f"{self.requests} p50 {self.p50_ms:.1f} p99 {self.p99_ms:.1f} max {self.largest_ms:.0f}"
        )


def processor_s(pid: int) -> float:
    """The processor time that a process has used; 0: it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS_S


def private_bytes(pid: int) -> int:
    """The private memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    (size,) = [line.split()[1] for line in status.splitlines() if "RssAnon" in line]
    return int(size) << 10


class Processors:
    """How many processors each of some processes has used since this was made."""

    def __init__(self, names: dict[int, str]) -> None:
        self._names = names
        self._begun_s = time.monotonic()
        self._before = {pid: processor_s(pid) for pid in names}

    def used(self) -> dict[str, float]:
        """Those that used most first."""
        passed_s = time.monotonic() - self._begun_s
        used = {
            name: max(0.0, processor_s(pid) - self._before[pid]) / passed_s
            for pid, name in self._names.items()
        }
        return dict(sorted(used.items(), key=lambda each: -each[1]))


def rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(it, 2) for name, it in values.items() if it >= CPUS_MIN}


class AttackedCluster:
    """A demo cluster and what was seen of it. The caller must close it."""

    def __init__(self, shell: Any, settings: str, deadline_s: float) -> None:
        """settings: further lines of the topology"""
        self.shell, self.deadline_s = shell, deadline_s
        path = shell.folder / "topology.yaml"
        path.write_text(path.read_text() + settings)
        shell.ok("supervisor start topology.yaml --detach")
        if SESSION_NICE:
            for pid in (os.getpid(), shell.status()[0]["pid"]):
                Path(f"/proc/{pid}/autogroup").write_text(SESSION_NICE)
        self.nodes = topology.load(str(path)).nodes
        urls, timeout_ms = [node.url for node in self.nodes.values()], int(1000 * deadline_s)
        self.log = kelek.Log(urls, timeout_ms=timeout_ms)
        tables = [node.zerodb.url for node in self.nodes.values() if node.zerodb]
        self.table = kelek.Table(tables, 8, timeout_ms=timeout_ms) if tables else None
        brokers = [node.broker.clients_url for node in self.nodes.values() if node.broker]
        self.broker = kelek.Broker(brokers, timeout_ms=timeout_ms) if brokers else None
        self.worker: Any = None
        if brokers:
            self.worker = shell.start(f"kelek worker run {SERVICE} -t topology.yaml")
        self.processes: dict[int, str] = {}
        self.growth: dict[str, int] = {}
        self.base: dict[str, int] = {}

    def close(self) -> None:
        if self.worker is not None:
            self.worker.kill()
            self.worker.communicate()
        for client in (self.log, self.table, self.broker):
            if client is not None:
                client.close()

    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.shell.status()
        return rows

    def leadership(self) -> tuple[str, int]:
        """The leader that all nodes name, and the largest term."""
        until_s = time.monotonic() + self.deadline_s
        while True:
            peers = [row for row in self.rows() if row["role"] == "raft_peer"]
            if {row.get("leader") for row in peers} in LEADERS:
                self.processes = {row["pid"]: f"{row['node']}/{row['name']}" for row in self.rows()}
                return peers[0]["leader"], max(row["term"] for row in peers)
            assert time.monotonic() < until_s, peers

    def heartbeats(self) -> tuple[int, int]:
        """Heartbeats that followers have missed, and the longest silence of a leader, in ms."""
        peers = [row for row in self.rows() if row["role"] == "raft_peer"]
        missed = sum(row["heartbeats_missed"] for row in peers)
        return missed, max(row["leader_gap_ms_max"] for row in peers)

    def cuts(self) -> Counter[str]:
        """The connections that all processes have ended, by reason."""
        found: Counter[str] = Counter()
        for row in self.rows():
            counters = row.get("counters", {})
            found.update({key: counters[key] for key in counters if key.startswith(CUT)})
        return found

    def sample(self) -> None:
        """Notes the private memory of each process."""
        for pid, name in self.processes.items():
            used = private_bytes(pid)
            grown = used - self.base.setdefault(name, used)
            self.growth[name] = max(self.growth.get(name, 0), grown)

    @contextlib.contextmanager
    def sampled(self) -> Iterator[None]:
        """Samples in a thread, also while a request takes its time."""
        ended = threading.Event()

        def run() -> None:
            while not ended.wait(SAMPLE_S):
                self.sample()

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def largest_growth(self) -> dict[str, int]:
        """Bytes, of the processes that grew most."""
        return dict(sorted(self.growth.items(), key=lambda each: -each[1])[:4])

    def requests(self) -> dict[str, Callable[[], object]]:
        """What the honest clients do."""
        found: dict[str, Callable[[], object]] = {"append": lambda: self.log.append(b"honest")}
        table, broker = self.table, self.broker
        if table is not None:
            found["put"] = lambda: table.put(b"honest", b"value")
            found["get"] = lambda: table.get(b"honest")
        if broker is not None:
            found["call"] = lambda: broker.call("flights.delay", "UA1545")
        return found

    def serve(self, secs: float) -> dict[str, Latencies]:
        """One honest request after the other."""
        requests = self.requests()
        times: dict[str, list[float]] = {name: [] for name in requests}
        begun_s = time.monotonic()
        until_s = begun_s + secs
        with self.sampled():
            while begun_s < until_s:
                for name, request in requests.items():
                    request()
                    now_s = time.monotonic()
                    times[name].append(now_s - begun_s)
                    begun_s = now_s
        return {name: Latencies.of(each) for name, each in times.items()}

    def targets(self, leader: str) -> dict[str, list[str]]:
        """Ports for each kind of attack: at the leader's urls, and some at others."""
        node = self.nodes[leader]
        other = next(each for name, each in self.nodes.items() if name != leader)
        tables = [node.zerodb.url] if node.zerodb else []
        events = [node.zerodb.events_url] if node.zerodb else []
        brokers = [each.broker.clients_url for each in self.nodes.values() if each.broker]
        by_kind = {
            "subscriptions": [node.broadcast_url, *events],
            "flood": [node.url],
            "flood_append": [node.url],
            "flood_put": tables,
            "flood_call": brokers,
            "stolen_id": [node.url, *tables],
        }
        urls = [node.url, node.peer_url, other.url, *tables, *brokers]
        return {
            kind: [url.rpartition(":")[2] for url in by_kind.get(kind, urls)]
            for kind in hostile_peers.KINDS
        }


def run_peers(
    kind: str, count: int, source: str, ports: list[str], module: ModuleType = hostile_peers
) -> Any:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", module.__name__, kind, str(count), source, *ports]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)


class Attack:
    """The processes of attackers, one for each kind, with an address of its own."""

    def __init__(self, targets: dict[str, list[str]], peers: int, module: ModuleType) -> None:
        """Waits until they run."""
        each = math.ceil(peers / len(targets))
        self._processes: dict[str, Any] = {}
        self._first: dict[str, list[int]] = {}
        self._begun_s = 0.0
        for number, (kind, ports) in enumerate(targets.items()):
            source = f"127.0.0.{2 + number}"
            self._processes[kind] = run_peers(kind, each, source, ports, module)
        for kind, process in self._processes.items():
            self._first[kind] = [int(it) for it in process.stdout.readline().split()]
        self._begun_s = time.monotonic()
        self.names = {process.pid: kind for kind, process in self._processes.items()}

    def end(self) -> None:
        """Ends them, and prints what they did."""
        passed_s = time.monotonic() - self._begun_s
        ended = [kind for kind, it in self._processes.items() if it.poll() is not None]
        for process in self._processes.values():
            process.kill()
        connects_s, megabytes_s = {}, {}
        for kind, process in self._processes.items():
            lines = process.communicate()[0].splitlines()[:-1]  # The last one may be half.
            last = [int(it) for it in lines[-1].split()] if lines else self._first[kind]
            connects_s[kind] = last[0] / passed_s
            megabytes_s[kind] = last[1] / passed_s / 1e6
        print("connections/s:", {kind: round(it, 1) for kind, it in connects_s.items()})
        print("MB/s:", {kind: round(it, 1) for kind, it in megabytes_s.items()})
        assert not ended, f"attackers have failed: {ended}"


@contextlib.contextmanager
def attackers(
    targets: dict[str, list[str]], peers: int, module: ModuleType = hostile_peers
) -> Iterator[dict[int, str]]:
    """Yields their names by pid. module: that has the kinds, and runs them"""
    attack = Attack(targets, peers, module)
    try:
        yield attack.names
    finally:
        attack.end()


@contextlib.contextmanager
def burners(count: int) -> Iterator[dict[int, str]]:
    """Processes as those of attackers, which only compute."""
    running = [run_peers("burn", 0, "127.0.0.1", []) for _ in range(count)]
    try:
        for each in running:
            assert each.stdout.readline() == b"0 0\n"
        yield {each.pid: f"burner {number}" for number, each in enumerate(running)}
    finally:
        for each in running:
            each.kill()
            each.communicate()


@contextlib.contextmanager
def sink(ports: list[str]) -> Iterator[dict[int, str]]:
    """A process that reads what attackers send to these ports, and forgets it."""
    process = run_peers("sink", 0, "127.0.0.1", ports)
    try:
        assert process.stdout.readline() == b"ready\n"
        yield {process.pid: "sink"}
    finally:
        process.kill()
        process.communicate()
