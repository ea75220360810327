"""Kept snapshots while nodes are killed, and lose their disks."""

import shutil
from collections.abc import Iterator
from functools import partial

import pytest

import kelek
from kelek.tests.table_cluster import STOP_S, TableCluster

ROWS = [(b"%04d" % n, b"old") for n in range(2000)]


@pytest.fixture
def cluster() -> Iterator[TableCluster]:
    running = TableCluster("job_idle_s: 1")
    try:
        yield running
    finally:
        running.stop()


def read(cluster: TableCluster, as_of: int, *names: str) -> list[tuple[bytes, bytes]]:
    with cluster.table(7, *names) as table, table.snapshot(as_of=as_of) as view:
        return [*view.scan()]


def has_leases(cluster: TableCluster, node: str, *leases: str) -> bool:
    return cluster.leases(node) == [*leases]


def test_it_is_the_same_on_all_nodes_after_all_were_killed(cluster: TableCluster) -> None:
    with cluster.table(7) as table:
        table.put_many(ROWS)
        kept = table.keep_snapshot()
        table.put_many((key, b"new") for key, _ in ROWS)
        passing = table.open_snapshot()
        for name in cluster.urls:  # Only the kept one stays without readers.
            cluster.wait(partial(has_leases, cluster, name, f"lease.{kept.number}"))
        assert passing.index > kept.index
        for name in [*cluster.urls]:
            cluster.kill(name)
        for name in cluster.urls:
            cluster.start(name)
        for name in cluster.urls:
            assert read(cluster, kept.index, name) == ROWS
        table.release_snapshot(kept.index)
        for name in cluster.urls:
            cluster.wait(partial(has_leases, cluster, name))
        assert table.get(ROWS[0][0]) == b"new"


def test_a_node_that_lost_its_disk_has_none_and_others_are_read(cluster: TableCluster) -> None:
    with cluster.table(7) as table:
        table.put_many(ROWS)
        kept = table.keep_snapshot()
        table.put_many((key, b"new") for key, _ in ROWS)
    stopped = cluster.processes.pop("n3")  # A killed one would apply the log again.
    stopped.terminate()
    assert stopped.wait(STOP_S) == 0
    shutil.rmtree(cluster.folder / "var" / "n3" / "jobs")
    cluster.start("n3")
    assert read(cluster, kept.index, "n3", "n1") == ROWS
    with (
        kelek.Table(cluster.urls["n3"], 7, timeout_ms=3000) as alone,
        alone.snapshot(as_of=kept.index) as view,
    ):
        assert alone.count() == len(ROWS)  # The table itself is there.
        with pytest.raises(kelek.TableTimeout, match="this node has no snapshot of lease"):
            view.count()
