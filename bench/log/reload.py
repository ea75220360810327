"""What do clients notice while the nodes adopt a changed topology?

    python -m kelek.bench reload [--quick] [--rounds N] [-o json]

Three nodes and a broker under one supervisor, everything at its default; and the same with keys
and tables. One client appends an entry, waits for the answer and appends the next one, all the
time. Each round changes a setting of Raft, which restarts raft_peer on each node, and then the
broker's port; `supervisor reload` adopts each. A gap is the time between two answers. A request has
failed when append() raises.
"""

import json
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import yaml

import kelek
from kelek.bench.curve.clusters import CLIENT, KeyedCluster
from kelek.bench.kelek_cluster import IDENT, START, Kelek
from kelek.bench.machine import BenchError
from kelek.bench.ports import free_ports
from kelek.bench.question import ROW_HEAD, Question, row
from kelek.bench.report import Section, summed_up
from kelek.protocols.access.certificates import encode_key

ROUNDS = 7
RELOAD_S_MAX = 120
SECURITY = "\nsecurity: {}"
COMMAND = [*START[:-1], "reload"]


class Appending:
    """A client that appends all the time, in a thread of its own."""

    def __init__(self, cluster: Kelek) -> None:
        self.answered_s: list[float] = []
        self.failed = 0
        self._stop = threading.Event()
        self._urls = list(cluster.urls.values())
        self._keys: dict[str, Any] = {}
        if isinstance(cluster, KeyedCluster):
            own, nodes = cluster.key_file(CLIENT, secret=True), cluster.node_keys
            public = {url: encode_key(nodes[name].public_key) for name, url in cluster.urls.items()}
            self._keys = {"key": str(own), "server_keys": public}
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with kelek.Log(self._urls, IDENT, **self._keys) as log:
            while not self._stop.is_set():
                try:
                    log.append(b"entry")
                except kelek.Error:
                    self.failed += 1
                self.answered_s.append(time.monotonic())

    def longest_gap_ms(self, since_s: float) -> float:
        times = [each for each in self.answered_s if each >= since_s] + [time.monotonic()]
        return 1000 * max(b - a for a, b in zip([since_s, *times], times, strict=False))

    def end(self) -> None:
        self._stop.set()
        self._thread.join()


def reload(cluster: Kelek) -> dict[str, Any]:
    """Runs the command; returns its JSON. Raises BenchError."""
    done = subprocess.run(
        [*COMMAND, str(cluster.topology), "-o", "json"],
        capture_output=True, text=True, timeout=RELOAD_S_MAX, env=os.environ, check=False,
    )  # fmt: skip
    if done.returncode:
        raise BenchError(f"reload: {done.stderr.strip()}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def write(cluster: Kelek, heartbeat_ms: int, ports: list[int]) -> None:
    """Writes the topology with a setting of Raft and the broker's ports."""
    first, *others = cluster.lines
    node = yaml.safe_load(first)
    node["n1"]["broker"] = {
        key: f"tcp://127.0.0.1:{port}"
        for key, port in zip(("clients_url", "workers_url"), ports, strict=True)
    }
    has_keys = isinstance(cluster, KeyedCluster)
    cluster.settings = f"raft: {{heartbeat_ms: {heartbeat_ms}}}{has_keys * SECURITY}"
    nodes = [f"  n1: {json.dumps(node['n1'])}", *others]
    Kelek.write_topology(cluster, cluster.topology, nodes)


def restarted(before: dict[str, list[int]], after: dict[str, list[int]]) -> set[str]:
    return {name for name, pids in after.items() if pids != before.get(name)}


class Found(NamedTuple):
    """What one cluster showed: durations and gaps in ms, and counts."""

    raft_ms: list[float]
    raft_gaps: list[float]
    broker_ms: list[float]
    broker_gaps: list[float]
    others: list[float]  # Processes that restarted with a broker.
    failed: list[float]
    answered: list[float]


def ask(cluster: Kelek, rounds: int) -> Found:
    found = Found([], [], [], [], [], [], [])
    ports = free_ports(2 * rounds + 2)
    write(cluster, 70, ports[-2:])
    appending = None
    try:
        cluster.start()
        cluster.leader()
        appending = Appending(cluster)
        for number in range(rounds):
            heartbeat_ms = 60 + number % 2
            for pair in (ports[-2:] if not number else ports[2 * number - 2 : 2 * number],
                         ports[2 * number : 2 * number + 2]):  # fmt: skip
                write(cluster, heartbeat_ms, pair)
                begun_s, before = time.monotonic(), cluster.pids()
                done = reload(cluster)
                gap_ms = appending.longest_gap_ms(begun_s)
                took_ms = 1000 * (time.monotonic() - begun_s)
                keys = {change["key"].partition(".")[0] for change in done["changes"]}
                if keys == {"raft"}:
                    found.raft_ms.append(took_ms)
                    found.raft_gaps.append(gap_ms)
                else:
                    found.broker_ms.append(took_ms)
                    found.broker_gaps.append(gap_ms)
                    others = restarted(before, cluster.pids()) - {"n1/broker"}
                    found.others.append(float(len(others)))
    finally:
        if appending is not None:
            appending.end()
            found.failed.append(float(appending.failed))
            found.answered.append(float(len(appending.answered_s)))
        cluster.stop()
    return found


def measure(directory: Path, rounds: int) -> Section:
    figures, rows = [], [ROW_HEAD]
    answered = 0
    for name, cluster in (
        ("", Kelek(directory / "plain")),
        (", keys", KeyedCluster(directory / "keys", "curve")),
    ):
        cluster.directory.mkdir(parents=True)
        if isinstance(cluster, KeyedCluster):
            cluster.write_topology(cluster.topology, cluster.lines)  # With the keys.
        found = ask(cluster, rounds)
        answered += int(sum(found.answered))
        figures += [
            summed_up(f"Raft setting{name}: failed requests", found.failed, "", 0),
            summed_up(f"broker's port{name}: other processes restarted", found.others, "", 0),
        ]
        measured = {
            "Raft setting{}: duration": found.raft_ms,
            "Raft setting{}: longest gap between two answers": found.raft_gaps,
            "broker's port{}: duration": found.broker_ms,
            "broker's port{}: longest gap between two answers": found.broker_gaps,
        }
        rows += [row(what.format(name), each, "ms", ".0f") for what, each in measured.items()]
    note = f"{answered} appends were answered, one after the other."
    return Section("Reload of a topology", figures, rows, note)


QUESTION = Question("reload", __doc__, measure, ROUNDS)
