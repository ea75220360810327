"""Simulates clusters of one kind with many seeds, and reports broken rules.

`PYTHONPATH=.build python -m kelek.tests.sim.campaign log --seeds 200`; KELEK_SEED=17 repeats one.

log              clusters of the log with random faults
tables           clusters with tables, with random faults
broker           the same with brokers of durable services, their clients and workers
farm             farms with random faults and changes of their members
farm-flows       each step of each member change of a farm, interrupted
farm-scenarios   scripted courses of a farm
farm-suite       the runs of farms that pytest has

The exit code is 1 if a rule was broken; the failure names its seed.
"""

import argparse
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

from kelek.tests.sim.broker.cluster import BrokerCluster
from kelek.tests.sim.farm.flows import FLOWS, FlowRun, interruptions, interruptions_of_suite
from kelek.tests.sim.farm.run import FarmRun
from kelek.tests.sim.farm.scenarios import SCENARIOS
from kelek.tests.sim.log.cluster import SimCluster
from kelek.tests.sim.tables.cluster import TableCluster

# Runs once; returns counts of what happened, if it counts. Raises AssertionError.
Run = Callable[[], Counter[str] | None]


def run_cluster(cluster: type[SimCluster], seed: int) -> Counter[str]:
    run = cluster(seed)
    run.run()
    return run.seen()


def run_farm(seed: int) -> Counter[str]:
    run = FarmRun(seed)
    run.run()
    return run.seen()


def flows(seeds: range) -> Iterator[Run]:
    for seed in seeds:
        for flow in FLOWS:
            for interruption in interruptions(flow, seed, kinds_only=False):
                yield FlowRun(flow, interruption, seed).run


def scenarios(seeds: range) -> Iterator[Run]:
    for seed in seeds:
        for scenario in SCENARIOS:
            yield partial(scenario, seed)


def suite(seeds: range) -> Iterator[Run]:
    """The runs of test_farm.py, with these seeds."""
    yield from scenarios(seeds[:1])
    yield from (partial(run_farm, seed) for seed in seeds)
    for flow in FLOWS:
        for interruption in interruptions_of_suite(flow):
            yield FlowRun(flow, interruption).run


RUNS: dict[str, Callable[[range], Iterator[Run]]] = {
    "log": lambda seeds: (partial(run_cluster, SimCluster, seed) for seed in seeds),
    "tables": lambda seeds: (partial(run_cluster, TableCluster, seed) for seed in seeds),
    "broker": lambda seeds: (partial(run_cluster, BrokerCluster, seed) for seed in seeds),
    "farm": lambda seeds: (partial(run_farm, seed) for seed in seeds),
    "farm-flows": flows,
    "farm-scenarios": scenarios,
    "farm-suite": suite,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", choices=RUNS, help="which runs")
    parser.add_argument("--seeds", type=int, default=20, help="how many")
    parser.add_argument("--first", type=int, default=1, help="the first one")
    parser.add_argument("--go-on", action="store_true", help="do not stop at the first failure")
    parser.add_argument("--until", help="stop only at a failure that matches, and count no other")
    parser.add_argument("--quiet", action="store_true", help="no line for each run")
    arguments = parser.parse_args()
    one = os.environ.get("KELEK_SEED")
    first, count = (arguments.first, arguments.seeds) if one is None else (int(one), 1)
    seen: Counter[str] = Counter()
    passed, failures, begun = 0, 0, time.monotonic()
    for run in RUNS[arguments.runs](range(first, first + count)):
        try:
            found = run() or Counter()
        except AssertionError as broken:  # Also RuleBroken, whose text names the seed.
            text = str(broken)
            if arguments.until and not re.search(arguments.until, text.splitlines()[0]):
                continue
            print(text, flush=True)
            failures += 1
            if not arguments.go_on:
                break
            continue
        passed += 1
        seen.update(found)
        if not arguments.quiet and found:
            print(_words(found), flush=True)
    print(f"seen: {_words(seen)}")
    print(f"{passed} runs passed, {failures} failed; {time.monotonic() - begun:.0f} s")
    return 1 if failures else 0


def _words(seen: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(seen.items()))


if __name__ == "__main__":
    sys.exit(main())
