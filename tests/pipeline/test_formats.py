"""Bytes as columns and back, without Spark."""

import json
import struct
from contextlib import nullcontext
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


LOSSES = [
    (pa.int32(), [1, -5], [1.5, 2.999, 2.0, True, "1", 2**31, float("inf")]),
    (pa.int64(), [2**53 + 1], [1e15, 2**63]),
    (pa.float32(), [1.5, 3, -3.4e38], [True, "1", 1e39, -1e39]),
    (pa.float64(), [1.5, 2**53, 1e300], [False, "1.5"]),
    (pa.bool_(), [True], [1, 0.0, "true"]),
    (pa.string(), ["x"], [1, True, ["x"]]),
    (pa.list_(pa.string()), [["a", "b"]], ["ab", {"a": 1}, [1]]),
    (pa.list_(pa.int8()), [[1, 2]], ["ab", [1.5], [300]]),
    (pa.struct([("n", pa.int32())]), [{"n": 1}], [{"n": 1.5}, [["n", 1]], "n"]),
    (pa.map_(pa.string(), pa.int32()), [{"n": 1}], [{"n": 1.5}, [["n", 1]]]),
]


@pytest.mark.parametrize("form", ["json", "msgpack"])
@pytest.mark.parametrize(("kind", "good", "bad"), LOSSES)
def test_nothing_is_cut_or_changed_to_fit_its_type(
    form: str, kind: Any, good: list[Any], bad: list[Any]
) -> None:
    """By pyarrow alone 1.5 would be the INT 1, true the DOUBLE 1.0, and "ab" a list of letters."""
    write = formats.json_bytes if form == "json" else msgpack.packb
    bad = [item for item in bad if form == "msgpack" or item != float("inf")]
    found, marks = read(column(form, kind), [write(item) for item in [*good, *bad, None]])
    expected = pa.array([list(it.items()) for it in good] if pa.types.is_map(kind) else good, kind)
    assert found == [*expected.to_pylist(maps_as_pydicts="strict"), *[None] * (len(bad) + 1)]
    assert marks == [False] * len(good) + [True] * len(bad) + [False]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda t: t.DecimalType(10, 2),
            r"column value is decimal\(10,2\): json has no decimal.*STR",
        ),
        (lambda t: t.ArrayType(t.DateType()), "json has no date"),
        (lambda t: t.StructType().add("a", t.TimestampType()), "json has no timestamp"),
        (lambda t: t.MapType(t.IntegerType(), t.StringType()), "maps with text as keys, not int"),
        (lambda t: t.BinaryType(), "json has no bytes; use text"),
        (lambda t: t.MapType(t.StringType(), t.ArrayType(t.DoubleType())), ""),
        (lambda t: t.StructType().add("a", t.BooleanType()).add("b", t.ByteType()), ""),
    ],
)
def test_types_without_a_form_are_refused_before_any_task(make: Any, words: str) -> None:
    types = pytest.importorskip("pyspark.sql.types")
    from kelek.pipeline.column_types import check_type

    wanted = make(types)
    with pytest.raises(SchemaError, match=words) if words else nullcontext():
        check_type("value", "json", wanted)
    check_type("value", "raw", wanted)
    check_type("value", "msgpack", types.BinaryType())


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
