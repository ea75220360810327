"""Tables of the catalogue as they were: VERSION AS OF and TIMESTAMP AS OF."""

from typing import Any

import pytest

import kelek

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")


@pytest.fixture
def past(catalogue: Any, node: str, name: str) -> tuple[str, list[kelek.KeptSnapshot]]:
    """A table that is empty now; a thousand rows as of the first of two kept snapshots."""
    with kelek.Table(node, name, timeout_ms=60_000) as table:
        table.declare("shop utf8, n int64, v int64", key=["shop", "n"])
        table.put_rows({"shop": f"s{n % 4}", "n": n, "v": 1} for n in range(1000))
        kept = [table.keep_snapshot(name="first")]
        table.declare("shop utf8, n int64, v int64, note utf8", key=["shop", "n"])
        table.put_rows({"shop": f"s{n % 4}", "n": n, "v": 2, "note": "x"} for n in range(300))
        kept.append(table.keep_snapshot())
        table.truncate()
    return f"kelek.{name}", kept


def test_sql_reads_kept_snapshots(
    catalogue: Any, node: str, past: tuple[str, list[kelek.KeptSnapshot]]
) -> None:
    table, (first, second) = past

    def totals(clause: str) -> tuple[int, ...]:
        asked = f"SELECT count(*), sum(v), count(note) FROM {table} {clause}"
        return tuple(catalogue.sql(asked).first())

    for clause in (f"VERSION AS OF {first.index}", "VERSION AS OF 'first'"):
        assert totals(clause) == (1000, 1000, 0)
    assert totals(f"VERSION AS OF {second.index}") == (1000, 1300, 300)
    for kept, found in ((first, (1000, 1000, 0)), (second, (1000, 1300, 300))):
        assert totals(f"TIMESTAMP AS OF '{kept.taken.isoformat()}'") == found
    assert totals("TIMESTAMP AS OF '2999-01-01'") == (1000, 1300, 300)
    at = f"VERSION AS OF {first.index}"
    assert catalogue.sql(f"SELECT count(*) FROM {table} {at}").first()[0] == 1000
    rows = catalogue.sql(f"SELECT v FROM {table} {at} WHERE shop = 's1' AND n IN (1, 5, 2)")
    assert [row.v for row in rows.collect()] == [1, 1]
    assert f"as of {first.index} [1 keys]" in catalogue.sql(
        f"EXPLAIN SELECT * FROM {table} {at} WHERE shop = 's1' AND n = 1"
    ).first()[0]  # fmt: skip
    changed = f"""SELECT count(*) FROM {table} {at} a JOIN {table} VERSION AS OF {second.index} b
        ON a.shop = b.shop AND a.n = b.n WHERE a.v <> b.v"""
    assert catalogue.sql(changed).first()[0] == 300


def test_options_read_kept_snapshots(
    catalogue: Any, past: tuple[str, list[kelek.KeptSnapshot]]
) -> None:
    table, (first, second) = past
    assert catalogue.read.option("asOfIndex", first.index).table(table).count() == 1000
    earlier = catalogue.read.option("versionAsOf", first.index).table(table)
    assert earlier.where("v = 1").count() == 1000
    later = catalogue.read.option("asOfTimestamp", second.taken.isoformat()).table(table)
    assert later.where("v = 2").count() == 300
    assert catalogue.sql(f"SELECT * FROM {table} WITH (asOfIndex {first.index})").count() == 1000


@pytest.mark.parametrize(
    ("clause", "text"),
    [
        ("VERSION AS OF 7", "has index 7; these are kept: {0} (first, 20"),
        ("VERSION AS OF 'second'", "has the name second; these are kept: {0} (first, 20"),
        ("VERSION AS OF '7-8'", "begins with a letter or _, not '7-8'"),
        ("TIMESTAMP AS OF '2001-01-01'", "was taken at 2001-01-01T"),
        ("VERSION AS OF {0} WITH (asOfIndex 7)", "VERSION or TIMESTAMP AS OF is given, too"),
        ("WITH (asOfIndex 7)", "has index 7; these are kept: {0} (first"),
        (
            "WITH (asOfIndex 7, asOfTimestamp '2001-01-01T00:00:00Z')",
            "asOfIndex and asOfTimestamp are both given",
        ),
    ],
)
def test_what_is_not_kept_is_told_with_what_is(
    catalogue: Any, past: tuple[str, list[kelek.KeptSnapshot]], clause: str, text: str
) -> None:
    table, (first, _) = past
    with pytest.raises(Exception) as error:
        catalogue.sql(f"SELECT * FROM {table} {clause.format(first.index)}").collect()
    assert text.format(first.index) in str(error.value)


def test_a_catalogue_is_of_the_present(catalogue: Any, node: str) -> None:
    catalogue.conf.set("spark.sql.catalog.past", "kelek.spark.KelekCatalog")
    catalogue.conf.set("spark.sql.catalog.past.urls", node)
    catalogue.conf.set("spark.sql.catalog.past.asOfIndex", "7")
    with pytest.raises(Exception, match="option asOfIndex is for a query, not for "):
        catalogue.sql("SHOW TABLES IN past").collect()
