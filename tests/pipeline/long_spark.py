"""What takes Spark's processes, and too long for CI: ./check --long names this file.

Executors that are JVMs of their own, one of which is killed; and the page's console lines.
"""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import kelek
from kelek.bench.ports import free_port
from kelek.pipeline.java import find_java
from kelek.tests.conftest import ROOT, Shell
from kelek.tests.pipeline.conftest import SETTINGS, running
from kelek.tests.pipeline.test_examples import FOLDER, SHOWN, TEXT, TOPOLOGY, same, translated

pyspark = pytest.importorskip("pyspark", reason="the extra kelek[spark] is not installed")
pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

WAIT_S = 600.0  # For two executors, or an example, on a very busy machine.
TABLE, PARTS = 40, 4
ROWS = [(b"%06d" % n, b"row %d " % n + b"x" * 900) for n in range(8000)]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    # An executor may take longer to be there than a snapshot is kept that nobody reads.
    topology = TOPOLOGY.replace("\nzerodb: {", "\nzerodb: {job_idle_s: 900, ")
    assert topology != TOPOLOGY
    with running(tmp_path_factory.mktemp("long"), topology) as shell:
        yield shell


# ---- executors ----


def telling(port: int) -> Any:
    """What tasks do with their batches: at the first one each tells who it is, and waits."""

    def map_(batches: Any) -> Any:
        import os
        import socket

        from pyspark import TaskContext

        def parent_of(pid: int) -> int:
            with open(f"/proc/{pid}/stat") as file:
                return int(file.read().rpartition(")")[2].split()[1])

        task = TaskContext.get()
        executor = parent_of(os.getppid())  # The worker's parent is a daemon of the JVM.
        for place, batch in enumerate(batches):
            if place == 0:
                with socket.create_connection(("127.0.0.1", port)) as told:
                    told.sendall(
                        b"%d %d %d\n" % (task.partitionId(), task.attemptNumber(), executor)
                    )
                    told.recv(1)
            yield batch

    return map_


def drive(tables: str, log: str, port: int) -> None:
    """The driver's process: from the table into the log."""
    from kelek.pipeline import session

    path = os.environ["PYTHONPATH"]
    config = {**SETTINGS, "spark.executorEnv.PYTHONPATH": path, "spark.executor.memory": "512m"}
    config["spark.sql.execution.arrow.maxRecordsPerBatch"] = "200"  # Told of at once.
    spark = session(app_name="executors", master="local-cluster[2,1,512]", config=config)
    options = {"kind": "table", "urls": tables, "table": TABLE, "partitions": PARTS}
    rows = spark.read.format("kelek").options(**options, batchRows=200).load()
    told = rows.mapInArrow(telling(port), rows.schema)
    told.selectExpr("value AS data", "current_timestamp() AS time").write.format("kelek").mode(
        "append"
    ).options(kind="log", urls=log).save()
    spark.stop()


class TaskReport(NamedTuple):
    """Where a task is run."""

    part: int
    attempt: int
    executor: int

    def kill(self) -> None:
        command = Path(f"/proc/{self.executor}/cmdline").read_bytes()
        assert b"CoarseGrainedExecutorBackend" in command
        os.kill(self.executor, signal.SIGKILL)


class LongDriver:
    """Spark in a process of its own, and the address at which its tasks wait."""

    def __init__(self, nodes: Shell, place: Path, stack: ExitStack) -> None:
        self._door = stack.enter_context(socket.create_server(("127.0.0.1", free_port())))
        self._door.settimeout(0.2)
        tables, log = (nodes.translate(f"tcp://127.0.0.1:{port}") for port in (7100, 7201))
        arguments = (tables, log, self._door.getsockname()[1])
        code = f"from kelek.tests.pipeline.long_spark import drive\ndrive(*{arguments!r})"
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", code], cwd=place, env=environment(spark_home(place))
        )
        stack.callback(self.process.wait)
        stack.callback(self.process.kill)
        self._until = time.monotonic() + WAIT_S
        self.told: list[TaskReport] = []

    def next(self) -> tuple[TaskReport, socket.socket] | None:
        """A task that waits, within a moment; None: there is none."""
        assert time.monotonic() < self._until, f"the driver has not ended; tasks: {self.told}"
        with suppress(TimeoutError):
            waits, _ = self._door.accept()
            waits.settimeout(WAIT_S)
            with waits.makefile("rb") as lines:
                self.told.append(TaskReport(*map(int, lines.readline().split())))
            return self.told[-1], waits
        return None


def spark_home(place: Path) -> str:
    """Spark's own folder, in which its workers write, without its being written to."""
    home = place / "spark"
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        (home / entry.name).symlink_to(entry)
    return str(home)


def environment(home: str = "") -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    found = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / ".build")}
    found["SPARK_LOCAL_IP"] = "127.0.0.1"
    return found | ({"SPARK_HOME": home} if home else {})


def test_an_executor_killed_in_the_middle_costs_no_row_and_adds_none(
    nodes: Shell, tmp_path: Path
) -> None:
    """The first task waits in the middle of its scan until another one's rows are in the log; then
    the JVM that runs it is killed."""
    if not find_java().has_vector:
        pytest.skip("Spark's executors want a Java with the module of vectors")
    with ExitStack() as stack:
        log = stack.enter_context(kelek.Log(nodes.translate("tcp://127.0.0.1:7201")))
        with kelek.Table(nodes.translate("tcp://127.0.0.1:7100"), TABLE) as table:
            table.put_many(ROWS)
        last_index = log.read_index()

        def appended() -> list[bytes]:
            found = log.entries(last_index)
            return sorted(one.data for one in found if one.data.startswith(b"row "))

        driver = LongDriver(nodes, tmp_path, stack)
        first: tuple[TaskReport, socket.socket] | None = None
        killed = False
        while driver.process.poll() is None:
            task = driver.next()
            if task is not None and first is None:
                first = task
            elif task is not None:
                task[1].close()  # It may go on.
            if first is not None and not killed and appended():
                first[0].kill()
                first[1].close()
                killed = True
        assert driver.process.returncode == 0
        assert killed
        assert first is not None
        again = [one for one in driver.told if one.part == first[0].part and one.attempt]
        assert again, driver.told
        assert {one.executor for one in again} != {first[0].executor}
        assert appended() == sorted(value for _, value in ROWS)


# ---- the page ----

LINES = re.findall(r"^\$ (python examples/pipeline/(?:scan|write_and_read)\.py)$", TEXT, re.M)


@pytest.mark.parametrize("line", LINES)
def test_the_pages_lines_print_what_they_show(nodes: Shell, tmp_path: Path, line: str) -> None:
    """As somebody types them; only the nodes' ports are others."""
    command, example = shlex.split(line)
    copy = tmp_path / example
    copy.parent.mkdir(parents=True)
    text = (FOLDER / copy.name).read_text(encoding="utf-8")
    copy.write_text(translated(nodes, text), encoding="utf-8")
    done = subprocess.run(
        [command, example], cwd=tmp_path, env=environment(), capture_output=True, text=True,
        timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert same(SHOWN[copy.stem], done.stdout), done.stdout


def test_the_page_has_these_lines() -> None:
    assert len(LINES) == 2
