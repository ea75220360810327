"""How fast is the replicated log, beside etcd and beside the floor, in the same call?

    python -m kelek.bench log [--quick] [-o json] [--results FILE] [--shared DIR] [--only PARTS]

Held equal: three nodes on loopback, fdatasync on, data on the same file system, one load generator
for all (bench/load/loadgen.c), the same closed loop, rounds interleaved in a rotating order. The
systems that are not driven at the moment keep running idle. Not equal: etcd keeps a key-value store
with revisions, the floor has no elections and no state machine. Figures are medians of the rounds;
a ratio is taken within each round, and its spread is the smallest and the largest one.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import zmq

from kelek.bench import machine, report
from kelek.bench.kelek_cluster import IDENT, NODES, Kelek
from kelek.bench.load.loadgen import Generator, Load, finish
from kelek.bench.machine import BenchError
from kelek.bench.peers import Etcd, EtcdAsyncio, LogFloor, PeerCluster
from kelek.bench.question import say

PARTS = ("throughput", "failover", "restart", "memory")
PACK = 16
RESTART_ENTRIES = 100_000
MEMORY_ENTRIES = 336_776  # As many as the demo's flights.
FILL = Load(8, 32)
PROBE = Load(1, 1, updates=1)
FAILOVER_LOAD = Load(1, 32, secs=3.0, warmup_s=0.3)
KILL_AFTER_S = 1.0
ETCD_REST_S = 3.0  # A member that was killed comes back and catches up meanwhile.
MEMORY_REST_S = 2.0
NEARBY = Path(__file__).resolve().parents
Made = TypeVar("Made")


class LogCase(NamedTuple):
    """One closed loop for all systems; some are driven only where it is asked for."""

    name: str
    load: Load
    all: bool = False  # Also etcd by its Python client, and kelek with its other writers.


CASES = [
    LogCase("1 x 1", Load(1, 1), True),
    LogCase("1 x 32", Load(1, 32)),
    LogCase("8 x 32", Load(8, 32), True),
    LogCase("8 x 128", Load(8, 128)),
    LogCase("8 x 128, 1 KiB", Load(8, 128, 1024)),
]


class LogPlan(NamedTuple):
    """How much is measured."""

    parts: tuple[str, ...]
    rounds: int
    secs: float
    kills: int
    peer_kills: int
    restarts: int


FULL = LogPlan(PARTS, rounds=7, secs=2.0, kills=20, peer_kills=7, restarts=7)
QUICK = LogPlan(PARTS, rounds=3, secs=1.0, kills=3, peer_kills=1, restarts=3)


class LogBench:
    """The systems of one call and what was measured on them."""

    def __init__(self, directory: Path, shared: Path, plan: LogPlan) -> None:
        self.directory = directory
        self.plan = plan
        self.generator = Generator(directory)
        self.missing: dict[str, str] = {}
        self.writers: list[Kelek] = []
        self.etcd = self._try("etcd", lambda: Etcd(directory / "etcd"))
        self.floor = self._try("floor", lambda: LogFloor(directory / "floor", shared))
        self.asyncio: EtcdAsyncio | None = None
        if (etcd := self.etcd) is not None:
            self.asyncio = self._try(EtcdAsyncio.name, lambda: EtcdAsyncio(etcd, shared))

    def _try(self, name: str, make: Callable[[], Made]) -> Made | None:
        """A system that can't be had is named with the reason and left out."""
        try:
            return make()
        except BenchError as error:
            self._leave_out(name, error)
            return None

    def _leave_out(self, name: str, error: BenchError) -> None:
        self.missing[name] = str(error)
        say(f"without {name}: {error}")

    def kelek(self, name: str) -> Kelek:
        """A fresh cluster."""
        cluster = Kelek(self.directory / name)
        cluster.start_fresh()
        cluster.leader()
        return cluster

    def drive(self, cluster: PeerCluster, load: Load, *form: str) -> dict[str, Any]:
        """One round, with the CPU time that the servers took an update, by their names."""
        before = {name: machine.cpu_s(pids) for name, pids in cluster.pids().items()}
        result = self.generator.run([*cluster.target, *form], load)
        done = max(result["done"], 1)
        result["server_cpu_us_update"] = {
            name: (machine.cpu_s(pids) - before.get(name, 0.0)) * 1e6 / done
            for name, pids in cluster.pids().items()
        }
        if result["rejected"] or result["done"] < result["sent"]:
            raise BenchError(f"{cluster.name} lost updates: {result}")
        return result

    # ---- closed loops ----

    def throughput(self) -> dict[str, Any]:
        """{case: {system: [a result for each round]}}"""
        kelek = self.kelek("kelek")
        self.writers = []
        for writer in report.WRITERS:
            own = Kelek(self.directory / writer, f"log: {{writer: {writer}}}")
            own.name = f"kelek, {writer}"
            self.writers.append(own)
        others: list[Kelek | Etcd | LogFloor] = [
            *self.writers,
            *(cluster for cluster in (self.etcd, self.floor) if cluster is not None),
        ]
        for cluster in others:
            cluster.start_fresh()
        for own in self.writers:
            own.leader()
        results: dict[str, Any] = {case.name: {} for case in CASES}
        try:
            for number in range(self.plan.rounds):
                say(f"round {number + 1} of {self.plan.rounds}, load {os.getloadavg()[0]:.1f}")
                for case in CASES:
                    self._round(number, case, kelek, results[case.name])
        finally:
            kelek.stop()
            for cluster in others:
                cluster.stop()
        for systems in results.values():  # A ratio needs all rounds of both sides.
            for name in self.missing:
                systems.pop(name, None)
        return results

    def _round(self, number: int, case: LogCase, kelek: Kelek, results: dict[str, Any]) -> None:
        clusters: list[PeerCluster] = [kelek]
        clusters += [cluster for cluster in (self.etcd, self.floor) if cluster is not None]
        if case.all:
            clusters += self.writers
        load = case.load._replace(secs=self.plan.secs)
        runs: list[tuple[str, Callable[[], dict[str, Any]]]] = [
            (cluster.name, partial(self.drive, cluster, load)) for cluster in clusters
        ]
        if load.window >= PACK:
            packed, node_form = load._replace(pack=PACK), ("--ident", IDENT)
            runs.append(("kelek, packs", partial(self.drive, kelek, packed, *node_form)))
        if (peer := self.asyncio) is not None and case.all:
            runs.append((peer.name, partial(peer.run, load)))
        start = number % len(runs)
        for name, run in runs[start:] + runs[:start]:
            if name in self.missing:
                continue
            try:
                results.setdefault(name, []).append({**run(), "load": os.getloadavg()[0]})
            except BenchError as error:
                if name.startswith("kelek"):
                    say(kelek.last_words())
                    raise
                self._leave_out(name, error)

    # ---- the leader is killed ----

    def failover(self) -> dict[str, list[float]]:
        """The longest gap between commits (ms), a kill of the leader's whole node each."""
        kelek = self.kelek("failover")
        found: dict[str, list[float]] = {"kelek": []}
        try:
            for number in range(self.plan.kills):
                leader = kelek.leader()
                gap = self._gap(kelek, partial(kelek.kill_node, leader))
                found["kelek"].append(gap)
                say(f"kill {number + 1} of {self.plan.kills}: {gap:.0f} ms")
        finally:
            kelek.stop()
        if (etcd := self.etcd) is not None:
            found["etcd"] = []
            etcd.start_fresh()
            try:
                for _ in range(self.plan.peer_kills):
                    leader_number = etcd.leader()
                    found["etcd"].append(self._gap(etcd, partial(etcd.kill, leader_number)))
                    time.sleep(ETCD_REST_S)
            finally:
                etcd.stop()
        return found

    def _gap(self, cluster: PeerCluster, kill: Callable[[], float]) -> float:
        generator = self.generator.start(cluster.target, FAILOVER_LOAD)
        time.sleep(KILL_AFTER_S)
        killed = kill()
        result = finish(generator, FAILOVER_LOAD)
        if result["rejected"] or result["done"] < result["sent"]:
            raise BenchError(f"{cluster.name} lost updates at a failover: {result}")
        after = [length for start, length in result["gaps"] if start + length / 1e3 > killed]
        return max(after, default=float(result["longest_gap_ms"]))

    # ---- everything is killed ----

    def restart(self) -> dict[str, list[float]]:
        """SIGKILL of everything until the first committed write (s), with 1e5 entries."""
        found = {}
        clusters: list[Kelek | Etcd] = [Kelek(self.directory / "restart")]
        if self.etcd is not None:
            clusters.append(self.etcd)
        for cluster in clusters:
            cluster.start_fresh()
            try:
                self.generator.run(cluster.target, FILL._replace(updates=RESTART_ENTRIES))
                found[cluster.name] = [self._restart(cluster) for _ in range(self.plan.restarts)]
            finally:
                cluster.stop()
            say(f"restart of {cluster.name}: {[f'{value:.2f}' for value in found[cluster.name]]} s")
        return found

    def _restart(self, cluster: Kelek | Etcd) -> float:
        started = cluster.restart()
        result = self.generator.run(cluster.target, PROBE)
        cluster.leader()
        return float(result["first_done_s"]) - started

    # ---- memory ----

    def memory(self) -> dict[str, Any]:
        """PSS of each node after as many entries as the demo has, and of the supervisor (bytes)."""
        kelek = self.kelek("memory")
        found: dict[str, Any] = {}
        try:
            self.generator.run(kelek.target, FILL._replace(updates=MEMORY_ENTRIES))
            kelek.leader()
            time.sleep(MEMORY_REST_S)
            for node in NODES:
                found[node] = machine.memory(kelek.node_pids(node))._asdict()
            for name, pids in kelek.pids().items():
                found.setdefault("processes", {})[name] = machine.memory(pids)._asdict()
        finally:
            kelek.stop()
        if (etcd := self.etcd) is not None:
            etcd.start_fresh()
            try:
                self.generator.run(etcd.target, FILL._replace(updates=MEMORY_ENTRIES))
                time.sleep(MEMORY_REST_S)
                found["etcd"] = max(
                    machine.memory(pids)._asdict()["anonymous"] for pids in etcd.pids().values()
                )
            finally:
                etcd.stop()
        return found

    def run(self) -> dict[str, Any]:
        """All parts of the plan, with where and when they were measured."""
        load = os.getloadavg()
        found = about(self.directory, self.plan, self.missing)
        found["versions"] = self.versions()
        for part in self.plan.parts:
            say(part)
            found[part] = getattr(self, part)()
        found["load"] = [round(load[0], 2), round(os.getloadavg()[0], 2)]
        found["figures"] = report.figures(found)
        return found

    def versions(self) -> dict[str, str]:
        found = {"kelek": Kelek(self.directory / "none").version()}
        for cluster in (self.etcd, self.floor):
            if cluster is not None:
                found[cluster.name] = cluster.version()
        return {**found, "pyzmq": zmq.__version__, "libzmq": zmq.zmq_version()}


def about(directory: Path, plan: LogPlan, missing: dict[str, str]) -> dict[str, Any]:
    """Where and when it is measured, and what is missing."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "conditions": machine.describe(directory),
        "versions": {"kelek": Kelek(directory / "none").version()},
        "rounds": plan.rounds,
        "secs": plan.secs,
        "missing": missing,
        "load": [round(os.getloadavg()[0], 2)] * 2,
    }


def find_shared() -> Path:
    """The folder `shared` beside the checkout, or above it; that there is none is said later."""
    folders = [parent / "shared" for parent in NEARBY]
    return next((folder for folder in folders if (folder / "floor").is_dir()), Path("shared"))


def parse(arguments: list[str], name: str, text: str | None) -> argparse.Namespace:
    """The options of `log` and of `all`."""
    parser = argparse.ArgumentParser(prog=f"python -m kelek.bench {name}", description=text)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--quick", action="store_true", help="a look, not a measurement")
    parser.add_argument("--rounds", type=int, help="rounds of the closed loops")
    parser.add_argument("--secs", type=float, help="measured seconds of a round")
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts of {','.join(PARTS)}")
    parser.add_argument("--shared", type=Path, default=find_shared(), help="holds floor/, peers/")
    parser.add_argument("--dir", type=Path, help="where the data is written (a temporary one)")
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    parser.add_argument("--results", type=Path, help="writes the results as markdown, too")
    return parser.parse_args(arguments)


def plan_of(options: argparse.Namespace) -> LogPlan:
    parts = tuple(part for part in PARTS if part in options.only.split(","))
    plan = (QUICK if options.quick else FULL)._replace(parts=parts)
    return plan._replace(rounds=options.rounds or plan.rounds, secs=options.secs or plan.secs)


def show(
    found: dict[str, Any], sections: Sequence[report.Section], options: argparse.Namespace
) -> None:
    """Prints what was measured, and writes the page when that is wished."""
    if options.output == "json":
        print(json.dumps({**found, "sections": [section.json() for section in sections]}))
    else:
        print(report.table(found, sections))
    if (page := options.results) is not None:
        before = page.read_text(encoding="utf-8") if page.exists() else ""
        page.write_text(report.markdown(found, sections, before), encoding="utf-8")


def main(arguments: list[str]) -> int:
    options = parse(arguments, "log", __doc__)
    if platform.system() != "Linux":
        print("bench: needs Linux (/proc)", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="kelek-bench-", dir=options.dir) as directory:
        try:
            found = LogBench(Path(directory), options.shared, plan_of(options)).run()
        except BenchError as error:
            print(f"bench: {error}", file=sys.stderr)
            return 2
    show(found, [], options)
    return 0
