"""One Spark session, and one node with tables, for all tests of the pipeline.

A JVM takes 700 MB: what needs it is marked `spark`, and ./check runs that in one process.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from kelek.bench.ports import free_ports, free_udp_port
from kelek.tests.conftest import ROOT, Shell

TEST_S = 400  # The first one waits for a JVM and a node, which took 110 s on a very busy machine.
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.log.level": "ERROR",
}
NODE = """\
data: var
nodes:
  n1:
    url: tcp://127.0.0.1:7201
    peer_url: tcp://127.0.0.1:7221
    zerodb: {url: "tcp://127.0.0.1:7100"}
"""
TOPOLOGY = f"cluster: spark\n{NODE}zerodb: {{local_tables: [900-999]}}\n"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
        if item.get_closest_marker("spark") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(TEST_S))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session on two cores, whose Python workers see this checkout. Tasks have four tries."""
    pytest.importorskip("pyspark", reason="the extra kelek[spark] is not installed")
    from kelek.pipeline import session

    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(ROOT / ".build")
    with chdir(tmp_path_factory.mktemp("spark")):  # The JVM stays there, and writes there.
        made = session(app_name="tests", master="local[2,4]", config=SETTINGS)
    yield made
    made.stop()
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


@contextmanager
def running(place: Path, topology: str, one_by_one: tuple[str, ...] = ()) -> Iterator[Shell]:
    """The nodes of a topology, on free ports; those that are named have a supervisor each."""
    known = sorted(set(re.findall(r"127\.0\.0\.1:\d+", topology)))
    ports = free_ports(len(known))
    addresses = {old: f"127.0.0.1:{port}" for old, port in zip(known, ports, strict=True)}
    addresses["5670"] = str(free_udp_port())
    run_dir = Path(tempfile.mkdtemp(prefix="k", dir="/tmp"))
    shell = Shell(place, run_dir, addresses)
    (place / "topology.yaml").write_text(shell.translate(topology), encoding="utf-8")
    start = "supervisor start topology.yaml --detach"
    try:
        for command in [f"{start} --node {node}" for node in one_by_one] or [start]:
            shell.ok(command)
        yield shell
    finally:
        shell.run("supervisor stop topology.yaml")
        shutil.rmtree(run_dir, ignore_errors=True)


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The url of a node's tables; 900 to 999 are local."""
    with running(tmp_path_factory.mktemp("node"), TOPOLOGY) as shell:
        yield f"tcp://{shell.addresses['127.0.0.1:7100']}"


@pytest.fixture(scope="session")
def catalogue(spark: Any, node: str) -> Any:
    """The session; its catalogue `kelek` has the node's tables."""
    from kelek.pipeline.spark_session import CATALOGUE, CATALOGUE_CLASS, JAR

    if not os.path.exists(JAR):
        assert shutil.which("javac") is None, "javac is here, and the build has made no jar"
        pytest.skip("javac makes the jar, and this machine has none")
    spark.conf.set(CATALOGUE, CATALOGUE_CLASS)
    spark.conf.set(f"{CATALOGUE}.urls", node)
    return spark


NUMBERS = count(1000)  # The examples have smaller ones of their own.


@pytest.fixture
def number() -> int:
    """A table that nobody else uses."""
    return next(NUMBERS)
