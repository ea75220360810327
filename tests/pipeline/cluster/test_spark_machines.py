"""A Spark cluster on machines of its own, while processes and machines are killed.

long_spark_machines.py has the long form: `./check --long spark-cluster`.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator
from functools import partial

import pytest

from kelek.pipeline.java import find_java
from kelek.tests.crash.machines.machines import ADMIN, NODES
from kelek.tests.hosts import HostsMissing
from kelek.tests.pipeline.cluster.job import ADDED, MERGED, ROWS
from kelek.tests.pipeline.cluster.spark_machines import (
    DRIVER,
    GATE_PORT,
    JOB_S,
    PAGE,
    WORKERS,
    SparkMachines,
)
from kelek.tests.test_docs import commands, section
from kelek.tests.waiting import wait_until

pytest.importorskip("pyspark", reason="the extra kelek[spark] is not installed")
pytestmark = pytest.mark.spark


def running() -> Iterator[SparkMachines]:
    if not find_java().has_vector:
        pytest.skip("Spark's executors want a Java with the module of vectors")
    try:
        made = SparkMachines()
    except HostsMissing as reason:
        pytest.skip(f"no network namespaces here: {reason}")
    try:
        made.set_up()
        yield made
    finally:
        print(made.log())
        made.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[SparkMachines]:
    yield from running()


def rows(start: int, end: int, name: str) -> list[list[object]]:
    return [[number, f"{name} {number}", 7] for number in range(start, end)]


def digest(of: list[list[object]]) -> str:
    return hashlib.sha256("\n".join(sorted(map(json.dumps, of))).encode()).hexdigest()


def ports(cluster: SparkMachines, name: str) -> set[int]:
    """Of the connections between machines: the port of the side that listens."""
    listed = cluster.machines.shells[name].ok("ss -Htn state established").splitlines()
    found = set()
    for line in listed:
        if "127.0.0.1" not in line:
            ends = (int(end.rpartition(":")[2]) for end in line.split()[-2:])
            found.add(min(ends))  # The other side has a port from 32768 on.
    return found - {GATE_PORT}


def reaches(cluster: SparkMachines, name: str, wanted: set[int]) -> bool:
    return wanted <= ports(cluster, name)


def run_the_page(cluster: SparkMachines) -> None:
    """Its key and its job. What starts the cluster are its commands, too."""
    [keys] = [block for block in section(*PAGE) if "kelek keys new" in block.text]
    admin, driver = (cluster.machines.shells[name] for name in (ADMIN, DRIVER))
    for command, _ in commands(keys):
        admin.ok(command)
    for node in NODES:
        cluster.machines.copy_allowed(node)
    shutil.copy(admin.folder / "keys/spark.key_secret", driver.folder)
    (driver.folder / "server_keys.json").write_text(json.dumps(cluster.table_keys()))
    [job] = [block for block in section(*PAGE) if block.kind == "python"]
    (driver.folder / "squares.py").write_text(job.text)
    shown = [found for block in section(*PAGE) for found in commands(block)]
    [(command, printed)] = [found for found in shown if "spark-submit" in found[0]]
    assert driver.ok(command, timeout_s=JOB_S) == printed


def test_the_page(cluster: SparkMachines) -> None:
    run_the_page(cluster)


def test_an_executor_a_leader_and_a_workers_machine_are_killed(cluster: SparkMachines) -> None:
    steps = "create", "write:write", "scan:scan", "merge:merge"
    with cluster.gate() as gate, cluster.submit("", *steps) as job:
        for place in ("write", "scan", "merge"):
            gate.hold(place)
        job.wait_for(lambda: gate.arrived("write"))
        assert cluster.kill_executors(cluster.worker_at(gate.arrived("write")[0])) == 1
        gate.open("write")
        job.result("write:write")
        written = rows(0, ROWS, "name")
        assert cluster.content("rows", "orders") == written

        job.wait_for(lambda: gate.arrived("scan"))
        for name in (DRIVER, *WORKERS):  # The page's table, once the next executor is there.
            wait_until(partial(reaches, cluster, name, {7077, 7078}))
            assert ports(cluster, name) <= {7076, 7077, 7078, 7079, 7204}
        assert 7204 in set.union(*(ports(cluster, name) for name in WORKERS))
        leader = cluster.machines.leader()
        assert cluster.machines.kill(leader) > 0
        gate.open("scan")
        assert job.result("scan:scan") == [ROWS - 1000, digest(written[1000:])]
        cluster.machines.start(leader)

        job.wait_for(lambda: gate.arrived("merge"))
        assert cluster.machines.kill(cluster.worker_at(gate.arrived("merge")[0])) > 1
        gate.open("merge")
        job.result("merge:merge")
        merged = written[:-MERGED] + rows(ROWS - MERGED, ROWS + ADDED, "merged")
        assert cluster.content("rows", "orders") == merged
        job.end()
