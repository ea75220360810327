"""Rows of typed tables: golden bytes, any rows there and back, and values that do not fit."""

import math
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kelek
from kelek.clients.table.typed.rows import batch_of_dicts, batch_of_pairs, dicts_of, pairs_of_rows
from kelek.clients.table.typed.types import type_text

EPOCH = datetime(1970, 1, 1)
TIMES = st.datetimes(datetime(1800, 1, 1), datetime(2300, 1, 1))
PLAIN: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-128, 127)),
    (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.uint8(), st.integers(0, 255)),
    (pa.uint16(), st.integers(0, 2**16 - 1)),
    (pa.uint32(), st.integers(0, 2**32 - 1)),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.float32(), st.floats(width=32, allow_nan=False).map(lambda it: it + 0.0)),
    (pa.float64(), st.floats(allow_nan=False).map(lambda it: it + 0.0)),
    (pa.decimal128(9, 3), st.decimals(-999999, 999999, places=3, allow_nan=False)),
    (pa.decimal128(38, 0), st.integers(-(10**38) + 1, 10**38 - 1).map(Decimal)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us"), TIMES),
    (pa.timestamp("s"), TIMES.map(lambda it: it.replace(microsecond=0))),
    (pa.timestamp("us", "UTC"), TIMES.map(lambda it: it.replace(tzinfo=UTC))),
    (pa.string(), st.text(max_size=12)),
    (pa.binary(), st.binary(max_size=12) | st.sampled_from([b"\0", b"\0\0", b"\0\xff", b"\xff"])),
]
types_of_values = st.recursive(
    st.sampled_from(PLAIN),
    lambda inner: (
        inner.map(lambda it: (pa.list_(it[0]), st.lists(st.none() | it[1], max_size=3)))
        | st.tuples(inner, inner).map(
            lambda it: (
                pa.struct([("a", it[0][0]), ("b c", it[1][0])]),
                st.fixed_dictionaries({"a": st.none() | it[0][1], "b c": st.none() | it[1][1]}),
            )
        )
        | st.tuples(st.sampled_from(PLAIN), inner).map(
            lambda it: (
                pa.map_(it[0][0], it[1][0]),
                st.dictionaries(it[0][1], st.none() | it[1][1], max_size=3),
            )
        )
    ),
    max_leaves=3,
)


@st.composite
def tables(draw: st.DrawFn) -> tuple[kelek.TableSchema, list[dict[str, Any]]]:
    """A schema, and rows of it."""
    keys = draw(st.lists(st.sampled_from(PLAIN), min_size=1, max_size=3))
    values = draw(st.lists(types_of_values, max_size=4))
    fields, items = [], {}
    for place, (type_, strategy) in enumerate(keys + values):
        fields.append(pa.field(f"c{place}", type_))
        items[f"c{place}"] = strategy if place < len(keys) else st.none() | strategy
    names = [field.name for field in fields[: len(keys)]]
    order = draw(st.permutations(fields))
    schema = kelek.TableSchema(pa.schema(order), key=names)
    return schema, draw(st.lists(st.fixed_dictionaries(items), max_size=5))


def encoded(schema: kelek.TableSchema, rows: Any) -> pa.RecordBatch:
    batches = [*pairs_of_rows(schema, rows)]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


@given(tables(), st.data())
def test_any_rows_come_back(
    made: tuple[kelek.TableSchema, list[dict[str, Any]]], data: st.DataObject
) -> None:
    schema, rows = made
    assert kelek.TableSchema(str(schema), schema.keys) == schema
    assert kelek.TableSchema.decode(schema.encode()) == schema
    if not rows:
        return
    pairs = encoded(schema, rows)
    found = batch_of_pairs(schema, pairs, schema.columns)
    found.validate(full=True)
    assert found.schema == schema.arrow
    assert dicts_of(found) == [{name: row[name] for name in schema.columns} for row in rows]
    some = data.draw(st.lists(st.sampled_from(schema.columns), unique=True, max_size=3))
    assert dicts_of(batch_of_pairs(schema, pairs, some)) == [
        {name: row[name] for name in some} for row in rows
    ]
    place = data.draw(st.integers(0, len(rows) - 1))
    part = batch_of_pairs(schema, pairs.slice(place), schema.columns)
    assert part.equals(found.slice(place))
    again = encoded(schema, found)
    assert again.equals(pairs)


@given(tables(), st.data())
def test_keys_are_in_the_order_of_their_columns(
    made: tuple[kelek.TableSchema, list[dict[str, Any]]], data: st.DataObject
) -> None:
    schema, rows = made
    if not rows:
        return

    def values(row: dict[str, Any]) -> list[Any]:
        return [it.encode() if isinstance(it := row[name], str) else it for name in schema.keys]

    keys = encoded(schema, rows).column(0).to_pylist()
    by_key = sorted(zip(keys, map(values, rows), strict=True), key=lambda it: it[0])
    assert [it[1] for it in by_key] == sorted(map(values, rows))
    assert keys == [schema.key(*(row[name] for name in schema.keys)) for row in rows]
    size = data.draw(st.integers(0, len(schema.keys)))
    low, high = sorted(
        data.draw(st.tuples(st.sampled_from(rows), st.sampled_from(rows))), key=values
    )
    start, end = ([row[name] for name in schema.keys[:size]] for row in (low, high))
    bounds, prefix = schema.range(None, start, end), schema.range(start)
    for key, row in zip(keys, rows, strict=True):
        own = values(row)[:size]
        inside = values(low)[:size] <= own and (not size or own < values(high)[:size])
        assert inside == (bounds.start <= key and (not bounds.end or key < bounds.end))
        same = prefix.start <= key and (not prefix.end or key < prefix.end)
        assert same == (own == values(low)[:size])


GOLDEN = [
    ("bool", True, "01", "c3"),
    ("int8", -2, "7e", "fe"),
    ("int16", 300, "812c", "cd012c"),
    ("int32", -70000, "7ffeee90", "d2fffeee90"),
    ("int64", 5, "8000000000000005", "05"),
    ("uint8", 200, "c8", "ccc8"),
    ("uint16", 1, "0001", "01"),
    ("uint32", 2**31, "80000000", "ce80000000"),
    ("uint64", 2**64 - 1, "ffffffffffffffff", "cfffffffffffffffff"),
    ("float32", 1.5, "bfc00000", "ca3fc00000"),
    ("float64", -1.5, "4007ffffffffffff", "cbbff8000000000000"),
    ("float64", math.inf, "fff0000000000000", "cb7ff0000000000000"),
    ("decimal(5, 2)", Decimal("-1.25"), "7fffffffffffffffffffffffffffff83", "d083"),
    (
        "decimal(38, 0)",
        Decimal(2**64),
        "80000000000000010000000000000000",
        "c41000000000000000010000000000000000",
    ),
    ("date32", date(2026, 1, 2), "80004fe7", "cd4fe7"),
    ("timestamp(ms)", datetime(1970, 1, 1, 0, 0, 1), "80000000000003e8", "cd03e8"),
    (
        "timestamp(us, UTC)",
        datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC),
        "7ffffffffff0bdc0",
        "d2fff0bdc0",
    ),
    ("utf8", "aä", "61c3a4", "a361c3a4"),
    ("binary", b"\0\xff", "00ff", "c40200ff"),
]


@pytest.mark.parametrize(("type_", "value", "key", "cell"), GOLDEN)
def test_golden_bytes(type_: str, value: Any, key: str, cell: str) -> None:
    """These bytes are in the tables of users: they never change."""
    schema = kelek.TableSchema(f"k {type_}, v {type_}", key=["k"])
    pairs = encoded(schema, [{"k": value, "v": value}])
    assert pairs.column(0)[0].as_py().hex() == key
    assert pairs.column(1)[0].as_py().hex() == f"91{cell}"


def test_golden_bytes_of_several_columns() -> None:
    schema = kelek.TableSchema(
        "t utf8, b binary, n int8, l list<date32>, s struct<d decimal(4,1), u utf8>, "
        "m map<int32, bool>, z float64",
        key=["t", "n", "b"],
    )
    row = {
        "t": "a\0", "n": 1, "b": b"\0x", "l": [date(1970, 1, 2), None],
        "s": {"d": Decimal("1.5"), "u": None}, "m": {7: True}, "z": None,
    }  # fmt: skip
    pairs = encoded(schema, [row])
    assert pairs.column(0)[0].as_py().hex() == "61" + "00ff" + "0000" + "81" + "0078"
    assert pairs.column(1)[0].as_py().hex() == "94" + "9201c0" + "92a3312e35c0" + "8107c3" + "c0"


def test_columns_that_came_later_are_null_in_older_rows() -> None:
    before = kelek.TableSchema("k int32, a utf8", key="k")
    after = before.extended(kelek.TableSchema("k int32, a utf8, b list<int32>, c bool", key="k"))
    pairs = encoded(before, [{"k": 1, "a": "x"}])
    assert dicts_of(batch_of_pairs(after, pairs, after.columns)) == [
        {"k": 1, "a": "x", "b": None, "c": None}
    ]
    newer = encoded(after, [{"k": 1, "a": "x", "c": True}])
    assert dicts_of(batch_of_pairs(before, newer, before.columns)) == [{"k": 1, "a": "x"}]


KEY = "k int32"
MISFITS: list[tuple[str, Sequence[Any], str]] = [
    ("v int8", [1, 200], r"row 1: column v is int8, which 200 does not fit .*: convert the value"),
    ("v int32", [1.5], "row 0: column v is int32, which 1.5 does not fit"),
    ("v int32", [True], "which True does not fit"),
    ("v bool", [1], "which 1 does not fit"),
    ("v date32", [EPOCH], "column v is date32, which datetime"),
    ("v timestamp(us)", [EPOCH.replace(tzinfo=UTC)], r"column v is timestamp\(us\), which"),
    ("v timestamp(us, UTC)", [EPOCH], "which datetime"),
    ("v timestamp(s)", [EPOCH + timedelta(milliseconds=1)], "which datetime"),
    (
        "v decimal(4, 2)",
        [Decimal("100.5")],
        r"column v is decimal\(4, 2\), which Decimal\('100.5'\)",
    ),
    ("v decimal(4, 2)", [Decimal("0.125")], "would cause data loss"),
    ("v utf8", [b"x"], "which b'x' does not fit"),
    ("v binary", ["x"], "which 'x' does not fit"),
    ("v list<int8>", [[1, "x"]], r"column v is list<int8>, which \[1, 'x'\]"),
    ("v struct<a int8>", [{"b": 1}], "which {'b': 1} does not fit"),
    ("v map<utf8, int8>", [{1: 1}], "which {1: 1} does not fit"),
    ("v int8 not null", [1, None], "row 1: column v is null, but it is `not null`"),
    ("v utf8", ["x" * 200 + "\ud800"], "which 'x{70,90}\\.\\.\\. does not fit"),
]


@pytest.mark.parametrize(("column", "items", "told"), MISFITS)
def test_a_value_that_does_not_fit(column: str, items: list[Any], told: str) -> None:
    schema = kelek.TableSchema(f"{KEY}, {column}", key=["k"])
    with pytest.raises(kelek.TableSchemaError, match=told):
        encoded(schema, [{"k": place, "v": item} for place, item in enumerate(items)])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (pa.array(["1"]), "column v is string, the table's is int8: cast it"),
        (pa.array([1.0]), "column v is double, the table's is int8"),
        (pa.array([True]), "column v is bool"),
        (pa.array([7, 300]), "row 1: column v is int8, which 300 does not fit"),
        (pa.array([[7]]), "the table's is int8"),
    ],
)
def test_a_column_that_does_not_fit(given: pa.Array, told: str) -> None:
    schema = kelek.TableSchema(f"{KEY}, v int8", key=["k"])
    rows = pa.table({"k": pa.array(range(len(given)), pa.int32()), "v": given})
    with pytest.raises(kelek.TableSchemaError, match=told):
        encoded(schema, rows)


@pytest.mark.parametrize(
    "given",
    [
        pa.array(["a", None], pa.large_string()),
        pa.array(["a", None], pa.string_view()),
        pa.array(["a", None]).dictionary_encode(),
    ],
)
def test_columns_of_like_types_are_taken(given: pa.Array) -> None:
    schema = kelek.TableSchema("k int64, v utf8", key=["k"])
    rows = pa.table({"v": given, "k": pa.array([1, 2], pa.int8())})
    pairs = encoded(schema, rows)
    assert dicts_of(batch_of_pairs(schema, pairs, ["v"])) == [{"v": "a"}, {"v": None}]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"v": 1}, "row 0: column k is null, but a key column has a value in every row"),
        ({"k": 1, "x": 2}, "row 0: the table has no column x; it has k, v. declare"),
        ([1, 2], "row 0 is a list: give dicts by column"),
    ],
)
def test_a_row_of_another_shape(row: Any, told: str) -> None:
    schema = kelek.TableSchema("k int32, v int32", key=["k"])
    with pytest.raises(kelek.TableSchemaError, match=told):
        encoded(schema, [row])
    with pytest.raises(kelek.TableSchemaError, match="give a list of rows"):
        encoded(schema, {"k": 1})


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        (b"\x80\0\0\1", b"junk", "the row of key 0x80000001 is not of the table's schema"),
        (b"\x80\0\0\1", b"\x92\xa1\xff\xc0", "column v is no utf8"),
        (b"\x80\0\0\1", b"\x92\xa1a\xa1a", "column l is no list<int32>"),
        (b"\x80\0\0\1", b"\x90", "column v is no utf8"),
        (b"k", b"\x92\xa1a\xc0", "the row of key 0x6b is not .* column k is no int32"),
    ],
)
def test_other_bytes_in_a_table(key: bytes, value: bytes, told: str) -> None:
    schema = kelek.TableSchema("k int32, v utf8 not null, l list<int32>", key=["k"])
    arrays = [pa.array([item], pa.binary()) for item in (key, value)]
    pair = pa.RecordBatch.from_arrays(arrays, ["key", "value"])
    with pytest.raises(kelek.TableSchemaError, match=told):
        batch_of_pairs(schema, pair, schema.columns)


@given(types_of_values, st.binary(max_size=30))
def test_junk_is_refused_or_read(made: tuple[pa.DataType, Any], data: bytes) -> None:
    schema = kelek.TableSchema(f"{KEY}, v {type_text(made[0])}", key=["k"])
    arrays = [pa.array([item], pa.binary()) for item in (bytes(4), b"\x91" + data)]
    pair = pa.RecordBatch.from_arrays(arrays, ["key", "value"])
    found, told = None, ""
    try:
        found = batch_of_pairs(schema, pair, schema.columns)
    except kelek.TableSchemaError as error:
        told = str(error)
    assert found is not None or "column v" in told
    if found is not None:
        found.validate(full=True)


def test_batches_of_dicts_have_all_columns() -> None:
    schema = kelek.TableSchema("k int32, v utf8", key=["k"])
    assert batch_of_dicts(schema, [{"k": 1}]).to_pylist() == [{"k": 1, "v": None}]
