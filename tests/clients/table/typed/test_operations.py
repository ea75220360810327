"""Typed tables of a real cluster, by the blocking and the asyncio client."""

import asyncio
from datetime import date
from decimal import Decimal
from pathlib import Path

import duckdb
import polars
import pyarrow as pa
import pytest

import kelek
from kelek.protocols.zerodb.wire.values import FEATURE_SCHEMAS
from kelek.testing import LocalCluster
from kelek.testing.fixtures import kelek_cluster as kelek_cluster
from kelek.tests.clients.table.table_servers import FEATURES, TableServers

COLUMNS = "day date32, id int64, price decimal(12, 2), note utf8"
ROWS = [
    {"day": date(2026, 1, day), "id": -day, "price": Decimal(day) / 4, "note": "n" * day}
    for day in range(1, 8)
]


def test_rows_with_columns(kelek_cluster: LocalCluster) -> None:
    with kelek.Table(kelek_cluster.table_urls, "orders", timeout_ms=60_000) as table:
        assert table.schema() is None
        with pytest.raises(
            kelek.TableSchemaError, match=r"table orders has no schema: declare\(\)"
        ):
            table.put_rows(ROWS)
        schema = table.declare(COLUMNS, key=["day", "id"])
        assert table.declare(COLUMNS, key=["day", "id"]) == schema == table.schema()
        assert table.put_rows(ROWS) == 7
        assert table.get_row(date(2026, 1, 3), -3) == ROWS[2]
        assert table.get_row(date(2026, 1, 3), 3) is None
        assert [*table.rows()] == ROWS
        assert [*table.rows(reverse=True, limit=2)] == ROWS[:-3:-1]
        assert [*table.rows(columns=["id"], start=[date(2026, 1, 6)])] == [{"id": -6}, {"id": -7}]
        assert [*table.rows(prefix=[date(2026, 1, 2)])] == ROWS[1:2]
        table.delete_row(date(2026, 1, 1), -1)
        found = pa.Table.from_batches(table.to_arrow(columns=["note", "day"]))
        assert found.to_pylist() == [{"note": it["note"], "day": it["day"]} for it in ROWS[1:]]
        part = [*table.to_arrow(start=[date(2026, 1, 3)], end=[date(2026, 1, 4), 0])]
        assert pa.Table.from_batches(part).to_pylist() == ROWS[2:4]
        assert sum(batch.num_rows for batch in table.to_arrow(columns=[])) == 6
        with kelek.Table(kelek_cluster.table_urls, table.number, timeout_ms=60_000) as numbered:
            assert next(numbered.to_arrow()).schema.names == ["key", "value"]
            assert next(numbered.to_arrow(columns=["id"])).num_rows == 6
            assert next(numbered.to_arrow(prefix=[date(2026, 1, 2)])).to_pylist() == ROWS[1:2]
            assert [*numbered.rows(limit=1)] == ROWS[1:2]
        raw = next(table.to_arrow(raw=True))
        assert raw.schema.names == ["key", "value"]
        assert raw.num_rows == 6
        by_bytes = table.to_arrow(prefix=schema.key(date(2026, 1, 3), -3), columns=["id"])
        assert [batch.to_pylist() for batch in by_bytes] == [[{"id": -3}]]
        with pytest.raises(kelek.TableSchemaError, match="no column x; there are day, id"):
            next(table.to_arrow(columns=["x"]))
        with pytest.raises(kelek.TableSchemaError, match="row 0: column price"):
            table.put_rows([{**ROWS[0], "price": Decimal("0.125")}])


def test_columns_are_added_while_a_client_has_the_table_open(kelek_cluster: LocalCluster) -> None:
    urls = kelek_cluster.table_urls
    with (
        kelek.Table(urls, "grows", timeout_ms=60_000) as table,
        kelek.Table(urls, "grows", timeout_ms=60_000) as other,
    ):
        table.declare("k int32, a utf8", key="k")
        table.put_rows([{"k": 1, "a": "x"}])
        assert other.get_row(1) == {"k": 1, "a": "x"}
        assert str(table.declare("k int32, a utf8, b bool", key=["k"])).endswith("b bool")
        table.put_rows([{"k": 2, "b": True}])
        assert other.get_row(2) == {"k": 2, "a": None, "b": True}
        assert [*other.rows(columns=["b"])] == [{"b": None}, {"b": True}]
        assert other.put_rows([{"k": 3, "b": False}]) == 1
        with pytest.raises(kelek.TableSchemaError, match="it is `missing` in the new schema"):
            other.declare("k int32", key=["k"])


def test_other_programs_see_columns(kelek_cluster: LocalCluster) -> None:
    with kelek.Table(kelek_cluster.table_urls, "shared", timeout_ms=60_000) as table:
        schema = table.declare(COLUMNS, key=["day", "id"])
        kinds = {"price": polars.Decimal(12, 2)}
        frame = polars.DataFrame(ROWS, schema_overrides=kinds)
        assert table.put_rows(frame.to_arrow()) == 7
        reader = pa.RecordBatchReader.from_batches(schema.arrow, table.to_arrow())
        assert duckdb.from_arrow(reader).aggregate("sum(price), max(note)").fetchall() == [
            (Decimal("7.00"), "nnnnnnn")
        ]
        rows = pa.Table.from_batches(table.to_arrow(columns=["price"]))
        assert polars.from_arrow(rows)["price"].sum() == Decimal("7.00")
        more = duckdb.sql("SELECT DATE '2026-02-01' AS day, 1::BIGINT AS id").to_arrow_table()
        assert table.put_rows(more) == 1
        assert table.get_row(date(2026, 2, 1), 1) == {
            "day": date(2026, 2, 1), "id": 1, "price": None, "note": None,
        }  # fmt: skip


def test_which_tables_get_a_schema(kelek_cluster: LocalCluster) -> None:
    urls = kelek_cluster.table_urls
    with kelek_cluster.table() as table:
        with pytest.raises(kelek.TableSchemaError, match="only named tables have schemas"):
            table.declare("k int8", key="k")
        table.put(b"k", b"v")
        assert [batch.to_pylist() for batch in table.to_arrow()] == [[{"key": b"k", "value": b"v"}]]
        with pytest.raises(kelek.TableSchemaError, match="has no schema"):
            next(table.to_arrow(columns=["key"]))
        with pytest.raises(kelek.TableSchemaError, match="has no schema"):
            next(table.to_arrow(start=[1]))
    with kelek.Table(urls, "bytes", timeout_ms=60_000) as table:
        table.put(b"k", b"v")
        with pytest.raises(kelek.TableSchemaError, match="has keys that were put without a schema"):
            table.declare("k int8", key="k")
        table.truncate()
        table.declare("k int8", key="k")
        table.put_rows([{"k": 1}])
        table.rename("renamed")
        assert [*table.rows()] == [{"k": 1}]
        assert str(table.declare("k int8, v int8", key="k")) == "k int8 not null, v int8"
        assert table.drop()
        assert table.schema() is None
    with kelek.Table(urls, "renamed", timeout_ms=60_000) as table:
        assert table.schema() is None
        assert str(table.declare("k utf8", key="k")) == "k utf8 not null"


def test_the_asyncio_client(kelek_cluster: LocalCluster) -> None:
    async def run() -> None:
        async with kelek.AsyncTable(kelek_cluster.table_urls, "later", timeout_ms=60_000) as table:
            made = await asyncio.gather(*(table.declare(COLUMNS, ["day", "id"]) for _ in range(4)))
            assert len({*made}) == 1
            assert await table.put_rows(pa.Table.from_pylist(ROWS, made[0].arrow)) == 7
            assert await table.get_row(date(2026, 1, 3), -3) == ROWS[2]
            assert [row async for row in table.rows(limit=3)] == ROWS[:3]
            found = [batch async for batch in table.to_arrow(columns=["id"])]
            assert pa.Table.from_batches(found)["id"].to_pylist() == [*range(-1, -8, -1)]
            await table.delete_row(date(2026, 1, 3), -3)
            assert await table.get_row(date(2026, 1, 3), -3) is None

    asyncio.run(run())


def test_a_server_of_an_older_version(tmp_path: Path) -> None:
    cluster = TableServers(tmp_path, features=FEATURES & ~FEATURE_SCHEMAS)
    try:
        with kelek.Table(cluster.urls, "users", timeout_ms=60_000) as table:
            with pytest.raises(kelek.TableUnsupported, match="does not support schemas"):
                table.declare("k int8", key="k")
            assert table.schema() is None
    finally:
        cluster.close()
