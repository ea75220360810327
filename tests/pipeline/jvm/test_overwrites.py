"""INSERT OVERWRITE: readers see the old rows or the new ones, also when processes are killed."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kelek
from kelek.tests.pipeline.jvm.test_deltas import add_hooks

pytest.importorskip("pyspark")
overwrites = pytest.importorskip("kelek.pipeline.jvm.overwrites")

ROWS = 100
MANY = 9000  # More than one transaction holds.


@pytest.fixture
def table(catalogue: Any, node: str, name: str) -> str:
    with kelek.Table(node, name, timeout_ms=60_000) as made:
        made.declare("n int64, v utf8", key=["n"])
        made.put_rows({"n": n, "v": "old"} for n in range(ROWS))
    return f"kelek.{name}"


def rows(spark: Any, table: str) -> dict[int, str]:
    return {row.n: row.v for row in spark.table(table).collect()}


def staging(url: str) -> list[str]:
    """Staging tables and old rows."""
    with kelek.Table(url, 0, timeout_ms=60_000) as table:
        return sorted({*table.names()} - {*overwrites.without_own(table.names())})


def new_rows(spark: Any, count: int) -> Any:
    return spark.range(count).selectExpr("id * 2 AS n", "'new' AS v")


def test_rows_replace_others(catalogue: Any, node: str, name: str, table: str) -> None:
    """In one transaction: clients that have the table open, and their watches, see it."""
    from pyspark.sql.functions import col

    with kelek.Table(node, name, timeout_ms=60_000) as client:
        number = client.locate()
        catalogue.sql(f"INSERT OVERWRITE {table} SELECT id * 2, 'new' FROM range(10)")
        assert rows(catalogue, table) == dict.fromkeys(range(0, 20, 2), "new")
        assert client.count() == 10
        catalogue.sql(f"INSERT OVERWRITE {table} SELECT n, concat(v, v) FROM {table} WHERE n > 4")
        assert rows(catalogue, table) == dict.fromkeys(range(6, 20, 2), "newnew")
        frame = catalogue.sql("SELECT 7L AS n, 'part' AS v")
        frame.writeTo(table).overwrite((col("n") < 10) | (col("n") == 18))
        some = dict.fromkeys((10, 12, 14, 16), "newnew") | {7: "part"}
        assert rows(catalogue, table) == some
        with pytest.raises(Exception, match=r"Cannot overwrite|first key columns alone"):
            frame.writeTo(table).overwrite(col("v") == "part")
        with pytest.raises(Exception, match="more than one transaction holds"):
            new_rows(catalogue, MANY).writeTo(table).overwritePartitions()
        assert rows(catalogue, table) == some
        frame.writeTo(table).overwritePartitions()
        assert rows(catalogue, table) == {7: "part"}
        assert client.locate() == number


@pytest.fixture(autouse=True)
def swept(node: str, request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    for name in staging(node):
        with kelek.Table(node, name, timeout_ms=60_000) as table:
            table.drop()


def exchanged(frame: Any, table: str, keep_s: int = 0) -> None:
    writer = frame.writeTo(table).option("overwrite", "exchange").option("keepOldS", str(keep_s))
    writer.overwritePartitions()


def test_a_reader_never_sees_a_mixture(catalogue: Any, node: str, name: str, table: str) -> None:
    """Clients that open the table again and again while its rows are exchanged."""
    seen: list[set[tuple[str, int]]] = []
    stopped = threading.Event()

    def read() -> None:
        while not stopped.is_set():
            with kelek.Table(node, name, timeout_ms=60_000) as client, client.snapshot() as view:
                values = [row for _, row in view.scan()]
            seen.append({(str(value), values.count(value)) for value in set(values)})

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for place, count in enumerate((MANY, 3, 200)):
            frame = catalogue.range(count).selectExpr("id AS n", f"'{place}' AS v")
            kept = catalogue.table(table)
            exchanged(frame, table, keep_s=60)
            assert kept.count() == count  # It follows the name.
            assert rows(catalogue, table) == dict.fromkeys(range(count), str(place))
    finally:
        stopped.set()
        reader.join()
    assert all(len(one) == 1 for one in seen)
    assert {count for one in seen for _, count in one} <= {ROWS, MANY, 3, 200}
    assert len(staging(node)) == 3
    before = catalogue.table(table)
    exchanged(catalogue.range(1).selectExpr("id AS n", "'x' AS v"), table)
    assert before.count() == 1
    assert len(staging(node)) == 3


def test_a_failed_exchange_leaves_the_table(
    catalogue: Any, node: str, name: str, table: str
) -> None:
    bad = catalogue.range(1000).selectExpr("id AS n", "IF(id > 900, raise_error('no'), 'x') AS v")
    with pytest.raises(Exception, match="no"):
        exchanged(bad, table)
    assert rows(catalogue, table) == dict.fromkeys(range(ROWS), "old")
    assert staging(node) == []


@pytest.mark.parametrize("how", ["transaction", "exchange", "bulk"])
def test_processes_are_killed(
    catalogue: Any, node: str, name: str, table: str, tmp_path: Path, how: str
) -> None:
    """In the commit: before the change, behind it, and before the old rows are dropped."""
    hooks = f"""
from kelek.pipeline.jvm import overwrites

def killing(function, after):
    def run(*arguments):
        path = pathlib.Path({str(tmp_path)!r}, function.__name__)
        if after:
            function(*arguments)
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return None if after else function(*arguments)
    return run

overwrites.drop = killing(overwrites.drop, False)
overwrites.publish = killing(overwrites.publish, True)
overwrites.replace_rows = killing(overwrites.replace_rows, True)
overwrites.commit_bulk = killing(overwrites.commit_bulk, True)
hooked = commit
"""
    add_hooks(catalogue, name, node, hooks, tmp_path)
    catalogue.conf.set(f"spark.sql.catalog.{name}.overwrite", how)
    catalogue.conf.set(f"spark.sql.catalog.{name}.keepOldS", "0")
    kills = {
        "transaction": ["replace_rows"], "exchange": ["publish", "drop"], "bulk": ["commit_bulk"]
    }[how]  # fmt: skip
    for place, where in enumerate(kills):
        (tmp_path / where).touch()
        frame = catalogue.range(5).selectExpr(f"id + {place} AS n", "'new' AS v")
        frame.writeTo(f"{name}.{name}").overwritePartitions()
        assert not (tmp_path / where).exists()
        assert rows(catalogue, table) == dict.fromkeys(range(place, 5 + place), "new")
    assert staging(node) == []


def test_a_bulk_load_replaces_all_rows(
    catalogue: Any, node: str, name: str, table: str, tmp_path: Path
) -> None:
    """The table stays the same one, so clients that have it open see the new rows. A process that
    is killed in a task has its rows sent again."""
    hooks = f"""
from kelek.pipeline.jvm import overwrites
send = overwrites.send_rows

def send_rows(options, load, batches):
    def killed():
        for batch in batches:
            yield batch
            with contextlib.suppress(FileNotFoundError):
                pathlib.Path({str(tmp_path)!r}, "kill").unlink()
                os.kill(os.getpid(), signal.SIGKILL)
    return send(options, load, killed())

overwrites.send_rows = send_rows
hooked = commit
"""
    add_hooks(catalogue, name, node, hooks, tmp_path)
    with kelek.Table(node, name, timeout_ms=60_000) as client:
        number = client.locate()
        (tmp_path / "kill").touch()
        write = new_rows(catalogue, MANY).writeTo(f"{name}.{name}").option("overwrite", "bulk")
        write.overwritePartitions()
        assert not (tmp_path / "kill").exists()
        assert rows(catalogue, table) == dict.fromkeys(range(0, 2 * MANY, 2), "new")
        assert client.count() == MANY
        assert client.locate() == number
        bad = catalogue.range(9).selectExpr("id AS n", "IF(id > 7, raise_error('no'), 'x') AS v")
        with pytest.raises(Exception, match="no"):
            bad.writeTo(table).option("overwrite", "bulk").overwritePartitions()
        with pytest.raises(Exception, match="overwrite=bulk replaces all rows"):
            new_rows(catalogue, 1).writeTo(table).option("overwrite", "bulk").overwrite(col_n() < 5)
        assert client.count() == MANY


def col_n() -> Any:
    from pyspark.sql.functions import col

    return col("n")


def test_tables_are_replaced(catalogue: Any, node: str, name: str, table: str) -> None:
    """REPLACE TABLE AS SELECT has other columns; readers of the old ones do not see it."""
    query = f"OR REPLACE TABLE {table} TBLPROPERTIES ('key' = 'day') AS SELECT DATE'2026-01-02' AS"
    catalogue.sql(f"CREATE {query} day, sum(n) AS total FROM {table}")
    assert catalogue.table(table).columns == ["day", "total"]
    assert catalogue.table(table).first().total == sum(range(ROWS))
    bad = f"{query} day, raise_error('no') AS total FROM range(1)"
    with pytest.raises(Exception, match="no"):
        catalogue.sql(f"CREATE {bad}")
    assert catalogue.table(table).first().total == sum(range(ROWS))
    catalogue.sql(f"DROP TABLE {table}")
    with pytest.raises(Exception, match="TABLE_OR_VIEW_NOT_FOUND"):
        catalogue.sql(bad.removeprefix("OR "))
    catalogue.sql(f"CREATE {query} day, 1L AS total")
    assert catalogue.table(table).count() == 1
    catalogue.sql(f"REPLACE TABLE {table} (a STRING, PRIMARY KEY (a))")
    assert catalogue.table(table).columns == ["a"]
    assert len(staging(node)) == 2  # Rows of the two tables that were replaced.


def test_a_table_is_replaced_by_more_rows_than_a_transaction_holds(
    catalogue: Any, table: str
) -> None:
    properties = "TBLPROPERTIES ('key' = 'id')"
    query = f"{properties} AS SELECT id FROM range({MANY})"
    for command in ("CREATE OR REPLACE", "REPLACE"):
        catalogue.sql(f"{command} TABLE {table} {query}")
        assert catalogue.table(table).count() == MANY
    catalogue.sql(f"CREATE TABLE {table}_more {query}")
    assert catalogue.table(f"{table}_more").count() == MANY
    catalogue.sql(f"DROP TABLE {table}_more")


def test_what_dead_drivers_have_left_is_dropped(node: str) -> None:
    now = time.time()
    kept = [overwrites.own_name(overwrites.STAGING, now - 60)]
    kept.append(overwrites.own_name(overwrites.REPLACED, now + 60))
    gone = [overwrites.own_name(overwrites.STAGING, now - 10**6)]
    gone.append(overwrites.own_name(overwrites.REPLACED, now - 2))
    for name in kept + gone:
        with kelek.Table(node, name, timeout_ms=60_000) as table:
            table.put("k", "v")
    with kelek.Table(node, 0, timeout_ms=60_000) as table:
        overwrites.sweep(table, {"urls": node})
        assert staging(node) == sorted(kept)


def test_old_rows_are_dropped_later(node: str, name: str) -> None:
    """By the process that has exchanged the names, or by the next overwrite."""
    with kelek.Table(node, name, timeout_ms=60_000) as table:
        schema = table.declare("n int64", key=["n"])
        table.put_rows([{"n": 1}])
    made = overwrites.made_staging({"urls": node}, name, schema, overwrites.Publish.EXCHANGE)
    made = made._replace(keep_s=1)
    for _ in range(2):  # A repeat does nothing.
        overwrites.commit_staging(made)
    [old] = staging(node)
    with kelek.Table(node, old, timeout_ms=60_000) as table:
        assert table.count() == 1
        until = time.monotonic() + 60
        while staging(node) and time.monotonic() < until:
            pass
    assert staging(node) == []
