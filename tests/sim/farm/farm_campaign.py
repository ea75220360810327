"""Runs many seeds of a simulated farm, and all steps of its member changes; reports broken
rules.

`PYTHONPATH=.build python -m kelek.tests.sim.farm.farm_campaign --seeds 200` runs seeds. `--flows`
runs every step, a seed after the other; `--directed` the scripted courses; `--suite` what
test_farm.py runs. The exit code is 1 if a rule was broken.
"""

import argparse
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

from kelek.tests.sim.farm.farm_directed import DIRECTED
from kelek.tests.sim.farm.farm_flows import FLOWS, FlowRun, strikes, strikes_of_suite
from kelek.tests.sim.farm.farm_run import FarmRun

Run = Callable[[], None]


class Campaign:
    """The runs so far."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def _seed(self, seed: int) -> None:
        run = FarmRun(seed)
        run.run()
        self.seen.update(run.faults)
        self.seen.update(run.sim.steps)
        self.seen["acknowledged"] += len(run.sim.acked)

    def seeds(self, seeds: range) -> Iterator[Run]:
        for seed in seeds:
            yield partial(self._seed, seed)

    def flows(self, seeds: range) -> Iterator[Run]:
        for seed in seeds:
            for flow in FLOWS:
                for strike in strikes(flow, seed, kinds_only=False):
                    self.seen[flow.name] += 1
                    yield FlowRun(flow, strike, seed).run

    def directed(self, seeds: range) -> Iterator[Run]:
        for seed in seeds:
            for course in DIRECTED:
                self.seen[course.__name__] += 1
                yield partial(course, seed)

    def suite(self, seeds: range) -> Iterator[Run]:
        """The runs of test_farm.py, with these seeds."""
        yield from self.directed(seeds[:1])
        yield from self.seeds(seeds)
        for flow in FLOWS:
            for strike in strikes_of_suite(flow):
                yield FlowRun(flow, strike).run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="how many")
    parser.add_argument("--first", type=int, default=1, help="the first one")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--flows", action="store_true", help="every step of every change")
    what.add_argument("--directed", action="store_true", help="what dice seldom throw")
    what.add_argument("--suite", action="store_true", help="what the tests have: some of each")
    parser.add_argument("--go-on", action="store_true", help="do not stop at the first failure")
    parser.add_argument("--until", help="stop only at a failure that matches, and count no other")
    parser.add_argument("--quiet", action="store_true", help="only the end")
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    campaign, runs, failed, begun = Campaign(), 0, 0, time.monotonic()
    named = (name for name in ("flows", "directed", "suite") if getattr(arguments, name))
    for run in getattr(campaign, next(named, "seeds"))(seeds):
        runs += 1
        try:
            run()
        except AssertionError as broken:  # Also Broken: it names the seed.
            said = str(broken)
            if arguments.until and not re.search(arguments.until, said.splitlines()[0]):
                continue
            failed += 1
            print(said.splitlines()[0] if arguments.quiet else said, flush=True)
            if not arguments.go_on:
                break
    words = ", ".join(f"{name} {count}" for name, count in sorted(campaign.seen.items()))
    print(f"seen: {words}")
    print(f"{runs} runs, {failed} failed; {time.monotonic() - begun:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
