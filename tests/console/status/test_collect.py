"""The status of a cluster that `--url` names."""

from collections.abc import Iterator

import pytest

from kelek.testing import cluster
from kelek.testing.local_cluster import LocalCluster
from kelek.tests.console.kelek_runner import fails, ok


@pytest.fixture(scope="module")
def node() -> Iterator[LocalCluster]:
    with cluster(nodes=1) as found:
        yield found


def test_a_node_that_answers(node: LocalCluster) -> None:
    shown = ok("status", "--url", node.log_urls[0], "--cluster", node.name)
    assert "1 of 1 node," in shown


def test_a_node_of_another_cluster(node: LocalCluster) -> None:
    code, problem = fails("status", "--url", node.log_urls[0], "--cluster", "other")
    assert code == 1
    assert "not cluster 'other' but another one" in problem
