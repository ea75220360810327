"""Writes by the catalogue: tables are made and changed by SQL, rows come and go."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

import kelek

pytest.importorskip("pyspark")

COLUMNS = (
    "shop STRING, day DATE, price DECIMAL(9,2), at TIMESTAMP, here TIMESTAMP_NTZ, small SMALLINT, "
    "x DOUBLE, raw BINARY, ok BOOLEAN, tags ARRAY<STRUCT<n: INT>>, words MAP<STRING, BIGINT>"
)
VALUES = (
    "'a', DATE'2026-01-02', 1.25, TIMESTAMP'2026-01-02 03:04:05Z', TIMESTAMP_NTZ'2026-01-02 03:04',"
    " 7S, 0.5D, X'00FF', true, array(named_struct('n', 1), NULL), map('ä', 5L)"
)


@pytest.fixture
def table(catalogue: Any, name: str) -> str:
    """A table with rows 0 to 9, in SQL."""
    full = f"kelek.{name}"
    catalogue.sql(f"CREATE TABLE {full} (n BIGINT, v STRING, PRIMARY KEY (n))")
    catalogue.sql(f"INSERT INTO {full} SELECT id, concat('v', id) FROM range(10)")
    return full


def numbers(spark: Any, table: str) -> list[int]:
    return [row[0] for row in spark.sql(f"SELECT n FROM {table} ORDER BY n").collect()]


def test_a_table_with_all_types(catalogue: Any, node: str, name: str) -> None:
    catalogue.sql(f"CREATE TABLE kelek.{name} ({COLUMNS}, PRIMARY KEY (shop, day))")
    found = {row.tableName for row in catalogue.sql("SHOW TABLES IN kelek").collect()}
    assert name in found
    catalogue.sql(f"INSERT INTO kelek.{name} VALUES ({VALUES})")
    catalogue.sql(f"INSERT INTO kelek.{name} (day, shop) VALUES (DATE'0001-01-01', 'b')")
    with kelek.Table(node, name, timeout_ms=60_000) as table:
        schema = table.schema()
        assert schema is not None
        assert schema.keys == ("shop", "day")
        one, two = table.rows()
    assert one == {
        "shop": "a", "day": date(2026, 1, 2), "price": Decimal("1.25"),
        "at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "here": datetime(2026, 1, 2, 3, 4),
        "small": 7, "x": 0.5, "raw": b"\0\xff", "ok": True, "tags": [{"n": 1}, None],
        "words": {"ä": 5},
    }  # fmt: skip
    assert {value for column, value in two.items() if column not in schema.keys} == {None}
    described = catalogue.sql(f"DESCRIBE kelek.{name}").collect()
    assert [row.col_name for row in described][:2] == ["shop", "day"]
    [row] = catalogue.sql(f"SELECT * FROM kelek.{name} WHERE shop = 'a'").collect()
    assert row.words == {"ä": 5}
    assert row.tags == [(1,), None]


def test_rows_are_written_again_and_deleted(catalogue: Any, table: str) -> None:
    frame = catalogue.range(5, 15).selectExpr("id AS n", "'new' AS v")
    frame.writeTo(table).append()
    frame.writeTo(table).append()  # As a repeated task does.
    assert numbers(catalogue, table) == [*range(15)]
    assert catalogue.table(table).where("v = 'new'").count() == 10
    catalogue.sql(f"DELETE FROM {table} WHERE n IN (0, 2, 99) OR n BETWEEN 5 AND 7")
    assert numbers(catalogue, table) == [1, 3, 4, *range(8, 15)]
    catalogue.sql(f"DELETE FROM {table} WHERE n > 20 OR n < -5")
    assert len(numbers(catalogue, table)) == 10
    catalogue.sql(f"TRUNCATE TABLE {table}")
    assert numbers(catalogue, table) == []
    catalogue.sql(f"INSERT INTO {table} SELECT id, NULL FROM range(200000)")  # Several batches.
    assert catalogue.sql(f"SELECT count(*), sum(n) FROM {table}").first()[:] == (
        200_000,
        sum(range(200_000)),
    )
    catalogue.sql(f"DELETE FROM {table}")
    assert numbers(catalogue, table) == []


def test_tables_are_changed(catalogue: Any, node: str, table: str, name: str) -> None:
    catalogue.sql(f"ALTER TABLE {table} ADD COLUMNS (more INT, last DATE)")
    catalogue.sql(f"INSERT INTO {table} VALUES (10, 'x', 4, NULL)")
    rows = catalogue.sql(f"SELECT n, more, last FROM {table} WHERE n > 8 ORDER BY n").collect()
    assert [tuple(row) for row in rows] == [(9, None, None), (10, 4, None)]
    for change in ("RENAME COLUMN v TO w", "DROP COLUMN v", "ADD COLUMN c INT FIRST"):
        with pytest.raises(Exception, match="only adds columns"):
            catalogue.sql(f"ALTER TABLE {table} {change}")
    catalogue.sql(f"ALTER TABLE {table} RENAME TO shop.{name}")
    assert catalogue.sql("SHOW TABLES IN kelek.shop").collect()[0].tableName == name
    assert numbers(catalogue, f"kelek.shop.{name}") == [*range(11)]
    catalogue.sql(f"DROP TABLE kelek.shop.{name}")
    with kelek.Table(node, f"shop.{name}", timeout_ms=60_000) as dropped:
        assert dropped.locate() is None
    catalogue.sql(f"DROP TABLE IF EXISTS kelek.shop.{name}")
    with pytest.raises(Exception, match="TABLE_OR_VIEW_NOT_FOUND"):
        catalogue.sql(f"DROP TABLE kelek.shop.{name}")


def test_a_table_from_a_query(catalogue: Any, name: str) -> None:
    query = f"CREATE TABLE kelek.{name} TBLPROPERTIES ('key' = 'n, v') AS SELECT"
    catalogue.sql(f"{query} id AS n, 'x' AS v, id / 2 AS half FROM range(7)")
    found = catalogue.sql(f"SELECT * FROM kelek.{name} WHERE n = 5").collect()
    assert [tuple(row) for row in found] == [(5, "x", 2.5)]
    with pytest.raises(Exception, match="TABLE_OR_VIEW_ALREADY_EXISTS"):
        catalogue.sql(f"{query} 1L AS n, 'x' AS v")


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("CREATE TABLE {0}x (n INT)", r"a table needs a key: PRIMARY KEY \(a, b\)"),
        ("CREATE TABLE {0}x (n INT, PRIMARY KEY (n)) TBLPROPERTIES ('b' = '1')", "property 'b'"),
        ("CREATE TABLE {0}x (n INT) TBLPROPERTIES ('key' = 'z')", "key: no column z"),
        ("CREATE TABLE {0}x (n ARRAY<INT>) TBLPROPERTIES ('key' = 'n')", "which has no order"),
        ("CREATE TABLE {0}x (n INT, PRIMARY KEY (n)) PARTITIONED BY (n)", "PARTITIONED BY"),
        ("CREATE TABLE {0}x (n INT, PRIMARY KEY (n), UNIQUE (n))", "only constraint"),
        ("CREATE TABLE kelek.`77` (n INT, PRIMARY KEY (n))", "77 is a number"),
        ("INSERT INTO {0} VALUES (NULL, 'x')", "NOT_NULL_ASSERT_VIOLATION|key column|is null"),
        ("UPDATE {0} SET n = NULL", "NOT_NULL_ASSERT_VIOLATION|is null"),
    ],
)
def test_what_is_refused(catalogue: Any, table: str, statement: str, told: str) -> None:
    with pytest.raises(Exception, match=told):
        catalogue.sql(statement.format(table))
    assert numbers(catalogue, table) == [*range(10)]


def test_a_value_that_does_not_fit_fails_the_write(catalogue: Any, node: str, name: str) -> None:
    with kelek.Table(node, name, timeout_ms=60_000) as table:
        table.declare("n int64, small uint8, v utf8", key=["n"])
    rows = catalogue.range(100_000).selectExpr(
        "id AS n", "CAST(300 AS SMALLINT) AS small", "'' AS v"
    )
    with pytest.raises(Exception, match="column small is uint8, which 300 does not fit"):
        rows.writeTo(f"kelek.{name}").append()
    assert catalogue.table(f"kelek.{name}").count() == 0


def test_a_table_of_bytes(catalogue: Any, node: str, number: int) -> None:
    with kelek.Table(node, number, timeout_ms=60_000) as table:
        table.put_many([(b"a", b"1"), (b"a\0", b"2"), (b"b", b"3")])
        frame = catalogue.table(f"kelek.`{number}`")
        assert frame.schema.simpleString() == "struct<key:binary,value:binary>"
        assert frame.where("key > X'61'").count() == 2
        for columns in (["value"], ["key"], ["value", "key"]):
            rows = frame.where("key = X'6100'").select(*columns).collect()
            assert [len(row) for row in rows] == [len(columns)]
        frame.selectExpr("concat(key, X'78') AS key", "value").writeTo(f"kelek.`{number}`").append()
        assert dict(table.scan())[b"bx"] == b"3"
