"""Streams as a source and sink of Spark, over one real node."""

import itertools
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import kelek
from kelek.clients.stream.layout import STREAM_TABLE, partition_of

NAMES = itertools.count()


@pytest.fixture
def stream(spark: Any, node: str) -> kelek.Stream:
    return kelek.Stream(node, f"spark{next(NAMES)}")


def options(node: str, stream: kelek.Stream, **more: object) -> dict[str, str]:
    found = {"kind": "stream", "urls": node, "stream": stream.name, **more}
    return {name: str(value) for name, value in found.items()}


def write(frame: Any, node: str, stream: kelek.Stream) -> None:
    frame.write.format("kelek").mode("append").options(**options(node, stream)).save()


def read(spark: Any, node: str, stream: kelek.Stream, **more: object) -> Any:
    return spark.read.format("kelek").options(**options(node, stream, **more)).load()


def test_a_batch_is_written_and_read_back(spark: Any, node: str, stream: kelek.Stream) -> None:
    with stream:
        rows = spark.range(3000).selectExpr(
            "string(id) AS value", "string(id % 50) AS key", "map('by', string(id)) AS headers"
        )
        write(rows.repartition(3), node, stream)
        found = read(spark, node, stream, recordsPerPartition=1000)
        assert found.dtypes == [
            ("offset", "bigint"), ("time", "timestamp"), ("partition", "int"), ("key", "binary"),
            ("value", "binary"), ("headers", "map<string,binary>"),
        ]  # fmt: skip
        assert found.rdd.getNumPartitions() == 3
        taken = sorted(found.collect())
        assert [row.offset for row in taken] == list(range(3000))
        assert sorted(int(row.value) for row in taken) == list(range(3000))
        for row, record in zip(taken, stream.read(), strict=True):
            assert (bytes(row.value), bytes(row.key)) == (record.value, record.key)
            assert row.headers == {"by": bytearray(row.value)}
            assert row.partition == partition_of(bytes(row.key), row.offset, 16)
            assert row.time.astimezone(UTC) == record.time
        with kelek.Table(node, STREAM_TABLE) as table:
            assert not list(table.keys(prefix=f"p{stream.name}\0"))


def test_a_part_of_a_stream(spark: Any, node: str, stream: kelek.Stream) -> None:
    with stream:
        stream.append_many((str(number) for number in range(100)), batch=7)
        assert read(spark, node, stream, start=90, endOffset=95).count() == 5
        assert read(spark, node, stream, start="end").count() == 0
        assert read(spark, node, stream, start="last").count() == 1
        time = (datetime.now(UTC) + timedelta(days=1)).isoformat()
        assert read(spark, node, stream, start=time).count() == 0
        by_keys = read(spark, node, stream, divideBy="keys")
        assert by_keys.rdd.getNumPartitions() == 16
        assert by_keys.count() == 100
        stream.trim(before=50)
        with pytest.raises(Exception, match="records 10 to 48 are no longer kept"):
            read(spark, node, stream, start=10).count()
        assert read(spark, node, stream, start=10, failOnTrim="false").count() == 51


def test_a_task_that_is_repeated_appends_once(
    spark: Any, node: str, stream: kelek.Stream, tmp_path: Path
) -> None:
    """Its first try has appended all rows, and fails then."""
    with stream:
        frame = spark.range(100).selectExpr("string(id) AS value").repartition(2)
        write(frame, node, stream)

        def once(rows: Any) -> Any:
            yield from rows
            marker = tmp_path / "failed"
            if not marker.exists():
                marker.touch()
                raise RuntimeError("once")

        write(frame.mapInPandas(once, frame.schema), node, stream)
        found = sorted(int(record.value) for record in stream.read(100))
        assert found == list(range(100))


def test_a_query_copies_a_stream_exactly_once(
    spark: Any, node: str, stream: kelek.Stream, tmp_path: Path
) -> None:
    """The query is repeated from a checkpoint that has forgotten its last batch."""
    copy = kelek.Stream(node, stream.name + "copy")
    with stream, copy:
        stream.append_many((str(number) for number in range(500)), batch=50)
        folder = tmp_path / "checkpoint"

        def run() -> None:
            found = (
                spark.readStream.format("kelek")
                .options(**options(node, stream, start="first", maxRecordsPerTrigger=120))
                .load()
                .select("value", "key")
                .repartition(2)
            )
            query = (
                found.writeStream.format("kelek")
                .outputMode("append")
                .options(**options(node, copy), checkpointLocation=str(folder))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()

        run()
        assert sorted(int(it.value) for it in copy.read()) == list(range(500))
        commits = sorted((folder / "commits").glob("[0-9]*"), key=lambda each: int(each.name))
        assert len(commits) == 5
        commits[-1].unlink()
        (folder / "commits" / f".{commits[-1].name}.crc").unlink()
        stream.append_many(str(number) for number in range(500, 600))
        run()
        assert sorted(int(it.value) for it in copy.read()) == list(range(600))
        last = max((folder / "offsets").glob("[0-9]*"), key=lambda each: int(each.name))
        position = json.loads(last.read_text().splitlines()[-1])
        assert position == {"stream": stream.name, "offset": 600}


def test_a_large_task_is_one_append(spark: Any, node: str, stream: kelek.Stream) -> None:
    with stream:
        write(spark.range(4000).selectExpr("repeat('x', 4096) AS value").coalesce(1), node, stream)
        info = stream.info()
        assert info is not None
        assert info.next == 4000
        assert info.size > 4000 * 4096
        assert len({record.time_ms for record in stream.read()}) == 1


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        (["id"], "value is missing"),
        (["id AS value"], "value is of type bigint"),
        (["string(id) AS value", "id"], "not id: leave it out with select"),
        (
            ["string(id) AS value", "map(id, id) AS headers"],
            "headers is of type map<bigint,bigint>",
        ),
    ],
)
def test_wrong_columns(
    spark: Any, node: str, stream: kelek.Stream, columns: list[str], text: str
) -> None:
    with stream, pytest.raises(Exception, match=text):
        write(spark.range(3).selectExpr(*columns), node, stream)


def test_wrong_uses(spark: Any, node: str, stream: kelek.Stream, tmp_path: Path) -> None:
    with stream:
        with pytest.raises(Exception, match="does not exist; list them: kelek stream list"):
            read(spark, node, stream).count()
        with pytest.raises(Exception, match="option stream is missing"):
            spark.read.format("kelek").options(kind="stream", urls=node).load().count()
        with pytest.raises(Exception, match="first, last, end, an offset, or a time"):
            read(spark, node, stream, start="soon").count()
        frame = spark.range(3).selectExpr("string(id) AS value")
        with pytest.raises(Exception, match="what is in the stream stays there"):
            frame.write.format("kelek").mode("overwrite").options(**options(node, stream)).save()
