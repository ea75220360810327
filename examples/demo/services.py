"""The demo's service: two workers answer from the table of flights, and one of them is killed.

The demo runs `kelek worker`, calls with kelek.Broker, and compares the answers with the CSV.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from kelek.actors.topology.topology import Topology
from kelek.clients.broker.broker import Broker, Future
from kelek.clients.errors import ServiceRefused
from kelek.console.broker.lists import fetch_rows
from kelek.examples.demo.changes import step
from kelek.examples.demo.cluster import fail, say
from kelek.examples.demo.tables import Pair, Tables
from kelek.protocols.majordomo.values import OWN_SERVICES, OWN_WORKERS

EXAMPLE = "examples.flight_delays:delay"
ROOT = Path(__file__).parents[2]
SERVICE = "flights.delay"
LOG = "services.log"
COLUMN = "dep_delay"
PLACE = 5  # Of the column, as the example expects it.
WORKERS = 2
CALLS = 3000
OUTSTANDING = 64
KILL_AT = 0.4  # Of the calls.
CALL_MS = 60_000
READY_S = 60.0
LOOK_S = 0.02


class Served(NamedTuple):
    """The result of the calls."""

    calls: int
    key: str  # An existing key.
    problems: list[str]


def why_not(topology: Topology, table_urls: Mapping[str, str], header: bytes) -> str:
    """Why no service can run here, with the way out; empty: it can."""
    if not broker_urls(topology):
        return "no node of this topology has a broker"
    if not table_urls:
        return "no node of this topology serves tables"
    if header.decode().replace('"', "").split(",")[PLACE : PLACE + 1] != [COLUMN]:
        return f"{COLUMN} is not column {PLACE + 1} of these flights"
    if not (ROOT / EXAMPLE.partition(":")[0].replace(".", "/")).with_suffix(".py").is_file():
        return f"{EXAMPLE} is not there; run ./demo in a clone of the repository"
    return ""


class Services:
    """The demo's steps with a service; `problems` says what was wrong."""

    def __init__(self, topology: Topology, tables: Tables) -> None:
        self.problems: list[str] = []
        self.topology = topology
        self._table_urls = ",".join(tables.table_urls.values())
        self._keys = tables.cluster.keys
        every = max(1, len(tables.rows) // CALLS)
        self._queries: Sequence[Pair] = tables.rows[::every][:CALLS]
        self._workers: list[subprocess.Popen[bytes]] = []
        self._killed = 0

    def run(self) -> Served:
        """Runs all steps. Raises BrokerError."""
        say()
        say(f"the service {SERVICE}: workers that answer from the table")
        urls = broker_urls(self.topology)
        with self._working(), Broker(urls, timeout_ms=CALL_MS, **self._keys) as broker:
            with step(f"{WORKERS} workers started"):
                self._wait_ready(broker)
            with step(f"{len(self._queries):,} calls, {OUTSTANDING} at once") as details:
                began = time.monotonic()
                answers = self._call_all(broker)
                details.append(f"{len(answers) / (time.monotonic() - began):,.0f}/s")
                details.append(f"SIGKILL to worker {self._killed} among them")
            with step("each answered, once, with the minutes of the CSV") as details:
                self.check(answers, broker.counters)
                details.append(f"{self._done(broker):,} by the other worker")
        return Served(len(self._queries), self._queries[-1][0].decode(), self.problems)

    # ---- the workers, each as `kelek worker run` ----

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        """Starts two workers; ends those that still live."""
        command = [sys.executable, "-P", "-m", "kelek.console.kelek_cli", "worker", "run", EXAMPLE]
        where = ["-t", str(Path(self.topology.path).resolve())]
        with self._log.open("wb") as log:
            self._workers = [
                subprocess.Popen(
                    [*command, *where],
                    cwd=ROOT,
                    env={
                        **os.environ,
                        "FLIGHTS_URLS": self._table_urls,
                        "FLIGHTS_KEYS": json.dumps(self._keys),
                    },
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
                for _ in range(WORKERS)
            ]
        try:
            yield
        finally:
            for worker in self._workers:
                worker.terminate()
            for worker in self._workers:
                worker.wait()

    @property
    def _log(self) -> Path:
        return self.topology.data_dir / LOG

    def _wait_ready(self, broker: Broker) -> None:
        """Waits until the broker knows all workers."""
        until = time.monotonic() + READY_S
        while self._known(broker) < WORKERS:
            if time.monotonic() > until or any(one.poll() is not None for one in self._workers):
                fail(f"{EXAMPLE}: {WORKERS} workers are not there; see {self._log}")
            time.sleep(LOOK_S)

    def _known(self, broker: Broker) -> int:
        rows = fetch_rows(broker, OWN_SERVICES, "name")
        return next((int(row["workers"]) for row in rows if row["name"] == SERVICE), 0)

    def _done(self, broker: Broker) -> int:
        """The number of answers of the workers that still live."""
        rows = fetch_rows(broker, OWN_WORKERS, "number")
        return sum(row["done"] for row in rows if row["service"] == SERVICE)

    # ---- the calls ----

    def _call_all(self, broker: Broker) -> list[bytes]:
        """The answers to all calls, while the first worker is killed."""
        answers: list[bytes] = []
        waiting: deque[Future] = deque()
        for number, (key, _) in enumerate(self._queries):
            if number == int(len(self._queries) * KILL_AT):
                self._killed = self._workers[0].pid
                self._workers[0].kill()
            if len(waiting) == OUTSTANDING:
                answers.append(self._answer(waiting.popleft()))
            waiting.append(broker.submit(SERVICE, key))
        return answers + [self._answer(one) for one in waiting]

    def _answer(self, future: Future) -> bytes:
        try:
            return future.result()
        except ServiceRefused as failed:
            return f"{failed.code}: {failed.text}".encode()

    def check(self, answers: Sequence[bytes], counters: Mapping[str, int]) -> None:
        """Compares the answers with the flights; counters are the client's counters."""
        pairs = zip(self._queries, answers, strict=True)
        wrong = [(key, found) for (key, line), found in pairs if found != minutes(line)]
        if wrong:
            key, found = wrong[0]
            self.problems.append(f"{len(wrong)} answers of {SERVICE} are wrong: {key!r} {found!r}")
        # A client that lost its broker may receive an answer twice, and drops the second.
        if counters.get("brokers") == 1 and counters.get("strays"):
            self.problems.append(f"{counters['strays']} answers of {SERVICE} came twice")


def broker_urls(topology: Topology) -> list[str]:
    """The brokers' addresses."""
    return [url for node in topology.nodes.values() if (url := node.clients_url)]


def minutes(line: bytes) -> bytes:
    """The delay in the CSV."""
    return line.split(b",")[PLACE]
