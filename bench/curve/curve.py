"""What do CURVE and grants cost?

    python -m kelek.bench curve [--quick] [--rounds N] [-o json]

Three clusters run side by side (clusters.py): null without keys; curve with CURVE on all endpoints
and a key with grants; grants without CURVE, but with the same grants. In each round the same
generator drives them in turn, in a rotating order, for a short time each; a ratio is taken within
a round. Clusters that are not driven keep running idle.

log        updates of 8 clients with 128 outstanding each, in packs of 16 as kelek.Log sends them,
           and in the specification's form, as other programs do
put, get   of 100 keys of a replicated table, at the leader: 2 clients with 8 requests each, in the
           specification's form, and as packed columns as kelek.Table sends them
service    calls of 4 clients with 25 outstanding each; 4 workers with a window of 32 echo them. In
           bundles as kelek.Broker sends them, and in the specification's form

libzmq encrypts each frame on its own, so the number of frames decides the cost of small values. The
goals are for the forms that kelek's clients use, and for tables in the specification's, too.
libzmq is the generator's client of log and tables; for services it has ZMTP and CURVE of its own.
CPU is of all server processes (of the cluster) for one update, row or call, in microseconds.
"""

import math
import os
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

from kelek.bench.curve.clusters import FORMS, KeyedCluster
from kelek.bench.kelek_cluster import IDENT, NODES
from kelek.bench.load.loadgen import Generator, Load
from kelek.bench.machine import BenchError, cpu_s
from kelek.bench.question import Question, say
from kelek.bench.report import Figure, Section, number, ratios, summed_up
from kelek.bench.tables.tables import REPLICATED

ROUNDS = 21
SECS, WARMUP_S = 0.6, 0.2
REST_S = 0.1
KIB, MIB = 1 << 10, 1 << 20
ROWS = 100_000
RATIO_MIN, GRANTS_MIN = 0.7, 0.97


class CurveCase(NamedTuple):
    """A load for all clusters.

    goal    whether its ratios have goals
    rare    driven in each third round only
    """

    name: str
    protocol: str
    load: Load
    words: tuple[str, ...] = ()
    goal: bool = False
    rare: bool = False
    table: int = REPLICATED


def row_options(op: str, batch: int, keys: int, *more: str) -> tuple[str, ...]:
    return ("--op", op, "--batch", str(batch), "--keys", str(keys), *more)


def _large(size: int, name: str, table: int) -> list[CurveCase]:
    keys, few = 64 * MIB // size, max(2, 256 * KIB // size)
    load = Load(2, few, size)
    return [
        CurveCase(f"log, {name}", "zmqraft", load, rare=True),
        CurveCase(
            f"put of one, {name}", "zerodb", load, row_options("put", 1, keys), False, True, table
        ),
        CurveCase(
            f"get of one, {name}", "zerodb", load, row_options("get", 1, keys), False, True, table
        ),
        CurveCase(f"service, {name}", "broker", load, rare=True),
    ]


def _filling(case: CurveCase) -> CurveCase:
    """Returns the load that writes all keys that a case reads."""
    keys = int(case.words[case.words.index("--keys") + 1])
    words = tuple("put" if word == "get" else word for word in case.words)
    return case._replace(words=words, load=case.load._replace(updates=keys))


BUSY, WIDE = Load(8, 128), Load(2, 8)
COLUMNS = ("--columns", "1")
CASES = [
    CurveCase("log, 8 x 128", "zmqraft", BUSY),
    CurveCase("log, 8 x 128 in packs", "zmqraft", BUSY._replace(pack=16), ("--ident", IDENT), True),
    CurveCase("put of 100", "zerodb", WIDE, row_options("put", 100, ROWS), True),
    CurveCase("put of 100, columns", "zerodb", WIDE, row_options("put", 100, ROWS, *COLUMNS), True),
    CurveCase("get of 100", "zerodb", WIDE, row_options("get", 100, ROWS), True),
    CurveCase("get of 100, columns", "zerodb", WIDE, row_options("get", 100, ROWS, *COLUMNS), True),
    CurveCase("service, window 32", "broker", Load(4, 25)),
    CurveCase("service, window 32, bundles", "broker", Load(4, 25, bundles=True), goal=True),
    *_large(64 * KIB, "64 KiB", 3),
    *_large(MIB, "1 MiB", 4),
]


class CurveBench:
    """The clusters of one call, and the generator's results by case and form."""

    def __init__(self, directory: Path, secs: float = SECS, one_process: bool = False) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.secs = secs
        self.generator = Generator(directory)
        self.clusters = [KeyedCluster(directory / form, form, one_process) for form in FORMS]
        self.found: dict[str, dict[str, list[dict[str, Any]]]] = {}
        self.loads: list[float] = []

    def start(self, cases: list[CurveCase]) -> None:
        for cluster in self.clusters:
            cluster.start_fresh()
            try:
                cluster.wait_for_tables()
            except BenchError as error:
                raise BenchError(f"{cluster.name}: {error}; {cluster.last_words()}") from error
            cluster.start_workers(self.generator)
        for case in cases:
            if "get" in case.words:
                for cluster in self.clusters:
                    self.drive(cluster, _filling(case))

    def stop(self) -> None:
        for cluster in self.clusters:
            cluster.stop()

    def target(self, cluster: KeyedCluster, case: CurveCase) -> list[str]:
        if case.protocol == "zmqraft":
            return cluster.target
        if case.protocol == "zerodb":
            return cluster.target_of(NODES.index(cluster.leader()), case.table)
        return cluster.target_at("broker", cluster.clients_url)

    def drive(self, cluster: KeyedCluster, case: CurveCase) -> dict[str, Any]:
        target = [*self.target(cluster, case), *case.words]
        pids = [pid for found in cluster.pids().values() for pid in found]
        before = cpu_s(pids)
        result = self.generator.run(target, case.load)
        if result["rejected"] or result["malformed"] or not result["done"]:
            words = f"{cluster.name}, {case.name}: requests went wrong: {result}"
            raise BenchError(f"{words}; {cluster.last_words()}")
        result["cpu_us"] = (cpu_s(pids) - before) * 1e6 / result["done"]
        return result

    def round(self, turn: int, cases: list[CurveCase]) -> None:
        start = turn % len(self.clusters)
        self.loads.append(os.getloadavg()[0])
        for case in cases:
            if case.rare and turn % 3:
                continue
            timed = case._replace(load=case.load._replace(secs=self.secs, warmup_s=WARMUP_S))
            for cluster in self.clusters[start:] + self.clusters[:start]:
                result = self.drive(cluster, timed)
                forms = self.found.setdefault(case.name, {form: [] for form in FORMS})
                forms[cluster.name].append(result)
                time.sleep(REST_S)

    def figures(self, cases: list[CurveCase]) -> list[Figure]:
        found = []
        for case in cases:
            if not case.goal:
                continue
            null, curve, grants = (self.found[case.name][form] for form in FORMS)
            for name, form, goal in (("CURVE", curve, RATIO_MIN), ("grants", grants, GRANTS_MIN)):
                values = ratios(form, null, "updates_s")
                found.append(summed_up(f"{case.name}: {name} / NULL", values, "x", goal, up=True))
        return found

    def rows(self) -> list[list[str]]:
        rows = [["load", "form", "updates, rows, calls/s", "/ NULL", "range", "median within",
                 "CPU us servers", "/ NULL", "CPU us client"]]  # fmt: skip
        for name, forms in self.found.items():
            for form, results in forms.items():
                values = ratios(results, forms["null"], "updates_s")
                cpu = ratios(results, forms["null"], "cpu_us")
                rows.append([
                    name,
                    form,
                    number(_median(results, "updates_s")),
                    f"{statistics.median(values):.3f}",
                    f"{min(values):.2f}-{max(values):.2f}",
                    "-".join(f"{value:.3f}" for value in median_within(values)),
                    number(_median(results, "cpu_us")),
                    f"{statistics.median(cpu):.3f}",
                    number(_median(results, "cpu_us_update")),
                ])  # fmt: skip
        return rows


def _median(results: list[dict[str, Any]], key: str) -> float:
    return float(statistics.median(result[key] for result in results))


def median_within(values: list[float]) -> tuple[float, float]:
    """Returns the interval that holds the median of all possible rounds with 95 %, by order
    statistics; of few rounds it is the whole range."""
    count = len(values)
    rank = max(0, math.floor((count - 1.96 * math.sqrt(count)) / 2))
    found = sorted(values)
    return found[rank], found[count - 1 - rank]


def measure(directory: Path, rounds: int) -> Section:
    return run(CurveBench(directory), rounds, CASES)


def run(bench: CurveBench, rounds: int, cases: list[CurveCase]) -> Section:
    try:
        bench.start(cases)
        for turn in range(rounds):
            say(f"round {turn + 1} of {rounds}")
            bench.round(turn, cases)
    finally:
        bench.stop()
    load = f"load average {statistics.median(bench.loads):.1f} (median of the rounds)"
    note = (
        f"{load}, rounds of {bench.secs} s. "
        "Ratios are of one round. `median within`: the interval of 95 % for the median. Values"
        " have 64 bytes where nothing else stands."
    )
    return Section("CURVE and grants", bench.figures(cases), bench.rows(), note)


QUESTION = Question("curve", __doc__, measure, ROUNDS)
