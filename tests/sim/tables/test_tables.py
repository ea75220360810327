"""Simulated clusters with tables under faults, in a short form; campaign.py has the long one."""

import os

import pytest

from kelek.tests.sim.repeat import digest, digest_elsewhere
from kelek.tests.sim.tables.cluster import LOADED_SEEDS, TableCluster

ONE = os.environ.get("KELEK_SEED")
SEEDS = [int(ONE)] if ONE else [6, 7, 8, 90]


@pytest.mark.parametrize("seed", SEEDS)
def test_cluster(seed: int) -> None:
    cluster = TableCluster(seed)
    cluster.run()
    seen = cluster.seen()
    assert sum(cluster.simulation.faults.values()) >= TableCluster.faults_count[0]
    for name in ("acknowledged writes", "calls", "increments", "tokens", "watched entries"):
        assert seen[name], f"no {name}"
    assert bool(seen["loads"]) == (seed % 100 >= LOADED_SEEDS)


def test_a_seed_is_the_same_run_every_time() -> None:
    assert digest_elsewhere("tables", 5) == digest("tables", 5)
