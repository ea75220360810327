"""UPDATE, MERGE and DELETE with any condition: what changes, conflicts, and repeated tasks."""

import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

import kelek
from kelek.tests.pipeline.jvm.test_faults import add_catalogue

pytest.importorskip("pyspark")
deltas = pytest.importorskip("kelek.pipeline.jvm.deltas")

ROWS = 12
MANY = 8500  # More than one transaction holds.


@pytest.fixture
def table(catalogue: Any, node: str, name: str) -> str:
    """Rows 0 to 11: (n, shop, v, note); v is null in each fourth."""
    with kelek.Table(node, name, timeout_ms=60_000) as made:
        made.declare("n int64, shop utf8, v int64, note utf8", key=["n", "shop"])
        made.put_rows(
            {"n": n, "shop": "ab"[n % 2], "v": None if n % 4 == 3 else n, "note": f"note {n}"}
            for n in range(ROWS)
        )
    return f"kelek.{name}"


def rows(spark: Any, table: str, columns: str = "n, v") -> list[tuple[Any, ...]]:
    return [tuple(row) for row in spark.sql(f"SELECT {columns} FROM {table} ORDER BY 1").collect()]


def test_rows_are_updated_and_deleted(catalogue: Any, table: str) -> None:
    before = rows(catalogue, table)
    catalogue.sql(f"UPDATE {table} SET v = v + 100 WHERE note LIKE '%1%' OR v IS NULL")
    expected = [(n, v + 100 if v is not None and n in (1, 10, 11) else v) for n, v in before]
    assert rows(catalogue, table) == expected
    catalogue.sql(f"UPDATE {table} SET v = n, note = concat(note, shop) WHERE v IS NULL AND n > 3")
    assert rows(catalogue, table, "n, v, note")[7] == (7, 7, "note 7b")
    catalogue.sql(f"DELETE FROM {table} WHERE v IS NULL OR shop = 'a' AND v % 3 = 0")
    left = [1, 2, 4, 5, 7, 8, 9, 10, 11]
    assert [n for n, _ in rows(catalogue, table)] == left
    catalogue.sql(f"DELETE FROM {table} WHERE n IN (SELECT v FROM {table} WHERE note > 'note 8')")
    assert [n for n, _ in rows(catalogue, table)] == [1, 2, 4, 5, 7, 8, 10, 11]
    assert catalogue.table(table).columns == ["n", "shop", "v", "note"]


def test_keys_are_updated(catalogue: Any, table: str) -> None:
    """Each row takes the key of the next one."""
    before = rows(catalogue, table, "n, v, note")
    catalogue.sql(f"UPDATE {table} SET n = n + 2 WHERE n >= 0 AND note IS NOT NULL")
    assert rows(catalogue, table, "n, v, note") == [(n + 2, v, note) for n, v, note in before]
    with pytest.raises(Exception, match="makes two rows with the key"):
        catalogue.sql(f"UPDATE {table} SET n = 1, shop = 'x' WHERE v > 8")
    with pytest.raises(Exception, match="or a row is there that it inserts; nothing was changed"):
        catalogue.sql(f"UPDATE {table} SET n = n + 2 WHERE v = 0")
    assert [n for n, *_ in rows(catalogue, table)] == [*range(2, ROWS + 2)]


def test_rows_are_merged(catalogue: Any, table: str) -> None:
    catalogue.sql(
        "SELECT * FROM VALUES (1L, 'b', 50L), (2L, 'a', NULL), (4L, 'b', 60L), (20L, 'a', 70L), "
        "(21L, 'a', NULL) AS s(n, shop, v)"
    ).createOrReplaceTempView("changes_of_rows")
    catalogue.sql(
        f"""
        MERGE INTO {table} t USING changes_of_rows s ON t.n = s.n AND t.shop = s.shop
        WHEN MATCHED AND s.v IS NULL THEN DELETE
        WHEN MATCHED THEN UPDATE SET v = t.v + s.v
        WHEN NOT MATCHED AND s.v IS NOT NULL THEN INSERT (n, shop, v) VALUES (s.n, s.shop, s.v)
        WHEN NOT MATCHED BY SOURCE AND t.n > 8 THEN UPDATE SET note = 'alone'
        """
    )
    found = rows(catalogue, table, "n, shop, v, note")
    assert [row[0] for row in found] == [0, 1, 3, 4, 4, 5, 6, 7, 8, 9, 10, 11, 20]
    assert found[1] == (1, "b", 51, "note 1")
    assert {(4, "a", 4, "note 4"), (4, "b", 60, None), (20, "a", 70, None)} <= {*found}
    assert [row[3] for row in found if 8 < row[0] < 20] == ["alone"] * 3
    with pytest.raises(Exception, match="MERGE_CARDINALITY_VIOLATION"):
        catalogue.sql(
            f"MERGE INTO {table} t USING (SELECT 1 FROM range(2)) ON t.n = 1 "
            "WHEN MATCHED THEN UPDATE SET v = 0"
        )


def test_a_table_of_bytes(catalogue: Any, node: str, number: int) -> None:
    with kelek.Table(node, number, timeout_ms=60_000) as table:
        table.put_many([(b"a", b"1"), (b"b", b"2"), (b"c", b"3")])
        catalogue.sql(f"UPDATE kelek.`{number}` SET value = X'3030' WHERE value >= X'32'")
        catalogue.sql(f"DELETE FROM kelek.`{number}` WHERE value = X'31'")
        assert [*table.scan()] == [(b"b", b"00"), (b"c", b"00")]


def test_the_rows_have_all_types(catalogue: Any, name: str) -> None:
    columns = (
        "day DATE, price DECIMAL(9,2), at TIMESTAMP, raw BINARY, tags ARRAY<STRUCT<n: INT>>, "
        "words MAP<STRING, BIGINT>, ok BOOLEAN, x DOUBLE, small SMALLINT"
    )
    catalogue.sql(f"CREATE TABLE kelek.{name} ({columns}, PRIMARY KEY (day, price))")
    catalogue.sql(
        f"INSERT INTO kelek.{name} VALUES (DATE'2026-01-02', 1.25, TIMESTAMP'2026-01-02 03:04:05Z',"
        " X'00FF', array(named_struct('n', 1), NULL), map('ä', 5L), true, 0.5D, 7S)"
    )
    [before] = catalogue.sql(f"SELECT * FROM kelek.{name}").collect()
    catalogue.sql(f"UPDATE kelek.{name} SET small = small + 1S, day = day + INTERVAL 1 DAY")
    [after] = catalogue.sql(f"SELECT * FROM kelek.{name}").collect()
    assert after.small == 8
    assert (after.day - before.day).days == 1
    assert after[1:-1] == before[1:-1]


HOOKS = """\
import contextlib, os, pathlib, runpy, signal
import kelek
from kelek.pipeline.jvm import deltas

commit = deltas._commit
{hooks}
deltas._commit = hooked
runpy.run_module("kelek.pipeline.jvm", run_name="__main__", alter_sys=True)
"""


def add_hooks(spark: Any, name: str, url: str, hooks: str, folder: Path) -> None:
    """A catalogue whose Python processes run these lines first."""
    (folder / "hooks.py").write_text(HOOKS.format(hooks=hooks))
    command = f"exec {shlex.quote(sys.executable)} {folder}/hooks.py"
    add_catalogue(spark, name, url, command, folder)


def test_a_row_that_another_client_changes_meanwhile(
    catalogue: Any, node: str, name: str, table: str, tmp_path: Path
) -> None:
    hooks = f"""
def hooked(table, delta):
    with kelek.Table({node!r}, {name!r}, timeout_ms=60000) as other:
        other.put_rows([{{"n": 1, "shop": "b", "v": 7, "note": "other"}}])
    return commit(table, delta)
"""
    add_hooks(catalogue, name, node, hooks, tmp_path)
    with pytest.raises(Exception, match="another client has changed rows of this statement"):
        catalogue.sql(
            f"MERGE INTO {name}.{name} t USING (SELECT * FROM VALUES (1L), (5L), (30L) AS s(n)) s "
            "ON t.n = s.n WHEN MATCHED THEN UPDATE SET v = -1 "
            "WHEN NOT MATCHED THEN INSERT (n, shop, v, note) VALUES (s.n, 'b', -1, '')"
        )
    found = rows(catalogue, table)
    assert found[1] == (1, 7)
    assert -1 not in [v for _, v in found]


@pytest.mark.parametrize("atomic", ["on", "off"])
def test_processes_are_killed(
    catalogue: Any, node: str, name: str, table: str, tmp_path: Path, atomic: str
) -> None:
    """In a task, in front of a transaction, and behind it: each row is changed once."""
    hooks = f"""
def kill(where):
    with contextlib.suppress(FileNotFoundError):
        pathlib.Path({str(tmp_path)!r}, where).unlink()
        os.kill(os.getpid(), signal.SIGKILL)

def hooked(table, delta):
    kill("before")
    done = commit(table, delta)
    kill("after")
    return done

def delta_of(plan, batch):
    kill("task")
    return made(plan, batch)

made, deltas.delta_of = deltas.delta_of, delta_of
"""
    add_hooks(catalogue, name, node, hooks, tmp_path)
    catalogue.conf.set(f"spark.sql.catalog.{name}.atomic", atomic)
    expected = dict(rows(catalogue, table))
    for place, kills in enumerate((["task", "before"], ["after"])):
        for where in kills:
            (tmp_path / where).touch()
        catalogue.sql(f"UPDATE {name}.{name} SET v = v + 1 WHERE v + 0 > {place}")
        assert not [where for where in kills if (tmp_path / where).exists()]
        expected = {n: v + 1 if v is not None and v > place else v for n, v in expected.items()}
        assert dict(rows(catalogue, table)) == expected


def test_more_rows_than_a_transaction_holds(catalogue: Any, node: str, name: str) -> None:
    catalogue.sql(f"CREATE TABLE kelek.{name} (n BIGINT, v BIGINT, PRIMARY KEY (n))")
    catalogue.range(MANY).selectExpr("id AS n", "id AS v").writeTo(f"kelek.{name}").append()
    update = f"UPDATE {{}}.{name} SET v = v + 1 WHERE v >= 0"
    with pytest.raises(Exception, match="more rows than one transaction holds"):
        catalogue.sql(update.format("kelek"))
    total = f"SELECT sum(v), count(*) FROM kelek.{name}"
    assert catalogue.sql(total).first()[:] == (sum(range(MANY)), MANY)
    from kelek.pipeline.spark_session import CATALOGUE_CLASS

    catalogue.conf.set(f"spark.sql.catalog.{name}", CATALOGUE_CLASS)
    catalogue.conf.set(f"spark.sql.catalog.{name}.urls", node)
    catalogue.conf.set(f"spark.sql.catalog.{name}.atomic", "off")
    catalogue.sql(update.format(name))
    assert catalogue.sql(total).first()[:] == (sum(range(MANY)) + MANY, MANY)
    with pytest.raises(Exception, match="an UPDATE of key columns needs a catalogue with atomic"):
        catalogue.sql(f"UPDATE {name}.{name} SET n = n + 1 WHERE v > 0")


# ---- without Spark ----


def made(*pairs: tuple[str, str | None]) -> dict[bytes, bytes | None]:
    return {key.encode(): None if row is None else row.encode() for key, row in pairs}


def test_a_change_is_done_once(node: str, number: int) -> None:
    """A repeat finds its rows as they will be; a row that is neither so nor as before is a
    conflict, and then nothing is done."""
    with kelek.Table(node, number, timeout_ms=60_000) as table:
        table.put_many([(b"a", b"1"), (b"b", b"2"), (b"c", b"3")])
        before = made(("a", "1"), ("b", "2"))
        delta = deltas.Delta(before, made(("a", None), ("b", "20"), ("d", "4")))
        for _ in range(2):
            deltas.change(table, delta)
            assert [*table.scan()] == [(b"b", b"20"), (b"c", b"3"), (b"d", b"4")]
        table.put(b"d", b"5")
        with pytest.raises(deltas.PipelineError, match="another client has changed rows"):
            deltas.change(table, delta)
        table.put_many([(b"a", b"1"), (b"b", b"2")])
        with pytest.raises(deltas.PipelineError, match="another client has changed rows"):
            deltas.change(table, delta)  # d is there already.
        table.delete_many([b"d", b"b"])
        with pytest.raises(deltas.PipelineError, match="another client has changed rows"):
            deltas.change(table, delta)  # b is gone.
        assert [*table.scan()] == [(b"a", b"1"), (b"c", b"3")]


def test_a_part_that_an_earlier_try_has_begun(node: str, number: int) -> None:
    with kelek.Table(node, number, timeout_ms=60_000) as table:
        table.put_many([(b"a", b"10"), (b"b", b"2"), (b"x", b"0")])
        delta = deltas.Delta(made(("a", "1"), ("b", "2")), made(("a", "10"), ("b", "20")))
        deltas.change_part(table, delta)
        assert [*table.scan()] == [(b"a", b"10"), (b"b", b"20"), (b"x", b"0")]
        table.put(b"b", b"3")
        with pytest.raises(deltas.PipelineError, match="key 0x62"):
            deltas.change_part(table, delta)
        assert table.get(b"b") == b"3"


def test_deltas_of_tasks_are_one(node: str) -> None:
    """A key that one task removes and another makes is made; made twice it is an error."""
    both = deltas.Delta({}, {})
    deltas.add(both, deltas.Delta(made(("a", "1")), made(("a", None), ("b", "1"))))
    deltas.add(both, deltas.Delta(made(("b", "2")), made(("b", None), ("c", "2"))))
    assert both.after == made(("a", None), ("b", "1"), ("c", "2"))
    assert both.before == made(("a", "1"), ("b", "2"))
    with pytest.raises(deltas.SchemaError, match="two rows with the key 0x63"):
        deltas.add(both, deltas.Delta({}, made(("c", "3"))))
    large = deltas.Delta({}, {b"%d" % n: b"" for n in range(deltas.ROWS_MAX + 1)})
    assert large.is_too_large
    large.after.popitem()
    assert not large.is_too_large
    assert deltas.Delta({b"k": bytes(deltas.BYTES_MAX)}, made(("k", None))).is_too_large
