"""Simulated clusters with tables under faults, in a short form; campaign.py has the long one."""

import hashlib
import os
import subprocess
import sys

import pytest

from kelek.tests.sim.tables.cluster import TableCluster

ONE = os.environ.get("KELEK_SEED")
SEEDS = [int(ONE)] if ONE else [6, 7, 8]
SHORT = 3, 3  # Faults of a run that is compared with its repeat.


@pytest.mark.parametrize("seed", SEEDS)
def test_cluster(seed: int) -> None:
    cluster = TableCluster(seed)
    cluster.run()
    seen = cluster.seen()
    assert sum(cluster.simulation.faults.values()) >= TableCluster.faults_count[0]
    for name in ("acknowledged writes", "calls", "increments", "tokens", "watched entries"):
        assert seen[name], f"no {name}"


def digest(seed: int) -> str:
    """Of a whole run with few faults."""
    cluster = TableCluster(seed)
    cluster.faults_count = SHORT
    cluster.run()
    simulation, checker = cluster.simulation, cluster.checker
    seen = checker.applied, checker.calls, checker.numbers, simulation.counters, simulation.faults
    counted = simulation.events, simulation.now_us
    return f"{counted} {hashlib.sha256(repr(seen).encode()).hexdigest()}"


def test_a_seed_is_the_same_run_every_time() -> None:
    """Also with another hash seed, which orders sets of strings otherwise."""
    script = "from kelek.tests.sim.tables.test_tables import digest; print(digest(5))"
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == digest(5)
