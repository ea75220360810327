"""The catalogue in Spark: what a query reads by it equals what it reads from Parquet files."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import kelek

pytest.importorskip("pyspark")
pa = pytest.importorskip("pyarrow")
snapshot = pytest.importorskip("kelek.pipeline.table.snapshot")
pytest.importorskip("pyarrow.parquet")

SHOPS = ("", "a", "a\0", "a\0b", "ab", "abc", "b", "ä", "ﬀ", "\U0001f600", "z%_")
NUMBERS = (-(2**63), -7, -1, 0, 1, 2, 3, 250, 251, 2**63 - 1)
FILTERS = (
    "shop = 'a'",
    "shop IN ('a', 'ä', 'nothing', 'a')",
    "shop = 'ab' AND n = 3",
    "shop IN ('a', 'ab') AND n IN (0, 1, 99)",
    "shop = '' AND n > 0",
    "shop < 'ab'",
    "shop <= 'ab'",
    "shop > 'ab'",
    "shop >= 'ab'",
    "shop BETWEEN 'a' AND 'b'",
    "shop BETWEEN 'b' AND 'a'",
    "shop LIKE 'a%'",
    "shop LIKE '%b'",
    "shop LIKE 'z\\\\%%'",
    "startswith(shop, 'ä')",
    "shop <> 'a'",
    "NOT shop LIKE 'a%'",
    "NOT (shop = 'a' OR shop > 'b')",
    "shop = 'a' OR n = 1",
    "shop = 'a' OR shop = 'b'",
    "(shop = 'a' AND n < 2) OR (shop = 'b' AND n > 2)",
    "NOT (shop = 'a' AND n < 2)",
    "NOT (shop = 'a' AND v > 0)",
    "shop = 'a' AND v IS NULL",
    "shop = 'a' AND (v > 0 OR note IS NULL)",
    "shop > 'a' OR v IS NULL",
    "shop IS NULL",
    "shop IS NOT NULL AND n < 0",
    "shop = NULL",
    "NOT (shop = NULL)",
    "shop NOT IN ('a', NULL)",
    "shop IN ('a', NULL)",
    "shop <=> 'a'",
    "n = 3",
    "n > 250 AND n < 250",
    "shop = 'a' AND n = 9223372036854775807",
    "shop = 'a' AND n > 9223372036854775807",
    "shop = 'a' AND n >= -9223372036854775808",
    "shop = 'a' AND n % 7 > 1",
    "shop = 'a' AND try_cast(n AS INT) = 3",
    "shop = 'a' AND n = 2.0",
    "shop = 'a' AND n > 1.5",
    "upper(shop) = 'A'",
    "shop = upper('A')",
    "shop = note",
    "shop COLLATE UTF8_LCASE = 'A'",
    "'ab' > shop",
    "length(shop) = 1",
    "true",
    "false",
)


@pytest.fixture(scope="module")
def rows(catalogue: Any, node: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The same rows as the tables kelek.filtered and `files`; yields kelek's."""
    made = [
        {
            "shop": shop,
            "n": n,
            "v": None if place % 3 == 0 else place / 2 - 5,
            "note": None if place % 5 == 0 else shop * (place % 3),
        }
        for place, (shop, n) in enumerate((shop, n) for shop in SHOPS for n in NUMBERS)
    ]
    with kelek.Table(node, "filtered", timeout_ms=60_000) as table:
        schema = table.declare("shop utf8, n int64, v float64, note utf8", key=["shop", "n"])
        table.put_rows(made)
        path = str(tmp_path_factory.mktemp("rows") / "rows.parquet")
        pa.parquet.write_table(pa.Table.from_pylist(made, schema.arrow), path)
        catalogue.read.parquet(path).createOrReplaceTempView("files")
        yield "kelek.filtered"
        table.drop()


def queries(table: str, filters: Sequence[str], columns: str = "*") -> str:
    """All filters in one query: a query of its own for each would take Spark a minute."""
    parts = (
        f"SELECT {place} AS filter, {columns} FROM {table} WHERE {text}"
        for place, text in enumerate(filters)
    )
    return " UNION ALL ".join(parts)


def found(spark: Any, query: str) -> list[str]:
    return sorted(str(tuple(row)) for row in spark.sql(query).collect())


def plan(spark: Any, query: str) -> str:
    text: str = spark.sql(f"EXPLAIN {query}").collect()[0][0]
    return text


def test_each_filter_leaves_the_rows_of_parquet(catalogue: Any, rows: str) -> None:
    quick = {"spark.sql.codegen.wholeStage": "false", "spark.sql.adaptive.enabled": "false"}
    for key, value in quick.items():  # Spark would compile and plan each filter for long.
        catalogue.conf.set(key, value)
    try:
        ours, theirs = (found(catalogue, queries(table, FILTERS)) for table in (rows, "files"))
    finally:
        for key in quick:
            catalogue.conf.unset(key)
    assert ours == theirs
    assert len(ours) > 10 * len(FILTERS)


def test_aggregates_of_filters_are_those_of_parquet(catalogue: Any, rows: str) -> None:
    columns = "count(*), min(shop), max(shop), count(n)"
    some = ("true", "shop = NULL", "shop <> 'a'", "shop = 'a' AND n IN (0, 1)", "n > 2")
    ours, theirs = (found(catalogue, queries(table, some, columns)) for table in (rows, "files"))
    assert ours == theirs


@pytest.mark.parametrize(
    ("query", "read", "left"),
    [
        ("SELECT * FROM {} WHERE shop = 'a' AND n IN (1, 2)", "[2 keys]", False),
        ("SELECT * FROM {} WHERE shop = 'a'", "[keys from 0x610000 to 0x610001]", False),
        ("SELECT * FROM {} WHERE shop = 'a' AND v > 0", "[keys from 0x610000", True),
        ("SELECT * FROM {} WHERE shop <> 'a'", "[2 ranges of keys]", False),
        ("SELECT * FROM {} WHERE n = 1", "[all keys]", True),
        ("SELECT count(*) FROM {}", "[all keys, COUNT(*)]", False),
        ("SELECT max(shop) FROM {} WHERE shop < 'b'", "0x620000, MAX(shop)]", False),
        ("SELECT max(n) FROM {}", "[all keys]", False),
        ("SELECT count(*) FROM {} WHERE v > 0", "[all keys]", True),
        ("SELECT count(DISTINCT shop) FROM {}", "[all keys]", False),
        ("SELECT * FROM {} LIMIT 3", "[all keys, limit 3]", False),
        ("SELECT * FROM {} WHERE v > 0 LIMIT 3", "[all keys]", True),
        ("SELECT * FROM {} LIMIT 1000000", "[all keys]", False),
    ],
)
def test_explain_says_what_is_pushed(
    catalogue: Any, rows: str, query: str, read: str, left: bool
) -> None:
    text = plan(catalogue, query.format(rows))
    assert f"{rows} {read}" in text or read in text
    assert ("Filter (" in text) == left, text


def test_columns_limits_and_values(catalogue: Any, rows: str) -> None:
    for query in (
        "SELECT note FROM {} WHERE v > 1",
        "SELECT 1 FROM {}",
        "SELECT n, shop FROM {} WHERE n BETWEEN -1 AND 1",
        "SELECT a.shop, b.v FROM {0} a JOIN {0} b ON a.n = b.n AND a.shop = b.note",
        "SELECT shop, sum(v) FROM {} GROUP BY shop HAVING count(note) > 3",
        "SELECT sum(n % 7), count(v), min(note), max(n) FROM {} WHERE shop >= 'a'",
    ):
        assert found(catalogue, query.format(rows)) == found(catalogue, query.format("files"))
    assert len(catalogue.sql(f"SELECT * FROM {rows} LIMIT 7").collect()) == 7
    assert catalogue.table(rows).limit(0).collect() == []


def test_some_columns_of_rows_with_nulls_and_added_columns(
    catalogue: Any, node: str, name: str
) -> None:
    """A row that was written before a column has null in it; the columns in front are skipped."""
    with kelek.Table(node, name, timeout_ms=60_000) as table:
        table.declare("n int64, text utf8, some list<int64>, v int64", key=["n"])
        table.put_rows(
            {
                "n": n,
                "text": None if n % 3 == 0 else "x" * n,
                "some": None if n % 4 == 0 else [*range(n % 20)],
                "v": None if n % 5 == 0 else -n,
            }
            for n in range(600)
        )
        more = "n int64, text utf8, some list<int64>, v int64, last float64, ok bool"
        table.declare(more, key=["n"])
        table.put_rows({"n": n, "v": n, "ok": n % 2 == 0} for n in range(600, 700))
    query = (
        f"SELECT count(v), sum(v), count(last), count(ok), sum(CAST(ok AS INT)) FROM kelek.{name}"
    )
    v = [-n for n in range(600) if n % 5] + [*range(600, 700)]
    assert found(catalogue, query) == [str((len(v), sum(v), 0, 100, 50))]
    query = f"SELECT n FROM kelek.{name} WHERE v IS NULL AND size(some) = 19 AND ok IS NULL"
    assert len(found(catalogue, query)) == len(
        [n for n in range(600) if n % 5 == 0 and n % 4 and n % 20 == 19]
    )


def test_statistics_are_of_the_read(catalogue: Any, rows: str) -> None:
    whole, part = (
        plan(catalogue, f"COST SELECT * FROM {rows} {where}")
        for where in ("", "WHERE shop = 'a' AND n = 1")
    )
    assert "sizeInBytes=6.9 KiB" in whole  # 110 rows of 64 bytes, as Spark estimates columns.
    assert "sizeInBytes=64.0 B" in part


def test_a_query_reads_the_table_as_it_is(catalogue: Any, node: str, name: str) -> None:
    """Also a frame whose plan Spark keeps; and all parts of one query read the same state."""
    with kelek.Table(node, name, timeout_ms=60_000) as table:
        table.declare("n int64, v int64", key=["n"])
        table.put_rows([{"n": n, "v": 0} for n in range(10)])
        frame = catalogue.table(f"kelek.{name}")
        counted = frame.agg({"*": "count", "n": "max"})
        some = frame.where("n >= 8")
        assert [len(frame.collect()), frame.count(), len(some.collect())] == [10, 10, 2]
        assert counted.collect()[0][:] == (10, 9)
        table.put_rows([{"n": n, "v": 1} for n in range(5, 20)])
        assert [len(frame.collect()), frame.count(), len(some.collect())] == [20, 20, 12]
        assert sum(row.v for row in frame.collect()) == 15
        table.delete_range()
        assert [len(frame.collect()), frame.count(), len(some.collect())] == [0, 0, 0]


def test_counts_are_exact(catalogue: Any, node: str, name: str) -> None:
    """Behind deletes, of single keys and of a range, keys that expire, and over no rows."""
    with kelek.Table(node, name, timeout_ms=60_000) as table:
        schema = table.declare("n int64, v int64", key=["n"])
        frame = catalogue.table(f"kelek.{name}")
        ends = frame.selectExpr("max(n)", "count(*)")  # No shuffle, whose rows Spark would keep.
        assert [frame.count(), *ends.collect()[0]] == [0, None, 0]
        table.put_rows([{"n": n, "v": n} for n in range(3000)])
        for n in (0, 7, 2999):
            table.delete_row(n)
        assert [frame.count(), *ends.collect()[0]] == [2997, 2998, 2997]
        assert frame.where("n BETWEEN 5 AND 9").count() == 4
        assert frame.where("n > 5 AND n < 5").count() == 0
        assert frame.where("n > 5000").count() == 0
        assert frame.where("n IN (1, 7, 8, 5000)").count() == 2
        table.delete_range(start=schema.key(1000), end=schema.key(2000))
        assert [frame.count(), *ends.collect()[0]] == [1997, 2998, 1997]
        assert frame.where("n >= 990 AND n < 2010").count() == 20
        before = table.put(schema.key(1), table.get(schema.key(1)))
        table.put_rows([{"n": n} for n in range(9000, 9010)], ttl_s=0.2)
        kinds = (change.kind for change in table.watch(after=before))
        assert len([*islice((kind for kind in kinds if kind != "put"), 10)]) == 10
        assert [frame.count(), *ends.collect()[0]] == [1997, 2998, 1997]
        wire = catalogue.read.option("local", "off").table(f"kelek.{name}")
        assert [wire.count(), wire.where("n < 50").count()] == [1997, 48]


def test_counts_while_another_client_writes(catalogue: Any, node: str, name: str) -> None:
    """All parts of a query see one state. Each transaction moves a row."""
    with kelek.Table(node, name, timeout_ms=60_000) as table:
        schema = table.declare("n int64", key=["n"])
        table.put_rows([{"n": n} for n in range(500)])
        row = table.get(schema.key(0))
        stopped = Event()

        def move() -> None:
            with kelek.Table(node, name, timeout_ms=60_000) as other:
                for n in cycle(range(500)):
                    if stopped.is_set():
                        return
                    there, away = (schema.key(n + it) for it in (0, 100_000))
                    if other.get(there) is None:
                        there, away = away, there
                    other.commit(other.batch().delete(there).put(away, row))

        with ThreadPoolExecutor(1) as pool:
            moving = pool.submit(move)
            try:
                query = f"""SELECT count(*), (SELECT count(*) FROM kelek.{name} WHERE n < 100000),
                            (SELECT count(*) FROM kelek.{name} WHERE n >= 100000)
                            FROM kelek.{name}"""
                for _ in range(3):
                    whole, low, high = catalogue.sql(query).collect()[0]
                    assert whole == low + high == 500
            finally:
                stopped.set()
            moving.result()


def test_a_count_of_a_small_table_is_one_task(catalogue: Any, rows: str) -> None:
    assert "Exchange" not in plan(catalogue, f"SELECT count(*) FROM {rows} WHERE shop <> 'a'")
    assert "Exchange" in plan(catalogue, f"SELECT sum(n) FROM {rows}")
    assert found(catalogue, f"SELECT count(*) FROM {rows} LIMIT 0") == []
    assert found(catalogue, f"SELECT count(*) FROM {rows} LIMIT 1") == ["(110,)"]


def test_the_driver_finds_the_snapshot_of_a_query(catalogue: Any, node: str, rows: str) -> None:
    """It renews what the notes with its prefix name (table/driver_renewal.py)."""
    from kelek.pipeline.table.driver_renewal import renewal_of

    prefix = snapshot.driver_prefix(catalogue.conf.get(name) for name in snapshot.DRIVER)
    with kelek.Table(node, snapshot.NOTES, timeout_ms=60_000) as notes:
        before = set(notes.keys(prefix=prefix))
        assert catalogue.table(rows).where("v > 0").count()
        [note] = set(notes.keys(prefix=prefix)) - before
        assert snapshot.noted(notes.get(note))
    targets = [path.read_text() for path in Path(renewal_of(catalogue).folder).iterdir()]
    assert any(node in target for target in targets)


def test_a_frame_that_spark_keeps(catalogue: Any, node: str, name: str) -> None:
    """Spark keeps what a shuffle has brought with the frame, of any source."""
    with kelek.Table(node, name, timeout_ms=60_000) as table:
        table.declare("n int64", key=["n"])
        table.put_rows([{"n": n} for n in range(3)])
        frame = catalogue.table(f"kelek.{name}")
        counted = frame.groupBy("n").count()
        cached = catalogue.read.option("snapshot", "frame").table(f"kelek.{name}").cache()
        assert [len(counted.collect()), cached.count()] == [3, 3]
        table.put_rows([{"n": n} for n in range(10)])
        assert [len(counted.collect()), cached.count(), frame.count()] == [3, 3, 10]
        cached.unpersist()
