"""kelek.Map against servers with tables in memory."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import pytest

import kelek
from kelek.tests.clients.table.table_servers import TableServers


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[TableServers]:
    cluster = TableServers(tmp_path)
    yield cluster
    cluster.close()


@pytest.fixture
def table(cluster: TableServers) -> Iterator[kelek.Table]:
    with kelek.Table(cluster.urls, 7, timeout_ms=60_000) as table:
        yield table


def test_it_is_a_dict(table: kelek.Table, cluster: TableServers) -> None:
    settings = kelek.Map(table, prefix="s/")
    other = kelek.Map(table, prefix="t/", codec="text")
    assert not settings
    settings["colours"] = ["red", "grün"]
    settings["size"] = 10
    other["größe"] = "x"
    assert cluster.store.tables[7] == {
        b"s/colours": '["red","grün"]'.encode(),
        b"s/size": b"10",
        "t/größe".encode(): b"x",
    }
    assert settings["size"] == settings.get("size") == 10
    assert settings.get("none", 3) == 3
    assert "size" in settings
    assert "none" not in settings
    assert cast(Any, 7) not in settings
    assert len(settings) == 2
    assert list(settings) == ["colours", "size"]
    assert dict(settings) == {"colours": ["red", "grün"], "size": 10}
    assert list(settings.items()) == [("colours", ["red", "grün"]), ("size", 10)]
    assert list(settings.values()) == [["red", "grün"], 10]
    assert ("size", 10) in settings.items()
    assert settings == {"colours": ["red", "grün"], "size": 10}
    settings.update({"a": 1}, b=2)
    settings.update([("c", 3)])
    assert list(settings) == ["a", "b", "c", "colours", "size"]
    del settings["c"]
    assert settings.popitem() == ("a", 1)
    assert settings.pop("b") == 2
    assert settings.pop("b", None) is None
    assert settings.setdefault("size", 11) == 10
    assert settings.setdefault("new", 12) == 12
    settings.clear()
    assert list(settings) == []
    assert dict(other) == {"größe": "x"}
    for missing in (
        lambda: settings["none"],
        lambda: settings.pop("none"),
        lambda: settings.__delitem__("none"),
        settings.popitem,
    ):
        with pytest.raises(KeyError):
            missing()


def test_a_pop_of_a_value_that_changes(table: kelek.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another client writes between the read and the conditional delete."""
    counts = kelek.Map(table)
    counts["k"] = 1
    get = table.get

    def get_late(key: Any) -> Any:
        found = get(key)
        monkeypatch.undo()
        table.put("k", "2")
        return found

    monkeypatch.setattr(table, "get", get_late)
    assert counts.pop("k") == 2
    assert "k" not in counts


class Point(NamedTuple):
    """It has the methods of a model of pydantic that a Map uses."""

    x: int

    def model_dump_json(self) -> str:
        return f"[{self.x}]"

    @classmethod
    def model_validate_json(cls, data: bytes) -> Self:
        return cls(int(data.strip(b"[]")))


class Reversing:
    def encode(self, value: bytes) -> bytes:
        return value[::-1]

    def decode(self, data: bytes) -> bytes:
        return data[::-1]


@pytest.mark.parametrize(
    ("codec", "value", "stored"),
    [
        ("json", {"a": None}, b'{"a":null}'),
        ("msgpack", {"a": b"\0"}, b"\x81\xa1a\xc4\x01\x00"),
        ("text", "é", "é".encode()),
        ("bytes", b"\xff", b"\xff"),
        (Point, Point(3), b"[3]"),
        (Reversing(), b"ab", b"ba"),
    ],
)
def test_codecs(table: kelek.Table, codec: Any, value: object, stored: bytes) -> None:
    values = kelek.Map(table, codec=codec)
    values["k"] = value
    assert table.get("k") == stored
    assert values["k"] == value


def test_what_is_refused(table: kelek.Table) -> None:
    for codec in ("yaml", object()):
        with pytest.raises(ValueError, match=r"a codec|codec is json, msgpack, text, bytes"):
            kelek.Map(table, codec=codec)
    for codec, value in (("text", 3), ("bytes", 3), (Point, 3), ("json", object())):
        with pytest.raises(TypeError):
            kelek.Map(table, codec=codec)["k"] = value
    with pytest.raises(TypeError, match="a key is a str, not bytes"):
        kelek.Map(table)[b"k"] = 1  # type: ignore[index]
    with pytest.raises(kelek.TableTooLarge):
        kelek.Map(table)[""] = 1
    table.put("k", b"\xff no JSON")
    with pytest.raises(ValueError, match="codec can't decode"):
        kelek.Map(table)["k"]
