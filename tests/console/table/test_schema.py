"""`kelek table schema`, against a server with tables in memory."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import kelek
from kelek.tests.clients.table.table_servers import TableServers
from kelek.tests.console.kelek_runner import fails, ok


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    cluster = TableServers(tmp_path)
    yield cluster.urls[0]
    cluster.close()


def test_a_schema_is_declared_and_shown(url: str) -> None:
    at = ("--url", url)
    columns = ("--columns", "day date, id int64, note text", "--key", "day, id")
    assert "no table has the name orders" in fails("table", "schema", *at, "orders")[1]
    shown = "columns  day date32 not null, id int64 not null, note utf8\nkey      day, id\n"
    assert ok("table", "schema", *at, *columns, "orders") == shown
    assert ok("table", "schema", *at, "orders") == shown
    more = ("--columns", "day date, id int64, note text, ok bool", "--key", "day,id")
    ok("table", "schema", *at, *more, "orders")
    found = json.loads(ok("table", "schema", *at, "orders", "-o", "json"))
    assert found["columns"].endswith("note utf8, ok bool")
    assert found["key"] == ["day", "id"]
    with kelek.Table(url, "orders", timeout_ms=60_000) as table:
        assert str(table.schema()) == found["columns"]


def test_what_is_no_schema_is_reported(url: str) -> None:
    at = ("--url", url)
    assert "--key is missing" in fails("table", "schema", *at, "t", "--columns", "a int8")[1]
    assert "--columns is missing" in fails("table", "schema", *at, "t", "--key", "a")[1]
    code, line = fails("table", "schema", *at, "t", "--columns", "a int7", "--key", "a")
    assert code == 1
    assert line.startswith("kelek: table t: columns: a type (bool, int8, ")
    ok("table", "put", *at, "bytes", "k", "v")
    assert fails("table", "schema", *at, "bytes")[1] == (
        "kelek: table bytes: it has no schema; --columns and --key give it one"
    )
    assert "only named tables" in fails(
        "table", "schema", *at, "7", "--columns", "a int8", "--key", "a"
    )[1]  # fmt: skip
