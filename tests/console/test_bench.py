"""`kelek bench`: all parts of a cluster that the topology names, and nothing stays in a table."""

import json
from collections.abc import Iterator

import pytest

from kelek.testing import cluster
from kelek.testing.local_cluster import LocalCluster
from kelek.tests.console.kelek_runner import fails, ok


@pytest.fixture(scope="module")
def node() -> Iterator[LocalCluster]:
    with cluster(nodes=1) as found:
        yield found


def test_what_the_topology_has_is_measured(node: LocalCluster) -> None:
    topology = node.topology
    before = ok("table", "list", "-t", topology)
    lines = ok("bench", "-t", topology, "--quick").splitlines()
    heads = [line for line in lines if line.endswith(":")]
    assert heads == ["log:", "table:", "broker:"]
    assert [line.split()[0] for line in lines if line not in heads] == [
        "pipelined", "alone", "put_many", "scan", "put", "get", "pipelined", "alone",
    ]  # fmt: skip
    found = [json.loads(line) for line in
             ok("bench", "-t", topology, "--quick", "-o", "json").splitlines()]  # fmt: skip
    for each, what in zip(found, ("updates", "pairs", "requests"), strict=True):
        assert each[what] == 2000
    assert ok("table", "list", "-t", topology) == before


def test_a_topology_that_is_not_there(node: LocalCluster) -> None:
    assert fails("bench", "-t", f"{node.topology}.no")[0] == 2
