"""The changes of a table as a source of Spark's streams, over one real node."""

import json
import time
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kelek

DEADLINE_S = 240
SCHEMA = pa.schema(
    [
        pa.field("day", pa.date32(), nullable=False),
        pa.field("id", pa.int64(), nullable=False),
        ("price", pa.decimal128(10, 2)),
        ("tags", pa.map_(pa.string(), pa.int32())),
        ("size", pa.uint64()),
    ]
)
DAY = date(2026, 1, 31)


def changes(spark: Any, node: str, table: str, **options: str) -> Any:
    given = {"kind": "changes", "urls": node, "table": table, **options}
    return spark.readStream.format("kelek").options(**given).load()


def row_of(number: int, price: str) -> dict[str, Any]:
    tags = {"even": number % 2}
    return {"day": DAY, "id": number, "price": Decimal(price), "tags": tags, "size": 2**63 + number}


def test_files_have_each_change_exactly_once(spark: Any, node: str, tmp_path: Path) -> None:
    """The query is repeated from a checkpoint that has forgotten its last batch."""
    files, checkpoint = str(tmp_path / "files"), tmp_path / "checkpoint"

    def run() -> Any:
        writer = changes(spark, node, "spark-changes", previous="true").writeStream
        writer = writer.option("checkpointLocation", str(checkpoint)).format("parquet")
        query = writer.trigger(availableNow=True).start(files)
        assert query.awaitTermination(DEADLINE_S)
        return spark.read.parquet(files)

    with kelek.Table(node, "spark-changes") as table:
        table.declare(kelek.TableSchema(SCHEMA, ["day", "id"]))
        table.put_rows(row_of(number, "1.00") for number in range(100))
        found = run()
        value = "struct<day:date,id:bigint,price:decimal(10,2),tags:map<string,int>"
        value += ",size:decimal(20,0)>"
        assert found.dtypes == [
            ("index", "bigint"), ("place", "int"), ("time", "timestamp"), ("kind", "string"),
            ("key", "binary"), ("value", value), ("previous", value),
        ]  # fmt: skip
        assert found.where("kind = 'snapshot'").count() == found.count() == 100
        table.put_rows(row_of(number, "2.00") for number in range(50, 150))
        table.delete_row(DAY, 0)
        run()
        commits = sorted((checkpoint / "commits").glob("[0-9]*"), key=lambda each: int(each.name))
        commits[-1].unlink()
        (checkpoint / "commits" / f".{commits[-1].name}.crc").unlink()
        table.delete_row(DAY, 1)
        found = run()
        counts = {row.kind: row["count"] for row in found.groupBy("kind").count().collect()}
        assert counts == {"snapshot": 100, "update": 50, "insert": 50, "delete": 2}
        assert found.select("index", "place", "key").distinct().count() == 202
        cheaper = found.where("previous.price < value.price AND previous.id = value.id")
        assert cheaper.count() == 50
        [gone] = found.where("kind = 'delete' AND value.id = 1").collect()
        assert gone.value.asDict() == {**dict.fromkeys(SCHEMA.names), "day": DAY, "id": 1}
        assert gone.previous.size == 2**63 + 1
        last = max((checkpoint / "offsets").glob("[0-9]*"), key=lambda each: int(each.name))
        position = json.loads(last.read_text().splitlines()[-1])
        assert (position["table"], position["snapshot"]) == (table.number, 0)


def test_a_batch_has_a_change_soon(spark: Any, node: str, number: int, tmp_path: Path) -> None:
    """A query that runs on; many changes at once are read by its tasks."""
    found: list[Any] = []

    def keep(batch: Any, _: int) -> None:
        found.extend(batch.select("kind", "key").collect())

    with kelek.Table(node, number) as table:
        table.put(b"first", b"1")
        frame = changes(spark, node, str(number), keyFormat="utf8")
        assert [name for name, _ in frame.dtypes][-2:] == ["value", "range"]
        query = frame.writeStream.foreachBatch(keep).option(
            "checkpointLocation", str(tmp_path / "checkpoint")
        )
        query = query.start()
        try:
            for wanted in ("first", "second"):
                until_s = time.monotonic() + DEADLINE_S
                while wanted not in (row.key for row in found):
                    assert time.monotonic() < until_s
                    assert not query.awaitTermination(0.02)
                if wanted == "first":
                    table.put_many((f"k{it}", b"x" * 100) for it in range(20_000))
                    table.put(b"second", b"2")
        finally:
            query.stop()
    assert sorted((row.kind, row.key) for row in found) == sorted(
        [("snapshot", "first"), ("put", "second"), *(("put", f"k{it}") for it in range(20_000))]
    )


def test_a_batch_cannot_be_read(spark: Any, node: str) -> None:
    given = {"kind": "changes", "urls": node, "table": "7"}
    with pytest.raises(Exception, match=r"can't be read as a batch; use spark\.readStream"):
        spark.read.format("kelek").options(**given).load().count()
