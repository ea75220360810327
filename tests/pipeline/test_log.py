"""The log as a source and sink of Spark, over one real node: each test begins behind the others."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import kelek
from kelek.tests.conftest import ROOT
from kelek.tests.pipeline.conftest import SETTINGS, running

TOPOLOGY = """\
cluster: logs
data: var
nodes:
  n1: {url: "tcp://127.0.0.1:7201", peer_url: "tcp://127.0.0.1:7221"}
"""
DEADLINE_S = 240  # Of what takes seconds on a machine that does nothing else.


class Place(NamedTuple):
    """A real log, and where a test begins in it."""

    url: str
    last_index: int

    @property
    def options(self) -> dict[str, str]:
        return {"kind": "log", "urls": self.url, "cluster": "logs"}

    @property
    def log(self) -> kelek.Log:
        return kelek.Log(self.url, "logs")

    def put(self, *updates: bytes) -> None:
        with self.log as log:
            log.update_many(updates)

    def data(self) -> list[bytes]:
        """Of all updates of this test."""
        with self.log as log:
            return [entry.data for entry in log.entries(self.last_index) if entry.type == 0]

    def read(self, spark: Any, **options: Any) -> Any:
        begin = {"startingIndex": self.last_index + 1} | options
        return spark.read.format("kelek").options(**self.options, **begin).load()

    def read_stream(self, spark: Any, **options: Any) -> Any:
        begin = {"startingIndex": self.last_index + 1} | options
        return spark.readStream.format("kelek").options(**self.options, **begin).load()

    def write(self, rows: Any, **options: Any) -> None:
        rows.write.format("kelek").options(**self.options, **options).mode("append").save()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running(tmp_path_factory.mktemp("log"), TOPOLOGY) as shell:
        yield f"tcp://{shell.addresses['127.0.0.1:7201']}"


@pytest.fixture
def place(url: str) -> Place:
    with kelek.Log(url, "logs") as log:
        return Place(url, log.read_index())


def now() -> Any:
    from pyspark.sql.functions import current_timestamp

    return current_timestamp().alias("time")


def run_now(rows: Any, checkpoint: Path, options: dict[str, str]) -> Any:
    """Takes all that is there through a stream into a sink; returns the query that has ended."""
    writer = rows.writeStream.options(**options).option("checkpointLocation", str(checkpoint))
    query = writer.format(options.get("format", "kelek")).trigger(availableNow=True).start()
    assert query.awaitTermination(DEADLINE_S), "the query has not ended"
    return query


def counted(spark: Any, folder: Path) -> list[bytes]:
    rows = spark.read.parquet(str(folder)).where("type = 0").orderBy("index").collect()
    return [bytes(row.data) for row in rows]


# ---- batches ----


def test_a_batch_is_written_and_read_back(spark: Any, place: Place) -> None:
    before = datetime.now(UTC)
    rows = spark.range(1000).selectExpr("cast(id as string) as data").select("data", now())
    place.write(rows.coalesce(1))
    assert place.data() == [b"%d" % number for number in range(1000)]
    found = place.read(spark, entriesPerPartition=300)
    assert found.dtypes == [
        ("index", "bigint"), ("term", "bigint"), ("type", "tinyint"),
        ("reqid", "binary"), ("time", "timestamp"), ("data", "binary"),
    ]  # fmt: skip
    assert found.rdd.getNumPartitions() == 4
    taken = found.collect()
    assert [row["index"] for row in taken] == list(
        range(place.last_index + 1, place.last_index + 1001)
    )
    assert [bytes(row.data) for row in taken] == place.data()
    assert len({bytes(row.reqid) for row in taken}) == 1000
    assert taken[0].time.timestamp() >= int(before.timestamp())
    assert place.read(spark, endingIndex=place.last_index + 10).count() == 10
    time = datetime.fromtimestamp(before.timestamp() + 3600, UTC).isoformat()
    assert place.read(spark, startingIndex=time).count() == 0
    # Another run of the job appends its rows anew.
    place.write(rows.limit(5))
    assert len(place.data()) == 1005


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startIndex": 1}, "unknown option 'startindex'; did you mean startingIndex"),
        ({"cluster": "nobody", "timeoutMs": 300}, r"cluster 'nobody' \(option cluster\)"),
        ({"urls": "tcp://127.0.0.1:1", "timeoutMs": 300}, r"no answer from tcp://127.0.0.1:1 "),
        ({"startingIndex": 1 << 40, "endingIndex": 3}, None),
    ],
)
def test_what_is_wrong_is_said_in_the_driver(
    spark: Any, place: Place, options: dict[str, Any], words: str | None
) -> None:
    given = place.options | {name: str(value) for name, value in options.items()}

    def count() -> int:
        return int(spark.read.format("kelek").options(**given).load().count())

    if words is None:
        assert count() == 0
        return
    with pytest.raises(Exception, match=words):
        count()


def test_columns_that_the_log_does_not_take_are_named(spark: Any, place: Place) -> None:
    rows = spark.range(3).selectExpr("cast(id as string) as data").select("data", now())
    for wrong, words in (
        (rows.select("data"), "time is missing"),
        (rows.withColumn("key", rows.data), r"not key: leave it out with select\(\)"),
        (rows.withColumn("data", rows.time), "data is of type timestamp"),
    ):
        with pytest.raises(Exception, match=words):
            place.write(wrong)
    with pytest.raises(Exception, match="mode is append"):
        rows.write.format("kelek").options(**place.options).mode("overwrite").save()
    hours_ago = spark.sql("select 'a' as data, current_timestamp() - interval 9 hours as time")
    with pytest.raises(Exception, match=r"ReplayExpired.*the cluster refuses rows of the time"):
        place.write(hours_ago)
    assert place.data() == []


# ---- streams ----


def test_a_stream_goes_on_where_it_ended(spark: Any, place: Place, tmp_path: Path) -> None:
    """Three batches, then one of what came since; each entry is read once."""
    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"
    updates = [b"%d" % number for number in range(100)]
    place.put(*updates[:90])
    sink = {"format": "parquet", "path": str(out)}
    rows = place.read_stream(spark, maxEntriesPerTrigger=40, entriesPerPartition=25)
    query = run_now(rows, checkpoint, sink)
    progress = [one["sources"][0] for one in query.recentProgress if one["numInputRows"]]
    assert [one["numInputRows"] for one in progress] == [40, 40, 10]
    latest = [json.dumps(one["latestOffset"]) for one in progress]
    assert [int(re.findall(r"lag\W+(\d+)", one)[0]) for one in latest] == [50, 10, 0]
    place.put(*updates[90:])
    query = run_now(place.read_stream(spark), checkpoint, sink)
    assert counted(spark, out) == updates
    # By bytes: 4 updates of 2 bytes each time.
    rows = place.read_stream(spark, startingIndex=place.last_index + 81, maxBytesPerTrigger=8)
    query = run_now(rows, tmp_path / "other", {"format": "noop"})
    assert [one["numInputRows"] for one in query.recentProgress if one["numInputRows"]] == [4] * 5


def test_a_stream_into_the_log_adds_nothing_when_a_batch_is_repeated(
    spark: Any, place: Place, tmp_path: Path
) -> None:
    """The record of the last batch's commit is lost: Spark does it again."""
    place.put(*[b"in %d" % number for number in range(50)])
    checkpoint = tmp_path / "checkpoint"
    rows = place.read_stream(spark, maxEntriesPerTrigger=20).where("data like 'in %'")
    copies = rows.selectExpr("concat('out', substr(cast(data as string), 3)) data").select(
        "data", now()
    )
    run_now(copies, checkpoint, place.options)
    once = place.data()
    assert once[50:] == [b"out %d" % number for number in range(50)]
    commits = sorted((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    commits[-1].unlink()
    (checkpoint / "commits" / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    run_now(copies, checkpoint, place.options)
    assert place.data() == once


def test_a_checkpoint_of_another_log_is_refused(spark: Any, place: Place, tmp_path: Path) -> None:
    place.put(b"a", b"b", b"c")
    checkpoint = tmp_path / "checkpoint"
    run_now(place.read_stream(spark), checkpoint, {"format": "noop"})
    offsets = max((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    text = offsets.read_text()
    (checkpoint / "offsets" / f".{offsets.name}.crc").unlink(missing_ok=True)
    for pattern, replacement, words in (
        (r'"index": *(\d+)', '"index": 999999', "the log ends at"),
        (r'"term": *(\d+)', r'"term": 7\1', "and in the log it has"),
        (r'"reqid": *"..', '"reqid": "ff', "and in the log it has"),
        (r'"cluster": *"logs"', '"cluster": "others"', "of the cluster 'others', not of 'logs'"),
    ):
        wrong = re.sub(pattern, replacement, text)
        assert wrong != text
        offsets.write_text(wrong)
        with pytest.raises(Exception, match=f"WrongCheckpoint.*{words}.*new checkpointLocation"):
            run_now(place.read_stream(spark), checkpoint, {"format": "noop"})


# ---- what dies ----


def test_a_task_killed_while_it_appends_is_done_again_and_adds_nothing(
    spark: Any, place: Place
) -> None:
    """Its Python worker is killed once the first of its rows are in the log."""
    count = 20_000
    rows = spark.range(count).coalesce(1)
    rows = rows.selectExpr("concat(cast(id as string), repeat('x', 500)) as data")
    killed_at = 0

    def kill() -> None:
        nonlocal killed_at
        until = time.monotonic() + DEADLINE_S
        with place.log as log:
            while (last := log.info().last_index) == place.last_index:
                assert time.monotonic() < until
        for pid in workers():
            os.kill(pid, signal.SIGKILL)
        killed_at = last - place.last_index

    killer = threading.Thread(target=kill)
    killer.start()
    place.write(rows.select("data", now()))
    killer.join()
    assert 0 < killed_at < count, "it was killed too late to show anything"
    data = place.data()
    assert len(data) == count
    assert len(set(data)) == count


def workers() -> list[int]:
    """The Python workers of this process's Spark: children of the daemon that its JVM started."""
    parents, daemons = {}, set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status, command = (folder / "stat").read_text(), (folder / "cmdline").read_bytes()
        except OSError:
            continue  # It has ended meanwhile.
        pid = int(folder.name)
        parents[pid] = int(status.rpartition(")")[2].split()[1])
        if b"pyspark.daemon" in command:
            daemons.add(pid)

    def is_ours(pid: int) -> bool:
        while pid in parents and pid != os.getpid():
            pid = parents[pid]
        return pid == os.getpid()

    return [pid for pid in daemons if parents[pid] in daemons and is_ours(pid)]


DRIVER = """\
import sys
from kelek.pipeline import session
from kelek.tests.pipeline.test_log import Place, copies

place, checkpoint = Place(sys.argv[1], int(sys.argv[2])), sys.argv[3]
spark = session(app_name="killed", master="local[1]", config={settings})
writer = copies(spark, place).writeStream.format("kelek").options(**place.options)
writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
spark.streams.awaitAnyTermination()
"""


def copies(spark: Any, place: Place) -> Any:
    rows = place.read_stream(spark, maxEntriesPerTrigger=20).where("data like 'in %'")
    copied = rows.selectExpr("concat('out', substr(cast(data as string), 3)) data")
    return copied.select("data", now())


def test_a_driver_killed_between_batches_goes_on_exactly_where_it_was(
    spark: Any, place: Place, tmp_path: Path
) -> None:
    count = 200
    place.put(*[b"in %d" % number for number in range(count)])
    checkpoint = tmp_path / "checkpoint"
    driver = subprocess.Popen(
        [
            sys.executable, "-c", DRIVER.format(settings=SETTINGS),
            place.url, str(place.last_index), str(checkpoint),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT / ".build")},
    )  # fmt: skip
    try:
        until = time.monotonic() + DEADLINE_S
        with place.log as log:
            while log.info().last_index < place.last_index + count + 45:
                assert driver.poll() is None, "the driver has ended by itself"
                assert time.monotonic() < until
    finally:
        driver.kill()
        driver.wait()
    assert len(place.data()) < 2 * count, "it was killed too late to show anything"
    run_now(copies(spark, place), checkpoint, place.options)
    data = place.data()
    assert sorted(data[:count]) == sorted(b"in %d" % number for number in range(count))
    assert sorted(data[count:]) == sorted(b"out %d" % number for number in range(count))


# ---- compaction: the last, as it takes the entries of all others away ----


def test_what_is_compacted_is_refused_or_begun_with_the_state(
    spark: Any, place: Place, tmp_path: Path
) -> None:
    place.put(b"a", b"b", b"c")
    with place.log as log:
        made = log.make_snapshot()
        place.put(b"d", b"e")
        index, state = log.state()
    assert made.last_index == index > place.last_index
    checkpoint = tmp_path / "checkpoint"
    words = rf"EntriesCompacted.* to {index} are no longer stored.*failOnCompaction.* {index + 1}"
    with pytest.raises(Exception, match=words):
        run_now(place.read_stream(spark), checkpoint, {"format": "noop"})
    with pytest.raises(Exception, match=words):
        place.read(spark).count()
    out = tmp_path / "out"
    rows = place.read_stream(spark, failOnCompaction="false")
    run_now(rows, checkpoint, {"format": "parquet", "path": str(out)})
    for found in (spark.read.parquet(str(out)), place.read(spark, failOnCompaction="false")):
        first, *others = found.orderBy("index").collect()
        assert (first["index"], first.type, bytes(first.data)) == (index, -1, state)
        assert [bytes(row.data) for row in others] == [b"d", b"e"]
