"""The log as a source and sink of Spark, over one real node: each test begins behind the others."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import kelek
from kelek.pipeline import session
from kelek.pipeline.errors import EntriesCompacted
from kelek.protocols.zre.log import Report, encode_report
from kelek.protocols.zre.values import Level, LogEvent
from kelek.tests.pipeline.conftest import running
from kelek.tests.pipeline.log.shared_log import LogStart, now, run_now

TOPOLOGY = """\
cluster: logs
data: var
nodes:
  n1: {url: "tcp://127.0.0.1:7201", peer_url: "tcp://127.0.0.1:7221"}
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running(tmp_path_factory.mktemp("log"), TOPOLOGY) as shell:
        yield f"tcp://{shell.addresses['127.0.0.1:7201']}"


@pytest.fixture
def place(url: str) -> LogStart:
    with kelek.Log(url, "logs") as log:
        return LogStart(url, log.read_index())


def counted(spark: Any, folder: Path) -> list[bytes]:
    rows = spark.read.parquet(str(folder)).where("type = 0").orderBy("index").collect()
    return [bytes(row.data) for row in rows]


# ---- batches ----


def test_a_batch_is_written_and_read_back(spark: Any, place: LogStart) -> None:
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
    assert place.read(spark, after=time).count() == 0
    # Another run of the job appends its rows anew.
    place.write(rows.limit(5))
    assert len(place.data()) == 1005


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"afters": 1}, "unknown option 'afters'; did you mean after"),
        (
            {"cluster": "absent", "timeoutMs": 300},
            r"absent.*\(options urls and cluster\)",
        ),
        ({"urls": "tcp://127.0.0.1:1", "timeoutMs": 300}, r"no connection to tcp://127.0.0.1:1 "),
        ({"after": 1 << 40, "endingIndex": 3}, None),
    ],
)
def test_errors_are_reported_in_the_driver(
    spark: Any, place: LogStart, options: dict[str, Any], words: str | None
) -> None:
    given = place.options | {name: str(value) for name, value in options.items()}

    def count() -> int:
        return int(spark.read.format("kelek").options(**given).load().count())

    if words is None:
        assert count() == 0
        return
    with pytest.raises(Exception, match=words):
        count()


def test_columns_that_the_log_does_not_take_are_named(spark: Any, place: LogStart) -> None:
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


def test_a_stream_goes_on_where_it_ended(spark: Any, place: LogStart, tmp_path: Path) -> None:
    """Three batches, then one of what came since; each entry is read once. Streams leave the names
    in the environment of their source as they are: Spark does not lock it."""
    names = names_of_environment(session())  # Registered anew: no stream has begun.
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
    rows = place.read_stream(spark, after=place.last_index + 80, maxBytesPerTrigger=8)
    query = run_now(rows, tmp_path / "other", {"format": "noop"})
    assert [one["numInputRows"] for one in query.recentProgress if one["numInputRows"]] == [4] * 5
    assert names_of_environment(spark) == names


def names_of_environment(spark: Any) -> set[str]:
    sources = spark._jsparkSession.sessionState().dataSourceManager()
    return set(sources.lookupDataSource("kelek").dataSourceCls().envVars().keySet())


def test_a_stream_into_the_log_adds_nothing_when_a_batch_is_repeated(
    spark: Any, place: LogStart, tmp_path: Path
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


def test_a_checkpoint_of_another_log_is_refused(
    spark: Any, place: LogStart, tmp_path: Path
) -> None:
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


# ---- compaction: the last, as it takes the entries of all others away ----


def test_what_is_compacted_is_refused_or_begun_with_the_state(
    spark: Any, place: LogStart, tmp_path: Path
) -> None:
    place.put(b"a", b"b", b"c")
    with place.log as log:
        made = log.make_snapshot()
        place.put(b"d", b"e")
        index, state = log.state()
    assert made.last_index == index > place.last_index
    checkpoint = tmp_path / "checkpoint"
    words = rf"EntriesCompacted.* to {index} are no longer stored.*failOnCompaction.* after {index}"
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
    _reports_of_what_is_stored(place, index)


def _reports_of_what_is_stored(place: LogStart, index: int) -> None:
    """Kind zre leaves out what is compacted: in the state there are no reports."""
    from kelek.pipeline.log.source import LogReader, LogStreamReader
    from kelek.pipeline.options import parse_options
    from kelek.pipeline.zre.options import ZreReadOptions

    place.put(encode_report(Report(Level.INFO, LogEvent.EXIT, 1, 2, 3, "gone")))
    with place.log as log:
        last_index = log.read_index()
    given = {name: text for name, text in place.options.items() if name != "kind"}
    given |= {"after": str(place.last_index), "failOnCompaction": "false"}
    reader: Any = LogReader(parse_options(ZreReadOptions, given))
    rows = [row for part in reader.partitions() for one in reader.read(part) for row in one["text"]]
    assert [str(row) for row in rows] == ["gone"]
    stream = LogStreamReader(parse_options(ZreReadOptions, given, "streams"))
    begin = stream.initialOffset()
    end = stream.latestOffset(begin, stream.getDefaultReadLimit())
    assert end["index"] == index, "what is compacted is a batch of its own, an empty one"
    assert [list(stream.read(part)) for part in stream.partitions(begin, end)] == [[]]
    last = stream.latestOffset(end, stream.getDefaultReadLimit())
    assert last["index"] == last_index
    stream.stop()
    stream = LogStreamReader(
        parse_options(ZreReadOptions, given | {"failOnCompaction": "true"}, "streams")
    )
    with pytest.raises(
        EntriesCompacted, match="failOnCompaction to false to be given what follows"
    ):
        stream.latestOffset(begin, stream.getDefaultReadLimit())
    stream.stop()
