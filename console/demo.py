"""The demo: three nodes take in all flights, lose their leader on the way, and prove the log right.

It drives `supervisor` and `kelek.Log` as anybody would, and knows nothing of what is inside.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

import click

from ..actors import topology as topologies
from ..actors.errors import OperatorError
from ..clients.errors import LogError
from ..clients.log import Log
from . import endings
from .flights import flights_path, log_hash, read_flights

DEFAULT = "topology.yaml"
SHORT_FLIGHTS = 60_000
KILL_AT = 0.4  # Of the flights.
APPLY_S = 60
STATUS_S = 0.1
STALL_MS = 20_000  # A load without any commit for so long has failed.
STATE = 0  # The type of entries that are updates.
MARKER = "made-by-the-kelek-demo"  # Only a directory with this file in it is ever wiped.

T = TypeVar("T")


class Options(NamedTuple):
    topology: str
    data: Path | None
    flights: int | None


class Loaded(NamedTuple):
    """What the load saw."""

    seconds: float
    gap_s: float
    killed: str


class NodeProof(NamedTuple):
    """What one node says about its log in the end."""

    node: str
    applied_index: int
    hash: str
    restarts: int


def say(line: str = "") -> None:
    click.echo(line)


def fail(line: str) -> NoReturn:
    raise endings.Ending(line, endings.FAILED)


class Progress:
    """How far the load is: one line that changes on a terminal, a line now and then elsewhere."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._begun = self._shown = time.monotonic()
        self._every_s = 0.1 if sys.stdout.isatty() else 1.0

    def show(self, count: int) -> None:
        now = time.monotonic()
        if now - self._shown < self._every_s and count < self.total:
            return
        self._shown = now
        rate = count / max(now - self._begun, 1e-9)
        line = f"  {100 * count // self.total:3} %  {count:,} of {self.total:,} at {rate:,.0f}/s"
        if sys.stdout.isatty():
            click.echo(f"\r{line:<60}", nl=count >= self.total)
        else:
            say(line)

    def interrupt(self, line: str) -> None:
        """Says something in between."""
        if sys.stdout.isatty():
            say()
        say(f"  {line}")


class Cluster:
    """The nodes of a topology, through the command `supervisor`."""

    def __init__(self, topology: str) -> None:
        self.topology = topology

    def _supervisor(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-m", "kelek.console.supervisor_cli", *words]
        return subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
        )

    def start(self) -> None:
        done = self._supervisor("start", self.topology, "--detach", "--bootstrap")
        if done.returncode != 0:
            lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
            raise endings.Ending(lines[-1] if lines else "supervisor start failed without a word")

    def stop(self) -> None:
        self._supervisor("stop", self.topology)

    def processes(self) -> list[dict[str, Any]]:
        done = self._supervisor("status", self.topology, "-o", "json")
        try:
            found: list[dict[str, Any]] = json.loads(done.stdout)["processes"]
        except (ValueError, KeyError):
            return []
        return [row for row in found if row["role"] != "supervisor"]

    def wait(self, what: str, seconds: float, ask: Callable[[list[dict[str, Any]]], T | None]) -> T:
        """Asks for the status until it says what we wait for."""
        until = time.monotonic() + seconds
        while (found := ask(self.processes())) is None:
            if time.monotonic() > until:
                fail(f"{self.topology}: {what} not within {seconds} s; see: {self.logs}")
            time.sleep(STATUS_S)
        return found

    @property
    def logs(self) -> str:
        return f"supervisor logs {self.topology}"


def kill_node(processes: Sequence[dict[str, Any]], node: str) -> dict[str, int]:
    """SIGKILL to every process of a node at once: none of them can say goodbye."""
    pids = {row["name"]: row["pid"] for row in processes if row["node"] == node and row["pid"]}
    for pid in pids.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return pids


def wipe(data_dir: Path) -> None:
    """Makes the data directory fresh; one that the demo has not made is never touched."""
    if data_dir.exists() and any(data_dir.iterdir()):
        if not (data_dir / MARKER).is_file():
            problem = "holds a log that the demo has not made"
            raise endings.Ending(f"{data_dir}: {problem}; move it away, or remove it")
        say(f"wiping {data_dir}, which an earlier demo left")
        shutil.rmtree(data_dir)
    data_dir.mkdir(parents=True, exist_ok=True)
    (data_dir / MARKER).write_text("./demo removes this directory when it starts again.\n")


class Load:
    """Sends all flights in order, and kills the leader's node once on the way."""

    def __init__(self, cluster: Cluster, flights: Sequence[bytes], beside: Log) -> None:
        """beside is asked who leads, so that the load is not held up by a command."""
        self._beside = beside
        self._processes = cluster.processes()
        self._flights = flights
        self._kill_at = int(len(flights) * KILL_AT)
        self._progress = Progress(len(flights))
        self.gap_s = 0.0
        self.killed = ""

    def run(self, log: Log) -> Loaded:
        began = self._last = time.monotonic()
        log.update_many(self._flights, self._on_committed)
        return Loaded(time.monotonic() - began, self.gap_s, self.killed)

    def _on_committed(self, count: int) -> None:
        now = time.monotonic()
        self.gap_s, self._last = max(self.gap_s, now - self._last), now
        self._progress.show(count)
        if not self.killed and count >= self._kill_at:
            self._kill()

    def _kill(self) -> None:
        node = self._beside.config().leader
        if node is None:  # Just being elected: the next commit is soon enough.
            return
        pids = kill_node(self._processes, node)
        self.killed = node
        names = ", ".join(f"{name} {pid}" for name, pid in pids.items())
        self._progress.interrupt(f"SIGKILL to the leader's whole node {node}: {names}")


def applied_by_all(
    nodes: Sequence[str], commit_index: int
) -> Callable[[list[dict[str, Any]]], list[NodeProof] | None]:
    """What to wait for: every node has applied everything."""

    def ask(processes: list[dict[str, Any]]) -> list[NodeProof] | None:
        proofs = []
        for node in nodes:
            rows = {row["role"]: row for row in processes if row["node"] == node}
            machine, peer = rows.get("state_machine", {}), rows.get("raft_peer", {})
            if (machine.get("applied_index") or 0) < commit_index:
                return None
            restarts = max(machine["restarts"], peer["restarts"])
            proofs.append(NodeProof(node, machine["applied_index"], machine["hash"], restarts))
        return proofs

    return ask


def same_entries(log: Log, flights: Sequence[bytes]) -> str:
    """Reads the log back; empty when it holds each flight once, in order, else what is wrong."""
    position = 0
    for entry in log.entries():
        if entry.type != STATE:
            continue
        if position == len(flights) or entry.data != flights[position]:
            return f"entry {entry.index} is not flight {position + 1}"
        position += 1
    return "" if position == len(flights) else f"{len(flights) - position} flights are missing"


def show_table(proofs: Sequence[NodeProof], expected: str) -> None:
    say(f"  {'node':<6} {'applied':>9} {'restarts':>9}  SHA-256 over the log")
    for proof in proofs:
        hash_text = proof.hash if proof.hash == expected else f"{proof.hash}  <- differs"
        say(f"  {proof.node:<6} {proof.applied_index:>9} {proof.restarts:>9}  {hash_text}")
    say(f"  {'CSV':<6} {'':>9} {'':>9}  {expected}")


def prove(cluster: Cluster, log: Log, nodes: Sequence[str], flights: Sequence[bytes]) -> list[str]:
    """Waits until all have applied everything, and says all that is wrong."""
    commit_index = log.info().commit_index
    say(f"waiting until {', '.join(nodes)} have applied all {commit_index:,} entries")
    proofs = cluster.wait("all applied", APPLY_S, applied_by_all(nodes, commit_index))
    say("reading the log back")
    wrong = same_entries(log, flights)
    expected = log_hash(flights)
    say()
    show_table(proofs, expected)
    problems = [wrong] if wrong else []
    if {proof.hash for proof in proofs} != {expected}:
        problems.append("the hashes differ")
    if len({proof.applied_index for proof in proofs}) != 1:
        problems.append("the applied indexes differ")
    return problems


def run(options: Options) -> None:
    """The whole demo. Raises Ending when it can't run or the proof fails."""
    try:
        topology = topologies.load(options.topology)
    except OperatorError as error:
        raise endings.Ending(str(error)) from error
    flights = read_flights(options.data or flights_path())[: options.flights]
    nodes = topology.own_nodes
    cluster = Cluster(options.topology)
    if cluster.processes():
        problem, way_out = "runs already", f"first: supervisor stop {options.topology}"
        raise endings.Ending(f"{options.topology}: {problem}; {way_out}")
    wipe(topology.data_dir)
    began = time.monotonic()
    try:
        cluster.start()
        say(f"started {', '.join(nodes)} of {options.topology} in {elapsed(began)}")
        urls = [topology.nodes[node].url for node in nodes]
        with Log(urls, topology.cluster, timeout_ms=STALL_MS) as log:
            say(f"loading {len(flights):,} flights in order, one update each")
            with Log(urls, topology.cluster, timeout_ms=STALL_MS) as beside:
                loaded = Load(cluster, flights, beside).run(log)
            problems = prove(cluster, log, nodes, flights)
    except LogError as error:
        fail(f"{options.topology}: {error}; see: {cluster.logs}")
    finally:
        cluster.stop()
    if not loaded.killed:
        problems.append("no leader was killed")
    rate = len(flights) / loaded.seconds
    say()
    say(f"  entries                      {len(flights):>10,}")
    say(f"  updates/s                    {rate:>10,.0f}")
    say(f"  longest gap between commits  {loaded.gap_s:>10.3f} s")
    say(f"  each flight once, in order   {'no' if problems else 'yes':>10}")
    say()
    if problems:
        fail("; ".join(problems))
    say(f"All of it in {elapsed(began)}. The log is kept in {topology.data_dir}. What to try next:")
    for line in what_next(options.topology):
        say(f"  {line}")


def elapsed(began: float) -> str:
    return f"{time.monotonic() - began:.1f} s"


def what_next(topology: str) -> list[str]:
    where = "" if topology == DEFAULT else f" -t {topology}"
    return [
        ". .venv/bin/activate",
        f"supervisor start {topology} --detach",
        f"supervisor status {topology}",
        f"kelek log info{where}",
        f"kelek log tail{where} -n 3",
        f"kelek log put{where} 'hello world'",
        f"kelek log bench{where}",
        f"supervisor stop {topology}",
    ]


@click.command(cls=endings.Command, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--short", is_flag=True, help=f"Only the first {SHORT_FLIGHTS:,} flights.")
@click.option("--flights", type=click.IntRange(min=10), help="Only the first so many flights.")
@click.option("--topology", default=DEFAULT, show_default=True, help="The nodes to start.")
@click.option("--data", type=click.Path(path_type=Path), help="Another zip archive with a CSV.")
@endings.spoken
def main(short: bool, flights: int | None, topology: str, data: Path | None) -> None:
    """Loads all flights into three nodes, kills the leader on the way, proves that all is there."""
    run(Options(topology, data, flights or (SHORT_FLIGHTS if short else None)))


if __name__ == "__main__":
    main(prog_name="./demo")
