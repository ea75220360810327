"""SQL alone: tables of Spark's catalog, whose options Spark gives only when it makes them."""

from collections.abc import Iterator
from typing import Any

import pytest

import kelek
from kelek.tests.pipeline.table.test_read import loaded

OPTIONS = "kind 'table', urls '{}', table '{}', keyFormat 'utf8', valueFormat 'json', {}"
INT = "valueSchema 'INT'"
QUOTED = r"""valueSchema 'n INT, `it''s` STRING', keys '["a", "it\'s", "\\\\"]'"""


@pytest.fixture
def sql(spark: Any) -> Iterator[Any]:
    """Asks Spark; its tables `made` and `other` go afterwards."""
    yield lambda text: [tuple(row) for row in spark.sql(text).collect()]
    for name in ("made", "other"):
        spark.sql(f"DROP TABLE IF EXISTS {name}")


def test_a_table_of_the_catalog_is_read_and_written(sql: Any, node: str, number: int) -> None:
    given = OPTIONS.format(node, number, INT)
    write = OPTIONS.format(node, number, "sync 'fullsync'")
    sql(f"CREATE TABLE made USING kelek OPTIONS ({given})")
    sql(f"INSERT INTO made WITH ({write}) VALUES ('a', 1), ('b', 2)")
    assert sql("SELECT key, value FROM made ORDER BY key") == [("a", 1), ("b", 2)]
    sql(f"INSERT OVERWRITE made WITH ({write}) VALUES ('c', 3)")
    assert sql("SELECT * FROM made") == [("c", 3)]
    assert sql("SELECT * FROM made WITH (prefix 'd')") == []


def test_a_write_without_options_takes_those_of_no_other_table(
    spark: Any, sql: Any, node: str, number: int
) -> None:
    """Spark gives it the columns of what is read, with their comments."""
    sql(f"CREATE TABLE made USING kelek OPTIONS ({OPTIONS.format(node, number, INT)})")
    sql(f"CREATE TABLE other USING kelek OPTIONS ({OPTIONS.format(node, number + 500, INT)})")
    with kelek.Table(node, number) as table:
        table.put(b"a", b"1")
    for text in (
        "INSERT INTO other SELECT * FROM made",
        "INSERT INTO made VALUES ('b', 2)",
        "CREATE TABLE third USING kelek OPTIONS (kind 'table') AS SELECT * FROM made",
    ):
        with pytest.raises(Exception, match=r"use INSERT INTO t WITH \(kind"):
            sql(text)
    with kelek.Table(node, number) as table:
        assert list(table.scan()) == [(b"a", b"1")]
    rows = spark.table("made")
    loaded_options = {"kind": "table", "urls": node, "table": number + 500, "keyFormat": "utf8"}
    rows.selectExpr("key", "CAST(value AS STRING) AS value").write.format("kelek").mode(
        "append"
    ).options(**loaded_options, valueFormat="utf8").save()
    assert [tuple(row) for row in loaded(spark, node, number + 500).collect()] == [(b"a", b"1")]


def test_options_of_any_text_are_kept(sql: Any, node: str, number: int) -> None:
    with kelek.Table(node, number) as table:
        table.put(b"a", b'{"n": 1, "it\'s": "x"}')
        table.put_many((key, b"{}") for key in (b"it's", b"\\", b"b"))
    sql(f"CREATE TABLE made USING kelek OPTIONS ({OPTIONS.format(node, number, QUOTED)})")
    found = sql("SELECT key, value.n, value.`it's` FROM made ORDER BY key")
    assert found == [("\\", None, None), ("a", 1, "x"), ("it's", None, None)]


def test_invalid_tables_are_reported(sql: Any, node: str, number: int) -> None:
    given = OPTIONS.format(node, number, INT)
    with pytest.raises(Exception, match="unknown option 'kyformat'; did you mean keyFormat"):
        sql(f"CREATE TABLE made USING kelek OPTIONS ({given}, kyFormat 'utf8')")
    sql(f"CREATE TABLE made (key STRING, value INT) USING kelek OPTIONS ({given})")
    with pytest.raises(Exception, match=r"write CREATE TABLE .. USING kelek .* without columns"):
        sql("SELECT * FROM made")
