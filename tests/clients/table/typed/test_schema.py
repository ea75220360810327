"""Schemas of tables: as text, what they refuse, and what may be added."""

import pyarrow as pa
import pytest

import kelek
from kelek.clients.table.typed.types import fields_text


def test_a_schema_as_text() -> None:
    schema = kelek.TableSchema(
        "Day: date, `a b` Decimal(5), t timestamp, z timestamp( ms , Europe/Berlin ) not  null, "
        "l list<struct<x double, `y``` string>>, m map<text,list<boolean>>",
        key=["Day", "a b"],
    )
    text = (
        "Day date32 not null, `a b` decimal(5, 0) not null, t timestamp(us), "
        "z timestamp(ms, Europe/Berlin) not null, l list<struct<x float64, `y``` utf8>>, "
        "m map<utf8, list<bool>>"
    )
    assert str(schema) == text
    assert schema.arrow.field("z").type == pa.timestamp("ms", "Europe/Berlin")
    assert repr(schema) == f"TableSchema({text!r}, key=['Day', 'a b'])"
    assert kelek.TableSchema(text, ["Day", "a b"]) == schema
    assert hash(kelek.TableSchema(text, ["Day", "a b"])) == hash(schema)
    assert kelek.TableSchema(text, ["Day"]) != schema


@pytest.mark.parametrize(
    ("columns", "key", "told"),
    [
        ("", "k", "more is missing behind '', before ''"),
        ("k", "k", "more is missing"),
        ("k int31", "k", r"a type \(bool, int8, .*\) is missing behind 'k ', before 'int31'"),
        ("k int32 int32", "k", "a comma is missing behind 'k int32'"),
        ("k int32,", "k", "more is missing"),
        ("k int32 not", "k", "`null` is missing"),
        ("7 int32", "k", "the name of a column is missing behind '', before '7 int32'"),
        ("k decimal(39, 2)", "k", r"decimal\(39, 2\): there are 1 to 38 digits"),
        ("k decimal(3, 4)", "k", "at most so many behind the point"),
        ("k decimal(a)", "k", r"decimal\(a, 0\)"),
        ("k timestamp(ns)", "k", r"timestamp\(ns\): the unit is one of s, ms, us"),
        ("k map<list<int8>, int8>", "k", "the keys of a map are plain, not list<int8>"),
        ("k list<int8", "k", "`>` is missing"),
        ("k " + "list<" * 17 + "int8" + ">" * 17, "k", "types within types are at most 16 deep"),
        ("k int32, k int32", "k", "each name once"),
        (", ".join(f"c{n} int8" for n in range(1001)), "c0", "at most 1000 columns"),
        ("k int32", [], "key: name one column or more, each once"),
        ("k int32", ["k", "k"], "each once"),
        ("k int32", ["x"], "key: no column x; there are k"),
        ("k list<int32>", ["k"], "key: k is list<.*>, which has no order; use a plain type"),
        (pa.schema([("k", pa.timestamp("ns"))]), ["k"], "is no type of a column; there are bool"),
        (pa.schema([("k", pa.time32("s"))]), ["k"], "is no type of a column"),
    ],
)
def test_columns_that_no_table_has(columns: str | pa.Schema, key: list[str], told: str) -> None:
    with pytest.raises(kelek.TableSchemaError, match=told):
        kelek.TableSchema(columns, key=key)


@pytest.mark.parametrize(
    ("columns", "key", "told"),
    [
        ("k int32, a utf8, b utf8", ["k"], None),
        ("k int32, a utf8", ["k"], None),
        ("k int32, a utf8", ["k", "a"], "the table's key is k, not k, a: a key can't be changed"),
        ("k int32", ["k"], "column 2 of the table is `a utf8`, and it is `missing`"),
        ("k int32, b utf8, a utf8", ["k"], "column 2 .*`a utf8`, and it is `b utf8`"),
        ("k int64, a utf8", ["k"], "column 1 .*`k int32 not null`, and it is `k int64 not null`"),
        ("k int32, a utf8 not null", ["k"], "it is `a utf8 not null`"),
        ("k int32, a utf8, b int8 not null", ["k"], "the new column b is `not null`"),
    ],
)
def test_columns_are_added_behind(columns: str, key: list[str], told: str | None) -> None:
    before = kelek.TableSchema("k int32, a utf8", key=["k"])
    wanted = kelek.TableSchema(columns, key=key)
    if told is None:
        assert before.extended(wanted) == wanted
        return
    with pytest.raises(kelek.TableSchemaError, match=told):
        before.extended(wanted)


def test_keys_and_ranges() -> None:
    schema = kelek.TableSchema("a utf8, b int8, v int8", key=["a", "b"])
    assert schema.key("x", 1) == b"x\0\0\x81"
    assert schema.range(["x"]) == (b"x\0\0", b"x\0\1")
    assert schema.range(["x", 1]) == (b"x\0\0\x81", b"x\0\0\x81\0")
    assert schema.range([]) == (b"", b"")
    assert schema.range(None, ["x"], ["y", 2]) == (b"x\0\0", b"y\0\0\x82")
    with pytest.raises(kelek.TableSchemaError, match=r"a key has 2 values \(a, b\), not 1"):
        schema.key("x")
    with pytest.raises(kelek.TableSchemaError, match="column b of a key is never null"):
        schema.key("x", None)
    with pytest.raises(kelek.TableSchemaError, match="the key is a, b: give a list"):
        schema.range(["x", 1, 2])
    with pytest.raises(kelek.TableSchemaError, match="give a list"):
        schema.range("x")
    with pytest.raises(ValueError, match="a prefix, or start and end"):
        schema.range(["x"], ["y"])
    with pytest.raises(kelek.TableSchemaError, match="no column c; there are a, b, v"):
        schema.chosen(["c"])


def test_a_schema_of_a_newer_version() -> None:
    for data in (b"junk", b"{}", b'{"columns": "k uuid", "key": ["k"]}', b'["k"]', b"\xff"):
        with pytest.raises(kelek.TableSchemaError, match="this version can't read"):
            kelek.TableSchema.decode(data)
    long_name = "c" * (64 << 10)
    with pytest.raises(kelek.TableSchemaError, match="shorten the names of columns"):
        kelek.TableSchema(f"{long_name} int8", key=long_name).encode()
    with pytest.raises(ValueError, match="no type of a column"):
        fields_text([pa.field("a", pa.month_day_nano_interval())])
