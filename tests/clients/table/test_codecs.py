"""A Table with a codec, and the codecs of models."""

import asyncio
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import kelek
from kelek.clients.table.codecs import codec_of
from kelek.tests.clients.table.table_servers import TableServers

VALUE = {"name": "größe", "of": [1, None]}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[TableServers]:
    cluster = TableServers(tmp_path)
    yield cluster
    cluster.close()


def test_values_and_keys_come_back_as_they_were_given(cluster: TableServers) -> None:
    with kelek.Table(cluster.urls, 7, codec="json") as table:
        changes = table.watch(after=0)
        table.put("k", VALUE)
        assert cluster.store.tables[7][b"k"] == '{"name":"größe","of":[1,null]}'.encode()
        assert table.get("k") == VALUE
        assert table.get("none") is None
        assert table.put_many([("ä", 1), (b"b", "text")]) == 2
        assert table.get_many(["b", "none", "ä"]) == ["text", None, 1]
        assert list(table.scan()) == [("b", "text"), ("k", VALUE), ("ä", 1)]
        assert list(table.scan_pages(limit=1)) == [[("b", "text")]]
        assert list(table.keys(reverse=True)) == ["ä", "k", "b"]
        assert table.compare_and_put("ä", 1, [2])
        assert not table.compare_and_put("ä", 1, [3])
        batch = table.batch().when_equal("ä", [2]).put("c", None).get("ä", "none")
        batch.otherwise.get("k")
        assert table.commit(batch).values == [[2], None]
        found: list[Any] = [next(changes), next(changes)]
        assert [(it.key, it.value) for it in found] == [("k", VALUE), ("ä", 1)]
        table.put("k", {})
        assert next(iter(table.to_arrow())).column(0)[0].as_py() == b"b"
        with pytest.raises(ValueError, match="a Map has a codec of its own"):
            kelek.Map(table)
        with pytest.raises(TypeError, match="not JSON serializable"):
            table.put("k", object())
    with kelek.Table(cluster.urls, 7, codec="text") as table:
        table.put(b"\xff", "x")
        with pytest.raises(UnicodeDecodeError):
            list(table.scan())
        assert table.get(b"\xff") == "x"
    with pytest.raises(ValueError, match="codec is json, msgpack"):
        kelek.Table(cluster.urls, 7, codec="yaml")


def test_an_asyncio_client_has_it_too(cluster: TableServers) -> None:
    async def main() -> None:
        async with kelek.AsyncTable(cluster.urls, "users", codec="msgpack") as table:
            await table.put("k", VALUE)
            await table.put("t", 3, ttl_s=60)
            assert await table.put_many([("m", [b"\0"])]) == 1
            assert await table.get("k") == VALUE
            assert [pair async for pair in table.scan(start="m")] == [("m", [b"\0"]), ("t", 3)]

    asyncio.run(asyncio.wait_for(main(), 60))


class Point:
    """It has what shows a Struct of msgspec."""

    __struct_fields__ = ("x",)


def test_structs_of_msgspec(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real library, where it is installed; else one that has the methods in use."""
    try:
        msgspec: Any = import_module("msgspec")
    except ImportError:
        fake: Any = ModuleType("msgspec")
        fake.json = fake
        fake.Encoder = type("E", (), {"encode": lambda self, value: b"{}"})
        fake.Decoder = lambda struct: type("D", (), {"decode": lambda self, data: struct()})()
        monkeypatch.setitem(sys.modules, "msgspec", fake)
        struct: Any = Point
    else:
        struct = msgspec.defstruct("Point", [])
    codec = codec_of(struct)
    assert codec.encode(struct()) == b"{}"
    assert isinstance(codec.decode(b"{}"), struct)
    with pytest.raises(TypeError, match="a value is a Point, not dict"):
        codec.encode({})
