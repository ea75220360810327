"""The demo: it proves that a cluster keeps every entry through failures and changes.

It drives `supervisor`, `kelek.Log`, `kelek.Table` and `kelek.Broker` from outside, like any
program.
"""

import logging
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from kelek.actors.topology import topology as topologies
from kelek.clients.errors import BrokerError, LogError, TableError
from kelek.clients.log.log import Log
from kelek.console import cli_errors
from kelek.examples.demo import keys
from kelek.examples.demo import pipeline as demo_pipeline
from kelek.examples.demo import services as demo_services
from kelek.examples.demo.changes import Changes, step
from kelek.examples.demo.cluster import Cluster, fail, kill_node, say, wipe
from kelek.examples.demo.flights import Flights, flights_path, log_hash, read_flights
from kelek.examples.demo.tables import Tables

DEFAULT = "topology.yaml"
SHORT_FLIGHTS = 60_000
KILL_AT = 0.4  # Of the flights.
LATER = 0.1  # Of the flights: appended while a node is down.
NODES_MIN = 3  # A smaller cluster cannot lose a node.
APPLY_S = 60
STALL_MS = 20_000  # A load fails after so long without a commit.
STATE = 0  # The type of clients' entries.


class Options(NamedTuple):
    topology: str
    data: Path | None
    flights: int | None
    fast: bool  # Without Spark.
    secure: bool  # With keys.


class Loaded(NamedTuple):
    """The result of the load."""

    rate: float  # Updates a second.
    gap_s: float
    killed: str


class NodeProof(NamedTuple):
    """A node's log after the demo."""

    node: str
    applied_index: int
    snapshot_index: int  # Of the newest one that it has.
    hash: str


class LoadProgress:
    """Progress of the load: one line that a terminal overwrites, or a line a second."""

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
        """Prints a line between."""
        if sys.stdout.isatty():
            say()
        say(f"  {line}")


class FlightLoad:
    """Appends all flights in order, and kills the leader's node once meanwhile."""

    def __init__(self, cluster: Cluster, flights: Sequence[bytes], beside: Log) -> None:
        """beside finds the leader, so that the load does not wait for a command."""
        self._beside = beside
        self._processes = cluster.processes()
        self._flights = flights
        self._kill_at = int(len(flights) * KILL_AT)
        self._progress = LoadProgress(len(flights))
        self.gap_s = 0.0
        self.killed = ""

    def run(self, log: Log) -> Loaded:
        began = self._last = time.monotonic()
        log.append_many(self._flights, self._on_committed)
        rate = len(self._flights) / (time.monotonic() - began)
        return Loaded(rate, self.gap_s, self.killed)

    def _on_committed(self, count: int) -> None:
        now = time.monotonic()
        self.gap_s, self._last = max(self.gap_s, now - self._last), now
        self._progress.show(count)
        if not self.killed and count >= self._kill_at:
            self._kill()

    def _kill(self) -> None:
        node = self._beside.config().leader
        if node is None:  # An election: retry at the next commit.
            return
        pids = kill_node(self._processes, node)
        self.killed = node
        names = ", ".join(f"{name} {pid}" for name, pid in pids.items())
        self._progress.interrupt(f"SIGKILL to the leader's whole node {node}: {names}")


def applied_by_all(
    nodes: Sequence[str], commit_index: int
) -> Callable[[list[dict[str, Any]]], list[NodeProof] | None]:
    """A condition: every node has applied every entry."""

    def ask(processes: list[dict[str, Any]]) -> list[NodeProof] | None:
        proofs = []
        for node in nodes:
            rows = {row["role"]: row for row in processes if row["node"] == node}
            machine, peer = rows.get("state_machine", {}), rows.get("raft_peer", {})
            if (machine.get("applied_index") or 0) < commit_index or "snapshot_index" not in peer:
                return None
            indexes = machine["applied_index"], peer["snapshot_index"]
            proofs.append(NodeProof(node, *indexes, machine["hash"]))
        return proofs

    return ask


def same_entries(log: Log, flights: Sequence[bytes], after: int = 0) -> str:
    """Reads the log after an index; returns what is wrong unless it has each flight once, in
    order.
    """
    position = 0
    for entry in log.entries(after):
        if entry.type != STATE:
            continue
        if position == len(flights) or entry.data != flights[position]:
            return f"entry {entry.index} is not flight {position + 1} of {len(flights)}"
        position += 1
    return "" if position == len(flights) else f"{len(flights) - position} flights are missing"


def show_table(proofs: Sequence[NodeProof], expected: str) -> None:
    say(f"  {'node':<6} {'applied':>9} {'snapshot':>9}  SHA-256 over the log")
    for proof in proofs:
        hash_text = proof.hash if proof.hash == expected else f"{proof.hash}  <- differs"
        numbers = f"{proof.applied_index:>9} {proof.snapshot_index:>9}"
        say(f"  {proof.node:<6} {numbers}  {hash_text}")
    say(f"  {'CSV':<6} {'':>9} {'':>9}  {expected}")


def prove(cluster: Cluster, log: Log, flights: Sequence[bytes]) -> list[str]:
    """Waits until all nodes have applied every entry, prints their logs, and returns all
    problems.
    """
    commit_index = log.info().commit_index
    nodes = list(cluster.urls)
    proofs = cluster.wait("all applied", APPLY_S, applied_by_all(nodes, commit_index))
    expected = log_hash(flights)
    say()
    show_table(proofs, expected)
    say()
    problems = []
    if {proof.hash for proof in proofs} != {expected}:
        problems.append("the hashes differ")
    if len({proof.applied_index for proof in proofs}) != 1:
        problems.append("the applied indexes differ")
    if not all(proof.snapshot_index for proof in proofs):
        problems.append("a node has come back without a snapshot")
    return problems


class Outcome(NamedTuple):
    loaded: Loaded
    problems: list[str]  # Of the log and its tables.
    services: demo_services.Served | None  # None: left out.
    pipeline: demo_pipeline.Pipelined | None  # None: left out.

    @property
    def all_problems(self) -> list[str]:
        parts = (part for part in (self.services, self.pipeline) if part)
        return [*self.problems, *(line for part in parts for line in part.problems)]


def play(cluster: Cluster, file: Flights, fast: bool) -> Outcome:
    """Runs the steps on the cluster."""
    flights = file.lines
    tables = Tables(cluster, file.header, flights)
    early = flights[: len(flights) - int(len(flights) * LATER)]
    with cluster.log(timeout_ms=STALL_MS) as log:
        say(f"loading {len(early):,} flights in order, one update each")
        with cluster.log(timeout_ms=STALL_MS) as beside:
            loaded = FlightLoad(cluster, early, beside).run(log)
        say()
        changes = Changes(cluster, log)
        with step(f"all of them applied by {', '.join(cluster.urls)}, the killed one too"):
            changes.wait_applied(*cluster.urls)
        with step("each of them read back from the log, once, in order"):
            wrong = [same_entries(log, early)]
        changes.run(flights[len(early) :])
        with step("the last ones read back, too"):
            wrong.append(same_entries(log, flights[len(early) :], changes.snapshot_index))
        problems = [line for line in wrong if line] + prove(cluster, log, flights)
        changes.leave()
    tables.run()
    problems += tables.problems
    if not loaded.killed:
        problems.append("no leader was killed")
    return Outcome(loaded, problems, serve(tables, file), pipe(tables, file, fast))


def serve(tables: Tables, file: Flights) -> demo_services.Served | None:
    """The service over the table; None: left out."""
    topology = tables.cluster.topology
    if left_out("the service", demo_services.why_not(topology, tables.table_urls, file.header)):
        return None
    return demo_services.Services(topology, tables).run()


def pipe(tables: Tables, file: Flights, fast: bool) -> demo_pipeline.Pipelined | None:
    """The pipeline over the table; None: left out."""
    why_not = "--fast" if fast else demo_pipeline.why_not(tables.table_urls, file.header)
    if left_out("the pipeline", why_not):
        return None
    return demo_pipeline.run(tables, file)


def left_out(what: str, why_not: str) -> bool:
    """Prints why a step is left out."""
    if why_not:
        say()
        say(f"{what} is left out: {why_not}")
    return bool(why_not)


def run(options: Options) -> None:
    """The whole demo. Raises CliError when it cannot run or the proof fails."""
    topology = topologies.load(options.topology)
    nodes = topology.own_nodes
    if len(nodes) < NODES_MIN:
        way_out = f"give a topology with {NODES_MIN} or more"
        raise cli_errors.CliError(
            f"{options.topology}: {len(nodes)} nodes can't lose one; {way_out}"
        )
    file = read_flights(options.data or flights_path())
    flights = file.lines[: options.flights]
    cluster = Cluster(topology)
    if cluster.processes():
        problem, way_out = "runs already", f"first: supervisor stop {options.topology}"
        raise cli_errors.CliError(f"{options.topology}: {problem}; {way_out}")
    wipe(topology.data_dir)
    if options.secure:
        topology = keys.secured(topology)
        options = options._replace(topology=topology.path)
        cluster = Cluster(topology)
    began = time.monotonic()
    try:
        cluster.start(*nodes, bootstrap=True)
        say(f"started {', '.join(nodes)} of {options.topology} in {elapsed(began)}")
        outcome = play(cluster, Flights(file.header, flights), options.fast)
    except (LogError, TableError, BrokerError) as error:
        fail(f"{options.topology}: {error}; see: {cluster.logs}")
    finally:
        cluster.stop_all()
    show_outcome(outcome, len(flights))
    if outcome.all_problems:
        fail("; ".join(outcome.all_problems))
    say(f"All of it in {elapsed(began)}. The log is kept in {topology.data_dir}. What to try next:")
    for line in what_next(options.topology, outcome):
        say(f"  {line}")


def show_outcome(outcome: Outcome, entries: int) -> None:
    """Prints the table of results."""
    loaded, problems, services, pipeline = outcome
    calls = f"{services.calls:>10,}" if services else f"{'left out':>10}"
    seconds = f"{pipeline.seconds:>10.3f} s" if pipeline else f"{'left out':>10}"
    say()
    say(f"  entries                      {entries:>10,}")
    say(f"  updates/s                    {loaded.rate:>10,.0f}")
    say(f"  longest gap between commits  {loaded.gap_s:>10.3f} s")
    say(f"  each flight once, in order   {'no' if problems else 'yes':>10}")
    say(f"  calls of the service         {calls}")
    if services:
        say(f"  each answered once, right    {'no' if services.problems else 'yes':>10}")
    say(f"  the pipeline in Spark        {seconds}")
    say()


def elapsed(began: float) -> str:
    return f"{time.monotonic() - began:.1f} s"


def what_next(topology: str, outcome: Outcome) -> list[str]:
    where = "" if topology == DEFAULT else f" -t {topology}"
    services = outcome.services
    asking = (
        [
            f"kelek worker run {demo_services.EXAMPLE} &",
            f"kelek call {demo_services.SERVICE} {services.key}",
        ]
        if services and not where
        else []
    )
    return [
        ". .venv/bin/activate",
        f"supervisor start {topology} --detach",
        f"supervisor status {topology}",
        f"kelek log info{where}",
        f"kelek log entries{where} -n 3",
        f"kelek log append{where} 'hello world'",
        f"kelek table scan 1{where} --prefix UA/2013-07-04",
        *asking,
        *["python examples/pipeline/delays.py"] * (outcome.pipeline is not None and not where),
        f"kelek shell{where} 1",
        f"supervisor stop {topology}",
    ]


@click.command(
    "./demo", cls=cli_errors.Command, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.option("--short", is_flag=True, help=f"Only the first {SHORT_FLIGHTS:,} flights.")
@click.option("--fast", is_flag=True, help="Without Spark.")
@click.option("--secure", is_flag=True, help="With a key for each node, and CURVE.")
@click.option("--flights", type=click.IntRange(min=10), help="Only the first so many flights.")
@click.option("--topology", default=DEFAULT, show_default=True, help="The nodes to start.")
@click.option("--data", type=click.Path(path_type=Path), help="Another zip archive with a CSV.")
def main(short: bool, flights: int | None, **options: Any) -> None:
    """Appends all flights to three nodes and proves that all of them are there.

    It kills the leader, takes a snapshot, adds a node, removes one and wipes a disk meanwhile. Then
    it queries a table of the flights while it kills the node that answers, and calls a service
    while it kills a worker. In the end Spark joins the flights with weather and planes and writes
    the delays into another table. It leaves that step out where Spark cannot be installed.
    """
    logging.getLogger("kelek").setLevel(logging.ERROR)  # It waits for the nodes that it kills.
    run(Options(flights=flights or (SHORT_FLIGHTS if short else None), **options))


if __name__ == "__main__":
    main(prog_name="./demo")
