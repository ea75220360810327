"""Bytes as columns and back, without Spark."""

import json
import struct
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kelek.pipeline.errors import SchemaError

pa = pytest.importorskip("pyarrow")
formats = pytest.importorskip("kelek.pipeline.formats")

STRUCT = pa.struct(
    [("n", pa.int64()), ("words", pa.list_(pa.string())), ("of", pa.map_(pa.string(), pa.int64()))]
)
ROWS: list[dict[str, Any]] = [
    {"n": 1, "words": ["a", "ö"], "of": {"x": 1}},
    {"n": None, "words": [], "of": None},
    {"n": -5, "words": None, "of": {}},
]


def column(form: str, kind: Any = None) -> Any:
    return formats.Column(form, kind or formats.ARROW[form])


def read(one: Any, items: list[bytes]) -> tuple[list[Any], list[bool]]:
    """What is read, of a slice too; and what could not be."""
    found = formats.decode(one, pa.array(items, pa.binary()))
    sliced = formats.decode(one, pa.array([b"", *items, b""], pa.binary()).slice(1, len(items)))
    assert sliced.items.equals(found.items)
    assert found.items.type == one.type
    found.items.validate(full=True)
    bad = [False] * len(items) if found.bad is None else found.bad.to_pylist()
    return found.items.to_pylist(maps_as_pydicts="strict"), bad


@given(st.lists(st.binary(max_size=12), max_size=8))
def test_raw_is_what_it_is(items: list[bytes]) -> None:
    assert read(column("raw"), items) == (items, [False] * len(items))


@given(st.lists(st.one_of(st.text(max_size=5).map(str.encode), st.binary(max_size=4)), max_size=8))
def test_text(items: list[bytes]) -> None:
    def text(data: bytes) -> str | None:
        try:
            return data.decode()
        except UnicodeDecodeError:
            return None

    texts = [text(one) for one in items]
    assert read(column("utf8"), items) == (texts, [one is None for one in texts])


NUMBERS = st.integers(0, 2**64 - 1).map(lambda number: struct.pack(">Q", number))


@given(st.lists(st.one_of(NUMBERS, st.binary(max_size=10)), max_size=8))
def test_numbers(items: list[bytes]) -> None:
    numbers = [int.from_bytes(one, "big") if len(one) == 8 else None for one in items]
    expected = [one if one is not None and one < 2**63 else None for one in numbers]
    assert read(column("be64"), items) == (expected, [one is None for one in expected])


@given(st.lists(st.integers(0, 2**63 - 1)))
def test_numbers_are_written_in_their_order(numbers: list[int]) -> None:
    array = pa.array([0, *numbers], pa.int64()).slice(1)
    written = formats.encode(column("be64"), array).to_pylist()
    assert written == [struct.pack(">Q", one) for one in numbers]
    assert sorted(written) == [struct.pack(">Q", one) for one in sorted(numbers)]


@pytest.mark.parametrize("form", ["json", "msgpack"])
def test_structures(form: str) -> None:
    one = column(form, STRUCT)
    written = formats.encode(one, pa.array([{**row, "of": pairs(row)} for row in ROWS], STRUCT))
    load = json.loads if form == "json" else msgpack.unpackb
    assert [load(data) for data in written.to_pylist()] == ROWS
    assert read(one, written.to_pylist()) == (ROWS, [False] * 3)


def pairs(row: Any) -> Any:
    return None if row["of"] is None else list(row["of"].items())


BAD_JSON = [b"", b"{", b"[]", b'"x"', b'{"n": "x"}', b'{"of": 3}', b"\xff", b'{"n": 1e300}']


@pytest.mark.parametrize("bad", [*BAD_JSON, b"[" * 100_000])
def test_one_that_can_not_be_read_spoils_no_other(bad: bytes) -> None:
    good = b'{"n": 7, "other": true}'
    seven = {"n": 7, "words": None, "of": None}
    assert read(column("json", STRUCT), [good, bad, good]) == (
        [seven, None, seven],
        [False, True, False],
    )


def test_msgpack_that_can_not_be_read() -> None:
    items = [b"", b"\xc1", msgpack.packb({"n": 2**64 - 1}), msgpack.packb({"n": 3}) + b"x"]
    assert read(column("msgpack", STRUCT), items) == ([None] * 4, [True] * 4)


@pytest.mark.parametrize(
    ("form", "items", "words"),
    [
        ("raw", pa.array([b"x", None]), "null"),
        ("be64", pa.array([5, -1]), "negative"),
        ("json", pa.array([b"x"]), "no form in json"),
        ("json", pa.array([float("nan")]), "no form in json"),
    ],
)
def test_what_has_no_form(form: str, items: Any, words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        formats.encode(formats.Column(form, items.type), items)
