"""Runs many seeds and says what was done to the clusters, and whether they bore it.

`PYTHONPATH=.build python tests/sim/log/campaign.py --seeds 200`; KELEK_SEED=17 replays one. Exit
code 1 when a rule was broken; the failure names its seed.
"""

import argparse
import os
import re
import sys
import time
from collections import Counter

from kelek.tests.sim.log.sim_check import RuleBroken
from kelek.tests.sim.log.sim_cluster import SimCluster


def run_seed(seed: int) -> SimCluster:
    """Runs one seed completely. Raises RuleBroken."""
    cluster = SimCluster(seed)
    cluster.run()
    return cluster


def seeds_of(arguments: argparse.Namespace) -> range:
    one = os.environ.get("KELEK_SEED")
    if one is not None:
        return range(int(one), int(one) + 1)
    return range(arguments.first, arguments.first + arguments.seeds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="how many")
    parser.add_argument("--first", type=int, default=1, help="the first one")
    parser.add_argument("--go-on", action="store_true", help="do not stop at the first failure")
    parser.add_argument("--until", help="stop only at a failure that matches, and count no other")
    parser.add_argument("--quiet", action="store_true", help="no line for each seed")
    arguments = parser.parse_args()
    faults: Counter[str] = Counter()
    counters: Counter[str] = Counter()
    failed: list[int] = []
    fewest = 10**6
    begun = time.monotonic()
    for seed in seeds_of(arguments):
        seed_begun = time.monotonic()
        try:
            cluster = run_seed(seed)
        except RuleBroken as broken:
            said = str(broken)
            if arguments.until and not re.search(arguments.until, said.splitlines()[0]):
                continue
            print(said, flush=True)
            failed.append(seed)
            if not arguments.go_on:
                break
            continue
        simulation = cluster.simulation
        count = sum(simulation.faults.values())
        fewest = min(fewest, count)
        faults.update(simulation.faults)
        counters.update(simulation.counters)
        counters["seeds"] += 1
        counters["events"] += simulation.events
        counters["entries"] += len(cluster.checker.applied)
        counters["acknowledged updates"] += len(cluster.checker.acked)
        if not arguments.quiet:
            print(
                f"seed {seed}: {len(cluster.nodes)} nodes, {count} faults, "
                f"{simulation.events} events, "
                f"{simulation.now_ms} ms, {len(cluster.checker.acked)} updates, "
                f"{simulation.counters['leaders']} leaders, {time.monotonic() - seed_begun:.1f} s",
                flush=True,
            )
    for name, counter in (("faults", faults), ("seen", counters)):
        words = ", ".join(f"{key} {count}" for key, count in sorted(counter.items()))
        print(f"{name}: {words}")
    print(
        f"{counters['seeds']} seeds passed, {len(failed)} failed {failed or ''}; at least {fewest} "
        f"faults each; {time.monotonic() - begun:.0f} s"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
