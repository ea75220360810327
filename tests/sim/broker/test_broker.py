"""Simulated brokers with durable services under faults, in a short form; campaign.py has the long
one."""

import os

import pytest

from kelek.tests.sim.broker.cluster import BrokerCluster
from kelek.tests.sim.repeat import digest, digest_elsewhere

ONE = os.environ.get("KELEK_SEED")
SEEDS = [int(ONE)] if ONE else [2]


@pytest.mark.parametrize("seed", SEEDS)
def test_cluster(seed: int) -> None:
    cluster = BrokerCluster(seed)
    cluster.run()
    seen = cluster.seen()
    assert sum(cluster.simulation.faults.values()) >= BrokerCluster.faults_count[0]
    for name in ("ends", "service calls", "titanic", "dispatched again"):
        assert seen[name], f"no {name}"


def test_a_seed_is_the_same_run_every_time() -> None:
    assert digest_elsewhere("broker", 3) == digest("broker", 3)
