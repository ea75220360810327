"""Spark over a log of three nodes while tasks, a driver and a leader are killed: rows are counted.

Nothing is there twice and nothing is missing, whatever dies.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import kelek
from kelek.tests.conftest import ROOT, Shell
from kelek.tests.pipeline.conftest import SETTINGS, running
from kelek.tests.pipeline.log.shared_log import DEADLINE_S, LogStart, now
from kelek.tests.waiting import wait_until

NODES = ("n1", "n2", "n3")
TOPOLOGY = """\
cluster: logs
data: var
raft: {election_timeout_ms: [1000, 1500]}
nodes:
  n1: {url: "tcp://127.0.0.1:7201", peer_url: "tcp://127.0.0.1:7221"}
  n2: {url: "tcp://127.0.0.1:7202", peer_url: "tcp://127.0.0.1:7222"}
  n3: {url: "tcp://127.0.0.1:7203", peer_url: "tcp://127.0.0.1:7223"}
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    with running(tmp_path_factory.mktemp("log"), TOPOLOGY, NODES) as shell:
        yield shell


@pytest.fixture
def place(cluster: Shell) -> LogStart:
    urls = ",".join(f"tcp://{cluster.addresses[f'127.0.0.1:720{n}']}" for n in (1, 2, 3))
    with kelek.Log(urls, "logs") as log:
        return LogStart(urls, log.read_index())


# ---- a task ----


def test_a_task_killed_while_it_appends_is_done_again_and_adds_nothing(
    spark: Any, place: LogStart
) -> None:
    """Its Python worker is killed once the first of its rows are in the log; if all of them are in
    by then, there are more the next time."""
    killed_at = count = 0
    for count in (20_000, 80_000, 320_000):
        with place.log as log:
            begin = place._replace(last_index=log.read_index())
        killer = Killer(begin)
        rows = spark.range(count).coalesce(1)
        rows = rows.selectExpr("concat(cast(id as string), repeat('x', 500)) as data")
        begin.write(rows.select("data", now()))
        killer.join(DEADLINE_S)
        data = begin.data()
        assert len(data) == count
        assert len(set(data)) == count
        killed_at = killer.killed_at
        if 0 < killed_at < count:
            break
    assert 0 < killed_at < count, "it was killed too late to show anything"


class Killer(threading.Thread):
    """Waits for an entry, and kills the tasks that run."""

    def __init__(self, place: LogStart) -> None:
        super().__init__(daemon=True)
        self.place = place
        self.killed_at = 0  # So many entries were there by then.
        self.start()

    def run(self) -> None:
        with self.place.log as log:
            next(entry for entry in log.watch(self.place.last_index) if entry.type == 0)
            for pid in workers():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.killed_at = log.info().last_index - self.place.last_index


def workers() -> list[int]:
    """The Python workers of this process's Spark that run tasks, and no planning or commits:
    children of the daemon that its JVM started for them."""
    parents, daemons = {}, set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status, command = (folder / "stat").read_text(), (folder / "cmdline").read_bytes()
        except OSError:
            continue  # It has ended meanwhile.
        pid = int(folder.name)
        parents[pid] = int(status.rpartition(")")[2].split()[1])
        if command.endswith(b"\0pyspark.daemon\0pyspark.worker\0"):
            daemons.add(pid)

    def is_ours(pid: int) -> bool:
        while pid in parents and pid != os.getpid():
            pid = parents[pid]
        return pid == os.getpid()

    return [pid for pid in daemons if parents[pid] in daemons and is_ours(pid)]


# ---- the driver ----

COUNT = 600
TRIES = 5
DRIVER_S = 900  # It starts a JVM and a dozen of Python processes, beside those that are there.
DRIVER = """\
import json, sys
from kelek.pipeline import session
from kelek.tests.pipeline.log.test_faults import Work, finish

spark = session(app_name="killed", master="local[2]", config={settings})
finish(spark, Work(*json.loads(sys.argv[1])), 20)
"""


class Work(NamedTuple):
    """Two streams over the same entries: into the log, and into a table."""

    urls: str
    last_index: int
    table_url: str
    table: int
    checkpoints: str

    @property
    def place(self) -> LogStart:
        return LogStart(self.urls, self.last_index)

    @property
    def table_options(self) -> dict[str, Any]:
        return {"kind": "table", "urls": self.table_url, "table": self.table, "keyFormat": "be64"}


def finish(spark: Any, work: Work, entries: int) -> None:
    """Both queries, so many entries a batch, until there are no more. One that fails begins again:
    Spark gives a Python process no more than 10 s for its start, however busy the machine is."""
    from pyspark.errors import StreamingQueryException

    for _ in range(TRIES):
        failed = False
        for query in begin(spark, work, entries):
            try:
                assert query.awaitTermination(DRIVER_S), "the query has not ended"
            except StreamingQueryException as error:
                print(error, file=sys.stderr)
                failed = True
        if not failed:
            return
    raise AssertionError("the queries fail")


def begin(spark: Any, work: Work, entries: int) -> list[Any]:
    rows = work.place.read_stream(spark, maxEntriesPerTrigger=entries).where("data like 'in %'")
    copied = rows.selectExpr("concat('out', substr(cast(data as string), 3)) data")
    kept = rows.selectExpr("index as key", "data as value")
    queries = []
    for name, columns, options in (
        ("log", copied.select("data", now()), work.place.options),
        ("table", kept, work.table_options),
    ):
        writer = columns.writeStream.format("kelek").options(**options).trigger(availableNow=True)
        queries.append(writer.option("checkpointLocation", f"{work.checkpoints}/{name}").start())
    return queries


@pytest.mark.timeout(DRIVER_S)
def test_a_driver_killed_between_batches_goes_on_exactly_where_it_was(
    spark: Any, place: LogStart, node: str, number: int, tmp_path: Path
) -> None:
    updates = [b"in %d" % n for n in range(COUNT)]
    place.put(*updates)
    work = Work(place.url, place.last_index, node, number, str(tmp_path))
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER.format(settings=SETTINGS), json.dumps(work)],
        env={**os.environ, "PYTHONPATH": str(ROOT / ".build")},
        stdin=subprocess.PIPE,
    )
    with kelek.Table(node, number) as table, place.log as log:

        def some_are_there() -> bool:
            with suppress(subprocess.TimeoutExpired):
                raise AssertionError(f"the driver has ended by itself: {driver.wait(0.05)}")
            copied = log.info().last_index - place.last_index - COUNT
            return copied > 20 and number in table.tables() and table.count() > 20

        try:
            wait_until(some_are_there, "rows in the log and in the table", DRIVER_S / 2)
        finally:
            driver.kill()
            driver.communicate()
        assert len(place.data()) < 2 * COUNT, "it was killed too late to show anything"
        assert table.count() < COUNT, "it was killed too late to show anything"
        finish(spark, work, 500)
        entries = [entry for entry in log.entries(place.last_index) if entry.type == 0]
        rows = [(int.from_bytes(key, "big"), value) for key, value in table.scan()]
    assert [entry.data for entry in entries[:COUNT]] == updates
    copies = sorted(entry.data for entry in entries[COUNT:])
    assert copies == sorted(b"out %d" % n for n in range(COUNT))
    assert rows == [(entry.index, entry.data) for entry in entries[:COUNT]]


# ---- a node ----


def test_a_stream_goes_on_when_the_leader_is_killed(
    spark: Any, cluster: Shell, place: LogStart, tmp_path: Path
) -> None:
    """The last test: that node stays away."""
    first, second = ([b"%s %d" % (word, n) for n in range(300)] for word in (b"one", b"two"))
    place.put(*first)
    rows = place.read_stream(spark, maxEntriesPerTrigger=100).where("type = 0")
    query = started(rows, tmp_path)
    try:
        with place.log as log:
            leader = log.info().leader
        status = json.loads(cluster.ok("supervisor status topology.yaml -o json"))
        for row in status["processes"]:
            if row["node"] == leader:
                with suppress(ProcessLookupError):
                    os.kill(row["pid"], signal.SIGKILL)
        place.put(*second)
        with place.log as log:
            assert log.info().leader != leader
            last_index = log.read_index()

        def is_there() -> bool:
            assert not query.awaitTermination(0.1), "the query has ended"
            end = json.loads(query.lastProgress["sources"][0]["endOffset"])
            return int(end["index"]) >= last_index

        wait_until(is_there, "the last entry in a batch", DEADLINE_S)
    finally:
        query.stop()
    found = spark.table(query.name).orderBy("index").collect()
    assert [bytes(row.data) for row in found] == [*first, *second]


def started(rows: Any, folder: Path) -> Any:
    """A query into memory that has had its first batch, once Python has started in time for it."""
    from pyspark.errors import StreamingQueryException

    for number in range(TRIES):
        writer = rows.writeStream.format("memory").queryName(f"arrived_{number}")
        query = writer.option("checkpointLocation", str(folder / str(number))).start()
        with suppress(StreamingQueryException):
            while not query.lastProgress:
                assert not query.awaitTermination(0.1), "the query has ended"
            return query
    raise AssertionError("the query fails")
