"""A run and its repeat in another process, whose hash seed orders sets of strings otherwise."""

import hashlib
import os
import subprocess
import sys

from kelek.tests.sim.broker.cluster import BrokerCluster
from kelek.tests.sim.tables.cluster import TableCluster

SHORT = 3, 3  # Faults.
CLUSTERS: dict[str, type[TableCluster]] = {"tables": TableCluster, "broker": BrokerCluster}


def digest(kind: str, seed: int) -> str:
    """Of a whole run with few faults."""
    cluster = CLUSTERS[kind](seed)
    cluster.faults_count = SHORT
    cluster.run()
    simulation, checker = cluster.simulation, cluster.checker
    seen = checker.applied, checker.calls, checker.numbers, simulation.counters, simulation.faults
    counted = simulation.events, simulation.now_us
    return f"{counted} {hashlib.sha256(repr(seen).encode()).hexdigest()}"


def digest_elsewhere(kind: str, seed: int) -> str:
    """The same, of another process."""
    script = f"from kelek.tests.sim.repeat import digest; print(digest({kind!r}, {seed}))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()
