"""Many cases of random requests against the model, on a node of their own.

    PYTHONPATH=.build python -m kelek.tests.interop.zerodb.zerodb_campaign --cases 10000

`--first SEED --cases 1 --disturb 1` plays one again; `--ask follower` has three nodes.
"""

import argparse
import shutil
import sys
import time
from collections import Counter

from kelek.tests.interop.conftest import new_folder
from kelek.tests.interop.zerodb.tables import NODES, NodeTables
from kelek.tests.interop.zerodb.zerodb_model import ModelCase


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=1, help="the first one's seed")
    parser.add_argument("--disturb", type=float, default=0.01, help="how often a case is disturbed")
    parser.add_argument("--ask", choices=["leader", "follower"], help="of three nodes, not of one")
    arguments = parser.parse_args()
    folder = new_folder()
    running = NodeTables(folder, NODES if arguments.ask else NODES[:1])
    did: Counter[str] = Counter()
    begun = time.monotonic()
    try:
        if arguments.ask:
            running.ask(arguments.ask)
        ground = running.ground(arguments.disturb)
        for seed in range(arguments.first, arguments.first + arguments.cases):
            case = ModelCase(seed, ground)
            case.run()
            did.update(case.did)
    finally:
        running.stop()
    did.update(running.disturbances)
    shutil.rmtree(folder)
    print(", ".join(f"{name} {count}" for name, count in sorted(did.items())))
    print(f"{arguments.cases} cases held in {time.monotonic() - begun:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
