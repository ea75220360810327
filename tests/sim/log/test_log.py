"""Simulated clusters of the log under faults, in a short form; campaign.py has the long one."""

import os
import subprocess
import sys

import pytest

from kelek.tests.sim.log.cluster import SimCluster

ONE = os.environ.get("KELEK_SEED")
SEEDS = [int(ONE)] if ONE else list(range(1001, 1013))
FAULTS_MIN = 20


@pytest.mark.parametrize("seed", SEEDS)
def test_cluster(seed: int) -> None:
    cluster = SimCluster(seed)
    cluster.run()
    assert sum(cluster.simulation.faults.values()) >= FAULTS_MIN
    assert cluster.checker.leaders
    assert cluster.checker.acked
    assert cluster.simulation.counters["quiet wakes"]


def test_c_follows_as_python_does() -> None:
    """The same messages and the same log, event by event, with steady states in C and without."""
    runs = []
    for steady in (True, False):
        cluster = SimCluster(1006)
        for node in cluster.nodes.values():
            node.steady = steady
        cluster.run()
        counters = cluster.simulation.counters
        del counters["quiet wakes"]  # C answers heartbeats in wakes that bring nothing else.
        runs.append((cluster.checker.applied, counters, cluster.simulation.now_us))
        assert sum(node.steady_messages for node in cluster.nodes.values()) >= 500 * steady
    assert runs[0] == runs[1]


def test_a_seed_is_the_same_run_every_time() -> None:
    """Also with another hash seed, which orders sets of strings otherwise."""
    script = (
        "from kelek.tests.sim.log.cluster import SimCluster; import hashlib\n"
        "cluster = SimCluster(1005)\n"
        "cluster.run()\n"
        "print(cluster.simulation.events, cluster.simulation.now_us, hashlib.sha256(repr("
        "(cluster.checker.applied, cluster.simulation.counters, cluster.simulation.faults)"
        ").encode()).hexdigest())"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),
                "PYTHONHASHSEED": hash_seed,
            },
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
