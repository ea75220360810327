"""kelek.testing: a cluster for the tests of other programs."""

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

import kelek
import kelek.testing
from kelek.testing import LocalCluster
from kelek.testing.fixtures import kelek_cluster as kelek_cluster
from kelek.tests.test_docs import blocks

OWNER = """
import sys
import kelek.testing

with kelek.testing.cluster(nodes=1) as cluster:
    print(cluster.pid, flush=True)
    sys.stdin.read()
"""
END_S = 60.0


def test_three_nodes_serve_a_log_and_tables(kelek_cluster: LocalCluster) -> None:
    with kelek_cluster.table() as table, kelek_cluster.table() as other:
        assert table.number != other.number
        table.put(b"order/1", b"new")
        assert table.get(b"order/1") == b"new"
        assert other.get(b"order/1") is None
    with kelek_cluster.log() as log:
        assert log.append(b"an event") > 0
        assert len(log.members()) == len(kelek_cluster.log_urls) == 3


def test_a_crash_loses_no_acknowledged_write(kelek_cluster: LocalCluster) -> None:
    with kelek_cluster.table() as table:
        table.put(b"a", b"1")
    kelek_cluster.kill()
    assert kelek_cluster.pid == 0
    kelek_cluster.start()
    with kelek_cluster.table(table.number) as table:
        assert table.get(b"a") == b"1"


def test_a_service_runs_in_it() -> None:
    durable = {"services": {"double": {"durable": True}}}
    with kelek.testing.cluster(nodes=1, broker=durable) as cluster, cluster.broker() as broker:
        accepted = broker.call("titanic.request", [b"double", b"21"])
        assert accepted.frames[0] == b"200"
        folder = cluster.folder
    assert not folder.exists()


def test_the_page_shows_how_pytest_finds_the_fixture(tmp_path: Path) -> None:
    plugin, users_test = (one.text for one in blocks("docs/recipes/tests.md") if one.kind == "py")
    (tmp_path / "conftest.py").write_text(plugin)
    (tmp_path / "test_shop.py").write_text(users_test)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "--setup-plan", "-p", "no:cacheprovider", "."],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "SETUP    S kelek_cluster" in done.stdout, done.stdout + done.stderr


def test_it_ends_with_a_process_that_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-P", "-c", OWNER],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as owner:  # fmt: skip
        assert owner.stdout is not None
        pidfd = os.pidfd_open(int(owner.stdout.readline()))
        owner.kill()
    assert select.select([pidfd], [], [], END_S)[0], "it still runs"
    os.close(pidfd)


def test_a_wrong_setting_is_told() -> None:
    with (
        pytest.raises(kelek.Error, match="unknown key 'heartbeat'"),
        kelek.testing.cluster(raft={"heartbeat": 7}),
    ):
        pass
