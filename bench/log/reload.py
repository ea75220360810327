"""What do clients notice while the nodes adopt a changed topology?

    python -m kelek.bench reload [--quick] [--rounds N] [-o json]

Three nodes and a broker under one supervisor, everything at its default. One client appends an
entry, waits for the answer and appends the next one, all the time. Each round changes a setting of
Raft, which restarts raft_peer on each node, and then the broker's port; `supervisor reload` adopts
each. A gap is the time between two answers. A request has failed when append() raises.
"""

import json
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import kelek
from kelek.bench.kelek_cluster import IDENT, START, Kelek
from kelek.bench.machine import BenchError, free_ports
from kelek.bench.question import ROW_HEAD, Question, row
from kelek.bench.report import Section, summed_up

ROUNDS = 7
RELOAD_S_MAX = 120
COMMAND = [*START[:-1], "reload"]


class Appending:
    """A client that appends all the time, in a thread of its own."""

    def __init__(self, urls: list[str]) -> None:
        self.answered_s: list[float] = []
        self.failed = 0
        self._stop = threading.Event()
        self._urls = urls
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with kelek.Log(self._urls, IDENT) as log:
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
    urls = ", ".join(
        f"{key}: tcp://127.0.0.1:{port}"
        for key, port in zip(("clients_url", "workers_url"), ports, strict=True)
    )
    first, *others = cluster.lines
    cluster.settings = f"raft: {{heartbeat_ms: {heartbeat_ms}}}"
    cluster.write_topology(cluster.topology, [f"{first[:-1]}, broker: {{{urls}}}}}", *others])


def restarted(before: dict[str, list[int]], after: dict[str, list[int]]) -> set[str]:
    return {name for name, pids in after.items() if pids != before.get(name)}


def measure(directory: Path, rounds: int) -> Section:
    cluster = Kelek(directory)
    raft_ms, raft_gaps, broker_ms, broker_gaps, others = [], [], [], [], []
    directory.mkdir(parents=True)
    ports = free_ports(2 * rounds + 2)
    write(cluster, 70, ports[-2:])
    appending = None
    try:
        cluster.start()
        cluster.leader()
        appending = Appending(list(cluster.urls.values()))
        for number in range(rounds):
            heartbeat_ms = 60 + number % 2
            for pair in (ports[-2:] if not number else ports[2 * number - 2 : 2 * number],
                         ports[2 * number : 2 * number + 2]):  # fmt: skip
                write(cluster, heartbeat_ms, pair)
                begun_s, before = time.monotonic(), cluster.pids()
                done = reload(cluster)
                gap_ms, took_ms = appending.longest_gap_ms(begun_s), 0.0
                took_ms = 1000 * (time.monotonic() - begun_s)
                keys = {change["key"].partition(".")[0] for change in done["changes"]}
                if keys == {"raft"}:
                    raft_ms.append(took_ms)
                    raft_gaps.append(gap_ms)
                else:
                    broker_ms.append(took_ms)
                    broker_gaps.append(gap_ms)
                    others.append(float(len(restarted(before, cluster.pids()) - {"n1/broker"})))
    finally:
        if appending is not None:
            appending.end()
        cluster.stop()
    figures = [
        summed_up("reload of a Raft setting: failed requests", [float(appending.failed)], "", 0),
        summed_up("reload of a broker's port: other processes restarted", others, "", 0),
    ]
    rows = [
        ROW_HEAD,
        row("Raft setting on three nodes: duration", raft_ms, "ms", ".0f"),
        row("Raft setting: longest gap between two answers", raft_gaps, "ms", ".0f"),
        row("broker's port: duration", broker_ms, "ms", ".0f"),
        row("broker's port: longest gap between two answers", broker_gaps, "ms", ".0f"),
    ]
    note = f"{len(appending.answered_s)} appends were answered, one after the other."
    return Section("Reload of a topology", figures, rows, note)


QUESTION = Question("reload", __doc__, measure, ROUNDS)
