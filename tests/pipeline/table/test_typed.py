"""Tables with a schema in Spark: columns, ranges, writes, and the queries of TPC-H."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import count
from typing import Any

import pytest

import kelek
from kelek.tests.pipeline.table.tpch import QUERIES, TABLES, rows_of

pytest.importorskip("pyspark")
pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.parquet")
pipeline_errors = pytest.importorskip("kelek.pipeline.errors")
table_kind = pytest.importorskip("kelek.pipeline.table.kind")

NAMES = count()
COLUMNS = (
    "shop utf8, day date32, price decimal(9, 2), at timestamp(us, UTC), here timestamp(ms), "
    "small uint16, big uint64, raw binary, ok bool, "
    "tags list<struct<n int32, d date32>>, words map<utf8, float64>"
)
SPARK_COLUMNS = (
    "shop STRING, day DATE, price DECIMAL(9,2), tags ARRAY<STRUCT<n: INT, d: DATE>>, "
    "words MAP<STRING, DOUBLE>"
)
ROWS: list[dict[str, Any]] = [
    {
        "shop": f"s{place % 3}", "day": date(2026, 1, 1 + place), "price": Decimal(place) / 4,
        "at": datetime(2026, 1, 1, place, tzinfo=UTC), "here": datetime(2026, 1, 1, place),
        "small": 65535, "big": 2**64 - 1, "raw": b"\0" * place, "ok": place % 2 == 0,
        "tags": [{"n": place, "d": date(2026, 1, 1)}, None], "words": {"a": place / 2},
    }
    for place in range(20)
]  # fmt: skip


@pytest.fixture
def name() -> str:
    return f"typed{next(NAMES)}"


@pytest.fixture
def filled(node: str, name: str) -> Iterator[str]:
    with kelek.Table(node, name, timeout_ms=60_000) as table:
        table.declare(COLUMNS, key=["shop", "day"])
        table.put_rows(ROWS)
    yield name
    with kelek.Table(node, name, timeout_ms=60_000) as table:
        table.drop()


def loaded(spark: Any, node: str, name: str, **options: Any) -> Any:
    reader = spark.read.format("kelek").options(kind="table", urls=node, table=name)
    return reader.options(**options).load()


@pytest.mark.parametrize("local", ["auto", "off"])
def test_a_schema_gives_the_columns(spark: Any, node: str, filled: str, local: str) -> None:
    frame = loaded(spark, node, filled, local=local)
    assert frame.schema.simpleString() == (
        "struct<shop:string,day:date,price:decimal(9,2),at:timestamp,here:timestamp_ntz,small:int,"
        "big:decimal(20,0),raw:binary,ok:boolean,tags:array<struct<n:int,d:date>>,"
        "words:map<string,double>>"
    )
    assert frame.count() == 20
    row = frame.where("day = DATE '2026-01-05'").drop("at").collect()[0].asDict(recursive=True)
    wanted = {**ROWS[4], "raw": bytearray(4), "big": Decimal(2**64 - 1)}
    del wanted["at"]
    assert row == wanted
    assert frame.selectExpr("unix_seconds(max(at))").collect()[0][0] == 1767294000
    some = loaded(spark, node, filled, columns="price,day", local=local)
    assert some.schema.simpleString() == "struct<price:decimal(9,2),day:date>"
    assert sorted(map(tuple, some.collect())) == sorted((it["price"], it["day"]) for it in ROWS)
    keys = loaded(spark, node, filled, columns="key", local=local)
    assert keys.schema.fieldNames() == ["shop", "day"]
    assert keys.count() == 20


def test_a_frame_keeps_its_columns(spark: Any, node: str, filled: str) -> None:
    frame = loaded(spark, node, filled)
    with kelek.Table(node, filled, timeout_ms=60_000) as table:
        table.declare(f"{COLUMNS}, more int32", key=["shop", "day"])
        table.put_rows([{**ROWS[0], "more": 7}])
    assert "more" not in frame.collect()[0].asDict()
    assert loaded(spark, node, filled).where("more = 7").count() == 1
    reader = spark.read.format("kelek").options(kind="table", urls=node, table=filled)
    assert reader.schema("price DECIMAL(9,2)").load().columns == ["price"]
    with pytest.raises(Exception, match=r"column price is int, the table's decimal\(9,2\)"):
        reader.schema("price INT").load().collect()
    with pytest.raises(Exception, match="the columns of this table are"):
        reader.schema("nothing INT").load().collect()


def test_a_range_by_key_columns_and_any_filter(spark: Any, node: str, filled: str) -> None:
    """What Spark filters is right whether it offers its filters to sources or not."""
    part = loaded(spark, node, filled, prefix='["s1"]')
    assert sorted(row.day for row in part.collect()) == [
        it["day"] for it in ROWS if it["shop"] == "s1"
    ]
    part = loaded(spark, node, filled, start='["s1", "2026-01-08"]', end='["s2", "2026-01-06"]')
    assert part.count() == sum(
        ("s1", date(2026, 1, 8)) <= (it["shop"], it["day"]) < ("s2", date(2026, 1, 6))
        for it in ROWS
    )
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    frame = loaded(spark, node, filled)
    one, two = frame.where("shop = 's1'"), frame.where("shop = 's2' AND day > DATE '2026-01-04'")
    assert one.union(two).count() == 7 + sum(
        it["shop"] == "s2" and it["day"].day > 4 for it in ROWS
    )
    assert frame.count() == 20
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_rows_are_written(spark: Any, node: str, name: str) -> None:
    frame = spark.createDataFrame(
        ROWS[:5],
        SPARK_COLUMNS,
    )
    sink = {"kind": "table", "urls": node, "table": name}
    writer = frame.write.format("kelek").mode("append").options(**sink)
    writer.option("keyColumns", '["shop", "day"]').save()
    with kelek.Table(node, name, timeout_ms=60_000) as table:
        schema = table.schema()
        assert schema is not None
        assert schema.keys == ("shop", "day")
        assert [row["price"] for row in table.rows()] == [Decimal(n) / 4 for n in (0, 3, 1, 4, 2)]
        row = table.get_row("s1", date(2026, 1, 2))
        assert row is not None
        assert row["tags"] == ROWS[1]["tags"]
    gone = frame.selectExpr("day", "shop", "day < DATE '2026-01-03' AS gone")
    gone.write.format("kelek").mode("append").options(**sink, deleteColumn="gone").save()
    found = loaded(spark, node, name)
    assert sorted(map(tuple, found.select("day", "price").collect())) == [
        (date(2026, 1, day), None) for day in (3, 4, 5)
    ]
    frame.limit(2).write.format("kelek").mode("overwrite").options(**sink).save()
    assert loaded(spark, node, name, columns="key").count() == 2
    for wrong, told in (
        (frame.drop("day"), "the columns lack day"),
        (frame.withColumn("more", frame.price), "the columns have more; table"),
    ):
        with pytest.raises(Exception, match=told):
            wrong.write.format("kelek").mode("append").options(**sink).save()
    with pytest.raises(Exception, match=r"the key of table .* is shop, day"):
        frame.write.format("kelek").mode("append").options(**sink, keyColumns='["day"]').save()


def plan(given: dict[str, str]) -> None:
    """What Spark's driver asks for before a query."""
    from pyspark.sql.types import StructType

    assert table_kind.KIND.schema(given)
    table_kind.KIND.reader(given, StructType())


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"columns": "x"}, "option columns: no x; there are shop, day"),
        ({"columns": "day,day"}, "names a column twice"),
        ({"prefix": "s1"}, "option prefix is a JSON list with values of the first key columns"),
        ({"prefix": '["s", "2026-01-01", 3]'}, "JSON list with values of the first"),
        ({"start": '["s", "2026-13-01"]'}, "'2026-13-01' is no date32"),
        ({"start": "[7]"}, "column shop is utf8, which 7 does not fit"),
        ({"keys": '["s"]'}, "tables with one key column; use prefix"),
        ({"mode": "FAILFAST"}, "options corruptColumn and mode are for keys and values"),
        ({"keyFormat": "utf8", "columns": "day"}, "option columns is all or key, not 'day'"),
    ],
)
def test_wrong_options_are_reported(
    node: str, filled: str, options: dict[str, str], told: str
) -> None:
    given = {"kind": "table", "urls": node, "table": filled, **options}
    with pytest.raises(kelek.Error, match=told):
        plan(given)


def test_bytes_of_a_typed_table(spark: Any, node: str, filled: str) -> None:
    frame = loaded(spark, node, filled, keyFormat="raw")
    assert frame.schema.simpleString() == "struct<key:binary,value:binary>"
    assert frame.count() == 20
    with kelek.Table(node, filled, timeout_ms=60_000) as table:
        table.put(b"junk", b"x")
    with pytest.raises(Exception, match="the row of key 0x6a756e6b is not of the table's schema"):
        loaded(spark, node, filled).collect()
    with kelek.Table(node, filled, timeout_ms=60_000) as table:
        table.delete(b"junk")


Answer = Callable[[str, str], Any]  # Of a query, by a source.


@pytest.fixture(scope="module")
def tpch(spark: Any, node: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answer]:
    """The tables of TPC-H in kelek and in Parquet files; returns what answers a query."""
    place = tmp_path_factory.mktemp("tpch")
    for name, (columns, key) in TABLES.items():
        with kelek.Table(node, f"tpch.{name}", timeout_ms=60_000) as table:
            schema = table.declare(columns, key=key)
            rows = rows_of(name, schema.arrow)
            assert table.put_rows(rows) == rows.num_rows
        pa.parquet.write_table(rows, place / f"{name}.parquet")

    def answer(query: str, source: str) -> Any:
        for name in TABLES:
            if source == "kelek":
                frame = loaded(spark, node, f"tpch.{name}")
            else:
                frame = spark.read.parquet(str(place / f"{name}.parquet"))
            frame.createOrReplaceTempView(name)
        return [tuple(row) for row in spark.sql(query).collect()]

    yield answer
    for name in TABLES:
        with kelek.Table(node, f"tpch.{name}", timeout_ms=60_000) as table:
            table.drop()


@pytest.mark.parametrize("query", QUERIES)
def test_tpch_answers_as_from_parquet(tpch: Answer, query: str) -> None:
    found = tpch(QUERIES[query], "kelek")
    assert found == tpch(QUERIES[query], "parquet")
    assert found
    assert any(value for row in found for value in row)
    assert json.dumps(found, default=str)
