"""Tables written by Spark: by batches and streams, in place of what was there, with deletes."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

import kelek
from kelek.pipeline.options import parse_options
from kelek.protocols.zerodb.wire import requests
from kelek.tests.clients.table.table_servers import TableServers

pytest.importorskip("pyspark")
pa = pytest.importorskip("pyarrow")
table_write = pytest.importorskip("kelek.pipeline.table.write")
table_errors = pytest.importorskip("kelek.pipeline.errors")
table_options = pytest.importorskip("kelek.pipeline.table.options")


def given(url: str, number: int, **options: Any) -> dict[str, str]:
    chosen = {"kind": "table", "urls": url, "table": number, **options}
    return {name: str(value) for name, value in chosen.items()}


def content(url: str, number: int) -> list[tuple[bytes, bytes]]:
    with kelek.Table(url, number) as table:
        return list(table.scan())


# ---- with Spark ----


def test_written_and_read_back(spark: Any, node: str, number: int) -> None:
    options = given(
        node, number, keyFormat="be64", valueFormat="msgpack", batchBytes="4k", inFlight=4
    )
    frame = spark.range(5000).selectExpr(
        "id AS key", "named_struct('half', id / 2, 'words', array(string(id))) AS value"
    )
    frame.write.format("kelek").mode("append").options(**options).save()
    read = given(
        node, number, keyFormat="be64", valueFormat="msgpack",
        valueSchema="half DOUBLE, words ARRAY<STRING>",
    )  # fmt: skip
    back = spark.read.format("kelek").options(**read).load()
    assert back.exceptAll(frame).count() == 0
    assert back.count() == 5000
    frame.where("key < 3").write.format("kelek").mode("append").options(**options).save()
    back = spark.read.format("kelek").options(**read).load()
    assert back.count() == 5000, "a key that comes again is the same key"


def test_in_place_of_what_was_there(spark: Any, node: str, number: int) -> None:
    with kelek.Table(node, number) as table:
        table.put_many([(b"%04d" % n, b"old") for n in range(3000)])
        before = set(table.tables())
    options = given(node, number, keyFormat="utf8", valueFormat="utf8")
    frame = spark.range(1000, 1500).selectExpr(
        "lpad(string(2 * id), 4, '0') AS key", "'new' AS value"
    )
    frame.write.format("kelek").mode("overwrite").options(**options).save()
    assert content(node, number) == [(b"%04d" % n, b"new") for n in range(2000, 3000, 2)]
    broken = frame.selectExpr("key", "IF(key = '2400', NULL, value) AS value")
    with pytest.raises(Exception, match="a value can't be written: it is null"):
        broken.write.format("kelek").mode("overwrite").options(**options).save()
    assert len(content(node, number)) == 500, "nothing is switched in unless all is written"
    frame.where("key = 'x'").write.format("kelek").mode("overwrite").options(**options).save()
    assert content(node, number) == []
    with kelek.Table(node, number) as table:
        assert set(table.tables()) == before, "tables that were filled for it are gone"


def test_a_stream_and_its_deletes(spark: Any, node: str, number: int, tmp_path: Path) -> None:
    for name, ids, deletes in (("a", range(300), "false"), ("b", range(100), "id % 2 = 0")):
        spark.createDataFrame([(n,) for n in ids], "id BIGINT").selectExpr(
            "id AS key", f"'{name}' AS value", f"{deletes} AS gone"
        ).coalesce(1).write.mode("append").parquet(f"{tmp_path}/rows")
        query = (
            spark.readStream.schema("key BIGINT, value STRING, gone BOOLEAN")
            .parquet(f"{tmp_path}/rows")
            .writeStream.format("kelek")
            .options(
                **given(node, number, keyFormat="be64", valueFormat="utf8", deleteColumn="gone"),
                checkpointLocation=f"{tmp_path}/checkpoint",
            )
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)
        assert query.exception() is None
    expected = {n: b"b" if n < 100 else b"a" for n in range(300) if n >= 100 or n % 2}
    found = {int.from_bytes(key, "big"): value for key, value in content(node, number)}
    assert found == expected


def test_a_task_that_is_killed_is_run_again(
    spark: Any, node: str, number: int, tmp_path: Path
) -> None:
    killed = str(tmp_path / "killed")

    def once(batches: Any) -> Any:  # Pickled as it stands here: workers know no tests.
        import os
        import signal

        for place, batch in enumerate(batches):
            if place == 5 and not os.path.exists(killed):
                open(killed, "x").close()
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    rows = spark.range(0, 4000, 1, 2).selectExpr("id AS key", "string(id) AS value")
    try:
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
        rows.mapInArrow(once, rows.schema).write.format("kelek").mode("append").options(
            **given(node, number, keyFormat="be64", valueFormat="utf8", batchBytes="1k")
        ).save()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert Path(killed).exists()
    found = [(int.from_bytes(key, "big"), value) for key, value in content(node, number)]
    assert found == [(n, b"%d" % n) for n in range(4000)]


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_table_is_made_also_when_no_row_is_written(
    spark: Any, node: str, number: int, mode: str
) -> None:
    nothing = spark.createDataFrame([], "key BINARY, value BINARY")
    nothing.write.format("kelek").mode(mode).options(**given(node, number)).save()
    assert spark.read.format("kelek").options(**given(node, number)).load().count() == 0


def test_rows_that_no_table_accepts_are_reported_in_the_driver(
    spark: Any, node: str, number: int
) -> None:
    frame = spark.createDataFrame([("k", b"v", 1)], "key STRING, value BINARY, n INT")
    frame = frame.selectExpr("*", "map(1, 'a') AS m", "CAST(1.5 AS DECIMAL(5,1)) AS d")
    for columns, options, words in (
        (["key", "m AS value"], {"valueFormat": "json"}, "has maps with text as keys, not int"),
        (["key", "m AS value"], {"valueFormat": "msgpack"}, "has maps with text as keys, not int"),
        (["key", "d AS value"], {"valueFormat": "json"}, "json has no decimal.*; use STRING"),
        (["key", "value"], {"valueFormat": "json"}, "json has no bytes"),
        (["key", "value"], {}, "column key is string, which keyFormat raw is not: cast it"),
        (["key", "n"], {}, "the columns of a table are key, value, not key, n"),
        (["key", "value"], {"sync": "maybe"}, "option sync is async, partsync or fullsync"),
        (["key", "value"], {"rowLimit": 1}, "unknown option 'rowlimit'"),
        (["key", "value", "n"], {"keyFormat": "utf8", "deleteColumn": "n"}, "n is no boolean"),
    ):
        utf8 = {"keyFormat": "utf8"} if "valueFormat" in options else {}
        writer = frame.selectExpr(*columns).write.format("kelek").mode("append")
        with pytest.raises(Exception, match=words):
            writer.options(**given(node, number, **utf8, **options)).save()


# ---- without ----


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[TableServers]:
    made = TableServers(tmp_path)
    yield made
    made.close()


def options_of(cluster: TableServers, **options: Any) -> Any:
    texts = given(",".join(cluster.urls), 3, **options)
    return parse_options(table_options.TableWriteOptions, texts, "writes")


def binary_schema() -> Any:
    from pyspark.sql.types import BinaryType, StructType

    return StructType().add("key", BinaryType()).add("value", BinaryType())


def test_the_last_row_of_a_key_counts(cluster: TableServers) -> None:
    rows = [("a", "1", False), ("b", "1", None), ("a", "2", True), ("c", None, True)]
    more = [("c", "3", False), ("b", "4", False), ("b", None, True), ("b", "5", False)]
    schema = pa.schema([("key", pa.string()), ("value", pa.string()), ("gone", pa.bool_())])
    batches = [
        pa.RecordBatch.from_pylist(
            [dict(zip(schema.names, row, strict=True)) for row in some], schema
        )
        for some in (rows, more)
    ]
    options = options_of(cluster, keyFormat="utf8", valueFormat="utf8", deleteColumn="gone")
    done = table_write.write_rows(options, iter(batches))
    assert (done.puts, done.deletes) == (3, 2)
    assert cluster.store.tables[3] == {b"b": b"5", b"c": b"3"}


def test_a_limited_task_takes_its_time(cluster: TableServers, monkeypatch: Any) -> None:
    """Whether it puts or deletes."""
    now = [100.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda s: now.append(now.pop() + s))
    monkeypatch.setattr(table_write, "time", clock)
    keys = pa.array([b"%0100d" % n for n in range(1000)])
    gone = [pa.array([flag] * 1000) for flag in (False, True)]
    put, delete = (
        pa.RecordBatch.from_arrays([keys, pa.array([b""] * 1000), flags], ["key", "value", "gone"])
        for flags in gone
    )

    def taken(*batches: Any, **limits: Any) -> float:
        began = now[0]
        options = options_of(cluster, deleteColumn="gone", **limits)
        done = table_write.write_rows(options, iter(batches))
        assert done.puts == 1000 * sum(batch is put for batch in batches)
        assert done.deletes == 1000 * sum(batch is delete for batch in batches)
        assert len(cluster.store.tables[3]) == (1000 if batches[-1] is put else 0)
        return now[0] - began

    assert taken(put) == 0
    for batches in ((put, put), (delete, delete), (put, delete)):
        assert taken(*batches, rowsPerSecond=500) == pytest.approx(4, rel=0.1)
        assert taken(*batches, bytesPerSecond="100k") == pytest.approx(2, rel=0.2)
        assert taken(*batches, bytesPerSecond="100k", rowsPerSecond=100) == pytest.approx(20, 0.1)


def test_what_is_on_the_way_is_limited(cluster: TableServers) -> None:
    columns = [pa.array([b"%06d" % n for n in range(1000)]), pa.array([bytes(94)] * 1000)]
    batch = pa.RecordBatch.from_arrays(columns, ["key", "value"])
    options = options_of(cluster, batchBytes=10_000, inFlight=2)
    assert table_write.write_rows(options, iter([batch])).puts == 1000
    puts = [it for it in cluster.store.writes if isinstance(it, requests.Put)]
    assert [len(put.keys) for put in puts] == [100] * 10
    with mock.patch("kelek.clients.table.table.Table") as opened, table_write.open_table(options):
        pass
    assert opened.call_args.kwargs["tuning"].requests_max == 2


def test_the_table_that_is_filled_is_named(cluster: TableServers, capfd: Any) -> None:
    """In the driver's log, for whoever finds it behind a driver that was killed."""
    cluster.store.tables[3] = {b"old": b"1"}
    writer = table_write.TableWriter(options_of(cluster), binary_schema(), overwrite=True)
    words = f"kelek: table 3 is overwritten by way of table {writer.filled.table}; "
    assert words in capfd.readouterr().err
    done = writer.write(iter([pa.RecordBatch.from_pylist([{"key": b"new", "value": b"2"}])]))
    assert cluster.store.tables == {3: {b"old": b"1"}, writer.filled.table: {b"new": b"2"}}
    writer.abort([done])
    assert cluster.store.tables == {3: {b"old": b"1"}, writer.filled.table: {}}


@pytest.mark.parametrize("kind", ["writer", "stream_writer"])
def test_an_unreachable_server_is_reported_in_the_driver(tmp_path: Path, kind: str) -> None:
    from kelek.pipeline.table.kind import KIND

    options = given(f"ipc://{tmp_path}/none", 3, timeoutMs=50)
    with pytest.raises(
        table_errors.TableUnreachable,
        match=r"none within 0\.05 s; .*\(options urls and timeoutMs\)",
    ):
        getattr(KIND, kind)(options, binary_schema(), overwrite=False)


def test_what_is_stale() -> None:
    old, new = [b"a", b"b", b"d", b"f"], [b"b", b"c", b"d", b"e"]
    assert list(table_write.stale(iter(old), iter(new))) == [b"a", b"f"]
    assert list(table_write.stale(iter(old), iter([]))) == old
    assert list(table_write.stale(iter([]), iter(new))) == []
